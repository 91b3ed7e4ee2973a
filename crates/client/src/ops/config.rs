//! Mounting: the MGS, the configuration, its targets, the root; and following changes of the configuration.
//!
//! The MGS is connected first. When it answers (and whenever it reports a change, or reconnects) the configuration is
//! fetched: new targets are connected, and imports of targets that moved or restarted get the new addresses. The mount
//! is complete when MDT0000 has returned the root.

use core::time::Duration;

use proto::msg::{Config, ConfigGetReq, Param};
use proto::{Errno, Fid, Nid, Opcode, TargetKind, TargetName};
use rpc::client::Trouble;
use std::str::FromStr;

use crate::api::Effect;
use crate::base::Dest;
use crate::base::Step;
use crate::base::WaitKey;
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::fids;
use crate::coherence::op::Task;
use crate::coherence::request::Pending;
use crate::coherence::request::Request;
use crate::coherence::world::World;
use crate::ops;
use crate::ops::params;
use crate::session::Target;

/// Starts to mount.
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
    w.mount_look = Some(now + FIRST_LOOK);
    w.imports.add(&options, now, Dest::Mgs, "MGS".to_owned(), options.mgs.clone(), 0);
}

/// A mount that takes longer than this reports what it waits for, and from then on whenever that changes.
const FIRST_LOOK: Duration = Duration::from_secs(2);
const NEXT_LOOK: Duration = Duration::from_secs(1);

/// Reports what the mount waits for. A soft mount is given up when the MGS, or after its answer the root, has not
/// arrived in time.
pub(crate) fn tick(w: &mut World) {
    if w.mount_deadline.is_some_and(|at| at <= w.now) {
        let reason = not_in_time(w);
        fail(w, reason);
    }
    if w.mount_look.is_some_and(|at| at <= w.now) {
        w.mount_look = Some(w.now + NEXT_LOOK);
        let on = waits_for(w);
        if on != w.mount_waits {
            w.log(format!("the mount waits: {}", on.join("; ")));
            w.mount_waits.clone_from(&on);
            w.effect(Effect::MountWaits { on });
        }
    }
}

fn not_in_time(w: &World) -> String {
    format!(
        "file system '{}' could not be mounted within {} s: {}; mount without 'soft' to wait",
        w.options.fsname,
        w.options.soft.unwrap_or_default().as_secs(),
        waits_for(w).join("; "),
    )
}

/// The targets whose answers an incomplete mount lacks, with the known reasons: first the one that blocks everything,
/// then other unreachable targets.
fn waits_for(w: &World) -> Vec<String> {
    let needed = if w.config_version == 0 { Dest::Mgs } else { Dest::Mdt(0) };
    let mut lines = vec![match w.imports.get(needed) {
        Some(target) => missing_answer(w, target),
        None => {
            format!("file system '{}' has no MDT0000 yet: {} knows none", w.options.fsname, target_label(w, Dest::Mgs))
        }
    }];
    let others = w.imports.iter().filter(|target| target.dest != needed && !target.is_full());
    lines.extend(others.filter(|target| target.import.trouble().is_some()).map(|target| missing_answer(w, target)));
    lines
}

/// Why a target has not answered.
fn missing_answer(w: &World, target: &Target<Pending>) -> String {
    let name = target_label(w, target.dest);
    match target.import.trouble() {
        Some(Trouble::Unreachable(reason)) => format!("cannot reach {name}: {reason}; is it served there?"),
        Some(Trouble::HungUp) => format!("{name} closed the connection without an answer"),
        Some(Trouble::Refused { errno, reason }) => refusal(&name, *errno, reason),
        Some(Trouble::Silent) | None => format!("no answer from {name}"),
    }
}

/// The name and addresses of a target, for messages.
fn target_label(w: &World, dest: Dest) -> String {
    let nids = w.imports.get(dest).map_or_else(|| w.options.mgs.clone(), |target| target.import.nids().to_vec());
    let nids = nids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match dest {
        Dest::Mgs => format!("the MGS at {nids}"),
        _ => format!("{} at {nids}", w.target_name(dest)),
    }
}

fn refusal(name: &str, errno: Errno, reason: &str) -> String {
    let why = if reason.is_empty() { errno.to_string() } else { reason.to_owned() };
    format!("{name} refuses this client: {why}")
}

/// Fails the mount for good.
pub(crate) fn fail(w: &mut World, reason: String) {
    if !w.mounted && !w.failed {
        w.failed = true;
        (w.mount_deadline, w.mount_look) = (None, None);
        w.effect(Effect::MountFailed { reason });
        w.wake(WaitKey::Mounted);
    }
}

/// A target refuses this client.
pub(crate) fn refused(w: &mut World, dest: Dest, errno: Errno, reason: &str) {
    let line = refusal(&target_label(w, dest), errno, reason);
    if !w.mounted && matches!(errno, Errno::EPROTO | Errno::EACCES | Errno::EPERM | Errno::EROFS) {
        fail(w, line);
    } else {
        w.log_warn(line);
    }
}

/// One attempt to fetch and follow the configuration.
pub(crate) fn follow(cx: &mut Cx<'_>) -> Run<()> {
    match fetch(cx, Step::Main) {
        Err(Stop::Errno(Errno::ENOENT)) => {
            let (mgs, fsname) = (target_label(cx.w, Dest::Mgs), &cx.w.options.fsname);
            let reason = format!("{mgs} knows no file system '{fsname}'; check the name");
            fail(cx.w, reason);
            Ok(())
        }
        result => result,
    }
}

/// Fetches the configuration and follows it.
fn fetch(cx: &mut Cx<'_>, step: Step) -> Run<()> {
    let frame = cx.rpc(step, Dest::Mgs, Opcode::MgsConfigGet, |w, _| {
        Request::new(&ConfigGetReq { fsname: w.options.fsname.clone() })
    })?;
    let config: Config = frame.decode().map_err(|_| Errno::EPROTO)?;
    take(cx.w, config);
    Ok(())
}

/// Fetches the configuration for an operation that needs a newer one, once. Returns whether it was asked for; not if the
/// MGS is away.
fn fetch_again(cx: &mut Cx<'_>) -> Run<bool> {
    let reachable = cx.w.imports.get(Dest::Mgs).is_some_and(Target::is_full);
    if !reachable && !cx.began(Step::Configuration) {
        return Ok(false);
    }
    match fetch(cx, Step::Configuration) {
        Err(Stop::Wait) => Err(Stop::Wait),
        // An error leaves the configuration as it is.
        _ => Ok(true),
    }
}

/// Makes sure that a metadata target is known that a program has named: it may have been added a moment ago, so the
/// configuration is fetched once more. Waits for an MGS that is away. `ENODEV`: there is no such target.
pub(crate) fn know(cx: &mut Cx<'_>, dest: Dest) -> Run<()> {
    if cx.w.imports.get(dest).is_some() {
        return Ok(());
    }
    if !fetch_again(cx)? {
        return Err(cx.wait(WaitKey::Target(Dest::Mgs)));
    }
    if cx.w.imports.get(dest).is_some() { Ok(()) } else { Err(Errno::ENODEV.into()) }
}

/// The metadata target of an object. If it is not known, the configuration is fetched once more: a target may have got the
/// object's sequence, or may have been added, a moment ago. Without an answer, objects are taken for those of MDT0000.
pub(crate) fn locate(cx: &mut Cx<'_>, fid: Fid) -> Run<Dest> {
    let dest = cx.w.mdt_of(fid);
    if cx.w.fld.knows(fid.seq) && cx.w.imports.get(dest).is_some() || !cx.w.fld.is_worth_asking(fid.seq) {
        return Ok(dest);
    }
    if fetch_again(cx)? {
        stdx::mark!("unknown_sequence");
        cx.w.fld.asked(fid.seq);
    } else if cx.w.imports.get(dest).is_none() {
        // It is known to be there, and its address is not.
        return Err(cx.wait(WaitKey::Target(Dest::Mgs)));
    }
    Ok(cx.w.mdt_of(fid))
}

/// Applies a configuration.
fn take(w: &mut World, config: Config) {
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
            w.imports.relocated(now, dest, nids, entry.instance);
        } else {
            w.add_target(dest, entry.target, nids, entry.instance);
            if let Some(target) = w.imports.get_mut(dest) {
                target.import.clear_mod_rpcs_histogram(wall_ns);
            }
            w.wake(WaitKey::Target(dest));
            // Parameters for the new target may have been set when it was unknown.
            w.config_params.clear();
        }
    }
    w.fld.publish(&config.sequences);
    w.pools = config.pools.into_iter().map(|pool| (pool.name, pool.osts)).collect();
    set_params(w, config.params);
    if w.imports.get(Dest::Mdt(0)).is_none() {
        w.log(format!("file system '{}' has no MDT0000 yet; waiting for it", options.fsname));
    } else if !w.mounted && !w.rooting {
        w.rooting = true;
        w.spawn(Task::Root);
    }
}

/// Sets the new persistent parameters that concern a client. (The others were set before, and may have been changed by
/// hand since.)
fn set_params(w: &mut World, params: Vec<Param>) {
    let mut left: Vec<Param> = params.iter().filter(|param| !w.config_params.contains(param)).cloned().collect();
    // A parameter may be refused until another one is set (`max_mod_rpcs_in_flight` stays below `max_rpcs_in_flight`),
    // and they may be stored in any order.
    loop {
        let refused: Vec<(Param, Errno)> = left
            .iter()
            .filter_map(|param| match params::set(w, &param.path, &param.value) {
                Ok(()) | Err(Errno::ENOENT) => None,
                Err(errno) => Some((param.clone(), errno)),
            })
            .collect();
        if refused.is_empty() || refused.len() == left.len() {
            for (Param { path, value }, errno) in refused {
                w.log_warn(format!("persistent parameter {path}={value} cannot be set on this client: {errno}"));
            }
            break;
        }
        left = refused.into_iter().map(|(param, _)| param).collect();
    }
    w.config_params = params;
}

/// One attempt to look up the root, which completes the mount.
pub(crate) fn root(cx: &mut Cx<'_>) -> Run<()> {
    let rep = ops::fetch(cx, Step::Attr, Fid::ROOT)?;
    if rep.attr.is_none() {
        return Err(Errno::EPROTO.into());
    }
    cx.w.mounted = true;
    (cx.w.mount_deadline, cx.w.mount_look) = (None, None);
    if !cx.w.options.read_only {
        fids::prepare(cx.w, Dest::Mdt(0));
    }
    cx.w.effect(Effect::Mounted);
    cx.w.wake(WaitKey::Mounted);
    Ok(())
}

/// The lookup of the root failed.
pub(crate) fn root_failed(w: &mut World, errno: Errno) {
    let generation = w.imports.get(Dest::Mdt(0)).map_or(0, |target| target.import.generation());
    if errno == Errno::EIO && generation != w.root_generation {
        // The request was lost with an eviction, which loses nothing here: it is sent again.
        stdx::mark!("mount_evicted");
        w.root_generation = generation;
        w.spawn(Task::Root);
        return;
    }
    w.rooting = false;
    // The request fails when a soft mount has waited long enough.
    let reason = match w.imports.get(Dest::Mdt(0)) {
        Some(target) if target.is_full() => {
            format!("{} did not return the root of file system '{}': {errno}", target.name, w.options.fsname)
        }
        _ => not_in_time(w),
    };
    fail(w, reason);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{AccessTimes, Instance, MAX_NODES_DEFAULT, Options, Timeouts};

    fn world() -> World {
        let options = Options {
            uuid: proto::ClientUuid(1),
            seed: 1,
            instance: Instance(0xffff_0000_0000_0001),
            fsname: "fs".to_owned(),
            mgs: vec![Nid::Unix("mgs".into())],
            description: String::new(),
            read_only: false,
            max_dirty: 1 << 20,
            max_cached: 1 << 20,
            max_read_ahead: 0,
            max_nodes: MAX_NODES_DEFAULT,
            soft: None,
            rename_wait: Duration::ZERO,
            timeouts: Timeouts::default(),
            always_ping: false,
            access_times: AccessTimes::default(),
            directory_access_times: AccessTimes::default(),
            write_back_after: Duration::from_secs(1),
            max_rpcs_in_flight: 8,
            max_mod_rpcs_in_flight: 7,
            sync_metadata: false,
            faults: stdx::Faults::none(),
        };
        let mut w = World::new(options.clone());
        w.add_target(Dest::Mdt(0), "fs-MDT0000".to_owned(), vec![Nid::Unix("mdt".into())], 1);
        w
    }

    fn param(leaf: &str, value: &str) -> Param {
        Param { path: format!("mdc.fs-MDT0000-mdc-*.{leaf}"), value: value.to_owned() }
    }

    #[test]
    fn dependent_settings_are_applied_in_any_order() {
        let mut w = world();
        let raise = param("max_mod_rpcs_raise", "1");
        let requests = param("max_rpcs_in_flight", "8");
        // Refused until the raise is allowed, which comes later in the list.
        set_params(&mut w, vec![param("max_mod_rpcs_in_flight", "8"), raise, requests]);
        let import = &w.imports.get(Dest::Mdt(0)).unwrap().import;
        assert_eq!((import.rpcs_in_flight(), import.mod_rpcs_in_flight()), (9, 8));
        assert!(w.effects.is_empty(), "no complaints");

        let mut w = world();
        set_params(&mut w, vec![param("max_mod_rpcs_in_flight", "8"), param("max_mod_rpcs_raise", "2")]);
        let import = &w.imports.get(Dest::Mdt(0)).unwrap().import;
        assert_eq!((import.rpcs_in_flight(), import.mod_rpcs_in_flight()), (8, 7));
        let complaints = w.effects.iter().filter(|effect| matches!(effect, Effect::Log(..))).count();
        assert_eq!(complaints, 2, "what stays refused is logged, once");
    }
}
