//! Open by FID or by name, with or without creating the file, in one request.
//!
//! # Replays
//! The replay of an open carries the FID that was opened, the layout that a new file got, and the first handle. It opens by
//! that FID. Only if there is no such object does it create one: the create was lost with its group. If the open is
//! durable, the replay writes nothing and only makes the handle again.

use crate::cross::{self, stripes};
use crate::opens::OpenFile;
use crate::ops::create::{self, New, make};
use crate::ops::{Change, data};
use crate::tree::{self, Dir, Node};
use crate::{Mdt, grants, layouts};
use bytes::Bytes;
use proto::msg::{Attr, Layout, ObjectRep, OpenOp, bits, disposition};
use proto::{Errno, Fid, Operation, Transno};
use rules::Caller;
use rules::access::{EXECUTE, READ, WRITE};
use rules::mode::{S_IFDIR, S_IFREG};
use rules::names;
use schema::{Entry, Inode};
use target::{Cx, Reply, ShareKey, Stop};

/// Linux's flags for x86-64.
pub mod flags {
    /// Mask of the access mode: 0 reads, 1 writes, 2 both.
    pub const ACCMODE: u32 = 0o3;
    /// Open for execution; internal to the kernel.
    pub const EXEC: u32 = 0o40;
    /// Create the file if it does not exist.
    pub const CREAT: u32 = 0o100;
    /// The file must not exist.
    pub const EXCL: u32 = 0o200;
    /// Truncate to zero bytes.
    pub const TRUNC: u32 = 0o1000;
    /// The object must be a directory.
    pub const DIRECTORY: u32 = 0o200_000;
    /// The object must not be a symbolic link.
    pub const NOFOLLOW: u32 = 0o400_000;
    /// Reads do not update the atime.
    pub const NOATIME: u32 = 0o1_000_000;
    /// A reference without access to the data.
    pub const PATH: u32 = 0o10_000_000;
}

/// Whether an open may write.
pub fn writes(open_flags: u32) -> bool {
    open_flags & flags::ACCMODE != 0
}

/// Whether an open neither changes the file nor allows writes through the handle.
pub fn only_reads(open_flags: u32) -> bool {
    !writes(open_flags) && open_flags & (flags::CREAT | flags::TRUNC) == 0
}

/// Executes an open.
pub fn open(mdt: &mut Mdt, cx: &mut Cx<'_>, change: &Change<'_>, op: &OpenOp) -> Result<Reply, Stop> {
    if mdt.opens.of_export(cx.export()) >= mdt.settings.open_files_max {
        return Err(Errno::EMFILE.into());
    }
    if cx.is_replay()
        && let Some(fid) = op.opened_fid
    {
        if let Some(node) = tree::find(cx, fid)? {
            return reopen(mdt, cx, change, op, node);
        }
        if cx.is_committed_replay() || fid != op.fid || op.flags & flags::CREAT == 0 {
            return Err(Errno::ESTALE.into());
        }
    }
    let Some(parent) = op.parent else {
        let node = tree::node(cx, op.fid)?;
        return existing(mdt, cx, change, op, node, None);
    };
    let mut dir = Dir::find(cx, parent)?;
    let parent = &dir.node;
    change.caller.need(&parent.inode, EXECUTE)?;
    names::check(&op.name)?;
    let creates = op.flags & flags::CREAT != 0;
    if names::is_dot(&op.name) {
        return Err(if creates { Errno::EISDIR } else { Errno::EINVAL }.into());
    }
    if !creates {
        let entry = mdt.entry(cx, parent, &op.name)?.ok_or(Errno::ENOENT)?;
        return named(mdt, cx, change, op, parent, &entry);
    }
    let place = mdt.place(cx, parent, &op.name)?;
    match &place.entry {
        Some(_) if op.flags & flags::EXCL != 0 => Err(Errno::EEXIST.into()),
        Some(entry) => named(mdt, cx, change, op, parent, entry),
        None if op.flags & flags::DIRECTORY != 0 => Err(Errno::EINVAL.into()),
        None => {
            let new = New {
                name: &op.name,
                fid: op.fid,
                mode: S_IFREG | op.mode & 0o7777,
                rdev: 0,
                symlink: &Bytes::new(),
                layout: op.layout.clone().filter(|_| cx.is_replay()).map(first_layout),
                resident: false,
            };
            let made = make(mdt, cx, change, &mut dir, place, &new)?;
            dir.write(cx);
            let done = disposition::OPEN_CREATE | disposition::OPEN_OPEN;
            let attr = made.child.inode.attr();
            let reply = finish(mdt, cx, change, op, &made.child.inode, attr, Some(&dir.node), done);
            mdt.made(&made);
            cx.count(Operation::Mknod);
            Ok(reply)
        }
    }
}

/// Opens the object of a name.
fn named(
    mdt: &mut Mdt,
    cx: &mut Cx<'_>,
    change: &Change<'_>,
    op: &OpenOp,
    parent: &Node,
    entry: &Entry,
) -> Result<Reply, Stop> {
    if entry.mdt.is_none() {
        let node = tree::of_entry(cx, entry)?;
        cx.depends_on(ShareKey::name(parent.fid(), &op.name));
        return existing(mdt, cx, change, op, node, Some(parent));
    }
    let object = cross::named(cx, entry);
    if op.flags & flags::CREAT != 0 && object.mode == S_IFDIR {
        return Err(Errno::EISDIR.into());
    }
    let elsewhere = Some(cross::sent_on(cx, object)?);
    let parent_attr = Some(grants::attr_for(cx, &parent.inode));
    cx.changes_nothing();
    Ok(Reply::new(&ObjectRep { elsewhere, parent_attr, ..ObjectRep::default() }))
}

/// The layout that a new file first got, from its replay. A client of version 0.1.0 sends the layout that the file has now,
/// with a generation above 0. The changes since are replayed, too, and need the file as it was before them.
fn first_layout(replayed: Layout) -> Layout {
    // Only the layout of a resident file changes.
    let later = replayed.generation > 0;
    Layout { resident: replayed.resident || later, generation: 0, ..replayed }
}

/// Opens an existing object.
fn existing(
    mdt: &mut Mdt,
    cx: &mut Cx<'_>,
    change: &Change<'_>,
    op: &OpenOp,
    mut node: Node,
    parent: Option<&Node>,
) -> Result<Reply, Stop> {
    stripes::is_whole(cx, &node.inode)?;
    // The client reports a local open of a file that it made. It checked the permission when it opened the file; mode and
    // owner may have changed since.
    let reported = op.flags & flags::PATH != 0 && node.inode.is_file() && create::is_of_requester(cx, node.fid())?;
    if !reported {
        check(&change.caller, &node.inode, op)?;
    }
    cx.note_version(0, parent.map_or(0, |parent| parent.inode.version));
    cx.note_version(1, node.inode.version);
    let truncates = op.flags & flags::TRUNC != 0 && node.inode.is_file();
    let needs_osts = writes(op.flags) && mdt.lacks_osts(&node.inode);
    let mut revoked = 0;
    if truncates {
        revoked |= bits::UPDATE | bits::DOM;
    }
    if needs_osts {
        revoked |= bits::UPDATE | bits::LAYOUT;
    }
    if revoked != 0 {
        tree::revoke(cx, &[(node.fid(), revoked)])?;
    }
    if truncates {
        truncate(cx, change, &mut node)?;
    }
    let attr = if truncates { None } else { Some(grants::fresh_attr(cx, &node)?) };

    cx.depends_on(ShareKey::object(node.fid()));
    if needs_osts {
        mdt.choose_osts(&mut node.inode);
    }
    if revoked != 0 {
        cx.changed(ShareKey::object(node.fid()));
        node.put(cx);
    }
    // After a write, the inode is newer than the attributes that were read before.
    let attr = attr.filter(|_| revoked == 0).unwrap_or_else(|| grants::attr_for(cx, &node.inode));
    let done = disposition::LOOKUP_POS | disposition::OPEN_OPEN;
    Ok(finish(mdt, cx, change, op, &node.inode, attr, parent, done))
}

fn truncate(cx: &mut Cx<'_>, change: &Change<'_>, node: &mut Node) -> Result<(), Stop> {
    emptied(&change.caller, &mut node.inode, change.now_ns);
    if node.inode.is_resident() {
        data::resize(cx, node, 0)?;
    }
    Ok(())
}

/// The effect of a truncation to zero on the inode, except for the data.
fn emptied(caller: &Caller<'_>, inode: &mut Inode, now_ns: i64) {
    inode.mode = caller.mode_without_privileges(&*inode, true);
    inode.content_changed(now_ns);
}

/// Whether the caller may have been granted this open before the restart. If the object has not changed since, the check of
/// today decides. If its mode or owner may have changed, the handle proves it: only the client that got the reply knows it.
fn was_granted(cx: &mut Cx<'_>, change: &Change<'_>, op: &OpenOp, inode: &Inode) -> Result<(), Stop> {
    let Err(errno) = check(&change.caller, inode, op) else { return Ok(()) };
    // The creator of a file may open it in ways that its mode forbids.
    if create::is_of_requester(cx, inode.fid)? {
        return Ok(());
    }
    let changed_since = inode.version > cx.transno().0;
    let proven = cx.open_handle(inode.fid, writes(op.flags), None).is_none_or(|handle| handle == op.old_handle);
    if changed_since && proven { Ok(()) } else { Err(errno.into()) }
}

/// Replays an open of an existing object.
fn reopen(mdt: &mut Mdt, cx: &mut Cx<'_>, change: &Change<'_>, op: &OpenOp, mut node: Node) -> Result<Reply, Stop> {
    was_granted(cx, change, op, &node.inode)?;
    if !cx.is_committed_replay() && op.flags & flags::TRUNC != 0 && node.inode.is_file() {
        truncate(cx, change, &mut node)?;
        node.put(cx);
    }
    let created = op.opened_fid == Some(op.fid) && op.parent.is_some();
    let done = if created { disposition::OPEN_CREATE } else { disposition::LOOKUP_POS } | disposition::OPEN_OPEN;
    let attr = grants::attr_for(cx, &node.inode);
    Ok(finish(mdt, cx, change, op, &node.inode, attr, None, done))
}

/// Checks whether the caller may open the object with these flags, with errors in the order of Linux's `do_open` and
/// `may_open`.
fn check(caller: &Caller<'_>, inode: &Inode, op: &OpenOp) -> Result<(), Errno> {
    let has = |bit| op.flags & bit != 0;
    if inode.is_symlink() && !has(flags::PATH) {
        return Err(Errno::ELOOP);
    }
    if inode.is_dir() && has(flags::CREAT) {
        return Err(Errno::EISDIR);
    }
    if has(flags::DIRECTORY) && !inode.is_dir() {
        return Err(Errno::ENOTDIR);
    }
    if has(flags::PATH) && !writes(op.flags) {
        return Ok(());
    }
    if inode.is_dir() && (writes(op.flags) || has(flags::TRUNC)) {
        return Err(Errno::EISDIR);
    }
    let mut want = match op.flags & flags::ACCMODE {
        0 if has(flags::EXEC) => EXECUTE,
        0 => READ,
        1 => WRITE,
        _ => READ | WRITE,
    };
    if has(flags::TRUNC) {
        want |= WRITE;
    }
    caller.need(inode, want)?;
    if has(flags::NOATIME) && !caller.is_owner(inode) {
        return Err(Errno::EPERM);
    }
    Ok(())
}

/// The last step of an open: grants locks and makes the handle.
fn finish(
    mdt: &mut Mdt,
    cx: &mut Cx<'_>,
    change: &Change<'_>,
    op: &OpenOp,
    inode: &Inode,
    attr: Attr,
    parent: Option<&Node>,
    done: u32,
) -> Reply {
    let locks = grants::grant(cx, &change.want, Some(inode), parent.map(Node::fid));
    let handle = mdt.open_handle(cx, inode.fid, op, None);
    cx.count(Operation::Open);
    Reply::new(&ObjectRep {
        attr: Some(attr),
        parent_attr: parent.map(|parent| grants::attr_for(cx, &parent.inode)),
        locks,
        handle,
        disposition: done,
        ..ObjectRep::default()
    })
    .with_record(u64::from(done))
}

impl Mdt {
    /// Memory: adds an open file. `answered`: the transno of the first reply, when that reply is rebuilt.
    pub(crate) fn open_handle(&mut self, cx: &Cx<'_>, fid: Fid, op: &OpenOp, answered: Option<Transno>) -> u64 {
        let old_handle = if cx.is_replay() { op.old_handle } else { 0 };
        let file = OpenFile { export: cx.export(), fid, writes: writes(op.flags), old_handle };
        let handle = cx.open_handle(fid, file.writes, answered);
        self.opens.open(cx.instance(), handle, file)
    }

    /// Whether a resident file still has no object targets although there are some by now. Such a file was made when no
    /// object target was known or its pool was empty.
    pub(crate) fn lacks_osts(&self, inode: &Inode) -> bool {
        if self.osts.is_empty() || !inode.is_resident() {
            return false;
        }
        let Some(layout) = &inode.layout else { return true };
        layout.osts.is_empty() && self.osts.members(&layout.pool).is_none_or(|members| !members.is_empty())
    }

    /// Chooses the object targets for such a file.
    pub(crate) fn choose_osts(&self, inode: &mut Inode) {
        let old = inode.layout.take().unwrap_or_default();
        let mut layout = layouts::of_old_file(&self.osts, inode.fid, &old.pool);
        layout.generation = old.generation + 1;
        if old.stripe_size != 0 {
            layout.stripe_size = old.stripe_size;
        }
        inode.layout = Some(layout);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::msg::Cred;
    use rules::mode::{S_IFDIR, S_IFIFO, S_IFLNK};

    fn try_open(uid: u32, mode: u32, flags: u32) -> Result<(), Errno> {
        let cred = Cred { uid, gid: uid, ..Cred::default() };
        let inode = Inode { mode, uid: 1, gid: 1, ..Inode::default() };
        check(&Caller::of(&cred), &inode, &OpenOp { flags, ..OpenOp::default() })
    }

    #[test]
    fn an_open_asks_for_what_it_will_do() {
        assert_eq!(try_open(2, S_IFREG | 0o644, 0), Ok(()));
        assert_eq!(try_open(2, S_IFREG | 0o644, 1), Err(Errno::EACCES));
        assert_eq!(try_open(2, S_IFREG | 0o646, 2), Ok(()));
        assert_eq!(try_open(2, S_IFREG | 0o642, 2), Err(Errno::EACCES));
        assert_eq!(try_open(2, S_IFREG | 0o644, flags::TRUNC), Err(Errno::EACCES));
        assert_eq!(try_open(2, S_IFREG | 0o711, flags::EXEC), Ok(()));
        assert_eq!(try_open(2, S_IFREG | 0o744, flags::EXEC), Err(Errno::EACCES));
        assert_eq!(try_open(2, S_IFREG | 0o666, flags::NOATIME), Err(Errno::EPERM));
        assert_eq!(try_open(0, S_IFREG, 2), Ok(()));
        assert_eq!(try_open(2, S_IFREG, flags::PATH), Ok(()));
        assert_eq!(try_open(2, S_IFIFO | 0o666, 2), Ok(()));
    }

    #[test]
    fn an_open_that_cuts_is_not_older_than_the_last_write() {
        let cred = Cred { uid: 1, gid: 1, ..Cred::default() };
        for (written, renamed, cut) in [(7, 7, 9), (20, 20, 20), (7, 20, 20)] {
            let mut inode = Inode { mode: S_IFREG | 0o4755, mtime_ns: written, ctime_ns: renamed, ..Inode::default() };
            emptied(&Caller::of(&cred), &mut inode, 9);
            assert_eq!((inode.mode, inode.mtime_ns, inode.ctime_ns), (S_IFREG | 0o755, cut, cut));
        }
    }

    #[test]
    fn an_open_knows_what_kind_of_object_it_wants() {
        assert_eq!(try_open(1, S_IFLNK | 0o777, 0), Err(Errno::ELOOP));
        assert_eq!(try_open(1, S_IFLNK | 0o777, flags::PATH | flags::NOFOLLOW), Ok(()));
        assert_eq!(try_open(2, S_IFREG | 0o644, flags::PATH | 2), Err(Errno::EACCES));
        assert_eq!(try_open(1, S_IFDIR | 0o755, flags::DIRECTORY), Ok(()));
        assert_eq!(try_open(1, S_IFREG | 0o755, flags::DIRECTORY), Err(Errno::ENOTDIR));
        for flags in [1, 2, flags::TRUNC, flags::CREAT] {
            assert_eq!(try_open(1, S_IFDIR | 0o755, flags), Err(Errno::EISDIR));
        }
    }
}
