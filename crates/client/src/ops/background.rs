//! Background work that failed.

use proto::Errno;

use super::config;
use crate::coherence::fids;
use crate::coherence::op::Task;
use crate::coherence::world::World;

/// Handles the failure of background work.
pub(crate) fn failed(w: &mut World, task: &Task, errno: Errno) {
    match task {
        Task::Root => config::root_failed(w, errno),
        Task::Sequence(dest) => fids::sequence_failed(w, *dest, errno),
        Task::Listing { ino } => {
            if let Some(dir) = w.nodes.get_mut(*ino).and_then(|node| node.dir.as_mut()) {
                dir.fetching = false;
            }
        }
        // Operations that wait for it send a request of their own.
        Task::Next { fh, ino, number, .. } => super::dir::next_arrived(w, *fh, *ino, *number, None),
        Task::Ahead { ino } => {
            if let Some(dir) = w.nodes.get_mut(*ino).and_then(|node| node.dir.as_mut()) {
                dir.sweep = None;
            }
        }
        Task::Config if !w.mounted => w.log(format!("the MGS returned no configuration: {errno}; retrying")),
        Task::Unmount => w.log(format!("unmount: {errno}")),
        _ => {}
    }
}
