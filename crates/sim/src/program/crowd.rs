//! One directory with many names, listed in parts while names are added and removed.
//!
//! POSIX leaves open only whether a listing shows a name that was added or removed meanwhile. Every other existing name is shown
//! once, and no other name is shown. No name is reused, so a name that is shown twice is always wrong.

use core::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use proto::Bytes;
use stdx::{Instant, Rng};

use super::{ProgramEnv, name, root};
use crate::kernel::{Kernel, SysResult};
use crate::model::S_IFREG;
use crate::plan::Plan;
use crate::sched::Fail;

/// The number of names that each changing process adds or removes.
const CHANGES: u64 = 60;
/// The number of listings of each listing process.
const LISTINGS: u64 = 5;
/// No moment of a run.
const NEVER: Instant = Instant(u64::MAX);

/// The lifetime of a name.
#[derive(Clone, Copy)]
struct Lifetime {
    /// When its creation was requested.
    requested: Instant,
    /// When it certainly existed.
    created_by: Instant,
    /// When its removal was requested.
    removal_requested: Instant,
    /// When it was certainly removed.
    removed_by: Instant,
}

/// The directory, and the lifetimes of its names.
#[derive(Clone)]
pub(crate) struct CrowdRecord {
    base: Vec<Bytes>,
    /// Selects the metadata target of the directory.
    place: u64,
    /// By number, which is also the name.
    lifetimes: Rc<RefCell<Vec<Lifetime>>>,
    /// Whether the directory has been filled.
    created: Rc<RefCell<bool>>,
}

/// Starts to fill the directory and returns its record.
pub(crate) fn start(env: &ProgramEnv, plan: &Plan, mut rng: Rng) -> CrowdRecord {
    let (base, place) = (vec![name("crowd")], Rng::new(plan.seed ^ 0xfa2d_1203).u64());
    let record = CrowdRecord { base, place, lifetimes: Rc::default(), created: Rc::default() };
    // Fewer names where each call is slow, or where the kernel stand-in scans all names for one to drop.
    let slow = plan.network.high_us > 1_000 || plan.forgetful > 0 || plan.disk_faults.fill_every.is_some();
    let count = if slow { 300 } else { [300, 1_000, 3_000][rng.below(3) as usize] };
    let (own, outer) = (record.clone(), env.clone());
    env.sched.spawn("the crowd", async move {
        if let Err(Fail::Errno(errno)) = own.fill(&outer, count, &mut rng).await {
            outer.sched.fail(format!("the crowd cannot be made: {}", errno.name()));
        }
        if !*own.created.borrow() {
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

fn some(env: &ProgramEnv, rng: &mut Rng) -> SysResult<Kernel> {
    rng.pick(&env.mounts.living()).cloned().ok_or(Fail::Dead)
}

impl CrowdRecord {
    fn path(&self, number: usize) -> Vec<Bytes> {
        self.base.iter().cloned().chain([name(&format!("{number}"))]).collect()
    }

    async fn fill(&self, env: &ProgramEnv, count: u64, rng: &mut Rng) -> SysResult<()> {
        let kernel = some(env, rng)?;
        super::mkdir_anywhere(env, &kernel, &self.base, self.place).await?;
        for _ in 0..count {
            self.make(env, &kernel).await?;
        }
        *self.created.borrow_mut() = true;
        Ok(())
    }

    async fn make(&self, env: &ProgramEnv, kernel: &Kernel) -> SysResult<()> {
        let requested = env.sched.now();
        let number = self.lifetimes.borrow().len();
        self.lifetimes.borrow_mut().push(Lifetime {
            requested,
            created_by: NEVER,
            removal_requested: NEVER,
            removed_by: NEVER,
        });
        kernel.mknod(&root(), &self.path(number), S_IFREG | 0o644, 0, false).await?;
        self.lifetimes.borrow_mut()[number].created_by = env.sched.now();
        Ok(())
    }

    async fn change(&self, env: &ProgramEnv, rng: &mut Rng) -> SysResult<()> {
        for _ in 0..CHANGES {
            let kernel = some(env, rng)?;
            if rng.chance(1, 2) {
                self.make(env, &kernel).await?;
                continue;
            }
            let number = rng.below(self.lifetimes.borrow().len() as u64) as usize;
            {
                let lifetime = &mut self.lifetimes.borrow_mut()[number];
                if lifetime.created_by == NEVER || lifetime.removal_requested != NEVER {
                    continue;
                }
                lifetime.removal_requested = env.sched.now();
            }
            kernel.remove(&root(), &self.path(number), false, rng.chance(1, 4)).await?;
            self.lifetimes.borrow_mut()[number].removed_by = env.sched.now();
        }
        Ok(())
    }

    async fn look(&self, env: &ProgramEnv, rng: &mut Rng) -> SysResult<()> {
        for _ in 0..LISTINGS {
            let kernel = some(env, rng)?;
            let (plus, bytes) = (rng.chance(1, 2), [1024, 4096, 64 << 10][rng.below(3) as usize]);
            self.list(env, &kernel, plus, bytes).await?;
        }
        Ok(())
    }

    async fn list(&self, env: &ProgramEnv, kernel: &Kernel, plus: bool, bytes: u32) -> SysResult<()> {
        let from = env.sched.now();
        let entries = kernel.list(&root(), &self.base, plus, bytes).await?;
        let shown: Vec<Bytes> = entries.into_iter().map(|entry| entry.name).collect();
        if let Some(what) = differs(&self.lifetimes.borrow(), from, env.sched.now(), &shown) {
            let client = kernel.client();
            env.sched.fail(format!("a listing of the crowd through client {client} from {from:?} {what}"));
        }
        Ok(())
    }

    /// The last listing, after all processes have ended.
    pub(crate) async fn observe(&self, env: &ProgramEnv, kernel: &Kernel) -> SysResult<()> {
        if *self.created.borrow() { self.list(env, kernel, false, 32 << 10).await } else { Ok(()) }
    }
}

/// What is wrong with a listing that took from `from` to `to`.
fn differs(lifetimes: &[Lifetime], from: Instant, to: Instant, shown: &[Bytes]) -> Option<String> {
    let mut seen = BTreeSet::new();
    for name in shown {
        let number = core::str::from_utf8(name).ok().and_then(|text| text.parse::<usize>().ok());
        let lifetime = number
            .and_then(|number| lifetimes.get(number))
            .filter(|lifetime| lifetime.requested <= to && lifetime.removed_by >= from);
        if lifetime.is_none() {
            return Some(format!("shows '{}', which did not exist", name.escape_ascii()));
        }
        if !seen.insert(number) {
            return Some(format!("shows '{}' twice", name.escape_ascii()));
        }
    }
    let there = |lifetime: &Lifetime| lifetime.created_by <= from && lifetime.removal_requested > to;
    let lacks = (0..lifetimes.len()).find(|number| there(&lifetimes[*number]) && !seen.contains(&Some(*number)));
    lacks.map(|number| format!("lacks '{number}', which was there all the time ({} names are shown)", shown.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_changed_meanwhile_are_open() {
        let lifetime = |requested, created_by, removal_requested, removed_by| Lifetime {
            requested: Instant(requested),
            created_by: Instant(created_by),
            removal_requested: Instant(removal_requested),
            removed_by: Instant(removed_by),
        };
        let (never, there) = (u64::MAX, lifetime(1, 2, u64::MAX, u64::MAX));
        let lifetimes = [
            there,
            lifetime(1, 12, never, never),
            lifetime(1, 2, 18, 30),
            lifetime(1, 2, 3, 4),
            lifetime(25, 26, never, never),
        ];
        let wrong = |shown: &[&str]| {
            let shown: Vec<Bytes> = shown.iter().map(|text| name(text)).collect();
            differs(&lifetimes, Instant(10), Instant(20), &shown).is_some()
        };
        assert!(!wrong(&["0"]) && !wrong(&["0", "1"]) && !wrong(&["2", "0"]) && !wrong(&["0", "2", "1"]));
        assert!(wrong(&["1", "2"]), "an existing name is missing");
        assert!(wrong(&["0", "3"]), "a removed name is shown");
        assert!(wrong(&["0", "4"]), "a later name is shown");
        assert!(wrong(&["0", "1", "0"]) && wrong(&["0", "x"]));
    }
}
