//! Files that are open for reading, and of which the server is not told until somebody could take them away.

use std::time::Duration;

use client::api::{Call, CallId, Event, FileHandle, Options, SetStat, SetTime};
use prost::Message;
use proto::msg::{ReplayFailure, ReplayLocksRep};
use proto::{Errno, Opcode};
use testkit::cluster::{Cluster, cred, name};

const READING: u32 = 0;
const WRITING: u32 = 1;

/// A file with data that one client has made and another has looked up, all of it durable; gives the maker and the reader, and the
/// number of the directory and of the file.
fn known() -> (Cluster, usize, usize, u64, u64) {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let dir = c.mkdir(a, 1, "d").unwrap().ino;
    let (file, fh) = c.create(a, dir, "f").unwrap();
    c.write(a, fh, 0, b"data").unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    c.close(a, fh).unwrap();
    c.pass(Duration::from_secs(10));
    c.walk(b, "d/f").unwrap();
    // Which transnos are durable the reader learns with some answer.
    c.call(b, Call::Statfs { ino: 1 }).unwrap();
    (c, a, b, dir, file.ino)
}

/// Opens for reading, without a request.
fn open_here(c: &mut Cluster, node: usize, ino: u64) -> FileHandle {
    let fh = c.open(node, ino, READING).unwrap();
    assert_eq!(c.sent(), 0, "{:?}", c.requests);
    fh
}

fn rename(c: &mut Cluster, node: usize, dir: u64, from: &str, to: &str) {
    let call = Call::Rename { parent: dir, name: name(from), new_parent: dir, new_name: name(to), flags: 0 };
    c.call(node, call).unwrap();
}

/// The file has no name any more, and its reader still has all of it.
fn outlives(c: &mut Cluster, b: usize, fh: FileHandle, ino: u64) {
    c.pass(Duration::from_secs(10));
    assert_eq!(c.read(b, fh, 0, 10).as_deref(), Ok(&b"data"[..]), "{:#?}", c.log);
    assert_eq!(c.getattr(b, ino).map(|stat| stat.nlink), Ok(0));
    c.close(b, fh).unwrap();
    c.pass(Duration::from_secs(10));
    assert_eq!(c.open(b, ino, READING), Err(Errno::ESTALE));
}

#[test]
fn a_known_file_is_opened_and_closed_for_reading_without_a_request() {
    let (mut c, _, b, _, ino) = known();
    for round in 0..3 {
        let fh = open_here(&mut c, b, ino);
        c.read(b, fh, 0, 10).unwrap();
        assert!(round == 0 || c.sent() == 0, "{:?}", c.requests);
        c.close(b, fh).unwrap();
        c.pass(Duration::from_millis(100));
        c.requests.remove("obd_ping");
        assert!(round == 0 || c.sent() == 0, "{:?}", c.requests);
    }
    // A directory, and what needs the server's word, are opened there.
    for flags in [WRITING, 2, 0o1000, 0o1_000_000] {
        let fh = c.open(b, ino, flags).unwrap();
        assert_eq!(c.requests.get("mds_reint"), Some(&1), "{flags:o}: {:?}", c.requests);
        c.close(b, fh).unwrap();
    }
}

/// After a crash another client may find the file under no name, or another under its name: until the server knows that it is
/// open, it must not be open.
#[test]
fn a_file_whose_name_a_crash_may_take_is_not_opened_here() {
    let (mut c, a, b, dir, ino) = known();
    c.slow_media = true;
    rename(&mut c, a, dir, "f", "g");
    c.walk(b, "d/g").unwrap();
    c.requests.clear();
    let fh = c.open(b, ino, READING).unwrap();
    assert_eq!(c.requests.get("mds_reint"), Some(&1), "{:?}", c.requests);
    c.close(b, fh).unwrap();
    c.slow_media = false;
    c.pass(Duration::from_secs(10));
    c.call(b, Call::Statfs { ino: 1 }).unwrap();
    open_here(&mut c, b, ino);
}

/// What attributes do not allow is refused by the server, in its words.
#[test]
fn who_may_not_read_is_refused() {
    let (mut c, a, b, _, ino) = known();
    c.call(a, Call::Setattr { ino, set: SetStat { mode: Some(0o640), ..SetStat::default() } }).unwrap();
    c.pass(Duration::from_secs(10));
    c.getattr(b, ino).unwrap();
    assert_eq!(c.call_as(b, 7, Call::Open { ino, flags: READING }), Err(Errno::EACCES));
    open_here(&mut c, b, ino);
}

#[test]
fn a_file_that_is_open_here_outlives_its_name_whoever_takes_that_away() {
    // Another client removes it, or renames another file over it.
    let (mut c, a, b, dir, ino) = known();
    let fh = open_here(&mut c, b, ino);
    c.unlink(a, dir, "f").unwrap();
    outlives(&mut c, b, fh, ino);
    let (mut c, a, b, dir, ino) = known();
    let fh = open_here(&mut c, b, ino);
    c.create(a, dir, "other").unwrap();
    rename(&mut c, a, dir, "other", "f");
    outlives(&mut c, b, fh, ino);
    // The reader's own client does.
    let (mut c, _, b, dir, ino) = known();
    let fh = open_here(&mut c, b, ino);
    c.unlink(b, dir, "f").unwrap();
    outlives(&mut c, b, fh, ino);
    let (mut c, _, b, dir, ino) = known();
    let fh = open_here(&mut c, b, ino);
    c.create(b, dir, "other").unwrap();
    rename(&mut c, b, dir, "other", "f");
    outlives(&mut c, b, fh, ino);
}

/// What programs have open of one file is told with a few steps for each open, however many there are: by the client that removes the
/// name, and by the one whose lock is called back for it.
#[test]
fn a_name_of_a_file_that_is_open_thousands_of_times_goes_with_a_few_steps_for_each() {
    const OPENS: u64 = 4000;
    for remover_reads in [true, false] {
        let (mut c, a, b, dir, ino) = known();
        let handles: Vec<FileHandle> = (0..OPENS).map(|_| c.open(b, ino, READING).unwrap()).collect();
        let remover = if remover_reads { b } else { a };
        let (steps, result) = stdx::steps::of(|| c.unlink(remover, dir, "f"));
        result.unwrap();
        assert!(steps > OPENS && steps < 600 * OPENS, "{steps} steps for {OPENS} opens");
        let (last, rest) = handles.split_first().unwrap();
        let (steps, ()) = stdx::steps::of(|| {
            for fh in rest {
                c.send(b, Call::Release { fh: *fh, flock_owner: None });
            }
        });
        assert!(steps < 100 * OPENS, "{steps} steps for {OPENS} closes");
        outlives(&mut c, b, *last, ino);
    }
}

/// The reader's client takes a name away of which it does not know what it leads to.
#[test]
fn a_file_that_is_open_here_outlives_a_name_that_is_not_known_here() {
    let take: [fn(&mut Cluster, usize, u64); 2] = [
        |c, b, dir| c.unlink(b, dir, "other").unwrap(),
        |c, b, dir| {
            c.create(b, dir, "new").unwrap();
            rename(c, b, dir, "new", "other");
        },
    ];
    for take in take {
        let (mut c, a, b, dir, ino) = known();
        // The file comes to another name, which the reader has not seen; it opens the file by its number.
        c.getattr(a, ino).unwrap();
        rename(&mut c, a, dir, "f", "other");
        c.pass(Duration::from_secs(10));
        c.getattr(b, ino).unwrap();
        c.getattr(b, 1).unwrap();
        let fh = open_here(&mut c, b, ino);
        take(&mut c, b, dir);
        outlives(&mut c, b, fh, ino);
    }
}

/// The server is told of the open first, then the name goes: two changes, and the second does not wait anew behind all that other
/// programs asked for after the first.
#[test]
fn an_operation_of_two_changes_waits_once_for_the_only_slot() {
    let (mut c, a, _, dir, ino) = known();
    let other = c.mkdir(a, 1, "other").unwrap().ino;
    let b = c.begin_mount(Options { max_mod_rpcs_in_flight: 1, ..Cluster::options(9) });
    c.until(|c| c.nodes[b].mounted);
    c.walk(b, "d/f").unwrap();
    c.walk(b, "other").unwrap();
    c.call(b, Call::Statfs { ino: 1 }).unwrap();
    let fh = open_here(&mut c, b, ino);
    let mkdir = |n: usize| Call::Mkdir { parent: other, name: name(&format!("m{n}")), mode: 0o755 };
    let before = c.send_quietly(b, cred(0), mkdir(0));
    let unlink = c.send_quietly(b, cred(0), Call::Unlink { parent: dir, name: name("f") });
    let after: Vec<CallId> = (1..10).map(|n| c.send_quietly(b, cred(0), mkdir(n))).collect();
    c.nodes[b].order.clear();
    let all = [&[before, unlink][..], &after].concat();
    c.until(|c| all.iter().all(|id| c.answered(b, *id)));
    // One goes while the answer to the first of the two is looked at.
    let order: Vec<CallId> = c.nodes[b].order.iter().map(|(_, id)| *id).collect();
    assert_eq!(order, [&[before, after[0], unlink][..], &after[1..]].concat());
    outlives(&mut c, b, fh, ino);
}

/// A program that is about to open a file whose name is being removed finds it, or not; if it does, the file lasts.
#[test]
fn a_name_that_is_on_its_way_out_opens_nothing_here() {
    let (mut c, a, b, dir, ino) = known();
    // The request waits for the lock of the other client.
    c.getattr(a, ino).unwrap();
    c.nodes[a].slow_kernel = true;
    let unlink = c.send(b, Call::Unlink { parent: dir, name: name("f") });
    c.run();
    assert!(!c.answered(b, unlink));
    let fh = c.open(b, ino, READING).unwrap();
    assert_eq!(c.requests.get("mds_reint"), Some(&1), "{:?}", c.requests);
    c.nodes[a].slow_kernel = false;
    c.answer(b, unlink).unwrap();
    outlives(&mut c, b, fh, ino);
}

/// Locks are replayed before anybody may change anything: who has a file open here keeps it through a restart.
#[test]
fn a_file_that_is_open_here_outlives_a_restart_and_then_its_name() {
    let (mut c, a, b, dir, ino) = known();
    let fh = open_here(&mut c, b, ino);
    c.restart("fs-MDT0000");
    c.unlink(a, dir, "f").unwrap();
    outlives(&mut c, b, fh, ino);
    // And one that was told of.
    let (mut c, a, b, dir, ino) = known();
    let fh = open_here(&mut c, b, ino);
    c.unlink(a, dir, "f").unwrap();
    c.restart("fs-MDT0000");
    outlives(&mut c, b, fh, ino);
}

/// A lock that a restarted server does not give again: the server is told at once.
#[test]
fn a_file_that_is_open_here_without_its_lock_is_told_of() {
    let (mut c, a, b, dir, ino) = known();
    let fh = open_here(&mut c, b, ino);
    c.tamper = Some(Box::new(|to_client, _, mut frame| {
        if to_client && frame.header.opcode == Opcode::LdlmReplay as u16 && frame.header.status == 0 {
            let mut rep: ReplayLocksRep = frame.decode().unwrap();
            let failed = |index| ReplayFailure { index, errno: Errno::ESTALE.raw() };
            rep.failed = (0..rep.handles.len() as u32).map(failed).collect();
            frame.body = rep.encode_to_vec().into();
        }
        vec![frame]
    }));
    c.restart("fs-MDT0000");
    c.pass(Duration::from_secs(10));
    assert!(stdx::marks::count("local_open_without_lock") > 0);
    c.tamper = None;
    // It is no longer known what the names lead to.
    let _ = c.walk(a, "d/f");
    c.walk(a, "d/f").unwrap();
    c.unlink(a, dir, "f").unwrap();
    outlives(&mut c, b, fh, ino);
}

/// An evicted client has nothing open any more, and says so.
#[test]
fn a_file_that_is_open_here_is_lost_with_an_eviction() {
    let (mut c, a, b, dir, ino) = known();
    let fh = open_here(&mut c, b, ino);
    let uuid = Cluster::options(b as u64).uuid.to_string();
    c.set_server_param("fs-MDT0000", "mdt.fs-MDT0000.evict_client", &uuid);
    c.unlink(a, dir, "f").unwrap();
    c.pass(Duration::from_secs(10));
    assert_eq!(c.read(b, fh, 0, 10), Err(Errno::EIO));
    c.close(b, fh).unwrap();
}

/// Access times of files that were open here travel together.
#[test]
fn access_times_of_many_files_are_few_requests() {
    const FILES: u64 = 100;
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let dir = c.mkdir(a, 1, "d").unwrap().ino;
    for at in 0..FILES {
        let (_, fh) = c.create(a, dir, &format!("f{at}")).unwrap();
        c.write(a, fh, 0, b"data").unwrap();
        c.call(a, Call::Fsync { fh }).unwrap();
        c.close(a, fh).unwrap();
    }
    c.pass(Duration::from_secs(100));
    c.walk(b, "d").unwrap();
    let files: Vec<u64> = (0..FILES).map(|at| c.lookup(b, dir, &format!("f{at}")).unwrap().ino).collect();
    c.call(b, Call::Statfs { ino: 1 }).unwrap();
    let before: Vec<i64> = files.iter().map(|ino| c.getattr(b, *ino).unwrap().atime_ns).collect();
    c.all_requests.clear();
    for ino in &files {
        let fh = open_here(&mut c, b, *ino);
        c.read(b, fh, 0, 10).unwrap();
        c.send(b, Call::Release { fh, flock_owner: None });
    }
    c.pass(Duration::from_secs(1));
    assert_eq!(c.all_requests.get("mds_reint"), None, "{:?}", c.all_requests);
    assert!(c.all_requests.get("mds_close").is_some_and(|count| *count <= FILES), "{:?}", c.all_requests);
    // Whoever asks is told.
    c.restart("fs-MDT0000");
    let other = c.mount();
    for (ino, before) in files.iter().zip(before) {
        assert!(c.getattr(other, *ino).unwrap().atime_ns > before, "{ino}");
    }
}

/// An access time that was to be told, and then is set by a program, leaves nothing to tell: nobody waits for that.
#[test]
fn nobody_waits_for_closes_without_anything_to_tell() {
    let waits: [fn(&mut Cluster, usize, u64); 3] = [
        |c, b, dir| c.unlink(b, dir, "f").unwrap(),
        |c, b, _| c.call(b, Call::Syncfs).map(drop).unwrap(),
        |c, b, _| {
            let now = c.now;
            c.nodes[b].machine.handle(now, Event::Unmount);
            c.until(|c| c.nodes[b].unmounted);
        },
    ];
    for then in waits {
        let (mut c, _, b, dir, ino) = known();
        let fh = open_here(&mut c, b, ino);
        c.read(b, fh, 0, 10).unwrap();
        c.send(b, Call::Release { fh, flock_owner: None });
        let atime = Some(SetTime::At(1));
        c.send(b, Call::Setattr { ino, set: SetStat { atime, ..SetStat::default() } });
        then(&mut c, b, dir);
    }
}
