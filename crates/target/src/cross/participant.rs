//! The attempts of other targets' changes that have a part here: what the participant does next.
//!
//! | phase | on disk | leaves by |
//! |---|---|---|
//! | `Prepared` | prepared record, perhaps durable; keys held | commit: `Applying`; abort: `Dropping` |
//! | `Applying` | prepared record; keys held | the part is applied, once the target serves: `Done` |
//! | `Dropping` | prepared record until its removal is durable; keys held | that is durable: gone |
//! | `Done` | own part and done record, perhaps durable | forget: `Forgetting` |
//! | `Forgetting` | done record until its removal is durable | that is durable: gone |
//!
//! A coordinator may tell the same thing again, in a later session. An attempt that is not known here was never
//! prepared or is durably gone, so that the answer is the same. What no coordinator says (abort after commit, commit
//! after abort, forget before commit) is dropped.

use std::collections::{BTreeMap, VecDeque};

use super::{Attempt, Member};

/// What the machine has to do for the participant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Todo {
    /// Send the vote: the prepared record is durable.
    Vote(Attempt),
    /// Apply the part, replace the prepared record by a done record and release the keys, all in one group; then call
    /// [`Participant::applied`]. A target in recovery puts it off until it serves.
    Apply(Attempt),
    /// Remove the prepared record; then call [`Participant::prepared_gone`] when that is durable, at once if the record
    /// never left the open group.
    DropPrepared(Attempt),
    /// Remove the done record; then call [`Participant::done_gone`] when that is durable.
    DropDone(Attempt),
    /// Tell the coordinator that the done record is durable.
    Applied(Attempt),
    /// Tell the coordinator that nothing is left of the attempt, durably.
    Gone(Attempt),
    /// Release the keys of the attempt.
    Release(Attempt),
}

/// The attempts in which this target is a participant.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) struct Participant {
    phases: BTreeMap<Attempt, Phase>,
    todos: VecDeque<Todo>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(test, derive(Hash))]
enum Phase {
    Prepared,
    Applying,
    Dropping,
    Done { durable: bool },
    Forgetting,
}

impl Participant {
    /// The prepared record was put into the open group.
    pub(crate) fn prepared(&mut self, attempt: Attempt) {
        let earlier = self.phases.insert(attempt, Phase::Prepared);
        assert!(earlier.is_none(), "prepared twice: {attempt:?}");
    }

    /// The prepared record is durable.
    pub(crate) fn prepared_durable(&mut self, attempt: Attempt) {
        if self.phase(attempt) == Some(Phase::Prepared) {
            self.todos.push_back(Todo::Vote(attempt));
        }
    }

    /// The coordinator says that the attempt is committed.
    pub(crate) fn commit(&mut self, attempt: Attempt) {
        match self.phase(attempt) {
            Some(Phase::Prepared) => self.go(attempt, Phase::Applying, Todo::Apply(attempt)),
            Some(Phase::Done { durable: true } | Phase::Forgetting) | None => {
                self.todos.push_back(Todo::Applied(attempt));
            }
            Some(Phase::Applying | Phase::Dropping | Phase::Done { durable: false }) => {}
        }
    }

    /// The coordinator does not know the attempt any more: it did not commit and never will.
    pub(crate) fn abort(&mut self, attempt: Attempt) {
        match self.phase(attempt) {
            Some(Phase::Prepared) => self.go(attempt, Phase::Dropping, Todo::DropPrepared(attempt)),
            None => self.todos.push_back(Todo::Gone(attempt)),
            Some(Phase::Applying | Phase::Dropping | Phase::Done { .. } | Phase::Forgetting) => {}
        }
    }

    /// The coordinator says that the done records of all members are durable.
    pub(crate) fn forget(&mut self, attempt: Attempt) {
        match self.phase(attempt) {
            Some(Phase::Done { .. }) => self.go(attempt, Phase::Forgetting, Todo::DropDone(attempt)),
            None => self.todos.push_back(Todo::Gone(attempt)),
            Some(Phase::Prepared | Phase::Applying | Phase::Dropping | Phase::Forgetting) => {}
        }
    }

    /// The part is applied, in memory, and the prepared record replaced.
    pub(crate) fn applied(&mut self, attempt: Attempt) {
        let earlier = self.phases.insert(attempt, Phase::Done { durable: false });
        assert_eq!(earlier, Some(Phase::Applying), "applied without having been told: {attempt:?}");
    }

    /// The done record is durable.
    pub(crate) fn done_durable(&mut self, attempt: Attempt) {
        if self.phase(attempt) == Some(Phase::Done { durable: false }) {
            self.go(attempt, Phase::Done { durable: true }, Todo::Applied(attempt));
        }
    }

    /// The prepared record is durably gone.
    pub(crate) fn prepared_gone(&mut self, attempt: Attempt) {
        if self.phase(attempt) == Some(Phase::Dropping) {
            self.phases.remove(&attempt);
            self.todos.extend([Todo::Release(attempt), Todo::Gone(attempt)]);
        }
    }

    /// The done record is durably gone.
    pub(crate) fn done_gone(&mut self, attempt: Attempt) {
        if self.phase(attempt) == Some(Phase::Forgetting) {
            self.phases.remove(&attempt);
            self.todos.push_back(Todo::Gone(attempt));
        }
    }

    /// At start, from a record: a prepared one or a done one.
    pub(crate) fn load(&mut self, attempt: Attempt, done: bool) {
        self.phases.insert(attempt, if done { Phase::Done { durable: true } } else { Phase::Prepared });
    }

    /// What this target has, durably, of a coordinator's attempts: prepared ones and done ones. To be asked when all
    /// `Prepare`s of its earlier session have been dropped, and everything in memory is durable. A record counts until
    /// its removal is known to be durable.
    pub(crate) fn report(&self, coordinator: Member) -> (Vec<Attempt>, Vec<Attempt>) {
        let from = Attempt { mdt: coordinator, instance: 0, serial: 0 };
        let till = Attempt { mdt: coordinator, instance: u64::MAX, serial: u64::MAX };
        let (mut prepared, mut done) = (Vec::new(), Vec::new());
        for (attempt, phase) in self.phases.range(from..=till) {
            match phase {
                Phase::Prepared | Phase::Applying | Phase::Dropping => prepared.push(*attempt),
                Phase::Done { .. } | Phase::Forgetting => done.push(*attempt),
            }
        }
        (prepared, done)
    }

    /// Whether there is a record of the attempt, durable or not, or its removal is not durable yet.
    pub(crate) fn has(&self, attempt: Attempt) -> bool {
        self.phases.contains_key(&attempt)
    }

    /// Whether the attempt is prepared and has not been applied.
    #[cfg(test)]
    pub(crate) fn is_prepared(&self, attempt: Attempt) -> bool {
        matches!(self.phase(attempt), Some(Phase::Prepared | Phase::Applying))
    }

    /// All attempts of which there is a record.
    #[cfg(test)]
    pub(crate) fn attempts(&self) -> impl Iterator<Item = Attempt> + '_ {
        self.phases.keys().copied()
    }

    /// The next thing to do.
    pub(crate) fn poll(&mut self) -> Option<Todo> {
        self.todos.pop_front()
    }

    fn phase(&self, attempt: Attempt) -> Option<Phase> {
        self.phases.get(&attempt).copied()
    }

    fn go(&mut self, attempt: Attempt, phase: Phase, todo: Todo) {
        self.phases.insert(attempt, phase);
        self.todos.push_back(todo);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Attempt = Attempt { mdt: 3, instance: 1, serial: 1 };

    fn todos(participant: &mut Participant) -> Vec<Todo> {
        std::iter::from_fn(|| participant.poll()).collect()
    }

    /// The attempt after this many steps of its way to the end.
    fn after(steps: &[fn(&mut Participant, Attempt)]) -> Participant {
        let mut participant = Participant::default();
        steps.iter().for_each(|step| step(&mut participant, A));
        todos(&mut participant);
        participant
    }

    /// Whatever the coordinator says, in each phase: what is done at once.
    #[test]
    fn what_a_coordinator_says_may_come_again_and_late() {
        let way: [fn(&mut Participant, Attempt); 6] = [
            Participant::prepared,
            Participant::commit,
            Participant::applied,
            Participant::done_durable,
            Participant::forget,
            Participant::done_gone,
        ];
        let (none, applied, gone) = (None, Some(Todo::Applied(A)), Some(Todo::Gone(A)));
        let table = [
            ("unknown", after(&[]), [applied, gone, gone]),
            ("prepared", after(&way[..1]), [Some(Todo::Apply(A)), Some(Todo::DropPrepared(A)), none]),
            ("dropping", after(&[Participant::prepared, Participant::abort]), [none, none, none]),
            ("applying", after(&way[..2]), [none, none, none]),
            ("done", after(&way[..3]), [none, none, Some(Todo::DropDone(A))]),
            ("durably done", after(&way[..4]), [applied, none, Some(Todo::DropDone(A))]),
            ("forgetting", after(&way[..5]), [applied, none, none]),
            ("forgotten", after(&way), [applied, gone, gone]),
        ];
        let says = [Participant::commit, Participant::abort, Participant::forget];
        for (phase, participant, wanted) in table {
            for (say, wanted) in says.into_iter().zip(wanted) {
                let mut participant = participant.clone();
                say(&mut participant, A);
                assert_eq!(todos(&mut participant), Vec::from_iter(wanted), "{phase}");
            }
        }
    }

    #[test]
    fn a_record_is_reported_until_it_is_durably_gone() {
        let mut participant = after(&[Participant::prepared, Participant::prepared_durable, Participant::abort]);
        assert_eq!(participant.report(A.mdt), (vec![A], vec![]));
        assert!(participant.has(A) && !participant.is_prepared(A));
        assert_eq!(participant.report(A.mdt - 1), (vec![], vec![]), "of another coordinator");
        participant.prepared_gone(A);
        assert_eq!(todos(&mut participant), [Todo::Release(A), Todo::Gone(A)]);
        assert_eq!(participant.report(A.mdt), (vec![], vec![]));
        participant.load(A, true);
        participant.forget(A);
        assert_eq!(participant.report(A.mdt), (vec![], vec![A]));
    }
}
