//! The io_uring transport: a queue for each processor, served by a thread on that processor with a ring of its own.
//!
//! Only that thread uses its ring. It takes requests, hands them to the handler, and sends answered entries back: see
//! [`Queues`] for which thread sends which answer.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use zerocopy::IntoBytes;

use crate::abi;
use crate::device::{Device, hand_over};
use crate::queue::{EntryId, Queues, Slot};
use crate::reply::Channel;
use crate::request::Request;
use crate::session::{Attend, Handler};

/// User data of completions that belong to no entry.
const WOKEN: u64 = u64::MAX;
const COMPANION: u64 = u64::MAX - 1;
const POLL_IN: u32 = libc::POLLIN as u32;

const _: () = assert!(size_of::<squeue::Entry128>() == 128);

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// Makes a ring for a queue. The thread that will use it must call this.
pub(crate) fn make_ring(depth: u16) -> io::Result<Ring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .build(u32::from(depth) + 8)
}

fn mark(id: EntryId) -> u64 {
    u64::from(id.queue) << 16 | u64::from(id.index)
}

fn marked(mark: u64) -> EntryId {
    EntryId { queue: (mark >> 16) as u16, index: mark as u16 }
}

/// Serves one queue.
pub(crate) struct Server<'a> {
    /// Declared before the queues, so that it is dropped before the memory that it refers to.
    ring: Ring,
    queues: Arc<Queues>,
    /// The queue that this server serves.
    id: u16,
    completions: Vec<(u64, i32)>,
    answered: Vec<EntryId>,
    /// A poll of the alarm is in the ring.
    listens: bool,
    /// A poll of the companion is in the ring.
    armed: bool,
    device: Arc<Device>,
    handler: &'a dyn Handler,
}

impl<'a> Server<'a> {
    pub(crate) fn new(
        ring: Ring,
        queues: Arc<Queues>,
        id: u16,
        device: Arc<Device>,
        handler: &'a dyn Handler,
    ) -> Server<'a> {
        Server {
            ring,
            queues,
            id,
            completions: Vec::new(),
            answered: Vec::new(),
            listens: false,
            armed: false,
            device,
            handler,
        }
    }

    /// Registers all entries with the kernel, which then delivers requests to this ring.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn register(&mut self) -> io::Result<()> {
        self.queues.set_served(self.id);
        // The kernel uses the entry registered last first, so registering in reverse order keeps the low indexes warm.
        for index in (0..self.queues.depth()).rev() {
            self.push(self.command(EntryId { queue: self.id, index }, abi::RING_REGISTER, 0))?;
        }
        self.ring.submit()?;
        let refused = self.ring.completion().find(|completion| completion.result() < 0);
        refused.map_or(Ok(()), |completion| Err(io::Error::from_raw_os_error(-completion.result())))
    }

    fn command(&self, id: EntryId, command: u32, commit_id: u64) -> squeue::Entry128 {
        let what = abi::RingCommand { flags: 0, commit_id, qid: id.queue, padding: [0; 6] };
        let mut bytes = [0; 80];
        let _ = what.write_to_prefix(&mut bytes);
        let places = self.queues.places(id);
        let entry128 = opcode::UringCmd80::new(types::Fd(self.device.as_fd().as_raw_fd()), command)
            .cmd(bytes)
            .addr(Some(places.as_ptr() as u64))
            .build()
            .user_data(mark(id));
        with_length(entry128, places.len() as u32)
    }

    #[allow(unsafe_code)] // io_uring gets addresses
    fn push(&mut self, entry: squeue::Entry128) -> io::Result<()> {
        loop {
            // SAFETY: the memory that an entry's command points to lives as long as the queues, which outlive the ring: see `Server`.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
    }

    /// Serves requests until the file system is unmounted.
    ///
    /// # Errors
    /// The ring failed.
    pub(crate) fn serve(&mut self) -> io::Result<()> {
        let mut attending = Attend::No;
        while !self.queues.has_ended() {
            self.listen(attending)?;
            self.send_back()?;
            let idle = attending != Attend::Again && self.completions.is_empty();
            let sleeps = idle && self.queues.falls_asleep(self.id);
            self.enter(sleeps)?;
            if sleeps {
                self.queues.wakes_up(self.id);
            }
            self.take_completions();
            self.take_in(sleeps && attending == Attend::No);
            attending = self.attend(attending != Attend::No);
        }
        Ok(())
    }

    /// Polls the alarm and, with [`Attend::Wait`], the companion through the ring.
    fn listen(&mut self, attending: Attend) -> io::Result<()> {
        if !self.listens {
            let poll = opcode::PollAdd::new(types::Fd(self.queues.alarm(self.id).as_raw_fd()), POLL_IN);
            self.push(poll.build().user_data(WOKEN).into())?;
            self.listens = true;
        }
        if let Some(companion) = self.handler.companion().filter(|_| attending == Attend::Wait && !self.armed) {
            let poll = opcode::PollAdd::new(types::Fd(companion.as_raw_fd()), POLL_IN);
            self.push(poll.build().user_data(COMPANION).into())?;
            self.armed = true;
        }
        Ok(())
    }

    /// Submits entries to the kernel and collects completions; with `wait`, waits for at least one.
    #[allow(unsafe_code)] // the library's own call does not collect completions without waiting
    fn enter(&mut self, wait: bool) -> io::Result<()> {
        const GET_EVENTS: u32 = 1;
        let waiting = self.ring.submission().len() as u32;
        // SAFETY: no argument is passed.
        match unsafe { self.ring.submitter().enter::<()>(waiting, wait.into(), GET_EVENTS, None) } {
            Err(error) if !matches!(error.kind(), io::ErrorKind::Interrupted) => Err(error),
            _ => Ok(()),
        }
    }

    fn take_completions(&mut self) {
        self.completions.extend(self.ring.completion().map(|c| (c.user_data(), c.result())));
    }

    /// Processes the completions. `idle`: this thread had nothing to do before they arrived.
    fn take_in(&mut self, idle: bool) {
        for (mark, result) in std::mem::take(&mut self.completions) {
            match mark {
                WOKEN => {
                    self.listens = false;
                    let _ = rustix::io::read(self.queues.alarm(self.id), &mut [0; 8]);
                }
                COMPANION => self.armed = false,
                entry => self.handle(marked(entry), result, idle),
            }
        }
    }

    /// Lets the handler attend to its companion until there is other work.
    fn attend(&mut self, attending: bool) -> Attend {
        let Server { ring, queues, id, handler, .. } = self;
        handler.attend(attending, &mut || ring.submission().taskrun() || queues.has_answered(*id))
    }

    /// Sends answered entries back to the kernel.
    fn send_back(&mut self) -> io::Result<()> {
        let mut answered = std::mem::take(&mut self.answered);
        self.queues.take_answered(self.id, &mut answered);
        for id in &answered {
            self.push(self.command(*id, abi::RING_COMMIT_AND_FETCH, self.queues.commit_id(*id)))?;
        }
        if answered.iter().any(|id| self.queues.is_cold(*id)) {
            // After this submit the kernel has the answers. Some entries may have a new request at once; the others get one only
            // while this thread waits, so their memory can be freed now.
            self.ring.submit()?;
            self.take_completions();
            let is_back = |id: &&EntryId| !self.completions.iter().any(|(mark, _)| marked(*mark) == **id);
            let cold = answered.iter().filter(|id| self.queues.is_cold(**id));
            cold.filter(is_back).for_each(|id| self.queues.cool(*id));
        }
        answered.clear();
        self.answered = answered;
        Ok(())
    }

    fn handle(&self, id: EntryId, result: i32, idle: bool) {
        if result < 0 {
            // The end of the session, which the kernel reports for every entry.
            let error = io::Error::from_raw_os_error(-result);
            if !is_end(&error) {
                tracing::error!("the kernel gave up an entry of queue {}: {error}", id.queue);
            }
            self.queues.end();
            return;
        }
        let (header, record, size) = self.queues.request(id);
        let record_size = abi::record_size(header.opcode).unwrap_or(0);
        let slot = Slot::new(self.queues.clone(), id, idle);
        #[allow(unsafe_code)] // see `Incoming`
        // SAFETY: the request cannot be accessed any more once its slot answers.
        let payload = unsafe { slot.payload(size) };
        let request = Request::parse(&header, &record[..record_size], payload);
        hand_over(self.handler, header.unique, request, Channel::Ring(slot));
    }
}

/// Whether an entry's error means that the file system was unmounted.
pub(crate) fn is_end(error: &io::Error) -> bool {
    let ends = [libc::ENOTCONN, libc::ECONNABORTED, libc::ENODEV, libc::ECANCELED];
    error.raw_os_error().is_some_and(|errno| ends.contains(&errno))
}

/// Sets the length of a command, for which the library has no method.
#[allow(unsafe_code)] // the kernel's record, which the library keeps as it is
fn with_length(entry: squeue::Entry128, length: u32) -> squeue::Entry128 {
    /// Offset of `len` in the kernel's `struct io_uring_sqe`.
    const LENGTH: usize = 24;
    // SAFETY: both are 128 bytes without padding, and any bytes are a valid entry.
    let mut bytes: [u8; 128] = unsafe { std::mem::transmute(entry) };
    bytes[LENGTH..LENGTH + 4].copy_from_slice(&length.to_ne_bytes());
    // SAFETY: as above.
    unsafe { std::mem::transmute(bytes) }
}
