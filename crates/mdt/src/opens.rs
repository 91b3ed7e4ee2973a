//! Open files, in memory only: clients open their files again after a restart.
//!
//! A handle is derived so that only the client can know it (`Cx::open_handle`). A replayed open gets the same handle, which
//! proves that the open was answered. If there is no such handle, or it is in use (a request that opens a file twice), the
//! handle is `instance << 40 | n`, so that no handle of an earlier start is mistaken for a current one. A replayed open is also
//! found by its old handle, because a close may have been sent with it.

use proto::Fid;
use std::collections::{BTreeMap, BTreeSet};
use stdx::Map;
use target::ExportId;

/// An open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenFile {
    /// The client that opened it.
    pub export: ExportId,
    /// The object.
    pub fid: Fid,
    /// It is open for writing.
    pub writes: bool,
    /// Its handle before the restart; 0 if there was none.
    pub old_handle: u64,
}

/// All open files.
#[derive(Default, Debug)]
pub struct Opens {
    last: u64,
    by_handle: Map<u64, OpenFile>,
    by_old_handle: Map<(ExportId, u64), u64>,
    counts: Map<Fid, u32>,
    by_export: BTreeMap<ExportId, BTreeSet<u64>>,
}

impl Opens {
    /// Adds an open file and returns its handle. A second replay of an open replaces the first.
    pub fn open(&mut self, instance: u64, handle: Option<u64>, file: OpenFile) -> u64 {
        if file.old_handle != 0
            && let Some(&earlier) = self.by_old_handle.get(&(file.export, file.old_handle))
        {
            self.remove(earlier);
        }
        let is_free = |handle: &u64| *handle != 0 && !self.by_handle.contains_key(handle);
        let handle = handle.filter(is_free).unwrap_or_else(|| self.next(instance));
        if file.old_handle != 0 {
            self.by_old_handle.insert((file.export, file.old_handle), handle);
        }
        *self.counts.entry(file.fid).or_default() += 1;
        self.by_export.entry(file.export).or_default().insert(handle);
        self.by_handle.insert(handle, file);
        handle
    }

    fn next(&mut self, instance: u64) -> u64 {
        loop {
            self.last = self.last.max(instance << 40) + 1;
            if !self.by_handle.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    /// The open file of a client's handle, which may be the current one or the one from before the restart.
    pub fn find(&self, export: ExportId, handle: u64) -> Option<(u64, OpenFile)> {
        let present = self.by_old_handle.get(&(export, handle)).copied().unwrap_or(handle);
        let file = self.by_handle.get(&present)?;
        (file.export == export).then_some((present, *file))
    }

    /// Closes a file by its current handle.
    pub fn remove(&mut self, handle: u64) {
        let Some(file) = self.by_handle.remove(&handle) else { return };
        if file.old_handle != 0 {
            self.by_old_handle.remove(&(file.export, file.old_handle));
        }
        if let Some(count) = self.counts.get_mut(&file.fid) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&file.fid);
            }
        }
        if let Some(handles) = self.by_export.get_mut(&file.export) {
            handles.remove(&handle);
            if handles.is_empty() {
                self.by_export.remove(&file.export);
            }
        }
    }

    /// How often an object is open.
    pub fn count(&self, fid: Fid) -> u32 {
        self.counts.get(&fid).copied().unwrap_or(0)
    }

    /// Closes all files of an export. Returns the objects that no client has open any more.
    pub fn export_gone(&mut self, export: ExportId) -> Vec<Fid> {
        let handles = self.by_export.get(&export).cloned().unwrap_or_default();
        let mut closed = BTreeSet::new();
        for handle in handles {
            if let Some(file) = self.by_handle.get(&handle) {
                closed.insert(file.fid);
            }
            self.remove(handle);
        }
        closed.into_iter().filter(|fid| self.count(*fid) == 0).collect()
    }

    /// Open files of one export.
    pub fn of_export(&self, export: ExportId) -> usize {
        self.by_export.get(&export).map_or(0, BTreeSet::len)
    }

    /// Open files of all exports.
    pub fn total(&self) -> usize {
        self.by_handle.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FID: Fid = Fid::new(0x2_0000_0400, 1);

    fn file(export: u64, old_handle: u64) -> OpenFile {
        OpenFile { export: ExportId(export), fid: FID, writes: false, old_handle }
    }

    #[test]
    fn a_replay_answers_to_both_handles_and_never_counts_twice() {
        let mut opens = Opens::default();
        let first = opens.open(2, None, file(1, 77));
        assert_eq!(opens.find(ExportId(1), 77).map(|found| found.0), Some(first));
        let again = opens.open(2, None, file(1, 77));
        assert!(again > first && opens.count(FID) == 1);
        assert_eq!(opens.find(ExportId(1), first), None);
        assert_eq!(opens.find(ExportId(1), 77).map(|found| found.0), Some(again));
        assert_eq!(opens.find(ExportId(2), again), None, "handles are their owners'");
        opens.remove(again);
        assert_eq!((opens.count(FID), opens.total(), opens.find(ExportId(1), 77)), (0, 0, None));
    }

    #[test]
    fn a_handle_that_follows_from_the_request_is_kept_over_replays() {
        let mut opens = Opens::default();
        assert_eq!(opens.open(1, Some(9), file(1, 0)), 9);
        let twice = opens.open(1, Some(9), file(1, 0));
        assert_ne!(twice, 9, "each open has a handle of its own");
        // After a restart both opens are replayed, one of them twice.
        let mut opens = Opens::default();
        for _ in 0..2 {
            assert_eq!(opens.open(2, Some(9), file(1, 9)), 9);
        }
        let again = opens.open(2, Some(9), file(1, twice));
        assert_eq!((opens.count(FID), opens.total()), (2, 2));
        assert_eq!(opens.find(ExportId(1), twice).map(|found| found.0), Some(again));
        opens.remove(9);
        assert_eq!((opens.find(ExportId(1), 9), opens.count(FID)), (None, 1));
    }

    #[test]
    fn an_export_that_goes_closes_its_files_and_nobody_elses() {
        let mut opens = Opens::default();
        opens.open(1, None, file(1, 0));
        let other = opens.open(1, None, file(2, 0));
        assert_eq!(opens.export_gone(ExportId(1)), []);
        assert_eq!(opens.export_gone(ExportId(2)), [FID]);
        assert_eq!(opens.find(ExportId(2), other), None);
    }
}
