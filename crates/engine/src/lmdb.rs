//! The embedded engine: LMDB in a local directory.
//!
//! One unnamed database: keys are the store's keys, values the sealed records. The number of the last group is a record,
//! too, beyond all keys of the store, written by the same transaction as the group.
//!
//! # Choices
//! - The map is read-only (no `MDB_WRITEMAP`): pages are written with `write`, so a full disk is an error and not a signal that
//!   kills the process, and no stray pointer can overwrite the data. Creates cost no more than with `MDB_WRITEMAP`.
//! - If a commit finds the disk full, it is retried with blocks that a file beside the store holds (`reserve`). When these are
//!   used up, the commit fails. Nothing of the group was written, and it can be tried again.
//! - The dirty pages of a transaction are in LMDB's memory. The build limits them to 64 MiB, above which LMDB writes them out
//!   early. (LMDB's default is 512 MiB. The limit costs nothing measurable, because groups are in key order.)
//! - The map is sized generously (it is address space, not memory) and grows when it is full.
//! - Read-ahead is off: when the store is larger than memory, it would read many pages to get one.
//! - LMDB does not allow one process to open a directory twice; several processes may read it.
//!
//! # Figures
//! `cargo run --release -p engine --example load`, two busy cores, 100 groups of 20 000 creates (three records each and two
//! that the group shares), six million records at the end:
//!
//! | keys | creates/s | CPU per create | written per create | longest commit | own memory | on disk per record |
//! |---|---|---|---|---|---|---|
//! | clustered | 320–440 k | 1.3–2.6 µs | 0.9 KB | 0.09 s | 44 MiB | 205 B |
//! | random | 45–130 k | 5–13 µs | 7–33 KB, with the size of the store | 0.8 s | 82 MiB | 222 B |
//!
//! Scans read 8–14 M records/s, a get takes 1–2 µs, opening 0.8 ms.
//!
//! # Undetected damage
//! Records have checksums, LMDB's own pages do not. A corrupted tree page may show as an LMDB error, as missing records, or
//! as a signal. A page that cannot be read is a signal, too. Such a signal ends the process with a message (`fault`).

use crate::error::{from_errno, from_heed, from_io, place};
use crate::fault::{self, DamageReport};
use crate::lock::DirectoryLock;
use crate::reserve::Reserve;
use crate::verify::Tree;
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, MdbError, RoTxn, WithoutTls};
use rustix::io::FdFlags;
use std::ops::Bound;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use store::{
    Change, Damage, Damaged, Engine, EngineError, KEY_LEN_MAX, Key, KeyRange, Scanned, Space, Value, Verified,
};

const DATA_FILE: &str = "data.mdb";
const MIB: u64 = 1 << 20;

/// The prefix that separates the engine's keys from the store's, and the key of the engine's own record.
const OWN_KEYS: [u8; 2] = [0xff, 0xff];
const LAST_GROUP_KEY: &[u8] = b"\xff\xffgroup";

/// The most that a scan returns, in bytes, so that a call holds neither a transaction for long nor much memory.
const SCAN_BYTES_MAX: usize = 4 << 20;

/// The longest hole at the end of the data file that stays there after a commit.
const HOLE_MAX: u64 = 8 * MIB;

/// How to open a store.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// The initial size of the map, in bytes; it grows with the store.
    pub map_size: u64,
    /// Refuse changes, need no permission to write, and share the store with other readers.
    pub read_only: bool,
    /// With `read_only`: also open a store that another process is writing to. Each read sees the last commit.
    pub beside_writer: bool,
    /// Make the directory and an empty store if there is none.
    pub create: bool,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions { map_size: 64 << 30, read_only: false, beside_writer: false, create: false }
    }
}

/// A store in a directory.
pub struct LmdbEngine {
    dir: PathBuf,
    /// The data file, kept open so that a commit needs no new descriptor; `None` for a read-only store.
    data_file: Option<std::fs::File>,
    /// Its length, with the hole at its end.
    file_length: AtomicU64,
    /// The last group that this engine has committed, or has found.
    last_group: AtomicU64,
    read_only: bool,
    /// The number of the disk of the directory.
    disk: u64,
    /// Locked for reading by every transaction, for writing while the map grows.
    map: RwLock<()>,
    /// Growing the map failed and it is unmapped: no transaction may start any more.
    broken: AtomicBool,
    /// The pages that the last commit may have freed and that the next one cannot reuse yet.
    fresh_pages: AtomicU64,
    reserve: Reserve,
    damage_report: DamageReport,
    db: Database<'static, Bytes, Bytes>,
    // The order matters: the environment is closed before the directory is unlocked.
    env: Env<WithoutTls>,
    _lock: DirectoryLock,
}

impl LmdbEngine {
    /// Whether there is a store in `dir`.
    pub fn exists(dir: &Path) -> bool {
        dir.join(DATA_FILE).exists()
    }

    /// Opens the store in `dir`.
    pub fn open(dir: &Path, options: OpenOptions) -> Result<LmdbEngine, EngineError> {
        let is_new = !LmdbEngine::exists(dir);
        if is_new && (options.read_only || !options.create) {
            return Err(EngineError::Missing { place: place(dir) });
        }
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(|error| from_io(dir, "make the directory", &error))?;
        let lock = match options.read_only && options.beside_writer {
            true => DirectoryLock::none(),
            false => DirectoryLock::take(dir, options.read_only)?,
        };
        if !is_new {
            check_length(dir, 1)?;
        }
        fault::watch();
        let damage_report = DamageReport::new(dir);
        let opening = damage_report.inside();
        let env = open_env(dir, &options)?;
        close_on_exec(&dir.join(DATA_FILE)).map_err(|error| from_io(dir, "look at the data file", &error))?;
        damage_report.find_map(&dir.join(DATA_FILE));
        if !is_new {
            let page = u64::from(env.unnamed_database_stat().page_size);
            check_length(dir, (env.info().last_page_number as u64 + 1) * page)?;
        }
        let db = open_database(&env, options.read_only).map_err(|error| from_heed(dir, "open the database", error))?;
        drop(opening);
        let data_file = match options.read_only {
            true => None,
            false => Some(
                std::fs::File::options()
                    .write(true)
                    .open(dir.join(DATA_FILE))
                    .map_err(|error| from_io(dir, "open the data file", &error))?,
            ),
        };
        let engine = LmdbEngine {
            dir: dir.to_owned(),
            file_length: AtomicU64::new(std::fs::metadata(dir.join(DATA_FILE)).map_or(0, |file| file.len())),
            data_file,
            last_group: AtomicU64::new(0),
            read_only: options.read_only,
            disk: crate::disk_number(dir).map_err(|errno| from_errno(dir, "ask for its disk", errno))?,
            map: RwLock::new(()),
            broken: AtomicBool::new(false),
            fresh_pages: AtomicU64::new(0),
            reserve: Reserve::open(dir, medium(dir).map_or(0, |medium| medium.kept)),
            damage_report,
            db,
            env,
            _lock: lock,
        };
        if !options.read_only {
            fill_lock_file(dir);
        }
        if is_new {
            sync_names(dir)?;
        }
        engine.last_group.store(engine.last_group()?, Relaxed);
        if !engine.read_only {
            engine.restore_reserve();
        }
        Ok(engine)
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The current size of the map, in bytes.
    pub fn map_size(&self) -> u64 {
        self.env.info().map_size as u64
    }

    fn failed(&self, doing: &str) -> impl Fn(heed::Error) -> EngineError {
        move |error| from_heed(&self.dir, doing, error)
    }

    /// The length that the data file must have after its last transaction.
    fn length(&self) -> u64 {
        (self.env.info().last_page_number as u64 + 1) * u64::from(self.env.unnamed_database_stat().page_size)
    }

    /// Makes the data file longer by a hole at its end, or shorter, if it has not `room` after its last page, or much more.
    ///
    /// LMDB does not write pages that a transaction allocated and freed again, so the file could end before its last page and
    /// look like a truncated one. So the file is made long enough before a commit, which also makes the length durable. It
    /// stays longer than its pages by up to [`HOLE_MAX`], so that a small commit need not change the length; closing cuts it.
    fn keep_room(&self, room: u64) -> Result<(), EngineError> {
        let Some(file) = &self.data_file else { return Ok(()) };
        let (used, length) = (self.length(), self.file_length.load(Relaxed));
        if (used + room..=used + room.max(HOLE_MAX)).contains(&length) {
            return Ok(());
        }
        let wanted = used + room.max(HOLE_MAX);
        file.set_len(wanted).map_err(|error| from_io(&self.dir, "set the length of the data file", &error))?;
        self.file_length.store(wanted, Relaxed);
        Ok(())
    }

    /// Keeps the map from growing while a transaction is open.
    fn hold_map(&self) -> Result<RwLockReadGuard<'_, ()>, EngineError> {
        let guard = self.map.read().unwrap_or_else(PoisonError::into_inner);
        if self.broken.load(Relaxed) {
            let what = "the memory map could not be made larger".to_owned();
            return Err(EngineError::Io { place: place(&self.dir), what });
        }
        Ok(guard)
    }

    /// Runs `what` in a read transaction.
    fn reading<T>(
        &self,
        what: impl FnOnce(&RoTxn<'_, WithoutTls>) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let _map = self.hold_map()?;
        let _inside = self.damage_report.inside();
        let txn = self.env.read_txn().map_err(self.failed("begin to read"))?;
        what(&txn)
    }

    fn find(&self, txn: &RoTxn<'_, WithoutTls>, key: &Key) -> Result<Option<Value>, EngineError> {
        if key.is_empty() || key.len() > KEY_LEN_MAX || key.starts_with(&OWN_KEYS) {
            return Ok(None);
        }
        let found = self.db.get(txn, key).map_err(self.failed("read"))?;
        Ok(found.map(Value::copy_from_slice))
    }

    /// Makes one attempt to commit a group.
    fn try_commit(&self, group: u64, records: &[Change]) -> heed::Result<()> {
        let _inside = self.damage_report.inside();
        let mut txn = self.env.write_txn()?;
        for (key, value) in records {
            match value {
                Some(value) => self.db.put(&mut txn, key, value)?,
                None => drop(self.db.delete(&mut txn, key)?),
            }
        }
        let own = Key::new(LAST_GROUP_KEY);
        self.db.put(&mut txn, &own, &store::seal(&own, 1, &group.to_le_bytes()))?;
        txn.commit()
    }

    /// Fills the reserve again, if the medium has space.
    fn restore_reserve(&self) {
        if self.reserve.is_short()
            && let Ok(medium) = medium(&self.dir)
        {
            self.reserve.restore(medium.available, medium.kept);
        }
    }

    /// Doubles the map.
    #[allow(unsafe_code)] // the map moves: sound because no transaction lives while the lock is held for writing
    fn grow(&self) -> Result<(), EngineError> {
        let _map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let size = self.env.info().map_size;
        let grown = size.checked_mul(2).ok_or(heed::Error::Mdb(MdbError::MapFull));
        grown.and_then(|size| unsafe { self.env.resize(size) }).map_err(|error| {
            self.broken.store(true, Relaxed);
            from_heed(&self.dir, "make the memory map larger", error)
        })?;
        self.damage_report.find_map(&self.dir.join(DATA_FILE));
        Ok(())
    }

    /// Converts the error of a failed write. If a full disk cuts a write short, LMDB reports an I/O error.
    fn write_failed(&self, error: heed::Error) -> EngineError {
        let error = from_heed(&self.dir, "write a group", error);
        let is_full = || rustix::fs::statvfs(&self.dir).is_ok_and(|medium| medium.f_bavail * medium.f_frsize < MIB);
        match error {
            EngineError::Io { place, .. } if is_full() => {
                EngineError::Full { place, what: "write a group: the disk is full".into() }
            }
            error => error,
        }
    }

    /// Unused bytes in the data file that the next commit can use.
    fn unused(&self) -> u64 {
        let stat = self.env.unnamed_database_stat();
        let used = (stat.branch_pages + stat.leaf_pages + stat.overflow_pages) as u64;
        let all = self.env.info().last_page_number as u64 + 1;
        let unused = all.saturating_sub(used + 2);
        // The list of unused pages takes pages itself.
        let usable = unused.saturating_sub(self.fresh_pages.load(Relaxed) + unused / 256 + 8);
        // After a failed commit the file may be longer than its last page.
        let file = std::fs::metadata(self.dir.join(DATA_FILE)).map_or(0, |file| file.len().min(file.blocks() * 512));
        usable * u64::from(stat.page_size) + file.saturating_sub(all * u64::from(stat.page_size))
    }
}

impl Drop for LmdbEngine {
    /// Cuts the data file to its proper length.
    fn drop(&mut self) {
        if let (Some(file), false) = (&self.data_file, self.broken.load(Relaxed)) {
            // If the medium refuses it, the file only stays longer.
            let _ = file.set_len(self.length());
        }
    }
}

#[allow(unsafe_code)] // the file is mapped: sound because the directory is locked, so nobody else changes it
fn open_env(dir: &Path, options: &OpenOptions) -> Result<Env<WithoutTls>, EngineError> {
    let mut flags = EnvFlags::NO_READ_AHEAD;
    flags.set(EnvFlags::READ_ONLY, options.read_only);
    let mut open = EnvOpenOptions::new().read_txn_without_tls();
    open.max_readers(510);
    unsafe { open.flags(flags) };
    let mut map_size = options.map_size.max(MIB).next_multiple_of(MIB);
    loop {
        open.map_size(usize::try_from(map_size).unwrap_or(usize::MAX & !(MIB as usize - 1)));
        match unsafe { open.open(dir) } {
            // The address space of the process is limited: try a smaller map.
            Err(heed::Error::Io(error)) if out_of_memory(&error) && map_size > 64 * MIB => {
                map_size = (map_size / 2).next_multiple_of(MIB);
            }
            opened => return opened.map_err(|error| from_heed(dir, "open the data file", error)),
        }
    }
}

/// Sets close-on-exec on LMDB's descriptor of the data file. Otherwise the programs that this process starts would keep the file
/// open for writing, and its disk could not be unmounted or made read-only before they have all exited.
#[allow(unsafe_code)] // a descriptor by its number: it is ours, and all of ours may have this flag
fn close_on_exec(data_file: &Path) -> std::io::Result<()> {
    let wanted = std::fs::metadata(data_file)?;
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let is_it = rustix::fs::fstat(fd).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (wanted.dev(), wanted.ino()));
        if is_it {
            rustix::io::fcntl_setfd(fd, FdFlags::CLOEXEC)?;
        }
    }
    Ok(())
}

fn out_of_memory(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NOMEM.raw_os_error())
}

fn open_database(env: &Env<WithoutTls>, read_only: bool) -> heed::Result<Database<'static, Bytes, Bytes>> {
    if read_only {
        let opened = env.open_databases_and_commit(env.read_txn()?, |opener, txn| {
            opener.open_database(txn, None).map(CommitOrAbort::<_, ()>::Commit)
        })?;
        opened.unwrap_commit().ok_or(heed::Error::Mdb(MdbError::Invalid))
    } else {
        let opened = env.create_databases_and_commit(env.write_txn()?, |opener, txn| {
            opener.create_database(txn, None).map(CommitOrAbort::<_, ()>::Commit)
        })?;
        Ok(opened.unwrap_commit())
    }
}

/// An upper bound of the pages that a commit takes, in bytes: a path of pages for each record, and the list of free pages.
fn room_at_most(records: &[Change]) -> u64 {
    (records.len() as u64 * 8 + 1024) * 4096 + bytes_of(records) * 2
}

fn bytes_of(records: &[Change]) -> u64 {
    records.iter().filter_map(|(_, value)| value.as_ref()).map(|value| value.len() as u64).sum()
}

/// The space of the medium of a store, in bytes.
struct Medium {
    total: u64,
    available: u64,
    /// The reserve, so that removals work on a full disk.
    kept: u64,
}

fn medium(dir: &Path) -> Result<Medium, EngineError> {
    let medium = rustix::fs::statvfs(dir).map_err(|errno| from_errno(dir, "ask for space", errno))?;
    let total = medium.f_blocks * medium.f_frsize;
    let kept = (total / 20).clamp(4 * MIB, 256 * MIB);
    Ok(Medium { total, available: medium.f_bavail * medium.f_frsize, kept })
}

/// Checks the length of the data file, because reading a mapped page past its end would kill the process.
fn check_length(dir: &Path, expected: u64) -> Result<(), EngineError> {
    let path = dir.join(DATA_FILE);
    let length = std::fs::metadata(&path).map_err(|error| from_io(dir, "look at the data file", &error))?.len();
    if length < expected {
        let what = format!("{DATA_FILE} has {length} bytes and should have at least {expected}");
        return Err(EngineError::Corrupt { place: place(dir), what });
    }
    Ok(())
}

/// Allocates the blocks of LMDB's table of readers: it is written through a map, so a full disk would kill the process.
fn fill_lock_file(dir: &Path) {
    if let Ok(file) = std::fs::File::options().write(true).open(dir.join("lock.mdb"))
        && let Ok(length) = file.metadata().map(|file| file.len())
    {
        // Errors are ignored: if the medium cannot do this, nothing is lost.
        let _ = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, length);
    }
}

/// Makes the names of the new files, and of the directory itself, durable.
fn sync_names(dir: &Path) -> Result<(), EngineError> {
    let sync = |dir: &Path| std::fs::File::open(dir).and_then(|dir| dir.sync_all());
    sync(dir).map_err(|error| from_io(dir, "sync the directory", &error))?;
    // The permission to read the directory above may be missing. Then the name becomes durable when the system writes it.
    match dir.canonicalize().ok().as_deref().and_then(Path::parent).map(sync) {
        Some(Err(error)) if error.kind() != std::io::ErrorKind::PermissionDenied => {
            Err(from_io(dir, "sync the directory above", &error))
        }
        _ => Ok(()),
    }
}

impl Engine for LmdbEngine {
    fn get(&self, key: &Key) -> Result<Option<Value>, EngineError> {
        self.reading(|txn| self.find(txn, key))
    }

    fn get_many(&self, keys: &[Key]) -> Vec<Result<Option<Value>, EngineError>> {
        let read_all = |txn: &RoTxn<'_, WithoutTls>| Ok(keys.iter().map(|key| self.find(txn, key)).collect());
        self.reading(read_all).unwrap_or_else(|error| vec![Err(error); keys.len()])
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Scanned, EngineError> {
        let end: &[u8] = range.end.as_slice().min(&OWN_KEYS);
        let start = range.start.as_slice();
        if start >= end {
            return Ok(Scanned { records: Vec::new(), complete: true });
        }
        // LMDB has no empty keys. All keys sort after the empty one.
        let start = if start.is_empty() { Bound::Unbounded } else { Bound::Included(start) };
        self.reading(|txn| {
            let mut scanned = Scanned { records: Vec::new(), complete: true };
            let mut bytes = 0;
            for found in self.db.range(txn, &(start, Bound::Excluded(end))).map_err(self.failed("scan"))? {
                let (key, value) = found.map_err(self.failed("scan"))?;
                if scanned.records.len() >= limit || bytes >= SCAN_BYTES_MAX {
                    scanned.complete = false;
                    break;
                }
                bytes += key.len() + value.len();
                scanned.records.push((Key::new(key), Value::copy_from_slice(value)));
            }
            Ok(scanned)
        })
    }

    fn commit(&self, group: u64, records: &[Change]) -> Result<(), EngineError> {
        if self.read_only {
            let what = "it was opened for reading".to_owned();
            return Err(EngineError::ReadOnly { place: place(&self.dir), what });
        }
        let refuse = |what: String| Err(EngineError::Io { place: place(&self.dir), what });
        let last = self.last_group.load(Relaxed);
        if group <= last {
            return refuse(format!("group {group} came after group {last}"));
        }
        let allowed = |key: &Key| !key.is_empty() && key.len() <= KEY_LEN_MAX && !key.starts_with(&OWN_KEYS);
        if let Some((key, _)) = records.iter().find(|(key, _)| !allowed(key)) {
            return refuse(format!("{key} cannot be a key"));
        }
        loop {
            let map = self.hold_map()?;
            // Errors are ignored: if there is no space, the commit reports it better.
            let _ = self.keep_room(room_at_most(records));
            match self.try_commit(group, records) {
                Ok(()) => break,
                Err(heed::Error::Mdb(MdbError::MapFull)) => {
                    drop(map);
                    self.grow()?;
                }
                Err(error) => match self.write_failed(error) {
                    EngineError::Full { .. } if self.reserve.give_up(bytes_of(records)) => {}
                    error => return Err(error),
                },
            }
        }
        self.restore_reserve();
        self.fresh_pages.store(records.len() as u64 * 2, Relaxed);
        self.last_group.store(group, Relaxed);
        self.keep_room(0)
    }

    fn last_group(&self) -> Result<u64, EngineError> {
        self.reading(|txn| {
            let key = Key::new(LAST_GROUP_KEY);
            let Some(sealed) = self.db.get(txn, &key).map_err(self.failed("read the last group"))? else {
                return Ok(0);
            };
            let (_, body) = store::open(&key, &Value::copy_from_slice(sealed))?;
            let bytes = body[..].try_into().map_err(|_| Damaged { key, what: Damage::TooShort { len: body.len() } })?;
            Ok(u64::from_le_bytes(bytes))
        })
    }

    fn verify(&self, from: &Key, bytes: usize) -> Result<Verified, EngineError> {
        let path = self.dir.join(DATA_FILE);
        let file = std::fs::File::open(path).map_err(|error| from_io(&self.dir, "open the data file", &error))?;
        let page_size = self.env.unnamed_database_stat().page_size as usize;
        self.reading(|txn| {
            let Some(tree) = Tree::of(&file, page_size, txn.id() as u64) else {
                // There are no records, or two groups were committed since: the next call tries again.
                let next = (!from.is_empty()).then(|| from.clone());
                return Ok(Verified { next, damage: Vec::new() });
            };
            let step = tree.verify(from, bytes);
            Ok(Verified { next: step.next, damage: step.finds })
        })
    }

    fn space(&self) -> Result<Space, EngineError> {
        let medium = medium(&self.dir)?;
        let (records, unused) = self.reading(|txn| {
            let all = self.db.len(txn).map_err(self.failed("count"))?;
            let own = self.db.get(txn, LAST_GROUP_KEY).map_err(self.failed("read the last group"))?;
            Ok((all - u64::from(own.is_some()), self.unused()))
        })?;
        let held = self.reserve.held();
        let left = medium.available + held + unused;
        let reserve = medium.kept.min(left);
        // Unused pages are fragmented, so a group may count on only a part of them, and on one half of the reserve file.
        let at_once = medium.available + held / 2 + unused / 8;
        Ok(Space { total: medium.total, free: left - reserve, reserve, at_once, records, disk: self.disk })
    }
}
