//! Processes that work concurrently in the same directories and files: their common history must be linearizable
//! ([`crate::linear`]).
//!
//! A group has two permanent directories. Each has three names on which any operation may happen, and one for a subdirectory with
//! two names of its own, which is made and removed but never renamed: a path through a directory that is renamed concurrently
//! counts as two paths on every system. With several metadata targets, these directories are on targets that are drawn once. Files are written by appending whole records, so the next read shows a record that is
//! torn, lost, duplicated or misplaced, and the next stat a size that is not a sum of records. In some runs the processes make
//! further calls ([`SharedCalls`]), and for several users.

use core::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use client::api::{NewDir, SetStat, SetTime};
use proto::msg::Cred;
use proto::{Bytes, Errno, TargetKind, TargetName};
use stdx::{Instant, Rng};

use super::draw::pattern;
use super::perform::OpExecutor;
use super::{ProgramEnv, name, root, user};
use crate::kernel::{Fd, Kernel, SysResult};
use crate::linear::{Death, Event, Excuses, Verdict, search};
use crate::model::{
    ACCESS, DEFAULT, Home, List, Mdts, Model, Op, Path, PathRole, Returned, S_IFREG, TimeRange, is_list,
};
use crate::plan::{Plan, SharedCalls, Span};
use crate::sched::{Fail, Sched};

/// The most steps of a search.
const STEPS_MAX: usize = 400_000;
/// The most bytes appended by one call, except for a few that make a file outgrow the metadata target.
const RECORD_MAX: u64 = 300;

/// When something happened to a target, and its name.
type Moment = (Instant, TargetName);

/// The record of a group.
#[derive(Clone)]
pub(crate) struct GroupRecord {
    base: Path,
    /// The directories exist.
    created: Rc<RefCell<bool>>,
    histories: Rc<RefCell<Vec<Vec<Event>>>>,
    serial: Rc<RefCell<u32>>,
    /// Permission bits of the permanent directories.
    modes: [u32; 2],
    /// Metadata targets of the permanent directories, and of the subdirectory in each.
    places: Rc<RefCell<[Place; 2]>>,
    /// Whether files get names in directories on other targets than theirs.
    roams: bool,
    /// Whether extended attributes are checked at the end.
    reads_attributes: bool,
}

/// The places of a permanent directory and of its subdirectory.
#[derive(Clone, Default)]
struct Place {
    outer: NewDir,
    inner: NewDir,
}

impl Place {
    /// Metadata targets of a name in the directory, or of one in the subdirectory.
    fn of_name(&self, path: &Path) -> u32 {
        let dir = if path.len() > 2 { &self.inner } else { &self.outer };
        Home::from(dir).of_name(path.last().map_or(&[][..], |name| name))
    }
}

struct Process {
    env: ProgramEnv,
    number: usize,
    rng: Rng,
    record: GroupRecord,
    files: BTreeMap<u32, Fd>,
    /// The credentials of the opener, by file.
    creds: BTreeMap<u32, Rc<Cred>>,
    think: (u64, Span),
    bulky: bool,
    calls: SharedCalls,
    /// Clocks of clients differ: no time is certain.
    clocks: bool,
}

/// Starts a group and returns its record.
pub(crate) fn start(env: &ProgramEnv, plan: &Plan, number: usize, mut rng: Rng) -> GroupRecord {
    let mut placer = Rng::new(plan.seed ^ 0xfa2d_1201 ^ (number as u64) << 32);
    let mdts = if placer.chance(5, 6) { plan.mdts as u32 } else { 1 };
    let record = GroupRecord {
        base: vec![name(&format!("g{number}"))],
        created: Rc::default(),
        histories: Rc::default(),
        serial: Rc::new(RefCell::new(100)),
        modes: if plan.shared.user_percent > 0 { OPEN_TO_ALL } else { [0o755; 2] },
        places: Rc::default(),
        roams: placer.chance(2, 3),
        reads_attributes: plan.shared.xattrs || plan.shared.lists,
    };
    let count = rng.range(2, 4) as usize;
    let calls = rng.range(8, 50);
    let bulky = rng.chance(1, 3);
    let (outer, own) = (env.clone(), record.clone());
    let think = (plan.think_percent, plan.think);
    let (shared, clocks) = (plan.shared, plan.disturbances.clocks.is_some());
    let title = format!("group {number}");
    env.sched.spawn(title.clone(), async move {
        super::all_mdts(&outer.sched, mdts).await;
        let mut place = || super::draw_home(&mut placer, mdts.min(outer.sched.mdts()));
        *own.places.borrow_mut() = [(); 2].map(|()| Place { outer: place(), inner: place() });
        let Some(kernel) = outer.mounts.living().first().cloned() else { return };
        if let Err(fail) = own.make(&kernel).await {
            if let Fail::Errno(errno) = fail
                && !outer.sched.was_evicted(kernel.client())
            {
                outer.sched.fail(format!("{title} cannot make its directories: {}", errno.name()));
            }
            return;
        }
        *own.created.borrow_mut() = true;
        *own.histories.borrow_mut() = vec![Vec::new(); count];
        for number in 0..count {
            let mut process = Process {
                env: outer.clone(),
                number,
                rng: rng.fork(),
                record: own.clone(),
                files: BTreeMap::new(),
                creds: BTreeMap::new(),
                think,
                bulky,
                calls: shared,
                clocks,
            };
            outer.sched.spawn(format!("{title}, process {number}"), async move {
                // The death of a client is not a failure: the process ends with it.
                let _ = process.live(calls).await;
            });
        }
    });
    record
}

const OUTER: [&str; 2] = ["x", "y"];
const ANY: [&str; 3] = ["a", "b", "c"];
const INNER: &str = "n";
/// Modes with which users can work there, too: one directory is sticky, in the other new objects inherit the group.
const OPEN_TO_ALL: [u32; 2] = [0o1777, 0o2777];
/// The names of extended attributes.
const ATTRIBUTES: [&str; 3] = ["user.a", "user.b", "user.a longer name of an attribute"];

/// Another user, who shares a group with the first.
fn other_user() -> Cred {
    Cred { uid: 1001, gid: 1001, groups: vec![1000], ..Cred::default() }
}

/// Calls that are also made through a read-only mount: reads, and some that the mount refuses after it has resolved the path.
fn is_for_read_only(op: &Op, cred: &Cred) -> bool {
    match op {
        Op::Stat { .. } | Op::Readlink { .. } | Op::List { .. } | Op::Getxattr { .. } | Op::Listxattr { .. } => true,
        // For other users Linux checks permissions after it has refused the change.
        Op::Chmod { .. } => cred.uid == 0,
        Op::Access { mask, .. } => mask & 2 == 0,
        _ => false,
    }
}

/// All calls that read the extended attributes of an object.
fn reads_attributes(at: &Path) -> Vec<Op> {
    let get = |of: &str| Op::Getxattr { path: at.clone(), name: name(of) };
    ATTRIBUTES.iter().map(|of| get(of)).chain([Op::Listxattr { path: at.clone() }]).collect()
}

fn path(parts: &[&str]) -> Path {
    parts.iter().map(|part| name(part)).collect()
}

impl GroupRecord {
    async fn make(&self, kernel: &Kernel) -> SysResult<()> {
        kernel.mkdir(&root(), &self.base, 0o755, false).await?;
        let places = self.places.borrow().clone();
        for ((dir, mode), place) in OUTER.iter().zip(self.modes).zip(places) {
            let whole: Path = self.base.iter().cloned().chain([name(dir)]).collect();
            match place.outer.mdts[..] {
                [0] => kernel.mkdir(&root(), &whole, 0o755, false).await?.ino,
                _ => kernel.mkdir_on(&root(), &whole, 0o755, &place.outer).await?,
            };
            if mode != 0o755 {
                kernel.setattr(&root(), &whole, &SetStat { mode: Some(mode), ..SetStat::default() }).await?;
            }
        }
        kernel.sync_all(&root()).await
    }

    /// The initial state.
    fn begin(&self) -> Model {
        let mut model = Model::new(0, 0, 0o755, TimeRange::ANY);
        let places = self.places.borrow().clone();
        for ((dir, mode), place) in OUTER.iter().zip(self.modes).zip(places) {
            // Neither call can fail: the directory is empty and the caller is root.
            let mkdir = Op::MkdirOn { path: path(&[dir]), mode: 0o755, wish: place.outer };
            let _ = model.apply(&mkdir, &root(), TimeRange::ANY);
            let _ = model.apply(&Op::Chmod { path: path(&[dir]), mode }, &root(), TimeRange::ANY);
        }
        model
    }

    /// The metadata targets that the next call of a process concerns, and whether it certainly concerns all of them. Names of
    /// subdirectories aside, all objects are on the target of the directory that their name is in, unless they may get names in
    /// other ones: then they may be on any.
    fn mdts_of(&self, process: usize, op: &Op) -> (Mdts, bool) {
        if let Some(fd) = op.fd() {
            let histories = self.histories.borrow();
            let opened = |event: &&Event| matches!(event.op, Op::Open { fd: opened, .. } if opened == fd);
            return histories[process]
                .iter()
                .rev()
                .find(opened)
                .map_or((Mdts::ALL, true), |event| (event.mdts, event.placed));
        }
        let places = self.places.borrow();
        let is_dir = |path: &Path| matches!(&path[..], [] | [_]) || path.len() == 2 && path[1] == INNER;
        if self.roams && !op.clone().paths_mut().iter().all(|(_, path)| is_dir(path)) {
            let all = places.iter().flat_map(|place| [Home::from(&place.outer), Home::from(&place.inner)]);
            let all = all.map(|home| home.all()).reduce(Mdts::and).unwrap_or(Mdts::ALL);
            return (all, !all.is_several());
        }
        let on = |(role, path): (PathRole, &mut Path)| {
            let of = |dir: &Bytes| &places[usize::from(*dir == OUTER[1])];
            match &path[..] {
                [dir, last] if last == INNER => match role {
                    PathRole::ToName => Mdts::one(of(dir).of_name(path)).and(Home::from(&of(dir).inner).all()),
                    PathRole::ToObject => Home::from(&of(dir).inner).all(),
                },
                [dir] => Home::from(&of(dir).outer).all(),
                [dir, ..] => Mdts::one(of(dir).of_name(path)),
                [] => Mdts::ALL,
            }
        };
        let all = op.clone().paths_mut().into_iter().map(on).reduce(Mdts::and).unwrap_or(Mdts::ALL);
        // Of a striped directory only its first stripe has attributes of its own.
        let of_one = matches!(op, Op::Setxattr { name, .. } | Op::Removexattr { name, .. } if !is_list(name));
        (all, !of_one || !all.is_several())
    }

    fn next_serial(&self) -> u32 {
        *self.serial.borrow_mut() += 1;
        *self.serial.borrow()
    }

    /// Makes a call and records it. `None` if its client died.
    async fn perform(
        &self,
        env: &ProgramEnv,
        process: usize,
        kernel: &Kernel,
        (op, cred): (Op, &Rc<Cred>),
        files: &mut BTreeMap<u32, Fd>,
        blind: bool,
    ) -> Option<Result<Returned, Errno>> {
        let sched = &env.sched;
        sched.note(|| format!("{} process {process} on client {}: {}", self.name(), kernel.client(), op.show()));
        let (mdts, placed) = self.mdts_of(process, &op);
        let event = Event {
            op: op.clone(),
            cred: cred.clone(),
            serial: self.next_serial(),
            client: kernel.client(),
            read_only: env
                .read_only_mount
                .living()
                .is_some_and(|read_only_mount| read_only_mount.client() == kernel.client()),
            from: sched.now(),
            end: None,
            seen_undone: BTreeSet::new(),
            made: u64::MAX,
            at_risk: false,
            mdts,
            placed,
        };
        let at = {
            let mut histories = self.histories.borrow_mut();
            histories[process].push(event);
            histories[process].len() - 1
        };
        let mut executor = OpExecutor { kernel, base: &self.base, files, blind };
        let result = match &op {
            Op::List { path, plus, .. } => {
                let whole: Path = self.base.iter().chain(path).cloned().collect();
                kernel.list_at_once(cred, &whole, *plus).await.map(Returned::Entries)
            }
            _ => executor.perform(&op, cred).await,
        };
        let result = match result {
            Ok(got) => Ok(got),
            Err(Fail::Errno(errno)) => Err(errno),
            Err(Fail::Dead) => return None,
            // It may have been executed, or be executed later.
            Err(Fail::Killed(_)) => {
                for fd in core::mem::take(files).into_values().filter(|fd| fd.client == kernel.client()) {
                    let _ = kernel.unsignalled().close(&root(), &fd, 1).await;
                }
                return None;
            }
        };
        let result = match kernel.was_interrupted(&result) {
            // An interrupted close still closes the file.
            true if matches!(op, Op::Close { .. }) => Ok(Returned::Done),
            true => {
                self.histories.borrow_mut()[process].pop();
                return Some(result);
            }
            false => result,
        };
        let event = &mut self.histories.borrow_mut()[process][at];
        event.end = Some((sched.now(), result.clone()));
        event.made = sched.all_progress().get(event.client).map_or(0, |progress| progress.made);
        kernel.adjust_to_result(&mut event.op, &result);
        sched.note(|| format!("{} process {process}: {}", self.name(), event.show()));
        Some(result)
    }

    /// Reads the whole tree after all processes have ended, recorded as the calls of a further process.
    pub(crate) async fn observe(&self, env: &ProgramEnv, kernel: &Kernel) -> Option<()> {
        if !*self.created.borrow() {
            return Some(());
        }
        let process = self.histories.borrow().len();
        self.histories.borrow_mut().push(Vec::new());
        let mut files = BTreeMap::new();
        let root = Rc::new(root());
        let mut todo: Vec<Path> = vec![path(&[OUTER[0]]), path(&[OUTER[1]])];
        while let Some(dir) = todo.pop() {
            let list = Op::List { path: dir.clone(), plus: true, bytes: 0 };
            let listed = self.perform(env, process, kernel, (list, &root), &mut files, false).await?;
            let Ok(Returned::Entries(entries)) = listed else { continue };
            for entry in entries {
                let at: Path = dir.iter().cloned().chain([entry.name.clone()]).collect();
                self.perform(env, process, kernel, (Op::Stat { path: at.clone() }, &root), &mut files, false)
                    .await?
                    .ok();
                for look in reads_attributes(&at).into_iter().filter(|_| self.reads_attributes) {
                    self.perform(env, process, kernel, (look, &root), &mut files, false).await?.ok();
                }
                match entry.kind {
                    4 => todo.push(at),
                    8 => {
                        let fd = self.next_serial();
                        let open = Op::Open { path: at, flags: 0, mode: 0, fd };
                        if self.perform(env, process, kernel, (open, &root), &mut files, false).await?.is_ok() {
                            let read = Op::Read { fd, offset: 0, length: 16 << 20 };
                            self.perform(env, process, kernel, (read, &root), &mut files, false).await?.ok();
                            self.perform(env, process, kernel, (Op::Close { fd }, &root), &mut files, false)
                                .await?
                                .ok();
                        }
                    }
                    _ => {}
                }
            }
        }
        Some(())
    }

    /// Whether the history is linearizable, apart from what dead clients can have lost.
    ///
    /// # Errors
    /// Why it is not.
    pub(crate) fn check(&self, sched: &Sched, crashes: &[Moment], recovered: &[Moment]) -> Result<Verdict, String> {
        let mut histories = self.histories.borrow().clone();
        if let Some(eviction) = sched.first_eviction() {
            discard_after(&mut histories, eviction);
        }
        let acknowledged: Vec<u64> = sched.all_progress().iter().map(|progress| progress.acknowledged).collect();
        let deaths = mark_at_risk(&mut histories, &sched.deaths(), &acknowledged, crashes, recovered);
        note_seen_undone(&mut histories, crashes);
        let given_up = sched.losses().iter().map(|loss| (loss.ino, loss.at)).collect();
        let verdict = search(&self.begin(), &histories, &Excuses { deaths, given_up, ..Excuses::default() }, STEPS_MAX);
        match verdict {
            Verdict::Bad(what) => {
                Err(format!("the calls in '{}' did not happen one after another: {what}", self.name()))
            }
            other => Ok(other),
        }
    }

    fn name(&self) -> String {
        self.base[0].escape_ascii().to_string()
    }
}

/// Discards everything after the first eviction: changes that the evicted client had not sent may be lost, and the client
/// continues.
fn discard_after(histories: &mut [Vec<Event>], eviction: Instant) {
    for events in histories {
        events.retain(|event| event.from < eviction);
        for event in events {
            event.end.take_if(|(to, _)| *to >= eviction);
        }
    }
}

/// Records for each call which changes of others it may have seen before a crash undid them. A change whose reply a crash delayed
/// may have been visible before the crash, undone by it, and made again before any other request is served. If two such changes
/// of different processes were concurrent, they may be made again in the other order: others may have seen the first order from
/// the start of one of them until the crash. (*Changes* of others on top of them were acknowledged only when both were durable;
/// but the object that a name led to can be changed whatever became of the name.) And a change on top of one that is lost with a
/// dead client was seen, too, and fails when it is sent again: it was not acknowledged. Needs the marks of [`mark_at_risk`].
fn note_seen_undone(histories: &mut [Vec<Event>], crashes: &[Moment]) {
    let mut zones: Vec<(usize, u32, Instant, Instant)> = Vec::new();
    let mut stands_on_losses: BTreeSet<u32> = BTreeSet::new();
    let risky: Vec<&Event> = histories.iter().flatten().filter(|event| event.at_risk).collect();
    let all = histories.iter().enumerate().flat_map(|(p, events)| events.iter().map(move |event| (p, event)));
    // A change of several targets is not seen before it is certain.
    for (process, event) in all.filter(|(_, event)| !event.is_cross()) {
        let to = event.end.as_ref().map_or(Instant(u64::MAX), |(to, _)| *to);
        let hits = |(at, name): &&Moment| (event.from..=to).contains(at) && affects(event, name);
        let last = crashes.iter().filter(hits).map(|(at, _)| *at).max();
        zones.extend(last.map(|last| (process, event.serial, event.from, last)));
        if last.is_some_and(|last| risky.iter().any(|lost| stands_on(event, lost, last))) {
            stands_on_losses.insert(event.serial);
        }
    }
    // A single one is made again before any other request is served, unless it fails then.
    let all = zones.clone();
    let together =
        |a: &(usize, u32, Instant, Instant), b: &(usize, u32, Instant, Instant)| a.0 != b.0 && a.2 <= b.3 && b.2 <= a.3;
    zones.retain(|zone| stands_on_losses.contains(&zone.1) || all.iter().any(|other| together(zone, other)));
    for (process, events) in histories.iter_mut().enumerate() {
        for event in events {
            let to = event.end.as_ref().map_or(Instant(u64::MAX), |(to, _)| *to);
            let meets = |of: usize, from: Instant, last: Instant| of != process && event.from <= last && to >= from;
            event.seen_undone = zones
                .iter()
                .filter(|(of, _, from, last)| meets(*of, *from, *last))
                .map(|(_, serial, ..)| *serial)
                .collect();
        }
    }
}

/// Whether a call that failed can have been executed before a crash on top of a change that was lost in this crash with another
/// client: one of their paths leads through the other.
fn stands_on(event: &Event, lost: &Event, crash: Instant) -> bool {
    let paths = |event: &Event| -> Vec<Path> {
        event.op.clone().paths_mut().into_iter().map(|(_, path)| path.clone()).collect()
    };
    let failed = matches!(event.end, Some((_, Err(_))));
    let meets = |one: &Path| paths(lost).iter().any(|other| one.starts_with(other) || other.starts_with(one));
    failed && lost.client != event.client && lost.from <= crash && paths(event).iter().any(meets)
}

/// Whether a crash of a target can undo a call: a metadata target holds what the call concerns or not, object targets hold bytes
/// and sizes only, the management target nothing.
fn affects(event: &Event, target: &TargetName) -> bool {
    match target.kind {
        TargetKind::Mgt => false,
        TargetKind::Mdt => event.op.changes() && event.mdts.meets(Mdts::one(target.index.0)),
        TargetKind::Ost => event.op.changes_data(),
    }
}

/// Marks the changes that may be lost with dead clients: those without a covering sync of the same client, if a crash undid them
/// (of a target that had not made them durable), or if they had not reached the servers. If the client was still alive at the end
/// of a recovery, it has made its metadata changes again. Returns the deaths with which changes may be lost.
fn mark_at_risk(
    histories: &mut [Vec<Event>],
    deaths: &[(usize, Instant)],
    acknowledged: &[u64],
    crashes: &[Moment],
    recovered: &[Moment],
) -> Vec<Death> {
    let mut found = Vec::new();
    for &(client, died) in deaths {
        let syncs: Vec<Event> = histories
            .iter()
            .flatten()
            .filter(|event| event.client == client && matches!(event.end, Some((_, Ok(_)))))
            .filter(|event| is_sync(&event.op) || event.is_cross())
            .cloned()
            .collect();
        let mut from: Option<Instant> = None;
        for event in histories.iter_mut().flatten().filter(|event| event.client == client && event.op.changes()) {
            let data = event.op.changes_data();
            let meets = |sync: &Event| event.placed && sync.placed && event.mdts.meets(sync.mdts);
            let covers = |sync: &Event| match sync.op {
                Op::Fsync { fd, .. } if event.op.fd() == Some(fd) => true,
                Op::Fsync { data_only, .. } => !data && !data_only && meets(sync),
                Op::Syncfs => true,
                _ => !data && meets(sync),
            };
            if event.is_cross() && matches!(event.end, Some((_, Ok(_)))) {
                continue;
            }
            let ended = event.end.as_ref().map(|(to, _)| *to);
            if ended.is_some_and(|ended| syncs.iter().any(|sync| sync.from >= ended && covers(sync))) {
                continue;
            }
            let again = |crash: Instant, target: &TargetName| {
                let over = |(at, name): &Moment| name == target && crash < *at && *at < died;
                !data && target.kind == TargetKind::Mdt && recovered.iter().any(over)
            };
            let hits = |(at, name): &&Moment| *at >= event.from && affects(event, name) && !again(*at, name);
            let crash = crashes.iter().filter(hits).map(|(at, _)| *at);
            let unacknowledged = data || event.made > acknowledged.get(client).copied().unwrap_or(0);
            let first = crash.chain(unacknowledged.then_some(died)).min();
            event.at_risk = first.is_some();
            from = from.into_iter().chain(first.map(|first| first.min(died))).min();
        }
        found.extend(from.map(|from| Death { client, from }));
    }
    found
}

fn is_sync(op: &Op) -> bool {
    matches!(op, Op::Fsync { .. } | Op::Syncfs)
}

impl Process {
    async fn live(&mut self, calls: u64) -> Option<()> {
        for _ in 0..calls {
            if self.env.sched.has_failed() {
                return None;
            }
            if self.rng.chance(self.think.0, 100) {
                let pause = self.think.1.draw(&mut self.rng);
                self.env.sched.sleep(pause).await;
            }
            let op = self.draw();
            self.call(op).await?;
        }
        for fd in self.files.keys().copied().collect::<Vec<u32>>() {
            self.call(Op::Close { fd }).await?;
        }
        Some(())
    }

    async fn call(&mut self, op: Op) -> Option<()> {
        let client = op.fd().and_then(|fd| self.files.get(&fd)).map(|fd| fd.client);
        let mut living = self.env.mounts.living();
        living.retain(|kernel| client.is_none_or(|client| client == kernel.client()));
        let mut kernel = self.rng.pick(&living)?.with_signals();
        let cred = op.fd().and_then(|fd| self.creds.get(&fd).cloned()).unwrap_or_else(|| Rc::new(self.cred()));
        if let Some(read_only_mount) = self.env.read_only_mount.living()
            && is_for_read_only(&op, &cred)
            && self.rng.chance(1, 3)
        {
            kernel = read_only_mount.with_signals();
        }
        let blind = self.rng.chance(1, 4);
        if let Op::Open { fd, .. } = &op {
            self.creds.insert(*fd, cred.clone());
        }
        let mut files = core::mem::take(&mut self.files);
        let record = self.record.clone();
        let env = self.env.clone();
        let result = record.perform(&env, self.number, &kernel, (op, &cred), &mut files, blind).await;
        self.files = files;
        result.map(drop)
    }

    fn any(&mut self) -> Path {
        let dir = OUTER[self.rng.below(2) as usize];
        let name = ANY[self.rng.below(3) as usize];
        match self.rng.chance(1, 4) {
            true => path(&[dir, INNER, ANY[self.rng.below(2) as usize]]),
            false => path(&[dir, name]),
        }
    }

    /// The old and the new name of an object.
    fn two(&mut self) -> Option<(Path, Path)> {
        let (from, to) = (self.any(), self.any());
        let places = self.record.places.borrow().clone();
        let mdt = |path: &Path| places[usize::from(path[0] == OUTER[1])].of_name(path);
        (self.record.roams || mdt(&from) == mdt(&to)).then_some((from, to))
    }

    fn directory(&mut self) -> Path {
        let dir = OUTER[self.rng.below(2) as usize];
        if self.rng.chance(1, 3) { path(&[dir, INNER]) } else { path(&[dir]) }
    }

    fn fd(&mut self) -> Option<u32> {
        let open: Vec<u32> = self.files.keys().copied().collect();
        self.rng.pick(&open).copied()
    }

    /// The credentials for the next call.
    fn cred(&mut self) -> Cred {
        let user_percent = self.calls.user_percent;
        match user_percent > 0 && self.rng.chance(user_percent, 100) {
            true if self.rng.chance(1, 3) => other_user(),
            true => user(),
            false => root(),
        }
    }

    fn draw(&mut self) -> Op {
        let SharedCalls { xattrs, owners, specials, ranges, lists, .. } = self.calls;
        let more = [xattrs, owners, specials, ranges, lists].iter().filter(|kind| **kind).count() as u64;
        loop {
            if more > 0 && self.rng.chance(more, more + 3) {
                let op = match self.rng.below(5) {
                    0 if xattrs => self.xattr(),
                    1 if owners => self.owner(),
                    2 if specials => self.special(),
                    3 if ranges => self.range(),
                    4 if lists => self.list(),
                    _ => None,
                };
                match op {
                    Some(op) => return op,
                    None => continue,
                }
            }
            let kind = if self.makes_elsewhere() { self.rng.range(1, 2) } else { self.rng.below(30) };
            if let Some(op) = self.of_kind(kind) {
                return op;
            }
        }
    }

    /// Whether the next call makes or removes a subdirectory, which lies on another target than its name.
    fn makes_elsewhere(&mut self) -> bool {
        let is_apart = |place: &Place| place.outer != place.inner || place.inner.mdts.len() > 1;
        self.record.places.borrow().iter().any(is_apart) && self.rng.chance(1, 6)
    }

    fn of_kind(&mut self, kind: u64) -> Option<Op> {
        Some(match kind {
            0 => Op::Mkdir { path: self.any(), mode: 0o755 },
            1 => {
                let of = self.rng.below(2) as usize;
                let (path, mode) = (path(&[OUTER[of], INNER]), 0o755);
                let place = self.record.places.borrow()[of].clone();
                let usual = Home::from(&place.inner) == Home::one(place.of_name(&path));
                if usual { Op::Mkdir { path, mode } } else { Op::MkdirOn { path, mode, wish: place.inner } }
            }
            2 => Op::Rmdir { path: path(&[OUTER[self.rng.below(2) as usize], INNER]) },
            3 => Op::Rmdir { path: self.any() },
            4 => Op::Symlink { path: self.any(), target: name("target") },
            5 => Op::Readlink { path: self.any() },
            6 | 7 => Op::Mknod { path: self.any(), mode: S_IFREG | 0o644, rdev: 0 },
            8 | 9 => {
                let (from, to) = self.two()?;
                Op::Link { from, to }
            }
            10..=12 => Op::Unlink { path: self.any() },
            13..=15 => {
                let flags = [0, 0, 0, 1, 2][self.rng.below(5) as usize];
                let (from, to) = self.two()?;
                Op::Rename { from, to, flags }
            }
            16 | 17 => Op::Stat { path: self.any() },
            18 | 19 => Op::List { path: self.directory(), plus: self.rng.chance(1, 2), bytes: 0 },
            20 => Op::Chmod { path: self.any(), mode: [0o644, 0o600, 0o755][self.rng.below(3) as usize] },
            21 => Op::Truncate { path: self.any(), size: [0, 10, 500][self.rng.below(3) as usize] },
            22..=24 if self.files.len() < 4 => {
                let mut flags =
                    if self.calls.user_percent > 0 { [0o2002, 0o2002, 0][self.rng.below(3) as usize] } else { 0o2002 };
                if self.calls.direct && self.rng.chance(1, 3) {
                    flags |= 0o40000;
                }
                for (bit, of) in [(0o100, 2), (0o200, 6), (0o1000, 6)] {
                    if self.rng.chance(1, of) {
                        flags |= bit;
                    }
                }
                Op::Open { path: self.any(), flags, mode: 0o644, fd: self.record.next_serial() }
            }
            22..=24 => Op::Close { fd: self.fd()? },
            25 | 26 => {
                let fd = self.fd()?;
                let mut length = self.rng.range(1, RECORD_MAX);
                if self.bulky && self.rng.chance(1, 6) {
                    length += 40_000;
                }
                let data = pattern(u64::from(self.record.next_serial()), length as usize);
                Op::Write { fd, way: crate::model::WriteWay::Plain, offset: 0, data }
            }
            27 => Op::Read { fd: self.fd()?, offset: 0, length: 1 << 20 },
            28 => Op::Fstat { fd: self.fd()? },
            _ => match self.rng.below(3) {
                0 => Op::Ftruncate { fd: self.fd()?, size: [0, 100][self.rng.below(2) as usize] },
                1 => Op::Fsync { fd: self.fd()?, data_only: self.rng.chance(1, 2) },
                _ => Op::Close { fd: self.fd()? },
            },
        })
    }
}

/// Further calls of a plan ([`SharedCalls`]).
impl Process {
    fn xattr(&mut self) -> Option<Op> {
        let path = self.any();
        let attribute = name(ATTRIBUTES[self.rng.below(3) as usize]);
        Some(match self.rng.below(8) {
            0 | 1 => Op::Getxattr { path, name: attribute },
            2 => Op::Listxattr { path },
            3 => Op::Removexattr { path, name: attribute },
            _ => {
                // Small values are stored in the inode, large ones are not.
                let length = [0, 5, 100, 3000][self.rng.below(4) as usize];
                let value: Bytes = pattern(u64::from(self.record.next_serial()), length);
                Op::Setxattr { path, name: attribute, value, flags: [0, 0, 1, 2][self.rng.below(4) as usize] }
            }
        })
    }

    fn list(&mut self) -> Option<Op> {
        let rng = &mut self.rng;
        let default = rng.chance(1, 3);
        let attribute = Bytes::from_static(if default { DEFAULT } else { ACCESS });
        let bits = [(); 6].map(|()| [7, 7, 6, 5, 4, 0][rng.below(6) as usize]);
        let (user, group) = ([1000, 1001, 3000][rng.below(3) as usize], [1000, 2000, 3000][rng.below(3) as usize]);
        let list = match rng.chance(1, 4) {
            true => List::of_mode([0o755, 0o700, 0o066][rng.below(3) as usize]),
            false => List::naming(bits, user, group),
        };
        let kind = rng.below(6);
        let path = if default && rng.chance(3, 4) { path(&[OUTER[rng.below(2) as usize], INNER]) } else { self.any() };
        Some(match kind {
            0 => Op::Getxattr { path, name: attribute },
            1 => Op::Removexattr { path, name: attribute },
            2 => Op::Access { path, mask: self.rng.range(1, 7) as u32 },
            _ => Op::Setxattr { path, name: attribute, value: list.value(), flags: 0 },
        })
    }

    fn owner(&mut self) -> Option<Op> {
        let rng = &mut self.rng;
        let (uid, gid) = ([None, Some(0), Some(1000), Some(1001)], [0, 1000, 1001, 2000]);
        let (uid, gid) = (uid[rng.below(4) as usize], Some(gid[rng.below(4) as usize]));
        let mode = [0o777, 0o755, 0o711, 0o700, 0o644, 0o444, 0o000][rng.below(7) as usize];
        let (special, time) = (rng.below(4) as u32 * 0o1000, self.time());
        Some(match self.rng.below(6) {
            0 | 1 => Op::Chown { path: self.any(), uid, gid },
            2 => Op::Chmod { path: self.any(), mode },
            // Only a directory has this name: a write to a file clears its set-id bits in a separate step.
            3 => Op::Chmod { path: path(&[OUTER[self.rng.below(2) as usize], INNER]), mode: mode | special & !0o4000 },
            4 => Op::Utimens { path: self.any(), atime: None, mtime: Some(time) },
            _ => Op::Access { path: self.any(), mask: self.rng.range(1, 7) as u32 },
        })
    }

    fn time(&mut self) -> SetTime {
        match self.clocks || self.rng.chance(1, 3) {
            true => SetTime::Now,
            false => SetTime::At(self.rng.below(2_000_000_000) as i64 * 1_000_000_007),
        }
    }

    fn special(&mut self) -> Option<Op> {
        let (mode, rdev) = [(0o010_666, 0), (0o140_755, 0), (0o020_600, 0x103)][self.rng.below(3) as usize];
        Some(Op::Mknod { path: self.any(), mode, rdev })
    }

    fn range(&mut self) -> Option<Op> {
        // Within a page: of a change of several pages, others may see a part.
        Some(Op::Fallocate {
            fd: self.fd()?,
            mode: [0, 1, 3, 0x10, 0x11][self.rng.below(5) as usize],
            offset: self.rng.below(600),
            length: self.rng.range(1, 900),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(serial: u32, from: u64, to: u64, op: Op) -> Event {
        Event { serial, from: Instant(from), end: Some((Instant(to), Ok(Returned::Done))), ..Event::of(op) }
    }

    fn moment(at: u64, kind: TargetKind) -> Moment {
        (Instant(at), TargetName { fsname: "fs".into(), kind, index: proto::TargetIndex(0) })
    }

    /// Changes of a dead client are safe if they had reached the servers and no crash undid them, or if a sync of the same client
    /// covers them.
    #[test]
    fn unsynced_changes_are_at_risk_unless_a_server_kept_them() {
        let mkdir = |serial, from, to, made| Event {
            made,
            ..event(serial, from, to, Op::Mkdir { path: path(&["x"]), mode: 0o755 })
        };
        let marked_after = |sync: Option<u64>, acknowledged, crash: Option<u64>, over: Option<u64>| {
            let fsync = sync.map(|at| event(102, at, at + 1, Op::Fsync { fd: 1, data_only: false }));
            let mut histories = [vec![mkdir(100, 10, 12, 1), mkdir(101, 20, 22, 2)], fsync.into_iter().collect()];
            let crashes: Vec<_> = crash.map(|at| moment(at, TargetKind::Mdt)).into_iter().collect();
            let over: Vec<_> = over.map(|at| moment(at, TargetKind::Mdt)).into_iter().collect();
            let deaths = mark_at_risk(&mut histories, &[(0, Instant(50))], &[acknowledged], &crashes, &over);
            let from = deaths.first().map(|death| death.from.0);
            (histories[0].iter().map(|event| event.at_risk).collect::<Vec<_>>(), from)
        };
        let marked = |sync, acknowledged, crash| marked_after(sync, acknowledged, crash, None);
        assert_eq!(marked_after(None, 2, Some(30), Some(40)), (vec![false, false], None), "made again");
        assert_eq!(
            marked_after(None, 2, Some(30), Some(60)),
            (vec![true, true], Some(30)),
            "the client was dead by then"
        );
        assert_eq!(marked(None, 2, None), (vec![false, false], None));
        assert_eq!(marked(None, 1, None), (vec![false, true], Some(50)));
        assert_eq!(marked(None, 2, Some(15)), (vec![true, false], Some(15)), "the second change came after the crash");
        assert_eq!(marked(None, 2, Some(40)), (vec![true, true], Some(40)));
        assert_eq!(marked(Some(15), 2, Some(40)), (vec![false, true], Some(40)));
        assert_eq!(marked(Some(30), 0, Some(40)), (vec![false, false], None));
    }

    /// A crash can only undo changes that its target holds, and only calls between the start of the change and the crash can have
    /// seen them. A single undone change is made again before any other call.
    #[test]
    fn only_changes_that_a_crash_can_undo_may_be_seen_undone() {
        let seen = |op: Op, kind, from, to| {
            let look = event(101, from, to, Op::Stat { path: path(&["x"]) });
            let mut alone = [vec![event(100, 10, 30, op.clone())], vec![look.clone()]];
            note_seen_undone(&mut alone, &[moment(20, kind)]);
            assert!(alone[0][0].seen_undone.is_empty() && alone[1][0].seen_undone.is_empty());
            let mut two = [vec![event(100, 10, 30, op.clone())], vec![look], vec![event(102, 10, 30, op)]];
            note_seen_undone(&mut two, &[moment(20, kind)]);
            assert!(!two[0][0].seen_undone.contains(&100));
            two[1][0].seen_undone.contains(&100)
        };
        let rename = || Op::Rename { from: path(&["x"]), to: path(&["y"]), flags: 0 };
        let cut = || Op::Truncate { path: path(&["x"]), size: 0 };
        assert!(seen(rename(), TargetKind::Mdt, 5, 15) && seen(rename(), TargetKind::Mdt, 20, 40));
        assert!(!seen(rename(), TargetKind::Mdt, 5, 9), "the change had not started");
        assert!(!seen(rename(), TargetKind::Mdt, 21, 22), "the crash came before the call");
        assert!(!seen(rename(), TargetKind::Ost, 12, 15) && !seen(rename(), TargetKind::Mgt, 12, 15));
        assert!(seen(cut(), TargetKind::Ost, 12, 15) && !seen(cut(), TargetKind::Mgt, 12, 15));
        assert!(!seen(Op::Readlink { path: path(&["x"]) }, TargetKind::Mdt, 12, 15), "a read changes nothing");
    }

    /// Client 0 makes x/n at 1 and dies; client 1 begins to make x/n/b at 10, a crash comes at 20, and the call ends at 40.
    #[test]
    fn a_change_on_top_of_what_a_dead_client_lost_may_be_seen_and_fail() {
        let seen = |lost: &str, at_risk, outcome, look: u64| {
            let mkdir = |path| Op::Mkdir { path, mode: 0o755 };
            let names = |text: &str| text.split('/').map(name).collect();
            let dead = Event { at_risk, ..event(100, 1, 2, mkdir(names(lost))) };
            let end = Some((Instant(40), outcome));
            let change = Event { client: 1, end, ..event(101, 10, 40, mkdir(names("x/n/b"))) };
            let look = Event { client: 2, ..event(102, look, look + 1, Op::Rmdir { path: names("x/n") }) };
            let mut histories = [vec![dead], vec![change], vec![look]];
            note_seen_undone(&mut histories, &[moment(20, TargetKind::Mdt)]);
            histories[2][0].seen_undone.contains(&101)
        };
        let gone = || Err(Errno::ENOENT);
        assert!(seen("x/n", true, gone(), 15));
        assert!(!seen("x/n", true, gone(), 21), "after the crash");
        assert!(!seen("x/n", true, Ok(Returned::Done), 15), "it was made again before any other request");
        assert!(!seen("x/n", false, gone(), 15), "what it stands on was not lost");
        assert!(!seen("x/m", true, gone(), 15), "what was lost is elsewhere");
    }
}
