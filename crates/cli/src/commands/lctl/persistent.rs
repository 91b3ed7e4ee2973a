//! Settings that an MGS keeps for the servers and clients of its file systems: `set_param -P`, `conf_param`, `get_param
//! -P`.

use anyhow::{anyhow, bail};
use host::ask;
use prost::Message;
use proto::msg::{Config, ConfigGetReq, Param, SetParamReq};
use proto::params::{self, Named};
use proto::{Errno, Nid, Opcode};
use stdx::wildcard;

use super::lustre;
use super::params::{NOT_FOUND, collect, not_found};
use crate::audience::Audience;
use crate::commands::status;
use crate::misuse::misuse;
use crate::output::say;

/// The MGSes that are served on this node.
pub(super) fn mgs_here() -> anyhow::Result<Vec<Nid>> {
    let processes = status::processes();
    let devices = processes.iter().flat_map(|process| &process.description.devices);
    let places: Vec<Nid> =
        devices.filter(|device| device.kind == "mgs").filter_map(|device| device.place.parse().ok()).collect();
    if places.is_empty() {
        bail!("no MGS is served on this node; persistent parameters, pools and the list of lost targets are there");
    }
    Ok(places)
}

/// Asks that MGS of `places` which has the file system for a change. `reason`: that of a refusal, for a person; `older`: why an
/// MGS of an older version cannot do it.
pub(super) fn change<R: Message + Default>(
    places: &[Nid],
    fsname: &str,
    (opcode, request): (Opcode, &impl Message),
    reason: fn(R) -> String,
    older: &str,
) -> anyhow::Result<()> {
    for nid in places {
        let answer = ask::ask(std::slice::from_ref(nid), "MGS", opcode, request)?;
        let reason = answer.decode::<R>().map(reason).unwrap_or_default();
        match Errno::from_status(answer.header.status) {
            Ok(()) => return Ok(()),
            // Another MGS has this file system.
            Err(Errno::ENOENT) if reason.is_empty() => {}
            Err(Errno::EOPNOTSUPP) => bail!("the MGS at {nid} is of an older version{older}"),
            Err(errno) if reason.is_empty() => bail!("the MGS at {nid} refuses: {errno}"),
            Err(errno) => bail!("{reason} ({errno})"),
        }
    }
    bail!("the MGS here knows no file system '{fsname}'")
}

/// The file systems that the MGSes of this node know.
fn file_systems() -> Vec<String> {
    let known = collect(&mut Audience::all(), "mgs.*.live.*");
    known.into_iter().filter_map(|(name, _)| Some(name.rsplit_once('.')?.1.to_owned())).collect()
}

/// Whether a pattern concerns a file system: its device starts with the file system's name, or may. A parameter of a
/// process has no device and is set for all file systems.
fn is_about(pattern: &str, fsname: &str) -> bool {
    let device_at = if pattern.starts_with("ldlm.") { 2 } else { 1 };
    match pattern.split('.').nth(device_at) {
        None => true,
        Some(device) => device == fsname || device.starts_with(&format!("{fsname}-")) || device.contains(['*', '?']),
    }
}

/// `set_param -P`.
pub(super) fn set(settings: &[String], delete: bool, quiet: bool) -> anyhow::Result<u8> {
    let places = mgs_here()?;
    let known = file_systems();
    let mut code = 0;
    for setting in settings {
        let (pattern, value) = parse(setting, delete)?;
        let names: Vec<&String> = known.iter().filter(|fsname| is_about(pattern, fsname)).collect();
        code = code.max(keep(&places, &names, (pattern, value), delete, quiet)?);
    }
    Ok(code)
}

/// `conf_param`: the same with the older paths.
pub(super) fn conf_param(settings: &[String], delete: bool) -> anyhow::Result<u8> {
    let places = mgs_here()?;
    let mut code = 0;
    for setting in settings {
        let (path, value) = parse(setting, delete)?;
        let Some((fsname, pattern)) = of_conf_param(path) else {
            bail!(
                "'{path}' is no path of conf_param; expected FSNAME-TARGET.KIND.NAME, FSNAME.llite.NAME or FSNAME.sys.NAME"
            );
        };
        code = code.max(keep(&places, &[&fsname], (&pattern, value), delete, false)?);
    }
    Ok(code)
}

fn parse(setting: &str, delete: bool) -> anyhow::Result<(&str, &str)> {
    match setting.split_once('=') {
        Some((pattern, _)) if delete => Ok((pattern, "")),
        Some(parts) => Ok(parts),
        None if delete => Ok((setting, "")),
        None => misuse!("'{setting}' is not a setting; expected PATTERN=VALUE"),
    }
}

/// The file system and the pattern that a path of `conf_param` stands for: `demo-OST0001.osc.active`,
/// `demo.llite.max_cached_mb`, `demo.sys.timeout`.
fn of_conf_param(path: &str) -> Option<(String, String)> {
    let mut parts = path.splitn(3, '.');
    let (device, kind, name) = (parts.next()?, parts.next()?, parts.next()?);
    let fsname = device.split('-').next()?;
    if fsname.is_empty() || name.is_empty() {
        return None;
    }
    let pattern = match (kind, name) {
        ("sys", _) => name.to_owned(),
        // Metadata targets decide by their own devices whether new files avoid an object target.
        ("osc", "active") => format!("osp.{device}-osc-MDT*.active"),
        ("osc" | "mdc", _) => format!("{kind}.{device}-{kind}*.{name}"),
        ("ost", _) => format!("obdfilter.{device}.{name}"),
        ("lod", _) => format!("lod.{device}-mdtlov.{name}"),
        // Without the instance of a mount, the name matches the devices of all mounts, including those of version 0.1.0.
        ("llite" | "lov" | "lmv", _) => format!("{kind}.{fsname}.{name}"),
        _ => format!("{kind}.{device}.{name}"),
    };
    Some((fsname.to_owned(), pattern))
}

/// Why no server and no client would follow a setting.
fn refusal(pattern: &str) -> Option<&'static str> {
    match params::named(pattern) {
        Named::Settable => None,
        Named::Fixed => Some("it cannot be set"),
        Named::Nothing if lustre::has_param(pattern) => Some("not in this version; see limits"),
        Named::Nothing => Some("no server and no client has such a parameter; see: lctl list_param -R '*'"),
    }
}

/// Has the MGSes keep a setting for these file systems, or drop it.
fn keep(
    places: &[Nid],
    fsnames: &[&String],
    (pattern, value): (&str, &str),
    delete: bool,
    quiet: bool,
) -> anyhow::Result<u8> {
    // A setting that an older version accepted can still be removed.
    if let Some(refusal) = refusal(pattern).filter(|_| !delete) {
        eprintln!("error: set_param: setting {pattern}={value}: {refusal}");
        return Ok(NOT_FOUND);
    }
    let (mut code, mut found, mut kept) = (0, false, false);
    for (fsname, nid) in fsnames.iter().flat_map(|name| places.iter().map(move |nid| (name, nid))) {
        let param = Param { path: pattern.to_owned(), value: value.to_owned() };
        let request = SetParamReq { fsname: (*fsname).clone(), param: Some(param), delete };
        let answer = ask::ask(std::slice::from_ref(nid), "MGS", Opcode::MgsSetParam, &request);
        match Errno::from_status(answer?.header.status) {
            Ok(()) => (found, kept) = (true, true),
            // Another MGS has this file system, or the setting was not set.
            Err(Errno::ENOENT) => {}
            Err(errno) => {
                found = true;
                eprintln!("error: set_param: setting {pattern}={value} of {fsname}: {errno}");
                code = 1;
            }
        }
    }
    if kept && !quiet && !delete {
        say!("{pattern}={value}");
    }
    if !found {
        code = if fsnames.is_empty() {
            eprintln!("error: set_param: the MGS here knows no file system that '{pattern}' is about");
            NOT_FOUND
        } else {
            not_found("set_param", pattern)
        };
    }
    Ok(code)
}

/// `get_param -P`: prints the settings that are kept for the matching file systems and names.
pub(super) fn show(patterns: &[String], values: bool, names: bool) -> anyhow::Result<u8> {
    let places = mgs_here()?;
    let mut kept: Vec<Param> = Vec::new();
    let mut code = 0;
    for (fsname, nid) in file_systems().iter().flat_map(|name| places.iter().map(move |nid| (name, nid))) {
        let request = ConfigGetReq { fsname: fsname.clone() };
        let answer = ask::ask(std::slice::from_ref(nid), "MGS", Opcode::MgsConfigGet, &request);
        let config =
            answer.map_err(anyhow::Error::new).and_then(|answer| match Errno::from_status(answer.header.status) {
                Ok(()) => Ok(answer.decode::<Config>()?),
                // Another MGS has it.
                Err(Errno::ENOENT) => Ok(Config::default()),
                Err(errno) => Err(anyhow!("the MGS at {nid} does not tell what it keeps: {errno}")),
            });
        match config {
            Ok(config) => kept.extend(config.params),
            Err(error) => {
                eprintln!("error: get_param: {error:#}");
                code = 1;
            }
        }
    }
    kept.sort_by(|a, b| (&a.path, &a.value).cmp(&(&b.path, &b.value)));
    kept.dedup();
    for pattern in patterns {
        let mut found = false;
        for Param { path, value } in &kept {
            // A kept setting may be a pattern itself; it is printed under its own name.
            if path != pattern && !wildcard::matches(pattern, path) {
                continue;
            }
            found = true;
            match (names, values) {
                (true, _) => say!("{path}"),
                (false, true) => say!("{value}"),
                (false, false) => say!("{path}={value}"),
            }
        }
        if !found {
            eprintln!("error: get_param: nothing is kept for '{pattern}'; all that is: lctl get_param -P '**'");
            code = NOT_FOUND;
        }
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_conf_param_are_understood() {
        for (path, fsname, pattern) in [
            ("demo-OST0001.osc.active", "demo", "osp.demo-OST0001-osc-MDT*.active"),
            ("demo-MDT0000.mdt.dom_stripesize", "demo", "mdt.demo-MDT0000.dom_stripesize"),
            ("demo-OST0000.ost.degraded", "demo", "obdfilter.demo-OST0000.degraded"),
            ("demo.llite.max_cached_mb", "demo", "llite.demo.max_cached_mb"),
            ("demo.sys.timeout", "demo", "timeout"),
            ("demo-MDT0000.mdc.max_rpcs_in_flight", "demo", "mdc.demo-MDT0000-mdc*.max_rpcs_in_flight"),
            ("demo-MDT0000.lod.qos_threshold_rr", "demo", "lod.demo-MDT0000-mdtlov.qos_threshold_rr"),
        ] {
            assert_eq!(of_conf_param(path), Some((fsname.to_owned(), pattern.to_owned())), "{path}");
            assert_eq!(refusal(pattern), None, "{pattern}");
        }
        assert_eq!(of_conf_param("timeout"), None);
        assert_eq!(of_conf_param("demo.sys"), None);
    }

    #[test]
    fn a_setting_is_about_the_file_systems_of_its_device() {
        assert!(
            is_about("timeout", "demo") && is_about("mdt.demo-MDT0000.x", "demo") && is_about("llite.demo.x", "demo")
        );
        assert!(is_about("llite.*.x", "demo") && is_about("ldlm.namespaces.demo-MDT0000.lock_timeout", "demo"));
        assert!(!is_about("mdt.demo2-MDT0000.x", "demo") && !is_about("ldlm.namespaces.other-MDT0000.x", "demo"));
    }

    #[test]
    fn what_nobody_would_follow_is_refused() {
        assert!(refusal("mdt.demo-MDT0000.bogus").unwrap().contains("list_param"));
        assert!(refusal("mdt.*.num_exports").unwrap().contains("cannot be set"));
        assert!(refusal("osc.*.max_pages_per_rpc").unwrap().contains("see limits"));
    }
}
