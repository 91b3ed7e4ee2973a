//! `lfs`: information about files and targets. Verbs with a path ask the mount that the path is in.

mod directories;
pub(crate) mod find;
mod layout;
mod migrate;
mod mkdir;
mod placement;
mod pools;
mod restripe;
mod space;

use std::cell::RefCell;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::Subcommand;
use fuse::ioctl::{self, Verb};
use proto::Fid;

use crate::commands::lacking;
use crate::misuse::misuse;
use crate::output::say;
use space::{Shape, spaces};

/// The verbs.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Print the space of each target; example: lfs df -h /mnt
    #[command(disable_help_flag = true)]
    Df {
        /// Print help
        #[arg(long, action = clap::ArgAction::Help)]
        help: Option<bool>,
        /// Print sizes with units
        #[arg(short = 'h', long = "human")]
        human: bool,
        /// Print inodes instead of bytes
        #[arg(short, long)]
        inodes: bool,
        /// Include unreachable targets, which are reported in any case
        #[arg(short, long)]
        verbose: bool,
        /// Of the object targets, print only those of this pool: POOL or FSNAME.POOL
        #[arg(short = 'p', long, value_name = "POOL")]
        pool: Option<String>,
        /// Print as JSON
        #[arg(long)]
        json: bool,
        /// Any path on the mount; without one, all mounts
        path: Option<PathBuf>,
    },
    /// Print the FID of a path; example: lfs path2fid /mnt/file
    #[command(name = "path2fid")]
    PathToFid {
        /// Paths
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// Print the paths of a FID; example: lfs fid2path /mnt 0x200000401:0x1:0x0
    #[command(name = "fid2path")]
    FidToPath {
        /// The mount point, or the name of the file system
        mount: String,
        /// FIDs
        #[arg(required = true)]
        fids: Vec<Fid>,
    },
    /// Set the layout for a directory's new files, or make a file with a layout; example: lfs setstripe -c 2 -S 4M /mnt/dir
    Setstripe(layout::Set),
    /// Print the layout of files, or the one for a directory's new files; example: lfs getstripe /mnt/file
    Getstripe(layout::Get),
    /// Make directories on metadata targets of your choice, or striped over several; with -D, set that as a default for what programs
    /// make below; example: lfs mkdir -c 4 /mnt/dir
    #[command(visible_alias = "setdirstripe")]
    Mkdir(mkdir::Make),
    /// Remove names that lead to a lost metadata target, and nothing else; example: lfs rm_entry /mnt/dir
    #[command(name = "rm_entry")]
    RmEntry {
        /// Names to remove
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// Print the metadata targets of directories; example: lfs getdirstripe /mnt/dir
    Getdirstripe(directories::Get),
    /// List the pools of a file system, or the object targets of a pool; example: lfs pool_list demo.fast
    #[command(name = "pool_list")]
    PoolList {
        /// A path on the mount, FSNAME or FSNAME.POOL
        what: String,
    },
    /// Find names by attributes and layout, in no particular order; all tests must match; example: lfs find /mnt -type f
    /// --ost 1 ! -mtime -30
    Find(find::Find),
    /// Move the data of files to other object targets, even while they are in use; example: lfs migrate -o 1-3 /mnt/file
    Migrate(migrate::Migrate),
    /// List the metadata targets of a mount
    Mdts {
        /// Print as JSON
        #[arg(long)]
        json: bool,
        /// Any path on the mount; without one, all mounts
        path: Option<PathBuf>,
    },
    /// List the object targets of a mount
    Osts {
        /// Print as JSON
        #[arg(long)]
        json: bool,
        /// Any path on the mount; without one, all mounts
        path: Option<PathBuf>,
    },
    /// Check whether the servers answer; example: lfs check servers
    Check {
        /// servers, mds, osts or all
        what: String,
        /// Any path on the mount; without one, all mounts
        path: Option<PathBuf>,
    },
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

/// Options of Lustre's that this version lacks, for verbs that it has.
const LACKING_OPTIONS: [(&str, &[&str]); 8] = [
    ("df", &["-l", "--lazy"]),
    (
        "fid2path",
        &["-0", "-c", "-f", "-n", "--cur", "--link", "--name", "--print-fid", "--print0", "--print-link", "--rec"],
    ),
    ("getdirstripe", &["-O", "-r", "-v", "--obd", "--recursive", "--verbose"]),
    (
        "getstripe",
        &[
            "-C",
            "-E",
            "-F",
            "-G",
            "-H",
            "-I",
            "-L",
            "-N",
            "-z",
            "--comp-count",
            "--comp-end",
            "--comp-flags",
            "--comp-id",
            "--comp-start",
            "--component-count",
            "--component-end",
            "--component-flags",
            "--component-id",
            "--component-start",
            "--extension-size",
            "--fid",
            "--hex-idx",
            "--layout",
            "--mirror-count",
            "--mirror-id",
            "--mirror-index",
            "--no-follow",
            "--obd",
        ],
    ),
    ("mkdir", &["-f", "-x", "--foreign", "--xattr"]),
    (
        "migrate",
        &[
            "-D",
            "-E",
            "-L",
            "-W",
            "-b",
            "-m",
            "-n",
            "-q",
            "-y",
            "--bandwidth",
            "--block",
            "--comp-end",
            "--component-end",
            "--copy",
            "--directory",
            "--layout",
            "--mdt-index",
            "--non-block",
            "--non-direct",
            "--stats",
            "--stats-interval",
            "--yaml",
        ],
    ),
    ("path2fid", &["--parents", "-p"]),
    (
        "setstripe",
        &[
            "-C",
            "-E",
            "-I",
            "-L",
            "-N",
            "-T",
            "-y",
            "-z",
            "--comp-add",
            "--comp-del",
            "--comp-end",
            "--comp-flags",
            "--comp-set",
            "--component-add",
            "--component-del",
            "--component-end",
            "--component-flags",
            "--component-set",
            "--copy",
            "--extension-size",
            "--foreign",
            "--layout",
            "--mirror-count",
            "--overstripe-count",
            "--yaml",
        ],
    ),
];

/// Whether a verb lacks an option that it has in Lustre.
pub(crate) fn lacks_option(verb: &str, option: &str) -> bool {
    let of_verb = LACKING_OPTIONS.iter().filter(|(known, _)| *known == verb);
    of_verb.flat_map(|(_, options)| *options).any(|known| *known == option)
}

/// Lustre's verbs that this version lacks.
const LACKING: [&str; 28] = [
    "changelog",
    "changelog_clear",
    "data_version",
    "flushctx",
    "getname",
    "getsom",
    "heat_get",
    "heat_set",
    "hsm_action",
    "hsm_archive",
    "hsm_cancel",
    "hsm_clear",
    "hsm_release",
    "hsm_remove",
    "hsm_restore",
    "hsm_set",
    "hsm_state",
    "ladvise",
    "mirror",
    "mv",
    "pcc",
    "project",
    "quota",
    "quotacheck",
    "rmfid",
    "setquota",
    "som_sync",
    "swap_layouts",
];

/// Runs a verb.
pub(crate) fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Df { json: true, pool, path, .. } => {
            return each_json(path.as_deref(), |mount| space::json(mount, pool.as_deref(), None));
        }
        Command::Df { human, inodes, pool, path, .. } => {
            return each(path.as_deref(), |mount| space::df(mount, Shape { human, inodes }, pool.as_deref()));
        }
        Command::PoolList { what } => pools::list(&what)?,
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
                let paths = paths_of(&mount, fid)?;
                for path in paths.split(|byte| *byte == 0).take(paths.iter().filter(|byte| **byte == 0).count()) {
                    let path = String::from_utf8_lossy(path);
                    say!("/{path}");
                }
            }
        }
        Command::Setstripe(wish) => layout::set(&wish)?,
        Command::Getstripe(get) => return Ok(if layout::get(&get)? { ExitCode::SUCCESS } else { ExitCode::from(1) }),
        Command::Mkdir(wish) => {
            return Ok(if mkdir::make(&wish)? { ExitCode::SUCCESS } else { ExitCode::from(1) });
        }
        Command::RmEntry { paths } => {
            return Ok(if directories::remove_entries(&paths) { ExitCode::SUCCESS } else { ExitCode::from(1) });
        }
        Command::Getdirstripe(get) => directories::get(&get)?,
        Command::Migrate(wish) => return migrate::run(&wish),
        Command::Find(find) => return find::run(&find),
        Command::Mdts { json: true, path } => {
            return each_json(path.as_deref(), |mount| space::json(mount, None, Some("MDT")));
        }
        Command::Mdts { path, .. } => return each(path.as_deref(), |mount| list_targets(mount, "MDT")),
        Command::Osts { json: true, path } => {
            return each_json(path.as_deref(), |mount| space::json(mount, None, Some("OST")));
        }
        Command::Osts { path, .. } => return each(path.as_deref(), |mount| list_targets(mount, "OST")),
        Command::Check { what, path } => {
            let wanted = match what.as_str() {
                "servers" | "all" => "",
                "mds" | "mdts" => "-MDT",
                "osts" => "-OST",
                _ => misuse!("'{what}' cannot be checked; say servers, mds, osts or all"),
            };
            return each(path.as_deref(), |mount| check(mount, wanted));
        }
        Command::Other(words) => return Ok(lacking::verb("lfs", &words, &LACKING)),
    }
    Ok(ExitCode::SUCCESS)
}

fn ask(path: &Path, verb: Verb, input: &[u8]) -> anyhow::Result<Vec<u8>> {
    ioctl::ask(path, verb, input).map_err(|error| explain(path, &error))
}

/// The paths of a FID, each followed by a NUL.
fn paths_of(mount: &Path, fid: Fid) -> anyhow::Result<Vec<u8>> {
    let mount_point = mount.display();
    ioctl::ask(mount, Verb::FidToPath, fid.to_string().as_bytes()).map_err(|error| match error.raw_os_error() {
        // ENOENT, ESTALE
        Some(2 | 116) => anyhow!("no object of '{mount_point}' has the FID {fid}: No such file or directory"),
        _ => explain(mount, &error).context(format!("cannot find the path of {fid}")),
    })
}

fn explain(path: &Path, error: &io::Error) -> anyhow::Error {
    let name = path.display();
    match error.raw_os_error() {
        Some(25) => anyhow!("'{name}' is not on an Adamant mount"),
        _ => anyhow!("'{name}': {error}"),
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

/// Prints the descriptions of the mounts that [`each`] would take, as one array.
fn each_json(
    path: Option<&Path>,
    describe: impl Fn(&Path) -> anyhow::Result<serde_json::Value>,
) -> anyhow::Result<ExitCode> {
    let described = RefCell::new(Vec::new());
    let code = each(path, |mount| {
        described.borrow_mut().push(describe(mount)?);
        Ok(true)
    })?;
    say!("{}", serde_json::Value::from(described.into_inner()));
    Ok(code)
}

/// Runs `act` on the mount of a path or, without one, on each mount of this machine; an error does not stop the others.
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

fn list_targets(mount: &Path, kind: &str) -> anyhow::Result<bool> {
    let targets = spaces(mount)?;
    say!("{kind}S: {}", mount.display());
    for target in targets.iter().filter(|target| target.name.contains(&format!("-{kind}"))) {
        let state = if target.figures.is_ok() { "ACTIVE" } else { "INACTIVE" };
        say!("{}: {}_UUID {state}", target.index(), target.name);
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
