//! Creation of an object with a name: directory, device, pipe, socket, symbolic link or regular file. Shared with an open
//! that creates.

use crate::known::Pending;
use crate::ops::{Change, subjects};
use crate::tree::{self, Dir, Node, Place};
use crate::{Mdt, grants, layouts};
use bytes::Bytes;
use proto::msg::{Attr, CreateOp, Layout, ObjectRep};
use proto::{ClientUuid, Errno, Fid, Operation};
use rules::access::EXECUTE;
use rules::mode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use rules::{acl, names, placement};
use schema::{DirState, Inode, InodeXattr, LinkEa, Oi, SeqGrant};
use target::{Cx, Reply, Stop};

/// The object to be made.
#[derive(Debug)]
pub struct New<'a> {
    /// Its name.
    pub name: &'a Bytes,
    /// Its FID, chosen by the client.
    pub fid: Fid,
    /// Type and permission bits, before umask and access lists.
    pub mode: u32,
    /// Device nodes: the device number.
    pub rdev: u64,
    /// Symbolic links: the target.
    pub symlink: &'a Bytes,
    /// Regular files, in a replay: the layout that the first execution chose.
    pub layout: Option<Layout>,
    /// Regular files: the client relies on the data being resident.
    pub resident: bool,
}

/// A new object. The caller passes it to `Mdt::made`.
#[derive(Debug)]
pub struct Made {
    /// The directory's inode number, and the state of its entries after the create.
    parent: (u64, DirState),
    /// The object.
    pub child: Node,
    /// Where the entry is.
    pub place: Place,
}

impl Made {
    /// Makes the entry known to later changes of the same attempt.
    pub fn note(&self, pending: &mut Pending) {
        pending.took(self.place.key.dir, self.place.key.cookie);
        if self.child.inode.is_dir() {
            pending.made(self.child.ino);
        }
    }
}

/// Executes a create.
pub fn create(
    mdt: &mut Mdt,
    cx: &mut Cx<'_>,
    change: &Change<'_>,
    op: &CreateOp,
    layout: Option<Layout>,
) -> Result<Reply, Stop> {
    let mut parent = Dir::find(cx, op.parent)?;
    let made = match named(mdt, cx, change, &New { layout, ..New::of(op, false) }, op, &mut parent)? {
        Named::Existing(child) => return Ok(reply(cx, change, &child, &parent.node)),
        Named::Made(made) => made,
    };
    parent.write(cx);
    let reply = reply(cx, change, &made.child, &parent.node);
    mdt.made(&made);
    cx.count(statistic(op));
    Ok(reply)
}

/// The operation that a create counts as in the statistics.
pub fn statistic(op: &CreateOp) -> Operation {
    if op.mode & S_IFMT == S_IFDIR { Operation::Mkdir } else { Operation::Mknod }
}

/// The result of [`named`].
#[derive(Debug)]
pub enum Named {
    /// A replay found the object that the first execution made.
    Existing(Node),
    /// All records except that of the directory are written.
    Made(Made),
}

/// Checks a create in `parent` and writes all records except that of `parent`. Memory does not change. `new`: the object
/// that `op` describes.
pub fn named(
    mdt: &Mdt,
    cx: &mut Cx<'_>,
    change: &Change<'_>,
    new: &New<'_>,
    op: &CreateOp,
    parent: &mut Dir,
) -> Result<Named, Stop> {
    change.caller.need(&parent.node.inode, EXECUTE)?;
    names::check(&op.name)?;
    if names::is_dot(&op.name) {
        return Err(Errno::EEXIST.into());
    }
    let place = mdt.place_after(cx, &parent.pending, &parent.node, &op.name)?;
    if let Some(entry) = &place.entry {
        if cx.is_replay() && entry.object() == op.fid {
            return Ok(Named::Existing(tree::of_entry(cx, entry)?));
        }
        return Err(Errno::EEXIST.into());
    }
    rules::create::check_kind(&change.caller, op.mode, &op.symlink)?;
    Ok(Named::Made(make(mdt, cx, change, parent, place, new)?))
}

impl<'a> New<'a> {
    /// The object that a create describes, without a layout from a first execution.
    pub fn of(op: &'a CreateOp, resident: bool) -> New<'a> {
        New { name: &op.name, fid: op.fid, mode: op.mode, rdev: op.rdev, symlink: &op.symlink, layout: None, resident }
    }
}

/// The attributes that the object of a create had, for one that is gone again: without links and layout.
pub fn gone(mdt: &Mdt, change: &Change<'_>, parent: &Inode, op: &CreateOp) -> Attr {
    let made = new_inode(mdt, change, parent, &New::of(op, false));
    Attr { nlink: 0, layout: None, dir_default: None, ..made.attr() }
}

fn reply(cx: &mut Cx<'_>, change: &Change<'_>, child: &Node, parent: &Node) -> Reply {
    Reply::new(&ObjectRep {
        attr: Some(grants::attr_for(cx, &child.inode)),
        parent_attr: Some(grants::attr_for(cx, &parent.inode)),
        locks: grants::grant(cx, &change.want, Some(&child.inode), Some(parent.fid())),
        symlink: child.inode.symlink.clone(),
        ..ObjectRep::default()
    })
}

/// Checks whether the caller may create in the directory, calls back conflicting locks, and writes all records except that
/// of the directory.
pub fn make(
    mdt: &Mdt,
    cx: &mut Cx<'_>,
    change: &Change<'_>,
    dir: &mut Dir,
    place: Place,
    new: &New<'_>,
) -> Result<Made, Stop> {
    let parent = &dir.node;
    let is_dir = new.mode & S_IFMT == S_IFDIR;
    rules::create::check(&change.caller, &parent.inode, new.mode, new.rdev)?;
    let grant = use_fid(cx, new.fid)?;
    cx.note_version(0, parent.inode.version);
    cx.note_version(1, tree::NO_ENTRY);
    dir.claim(cx)?;

    let parent = &mut dir.node;
    let ino = tree::allocate_ino(cx, parent)?;
    let mut child = Node { ino, inode: new_inode(mdt, change, &parent.inode, new) };
    subjects::note(cx, &subjects::created(parent.fid(), new.name, new.fid))?;
    put_new(cx, Some(&grant), &mut child);
    tree::put_entry(cx, parent, &place, new.name, &child);
    if is_dir {
        tree::count_directories(cx, parent, 1);
    }
    let parent = (parent.ino, parent.inode.dir);
    dir.entries_changed(change.now_ns);
    Ok(Made { parent, child, place })
}

/// Writes the records of a new object, except its entry. `grant`: that of its sequence, if there still is one.
pub fn put_new(cx: &mut Cx<'_>, grant: Option<&SeqGrant>, node: &mut Node) {
    let fid = node.fid();
    if let Some(grant) = grant {
        cx.put::<SeqGrant>(&fid.seq, grant);
    }
    cx.put::<Oi>(&fid, &Oi { ino: node.ino });
    node.put(cx);
}

/// Whether the requester made an object: its FID is from a sequence that was granted to the requester.
pub fn is_of_requester(cx: &mut Cx<'_>, fid: Fid) -> Result<bool, Stop> {
    let uuid = cx.client();
    let grant = cx.get::<SeqGrant>(&fid.seq)?;
    Ok(grant.is_some_and(|grant| uuid.is_some_and(|uuid| grant.is_of(uuid))))
}

/// The grant of the FID's sequence, with the FID marked as used. `EPROTO` if the sequence was not granted to this client,
/// or the FID was used before.
pub fn use_fid(cx: &mut Cx<'_>, fid: Fid) -> Result<SeqGrant, Stop> {
    let uuid = cx.client().ok_or(Errno::EPROTO)?;
    let mut grant = may_use_fid(cx, fid, uuid)?;
    grant.mark_used(fid.oid);
    Ok(grant)
}

/// The same for a client that another target has asked, without marking the FID.
pub fn may_use_fid(cx: &mut Cx<'_>, fid: Fid, client: ClientUuid) -> Result<SeqGrant, Stop> {
    if !fid.is_normal() {
        return Err(Errno::EPROTO.into());
    }
    let grant = cx.get::<SeqGrant>(&fid.seq)?;
    match grant {
        Some(grant) if grant.is_of(client) => {
            if grant.is_used(fid.oid) && (!cx.is_replay() || cx.exists::<Oi>(&fid)?) {
                return Err(Errno::EPROTO.into());
            }
            Ok(grant)
        }
        _ => Err(Errno::EPROTO.into()),
    }
}

/// The inode of a new object.
pub fn new_inode(mdt: &Mdt, change: &Change<'_>, parent: &Inode, new: &New<'_>) -> Inode {
    let kind = new.mode & S_IFMT;
    let default_list = parent.xattr(acl::DEFAULT);
    let wanted = rules::create::New {
        mode: new.mode,
        rdev: new.rdev,
        symlink: new.symlink,
        default_list: default_list.map(|value| &value[..]),
    };
    let made = rules::create::made(&change.caller, parent, &wanted, change.now_ns);
    let mut xattrs = Vec::new();
    if let Some(value) = made.access_list {
        xattrs.push(InodeXattr { name: Bytes::from_static(acl::ACCESS), value, large: false });
    }
    if let Some(value) = default_list.filter(|_| made.takes_default_list) {
        xattrs.push(InodeXattr { name: Bytes::from_static(acl::DEFAULT), value: value.clone(), large: false });
    }
    let layout = match kind {
        S_IFREG => Some(new.layout.clone().unwrap_or_else(|| {
            let resident = new.resident || mdt.settings.dom_size > 0;
            layouts::of_new_file(parent.layout.as_ref(), &mdt.osts, new.fid, resident)
        })),
        S_IFDIR => parent.layout.clone(),
        _ => None,
    };
    let attr = made.attr;
    Inode {
        fid: new.fid,
        mode: attr.mode,
        uid: attr.uid,
        gid: attr.gid,
        nlink: attr.nlink,
        rdev: attr.rdev,
        size: attr.size,
        blocks: attr.blocks,
        atime_ns: attr.atime_ns,
        mtime_ns: attr.mtime_ns,
        mtime_set_ns: attr.mtime_set_ns,
        ctime_ns: attr.ctime_ns,
        btime_ns: attr.btime_ns,
        version: 0,
        layout,
        links: LinkEa::one(parent.master(), new.name.clone()),
        xattrs,
        symlink: if kind == S_IFLNK { new.symlink.clone() } else { Bytes::new() },
        dir: DirState::default(),
        leaving: false,
        next_object: 0,
        lmv: None,
        dir_default: if kind == S_IFDIR { placement::inherited(parent.dir_default.as_deref()) } else { None },
    }
}

impl Mdt {
    /// Memory: applies a create.
    pub(crate) fn made(&mut self, made: &Made) {
        let (ino, dir) = made.parent;
        if dir.entries == 1 && dir.tombstones == 0 && !made.place.tombstone && !self.known.knows(ino) {
            self.known.learn(ino, []);
        }
        self.entry_taken(made.place.key);
        if made.child.inode.is_dir() {
            self.known.learn(made.child.ino, []);
        }
    }
}
