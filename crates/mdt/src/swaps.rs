//! Which client may replace the layout of a file by that of its copy ([`SetlayoutKind::Swap`]).
//!
//! A client that moves the data of a file has every object of it locked when it swaps, so nobody can write to them. But an object
//! target may have evicted it, and have given the locks to others, without a word to the metadata target. So every client that gets a
//! lock on an object, and has no lock that covers the layout, has the layout confirmed here before it uses the object
//! ([`GetattrReq::confirms_layout`]):
//!
//! ```text
//!   mover        EX on LAYOUT, PW on all objects
//!   mover        has the layout confirmed           noted here: it may swap
//!   mover        has an answer of every object target, and has its locks still
//!   another      has the layout confirmed           the note goes: it has a lock on an object, and may write
//!   mover        Swap                               done if the note is there, otherwise ESTALE
//! ```
//!
//! If the mover loses its locks before the object target answers, it learns of that from the answer. If it loses them later, the next
//! holder asks after the note was made, and finds the new layout or prevents it. After a restart there are no notes: the mover makes
//! another copy.
//!
//! [`SetlayoutKind::Swap`]: proto::msg::SetlayoutKind::Swap
//! [`GetattrReq::confirms_layout`]: proto::msg::GetattrReq::confirms_layout

use std::collections::BTreeMap;

use proto::Fid;
use target::ExportId;

/// Most files that are noted. With more, all are forgotten: their movers make other copies.
const FILES_MAX: usize = 4096;

/// The files whose layouts may be replaced, and by which client.
#[derive(Default, Debug)]
pub(crate) struct Swaps {
    movers: BTreeMap<Fid, ExportId>,
}

impl Swaps {
    /// A client that has locks on objects of a file has its layout confirmed. `moves`: it has LAYOUT for itself.
    pub(crate) fn confirmed(&mut self, fid: Fid, client: ExportId, moves: bool) {
        if !moves {
            self.movers.remove(&fid);
            return;
        }
        if self.movers.len() >= FILES_MAX {
            self.movers.clear();
        }
        self.movers.insert(fid, client);
    }

    /// Whether this client may replace the layout.
    pub(crate) fn may(&self, fid: Fid, client: ExportId) -> bool {
        self.movers.get(&fid) == Some(&client)
    }

    /// A client is gone.
    pub(crate) fn gone(&mut self, client: ExportId) {
        self.movers.retain(|_, mover| *mover != client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Fid = Fid::new(0x400, 1);
    const MOVER: ExportId = ExportId(1);
    const OTHER: ExportId = ExportId(2);

    #[test]
    fn who_confirms_last_decides() {
        let mut swaps = Swaps::default();
        assert!(!swaps.may(FILE, MOVER), "never confirmed");
        swaps.confirmed(FILE, MOVER, true);
        assert!(swaps.may(FILE, MOVER) && !swaps.may(FILE, OTHER));
        swaps.confirmed(Fid::new(0x400, 2), OTHER, false);
        assert!(swaps.may(FILE, MOVER), "that was another file");
        swaps.confirmed(FILE, OTHER, false);
        assert!(!swaps.may(FILE, MOVER));
        swaps.confirmed(FILE, MOVER, true);
        swaps.gone(OTHER);
        assert!(swaps.may(FILE, MOVER));
        swaps.gone(MOVER);
        assert!(!swaps.may(FILE, MOVER));
    }

    #[test]
    fn the_notes_are_bounded() {
        let mut swaps = Swaps::default();
        for oid in 0..FILES_MAX as u32 + 1 {
            swaps.confirmed(Fid::new(0x500, oid), MOVER, true);
        }
        assert!(swaps.movers.len() <= FILES_MAX);
        assert!(swaps.may(Fid::new(0x500, FILES_MAX as u32), MOVER), "the newest is there");
    }
}
