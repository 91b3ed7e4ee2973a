//! Servers and a mount in processes of their own, over loopback TCP, in a scratch directory.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// A file system that goes when this is dropped.
#[derive(Debug)]
pub struct Cluster {
    scratch: PathBuf,
    /// Where it is mounted.
    pub mount: PathBuf,
    children: Vec<Child>,
}

fn free_port() -> anyhow::Result<u16> {
    // A block of ports near each other: servers with several targets count upwards.
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Cluster {
    /// One MGT with one MDT, and object targets, each in a process of its own, and a mount.
    ///
    /// # Errors
    /// What could not be started.
    pub fn start(scratch: &Path, osts: u32) -> anyhow::Result<Cluster> {
        let program = std::env::current_exe()?;
        let run = |words: &[&str]| -> anyhow::Result<()> {
            let output = Command::new(&program).args(words).output()?;
            if !output.status.success() {
                bail!("{}", String::from_utf8_lossy(&output.stderr));
            }
            Ok(())
        };
        let mgs = format!("127.0.0.1:{}", free_port()?);
        let place = |name: &str| scratch.join(name).display().to_string();
        run(&["mkfs", "--mgs", &place("mgt")])?;
        run(&["mkfs", "--mdt", "--mgsnode", &mgs, &place("mdt0")])?;
        let mount = scratch.join("mnt");
        std::fs::create_dir_all(&mount)?;
        let mut cluster = Cluster { scratch: scratch.to_path_buf(), mount, children: Vec::new() };
        let serve = |listen: &str, targets: &[String]| -> anyhow::Result<Child> {
            let log = std::fs::File::create(scratch.join(format!("{}.log", listen.replace(':', "-"))))?;
            let mut child = Command::new(&program)
                .args(["serve", "--listen", listen, "--mgsnode", &mgs])
                .args(targets)
                .stderr(Stdio::piped())
                .spawn()?;
            // Ready when every target has said where it serves.
            let mut lines = BufReader::new(child.stderr.take().context("no output")?).lines();
            let mut left = targets.len();
            while left > 0 {
                let line = lines.next().context("a server ended at once")??;
                left -= usize::from(line.contains(" serves at "));
            }
            std::thread::spawn(move || {
                use std::io::Write;
                let mut log = log;
                for line in lines.map_while(Result::ok) {
                    let _ = writeln!(log, "{line}");
                }
            });
            Ok(child)
        };
        cluster.children.push(serve(&mgs, &[place("mgt")])?);
        cluster.children.push(serve(&format!("127.0.0.1:{}", free_port()?), &[place("mdt0")])?);
        for index in 0..osts {
            let name = format!("ost{index}");
            run(&["mkfs", "--ost", "--index", &index.to_string(), "--mgsnode", &mgs, &place(&name)])?;
            cluster.children.push(serve(&format!("127.0.0.1:{}", free_port()?), &[place(&name)])?);
        }
        let source = format!("{mgs}:/adamant");
        let log = std::fs::File::create(scratch.join("mount.log"))?;
        let child = Command::new(&program)
            .args(["mount", "--foreground", &source, &cluster.mount.display().to_string()])
            .stderr(log)
            .spawn()?;
        cluster.children.insert(0, child);
        let start = Instant::now();
        while !is_mounted(&cluster.mount) {
            if start.elapsed() > Duration::from_secs(20) {
                bail!("the mount does not come; see {}", cluster.scratch.join("mount.log").display());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(cluster)
    }
}

fn is_mounted(place: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1) == Some(&place.to_string_lossy()))
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if rustix::mount::unmount(&self.mount, rustix::mount::UnmountFlags::empty()).is_err() {
            let _ = rustix::mount::unmount(&self.mount, rustix::mount::UnmountFlags::DETACH);
        }
        for child in &mut self.children {
            if let Some(pid) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
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
    }
}
