//! Work without a caller that failed.

use proto::Errno;

use super::config;
use crate::base::{Dest, WaitKey};
use crate::coherence::op::Task;
use crate::coherence::world::World;

/// Background work failed.
pub(crate) fn failed(w: &mut World, task: &Task, errno: Errno) {
    match task {
        Task::Root => config::root_failed(w, errno),
        Task::Sequence => {
            w.sequences.asked = false;
            w.sequences.failed = Some(errno);
            w.log(format!("no new FIDs from {}: {errno}", w.target_name(Dest::Mdt(0))));
            // Who waits asks again.
            w.wake(WaitKey::Sequence);
        }
        Task::Listing { ino } => {
            if let Some(dir) = w.nodes.get_mut(*ino).and_then(|node| node.dir.as_mut()) {
                dir.fetching = false;
            }
        }
        // Whoever waits for it asks by himself.
        Task::Next { fh, ino, number, .. } => super::dir::next_is(w, *fh, *ino, *number, None),
        Task::Ahead { ino } => {
            if let Some(dir) = w.nodes.get_mut(*ino).and_then(|node| node.dir.as_mut()) {
                dir.sweep = None;
            }
        }
        Task::Config if !w.mounted => w.log(format!("the MGS gives no configuration: {errno}; trying on")),
        Task::Unmount => w.log(format!("unmount: {errno}")),
        _ => {}
    }
}
