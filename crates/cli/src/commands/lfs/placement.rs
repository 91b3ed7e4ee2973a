//! The choice of metadata targets for the stripes of a new directory.
//!
//! The user names targets, or a number of stripes, or both. Targets that are named are taken as they are. Others are chosen only
//! if they answer and have room: the one with the most free inodes gets the directory itself, the next ones the other stripes.
//! After the first, stripes follow in the order of indexes, round by round:
//!
//! ```text
//! -c 3        on 4 targets, MDT0001 the fullest, MDT0002 the emptiest:    2 3 0
//! -i 3 -c 3                                                               3 0 1
//! -i 3,1                                                                  3 1
//! -i 3,1 -C 5                                                             3 1 3 1 3
//! -C -2                                                                   2 3 0 1 2 3 0 1
//! ```

use std::cmp::Reverse;

use client::api::{STRIPES_MAX, STRIPES_PER_TARGET_MAX};

use super::space::TargetSpace;

/// The targets that the user names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Places {
    /// Any.
    Any,
    /// This one first, and then those that follow it.
    From(u32),
    /// Only these, in this order.
    Only(Vec<u32>),
}

/// The number of stripes that the user wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Count {
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
    pub(super) fn is_many(self) -> bool {
        !matches!(self, Count::Each(0 | 1) | Count::Over(0 | 1))
    }
}

/// The targets of a new directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Chosen {
    /// Index for each stripe.
    pub mdts: Vec<u32>,
    /// Targets that would have a stripe if they answered and had room.
    pub left_out: Vec<u32>,
}

impl Chosen {
    /// Chooses targets that are named, all of them.
    pub(super) fn named(targets: &[u32], count: Option<Count>) -> Chosen {
        // Without a number, each of them gets one stripe.
        let mdts = rounds(targets, stripes(count.unwrap_or(Count::All), targets.len()));
        Chosen { mdts, left_out: Vec::new() }
    }

    /// Chooses among the targets of a file system; `None` if none answers and has room. `first`: a target that is named.
    pub(super) fn among(targets: &[TargetSpace], first: Option<u32>, count: Count) -> Option<Chosen> {
        let metadata = targets.iter().filter(|target| target.is_mdt());
        let (fit, unfit): (Vec<_>, Vec<_>) =
            metadata.filter(|target| Some(target.index()) != first).partition(|target| room(target).is_some());
        let mut others: Vec<u32> = fit.iter().map(|target| target.index()).collect();
        let wanted = stripes(count, first.iter().len() + others.len() + unfit.len());
        let first = match first {
            Some(first) => first,
            None => {
                let mut by_room = fit;
                by_room.sort_by_key(|target| Reverse((room(target), Reverse(target.index()))));
                others = by_room.iter().take(wanted).map(|target| target.index()).collect();
                if others.is_empty() {
                    return None;
                }
                others.remove(0)
            }
        };
        others.sort_unstable_by_key(|index| (*index < first, *index));
        others.insert(0, first);
        let mdts = rounds(&others, stripes(count, others.len()));
        let mut left_out: Vec<u32> = unfit.iter().map(|target| target.index()).collect();
        left_out.sort_unstable();
        if mdts.len() >= wanted {
            left_out.clear();
        }
        Some(Chosen { mdts, left_out })
    }
}

/// The free inodes and the space of a target that can take new directories.
fn room(target: &TargetSpace) -> Option<(u64, u64)> {
    match target.figures.as_deref() {
        Ok([_, _, available, _, files_free, ..]) if *available > 0 && *files_free > 0 => {
            Some((*files_free, *available))
        }
        _ => None,
    }
}

/// The number of stripes on this many targets.
fn stripes(count: Count, targets: usize) -> usize {
    let stripes = match count {
        Count::Each(count) => (count as usize).clamp(1, targets.max(1)),
        Count::All => targets,
        Count::Over(count) => (count as usize).clamp(1, STRIPES_PER_TARGET_MAX * targets.max(1)),
        Count::PerTarget(count) => count as usize * targets,
    };
    stripes.min(STRIPES_MAX)
}

/// The targets in this order, again and again.
fn rounds(targets: &[u32], stripes: usize) -> Vec<u32> {
    targets.iter().copied().cycle().take(stripes).collect()
}

/// Parses the targets: `0`, `3,0,1`, `0-3,7`, or `-1` for any.
pub(super) fn parse_places(text: &str) -> Result<Places, String> {
    if text == "-1" {
        return Ok(Places::Any);
    }
    let index = |text: &str| {
        let index = text.parse::<u16>().ok().filter(|_| !text.starts_with('+'));
        index
            .map(u32::from)
            .ok_or_else(|| "expected indexes of metadata targets, as in 0,2 or 1-3, or -1 for any".to_owned())
    };
    let mut list = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (index(first)?, index(last)?);
        if first > last {
            return Err(format!("{part}: expected the lower index first"));
        }
        list.extend(first..=last);
        if list.len() > STRIPES_MAX {
            return Err(format!("more than {STRIPES_MAX} stripes are not possible"));
        }
    }
    let mut once = list.clone();
    once.sort_unstable();
    once.dedup();
    if once.len() < list.len() {
        return Err("a metadata target is named twice; -C makes several stripes on each".to_owned());
    }
    Ok(match list[..] {
        [only] => Places::From(only),
        _ => Places::Only(list),
    })
}

/// Parses a number of stripes on different targets.
pub(super) fn parse_count(text: &str) -> Result<Count, String> {
    let max = STRIPES_MAX as u32;
    match text.parse::<i64>() {
        Ok(-1) => Ok(Count::All),
        Ok(count) if count > i64::from(max) => Err(format!("more than {max} stripes are not possible")),
        Ok(count @ 0..) => Ok(Count::Each(count as u32)),
        _ => Err(format!("expected a number of stripes up to {max}, or -1 for one on each metadata target")),
    }
}

/// Parses a number of stripes, of which a target may have several.
pub(super) fn parse_overcount(text: &str) -> Result<Count, String> {
    let each = STRIPES_PER_TARGET_MAX as i64;
    match text.parse::<i64>() {
        Ok(count) if (-each..0).contains(&count) => Ok(Count::PerTarget(count.unsigned_abs() as u32)),
        Ok(count) if count < 0 => Err(format!("more than {each} stripes on a metadata target are not possible")),
        _ => match parse_count(text)? {
            Count::Each(count) => Ok(Count::Over(count)),
            other => Ok(other),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Metadata targets with this many free inodes; none: it does not answer.
    fn targets(free: &[Option<u64>]) -> Vec<TargetSpace> {
        let target = |(index, free): (usize, &Option<u64>)| TargetSpace {
            name: format!("fs-MDT{index:04x}"),
            figures: free.map(|free| vec![100, 50, 20, 1000, free, 7]).ok_or(107),
        };
        let mut all: Vec<TargetSpace> = free.iter().enumerate().map(target).collect();
        all.push(TargetSpace { name: "fs-OST0000".to_owned(), figures: Ok(vec![100, 50, 90, 1000, 9000, 0]) });
        all
    }

    #[track_caller]
    fn check(free: &[Option<u64>], first: Option<u32>, count: Count, mdts: &[u32], left_out: &[u32]) {
        let chosen = Chosen { mdts: mdts.to_vec(), left_out: left_out.to_vec() };
        assert_eq!(Chosen::among(&targets(free), first, count), Some(chosen));
    }

    const FOUR: [Option<u64>; 4] = [Some(500), Some(100), Some(600), Some(550)];

    #[test]
    fn the_emptiest_metadata_target_has_the_directory_and_the_next_ones_its_stripes() {
        for one in [Count::Each(0), Count::Each(1), Count::Over(1)] {
            check(&FOUR, None, one, &[2], &[]);
        }
        check(&FOUR, None, Count::Each(3), &[2, 3, 0], &[]);
        check(&FOUR, None, Count::Each(9), &[2, 3, 0, 1], &[]);
        check(&FOUR, None, Count::All, &[2, 3, 0, 1], &[]);
        check(&FOUR, None, Count::Over(6), &[2, 3, 0, 1, 2, 3], &[]);
        check(&FOUR, None, Count::Over(2000), &[2, 3, 0, 1].repeat(5), &[]);
        check(&FOUR, None, Count::PerTarget(2), &[2, 3, 0, 1].repeat(2), &[]);
        check(&[Some(1)], None, Count::Over(3), &[0, 0, 0], &[]);
        // Of equals the one with the most space, then the first.
        let mut equal = targets(&[Some(5), Some(5)]);
        let one = |targets: &[TargetSpace]| Chosen::among(targets, None, Count::Each(1)).unwrap().mdts;
        assert_eq!(one(&equal), [0]);
        equal[1].figures = Ok(vec![100, 50, 21, 1000, 5, 7]);
        assert_eq!(one(&equal), [1]);
    }

    #[test]
    fn the_others_follow_the_one_that_is_named() {
        check(&FOUR, Some(3), Count::Each(3), &[3, 0, 1], &[]);
        check(&FOUR, Some(1), Count::All, &[1, 2, 3, 0], &[]);
        check(&FOUR, Some(1), Count::Over(5), &[1, 2, 3, 0, 1], &[]);
        // Whether it is there or not: the mount answers for that.
        check(&[Some(5), None, None], Some(1), Count::All, &[1, 0], &[2]);
        check(&[Some(5)], Some(9), Count::Each(2), &[9, 0], &[]);
    }

    #[test]
    fn targets_that_are_away_or_full_are_not_chosen() {
        let some = [Some(500), None, Some(0), Some(600)];
        check(&some, None, Count::Each(2), &[3, 0], &[]);
        check(&some, None, Count::Each(3), &[3, 0], &[1, 2]);
        check(&some, None, Count::All, &[3, 0], &[1, 2]);
        check(&some, None, Count::PerTarget(2), &[3, 0, 3, 0], &[1, 2]);
        check(&some, None, Count::Over(4), &[3, 0, 3, 0], &[]);
        assert_eq!(Chosen::among(&targets(&[None, Some(0)]), None, Count::All), None);
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
    fn what_is_typed() {
        assert_eq!(parse_places("11"), Ok(Places::From(11)));
        assert_eq!(parse_places("-1"), Ok(Places::Any));
        assert_eq!(parse_places("3,0-2,7"), Ok(Places::Only(vec![3, 0, 1, 2, 7])));
        for (bad, why) in [
            ("-2", "-1 for any"),
            ("x", "indexes"),
            ("1,", "indexes"),
            ("1,-1", "indexes"),
            ("+1", "indexes"),
            ("65536", "indexes"),
            ("3-1", "lower"),
            ("0,1,0", "twice"),
            ("0-65535", "2000"),
        ] {
            assert!(parse_places(bad).is_err_and(|error| error.contains(why)), "{bad}");
        }
        assert_eq!((parse_count("-1"), parse_count("0")), (Ok(Count::All), Ok(Count::Each(0))));
        assert_eq!((parse_count("2000"), parse_overcount("2000")), (Ok(Count::Each(2000)), Ok(Count::Over(2000))));
        assert_eq!((parse_overcount("-1"), parse_overcount("-5")), (Ok(Count::PerTarget(1)), Ok(Count::PerTarget(5))));
        for (bad, why) in [("2001", "2000"), ("-2", "-1 for one"), ("x", "number"), ("99999999999999999999", "number")]
        {
            assert!(parse_count(bad).is_err_and(|error| error.contains(why)), "{bad}");
        }
        for (bad, why) in [("2001", "2000"), ("-6", "more than 5"), ("", "number")] {
            assert!(parse_overcount(bad).is_err_and(|error| error.contains(why)), "{bad}");
        }
    }
}
