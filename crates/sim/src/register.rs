//! Checks whether the writes and reads of several processes at one place of a file can be ordered (a linearizable register).
//!
//! A place holds one number: the call that wrote it last, or a size. Each process makes one call after another, and a call that
//! ended before another started precedes it. Unlike in the search of [`crate::linear`] there is no tree: a history is a few
//! hundred steps and a state is one number, so every history is decided.
//!
//! Only the order at each place is promised: neither POSIX systems nor this one make a write of several pages visible to a reader
//! of several pages at once.

use std::collections::BTreeSet;

use stdx::Instant;

/// What a step did to the place, or saw there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RegisterAct {
    /// Sets the number.
    Set(u64),
    /// Raises the number to at least this.
    Raise(u64),
    /// Saw exactly this.
    See(u64),
    /// Saw at most this.
    SeeAtMost(u64),
    /// Saw at least this.
    SeeAtLeast(u64),
}

/// A call, as far as it concerns the place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RegisterCall {
    /// When it started.
    pub from: Instant,
    /// When it ended; `None` if it has no known end.
    pub to: Option<Instant>,
    /// What it did or saw.
    pub act: RegisterAct,
    /// The step may also not have happened.
    pub optional: bool,
    /// The index of the call in its process, for messages.
    pub call: usize,
}

impl RegisterCall {
    fn end(&self) -> Instant {
        self.to.unwrap_or(Instant(u64::MAX))
    }
}

/// Searches for an order that starts with the value `start`. If there is none, returns how far each process came in the best
/// attempt.
pub(crate) fn disorder(start: u64, processes: &[Vec<RegisterCall>]) -> Option<Vec<usize>> {
    let mut stack = vec![(vec![0_usize; processes.len()], start)];
    let mut seen = BTreeSet::new();
    let mut best: Vec<usize> = vec![0; processes.len()];
    while let Some((at, value)) = stack.pop() {
        let (at, value) = skip_seen(processes, at, value);
        let current: Vec<(usize, RegisterCall)> =
            at.iter().enumerate().filter_map(|(p, at)| Some((p, *processes[p].get(*at)?))).collect();
        if current.iter().all(|(_, step)| step.to.is_none()) {
            return None;
        }
        if at.iter().sum::<usize>() >= best.iter().sum() {
            best.clone_from(&at);
        }
        if !seen.insert((at.clone(), value)) {
            continue;
        }
        let first_end = current.iter().map(|(_, step)| step.end()).min().unwrap_or_default();
        for (p, step) in current.into_iter().rev().filter(|(_, step)| step.from <= first_end) {
            let mut next = at.clone();
            next[p] += 1;
            let done = match step.act {
                RegisterAct::Set(new) => Some(new),
                RegisterAct::Raise(least) => Some(value.max(least)),
                // The value differs from what it saw: another step comes first.
                RegisterAct::See(_) | RegisterAct::SeeAtMost(_) | RegisterAct::SeeAtLeast(_) => None,
            };
            if step.optional || step.to.is_none() {
                stack.push((next.clone(), value));
            }
            stack.extend(done.map(|value| (next, value)));
        }
    }
    Some(best)
}

/// Takes every step that saw the current value as soon as it may come: such steps change nothing.
fn skip_seen(processes: &[Vec<RegisterCall>], mut at: Vec<usize>, value: u64) -> (Vec<usize>, u64) {
    loop {
        let current = || at.iter().enumerate().filter_map(|(p, at)| Some((p, processes[p].get(*at)?)));
        let first_end = current().map(|(_, step)| step.end()).min().unwrap_or_default();
        let fits = |act: RegisterAct| match act {
            RegisterAct::See(seen) => seen == value,
            RegisterAct::SeeAtMost(most) => value <= most,
            RegisterAct::SeeAtLeast(least) => value >= least,
            RegisterAct::Set(_) | RegisterAct::Raise(_) => false,
        };
        let taken = current().find(|(_, step)| step.from <= first_end && fits(step.act)).map(|(p, _)| p);
        match taken {
            Some(p) => at[p] += 1,
            None => return (at, value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(from: u64, to: u64, act: RegisterAct) -> RegisterCall {
        RegisterCall { from: Instant(from), to: (to > 0).then_some(Instant(to)), act, optional: false, call: 0 }
    }

    #[test]
    fn reads_see_earlier_writes() {
        let write = step(1, 3, RegisterAct::Set(7));
        let verdict = |from, to, seen| disorder(0, &[vec![write], vec![step(from, to, RegisterAct::See(seen))]]);
        assert_eq!(verdict(4, 5, 7), None);
        assert!(verdict(4, 5, 0).is_some(), "the write had ended");
        assert_eq!(verdict(2, 5, 0), None, "it had not");
        assert_eq!(verdict(2, 5, 7), None);
        assert!(verdict(2, 5, 8).is_some(), "no call wrote it");
    }

    #[test]
    fn reads_do_not_go_back_in_time() {
        let writes = vec![step(1, 9, RegisterAct::Set(7)), step(10, 19, RegisterAct::Set(8))];
        let reads = |first, second| vec![step(2, 3, RegisterAct::See(first)), step(4, 5, RegisterAct::See(second))];
        assert_eq!(disorder(0, &[writes.clone(), reads(0, 7)]), None);
        assert!(disorder(0, &[writes.clone(), reads(7, 0)]).is_some());
        assert!(disorder(0, &[writes, reads(7, 8)]).is_some(), "the second write had not started");
    }

    #[test]
    fn two_readers_agree_on_the_order_of_two_writers() {
        let writes = [vec![step(1, 20, RegisterAct::Set(1))], vec![step(1, 20, RegisterAct::Set(2))]];
        let reads = |first, second| vec![step(2, 3, RegisterAct::See(first)), step(4, 5, RegisterAct::See(second))];
        let verdict = |one: Vec<RegisterCall>, other: Vec<RegisterCall>| {
            disorder(0, &[writes[0].clone(), writes[1].clone(), one, other])
        };
        assert_eq!(verdict(reads(1, 2), reads(1, 2)), None);
        assert!(verdict(reads(1, 2), reads(2, 1)).is_some());
    }

    #[test]
    fn a_call_without_a_result_may_have_happened_or_not() {
        let writes = vec![step(1, 0, RegisterAct::Set(7))];
        for seen in [0, 7] {
            assert_eq!(disorder(0, &[writes.clone(), vec![step(5, 6, RegisterAct::See(seen))]]), None);
        }
        let both = vec![step(5, 6, RegisterAct::See(7)), step(7, 8, RegisterAct::See(0))];
        assert!(disorder(0, &[writes, both]).is_some());
    }

    #[test]
    fn writes_raise_the_size_and_truncations_set_it() {
        let calls = vec![
            step(1, 2, RegisterAct::Raise(10)),
            step(3, 4, RegisterAct::Raise(5)),
            step(5, 6, RegisterAct::Set(3)),
        ];
        let verdict = |from, act| disorder(0, &[calls.clone(), vec![step(from, from, act)]]);
        assert_eq!(verdict(4, RegisterAct::See(10)), None);
        assert!(verdict(4, RegisterAct::See(5)).is_some());
        assert_eq!(verdict(7, RegisterAct::See(3)), None);
        assert_eq!(verdict(7, RegisterAct::SeeAtMost(4)), None);
        assert!(verdict(7, RegisterAct::SeeAtMost(2)).is_some());
        assert_eq!(verdict(7, RegisterAct::SeeAtLeast(3)), None);
        assert!(verdict(7, RegisterAct::SeeAtLeast(4)).is_some());
    }

    #[test]
    fn an_intermediate_size_is_seen_only_during_the_write() {
        let calls = vec![step(1, 2, RegisterAct::Raise(10)), step(5, 8, RegisterAct::Raise(30))];
        let between = |from, to| {
            let seen = [RegisterAct::SeeAtMost(20), RegisterAct::SeeAtLeast(20)].map(|act| step(from, to, act));
            disorder(0, &[calls.clone(), seen.to_vec()])
        };
        assert_eq!(between(6, 7), None);
        assert!(between(3, 4).is_some(), "not yet");
        assert!(between(9, 9).is_some(), "nor any more");
    }
}
