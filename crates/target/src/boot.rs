//! Start-up and shutdown.
//!
//! ```text
//! load header, clients, configuration ─► count the start (durable) ─► the service's start ─► register ─► serve
//! ```
//! A target that was registered before serves at once and registers meanwhile, so that a file system comes up even if
//! its MGS does not.

use core::hash::Hasher;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proto::msg::NameKeys;
use proto::{ClientUuid, Errno, Tag, TargetKind, TargetName, Transno, Xid};
use rpc::server::{Exports, Limits, SlotRecord, Window};
use schema::Header;
use schema::session::{ClientRec, KnownConfig, Progress, ReplyRec};
use schema::{CrossKey, CrossRec, LeftRec, LossRec, Record};
use siphasher::sip::SipHasher24;
use stdx::faults::sites;

use crate::ExportId;
use crate::api::{Effect, LogLevel};
use crate::commit::Then;
use crate::cx::Cx;
use crate::machine::{Machine, Target};
use crate::op::{Own, Replay, Work};
use crate::options::{check_features, format_features};
use crate::service::{Service, Stop};
use crate::stopped::{StopReason, UnfitStore};

/// Stage of the target's life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Stage {
    /// Loading its first records.
    Booting,
    /// Making the number of starts durable.
    Counting,
    /// Starting the service.
    Starting,
    /// Waiting for the MGS's first configuration.
    Registering,
    /// The store is an older copy: no client is served, and the target waits to be stopped.
    Refusing,
    /// In service, or in recovery of clients.
    Serving,
    /// Committing the last changes; takes no more requests.
    Stopping,
    /// Everything is durable; disconnecting from the MGS and other targets, and answering nothing more.
    Leaving,
    /// Stopped.
    Stopped,
}

/// Reply records of clients with several slots, by generation.
type SlotsOnDisk = BTreeMap<u32, Vec<(Tag, SlotRecord)>>;

fn four(versions: &[u64]) -> [u64; 4] {
    let mut four = [0; 4];
    for (to, from) in four.iter_mut().zip(versions) {
        *to = *from;
    }
    four
}

/// Records loaded from the store at start.
#[derive(Debug)]
pub(crate) struct Loaded {
    header: Option<Header>,
    progress: Progress,
    config: KnownConfig,
    clients: Vec<(ClientUuid, ClientRec)>,
    replies: Vec<((u32, Tag), ReplyRec)>,
    cross: Vec<(CrossKey, CrossRec)>,
    losses: Vec<(u32, LossRec)>,
    left: Vec<(CrossKey, LeftRec)>,
}

impl Cx<'_> {
    /// The first attempt of the machine: loads its records.
    pub(crate) fn boot(&mut self) -> Result<(), Stop> {
        let header = self.get::<Header>(&());
        let progress = self.get::<Progress>(&());
        let config = self.get::<KnownConfig>(&());
        if self.m.sites.faults.hit_error(sites::TGT_RCVD_EIO) {
            return Err(self.m.sites.errno(Errno::EIO).into());
        }
        let clients = self.scan::<ClientRec>(&ClientRec::all(), usize::MAX);
        let replies = self.scan::<ReplyRec>(&ReplyRec::all(), usize::MAX);
        let cross = self.scan::<CrossRec>(&CrossRec::all(), usize::MAX);
        let losses = self.scan::<LossRec>(&LossRec::all(), usize::MAX);
        let left = self.scan::<LeftRec>(&LeftRec::all(), usize::MAX);
        self.m.loaded = Some(Loaded {
            cross: cross?,
            losses: losses?,
            left: left?,
            header: header?,
            progress: progress?.unwrap_or_default(),
            config: config?.unwrap_or_default(),
            clients: clients?,
            replies: replies?,
        });
        Ok(())
    }
}

impl<S: Service> Target<S> {
    pub(crate) fn boot(&mut self) {
        let op = self.m.new_op(ExportId::TARGET, Replay::No, Work::Own(Own::Boot));
        self.attempt(op);
        self.m.store_effects();
    }

    /// The machine's records are loaded.
    pub(crate) fn booted(&mut self) {
        let Some(mut loaded) = self.m.loaded.take() else { return };
        let cross = core::mem::take(&mut loaded.cross);
        self.m.load_losses(core::mem::take(&mut loaded.losses), core::mem::take(&mut loaded.left));
        if let Err(unfit) = self.m.take_over(loaded, self.service.kind()) {
            self.m.stop(StopReason::Unfit(unfit));
            return;
        }
        self.m.load_cross(&self.service, cross);
        self.m.stage = Stage::Counting;
        self.m.header_dirty();
        let group = self.m.newest_group();
        if let Some(then) = self.m.when_durable(group, Then::Counted) {
            self.then(then);
        }
    }

    /// The number of starts is durable.
    pub(crate) fn counted(&mut self) {
        if self.m.stage == Stage::Counting {
            self.m.stage = Stage::Starting;
            let op = self.m.new_op(ExportId::TARGET, Replay::No, Work::Own(Own::Start));
            self.attempt(op);
        }
    }

    /// The service is started.
    pub(crate) fn started(&mut self) {
        if self.m.stage != Stage::Starting {
            return;
        }
        if self.service.kind() == TargetKind::Mgt {
            self.serve();
            return;
        }
        if self.m.header.newer_count != 0 {
            self.refuse_store();
            return;
        }
        self.m.stage = Stage::Registering;
        let first = !self.m.header.registered || self.m.header.takes_keys;
        if !self.m.connect_mgs() {
            let reason = StopReason::NoMgs { target: self.m.name.clone() };
            if first || self.m.options.abort_recovery_mdt {
                self.m.stop(reason);
                return;
            }
            self.m.log(LogLevel::Warn, reason.to_string());
        }
        // One that may have been lost forgets what it has of changes over several targets before it serves anybody.
        if !first && !self.m.options.abort_recovery_mdt {
            self.serve();
        }
    }

    /// Enters service.
    pub(crate) fn serve(&mut self) {
        if self.m.stage >= Stage::Serving {
            return;
        }
        self.m.stage = Stage::Serving;
        self.m.effects.push_back(Effect::Serving { name: self.m.name.clone() });
        self.set_start_params();
        self.m.connect_peers();
        if self.m.config.version != 0 {
            self.outside_attempt(|service, cx| service.configured(cx));
        }
        if self.m.is_recovering() {
            let known = self.m.window.status().known;
            let line = format!("waits for {known} clients from before the restart to reconnect");
            self.m.log(LogLevel::Info, line);
        } else {
            self.outside_attempt(|service, cx| service.recovered(cx));
        }
    }

    /// Starts the shutdown: makes everything durable, then stops.
    pub(crate) fn begin_stop(&mut self) {
        match self.m.stage {
            Stage::Stopping | Stage::Leaving | Stage::Stopped => {}
            Stage::Booting => self.m.end(None),
            _ => {
                self.m.stage = Stage::Stopping;
                let group = self.m.newest_group();
                if let Some(then) = self.m.when_durable(group, Then::Stop) {
                    self.then(then);
                }
            }
        }
    }
}

/// Longest time that a stopping target waits for the replies to its disconnects.
const DISCONNECT_WAIT_MAX: Duration = Duration::from_secs(2);

impl Machine {
    /// Everything is durable: disconnects from other targets, so that these need not wait for this one.
    pub(crate) fn begin_leave(&mut self) {
        if self.stage < Stage::Leaving {
            self.stage = Stage::Leaving;
            self.leave_until = self.now + DISCONNECT_WAIT_MAX;
            self.disconnect_upstreams();
        }
    }

    /// Stops when all disconnects are answered, or after a time limit.
    pub(crate) fn leave(&mut self) {
        self.upstream_effects();
        if self.stage == Stage::Leaving && (self.upstreams.have_ended() || self.now >= self.leave_until) {
            // All sessions at the MGS are lightweight.
            let is_client = |lightweight: bool| !lightweight || self.name.kind == TargetKind::Mgt;
            let clients = self.exports.iter().filter(|e| is_client(e.lightweight) && e.link.is_some()).count();
            self.log(LogLevel::Info, format!("stopped, {clients} clients connected"));
            self.end(None);
        }
    }

    /// Checks what was loaded and makes it this target's state.
    fn take_over(&mut self, loaded: Loaded, kind: TargetKind) -> Result<(), UnfitStore> {
        let Loaded { header, progress, config, clients, replies, .. } = loaded;
        let Some(mut header) = header else {
            return Err(UnfitStore::NoTarget);
        };
        check_features(&header)?;
        let name: TargetName = header.name.parse().map_err(UnfitStore::Name)?;
        if name.kind != kind {
            return Err(UnfitStore::OtherKind { found: name });
        }
        if let Some(wanted) = &self.options.name
            && *wanted != name
        {
            return Err(UnfitStore::OtherTarget { found: name, wanted: wanted.clone() });
        }
        if self.options.accept_old_store {
            self.accept_store(&mut header, progress.last_transno)?;
        }
        let Some(count) = header.mount_count.checked_add(1) else {
            return Err(UnfitStore::Starts { target: name });
        };
        header.mount_count = count;
        let instance = header.mount_count;
        self.exports = Exports::new([self.options.seed, instance], Limits::default());
        self.locks = dlm::server::Locks::new(instance << 40, self.locks.settings());
        self.last_transno = Transno(progress.last_transno);
        let recover = !self.options.abort_recovery && !self.options.accept_old_store && kind != TargetKind::Mgt;
        let mut known = Vec::new();
        let mut generations = BTreeSet::new();
        let mut slots = SlotsOnDisk::default();
        for ((generation, tag), record) in replies {
            let record = SlotRecord {
                xid: Xid(record.xid),
                transno: Transno(record.transno),
                status: record.result,
                data: record.data,
                pre_versions: four(&record.pre_versions),
            };
            slots.entry(generation).or_default().push((tag, record));
        }
        self.exports.skip_generations(progress.last_generation);
        for (uuid, record) in clients {
            let single = record.slots.iter().filter_map(|slot| {
                let tag = Tag(u16::try_from(slot.tag).ok()?);
                let (xid, transno, pre_versions) = (Xid(slot.xid), Transno(slot.transno), four(&slot.pre_versions));
                Some((tag, SlotRecord { xid, transno, status: slot.result, data: slot.data, pre_versions }))
            });
            let mut of_client: Vec<_> = single.collect();
            if record.generation != 0 {
                if !generations.insert(record.generation) {
                    return Err(UnfitStore::Generation { target: header.name, generation: record.generation });
                }
                of_client.extend(slots.get(&record.generation).into_iter().flatten());
            }
            let highest = of_client.iter().map(|(_, slot)| slot.transno).max().unwrap_or_default();
            self.last_transno = self.last_transno.max(highest);
            if recover {
                slots.remove(&record.generation);
                let names = (record.session, record.generation);
                known.push(self.exports.restore(self.now, uuid, record.description, names, of_client));
            } else {
                self.forget_client(uuid);
            }
        }
        // The remaining records belong to no client.
        for (generation, of_client) in slots {
            for (tag, _) in of_client {
                self.commits.forget_reply(generation, tag, self.now);
            }
        }
        self.last_committed = self.last_transno;
        self.started_from = self.last_transno;
        self.commits.set_progress(self.last_transno, progress.last_generation);
        let given_max = given_max(&header, self.last_committed);
        self.window = Window::new(known, self.last_committed, given_max, self.soft_time(), self.options.recovery_hard);
        next_epoch(&header, self.last_transno)?;
        // MDT0000 registers with it. The others have it from there.
        if kind == TargetKind::Mdt && !header.takes_keys && header.second_key.len() != NameKeys::LEN {
            header.second_key = draw_key(&header, self.options.seed, b"names");
        }
        if !self.window.is_open() {
            begin_epoch(&mut header, self.last_transno, self.options.seed)?;
            self.last_transno = Transno::start_of(header.epoch);
            header.incompat &= !format_features::MULTI_RPCS;
        }
        self.config = config.config.unwrap_or_default();
        self.name = name;
        self.header = header;
        Ok(())
    }
}

/// Length of the key of open handles, in bytes.
const KEY_LEN: usize = 16;

/// Derives a secret key from the driver's random seed.
fn draw_key(header: &Header, seed: u64, what: &[u8]) -> Bytes {
    let mut drawn = SipHasher24::new_with_keys(seed, header.mount_count);
    drawn.write(what);
    drawn.write(&header.uuid);
    let first = drawn.finish();
    drawn.write_u64(first);
    [first.to_be_bytes(), drawn.finish().to_be_bytes()].concat().into()
}

/// Starts the next recovery epoch, so that transnos from now on are above all earlier ones. Version 0.1.0 drops
/// `versions_epoch` whenever it serves the target, so all requests that it answered precede that epoch; the same
/// applies to the key of open handles, which is drawn here.
///
/// # Errors
/// If there is no next epoch; a message for the operator.
pub(crate) fn begin_epoch(header: &mut Header, last: Transno, seed: u64) -> Result<(), UnfitStore> {
    header.epoch = next_epoch(header, last)?;
    if header.versions_epoch == 0 {
        header.versions_epoch = header.epoch;
    }
    if header.open_key.len() != KEY_LEN {
        header.open_key = draw_key(header, seed, b"open");
        header.open_key_epoch = header.epoch;
    }
    Ok(())
}

fn next_epoch(header: &Header, last: Transno) -> Result<u32, UnfitStore> {
    let next = header.epoch.max(last.epoch()).checked_add(1);
    next.ok_or_else(|| UnfitStore::Epochs { target: header.name.clone(), last })
}

/// The highest transno that can have been assigned since the last durable group. Transnos of an epoch begin at its
/// start, and no group has 2^32 changes.
fn given_max(header: &Header, committed: Transno) -> Transno {
    let from = committed.max(Transno::start_of(header.epoch));
    Transno(from.0.saturating_add(u64::from(u32::MAX)))
}
