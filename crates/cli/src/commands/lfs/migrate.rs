//! `lfs migrate`: moves the data of files to other object targets.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::anyhow;
use clap::Args;
use fuse::ioctl::{self, Verb};
use proto::msg::{Layout, Pool};

use super::layout::{Shape, refused};
use crate::output::say;

/// The arguments of `lfs migrate`. Layout options that are not given keep their values.
#[derive(Args)]
pub(crate) struct Migrate {
    #[command(flatten)]
    shape: Shape,
    /// Names on standard input end with a zero byte, as `lfs find -print0` writes them
    #[arg(short = '0', long = "null")]
    null: bool,
    /// Print the name of each file that was moved
    #[arg(short = 'v', long = "verbose")]
    verbose: bool,
    /// Number of files to move at the same time
    #[arg(long = "jobs", value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    jobs: u32,
    /// Files; without any, their names are read from standard input, one per line
    files: Vec<PathBuf>,
}

/// Runs `lfs migrate`. A file that fails does not stop the others.
pub(super) fn run(wish: &Migrate) -> anyhow::Result<ExitCode> {
    let mut layout = wish.shape.layout()?;
    if wish.shape.leaves_pool() {
        Pool::NONE.clone_into(&mut layout.pool);
    }
    let names: Box<dyn Iterator<Item = io::Result<PathBuf>> + Send> = if wish.files.is_empty() {
        let end = if wish.null { 0 } else { b'\n' };
        let lines = BufReader::new(io::stdin()).split(end);
        Box::new(
            lines
                .filter(|line| !matches!(line, Ok(line) if line.is_empty()))
                .map(|line| Ok(OsString::from_vec(line?).into())),
        )
    } else {
        Box::new(wish.files.clone().into_iter().map(Ok))
    };
    let names = Mutex::new(names);
    let fine = AtomicBool::new(true);
    std::thread::scope(|scope| {
        for _ in 0..wish.jobs {
            scope.spawn(|| {
                while let Some(name) = next(&names) {
                    let moved =
                        name.map_err(anyhow::Error::from).and_then(|path| move_one(&path, &layout).map(|()| path));
                    match moved {
                        Ok(path) if wish.verbose => say!("{}", path.display()),
                        Ok(_) => {}
                        Err(error) => {
                            eprintln!("error: {error:#}");
                            fine.store(false, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    Ok(if fine.into_inner() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn next<T>(all: &Mutex<Box<dyn Iterator<Item = T> + Send>>) -> Option<T> {
    all.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next()
}

fn move_one(path: &Path, layout: &Layout) -> anyhow::Result<()> {
    let name = path.display();
    ioctl::ask(path, Verb::Migrate, &ioctl::wish_in_pool(layout)).map(drop).map_err(|error| match error.raw_os_error() {
        // EBUSY
        Some(16) => anyhow!("'{name}' was written all the time, or is being moved already; try again"),
        // EINVAL
        Some(22) if !path.is_file() => anyhow!("'{name}' is not a file"),
        // EOPNOTSUPP
        Some(95) => anyhow!("'{name}': its server, or a client that is mounted, is of a version that cannot move data; unmount or upgrade it"),
        _ => refused(path, layout, &error),
    })
}
