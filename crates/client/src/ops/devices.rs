//! The devices of a client, under Lustre's names.
//!
//! A mount has an instance, a number of 16 hexadecimal digits that is part of the names of all its devices and
//! distinguishes several mounts of one machine:
//!
//! ```text
//!   demo-MDT0000-mdc-ffff9a3c0e4b8800     its connection to a metadata target
//!   demo-OST0001-osc-ffff9a3c0e4b8800     to an object target
//!   demo-clilmv-ffff9a3c0e4b8800          all its metadata targets
//!   demo-clilov-ffff9a3c0e4b8800          all its object targets
//!   demo-ffff9a3c0e4b8800                 the mount itself, of parameters `llite`
//! ```
//!
//! Versions up to 0.1.0 named devices without the instance. Patterns that match such a name still work, because
//! persistent parameters may have been set with them.

use stdx::wildcard;

use crate::api::{Device, Instance};
use crate::base::Dest;
use crate::coherence::request::Pending;
use crate::coherence::world::World;
use crate::session::Target;

/// The kind of device that stands for a target.
pub(crate) fn kind_of(dest: Dest) -> &'static str {
    match dest {
        Dest::Mgs => "mgc",
        Dest::Mdt(_) => "mdc",
        Dest::Ost(_) => "osc",
    }
}

/// The device that stands for a target: `demo-MDT0000-mdc-ffff9a3c0e4b8800`.
pub(crate) fn of_target(w: &World, target: &Target<Pending>) -> String {
    format!("{}-{}-{}", target.name, kind_of(target.dest), w.options.instance)
}

/// The mount itself: `demo-ffff9a3c0e4b8800`.
pub(crate) fn of_mount(w: &World) -> String {
    format!("{}-{}", w.options.fsname, w.options.instance)
}

/// All metadata targets (`lmv`), or all object targets (`lov`).
pub(crate) fn of_all(w: &World, kind: &str) -> String {
    format!("{}-cli{kind}-{}", w.options.fsname, w.options.instance)
}

/// Whether a pattern matches a parameter of a mount, by its name or by the one that versions up to 0.1.0 gave it.
pub(crate) fn names(instance: Instance, pattern: &str, name: &str) -> bool {
    if wildcard::matches(pattern, name) {
        return true;
    }
    let mark = format!("-{instance}");
    let Some((device, rest)) = name.split_once(&mark) else { return false };
    let device = ["-clilmv", "-clilov"].iter().find_map(|kind| device.strip_suffix(kind)).unwrap_or(device);
    wildcard::matches(pattern, &format!("{device}{rest}"))
}

/// The devices of a mount, with their references. The mount itself counts its process and each cached node; a
/// connection counts the mount, each unanswered request and each lock; a device for several targets counts the mount
/// and each target.
pub(crate) fn list(w: &World) -> Vec<Device> {
    let uuid = w.options.uuid.to_string();
    let device = |kind: &'static str, name: String, references: usize| Device {
        kind,
        name,
        uuid: uuid.clone(),
        references: 1 + references as u64,
    };
    let count = |kind: &str| w.imports.iter().filter(|target| kind_of(target.dest) == kind).count();
    let mut list = vec![
        device("llite", of_mount(w), w.nodes.len()),
        device("lmv", of_all(w, "lmv"), count("mdc")),
        device("lov", of_all(w, "lov"), count("osc")),
    ];
    list.extend(w.imports.iter().map(|target| {
        let (status, (locks, _)) =
            (target.import.status(), w.locks.get(target.dest).map_or((0, 0), |locks| locks.counts()));
        device(kind_of(target.dest), of_target(w, target), status.in_flight + status.queued + locks)
    }));
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_with_and_without_the_instance_name_a_device() {
        let instance = Instance(0xffff_9a3c_0e4b_8800);
        for (pattern, name, fits) in [
            ("mdc.fs-MDT0000-mdc-*.import", "mdc.fs-MDT0000-mdc-ffff9a3c0e4b8800.import", true),
            ("mdc.fs-MDT0000-mdc-ffff9a3c0e4b8800.import", "mdc.fs-MDT0000-mdc-ffff9a3c0e4b8800.import", true),
            ("mdc.fs-MDT0000-mdc.import", "mdc.fs-MDT0000-mdc-ffff9a3c0e4b8800.import", true),
            ("mdc.fs-MDT0000-mdc-0000000000000001.import", "mdc.fs-MDT0000-mdc-ffff9a3c0e4b8800.import", false),
            (
                "ldlm.namespaces.fs-OST0000-osc.lru_size",
                "ldlm.namespaces.fs-OST0000-osc-ffff9a3c0e4b8800.lru_size",
                true,
            ),
            ("llite.fs.stats", "llite.fs-ffff9a3c0e4b8800.stats", true),
            ("llite.fs-*.stats", "llite.fs-ffff9a3c0e4b8800.stats", true),
            ("lov.fs.numobd", "lov.fs-clilov-ffff9a3c0e4b8800.numobd", true),
            ("lov.fs-clilov-*.numobd", "lov.fs-clilov-ffff9a3c0e4b8800.numobd", true),
            ("lmv.fs2.numobd", "lmv.fs-clilmv-ffff9a3c0e4b8800.numobd", false),
            ("timeout", "timeout", true),
            ("time", "timeout", false),
        ] {
            assert_eq!(names(instance, pattern, name), fits, "{pattern} {name}");
        }
    }
}
