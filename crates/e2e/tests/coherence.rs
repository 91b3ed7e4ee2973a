//! Two mounts of one file system: what a program does here, a program there sees, as on a local file system.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use e2e::aio::Writes;
use e2e::system::{self, Aligned, Mapping, RecordLock};
use e2e::{Cluster, Shape, Story, needs_root, trees};
use rustix::fs::{FlockOperation, RenameFlags, XattrFlags};

/// Runs a story on two mounts, once with small files and once with striped ones.
fn on_two_mounts(name: &str, story: impl Fn(&Path, &Path)) {
    if !needs_root() {
        return;
    }
    let frame = Story::begin(name, Duration::from_secs(60));
    // One of each way between kernel and client, and one that writes metadata back.
    let cluster = Cluster::start(&frame, Shape { over_device: vec![1], sync_metadata: vec![1], ..Shape::mounts(2) });
    story(cluster.mount(0), cluster.mount(1));
}

fn names(folder: &Path) -> Vec<String> {
    let mut list: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    list.sort();
    list
}

#[track_caller]
fn absent(path: &Path) {
    assert_eq!(fs::symlink_metadata(path).map_err(|error| error.kind()).err(), Some(std::io::ErrorKind::NotFound));
}

#[test]
fn names_made_here_are_seen_there() {
    on_two_mounts("names", |a, b| {
        for round in 0..30 {
            let name = format!("file{round}");
            absent(&b.join(&name));
            fs::write(a.join(&name), format!("content {round}")).unwrap();
            assert_eq!(fs::read_to_string(b.join(&name)).unwrap(), format!("content {round}"));
            assert!(names(b).contains(&name));
            fs::rename(b.join(&name), b.join("moved")).unwrap();
            absent(&a.join(&name));
            assert_eq!(fs::read_to_string(a.join("moved")).unwrap(), format!("content {round}"));
            assert_eq!(names(a), ["moved"]);
            fs::remove_file(a.join("moved")).unwrap();
            absent(&b.join("moved"));
            assert!(names(b).is_empty());
        }
        fs::create_dir(a.join("folder")).unwrap();
        fs::write(b.join("folder/x"), "x").unwrap();
        assert_eq!(fs::remove_dir(a.join("folder")).unwrap_err().raw_os_error(), Some(libc::ENOTEMPTY));
        symlink("x", a.join("folder/link")).unwrap();
        assert_eq!(fs::read_to_string(b.join("folder/link")).unwrap(), "x");
        fs::hard_link(b.join("folder/x"), b.join("hard")).unwrap();
        assert_eq!(fs::metadata(a.join("folder/x")).unwrap().nlink(), 2);
        assert_eq!(fs::metadata(a.join("hard")).unwrap().ino(), fs::metadata(b.join("folder/x")).unwrap().ino());
        fs::remove_file(a.join("folder/x")).unwrap();
        assert_eq!(fs::metadata(b.join("hard")).unwrap().nlink(), 1);
        fs::remove_file(b.join("folder/link")).unwrap();
        fs::remove_dir(b.join("folder")).unwrap();
        absent(&a.join("folder"));
        // The folder is gone here, and made anew there: another one.
        fs::create_dir(b.join("folder")).unwrap();
        assert!(names(&a.join("folder")).is_empty());
    });
}

#[test]
fn only_one_of_two_creates_wins() {
    on_two_mounts("exclusive creates", |a, b| {
        for round in 0..40 {
            let name = format!("lock{round}");
            let wins: Vec<bool> = std::thread::scope(|scope| {
                let threads = [a, b].map(|mount| {
                    let path = mount.join(&name);
                    scope.spawn(move || match File::create_new(path) {
                        Ok(_) => true,
                        Err(error) => {
                            assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
                            false
                        }
                    })
                });
                threads.map(|thread| thread.join().unwrap()).to_vec()
            });
            assert_eq!(wins.iter().filter(|won| **won).count(), 1, "round {round}");
        }
        assert_eq!(names(a), names(b));
    });
}

#[test]
fn sizes_and_times_are_right_at_once() {
    on_two_mounts("sizes and times", |a, b| {
        // Small (on the metadata target), across its limit, and striped.
        for size in [1usize, 4096, 65_536, 65_537, 3 << 20] {
            let name = format!("f{size}");
            let mut here = File::create(a.join(&name)).unwrap();
            let content = trees::bytes(size as u64, size);
            for piece in content.chunks(size.div_ceil(5)) {
                here.write_all(piece).unwrap();
                let end = here.stream_position().unwrap();
                assert_eq!(fs::metadata(b.join(&name)).unwrap().len(), end, "stat there after write here");
                let ours = here.metadata().unwrap();
                let theirs = fs::metadata(b.join(&name)).unwrap();
                assert_eq!((ours.mtime(), ours.mtime_nsec()), (theirs.mtime(), theirs.mtime_nsec()), "size {size}");
            }
            assert_eq!(fs::read(b.join(&name)).unwrap(), content);
            let before = fs::metadata(b.join(&name)).unwrap();
            std::thread::sleep(Duration::from_millis(15));
            let there = OpenOptions::new().write(true).open(b.join(&name)).unwrap();
            there.write_all_at(b"!", (size / 2) as u64).unwrap();
            let after = fs::metadata(a.join(&name)).unwrap();
            assert_eq!(after.len(), size as u64);
            assert!((after.mtime(), after.mtime_nsec()) > (before.mtime(), before.mtime_nsec()), "mtime must move");
            let mut one = [0];
            File::open(a.join(&name)).unwrap().read_exact_at(&mut one, (size / 2) as u64).unwrap();
            assert_eq!(&one, b"!");
            // Cut there, seen here, also through the open file.
            there.set_len((size / 3) as u64).unwrap();
            assert_eq!(fs::metadata(a.join(&name)).unwrap().len(), (size / 3) as u64);
            assert_eq!(here.metadata().unwrap().len(), (size / 3) as u64);
            assert_eq!(fs::read(a.join(&name)).unwrap(), &fs::read(b.join(&name)).unwrap()[..]);
        }
    });
}

#[test]
fn attributes_changed_here_are_seen_there() {
    on_two_mounts("attributes", |a, b| {
        fs::write(a.join("f"), "x").unwrap();
        for mode in [0o600, 0o755, 0o4711, 0o444] {
            fs::set_permissions(a.join("f"), PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(fs::metadata(b.join("f")).unwrap().mode() & 0o7777, mode);
        }
        // The directory that is mounted, by turns: the kernel knows it without having looked it up.
        for (mode, (here, there)) in [(0o700, (a, b)), (0o755, (b, a)), (0o711, (a, b)), (0o1777, (b, a))] {
            fs::set_permissions(here, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(fs::metadata(there).unwrap().mode() & 0o7777, mode);
        }
        std::os::unix::fs::chown(b.join("f"), Some(12), Some(34)).unwrap();
        let seen = fs::metadata(a.join("f")).unwrap();
        assert_eq!((seen.uid(), seen.gid()), (12, 34));
        let ctime = |path: PathBuf| {
            let metadata = fs::metadata(path).unwrap();
            (metadata.ctime(), metadata.ctime_nsec())
        };
        assert_eq!(ctime(a.join("f")), ctime(b.join("f")));

        for round in 0..5u8 {
            let value = [round; 20];
            rustix::fs::setxattr(a.join("f"), "user.note", &value, XattrFlags::empty()).unwrap();
            let mut found = [0; 64];
            let length = rustix::fs::getxattr(b.join("f"), "user.note", &mut found).unwrap();
            assert_eq!(&found[..length], value);
        }
        rustix::fs::removexattr(b.join("f"), "user.note").unwrap();
        let mut found = [0; 64];
        let gone = rustix::fs::getxattr(a.join("f"), "user.note", &mut found).unwrap_err();
        assert_eq!(gone, rustix::io::Errno::NODATA);
        let length = rustix::fs::listxattr(a.join("f"), &mut found).unwrap();
        assert!(!found[..length].windows(9).any(|name| name == b"user.note"));
    });
}

/// Each append lands whole and behind all earlier ones, from whichever mount.
#[test]
fn appends_from_both_never_interleave() {
    on_two_mounts("appends", |a, b| {
        for (name, length) in [("small", 40usize), ("large", 9000)] {
            File::create(a.join(name)).unwrap();
            let rounds = 150;
            std::thread::scope(|scope| {
                for (number, mount) in [a, b, a, b].into_iter().enumerate() {
                    let path = mount.join(name);
                    scope.spawn(move || {
                        let mut file = OpenOptions::new().append(true).open(path).unwrap();
                        for round in 0..rounds {
                            let mut record = format!("{number}:{round:06}:").into_bytes();
                            record.resize(length - 1, b'a' + number as u8);
                            record.push(b'\n');
                            file.write_all(&record).unwrap();
                        }
                    });
                }
            });
            let content = fs::read(b.join(name)).unwrap();
            assert_eq!(content.len(), 4 * rounds * length, "{name}");
            let mut next = [0; 4];
            for (at, record) in content.chunks(length).enumerate() {
                let number = usize::from(record[0] - b'0');
                let text = String::from_utf8_lossy(&record[..9]).into_owned();
                assert_eq!(
                    text,
                    format!("{number}:{:06}:", next[number]),
                    "{name}: record {at} is torn or out of order"
                );
                assert!(record[9..length - 1].iter().all(|byte| *byte == b'a' + number as u8), "{name}: record {at}");
                next[number] += 1;
            }
            assert_eq!(fs::read(a.join(name)).unwrap(), content);
        }
    });
}

#[test]
fn record_locks_exclude_across_mounts() {
    on_two_mounts("record locks", |a, b| {
        fs::write(a.join("f"), vec![0; 1000]).unwrap();
        let open = |mount: &Path| OpenOptions::new().read(true).write(true).open(mount.join("f")).unwrap();
        let (here, there) = (open(a), open(b));
        let busy = |result: std::io::Result<()>| {
            let errno = result.unwrap_err().raw_os_error();
            assert!(errno == Some(libc::EAGAIN) || errno == Some(libc::EACCES), "{errno:?}");
        };

        system::try_lock(&here, RecordLock::Exclusive, 100, 100).unwrap();
        busy(system::try_lock(&there, RecordLock::Exclusive, 150, 10));
        busy(system::try_lock(&there, RecordLock::Shared, 0, 0));
        system::try_lock(&there, RecordLock::Exclusive, 0, 100).unwrap();
        system::try_lock(&there, RecordLock::Exclusive, 200, 0).unwrap();
        assert_eq!(system::lock_in_the_way(&there, 0, 300).unwrap(), Some((100, 100)));
        // Half of it goes, the rest stays.
        system::try_lock(&here, RecordLock::Unlock, 100, 50).unwrap();
        system::try_lock(&there, RecordLock::Exclusive, 100, 50).unwrap();
        busy(system::try_lock(&there, RecordLock::Exclusive, 150, 1));

        // A waiter gets it when the holder closes the file, as POSIX says.
        let (sender, got) = mpsc::channel();
        std::thread::scope(|scope| {
            let there = &there;
            scope.spawn(move || {
                system::wait_lock(there, RecordLock::Exclusive, 150, 50).unwrap();
                sender.send(Instant::now()).unwrap();
            });
            std::thread::sleep(Duration::from_millis(200));
            assert!(got.try_recv().is_err(), "it must wait");
            let freed = Instant::now();
            drop(here);
            let taken = got.recv_timeout(Duration::from_secs(5)).expect("the lock");
            assert!(taken - freed < Duration::from_secs(1), "the waiter was told late: {:?}", taken - freed);
        });

        // Shared ones are shared.
        system::try_lock(&there, RecordLock::Unlock, 0, 0).unwrap();
        let here = OpenOptions::new().read(true).write(true).open(a.join("f")).unwrap();
        system::try_lock(&here, RecordLock::Shared, 0, 10).unwrap();
        system::try_lock(&there, RecordLock::Shared, 5, 10).unwrap();
        busy(system::try_lock(&here, RecordLock::Exclusive, 5, 1));
        system::try_lock(&there, RecordLock::Unlock, 0, 0).unwrap();
        system::try_lock(&here, RecordLock::Exclusive, 5, 1).unwrap();
    });
}

#[test]
fn flock_excludes_across_mounts() {
    on_two_mounts("flock", |a, b| {
        fs::write(a.join("f"), "").unwrap();
        let (here, there) = (File::open(a.join("f")).unwrap(), File::open(b.join("f")).unwrap());
        rustix::fs::flock(&here, FlockOperation::LockExclusive).unwrap();
        let busy = rustix::fs::flock(&there, FlockOperation::NonBlockingLockShared).unwrap_err();
        assert_eq!(busy, rustix::io::Errno::WOULDBLOCK);
        // Each time some further tries are made, 31 ms in all, and none of them waits for the mount's next look at the time, let alone
        // for the second that a mount which does nothing sleeps. All together, for a busy machine makes one or the other long.
        let start = Instant::now();
        for _ in 0..60 {
            rustix::fs::flock(&there, FlockOperation::NonBlockingLockShared).unwrap_err();
        }
        assert!(start.elapsed() < Duration::from_secs(5), "60 tries were refused after {:?}", start.elapsed());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                rustix::fs::flock(&there, FlockOperation::LockExclusive).unwrap();
                Instant::now()
            });
            std::thread::sleep(Duration::from_millis(200));
            assert!(!waiter.is_finished(), "it must wait");
            let freed = Instant::now();
            rustix::fs::flock(&here, FlockOperation::Unlock).unwrap();
            let taken = waiter.join().unwrap();
            assert!(taken - freed < Duration::from_secs(1), "the waiter was told late: {:?}", taken - freed);
        });
        // It goes with the last close.
        drop(there);
        rustix::fs::flock(&here, FlockOperation::NonBlockingLockExclusive).unwrap();
    });
}

/// A shared counter under a lock loses no increment.
#[test]
fn a_counter_under_a_lock() {
    on_two_mounts("a counter under a lock", |a, b| {
        for flock in [true, false] {
            fs::write(a.join("counter"), "0").unwrap();
            std::thread::scope(|scope| {
                for mount in [a, b] {
                    let path = mount.join("counter");
                    scope.spawn(move || {
                        let mut file = OpenOptions::new().read(true).write(true).open(path).unwrap();
                        for _ in 0..100 {
                            if flock {
                                rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
                            } else {
                                system::wait_lock(&file, RecordLock::Exclusive, 0, 0).unwrap();
                            }
                            let mut text = String::new();
                            file.seek(SeekFrom::Start(0)).unwrap();
                            file.read_to_string(&mut text).unwrap();
                            let number: u64 = text.parse().unwrap();
                            file.seek(SeekFrom::Start(0)).unwrap();
                            write!(file, "{}", number + 1).unwrap();
                            if flock {
                                rustix::fs::flock(&file, FlockOperation::Unlock).unwrap();
                            } else {
                                system::try_lock(&file, RecordLock::Unlock, 0, 0).unwrap();
                            }
                        }
                    });
                }
            });
            assert_eq!(fs::read_to_string(b.join("counter")).unwrap(), "200", "flock: {flock}");
        }
    });
}

#[test]
fn mappings_are_coherent() {
    on_two_mounts("mappings", |a, b| {
        for size in [8192usize, 1 << 20] {
            let name = format!("map{size}");
            fs::write(a.join(&name), vec![0; size]).unwrap();
            let open = |mount: &Path| OpenOptions::new().read(true).write(true).open(mount.join(&name)).unwrap();
            let (here, there) = (open(a), open(b));
            let (ours, theirs) = (Mapping::new(&here, size).unwrap(), Mapping::new(&there, size).unwrap());
            for round in 1..20usize {
                let at = round * 317 % (size - 100);
                let text = format!("round {round}");
                ours.write(at, text.as_bytes());
                ours.sync().unwrap();
                let mut found = vec![0; text.len()];
                theirs.read(at, &mut found);
                assert_eq!(found, text.as_bytes(), "the mapping there, round {round}");
                there.read_exact_at(&mut found, at as u64).unwrap();
                assert_eq!(found, text.as_bytes(), "a read there, round {round}");
                // A plain write there is seen through the mapping here.
                there.write_all_at(b"WRITTEN", at as u64).unwrap();
                let mut found = [0; 7];
                ours.read(at, &mut found);
                assert_eq!(&found, b"WRITTEN", "the mapping here, round {round}");
            }
        }
    });
}

/// One of the blocks of the file that the next test writes: its generation, again and again.
const BLOCK: usize = 4096;

fn block_of(generation: u64) -> Aligned {
    Aligned::of(&generation.to_le_bytes().repeat(BLOCK / 8))
}

/// The oldest and the newest generation in a block.
fn generations(file: &File, block: usize) -> (u64, u64) {
    let mut bytes = [0; BLOCK];
    file.read_exact_at(&mut bytes, (block * BLOCK) as u64).unwrap();
    let words = || bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    (words().min().unwrap(), words().max().unwrap())
}

/// As xfstests' generic/451: several asynchronous writes past the cache are in flight, and programs read the same blocks through the
/// page cache, here and there. A read that begins when a write is complete finds what it wrote, or something newer.
#[test]
fn buffered_reads_see_asynchronous_direct_writes_that_are_complete() {
    const IN_FLIGHT: usize = 4;
    const ROUNDS: u64 = 400;
    on_two_mounts("asynchronous direct writes", |a, b| {
        // On the metadata target, and in stripes.
        for (name, blocks) in [("small", 8), ("large", 64)] {
            for writer in [a, b] {
                fs::write(writer.join(name), vec![0; blocks * BLOCK]).unwrap();
                let complete: Vec<AtomicU64> = (0..blocks).map(|_| AtomicU64::new(0)).collect();
                let over = AtomicBool::new(false);
                let read = |mount: &Path, number: usize| {
                    let file = File::open(mount.join(name)).unwrap();
                    let (mut count, mut block) = (0u64, number);
                    while !over.load(Ordering::Relaxed) {
                        block = (block * 5 + 3) % blocks;
                        let least = complete[block].load(Ordering::SeqCst);
                        let (oldest, _) = generations(&file, block);
                        assert!(oldest >= least, "block {block} of {name}: {oldest} after {least} was written");
                        count += 1;
                    }
                    count
                };
                let write = || {
                    let file =
                        OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(writer.join(name)).unwrap();
                    let seen = [a, b].map(|mount| File::open(mount.join(name)).unwrap());
                    let mut writes = Writes::new(IN_FLIGHT as u32).unwrap();
                    // No block is written twice at a time.
                    let mut idle: VecDeque<u64> = (0..blocks as u64).collect();
                    let mut generation = vec![0; blocks];
                    for number in 1..=ROUNDS {
                        let block = idle.pop_front().expect("more blocks than are in flight");
                        generation[block as usize] = number;
                        writes.submit(block, &file, block * BLOCK as u64, block_of(number)).unwrap();
                        if number < IN_FLIGHT as u64 {
                            continue;
                        }
                        let (block, written) = writes.wait().unwrap();
                        assert_eq!(written, BLOCK);
                        let (at, number) = (block as usize, generation[block as usize]);
                        complete[at].store(number, Ordering::SeqCst);
                        for file in &seen {
                            assert_eq!(generations(file, at), (number, number), "block {block} of {name}");
                        }
                        idle.push_back(block);
                    }
                };
                std::thread::scope(|scope| {
                    let readers: Vec<_> = [a, a, b]
                        .into_iter()
                        .zip(0..)
                        .map(|(mount, number)| scope.spawn(move || read(mount, number)))
                        .collect();
                    // A failure must end the readers, too.
                    let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(write));
                    over.store(true, Ordering::Relaxed);
                    let reads: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
                    written.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                    assert!(reads > 0);
                });
            }
        }
    });
}

#[test]
fn a_file_without_a_name_goes_on() {
    on_two_mounts("a file without a name", |a, b| {
        for size in [100usize, 300_000] {
            let content = trees::bytes(7, size);
            fs::write(a.join("f"), &content).unwrap();
            let mut here = OpenOptions::new().read(true).write(true).open(a.join("f")).unwrap();
            let there = OpenOptions::new().read(true).write(true).open(b.join("f")).unwrap();
            fs::remove_file(b.join("f")).unwrap();
            absent(&a.join("f"));
            assert_eq!(here.metadata().unwrap().nlink(), 0);
            let mut found = Vec::new();
            here.read_to_end(&mut found).unwrap();
            assert_eq!(found, content);
            here.write_all_at(b"still here", 10).unwrap();
            let mut found = [0; 10];
            there.read_exact_at(&mut found, 10).unwrap();
            assert_eq!(&found, b"still here");
            there.set_len(5).unwrap();
            assert_eq!(here.metadata().unwrap().len(), 5);
            // A new file of the name is another file.
            fs::write(a.join("f"), "new").unwrap();
            assert_eq!(fs::read_to_string(b.join("f")).unwrap(), "new");
            assert_ne!(fs::metadata(b.join("f")).unwrap().ino(), here.metadata().unwrap().ino());
            assert_eq!(here.metadata().unwrap().len(), 5);
            fs::remove_file(a.join("f")).unwrap();
        }
    });
}

#[test]
fn files_replaced_by_rename_are_whole() {
    on_two_mounts("replaced files", |a, b| {
        fs::write(a.join("config"), "version 000000\n").unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut last = String::new();
                let mut seen = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let text = fs::read_to_string(b.join("config")).expect("the name is always there");
                    assert!(text.starts_with("version ") && text.len() == 15, "torn: {text:?}");
                    assert!(text >= last, "went back from {last} to {text}");
                    last = text;
                    seen += 1;
                }
                seen
            });
            for round in 1..300 {
                fs::write(a.join("config.new"), format!("version {round:06}\n")).unwrap();
                fs::rename(a.join("config.new"), a.join("config")).unwrap();
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(reader.join().unwrap() > 0);
        });
        assert_eq!(fs::read_to_string(b.join("config")).unwrap(), "version 000299\n");
    });
}

#[test]
fn exchange_and_no_replace() {
    on_two_mounts("exchange", |a, b| {
        fs::write(a.join("x"), "x").unwrap();
        fs::create_dir(a.join("y")).unwrap();
        let cwd = rustix::fs::CWD;
        let taken = rustix::fs::renameat_with(cwd, b.join("x"), cwd, b.join("y"), RenameFlags::NOREPLACE).unwrap_err();
        assert_eq!(taken, rustix::io::Errno::EXIST);
        rustix::fs::renameat_with(cwd, b.join("x"), cwd, b.join("y"), RenameFlags::EXCHANGE).unwrap();
        assert!(fs::metadata(a.join("x")).unwrap().is_dir());
        assert_eq!(fs::read_to_string(a.join("y")).unwrap(), "x");
        rustix::fs::renameat_with(cwd, a.join("y"), cwd, a.join("z"), RenameFlags::NOREPLACE).unwrap();
        assert_eq!(names(b), ["x", "z"]);
    });
}

/// A listing that is under way while names come and go there gives every name that stayed, once.
#[test]
fn listing_while_names_come_and_go() {
    on_two_mounts("listing", |a, b| {
        for number in 0..1500 {
            File::create(a.join(format!("stays-{number:05}"))).unwrap();
        }
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let path = a.join(format!("goes-{number}"));
                    File::create(&path).unwrap();
                    fs::remove_file(&path).unwrap();
                    number += 1;
                }
            });
            let result = std::panic::catch_unwind(|| {
                for _ in 0..15 {
                    let listed = names(b);
                    let stays: Vec<&String> = listed.iter().filter(|name| name.starts_with("stays-")).collect();
                    assert_eq!(stays.len(), 1500);
                    assert!(listed.windows(2).all(|pair| pair[0] != pair[1]), "a name is listed twice");
                }
            });
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            result.unwrap();
        });
    });
}

/// A client that may remember few files lets the others go, but not what is in use, and sees what others do to either.
#[test]
fn few_files_are_remembered_and_those_in_use_stay() {
    if !needs_root() {
        return;
    }
    let frame = Story::begin("few files", Duration::from_secs(120));
    let cluster = Cluster::start(&frame, Shape { osts: 1, ..Shape::mounts(2) });
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    cluster.set_on_mount("llite.*.max_nodes", "640");
    fs::create_dir(a.join("d")).unwrap();
    let open = OpenOptions::new().create_new(true).read(true).write(true).open(a.join("d/open")).unwrap();
    for i in 0..4000 {
        fs::write(a.join(format!("d/f{i}")), format!("{i}")).unwrap();
    }
    let nodes = || {
        let device = a.display().to_string();
        let text = e2e::adamant(["lctl", "--device", &device, "get_param", "-n", "llite.*.nodes"]).ok();
        text.trim().parse::<usize>().unwrap()
    };
    assert!(nodes() < 2 * 640, "{} nodes", nodes());
    open.write_all_at(b"still here", 0).unwrap();
    for i in (0..1000).step_by(97) {
        let (old, new) = (format!("d/f{i}"), format!("d/g{i}"));
        fs::rename(b.join(&old), b.join(&new)).unwrap();
        absent(&a.join(&old));
        assert_eq!(fs::read_to_string(a.join(&new)).unwrap(), format!("{i}"));
    }
    assert_eq!(fs::read_to_string(b.join("d/open")).unwrap(), "still here");
    fs::rename(b.join("d"), b.join("e")).unwrap();
    assert_eq!(names(&a.join("e")).len(), 4001);
    assert_eq!(open.metadata().unwrap().size(), 10);
}
