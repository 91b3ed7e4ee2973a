//! `lfs`: what is known of files and targets. Verbs on a path ask the mount that the path lies in.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::Subcommand;
use fuse::ioctl::{self, Verb};
use prost::Message;
use proto::Fid;
use proto::msg::Layout;

use crate::output::{human, parse_size, say};

/// The verbs.
#[derive(Subcommand)]
pub enum Command {
    /// Space of each target; example: lfs df -h /mnt
    #[command(disable_help_flag = true)]
    Df {
        /// Print help
        #[arg(long, action = clap::ArgAction::Help)]
        help: Option<bool>,
        /// Sizes for people
        #[arg(short = 'h', long = "human")]
        human: bool,
        /// Inodes instead of bytes
        #[arg(short)]
        inodes: bool,
        /// Any path on the mount; all mounts if none is given
        path: Option<PathBuf>,
    },
    /// FID of a path; example: lfs path2fid /mnt/file
    #[command(name = "path2fid")]
    PathToFid {
        /// Paths
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// Paths of a FID; example: lfs fid2path /mnt 0x200000401:0x1:0x0
    #[command(name = "fid2path")]
    FidToPath {
        /// The mount point, or the name of the file system
        mount: String,
        /// FIDs
        #[arg(required = true)]
        fids: Vec<Fid>,
    },
    /// Set the layout of a directory's new files, or make a file with one; example: lfs setstripe -c 2 -S 4M /mnt/dir
    Setstripe {
        /// Stripes; -1 is one on each target
        #[arg(short = 'c', long = "stripe-count", default_value_t = 0, allow_negative_numbers = true)]
        count: i32,
        /// Bytes per stripe, a multiple of 64k
        #[arg(short = 'S', long = "stripe-size", value_parser = parse_size, default_value = "0")]
        size: u64,
        /// Index of the first target; -1 is any
        #[arg(short = 'i', long = "stripe-index", default_value_t = -1, allow_negative_numbers = true)]
        index: i32,
        /// A directory, a file without data, or a new file
        path: PathBuf,
    },
    /// The layout of files; example: lfs getstripe /mnt/file
    Getstripe {
        /// Only the stripe count
        #[arg(short = 'c')]
        count: bool,
        /// Only the stripe size
        #[arg(short = 'S')]
        size: bool,
        /// Only the first target
        #[arg(short = 'i')]
        index: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
        /// Paths
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// Metadata targets of a mount
    Mdts {
        /// Any path on it; all mounts if none is given
        path: Option<PathBuf>,
    },
    /// Object targets of a mount
    Osts {
        /// Any path on it; all mounts if none is given
        path: Option<PathBuf>,
    },
    /// Whether the servers answer; example: lfs check servers
    Check {
        /// servers, mds, osts or all
        what: String,
        /// Any path on a mount; all mounts if none is given
        path: Option<PathBuf>,
    },
}

/// Runs a verb.
pub fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Df { human, inodes, path, .. } => return each(path.as_deref(), |mount| df(mount, human, inodes)),
        Command::PathToFid { paths } => {
            for path in &paths {
                let fid = String::from_utf8_lossy(&ask(path, Verb::PathToFid, &[])?).into_owned();
                if paths.len() > 1 {
                    say!("{}: {fid}", path.display());
                } else {
                    say!("{fid}");
                }
            }
        }
        Command::FidToPath { mount, fids } => {
            let mount = find_mount(&mount)?;
            for fid in fids {
                let paths = ask(&mount, Verb::FidToPath, fid.to_string().as_bytes())
                    .with_context(|| format!("cannot find the path of {fid}"))?;
                for path in paths.split(|byte| *byte == 0).take(paths.iter().filter(|byte| **byte == 0).count()) {
                    let path = String::from_utf8_lossy(path);
                    say!("/{path}");
                }
            }
        }
        Command::Setstripe { count, size, index, path } => setstripe(&path, count, size, index)?,
        Command::Getstripe { count, size, index, json, paths } => {
            for path in &paths {
                getstripe(path, (count, size, index), json, paths.len() > 1)?;
            }
        }
        Command::Mdts { path } => return each(path.as_deref(), |mount| list_targets(mount, "MDT")),
        Command::Osts { path } => return each(path.as_deref(), |mount| list_targets(mount, "OST")),
        Command::Check { what, path } => {
            let wanted = match what.as_str() {
                "servers" | "all" => "",
                "mds" | "mdts" => "-MDT",
                "osts" => "-OST",
                _ => bail!("'{what}' cannot be checked; say servers, mds, osts or all"),
            };
            return each(path.as_deref(), |mount| check(mount, wanted));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn ask(path: &Path, verb: Verb, input: &[u8]) -> anyhow::Result<Vec<u8>> {
    ioctl::ask(path, verb, input).map_err(|error| explain(path, &error))
}

fn explain(path: &Path, error: &io::Error) -> anyhow::Error {
    let shown = path.display();
    match error.raw_os_error() {
        Some(25) => anyhow!("'{shown}' is not on an Adamant mount"),
        _ => anyhow!("'{shown}': {error}"),
    }
}

fn mounts_of(path: Option<&Path>) -> anyhow::Result<Vec<PathBuf>> {
    if let Some(path) = path {
        return Ok(vec![path.to_path_buf()]);
    }
    let found: Vec<PathBuf> = fuse::mounts().into_iter().map(|mount| mount.place).collect();
    if found.is_empty() {
        bail!("no Adamant file system is mounted here; mount one with: adamant up");
    }
    Ok(found)
}

/// Does something with the mount of a path or, without one, with each that is here: one that fails does not keep the others from it.
fn each(path: Option<&Path>, act: impl Fn(&Path) -> anyhow::Result<bool>) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for mount in mounts_of(path)? {
        let fine = act(&mount).or_else(|error| {
            if path.is_some() {
                return Err(error);
            }
            eprintln!("{error:#}");
            Ok(false)
        })?;
        if !fine {
            code = ExitCode::from(1);
        }
    }
    Ok(code)
}

fn find_mount(name: &str) -> anyhow::Result<PathBuf> {
    if Path::new(name).exists() {
        return Ok(PathBuf::from(name));
    }
    fuse::mounts()
        .into_iter()
        .find(|mount| mount.source.rsplit_once(":/").is_some_and(|(_, fsname)| fsname == name))
        .map(|mount| mount.place)
        .ok_or_else(|| anyhow!("no file system '{name}' is mounted here; name a mount point"))
}

struct TargetSpace {
    name: String,
    figures: Result<Vec<u64>, i32>,
}

fn spaces(mount: &Path) -> anyhow::Result<Vec<TargetSpace>> {
    let text = ask(mount, Verb::TargetSpace, &[])?;
    let text = String::from_utf8_lossy(&text);
    Ok(text
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let name = fields.next()?.to_owned();
            let rest: Vec<&str> = fields.collect();
            let figures = match rest.as_slice() {
                ["error", number] => Err(number.parse().unwrap_or(5)),
                figures => Ok(figures.iter().filter_map(|f| f.parse().ok()).collect()),
            };
            Some(TargetSpace { name, figures })
        })
        .collect())
}

fn df(mount: &Path, for_people: bool, inodes: bool) -> anyhow::Result<bool> {
    let targets = spaces(mount)?;
    let head = if inodes { ["Inodes", "IUsed", "IFree", "IUse%"] } else { ["1K-blocks", "Used", "Available", "Use%"] };
    say!("{:<24}{:>14}{:>14}{:>14} {:>5} Mounted on", "UUID", head[0], head[1], head[2], head[3]);
    let mut sum = [0u64; 3];
    for target in targets {
        let Ok(figures) = &target.figures else {
            say!("{:<24}{:>14}", format!("{}_UUID", target.name), ": inactive device");
            continue;
        };
        let [total, free, available, files, files_free] = figures[..] else { continue };
        let row =
            if inodes { [files, files - files_free.min(files), files_free] } else { [total, total - free, available] };
        let is_ost = target.name.contains("-OST");
        if is_ost != inodes {
            for (sum, value) in sum.iter_mut().zip(row) {
                *sum += value;
            }
        }
        let tag = match target.name.parse::<proto::TargetName>() {
            Ok(name) => format!("{}[{}:{}]", mount.display(), if is_ost { "OST" } else { "MDT" }, name.index),
            Err(_) => mount.display().to_string(),
        };
        print_df(&format!("{}_UUID", target.name), row, for_people, inodes, &tag);
    }
    say!();
    print_df("filesystem_summary:", sum, for_people, inodes, &mount.display().to_string());
    Ok(true)
}

fn print_df(name: &str, row: [u64; 3], for_people: bool, inodes: bool, place: &str) {
    let show = |value: u64| match (inodes, for_people) {
        (true, _) => value.to_string(),
        (false, true) => human(value),
        (false, false) => (value / 1024).to_string(),
    };
    let percent = if row[0] == 0 { 0 } else { (row[1] as u128 * 100).div_ceil(row[0] as u128) };
    say!("{name:<24}{:>14}{:>14}{:>14} {percent:>4}% {place}", show(row[0]), show(row[1]), show(row[2]));
}

fn list_targets(mount: &Path, kind: &str) -> anyhow::Result<bool> {
    let targets = spaces(mount)?;
    say!("{kind}S: {}", mount.display());
    for (index, target) in targets.iter().filter(|target| target.name.contains(&format!("-{kind}"))).enumerate() {
        say!("{index}: {}_UUID {}", target.name, if target.figures.is_ok() { "ACTIVE" } else { "INACTIVE" });
    }
    Ok(true)
}

fn check(mount: &Path, wanted: &str) -> anyhow::Result<bool> {
    let mut active = true;
    for target in spaces(mount)?.iter().filter(|target| target.name.contains(wanted)) {
        match target.figures {
            Ok(_) => say!("{} active.", target.name),
            Err(number) => {
                say!("{}: {}", target.name, io::Error::from_raw_os_error(number));
                active = false;
            }
        }
    }
    Ok(active)
}

fn setstripe(path: &Path, count: i32, size: u64, index: i32) -> anyhow::Result<()> {
    if !size.is_multiple_of(65536) {
        bail!("a stripe size of {size} bytes is not a multiple of 65536");
    }
    let size =
        u32::try_from(size).map_err(|_| anyhow!("a stripe size of {size} bytes is too large; at most 4G - 64k"))?;
    if !path.exists() {
        std::fs::File::create_new(path).with_context(|| format!("cannot create '{}'", path.display()))?;
    }
    let mut input = Vec::with_capacity(12);
    input.extend_from_slice(&size.to_le_bytes());
    input.extend_from_slice(&count.to_le_bytes());
    input.extend_from_slice(&index.to_le_bytes());
    ask(path, Verb::SetLayout, &input)?;
    Ok(())
}

fn getstripe(path: &Path, only: (bool, bool, bool), json: bool, many: bool) -> anyhow::Result<()> {
    let bytes = ask(path, Verb::GetLayout, &[])?;
    let layout = Layout::decode(&bytes[..]).context("the mount gave a layout that this program does not understand")?;
    let directory = path.is_dir();
    let count = if directory { layout.want_count } else { layout.osts.len() as i32 };
    let first = if directory { layout.want_first } else { layout.osts.first().map_or(-1, |ost| *ost as i32) };
    if json {
        let value = serde_json::json!({
            "path": path.display().to_string(), "stripe_count": count, "stripe_size": layout.stripe_size,
            "stripe_offset": first, "resident": layout.resident, "generation": layout.generation, "osts": layout.osts,
        });
        say!("{value}");
        return Ok(());
    }
    match only {
        (false, false, false) => {}
        (true, _, _) => return print_one(path, many, count),
        (_, true, _) => return print_one(path, many, layout.stripe_size),
        (_, _, true) => return print_one(path, many, first),
    }
    say!("{}", path.display());
    say!("lmm_stripe_count:  {count}");
    say!("lmm_stripe_size:   {}", layout.stripe_size);
    say!("lmm_pattern:       {}", if layout.resident { "mdt" } else { "raid0" });
    say!("lmm_layout_gen:    {}", layout.generation);
    say!("lmm_stripe_offset: {first}");
    if !directory && !layout.resident {
        let fid = String::from_utf8_lossy(&ask(path, Verb::PathToFid, &[])?).into_owned();
        say!("\tobdidx\t\tstripe\t\tfid");
        for (stripe, ost) in layout.osts.iter().enumerate() {
            say!("\t{ost:6}\t\t{stripe:6}\t\t{fid}");
        }
    }
    say!();
    Ok(())
}

fn print_one(path: &Path, many: bool, value: impl std::fmt::Display) -> anyhow::Result<()> {
    if many {
        say!("{}: {value}", path.display());
    } else {
        say!("{value}");
    }
    Ok(())
}
