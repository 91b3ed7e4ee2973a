//! Faults on purpose in a running file system: sites set by `lctl`, a read-only medium, requests in flight.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{Cluster, Outcome, Shape, Which, adamant, command};

/// `fail_loc`: at most one hit.
pub const ONCE: u32 = 0x8000_0000;
/// `fail_loc`: the site was hit.
pub const FAILED: u32 = 0x4000_0000;

/// The time limit of waits for events that take milliseconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(8);

/// Waits until a condition holds.
#[track_caller]
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}: not so after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// chmod(1).
#[track_caller]
pub fn chmod(mode: u32, file: &Path) {
    command("chmod").arg(format!("{mode:04o}")).arg(file).ok();
}

/// Waits for processes that change modes, and checks that they succeeded.
#[track_caller]
pub fn finish_chmods(processes: Vec<JoinHandle<()>>, to: u32, files: &[PathBuf]) {
    for process in processes {
        process.join().expect("chmod succeeds");
    }
    for file in files {
        assert_eq!(mode(file), to, "{}", file.display());
    }
}

/// Starts chmod(1) without waiting for it.
pub fn begin_chmod(mode: u32, file: PathBuf) -> JoinHandle<()> {
    std::thread::spawn(move || chmod(mode, &file))
}

/// The permissions of a file.
#[track_caller]
pub fn mode(file: &Path) -> u32 {
    std::fs::metadata(file).expect("it is there").permissions().mode() & 0o7777
}

/// How a mount makes changes. The cases by Lustre's numbers run in both modes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The default: metadata write-back in leased directories, in batches.
    WriteBack,
    /// Each change is a request of its own, and answered before the program continues (`-o sync_metadata`).
    Synchronous,
}

/// A program that has a file open and closes it on request, like Lustre's `multiop FILE O_c`. Its exit status has
/// the results of open and close.
#[derive(Debug)]
pub struct Multiop(Child);

impl Multiop {
    /// Opens an existing file for writing. The caller must find out when the open is done.
    pub fn open(file: &Path) -> Multiop {
        let mut command = std::process::Command::new("dd");
        command.arg(format!("of={}", file.display())).args(["conv=notrunc", "status=none"]);
        Multiop(command.stdin(Stdio::piped()).spawn().expect("dd is part of the system"))
    }

    /// Makes it close the file, and returns its exit status.
    ///
    /// # Panics
    /// It does not exit.
    #[track_caller]
    pub fn close(mut self) -> i32 {
        drop(self.0.stdin.take());
        let mut status = None;
        wait_for("the program that closes its file ends", || {
            status = self.0.try_wait().expect("it is a child");
            status.is_some()
        });
        status.and_then(|status| status.code()).expect("no signal ended it")
    }
}

impl Shape {
    /// A mount in this mode and another one with synchronous changes, one object target, and faults allowed
    /// everywhere.
    pub fn with_faults_in(mode: Mode) -> Shape {
        let sync_metadata = match mode {
            Mode::WriteBack => vec![1],
            Mode::Synchronous => vec![0, 1],
        };
        Shape { mounts: 2, sync_metadata, ..Shape::with_faults() }
    }

    /// One mount, one object target, and faults allowed everywhere. Each change is a request, so that a fault strikes the intended one.
    pub fn with_faults() -> Shape {
        Shape {
            osts: 1,
            mount_options: vec!["allow_faults"],
            serve_arguments: vec!["--allow-faults"],
            ..Shape::synchronous(1)
        }
    }
}

impl Cluster {
    /// Sets a parameter of the process of a target.
    pub fn set_on(&self, which: Which, name: &str, value: &str) -> Outcome {
        adamant(["lctl", "--device", &self.target_name(which), "set_param", &format!("{name}={value}")]).run()
    }

    /// A parameter of the process of a target.
    #[track_caller]
    pub fn get_on(&self, which: Which, name: &str) -> String {
        let text = adamant(["lctl", "--device", &self.target_name(which), "get_param", "-n", name]).ok();
        text.trim_end().to_owned()
    }

    /// Makes the first mount resend requests without a reply after this time, instead of using adaptive timeouts, with which an idle
    /// client waits 11 s.
    #[track_caller]
    pub fn resend_after(&self, time: Duration) {
        self.await_mount();
        self.set_on_mount("at_max", "0");
        self.set_on_mount("timeout", &time.as_secs().to_string());
    }

    /// Waits until the admin socket of the first mount answers, which is a moment after the mount is visible.
    #[track_caller]
    pub fn await_mount(&self) {
        let mount = self.mount(0).display().to_string();
        wait_for("the process of the mount answers", || {
            adamant(["lctl", "--device", &mount, "get_param", "fail_loc"]).run().code == Some(0)
        });
    }

    /// Arms a site of the metadata server.
    #[track_caller]
    pub fn fail_loc(&self, loc: u32) {
        self.set_on(Which::Mdt(0), "fail_loc", &format!("{loc:#x}")).ok();
    }

    /// `count` files with mode 0644 in a new directory, made by one of the mounts; their paths on the first mount.
    #[track_caller]
    fn make_files_by(&self, maker: usize, folder: &str, count: usize) -> Vec<PathBuf> {
        let made = self.mount(maker).join(folder);
        std::fs::create_dir(&made).expect("it is new");
        for at in 0..count {
            let file = made.join(format!("f{at}"));
            std::fs::write(&file, b"").expect("it can be made");
            chmod(0o644, &file);
        }
        adamant(["sync", &made.display().to_string()]).ok();
        let folder = self.mount(0).join(folder);
        let files: Vec<PathBuf> = (0..count).map(|at| folder.join(format!("f{at}"))).collect();
        files.iter().for_each(|file| assert_eq!(mode(file), 0o644, "{}", file.display()));
        wait_for("nothing is in flight", || self.in_flight() == 0);
        files
    }

    /// `count` files with mode 0644 in a new directory. The last mount makes them, so that every change of them by the first mount is a
    /// request, whatever its mode.
    #[track_caller]
    pub fn make_files(&self, folder: &str, count: usize) -> Vec<PathBuf> {
        self.make_files_by(self.mounts().len() - 1, folder, count)
    }

    /// The same, but made by the first mount, which changes them with metadata write-back if its mode allows it.
    #[track_caller]
    pub fn make_own_files(&self, folder: &str, count: usize) -> Vec<PathBuf> {
        self.make_files_by(0, folder, count)
    }

    /// Arms a site and changes the mode of the first mount's own files with metadata write-back, which does not wait. One
    /// batch is then in flight.
    #[track_caller]
    pub fn chmod_behind(&self, loc: u32, to: u32, files: &[PathBuf]) {
        self.fail_loc(loc);
        let start = Instant::now();
        files.iter().for_each(|file| chmod(to, file));
        self.await_hit();
        assert!(start.elapsed() < Duration::from_secs(5), "a program waited for what was lost: {:?}", start.elapsed());
        assert_eq!(self.in_flight(), 1, "one batch is on its way, the others wait for it");
    }

    /// A figure of the first mount's metadata write-back.
    #[track_caller]
    fn write_back(&self, key: &str) -> usize {
        let text = self.mdc_parameter("metadata_write_back");
        let count = text.lines().find_map(|line| line.strip_prefix(key)).expect("a number");
        count.trim().parse().expect("a number")
    }

    /// How many batches of changes the first mount has sent, each counted once.
    #[track_caller]
    pub fn batches(&self) -> usize {
        self.write_back("batches:")
    }

    /// How many changes it has outstanding.
    #[track_caller]
    pub fn outstanding(&self) -> usize {
        self.write_back("outstanding:")
    }

    /// Waits until the files have this mode, as seen by the last mount.
    #[track_caller]
    pub fn await_modes(&self, to: u32, files: &[PathBuf]) {
        let seen = self.mount(self.mounts().len() - 1);
        for file in files {
            let file = seen.join(file.strip_prefix(self.mount(0)).expect("it is in the first mount"));
            assert_eq!(mode(&file), to, "{}", file.display());
        }
    }

    /// Arms a site and starts to change the mode of files, each in a process of its own: each change holds a slot until it is
    /// answered.
    #[track_caller]
    pub fn begin_chmods(&self, loc: u32, to: u32, files: &[PathBuf]) -> Vec<JoinHandle<()>> {
        self.fail_loc(loc);
        let processes = files.iter().map(|file| begin_chmod(to, file.clone())).collect();
        wait_for("they hold their slots", || self.in_flight() == files.len());
        processes
    }

    /// Waits until the site that was armed was hit.
    #[track_caller]
    pub fn await_hit(&self) {
        wait_for("the site was hit", || {
            let text = self.get_on(Which::Mdt(0), "fail_loc");
            u32::from_str_radix(text.trim_start_matches("0x"), 16).is_ok_and(|loc| loc & FAILED != 0)
        });
    }

    /// A parameter of the client for the metadata target.
    pub fn mdc(&self, name: &str) -> String {
        format!("mdc.{}-MDT0000-mdc*.{name}", self.fsname)
    }

    /// A parameter of the first mount for the metadata target.
    #[track_caller]
    pub fn mdc_parameter(&self, name: &str) -> String {
        let mount = self.mount(0).display().to_string();
        adamant(["lctl", "--device", &mount, "get_param", "-n", &self.mdc(name)]).ok().trim_end().to_owned()
    }

    /// Sets a parameter of the first mount.
    #[track_caller]
    pub fn set_on_mount(&self, name: &str, value: &str) {
        let mount = self.mount(0).display().to_string();
        adamant(["lctl", "--device", &mount, "set_param", &format!("{name}={value}")]).ok();
    }

    /// Changes in flight, including closes.
    #[track_caller]
    pub fn in_flight(&self) -> usize {
        let text = self.mdc_parameter("rpc_stats");
        let line = text.lines().find_map(|line| line.strip_prefix("modify_RPCs_in_flight:")).expect("a number");
        line.trim().parse().expect("a number")
    }

    /// Changes that the client may have in flight.
    #[track_caller]
    pub fn slots(&self) -> usize {
        self.mdc_parameter("max_mod_rpcs_in_flight").parse().expect("a number")
    }

    /// Files that the metadata target knows as open.
    #[track_caller]
    pub fn open_files(&self) -> usize {
        self.get_on(Which::Mdt(0), "mdt.*.open_files").parse().expect("a number")
    }

    /// How many requests of a kind the metadata target has executed, by its `stats`.
    #[track_caller]
    pub fn requests_done(&self, kind: &str) -> usize {
        let text = self.get_on(Which::Mdt(0), "mdt.*.stats");
        let mut words = text.lines().map(str::split_whitespace).find(|words| words.clone().next() == Some(kind));
        words.as_mut().and_then(|words| words.nth(1)).map_or(0, |count| count.parse().expect("a number"))
    }

    /// Waits until everything that the metadata target has done is on its disk.
    #[track_caller]
    pub fn sync_mdt(&self) {
        self.sync_target(Which::Mdt(0));
    }

    #[track_caller]
    fn sync_target(&self, which: Which) {
        wait_for("everything is on disk", || self.get_on(which, "mdt.*.dirty_bytes") == "0");
    }

    /// Lustre's `replay_barrier`: changes from now on do not reach the disk of the metadata target, and are lost when
    /// it is killed.
    #[track_caller]
    pub fn replay_barrier(&self) {
        self.replay_barrier_on(Which::Mdt(0));
    }

    /// The same of any metadata target.
    #[track_caller]
    pub fn replay_barrier_on(&self, which: Which) {
        self.sync_target(which);
        self.set_on(which, "osd-*.*.readonly", "1").ok();
    }

    /// Lustre's `fail`: kills the metadata server and starts it again.
    #[track_caller]
    pub fn fail_mdt(&mut self) {
        self.kill9(Which::Mdt(0));
        self.restart(Which::Mdt(0));
    }
}
