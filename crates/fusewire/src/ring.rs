//! Requests and answers over io_uring: a queue for each processor, served by a thread on it.
//!
//! A queue has entries. Each is room for one request and its answer, and belongs to the kernel, to the handler (as a
//! [`Slot`]), or is on its way back in [`Queue::back`]. Only the queue's own thread talks to its ring; an answer from
//! another thread wakes it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::abi;
use crate::device::{Device, hand_over};
use crate::reply::Channel;
use crate::request::Request;
use crate::session::{Attend, Handler};

/// Entries of a queue whose memory is kept after a large transfer.
const WARM: u16 = 8;
/// A transfer that touches more than what a request needs anyway.
const LARGE: u64 = 64 << 10;
/// Marks of completions that belong to no entry.
const WOKEN: u64 = u64::MAX;
const POLL_IN: u32 = libc::POLLIN as u32;
const COMPANION: u64 = u64::MAX - 1;

/// The head of an entry, which the kernel and we write in turn.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    /// [`abi::InHeader`] or [`abi::OutHeader`].
    header: [u8; abi::RING_HEADER],
    /// The record that leads the request.
    record: [u8; abi::RING_RECORD],
    about: abi::RingInOut,
    /// Beyond what the kernel sees: the larger of the last request and its answer.
    transferred: u64,
}

/// Bytes of a head that the kernel knows.
const KERNEL_HEAD: usize = std::mem::offset_of!(Head, transferred);

/// Bytes from one head to the next.
const HEAD_STRIDE: usize = 512;
const _: () = assert!(KERNEL_HEAD == 288 && size_of::<Head>() <= HEAD_STRIDE);
const _: () = assert!(size_of::<squeue::Entry128>() == 128);

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// A processor's queue.
pub(crate) struct Queue {
    id: u16,
    depth: u16,
    payload_size: usize,
    memory: Memory,
    /// Where each entry's head and payload are, for the kernel.
    places: Vec<[libc::iovec; 2]>,
    /// Entries that are answered.
    back: Mutex<Vec<u16>>,
    /// Tells the queue's thread that there are some.
    wake: OwnedFd,
    owner: OnceLock<ThreadId>,
}

#[allow(unsafe_code)] // its pointers lead into memory of its own
// SAFETY: an entry is used by one owner at a time: the kernel, or the one `Slot`, or the queue's thread.
unsafe impl Send for Queue {}
#[allow(unsafe_code)] // as above
// SAFETY: as above; all else is locked or never changes.
unsafe impl Sync for Queue {}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue({})", self.id)
    }
}

/// Memory of its own, which costs nothing until it is used.
struct Memory {
    start: NonNull<u8>,
    size: usize,
}

impl Memory {
    #[allow(unsafe_code)] // a mapping at a place that the kernel chooses touches nothing else
    fn new(size: usize) -> io::Result<Memory> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: no address is asked for.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, flags)?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Memory { start, size })
    }

    /// Gives the pages of a part back; it reads as zeros then.
    #[allow(unsafe_code)] // the part is ours and holds nothing that is needed
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

/// The right to answer the request in one entry.
pub(crate) struct Slot {
    queue: Arc<Queue>,
    entry: u16,
}

impl Slot {
    /// Writes the answer into the entry and sends that back.
    pub(crate) fn answer(self, unique: u64, errno: i32, parts: &[&[u8]]) {
        let Slot { queue, entry } = self;
        let size: usize = parts.iter().map(|part| part.len()).sum();
        let fits = size <= queue.payload_size;
        if !fits {
            tracing::warn!("an answer of {size} bytes is larger than what the kernel has room for");
        }
        let (errno, size) = if fits { (errno, size) } else { (libc::EIO, 0) };
        let mut room = queue.payload(entry, size);
        for part in parts.iter().filter(|_| fits) {
            let (place, rest) = room.split_at_mut(part.len());
            place.copy_from_slice(part);
            room = rest;
        }
        let header = abi::OutHeader { len: (size_of::<abi::OutHeader>() + size) as u32, error: -errno, unique };
        let head = queue.head(entry);
        let _ = header.write_to_prefix(&mut head.header);
        head.about.payload_size = size as u32;
        head.transferred = head.transferred.max(size as u64);
        let mut back = queue.back.lock();
        back.push(entry);
        if back.len() == 1 && queue.owner.get() != Some(&std::thread::current().id()) {
            let _ = rustix::io::write(&queue.wake, &1u64.to_ne_bytes());
        }
    }
}

impl Queue {
    /// A queue with room for `depth` requests of `payload_size` bytes.
    pub(crate) fn new(id: u16, depth: u16, payload_size: usize) -> io::Result<Queue> {
        let memory = Memory::new(heads_size(depth) + usize::from(depth) * payload_size)?;
        let mut queue = Queue {
            id,
            depth,
            payload_size,
            memory,
            places: Vec::new(),
            back: Mutex::new(Vec::with_capacity(depth.into())),
            wake: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            owner: OnceLock::new(),
        };
        queue.places = (0..depth)
            .map(|entry| {
                let head: *mut Head = queue.head(entry);
                let payload = queue.payload(entry, payload_size);
                [
                    libc::iovec { iov_base: head.cast(), iov_len: KERNEL_HEAD },
                    libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() },
                ]
            })
            .collect();
        Ok(queue)
    }

    fn payload_offset(&self, entry: u16) -> usize {
        heads_size(self.depth) + usize::from(entry) * self.payload_size
    }

    /// An entry's head. For its one owner.
    #[allow(unsafe_code, clippy::mut_from_ref)] // memory that is shared with the kernel cannot be borrowed otherwise
    fn head(&self, entry: u16) -> &mut Head {
        debug_assert!(entry < self.depth);
        // SAFETY: within the mapping, aligned, and only the entry's owner asks.
        unsafe { self.memory.start.add(usize::from(entry) * HEAD_STRIDE).cast().as_mut() }
    }

    /// The first `size` bytes of an entry's payload. For its one owner.
    #[allow(unsafe_code, clippy::mut_from_ref)] // as above
    fn payload(&self, entry: u16, size: usize) -> &mut [u8] {
        debug_assert!(entry < self.depth);
        let size = size.min(self.payload_size);
        // SAFETY: within the mapping, and only the entry's owner asks.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start.as_ptr().add(self.payload_offset(entry)), size) }
    }
}

/// Bytes of all heads, before the first payload: whole pages, since payloads are given back page by page.
fn heads_size(depth: u16) -> usize {
    (usize::from(depth) * HEAD_STRIDE).next_multiple_of(4096)
}

/// A ring for a queue; made by the thread that will use it.
pub(crate) fn make_ring(depth: u16) -> io::Result<Ring> {
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_submit_all().build(u32::from(depth) + 8)
}

/// Serves one queue.
pub(crate) struct Server<'a> {
    /// Goes before the queue, into whose memory it leads.
    ring: Ring,
    queue: Arc<Queue>,
    answered: Vec<u16>,
    device: Arc<Device>,
    handler: &'a dyn Handler,
    /// Set by the first thread that sees the session end.
    ended: &'a AtomicBool,
}

impl<'a> Server<'a> {
    pub(crate) fn new(
        ring: Ring,
        queue: Queue,
        device: Arc<Device>,
        handler: &'a dyn Handler,
        ended: &'a AtomicBool,
    ) -> Server<'a> {
        Server { ring, queue: Arc::new(queue), answered: Vec::new(), device, handler, ended }
    }

    /// Offers all entries to the kernel. From then on requests come here.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn register(&mut self) -> io::Result<()> {
        let _ = self.queue.owner.set(std::thread::current().id());
        // The kernel takes the last one first: so the first ones stay warm.
        for entry in (0..self.queue.depth).rev() {
            self.push(self.command(entry, abi::RING_REGISTER, 0))?;
        }
        self.ring.submit()?;
        let refused = self.ring.completion().find(|completion| completion.result() < 0);
        refused.map_or(Ok(()), |completion| Err(io::Error::from_raw_os_error(-completion.result())))
    }

    fn command(&self, entry: u16, command: u32, commit_id: u64) -> squeue::Entry128 {
        let what = abi::RingCommand { flags: 0, commit_id, qid: self.queue.id, padding: [0; 6] };
        let mut bytes = [0; 80];
        let _ = what.write_to_prefix(&mut bytes);
        let places = &self.queue.places[usize::from(entry)];
        let entry128 = opcode::UringCmd80::new(types::Fd(self.device.as_fd().as_raw_fd()), command)
            .cmd(bytes)
            .addr(Some(places.as_ptr() as u64))
            .build()
            .user_data(entry.into());
        with_length(entry128, places.len() as u32)
    }

    #[allow(unsafe_code)] // io_uring is told addresses
    fn push(&mut self, entry: squeue::Entry128) -> io::Result<()> {
        loop {
            // SAFETY: what an entry's command points to lives as long as the queue, which outlives the ring: see `Server`.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
    }

    /// Serves requests until the file system is unmounted.
    ///
    /// # Errors
    /// The ring broke.
    pub(crate) fn serve(&mut self) -> io::Result<()> {
        let mut completions = Vec::new();
        let (mut listens, mut armed, mut attending) = (false, false, Attend::No);
        while !self.ended.load(Ordering::Relaxed) {
            if !listens {
                let poll = opcode::PollAdd::new(types::Fd(self.queue.wake.as_raw_fd()), POLL_IN);
                self.push(poll.build().user_data(WOKEN).into())?;
                listens = true;
            }
            if let Some(companion) = self.handler.companion().filter(|_| attending == Attend::Wait && !armed) {
                let poll = opcode::PollAdd::new(types::Fd(companion.as_raw_fd()), POLL_IN);
                self.push(poll.build().user_data(COMPANION).into())?;
                armed = true;
            }
            self.send_back()?;
            self.enter(attending != Attend::Again)?;
            completions.extend(self.ring.completion().map(|c| (c.user_data(), c.result())));
            for (mark, result) in completions.drain(..) {
                match mark {
                    WOKEN => {
                        listens = false;
                        let _ = rustix::io::read(&self.queue.wake, &mut [0; 8]);
                    }
                    COMPANION => armed = false,
                    entry => self.handle(entry as u16, result),
                }
            }
            attending = self.handler.attend(attending != Attend::No);
        }
        Ok(())
    }

    /// Gives the kernel what is to be done and takes what there is; perhaps waits until there is something.
    #[allow(unsafe_code)] // the library's own call does not ask for completions without waiting
    fn enter(&mut self, wait: bool) -> io::Result<()> {
        const GET_EVENTS: u32 = 1;
        let waiting = self.ring.submission().len() as u32;
        // SAFETY: no argument is passed.
        match unsafe { self.ring.submitter().enter::<()>(waiting, wait.into(), GET_EVENTS, None) } {
            Err(error) if !matches!(error.kind(), io::ErrorKind::Interrupted) => Err(error),
            _ => Ok(()),
        }
    }

    /// Sends the answered entries back.
    fn send_back(&mut self) -> io::Result<()> {
        std::mem::swap(&mut *self.queue.back.lock(), &mut self.answered);
        let mut cools = false;
        for index in 0..self.answered.len() {
            let entry = self.answered[index];
            let head = self.queue.head(entry);
            cools |= Self::is_cold(entry, head);
            self.push(self.command(entry, abi::RING_COMMIT_AND_FETCH, head.about.commit_id))?;
        }
        if cools {
            // Then the kernel has the answers, and brings new requests only while this thread waits.
            self.ring.submit()?;
            for entry in self.answered.iter().filter(|entry| Self::is_cold(**entry, self.queue.head(**entry))) {
                self.queue.memory.give_back(self.queue.payload_offset(*entry), self.queue.payload_size);
            }
        }
        self.answered.clear();
        Ok(())
    }

    /// Whether an entry was used for more than its memory is kept for.
    fn is_cold(entry: u16, head: &Head) -> bool {
        entry >= WARM && head.transferred > LARGE
    }

    fn handle(&self, entry: u16, result: i32) {
        if result < 0 {
            // The end of the session, which every entry is told.
            let error = io::Error::from_raw_os_error(-result);
            if !is_end(&error) {
                tracing::error!("the kernel gave up an entry of queue {}: {error}", self.queue.id);
            }
            self.ended.store(true, Ordering::Relaxed);
            return;
        }
        let head = self.queue.head(entry);
        let size = head.about.payload_size as usize;
        let Ok((header, _)) = abi::InHeader::read_from_prefix(&head.header) else { return };
        let record_size = abi::record_size(header.opcode).unwrap_or(0);
        head.transferred = size as u64;
        let channel = Channel::Ring(Slot { queue: self.queue.clone(), entry });
        let request = Request::parse(&header, &head.record[..record_size], self.queue.payload(entry, size));
        hand_over(self.handler, header.unique, request, channel);
    }
}

/// Whether an entry's error means that the file system was unmounted.
pub(crate) fn is_end(error: &io::Error) -> bool {
    let ends = [libc::ENOTCONN, libc::ECONNABORTED, libc::ENODEV, libc::ECANCELED];
    error.raw_os_error().is_some_and(|errno| ends.contains(&errno))
}

/// Sets the length of a command, which the library has no word for.
#[allow(unsafe_code)] // the kernel's record, which the library keeps as it is
fn with_length(entry: squeue::Entry128, length: u32) -> squeue::Entry128 {
    /// Where `len` lies in the kernel's `struct io_uring_sqe`.
    const LENGTH: usize = 24;
    // SAFETY: both are 128 bytes without padding, and any bytes are a valid entry.
    let mut bytes: [u8; 128] = unsafe { std::mem::transmute(entry) };
    bytes[LENGTH..LENGTH + 4].copy_from_slice(&length.to_ne_bytes());
    // SAFETY: as above.
    unsafe { std::mem::transmute(bytes) }
}
