//! The parameters of this version: each is declared once, here, with its names, what may be done with it, its unit and
//! range, its default, its documentation, and what a collector of metrics may take it for.
//!
//! What they are of is a group ([`Group`]): [`OfTarget`], [`OfMount`], [`OfTimeouts`] and so on, an enum with a variant for each
//! parameter. The crate that has the state binds a group to it: an exhaustive match gives each variant its [`Bound`], how
//! it is read and set, and [`bound_as_declared!`](crate::bound_as_declared) compares both when they are compiled. So a
//! parameter cannot be served that is not declared, or declared and not served, or declared as one that can be set and
//! lack a setter.
//!
//! Others know parameters from the same declarations: the MGS, which persistent ones some server or client would follow;
//! `lctl`, what can be set; the guide, whose tables are written from them (`proto/tests/parameters.rs`).
//!
//! ```text
//! declared   LruSize   ldlm.namespaces.*.lru_size   get, set   "Limits unused locks …"     proto/src/params/clients.rs
//! bound      LruSize => Bound::Text(|of| …, |of, size| …)                                  client/src/ops/params.rs
//! served     ldlm.namespaces.demo-MDT0000-mdc-ffff9a3c0e4b8800.lru_size = 262144
//! ```

mod bound;
mod clients;
mod declare;
mod process;
mod served;
mod servers;

pub use bound::Bound;
pub use clients::{OfAll, OfImport, OfJobs, OfLmv, OfMdc, OfMount, OfMountCommand, OfMountsLocks};
pub use declare::{Access, Component, Declared, Group, Metric, Values, number};
pub use process::{OfFaults, OfLog, OfProcess, OfServer, OfTimeouts};
pub use served::Served;
pub use servers::{
    OfConnection, OfExport, OfFileSystem, OfFld, OfLocks, OfLod, OfMdt, OfMedium, OfMgs, OfMountsSeq, OfOsp,
    OfOspSpace, OfOst, OfPeer, OfPool, OfSeq, OfSpace, OfTarget,
};

use stdx::wildcard;

/// All that are declared, in the order of the guide.
pub fn all() -> impl Iterator<Item = &'static Declared> {
    [servers::GROUPS, clients::GROUPS, process::GROUPS].into_iter().flatten().copied().flatten()
}

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
    for declared in all() {
        if !declared.forms().any(|form| is_of(&wanted, &form)) {
            continue;
        }
        if declared.access.can_set() {
            return Named::Settable;
        }
        named = Named::Fixed;
    }
    named
}

/// Whether the parts of a pattern can name a parameter of this form, in which `*` is any one device, client or file system.
fn is_of(wanted: &[&str], form: &str) -> bool {
    let mut parts = form.split('.');
    wanted.iter().all(|wanted| match parts.next() {
        Some("*") => !wanted.is_empty(),
        Some(part) => wildcard::matches(wanted, part),
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
            ("mdt.*.max_mod_rpcs_per_client", Named::Settable),
            ("mdt.*.exports.*.uuid", Named::Fixed),
            ("mdt.*.num_exports", Named::Fixed),
            ("**.timeout", Named::Settable),
            ("mdt.demo-MDT0000.bogus", Named::Nothing),
            ("nonsense.demo.x", Named::Nothing),
            ("mdt.dom_stripesize", Named::Nothing),
            ("mdt.demo-MDT0000", Named::Nothing),
            ("osc.*.dom_stripesize", Named::Nothing),
            ("mdt..dom_stripesize", Named::Nothing),
            ("mgs.MGS.job_stats", Named::Nothing),
            ("", Named::Nothing),
        ] {
            assert_eq!(named(pattern), what, "{pattern}");
        }
    }

    /// Two groups may have a name in common (servers and mounts count locks): then what may be done with it is the same.
    #[test]
    fn a_name_means_one_thing() {
        for (one, other) in all().flat_map(|one| all().map(move |other| (one, other))) {
            let common = one.forms().find(|form| other.forms().any(|theirs| theirs == *form));
            assert!(common.is_none() || (one.access, one.values) == (other.access, other.values), "{common:?}");
        }
    }

    #[test]
    fn what_is_declared_makes_sense() {
        for one in all() {
            let name = one.leaf;
            assert!(!one.on.is_empty() && !one.doc.is_empty() && one.doc.len() < 400, "{name}");
            assert!(!one.doc.ends_with('.'), "{name}: a cell of a table has no full stop at its end");
            let is_setting = one.metric == Metric::Setting;
            assert!(!is_setting || (one.access == Access::GetSet && one.default.is_some()), "{name}");
            assert!(one.values == Values::Text || is_setting, "{name}");
        }
    }
}
