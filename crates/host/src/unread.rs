//! Limits on replies that peers have not read yet: for each connection, and for the whole process.
//!
//! A connection with much unread data is not read further: its peer gets no new replies until it takes the outstanding
//! ones. Replies to earlier requests and messages of the server may still add to the backlog, up to a limit at which the
//! connection is closed. All connections together have a budget; while it is exceeded, the limit of each connection is
//! [`SHARE`].

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A connection with this many unread bytes is not read until there are fewer.
pub(crate) const PAUSE: usize = 8 << 20;
/// A connection with more unread bytes than this is closed.
const MOST: usize = 128 << 20;
/// The same limit, while all connections together exceed theirs.
const SHARE: usize = 16 << 20;
/// The most unread bytes of all connections of the process together.
const MOST_IN_ALL: usize = 512 << 20;

/// The unread bytes of all connections of this process.
static ALL: AtomicUsize = AtomicUsize::new(0);

/// The bytes that wait to be written to a connection.
#[derive(Debug, Default)]
pub(crate) struct Unread(Cell<usize>);

impl Unread {
    /// Adds bytes that wait. `false`: the backlog is too large, and the connection is to be closed.
    pub(crate) fn add(&self, bytes: usize) -> bool {
        self.0.set(self.0.get() + bytes);
        let all = ALL.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.0.get() <= if all > MOST_IN_ALL { SHARE } else { MOST }
    }

    /// Subtracts bytes that were written.
    pub(crate) fn written(&self, bytes: usize) {
        self.0.set(self.0.get() - bytes);
        ALL.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether the peer must read before the connection is read further.
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
        assert!(one.add(SHARE), "a peer that leaves little unread continues");
        assert!(!one.add(1));
        drop(others);
        assert!(one.add(1));
    }
}
