//! Parameters of every target, by Lustre's names.

use core::time::Duration;

use dlm::server::LOCK_BYTES;
use proto::connect::TAG_MAX;
use proto::msg::Param;
use proto::{Errno, Handle, TargetKind, TargetName};
use rpc::server::Export;
use stdx::{Instant, tally, wildcard};

use crate::api::LogLevel;
use crate::machine::{Machine, Target};
use crate::service::Service;

/// How many changes a client may have in flight; the second is its old name.
const MAX_MOD_RPCS: [&str; 2] = ["max_mod_rpcs_in_flight", "max_mod_rpcs_per_client"];

/// Lustre's name of the device with which a target talks to another: `fs-OST0001-osc-MDT0000`.
pub fn device_of(own: &TargetName, other: &TargetName) -> String {
    match other.kind {
        TargetKind::Ost => {
            let own = own.to_string();
            let short = own.rsplit_once('-').map_or(own.as_str(), |(_, short)| short);
            format!("{other}-osc-{short}")
        }
        _ => format!("{own}-{other}"),
    }
}

fn kind_word(kind: TargetKind) -> &'static str {
    match kind {
        TargetKind::Mgt => "mgs",
        TargetKind::Mdt => "mdt",
        TargetKind::Ost => "obdfilter",
    }
}

impl Machine {
    fn own_params(&self, kind: TargetKind) -> Vec<(String, String)> {
        let name = &self.name;
        let base = format!("{}.{name}", kind_word(kind));
        let locks = self.locks.counters();
        let mut all: Vec<(String, String)> = [
            ("abort_recovery", String::new()),
            ("commit_on_sharing", u8::from(!self.sharing.off).to_string()),
            ("commit_interval_ms", self.options.commit.interval.as_millis().to_string()),
            ("dirty_bytes", self.view.dirty_bytes().to_string()),
            ("cache_bytes", self.view.cache_bytes().to_string()),
            ("evict_client", String::new()),
            ("eviction_count", self.eviction_count.to_string()),
            ("ir_factor", self.options.ir_factor.to_string()),
            ("instance", self.header.mount_count.to_string()),
            ("last_committed", self.last_committed.to_string()),
            ("num_exports", self.exports.len().to_string()),
            ("recovery_status", self.recovery_status()),
            ("recovery_time_hard", self.options.recovery_hard.as_secs().to_string()),
            ("recovery_time_soft", self.options.recovery_soft.as_secs().to_string()),
            ("stats", self.stats_text(kind)),
            ("store_damage", self.damage.iter().map(|find| format!("{find}\n")).collect()),
            ("timeouts", format!("service : {}\n", self.service_time.text())),
            ("uuid", self.header.uuid.iter().map(|byte| format!("{byte:02x}")).collect()),
        ]
        .into_iter()
        .map(|(path, value)| (format!("{base}.{path}"), value))
        .collect();
        // Those of the process have no device.
        all.extend(self.options.timeouts.params());
        all.push(("ldlm_timeout".to_owned(), self.options.lock_timeout.as_secs().to_string()));
        for export in self.exports.iter() {
            let at = format!("{base}.exports.{}", export.uuid);
            all.push((format!("{at}.uuid"), export.uuid.to_string()));
            all.push((format!("{at}.nid"), export.address.clone()));
            all.push((format!("{at}.description"), export.description.clone()));
            let head = tally::head(self.wall_ns, self.stats.operations_since_ns);
            all.push((format!("{at}.stats"), head + &self.stats.operations_of(export.handle)));
            if kind == TargetKind::Mdt {
                let counters = export.slots().counters();
                let text = format!(
                    "reply_cnt: {}\nreply_max: {}\nreply_released_by_xid: {}\nreply_released_by_tag: {}\n",
                    counters.held, counters.held_max, counters.released_by_xid, counters.released_by_tag
                );
                all.push((format!("{at}.reply_data"), text));
            }
        }
        if kind != TargetKind::Mgt {
            let seconds = self.stats.jobs.cleanup_interval().as_secs();
            all.push((format!("{base}.job_cleanup_interval"), seconds.to_string()));
        }
        if kind == TargetKind::Mdt {
            let head = tally::head(self.wall_ns, self.stats.operations_since_ns);
            all.push((format!("{base}.md_stats"), head + &self.stats.operations()));
            for leaf in MAX_MOD_RPCS {
                all.push((format!("{base}.{leaf}"), self.options.max_mod_rpcs.to_string()));
            }
        }
        let space = format!("ldlm.namespaces.{name}");
        all.push((format!("{space}.lock_count"), (locks.granted + locks.records).to_string()));
        all.push((format!("{space}.resource_count"), locks.resources.iter().sum::<u64>().to_string()));
        let mb = (self.locks.settings().locks_max * LOCK_BYTES).div_ceil(1 << 20);
        let limit_mb = (self.locks.settings().locks_in_all_max * LOCK_BYTES).div_ceil(1 << 20);
        all.push((format!("{space}.lock_limit_mb"), limit_mb.to_string()));
        all.push((format!("{space}.lock_reclaim_threshold_mb"), mb.to_string()));
        all.push((format!("{space}.lock_timeout"), self.options.lock_timeout.as_secs().to_string()));
        for (other, status) in self.upstreams.status() {
            let text = format!(
                "target: {other}\nstate: {}\nconnection_attempts: {}\ninflight: {}\n",
                status.state, status.conn_cnt, status.in_flight
            );
            all.push((format!("osp.{}.import", device_of(&self.name, other)), text));
        }
        all
    }
}

impl Machine {
    /// Lustre shows the operations of an object target in `stats`, those of a metadata target in `md_stats`.
    fn stats_text(&self, kind: TargetKind) -> String {
        let mut text = tally::head(self.wall_ns, self.stats.since_ns);
        if kind == TargetKind::Ost {
            text.push_str(&self.stats.operations());
        }
        text.push_str(&self.stats.opcodes());
        text
    }

    /// Statistics count from 0 again. `None`: it is none of them.
    fn clear_stats(&mut self, kind: TargetKind, name: &str) -> Option<()> {
        let now_ns = self.wall_ns;
        match (name, kind) {
            ("stats", TargetKind::Ost) => {
                self.stats.clear(now_ns);
                self.stats.clear_operations(now_ns);
            }
            ("stats", _) => self.stats.clear(now_ns),
            ("md_stats", TargetKind::Mdt) => self.stats.clear_operations(now_ns),
            _ => {
                let uuid = name.strip_prefix("exports.")?.strip_suffix(".stats")?;
                let export = self.exports.iter().find(|export| export.uuid.to_string() == uuid)?;
                let handle = export.handle;
                self.stats.forget(handle);
            }
        }
        Some(())
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

fn number<T: core::str::FromStr>(value: &str) -> Result<T, Errno> {
    value.trim().parse().map_err(|_| Errno::EINVAL)
}

impl<S: Service> Target<S> {
    /// Parameters whose path matches `pattern` ([`wildcard`]), with their values, by path.
    pub fn get_params(&self, pattern: &str) -> Vec<(String, String)> {
        let mut all = self.m.own_params(self.service.kind());
        all.extend(self.service.params(&self.m.name.to_string()));
        // It can be long.
        let kind = self.service.kind();
        let job_stats = format!("{}.{}.job_stats", kind_word(kind), self.m.name);
        if kind != TargetKind::Mgt && wildcard::matches(pattern, &job_stats) {
            all.push((job_stats, self.m.stats.jobs.text(kind, self.m.now, self.m.wall_ns)));
        }
        all.retain(|(path, _)| wildcard::matches(pattern, path));
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
        let base = format!("{}.{}.", kind_word(self.service.kind()), self.m.name);
        if let Some(own) = path.strip_prefix(&base)
            && let Some(result) = self.set_own(own, value)
        {
            return result;
        }
        let space = format!("ldlm.namespaces.{}.", self.m.name);
        if let Some(leaf @ ("lock_reclaim_threshold_mb" | "lock_limit_mb")) = path.strip_prefix(&space) {
            let mb: usize = number(value)?;
            if !(1..=1 << 20).contains(&mb) {
                return Err(Errno::ERANGE);
            }
            let (count, old) = ((mb << 20) / LOCK_BYTES, self.m.locks.settings());
            self.m.locks.set_settings(match leaf {
                "lock_limit_mb" => dlm::server::Settings { locks_in_all_max: count, ..old },
                _ => dlm::server::Settings { locks_max: count, ..old },
            });
            return Ok(());
        }
        if let Some(result) = self.m.options.timeouts.set(path, value) {
            self.m.upstream_timeouts();
            return result;
        }
        if path == "ldlm_timeout" || path == format!("ldlm.namespaces.{}.lock_timeout", self.m.name) {
            let seconds: u64 = number(value)?;
            if !(1..=3600).contains(&seconds) {
                return Err(Errno::ERANGE);
            }
            self.m.options.lock_timeout = Duration::from_secs(seconds);
            let settings =
                dlm::server::Settings { lock_timeout: Duration::from_secs(seconds), ..self.m.locks.settings() };
            self.m.locks.set_settings(settings);
            return Ok(());
        }
        let mut result = None;
        self.outside_attempt(|service, cx| result = service.set_param(cx, path, value));
        match result {
            Some(result) => result,
            None if self.get_params(path).is_empty() => Err(Errno::ENOENT),
            None => Err(Errno::EACCES),
        }
    }

    /// `None`: not one of the machine's.
    fn set_own(&mut self, name: &str, value: &str) -> Option<Result<(), Errno>> {
        let kind = self.service.kind();
        let m = &mut self.m;
        let seconds = |value: &str| match number::<u64>(value)? {
            seconds @ 1..=86400 => Ok(Duration::from_secs(seconds)),
            _ => Err(Errno::ERANGE),
        };
        let result = match name {
            _ if kind == TargetKind::Mdt && MAX_MOD_RPCS.contains(&name) => match number::<u16>(value) {
                // Clients hear of it when they connect.
                Ok(count @ 1..=TAG_MAX) => {
                    m.options.max_mod_rpcs = count;
                    Ok(())
                }
                Ok(_) => Err(Errno::ERANGE),
                Err(errno) => Err(errno),
            },
            "ir_factor" => match number::<u32>(value) {
                Ok(factor @ 1..=10) => {
                    m.options.ir_factor = factor;
                    Ok(())
                }
                Ok(_) => Err(Errno::ERANGE),
                Err(errno) => Err(errno),
            },
            "recovery_time_soft" => seconds(value).map(|time| m.options.recovery_soft = time),
            "recovery_time_hard" => seconds(value).map(|time| m.options.recovery_hard = time),
            "job_cleanup_interval" if kind != TargetKind::Mgt => match number::<u64>(value) {
                Ok(seconds @ 0..=86400) => {
                    m.stats.jobs.set_cleanup_interval(Duration::from_secs(seconds));
                    Ok(())
                }
                Ok(_) => Err(Errno::ERANGE),
                Err(errno) => Err(errno),
            },
            "job_stats" if kind != TargetKind::Mgt => match m.stats.jobs.forget(value.trim()) {
                true => Ok(()),
                false => Err(Errno::ENXIO),
            },
            "commit_on_sharing" => match value.trim() {
                on @ ("0" | "1") => {
                    m.sharing.off = on == "0";
                    Ok(())
                }
                _ => Err(Errno::EINVAL),
            },
            "commit_interval_ms" => match number::<u64>(value) {
                Ok(ms @ 1..=60_000) => {
                    m.options.commit.interval = Duration::from_millis(ms);
                    m.view.set_policy(m.options.commit);
                    Ok(())
                }
                Ok(_) => Err(Errno::ERANGE),
                Err(errno) => Err(errno),
            },
            "evict_client" => {
                let found: Vec<Handle> =
                    m.exports.iter().filter(|export| is_client(value.trim(), export)).map(|e| e.handle).collect();
                for handle in &found {
                    self.evict(*handle, "an administrator asked for it");
                }
                if found.is_empty() { Err(Errno::ENXIO) } else { Ok(()) }
            }
            "abort_recovery" => {
                self.abort_recovery();
                Ok(())
            }
            _ => m.clear_stats(kind, name).map(Ok)?,
        };
        self.m.set_window_times();
        Some(result)
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
