//! Compatibility of lock modes.
//!
//! The table is Lustre's (and older than Lustre: the VAX/VMS distributed lock manager has it too):
//!
//! ```text
//!        EX  PW  PR  CW  CR  NL
//!    EX   .   .   .   .   .   +
//!    PW   .   .   .   .   +   +
//!    PR   .   .   +   .   +   +
//!    CW   .   .   .   +   +   +
//!    CR   .   +   +   +   +   +
//!    NL   +   +   +   +   +   +
//! ```
//!
//! A mode *covers* another if it excludes everything that the other excludes: a holder of PW need not request PR.

use proto::msg::LockMode;

/// The modes by table index, strongest first.
pub(crate) const MODES: [LockMode; 6] =
    [LockMode::Ex, LockMode::Pw, LockMode::Pr, LockMode::Cw, LockMode::Cr, LockMode::Nl];

const EX: u8 = LockMode::Ex as u8;
const PW: u8 = LockMode::Pw as u8;
const PR: u8 = LockMode::Pr as u8;
const CW: u8 = LockMode::Cw as u8;
const CR: u8 = LockMode::Cr as u8;
const NL: u8 = LockMode::Nl as u8;

/// The modes compatible with `mode`, as a set of Lustre's mode numbers.
fn compatible_set(mode: LockMode) -> u8 {
    match mode {
        LockMode::Unset => 0,
        LockMode::Ex => NL,
        LockMode::Pw => CR | NL,
        LockMode::Pr => PR | CR | NL,
        LockMode::Cw => CW | CR | NL,
        LockMode::Cr => PW | PR | CW | CR | NL,
        LockMode::Nl => EX | PW | PR | CW | CR | NL,
    }
}

/// Whether two exports may hold the same part of a resource in these modes at once.
#[inline]
pub fn compatible(a: LockMode, b: LockMode) -> bool {
    compatible_set(a) & (b as u8) != 0
}

/// Whether a lock in mode `held` satisfies a request for mode `wanted`.
#[inline]
pub fn covers(held: LockMode, wanted: LockMode) -> bool {
    held != LockMode::Unset && wanted != LockMode::Unset && compatible_set(held) & !compatible_set(wanted) == 0
}

/// Whether a holder in `mode` may modify what the lock protects.
#[inline]
pub fn writes(mode: LockMode) -> bool {
    matches!(mode, LockMode::Ex | LockMode::Pw | LockMode::Cw)
}

/// Position in [`MODES`].
#[inline]
pub(crate) fn index(mode: LockMode) -> usize {
    match mode {
        LockMode::Ex => 0,
        LockMode::Pw => 1,
        LockMode::Pr => 2,
        LockMode::Cw => 3,
        LockMode::Cr => 4,
        LockMode::Nl | LockMode::Unset => 5,
    }
}

/// Number of locks in each mode, which rules out conflicts without looking at the locks.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct ModeCounts([u32; 6]);

impl ModeCounts {
    pub(crate) fn add(&mut self, mode: LockMode) {
        self.0[index(mode)] += 1;
    }

    pub(crate) fn remove(&mut self, mode: LockMode) {
        self.0[index(mode)] -= 1;
    }

    /// Whether any counted lock is in a mode incompatible with `mode`.
    #[inline]
    pub(crate) fn any_incompatible(&self, mode: LockMode) -> bool {
        MODES.iter().zip(self.0).any(|(&m, n)| n != 0 && !compatible(m, mode))
    }

    /// Whether any counted lock is in this mode.
    pub(crate) fn has(&self, mode: LockMode) -> bool {
        self.0[index(mode)] != 0
    }

    /// How many counted locks are in a mode incompatible with `mode`.
    pub(crate) fn incompatible(&self, mode: LockMode) -> u32 {
        MODES.iter().zip(self.0).filter(|(m, _)| !compatible(**m, mode)).map(|(_, n)| n).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_is_lustres() {
        let table = ["-----+", "----++", "--+-++", "---+++", "-+++++", "++++++"];
        for (i, row) in table.iter().enumerate() {
            for (j, c) in row.chars().enumerate() {
                assert_eq!(compatible(MODES[i], MODES[j]), c == '+', "{:?} {:?}", MODES[i], MODES[j]);
                assert_eq!(compatible(MODES[i], MODES[j]), compatible(MODES[j], MODES[i]), "symmetric");
            }
        }
        for m in MODES {
            assert!(!compatible(m, LockMode::Unset) && !covers(m, LockMode::Unset) && !covers(LockMode::Unset, m));
        }
    }

    #[test]
    fn covering_is_excluding_at_least_as_much() {
        let table = ["++++++", "-+++++", "--+-++", "---+++", "----++", "-----+"];
        for (i, row) in table.iter().enumerate() {
            for (j, c) in row.chars().enumerate() {
                assert_eq!(covers(MODES[i], MODES[j]), c == '+', "{:?} {:?}", MODES[i], MODES[j]);
            }
        }
    }

    #[test]
    fn counts_answer_as_a_scan_would() {
        let mut counts = ModeCounts::default();
        counts.add(LockMode::Pr);
        counts.add(LockMode::Cr);
        assert!(!counts.any_incompatible(LockMode::Pr) && counts.any_incompatible(LockMode::Pw));
        counts.remove(LockMode::Pr);
        assert!(!counts.any_incompatible(LockMode::Pw) && counts.any_incompatible(LockMode::Ex));
    }
}
