//! Settings and statistics, under Lustre's names.

use core::time::Duration;
use proto::connect::DOM_SIZE_DEFAULT;
use proto::msg::{SequenceRange, StatfsRep};
use proto::params::{Bound, Component, OfFld, OfLod, OfMdt, OfOsp, OfOspSpace, OfPool, OfSeq, OfSpace, Served};
use proto::{Errno, TargetIndex, TargetKind, TargetName, bound_as_declared};
use rules::placement::Qos;
use schema::mdt::SeqRange;
use target::{Cx, device_of, space_text};

use crate::Mdt;
use crate::ops::statfs;
use crate::osts::Ost;

/// Settings of a metadata target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Files up to this size live here, in bytes; 0: new files have their data on object targets from the start.
    pub dom_size: u32,
    /// Files that one client may have open.
    pub open_files_max: usize,
    /// Directories may be made on other targets than their parents.
    pub enable_remote_dir: bool,
    /// Directories may have stripes.
    pub enable_striped_dir: bool,
    /// The group that may make either of them besides administrators; 0: none, -1: everybody.
    pub enable_remote_dir_gid: i64,
    /// Directories may get other stripes.
    pub enable_dir_restripe: bool,
    /// Objects are renamed to directories on other targets.
    pub enable_remote_rename: bool,
    /// Lustre's `enable_parallel_rename_dir`, `_file` and `_crossdir`: nothing depends on them.
    pub parallel_renames: [bool; 3],
    /// How many names of one stripe move to other stripes at a time, and how long each waits before. They have no parameter.
    pub names_moving: (usize, Duration),
    /// Lustre's `mdt_qos_threshold_rr`, `mdt_qos_prio_free` and `mdt_qos_maxage`: nothing depends on them.
    pub mdt_qos: [u64; 3],
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            dom_size: DOM_SIZE_DEFAULT,
            open_files_max: 1 << 18,
            enable_remote_dir: true,
            enable_dir_restripe: false,
            enable_striped_dir: true,
            enable_remote_dir_gid: 0,
            enable_remote_rename: true,
            parallel_renames: [true; 3],
            names_moving: (32, Duration::ZERO),
            mdt_qos: [5, 90, 10],
        }
    }
}

/// What a parameter is of.
enum Key<'a> {
    Own(OfMdt),
    Space(OfSpace),
    Lod(OfLod),
    Fld(OfFld),
    Seq(OfSeq),
    Pool(OfPool, &'a [u32]),
    Osp(OfOsp, &'a Ost),
    OspSpace(OfOspSpace, &'a StatfsRep),
}

/// A setting that is on or off.
macro_rules! switch {
    ($($place:tt)+) => {
        Bound::Number(
            |mdt| u8::from(mdt.settings.$($place)+).to_string(),
            |mdt, on| {
                mdt.settings.$($place)+ = on == 1;
                Ok(())
            },
        )
    };
}

/// A number among [`Settings`] on which nothing depends, with its unit.
macro_rules! accepted {
    ($place:ident[$at:literal], $unit:literal) => {
        Bound::Number(
            |(mdt, _)| format!(concat!("{}", $unit), mdt.settings.$place[$at]),
            |mdt, number| {
                mdt.settings.$place[$at] = number;
                Ok(())
            },
        )
    };
}

const fn of_mdt(which: OfMdt) -> Bound<Mdt> {
    match which {
        OfMdt::MaxOpenFiles => Bound::Number(
            |mdt| mdt.settings.open_files_max.to_string(),
            |mdt, files| {
                mdt.settings.open_files_max = usize::try_from(files).map_err(|_| Errno::ERANGE)?;
                Ok(())
            },
        ),
        OfMdt::OpenFiles => Bound::Get(|mdt| mdt.opens.total().to_string()),
        OfMdt::DomStripesize => Bound::Number(
            |mdt| mdt.settings.dom_size.to_string(),
            |mdt, size| {
                mdt.settings.dom_size = u32::try_from(size).map_err(|_| Errno::ERANGE)?;
                Ok(())
            },
        ),
        OfMdt::EnableRemoteDir => switch!(enable_remote_dir),
        OfMdt::EnableDirRestripe => switch!(enable_dir_restripe),
        OfMdt::EnableRemoteDirGid => Bound::Text(
            |mdt| mdt.settings.enable_remote_dir_gid.to_string(),
            |mdt, text| {
                mdt.settings.enable_remote_dir_gid = text.parse().map_err(|_| Errno::EINVAL)?;
                Ok(())
            },
        ),
        OfMdt::EnableStripedDir => switch!(enable_striped_dir),
        OfMdt::EnableRemoteRename => switch!(enable_remote_rename),
        OfMdt::EnableParallelRenameDir => switch!(parallel_renames[0]),
        OfMdt::EnableParallelRenameFile => switch!(parallel_renames[1]),
        OfMdt::EnableParallelRenameCrossdir => switch!(parallel_renames[2]),
        OfMdt::DestroysInFlight => Bound::Get(|mdt| mdt.destroys.in_flight().to_string()),
    }
}

/// Of the choice between object targets. The state has the target's name with it.
const fn of_lod<'a>(which: OfLod) -> Bound<(&'a Mdt, &'a TargetName), Mdt> {
    match which {
        OfLod::QosThresholdRr => Bound::Number(
            |(mdt, _)| format!("{}%", mdt.osts.qos.threshold_rr),
            |mdt, percent| {
                let threshold_rr = u8::try_from(percent).map_err(|_| Errno::ERANGE)?;
                mdt.osts.set_qos(Qos { threshold_rr, ..mdt.osts.qos });
                Ok(())
            },
        ),
        OfLod::QosPrioFree => Bound::Number(
            |(mdt, _)| format!("{}%", mdt.osts.qos.prio_free),
            |mdt, percent| {
                let prio_free = u8::try_from(percent).map_err(|_| Errno::ERANGE)?;
                mdt.osts.set_qos(Qos { prio_free, ..mdt.osts.qos });
                Ok(())
            },
        ),
        OfLod::MdtQosThresholdRr => accepted!(mdt_qos[0], "%"),
        OfLod::MdtQosPrioFree => accepted!(mdt_qos[1], "%"),
        OfLod::MdtQosMaxage => accepted!(mdt_qos[2], ""),
        OfLod::Numobd => Bound::Get(|(mdt, _)| mdt.osts.iter().count().to_string()),
        OfLod::Activeobd => Bound::Get(|(mdt, _)| mdt.osts.usable().len().to_string()),
        OfLod::UsableObd => Bound::Get(|(mdt, name)| {
            mdt.osts.usable().iter().map(|&index| format!("{}\n", ost_name(name, index))).collect()
        }),
    }
}

/// Of an object target, as this target uses it.
const fn of_osp<'a>(which: OfOsp) -> Bound<&'a Ost, (&'a mut Mdt, u32)> {
    match which {
        OfOsp::Active => Bound::Number(
            |ost| u8::from(ost.active).to_string(),
            |(mdt, index), on| mdt.osts.set_active(*index, on == 1),
        ),
        OfOsp::MaxCreateCount => Bound::Number(
            |ost| ost.max_create_count.to_string(),
            |(mdt, index), count| {
                let count = u32::try_from(count).map_err(|_| Errno::ERANGE)?;
                mdt.osts.set_max_create_count(*index, count)
            },
        ),
    }
}

const _: () = bound_as_declared!(OfMdt, of_mdt);
const _: () = bound_as_declared!(OfLod, of_lod);
const _: () = bound_as_declared!(OfOsp, of_osp);

fn osp_space_text(which: OfOspSpace, space: &StatfsRep) -> String {
    let bytes = match which {
        OfOspSpace::Kbytestotal => space.total,
        OfOspSpace::Kbytesfree => space.free,
        OfOspSpace::Kbytesavail => space.available,
    };
    (bytes / 1024).to_string()
}

fn pool_text(which: OfPool, name: &TargetName, osts: &[u32]) -> String {
    match which {
        OfPool::Members => osts.iter().map(|&index| format!("{}_UUID\n", ost_name(name, index))).collect(),
    }
}

/// All parameters of the target of this name.
fn served<'a>(mdt: &'a Mdt, name: &TargetName) -> Served<Key<'a>> {
    let (own, lod) = (name.to_string(), format!("{name}-mdtlov"));
    let mut served = Served::new();
    served.add(Component::Mdt, &[&own], Key::Own);
    if mdt.space.is_some() {
        served.add(Component::Mdt, &[&own], Key::Space);
    }
    served.add(Component::Lod, &[&lod], Key::Lod);
    let device = format!("srv-{name}");
    served.add(Component::Fld, &[&device], Key::Fld);
    served.add(Component::Seq, &[&device], Key::Seq);
    for (pool, osts) in mdt.osts.pools() {
        served.add(Component::Lod, &[&lod, pool], |which| Key::Pool(which, osts));
    }
    for ost in mdt.osts.iter() {
        let device = device_of(name, &ost_name(name, ost.index));
        served.add(Component::Osp, &[&device], |which| Key::Osp(which, ost));
        if let Some(space) = &ost.space {
            served.add(Component::Osp, &[&device], |which| Key::OspSpace(which, space));
        }
    }
    served
}

/// They with their values.
pub(crate) fn get(mdt: &Mdt, name: &TargetName) -> Vec<(String, String)> {
    let figures = mdt.space.as_ref().map(|space| statfs::figures(mdt, space)).unwrap_or_default();
    let value = |key: &Key<'_>| match key {
        Key::Own(which) => of_mdt(*which).value(mdt),
        Key::Space(which) => space_text(*which, &figures),
        Key::Lod(which) => of_lod(*which).value(&(mdt, name)),
        Key::Fld(OfFld::Fldb) => SequenceRange::text(&mdt.fldb),
        Key::Seq(OfSeq::Space) => {
            let range = |range: &SeqRange| SequenceRange { start: range.start, end: range.end, mdt: name.index.0 };
            SequenceRange::text(&mdt.sequences.iter().map(range).collect::<Vec<_>>())
        }
        Key::Pool(which, osts) => pool_text(*which, name, osts),
        Key::Osp(which, ost) => of_osp(*which).value(ost),
        Key::OspSpace(which, space) => osp_space_text(*which, space),
    };
    served(mdt, name).values(|_| true, value)
}

/// Sets one. `None`: there is none of this name here that can be set.
pub(crate) fn set(mdt: &mut Mdt, name: &TargetName, path: &str, value: &str) -> Option<Result<(), Errno>> {
    match served(mdt, name).find(path)? {
        Key::Own(which) => of_mdt(which).set(mdt, which.declared(), value),
        Key::Lod(which) => of_lod(which).set(mdt, which.declared(), value),
        Key::Osp(which, ost) => {
            let index = ost.index;
            of_osp(which).set(&mut (mdt, index), which.declared(), value)
        }
        Key::Space(_) | Key::Fld(_) | Key::Seq(_) | Key::Pool(..) | Key::OspSpace(..) => None,
    }
}

fn ost_name(own: &TargetName, index: u32) -> TargetName {
    TargetName { fsname: own.fsname.clone(), kind: TargetKind::Ost, index: TargetIndex(index) }
}

/// An object target that is new in the configuration has the persistent parameters that name it.
pub(crate) fn of_new_ost(mdt: &mut Mdt, cx: &Cx<'_>, index: u32) {
    let device = device_of(cx.name(), &ost_name(cx.name(), index));
    let stars = [&*device];
    for path in OfOsp::ALL.iter().flat_map(|which| which.declared().names(Component::Osp, &stars)) {
        for param in cx.config().params.iter().filter(|param| stdx::wildcard::matches(&param.path, &path)) {
            // One that makes no sense has no effect; those that have it set are told why at once.
            let _ = set(mdt, cx.name(), &path, &param.value);
        }
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
        assert_eq!(set("mdt.fs-MDT0000.open_files", "0"), None);
        assert_eq!(set("mdt.fs-MDT0000.max_open_files", "0"), Some(Err(Errno::ERANGE)));
        assert_eq!(set("mdt.fs-MDT0000.max_open_files", "many"), Some(Err(Errno::EINVAL)));
        assert_eq!(set("mdt.fs-MDT0000.max_open_files", "1000"), Some(Ok(())));
        assert_eq!(set("mdt.fs-MDT0001.md_stats", "clear"), None);
        assert_eq!(set("mdt.fs-MDT0000.nothing", "1"), None);
        assert!(
            get(&mdt, &"fs-MDT0000".parse().unwrap()).contains(&("mdt.fs-MDT0000.dom_stripesize".into(), "0".into()))
        );
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
        let all = get(&mdt, &"fs-MDT0000".parse().unwrap());
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
