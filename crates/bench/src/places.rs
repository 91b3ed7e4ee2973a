//! The file systems under test: Adamant, and those that it is compared with.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};

use crate::cluster::{self, Cluster, Usage};
use crate::guardian::{self, Ward};
use crate::load::{Job, Pool, Task, Took};
use crate::nothing::{self, Data};
use crate::run::Run;

/// The name of Adamant in tables and charts.
pub const ADAMANT: &str = "Adamant";
/// A mount of Adamant without metadata write-back.
pub const SYNC: &str = "Adamant, sync_metadata";
/// A mount by `adamant up`: all servers in one process, beside the mount.
pub const UP: &str = "adamant up";
/// The name of the do-nothing FUSE file system.
pub const NOTHING: &str = "do-nothing FUSE";
/// The same over `/dev/fuse`, on machines where FUSE otherwise runs over io_uring.
pub const NOTHING_DEVICE: &str = "do-nothing over /dev/fuse";
/// The name of the file system in memory.
pub const TMPFS: &str = "tmpfs";
/// The name of the local file system.
pub const XFS: &str = "xfs";

/// Threads of the do-nothing file system over `/dev/fuse`.
const THREADS: usize = 8;

/// The directory of a yardstick file system, which is taken down when this is dropped.
pub struct Local {
    /// The name of the yardstick.
    pub name: &'static str,
    /// The directory in which files may be made.
    pub root: PathBuf,
    kind: Kind,
}

/// The kind of a place, which says how it is taken down.
enum Kind {
    Folder,
    Mount,
    Nothing(nothing::NothingMount),
    /// The directory of its targets.
    Up(PathBuf),
}

impl Local {
    /// The do-nothing file system, mounted a second time: the same files, with nothing cached in the kernel.
    ///
    /// # Errors
    /// This is another file system, or the kernel refuses.
    pub fn again(&self, run: &Run, name: &str) -> anyhow::Result<Local> {
        let root = run.folder(name)?;
        let Kind::Nothing(session) = &self.kind else { bail!("it has no files of its own") };
        let session = session.again(&root, THREADS)?;
        Ok(Local { name: self.name, root, kind: Kind::Nothing(session) })
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.kind, Kind::Folder) {
            Kind::Mount => return cluster::unmount(&self.root),
            Kind::Up(targets) => {
                let _ = adamant("down", &[("--dir", &targets)]);
                cluster::unmount(&self.root);
                let _ = std::fs::remove_dir_all(targets);
            }
            Kind::Nothing(session) => drop(session),
            Kind::Folder => {}
        }
        cluster::remove_unless_mounted(&self.root);
    }
}

/// The do-nothing FUSE file system, over the transport that Adamant's own mounts use on this machine.
///
/// # Errors
/// The kernel refuses.
pub fn do_nothing(run: &Run, name: &str, data: Data) -> anyhow::Result<Local> {
    let root = run.folder(name)?;
    let session = nothing::mount(&root, data, THREADS, true)?;
    Ok(Local { name: NOTHING, root, kind: Kind::Nothing(session) })
}

/// The same over `/dev/fuse`, where [`do_nothing`] uses io_uring; `None` where both would be the same.
///
/// # Errors
/// The kernel refuses.
pub fn do_nothing_over_device(run: &Run, name: &str) -> anyhow::Result<Option<Local>> {
    let root = run.folder(name)?;
    if !nothing::mount(&root, Data::Memory, THREADS, true)?.is_over_uring() {
        return Ok(None);
    }
    let session = nothing::mount(&root, Data::Memory, THREADS, false)?;
    Ok(Some(Local { name: NOTHING_DEVICE, root, kind: Kind::Nothing(session) }))
}

/// A file system started by `adamant up`.
///
/// # Errors
/// An error of the command.
pub fn up(run: &Run) -> anyhow::Result<Local> {
    let (targets, root) = (run.folder("up-targets")?, run.folder("up")?);
    guardian::watch(&Ward::Up(targets.clone()));
    let local = Local { name: UP, root, kind: Kind::Up(targets.clone()) };
    adamant("up", &[("--dir", &targets), ("--mount", &local.root)])?;
    Ok(local)
}

/// Runs a command of this program with these options.
pub(crate) fn adamant(command: &str, options: &[(&str, &Path)]) -> anyhow::Result<()> {
    let mut words = Command::new(std::env::current_exe()?);
    words.arg0("adamant").arg(command);
    for (name, value) in options {
        words.arg(name).arg(value);
    }
    let output = words.output()?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// The file system in memory.
///
/// # Errors
/// Why there is none on this machine.
pub fn tmpfs() -> anyhow::Result<Local> {
    const SHARED: &str = "/dev/shm";
    if !is_tmpfs(Path::new(SHARED))? {
        bail!("{SHARED} is no tmpfs here");
    }
    let root = Path::new(SHARED).join(format!("adamant-bench-{}", std::process::id()));
    guardian::watch(&Ward::Folder(root.clone()));
    std::fs::create_dir_all(&root).with_context(|| root.display().to_string())?;
    Ok(Local { name: TMPFS, root, kind: Kind::Folder })
}

/// Whether a directory is in memory.
///
/// # Errors
/// There is no such directory.
pub fn is_tmpfs(folder: &Path) -> anyhow::Result<bool> {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    Ok(rustix::fs::statfs(folder).with_context(|| folder.display().to_string())?.f_type == TMPFS_MAGIC)
}

/// A new xfs in a file, through the loop device.
///
/// # Errors
/// Why it cannot be made on this machine.
pub fn xfs(run: &Run) -> anyhow::Result<Local> {
    if !rustix::process::geteuid().is_root() {
        bail!("only root can mount it");
    }
    let words = |program: &str, words: &[&str]| -> anyhow::Result<()> {
        let output = guardian::mark(Command::new(program).args(words)).output().with_context(|| program.to_owned())?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(anyhow!("{program}: {}", text.lines().next().unwrap_or("it failed")))
    };
    let root = run.folder("xfs")?;
    let image = root.with_extension("img");
    let file = std::fs::File::create(&image).with_context(|| image.display().to_string())?;
    file.set_len(4 << 30).with_context(|| image.display().to_string())?;
    let (image, place) = (image.display().to_string(), root.display().to_string());
    words("mkfs.xfs", &["-q", "-f", &image])?;
    words("mount", &["-o", "loop", &image, &place])?;
    Ok(Local { name: XFS, root, kind: Kind::Mount })
}

/// How the work of a phase is spread over directories and mounts.
#[derive(Clone, Debug)]
pub struct Spread {
    /// Worker `r` works on `roots[r % len]`.
    pub roots: Vec<PathBuf>,
    /// The directory below the roots.
    pub folder: String,
    /// The number of workers.
    pub workers: usize,
    /// The files of each worker.
    pub count: u64,
    /// Whether all work in one directory, instead of each in its own.
    pub shared: bool,
    /// In jobs on existing files, worker `r` uses the files that worker `r + stride` made.
    pub stride: usize,
}

impl Spread {
    fn home(&self, owner: usize) -> PathBuf {
        let name = if self.shared { "shared".to_owned() } else { format!("unique{owner}") };
        Path::new(&self.folder).join(name)
    }

    /// Makes the directories.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn prepare(&self) -> anyhow::Result<()> {
        (0..self.workers).try_for_each(|owner| {
            let folder = self.roots[0].join(self.home(owner));
            std::fs::create_dir_all(&folder).with_context(|| format!("cannot make '{}'", folder.display()))
        })
    }

    /// Removes the directories, with everything that is left in them.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn clean(&self) -> anyhow::Result<()> {
        let folder = self.roots[0].join(&self.folder);
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove '{}'", folder.display()))
    }

    /// The part of each worker in a job.
    pub fn tasks(&self, job: Job, prefix: &str) -> Vec<Task> {
        let makes = matches!(job, Job::Create { .. } | Job::Open | Job::Close | Job::MakeDirectory);
        let task = |rank: usize| {
            let owner = if makes { rank } else { (rank + self.stride) % self.workers };
            let folder = self.roots[rank % self.roots.len()].join(self.home(owner));
            Task { job, folder, prefix: format!("{prefix}.{owner}."), count: self.count, stop_file: None, order: None }
        };
        (0..self.workers).map(task).collect()
    }
}

/// The result of a phase.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Operations per second.
    pub rate: f64,
    /// Microseconds per operation.
    pub us: f64,
    /// The resources that servers and mounts used for each operation; `None` for other file systems.
    pub each: Option<Each>,
}

/// Requests and CPU time for each operation.
#[derive(Clone, Copy, Debug)]
pub struct Each {
    /// Requests.
    pub requests: f64,
    /// CPU time of the mounts, in microseconds.
    pub client_cpu_us: f64,
    /// CPU time of the servers, in microseconds.
    pub server_cpu_us: f64,
}

/// How long a phase's background work (closes, returned locks) may continue before it is counted.
const AFTER: Duration = Duration::from_millis(20);

impl Sample {
    fn of(took: &Took, used: Option<Usage>) -> Sample {
        let all = took.operations.max(1) as f64;
        Sample {
            rate: took.operations as f64 / took.seconds.max(1e-9),
            us: took.seconds * 1e6 / all,
            each: used.map(|used| Each {
                requests: used.requests as f64 / all,
                client_cpu_us: used.client_cpu_us / all,
                server_cpu_us: used.server_cpu_us / all,
            }),
        }
    }
}

/// Runs a phase; with a cluster, also measures the resources that it used.
///
/// # Errors
/// As for [`Pool::phase`].
pub fn phase(run: &Run, pool: &mut Pool, tasks: &[Task], cluster: Option<&mut Cluster>) -> anyhow::Result<Sample> {
    match cluster {
        Some(cluster) => Ok(measured(run, pool, tasks, cluster, AFTER, Cluster::usage)?.0),
        None => Ok(Sample::of(&pool.phase(run, tasks, &mut || Ok(()))?, None)),
    }
}

/// Runs a phase on a cluster, and measures with `usage` what it used until `after` its end.
///
/// # Errors
/// As for [`Pool::phase`].
pub fn measured(
    run: &Run,
    pool: &mut Pool,
    tasks: &[Task],
    cluster: &mut Cluster,
    after: Duration,
    usage: impl Fn(&Cluster) -> Usage,
) -> anyhow::Result<(Sample, Took)> {
    let before = usage(cluster);
    let took = match pool.phase(run, tasks, &mut || cluster.check()) {
        Ok(took) => took,
        Err(error) => {
            // If a process has ended, report that instead of the error that it caused in a program.
            cluster.check()?;
            return Err(error);
        }
    };
    std::thread::sleep(after);
    Ok((Sample::of(&took, Some(usage(cluster).since(before))), took))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_go_over_mounts_and_makers() {
        let spread = Spread {
            roots: vec!["/m0".into(), "/m1".into()],
            folder: "x".into(),
            workers: 3,
            count: 5,
            shared: false,
            stride: 1,
        };
        let places = |job| -> Vec<String> {
            spread.tasks(job, "f").iter().map(|task| format!("{}/{}", task.folder.display(), task.prefix)).collect()
        };
        assert_eq!(places(Job::Create { size: 0 }), ["/m0/x/unique0/f.0.", "/m1/x/unique1/f.1.", "/m0/x/unique2/f.2."]);
        assert_eq!(places(Job::Stat), ["/m0/x/unique1/f.1.", "/m1/x/unique2/f.2.", "/m0/x/unique0/f.0."]);
        let shared = Spread { shared: true, stride: 0, ..spread };
        assert_eq!(shared.tasks(Job::Stat, "f")[2].folder, Path::new("/m0/x/shared"));
        assert_eq!(shared.tasks(Job::Stat, "f")[2].prefix, "f.2.");
    }
}
