//! The state of cross changes on a target: its attempts, the parts that it has prepared, who waits for what, and what
//! passes the keys that are held. The messages are in `peers`, the steps in `steps`.

use core::hash::Hasher;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use prost::Message;
use proto::frame::flags;
use proto::msg::{CrossAttempt, CrossLookRep, CrossLookReq, CrossObject, CrossPart, CrossSessionRep, CrossTellReq};
use proto::{ClientUuid, Errno, Fid, Frame, Handle, Header, Opcode, Tag, TargetIndex, TargetName, Xid};
use rpc::server::{Dirty, SlotRecord, XidState};
use schema::{CrossKey, CrossRec, Record};
use siphasher::sip::SipHasher24;
use stdx::Instant;
use store::{Key as StoreKey, Value};

use super::coordinator::Coordinator;
use super::keys::Keys;
use super::losses::Losses;
use super::participant::Participant;
use super::{Age, Attempt, Member};
use crate::commit::Then;
use crate::cx::Cx;
use crate::execute::reply_header;
use crate::machine::{Machine, Timer};
use crate::op::{Kind, Op};
use crate::options::format_features;
use crate::service::{HeldKey, Hold, Reply, Service, Stop};
use crate::sharing::Sharing;

/// The view's identifier for the attempts that write records of cross changes.
pub(super) const OWN_ATTEMPT: store::AttemptId = store::AttemptId(0);
/// Most cross changes under way on one coordinator; further ones are answered `EINPROGRESS`.
pub(super) const CHANGES_MAX: usize = 4096;
/// What waits longer than this for a target that is away, or for a key in doubt, is answered `EINPROGRESS`.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);
/// A participant whose lock callbacks are not answered for so long says that it is busy.
const LOCK_PATIENCE: Duration = Duration::from_millis(50);
/// A request that waits so long for another target to say what is there is answered `EINPROGRESS`.
pub(super) const LOOK_PATIENCE: Duration = Duration::from_secs(1);
/// What a participant has to forget is sent after this time if nothing else is.
pub(super) const FORGET_MAX: Duration = Duration::from_millis(20);
/// How often a change is tried again because a participant has found something else than the change takes it to be.
pub(super) const CHANGED_MAX: u32 = 64;
/// An attempt that was busy is tried again after this time at the latest.
pub(super) const BUSY_MAX: Duration = Duration::from_secs(1);
/// Tells the proof of a cross change from the versions of objects that other replies have in its place.
const PROOF: u64 = 0x6372_6f73_732d_3032;

/// An attempt of this target's own, until it is applied or has ended.
#[derive(Debug)]
pub(super) struct Staged {
    /// The request that waits for it.
    pub(super) op: Option<u64>,
    /// All parts, this target's first.
    pub(super) parts: Vec<CrossPart>,
    pub(super) members: Vec<Member>,
    pub(super) age: Age,
    pub(super) client: Option<ClientUuid>,
    pub(super) tag: Tag,
    pub(super) xid: Xid,
    /// The group of its record.
    pub(super) group: u64,
    /// How often each participant had been declared lost when it was staged.
    pub(super) losses: Vec<u32>,
    /// Objects as participants have described them.
    pub(super) objects: Vec<CrossObject>,
    /// Its execution has begun.
    pub(super) commits: bool,
    /// A participant has found something else than the change takes it to be.
    pub(super) changed: bool,
}

/// A prepared part of another target's attempt.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) record: CrossRec,
    /// The group of its record.
    pub(super) group: u64,
}

/// The session of a coordinator with this target.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) number: u64,
    pub(super) instance: u64,
    pub(super) export: Handle,
}

/// A `CrossTell` that is not answered yet.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) export: Handle,
    pub(super) asked: Header,
    pub(super) open: BTreeSet<Attempt>,
}

/// What is to be told to a participant with the next message.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) upstream: usize,
    pub(super) session: u64,
    pub(super) tell: CrossTellReq,
    /// A timer will send what it has to forget.
    pub(super) forgets: bool,
    /// Since when it has been away.
    pub(super) away: Option<Instant>,
    /// The session will be tried again.
    pub(super) again: bool,
    /// The session in which a question about lost coordinators is open.
    pub(super) questioned: Option<u64>,
}

/// What a request to another metadata target was for.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(super) mdt: Member,
    /// The session in which it was sent.
    pub(super) session: u64,
    pub(super) what: Question,
}

/// See [`Asked`].
#[derive(Debug)]
pub(super) enum Question {
    Session,
    Prepare(Attempt),
    Tell(CrossTellReq),
    /// What there is of attempts of a lost coordinator.
    Orphans(Vec<Attempt>),
}

/// The state of a request at the coordinator of its cross change.
#[derive(Debug)]
pub(crate) enum Change {
    /// It has asked for something, in the attempt that has just ended.
    Wanted(Wanted),
    /// It waits for the outcome of this attempt.
    Staged(Attempt),
    /// The attempt is committed, and the request executes its part.
    Commits(Attempt),
}

/// What an attempt of a request asks for before it ends.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// A change with these parts.
    Change(Vec<CrossPart>),
    /// A session with another metadata target.
    Session(Member),
    /// The latest configuration.
    Config,
}

/// All of a target's cross changes.
#[derive(Default)]
pub(crate) struct Cross {
    pub(crate) keys: Keys,
    pub(super) coordinator: Coordinator,
    pub(super) participant: Participant,
    /// As commit on sharing, for parts that are applied but not durable. Never off.
    pub(crate) sharing: Sharing,
    pub(super) instance: u64,
    pub(super) serial: u64,
    pub(super) clock: u64,
    pub(super) staged: BTreeMap<Attempt, Staged>,
    pub(super) prepared: BTreeMap<Attempt, Prepared>,
    /// The participants of all attempts that have a record of a participant, with how often each had been declared lost.
    pub(super) members: BTreeMap<Attempt, Vec<(Member, u32)>>,
    pub(super) losses: Losses,
    /// Attempts from before the restart, by the request that they belong to.
    pub(super) by_request: BTreeMap<(ClientUuid, Xid), Attempt>,
    /// Resent requests whose first execution is in doubt.
    pub(super) resent: Vec<(Attempt, Handle, Frame)>,
    /// Committed attempts whose requests ended before they had executed their part.
    pub(super) orphaned: Vec<Attempt>,
    /// Attempts that were aborted before their `Prepare` was taken in, as far as that may still come.
    pub(super) aborted: BTreeSet<Attempt>,
    /// Attempts that may be tried again, of which it was said before they had ended.
    pub(super) free_early: BTreeSet<Attempt>,
    /// Requests whose attempt was busy.
    pub(super) busy: BTreeMap<Attempt, u64>,
    /// Operations of `CrossPrepare` whose attempt waits for keys.
    pub(super) waiting: BTreeMap<Attempt, u64>,
    /// Requests that wait for a session.
    pub(super) for_session: BTreeSet<u64>,
    pub(super) peers: BTreeMap<Member, Peer>,
    pub(super) sessions: BTreeMap<Member, Session>,
    /// When coordinators lost their connections.
    pub(super) lost: BTreeMap<Member, Instant>,
    /// When this target began to serve.
    pub(super) served: Option<Instant>,
    pub(super) told: BTreeMap<u64, Told>,
    pub(super) told_of: BTreeMap<Attempt, Vec<u64>>,
    pub(super) next_told: u64,
}

pub(super) fn to_wire(attempt: Attempt) -> CrossAttempt {
    CrossAttempt { mdt: attempt.mdt, instance: attempt.instance, serial: attempt.serial }
}

pub(super) fn from_wire(attempt: &CrossAttempt) -> Attempt {
    Attempt { mdt: attempt.mdt, instance: attempt.instance, serial: attempt.serial }
}

/// The participants of an attempt, with how often each had been declared lost.
pub(super) fn with_losses(members: &[Member], losses: &[u32]) -> Vec<(Member, u32)> {
    members.iter().copied().zip(losses.iter().copied().chain(core::iter::repeat(0))).collect()
}

pub(super) fn key_of(participant: bool, attempt: Attempt) -> StoreKey {
    CrossRec::key(&CrossKey::new(participant, &to_wire(attempt)))
}

impl Cross {
    /// Attempts that may still write something here.
    pub(crate) fn reserved(&self) -> usize {
        self.staged.len() + self.prepared.len()
    }

    /// This target's part of an attempt that holds keys here.
    fn part_of(&self, attempt: Attempt) -> Option<&CrossPart> {
        let staged = self.staged.get(&attempt).map(|staged| &staged.parts);
        staged.or_else(|| self.prepared.get(&attempt).map(|prepared| &prepared.record.parts))?.first()
    }

    pub(super) fn age(&mut self, own: u32) -> Age {
        self.clock += 1;
        Age { clock: self.clock, mdt: own }
    }

    /// The request was in doubt, or it was not: it can be begun.
    pub(super) fn resent_of(&mut self, attempt: Attempt) -> Vec<(Handle, Frame)> {
        let (of, rest) = core::mem::take(&mut self.resent).into_iter().partition(|(whose, ..)| *whose == attempt);
        self.resent = rest;
        let of: Vec<(Attempt, Handle, Frame)> = of;
        of.into_iter().map(|(_, handle, frame)| (handle, frame)).collect()
    }
}

impl Cx<'_> {
    /// Whether this attempt passes keys that are held: it is a replay, returns something that its client holds under a
    /// lock, or executes a part that holds them itself.
    fn passes_keys(&self) -> bool {
        use Opcode::{LdlmReplay, MdsBatch, MdsClose, MdsSync, ObjSync, ObjWrite, SeqAlloc};
        let asked = &self.op.asked;
        self.op.exempt
            || self.is_replay()
            || asked.has(flags::REPLAY)
            || self.op.kind == Kind::Memory
            || Opcode::from_raw(asked.opcode).is_some_and(|opcode| {
                matches!(opcode, LdlmReplay | MdsBatch | MdsClose | MdsSync | ObjSync | ObjWrite | SeqAlloc)
            })
    }

    /// This attempt reads what `key` stands for: it waits for a change of it that has parts on other targets. A read key
    /// is not held.
    pub fn reads(&mut self, key: HeldKey) -> Result<(), Stop> {
        self.passes(key, Hold::Shared)
    }

    /// This attempt changes what `key` stands for: it waits for a change with parts on other targets that reads or
    /// changes it.
    pub fn writes(&mut self, key: HeldKey) -> Result<(), Stop> {
        self.passes(key, Hold::Exclusive)
    }

    /// This attempt makes or removes what `key` stands for, a name or a new object. Those changes of a client's own caches
    /// that wait for no key fail (`EAGAIN`): their client has a lease only while nobody holds a key there, and what is
    /// prepared must meet what it was prepared for.
    pub fn claims(&mut self, key: HeldKey) -> Result<(), Stop> {
        let cached = self.op.asked.opcode == Opcode::MdsBatch as u16 && !self.is_replay();
        if cached && !self.m.cross.keys.is_free(key, Hold::Exclusive) {
            stdx::mark!("cross.batch_refused");
            return Err(Errno::EAGAIN.into());
        }
        self.writes(key)
    }

    /// This attempt lists the names of a directory: it waits for changes of them that are under way when it begins.
    pub fn lists(&mut self, dir: Fid) -> Result<(), Stop> {
        match self.names_under_change(dir).first().copied() {
            Some(key) => self.passes(key, Hold::Shared),
            None => Ok(()),
        }
    }

    /// This attempt shows the attributes of a directory, which changes of its names change, too: it waits for those that are
    /// under way when it begins. Returns the parts of those that it does not wait for, because they are in doubt: they may have
    /// been answered, so that the directory is shown as they will leave it.
    pub fn shows_directory(&mut self, dir: Fid) -> Result<Vec<CrossPart>, Stop> {
        let mut doubted: BTreeSet<Attempt> = BTreeSet::new();
        for key in self.names_under_change(dir) {
            let holders = self.m.cross.keys.holders(key);
            if !holders.iter().all(|holder| self.m.is_in_doubt(*holder)) {
                self.passes(key, Hold::Shared)?;
            }
            doubted.extend(holders);
        }
        Ok(doubted.into_iter().filter_map(|attempt| self.m.cross.part_of(attempt)).cloned().collect())
    }

    /// The names of a directory that were under change when this attempt's operation first asked, and still are.
    fn names_under_change(&mut self, dir: Fid) -> Vec<HeldKey> {
        if self.m.cross.keys.is_empty() || !self.m.cross.keys.held_names(dir) || self.passes_keys() {
            return Vec::new();
        }
        let held = self.m.cross.keys.names_of(dir);
        let awaited = self.op.memo().listed.entry(dir).or_insert_with(|| held.clone());
        awaited.retain(|key| held.contains(key));
        awaited.clone()
    }

    fn passes(&mut self, key: HeldKey, mode: Hold) -> Result<(), Stop> {
        if self.m.cross.keys.is_empty() || self.m.cross.keys.is_free(key, mode) || self.passes_keys() {
            return Ok(());
        }
        stdx::mark!("cross.key_wait");
        let own = self.m.name.index.0;
        let age = match self.op.memo().age {
            Some(age) => age,
            None => self.m.cross.age(own),
        };
        self.op.memo().age = Some(age);
        self.m.cross.keys.wait(self.op.id, key, mode, age);
        let holders = self.m.cross.keys.holders_awaited(self.op.id);
        if self.op.kind == Kind::Request && holders.iter().any(|holder| self.m.is_long_in_doubt(*holder)) {
            self.m.cross.keys.withdraw(self.op.id);
            return Err(Errno::EINPROGRESS.into());
        }
        self.m.loses_patience(self.op);
        self.op.waits_for_key = true;
        Err(self.wait())
    }

    /// Makes a change with parts on several targets, this one's first. The attempt ends here; when the change is
    /// committed, [`crate::Service::apply`] executes this target's part in its place. Otherwise the attempt runs again, or
    /// the request is answered with a participant's error. A task that makes one ends with it.
    pub fn cross(&mut self, parts: Vec<CrossPart>) -> Stop {
        if self.is_replay() {
            // Its record would be there if it had been answered.
            return Stop::Errno(Errno::EOVERFLOW);
        }
        if self.op.kind == Kind::Request && self.op.asked.opcode != Opcode::MdsReint as u16 {
            // A batch has changes that are in the caches of its client alone.
            return Stop::Errno(Errno::EXDEV);
        }
        self.op.memo().change = Some(Change::Wanted(Wanted::Change(parts)));
        self.wait()
    }

    /// Whether a participant has found something else in an attempt at the change of this request than the change took it to be.
    pub fn was_changed(&self) -> bool {
        self.op.changed() > 0
    }

    /// What is on another metadata target, read without holding anything there: a part has to check it. Equal questions of
    /// one request have the same answer until its attempt to make a change has failed.
    pub fn look(&mut self, mdt: u32, question: &CrossLookReq) -> Result<CrossLookRep, Stop> {
        if self.is_replay() {
            return Err(Stop::Errno(Errno::EOVERFLOW));
        }
        if !self.m.cross.coordinator.stands(mdt) {
            self.op.memo().change = Some(Change::Wanted(Wanted::Session(mdt)));
            return Err(self.wait());
        }
        self.m.loses_patience(self.op);
        let target = TargetName { index: TargetIndex(mdt), ..self.m.name.clone() };
        let frame = self.upstream(&target, Opcode::CrossLook, question, Bytes::new())?;
        Errno::from_status(frame.header.status)?;
        Ok(frame.decode().map_err(|_| Errno::EPROTO)?)
    }

    /// Fetches the configuration once for this operation, which names something that the known one lacks: its client may have a
    /// newer one. `Ok` afterwards. If the MGS is away, the request is answered `EINPROGRESS` after a while. Not for tasks.
    pub fn latest_config(&mut self) -> Result<(), Stop> {
        if self.op.asked_config && !self.m.asks_config() {
            return Ok(());
        }
        self.op.memo().change = Some(Change::Wanted(Wanted::Config));
        Err(self.wait())
    }

    /// Whether a change of this object, or of names in it, with parts on other targets is under way. No lock on it is granted
    /// then.
    pub fn is_under_change(&self, fid: Fid) -> bool {
        !self.m.cross.keys.is_empty() && self.m.cross.keys.holds_on(fid)
    }

    /// Whether another target asks, over a session that no client can have.
    pub(crate) fn is_of_peer(&self) -> bool {
        self.m.exports.get(Handle(self.op.export.0)).is_some_and(|export| export.lightweight)
    }

    /// Whether parts of other targets' changes are prepared here.
    pub fn has_prepared_parts(&self) -> bool {
        !self.m.cross.prepared.is_empty()
    }
}

impl Machine {
    /// Whether the outcome of an attempt that holds a key depends on a target that is away, or on a restart.
    pub(super) fn is_in_doubt(&self, attempt: Attempt) -> bool {
        if attempt.mdt == self.name.index.0 {
            return self.cross.coordinator.is_in_doubt(attempt);
        }
        // A coordinator that has restarted settles it when it serves.
        let session = self.cross.sessions.get(&attempt.mdt).filter(|session| session.instance == attempt.instance);
        let export = session.and_then(|session| self.exports.get(session.export));
        let is_away = export.is_none_or(|export| export.link.is_none());
        self.cross.prepared.contains_key(&attempt) && (is_away || self.cross.participant.waits_for(attempt).is_some())
    }

    /// Whether it has been in doubt for so long that nobody waits any more.
    fn is_long_in_doubt(&self, attempt: Attempt) -> bool {
        let since = self.doubted_since(attempt);
        self.is_in_doubt(attempt) && since.is_some_and(|since| self.now.since(since) >= PATIENCE)
    }

    /// Since when an attempt has been in doubt.
    fn doubted_since(&self, attempt: Attempt) -> Option<Instant> {
        let is_own = attempt.mdt == self.name.index.0;
        let lost = self.cross.lost.get(&attempt.mdt).copied().filter(|_| !is_own);
        lost.max(self.cross.served)
    }

    /// The same, for a person.
    fn doubted_for(&self, attempt: Attempt) -> String {
        let since = self.doubted_since(attempt);
        since.map_or_else(String::new, |since| format!(" for {} s", self.now.since(since).as_secs()))
    }

    /// Whether a request waits for another target's answer that will not come soon: that target is away, or somebody there is
    /// waited for.
    pub(super) fn looks_in_vain(&self, id: u64) -> bool {
        let Some(op) = self.ops.get(&id) else { return false };
        let mut asked = op.looks();
        let long = self.now.since(op.started) >= LOOK_PATIENCE;
        asked.any(|target| long || !self.cross.coordinator.stands(target.index.0))
    }

    /// The connection of another target, or its session, is lost.
    pub(crate) fn coordinator_lost(&mut self, handle: Handle) {
        let now = self.now;
        let of = self.cross.sessions.iter().filter(|(_, session)| session.export == handle).map(|(mdt, _)| *mdt);
        self.cross.lost.extend(of.map(|mdt| (mdt, now)));
    }

    /// At start: takes over the records of cross changes. Their keys are held from now on.
    pub(crate) fn load_cross<S: Service>(&mut self, service: &S, records: Vec<(CrossKey, CrossRec)>) {
        let mut random = SipHasher24::new_with_keys(self.options.seed, self.header.mount_count);
        random.write(b"cross");
        random.write(&self.header.uuid);
        self.cross.instance = random.finish();
        for (key, record) in records {
            let cross = &mut self.cross;
            let attempt = Attempt { mdt: key.mdt, instance: key.instance, serial: key.serial };
            let age = Age { clock: record.age, mdt: record.age_mdt };
            cross.clock = cross.clock.max(age.clock);
            if let (false, Some(part)) = (record.done, record.parts.first()) {
                cross.keys.hold(attempt, age, &service.keys(part));
            }
            if key.participant {
                cross.participant.load(attempt, record.done);
                cross.members.insert(attempt, with_losses(&record.members, &record.losses));
                self.load_lost(attempt, true, &record);
                if !record.done {
                    self.cross.prepared.insert(attempt, Prepared { record, group: 0 });
                }
                continue;
            }
            cross.coordinator.load(attempt, &record.members, record.done);
            self.load_lost(attempt, false, &record);
            let cross = &mut self.cross;
            if record.done {
                continue;
            }
            stdx::mark!("cross.in_doubt");
            let client = ClientUuid::from_bytes(&record.client);
            let (tag, xid) = (Tag(u16::try_from(record.tag).unwrap_or(0)), Xid(record.xid));
            if let Some(client) = client {
                cross.by_request.insert((client, xid), attempt);
            }
            let CrossRec { parts, members, losses, .. } = record;
            let staged = Staged {
                op: None,
                parts,
                members,
                age,
                client,
                tag,
                xid,
                group: 0,
                losses,
                objects: Vec::new(),
                commits: false,
                changed: false,
            };
            cross.staged.insert(attempt, staged);
        }
    }

    /// The request waits for a key or a target: it will be answered `EINPROGRESS` if that takes long.
    pub(super) fn loses_patience(&mut self, op: &mut Op) {
        if op.patience.is_none_or(|at| at <= self.now) && op.kind == Kind::Request {
            op.patience = Some(self.now + PATIENCE);
            self.add_timer(self.now + PATIENCE, Timer::Patience(op.id));
        }
    }

    /// The operation prepares a part and waits for locks: its attempt will be busy if that takes long.
    pub(crate) fn loses_patience_with_locks(&mut self, op: &mut Op) {
        if op.asked.opcode == Opcode::CrossLook as u16 {
            self.loses_patience(op);
        }
        if op.prepares.is_some() && op.used_locks && op.patience.is_none_or(|at| at <= self.now) {
            op.patience = Some(self.now + LOCK_PATIENCE);
            self.add_timer(self.now + LOCK_PATIENCE, Timer::LocksAwaited(op.id));
        }
    }

    /// Writes or removes a record outside of an attempt. Returns the group.
    pub(super) fn write_record(&mut self, key: StoreKey, body: Option<Value>) -> u64 {
        self.view.begin(OWN_ATTEMPT);
        match body {
            Some(body) => self.view.put(key, body),
            None => self.view.delete(key),
        }
        let group = self.view.accept(self.now);
        group.unwrap_or_else(|| self.view.collecting_group())
    }

    pub(super) fn needs_remote_dir(&mut self) {
        if self.header.incompat & format_features::REMOTE_DIR == 0 {
            self.header.incompat |= format_features::REMOTE_DIR;
            self.header_dirty();
        }
    }

    /// What proves that a client was answered a cross change; it replays it with the request.
    pub(super) fn proof(&self, attempt: Attempt, client: ClientUuid, xid: Xid) -> Option<[u64; 4]> {
        let key: [u8; 16] = self.header.open_key[..].try_into().ok()?;
        let mut mac = SipHasher24::new_with_key(&key);
        mac.write(b"cross");
        mac.write_u32(attempt.mdt);
        mac.write_u64(attempt.instance);
        mac.write_u64(attempt.serial);
        mac.write_u128(client.0);
        mac.write_u64(xid.0);
        Some([mac.finish(), attempt.instance, attempt.serial, PROOF])
    }

    /// The attempt in doubt that a client replays with a valid proof.
    pub(super) fn proven(&self, op: &Op) -> Option<Attempt> {
        let [_, instance, serial, mark] = op.asked.pre_versions;
        if mark != PROOF {
            return None;
        }
        let attempt = Attempt { mdt: self.name.index.0, instance, serial };
        let client = self.exports.get(Handle(op.export.0))?.uuid;
        let right = self.proof(attempt, client, op.asked.xid)? == op.asked.pre_versions;
        (right && self.cross.coordinator.is_in_doubt(attempt)).then_some(attempt)
    }

    /// The first execution of a resent request is in doubt: it waits for the outcome. Returns whether it does.
    pub(crate) fn waits_for_doubt(&mut self, handle: Handle, frame: &Frame) -> bool {
        if self.cross.by_request.is_empty() || frame.header.tag.0 == 0 {
            return false;
        }
        let Some(client) = self.exports.get(handle).map(|export| export.uuid) else { return false };
        let Some(&attempt) = self.cross.by_request.get(&(client, frame.header.xid)) else { return false };
        stdx::mark!("cross.resent_in_doubt");
        self.cross.resent.push((attempt, handle, frame.clone()));
        true
    }

    /// Whether a request waits for an outcome in doubt.
    pub(crate) fn is_doubted(&self, handle: Handle, xid: Xid) -> bool {
        self.cross.resent.iter().any(|(_, whose, frame)| *whose == handle && frame.header.xid == xid)
    }

    /// The attempt waits for no keys here any more, and was not prepared.
    pub(crate) fn unclaim(&mut self, attempt: Attempt) {
        self.cross.waiting.remove(&attempt);
        if !self.cross.prepared.contains_key(&attempt) {
            self.cross.keys.release(attempt);
        }
    }

    /// The request is gone before its attempt has ended: what is committed stays, everything else is given up.
    pub(crate) fn change_abandoned(&mut self, op: &mut Op) {
        self.cross.keys.withdraw(op.id);
        self.cross.for_session.remove(&op.id);
        if let Some(attempt) = op.prepares {
            self.unclaim(attempt);
        }
        match op.take_change() {
            Some(Change::Staged(attempt)) => {
                if let Some(staged) = self.cross.staged.get_mut(&attempt) {
                    staged.op = None;
                }
                self.cross.coordinator.give_up(attempt);
            }
            Some(Change::Commits(attempt)) => {
                if let Some(staged) = self.cross.staged.get_mut(&attempt) {
                    staged.op = None;
                    staged.commits = false;
                }
                self.cross.orphaned.push(attempt);
            }
            Some(Change::Wanted(_)) | None => {}
        }
    }

    /// A session of the target with one of its clients, or with another target, has ended.
    pub(crate) fn cross_export_gone(&mut self, handle: Handle) {
        self.coordinator_lost(handle);
        self.cross.sessions.retain(|_, session| session.export != handle);
        self.cross.told.retain(|_, told| told.export != handle);
        self.cross.resent.retain(|(_, whose, _)| *whose != handle);
    }

    /// The changes in doubt, one a line: the attempt, for whom it waits, and what it is.
    pub(crate) fn changes_in_doubt(&self) -> String {
        let list = |members: &[Member]| {
            let names: Vec<String> = members.iter().map(|mdt| format!("MDT{mdt:04x}")).collect();
            names.join(", ")
        };
        let mut lines = Vec::new();
        for attempt in self.cross.coordinator.attempts().filter(|attempt| self.cross.coordinator.is_in_doubt(*attempt))
        {
            let members = list(&self.cross.coordinator.waits_for(attempt));
            lines.push(format!("{attempt}: staged, waits for {members}{}", self.doubted_for(attempt)));
        }
        for attempt in self.cross.prepared.keys().copied().filter(|attempt| self.is_in_doubt(*attempt)) {
            let members = list(&self.cross.participant.waits_for(attempt).unwrap_or_else(|| vec![attempt.mdt]));
            lines.push(format!("{attempt}: prepared, waits for {members}{}", self.doubted_for(attempt)));
        }
        lines.join("\n")
    }

    /// Actions that waited until something is durable.
    pub(crate) fn cross_then(&mut self, then: Then) {
        match then {
            Then::CrossReport(handle, asked, mdt) => {
                let (prepared, done) = self.cross.participant.report(mdt);
                let list = |attempts: Vec<Attempt>| attempts.into_iter().map(to_wire).collect();
                let body = CrossSessionRep { prepared: list(prepared), done: list(done), losses: self.header.losses };
                let header = reply_header(&asked);
                self.send_reply(handle, Frame { header, body: body.encode_to_vec().into(), ..Frame::default() });
            }
            Then::Lost(mdt, losses) => self.settle_loss(mdt, losses),
            Then::OrphansAsked(handle, asked, attempts) => self.answer_orphans(handle, &asked, &attempts),
            Then::Staged(attempt) => self.cross.coordinator.staged_durable(attempt),
            Then::StagedGone(attempt) => self.cross.coordinator.staged_gone(attempt),
            Then::Committed(attempt) => self.cross.coordinator.done_durable(attempt),
            Then::Prepared(attempt) => self.cross.participant.prepared_durable(attempt),
            Then::PreparedGone(attempt) => self.cross.participant.prepared_gone(attempt),
            Then::Applied(attempt) => self.cross.participant.done_durable(attempt),
            Then::DoneGone(attempt) => self.cross.participant.done_gone(attempt),
            _ => {}
        }
    }

    /// As [`Machine::when_durable`], for what need not be durable soon unless `soon`.
    pub(super) fn when_group(&mut self, group: u64, soon: bool, then: Then) {
        let then = match soon {
            true => self.when_durable(group, then),
            false => self.when_durable_anyway(group, then),
        };
        if let Some(then) = then {
            self.cross_then(then);
        }
    }

    /// Records the reply of a committed change whose request is not there, so that its client learns that it was done.
    pub(super) fn record_reply(&mut self, client: ClientUuid, (tag, xid): (Tag, Xid), attempt: Attempt, reply: &Reply) {
        let Some(export) = self.exports.of_client(client) else { return };
        let handle = export.handle;
        if tag.0 == 0 || export.slots().found(tag, xid) != XidState::Nothing {
            return;
        }
        let pre_versions = self.proof(attempt, client, xid).unwrap_or_default();
        let record =
            SlotRecord { xid, transno: self.last_transno, status: reply.status, data: reply.record, pre_versions };
        stdx::mark!("cross.reply_recorded");
        match self.exports.executed(handle, tag, record) {
            Dirty::No => {}
            Dirty::Client => self.export_dirty(handle),
            Dirty::Reply => self.reply_dirty(handle, tag),
        }
    }
}

impl core::fmt::Display for Attempt {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "MDT{:04x}/{:016x}/{}", self.mdt, self.instance, self.serial)
    }
}

impl Staged {
    /// The record of the attempt once this target's part is applied. Until then it has the parts, too.
    pub(super) fn done_record(&self) -> CrossRec {
        CrossRec {
            done: true,
            age: self.age.clock,
            age_mdt: self.age.mdt,
            members: self.members.clone(),
            parts: Vec::new(),
            client: self.client.map(ClientUuid::to_bytes).unwrap_or_default(),
            tag: self.tag.0.into(),
            xid: self.xid.0,
            losses: self.losses.clone(),
            coordinator_losses: 0,
        }
    }
}
