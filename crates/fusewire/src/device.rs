//! The `/dev/fuse` transport: one system call for each request and each answer.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use zerocopy::IntoBytes;

use crate::abi;
use crate::reply::{Channel, Reply};
use crate::request::{Incoming, Refused, Request};
use crate::session::{Attend, Handler};

/// The longest sleep of a thread that attends to the handler's companion, so that it notices the end of the session.
const GLANCE: Duration = Duration::from_millis(100);
/// An upper bound on the bytes of a request besides its data.
const REQUEST_HEAD: usize = 4096;

/// The kernel's device of one mount, or a clone with its own queue of requests in flight.
#[derive(Debug)]
pub(crate) struct Device(OwnedFd);

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The result of a read of the device.
pub(crate) enum Taken {
    /// A request of this many bytes.
    Request(usize),
    /// The request was withdrawn; read again.
    Nothing,
    /// The file system is unmounted.
    Ended,
}

impl Device {
    pub(crate) fn new(device: OwnedFd) -> Device {
        Device(device)
    }

    /// Another descriptor of the same mount.
    pub(crate) fn another(&self) -> io::Result<Device> {
        let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        clone_into(&device, &self.0)?;
        Ok(Device(device))
    }

    /// Waits for a request.
    pub(crate) fn take(&self, buffer: &mut [u8]) -> io::Result<Taken> {
        match rustix::io::read(&self.0, buffer) {
            Ok(size) => Ok(Taken::Request(size)),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN | rustix::io::Errno::NOENT) => Ok(Taken::Nothing),
            Err(rustix::io::Errno::NODEV) => Ok(Taken::Ended),
            Err(error) => Err(error.into()),
        }
    }

    /// Answers a request, with an errno or with parts.
    pub(crate) fn answer(&self, unique: u64, errno: i32, parts: &[&[u8]]) {
        self.send(unique, -errno, parts);
    }

    /// Sends a notification to the kernel.
    pub(crate) fn notify(&self, code: i32, parts: &[&[u8]]) -> bool {
        self.send(0, code, parts)
    }

    /// Sends a notification that the kernel may not support.
    pub(crate) fn try_notify(&self, code: i32, parts: &[&[u8]]) -> Result<(), rustix::io::Errno> {
        self.write(0, code, parts)
    }

    fn write(&self, unique: u64, error: i32, parts: &[&[u8]]) -> Result<(), rustix::io::Errno> {
        let size: usize = parts.iter().map(|part| part.len()).sum();
        let header = abi::OutHeader { len: (size_of::<abi::OutHeader>() + size) as u32, error, unique };
        let mut slices = [IoSlice::new(header.as_bytes()), IoSlice::new(&[]), IoSlice::new(&[])];
        for (slice, part) in slices.iter_mut().skip(1).zip(parts) {
            *slice = IoSlice::new(part);
        }
        rustix::io::writev(&self.0, &slices[..=parts.len()]).map(drop)
    }

    fn send(&self, unique: u64, error: i32, parts: &[&[u8]]) -> bool {
        match self.write(unique, error, parts) {
            Ok(()) => true,
            // The request was interrupted, or the kernel has nothing to invalidate.
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NODEV) => false,
            Err(error) => {
                tracing::warn!("the kernel refused an answer: {error}");
                if unique != 0 && !parts.is_empty() {
                    // So that its program does not wait forever.
                    self.send(unique, -libc::EIO, &[]);
                }
                false
            }
        }
    }
}

#[allow(unsafe_code)] // rustix does not know this ioctl: it takes a pointer to a descriptor's number and keeps nothing
fn clone_into(device: &OwnedFd, of: &OwnedFd) -> io::Result<()> {
    const CLONE: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(229, 0);
    let of = of.as_raw_fd() as u32;
    // SAFETY: the kernel reads one u32 and returns nothing.
    let clone = unsafe { rustix::ioctl::Setter::<CLONE, u32>::new(of) };
    // SAFETY: as above.
    unsafe { rustix::ioctl::ioctl(device, clone)? };
    Ok(())
}

/// A buffer for the largest request.
pub(crate) fn buffer(max_write: u32) -> Vec<u8> {
    vec![0; max_write as usize + REQUEST_HEAD]
}

/// Hands a request to the handler, or refuses it.
pub(crate) fn hand_over(handler: &dyn Handler, unique: u64, request: Result<Request<'_>, Refused>, channel: Channel) {
    let reply = Reply::new(unique, channel);
    match request {
        Ok(request) => handler.handle(Incoming::new(request, reply)),
        Err(Refused(errno)) => reply.error(errno),
    }
}

/// Serves requests from one descriptor until the file system is unmounted. With `attends`, the thread attends to the handler's
/// companion too.
pub(crate) fn serve(device: &Arc<Device>, handler: &dyn Handler, max_write: u32, attends: bool) -> io::Result<()> {
    let mut buffer = buffer(max_write);
    loop {
        match device.take(&mut buffer)? {
            Taken::Nothing => continue,
            Taken::Ended => return Ok(()),
            Taken::Request(size) => match Request::parse_whole(&buffer[..size]) {
                Ok((header, Ok(request))) if !request.operation.is_answered() => {
                    handler.handle(Incoming::new(request, Reply::none(header.unique)));
                }
                Ok((header, request)) => hand_over(handler, header.unique, request, Channel::Device(device.clone())),
                Err(_) => tracing::warn!("the kernel sent {size} bytes that are no request"),
            },
        }
        if attends {
            attend(handler);
        }
    }
}

/// Attends to the handler's companion as long as the handler wants this thread to.
fn attend(handler: &dyn Handler) {
    let mut attending = handler.attend(false, &mut || false);
    while attending != Attend::No {
        if attending == Attend::Wait {
            let Some(companion) = handler.companion() else { return };
            let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: GLANCE.subsec_nanos().into() };
            let _ = rustix::event::poll(&mut [PollFd::new(&companion, PollFlags::IN)], Some(&timeout));
        }
        attending = handler.attend(true, &mut || false);
    }
}
