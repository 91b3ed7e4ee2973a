//! Mounting: the MGS, the configuration, the targets in it, the root; and following the configuration as it changes.
//!
//! The MGS is dialled first. When it answers (and whenever it says that something changed, or comes back) the
//! configuration is fetched: new targets are dialled, targets that moved or restarted are told so. The mount is complete
//! when the root is known from MDT0000.

use bytes::Bytes;
use proto::msg::{Config, ConfigGetReq, Param};
use proto::{Errno, Fid, Nid, Opcode, TargetKind, TargetName};
use std::str::FromStr;

use crate::api::Effect;
use crate::cx::{Cx, Run, Stop};
use crate::imports::{self, Dest};
use crate::op::{Task, WaitKey};
use crate::ops;
use crate::params;
use crate::world::World;

/// Begins to mount.
pub(crate) fn start(w: &mut World) {
    let (options, now) = (w.options.clone(), w.now);
    if !TargetName::fsname_is_valid(&options.fsname) {
        fail(w, format!("'{}' is not a file system name; expected 1 to 8 of A-Z a-z 0-9 _", options.fsname));
        return;
    }
    if options.mgs.is_empty() {
        fail(w, "no address of the MGS; expected HOST:PORT:/FSNAME or unix:PATH:/FSNAME".to_owned());
        return;
    }
    w.mount_deadline = options.soft.map(|soft| now + soft);
    w.imports.add(&options, now, Dest::Mgs, "MGS".to_owned(), options.mgs.clone(), 0);
}

/// A soft mount is given up when neither the MGS nor, after its answer, the root came in time.
pub(crate) fn tick(w: &mut World) {
    if w.mount_deadline.is_none_or(|at| at > w.now) {
        return;
    }
    let options = &w.options;
    let nids: Vec<String> = options.mgs.iter().map(ToString::to_string).collect();
    let soft = options.soft.unwrap_or_default().as_secs();
    let why = w.mgs_trouble.clone().unwrap_or_else(|| format!("no answer from the MGS at {}", nids.join(", ")));
    let line = format!(
        "file system '{}' could not be mounted within {soft} s: {why}; check the address and that 'adamant serve' runs there, or leave 'soft' away to wait",
        options.fsname,
    );
    fail(w, line);
}

/// The mount cannot be.
pub(crate) fn fail(w: &mut World, reason: String) {
    if !w.mounted && !w.failed {
        w.failed = true;
        w.mount_deadline = None;
        w.effect(Effect::MountFailed { reason });
        w.wake(WaitKey::Mounted);
    }
}

/// The MGS could not be dialled.
pub(crate) fn mgs_not_reached(w: &mut World, reason: &str) {
    let nids: Vec<String> = w.options.mgs.iter().map(ToString::to_string).collect();
    let line = format!("cannot reach the MGS at {}: {reason}", nids.join(", "));
    if w.mgs_trouble.as_ref() != Some(&line) {
        w.log(format!("{line}; trying on"));
        w.mgs_trouble = Some(line);
    }
}

/// A target refuses this client.
pub(crate) fn refused(w: &mut World, dest: Dest, errno: Errno, reason: &str) {
    let name = match dest {
        Dest::Mgs => {
            format!("the MGS at {}", w.options.mgs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
        }
        _ => w.target_name(dest),
    };
    let line = if reason.is_empty() {
        format!("{name} refuses this client: {errno}")
    } else {
        format!("{name} refuses this client: {reason}")
    };
    if !w.mounted && matches!(errno, Errno::EPROTO | Errno::EACCES | Errno::EPERM | Errno::EROFS) {
        fail(w, line);
    } else {
        if dest == Dest::Mgs || !w.mounted {
            w.mgs_trouble = Some(line.clone());
        }
        w.log(line);
    }
}

/// One attempt to fetch and follow the configuration.
pub(crate) fn follow(cx: &mut Cx<'_>) -> Run<()> {
    let fsname = cx.w.options.fsname.clone();
    let result = cx.rpc(ops::step::MAIN, Dest::Mgs, Opcode::MgsConfigGet, || {
        (ConfigGetReq { fsname: fsname.clone() }, Bytes::new())
    });
    let frame = match result {
        Ok(frame) => frame,
        Err(Stop::Errno(Errno::ENOENT)) => {
            let nids: Vec<String> = cx.w.options.mgs.iter().map(ToString::to_string).collect();
            fail(cx.w, format!("the MGS at {} knows no file system '{fsname}'; check the name", nids.join(", ")));
            return Ok(());
        }
        Err(stop) => return Err(stop),
    };
    let config: Config = frame.decode().map_err(|_| Errno::EPROTO)?;
    take(cx.w, config);
    Ok(())
}

/// Follows a configuration.
fn take(w: &mut World, config: Config) {
    w.mgs_trouble = None;
    if config.version < w.config_version {
        return;
    }
    if w.config_version == 0 && w.mount_deadline.is_some() {
        w.mount_deadline = w.options.soft.map(|soft| w.now + soft);
    }
    w.config_version = config.version;
    let (options, now, wall_ns) = (w.options.clone(), w.now, w.wall_ns);
    for entry in config.targets {
        let Ok(name) = TargetName::from_str(&entry.target) else {
            w.log(format!("the configuration names a target '{}' that this version does not understand", entry.target));
            continue;
        };
        let dest = match name.kind {
            TargetKind::Mgt => continue,
            TargetKind::Mdt => Dest::Mdt(name.index.0),
            TargetKind::Ost => Dest::Ost(name.index.0),
        };
        let nids: Vec<Nid> = entry.nids.iter().filter_map(|nid| Nid::from_str(nid).ok()).collect();
        if nids.is_empty() {
            continue;
        }
        if w.imports.get(dest).is_some() {
            imports::moved(w, dest, nids, entry.instance);
        } else {
            w.imports.add(&options, now, dest, entry.target, nids, entry.instance);
            if let Some(target) = w.imports.get_mut(dest) {
                target.rpc_stats_since_ns = wall_ns;
            }
            w.wake(WaitKey::Target(dest));
            // Parameters with its name were set when there was none.
            w.config_params.clear();
        }
    }
    set_params(w, config.params);
    if w.imports.get(Dest::Mdt(0)).is_none() {
        let line = format!("file system '{}' has no MDT0000 yet", options.fsname);
        w.log(format!("{line}; waiting for it"));
        w.mgs_trouble = Some(line);
    } else if !w.mounted && !w.rooting {
        w.rooting = true;
        w.spawn(Task::Root);
    }
}

/// Sets the persistent parameters that are new, as far as they are a client's. (Others were set before, and may have been
/// set otherwise since.)
fn set_params(w: &mut World, told: Vec<Param>) {
    for param in told.iter().filter(|param| !w.config_params.contains(param)).cloned().collect::<Vec<_>>() {
        match params::set(w, &param.path, &param.value) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => {
                w.log(format!("persistent parameter {}={} cannot be set here: {errno}", param.path, param.value));
            }
        }
    }
    w.config_params = told;
}

/// One attempt to find the root: the mount is complete then.
pub(crate) fn root(cx: &mut Cx<'_>) -> Run<()> {
    let rep = ops::fetch(cx, Fid::ROOT)?;
    if rep.attr.is_none() {
        return Err(Errno::EPROTO.into());
    }
    cx.w.mounted = true;
    cx.w.mount_deadline = None;
    if !cx.w.options.read_only && !cx.w.sequences.asked {
        cx.w.sequences.asked = true;
        cx.spawn(Task::Sequence);
    }
    cx.w.effect(Effect::Mounted);
    cx.w.wake(WaitKey::Mounted);
    Ok(())
}

/// The root could not be had.
pub(crate) fn root_failed(w: &mut World, errno: Errno) {
    w.rooting = false;
    let name = w.target_name(Dest::Mdt(0));
    fail(w, format!("{name} does not give the root of file system '{}': {errno}", w.options.fsname));
}
