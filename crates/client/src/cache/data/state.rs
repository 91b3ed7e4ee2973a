//! The cached data of a file: its objects with their pages, locks and sizes.
//!
//! # Sizes
//! `Object::size` is exact while a lock covers the object from there to its end (`Object::knows_end`) and nothing has
//! made it doubtful (`size_exact`: for instance a failed write). Otherwise it is the size reported last, and only this
//! still holds: *bytes at or beyond it that lie under a lock of ours are zeros*, because nobody else can have written
//! them.
//!
//! A request that changes the object without cached bytes takes effect here when it is answered, and others may see it
//! at the target before. So while such a request is in flight that may have moved the end, the target is asked
//! (`Object::shows_end`), and its answer counts from then on (`Object::glimpsed`).

use core::ops::Range;
use proto::msg::{Attr, Extent, Layout, LockMode, Lvb, ObjectId, Policy, Resource};
use proto::{Bytes, Errno, Fid, Transno};
use smallvec::SmallVec;
use stdx::Instant;

use dlm::client::HeldLock;

use super::lanes::{DataState, Foreign};
use super::pages::Pages;
use super::read_ahead::ReadAhead;
use super::striping::Striping;
use crate::base::Dest;
use crate::base::OpId;
use crate::base::Step;

/// Which object of a file: a stripe, or [`HOME`].
pub(crate) type Key = u32;
/// The resident file on the metadata target.
pub(crate) const HOME: Key = u32::MAX;
/// The whole object.
pub(crate) const ALL: Range<u64> = 0..u64::MAX;

/// A read of the target in flight.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) owner: OpId,
    pub(crate) step: Step,
    pub(crate) range: Range<u64>,
    /// What was written or dropped since it was sent: the reply is too old for these bytes.
    pub(crate) voids: SmallVec<[Range<u64>; 1]>,
}

/// One object of a file.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) dest: Dest,
    pub(crate) resource: Resource,
    pub(crate) pages: Pages,
    pub(crate) locks: SmallVec<[HeldLock; 1]>,
    pub(crate) size: u64,
    pub(crate) size_exact: bool,
    pub(crate) blocks: u64,
    pub(crate) atime_ns: i64,
    pub(crate) mtime_ns: i64,
    pub(crate) ctime_ns: i64,
    pub(crate) fetches: Vec<Fetch>,
    /// Locks that operations have requested.
    pub(crate) asked: Vec<(OpId, LockMode, Range<u64>)>,
    /// Greatest transno of a change of this object; at first, that of any change of its target.
    pub(crate) transno: Transno,
    /// The moment at which the last change of this client was answered. A request from before that may show an older
    /// state.
    pub(crate) changed: u64,
    pub(crate) foreign: Foreign,
    /// Other clients used it recently: not worth a lock only to know its size.
    pub(crate) contended_until: Instant,
    /// Why dirty bytes could not be written back at the last try. They stay dirty and are retried.
    pub(crate) unwritable: Option<Errno>,
    /// Failed tries to write back; wraps around.
    pub(crate) failures: u16,
}

/// Bytes that a lock covers, as a half-open range.
pub(crate) fn lock_range(lock: &HeldLock) -> Range<u64> {
    match lock.policy {
        Policy::Extent(Extent { start, end }) => start..end.saturating_add(1),
        _ => ALL,
    }
}

impl Object {
    fn new(dest: Dest, resource: Resource) -> Object {
        Object {
            dest,
            resource,
            pages: Pages::default(),
            locks: SmallVec::new(),
            size: 0,
            size_exact: false,
            blocks: 0,
            atime_ns: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            fetches: Vec::new(),
            asked: Vec::new(),
            transno: Transno(0),
            changed: 0,
            foreign: Foreign::default(),
            contended_until: Instant::ZERO,
            unwritable: None,
            failures: 0,
        }
    }

    /// Its identity on its target.
    pub(crate) fn id(&self) -> ObjectId {
        ObjectId { fid: self.resource.fid, stripe: self.resource.stripe }
    }

    /// The number in its identity, for steps of operations: no other object has it.
    pub(crate) fn number(&self) -> u32 {
        self.resource.stripe
    }

    /// One of the locks that together cover `range` in `mode`, called back or not. Neighbouring narrow locks count as
    /// one: dirty bytes of both may be sent in one request.
    pub(crate) fn covering(&self, mode: LockMode, range: &Range<u64>) -> Option<&HeldLock> {
        let good = || self.locks.iter().filter(|lock| dlm::mode::covers(lock.mode, mode));
        let mut open: SmallVec<[Range<u64>; 2]> = SmallVec::from_iter([range.clone()]);
        for lock in good() {
            let covered = lock_range(lock);
            open = open.iter().flat_map(|part| subtract(part, &covered)).collect();
            if open.is_empty() {
                break;
            }
        }
        if !open.is_empty() {
            return None;
        }
        good().find(|lock| {
            let covered = lock_range(lock);
            covered.start < range.end && range.start < covered.end
        })
    }

    /// Whether a lock covers the end, so that nobody else can change the size.
    pub(crate) fn end_covered(&self) -> bool {
        self.locks.iter().any(|lock| {
            let covered = lock_range(lock);
            covered.end == u64::MAX && covered.start <= self.size
        })
    }

    /// Whether `size` is exact.
    pub(crate) fn knows_end(&self) -> bool {
        self.size_exact && self.end_covered()
    }

    /// Whether `size` is also what others see: no change of this client in flight may have moved the end at the target
    /// already.
    pub(crate) fn shows_end(&self) -> bool {
        self.knows_end() && self.pages.changes_reach() <= self.size
    }

    /// The target reported its size while changes of this client may have been in flight. Nobody else can move a known
    /// end, so it can only have grown by those changes: `size` may be from before a truncation.
    pub(crate) fn glimpsed(&mut self, size: u64) {
        if self.knows_end() {
            self.size = self.size.max(size.min(self.pages.changes_reach()));
        }
    }

    /// Bytes that the target does not have.
    pub(crate) fn unwritten(&self) -> u64 {
        let counts = self.pages.counts();
        counts.dirty + counts.writing
    }

    /// The object as this client sees it.
    pub(crate) fn lvb(&self) -> Lvb {
        Lvb {
            size: self.size,
            blocks: self.blocks + self.unwritten().div_ceil(512),
            atime_ns: self.atime_ns,
            mtime_ns: self.mtime_ns,
            ctime_ns: self.ctime_ns,
        }
    }

    /// The object as the target reported it, with what is buffered. A size that was shown is valid from then on.
    pub(crate) fn with_buffered(&mut self, reported: &Lvb) -> Lvb {
        self.glimpsed(reported.size);
        if self.unwritten() == 0 {
            return *reported;
        }
        let own = self.lvb();
        let newer = (own.ctime_ns, own.mtime_ns) > (reported.ctime_ns, reported.mtime_ns);
        Lvb {
            size: reported.size.max(self.size_floor()),
            blocks: reported.blocks.max(own.blocks),
            ..if newer { own } else { *reported }
        }
    }

    /// A size that is certainly not too large, however narrow our locks are.
    pub(crate) fn size_floor(&self) -> u64 {
        if !self.size_exact {
            return self.pages.buffered_end();
        }
        self.locks.iter().map(|lock| lock_range(lock).end.min(self.size)).max().unwrap_or(0)
    }

    /// A change of this client was answered.
    pub(crate) fn answered(&mut self, transno: Transno, moment: u64) {
        self.transno = self.transno.max(transno);
        self.changed = moment;
    }

    /// The target reported its size, at a moment when nobody else could change it.
    pub(crate) fn set_size(&mut self, lvb: &Lvb) {
        self.size = lvb.size.max(self.pages.unwritten_end());
        self.size_exact = true;
        self.blocks = lvb.blocks;
        self.set_times(lvb);
    }

    /// Sets times and space to those of the target; newer ones of this client stay.
    pub(crate) fn set_times(&mut self, lvb: &Lvb) {
        self.blocks = lvb.blocks;
        self.atime_ns = self.atime_ns.max(lvb.atime_ns);
        if (lvb.ctime_ns, lvb.mtime_ns) > (self.ctime_ns, self.mtime_ns) {
            self.ctime_ns = lvb.ctime_ns;
            self.mtime_ns = lvb.mtime_ns;
        }
    }

    /// A change was made at `now`.
    pub(crate) fn touch(&mut self, now_ns: i64) {
        self.ctime_ns = self.ctime_ns.max(now_ns);
        self.mtime_ns = self.ctime_ns;
    }

    /// Prevents replies to reads in flight from filling `range`.
    pub(crate) fn void_fetches(&mut self, range: &Range<u64>) {
        for fetch in &mut self.fetches {
            if fetch.range.start < range.end && range.start < fetch.range.end {
                fetch.voids.push(range.clone());
            }
        }
    }

    /// Fills the cache with the bytes of a reply, where they are missing, not void, and under a lock.
    pub(crate) fn fill(&mut self, fetch: &Fetch, data: &Bytes, mark: u64) {
        let whole = fetch.range.start..fetch.range.start + data.len() as u64;
        let mut parts = Vec::from([whole]);
        for void in &fetch.voids {
            parts = parts.into_iter().flat_map(|part| subtract(&part, void)).collect();
        }
        for part in parts {
            if self.covering(LockMode::Pr, &part).is_some() {
                let from = (part.start - fetch.range.start) as usize;
                let to = (part.end - fetch.range.start) as usize;
                self.pages.fill(part.start, &data.slice(from..to), mark);
            }
        }
    }
}

/// `a` without `b`.
pub(crate) fn subtract(a: &Range<u64>, b: &Range<u64>) -> SmallVec<[Range<u64>; 2]> {
    let left = a.start..a.end.min(b.start).max(a.start);
    let right = a.start.max(b.end).min(a.end)..a.end;
    if b.start >= a.end || b.end <= a.start || b.is_empty() {
        return SmallVec::from_iter([a.clone()]);
    }
    [left, right].into_iter().filter(|r| !r.is_empty()).collect()
}

/// The cached data of a file; `Node::data`.
#[derive(Debug)]
pub(crate) struct NodeData {
    pub(crate) fid: Fid,
    /// Unknown until the first attributes.
    pub(crate) layout: Option<Layout>,
    /// The layout is valid while any lock on an object is held ([`crate::coherence::data::layout`]).
    pub(crate) layout_sure: bool,
    pub(crate) striping: Striping,
    /// The resident file. Meaningless once the data has left.
    pub(crate) home: Object,
    /// The stripes.
    pub(crate) objects: Vec<Object>,
    /// Counts errors of write-back.
    pub(crate) errors: u32,
    pub(crate) last_error: Errno,
    /// The last one was not reported to a program.
    pub(crate) error_unreported: bool,
    pub(crate) dirty: u64,
    pub(crate) dirty_since: Option<Instant>,
    /// Keyed by open file.
    pub(crate) read_ahead: Vec<(u64, ReadAhead)>,
    /// Only this operation may change data; others wait.
    pub(crate) exclusive: Option<OpId>,
    /// The data is being copied to its objects, under an EX lock.
    pub(crate) leaving: bool,
    /// The job of the program that used the data last.
    pub(crate) job: Box<str>,
    /// [`crate::coherence::data::Task::Leave`] runs.
    pub(crate) leave_requested: bool,
    /// Why the last attempt to leave failed.
    pub(crate) leave_error: Option<Errno>,
    /// The kernel may hold pages of the file.
    pub(crate) kernel_pages: bool,
    /// These may be outdated, from a time when no program had the file open through them: the next open drops them.
    pub(crate) old_pages: bool,
    /// Locks that are being given back.
    pub(crate) recalls: u32,
    /// The kernel is dropping pages for one of them: its calls may use that lock meanwhile.
    pub(crate) lends_lock: bool,
    /// Pages that calls have filled in the kernel while locks were being given back.
    pub(crate) fills: Vec<Range<u64>>,
}

impl NodeData {
    pub(crate) fn new(fid: Fid, mdt: Dest) -> NodeData {
        NodeData {
            fid,
            layout: None,
            layout_sure: false,
            striping: Striping::WHOLE,
            home: Object::new(mdt, Resource::inode(fid)),
            objects: Vec::new(),
            errors: 0,
            last_error: Errno::EIO,
            error_unreported: false,
            dirty: 0,
            dirty_since: None,
            read_ahead: Vec::new(),
            exclusive: None,
            leaving: false,
            job: Box::default(),
            leave_requested: false,
            leave_error: None,
            kernel_pages: false,
            old_pages: false,
            recalls: 0,
            lends_lock: false,
            fills: Vec::new(),
        }
    }

    /// Whether the data lies on the metadata target, as far as this client knows.
    pub(crate) fn resident(&self) -> bool {
        self.layout.as_ref().is_none_or(|layout| layout.resident)
    }

    pub(crate) fn set_layout(&mut self, layout: Layout, data: &DataState) {
        self.striping = Striping::new(layout.stripe_size, layout.osts.len());
        let fid = self.fid;
        self.objects = layout
            .osts
            .iter()
            .zip(0..)
            .map(|(ost, stripe)| (ost, layout.first_object.wrapping_add(stripe)))
            .map(|(ost, number)| {
                let dest = Dest::Ost(*ost);
                // This client may have changed the file before, and dropped its node.
                Object { transno: data.newest(dest), ..Object::new(dest, Resource::object(fid, number)) }
            })
            .collect();
        self.layout = Some(layout);
        self.layout_sure = false;
    }

    pub(crate) fn object(&self, key: Key) -> Option<&Object> {
        if key == HOME { Some(&self.home) } else { self.objects.get(key as usize) }
    }

    pub(crate) fn object_mut(&mut self, key: Key) -> Option<&mut Object> {
        if key == HOME { Some(&mut self.home) } else { self.objects.get_mut(key as usize) }
    }

    /// The objects that currently hold the data.
    pub(crate) fn keys(&self) -> Vec<Key> {
        if self.resident() { vec![HOME] } else { (0..self.objects.len() as u32).collect() }
    }

    /// The part of a file range on an object.
    pub(crate) fn object_range(&self, key: Key, range: &Range<u64>) -> Range<u64> {
        if key == HOME {
            return range.clone();
        }
        let end = if range.end == u64::MAX { u64::MAX } else { self.striping.object_cut(key, range.end) };
        self.striping.object_cut(key, range.start)..end
    }

    /// The smallest file range that contains an object's range.
    pub(crate) fn file_range(&self, key: Key, range: &Range<u64>) -> Range<u64> {
        if key == HOME || range.is_empty() {
            return range.clone();
        }
        let end = if range.end == u64::MAX { u64::MAX } else { self.striping.file_size(key, range.end) };
        self.striping.file_offset(key, range.start)..end
    }

    /// The file size that follows from one object's size.
    pub(crate) fn file_size(&self, key: Key, object_size: u64) -> u64 {
        if key == HOME { object_size } else { self.striping.file_size(key, object_size) }
    }

    /// The size, if every object's size is known.
    pub(crate) fn known_size(&self) -> Option<u64> {
        let mut size = 0;
        for key in self.keys() {
            let object = self.object(key)?;
            if !object.knows_end() {
                return None;
            }
            size = size.max(self.file_size(key, object.size));
        }
        Some(size)
    }

    /// The same, if it is also what others see.
    pub(crate) fn shown_size(&self) -> Option<u64> {
        let shows = |key| self.object(key).is_some_and(Object::shows_end);
        self.known_size().filter(|_| self.keys().into_iter().all(shows))
    }

    /// Whether a change of the resident file is in flight that takes effect here only when it is answered: a write that
    /// bypasses the cache, or a truncation. Until then only the metadata target knows what others see. Nothing is
    /// buffered during a truncation.
    pub(crate) fn home_is_changing(&self) -> bool {
        self.home.pages.is_changing() || self.is_cut()
    }

    /// Whether the resident file is being truncated: an operation has the exclusive turn, and the fetches that were in
    /// flight when it took it have ended. A later read may find its bytes gone.
    pub(crate) fn is_cut(&self) -> bool {
        let has_turn = |owner| self.home.fetches.iter().all(|fetch| fetch.owner == owner);
        self.resident() && !self.leaving && self.exclusive.is_some_and(has_turn)
    }

    /// Why something of the file cannot be written back at present.
    pub(crate) fn unwritable(&self) -> Option<Errno> {
        self.home.unwritable.or_else(|| self.objects.iter().find_map(|object| object.unwritable))
    }

    pub(crate) fn fail(&mut self, errno: Errno) {
        self.errors = self.errors.wrapping_add(1);
        self.last_error = errno;
        self.error_unreported = true;
    }
}

/// The size and times of a resident file's data, from its attributes.
pub(crate) fn home_lvb(attr: &Attr) -> Lvb {
    Lvb {
        size: attr.size,
        blocks: attr.blocks,
        atime_ns: attr.atime_ns,
        mtime_ns: attr.mtime_ns,
        ctime_ns: attr.data_changed_ns(),
    }
}

impl Object {
    /// A lock on the object was granted.
    pub(crate) fn locked(&mut self, lock: &HeldLock, lvb: Option<&Lvb>, number: u64) {
        let fresh = self.locks.is_empty();
        let (knew, floor) = (self.knows_end(), self.size_floor());
        self.locks.retain(|held| held.cookie != lock.cookie);
        self.locks.push(*lock);
        let covered = lock_range(lock);
        match lvb {
            // It shows a state from before a change that this client knows of, or may: the size has to be requested.
            Some(lvb) if (fresh && lvb.ctime_ns < self.ctime_ns) || (!knew && number < self.changed) => {
                self.size_exact = false;
            }
            Some(lvb) if fresh || (!knew && covered.end == u64::MAX && covered.start <= lvb.size) => {
                self.set_size(lvb);
            }
            Some(lvb) => {
                // A client that had the end locked already knows the size: nobody else can have changed it. The answer
                // may show a state from before an own truncation in flight, though others have written elsewhere since.
                if !knew {
                    // Sizes seen beyond our other locks may have been truncated since, and must not count below this
                    // lock.
                    self.size = floor.max(lvb.size);
                }
                self.set_times(lvb);
            }
            None if fresh => self.size_exact = false,
            None => {}
        }
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
