//! `lfs mkdir`, `lfs setdirstripe`: makes directories on metadata targets.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;
use client::api::STRIPES_MAX;
use fuse::ioctl::{self, NewDirectory, Verb};
use proto::msg::DirHash;
use rustix::fs::{Mode, StatVfsMountFlags};

use super::directories::{directory_above, each, hash_named};
use super::explain;
use super::placement::{Chosen, Count, Places, parse_count, parse_overcount, parse_places};
use super::space::{TargetSpace, spaces};
use crate::misuse::misuse;

/// Set-user-ID and set-group-ID.
const SET_ID: u32 = 0o6000;

/// The arguments of `lfs mkdir`.
#[derive(Args)]
pub(crate) struct Make {
    /// Index of the metadata target, or of that of the first stripe; a list (3,0 or 0-3) is one stripe on each; -1 is the one with the
    /// most free inodes. Without it, and without -c or -C, that of the directory above
    #[arg(short = 'i', long = "mdt-index", visible_alias = "index", alias = "mdt", value_name = "INDEX,...")]
    #[arg(value_parser = parse_places, allow_negative_numbers = true)]
    places: Option<Places>,
    /// Number of stripes, each on another metadata target, at most as many as there are; -1 is one on each. 0 and 1: the directory
    /// is not striped
    #[arg(short = 'c', short_alias = 'T', long = "mdt-count", visible_alias = "count", value_name = "COUNT")]
    #[arg(value_parser = parse_count, allow_negative_numbers = true)]
    count: Option<Count>,
    /// As -c, with up to 5 stripes on a metadata target if there are fewer targets than stripes; -N is N stripes on each
    #[arg(short = 'C', long = "mdt-overcount", visible_alias = "overstripe-count", value_name = "COUNT")]
    #[arg(value_parser = parse_overcount, allow_negative_numbers = true, conflicts_with = "count")]
    overcount: Option<Count>,
    /// The function that assigns names to stripes: all_char, fnv_1a_64, crush or crush2
    #[arg(short = 'H', long = "mdt-hash", visible_alias = "hash", value_name = "HASH", default_value = "fnv_1a_64")]
    #[arg(value_parser = parse_hash)]
    hash: DirHash,
    /// Permissions in octal, whatever the umask
    #[arg(short = 'o', short_alias = 'm', long, value_name = "MODE", value_parser = parse_mode)]
    mode: Option<u32>,
    /// Directories to make
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

fn parse_hash(text: &str) -> Result<DirHash, String> {
    hash_named(text)
        .filter(|hash| *hash != DirHash::Unknown)
        .ok_or_else(|| "there are all_char, fnv_1a_64, crush and crush2".to_owned())
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| "expected permissions in octal, like 750".to_owned())
}

/// Runs `lfs mkdir`. Returns whether all directories could be made.
pub(super) fn make(wish: &Make) -> anyhow::Result<bool> {
    let count = wish.overcount.or(wish.count);
    if let (Some(Places::Only(list)), Some(Count::Each(count))) = (&wish.places, count)
        && count as usize > list.len()
    {
        misuse!("-c {count} does not fit a list of {} metadata targets; -C makes several stripes on each", list.len());
    }
    // This is how a program reads its umask. With a mode that is given it stays empty.
    let umask = rustix::process::umask(Mode::empty());
    let umask = if wish.mode.is_some() { Mode::empty() } else { umask };
    rustix::process::umask(umask);
    let mode = wish.mode.unwrap_or(0o777);
    let is_plain = wish.places.is_none() && matches!(count, None | Some(Count::Each(0) | Count::Over(0)));
    let make = |path: &Path| {
        if is_plain {
            rustix::fs::mkdir(path, Mode::from_raw_mode(mode)).map_err(|error| explain(path, &error.into()))?;
        } else {
            let places = wish.places.as_ref().unwrap_or(&Places::Any);
            let (mdts, name) = (Vec::new(), Vec::new());
            let new = NewDirectory { mdts, hash: wish.hash as i32, mode, umask: umask.as_raw_mode(), name };
            make_on(path, places, count, new)?;
        }
        if mode & SET_ID != 0 {
            // As for mkdir(2), these bits are not among those of a new directory.
            fs::set_permissions(path, Permissions::from_mode(mode)).map_err(|error| explain(path, &error))?;
        }
        Ok(())
    };
    Ok(each(&wish.paths, make))
}

fn make_on(path: &Path, places: &Places, count: Option<Count>, new: NewDirectory) -> anyhow::Result<()> {
    // EEXIST, as for `.` and `..`
    let name = path.file_name().ok_or_else(|| explain(path, &io::Error::from_raw_os_error(17)))?;
    let above = directory_above(path);
    let chosen = choose(above, places, count)?;
    // A mount that the kernel alone knows to be read-only.
    let flags = rustix::fs::statvfs(above).with_context(|| format!("'{}'", above.display()))?.f_flag;
    if flags.contains(StatVfsMountFlags::RDONLY) {
        return Err(explain(path, &io::Error::from_raw_os_error(30)));
    }
    let new = NewDirectory { mdts: chosen.mdts, name: name.as_bytes().to_vec(), ..new };
    let input = new.input().ok_or_else(|| {
        anyhow!(
            "'{}': {} metadata targets in this order are too many; name them as a few ranges",
            path.display(),
            new.mdts.len()
        )
    })?;
    ioctl::ask(above, Verb::MkdirOn, &input).map_err(|error| refused(path, above, &new.mdts, &error))?;
    if !chosen.left_out.is_empty() {
        eprintln!(
            "'{}': no stripe on {}, away or full; {} in all; see: lfs mdts, lfs df -i",
            path.display(),
            names(&chosen.left_out),
            new.mdts.len()
        );
    }
    Ok(())
}

fn choose(above: &Path, places: &Places, count: Option<Count>) -> anyhow::Result<Chosen> {
    let many = count.filter(|count| count.is_many());
    let chosen = match (places, many) {
        (Places::Only(list), _) => return Ok(Chosen::named(list, count)),
        (Places::From(first), None) => return Ok(Chosen::named(&[*first], None)),
        (Places::From(first), Some(count)) => Chosen::among(&spaces(above)?, Some(*first), count),
        (Places::Any, count) => Chosen::among(&spaces(above)?, None, count.unwrap_or(Count::Each(1))),
    };
    chosen.ok_or_else(|| {
        anyhow!("'{}': all metadata targets are away or full; see: lfs mdts, lfs df -i", above.display())
    })
}

/// The message for a directory that could not be made.
fn refused(path: &Path, above: &Path, mdts: &[u32], error: &io::Error) -> anyhow::Error {
    let (name, striped) = (path.display(), mdts.len() > 1);
    match error.raw_os_error() {
        // EPERM
        Some(1) => anyhow!(
            "'{name}': {error}: only root may choose metadata targets, and the group that mdt.*.enable_remote_dir_gid allows; nobody \
             where mdt.*.enable_remote_dir{} is 0",
            if striped { " or mdt.*.enable_striped_dir" } else { "" }
        ),
        // ENODEV
        Some(19) => {
            let missing = names(&except(mdts, above, |_| true));
            anyhow!("'{name}': there is no {missing} in this file system; see: lfs mdts")
        }
        // ENXIO
        Some(6) => match &except(mdts, above, |target| target.figures.is_ok())[..] {
            [lost] => anyhow!("'{name}': {} was declared lost; see: lfs mdts", names(&[*lost])),
            away => anyhow!("'{name}': one of {} was declared lost; see: lfs mdts", names(away)),
        },
        // EOPNOTSUPP
        Some(95) if striped => {
            anyhow!("'{name}': a metadata target is of an older version, without striped directories")
        }
        Some(95) => anyhow!(
            "'{name}': a metadata target is of an older version, in which a directory is on the target of the one above"
        ),
        // E2BIG
        Some(7) => {
            anyhow!(
                "'{name}': {} stripes are too many with what they inherit from the directory above; see: getfacl",
                mdts.len()
            )
        }
        // EOVERFLOW
        Some(75) => anyhow!("'{name}': more than {STRIPES_MAX} stripes are not possible"),
        _ => explain(path, error),
    }
}

/// These metadata targets without those that the mount knows and that meet a condition; all, if none is left.
fn except(mdts: &[u32], mount: &Path, meets: impl Fn(&TargetSpace) -> bool) -> Vec<u32> {
    let known = spaces(mount).unwrap_or_default();
    let fine: BTreeSet<u32> =
        known.iter().filter(|target| target.is_mdt() && meets(target)).map(TargetSpace::index).collect();
    let all: BTreeSet<u32> = mdts.iter().copied().collect();
    let rest: Vec<u32> = all.difference(&fine).copied().collect();
    if rest.is_empty() { all.into_iter().collect() } else { rest }
}

/// The names of targets.
fn names(mdts: &[u32]) -> String {
    mdts.iter().map(|mdt| format!("MDT{mdt:04x}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal_and_hashes_are_named() {
        assert_eq!(parse_mode("1750"), Ok(0o1750));
        for bad in ["", "8", "u+w", "10000"] {
            assert!(parse_mode(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_hash("crush2"), Ok(DirHash::Crush2));
        for bad in ["none", "md5", ""] {
            assert!(parse_hash(bad).is_err_and(|error| error.contains("fnv_1a_64")), "{bad}");
        }
    }

    #[test]
    fn only_what_needs_the_space_of_targets_asks_for_it() {
        // The path is on no mount.
        let chosen = |places: &Places, count| choose(Path::new("/proc"), places, count).map(|chosen| chosen.mdts).ok();
        assert_eq!(chosen(&Places::From(7), None), Some(vec![7]));
        assert_eq!(chosen(&Places::From(7), Some(Count::Each(1))), Some(vec![7]));
        assert_eq!(chosen(&Places::Only(vec![1, 0]), Some(Count::Over(3))), Some(vec![1, 0, 1]));
        assert_eq!(chosen(&Places::From(7), Some(Count::Each(2))), None);
        assert_eq!(chosen(&Places::Any, None), None);
    }
}
