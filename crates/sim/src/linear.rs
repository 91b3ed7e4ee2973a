//! Whether what several processes saw can have come from one after another: a search for an order of all their calls.
//!
//! A history is good if there is an order of its steps in which the reference model gives every call the result that it
//! had, and in which a call that ended before another began comes first. Calls that go by a path are two steps (see
//! [`Model::into_shared`]): between them other calls may come, as on a local file system. So are calls that make something:
//! `mkdir(2)` tells nothing of attributes, and those that the kernel gets with its answer are of a later moment if the answer was
//! lost and is given once more. A call without a result (its
//! client died) may have happened at any moment after it began, wholly, in part, or not at all.
//!
//! The search goes depth first, tries first what had to end first, and does not look twice at a pair of positions and
//! state. Processes are few and wait for their answers, so that most of the order is fixed by time and the search
//! is short; one that is too long gives no verdict and is counted.

use core::hash::{BuildHasher, Hash, Hasher};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use proto::Errno;
use proto::msg::Cred;
use stdx::{Instant, KeyedHash};

use crate::model::{Expect, Got, Id, Model, Op, Path, When, differs};

/// What a call gave.
pub type Outcome = Result<Got, Errno>;

/// A call of a shared history.
#[derive(Clone, Debug)]
pub struct Event {
    /// What.
    pub op: Op,
    /// Unique; also the number of what it makes.
    pub serial: u32,
    /// Through which client.
    pub client: usize,
    /// When it began.
    pub from: Instant,
    /// When it ended, and with what; `None`: it never did.
    pub end: Option<(Instant, Outcome)>,
    /// What it saw may have been undone by a crash, and done once more later: a server shows changes before they are
    /// durable, and who made this one had no answer yet.
    pub doubtful: bool,
    /// A change that a crash may have undone after others saw it, before it was done once more.
    pub undone: bool,
}

impl Event {
    fn to(&self) -> Instant {
        self.end.as_ref().map_or(Instant(u64::MAX), |(to, _)| *to)
    }

    /// The call and its result in one line.
    pub fn show(&self) -> String {
        let result = match &self.end {
            None => "no answer".to_owned(),
            Some((_, Ok(Got::Data(data)))) => format!("{} bytes", data.len()),
            Some((_, Ok(Got::Stat(stat)))) => {
                format!("inode {:x} mode {:o} nlink {} size {}", stat.ino, stat.mode, stat.nlink, stat.size)
            }
            Some((_, Ok(Got::Entries(entries)))) => {
                let entries: Vec<String> =
                    entries.iter().map(|e| format!("{} {:x}", e.name.escape_ascii(), e.ino)).collect();
                format!("[{}]", entries.join(", "))
            }
            Some((_, Ok(Got::Opened(ino)))) => format!("inode {ino:x}"),
            Some((_, Ok(got))) => format!("{got:?}"),
            Some((_, Err(errno))) => errno.name().to_owned(),
        };
        let to = self.end.as_ref().map_or("-".to_owned(), |(to, _)| format!("{to:?}"));
        format!("{:?} to {to}, client {}: {} -> {result}", self.from, self.client, self.op.show())
    }
}

/// What the search found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// An order.
    Good,
    /// There is none: the calls at which every order ends, for a person.
    Bad(String),
    /// The search was too long.
    Unknown,
}

/// How far a call has come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Start,
    /// Its path led to this object, or it made it.
    Found(Id),
}

/// What a step of a call can be in a state.
enum Step {
    /// It had this result.
    Ended,
    /// It goes on.
    Goes(Phase),
    /// It cannot be here.
    Not(String),
}

#[derive(Clone)]
struct State {
    at: Vec<(usize, Phase)>,
    model: Model,
    /// What changed the bytes of each file, in one word.
    content: BTreeMap<Id, u64>,
    trail: Option<Rc<Trail>>,
}

/// The calls that were ordered, the last one first.
struct Trail {
    process: usize,
    call: usize,
    before: Option<Rc<Trail>>,
}

impl State {
    fn key(&self) -> u64 {
        let mut hasher = KeyedHash::default().build_hasher();
        self.at.hash(&mut hasher);
        self.content.hash(&mut hasher);
        hasher.write_u64(self.model.fingerprint());
        hasher.finish()
    }

    /// The bytes of a file changed.
    fn note(&mut self, id: Id, serial: u32) {
        let word = KeyedHash::default().hash_one((self.content.get(&id), serial));
        if self.model.inode(id).data().is_empty() {
            self.content.remove(&id);
        } else {
            self.content.insert(id, word);
        }
    }
}

/// Looks for an order of the calls of all processes that begins in `start`, in at most so many steps.
pub fn search(start: &Model, processes: &[Vec<Event>], steps_max: usize) -> Verdict {
    let first = State {
        at: vec![(0, Phase::Start); processes.len()],
        model: start.clone().into_shared(),
        content: BTreeMap::new(),
        trail: None,
    };
    let mut seen = BTreeSet::from([first.key()]);
    let mut stack = vec![first];
    let mut best: (usize, String) = (0, String::new());
    let mut steps = 0;
    while let Some(state) = stack.pop() {
        let current: Vec<(usize, &Event)> =
            (0..processes.len()).filter_map(|p| processes[p].get(state.at[p].0).map(|event| (p, event))).collect();
        if current.iter().all(|(_, event)| event.end.is_none()) {
            return Verdict::Good;
        }
        let first_end = current.iter().map(|(_, event)| event.to()).min().unwrap_or_default();
        let mut candidates: Vec<(usize, &Event)> =
            current.iter().copied().filter(|(_, event)| event.from <= first_end).collect();
        // The last one pushed is tried first.
        candidates.sort_by_key(|(p, event)| core::cmp::Reverse((event.to(), *p)));
        let mut told = Vec::new();
        for (p, event) in candidates {
            steps += 1;
            for id in glimpses(&state, p, event, &current) {
                let mut next = state.clone();
                next.at[p].1 = Phase::Found(id);
                if seen.insert(next.key()) {
                    stack.push(next);
                }
            }
            let mut next = state.clone();
            match take(&mut next, p, event) {
                Step::Ended => {
                    let (call, _) = state.at[p];
                    next.at[p] = (call + 1, Phase::Start);
                    next.trail = Some(Rc::new(Trail { process: p, call, before: state.trail.clone() }));
                }
                Step::Goes(phase) => next.at[p].1 = phase,
                Step::Not(why) => {
                    told.push(format!("\n  process {p}, {}: {why}", event.show()));
                    continue;
                }
            }
            if seen.insert(next.key()) {
                stack.push(next);
            }
        }
        let done: usize = state.at.iter().map(|(at, _)| at).sum();
        if done >= best.0 && !told.is_empty() {
            best = (done, format!("{}\n  and then none of:{}", ended(&state, processes), told.concat()));
        }
        if steps > steps_max {
            return Verdict::Unknown;
        }
    }
    Verdict::Bad(format!(
        "no order of the calls gives their results; after {} calls the best ends with:{}",
        best.0, best.1
    ))
}

/// The last calls of an order, for a person.
fn ended(state: &State, processes: &[Vec<Event>]) -> String {
    let mut lines = Vec::new();
    let mut at = state.trail.as_ref();
    while let Some(trail) = at.filter(|_| lines.len() < 15) {
        lines.push(format!("\n  process {}, {}", trail.process, processes[trail.process][trail.call].show()));
        at = trail.before.as_ref();
    }
    lines.reverse();
    lines.concat()
}

/// The path of a call whose first step is to look where that leads.
fn looks_up(op: &Op) -> Option<&Path> {
    match op {
        Op::Stat { path }
        | Op::Readlink { path }
        | Op::List { path, .. }
        | Op::Chmod { path, .. }
        | Op::Truncate { path, .. }
        | Op::Open { path, .. }
        | Op::Link { from: path, .. } => Some(path),
        _ => None,
    }
}

/// Objects that the path of a change may have led to by what a crash undid: its client had looked by then, and asks for the
/// object. (What is only looked at need not be so at all: see [`Event::doubtful`].)
fn glimpses(state: &State, process: usize, event: &Event, current: &[(usize, &Event)]) -> BTreeSet<Id> {
    let mut found = BTreeSet::new();
    let succeeded = event.end.as_ref().is_none_or(|(_, result)| result.is_ok());
    let looks = event.doubtful && succeeded && event.op.changes() && state.at[process].1 == Phase::Start;
    if let Some(path) = looks_up(&event.op).filter(|_| looks) {
        let seen = |(p, other): &(usize, &Event)| *p != process && other.undone && other.from <= event.to();
        let undone: Vec<&Event> = current.iter().filter(|of| seen(of)).map(|(_, other)| *other).collect();
        walks(&state.model, path, &undone, &mut found);
    }
    found
}

/// Where a path leads after some of these changes, in any order.
fn walks(model: &Model, path: &Path, changes: &[&Event], found: &mut BTreeSet<Id>) {
    found.extend(model.walk(&Cred::default(), path));
    for (at, change) in changes.iter().enumerate() {
        let mut then = model.clone();
        then.name_next(change.serial);
        if then.apply(&change.op, &Cred::default(), When::at(0)).is_ok() {
            walks(&then, path, &[&changes[..at], &changes[at + 1..]].concat(), found);
        }
    }
}

/// One step of a call.
fn take(state: &mut State, process: usize, event: &Event) -> Step {
    let phase = state.at[process].1;
    let model = &mut state.model;
    model.name_next(event.serial);
    let cred = Cred::default();
    let when = When::at(0);
    let result = event.end.as_ref().map(|(_, result)| result);
    // Who waits for no answer takes every one.
    let ends = |model: &mut Model, expect: Result<Expect, Errno>| match result {
        None => Step::Ended,
        Some(result) => match differs(model, &expect, result) {
            None => Step::Ended,
            Some(what) => Step::Not(what),
        },
    };
    // A change whose client died has no answer to doubt: it is a change wherever it comes.
    let changed = result.is_none_or(|result| result.is_ok()) && event.op.changes();
    if event.doubtful && !changed {
        return Step::Ended;
    }
    let walk = match (&event.op, phase) {
        (Op::Open { path, flags, .. }, Phase::Start) if flags & 0o100 != 0 => match model.walk(&cred, path) {
            Ok(_) if flags & 0o200 != 0 => return ends(model, Err(Errno::EEXIST)),
            Err(Errno::ENOENT) => {
                let expect = model.apply(&event.op, &cred, when);
                return ends(model, expect);
            }
            other => Some(other),
        },
        (op, Phase::Start) => looks_up(op).map(|path| model.walk(&cred, path)),
        _ => None,
    };
    match walk {
        Some(Ok(id)) => return Step::Goes(Phase::Found(id)),
        Some(Err(errno)) => return ends(model, Err(errno)),
        None => {}
    }
    if let Phase::Found(id) = phase {
        return found(state, event, id, &ends);
    }
    if let (Op::Rename { from, to, flags }, Some(Err(errno))) = (&event.op, result) {
        // Linux looks at both names, one after the other, before it asks.
        let there = |path| model.walk(&cred, path).is_ok();
        let nowhere = || model.parent(&cred, to).err() == Some(Errno::ENOENT);
        let so = match errno {
            Errno::ENOENT => !there(from) || nowhere() || (flags & 2 != 0 && !there(to)),
            Errno::EEXIST => flags & 1 != 0 && there(to),
            other => model.clone().apply(&event.op, &cred, when) == Err(*other),
        };
        return if so { Step::Ended } else { Step::Not(format!("{} is not so", errno.name())) };
    }
    let file = event.op.fd().and_then(|fd| model.open_files().get(&fd)).map(|file| file.id);
    let expect = model.apply(&event.op, &cred, when);
    if let (true, Ok(Expect::Inode(id)), Some(Ok(Got::Stat(stat)))) = (event.op.makes(), &expect, result) {
        return match model.ino_differs(*id, stat.ino) {
            None => Step::Goes(Phase::Found(*id)),
            Some(what) => Step::Not(what),
        };
    }
    let step = ends(model, expect);
    if let (Op::Write { .. } | Op::Ftruncate { .. }, Some(id), Step::Ended) = (&event.op, file, &step) {
        state.note(id, event.serial);
    }
    step
}

/// The second step of a call, whose path led to an object.
fn found(state: &mut State, event: &Event, id: Id, ends: &dyn Fn(&mut Model, Result<Expect, Errno>) -> Step) -> Step {
    let cred = Cred::default();
    let when = When::at(0);
    let model = &mut state.model;
    if model.get(id).is_none() {
        return Step::Not("what it looked up is not there".to_owned());
    }
    let expect = match &event.op {
        Op::Stat { .. } | Op::Mkdir { .. } | Op::Mknod { .. } | Op::Symlink { .. } => Ok(Expect::Inode(id)),
        Op::Readlink { .. } => match &model.inode(id).body {
            crate::model::Body::Symlink(target) => Ok(Expect::Data(target.clone())),
            _ => Err(Errno::EINVAL),
        },
        Op::List { .. } => model.list_found(id),
        Op::Chmod { mode, .. } => {
            model.chmod_found(id, *mode);
            Ok(Expect::Done)
        }
        Op::Truncate { size, .. } => model.truncate_found(&cred, id, *size, when),
        Op::Open { flags, fd, .. } => match model.inode(id).is_dir() && flags & 0o100 != 0 {
            true => Err(Errno::EISDIR),
            false => model.open_found(&cred, id, *flags, *fd, when),
        },
        Op::Link { to, .. } => model.link_found(&cred, id, to, when),
        other => return Step::Not(format!("{} has one step", other.show())),
    };
    let step = ends(model, expect);
    if let Step::Ended = step
        && matches!(event.op, Op::Truncate { .. } | Op::Open { .. })
        && model.inode(id).is_file()
    {
        let cuts = match &event.op {
            Op::Open { flags, .. } => flags & 0o1000 != 0,
            _ => true,
        };
        if cuts {
            state.note(id, event.serial);
        }
    }
    step
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::name;

    fn path(text: &str) -> Path {
        text.split('/').map(name).collect()
    }

    fn event(serial: u32, from: u64, op: Op, end: Option<(u64, Outcome)>) -> Event {
        let end = end.map(|(to, outcome)| (Instant(to), outcome));
        Event { op, serial, client: 0, from: Instant(from), end, doubtful: false, undone: false }
    }

    fn begin() -> Model {
        let mut model = Model::new(0, 0, 0o755, When::at(0));
        for dir in ["d", "e"] {
            // An empty directory takes a name.
            let _ = model.apply(&Op::Mkdir { path: path(dir), mode: 0o755 }, &Cred::default(), When::at(0));
        }
        model
    }

    /// Who has no answer has renamed for others, whether a doubt lies on it or not.
    #[test]
    fn a_change_without_an_answer_is_seen_by_others() {
        for doubtful in [false, true] {
            let rename = Op::Rename { from: path("d"), to: path("f"), flags: 0 };
            let rename = Event { doubtful, ..event(100, 1, rename, None) };
            let gone = event(101, 2, Op::Rmdir { path: path("d") }, Some((3, Err(Errno::ENOENT))));
            let there = event(102, 4, Op::Rmdir { path: path("f") }, Some((5, Ok(Got::Done))));
            let verdict = search(&begin(), &[vec![rename], vec![gone, there]], 1000);
            assert_eq!(verdict, Verdict::Good, "doubtful: {doubtful}");
        }
    }

    /// The attributes that come with the answer of a call that made something are a look at it, before the call ends.
    #[test]
    fn what_was_made_may_have_changed_when_its_maker_is_told() {
        let stat = |ino: u64, mode: u32| {
            let stat = client::api::Stat { ino, mode: crate::model::S_IFREG | mode, nlink: 1, ..Default::default() };
            Ok(Got::Stat(stat))
        };
        let make = |mode| {
            let op = Op::Mknod { path: path("f"), mode: crate::model::S_IFREG | 0o644, rdev: 0 };
            event(100, 1, op, Some((9, stat(7, mode))))
        };
        let chmod =
            |from| event(101, from, Op::Chmod { path: path("f"), mode: 0o600 }, Some((from + 2, Ok(Got::Done))));
        let verdict = |mode, from| search(&begin(), &[vec![make(mode)], vec![chmod(from)]], 1000);
        assert_eq!(verdict(0o644, 3), Verdict::Good);
        assert_eq!(verdict(0o600, 3), Verdict::Good);
        assert!(matches!(verdict(0o640, 3), Verdict::Bad(_)), "nobody gave it that mode");
        assert!(matches!(verdict(0o600, 10), Verdict::Bad(_)), "it was not changed before the call ended");
    }

    /// A rename was seen, a directory found by the name that it gave, a crash undid it, and then it was done once more.
    #[test]
    fn what_was_looked_up_before_a_crash_is_changed_after_it() {
        let rename = Op::Rename { from: path("d"), to: path("f"), flags: 0 };
        let chmod = Op::Chmod { path: path("f"), mode: 0o700 };
        let gone = event(102, 20, Op::Rmdir { path: path("f") }, Some((22, Err(Errno::ENOENT))));
        let verdict = |undone, doubtful, mode| {
            let rename = Event { undone, ..event(100, 3, rename.clone(), Some((30, Ok(Got::Done)))) };
            let chmod = Event { doubtful, ..event(101, 4, chmod.clone(), Some((8, Ok(Got::Done)))) };
            let stat = client::api::Stat { ino: 7, mode: crate::model::S_IFDIR | mode, nlink: 2, ..Default::default() };
            let stat = event(103, 23, Op::Stat { path: path("d") }, Some((24, Ok(Got::Stat(stat)))));
            search(&begin(), &[vec![rename], vec![chmod, gone.clone(), stat]], 1000)
        };
        assert_eq!(verdict(true, true, 0o700), Verdict::Good);
        assert!(matches!(verdict(true, true, 0o755), Verdict::Bad(_)), "what it led to was changed");
        assert!(matches!(verdict(true, false, 0o700), Verdict::Bad(_)), "it was looked up after the crash");
        assert!(matches!(verdict(false, true, 0o700), Verdict::Bad(_)), "no crash undid the rename");
    }

    /// And may as well not have.
    #[test]
    fn a_change_without_an_answer_may_never_have_been() {
        let rename = event(100, 1, Op::Rename { from: path("d"), to: path("f"), flags: 0 }, None);
        let there = event(101, 2, Op::Rmdir { path: path("d") }, Some((3, Ok(Got::Done))));
        assert_eq!(search(&begin(), &[vec![rename.clone()], vec![there]], 1000), Verdict::Good);
        let gone = event(101, 2, Op::Rmdir { path: path("e") }, Some((3, Err(Errno::ENOENT))));
        assert!(matches!(search(&begin(), &[vec![rename], vec![gone]], 1000), Verdict::Bad(_)));
    }
}
