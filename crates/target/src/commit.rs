//! Groups: when they leave, what goes into them beside the changes, who waits for them.
//!
//! Client records and the target's progress are not written with each request but once, when a group is closed: they are
//! part of the same group as all the changes that they speak of, for no group ends anywhere else.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proto::{ClientUuid, Frame, Handle, Tag, Transno};
use rpc::server::{Gone, SlotRecord};
use schema::session::{ClientRec, KnownConfig, Progress, ReplyRec, SlotRec};
use schema::{Header, Record};
use stdx::Instant;
use stdx::faults::sites;
use store::{AttemptId, Group, StoreEffect};

use crate::api::{DataId, DataOp, DataResult, Effect, LogLevel};
use crate::boot::Stage;
use crate::machine::{Machine, Target, Timer};
use crate::service::Service;

/// The view's name for the attempt that writes the machine's own records.
const OWN_ATTEMPT: AttemptId = AttemptId(0);
/// When so many data files are to be synced with a group, it leaves.
const DIRTY_FILES_MAX: usize = 4096;

/// A group that found the medium full is tried again after that.
pub(crate) const FULL_RETRY: Duration = Duration::from_secs(1);

/// What happens when a group is durable.
#[derive(Debug)]
pub(crate) enum Then {
    /// This reply leaves.
    Reply(Handle, Frame),
    /// This reply leaves over whatever connection the request came from, if it is still there.
    Say(crate::ConnId, Frame),
    /// The start was counted: go on.
    Counted,
    /// The epoch after recovery is durable.
    Epoch,
    /// The MGS may be told of the start.
    Register,
    /// Everything is durable: stop.
    Stop,
}

/// The state of groups.
#[derive(Debug)]
pub(crate) struct Commits {
    /// Groups that are sealed and not durable, with the highest transno up to each.
    groups: VecDeque<(u64, Transno)>,
    /// By group.
    then: BTreeMap<u64, Vec<Then>>,
    /// Something of the machine's own is to be written, since when.
    own_since: Option<Instant>,
    /// Somebody waits for the collecting group.
    wanted: bool,
    dirty_exports: Vec<Handle>,
    /// Slots whose reply record differs from the store's.
    dirty_replies: Vec<(Handle, Tag)>,
    forgotten: BTreeSet<ClientUuid>,
    /// Reply records that nobody will ask for.
    garbage: BTreeSet<(u32, Tag)>,
    header_dirty: bool,
    config_dirty: bool,
    progress: (Transno, u32),
    /// Data files written under accepted changes of the collecting group.
    dirty_files: BTreeSet<u64>,
    /// A group that waits for its data files.
    syncing: Option<(DataId, Group)>,
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
        }
    }

    pub(crate) fn forget(&mut self, uuid: ClientUuid, now: Instant) {
        self.forgotten.insert(uuid);
        self.own_since.get_or_insert(now);
    }

    /// A reply record that nobody will ask for.
    pub(crate) fn forget_reply(&mut self, generation: u32, tag: Tag, now: Instant) {
        self.garbage.insert((generation, tag));
        self.own_since.get_or_insert(now);
    }

    pub(crate) fn dirty_file(&mut self, file: u64) {
        self.dirty_files.insert(file);
    }

    /// What the store says at start.
    pub(crate) fn set_progress(&mut self, transno: Transno, generation: u32) {
        self.progress = (transno, generation);
    }
}

impl Machine {
    /// A client's record differs from the store's.
    pub(crate) fn export_dirty(&mut self, handle: Handle) {
        self.commits.own_since.get_or_insert(self.now);
        self.commits.dirty_exports.push(handle);
    }

    /// The reply record of a slot differs from the store's.
    pub(crate) fn reply_dirty(&mut self, handle: Handle, tag: Tag) {
        self.commits.own_since.get_or_insert(self.now);
        self.commits.dirty_replies.push((handle, tag));
    }

    /// All reply records of a client have new names.
    pub(crate) fn replies_dirty(&mut self, handle: Handle) {
        let Some(export) = self.exports.get(handle) else { return };
        let tags: Vec<Tag> = export.slots().iter().map(|(tag, _)| tag).collect();
        for tag in tags {
            self.reply_dirty(handle, tag);
        }
    }

    /// The reply records of a session that is gone.
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

    /// A change has a transno to be remembered, also if it wrote nothing (a pure open).
    pub(crate) fn progress_dirty(&mut self) {
        self.commits.own_since.get_or_insert(self.now);
    }

    /// The group after which everything up to now is durable.
    pub(crate) fn newest_group(&self) -> u64 {
        let collecting = self.view.collecting_group();
        if self.commits.own_since.is_some() { collecting } else { self.view.newest_group() }
    }

    /// Something is to happen when `group` is durable, and soon. Gives it back if it is durable already.
    pub(crate) fn when_durable(&mut self, group: u64, then: Then) -> Option<Then> {
        if group <= self.view.durable_group() {
            return Some(then);
        }
        if group == self.view.collecting_group() {
            self.commits.wanted = true;
        }
        self.commits.then.entry(group).or_default().push(then);
        None
    }

    /// The collecting group is to leave as soon as it can.
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

    /// Writes what belongs to the group besides its changes.
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
        // A group that somebody waits for must not be empty.
        let awaited = self.view.collecting_is_empty() && commits.then.contains_key(&self.view.collecting_group());
        let reached = (self.last_transno, self.exports.last_generation());
        if commits.progress != reached || awaited {
            commits.progress = reached;
            let progress = Progress { last_transno: reached.0.0, last_generation: reached.1 };
            self.view.put(Progress::key(&()), progress.encode_record());
        }
        self.view.accept(self.now);
    }

    /// What holds at the end of every run. A target in which it does not stops, before anything more is answered or written.
    pub(crate) fn assert_sound(&self) {
        let (durable, newest) = (self.view.durable_group(), self.newest_group());
        assert!(durable <= newest, "group {durable} is durable, and the newest is {newest}");
        let (committed, last) = (self.last_committed, self.last_transno);
        assert!(committed <= last, "transno {committed} is durable, and the last one given is {last}");
        assert!(!self.sites.faults.hit_once(sites::ASSERTION), "fail_loc asks for it");
    }

    /// Hands the store's wishes on; a group with data files waits for them.
    pub(crate) fn store_effects(&mut self) {
        while let Some(effect) = self.view.poll() {
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

    /// Whether the result was that of a group's sync.
    pub(crate) fn synced(&mut self, id: DataId, result: &DataResult) -> bool {
        let Some((_, group)) = self.commits.syncing.take_if(|(syncing, _)| *syncing == id) else { return false };
        match result {
            DataResult::Failed(errno) => {
                self.view.commit_failed(group.number());
                self.stop(format!(
                    "data files could not be made durable ({errno}): check the disk, then start the target again"
                ));
            }
            _ => self.effects.push_back(Effect::Commit(group)),
        }
        true
    }
}

/// Versions without the zeros at their end.
fn used_versions(record: &SlotRecord) -> Vec<u64> {
    let used = 4 - record.pre_versions.iter().rev().take_while(|version| **version == 0).count();
    record.pre_versions[..used].to_vec()
}

impl<S: Service> Target<S> {
    /// Closes the collecting group and sends it, if its time has come.
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

    /// The medium is full. The group waits, with all whose answers it holds; new changes other than removals are refused
    /// meanwhile, so what waits is bounded by the dirty limit and by the requests that clients may have under way.
    pub(crate) fn commit_delayed(&mut self, group: u64, reason: String) {
        let first = !self.m.view.is_delayed();
        if !self.m.view.commit_delayed(group) {
            return;
        }
        if self.m.stage == Stage::Stopping {
            // Nobody waits for space to end a target: clients replay what is not durable.
            self.m.stop(reason);
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

    /// Changes that waited for room look again.
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
            Then::Say(conn, frame) => self.m.effects.push_back(Effect::Send { conn, frame }),
            Then::Counted => self.counted(),
            Then::Epoch => self.epoch_begun(),
            Then::Register => self.m.register(),
            Then::Stop => self.m.begin_leave(),
        }
    }
}
