//! Parameters of a client, under Lustre's names.

use core::time::Duration;
use proto::Errno;
use proto::connect::features;
use rpc::client::ImportStatus;
use std::fmt::Write;
use stdx::Instant;
use stdx::tally::count_line;

use crate::api::{Effect, JobIds, NODE_BYTES};
use crate::base::Dest;
use crate::coherence::data;
use crate::coherence::locks::lru_size;
use crate::coherence::world::World;
use crate::ops::devices;

/// Most files that `unwritable` lists.
const UNWRITABLE_SHOWN: usize = 64;

/// How far the wall clock is ahead of the client's own time.
fn ahead(w: &World) -> i64 {
    w.wall_ns.saturating_sub_unsigned(w.wall_at.0)
}

/// The state, and those before it with the seconds since 1970.
fn state_text(ahead: i64, status: &ImportStatus) -> String {
    let mut text = format!("current_state: {}\nstate_history:", status.state);
    for (at, state) in &status.history {
        let _ = write!(text, "\n - [ {}, {state} ]", ahead.saturating_add_unsigned(at.0) / 1_000_000_000);
    }
    text
}

/// What is known of how long requests take.
fn timeouts_text(status: &ImportStatus) -> String {
    format!("network : {}\nservice : {}", status.network.text(), status.service.text())
}

fn import_text(name: &str, now: Instant, status: &ImportStatus) -> String {
    let flags: Vec<&str> = proto::connect::features::NAMES
        .iter()
        .filter(|(bit, _)| status.connect_flags & bit != 0)
        .map(|(_, name)| *name)
        .collect();
    let nids: Vec<String> = status.nids.iter().map(ToString::to_string).collect();
    let mut text = String::new();
    let _ = writeln!(text, "import:");
    let _ = writeln!(text, "    name: {name}");
    let _ = writeln!(text, "    target: {}", status.target);
    let _ = writeln!(text, "    state: {}", status.state);
    let _ = writeln!(text, "    connect_flags: [ {} ]", flags.join(", "));
    let _ = writeln!(text, "    connect_data:");
    let _ = writeln!(text, "       flags: 0x{:x}", status.connect_flags);
    let _ = writeln!(text, "       instance: {}", status.connect_data.instance);
    let _ = writeln!(text, "       target_version: {}", status.connect_data.server_version);
    let _ = writeln!(text, "       max_easize: {}", proto::connect::XATTR_SIZE_MAX);
    if status.connect_flags & features::MULTI_MOD_RPCS != 0 {
        let _ = writeln!(text, "       max_mod_rpcs: {}", status.connect_data.max_mod_rpcs);
    }
    let replayable = if status.replayable { "replayable, " } else { "" };
    let _ = writeln!(text, "    import_flags: [ {replayable}pingable ]");
    let _ = writeln!(text, "    connection:");
    let _ = writeln!(text, "       failover_nids: [ {} ]", nids.join(", "));
    let current = status.current_nid.as_ref().map_or_else(|| "<none>".to_owned(), ToString::to_string);
    let _ = writeln!(text, "       current_connection: {current}");
    let _ = writeln!(text, "       connection_attempts: {}", status.conn_cnt);
    let _ = writeln!(text, "       generation: {}", status.generation);
    // An eviction is over when the next request is taken.
    let _ = writeln!(text, "       in-progress_invalidations: 0");
    let _ = writeln!(text, "       idle: {} sec", now.since(status.last_sent).as_secs());
    let _ = writeln!(text, "    rpcs:");
    let _ = writeln!(text, "       inflight: {}", status.in_flight);
    // A request owns what it sends and receives: it is given up in one step.
    let _ = writeln!(text, "       unregistering: 0");
    let _ = writeln!(text, "       queued: {}", status.queued);
    let _ = writeln!(text, "       timeouts: {}", status.timeouts);
    let _ = writeln!(text, "       avg_waittime: {} usec", status.mean_wait.as_micros());
    let whole = |time: Duration| time.as_millis().div_ceil(1000);
    let _ = writeln!(text, "    service_estimates:");
    let _ = writeln!(text, "       services: {} sec", whole(status.service.worst()));
    let _ = writeln!(text, "       network: {} sec", whole(status.network.worst()));
    let _ = writeln!(text, "    transactions:");
    let _ = writeln!(text, "       last_replay: {}", status.last_replay);
    let _ = writeln!(text, "       peer_committed: {}", status.last_committed);
    // What is kept for replay is looked through whenever the former is told.
    let _ = write!(text, "       last_checked: {}", status.last_committed);
    text
}

/// How many changes were in flight when another one left.
fn rpc_stats(now_ns: i64, since_ns: i64, status: &ImportStatus, histogram: &[u64]) -> String {
    let time = |ns: i64| format!("{}.{:09} secs.nsecs", ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
    let mut text = String::new();
    let _ = writeln!(text, "snapshot_time:         {}", time(now_ns));
    let _ = writeln!(text, "start_time:            {}", time(since_ns));
    let _ = writeln!(text, "elapsed_time:          {}", time(now_ns - since_ns));
    let _ = writeln!(text, "modify_RPCs_in_flight:  {}\n", status.modify_in_flight);
    let _ = writeln!(text, "\t\t\tmodify");
    let _ = write!(text, "rpcs in flight        rpcs   % cum %");
    let total: u64 = histogram.iter().sum();
    let percent = |n: u64| (100 * n).checked_div(total).unwrap_or(0);
    let mut sum = 0;
    for (at, count) in histogram.iter().enumerate() {
        sum += count;
        let _ = write!(text, "\n{at}:\t\t{count:>10} {:>3} {:>3}", percent(*count), percent(sum));
    }
    text
}

/// Counts of this mount.
fn stats_text(w: &World) -> String {
    let (failures, given_up, _) = data::troubles(w, 0);
    let mut text = w.stats.text(ahead(w).saturating_add_unsigned(w.now.0));
    text.push_str(&count_line("write_back_failures", failures));
    let _ = write!(text, "{:<25} {given_up} samples [bytes]", "write_back_lost");
    text
}

/// Files with data that cannot be written back at present, and why.
fn unwritable_text(w: &World) -> String {
    let (_, _, files) = data::troubles(w, UNWRITABLE_SHOWN);
    files.iter().map(|(path, errno)| format!("{path}: {errno}")).collect::<Vec<_>>().join("\n")
}

/// All parameters, sorted by name.
fn all(w: &World) -> Vec<(String, String)> {
    let fs = &w.options.fsname;
    let llite = format!("llite.{}", devices::of_mount(w));
    let (lmv, lov) = (format!("lmv.{}", devices::of_all(w, "lmv")), format!("lov.{}", devices::of_all(w, "lov")));
    let mut list = vec![
        (format!("{llite}.fstype"), "adamant".to_owned()),
        (format!("{llite}.uuid"), w.options.uuid.to_string()),
        (format!("{llite}.max_cached_mb"), (w.options.max_cached >> 20).to_string()),
        (format!("{llite}.max_dirty_mb"), (w.options.max_dirty >> 20).to_string()),
        (format!("{llite}.max_read_ahead_mb"), (w.options.max_read_ahead >> 20).to_string()),
        (format!("{llite}.max_nodes"), w.options.max_nodes.to_string()),
        (format!("{llite}.max_nodes_mb"), (w.options.max_nodes * NODE_BYTES).div_ceil(1 << 20).to_string()),
        (format!("{llite}.read_only"), u8::from(w.options.read_only).to_string()),
        (format!("{llite}.sync_metadata"), u8::from(w.options.sync_metadata).to_string()),
        (format!("{llite}.nodes"), w.nodes.len().to_string()),
        (format!("{llite}.stats"), stats_text(w)),
        (format!("{llite}.unwritable"), unwritable_text(w)),
        (format!("{lmv}.numobd"), w.imports.iter().filter(|t| matches!(t.dest, Dest::Mdt(_))).count().to_string()),
        (format!("{lov}.numobd"), w.imports.iter().filter(|t| matches!(t.dest, Dest::Ost(_))).count().to_string()),
    ];
    for (pool, osts) in &w.pools {
        let members: String = osts.iter().map(|ost| format!("{fs}-OST{ost:04x}_UUID\n")).collect();
        list.push((format!("{lov}.pools.{pool}"), members));
    }
    list.extend(w.options.timeouts.params());
    list.push(("jobid_name".to_owned(), w.jobs.name.clone()));
    list.push(("jobid_var".to_owned(), w.jobs.var.clone()));
    for target in w.imports.iter() {
        let name = devices::of_target(w, target);
        let device = format!("{}.{name}", devices::kind_of(target.dest));
        let status = target.import.status();
        list.push((format!("{device}.import"), import_text(&name, w.now, &status)));
        list.push((format!("{device}.state"), state_text(ahead(w), &status)));
        list.push((format!("{device}.timeouts"), timeouts_text(&status)));
        if let Dest::Mdt(_) = target.dest {
            let import = &target.import;
            list.push((format!("{device}.max_rpcs_in_flight"), import.rpcs_in_flight().to_string()));
            list.push((format!("{device}.max_mod_rpcs_in_flight"), import.mod_rpcs_in_flight().to_string()));
            list.push((format!("{device}.max_mod_rpcs_raise"), u8::from(import.mod_rpcs_raise()).to_string()));
            let stats = rpc_stats(w.wall_ns, target.rpc_stats_since_ns, &status, import.mod_rpcs_histogram());
            list.push((format!("{device}.rpc_stats"), stats));
            list.push((
                format!("{device}.metadata_write_back"),
                crate::coherence::metadata_write_back::text(w, target.dest),
            ));
        }
        let mut stats = String::new();
        for (opcode, count) in target.import.counts() {
            let name = proto::Opcode::from_raw(*opcode).map_or("unknown", proto::Opcode::name);
            let _ = writeln!(
                stats,
                "{name:<24} {} samples [reqs] resent {} replayed {}",
                count.sent, count.resent, count.replayed
            );
        }
        list.push((format!("{device}.stats"), stats.trim_end().to_owned()));
        let (held, unused) = w.locks.get(target.dest).map_or((0, 0), |locks| locks.counts());
        let space = format!("ldlm.namespaces.{name}");
        list.push((format!("{space}.lock_count"), held.to_string()));
        list.push((format!("{space}.lock_unused_count"), unused.to_string()));
        list.push((format!("{space}.lru_size"), w.locks.lru_size(target.dest).to_string()));
    }
    list.sort();
    list
}

/// Those that match a pattern.
pub(crate) fn get(w: &World, pattern: &str) -> Vec<(String, String)> {
    all(w).into_iter().filter(|(name, _)| devices::names(w.options.instance, pattern, name)).collect()
}

/// Sets every parameter that matches `pattern`.
pub(crate) fn set(w: &mut World, pattern: &str, value: &str) -> Result<(), Errno> {
    let names: Vec<String> = get(w, pattern).into_iter().map(|(name, _)| name).collect();
    if names.is_empty() {
        return Err(Errno::ENOENT);
    }
    for name in names {
        set_one(w, &name, value)?;
    }
    Ok(())
}

fn set_one(w: &mut World, name: &str, value: &str) -> Result<(), Errno> {
    let last = name.rsplit('.').next().unwrap_or(name);
    if last == "lru_size" {
        let size: usize = if value == "clear" { 0 } else { value.parse().map_err(|_| Errno::EINVAL)? };
        let dest =
            w.imports.iter().find(|target| name.contains(&format!(".{}-", target.name))).map(|target| target.dest);
        if let Some(dest) = dest {
            crate::coherence::locks::limit(w, dest, size, value == "clear");
        }
        return Ok(());
    }
    if let Some(result) = w.options.timeouts.set(name, value) {
        let timeouts = w.options.timeouts.clone();
        for dest in w.imports.dests() {
            if let Some(target) = w.imports.get_mut(dest) {
                target.import.set_timeouts(&timeouts);
                w.imports.touch_dest(dest);
            }
        }
        return result;
    }
    if let "jobid_name" | "jobid_var" = name {
        let (mut jobs, value) = (w.jobs.clone(), value.trim());
        let (field, fits) = match name {
            "jobid_var" => (&mut jobs.var, JobIds::var_is_valid(value)),
            _ => (&mut jobs.name, JobIds::name_is_valid(value)),
        };
        if !fits {
            return Err(Errno::EINVAL);
        }
        value.clone_into(field);
        w.jobs = jobs.clone();
        w.effect(Effect::Jobs(jobs));
        return Ok(());
    }
    if let Some(dest) = import_of(w, name) {
        return set_import(w, dest, last, value);
    }
    if last == "stats" && name.starts_with("llite.") {
        w.stats.clear(w.wall_ns);
        return Ok(());
    }
    let number: u64 = value.parse().map_err(|_| Errno::EINVAL)?;
    if last == "sync_metadata" {
        w.options.sync_metadata = match number {
            0 | 1 => number == 1,
            _ => return Err(Errno::ERANGE),
        };
        return Ok(());
    }
    let bytes = number.checked_mul(1 << 20).ok_or(Errno::ERANGE)?;
    match last {
        "max_cached_mb" => w.options.max_cached = bytes,
        "max_dirty_mb" if number > 0 => w.options.max_dirty = bytes,
        "max_read_ahead_mb" => w.options.max_read_ahead = bytes,
        "max_nodes" if number >= 16 => set_max_nodes(w, usize::try_from(number).map_err(|_| Errno::ERANGE)?),
        "max_nodes_mb" if number > 0 => {
            set_max_nodes(w, usize::try_from(bytes).map_err(|_| Errno::ERANGE)? / NODE_BYTES)
        }
        "max_dirty_mb" | "max_nodes" | "max_nodes_mb" => return Err(Errno::ERANGE),
        _ => return Err(Errno::EPERM),
    }
    Ok(())
}

/// Nodes, and with them the locks that keep what is known of them.
fn set_max_nodes(w: &mut World, number: usize) {
    w.options.max_nodes = number;
    w.nodes.set_names_max(number);
    for dest in w.imports.dests() {
        crate::coherence::locks::limit(w, dest, lru_size(number), false);
    }
}

/// The metadata target whose import's parameter this is.
fn import_of(w: &World, name: &str) -> Option<Dest> {
    let of = name.strip_prefix("mdc.")?;
    w.imports.iter().find(|target| of.starts_with(&format!("{}-mdc-", target.name))).map(|target| target.dest)
}

fn set_import(w: &mut World, dest: Dest, last: &str, value: &str) -> Result<(), Errno> {
    let (now, wall_ns) = (w.now, w.wall_ns);
    let number = || value.trim().parse::<u64>().map_err(|_| Errno::EINVAL);
    let target = w.imports.get_mut(dest).ok_or(Errno::ENOENT)?;
    match last {
        "max_rpcs_in_flight" => target.import.set_rpcs_in_flight(number()?)?,
        "max_mod_rpcs_in_flight" => target.import.set_mod_rpcs_in_flight(now, number()?)?,
        "max_mod_rpcs_raise" => match number()? {
            raise @ 0..=1 => target.import.set_mod_rpcs_raise(raise == 1),
            _ => return Err(Errno::ERANGE),
        },
        "rpc_stats" => {
            target.import.clear_mod_rpcs_histogram();
            target.rpc_stats_since_ns = wall_ns;
        }
        _ => return Err(Errno::EPERM),
    }
    // More may be sent now.
    w.imports.touch_dest(dest);
    Ok(())
}
