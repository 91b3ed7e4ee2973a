//! `lctl pool_*`: pools of object targets, which the MGS keeps.

use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use proto::msg::{Pool, SetPoolKind, SetPoolRep, SetPoolReq};
use proto::{Opcode, TargetIndex, TargetKind, TargetName};

use super::params::collect;
use super::persistent::{self, mgs_here};
use crate::audience::Audience;
use crate::output::say;

/// The longest wait until the metadata targets of this node follow a change.
const FOLLOWED: Duration = Duration::from_secs(10);
/// The pause between two checks.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The most targets that one argument can name.
const TARGETS_MAX: u32 = 4096;

/// A pool of a file system, `FSNAME.POOL`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Name {
    fsname: String,
    pool: String,
}

impl FromStr for Name {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Name> {
        let (fsname, pool) = text.split_once('.').context("expected FSNAME.POOL, as demo.fast")?;
        if !TargetName::fsname_is_valid(fsname) {
            bail!("'{fsname}' cannot be the name of a file system");
        }
        if pool.len() > Pool::NAME_MAX {
            bail!("'{pool}' is too long for a pool: {} characters at most", Pool::NAME_MAX);
        }
        if Pool::RESERVED.contains(&pool) {
            bail!("'{pool}' is reserved and cannot be the name of a pool");
        }
        if !Pool::name_is_valid(pool) {
            bail!("'{pool}' cannot be the name of a pool: only letters, digits, '_' and '-'");
        }
        Ok(Name { fsname: fsname.to_owned(), pool: pool.to_owned() })
    }
}

/// The indexes that an argument names: `3`, `OST0003`, `demo-OST0003`, `demo-OST0003_UUID`, `demo-OST[0-2,a]`.
fn indexes(fsname: &str, text: &str) -> anyhow::Result<Vec<u32>> {
    let bad = || anyhow!("'{text}' names no object targets of '{fsname}'; examples: {fsname}-OST0001, OST[0-3], 1");
    if let Ok(index) = text.parse() {
        return Ok(vec![index]);
    }
    let rest = match text.rsplit_once('-').filter(|_| !text.contains('[')) {
        Some((named, rest)) if named == fsname => rest,
        Some(_) => return Err(bad()),
        None => text.strip_prefix(&format!("{fsname}-")).unwrap_or(text),
    };
    let digits = rest.strip_suffix("_UUID").unwrap_or(rest).strip_prefix("OST").ok_or_else(bad)?;
    let hex = |digits: &str| u32::from_str_radix(digits, 16).map_err(|_| bad());
    let Some(list) = digits.strip_prefix('[').and_then(|list| list.strip_suffix(']')) else {
        return Ok(vec![hex(digits)?]);
    };
    let mut found = Vec::new();
    for part in list.split(',') {
        let (range, step) = part.split_once('/').unwrap_or((part, "1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last, step) = (hex(first)?, hex(last)?, step.parse::<u32>().map_err(|_| bad())?);
        if first > last || last - first >= TARGETS_MAX || step == 0 {
            return Err(bad());
        }
        found.extend((first..=last).step_by(step as usize));
    }
    Ok(found)
}

fn target(fsname: &str, index: u32) -> String {
    TargetName { fsname: fsname.to_owned(), kind: TargetKind::Ost, index: TargetIndex(index) }.to_string()
}

/// Has the MGS make, change or remove a pool, and waits until the metadata targets of this node follow.
pub(super) fn change(kind: SetPoolKind, name: &Name, targets: &[String]) -> anyhow::Result<ExitCode> {
    let Name { fsname, pool } = name;
    let places = mgs_here()?;
    let mut osts = Vec::new();
    for text in targets {
        osts.extend(indexes(fsname, text)?);
    }
    let request = SetPoolReq { fsname: fsname.clone(), kind: kind as i32, pool: pool.clone(), osts: osts.clone() };
    let asked = (Opcode::MgsSetPool, &request);
    persistent::change(&places, fsname, asked, |rep: SetPoolRep| rep.reason, " and knows no pools")?;
    let names: Vec<String> = osts.iter().map(|&ost| target(fsname, ost)).collect();
    match kind {
        SetPoolKind::New => say!("Pool {fsname}.{pool} created"),
        SetPoolKind::Add => names.iter().for_each(|ost| say!("OST {ost}_UUID added to pool {fsname}.{pool}")),
        SetPoolKind::Remove => {
            names.iter().for_each(|ost| say!("OST {ost}_UUID removed from pool {fsname}.{pool}"));
        }
        SetPoolKind::Destroy => say!("Pool {fsname}.{pool} destroyed"),
    }
    follow(kind, name, &names);
    Ok(ExitCode::SUCCESS)
}

/// Waits until the servers and mounts of this node that know the pools of the file system follow the change.
fn follow(kind: SetPoolKind, name: &Name, targets: &[String]) {
    let Name { fsname, pool } = name;
    let start = Instant::now();
    let mut all = Audience::all();
    // The prefixes of the parameter names of the devices that should follow.
    let lod = collect(&mut all, &format!("lod.{fsname}-MDT*.numobd"));
    let lov = collect(&mut all, &format!("lov.{fsname}.numobd"));
    let devices: Vec<String> =
        lod.into_iter().chain(lov).filter_map(|(path, _)| Some(path.strip_suffix("numobd")?.to_owned())).collect();
    let follows = |listed: &[(String, String)], device: &str| {
        let path = format!("{device}pools.{pool}");
        let found = listed.iter().find(|(name, _)| *name == path).map(|(_, members)| members);
        let has = |ost: &String| found.is_some_and(|members| members.contains(ost.as_str()));
        match kind {
            SetPoolKind::New => found.is_some(),
            SetPoolKind::Add => targets.iter().all(has),
            SetPoolKind::Remove => found.is_some() && !targets.iter().any(has),
            SetPoolKind::Destroy => found.is_none(),
        }
    };
    while start.elapsed() < FOLLOWED {
        let listed = collect(&mut all, &format!("*.{fsname}*.pools.*"));
        if devices.iter().all(|device| follows(&listed, device)) {
            return;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    eprintln!("lctl: not all targets and mounts of this node follow yet");
}

/// Whether a device is a metadata target or a mount of a file system: `demo-MDT0000-mdtlov`,
/// `demo-clilov-ffff9a3c0e4b8800`, or `demo` for a mount of version 0.1.0.
fn knows_pools(device: &str, fsname: &str) -> bool {
    device
        .strip_prefix(fsname)
        .is_some_and(|rest| rest.is_empty() || ["-MDT", "-clilov-"].iter().any(|kind| rest.starts_with(kind)))
}

/// `pool_list`: prints the pools as the metadata targets and mounts of this node know them.
pub(super) fn list(audience: &mut Audience, wanted: &str) -> anyhow::Result<ExitCode> {
    let (fsname, pool) = match wanted.split_once('.') {
        Some(_) => {
            let Name { fsname, pool } = wanted.parse()?;
            (fsname, Some(pool))
        }
        None => (wanted.to_owned(), None),
    };
    let knows = collect(audience, &format!("lod.{fsname}-MDT*.numobd"));
    if knows.is_empty() && collect(audience, &format!("lov.{fsname}.numobd")).is_empty() {
        bail!("no metadata target and no mount of file system '{fsname}' runs here; they know its pools");
    }
    let mut listed = collect(audience, &format!("*.{fsname}*.pools.*"));
    listed.retain(|(path, _)| path.split('.').nth(1).is_some_and(|device| knows_pools(device, &fsname)));
    let name_of = |path: &str| path.rsplit_once('.').map(|(_, name)| name.to_owned());
    match pool {
        Some(pool) => {
            let found = listed.iter().find(|(path, _)| name_of(path).as_ref() == Some(&pool));
            let Some((_, members)) = found else { bail!("there is no pool '{fsname}.{pool}'") };
            say!("Pool: {fsname}.{pool}");
            members.lines().for_each(|line| say!("{line}"));
        }
        None => {
            let mut names: Vec<String> = listed.iter().filter_map(|(path, _)| name_of(path)).collect();
            names.sort();
            names.dedup();
            say!("Pools from {fsname}:");
            names.iter().for_each(|name| say!("{fsname}.{name}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_asked_of_the_devices_of_one_file_system() {
        for (device, knows) in [
            ("demo-MDT0000-mdtlov", true),
            ("demo-clilov-ffff9a3c0e4b8800", true),
            ("demo", true),
            ("demo2-MDT0000-mdtlov", false),
            ("demo2", false),
            ("demo-OST0000", false),
            ("other", false),
        ] {
            assert_eq!(knows_pools(device, "demo"), knows, "{device}");
        }
    }

    #[test]
    fn targets_are_named_in_many_ways() {
        let of = |text: &str| indexes("demo", text).ok();
        for (text, expected) in [
            ("3", vec![3]),
            ("OST000a", vec![10]),
            ("demo-OST0001", vec![1]),
            ("demo-OST0001_UUID", vec![1]),
            ("demo-OST[0-3]", vec![0, 1, 2, 3]),
            ("OST[0-8/4,a]", vec![0, 4, 8, 10]),
        ] {
            assert_eq!(of(text), Some(expected), "{text}");
        }
        for bad in ["", "other-OST0001", "demo-MDT0000", "OST[3-1]", "OST[0-3", "OST[0-3/0]", "OST[]", "OST[0-ffffff]"]
        {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[test]
    fn names_of_pools_are_lustres() {
        let name: Name = "demo.fast_1-a".parse().unwrap();
        assert_eq!((name.fsname.as_str(), name.pool.as_str()), ("demo", "fast_1-a"));
        for (bad, why) in [
            ("demo", "FSNAME.POOL"),
            ("demo.", "cannot be"),
            ("demo.a.b", "cannot be"),
            ("demo.sixteen_letters_", "too long"),
            ("demo.none", "reserved"),
        ] {
            let reason = bad.parse::<Name>().unwrap_err();
            assert!(reason.to_string().contains(why), "{bad}: {reason}");
        }
    }
}
