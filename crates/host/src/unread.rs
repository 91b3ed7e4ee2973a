//! What was answered and not yet read by peers: bounded for each connection, and in sum over all of the process.
//!
//! A connection of which much is unread is not read on: its peer gets no new answers until it takes those that there are. What
//! was asked before, and what a server says unasked, may add to it up to a limit, at which the connection is closed. Of
//! all connections together so much may be unread; beyond that each may have [`SHARE`] and no more.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A connection with so many bytes unread is not read until there are fewer.
pub(crate) const PAUSE: usize = 8 << 20;
/// A connection with so many bytes unread is closed.
const MOST: usize = 128 << 20;
/// The same while all connections together have too much unread.
const SHARE: usize = 16 << 20;
/// So many bytes may be unread of all connections of the process together.
const MOST_IN_ALL: usize = 512 << 20;

/// What is unread of all connections of this process.
static ALL: AtomicUsize = AtomicUsize::new(0);

/// Bytes that wait to be written to a connection.
#[derive(Debug, Default)]
pub(crate) struct Unread(Cell<usize>);

impl Unread {
    /// So many bytes wait besides. `false`: the peer leaves too much unread, and is to be cut off.
    pub(crate) fn add(&self, bytes: usize) -> bool {
        self.0.set(self.0.get() + bytes);
        let all = ALL.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.0.get() <= if all > MOST_IN_ALL { SHARE } else { MOST }
    }

    /// So many bytes were written.
    pub(crate) fn written(&self, bytes: usize) {
        self.0.set(self.0.get() - bytes);
        ALL.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether the peer must read first.
    pub(crate) fn is_much(&self) -> bool {
        self.0.get() >= PAUSE
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        ALL.fetch_sub(self.0.get(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_may_leave_much_unread_and_all_together_not_much_more() {
        let one = Unread::default();
        assert!(one.add(PAUSE - 1) && !one.is_much());
        assert!(one.add(MOST - PAUSE + 1) && one.is_much());
        assert!(!one.add(1), "more than a connection may have");
        one.written(MOST + 1);
        let others: Vec<Unread> = (0..MOST_IN_ALL / MOST).map(|_| Unread::default()).collect();
        assert!(others.iter().all(|other| other.add(MOST)));
        assert!(one.add(SHARE), "who leaves little unread goes on");
        assert!(!one.add(1));
        drop(others);
        assert!(one.add(1));
    }
}
