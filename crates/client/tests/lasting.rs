//! What was answered stays: over unmounts, removals by others, reconnects; and replies that no honest server gives.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use client::api::{AccessTimes, Answer, Call, Event, FileHandle, Invalidation, Options, SetStat, SetTime};
use prost::Message;
use proto::msg::{ConnectRep, DirEntry, ReaddirRep, Reint, ReintReq};
use proto::{Bytes, Errno, Fid, Frame, Opcode};
use stdx::Rng;
use testkit::cluster::{self, Cluster, cred, name};

/// A file whose data lies on objects, durable.
fn large_file(c: &mut Cluster, at: usize) -> (u64, FileHandle) {
    let (f, fh) = c.create(at, 1, "f").unwrap();
    assert_eq!(c.write(at, fh, 0, &[7; 100_000]), Ok(100_000));
    c.call(at, Call::Fsync { fh }).unwrap();
    (f.ino, fh)
}

fn cut(c: &mut Cluster, at: usize, ino: u64, size: u64) {
    let set = SetStat { size: Some(size), ..SetStat::default() };
    assert!(matches!(c.call(at, Call::Setattr { ino, set }), Ok(Answer::Attr(stat)) if stat.size == size));
}

#[test]
fn syncfs_waits_for_cuts_of_objects() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let (ino, _) = large_file(&mut c, a);
    c.requests.clear();
    c.slow_media = true;
    cut(&mut c, a, ino, 10);
    let sync = c.send(a, Call::Syncfs);
    assert_eq!(c.requests.get("ost_sync"), Some(&1));
    assert!(!c.answered(a, sync), "the cut is not durable");
    c.slow_media = false;
    assert_eq!(c.answer(a, sync), Ok(Answer::Done));
}

#[test]
fn a_read_beyond_the_end_holds_no_lock_up() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (ino, fh) = large_file(&mut c, a);
    c.lookup(b, 1, "f").unwrap();
    let other = c.open(b, ino, 2).unwrap();
    let read = c.send(a, Call::Read { fh, offset: 200_000, length: 4096 });
    assert!(!c.answered(a, read), "it lets others go first");
    let before = c.now;
    let write = c.send(
        b,
        Call::Write {
            fh: other,
            ino: 0,
            offset: 200_000,
            data: vec![8; 10].into(),
            write_back: false,
            kill_priv: false,
        },
    );
    assert!(c.answered(b, write) && c.now == before, "and a writer does not wait for it");
    // It sees what is there when it is answered.
    assert!(matches!(c.answer(a, read), Ok(Answer::Data(data)) if data[..] == [8; 10]));
}

/// Others are told of a cut when its client knows that it is made. If programs there saw it before, they would see it undone elsewhere.
#[test]
fn nobody_sees_a_cut_before_all_do() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (ino, _) = large_file(&mut c, a);
    c.lookup(b, 1, "f").unwrap();
    c.lose_frames(false, [Opcode::ObjPunch]);
    let set = SetStat { size: Some(10), ..SetStat::default() };
    let cut = c.send(a, Call::Setattr { ino, set });
    c.run();
    assert!(!c.answered(a, cut));
    for node in [a, b, a] {
        assert_eq!(c.getattr(node, ino).unwrap().size, 100_000);
    }
    c.tamper = None;
    c.answer(a, cut).unwrap();
    for node in [b, a] {
        assert_eq!(c.getattr(node, ino).unwrap().size, 10);
    }
}

#[test]
fn an_fsync_waits_for_every_stripe() {
    let mut c = Cluster::new(3);
    let a = c.mount();
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.call(a, Call::SetLayout { ino: f.ino, wish: cluster::wish(64 << 10, -1, 0) }).unwrap();
    assert_eq!(c.write(a, fh, 0, &vec![7; 192 << 10]), Ok(192 << 10));
    c.requests.clear();
    c.slow_media = true;
    let sync = c.send(a, Call::Fsync { fh });
    assert_eq!((c.requests.get("ost_write"), c.requests.get("ost_sync")), (Some(&3), Some(&3)));
    assert!(!c.answered(a, sync), "nothing of it is durable");
    c.slow_media = false;
    assert_eq!(c.answer(a, sync), Ok(Answer::Done));
}

/// There is nothing left to cut, for another client has just cut. With that client and the target its cut would be lost, and the old bytes
/// be there again.
#[test]
fn what_an_fsync_found_done_by_others_is_durable() {
    for whole in [false, true] {
        let mut c = Cluster::new(1);
        let (a, b) = (c.mount(), c.mount());
        let (ino, _) = large_file(&mut c, a);
        c.lookup(b, 1, "f").unwrap();
        let fh = c.open(b, ino, 2).unwrap();
        c.slow_server = Some(c.server("fs-OST0000"));
        cut(&mut c, a, ino, 0);
        cut(&mut c, b, ino, 0);
        let call = || if whole { Call::Syncfs } else { Call::Fsync { fh } };
        c.requests.clear();
        let sync = c.send(b, call());
        assert_eq!(c.requests.get("ost_sync"), Some(&1));
        assert!(!c.answered(b, sync), "the other's cut is not durable");
        c.slow_server = None;
        assert_eq!(c.answer(b, sync), Ok(Answer::Done));
        // And it is not asked about again.
        c.requests.clear();
        c.call(b, call()).unwrap();
        assert_eq!(c.requests.get("ost_sync"), None);
    }
}

/// A small file has just grown, and other clients write to its objects. If that were undone with its maker and the metadata target, nobody
/// would find what they wrote.
#[test]
fn what_is_written_to_a_file_that_has_just_grown_is_not_lost() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    // That files of this range grow is known before.
    let (_, other) = c.create(a, 1, "g").unwrap();
    c.write(a, other, 0, &[1; 100_000]).unwrap();
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, &[1; 100]).unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    c.lookup(b, 1, "f").unwrap();
    let theirs = c.open(b, f.ino, 2).unwrap();
    c.slow_server = Some(c.server("fs-MDT0000"));
    assert_eq!(c.write(a, fh, 0, &[2; 100_000]), Ok(100_000));
    let data = Bytes::from_static(&[3; 100]);
    let write = Call::Write { fh: theirs, ino: 0, offset: 1000, data, write_back: false, kill_priv: false };
    let write = c.send(b, write);
    assert!(!c.answered(b, write), "the file may become small again");
    c.die(a);
    c.slow_server = None;
    c.restart("fs-MDT0000");
    assert_eq!(c.answer(b, write), Ok(Answer::Written(100)));
    c.call(b, Call::Fsync { fh: theirs }).unwrap();
    let d = c.mount();
    c.lookup(d, 1, "f").unwrap();
    let fh = c.open(d, f.ino, 2).unwrap();
    assert_eq!(c.write(d, fh, 200_000, &[4; 100]), Ok(100));
    for (node, fh) in [(d, fh), (b, theirs)] {
        assert_eq!(c.read(node, fh, 0, 100).unwrap()[..], [1; 100]);
        assert_eq!(c.read(node, fh, 1000, 100).unwrap()[..], [3; 100]);
        assert_eq!(c.read(node, fh, 200_000, 1000).unwrap()[..], [4; 100]);
    }
}

/// Nothing of what the client knew of the file is left when it is opened again.
#[test]
fn an_fsync_covers_what_was_written_before_the_file_was_forgotten() {
    let mut c = Cluster::new(1);
    let a = c.begin_mount(Options { max_nodes: 16, ..Cluster::options(1) });
    c.until(|c| c.nodes[a].mounted);
    let (ino, fh) = large_file(&mut c, a);
    c.slow_server = Some(c.server("fs-OST0000"));
    let direct = c.open(a, ino, 0o40002).unwrap();
    assert_eq!(c.write(a, direct, 0, &[8; 4096]), Ok(4096));
    c.close(a, fh).unwrap();
    c.close(a, direct).unwrap();
    c.call(a, Call::Forget { ino, count: 1 }).unwrap();
    c.pass(Duration::from_secs(1));
    for other in 0..40 {
        let made = c.mkdir(a, 1, &format!("d{other}")).unwrap();
        c.pass(Duration::from_millis(100));
        c.call(a, Call::Forget { ino: made.ino, count: 1 }).unwrap();
    }
    c.requests.clear();
    c.lookup(a, 1, "f").unwrap();
    let fh = c.open(a, ino, 2).unwrap();
    let sync = c.send(a, Call::Fsync { fh });
    assert_eq!(c.requests.get("ost_sync"), Some(&1), "{:?}", c.requests);
    assert!(!c.answered(a, sync));
    c.slow_server = None;
    assert_eq!(c.answer(a, sync), Ok(Answer::Done));
}

#[test]
fn an_answered_cut_outlives_an_unmount_while_its_target_is_away() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (ino, fh) = large_file(&mut c, a);
    c.slow_media = true;
    cut(&mut c, a, ino, 10);
    c.close(a, fh).unwrap();
    let at = c.server("fs-OST0000");
    c.kill(at);
    let now = c.now;
    c.nodes[a].machine.handle(now, Event::Unmount);
    c.pass(Duration::from_secs(5));
    assert!(!c.nodes[a].unmounted, "what the target lost is known here only");
    c.start(at);
    c.until(|c| c.nodes[a].unmounted);
    assert_eq!(c.lookup(b, 1, "f").unwrap().size, 10);
}

#[test]
fn who_has_a_file_open_reads_what_its_remover_wrote() {
    for close_first in [true, false] {
        let mut c = Cluster::new(1);
        let (a, b) = (c.mount(), c.mount());
        let (f, fh) = c.create(a, 1, "f").unwrap();
        c.lookup(b, 1, "f").unwrap();
        let theirs = c.open(b, f.ino, 0).unwrap();
        assert_eq!(c.write(a, fh, 0, b"not lost"), Ok(8));
        if close_first {
            c.close(a, fh).unwrap();
        }
        c.unlink(a, 1, "f").unwrap();
        if !close_first {
            c.close(a, fh).unwrap();
        }
        assert_eq!(&c.read(b, theirs, 0, 100).unwrap()[..], b"not lost");
        c.close(b, theirs).unwrap();
    }
}

#[test]
fn what_nobody_can_read_any_more_is_not_written() {
    for close_first in [true, false] {
        let mut c = Cluster::new(1);
        let a = c.mount();
        let (_, fh) = c.create(a, 1, "f").unwrap();
        c.write(a, fh, 0, &[1; 5000]).unwrap();
        c.requests.clear();
        if close_first {
            c.close(a, fh).unwrap();
        }
        c.unlink(a, 1, "f").unwrap();
        if !close_first {
            c.close(a, fh).unwrap();
        }
        c.pass(Duration::from_secs(20));
        assert_eq!(c.requests.get("ost_write"), None);
    }
}

#[test]
fn a_write_through_goes_on_when_its_target_names_another_size_of_requests() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let (ino, _) = large_file(&mut c, a);
    let fh = c.open(a, ino, 0o2 | 0o4_010_000).unwrap();
    // Until the reconnect no write is answered; then requests are to be small.
    let held = Rc::new(Cell::new(true));
    let hold = held.clone();
    c.tamper = Some(Box::new(move |to_client, _, mut frame: Frame| {
        match Opcode::from_raw(frame.header.opcode) {
            Some(Opcode::ObjWrite) if to_client && hold.get() => return Vec::new(),
            Some(Opcode::Connect) if to_client => {
                hold.set(false);
                let mut reply = frame.decode::<ConnectRep>().unwrap();
                reply.brw_size = 64 << 10;
                frame.body = reply.encode_to_vec().into();
            }
            _ => {}
        }
        vec![frame]
    }));
    let data = Bytes::from(vec![9; 300_000]);
    let write = c.send(a, Call::Write { fh, ino, offset: 0, data, write_back: false, kill_priv: false });
    assert!(!c.answered(a, write));
    c.cut(a);
    assert_eq!(c.answer(a, write), Ok(Answer::Written(300_000)));
    assert!(!held.get());
    assert_eq!(c.read(a, fh, 299_999, 10).unwrap()[..], [9]);
}

#[test]
fn a_listing_much_longer_than_asked_for_is_refused() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let dir = c.mkdir(a, 1, "d").unwrap().ino;
    c.pass(Duration::from_secs(2));
    c.tamper = Some(Box::new(|to_client, _, mut frame: Frame| {
        if to_client && Opcode::from_raw(frame.header.opcode) == Some(Opcode::MdsReaddir) {
            let entry = DirEntry { name: name("x"), fid: Fid::ROOT, ..DirEntry::default() };
            let reply = ReaddirRep { entries: vec![entry; 100_000], end: true, ..ReaddirRep::default() };
            frame.body = reply.encode_to_vec().into();
        }
        vec![frame]
    }));
    let b = c.begin_mount(Cluster::options(9));
    c.until(|c| c.nodes[b].mounted);
    assert_eq!(c.list(b, dir, false), Err(Errno::EPROTO));
    assert!(stdx::marks::count("reply_too_long") > 0);
}

#[test]
fn a_stranger_who_writes_takes_the_set_group_id_bit_and_a_member_leaves_it() {
    for (gid, kept) in [(7, true), (8, false)] {
        let mut c = Cluster::new(1);
        let a = c.mount();
        let (f, fh) = c.create(a, 1, "f").unwrap();
        let set = SetStat { gid: Some(7), ..SetStat::default() };
        c.call(a, Call::Setattr { ino: f.ino, set }).unwrap();
        let set = SetStat { mode: Some(0o2666), ..SetStat::default() };
        c.call(a, Call::Setattr { ino: f.ino, set }).unwrap();
        let data = Bytes::from_static(b"x");
        let write = Call::Write { fh, ino: f.ino, offset: 0, data, write_back: false, kill_priv: true };
        c.requests.clear();
        assert_eq!(c.call_as(a, gid, write), Ok(Answer::Written(1)));
        assert_eq!(!c.requests.contains_key("mds_reint"), kept, "members need no request for it");
        assert_eq!(c.getattr(a, f.ino).unwrap().mode & 0o2000 != 0, kept);
    }
}

#[test]
fn access_times_move_as_the_mount_says() {
    for (times, moves) in [(AccessTimes::Relative, false), (AccessTimes::Strict, true), (AccessTimes::Never, false)] {
        let mut c = Cluster::new(0);
        let options =
            Options { access_times: times, directory_access_times: AccessTimes::Never, ..Cluster::options(9) };
        let a = c.begin_mount(options);
        c.until(|c| c.nodes[a].mounted);
        let (f, fh) = c.create(a, 1, "f").unwrap();
        c.write(a, fh, 0, b"data").unwrap();
        c.pass(Duration::from_secs(3));
        let read = |c: &mut Cluster| {
            c.read(a, fh, 0, 4).unwrap();
            c.pass(Duration::from_secs(1));
            c.getattr(a, f.ino).unwrap().atime_ns
        };
        let (before, first, second) = (f.atime_ns, read(&mut c), read(&mut c));
        assert_eq!(first > before, times != AccessTimes::Never, "{times:?}");
        assert_eq!(second > first, moves, "{times:?}");
        let root = c.getattr(a, 1).unwrap().atime_ns;
        c.list(a, 1, false).unwrap();
        c.pass(Duration::from_secs(1));
        assert_eq!(c.getattr(a, 1).unwrap().atime_ns, root, "directories never");
    }
}

/// The server knows nothing of who has a directory or a pipe open.
#[test]
fn attributes_of_a_removed_directory_and_pipe_can_be_read_and_changed() {
    let mut c = Cluster::new(0);
    let a = c.mount();
    let directory = c.mkdir(a, 1, "d").unwrap().ino;
    let make = Call::Mknod { parent: 1, name: name("p"), mode: 0o010_644, rdev: 0 };
    let Answer::Entry(pipe) = c.call(a, make).unwrap() else { panic!() };
    // The server has them: the changes of metadata write-back are sent.
    c.pass(Duration::from_secs(3));
    c.call(a, Call::Rmdir { parent: 1, name: name("d") }).unwrap();
    c.call(a, Call::Unlink { parent: 1, name: name("p") }).unwrap();
    for ino in [directory, pipe.ino] {
        let before = c.getattr(a, ino).unwrap();
        let set = SetStat { mode: Some(0o700), uid: Some(5), mtime: Some(SetTime::At(77)), ..SetStat::default() };
        c.call(a, Call::Setattr { ino, set }).unwrap();
        let after = c.getattr(a, ino).unwrap();
        assert_eq!((after.mode & 0o7777, after.uid, after.gid, after.mtime_ns), (0o700, 5, before.gid, 77));
        assert_eq!(after.mode & 0o170_000, before.mode & 0o170_000);
    }
    assert!(stdx::marks::count("removed_changed") >= 2);
}

/// The kernel has the mode, and does not think that a write changes it.
#[test]
fn who_takes_privileges_from_a_file_is_answered_when_the_kernel_knows_it() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (f, fh) = c.create(b, 1, "f").unwrap();
    c.close(b, fh).unwrap();
    c.lookup(a, 1, "f").unwrap();
    let value = Bytes::from_static(b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    let data = Bytes::from_static(b"x");
    let fh = c.open(a, f.ino, 2).unwrap();
    let changes = [
        Call::Write { fh, ino: f.ino, offset: 0, data, write_back: false, kill_priv: true },
        Call::Fallocate { fh, mode: 0, offset: 0, length: 10_000 },
        Call::Open { ino: f.ino, flags: 0o1001 },
        Call::Removexattr { ino: f.ino, name: name("security.capability") },
    ];
    for change in changes {
        let capability =
            Call::Setxattr { ino: f.ino, name: name("security.capability"), value: value.clone(), flags: 0 };
        c.call(a, capability).unwrap();
        let set = SetStat { mode: Some(0o6777), ..SetStat::default() };
        c.call(a, Call::Setattr { ino: f.ino, set }).unwrap();
        assert!(c.getattr(a, f.ino).unwrap().cacheable);
        c.nodes[a].slow_kernel = true;
        c.nodes[a].invalidations.clear();
        let id = c.send_as(a, cred(7), change.clone());
        c.pass(Duration::from_millis(500));
        assert!(!c.answered(a, id), "{change:?} waits for the kernel");
        let told = |what: &Invalidation| matches!(what, Invalidation::Inode { ino, .. } if *ino == f.ino);
        assert!(c.nodes[a].invalidations.iter().any(told));
        c.nodes[a].slow_kernel = false;
        c.answer(a, id).unwrap();
        assert_eq!(c.getattr(a, f.ino).unwrap().mode & 0o7777, 0o777, "{change:?}");
        let get = Call::Getxattr { ino: f.ino, name: name("security.capability") };
        // For an open the kernel asks by itself.
        let opened = matches!(change, Call::Open { .. });
        assert_eq!(c.call(a, get).is_err(), !opened, "{change:?}");
    }
}

#[test]
fn what_a_rebuilt_answer_does_not_say_is_asked_for() {
    let changes: [fn(u64) -> Call; 4] = [
        |dir| Call::Rename { parent: dir, name: name("f"), new_parent: dir, new_name: name("g"), flags: 0 },
        |dir| Call::Unlink { parent: dir, name: name("f") },
        |dir| Call::Mkdir { parent: dir, name: name("sub"), mode: 0o755 },
        |dir| Call::Create { parent: dir, name: name("new"), mode: 0o644, flags: 0o2 },
    ];
    for change in changes {
        let mut c = Cluster::new(1);
        let (a, b) = (c.mount(), c.mount());
        let dir = c.mkdir(a, 1, "d").unwrap().ino;
        let (f, _) = c.create(a, dir, "f").unwrap();
        c.call(a, Call::Link { ino: f.ino, new_parent: 1, new_name: name("other") }).unwrap();
        c.pass(Duration::from_secs(2));
        // The change becomes durable, its answer is lost, and the server with it.
        let deaf = Rc::new(Cell::new(true));
        let lose = deaf.clone();
        c.tamper = Some(Box::new(move |to_client, _, frame: Frame| {
            let reply = to_client && Opcode::from_raw(frame.header.opcode) == Some(Opcode::MdsReint);
            if reply && lose.get() { Vec::new() } else { vec![frame] }
        }));
        let id = c.send(a, change(dir));
        c.pass(Duration::from_secs(2));
        c.restart("fs-MDT0000");
        deaf.set(false);
        c.answer(a, id).unwrap();
        assert!(c.requests.contains_key("ldlm_replay"), "locks were replayed");
        for ino in [dir, f.ino] {
            let (here, there) = (c.getattr(a, ino).unwrap(), c.getattr(b, ino).unwrap());
            let seen = |stat: client::api::Stat| (stat.nlink, stat.mtime_ns, stat.ctime_ns);
            assert_eq!(seen(here), seen(there));
        }
    }
    assert!(stdx::marks::count("rebuilt_reply") > 0);
}

#[test]
fn an_allocation_takes_set_id_bits_unless_root_asks() {
    for (uid, kept) in [(0, true), (8, false)] {
        let mut c = Cluster::new(1);
        let a = c.mount();
        let (f, fh) = c.create(a, 1, "f").unwrap();
        let set = SetStat { mode: Some(0o4666), ..SetStat::default() };
        c.call(a, Call::Setattr { ino: f.ino, set }).unwrap();
        let allocate = Call::Fallocate { fh, mode: 0, offset: 0, length: 100 };
        assert_eq!(c.call_as(a, uid, allocate), Ok(Answer::Done));
        assert_eq!(c.getattr(a, f.ino).unwrap().mode & 0o4000 != 0, kept);
    }
}

/// What the kernel of a client was told to forget, of names in the root.
fn forgotten(c: &Cluster, node: usize) -> Vec<Bytes> {
    let told = c.nodes[node].invalidations.iter();
    told.filter_map(|what| match what {
        Invalidation::Entry { parent: 1, name, .. } => Some(name.clone()),
        _ => None,
    })
    .collect()
}

/// The kernel moves its entry with every rename that succeeds, also with one that does nothing.
#[test]
fn a_rename_to_another_name_of_the_same_object_leaves_no_name_in_the_kernel() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.close(a, fh).unwrap();
    c.lookup(b, 1, "f").unwrap();
    c.call(a, Call::Link { ino: f.ino, new_parent: 1, new_name: name("g") }).unwrap();
    c.lookup(b, 1, "f").unwrap();
    let rename = Call::Rename { parent: 1, name: name("f"), new_parent: 1, new_name: name("g"), flags: 0 };
    assert_eq!(c.call(b, rename), Ok(Answer::Done));
    c.nodes[b].invalidations.clear();
    c.call(a, Call::Unlink { parent: 1, name: name("g") }).unwrap();
    assert!(forgotten(&c, b).contains(&name("g")), "{:?}", c.nodes[b].invalidations);
}

#[test]
fn of_many_names_of_an_object_none_stays_in_the_kernel() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.close(a, fh).unwrap();
    let links: Vec<String> = (0..40).map(|i| format!("link{i}")).collect();
    for link in &links {
        c.call(a, Call::Link { ino: f.ino, new_parent: 1, new_name: name(link) }).unwrap();
    }
    c.nodes[b].invalidations.clear();
    for link in &links {
        c.lookup(b, 1, link).unwrap();
    }
    c.call(a, Call::Unlink { parent: 1, name: name("f") }).unwrap();
    let told = forgotten(&c, b);
    assert!(links.iter().all(|link| told.contains(&name(link))), "{told:?}");
}

/// A piece of a listing is given to the kernel bit by bit, and may be older than what the kernel knows by then: it must not
/// bring a name back.
#[test]
fn a_listing_that_is_read_late_gives_no_attributes_of_names_that_may_be_gone() {
    for own in [true, false] {
        let mut c = Cluster::new(1);
        let (a, b) = (c.mount(), c.mount());
        let dir = c.mkdir(a, 1, "d").unwrap().ino;
        for i in 0..10 {
            let text = name(&format!("f{i}"));
            let made = c.call(a, Call::Symlink { parent: dir, name: text.clone(), target: name("x") }).unwrap();
            let Answer::Entry(link) = made else { panic!() };
            c.call(a, Call::Link { ino: link.ino, new_parent: 1, new_name: text }).unwrap();
        }
        c.pass(Duration::from_secs(2));
        let Ok(Answer::Opened { fh, .. }) = c.call(b, Call::Opendir { ino: dir }) else { panic!() };
        let read =
            |c: &mut Cluster, offset, max_bytes| match c.call(b, Call::Readdir { fh, offset, max_bytes, plus: true }) {
                Ok(Answer::Entries(entries)) => entries,
                other => panic!("{other:?}"),
            };
        let first = read(&mut c, 0, 700);
        let gone = (0..10).map(|i| format!("f{i}")).find(|text| first.iter().all(|entry| entry.name != name(text)));
        let gone = gone.expect("there is more");
        c.call(if own { b } else { a }, Call::Unlink { parent: dir, name: name(&gone) }).unwrap();
        // The directory's lock goes, and with it what is known of its names; the object is looked up by its other name.
        let (_, made) = c.create(a, dir, "new").unwrap();
        c.close(a, made).unwrap();
        c.lookup(b, 1, &gone).unwrap();
        let rest = read(&mut c, first.last().map_or(0, |entry| entry.offset), 65536);
        let entry = rest.iter().find(|entry| entry.name == name(&gone)).expect("the listing is of before");
        assert_eq!(entry.stat, None, "removed by {}", if own { "itself" } else { "another" });
        assert!(rest.iter().any(|entry| entry.stat.is_some()), "of others there are attributes");
    }
}

/// A listing shows the names of one moment, also while this mount or another renames: never neither of two.
#[test]
fn a_listing_beside_a_rename_shows_the_old_name_or_the_new_one() {
    for seed in cluster::seeds(0, 300) {
        let mut c = Cluster::new(1);
        let mut rng = Rng::new(seed);
        let (a, b) = (c.mount(), c.mount());
        let dir = c.mkdir(a, 1, "d").unwrap().ino;
        for (node, text) in [(a, "old"), (b, "beside")] {
            let (_, fh) = c.create(node, dir, text).unwrap();
            c.close(node, fh).unwrap();
        }
        // Which client holds the directory's lock, if any, is drawn too.
        let first = if rng.chance(1, 2) { a } else { b };
        c.lookup(first, dir, "beside").unwrap();
        let Ok(Answer::Opened { fh, .. }) = c.call(a, Call::Opendir { ino: dir }) else { panic!() };
        let rename = Call::Rename { parent: dir, name: name("old"), new_parent: dir, new_name: name("new"), flags: 0 };
        let list = Call::Readdir { fh, offset: 0, max_bytes: 65536, plus: rng.chance(1, 2) };
        let (renames, looks) = (if rng.chance(2, 3) { a } else { b }, rng.chance(1, 2));
        let mut calls = vec![(a, list), (renames, rename)];
        if looks {
            calls.push((a, Call::Lookup { parent: dir, name: name("old") }));
        }
        let mut sent = Vec::new();
        while !calls.is_empty() {
            let (node, call) = calls.swap_remove(rng.below(calls.len() as u64) as usize);
            let is_list = matches!(call, Call::Readdir { .. });
            sent.push((is_list, node, c.send_quietly(node, cred(0), call)));
            (0..rng.below(12)).for_each(|_| c.one_step(&mut rng));
        }
        (0..300).for_each(|_| c.one_step(&mut rng));
        for (is_list, node, id) in sent {
            let answer = c.answer(node, id);
            if is_list {
                let Ok(Answer::Entries(entries)) = answer else { panic!("seed {seed}: {answer:?}") };
                let shown = entries.iter().filter(|entry| ["old", "new"].iter().any(|text| entry.name == name(text)));
                assert_eq!(shown.count(), 1, "seed {seed}");
            }
        }
    }
}

/// A word to forget may overtake the answer that shows the kernel a node for the first time. It would keep the attributes then, so it
/// is told until it knows the node, and the lock stays until then.
#[test]
fn the_kernel_is_told_again_when_an_answer_had_not_come_to_it_yet() {
    for (too_early, again) in [(3, 3), (u32::MAX, 200)] {
        let mut c = Cluster::new(1);
        let (a, b) = (c.mount(), c.mount());
        let (f, fh) = c.create(b, 1, "f").unwrap();
        c.close(b, fh).unwrap();
        c.lookup(a, 1, "f").unwrap();
        c.nodes[a].invalidations.clear();
        c.nodes[a].too_early = too_early;
        let set = SetStat { mode: Some(0o600), ..SetStat::default() };
        let before = c.now;
        c.call(b, Call::Setattr { ino: f.ino, set }).unwrap();
        let inode = |what: &&Invalidation| matches!(what, Invalidation::Inode { ino, .. } if *ino == f.ino);
        assert_eq!(c.nodes[a].invalidations.iter().filter(inode).count(), 1 + again);
        let waited = c.now.since(before);
        assert!(waited >= Duration::from_millis(again as u64) && waited < Duration::from_secs(2));
    }
    assert!(stdx::marks::count("kernel_invalidated_too_early") > 0);
}

/// Whoever removes a name without knowing what it leads to may know the object by another one. Its programs see the new number of links
/// as soon as others do, also while the answer is on its way.
#[test]
fn who_removes_an_unknown_name_of_a_known_file_shows_no_old_attributes() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (x, y) = (c.mkdir(b, 1, "x").unwrap().ino, c.mkdir(b, 1, "y").unwrap().ino);
    let (f, fh) = c.create(b, x, "f").unwrap();
    c.close(b, fh).unwrap();
    c.call(b, Call::Link { ino: f.ino, new_parent: y, new_name: name("g") }).unwrap();
    c.walk(a, "x").unwrap();
    c.walk(a, "y/g").unwrap();
    assert_eq!(c.getattr(a, f.ino).unwrap().nlink, 2);
    c.nodes[a].invalidations.clear();
    let deaf = Rc::new(Cell::new(true));
    let lose = deaf.clone();
    c.tamper = Some(Box::new(move |to_client, _, frame: Frame| {
        let reply = to_client && Opcode::from_raw(frame.header.opcode) == Some(Opcode::MdsReint);
        if reply && lose.get() { Vec::new() } else { vec![frame] }
    }));
    let removes = c.send(a, Call::Unlink { parent: x, name: name("f") });
    c.run();
    assert_eq!(c.lookup(b, x, "f"), Err(Errno::ENOENT), "the metadata target has done it");
    let forgets = |what: &Invalidation| matches!(what, Invalidation::Inode { ino, .. } if *ino == f.ino);
    assert!(c.nodes[a].invalidations.iter().any(forgets), "{:?}", c.nodes[a].invalidations);
    assert_eq!(c.getattr(a, f.ino).unwrap().nlink, 1);
    deaf.set(false);
    c.answer(a, removes).unwrap();
}

/// The kernel tells nobody that a pipe is open.
#[test]
fn a_pipe_that_was_removed_has_no_links() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let made = c.call(a, Call::Mknod { parent: 1, name: name("p"), mode: 0o010_644, rdev: 0 }).unwrap();
    let Answer::Entry(pipe) = made else { panic!("{made:?}") };
    c.call(a, Call::Unlink { parent: 1, name: name("p") }).unwrap();
    let set = SetStat { mode: Some(0o600), ..SetStat::default() };
    c.call(a, Call::Setattr { ino: pipe.ino, set }).unwrap();
    let stat = c.getattr(a, pipe.ino).unwrap();
    assert_eq!((stat.nlink, stat.mode & 0o777), (0, 0o600));
}

/// Where only the metadata target can say who may read a directory, its first names come with the opening of it. A name may be
/// changed before they are read.
#[test]
fn names_that_came_with_the_opening_are_not_shown_when_one_was_changed_since() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let dir = c.mkdir(a, 1, "d").unwrap().ino;
    let set = SetStat { mode: Some(0o777), ..SetStat::default() };
    c.call(a, Call::Setattr { ino: dir, set }).unwrap();
    c.call(a, Call::Setxattr { ino: dir, name: name("user.x"), value: name("1"), flags: 0 }).unwrap();
    let (_, made) = c.create(a, dir, "old").unwrap();
    c.close(a, made).unwrap();
    let Ok(Answer::Opened { fh, .. }) = c.call_as(a, 1000, Call::Opendir { ino: dir }) else { panic!() };
    let rename = Call::Rename { parent: dir, name: name("old"), new_parent: dir, new_name: name("new"), flags: 0 };
    c.call(a, rename).unwrap();
    let read = Call::Readdir { fh, offset: 0, max_bytes: 65536, plus: false };
    let Ok(Answer::Entries(entries)) = c.call_as(a, 1000, read) else { panic!() };
    let shown: Vec<_> = entries.iter().map(|entry| entry.name.clone()).collect();
    assert_eq!(shown, [name("."), name(".."), name("new")]);
}

/// The kernel does not believe an answer to a question that is older than a word to forget: no such word comes without need.
#[test]
fn a_kernel_without_attributes_is_not_told_to_forget_them() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let f = c.mkdir(a, 1, "f").unwrap().ino;
    let told = |c: &mut Cluster| {
        let inode = |what: &Invalidation| matches!(what, Invalidation::Inode { ino, .. } if *ino == f);
        core::mem::take(&mut c.nodes[a].invalidations).iter().filter(|what| inode(what)).count()
    };
    let chmod = |c: &mut Cluster, mode| {
        let set = SetStat { mode: Some(mode), ..SetStat::default() };
        c.call(b, Call::Setattr { ino: f, set }).unwrap();
    };
    chmod(&mut c, 0o700);
    assert!(told(&mut c) > 0, "it had them from the creation");
    // The locks are here again, and no attributes in the kernel.
    c.call(a, Call::Listxattr { ino: f }).unwrap();
    c.call(a, Call::Opendir { ino: f }).unwrap();
    chmod(&mut c, 0o755);
    assert_eq!(told(&mut c), 0);
    assert!(stdx::marks::count("no_invalidation_needed") > 0);

    // While one program waits for attributes, the kernel may not keep what another is told meanwhile.
    c.lose_frames(true, [Opcode::MdsGetattr]);
    let asked = c.send(a, Call::Getattr { ino: f, fh: None });
    c.run();
    let seen = c.lookup(a, 1, "f").unwrap();
    assert!(!c.answered(a, asked) && !seen.cacheable);
    c.tamper = None;
    assert!(matches!(c.answer(a, asked), Ok(Answer::Attr(_))));
    assert!(c.lookup(a, 1, "f").unwrap().cacheable);
}

/// The kernel never looks the root up, and keeps its attributes all the same.
#[test]
fn the_kernel_is_told_to_forget_the_attributes_of_the_root() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    for node in [a, b, a] {
        let other = a + b - node;
        c.nodes[other].invalidations.clear();
        // A client that has just changed a directory may soon do it again, and would have to have the kernel forget it each time.
        c.pass(Duration::from_millis(20));
        assert!(c.getattr(other, 1).unwrap().cacheable);
        let set = SetStat { mode: Some(0o700 + node as u32), ..SetStat::default() };
        c.call(node, Call::Setattr { ino: 1, set }).unwrap();
        let told = |what: &Invalidation| matches!(what, Invalidation::Inode { ino: 1, .. });
        assert!(c.nodes[other].invalidations.iter().any(told), "mount {other}");
        assert_eq!(c.getattr(other, 1).unwrap().mode & 0o777, 0o700 + node as u32);
    }
}

#[test]
fn what_was_known_before_a_file_is_cut_by_an_open_is_not_kept_after_it() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let (f, fh) = c.create(a, 1, "f").unwrap();
    assert_eq!(c.write(a, fh, 0, &[7; 422]), Ok(422));
    c.close(a, fh).unwrap();
    assert!(matches!(c.getattr(a, f.ino), Ok(stat) if stat.size == 422 && stat.cacheable));
    c.tamper = Some(Box::new(|to_client, _, frame| {
        let reint = !to_client && Opcode::from_raw(frame.header.opcode) == Some(Opcode::MdsReint);
        let opens = |op: &Option<Reint>| matches!(op, Some(Reint::Open(_)));
        if reint && frame.decode::<ReintReq>().is_ok_and(|request| opens(&request.op)) {
            Vec::new()
        } else {
            vec![frame]
        }
    }));
    let opened = c.send(a, Call::Open { ino: f.ino, flags: 0o1002 });
    c.run();
    let set = SetStat { mode: Some(0o600), ..SetStat::default() };
    let changed = c.call(a, Call::Setattr { ino: f.ino, set });
    assert!(
        matches!(changed, Ok(Answer::Attr(stat)) if stat.size == 422 && !stat.cacheable),
        "the kernel may see it last"
    );
    assert!(!c.answered(a, opened));
    c.tamper = None;
    assert!(matches!(c.answer(a, opened), Ok(Answer::Opened { .. })));
    assert!(matches!(c.getattr(a, f.ino), Ok(stat) if stat.size == 0 && stat.cacheable));
}

/// Pages that reads fill while a direct write is on its way are old when it is done, and an asynchronous one does not make the kernel
/// drop them: it is told to before the write is answered, or with the next open if nobody has the file open through its pages.
#[test]
fn pages_that_were_read_beside_a_direct_write_go() {
    const DIRECT: u32 = 0o40000;
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, &[1; 200_000]).unwrap();
    c.close(a, fh).unwrap();
    let direct = c.open(a, f.ino, 2 | DIRECT).unwrap();
    let write = |offset| {
        let data = Bytes::from(vec![2; 4096]);
        Call::Write { fh: direct, ino: f.ino, offset, data, write_back: false, kill_priv: false }
    };
    let dropped = |what: &Invalidation, at| matches!(what, Invalidation::Inode { ino, offset, length: 4096, .. } if *ino == f.ino && *offset == at);
    c.nodes[a].invalidations.clear();
    c.call(a, write(0)).unwrap();
    assert!(!c.nodes[a].invalidations.iter().any(|what| dropped(what, 0)), "nobody reads beside it");
    let keeps = |c: &mut Cluster| match c.call(a, Call::Open { ino: f.ino, flags: 0 }) {
        Ok(Answer::Opened { fh, keep_cache, .. }) => (fh, keep_cache),
        other => panic!("{other:?}"),
    };
    let (reader, kept) = keeps(&mut c);
    assert!(!kept, "pages of readers that have closed it meanwhile are dropped by the next open");
    assert!(keeps(&mut c).1, "once");
    assert_eq!(c.read(a, reader, 8192, 10).unwrap()[..], [1; 10]);

    c.nodes[a].slow_kernel = true;
    c.nodes[a].invalidations.clear();
    let id = c.send(a, write(8192));
    c.pass(Duration::from_millis(500));
    assert!(!c.answered(a, id) && c.nodes[a].invalidations.iter().any(|what| dropped(what, 8192)));
    c.nodes[a].slow_kernel = false;
    assert!(matches!(c.answer(a, id), Ok(Answer::Written(4096))));
    let other = c.lookup(b, 1, "f").unwrap();
    let other = c.open(b, other.ino, 0).unwrap();
    assert_eq!(c.read(b, other, 8192, 10).unwrap()[..], [2; 10]);
}

/// What an answer says of a name may be over when it comes: another client has called the lock back and removed the name. A lock that came
/// with another name of the object since does not cover it, nor does one of the directory that came with another of its names.
#[test]
fn a_name_that_comes_late_is_not_kept_under_a_lock_that_came_meanwhile() {
    let rename =
        |text, parent| Call::Rename { parent: 1, name: name(text), new_parent: parent, new_name: name("g"), flags: 0 };
    let kinds = ["link", "rename", "to itself", "lookup", "create", "list"];
    for (kind, of_directory) in kinds.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let mut c = Cluster::new(1);
        let (a, b) = (c.mount(), c.mount());
        let dir = c.mkdir(b, 1, "d").unwrap().ino;
        let (f, fh) = c.create(b, 1, "f").unwrap();
        c.close(b, fh).unwrap();
        let link = |new_parent, text| Call::Link { ino: f.ino, new_parent, new_name: name(text) };
        c.call(b, link(1, "h")).unwrap();
        c.walk(a, "d").unwrap();
        c.walk(a, "h").unwrap();
        c.walk(a, "f").unwrap();
        let (_, fh) = c.create(b, dir, "k").unwrap();
        c.close(b, fh).unwrap();
        if !["link", "rename"].contains(&kind) {
            c.call(b, link(dir, "g")).unwrap();
        }
        let (opcode, call) = match kind {
            "link" => (Opcode::MdsReint, link(dir, "g")),
            "rename" | "to itself" => (Opcode::MdsReint, rename("h", dir)),
            "lookup" => (Opcode::MdsLookup, Call::Lookup { parent: dir, name: name("g") }),
            "create" => (Opcode::MdsReint, Call::Create { parent: dir, name: name("g"), mode: 0o644, flags: 2 }),
            _ => {
                let Ok(Answer::Opened { fh, .. }) = c.call(a, Call::Opendir { ino: dir }) else { panic!() };
                (Opcode::MdsReaddir, Call::Readdir { fh, offset: 0, max_bytes: 4096, plus: true })
            }
        };
        let lookups = Rc::new(Cell::new(None));
        let (left, mut held) = (lookups.clone(), Vec::new());
        c.tamper = Some(Box::new(move |to_client, at, frame: Frame| {
            let is = |opcode| to_client && at == a && frame.header.opcode == opcode as u16;
            if is(opcode) && left.get().is_none() {
                held.push(frame);
                return Vec::new();
            }
            if is(Opcode::MdsLookup) {
                left.set(left.get().map(|left: u32| left.saturating_sub(1)));
            }
            let released = if left.get() == Some(0) { core::mem::take(&mut held) } else { Vec::new() };
            core::iter::once(frame).chain(released).collect()
        }));
        let late = c.send(a, call);
        c.run();
        assert!(!c.answered(a, late), "{kind}, {of_directory}");
        c.call(b, Call::Unlink { parent: dir, name: name("g") }).unwrap();
        // The answer comes behind the last of these.
        lookups.set(Some(if of_directory { 2 } else { 1 }));
        c.nodes[a].invalidations.clear();
        c.lookup(a, 1, "f").unwrap();
        if of_directory {
            c.lookup(a, dir, "k").unwrap();
        }
        match c.answer(a, late) {
            Ok(Answer::Entry(stat) | Answer::Created { stat, .. }) => {
                assert!(!stat.entry_cacheable, "{kind}, {of_directory}")
            }
            Ok(Answer::Entries(entries)) => {
                let stat = entries.iter().find(|entry| entry.name == "g").unwrap().stat.as_ref();
                assert!(stat.is_none_or(|stat| !stat.entry_cacheable), "{kind}, {of_directory}");
            }
            // The kernel moves its entry, and has to forget it.
            Ok(Answer::Done) => {
                let forgets = |what: &Invalidation| matches!(what, Invalidation::Entry { name, .. } if name == "g");
                assert!(c.nodes[a].invalidations.iter().any(forgets), "{kind}, {of_directory}");
            }
            other => panic!("{kind}, {of_directory}: {other:?}"),
        }
        assert_eq!(c.lookup(a, dir, "g"), Err(Errno::ENOENT), "{kind}, {of_directory}");
    }
    assert!(stdx::marks::count("name_from_before_the_lock") > 0);
}

/// Programs that append go past the kernel's pages, too: those that reads fill while an append is on its way are old when it is done.
#[test]
fn pages_that_were_read_beside_an_append_go() {
    const APPEND: u32 = 0o2000;
    let mut c = Cluster::new(1);
    let a = c.mount();
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, &[1; 114]).unwrap();
    c.close(a, fh).unwrap();
    let log = c.open(a, f.ino, 1 | APPEND).unwrap();
    // The kernel may think that the file ends elsewhere.
    let append = || {
        let data = Bytes::from(vec![2; 35]);
        Call::Write { fh: log, ino: f.ino, offset: 5000, data, write_back: false, kill_priv: false }
    };
    let reader = c.open(a, f.ino, 0).unwrap();
    // The kernel forgets the attributes with the first.
    assert_eq!(c.call(a, append()), Ok(Answer::Written(35)));
    assert_eq!(c.read(a, reader, 0, 4096).unwrap().len(), 149);
    c.nodes[a].slow_kernel = true;
    c.nodes[a].invalidations.clear();
    let id = c.send(a, append());
    c.pass(Duration::from_millis(500));
    let drops = |what: &Invalidation, at| matches!(what, Invalidation::Inode { ino, offset, length: 35, .. } if *ino == f.ino && *offset == at);
    assert!(!c.answered(a, id) && c.nodes[a].invalidations.iter().any(|what| drops(what, 149)));
    let now = c.now;
    c.nodes[a].machine.handle(now, Event::Interrupt { id });
    assert!(!c.answered(a, id), "it is appended");
    c.nodes[a].slow_kernel = false;
    assert_eq!(c.answer(a, id), Ok(Answer::Written(35)));
    assert_eq!(c.read(a, reader, 0, 4096).unwrap().len(), 184);

    c.close(a, reader).unwrap();
    c.nodes[a].invalidations.clear();
    assert_eq!(c.call(a, append()), Ok(Answer::Written(35)));
    assert!(!c.nodes[a].invalidations.iter().any(|what| drops(what, 184)), "nobody reads beside it");
    let mut keeps = || match c.call(a, Call::Open { ino: f.ino, flags: 0 }) {
        Ok(Answer::Opened { keep_cache, .. }) => keep_cache,
        other => panic!("{other:?}"),
    };
    assert_eq!([keeps(), keeps()], [false, true], "the next open drops pages of readers that have closed it meanwhile");
}

/// A read past the kernel's pages that sees what is appended before the append is answered sees the size with it, too.
#[test]
fn no_size_without_what_was_read_of_an_append() {
    const APPEND: u32 = 0o2000;
    let mut c = Cluster::new(1);
    let a = c.mount();
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.close(a, fh).unwrap();
    let logs = [(); 2].map(|()| c.open(a, f.ino, 2 | APPEND).unwrap());
    for end in [0, 35] {
        assert!(c.getattr(a, f.ino).unwrap().cacheable);
        c.nodes[a].slow_kernel = true;
        c.nodes[a].invalidations.clear();
        let data = Bytes::from(vec![2; 35]);
        let append = Call::Write { fh: logs[1], ino: f.ino, offset: end, data, write_back: false, kill_priv: false };
        let id = c.send(a, append);
        c.pass(Duration::from_millis(500));
        assert!(!c.answered(a, id));
        assert_eq!(c.read(a, logs[0], 0, 4096).unwrap().len(), end as usize, "this is the size that the kernel keeps");
        c.nodes[a].slow_kernel = false;
        assert_eq!(c.answer(a, id), Ok(Answer::Written(35)));
        assert_eq!(c.read(a, logs[0], 0, 4096).unwrap().len(), end as usize + 35);
        let length = |what: &Invalidation| match what {
            Invalidation::Inode { ino, length, .. } if *ino == f.ino => Some(*length),
            _ => None,
        };
        let lengths: Vec<u64> = c.nodes[a].invalidations.iter().filter_map(length).collect();
        assert_eq!(lengths, [0, 35], "the attributes before it is to be seen, the pages when it is");
    }
}
