//! Whose turn it is among targets that take turns by weight.
//!
//! Each target gains its weight in every turn, and the one that has most takes it and pays for all:
//!
//! ```text
//! weights 3 1      3 1 -> the first    -1 1
//!                  2 2 -> the first    -2 2
//!                  1 3 -> the second    1 -1
//!                  4 0 -> the first     0 0
//! ```
//! So shares are those of the weights, evenly spread, and equal weights give a round robin.

use core::time::Duration;
use std::collections::BTreeMap;

use rules::placement::Qos;

/// The greatest weight that is told from greater ones. Sums of turns stay far below what an i64 holds.
const WEIGHT_MAX: u64 = 1 << 32;

/// See the module.
#[derive(Debug)]
pub(crate) struct Turns {
    gained: BTreeMap<u32, i64>,
    /// Which target is the first among equals: not the same for all clients.
    seed: u64,
    /// `lmv.*.qos_threshold_rr` and `lmv.*.qos_prio_free`: what gives targets their weight.
    pub(crate) qos: Qos,
    /// `lmv.*.qos_maxage`: how old a weight may be.
    pub(crate) space_age_max: Duration,
}

impl Turns {
    /// Nobody has had a turn yet.
    pub(crate) fn new(seed: u64) -> Turns {
        let qos = Qos { threshold_rr: 5, prio_free: 90 };
        Turns { gained: BTreeMap::new(), seed, qos, space_age_max: Duration::from_secs(10) }
    }

    /// The next of these targets, each with its weight; `None` if there are none.
    pub(crate) fn next(&mut self, targets: &[(u32, u64)]) -> Option<u32> {
        let greatest = targets.iter().map(|(_, weight)| *weight).max()?.max(1);
        let scaled = |weight: u64| {
            let weight = u128::from(weight) * u128::from(WEIGHT_MAX) / u128::from(greatest);
            i64::try_from(weight).unwrap_or(0).max(1)
        };
        self.gained.retain(|mdt, _| targets.iter().any(|(target, _)| target == mdt));
        let mut sum = 0;
        for (mdt, weight) in targets {
            let weight = scaled(*weight);
            *self.gained.entry(*mdt).or_default() += weight;
            sum += weight;
        }
        let start = self.seed % targets.len() as u64;
        let place = |mdt: u32| {
            let at = targets.iter().position(|(target, _)| *target == mdt).unwrap_or(0) as u64;
            (at + targets.len() as u64 - start) % targets.len() as u64
        };
        let (mdt, gained) = self.gained.iter_mut().max_by_key(|(mdt, gained)| (**gained, u64::MAX - place(**mdt)))?;
        *gained -= sum;
        Some(*mdt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(seed: u64, targets: &[(u32, u64)], count: usize) -> Vec<u32> {
        let mut turns = Turns::new(seed);
        (0..count).map(|_| turns.next(targets).unwrap()).collect()
    }

    #[test]
    fn equals_take_turns_and_others_by_weight() {
        assert_eq!(turns(0, &[(3, 7), (5, 7), (9, 7)], 6), [3, 5, 9, 3, 5, 9]);
        assert_eq!(turns(4, &[(3, 7), (5, 7), (9, 7)], 6), [5, 9, 3, 5, 9, 3]);
        assert_eq!(turns(0, &[(0, 3), (1, 1)], 4), [0, 0, 1, 0]);
        let many = turns(0, &[(0, u64::MAX), (1, u64::MAX / 4), (2, 0)], 500);
        let count = |mdt| many.iter().filter(|turn| **turn == mdt).count();
        assert_eq!((count(0), count(1), count(2)), (400, 100, 0));
        assert_eq!(Turns::new(1).next(&[]), None);
    }

    #[test]
    fn a_target_that_goes_and_comes_back_does_not_make_up_for_it() {
        let mut turns = Turns::new(0);
        for _ in 0..10 {
            turns.next(&[(0, 1), (1, 1)]);
        }
        for _ in 0..10 {
            assert_eq!(turns.next(&[(1, 1)]), Some(1));
        }
        let next: Vec<u32> = (0..4).filter_map(|_| turns.next(&[(0, 1), (1, 1)])).collect();
        assert_eq!(next, [0, 1, 0, 1]);
    }
}
