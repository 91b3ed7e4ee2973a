//! A new object with a name: directory, device, pipe, socket, symbolic link, regular file; and what an open that creates
//! shares with that.

use crate::access::{Capability, EXECUTE, WRITE};
use crate::known::Pending;
use crate::ops::Change;
use crate::tree::{self, Dir, Node, Place};
use crate::{Mdt, acl, grants, layouts};
use bytes::Bytes;
use proto::connect::{DIR_SIZE, LINK_MAX, SYMLINK_MAX};
use proto::msg::{Attr, CreateOp, Layout, ObjectRep};
use proto::{Errno, Fid, Operation};
use schema::inode::{S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK};
use schema::{DirState, Inode, InodeXattr, LinkEa, Oi, SeqGrant};
use target::{Cx, Reply, ShareKey, Stop};

/// What is to be made.
#[derive(Debug)]
pub struct New<'a> {
    /// The name, for which `place` was found.
    pub name: &'a Bytes,
    /// The client's choice.
    pub fid: Fid,
    /// Type and permission bits, before umask and lists.
    pub mode: u32,
    /// Device nodes.
    pub rdev: u64,
    /// Symbolic links.
    pub symlink: &'a Bytes,
    /// Regular files, in a replay: the layout that it got the first time.
    pub layout: Option<Layout>,
    /// Regular files: the client counts on its data lying here.
    pub resident: bool,
}

/// What was made. `Mdt::made` is still to be told.
#[derive(Debug)]
pub struct Made {
    /// Where the directory lies, and what its entries are after.
    parent: (u64, DirState),
    /// The object.
    pub child: Node,
    /// Where the entry is.
    pub place: Place,
}

impl Made {
    /// Further changes of the attempt find it there.
    pub fn note(&self, pending: &mut Pending) {
        pending.took(self.place.key.dir, self.place.key.cookie);
        if self.child.inode.is_dir() {
            pending.made(self.child.ino);
        }
    }
}

/// See the module.
pub fn create(
    mdt: &mut Mdt,
    cx: &mut Cx<'_>,
    change: &Change,
    op: &CreateOp,
    layout: Option<Layout>,
) -> Result<Reply, Stop> {
    let mut parent = Dir::find(cx, op.parent)?;
    let made = match named(mdt, cx, change, &New { layout, ..New::of(op, false) }, op, &mut parent)? {
        Named::There(child) => return Ok(reply(cx, change, &child, &parent.node)),
        Named::Made(made) => made,
    };
    parent.write(cx);
    let reply = reply(cx, change, &made.child, &parent.node);
    mdt.made(&made);
    cx.count(statistic(op));
    Ok(reply)
}

/// Under which name a create is counted.
pub fn statistic(op: &CreateOp) -> Operation {
    if op.mode & S_IFMT == S_IFDIR { Operation::Mkdir } else { Operation::Mknod }
}

/// What [`named`] did.
#[derive(Debug)]
pub enum Named {
    /// A replay found it done: the object.
    There(Node),
    /// Records are written, but for the directory's.
    Made(Made),
}

/// Checks a create in `parent` and writes all but that; memory is untouched. `new`: what `op` asks for.
pub fn named(
    mdt: &Mdt,
    cx: &mut Cx<'_>,
    change: &Change,
    new: &New<'_>,
    op: &CreateOp,
    parent: &mut Dir,
) -> Result<Named, Stop> {
    change.caller.need(&parent.node.inode, EXECUTE)?;
    tree::check_name(&op.name)?;
    if tree::is_dot(&op.name) {
        return Err(Errno::EEXIST.into());
    }
    let place = mdt.place_after(cx, &parent.pending, parent.node.ino, &op.name)?;
    if let Some(entry) = &place.entry {
        if cx.is_replay() && entry.object() == op.fid {
            return Ok(Named::There(tree::of_entry(cx, entry)?));
        }
        return Err(Errno::EEXIST.into());
    }
    check_type(change, op)?;
    Ok(Named::Made(make(mdt, cx, change, parent, place, new)?))
}

impl<'a> New<'a> {
    /// What a create asks for, the first time.
    pub fn of(op: &'a CreateOp, resident: bool) -> New<'a> {
        New { name: &op.name, fid: op.fid, mode: op.mode, rdev: op.rdev, symlink: &op.symlink, layout: None, resident }
    }
}

/// The attributes of an object that was made here and is gone again.
pub fn gone(mdt: &Mdt, change: &Change, parent: &Inode, op: &CreateOp) -> Attr {
    let made = new_inode(mdt, change, parent, &New::of(op, false));
    Attr { nlink: 0, layout: None, ..made.attr() }
}

/// What is wrong with the wish itself.
fn check_type(change: &Change, op: &CreateOp) -> Result<(), Errno> {
    match op.mode & S_IFMT {
        S_IFREG | S_IFDIR | S_IFIFO | S_IFSOCK => Ok(()),
        S_IFLNK if op.symlink.is_empty() => Err(Errno::ENOENT),
        S_IFLNK if op.symlink.len() > SYMLINK_MAX => Err(Errno::ENAMETOOLONG),
        S_IFLNK => Ok(()),
        // The permission of the directory is looked at first.
        S_IFBLK | S_IFCHR => Ok(()),
        _ if change.caller.uid() == 0 => Err(Errno::EINVAL),
        _ => Err(Errno::EPERM),
    }
}

fn reply(cx: &mut Cx<'_>, change: &Change, child: &Node, parent: &Node) -> Reply {
    Reply::new(&ObjectRep {
        attr: Some(child.inode.attr()),
        parent_attr: Some(parent.inode.attr()),
        locks: grants::grant(cx, &change.want, Some(&child.inode), Some(parent.fid())),
        symlink: child.inode.symlink.clone(),
        ..ObjectRep::default()
    })
}

/// Checks whether the caller may create in the directory, takes the locks and writes the records, but for the directory's.
pub fn make(
    mdt: &Mdt,
    cx: &mut Cx<'_>,
    change: &Change,
    dir: &mut Dir,
    place: Place,
    new: &New<'_>,
) -> Result<Made, Stop> {
    let parent = &dir.node;
    let is_dir = new.mode & S_IFMT == S_IFDIR;
    change.caller.need(&parent.inode, WRITE | EXECUTE)?;
    if parent.inode.nlink == 0 {
        return Err(Errno::ENOENT.into());
    }
    if matches!(new.mode & S_IFMT, S_IFBLK | S_IFCHR) && !change.caller.capable(Capability::Mknod) {
        return Err(Errno::EPERM.into());
    }
    if is_dir && parent.inode.nlink >= LINK_MAX {
        return Err(Errno::EMLINK.into());
    }
    let grant = use_fid(cx, new.fid)?;
    cx.note_version(0, parent.inode.version);
    cx.note_version(1, tree::NO_ENTRY);
    dir.claim(cx)?;

    let parent = &mut dir.node;
    let ino = tree::allocate_ino(cx, parent)?;
    let mut child = Node { ino, inode: new_inode(mdt, change, &parent.inode, new) };
    cx.depends_on(ShareKey::object(parent.fid()));
    cx.changed(ShareKey::name(parent.fid(), new.name));
    cx.changed(ShareKey::object(new.fid));
    if let Some(grant) = grant {
        cx.put::<SeqGrant>(&new.fid.seq, &grant);
    }
    cx.put::<Oi>(&new.fid, &Oi { ino });
    child.put(cx);
    tree::put_entry(cx, parent, &place, new.name, &child);
    if is_dir {
        parent.inode.nlink += 1;
    }
    let parent = (parent.ino, parent.inode.dir);
    dir.entries_changed(change.now_ns);
    Ok(Made { parent, child, place })
}

/// Whether the requester has made an object: its FID is of a sequence that was granted to it.
pub fn is_of_requester(cx: &mut Cx<'_>, fid: Fid) -> Result<bool, Stop> {
    let uuid = cx.client();
    let grant = cx.get::<SeqGrant>(&fid.seq)?;
    Ok(grant.is_some_and(|grant| uuid.is_some_and(|uuid| grant.is_of(uuid))))
}

/// The grant of the FID's sequence with the FID marked as used. Refused: a sequence that was not granted to this client,
/// and a FID that was used before.
fn use_fid(cx: &mut Cx<'_>, fid: Fid) -> Result<Option<SeqGrant>, Stop> {
    if !fid.is_normal() {
        return Err(Errno::EPROTO.into());
    }
    let uuid = cx.client();
    let grant = cx.get::<SeqGrant>(&fid.seq)?;
    match grant {
        Some(mut grant) if uuid.is_some_and(|uuid| grant.is_of(uuid)) => {
            if grant.is_used(fid.oid) && (!cx.is_replay() || cx.exists::<Oi>(&fid)?) {
                return Err(Errno::EPROTO.into());
            }
            grant.mark_used(fid.oid);
            Ok(Some(grant))
        }
        _ => Err(Errno::EPROTO.into()),
    }
}

/// The inode of a new object: owner, group and mode by the rules of its directory.
fn new_inode(mdt: &Mdt, change: &Change, parent: &Inode, new: &New<'_>) -> Inode {
    let caller = &change.caller;
    let kind = new.mode & S_IFMT;
    let wanted = if kind == S_IFDIR { new.mode & (S_IFMT | 0o1777) } else { new.mode & (S_IFMT | 0o7777) };
    let (gid, mode) = caller.group_and_mode_of_new(parent, wanted);
    let (mode, xattrs) = match kind {
        S_IFLNK => (S_IFLNK | 0o777, Vec::new()),
        _ => with_default_list(parent, mode, caller.umask()),
    };
    let now_ns = change.now_ns;
    let layout = match kind {
        S_IFREG => Some(new.layout.clone().unwrap_or_else(|| {
            let resident = new.resident || mdt.settings.dom_size > 0;
            layouts::of_new_file(parent.layout.as_ref(), &mdt.osts, new.fid, resident)
        })),
        S_IFDIR => parent.layout.clone(),
        _ => None,
    };
    Inode {
        fid: new.fid,
        mode,
        uid: caller.uid(),
        gid,
        nlink: if kind == S_IFDIR { 2 } else { 1 },
        rdev: if matches!(kind, S_IFBLK | S_IFCHR) { new.rdev } else { 0 },
        size: match kind {
            S_IFDIR => DIR_SIZE,
            S_IFLNK => new.symlink.len() as u64,
            _ => 0,
        },
        blocks: if kind == S_IFDIR { DIR_SIZE / 512 } else { 0 },
        atime_ns: now_ns,
        mtime_ns: now_ns,
        mtime_set_ns: 0,
        ctime_ns: now_ns,
        btime_ns: now_ns,
        version: 0,
        layout,
        links: LinkEa::one(parent.fid, new.name.clone()),
        xattrs,
        symlink: if kind == S_IFLNK { new.symlink.clone() } else { Bytes::new() },
        dir: DirState::default(),
        leaving: false,
        next_object: 0,
    }
}

/// Mode and lists of a new object: the directory's default list decides, or else the umask.
fn with_default_list(parent: &Inode, mode: u32, umask: u32) -> (u32, Vec<InodeXattr>) {
    let default = parent.xattrs.iter().find(|xattr| xattr.name == acl::DEFAULT);
    let list = default.and_then(|xattr| acl::Acl::parse(&xattr.value).ok().flatten());
    let (Some(default), Some(list)) = (default, list) else { return (mode & !umask, Vec::new()) };
    let (access, mode) = list.inherit(mode);
    let mut xattrs = Vec::new();
    if !access.is_a_mode() {
        xattrs.push(InodeXattr { name: Bytes::from_static(acl::ACCESS), value: access.to_value(), large: false });
    }
    if mode & S_IFMT == S_IFDIR {
        xattrs.push(default.clone());
    }
    (mode, xattrs)
}

impl Mdt {
    /// Memory: an object was made.
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
