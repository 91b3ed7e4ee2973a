//! Upstreams: sessions of this target with others, namely the MGS and the targets that the service uses.
//!
//! The imports are lightweight: they have no recovery, requests are executed at least once, and their changes are
//! durable when they are answered.

use core::hash::Hasher;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use proto::msg::{Config, ConfigGetReq, NameKeys, RegisterRep, RegisterReq};
use proto::{ClientUuid, Errno, Frame, Nid, Opcode, TargetIndex, TargetKind, TargetName};
use rpc::Link;
use rpc::client::{self, Import, ImportEffect, ImportEvent, Outgoing, RequestId};
use siphasher::sip::SipHasher24;
use stdx::{Instant, Map};

use crate::api::{ConnId, Effect, LogLevel};
use crate::boot::Stage;
use crate::cross::run::Asked;
use crate::machine::{Machine, Target, Timer};
use crate::op::{Call, Op};
use crate::options::format_features;
use crate::service::Service;
use crate::stopped::StopReason;

const INDEX_SHIFT: u32 = 32;
/// Delay before registering again with an MGS whose disk is full.
const REGISTER_AGAIN: Duration = Duration::from_secs(10);
/// Delay before registering again while MDT0000 has not registered.
const KEYS_AGAIN: Duration = Duration::from_secs(1);

/// Purpose of a request.
#[derive(Debug)]
enum For {
    Op { op: u64, call: usize },
    Register,
    Config,
    Cross(Asked),
}

/// Events of upstreams that the service or the target must handle.
#[derive(Debug)]
enum UpstreamEvent {
    /// The session with the MGS is in service.
    Mgs,
    Registered(Result<Frame, Errno>),
    Config(Result<Frame, Errno>),
    /// The connection to a target that the service uses is lost.
    Away(TargetName),
}

struct Upstream {
    name: TargetName,
    import: Import,
    calls: Map<RequestId, For>,
    /// The session has ended.
    ended: bool,
}

/// All imports of the target.
#[derive(Default)]
pub(crate) struct Upstreams {
    list: Vec<Upstream>,
    /// Deadline of each import.
    deadlines: Vec<Instant>,
    /// Deadlines with the index of the import, ordered.
    due: BTreeSet<(Instant, usize)>,
    by_name: BTreeMap<TargetName, usize>,
    /// Imports that may have effects.
    active: Vec<usize>,
    events: VecDeque<UpstreamEvent>,
    registered: bool,
    /// The MGS has said that MDT0000 has to register first.
    waits_for_keys: bool,
    config_asked: bool,
    config_changed: bool,
}

impl Upstreams {
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Sets the deadline of an import.
    fn set_deadline(&mut self, index: usize, at: Option<Instant>) {
        let Some(known) = self.deadlines.get_mut(index) else { return };
        let at = at.unwrap_or(Instant::FAR);
        let before = core::mem::replace(known, at);
        if before != at {
            self.due.remove(&(before, index));
            if at != Instant::FAR {
                self.due.insert((at, index));
            }
        }
    }

    /// Whether all sessions have ended.
    pub(crate) fn have_ended(&self) -> bool {
        self.list.iter().all(|up| up.ended)
    }

    /// Whether this start is registered with the MGS, which notifies the clients.
    pub(crate) fn is_registered(&self) -> bool {
        self.registered
    }

    /// Whether the MGS has checked this start against those that it knows, or there is no MGS.
    pub(crate) fn is_start_checked(&self) -> bool {
        self.registered || !self.by_name.contains_key(&mgs())
    }

    /// The targets.
    pub(crate) fn names(&self) -> impl Iterator<Item = &TargetName> {
        self.by_name.keys()
    }

    /// The import of a target.
    pub(crate) fn get(&self, name: &TargetName) -> Option<&Import> {
        Some(&self.list.get(*self.by_name.get(name)?)?.import)
    }

    /// The same, mutable: it may have effects then.
    pub(crate) fn get_mut(&mut self, name: &TargetName) -> Option<&mut Import> {
        let index = *self.by_name.get(name)?;
        self.active.push(index);
        Some(&mut self.list.get_mut(index)?.import)
    }
}

fn mgs() -> TargetName {
    TargetName { fsname: String::new(), kind: TargetKind::Mgt, index: TargetIndex(0) }
}

fn parse_nids<'a>(nids: impl IntoIterator<Item = &'a String>) -> Vec<Nid> {
    nids.into_iter().filter_map(|nid| nid.parse().ok()).collect()
}

impl Machine {
    /// Connects to the MGS. `false` if its address is not known.
    pub(crate) fn connect_mgs(&mut self) -> bool {
        let nids = match self.options.mgs.is_empty() {
            true => parse_nids(&self.header.mgs_nids),
            false => self.options.mgs.clone(),
        };
        if nids.is_empty() {
            return false;
        }
        self.add_upstream(mgs(), nids);
        true
    }

    /// The index of the import of a target with these addresses, which is made if necessary.
    pub(crate) fn connect_upstream(&mut self, name: &TargetName, nids: &[String]) -> usize {
        match self.upstreams.by_name.get(name) {
            Some(&index) => index,
            None => self.add_upstream(name.clone(), parse_nids(nids)),
        }
    }

    /// Sends another metadata target a request about cross changes.
    pub(crate) fn submit_to_peer(&mut self, index: usize, out: Outgoing, asked: Asked) {
        self.submit_upstream(index, out, For::Cross(asked));
    }

    fn add_upstream(&mut self, name: TargetName, nids: Vec<Nid>) -> usize {
        let index = self.upstreams.list.len();
        // A new identity at each start, so that requests of earlier starts are not confused with new ones.
        let half = |which: u64| {
            let mut hasher = SipHasher24::new_with_keys(self.header.mount_count, which);
            hasher.write(&self.header.uuid);
            hasher.write(name.to_string().as_bytes());
            u128::from(hasher.finish())
        };
        let uuid = half(0) << 64 | half(1);
        let seed = self.options.seed ^ index as u64;
        let config = client::Config {
            description: self.name.to_string(),
            lightweight: true,
            mod_rpcs_raise: true,
            timeouts: self.options.timeouts.clone(),
            faults: self.options.faults.clone(),
            ..client::Config::new(ClientUuid(uuid), name.to_string(), nids, seed)
        };
        let import = Import::new(config, self.now);
        self.upstreams.list.push(Upstream { name: name.clone(), import, calls: Map::default(), ended: false });
        self.upstreams.deadlines.push(Instant::FAR);
        self.upstreams.by_name.insert(name, index);
        self.upstreams.active.push(index);
        index
    }

    /// Passes new timeouts to all imports.
    pub(crate) fn upstream_timeouts(&mut self) {
        for up in &mut self.upstreams.list {
            up.import.set_timeouts(&self.options.timeouts);
        }
    }

    /// Disconnects from all targets. Requests in flight are not waited for.
    pub(crate) fn disconnect_upstreams(&mut self) {
        for (index, up) in self.upstreams.list.iter_mut().enumerate() {
            up.import.disconnect(self.now);
            self.upstreams.active.push(index);
        }
    }

    fn upstream_event(&mut self, conn: ConnId, event: impl FnOnce(Link) -> ImportEvent) {
        let index = ((conn.0 & !ConnId::DIALLED) >> INDEX_SHIFT) as usize;
        let link = Link(conn.0 & ((1 << INDEX_SHIFT) - 1));
        if let Some(up) = self.upstreams.list.get_mut(index) {
            up.import.handle(self.now, event(link));
            self.upstreams.active.push(index);
        }
    }

    pub(crate) fn upstream_dialled(&mut self, conn: ConnId) {
        self.upstream_event(conn, ImportEvent::Dialled);
    }

    pub(crate) fn upstream_dial_failed(&mut self, conn: ConnId, reason: String) {
        self.upstream_event(conn, |link| ImportEvent::DialFailed(link, reason));
    }

    pub(crate) fn upstream_closed(&mut self, conn: ConnId) {
        self.upstream_event(conn, ImportEvent::Closed);
    }

    pub(crate) fn upstream_frame(&mut self, conn: ConnId, frame: Frame) {
        self.upstream_event(conn, |link| ImportEvent::Frame(link, frame));
    }

    pub(crate) fn upstreams_tick(&mut self) {
        let due: Vec<usize> = self.upstreams.due.range(..=(self.now, usize::MAX)).map(|(_, index)| *index).collect();
        for index in due {
            self.upstreams.list[index].import.handle(self.now, ImportEvent::Tick);
            self.upstreams.active.push(index);
        }
    }

    /// The reply to a request, if there is one. Sends the request if necessary.
    pub(crate) fn upstream_call(
        &mut self,
        op: &mut Op,
        target: &TargetName,
        opcode: Opcode,
        body: Bytes,
        bulk: Bytes,
    ) -> Option<Result<Frame, Errno>> {
        let id = op.id;
        let memo = op.memo();
        let known = memo.calls.find(|c| c.opcode == opcode && c.target == *target && c.body == body);
        if let Some(call) = known {
            return call.answer.clone();
        }
        let index = match self.upstreams.by_name.get(target) {
            Some(&index) => index,
            None => {
                let full = target.to_string();
                let Some(entry) = self.config.targets.iter().find(|entry| entry.target == full) else {
                    return Some(Err(Errno::ENODEV));
                };
                let nids = parse_nids(&entry.nids);
                self.add_upstream(target.clone(), nids)
            }
        };
        let call = memo.calls.push(Call { target: target.clone(), opcode, body: body.clone(), answer: None });
        let out = Outgoing { body, bulk, ..Outgoing::new(opcode, &proto::msg::Empty {}) };
        self.submit_upstream(index, out, For::Op { op: id, call });
        None
    }

    /// Drops the unanswered questions of an operation to other targets: it has ended, or asks again.
    pub(crate) fn abandon_looks(&mut self, op: &Op) {
        for target in op.looks() {
            let Some(&index) = self.upstreams.by_name.get(target) else { continue };
            let Some(up) = self.upstreams.list.get_mut(index) else { continue };
            let of = |whom: &For| matches!(whom, For::Op { op: id, .. } if *id == op.id);
            let asked: Vec<RequestId> = up.calls.iter().filter(|(_, whom)| of(whom)).map(|(id, _)| *id).collect();
            for id in asked {
                up.calls.remove(&id);
                up.import.abort(id);
            }
            self.upstreams.active.push(index);
        }
    }

    fn submit_upstream(&mut self, index: usize, out: Outgoing, whom: For) {
        let Some(up) = self.upstreams.list.get_mut(index) else { return };
        let id = up.import.submit(self.now, out);
        up.calls.insert(id, whom);
        self.upstreams.active.push(index);
    }

    /// Carries out the effects of the imports.
    pub(crate) fn upstream_effects(&mut self) {
        while let Some(index) = self.upstreams.active.pop() {
            while let Some(effect) = self.upstreams.list.get_mut(index).and_then(|up| up.import.poll()) {
                self.upstream_effect(index, effect);
            }
            let at = self.upstreams.list.get(index).and_then(|up| up.import.deadline());
            self.upstreams.set_deadline(index, at);
        }
    }

    fn upstream_effect(&mut self, index: usize, effect: ImportEffect) {
        let conn = |link: Link| ConnId(ConnId::DIALLED | (index as u64) << INDEX_SHIFT | link.0);
        let is_mgs = self.upstreams.by_name.get(&mgs()) == Some(&index);
        match effect {
            ImportEffect::Dial { link, nids } => self.push(Effect::Dial { conn: conn(link), nids }),
            ImportEffect::Send { link, frame } => self.push(Effect::Send { conn: conn(link), frame }),
            ImportEffect::Hangup(link) => self.push(Effect::Hangup { conn: conn(link) }),
            ImportEffect::Reply { id, result, .. } => {
                let whom = self.upstreams.list.get_mut(index).and_then(|up| up.calls.remove(&id));
                match whom {
                    Some(For::Op { op, call }) => {
                        if let Some(waiting) = self.ops.get_mut(&op) {
                            if let Some(slot) = waiting.memo().calls.get_mut(call) {
                                slot.answer = Some(result);
                            }
                            self.ready.push_back(op);
                        }
                    }
                    Some(For::Register) => self.upstreams.events.push_back(UpstreamEvent::Registered(result)),
                    Some(For::Config) => self.upstreams.events.push_back(UpstreamEvent::Config(result)),
                    Some(For::Cross(asked)) => self.peer_answered(asked, result),
                    None => {}
                }
            }
            ImportEffect::Away if !is_mgs => {
                if let Some(mdt) = self.peer(index) {
                    self.peer_away(mdt);
                }
                let name = self.upstreams.list.get(index).map(|up| up.name.clone());
                self.upstreams.events.extend(name.map(UpstreamEvent::Away));
            }
            ImportEffect::Full { .. } if let Some(mdt) = self.peer(index) => self.peer_connected(mdt),
            ImportEffect::Notice(frame) if frame.header.opcode == Opcode::CrossFree as u16 => self.peer_is_free(&frame),
            ImportEffect::Full { .. } if is_mgs => self.upstreams.events.push_back(UpstreamEvent::Mgs),
            ImportEffect::Notice(frame) if is_mgs && frame.header.opcode == Opcode::MgsConfigChanged as u16 => {
                self.ask_config();
            }
            ImportEffect::ReplayLocks { .. } => {
                if let Some(up) = self.upstreams.list.get_mut(index) {
                    up.import.locks_to_replay(self.now, Vec::new());
                }
            }
            ImportEffect::Disconnected => {
                if let Some(up) = self.upstreams.list.get_mut(index) {
                    up.ended = true;
                }
            }
            ImportEffect::Refused { reason, .. } => self.log(LogLevel::Error, reason),
            ImportEffect::Log(line) => self.log(LogLevel::Info, line),
            ImportEffect::Loss(line) => self.log(LogLevel::Warn, line),
            _ => {}
        }
    }

    /// The index of the metadata target that an import is for.
    fn peer(&self, index: usize) -> Option<u32> {
        self.upstreams.list.get(index).filter(|up| up.name.kind == TargetKind::Mdt).map(|up| up.name.index.0)
    }

    /// Whether requests to another target are sent at once: its session is in service.
    pub(crate) fn is_upstream_full(&self, index: usize) -> bool {
        self.upstreams.list.get(index).is_some_and(|up| up.import.state() == client::State::Full)
    }

    /// Whether the configuration is being fetched.
    pub(crate) fn asks_config(&self) -> bool {
        self.upstreams.config_asked
    }

    pub(crate) fn ask_config(&mut self) {
        let Some(&index) = self.upstreams.by_name.get(&mgs()) else { return };
        if core::mem::replace(&mut self.upstreams.config_asked, true) {
            // The reply in flight may be older than this notification.
            self.upstreams.config_changed = true;
            return;
        }
        let body = ConfigGetReq { fsname: self.name.fsname.clone() };
        self.submit_upstream(index, Outgoing::new(Opcode::MgsConfigGet, &body), For::Config);
    }

    pub(crate) fn register(&mut self) {
        let Some(&index) = self.upstreams.by_name.get(&mgs()) else { return };
        let body = RegisterReq {
            target: self.name.to_string(),
            target_uuid: self.header.uuid.clone(),
            nids: self.options.nids.iter().map(Nid::to_string).collect(),
            instance: self.header.mount_count,
            first: !self.header.registered,
            start: self.start_id(),
            replace: self.header.replaces && self.header.replaced == 0,
            replaced: self.header.replaced,
            losses: self.header.losses,
            name_keys: self
                .is_mdt0000()
                .then(|| NameKeys { first: self.header.name_key.clone(), second: self.header.second_key.clone() }),
            wants_keys: self.header.takes_keys,
        };
        let out = Outgoing { timeout: Some(Duration::from_secs(30)), ..Outgoing::new(Opcode::MgsRegister, &body) };
        self.submit_upstream(index, out, For::Register);
    }

    fn is_mdt0000(&self) -> bool {
        self.name.kind == TargetKind::Mdt && self.name.index.0 == 0
    }

    /// Takes over the file system's keys for the hashes of names. There are no names yet.
    fn take_keys(&mut self, keys: NameKeys) {
        let header = &mut self.header;
        match keys.first.is_empty() {
            true => header.incompat &= !format_features::KEYED_NAMES,
            false => header.incompat |= format_features::KEYED_NAMES,
        }
        (header.name_key, header.second_key) = (keys.first, keys.second);
        header.takes_keys = false;
        self.header_dirty();
    }

    /// Registers again, after the disk of the MGS was full, or MDT0000 had not registered.
    pub(crate) fn register_again(&mut self) {
        if !self.upstreams.registered {
            self.register();
        }
    }

    /// Passes the addresses and starts in the configuration to the imports.
    fn move_upstreams(&mut self) {
        let targets = self.config.targets.clone();
        for entry in targets {
            let Ok(name) = entry.target.parse::<TargetName>() else { continue };
            let Some(&index) = self.upstreams.by_name.get(&name) else { continue };
            if let Some(up) = self.upstreams.list.get_mut(index) {
                let event = ImportEvent::Target { nids: parse_nids(&entry.nids), instance: entry.instance };
                up.import.handle(self.now, event);
                self.upstreams.active.push(index);
            }
        }
    }
}

impl<S: Service> Target<S> {
    /// Handles the events of upstreams. Returns whether there were any.
    pub(crate) fn upstream_events(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.m.upstreams.events.pop_front() {
            any = true;
            match event {
                UpstreamEvent::Mgs if self.m.upstreams.registered => self.m.ask_config(),
                UpstreamEvent::Mgs => self.m.register(),
                UpstreamEvent::Registered(result) => self.registered(result),
                UpstreamEvent::Config(result) => self.config_received(result),
                UpstreamEvent::Away(name) => self.outside_attempt(|service, cx| service.upstream_away(cx, &name)),
            }
        }
        any
    }

    fn registered(&mut self, result: Result<Frame, Errno>) {
        let Ok(frame) = result else { return };
        if let Err(errno) = Errno::from_status(frame.header.status) {
            let RegisterRep { reason, known_instance, losses, .. } = frame.decode().unwrap_or_default();
            if errno == Errno::EPERM && self.is_admitted(losses) {
                return;
            }
            if errno == Errno::ESTALE && known_instance >= self.m.header.mount_count {
                self.found_old(known_instance);
                return;
            }
            if errno == Errno::ENOSPC && reason.is_empty() {
                // The MGS's disk is full, which is no reason to stop this target.
                stdx::mark!("target.mgs_is_full");
                let name = &self.m.name;
                let line = format!("the MGS has no space to register target '{name}': tried again in ten seconds");
                self.m.log(LogLevel::Warn, line);
                let at = self.m.now + REGISTER_AGAIN;
                self.m.add_timer(at, Timer::Register);
                return;
            }
            if errno == Errno::EAGAIN && self.m.header.takes_keys {
                stdx::mark!("target.waits_for_keys");
                if !core::mem::replace(&mut self.m.upstreams.waits_for_keys, true) {
                    self.m.log(LogLevel::Info, reason);
                }
                let at = self.m.now + KEYS_AGAIN;
                self.m.add_timer(at, Timer::Register);
                return;
            }
            self.m.stop(match reason.is_empty() {
                true => StopReason::RefusedWithoutReason { target: self.m.name.clone(), errno },
                false => StopReason::Refused { errno, reason },
            });
            return;
        }
        let RegisterRep { replaced, name_keys, .. } = frame.decode().unwrap_or_default();
        if self.m.header.takes_keys {
            let Some(keys) = name_keys.filter(NameKeys::are_valid) else {
                self.m.stop(StopReason::NoKeys { target: self.m.name.clone() });
                return;
            };
            self.m.take_keys(keys);
        }
        if self.m.header.replaces && replaced > self.m.header.replaced {
            self.m.header.replaced = replaced;
            self.m.header_dirty();
        }
        self.m.upstreams.registered = true;
        self.m.set_window_times();
        if !self.m.header.registered {
            self.m.header.registered = true;
            self.m.header_dirty();
        }
        self.m.ask_config();
    }

    fn config_received(&mut self, result: Result<Frame, Errno>) {
        self.m.upstreams.config_asked = false;
        let config = match result {
            Ok(frame) if frame.header.status == 0 => frame.decode::<Config>().ok(),
            _ => None,
        };
        if let Some(config) = config
            && config != self.m.config
        {
            let before = core::mem::replace(&mut self.m.config, config);
            self.m.config_dirty();
            self.m.move_upstreams();
            if self.m.stage >= Stage::Serving {
                self.m.connect_peers();
                self.set_config_params(&before.params);
                self.outside_attempt(|service, cx| service.configured(cx));
            }
        }
        if core::mem::take(&mut self.m.upstreams.config_changed) {
            self.m.ask_config();
        }
        self.m.look_for_sessions();
        // The MGS's first configuration has arrived.
        if self.m.stage == Stage::Registering {
            self.serve();
        }
    }
}
