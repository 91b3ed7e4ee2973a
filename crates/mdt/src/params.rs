//! Settings and statistics, under Lustre's names.

use crate::Mdt;
use crate::ops::statfs;
use proto::connect::DOM_SIZE_DEFAULT;
use proto::{Errno, TargetIndex, TargetKind, TargetName};
use target::{Cx, device_of};

/// Settings of a metadata target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Files up to this size live here, in bytes; 0: new files have their data on object targets from the start.
    pub dom_size: u32,
    /// Files that one client may have open.
    pub open_files_max: usize,
}

/// Greatest `max_open_files`: about a gigabyte of memory for one client.
const OPEN_FILES_MAX: usize = 1 << 22;

/// Greatest `dom_size`: what a record may hold.
pub(crate) const DOM_SIZE_MAX: u32 = 1 << 20;

impl Default for Settings {
    fn default() -> Settings {
        Settings { dom_size: DOM_SIZE_DEFAULT, open_files_max: 1 << 18 }
    }
}

/// All parameters of the target of this name.
pub(crate) fn get(mdt: &Mdt, name: &str) -> Vec<(String, String)> {
    let param = |leaf: &str, value: String| (format!("mdt.{name}.{leaf}"), value);
    let mut all = vec![
        param("destroys_in_flight", mdt.destroys.in_flight().to_string()),
        param("dom_stripesize", mdt.settings.dom_size.to_string()),
        param("max_open_files", mdt.settings.open_files_max.to_string()),
        param("open_files", mdt.opens.total().to_string()),
    ];
    if let Some(space) = &mdt.space {
        let figures = statfs::figures(mdt, space);
        all.extend([
            param("filesfree", figures.files_free.to_string()),
            param("filestotal", figures.files.to_string()),
            param("kbytesavail", (figures.available / 1024).to_string()),
            param("kbytesfree", (figures.free / 1024).to_string()),
            param("kbytestotal", (figures.total / 1024).to_string()),
        ]);
    }
    all.extend(name.parse().map(|name| of_osts(mdt, &name)).unwrap_or_default());
    all
}

/// Parameters of the object targets, as this target uses them, and of the choice between them.
fn of_osts(mdt: &Mdt, name: &TargetName) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for ost in mdt.osts.iter() {
        let device = device_of(name, &ost_name(name, ost.index));
        all.push((format!("osp.{device}.active"), u8::from(ost.active).to_string()));
        all.push((format!("osp.{device}.max_create_count"), ost.max_create_count.to_string()));
        if let Some(space) = &ost.space {
            all.push((format!("osp.{device}.kbytestotal"), (space.total / 1024).to_string()));
            all.push((format!("osp.{device}.kbytesfree"), (space.free / 1024).to_string()));
            all.push((format!("osp.{device}.kbytesavail"), (space.available / 1024).to_string()));
        }
    }
    let usable: String = mdt.osts.usable().iter().map(|&index| format!("{}\n", ost_name(name, index))).collect();
    let choice = [
        ("activeobd", mdt.osts.usable().len().to_string()),
        ("numobd", mdt.osts.iter().count().to_string()),
        ("qos_prio_free", format!("{}%", mdt.osts.qos_prio_free)),
        ("qos_threshold_rr", format!("{}%", mdt.osts.qos_threshold_rr)),
        ("usable_obd", usable),
    ];
    all.extend(choice.into_iter().map(|(leaf, value)| (format!("lod.{name}-mdtlov.{leaf}"), value)));
    for (pool, osts) in mdt.osts.pools() {
        let members: String = osts.iter().map(|&index| format!("{}_UUID\n", ost_name(name, index))).collect();
        all.push((format!("lod.{name}-mdtlov.pools.{pool}"), members));
    }
    all
}

fn ost_name(own: &TargetName, index: u32) -> TargetName {
    TargetName { fsname: own.fsname.clone(), kind: TargetKind::Ost, index: TargetIndex(index) }
}

/// An object target that is new in the configuration has the persistent parameters that name it.
pub(crate) fn of_new_ost(mdt: &mut Mdt, cx: &Cx<'_>, index: u32) {
    let device = device_of(cx.name(), &ost_name(cx.name(), index));
    for leaf in ["active", "max_create_count"] {
        let path = format!("osp.{device}.{leaf}");
        for param in cx.config().params.iter().filter(|param| stdx::wildcard::matches(&param.path, &path)) {
            // One that makes no sense has no effect; those that have it set are told why at once.
            let _ = set_osts(mdt, cx.name(), &path, &param.value);
        }
    }
}

/// Sets one of those of [`of_osts`]. `None`: there is none of this name.
fn set_osts(mdt: &mut Mdt, name: &TargetName, path: &str, value: &str) -> Option<Result<(), Errno>> {
    let percent = |value: &str| match value.trim().trim_end_matches('%').parse() {
        Ok(percent @ 0..=100u8) => Ok(percent),
        Ok(_) => Err(Errno::ERANGE),
        Err(_) => Err(Errno::EINVAL),
    };
    let (kind, rest) = path.split_once('.')?;
    let (device, leaf) = rest.split_once('.')?;
    let lod = format!("{name}-mdtlov");
    if kind == "lod" && device == lod {
        let (threshold, prio) = (mdt.osts.qos_threshold_rr, mdt.osts.qos_prio_free);
        return Some(match leaf {
            "qos_threshold_rr" => percent(value).map(|threshold| mdt.osts.set_qos(threshold, prio)),
            "qos_prio_free" => percent(value).map(|prio| mdt.osts.set_qos(threshold, prio)),
            _ => return None,
        });
    }
    let is_it = |index: &u32| kind == "osp" && device == device_of(name, &ost_name(name, *index));
    let index = mdt.osts.iter().map(|ost| ost.index).find(is_it)?;
    Some(match leaf {
        "active" => match value.trim() {
            word @ ("0" | "1") => mdt.osts.set_active(index, word == "1"),
            _ => Err(Errno::EINVAL),
        },
        "max_create_count" => match value.trim().parse() {
            Ok(count) => mdt.osts.set_max_create_count(index, count),
            Err(_) => Err(Errno::EINVAL),
        },
        _ => return None,
    })
}

/// Sets one. `None`: there is none of this name here.
pub(crate) fn set(mdt: &mut Mdt, target: &TargetName, path: &str, value: &str) -> Option<Result<(), Errno>> {
    if let Some(result) = set_osts(mdt, target, path, value) {
        return Some(result);
    }
    let name = &target.to_string();
    let leaf = path.strip_prefix("mdt.")?.strip_prefix(name.as_str())?.strip_prefix('.')?;
    Some(match leaf {
        "dom_stripesize" => size(value).map(|size| mdt.settings.dom_size = size),
        "max_open_files" => match value.trim().parse() {
            Ok(files @ 1..=OPEN_FILES_MAX) => {
                mdt.settings.open_files_max = files;
                Ok(())
            }
            Ok(_) => Err(Errno::ERANGE),
            Err(_) => Err(Errno::EINVAL),
        },
        "destroys_in_flight" | "open_files" => Err(Errno::EACCES),
        _ => return None,
    })
}

/// A size in bytes, or with `k` or `m` behind it: a multiple of 64 KiB, or 0.
fn size(value: &str) -> Result<u32, Errno> {
    let (number, unit) = match value.as_bytes().last() {
        Some(b'k' | b'K') => (&value[..value.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&value[..value.len() - 1], 1 << 20),
        _ => (value, 1),
    };
    let size = number.parse::<u32>().map_err(|_| Errno::EINVAL)?.checked_mul(unit).ok_or(Errno::ERANGE)?;
    match size {
        size if size % (64 << 10) != 0 => Err(Errno::EINVAL),
        size if size > DOM_SIZE_MAX => Err(Errno::ERANGE),
        size => Ok(size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_lustres_paths() {
        let mut mdt = Mdt::new(Settings::default());
        let mut set = |path: &str, value: &str| set(&mut mdt, &"fs-MDT0000".parse().unwrap(), path, value);
        assert_eq!(set("mdt.fs-MDT0000.dom_stripesize", "128k"), Some(Ok(())));
        assert_eq!(set("mdt.fs-MDT0000.dom_stripesize", "1000"), Some(Err(Errno::EINVAL)));
        assert_eq!(set("mdt.fs-MDT0000.dom_stripesize", "64m"), Some(Err(Errno::ERANGE)));
        assert_eq!(set("mdt.fs-MDT0000.dom_stripesize", "0"), Some(Ok(())));
        assert_eq!(set("mdt.fs-MDT0000.open_files", "0"), Some(Err(Errno::EACCES)));
        assert_eq!(set("mdt.fs-MDT0000.max_open_files", "0"), Some(Err(Errno::ERANGE)));
        assert_eq!(set("mdt.fs-MDT0000.max_open_files", "many"), Some(Err(Errno::EINVAL)));
        assert_eq!(set("mdt.fs-MDT0000.max_open_files", "1000"), Some(Ok(())));
        assert_eq!(set("mdt.fs-MDT0001.md_stats", "clear"), None);
        assert_eq!(set("mdt.fs-MDT0000.nothing", "1"), None);
        assert!(get(&mdt, "fs-MDT0000").contains(&("mdt.fs-MDT0000.dom_stripesize".into(), "0".into())));
    }

    #[test]
    fn object_targets_are_taken_out_by_lustres_words() {
        let mut mdt = Mdt::new(Settings::default());
        mdt.osts.configure(&[0, 1]);
        let mut try_set = |path: &str, value: &str| set(&mut mdt, &"fs-MDT0000".parse().unwrap(), path, value);
        assert_eq!(try_set("osp.fs-OST0001-osc-MDT0000.max_create_count", "0"), Some(Ok(())));
        assert_eq!(try_set("osp.fs-OST0001-osc-MDT0000.max_create_count", "few"), Some(Err(Errno::EINVAL)));
        assert_eq!(try_set("osp.fs-OST0001-osc-MDT0000.active", "2"), Some(Err(Errno::EINVAL)));
        assert_eq!(try_set("osp.fs-OST0002-osc-MDT0000.active", "0"), None);
        assert_eq!(try_set("lod.fs-MDT0000-mdtlov.qos_threshold_rr", "101"), Some(Err(Errno::ERANGE)));
        assert_eq!(try_set("lod.fs-MDT0000-mdtlov.qos_threshold_rr", "30%"), Some(Ok(())));
        let all = get(&mdt, "fs-MDT0000");
        for (path, value) in [
            ("osp.fs-OST0001-osc-MDT0000.max_create_count", "0"),
            ("osp.fs-OST0000-osc-MDT0000.active", "1"),
            ("lod.fs-MDT0000-mdtlov.qos_threshold_rr", "30%"),
            ("lod.fs-MDT0000-mdtlov.usable_obd", "fs-OST0000\n"),
        ] {
            assert!(all.contains(&(path.into(), value.into())), "{path}");
        }
    }
}
