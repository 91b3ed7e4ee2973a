//! The worlds that are searched, and what must be found in them.

use std::collections::BTreeSet;

use proto::Fid;

use super::super::keys::{Key, Mode};
use super::super::{Age, Member};
use super::{Change, Flaw, Part, Scenario, breaks, holds};

fn key(oid: u32) -> Key {
    Key { fid: Fid::new(Fid::SEQ_FIRST, oid), sub: 0 }
}

/// A part that needs one key for itself.
fn part(member: Member, oid: u32) -> Part {
    Part { member, keys: vec![(key(oid), Mode::Exclusive)], refuses: false }
}

fn shared(part: Part) -> Part {
    Part { keys: part.keys.into_iter().map(|(key, _)| (key, Mode::Shared)).collect(), ..part }
}

fn refuses(part: Part) -> Part {
    Part { refuses: true, ..part }
}

/// Changes, each by its parts; the coordinator's part comes first, and the oldest change.
fn scenario(changes: Vec<Vec<Part>>) -> Scenario {
    let mut members = BTreeSet::new();
    let mut change = |(clock, parts): (u64, Vec<Part>)| {
        members.extend(parts.iter().map(|part| part.member));
        Change { age: Age { clock, mdt: parts[0].member }, parts }
    };
    let changes = (1..).zip(changes).map(&mut change).collect();
    Scenario { targets: members.len(), changes, crashes: 0, breaks: 0, give_ups: 0, loses: false, flaw: Flaw::None }
}

impl Scenario {
    fn faults(self, crashes: u8, breaks: u8, give_ups: u8) -> Scenario {
        Scenario { crashes, breaks, give_ups, ..self }
    }

    fn with(self, flaw: Flaw) -> Scenario {
        Scenario { flaw, ..self }
    }

    fn loses(self) -> Scenario {
        Scenario { loses: true, ..self }
    }
}

/// One change over two targets.
fn two() -> Scenario {
    scenario(vec![vec![part(0, 1), part(1, 2)]])
}

/// One change over three targets.
fn three() -> Scenario {
    scenario(vec![vec![part(0, 1), part(1, 2), part(2, 3)]])
}

/// Two changes that want the same keys, each coordinated where the other one has its participant.
fn opposed() -> Scenario {
    scenario(vec![vec![part(0, 1), part(1, 2)], vec![part(1, 2), part(0, 1)]])
}

/// Two changes of one coordinator that meet at their participant, where one only shares what the other one changes.
fn meeting() -> Scenario {
    scenario(vec![vec![part(0, 1), part(1, 3)], vec![part(0, 2), shared(part(1, 3))]])
}

/// Two changes of different coordinators that meet at their participant.
fn crowded() -> Scenario {
    scenario(vec![vec![part(0, 1), part(1, 3)], vec![part(2, 2), part(1, 3)]])
}

/// A change that one of its participants refuses.
fn refused() -> Scenario {
    scenario(vec![vec![part(0, 1), part(1, 2), refuses(part(2, 3))]])
}

#[test]
fn one_change_over_two_targets() {
    holds("two", &two().faults(2, 1, 1));
}

#[test]
fn two_opposed_changes() {
    holds("opposed", &opposed().faults(1, 0, 0));
    holds("opposed", &opposed().faults(0, 2, 0));
}

#[test]
fn two_changes_that_meet_at_a_participant() {
    holds("meeting", &meeting().faults(1, 0, 0));
    holds("crowded", &crowded().faults(1, 0, 0));
}

#[test]
fn a_change_that_is_refused() {
    holds("refused", &refused().faults(1, 0, 1));
}

#[test]
fn one_change_over_three_targets() {
    holds("three", &three().faults(1, 0, 1));
}

#[test]
fn a_target_that_is_lost() {
    holds("two", &two().faults(1, 1, 1).loses());
    holds("three", &three().faults(1, 0, 0).loses());
    holds("three", &three().faults(0, 0, 1).loses());
    holds("meeting", &meeting().loses());
    holds("crowded", &crowded().loses());
}

#[test]
#[ignore = "takes minutes: make soak runs it"]
fn a_target_that_is_lost_with_more_faults() {
    holds("two", &two().faults(2, 1, 1).loses());
    holds("three", &three().faults(1, 0, 1).loses());
    holds("three", &three().faults(0, 1, 1).loses());
    holds("opposed", &opposed().faults(1, 0, 0).loses());
    holds("meeting", &meeting().faults(1, 0, 0).loses());
    holds("crowded", &crowded().faults(1, 0, 0).loses());
}

#[test]
#[ignore = "takes minutes: make soak runs it"]
fn one_change_over_two_targets_with_more_faults() {
    holds("two", &two().faults(3, 2, 2));
}

#[test]
#[ignore = "takes minutes: make soak runs it"]
fn two_opposed_changes_with_more_faults() {
    holds("opposed", &opposed().faults(1, 0, 1));
    holds("opposed", &opposed().faults(1, 1, 0));
    holds("opposed", &opposed().faults(2, 0, 0));
}

#[test]
#[ignore = "takes minutes: make soak runs it"]
fn two_changes_that_meet_with_more_faults() {
    holds("meeting", &meeting().faults(1, 1, 1));
    holds("crowded", &crowded().faults(1, 1, 0));
}

#[test]
#[ignore = "takes minutes: make soak runs it"]
fn a_change_that_is_refused_with_more_faults() {
    holds("refused", &refused().faults(2, 1, 1));
}

#[test]
#[ignore = "takes minutes: make soak runs it"]
fn one_change_over_three_targets_with_more_faults() {
    holds("three", &three().faults(2, 0, 1));
    holds("three", &three().faults(1, 1, 1));
}

/// Each flaw breaks what it must.
#[test]
fn flaws_are_found() {
    let not_durable = "a change that was answered is not durable";
    let comes_back = "keys are released, but a crash brings the record back";
    let not_all = "a done record is removed, but not all parts are durable";
    let no_record = "a participant has a done record, and the coordinator has none";
    let not_in_doubt = "a change that was answered is not in doubt when it is replayed";
    breaks("two", &two().with(Flaw::CommitsEarly), not_durable);
    breaks("two", &two().with(Flaw::VotesEarly), not_durable);
    breaks("two", &two().faults(0, 0, 1).with(Flaw::EndsEarly), comes_back);
    breaks("two", &two().faults(0, 0, 1).with(Flaw::ReleasesEarly), comes_back);
    breaks("two", &two().with(Flaw::ForgetsEarly), not_all);
    breaks("two", &two().with(Flaw::GoneEarly), no_record);
    breaks("two", &two().faults(2, 0, 0).with(Flaw::ReportsEarly), not_durable);
    breaks("three", &three().with(Flaw::ForgetsAlone), not_all);
    breaks("opposed", &opposed().faults(0, 1, 0).with(Flaw::KeepsPrepares), "records are left");
    breaks("opposed", &opposed().with(Flaw::NeverDies), "records are left");
    breaks("two", &two().faults(1, 0, 0).loses().with(Flaw::LostHadNothing), not_in_doubt);
    breaks("three", &three().faults(0, 0, 1).loses().with(Flaw::AnswersEarly), not_all);
}
