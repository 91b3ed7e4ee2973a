//! `rename`, with or without an existing target, `RENAME_NOREPLACE`, `RENAME_EXCHANGE` and `RENAME_WHITEOUT`.

use crate::known::Pending;
use crate::ops::Change;
use crate::ops::create::{self, New};
use crate::ops::subjects::{self, Subject};
use crate::ops::unlink::{Gone, drop_link};
use crate::tree::{self, Node, Place};
use crate::{Mdt, cross, grants};
use bytes::Bytes;
use proto::msg::{ObjectRep, RenameOp, bits};
use proto::{Errno, Fid, Operation};
use rules::access::EXECUTE;
use rules::names::{self, Links};
use schema::entry::CHAIN_MAX;
use schema::{LinkEa, SeqGrant};
use target::{Cx, Reply, Stop};

const NOREPLACE: u32 = 1;
const EXCHANGE: u32 = 2;
const WHITEOUT: u32 = 4;

/// The one or two directories of a rename.
struct Dirs {
    source: Node,
    /// `None`: the same directory.
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

/// The directories, places and objects of a rename, after all names are resolved.
struct Resolved {
    dirs: Dirs,
    source: Place,
    target: Place,
    moved: Node,
    /// The object that has the target name.
    other: Option<Node>,
    /// The object that gets the source name.
    whiteout: Option<Node>,
}

/// Executes a rename.
pub fn rename(mdt: &mut Mdt, cx: &mut Cx<'_>, change: &Change<'_>, op: &RenameOp) -> Result<Reply, Stop> {
    let mut found = resolve(mdt, cx, change, op)?;
    if found.other.as_ref().is_some_and(|other| other.fid() == found.moved.fid()) {
        // Both names belong to one object: POSIX wants no change.
        cx.changes_nothing();
        return Ok(reply(cx, change, &found, Gone::No));
    }
    let links = checked(change, op, &found)?;
    // The new entry may be in the same chain, after the old one. Or it may be the first in a second chain, because the old
    // one's chain is full.
    let (from, to) = (found.source.key, found.target.key);
    let follows = from.dir == to.dir && from.cookie / CHAIN_MAX == to.cookie / CHAIN_MAX && to.cookie > from.cookie;
    let tombstone = mdt.chain_continues(cx, &Pending::default(), &found.source)? || follows || found.target.second;
    let grant = if op.flags & WHITEOUT != 0 { Some(new_whiteout(mdt, cx, change, op, &mut found)?) } else { None };
    check_versions(cx, &found)?;
    revoke(cx, op, &found)?;

    subjects::note(cx, &subjects::renamed(op))?;
    subjects::note(cx, &[Subject::Object(found.moved.fid())])?;
    if let Some(other) = &found.other {
        subjects::note_victim(cx, other)?;
    }
    if let (Some(grant), Some(whiteout)) = (&grant, &mut found.whiteout) {
        subjects::note(cx, &[Subject::New(whiteout.fid())])?;
        create::put_new(cx, grant, whiteout);
    }
    let exchange = op.flags & EXCHANGE != 0;
    let gone = if exchange {
        write_exchange(cx, change, op, &mut found, links);
        Gone::No
    } else {
        write_move(mdt, cx, change, op, &mut found, (links, tombstone))?
    };
    let reply = reply(cx, change, &found, gone);
    if !exchange {
        mdt.entry_taken(found.target.key);
    }
    if !exchange && found.whiteout.is_none() {
        mdt.entry_freed(found.source.key, tombstone);
    }
    if let Some(other) = &found.other {
        mdt.link_dropped(cx, other, gone);
    }
    cx.count(Operation::Rename);
    Ok(reply)
}

/// Resolves both names, with errors in Linux's order.
fn resolve(mdt: &Mdt, cx: &mut Cx<'_>, change: &Change<'_>, op: &RenameOp) -> Result<Resolved, Stop> {
    if op.flags & !(NOREPLACE | EXCHANGE | WHITEOUT) != 0 || op.flags & EXCHANGE != 0 && op.flags != EXCHANGE {
        return Err(Errno::EINVAL.into());
    }
    if op.whiteout.is_some() != (op.flags & WHITEOUT != 0) {
        return Err(Errno::EPROTO.into());
    }
    let source = tree::dir(cx, op.source_parent)?;
    let target = match op.target_parent == op.source_parent {
        true => None,
        false if cross::elsewhere(mdt, cx, op.target_parent).is_some() => return Err(Errno::EXDEV.into()),
        false => Some(tree::dir(cx, op.target_parent)?),
    };
    let dirs = Dirs { source, target };
    change.caller.need(&dirs.source.inode, EXECUTE)?;
    change.caller.need(&dirs.target().inode, EXECUTE)?;
    names::check(&op.source_name)?;
    names::check(&op.target_name)?;
    if names::is_dot(&op.source_name) || names::is_dot(&op.target_name) {
        return Err(Errno::EBUSY.into());
    }
    let source = mdt.place(cx, &dirs.source, &op.source_name)?;
    let target = mdt.place(cx, dirs.target(), &op.target_name)?;
    let moved = tree::losing_name(cx, source.entry.as_ref().ok_or(Errno::ENOENT)?)?;
    let other = match &target.entry {
        Some(_) if op.flags & NOREPLACE != 0 => return Err(Errno::EEXIST.into()),
        None if op.flags & EXCHANGE != 0 => return Err(Errno::ENOENT.into()),
        Some(entry) => Some(tree::losing_name(cx, entry)?),
        None => None,
    };
    if dirs.differ() {
        if moved.inode.is_dir() && lies_in(cx, dirs.target(), moved.fid(), &dirs.source)? {
            return Err(Errno::EINVAL.into());
        }
        if let Some(other) = &other
            && other.inode.is_dir()
            && lies_in(cx, &dirs.source, other.fid(), dirs.target())?
        {
            let errno = if op.flags & EXCHANGE != 0 { Errno::EINVAL } else { Errno::ENOTEMPTY };
            return Err(errno.into());
        }
    }
    Ok(Resolved { dirs, source, target, moved, other, whiteout: None })
}

/// Prepares the whiteout without writing it or its entry. Returns the grant of its FID, to be written with it.
fn new_whiteout(
    mdt: &Mdt,
    cx: &mut Cx<'_>,
    change: &Change<'_>,
    op: &RenameOp,
    found: &mut Resolved,
) -> Result<SeqGrant, Stop> {
    let fid = op.whiteout.ok_or(Errno::EPROTO)?;
    let grant = create::use_fid(cx, fid)?;
    let new = New {
        name: &op.source_name,
        fid,
        mode: rules::create::WHITEOUT,
        rdev: 0,
        symlink: &Bytes::new(),
        layout: None,
        resident: false,
    };
    let dir = &mut found.dirs.source;
    let inode = create::new_inode(mdt, change, &dir.inode, &new);
    let ino = tree::allocate_ino(cx, dir)?;
    found.whiteout = Some(Node { ino, inode });
    Ok(grant)
}

/// Whether a directory is `ancestor` or below it. `parent` is the directory of `ancestor`. `EXDEV`: the way up leads to
/// another target before it meets that of `parent`.
fn lies_in(cx: &mut Cx<'_>, dir: &Node, ancestor: Fid, parent: &Node) -> Result<bool, Stop> {
    let (way, above) = (way_up(cx, dir)?, way_up(cx, parent)?);
    for fid in &way {
        match () {
            () if *fid == ancestor => return Ok(true),
            () if above.contains(fid) => return Ok(false),
            () => {}
        }
    }
    if way.last() == Some(&Fid::ROOT) && tree::find(cx, Fid::ROOT)?.is_some() {
        return Ok(false);
    }
    stdx::mark!("mdt.way_up_leaves");
    Err(Errno::EXDEV.into())
}

/// A directory and those above it, up to the root or the first one on another target.
fn way_up(cx: &mut Cx<'_>, dir: &Node) -> Result<Vec<Fid>, Stop> {
    let (mut way, mut parent) = (vec![dir.fid()], dir.inode.parent());
    while way.last() != Some(&Fid::ROOT) {
        way.push(parent);
        let Some(next) = tree::find(cx, parent)? else { break };
        parent = next.inode.parent();
    }
    Ok(way)
}

/// Checks the rename, and returns how the link counts of the directories change.
fn checked(change: &Change<'_>, op: &RenameOp, found: &Resolved) -> Result<Links, Errno> {
    let Resolved { dirs, moved, other, .. } = found;
    let rename = names::Rename {
        source: (&dirs.source.inode).into(),
        target: dirs.target.as_ref().map(|dir| (&dir.inode).into()),
        moved: (&moved.inode).into(),
        other: other.as_ref().map(|other| (&other.inode).into()),
        other_is_full: other.as_ref().is_some_and(|other| other.inode.dir.entries > 0),
        exchange: op.flags & EXCHANGE != 0,
    };
    rename.check(&change.caller)?;
    Ok(rename.links())
}

fn check_versions(cx: &mut Cx<'_>, found: &Resolved) -> Result<(), Stop> {
    cx.note_version(0, found.dirs.source.inode.version);
    cx.note_version(1, found.dirs.target().inode.version);
    cx.pre_version(2, tree::version_of(&found.moved.inode))?;
    cx.pre_version(3, found.other.as_ref().map_or(tree::NO_ENTRY, |other| tree::version_of(&other.inode)))
}

fn revoke(cx: &mut Cx<'_>, op: &RenameOp, found: &Resolved) -> Result<(), Stop> {
    let mut wanted = vec![(found.dirs.source.fid(), bits::UPDATE), (found.moved.fid(), bits::LOOKUP | bits::UPDATE)];
    wanted.extend(found.dirs.target.as_ref().map(|dir| (dir.fid(), bits::UPDATE)));
    let mut free = Ok(());
    match &found.other {
        Some(other) if op.flags & EXCHANGE == 0 => free = tree::revoke_named(cx, other, op.reported),
        other => wanted.extend(other.iter().map(|other| (other.fid(), bits::LOOKUP | bits::UPDATE))),
    }
    tree::revoke(cx, &wanted).and(free)
}

fn write_move(
    mdt: &Mdt,
    cx: &mut Cx<'_>,
    change: &Change<'_>,
    op: &RenameOp,
    found: &mut Resolved,
    (links, tombstone): (Links, bool),
) -> Result<Gone, Stop> {
    let Resolved { dirs, source, target, moved, other, whiteout } = found;
    let mut gone = Gone::No;
    if let Some(other) = other {
        other.inode.links.remove(op.target_parent, &op.target_name);
        gone = drop_link(mdt, cx, other, change.now_ns)?;
    }
    match whiteout {
        Some(whiteout) => tree::put_entry(cx, &mut dirs.source, source, &op.source_name, whiteout),
        None => tree::remove_entry(cx, &mut dirs.source, source, tombstone),
    }
    tree::put_entry(cx, dirs.target_mut(), target, &op.target_name, moved);
    rename_link(moved, (op.source_parent, &op.source_name), (op.target_parent, &op.target_name));
    moved.inode.changed(change.now_ns);
    moved.put(cx);
    put_dirs(cx, dirs, links, change.now_ns);
    Ok(gone)
}

fn write_exchange(cx: &mut Cx<'_>, change: &Change<'_>, op: &RenameOp, found: &mut Resolved, links: Links) {
    let Resolved { dirs, source, target, moved, other, .. } = found;
    let Some(other) = other else { return };
    let (from, to) = ((op.source_parent, &op.source_name), (op.target_parent, &op.target_name));
    tree::put_entry(cx, dirs.target_mut(), target, &op.target_name, moved);
    tree::put_entry(cx, &mut dirs.source, source, &op.source_name, other);
    rename_link(moved, from, to);
    rename_link(other, to, from);
    for node in [moved, other] {
        node.inode.changed(change.now_ns);
        node.put(cx);
    }
    put_dirs(cx, dirs, links, change.now_ns);
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

fn put_dirs(cx: &mut Cx<'_>, dirs: &mut Dirs, links: Links, now_ns: i64) {
    tree::count_directories(cx, dirs.target_mut(), links.target);
    tree::count_directories(cx, &mut dirs.source, links.source);
    for dir in [Some(&mut dirs.source), dirs.target.as_mut()].into_iter().flatten() {
        dir.inode.content_changed(now_ns);
        dir.put(cx);
    }
}

fn reply(cx: &mut Cx<'_>, change: &Change<'_>, found: &Resolved, gone: Gone) -> Reply {
    let Resolved { dirs, moved, other, whiteout, .. } = found;
    Reply::new(&ObjectRep {
        attr: Some(moved.inode.attr()),
        parent_attr: Some(dirs.target().inode.attr()),
        locks: grants::grant(cx, &change.want, Some(&moved.inode), Some(dirs.target().fid())),
        source_parent_attr: dirs.differ().then(|| dirs.source.inode.attr()),
        replaced_attr: other.as_ref().map(|other| other.inode.attr()),
        destroyed: gone != Gone::No,
        whiteout_attr: whiteout.as_ref().map(|whiteout| whiteout.inode.attr()),
        ..ObjectRep::default()
    })
}
