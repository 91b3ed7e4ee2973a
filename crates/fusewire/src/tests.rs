//! Requests byte by byte, answers byte by byte, and real mounts over both transports.

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use rustix::mount::MountFlags;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::reply::Channel;
use crate::request::Refused;
use crate::*;

fn whole(opcode: u32, record: &[u8], rest: &[u8]) -> Vec<u8> {
    let len = (size_of::<abi::InHeader>() + record.len() + rest.len()) as u32;
    let header =
        abi::InHeader { len, opcode, unique: 7, nodeid: 3, uid: 1000, gid: 100, pid: 42, ..Default::default() };
    [header.as_bytes(), record, rest].concat()
}

#[track_caller]
fn parsed(bytes: &[u8]) -> Operation<'_> {
    let (_, request) = Request::parse_whole(bytes).unwrap_or_else(|_| panic!("no header"));
    let request = request.unwrap_or_else(|error| panic!("{error:?}"));
    assert_eq!((request.unique, request.node, request.uid, request.gid, request.pid), (7, 3, 1000, 100, 42));
    request.operation
}

#[test]
fn requests_are_taken_apart() {
    let lookup = whole(abi::LOOKUP, &[], b"name\0");
    assert_eq!(parsed(&lookup), Operation::Lookup { name: b"name" });
    let rename = abi::Rename2In { newdir: 9, flags: 2, padding: 0 };
    let rename = whole(abi::RENAME2, rename.as_bytes(), b"old\0new\0");
    let wanted = Operation::Rename { name: b"old", new_parent: 9, new_name: b"new", flags: 2 };
    assert_eq!(parsed(&rename), wanted);
    let write = abi::WriteIn { fh: 5, offset: 4096, size: 3, write_flags: abi::WRITE_CACHE, ..Default::default() };
    let write = whole(abi::WRITE, write.as_bytes(), b"abc");
    let wanted = Operation::Write { fh: 5, offset: 4096, data: b"abc", cached: true, kill_priv: false };
    assert_eq!(parsed(&write), wanted);
    let forget = [
        abi::BatchForgetIn { count: 2, dummy: 0 }.as_bytes(),
        abi::ForgetOne { nodeid: 4, nlookup: 1 }.as_bytes(),
        abi::ForgetOne { nodeid: 5, nlookup: 2 }.as_bytes(),
    ];
    let forget = whole(abi::BATCH_FORGET, forget[0], &forget[1..].concat());
    assert_eq!(parsed(&forget), Operation::BatchForget { nodes: vec![(4, 1), (5, 2)] });
    let lock = abi::FileLockRecord { start: 1, end: 2, kind: libc::F_WRLCK as u32, pid: 42 };
    let lock = abi::LkIn { fh: 5, owner: 6, lk: lock, lk_flags: abi::LK_FLOCK, padding: 0 };
    let lock = whole(abi::SETLKW, lock.as_bytes(), &[]);
    let held = FileLock { start: 1, end: 2, kind: libc::F_WRLCK, pid: 42 };
    let wanted = Operation::Setlk { fh: 5, owner: 6, lock: held, flock: true, wait: true };
    assert_eq!(parsed(&lock), wanted);
    let value = whole(abi::SETXATTR, abi::SetxattrIn { size: 2, flags: 1 }.as_bytes(), b"user.a\0xy");
    assert_eq!(parsed(&value), Operation::Setxattr { name: b"user.a", value: b"xy", flags: 1 });
}

#[test]
fn times_and_what_is_not_set() {
    use abi::setattr as bit;
    let record = abi::SetattrIn {
        valid: bit::ATIME | bit::MTIME | bit::MTIME_NOW | bit::UID,
        atime: -2i64 as u64,
        atime_ns: 500_000_000,
        uid: 12,
        mode: 0o777,
        ..Default::default()
    };
    let bytes = whole(abi::SETATTR, record.as_bytes(), &[]);
    let Operation::Setattr { set } = parsed(&bytes) else { panic!("another operation") };
    assert_eq!(set.atime.and_then(TimeChange::ns), Some(-1_500_000_000));
    let set = SetAttr { atime: None, ..set };
    assert_eq!(set, SetAttr { uid: Some(12), mtime: Some(TimeChange::Now), ..SetAttr::default() });
}

/// Truncated requests are refused, and never read beyond their end.
#[test]
fn broken_requests_are_refused() {
    let records: [(u32, Vec<u8>, &[u8]); 5] = [
        (abi::LOOKUP, vec![], b"name"),
        (abi::WRITE, abi::WriteIn { size: 4, ..Default::default() }.as_bytes().to_vec(), b"abc"),
        (abi::SETXATTR, abi::SetxattrIn { size: 9, flags: 0 }.as_bytes().to_vec(), b"n\0v"),
        (abi::BATCH_FORGET, abi::BatchForgetIn { count: u32::MAX, dummy: 0 }.as_bytes().to_vec(), &[0; 32]),
        (abi::IOCTL, abi::IoctlIn { in_size: 1, ..Default::default() }.as_bytes().to_vec(), &[]),
    ];
    for (opcode, record, rest) in records {
        let bytes = whole(opcode, &record, rest);
        let Ok((_, request)) = Request::parse_whole(&bytes) else { panic!("{opcode}: no header") };
        assert_eq!(request, Err(Refused(libc::EIO)), "operation {opcode}");
    }
    let unknown = whole(4000, &[], &[]);
    assert!(matches!(Request::parse_whole(&unknown), Ok((_, Err(Refused(libc::ENOSYS))))));
    let whole = whole(abi::GETATTR, abi::GetattrIn::default().as_bytes(), &[]);
    for length in 0..whole.len() {
        assert!(Request::parse_whole(&whole[..length]).is_err(), "{length} bytes");
    }
}

fn answered(answer: impl FnOnce(Reply)) -> (u64, i32, Vec<u8>) {
    let (sender, receiver) = mpsc::channel();
    answer(Reply::new(9, Channel::Test(sender)));
    let first = receiver.recv().expect("an answer");
    assert!(receiver.recv().is_err(), "answered twice");
    first
}

fn read<T: FromBytes + Immutable>(bytes: &[u8]) -> T {
    T::read_from_bytes(bytes).unwrap_or_else(|_| panic!("{} bytes", bytes.len()))
}

#[test]
fn answers_have_the_kernels_form() {
    let attr = Attr { ino: 3, size: 10, mtime_ns: -1, mode: libc::S_IFREG | 0o644, nlink: 1, ..Attr::default() };
    let entry = Entry { node: attr.ino, attr, entry_valid: Duration::from_millis(1500), attr_valid: Duration::ZERO };
    let (unique, errno, bytes) = answered(|reply| reply.entry(&entry));
    let record: abi::EntryOut = read(&bytes);
    assert_eq!((unique, errno, record.nodeid, record.entry_valid, record.entry_valid_ns), (9, 0, 3, 1, 500_000_000));
    assert_eq!((record.attr.mtime as i64, record.attr.mtime_ns), (-1, 999_999_999), "before 1970");
    let (_, _, bytes) = answered(|reply| reply.created(&entry, 4, abi::open::DIRECT_IO));
    let open: abi::OpenOut = read(&bytes[size_of::<abi::EntryOut>()..]);
    assert_eq!((open.fh, open.open_flags), (4, abi::open::DIRECT_IO));
    assert_eq!(answered(|reply| reply.error(libc::ENOENT)), (9, libc::ENOENT, vec![]));
    assert_eq!(answered(drop), (9, libc::EIO, vec![]), "a reply that is forgotten");
}

#[test]
fn a_listing_holds_what_fits() {
    let mut listing = Listing::new(64);
    assert!(listing.add(5, 1, 8, b"a"), "32 bytes: 24 and a padded name");
    assert!(listing.add(6, 2, 8, b"12345678"), "another 32");
    assert!(!listing.add(7, 3, 8, b""), "full");
    let (_, _, bytes) = answered(|reply| reply.listing(&listing));
    let second: abi::Dirent = read(&bytes[32..56]);
    assert_eq!((bytes.len(), second.ino, second.namelen), (64, 6, 8));
}

type File = (Vec<u8>, Vec<u8>);

fn later(answer: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        answer();
    });
}

/// A flat file system in memory. Reads and writes of the file `slow`, and writes of those called `late…`, are answered by
/// another thread, later.
struct Flat {
    /// Names and data.
    files: Mutex<HashMap<u64, File>>,
    next: AtomicU64,
}

impl Flat {
    fn attr(&self, ino: u64, size: u64) -> Attr {
        let mode = if ino == abi::ROOT { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o644 };
        Attr { ino, size, mode, nlink: 1, blksize: 4096, ..Attr::default() }
    }

    fn entry(&self, ino: u64, size: u64) -> Entry {
        Entry { node: ino, attr: self.attr(ino, size), entry_valid: Duration::ZERO, attr_valid: Duration::ZERO }
    }
}

impl Handler for Flat {
    fn handle(&self, incoming: Incoming<'_>) {
        let mut files = self.files.lock().unwrap();
        let ino = incoming.request().node;
        match &incoming.request().operation {
            Operation::Lookup { name } => match files.iter().find(|(_, (known, _))| known == name) {
                Some((ino, (_, data))) => incoming.into_reply().entry(&self.entry(*ino, data.len() as u64)),
                None => incoming.into_reply().error(libc::ENOENT),
            },
            Operation::Getattr { .. } => {
                let size = files.get(&ino).map_or(0, |(_, data)| data.len() as u64);
                incoming.into_reply().attr(&self.attr(ino, size), Duration::ZERO);
            }
            Operation::Create { name, .. } => {
                let ino = self.next.fetch_add(1, Ordering::Relaxed);
                files.insert(ino, (name.to_vec(), Vec::new()));
                incoming.into_reply().created(&self.entry(ino, 0), 1, 0);
            }
            Operation::Write { offset, data, .. } => {
                let Some((name, all)) = files.get_mut(&ino) else { return incoming.into_reply().error(libc::ENOENT) };
                let end = *offset as usize + data.len();
                all.resize(all.len().max(end), 0);
                all[*offset as usize..end].copy_from_slice(data);
                let written = data.len() as u32;
                if name == b"slow" || name.starts_with(b"late") {
                    let reply = incoming.into_reply();
                    later(move || reply.written(written));
                } else {
                    incoming.into_reply().written(written);
                }
            }
            Operation::Read { offset, size, .. } => {
                let Some((name, all)) = files.get(&ino) else { return incoming.into_reply().error(libc::ENOENT) };
                let start = all.len().min(*offset as usize);
                let data = all[start..all.len().min(start + *size as usize)].to_vec();
                if name == b"slow" {
                    let reply = incoming.into_reply();
                    later(move || reply.data(&data));
                } else {
                    incoming.into_reply().data(&data);
                }
            }
            Operation::Open { .. } | Operation::Opendir { .. } => incoming.into_reply().opened(1, 0),
            Operation::Flush { .. } | Operation::Release { .. } | Operation::Fsync { .. } => incoming.into_reply().ok(),
            // The program waits for this request until the session answers it with an error.
            Operation::Statfs => drop(incoming.into_reply()),
            _ => incoming.into_reply().error(libc::ENOSYS),
        }
    }
}

/// Mounts one, or prints why it cannot; then the test is skipped.
fn mount(directory: &Path, uring: bool) -> Option<Session> {
    let flat = Flat { files: Mutex::default(), next: AtomicU64::new(2) };
    let options = Options { uring, queue_depth: 16, ..Options::default() };
    mount_with(directory, &options, Arc::new(flat))
}

/// The same with any handler.
fn mount_with(directory: &Path, options: &Options, handler: Arc<dyn Handler>) -> Option<Session> {
    let place = Mountpoint { directory, source: "flat", kind: "flat", flags: MountFlags::NODEV, allow_other: false };
    match Session::mount(&place, options, handler) {
        Ok(session) if options.uring && !matches!(session.transport(), Transport::Uring(_)) => {
            eprintln!("skipped: no FUSE over io_uring here");
            unmount(directory).unwrap();
            session.join().unwrap();
            None
        }
        Ok(session) => Some(session),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// A mount that is unmounted before it is served ends without an error.
#[test]
fn unmounted_at_once() {
    let place = tempfile::tempdir().unwrap();
    let flat = Flat { files: Mutex::default(), next: AtomicU64::new(2) };
    let mount = Mountpoint {
        directory: place.path(),
        source: "flat",
        kind: "flat",
        flags: MountFlags::NODEV,
        allow_other: false,
    };
    let Ok(device) = mount.mount() else { return eprintln!("skipped: no mounts here") };
    unmount(place.path()).unwrap();
    Session::start(device, &Options::default(), Arc::new(flat)).unwrap().join().unwrap();
}

fn a_life(uring: bool) {
    let place = tempfile::tempdir().unwrap();
    let Some(session) = mount(place.path(), uring) else { return };
    let big: Vec<u8> = (0..5_000_000u32).map(|i| (i * 7 % 251) as u8).collect();
    fs::write(place.path().join("big"), &big).unwrap();
    assert_eq!(fs::metadata(place.path().join("big")).unwrap().size(), big.len() as u64);
    assert!(session.notifier().inval_inode(2, 0, 0), "the kernel knows the node");
    assert!(fs::read(place.path().join("big")).unwrap() == big, "what was written is read");
    // More readers than processors, whose answers arrive late and from other threads.
    fs::write(place.path().join("slow"), b"0123456789").unwrap();
    session.notifier().inval_inode(3, 0, 0);
    std::thread::scope(|scope| {
        for at in 0..8u64 {
            let path = place.path().join("slow");
            scope.spawn(move || {
                let mut file = fs::File::open(path).unwrap();
                file.seek(SeekFrom::Start(at)).unwrap();
                let mut byte = [0];
                file.read_exact(&mut byte).unwrap();
                assert_eq!(byte[0], b'0' + at as u8);
            });
        }
    });
    fs::File::options().append(true).open(place.path().join("slow")).unwrap().write_all(b"x").unwrap();
    assert!(fs::metadata(place.path().join("none")).is_err());
    assert!(session.notifier().inval_entry(abi::ROOT, b"slow"));
    let open = fs::File::open(place.path().join("big")).unwrap();
    if session.notifier().prune(&[2, 99]) {
        assert!(session.notifier().inval_inode(2, -1, 0), "it is open");
        drop(open);
        // The kernel releases a closed file a moment later.
        let start = Instant::now();
        while session.notifier().prune(&[2]) && session.notifier().inval_inode(2, -1, 0) {
            assert!(start.elapsed() < Duration::from_secs(10), "it is still there");
            std::thread::sleep(Duration::from_millis(1));
        }
    } else {
        eprintln!("skipped: this kernel cannot prune");
    }
    let forgotten = rustix::fs::statvfs(place.path()).map(|_| ());
    assert_eq!(forgotten, Err(rustix::io::Errno::IO), "a forgotten reply");
    unmount(place.path()).unwrap();
    session.join().unwrap();
}

#[test]
fn a_life_over_the_device() {
    a_life(false);
}

#[test]
fn a_life_over_io_uring() {
    a_life(true);
}

fn stay_on(cpu: usize) {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(cpu);
    rustix::thread::sched_setaffinity(None, &cpus).unwrap();
}

/// An entry that is sent back may get a new request at once, if more wait than there are entries: its memory is kept.
#[test]
fn requests_that_waited_for_an_entry_are_whole() {
    let place = tempfile::tempdir().unwrap();
    let Some(session) = mount(place.path(), true) else { return };
    let data = |writer: u8| vec![writer + 1; 1 << 20];
    std::thread::scope(|scope| {
        for writer in 0..60u8 {
            let mut file = fs::File::create(place.path().join(format!("late{writer}"))).unwrap();
            scope.spawn(move || {
                stay_on(0);
                file.write_all(&data(writer)).unwrap();
            });
        }
    });
    for writer in 0..60 {
        let read = fs::read(place.path().join(format!("late{writer}"))).unwrap();
        assert!(read == data(writer), "what writer {writer} wrote is not there");
    }
    unmount(place.path()).unwrap();
    session.join().unwrap();
}

/// Keeps the replies of STATFS forever; asks its thread to wait, but has no companion.
#[derive(Default)]
struct Keeper {
    kept: Mutex<Vec<Reply>>,
    keeps: bool,
}

impl Handler for Keeper {
    fn handle(&self, incoming: Incoming<'_>) {
        match &incoming.request().operation {
            Operation::Statfs if self.keeps => self.kept.lock().unwrap().push(incoming.into_reply()),
            _ => incoming.into_reply().error(libc::ENOSYS),
        }
    }

    fn attend(&self, _attending: bool, _called: &mut dyn FnMut() -> bool) -> Attend {
        Attend::Wait
    }
}

/// Threads without an entry in the kernel notice the end of the session, too.
#[test]
fn a_forced_unmount_ends_threads_whose_requests_all_wait() {
    let place = tempfile::tempdir().unwrap();
    let keeper = Arc::new(Keeper { keeps: true, ..Keeper::default() });
    let options = Options { queue_depth: 1, ..Options::default() };
    let Some(session) = mount_with(place.path(), &options, keeper.clone()) else { return };
    let Transport::Uring(queues) = session.transport() else { return };
    let cpus = std::thread::available_parallelism().unwrap().get().min(queues);
    let callers: Vec<_> = (0..cpus)
        .map(|cpu| {
            let path = place.path().to_owned();
            std::thread::spawn(move || {
                stay_on(cpu);
                rustix::fs::statvfs(&path).map(drop)
            })
        })
        .collect();
    let start = Instant::now();
    while keeper.kept.lock().unwrap().len() < cpus {
        assert!(start.elapsed() < Duration::from_secs(10), "requests do not come");
        std::thread::sleep(Duration::from_millis(1));
    }
    let how = rustix::mount::UnmountFlags::FORCE | rustix::mount::UnmountFlags::DETACH;
    rustix::mount::unmount(place.path(), how).unwrap();
    for caller in callers {
        assert!(caller.join().unwrap().is_err());
    }
    let (joined, ended) = mpsc::channel();
    std::thread::spawn(move || joined.send(session.join().is_ok()));
    assert_eq!(ended.recv_timeout(Duration::from_secs(10)), Ok(true), "a thread still waits");
}

#[test]
fn a_thread_with_nothing_to_wait_for_takes_the_next_request() {
    let place = tempfile::tempdir().unwrap();
    let options = Options { uring: false, threads: 1, ..Options::default() };
    let Some(session) = mount_with(place.path(), &options, Arc::new(Keeper::default())) else { return };
    let (done, answered) = mpsc::channel();
    let path = place.path().to_owned();
    std::thread::spawn(move || {
        let asked: Vec<_> = (0..3).map(|_| rustix::fs::statvfs(&path).map(drop)).collect();
        let _ = done.send(asked);
    });
    let asked = answered.recv_timeout(Duration::from_secs(10));
    let how = rustix::mount::UnmountFlags::FORCE | rustix::mount::UnmountFlags::DETACH;
    rustix::mount::unmount(place.path(), how).unwrap();
    assert_eq!(asked, Ok(vec![Err(rustix::io::Errno::NOSYS); 3]));
    session.join().unwrap();
}
