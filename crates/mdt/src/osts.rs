//! Allocation of object targets to new files: which targets they may use, and how large the share of each is.
//!
//! Every target is polled for its space. A target that has not answered the last poll, or whose connection is lost, is away.
//! New files avoid targets that are away, full or degraded. They use targets that an administrator has taken out only if
//! there are no others. While the free space of the usable targets is about equal, first stripes go round over them.
//! Otherwise targets are drawn with weights that grow with their free space. The draw is a function of the file's FID, because
//! this crate has no random source.
//!
//! A file that names a pool uses only targets of that pool, by the same rules. If the pool is empty, the file gets no target.
//!
//! The reply tells the client which targets were chosen, and a replay carries that choice, because the space may have
//! changed in between.
//!
//! Costs: a choice allocates only the list of stripes. Everything else is computed when an answer or a setting changes.

use core::time::Duration;
use proto::Errno;
use proto::msg::{OST_DEGRADED, StatfsRep};
use rules::placement::Qos;
use std::collections::{BTreeMap, BTreeSet};

/// Interval of the polls for space.
pub const ASK_EVERY: Duration = Duration::from_secs(5);
/// A target with less space than this is full, in bytes: one stripe.
const FULL_BYTES: u64 = 1 << 20;
/// A target with less space than its size divided by this is full.
const FULL_PART: u64 = 1000;
/// Lustre's default of `max_create_count`. Objects are not precreated, so it only matters whether the value is 0.
const MAX_CREATE_COUNT: u32 = 20_000;

/// One object target.
#[derive(Clone, Debug)]
pub struct Ost {
    /// Its index.
    pub index: u32,
    /// The administrator's setting `osp.*.active`.
    pub active: bool,
    /// The administrator's setting `osp.*.max_create_count`; 0: no new objects.
    pub max_create_count: u32,
    /// Its last answer.
    pub space: Option<StatfsRep>,
    /// A poll is in flight.
    asked: bool,
    /// It has not answered the last poll in time, or its connection is lost.
    away: bool,
}

impl Ost {
    fn new(index: u32) -> Ost {
        Ost { index, active: true, max_create_count: MAX_CREATE_COUNT, space: None, asked: false, away: false }
    }

    fn allowed(&self) -> bool {
        self.active && self.max_create_count > 0
    }

    fn available(&self) -> u64 {
        self.space.as_ref().map_or(0, |space| space.available)
    }

    /// Whether it is full. One that has never answered is not.
    fn is_full(&self) -> bool {
        self.space.as_ref().is_some_and(|space| space.available < FULL_BYTES.max(space.total / FULL_PART))
    }

    fn is_degraded(&self) -> bool {
        self.space.as_ref().is_some_and(|space| space.state & OST_DEGRADED != 0)
    }
}

/// A pool of object targets.
#[derive(Clone, Debug)]
struct Pool {
    /// Indexes of its targets, ascending.
    members: Vec<u32>,
    /// Those targets that new files use.
    usable: Usable,
}

impl Pool {
    /// Computes the usable targets. `all`: all targets, by index.
    fn settle(&mut self, all: &[Ost], qos: Qos) {
        let place = |index: &u32| all.binary_search_by_key(index, |ost| ost.index).ok();
        let osts: Vec<&Ost> = self.members.iter().filter_map(place).map(|at| &all[at]).collect();
        self.usable = Usable::of(&osts, qos);
    }
}

/// All object targets of the file system.
#[derive(Clone, Debug)]
pub struct Osts {
    /// By index.
    all: Vec<Ost>,
    /// Those that new files without a pool use.
    everywhere: Usable,
    /// The pools, by name.
    pools: BTreeMap<String, Pool>,
    /// `lod.*.qos_threshold_rr`, which says when first stripes go round, and `lod.*.qos_prio_free`.
    pub qos: Qos,
    /// Number of the first object of a new file ([`proto::msg::Layout::first_number`]).
    pub first_object: u32,
}

impl Default for Osts {
    fn default() -> Osts {
        let (everywhere, pools) = (Usable::default(), BTreeMap::new());
        let qos = Qos { threshold_rr: 17, prio_free: 91 };
        Osts { all: Vec::new(), everywhere, pools, qos, first_object: 0 }
    }
}

impl Osts {
    /// Takes over the targets of the configuration, ascending. Returns the new ones.
    pub fn configure(&mut self, indexes: &[u32]) -> Vec<u32> {
        let known = core::mem::take(&mut self.all);
        let mut new = Vec::new();
        for &index in indexes {
            let old = known.binary_search_by_key(&index, |ost| ost.index).ok().map(|at| known[at].clone());
            self.all.push(old.unwrap_or_else(|| {
                new.push(index);
                Ost::new(index)
            }));
        }
        self.settle();
        new
    }

    /// Whether the file system has no object targets.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All targets, by index.
    pub fn iter(&self) -> impl Iterator<Item = &Ost> {
        self.all.iter()
    }

    fn place(&self, index: u32) -> Option<usize> {
        self.all.binary_search_by_key(&index, |ost| ost.index).ok()
    }

    /// Whether there is a target with this index.
    pub fn has(&self, index: u32) -> bool {
        self.place(index).is_some()
    }

    /// Whether a target takes objects when it is named: it is neither away nor full nor taken out.
    pub fn takes_objects(&self, index: u32) -> bool {
        self.place(index).is_some_and(|at| {
            let ost = &self.all[at];
            ost.allowed() && !ost.away && !ost.is_full()
        })
    }

    /// The targets that new files without a pool may use, by index.
    pub fn usable(&self) -> &[u32] {
        &self.everywhere.indexes
    }

    /// Takes over the pools of the configuration.
    pub fn set_pools(&mut self, pools: &[proto::msg::Pool]) {
        let members = |osts: &[u32]| {
            let members: BTreeSet<u32> = osts.iter().copied().filter(|&ost| self.has(ost)).collect();
            Pool { members: members.into_iter().collect(), usable: Usable::default() }
        };
        self.pools = pools.iter().map(|pool| (pool.name.clone(), members(&pool.osts))).collect();
        self.settle();
    }

    fn pool(&self, name: &str) -> Option<&Pool> {
        // Most files name no pool.
        if name.is_empty() { None } else { self.pools.get(name) }
    }

    /// The targets of a pool, by index; `None`: there is no such pool.
    pub fn members(&self, pool: &str) -> Option<&[u32]> {
        self.pool(pool).map(|pool| &pool.members[..])
    }

    /// The pools with their targets, by name.
    pub fn pools(&self) -> impl Iterator<Item = (&str, &[u32])> {
        self.pools.iter().map(|(name, pool)| (name.as_str(), &pool.members[..]))
    }

    /// Changes a target and updates the usable targets. `None` if there is no such target.
    fn change(&mut self, index: u32, change: impl FnOnce(&mut Ost)) -> Option<()> {
        let at = self.place(index)?;
        change(&mut self.all[at]);
        let qos = self.qos;
        self.everywhere = Usable::of(&self.all.iter().collect::<Vec<_>>(), qos);
        for pool in self.pools.values_mut().filter(|pool| pool.members.binary_search(&index).is_ok()) {
            pool.settle(&self.all, qos);
        }
        Some(())
    }

    /// Sets `osp.*.active`. `ENOENT`: there is no such target.
    pub fn set_active(&mut self, index: u32, active: bool) -> Result<(), Errno> {
        self.change(index, |ost| ost.active = active).ok_or(Errno::ENOENT)
    }

    /// Sets `osp.*.max_create_count`. `ENOENT`: there is no such target.
    pub fn set_max_create_count(&mut self, index: u32, count: u32) -> Result<(), Errno> {
        self.change(index, |ost| ost.max_create_count = count).ok_or(Errno::ENOENT)
    }

    /// Sets the percentages of the choice.
    pub fn set_qos(&mut self, qos: Qos) {
        self.qos = qos;
        self.settle();
    }

    /// The next poll is due: returns the targets to poll. A target that has not answered the last poll is away.
    pub fn ask(&mut self) -> Vec<u32> {
        let mut due = Vec::new();
        for ost in &mut self.all {
            if core::mem::replace(&mut ost.asked, true) {
                ost.away = true;
            } else {
                due.push(ost.index);
            }
        }
        self.settle();
        due
    }

    /// A poll of a target has ended; `None`: with an error, which leaves its space as it was.
    pub fn answered(&mut self, index: u32, space: Option<StatfsRep>) {
        self.change(index, |ost| {
            ost.asked = false;
            ost.away = space.is_none();
            ost.space = space.or(ost.space.take());
        });
    }

    /// The connection to a target is lost.
    pub fn away(&mut self, index: u32) {
        self.change(index, |ost| ost.away = true);
    }

    /// Computes the usable targets, overall and for each pool.
    fn settle(&mut self) {
        let qos = self.qos;
        self.everywhere = Usable::of(&self.all.iter().collect::<Vec<_>>(), qos);
        for pool in self.pools.values_mut() {
            pool.settle(&self.all, qos);
        }
    }

    /// Chooses different targets of a pool for `count` stripes, or fewer if there are not enough. For the empty name and a pool
    /// that does not exist, all targets are candidates. `first`: the index of the first stripe's target, if it is usable. `seed`
    /// grows by one from one file of a client to the next.
    pub fn choose(&self, pool: &str, count: usize, first: Option<u32>, seed: u64) -> Vec<u32> {
        self.pool(pool).map_or(&self.everywhere, |pool| &pool.usable).choose(count, first, seed)
    }
}

/// Targets that new files may use.
#[derive(Clone, Default, Debug)]
struct Usable {
    /// Their indexes, ascending.
    indexes: Vec<u32>,
    /// For each, the sum of the weights up to it. Empty while first stripes go round.
    weights: Vec<u64>,
}

impl Usable {
    /// The best of these targets.
    fn of(osts: &[&Ost], qos: Qos) -> Usable {
        let tiers: [fn(&Ost) -> bool; 4] = [
            |ost| ost.allowed() && !ost.away && !ost.is_full() && !ost.is_degraded(),
            |ost| ost.allowed() && !ost.away && !ost.is_full(),
            |ost| ost.allowed() && !ost.away,
            |ost| ost.allowed(),
        ];
        let of_tier = |tier: &fn(&Ost) -> bool| -> Vec<&Ost> { osts.iter().filter(|ost| tier(ost)).copied().collect() };
        let best = tiers.iter().map(of_tier).find(|found| !found.is_empty());
        // If all are taken out, they are used nevertheless.
        let best = best.unwrap_or_else(|| osts.to_vec());
        let weights = weights(&best, qos);
        Usable { indexes: best.iter().map(|ost| ost.index).collect(), weights }
    }

    /// See [`Osts::choose`].
    fn choose(&self, count: usize, first: Option<u32>, seed: u64) -> Vec<u32> {
        let count = count.min(self.indexes.len());
        if count == 0 {
            return Vec::new();
        }
        let first = first.and_then(|first| self.indexes.binary_search(&first).ok());
        if self.weights.is_empty() || first.is_some() || count == self.indexes.len() {
            let start = first.unwrap_or((seed % self.indexes.len() as u64) as usize);
            return self.indexes.iter().cycle().skip(start).take(count).copied().collect();
        }
        self.draw(count, seed)
    }

    /// Draws different targets by weight. If the draws do not yield enough, the rest is taken in order.
    fn draw(&self, count: usize, seed: u64) -> Vec<u32> {
        let total = self.weights.last().copied().unwrap_or(0).max(1);
        let mut chosen = Vec::with_capacity(count);
        let mut state = seed;
        for _ in 0..count * 4 {
            state = mixed(state);
            let at = self.weights.partition_point(|&sum| sum <= state % total);
            if let Some(&index) = self.indexes.get(at)
                && !chosen.contains(&index)
            {
                chosen.push(index);
                if chosen.len() == count {
                    return chosen;
                }
            }
        }
        for &index in &self.indexes {
            if chosen.len() < count && !chosen.contains(&index) {
                chosen.push(index);
            }
        }
        chosen
    }
}

/// Cumulative weights. Empty if the space is about equal, or unknown for any target.
fn weights(osts: &[&Ost], qos: Qos) -> Vec<u64> {
    if osts.iter().any(|ost| ost.space.is_none()) {
        return Vec::new();
    }
    let free: Vec<u64> = osts.iter().map(|ost| ost.available()).collect();
    let cumulative = |sum: &mut u64, weight: u64| {
        *sum = sum.saturating_add(weight);
        Some(*sum)
    };
    qos.weights(&free).unwrap_or_default().into_iter().scan(0, cumulative).collect()
}

/// A step of splitmix64.
fn mixed(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Targets of 100 GiB each, with these numbers of GiB available.
    fn with_space(available: &[u64]) -> Osts {
        let mut osts = Osts::default();
        let indexes: Vec<u32> = (0..available.len() as u32).collect();
        assert_eq!(osts.configure(&indexes), indexes);
        osts.ask();
        for (index, gib) in available.iter().enumerate() {
            let space = StatfsRep { total: 100 * GIB, available: gib * GIB, ..StatfsRep::default() };
            osts.answered(index as u32, Some(space));
        }
        osts
    }

    /// How many of 1000 new files with one stripe each target gets.
    fn shares(osts: &Osts) -> Vec<usize> {
        let mut shares = vec![0; osts.iter().count()];
        for seed in 0..1000 {
            shares[osts.choose("", 1, None, seed)[0] as usize] += 1;
        }
        shares
    }

    #[test]
    fn targets_with_about_equal_space_are_used_in_turn() {
        let osts = with_space(&[90, 100, 95]);
        let first: Vec<u32> = (0..6).map(|seed| osts.choose("", 1, None, seed)[0]).collect();
        assert_eq!(first, [0, 1, 2, 0, 1, 2]);
        assert_eq!(osts.choose("", 2, Some(2), 0), [2, 0]);
        assert_eq!(osts.choose("", 9, None, 1), [1, 2, 0]);
    }

    #[test]
    fn targets_with_more_space_get_more_files() {
        let mut osts = with_space(&[10, 80, 10]);
        let drawn = shares(&osts);
        assert!(drawn[1] > 650 && drawn[0] > 50 && drawn[2] > 50, "{drawn:?}");
        for seed in 0..100 {
            let mut two = osts.choose("", 2, None, seed);
            two.sort_unstable();
            two.dedup();
            assert_eq!(two.len(), 2, "stripes lie on different targets");
        }
        osts.set_qos(Qos { threshold_rr: 17, prio_free: 0 });
        assert!(shares(&osts).iter().all(|share| (250..420).contains(share)), "space does not count");
        osts.set_qos(Qos { threshold_rr: 100, prio_free: 91 });
        assert_eq!(shares(&osts), [334, 333, 333], "first stripes always go round");
    }

    #[test]
    fn targets_that_are_full_away_degraded_or_taken_out_get_no_files() {
        let mut osts = with_space(&[50, 0, 50, 50, 50, 50]);
        assert_eq!(osts.usable(), [0, 2, 3, 4, 5], "1 is full");
        osts.set_active(2, false).unwrap();
        osts.set_max_create_count(3, 0).unwrap();
        osts.answered(4, Some(StatfsRep { total: GIB, available: GIB, state: OST_DEGRADED, ..StatfsRep::default() }));
        osts.away(5);
        assert_eq!(osts.usable(), [0]);
        assert_eq!(osts.choose("", 6, None, 7), [0], "as many stripes as there are usable targets");
        osts.away(0);
        assert_eq!(osts.usable(), [4], "a degraded one is better than a full one");
        osts.away(4);
        assert_eq!(osts.usable(), [1], "a full one is better than one that is away");
        osts.away(1);
        assert_eq!(osts.usable(), [0, 1, 4, 5], "what an administrator took out is not used");
        for index in [0, 1, 4, 5] {
            osts.set_active(index, false).unwrap();
        }
        assert_eq!(osts.usable().len(), 6, "data must lie somewhere");
        assert_eq!(osts.set_active(9, true), Err(Errno::ENOENT));
    }

    #[test]
    fn a_target_is_away_when_it_owes_an_answer_and_back_with_it() {
        let mut osts = Osts::default();
        osts.configure(&[0, 1]);
        assert_eq!(osts.usable(), [0, 1], "until something is known all are used");
        assert_eq!(osts.ask(), [0, 1]);
        let space = StatfsRep { total: GIB, available: GIB, ..StatfsRep::default() };
        osts.answered(0, Some(space));
        assert_eq!(osts.usable(), [0, 1]);
        assert_eq!(osts.ask(), [0], "1 is being asked");
        assert_eq!(osts.usable(), [0]);
        osts.answered(1, Some(space));
        assert_eq!(osts.usable(), [0, 1]);
        osts.set_active(1, false).unwrap();
        assert_eq!(osts.configure(&[0, 1, 2]), [2]);
        assert_eq!(osts.usable(), [0, 2], "settings stay");
    }

    #[test]
    fn a_pool_is_drawn_from_its_own_targets_alone() {
        let mut osts = with_space(&[50, 50, 10, 90, 50]);
        let pool = |name: &str, osts: &[u32]| proto::msg::Pool { name: name.into(), osts: osts.to_vec() };
        osts.set_pools(&[pool("even", &[4, 1, 1, 77]), pool("uneven", &[2, 3]), pool("empty", &[])]);
        assert_eq!(osts.members("even"), Some(&[1, 4][..]), "what the file system has of it");
        assert_eq!(osts.choose("even", 9, None, 1), [4, 1]);
        assert_eq!(osts.choose("even", 1, Some(4), 0), [4]);
        let third = (0..1000).filter(|&seed| osts.choose("uneven", 1, None, seed) == [3]).count();
        assert!(third > 750, "the one with more space gets more: {third}");
        assert!(osts.choose("empty", 1, None, 0).is_empty());
        assert_eq!(osts.choose("gone", 9, Some(0), 0).len(), 5, "as if the layout named no pool");
        osts.away(1);
        assert_eq!(osts.choose("even", 2, None, 0), [4]);
        osts.set_active(4, false).unwrap();
        osts.set_active(1, false).unwrap();
        assert_eq!(osts.choose("even", 2, None, 0), [1, 4], "never another target");
        osts.set_pools(&[]);
        assert_eq!((osts.members("even"), osts.pools().count()), (None, 0));
    }
}
