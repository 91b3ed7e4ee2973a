//! `lfs getdirstripe`, `lfs rm_entry`: the metadata targets of directories.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use fuse::ioctl::{self, DirLayout, MERGING, MOVING, SPLITTING, Verb};
use proto::Fid;
use proto::msg::{DirDefault, DirHash, inherit};
use serde_json::json;

use super::layout::Form;
use super::{ask, explain};
use crate::misuse::misuse;
use crate::output::say;

/// Does something with each path, and prints what fails. Returns whether nothing failed.
pub(super) fn each(paths: &[PathBuf], act: impl Fn(&Path) -> anyhow::Result<()>) -> bool {
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

pub(super) fn directory_above(path: &Path) -> &Path {
    match path.parent() {
        Some(above) if !above.as_os_str().is_empty() => above,
        _ => Path::new("."),
    }
}

/// Hash functions of striped directories, by their numbers.
const HASHES: [&str; 5] = ["none", "all_char", "fnv_1a_64", "crush", "crush2"];

/// The name of a hash function.
fn hash_name(hash: u32) -> String {
    let moving = [(MOVING, "migrating"), (SPLITTING, "splitting"), (MERGING, "merging")];
    let moving = moving.into_iter().find(|(bit, _)| hash & bit != 0);
    let number = hash & !moving.map_or(0, |(bit, _)| bit);
    let name = HASHES.get(number as usize).map_or_else(|| format!("{number:#x}"), |name| (*name).to_owned());
    moving.map_or(name.clone(), |(_, what)| format!("{name},{what}"))
}

/// The hash function with a name. `none` is [`DirHash::Unknown`].
pub(super) fn hash_named(name: &str) -> Option<DirHash> {
    let number = HASHES.iter().position(|known| *known == name)?;
    DirHash::try_from(number as i32).ok()
}

/// The arguments of `lfs getdirstripe`.
#[derive(Args)]
pub(crate) struct Get {
    #[command(flatten)]
    only: Only,
    #[command(flatten)]
    form: Form,
    /// Print the default for new directories instead of the directory's own layout
    #[arg(short = 'D', long)]
    default: bool,
    /// Directories
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

/// Prints a single figure.
#[derive(Args)]
#[group(multiple = false)]
struct Only {
    /// Print only the number of stripes; 0: the directory is not striped
    #[arg(short = 'c', short_alias = 'T', long = "mdt-count", visible_alias = "count")]
    count: bool,
    /// Print only the index of the metadata target, of a striped directory that of the first stripe
    #[arg(short = 'm', short_alias = 'i', long = "mdt-index", visible_alias = "index")]
    index: bool,
    /// Print only the function that assigns names to stripes
    #[arg(short = 'H', long = "mdt-hash")]
    hash: bool,
    /// With -D: print only on how many levels the default applies; -1: all, 0: none
    #[arg(short = 'X', long)]
    max_inherit: bool,
    /// With -D: print only on how many levels metadata targets take turns
    #[arg(long)]
    max_inherit_rr: bool,
}

/// The index of the metadata target of a file or directory.
pub(super) fn mdt_of(path: &Path) -> anyhow::Result<u32> {
    let text = ask(path, Verb::MdtIndex, &[])?;
    let index = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
    index.ok_or_else(|| anyhow!("'{}': the mount gave no index of a metadata target", path.display()))
}

/// The layout of a directory as it is shown.
#[derive(PartialEq, Debug)]
struct Shown {
    /// Number of stripes; 0: it is not striped. Of a default also -1: one on each metadata target.
    count: i64,
    /// Index of the metadata target that has the directory itself; -1: any.
    first: i64,
    hash: String,
    stripes: Vec<(u32, Fid)>,
    default: Option<ShownDefault>,
}

/// What is shown only of a default.
#[derive(PartialEq, Debug)]
struct ShownDefault {
    /// Levels on which it applies, and on which targets take turns; -1: all.
    inherit: [i64; 2],
    /// A list of targets for the stripes.
    mdts: Vec<u32>,
}

impl Shown {
    /// What new directories get if there is no default: the metadata target of the directory above.
    fn no_default() -> Shown {
        Shown { count: 0, first: -1, hash: hash_name(0), stripes: Vec::new(), default: None }
    }

    fn of_default(default: Option<&DirDefault>) -> Shown {
        let Some(default) = default else { return Shown::no_default() };
        let inherit = match default.max_inherit {
            inherit::UNLIMITED => -1,
            inherit::NONE => 0,
            levels => levels.into(),
        };
        let take_turns = match default.max_inherit_rr {
            inherit::TURNS_UNLIMITED => -1,
            levels => levels.into(),
        };
        let over = if default.overstripe { ",overstriped" } else { "" };
        let mdts = if default.mdts.len() > 1 { default.mdts.clone() } else { Vec::new() };
        Shown {
            count: default.count.into(),
            first: default.mdts.first().map_or(-1, |first| (*first).into()),
            hash: hash_name(default.hash as u32) + over,
            stripes: Vec::new(),
            default: Some(ShownDefault { inherit: [inherit, take_turns], mdts }),
        }
    }

    fn of(layout: Option<DirLayout>, mdt: u32) -> Shown {
        let first = mdt.into();
        match layout {
            None => Shown { first, ..Shown::no_default() },
            Some(layout) => Shown {
                count: layout.count.into(),
                first,
                hash: hash_name(layout.hash),
                stripes: layout.stripes,
                default: None,
            },
        }
    }

    /// The single figure that was asked for.
    fn only(&self, only: &Only) -> Option<String> {
        match () {
            () if only.count => Some(self.count.to_string()),
            () if only.index => Some(self.first.to_string()),
            () if only.hash => Some(self.hash.clone()),
            () if only.max_inherit => Some(self.inherit()[0].to_string()),
            () if only.max_inherit_rr => Some(self.inherit()[1].to_string()),
            () => None,
        }
    }

    fn inherit(&self) -> [i64; 2] {
        self.default.as_ref().map_or([0, 0], |default| default.inherit)
    }

    fn json(&self, path: &Path) -> serde_json::Value {
        let stripe = |(mdt, fid): &(u32, Fid)| json!({ "mdt_index": mdt, "fid": fid.to_string() });
        let mut value = json!({
            "path": path.display().to_string(), "stripe_count": self.count, "stripe_offset": self.first,
            "hash_type": self.hash, "stripes": self.stripes.iter().map(stripe).collect::<Vec<_>>(),
        });
        if let Some(default) = &self.default {
            value["max_inherit"] = json!(default.inherit[0]);
            value["max_inherit_rr"] = json!(default.inherit[1]);
            value["mdt_indexes"] = json!(default.mdts);
        }
        value
    }

    /// In Lustre's form.
    fn lines(&self, yaml: bool) -> Vec<String> {
        let Shown { count, first, hash, stripes, default } = self;
        let mut lines = Vec::new();
        if yaml {
            lines.push(format!("lmv_stripe_count:  {count}"));
            lines.push(format!("lmv_stripe_offset: {first}"));
            lines.push(format!("lmv_hash_type:     {hash}"));
            if let Some(ShownDefault { inherit: [levels, turns], mdts }) = default {
                lines.push(format!("lmv_max_inherit:   {levels}"));
                lines.push(format!("lmv_max_inherit_rr: {turns}"));
                lines.extend((!mdts.is_empty()).then(|| format!("lmv_mdt_indexes:   [{}]", listed(mdts))));
            }
            lines.extend((!stripes.is_empty()).then(|| "lmv_objects:".to_owned()));
            for (mdt, Fid { seq, oid, ver }) in stripes {
                lines.push(format!("      - l_mdt_idx: {mdt}"));
                lines.push(format!("        l_fid:     {seq:#x}:{oid:#x}:{ver:#x}"));
            }
        } else {
            let mut line = format!("lmv_stripe_count: {count} lmv_stripe_offset: {first} lmv_hash_type: {hash}");
            if let Some(ShownDefault { inherit: [levels, turns], mdts }) = default {
                line += &format!(" lmv_max_inherit: {levels} lmv_max_inherit_rr: {turns}");
                if !mdts.is_empty() {
                    line += &format!(" lmv_mdt_indexes: {}", listed(mdts));
                }
            }
            lines.push(line);
            lines.extend((!stripes.is_empty()).then(|| "mdtidx\t\t FID[seq:oid:ver]".to_owned()));
            lines.extend(stripes.iter().map(|(mdt, fid)| format!("{mdt:6}\t\t {fid}")));
        }
        lines
    }
}

fn listed(mdts: &[u32]) -> String {
    mdts.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// The default of a directory. A mount of an older version knows none.
fn default_of(path: &Path) -> anyhow::Result<Option<Box<DirDefault>>> {
    match ioctl::dir_default(path) {
        // EINVAL
        Err(error) if error.raw_os_error() == Some(22) => Ok(None),
        default => default.map_err(|error| explain(path, &error)),
    }
}

/// Runs `lfs getdirstripe`.
pub(super) fn get(get: &Get) -> anyhow::Result<()> {
    let many = get.paths.len() > 1;
    if !get.default && (get.only.max_inherit || get.only.max_inherit_rr) {
        misuse!("-X and --max-inherit-rr are about the default of a directory, which -D shows");
    }
    for path in &get.paths {
        if !std::fs::metadata(path).with_context(|| format!("'{}'", path.display()))?.is_dir() {
            bail!("'{}' is no directory; see: lfs getstripe", path.display());
        }
        let mdt = mdt_of(path)?;
        let shown = match () {
            () if get.default => Shown::of_default(default_of(path)?.as_deref()),
            // This much is known while the target is away.
            () if get.only.index => Shown::of(None, mdt),
            () => Shown::of(ioctl::dir_layout(path).map_err(|error| explain(path, &error))?, mdt),
        };
        match shown.only(&get.only) {
            Some(value) if many => say!("{}: {value}", path.display()),
            Some(value) => say!("{value}"),
            None if get.form.json => say!("{}", shown.json(path)),
            None => {
                if many {
                    say!("{}", path.display());
                }
                shown.lines(get.form.yaml).iter().for_each(|line| say!("{line}"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fid(seq: u64, oid: u32) -> Fid {
        Fid { seq, oid, ver: 0 }
    }

    #[test]
    fn a_striped_directory_is_shown_as_in_lustre() {
        let stripes = vec![(3, fid(0x200000400, 1)), (0, fid(0x240000400, 0x1a))];
        let shown = Shown::of(Some(DirLayout { hash: 2, version: 1, count: 2, stripes }), 3);
        assert_eq!(
            shown.lines(false).join("\n"),
            "lmv_stripe_count: 2 lmv_stripe_offset: 3 lmv_hash_type: fnv_1a_64\n\
             mdtidx\t\t FID[seq:oid:ver]\n     \
             3\t\t [0x200000400:0x1:0x0]\n     \
             0\t\t [0x240000400:0x1a:0x0]"
        );
        assert_eq!(
            shown.lines(true),
            [
                "lmv_stripe_count:  2",
                "lmv_stripe_offset: 3",
                "lmv_hash_type:     fnv_1a_64",
                "lmv_objects:",
                "      - l_mdt_idx: 3",
                "        l_fid:     0x200000400:0x1:0x0",
                "      - l_mdt_idx: 0",
                "        l_fid:     0x240000400:0x1a:0x0",
            ]
        );
        assert_eq!(
            shown.json(Path::new("/d")),
            json!({
                "path": "/d", "stripe_count": 2, "stripe_offset": 3, "hash_type": "fnv_1a_64", "stripes": [
                    { "mdt_index": 3, "fid": "[0x200000400:0x1:0x0]" }, { "mdt_index": 0, "fid": "[0x240000400:0x1a:0x0]" },
                ]
            })
        );
    }

    #[test]
    fn what_is_not_striped_has_no_stripes_and_no_hash() {
        let plain = Shown::of(None, 1).lines(false);
        assert_eq!(plain, ["lmv_stripe_count: 0 lmv_stripe_offset: 1 lmv_hash_type: none"]);
        let default = Shown::of_default(None).lines(false);
        assert_eq!(default, ["lmv_stripe_count: 0 lmv_stripe_offset: -1 lmv_hash_type: none"]);
        assert_eq!(Shown::of(None, 1).json(Path::new("/d"))["stripes"], json!([]));
    }

    #[test]
    fn a_default_is_shown_as_in_lustre() {
        let default = DirDefault { count: 2, max_inherit: 3, ..DirDefault::default() };
        assert_eq!(
            Shown::of_default(Some(&default)).lines(false),
            ["lmv_stripe_count: 2 lmv_stripe_offset: -1 lmv_hash_type: none lmv_max_inherit: 3 lmv_max_inherit_rr: 0"]
        );
        let default = DirDefault {
            count: -2,
            overstripe: true,
            mdts: vec![3, 1],
            hash: DirHash::Crush as i32,
            max_inherit: inherit::UNLIMITED,
            max_inherit_rr: inherit::TURNS_UNLIMITED,
        };
        let shown = Shown::of_default(Some(&default));
        assert_eq!(
            shown.lines(true),
            [
                "lmv_stripe_count:  -2",
                "lmv_stripe_offset: 3",
                "lmv_hash_type:     crush,overstriped",
                "lmv_max_inherit:   -1",
                "lmv_max_inherit_rr: -1",
                "lmv_mdt_indexes:   [3,1]",
            ]
        );
        let json = shown.json(Path::new("/d"));
        assert_eq!((&json["max_inherit"], &json["mdt_indexes"]), (&json!(-1), &json!([3, 1])));
        let ends = DirDefault { max_inherit: inherit::NONE, ..DirDefault::default() };
        assert_eq!(Shown::of_default(Some(&ends)).inherit(), [0, 0]);
    }

    #[test]
    fn hash_functions_have_names() {
        for name in HASHES {
            assert_eq!(hash_name(hash_named(name).unwrap() as u32), name);
        }
        assert!(hash_named("md5").is_none() && hash_name(7) == "0x7");
    }
}
