//! The last oracle: after all clients have left and everything is durable, the contents of the stores must be consistent.
//!
//! All clients unmount. Within a bounded time no work may remain: no recovery that waits, no orphan, no destroy to send, no data
//! file without its object. What [`lfsck`] then finds in the stores of all targets is final. The targets must also hold nothing
//! for the clients that left: no session, lock, open file, promised space or reply record. Such a leftover would block others, or
//! fill memory and store, for ever. And an object target's counts of its objects and of their space must be correct.

use core::time::Duration;
use std::collections::BTreeMap;

use lfsck::Snapshot;
use proto::TargetKind;
use schema::session::{ClientRec, ReplyRec};
use schema::{DestroyLog, DoomedFile, Inode, Moving, Object, ObjectKey, Orphan, OstState, Record};
use target::{DataOp, DataResult};

use crate::world::mount::Mount;
use crate::world::net::Node;
use crate::world::server::{Limits, Server};
use crate::world::{Ended, World};

/// After this long without clients everything is at rest. The slowest are the records of moving files (a check each minute
/// removes unused ones) and destroys, which are retried each minute too. Before that, a target that restarted while a client left
/// may wait for that client, which could not tell it.
const REST_MAX: Duration = Duration::from_secs(200);
/// No frame is in flight for longer.
const LATE_MAX: Duration = Duration::from_secs(20);
/// Interval between two checks of the stores.
const STEP: Duration = Duration::from_secs(5);

/// The least value of `max_nodes`.
const NODES_LEAST: usize = 16;

/// Makes the kernels of all living clients forget everything, and the clients drop every lock and node that they can. Then no
/// lock is left, and no more nodes than a client may keep. Anything beyond that is held for a call that has ended, and would be
/// held for ever.
pub(crate) fn forget(world: &mut World) -> Result<(), String> {
    let living: Vec<usize> = (0..world.mounts.len())
        .filter(|&client| world.mounts[client].machine.is_some() && !world.mounts[client].leaving)
        .collect();
    for &client in &living {
        world.mounts[client].kernel.forget_all();
    }
    // Requests lost to a fault are resent after a timeout. Until then a lock may have to wait for dirty data, as it does for a
    // recovering target; and a client that mounts late takes locks when all should be given back.
    let longest = if world.plan.is_quiet() { STEP } else { Limits::of(&world.plan).recovery() + REST_MAX };
    let limit = world.now + longest;
    let rests = |mount: &Mount| mount.mounted && mount.machine.iter().all(|machine| machine.in_progress().is_empty());
    let all_rest =
        |world: &World| recovering(world).is_empty() && living.iter().all(|client| rests(&world.mounts[*client]));
    let ended = world.run(limit, all_rest)?;
    if ended == Ended::Late {
        return Err(format!("all programs have ended, and a client does not come to rest:{}", world.explain()));
    }
    // A target drops its client's locks on a removed file when it executes the last close, and says so in the reply. No program
    // waits for that reply, so it may still be in flight when all programs have ended.
    world.run(world.now + LATE_MAX, World::all_has_arrived)?;
    world.run(world.now + STEP, |_| false)?;
    agree_on_locks(world)?;
    for &client in &living {
        world.set_of(Node::Client(client), "ldlm.namespaces.*.lru_size", "clear");
        world.set_of(Node::Client(client), "llite.*.max_nodes", &NODES_LEAST.to_string());
    }
    world.run(world.now + STEP, |_| false)?;
    for &client in &living {
        let machine = world.mounts[client].machine.iter();
        for (path, value) in machine.flat_map(|machine| machine.get_params("ldlm.namespaces.*.lock_count")) {
            if value != "0" {
                return Err(format!("no program needs a lock, and {path} of client {client} is {value}"));
            }
        }
        let machine = world.mounts[client].machine.iter();
        for (path, value) in machine.flat_map(|machine| machine.get_params("llite.*.nodes")) {
            if value.parse().is_ok_and(|nodes: usize| nodes > NODES_LEAST) {
                return Err(format!("no program needs a node, and {path} of client {client} is {value}"));
            }
        }
    }
    Ok(())
}

/// At rest, the living clients hold the locks that the targets count for them, and no more. A client relies on a lock that it
/// believes it holds for its cache; a lock that a target believes is held keeps others waiting.
pub(crate) fn agree_on_locks(world: &World) -> Result<(), String> {
    // Targets alone count record locks.
    if world.plan.groups > 1 {
        return Ok(());
    }
    let living: Vec<usize> = (0..world.mounts.len())
        .filter(|&client| world.mounts[client].machine.is_some() && !world.mounts[client].leaving)
        .collect();
    let living_names: Vec<String> = living.iter().map(|client| format!("client {client}")).collect();
    let number = |value: &str| value.trim().parse::<u64>().unwrap_or(0);
    for server in &world.servers {
        let name = server.name.to_string();
        // A dead or leaving client, or the liar, may still have a session.
        let known = server.machine.iter().flat_map(|machine| machine.get_params("*.*.exports.*.description"));
        let known: Vec<String> = known.map(|(_, who)| who).collect();
        if known.iter().any(|who| !who.starts_with("simfs-") && !living_names.contains(who)) {
            continue;
        }
        // A client that a target gave up does not know it before its next request.
        let sessions = living.iter().filter(|client| known.contains(&format!("client {client}")));
        let counted = server.machine.iter().flat_map(|machine| machine.get_params("ldlm.namespaces.*.lock_count"));
        let counted: u64 = counted.map(|(_, value)| number(&value)).sum();
        if server.machine.is_none() || !server.serving {
            continue;
        }
        let of_client = |client: &usize| -> u64 {
            let machine = world.mounts[*client].machine.iter();
            let all = machine.flat_map(|machine| machine.get_params("ldlm.namespaces.*.lock_count"));
            all.filter(|(path, _)| path.contains(&format!(".{name}-"))).map(|(_, value)| number(&value)).sum()
        };
        let held: u64 = sessions.map(of_client).sum();
        // A lock that a target has and no client knows of ends with its session.
        if held > counted {
            return Err(format!("{name} says that {counted} locks are held, and its clients hold {held}"));
        }
    }
    Ok(())
}

/// Unmounts all clients, waits for rest, and reports what is wrong then.
pub(crate) fn check(world: &mut World) -> Result<(), String> {
    let living: Vec<usize> = (0..world.mounts.len())
        .filter(|&client| world.mounts[client].machine.is_some() && !world.mounts[client].leaving)
        .collect();
    for client in living {
        world.unmount(client);
    }
    let limit = world.now + Limits::of(&world.plan).recovery_soft + REST_MAX;
    loop {
        world.run(world.now + STEP, |_| false)?;
        let left = world.mounts.iter().all(|mount| mount.machine.is_none() || mount.unmounted);
        let wrong = if left { look(world)? } else { vec!["a client does not unmount".to_owned()] };
        if wrong.is_empty() {
            return Ok(());
        }
        if world.now >= limit {
            let lines: String = wrong.iter().map(|line| format!("\n  {line}")).collect();
            return Err(format!("the stores do not fit together at rest:{lines}"));
        }
    }
}

/// What is wrong or still to be done.
fn look(world: &mut World) -> Result<Vec<String>, String> {
    let mut wrong = recovering(world);
    let mut mdts = Vec::new();
    let mut osts = Vec::new();
    let servers = world.servers.len();
    let lands = every_change_lands(world);
    for server in &mut world.servers {
        let snapshot =
            Snapshot::of_engine(&server.engine).map_err(|error| format!("{} cannot be read: {error}", server.name))?;
        wrong.extend(left_behind(server, &snapshot, servers, world.plan.mdts));
        match server.name.kind {
            TargetKind::Mgt => {}
            TargetKind::Mdt => mdts.push(snapshot),
            TargetKind::Ost => {
                let DataResult::Files(files) = server.data.run(&DataOp::List { from: 0, limit: u32::MAX }) else {
                    return Err(format!("{} does not list its data files", server.name));
                };
                for file in files {
                    let known = snapshot
                        .range(&Object::all())
                        .any(|(_, body)| Object::decode_record(body).is_ok_and(|object| object.file == file));
                    if !known {
                        wrong.push(format!("{}: data file {file} belongs to no object", server.name));
                    }
                }
                for (key, _) in snapshot.range(&DoomedFile::all()) {
                    wrong.push(format!("{}: a data file is still to be removed: {key:?}", server.name));
                }
                wrong.extend(miscounted(server, &snapshot, lands));
                osts.push((server.name.index.0, snapshot));
            }
        }
    }
    for mdt in &mdts {
        for (key, _) in mdt.range(&Orphan::all()) {
            wrong.push(format!("an orphan is left: {:?}", Orphan::parse_key(key)));
        }
        for (key, _) in mdt.range(&Moving::all()) {
            wrong.push(format!("records of moving files are left: {:?}", Moving::parse_key(key)));
        }
        for (key, _) in mdt.range(&DestroyLog::all()) {
            wrong.push(format!("objects are still to be destroyed: {:?}", DestroyLog::parse_key(key)));
        }
    }
    let mdts: Vec<&Snapshot> = mdts.iter().collect();
    let osts: Vec<(u32, &Snapshot)> = osts.iter().map(|(index, snapshot)| (*index, snapshot)).collect();
    wrong.extend(lfsck::check(&mdts, &osts).iter().map(ToString::to_string));
    Ok(wrong)
}

/// Whether nothing can have left bytes in data files that no record knows of.
fn every_change_lands(world: &World) -> bool {
    let counts = &world.faults.counts;
    let given_up = counts.deaths + counts.power + counts.evictions + counts.partitions + counts.given_up;
    let never = given_up + counts.io_errors + counts.fills + counts.sites == 0 && !world.plan.liar;
    never && world.crashes.iter().all(|(_, name)| name.kind != TargetKind::Ost)
}

/// Wrong counts of an object target.
fn miscounted(server: &mut Server, snapshot: &Snapshot, every_change_lands: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let objects: Vec<(ObjectKey, Object)> = snapshot
        .range(&Object::all())
        .filter_map(|(key, body)| Some((Object::parse_key(key)?, Object::decode_record(body).ok()?)))
        .collect();
    let counted = snapshot
        .range(&OstState::all())
        .find_map(|(_, body)| OstState::decode_record(body).ok())
        .map_or(0, |state| state.objects);
    if counted != objects.len() as u64 {
        wrong.push(format!("{}: {counted} objects are counted, and there are {}", server.name, objects.len()));
    }
    for (key, object) in objects.iter().filter(|_| every_change_lands) {
        let found = match server.data.run(&DataOp::Stat { file: object.file }) {
            DataResult::Size(Some((_, blocks))) => blocks,
            _ => 0,
        };
        if object.blocks != found {
            wrong.push(format!(
                "{}: the record of {key:?} has {} blocks, its data file {found}",
                server.name, object.blocks
            ));
        }
    }
    wrong
}

/// Checks that objects have the owner of their file. A crash, or a write in flight, may leave an old owner, which does no harm;
/// so only stories without either use this check.
pub(crate) fn owners(world: &World) -> Result<(), String> {
    let read = |server: &Server| Snapshot::of_engine(&server.engine).map_err(|error| format!("{error}"));
    let mut files = BTreeMap::new();
    for server in world.servers.iter().filter(|server| server.name.kind == TargetKind::Mdt) {
        for (_, body) in read(server)?.range(&Inode::all()) {
            files.extend(Inode::decode_record(body).map(|inode| (inode.fid, (inode.uid, inode.gid))));
        }
    }
    for server in world.servers.iter().filter(|server| server.name.kind == TargetKind::Ost) {
        for (key, body) in read(server)?.range(&Object::all()) {
            let (Some(key), Ok(object)) = (Object::parse_key(key), Object::decode_record(body)) else { continue };
            let owner = (object.uid, object.gid);
            if files.get(&key.fid).is_some_and(|of_file| *of_file != owner) {
                return Err(format!(
                    "{}: object {key:?} belongs to {owner:?}, its file to {:?}",
                    server.name, files[&key.fid]
                ));
            }
        }
    }
    Ok(())
}

/// Targets that still wait for clients. Some client has connected to every target since the last crash, so every recovery must
/// end.
fn recovering(world: &World) -> Vec<String> {
    let mut wrong = Vec::new();
    for server in &world.servers {
        for (_, status) in server.machine.iter().flat_map(|machine| machine.get_params("*.*.recovery_status")) {
            let word = status.lines().next().unwrap_or_default().trim_start_matches("status:").trim();
            if !matches!(word, "COMPLETE" | "INACTIVE") {
                wrong.push(format!("the recovery of {} does not end: {word}", server.name));
            }
        }
    }
    wrong
}

/// What a target still holds for clients and for changes of several targets. All other `servers` have a session with the management
/// target, and each metadata target has one with each object target and with each other metadata target.
fn left_behind(server: &Server, snapshot: &Snapshot, servers: usize, mdts: usize) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut most = |what: &str, value: &str, most: usize| {
        if value.trim().parse::<usize>().is_ok_and(|value| value > most) {
            wrong.push(format!("{}: no client is left, and {what} is {value}, not {most}", server.name));
        }
    };
    most("the number of records of clients", &snapshot.range(&ClientRec::all()).count().to_string(), 0);
    most("the number of records of answers", &snapshot.range(&ReplyRec::all()).count().to_string(), 0);
    let sessions = match server.name.kind {
        TargetKind::Mgt => servers - 1,
        TargetKind::Mdt => mdts - 1,
        TargetKind::Ost => mdts,
    };
    let limits = [
        ("open_files", 0),
        ("lock_count", 0),
        ("tot_granted", 0),
        ("num_exports", sessions),
        ("num_watchers", sessions),
    ];
    for (path, value) in server.machine.iter().flat_map(|machine| machine.get_params("**")) {
        for (leaf, limit) in limits {
            if path.rsplit('.').next() == Some(leaf) {
                most(&path, &value, limit);
            }
        }
    }
    for (path, value) in server.machine.iter().flat_map(|machine| machine.get_params("mdt.*.changes_in_doubt")) {
        if !value.trim().is_empty() {
            wrong.push(format!("{path} is not empty at rest: {}", value.replace('\n', " ")));
        }
    }
    let waiters = server.machine.as_ref().map_or(0, |machine| machine.key_waiters());
    if waiters > 0 {
        wrong.push(format!("{}: {waiters} changes wait for keys at rest", server.name));
    }
    wrong
}

/// Checks that directories are on the metadata targets on which programs made them. By inode number: the target that a program
/// chose, or that of the parent.
pub(crate) fn places(world: &World, wanted: &BTreeMap<u64, u32>) -> Result<(), String> {
    for server in world.servers.iter().filter(|server| server.name.kind == TargetKind::Mdt) {
        let snapshot = Snapshot::of_engine(&server.engine).map_err(|error| format!("{error}"))?;
        for (_, body) in snapshot.range(&Inode::all()) {
            let Ok(inode) = Inode::decode_record(body) else { continue };
            if let Some(mdt) = wanted.get(&inode.fid.ino()).filter(|mdt| **mdt != server.name.index.0) {
                return Err(format!("{} is on {}, and was made on MDT{mdt:04x}", inode.fid, server.name));
            }
        }
    }
    Ok(())
}
