//! Processes that lock parts of one file against each other, with `fcntl` and `flock`.
//!
//! What each certainly holds, from the answer to the next call that could end it, may never conflict with what another
//! certainly holds. What it possibly holds, while a call is under way too, is the only excuse for a refusal. Who waits
//! is granted, or told of a deadlock, in bounded time: a deadlock that nobody notices ends the run as one in which not
//! everything ends. A client that dies holds nothing for certain any more, and possibly until the servers must have given it up. A
//! client that a server gives up while it lives, because its changes hang on those of one that died, is told so (`EIO`), and holds
//! nothing for certain either; the others are judged on.

use core::cell::RefCell;
use core::time::Duration;
use std::rc::Rc;

use client::api::{Answer, Call, RecordLock, RecordLockKind};
use proto::Errno;
use stdx::{Instant, Rng};

use super::{Setting, name, root};
use crate::kernel::{Fd, Kernel, OpenHow, Sys};
use crate::sched::Fail;

/// Parts of the file that are locked; one more stands for `flock`.
const PARTS: usize = 8;
const FLOCK: usize = PARTS;

/// A client that died holds nothing any more after this: nothing is heard of it for six signs of life, or a target restarts and waits
/// for it until its recovery ends.
const GIVEN_UP_MAX: Duration = Duration::from_secs(175 + 240);

/// One process's hold on one part.
#[derive(Clone, Copy, Debug)]
struct Hold {
    /// Certainly this, since then: nothing 0, shared 1, exclusive 2.
    certain: (u8, Instant),
    /// Possibly this.
    possible: u8,
    /// When each strength was possible last.
    until: [Instant; 3],
}

#[derive(Clone, Debug)]
struct Holder {
    client: usize,
    parts: [Hold; PARTS + 1],
    /// The parts that it waits for, and how strong.
    waits: Option<(usize, usize, u8)>,
}

type Table = Rc<RefCell<Vec<Holder>>>;

struct Process {
    setting: Setting,
    kernel: Kernel,
    number: usize,
    rng: Rng,
    table: Table,
    fd: Fd,
}

/// Starts a few processes.
pub fn start(setting: &Setting, number: usize, mut rng: Rng) {
    let (outer, title) = (setting.clone(), format!("lockers {number}"));
    let path = vec![name(&format!("l{number}"))];
    setting.sched.spawn(title.clone(), async move {
        let table: Table = Rc::default();
        let count = rng.range(2, 4);
        for number in 0..count as usize {
            let Some(kernel) = rng.pick(&outer.mounts.living()).cloned() else { return };
            let how = OpenHow { flags: 0o102, mode: 0o644, blind: false };
            let fd = match kernel.open(&root(), &path, how).await {
                Ok(fd) => fd,
                Err(Fail::Dead | Fail::Killed) => continue,
                Err(_) if outer.sched.was_evicted(kernel.client()) => continue,
                Err(Fail::Errno(errno)) => return outer.sched.fail(format!("{title}: open: {}", errno.name())),
            };
            let none = Hold { certain: (0, Instant::ZERO), possible: 0, until: [Instant::ZERO; 3] };
            let holder = Holder { client: kernel.client(), parts: [none; PARTS + 1], waits: None };
            table.borrow_mut().push(holder);
            let mut process = Process {
                setting: outer.clone(),
                kernel,
                number: table.borrow().len() - 1,
                rng: rng.fork(),
                table: table.clone(),
                fd,
            };
            let calls = rng.range(5, 30);
            outer.sched.spawn(format!("{title}, process {number}"), async move {
                // A client that died is no failure: the process ends with it.
                let _ = process.live(calls).await;
            });
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
    async fn live(&mut self, calls: u64) -> Sys<()> {
        for _ in 0..calls {
            if self.setting.sched.has_failed() {
                return Ok(());
            }
            // Of an evicted client nothing is known any more; what it holds it gives back.
            if self.is_evicted() {
                break;
            }
            let pause = Duration::from_micros(self.rng.below(2_000));
            self.setting.sched.sleep(pause).await;
            self.step().await?;
        }
        self.set(0, PARTS - 1, RecordLockKind::Unlock, false).await?;
        self.set(FLOCK, FLOCK, RecordLockKind::Unlock, false).await?;
        self.kernel.close(&root(), &self.fd, self.owner()).await
    }

    fn owner(&self) -> u64 {
        1000 + self.number as u64
    }

    fn holds(&self, parts: core::ops::RangeInclusive<usize>) -> bool {
        self.table.borrow()[self.number].parts[parts].iter().any(|hold| hold.possible > 0)
    }

    async fn step(&mut self) -> Sys<()> {
        let kind = [RecordLockKind::Shared, RecordLockKind::Exclusive][self.rng.below(2) as usize];
        let from = self.rng.below(PARTS as u64) as usize;
        let to = self.rng.range(from as u64, PARTS as u64 - 1) as usize;
        let wait = self.rng.chance(1, 2);
        // Nobody looks for deadlocks in which `flock` takes part: who holds one kind does not wait for the other.
        match self.rng.below(8) {
            _ if self.holds(FLOCK..=FLOCK) => self.set(FLOCK, FLOCK, RecordLockKind::Unlock, false).await,
            0 => self.set(FLOCK, FLOCK, kind, wait && !self.holds(0..=PARTS - 1)).await,
            1 | 2 => self.set(from, to, RecordLockKind::Unlock, false).await,
            3 => self.test(from, to, kind).await,
            _ => self.set(from, to, kind, wait).await,
        }
    }

    async fn set(&mut self, from: usize, to: usize, kind: RecordLockKind, wait: bool) -> Sys<()> {
        let begun = self.setting.sched.now();
        let wanted = strength(kind);
        let old = self.table.borrow()[self.number].parts;
        {
            let mut table = self.table.borrow_mut();
            table[self.number].waits = wait.then_some((from, to, wanted));
            for hold in &mut table[self.number].parts[from..=to] {
                hold.certain.0 = hold.certain.0.min(wanted);
                hold.possible = hold.possible.max(wanted);
            }
        }
        let (start, end) = if from == FLOCK { (0, u64::MAX) } else { (from as u64 * 10, to as u64 * 10 + 9) };
        let lock = RecordLock { start, end, kind, pid: self.number as u32 };
        let call = Call::Setlk { fh: self.fd.fh, owner: self.owner(), lock, wait, flock: from == FLOCK };
        let what = format!("process {} {kind:?} {from} to {to}, wait {wait}", self.number);
        self.setting.sched.note(|| what.clone());
        let result = match kind {
            RecordLockKind::Unlock => self.kernel.plain(&root(), call).await,
            _ => self.kernel.with_signals().plain(&root(), call).await,
        };
        let now = self.setting.sched.now();
        let errno = match result {
            Ok(_) => None,
            // What its server gave up it has no longer, whatever it was told before.
            Err(Fail::Errno(_)) if self.is_evicted() => {
                self.table.borrow_mut()[self.number].waits = None;
                return Ok(());
            }
            Err(Fail::Errno(errno)) => Some(errno),
            // It holds what it may hold, for all that anybody knows, and waits until its server gives it up.
            Err(fail) => return Err(fail),
        };
        let mut table = self.table.borrow_mut();
        table[self.number].waits = None;
        for (hold, old) in table[self.number].parts.iter_mut().zip(old).take(to + 1).skip(from) {
            let is = if errno.is_none() { wanted } else { old.possible };
            hold.until[usize::from(hold.possible)] = now;
            hold.possible = is;
            hold.certain = (is, if is == old.certain.0 { old.certain.1 } else { now });
        }
        drop(table);
        let wrong = match errno {
            None => self
                .excuse(from, to, wanted, |hold, dead| if dead { 0 } else { hold.certain.0 })
                .map(|other| format!("{what} was granted although process {other} has it")),
            Some(Errno::EAGAIN) if !wait => match self.excuse(from, to, wanted, |hold, _| hold.possible_since(begun)) {
                Some(_) => None,
                None => Some(format!("{what} was refused although nobody can have it")),
            },
            Some(Errno::EDEADLK) if wait && from != FLOCK => {
                let sound = is_deadlock(&self.table.borrow(), self.number, (from, to, wanted));
                (!sound).then(|| format!("{what} was called a deadlock, but no circle of waiting leads back to it"))
            }
            // A signal: it was not locked.
            Some(Errno::EINTR) if self.kernel.with_signals().was_interrupted(&Err::<(), _>(Errno::EINTR)) => None,
            Some(errno) => Some(format!("{what} failed with {}", errno.name())),
        };
        self.judge(wrong);
        Ok(())
    }

    async fn test(&mut self, from: usize, to: usize, kind: RecordLockKind) -> Sys<()> {
        let begun = self.setting.sched.now();
        let lock = RecordLock { start: from as u64 * 10, end: to as u64 * 10 + 9, kind, pid: self.number as u32 };
        let answer = self.kernel.plain(&root(), Call::Getlk { fh: self.fd.fh, owner: self.owner(), lock }).await?;
        let free = matches!(answer, Answer::Lock(RecordLock { kind: RecordLockKind::Unlock, .. }));
        let wanted = strength(kind);
        let certain = |hold: &Hold, dead: bool| if !dead && hold.certain.1 <= begun { hold.certain.0 } else { 0 };
        let possible = |hold: &Hold, _: bool| hold.possible_since(begun);
        let wrong = match free {
            true => self.excuse(from, to, wanted, certain).map(|other| format!("process {other} has it, unseen")),
            false if self.excuse(from, to, wanted, possible).is_some() => None,
            false => Some(format!("{answer:?}, but nobody can have it")),
        };
        self.judge(wrong.map(|wrong| format!("process {} asked for {from} to {to}: {wrong}", self.number)));
        Ok(())
    }

    fn is_evicted(&self) -> bool {
        self.setting.sched.was_evicted_or_given_up(self.kernel.client())
    }

    fn judge(&self, wrong: Option<String>) {
        if let Some(wrong) = wrong.filter(|_| !self.is_evicted()) {
            let sched = &self.setting.sched;
            sched.fail(format!("locks: {wrong}; the table: {:?}", self.table.borrow()));
        }
    }

    /// Another process whose hold, as `of` sees it, conflicts.
    fn excuse(&self, from: usize, to: usize, wanted: u8, of: impl Fn(&Hold, bool) -> u8) -> Option<usize> {
        let table = self.table.borrow();
        table.iter().enumerate().find_map(|(number, holder)| {
            let sched = &self.setting.sched;
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

/// Whether a process that wants these parts may wait for one that waits, over others perhaps, for it.
fn is_deadlock(table: &[Holder], number: usize, wanted: (usize, usize, u8)) -> bool {
    let mut todo = vec![(number, wanted)];
    let mut seen = vec![false; table.len()];
    while let Some((waiter, (from, to, strength))) = todo.pop() {
        for (other, holder) in table.iter().enumerate().filter(|(other, _)| *other != waiter) {
            let keeps = holder.parts[from..=to].iter().any(|hold| conflict(strength, hold.possible));
            if keeps && other == number {
                return true;
            }
            if let Some(waits) = holder.waits.filter(|_| keeps && !core::mem::replace(&mut seen[other], true)) {
                todo.push((other, waits));
            }
        }
    }
    false
}

impl Hold {
    /// The most that was possible at any time since then.
    fn possible_since(&self, begun: Instant) -> u8 {
        let before = (0..3).rev().find(|strength| self.until[usize::from(*strength)] >= begun);
        self.possible.max(before.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A deadlock is a circle: that somebody waits, and the one who is refused holds something, is none.
    #[test]
    fn a_deadlock_is_a_circle() {
        let none = Hold { certain: (0, Instant::ZERO), possible: 0, until: [Instant::ZERO; 3] };
        let holder = |part: usize, waits: Option<usize>| {
            let mut parts = [none; PARTS + 1];
            parts[part].possible = 2;
            Holder { client: 0, parts, waits: waits.map(|part| (part, part, 2)) }
        };
        let circle = [holder(0, None), holder(1, Some(2)), holder(2, Some(0))];
        assert!(is_deadlock(&circle, 0, (1, 1, 2)), "0 wants 1, whose holder wants 2, whose holder wants 0");
        assert!(!is_deadlock(&circle, 0, (3, 3, 2)), "nobody has that");
        let line = [holder(0, None), holder(1, Some(2)), holder(2, None), holder(3, Some(0))];
        assert!(!is_deadlock(&line, 0, (1, 1, 2)), "who has 2 waits for nobody");
        let shared = [holder(0, None), holder(1, Some(0))];
        assert!(is_deadlock(&shared, 0, (1, 1, 1)) && !is_deadlock(&shared, 0, (2, 2, 2)));
    }

    /// An answer may be late: what was possible at any time since the question counts, not only what was possible last.
    #[test]
    fn what_was_possible_is_remembered() {
        let mut hold = Hold { certain: (0, Instant::ZERO), possible: 0, until: [Instant::ZERO; 3] };
        (hold.until[2], hold.until[1]) = (Instant(20), Instant(30));
        assert_eq!(hold.possible_since(Instant(10)), 2);
        assert_eq!(hold.possible_since(Instant(25)), 1);
        assert_eq!(hold.possible_since(Instant(40)), 0);
    }
}
