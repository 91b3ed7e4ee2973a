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
use proto::msg::{DIR_DEFAULT_TARGETS_MAX, DirDefault, DirHash, inherit};
use rustix::fs::{Mode, StatVfsMountFlags};

use super::directories::{directory_above, each, hash_named};
use super::placement::{Chosen, Count, Places, candidates, parse_count, parse_overcount, parse_places};
use super::space::{TargetSpace, spaces};
use super::{explain, restripe};
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
    /// The function that assigns names to stripes: all_char, fnv_1a_64, crush or crush2 [default: fnv_1a_64]
    #[arg(short = 'H', long = "mdt-hash", visible_alias = "hash", value_name = "HASH", value_parser = parse_hash)]
    hash: Option<DirHash>,
    /// Permissions in octal, whatever the umask
    #[arg(short = 'o', short_alias = 'm', long, value_name = "MODE", value_parser = parse_mode)]
    mode: Option<u32>,
    /// Set this as the default of directories that exist: for directories that programs make in them
    #[arg(short = 'D', long, conflicts_with = "mode")]
    default: bool,
    /// With -D: remove the default
    #[arg(short = 'd', long, conflicts_with_all = ["places", "count", "overcount", "hash", "max_inherit", "max_inherit_rr"])]
    delete: bool,
    /// With -D: on how many levels the default applies; 1 is only what is made in the directory itself, -1 is everything below, 0 the same
    /// as 1 [default: 3]
    #[arg(short = 'X', long, value_name = "DEPTH", value_parser = parse_depth, allow_negative_numbers = true)]
    max_inherit: Option<Depth>,
    /// With -D, and without -i INDEX: on how many levels the metadata targets take turns, rather than get directories by their free
    /// inodes; -1 is all [default: 0]
    #[arg(long, value_name = "N", value_parser = parse_depth, allow_negative_numbers = true)]
    max_inherit_rr: Option<Depth>,
    /// Directories to make; with -D, directories that exist
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

/// A number of levels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Depth {
    /// So many; 0 is none.
    Levels(u32),
    /// All.
    All,
}

fn parse_depth(text: &str) -> Result<Depth, String> {
    let max = inherit::LEVELS_MAX;
    match text.parse::<i64>() {
        Ok(-1) => Ok(Depth::All),
        Ok(levels) if (0..=max.into()).contains(&levels) => Ok(Depth::Levels(levels as u32)),
        _ => Err(format!("expected a number of levels up to {max}, or -1 for all")),
    }
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

/// Levels on which a default applies unless the user says otherwise, as in Lustre.
const LEVELS: u32 = 3;

/// The default that the user wants; `None`: there shall be none.
fn wanted_default(wish: &Make) -> anyhow::Result<Option<DirDefault>> {
    if wish.delete {
        return Ok(None);
    }
    let mdts = match &wish.places {
        None | Some(Places::Any) => Vec::new(),
        Some(Places::From(first)) => vec![*first],
        Some(Places::Only(list)) => list.clone(),
    };
    if wish.max_inherit_rr.is_some() && !mdts.is_empty() {
        misuse!("--max-inherit-rr does not fit -i INDEX: only metadata targets that are chosen take turns");
    }
    if mdts.len() > DIR_DEFAULT_TARGETS_MAX {
        misuse!("a default names up to {} metadata targets; -c and -C choose among all", DIR_DEFAULT_TARGETS_MAX);
    }
    // Without a number, each target of a list gets one stripe.
    let unless_given = if mdts.len() > 1 { Count::All } else { Count::Each(0) };
    let (count, overstripe) = wish.overcount.or(wish.count).unwrap_or(unless_given).fields();
    let max_inherit = match wish.max_inherit.unwrap_or(Depth::Levels(LEVELS)) {
        Depth::All => inherit::UNLIMITED,
        Depth::Levels(0) => inherit::NONE,
        Depth::Levels(levels) => levels,
    };
    let max_inherit_rr = match wish.max_inherit_rr.unwrap_or(Depth::Levels(0)) {
        Depth::All => inherit::TURNS_UNLIMITED,
        Depth::Levels(levels) => levels,
    };
    let hash = wish.hash.unwrap_or(DirHash::Unknown) as i32;
    Ok(Some(DirDefault { count, overstripe, mdts, hash, max_inherit, max_inherit_rr }))
}

/// Sets the default of a directory that exists, or removes it.
fn set_default(path: &Path, default: Option<&DirDefault>) -> anyhow::Result<()> {
    let set = ioctl::ask(path, Verb::SetDirDefault, &ioctl::default_bytes(default));
    set.map(drop).map_err(|error| match error.raw_os_error() {
        // EPERM
        Some(1) if default.is_some() => anyhow!(
            "'{}': {error}: only the owner may set a default, and only if root or in the group that mdt.*.enable_remote_dir_gid allows; \
             nobody where mdt.*.enable_remote_dir or mdt.*.enable_striped_dir is 0",
            path.display()
        ),
        // EINVAL
        Some(22) => anyhow!("'{}': the mount is of an older version, without default layouts", path.display()),
        _ => refused(path, path, default.map_or(&[], |default| &default.mdts), &error),
    })
}

/// Runs `lfs mkdir`. Returns whether all directories could be made.
pub(super) fn make(wish: &Make) -> anyhow::Result<bool> {
    let count = wish.overcount.or(wish.count);
    let only_default = [
        (wish.delete, "-d, --delete"),
        (wish.max_inherit.is_some(), "-X, --max-inherit"),
        (wish.max_inherit_rr.is_some(), "--max-inherit-rr"),
    ];
    if let Some((_, option)) = only_default.into_iter().find(|(is_given, _)| *is_given && !wish.default) {
        misuse!("{option} is about the default of a directory that exists, which -D sets");
    }
    if let (Some(Places::Only(list)), Some(Count::Each(count))) = (&wish.places, count)
        && count as usize > list.len()
    {
        misuse!("-c {count} does not fit a list of {} metadata targets; -C makes several stripes on each", list.len());
    }
    if wish.default {
        let default = wanted_default(wish)?;
        return Ok(each(&wish.paths, |path| set_default(path, default.as_ref())));
    }
    // This is how a program reads its umask. With a mode that is given it stays empty.
    let umask = rustix::process::umask(Mode::empty());
    let umask = if wish.mode.is_some() { Mode::empty() } else { umask };
    rustix::process::umask(umask);
    let mode = wish.mode.unwrap_or(0o777);
    let is_plain = wish.places.is_none() && matches!(count, None | Some(Count::Each(0) | Count::Over(0)));
    let make = |path: &Path| {
        if count.is_some() && fs::symlink_metadata(path).is_ok_and(|known| known.is_dir()) {
            return restripe::restripe(path, wish.places.as_ref(), count, wish.hash);
        }
        if is_plain {
            rustix::fs::mkdir(path, Mode::from_raw_mode(mode)).map_err(|error| explain(path, &error.into()))?;
        } else {
            let places = wish.places.as_ref().unwrap_or(&Places::Any);
            let (mdts, name) = (Vec::new(), Vec::new());
            let new = NewDirectory {
                mdts,
                hash: wish.hash.unwrap_or(DirHash::Fnv1a64) as i32,
                mode,
                umask: umask.as_raw_mode(),
                name,
            };
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
        (Places::From(first), Some(count)) => Chosen::among(&candidates(&spaces(above)?), Some(*first), count),
        (Places::Any, count) => Chosen::among(&candidates(&spaces(above)?), None, count.unwrap_or(Count::Each(1))),
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

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        make: Make,
    }

    #[track_caller]
    fn default_of(line: &str) -> Option<DirDefault> {
        let line = <Line as clap::Parser>::try_parse_from(["setdirstripe", "-D"].into_iter().chain(line.split(' ')));
        wanted_default(&line.unwrap_or_else(|error| panic!("{error}")).make).unwrap()
    }

    #[test]
    fn a_default_is_what_was_typed() {
        let usual = DirDefault { max_inherit: 3, ..DirDefault::default() };
        assert_eq!(default_of("d"), Some(usual.clone()));
        assert_eq!(default_of("-c 2 d"), Some(DirDefault { count: 2, ..usual.clone() }));
        let all = DirDefault { count: -1, hash: 3, ..usual.clone() };
        assert_eq!(default_of("-c -1 -H crush d"), Some(all));
        let over = DirDefault { count: -2, overstripe: true, mdts: vec![4], ..usual.clone() };
        assert_eq!(default_of("-C -2 -i 4 d"), Some(over));
        assert_eq!(default_of("-i 3,1 d"), Some(DirDefault { count: -1, mdts: vec![3, 1], ..usual.clone() }));
        for (typed, max_inherit) in [("-1", 0), ("0", 255), ("1", 1), ("250", 250)] {
            assert_eq!(default_of(&format!("-X {typed} d")).unwrap().max_inherit, max_inherit);
        }
        for (typed, max_inherit_rr) in [("-1", 255), ("0", 0), ("250", 250)] {
            assert_eq!(
                default_of(&format!("--max-inherit-rr {typed} -i -1 d")).unwrap().max_inherit_rr,
                max_inherit_rr
            );
        }
        assert_eq!(default_of("-d d"), None);
        for bad in ["251", "-2", "x", ""] {
            assert!(parse_depth(bad).is_err_and(|error| error.contains("250")), "{bad}");
        }
        for bad in ["-d -c 2 d", "-o 755 d", "-X 255 d"] {
            let line = ["setdirstripe", "-D"].into_iter().chain(bad.split(' '));
            assert!(<Line as clap::Parser>::try_parse_from(line).is_err(), "{bad}");
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
