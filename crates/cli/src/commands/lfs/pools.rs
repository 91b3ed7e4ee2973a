//! Pools of object targets, as a mount knows them.

use std::path::Path;

use anyhow::{anyhow, bail};
use fuse::ioctl::{self, Verb};

use super::{ask, explain, find_mount};
use crate::output::say;

/// The name of the file system that a path is in.
fn fsname(path: &Path) -> anyhow::Result<String> {
    let text = ask(path, Verb::Identity, &[])?;
    Ok(String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned())
}

/// The indexes of the object targets in a pool, as the mount of `path` knows it.
pub(super) fn members(path: &Path, fsname: &str, pool: &str) -> anyhow::Result<Vec<u32>> {
    let text = ioctl::ask(path, Verb::Pools, pool.as_bytes()).map_err(|error| match error.raw_os_error() {
        // ENOENT
        Some(2) => anyhow!("there is no pool '{fsname}.{pool}'; see: lfs pool_list {fsname}"),
        _ => explain(path, &error),
    })?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let runs = text.lines().filter_map(|line| line.split_once('-'));
    let runs = runs.filter_map(|(first, last)| Some(first.parse().ok()?..=last.parse().ok()?));
    Ok(runs.flatten().collect())
}

/// The names of the object targets in a pool, given as POOL or FSNAME.POOL, on the mount of `path`.
pub(super) fn members_on(path: &Path, pool: &str) -> anyhow::Result<Vec<String>> {
    let fsname = fsname(path)?;
    let pool = match pool.split_once('.') {
        Some((named, _)) if named != fsname => bail!("'{}' is a mount of '{fsname}', not of '{named}'", path.display()),
        Some((_, pool)) => pool,
        None => pool,
    };
    let members = members(path, &fsname, pool)?;
    Ok(members.into_iter().map(|ost| format!("{fsname}-OST{ost:04x}")).collect())
}

/// Runs `lfs pool_list`.
pub(super) fn list(what: &str) -> anyhow::Result<()> {
    let is_path = what.contains('/') || Path::new(what).exists();
    let (name, pool) = match what.split_once('.') {
        Some((name, pool)) if !is_path => (name, Some(pool)),
        _ => (what, None),
    };
    let mount = find_mount(name)?;
    let fsname = fsname(&mount)?;
    match pool {
        Some(pool) => {
            let members = members(&mount, &fsname, pool)?;
            say!("Pool: {fsname}.{pool}");
            members.iter().for_each(|ost| say!("{fsname}-OST{ost:04x}_UUID"));
        }
        None => {
            let names = ask(&mount, Verb::Pools, &[])?;
            say!("Pools from {fsname}:");
            String::from_utf8_lossy(&names).lines().for_each(|name| say!("{fsname}.{name}"));
        }
    }
    Ok(())
}
