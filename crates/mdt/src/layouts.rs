//! Layouts: where the data of a new file goes, and which layouts a user may set.

use crate::osts::Osts;
use prost::Message;
use proto::msg::{Config, Layout, ObjectRep, Pool};
use proto::{Errno, Fid, TargetKind, TargetName};
use std::collections::BTreeSet;
use target::{Cx, Request, Stop};

/// Default stripe size, in bytes.
pub const STRIPE_SIZE_DEFAULT: u32 = 1 << 20;
/// Stripe sizes are multiples of this, in bytes.
pub const STRIPE_SIZE_UNIT: u32 = 64 << 10;
/// Most stripes of a file.
pub const STRIPE_COUNT_MAX: usize = 2000;

/// Indexes of the object targets of a configuration, in order.
pub fn osts_of(config: &Config) -> Vec<u32> {
    let names = config.targets.iter().filter_map(|entry| entry.target.parse::<TargetName>().ok());
    let mut osts: Vec<u32> = names.filter(|name| name.kind == TargetKind::Ost).map(|name| name.index.0).collect();
    osts.sort_unstable();
    osts.dedup();
    osts
}

/// The layout of a new file in a directory with this default. While the space of the targets is about equal, the first
/// stripes of a client's files go round over them, by the numbers in the FIDs.
pub fn of_new_file(default: Option<&Layout>, osts: &Osts, fid: Fid, resident: bool) -> Layout {
    let default = default.cloned().unwrap_or_default();
    let stripe_size = if default.stripe_size == 0 { STRIPE_SIZE_DEFAULT } else { default.stripe_size };
    // Without object targets the data can only be resident.
    let pool = if osts.members(&default.pool).is_some() { default.pool } else { String::new() };
    let layout = |chosen: Vec<u32>, pool| {
        let resident = resident || chosen.is_empty();
        Layout { stripe_size, resident, osts: chosen, pool, first_object: osts.first_object, ..Layout::default() }
    };
    if !default.osts.is_empty() {
        return layout(default.osts, pool);
    }
    let count = match default.want_count {
        all if all < 0 => STRIPE_COUNT_MAX,
        0 => 1,
        n => (n as usize).min(STRIPE_COUNT_MAX),
    };
    // In a default that was never set, 0 means any.
    let first = u32::try_from(default.want_first).ok().filter(|_| default.generation > 0);
    layout(osts.choose(&pool, count, first, seed(fid)), pool)
}

/// A seed for the choice, which grows by one from one file of a client to the next.
fn seed(fid: Fid) -> u64 {
    fid.seq.wrapping_add(u64::from(fid.oid))
}

/// The layout of a file that was made when no object target was known or its pool was empty. No client replays this choice,
/// so it does not depend on the current space of the targets.
pub fn of_old_file(osts: &Osts, fid: Fid, pool: &str) -> Layout {
    let (all, pool) = match osts.members(pool) {
        Some(members) => (members.to_vec(), pool.to_owned()),
        None => (osts.iter().map(|ost| ost.index).collect(), String::new()),
    };
    let chosen = all.get((seed(fid) % all.len().max(1) as u64) as usize).copied();
    let resident = true;
    let osts = chosen.into_iter().collect();
    Layout { stripe_size: STRIPE_SIZE_DEFAULT, osts, resident, pool, ..Layout::default() }
}

/// Checks a default that a user sets, and completes it. `generation` 1 marks that it was set.
pub fn checked_default(wanted: &Layout, osts: &Osts) -> Result<Layout, Errno> {
    let Layout { stripe_size, want_count, want_first, .. } = *wanted;
    let known = |first: i32| u32::try_from(first).is_ok_and(|first| osts.has(first));
    if !stripe_size.is_multiple_of(STRIPE_SIZE_UNIT)
        || want_count < -1
        || want_count > STRIPE_COUNT_MAX as i32
        || want_first < -1
        || (want_first >= 0 && !known(want_first))
        || !is_pool_or_none(&wanted.pool)
    {
        return Err(Errno::EINVAL);
    }
    let pool = wanted.pool.clone();
    let set = Layout { stripe_size, want_count, want_first, generation: 1, pool, ..Layout::default() };
    let Some(&first) = wanted.osts.first() else { return Ok(set) };
    // A list determines everything: a count or a first target beside it must agree.
    let count = wanted.osts.len() as i32;
    let distinct = wanted.osts.iter().collect::<BTreeSet<_>>().len() == wanted.osts.len();
    let agrees = (want_count == 0 || want_count == count) && (want_first == -1 || want_first == first as i32);
    if wanted.osts.len() > STRIPE_COUNT_MAX || !distinct || !agrees || !wanted.osts.iter().all(|&ost| osts.has(ost)) {
        return Err(Errno::EINVAL);
    }
    Ok(Layout { osts: wanted.osts.clone(), want_count: count, want_first: first as i32, ..set })
}

fn is_pool_or_none(name: &str) -> bool {
    name.is_empty() || Pool::name_is_valid(name)
}

/// Checks the pool that a default names. `EINVAL` if there is no such pool, it has no targets, or the default names a target
/// outside it.
pub fn check_pool(default: &Layout, osts: &Osts) -> Result<(), Errno> {
    if default.pool.is_empty() {
        return Ok(());
    }
    let members = osts.members(&default.pool).filter(|members| !members.is_empty()).ok_or(Errno::EINVAL)?;
    let named = default.osts.iter().copied().chain(u32::try_from(default.want_first));
    let in_pool = named.into_iter().all(|ost| members.binary_search(&ost).is_ok());
    if in_pool { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Whether a layout that a client sent is valid in itself.
pub fn is_sound(layout: &Layout) -> bool {
    layout.osts.len() <= STRIPE_COUNT_MAX
        && layout.stripe_size > 0
        && layout.stripe_size.is_multiple_of(STRIPE_SIZE_UNIT)
        && is_pool_or_none(&layout.pool)
}

/// The first reply to a request, which a replay carries after its body. `None` if this is no replay, or the client is of
/// version 0.1.0.
pub fn first_answer<M: Message + Default>(cx: &Cx<'_>, request: &Request) -> Result<Option<M>, Stop> {
    if !cx.is_replay() || request.bulk().is_empty() {
        return Ok(None);
    }
    M::decode(&request.bulk()[..]).map(Some).map_err(|_| Errno::EPROTO.into())
}

/// The layout in the first reply to a request.
pub fn answered(cx: &Cx<'_>, request: &Request) -> Result<Option<Layout>, Stop> {
    let answer = first_answer::<ObjectRep>(cx, request)?;
    checked_answer(answer.and_then(|rep| rep.attr).and_then(|attr| attr.layout))
}

/// Checks the layout of a first reply that a client sent back.
pub fn checked_answer(layout: Option<Layout>) -> Result<Option<Layout>, Stop> {
    match layout {
        Some(layout) if !is_sound(&layout) => Err(Errno::EPROTO.into()),
        layout => Ok(layout),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::msg::TargetEntry;

    fn known(indexes: &[u32]) -> Osts {
        let mut osts = Osts::default();
        osts.configure(indexes);
        osts
    }

    fn fid(oid: u32) -> Fid {
        Fid::new(0x2_0000_0400, oid)
    }

    #[test]
    fn new_files_go_round_over_the_targets_or_where_the_directory_says() {
        let targets = ["fs-OST0002", "fs-MDT0000", "fs-OST0000", "fs-OST0001"]
            .map(|name| TargetEntry { target: name.into(), ..TargetEntry::default() });
        let indexes = osts_of(&Config { targets: targets.to_vec(), ..Config::default() });
        assert_eq!(indexes, [0, 1, 2]);
        let osts = known(&indexes);
        let first: Vec<u32> = (1..=6).map(|oid| of_new_file(None, &osts, fid(oid), true).osts[0]).collect();
        assert_eq!(first, [1, 2, 0, 1, 2, 0]);
        let default = |want_count, want_first| {
            let wanted = Layout { stripe_size: 1 << 16, want_count, want_first, ..Layout::default() };
            checked_default(&wanted, &osts).unwrap()
        };
        assert_eq!(of_new_file(Some(&default(2, 2)), &osts, fid(1), true).osts, [2, 0]);
        assert_eq!(of_new_file(Some(&default(-1, 0)), &osts, fid(1), true).osts, [0, 1, 2]);
        assert_eq!(of_new_file(Some(&default(9, -1)), &osts, fid(1), false).osts, [1, 2, 0]);
        assert_eq!(of_new_file(Some(&default(0, -1)), &osts, fid(1), false).stripe_size, 1 << 16);
    }

    #[test]
    fn without_object_targets_files_stay_here() {
        let layout = of_new_file(None, &known(&[]), fid(1), false);
        assert!(layout.resident && layout.osts.is_empty());
    }

    #[test]
    fn wishes_that_make_no_sense_are_refused() {
        let ask = |stripe_size, want_count, want_first| {
            checked_default(&Layout { stripe_size, want_count, want_first, ..Layout::default() }, &known(&[0, 1]))
        };
        assert!(ask(0, 0, -1).is_ok() && ask(1 << 20, -1, 1).is_ok());
        for (size, count, first) in [(1000, 1, 0), (1 << 20, -2, 0), (1 << 20, 1, 2), (1 << 20, 5000, 0), (0, 0, -2)] {
            assert_eq!(ask(size, count, first), Err(Errno::EINVAL));
        }
    }

    #[test]
    fn a_list_of_targets_is_taken_as_it_is() {
        let osts = known(&[0, 1, 2]);
        let ask = |list: &[u32], want_count, want_first| {
            let wanted = Layout { osts: list.to_vec(), want_count, want_first, ..Layout::default() };
            checked_default(&wanted, &osts)
        };
        let default = ask(&[2, 0], 0, -1).unwrap();
        assert_eq!((default.want_count, default.want_first), (2, 2), "for versions that know no lists");
        assert_eq!(of_new_file(Some(&default), &osts, fid(1), false).osts, [2, 0]);
        assert!(ask(&[2, 0], 2, 2).is_ok());
        for (list, count, first) in [(&[0, 0][..], 0, -1), (&[0, 7], 0, -1), (&[0, 1], 3, -1), (&[0, 1], 0, 1)] {
            assert_eq!(ask(list, count, first), Err(Errno::EINVAL), "{list:?} {count} {first}");
        }
    }

    #[test]
    fn a_pool_holds_the_files_that_name_it() {
        let mut osts = known(&[0, 1, 2]);
        let pool = |name: &str, osts: &[u32]| Pool { name: name.into(), osts: osts.to_vec() };
        osts.set_pools(&[pool("fast", &[1, 2]), pool("empty", &[])]);
        let ask = |pool: &str, want_first, list: &[u32]| {
            let wanted = Layout { want_first, pool: pool.into(), osts: list.to_vec(), ..Layout::default() };
            let default = checked_default(&wanted, &osts)?;
            check_pool(&default, &osts).map(|()| default)
        };
        let default = ask("fast", -1, &[]).unwrap();
        let file = of_new_file(Some(&Layout { want_count: -1, ..default.clone() }), &osts, fid(1), true);
        assert_eq!((&file.osts[..], file.pool.as_str()), (&[2, 1][..], "fast"));
        assert_eq!(of_new_file(Some(&ask("fast", 1, &[]).unwrap()), &osts, fid(1), true).osts, [1]);
        assert_eq!(of_new_file(Some(&ask("fast", -1, &[2]).unwrap()), &osts, fid(1), true).osts, [2]);
        for (pool, first, list) in
            [("slow", -1, &[][..]), ("empty", -1, &[]), ("fast", 0, &[]), ("fast", -1, &[1, 0]), ("a pool", -1, &[])]
        {
            assert_eq!(ask(pool, first, list), Err(Errno::EINVAL), "{pool} {first} {list:?}");
        }

        osts.set_pools(&[pool("fast", &[])]);
        let file = of_new_file(Some(&default), &osts, fid(1), false);
        assert!(file.resident && file.osts.is_empty() && file.pool == "fast", "there is no place for its data");
        assert_eq!(of_old_file(&osts, fid(1), "fast").osts, []);
        osts.set_pools(&[pool("fast", &[2])]);
        assert_eq!(of_old_file(&osts, fid(1), "fast").osts, [2]);
        osts.set_pools(&[]);
        let file = of_new_file(Some(&default), &osts, fid(1), true);
        assert_eq!((&file.osts[..], file.pool.as_str()), (&[1][..], ""), "the pool was destroyed");
    }
}
