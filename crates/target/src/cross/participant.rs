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
//!
//! # A coordinator that is lost for good
//! The participants that survive ask each other what they have of its attempts, and each decides for itself, as the
//! coordinator would have:
//!
//! | here | the others | what follows |
//! |---|---|---|
//! | `Prepared` | one has nothing | aborted |
//! | `Prepared` | all have it prepared or done | committed |
//! | `Done`, durable | none has it prepared only | forgotten |
//!
//! Who has nothing never will have: the loss is durable there, and nothing is taken from the lost target any more. Done
//! records stay until all have applied their parts, so nobody finds nothing there of what another one has committed.

use std::collections::{BTreeMap, VecDeque};

use super::{Attempt, Has, Member};

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
    /// The attempts of lost coordinators, with what the other participants that survive have of them.
    orphans: BTreeMap<Attempt, BTreeMap<Member, Option<Has>>>,
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
            self.decide(attempt);
        }
    }

    /// The prepared record is durably gone.
    pub(crate) fn prepared_gone(&mut self, attempt: Attempt) {
        if self.phase(attempt) == Some(Phase::Dropping) {
            self.phases.remove(&attempt);
            self.orphans.remove(&attempt);
            self.todos.extend([Todo::Release(attempt), Todo::Gone(attempt)]);
        }
    }

    /// The done record is durably gone.
    pub(crate) fn done_gone(&mut self, attempt: Attempt) {
        if self.phase(attempt) == Some(Phase::Forgetting) {
            self.phases.remove(&attempt);
            self.orphans.remove(&attempt);
            self.todos.push_back(Todo::Gone(attempt));
        }
    }

    /// At start, from a record: a prepared one or a done one.
    pub(crate) fn load(&mut self, attempt: Attempt, done: bool) {
        self.phases.insert(attempt, if done { Phase::Done { durable: true } } else { Phase::Prepared });
    }

    /// The coordinator of the attempt is lost for good; that is durable, and so is all that came before. `others`: the
    /// other participants that survive.
    pub(crate) fn orphaned(&mut self, attempt: Attempt, others: impl IntoIterator<Item = Member>) {
        self.orphans.insert(attempt, others.into_iter().map(|member| (member, None)).collect());
        self.decide(attempt);
    }

    /// Another participant of an orphaned attempt says what it has of it.
    pub(crate) fn other_has(&mut self, member: Member, attempt: Attempt, has: Has) {
        let other = self.orphans.get_mut(&attempt).and_then(|others| others.get_mut(&member));
        if let Some(known) = other {
            *known = Some(has);
            self.decide(attempt);
        }
    }

    /// Another participant is lost, too. It counts as one that had prepared everything, and is not asked. Those that had the
    /// attempt prepared are asked again: the lost one may have told them that it had nothing.
    pub(crate) fn other_lost(&mut self, member: Member, attempt: Attempt) {
        let Some(others) = self.orphans.get_mut(&attempt) else { return };
        if others.remove(&member).is_none() {
            return;
        }
        for has in others.values_mut().filter(|has| **has == Some(Has::Prepared)) {
            *has = None;
        }
        self.decide(attempt);
    }

    /// What is to be asked: the attempts of each other participant, first those that hold keys here.
    pub(crate) fn questions(&self) -> BTreeMap<Member, Vec<Attempt>> {
        let mut questions: BTreeMap<Member, Vec<Attempt>> = BTreeMap::new();
        let is_done = |attempt: &Attempt| matches!(self.phase(*attempt), Some(Phase::Done { .. }));
        let (done, prepared): (Vec<_>, Vec<_>) = self.orphans.iter().partition(|(attempt, _)| is_done(attempt));
        for (attempt, others) in prepared.into_iter().chain(done) {
            let awaited = |has: &Option<Has>| match self.phase(*attempt) {
                Some(Phase::Prepared) => has.is_none(),
                Some(Phase::Done { .. }) => matches!(has, None | Some(Has::Prepared)),
                _ => false,
            };
            for (member, _) in others.iter().filter(|(_, has)| awaited(has)) {
                questions.entry(*member).or_default().push(*attempt);
            }
        }
        questions
    }

    /// Whether an attempt of a lost coordinator is not settled.
    pub(crate) fn has_orphans(&self) -> bool {
        !self.orphans.is_empty()
    }

    /// The participants on which it depends whether an attempt of a lost coordinator is committed, as far as they have
    /// not said so; `None` if its coordinator is not lost.
    pub(crate) fn waits_for(&self, attempt: Attempt) -> Option<Vec<Member>> {
        let others = self.orphans.get(&attempt)?;
        Some(others.iter().filter(|(_, has)| has.is_none()).map(|(member, _)| *member).collect())
    }

    fn decide(&mut self, attempt: Attempt) {
        let (Some(others), Some(phase)) = (self.orphans.get(&attempt), self.phase(attempt)) else { return };
        let all = |right: fn(Has) -> bool| others.values().all(|has| has.is_some_and(right));
        match phase {
            Phase::Prepared if others.values().any(|has| *has == Some(Has::Nothing)) => self.abort(attempt),
            Phase::Prepared if all(|_| true) => self.commit(attempt),
            Phase::Done { durable: true } if all(|has| has != Has::Prepared) => self.forget(attempt),
            _ => {}
        }
    }

    /// What this target has, durably, of a coordinator's attempts: prepared ones and done ones. To be asked when all
    /// `Prepare`s of its earlier session have been dropped, and the prepared records that there were then are durable. A
    /// record counts until its removal is known to be durable; what is applied, but not durably, counts as prepared. Attempts
    /// from before a loss of the coordinator are not its any more: if it is admitted again, it has forgotten them.
    pub(crate) fn report(&self, coordinator: Member) -> (Vec<Attempt>, Vec<Attempt>) {
        let (mut prepared, mut done) = (Vec::new(), Vec::new());
        for attempt in self.attempts_of(coordinator).into_iter().filter(|attempt| !self.orphans.contains_key(attempt)) {
            match self.phases[&attempt] {
                Phase::Done { durable: true } | Phase::Forgetting => done.push(attempt),
                Phase::Prepared | Phase::Applying | Phase::Dropping | Phase::Done { .. } => prepared.push(attempt),
            }
        }
        (prepared, done)
    }

    /// What another participant is told of an attempt whose coordinator is lost. One that is being dropped counts as gone:
    /// if a crash brings it back, the other one has nothing, or a crash has brought it back there, too.
    pub(crate) fn remains(&self, attempt: Attempt) -> Has {
        match self.phase(attempt) {
            Some(Phase::Prepared | Phase::Applying | Phase::Done { durable: false }) => Has::Prepared,
            Some(Phase::Done { durable: true } | Phase::Forgetting) => Has::Done,
            Some(Phase::Dropping) | None => Has::Nothing,
        }
    }

    /// The attempts of a coordinator of which there is a record.
    pub(crate) fn attempts_of(&self, coordinator: Member) -> Vec<Attempt> {
        let from = Attempt { mdt: coordinator, instance: 0, serial: 0 };
        let till = Attempt { mdt: coordinator, instance: u64::MAX, serial: u64::MAX };
        self.phases.range(from..=till).map(|(attempt, _)| *attempt).collect()
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

    /// What each of two other participants says of an attempt whose coordinator is lost, and what follows here.
    #[test]
    fn participants_decide_without_their_coordinator() {
        use Has::{Done, Nothing, Prepared};
        let way: [fn(&mut Participant, Attempt); 4] =
            [Participant::prepared, Participant::commit, Participant::applied, Participant::done_durable];
        let (apply, drop) = (Some(Todo::Apply(A)), Some(Todo::DropPrepared(A)));
        let table = [
            ("prepared", after(&way[..1]), [Prepared, Prepared], apply),
            ("prepared", after(&way[..1]), [Prepared, Done], apply),
            ("prepared", after(&way[..1]), [Prepared, Nothing], drop),
            ("prepared", after(&way[..1]), [Nothing, Done], drop),
            ("applying", after(&way[..2]), [Prepared, Prepared], None),
            ("not durably done", after(&way[..3]), [Done, Done], None),
            ("done", after(&way), [Done, Prepared], None),
            ("done", after(&way), [Done, Done], Some(Todo::DropDone(A))),
            ("done", after(&way), [Nothing, Done], Some(Todo::DropDone(A))),
        ];
        for (phase, mut participant, [first, second], wanted) in table {
            participant.orphaned(A, [1, 2]);
            participant.other_has(1, A, first);
            participant.other_has(7, A, Nothing);
            if wanted != drop {
                assert_eq!(todos(&mut participant), [], "{phase}: the other one is to be heard");
            }
            participant.other_has(2, A, second);
            assert_eq!(todos(&mut participant), Vec::from_iter(wanted), "{phase}: {first:?}, {second:?}");
        }
    }

    #[test]
    fn participants_ask_until_all_is_settled() {
        let mut participant = after(&[Participant::prepared]);
        participant.orphaned(A, [1, 2]);
        assert_eq!(participant.report(A.mdt), (vec![], vec![]), "it has forgotten the attempt");
        assert_eq!(participant.questions(), BTreeMap::from([(1, vec![A]), (2, vec![A])]));
        assert_eq!(participant.waits_for(A), Some(vec![1, 2]));
        participant.other_has(1, A, Has::Prepared);
        assert_eq!(participant.questions(), BTreeMap::from([(2, vec![A])]));
        participant.other_lost(2, A);
        assert_eq!(todos(&mut participant), [], "the lost one may have told the other one that it had nothing");
        assert_eq!(participant.questions(), BTreeMap::from([(1, vec![A])]));
        participant.other_has(2, A, Has::Nothing);
        participant.other_has(1, A, Has::Prepared);
        assert_eq!(todos(&mut participant), [Todo::Apply(A)], "the lost one counts as prepared");
        assert_eq!((participant.questions(), participant.remains(A)), (BTreeMap::new(), Has::Prepared));
        participant.applied(A);
        assert_eq!(participant.remains(A), Has::Prepared, "it is not durable");
        participant.done_durable(A);
        assert_eq!(participant.questions(), BTreeMap::from([(1, vec![A])]), "its done record is to be heard of");
        assert_eq!(participant.remains(A), Has::Done);
        participant.other_has(1, A, Has::Done);
        participant.done_gone(A);
        assert!(!participant.has_orphans() && !participant.has(A));
    }

    #[test]
    fn alone_it_needs_to_ask_nobody() {
        let mut participant = after(&[Participant::prepared]);
        participant.orphaned(A, []);
        participant.applied(A);
        participant.done_durable(A);
        assert_eq!(todos(&mut participant), [Todo::Apply(A), Todo::Applied(A), Todo::DropDone(A)]);
    }

    #[test]
    fn a_record_is_reported_until_it_is_durably_gone() {
        let mut participant = after(&[Participant::prepared, Participant::prepared_durable, Participant::abort]);
        assert_eq!(participant.remains(A), Has::Nothing, "it never will be applied");
        assert_eq!(participant.report(A.mdt), (vec![A], vec![]));
        assert!(participant.has(A) && !participant.is_prepared(A));
        assert_eq!(participant.report(A.mdt - 1), (vec![], vec![]), "of another coordinator");
        participant.prepared_gone(A);
        assert_eq!(todos(&mut participant), [Todo::Release(A), Todo::Gone(A)]);
        assert_eq!(participant.report(A.mdt), (vec![], vec![]));
        participant.load(A, false);
        [Participant::commit, Participant::applied].iter().for_each(|step| step(&mut participant, A));
        assert_eq!(participant.report(A.mdt), (vec![A], vec![]), "what is applied is not durable");
        participant.done_durable(A);
        participant.forget(A);
        assert_eq!(participant.report(A.mdt), (vec![], vec![A]));
    }
}
