//! One directory with many names, listed in parts while names are added and removed.
//!
//! POSIX leaves open only whether a listing shows a name that was added or removed meanwhile. Every other existing name is shown
//! once, and no other name is shown. No name is reused, so a name that is shown twice is always wrong.

use core::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use proto::Bytes;
use stdx::{Instant, Rng};

use super::{Setting, name, root};
use crate::kernel::{Kernel, Sys};
use crate::model::S_IFREG;
use crate::plan::Plan;
use crate::sched::Fail;

/// The number of names that each changing process adds or removes.
const CHANGES: u64 = 60;
/// The number of listings of each listing process.
const LOOKS: u64 = 5;
/// No moment of a run.
const NEVER: Instant = Instant(u64::MAX);

/// The lifetime of a name.
#[derive(Clone, Copy)]
struct Life {
    /// When its creation was requested.
    asked: Instant,
    /// When it certainly existed.
    made: Instant,
    /// When its removal was requested.
    doomed: Instant,
    /// When it was certainly removed.
    gone: Instant,
}

/// The directory, and the lifetimes of its names.
#[derive(Clone)]
pub(crate) struct Record {
    base: Vec<Bytes>,
    /// By number, which is also the name.
    lives: Rc<RefCell<Vec<Life>>>,
    /// Whether the directory has been filled.
    begun: Rc<RefCell<bool>>,
}

/// Starts to fill the directory and returns its record.
pub(crate) fn start(setting: &Setting, plan: &Plan, mut rng: Rng) -> Record {
    let record = Record { base: vec![name("crowd")], lives: Rc::default(), begun: Rc::default() };
    // Fewer names where each call is slow, or where the kernel stand-in scans all names for one to drop.
    let slow = plan.network.high_us > 1_000 || plan.forgetful > 0 || plan.disk_faults.fill_every.is_some();
    let count = if slow { 300 } else { [300, 1_000, 3_000][rng.below(3) as usize] };
    let (own, outer) = (record.clone(), setting.clone());
    setting.sched.spawn("the crowd", async move {
        if let Err(Fail::Errno(errno)) = own.fill(&outer, count, &mut rng).await {
            outer.sched.fail(format!("the crowd cannot be made: {}", errno.name()));
        }
        if !*own.begun.borrow() {
            return;
        }
        for process in 0..4 {
            let (own, outer, mut rng) = (own.clone(), outer.clone(), rng.fork());
            outer.sched.clone().spawn(format!("the crowd, process {process}"), async move {
                let ended = match process {
                    0 | 1 => own.change(&outer, &mut rng).await,
                    _ => own.look(&outer, &mut rng).await,
                };
                if let Err(Fail::Errno(errno)) = ended {
                    outer.sched.fail(format!("process {process} of the crowd met {}", errno.name()));
                }
            });
        }
    });
    record
}

fn some(setting: &Setting, rng: &mut Rng) -> Sys<Kernel> {
    rng.pick(&setting.mounts.living()).cloned().ok_or(Fail::Dead)
}

impl Record {
    fn path(&self, number: usize) -> Vec<Bytes> {
        self.base.iter().cloned().chain([name(&format!("{number}"))]).collect()
    }

    async fn fill(&self, setting: &Setting, count: u64, rng: &mut Rng) -> Sys<()> {
        let kernel = some(setting, rng)?;
        kernel.mkdir(&root(), &self.base, 0o755, false).await?;
        for _ in 0..count {
            self.make(setting, &kernel).await?;
        }
        *self.begun.borrow_mut() = true;
        Ok(())
    }

    async fn make(&self, setting: &Setting, kernel: &Kernel) -> Sys<()> {
        let asked = setting.sched.now();
        let number = self.lives.borrow().len();
        self.lives.borrow_mut().push(Life { asked, made: NEVER, doomed: NEVER, gone: NEVER });
        kernel.mknod(&root(), &self.path(number), S_IFREG | 0o644, 0, false).await?;
        self.lives.borrow_mut()[number].made = setting.sched.now();
        Ok(())
    }

    async fn change(&self, setting: &Setting, rng: &mut Rng) -> Sys<()> {
        for _ in 0..CHANGES {
            let kernel = some(setting, rng)?;
            if rng.chance(1, 2) {
                self.make(setting, &kernel).await?;
                continue;
            }
            let number = rng.below(self.lives.borrow().len() as u64) as usize;
            {
                let life = &mut self.lives.borrow_mut()[number];
                if life.made == NEVER || life.doomed != NEVER {
                    continue;
                }
                life.doomed = setting.sched.now();
            }
            kernel.remove(&root(), &self.path(number), false, rng.chance(1, 4)).await?;
            self.lives.borrow_mut()[number].gone = setting.sched.now();
        }
        Ok(())
    }

    async fn look(&self, setting: &Setting, rng: &mut Rng) -> Sys<()> {
        for _ in 0..LOOKS {
            let kernel = some(setting, rng)?;
            let (plus, bytes) = (rng.chance(1, 2), [1024, 4096, 64 << 10][rng.below(3) as usize]);
            self.list(setting, &kernel, plus, bytes).await?;
        }
        Ok(())
    }

    async fn list(&self, setting: &Setting, kernel: &Kernel, plus: bool, bytes: u32) -> Sys<()> {
        let from = setting.sched.now();
        let entries = kernel.list(&root(), &self.base, plus, bytes).await?;
        let shown: Vec<Bytes> = entries.into_iter().map(|entry| entry.name).collect();
        if let Some(what) = differs(&self.lives.borrow(), from, setting.sched.now(), &shown) {
            let client = kernel.client();
            setting.sched.fail(format!("a listing of the crowd through client {client} from {from:?} {what}"));
        }
        Ok(())
    }

    /// The last listing, after all processes have ended.
    pub(crate) async fn observe(&self, setting: &Setting, kernel: &Kernel) -> Sys<()> {
        if *self.begun.borrow() { self.list(setting, kernel, false, 32 << 10).await } else { Ok(()) }
    }
}

/// What is wrong with a listing that took from `from` to `to`.
fn differs(lives: &[Life], from: Instant, to: Instant, shown: &[Bytes]) -> Option<String> {
    let mut seen = BTreeSet::new();
    for name in shown {
        let number = core::str::from_utf8(name).ok().and_then(|text| text.parse::<usize>().ok());
        let life = number.and_then(|number| lives.get(number)).filter(|life| life.asked <= to && life.gone >= from);
        if life.is_none() {
            return Some(format!("shows '{}', which did not exist", name.escape_ascii()));
        }
        if !seen.insert(number) {
            return Some(format!("shows '{}' twice", name.escape_ascii()));
        }
    }
    let there = |life: &Life| life.made <= from && life.doomed > to;
    let lacks = (0..lives.len()).find(|number| there(&lives[*number]) && !seen.contains(&Some(*number)));
    lacks.map(|number| format!("lacks '{number}', which was there all the time ({} names are shown)", shown.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_came_or_went_meanwhile_is_open() {
        let life = |asked, made, doomed, gone| Life {
            asked: Instant(asked),
            made: Instant(made),
            doomed: Instant(doomed),
            gone: Instant(gone),
        };
        let (never, there) = (u64::MAX, life(1, 2, u64::MAX, u64::MAX));
        let lives =
            [there, life(1, 12, never, never), life(1, 2, 18, 30), life(1, 2, 3, 4), life(25, 26, never, never)];
        let wrong = |shown: &[&str]| {
            let shown: Vec<Bytes> = shown.iter().map(|text| name(text)).collect();
            differs(&lives, Instant(10), Instant(20), &shown).is_some()
        };
        assert!(!wrong(&["0"]) && !wrong(&["0", "1"]) && !wrong(&["2", "0"]) && !wrong(&["0", "2", "1"]));
        assert!(wrong(&["1", "2"]), "an existing name is missing");
        assert!(wrong(&["0", "3"]), "a removed name is shown");
        assert!(wrong(&["0", "4"]), "a later name is shown");
        assert!(wrong(&["0", "1", "0"]) && wrong(&["0", "x"]));
    }
}
