//! Losses with a client that died, in a history of several processes.
//!
//! A change that was acknowledged to a program is lost if both the client and the server die before it is durable, or if the
//! client had not sent it yet. Which changes are lost is unknown: the search tries. For each dead client there is one moment, not
//! before its death or the server's crash, at which some of its changes without a covering sync are undone: if one of two changes
//! of one metadata target ended before the other started, the later one is lost first. The results of all other clients must stand without the lost
//! changes, because they were acknowledged only after everything that they depend on was durable.
//!
//! Bytes are different. The buffered bytes of a dead client may have reached their target in part, so after its death neither
//! bytes nor size are compared of files that it changed and did not sync.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use proto::Errno;
use proto::msg::Cred;
use stdx::Instant;

use super::{CallPhase, Event, State};
use crate::model::{Expected, Id, Model, Op, Returned};

/// What the search allows for besides the order of calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Excuses {
    /// Clients that died with changes at risk.
    pub deaths: Vec<Death>,
    /// Inodes of which clients gave up bytes that could not be written, and when.
    pub given_up: Vec<(u64, Instant)>,
    /// By serial of a call that reads attributes: the concurrent changes of the sizes of files.
    pub concurrent_resizes: BTreeMap<u32, Vec<Op>>,
}

/// The calls of processes that read attributes, and the concurrent truncations and allocations by others.
pub(super) fn concurrent_resizes(processes: &[Vec<Event>]) -> BTreeMap<u32, Vec<Op>> {
    let resizes = |op: &Op| match op {
        Op::Truncate { .. } | Op::Ftruncate { .. } | Op::Fallocate { .. } => true,
        Op::Open { flags, .. } => flags & 0o1000 != 0,
        _ => false,
    };
    let mut found: BTreeMap<u32, Vec<Op>> = BTreeMap::new();
    for (process, looks) in processes.iter().enumerate() {
        for look in looks.iter().filter(|event| matches!(event.op, Op::Stat { .. } | Op::Fstat { .. })) {
            let others =
                processes.iter().enumerate().filter(|(other, _)| *other != process).flat_map(|(_, events)| events);
            let beside =
                others.filter(|event| resizes(&event.op) && event.from <= look.to() && look.from <= event.to());
            let ops: Vec<Op> = beside.map(|event| event.op.clone()).collect();
            if !ops.is_empty() {
                found.insert(look.serial, ops);
            }
        }
    }
    found
}

/// A result of reading attributes beside a concurrent truncation or allocation, with the time replaced by the model's. It changes
/// the times first, at the metadata target or in the client, and the size at object targets: a concurrent reader may see one before
/// the other, as with Linux's own `stat`, which takes no lock.
pub(super) fn without_time(
    model: &Model,
    resizes: &[Op],
    expect: &Result<Expected, Errno>,
    mut result: Result<Returned, Errno>,
) -> Result<Returned, Errno> {
    if let (Ok(Expected::Inode(id)), Ok(Returned::Stat(stat))) = (expect, &mut result) {
        let root = Cred::default();
        let is_of = |op: &Op| match op {
            Op::Ftruncate { fd, .. } | Op::Fallocate { fd, .. } => {
                model.open_files().get(fd).is_some_and(|file| file.id == *id)
            }
            Op::Truncate { path, .. } | Op::Open { path, .. } => model.walk(&root, path) == Ok(*id),
            _ => false,
        };
        if resizes.iter().any(is_of) {
            stat.mtime_ns = model.inode(*id).mtime.from;
        }
    }
    result
}

/// The death of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Death {
    /// The client.
    pub client: usize,
    /// The earliest moment of its losses.
    pub from: Instant,
}

/// The most ways to lose changes that are tried.
const WAYS_MAX: usize = 4_000;

/// A change in the order so far.
pub(super) struct Effect {
    process: usize,
    call: usize,
    /// The phase of the call before the change.
    phase: CallPhase,
    /// The file whose bytes it changed.
    file: Option<Id>,
    /// Whether it made its object.
    made: bool,
    before: Option<Rc<Effect>>,
}

impl State {
    /// Records the change that a call in `phase` may have made with its step; does nothing if no client died.
    pub(super) fn note_effect(&mut self, before: &State, process: usize, event: &Event) {
        if self.settled.is_empty() || !event.changed() {
            return;
        }
        let (call, phase) = before.at[process];
        let there = |model: &Model| model.get(Id(event.serial)).is_some();
        let made = there(&self.model) && !there(&before.model);
        let file = match (&event.op, phase) {
            (Op::Write { fd, .. } | Op::Ftruncate { fd, .. } | Op::Fallocate { fd, .. }, _) => {
                before.model.open_files().get(fd).map(|file| file.id)
            }
            (Op::Truncate { .. }, CallPhase::Found(id)) => Some(id),
            (Op::Open { flags, .. }, CallPhase::Found(id)) if flags & 0o1000 != 0 => Some(id),
            _ => None,
        };
        if file.is_some() || before.model.fingerprint() != self.model.fingerprint() {
            let before = self.effects.take();
            self.effects = Some(Rc::new(Effect { process, call, phase, file, made, before }));
        }
    }

    /// Whether bytes and size of a file are uncertain for a call.
    pub(super) fn is_torn(&self, id: Id, event: &Event, excuses: &Excuses) -> bool {
        let ino = self.model.ino_of(id);
        self.torn.contains(&id) || excuses.given_up.iter().any(|(of, at)| Some(*of) == ino && event.to() >= *at)
    }

    /// The states that the death at this position can leave, the one with the fewest losses first, and whether these are all.
    pub(super) fn after_death(
        &self,
        position: usize,
        start: &Model,
        processes: &[Vec<Event>],
        excuses: &Excuses,
    ) -> (Vec<State>, bool) {
        let client = excuses.deaths[position].client;
        let mut effects: Vec<Rc<Effect>> = Vec::new();
        let mut at = self.effects.clone();
        while let Some(effect) = at {
            at = effect.before.clone();
            effects.push(effect);
        }
        effects.reverse();
        let event = |effect: &Effect| &processes[effect.process][effect.call];
        let mut torn = self.torn.clone();
        let mut risky = Vec::new();
        for (at, effect) in effects.iter().enumerate().filter(|(_, effect)| event(effect).at_risk_with(client)) {
            torn.extend(effect.file);
            let names = effect.file.is_none() && (effect.made || event(effect).op.fd().is_none());
            if names && !matches!(event(effect).op, Op::Open { .. } if !effect.made) {
                risky.push(at);
            }
        }
        // The order of a client's changes is certain on each metadata target.
        let on_one = |one: &Event, other: &Event| one.placed && other.placed && one.mdts.meets(other.mdts);
        let precedes = |one: &Event, other: &Event| one.to() < other.from && on_one(one, other);
        let (ways, all) = ways_to_lose(&risky, &|one, other| precedes(event(&effects[one]), event(&effects[other])));
        let mut found = Vec::new();
        for way in ways {
            let mut next = State { torn: torn.clone(), ..self.clone() };
            next.settled[position] = true;
            if !way.is_empty() {
                let kept = effects.iter().enumerate().filter(|(at, _)| !way.contains(at)).map(|(_, effect)| effect);
                let Some((mut model, effects)) = replayed(start, kept, processes) else { continue };
                model.knows_numbers_of(&self.model);
                (next.model, next.effects) = (model, effects);
            }
            found.push(next);
        }
        (found, all)
    }
}

impl Event {
    fn at_risk_with(&self, client: usize) -> bool {
        self.at_risk && self.client == client
    }
}

/// The state after these changes; `None` if an acknowledged one is impossible.
fn replayed<'e>(
    start: &Model,
    kept: impl Iterator<Item = &'e Rc<Effect>>,
    processes: &[Vec<Event>],
) -> Option<(Model, Option<Rc<Effect>>)> {
    let mut model = start.clone().into_shared();
    let mut effects = None;
    for effect in kept {
        let event = &processes[effect.process][effect.call];
        model.name_next(event.serial);
        let done = super::done(&mut model, event, effect.phase);
        // A change through a lost open file has no effect. And an open file makes its object no more durable.
        let opens = matches!(event.op, Op::Open { .. }) && !effect.made;
        let stands =
            event.end.is_some() && event.op.fd().is_none() && !opens && !(event.at_risk && effect.file.is_some());
        if !done && stands {
            return None;
        }
        let Effect { process, call, phase, file, made, .. } = **effect;
        effects = Some(Rc::new(Effect { process, call, phase, file, made, before: effects }));
    }
    Some((model, effects))
}

/// The sets of changes that can be lost together, the smallest first: a lost change takes with it all changes that started after
/// its end. Also returns whether these are all.
fn ways_to_lose(risky: &[usize], precedes: &dyn Fn(usize, usize) -> bool) -> (Vec<BTreeSet<usize>>, bool) {
    let mut ways = vec![BTreeSet::new()];
    let mut seen: BTreeSet<BTreeSet<usize>> = ways.iter().cloned().collect();
    let mut at = 0;
    while let Some(way) = ways.get(at).cloned() {
        for &one in risky.iter().filter(|one| !way.contains(one)) {
            let last = risky.iter().all(|&other| !precedes(one, other) || way.contains(&other));
            let mut more = way.clone();
            more.insert(one);
            if last && seen.insert(more.clone()) {
                if ways.len() >= WAYS_MAX {
                    return (ways, false);
                }
                ways.push(more);
            }
        }
        at += 1;
    }
    (ways, true)
}

/// A result without its uncertain parts, see [`State::is_torn`].
pub(super) fn without_uncertain(
    model: &Model,
    expect: &Result<Expected, Errno>,
    result: &Result<Returned, Errno>,
    torn: &dyn Fn(Id) -> bool,
) -> Result<Returned, Errno> {
    let mut result = result.clone();
    match (expect, &mut result) {
        (Ok(Expected::Inode(id)), Ok(Returned::Stat(stat))) if model.inode(*id).is_file() && torn(*id) => {
            stat.size = model.inode(*id).data().len() as u64;
            stat.mtime_ns = model.inode(*id).mtime.from;
        }
        (Ok(Expected::Entries(want)), Ok(Returned::Entries(entries))) => {
            for entry in entries {
                if want.iter().any(|(name, id)| *name == entry.name && torn(*id)) {
                    entry.stat = None;
                }
            }
        }
        _ => {}
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::{Verdict, search};
    use crate::model::{Path, S_IFREG, TimeRange};
    use crate::program::name;

    fn path(text: &str) -> Path {
        text.split('/').map(name).collect()
    }

    fn event(serial: u32, client: usize, from: u64, op: Op, outcome: Result<Returned, Errno>) -> Event {
        let (from, end) = (Instant(from), Some((Instant(from + 1), outcome)));
        Event { serial, client, from, end, ..Event::of(op) }
    }

    fn made(serial: u32, client: usize, from: u64, at: &str) -> Event {
        let stat = client::api::Stat { ino: serial.into(), mode: S_IFREG | 0o644, nlink: 1, ..Default::default() };
        event(
            serial,
            client,
            from,
            Op::Mknod { path: path(at), mode: S_IFREG | 0o644, rdev: 0 },
            Ok(Returned::Stat(stat)),
        )
    }

    fn unlink(serial: u32, from: u64, at: &str, outcome: Result<Returned, Errno>) -> Event {
        event(serial, 1, from, Op::Unlink { path: path(at) }, outcome)
    }

    fn verdict(processes: &[Vec<Event>]) -> Verdict {
        let excuses = Excuses { deaths: vec![Death { client: 0, from: Instant(20) }], ..Excuses::default() };
        search(&Model::new(0, 0, 0o755, TimeRange::at(0)), processes, &excuses, 10_000)
    }

    const GONE: Result<Returned, Errno> = Err(Errno::ENOENT);

    /// Client 0 makes a and then b, and dies at 20.
    #[test]
    fn the_last_changes_of_a_dead_client_may_be_lost_and_no_others() {
        let (a, b) = (made(100, 0, 1, "a"), made(101, 0, 3, "b"));
        let risk = |event: &Event| Event { at_risk: true, ..event.clone() };
        let look = |of: &str, from, there| match there {
            true => unlink(from as u32 + 200, from, of, Ok(Returned::Done)),
            false => unlink(from as u32 + 200, from, of, GONE),
        };
        let all = |first: &Event, second: &Event, looks| verdict(&[vec![first.clone(), second.clone()], looks]);
        let looks = |a, b| vec![look("a", 30, a), look("b", 40, b)];
        assert_eq!(all(&risk(&a), &risk(&b), looks(true, true)), Verdict::Good);
        assert_eq!(all(&risk(&a), &risk(&b), looks(true, false)), Verdict::Good);
        assert_eq!(all(&risk(&a), &risk(&b), looks(false, false)), Verdict::Good);
        let bad = |found: Verdict, why: &str| assert!(matches!(found, Verdict::Bad(_)), "{why}");
        bad(all(&risk(&a), &risk(&b), looks(false, true)), "a was made before b");
        bad(all(&a, &b, looks(true, false)), "a sync covers it");
        bad(all(&a, &risk(&b), looks(false, false)), "a sync covers a");
        bad(all(&risk(&a), &risk(&b), vec![look("b", 10, false)]), "the client lived, and so did its server");
        let twice = vec![look("a", 30, false), made(300, 1, 35, "a"), look("b", 40, false), look("a", 50, false)];
        bad(all(&risk(&a), &risk(&b), twice), "what a living client was answered stays");
    }

    /// Another client's link to the object was acknowledged: so the object was durable by then.
    #[test]
    fn changes_that_others_depend_on_persist() {
        let a = Event { at_risk: true, ..made(100, 0, 1, "a") };
        let link = event(101, 1, 10, Op::Link { from: path("a"), to: path("b") }, Ok(Returned::Done));
        let gone = |at| unlink(102, 30, at, GONE);
        let there = |at| unlink(102, 30, at, Ok(Returned::Done));
        let with = |last| verdict(&[vec![a.clone()], vec![link.clone(), last]]);
        assert_eq!(with(there("a")), Verdict::Good);
        assert!(matches!(with(gone("a")), Verdict::Bad(_)));
        assert!(matches!(with(gone("b")), Verdict::Bad(_)));
    }

    /// Only a concurrent reader sees the time of a truncation, or an allocation, before its size.
    #[test]
    fn a_stat_beside_a_change_of_the_size_may_see_its_time_first() {
        let stat = |size, mtime_ns| client::api::Stat {
            ino: 100,
            mode: S_IFREG | 0o644,
            nlink: 1,
            size,
            mtime_ns,
            ..client::api::Stat::default()
        };
        let set = Op::Utimens { path: path("a"), atime: None, mtime: Some(client::api::SetTime::At(5)) };
        let open = Op::Open { path: path("a"), flags: 2, mode: 0, fd: 7 };
        let open = event(104, 0, 6, open, Ok(Returned::Opened(100)));
        let resize = |op, from: u64, to: u64| Event {
            end: Some((Instant(to), Ok(Returned::Done))),
            ..event(102, 0, from, op, Ok(Returned::Done))
        };
        let cut = |from, to| resize(Op::Truncate { path: path("a"), size: 3 }, from, to);
        let allocate = |from, to| resize(Op::Fallocate { fd: 7, mode: 0, offset: 1, length: 2 }, from, to);
        let look =
            |of, size, mtime| event(103, 1, 11, Op::Stat { path: path(of) }, Ok(Returned::Stat(stat(size, mtime))));
        let all = |resize: Event, look: Event| {
            let set = event(101, 0, 4, set.clone(), Ok(Returned::Done));
            let first = vec![made(100, 0, 1, "a"), set, open.clone(), resize];
            let excuses = Excuses::default();
            search(&Model::new(0, 0, 0o755, TimeRange::at(0)), &[first, vec![look]], &excuses, 10_000)
        };
        let bad = |found: Verdict| assert!(matches!(found, Verdict::Bad(_)), "{found:?}");
        assert_eq!(all(cut(10, 20), look("a", 0, 5)), Verdict::Good);
        assert_eq!(all(cut(10, 20), look("a", 0, 15)), Verdict::Good, "the time before the size");
        assert_eq!(all(cut(10, 20), look("a", 3, 15)), Verdict::Good);
        bad(all(cut(30, 40), look("a", 0, 15)));
        bad(all(cut(10, 20), look("a", 2, 15)));
        assert_eq!(all(allocate(10, 20), look("a", 0, 15)), Verdict::Good, "the time before the size");
        bad(all(allocate(30, 40), look("a", 0, 15)));
        bad(all(allocate(10, 20), look("a", 2, 15)));
    }
}
