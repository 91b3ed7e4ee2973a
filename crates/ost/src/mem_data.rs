//! Data files in memory with crash behaviour, for tests, the simulator, and targets that need not survive.
//!
//! [`MemData::run`] executes a data operation at once. A [`crash`](MemData::crash) may lose changes since the last sync of a
//! file, at random and independently for each page, the name and the length, as on a real disk.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proto::Errno;
use proto::msg::PunchKind;
use stdx::Rng;
use target::{DataOp, DataResult};

/// Bytes that are written or lost together.
const PAGE: u64 = 4096;
/// Largest file, in bytes: it is held in memory.
const SIZE_MAX: u64 = 1 << 32;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct File {
    size: u64,
    /// Allocated pages, by number. Bytes past the end are zero.
    pages: BTreeMap<u64, Box<[u8]>>,
}

impl File {
    fn page(&mut self, number: u64) -> &mut [u8] {
        self.pages.entry(number).or_insert_with(|| vec![0; PAGE as usize].into())
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let start = (at % PAGE) as usize;
            let count = rest.len().min(PAGE as usize - start);
            self.page(at / PAGE)[start..start + count].copy_from_slice(&rest[..count]);
            at += count as u64;
            rest = &rest[count..];
        }
        self.size = self.size.max(offset + data.len() as u64);
    }

    fn read(&self, offset: u64, length: u64) -> Bytes {
        let end = offset.saturating_add(length).min(self.size);
        let mut out = vec![0; end.saturating_sub(offset) as usize];
        for (number, page) in self.pages.range(offset / PAGE..end.div_ceil(PAGE).max(offset / PAGE)) {
            let start = number * PAGE;
            let (from, to) = (start.max(offset), (start + PAGE).min(end));
            if from < to {
                let source = &page[(from - start) as usize..(to - start) as usize];
                out[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
            }
        }
        out.into()
    }

    /// Zeroes a range: whole pages are dropped, parts of pages overwritten.
    fn zero(&mut self, start: u64, end: u64) {
        let mut touched: Vec<u64> = Vec::new();
        if start < end {
            touched.extend(self.pages.range(start / PAGE..=(end - 1) / PAGE).map(|(number, _)| *number));
        }
        for number in touched {
            let (first, last) = (number * PAGE, (number + 1) * PAGE);
            if start <= first && last <= end {
                self.pages.remove(&number);
            } else if let Some(page) = self.pages.get_mut(&number) {
                page[(start.max(first) - first) as usize..(end.min(last) - first) as usize].fill(0);
            }
        }
    }

    fn set_size(&mut self, size: u64) {
        self.zero(size, self.size.div_ceil(PAGE) * PAGE);
        self.size = size;
    }

    fn result(&self) -> DataResult {
        DataResult::Size(Some((self.size, self.pages.len() as u64 * (PAGE / 512))))
    }

    /// The first byte from `offset` on that is in an allocated page, or in a hole.
    fn seek(&self, offset: u64, hole: bool) -> Option<u64> {
        if offset >= self.size {
            return None;
        }
        let mut at = offset;
        while at < self.size {
            if self.pages.contains_key(&(at / PAGE)) != hole {
                return Some(at);
            }
            at = (at / PAGE + 1) * PAGE;
        }
        hole.then_some(self.size)
    }
}

/// Data files in memory.
#[derive(Clone, Debug, Default)]
pub struct MemData {
    now: BTreeMap<u64, File>,
    durable: BTreeMap<u64, File>,
    dirty: BTreeSet<u64>,
    /// Bytes that all files may take; `None`: no limit.
    capacity: Option<u64>,
    fail_next: Option<Errno>,
}

impl MemData {
    /// An empty set of files.
    pub fn new() -> MemData {
        MemData::default()
    }

    /// Executes one operation.
    pub fn run(&mut self, op: &DataOp) -> DataResult {
        if let Some(errno) = self.fail_next.take_if(|_| !matches!(op, DataOp::List { .. })) {
            return DataResult::Failed(errno);
        }
        match op {
            DataOp::Read { file, offset, length } => {
                DataResult::Data(self.now.get(file).map_or_else(Bytes::new, |f| f.read(*offset, u64::from(*length))))
            }
            DataOp::Write { file, offset, data } => {
                let end = offset.saturating_add(data.len() as u64);
                if end > SIZE_MAX {
                    return DataResult::Failed(Errno::EFBIG);
                }
                if self.is_full(*file, *offset..end) {
                    return DataResult::Failed(Errno::ENOSPC);
                }
                self.change(*file).write(*offset, data);
                self.size(*file)
            }
            DataOp::Truncate { file, size } => {
                if *size > SIZE_MAX {
                    return DataResult::Failed(Errno::EFBIG);
                }
                if *size != 0 || self.now.contains_key(file) {
                    self.change(*file).set_size(*size);
                }
                self.size(*file)
            }
            DataOp::Fallocate { file, offset, length, kind, keep_size } => {
                self.fallocate(*file, *offset, *length, *kind, *keep_size)
            }
            DataOp::Seek { file, offset, hole } => {
                DataResult::Offset(self.now.get(file).and_then(|f| f.seek(*offset, *hole)))
            }
            DataOp::Sync { files } => {
                for file in files {
                    match self.now.get(file) {
                        Some(content) => self.durable.insert(*file, content.clone()),
                        None => self.durable.remove(file),
                    };
                    self.dirty.remove(file);
                }
                DataResult::Done
            }
            DataOp::Remove { file } => {
                self.now.remove(file);
                self.dirty.insert(*file);
                DataResult::Done
            }
            DataOp::Stat { file } => self.size(*file),
            DataOp::List { from, limit } => {
                DataResult::Files(self.now.range(from..).map(|(file, _)| *file).take(*limit as usize).collect())
            }
        }
    }

    fn fallocate(&mut self, file: u64, offset: u64, length: u64, kind: PunchKind, keep_size: bool) -> DataResult {
        let end = offset.saturating_add(length);
        if end > SIZE_MAX {
            return DataResult::Failed(Errno::EFBIG);
        }
        if kind != PunchKind::Hole && self.is_full(file, offset..end) {
            return DataResult::Failed(Errno::ENOSPC);
        }
        let content = self.change(file);
        if matches!(kind, PunchKind::Hole | PunchKind::Zero) {
            content.zero(offset, end);
        }
        if matches!(kind, PunchKind::Zero | PunchKind::Allocate) {
            for number in offset / PAGE..end.div_ceil(PAGE) {
                content.page(number);
            }
            if !keep_size {
                content.size = content.size.max(end);
            }
        }
        self.size(file)
    }

    fn change(&mut self, file: u64) -> &mut File {
        self.dirty.insert(file);
        self.now.entry(file).or_default()
    }

    fn size(&self, file: u64) -> DataResult {
        self.now.get(&file).map_or(DataResult::Size(None), File::result)
    }

    /// Whether there is no space for the pages that a range of a file lacks. Allocated pages are overwritten in place.
    fn is_full(&self, file: u64, range: Range<u64>) -> bool {
        let Some(capacity) = self.capacity else { return false };
        let (first, end) = (range.start / PAGE, range.end.div_ceil(PAGE));
        let there = self.now.get(&file).map_or(0, |file| file.pages.range(first..end.max(first)).count() as u64);
        self.bytes() + (end.saturating_sub(first) - there) * PAGE > capacity
    }

    /// The bytes that all files take.
    pub fn bytes(&self) -> u64 {
        self.now.values().map(|f| f.pages.len() as u64 * PAGE).sum()
    }

    /// Limits the space of all files, in bytes.
    pub fn set_capacity(&mut self, bytes: Option<u64>) {
        self.capacity = bytes;
    }

    /// Makes the next operation fail.
    pub fn fail_next(&mut self, errno: Errno) {
        self.fail_next = Some(errno);
    }

    /// The numbers of all files.
    pub fn files(&self) -> Vec<u64> {
        self.now.keys().copied().collect()
    }

    /// Power failure: for each file with changes since its last sync, name, length and pages are old or new at random.
    pub fn crash(&mut self, rng: &mut Rng) {
        for file in core::mem::take(&mut self.dirty) {
            let after = match (self.durable.get(&file), self.now.get(&file)) {
                (Some(old), Some(new)) => Some(torn(old, new, rng)),
                (None, Some(new)) => coin(rng).then(|| torn(&File::default(), new, rng)),
                (Some(old), None) => coin(rng).then(|| old.clone()),
                (None, None) => None,
            };
            match after {
                Some(content) => {
                    self.now.insert(file, content.clone());
                    self.durable.insert(file, content);
                }
                None => {
                    self.now.remove(&file);
                    self.durable.remove(&file);
                }
            }
        }
    }
}

fn coin(rng: &mut Rng) -> bool {
    rng.below(2) == 0
}

fn torn(old: &File, new: &File, rng: &mut Rng) -> File {
    let mut after = File { size: if coin(rng) { old.size } else { new.size }, pages: BTreeMap::new() };
    let numbers: BTreeSet<u64> = old.pages.keys().chain(new.pages.keys()).copied().collect();
    for number in numbers {
        let source = if coin(rng) { old } else { new };
        if let Some(page) = source.pages.get(&number) {
            after.pages.insert(number, page.clone());
        }
    }
    // A file has no bytes past its end.
    after.pages.retain(|number, _| number * PAGE < after.size);
    after.zero(after.size, after.size.div_ceil(PAGE) * PAGE);
    after
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(data: &mut MemData, offset: u64, bytes: &'static [u8]) -> DataResult {
        data.run(&DataOp::Write { file: 1, offset, data: Bytes::from_static(bytes) })
    }

    fn read(data: &mut MemData, offset: u64, length: u32) -> Bytes {
        match data.run(&DataOp::Read { file: 1, offset, length }) {
            DataResult::Data(bytes) => bytes,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn it_behaves_like_a_sparse_file() {
        let mut data = MemData::new();
        assert_eq!(write(&mut data, 8190, b"abcd"), DataResult::Size(Some((8194, 16))));
        assert_eq!(&read(&mut data, 8188, 100)[..], b"\0\0abcd");
        let seek = |data: &mut MemData, offset, hole| data.run(&DataOp::Seek { file: 1, offset, hole });
        assert_eq!(seek(&mut data, 0, false), DataResult::Offset(Some(4096)));
        assert_eq!(seek(&mut data, 0, true), DataResult::Offset(Some(0)));
        assert_eq!(seek(&mut data, 4096, true), DataResult::Offset(Some(8194)));
        assert_eq!(seek(&mut data, 8194, true), DataResult::Offset(None));
        data.run(&DataOp::Truncate { file: 1, size: 8191 });
        data.run(&DataOp::Truncate { file: 1, size: 9000 });
        assert_eq!(&read(&mut data, 8190, 3)[..], b"a\0\0");
        let punch = |kind, keep_size| DataOp::Fallocate { file: 1, offset: 4096, length: 4096, kind, keep_size };
        assert_eq!(data.run(&punch(PunchKind::Hole, true)), DataResult::Size(Some((9000, 0))));
        assert_eq!(data.run(&punch(PunchKind::Allocate, false)), DataResult::Size(Some((9000, 8))));
        assert_eq!(data.run(&DataOp::List { from: 0, limit: 9 }), DataResult::Files(vec![1]));
    }

    #[test]
    fn a_crash_keeps_what_was_synced() {
        let mut rng = Rng::new(1);
        for _ in 0..100 {
            let mut data = MemData::new();
            write(&mut data, 0, b"old");
            data.run(&DataOp::Sync { files: vec![1] });
            data.crash(&mut rng);
            assert_eq!(&read(&mut data, 0, 9)[..], b"old");
            write(&mut data, 0, b"newer");
            data.crash(&mut rng);
            let bytes = read(&mut data, 0, 9);
            assert!([&b"old"[..], b"newer", b"new", b"old\0\0"].contains(&&bytes[..]), "{bytes:?}");
        }
    }
}
