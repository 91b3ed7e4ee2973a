//! Sequences of FIDs, granted by the metadata target.

use proto::{Errno, Fid};
use std::collections::BTreeSet;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Sequences {
    /// The one in use: sequence, next object, last object.
    pub(crate) current: Option<(u64, u32, u32)>,
    /// The one to use next: sequence, last object.
    pub(crate) next: Option<(u64, u32)>,
    /// A request for one is in flight.
    pub(crate) requested: bool,
    /// The error of the last request for one.
    pub(crate) failed: Option<Errno>,
    /// FIDs whose operations have not ended.
    pub(crate) taken: BTreeSet<Fid>,
}

impl Sequences {
    /// Takes the next FID. A sequence in which an old FID is still in doubt is abandoned for the next one, because the
    /// server would take a late request with that FID for a repeated one.
    pub(crate) fn take(&mut self) -> Option<Fid> {
        let exhausted = self.current.is_none_or(|(_, next, last)| next > last);
        if exhausted || self.is_in_doubt() {
            if !exhausted {
                stdx::mark!("sequence_left_in_doubt");
            }
            let (seq, last) = self.next.take()?;
            self.current = Some((seq, 1, last));
        }
        let (seq, next, _) = self.current.as_mut()?;
        let fid = Fid::new(*seq, *next);
        *next += 1;
        self.taken.insert(fid);
        Some(fid)
    }

    /// Whether the next FID would be too far from one whose operation has not ended.
    fn is_in_doubt(&self) -> bool {
        let Some((seq, next, _)) = self.current else { return false };
        let oldest = self.taken.range(Fid::new(seq, 0)..).next();
        oldest.is_some_and(|oldest| oldest.seq == seq && next - oldest.oid >= Fid::IN_DOUBT_MAX)
    }

    /// The operation that took this FID has ended.
    pub(crate) fn settled(&mut self, fid: Fid) {
        self.taken.remove(&fid);
    }

    /// Whether another sequence should be requested.
    pub(crate) fn wants_more(&self) -> bool {
        let left = self.current.map_or(0, |(_, next, last)| last.saturating_sub(next));
        !self.requested && self.next.is_none() && left < 16_384
    }

    /// A sequence was granted.
    pub(crate) fn granted(&mut self, seq: u64, width: u32) {
        self.requested = false;
        self.failed = None;
        self.next = Some((seq, width.min(Fid::OID_MAX)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server tells FIDs apart only within some distance of the greatest one: a delayed request must not fall
    /// behind that, however many others are sent meanwhile.
    #[test]
    fn a_sequence_with_a_fid_in_doubt_is_left_in_time() {
        let mut sequences = Sequences::default();
        sequences.granted(10, Fid::OID_MAX);
        let late = sequences.take().unwrap();
        for oid in 2..=Fid::IN_DOUBT_MAX {
            let fid = sequences.take().unwrap();
            assert_eq!(fid, Fid::new(10, oid));
            sequences.settled(fid);
        }
        assert_eq!(sequences.take(), None, "it waits for another sequence");
        sequences.granted(11, Fid::OID_MAX);
        assert_eq!(sequences.take(), Some(Fid::new(11, 1)));
        assert!(stdx::marks::count("sequence_left_in_doubt") > 0);
        // The late FID no longer matters; in the new sequence, its own do.
        sequences.settled(late);
        for oid in 2..=Fid::IN_DOUBT_MAX {
            assert_eq!(sequences.take(), Some(Fid::new(11, oid)));
        }
        assert_eq!(sequences.take(), None);
        sequences.settled(Fid::new(11, 1));
        assert_eq!(sequences.take(), Some(Fid::new(11, Fid::IN_DOUBT_MAX + 1)), "the first was in the way");
    }
}
