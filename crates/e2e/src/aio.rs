//! The kernel's asynchronous I/O (`io_submit(2)`), which databases use for direct writes. The standard library, rustix and the crate
//! `libc` have nothing for it except the numbers of the system calls.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::system::Aligned;

/// `struct iocb` of the kernel's `linux/aio_abi.h`, little-endian.
#[repr(C)]
#[derive(Debug, Default)]
struct ControlBlock {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    length: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Completion {
    data: u64,
    block: u64,
    result: i64,
    result2: i64,
}

const WRITE: u16 = 1;

/// Writes in flight, with their bytes, which are kept until the writes are complete.
#[derive(Debug)]
pub struct Writes {
    context: u64,
    in_flight: HashMap<u64, Aligned>,
}

fn checked(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

impl Writes {
    /// For up to `most` writes in flight.
    ///
    /// # Errors
    /// As `io_setup(2)`.
    #[allow(unsafe_code)]
    pub fn new(most: u32) -> io::Result<Writes> {
        let mut context = 0u64;
        // SAFETY: the kernel writes one word, which outlives the call.
        checked(unsafe { libc::syscall(libc::SYS_io_setup, libc::c_long::from(most), &raw mut context) })?;
        Ok(Writes { context, in_flight: HashMap::new() })
    }

    /// Starts to write these bytes. `name` is returned when they are written; it must not be in flight.
    ///
    /// # Errors
    /// As `io_submit(2)`.
    #[allow(unsafe_code)]
    pub fn submit(&mut self, name: u64, file: &File, offset: u64, bytes: Aligned) -> io::Result<()> {
        assert!(!self.in_flight.contains_key(&name), "{name} is in flight");
        let block = ControlBlock {
            data: name,
            opcode: WRITE,
            fd: file.as_raw_fd() as u32,
            buffer: bytes.as_ptr() as u64,
            length: bytes.len() as u64,
            offset: offset as i64,
            ..ControlBlock::default()
        };
        let blocks = [&raw const block];
        // The memory of a `Vec` stays where it is when the value moves.
        self.in_flight.insert(name, bytes);
        // SAFETY: the kernel copies the block before the call returns; the bytes stay until the write is complete.
        let submitted =
            checked(unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1 as libc::c_long, blocks.as_ptr()) });
        match submitted {
            Ok(1) => Ok(()),
            other => {
                self.in_flight.remove(&name);
                other.and_then(|count| Err(io::Error::other(format!("{count} of 1 were submitted"))))
            }
        }
    }

    /// Waits until one is complete. Returns its name and the number of bytes written.
    ///
    /// # Errors
    /// The error of the write, or of `io_getevents(2)`.
    #[allow(unsafe_code)]
    pub fn wait(&mut self) -> io::Result<(u64, usize)> {
        let mut done = Completion::default();
        let null = std::ptr::null_mut::<libc::timespec>();
        let one: libc::c_long = 1;
        // SAFETY: the kernel writes one completion, which outlives the call.
        let count =
            checked(unsafe { libc::syscall(libc::SYS_io_getevents, self.context, one, one, &raw mut done, null) })?;
        assert_eq!(count, 1);
        self.in_flight.remove(&done.data);
        match usize::try_from(done.result) {
            Ok(written) => Ok((done.data, written)),
            Err(_) => Err(io::Error::from_raw_os_error(-done.result as i32)),
        }
    }
}

impl Drop for Writes {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the context is ours. The call waits for writes in flight, so the bytes can be freed afterwards.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}
