//! `.lustre`: three directories of MDT0000 that every file system has, at fixed FIDs.
//!
//! | path | mode | what it is for |
//! |---|---|---|
//! | `.lustre` | 0555 | the other two |
//! | `.lustre/fid` | 0111 | has no entries: clients find every object in it by its FID |
//! | `.lustre/lost+found` | 0700 | what lfsck finds without a name |
//!
//! The root has no entry for `.lustre`: so it is in no listing of the root and in none of its counts, and an older version
//! can serve the store. Clients know the FID. The names in `.lustre` are ordinary entries.

use crate::Mdt;
use crate::ops::open::flags;
use crate::tree::{self, Node};
use bytes::Bytes;
use proto::connect::DIR_SIZE;
use proto::msg::{Reint, valid};
use proto::{Errno, Fid};
use rules::mode::S_IFDIR;
use rules::names::{self, is_dot_lustre, is_fixed};
use schema::inode::{DOT_LUSTRE_FID_INO, DOT_LUSTRE_INO, LOST_FOUND_INO};
use schema::{Inode, LinkEa, Oi};
use target::{Cx, LogLevel, Stop};

/// Makes the directories on a store of MDT0000 that lacks them: it is new, or an older version has made it. They get no
/// transno: at this time replays may still claim the next ones.
pub fn make(mdt: &Mdt, cx: &mut Cx<'_>) -> Result<(), Stop> {
    if cx.name().index.0 != 0 {
        return Ok(());
    }
    match tree::find(cx, Fid::DOT_LUSTRE) {
        Ok(None) => {}
        Ok(Some(_)) => return Ok(()),
        Err(Stop::Wait) => return Err(Stop::Wait),
        // It is in the log, and nobody needs the directory to use the rest.
        Err(Stop::Errno(_)) => return Ok(()),
    }
    if let Some(root) = tree::find(cx, Fid::ROOT)?
        && mdt.place(cx, &root, names::DOT_LUSTRE)?.entry.is_some()
    {
        let line = "the root has an entry '.lustre', which lookups do not find any more: give it another name";
        cx.log(LogLevel::Warn, line);
    }
    let new = |fid, mode, parent, name: &'static [u8], now_ns| Inode {
        fid,
        mode: S_IFDIR | mode,
        nlink: 2,
        size: DIR_SIZE,
        blocks: DIR_SIZE / 512,
        atime_ns: now_ns,
        mtime_ns: now_ns,
        ctime_ns: now_ns,
        btime_ns: now_ns,
        links: LinkEa::one(parent, Bytes::from_static(name)),
        ..Inode::default()
    };
    let now_ns = cx.wall_ns();
    let mut dir =
        Node { ino: DOT_LUSTRE_INO, inode: new(Fid::DOT_LUSTRE, 0o555, Fid::ROOT, names::DOT_LUSTRE, now_ns) };
    let below: [(u64, Fid, u32, &'static [u8]); 2] = [
        (DOT_LUSTRE_FID_INO, Fid::DOT_LUSTRE_FID, 0o111, b"fid"),
        (LOST_FOUND_INO, Fid::LOST_FOUND, 0o700, b"lost+found"),
    ];
    for (ino, fid, mode, name) in below {
        let place = mdt.place(cx, &dir, name)?;
        let child = Node { ino, inode: new(fid, mode, Fid::DOT_LUSTRE, name, now_ns) };
        put(cx, &child);
        tree::put_entry(cx, &mut dir, &place, &Bytes::from_static(name), &child);
        tree::count_directories(cx, &mut dir, 1);
    }
    put(cx, &dir);
    Ok(())
}

fn put(cx: &mut Cx<'_>, node: &Node) {
    cx.put::<Oi>(&node.fid(), &Oi { ino: node.ino });
    cx.put::<Inode>(&node.ino, &node.inode);
}

/// Refuses changes of names and attributes that are the same in every file system, with `EPERM`. A name `.lustre` that an
/// older version has made in the root can be removed, and renamed.
pub fn check(cx: &Cx<'_>, change: &Reint) -> Result<(), Errno> {
    // A client of an older version may replay that it made the name.
    let made = |parent, name: &Bytes| is_fixed(parent) || is_dot_lustre(parent, name) && !cx.is_replay();
    let refused = match change {
        Reint::Setattr(op) => is_fixed(op.fid) && op.valid & valid::HOUSEKEEPING == 0,
        Reint::Setxattr(op) => is_fixed(op.fid),
        Reint::Relayout(op) => is_fixed(op.fid),
        Reint::Setlayout(op) => is_fixed(op.fid),
        Reint::Create(op) => made(op.parent, &op.name),
        Reint::Link(op) => made(op.parent, &op.name),
        Reint::Open(op) => op.flags & flags::CREAT != 0 && op.parent.is_some_and(|parent| made(parent, &op.name)),
        Reint::Unlink(op) => is_fixed(op.parent),
        Reint::Rename(op) => is_fixed(op.source_parent) || made(op.target_parent, &op.target_name),
    };
    if refused { Err(Errno::EPERM) } else { Ok(()) }
}

/// The error of a failed change: `EPERM` for the removal or rename of `.lustre` in the root, which has no entry.
pub fn error(change: &Reint, errno: Errno) -> Errno {
    let taken = match change {
        Reint::Unlink(op) => is_dot_lustre(op.parent, &op.name),
        Reint::Rename(op) => is_dot_lustre(op.source_parent, &op.source_name),
        _ => false,
    };
    if taken && errno == Errno::ENOENT { Errno::EPERM } else { errno }
}
