//! What a process did, call by call, for the check after a crash that may have lost the end of it.

use proto::msg::Cred;

use crate::model::{Id, Model, Op, When};

/// A call that ended.
#[derive(Clone, Debug)]
pub struct Step {
    /// What.
    pub op: Op,
    /// For whom.
    pub cred: Cred,
    /// When.
    pub when: When,
    /// Through which client.
    pub client: usize,
    /// It succeeded.
    pub succeeded: bool,
    /// The state after it.
    pub after: Model,
}

/// All calls of a process.
#[derive(Clone, Debug)]
pub struct History {
    /// The state before the first.
    pub start: Model,
    /// What it did.
    pub steps: Vec<Step>,
    /// A call whose outcome nobody knows: it may have been the next step.
    pub doubt: Option<(Op, Cred, When, usize)>,
    /// The process's directory is durable.
    pub base_durable: bool,
}

impl History {
    /// Nothing yet.
    pub fn new(start: Model) -> History {
        History { start, steps: Vec::new(), doubt: None, base_durable: false }
    }

    /// The state after so many steps.
    pub fn state(&self, steps: usize) -> &Model {
        match steps.checked_sub(1) {
            Some(last) => &self.steps[last].after,
            None => &self.start,
        }
    }

    /// The state at the end, and what it would be if the call in doubt was done.
    pub fn ends(&self) -> Vec<Model> {
        let last = self.state(self.steps.len()).clone();
        let mut ends = vec![last];
        if let Some((op, cred, when, _)) = &self.doubt {
            let mut done = ends[0].clone();
            if done.apply(op, cred, *when).is_ok() {
                ends.push(done);
            }
        }
        ends
    }

    /// What the tree may be after clients of the process died: of each, the last changes that no sync covers may be lost if it
    /// `loses` them (servers crashed too, or it made changes behind its programs' backs); those of other clients are not. Also
    /// whether these are all: there may be too many ways.
    pub fn without(&self, dead: &[usize], loses: impl Fn(usize) -> bool) -> (Vec<Model>, bool) {
        let durable = self.durable();
        let mut losses: Vec<Vec<usize>> = vec![Vec::new()];
        let mut all = true;
        for client in dead.iter().filter(|client| loses(**client)) {
            let own: Vec<usize> = (durable..self.steps.len())
                .filter(|&at| {
                    self.steps[at].client == *client && self.steps[at].succeeded && self.steps[at].op.changes()
                })
                .collect();
            all &= losses.len() * (own.len() + 1) <= LOSSES_MAX;
            losses = losses
                .iter()
                .flat_map(|lost| (0..=own.len()).map(|from| [lost.as_slice(), &own[from..]].concat()))
                .take(LOSSES_MAX)
                .collect();
        }
        (losses.iter().flat_map(|lost| self.replayed_without(lost)).collect(), all)
    }

    /// The states that the history leads to if these steps are lost: none if the others could not have gone as they went.
    fn replayed_without(&self, lost: &[usize]) -> Vec<Model> {
        let mut model = self.start.clone();
        // What was refused changed nothing, also where nothing would refuse it now.
        let happened = |(at, step): &(usize, &Step)| step.succeeded && !lost.contains(at) && !self.was_idle(*at);
        for (at, step) in self.steps.iter().enumerate().filter(happened) {
            model.follow(self.state(at), &step.after, at);
            let result = model.apply(&step.op, &step.cred, step.when);
            // What goes through an open file that is lost goes nowhere, and what was only looked at promises nothing; a
            // change that succeeded stands, and what it stood on with it.
            if step.op.changes() && result.is_err() && step.op.fd().is_none() {
                return Vec::new();
            }
        }
        let mut found = vec![model];
        if let Some((op, cred, when, _)) = &self.doubt {
            // Its client may have looked its names up before something was lost, and sends numbers of objects.
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

    /// A rename between two names of one object: it changed nothing, and stands on what it saw no more than a look does.
    fn was_idle(&self, at: usize) -> bool {
        let Step { op: Op::Rename { from, to, .. }, cred, .. } = &self.steps[at] else { return false };
        let id = |path| self.state(at).walk(cred, path).ok();
        id(from).is_some() && id(from) == id(to)
    }

    /// What the tree may be after everything crashed: some state of the history, at or beyond the last sync.
    pub fn prefixes(&self) -> Vec<Model> {
        let mut found: Vec<Model> =
            (self.durable()..=self.steps.len()).map(|steps| self.state(steps).clone()).collect();
        found.extend(self.ends().into_iter().skip(1));
        found
    }

    /// So many first steps cannot be lost: something after them was made durable. Groups are durable in order, so what
    /// was answered before a sync is durable with it.
    pub fn durable(&self) -> usize {
        let synced = |step: &Step| {
            step.succeeded && matches!(step.op, Op::Fsync { data_only: false, .. } | Op::Fsyncdir { .. } | Op::Syncfs)
        };
        self.steps.iter().rposition(synced).map_or(0, |last| last + 1)
    }

    /// The files whose bytes are durable, with the bytes' state: synced through the only client that wrote them, and not
    /// written since.
    pub fn durable_files(&self) -> Vec<(Id, Vec<u8>)> {
        let mut files = std::collections::BTreeMap::<Id, Written>::new();
        let mut before = &self.start;
        for step in &self.steps {
            for (id, data) in changed(before, &step.after) {
                let file = files.entry(id).or_default();
                if file.clean {
                    file.by.clear();
                }
                if !file.by.contains(&step.client) {
                    file.by.push(step.client);
                }
                file.clean = false;
                file.data = data;
            }
            if step.succeeded {
                match &step.op {
                    Op::Fsync { fd, .. } => {
                        let id = step.after.open_files().get(fd).map(|file| file.id);
                        if let Some(file) = id.and_then(|id| files.get_mut(&id)) {
                            file.clean |= file.by == [step.client];
                        }
                    }
                    Op::Syncfs => {
                        for file in files.values_mut() {
                            file.clean |= file.by == [step.client];
                        }
                    }
                    _ => {}
                }
            }
            before = &step.after;
        }
        let untouched = |id: &Id| match &self.doubt {
            // The call in doubt may be a write to anything: only that it is not open keeps a file safe from it.
            Some(_) => !self.state(self.steps.len()).open_files().values().any(|file| file.id == *id),
            None => true,
        };
        let in_doubt = self.doubt.as_ref().is_some_and(|(op, ..)| matches!(op, Op::Truncate { .. } | Op::Open { .. }));
        if in_doubt {
            return Vec::new();
        }
        files.into_iter().filter(|(id, file)| file.clean && untouched(id)).map(|(id, file)| (id, file.data)).collect()
    }
}

/// More ways to lose changes than this are not looked at.
const LOSSES_MAX: usize = 5_000;

#[derive(Default)]
struct Written {
    clean: bool,
    by: Vec<usize>,
    data: Vec<u8>,
}

/// Files whose bytes differ between two states.
fn changed(before: &Model, after: &Model) -> Vec<(Id, Vec<u8>)> {
    after
        .ids()
        .filter(|id| {
            let data = after.inode(*id).data();
            !after.same_body(before, *id) && before.get(*id).map_or(!data.is_empty(), |inode| inode.data() != data)
        })
        .map(|id| (id, after.inode(id).data().to_vec()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Bytes;

    #[test]
    fn too_many_ways_to_lose_are_no_verdict() {
        let mut history = History::new(Model::new(0, 0, 0o755, When::at(0)));
        let after = history.start.clone();
        let op = Op::Chmod { path: vec![], mode: 0o700 };
        for at in 0..80 {
            let (cred, when, after) = (Cred::default(), When::at(1), after.clone());
            history.steps.push(Step { op: op.clone(), cred, when, client: at % 2, succeeded: true, after });
        }
        assert!(history.without(&[0], |_| true).1 && history.without(&[0, 1], |_| true).1);
        assert!(!history.without(&[0, 1, 0], |_| true).1);
    }

    #[test]
    fn a_rename_that_did_nothing_stands_on_nothing() {
        let mut history = History::new(Model::new(0, 0, 0o755, When::at(0)));
        let mut model = history.start.clone();
        let path = vec![Bytes::from_static(b"b")];
        let mkdir = Op::Mkdir { path: path.clone(), mode: 0o755 };
        let rename = Op::Rename { from: path.clone(), to: path, flags: 0 };
        for (client, op) in [(0, mkdir), (1, rename)] {
            assert!(model.apply(&op, &Cred::default(), When::at(1)).is_ok());
            let (cred, when, after) = (Cred::default(), When::at(1), model.clone());
            history.steps.push(Step { op, cred, when, client, succeeded: true, after });
        }
        let names: Vec<usize> = history.without(&[0], |_| true).0.iter().map(|model| model.paths().len()).collect();
        assert_eq!(names, [1, 2], "the directory may be lost with the client that made it");
    }

    #[test]
    fn a_call_in_doubt_is_about_what_its_names_led_to() {
        let name = |text: &'static str| vec![Bytes::from_static(text.as_bytes())];
        let file = |text| Op::Mknod { path: name(text), mode: 0o100_644, rdev: 0 };
        let mut history = History::new(Model::new(0, 0, 0o755, When::at(0)));
        let mut model = history.start.clone();
        let steps = [
            (0, file("other")),
            (1, file("lost")),
            (0, file("old")),
            (1, Op::Rename { from: name("old"), to: name("new"), flags: 0 }),
        ];
        for (client, op) in steps {
            assert!(model.apply(&op, &Cred::default(), When::at(1)).is_ok());
            let (cred, when, after) = (Cred::default(), When::at(1), model.clone());
            history.steps.push(Step { op, cred, when, client, succeeded: true, after });
        }
        let link = Op::Link { from: name("new"), to: name("link") };
        history.doubt = Some((link, Cred::default(), When::at(1), 0));
        let names = |model: &Model| model.paths().iter().skip(1).map(|(path, id)| (path[0].clone(), id.0)).collect();
        let mut found: Vec<Vec<(Bytes, u32)>> = history.without(&[1], |_| true).0.iter().map(names).collect();
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
    fn what_was_refused_is_not_done_where_its_obstacle_is_lost() {
        let mut history = History::new(Model::new(0, 0, 0o755, When::at(0)));
        let mut model = history.start.clone();
        let path = vec![Bytes::from_static(b"b")];
        let mkdir = Op::Mkdir { path: path.clone(), mode: 0o755 };
        let symlink = Op::Symlink { path, target: Bytes::from_static(b"t") };
        for (op, succeeded) in [(mkdir, true), (symlink, false)] {
            assert_eq!(model.apply(&op, &Cred::default(), When::at(1)).is_ok(), succeeded);
            let (cred, when, after) = (Cred::default(), When::at(1), model.clone());
            history.steps.push(Step { op, cred, when, client: 0, succeeded, after });
        }
        let names: Vec<usize> = history.without(&[0], |_| true).0.iter().map(|model| model.paths().len()).collect();
        assert_eq!(names, [1, 2], "the empty tree, and the one with a directory");
    }
}
