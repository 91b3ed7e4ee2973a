//! Names of parameters that this version has: what a persistent parameter may name, and what of it can be set.
//!
//! Values and their meaning are with those that have them; this is the list that an MGS and `lctl` look a name up in before
//! it is kept for servers and clients that may not run now.

use stdx::wildcard;

/// Of parameters with the same beginnings: the beginnings, and for each name whether it can be set.
type Group = (&'static [&'static str], &'static [(&'static str, bool)]);

const GROUPS: &[Group] = &[
    (
        &[""],
        &[
            ("at_early_margin", true),
            ("at_extra", true),
            ("at_history", true),
            ("at_max", true),
            ("at_min", true),
            ("fail_err", true),
            ("fail_loc", true),
            ("fail_val", true),
            ("health_check", false),
            ("jobid_name", true),
            ("jobid_var", true),
            ("log_level", true),
            ("ldlm_timeout", true),
            ("ping_interval", true),
            ("suppress_pings", true),
            ("timeout", true),
            ("version", false),
        ],
    ),
    (
        &["mgs.*.", "mdt.*.", "obdfilter.*."],
        &[
            ("abort_recovery", true),
            ("cache_bytes", false),
            ("commit_interval_ms", true),
            ("commit_on_sharing", true),
            ("dirty_bytes", false),
            ("evict_client", true),
            ("eviction_count", false),
            ("exports.*.description", false),
            ("exports.*.nid", false),
            ("exports.*.stats", true),
            ("exports.*.uuid", false),
            ("instance", false),
            ("ir_factor", true),
            ("last_committed", false),
            ("num_exports", false),
            ("recovery_status", false),
            ("recovery_time_hard", true),
            ("recovery_time_soft", true),
            ("stats", true),
            ("store_damage", false),
            ("timeouts", false),
            ("uuid", false),
        ],
    ),
    (&["mgs.*."], &[("live.*", false), ("num_watchers", false)]),
    (
        &["mdt.*."],
        &[
            ("destroys_in_flight", false),
            ("dom_stripesize", true),
            ("exports.*.reply_data", false),
            ("filesfree", false),
            ("filestotal", false),
            ("job_cleanup_interval", true),
            ("job_stats", true),
            ("kbytesavail", false),
            ("kbytesfree", false),
            ("kbytestotal", false),
            ("max_mod_rpcs_in_flight", true),
            ("max_mod_rpcs_per_client", true),
            ("max_open_files", true),
            ("md_stats", true),
            ("open_files", false),
        ],
    ),
    (
        &["obdfilter.*."],
        &[
            ("brw_stats", true),
            ("degraded", true),
            ("filesfree", false),
            ("filestotal", false),
            ("job_cleanup_interval", true),
            ("job_stats", true),
            ("kbytesavail", false),
            ("kbytesfree", false),
            ("kbytestotal", false),
            ("tot_granted", false),
        ],
    ),
    (
        &["osd-lmdb.*."],
        &[
            ("filesfree", false),
            ("filestotal", false),
            ("kbytesavail", false),
            ("kbytesfree", false),
            ("kbytestotal", false),
            ("readonly", true),
        ],
    ),
    (
        &["osp.*."],
        &[
            ("active", true),
            ("import", false),
            ("kbytesavail", false),
            ("kbytesfree", false),
            ("kbytestotal", false),
            ("max_create_count", true),
        ],
    ),
    (
        &["lod.*."],
        &[
            ("activeobd", false),
            ("numobd", false),
            ("pools.*", false),
            ("qos_prio_free", true),
            ("qos_threshold_rr", true),
            ("usable_obd", false),
        ],
    ),
    (
        &["ldlm.namespaces.*."],
        &[
            ("lock_count", false),
            ("lock_limit_mb", true),
            ("lock_reclaim_threshold_mb", true),
            ("lock_timeout", true),
            ("lock_unused_count", false),
            ("lru_size", true),
            ("resource_count", false),
        ],
    ),
    (
        &["llite.*."],
        &[
            ("fstype", false),
            ("max_cached_mb", true),
            ("max_dirty_mb", true),
            ("max_nodes", true),
            ("max_nodes_mb", true),
            ("max_read_ahead_mb", true),
            ("mount_options", false),
            ("nodes", false),
            ("read_only", false),
            ("stats", true),
            ("sync_metadata", true),
            ("unwritable", false),
            ("uuid", false),
        ],
    ),
    (&["lmv.*.", "lov.*."], &[("numobd", false)]),
    (&["lov.*."], &[("pools.*", false)]),
    (&["mgc.*.", "mdc.*.", "osc.*."], &[("import", false), ("state", false), ("stats", false), ("timeouts", false)]),
    (
        &["mdc.*."],
        &[
            ("max_mod_rpcs_in_flight", true),
            ("max_mod_rpcs_raise", true),
            ("max_rpcs_in_flight", true),
            ("metadata_write_back", false),
            ("rpc_stats", true),
        ],
    ),
];

/// What is known of the parameters that a pattern names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Named {
    /// This version has none of such a name.
    Nothing,
    /// Only parameters that cannot be set.
    Fixed,
    /// Some can be set.
    Settable,
}

/// What a pattern names, on devices of any name.
pub fn named(pattern: &str) -> Named {
    // It may stand for any number of parts.
    if pattern.contains("**") {
        return Named::Settable;
    }
    let wanted: Vec<&str> = pattern.split(['.', '/']).collect();
    let mut named = Named::Nothing;
    for (beginnings, names) in GROUPS {
        for (beginning, (name, settable)) in beginnings.iter().flat_map(|one| names.iter().map(move |name| (one, name)))
        {
            match (is_of(&wanted, &format!("{beginning}{name}")), settable) {
                (false, _) => {}
                (true, true) => return Named::Settable,
                (true, false) => named = Named::Fixed,
            }
        }
    }
    named
}

/// Whether the parts of a pattern can name a parameter of this form, in which `*` is any one device, client or file system.
pub fn is_of(wanted: &[&str], form: &str) -> bool {
    let mut parts = form.split('.');
    wanted.iter().all(|wanted| match parts.next() {
        Some("*") => !wanted.is_empty(),
        Some(part) => wildcard::matches(wanted, part) || (part.contains('*') && wildcard::matches(part, wanted)),
        None => false,
    }) && parts.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_nothing_has_is_known_to_be_none() {
        for (pattern, what) in [
            ("timeout", Named::Settable),
            ("mdt.demo-MDT0000.dom_stripesize", Named::Settable),
            ("mdt/demo-MDT0000/dom_stripesize", Named::Settable),
            ("*.demo-MDT0000.commit_*", Named::Settable),
            ("ldlm.namespaces.*.lru_size", Named::Settable),
            ("mdt.*.exports.*.uuid", Named::Fixed),
            ("mdt.*.num_exports", Named::Fixed),
            ("**.timeout", Named::Settable),
            ("mdt.demo-MDT0000.bogus", Named::Nothing),
            ("nonsense.demo.x", Named::Nothing),
            ("mdt.dom_stripesize", Named::Nothing),
            ("mdt.demo-MDT0000", Named::Nothing),
            ("osc.*.dom_stripesize", Named::Nothing),
            ("mdt..dom_stripesize", Named::Nothing),
            ("", Named::Nothing),
        ] {
            assert_eq!(named(pattern), what, "{pattern}");
        }
    }

    /// The chapter on parameters has them all, and no others.
    #[test]
    fn the_list_is_that_of_the_guide() {
        use std::collections::BTreeSet;
        let guide = include_str!("../../../docs/src/parameters.md");
        let tables = guide.split_once("## Servers").unwrap().1.split_once("## Options of").unwrap().0;
        let rows = tables.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once(" |")?.0));
        let described: BTreeSet<String> =
            rows.flat_map(|row| row.split(", ")).map(|name| name.replace('`', "")).collect();
        let each = |(beginnings, names): &Group| -> Vec<String> {
            let with = |one: &&str| names.iter().map(|(name, _)| format!("{one}{name}")).collect::<Vec<_>>();
            beginnings.iter().flat_map(with).collect()
        };
        let listed: BTreeSet<String> = GROUPS.iter().flat_map(each).collect();
        let apart: Vec<_> = listed.symmetric_difference(&described).collect();
        assert!(apart.is_empty(), "only in one of them: {apart:?}");
    }
}
