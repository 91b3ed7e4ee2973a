//! Values of several lines.

use core::fmt::Write;
use core::time::Duration;

use proto::connect::features;
use rpc::client::{ImportStatus, OpcodeCount};
use stdx::Instant;
use stdx::tally::count_line;

use crate::coherence::data;
use crate::coherence::request::Pending;
use crate::coherence::world::World;
use crate::session::Target;

/// Most files that `unwritable` lists.
const UNWRITABLE_SHOWN: usize = 64;

/// How far the wall clock is ahead of the client's own time.
pub(super) fn ahead(w: &World) -> i64 {
    w.wall_ns.saturating_sub_unsigned(w.wall_at.0)
}

/// The state, and those before it with the seconds since 1970.
pub(super) fn state_text(ahead: i64, status: &ImportStatus) -> String {
    let mut text = format!("current_state: {}\nstate_history:", status.state);
    for (at, state) in &status.history {
        let _ = write!(text, "\n - [ {}, {state} ]", ahead.saturating_add_unsigned(at.0) / 1_000_000_000);
    }
    text
}

/// What is known of how long requests take.
pub(super) fn timeouts_text(status: &ImportStatus) -> String {
    format!("network : {}\nservice : {}", status.network.text(), status.service.text())
}

pub(super) fn import_text(name: &str, now: Instant, status: &ImportStatus) -> String {
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
pub(super) fn rpc_stats(now_ns: i64, since_ns: i64, status: &ImportStatus, histogram: &[u64]) -> String {
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
pub(super) fn stats_text(w: &World) -> String {
    let (failures, given_up, _) = data::troubles(w, 0);
    let mut text = w.stats.text(ahead(w).saturating_add_unsigned(w.now.0));
    text.push_str(&count_line("write_back_failures", failures));
    let _ = write!(text, "{:<25} {given_up} samples [bytes]", "write_back_lost");
    text
}

/// Files with data that cannot be written back at present, and why.
pub(super) fn unwritable_text(w: &World) -> String {
    let (_, _, files) = data::troubles(w, UNWRITABLE_SHOWN);
    files.iter().map(|(path, errno)| format!("{path}: {errno}")).collect::<Vec<_>>().join("\n")
}

/// Requests by kind.
pub(super) fn requests_text(target: &Target<Pending>) -> String {
    let line = |(opcode, count): (&u16, &OpcodeCount)| {
        let name = proto::Opcode::from_raw(*opcode).map_or("unknown", proto::Opcode::name);
        format!("{name:<24} {} samples [reqs] resent {} replayed {}", count.sent, count.resent, count.replayed)
    };
    target.import.counts().iter().map(line).collect::<Vec<_>>().join("\n")
}
