//! The context of an attempt: reading, writing, locking, asking other targets, and facts about the request.

use core::hash::Hasher;
use core::time::Duration;

use bytes::Bytes;
use dlm::ExportId;
use dlm::server::{Enqueued, Glimpsed, Revoked};
use proto::frame::flags;
use proto::msg::OfJob;
use proto::msg::{
    Config, EnqueueRep, EnqueueReq, LockGrant, LockMode, Lvb, Policy, ReplayFailure, ReplayLocksRep, ReplayLocksReq,
    Resource,
};
use proto::{ClientUuid, Errno, Fid, Frame, Opcode, Operation, TargetName, Transno};
use schema::{Header, Record};
use siphasher::sip::SipHasher24;
use stdx::Instant;
use store::{Key, KeyRange, Space, Value};

use crate::api::{DataOp, DataResult, DataSpace, LogLevel};
use crate::machine::Machine;
use crate::op::{Op, Replay};
use crate::service::{Reply, Request, ShareKey, Stop, Task};
use crate::stats::Count;

/// Bit of a version that identifies an object instead of its state; transnos never have it.
pub const IDENTITY: u64 = 1 << 63;

/// The sender of a request, as services see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportInfo {
    /// Its identifier.
    pub id: ExportId,
    /// Identity of the client.
    pub uuid: ClientUuid,
    /// Description of the client, for status output.
    pub description: String,
    /// Session of another server, without recovery and client record.
    pub lightweight: bool,
    /// Read-only session.
    pub read_only: bool,
}

/// The context of one attempt. A method that returns [`Stop::Wait`] has registered what is missing.
///
/// Calls that are no attempts (`accepted`, `durable`, ...) may not read or write the store; they may spawn tasks,
/// inspect state and log.
pub struct Cx<'a> {
    pub(crate) m: &'a mut Machine,
    pub(crate) op: &'a mut Op,
}

impl Cx<'_> {
    // --- who, when, where ---

    /// The driver's time.
    pub fn now(&self) -> Instant {
        self.m.now
    }

    /// The wall clock in nanoseconds since 1970, accurate to about a second. Times of changes come from the clients'
    /// requests.
    pub fn wall_ns(&self) -> i64 {
        self.m.wall_ns
    }

    /// The export that sent the request; [`ExportId::TARGET`] in a task.
    pub fn export(&self) -> ExportId {
        self.op.export
    }

    /// The identity of the client that sent the request; `None` in a task, or if its session has ended.
    pub fn client(&self) -> Option<ClientUuid> {
        self.m.exports.get(proto::Handle(self.op.export.0)).map(|export| export.uuid)
    }

    /// Details of an export; `None` if it has ended.
    pub fn export_info(&self, export: ExportId) -> Option<ExportInfo> {
        self.m.export_info(export)
    }

    /// All exports, by identifier.
    pub fn exports(&self) -> Vec<ExportId> {
        self.m.export_ids()
    }

    /// All clients that have an export, connected or not.
    pub fn clients(&self) -> impl Iterator<Item = ClientUuid> {
        self.m.exports.iter().map(|export| export.uuid)
    }

    /// Whether a client has an export, connected or not.
    pub fn knows_client(&self, uuid: ClientUuid) -> bool {
        self.m.exports.of_client(uuid).is_some()
    }

    /// The connection of the sender; `None` if it is lost. A request that waited may come from a process that has ended
    /// meanwhile; the connection of a node that lost power is closed only later. Later connections have higher numbers.
    pub fn link(&self) -> Option<rpc::Link> {
        self.m.exports.get(proto::Handle(self.op.export.0)).and_then(|export| export.link)
    }

    /// Whether a peer other than the sender is connected with this description.
    pub fn is_connected(&self, description: &str) -> bool {
        let sender = proto::Handle(self.op.export.0);
        self.m.exports.iter().any(|e| e.handle != sender && e.link.is_some() && e.description == description)
    }

    /// Whether the sender supports this protocol feature.
    pub fn client_has(&self, feature: u64) -> bool {
        let export = self.m.exports.get(proto::Handle(self.op.export.0));
        export.is_some_and(|export| export.features & feature == feature)
    }

    /// Whether a change with parts on several targets is under way here: whether [`Cx::reads`] and [`Cx::writes`] may wait.
    pub fn keys_are_held(&self) -> bool {
        !self.m.cross.keys.is_empty()
    }

    /// Whether every client that has an export, connected or not, supports this protocol feature.
    pub fn all_clients_have(&self, feature: u64) -> bool {
        self.m.exports.iter().all(|export| export.lightweight || export.features & feature == feature)
    }

    /// Sets an incompat flag of the header, in memory at once and with the next group. From then on, versions that do
    /// not know it refuse the target. For flags that only an accepted change needs see [`Cx::needs_feature`].
    pub fn set_incompat(&mut self, flag: u64) {
        if self.m.header.incompat & flag != flag {
            self.m.header.incompat |= flag;
            self.m.header_dirty();
        }
    }

    /// The target's header.
    pub fn header(&self) -> &Header {
        &self.m.header
    }

    /// The writes of this attempt need a version that knows these features; the header gets them in the same group.
    pub fn needs_feature(&mut self, incompat: u64) {
        self.m.out.features |= incompat;
    }

    /// Whether the header has a feature, or will have it with this change.
    pub fn has_feature(&self, incompat: u64) -> bool {
        (self.m.header.incompat | self.m.out.features) & incompat == incompat
    }

    /// The target's name.
    pub fn name(&self) -> &TargetName {
        &self.m.name
    }

    /// Number of times that the target was started.
    pub fn instance(&self) -> u64 {
        self.m.header.mount_count
    }

    /// The latest configuration from the MGS: targets and parameters. Empty on the MGT itself, and before the first one
    /// has arrived.
    pub fn config(&self) -> &Config {
        &self.m.config
    }

    /// Space on the store's medium, as last reported.
    pub fn space(&self) -> Option<Space> {
        self.m.view.space()
    }

    /// Upper bound of the space that the changes that are not durable will take, in bytes.
    pub fn dirty_room(&self) -> u64 {
        self.m.view.dirty_room()
    }

    /// Space for data files, as last reported. Without a report, they share the store's medium.
    pub fn data_space(&self) -> Option<DataSpace> {
        let beside = || self.m.view.space().map(|space| DataSpace { total: space.total, free: space.free, disk: 0 });
        self.m.data_space.or_else(beside)
    }

    /// Whether clients are recovering.
    pub fn is_recovering(&self) -> bool {
        self.m.is_recovering()
    }

    /// Whether this is a replay: the request was executed before, by a server that lost it. It carries the choices that
    /// the server made then.
    pub fn is_replay(&self) -> bool {
        self.op.replay != Replay::No
    }

    /// Whether this is a replay whose change is durable: it restores memory only, and its writes are dropped.
    pub fn is_committed_replay(&self) -> bool {
        matches!(self.op.replay, Replay::Committed(_))
    }

    // --- the store ---

    /// The record of `id`. Errors: `EIO` for a damaged record, which is logged.
    pub fn get<R: Record>(&mut self, id: &R::Id) -> Result<Option<R>, Stop> {
        match self.get_raw(&R::key(id))? {
            Some(body) => Ok(Some(self.decode::<R>(&body)?)),
            None => Ok(None),
        }
    }

    /// Whether `id` has a record.
    pub fn exists<R: Record>(&mut self, id: &R::Id) -> Result<bool, Stop> {
        let found = self.m.view.exists(&R::key(id));
        self.missed(found)
    }

    /// Writes the record of `id`.
    pub fn put<R: Record>(&mut self, id: &R::Id, record: &R) {
        self.put_raw(R::key(id), record.encode_record());
    }

    /// Deletes the record of `id`, if there is one.
    pub fn delete<R: Record>(&mut self, id: &R::Id) {
        self.delete_raw(R::key(id));
    }

    /// The first `limit` records of a range, in key order. The first scan of a range always waits for the engine.
    pub fn scan<R: Record>(&mut self, range: &KeyRange, limit: usize) -> Result<Vec<(R::Id, R)>, Stop> {
        let found = self.scan_raw(range, limit)?;
        let mut records = Vec::with_capacity(found.len());
        for (key, body) in found {
            let Some(id) = R::parse_key(&key) else {
                self.log(LogLevel::Error, format!("record {key} is not a key of kind '{}': run lfsck", R::KIND));
                return Err(Stop::Errno(Errno::EIO));
            };
            records.push((id, self.decode::<R>(&body)?));
        }
        Ok(records)
    }

    /// The body of the record of a key.
    pub fn get_raw(&mut self, key: &Key) -> Result<Option<Value>, Stop> {
        let found = self.m.view.get(key);
        self.missed(found)
    }

    /// Writes a record's body.
    pub fn put_raw(&mut self, key: Key, body: Value) {
        self.m.out.writes += 1;
        self.m.view.put(key, body);
    }

    /// Deletes the record of a key.
    pub fn delete_raw(&mut self, key: Key) {
        self.m.out.writes += 1;
        self.m.view.delete(key);
    }

    /// The first `limit` bodies of a range, in key order.
    pub fn scan_raw(&mut self, range: &KeyRange, limit: usize) -> Result<Vec<(Key, Value)>, Stop> {
        let found = self.m.view.scan(range, limit);
        self.missed(found)
    }

    /// The transno of this change: a replay's own, otherwise the next one. It is also the new version of the changed
    /// objects. Calling this makes a request without writes a change.
    pub fn transno(&mut self) -> Transno {
        self.m.out.wants_transno = true;
        match self.op.replay {
            Replay::Fresh(transno) | Replay::Committed(transno) => transno,
            Replay::No => Transno(self.m.last_transno.0 + 1),
        }
    }

    /// The handle of a file that this request opens or reopens, which only the client can know. It is a MAC over the
    /// client, the request, the file, the access and the epoch of the transno (`answered`, if the request was answered
    /// before). `None` if the original reply was, or this one is, made without a key.
    pub fn open_handle(&self, fid: Fid, writes: bool, answered: Option<Transno>) -> Option<u64> {
        let header = &self.m.header;
        let transno = match (answered, self.op.replay) {
            (Some(transno), _) | (None, Replay::Fresh(transno) | Replay::Committed(transno)) => transno,
            (None, Replay::No) => Transno(self.m.last_transno.0.saturating_add(1)),
        };
        let key: [u8; 16] = header.open_key[..].try_into().ok()?;
        if transno.epoch() < header.open_key_epoch {
            return None;
        }
        let mut mac = SipHasher24::new_with_key(&key);
        mac.write_u128(self.client()?.0);
        mac.write_u64(self.op.asked.xid.0);
        mac.write_u64(fid.seq);
        mac.write_u64(u64::from(fid.oid) << 32 | u64::from(fid.ver));
        mac.write_u64(u64::from(transno.epoch()) << 1 | u64::from(writes));
        Some(mac.finish())
    }

    /// Declares that this modifying request changes nothing, so that its client keeps nothing for replay. What it has
    /// only seen may be lost with another client, and the replay would then fail.
    pub fn changes_nothing(&mut self) {
        self.m.out.changes_nothing = true;
    }

    /// Records the version that object `index` (0 to 3) had before the change, for the reply. It is not checked.
    pub fn note_version(&mut self, index: usize, version: u64) {
        if let Some(slot) = self.m.out.pre_versions.get_mut(index) {
            *slot = version;
        }
    }

    /// Records the version that object `index` had before the change, and checks it in a replay. Errors: `EOVERFLOW` if
    /// it differs from that of the original execution, because a change of another client in between was not replayed
    /// (version-based recovery, as in Lustre).
    ///
    /// A version with [`IDENTITY`] identifies the object rather than its state.
    pub fn pre_version(&mut self, index: usize, version: u64) -> Result<(), Stop> {
        self.note_version(index, version);
        let Replay::Fresh(transno) = self.op.replay else { return Ok(()) };
        let first = self.op.asked.pre_versions.get(index).copied().unwrap_or(0);
        // Version 0.1.0 recorded no identities, and other versions for closed files.
        let since = self.m.header.versions_epoch;
        let by_older = since == 0 || transno.epoch() < since;
        // 0: no version was recorded.
        if first == 0 || first == version || by_older {
            return Ok(());
        }
        stdx::mark!("target.version_mismatch");
        Err(Stop::Errno(Errno::EOVERFLOW))
    }

    /// Runs a part of an attempt that can fail separately. On an error, what the part wrote and noted is rolled back,
    /// and the attempt continues.
    pub fn with_savepoint<T>(&mut self, part: impl FnOnce(&mut Self) -> Result<T, Stop>) -> Result<T, Stop> {
        let (written, noted) = (self.m.view.savepoint(), self.m.out.savepoint());
        let result = part(self);
        if let Err(Stop::Errno(_)) = result {
            self.m.view.rollback(written);
            self.m.out.rollback(noted);
        }
        result
    }

    /// Clears the recorded versions, because several changes recorded theirs.
    pub fn forget_versions(&mut self) {
        self.m.out.pre_versions = [0; 4];
    }

    // --- statistics ---

    /// Decodes the body of a request, and counts its operations for the job that it names.
    ///
    /// # Errors
    /// As [`Request::decode`].
    pub fn body<M: OfJob + Default>(&mut self, request: &Request) -> Result<M, Stop> {
        let body: M = request.decode()?;
        self.of_job(body.job());
        Ok(body)
    }

    /// Attributes the operations counted from now on to this job; an empty name is none.
    pub fn of_job(&mut self, job: &str) {
        let out = &mut self.m.out;
        out.job = (!job.is_empty()).then(|| {
            out.jobs.iter().position(|known| known == job).unwrap_or_else(|| {
                out.jobs.push(job.to_owned());
                out.jobs.len() - 1
            })
        });
    }

    /// Counts an operation of the request once the attempt is accepted, unless it is a replay.
    pub fn count(&mut self, operation: Operation) {
        self.counted(operation, None);
    }

    fn counted(&mut self, operation: Operation, bytes: Option<u64>) {
        let job = self.m.out.job;
        self.m.out.counted.push(Count { operation, bytes, job });
    }

    /// Counts an operation with the bytes that it moved; its unit is bytes.
    pub fn count_bytes(&mut self, operation: Operation, bytes: u64) {
        self.counted(operation, Some(bytes));
    }

    /// Counts a request whose opcode determines the operation: attributes, space, and data.
    pub fn count_plain(&mut self, request: &Request, reply: &Reply) {
        let operation = match request.opcode {
            Opcode::ObjRead => {
                self.count_bytes(Operation::ReadBytes, reply.bulk.len() as u64);
                Operation::Read
            }
            Opcode::ObjWrite => {
                self.count_bytes(Operation::WriteBytes, request.frame.bulk.len() as u64);
                Operation::Write
            }
            Opcode::ObjPunch => Operation::Punch,
            Opcode::ObjSeek => Operation::Seek,
            Opcode::ObjDestroy => Operation::Destroy,
            Opcode::ObjSync => Operation::Sync,
            Opcode::MdsGetattr | Opcode::MdsLookup | Opcode::ObjGetattr => Operation::Getattr,
            Opcode::ObjSetattr => Operation::Setattr,
            Opcode::MdsGetxattr => Operation::Getxattr,
            Opcode::MdsStatfs | Opcode::ObjStatfs => Operation::Statfs,
            _ => return,
        };
        self.count(operation);
    }

    // --- durability ---

    /// This change modifies `key` and depends on its earlier changes: [`Cx::depends_on`] and [`Cx::blind_write`].
    pub fn changed(&mut self, key: ShareKey) {
        self.depends_on(key);
        self.m.out.changed.push(key);
    }

    /// This change modifies `key` without depending on its earlier changes.
    pub fn blind_write(&mut self, key: ShareKey) {
        self.m.out.changed.push(key);
    }

    /// This change depends on `key`. The reply waits until changes of it are durable, if they are another client's, or
    /// this client's that it may not have the answer to.
    pub fn depends_on(&mut self, key: ShareKey) {
        self.depends(key, true);
    }

    /// As [`Cx::depends_on`], but ignores all changes of this client: if they are lost, so is this one.
    pub fn depends_on_others(&mut self, key: ShareKey) {
        self.depends(key, false);
    }

    fn depends(&mut self, key: ShareKey, own: bool) {
        // A replay was answered before.
        if self.is_replay() {
            return;
        }
        let (asked, exports) = (&self.op.asked, &self.m.exports);
        let export = proto::Handle(self.op.export.0);
        let unanswered = |tag, xid| exports.get(export).is_some_and(|export| export.may_be_unanswered(tag, xid, asked));
        let lacks = |tag, xid| own && tag != asked.tag && unanswered(tag, xid);
        let [ordinary, cross] = [&self.m.sharing, &self.m.cross.sharing];
        let group = ordinary.depends(key, self.op.export, lacks).max(cross.depends(key, self.op.export, lacks));
        self.m.out.hold_for = self.m.out.hold_for.max(group);
    }

    /// Holds the reply until this change and all changes before it are durable.
    pub fn hold_until_durable(&mut self) {
        self.m.out.hold = true;
    }

    /// The group that will contain this attempt's changes. [`crate::Service::durable`] reports when it is durable.
    pub fn group(&self) -> u64 {
        self.m.view.collecting_group()
    }

    /// Whether the store is known to be current: no client has seen a later state, and the MGS, if there is one, has
    /// checked the number of starts. Operations that cannot be undone elsewhere wait for that.
    pub fn store_is_settled(&self) -> bool {
        self.m.store_is_settled()
    }

    /// Whether an older copy of the store was accepted at this start.
    pub fn accepts_old_store(&self) -> bool {
        self.m.options.accept_old_store
    }

    /// The highest transno that is durable.
    pub fn last_committed(&self) -> Transno {
        self.m.last_committed
    }

    // --- locks ---

    /// Makes sure that no other export holds a conflicting lock while this attempt runs: revokes such locks, and waits
    /// if necessary. The requester keeps its own locks.
    pub fn revoke(&mut self, resource: Resource, mode: LockMode, policy: Policy) -> Result<(), Stop> {
        self.free(self.op.export, resource, mode, policy)
    }

    fn free(&mut self, holder: ExportId, resource: Resource, mode: LockMode, policy: Policy) -> Result<(), Stop> {
        if self.is_replay() {
            return Ok(());
        }
        self.op.used_locks = true;
        match self.m.locks.revoke(self.m.now, self.op.waiter(), holder, resource, mode, policy) {
            Revoked::Free => Ok(()),
            Revoked::Waiting => Err(self.wait()),
        }
    }

    /// As [`Cx::revoke`], but also revokes the requester's own locks.
    pub fn revoke_all(&mut self, resource: Resource, mode: LockMode, policy: Policy) -> Result<(), Stop> {
        self.free(ExportId::TARGET, resource, mode, policy)
    }

    /// Grants the requester a lock if that is possible at once: as many of `want_bits` as do not conflict, but at least
    /// `must_bits`. For extents `want_bits` is ignored. `None` for a cookie of 0 and in replays.
    pub fn try_grant(
        &mut self,
        resource: Resource,
        mode: LockMode,
        want_bits: u64,
        must_bits: u64,
        cookie: u64,
    ) -> Option<LockGrant> {
        if cookie == 0 || self.is_replay() || self.is_under_change(resource.fid) {
            return None;
        }
        let withheld = if self.m.withheld.contains(&resource.fid) { proto::msg::bits::UPDATE } else { 0 };
        if must_bits & withheld != 0 {
            return None;
        }
        let want_bits = want_bits & !withheld;
        self.m.locks.try_grant(self.m.now, self.op.export, resource, mode, want_bits, must_bits, cookie)
    }

    /// Whether no locks on the names of a directory, and on what they change, are granted with replies.
    pub fn withhold_names(&mut self, dir: Fid, withheld: bool) {
        match withheld {
            true => self.m.withheld.insert(dir),
            false => self.m.withheld.remove(&dir),
        };
    }

    /// Grants the requester a lock on an object that it has just created, on which no other client can have a lock. The
    /// requester relies on it. `None` for a cookie of 0 and in replays.
    pub fn grant_new(&mut self, resource: Resource, mode: LockMode, bits: u64, cookie: u64) -> Option<LockGrant> {
        if cookie == 0 || self.is_replay() || self.is_under_change(resource.fid) {
            return None;
        }
        self.m.locks.grant_new(self.m.now, self.op.export, resource, mode, bits, cookie)
    }

    /// Acquires the lock that the request (an `LdlmEnqueue`) asks for; lock replays too.
    pub fn enqueue(&mut self, request: &EnqueueReq) -> Result<EnqueueRep, Stop> {
        let grant = |grant| Ok(EnqueueRep { grant: Some(grant), ..EnqueueRep::default() });
        match self.op.memo().enqueued.clone() {
            Some(Ok(granted)) => return grant(granted),
            Some(Err(errno)) => return Err(Stop::Errno(errno)),
            None => {}
        }
        if self.op.memo().enqueue_waits {
            return Err(self.wait());
        }
        self.op.used_locks = true;
        let withdrawn = self.op.memo().withdrawn;
        let at_once = withdrawn.then(|| EnqueueReq { no_wait: true, ..request.clone() });
        let request = at_once.as_ref().unwrap_or(request);
        match self.m.locks.enqueue(self.m.now, self.op.export, request, self.op.waiter()) {
            Enqueued::Refused(Errno::EAGAIN) if withdrawn => {
                self.m.locks.refused_with(self.op.export, request.cookie, Errno::EINTR);
                Err(Stop::Errno(Errno::EINTR))
            }
            Enqueued::Granted(granted) => {
                self.op.memo().enqueued = Some(Ok(granted.clone()));
                grant(granted)
            }
            Enqueued::Waiting => {
                self.op.memo().enqueue_waits = true;
                Err(self.wait())
            }
            Enqueued::Refused(errno) => {
                if errno == Errno::ENOLCK {
                    self.m.log_lock_refusal(self.op.export);
                }
                Err(Stop::Errno(errno))
            }
            Enqueued::Unlocked | Enqueued::NotFound => Ok(EnqueueRep::default()),
            Enqueued::Conflict(flock, mode) => {
                Ok(EnqueueRep { conflict: Some(flock), conflict_mode: mode as i32, ..EnqueueRep::default() })
            }
        }
    }

    /// Whether [`Cx::enqueue`] has run in an earlier attempt, so that the lock is granted or waits.
    pub fn is_enqueued(&mut self) -> bool {
        let memo = self.op.memo();
        memo.enqueued.is_some() || memo.enqueue_waits
    }

    /// Grants the locks of an `LdlmReplay` again, all in one attempt. `check` decides whether the target can have
    /// granted such a lock, and may read records; all locks are checked before the attempt waits for missing records.
    ///
    /// Errors: `EPROTO` if the request is no replay or does not decode. Refused locks are listed in the reply.
    pub fn replay_locks(
        &mut self,
        request: &ReplayLocksReq,
        mut check: impl FnMut(&mut Cx<'_>, &EnqueueReq) -> Result<(), Stop>,
    ) -> Result<ReplayLocksRep, Stop> {
        if !self.op.asked.has(flags::REPLAY) {
            return Err(Errno::EPROTO.into());
        }
        let mut rep = ReplayLocksRep::default();
        let mut misses = false;
        for lock in request.iter() {
            let lock = lock.map_err(|_| Errno::EPROTO)?;
            let result = match check(self, &lock) {
                Ok(()) => self.m.locks.replay(self.m.now, self.op.export, &lock),
                Err(Stop::Errno(errno)) => Err(errno),
                Err(Stop::Wait) => {
                    misses = true;
                    continue;
                }
            };
            let errno = result.err().map_or(0, Errno::raw);
            if errno != 0 {
                rep.failed.push(ReplayFailure { index: rep.handles.len() as u32, errno });
            }
            rep.handles.push(result.unwrap_or(0));
        }
        if misses {
            return Err(self.wait());
        }
        let client = proto::Handle(self.op.export.0);
        self.m.window.locks_executed(self.m.now, client, rep.handles.len() as u64);
        Ok(rep)
    }

    /// Glimpse: asks the holders of write locks (except the requester) for the object's current size and times. Empty:
    /// the target's own values are current.
    pub fn glimpse(&mut self, resource: Resource) -> Result<Vec<Lvb>, Stop> {
        if self.is_replay() {
            return Ok(Vec::new());
        }
        self.op.used_locks = true;
        match self.m.locks.glimpse(self.m.now, self.op.waiter(), resource, self.op.export) {
            Glimpsed::Nothing => Ok(Vec::new()),
            Glimpsed::Waiting => Err(self.wait()),
            Glimpsed::Done(lvbs) => Ok(lvbs),
        }
    }

    /// The object is truncated: discards glimpse replies that waiting requests have collected.
    pub fn truncated(&mut self, resource: Resource) {
        self.m.locks.truncated(&resource);
    }

    /// The requester wrote to the object and reported its least size including buffered data. Waiting glimpses may have
    /// got a smaller size from it.
    pub fn wrote(&mut self, resource: Resource, size: u64) {
        self.m.locks.wrote(self.op.export, &resource, size);
    }

    /// The object is destroyed: drops the requester's locks on it, which its client discards with the reply. To be
    /// called among the last steps of an attempt.
    pub fn drop_locks(&mut self, resource: Resource) {
        self.m.locks.drop_locks(self.m.now, self.op.export, &resource);
    }

    /// The lock table, read-only.
    pub fn locks(&self) -> &dlm::server::Locks {
        &self.m.locks
    }

    // --- others ---

    /// Runs a data operation, once per request however often the attempt runs: the same operation (with equal fields)
    /// returns the same result. Files of writes, truncates and fallocates are synced before this change's group is
    /// committed.
    pub fn data(&mut self, op: DataOp) -> Result<DataResult, Stop> {
        match self.m.data_op(self.op, op) {
            Some(result) => Ok(result),
            None => Err(self.wait()),
        }
    }

    /// Sends a request to another target, once per task however often the attempt runs. The status of the reply may be
    /// an error. Lost replies and restarts of the other target are handled by retrying: the request is executed at
    /// least once, and its change is durable when it is answered. Errors: `ENODEV` if the configuration has no such
    /// target.
    pub fn upstream(
        &mut self,
        target: &TargetName,
        opcode: Opcode,
        body: &impl prost::Message,
        bulk: Bytes,
    ) -> Result<Frame, Stop> {
        match self.m.upstream_call(self.op, target, opcode, body.encode_to_vec().into(), bulk) {
            Some(Ok(frame)) => Ok(frame),
            Some(Err(errno)) => Err(Stop::Errno(errno)),
            None => Err(self.wait()),
        }
    }

    /// Waits once for this long, for example before a task retries.
    pub fn sleep(&mut self, time: Duration) -> Result<(), Stop> {
        if self.m.slept(self.op, time) { Ok(()) } else { Err(self.wait()) }
    }

    /// Starts background work when this attempt is accepted and recovery is over.
    pub fn spawn(&mut self, task: Task) {
        self.m.out.spawned.push((None, task));
    }

    /// Starts background work even if this attempt is not accepted.
    pub fn spawn_at_once(&mut self, task: Task) {
        self.m.tasks.push_back(task);
    }

    /// Starts background work after `time`.
    pub fn spawn_after(&mut self, time: Duration, task: Task) {
        let at = (!time.is_zero()).then(|| self.m.now + time);
        self.m.out.spawned.push((at, task));
    }

    /// Sends a client a notice when this attempt is accepted. Lost if the client is not connected.
    pub fn notify(&mut self, export: ExportId, opcode: Opcode, body: &impl prost::Message) {
        self.m.out.notices.push((export, opcode, body.encode_to_vec().into()));
    }

    /// Evicts an export when this attempt is accepted: drops its locks, open files and record, and answers its client
    /// `ENOTCONN`.
    pub fn evict(&mut self, export: ExportId, reason: &str) {
        self.m.out.evicted.push((export, reason.to_owned()));
    }

    /// Logs a line at once, even if the attempt is not accepted.
    pub fn log(&mut self, level: LogLevel, line: impl Into<String>) {
        self.m.log(level, line.into());
    }

    pub(crate) fn wait(&mut self) -> Stop {
        self.op.waits = true;
        Stop::Wait
    }

    /// Turns a miss of the view into a wait, or into an error if the missing record could not be loaded.
    fn missed<T>(&mut self, found: Result<T, store::Miss>) -> Result<T, Stop> {
        found.map_err(|store::Miss| match self.m.view.failure(self.op.attempt()) {
            Some(error) => {
                let line = error.to_string();
                self.m.log(LogLevel::Error, line);
                Stop::Errno(Errno::EIO)
            }
            None => self.wait(),
        })
    }

    fn decode<R: Record>(&mut self, body: &Value) -> Result<R, Stop> {
        R::decode_record(body).map_err(|bad| {
            self.m.log(LogLevel::Error, bad.to_string());
            Stop::Errno(Errno::EIO)
        })
    }
}
