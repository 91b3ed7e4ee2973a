//! `lfs setstripe`, `lfs getstripe`: the layout of files.

use std::fmt::Display;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use fuse::ioctl::{self, Verb};
use prost::Message;
use proto::msg::{Layout, Pool};

use super::directories::mdt_of;
use super::space::spaces;
use super::{ask, explain, pools};
use crate::output::{parse_size, say};

/// The most stripes of a file.
const STRIPE_COUNT_MAX: i32 = 2000;
/// The stripe size of a file without a setting, in bytes.
const STRIPE_SIZE_DEFAULT: u32 = 1 << 20;

/// The options for a layout.
#[derive(Args)]
pub(super) struct Shape {
    /// Number of stripes; -1, or more than there are targets, is one on each usable target
    #[arg(short = 'c', long = "stripe-count", default_value_t = 0, allow_negative_numbers = true)]
    count: i32,
    /// Bytes per stripe, a multiple of 64k
    #[arg(short = 'S', long = "stripe-size", value_parser = parse_size, default_value = "0")]
    size: u64,
    /// Index of the first target; -1 is any
    #[arg(short = 'i', long = "stripe-index", default_value_t = -1, allow_negative_numbers = true)]
    index: i32,
    /// Exactly these targets, in this order: 0,2 or 1-3
    #[arg(short = 'o', long = "ost", value_name = "LIST")]
    list: Option<String>,
    /// Only targets of this pool; 'none' is all targets
    #[arg(short = 'p', long = "pool", value_name = "POOL")]
    pool: Option<String>,
}

/// The arguments of `lfs setstripe`.
#[derive(Args)]
pub(crate) struct Set {
    #[command(flatten)]
    shape: Shape,
    /// Delete the layout of a directory, so that its new files get the default
    #[arg(short = 'd', long = "delete", conflicts_with_all = ["count", "size", "index", "list", "pool"])]
    delete: bool,
    /// Directories, files without data, or new files
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

/// Runs `lfs setstripe`.
pub(super) fn set(wish: &Set) -> anyhow::Result<()> {
    let layout = wish.shape.layout()?;
    for path in &wish.paths {
        set_one(path, &layout, wish.delete)?;
    }
    Ok(())
}

impl Shape {
    /// Whether the data should leave the pool of the file, for all targets.
    pub(super) fn leaves_pool(&self) -> bool {
        self.pool.as_deref().is_some_and(|pool| parse_pool(pool).is_ok_and(|name| name.is_empty()))
    }

    /// The layout that the options ask for.
    pub(super) fn layout(&self) -> anyhow::Result<Layout> {
        if !self.size.is_multiple_of(65536) {
            bail!("a stripe size of {} bytes is not a multiple of 65536", self.size);
        }
        let stripe_size = u32::try_from(self.size)
            .map_err(|_| anyhow!("a stripe size of {} bytes is too large; at most 4G - 64k", self.size))?;
        if self.count < -1 || self.count > STRIPE_COUNT_MAX {
            bail!("{} stripes are not possible; give 1 to {STRIPE_COUNT_MAX}, or -1 for all targets", self.count);
        }
        if self.index < -1 {
            bail!("{} is not the index of a target; -1 is any", self.index);
        }
        let osts = self.list.as_deref().map(parse_list).transpose()?.unwrap_or_default();
        if let Some(&first) = osts.first() {
            if self.count != 0 && self.count != osts.len() as i32 {
                bail!("-c {} does not fit a list of {} targets", self.count, osts.len());
            }
            if self.index != -1 && self.index != first as i32 {
                bail!("-i {} is not the first target of the list", self.index);
            }
        }
        let pool = self.pool.as_deref().map(parse_pool).transpose()?.unwrap_or_default();
        Ok(Layout { stripe_size, want_count: self.count, want_first: self.index, osts, pool, ..Layout::default() })
    }
}

/// Parses `fast`, `demo.fast`, or `none` for no pool.
fn parse_pool(text: &str) -> anyhow::Result<String> {
    let pool = text.split_once('.').map_or(text, |(_, pool)| pool);
    match pool {
        "" | Pool::NONE => Ok(String::new()),
        pool if Pool::name_is_valid(pool) => Ok(pool.to_owned()),
        pool => bail!("'{pool}' cannot be the name of a pool: 1 to {} letters, digits, '_' and '-'", Pool::NAME_MAX),
    }
}

/// Parses `0,2`, `1-3`.
fn parse_list(text: &str) -> anyhow::Result<Vec<u32>> {
    let bad = || anyhow!("'{text}' is not a list of targets; examples: 0,2 or 1-3");
    let mut list: Vec<u32> = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse()?, last.trim().parse()?);
        if first > last || last - first >= STRIPE_COUNT_MAX as u32 {
            return Err(bad());
        }
        list.extend(first..=last);
        if list.len() > STRIPE_COUNT_MAX as usize {
            bail!("more than {STRIPE_COUNT_MAX} stripes are not possible");
        }
    }
    let mut once = list.clone();
    once.sort_unstable();
    once.dedup();
    if once.len() < list.len() { bail!("'{text}' names a target twice") } else { Ok(list) }
}

fn set_one(path: &Path, layout: &Layout, delete: bool) -> anyhow::Result<()> {
    let name = path.display();
    if delete && !path.is_dir() {
        bail!("'{name}' is no directory: only the layout of a directory can be deleted");
    }
    let new = !path.exists();
    if new {
        fs::File::create_new(path).with_context(|| format!("cannot create '{name}'"))?;
    }
    let (verb, wish) = match layout.pool.is_empty() {
        true => (Verb::SetLayout, ioctl::wish(layout)),
        false => (Verb::SetLayoutInPool, ioctl::wish_in_pool(layout)),
    };
    let result = ioctl::ask(path, verb, &wish).map_err(|error| refused(path, layout, &error));
    if result.is_err() && new {
        // The file was made for this layout.
        let _ = fs::remove_file(path);
    }
    result.map(|_| ())
}

/// The message for a layout that could not be set.
pub(super) fn refused(path: &Path, layout: &Layout, error: &io::Error) -> anyhow::Error {
    let name = path.display();
    let named: Vec<u32> = layout.osts.iter().copied().chain(u32::try_from(layout.want_first)).collect();
    match error.raw_os_error() {
        // EINVAL
        Some(22) if !layout.pool.is_empty() && layout.pool != Pool::NONE => {
            let pool = &layout.pool;
            let members = match pools::members_on(path, pool) {
                Ok(members) => members,
                Err(error) => return error.context(format!("'{name}'")),
            };
            if members.is_empty() {
                return anyhow!("'{name}': pool '{pool}' has no OSTs; add some with: lctl pool_add");
            }
            let is_out = |ost: &&u32| !members.iter().any(|name| name.ends_with(&format!("-OST{ost:04x}")));
            match named.iter().find(is_out) {
                Some(ost) => anyhow!("'{name}': OST{ost:04x} is not in pool '{pool}'; see: lfs pool_list"),
                None => explain(path, error),
            }
        }
        // EINVAL, ENXIO
        Some(22 | 6) if !named.is_empty() => {
            let known: Vec<String> = spaces(path).into_iter().flatten().map(|target| target.name).collect();
            let missing = named.iter().find(|ost| !known.iter().any(|name| name.ends_with(&format!("-OST{ost:04x}"))));
            match missing {
                Some(ost) => anyhow!("'{name}': there is no OST{ost:04x} in this file system; see: lfs osts"),
                None if error.raw_os_error() == Some(6) => anyhow!(
                    "'{name}': OST{:04x} takes no new objects now: it is away, full or deactivated; see: lfs df",
                    named[0]
                ),
                None => explain(path, error),
            }
        }
        // EEXIST
        Some(17) => anyhow!("'{name}' has data already: a layout can be set only before the first write"),
        // EOPNOTSUPP
        Some(95) => anyhow!("'{name}': its server is of an older version and knows no lists of targets or no pools"),
        _ => explain(path, error),
    }
}

/// The arguments of `lfs getstripe`.
#[derive(Args)]
pub(crate) struct Get {
    #[command(flatten)]
    only: Only,
    /// Include all directories below
    #[arg(short = 'r', long = "recursive")]
    recursive: bool,
    /// Print only a directory's own layout, not those of its files
    #[arg(short = 'd', long = "directory")]
    directory: bool,
    /// Print more about each file
    #[arg(short = 'v', long = "verbose")]
    verbose: bool,
    /// Print only the targets of each file
    #[arg(short = 'q', long = "quiet")]
    quiet: bool,
    #[command(flatten)]
    form: Form,
    /// Paths
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

/// The form of what is printed.
#[derive(Args)]
pub(super) struct Form {
    /// Print as YAML
    #[arg(short = 'y', long = "yaml")]
    pub(super) yaml: bool,
    /// Print as JSON, one object on each line
    #[arg(long)]
    pub(super) json: bool,
}

/// Prints a single figure.
#[derive(Args)]
#[group(multiple = false)]
struct Only {
    /// Print only the stripe count
    #[arg(short = 'c', long = "stripe-count")]
    count: bool,
    /// Print only the stripe size
    #[arg(short = 'S', long = "stripe-size")]
    size: bool,
    /// Print only the index of the first target
    #[arg(short = 'i', long = "stripe-index")]
    index: bool,
    /// Print only the pool
    #[arg(short = 'p', long = "pool")]
    pool: bool,
    /// Print only the index of the metadata target
    #[arg(short = 'm', long = "mdt-index")]
    mdt: bool,
    /// Print only the generation of the layout
    #[arg(short = 'g', long = "generation")]
    generation: bool,
}

/// The layout of a file, or that of a directory for its new files, with defaults in place of what was not set.
pub(super) struct LayoutView {
    path: PathBuf,
    layout: Layout,
    directory: bool,
}

impl LayoutView {
    /// A layout whose path does not matter.
    pub(super) fn new(layout: Layout, directory: bool) -> LayoutView {
        LayoutView { path: PathBuf::new(), layout, directory }
    }

    fn of(path: &Path, directory: bool) -> anyhow::Result<LayoutView> {
        let bytes = ask(path, Verb::GetLayout, &[])?;
        let layout =
            Layout::decode(&bytes[..]).context("the mount gave a layout that this program does not understand")?;
        Ok(LayoutView { path: path.to_owned(), layout, directory })
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn count(&self) -> i32 {
        match (self.directory, self.layout.want_count) {
            (true, 0) => 1,
            (true, count) => count,
            (false, _) => self.layout.osts.len() as i32,
        }
    }

    pub(super) fn size(&self) -> u32 {
        if self.layout.stripe_size == 0 { STRIPE_SIZE_DEFAULT } else { self.layout.stripe_size }
    }

    pub(super) fn first(&self) -> i32 {
        match self.directory {
            // In a layout that was never set, 0 means any.
            true if self.layout.generation == 0 => -1,
            true => self.layout.want_first,
            false => self.layout.osts.first().map_or(-1, |ost| *ost as i32),
        }
    }

    fn pattern(&self) -> &'static str {
        if self.layout.resident { "mdt" } else { "raid0" }
    }

    fn fid(&self) -> anyhow::Result<String> {
        Ok(String::from_utf8_lossy(&ask(&self.path, Verb::PathToFid, &[])?).into_owned())
    }

    /// The single figure that was asked for.
    fn only(&self, only: &Only) -> Option<String> {
        match () {
            () if only.count => Some(self.count().to_string()),
            () if only.size => Some(self.size().to_string()),
            () if only.index => Some(self.first().to_string()),
            () if only.pool => Some(self.layout.pool.clone()),
            () if only.generation => Some(self.layout.generation.to_string()),
            () => None,
        }
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "path": self.path.display().to_string(), "stripe_count": self.count(), "stripe_size": self.size(),
            "stripe_offset": self.first(), "resident": self.layout.resident, "generation": self.layout.generation,
            "osts": self.layout.osts, "pool": self.layout.pool,
        })
    }

    /// Prints in Lustre's form: a directory on one line, a file on several.
    fn print(&self, get: &Get) -> anyhow::Result<()> {
        say!("{}", self.path.display());
        if self.directory {
            let (count, size, first) = (self.count(), self.size(), self.first());
            let pool = &self.layout.pool;
            let pool = if pool.is_empty() { String::new() } else { format!(" pool:          {pool}") };
            say!("stripe_count:  {count} stripe_size:   {size} pattern:       raid0 stripe_offset: {first}{pool}");
            if !self.layout.osts.is_empty() {
                say!("osts:          {}", joined(&self.layout.osts));
            }
            say!();
            return Ok(());
        }
        if get.verbose {
            field(get, "lmm_fid", self.fid()?);
        }
        if !get.quiet {
            field(get, "lmm_stripe_count", self.count());
            field(get, "lmm_stripe_size", self.size());
            field(get, "lmm_pattern", self.pattern());
            field(get, "lmm_layout_gen", self.layout.generation);
            field(get, "lmm_stripe_offset", self.first());
            if !self.layout.pool.is_empty() {
                field(get, "lmm_pool", &self.layout.pool);
            }
        }
        self.print_objects(get)?;
        say!();
        Ok(())
    }

    fn print_objects(&self, get: &Get) -> anyhow::Result<()> {
        // A file on its metadata target has no objects yet.
        if self.layout.resident {
            return Ok(());
        }
        let fid = self.fid()?;
        if get.form.yaml {
            say!("lmm_objects:");
        } else {
            say!("\tobdidx\t\tstripe\t\tfid");
        }
        for (stripe, ost) in self.layout.osts.iter().enumerate() {
            if get.form.yaml {
                say!("      - l_ost_idx: {ost}");
                say!("        l_stripe:  {stripe}");
                say!("        l_fid:     {fid}");
            } else {
                say!("\t{ost:6}\t\t{stripe:6}\t\t{fid}");
            }
        }
        Ok(())
    }
}

fn field(get: &Get, name: &str, value: impl Display) {
    let name = format!("{name}:");
    if get.form.yaml { say!("{name:<19}{value}") } else { say!("{name:<18} {value}") }
}

fn joined(osts: &[u32]) -> String {
    osts.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Runs `lfs getstripe`. Returns whether all layouts could be printed.
pub(super) fn get(get: &Get) -> anyhow::Result<bool> {
    let mut fine = true;
    let many = get.paths.len() > 1;
    for path in &get.paths {
        show(path, get, many)?;
        if path.is_dir() && !get.directory {
            fine &= below(path, get);
        }
    }
    Ok(fine)
}

/// Prints the layouts in a directory, and below it if the options say so; an error does not stop the others. Only files and
/// directories have layouts.
fn below(directory: &Path, get: &Get) -> bool {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => {
            eprintln!("'{}': {error}", directory.display());
            return false;
        }
    };
    let mut fine = true;
    let mut found: Vec<(PathBuf, bool)> = Vec::new();
    for entry in entries {
        match entry.and_then(|entry| Ok((entry.path(), entry.file_type()?))) {
            Ok((path, kind)) if kind.is_file() || kind.is_dir() => found.push((path, kind.is_dir())),
            Ok(_) => {}
            Err(error) => {
                eprintln!("'{}': {error}", directory.display());
                fine = false;
            }
        }
    }
    found.sort();
    for (path, is_dir) in found {
        if let Err(error) = show(&path, get, true) {
            eprintln!("{error:#}");
            fine = false;
        }
        if is_dir && get.recursive {
            fine &= below(&path, get);
        }
    }
    fine
}

fn show(path: &Path, get: &Get, many: bool) -> anyhow::Result<()> {
    let view = LayoutView::of(path, path.is_dir())?;
    let only = match get.only.mdt {
        true => Some(mdt_of(path)?.to_string()),
        false => view.only(&get.only),
    };
    match only {
        Some(value) if many => say!("{}: {value}", path.display()),
        Some(value) => say!("{value}"),
        None if get.form.json => say!("{}", view.json()),
        None => view.print(get)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_targets_are_read() {
        assert_eq!(parse_list("0,2").unwrap(), [0, 2]);
        assert_eq!(parse_list("3,0-2").unwrap(), [3, 0, 1, 2]);
        for bad in ["", "1,", "a", "3-1", "0-99999999", "1,1", "0-2,1", "-1"] {
            assert!(parse_list(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_directory_without_a_layout_shows_what_its_files_get() {
        let view = LayoutView { path: PathBuf::from("d"), layout: Layout::default(), directory: true };
        assert_eq!((view.count(), view.size(), view.first()), (1, 1 << 20, -1));
        let layout = Layout { want_count: -1, want_first: 0, generation: 1, ..Layout::default() };
        let view = LayoutView { layout, ..view };
        assert_eq!((view.count(), view.size(), view.first()), (-1, 1 << 20, 0));
        let layout = Layout { resident: true, osts: vec![2, 0], stripe_size: 65536, ..Layout::default() };
        let view = LayoutView { path: PathBuf::from("f"), layout, directory: false };
        assert_eq!((view.count(), view.size(), view.first(), view.pattern()), (2, 65536, 2, "mdt"));
    }
}
