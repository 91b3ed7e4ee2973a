//! What programs do: processes with a subtree of their own, and processes that share one.
//!
//! - [`private`]: calls at random, strictly one after another, each through a client that chance picks; every result is
//!   compared with the model. So coherence, exactly-once and errors are all measured against a sequential specification.
//! - [`shared`]: calls at random in the same directories and files at once; the history of all is checked when all have
//!   ended.
//! - [`aftermath`]: what a process is told by a client that was evicted with its work.
//! - [`locks`]: record locks and `flock` on one file, against each other.
//! - [`writers`]: writes and reads at different places of one file, from several clients at once.
//! - [`configure`]: persistent parameters and pools, set and removed at the management target.
//! - [`crowd`]: one directory with many names, listed in pieces while names come and go.
//! - [`verify`]: a tree against its model, call by call.
//! - [`synced`]: what syncs have made certain of the bytes of files.
//! - [`history`]: what a process did, for the check after a crash that may lose the end of it.

pub(crate) mod aftermath;
pub(crate) mod collide;
pub(crate) mod configure;
pub(crate) mod crowd;
pub(crate) mod draw;
pub(crate) mod history;
pub(crate) mod locks;
pub(crate) mod perform;
pub(crate) mod private;
pub(crate) mod shared;
pub(crate) mod synced;
pub(crate) mod verify;
pub(crate) mod writers;

use core::cell::RefCell;
use std::rc::Rc;

use proto::Bytes;
use proto::msg::Cred;

use crate::kernel::Kernel;
use crate::sched::Sched;

/// The clients that programs may use.
#[derive(Clone, Default)]
pub struct Mounts(Rc<RefCell<Vec<Kernel>>>);

impl Mounts {
    /// A further one.
    pub fn add(&self, kernel: Kernel) {
        self.0.borrow_mut().push(kernel);
    }

    /// How many have come.
    pub fn count(&self) -> usize {
        self.0.borrow().len()
    }

    /// Those that live.
    pub fn living(&self) -> Vec<Kernel> {
        self.0.borrow().iter().filter(|kernel| !kernel.is_dead()).cloned().collect()
    }
}

/// A client that is mounted read-only, if there is one.
#[derive(Clone, Default)]
pub(crate) struct Watcher(Rc<RefCell<Option<Kernel>>>);

impl Watcher {
    /// That is it.
    pub(crate) fn set(&self, kernel: Kernel) {
        *self.0.borrow_mut() = Some(kernel);
    }

    /// If it lives.
    pub(crate) fn living(&self) -> Option<Kernel> {
        self.0.borrow().clone().filter(|kernel| !kernel.is_dead())
    }
}

/// What every program has.
#[derive(Clone)]
pub(crate) struct Setting {
    /// Where it runs.
    pub sched: Sched,
    /// The clients.
    pub mounts: Mounts,
    /// One more.
    pub watcher: Watcher,
}

/// The superuser, with all its rights.
pub(crate) fn root() -> Cred {
    Cred { capabilities: u64::MAX, ..Cred::default() }
}

/// A user.
pub(crate) fn user() -> Cred {
    Cred { uid: 1000, gid: 1000, groups: vec![2000], ..Cred::default() }
}

/// A name.
pub(crate) fn name(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}
