//! Names on their way to another stripe, after the layout of their directory has changed ([`cross::relayout`]).
//!
//! Each stripe of the former layout is walked by a task of its target: what belongs elsewhere is moved there, a few dozen names at a
//! time, each in a change with parts on both targets. Only the entry moves. As a stripe gets no name that does not belong to it, it
//! is settled after a whole walk that has met none. The target of the master looks from time to time whether all are, and then ends
//! the change. All of this is recorded ([`Relayout`]), so it goes on after a restart of any of the targets.
//!
//! A name that somebody wants to change before its turn is moved at once, and who wants it asks again. Who only reads it is told
//! where it leads to. As long as names move, nobody gets a lock on the names of these stripes.

use bytes::Bytes;
use core::time::Duration;
use proto::msg::{CrossLookReq, CrossOperation, DirName, NameAct, NamedObject};
use proto::{Errno, Fid};
use rules::stripes::{former_of_name, of_name};
use schema::{Entry, Oi, Record, Relayout};
use std::collections::{BTreeMap, VecDeque};
use target::{Cx, LogLevel, Stop, Task};

use crate::Mdt;
use crate::cross::{self, Parts, relayout};
use crate::known::Pending;
use crate::tasks;
use crate::tree::{self, Node};

/// Entries that a walk reads at a time.
const STEP: usize = 256;
/// After this time the target of the master looks again whether all stripes are settled.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A walk in which a name could not be moved is repeated after this time.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Goes on with what was under way before a restart.
pub struct Resume;
/// Walks the names of a stripe.
struct Walk(Fid);
/// Moves a name that a stripe has.
struct Move {
    from: Fid,
    name: Bytes,
    /// Somebody waits for it.
    urgent: bool,
}
/// Records that no name has to leave a stripe.
struct Settle(Fid);
/// Ends the change of the layout of a directory, if it can be ended.
struct End(Fid);

/// What is under way on this target.
#[derive(Default, Debug)]
pub struct Relayouts {
    /// The stripes that names have to leave.
    leaving: BTreeMap<Fid, Leaving>,
}

/// A stripe that names have to leave.
#[derive(Default, Debug)]
struct Leaving {
    /// The walk has read all entries up to this cookie.
    after: u64,
    /// It has read all.
    is_read: bool,
    /// A task of the walk is under way.
    is_busy: bool,
    /// It has met names that do not belong here.
    has_met: bool,
    /// One of them could not be moved.
    has_failed: bool,
    /// Names that it has met and that are not on their way yet.
    waiting: VecDeque<Bytes>,
    /// Number of names on their way.
    moving: usize,
}

/// The next thing to do for a stripe.
enum Next {
    Move(Bytes),
    Walk,
    WalkAgain { later: bool },
    Settle,
}

impl Leaving {
    fn next(&mut self, at_once: usize) -> Option<Next> {
        if self.moving < at_once
            && let Some(name) = self.waiting.pop_front()
        {
            self.moving += 1;
            return Some(Next::Move(name));
        }
        if self.is_busy || !self.waiting.is_empty() {
            return None;
        }
        let next = match () {
            () if !self.is_read => Next::Walk,
            () if self.moving > 0 => return None,
            () if !self.has_met => Next::Settle,
            () => {
                let later = self.has_failed;
                *self = Leaving::default();
                Next::WalkAgain { later }
            }
        };
        self.is_busy = true;
        Some(next)
    }
}

/// At start, before anybody is served: nobody gets locks on stripes whose names move.
pub fn start(mdt: &mut Mdt, cx: &mut Cx<'_>) -> Result<(), Stop> {
    for (fid, record) in all(cx)? {
        cx.withhold_names(fid, true);
        if !record.settled {
            mdt.relayouts.leaving.insert(fid, Leaving::default());
        }
    }
    Ok(())
}

/// Recovery is over: what was under way goes on.
fn resume(mdt: &mut Mdt, cx: &mut Cx<'_>) -> Result<(), Stop> {
    let all = all(cx)?;
    let leaving: Vec<Fid> = mdt.relayouts.leaving.keys().copied().collect();
    for fid in leaving {
        mdt.go_on(cx, fid);
    }
    for (fid, record) in all {
        if record.stripes.first().is_some_and(|master| master.fid == fid) {
            cx.spawn(Task::new("layout of a directory", End(fid)));
        }
    }
    Ok(())
}

/// All changes of layouts that are under way. There are few.
fn all(cx: &mut Cx<'_>) -> Result<Vec<(Fid, Relayout)>, Stop> {
    let (mut all, mut range) = (Vec::new(), Relayout::all());
    loop {
        let found = cx.scan::<Relayout>(&range, STEP)?;
        let more = found.len() == STEP;
        all.extend(found);
        match all.last() {
            Some((last, _)) if more => range = tasks::after::<Relayout>(Some(*last)),
            _ => return Ok(all),
        }
    }
}

/// Runs one attempt of a task, if it is one of these.
pub fn run(mdt: &mut Mdt, cx: &mut Cx<'_>, task: &Task) -> Option<Result<(), Stop>> {
    Some(match () {
        () if let Some(Walk(fid)) = task.get() => walk(mdt, cx, *fid),
        () if let Some(of) = task.get() => move_name(mdt, cx, of),
        () if let Some(Settle(fid)) = task.get() => settle(mdt, cx, *fid),
        () if let Some(End(fid)) = task.get() => end(cx, *fid),
        () if task.get::<Resume>().is_some() => resume(mdt, cx),
        () => return None,
    })
}

/// One of these tasks has failed. Returns whether it was one.
pub fn failed(mdt: &mut Mdt, cx: &mut Cx<'_>, task: &Task, errno: Errno) -> bool {
    match () {
        () if let Some(End(fid)) = task.get() => {
            stdx::mark!("mdt.layout_ends_later");
            cx.spawn_after(AGAIN_AFTER, Task::new("layout of a directory", End(*fid)));
        }
        () if let Some(Move { from, .. }) = task.get() => {
            if let Some(leaving) = mdt.relayouts.leaving.get_mut(from) {
                if !leaving.has_failed {
                    let line = format!(
                        "names of directory {from} cannot move to their new stripes now ({errno}); tried again in {} s",
                        AGAIN_AFTER.as_secs()
                    );
                    cx.log(LogLevel::Warn, line);
                }
                (leaving.has_failed, leaving.has_met, leaving.is_read) = (true, true, true);
                leaving.waiting.clear();
            }
            mdt.name_left(cx, *from);
        }
        () if let Some(Walk(fid)) = task.get() => mdt.walk_again(cx, *fid),
        () if let Some(Settle(fid)) = task.get() => mdt.walk_again(cx, *fid),
        () => return false,
    }
    true
}

/// A stripe that names have to leave, if that is so.
fn leaving(cx: &mut Cx<'_>, fid: Fid) -> Result<Option<(Node, Relayout)>, Stop> {
    let Some(node) = tree::find(cx, fid)? else { return Ok(None) };
    if node.inode.moving().is_none() {
        return Ok(None);
    }
    Ok(cx.get::<Relayout>(&fid)?.map(|record| (node, record)))
}

fn walk(mdt: &mut Mdt, cx: &mut Cx<'_>, fid: Fid) -> Result<(), Stop> {
    let Some(after) = mdt.relayouts.leaving.get(&fid).map(|leaving| leaving.after) else { return Ok(()) };
    let Some((node, _)) = leaving(cx, fid)? else {
        mdt.relayouts.leaving.remove(&fid);
        return Ok(());
    };
    let Some(lmv) = &node.inode.lmv else { return Ok(()) };
    let found = cx.scan::<Entry>(&Entry::of_dir_after(node.ino, after), STEP)?;
    let Some(leaving) = mdt.relayouts.leaving.get_mut(&fid) else { return Ok(()) };
    (leaving.is_busy, leaving.is_read) = (false, found.len() < STEP);
    leaving.after = found.last().map_or(after, |(key, _)| key.cookie);
    let names = found.into_iter().filter(|(_, entry)| !entry.is_tombstone()).map(|(_, entry)| entry.name);
    leaving.waiting.extend(names.filter(|name| of_name(lmv, name) != lmv.index));
    leaving.has_met |= !leaving.waiting.is_empty();
    mdt.go_on(cx, fid);
    Ok(())
}

fn move_name(mdt: &mut Mdt, cx: &mut Cx<'_>, of: &Move) -> Result<(), Stop> {
    match moved(mdt, cx, of)? {
        Some(parts) => parts.make(cx),
        None => {
            mdt.name_left(cx, of.from);
            Ok(())
        }
    }
}

/// The parts of a move; `None`: the name is gone, or belongs here.
fn moved(mdt: &Mdt, cx: &mut Cx<'_>, of: &Move) -> Result<Option<Parts>, Stop> {
    let Move { from, name, urgent } = of;
    let Some((node, record)) = leaving(cx, *from)? else { return Ok(None) };
    let Some(lmv) = &node.inode.lmv else { return Ok(None) };
    let to = of_name(lmv, name);
    let place = mdt.place_here(cx, &Pending::default(), &node, name)?;
    let Some(entry) = place.entry.filter(|_| to != lmv.index) else { return Ok(None) };
    let to = record.stripes.get(to as usize).ok_or(Errno::EIO)?;
    let object: NamedObject = cross::named(cx, &entry);
    let act = |parent| NameAct {
        name: DirName { parent, name: name.clone() },
        moves: true,
        urgent: *urgent,
        ..NameAct::default()
    };
    let mut parts = Parts::of_target(cx, CrossOperation::Relayout);
    parts.add(to.mdt, NameAct { after: Some(object), ..act(to.fid) });
    parts.add(cx.name().index.0, NameAct { before: Some(object), ..act(*from) });
    Ok(Some(parts))
}

fn settle(mdt: &mut Mdt, cx: &mut Cx<'_>, fid: Fid) -> Result<(), Stop> {
    if let Some((_, record)) = leaving(cx, fid)? {
        cx.put::<Relayout>(&fid, &Relayout { settled: true, ..record });
        let _ = cx.transno();
    }
    mdt.relayouts.leaving.remove(&fid);
    Ok(())
}

fn end(cx: &mut Cx<'_>, fid: Fid) -> Result<(), Stop> {
    let Some((node, _)) = leaving(cx, fid)? else { return Ok(()) };
    match relayout::end(cx, &node)? {
        Some(parts) => parts.make(cx),
        None => {
            cx.spawn_after(LOOK_EVERY, Task::new("layout of a directory", End(fid)));
            Ok(())
        }
    }
}

impl Mdt {
    /// The entry of a name in the stripe that had it before the layout of its directory changed, if it is still there. `leaves`:
    /// it moves to this stripe then.
    pub(crate) fn former(&self, cx: &mut Cx<'_>, dir: &Node, name: &[u8], leaves: bool) -> Result<Option<Entry>, Stop> {
        let Some(lmv) = dir.inode.moving() else { return Ok(None) };
        let from = former_of_name(lmv, name);
        // What is replayed was answered: its name was here.
        if from == lmv.index || cx.is_replay() {
            return Ok(None);
        }
        let record = cx.get::<Relayout>(&dir.fid())?.ok_or(Errno::EIO)?;
        let from = record.stripes.get(from as usize).ok_or(Errno::EIO)?;
        if from.mdt == cx.name().index.0 {
            let from = tree::node(cx, from.fid)?;
            return self.former_here(cx, &from, name, leaves);
        }
        let former = Some(DirName { parent: from.fid, name: Bytes::copy_from_slice(name) });
        let named = cx.look(from.mdt, &CrossLookReq { former, leaves, ..CrossLookReq::default() })?.named;
        let Some(NamedObject { fid, mode, mdt }) = named else { return Ok(None) };
        let mdt = Some(mdt).filter(|mdt| *mdt != cx.name().index.0);
        let ino = match mdt {
            Some(_) => 0,
            None => cx.get::<Oi>(&fid)?.ok_or(Errno::EIO)?.ino,
        };
        Ok(Some(Entry { name: Bytes::copy_from_slice(name), fid: Some(fid), kind: mode >> 12, ino, mdt }))
    }

    /// The same if that stripe is here.
    pub(crate) fn former_here(
        &self,
        cx: &mut Cx<'_>,
        from: &Node,
        name: &[u8],
        leaves: bool,
    ) -> Result<Option<Entry>, Stop> {
        let entry = self.place_here(cx, &Pending::default(), from, name)?.entry;
        if leaves && entry.is_some() {
            let of = Move { from: from.fid(), name: Bytes::copy_from_slice(name), urgent: true };
            cx.spawn_at_once(Task::new("name of a directory", of));
        }
        Ok(entry)
    }

    /// Memory: the layout of a stripe has changed, or the stripe is gone.
    pub(crate) fn layout_changed(&mut self, cx: &mut Cx<'_>, fid: Fid, record: Option<&Relayout>) {
        cx.withhold_names(fid, record.is_some());
        let Some(record) = record else {
            self.relayouts.leaving.remove(&fid);
            return;
        };
        if !record.settled {
            stdx::mark!("mdt.names_move");
            self.relayouts.leaving.insert(fid, Leaving::default());
            self.go_on(cx, fid);
        }
        if record.stripes.first().is_some_and(|master| master.fid == fid) {
            cx.spawn_after(LOOK_EVERY, Task::new("layout of a directory", End(fid)));
        }
    }

    /// Memory: a name has left a stripe.
    pub(crate) fn name_left(&mut self, cx: &mut Cx<'_>, fid: Fid) {
        if let Some(leaving) = self.relayouts.leaving.get_mut(&fid) {
            // Names that somebody waits for, and those of an earlier run, were not counted.
            leaving.moving = leaving.moving.saturating_sub(1);
        }
        self.go_on(cx, fid);
    }

    /// A walk is repeated after a while.
    fn walk_again(&mut self, cx: &mut Cx<'_>, fid: Fid) {
        if let Some(leaving) = self.relayouts.leaving.get_mut(&fid) {
            *leaving = Leaving { is_read: true, has_met: true, has_failed: true, ..Leaving::default() };
        }
        self.go_on(cx, fid);
    }

    fn go_on(&mut self, cx: &mut Cx<'_>, fid: Fid) {
        let (at_once, wait) = self.settings.names_moving;
        let Some(leaving) = self.relayouts.leaving.get_mut(&fid) else { return };
        while let Some(next) = leaving.next(at_once) {
            match next {
                Next::Move(name) => {
                    let of = Move { from: fid, name, urgent: false };
                    cx.spawn_after(wait, Task::new("name of a directory", of));
                }
                Next::Walk | Next::WalkAgain { later: false } => cx.spawn(Task::new("names of a directory", Walk(fid))),
                Next::WalkAgain { later: true } => {
                    cx.spawn_after(AGAIN_AFTER, Task::new("names of a directory", Walk(fid)));
                }
                Next::Settle => cx.spawn(Task::new("names of a directory", Settle(fid))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is next for a stripe, in one letter; a space: nothing now.
    fn next(leaving: &mut Leaving) -> char {
        match leaving.next(2) {
            Some(Next::Move(_)) => 'm',
            Some(Next::Walk) => 'w',
            Some(Next::WalkAgain { later: false }) => 'a',
            Some(Next::WalkAgain { later: true }) => 'l',
            Some(Next::Settle) => 's',
            None => ' ',
        }
    }

    #[test]
    fn a_stripe_is_settled_after_a_walk_that_met_no_name() {
        let mut of = Leaving::default();
        assert_eq!((next(&mut of), next(&mut of)), ('w', ' '));
        // The walk has met three names; two move at a time.
        (of.is_busy, of.is_read, of.has_met) = (false, true, true);
        of.waiting.extend([Bytes::from_static(b"a"), Bytes::from_static(b"b"), Bytes::from_static(b"c")]);
        assert_eq!((next(&mut of), next(&mut of), next(&mut of)), ('m', 'm', ' '));
        of.moving -= 1;
        assert_eq!((next(&mut of), next(&mut of)), ('m', ' '));
        of.moving = 0;
        assert_eq!((next(&mut of), next(&mut of)), ('a', ' '));
        // A name could not be moved.
        (of.is_busy, of.is_read, of.has_met, of.has_failed) = (false, true, true, true);
        assert_eq!((next(&mut of), next(&mut of)), ('l', ' '));
        (of.is_busy, of.is_read) = (false, true);
        assert_eq!((next(&mut of), next(&mut of)), ('s', ' '));
    }
}
