//! Acts of administrators during a run: parameters of servers and clients change, recoveries are aborted, clients are evicted,
//! unmounted and mounted.
//!
//! Before an unmount the programs that use the mount are killed: their calls get no answers, their files are closed, and
//! everything that the client acknowledged is written back before it leaves. So, unlike a death, an unmount loses nothing.

use proto::{Errno, TargetKind};
use stdx::Rng;

use super::faults::{Fault, around};
use super::net::Node;
use super::{World, WorldEvent};
use crate::disturb::Acts;
use crate::program::Mounts;

/// The source of administrators' acts.
pub struct Administrator {
    plan: Option<Acts>,
    left: u64,
    /// The mounts that programs use.
    pub programs: Mounts,
    rng: Rng,
}

impl Administrator {
    /// Acts according to the plan.
    pub fn new(plan: &crate::plan::Plan) -> Administrator {
        let acts = plan.disturbances.acts;
        let rng = Rng::new(plan.seed ^ 0xac70_ac71);
        Administrator { plan: acts, left: acts.map_or(0, |acts| acts.count), programs: Mounts::default(), rng }
    }
}

/// Parameters of servers, with possible values.
const SERVER_PARAMS: &[(&str, &[&str])] = &[
    ("mdt.*.max_mod_rpcs_in_flight", &["1", "2", "8", "64", "512"]),
    ("*.*.commit_interval_ms", &["1", "50", "1000"]),
    ("mdt.*.dom_stripesize", &["0", "64k", "128k"]),
    ("ldlm.namespaces.*.lock_reclaim_threshold_mb", &["1", "200"]),
    ("osp.*-OST0001-*.active", &["0", "1"]),
    ("osp.*-OST0002-*.active", &["0", "1"]),
    ("osp.*-OST0001-*.max_create_count", &["0", "20000"]),
    ("osp.*-osp-*.max_mod_rpcs_in_flight", &["1", "2", "7"]),
    ("obdfilter.*-OST0001.degraded", &["0", "1"]),
    ("lod.*.qos_threshold_rr", &["0", "100"]),
];

/// Parameters of clients, with possible values.
const CLIENT_PARAMS: &[(&str, &[&str])] = &[
    ("mdc.*.max_mod_rpcs_in_flight", &["1", "2", "7", "32"]),
    ("mdc.*.max_rpcs_in_flight", &["2", "8", "512"]),
    ("llite.*.max_dirty_mb", &["1", "32"]),
    ("llite.*.max_cached_mb", &["1", "32"]),
    ("llite.*.max_read_ahead_mb", &["0", "1", "8"]),
    ("llite.*.max_nodes", &["16", "100", "10000"]),
    ("llite.*.sync_metadata", &["0", "1"]),
    ("ldlm.namespaces.*.lru_size", &["clear", "4", "100", "10000"]),
];

impl World {
    /// Schedules the next act.
    pub(super) fn plan_act(&mut self) {
        let Some(acts) = self.administrator.plan.filter(|_| self.administrator.left > 0) else { return };
        let delay = around(&mut self.administrator.rng, acts.every);
        self.after(delay, WorldEvent::Fault(Fault::Act));
    }

    /// Performs an act.
    pub(super) fn act(&mut self) {
        let Some(acts) = self.administrator.plan else { return };
        self.administrator.left -= 1;
        self.faults.counts.acts += 1;
        match self.administrator.rng.below(10) {
            0..=2 => {
                let all = if self.is_sharing_safe() { SERVER_PARAMS.len() + 1 } else { SERVER_PARAMS.len() };
                let at = self.administrator.rng.below(all as u64) as usize;
                let (pattern, values) =
                    SERVER_PARAMS.get(at).copied().unwrap_or(("mdt.*.commit_on_sharing", &["0", "1"]));
                let value = self.administrator.rng.pick(values).copied().unwrap_or("1");
                for server in 0..self.servers.len() {
                    self.set_of(Node::Server(server), pattern, value);
                }
            }
            3..=5 => {
                let client = self.administrator.rng.below(self.mounts.len() as u64) as usize;
                let (pattern, values) = self.administrator.rng.pick(CLIENT_PARAMS).copied().unwrap_or(CLIENT_PARAMS[0]);
                let value = self.administrator.rng.pick(values).copied().unwrap_or("1");
                self.set_of(Node::Client(client), pattern, value);
            }
            6 if acts.evicts => {
                let server = self.administrator.rng.below(self.servers.len() as u64) as usize;
                self.set_of(Node::Server(server), "*.*.abort_recovery", "1");
            }
            7 if acts.evicts => self.evict_some(),
            6..=8 => self.unmount_some(),
            _ => self.mount_another(),
        }
    }

    /// Whether dependent changes of several clients survive without `commit_on_sharing`, because all clients reconnect and
    /// replay.
    fn is_sharing_safe(&self) -> bool {
        self.plan.profile < crate::Profile::Servers && !self.plan.evicts()
    }

    pub fn set_of(&mut self, node: Node, pattern: &str, value: &str) {
        let now = self.time_of(node);
        let result = match node {
            Node::Server(server) => {
                self.servers[server].machine.as_mut().map(|machine| machine.set_param(now, pattern, value))
            }
            Node::Client(client) => self.mounts[client].machine.as_mut().map(|machine| {
                let found = machine.get_params(pattern);
                found.iter().try_for_each(|(name, _)| machine.set_param(now, name, value))
            }),
            Node::Liar | Node::Raw => None,
        };
        self.trace.note(self.now, &[52], || format!("{node:?} {pattern}={value}: {result:?}"));
        // The values that a client accepts depend on what its target granted, as do those between metadata targets.
        let refused = match result {
            Some(Err(Errno::ERANGE)) if pattern.contains("-osp-") => None,
            Some(Err(errno @ (Errno::EACCES | Errno::EINVAL | Errno::ERANGE))) => Some(errno),
            _ => None,
        };
        if let (Node::Server(_), Some(errno)) = (node, refused) {
            self.fail(format!("{node:?} refuses {pattern}={value}: {}", errno.name()));
        }
        self.pump(node);
    }

    /// Some target evicts some client, but never client 0.
    fn evict_some(&mut self) {
        let server = self.administrator.rng.below(self.servers.len() as u64) as usize;
        if self.mounts.len() < 2 || self.servers[server].name.kind == TargetKind::Mgt {
            return;
        }
        let client = self.administrator.rng.range(1, self.mounts.len() as u64 - 1) as usize;
        if !self.mounts[client].leaving {
            self.evict(server, client);
        }
    }

    /// A target evicts a client.
    pub fn evict(&mut self, server: usize, client: usize) {
        let wanted = format!("client {client}");
        let described = self.servers[server].machine.iter().flat_map(|m| m.get_params("*.*.exports.*.description"));
        let found = described.filter(|(_, name)| *name == wanted).map(|(path, _)| path).next();
        let uuid = found.and_then(|path| Some(path.rsplit('.').nth(1)?.to_owned()));
        if let Some(uuid) = uuid {
            self.set_of(Node::Server(server), "*.*.evict_client", &uuid);
        }
    }

    /// Kills the programs of some client (never client 0) and unmounts it.
    fn unmount_some(&mut self) {
        let is_mounted = |client: &usize| {
            let mount = &self.mounts[*client];
            mount.machine.is_some() && mount.mounted && !mount.leaving
        };
        let candidates: Vec<usize> = (1..self.mounts.len()).filter(is_mounted).collect();
        let Some(&client) = self.administrator.rng.pick(&candidates) else { return };
        self.faults.counts.unmounts += 1;
        self.trace.note(self.now, &[53, client as u64], || format!("client {client} is to unmount"));
        self.mounts[client].kernel.die();
        self.sched.retire(client);
        self.unmount(client);
    }

    /// Mounts another client.
    pub(super) fn mount_another(&mut self) {
        if self.mounts.len() >= 2 * crate::plan::CLIENTS_MAX {
            return;
        }
        let client = self.add_client();
        self.trace.note(self.now, &[54, client as u64], || format!("client {client} mounts"));
        self.administrator.programs.add(self.mounts[client].kernel.clone());
    }

    /// Checks an unmount: everything must have been written back, unless the client was evicted or a disk failed.
    pub(super) fn judge_unmount(&mut self, client: usize, result: Result<(), proto::Errno>) {
        let Err(errno) = result else { return };
        let excused = self.sched.was_evicted(client)
            || self.plan.disk_faults.fill_every.is_some()
            || self.plan.disturbances.io.is_some();
        if self.plan.disturbances.acts.is_some() && !excused {
            self.fail(format!("client {client} could not write everything back when it unmounted: {}", errno.name()));
        }
    }
}
