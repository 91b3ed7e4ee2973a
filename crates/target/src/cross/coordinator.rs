//! The attempts of this target's own changes: what their coordinator does next.
//!
//! | phase | on disk | leaves by |
//! |---|---|---|
//! | `Staged` | staged record, perhaps durable | all durable: `Committing`; refusal, busy, given up: `Aborting` |
//! | `Committing` | staged record | the own part is applied: `Done` |
//! | `Aborting` | staged record until its removal is durable | that is durable: ended |
//! | `Done` | done record | the records of all participants are durably gone: ended |
//! | `InDoubt` (after a restart) | staged record | a client replays the change, or every participant has it prepared or done: committed, so `Done`; one has neither: `Aborting` |
//!
//! # Rules
//! - A participant is told to abort only after the attempt has ended here, that is, when the staged record is durably
//!   gone. So nobody was ever told to abort what is in doubt, and what a message says of an attempt stays true for
//!   ever, except for `Prepare` and refusals, which count in their session only.
//! - What was told is lost with the session. The report with which the next one begins says what to tell again.
//! - Only a report ends a doubt (or a replay): it is made after all `Prepare`s of earlier sessions were dropped.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Attempt, Has, Member};

/// Why an attempt has ended without effect.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Why {
    /// A participant refused, with this errno.
    Refused(i32),
    /// A participant has to let an older one pass: try again.
    Busy(Member),
    /// Given up. Nothing was done: try again.
    GivenUp,
}

/// The outcome of an attempt, as a participant hears it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Outcome {
    /// Apply the part.
    Commit,
    /// Remove the prepared record.
    Abort,
    /// Remove the done record.
    Forget,
}

/// What the machine has to do for the coordinator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Todo {
    /// Send `Prepare`.
    Prepare(Member, Attempt),
    /// Tell a participant. It may be put together with others, and is lost with the session.
    Tell(Member, Attempt, Outcome),
    /// Apply the own part, replace the staged record by a done record and write the reply record, all in one group, and
    /// release the keys; then call [`Coordinator::committed`]. If it is put off until the target serves, ask
    /// [`Coordinator::is_in_doubt`] again then: a replay may have been first.
    Commit(Attempt),
    /// Remove the staged record; then call [`Coordinator::staged_gone`] when that is durable, at once if the record
    /// never left the open group.
    DropStaged(Attempt),
    /// The attempt has ended without effect: release its keys, and answer the client or try again.
    Ended(Attempt, Why),
    /// Remove the done record. Nothing is awaited.
    DropDone(Attempt),
}

/// The attempts of which this target is the coordinator.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) struct Coordinator {
    entries: BTreeMap<Attempt, Entry>,
    /// Participants whose session has begun.
    standing: BTreeSet<Member>,
    todos: VecDeque<Todo>,
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
struct Entry {
    members: Vec<Member>,
    phase: Phase,
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
enum Phase {
    Staged {
        durable: bool,
        votes: BTreeSet<Member>,
    },
    Committing,
    Aborting {
        why: Why,
        /// Those that have not prepared the attempt and never will.
        without: BTreeSet<Member>,
    },
    Done {
        durable: bool,
        /// Those whose done record is durable.
        applied: BTreeSet<Member>,
        /// Those whose record is durably gone.
        forgotten: BTreeSet<Member>,
    },
    InDoubt {
        /// Those that have it prepared or done.
        votes: BTreeSet<Member>,
        /// It is committed, but not carried out yet.
        decided: bool,
    },
}

impl Coordinator {
    /// Whether nothing is under way.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.len() == 0
    }

    /// Number of attempts that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the session with this participant has begun: its report was taken.
    pub(crate) fn stands(&self, member: Member) -> bool {
        self.standing.contains(&member)
    }

    /// The session with this participant has ended. Attempts that still wait for its vote are given up; those in doubt
    /// stay.
    pub(crate) fn session_ended(&mut self, member: Member) {
        self.standing.remove(&member);
        self.todos.retain(|todo| match todo {
            Todo::Prepare(to, _) | Todo::Tell(to, ..) => *to != member,
            _ => true,
        });
        for attempt in self.attempts_with(member) {
            let waits = matches!(self.phase(attempt), Some(Phase::Staged { votes, .. }) if !votes.contains(&member));
            if waits {
                self.abort(attempt, Why::GivenUp, None);
            }
        }
    }

    /// The session with a participant begins with what it has, durably, of this coordinator's attempts.
    ///
    /// | here | prepared there | done there | nothing there |
    /// |---|---|---|---|
    /// | unknown | tell abort | tell forget (never happens) | |
    /// | `Staged` | its vote | its vote (never happens) | given up |
    /// | `Committing` | told when committed | told when committed | |
    /// | `Aborting` | told when ended | | is not told |
    /// | `Done` | tell commit | applied | forgotten |
    /// | `InDoubt` | its vote | its vote | given up |
    pub(crate) fn report(&mut self, member: Member, prepared: &[Attempt], done: &[Attempt]) {
        self.standing.insert(member);
        let mut has: BTreeMap<Attempt, Has> =
            self.attempts_with(member).into_iter().map(|attempt| (attempt, Has::Nothing)).collect();
        has.extend(prepared.iter().map(|attempt| (*attempt, Has::Prepared)));
        has.extend(done.iter().map(|attempt| (*attempt, Has::Done)));
        for (attempt, has) in has {
            self.settle(member, attempt, has);
        }
    }

    /// The staged record was put into the open group. Sessions with all members stand.
    pub(crate) fn stage(&mut self, attempt: Attempt, members: &[Member]) {
        assert!(members.iter().all(|member| self.stands(*member)), "staged without a session: {attempt:?}");
        let phase = Phase::Staged { durable: false, votes: BTreeSet::new() };
        let earlier = self.entries.insert(attempt, Entry { members: members.to_vec(), phase });
        assert!(earlier.is_none(), "staged twice: {attempt:?}");
        self.todos.extend(members.iter().map(|member| Todo::Prepare(*member, attempt)));
    }

    /// The staged record is durable.
    pub(crate) fn staged_durable(&mut self, attempt: Attempt) {
        if let Some(Phase::Staged { durable, .. }) = self.phase_mut(attempt) {
            *durable = true;
            self.commit_if_ready(attempt);
        }
    }

    /// The participant's prepared record is durable.
    pub(crate) fn voted(&mut self, member: Member, attempt: Attempt) {
        if let Some(Phase::Staged { votes, .. }) = self.phase_mut(attempt) {
            votes.insert(member);
            self.commit_if_ready(attempt);
        }
    }

    /// The participant, in this session, has not prepared the attempt and never will.
    pub(crate) fn refused(&mut self, member: Member, attempt: Attempt, why: Why) {
        match self.phase_mut(attempt) {
            Some(Phase::Staged { votes, .. }) if !votes.contains(&member) => self.abort(attempt, why, Some(member)),
            Some(Phase::Aborting { without, .. }) => {
                without.insert(member);
            }
            _ => {}
        }
    }

    /// Gives the attempt up. It is too late if it has committed, and what is in doubt cannot be given up.
    pub(crate) fn give_up(&mut self, attempt: Attempt) {
        if let Some(Phase::Staged { .. }) = self.phase(attempt) {
            self.abort(attempt, Why::GivenUp, None);
        }
    }

    /// The own part is applied, in memory, and the staged record replaced.
    pub(crate) fn committed(&mut self, attempt: Attempt) {
        let entry = self.entries.get_mut(&attempt);
        let Some(Entry { members, phase }) =
            entry.filter(|entry| matches!(entry.phase, Phase::Committing | Phase::InDoubt { decided: true, .. }))
        else {
            panic!("committed without having been decided: {attempt:?}");
        };
        *phase = Phase::Done { durable: false, applied: BTreeSet::new(), forgotten: BTreeSet::new() };
        let standing = members.iter().filter(|member| self.standing.contains(member));
        self.todos.extend(standing.map(|member| Todo::Tell(*member, attempt, Outcome::Commit)));
    }

    /// The done record is durable.
    pub(crate) fn done_durable(&mut self, attempt: Attempt) {
        self.advance(attempt, |durable, _, _| *durable = true);
    }

    /// The staged record is durably gone.
    pub(crate) fn staged_gone(&mut self, attempt: Attempt) {
        let Some(Phase::Aborting { why, .. }) = self.phase(attempt) else { return };
        let why = *why;
        let Some(Entry { members, phase: Phase::Aborting { without, .. } }) = self.entries.remove(&attempt) else {
            return;
        };
        let told = members.iter().filter(|member| self.standing.contains(member) && !without.contains(member));
        self.todos.extend(told.map(|member| Todo::Tell(*member, attempt, Outcome::Abort)));
        self.todos.push_back(Todo::Ended(attempt, why));
    }

    /// The participant's done record is durable.
    pub(crate) fn applied(&mut self, member: Member, attempt: Attempt) {
        self.advance(attempt, |_, applied, _| {
            applied.insert(member);
        });
    }

    /// The participant's record is durably gone.
    pub(crate) fn forgotten(&mut self, member: Member, attempt: Attempt) {
        self.advance(attempt, |_, applied, forgotten| {
            applied.insert(member);
            forgotten.insert(member);
        });
    }

    /// At start, from a record: a staged one, so that the attempt is in doubt, or a done one. Without participants there is
    /// nobody to wait for.
    pub(crate) fn load(&mut self, attempt: Attempt, members: &[Member], done: bool) {
        if done && members.is_empty() {
            self.todos.push_back(Todo::DropDone(attempt));
            return;
        }
        let phase = if done {
            Phase::Done { durable: true, applied: BTreeSet::new(), forgotten: BTreeSet::new() }
        } else {
            Phase::InDoubt { votes: BTreeSet::new(), decided: false }
        };
        self.entries.insert(attempt, Entry { members: members.to_vec(), phase });
        self.commit_if_ready(attempt);
    }

    /// A participant is lost for good. It counts as one that had prepared what is in doubt, and that has applied and
    /// forgotten what is committed. Its session has ended, so what it has not voted on was given up.
    pub(crate) fn lost(&mut self, attempt: Attempt, member: Member) {
        if let Some(Phase::Done { .. }) = self.phase(attempt) {
            self.forgotten(member, attempt);
            return;
        }
        let Some(Entry { members, phase }) = self.entries.get_mut(&attempt) else { return };
        members.retain(|of| *of != member);
        if let Phase::Staged { votes, .. } | Phase::InDoubt { votes, .. } = phase {
            votes.remove(&member);
        }
        self.commit_if_ready(attempt);
    }

    /// A client replays the change and proves that it was answered: it is committed, whatever participants have said so
    /// far. Returns whether it was in doubt; if so, [`Todo::Commit`] follows, for the second time if reports had ended
    /// the doubt but the commit is put off.
    pub(crate) fn replayed(&mut self, attempt: Attempt) -> bool {
        let Some(Phase::InDoubt { decided, .. }) = self.phase_mut(attempt) else { return false };
        *decided = true;
        if !self.todos.contains(&Todo::Commit(attempt)) {
            self.todos.push_back(Todo::Commit(attempt));
        }
        true
    }

    /// Whether the attempt was staged before a restart, and has neither been carried out nor given up since.
    pub(crate) fn is_in_doubt(&self, attempt: Attempt) -> bool {
        matches!(self.phase(attempt), Some(Phase::InDoubt { .. }))
    }

    /// For status: the members whose vote, report, done record or removal of it is missing.
    pub(crate) fn waits_for(&self, attempt: Attempt) -> Vec<Member> {
        let Some(Entry { members, phase }) = self.entries.get(&attempt) else { return Vec::new() };
        let have = match phase {
            Phase::Staged { votes, .. } | Phase::InDoubt { votes, decided: false } => votes,
            Phase::Done { applied, forgotten, .. } if applied.len() == members.len() => forgotten,
            Phase::Done { applied, .. } => applied,
            Phase::Committing | Phase::Aborting { .. } | Phase::InDoubt { decided: true, .. } => return Vec::new(),
        };
        members.iter().filter(|member| !have.contains(member)).copied().collect()
    }

    /// All attempts that have not ended.
    pub(crate) fn attempts(&self) -> impl Iterator<Item = Attempt> + '_ {
        self.entries.keys().copied()
    }

    /// The next thing to do.
    pub(crate) fn poll(&mut self) -> Option<Todo> {
        self.todos.pop_front()
    }

    fn phase(&self, attempt: Attempt) -> Option<&Phase> {
        self.entries.get(&attempt).map(|entry| &entry.phase)
    }

    fn phase_mut(&mut self, attempt: Attempt) -> Option<&mut Phase> {
        self.entries.get_mut(&attempt).map(|entry| &mut entry.phase)
    }

    /// The attempts in which this participant takes part.
    pub(crate) fn attempts_with(&self, member: Member) -> Vec<Attempt> {
        let with = self.entries.iter().filter(|(_, entry)| entry.members.contains(&member));
        with.map(|(attempt, _)| *attempt).collect()
    }

    /// One field of the table at [`Coordinator::report`].
    fn settle(&mut self, member: Member, attempt: Attempt, has: Has) {
        let Some(phase) = self.phase_mut(attempt) else {
            let outcome = if has == Has::Prepared { Outcome::Abort } else { Outcome::Forget };
            self.todos.push_back(Todo::Tell(member, attempt, outcome));
            return;
        };
        match (phase, has) {
            (Phase::Staged { .. } | Phase::InDoubt { decided: false, .. }, Has::Nothing) => {
                self.abort(attempt, Why::GivenUp, Some(member));
            }
            (Phase::Staged { votes, .. } | Phase::InDoubt { votes, .. }, Has::Prepared | Has::Done) => {
                votes.insert(member);
                self.commit_if_ready(attempt);
            }
            (Phase::Aborting { without, .. }, Has::Nothing) => {
                without.insert(member);
            }
            (Phase::Done { .. }, Has::Prepared) => {
                self.todos.push_back(Todo::Tell(member, attempt, Outcome::Commit));
            }
            (Phase::Done { durable, applied, .. }, Has::Done) => {
                let is_told_already = *durable && applied.len() == self.entries[&attempt].members.len();
                if is_told_already {
                    self.todos.push_back(Todo::Tell(member, attempt, Outcome::Forget));
                }
                self.applied(member, attempt);
            }
            (Phase::Done { .. }, Has::Nothing) => self.forgotten(member, attempt),
            (Phase::Committing | Phase::InDoubt { decided: true, .. }, _)
            | (Phase::Aborting { .. }, Has::Prepared | Has::Done) => {}
        }
    }

    fn commit_if_ready(&mut self, attempt: Attempt) {
        let Some(Entry { members, phase }) = self.entries.get_mut(&attempt) else { return };
        match phase {
            Phase::Staged { durable: true, votes } if votes.len() == members.len() => *phase = Phase::Committing,
            Phase::InDoubt { votes, decided } if !*decided && votes.len() == members.len() => *decided = true,
            _ => return,
        }
        self.todos.push_back(Todo::Commit(attempt));
    }

    fn abort(&mut self, attempt: Attempt, why: Why, without: Option<Member>) {
        let Some(phase) = self.phase_mut(attempt) else { return };
        *phase = Phase::Aborting { why, without: without.into_iter().collect() };
        self.todos.retain(|todo| !matches!(todo, Todo::Prepare(_, of) if *of == attempt));
        self.todos.push_back(Todo::DropStaged(attempt));
    }

    /// Something becomes true of a done attempt. When the done records of all are durable, participants are told to
    /// remove theirs; when these are durably gone, the coordinator removes its own.
    fn advance(
        &mut self,
        attempt: Attempt,
        change: impl FnOnce(&mut bool, &mut BTreeSet<Member>, &mut BTreeSet<Member>),
    ) {
        let Some(Entry { members, phase: Phase::Done { durable, applied, forgotten } }) =
            self.entries.get_mut(&attempt)
        else {
            return;
        };
        let all_durable = |durable: bool, applied: &BTreeSet<Member>| durable && applied.len() == members.len();
        let before = all_durable(*durable, applied);
        change(durable, applied, forgotten);
        if !all_durable(*durable, applied) {
            return;
        }
        if forgotten.len() == members.len() {
            self.entries.remove(&attempt);
            self.todos.push_back(Todo::DropDone(attempt));
        } else if !before {
            let told = members.iter().filter(|member| self.standing.contains(member) && !forgotten.contains(member));
            self.todos.extend(told.map(|member| Todo::Tell(*member, attempt, Outcome::Forget)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Attempt = Attempt { mdt: 0, instance: 1, serial: 1 };
    /// Whose report it is.
    const P: Member = 1;
    const OTHER: Member = 2;

    fn todos(coordinator: &mut Coordinator) -> Vec<Todo> {
        std::iter::from_fn(|| coordinator.poll()).collect()
    }

    fn tell(outcome: Outcome) -> Vec<Todo> {
        vec![Todo::Tell(P, A, outcome)]
    }

    /// The row of the table at [`Coordinator::report`]: the attempt, of `P` and another participant that has voted or
    /// said all that it can, is in this phase, and the session with `P` has ended.
    fn in_phase(phase: &str) -> Coordinator {
        let mut coordinator = Coordinator::default();
        coordinator.report(OTHER, &[], &[]);
        coordinator.report(P, &[], &[]);
        match phase {
            "unknown" => {}
            "in doubt" => {
                coordinator.load(A, &[P, OTHER], false);
                coordinator.report(OTHER, &[A], &[]);
            }
            "done after a restart" => {
                coordinator.load(A, &[P, OTHER], true);
                coordinator.applied(OTHER, A);
            }
            _ => {
                coordinator.stage(A, &[P, OTHER]);
                coordinator.voted(OTHER, A);
                if phase == "aborting" {
                    coordinator.give_up(A);
                } else {
                    coordinator.voted(P, A);
                }
            }
        }
        if matches!(phase, "committing" | "done" | "applied") {
            coordinator.staged_durable(A);
        }
        if matches!(phase, "done" | "applied") {
            coordinator.committed(A);
            coordinator.done_durable(A);
            coordinator.applied(OTHER, A);
        }
        if phase == "applied" {
            coordinator.applied(P, A);
        }
        coordinator.session_ended(P);
        todos(&mut coordinator);
        coordinator
    }

    /// A change of this target alone: its staged record is all that it takes.
    #[test]
    fn without_participants_nobody_is_waited_for() {
        let mut coordinator = Coordinator::default();
        coordinator.stage(A, &[]);
        assert_eq!(todos(&mut coordinator), []);
        coordinator.staged_durable(A);
        assert_eq!(todos(&mut coordinator), [Todo::Commit(A)]);
        coordinator.committed(A);
        assert_eq!(todos(&mut coordinator), []);
        coordinator.done_durable(A);
        assert_eq!(todos(&mut coordinator), [Todo::DropDone(A)]);
        assert!(coordinator.is_idle());
        coordinator.stage(A, &[]);
        coordinator.give_up(A);
        coordinator.staged_gone(A);
        assert_eq!(todos(&mut coordinator), [Todo::DropStaged(A), Todo::Ended(A, Why::GivenUp)]);
        // After a restart.
        coordinator.load(A, &[], true);
        assert_eq!(todos(&mut coordinator), [Todo::DropDone(A)]);
        assert!(coordinator.is_idle());
        coordinator.load(A, &[], false);
        assert_eq!(todos(&mut coordinator), [Todo::Commit(A)]);
        assert!(coordinator.replayed(A), "its client may be first");
        coordinator.committed(A);
        coordinator.done_durable(A);
        assert_eq!(todos(&mut coordinator), [Todo::Commit(A), Todo::DropDone(A)]);
    }

    /// All fields of the table: what is done at once, when the report of `P` says prepared, done, or nothing.
    #[test]
    fn a_report_settles_every_attempt() {
        let commit = vec![Todo::Commit(A)];
        let drop_staged = vec![Todo::DropStaged(A)];
        let forget_both = vec![Todo::Tell(P, A, Outcome::Forget), Todo::Tell(OTHER, A, Outcome::Forget)];
        let forget_other = vec![Todo::Tell(OTHER, A, Outcome::Forget)];
        let none = Vec::new;
        let table = [
            ("unknown", [tell(Outcome::Abort), tell(Outcome::Forget), none()]),
            ("staged", [none(), none(), drop_staged.clone()]),
            ("committing", [none(), none(), none()]),
            ("aborting", [none(), none(), none()]),
            ("done", [tell(Outcome::Commit), forget_both.clone(), forget_other.clone()]),
            ("done after a restart", [tell(Outcome::Commit), forget_both, forget_other]),
            ("applied", [tell(Outcome::Commit), tell(Outcome::Forget), none()]),
            ("in doubt", [commit.clone(), commit, drop_staged]),
        ];
        for (phase, wanted) in table {
            let reports: [(&[Attempt], &[Attempt]); 3] = [(&[A], &[]), (&[], &[A]), (&[], &[])];
            for ((prepared, done), wanted) in reports.into_iter().zip(wanted) {
                let mut coordinator = in_phase(phase);
                coordinator.report(P, prepared, done);
                assert_eq!(todos(&mut coordinator), wanted, "{phase}: prepared {prepared:?}, done {done:?}");
            }
        }
    }

    /// In each phase: what is done at once when `P` is lost for good, whose session had ended before.
    #[test]
    fn a_lost_participant_counts_as_one_that_had_prepared() {
        let forget_other = vec![Todo::Tell(OTHER, A, Outcome::Forget)];
        let table = [
            ("unknown", vec![]),
            ("staged", vec![]),
            ("committing", vec![]),
            ("aborting", vec![]),
            ("done", forget_other.clone()),
            ("done after a restart", forget_other.clone()),
            ("applied", vec![]),
            ("in doubt", vec![Todo::Commit(A)]),
        ];
        for (phase, wanted) in table {
            let mut coordinator = in_phase(phase);
            coordinator.lost(A, P);
            assert_eq!(todos(&mut coordinator), wanted, "{phase}");
            assert!(!coordinator.waits_for(A).contains(&P), "{phase}");
            if phase == "committing" {
                coordinator.committed(A);
                assert_eq!(todos(&mut coordinator), [Todo::Tell(OTHER, A, Outcome::Commit)]);
                coordinator.done_durable(A);
                coordinator.applied(OTHER, A);
                assert_eq!(todos(&mut coordinator), forget_other);
            }
        }
    }

    #[test]
    fn nothing_is_left_of_a_change_whose_participants_are_all_lost() {
        for done in [false, true] {
            let mut coordinator = Coordinator::default();
            coordinator.load(A, &[P, OTHER], done);
            coordinator.lost(A, P);
            assert_eq!(todos(&mut coordinator), []);
            coordinator.lost(A, OTHER);
            if !done {
                assert_eq!(todos(&mut coordinator), [Todo::Commit(A)]);
                coordinator.committed(A);
                coordinator.done_durable(A);
            }
            assert_eq!(todos(&mut coordinator), [Todo::DropDone(A)]);
            assert!(coordinator.is_idle());
        }
    }

    #[test]
    fn participants_are_told_to_abort_after_the_attempt_has_ended() {
        let mut coordinator = in_phase("aborting");
        coordinator.report(P, &[A], &[]);
        assert_eq!(todos(&mut coordinator), [], "the staged record may come back");
        coordinator.staged_gone(A);
        let told = [P, OTHER].map(|member| Todo::Tell(member, A, Outcome::Abort));
        assert_eq!(todos(&mut coordinator), [told[0], told[1], Todo::Ended(A, Why::GivenUp)]);
    }

    #[test]
    fn a_session_that_ends_takes_its_messages_along() {
        let mut coordinator = Coordinator::default();
        coordinator.report(P, &[], &[]);
        coordinator.stage(A, &[P]);
        coordinator.session_ended(P);
        assert_eq!(todos(&mut coordinator), [Todo::DropStaged(A)], "Prepare belonged to the session");
        coordinator.report(P, &[], &[]);
        coordinator.staged_gone(A);
        assert_eq!(todos(&mut coordinator), [Todo::Ended(A, Why::GivenUp)], "it has nothing to abort");
        assert!(coordinator.is_idle());
        coordinator.report(P, &[A], &[]);
        coordinator.session_ended(P);
        assert_eq!(todos(&mut coordinator), [], "the next report says it again");
    }

    #[test]
    fn a_replay_ends_a_doubt_before_the_participants_do() {
        let mut coordinator = in_phase("in doubt");
        assert_eq!(coordinator.waits_for(A), [P]);
        assert!(coordinator.replayed(A) && coordinator.is_in_doubt(A));
        assert_eq!(todos(&mut coordinator), [Todo::Commit(A)]);
        coordinator.committed(A);
        assert!(!coordinator.replayed(A) && !coordinator.is_in_doubt(A));
        assert_eq!(todos(&mut coordinator), [Todo::Tell(OTHER, A, Outcome::Commit)]);
        coordinator.report(P, &[A], &[]);
        assert_eq!(todos(&mut coordinator), tell(Outcome::Commit));
    }
}
