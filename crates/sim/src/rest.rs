//! The last oracle: when everybody has left and all is durable, what the stores hold must fit together.
//!
//! All clients unmount; then, within a bound, nothing may be left to do: no
//! recovery that still waits, no orphan, no destroy to send, no data file without its object. What [`lfsck`] says of the stores
//! of all targets is then final.

use core::time::Duration;

use lfsck::Snapshot;
use proto::TargetKind;
use schema::{DestroyLog, DoomedFile, Moving, Object, Orphan, Record};
use target::{DataOp, DataResult};

use crate::world::World;
use crate::world::server::Limits;

/// After this long without clients everything has come to rest. Slowest are the notes of files that move (gone when a look each
/// minute finds them unused) and destroys that are tried again, each minute too. A target that restarted when a client left may
/// wait before that for a client that could not tell it.
const REST_MAX: Duration = Duration::from_secs(200);
/// How often the stores are looked at.
const STEP: Duration = Duration::from_secs(5);

/// Lets everybody leave, waits for rest, and says what is wrong then.
pub fn check(world: &mut World) -> Result<(), String> {
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
    for server in &mut world.servers {
        let snapshot =
            Snapshot::of_engine(&server.engine).map_err(|error| format!("{} cannot be read: {error}", server.name))?;
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
