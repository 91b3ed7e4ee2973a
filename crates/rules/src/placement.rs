//! On which metadata targets a new directory lies, and what it inherits of the default of the directory above.
//!
//! A user names targets, or a number of stripes, or both, for one directory or as the default of a directory. Targets that are named
//! are taken as they are. Others are chosen only if they answer and have room. After the first, stripes follow in the order of
//! indexes, round by round:
//!
//! ```text
//! -c 3        on 4 targets, MDT0001 the fullest, MDT0002 the emptiest:    2 3 0
//! -i 3 -c 3                                                               3 0 1
//! -i 3,1                                                                  3 1
//! -i 3,1 -C 5                                                             3 1 3 1 3
//! -C -2                                                                   2 3 0 1 2 3 0 1
//! ```

use core::cmp::Reverse;
use std::collections::BTreeSet;

use proto::Errno;
use proto::msg::{DIR_DEFAULT_TARGETS_MAX, DirDefault, DirHash, inherit};

use crate::stripes::{STRIPES_MAX, STRIPES_PER_TARGET_MAX};

/// The number of stripes that is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    /// So many, on a target each, or as many as there are targets. 0 and 1: the directory is not striped.
    Each(u32),
    /// One on each target.
    All,
    /// So many, several on a target if there are fewer targets.
    Over(u32),
    /// So many on each target.
    PerTarget(u32),
}

impl Count {
    /// Whether more than one stripe is wanted, or all that there can be.
    pub fn is_many(self) -> bool {
        !matches!(self, Count::Each(0 | 1) | Count::Over(0 | 1))
    }

    /// The count of a default; `None` if there is no such count.
    pub fn of(default: &DirDefault) -> Option<Count> {
        let positive = u32::try_from(default.count).ok().filter(|count| *count as usize <= STRIPES_MAX);
        match (default.overstripe, positive) {
            (false, Some(count)) => Some(Count::Each(count)),
            (true, Some(count)) => Some(Count::Over(count)),
            (false, None) => (default.count == -1).then_some(Count::All),
            (true, None) => {
                let each = default.count.checked_neg().and_then(|count| u32::try_from(count).ok())?;
                (each as usize <= STRIPES_PER_TARGET_MAX).then_some(Count::PerTarget(each))
            }
        }
    }

    /// The same as the fields of a default: `count` and `overstripe`.
    pub fn fields(self) -> (i32, bool) {
        match self {
            Count::Each(count) => (count as i32, false),
            Count::All => (-1, false),
            Count::Over(count) => (count as i32, true),
            Count::PerTarget(count) => (-(count as i32), true),
        }
    }

    /// The number of stripes on this many targets.
    fn stripes(self, targets: usize) -> usize {
        let stripes = match self {
            Count::Each(count) => (count as usize).clamp(1, targets.max(1)),
            Count::All => targets,
            Count::Over(count) => (count as usize).clamp(1, STRIPES_PER_TARGET_MAX * targets.max(1)),
            Count::PerTarget(count) => count as usize * targets,
        };
        stripes.min(STRIPES_MAX)
    }
}

/// A metadata target that a directory may be placed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Its index.
    pub mdt: u32,
    /// Its free inodes and its space, if it answers and can take new directories.
    pub room: Option<(u64, u64)>,
}

/// When targets are chosen by what is free on them, and how strongly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Qos {
    /// Lustre's `qos_threshold_rr`, in percent: targets take turns while the one with the least has at most this much less than
    /// the one with the most.
    pub threshold_rr: u8,
    /// Lustre's `qos_prio_free`, in percent: the weight of what is free against an even spread.
    pub prio_free: u8,
}

impl Qos {
    /// The weight of each target, in the unit of `free`, what is free on each; `None` if they take turns.
    pub fn weights(self, free: &[u64]) -> Option<Vec<u64>> {
        let (least, most) = (free.iter().min()?, free.iter().max()?);
        let alike = u128::from(100 - self.threshold_rr.min(100));
        if u128::from(*least) * 100 >= u128::from(*most) * alike {
            return None;
        }
        let mean = free.iter().copied().map(u128::from).sum::<u128>() / free.len() as u128;
        let prio = u128::from(self.prio_free.min(100));
        let weight = |free: &u64| (u128::from(*free) * prio + mean * (100 - prio)) / 100;
        Some(free.iter().map(|free| u64::try_from(weight(free)).unwrap_or(u64::MAX).max(1)).collect())
    }
}

/// The targets of a new directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// Index for each stripe.
    pub mdts: Vec<u32>,
    /// Targets that would have a stripe if they answered and had room.
    pub left_out: Vec<u32>,
}

impl Chosen {
    /// Chooses targets that are named, all of them.
    pub fn named(targets: &[u32], count: Option<Count>) -> Chosen {
        // Without a number, each of them gets one stripe.
        let mdts = rounds(targets, count.unwrap_or(Count::All).stripes(targets.len()));
        Chosen { mdts, left_out: Vec::new() }
    }

    /// Chooses among the targets of a file system; `None` if none answers and has room. `first`: the target of the first stripe;
    /// without it that is the one with the most free inodes.
    pub fn among(targets: &[Candidate], first: Option<u32>, count: Count) -> Option<Chosen> {
        let others = targets.iter().filter(|target| Some(target.mdt) != first);
        let (fit, unfit): (Vec<&Candidate>, Vec<&Candidate>) = others.partition(|target| target.room.is_some());
        let mut others: Vec<u32> = fit.iter().map(|target| target.mdt).collect();
        let wanted = count.stripes(first.iter().len() + others.len() + unfit.len());
        let first = match first {
            Some(first) => first,
            None => {
                let mut by_room = fit;
                by_room.sort_by_key(|target| Reverse((target.room, Reverse(target.mdt))));
                others = by_room.iter().take(wanted).map(|target| target.mdt).collect();
                if others.is_empty() {
                    return None;
                }
                others.remove(0)
            }
        };
        others.sort_unstable_by_key(|index| (*index < first, *index));
        others.insert(0, first);
        let mdts = rounds(&others, count.stripes(others.len()));
        let mut left_out: Vec<u32> = unfit.iter().map(|target| target.mdt).collect();
        left_out.sort_unstable();
        if mdts.len() >= wanted {
            left_out.clear();
        }
        Some(Chosen { mdts, left_out })
    }
}

/// The targets in this order, again and again.
fn rounds(targets: &[u32], stripes: usize) -> Vec<u32> {
    targets.iter().copied().cycle().take(stripes).collect()
}

/// Checks a default that somebody wants to set.
///
/// # Errors
/// `E2BIG`: more targets than [`DIR_DEFAULT_TARGETS_MAX`]. `EINVAL`: anything else is wrong.
pub fn check(default: &DirDefault) -> Result<(), Errno> {
    let DirDefault { mdts, max_inherit, max_inherit_rr, .. } = default;
    let is_depth = |depth: u32| matches!(depth, 0..=inherit::LEVELS_MAX | 255);
    let distinct: BTreeSet<u32> = mdts.iter().copied().collect();
    match () {
        () if mdts.len() > DIR_DEFAULT_TARGETS_MAX => Err(Errno::E2BIG),
        () if Count::of(default).is_none() || DirHash::try_from(default.hash).is_err() => Err(Errno::EINVAL),
        () if distinct.len() < mdts.len() || distinct.last().is_some_and(|mdt| *mdt > u16::MAX.into()) => {
            Err(Errno::EINVAL)
        }
        () if !is_depth(*max_inherit) || !is_depth(*max_inherit_rr) => Err(Errno::EINVAL),
        () => Ok(()),
    }
}

/// Whether a new directory with these stripes may lie where it does because of a default. `mdts`: the target of each.
pub fn agrees(default: &DirDefault, mdts: &[u32], hash: i32) -> bool {
    let Some(count) = Count::of(default) else { return false };
    let most = match count {
        Count::Each(count) | Count::Over(count) => count.max(1) as usize,
        Count::All | Count::PerTarget(_) => STRIPES_MAX,
    };
    let on_one = match count {
        Count::Each(_) | Count::All => 1,
        Count::Over(_) => STRIPES_PER_TARGET_MAX,
        Count::PerTarget(count) => count as usize,
    };
    let place = match &default.mdts[..] {
        [] => true,
        [first] => mdts.first() == Some(first),
        list => mdts.iter().all(|mdt| list.contains(mdt)),
    };
    let mut sorted = mdts.to_vec();
    sorted.sort_unstable();
    let is_spread = sorted.chunk_by(|one, next| one == next).all(|same| same.len() <= on_one);
    place && is_spread && mdts.len() <= most && (mdts.len() == 1 || hash == default.hash)
}

/// The default of the root directory of a new file system, as in Lustre: directories of the first three levels are on the metadata
/// targets in turn, those below on the target of the directory above.
pub fn of_root() -> DirDefault {
    DirDefault { count: 1, max_inherit: 3, max_inherit_rr: 3, ..DirDefault::default() }
}

/// The default that a directory inherits from the one above.
pub fn inherited(above: Option<&DirDefault>) -> Option<Box<DirDefault>> {
    let above = above?;
    let next = |levels: u32| levels.saturating_sub(1);
    let max_inherit = match above.max_inherit {
        inherit::UNLIMITED => inherit::UNLIMITED,
        levels @ 2..=inherit::LEVELS_MAX => next(levels),
        _ => return None,
    };
    let max_inherit_rr = match above.max_inherit_rr {
        inherit::TURNS_UNLIMITED => inherit::TURNS_UNLIMITED,
        levels => next(levels),
    };
    Some(Box::new(DirDefault { max_inherit, max_inherit_rr, ..above.clone() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Metadata targets with this many free inodes; none: it does not answer or is full.
    fn targets(free: &[Option<u64>]) -> Vec<Candidate> {
        let target = |(mdt, free): (u32, &Option<u64>)| Candidate { mdt, room: free.map(|free| (free, 20)) };
        (0..).zip(free).map(target).collect()
    }

    #[track_caller]
    fn check_choice(free: &[Option<u64>], first: Option<u32>, count: Count, mdts: &[u32], left_out: &[u32]) {
        let chosen = Chosen { mdts: mdts.to_vec(), left_out: left_out.to_vec() };
        assert_eq!(Chosen::among(&targets(free), first, count), Some(chosen));
    }

    const FOUR: [Option<u64>; 4] = [Some(500), Some(100), Some(600), Some(550)];

    #[test]
    fn the_emptiest_metadata_target_has_the_directory_and_the_next_ones_its_stripes() {
        for one in [Count::Each(0), Count::Each(1), Count::Over(1)] {
            check_choice(&FOUR, None, one, &[2], &[]);
        }
        check_choice(&FOUR, None, Count::Each(3), &[2, 3, 0], &[]);
        check_choice(&FOUR, None, Count::Each(9), &[2, 3, 0, 1], &[]);
        check_choice(&FOUR, None, Count::All, &[2, 3, 0, 1], &[]);
        check_choice(&FOUR, None, Count::Over(6), &[2, 3, 0, 1, 2, 3], &[]);
        check_choice(&FOUR, None, Count::Over(2000), &[2, 3, 0, 1].repeat(5), &[]);
        check_choice(&FOUR, None, Count::PerTarget(2), &[2, 3, 0, 1].repeat(2), &[]);
        check_choice(&[Some(1)], None, Count::Over(3), &[0, 0, 0], &[]);
        // Of equals the one with the most space, then the first.
        let mut equal = targets(&[Some(5), Some(5)]);
        let one = |targets: &[Candidate]| Chosen::among(targets, None, Count::Each(1)).unwrap().mdts;
        assert_eq!(one(&equal), [0]);
        equal[1].room = Some((5, 21));
        assert_eq!(one(&equal), [1]);
    }

    #[test]
    fn the_others_follow_the_one_that_is_named() {
        check_choice(&FOUR, Some(3), Count::Each(3), &[3, 0, 1], &[]);
        check_choice(&FOUR, Some(1), Count::All, &[1, 2, 3, 0], &[]);
        check_choice(&FOUR, Some(1), Count::Over(5), &[1, 2, 3, 0, 1], &[]);
        // Whether it is there or not: the mount answers for that.
        check_choice(&[Some(5), None, None], Some(1), Count::All, &[1, 0], &[2]);
        check_choice(&[Some(5)], Some(9), Count::Each(2), &[9, 0], &[]);
    }

    #[test]
    fn targets_that_are_away_or_full_are_not_chosen() {
        let some = [Some(500), None, None, Some(600)];
        check_choice(&some, None, Count::Each(2), &[3, 0], &[]);
        check_choice(&some, None, Count::Each(3), &[3, 0], &[1, 2]);
        check_choice(&some, None, Count::All, &[3, 0], &[1, 2]);
        check_choice(&some, None, Count::PerTarget(2), &[3, 0, 3, 0], &[1, 2]);
        check_choice(&some, None, Count::Over(4), &[3, 0, 3, 0], &[]);
        assert_eq!(Chosen::among(&targets(&[None, None]), None, Count::All), None);
    }

    #[test]
    fn targets_weigh_what_is_free_on_them_if_that_differs_much() {
        let weights = |threshold_rr, prio_free, free: &[u64]| Qos { threshold_rr, prio_free }.weights(free);
        assert_eq!(weights(5, 90, &[1000, 950, 990]), None);
        assert_eq!(weights(5, 100, &[1000, 949, 990]), Some(vec![1000, 949, 990]));
        assert_eq!(weights(0, 100, &[7, 6]), Some(vec![7, 6]));
        assert_eq!(weights(100, 90, &[1000, 0]), None);
        assert_eq!(weights(5, 90, &[1000, 0]), Some(vec![950, 50]));
        assert_eq!(weights(5, 0, &[1000, 0]), Some(vec![500, 500]));
        assert_eq!(weights(5, 100, &[1000, 0]), Some(vec![1000, 1]));
        assert_eq!(weights(5, 100, &[u64::MAX, 0]), Some(vec![u64::MAX, 1]));
        assert_eq!(weights(5, 90, &[]), None);
    }

    #[test]
    fn a_list_of_targets_is_taken_as_it_is() {
        let named = |count| Chosen::named(&[3, 1], count).mdts;
        assert_eq!(named(None), [3, 1]);
        assert_eq!(named(Some(Count::Each(1))), [3]);
        assert_eq!(named(Some(Count::All)), [3, 1]);
        assert_eq!(named(Some(Count::Over(5))), [3, 1, 3, 1, 3]);
        assert_eq!(named(Some(Count::Over(20))).len(), 10);
        assert_eq!(named(Some(Count::PerTarget(2))), [3, 1, 3, 1]);
    }

    #[test]
    fn every_count_is_one_of_a_default() {
        for count in [Count::Each(0), Count::Each(2000), Count::All, Count::Over(2000), Count::PerTarget(5)] {
            let (count_of, overstripe) = count.fields();
            let default = DirDefault { count: count_of, overstripe, ..DirDefault::default() };
            assert_eq!((Count::of(&default), check(&default)), (Some(count), Ok(())));
        }
        for (count, overstripe) in [(2001, false), (-2, false), (2001, true), (-6, true), (i32::MIN, true)] {
            let default = DirDefault { count, overstripe, ..DirDefault::default() };
            assert_eq!((Count::of(&default), check(&default)), (None, Err(Errno::EINVAL)), "{count}");
        }
    }

    #[test]
    fn what_a_default_may_say() {
        let fine =
            DirDefault { mdts: (0..32).collect(), max_inherit: 250, max_inherit_rr: 255, ..DirDefault::default() };
        assert_eq!(check(&fine), Ok(()));
        let refused = |change: &dyn Fn(&mut DirDefault)| {
            let mut default = fine.clone();
            change(&mut default);
            check(&default)
        };
        assert_eq!(refused(&|default| default.mdts.push(32)), Err(Errno::E2BIG));
        assert_eq!(refused(&|default| default.mdts[1] = 0), Err(Errno::EINVAL));
        assert_eq!(refused(&|default| default.mdts[1] = 65_536), Err(Errno::EINVAL));
        assert_eq!(refused(&|default| default.hash = 5), Err(Errno::EINVAL));
        assert_eq!(refused(&|default| default.max_inherit = 251), Err(Errno::EINVAL));
        assert_eq!(refused(&|default| default.max_inherit_rr = 254), Err(Errno::EINVAL));
    }

    #[test]
    fn a_default_is_inherited_as_deep_as_it_says() {
        let below = |max_inherit, max_inherit_rr| {
            let above = DirDefault { max_inherit, max_inherit_rr, count: 7, ..DirDefault::default() };
            let below = inherited(Some(&above))?;
            assert_eq!(below.count, 7);
            Some((below.max_inherit, below.max_inherit_rr))
        };
        assert_eq!(below(0, 255), Some((0, 255)));
        assert_eq!((below(1, 5), below(255, 5)), (None, None));
        assert_eq!((below(2, 1), below(250, 0)), (Some((1, 0)), Some((249, 0))));
        assert_eq!(inherited(None), None);
    }

    #[test]
    fn a_place_agrees_with_the_default_or_not() {
        let of = |mdts: &[u32], count: Count| {
            let (count, overstripe) = count.fields();
            DirDefault { count, overstripe, mdts: mdts.to_vec(), hash: 2, ..DirDefault::default() }
        };
        let plain = of(&[], Count::Each(0));
        assert!(agrees(&plain, &[7], 0) && !agrees(&plain, &[7, 8], 2));
        let named = of(&[3], Count::Each(2));
        assert!(agrees(&named, &[3, 0], 2) && agrees(&named, &[3], 0) && !agrees(&named, &[0, 3], 2));
        assert!(!agrees(&named, &[3, 3], 2) && !agrees(&named, &[3, 0], 1) && !agrees(&named, &[3, 0, 1], 2));
        let list = of(&[3, 1], Count::All);
        assert!(agrees(&list, &[3, 1], 2) && agrees(&list, &[1], 2) && !agrees(&list, &[3, 2], 2));
        assert!(agrees(&of(&[], Count::Over(4)), &[0, 0, 1, 1], 2));
        assert!(agrees(&of(&[], Count::PerTarget(2)), &[0, 0, 1, 1], 2));
        assert!(!agrees(&of(&[], Count::PerTarget(2)), &[0, 0, 0], 2));
    }
}
