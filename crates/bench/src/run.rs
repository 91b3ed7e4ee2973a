//! The environment of a run: scratch space, progress, and stopping early.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::cluster;
use crate::guardian::{self, Ward};

/// The progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The number of steps done.
    pub done: usize,
    /// The number of all steps.
    pub all: usize,
    /// The step that starts now.
    pub what: &'a str,
}

/// A run: progress, the check whether to stop, and a scratch directory, which is removed when this is dropped.
pub struct Run {
    scratch: PathBuf,
    is_stopped: fn() -> bool,
    say: Box<dyn Fn(Progress<'_>)>,
}

impl Run {
    /// A run below `parent`, which ends when `is_stopped` says so ([`crate::stop::requested`]).
    ///
    /// # Errors
    /// The scratch directory cannot be made.
    pub fn new(parent: &Path, is_stopped: fn() -> bool, say: impl Fn(Progress<'_>) + 'static) -> anyhow::Result<Run> {
        let scratch = parent.join(format!("adamant-bench-{}", std::process::id()));
        std::fs::create_dir_all(&scratch).with_context(|| format!("cannot create '{}'", scratch.display()))?;
        let scratch = std::fs::canonicalize(scratch)?;
        guardian::watch(&Ward::Folder(scratch.clone()));
        Ok(Run { scratch, is_stopped, say: Box::new(say) })
    }

    /// Makes a directory in the scratch space.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn folder(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.scratch.join(name);
        std::fs::create_dir_all(&path).with_context(|| format!("cannot create '{}'", path.display()))?;
        Ok(path)
    }

    /// Reports the progress; fails if the run is to stop.
    ///
    /// # Errors
    /// The run is to stop.
    pub fn step(&self, done: usize, all: usize, what: &str) -> anyhow::Result<()> {
        (self.say)(Progress { done, all, what });
        self.go_on()
    }

    /// Fails if the run is to stop.
    ///
    /// # Errors
    /// The run is to stop.
    pub fn go_on(&self) -> anyhow::Result<()> {
        if (self.is_stopped)() {
            bail!("stopped by a signal");
        }
        Ok(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        cluster::remove_unless_mounted(&self.scratch);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_run_that_is_asked_to_stop_does_not_go_on_and_leaves_nothing() {
        static STOPPED: AtomicBool = AtomicBool::new(false);
        let parent = tempfile::tempdir().unwrap();
        let run = Run::new(parent.path(), || STOPPED.load(Ordering::Relaxed), |_| ()).unwrap();
        std::fs::write(run.folder("x").unwrap().join("y"), "z").unwrap();
        run.step(0, 1, "first").unwrap();
        STOPPED.store(true, Ordering::Relaxed);
        assert!(run.step(1, 1, "second").unwrap_err().to_string().contains("stopped"));
        drop(run);
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
