//! Space grants to clients, so that a buffered write does not fail later.
//!
//! The medium reports its free space about once a second; in between, writes are subtracted. Part of the rest is
//! granted to exports. The remainder is open to writes without a grant. Such a write reserves its part when it starts,
//! because other writes start before it is done.
//!
//! # Invariants
//! - Whenever a grant is made, the sum of all grants is at most the free space.
//! - A grant is never revoked from a client that may have filled it with data. It shrinks as it is used and not
//!   renewed, and ends with the session.
//!
//! # Example
//! ```text
//! free 100, A holds 40, B holds 40:                      20 are open
//! A writes 30 on its grant: used 30, A holds 10          20 are open (free 70, granted 50)
//! the reply renews A's grant from what is open:          A holds 30, 0 are open
//! C writes 5 without a grant:                            ENOSPC
//! B's session ends:                                      40 are open
//! ```

use std::collections::BTreeMap;

use dlm::ExportId;
use proto::{Errno, Xid};

/// Largest grant of one client, in bytes.
pub const GRANT_MAX: u64 = 64 << 20;
/// Grant of a new client if there is enough space, in bytes.
pub const GRANT_FIRST: u64 = 8 << 20;
/// Smallest grant that is worth making, in bytes.
const GRANT_MIN: u64 = 64 << 10;
/// A renewal grants at most one part in this many of the open space.
const SHARE: u64 = 8;

/// The grants of all exports.
#[derive(Debug, Default)]
pub struct Grants {
    /// Free bytes as last reported; `None` before the first report, when everything is allowed.
    free: Option<u64>,
    /// Bytes written since that report.
    used: u64,
    by_export: BTreeMap<ExportId, Grant>,
    total: u64,
    /// Bytes that writes in progress take beyond their grants.
    under_way: BTreeMap<(ExportId, Xid), u64>,
    taken: u64,
}

/// Grant of one export.
#[derive(Clone, Copy, Debug)]
struct Grant {
    held: u64,
    /// The size that renewals raise it to.
    want: u64,
}

impl Grants {
    /// Sets the free space that the medium reported.
    pub fn set_free(&mut self, free: u64) {
        self.free = Some(free);
        self.used = 0;
    }

    /// Free bytes, granted or not.
    pub fn free(&self) -> u64 {
        self.free.unwrap_or(u64::MAX / 4).saturating_sub(self.used)
    }

    /// Free bytes that are neither granted nor reserved.
    pub fn open(&self) -> u64 {
        self.free().saturating_sub(self.total).saturating_sub(self.taken)
    }

    /// The sum of all grants.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The grant of `export`, in bytes.
    pub fn of(&self, export: ExportId) -> u64 {
        self.by_export.get(&export).map_or(0, |grant| grant.held)
    }

    /// Whether a write of `length` bytes has space, of which `paid` come from the client's grant. Changes nothing.
    /// Errors: `ENOSPC`.
    pub fn check(&self, export: ExportId, length: u64, paid: u64) -> Result<(), Errno> {
        let paid = paid.min(self.of(export));
        if length.saturating_sub(paid) > self.open() { Err(Errno::ENOSPC) } else { Ok(()) }
    }

    /// As [`Grants::check`], for a write that starts. What it takes beyond its grant is reserved until it
    /// [ends](Grants::end).
    pub fn begin(&mut self, export: ExportId, xid: Xid, length: u64, paid: u64) -> Result<(), Errno> {
        self.check(export, length, paid)?;
        self.end(export, xid);
        let beyond = length.saturating_sub(paid.min(self.of(export)));
        if beyond > 0 {
            self.under_way.insert((export, xid), beyond);
            self.taken += beyond;
        }
        Ok(())
    }

    /// A write that started is done or has failed.
    pub fn end(&mut self, export: ExportId, xid: Xid) {
        self.taken -= self.under_way.remove(&(export, xid)).unwrap_or(0);
    }

    /// A write took `length` bytes of the medium, of which `paid` come from the client's grant.
    pub fn spend(&mut self, export: ExportId, length: u64, paid: u64) {
        let held = self.of(export);
        self.set(export, held - paid.min(held));
        self.used = self.used.saturating_add(length);
    }

    /// The client wants to hold `want` bytes for what it writes: raises its grant towards that from now on, as far as
    /// there is space. 0 requests nothing. Returns the grant.
    pub fn raise(&mut self, export: ExportId, want: u64) -> u64 {
        if let Some(grant) = self.by_export.get_mut(&export) {
            grant.want = grant.want.max(want.min(GRANT_MAX));
        }
        self.top_up(export)
    }

    /// Renews the grant of a client that has used some of it. Other peers have none. Returns the grant.
    pub fn top_up(&mut self, export: ExportId) -> u64 {
        let Some(&Grant { held, want }) = self.by_export.get(&export) else { return 0 };
        let missing = want.saturating_sub(held);
        let more = missing.min(self.open() / SHARE);
        if more >= GRANT_MIN.min(missing) {
            self.set(export, held + more);
        }
        self.of(export)
    }

    /// A client connects and claims a grant of `claimed` bytes, perhaps from before a restart. It has buffered data for
    /// it, so it gets that again if there is space, and at least the grant of a new client. Returns the grant.
    pub fn connect(&mut self, export: ExportId, claimed: u64) -> u64 {
        self.by_export.entry(export).or_insert(Grant { held: 0, want: GRANT_FIRST });
        let held = self.of(export);
        let again = claimed.min(GRANT_MAX).saturating_sub(held).min(self.open());
        self.set(export, held + again);
        self.top_up(export)
    }

    /// The export has ended: its grant becomes open.
    pub fn gone(&mut self, export: ExportId) {
        self.set(export, 0);
        self.by_export.remove(&export);
        let all: Vec<Xid> =
            self.under_way.range((export, Xid(0))..=(export, Xid(u64::MAX))).map(|((_, xid), _)| *xid).collect();
        all.into_iter().for_each(|xid| self.end(export, xid));
    }

    fn set(&mut self, export: ExportId, held: u64) {
        if let Some(grant) = self.by_export.get_mut(&export) {
            self.total = self.total - grant.held + held;
            grant.held = held;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ExportId = ExportId(1);
    const B: ExportId = ExportId(2);
    const MIB: u64 = 1 << 20;

    fn with_free(free: u64) -> Grants {
        let mut grants = Grants::default();
        grants.set_free(free);
        grants
    }

    #[test]
    fn a_grant_is_used_up_renewed_and_given_back() {
        let mut grants = with_free(1 << 40);
        assert_eq!(grants.connect(A, 0), GRANT_FIRST);
        assert_eq!(grants.check(A, MIB, MIB), Ok(()));
        grants.spend(A, MIB, MIB);
        assert_eq!(grants.of(A), GRANT_FIRST - MIB);
        assert_eq!(grants.top_up(A), GRANT_FIRST);
        assert_eq!(grants.raise(A, 32 * MIB), 32 * MIB);
        assert_eq!(grants.raise(A, u64::MAX), GRANT_MAX);
        assert_eq!(grants.raise(A, 3), GRANT_MAX, "it may be filled with data");
        assert_eq!(grants.raise(B, MIB), 0, "no client");
        grants.gone(A);
        assert_eq!((grants.total(), grants.of(A)), (0, 0));
    }

    #[test]
    fn promises_never_exceed_what_is_free() {
        let mut grants = with_free(100 * MIB);
        for export in 0..1000 {
            grants.connect(ExportId(export), 0);
            grants.raise(ExportId(export), u64::MAX);
        }
        assert!(grants.total() <= grants.free());
        assert_eq!(grants.check(B, 200 * MIB, 200 * MIB), Err(Errno::ENOSPC));
    }

    #[test]
    fn a_write_without_a_grant_takes_only_what_nobody_was_promised() {
        let mut grants = with_free(10 * MIB);
        grants.connect(A, 8 * MIB);
        assert!(grants.of(A) >= 8 * MIB);
        assert_eq!(grants.check(B, 4 * MIB, 0), Err(Errno::ENOSPC));
        assert_eq!(grants.check(B, 4 * MIB, 4 * MIB), Err(Errno::ENOSPC), "a grant that it does not have");
        assert_eq!(grants.check(A, 8 * MIB, 8 * MIB), Ok(()));
        grants.gone(A);
        assert_eq!(grants.check(B, 4 * MIB, 0), Ok(()));
    }

    #[test]
    fn what_is_being_written_is_open_to_nobody_else() {
        let mut grants = with_free(10 * MIB);
        grants.connect(A, 8 * MIB);
        let held = grants.of(A);
        assert_eq!(grants.begin(B, Xid(1), MIB, 0), Ok(()));
        assert_eq!(grants.begin(B, Xid(2), 2 * MIB, 0), Err(Errno::ENOSPC));
        assert_eq!(grants.begin(A, Xid(3), MIB, MIB), Ok(()), "of what it was promised");
        grants.spend(A, MIB, MIB);
        grants.end(A, Xid(3));
        assert_eq!(grants.of(A), held - MIB);
        grants.end(B, Xid(1));
        assert_eq!(grants.begin(B, Xid(2), 2 * MIB, 0), Ok(()), "the other one has ended");
        grants.gone(B);
        assert_eq!(grants.taken, 0);
    }

    #[test]
    fn what_was_written_since_the_medium_was_asked_counts() {
        let mut grants = with_free(10 * MIB);
        grants.spend(A, 9 * MIB, 0);
        assert_eq!(grants.check(A, 2 * MIB, 0), Err(Errno::ENOSPC));
        grants.set_free(10 * MIB);
        assert_eq!(grants.check(A, 2 * MIB, 0), Ok(()), "it was holes, or overwritten");
    }
}
