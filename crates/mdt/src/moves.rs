//! Moves of resident files to object targets: which resident files may have objects, also after a crash.
//!
//! A client copies the data of a resident file to objects before the inode names them. If the client dies and nothing durable
//! says that there may be objects, they leak. So a move starts, that is, the target answers its lock request, only when a
//! range of FIDs that includes the file is durably recorded as [`Moving`]. Files that grow are often made one after another,
//! so about one answer in a thousand waits for a group. The inode itself is marked (`leaving`) soon after, and no client waits
//! for that.
//!
//! ```text
//! lock for moving 5       range 0 to 1023 recorded in group 7; answered when 7 is durable
//! lock for moving 6       answered at once
//! 5 and 6 are marked      in group 8
//! crash: 8 is lost        at the next start the range is in doubt: 5, 6 and all its other resident files may have objects
//! after the recovery      all resident files of the range are marked; then the record is removed
//! ```
//!
//! The answer also waits if the file's layout was changed (`lfs setstripe`, `lfs migrate`) and that change is not durable: after
//! a crash, the objects would be looked for where the old layout says.
//!
//! Without a crash the record is removed when no file of the range has moved for a minute. Marks are then in the same group as
//! the removal, or in earlier ones.

use core::time::Duration;
use std::collections::BTreeMap;

use crate::{Mdt, tree};
use proto::Fid;
use proto::msg::bits;
use schema::{Inode, Moving, Oi, Record};
use store::KeyRange;
use target::{Cx, Stop, Task};

/// The most ranges that are recorded. The move of a file outside them waits for the mark of the file itself.
const RANGES_MAX: usize = 1 << 16;
/// How long a range stays recorded after its last move.
const IDLE: Duration = Duration::from_secs(60);
/// Ranges that are removed in one step.
const FORGET_STEP: usize = 4096;
/// Files that are checked in one step, when a range is resolved.
const STEP: usize = 256;

/// The recorded ranges, by their first FID.
#[derive(Default, Debug)]
pub struct Moves {
    ranges: BTreeMap<Fid, Range>,
    /// The last durable group.
    durable: u64,
    /// A check for idle ranges is scheduled.
    watching: bool,
}

#[derive(Default, Debug)]
struct Range {
    /// The group that has the record.
    group: u64,
    /// A file was moved since the last check.
    used: bool,
    /// The number of files that are about to be marked.
    marking: u32,
    /// A crash may have lost marks of its files.
    in_doubt: bool,
}

/// Marks a file whose data is about to move.
struct Mark {
    fid: Fid,
    /// Its range counts it ([`Range::marking`]).
    counted: bool,
}
/// Marks the resident files of a range, from this one on.
struct Resolve(Fid);
/// Removes idle ranges.
struct Forget;

impl Moves {
    /// The store is durable up to this group.
    pub fn durable(&mut self, group: u64) {
        self.durable = self.durable.max(group);
    }

    /// Whether a file may have objects: its data is there, it is marked, or a crash may have undone its mark.
    pub fn may_have_objects(&self, inode: &Inode) -> bool {
        let in_doubt = || self.ranges.get(&Moving::range_of(inode.fid)).is_some_and(|range| range.in_doubt);
        inode.is_file() && (!inode.is_resident() || inode.leaving || in_doubt())
    }
}

/// Reads the ranges of an earlier run from the store: all are in doubt.
pub fn start(mdt: &mut Mdt, cx: &mut Cx<'_>) -> Result<(), Stop> {
    let found = cx.scan::<Moving>(&Moving::all(), RANGES_MAX)?;
    let doubt = |(fid, _)| (fid, Range { in_doubt: true, ..Range::default() });
    mdt.moves.ranges = found.into_iter().map(doubt).collect();
    Ok(())
}

/// Recovery is over: clients have replayed their locks, so no further moves will be reported.
pub fn recovered(mdt: &Mdt, cx: &mut Cx<'_>) {
    for (range, _) in mdt.moves.ranges.iter().filter(|(_, range)| range.in_doubt) {
        cx.spawn(Task::new("moves", Resolve(*range)));
    }
}

/// A client was granted the lock for moving a file. The reply waits until that is durable. The last step of an attempt.
pub fn begin(mdt: &mut Mdt, cx: &mut Cx<'_>, mut node: tree::Node) {
    let marked = node.inode.leaving && !mdt.lacks_osts(&node.inode);
    renumber(mdt, cx, &mut node);
    let range = Moving::range_of(node.fid());
    if !mdt.moves.ranges.contains_key(&range) {
        if marked {
            return;
        }
        // The record does not make this request a change: the client replays nothing of it.
        cx.changes_nothing();
        if mdt.moves.ranges.len() >= RANGES_MAX {
            mark(mdt, cx, &mut node);
            cx.hold_until_durable();
            return;
        }
        cx.put(&range, &Moving {});
        mdt.moves.ranges.insert(range, Range { group: cx.group(), ..Range::default() });
    }
    if layout_may_be_lost(cx, &node.inode) {
        stdx::mark!("move_waits_for_its_layout");
        cx.hold_until_durable();
    }
    let durable = mdt.moves.durable;
    if let Some(range) = mdt.moves.ranges.get_mut(&range) {
        range.used = true;
        if range.group > durable {
            stdx::mark!("move_waits_for_its_record");
            cx.hold_until_durable();
        }
    }
    if !marked {
        mark_later(mdt, cx, node.fid());
    }
    watch(mdt, cx);
}

/// Gives the future objects of the file higher numbers if an object target was replaced since the file was made.
fn renumber(mdt: &Mdt, cx: &mut Cx<'_>, node: &mut tree::Node) {
    let first = mdt.osts.first_object;
    let Some(layout) = node.inode.layout.as_mut().filter(|layout| layout.first_object < first) else { return };
    // Objects of an earlier move, if any, are found only under the old numbers.
    if node.inode.leaving {
        return;
    }
    stdx::mark!("objects_numbered_anew");
    cx.changes_nothing();
    layout.first_object = first;
    layout.generation += 1;
    cx.put(&node.ino, &node.inode);
    cx.hold_until_durable();
}

/// Whether a crash could undo the last change of the file's layout. Objects that the current layout names would then leak.
fn layout_may_be_lost(cx: &Cx<'_>, inode: &Inode) -> bool {
    let was_changed = inode.layout.as_ref().is_some_and(|layout| layout.generation > 0);
    was_changed && tree::version_of(inode) > cx.last_committed().0
}

/// A client continues a move after recovery. A crash may have undone the mark of the file, so it is marked again.
pub fn resume(mdt: &mut Mdt, cx: &mut Cx<'_>, node: &tree::Node) {
    if node.inode.is_resident() && (!node.inode.leaving || mdt.lacks_osts(&node.inode)) {
        mark_later(mdt, cx, node.fid());
    }
}

fn mark_later(mdt: &mut Mdt, cx: &mut Cx<'_>, fid: Fid) {
    let range = mdt.moves.ranges.get_mut(&Moving::range_of(fid));
    let counted = range.map(|range| range.marking += 1).is_some();
    cx.spawn(Task::new("leaving", Mark { fid, counted }));
}

/// Marks a file whose data is about to move, and chooses object targets for one that has none. The version stays: this is not
/// replayed, so no client's change may depend on it.
fn mark(mdt: &Mdt, cx: &mut Cx<'_>, node: &mut tree::Node) {
    node.inode.leaving = true;
    if mdt.lacks_osts(&node.inode) {
        mdt.choose_osts(&mut node.inode);
    }
    cx.put(&node.ino, &node.inode);
}

fn watch(mdt: &mut Mdt, cx: &mut Cx<'_>) {
    if !mdt.moves.watching {
        mdt.moves.watching = true;
        cx.spawn_after(IDLE, Task::new("moves", Forget));
    }
}

/// Runs one attempt of a task, if it is a task of this module.
pub fn run(mdt: &mut Mdt, cx: &mut Cx<'_>, task: &Task) -> Option<Result<(), Stop>> {
    if let Some(mark) = task.get() {
        return Some(mark_now(mdt, cx, mark));
    }
    if let Some(Resolve(from)) = task.get() {
        return Some(resolve(mdt, cx, *from));
    }
    task.get::<Forget>().map(|Forget| {
        forget(mdt, cx);
        Ok(())
    })
}

fn mark_now(mdt: &mut Mdt, cx: &mut Cx<'_>, &Mark { fid, counted }: &Mark) -> Result<(), Stop> {
    if let Some(mut node) = tree::find(cx, fid)?.filter(|node| node.inode.is_resident()) {
        mark(mdt, cx, &mut node);
    }
    // A range that marks a file stays.
    if let Some(range) = mdt.moves.ranges.get_mut(&Moving::range_of(fid)).filter(|_| counted) {
        range.marking -= 1;
    }
    Ok(())
}

/// One step of resolving a range. If a record cannot be read, the range stays in doubt.
fn resolve(mdt: &mut Mdt, cx: &mut Cx<'_>, from: Fid) -> Result<(), Stop> {
    let range = Moving::range_of(from);
    let keys = KeyRange::new(Oi::key(&from), Oi::key(&Moving::last_of(range)).successor());
    let found = cx.scan::<Oi>(&keys, STEP)?;
    let (mut unmarked, mut waits) = (Vec::new(), false);
    for (_, oi) in &found {
        match unmarked_file(mdt, cx, oi.ino) {
            Ok(node) => unmarked.extend(node),
            Err(Stop::Wait) => waits = true,
            Err(stop) => return Err(stop),
        }
    }
    if waits {
        return Err(Stop::Wait);
    }
    for node in &mut unmarked {
        stdx::mark!("move_in_doubt");
        mark(mdt, cx, node);
    }
    match found.last() {
        Some((last, _)) if found.len() == STEP && *last < Moving::last_of(range) => {
            cx.spawn(Task::new("moves", Resolve(Fid::new(last.seq, last.oid + 1))));
        }
        _ => {
            if let Some(range) = mdt.moves.ranges.get_mut(&range) {
                range.in_doubt = false;
            }
            watch(mdt, cx);
        }
    }
    Ok(())
}

/// The file, if it is resident and not marked. Calls back locks on a layout that has no targets yet.
fn unmarked_file(mdt: &Mdt, cx: &mut Cx<'_>, ino: u64) -> Result<Option<tree::Node>, Stop> {
    let Some(inode) = cx.get::<Inode>(&ino)?.filter(|inode| inode.is_resident() && !inode.leaving) else {
        return Ok(None);
    };
    if mdt.lacks_osts(&inode) {
        tree::revoke(cx, &[(inode.fid, bits::UPDATE | bits::LAYOUT)])?;
    }
    Ok(Some(tree::Node { ino, inode }))
}

fn forget(mdt: &mut Mdt, cx: &mut Cx<'_>) {
    let mut gone = 0;
    mdt.moves.ranges.retain(|fid, range| {
        let used = core::mem::take(&mut range.used);
        let stays = used || range.marking > 0 || range.in_doubt || gone == FORGET_STEP;
        if !stays {
            gone += 1;
            cx.delete::<Moving>(fid);
        }
        stays
    });
    mdt.moves.watching = false;
    if !mdt.moves.ranges.is_empty() {
        watch(mdt, cx);
    }
}
