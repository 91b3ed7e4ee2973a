//! Parameters of a client, under Lustre's names.

mod text;

use proto::msg::SequenceRange;
use proto::params::{
    self, Bound, Component, OfAll, OfFld, OfImport, OfJobs, OfLmv, OfMdc, OfMount, OfMountsLocks, OfMountsSeq, OfPool,
    OfSeq, OfTimeouts, Served,
};
use proto::{Errno, Fid, bound_as_declared};
use stdx::Instant;

use crate::api::{Effect, JobIds, NODE_BYTES};
use crate::base::Dest;
use crate::coherence::locks::{self, lru_size};
use crate::coherence::metadata_write_back;
use crate::coherence::request::Pending;
use crate::coherence::world::World;
use crate::ops::devices;
use crate::session::Target;

/// What a parameter is of.
enum Key {
    Mount(OfMount),
    /// All metadata targets, or all object targets.
    All(OfAll, Component),
    Lmv(OfLmv),
    Fld(OfFld),
    Seq(OfSeq, Dest),
    OwnSeq(OfMountsSeq, Dest),
    Pool(OfPool, String),
    Timeouts(OfTimeouts),
    Jobs(OfJobs),
    Import(OfImport, Dest),
    Mdc(OfMdc, Dest),
    Locks(OfMountsLocks, Dest),
}

/// The connection to a target, as it is shown.
type Shown<'a> = (&'a World, &'a Target<Pending>);
/// The connection to a target of which something is set, and the time, by the mount's clock and by the wall's.
type Changed<'a> = (&'a mut Target<Pending>, (Instant, i64));

const fn of_mount(which: OfMount) -> Bound<World> {
    match which {
        OfMount::MaxCachedMb => Bound::Number(
            |w| (w.options.max_cached >> 20).to_string(),
            |w, mb| {
                w.options.max_cached = mb << 20;
                Ok(())
            },
        ),
        OfMount::MaxDirtyMb => Bound::Number(
            |w| (w.options.max_dirty >> 20).to_string(),
            |w, mb| {
                w.options.max_dirty = mb << 20;
                Ok(())
            },
        ),
        OfMount::MaxReadAheadMb => Bound::Number(
            |w| (w.options.max_read_ahead >> 20).to_string(),
            |w, mb| {
                w.options.max_read_ahead = mb << 20;
                Ok(())
            },
        ),
        OfMount::MaxNodesMb => Bound::Number(
            |w| (w.options.max_nodes * NODE_BYTES).div_ceil(1 << 20).to_string(),
            |w, mb| set_max_nodes(w, (mb << 20) / NODE_BYTES as u64),
        ),
        OfMount::MaxNodes => Bound::Number(|w| w.options.max_nodes.to_string(), set_max_nodes),
        OfMount::Nodes => Bound::Get(|w| w.nodes.len().to_string()),
        OfMount::SyncMetadata => Bound::Number(
            |w| u8::from(w.options.sync_metadata).to_string(),
            |w, on| {
                w.options.sync_metadata = on == 1;
                Ok(())
            },
        ),
        OfMount::RenameWaitMax => Bound::Number(
            |w| w.options.rename_wait.as_secs().to_string(),
            |w, seconds| {
                w.options.rename_wait = core::time::Duration::from_secs(seconds);
                Ok(())
            },
        ),
        OfMount::Fstype => Bound::Get(|_| "adamant".to_owned()),
        OfMount::Uuid => Bound::Get(|w| w.options.uuid.to_string()),
        OfMount::ReadOnly => Bound::Get(|w| u8::from(w.options.read_only).to_string()),
        OfMount::Stats => Bound::Text(text::stats_text, |w, _| {
            w.stats.clear(w.wall_ns);
            Ok(())
        }),
        OfMount::Unwritable => Bound::Get(text::unwritable_text),
    }
}

const fn of_jobs(which: OfJobs) -> Bound<World> {
    match which {
        OfJobs::JobidVar => Bound::Text(
            |w| w.jobs.var.clone(),
            |w, var| match JobIds::var_is_valid(var) {
                true => set_jobs(w, JobIds { var: var.to_owned(), ..w.jobs.clone() }),
                false => Err(Errno::EINVAL),
            },
        ),
        OfJobs::JobidName => Bound::Text(
            |w| w.jobs.name.clone(),
            |w, name| match JobIds::name_is_valid(name) {
                true => set_jobs(w, JobIds { name: name.to_owned(), ..w.jobs.clone() }),
                false => Err(Errno::EINVAL),
            },
        ),
    }
}

const fn of_lmv(which: OfLmv) -> Bound<World> {
    match which {
        OfLmv::ThresholdRr => Bound::Number(
            |w| format!("{}%", w.turns.qos.threshold_rr),
            |w, percent| {
                w.turns.qos.threshold_rr = u8::try_from(percent).map_err(|_| Errno::ERANGE)?;
                Ok(())
            },
        ),
        OfLmv::PrioFree => Bound::Number(
            |w| format!("{}%", w.turns.qos.prio_free),
            |w, percent| {
                w.turns.qos.prio_free = u8::try_from(percent).map_err(|_| Errno::ERANGE)?;
                Ok(())
            },
        ),
        OfLmv::Maxage => Bound::Number(
            |w| w.turns.space_age_max.as_secs().to_string(),
            |w, seconds| {
                w.turns.space_age_max = core::time::Duration::from_secs(seconds);
                Ok(())
            },
        ),
    }
}

const fn of_mdc<'a>(which: OfMdc) -> Bound<Shown<'a>, Changed<'a>> {
    match which {
        OfMdc::MaxModRpcsInFlight => Bound::Number(
            |(_, target)| target.import.mod_rpcs_in_flight().to_string(),
            |(target, (now, _)), count| target.import.set_mod_rpcs_in_flight(*now, count),
        ),
        OfMdc::MaxModRpcsRaise => Bound::Number(
            |(_, target)| u8::from(target.import.mod_rpcs_raise()).to_string(),
            |(target, _), on| {
                target.import.set_mod_rpcs_raise(on == 1);
                Ok(())
            },
        ),
        OfMdc::MaxRpcsInFlight => Bound::Number(
            |(_, target)| target.import.rpcs_in_flight().to_string(),
            |(target, _), count| target.import.set_rpcs_in_flight(count),
        ),
        OfMdc::MetadataWriteBack => Bound::Get(|(w, target)| metadata_write_back::text(w, target.dest)),
        OfMdc::RpcStats => Bound::Text(
            |(w, target)| target.import.rpc_stats(w.wall_ns),
            |(target, (_, wall_ns)), _| {
                target.import.clear_mod_rpcs_histogram(*wall_ns);
                Ok(())
            },
        ),
    }
}

const fn of_locks<'a>(which: OfMountsLocks) -> Bound<(&'a World, Dest), (&'a mut World, Dest)> {
    match which {
        OfMountsLocks::LruSize => Bound::Text(
            |(w, dest)| w.locks.lru_size(*dest).to_string(),
            |(w, dest), size| {
                match size {
                    "clear" => locks::limit(w, *dest, 0, true),
                    _ => {
                        let size = usize::try_from(params::number(size)?).map_err(|_| Errno::ERANGE)?;
                        locks::limit(w, *dest, size, false);
                    }
                }
                Ok(())
            },
        ),
        OfMountsLocks::LockCount => Bound::Get(|(w, dest)| lock_counts(w, *dest).0.to_string()),
        OfMountsLocks::LockUnusedCount => Bound::Get(|(w, dest)| lock_counts(w, *dest).1.to_string()),
    }
}

const _: () = bound_as_declared!(OfMount, of_mount);
const _: () = bound_as_declared!(OfJobs, of_jobs);
const _: () = bound_as_declared!(OfLmv, of_lmv);
const _: () = bound_as_declared!(OfMdc, of_mdc);
const _: () = bound_as_declared!(OfMountsLocks, of_locks);

/// Locks that are held of a target, and those of them that nothing uses.
fn lock_counts(w: &World, dest: Dest) -> (usize, usize) {
    w.locks.get(dest).map_or((0, 0), |locks| locks.counts())
}

fn import_value(w: &World, target: &Target<Pending>, which: OfImport) -> String {
    match which {
        OfImport::Import => target.import.text(&devices::of_target(w, target), w.now),
        OfImport::State => text::state_text(text::ahead(w), &target.import.status()),
        OfImport::Stats => text::requests_text(target),
        OfImport::Timeouts => text::timeouts_text(&target.import.status()),
    }
}

/// Nodes, and with them the locks that keep what is known of them.
fn set_max_nodes(w: &mut World, number: u64) -> Result<(), Errno> {
    let number = usize::try_from(number).map_err(|_| Errno::ERANGE)?;
    w.options.max_nodes = number;
    w.nodes.set_names_max(number);
    for dest in w.imports.dests() {
        locks::limit(w, dest, lru_size(number), false);
    }
    Ok(())
}

fn set_jobs(w: &mut World, jobs: JobIds) -> Result<(), Errno> {
    w.jobs = jobs.clone();
    w.effect(Effect::Jobs(jobs));
    Ok(())
}

fn set_timeouts(w: &mut World, which: OfTimeouts, value: &str) -> Result<(), Errno> {
    let result = w.options.timeouts.set(which, value);
    let timeouts = w.options.timeouts.clone();
    for dest in w.imports.dests() {
        if let Some(target) = w.imports.get_mut(dest) {
            target.import.set_timeouts(&timeouts);
        }
    }
    result
}

fn set_mdc(w: &mut World, which: OfMdc, dest: Dest, value: &str) -> Option<Result<(), Errno>> {
    let times = (w.now, w.wall_ns);
    let Some(target) = w.imports.get_mut(dest) else { return Some(Err(Errno::ENOENT)) };
    of_mdc(which).set(&mut (target, times), which.declared(), value)
}

/// The parameters that there are now.
fn served(w: &World) -> Served<Key> {
    let (lmv, lov) = (devices::of_all(w, "lmv"), devices::of_all(w, "lov"));
    let mut served = Served::new();
    served.add(Component::Llite, &[&devices::of_mount(w)], Key::Mount);
    for (component, device) in [(Component::Lmv, &lmv), (Component::Lov, &lov)] {
        served.add(component, &[device], |which| Key::All(which, component));
    }
    served.add(Component::Lmv, &[&lmv], Key::Lmv);
    served.add(Component::Fld, &[&format!("cli-{lmv}")], Key::Fld);
    for &dest in w.sequences.keys() {
        let Some(target) = w.imports.get(dest) else { continue };
        let device = format!("cli-{}", devices::of_target(w, target));
        served.add(Component::Seq, &[&device], |which| Key::Seq(which, dest));
        served.add(Component::Seq, &[&device], |which| Key::OwnSeq(which, dest));
    }
    for pool in w.pools.keys() {
        served.add(Component::Lov, &[&lov, pool], |which| Key::Pool(which, pool.clone()));
    }
    served.add(Component::Process, &[], Key::Timeouts);
    served.add(Component::Process, &[], Key::Jobs);
    for target in w.imports.iter() {
        let (device, dest) = (devices::of_target(w, target), target.dest);
        let component = match dest {
            Dest::Mgs => Component::Mgc,
            Dest::Mdt(_) => Component::Mdc,
            Dest::Ost(_) => Component::Osc,
        };
        served.add(component, &[&device], |which| Key::Import(which, dest));
        served.add(component, &[&device], |which| Key::Mdc(which, dest));
        served.add(Component::Namespace, &[&device], |which| Key::Locks(which, dest));
    }
    served
}

fn value(w: &World, key: &Key) -> String {
    match key {
        Key::Mount(which) => of_mount(*which).value(w),
        Key::All(OfAll::Numobd, component) => {
            let is_of = |dest| match dest {
                Dest::Mgs => false,
                Dest::Mdt(_) => *component == Component::Lmv,
                Dest::Ost(_) => *component == Component::Lov,
            };
            w.imports.iter().filter(|target| is_of(target.dest)).count().to_string()
        }
        Key::Pool(OfPool::Members, pool) => {
            let member = |ost: &u32| format!("{}-OST{ost:04x}_UUID\n", w.options.fsname);
            w.pools.get(pool).into_iter().flatten().map(member).collect()
        }
        Key::Lmv(which) => of_lmv(*which).value(w),
        Key::Fld(OfFld::Fldb) => SequenceRange::text(&w.fld.ranges),
        Key::Seq(OfSeq::Space, dest) => {
            let current = w.sequences.get(dest).and_then(|known| known.current);
            let range = |(start, ..): (u64, u32, u32)| SequenceRange {
                start,
                end: start + 1,
                mdt: w.fld.mdt(Fid::new(start, 1)),
            };
            SequenceRange::text(current.map(range).as_slice())
        }
        Key::OwnSeq(which, dest) => {
            let current = w.sequences.get(dest).and_then(|known| known.current);
            match (which, current) {
                (OfMountsSeq::Server, _) => w.target_name(*dest),
                (OfMountsSeq::Fid, Some((seq, next, _))) => Fid::new(seq, next - 1).to_string(),
                (OfMountsSeq::Width, Some((.., last))) => last.to_string(),
                (OfMountsSeq::Fid, None) => Fid::new(0, 0).to_string(),
                (OfMountsSeq::Width, None) => "0".to_owned(),
            }
        }
        Key::Timeouts(which) => w.options.timeouts.value(*which),
        Key::Jobs(which) => of_jobs(*which).value(w),
        Key::Import(which, dest) => {
            w.imports.get(*dest).map_or_else(String::new, |target| import_value(w, target, *which))
        }
        Key::Mdc(which, dest) => {
            w.imports.get(*dest).map_or_else(String::new, |target| of_mdc(*which).value(&(w, target)))
        }
        Key::Locks(which, dest) => of_locks(*which).value(&(w, *dest)),
    }
}

/// Those that match a pattern, with their values, by name.
pub(crate) fn get(w: &World, pattern: &str) -> Vec<(String, String)> {
    served(w).values(|name| devices::names(w.options.instance, pattern, name), |key| value(w, key))
}

/// Sets every parameter that matches `pattern`.
pub(crate) fn set(w: &mut World, pattern: &str, value: &str) -> Result<(), Errno> {
    let found = served(w).matching(|name| devices::names(w.options.instance, pattern, name));
    if found.is_empty() {
        return Err(Errno::ENOENT);
    }
    found.iter().try_for_each(|(_, key)| set_one(w, key, value).unwrap_or(Err(Errno::EACCES)))
}

/// `None`: it cannot be set.
fn set_one(w: &mut World, key: &Key, value: &str) -> Option<Result<(), Errno>> {
    match key {
        Key::Mount(which) => of_mount(*which).set(w, which.declared(), value),
        Key::Lmv(which) => of_lmv(*which).set(w, which.declared(), value),
        Key::Timeouts(which) => Some(set_timeouts(w, *which, value)),
        Key::Jobs(which) => of_jobs(*which).set(w, which.declared(), value),
        Key::Mdc(which, dest) => set_mdc(w, *which, *dest, value),
        Key::Locks(which, dest) => of_locks(*which).set(&mut (w, *dest), which.declared(), value),
        Key::All(..) | Key::Fld(_) | Key::Seq(..) | Key::OwnSeq(..) | Key::Pool(..) | Key::Import(..) => None,
    }
}
