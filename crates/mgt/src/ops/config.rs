//! Config: the targets, parameters and pools of a file system.
//!
//! An export that requests the configuration of a file system becomes a watcher. While the export lasts, every change is
//! announced to it with the new version, and it requests the configuration again. A notice may be lost with a connection, so
//! peers also request the configuration after each reconnect.
//!
//! A request for a file system that does not exist gets `ENOENT`, and its creation is announced like a change.

use std::collections::BTreeSet;

use proto::msg::{Config, ConfigGetReq};
use proto::{Errno, Opcode, TargetName};
use target::{Cx, Reply, Request, Stop, Task};

use crate::Mgt;

/// The most file systems that one export may watch.
const WATCHED_MAX: usize = 8;

/// Runs one attempt.
pub fn attempt(mgt: &mut Mgt, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    let req: ConfigGetReq = request.decode()?;
    if !TargetName::fsname_is_valid(&req.fsname) {
        return Err(Errno::EINVAL.into());
    }
    // No crash may undo a version that was sent: another change would get the same version.
    cx.hold_until_durable();
    let watched: &mut BTreeSet<String> = mgt.watchers.entry(cx.export()).or_default();
    if watched.len() >= WATCHED_MAX && !watched.contains(&req.fsname) {
        watched.pop_first();
    }
    watched.insert(req.fsname.clone());
    let fs = mgt.table.get(&req.fsname).ok_or(Errno::ENOENT)?;
    Ok(Reply::new(&fs.config(&req.fsname)))
}

/// Starts to announce changes that are durable.
pub fn durable(mgt: &mut Mgt, cx: &mut Cx<'_>) {
    let mut names = BTreeSet::new();
    while mgt.unannounced.front().is_some_and(|(transno, _)| *transno <= cx.last_committed()) {
        names.extend(mgt.unannounced.pop_front().map(|(_, fsname)| fsname));
    }
    for fsname in names {
        cx.spawn(Task::new("announce a new configuration", Announce(fsname)));
    }
}

/// A task: announces the new version of a file system's configuration to its watchers.
struct Announce(String);

/// Runs the task.
pub fn announce(mgt: &Mgt, cx: &mut Cx<'_>, task: &Task) {
    let Some(Announce(fsname)) = task.get::<Announce>() else { return };
    let Some(fs) = mgt.table.get(fsname) else { return };
    let notice = Config { version: fs.record.config_version, fsname: fsname.clone(), ..Config::default() };
    for (export, watched) in &mgt.watchers {
        if watched.contains(fsname) {
            cx.notify(*export, Opcode::MgsConfigChanged, &notice);
        }
    }
}
