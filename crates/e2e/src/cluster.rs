//! A file system of real processes: one server process for each target, one process for each mount.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::faults::wait_for;
use crate::process::{self, Background};
use crate::story::{Story, is_mounted, say, take_away};
use crate::{adamant, process::describe};

/// The longest time until a process serves, or a mount is visible.
const START_BOUND: Duration = Duration::from_secs(30);
/// The longest time for a process to exit when it is asked to.
const END_BOUND: Duration = Duration::from_secs(20);

/// The metadata targets of a cluster whose directories are striped.
pub const STRIPED_MDTS: u32 = 4;

/// The shape of a cluster.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Object targets.
    pub osts: u32,
    /// Mounts.
    pub mounts: usize,
    /// Options of each mount, such as `max_dirty_mb=1`.
    pub mount_options: Vec<&'static str>,
    /// Mounts that use `/dev/fuse` even if the kernel supports io_uring.
    pub over_device: Vec<usize>,
    /// Mounts without metadata write-back.
    pub sync_metadata: Vec<usize>,
    /// Options `-o` of each server, such as `recovery_time_soft=5`.
    pub serve_arguments: Vec<&'static str>,
    /// Locations of targets outside the story's folder.
    pub places: Vec<(Which, PathBuf)>,
    /// Version 0.1.0 can serve the metadata target, too.
    pub plain_names: bool,
    /// It has [`STRIPED_MDTS`] metadata targets, and every new directory is striped over two of them: with the environment
    /// variable `ADAMANT_E2E_STRIPED`.
    pub striped: bool,
    /// The program of the servers, if not the binary under test.
    pub server_program: Option<PathBuf>,
    /// The program of the mounts, if not the binary under test.
    pub mount_program: Option<PathBuf>,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            osts: 2,
            mounts: 1,
            mount_options: Vec::new(),
            over_device: Vec::new(),
            sync_metadata: Vec::new(),
            serve_arguments: Vec::new(),
            places: Vec::new(),
            plain_names: false,
            striped: std::env::var_os("ADAMANT_E2E_STRIPED").is_some(),
            server_program: None,
            mount_program: None,
        }
    }
}

impl Shape {
    /// A cluster with `count` mounts.
    pub fn mounts(count: usize) -> Shape {
        Shape { mounts: count, ..Shape::default() }
    }

    /// A cluster with `count` mounts that send each change as a request of its own.
    pub fn synchronous(count: usize) -> Shape {
        Shape { sync_metadata: (0..count).collect(), ..Shape::mounts(count) }
    }
}

/// One of the targets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// The management target.
    Mgt,
    /// A metadata target.
    Mdt(u32),
    /// An object target.
    Ost(u32),
}

impl std::fmt::Display for Which {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Which::Mgt => f.write_str("mgt"),
            Which::Mdt(index) => write!(f, "mdt{index}"),
            Which::Ost(index) => write!(f, "ost{index}"),
        }
    }
}

struct Server {
    which: Which,
    place: PathBuf,
    nid: String,
    program: PathBuf,
    process: Option<Background>,
}

struct Mounted {
    place: PathBuf,
    program: PathBuf,
    process: Option<Background>,
}

/// A running file system. Drop it before its [`Story`]: declare it after.
pub struct Cluster {
    /// Its name.
    pub fsname: String,
    folder: PathBuf,
    shape: Shape,
    servers: Vec<Server>,
    mounts: Vec<Mounted>,
    starts: u32,
}

impl Cluster {
    /// Formats, serves and mounts it.
    #[track_caller]
    pub fn start(story: &Story, shape: Shape) -> Cluster {
        let mut cluster = Cluster::stopped(story, shape);
        for index in 0..cluster.servers.len() {
            cluster.launch(index, &[]);
        }
        for index in 0..cluster.servers.len() {
            cluster.await_service(index);
        }
        for index in 0..cluster.servers.len() {
            cluster.await_registration(index);
        }
        for index in 0..cluster.mounts.len() {
            cluster.mount_again(index);
        }
        if cluster.shape.striped && !cluster.mounts.is_empty() {
            adamant(["lfs", "setdirstripe", "-D", "-c", "2", "-X", "-1"]).arg(cluster.mount(0)).ok();
        }
        cluster
    }

    /// Formats the targets, and starts nothing.
    #[track_caller]
    pub fn stopped(story: &Story, shape: Shape) -> Cluster {
        let fsname = story.fsname();
        let folder = story.folder().join(&fsname);
        let mut all = vec![Which::Mgt];
        all.extend((0..if shape.striped { STRIPED_MDTS } else { 1 }).map(Which::Mdt));
        all.extend((0..shape.osts).map(Which::Ost));
        std::fs::create_dir_all(folder.join("log")).expect("a folder");
        let mounts = (0..shape.mounts)
            .map(|index| Mounted {
                place: folder.join(format!("mnt{index}")),
                program: shape.mount_program.clone().unwrap_or_else(crate::binary),
                process: None,
            })
            .collect();
        let mut cluster = Cluster { fsname, folder, shape, servers: Vec::new(), mounts, starts: 0 };
        all.into_iter().for_each(|which| cluster.format(which));
        cluster
    }

    /// Formats a further target.
    #[track_caller]
    fn format(&mut self, which: Which) {
        let shape = &self.shape;
        let place = shape.places.iter().find(|(name, _)| *name == which);
        let place = place.map_or_else(|| self.folder.join(which.to_string()), |(_, place)| place.clone());
        let program = shape.server_program.clone().unwrap_or_else(crate::binary);
        let mkfs = crate::command(&program).arg("mkfs");
        let mkfs = match which {
            Which::Mgt => mkfs.arg("--mgs"),
            Which::Mdt(index) | Which::Ost(index) => {
                let kind = if matches!(which, Which::Mdt(_)) { "--mdt" } else { "--ost" };
                let mgs = self.nid(Which::Mgt);
                mkfs.args(["--fsname", &self.fsname, kind, "--index", &index.to_string(), "--mgsnode", mgs])
            }
        };
        // An older version has no option for this.
        let plain = matches!(which, Which::Mdt(_)) && shape.plain_names && shape.server_program.is_none();
        mkfs.args(plain.then_some("--plain-names")).arg(&place).ok();
        self.servers.push(Server { which, place, nid: free_nid(), program, process: None });
    }

    /// Adds a target while the file system is in use.
    #[track_caller]
    pub fn add(&mut self, which: Which) {
        self.format(which);
        let index = self.index(which);
        self.launch(index, &[]);
        self.await_service(index);
        self.await_registration(index);
    }

    /// Servers with `mdts` metadata targets and two mounts that use them all. The root has no default: directories lie where a
    /// test makes them.
    #[track_caller]
    pub fn with_mdts(story: &Story, mdts: u32) -> Cluster {
        Cluster::with_mdts_in(story, Shape::mounts(2), mdts)
    }

    /// The same in another shape.
    #[track_caller]
    pub fn with_mdts_in(story: &Story, shape: Shape, mdts: u32) -> Cluster {
        let mut cluster = Cluster::start(story, shape);
        (1..mdts).for_each(|index| cluster.add(Which::Mdt(index)));
        for mount in 0..cluster.mounts.len() {
            wait_for("the mount uses all metadata targets", || cluster.mdts(mount).len() == mdts as usize);
        }
        adamant(["lfs", "setdirstripe", "-D", "-d"]).arg(cluster.mount(0)).ok();
        cluster
    }

    /// How many metadata targets it has.
    pub fn mdt_count(&self) -> u32 {
        self.servers.iter().filter(|server| matches!(server.which, Which::Mdt(_))).count() as u32
    }

    /// What `lfs mdts` says of a mount, without the head line.
    #[track_caller]
    pub fn mdts(&self, mount: usize) -> Vec<String> {
        adamant(["lfs", "mdts"]).arg(self.mount(mount)).ok().lines().skip(1).map(str::to_owned).collect()
    }

    /// The folder of a mount.
    pub fn mount(&self, index: usize) -> &Path {
        &self.mounts[index].place
    }

    /// The folders of the mounts.
    pub fn mounts(&self) -> Vec<PathBuf> {
        self.mounts.iter().map(|mount| mount.place.clone()).collect()
    }

    /// The source for mount(8): `127.0.0.1:7988:/fs`.
    pub fn source(&self) -> String {
        format!("{}:/{}", self.nid(Which::Mgt), self.fsname)
    }

    /// The address of a target.
    pub fn nid(&self, which: Which) -> &str {
        &self.server(which).nid
    }

    /// The location of a target.
    pub fn place(&self, which: Which) -> &Path {
        &self.server(which).place
    }

    /// The name of a target: `fs-OST0000`.
    pub fn target_name(&self, which: Which) -> String {
        match which {
            Which::Mgt => "MGS".to_owned(),
            Which::Mdt(index) => format!("{}-MDT{index:04x}", self.fsname),
            Which::Ost(index) => format!("{}-OST{index:04x}", self.fsname),
        }
    }

    /// All targets.
    pub fn targets(&self) -> Vec<Which> {
        self.servers.iter().map(|server| server.which).collect()
    }

    fn server(&self, which: Which) -> &Server {
        self.servers.iter().find(|server| server.which == which).expect("such a target")
    }

    fn index(&self, which: Which) -> usize {
        self.servers.iter().position(|server| server.which == which).expect("such a target")
    }

    fn log(&mut self, name: &str) -> PathBuf {
        self.starts += 1;
        self.folder.join("log").join(format!("{name}.{}", self.starts))
    }

    fn launch(&mut self, index: usize, more: &[&str]) {
        let log = self.log(&self.servers[index].which.to_string());
        let server = &self.servers[index];
        let mut words = vec!["serve".to_owned(), "--listen".to_owned(), server.nid.clone()];
        words.extend(self.shape.serve_arguments.iter().map(ToString::to_string));
        words.extend(more.iter().map(ToString::to_string));
        words.push(server.place.display().to_string());
        let process = Background::start_program(&server.program, &server.which.to_string(), &words, log);
        self.servers[index].process = Some(process);
    }

    #[track_caller]
    fn await_service(&mut self, index: usize) {
        let start = Instant::now();
        let server = &mut self.servers[index];
        let process = server.process.as_mut().expect("a running server");
        while !process.log_text().contains(" serves at ") {
            if let Some(status) = process.ended() {
                panic!("{} ended with {}:\n{}", server.which, describe(status), process.log_text());
            }
            assert!(start.elapsed() < START_BOUND, "{} does not serve:\n{}", server.which, process.log_text());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until the MGS knows a target, because until then mounts fail.
    #[track_caller]
    fn await_registration(&mut self, index: usize) {
        let start = Instant::now();
        let server = &self.servers[index];
        let process = server.process.as_ref().expect("a running server");
        while !process.log_text().lines().any(|line| line.ends_with(" serves")) {
            assert!(start.elapsed() < START_BOUND, "{} does not register:\n{}", server.which, process.log_text());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Kills a server, as a power cut would.
    #[track_caller]
    pub fn kill9(&mut self, which: Which) {
        let index = self.index(which);
        self.servers[index].process.take().expect("a running server").kill9();
    }

    /// Stops a server, as an administrator would.
    #[track_caller]
    pub fn stop(&mut self, which: Which) {
        let index = self.index(which);
        let mut process = self.servers[index].process.take().expect("a running server");
        process.terminate();
        let status = process.wait(END_BOUND).unwrap_or_else(|| panic!("{which} does not end:\n{}", process.log_text()));
        assert!(status.success(), "{which} ended with {}:\n{}", describe(status), process.log_text());
    }

    /// Starts a server again.
    #[track_caller]
    pub fn restart(&mut self, which: Which) {
        self.restart_with(which, &[]);
    }

    /// Starts a server again, with further arguments.
    #[track_caller]
    pub fn restart_with(&mut self, which: Which, arguments: &[&str]) {
        let index = self.index(which);
        self.launch(index, arguments);
        self.await_service(index);
    }

    /// Starts a server with these arguments, which must fail; returns its output.
    pub fn restart_fails(&self, which: Which, arguments: &[&str]) -> crate::Outcome {
        let server = self.server(which);
        let place = server.place.display().to_string();
        let serve = crate::command(&server.program).args(["serve", "--listen", &server.nid]);
        serve.args(arguments).arg(&place).within(Duration::from_secs(20)).run()
    }

    /// From its next start on, every server is this program.
    pub fn change_servers(&mut self, program: &Path) {
        for server in &mut self.servers {
            server.program = program.to_path_buf();
        }
    }

    /// From its next start on, a mount is this program.
    pub fn change_mount(&mut self, index: usize, program: &Path) {
        self.mounts[index].program = program.to_path_buf();
    }

    /// Adds a mount by this program. Returns its number.
    #[track_caller]
    pub fn add_mount(&mut self, program: &Path) -> usize {
        let index = self.mounts.len();
        let place = self.folder.join(format!("mnt{index}"));
        self.mounts.push(Mounted { place, program: program.to_path_buf(), process: None });
        self.mount_again(index);
        index
    }

    /// Starts a server once with additional arguments, and stops it as an administrator would when it serves.
    #[track_caller]
    pub fn serve_once(&mut self, which: Which, arguments: &[&'static str]) {
        let usual = self.shape.serve_arguments.clone();
        self.shape.serve_arguments.extend(arguments);
        self.restart(which);
        self.await_registration(self.index(which));
        self.shape.serve_arguments = usual;
        self.stop(which);
    }

    /// Whether a server's process is running.
    pub fn is_alive(&mut self, which: Which) -> bool {
        let index = self.index(which);
        self.servers[index].process.as_mut().is_some_and(|process| process.ended().is_none())
    }

    /// The log of a server since its last start.
    pub fn server_log(&self, which: Which) -> String {
        self.server(which).process.as_ref().map(Background::log_text).unwrap_or_default()
    }

    /// The log of a mount since its last start.
    pub fn mount_log(&self, index: usize) -> String {
        self.mounts[index].process.as_ref().map(Background::log_text).unwrap_or_default()
    }

    /// The number of a server's process.
    pub fn server_pid(&self, which: Which) -> u32 {
        self.server(which).process.as_ref().map_or(0, Background::pid)
    }

    /// The number of a mount's process.
    pub fn mount_pid(&self, index: usize) -> u32 {
        self.mounts[index].process.as_ref().map_or(0, Background::pid)
    }

    /// Mounts, unless it is mounted already.
    #[track_caller]
    pub fn mount_if_missing(&mut self, index: usize) {
        if self.mounts[index].process.is_none() {
            self.mount_again(index);
        }
    }

    /// Mounts. It must not be mounted.
    #[track_caller]
    pub fn mount_again(&mut self, index: usize) {
        let log = self.log(&format!("mnt{index}"));
        let source = self.source();
        let mount = &mut self.mounts[index];
        std::fs::create_dir_all(&mount.place).expect("a folder");
        let mut words = vec!["mount".to_owned(), "--foreground".to_owned()];
        let mut options = self.shape.mount_options.clone();
        options.extend(self.shape.over_device.contains(&index).then_some("nouring"));
        options.extend(self.shape.sync_metadata.contains(&index).then_some("sync_metadata"));
        if !options.is_empty() {
            words.extend(["-o".to_owned(), options.join(",")]);
        }
        words.extend([source, mount.place.display().to_string()]);
        let mut process = Background::start_program(&mount.program, &format!("mnt{index}"), &words, log);
        let start = Instant::now();
        while !is_mounted(&mount.place) {
            if let Some(status) = process.ended() {
                panic!("the mount ended with {}:\n{}", describe(status), process.log_text());
            }
            assert!(start.elapsed() < START_BOUND, "no mount:\n{}", process.log_text());
            std::thread::sleep(Duration::from_millis(2));
        }
        mount.process = Some(process);
    }

    /// Unmounts as umount(8) does, and waits until the process has written everything back and exited.
    #[track_caller]
    pub fn unmount(&mut self, index: usize) {
        self.unmount_and(index, |_| ());
    }

    /// The same, and sends SIGTERM to the process as soon as the kernel has unmounted.
    #[track_caller]
    pub fn unmount_and_terminate(&mut self, index: usize) {
        self.unmount_and(index, |process| process.terminate());
    }

    #[track_caller]
    fn unmount_and(&mut self, index: usize, then: impl FnOnce(&Background)) {
        let mount = &mut self.mounts[index];
        let mut process = mount.process.take().expect("a mount");
        let start = Instant::now();
        while let Err(error) = rustix::mount::unmount(&mount.place, rustix::mount::UnmountFlags::empty()) {
            assert!(
                error == rustix::io::Errno::BUSY && start.elapsed() < Duration::from_secs(10),
                "umount {}: {error}",
                mount.place.display()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        then(&process);
        let status = process.wait(END_BOUND).unwrap_or_else(|| {
            panic!("the process of the mount does not end after umount:\n{}", process.log_text());
        });
        assert!(status.success(), "the mount ended with {}:\n{}", describe(status), process.log_text());
    }

    /// Sends SIGTERM to the process of a mount, whether programs use the mount or not.
    #[track_caller]
    pub fn terminate_mount(&self, index: usize) {
        self.mounts[index].process.as_ref().expect("a mount").terminate();
    }

    /// The exit status and the log of a mount's process, if it exits within `bound`.
    pub fn mount_ended(&mut self, index: usize, bound: Duration) -> Option<(std::process::ExitStatus, String)> {
        let status = self.mounts[index].process.as_mut()?.wait(bound)?;
        let process = self.mounts[index].process.take()?;
        Some((status, process.log_text()))
    }

    /// Kills a mount, as a power cut would.
    #[track_caller]
    pub fn kill9_mount(&mut self, index: usize) {
        let mount = &mut self.mounts[index];
        let mut process = mount.process.take().expect("a mount");
        process.begin_kill9();
        // It may wait in the kernel for a program that waits for it.
        take_away(&mount.place);
        process.kill9();
    }

    /// Kills everything, as a power cut would.
    pub fn kill9_all(&mut self) {
        for index in 0..self.mounts.len() {
            if self.mounts[index].process.is_some() {
                self.kill9_mount(index);
            }
        }
        self.kill9_servers();
    }

    /// Kills all servers, as a power cut would.
    pub fn kill9_servers(&mut self) {
        for server in &mut self.servers {
            if let Some(mut process) = server.process.take() {
                process.kill9();
            }
        }
    }

    /// Starts all servers and mounts that are not running.
    #[track_caller]
    pub fn start_all(&mut self) {
        let missing: Vec<usize> = (0..self.servers.len()).filter(|at| self.servers[*at].process.is_none()).collect();
        for index in &missing {
            self.launch(*index, &[]);
        }
        for index in missing {
            self.await_service(index);
        }
        for index in 0..self.mounts.len() {
            if self.mounts[index].process.is_none() {
                self.mount_again(index);
            }
        }
    }

    /// A parameter of one of this file system's processes.
    #[track_caller]
    pub fn parameter(&self, name: &str) -> String {
        adamant(["lctl", "get_param", "-n", name]).ok().trim_end().to_owned()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        let mut complaints = Vec::new();
        for mount in &mut self.mounts {
            let Some(mut process) = mount.process.take() else { continue };
            let died = process.ended();
            let unmounted = rustix::mount::unmount(&mount.place, rustix::mount::UnmountFlags::empty()).is_ok();
            let patience = if failed { Duration::from_secs(1) } else { END_BOUND };
            if !unmounted || process.wait(patience).is_none() {
                take_away(&mount.place);
                process.kill9();
                complaints.push(format!("{} did not end by itself", mount.place.display()));
            }
            if let Some(status) = died {
                complaints.push(format!(
                    "the process of {} had ended with {}",
                    mount.place.display(),
                    describe(status)
                ));
            }
        }
        for server in &mut self.servers {
            let Some(process) = server.process.as_mut() else { continue };
            if let Some(status) = process.ended() {
                complaints.push(format!("{} had ended with {}", server.which, describe(status)));
            }
            process.terminate();
        }
        for server in &mut self.servers {
            let Some(mut process) = server.process.take() else { continue };
            if process.wait(if failed { Duration::from_secs(1) } else { END_BOUND }).is_none() {
                process.kill9();
                complaints.push(format!("{} did not end by itself", server.which));
            }
        }
        if failed {
            self.show_logs();
        }
        for complaint in &complaints {
            say(complaint);
        }
        if !failed && !complaints.is_empty() {
            self.show_logs();
            panic!("the processes did not end as they should: {}", complaints.join("; "));
        }
        if !failed {
            self.look_for_panics();
        }
    }
}

impl Cluster {
    fn logs(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.folder.join("log")).into_iter().flatten().flatten();
        let mut list: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        list.sort();
        list
    }

    fn show_logs(&self) {
        for log in self.logs() {
            let text = process::log_tail(&log, 25);
            if !text.is_empty() {
                say(&format!("--- {}\n{text}", log.display()));
            }
        }
    }

    /// A thread that panicked unnoticed is a failure, too.
    fn look_for_panics(&self) {
        for log in self.logs() {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            assert!(!text.contains("panicked at"), "{}:\n{}", log.display(), process::log_tail(&log, 40));
        }
    }
}

/// An unused address, below the kernel's range for outgoing connections.
pub fn free_nid() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + (std::process::id().wrapping_mul(97).wrapping_add(number)) % 20_000;
        if TcpListener::bind(("127.0.0.1", port as u16)).is_ok() {
            return format!("127.0.0.1:{port}");
        }
    }
}
