//! The calls of a process, for the check after a crash that may have lost the last ones.
//!
//! What is lost is a tail of the changes on each metadata target, and of those through each client. A change that concerns two
//! targets (a directory that is made or removed elsewhere than its name) is durable when it is answered, and with it all that each
//! of the two had acknowledged before:
//!
//! ```text
//! step            1 mknod a   2 mkdir d on 1   3 mknod d/f   4 mknod b        all targets lose their power
//! on              0           0 and 1          1             0
//! may be lost     no          no               yes           yes              each of 3 and 4 without the other
//! ```

use std::collections::BTreeSet;

use proto::msg::Cred;

use crate::model::{Id, Mdts, Model, Op, Path, TimeRange};
use crate::sched::WriteBackProgress;

/// A call that ended.
#[derive(Clone, Debug)]
pub(crate) struct EndedCall {
    /// The call.
    pub op: Op,
    /// The credentials.
    pub cred: Cred,
    /// The time range of the call.
    pub when: TimeRange,
    /// The client.
    pub client: usize,
    /// Whether it succeeded.
    pub succeeded: bool,
    /// The state after it.
    pub after: Model,
    /// The write-back progress of all clients when it started.
    pub before: Vec<WriteBackProgress>,
    /// The write-back progress of its client when it ended.
    pub progress: WriteBackProgress,
}

impl EndedCall {
    /// Whether it made durable everything that its client and the servers knew of.
    fn is_sync(&self) -> bool {
        let syncs = matches!(self.op, Op::Fsync { .. } | Op::Fsyncdir { .. } | Op::Syncfs);
        self.succeeded && syncs
    }
}

/// A call without a result.
#[derive(Clone, Debug)]
pub(crate) struct UnansweredCall {
    /// The call.
    pub op: Op,
    /// The credentials.
    pub cred: Cred,
    /// The time range of the call.
    pub when: TimeRange,
    /// The client.
    pub client: usize,
    /// The write-back progress of all clients when it started.
    pub before: Vec<WriteBackProgress>,
}

/// All calls of a process.
#[derive(Clone, Debug)]
pub(crate) struct History {
    /// The state before the first.
    pub start: Model,
    /// The calls that ended.
    pub steps: Vec<EndedCall>,
    /// A last call with an unknown outcome: it may have been the next step.
    pub unanswered: Option<UnansweredCall>,
    /// Whether the process's directory is durable.
    pub base_durable: bool,
}

impl History {
    /// An empty history.
    pub(crate) fn new(start: Model) -> History {
        History { start, steps: Vec::new(), unanswered: None, base_durable: false }
    }

    /// The state after this many steps.
    pub(crate) fn state(&self, steps: usize) -> &Model {
        match steps.checked_sub(1) {
            Some(last) => &self.steps[last].after,
            None => &self.start,
        }
    }

    /// All versions of the bytes of a file.
    pub(crate) fn contents(&self, id: Id) -> Vec<&[u8]> {
        let mut found: Vec<&[u8]> = Vec::new();
        for data in self.steps.iter().filter_map(|step| Some(step.after.get(id)?.data())) {
            if found.last().is_none_or(|last| !core::ptr::eq(*last, data)) {
                found.push(data);
            }
        }
        found
    }

    /// Files that had a name once and have none in the state `now`, each with its last name.
    pub(crate) fn removed_files(&self, now: &Model) -> Vec<(Path, Id)> {
        let mut seen: BTreeSet<Id> = now.paths().into_iter().map(|(_, id)| id).collect();
        let mut found = Vec::new();
        for step in self.steps.iter().rev().filter(|step| step.succeeded && step.op.changes()) {
            for (path, id) in step.after.paths() {
                if step.after.inode(id).is_file() && seen.insert(id) {
                    found.push((path, id));
                }
            }
        }
        found
    }

    /// The states of the tree after clients of the process died: of each client, some of the last changes without a covering sync
    /// may be lost if it `loses` them (servers crashed too, or had not received them); changes through other clients are not
    /// lost. Also returns whether these are all states: there may be too many.
    pub(crate) fn without(&self, dead: &[usize], loses: impl Fn(&EndedCall, Mdts) -> bool) -> (Vec<Model>, bool) {
        let on = self.places();
        let of = |client: usize, mdt: Mdts| {
            let own = |at: &usize| {
                let step = &self.steps[*at];
                self.may_be_lost(*at, &on) && step.client == client && on[*at].meets(mdt) && loses(step, on[*at])
            };
            (0..self.steps.len()).filter(own).collect()
        };
        let tails: Vec<Vec<usize>> =
            self.used(&on).into_iter().flat_map(|mdt| dead.iter().map(move |client| of(*client, mdt))).collect();
        let (losses, all) = ways_to_lose(&tails);
        let states = losses.iter().filter_map(|lost| self.replayed_without(lost));
        (states.flat_map(|state| self.with_unanswered(state)).collect(), all)
    }

    /// By step: the metadata targets that it concerns.
    fn places(&self) -> Vec<Mdts> {
        self.steps.iter().enumerate().map(|(at, step)| self.state(at).mdts_of(&step.op)).collect()
    }

    /// The metadata targets that any call concerns, one by one; a single set of all if there is no second one.
    fn used(&self, on: &[Mdts]) -> Vec<Mdts> {
        let last = self.unanswered.as_ref().map(|call| self.state(self.steps.len()).mdts_of(&call.op));
        let named = |mdt: &Mdts| on.iter().chain(&last).any(|on| *on != Mdts::ALL && on.meets(*mdt));
        let used: Vec<Mdts> = (0..32).map(Mdts::one).filter(named).collect();
        if used.len() > 1 { used } else { vec![Mdts::ALL] }
    }

    /// Whether a step made durable what these targets knew of: a sync, or a change of two targets.
    fn makes_durable(&self, at: usize, on: &[Mdts], mdts: Mdts) -> bool {
        let step = &self.steps[at];
        let commits = step.succeeded && step.op.changes() && on[at].is_several() && !self.changed_nothing(at);
        (step.is_sync() || commits) && on[at].meets(mdts)
    }

    /// Whether a step is a change that no sync covers.
    fn may_be_lost(&self, at: usize, on: &[Mdts]) -> bool {
        let step = &self.steps[at];
        // A client that syncs first sends all its changes.
        let covers = |sync: &EndedCall| sync.client == step.client || self.was_acknowledged(at, &sync.before);
        let is_covered =
            |sync: usize| self.makes_durable(sync, on, on[at]) && (sync == at || covers(&self.steps[sync]));
        step.succeeded && step.op.changes() && !(at..self.steps.len()).any(is_covered)
    }

    /// Whether the servers had acknowledged a step at this write-back progress.
    fn was_acknowledged(&self, at: usize, all_progress: &[WriteBackProgress]) -> bool {
        let step = &self.steps[at];
        step.progress.made <= all_progress.get(step.client).map_or(0, |progress| progress.acknowledged)
    }

    /// The state after the history without these steps; `None` if the other steps could not have succeeded.
    fn replayed_without(&self, lost: &[usize]) -> Option<Model> {
        let mut model = self.start.clone();
        // A refused call changed nothing, even if it would succeed in this state.
        let happened =
            |(at, step): &(usize, &EndedCall)| step.succeeded && !lost.contains(at) && !self.changed_nothing(*at);
        for (at, step) in self.steps.iter().enumerate().filter(happened) {
            model.follow(self.state(at), &step.after, at);
            let (op, is_across) = self.state(at).local_call_in(&model, &step.op)?;
            // What gave the permission to search directories on other targets may be lost.
            model.set_searched(is_across);
            let result = model.apply(&op, &step.cred, step.when);
            model.set_searched(false);
            // A change through a lost open file has no effect, and a read gives no guarantee; but a successful change persists,
            // and with it everything that it depends on.
            if step.op.changes() && result.is_err() && step.op.fd().is_none() {
                return None;
            }
        }
        Some(model)
    }

    /// A state, and the states after the call with the unknown outcome.
    fn with_unanswered(&self, state: Model) -> Vec<Model> {
        let mut found = vec![state];
        if let Some(UnansweredCall { op, cred, when, .. }) = &self.unanswered {
            // Its client may have resolved the call's paths before the losses: its requests have FIDs.
            let known = self.state(self.steps.len()).call_in(&found[0], op).filter(|known| known != op);
            for op in [Some(op.clone()), known].into_iter().flatten() {
                let mut done = found[0].clone();
                if done.apply(&op, cred, *when).is_ok() {
                    found.push(done);
                }
            }
        }
        found
    }

    /// Whether a step is a rename between two names of one object: it changed nothing, and depends on what it saw no more than a
    /// read does.
    fn changed_nothing(&self, at: usize) -> bool {
        let EndedCall { op: Op::Rename { from, to, .. }, cred, .. } = &self.steps[at] else { return false };
        let id = |path| self.state(at).walk(cred, path).ok();
        id(from).is_some() && id(from) == id(to)
    }

    /// The states of the tree after everything crashed: any state of the history at or beyond the last sync, without some of the
    /// last changes that each client had not sent by then. Also returns whether these are all.
    pub(crate) fn prefixes(&self) -> (Vec<Model>, bool) {
        let on = self.places();
        let used = self.used(&on);
        let ways: Vec<(Ways, bool)> = used.iter().map(|mdt| self.losses_on(*mdt, &on)).collect();
        let (losses, mut all) = together(&ways);
        let mut found: Vec<Model> = losses.iter().filter_map(|lost| self.state_without(lost)).collect();
        if let Some(unanswered) = &self.unanswered {
            // If it is durable on its targets, so is everything before it on these.
            let (own, last) =
                (self.state(self.steps.len()).mdts_of(&unanswered.op), (unanswered.client, &unanswered.before[..]));
            let end = self.steps.len();
            let ways: Vec<(Ways, bool)> = used
                .iter()
                .zip(ways)
                .map(|(mdt, ways)| if own.meets(*mdt) { self.durable_at(end, Some(last), *mdt, &on) } else { ways })
                .collect();
            let (losses, complete) = together(&ways);
            let states = losses.iter().filter_map(|lost| self.state_without(lost));
            // The states without the unanswered call are in the list already.
            found.extend(states.flat_map(|state| self.with_unanswered(state).into_iter().skip(1)));
            all &= complete;
        }
        (found, all)
    }

    /// What a metadata target can have lost in a crash, and whether this is all.
    fn losses_on(&self, mdt: Mdts, on: &[Mdts]) -> (Ways, bool) {
        let end = self.steps.len();
        let (mut found, mut all) = (Vec::new(), true);
        let is_its = |at: &usize| on[*at].meets(mdt);
        for cut in (0..=end).filter(|cut| cut.checked_sub(1).is_none_or(|last| is_its(&last))) {
            if (cut..end).any(|at| self.makes_durable(at, on, mdt)) {
                continue;
            }
            let last = cut.checked_sub(1).map(|last| &self.steps[last]);
            let last = last.map(|last| (last.client, &last.before[..]));
            let (ways, complete) = self.durable_at(cut, last, mdt, on);
            found.extend(ways);
            all &= complete;
        }
        if mdt != Mdts::ALL {
            // Calls that changed nothing make no difference.
            found
                .iter_mut()
                .for_each(|lost| lost.retain(|at| self.steps[*at].succeeded && self.steps[*at].op.changes()));
            found = found.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
        }
        (found, all)
    }

    /// What a metadata target can have lost if of its steps those before `cut` are durable, and the last of them was made through
    /// this client at this write-back progress. Also returns whether this is all.
    fn durable_at(
        &self,
        cut: usize,
        last: Option<(usize, &[WriteBackProgress])>,
        mdt: Mdts,
        on: &[Mdts],
    ) -> (Ways, bool) {
        let is_its = |at: &usize| on[*at].meets(mdt);
        // The client of the last step had sent its earlier changes before.
        let is_unacknowledged = |at: &usize| {
            last.is_some_and(|(client, all_progress)| {
                self.steps[*at].client != client
                    && self.may_be_lost(*at, on)
                    && !self.was_acknowledged(*at, all_progress)
            })
        };
        let unacknowledged: Vec<usize> = (0..cut).filter(is_its).filter(is_unacknowledged).collect();
        let clients: BTreeSet<usize> = unacknowledged.iter().map(|at| self.steps[*at].client).collect();
        let of =
            |client: &usize| unacknowledged.iter().copied().filter(|at| self.steps[*at].client == *client).collect();
        let (losses, all) = ways_to_lose(&clients.iter().map(of).collect::<Vec<_>>());
        let tail: Vec<usize> = (cut..self.steps.len()).filter(is_its).collect();
        (losses.into_iter().map(|lost| [lost.as_slice(), &tail].concat()).collect(), all)
    }

    /// The state after all steps but these.
    fn state_without(&self, lost: &[usize]) -> Option<Model> {
        let end = self.steps.len();
        let cut = end - lost.len();
        match lost.iter().copied().eq(cut..end) {
            true => Some(self.state(cut).clone()),
            false => self.replayed_without(lost),
        }
    }

    /// The states after the unanswered call.
    pub(crate) fn states_with_unanswered(&self) -> Vec<Model> {
        self.with_unanswered(self.state(self.steps.len()).clone()).into_iter().skip(1).collect()
    }
}

/// Sets of steps: each can be what is lost.
type Ways = Vec<Vec<usize>>;

/// The unions of one set of each list, and whether these are all.
fn together(lists: &[(Ways, bool)]) -> (Ways, bool) {
    if let [one] = lists {
        return one.clone();
    }
    let (mut found, mut all) = (Ways::from([Vec::new()]), true);
    for (ways, complete) in lists {
        all &= *complete && found.len() * ways.len() <= LOSSES_MAX;
        let more = |lost: &Vec<usize>| -> Ways { ways.iter().map(|more| [lost.as_slice(), more].concat()).collect() };
        found = found.iter().flat_map(more).take(LOSSES_MAX).collect();
    }
    (found, all)
}

/// The most ways to lose changes that are considered.
const LOSSES_MAX: usize = 5_000;

/// All losses that consist of a tail of each of these lists, and whether these are all.
fn ways_to_lose(lists: &[Vec<usize>]) -> (Vec<Vec<usize>>, bool) {
    let mut losses: Vec<Vec<usize>> = vec![Vec::new()];
    let mut all = true;
    for list in lists {
        all &= losses.len() * (list.len() + 1) <= LOSSES_MAX;
        losses = losses
            .iter()
            .flat_map(|lost| (0..=list.len()).map(|from| [lost.as_slice(), &list[from..]].concat()))
            .take(LOSSES_MAX)
            .collect();
    }
    (losses, all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::api::NewDir;
    use proto::Bytes;

    fn step() -> EndedCall {
        EndedCall {
            op: Op::Syncfs,
            cred: Cred::default(),
            when: TimeRange::at(1),
            client: 0,
            succeeded: true,
            after: Model::new(0, 0, 0o755, TimeRange::at(0)),
            before: Vec::new(),
            progress: WriteBackProgress::default(),
        }
    }

    #[test]
    fn too_many_possible_losses_are_undecided() {
        let mut history = History::new(Model::new(0, 0, 0o755, TimeRange::at(0)));
        let after = history.start.clone();
        let op = Op::Chmod { path: vec![], mode: 0o700 };
        for at in 0..80 {
            let (cred, when, after) = (Cred::default(), TimeRange::at(1), after.clone());
            history.steps.push(EndedCall {
                op: op.clone(),
                cred,
                when,
                client: at % 2,
                succeeded: true,
                after,
                ..step()
            });
        }
        assert!(history.without(&[0], |_, _| true).1 && history.without(&[0, 1], |_, _| true).1);
        assert!(!history.without(&[0, 1, 0], |_, _| true).1);
    }

    /// Client 0 makes a and b by metadata write-back, client 1 makes c and d by requests; the servers have acknowledged a before
    /// d starts.
    #[test]
    fn unsent_changes_may_be_lost_while_later_ones_persist() {
        let mut history = History::new(Model::new(0, 0, 0o755, TimeRange::at(0)));
        let mut model = history.start.clone();
        for (at, (client, name, acknowledged)) in
            [(0, "a", 0), (0, "b", 0), (1, "c", 0), (1, "d", 1)].into_iter().enumerate()
        {
            let op = Op::Mkdir { path: vec![Bytes::from(name)], mode: 0o755 };
            assert!(model.apply(&op, &Cred::default(), TimeRange::at(1)).is_ok());
            let made = if client == 0 { at as u64 + 1 } else { 0 };
            let before = vec![WriteBackProgress { made: 2, acknowledged }, WriteBackProgress::default()];
            let progress = WriteBackProgress { made, acknowledged: 0 };
            history.steps.push(EndedCall { op, client, after: model.clone(), before, progress, ..step() });
        }
        let names = |model: &Model| -> String {
            model.entries(crate::model::ROOT).keys().map(|name| char::from(name[0])).collect()
        };
        let mut found: Vec<String> = history.prefixes().0.iter().map(names).collect();
        found.sort();
        assert_eq!(found, ["", "a", "ab", "abc", "abcd", "ac", "acd", "c"]);
        // A call without a result may be durable while earlier changes of another client are lost because they were not sent.
        let mut found: Vec<String> = {
            let mut history = History { steps: history.steps[..2].to_vec(), ..history.clone() };
            let op = Op::Mkdir { path: vec![Bytes::from("e")], mode: 0o755 };
            let (cred, when, before) =
                (Cred::default(), TimeRange::at(1), vec![WriteBackProgress { made: 2, acknowledged: 1 }]);
            history.unanswered = Some(UnansweredCall { op, cred, when, client: 1, before });
            history.prefixes().0.iter().map(names).collect()
        };
        found.sort();
        assert_eq!(found, ["", "a", "ab", "abe", "ae"]);
        // The client dies alone: the servers have acknowledged its first change.
        let found: Vec<String> = history.without(&[0], |step, _| step.progress.made > 1).0.iter().map(names).collect();
        assert_eq!(found, ["acd", "abcd"]);
        // A sync of the same client covers everything; another client's sync covers what was acknowledged before.
        for (client, at_least) in [(0, "abcd"), (1, "acd")] {
            let before = vec![WriteBackProgress { made: 2, acknowledged: 1 }, WriteBackProgress::default()];
            let mut history = history.clone();
            history.steps.push(EndedCall { client, after: model.clone(), before, ..step() });
            let mut found: Vec<String> = history.prefixes().0.iter().map(names).collect();
            found.sort_by_key(String::len);
            assert_eq!(found[0], at_least);
        }
    }

    /// A story with directory d on target 1 and all else on target 0; returns the names that each possible state has.
    fn names_after(ops: &[(usize, Op)], states: impl Fn(&History) -> (Vec<Model>, bool)) -> Vec<String> {
        let mut history = History::new(Model::new(0, 0, 0o755, TimeRange::at(0)));
        let mut model = history.start.clone();
        for (client, op) in ops {
            assert!(model.apply(op, &Cred::default(), TimeRange::at(1)).is_ok(), "{}", op.show());
            let (cred, when, after) = (Cred::default(), TimeRange::at(1), model.clone());
            history.steps.push(EndedCall { op: op.clone(), cred, when, client: *client, after, ..step() });
        }
        let shown = |model: &Model| {
            let paths = model.paths().into_iter().skip(1);
            let names = paths.map(|(path, _)| path.iter().map(|name| char::from(name[0])).collect::<String>());
            names.collect::<Vec<_>>().join(" ")
        };
        let (states, all) = states(&history);
        assert!(all);
        states.iter().map(shown).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn path(text: &str) -> Path {
        text.chars().map(|name| Bytes::from(name.to_string())).collect()
    }

    fn mkdir(text: &str) -> Op {
        Op::Mkdir { path: path(text), mode: 0o755 }
    }

    fn far(text: &str, mdt: u32) -> Op {
        Op::MkdirOn { path: path(text), mode: 0o755, wish: NewDir { mdts: vec![mdt], hash: 0 } }
    }

    /// The example at the head of this module.
    #[test]
    fn each_target_loses_a_tail_and_no_change_of_two_targets() {
        let ops = [mkdir("a"), far("d", 1), mkdir("df"), mkdir("b")].map(|op| (0, op));
        let all = ["a b d", "a b d df", "a d", "a d df"];
        assert_eq!(names_after(&ops, History::prefixes), all);
        assert_eq!(names_after(&ops, |history| history.without(&[0], |_, _| true)), all);
        assert_eq!(
            names_after(&ops, |history| history.without(&[0], |_, on| on == Mdts::one(1))),
            ["a b d", "a b d df"]
        );
        // A removal makes durable that the directory was empty.
        let removed = [far("d", 1), mkdir("df"), mkdir("b")].map(|op| (0, op)).into_iter();
        let ops: Vec<_> = removed.chain(["df", "d"].map(|at| (1, Op::Rmdir { path: path(at) }))).collect();
        assert_eq!(names_after(&ops, |history| history.without(&[0, 1], |_, _| true)), ["b"]);
        // A sync of a directory is one of its target.
        let ops = [far("d", 1), mkdir("a"), mkdir("df"), Op::Fsyncdir { path: path("d") }].map(|op| (0, op));
        assert_eq!(names_after(&ops, History::prefixes), ["a d df", "d df"]);
    }

    /// A rename on one target is lost; what was made below it on another one is still there, below the old name.
    #[test]
    fn changes_below_a_lost_rename_on_another_target_persist() {
        let ops = [
            mkdir("a"),
            far("ad", 1),
            Op::Rename { from: path("a"), to: path("b"), flags: 0 },
            mkdir("bdf"),
            mkdir("bc"),
        ];
        let ops = ops.map(|op| (0, op));
        let all = ["a ad", "a ad adf", "b bc bd", "b bc bd bdf", "b bd", "b bd bdf"];
        assert_eq!(names_after(&ops, History::prefixes), all);
    }

    #[test]
    fn a_rename_without_effect_depends_on_nothing() {
        let mut history = History::new(Model::new(0, 0, 0o755, TimeRange::at(0)));
        let mut model = history.start.clone();
        let path = vec![Bytes::from_static(b"b")];
        let mkdir = Op::Mkdir { path: path.clone(), mode: 0o755 };
        let rename = Op::Rename { from: path.clone(), to: path, flags: 0 };
        for (client, op) in [(0, mkdir), (1, rename)] {
            assert!(model.apply(&op, &Cred::default(), TimeRange::at(1)).is_ok());
            let (cred, when, after) = (Cred::default(), TimeRange::at(1), model.clone());
            history.steps.push(EndedCall { op, cred, when, client, succeeded: true, after, ..step() });
        }
        let names: Vec<usize> = history.without(&[0], |_, _| true).0.iter().map(|model| model.paths().len()).collect();
        assert_eq!(names, [1, 2], "the directory may be lost with the client that made it");
    }

    #[test]
    fn an_unanswered_call_keeps_its_resolved_objects() {
        let name = |text: &'static str| vec![Bytes::from_static(text.as_bytes())];
        let file = |text| Op::Mknod { path: name(text), mode: 0o100_644, rdev: 0 };
        let mut history = History::new(Model::new(0, 0, 0o755, TimeRange::at(0)));
        let mut model = history.start.clone();
        let steps = [
            (0, file("other")),
            (1, file("lost")),
            (0, file("old")),
            (1, Op::Rename { from: name("old"), to: name("new"), flags: 0 }),
        ];
        for (client, op) in steps {
            assert!(model.apply(&op, &Cred::default(), TimeRange::at(1)).is_ok());
            let (cred, when, after) = (Cred::default(), TimeRange::at(1), model.clone());
            history.steps.push(EndedCall { op, cred, when, client, succeeded: true, after, ..step() });
        }
        let link = Op::Link { from: name("new"), to: name("link") };
        let (cred, when) = (Cred::default(), TimeRange::at(1));
        history.unanswered = Some(UnansweredCall { op: link, cred, when, client: 0, before: Vec::new() });
        let names = |model: &Model| model.paths().iter().skip(1).map(|(path, id)| (path[0].clone(), id.0)).collect();
        let mut found: Vec<Vec<(Bytes, u32)>> = history.without(&[1], |_, _| true).0.iter().map(names).collect();
        let mut want = Vec::new();
        for lost in [false, true] {
            for (renamed, linked) in [(false, false), (false, true), (true, false), (true, true)] {
                if !(lost && renamed) {
                    let all = [("link", 3, linked), ("lost", 2, !lost), ("new", 3, renamed), ("old", 3, !renamed)];
                    let there = all.into_iter().filter(|(.., there)| *there).chain([("other", 1, true)]);
                    let mut there: Vec<_> = there.map(|(name, id, _)| (Bytes::from(name), id)).collect();
                    there.sort();
                    want.push(there);
                }
            }
        }
        found.sort();
        want.sort();
        assert_eq!(found, want);
    }

    #[test]
    fn a_refused_call_stays_refused_if_its_obstacle_is_lost() {
        let mut history = History::new(Model::new(0, 0, 0o755, TimeRange::at(0)));
        let mut model = history.start.clone();
        let path = vec![Bytes::from_static(b"b")];
        let mkdir = Op::Mkdir { path: path.clone(), mode: 0o755 };
        let symlink = Op::Symlink { path, target: Bytes::from_static(b"t") };
        for (op, succeeded) in [(mkdir, true), (symlink, false)] {
            assert_eq!(model.apply(&op, &Cred::default(), TimeRange::at(1)).is_ok(), succeeded);
            let (cred, when, after) = (Cred::default(), TimeRange::at(1), model.clone());
            history.steps.push(EndedCall { op, cred, when, client: 0, succeeded, after, ..step() });
        }
        let names: Vec<usize> = history.without(&[0], |_, _| true).0.iter().map(|model| model.paths().len()).collect();
        assert_eq!(names, [1, 2], "the empty tree, and the one with a directory");
    }
}
