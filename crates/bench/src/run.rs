//! What a run has around it: scratch space, progress, and the wish to stop.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::guardian::{self, Ward};

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Steps done.
    pub done: usize,
    /// Steps in all.
    pub all: usize,
    /// What comes now.
    pub what: &'a str,
}

/// A run: a scratch directory that goes with it, progress, and the wish to stop.
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

    /// A directory of the run's own.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn folder(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.scratch.join(name);
        std::fs::create_dir_all(&path).with_context(|| format!("cannot create '{}'", path.display()))?;
        Ok(path)
    }

    /// Tells how far it is; fails if the end was asked for.
    ///
    /// # Errors
    /// The end was asked for.
    pub fn step(&self, done: usize, all: usize, what: &str) -> anyhow::Result<()> {
        (self.say)(Progress { done, all, what });
        self.go_on()
    }

    /// Fails if the end was asked for.
    ///
    /// # Errors
    /// The end was asked for.
    pub fn go_on(&self) -> anyhow::Result<()> {
        if (self.is_stopped)() {
            bail!("stopped by a signal");
        }
        Ok(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Never into a mount that could not be taken away.
        if !fusewire::mounts().iter().any(|mount| mount.place.starts_with(&self.scratch)) {
            let _ = std::fs::remove_dir_all(&self.scratch);
        }
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
