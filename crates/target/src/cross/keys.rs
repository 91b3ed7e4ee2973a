//! The keys that cross changes hold, and who waits for them.
//!
//! A key is what changes may conflict about. An attempt takes all keys of its part at once, shared or exclusive, and
//! holds them until its part is applied or its record is durably gone. Requests of clients hold no keys; they wait
//! until those that they need are free.
//!
//! # Deadlock: wait-die
//! Every holder and every waiter has an age. An attempt is *busy* if one of its keys is held or awaited, in a conflicting
//! mode, by an older attempt, or awaited by an older request: it gives up all keys that it holds anywhere, and tries
//! again later with the same age. An attempt that meets only younger holders waits for them; it
//! passes younger ones that wait. So every wait is by an older attempt for a younger one, and there is no ring.
//! Attempts of the same change have the same age: the later one waits until the earlier one is gone.
//!
//! # Invariants
//! - No two attempts hold a key in conflicting modes.
//! - An attempt that waits holds nothing, and each attempt holds all keys of its part here or none.
//! - Whoever waits is [woken](Woken) after what it waits for has changed in its favour, or can never do so.
//!
//! # Example
//! ```text
//! attempt B (age 2) takes k:                          Yes
//! attempt A (age 1) takes k:                          Wait; C (age 3) is Busy from now on, even if k is free
//! attempt C (age 3) takes k:                          Busy; it registers its interest
//! B is released:                                      Woken::Attempt(A), which takes k: Yes
//! A is released:                                      Woken::Free(C)
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proto::Fid;

use super::{Age, Attempt};

/// What changes may conflict about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// The object.
    pub fid: Fid,
    /// Tells the keys of an object apart: 0 is the parent of a directory, 1 the object, anything else the hash of a name in it.
    pub sub: u64,
}

/// How a key is held.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mode {
    /// Together with other sharers.
    Shared,
    /// Alone.
    Exclusive,
}

/// What an attempt that wants keys is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// It holds all of them.
    Yes,
    /// It waits for younger attempts, holding nothing: [`Woken::Attempt`] follows.
    Wait,
    /// It has to let an older one pass. It holds and waits for nothing.
    Busy,
}

/// A waiter that can continue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Woken {
    /// The request's keys may be free: run it again.
    Request(u64),
    /// Try [`Keys::take`] again: it will not say `Wait` unless something else happens before.
    Attempt(Attempt),
    /// What a busy attempt had met is gone. Its interest has ended.
    Free(Attempt),
}

/// The keys of one target.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) struct Keys {
    held: BTreeMap<Key, Sides<Attempt>>,
    queues: BTreeMap<Key, Queues>,
    /// Attempts that hold or wait.
    claims: BTreeMap<Attempt, Claim>,
    /// Attempts that were told busy.
    interests: BTreeMap<Attempt, Claim>,
    requests: BTreeMap<u64, Request>,
    /// Waiters to check in [`Keys::poll`]; each is queued at most once.
    candidates: VecDeque<Woken>,
    queued: BTreeSet<Woken>,
}

/// What an attempt holds, waits for or is interested in. Each key once.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
struct Claim {
    age: Age,
    keys: Vec<(Key, Mode)>,
    holds: bool,
}

/// A request that waits.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone, Hash))]
struct Request {
    keys: BTreeMap<Key, (Mode, Age)>,
    /// How many of them have not been free since.
    pending: usize,
}

/// The waiters of a key.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone, Hash))]
struct Queues {
    attempts: Sides<Attempt>,
    /// Requests, until they are withdrawn: younger attempts let them pass.
    requests: Sides<u64>,
    /// Those of them for which the key has not been free yet.
    pending: Sides<u64>,
    interests: Sides<Attempt>,
}

/// Sharers and the others, each from the oldest to the youngest.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
struct Sides<T> {
    shared: BTreeSet<(Age, T)>,
    exclusive: BTreeSet<(Age, T)>,
}

impl<T> Default for Sides<T> {
    fn default() -> Sides<T> {
        Sides { shared: BTreeSet::new(), exclusive: BTreeSet::new() }
    }
}

impl<T: Ord + Copy> Sides<T> {
    fn side(&self, mode: Mode) -> &BTreeSet<(Age, T)> {
        match mode {
            Mode::Shared => &self.shared,
            Mode::Exclusive => &self.exclusive,
        }
    }

    fn side_mut(&mut self, mode: Mode) -> &mut BTreeSet<(Age, T)> {
        match mode {
            Mode::Shared => &mut self.shared,
            Mode::Exclusive => &mut self.exclusive,
        }
    }

    fn is_empty(&self) -> bool {
        self.shared.is_empty() && self.exclusive.is_empty()
    }

    /// Whether somebody conflicts with `mode`.
    fn meets(&self, mode: Mode) -> bool {
        against(mode).iter().any(|mode| !self.side(*mode).is_empty())
    }

    /// Age of the oldest one that conflicts with `mode`.
    fn oldest(&self, mode: Mode) -> Option<Age> {
        against(mode).iter().filter_map(|mode| self.side(*mode).first()).map(|(age, _)| *age).min()
    }
}

/// The modes that conflict with `mode`.
fn against(mode: Mode) -> &'static [Mode] {
    match mode {
        Mode::Shared => &[Mode::Exclusive],
        Mode::Exclusive => &[Mode::Shared, Mode::Exclusive],
    }
}

/// Each key once, in the stronger mode.
fn strongest(keys: &[(Key, Mode)]) -> Vec<(Key, Mode)> {
    let mut keys = keys.to_vec();
    keys.sort_unstable_by_key(|(key, mode)| (*key, std::cmp::Reverse(*mode)));
    keys.dedup_by_key(|(key, _)| *key);
    keys
}

impl Keys {
    /// Whether no key is held: the only test that a local change pays.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// How many attempts and requests wait for keys.
    pub(crate) fn waiters(&self) -> usize {
        self.claims.values().filter(|claim| !claim.holds).count() + self.requests.len()
    }

    /// Whether the key of this object or of a name in it is held.
    pub(crate) fn holds_on(&self, fid: Fid) -> bool {
        self.held.range(Key { fid, sub: 1 }..=Key { fid, sub: u64::MAX }).next().is_some()
    }

    /// Whether a key of a name in this object is held.
    pub(crate) fn held_names(&self, fid: Fid) -> bool {
        self.held.range(Key { fid, sub: 2 }..=Key { fid, sub: u64::MAX }).next().is_some()
    }

    /// The names in this object that are held alone.
    pub(crate) fn names_of(&self, fid: Fid) -> Vec<Key> {
        let names = self.held.range(Key { fid, sub: 2 }..=Key { fid, sub: u64::MAX });
        names.filter(|(_, held)| held.meets(Mode::Shared)).map(|(key, _)| *key).collect()
    }

    /// Attempts that hold this key.
    pub(crate) fn holders(&self, key: Key) -> Vec<Attempt> {
        let held = self.held.get(&key).into_iter();
        let sides = held.flat_map(|held| [Mode::Shared, Mode::Exclusive].map(|mode| held.side(mode)));
        sides.flatten().map(|(_, attempt)| *attempt).collect()
    }

    /// Attempts that hold what the request waits for.
    pub(crate) fn holders_awaited(&self, op: u64) -> Vec<Attempt> {
        let Some(request) = self.requests.get(&op) else { return Vec::new() };
        let held = request.keys.iter().filter_map(|(key, (mode, _))| Some((self.held.get(key)?, mode)));
        held.flat_map(|(held, mode)| against(*mode).iter().flat_map(|mode| held.side(*mode)))
            .map(|(_, attempt)| *attempt)
            .collect()
    }

    /// Whether the key is not held in a conflicting mode. Those that wait for it do not count.
    pub(crate) fn is_free(&self, key: Key, mode: Mode) -> bool {
        !self.held.get(&key).is_some_and(|held| held.meets(mode))
    }

    /// The request `op` waits until this key is free; it may wait for several. [`Woken::Request`] follows when each of
    /// them has been free since, at once if they are. Until then, and until it is withdrawn, younger attempts let it
    /// pass.
    pub(crate) fn wait(&mut self, op: u64, key: Key, mode: Mode, age: Age) {
        self.leave_queue(op, key);
        let is_free = self.is_free(key, mode);
        let request = self.requests.entry(op).or_default();
        request.keys.insert(key, (mode, age));
        let queues = self.queues.entry(key).or_default();
        queues.requests.side_mut(mode).insert((age, op));
        if !is_free {
            request.pending += 1;
            queues.pending.side_mut(mode).insert((age, op));
        }
        if request.pending == 0 {
            self.candidate(Woken::Request(op));
        }
        self.judge_younger(key, mode, age);
    }

    /// The request has ended, or it runs.
    pub(crate) fn withdraw(&mut self, op: u64) {
        let Some(request) = self.requests.get(&op) else { return };
        let keys: Vec<_> = request.keys.iter().map(|(key, (mode, _))| (*key, *mode)).collect();
        for (key, _) in &keys {
            self.leave_queue(op, *key);
        }
        self.requests.remove(&op);
        self.eased(&keys);
    }

    /// Takes all keys or none: see the top of this module. An attempt that holds its keys already is told `Yes`.
    pub(crate) fn take(&mut self, attempt: Attempt, age: Age, keys: &[(Key, Mode)]) -> Taken {
        let waits = match self.claims.get(&attempt) {
            Some(claim) if claim.holds => return Taken::Yes,
            claim => claim.is_some(),
        };
        let keys = strongest(keys);
        let taken = self.judge(age, &keys);
        match taken {
            Taken::Yes => self.insert(attempt, Claim { age, keys, holds: true }),
            Taken::Wait if waits => {}
            Taken::Wait => self.insert(attempt, Claim { age, keys, holds: false }),
            Taken::Busy => self.release(attempt),
        }
        taken
    }

    /// Whether [`Keys::take`] would say `Yes`. Registers nothing.
    pub(crate) fn would_take(&self, age: Age, keys: &[(Key, Mode)]) -> bool {
        self.judge(age, keys) == Taken::Yes
    }

    /// Holds the keys of a record, at start: unconditionally.
    pub(crate) fn hold(&mut self, attempt: Attempt, age: Age, keys: &[(Key, Mode)]) {
        self.insert(attempt, Claim { age, keys: strongest(keys), holds: true });
    }

    /// The attempt holds and waits for nothing any more.
    pub(crate) fn release(&mut self, attempt: Attempt) {
        if let Some(claim) = self.remove(attempt) {
            self.eased(&claim.keys);
        }
    }

    /// The attempt was told busy: [`Woken::Free`] follows when what it met is gone, at once if it is.
    pub(crate) fn interested(&mut self, attempt: Attempt, age: Age, keys: &[(Key, Mode)]) {
        self.disinterested(attempt);
        let keys = strongest(keys);
        for (key, mode) in &keys {
            self.queues.entry(*key).or_default().interests.side_mut(*mode).insert((age, attempt));
        }
        self.interests.insert(attempt, Claim { age, keys, holds: false });
        self.candidate(Woken::Free(attempt));
    }

    /// The attempt need not be told any more when its keys are free.
    pub(crate) fn disinterested(&mut self, attempt: Attempt) {
        let Some(Claim { age, keys, .. }) = self.interests.remove(&attempt) else { return };
        for (key, mode) in keys {
            self.change_queues(key, |queues| queues.interests.side_mut(mode).remove(&(age, attempt)));
        }
    }

    /// The keys that the attempt holds, each once, in order.
    #[cfg(test)]
    pub(crate) fn keys_of(&self, attempt: Attempt) -> &[(Key, Mode)] {
        self.claims.get(&attempt).filter(|claim| claim.holds).map_or(&[], |claim| &claim.keys)
    }

    /// The next one to go on.
    pub(crate) fn poll(&mut self) -> Option<Woken> {
        while let Some(woken) = self.candidates.pop_front() {
            self.queued.remove(&woken);
            let goes_on = match woken {
                Woken::Request(op) => self.requests.get(&op).is_some_and(|request| request.pending == 0),
                Woken::Attempt(attempt) => {
                    let waits = self.claims.get(&attempt).filter(|claim| !claim.holds);
                    waits.is_some_and(|claim| self.judge(claim.age, &claim.keys) != Taken::Wait)
                }
                Woken::Free(attempt) => {
                    let interest = self.interests.get(&attempt);
                    interest.is_some_and(|claim| self.judge(claim.age, &claim.keys) != Taken::Busy)
                }
            };
            if !goes_on {
                continue;
            }
            if let Woken::Free(attempt) = woken {
                self.disinterested(attempt);
            }
            return Some(woken);
        }
        None
    }

    /// What an attempt of this age that wants these keys is told.
    fn judge(&self, age: Age, keys: &[(Key, Mode)]) -> Taken {
        let mut taken = Taken::Yes;
        for (key, mode) in keys {
            if self.oldest(*key, *mode).is_some_and(|oldest| oldest < age) {
                return Taken::Busy;
            }
            if !self.is_free(*key, *mode) {
                taken = Taken::Wait;
            }
        }
        taken
    }

    /// Age of the oldest one that holds or waits for the key in a mode that conflicts with `mode`.
    fn oldest(&self, key: Key, mode: Mode) -> Option<Age> {
        let held = self.held.get(&key).and_then(|held| held.oldest(mode));
        let queues = self.queues.get(&key);
        let attempts = queues.and_then(|queues| queues.attempts.oldest(mode));
        let requests = queues.and_then(|queues| queues.requests.oldest(mode));
        [held, attempts, requests].into_iter().flatten().min()
    }

    /// The attempt holds or waits from now on, and for nothing else.
    fn insert(&mut self, attempt: Attempt, claim: Claim) {
        self.remove(attempt);
        for (key, mode) in &claim.keys {
            let sides = if claim.holds {
                self.held.entry(*key).or_default()
            } else {
                &mut self.queues.entry(*key).or_default().attempts
            };
            sides.side_mut(*mode).insert((claim.age, attempt));
            self.judge_younger(*key, *mode, claim.age);
        }
        self.claims.insert(attempt, claim);
    }

    fn remove(&mut self, attempt: Attempt) -> Option<Claim> {
        let claim = self.claims.remove(&attempt)?;
        let entry = (claim.age, attempt);
        for (key, mode) in &claim.keys {
            if !claim.holds {
                self.change_queues(*key, |queues| queues.attempts.side_mut(*mode).remove(&entry));
            } else if let Some(held) = self.held.get_mut(key) {
                held.side_mut(*mode).remove(&entry);
                if held.is_empty() {
                    self.held.remove(key);
                }
            }
        }
        Some(claim)
    }

    fn leave_queue(&mut self, op: u64, key: Key) {
        let Some(request) = self.requests.get_mut(&op) else { return };
        let Some((mode, age)) = request.keys.remove(&key) else { return };
        let was_pending = self.change_queues(key, |queues| {
            queues.requests.side_mut(mode).remove(&(age, op));
            queues.pending.side_mut(mode).remove(&(age, op))
        });
        if let Some(request) = self.requests.get_mut(&op) {
            request.pending -= usize::from(was_pending);
        }
    }

    /// Changes the queues of a key, and drops them if they are empty then.
    fn change_queues(&mut self, key: Key, change: impl FnOnce(&mut Queues) -> bool) -> bool {
        let Some(queues) = self.queues.get_mut(&key) else { return false };
        let changed = change(queues);
        let Queues { attempts, requests, pending, interests } = queues;
        if attempts.is_empty() && requests.is_empty() && pending.is_empty() && interests.is_empty() {
            self.queues.remove(&key);
        }
        changed
    }

    /// Somebody of this age holds or waits for the key in this mode from now on: younger attempts that wait for it in a
    /// conflicting mode have to let it pass.
    fn judge_younger(&mut self, key: Key, mode: Mode, age: Age) {
        let Some(queues) = self.queues.get(&key) else { return };
        let mut younger = Vec::new();
        for mode in against(mode) {
            younger.extend(queues.attempts.side(*mode).iter().rev().take_while(|(other, _)| *other > age));
        }
        for (_, attempt) in younger {
            self.candidate(Woken::Attempt(attempt));
        }
    }

    /// Somebody neither holds nor waits for these keys any more: those that were in conflict with it may go on.
    fn eased(&mut self, keys: &[(Key, Mode)]) {
        let (mut attempts, mut interests) = (BTreeSet::new(), BTreeSet::new());
        for (key, mode) in keys {
            for mode in against(*mode) {
                let is_free = self.is_free(*key, *mode);
                let oldest = self.oldest(*key, *mode);
                let Some(queues) = self.queues.get_mut(key) else { break };
                let may_pass = |(age, _): &&(Age, Attempt)| oldest.is_none_or(|oldest| *age <= oldest);
                interests.extend(queues.interests.side(*mode).iter().take_while(may_pass).copied());
                if !is_free {
                    continue;
                }
                attempts.extend(queues.attempts.side(*mode).iter().copied());
                for (_, op) in std::mem::take(queues.pending.side_mut(*mode)) {
                    if let Some(request) = self.requests.get_mut(&op) {
                        request.pending -= 1;
                        if request.pending == 0 {
                            self.candidate(Woken::Request(op));
                        }
                    }
                }
            }
        }
        attempts.into_iter().for_each(|(_, attempt)| self.candidate(Woken::Attempt(attempt)));
        interests.into_iter().for_each(|(_, attempt)| self.candidate(Woken::Free(attempt)));
    }

    fn candidate(&mut self, woken: Woken) {
        if self.queued.insert(woken) {
            self.candidates.push_back(woken);
        }
    }
}

#[cfg(test)]
mod tests {
    use stdx::Rng;

    use super::*;

    const X: Mode = Mode::Exclusive;
    const S: Mode = Mode::Shared;

    fn key(n: u64) -> Key {
        Key { fid: Fid::ROOT, sub: n }
    }

    fn age(clock: u64) -> Age {
        Age { clock, mdt: 0 }
    }

    fn attempt(serial: u64) -> Attempt {
        Attempt { mdt: 0, instance: 0, serial }
    }

    /// An attempt whose number is its age takes key 0.
    fn takes(keys: &mut Keys, n: u64, mode: Mode) -> Taken {
        keys.take(attempt(n), age(n), &[(key(0), mode)])
    }

    fn woken(keys: &mut Keys) -> Vec<Woken> {
        std::iter::from_fn(|| keys.poll()).collect()
    }

    #[test]
    fn an_older_attempt_waits_and_a_younger_one_dies() {
        let mut keys = Keys::default();
        assert_eq!(takes(&mut keys, 2, X), Taken::Yes);
        assert_eq!(takes(&mut keys, 3, X), Taken::Busy);
        keys.interested(attempt(3), age(3), &[(key(0), X)]);
        assert_eq!(takes(&mut keys, 1, X), Taken::Wait);
        assert_eq!(woken(&mut keys), []);
        keys.release(attempt(2));
        assert_eq!(woken(&mut keys), [Woken::Attempt(attempt(1))]);
        assert_eq!(takes(&mut keys, 1, X), Taken::Yes);
        keys.release(attempt(1));
        assert_eq!(woken(&mut keys), [Woken::Free(attempt(3))]);
        assert_eq!(takes(&mut keys, 3, X), Taken::Yes);
    }

    #[test]
    fn a_wait_is_judged_again_when_an_older_attempt_comes() {
        let mut keys = Keys::default();
        takes(&mut keys, 3, S);
        assert_eq!(takes(&mut keys, 2, X), Taken::Wait);
        assert_eq!(takes(&mut keys, 1, S), Taken::Yes, "it passes the younger one that waits");
        assert_eq!(woken(&mut keys), [Woken::Attempt(attempt(2))]);
        assert_eq!(takes(&mut keys, 2, X), Taken::Busy);

        let mut keys = Keys::default();
        takes(&mut keys, 3, X);
        assert_eq!(takes(&mut keys, 2, X), Taken::Wait);
        assert_eq!(takes(&mut keys, 1, X), Taken::Wait);
        assert_eq!(woken(&mut keys), [Woken::Attempt(attempt(2))]);
        assert_eq!(takes(&mut keys, 2, X), Taken::Busy, "the older one that waits is before it");
    }

    #[test]
    fn sharers_do_not_starve_an_older_attempt_that_waits() {
        let mut keys = Keys::default();
        takes(&mut keys, 2, S);
        assert_eq!(takes(&mut keys, 3, S), Taken::Yes);
        assert_eq!(takes(&mut keys, 1, X), Taken::Wait);
        assert_eq!(takes(&mut keys, 4, S), Taken::Busy);
        keys.interested(attempt(4), age(4), &[(key(0), S)]);
        keys.release(attempt(2));
        assert_eq!(woken(&mut keys), [], "the other sharer still holds it");
        keys.release(attempt(3));
        assert_eq!(woken(&mut keys), [Woken::Attempt(attempt(1))]);
        keys.release(attempt(1));
        assert_eq!(woken(&mut keys), [Woken::Free(attempt(4))], "it does not wait any more");
    }

    #[test]
    fn all_keys_or_none() {
        let mut keys = Keys::default();
        takes(&mut keys, 2, X);
        assert_eq!(keys.take(attempt(1), age(1), &[(key(1), X), (key(0), S)]), Taken::Wait);
        assert!(keys.is_free(key(1), X), "it holds nothing");
        assert!(!keys.would_take(age(3), &[(key(1), X)]), "but younger ones let it pass");
        assert!(keys.would_take(age(0), &[(key(1), X)]));
        keys.release(attempt(2));
        assert_eq!(keys.take(attempt(1), age(1), &[(key(1), S), (key(1), X), (key(0), S)]), Taken::Yes);
        assert_eq!(keys.keys_of(attempt(1)), [(key(0), S), (key(1), X)]);
    }

    #[test]
    fn a_later_attempt_of_a_change_waits_for_the_earlier_one() {
        let mut keys = Keys::default();
        let mine = [(key(0), X)];
        assert_eq!(keys.take(attempt(1), age(7), &mine), Taken::Yes);
        assert_eq!(keys.take(attempt(2), age(7), &mine), Taken::Wait);
        keys.release(attempt(1));
        assert_eq!(woken(&mut keys), [Woken::Attempt(attempt(2))]);
    }

    #[test]
    fn a_request_waits_until_each_key_has_been_free() {
        let mut keys = Keys::default();
        keys.hold(attempt(1), age(1), &[(key(0), X)]);
        keys.hold(attempt(2), age(2), &[(key(2), S)]);
        keys.wait(9, key(0), S, age(5));
        keys.wait(9, key(2), X, age(5));
        keys.release(attempt(1));
        assert_eq!(woken(&mut keys), []);
        assert_eq!(takes(&mut keys, 6, X), Taken::Busy, "a younger attempt lets it pass");
        keys.interested(attempt(6), age(6), &[(key(0), X)]);
        assert_eq!(takes(&mut keys, 4, X), Taken::Yes, "an older one passes it");
        keys.release(attempt(2));
        assert_eq!(woken(&mut keys), [Woken::Request(9)]);
        keys.release(attempt(4));
        assert_eq!(woken(&mut keys), []);
        keys.withdraw(9);
        assert_eq!(woken(&mut keys), [Woken::Free(attempt(6))]);
        keys.wait(9, key(0), S, age(7));
        assert_eq!(woken(&mut keys), [Woken::Request(9)], "it is free already");
    }

    #[test]
    fn what_is_held_is_found_by_object() {
        let mut keys = Keys::default();
        let other = Fid::new(Fid::SEQ_FIRST, 1);
        assert!(keys.is_empty());
        keys.hold(attempt(1), age(1), &[(key(1), S)]);
        assert!(keys.holds_on(Fid::ROOT) && !keys.held_names(Fid::ROOT) && !keys.holds_on(other));
        keys.hold(attempt(2), age(2), &[(key(u64::MAX), X)]);
        assert!(keys.held_names(Fid::ROOT) && !keys.held_names(other));
        keys.release(attempt(1));
        keys.release(attempt(2));
        assert!(keys.is_empty() && !keys.holds_on(Fid::ROOT));
    }

    /// Attempts and requests in a random order: nobody that could go on is forgotten, each gets its turn, and nothing is
    /// left.
    #[test]
    fn no_wake_up_is_lost() {
        for seed in 0..2000 {
            let mut rng = Rng::new(seed);
            let mut keys = Keys::default();
            let draw = |rng: &mut Rng| -> Vec<(Key, Mode)> {
                let one = |rng: &mut Rng| (key(rng.below(3)), if rng.chance(1, 2) { S } else { X });
                (0..rng.range(1, 3)).map(|_| one(rng)).collect()
            };
            let wanted: Vec<_> = (0..8).map(|_| draw(&mut rng)).collect();
            let (mut holds, mut ready): (Vec<u64>, Vec<Woken>) = (Vec::new(), Vec::new());
            ready.extend((0..6).map(|n| Woken::Free(attempt(n))));
            ready.extend((6..8).map(Woken::Request));
            while !ready.is_empty() || !holds.is_empty() {
                if !holds.is_empty() && (ready.is_empty() || rng.chance(1, 3)) {
                    let n = holds.swap_remove(rng.below(holds.len() as u64) as usize);
                    keys.release(attempt(n));
                } else {
                    match ready.swap_remove(rng.below(ready.len() as u64) as usize) {
                        Woken::Request(op) => {
                            keys.withdraw(op);
                            for (key, mode) in &wanted[op as usize] {
                                if !keys.is_free(*key, *mode) {
                                    keys.wait(op, *key, *mode, age(op));
                                }
                            }
                        }
                        Woken::Attempt(of) | Woken::Free(of) => {
                            let (age, wanted) = (age(of.serial * 3 % 8), &wanted[of.serial as usize]);
                            match keys.take(of, age, wanted) {
                                Taken::Yes => holds.push(of.serial),
                                Taken::Wait => {}
                                Taken::Busy => keys.interested(of, age, wanted),
                            }
                        }
                    }
                }
                ready.extend(woken(&mut keys));
                for (of, claim) in keys.claims.iter().filter(|(_, claim)| !claim.holds) {
                    let goes_on = ready.contains(&Woken::Attempt(*of));
                    let waits = keys.judge(claim.age, &claim.keys) == Taken::Wait;
                    assert!(goes_on || waits, "seed {seed}: {of:?} waits for nothing");
                }
                for (of, claim) in &keys.interests {
                    assert_eq!(keys.judge(claim.age, &claim.keys), Taken::Busy, "seed {seed}: {of:?} is not told");
                }
            }
            assert!(keys.claims.is_empty() && keys.interests.is_empty() && keys.requests.is_empty(), "seed {seed}");
            assert!(keys.held.is_empty() && keys.queues.is_empty(), "seed {seed}");
        }
    }
}
