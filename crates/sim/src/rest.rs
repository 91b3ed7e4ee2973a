//! The last oracle: when everybody has left and all is durable, what the stores hold must fit together.
//!
//! All clients unmount; then, within a bound, nothing may be left to do: no
//! recovery that still waits, no orphan, no destroy to send, no data file without its object. What [`lfsck`] says of the stores
//! of all targets is then final. Nor does a target still hold anything for those who have left: no session, lock, open file, promise of
//! space or record of an answer. Such a thing would hold up others, or fill memory and store, for ever. And what a target says of
//! its objects, how many there are and what space each takes, is so.

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

/// After this long without clients everything has come to rest. Slowest are the notes of files that move (gone when a look each
/// minute finds them unused) and destroys that are tried again, each minute too. A target that restarted when a client left may
/// wait before that for a client that could not tell it.
const REST_MAX: Duration = Duration::from_secs(200);
/// No frame is on its way for longer.
const LATE_MAX: Duration = Duration::from_secs(20);
/// How often the stores are looked at.
const STEP: Duration = Duration::from_secs(5);

/// Clients keep no fewer nodes than this in any case.
const NODES_LEAST: usize = 16;

/// Lets the kernels of all who live forget everything, and their clients every lock and every node that nothing holds: then no lock is
/// left, and no more nodes than a client may keep. What stays beyond that is held for a call that has ended, and would be held for ever.
pub(crate) fn forget(world: &mut World) -> Result<(), String> {
    let living: Vec<usize> = (0..world.mounts.len())
        .filter(|&client| world.mounts[client].machine.is_some() && !world.mounts[client].leaving)
        .collect();
    for &client in &living {
        world.mounts[client].kernel.forget_all();
    }
    // What a fault lost is asked for again, in its time. Until then data waits that a lock has to wait for, as for a target that recovers;
    // and who is mounted only later takes locks when all should be given back.
    let longest = if world.plan.is_quiet() { STEP } else { Limits::of(&world.plan).recovery() + REST_MAX };
    let limit = world.now + longest;
    let rests = |mount: &Mount| mount.mounted && mount.machine.iter().all(|machine| machine.in_progress().is_empty());
    let all_rest =
        |world: &World| recovering(world).is_empty() && living.iter().all(|client| rests(&world.mounts[*client]));
    let ended = world.run(limit, all_rest)?;
    if ended == Ended::Late {
        return Err(format!("no program wants anything, and a client does not come to rest:{}", world.explain()));
    }
    // A target drops its client's locks on a file that is gone when it does the last close, and says so in the answer. Nobody waits for
    // that answer, so it may still be on its way when all programs have ended.
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
                return Err(format!("nobody needs a lock, and {path} of client {client} is {value}"));
            }
        }
        let machine = world.mounts[client].machine.iter();
        for (path, value) in machine.flat_map(|machine| machine.get_params("llite.*.nodes")) {
            if value.parse().is_ok_and(|nodes: usize| nodes > NODES_LEAST) {
                return Err(format!("nobody needs a node, and {path} of client {client} is {value}"));
            }
        }
    }
    Ok(())
}

/// Nothing happens: so the clients that are there have the locks that the targets say, and no more. One that a client takes for held is what
/// its cache rests on; one that a target takes for held keeps others waiting.
pub(crate) fn agree_on_locks(world: &World) -> Result<(), String> {
    // Record locks are counted by the targets alone.
    if world.plan.groups > 1 {
        return Ok(());
    }
    let living: Vec<usize> = (0..world.mounts.len())
        .filter(|&client| world.mounts[client].machine.is_some() && !world.mounts[client].leaving)
        .collect();
    let here: Vec<String> = living.iter().map(|client| format!("client {client}")).collect();
    let number = |value: &str| value.trim().parse::<u64>().unwrap_or(0);
    for server in &world.servers {
        let name = server.name.to_string();
        // Who died or leaves, or lies, may still be there.
        let known = server.machine.iter().flat_map(|machine| machine.get_params("*.*.exports.*.description"));
        let known: Vec<String> = known.map(|(_, who)| who).collect();
        if known.iter().any(|who| !who.starts_with("simfs-") && !here.contains(who)) {
            continue;
        }
        // Who was given up and has not asked for anything since does not know it.
        let sessions = living.iter().filter(|client| known.contains(&format!("client {client}")));
        let told = server.machine.iter().flat_map(|machine| machine.get_params("ldlm.namespaces.*.lock_count"));
        let told: u64 = told.map(|(_, value)| number(&value)).sum();
        if server.machine.is_none() || !server.serving {
            continue;
        }
        let of_client = |client: &usize| -> u64 {
            let machine = world.mounts[*client].machine.iter();
            let all = machine.flat_map(|machine| machine.get_params("ldlm.namespaces.*.lock_count"));
            all.filter(|(path, _)| path.contains(&format!(".{name}-"))).map(|(_, value)| number(&value)).sum()
        };
        let held: u64 = sessions.map(of_client).sum();
        // A lock that a target has and no client knows of goes with its session.
        if held > told {
            return Err(format!("{name} says that {told} locks are held, and its clients hold {held}"));
        }
    }
    Ok(())
}

/// Lets everybody leave, waits for rest, and says what is wrong then.
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
    let mut mdt = Snapshot::default();
    let mut osts = Vec::new();
    let servers = world.servers.len();
    let lands = every_change_lands(world);
    for server in &mut world.servers {
        let snapshot =
            Snapshot::of_engine(&server.engine).map_err(|error| format!("{} cannot be read: {error}", server.name))?;
        wrong.extend(left_behind(server, &snapshot, servers));
        match server.name.kind {
            TargetKind::Mgt => {}
            TargetKind::Mdt => mdt = snapshot,
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
    for (key, _) in mdt.range(&Orphan::all()) {
        wrong.push(format!("an orphan is left: {:?}", Orphan::parse_key(key)));
    }
    for (key, _) in mdt.range(&Moving::all()) {
        wrong.push(format!("files are still said to move: {:?}", Moving::parse_key(key)));
    }
    for (key, _) in mdt.range(&DestroyLog::all()) {
        wrong.push(format!("objects are still to be destroyed: {:?}", DestroyLog::parse_key(key)));
    }
    let osts: Vec<(u32, &Snapshot)> = osts.iter().map(|(index, snapshot)| (*index, snapshot)).collect();
    wrong.extend(lfsck::check(&mdt, &osts).iter().map(ToString::to_string));
    Ok(wrong)
}

/// Whether nothing can have left bytes in data files that no record knows of.
fn every_change_lands(world: &World) -> bool {
    let counts = &world.faults.counts;
    let given_up = counts.deaths + counts.power + counts.evictions + counts.partitions + counts.given_up;
    let never = given_up + counts.io_errors + counts.fills + counts.sites == 0 && !world.plan.liar;
    never && world.crashes.iter().all(|(_, kind)| *kind != TargetKind::Ost)
}

/// What an object target says wrongly of its objects.
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
        let there = match server.data.run(&DataOp::Stat { file: object.file }) {
            DataResult::Size(Some((_, blocks))) => blocks,
            _ => 0,
        };
        if object.blocks != there {
            wrong.push(format!("{}: {key:?} is said to take {} blocks, and takes {there}", server.name, object.blocks));
        }
    }
    wrong
}

/// Objects have the owner of their file. What a crash, or a write that was on its way, leaves undone harms nobody; so this is for stories
/// without either.
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
                    "{}: object {key:?} is of {owner:?}, its file of {:?}",
                    server.name, files[&key.fid]
                ));
            }
        }
    }
    Ok(())
}

/// Who still waits for clients. A client has come to every target since the last crash, so every recovery ends.
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

/// What a target still holds for clients. Of the other `servers` all have a session with the management target, and the metadata
/// target one with each object target.
fn left_behind(server: &Server, snapshot: &Snapshot, servers: usize) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut most = |what: &str, value: &str, most: usize| {
        if value.trim().parse::<usize>().is_ok_and(|value| value > most) {
            wrong.push(format!("{}: nobody is there, and {what} is {value}, not {most}", server.name));
        }
    };
    most("the number of records of clients", &snapshot.range(&ClientRec::all()).count().to_string(), 0);
    most("the number of records of answers", &snapshot.range(&ReplyRec::all()).count().to_string(), 0);
    let sessions = match server.name.kind {
        TargetKind::Mgt => servers - 1,
        TargetKind::Mdt => 0,
        TargetKind::Ost => 1,
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
    wrong
}
