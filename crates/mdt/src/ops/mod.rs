//! The operations, one file each: validate, resolve, check, write, reply.
//!
//! Errors, and which comes first where several fit, are Linux's VFS's. Every file follows the rules of an attempt (see
//! [`target::service`]): what reads comes first, then calls for locks, then writes, and memory last.

pub mod batch;
pub mod close;
pub mod create;
pub mod data;
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

/// What all changes have in common.
#[derive(Debug)]
pub struct Change<'a> {
    /// On whose behalf.
    pub caller: Caller<'a>,
    /// The client's clock.
    pub now_ns: i64,
    /// Locks wanted with the reply.
    pub want: WantLocks,
}

impl<'a> Change<'a> {
    /// Of a request.
    pub fn new(request: &'a ReintReq) -> Change<'a> {
        Change {
            caller: Caller::new(request.cred.as_ref()),
            now_ns: request.now_ns,
            want: request.want.unwrap_or_default(),
        }
    }
}

/// The answer to a change of an object, and of the directory that it got a name in. Its mode goes into the record, for an answer
/// that has to be rebuilt when the object is gone.
fn changed(cx: &mut Cx<'_>, change: &Change<'_>, inode: &Inode, parent: Option<&Inode>, written: &Written) -> Reply {
    let mut rep = described(cx, change, inode, parent);
    rep.attr.iter_mut().for_each(|attr| written.merge(attr));
    Reply::new(&rep).with_record(u64::from(inode.mode))
}

/// See [`changed`].
fn described(cx: &mut Cx<'_>, change: &Change<'_>, inode: &Inode, parent: Option<&Inode>) -> ObjectRep {
    ObjectRep {
        attr: Some(inode.attr()),
        parent_attr: parent.map(Inode::attr),
        locks: grants::grant(cx, &change.want, Some(inode), parent.map(|parent| parent.fid)),
        ..ObjectRep::default()
    }
}
