//! Config: the targets and parameters of a file system. Who asked is told of changes while its export lasts; told means
//! "version so-and-so is there", and it asks again. A notice that is lost with a connection is made up for by asking after
//! each reconnect.
//!
//! Who asks for a file system that does not exist gets `ENOENT`, and is told when it comes into being.

use std::collections::BTreeSet;

use proto::msg::{Config, ConfigGetReq};
use proto::{Errno, Opcode, TargetName};
use target::{Cx, Reply, Request, Stop, Task};

use crate::Mgt;

/// File systems that one export may watch.
const WATCHED_MAX: usize = 8;

/// One attempt.
pub fn attempt(mgt: &mut Mgt, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    let req: ConfigGetReq = request.decode()?;
    if !TargetName::fsname_is_valid(&req.fsname) {
        return Err(Errno::EINVAL.into());
    }
    // What is told must not be taken back by a crash: another change would get the same version.
    cx.hold_until_durable();
    let watched: &mut BTreeSet<String> = mgt.watchers.entry(cx.export()).or_default();
    if watched.len() >= WATCHED_MAX && !watched.contains(&req.fsname) {
        watched.pop_first();
    }
    watched.insert(req.fsname.clone());
    let fs = mgt.table.get(&req.fsname).ok_or(Errno::ENOENT)?;
    Ok(Reply::new(&fs.config(&req.fsname)))
}

/// Begins to tell of changes that are durable.
pub fn durable(mgt: &mut Mgt, cx: &mut Cx<'_>) {
    let mut names = BTreeSet::new();
    while mgt.untold.front().is_some_and(|(transno, _)| *transno <= cx.last_committed()) {
        names.extend(mgt.untold.pop_front().map(|(_, fsname)| fsname));
    }
    for fsname in names {
        cx.spawn(Task::new("tell of a new configuration", Tell(fsname)));
    }
}

/// A task: everybody who asked for this file system is told.
struct Tell(String);

/// One attempt.
pub fn tell(mgt: &Mgt, cx: &mut Cx<'_>, task: &Task) {
    let Some(Tell(fsname)) = task.get::<Tell>() else { return };
    let Some(fs) = mgt.table.get(fsname) else { return };
    let notice = Config { version: fs.record.config_version, fsname: fsname.clone(), ..Config::default() };
    for (export, watched) in &mgt.watchers {
        if watched.contains(fsname) {
            cx.notify(*export, Opcode::MgsConfigChanged, &notice);
        }
    }
}
