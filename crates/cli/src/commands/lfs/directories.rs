//! `lfs mkdir`, `lfs getdirstripe`: the metadata targets of directories.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use fuse::ioctl::{self, NewDirectory, Verb};
use rustix::fs::{Mode, StatVfsMountFlags};
use serde_json::json;

use super::layout::Form;
use super::space::{TargetSpace, spaces};
use super::{ask, explain};
use crate::output::say;

/// The arguments of `lfs mkdir`.
#[derive(Args)]
pub(crate) struct Make {
    /// Index of the metadata target; -1 is the one with the most free inodes. Without it, that of the directory above
    #[arg(short = 'i', long = "mdt-index", visible_alias = "index", alias = "mdt", value_name = "INDEX")]
    #[arg(value_parser = parse_index, allow_negative_numbers = true)]
    index: Option<Place>,
    /// Permissions in octal, whatever the umask
    #[arg(short = 'o', short_alias = 'm', long, value_name = "MODE", value_parser = parse_mode)]
    mode: Option<u32>,
    /// Directories to make
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

/// Where a directory is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// On the metadata target with this index.
    On(u32),
    /// On any.
    Any,
}

fn parse_index(text: &str) -> Result<Place, String> {
    match text.parse() {
        Ok(index) => Ok(Place::On(index)),
        Err(_) if text == "-1" => Ok(Place::Any),
        Err(_) if text.contains(',') => {
            Err("directories on several metadata targets are not in this version; see limits".to_owned())
        }
        Err(_) => Err("expected the index of a metadata target, or -1 for any".to_owned()),
    }
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| "expected permissions in octal, like 750".to_owned())
}

/// Runs `lfs mkdir`. Returns whether all directories could be made.
pub(super) fn make(wish: &Make) -> anyhow::Result<bool> {
    // This is how a program reads its umask. With a mode that is given it stays empty.
    let umask = rustix::process::umask(Mode::empty());
    let umask = if wish.mode.is_some() { Mode::empty() } else { umask };
    rustix::process::umask(umask);
    let mode = wish.mode.unwrap_or(0o777);
    let make = |path: &Path| match wish.index {
        None => rustix::fs::mkdir(path, Mode::from_raw_mode(mode)).map_err(|error| explain(path, &error.into())),
        Some(place) => make_on(path, place, mode, umask.as_raw_mode()),
    };
    Ok(each(&wish.paths, make))
}

/// Does something with each path, and prints what fails. Returns whether nothing failed.
fn each(paths: &[PathBuf], act: impl Fn(&Path) -> anyhow::Result<()>) -> bool {
    let mut fine = true;
    for path in paths {
        if let Err(error) = act(path) {
            eprintln!("{error:#}");
            fine = false;
        }
    }
    fine
}

/// Runs `lfs rm_entry`. The paths themselves are not looked up, which could wait for a target that is lost. Returns whether all
/// names could be removed.
pub(super) fn remove_entries(paths: &[PathBuf]) -> bool {
    each(paths, remove_entry)
}

fn remove_entry(path: &Path) -> anyhow::Result<()> {
    // EINVAL
    let name = path.file_name().ok_or_else(|| explain(path, &io::Error::from_raw_os_error(22)))?;
    let removed = ioctl::ask(directory_above(path), Verb::RemoveEntry, name.as_bytes());
    removed.map(drop).map_err(|error| match error.raw_os_error() {
        // EINVAL
        Some(22) => anyhow!("'{}': not a name of an object on another metadata target; use rm", path.display()),
        // EOPNOTSUPP
        Some(95) => anyhow!("'{}': the metadata target is of an older version", path.display()),
        _ => explain(path, &error),
    })
}

fn directory_above(path: &Path) -> &Path {
    match path.parent() {
        Some(above) if !above.as_os_str().is_empty() => above,
        _ => Path::new("."),
    }
}

fn make_on(path: &Path, place: Place, mode: u32, umask: u32) -> anyhow::Result<()> {
    // EEXIST, as for `.` and `..`
    let name = path.file_name().ok_or_else(|| explain(path, &io::Error::from_raw_os_error(17)))?;
    let above = directory_above(path);
    let mdt = match place {
        Place::On(index) => index,
        Place::Any => emptiest(&spaces(above)?).ok_or_else(|| anyhow!("no metadata target answers; see: lfs mdts"))?,
    };
    // A mount that the kernel alone knows to be read-only.
    let flags = rustix::fs::statvfs(above).with_context(|| format!("'{}'", above.display()))?.f_flag;
    if flags.contains(StatVfsMountFlags::RDONLY) {
        return Err(explain(path, &io::Error::from_raw_os_error(30)));
    }
    let new = NewDirectory { mdt, mode, umask, name: name.as_bytes().to_vec() };
    ioctl::ask(above, Verb::MkdirOn, &new.input()).map(drop).map_err(|error| match error.raw_os_error() {
        // ENODEV
        Some(19) => anyhow!("'{}': there is no MDT{mdt:04x} in this file system; see: lfs mdts", path.display()),
        // ENXIO
        Some(6) => anyhow!("'{}': MDT{mdt:04x} was declared lost; see: lfs mdts", path.display()),
        // EOPNOTSUPP
        Some(95) => anyhow!(
            "'{}': a metadata target is of an older version, in which a directory is on the target of the one above",
            path.display()
        ),
        _ => explain(path, &error),
    })
}

/// The index of the metadata target with the most free inodes; of several, that with the most space, then the first.
fn emptiest(targets: &[TargetSpace]) -> Option<u32> {
    let figures = |target: &TargetSpace| match target.figures.as_deref() {
        Ok([_, _, available, _, files_free, ..]) if target.is_mdt() => {
            Some((*files_free, *available, std::cmp::Reverse(target.index())))
        }
        _ => None,
    };
    targets.iter().filter_map(figures).max().map(|(.., std::cmp::Reverse(index))| index)
}

/// The arguments of `lfs getdirstripe`.
#[derive(Args)]
pub(crate) struct Get {
    #[command(flatten)]
    only: Only,
    #[command(flatten)]
    form: Form,
    /// Directories
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

/// Prints a single figure.
#[derive(Args)]
#[group(multiple = false)]
struct Only {
    /// Print only the number of stripes; 0: the directory is on one metadata target
    #[arg(short = 'c', long = "mdt-count", visible_alias = "count")]
    count: bool,
    /// Print only the index of the metadata target
    #[arg(short = 'm', short_alias = 'i', long = "mdt-index", visible_alias = "index")]
    index: bool,
    /// Print only the hash by which names are spread over stripes
    #[arg(short = 'H', long = "mdt-hash")]
    hash: bool,
}

/// The index of the metadata target of a file or directory.
pub(super) fn mdt_of(path: &Path) -> anyhow::Result<u32> {
    let text = ask(path, Verb::MdtIndex, &[])?;
    let index = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
    index.ok_or_else(|| anyhow!("'{}': the mount gave no index of a metadata target", path.display()))
}

/// Runs `lfs getdirstripe`.
pub(super) fn get(get: &Get) -> anyhow::Result<()> {
    for path in &get.paths {
        if !std::fs::metadata(path).with_context(|| format!("'{}'", path.display()))?.is_dir() {
            bail!("'{}' is no directory; see: lfs getstripe", path.display());
        }
        let index = mdt_of(path)?;
        let only = match () {
            () if get.only.count => Some("0".to_owned()),
            () if get.only.index => Some(index.to_string()),
            () if get.only.hash => Some("none".to_owned()),
            () => None,
        };
        match only {
            Some(value) if get.paths.len() > 1 => say!("{}: {value}", path.display()),
            Some(value) => say!("{value}"),
            None if get.form.json => say!(
                "{}",
                json!({ "path": path.display().to_string(), "stripe_count": 0, "stripe_offset": index, "hash_type": "none" })
            ),
            None => print(path, index, get),
        }
    }
    Ok(())
}

/// Prints in Lustre's form.
fn print(path: &Path, index: u32, get: &Get) {
    if get.paths.len() > 1 {
        say!("{}", path.display());
    }
    if get.form.yaml {
        say!("lmv_stripe_count:  0\nlmv_stripe_offset: {index}\nlmv_hash_type:     none");
    } else {
        say!("lmv_stripe_count: 0 lmv_stripe_offset: {index} lmv_hash_type: none");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emptiest_metadata_target_is_chosen() {
        let target = |name: &str, figures: Result<(u64, u64), i32>| TargetSpace {
            name: format!("fs-{name}"),
            figures: figures.map(|(available, files_free)| vec![100, 50, available, 1000, files_free, 7]),
        };
        let mut targets = vec![
            target("MDT0000", Ok((10, 500))),
            target("MDT0001", Err(107)),
            target("MDT0002", Ok((20, 600))),
            target("MDT000a", Ok((20, 600))),
            target("OST0000", Ok((90, 900))),
        ];
        assert_eq!(emptiest(&targets), Some(2));
        targets[0] = target("MDT0000", Ok((21, 600)));
        assert_eq!(emptiest(&targets), Some(0));
        assert_eq!(emptiest(&targets[1..2]), None);
    }

    #[test]
    fn one_index_is_taken_and_modes_are_octal() {
        assert_eq!((parse_index("11"), parse_index("-1")), (Ok(Place::On(11)), Ok(Place::Any)));
        for (bad, why) in [("0,1", "not in this version"), ("-2", "-1 for any"), ("x", "index")] {
            assert!(parse_index(bad).is_err_and(|error| error.contains(why)), "{bad}");
        }
        assert_eq!(parse_mode("1750"), Ok(0o1750));
        for bad in ["", "8", "u+w", "10000"] {
            assert!(parse_mode(bad).is_err(), "{bad}");
        }
    }
}
