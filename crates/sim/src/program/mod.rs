//! The programs: processes with a subtree of their own, and processes that share one.
//!
//! - [`private`]: random calls, strictly one after another, each through a randomly chosen client; every result is compared with
//!   the model. So coherence, exactly-once execution and errors are all checked against a sequential specification.
//! - [`shared`]: random concurrent calls in the same directories and files; the common history is checked at the end.
//! - [`aftermath`]: the losses that an evicted client reports to a process.
//! - [`locks`]: conflicting record locks and `flock` on one file.
//! - [`writers`]: writes and reads at different places of one file, through several clients concurrently.
//! - [`restripe`]: directories get other stripes while others work in them.
//! - [`configure`]: persistent parameters and pools, set and removed at the management target.
//! - [`crowd`]: one directory with many names, listed in parts while names are added and removed.
//! - [`verify`]: comparison of a tree with its model, call by call.
//! - [`synced`]: the bytes of files that are certain after syncs.
//! - [`history`]: the calls of a process, for the check after a crash that may have lost the last ones.

pub(crate) mod aftermath;
pub(crate) mod collide;
pub(crate) mod configure;
pub(crate) mod crowd;
pub(crate) mod draw;
pub(crate) mod history;
pub(crate) mod locks;
pub(crate) mod perform;
pub(crate) mod private;
pub(crate) mod restripe;
pub(crate) mod shared;
pub(crate) mod synced;
pub(crate) mod verify;
pub(crate) mod writers;

use core::cell::RefCell;
use core::time::Duration;
use std::rc::Rc;

use client::api::NewDir;
use proto::Bytes;
use proto::msg::{Cred, DirHash};
use stdx::Rng;

use crate::kernel::{Kernel, SysResult};
use crate::sched::Sched;

/// The clients that programs may use.
#[derive(Clone, Default)]
pub struct Mounts(Rc<RefCell<Vec<Kernel>>>);

impl Mounts {
    /// Adds a client.
    pub fn add(&self, kernel: Kernel) {
        self.0.borrow_mut().push(kernel);
    }

    /// The number of clients so far, dead ones included.
    pub fn count(&self) -> usize {
        self.0.borrow().len()
    }

    /// The living clients.
    pub fn living(&self) -> Vec<Kernel> {
        self.0.borrow().iter().filter(|kernel| !kernel.is_dead()).cloned().collect()
    }
}

/// The client that is mounted read-only, if there is one.
#[derive(Clone, Default)]
pub(crate) struct ReadOnlyMount(Rc<RefCell<Option<Kernel>>>);

impl ReadOnlyMount {
    /// Sets the client.
    pub(crate) fn set(&self, kernel: Kernel) {
        *self.0.borrow_mut() = Some(kernel);
    }

    /// The client, if it lives.
    pub(crate) fn living(&self) -> Option<Kernel> {
        self.0.borrow().clone().filter(|kernel| !kernel.is_dead())
    }
}

/// The environment of a program.
#[derive(Clone)]
pub(crate) struct ProgramEnv {
    /// The scheduler that runs it.
    pub sched: Sched,
    /// The clients.
    pub mounts: Mounts,
    /// The read-only client.
    pub read_only_mount: ReadOnlyMount,
}

/// Waits until all metadata targets are known, but not for long.
pub(crate) async fn all_mdts(sched: &Sched, mdts: u32) {
    let limit = sched.now() + ADDED_MAX;
    while sched.mdts() < mdts && sched.now() < limit {
        sched.sleep(Duration::from_millis(20)).await;
    }
}

/// Programs wait this long for metadata targets that are added.
const ADDED_MAX: Duration = Duration::from_secs(5);

/// Makes a program's directory, on any of several metadata targets.
pub(crate) async fn mkdir_anywhere(env: &ProgramEnv, kernel: &Kernel, base: &[Bytes], place: u64) -> SysResult<()> {
    match place % u64::from(env.sched.mdts()) {
        0 => kernel.mkdir(&root(), base, 0o755, false).await?.ino,
        mdt => kernel.mkdir_on(&root(), base, 0o755, &NewDir { mdts: vec![mdt as u32], hash: 0 }).await?,
    };
    Ok(())
}

/// Where a directory is made: on one metadata target, or in stripes on several, perhaps several on one.
pub(crate) fn draw_home(rng: &mut Rng, mdts: u32) -> NewDir {
    let stripes = if rng.chance(2, 5) { rng.range(2, 4) } else { 1 };
    let hash = [DirHash::AllChar, DirHash::Fnv1a64, DirHash::Crush, DirHash::Crush2][rng.below(4) as usize];
    let mdts = (0..stripes).map(|_| rng.below(mdts.into()) as u32).collect();
    NewDir { mdts, hash: if stripes > 1 { hash as i32 } else { 0 } }
}

/// Root with all capabilities.
pub(crate) fn root() -> Cred {
    Cred { capabilities: u64::MAX, ..Cred::default() }
}

/// An ordinary user.
pub(crate) fn user() -> Cred {
    Cred { uid: 1000, gid: 1000, groups: vec![2000], ..Cred::default() }
}

/// A name from a string.
pub(crate) fn name(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}
