//! Linearizability check of shared histories: searches for an order of the calls of several processes.
//!
//! A history is good if there is an order of its steps in which the reference model gives every call its actual result, and in
//! which a call that ended before another started precedes it. A call with a path has two steps (see [`Model::into_shared`]):
//! other calls may come between them, as on a local file system. So has a call that makes an object: `mkdir(2)` returns no
//! attributes, and the attributes that the kernel gets with the reply are those of a later moment if the first reply was lost and
//! the reply was rebuilt. For callers other than root, each permission check that Linux makes first (to search the directories of
//! a path, to read a listing or attributes) is a step, too. A call without a result (its client died) may have happened at any
//! moment after its start, completely, partly, or not at all.
//!
//! A striped directory is listed stripe by stripe, each at a moment of its own.
//!
//! The search is depth first, tries the calls that ended earliest first, and visits each combination of positions and state once.
//! Processes are few and wait for their results, so time fixes most of the order and the search is short; a search that gets too
//! long gives no verdict and is counted.

mod lost;

use core::hash::{BuildHasher, Hash, Hasher};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use client::api::DirectoryEntry;
use proto::Errno;
use proto::msg::Cred;
use stdx::{Instant, KeyedHash};

use crate::model::{Expected, Id, Mdts, Model, Op, Returned, TimeRange, differs, is_list};

pub(crate) use lost::{Death, Excuses};

/// The result of a call.
pub(crate) type Outcome = Result<Returned, Errno>;

/// A call of a shared history.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    /// The call.
    pub op: Op,
    /// The credentials of the caller.
    pub cred: Rc<Cred>,
    /// Unique; also the id of the object that the call makes.
    pub serial: u32,
    /// The client that carried the call.
    pub client: usize,
    /// Whether that client is mounted read-only.
    pub read_only: bool,
    /// When it started.
    pub from: Instant,
    /// When it ended, and its result; `None` if it never ended.
    pub end: Option<(Instant, Outcome)>,
    /// Changes of other processes (by serial) that this call may have seen before a crash undid them. A server shows a change
    /// before it is durable; if a crash undoes it before the reply arrived, the client resends the request, and the change is
    /// made again.
    pub seen_undone: BTreeSet<u32>,
    /// The number of changes that its client had made by metadata write-back when it ended.
    pub made: u64,
    /// Whether its client died and the change may be lost with it.
    pub at_risk: bool,
    /// The metadata targets that it concerns.
    pub mdts: Mdts,
    /// It concerns exactly these targets. Otherwise it concerns some of them.
    pub placed: bool,
}

impl Event {
    /// A call by root through the first client that has not started.
    #[cfg(test)]
    pub(crate) fn of(op: Op) -> Event {
        Event {
            op,
            cred: Rc::default(),
            serial: 0,
            client: 0,
            read_only: false,
            from: Instant(0),
            end: None,
            seen_undone: BTreeSet::new(),
            made: 0,
            at_risk: false,
            mdts: Mdts::ALL,
            placed: true,
        }
    }

    fn to(&self) -> Instant {
        self.end.as_ref().map_or(Instant(u64::MAX), |(to, _)| *to)
    }

    /// Whether it is a change of several targets: it is durable when it is answered, and nobody sees it before it is certain.
    pub(crate) fn is_cross(&self) -> bool {
        self.op.changes() && self.placed && self.mdts.is_several()
    }

    /// Whether it has changed something or may have: a change whose client died has no result.
    fn changed(&self) -> bool {
        self.end.as_ref().is_none_or(|(_, result)| result.is_ok()) && self.op.changes()
    }

    /// The call and its result in one line.
    pub(crate) fn show(&self) -> String {
        let result = match &self.end {
            None => "no answer".to_owned(),
            Some((_, Ok(Returned::Data(data)))) => format!("{} bytes", data.len()),
            Some((_, Ok(Returned::Stat(stat)))) => {
                let (owner, size) = (format!("{}:{}", stat.uid, stat.gid), stat.size);
                format!("inode {:x} mode {:o} nlink {} owner {owner} size {size}", stat.ino, stat.mode, stat.nlink)
            }
            Some((_, Ok(Returned::Entries(entries)))) => {
                let entries: Vec<String> =
                    entries.iter().map(|e| format!("{} {:x}", e.name.escape_ascii(), e.ino)).collect();
                format!("[{}]", entries.join(", "))
            }
            Some((_, Ok(Returned::Opened(ino)))) => format!("inode {ino:x}"),
            Some((_, Ok(got))) => format!("{got:?}"),
            Some((_, Err(errno))) => errno.name().to_owned(),
        };
        let to = self.end.as_ref().map_or("-".to_owned(), |(to, _)| format!("{to:?}"));
        let user = if self.cred.uid == 0 { String::new() } else { format!(" for {}", self.cred.uid) };
        format!("{:?} to {to}, client {}{user}: {} -> {result}", self.from, self.client, self.op.show())
    }
}

/// The result of the search.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// There is an order.
    Good,
    /// There is no order: the calls at which every order ends, as text.
    Bad(String),
    /// The search was too long.
    Unknown,
}

/// The progress of a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum CallPhase {
    Start,
    /// Its caller may search the directories of its path.
    Searched,
    /// Its path was resolved to this object, or it made this object.
    Found(Id),
    /// The same, and its caller has the permission that it needs.
    Allowed(Id),
    /// The names of some stripes of this directory were listed, as bits by their index. Each stripe is listed at a moment of its
    /// own.
    ListedStripes(Id, u32),
    /// Its names were listed. The attributes beside the names are read later, as if each name were looked up then.
    Listed,
}

/// The outcome of a step of a call in some state.
enum StepResult {
    /// The call ends with its actual result.
    Ended,
    /// The call continues in this phase.
    Continues(CallPhase),
    /// The step is impossible in this state.
    Impossible(String),
}

#[derive(Clone)]
struct State {
    at: Vec<(usize, CallPhase)>,
    model: Model,
    /// By file: a hash of the changes of its bytes.
    content: BTreeMap<Id, u64>,
    trail: Option<Rc<Trail>>,
    /// The changes of the state, the last one first.
    effects: Option<Rc<lost::Effect>>,
    /// By death: whether its losses were applied.
    settled: Vec<bool>,
    /// Files with unsynced bytes of a client that died.
    torn: BTreeSet<Id>,
}

/// The ordered calls, the last one first.
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
        (&self.settled, &self.torn).hash(&mut hasher);
        hasher.write_u64(self.model.fingerprint());
        hasher.finish()
    }

    /// The current call of a process ends.
    fn ended(&mut self, process: usize) {
        let (call, _) = self.at[process];
        self.at[process] = (call + 1, CallPhase::Start);
        self.trail = Some(Rc::new(Trail { process, call, before: self.trail.take() }));
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

/// An entry of the search stack.
enum SearchItem {
    /// Try the calls that can come next in a state.
    Calls(State),
    /// Try what can be lost in a state with this death.
    Loss(State, usize),
}

/// Searches for an order of the calls of all processes that starts in `start`, in at most `steps_max` steps.
pub(crate) fn search(start: &Model, processes: &[Vec<Event>], excuses: &Excuses, steps_max: usize) -> Verdict {
    let excuses = &Excuses { concurrent_resizes: lost::concurrent_resizes(processes), ..excuses.clone() };
    let first = State {
        at: vec![(0, CallPhase::Start); processes.len()],
        model: start.clone().into_shared(),
        content: BTreeMap::new(),
        trail: None,
        effects: None,
        settled: vec![false; excuses.deaths.len()],
        torn: BTreeSet::new(),
    };
    let mut seen = BTreeSet::from([first.key()]);
    let mut stack = vec![SearchItem::Calls(first)];
    let mut best: (usize, String) = (0, String::new());
    let (mut steps, mut whole) = (0, true);
    while let Some(todo) = stack.pop() {
        let state = match todo {
            SearchItem::Calls(state) => state,
            SearchItem::Loss(state, position) => {
                let (states, all) = state.after_death(position, start, processes, excuses);
                whole &= all;
                steps += states.len();
                // The last one pushed is tried first.
                stack.extend(states.into_iter().rev().filter(|state| seen.insert(state.key())).map(SearchItem::Calls));
                if steps > steps_max {
                    return Verdict::Unknown;
                }
                continue;
            }
        };
        let current: Vec<(usize, &Event)> =
            (0..processes.len()).filter_map(|p| processes[p].get(state.at[p].0).map(|event| (p, event))).collect();
        if current.iter().all(|(_, event)| event.end.is_none()) {
            return Verdict::Good;
        }
        let first_end = current.iter().map(|(_, event)| event.to()).min().unwrap_or_default();
        let happened = |position: &usize| !state.settled[*position] && excuses.deaths[*position].from <= first_end;
        let losses: Vec<usize> = (0..excuses.deaths.len()).filter(happened).collect();
        stack.extend(losses.into_iter().map(|position| SearchItem::Loss(state.clone(), position)));
        let mut candidates: Vec<(usize, &Event)> =
            current.iter().copied().filter(|(_, event)| event.from <= first_end).collect();
        // The last one pushed is tried first.
        candidates.sort_by_key(|(p, event)| core::cmp::Reverse((event.to(), *p)));
        let mut reasons = Vec::new();
        for (p, event) in candidates {
            steps += 1;
            for model in undone_states(&state, p, event, &current) {
                if let Some(next) = step_in_undone_state(&state, p, event, model, excuses)
                    && seen.insert(next.key())
                {
                    stack.push(SearchItem::Calls(next));
                }
            }
            let mut next = state.clone();
            match take_step(&mut next, p, event, excuses) {
                StepResult::Ended => {
                    next.note_effect(&state, p, event);
                    next.ended(p);
                }
                StepResult::Continues(phase) => {
                    next.note_effect(&state, p, event);
                    next.at[p].1 = phase;
                }
                StepResult::Impossible(why) => {
                    reasons.push(format!("\n  process {p}, {}: {why}", event.show()));
                    continue;
                }
            }
            if seen.insert(next.key()) {
                stack.push(SearchItem::Calls(next));
            }
        }
        let done: usize = state.at.iter().map(|(at, _)| at).sum();
        if done >= best.0 && !reasons.is_empty() {
            best = (done, format!("{}\n  and then none of:{}", ended(&state, processes), reasons.concat()));
        }
        if steps > steps_max {
            return Verdict::Unknown;
        }
    }
    if !whole {
        return Verdict::Unknown;
    }
    Verdict::Bad(format!(
        "no order of the calls gives their results; after {} calls the best ends with:{}",
        best.0, best.1
    ))
}

/// The last calls of an order, as text.
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

/// Further states that a call may see besides the one that the order leads to: changes that come later in the order, and that a
/// crash undid in between, are already applied in them.
fn undone_states(state: &State, process: usize, event: &Event, current: &[(usize, &Event)]) -> Vec<Model> {
    let seen = |(p, other): &&(usize, &Event)| *p != process && event.seen_undone.contains(&other.serial);
    let undone: Vec<(CallPhase, &Event)> =
        current.iter().filter(seen).map(|(p, other)| (state.at[*p].1, *other)).collect();
    let mut found = Vec::new();
    with_changes_done(&state.model, &undone, &mut found);
    found
}

/// Collects the states after some of these changes, in any order.
fn with_changes_done(model: &Model, changes: &[(CallPhase, &Event)], found: &mut Vec<Model>) {
    for (at, (phase, change)) in changes.iter().enumerate() {
        let mut then = model.clone();
        then.name_next(change.serial);
        let is_done = match phase {
            // A call that has made its object only reads its attributes from then on.
            CallPhase::Found(_) if change.op.makes() => continue,
            phase => done(&mut then, change, *phase),
        };
        if is_done {
            with_changes_done(&then, &[&changes[..at], &changes[at + 1..]].concat(), found);
            found.push(then);
        }
    }
}

/// A step of a call that sees a state which a crash undoes: the path can be resolved there, attributes can be read there, and the
/// call can fail there. Lasting changes are made in the state that remains.
fn step_in_undone_state(
    state: &State,
    process: usize,
    event: &Event,
    model: Model,
    excuses: &Excuses,
) -> Option<State> {
    let mut next = state.clone();
    let mut undone = State { model, ..state.clone() };
    match take_step(&mut undone, process, event, excuses) {
        // The step only read something or checked permissions.
        StepResult::Continues(phase) if !event.op.makes() || phase == CallPhase::Searched => next.at[process].1 = phase,
        StepResult::Ended if !event.changed() => {
            next.model.learns_numbers_of(&undone.model);
            next.ended(process);
        }
        _ => return None,
    }
    Some(next)
}

/// Takes one step of a call.
fn take_step(state: &mut State, process: usize, event: &Event, excuses: &Excuses) -> StepResult {
    let phase = state.at[process].1;
    let torn: BTreeSet<Id> = match state.torn.is_empty() && excuses.given_up.is_empty() {
        true => BTreeSet::new(),
        false => state.model.ids().filter(|id| state.is_torn(*id, event, excuses)).collect(),
    };
    let model = &mut state.model;
    model.name_next(event.serial);
    model.set_searched(phase != CallPhase::Start);
    let cred = &*event.cred;
    let when = TimeRange::ANY;
    let mut result = event.end.as_ref().map(|(_, result)| result);
    if let (CallPhase::Listed, Some(Ok(Returned::Entries(entries)))) = (phase, result) {
        return model.attributes_beside_differ(entries, &torn).map_or(StepResult::Ended, StepResult::Impossible);
    }
    let names = without_attributes(result);
    let shows = names.is_some();
    result = names.as_ref().or(result);
    // A call without a result accepts every result.
    let ends = |model: &mut Model, expect: Result<Expected, Errno>| match result {
        None => StepResult::Ended,
        Some(result) if torn.is_empty() && !excuses.concurrent_resizes.contains_key(&event.serial) => {
            match differs(model, &expect, result) {
                None => StepResult::Ended,
                Some(what) => StepResult::Impossible(what),
            }
        }
        Some(result) => {
            let mut result = lost::without_uncertain(model, &expect, result, &|id| torn.contains(&id));
            if let Some(resizes) = excuses.concurrent_resizes.get(&event.serial) {
                result = lost::without_time(model, resizes, &expect, result);
            }
            match (&event.op, differs(model, &expect, &result)) {
                (Op::Read { fd, .. }, Some(_)) if expect.is_ok() && result.is_ok() && reads(model, *fd, &torn) => {
                    StepResult::Ended
                }
                (_, None) => StepResult::Ended,
                (_, Some(what)) => StepResult::Impossible(what),
            }
        }
    };
    if phase == CallPhase::Start && checks_search_first(event) {
        let path = event.op.clone().paths_mut().into_iter().next().map(|(_, path)| path.clone()).unwrap_or_default();
        return match model.may_search(cred, &path) {
            Ok(()) => StepResult::Continues(CallPhase::Searched),
            Err(errno) => ends(model, Err(errno)),
        };
    }
    let walk = match (&event.op, phase) {
        (_, CallPhase::Found(_) | CallPhase::Allowed(_) | CallPhase::ListedStripes(..) | CallPhase::Listed) => None,
        (Op::Open { path, flags, .. }, _) if flags & 0o100 != 0 => match model.walk(cred, path) {
            Ok(_) if flags & 0o200 != 0 => return ends(model, Err(Errno::EEXIST)),
            Err(Errno::ENOENT) => {
                let expect = model.apply(&event.op, cred, when);
                return ends(model, expect);
            }
            other => Some(other),
        },
        (op, _) => op.object().map(|path| model.walk(cred, path)),
    };
    match walk {
        Some(Ok(id)) => return StepResult::Continues(CallPhase::Found(id)),
        Some(Err(errno)) => return ends(model, Err(errno)),
        None => {}
    }
    if let CallPhase::ListedStripes(id, seen) = phase
        && let Some(Ok(Returned::Entries(entries))) = result
    {
        return match list_stripes(model, id, seen, entries) {
            StepResult::Ended if shows => StepResult::Continues(CallPhase::Listed),
            step => step,
        };
    }
    if let CallPhase::Found(id) | CallPhase::Allowed(id) = phase {
        return match found(state, event, phase, id, &ends) {
            StepResult::Ended if shows => StepResult::Continues(CallPhase::Listed),
            step => step,
        };
    }
    if let (Op::Rename { from, to, flags }, Some(Err(errno))) = (&event.op, result) {
        // Linux looks up both names, one after the other, before it sends the request.
        let root = Cred::default();
        let there = |path| model.walk(&root, path).is_ok();
        let nowhere = || model.parent(&root, to).err() == Some(Errno::ENOENT);
        let so = match errno {
            Errno::EACCES if [from, to].iter().any(|path| model.may_search(cred, path).is_err()) => true,
            Errno::ENOENT => !there(from) || nowhere() || (flags & 2 != 0 && !there(to)),
            Errno::EEXIST => flags & 1 != 0 && there(to),
            other => model.clone().apply(&event.op, cred, when) == Err(*other),
        };
        return if so {
            StepResult::Ended
        } else {
            StepResult::Impossible(format!("{} is not a possible result", errno.name()))
        };
    }
    let file = event.op.fd().and_then(|fd| model.open_files().get(&fd)).map(|file| file.id);
    let expect = model.apply(&event.op, cred, when);
    if let (true, Ok(Expected::Inode(id)), Some(Ok(Returned::Stat(stat)))) = (event.op.makes(), &expect, result) {
        return match model.ino_differs(*id, stat.ino) {
            None => StepResult::Continues(CallPhase::Found(*id)),
            Some(what) => StepResult::Impossible(what),
        };
    }
    let step = ends(model, expect);
    if let (Op::Write { .. } | Op::Ftruncate { .. } | Op::Fallocate { .. }, Some(id), StepResult::Ended) =
        (&event.op, file, &step)
    {
        state.note(id, event.serial);
    }
    step
}

/// A listing with attributes, without these; `None` if it has none.
fn without_attributes(result: Option<&Result<Returned, Errno>>) -> Option<Result<Returned, Errno>> {
    let Some(Ok(Returned::Entries(entries))) = result else { return None };
    let shows = entries.iter().any(|entry| entry.stat.is_some());
    let name = |entry: &DirectoryEntry| DirectoryEntry { stat: None, ..entry.clone() };
    shows.then(|| Ok(Returned::Entries(entries.iter().map(name).collect())))
}

/// Whether the first step of a call checks that its caller may search the directories of its path. The first two levels belong to
/// the group and never change; for a rename the server checks both names at once.
fn checks_search_first(event: &Event) -> bool {
    let deep = |op: &mut Op| op.paths_mut().iter().any(|(_, path)| path.len() > 2);
    event.cred.uid != 0 && !matches!(event.op, Op::Rename { .. }) && deep(&mut event.op.clone())
}

/// Whether `fd` is open on one of these files.
fn reads(model: &Model, fd: u32, files: &BTreeSet<Id>) -> bool {
    model.open_files().get(&fd).is_some_and(|file| files.contains(&file.id))
}

/// A later step of a call whose path was resolved to an object.
fn found(
    state: &mut State,
    event: &Event,
    phase: CallPhase,
    id: Id,
    ends: &dyn Fn(&mut Model, Result<Expected, Errno>) -> StepResult,
) -> StepResult {
    let model = &mut state.model;
    if model.get(id).is_none() {
        // Linux can stat an object that it has looked up although its name is gone by then; and a removed directory has no
        // listing.
        let gone = match (&event.op, event.end.as_ref().map(|(_, result)| result)) {
            (Op::Stat { .. }, Some(Ok(Returned::Stat(stat)))) => stat.nlink == 0,
            (Op::List { .. }, Some(result)) => matches!(result, Err(Errno::ENOENT)),
            _ => false,
        };
        if gone {
            return StepResult::Ended;
        }
        return StepResult::Impossible("the object that it looked up does not exist".to_owned());
    }
    // A pipe or device was made under the name of a file that this program creates. The kernel repeats the lookup once per call
    // (docs/src/limits.md).
    if let (Op::Open { flags, .. }, Some((_, Err(Errno::ESTALE)))) = (&event.op, &event.end)
        && flags & 0o100 != 0
        && matches!(model.inode(id).body, crate::model::Body::Special { .. })
    {
        return StepResult::Ended;
    }
    if let (CallPhase::Found(_), Some(answer)) = (phase, permission_check(model, event, id)) {
        return match answer {
            Ok(()) => StepResult::Continues(CallPhase::Allowed(id)),
            Err(errno) => ends(model, Err(errno)),
        };
    }
    if event.read_only && event.op.changes() {
        return ends(model, Err(Errno::EROFS));
    }
    if let (Op::List { .. }, Some((_, Ok(Returned::Entries(_))))) = (&event.op, &event.end)
        && model.inode(id).home.is_striped()
    {
        return StepResult::Continues(CallPhase::ListedStripes(id, 0));
    }
    let Some(expect) = apply_to_object(model, event, phase, id) else {
        return StepResult::Impossible(format!("{} has a single step", event.op.show()));
    };
    let step = ends(model, expect);
    if let StepResult::Ended = step
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

/// Lists all stripes of a directory whose names are now those of the call's result. Listing changes nothing, so it need not be
/// tried later, too.
fn list_stripes(model: &mut Model, id: Id, seen: u32, entries: &[DirectoryEntry]) -> StepResult {
    if model.get(id).is_none_or(|inode| !inode.is_dir()) {
        return StepResult::Impossible("the directory that it lists does not exist".to_owned());
    }
    let home = model.inode(id).home.clone();
    let names = match model.list_found(id) {
        Ok(Expected::Entries(names)) => names,
        other => return StepResult::Impossible(format!("{other:?} is not a listing")),
    };
    let (mut now, mut wrong) = (seen, String::new());
    for stripe in (0..home.stripes()).filter(|stripe| seen & 1 << stripe == 0) {
        let want: Vec<_> = names.iter().filter(|(name, _)| home.stripe_of(name) == stripe).cloned().collect();
        let got: Vec<_> = entries.iter().filter(|entry| home.stripe_of(&entry.name) == stripe).cloned().collect();
        match model.listing_differs(&want, &got) {
            None => now |= 1 << stripe,
            Some(what) => wrong = format!("stripe {stripe}: {what}"),
        }
    }
    match now {
        _ if now.count_ones() == home.stripes() => StepResult::Ended,
        _ if now == seen => StepResult::Impossible(wrong),
        _ => StepResult::Continues(CallPhase::ListedStripes(id, now)),
    }
}

/// The permission check that Linux, or `opendir`, makes before it continues with a resolved object; `None` if there is none.
fn permission_check(model: &mut Model, event: &Event, id: Id) -> Option<Result<(), Errno>> {
    let cred = &*event.cred;
    match &event.op {
        _ if cred.uid == 0 => None,
        // The server makes all checks for access lists.
        Op::Setxattr { name, .. } | Op::Removexattr { name, .. } | Op::Getxattr { name, .. } if is_list(name) => None,
        Op::Setxattr { .. } | Op::Removexattr { .. } => Some(model.may_xattr(cred, id, 2)),
        Op::Getxattr { .. } => Some(model.may_xattr(cred, id, 4)),
        Op::List { .. } if model.inode(id).is_dir() => Some(model.access_found(cred, id, 4).map(drop)),
        Op::Link { to, .. } => {
            model.set_searched(false);
            let answer = model.may_search(cred, to);
            model.set_searched(true);
            Some(answer)
        }
        _ => None,
    }
}

/// What a call does to the object that its path was resolved to; `None` if the call uses names only, or the object does not
/// exist.
fn apply_to_object(model: &mut Model, event: &Event, phase: CallPhase, id: Id) -> Option<Result<Expected, Errno>> {
    let root = Cred::default();
    let when = TimeRange::ANY;
    // The caller's permissions were checked already, except those for the directory of a new name.
    let cred = if matches!(phase, CallPhase::Allowed(_)) { &root } else { &*event.cred };
    model.get(id)?;
    Some(match &event.op {
        op if matches!(op, Op::Stat { .. }) || op.makes() => Ok(Expected::Inode(id)),
        Op::Readlink { .. } => match &model.inode(id).body {
            crate::model::Body::Symlink(target) => Ok(Expected::Data(target.clone())),
            _ => Err(Errno::EINVAL),
        },
        Op::List { .. } => model.list_found(id),
        Op::Open { flags, fd, .. } => match model.inode(id).is_dir() && flags & 0o100 != 0 {
            true => Err(Errno::EISDIR),
            false => model.open_found(cred, id, *flags, *fd, when),
        },
        Op::Link { to, .. } => model.link_found(&event.cred, id, to, when),
        op if op.object().is_some() => model.apply_found(op, cred, id, when),
        _ => return None,
    })
}

/// Applies the rest of a change to a state; returns whether it succeeded.
fn done(model: &mut Model, event: &Event, phase: CallPhase) -> bool {
    model.set_searched(true);
    match phase {
        CallPhase::Found(id) | CallPhase::Allowed(id) => {
            apply_to_object(model, event, phase, id).is_some_and(|result| result.is_ok())
        }
        CallPhase::Start | CallPhase::Searched => model.apply(&event.op, &event.cred, TimeRange::ANY).is_ok(),
        // The rest only reads.
        CallPhase::ListedStripes(..) | CallPhase::Listed => false,
    }
}

#[cfg(test)]
mod tests;
