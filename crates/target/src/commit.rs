//! Group commit: when groups are closed, the machine's own records in them, and the actions that wait for their
//! durability.
//!
//! Client records and the target's progress are not written with each request but once, when a group is closed. Groups
//! are closed nowhere else, so these records are in the same group as the changes that they describe.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proto::{ClientUuid, Frame, Handle, Tag, Transno};
use rpc::server::{Gone, SlotRecord};
use schema::session::{ClientRec, KnownConfig, Progress, ReplyRec, SlotRec};
use schema::{Header, Record};
use stdx::Instant;
use stdx::faults::sites;
use store::{AttemptId, EngineError, Group, StoreEffect};

use crate::api::{DataId, DataOp, DataResult, Effect, LogLevel};
use crate::boot::Stage;
use crate::cross::Attempt;
use crate::machine::{Machine, Target, Timer};
use crate::service::Service;
use crate::stopped::StopReason;

/// The view's identifier for the attempt that writes the machine's own records.
const OWN_ATTEMPT: AttemptId = AttemptId(0);
/// A group with this many data files to sync is closed at once.
const DIRTY_FILES_MAX: usize = 4096;

/// Delay before a group that found the medium full is retried.
pub(crate) const FULL_RETRY: Duration = Duration::from_secs(1);

/// Actions that wait until a group is durable.
#[derive(Debug)]
pub(crate) enum Then {
    /// Send this reply.
    Reply(Handle, Frame),
    /// Send this reply over the connection that the request came from, if it is still open.
    SendOn(crate::ConnId, Frame),
    /// The number of starts is durable: continue the start-up.
    Counted,
    /// The new epoch is durable: continue the recovery.
    Epoch,
    /// Register with the MGS.
    Register,
    /// Everything is durable: stop the target.
    Stop,
    /// What this target has of the attempts of a coordinator is durable: report it.
    CrossReport(Handle, proto::Header, u32),
    /// The record of a lost target is durable.
    Lost(u32, u32),
    /// What this target has of these attempts of a lost coordinator is durable: answer.
    OrphansAsked(Handle, proto::Header, Vec<proto::msg::CrossAttempt>),
    /// A staged record is durable.
    Staged(Attempt),
    /// A staged record is gone.
    StagedGone(Attempt),
    /// A coordinator's part and done record are durable.
    Committed(Attempt),
    /// A prepared record is durable.
    Prepared(Attempt),
    /// A prepared record is gone.
    PreparedGone(Attempt),
    /// A participant's part and done record are durable.
    Applied(Attempt),
    /// A participant's done record is gone.
    DoneGone(Attempt),
}

/// The state of groups.
#[derive(Debug)]
pub(crate) struct Commits {
    /// Sealed groups that are not durable, with the highest transno up to each.
    groups: VecDeque<(u64, Transno)>,
    /// Waiting actions, by group.
    then: BTreeMap<u64, Vec<Then>>,
    /// Since when records of the machine itself are dirty.
    own_since: Option<Instant>,
    /// The collecting group is to be closed as soon as possible.
    wanted: bool,
    dirty_exports: Vec<Handle>,
    /// Slots with a dirty reply record.
    dirty_replies: Vec<(Handle, Tag)>,
    forgotten: BTreeSet<ClientUuid>,
    /// Obsolete reply records, to be deleted.
    garbage: BTreeSet<(u32, Tag)>,
    header_dirty: bool,
    config_dirty: bool,
    progress: (Transno, u32),
    /// Data files changed by accepted changes of the collecting group.
    dirty_files: BTreeSet<u64>,
    /// A group that waits for the sync of its data files.
    syncing: Option<(DataId, Group)>,
    /// When the group in flight was closed, and how many records it changes.
    begun: Option<(Instant, usize)>,
}

impl Commits {
    pub(crate) fn new() -> Commits {
        Commits {
            groups: VecDeque::new(),
            then: BTreeMap::new(),
            own_since: None,
            wanted: false,
            dirty_exports: Vec::new(),
            dirty_replies: Vec::new(),
            forgotten: BTreeSet::new(),
            garbage: BTreeSet::new(),
            header_dirty: false,
            config_dirty: false,
            progress: (Transno(0), 0),
            dirty_files: BTreeSet::new(),
            syncing: None,
            begun: None,
        }
    }

    pub(crate) fn forget(&mut self, uuid: ClientUuid, now: Instant) {
        self.forgotten.insert(uuid);
        self.own_since.get_or_insert(now);
    }

    /// Deletes an obsolete reply record with the next group.
    pub(crate) fn forget_reply(&mut self, generation: u32, tag: Tag, now: Instant) {
        self.garbage.insert((generation, tag));
        self.own_since.get_or_insert(now);
    }

    pub(crate) fn dirty_file(&mut self, file: u64) {
        self.dirty_files.insert(file);
    }

    /// Sets the progress that the store has at start.
    pub(crate) fn set_progress(&mut self, transno: Transno, generation: u32) {
        self.progress = (transno, generation);
    }
}

impl Machine {
    /// Marks a client's record dirty.
    pub(crate) fn export_dirty(&mut self, handle: Handle) {
        self.commits.own_since.get_or_insert(self.now);
        self.commits.dirty_exports.push(handle);
    }

    /// Marks the reply record of a slot dirty.
    pub(crate) fn reply_dirty(&mut self, handle: Handle, tag: Tag) {
        self.commits.own_since.get_or_insert(self.now);
        self.commits.dirty_replies.push((handle, tag));
    }

    /// Marks all reply records of a client dirty, because they got new names.
    pub(crate) fn replies_dirty(&mut self, handle: Handle) {
        let Some(export) = self.exports.get(handle) else { return };
        let tags: Vec<Tag> = export.slots().iter().map(|(tag, _)| tag).collect();
        for tag in tags {
            self.reply_dirty(handle, tag);
        }
    }

    /// Deletes the reply records of an ended session.
    pub(crate) fn forget_replies(&mut self, gone: &Gone) {
        if gone.generation != 0 {
            for tag in &gone.tags {
                self.commits.forget_reply(gone.generation, *tag, self.now);
            }
        }
    }

    pub(crate) fn header_dirty(&mut self) {
        self.commits.own_since.get_or_insert(self.now);
        self.commits.header_dirty = true;
    }

    pub(crate) fn config_dirty(&mut self) {
        self.commits.own_since.get_or_insert(self.now);
        self.commits.config_dirty = true;
    }

    /// A change has a transno to be recorded, even if it wrote nothing (a pure open).
    pub(crate) fn progress_dirty(&mut self) {
        self.commits.own_since.get_or_insert(self.now);
    }

    /// The group whose durability makes everything up to now durable.
    pub(crate) fn newest_group(&self) -> u64 {
        let collecting = self.view.collecting_group();
        if self.commits.own_since.is_some() { collecting } else { self.view.newest_group() }
    }

    /// Defers an action until `group` is durable, and closes the group soon. Returns the action if the group is durable
    /// already.
    pub(crate) fn when_durable(&mut self, group: u64, then: Then) -> Option<Then> {
        if group <= self.view.durable_group() {
            return Some(then);
        }
        if group == self.view.collecting_group() {
            self.commits.wanted = true;
        }
        self.when_durable_anyway(group, then)
    }

    /// The same for what need not be soon: the group is closed when it is due.
    pub(crate) fn when_durable_anyway(&mut self, group: u64, then: Then) -> Option<Then> {
        if group <= self.view.durable_group() {
            return Some(then);
        }
        self.commits.then.entry(group).or_default().push(then);
        None
    }

    /// Closes the collecting group as soon as possible.
    pub(crate) fn want_commit(&mut self) {
        self.commits.wanted = true;
    }

    pub(crate) fn commit_deadline(&self) -> Option<Instant> {
        if self.view.in_flight() || self.view.has_failed() {
            return None;
        }
        let own = self.commits.own_since.map(|since| since + self.options.commit.interval);
        let due = [self.view.deadline(), own].into_iter().flatten().min()?;
        let files = self.commits.dirty_files.len() >= DIRTY_FILES_MAX;
        Some(if self.commits.wanted || files { Instant::ZERO } else { due })
    }

    /// Writes the machine's own records to the group.
    fn write_own(&mut self) {
        let commits = &mut self.commits;
        commits.own_since = None;
        self.view.begin(OWN_ATTEMPT);
        for uuid in core::mem::take(&mut commits.forgotten) {
            if self.exports.of_client(uuid).is_none_or(|export| export.lightweight) {
                self.view.delete(ClientRec::key(&uuid));
            }
        }
        for handle in core::mem::take(&mut commits.dirty_exports) {
            let Some(export) = self.exports.get_mut(handle) else { continue };
            if !core::mem::take(&mut export.dirty) || export.lightweight {
                continue;
            }
            let mut slots = Vec::new();
            if !export.is_multi() {
                let all: Vec<(Tag, SlotRecord)> = export.slots().iter().map(|(tag, record)| (tag, *record)).collect();
                for (tag, r) in all {
                    export.slots_mut().clean(tag);
                    slots.push(SlotRec {
                        tag: tag.0.into(),
                        xid: r.xid.0,
                        transno: r.transno.0,
                        result: r.status,
                        data: r.data,
                        pre_versions: used_versions(&r),
                    });
                }
            }
            let record = ClientRec {
                generation: export.generation,
                description: export.description.clone(),
                slots,
                last_epoch: self.header.epoch,
                session: export.session,
            };
            self.view.put(ClientRec::key(&export.uuid), record.encode_record());
        }
        for (generation, tag) in core::mem::take(&mut commits.garbage) {
            self.view.delete(ReplyRec::key(&(generation, tag)));
        }
        for (handle, tag) in core::mem::take(&mut commits.dirty_replies) {
            let Some(export) = self.exports.get_mut(handle) else { continue };
            let Some(r) = export.slots_mut().clean(tag) else { continue };
            let record = ReplyRec {
                xid: r.xid.0,
                transno: r.transno.0,
                result: r.status,
                data: r.data,
                pre_versions: used_versions(&r),
            };
            self.view.put(ReplyRec::key(&(export.generation, tag)), record.encode_record());
        }
        if core::mem::take(&mut commits.header_dirty) {
            self.view.put(Header::key(&()), self.header.encode_record());
        }
        if core::mem::take(&mut commits.config_dirty) {
            let known = KnownConfig { config: Some(self.config.clone()) };
            self.view.put(KnownConfig::key(&()), known.encode_record());
        }
        // A group with waiting actions must not be empty.
        let awaited = self.view.collecting_is_empty() && commits.then.contains_key(&self.view.collecting_group());
        let reached = (self.last_transno, self.exports.last_generation());
        if commits.progress != reached || awaited {
            commits.progress = reached;
            let progress = Progress { last_transno: reached.0.0, last_generation: reached.1 };
            self.view.put(Progress::key(&()), progress.encode_record());
        }
        self.view.accept(self.now);
    }

    /// Assertions at the end of every run. If one fails, the target stops before it answers or writes anything more.
    pub(crate) fn assert_sound(&self) {
        let (durable, newest) = (self.view.durable_group(), self.newest_group());
        assert!(durable <= newest, "group {durable} is durable, and the newest is {newest}");
        let (committed, last) = (self.last_committed, self.last_transno);
        assert!(committed <= last, "transno {committed} is durable, and the last one given is {last}");
        assert!(!self.sites.faults.hit_once(sites::ASSERTION), "fail_loc asks for it");
    }

    /// Passes the store's effects on. A group with data files first waits for their sync.
    pub(crate) fn store_effects(&mut self) {
        while let Some(effect) = self.view.poll() {
            if let StoreEffect::Commit(group) = &effect {
                self.commits.begun = Some((self.now, group.len()));
            }
            match effect {
                StoreEffect::Load(load) => self.effects.push_back(Effect::Load(load)),
                StoreEffect::Commit(group) if self.commits.dirty_files.is_empty() => {
                    self.effects.push_back(Effect::Commit(group));
                }
                StoreEffect::Commit(group) => {
                    let files = core::mem::take(&mut self.commits.dirty_files).into_iter().collect();
                    let id = DataId(self.next_data);
                    self.next_data += 1;
                    self.commits.syncing = Some((id, group));
                    self.effects.push_back(Effect::Data { id, op: DataOp::Sync { files } });
                }
            }
        }
    }

    /// Handles the result of a group's sync of data files. Returns whether it was one.
    pub(crate) fn synced(&mut self, id: DataId, result: &DataResult) -> bool {
        let Some((_, group)) = self.commits.syncing.take_if(|(syncing, _)| *syncing == id) else { return false };
        match result {
            DataResult::Failed(errno) => {
                self.view.commit_failed(group.number());
                let errno = *errno;
                self.stop(StopReason::DataNotDurable(errno));
            }
            _ => self.effects.push_back(Effect::Commit(group)),
        }
        true
    }
}

/// The versions without trailing zeros.
fn used_versions(record: &SlotRecord) -> Vec<u64> {
    let used = 4 - record.pre_versions.iter().rev().take_while(|version| **version == 0).count();
    record.pre_versions[..used].to_vec()
}

impl<S: Service> Target<S> {
    /// Closes and sends the collecting group, if it is due.
    pub(crate) fn commit_if_due(&mut self) {
        let m = &mut self.m;
        if m.commit_deadline().is_none_or(|at| at > m.now) || matches!(m.stage, Stage::Stopped) {
            return;
        }
        m.commits.wanted = false;
        m.write_own();
        if let Some(group) = m.view.seal_group() {
            m.commits.groups.push_back((group, m.last_transno));
        }
    }

    /// The medium is full. The group and the replies that it holds wait. Meanwhile new changes other than removals are
    /// refused, so what waits is bounded by the dirty limit and by the clients' requests in flight.
    pub(crate) fn commit_delayed(&mut self, group: u64, reason: EngineError) {
        let first = !self.m.view.is_delayed();
        if !self.m.view.commit_delayed(group) {
            return;
        }
        if self.m.stage == Stage::Stopping {
            // A stopping target does not wait for space: clients replay what is not durable.
            self.m.stop(StopReason::Commit(reason));
            return;
        }
        if first {
            let line = format!("{reason}; until then changes other than removals are refused");
            self.m.log(LogLevel::Error, line);
        }
        let at = self.m.now + FULL_RETRY;
        self.m.add_timer(at, Timer::Commit(group));
        self.release_throttled();
    }

    /// Retries changes that waited for capacity.
    fn release_throttled(&mut self) {
        for op in core::mem::take(&mut self.m.throttled) {
            self.m.ready.push_back(op.id);
            self.m.park(op);
        }
    }

    /// A group is durable.
    pub(crate) fn committed(&mut self, group: u64) {
        if self.m.view.is_delayed() {
            self.m.log(LogLevel::Info, "the disk has space again: changes are accepted".to_owned());
        }
        if let Some((begun, records)) = self.m.commits.begun.take() {
            self.m.stats.commits.add_time(self.m.now.since(begun));
            self.m.stats.commit_records.add(records as u64);
        }
        self.m.view.committed(group);
        let durable = self.m.view.durable_group();
        while let Some(&(number, transno)) = self.m.commits.groups.front()
            && number <= durable
        {
            self.m.commits.groups.pop_front();
            assert!(transno >= self.m.last_committed, "last_committed never falls");
            self.m.last_committed = self.m.last_committed.max(transno);
        }
        self.m.sharing.durable(durable);
        self.m.cross.sharing.durable(durable);
        while let Some(entry) = self.m.commits.then.first_entry() {
            if *entry.key() > durable {
                break;
            }
            for then in entry.remove() {
                self.then(then);
            }
        }
        self.release_throttled();
        if self.m.stage == Stage::Serving {
            self.outside_attempt(|service, cx| service.durable(cx, durable));
        }
    }

    pub(crate) fn then(&mut self, then: Then) {
        match then {
            Then::Reply(handle, frame) => self.m.send_reply(handle, frame),
            Then::SendOn(conn, frame) => self.m.effects.push_back(Effect::Send { conn, frame }),
            Then::Counted => self.counted(),
            Then::Epoch => self.epoch_begun(),
            Then::Register => self.m.register(),
            Then::Stop => self.m.begin_leave(),
            cross => self.m.cross_then(cross),
        }
    }
}
