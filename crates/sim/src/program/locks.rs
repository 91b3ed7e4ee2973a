//! Processes that lock parts of one file against each other, with `fcntl` and `flock`.
//!
//! What each certainly holds, from the answer to the next call that could end it, may never conflict with what another
//! certainly holds. What it possibly holds, while a call is under way too, is the only excuse for a refusal. Who waits
//! is granted, or told of a deadlock, in bounded time: a deadlock that nobody notices ends the run as one in which not
//! everything ends. A client that dies holds nothing for certain any more, and possibly until the end. A client that a server
//! gives up, because its changes hang on those of one that died, is told so (`EIO`): then nothing is judged any more.

use core::cell::{Cell, RefCell};
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
    /// It waits for a lock.
    waits: bool,
}

type Table = Rc<RefCell<Vec<Holder>>>;

struct Process {
    setting: Setting,
    kernel: Kernel,
    number: usize,
    rng: Rng,
    table: Table,
    /// A client was given up with its locks, because others died: nothing is certain any more.
    over: Rc<Cell<bool>>,
    fd: Fd,
}

/// Starts a few processes.
pub fn start(setting: &Setting, number: usize, mut rng: Rng) {
    let (outer, title) = (setting.clone(), format!("lockers {number}"));
    let path = vec![name(&format!("l{number}"))];
    setting.sched.spawn(title.clone(), async move {
        let table: Table = Rc::default();
        let over: Rc<Cell<bool>> = Rc::default();
        let count = rng.range(2, 4);
        for number in 0..count as usize {
            let Some(kernel) = rng.pick(&outer.mounts.living()).cloned() else { return };
            let how = OpenHow { flags: 0o102, mode: 0o644, blind: false };
            let fd = match kernel.open(&root(), &path, how).await {
                Ok(fd) => fd,
                Err(Fail::Dead | Fail::Killed) => continue,
                Err(Fail::Errno(errno)) => return outer.sched.fail(format!("{title}: open: {}", errno.name())),
            };
            let none = Hold { certain: (0, Instant::ZERO), possible: 0, until: [Instant::ZERO; 3] };
            let holder = Holder { client: kernel.client(), parts: [none; PARTS + 1], waits: false };
            table.borrow_mut().push(holder);
            let mut process = Process {
                setting: outer.clone(),
                kernel,
                number: table.borrow().len() - 1,
                rng: rng.fork(),
                table: table.clone(),
                over: over.clone(),
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
            if self.setting.sched.has_failed() || self.over.get() {
                return Ok(());
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
            table[self.number].waits = wait;
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
            Err(Fail::Errno(Errno::EIO)) if self.setting.sched.first_death().is_some() => {
                self.over.set(true);
                return Ok(());
            }
            Err(Fail::Errno(errno)) => Some(errno),
            // It holds what it may hold, for all that anybody knows, and waits until its server gives it up.
            Err(fail) => return Err(fail),
        };
        let mut table = self.table.borrow_mut();
        table[self.number].waits = false;
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
                let others = self.table.borrow().iter().filter(|holder| holder.waits).count();
                let sound = self.holds(0..=PARTS - 1) && others > 0;
                (!sound).then(|| format!("{what} was called a deadlock, but nobody waits for it"))
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

    fn judge(&self, wrong: Option<String>) {
        if let Some(wrong) = wrong.filter(|_| !self.over.get()) {
            let sched = &self.setting.sched;
            sched.fail(format!("locks: {wrong}; the table: {:?}", self.table.borrow()));
        }
    }

    /// Another process whose hold, as `of` sees it, conflicts.
    fn excuse(&self, from: usize, to: usize, wanted: u8, of: impl Fn(&Hold, bool) -> u8) -> Option<usize> {
        let table = self.table.borrow();
        table.iter().enumerate().find_map(|(number, holder)| {
            let dead = self.setting.sched.is_dead(holder.client);
            let conflicts = holder.parts[from..=to].iter().any(|hold| wanted > 0 && conflict(wanted, of(hold, dead)));
            (number != self.number && conflicts).then_some(number)
        })
    }
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
