//! Read-ahead of one open file: how far to fetch beyond what a program asked for.
//!
//! Reads that follow each other (or nearly: the kernel's own threads reorder them a little) open a window that doubles
//! up to the mount's limit; a read elsewhere closes it. The next fetch starts when half of the window has been used, so
//! that a long read never stalls. Pure: the caller checks what is cached and which locks cover it.

use core::ops::Range;

/// First window, in bytes.
const WINDOW_MIN: u64 = 256 << 10;
/// Reads that start this near to where the last one ended are sequential.
const SLACK: u64 = 256 << 10;

/// State of one open file.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadAhead {
    /// Where the next sequential read starts.
    next: u64,
    /// Sequential reads in a row.
    streak: u32,
    window: u64,
    /// End of what was prefetched.
    fetched: u64,
}

impl ReadAhead {
    /// A program reads `range`; `max` is the mount's limit. Returns the range beyond it to prefetch, if any.
    pub(crate) fn on_read(&mut self, range: &Range<u64>, max: u64) -> Option<Range<u64>> {
        let sequential = range.start <= self.next && range.start + SLACK >= self.next
            || range.start > self.next && range.start - self.next <= SLACK && self.streak > 1;
        if !sequential || (self.next == 0 && range.start > 0) {
            *self = ReadAhead { next: range.end, ..ReadAhead::default() };
            return None;
        }
        self.streak = self.streak.saturating_add(1);
        self.next = self.next.max(range.end);
        let whole_start = range.start == 0 && self.streak == 1;
        if max == 0 || (self.streak < 2 && !whole_start) {
            return None;
        }
        if self.window == 0 {
            self.window = WINDOW_MIN.min(max);
            self.fetched = self.next;
        }
        self.fetched = self.fetched.max(self.next);
        if self.fetched - self.next > self.window / 2 {
            return None;
        }
        let ahead = self.fetched..self.next + self.window;
        self.window = (self.window * 2).min(max);
        if ahead.is_empty() {
            return None;
        }
        self.fetched = ahead.end;
        Some(ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 4 << 20;

    #[test]
    fn a_sequential_reader_finds_everything_fetched_and_nothing_twice() {
        let mut state = ReadAhead::default();
        let mut fetched = 0;
        for i in 0..500u64 {
            let range = i * 65536..(i + 1) * 65536;
            if let Some(ahead) = state.on_read(&range, MAX) {
                assert!(ahead.start >= fetched, "nothing twice");
                assert!(ahead.end <= range.end + MAX);
                fetched = ahead.end;
            }
            if i > 4 {
                assert!(fetched >= range.end + 65536, "the next read is under way at {i}");
            }
        }
    }

    #[test]
    fn random_reads_fetch_nothing() {
        let mut state = ReadAhead::default();
        for i in 0..100u64 {
            let start = (i * 7919 % 97 + 5) << 24;
            assert_eq!(state.on_read(&(start..start + 4096), MAX), None);
        }
    }

    #[test]
    fn a_limit_of_zero_turns_it_off() {
        let mut state = ReadAhead::default();
        for i in 0..10 {
            assert_eq!(state.on_read(&(i * 4096..(i + 1) * 4096), 0), None);
        }
    }
}
