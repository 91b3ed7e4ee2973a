//! A cluster under test: servers and mounts in processes of their own, over loopback TCP, in a scratch directory; and the
//! resources that they used.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use host::admin;
use host::survey::Test;
use proto::Opcode;
use rustix::process::Pid;
use rustix::thread::CpuSet;

use crate::far::Far;
use crate::filler::Share;
use crate::guardian;
use crate::survey::Survey;
use crate::survey::folders::{ByClient, Folders, Wanted};

/// A process of the cluster.
#[derive(Debug)]
struct Process {
    name: String,
    words: Vec<String>,
    log: PathBuf,
    child: Child,
}

/// A file system that is taken down when this is dropped.
#[derive(Debug)]
pub struct Cluster {
    program: PathBuf,
    /// The mounts. They come first, so that they are taken down first.
    mounts: Vec<(PathBuf, Process)>,
    /// MGS, MDT, OSTs.
    servers: Vec<Process>,
    /// The addresses at which they listen.
    addresses: Vec<SocketAddr>,
    /// The address of the MGS.
    mgs: String,
    scratch: PathBuf,
}

/// The resources that a cluster has used since it started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// The number of requests that its servers ran.
    pub requests: u64,
    /// CPU time of its mounts, in microseconds.
    pub client_cpu_us: f64,
    /// CPU time of its servers, in microseconds.
    pub server_cpu_us: f64,
}

impl Usage {
    /// The difference to an earlier reading.
    #[must_use]
    pub fn since(self, before: Usage) -> Usage {
        Usage {
            requests: self.requests.saturating_sub(before.requests),
            client_cpu_us: self.client_cpu_us - before.client_cpu_us,
            server_cpu_us: self.server_cpu_us - before.server_cpu_us,
        }
    }
}

/// A line of the log that says that the target is registered with the MGS, so that it can be mounted.
const REGISTERED: fn(&str) -> bool = |line| line.ends_with(" serves");
/// A line of the log that says that the target can be reached.
const LISTENING: fn(&str) -> bool = |line| line.contains(" serves at ");

fn free_nid() -> anyhow::Result<String> {
    Ok(format!("127.0.0.1:{}", std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port()))
}

impl Process {
    fn start(program: &Path, name: &str, words: Vec<String>, log: PathBuf) -> anyhow::Result<Process> {
        let child =
            Process::spawn(program, &words, &log, if name.starts_with("mount") { None } else { Some(REGISTERED) })?;
        Ok(Process { name: name.to_owned(), words, log, child })
    }

    /// Starts the process, and waits until it has logged a line that `until` accepts.
    fn spawn(program: &Path, words: &[String], log: &Path, until: Option<fn(&str) -> bool>) -> anyhow::Result<Child> {
        let mut file = std::fs::File::options().create(true).append(true).open(log)?;
        let stderr = if until.is_some() { Stdio::piped() } else { Stdio::from(file.try_clone()?) };
        // In a process group of its own, because Ctrl-C on the terminal is for the benchmark, which stops its processes in
        // order.
        let mut child =
            guardian::spawn(Command::new(program).arg0("adamant").args(words).process_group(0).stderr(stderr))?;
        let Some(until) = until else { return Ok(child) };
        let mut lines = BufReader::new(child.stderr.take().context("no output")?).lines();
        let mut last = String::new();
        loop {
            let Some(line) = lines.next().transpose()? else {
                let _ = child.wait();
                bail!("a server ended at once: {last}");
            };
            writeln!(file, "{line}")?;
            if until(&line) {
                break;
            }
            last = line;
        }
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = writeln!(file, "{line}");
            }
        });
        Ok(child)
    }

    /// Asks the process to end, and kills it if it has not ended after a while.
    fn end(&mut self) {
        let child = &mut self.child;
        if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
            && matches!(child.try_wait(), Ok(None))
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let start = Instant::now();
        while matches!(child.try_wait(), Ok(None)) {
            if start.elapsed() > Duration::from_secs(10) {
                let _ = child.kill();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn cpu_us(&self) -> f64 {
        cpu_us(self.child.id()).unwrap_or(0.0)
    }
}

/// CPU time of a process in microseconds, from `/proc/PID/stat`, in steps of a clock tick (10 ms).
pub fn cpu_us(pid: u32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, including a closing bracket.
    let mut fields = text.get(text.rfind(')')? + 2..)?.split(' ').skip(11);
    let ticks = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(ticks as f64 * 1e6 / rustix::param::clock_ticks_per_second() as f64)
}

/// CPU time of the threads that a process has now, in microseconds, from `/proc/PID/task/TID/schedstat`, which is exact.
/// Falls back to [`cpu_us`] on a kernel without it.
pub fn exact_cpu_us(pid: u32) -> f64 {
    let of = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    };
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let all: Option<f64> = threads.map(of).sum();
    all.filter(|ns| *ns > 0.0).map_or_else(|| cpu_us(pid).unwrap_or(0.0), |ns| ns / 1e3)
}

/// Lets all threads of a process run on these processors only.
///
/// # Errors
/// The kernel refuses.
pub fn confine(pid: u32, processors: &CpuSet) -> anyhow::Result<()> {
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        let id = thread.file_name().to_str().and_then(|id| id.parse().ok()).and_then(Pid::from_raw);
        match rustix::thread::sched_setaffinity(id, processors) {
            // The thread has ended meanwhile.
            Err(rustix::io::Errno::SRCH) => {}
            other => other?,
        }
    }
    Ok(())
}

/// Anonymous memory of a process in bytes, from `/proc/PID/status`, without the files that it maps.
pub fn anonymous_memory(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? << 10)
}

/// The bytes that the files of a directory occupy.
fn disk_used(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(about) if about.is_dir() => disk_used(&entry.path()),
        Ok(about) => about.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(of).sum()
}

/// The number of requests in the text of a `stats` parameter.
fn requests(stats: &str) -> u64 {
    // The statistics of an object target also count what it did in the requests.
    let is_request = |name: &str| name != "obd_ping" && Opcode::ALL.iter().any(|opcode| opcode.name() == name);
    let lines = stats.lines().filter(|line| line.split_whitespace().next().is_some_and(is_request));
    lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
}

impl Cluster {
    /// Starts one MGT, one MDT and object targets, each in a process of its own, and mounts.
    ///
    /// # Errors
    /// What could not be started.
    pub fn start(scratch: &Path, osts: u32, mounts: usize) -> anyhow::Result<Cluster> {
        let mut cluster = Cluster::serve(&std::env::current_exe()?, scratch, osts)?;
        for _ in 0..mounts {
            cluster.mount(None)?;
        }
        Ok(cluster)
    }

    /// Starts the servers with a given program, which may be of an older version.
    ///
    /// # Errors
    /// What could not be started.
    pub fn serve(program: &Path, scratch: &Path, osts: u32) -> anyhow::Result<Cluster> {
        Cluster::serve_many(program, scratch, 1, osts)
    }

    /// The same with several metadata targets.
    ///
    /// # Errors
    /// What could not be started.
    pub fn serve_many(program: &Path, scratch: &Path, mdts: u32, osts: u32) -> anyhow::Result<Cluster> {
        let run = |words: &[&str]| -> anyhow::Result<()> {
            let output = guardian::mark(Command::new(program).arg0("adamant").args(words)).output()?;
            if !output.status.success() {
                bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
            }
            Ok(())
        };
        let mgs = free_nid()?;
        let place = |name: &str| scratch.join(name).display().to_string();
        run(&["mkfs", "--mgs", &place("mgt")])?;
        let mut names = vec!["mgt".to_owned()];
        for (kind, count) in [("mdt", mdts), ("ost", osts)] {
            for index in 0..count {
                let name = format!("{kind}{index}");
                let (kind, index) = (format!("--{kind}"), index.to_string());
                run(&["mkfs", &kind, "--index", &index, "--mgsnode", &mgs, &place(&name)])?;
                names.push(name);
            }
        }
        let mut cluster = Cluster {
            program: program.to_owned(),
            mounts: Vec::new(),
            servers: Vec::new(),
            addresses: Vec::new(),
            mgs: mgs.clone(),
            scratch: scratch.to_owned(),
        };
        for name in names {
            let listen = if name == "mgt" { mgs.clone() } else { free_nid()? };
            let words = ["serve", "--listen", &listen, "--mgsnode", &mgs, &place(&name)].map(str::to_owned).to_vec();
            let log = scratch.join(format!("{name}.log"));
            cluster.servers.push(Process::start(program, &name, words, log)?);
            cluster.addresses.push(listen.parse()?);
        }
        Ok(cluster)
    }

    /// Adds a mount, in this network or in a remote one (for which the servers must have relays). Returns its directory.
    ///
    /// # Errors
    /// The mount does not appear.
    pub fn mount(&mut self, far: Option<&Far>) -> anyhow::Result<PathBuf> {
        self.mount_with(far, &[])
    }

    /// Adds a mount with options, as after `-o`.
    ///
    /// # Errors
    /// The mount does not appear.
    pub fn mount_with(&mut self, far: Option<&Far>, options: &[&str]) -> anyhow::Result<PathBuf> {
        let name = format!("mount{}", self.mounts.len());
        let folder = self.scratch.join(&name);
        std::fs::create_dir_all(&folder)?;
        let source = format!("{}:/{FILE_SYSTEM}", self.mgs);
        let mut words = ["mount", "--foreground", &source, &folder.display().to_string()].map(str::to_owned).to_vec();
        if !options.is_empty() {
            words.extend(["-o".to_owned(), options.join(",")]);
        }
        let log = self.scratch.join(format!("{name}.log"));
        let (program, given) = (self.program.clone(), log.clone());
        let start = move || Process::start(&program, &name, words, given);
        let process = match far {
            Some(far) => far.call(start)?,
            None => start()?,
        };
        self.mounts.push((folder.clone(), process));
        let start = Instant::now();
        // Its parameters appear a moment after the mount itself.
        while !is_mounted(&folder) || !self.has_params(self.mounts.len() - 1) {
            self.check()?;
            if start.elapsed() > Duration::from_secs(20) {
                bail!("the mount does not come; see '{}'", log.display());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(folder)
    }

    /// Takes one of the mounts down.
    pub fn leave(&mut self, folder: &Path) {
        if let Some(index) = self.mounts.iter().position(|(place, _)| place == folder) {
            let (place, mut process) = self.mounts.remove(index);
            unmount(&place);
            process.end();
        }
    }

    /// Creates `files` files on the metadata target itself, one request after another, and removes them. Returns the
    /// creates per second.
    ///
    /// # Errors
    /// An error of the survey.
    pub fn survey(&self, files: u64) -> anyhow::Result<f64> {
        self.survey_all(1, 1, files)
    }

    /// The same on the first `mdts` metadata targets at once, with so many threads on each.
    ///
    /// # Errors
    /// An error of the survey.
    pub fn survey_all(&self, mdts: u32, threads: u32, files: u64) -> anyhow::Result<f64> {
        let survey = Survey {
            targets: (0..mdts).map(|index| format!("{FILE_SYSTEM}-MDT{index:04x}")).collect(),
            threads_low: threads,
            threads_high: threads,
            folders: 1,
            stripes: 1,
            files,
            outstanding: 1,
            tests: vec![Test::Create, Test::Destroy],
            start: 2,
        };
        let ask = |target: &str, order| {
            let at = survey.targets.iter().position(|name| name == target).unwrap_or_default();
            let process = self.mdts().nth(at).context("no such metadata target")?;
            let socket = admin::directory().join(format!("server-{}.sock", process.child.id()));
            let request = admin::Request::Survey { target: target.to_owned(), order };
            match admin::ask(&socket, &request)? {
                admin::Response::Survey(status) => Ok(status),
                admin::Response::Failed(_, message) => bail!(message),
                _ => bail!("the metadata server is of another version"),
            }
        };
        let mut rows = Vec::new();
        let mgs = |_: &str| Ok(vec![self.mgs.parse()?]);
        survey.run(&ask, &ByClient { mgs: &mgs }, &mut std::io::sink(), &mut rows)?;
        Ok(rows.first().context("the survey gave nothing")?.rate)
    }

    fn has_params(&self, mount: usize) -> bool {
        let request = admin::Request::GetParam { pattern: "mdc.*.import".to_owned() };
        !self.ask("mount", self.mounts[mount].1.child.id(), &request).is_empty()
    }

    /// The addresses at which the servers listen.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Sets a parameter of a mount.
    ///
    /// # Errors
    /// The mount refuses it.
    pub fn set_mount_param(&self, folder: &Path, pattern: &str, value: &str) -> anyhow::Result<()> {
        let (_, process) = self.mounts.iter().find(|(place, _)| place == folder).context("no such mount")?;
        let request = admin::Request::SetParam { pattern: pattern.to_owned(), value: value.to_owned() };
        if self.ask("mount", process.child.id(), &request).is_empty() {
            bail!("the mount does not take {pattern}={value}");
        }
        Ok(())
    }

    /// The directories of the mounts.
    pub fn mounts(&self) -> Vec<PathBuf> {
        self.mounts.iter().map(|(place, _)| place.clone()).collect()
    }

    /// What a worker needs to be a client of its own that creates files, `in_flight` at a time.
    pub fn share(&self, in_flight: u16, sync_metadata: bool) -> Share {
        Share { mgs: self.mgs.clone(), fsname: FILE_SYSTEM.to_owned(), in_flight, sync_metadata, burst: 0 }
    }

    /// The anonymous memory of each process, in bytes, by name.
    pub fn memory(&self) -> Vec<(String, u64)> {
        let all = self.servers.iter().chain(self.mounts.iter().map(|(_, process)| process));
        all.map(|process| (process.name.clone(), anonymous_memory(process.child.id()).unwrap_or(0))).collect()
    }

    /// The disk space that the metadata target occupies, in bytes.
    pub fn mdt_disk(&self) -> u64 {
        disk_used(&self.scratch.join("mdt0"))
    }

    /// Fails if one of the processes has ended.
    ///
    /// # Errors
    /// The process that has ended, and its last line of output.
    pub fn check(&mut self) -> anyhow::Result<()> {
        for process in self.mounts.iter_mut().map(|(_, process)| process).chain(&mut self.servers) {
            if let Some(status) = process.child.try_wait()? {
                let log = std::fs::read_to_string(&process.log).unwrap_or_default();
                let last = log.lines().last().unwrap_or("it said nothing");
                bail!("the process of {} ended ({status}): {last}", process.name);
            }
        }
        Ok(())
    }

    fn ask(&self, role: &str, pid: u32, request: &admin::Request) -> Vec<(String, String)> {
        match admin::ask(&admin::directory().join(format!("{role}-{pid}.sock")), request) {
            Ok(admin::Response::Params(list)) => list,
            _ => Vec::new(),
        }
    }

    /// The matching parameters of all servers.
    pub fn server_params(&self, pattern: &str) -> Vec<(String, String)> {
        let request = admin::Request::GetParam { pattern: pattern.to_owned() };
        self.servers.iter().flat_map(|server| self.ask("server", server.child.id(), &request)).collect()
    }

    /// The resources used so far.
    pub fn usage(&self) -> Usage {
        self.usage_of(&self.servers.iter().collect::<Vec<_>>())
    }

    /// The same without the metadata server: if that is killed, the usage of the new one is added to this.
    pub fn usage_beside_mdt(&self) -> Usage {
        let others: Vec<&Process> =
            self.servers.iter().enumerate().filter(|(place, _)| *place != MDT).map(|(_, server)| server).collect();
        self.usage_of(&others)
    }

    fn usage_of(&self, servers: &[&Process]) -> Usage {
        let request = admin::Request::GetParam { pattern: "*.*.stats".to_owned() };
        let stats = servers.iter().flat_map(|server| self.ask("server", server.child.id(), &request));
        Usage {
            requests: stats.map(|(_, text)| requests(&text)).sum(),
            client_cpu_us: self.mounts.iter().map(|(_, process)| process.cpu_us()).sum(),
            server_cpu_us: servers.iter().map(|server| server.cpu_us()).sum(),
        }
    }

    /// Sets a parameter of the metadata servers.
    ///
    /// # Errors
    /// A server refuses it.
    pub fn set_mdt_param(&self, pattern: &str, value: &str) -> anyhow::Result<()> {
        let request = admin::Request::SetParam { pattern: pattern.to_owned(), value: value.to_owned() };
        for server in self.mdts() {
            if self.ask("server", server.child.id(), &request).is_empty() {
                bail!("the metadata server does not take {pattern}={value}");
            }
        }
        Ok(())
    }

    /// The processes of the metadata targets, in order.
    fn mdts(&self) -> impl Iterator<Item = &Process> {
        self.servers.iter().filter(|server| server.name.starts_with("mdt"))
    }

    /// The mean and the longest time of a commit of the metadata servers since `commit_stats` was cleared, in microseconds.
    /// `None`: there was none.
    pub fn commit_us(&self) -> Option<(f64, f64)> {
        let request = admin::Request::GetParam { pattern: "mdt.*.commit_stats".to_owned() };
        let texts = self.mdts().flat_map(|server| self.ask("server", server.child.id(), &request));
        commits(&texts.map(|(_, text)| text).collect::<String>())
    }

    /// The process ids of the metadata servers.
    pub fn mdt_pids(&self) -> Vec<u32> {
        self.mdts().map(|server| server.child.id()).collect()
    }

    /// The requests that the metadata servers ran so far.
    pub fn mdt_requests(&self) -> u64 {
        self.usage_of(&self.mdts().collect::<Vec<_>>()).requests
    }

    /// Makes directories on chosen metadata targets.
    ///
    /// # Errors
    /// The first that could not be made, and why.
    pub fn make_directories(&self, wanted: &[Wanted]) -> anyhow::Result<()> {
        let mgs = |_: &str| Ok(vec![self.mgs.parse()?]);
        ByClient { mgs: &mgs }.make(FILE_SYSTEM, wanted).map(drop)
    }

    /// Removes the default layout of the root: from now on a plain `mkdir` stays on the target of the directory above.
    ///
    /// # Errors
    /// An error of the client.
    pub fn remove_root_default(&self) -> anyhow::Result<()> {
        let mgs = |_: &str| Ok(vec![self.mgs.parse()?]);
        ByClient { mgs: &mgs }.remove_root_default(FILE_SYSTEM)
    }

    /// Kills the metadata server with SIGKILL and starts it again. Returns the seconds from the kill until it logged that
    /// it serves.
    ///
    /// # Errors
    /// It does not start again.
    pub fn kill_mdt(&mut self) -> anyhow::Result<f64> {
        let server = &mut self.servers[MDT];
        let start = Instant::now();
        server.child.kill()?;
        server.child.wait()?;
        server.child = Process::spawn(&self.program, &server.words, &server.log, Some(LISTENING))?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// The name that `mkfs` gives to a file system without one.
const FILE_SYSTEM: &str = "adamant";
/// The index of the metadata server among the servers.
const MDT: usize = 1;

/// Whether something is mounted at a place.
pub fn is_mounted(place: &Path) -> bool {
    fusewire::mounts().iter().any(|mount| mount.place == place)
}

/// The places in a directory, itself included, at which something is mounted.
pub(crate) fn mounts_in(folder: &Path) -> Vec<PathBuf> {
    fusewire::mounts().into_iter().map(|mount| mount.place).filter(|place| place.starts_with(folder)).collect()
}

/// Removes a directory, but never into a mount that could not be taken down.
pub(crate) fn remove_unless_mounted(folder: &Path) {
    if mounts_in(folder).is_empty() {
        let _ = std::fs::remove_dir_all(folder);
    }
}

/// Takes a mount down, lazily if it is in use.
pub fn unmount(place: &Path) {
    if rustix::mount::unmount(place, rustix::mount::UnmountFlags::empty()).is_err() {
        let _ = rustix::mount::unmount(place, rustix::mount::UnmountFlags::DETACH);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for (place, _) in &self.mounts {
            unmount(place);
        }
        for process in self.mounts.iter_mut().map(|(_, process)| process).chain(&mut self.servers) {
            process.end();
        }
    }
}

/// The mean and the longest time of the commits in texts of `commit_stats`.
fn commits(text: &str) -> Option<(f64, f64)> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("commit "));
    let all: Vec<Vec<f64>> = lines.map(|line| line.split(' ').filter_map(|word| word.parse().ok()).collect()).collect();
    // Samples, minimum, maximum, sum.
    let sum = |at: usize| all.iter().filter_map(|figures| figures.get(at)).sum::<f64>();
    let longest = all.iter().filter_map(|figures| figures.get(2).copied()).fold(0.0, f64::max);
    (sum(0) > 0.0).then(|| (sum(3) / sum(0), longest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_all_kinds_are_counted_but_no_pings() {
        let text = "mds_reint                 12 samples [usecs] 1 9 30\nmds_close                 3 samples [usecs] 1 1 3\n\
                    obd_ping                  5 samples [usecs] 1 1 5\nreconstructed             7 samples [reqs]\n\
                    write                     3 samples [usecs] 0 0 0 0\n";
        assert_eq!(requests(text), 15);
    }

    #[test]
    fn own_cpu_time_grows() {
        let before = cpu_us(std::process::id()).unwrap();
        let start = Instant::now();
        while cpu_us(std::process::id()).unwrap() <= before {
            assert!(start.elapsed() < Duration::from_secs(30), "no CPU time is counted");
        }
        assert_eq!(cpu_us(u32::MAX), None);
        assert!(exact_cpu_us(std::process::id()) > 0.0);
        assert_eq!(exact_cpu_us(u32::MAX), 0.0);
    }

    #[test]
    fn commits_of_several_targets_are_taken_together() {
        let one = "snapshot_time  5.0 secs.nsecs\ncommit                    3 samples [usecs] 10 50 90 1\nrecords  3 samples [recs] 1 2 3 4\n";
        let none = "commit                    0 samples [usecs] 0 0 0 0\n";
        let other = "commit                    1 samples [usecs] 70 70 70 4900\n";
        assert_eq!(super::commits(&format!("{one}{none}{other}")), Some((40.0, 70.0)));
        assert_eq!(super::commits(none), None);
    }
}
