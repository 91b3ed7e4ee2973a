//! What a user says of the metadata targets of a directory, and the targets to choose among ([`client::api::placement`]).

pub(super) use client::api::placement::{Candidate, Chosen, Count};
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

/// The metadata targets to choose among.
pub(super) fn candidates(targets: &[TargetSpace]) -> Vec<Candidate> {
    let metadata = targets.iter().filter(|target| target.is_mdt());
    metadata.map(|target| Candidate { mdt: target.index(), room: room(target) }).collect()
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

    #[test]
    fn only_metadata_targets_that_have_room_are_candidates() {
        let target = |name: &str, figures| TargetSpace { name: name.to_owned(), figures };
        let figures = |available, free| Ok(vec![100, 50, available, 1000, free, 7]);
        let all = [
            target("fs-MDT0000", figures(20, 5)),
            target("fs-MDT0001", figures(20, 0)),
            target("fs-MDT0002", figures(0, 5)),
            target("fs-MDT0003", Err(107)),
            target("fs-OST0000", figures(90, 9000)),
        ];
        let rooms: Vec<_> = candidates(&all).iter().map(|candidate| (candidate.mdt, candidate.room)).collect();
        assert_eq!(rooms, [(0, Some((5, 20))), (1, None), (2, None), (3, None)]);
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
