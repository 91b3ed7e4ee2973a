//! Another name: `rename`, also over an object, `RENAME_NOREPLACE`, `RENAME_EXCHANGE`.

use crate::access::{EXECUTE, WRITE};
use crate::known::Pending;
use crate::ops::Change;
use crate::ops::unlink::{Gone, drop_link};
use crate::tree::{self, Node, Place};
use crate::{Mdt, grants};
use bytes::Bytes;
use proto::connect::LINK_MAX;
use proto::msg::{ObjectRep, RenameOp, bits};
use proto::{Errno, Fid, Operation};
use schema::LinkEa;
use schema::entry::CHAIN_MAX;
use target::{Cx, Reply, ShareKey, Stop};

const NOREPLACE: u32 = 1;
const EXCHANGE: u32 = 2;

/// The one or two directories of a rename.
struct Dirs {
    source: Node,
    /// `None`: the same.
    target: Option<Node>,
}

impl Dirs {
    fn target(&self) -> &Node {
        self.target.as_ref().unwrap_or(&self.source)
    }
    fn target_mut(&mut self) -> &mut Node {
        self.target.as_mut().unwrap_or(&mut self.source)
    }
    fn differ(&self) -> bool {
        self.target.is_some()
    }
}

/// What a rename is about, once all names are found.
struct Found {
    dirs: Dirs,
    source: Place,
    target: Place,
    moved: Node,
    /// What has the target name.
    other: Option<Node>,
}

/// See the module.
pub fn rename(mdt: &mut Mdt, cx: &mut Cx<'_>, change: &Change, op: &RenameOp) -> Result<Reply, Stop> {
    let mut found = resolve(mdt, cx, change, op)?;
    if found.other.as_ref().is_some_and(|other| other.fid() == found.moved.fid()) {
        // Two names of one object: nothing happens, as POSIX has it.
        cx.changes_nothing();
        return Ok(reply(cx, change, &found, Gone::No));
    }
    check(change, op, &found)?;
    // In one chain, the new entry may be what follows the old one; and it may be the first that was put elsewhere because the chain
    // is full.
    let (from, to) = (found.source.key, found.target.key);
    let follows = from.dir == to.dir && from.cookie / CHAIN_MAX == to.cookie / CHAIN_MAX && to.cookie > from.cookie;
    let tombstone = mdt.chain_goes_on(cx, &Pending::default(), &found.source)? || follows || found.target.second;
    check_versions(cx, &found)?;
    revoke(cx, op, &found)?;

    cx.depends_on(ShareKey::object(op.source_parent));
    cx.depends_on(ShareKey::object(op.target_parent));
    cx.changed(ShareKey::name(op.source_parent, &op.source_name));
    cx.changed(ShareKey::name(op.target_parent, &op.target_name));
    cx.changed(ShareKey::object(found.moved.fid()));
    cx.touched(ShareKey::emptied(op.source_parent));
    if let Some(other) = &found.other {
        cx.changed(ShareKey::object(other.fid()));
        cx.depends_on(ShareKey::emptied(other.fid()));
    }
    let exchange = op.flags & EXCHANGE != 0;
    let gone = if exchange {
        write_exchange(cx, change, op, &mut found);
        Gone::No
    } else {
        write_move(mdt, cx, change, op, &mut found, tombstone)?
    };
    let reply = reply(cx, change, &found, gone);
    if !exchange {
        mdt.entry_taken(found.target.key);
        mdt.entry_freed(found.source.key, tombstone);
    }
    if let Some(other) = &found.other {
        mdt.link_dropped(cx, other, gone);
    }
    cx.count(Operation::Rename);
    Ok(reply)
}

/// Finds both names, in Linux's order of errors.
fn resolve(mdt: &Mdt, cx: &mut Cx<'_>, change: &Change, op: &RenameOp) -> Result<Found, Stop> {
    if op.flags & !(NOREPLACE | EXCHANGE) != 0 || op.flags == NOREPLACE | EXCHANGE {
        return Err(Errno::EINVAL.into());
    }
    let source = tree::dir(cx, op.source_parent)?;
    let target = match op.target_parent == op.source_parent {
        true => None,
        false => Some(tree::dir(cx, op.target_parent)?),
    };
    let dirs = Dirs { source, target };
    change.caller.need(&dirs.source.inode, EXECUTE)?;
    change.caller.need(&dirs.target().inode, EXECUTE)?;
    tree::check_name(&op.source_name)?;
    tree::check_name(&op.target_name)?;
    if tree::is_dot(&op.source_name) || tree::is_dot(&op.target_name) {
        return Err(Errno::EBUSY.into());
    }
    let source = mdt.place(cx, dirs.source.ino, &op.source_name)?;
    let target = mdt.place(cx, dirs.target().ino, &op.target_name)?;
    let moved = tree::leaving(cx, source.entry.as_ref().ok_or(Errno::ENOENT)?)?;
    let other = match &target.entry {
        Some(_) if op.flags & NOREPLACE != 0 => return Err(Errno::EEXIST.into()),
        None if op.flags & EXCHANGE != 0 => return Err(Errno::ENOENT.into()),
        Some(entry) => Some(tree::leaving(cx, entry)?),
        None => None,
    };
    if dirs.differ() {
        if moved.inode.is_dir() && lies_in(cx, dirs.target(), moved.fid())? {
            return Err(Errno::EINVAL.into());
        }
        if let Some(other) = &other
            && other.inode.is_dir()
            && lies_in(cx, &dirs.source, other.fid())?
        {
            let errno = if op.flags & EXCHANGE != 0 { Errno::EINVAL } else { Errno::ENOTEMPTY };
            return Err(errno.into());
        }
    }
    Ok(Found { dirs, source, target, moved, other })
}

/// Whether a directory is `ancestor` or lies below it.
fn lies_in(cx: &mut Cx<'_>, dir: &Node, ancestor: Fid) -> Result<bool, Stop> {
    let (mut fid, mut parent) = (dir.fid(), dir.inode.parent());
    loop {
        if fid == ancestor {
            return Ok(true);
        }
        if fid == Fid::ROOT {
            return Ok(false);
        }
        let next = tree::node(cx, parent)?;
        (fid, parent) = (next.fid(), next.inode.parent());
    }
}

fn check(change: &Change, op: &RenameOp, found: &Found) -> Result<(), Errno> {
    let Found { dirs, moved, other, .. } = found;
    let exchange = op.flags & EXCHANGE != 0;
    let caller = &change.caller;
    caller.may_remove(&dirs.source.inode, &moved.inode)?;
    match other {
        None => caller.need(&dirs.target().inode, WRITE | EXECUTE)?,
        Some(other) => {
            caller.may_remove(&dirs.target().inode, &other.inode)?;
            match (moved.inode.is_dir(), other.inode.is_dir()) {
                (true, false) if !exchange => return Err(Errno::ENOTDIR),
                (false, true) if !exchange => return Err(Errno::EISDIR),
                _ => {}
            }
        }
    }
    if dirs.target().inode.nlink == 0 {
        return Err(Errno::ENOENT);
    }
    if dirs.differ() {
        // Its `..` changes.
        if moved.inode.is_dir() {
            caller.need(&moved.inode, WRITE)?;
        }
        if let Some(other) = other
            && exchange
            && other.inode.is_dir()
        {
            caller.need(&other.inode, WRITE)?;
        }
    }
    let other_is_dir = other.as_ref().is_some_and(|other| other.inode.is_dir());
    if !exchange && other.as_ref().is_some_and(|other| other.inode.is_dir() && other.inode.dir.entries > 0) {
        return Err(Errno::ENOTEMPTY);
    }
    if dirs.differ() {
        let full = |dir: &Node| dir.inode.nlink >= LINK_MAX;
        let moved_is_dir = moved.inode.is_dir();
        let comes = moved_is_dir && !other_is_dir && full(dirs.target());
        let goes = exchange && other_is_dir && !moved_is_dir && full(&dirs.source);
        if comes || goes {
            return Err(Errno::EMLINK);
        }
    }
    Ok(())
}

fn check_versions(cx: &mut Cx<'_>, found: &Found) -> Result<(), Stop> {
    cx.note_version(0, found.dirs.source.inode.version);
    cx.note_version(1, found.dirs.target().inode.version);
    cx.pre_version(2, tree::version_of(&found.moved.inode))?;
    cx.pre_version(3, found.other.as_ref().map_or(tree::NO_ENTRY, |other| tree::version_of(&other.inode)))
}

fn revoke(cx: &mut Cx<'_>, op: &RenameOp, found: &Found) -> Result<(), Stop> {
    let mut wanted = vec![(found.dirs.source.fid(), bits::UPDATE), (found.moved.fid(), bits::LOOKUP | bits::UPDATE)];
    wanted.extend(found.dirs.target.as_ref().map(|dir| (dir.fid(), bits::UPDATE)));
    let mut free = Ok(());
    match &found.other {
        Some(other) if op.flags & EXCHANGE == 0 => free = tree::revoke_named(cx, other, op.told),
        other => wanted.extend(other.iter().map(|other| (other.fid(), bits::LOOKUP | bits::UPDATE))),
    }
    tree::revoke(cx, &wanted).and(free)
}

fn write_move(
    mdt: &Mdt,
    cx: &mut Cx<'_>,
    change: &Change,
    op: &RenameOp,
    found: &mut Found,
    tombstone: bool,
) -> Result<Gone, Stop> {
    let Found { dirs, source, target, moved, other } = found;
    let mut gone = Gone::No;
    if let Some(other) = other {
        other.inode.links.remove(op.target_parent, &op.target_name);
        if other.inode.is_dir() {
            tree::subdirectory_gone(cx, dirs.target_mut());
        }
        gone = drop_link(mdt, cx, other, change.now_ns)?;
    }
    tree::remove_entry(cx, &mut dirs.source, source, tombstone);
    tree::put_entry(cx, dirs.target_mut(), target, &op.target_name, moved);
    if moved.inode.is_dir() {
        tree::subdirectory_gone(cx, &mut dirs.source);
        dirs.target_mut().inode.nlink += 1;
    }
    rename_link(moved, (op.source_parent, &op.source_name), (op.target_parent, &op.target_name));
    moved.inode.changed(change.now_ns);
    moved.put(cx);
    put_dirs(cx, dirs, change.now_ns);
    Ok(gone)
}

fn write_exchange(cx: &mut Cx<'_>, change: &Change, op: &RenameOp, found: &mut Found) {
    let Found { dirs, source, target, moved, other } = found;
    let Some(other) = other else { return };
    let (from, to) = ((op.source_parent, &op.source_name), (op.target_parent, &op.target_name));
    tree::put_entry(cx, dirs.target_mut(), target, &op.target_name, moved);
    tree::put_entry(cx, &mut dirs.source, source, &op.source_name, other);
    match (moved.inode.is_dir(), other.inode.is_dir()) {
        (true, false) => {
            tree::subdirectory_gone(cx, &mut dirs.source);
            dirs.target_mut().inode.nlink += 1;
        }
        (false, true) => {
            tree::subdirectory_gone(cx, dirs.target_mut());
            dirs.source.inode.nlink += 1;
        }
        _ => {}
    }
    rename_link(moved, from, to);
    rename_link(other, to, from);
    for node in [moved, other] {
        node.inode.changed(change.now_ns);
        node.put(cx);
    }
    put_dirs(cx, dirs, change.now_ns);
}

fn rename_link(node: &mut Node, from: (Fid, &Bytes), to: (Fid, &Bytes)) {
    let name = Bytes::copy_from_slice(to.1);
    if node.inode.is_dir() {
        node.inode.links = LinkEa::one(to.0, name);
        return;
    }
    node.inode.links.remove(from.0, from.1);
    node.inode.links.add(to.0, name);
}

fn put_dirs(cx: &mut Cx<'_>, dirs: &mut Dirs, now_ns: i64) {
    for dir in [Some(&mut dirs.source), dirs.target.as_mut()].into_iter().flatten() {
        dir.inode.content_changed(now_ns);
        dir.put(cx);
    }
}

fn reply(cx: &mut Cx<'_>, change: &Change, found: &Found, gone: Gone) -> Reply {
    let Found { dirs, moved, other, .. } = found;
    Reply::new(&ObjectRep {
        attr: Some(moved.inode.attr()),
        parent_attr: Some(dirs.target().inode.attr()),
        locks: grants::grant(cx, &change.want, Some(&moved.inode), Some(dirs.target().fid())),
        source_parent_attr: dirs.differ().then(|| dirs.source.inode.attr()),
        replaced_attr: other.as_ref().map(|other| other.inode.attr()),
        destroyed: gone != Gone::No,
        ..ObjectRep::default()
    })
}
