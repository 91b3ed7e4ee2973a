//! `lfs setdirstripe` of a directory that exists: other stripes.

use std::io;
use std::path::Path;

use anyhow::anyhow;
use client::api::DirStripes;
use fuse::ioctl::{self, MERGING, MOVING, SPLITTING, Verb};
use proto::msg::DirHash;

use super::directories::mdt_of;
use super::explain;
use super::placement::{Chosen, Count, Places, candidates};
use super::space::spaces;

/// Gives a directory other stripes. Its names move afterwards.
pub(super) fn restripe(
    path: &Path,
    places: Option<&Places>,
    count: Option<Count>,
    hash: Option<DirHash>,
) -> anyhow::Result<()> {
    let layout = ioctl::dir_layout(path).map_err(|error| explain(path, &error))?;
    if layout.as_ref().is_some_and(|layout| layout.hash & (MOVING | SPLITTING | MERGING) != 0) {
        return Err(refused(path, &io::Error::from_raw_os_error(16)));
    }
    let now: Vec<u32> = match &layout {
        Some(layout) => layout.stripes.iter().map(|(mdt, _)| *mdt).collect(),
        None => vec![mdt_of(path)?],
    };
    let wanted = wanted(&now, places, count, || Ok(candidates(&spaces(path)?)))?;
    let added = added(&now, &wanted);
    let wish = DirStripes { count: wanted.len() as u32, added, hash: hash.map_or(0, |hash| hash as i32) };
    let input = ioctl::stripes_bytes(&wish).ok_or_else(|| refused(path, &io::Error::from_raw_os_error(75)))?;
    ioctl::ask(path, Verb::SetDirLayout, &input).map_err(|error| refused(path, &error))?;
    Ok(())
}

/// The metadata targets of all stripes that the directory shall have, in no particular order.
fn wanted(
    now: &[u32],
    places: Option<&Places>,
    count: Option<Count>,
    candidates: impl FnOnce() -> anyhow::Result<Vec<super::placement::Candidate>>,
) -> anyhow::Result<Vec<u32>> {
    let count = count.filter(|count| count.is_many()).unwrap_or(Count::Each(1));
    Ok(match places {
        Some(Places::Only(list)) => Chosen::named(list, Some(count)).mdts,
        _ if !count.is_many() => now[..1].to_vec(),
        _ => Chosen::among(&candidates()?, now.first().copied(), count)
            .map_or_else(|| now.to_vec(), |chosen| chosen.mdts),
    })
}

/// The targets of the stripes that it has too few: of those that are wanted, what it does not have yet comes first.
fn added(now: &[u32], wanted: &[u32]) -> Vec<u32> {
    let (mut lacking, mut has) = (Vec::new(), now.to_vec());
    for mdt in wanted {
        match has.iter().position(|known| known == mdt) {
            Some(at) => drop(has.swap_remove(at)),
            None => lacking.push(*mdt),
        }
    }
    lacking.truncate(wanted.len().saturating_sub(now.len()));
    lacking
}

/// The message for a directory that keeps its stripes.
fn refused(path: &Path, error: &io::Error) -> anyhow::Error {
    let name = path.display();
    match error.raw_os_error() {
        // EPERM
        Some(1) => anyhow!(
            "'{name}': File exists; other stripes may be given to it by root, and the group that mdt.*.enable_remote_dir_gid allows, \
             where mdt.*.enable_dir_restripe, enable_remote_dir and enable_striped_dir are 1; the root of the file system has one"
        ),
        // EBUSY
        Some(16) => {
            anyhow!("'{name}': its names still move to other stripes after an earlier change; see: lfs getdirstripe")
        }
        // EINVAL
        Some(22) => anyhow!(
            "'{name}': its stripes cannot become these: the first one stays, at most 5 are on a metadata target, and more or fewer come \
             and go at the end; see: lfs getdirstripe"
        ),
        // E2BIG
        Some(7) => anyhow!("'{name}': a change of so many stripes on so many metadata targets is too large"),
        // EOVERFLOW
        Some(75) => anyhow!("'{name}': more than {} stripes are not possible", client::api::STRIPES_MAX),
        // EOPNOTSUPP
        Some(95) => anyhow!("'{name}': a metadata target is of an older version, without striped directories"),
        _ => explain(path, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_added() {
        assert_eq!(added(&[0], &[0, 1, 2]), [1, 2]);
        assert_eq!(added(&[1], &[1, 2, 3, 0]), [2, 3, 0]);
        assert_eq!(added(&[0, 1], &[0, 1, 2, 0, 1]), [2, 0, 1]);
        assert!(added(&[0, 1, 2], &[0, 1]).is_empty());
        assert_eq!(added(&[0, 3], &[1, 2, 4]), [1]);
    }

    #[test]
    fn a_number_is_counted_from_the_first_stripe() {
        use super::super::placement::Candidate;
        let all = || Ok((0..4).map(|mdt| Candidate { mdt, room: Some((9, 9)) }).collect());
        let of = |places: Option<&Places>, count| wanted(&[2, 3], places, Some(count), all).unwrap();
        assert_eq!(of(None, Count::Each(4)), [2, 3, 0, 1]);
        assert_eq!(of(None, Count::All).len(), 4);
        assert_eq!(of(None, Count::Each(1)), [2]);
        assert_eq!(of(None, Count::Each(0)), [2]);
        assert_eq!(of(Some(&Places::Only(vec![0, 2, 1])), Count::All), [0, 2, 1]);
    }
}
