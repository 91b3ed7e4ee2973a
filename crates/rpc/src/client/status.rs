//! What parameters show of an import.

use core::fmt::Write;
use core::time::Duration;

use proto::connect::features;
use proto::msg::ConnectRep;
use proto::{Nid, Transno};
use stdx::Instant;

use super::State;
use super::import::Import;
use crate::at::Estimate;

/// Status of an import, as the parameter `import` shows it.
#[derive(Clone, PartialEq, Debug)]
pub struct ImportStatus {
    /// The target.
    pub target: String,
    /// State.
    pub state: State,
    /// Features granted.
    pub connect_flags: u64,
    /// Limits granted.
    pub connect_data: ConnectRep,
    /// Addresses.
    pub nids: Vec<Nid>,
    /// The address that is tried or in use.
    pub current_nid: Option<Nid>,
    /// Number of connection attempts.
    pub conn_cnt: u32,
    /// Number of evictions.
    pub generation: u32,
    /// Requests in flight.
    pub in_flight: usize,
    /// Queued requests.
    pub queued: usize,
    /// Modifying requests in flight.
    pub modify_in_flight: u16,
    /// Number of deadlines that passed.
    pub timeouts: u64,
    /// The last states and when each was entered, oldest first.
    pub history: Vec<(Instant, State)>,
    /// Mean time to an answer.
    pub mean_wait: Duration,
    /// Time of the last transmission.
    pub last_sent: Instant,
    /// The server's estimate of its worst service time.
    pub service: Estimate,
    /// Estimate of the network's latency.
    pub network: Estimate,
    /// Whether the session takes part in recovery.
    pub replayable: bool,
    /// The highest transno kept for replay.
    pub last_replay: Transno,
    /// Highest transno known to be durable.
    pub last_committed: Transno,
    /// Number of uncommitted changes kept for replay.
    pub replay_list: usize,
    /// Number of opens kept for replay although they are durable.
    pub open_list: usize,
    /// Size of the kept requests, in bytes.
    pub replay_bytes: usize,
}

impl Import {
    /// Status, as the parameter `import` shows it.
    pub fn status(&self) -> ImportStatus {
        let (replay_list, open_list) = self.replay.len();
        ImportStatus {
            target: self.config.target.clone(),
            state: self.state,
            connect_flags: self.granted.features,
            connect_data: self.granted.clone(),
            nids: self.config.nids.clone(),
            current_nid: self.current_nid().cloned(),
            conn_cnt: self.conn_cnt,
            generation: self.generation,
            in_flight: self.sent.len(),
            queued: self.queue.len() + self.waiting.len() + self.refused.len(),
            modify_in_flight: self.slots.taken(),
            timeouts: self.timeouts,
            history: self.history.states(),
            mean_wait: self.history.mean_wait(),
            last_sent: self.last_sent,
            service: self.service.clone(),
            network: self.network.clone(),
            replayable: !self.config.lightweight,
            last_replay: self.replay.last(),
            last_committed: self.replay.last_committed(),
            replay_list,
            open_list,
            replay_bytes: self.replay.bytes(),
        }
    }

    /// The value of `import`; `name` is that of the device.
    pub fn text(&self, name: &str, now: Instant) -> String {
        let status = self.status();
        let flags: Vec<&str> =
            features::NAMES.iter().filter(|(bit, _)| status.connect_flags & bit != 0).map(|(_, name)| *name).collect();
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

    /// The value of `rpc_stats`: how many changes were in flight when another one left, and now, by the wall clock.
    pub fn rpc_stats(&self, now_ns: i64) -> String {
        let (histogram, since_ns) = self.slots.histogram();
        let time = |ns: i64| format!("{}.{:09} secs.nsecs", ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
        let mut text = String::new();
        let _ = writeln!(text, "snapshot_time:         {}", time(now_ns));
        let _ = writeln!(text, "start_time:            {}", time(since_ns));
        let _ = writeln!(text, "elapsed_time:          {}", time(now_ns - since_ns));
        let _ = writeln!(text, "modify_RPCs_in_flight:  {}\n", self.slots.taken());
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
}
