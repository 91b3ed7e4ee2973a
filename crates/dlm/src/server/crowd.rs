//! An index of the locks on a resource with many of them: by export, and by part and mode, so that conflicts are found
//! without a scan of all locks. Resources with few locks have none.

use std::collections::BTreeSet;

use proto::msg::{Extent, LockMode};
use smallvec::SmallVec;

use super::{Lock, Locks, Res};
use crate::ExportId;
use crate::mode::{ModeCounts, compatible};
use crate::part::Part;
use crate::spans::{Span, Spans};

/// With more locks than this a resource has a [`Crowd`].
const CROWD_MIN: usize = if cfg!(test) { 2 } else { 16 };

/// Memory of a lock in a [`Crowd`], in bytes: an entry of a tree that is two thirds full, and a node of the extents.
#[cfg(test)]
pub(super) const LOCK_BYTES: usize = size_of::<(ExportId, u32)>() * 3 / 2 + Spans::<ExportId>::NODE_BYTES;

/// The index of a resource's locks.
#[derive(Default)]
pub(super) struct Crowd {
    by_export: BTreeSet<(ExportId, u32)>,
    /// Inodes: number of locks on each bit, by mode.
    bits: Vec<ModeCounts>,
    /// Objects: the extents. Modes that are incompatible with readers are exclusive.
    extents: Spans<ExportId>,
}

/// Whether a mode is incompatible with readers.
fn is_exclusive(mode: LockMode) -> bool {
    !compatible(mode, LockMode::Pr)
}

/// The indices of the set bits.
fn set_bits(mut bits: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = bits.trailing_zeros();
        bits &= bits.checked_sub(1)?;
        Some(bit as usize)
    })
}

impl Crowd {
    fn add(&mut self, i: u32, lock: &Lock) {
        self.by_export.insert((lock.export, i));
        match lock.part {
            Part::Bits(bits) => {
                for bit in set_bits(bits) {
                    if self.bits.len() <= bit {
                        self.bits.resize(bit + 1, ModeCounts::default());
                    }
                    self.bits[bit].add(lock.mode);
                }
            }
            Part::Extent(Extent { start, end }) => {
                let exclusive = is_exclusive(lock.mode);
                self.extents.insert(Span { start, end, owner: lock.export, id: i, exclusive });
            }
        }
    }

    fn remove(&mut self, i: u32, lock: &Lock) {
        self.by_export.remove(&(lock.export, i));
        match lock.part {
            Part::Bits(bits) => set_bits(bits).for_each(|bit| self.bits[bit].remove(lock.mode)),
            Part::Extent(Extent { start, .. }) => self.extents.remove(start, lock.export, i),
        }
    }

    fn of(&self, export: ExportId) -> impl Iterator<Item = u32> {
        self.by_export.range((export, 0)..=(export, u32::MAX)).map(|(_, i)| *i)
    }

    /// Locks of other exports that may conflict with an extent.
    fn around(&self, export: ExportId, mode: LockMode, extent: Extent) -> impl Iterator<Item = u32> {
        let Extent { start, end } = extent;
        self.extents.conflicts(export, start, end, is_exclusive(mode)).map(|span| span.id)
    }

    /// The last byte before and the first byte after an extent that other exports have locked in an incompatible mode,
    /// and the number of such locks, up to `most`.
    pub(super) fn gap(
        &self,
        export: ExportId,
        mode: LockMode,
        extent: Extent,
        most: usize,
    ) -> (Option<u64>, Option<u64>, usize) {
        let exclusive = is_exclusive(mode);
        let before = self.extents.reach_before(export, extent.start, exclusive);
        let after = extent.end.checked_add(1).and_then(|after| {
            let mut found = self.extents.conflicts(export, after, u64::MAX, exclusive).map(|span| span.start);
            found.find(|start| *start >= after)
        });
        let count = self.extents.conflicts(export, 0, u64::MAX, exclusive).take(most).count();
        (before, after, count)
    }
}

/// Whether the extents of a crowd identify exactly the locks that are incompatible with this mode; they only
/// distinguish whether a lock is compatible with readers.
pub(super) fn is_exact_for(res: &Res, mode: LockMode) -> bool {
    match mode {
        LockMode::Ex | LockMode::Pr => true,
        LockMode::Pw => !res.modes.has(LockMode::Cr),
        _ => false,
    }
}

impl Locks {
    /// A lock was added to its resource's list.
    pub(super) fn enlist(&mut self, i: u32) {
        let res = &mut self.resources[self.locks[i].res];
        if let Some(crowd) = &mut res.crowd {
            crowd.add(i, &self.locks[i]);
        } else if res.granted.len() > CROWD_MIN {
            let mut crowd = Box::new(Crowd::default());
            res.granted.iter().for_each(|i| crowd.add(*i, &self.locks[*i]));
            res.crowd = Some(crowd);
        }
    }

    /// A lock is about to be removed from its resource's list, or to change.
    pub(super) fn delist(&mut self, i: u32) {
        let res = &mut self.resources[self.locks[i].res];
        match &mut res.crowd {
            Some(_) if res.granted.len() <= CROWD_MIN / 2 => res.crowd = None,
            Some(crowd) => crowd.remove(i, &self.locks[i]),
            None => {}
        }
    }

    /// The locks of an export on a resource.
    pub(super) fn own<'a>(&'a self, res: &'a Res, export: ExportId) -> impl Iterator<Item = u32> + 'a {
        let crowd = res.crowd.as_deref();
        let all = if crowd.is_some() { &[] } else { &res.granted[..] };
        let own = all.iter().copied().filter(move |&i| self.locks[i].export == export);
        let own = own.chain(crowd.into_iter().flat_map(move |crowd| crowd.of(export)));
        own.inspect(|_| stdx::steps::add(1))
    }

    /// Conflicting locks of other exports.
    pub(super) fn blockers<'a>(
        &'a self,
        res: &'a Res,
        export: ExportId,
        mode: LockMode,
        part: Part,
    ) -> impl Iterator<Item = u32> + 'a {
        let extent = match part {
            Part::Extent(extent) => res.crowd.as_deref().map(|crowd| (crowd, extent)),
            Part::Bits(_) => None,
        };
        let all = if extent.is_none() && res.modes.any_incompatible(mode) { &res.granted[..] } else { &[] };
        let around = extent.into_iter().flat_map(move |(crowd, extent)| crowd.around(export, mode, extent));
        all.iter().copied().chain(around).filter(move |&i| {
            stdx::steps::add(1);
            let lock = &self.locks[i];
            lock.export != export && !compatible(lock.mode, mode) && lock.part.overlaps(&part)
        })
    }

    pub(super) fn has_blocker(&self, res: &Res, export: ExportId, mode: LockMode, part: Part) -> bool {
        match (part, &res.crowd) {
            (Part::Bits(bits), Some(_)) => self.taken_bits(res, export, mode, bits) != 0,
            _ => self.blockers(res, export, mode, part).next().is_some(),
        }
    }

    /// Those of `bits` that other exports have locked in an incompatible mode.
    pub(super) fn taken_bits(&self, res: &Res, export: ExportId, mode: LockMode, bits: u64) -> u64 {
        if !res.modes.any_incompatible(mode) {
            return 0;
        }
        let Some(crowd) = res.crowd.as_deref() else {
            let taken = |i: u32| if let Part::Bits(bits) = self.locks[i].part { bits } else { 0 };
            let blockers = self.blockers(res, export, mode, Part::Bits(bits));
            return blockers.fold(0, |all, i| all | taken(i)) & bits;
        };
        let mut others: SmallVec<[(usize, u32); 8]> = set_bits(bits)
            .filter_map(|bit| Some((bit, crowd.bits.get(bit)?.incompatible(mode))))
            .filter(|(_, count)| *count > 0)
            .collect();
        for i in self.own(res, export) {
            let lock = &self.locks[i];
            if let (Part::Bits(own), false) = (lock.part, compatible(lock.mode, mode)) {
                others.iter_mut().filter(|(bit, _)| own >> bit & 1 != 0).for_each(|(_, count)| *count -= 1);
            }
        }
        others.iter().filter(|(_, count)| *count > 0).fold(0, |taken, (bit, _)| taken | 1 << bit)
    }
}

#[cfg(test)]
mod tests {
    use proto::Fid;
    use proto::msg::{CancelReq, EnqueueReq, Policy, Resource};
    use stdx::{Instant, Rng};

    use super::*;
    use crate::WaiterId;
    use crate::server::{Enqueued, LockEvent, Settings};

    const MODES: [LockMode; 5] = [LockMode::Ex, LockMode::Pw, LockMode::Pr, LockMode::Cw, LockMode::Cr];

    fn random_part(rng: &mut Rng, is_inode: bool) -> Part {
        if is_inode {
            return Part::Bits(rng.range(1, 63));
        }
        let start = rng.below(60) << 12;
        Part::Extent(Extent { start, end: start + (rng.range(1, 8) << 12) - 1 })
    }

    /// Random grants, cancels and changes of locks on one resource: the index gives the same results as a scan.
    #[test]
    fn a_crowd_says_what_a_look_at_all_its_locks_says() {
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            let is_inode = seed % 2 == 0;
            let fid = Fid::new(Fid::SEQ_FIRST, 1);
            let mut locks = Locks::new(0, Settings::default());
            let r = locks.new_resource(if is_inode { Resource::inode(fid) } else { Resource::object(fid, 0) });
            let mut there: Vec<u32> = Vec::new();
            for step in 0..300 {
                let (export, mode) = (ExportId(rng.range(1, 5)), *rng.pick(&MODES).unwrap());
                let part = random_part(&mut rng, is_inode);
                match rng.below(5) {
                    0 if !there.is_empty() => {
                        locks.remove_lock(there.swap_remove(rng.below(there.len() as u64) as usize));
                    }
                    1 => {
                        if let Some(&i) = rng.pick(&there) {
                            locks.reshape(i, mode, part);
                        }
                    }
                    _ => there.push(locks.grant(r, export, step, mode, part)),
                }
                let ask = |locks: &Locks, mode: LockMode| {
                    let res = &locks.resources[r];
                    let mut blockers: Vec<u32> = locks.blockers(res, export, mode, part).collect();
                    let mut own: Vec<u32> = locks.own(res, export).collect();
                    blockers.sort_unstable();
                    own.sort_unstable();
                    let taken = locks.taken_bits(res, export, mode, if is_inode { 63 } else { 0 });
                    (blockers, own, taken, locks.has_blocker(res, export, mode, part))
                };
                for mode in MODES {
                    let found = ask(&locks, mode);
                    // Granted locks do not conflict, and the index is exact for the modes that clients use.
                    let grows = !found.3 && matches!(mode, LockMode::Pr | LockMode::Ex);
                    let grown = grows.then(|| locks.grow(r, export, mode, part));
                    let crowd = locks.resources[r].crowd.take();
                    assert_eq!(found, ask(&locks, mode), "seed {seed} step {step}");
                    assert_eq!(grown, grows.then(|| locks.grow(r, export, mode, part)), "seed {seed} step {step}");
                    locks.resources[r].crowd = crowd;
                }
            }
        }
    }

    /// Thousands of clients hold one lock each on one object and one directory: a further request visits few of them.
    #[test]
    fn a_lock_beside_thousands_costs_a_few_steps() {
        const MANY: u64 = 4000;
        let fid = Fid::new(Fid::SEQ_FIRST, 1);
        let mut locks = Locks::new(0, Settings::default());
        let ask = |locks: &mut Locks, client: u64, resource: Resource, mode: LockMode, policy: Policy| {
            let cookie = client * 10 + u64::from(resource.kind == 0);
            let policy = Some(policy);
            let req = EnqueueReq { resource, mode: mode as i32, cookie, policy, ..EnqueueReq::default() };
            let (steps, done) =
                stdx::steps::of(|| locks.enqueue(Instant::ZERO, ExportId(client), &req, WaiterId(cookie)));
            while let Some(event) = locks.poll() {
                assert!(matches!(event, LockEvent::Blocking { .. } | LockEvent::Granted { .. }), "{event:?}");
            }
            (steps, done)
        };
        let piece = |client: u64| Policy::Extent(Extent { start: client << 20, end: (client << 20) + 4095 });
        let handle = |done: Enqueued| if let Enqueued::Granted(grant) = done { grant.handle } else { 0 };
        let (mut handles, mut most) = (Vec::new(), 0);
        for client in 1..=MANY {
            let (steps, done) = ask(&mut locks, client, Resource::inode(fid), LockMode::Pr, Policy::Bits(0b1000_0001));
            assert!(handle(done) != 0);
            most = most.max(steps);
            let r = locks
                .resource(&Resource::object(fid, 0))
                .unwrap_or_else(|| locks.new_resource(Resource::object(fid, 0)));
            let Some(part) = Part::from_policy(piece(client)) else { unreachable!() };
            let (steps, i) = stdx::steps::of(|| locks.grant(r, ExportId(client), client * 10 + 5, LockMode::Pw, part));
            handles.push((client, locks.locks[i].handle));
            most = most.max(steps);
        }
        // Requests between the locks of two clients.
        for client in [MANY + 1, MANY + 2] {
            let between =
                Policy::Extent(Extent { start: (client - MANY) << 20 | 1 << 19, end: (client - MANY) << 20 | 1 << 19 });
            let (steps, done) = ask(&mut locks, client, Resource::object(fid, 0), LockMode::Pw, between);
            assert!(handle(done) != 0);
            most = most.max(steps);
            let (steps, done) =
                ask(&mut locks, client, Resource::inode(fid), LockMode::Ex, Policy::Bits(1 << (client - MANY)));
            assert!(handle(done) != 0, "nobody has these bits");
            most = most.max(steps);
        }
        for (client, handle) in handles {
            let extent = Extent { start: client << 20, end: client << 20 };
            let resource = Resource::object(fid, 0);
            let (steps, held) = stdx::steps::of(|| locks.holds(ExportId(client), &resource, LockMode::Pw, 0, &extent));
            assert!(held && steps < 40, "{steps} steps");
            let req = CancelReq { handles: vec![handle], waiting_cookies: vec![] };
            most = most.max(stdx::steps::of(|| locks.cancel(Instant::ZERO, ExportId(client), &req)).0);
        }
        assert!(most < 2000, "{most} steps");
    }
}
