//! What the tests of the embedded engine share.
#![allow(dead_code)] // each test takes what it needs

use engine::{LmdbEngine, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use store::{Batch, Engine, EngineError, Formats, Key, Value};

pub(crate) const DIR: &str = "ENGINE_TEST_DIRECTORY";

pub(crate) fn formats() -> Formats {
    Formats::new(|_| 1)
}

pub(crate) fn key(n: u64) -> Key {
    Key::table(1).u64(n)
}

pub(crate) fn number(body: &[u8]) -> u64 {
    u64::from_le_bytes(body[..8].try_into().expect("eight bytes"))
}

pub(crate) fn open(dir: &Path) -> Result<LmdbEngine, EngineError> {
    LmdbEngine::open(dir, OpenOptions { create: true, ..OpenOptions::default() })
}

/// Commits numbers (in bodies of 100 bytes) and deletions.
pub(crate) fn commit(
    engine: &LmdbEngine,
    group: u64,
    changes: impl IntoIterator<Item = (Key, Option<u64>)>,
) -> Result<(), EngineError> {
    let mut batch = Batch::new();
    for (key, value) in changes {
        match value {
            Some(n) => batch.put(key, Value::from([&n.to_le_bytes()[..], &[7; 92]].concat())),
            None => batch.delete(key),
        }
    }
    engine.commit(group, &batch.seal(&formats()))
}

pub(crate) fn get(engine: &LmdbEngine, key: &Key) -> Option<u64> {
    let sealed = engine.get(key).expect("an answer")?;
    Some(number(&formats().open(key, &sealed).expect("whole")))
}

/// This test program once more, as a process of its own that runs one ignored test.
pub(crate) struct Child {
    pub process: std::process::Child,
}

impl Child {
    pub(crate) fn start(test: &str, dir: &Path) -> Child {
        let program = std::env::current_exe().expect("this program");
        let process = Command::new(program)
            .args([test, "--exact", "--ignored", "--nocapture"])
            .env(DIR, dir)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a process");
        Child { process }
    }

    /// In the child: the directory to work in.
    pub(crate) fn dir() -> PathBuf {
        std::env::var_os(DIR).expect("a directory").into()
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("killed");
        self.process.wait().expect("gone");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A small file system of its own, for as long as it lives; `None`, with the reason printed, where that is impossible.
pub(crate) struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    pub(crate) fn mount(bytes: u64) -> Option<SmallDisk> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can mount a small file system");
            return None;
        }
        let disk = SmallDisk { dir: tempfile::tempdir().expect("a directory") };
        if disk.run("mount", &["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"]) {
            return Some(disk);
        }
        eprintln!("skipped: this machine does not let a tmpfs be mounted");
        None
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// From now on the path leads to a read-only mount of the same file system. (The file system itself can be made read-only
    /// only when nothing holds one of its files open for writing, and a process that another test starts at this moment
    /// holds our descriptors until it runs its program.)
    pub(crate) fn make_read_only(&self) {
        let path = self.path().to_str().expect("a plain path");
        assert!(self.run("mount", &["--bind", path]), "a second mount");
        assert!(self.run("mount", &["-o", "remount,bind,ro"]), "a read-only mount");
    }

    fn run(&self, program: &str, args: &[&str]) -> bool {
        Command::new(program).args(args).arg(self.path()).status().is_ok_and(|status| status.success())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Twice if a read-only mount is on top.
        while self.run("umount", &["-l", "-q"]) {}
    }
}
