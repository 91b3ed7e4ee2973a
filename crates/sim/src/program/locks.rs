//! Processes that lock parts of one file against each other, with `fcntl` and `flock`. Some have two threads, each with its own
//! parts: such a process waits for one lock while it gets another, and a grant can close a cycle of waiting. A `flock` call
//! changes the mode by releasing the old lock first, and does not get it back on failure.
//!
//! The locks that a process certainly holds, from the reply until the next call that could release them, may never conflict with
//! those that another certainly holds. Only a lock that another process possibly holds, also during a call, justifies a refusal.
//! A waiting process gets its lock, or `EDEADLK`, in bounded time: an undetected deadlock ends the run as one that does not
//! finish. After the death of its client a process certainly holds nothing, and possibly holds its locks until the servers must
//! have given the client up. A living client that a server gives up, because its changes depend on those of a dead client, gets
//! `EIO` and certainly holds nothing either; the other processes are still judged.

use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::rc::Rc;

use client::api::{Answer, Call, RecordLock, RecordLockKind};
use proto::Errno;
use stdx::{Instant, Rng};

use super::{ProgramEnv, name, root};
use crate::kernel::{Fd, Kernel, OpenHow, SysResult};
use crate::plan::pick;
use crate::sched::Fail;

/// Parts of the file; a further one stands for `flock`.
const PARTS: usize = 8;
const FLOCK: usize = PARTS;
const HALF: usize = PARTS / 2;

/// The longest time for which a dead client may hold locks: until six pings are missed, or until a restarted target has waited
/// for it in its recovery.
const GIVEN_UP_MAX: Duration = Duration::from_secs(175 + 240);

/// A process's hold on one part.
#[derive(Clone, Copy, Debug)]
struct Hold {
    /// The strength that it certainly has, and since when: none 0, shared 1, exclusive 2.
    certain: (u8, Instant),
    /// The strength that it possibly has.
    possible: u8,
    /// By strength: when it was possible for the last time.
    until: [Instant; 3],
}

#[derive(Clone, Debug)]
struct Holder {
    client: usize,
    parts: [Hold; PARTS + 1],
    /// By thread: the lock that it waits for.
    waits: [Option<Wait>; 2],
}

/// A range of parts that a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Wait {
    from: usize,
    to: usize,
    strength: u8,
    /// The strength that its process possibly had on each part before.
    before: [u8; PARTS],
    /// Whether a cycle of waiting has included it since it started.
    in_cycle: bool,
}

type Table = Rc<RefCell<Vec<Holder>>>;

/// The mix of calls in a group.
#[derive(Clone, Copy)]
struct CallMix {
    /// Of 8 calls, how many are `flock`.
    flock: u64,
    /// Of 8 lock calls, how many wait.
    wait: u64,
    /// The number of parts in each half that are locked.
    width: usize,
    /// The number of calls of each process.
    calls: u64,
}

impl CallMix {
    fn draw(rng: &mut Rng) -> CallMix {
        CallMix {
            flock: pick(rng, &[(2, 1), (1, 6)]),
            wait: pick(rng, &[(1, 4), (1, 7)]),
            width: pick(rng, &[(1, 1), (1, 2), (2, HALF)]),
            calls: rng.range(5, 50),
        }
    }
}

/// A thread.
struct Process {
    mix: CallMix,
    env: ProgramEnv,
    kernel: Kernel,
    number: usize,
    thread: usize,
    /// Whether the process has two threads: then each has a half of the parts.
    two_threads: bool,
    rng: Rng,
    table: Table,
    fd: Fd,
    /// The number of threads of its process that have not ended.
    threads: Rc<Cell<u32>>,
}

/// Starts a group of processes.
pub(crate) fn start(env: &ProgramEnv, number: usize, mut rng: Rng) {
    let (outer, title) = (env.clone(), format!("lockers {number}"));
    let path = vec![name(&format!("l{number}"))];
    env.sched.spawn(title.clone(), async move {
        let table: Table = Rc::default();
        let (count, mix) = (rng.range(2, 4), CallMix::draw(&mut rng));
        for number in 0..count as usize {
            let Some(kernel) = rng.pick(&outer.mounts.living()).cloned() else { return };
            let how = OpenHow { flags: 0o102, mode: 0o644, blind: false };
            let fd = match kernel.open(&root(), &path, how).await {
                Ok(fd) => fd,
                Err(Fail::Dead | Fail::Killed(_)) => continue,
                Err(_) if outer.sched.was_evicted(kernel.client()) => continue,
                Err(Fail::Errno(errno)) => return outer.sched.fail(format!("{title}: open: {}", errno.name())),
            };
            let none = Hold { certain: (0, Instant::ZERO), possible: 0, until: [Instant::ZERO; 3] };
            let holder = Holder { client: kernel.client(), parts: [none; PARTS + 1], waits: [None; 2] };
            table.borrow_mut().push(holder);
            // Processes with two threads do not use `flock`.
            let two_threads = mix.flock < 2 && rng.chance(1, 2);
            let threads = Rc::new(Cell::new(if two_threads { 2 } else { 1 }));
            for thread in 0..threads.get() as usize {
                let mut process = Process {
                    mix,
                    two_threads,
                    env: outer.clone(),
                    kernel: kernel.clone(),
                    number: table.borrow().len() - 1,
                    thread,
                    rng: rng.fork(),
                    table: table.clone(),
                    fd: fd.clone(),
                    threads: threads.clone(),
                };
                outer.sched.spawn(format!("{title}, process {number}, thread {thread}"), async move {
                    // The death of a client is not a failure: the process ends with it.
                    let _ = process.live(mix.calls).await;
                });
            }
        }
    });
}

fn strength(kind: RecordLockKind) -> u8 {
    match kind {
        RecordLockKind::Unlock => 0,
        RecordLockKind::Shared => 1,
        RecordLockKind::Exclusive => 2,
    }
}

fn conflict(one: u8, other: u8) -> bool {
    one + other > 2
}

impl Process {
    async fn live(&mut self, calls: u64) -> SysResult<()> {
        for _ in 0..calls {
            if self.env.sched.has_failed() {
                return Ok(());
            }
            // The state of an evicted client's locks is unknown; the process releases what it may hold.
            if self.is_evicted() {
                break;
            }
            let pause = Duration::from_micros(self.rng.below(2_000));
            self.env.sched.sleep(pause).await;
            self.step().await?;
        }
        let own = if self.two_threads { self.thread * HALF..(self.thread + 1) * HALF } else { 0..PARTS };
        self.set(own.start, own.end - 1, RecordLockKind::Unlock, false).await?;
        self.threads.set(self.threads.get() - 1);
        if self.threads.get() > 0 {
            return Ok(());
        }
        self.set(FLOCK, FLOCK, RecordLockKind::Unlock, false).await?;
        self.kernel.close(&root(), &self.fd, self.owner()).await
    }

    fn owner(&self) -> u64 {
        1000 + self.number as u64
    }

    fn holds(&self, parts: core::ops::RangeInclusive<usize>) -> bool {
        self.table.borrow()[self.number].parts[parts].iter().any(|hold| hold.possible > 0)
    }

    async fn step(&mut self) -> SysResult<()> {
        let kind = [RecordLockKind::Shared, RecordLockKind::Exclusive][self.rng.below(2) as usize];
        let width = self.mix.width as u64;
        let half = if self.two_threads { self.thread as u64 } else { self.rng.below(2) };
        let from = half * HALF as u64 + self.rng.below(width);
        // Possibly across both halves.
        let last =
            if self.two_threads || self.rng.chance(1, 2) { half * HALF as u64 + width - 1 } else { PARTS as u64 - 1 };
        let (from, to) = (from as usize, self.rng.range(from, last) as usize);
        let wait = self.rng.chance(self.mix.wait, 8);
        // Deadlocks that involve `flock` are not detected: a process that holds one kind does not wait for the other.
        let either = wait && !self.holds(0..=PARTS - 1);
        if self.holds(FLOCK..=FLOCK) {
            return match self.rng.below(8) {
                0..4 => self.set(FLOCK, FLOCK, kind, either).await,
                _ => self.set(FLOCK, FLOCK, RecordLockKind::Unlock, false).await,
            };
        }
        if !self.two_threads && self.rng.chance(self.mix.flock, 8) {
            return self.set(FLOCK, FLOCK, kind, either).await;
        }
        match self.rng.below(7) {
            0 | 1 => self.set(from, to, RecordLockKind::Unlock, false).await,
            2 => self.test(from, to, kind).await,
            _ => self.set(from, to, kind, wait).await,
        }
    }

    async fn set(&mut self, from: usize, to: usize, kind: RecordLockKind, wait: bool) -> SysResult<()> {
        let begun = self.env.sched.now();
        let wanted = strength(kind);
        let old = self.table.borrow()[self.number].parts;
        {
            let mut table = self.table.borrow_mut();
            let mut before = [0; PARTS];
            before.iter_mut().zip(&old).for_each(|(before, old)| *before = old.possible);
            let begins = Wait { from, to, strength: wanted, before, in_cycle: false };
            // Cycles through `flock` are not detected.
            table[self.number].waits[self.thread] = (wait && from != FLOCK).then_some(begins);
            for hold in &mut table[self.number].parts[from..=to] {
                // A `flock` call that changes the mode releases the old lock first.
                let keeps = if from == FLOCK && hold.certain.0 != wanted { 0 } else { wanted };
                hold.certain.0 = hold.certain.0.min(keeps);
                hold.possible = hold.possible.max(wanted);
            }
            mark_cycles(&mut table);
        }
        let (start, end) = if from == FLOCK { (0, u64::MAX) } else { (from as u64 * 10, to as u64 * 10 + 9) };
        let lock = RecordLock { start, end, kind, pid: self.number as u32 };
        let call = Call::Setlk { fh: self.fd.fh, owner: self.owner(), lock, wait, flock: from == FLOCK };
        let what = format!("process {} thread {} {kind:?} {from} to {to}, wait {wait}", self.number, self.thread);
        self.env.sched.note(|| what.clone());
        let result = match kind {
            RecordLockKind::Unlock => self.kernel.plain(&root(), call).await,
            _ => self.kernel.with_signals().plain(&root(), call).await,
        };
        let now = self.env.sched.now();
        let errno = match result {
            Ok(_) => None,
            // Locks of a client that its server has given up are gone, whatever was granted before.
            Err(Fail::Errno(_)) if self.is_evicted() => {
                self.table.borrow_mut()[self.number].waits[self.thread] = None;
                return Ok(());
            }
            Err(Fail::Errno(errno)) => Some(errno),
            // It may hold the lock, and waits until its server gives it up.
            Err(fail) => return Err(fail),
        };
        let mut table = self.table.borrow_mut();
        let in_cycle = table[self.number].waits[self.thread].take().is_some_and(|wait| wait.in_cycle);
        for (hold, old) in table[self.number].parts.iter_mut().zip(old).take(to + 1).skip(from) {
            let is = match errno {
                None => wanted,
                Some(_) if from == FLOCK && old.possible != wanted => 0,
                Some(_) => old.possible,
            };
            hold.until[usize::from(hold.possible)] = now;
            hold.possible = is;
            hold.certain = (is, if is == old.certain.0 { old.certain.1 } else { now });
        }
        drop(table);
        let wrong = match errno {
            None => self
                .conflicting_process(from, to, wanted, |hold, dead| if dead { 0 } else { hold.certain.0 })
                .map(|other| format!("{what} was granted although process {other} holds it")),
            Some(Errno::EAGAIN) if !wait => {
                match self.conflicting_process(from, to, wanted, |hold, _| hold.possible_since(begun)) {
                    Some(_) => None,
                    None => Some(format!("{what} was refused although no process can hold it")),
                }
            }
            Some(Errno::EDEADLK) if wait && from != FLOCK => {
                (!in_cycle).then(|| format!("{what} got EDEADLK, but was in no cycle of waiting"))
            }
            // A signal: no lock was taken.
            Some(Errno::EINTR) if self.kernel.with_signals().was_interrupted(&Err::<(), _>(Errno::EINTR)) => None,
            Some(errno) => Some(format!("{what} failed with {}", errno.name())),
        };
        self.judge(wrong);
        Ok(())
    }

    async fn test(&mut self, from: usize, to: usize, kind: RecordLockKind) -> SysResult<()> {
        let begun = self.env.sched.now();
        let lock = RecordLock { start: from as u64 * 10, end: to as u64 * 10 + 9, kind, pid: self.number as u32 };
        let answer = self.kernel.plain(&root(), Call::Getlk { fh: self.fd.fh, owner: self.owner(), lock }).await?;
        let free = matches!(answer, Answer::Lock(RecordLock { kind: RecordLockKind::Unlock, .. }));
        let wanted = strength(kind);
        let certain = |hold: &Hold, dead: bool| if !dead && hold.certain.1 <= begun { hold.certain.0 } else { 0 };
        let possible = |hold: &Hold, _: bool| hold.possible_since(begun);
        let wrong = match free {
            true => self
                .conflicting_process(from, to, wanted, certain)
                .map(|other| format!("process {other} holds it, but the reply says that the range is free")),
            false if self.conflicting_process(from, to, wanted, possible).is_some() => None,
            false => Some(format!("{answer:?}, but no process can hold it")),
        };
        self.judge(wrong.map(|wrong| format!("process {} asked for {from} to {to}: {wrong}", self.number)));
        Ok(())
    }

    fn is_evicted(&self) -> bool {
        self.env.sched.was_evicted_or_given_up(self.kernel.client())
    }

    fn judge(&self, wrong: Option<String>) {
        if let Some(wrong) = wrong.filter(|_| !self.is_evicted()) {
            let sched = &self.env.sched;
            sched.fail(format!("locks: {wrong}; the table: {:?}", self.table.borrow()));
        }
    }

    /// Another process whose hold, evaluated by `of`, conflicts.
    fn conflicting_process(&self, from: usize, to: usize, wanted: u8, of: impl Fn(&Hold, bool) -> u8) -> Option<usize> {
        let table = self.table.borrow();
        table.iter().enumerate().find_map(|(number, holder)| {
            let sched = &self.env.sched;
            let gone = sched.died_at(holder.client).is_some_and(|at| sched.now().since(at) > GIVEN_UP_MAX);
            let dead = sched.is_dead(holder.client)
                || sched.is_retired(holder.client)
                || sched.was_evicted_or_given_up(holder.client);
            let conflicts =
                !gone && holder.parts[from..=to].iter().any(|hold| wanted > 0 && conflict(wanted, of(hold, dead)));
            (number != self.number && conflicts).then_some(number)
        })
    }
}

/// Marks the waits that are in a cycle now: a new cycle can only arise with a new request.
fn mark_cycles(table: &mut [Holder]) {
    for number in 0..table.len() {
        for thread in 0..table[number].waits.len() {
            if let Some(wait) = table[number].waits[thread]
                && !wait.in_cycle
                && is_deadlock(table, number, &wait)
            {
                table[number].waits[thread] = Some(Wait { in_cycle: true, ..wait });
            }
        }
    }
}

/// Whether a process with this wait may be in a cycle of waiting.
fn is_deadlock(table: &[Holder], number: usize, wait: &Wait) -> bool {
    let mut todo = vec![(number, *wait)];
    let mut seen = vec![[false; 2]; table.len()];
    while let Some((waiter, waiting)) = todo.pop() {
        for (other, holder) in table.iter().enumerate().filter(|(other, _)| *other != waiter) {
            // A process does not have the lock that it waits for.
            let keeps = |wait: &Wait| {
                (waiting.from..=waiting.to).any(|part| conflict(waiting.strength, wait.had(part, &holder.parts)))
            };
            if other == number && keeps(wait) {
                return true;
            }
            for (thread, next) in holder.waits.iter().enumerate() {
                if let Some(next) = next
                    && keeps(next)
                    && !core::mem::replace(&mut seen[other][thread], true)
                {
                    todo.push((other, *next));
                }
            }
        }
    }
    false
}

impl Wait {
    /// The strength that its process possibly has on a part while it waits.
    fn had(&self, part: usize, parts: &[Hold]) -> u8 {
        if (self.from..=self.to).contains(&part) { self.before[part] } else { parts[part].possible }
    }
}

impl Hold {
    /// The greatest strength that was possible at any time since `begun`.
    fn possible_since(&self, begun: Instant) -> u8 {
        let before = (0..3).rev().find(|strength| self.until[usize::from(*strength)] >= begun);
        self.possible.max(before.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A deadlock needs a cycle: it is not enough that one process waits while the refused one holds a lock.
    #[test]
    fn a_deadlock_is_a_cycle() {
        let none = Hold { certain: (0, Instant::ZERO), possible: 0, until: [Instant::ZERO; 3] };
        let wait = |part: usize, strength| Wait { from: part, to: part, strength, before: [0; PARTS], in_cycle: false };
        let holder = |part: usize, waits: Option<usize>| {
            let mut parts = [none; PARTS + 1];
            parts[part].possible = 2;
            Holder { client: 0, parts, waits: [waits.map(|part| wait(part, 2)), None] }
        };
        let circle = [holder(0, None), holder(1, Some(2)), holder(2, Some(0))];
        assert!(is_deadlock(&circle, 0, &wait(1, 2)), "0 wants 1, whose holder wants 2, whose holder wants 0");
        assert!(!is_deadlock(&circle, 0, &wait(3, 2)), "no process holds that");
        let line = [holder(0, None), holder(1, Some(2)), holder(2, None), holder(3, Some(0))];
        assert!(!is_deadlock(&line, 0, &wait(1, 2)), "the holder of 2 does not wait");
        let shared = [holder(0, None), holder(1, Some(0))];
        assert!(is_deadlock(&shared, 0, &wait(1, 1)) && !is_deadlock(&shared, 0, &wait(2, 2)));
    }

    /// Two processes that wait for the same part do not hold it.
    #[test]
    fn a_waiting_process_does_not_hold_the_part() {
        let none = Hold { certain: (0, Instant::ZERO), possible: 0, until: [Instant::ZERO; 3] };
        let wait = |from: usize| Wait { from, to: from, strength: 2, before: [0; PARTS], in_cycle: false };
        let waiter = |part: usize, thread: usize| {
            let mut holder = Holder { client: 0, parts: [none; PARTS + 1], waits: [None; 2] };
            holder.parts[part].possible = 2;
            holder.waits[thread] = Some(wait(part));
            holder
        };
        let mut table = [waiter(0, 0), waiter(0, 0)];
        mark_cycles(&mut table);
        assert!(table.iter().all(|holder| holder.waits[0].is_some_and(|wait| !wait.in_cycle)), "both wait for a third");
        // The second thread of the first process may have got the lock that the other process waits for.
        table[0].waits[0] = None;
        table[0].waits[1] = Some(wait(5));
        table[1].parts[5].possible = 2;
        mark_cycles(&mut table);
        assert!(
            table[0].waits[1].is_some_and(|wait| wait.in_cycle) && table[1].waits[0].is_some_and(|wait| wait.in_cycle)
        );
    }

    /// A reply may be late: everything that was possible since the request counts, not only the last state.
    #[test]
    fn earlier_possible_holds_count() {
        let mut hold = Hold { certain: (0, Instant::ZERO), possible: 0, until: [Instant::ZERO; 3] };
        (hold.until[2], hold.until[1]) = (Instant(20), Instant(30));
        assert_eq!(hold.possible_since(Instant(10)), 2);
        assert_eq!(hold.possible_since(Instant(25)), 1);
        assert_eq!(hold.possible_since(Instant(40)), 0);
    }
}
