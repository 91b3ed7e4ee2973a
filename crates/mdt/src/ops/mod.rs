//! The operations of the metadata target, one file each: validate, resolve, check, write, reply.
//!
//! Errors and their precedence are those of Linux's VFS. Every operation follows the rules of an attempt (see
//! [`target::service`]): first reads, then locks to call back, then writes, and memory last.

pub mod batch;
pub mod close;
pub mod create;
pub mod data;
pub mod dot_lustre;
pub mod fid2path;
pub mod getattr;
pub mod link;
pub mod lock;
pub mod lookup;
pub mod open;
pub mod prefetch;
pub mod readdir;
pub mod reconstruct;
pub mod rename;
pub mod seq_alloc;
pub mod setattr;
pub mod setlayout;
pub mod setxattr;
pub mod statfs;
pub mod subjects;
pub mod sync;
pub mod unlink;
pub mod xattr;

use crate::grants::{self, Written};
use proto::msg::{ObjectRep, ReintReq, WantLocks};
use rules::Caller;
use schema::Inode;
use target::{Cx, Reply};

/// The part that all changes have in common.
#[derive(Debug)]
pub struct Change<'a> {
    /// The credentials that the change uses.
    pub caller: Caller<'a>,
    /// The time of the change by the client's clock.
    pub now_ns: i64,
    /// Locks wanted with the reply.
    pub want: WantLocks,
}

impl<'a> Change<'a> {
    /// The common part of a request.
    pub fn new(request: &'a ReintReq) -> Change<'a> {
        Change {
            caller: Caller::new(request.cred.as_ref()),
            now_ns: request.now_ns,
            want: request.want.unwrap_or_default(),
        }
    }
}

/// The reply to a change of an object, and of the directory in which it got a name. The reply record keeps the mode, so
/// that the reply can be rebuilt after the object is gone.
fn changed(cx: &mut Cx<'_>, change: &Change<'_>, inode: &Inode, parent: Option<&Inode>, written: &Written) -> Reply {
    let mut rep = described(cx, change, inode, parent);
    rep.attr.iter_mut().for_each(|attr| written.merge(attr));
    Reply::new(&rep).with_record(u64::from(inode.mode))
}

/// The reply to a change of a directory that is already as it was to become.
pub fn unchanged(cx: &mut Cx<'_>, change: &Change<'_>, inode: &Inode) -> Reply {
    Reply::new(&described(cx, change, inode, None)).with_record(u64::from(inode.mode))
}

/// The body of the reply, without what the writer of a resident file knows. See [`changed`].
fn described(cx: &mut Cx<'_>, change: &Change<'_>, inode: &Inode, parent: Option<&Inode>) -> ObjectRep {
    ObjectRep {
        attr: Some(grants::attr_for(cx, inode)),
        parent_attr: parent.map(|parent| grants::attr_for(cx, parent)),
        locks: grants::grant(cx, &change.want, Some(inode), parent.map(|parent| parent.fid)),
        ..ObjectRep::default()
    }
}
