//! The queues of a session over io_uring: buffers for requests and answers, and the choice of the thread that sends an answer.
//!
//! A queue belongs to a processor and has entries. An entry is a buffer for one request and its answer. It is owned by the kernel,
//! by the handler (as a [`Slot`]), or by the list of a thread that will send it back ([`Queues::take_answered`]).
//!
//! # Which thread sends an answer
//!
//! Each queue has a thread with a ring of its own. The kernel accepts an answer from any ring, whatever queue its entry belongs
//! to, and delivers the entry's next request to the ring that the answer came from; it prefers the entry that was returned
//! last. So a thread that reads the answer to another queue's request (one thread reads the socket for all queues) sends it
//! itself instead of waking the queue's own thread; the entry, and with it the requests of that processor, move to the thread that is
//! awake anyway. [`route`] has the rule. An entry returns to its own queue when a request in it woke a thread that had nothing else to
//! do, because the thread on the program's own processor is woken faster.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::abi;

/// Entries of a queue whose memory is kept after a large transfer.
const WARM: u16 = 8;
/// A transfer larger than this allocates more memory than an ordinary request.
const LARGE: u64 = 64 << 10;

/// The head of an entry, which the kernel and this process write alternately.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Head {
    /// [`abi::InHeader`] or [`abi::OutHeader`].
    pub(crate) header: [u8; abi::RING_HEADER],
    /// The leading record of the request.
    pub(crate) record: [u8; abi::RING_RECORD],
    pub(crate) about: abi::RingInOut,
    /// Not visible to the kernel: the size of the last request or its answer, whichever was larger.
    pub(crate) transferred: u64,
}

/// Bytes of a head that the kernel knows.
const KERNEL_HEAD: usize = std::mem::offset_of!(Head, transferred);

/// Bytes from one head to the next.
const HEAD_STRIDE: usize = 512;
const _: () = assert!(KERNEL_HEAD == 288 && size_of::<Head>() <= HEAD_STRIDE);

/// Identifies an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EntryId {
    pub(crate) queue: u16,
    pub(crate) index: u16,
}

/// All queues of a session, and whether it has ended.
pub(crate) struct Queues {
    all: Vec<Queue>,
    depth: u16,
    /// Set by the first thread that sees the session end.
    ended: AtomicBool,
}

/// A processor's queue, and the answered entries that other threads leave for its thread.
struct Queue {
    memory: Memory,
    payload_size: usize,
    depth: u16,
    /// Where each entry's head and payload are, for the kernel.
    places: Vec<[libc::iovec; 2]>,
    back: Mutex<Back>,
    /// Wakes the queue's thread.
    wake: OwnedFd,
}

/// Answered entries that a queue's thread must send back.
struct Back {
    answered: Vec<EntryId>,
    /// The thread sleeps and must be woken.
    sleeps: bool,
}

#[allow(unsafe_code)] // its pointers refer to its own memory
// SAFETY: an entry is used by one owner at a time: the kernel, or the one `Slot`, or the thread that sends it back.
unsafe impl Send for Queue {}
#[allow(unsafe_code)] // as above
// SAFETY: as above; all other fields are locked or never change.
unsafe impl Sync for Queue {}

/// An anonymous mapping, whose pages are not allocated until they are used.
struct Memory {
    start: NonNull<u8>,
    size: usize,
}

impl Memory {
    #[allow(unsafe_code)] // a mapping at an address that the kernel chooses affects nothing else
    fn new(size: usize) -> io::Result<Memory> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: no address is requested.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, flags)?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Memory { start, size })
    }

    /// Frees the pages of a range, which then reads as zeros.
    #[allow(unsafe_code)] // the range is ours and its contents are not needed
    fn give_back(&self, offset: usize, size: usize) {
        // SAFETY: within the mapping.
        let _ = unsafe { rustix::mm::madvise(self.start.as_ptr().add(offset).cast(), size, Advice::LinuxDontNeed) };
    }
}

impl Drop for Memory {
    #[allow(unsafe_code)] // nobody has a pointer into it any more
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this size.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.size) };
    }
}

thread_local! {
    /// The session (by the address of its queues) and the queue that this thread serves.
    static SERVED: Cell<Option<(usize, u16)>> = const { Cell::new(None) };
}

/// Which queue's thread sends an answer, and whether it must be woken for that. `here` is the queue of the thread that
/// has the answer, `home` the queue of the entry.
///
/// | the thread that has the answer | the queue's own thread | sent by | woken |
/// |---|---|---|---|
/// | the queue's own thread | | itself | no |
/// | any other | is awake | the queue's own, before it sleeps | no |
/// | a queue's thread | sleeps | the thread that has it | no |
/// | a queue's thread, and the entry must return home | sleeps | the queue's own | yes |
/// | a thread without a queue | sleeps | the queue's own | yes |
fn route(here: Option<u16>, home: u16, home_sleeps: bool, returns_home: bool) -> (u16, bool) {
    match here {
        Some(here) if here != home && home_sleeps && !returns_home => (here, false),
        _ => (home, home_sleeps && here != Some(home)),
    }
}

/// The right to answer the request in one entry.
pub(crate) struct Slot {
    queues: Arc<Queues>,
    id: EntryId,
    returns_home: bool,
}

impl Slot {
    pub(crate) fn new(queues: Arc<Queues>, id: EntryId, returns_home: bool) -> Slot {
        Slot { queues, id, returns_home }
    }

    /// The request's data.
    ///
    /// # Safety
    /// The result must not be used after the slot has answered, because the kernel then owns the entry.
    #[allow(unsafe_code)] // see above
    pub(crate) unsafe fn payload<'a>(&self, size: usize) -> &'a [u8] {
        let queue = self.queues.queue(self.id);
        // SAFETY: within the mapping, which lives as long as the slot; nobody writes while this slot has not answered.
        unsafe { std::slice::from_raw_parts(queue.payload(self.id.index), size.min(queue.payload_size)) }
    }

    /// Writes the answer into the entry and sends the entry back.
    pub(crate) fn answer(self, unique: u64, errno: i32, parts: &[&[u8]]) {
        let Slot { queues, id, returns_home } = self;
        let size: usize = parts.iter().map(|part| part.len()).sum();
        let fits = size <= queues.queue(id).payload_size;
        if !fits {
            tracing::warn!("an answer of {size} bytes is larger than what the kernel has room for");
        }
        let (errno, size) = if fits { (errno, size) } else { (libc::EIO, 0) };
        let header = abi::OutHeader { len: (size_of::<abi::OutHeader>() + size) as u32, error: -errno, unique };
        queues.queue(id).write_answer(id.index, &header, if fits { parts } else { &[] }, size);
        queues.send_back(id, returns_home);
    }
}

impl Queues {
    /// `count` queues, each with `depth` entries of `payload_size` bytes.
    pub(crate) fn new(count: u16, depth: u16, payload_size: usize) -> io::Result<Queues> {
        let all = (0..count).map(|_| Queue::new(depth, payload_size)).collect::<io::Result<_>>()?;
        Ok(Queues { all, depth, ended: AtomicBool::new(false) })
    }

    pub(crate) fn count(&self) -> u16 {
        self.all.len() as u16
    }

    /// Entries of each queue.
    pub(crate) fn depth(&self) -> u16 {
        self.depth
    }

    fn queue(&self, id: EntryId) -> &Queue {
        &self.all[usize::from(id.queue)]
    }

    /// An entry's head and payload, for the kernel.
    pub(crate) fn places(&self, id: EntryId) -> &[libc::iovec; 2] {
        &self.queue(id).places[usize::from(id.index)]
    }

    /// The request in an entry, and its number of data bytes. Only for the entry's owner.
    pub(crate) fn request(&self, id: EntryId) -> (abi::InHeader, [u8; abi::RING_RECORD], usize) {
        self.queue(id).request(id.index)
    }

    /// The kernel's number of the request in an entry. Only for the entry's owner.
    pub(crate) fn commit_id(&self, id: EntryId) -> u64 {
        self.queue(id).commit_id(id.index)
    }

    /// Whether an entry's memory should be freed: it had a large transfer and is not one of the warm entries.
    pub(crate) fn is_cold(&self, id: EntryId) -> bool {
        id.index >= WARM && self.queue(id).transferred(id.index) > LARGE
    }

    /// Frees the memory of an entry's payload. Only for the entry's owner.
    pub(crate) fn cool(&self, id: EntryId) {
        let queue = self.queue(id);
        queue.memory.give_back(queue.payload_offset(id.index), queue.payload_size);
    }

    /// Records that this thread serves that queue.
    pub(crate) fn set_served(&self, queue: u16) {
        SERVED.set(Some((std::ptr::from_ref(self).addr(), queue)));
    }

    /// The queue that this thread serves.
    fn served_queue(&self) -> Option<u16> {
        SERVED.get().filter(|(session, _)| *session == std::ptr::from_ref(self).addr()).map(|(_, queue)| queue)
    }

    fn send_back(&self, id: EntryId, returns_home: bool) {
        let (home, here) = (self.queue(id), self.served_queue());
        let mut back = home.back.lock();
        match route(here, id.queue, back.sleeps, returns_home) {
            (thread, wake) if thread == id.queue => {
                back.answered.push(id);
                if wake {
                    // Threads with further entries for it see that it is awake.
                    back.sleeps = false;
                    home.wake();
                }
            }
            (thread, _) => {
                drop(back);
                self.all[usize::from(thread)].back.lock().answered.push(id);
            }
        }
    }

    /// Takes the answered entries that a queue's thread must send back.
    pub(crate) fn take_answered(&self, queue: u16, into: &mut Vec<EntryId>) {
        std::mem::swap(&mut self.all[usize::from(queue)].back.lock().answered, into);
    }

    /// Whether that thread has entries to send back; also true while another thread holds the lock.
    pub(crate) fn has_answered(&self, queue: u16) -> bool {
        self.all[usize::from(queue)].back.try_lock().is_none_or(|back| !back.answered.is_empty())
    }

    /// Whether a queue's thread may sleep now. If so, other threads wake it when they leave an entry for it.
    pub(crate) fn falls_asleep(&self, queue: u16) -> bool {
        let mut back = self.all[usize::from(queue)].back.lock();
        back.sleeps = back.answered.is_empty() && !self.has_ended();
        back.sleeps
    }

    /// A queue's thread is awake again and needs no wake-up.
    pub(crate) fn wakes_up(&self, queue: u16) {
        self.all[usize::from(queue)].back.lock().sleeps = false;
    }

    /// A descriptor that becomes readable when that queue's thread must wake up.
    pub(crate) fn alarm(&self, queue: u16) -> &OwnedFd {
        &self.all[usize::from(queue)].wake
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Ends the session: wakes all threads, including those that get nothing from the kernel because they hold none of its
    /// entries.
    pub(crate) fn end(&self) {
        if !self.ended.swap(true, Ordering::SeqCst) {
            self.all.iter().for_each(Queue::wake);
        }
    }
}

impl Queue {
    fn new(depth: u16, payload_size: usize) -> io::Result<Queue> {
        let memory = Memory::new(heads_size(depth) + usize::from(depth) * payload_size)?;
        let mut queue = Queue {
            memory,
            payload_size,
            depth,
            places: Vec::new(),
            back: Mutex::new(Back { answered: Vec::with_capacity(depth.into()), sleeps: false }),
            wake: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        };
        queue.places = (0..depth)
            .map(|entry| {
                [
                    libc::iovec { iov_base: queue.head(entry).cast(), iov_len: KERNEL_HEAD },
                    libc::iovec { iov_base: queue.payload(entry).cast(), iov_len: payload_size },
                ]
            })
            .collect();
        Ok(queue)
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn payload_offset(&self, entry: u16) -> usize {
        heads_size(self.depth) + usize::from(entry) * self.payload_size
    }

    /// An entry's head. It is only read and written through this pointer, never borrowed, because the kernel writes there, too.
    #[allow(unsafe_code)] // the place is within the mapping
    fn head(&self, entry: u16) -> *mut Head {
        assert!(entry < self.depth);
        // SAFETY: within the mapping, and aligned.
        unsafe { self.memory.start.as_ptr().add(usize::from(entry) * HEAD_STRIDE).cast() }
    }

    /// An entry's payload.
    #[allow(unsafe_code)] // the place is within the mapping
    fn payload(&self, entry: u16) -> *mut u8 {
        assert!(entry < self.depth);
        // SAFETY: within the mapping.
        unsafe { self.memory.start.as_ptr().add(self.payload_offset(entry)) }
    }

    #[allow(unsafe_code)] // copies out of the entry
    fn request(&self, entry: u16) -> (abi::InHeader, [u8; abi::RING_RECORD], usize) {
        let head = self.head(entry);
        // SAFETY: within the mapping and aligned; any bytes are valid, and only the entry's owner, the caller, uses it.
        let (header, record, size) = unsafe {
            ((&raw const (*head).header).read(), (&raw const (*head).record).read(), (*head).about.payload_size)
        };
        // SAFETY: as above.
        unsafe { (&raw mut (*head).transferred).write(size.into()) };
        let header = abi::InHeader::read_from_prefix(&header).map(|(header, _)| header).unwrap_or_default();
        (header, record, size as usize)
    }

    #[allow(unsafe_code)] // copies out of the entry
    fn commit_id(&self, entry: u16) -> u64 {
        // SAFETY: as in `request`.
        unsafe { (*self.head(entry)).about.commit_id }
    }

    #[allow(unsafe_code)] // copies out of the entry
    fn transferred(&self, entry: u16) -> u64 {
        // SAFETY: as in `request`.
        unsafe { (*self.head(entry)).transferred }
    }

    /// Copies an answer of `size` bytes into an entry.
    #[allow(unsafe_code)] // copies into the entry
    fn write_answer(&self, entry: u16, header: &abi::OutHeader, parts: &[&[u8]], size: usize) {
        assert!(size <= self.payload_size && size == parts.iter().map(|part| part.len()).sum::<usize>());
        let (head, mut room) = (self.head(entry), self.payload(entry));
        for part in parts {
            // SAFETY: all parts together fit into the payload, and do not overlap it: the request's data
            // cannot be borrowed any more when its slot answers.
            unsafe {
                room.copy_from_nonoverlapping(part.as_ptr(), part.len());
                room = room.add(part.len());
            }
        }
        // SAFETY: within the mapping, aligned, and large enough for the header.
        unsafe {
            (&raw mut (*head).header).cast::<abi::OutHeader>().write_unaligned(*header);
            (*head).about.payload_size = size as u32;
            (*head).transferred = (*head).transferred.max(size as u64);
        }
    }
}

/// Bytes of all heads, before the first payload: whole pages, because payloads are freed page by page.
fn heads_size(depth: u16) -> usize {
    (usize::from(depth) * HEAD_STRIDE).next_multiple_of(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_wakes_a_thread_only_if_no_awake_one_may_send_it() {
        const HOME: u16 = 1;
        for (here, sleeps, returns_home, sent_by, woken) in [
            (Some(HOME), false, false, HOME, false),
            (Some(HOME), true, true, HOME, false),
            (Some(2), false, false, HOME, false),
            (Some(2), false, true, HOME, false),
            (Some(2), true, false, 2, false),
            (Some(2), true, true, HOME, true),
            (None, false, false, HOME, false),
            (None, true, false, HOME, true),
            (None, true, true, HOME, true),
        ] {
            let case = format!("{here:?}, sleeps {sleeps}, returns home {returns_home}");
            assert_eq!(route(here, HOME, sleeps, returns_home), (sent_by, woken), "{case}");
        }
    }

    #[test]
    fn a_thread_that_falls_asleep_is_woken_once_for_all_that_comes_meanwhile() {
        let queues = Queues::new(2, 4, 4096).unwrap();
        let id = |index| EntryId { queue: 1, index };
        let alarms = || rustix::io::read(queues.alarm(1), &mut [0; 8]).is_ok();
        queues.send_back(id(0), false);
        assert!(!alarms(), "it is awake");
        assert!(!queues.falls_asleep(1), "something is left to it");
        let mut taken = Vec::new();
        queues.take_answered(1, &mut taken);
        assert_eq!(taken, [id(0)]);
        assert!(queues.falls_asleep(1));
        queues.send_back(id(1), false);
        assert!(alarms());
        queues.send_back(id(2), false);
        assert!(!alarms(), "it was woken before");
        queues.end();
        queues.take_answered(1, &mut taken);
        assert!(alarms() && !queues.falls_asleep(1), "the session is over");
    }

    #[test]
    fn a_thread_sends_the_answers_of_a_queue_that_sleeps() {
        let queues = Queues::new(2, 4, 4096).unwrap();
        let mut taken = Vec::new();
        let left = |queue, taken: &mut Vec<EntryId>| {
            taken.clear();
            queues.take_answered(queue, taken);
            taken.len()
        };
        assert!(queues.falls_asleep(1));
        queues.set_served(0);
        queues.send_back(EntryId { queue: 1, index: 0 }, false);
        assert_eq!((left(0, &mut taken), left(1, &mut taken)), (1, 0));
        queues.send_back(EntryId { queue: 1, index: 0 }, true);
        assert_eq!((left(0, &mut taken), left(1, &mut taken)), (0, 1), "it goes home");
        let others = Queues::new(2, 4, 4096).unwrap();
        assert_eq!(others.served_queue(), None, "another session");
    }
}
