//! Metadata write-back: changes that are made in the caches, answered at once, and sent in batches.
//!
//! A directory whose UPDATE lock this client holds in mode EX is *leased*: nobody else knows or changes its entries. If
//! all its names are cached too, the outcome of a create or an unlink there is known without a server. The change is
//! applied to the caches ([`make`]) as the server will apply it to its records, the program continues, and the change
//! waits in the lane of its target.
//!
//! An object that was made under a lease is unknown to everybody else while the lease lasts: it is *private*
//! ([`Node::private`]). Only private objects have their attributes changed and their names removed in the caches; a
//! private file is opened without a server.
//!
//! # Order
//! Each target has at most one batch in flight, and a request outside a batch waits until all changes before it are
//! answered ([`drained`]). So what a server has of this client is always a prefix of what its programs did. A lease
//! goes back once its changes are answered and the local opens of its files are reported ([`give_back`],
//! [`crate::coherence::local_opens`]).
//!
//! ```text
//!   mkdir d, create d/1 .. d/80      lane: 81 changes       batch 1: 64 of them    17 wait
//!   fsync of the directory           goal: 81               batch 2: 17            then MdsSync
//!   another client lists d           callback of the lease  nothing is outstanding: it goes back
//! ```
//!
//! # Locks
//! The locks on a new object are assumed ([`dlm::client::LockCache::assume`]) and requested with its create. Until they
//! are confirmed nobody can want them.
//!
//! # Failures
//! The waiting changes use the client's write-back credits ([`proto::msg::ConnectRep::write_back_credits`]), so failures are
//! exceptional: an eviction, or a server that lost the lease. The caches then drop what they assumed, and programs get
//! an error ([`crate::coherence::lost`]). An eviction also takes the changes that were not sent yet: none of them is
//! executed without those before it.

mod make;

use bytes::Bytes;
use core::time::Duration;
use dlm::client::HeldLock;
use prost::Message;
use proto::connect::features;
use proto::msg::{
    BATCH_MAX, BatchRep, BatchReq, BatchResult, Cred, LockMode, Policy, Reint, ReintReq, ResourceKind, WantLocks, bits,
};
use proto::{Errno, Opcode, Transno, Xid};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;
use stdx::Instant;

use crate::api::{Effect, FileHandle, Invalidation};
use crate::base::Dest;
use crate::base::Step;
use crate::base::WaitKey;
use crate::cache::file::of_file;
use crate::cache::names::KnownName;
use crate::cache::node::{Hold, Node};
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::data;
use crate::coherence::local_opens;
use crate::coherence::locks;
use crate::coherence::lost;
use crate::coherence::op::Task;
use crate::coherence::outbox::{Lane, Outbox};
use crate::coherence::request::Request;
use crate::coherence::world::World;

pub(crate) use make::{accessed, create, setattr, unlink};

/// How long a change waits for others.
const GATHER_TIME: Duration = Duration::from_millis(5);
/// How long unused credits are kept.
const CREDITS_KEPT: Duration = Duration::from_secs(10);
/// Approximate size limit of a batch, in bytes.
const BATCH_BYTES: usize = 256 << 10;

/// The objects of a change.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum What {
    /// An object is created.
    Create {
        /// The object.
        ino: u64,
        /// Its directory.
        parent: u64,
        /// Its name.
        name: Bytes,
    },
    /// A name is removed.
    Unlink {
        /// The object that it led to.
        ino: u64,
        /// Its directory.
        parent: u64,
        /// The name.
        name: Bytes,
    },
    /// Attributes are changed.
    Setattr {
        /// The object.
        ino: u64,
    },
}

impl What {
    /// The nodes that the change touches.
    fn nodes(&self) -> impl Iterator<Item = u64> + use<> {
        let (ino, parent) = match *self {
            What::Create { ino, parent, .. } | What::Unlink { ino, parent, .. } => (ino, Some(parent)),
            What::Setattr { ino } => (ino, None),
        };
        core::iter::once(ino).chain(parent)
    }
}

/// A change that was made in the caches.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Change {
    /// The request, without the credentials.
    request: ReintReq,
    cred: Arc<Cred>,
    what: What,
    /// The version of what it changed in the caches, until its transno is known.
    version: u64,
}

/// Version of what an unanswered change has made: greater than any version that a server can report meanwhile, and than
/// those of earlier changes.
fn version_of(change: u64) -> u64 {
    WAITING | change
}

/// Greater than any transno.
const WAITING: u64 = 1 << 63;

/// A request with changes.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Batch {
    dest: Dest,
    /// Empty: credits are returned.
    changes: Vec<Change>,
}

/// The write-back credits from a target: how many unanswered changes it has promised to accept.
#[derive(Debug, Default)]
struct Credits {
    count: u32,
    /// When a change was made last, or credits were granted.
    used: Instant,
    /// They are being returned. Credits that are granted meanwhile may be among those that the target is about to take.
    returning: bool,
    /// Requests up to this one were executed before the credits were set as they are.
    newest: Xid,
    /// Batches that were sent.
    batches: u64,
    /// How many evictions by the target have been handled.
    evictions: u32,
}

/// All unanswered changes.
#[derive(Debug)]
pub(crate) struct MetadataWriteBack {
    changes: Outbox<Change>,
    credits: BTreeMap<Dest, Credits>,
}

impl Default for MetadataWriteBack {
    fn default() -> Self {
        MetadataWriteBack { changes: Outbox::new(GATHER_TIME, BATCH_MAX), credits: BTreeMap::new() }
    }
}

impl MetadataWriteBack {
    /// A target reports how many changes may be unanswered. `newest`: the last request that this client has sent.
    pub(crate) fn set_credits(&mut self, dest: Dest, count: u32, newest: Xid, now: Instant) {
        let credits = self.credits.entry(dest).or_default();
        credits.newest = newest;
        if !credits.returning {
            (credits.count, credits.used) = (count, now);
        }
    }

    /// The same with the answer to a change outside a batch. It counts only if there are no credits: answers overtake each
    /// other, and credits that were granted earlier may have been used since.
    pub(crate) fn offered(&mut self, dest: Dest, count: u32, by: Xid, now: Instant) {
        let credits = self.credits.get_mut(&dest).filter(|credits| credits.count == 0 && count > 0);
        if let Some(credits) = credits.filter(|credits| !credits.returning && by > credits.newest) {
            stdx::mark!("credits_offered");
            (credits.count, credits.used) = (count, now);
        }
    }

    /// How many credits the client needs after a restart of the server.
    pub(crate) fn claim(&self, dest: Dest) -> u32 {
        self.credits(dest).max(u32::try_from(self.changes.outstanding(dest)).unwrap_or(u32::MAX))
    }

    fn credits(&self, dest: Dest) -> u32 {
        self.credits.get(&dest).map_or(0, |credits| credits.count)
    }

    /// Whether no change waits or is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.changes.is_idle()
    }

    /// The same for one target.
    pub(crate) fn is_idle_at(&self, dest: Dest) -> bool {
        self.changes.is_idle_at(dest)
    }

    /// When unused credits are returned.
    fn shrinks_at(&self, dest: Dest, credits: &Credits) -> Option<Instant> {
        (credits.count > 0 && self.changes.is_idle_at(dest)).then(|| credits.used + CREDITS_KEPT)
    }
}

/// Counters of a target's changes, as text for status output.
pub(crate) fn text(w: &World, dest: Dest) -> String {
    let of = &w.metadata_write_back;
    let (made, batches) =
        (of.changes.get(dest).map_or(0, Lane::added), of.credits.get(&dest).map_or(0, |credits| credits.batches));
    let (outstanding, credits) = (of.changes.outstanding(dest), of.credits(dest));
    format!("changes:     {made}\nbatches:     {batches}\noutstanding: {outstanding}\ncredits:     {credits}")
}

/// Changes of all targets: those that were made, and those that were answered.
pub(crate) fn counts(w: &World) -> (u64, u64) {
    let lanes = w.metadata_write_back.changes.lanes();
    lanes.fold((0, 0), |(made, answered), (_, lane)| (made + lane.added(), answered + lane.answered()))
}

/// Whether changes may be made in the caches at all. Not while node memory is short: a synchronous change leaves time
/// for data to be written.
pub(crate) fn allowed(w: &World, dest: Dest) -> bool {
    !w.options.sync_metadata && !w.unmounting && !w.reclaim.is_short && w.metadata_write_back.credits(dest) > 0
}

/// The lease on a directory: the cookie of the lock.
pub(crate) fn lease(w: &mut World, dest: Dest, node_fid: proto::Fid) -> Option<u64> {
    let resource = proto::msg::Resource::inode(node_fid);
    w.locks.get_mut(dest)?.find(&resource, LockMode::Ex, &Policy::Bits(bits::UPDATE))
}

/// Whether the lease under which an object was made still lasts.
pub(crate) fn is_private(w: &World, node: &Node) -> bool {
    let dest = w.mdt_of(node.fid);
    node.private != 0 && w.locks.get(dest).is_some_and(|locks| locks.is_usable(node.private))
}

/// Whether nobody else can have changed a node: it is leased, private, or has unanswered changes. Its state depends
/// only on this client's changes.
pub(crate) fn is_ours(w: &World, node: &Node) -> bool {
    let resource = proto::msg::Resource::inode(node.fid);
    let leased = || {
        let locks = w.locks.get(w.mdt_of(node.fid));
        locks.is_some_and(|locks| locks.on_resource(&resource).iter().any(|lock| lock.mode == LockMode::Ex))
    };
    node.is_held(Hold::Unsettled) || is_private(w, node) || node.is_dir() && leased()
}

/// Adds a change.
fn push(w: &mut World, dest: Dest, change: Change) {
    let now = w.now;
    for ino in change.what.nodes() {
        let held = w.nodes.hold(ino, Hold::Unsettled);
        assert!(held, "a change was made to a node that is not cached");
    }
    w.metadata_write_back.changes.lane(dest).add(change, now);
    w.metadata_write_back.credits.entry(dest).or_default().used = now;
    kick(w, dest);
}

/// Sends a batch if it is due.
fn kick(w: &mut World, dest: Dest) {
    if !w.metadata_write_back.changes.is_due(dest, w.now, w.unmounting) {
        return;
    }
    let evictions = w.imports.get(dest).map(|target| target.import.generation());
    let credits = w.metadata_write_back.credits.entry(dest).or_default();
    if evictions.is_some_and(|evictions| evictions != credits.evictions) {
        // An eviction takes the waiting changes together with those in flight, whose answers report it first: the
        // waiting ones must not be executed without those.
        stdx::mark!("lane_is_evicted");
        return;
    }
    credits.batches += 1;
    let lane = w.metadata_write_back.changes.lane(dest);
    let mut bytes = 0;
    let mut count = 0;
    for change in lane.waiting().take(BATCH_MAX) {
        bytes += size(&change.request);
        if count > 0 && bytes > BATCH_BYTES {
            break;
        }
        count += 1;
    }
    let changes = lane.take(count, w.now);
    w.spawn(Task::Batch(Box::new(Batch { dest, changes })));
}

/// Approximate size of a change in a request, in bytes.
fn size(request: &ReintReq) -> usize {
    match &request.op {
        Some(Reint::Create(op)) => 128 + op.name.len() + op.symlink.len(),
        Some(Reint::Unlink(op)) => 128 + op.name.len(),
        _ => 128,
    }
}

/// Sends the waiting changes as soon as the lane is free.
fn flush(w: &mut World, dest: Dest) {
    w.metadata_write_back.changes.flush(dest);
    kick(w, dest);
}

/// Waits until all changes made so far are answered.
pub(crate) fn drained(cx: &mut Cx<'_>, dest: Dest) -> Run<()> {
    let Some(lane) = cx.w.metadata_write_back.changes.get(dest).filter(|lane| lane.outstanding() > 0) else {
        return Ok(());
    };
    let (added, answered) = (lane.added(), lane.answered());
    let at = Step::ChangesUntil(dest);
    let goal = cx.memo(at).unwrap_or(added);
    if answered >= goal {
        // A later call waits for the changes made meanwhile.
        cx.forget(at);
        return Ok(());
    }
    cx.set_memo(at, goal);
    flush(cx.w, dest);
    Err(cx.wait(WaitKey::MetadataWriteBack))
}

/// The same for all targets.
pub(crate) fn all_drained(cx: &mut Cx<'_>) -> Run<()> {
    let dests: SmallVec<[Dest; 4]> = cx.w.metadata_write_back.changes.lanes().map(|(dest, _)| dest).collect();
    dests.into_iter().try_for_each(|dest| drained(cx, dest))
}

/// Before a request for a change with parts on several metadata targets: waits until all changes made so far are
/// answered. That change is durable when it is answered, and nothing that the programs did before it may be lost then.
pub(crate) fn before_cross_change(cx: &mut Cx<'_>) -> Run<()> {
    if !cx.began(Step::Main) && !cx.began(Step::AllDrained) {
        all_drained(cx)?;
        cx.set_memo(Step::AllDrained, 1);
    }
    Ok(())
}

/// Waits until the changes of an object are answered.
pub(crate) fn settled(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    match cx.w.nodes.get(ino).filter(|node| node.is_held(Hold::Unsettled)).map(|node| cx.w.mdt_of(node.fid)) {
        Some(dest) => drained(cx, dest),
        None => Ok(()),
    }
}

/// Whether a request has to wait for unanswered changes: all metadata requests but closes and the changes themselves. A
/// lock request may overtake changes once its object is settled ([`settled`]), because its caller has already recorded
/// it as sent.
pub(crate) fn waits(w: &World, dest: Dest, opcode: Opcode) -> bool {
    opcode.traits().ordered && !w.metadata_write_back.is_idle_at(dest)
}

/// When [`tick`] is due next.
pub(crate) fn deadline(w: &World) -> Option<Instant> {
    let of = &w.metadata_write_back;
    let unused = of.credits.iter().filter_map(|(dest, credits)| Some((dest, of.shrinks_at(*dest, credits)?)));
    let shrinking = unused.filter(|(dest, _)| may_shrink(w, **dest)).map(|(_, at)| at);
    of.changes.deadline().into_iter().chain(shrinking).min()
}

/// Whether a target takes credits back, and grants new ones with its answers.
fn may_shrink(w: &World, dest: Dest) -> bool {
    !w.unmounting && w.imports.get(dest).is_some_and(|target| target.has(features::GRANT_SHRINK))
}

/// Returns unused credits, so that other clients can have them.
fn return_credits(w: &mut World, dest: Dest) {
    if let Some(credits) = w.metadata_write_back.credits.get_mut(&dest) {
        stdx::mark!("credits_returned");
        (credits.count, credits.returning) = (0, true);
        w.spawn(Task::Batch(Box::new(Batch { dest, changes: Vec::new() })));
    }
}

/// Sends batches that are due, and returns unused credits.
pub(crate) fn tick(w: &mut World) {
    for dest in w.metadata_write_back.changes.due(w.now) {
        kick(w, dest);
    }
    let of = &w.metadata_write_back;
    let is_unused = |(dest, of_dest): (&Dest, &Credits)| {
        of.shrinks_at(*dest, of_dest).is_some_and(|at| at <= w.now).then_some(*dest)
    };
    let unused: SmallVec<[Dest; 4]> = of.credits.iter().filter_map(is_unused).collect();
    for dest in unused {
        if may_shrink(w, dest) {
            return_credits(w, dest);
        }
    }
}

/// Background: sends a batch and applies its answer.
pub(crate) fn send(cx: &mut Cx<'_>, batch: &Batch) -> Run<()> {
    let reply = cx.start_rpc(Step::Main, batch.dest, Opcode::MdsBatch, |_, _| Request::new(&encode(&batch.changes)));
    let (xid, transno, rep) = match reply {
        None => return Err(Stop::Wait),
        Some(Ok(reply)) => {
            let rep = reply.frame().decode::<BatchRep>().map_err(|_| Errno::EPROTO);
            (reply.header.xid, reply.header.transno, rep)
        }
        Some(Err(errno)) => (Xid(0), Transno(0), Err(errno)),
    };
    let (newest, now) = (cx.w.imports.get(batch.dest).map_or(Xid(0), |target| target.import.newest_xid()), cx.w.now);
    if let (true, Ok(rep)) = (transno.0 != 0, &rep) {
        cx.w.metadata_write_back.set_credits(batch.dest, rep.credits, newest, now);
        keep_done(cx.w, batch, xid, rep);
    }
    for (index, change) in batch.changes.iter().enumerate() {
        let result = match &rep {
            Ok(rep) => match rep.results.get(index) {
                Some(result) => Errno::from_status(result.status).map(|()| result),
                None => Err(Errno::EPROTO),
            },
            Err(errno) => Err(*errno),
        };
        settle(cx.w, batch.dest, change, transno, result);
    }
    if batch.changes.is_empty() {
        let credits = cx.w.metadata_write_back.credits.entry(batch.dest).or_default();
        (credits.returning, credits.newest) = (false, newest);
    } else {
        cx.w.metadata_write_back.changes.lane(batch.dest).arrived();
    }
    cx.w.wake(WaitKey::MetadataWriteBack);
    kick(cx.w, batch.dest);
    Ok(())
}

fn encode<'a>(changes: impl IntoIterator<Item = &'a Change>) -> BatchReq {
    let changes = changes.into_iter();
    let mut encoded = Vec::with_capacity(changes.size_hint().1.unwrap_or(0) * 128);
    let mut before: Option<&Arc<Cred>> = None;
    for change in changes {
        let same = before.is_some_and(|cred| Arc::ptr_eq(cred, &change.cred) || *cred == change.cred);
        let cred = (!same).then(|| (*change.cred).clone());
        before = Some(&change.cred);
        BatchReq::push(&mut encoded, &ReintReq { cred, ..change.request.clone() });
    }
    BatchReq { returns_credits: encoded.is_empty(), changes: encoded.into() }
}

/// Keeps only the successful changes of a batch for replay. A server takes a replay that fails as a sign that an
/// earlier change is lost for good.
fn keep_done(w: &mut World, batch: &Batch, xid: Xid, rep: &BatchRep) {
    if rep.results.iter().all(|result| result.status >= 0) {
        return;
    }
    stdx::mark!("batch_kept_in_part");
    let Some(target) = w.imports.get_mut(batch.dest) else { return };
    let results = batch.changes.iter().zip(&rep.results);
    let done = encode(results.filter(|(_, result)| result.status >= 0).map(|(change, _)| change));
    if done.changes.is_empty() {
        target.import.forget(xid);
    } else {
        target.import.amend(xid, done.encode_to_vec().into());
    }
}

/// A change was answered.
fn settle(w: &mut World, dest: Dest, change: &Change, transno: Transno, result: Result<&BatchResult, Errno>) {
    for ino in change.what.nodes() {
        match w.nodes.get_mut(ino).and_then(|node| node.attr.as_mut()) {
            Some(attr) if result.is_err() => attr.version = 0,
            Some(attr) if attr.version == change.version => attr.version = transno.0,
            _ => {}
        }
        w.release(ino, Hold::Unsettled);
    }
    match result {
        Ok(result) => {
            if let What::Create { parent, name, .. } | What::Unlink { parent, name, .. } = &change.what
                && let Some(entry) = w.nodes.get_mut(*parent).and_then(|node| node.dir.as_mut()?.names.get_mut(name))
                && entry.version == change.version
            {
                entry.version = transno.0;
            }
            if let What::Create { ino, .. } = change.what {
                made(w, dest, ino, &change.request.want.unwrap_or_default(), result);
            }
        }
        Err(errno) => failed(w, dest, change, errno),
    }
}

/// The server has created an object: confirms the locks on it.
fn made(w: &mut World, dest: Dest, ino: u64, want: &WantLocks, result: &BatchResult) {
    let pairs = [
        (want.object_cookie, result.object_handle),
        (want.entries_cookie, result.entries_handle),
        (want.data_cookie, result.data_handle),
    ];
    let gone = w.nodes.get(ino).is_none_or(|node| node.destroyed);
    for (cookie, handle) in pairs.into_iter().filter(|(cookie, _)| *cookie != 0) {
        let Some(locks) = w.locks.get_mut(dest) else { return };
        let lost = match handle {
            // The object was removed meanwhile, and its locks with it.
            _ if gone => None,
            0 => locks.lost(cookie),
            handle => {
                if locks.confirm(cookie, handle)
                    && let Some(lock) = locks.get(cookie)
                    && locks::is_data(&lock)
                {
                    data::lock_changed(w, &lock);
                }
                None
            }
        };
        if let Some(lock) = lost {
            locks::lost(w, dest, &lock, Errno::EIO);
        }
    }
    locks::pump(w, dest);
    if let (Some(layout), Some(node)) = (&result.layout, w.nodes.get_mut(ino))
        && let Some(attr) = &mut node.attr
        // A file that has left the metadata target meanwhile has a newer layout.
        && attr.layout.as_ref().is_none_or(|known| known.resident)
    {
        attr.layout = Some(layout.clone());
        data::layout_settled(w, ino, layout);
    }
}

/// A change that programs believe done did not happen: the caches drop what depends on it.
fn failed(w: &mut World, dest: Dest, change: &Change, errno: Errno) {
    stdx::mark!("write_back_failed");
    let what = match &change.what {
        What::Create { parent, name, .. } => format!("'{}' made in {}", name.escape_ascii(), w.nodes.path(*parent)),
        What::Unlink { parent, name, .. } => {
            format!("'{}' removed from {}", name.escape_ascii(), w.nodes.path(*parent))
        }
        What::Setattr { ino } => format!("attributes of {}", w.nodes.path(*ino)),
    };
    let target = w.target_name(dest);
    w.log_error(format!("{target}: a change that was answered before it was sent is lost ({errno}): {what}"));
    for ino in change.what.nodes() {
        lost::failed(w, ino, errno);
    }
    match &change.what {
        What::Create { ino, parent, name } => {
            forget_name(w, *parent, name);
            let want = change.request.want.unwrap_or_default();
            for cookie in [want.object_cookie, want.entries_cookie, want.data_cookie] {
                if let Some(lock) = w.locks.get_mut(dest).and_then(|locks| locks.lost(cookie)) {
                    locks::lost(w, dest, &lock, Errno::EIO);
                }
            }
            // An object that never reached the server has only local opens.
            let lease = w.nodes.get(*ino).map_or(0, |node| node.private);
            let open: Vec<FileHandle> = w.files.local_opens(of_file(lease, *ino)).map(|(_, fh)| fh).collect();
            open.into_iter().for_each(|fh| w.files.lost(fh));
            if let Some(node) = w.nodes.get_mut(*ino) {
                node.private = 0;
                node.unlinked = true;
            }
        }
        What::Unlink { parent, name, .. } => forget_name(w, *parent, name),
        What::Setattr { .. } => {}
    }
}

/// Drops what is cached of a name, and the completeness of the listing.
fn forget_name(w: &mut World, parent: u64, name: &Bytes) {
    if let Some(dir) = w.nodes.get_mut(parent).and_then(|node| node.dir.as_mut()) {
        dir.forget_all();
    }
    let parent = w.nodes.master(parent);
    w.effect(Effect::Invalidate(Invalidation::Entry { token: 0, parent, name: name.clone() }));
}

/// All state at a target is lost. The changes in flight learn that from their own answer.
pub(crate) fn evicted(w: &mut World, dest: Dest) {
    let evictions = w.imports.get(dest).map_or(0, |target| target.import.generation());
    w.metadata_write_back.credits.entry(dest).or_default().evictions = evictions;
    let waiting = w.metadata_write_back.changes.lane(dest).give_up();
    for change in &waiting {
        settle(w, dest, change, Transno(0), Err(Errno::EIO));
    }
    w.wake(WaitKey::MetadataWriteBack);
}

/// Before a lease goes back: its changes are answered, and the local opens of files made under it are reported.
pub(crate) fn give_back(cx: &mut Cx<'_>, dest: Dest, lock: &HeldLock) -> Run<()> {
    let Policy::Bits(held) = lock.policy else { return Ok(()) };
    if lock.resource.kind() != ResourceKind::Inode || lock.mode != LockMode::Ex || held & bits::UPDATE == 0 {
        return Ok(());
    }
    if !cx.began(Step::LeaseDrained) {
        drained(cx, dest)?;
        cx.set_memo(Step::LeaseDrained, 1);
    }
    local_opens::publish_lease(cx, lock.cookie)
}

/// A name in a directory is about to be changed by the server, or another name added to the object that it leads to:
/// that object is no longer private.
pub(crate) fn end_private(cx: &mut Cx<'_>, parent: u64, name: &Bytes) -> Run<()> {
    let Some(fid) = cx.w.nodes.get(parent).map(|node| node.fid) else { return Ok(()) };
    let dest = cx.w.mdt_of(fid);
    match cx.w.nodes.known_name(parent, name) {
        KnownName::Child(child) => end_private_object(cx, child.ino()),
        KnownName::Nothing => Ok(()),
        KnownName::Unknown => {
            let Some(cookie) = lease(cx.w, dest, fid) else { return Ok(()) };
            // It may be any object that was made here.
            stdx::mark!("lease_left");
            local_opens::publish_lease(cx, cookie)?;
            if let Some(locks) = cx.w.locks.get_mut(dest) {
                locks.give_back(cookie);
            }
            locks::pump(cx.w, dest);
            Ok(())
        }
    }
}

/// See [`end_private`].
pub(crate) fn end_private_object(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    if cx.w.nodes.get(ino).is_none_or(|node| node.private == 0) {
        return Ok(());
    }
    local_opens::publish_object(cx, ino)?;
    if let Some(node) = cx.w.nodes.get_mut(ino) {
        node.private = 0;
    }
    Ok(())
}
