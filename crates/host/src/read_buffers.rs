//! A pool of buffers for large reads.
//!
//! The bytes that a target reads from a data file live until they are sent, some hundred microseconds. Fresh memory for
//! each read costs more than the copy into it: the kernel maps, clears and unmaps pages, and the buffer is in none of the
//! processor's caches. So a few buffers are reused, the one that was returned last first.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

/// Smaller reads allocate memory of their own.
const LARGE: usize = 64 << 10;
/// The most unused buffers that are kept.
const KEPT: usize = 8;

/// The pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadBuffers {
    free: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl ReadBuffers {
    /// An empty buffer with a capacity of exactly `size`, because a read fills the whole capacity.
    pub(crate) fn take(&self, size: usize) -> Vec<u8> {
        let mut free = self.free.lock();
        match free.iter().rposition(|buffer| buffer.capacity() == size) {
            Some(at) => free.remove(at),
            None => Vec::with_capacity(size),
        }
    }

    /// Wraps a buffer that was read into. It returns to the pool when it is no longer referenced.
    pub(crate) fn filled(&self, buffer: Vec<u8>) -> Bytes {
        if buffer.capacity() < LARGE {
            return buffer.into();
        }
        Bytes::from_owner(Filled { buffer, home: self.clone() })
    }
}

/// A buffer in use.
struct Filled {
    buffer: Vec<u8>,
    home: ReadBuffers,
}

impl AsRef<[u8]> for Filled {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Filled {
    fn drop(&mut self) {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let mut free = self.home.free.lock();
        if free.len() == KEPT {
            free.remove(0);
        }
        free.push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_buffers_go_round_and_no_more_than_a_few_are_kept() {
        let buffers = ReadBuffers::default();
        let read = |size: usize, byte: u8| {
            let mut buffer = buffers.take(size);
            assert!(buffer.is_empty() && buffer.capacity() >= size);
            buffer.resize(size, byte);
            buffers.filled(buffer)
        };
        let first = read(1 << 20, 1);
        let (place, part) = (first.as_ptr(), first.slice(5..10));
        drop(first);
        let other = read(1 << 20, 2);
        assert_ne!(other.as_ptr(), place, "a part of it is still in use");
        assert_eq!(&part[..], [1; 5]);
        drop(part);
        let smaller = read(100 << 10, 3);
        assert_ne!(smaller.as_ptr(), place, "it has more room than is wanted");
        let again = read(1 << 20, 3);
        assert_eq!((again.as_ptr(), again.len(), &again[..3]), (place, 1 << 20, &[3; 3][..]));
        drop(read(10, 4));
        assert_eq!(buffers.free.lock().len(), 0, "small ones are not kept");
        let many: Vec<Bytes> = (0..20).map(|byte| read(LARGE, byte)).collect();
        drop((many, again, other, smaller));
        assert_eq!(buffers.free.lock().len(), KEPT);
    }
}
