//! Processes of several clients that concurrently write and read at different places of one file.
//!
//! Every write leaves a stamp that identifies the call and the place. The file is divided at both ends of each call's range and
//! at every page: for each piece, and for the size, there must be an order of all calls in which each sees the last value
//! ([`crate::register`]). A piece never has parts of two writes.
//!
//! After the death of a client or a power failure later calls do not count; the bytes at the end must have been written at their
//! place, and may not be older than the synced ones.
//!
//! The file has several stripes from the start, or outgrows the metadata target during the run.

mod pieces;

use core::cell::{Cell, RefCell};
use core::ops::Range;
use std::collections::BTreeMap;
use std::rc::Rc;

use client::api::{Call, Stat};
use proto::msg::Layout;
use proto::{Bytes, Errno};
use stdx::{Instant, Rng};

use self::pieces::Pieces;
use super::perform::OpExecutor;
use super::{ProgramEnv, name, root};
use crate::kernel::{Fd, Kernel, OpenHow, SysResult};
use crate::model::{Op, Path, Returned, WriteWay};
use crate::plan::{Plan, Span};
use crate::sched::{Fail, Loss};

const PAGE: u64 = 4096;
/// The greatest end of a write: three stripes.
const SIZE_MAX: u64 = 48 * PAGE;
/// Writes start and end at a multiple of this.
const WORD: u64 = 8;
/// Size of a stripe in bytes.
const STRIPE: u64 = 16 * PAGE;
const O_DIRECT: u32 = 0o40000;
const O_TRUNC: u32 = 0o1000;

/// The effect of a call on the file, or what it saw.
#[derive(Clone, Debug)]
enum Effect {
    /// Wrote a stamp; `certain` bytes of it for certain.
    Write { serial: u64, range: Range<u64>, certain: u64 },
    /// Wrote zeros or punched a hole.
    Zero { range: Range<u64> },
    /// Extended the file at least to the end of the range. Buffered data in the range is written back.
    Reach { range: Range<u64> },
    /// Wrote back buffered data in the range, so a part of a larger write may outlive its client.
    Settle { range: Range<u64> },
    /// Set the size.
    Cut { size: u64 },
    /// Saw bytes.
    Read { offset: u64, length: u64, data: Bytes },
    /// Saw the size.
    Size { size: u64 },
    /// Made the earlier calls of its client durable.
    Sync,
    /// No visible effect.
    Nothing,
}

/// A call.
#[derive(Clone, Debug)]
struct CallRecord {
    client: usize,
    what: String,
    from: Instant,
    /// When it ended; `None` if it has no result.
    to: Option<Instant>,
    effect: Effect,
    /// The wall clock when it started.
    wall_ns: i64,
    /// The file's ctime and mtime, as the call saw them.
    times: Option<(i64, i64)>,
}

/// The file at the end.
#[derive(Clone, Debug)]
struct FinalFile {
    size: u64,
    data: Vec<u8>,
}

/// The record of a group.
#[derive(Clone)]
pub(crate) struct WritersRecord {
    base: Path,
    /// Selects the metadata target of the directory.
    place: u64,
    /// The file's inode, once its creation is durable.
    ino: Rc<Cell<Option<u64>>>,
    /// Whether it has several stripes, or may get them.
    striped: Rc<Cell<bool>>,
    entries: Rc<RefCell<Vec<Vec<CallRecord>>>>,
    serial: Rc<Cell<u64>>,
    /// Since when nothing is certain: a client was evicted with its locks because others died.
    uncertain_from: Rc<Cell<Option<Instant>>>,
    left: Rc<RefCell<Option<FinalFile>>>,
}

/// The mix of calls in a group.
#[derive(Clone, Debug)]
struct CallMix {
    pages: Vec<u64>,
    direct: u64,
    mapped: u64,
    cuts: u64,
    holes: u64,
    syncs: u64,
    moves: bool,
    think: (u64, Span),
}

struct Process {
    env: ProgramEnv,
    record: WritersRecord,
    kernel: Kernel,
    number: usize,
    rng: Rng,
    mix: CallMix,
    /// The page that it uses most.
    home: u64,
    /// The number of processes in the group.
    count: usize,
    files: BTreeMap<u32, Fd>,
    plain: u32,
    direct: u32,
}

/// The bytes of a write: every word identifies the write and the place.
fn stamp(serial: u64, range: &Range<u64>) -> Bytes {
    let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
    for word in range.start / WORD..range.end.div_ceil(WORD) {
        let mixed = (serial << 32 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // No byte is zero, because zeros are holes.
        bytes.extend((mixed ^ mixed >> 29 | 0x0101_0101_0101_0101).to_le_bytes());
    }
    bytes.truncate((range.end - range.start) as usize);
    bytes.into()
}

/// Starts a group and returns its record.
pub(crate) fn start(env: &ProgramEnv, plan: &Plan, number: usize, mut rng: Rng) -> WritersRecord {
    let record = WritersRecord {
        base: vec![name(&format!("w{number}"))],
        place: Rng::new(plan.seed ^ 0xfa2d_1202 ^ (number as u64) << 32).u64(),
        ino: Rc::default(),
        striped: Rc::default(),
        entries: Rc::default(),
        serial: Rc::default(),
        uncertain_from: Rc::default(),
        left: Rc::default(),
    };
    let percent = |rng: &mut Rng, of: &[u64]| rng.pick(of).copied().unwrap_or(0);
    let mut mix = CallMix {
        pages: (0..rng.range(3, 8)).map(|_| near_an_edge(&mut rng)).collect(),
        direct: percent(&mut rng, &[0, 20, 60]),
        mapped: percent(&mut rng, &[0, 0, 20]),
        cuts: percent(&mut rng, &[0, 0, 3, 8]),
        holes: percent(&mut rng, &[0, 4, 10]),
        syncs: percent(&mut rng, &[2, 10, 30]),
        moves: rng.chance(1, 4),
        think: (plan.think_percent, plan.think),
    };
    if mix.mapped > 0 {
        // A page that was modified through a mapping is written back as a whole, and the kernel does not announce the
        // modification: changes of others to the rest of the page are lost. So each process modifies its own pages.
        (mix.direct, mix.cuts, mix.holes) = (0, 0, 0);
    }
    let (count, calls) = (rng.range(3, 4) as usize, rng.range(10, 60));
    let stripes = [None, Some(-1), Some(2), Some(1)][rng.below(4) as usize];
    record.striped.set(plan.osts > 1 && (mix.moves || matches!(stripes, Some(-1 | 2))));
    let (outer, own) = (env.clone(), record.clone());
    let title = format!("writers {number}");
    env.sched.spawn(title.clone(), async move {
        let mut kernels = outer.mounts.living();
        let Some(kernel) = kernels.first().cloned() else { return };
        *own.entries.borrow_mut() = vec![Vec::new(); count + 1];
        let made = own.make(&outer, &kernel, stripes, count).await;
        match made {
            Ok(()) => {}
            Err(Fail::Dead | Fail::Killed(_)) => return,
            Err(Fail::Errno(errno)) => return own.refused(&outer, kernel.client(), "cannot make its file", errno),
        }
        for number in 0..count {
            if kernels.is_empty() {
                kernels = outer.mounts.living();
            }
            if kernels.is_empty() {
                return;
            }
            let kernel = kernels.swap_remove(rng.below(kernels.len() as u64) as usize);
            let mut process = Process {
                env: outer.clone(),
                record: own.clone(),
                kernel,
                number,
                count,
                home: rng.pick(&mix.pages).copied().unwrap_or(0),
                rng: rng.fork(),
                mix: mix.clone(),
                files: BTreeMap::new(),
                plain: 0,
                direct: 0,
            };
            outer.sched.spawn(format!("{title}, process {number}"), async move {
                // The death of a client is not a failure: the process ends with it.
                let _ = process.live(calls).await;
            });
        }
    });
    record
}

/// A page near the start, the end, or the end of a stripe.
fn near_an_edge(rng: &mut Rng) -> u64 {
    let edge = [0, 16, 32, 48][rng.below(4) as usize] + rng.below(5);
    match rng.chance(1, 4) {
        true => rng.below(SIZE_MAX / PAGE),
        false => edge.saturating_sub(2).min(SIZE_MAX / PAGE - 1),
    }
}

impl WritersRecord {
    fn path() -> Path {
        vec![name("f")]
    }

    fn whole(&self) -> Path {
        self.base.iter().cloned().chain(WritersRecord::path()).collect()
    }

    fn title(&self) -> String {
        self.base[0].escape_ascii().to_string()
    }

    async fn make(&self, env: &ProgramEnv, kernel: &Kernel, stripes: Option<i32>, maker: usize) -> SysResult<()> {
        super::mkdir_anywhere(env, kernel, &self.base, self.place).await?;
        if let Some(want_count) = stripes {
            let wish = || Layout { stripe_size: 64 << 10, want_count, want_first: -1, ..Layout::default() };
            kernel.about(&root(), &self.base, |ino| Call::SetLayout { ino, wish: wish() }).await?;
        }
        let how = OpenHow { flags: 0o102, mode: 0o644, blind: false };
        let file = kernel.open(&root(), &self.whole(), how).await?;
        let fd = self.next_serial() as u32;
        let mut files = BTreeMap::from([(fd, file.clone())]);
        if stripes.is_some() {
            for at in 0..3 {
                let op = self.write_op(fd, WriteWay::Plain, at * (64 << 10)..(at + 1) * (64 << 10));
                if self.perform(env, kernel, maker, op, &mut files).await.is_none() {
                    return Err(Fail::Dead);
                }
            }
        }
        kernel.close(&root(), &file, 1).await?;
        kernel.sync_all(&root()).await?;
        self.ino.set(Some(file.ino));
        Ok(())
    }

    fn next_serial(&self) -> u64 {
        self.serial.set(self.serial.get() + 1);
        self.serial.get()
    }

    /// A write with the stamp of the next call.
    fn write_op(&self, fd: u32, way: WriteWay, range: Range<u64>) -> Op {
        Op::Write { fd, way, offset: range.start, data: stamp(self.serial.get() + 1, &range) }
    }

    /// Handles an unexpected error of a call.
    fn refused(&self, env: &ProgramEnv, client: usize, what: &str, errno: Errno) {
        let lost = matches!(errno, Errno::EIO | Errno::ESTALE) && env.sched.first_death().is_some();
        // An evicted client may show stale data until it learns of the eviction.
        if lost || env.sched.was_evicted_or_given_up(client) {
            let now = env.sched.now();
            self.uncertain_from.set(self.uncertain_from.get().or(Some(now)));
        } else {
            env.sched.fail(format!("the writers of '{}': {what}: {}", self.title(), errno.name()));
        }
    }

    /// Makes a call and records it. `None` if its client died or the call failed.
    async fn perform(
        &self,
        env: &ProgramEnv,
        kernel: &Kernel,
        process: usize,
        mut op: Op,
        files: &mut BTreeMap<u32, Fd>,
    ) -> Option<Returned> {
        let sched = &env.sched;
        let serial = self.next_serial();
        let what = op.show();
        sched.note(|| format!("writers {} process {process} on client {}: {what}", self.title(), kernel.client()));
        let asked = op.clone();
        let begun = effect(serial, &asked, None);
        let entry = CallRecord {
            client: kernel.client(),
            what: what.clone(),
            from: sched.now(),
            to: None,
            effect: begun,
            wall_ns: sched.wall_ns(),
            times: None,
        };
        let at = {
            let mut entries = self.entries.borrow_mut();
            entries[process].push(entry);
            entries[process].len() - 1
        };
        let mut executor = OpExecutor { kernel, base: &self.base, files, blind: false };
        let result = loop {
            match executor.perform(&op, &root()).await {
                Ok(got) => break Ok(got),
                // An interrupted close still closes the file; every other call is repeated.
                Err(Fail::Errno(Errno::EINTR)) if matches!(op, Op::Close { .. }) => break Ok(Returned::Done),
                Err(Fail::Errno(Errno::EINTR)) => {}
                Err(Fail::Errno(errno)) => break Err(errno),
                Err(Fail::Dead) => return None,
                Err(Fail::Killed(_)) => {
                    for fd in core::mem::take(files).into_values() {
                        let _ = kernel.unsignalled().close(&root(), &fd, 1).await;
                    }
                    return None;
                }
            }
        };
        kernel.adjust_to_result(&mut op, &result);
        match result {
            Ok(got) => {
                let entry = &mut self.entries.borrow_mut()[process][at];
                entry.to = Some(sched.now());
                entry.effect = effect(serial, &asked, Some(&got));
                if let Returned::Stat(stat) = &got {
                    entry.times = Some((stat.ctime_ns, stat.mtime_ns));
                }
                Some(got)
            }
            Err(errno) => {
                let client = kernel.client();
                self.refused(env, client, &format!("process {process} on client {client}: {what}"), errno);
                None
            }
        }
    }

    /// Reads the whole file after all processes have ended.
    pub(crate) async fn observe(&self, env: &ProgramEnv, kernel: &Kernel) -> Option<()> {
        if self.ino.get().is_none() {
            return Some(());
        }
        let process = self.entries.borrow().len();
        self.entries.borrow_mut().push(Vec::new());
        let mut files = BTreeMap::new();
        let fd = self.next_serial() as u32;
        let open = Op::Open { path: WritersRecord::path(), flags: 0, mode: 0, fd };
        self.perform(env, kernel, process, open, &mut files).await?;
        let got = self.perform(env, kernel, process, Op::Fstat { fd }, &mut files).await?;
        let size = if let Returned::Stat(Stat { size, .. }) = got { size } else { 0 };
        let mut data = Vec::new();
        loop {
            let read = Op::Read { fd, offset: data.len() as u64, length: 128 << 10 };
            let Returned::Data(more) = self.perform(env, kernel, process, read, &mut files).await? else { break };
            if more.is_empty() {
                break;
            }
            data.extend_from_slice(&more);
        }
        self.perform(env, kernel, process, Op::Close { fd }, &mut files).await?;
        *self.left.borrow_mut() = Some(FinalFile { size, data });
        Some(())
    }

    /// Checks that every call saw a possible state. `same_clock`: the clocks of all clients are equal.
    ///
    /// # Errors
    /// What is wrong.
    pub(crate) fn check(&self, death: Option<Instant>, losses: &[Loss], same_clock: bool) -> Result<(), String> {
        let Some(ino) = self.ino.get() else { return Ok(()) };
        let all = self.entries.borrow();
        let lost = losses.iter().find(|loss| loss.ino == ino).map(|loss| loss.at);
        let pieces = Pieces::of(&all, self.striped.get());
        let wrong = |what: String| Err(format!("the file of the writers '{}': {what}", self.title()));
        let mut processes = all.clone();
        if let Some(cut) = death.into_iter().chain(lost).chain(self.uncertain_from.get()).min() {
            for entries in &mut processes {
                entries.retain(|entry| entry.from < cut);
                for entry in entries {
                    entry.to.take_if(|to| *to >= cut);
                }
            }
        }
        if let Some(what) = pieces.disorder(&processes) {
            return wrong(what);
        }
        if let Some(what) = times_differ(&processes, same_clock) {
            return wrong(what);
        }
        if let (Some(left), Some(_), None) = (&*self.left.borrow(), death, lost)
            && let Some(what) = pieces.lost(&all, left)
        {
            return wrong(what);
        }
        Ok(())
    }
}

/// No call sets the times of the file, so a call never sees times older than those that another call saw before it, or, if all
/// clocks are equal, older than a write that ended before it.
fn times_differ(processes: &[Vec<CallRecord>], same_clock: bool) -> Option<String> {
    let changes = |effect: &Effect| matches!(effect, Effect::Write { certain: 1.., .. });
    let ended = |entry: &&CallRecord| entry.to.is_some();
    let mut looks: Vec<&CallRecord> =
        processes.iter().flatten().filter(ended).filter(|entry| entry.times.is_some()).collect();
    let writes = processes.iter().flatten().filter(ended).filter(|entry| same_clock && changes(&entry.effect));
    let floor = |entry: &CallRecord| entry.times.unwrap_or((entry.wall_ns, entry.wall_ns));
    let mut before: Vec<&CallRecord> = looks.iter().copied().chain(writes).collect();
    looks.sort_by_key(|entry| entry.from);
    before.sort_by_key(|entry| entry.to);
    let (mut next, mut least): (_, [Option<&CallRecord>; 2]) = (0, [None, None]);
    for look in looks {
        while let Some(entry) = before.get(next).filter(|entry| entry.to < Some(look.from)) {
            if least[0].is_none_or(|known| floor(known).0 < floor(entry).0) {
                least[0] = Some(entry);
            }
            if least[1].is_none_or(|known| floor(known).1 < floor(entry).1) {
                least[1] = Some(entry);
            }
            next += 1;
        }
        let (ctime, mtime) = look.times.unwrap_or_default();
        for (known, what, seen, least) in [
            (least[0], "ctime", ctime, least[0].map(|known| floor(known).0)),
            (least[1], "mtime", mtime, least[1].map(|known| floor(known).1)),
        ] {
            if let Some((known, least)) = known.zip(least)
                && seen < least
            {
                let (what_of, looked) = (&known.what, &look.what);
                return Some(format!(
                    "{looked} on client {} at {:?} shows the {what} {seen}, and {what_of} on client {} at {:?} was before it: {least}",
                    look.client, look.from, known.client, known.from
                ));
            }
        }
    }
    None
}

/// The effect of a call; `got` is its result.
fn effect(serial: u64, op: &Op, got: Option<&Returned>) -> Effect {
    match (op, got) {
        (Op::Write { offset, data, .. }, _) => {
            let certain = if let Some(Returned::Written(count)) = got { u64::from(*count) } else { 0 };
            Effect::Write { serial, range: *offset..offset + data.len() as u64, certain }
        }
        (Op::Fallocate { mode, offset, length, .. }, _) if mode & 0x12 != 0 => {
            Effect::Zero { range: *offset..offset + length }
        }
        (Op::Fallocate { mode, offset, length, .. }, _) if mode & 1 == 0 => {
            Effect::Reach { range: *offset..offset + length }
        }
        (Op::Fallocate { offset, length, .. }, _) => Effect::Settle { range: *offset..offset + length },
        (Op::Ftruncate { size, .. } | Op::Truncate { size, .. }, _) => Effect::Cut { size: *size },
        (Op::Open { flags, .. }, _) if flags & O_TRUNC != 0 => Effect::Cut { size: 0 },
        (Op::Read { offset, length, .. }, Some(Returned::Data(data))) => {
            Effect::Read { offset: *offset, length: u64::from(*length), data: data.clone() }
        }
        (_, Some(Returned::Stat(stat))) => Effect::Size { size: stat.size },
        (Op::Fsync { .. }, Some(_)) => Effect::Sync,
        _ => Effect::Nothing,
    }
}

impl Process {
    async fn live(&mut self, calls: u64) -> Option<()> {
        self.open(false, 0).await?;
        self.open(true, 0).await?;
        for _ in 0..calls {
            if self.env.sched.has_failed() || self.record.uncertain_from.get().is_some() {
                return None;
            }
            if self.rng.chance(self.mix.think.0, 100) {
                let pause = self.mix.think.1.draw(&mut self.rng);
                self.env.sched.sleep(pause).await;
            }
            self.step().await?;
        }
        for fd in [self.plain, self.direct] {
            self.call(Op::Close { fd }).await?;
        }
        Some(())
    }

    async fn call(&mut self, op: Op) -> Option<Returned> {
        let (record, env, kernel) = (self.record.clone(), self.env.clone(), self.kernel.with_signals());
        record.perform(&env, &kernel, self.number, op, &mut self.files).await
    }

    async fn open(&mut self, direct: bool, more: u32) -> Option<()> {
        let fd = self.record.next_serial() as u32;
        let flags = 2 | more | if direct { O_DIRECT } else { 0 };
        self.call(Op::Open { path: WritersRecord::path(), flags, mode: 0, fd }).await?;
        if direct {
            self.direct = fd;
        } else {
            self.plain = fd;
        }
        Some(())
    }

    fn range(&mut self) -> Range<u64> {
        let page = match self.rng.below(8) {
            0..4 => self.home,
            4..7 => self.rng.pick(&self.mix.pages).copied().unwrap_or(0),
            _ => self.rng.below(SIZE_MAX / PAGE),
        };
        let start = page * PAGE;
        let range = match self.rng.below(20) {
            0..12 => start..start + PAGE,
            12..17 => {
                let start = start + self.rng.below(PAGE / WORD) * WORD;
                start..start + self.rng.range(1, 2 * PAGE / WORD) * WORD
            }
            17 | 18 => start..start + self.rng.range(1, 5) * PAGE,
            _ => start..start + self.rng.range(1, 20) * PAGE,
        };
        range.start..range.end.min(SIZE_MAX)
    }

    /// The corresponding range in this process's own page.
    fn own(&self, range: Range<u64>) -> Range<u64> {
        let (count, number) = (self.count as u64, self.number as u64);
        let page = range.start / PAGE;
        let mine = (page / count * count + number) * PAGE;
        let start = mine + range.start % PAGE;
        start..(start + range.end - range.start).min(mine + PAGE)
    }

    fn fd(&mut self) -> u32 {
        if self.rng.chance(self.mix.direct, 100) { self.direct } else { self.plain }
    }

    async fn step(&mut self) -> Option<()> {
        let fd = self.fd();
        let range = self.range();
        let range = if self.mix.mapped > 0 { self.own(range) } else { range };
        let (offset, length) = (range.start, range.end - range.start);
        let CallMix { mapped, cuts, holes, syncs, moves, .. } = self.mix;
        let size = [offset, offset + length, offset, 0, SIZE_MAX][self.rng.below(5) as usize];
        let weights = [30, 30, 12, cuts, holes, syncs, 2, u64::from(moves)];
        let mut left = self.rng.below(weights.iter().sum());
        let kind = weights.iter().position(|weight| {
            let chosen = left < *weight;
            left = left.saturating_sub(*weight);
            chosen
        });
        let op = match kind {
            Some(0) if self.rng.chance(mapped, 100) => self.record.write_op(self.plain, WriteWay::Mapped, range),
            Some(0) => self.record.write_op(fd, WriteWay::Plain, range),
            Some(1) => {
                let Range { start, end } = self.range();
                Op::Read { fd, offset: start, length: (end - start) as u32 }
            }
            Some(2) if self.rng.chance(1, 2) => Op::Fstat { fd },
            Some(2) => Op::Stat { path: WritersRecord::path() },
            Some(3) if self.rng.chance(1, 2) => Op::Truncate { path: WritersRecord::path(), size },
            Some(3) => Op::Ftruncate { fd, size },
            Some(4) => {
                let mode = [0, 1, 3, 3, 0x11][self.rng.below(5) as usize];
                Op::Fallocate { fd, mode, offset, length }
            }
            Some(5) => Op::Fsync { fd, data_only: self.rng.chance(1, 3) },
            Some(6) => {
                let direct = fd == self.direct;
                self.call(Op::Close { fd }).await?;
                let more = if self.mix.cuts > 0 && self.rng.chance(1, 3) { O_TRUNC } else { 0 };
                return self.open(direct, more).await;
            }
            _ => Op::Migrate { path: WritersRecord::path(), count: [1, 2, -1][self.rng.below(3) as usize], first: -1 },
        };
        self.call(op).await.map(drop)
    }
}
