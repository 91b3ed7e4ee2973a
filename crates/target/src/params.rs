//! Parameters of every target, by Lustre's names.

use core::time::Duration;

use dlm::server::{LOCK_BYTES, Settings};
use proto::msg::{Param, StatfsRep};
use proto::params::{
    Bound, Component, OfConnection, OfExport, OfLocks, OfPeer, OfServer, OfSpace, OfTarget, OfTimeouts, Served,
};
use proto::{Errno, Handle, TargetKind, TargetName, bound_as_declared};
use rpc::client::Import;
use rpc::server::Export;
use stdx::{Instant, tally, wildcard};

use crate::api::LogLevel;
use crate::machine::{Machine, Target};
use crate::service::Service;

/// Lustre's name of the device with which a target talks to another: `fs-OST0001-osc-MDT0000`, `fs-MDT0001-osp-MDT0000`.
pub fn device_of(own: &TargetName, other: &TargetName) -> String {
    let own = own.to_string();
    let short = own.rsplit_once('-').map_or(own.as_str(), |(_, short)| short);
    match other.kind {
        TargetKind::Ost => format!("{other}-osc-{short}"),
        TargetKind::Mdt => format!("{other}-osp-{short}"),
        TargetKind::Mgt => format!("{own}-{other}"),
    }
}

/// What a target's space is shown as.
pub fn space_text(which: OfSpace, space: &StatfsRep) -> String {
    let shown = match which {
        OfSpace::Kbytestotal => space.total / 1024,
        OfSpace::Kbytesfree => space.free / 1024,
        OfSpace::Kbytesavail => space.available / 1024,
        OfSpace::Filestotal => space.files,
        OfSpace::Filesfree => space.files_free,
    };
    shown.to_string()
}

fn component(kind: TargetKind) -> Component {
    match kind {
        TargetKind::Mgt => Component::Mgs,
        TargetKind::Mdt => Component::Mdt,
        TargetKind::Ost => Component::Obdfilter,
    }
}

/// What a parameter is of.
enum Key {
    Own(OfTarget),
    Export(OfExport, Handle),
    Locks(OfLocks),
    Connection(OfConnection, TargetName),
    Peer(OfPeer, TargetName),
    Timeouts(OfTimeouts),
    Server(OfServer),
}

/// A client as it is shown.
type Shown<'a> = (&'a Machine, &'a Export);
/// A client of which something is set.
type Changed<'a> = (&'a mut Machine, Handle);

const fn of_export<'a>(which: OfExport) -> Bound<Shown<'a>, Changed<'a>> {
    match which {
        OfExport::Uuid => Bound::Get(|(_, export)| export.uuid.to_string()),
        OfExport::Nid => Bound::Get(|(_, export)| export.address.clone()),
        OfExport::Description => Bound::Get(|(_, export)| export.description.clone()),
        OfExport::ReplyData => Bound::Get(|(_, export)| reply_data(export)),
        OfExport::Stats => Bound::Text(
            |(m, export)| m.operations_head() + &m.stats.operations_of(export.handle),
            |(m, handle), _| {
                m.stats.forget(*handle);
                Ok(())
            },
        ),
    }
}

const fn of_locks(which: OfLocks) -> Bound<Machine> {
    match which {
        OfLocks::LockCount => Bound::Get(|m| {
            let counters = m.locks.counters();
            (counters.granted + counters.records).to_string()
        }),
        OfLocks::ResourceCount => Bound::Get(|m| m.locks.counters().resources.iter().sum::<u64>().to_string()),
        OfLocks::LockReclaimThresholdMb => Bound::Number(
            |m| mb_of(m.locks.settings().locks_max),
            |m, mb| {
                m.locks.set_settings(Settings { locks_max: locks_in(mb)?, ..m.locks.settings() });
                Ok(())
            },
        ),
        OfLocks::LockLimitMb => Bound::Number(
            |m| mb_of(m.locks.settings().locks_in_all_max),
            |m, mb| {
                m.locks.set_settings(Settings { locks_in_all_max: locks_in(mb)?, ..m.locks.settings() });
                Ok(())
            },
        ),
        OfLocks::LockTimeout => Bound::Number(Machine::lock_timeout_text, Machine::set_lock_timeout),
    }
}

/// Of another metadata target. The state has the time with it, by this target's clock or the wall's.
const fn of_peer<'a>(which: OfPeer) -> Bound<(&'a Import, i64), (&'a mut Import, Instant, i64)> {
    match which {
        OfPeer::MaxModRpcsInFlight => Bound::Number(
            |(import, _)| import.mod_rpcs_in_flight().to_string(),
            |(import, now, _), count| import.set_mod_rpcs_in_flight(*now, count),
        ),
        OfPeer::RpcStats => Bound::Text(
            |(import, wall_ns)| import.rpc_stats(*wall_ns),
            |(import, _, wall_ns), _| {
                import.clear_mod_rpcs_histogram(*wall_ns);
                Ok(())
            },
        ),
    }
}

const fn of_server(which: OfServer) -> Bound<Machine> {
    match which {
        OfServer::LdlmTimeout => Bound::Number(Machine::lock_timeout_text, Machine::set_lock_timeout),
    }
}

const _: () = bound_as_declared!(OfExport, of_export);
const _: () = bound_as_declared!(OfLocks, of_locks);
const _: () = bound_as_declared!(OfPeer, of_peer);
const _: () = bound_as_declared!(OfServer, of_server);

/// How many MiB so many locks take.
fn mb_of(locks: usize) -> String {
    (locks * LOCK_BYTES).div_ceil(1 << 20).to_string()
}

fn locks_in(mb: u64) -> Result<usize, Errno> {
    Ok((usize::try_from(mb).map_err(|_| Errno::ERANGE)? << 20) / LOCK_BYTES)
}

fn reply_data(export: &Export) -> String {
    let counters = export.slots().counters();
    format!(
        "reply_cnt: {}\nreply_max: {}\nreply_released_by_xid: {}\nreply_released_by_tag: {}\n",
        counters.held, counters.held_max, counters.released_by_xid, counters.released_by_tag
    )
}

impl Machine {
    /// What statistics of operations begin with.
    fn operations_head(&self) -> String {
        tally::head(self.wall_ns, self.stats.operations_since_ns)
    }

    /// Lustre shows the operations of an object target in `stats`, those of a metadata target in `md_stats`.
    fn stats_text(&self, kind: TargetKind) -> String {
        let mut text = tally::head(self.wall_ns, self.stats.since_ns);
        if kind == TargetKind::Ost {
            text.push_str(&self.stats.operations());
        }
        text.push_str(&self.stats.opcodes());
        text
    }

    /// They count from 0 again.
    fn clear_stats(&mut self, kind: TargetKind) {
        self.stats.clear(self.wall_ns);
        if kind == TargetKind::Ost {
            self.stats.clear_operations(self.wall_ns);
        }
    }

    fn lock_timeout_text(&self) -> String {
        self.options.lock_timeout.as_secs().to_string()
    }

    fn set_lock_timeout(&mut self, seconds: u64) -> Result<(), Errno> {
        let lock_timeout = Duration::from_secs(seconds);
        self.options.lock_timeout = lock_timeout;
        self.locks.set_settings(Settings { lock_timeout, ..self.locks.settings() });
        Ok(())
    }

    fn connection_text(&self, which: OfConnection, name: &TargetName) -> String {
        let OfConnection::Import = which;
        let device = device_of(&self.name, name);
        self.upstreams.get(name).map_or_else(String::new, |import| import.text(&device, self.now))
    }

    fn set_peer(&mut self, which: OfPeer, name: &TargetName, value: &str) -> Option<Result<(), Errno>> {
        let (now, wall_ns) = (self.now, self.wall_ns);
        let Some(import) = self.upstreams.get_mut(name) else { return Some(Err(Errno::ENOENT)) };
        of_peer(which).set(&mut (import, now, wall_ns), which.declared(), value)
    }

    /// A metadata target that is new in the configuration has the persistent parameters that name it.
    pub(crate) fn set_new_peer_params(&mut self, name: &TargetName) {
        let device = device_of(&self.name, name);
        if let Some(import) = self.upstreams.get_mut(name) {
            import.clear_mod_rpcs_histogram(self.wall_ns);
        }
        for which in OfPeer::ALL {
            for path in which.declared().names(Component::Osp, &[&device]) {
                let params = self.config.params.iter().filter(|param| wildcard::matches(&param.path, &path));
                for value in params.map(|param| param.value.clone()).collect::<Vec<_>>() {
                    // One that makes no sense has no effect; those that have it set are told why at once.
                    let _ = self.set_peer(*which, name, &value);
                }
            }
        }
    }
}

/// Whether `evict_client` means this client: by its identity, or by its address with or without the port.
fn is_client(wanted: &str, export: &Export) -> bool {
    let host = export.address.rsplit_once(':').map(|(host, _)| host);
    match wanted.strip_prefix("nid:") {
        Some(nid) => nid == export.address || Some(nid) == host,
        None => wanted.strip_prefix("uuid:").unwrap_or(wanted) == export.uuid.to_string(),
    }
}

/// The pattern of a target's own parameter: the device may be left out, as in `mdt.dom_stripesize`.
fn full_pattern(path: &str) -> String {
    match path.split_once('.') {
        Some((kind, leaf)) if !leaf.contains('.') => format!("{kind}.*.{leaf}"),
        _ => path.to_owned(),
    }
}

impl<S: Service> Target<S> {
    /// Looked at when a target is built for a service.
    const AS_DECLARED: () = bound_as_declared!(OfTarget, Target::<S>::own);

    const fn own(which: OfTarget) -> Bound<Target<S>> {
        match which {
            OfTarget::ChangesInDoubt => Bound::Get(|t| t.m.changes_in_doubt()),
            OfTarget::ChangesOfLost => Bound::Get(|t| t.m.changes_of_lost()),
            OfTarget::RecoveryStatus => Bound::Get(|t| t.m.recovery_status()),
            OfTarget::RecoveryTimeSoft => Bound::Number(
                |t| t.m.options.recovery_soft.as_secs().to_string(),
                |t, seconds| {
                    t.m.options.recovery_soft = Duration::from_secs(seconds);
                    Ok(())
                },
            ),
            OfTarget::RecoveryTimeHard => Bound::Number(
                |t| t.m.options.recovery_hard.as_secs().to_string(),
                |t, seconds| {
                    t.m.options.recovery_hard = Duration::from_secs(seconds);
                    Ok(())
                },
            ),
            OfTarget::IrFactor => Bound::Number(
                |t| t.m.options.ir_factor.to_string(),
                |t, factor| {
                    t.m.options.ir_factor = u32::try_from(factor).map_err(|_| Errno::ERANGE)?;
                    Ok(())
                },
            ),
            OfTarget::AbortRecovery => Bound::Order(|t, _| {
                t.abort_recovery();
                Ok(())
            }),
            OfTarget::EvictClient => Bound::Order(Target::evict_client),
            OfTarget::EvictionCount => Bound::Get(|t| t.m.eviction_count.to_string()),
            OfTarget::Instance => Bound::Get(|t| t.m.header.mount_count.to_string()),
            OfTarget::NumExports => Bound::Get(|t| t.m.exports.len().to_string()),
            OfTarget::Uuid => Bound::Get(|t| t.m.header.uuid.iter().map(|byte| format!("{byte:02x}")).collect()),
            // Clients hear of it when they connect.
            OfTarget::MaxModRpcsInFlight => Bound::Number(
                |t| t.m.options.max_mod_rpcs.to_string(),
                |t, count| {
                    t.m.options.max_mod_rpcs = u16::try_from(count).map_err(|_| Errno::ERANGE)?;
                    Ok(())
                },
            ),
            OfTarget::CacheBytes => Bound::Get(|t| t.m.view.cache_bytes().to_string()),
            OfTarget::DirtyBytes => Bound::Get(|t| t.m.view.dirty_bytes().to_string()),
            OfTarget::CommitIntervalMs => Bound::Number(
                |t| t.m.options.commit.interval.as_millis().to_string(),
                |t, ms| {
                    t.m.options.commit.interval = Duration::from_millis(ms);
                    t.m.view.set_policy(t.m.options.commit);
                    Ok(())
                },
            ),
            OfTarget::CommitOnSharing => Bound::Number(
                |t| u8::from(!t.m.sharing.off).to_string(),
                |t, on| {
                    t.m.sharing.off = on == 0;
                    Ok(())
                },
            ),
            OfTarget::LastCommitted => Bound::Get(|t| t.m.last_committed.to_string()),
            OfTarget::CommitStats => Bound::Text(
                |t| t.m.stats.commits_text(t.m.wall_ns),
                |t, _| {
                    t.m.stats.clear_commits(t.m.wall_ns);
                    Ok(())
                },
            ),
            OfTarget::StoreDamage => Bound::Get(|t| t.m.damage.iter().map(|find| format!("{find}\n")).collect()),
            OfTarget::Stats => Bound::Text(
                |t| t.m.stats_text(t.service.kind()),
                |t, _| {
                    t.m.clear_stats(t.service.kind());
                    Ok(())
                },
            ),
            OfTarget::Timeouts => Bound::Get(|t| format!("service : {}\n", t.m.service_time.text())),
            OfTarget::MdStats => Bound::Text(
                |t| t.m.operations_head() + &t.m.stats.operations(),
                |t, _| {
                    t.m.stats.clear_operations(t.m.wall_ns);
                    Ok(())
                },
            ),
            OfTarget::JobStats => Bound::Text(
                |t| t.m.stats.jobs.text(t.service.kind(), t.m.now, t.m.wall_ns),
                |t, job| if t.m.stats.jobs.forget(job) { Ok(()) } else { Err(Errno::ENXIO) },
            ),
            OfTarget::JobCleanupInterval => Bound::Number(
                |t| t.m.stats.jobs.cleanup_interval().as_secs().to_string(),
                |t, seconds| {
                    t.m.stats.jobs.set_cleanup_interval(Duration::from_secs(seconds));
                    Ok(())
                },
            ),
        }
    }

    fn evict_client(&mut self, wanted: &str) -> Result<(), Errno> {
        let found: Vec<Handle> =
            self.m.exports.iter().filter(|export| is_client(wanted, export)).map(|export| export.handle).collect();
        for handle in &found {
            self.evict(*handle, "an administrator asked for it");
        }
        if found.is_empty() { Err(Errno::ENXIO) } else { Ok(()) }
    }

    /// Those of the machine.
    fn served(&self) -> Served<Key> {
        let (own, name) = (component(self.service.kind()), self.m.name.to_string());
        let mut served = Served::new();
        served.add(own, &[&name], Key::Own);
        for export in self.m.exports.iter() {
            let handle = export.handle;
            served.add(own, &[&name, &export.uuid.to_string()], |which| Key::Export(which, handle));
        }
        served.add(Component::Namespace, &[&name], Key::Locks);
        for other in self.m.upstreams.names() {
            let device = device_of(&self.m.name, other);
            served.add(Component::Osp, &[&device], |which| Key::Connection(which, other.clone()));
            if other.kind == TargetKind::Mdt {
                served.add(Component::Osp, &[&device], |which| Key::Peer(which, other.clone()));
            }
        }
        // Those of the process have no device.
        served.add(Component::Process, &[], Key::Timeouts);
        served.add(Component::Process, &[], Key::Server);
        served
    }

    fn value(&self, key: &Key) -> String {
        match key {
            Key::Own(which) => Target::own(*which).value(self),
            Key::Export(which, handle) => self
                .m
                .exports
                .get(*handle)
                .map_or_else(String::new, |export| of_export(*which).value(&(&self.m, export))),
            Key::Locks(which) => of_locks(*which).value(&self.m),
            Key::Connection(which, other) => self.m.connection_text(*which, other),
            Key::Peer(which, other) => {
                let shown = self.m.upstreams.get(other).map(|import| (import, self.m.wall_ns));
                shown.map_or_else(String::new, |shown| of_peer(*which).value(&shown))
            }
            Key::Timeouts(which) => self.m.options.timeouts.value(*which),
            Key::Server(which) => of_server(*which).value(&self.m),
        }
    }

    /// Parameters whose path matches `pattern` ([`wildcard`]), with their values, by path.
    pub fn get_params(&self, pattern: &str) -> Vec<(String, String)> {
        let () = Self::AS_DECLARED;
        let matches = |path: &str| wildcard::matches(pattern, path);
        let mut all = self.served().values(matches, |key| self.value(key));
        all.extend(self.service.params(&self.m.name.to_string()).into_iter().filter(|(path, _)| matches(path)));
        all.sort();
        all
    }

    /// Sets a parameter: `ENOENT` if there is none of that name, `EINVAL` or `ERANGE` for the value, `EACCES` if it can't be
    /// set, `ENXIO` if no client is the one that it names.
    pub fn set_param(&mut self, now: Instant, name: &str, value: &str) -> Result<(), Errno> {
        self.m.now = now.max(self.m.now);
        let result = self.set(name, value);
        self.run();
        result
    }

    fn set(&mut self, path: &str, value: &str) -> Result<(), Errno> {
        if let Some(key) = self.served().find(path) {
            return self.set_one(&key, value).unwrap_or(Err(Errno::EACCES));
        }
        let mut result = None;
        self.outside_attempt(|service, cx| result = service.set_param(cx, path, value));
        match result {
            Some(result) => result,
            None if self.get_params(path).is_empty() => Err(Errno::ENOENT),
            None => Err(Errno::EACCES),
        }
    }

    /// `None`: it cannot be set.
    fn set_one(&mut self, key: &Key, value: &str) -> Option<Result<(), Errno>> {
        match key {
            Key::Own(which) => {
                let result = Target::own(*which).set(self, which.declared(), value)?;
                self.m.set_window_times();
                Some(result)
            }
            Key::Export(which, handle) => of_export(*which).set(&mut (&mut self.m, *handle), which.declared(), value),
            Key::Locks(which) => of_locks(*which).set(&mut self.m, which.declared(), value),
            Key::Connection(..) => None,
            Key::Peer(which, other) => self.m.set_peer(*which, other, value),
            Key::Timeouts(which) => {
                let result = self.m.options.timeouts.set(*which, value);
                self.m.upstream_timeouts();
                Some(result)
            }
            Key::Server(which) => of_server(*which).set(&mut self.m, which.declared(), value),
        }
    }

    /// Parameters that are set at each start: the target's own, and over them those that the MGS told.
    pub(crate) fn set_start_params(&mut self) {
        let own = self.m.header.params.clone();
        for line in &own {
            let Some((pattern, value)) = line.split_once('=') else { continue };
            if let Err(errno) = self.set_matching(&full_pattern(pattern), value) {
                let line =
                    format!("parameter '{line}' of this target cannot be set: {errno}; see 'adamant tune --print'");
                self.m.log(LogLevel::Warn, line);
            }
        }
        self.set_config_params(&[]);
    }

    /// Persistent parameters that the MGS told and that are not among the `known`, as far as they are this target's.
    /// (What is known was set before, and may have been set otherwise since.)
    pub(crate) fn set_config_params(&mut self, known: &[Param]) {
        let told = self.m.config.params.clone();
        for param in told.iter().filter(|param| !known.contains(param)) {
            match self.set_matching(&param.path, &param.value) {
                // It is for others.
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(errno) => {
                    let line =
                        format!("persistent parameter {}={} cannot be set here: {errno}", param.path, param.value);
                    self.m.log(LogLevel::Warn, line);
                }
            }
        }
    }

    /// `ENOENT`: nothing matches.
    fn set_matching(&mut self, pattern: &str, value: &str) -> Result<(), Errno> {
        let found = self.get_params(pattern);
        if found.is_empty() {
            return Err(Errno::ENOENT);
        }
        found.iter().filter(|(_, old)| old != value).try_for_each(|(path, _)| self.set(path, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_targets_own_parameter_needs_no_device() {
        assert_eq!(full_pattern("mdt.dom_stripesize"), "mdt.*.dom_stripesize");
        assert_eq!(full_pattern("mdt.fs-*.dom_stripesize"), "mdt.fs-*.dom_stripesize");
    }
}
