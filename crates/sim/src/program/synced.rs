//! The bytes of files that are certain after syncs, for the check after deaths of clients.
//!
//! A successful `fsync` or `syncfs` guarantees, byte by byte, what the same client had written last. Later writes may be there in
//! part. So a certain byte has its value at the sync or a later one, and is missing only if the file was truncated below it
//! since. A byte that no sync covers has a value that it once had, or is zero.
//!
//! The time of a change of bytes is sent with the bytes to the targets that hold them. Such a target may keep the time where the
//! metadata target loses earlier changes. So a file that was changed since a sync has a time that it had since then, even if the
//! change left the bytes equal.
//!
//! A living client loses nothing: its changes count as synced at once.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

use proto::Bytes;

use super::history::{EndedCall, History};
use crate::model::{Id, Inode, Model, Op, Substitutes, TimeRange};

/// The smallest stripe, in bytes.
const STRIPE: usize = 64 << 10;

/// The possible contents of one file.
#[derive(Clone, Debug, Default)]
pub(crate) struct SyncedFile {
    /// Its bytes at the last sync that covered all of it, and after each later change.
    states: Vec<Vec<u8>>,
    /// By byte: the index of the state from which on it is certain.
    certain: Vec<Option<usize>>,
    /// By byte: the client that wrote it last.
    writers: Vec<usize>,
    /// Clients that changed it since that sync.
    by: BTreeSet<usize>,
    /// Its modification times at that sync and after each later change.
    times: Vec<TimeRange>,
    /// Bytes that a call without a result may have appended, wherever the file ended then.
    appended: Bytes,
}

/// Keeps only the newest element.
fn keep_last<T>(all: &mut Vec<T>) {
    let last = all.pop();
    all.clear();
    all.extend(last);
}

impl SyncedFile {
    /// A file of which nothing is certain.
    fn new(before: Option<&Inode>, after: &Inode) -> SyncedFile {
        let times = before.into_iter().chain([after]).map(|inode| inode.mtime).collect();
        SyncedFile { states: vec![Vec::new()], times, ..SyncedFile::default() }
    }

    fn change(&mut self, before: &[u8], after: &[u8], client: usize) {
        let length = after.len();
        self.writers.resize(length, client);
        self.certain.resize(length.max(self.certain.len()), None);
        for at in 0..length.min(before.len()) {
            if before[at] != after[at] {
                self.writers[at] = client;
            }
        }
        self.states.push(after.to_vec());
        self.by.insert(client);
    }

    fn sync(&mut self, covers: &impl Fn(usize) -> bool) {
        self.by.retain(|client| !covers(*client));
        if self.by.is_empty() {
            keep_last(&mut self.times);
            keep_last(&mut self.states);
            self.certain = vec![Some(0); self.states.last().map_or(0, Vec::len)];
            return;
        }
        let now = self.states.len().saturating_sub(1);
        for (at, _) in self.writers.iter().enumerate().filter(|(_, writer)| covers(**writer)) {
            self.certain[at] = Some(now);
        }
    }

    /// A call without a result may have changed the file; `appended` are the bytes that it appended.
    fn maybe_change(&mut self, after: &[u8], appended: Bytes) {
        self.appended = appended;
        self.states.push(after.to_vec());
        self.certain.resize(after.len().max(self.certain.len()), None);
        self.by.insert(usize::MAX);
    }

    /// Whether no client has changed it since a sync.
    pub(crate) fn is_clean(&self) -> bool {
        self.by.is_empty()
    }

    /// Whether the file can have this modification time, where a state of the history has `when`.
    pub(crate) fn may_be_of(&self, mtime_ns: i64, when: TimeRange) -> bool {
        when.holds(mtime_ns) || !self.is_clean() && self.times.iter().any(|time| time.holds(mtime_ns))
    }

    /// The least and greatest possible size.
    pub(crate) fn sizes(&self, lost: &[Range<u64>]) -> (u64, u64) {
        let least = (0..self.certain.len()).rev().find(|at| self.must_be(*at, lost)).map_or(0, |at| at as u64 + 1);
        let most = self.states.iter().map(Vec::len).max().unwrap_or(0) as u64;
        let shortest = self.states.iter().map(Vec::len).min().unwrap_or(0) as u64;
        // If no client has changed it and nothing was lost, it has its full length, holes included.
        (if self.is_clean() && lost.is_empty() { shortest } else { least }, most)
    }

    /// Whether this byte is certain and was not truncated since.
    fn must_be(&self, at: usize, lost: &[Range<u64>]) -> bool {
        let Some(from) = self.certain[at] else { return false };
        let given_up = lost.iter().any(|part| part.contains(&(at as u64)));
        // A truncation across stripes is executed by several targets, and each may have made it durable or not: bytes beyond the
        // new end may be missing, and then so is a hole before the new end.
        let targets = |state: &Vec<u8>| state.len().saturating_sub(1) / STRIPE;
        let cut = self.states[from..].windows(2).any(|pair| targets(&pair[1]) < targets(&pair[0]));
        // A zero at the end may be a hole, which disappears with lost bytes behind it.
        let hole = (cut || !lost.is_empty()) && self.states[from..].iter().any(|state| state.get(at) == Some(&0));
        !given_up && !hole && self.states[from..].iter().all(|state| state.len() > at)
    }

    /// How the bytes of the file differ from the possible ones.
    pub(crate) fn differs(&self, got: &[u8], lost: &[Range<u64>], substitutes: &Substitutes<'_>) -> Option<String> {
        let (least, most) = self.sizes(lost);
        if !(least..=most).contains(&(got.len() as u64)) {
            return Some(format!("{} bytes, expected {least} to {most}", got.len()));
        }
        let start_of = |end: &[u8]| got.len() - if got.ends_with(end) { end.len() } else { 0 };
        let (tail, doubtful) = (start_of(&substitutes.appended), start_of(&self.appended));
        for (at, byte) in got.iter().enumerate() {
            let certain = self.certain.get(at).copied().flatten();
            let since = &self.states[certain.unwrap_or(0)..];
            let mut values = since.iter().map(|state| state.get(at));
            if values.any(|value| value == Some(byte)) {
                continue;
            }
            // Truncated and extended again, or never written.
            let zero = *byte == 0 && (certain.is_none() || since.iter().any(|state| state.len() <= at));
            let given_up = lost.iter().any(|part| part.contains(&(at as u64)));
            let older = || at >= tail || *byte == 0 || substitutes.older.iter().any(|data| data.get(at) == Some(byte));
            let appended = !lost.is_empty() && at >= tail && least <= tail as u64;
            // Other clients' bytes before it are lost, so the append starts where the file ended without them.
            let in_doubt = at >= doubtful && least <= doubtful as u64;
            let excused = zero || appended || in_doubt || given_up && older();
            if !excused {
                let want: BTreeSet<u8> = since.iter().filter_map(|state| state.get(at).copied()).collect();
                return Some(format!("byte {at} of {} is 0x{byte:02x}, expected one of {want:02x?}", got.len()));
            }
        }
        None
    }
}

impl History {
    /// All files with what is certain of each. Clients that are `safe` lose nothing.
    pub(crate) fn synced_files(&self, safe: &dyn Fn(usize) -> bool) -> BTreeMap<Id, SyncedFile> {
        let mut files = BTreeMap::<Id, SyncedFile>::new();
        let mut before = &self.start;
        for step in &self.steps {
            for (id, file) in &mut files {
                file.times.extend(step.after.get(*id).map(|inode| inode.mtime));
            }
            for id in changed(before, &step.after, &step.op) {
                let (old, new) = (before.get(id), step.after.inode(id));
                let file = files.entry(id).or_insert_with(|| SyncedFile::new(old, new));
                file.change(old.map_or(&[], Inode::data), new.data(), step.client);
                file.sync(&safe);
            }
            if step.succeeded {
                let covers = |client: usize| client == step.client || safe(client);
                if let Some(file) = synced(step).and_then(|id| files.get_mut(&id)) {
                    file.sync(&covers);
                }
                if matches!(step.op, Op::Syncfs) {
                    files.values_mut().for_each(|file| file.sync(&covers));
                }
            }
            before = &step.after;
        }
        let doubted = self
            .unanswered
            .iter()
            .flat_map(|call| self.states_with_unanswered().into_iter().map(|done| (&call.op, done)));
        for (op, done) in doubted {
            for id in changed(before, &done, op) {
                let new = done.inode(id);
                let file = files.entry(id).or_insert_with(|| SyncedFile::new(before.get(id), new));
                let appended = match op {
                    Op::Write { data, .. } if before.appends_to(op) == Some(id) => data.clone(),
                    _ => Bytes::new(),
                };
                file.maybe_change(new.data(), appended);
                file.times.push(new.mtime);
            }
        }
        files
    }
}

/// The file that a step has synced.
fn synced(step: &EndedCall) -> Option<Id> {
    match &step.op {
        Op::Fsync { fd, .. } => step.after.open_files().get(fd).map(|file| file.id),
        _ => None,
    }
}

/// Files whose bytes a call has written between two states, even with equal bytes.
fn changed(before: &Model, after: &Model, op: &Op) -> Vec<Id> {
    after
        .ids()
        .filter(|id| {
            let data = after.inode(*id).data();
            let differs = |old: &Inode| old.is_file() && op.changes_data() || old.data() != data;
            !after.same_body(before, *id) && before.get(*id).map_or(!data.is_empty(), differs)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::api::SetTime;
    use proto::msg::Cred;

    use crate::model::WriteWay;
    use crate::program::history::UnansweredCall;
    use crate::sched::WriteBackProgress;

    fn file() -> SyncedFile {
        SyncedFile { states: vec![Vec::new()], ..SyncedFile::default() }
    }

    fn differs(file: &SyncedFile, got: &[u8]) -> bool {
        file.differs(got, &[], &Substitutes::default()).is_some()
    }

    /// One client writes, syncs, and writes more; then the power fails.
    #[test]
    fn synced_bytes_persist_even_if_the_file_grew_later() {
        let mut file = file();
        file.change(b"", b"abcd", 0);
        file.sync(&|client| client == 0);
        assert!(file.is_clean());
        assert!(
            !differs(&file, b"abcd") && differs(&file, b"abc") && differs(&file, b"abcde") && differs(&file, b"abxd")
        );
        file.change(b"abcd", b"aBcdef", 0);
        assert!(!file.is_clean());
        for there in [&b"abcd"[..], b"aBcd", b"abcdef", b"aBcd\0f", b"aBcdef"] {
            assert!(!differs(&file, there), "{}", there.escape_ascii());
        }
        for wrong in [&b"abc"[..], b"a\0cd", b"abcdxf", b"abcdefg", b"\0\0\0\0ef"] {
            assert!(differs(&file, wrong), "{}", wrong.escape_ascii());
        }
    }

    /// Zeros are written over zeros after the sync: the object target may keep the time of that write, and the metadata target
    /// lose earlier changes.
    #[test]
    fn a_change_with_equal_bytes_has_a_time() {
        let mut history = History::new(Model::new(0, 0, 0o755, TimeRange::at(0)));
        let mut model = history.start.clone();
        let (path, fd) = (vec![Bytes::from_static(b"a")], 1);
        let zeros = Op::Write { fd, way: WriteWay::Plain, offset: 0, data: Bytes::from_static(&[0; 4]) };
        let steps = [
            Op::Open { path: path.clone(), flags: 0o102, mode: 0o644, fd },
            zeros.clone(),
            Op::Fsync { fd, data_only: false },
            Op::Utimens { path, atime: None, mtime: Some(SetTime::At(77)) },
            zeros,
        ];
        for (at, op) in (1..).zip(steps) {
            let (cred, when) = (Cred::default(), TimeRange::at(at));
            assert!(model.apply(&op, &cred, when).is_ok());
            let (after, before, progress) = (model.clone(), Vec::new(), WriteBackProgress::default());
            history.steps.push(EndedCall { op, cred, when, client: 0, succeeded: true, after, before, progress });
        }
        let may_be_of = |files: BTreeMap<Id, SyncedFile>| -> Vec<i64> {
            assert!(files.values().all(|file| !differs(file, &[0; 4]) && differs(file, &[0; 3])));
            let synced = TimeRange::at(2);
            (0..100).filter(|ns| files.values().all(|file| file.may_be_of(*ns, synced))).collect()
        };
        assert_eq!(may_be_of(history.synced_files(&|_| false)), [2, 5, 77]);
        assert_eq!(may_be_of(history.synced_files(&|_| true)), [2], "no client has lost anything");
        history.unanswered = history
            .steps
            .pop()
            .map(|EndedCall { op, cred, when, client, before, .. }| UnansweredCall { op, cred, when, client, before });
        assert_eq!(may_be_of(history.synced_files(&|_| false)), [2, 5, 77]);
        history.unanswered = None;
        assert_eq!(
            may_be_of(history.synced_files(&|_| false)),
            [2],
            "a metadata target keeps the time that was set, or loses it with the state"
        );
    }

    /// An append waits for a lock whose holder dies with unsynced bytes: the file then ends earlier than any client has seen.
    #[test]
    fn an_append_beside_a_death_starts_where_the_file_ends() {
        let with = |flags| {
            let mut history = History::new(Model::new(0, 0, 0o755, TimeRange::at(0)));
            let mut model = history.start.clone();
            let path = vec![Bytes::from_static(b"a")];
            let write = |fd, data: &'static [u8]| Op::Write {
                fd,
                way: WriteWay::Plain,
                offset: 0,
                data: Bytes::from_static(data),
            };
            let steps = [
                (0, Op::Open { path: path.clone(), flags: 0o102, mode: 0o644, fd: 1 }),
                (0, write(1, b"ab")),
                (0, Op::Fsync { fd: 1, data_only: false }),
                (0, Op::Write { fd: 1, way: WriteWay::Plain, offset: 2, data: Bytes::from_static(b"cdef") }),
                (1, Op::Open { path, flags, mode: 0, fd: 2 }),
            ];
            let (cred, progress) = (Cred::default(), WriteBackProgress::default());
            for (at, (client, op)) in (1..).zip(steps) {
                let (cred, when) = (cred.clone(), TimeRange::at(at));
                assert!(model.apply(&op, &cred, when).is_ok());
                let (after, before) = (model.clone(), Vec::new());
                history.steps.push(EndedCall { op, cred, when, client, succeeded: true, after, before, progress });
            }
            let (op, when, before) = (write(2, b"12"), TimeRange::at(9), Vec::new());
            history.unanswered = Some(UnansweredCall { op, cred, when, client: 1, before });
            history.synced_files(&|client| client != 0).into_values().next().unwrap()
        };
        let append = with(0o2002);
        for there in [&b"ab"[..], b"ab12", b"abcd12", b"abcdef", b"abcdef12", b"ab\0\0\0\x0012"] {
            assert!(!differs(&append, there), "{}", there.escape_ascii());
        }
        for wrong in [&b"12"[..], b"a12", b"ab1", b"ab21", b"ab12ef", b"12cdef"] {
            assert!(differs(&append, wrong), "{}", wrong.escape_ascii());
        }
        let at_start = with(0o2);
        assert!(!differs(&at_start, b"12") && !differs(&at_start, b"12cdef") && differs(&at_start, b"ab12"));
    }

    /// Two clients have written; one of them syncs.
    #[test]
    fn a_sync_covers_writes_of_the_same_client() {
        let mut file = file();
        file.change(b"", b"aaaa", 0);
        file.change(b"aaaa", b"aabb", 1);
        file.sync(&|client| client == 0);
        assert!(!file.is_clean());
        for there in [&b"aabb"[..], b"aaaa", b"aa", b"aa\0b"] {
            assert!(!differs(&file, there), "{}", there.escape_ascii());
        }
        assert!(differs(&file, b"a") && differs(&file, b"\0abb") && differs(&file, b"aabc"));
        file.sync(&|client| client == 1);
        assert!(file.is_clean() && differs(&file, b"aaaa") && !differs(&file, b"aabb"));
    }

    /// The file was truncated after the sync: either length is possible, and bytes that reappear are zero or the old ones.
    #[test]
    fn a_truncation_after_a_sync_may_have_been_done() {
        let mut file = file();
        file.change(b"", b"abcd", 0);
        file.sync(&|_| true);
        file.change(b"abcd", b"ab", 0);
        file.change(b"ab", b"ab\0\0", 0);
        for there in [&b"abcd"[..], b"ab", b"ab\0\0", b"ab\0d"] {
            assert!(!differs(&file, there), "{}", there.escape_ascii());
        }
        assert!(differs(&file, b"a") && differs(&file, b"abxd") && differs(&file, b"\0b"));
    }

    /// The end was on a target that has made the truncation durable, the hole before it on one that has not.
    #[test]
    fn a_hole_before_a_truncation_may_be_lost() {
        let mut file = file();
        file.change(b"", &[0; STRIPE + 4], 0);
        file.sync(&|_| true);
        file.change(&[0; STRIPE + 4], &[0; 100], 0);
        assert!(!differs(&file, b"") && !differs(&file, &[0; 100]) && !differs(&file, &[0; STRIPE + 4]));
        let mut file = self::file();
        file.change(b"", &[1; STRIPE + 4], 0);
        file.sync(&|_| true);
        file.change(&[1; STRIPE + 4], &[1; 100], 0);
        assert!(differs(&file, b"") && differs(&file, &[1; 99]) && !differs(&file, &[1; 100]), "no hole");
        let mut file = self::file();
        file.change(b"", &[0; 200], 0);
        file.sync(&|_| true);
        file.change(&[0; 200], &[0; 100], 0);
        assert!(differs(&file, b""), "all of it lies on one target");
    }

    /// No sync covers the bytes; still only bytes of this file may appear.
    #[test]
    fn unsynced_bytes_are_earlier_values_or_zero() {
        let mut file = file();
        file.change(b"", b"abcd", 0);
        assert!(!differs(&file, b"") && !differs(&file, b"a\0\0d") && !differs(&file, b"abcd"));
        assert!(differs(&file, b"abce") && differs(&file, b"abcde"));
    }
}
