//! What the data cache keeps of a file: its objects with their pages, locks and sizes.
//!
//! # Sizes
//! `Object::size` is exact while a lock covers the object from there to its end (`Object::knows_end`) and nothing made it
//! doubtful (`size_exact`: a write that failed). Otherwise it is what was last heard, and this much is still true:
//! *bytes at or beyond it that lie under a lock of ours are zeros*, because nobody else can have written them.
//!
//! What a request writes that does not come from the cache counts here once it is answered, and others may see it before at the target.
//! So while one is in flight that may have moved the end, the target is asked (`Object::shows_end`), and what it says counts from then on
//! (`Object::glimpsed`).

use core::ops::Range;
use proto::msg::{Attr, Extent, Layout, LockMode, Lvb, ObjectId, Policy, Resource, ResourceKind};
use proto::{Bytes, Errno, Fid, Transno};
use smallvec::SmallVec;
use stdx::Instant;

use dlm::client::HeldLock;

use super::lanes::{ClockEntry, DataState, Foreign};
use super::pages::{Evicted, Pages};
use super::read_ahead::ReadAhead;
use super::striping::Striping;
use crate::cx::Step;
use crate::imports::Dest;
use crate::op::{OpId, WaitKey};
use crate::world::World;

/// Which object of a file: a stripe, or [`HOME`].
pub(super) type Key = u32;
/// The resident file on the metadata target.
pub(super) const HOME: Key = u32::MAX;
/// Everything.
pub(super) const ALL: Range<u64> = 0..u64::MAX;

/// Woken when memory for dirty data becomes free.
pub(super) const BUDGET: WaitKey = WaitKey::Data(0);

/// Woken when anything about the data of a node changes.
pub(super) fn node_key(ino: u64) -> WaitKey {
    WaitKey::Data(ino)
}

/// A read of the target in flight.
#[derive(Debug)]
pub(super) struct Fetch {
    pub owner: OpId,
    pub step: Step,
    pub range: Range<u64>,
    /// What was written or dropped here since it was sent: the reply is too old for these bytes.
    pub voids: SmallVec<[Range<u64>; 1]>,
}

/// One object of a file.
#[derive(Debug)]
pub(super) struct Object {
    pub dest: Dest,
    pub resource: Resource,
    pub pages: Pages,
    pub locks: SmallVec<[HeldLock; 1]>,
    pub size: u64,
    pub size_exact: bool,
    pub blocks: u64,
    pub atime_ns: i64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    pub fetches: Vec<Fetch>,
    /// Locks that operations have asked for.
    pub asked: Vec<(OpId, LockMode, Range<u64>)>,
    /// Greatest transno of a change of this object; of any change of its target, from before it was known here.
    pub transno: Transno,
    /// The moment at which the last change of ours was answered. What was asked for before may tell what was before that.
    pub changed: u64,
    pub foreign: Foreign,
    /// Somebody else used it lately: no use in asking for a lock only to know its size.
    pub contended_until: Instant,
    /// Why dirty bytes could not be written back when that was tried last. They stay dirty and are tried again.
    pub unwritable: Option<Errno>,
    /// Attempts to write back that failed; starts again at 0 after many.
    pub failures: u16,
}

/// Bytes that a lock covers, as a half-open range.
pub(super) fn lock_range(lock: &HeldLock) -> Range<u64> {
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

    /// Its name on its target.
    pub fn id(&self) -> ObjectId {
        ObjectId { fid: self.resource.fid, stripe: self.resource.stripe }
    }

    /// The number in its name, for steps of operations: another object never has it.
    pub fn number(&self) -> u64 {
        u64::from(self.resource.stripe)
    }

    /// One of the locks that cover `range` in `mode` together, called back or not. Neighbouring narrow locks count
    /// as one: dirty bytes of both may travel in one request.
    pub fn covering(&self, mode: LockMode, range: &Range<u64>) -> Option<&HeldLock> {
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
    pub fn end_covered(&self) -> bool {
        self.locks.iter().any(|lock| {
            let covered = lock_range(lock);
            covered.end == u64::MAX && covered.start <= self.size
        })
    }

    /// Whether `size` is the size.
    pub fn knows_end(&self) -> bool {
        self.size_exact && self.end_covered()
    }

    /// Whether `size` is what others are shown, too: no change of ours in flight may have moved the end at the target already.
    pub fn shows_end(&self) -> bool {
        self.knows_end() && self.pages.changes_reach() <= self.size
    }

    /// The target has told the size while changes of ours may have been in flight. Nobody else can move an end that is known here, so it
    /// grows by them alone: `size` may be from before a cut.
    pub fn glimpsed(&mut self, size: u64) {
        if self.knows_end() {
            self.size = self.size.max(size.min(self.pages.changes_reach()));
        }
    }

    /// Bytes that the target does not have.
    pub fn unwritten(&self) -> u64 {
        let counts = self.pages.counts();
        counts.dirty + counts.writing
    }

    /// What it looks like from here.
    pub fn lvb(&self) -> Lvb {
        Lvb {
            size: self.size,
            blocks: self.blocks + self.unwritten().div_ceil(512),
            atime_ns: self.atime_ns,
            mtime_ns: self.mtime_ns,
            ctime_ns: self.ctime_ns,
        }
    }

    /// What it looks like as the target told it, with what is buffered here. What was shown once is true from then on.
    pub fn with_buffered(&mut self, told: &Lvb) -> Lvb {
        self.glimpsed(told.size);
        if self.unwritten() == 0 {
            return *told;
        }
        let own = self.lvb();
        let newer = (own.ctime_ns, own.mtime_ns) > (told.ctime_ns, told.mtime_ns);
        Lvb {
            size: told.size.max(self.size_floor()),
            blocks: told.blocks.max(own.blocks),
            ..if newer { own } else { *told }
        }
    }

    /// A size that is certainly not too large, however narrow our locks are.
    pub fn size_floor(&self) -> u64 {
        if !self.size_exact {
            return self.pages.buffered_end();
        }
        self.locks.iter().map(|lock| lock_range(lock).end.min(self.size)).max().unwrap_or(0)
    }

    /// A change of ours was answered.
    pub fn answered(&mut self, transno: Transno, moment: u64) {
        self.transno = self.transno.max(transno);
        self.changed = moment;
    }

    /// The target told the size, at a moment when nobody else could change it.
    pub fn set_size(&mut self, lvb: &Lvb) {
        self.size = lvb.size.max(self.pages.unwritten_end());
        self.size_exact = true;
        self.blocks = lvb.blocks;
        self.news(lvb);
    }

    /// Times and space as the target knows them; newer ones of our own stay.
    pub fn news(&mut self, lvb: &Lvb) {
        self.blocks = lvb.blocks;
        self.atime_ns = self.atime_ns.max(lvb.atime_ns);
        if (lvb.ctime_ns, lvb.mtime_ns) > (self.ctime_ns, self.mtime_ns) {
            self.ctime_ns = lvb.ctime_ns;
            self.mtime_ns = lvb.mtime_ns;
        }
    }

    /// A change at `now`.
    pub fn touch(&mut self, now_ns: i64) {
        self.ctime_ns = self.ctime_ns.max(now_ns);
        self.mtime_ns = self.ctime_ns;
    }

    /// Replies to reads that are in flight must not fill `range`.
    pub fn void_fetches(&mut self, range: &Range<u64>) {
        for fetch in &mut self.fetches {
            if fetch.range.start < range.end && range.start < fetch.range.end {
                fetch.voids.push(range.clone());
            }
        }
    }

    /// Bytes of a reply go into the cache, where they are missing, not void, and under a lock.
    pub fn fill(&mut self, fetch: &Fetch, data: &Bytes, mark: u64) {
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
pub(super) fn subtract(a: &Range<u64>, b: &Range<u64>) -> SmallVec<[Range<u64>; 2]> {
    let left = a.start..a.end.min(b.start).max(a.start);
    let right = a.start.max(b.end).min(a.end)..a.end;
    if b.start >= a.end || b.end <= a.start || b.is_empty() {
        return SmallVec::from_iter([a.clone()]);
    }
    [left, right].into_iter().filter(|r| !r.is_empty()).collect()
}

/// What the data cache knows of a file; `Node::data`.
#[derive(Debug)]
pub struct NodeData {
    pub(super) fid: Fid,
    /// Unknown until the first attributes.
    pub(super) layout: Option<Layout>,
    /// The layout is the file's as long as any lock on an object is held ([`super::layout`]).
    pub(super) layout_sure: bool,
    pub(super) striping: Striping,
    /// The resident file. Without meaning once the data has left.
    pub(super) home: Object,
    /// The stripes.
    pub(super) objects: Vec<Object>,
    /// Errors of write-back so far.
    pub(super) errors: u32,
    pub(super) last_error: Errno,
    /// No program was told of the last one.
    pub(super) error_untold: bool,
    pub(super) dirty: u64,
    pub(super) dirty_since: Option<Instant>,
    /// By open file.
    pub(super) read_ahead: Vec<(u64, ReadAhead)>,
    /// Changes of data by others than this operation wait.
    pub(super) exclusive: Option<OpId>,
    /// The data is being copied to its objects, under an EX lock.
    pub(super) leaving: bool,
    /// The job of the program that used the data last.
    pub(super) job: Box<str>,
    /// [`super::Task::Leave`] runs.
    pub(super) leave_asked: bool,
    /// Why the last attempt to leave failed.
    pub(super) leave_error: Option<Errno>,
    /// The kernel may hold pages.
    pub(super) kernel_pages: bool,
    /// It may have old ones, of a time when no program had the file open through them: the next open drops them.
    pub(super) old_pages: bool,
    /// Locks being given back.
    pub(super) recalls: u32,
    /// The kernel is dropping pages for one of them: its calls may use the lock meanwhile.
    pub(super) guests_welcome: bool,
    /// Bytes of pages that calls brought into the kernel since locks began to be given back.
    pub(super) fills: Vec<Range<u64>>,
}

impl NodeData {
    fn new(fid: Fid, mdt: Dest) -> NodeData {
        NodeData {
            fid,
            layout: None,
            layout_sure: false,
            striping: Striping::WHOLE,
            home: Object::new(mdt, Resource::inode(fid)),
            objects: Vec::new(),
            errors: 0,
            last_error: Errno::EIO,
            error_untold: false,
            dirty: 0,
            dirty_since: None,
            read_ahead: Vec::new(),
            exclusive: None,
            leaving: false,
            job: Box::default(),
            leave_asked: false,
            leave_error: None,
            kernel_pages: false,
            old_pages: false,
            recalls: 0,
            guests_welcome: false,
            fills: Vec::new(),
        }
    }

    /// Whether the data lies on the metadata target, as far as we know.
    pub fn resident(&self) -> bool {
        self.layout.as_ref().is_none_or(|layout| layout.resident)
    }

    fn set_layout(&mut self, layout: Layout, data: &DataState) {
        self.striping = Striping::new(layout.stripe_size, layout.osts.len());
        let fid = self.fid;
        self.objects = layout
            .osts
            .iter()
            .zip(0..)
            .map(|(ost, stripe)| (ost, layout.first_object.wrapping_add(stripe)))
            .map(|(ost, number)| {
                let dest = Dest::Ost(*ost);
                // The file may have been changed from here before, and forgotten.
                Object { transno: data.newest(dest), ..Object::new(dest, Resource::object(fid, number)) }
            })
            .collect();
        self.layout = Some(layout);
        self.layout_sure = false;
    }

    pub(super) fn object(&self, key: Key) -> Option<&Object> {
        if key == HOME { Some(&self.home) } else { self.objects.get(key as usize) }
    }

    pub(super) fn object_mut(&mut self, key: Key) -> Option<&mut Object> {
        if key == HOME { Some(&mut self.home) } else { self.objects.get_mut(key as usize) }
    }

    /// The objects that matter now.
    pub(super) fn keys(&self) -> Vec<Key> {
        if self.resident() { vec![HOME] } else { (0..self.objects.len() as u32).collect() }
    }

    /// The part of a file range on an object.
    pub(super) fn object_range(&self, key: Key, range: &Range<u64>) -> Range<u64> {
        if key == HOME {
            return range.clone();
        }
        let end = if range.end == u64::MAX { u64::MAX } else { self.striping.object_cut(key, range.end) };
        self.striping.object_cut(key, range.start)..end
    }

    /// The smallest file range with everything of an object's range.
    pub(super) fn file_range(&self, key: Key, range: &Range<u64>) -> Range<u64> {
        if key == HOME || range.is_empty() {
            return range.clone();
        }
        let end = if range.end == u64::MAX { u64::MAX } else { self.striping.file_size(key, range.end) };
        self.striping.file_offset(key, range.start)..end
    }

    /// How far the file reaches as far as one object knows.
    pub(super) fn file_size(&self, key: Key, object_size: u64) -> u64 {
        if key == HOME { object_size } else { self.striping.file_size(key, object_size) }
    }

    /// The size, if every object's is known.
    pub(super) fn known_size(&self) -> Option<u64> {
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

    /// The same, if it is also what others are shown.
    pub(super) fn shown_size(&self) -> Option<u64> {
        let shows = |key| self.object(key).is_some_and(Object::shows_end);
        self.known_size().filter(|_| self.keys().into_iter().all(shows))
    }

    /// Whether a change of the resident file is in flight that shows here only when it is answered: a write past the cache, or a cut.
    /// Until then only the metadata target knows what others are shown. Nothing is buffered while it is cut.
    pub(super) fn home_is_changing(&self) -> bool {
        self.home.pages.is_changing() || self.is_cut()
    }

    /// Whether the resident file is being cut: somebody has its turn, and those have ended who were fetching bytes when it took it. What is
    /// read then may be gone already.
    pub(super) fn is_cut(&self) -> bool {
        let has_turn = |owner| self.home.fetches.iter().all(|fetch| fetch.owner == owner);
        self.resident() && !self.leaving && self.exclusive.is_some_and(has_turn)
    }

    /// Why something of the file cannot be written back at present.
    pub(super) fn unwritable(&self) -> Option<Errno> {
        self.home.unwritable.or_else(|| self.objects.iter().find_map(|object| object.unwritable))
    }

    fn fail(&mut self, errno: Errno) {
        self.errors = self.errors.wrapping_add(1);
        self.last_error = errno;
        self.error_untold = true;
    }
}

/// Something that a program did to the file was lost, which the next fsync or close tells, or the end of the unmount.
pub(super) fn failed(w: &mut World, ino: u64, errno: Errno) {
    if w.unmounting {
        w.lost.get_or_insert(errno);
    }
    if let Some(file) = file_mut(w, ino) {
        file.fail(errno);
    }
}

/// The data of a node, made if it is a regular file (or not known to be anything else).
pub(super) fn ensure(w: &mut World, fid: Fid) -> &mut NodeData {
    let mdt = w.mdt_of(fid);
    let World { nodes, data, .. } = w;
    let node = nodes.obtain(fid);
    let layout = node.attr.as_ref().and_then(|attr| attr.layout.clone());
    node.data.get_or_insert_with(|| {
        let mut file = Box::new(NodeData::new(fid, mdt));
        if let Some(layout) = layout {
            file.set_layout(layout, data);
        }
        file
    })
}

/// The data of a node, if there is any.
pub(super) fn file(w: &World, ino: u64) -> Option<&NodeData> {
    w.nodes.get(ino)?.data.as_deref()
}

/// The same, to change. Pages are changed through [`edit`] only.
pub(super) fn file_mut(w: &mut World, ino: u64) -> Option<&mut NodeData> {
    w.nodes.get_mut(ino)?.data.as_deref_mut()
}

/// Changes an object, and counts what that does to memory.
pub(super) fn edit<R>(w: &mut World, ino: u64, key: Key, change: impl FnOnce(&mut Object) -> R) -> Option<R> {
    let World { nodes, data, now, .. } = w;
    let file = nodes.get_mut(ino)?.data.as_deref_mut()?;
    let object = file.object_mut(key)?;
    let before = object.pages.counts();
    let result = change(object);
    let after = object.pages.counts();
    if after.dirty + after.writing == 0 {
        object.unwritable = None;
    }
    if before != after {
        data.account(object.dest, before, after);
        file.dirty = file.dirty + after.dirty - before.dirty;
        match (file.dirty > 0, file.dirty_since) {
            (true, None) => {
                file.dirty_since = Some(*now);
                data.dirty_files.insert((*now, ino));
            }
            (false, Some(since)) => {
                file.dirty_since = None;
                data.dirty_files.remove(&(since, ino));
            }
            _ => {}
        }
        if after.dirty + after.writing < before.dirty + before.writing {
            w.wake(BUDGET);
        }
    }
    Some(result)
}

/// Clean bytes have a place in the eviction clock from now on.
pub(super) fn into_clock(w: &mut World, ino: u64, key: Key, range: Range<u64>, mark: u64) {
    w.data.clock.push_back(ClockEntry { ino, key, range, mark });
    if w.data.clock.len() > 2 * w.data.clock_swept + 4096 {
        let mut clock = core::mem::take(&mut w.data.clock);
        clock.retain(|e| {
            file(w, e.ino).and_then(|f| f.object(e.key)).is_some_and(|o| o.pages.has_mark(&e.range, e.mark))
        });
        w.data.clock_swept = clock.len();
        w.data.clock = clock;
    }
}

/// Drops clean bytes until they are within the bound.
pub(super) fn evict(w: &mut World) {
    let mut spared = 0;
    while w.data.clean > w.options.max_cached {
        let Some(entry) = w.data.clock.pop_front() else { return };
        let outcome = edit(w, entry.ino, entry.key, |object| object.pages.evict(&entry.range, entry.mark));
        if outcome == Some(Evicted::Used) {
            w.data.clock.push_back(entry);
            spared += 1;
            if spared > 2 * w.data.clock.len() {
                return;
            }
        }
    }
}

/// The layout may be a new one.
pub(super) fn take_layout(w: &mut World, ino: u64, layout: &Layout) {
    let Some(file) = file_mut(w, ino) else { return };
    let change = match &file.layout {
        None => true,
        Some(known) => {
            // Of a file that has objects, the last word counts: a change that was lost with its server may be undone.
            let newer = known.generation < layout.generation || (!known.resident && !layout.resident);
            (newer && *known != *layout) || (known.resident && !layout.resident)
        }
    };
    if !change {
        return;
    }
    if file.layout.is_none() || (layout.resident && file.resident()) {
        lay_out(w, ino, layout);
        return;
    }
    if layout.resident {
        return;
    }
    // The data left the metadata target. What we had of it was copied (by us), or was given up with the lock.
    let place = |layout: &Layout| (layout.first_object, layout.osts.clone());
    let same = file.layout.as_ref().is_some_and(|known| place(known) == place(layout));
    if same && file.resident() {
        file.striping = Striping::new(layout.stripe_size, layout.osts.len());
        file.layout = Some(layout.clone());
    } else {
        let old: Vec<(Dest, Resource)> = file.objects.iter().map(|object| (object.dest, object.resource)).collect();
        for key in 0..old.len() as Key {
            edit(w, ino, key, |object| object.pages.cut(&ALL));
        }
        lay_out(w, ino, layout);
        for (dest, resource) in old {
            crate::locks::give_back(w, dest, &resource);
        }
    }
    edit(w, ino, HOME, |home| {
        home.void_fetches(&ALL);
        home.pages.cut(&ALL);
    });
    w.wake(node_key(ino));
}

/// See [`super::attr_arrived`]. Their size is no news: only what came with or after the lock is ([`confirmed`]).
pub(super) fn attr_arrived(w: &mut World, ino: u64, attr: &Attr) {
    if let Some(layout) = &attr.layout
        && file(w, ino).is_some()
    {
        take_layout(w, ino, layout);
    }
}

/// Attributes that were asked for after the data lock came,
/// by the request of this number. False if a change of ours was answered meanwhile, which they may not show.
pub(super) fn confirmed(w: &mut World, ino: u64, attr: &Attr, number: u64) -> bool {
    attr_arrived(w, ino, attr);
    let Some(file) = file_mut(w, ino) else { return true };
    if !file.resident() || file.home.size_exact || file.home.locks.is_empty() {
        return true;
    }
    if number < file.home.changed {
        stdx::mark!("size_from_before_a_change");
        return false;
    }
    file.home.set_size(&home_lvb(attr));
    true
}

/// The data's view of a resident file's attributes.
pub(super) fn home_lvb(attr: &Attr) -> Lvb {
    Lvb {
        size: attr.size,
        blocks: attr.blocks,
        atime_ns: attr.atime_ns,
        mtime_ns: attr.mtime_ns,
        ctime_ns: attr.data_changed_ns(),
    }
}

/// Which file and object a resource belongs to. `None` for objects that a file no longer has, or not yet.
pub(super) fn place_of(w: &World, resource: &Resource) -> Option<(u64, Key)> {
    let ino = resource.fid.ino();
    match resource.kind() {
        ResourceKind::Inode => Some((ino, HOME)),
        ResourceKind::Object => {
            let layout = file(w, ino)?.layout.as_ref()?;
            let stripe = resource.stripe.wrapping_sub(layout.first_object);
            ((stripe as usize) < layout.osts.len()).then_some((ino, stripe))
        }
        ResourceKind::Flock => None,
    }
}

/// See [`super::lock_granted`].
pub(super) fn lock_granted(w: &mut World, lock: &HeldLock, lvb: Option<&Lvb>) {
    if lock.resource.kind() == ResourceKind::Flock {
        return;
    }
    ensure(w, lock.resource.fid);
    let Some((ino, key)) = place_of(w, &lock.resource) else { return };
    let number = w.taking_in.number();
    // Of a file that is no longer resident, an enqueue on the metadata target tells no size.
    let dest = edit(w, ino, key, |object| {
        object.foreign.hear();
        object.locked(lock, lvb, number);
        object.dest
    });
    if let Some(dest) = dest {
        w.data.lane(dest).foreign.hear();
    }
}

/// See [`super::lock_changed`].
pub(super) fn lock_changed(w: &mut World, lock: &HeldLock) {
    let Some((ino, key)) = place_of(w, &lock.resource) else { return };
    edit(w, ino, key, |object| {
        for held in object.locks.iter_mut().filter(|held| held.cookie == lock.cookie) {
            *held = *lock;
        }
    });
}

/// See [`super::layout_settled`].
pub(super) fn layout_settled(w: &mut World, ino: u64, layout: &Layout) {
    if file(w, ino).is_some_and(NodeData::resident) {
        lay_out(w, ino, layout);
    }
}

fn lay_out(w: &mut World, ino: u64, layout: &Layout) {
    let World { nodes, data, .. } = w;
    if let Some(file) = nodes.get_mut(ino).and_then(|node| node.data.as_deref_mut()) {
        file.set_layout(layout.clone(), data);
    }
}

impl Object {
    /// A lock on it was granted.
    fn locked(&mut self, lock: &HeldLock, lvb: Option<&Lvb>, number: u64) {
        let fresh = self.locks.is_empty();
        let (knew, floor) = (self.knows_end(), self.size_floor());
        self.locks.retain(|held| held.cookie != lock.cookie);
        self.locks.push(*lock);
        let covered = lock_range(lock);
        match lvb {
            // It tells what was before a change that we know of, or may: the size has to be asked for.
            Some(lvb) if (fresh && lvb.ctime_ns < self.ctime_ns) || (!knew && number < self.changed) => {
                self.size_exact = false;
            }
            Some(lvb) if fresh || (!knew && covered.end == u64::MAX && covered.start <= lvb.size) => {
                self.set_size(lvb);
            }
            Some(lvb) => {
                // A client that had the end locked already knows the size: nobody else can have changed it. The answer may tell
                // what was before a cut of ours that is on its way, though others have written elsewhere since.
                if !knew {
                    // What else was heard of beyond our other locks may have been cut since, and must not count below this one.
                    self.size = floor.max(lvb.size);
                }
                self.news(lvb);
            }
            None if fresh => self.size_exact = false,
            None => {}
        }
    }
}

/// A lock is no longer ours: its bytes go, dirty ones too. What another lock that is ours alone covers stays: nobody else has changed it.
pub(super) fn forget_lock(w: &mut World, ino: u64, key: Key, lock: &HeldLock) {
    let range = lock_range(lock);
    edit(w, ino, key, |object| {
        object.locks.retain(|held| held.cookie != lock.cookie);
        let last = object.locks.is_empty();
        let range = if last { ALL } else { range };
        object.void_fetches(&range);
        let alone = object.locks.iter().filter(|held| dlm::mode::covers(held.mode, LockMode::Pw)).map(lock_range);
        let keep: SmallVec<[Range<u64>; 2]> = alone.collect();
        let mut gone: SmallVec<[Range<u64>; 2]> = SmallVec::from_iter([range]);
        for part in &keep {
            gone = gone.iter().flat_map(|range| subtract(range, part)).collect();
        }
        for range in &gone {
            object.pages.cut(range);
        }
        if last {
            object.size_exact = false;
        }
    });
    if let Some(file) = file_mut(w, ino)
        && file.layout_sure
        && file.objects.iter().all(|object| object.locks.is_empty())
    {
        file.layout_sure = false;
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
