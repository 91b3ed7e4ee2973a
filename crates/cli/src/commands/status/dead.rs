//! Mounts whose process has died: every use of them fails until they are unmounted.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::Process;

/// A mount without a process.
pub(crate) struct DeadMount {
    /// The source of the mount, such as `127.0.0.1:7988:/demo`.
    pub source: String,
    /// The mount point.
    pub place: PathBuf,
}

/// How long to wait for the check of a mount; one that hangs counts as alive.
const PATIENCE: Duration = Duration::from_secs(3);

impl DeadMount {
    /// The dead mounts of this machine that are `meant`. Mounts of running processes are not checked, because that could
    /// keep them busy.
    pub(crate) fn all(running: &[Process], meant: impl Fn(&DeadMount) -> bool) -> Vec<DeadMount> {
        let known = |place: &Path| running.iter().any(|process| process.role == "mount" && process.is_at(place));
        let listed = fuse::mounts().into_iter().filter(|mount| !known(&mount.place));
        let listed = listed.map(|mount| DeadMount { source: mount.source, place: mount.place });
        let (sender, answers) = mpsc::channel();
        for mount in listed.filter(meant) {
            let sender = sender.clone();
            // A mount that hangs, perhaps of another user, blocks only this thread.
            std::thread::spawn(move || {
                if is_dead(&mount.place) {
                    let _ = sender.send(mount);
                }
            });
        }
        drop(sender);
        let until = Instant::now() + PATIENCE;
        let next = || answers.recv_timeout(until.saturating_duration_since(Instant::now())).ok();
        let mut found: Vec<DeadMount> = std::iter::from_fn(next).collect();
        found.sort_by(|a, b| a.place.cmp(&b.place));
        found
    }

    /// Whether its MGS was at one of these addresses.
    pub(crate) fn is_mounted_from(&self, nids: &[String]) -> bool {
        nids.iter().any(|nid| self.source.strip_prefix(nid.as_str()).is_some_and(|rest| rest.starts_with(':')))
    }

    /// The file system.
    pub(crate) fn fsname(&self) -> &str {
        let path = self.source.rsplit_once(":/").map_or("", |(_, path)| path);
        path.split('/').next().unwrap_or_default()
    }
}

/// Whether the mount at a place has lost its process.
pub(crate) fn is_dead(place: &Path) -> bool {
    rustix::fs::statfs(place).is_err_and(|errno| errno == rustix::io::Errno::NOTCONN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_mount_is_known_by_its_source() {
        let source = "unix:/run/adamant/up-1:/demo/sub".to_owned();
        let mount = DeadMount { source, place: PathBuf::from("/mnt") };
        assert_eq!(mount.fsname(), "demo");
        assert!(mount.is_mounted_from(&["unix:/run/adamant/up-1".to_owned()]));
        assert!(!mount.is_mounted_from(&["unix:/run/adamant/up".to_owned()]));
        assert!(!is_dead(Path::new("/")));
    }
}
