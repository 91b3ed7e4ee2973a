//! Servers that die, connections that break, clients that are given up.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use client::api::{Answer, Call, Event, Invalidation, Options, RecordLock, RecordLockKind, SetStat};
use prost::Message;
use proto::frame::flags;
use proto::msg::{EnqueueReq, Layout, OpenOp, Reint, ReintReq, WriteReq};
use proto::{Errno, Frame, Opcode};
use stdx::Rng;
use testkit::cluster::{self, Cluster, cred, name, wish};

#[test]
fn what_was_answered_is_there_after_the_server_died() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    c.slow_media = true;
    let dir = c.mkdir(a, 1, "d").unwrap().ino;
    let mut open = Vec::new();
    for i in 0..20 {
        open.push(c.create(a, dir, &format!("f{i}")).unwrap());
    }
    c.unlink(a, dir, "f3").unwrap();
    c.call(a, Call::Rename { parent: dir, name: name("f4"), new_parent: 1, new_name: name("g"), flags: 0 }).unwrap();
    c.restart("fs-MDT0000");
    c.slow_media = false;
    let names = {
        let mut names = c.list(b, dir, false).unwrap_or_default();
        if names.is_empty() {
            let dir = c.walk(b, "d").unwrap();
            names = c.list(b, dir, false).unwrap();
        }
        names
    };
    assert_eq!(names.len(), 2 + 18, "{:?} {:#?}", names, c.log);
    assert_eq!(c.lookup(b, 1, "g").unwrap().ino, open[4].0.ino);
    // Open files go on, the one without a name too.
    for (stat, fh) in &open {
        assert_eq!(c.write(a, *fh, 0, b"data"), Ok(4), "{stat:?}");
        c.call(a, Call::Fsync { fh: *fh }).unwrap();
        assert_eq!(&c.read(a, *fh, 0, 10).unwrap()[..], b"data");
        c.close(a, *fh).unwrap();
    }
    c.pass(Duration::from_secs(3));
    assert_eq!(c.lookup(b, 1, "g").unwrap().size, 4);
}

/// A change is shown to others before its own client is told of it. If its server dies then, it may never have been: and who saw
/// it must not go on believing in it, although every lock that covered it is replayed.
#[test]
fn what_a_crash_undid_is_forgotten_by_those_who_saw_it() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let dir = c.mkdir(a, 1, "d").unwrap().ino;
    c.create(a, dir, "stays").unwrap();
    c.pass(Duration::from_secs(3));
    let dir_of_b = c.walk(b, "d").unwrap();
    c.slow_media = true;
    let deaf = a;
    c.tamper = Some(Box::new(move |to_client, at, frame| {
        let lost = to_client && at == deaf && frame.header.transno.0 != 0;
        if lost { Vec::new() } else { vec![frame] }
    }));
    c.send(a, Call::Mkdir { parent: dir, name: name("gone"), mode: 0o755 });
    c.run();
    assert_eq!(c.list(b, dir_of_b, false).unwrap().len(), 4);
    let seen = c.lookup(b, dir_of_b, "gone").unwrap();
    assert_eq!(c.getattr(b, dir_of_b).unwrap().nlink, 3);
    c.die(a);
    c.tamper = None;
    c.restart("fs-MDT0000");
    c.slow_media = false;
    c.pass(Duration::from_secs(400));
    assert!(stdx::marks::count("directory_doubted") > 0);
    assert_eq!(c.lookup(b, dir_of_b, "gone").map(|stat| stat.ino), Err(Errno::ENOENT));
    assert_eq!(c.list(b, dir_of_b, false).unwrap().len(), 3);
    assert_eq!(c.getattr(b, dir_of_b).unwrap().nlink, 2);
    let told = |what: &Invalidation| matches!(what, Invalidation::Entry { name: gone, .. } if gone == &name("gone"));
    assert!(c.nodes[b].invalidations.iter().any(told), "the kernel of {} was not told: {:?}", seen.ino, c.log);
}

/// The same of a name of a file that who saw it is about to cut.
#[test]
fn a_name_that_a_crash_undid_is_forgotten_by_who_changes_the_file() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.close(a, fh).unwrap();
    c.pass(Duration::from_secs(3));
    c.slow_media = true;
    let deaf = a;
    c.tamper = Some(Box::new(move |to_client, at, frame| {
        let lost = to_client && at == deaf && frame.header.transno.0 != 0;
        if lost { Vec::new() } else { vec![frame] }
    }));
    c.send(a, Call::Rename { parent: 1, name: name("f"), new_parent: 1, new_name: name("g"), flags: 0 });
    c.run();
    assert_eq!(c.lookup(b, 1, "g").unwrap().ino, f.ino);
    // It has the lock for that, and waits for the answer: what it hangs on is not durable.
    let cut = c.send(b, Call::Setattr { ino: f.ino, set: SetStat { size: Some(7), ..SetStat::default() } });
    assert!(!c.answered(b, cut));
    c.die(a);
    c.tamper = None;
    c.restart("fs-MDT0000");
    c.slow_media = false;
    c.pass(Duration::from_secs(400));
    let told = |what: &Invalidation| matches!(what, Invalidation::Entry { name: gone, .. } if gone == &name("g"));
    assert!(c.nodes[b].invalidations.iter().any(told), "{:?}", c.log);
    assert_eq!(c.lookup(b, 1, "g").map(|stat| stat.ino), Err(Errno::ENOENT));
    let kept = c.lookup(b, 1, "f").unwrap();
    assert_eq!((kept.ino, kept.size, c.answered(b, cut)), (f.ino, 7, true));
}

/// A client has seen a change that a crash undid, and its lock to read the file goes for that. What it has written under another lock stays.
#[test]
fn what_is_written_stays_when_a_lock_to_read_is_lost() {
    let mut c = Cluster::new(1);
    let a = c.begin_mount(Options { write_back_after: Duration::from_secs(1000), ..Cluster::options(0) });
    c.until(|c| c.nodes[a].mounted);
    let b = c.mount();
    c.slow_media = true;
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, &[7; 10]).unwrap();
    c.tamper = Some(Box::new(move |to_client, at, frame| {
        let lost = to_client && at == b && frame.header.transno.0 != 0;
        if lost { Vec::new() } else { vec![frame] }
    }));
    c.lookup(b, 1, "f").unwrap();
    c.send(b, Call::Setattr { ino: f.ino, set: SetStat { mode: Some(0o600), ..SetStat::default() } });
    c.run();
    assert_eq!(c.lookup(a, 1, "f").unwrap().mode, 0o100_600);
    c.die(b);
    c.tamper = None;
    c.restart("fs-MDT0000");
    c.slow_media = false;
    c.pass(Duration::from_secs(400));
    assert_eq!(c.lookup(a, 1, "f").unwrap().mode, 0o100_644, "nobody does it again");
    assert!(!c.log.iter().any(|line| line.contains("are lost")), "{:?}", c.log);
    c.call(a, Call::Fsync { fh }).unwrap();
    assert_eq!(c.read(a, fh, 0, 10).unwrap()[..], [7; 10]);
}

/// A file is removed, and its last close is done by a target that crashes before it can say so. What was to be written to it, or was on its
/// way, nobody misses: the client owes nothing when it unmounts.
#[test]
fn bytes_of_a_file_that_goes_with_its_last_close_are_not_missed_after_a_crash() {
    for on_its_way in [false, true] {
        let mut c = Cluster::new(1);
        let a = c.begin_mount(Options { write_back_after: Duration::from_secs(1000), ..Cluster::options(0) });
        c.until(|c| c.nodes[a].mounted);
        let b = c.mount();
        let (f, fh_of_b) = c.create(b, 1, "f").unwrap();
        c.close(b, fh_of_b).unwrap();
        c.lookup(a, 1, "f").unwrap();
        let fh = c.open(a, f.ino, 0o2).unwrap();
        c.write(a, fh, 0, &[7; 10]).unwrap();
        c.unlink(b, 1, "f").unwrap();
        c.tamper = Some(Box::new(|to_client, _, frame| {
            let lost = if to_client { Opcode::MdsClose } else { Opcode::ObjWrite };
            if frame.header.opcode == lost as u16 { Vec::new() } else { vec![frame] }
        }));
        if on_its_way {
            let sync = c.send(a, Call::Fsync { fh });
            c.run();
            assert!(!c.answered(a, sync));
        }
        c.close(a, fh).unwrap();
        c.pass(Duration::from_secs(3));
        c.tamper = None;
        c.restart("fs-MDT0000");
        c.pass(Duration::from_secs(10));
        let said = |what: &str| c.log.iter().any(|line| line.contains(what));
        assert!(said("was removed before 10 bytes of it were written back") && !said("are lost"), "{:#?}", c.log);
        let now = c.now;
        c.nodes[a].machine.handle(now, Event::Unmount);
        c.until(|c| c.nodes[a].unmounted);
        assert_eq!(c.nodes[a].lost, None);
    }
}

#[test]
fn a_lost_object_target_is_replaced_and_what_it_had_is_an_error() {
    let mut c = Cluster::new(2);
    let (a, b) = (c.mount(), c.mount());
    let data = vec![7; 200_000];
    let on = |c: &mut Cluster, text: &str, osts: &[u32]| {
        let (stat, fh) = c.create(a, 1, text).unwrap();
        let list = Layout { osts: osts.to_vec(), stripe_size: 64 << 10, want_first: -1, ..Layout::default() };
        c.call(a, Call::SetLayout { ino: stat.ino, wish: list }).unwrap();
        (stat.ino, fh)
    };
    let files = [on(&mut c, "lost", &[0]), on(&mut c, "striped", &[1, 0]), on(&mut c, "kept", &[1])];
    for (_, fh) in files {
        c.write(a, fh, 0, &data).unwrap();
        c.call(a, Call::Fsync { fh }).unwrap();
    }
    let (_, grows) = on(&mut c, "small", &[0]);
    c.write(a, grows, 0, &[1; 100]).unwrap();
    c.call(a, Call::Fsync { fh: grows }).unwrap();

    let ost = c.replace("fs-OST0000");
    c.pass(Duration::from_secs(300));
    c.start(ost);
    c.pass(Duration::from_secs(30));
    for at in [a, b] {
        for text in ["lost", "striped"] {
            let found = c.lookup(at, 1, text).unwrap_or_else(|errno| panic!("{text} is still there: {errno}"));
            assert_eq!(c.getattr(at, found.ino).map(|stat| stat.size), Err(Errno::EIO), "{text}");
        }
        assert_eq!(c.lookup(at, 1, "kept").unwrap().size, 200_000);
        assert_eq!(c.lookup(at, 1, "small").unwrap().size, 100);
    }
    assert_eq!(c.read(a, files[0].1, 0, 10), Err(Errno::EIO));
    assert_eq!(c.read(a, files[2].1, 199_999, 10).unwrap()[..], [7]);
    // Small files grow to it, new ones lie there, and go through restarts.
    for round in 0..2 {
        let (_, new) = on(&mut c, &format!("new{round}"), &[0, 1]);
        for fh in [grows, new] {
            c.write(a, fh, 0, &data).unwrap();
            c.call(a, Call::Fsync { fh }).unwrap();
            assert_eq!(c.read(a, fh, 0, 300_000).unwrap()[..], data);
        }
        let fh = c.lookup(b, 1, "small").and_then(|stat| c.open(b, stat.ino, 0)).unwrap();
        assert_eq!(c.read(b, fh, 0, 300_000).unwrap()[..], data);
        ["fs-MDT0000", "fs-OST0000", "MGS"].into_iter().for_each(|name| c.restart(name));
        c.pass(Duration::from_secs(30));
    }
    assert!(stdx::marks::count("object_of_lost_target") > 0);
    assert!(stdx::marks::count("objects_numbered_anew") > 0);
    // What was lost can be removed, and its name be used again.
    for text in ["lost", "striped"] {
        c.unlink(b, 1, text).unwrap();
        let (_, fh) = c.create(b, 1, text).unwrap();
        assert_eq!(c.write(b, fh, 0, &data), Ok(200_000));
        assert_eq!(c.read(b, fh, 0, 300_000).unwrap()[..], data);
    }
}

/// A file that grows while its object target is away, and of which a listing has brought another lock, on its names and its data at once:
/// who changes its names does not wait for the target.
#[test]
fn the_names_of_a_file_that_cannot_leave_can_be_changed() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (_, fh) = c.create(a, 1, "small").unwrap();
    c.write(a, fh, 0, &[1; 1000]).unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    c.kill(c.server("fs-OST0000"));
    let grows = c.send(a, write_call(fh, 0, vec![2; 200_000]));
    c.pass(Duration::from_secs(2));
    let (_, other) = c.create(b, 1, "other").unwrap();
    c.close(b, other).unwrap();
    c.list(a, 1, true).unwrap();
    let begin = c.now;
    let rename = Call::Rename { parent: 1, name: name("small"), new_parent: 1, new_name: name("moved"), flags: 0 };
    assert_eq!(c.call(b, rename), Ok(Answer::Done));
    assert!(c.now.since(begin) < Duration::from_secs(10), "after {:?}", c.now.since(begin));
    assert!(!c.answered(a, grows));
    c.start(c.server("fs-OST0000"));
    c.pass(Duration::from_secs(60));
    assert_eq!(c.answer(a, grows), Ok(Answer::Written(200_000)));
    assert_eq!(c.lookup(b, 1, "moved").unwrap().size, 200_000);
}

/// A file grows, its copy is on its way to the object target, and that goes away; meanwhile another client cuts the file. The copy of
/// before is written when the target is back: nothing of it is in the file.
#[test]
fn an_older_copy_of_a_file_that_leaves_does_not_show() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (small, fh) = c.create(a, 1, "small").unwrap();
    c.write(a, fh, 0, &[1; 40_000]).unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    c.lose_frames(false, [Opcode::ObjWrite]);
    let cut = |size, fh| Call::Setattr { ino: small.ino, set: SetStat { size: Some(size), fh, ..SetStat::default() } };
    let grows = c.send(a, cut(200_000, Some(fh)));
    c.pass(Duration::from_secs(1));
    let ost = c.server("fs-OST0000");
    c.kill(ost);
    c.tamper = None;
    c.pass(Duration::from_secs(1));
    c.call(b, cut(0, None)).unwrap();
    let fh_of_b = c.open(b, small.ino, 2).unwrap();
    c.write(b, fh_of_b, 0, &[2; 100]).unwrap();
    assert!(!c.answered(a, grows));
    c.start(ost);
    assert!(matches!(c.answer(a, grows), Ok(Answer::Attr(stat)) if stat.size == 200_000));
    let bytes = c.read(b, fh_of_b, 0, 200_000).unwrap();
    assert_eq!(bytes[..100], [2; 100]);
    assert_eq!(bytes[100..], [0; 199_900]);
}

/// Files grow, and are moved, while their object target is away: who wants to look at them meanwhile can, and nobody is evicted.
#[test]
fn a_file_that_cannot_leave_does_not_keep_others_waiting() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (small, fh) = c.create(a, 1, "small").unwrap();
    c.write(a, fh, 0, &[1; 1000]).unwrap();
    let (large, other) = c.create(a, 1, "large").unwrap();
    c.write(a, other, 0, &[3; 200_000]).unwrap();
    for fh in [fh, other] {
        c.call(a, Call::Fsync { fh }).unwrap();
    }
    let ost = c.server("fs-OST0000");
    c.kill(ost);
    let write =
        Call::Write { fh, ino: 0, offset: 0, data: vec![2; 200_000].into(), write_back: false, kill_priv: false };
    let grows = c.send(a, write);
    c.pass(Duration::from_secs(2));
    let begin = c.now;
    assert_eq!(c.lookup(b, 1, "small").unwrap().size, 1000);
    let fh_of_b = c.open(b, small.ino, 0).unwrap();
    assert_eq!(c.read(b, fh_of_b, 990, 100).unwrap()[..], [1; 10]);
    assert!(c.now.since(begin) < Duration::from_secs(10), "after {:?}", c.now.since(begin));
    assert!(stdx::marks::count("leave_makes_way") > 0);
    // Whatever the lock timeouts are, nobody is evicted in an hour.
    for _ in 0..60 {
        c.pass(Duration::from_secs(60));
        assert_eq!(c.lookup(b, 1, "small").unwrap().size, 1000);
    }
    assert!(!c.answered(a, grows));
    c.start(ost);
    assert_eq!(c.answer(a, grows), Ok(Answer::Written(200_000)));
    assert_eq!(c.read(b, fh_of_b, 199_999, 10).unwrap()[..], [2]);
    assert_eq!(c.getattr(b, large.ino).map(|stat| stat.size), Ok(200_000));
    let evictions = c.log.iter().filter(|line| line.contains("evicts client")).count();
    assert_eq!(evictions, 0, "{:?}", c.log);
}

/// The metadata target starts again before it has heard of the first object target, and the management target is away.
#[test]
fn a_file_that_knows_no_object_target_waits_for_one() {
    let mut c = Cluster::new(0);
    let a = c.mount();
    let (_, fh) = c.create(a, 1, "f").unwrap();
    assert_eq!(c.write(a, fh, 0, &[1; 1000]), Ok(1000));
    let id = c.send(
        a,
        Call::Write { fh, ino: 0, offset: 0, data: vec![1; 200_000].into(), write_back: false, kill_priv: false },
    );
    assert_eq!(c.answer(a, id), Err(Errno::ENOSPC), "this file system has no object targets");
    let (mgs, mdt) = (c.server("MGS"), c.server("fs-MDT0000"));
    c.kill(mdt);
    let ost = c.add_server("fs-OST0000");
    c.start(ost);
    c.pass(Duration::from_secs(3));
    c.kill(mgs);
    c.start(mdt);
    c.pass(Duration::from_secs(1));
    let id = c.send(
        a,
        Call::Write { fh, ino: 0, offset: 0, data: vec![2; 200_000].into(), write_back: false, kill_priv: false },
    );
    c.pass(Duration::from_secs(5));
    assert!(!c.answered(a, id));
    assert!(stdx::marks::count("leave_waits_for_targets") > 0);
    c.start(mgs);
    assert!(matches!(c.answer(a, id), Ok(Answer::Written(200_000))), "{:?}", c.log);
    c.call(a, Call::Fsync { fh }).unwrap();
    assert_eq!(c.read(a, fh, 199_999, 10).unwrap()[..], [2]);
}

#[test]
fn a_restart_in_the_midst_of_a_call_is_only_a_pause() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let at = c.server("fs-MDT0000");
    c.kill(at);
    let id = c.send(a, Call::Mkdir { parent: 1, name: name("d"), mode: 0o755 });
    c.pass(Duration::from_secs(2));
    assert!(!c.answered(a, id));
    c.start(at);
    assert!(matches!(c.answer(a, id), Ok(Answer::Entry(_))));
    let dir = c.lookup(a, 1, "d").unwrap().ino;
    c.cut(a);
    c.create(a, dir, "f").unwrap();
    assert_eq!(c.list(a, dir, false).unwrap().len(), 3);
}

#[test]
fn data_that_was_not_durable_is_sent_again_to_a_target_that_restarts() {
    let mut c = Cluster::new(2);
    let a = c.mount();
    c.call(a, Call::SetLayout { ino: 1, wish: wish(64 << 10, 2, 0) }).unwrap();
    let (_, fh) = c.create(a, 1, "f").unwrap();
    let data: Vec<u8> = (0..1_000_000u32).map(|i| (i % 251) as u8).collect();
    c.slow_media = true;
    for (at, piece) in data.chunks(50_000).enumerate() {
        let id = c.send(
            a,
            Call::Write {
                fh,
                ino: 0,
                offset: at as u64 * 50_000,
                data: piece.to_vec().into(),
                write_back: false,
                kill_priv: false,
            },
        );
        // The file leaves the metadata target only when its objects are durable.
        c.slow_media = false;
        c.answer(a, id).unwrap();
        c.slow_media = true;
    }
    c.pass(Duration::from_secs(6));
    c.restart("fs-OST0000");
    c.restart("fs-OST0001");
    c.slow_media = false;
    c.call(a, Call::Fsync { fh }).unwrap();
    let b = c.mount();
    let f = c.lookup(b, 1, "f").unwrap();
    assert_eq!(f.size, 1_000_000);
    let theirs = c.open(b, f.ino, 0).unwrap();
    for at in (0..1_000_000).step_by(100_000) {
        assert_eq!(c.read(b, theirs, at as u64, 100_000).unwrap(), data[at..at + 100_000], "at {at}");
    }
}

fn lock(kind: RecordLockKind, start: u64, end: u64) -> RecordLock {
    RecordLock { start, end, kind, pid: 1 }
}

/// A lock to read is asked for where its owner may write, and beyond: it is refused, and nothing is taken away, whenever the
/// server dies.
#[test]
fn a_refused_lock_takes_no_stronger_one_away_over_a_restart() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (f, ours) = c.create(a, 1, "f").unwrap();
    c.lookup(b, 1, "f").unwrap();
    let theirs = c.open(b, f.ino, 2).unwrap();
    let (read, write) = (RecordLockKind::Shared, RecordLockKind::Exclusive);
    let set =
        |fh, kind, start, end| Call::Setlk { fh, owner: 1, lock: lock(kind, start, end), wait: false, flock: false };
    c.call(a, set(ours, write, 0, 9)).unwrap();
    c.call(b, set(theirs, write, 20, 29)).unwrap();
    let server = c.server("fs-MDT0000");
    c.kill(server);
    let weaker = c.send(a, set(ours, read, 0, 29));
    c.start(server);
    assert_eq!(c.answer(a, weaker), Err(Errno::EAGAIN));
    assert_eq!(c.call(b, set(theirs, read, 0, 9)), Err(Errno::EAGAIN), "who was refused still writes there");
    // Once it is granted, others may read, too.
    c.call(b, set(theirs, RecordLockKind::Unlock, 20, 29)).unwrap();
    c.call(a, set(ours, read, 0, 29)).unwrap();
    c.call(b, set(theirs, read, 0, 29)).unwrap();
    assert_eq!(c.call(b, set(theirs, write, 0, 9)), Err(Errno::EAGAIN));
    c.restart("fs-MDT0000");
    assert_eq!(c.call(a, set(ours, write, 0, 9)), Err(Errno::EAGAIN));
}

#[test]
fn record_locks_wait_are_interrupted_and_survive_a_restart() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (f, ours) = c.create(a, 1, "f").unwrap();
    c.lookup(b, 1, "f").unwrap();
    let theirs = c.open(b, f.ino, 2).unwrap();
    let set = |fh, owner, kind, wait| Call::Setlk { fh, owner, lock: lock(kind, 0, 9), wait, flock: false };
    c.call(a, set(ours, 1, RecordLockKind::Exclusive, false)).unwrap();
    assert_eq!(c.call(b, set(theirs, 1, RecordLockKind::Shared, false)), Err(Errno::EAGAIN));
    let Answer::Lock(found) =
        c.call(b, Call::Getlk { fh: theirs, owner: 1, lock: lock(RecordLockKind::Shared, 0, u64::MAX) }).unwrap()
    else {
        panic!()
    };
    assert_eq!((found.kind, found.start, found.end), (RecordLockKind::Exclusive, 0, 9));
    // Interrupted while it waits.
    let id = c.send(b, set(theirs, 1, RecordLockKind::Shared, true));
    assert!(!c.answered(b, id));
    let now = c.now;
    c.nodes[b].machine.handle(now, Event::Interrupt { id });
    assert_eq!(c.answer(b, id), Err(Errno::EINTR));
    // The server dies; the lock is still ours.
    c.restart("fs-MDT0000");
    assert_eq!(c.call(b, set(theirs, 1, RecordLockKind::Shared, false)), Err(Errno::EAGAIN));
    // Waits, and gets it when the other closes.
    let id = c.send(b, set(theirs, 1, RecordLockKind::Shared, true));
    assert!(!c.answered(b, id));
    c.call(a, Call::Flush { fh: ours, lock_owner: 1 }).unwrap();
    c.answer(b, id).unwrap();
    // flock is another world, and goes with the last descriptor.
    let flock = |fh, owner| Call::Setlk {
        fh,
        owner,
        lock: lock(RecordLockKind::Exclusive, 0, u64::MAX),
        wait: false,
        flock: true,
    };
    c.call(a, flock(ours, 7)).unwrap();
    assert_eq!(c.call(b, flock(theirs, 7)), Err(Errno::EAGAIN));
    c.call(a, Call::Release { fh: ours, flock_owner: Some(7) }).unwrap();
    c.call(b, flock(theirs, 7)).unwrap();
}

/// The server recovers when the wait is interrupted: what it is told then it has forgotten when the request comes again.
#[test]
fn a_wait_for_a_record_lock_that_is_interrupted_while_its_server_is_away_ends() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (f, ours) = c.create(a, 1, "f").unwrap();
    c.lookup(b, 1, "f").unwrap();
    let theirs = c.open(b, f.ino, 2).unwrap();
    let set = |fh| Call::Setlk { fh, owner: 1, lock: lock(RecordLockKind::Exclusive, 0, 9), wait: true, flock: false };
    c.call(a, set(ours)).unwrap();
    for restarts in [true, false] {
        let id = c.send(b, set(theirs));
        c.pass(Duration::from_secs(1));
        assert!(!c.answered(b, id));
        if restarts {
            // It is back and recovers, and waits for the one that has the lock.
            let at = c.server("fs-MDT0000");
            c.kill(at);
            c.nodes[a].alive = false;
            c.cut(a);
            c.start(at);
            c.pass(Duration::from_secs(2));
        } else {
            c.cut(b);
        }
        let now = c.now;
        c.nodes[b].machine.handle(now, Event::Interrupt { id });
        c.pass(Duration::from_secs(1));
        c.nodes[a].alive = true;
        c.pass(Duration::from_secs(60));
        assert!(c.answered(b, id), "restarts {restarts}");
        assert_eq!(c.answer(b, id), Err(Errno::EINTR));
    }
    assert!(stdx::marks::count("record_abandoned_again") > 0);
}

/// A close tells of the process only, and not of the open file description that a lock of `F_OFD_SETLK` belongs to.
#[test]
fn locks_of_an_open_file_description_go_with_it_and_no_others() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (f, first) = c.create(a, 1, "f").unwrap();
    c.lookup(b, 1, "f").unwrap();
    let second = c.open(a, f.ino, 2).unwrap();
    let theirs = c.open(b, f.ino, 2).unwrap();
    let set = |fh, owner, start| Call::Setlk {
        fh,
        owner,
        lock: lock(RecordLockKind::Exclusive, start, start + 9),
        wait: false,
        flock: false,
    };
    let (process, description) = (1, 77);
    c.call(a, set(first, description, 0)).unwrap();
    // A process locks through a file that it closes and another keeps open, then through one of its own.
    c.call(a, set(first, process, 20)).unwrap();
    c.call(a, Call::Flush { fh: first, lock_owner: process }).unwrap();
    c.call(a, set(second, process, 20)).unwrap();
    assert_eq!(c.call(b, set(theirs, 2, 0)), Err(Errno::EAGAIN));
    c.call(a, Call::Release { fh: first, flock_owner: None }).unwrap();
    c.pass(Duration::from_secs(1));
    c.call(b, set(theirs, 2, 0)).unwrap();
    assert_eq!(c.call(b, set(theirs, 2, 20)), Err(Errno::EAGAIN), "the other file keeps its lock");
}

#[test]
fn a_client_that_was_silent_is_evicted_and_starts_anew() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, b"lost").unwrap();
    // Its kernel hangs: the lock is not given back in time.
    c.nodes[a].slow_kernel = true;
    let id = c.send(b, Call::Open { ino: f.ino, flags: 0 });
    let _ = c.answer(b, id);
    let id = c.send(b, Call::Setattr { ino: f.ino, set: SetStat { mode: Some(0o600), ..SetStat::default() } });
    assert!(c.answer(b, id).is_ok());
    c.nodes[a].slow_kernel = false;
    c.pass(Duration::from_secs(30));
    assert_eq!(c.call(a, Call::Read { fh, offset: 0, length: 10 }), Err(Errno::EIO), "{:#?}", c.log);
    assert_eq!(c.getattr(a, f.ino).unwrap().mode, 0o100_600);
    let again = c.open(a, f.ino, 0).unwrap();
    c.read(a, again, 0, 10).unwrap();
    assert!(stdx::marks::count("evicted") > 0);
    // Both sides say why, and the client what it has lost: by FID, for the kernel had to forget the name.
    for line in [
        "fs-MDT0000 Warn: evicts",
        "client 0 Error: fs-MDT0000 evicted this client: it did not give back its lock on ",
        "client 0 Error: fs-MDT0000: lost with the eviction of file [0x200000400:0x1:0x0]: 1 opens, 0 bytes that were not written back",
    ] {
        assert!(c.log.iter().any(|told| told.contains(line)), "{line}: {:#?}", c.log);
    }
    c.close(a, again).unwrap();
    c.create(a, 1, "g").unwrap();
}

/// Bytes that were not written back when their target gave the client up. Nobody has the file open that could be told at `fsync`, so
/// who opens it next is, once, also if the client has forgotten the node meanwhile.
#[test]
fn bytes_of_a_closed_file_that_an_eviction_takes_are_told_to_who_opens_it() {
    for forgets in [false, true] {
        let mut c = Cluster::new(1);
        let write_back_after = Duration::from_secs(20);
        let a = c.begin_mount(Options { max_nodes: 16, write_back_after, ..Cluster::options(0) });
        c.until(|c| c.nodes[a].mounted);
        let (f, fh) = c.create(a, 1, "f").unwrap();
        c.write(a, fh, 0, &[7; 300_000]).unwrap();
        c.close(a, fh).unwrap();
        c.cut(a);
        let uuid = Cluster::options(0).uuid.to_string();
        c.set_server_param("fs-OST0000", "obdfilter.fs-OST0000.evict_client", &uuid);
        c.until(|c| c.log.iter().any(|line| line.contains("are lost (its lock was lost")));
        if forgets {
            c.call(a, Call::Forget { ino: f.ino, count: 1 }).unwrap();
            c.pass(Duration::from_secs(5));
            for number in 0..64 {
                let made = c.mkdir(a, 1, &format!("d{number}")).unwrap();
                c.call(a, Call::Forget { ino: made.ino, count: 1 }).unwrap();
            }
            c.pass(Duration::from_secs(5));
            let nodes = c.nodes[a].machine.get_params("llite.*.nodes")[0].1.parse::<usize>().unwrap();
            assert!(nodes <= 20, "{nodes} nodes");
            assert_eq!(c.walk(a, "f"), Ok(f.ino));
        }
        assert_eq!(c.open(a, f.ino, 0).map(drop), Err(Errno::EIO), "forgets {forgets}: {:#?}", c.log);
        let fh = c.open(a, f.ino, 0).unwrap();
        assert_ne!(&c.read(a, fh, 0, 300_000).unwrap()[..], &[7; 300_000]);
    }
}

/// The same of a file that a program has open: each `fsync` tells of it once, also of those who open the file afterwards, until one of
/// them has heard of it. That is what Linux does with errors of write-back.
#[test]
fn who_opens_a_file_before_anybody_heard_of_lost_bytes_is_told_by_fsync() {
    let mut c = Cluster::new(1);
    let write_back_after = Duration::from_secs(20);
    let a = c.begin_mount(Options { write_back_after, ..Cluster::options(0) });
    c.until(|c| c.nodes[a].mounted);
    let (f, writer) = c.create(a, 1, "f").unwrap();
    c.write(a, writer, 0, &[7; 300_000]).unwrap();
    c.cut(a);
    let uuid = Cluster::options(0).uuid.to_string();
    c.set_server_param("fs-OST0000", "obdfilter.fs-OST0000.evict_client", &uuid);
    c.until(|c| c.log.iter().any(|line| line.contains("are lost (its lock was lost")));
    let fsync = |c: &mut Cluster, fh| c.call(a, Call::Fsync { fh }).map(drop);
    let second = c.open(a, f.ino, 0).unwrap();
    assert_eq!(fsync(&mut c, second), Err(Errno::EIO), "nobody was told before");
    let third = c.open(a, f.ino, 0).unwrap();
    assert_eq!(fsync(&mut c, third), Ok(()), "the second was told");
    assert_eq!(fsync(&mut c, writer), Err(Errno::EIO), "whoever had it open is");
    assert_eq!((fsync(&mut c, writer), fsync(&mut c, second)), (Ok(()), Ok(())), "once");
}

/// A walk of the kernel may wait in a directory while the lock of its name is lost. It is sent back to the beginning, which it does once
/// only, if the directory has another name by now, and goes on if it has not.
#[test]
fn a_walk_goes_on_in_a_directory_that_has_its_name_still() {
    for moved in [false, true] {
        let mut c = Cluster::new(1);
        let (a, b) = (c.mount(), c.mount());
        let dir = c.mkdir(a, 1, "dir").unwrap().ino;
        c.create(a, dir, "f").unwrap();
        assert_eq!(c.lookup(a, 1, "dir").unwrap().ino, dir);
        c.pass(Duration::from_secs(8));
        let evictions = stdx::marks::count("evicted");
        let uuid = Cluster::options(0).uuid.to_string();
        c.set_server_param("fs-MDT0000", "mdt.fs-MDT0000.evict_client", &uuid);
        c.until(|_| stdx::marks::count("evicted") > evictions);
        if moved {
            assert_eq!(c.lookup(b, 1, "dir").unwrap().ino, dir);
            let (parent, new_parent) = (1, 1);
            c.call(b, Call::Rename { parent, name: name("dir"), new_parent, new_name: name("old"), flags: 0 }).unwrap();
            c.mkdir(b, 1, "dir").unwrap();
        }
        let found = c.call(a, Call::Lookup { parent: dir, name: name("f") }).map(drop);
        assert_eq!(found, if moved { Err(Errno::ESTALE) } else { Ok(()) });
        c.lookup(a, dir, "f").unwrap();
        assert_eq!(c.lookup(a, 1, "dir").unwrap().ino == dir, !moved);
    }
    assert!(stdx::marks::count("still_named") > 0);
}

/// The request for the root meets an eviction: the mount asks once more.
#[test]
fn a_client_that_is_evicted_while_it_mounts_mounts() {
    let mut c = Cluster::new(1);
    // The answer for the root.
    c.lose_frames(true, [Opcode::MdsGetattr]);
    let a = c.begin_mount(Cluster::options(0));
    c.pass(Duration::from_secs(2));
    assert!(!c.nodes[a].mounted);
    c.tamper = None;
    let uuid = Cluster::options(0).uuid.to_string();
    c.set_server_param("fs-MDT0000", "mdt.fs-MDT0000.evict_client", &uuid);
    c.until(|c| c.nodes[a].mounted || c.nodes[a].failed.is_some());
    assert_eq!(c.nodes[a].failed, None);
    assert!(stdx::marks::count("mount_evicted") > 0);
}

/// Changes that a restarted server did not have any more, and that nobody brought it: the log names them, and the next call that
/// comes to their objects is told.
#[test]
fn answered_changes_that_an_eviction_takes_are_told() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let dir = c.mkdir(a, 1, "dir").unwrap().ino;
    let durable = c.mkdir(a, dir, "durable").unwrap().ino;
    c.pass(Duration::from_secs(8));
    c.slow_media = true;
    c.mkdir(a, dir, "gone").unwrap();
    let set = SetStat { mode: Some(0o700), ..SetStat::default() };
    c.call(a, Call::Setattr { ino: durable, set }).unwrap();
    let at = c.server("fs-MDT0000");
    c.kill(at);
    // The client is away for longer than it is waited for.
    c.nodes[a].alive = false;
    c.cut(a);
    c.slow_media = false;
    c.start(at);
    c.pass(Duration::from_secs(300));
    c.getattr(b, 1).unwrap();
    c.nodes[a].alive = true;
    c.until(|c| c.log.iter().any(|line| line.contains("evicted this client")));
    for line in [
        "fs-MDT0000: lost with the eviction of /dir: 0 answered changes, 0 bytes that were written; of the names in it: gone",
        "1 answered changes",
        "2 answered changes are lost",
    ] {
        assert!(c.log.iter().any(|told| told.contains("Error") && told.contains(line)), "{line}: {:#?}", c.log);
    }
    assert_eq!(c.walk(a, "dir/gone"), Err(Errno::ENOENT));
    assert_eq!(c.mkdir(a, dir, "other").map(drop), Err(Errno::EIO));
    c.mkdir(a, dir, "other").unwrap();
    assert_eq!(c.walk(a, "dir/durable"), Ok(durable));
    assert_eq!(c.call(a, Call::Opendir { ino: durable }).map(drop), Err(Errno::EIO));
    c.call(a, Call::Opendir { ino: durable }).unwrap();
}

#[test]
fn unmount_leaves_nothing_behind_and_everything_durable() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let (_, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, b"kept").unwrap();
    let now = c.now;
    c.nodes[a].machine.handle(now, Event::Unmount);
    c.until(|c| c.nodes[a].unmounted);
    c.restart("fs-MDT0000");
    let b = c.mount();
    let f = c.lookup(b, 1, "f").unwrap();
    assert_eq!(f.size, 4);
    let id = c.send(a, Call::Getattr { ino: 1, fh: None });
    assert_eq!(c.answer(a, id), Err(Errno::ESHUTDOWN));
}

#[test]
fn a_mount_that_cannot_be_says_why() {
    let mut c = Cluster::new(0);
    let a = c.begin_mount(Options { fsname: "other".into(), ..Cluster::options(1) });
    c.until(|c| c.nodes[a].failed.is_some());
    assert_eq!(c.nodes[a].failed.as_deref(), Some("the MGS at unix:MGS knows no file system 'other'; check the name"));
    let wrong = Options {
        mgs: vec!["unix:nowhere".parse().unwrap()],
        soft: Some(Duration::from_secs(1)),
        ..Cluster::options(2)
    };
    let b = c.begin_mount(wrong.clone());
    c.until(|c| c.nodes[b].failed.is_some());
    let reason = c.nodes[b].failed.as_deref().unwrap();
    assert!(reason.contains("cannot reach the MGS at unix:nowhere: nobody is there"), "{reason}");
    let patient = c.begin_mount(Options { soft: None, ..wrong });
    c.pass(Duration::from_secs(20));
    assert!(c.nodes[patient].failed.is_none() && !c.nodes[patient].mounted);
    let at = c.server("MGS");
    c.kill(at);
    let late = c.begin_mount(Cluster::options(4));
    c.pass(Duration::from_secs(5));
    c.start(at);
    c.until(|c| c.nodes[late].mounted);
}

#[test]
fn a_mount_that_waits_says_for_whom_and_why() {
    let mut c = Cluster::new(1);
    let mgs = c.server("MGS");
    let mdt = c.server("fs-MDT0000");
    c.kill(mgs);
    let a = c.begin_mount(Options { soft: None, ..Cluster::options(1) });
    c.pass(Duration::from_secs(1));
    assert!(c.nodes[a].waits.is_empty(), "a server that starts need not be spoken of");
    c.pass(Duration::from_secs(2));
    let waits = |c: &Cluster| c.nodes[a].waits.clone();
    assert!(waits(&c)[0].starts_with("cannot reach the MGS at unix:MGS: "), "{:?}", waits(&c));
    // The MGS answers, the others do not.
    c.kill(mdt);
    let ost = c.server("fs-OST0000");
    c.kill(ost);
    c.start(mgs);
    c.pass(Duration::from_secs(4));
    let both = waits(&c);
    assert!(both.len() == 2 && !both.concat().contains("MGS"), "{both:?}");
    assert!(both[0].starts_with("cannot reach fs-MDT0000 at unix:fs-MDT0000: "), "{both:?}");
    assert!(both[1].starts_with("cannot reach fs-OST0000 at "), "{both:?}");
    let hasty = c.begin_mount(Options { soft: Some(Duration::from_secs(3)), ..Cluster::options(2) });
    c.until(|c| c.nodes[hasty].failed.is_some());
    let reason = c.nodes[hasty].failed.clone().unwrap();
    assert!(reason.contains("cannot reach fs-MDT0000") && !reason.contains("MGS"), "{reason}");
    c.start(mdt);
    c.until(|c| c.nodes[a].mounted);
}

#[test]
fn a_soft_mount_gives_up() {
    let mut c = Cluster::new(0);
    let node = c.begin_mount(Options { soft: Some(Duration::from_secs(5)), ..Cluster::options(1) });
    c.until(|c| c.nodes[node].mounted);
    let at = c.server("fs-MDT0000");
    c.kill(at);
    assert_eq!(c.call(node, Call::Mkdir { parent: 1, name: name("d"), mode: 0o755 }), Err(Errno::EIO));
    c.start(at);
    c.pass(Duration::from_secs(10));
    c.mkdir(node, 1, "e").unwrap();
}

/// A soft mount ends while its servers are away. It has lost something only if there was something to lose.
#[test]
fn the_end_of_a_soft_mount_says_what_is_lost() {
    for (changes, lost) in [(false, None), (true, Some(Errno::EIO))] {
        let mut c = Cluster::new(1);
        let node = c.begin_mount(Options { soft: Some(Duration::from_secs(2)), ..Cluster::options(1) });
        c.until(|c| c.nodes[node].mounted);
        c.getattr(node, 1).unwrap();
        c.pass(Duration::from_secs(5));
        if changes {
            c.mkdir(node, 1, "d").unwrap();
        }
        let at = c.server("fs-MDT0000");
        c.kill(at);
        let now = c.now;
        c.nodes[node].machine.handle(now, Event::Unmount);
        c.until(|c| c.nodes[node].unmounted);
        assert_eq!(c.nodes[node].lost, lost, "changes: {changes}");
    }
}

#[test]
fn a_read_that_waits_for_a_server_can_be_interrupted() {
    let mut c = Cluster::new(0);
    let (a, b) = (c.mount(), c.mount());
    let dir = c.mkdir(a, 1, "d").unwrap().ino;
    let at = c.server("fs-MDT0000");
    c.kill(at);
    let id = c.send_as(b, cred(0), Call::Getattr { ino: dir, fh: None });
    c.pass(Duration::from_secs(1));
    assert!(!c.answered(b, id));
    let now = c.now;
    c.nodes[b].machine.handle(now, Event::Interrupt { id });
    assert_eq!(c.answer(b, id), Err(Errno::EINTR));
    c.start(at);
    c.getattr(b, dir).unwrap();
}

#[test]
fn a_change_that_is_on_its_way_is_answered_with_what_came_of_it_although_its_call_is_interrupted() {
    let mut c = Cluster::new(0);
    let (a, b) = (c.mount(), c.mount());
    let at = c.server("fs-MDT0000");
    c.kill(at);
    let id = c.send_as(a, cred(0), Call::Mkdir { parent: 1, name: name("d"), mode: 0o755 });
    c.pass(Duration::from_secs(1));
    let now = c.now;
    c.nodes[a].machine.handle(now, Event::Interrupt { id });
    c.pass(Duration::from_secs(1));
    assert!(!c.answered(a, id), "a program that is told EINTR would take it for not done");
    c.start(at);
    let answer = c.answer(a, id);
    let there = c.lookup(b, 1, "d").unwrap().ino;
    assert!(matches!(&answer, Ok(Answer::Entry(made)) if made.ino == there), "{answer:?}");
}

/// A client dies with locks at every target. Another meets them one after another, and waits about as long as for one.
#[test]
fn a_client_that_died_costs_others_one_wait() {
    let mut c = Cluster::new(2);
    let (a, b) = (c.mount(), c.mount());
    let dir = c.mkdir(a, 1, "d").unwrap().ino;
    let mut files = Vec::new();
    for name in ["f", "g", "h"] {
        let (stat, fh) = c.create(a, dir, name).unwrap();
        c.write(a, fh, 0, &vec![7; 300_000]).unwrap();
        c.call(a, Call::Fsync { fh }).unwrap();
        c.write(a, fh, 100, b"not synced").unwrap();
        files.push(stat.ino);
    }
    c.die(a);
    let start = c.now;
    assert_eq!(c.lookup(b, 1, "d").unwrap().ino, dir);
    for name in ["f", "g", "h"] {
        let ino = c.lookup(b, dir, name).unwrap().ino;
        let fh = c.open(b, ino, 2).unwrap();
        c.write(b, fh, 0, b"another").unwrap();
        c.call(b, Call::Fsync { fh }).unwrap();
        assert_eq!(c.read(b, fh, 0, 300_000).unwrap().len(), 300_000);
    }
    let waited = c.now.since(start);
    let evicting = c.log.iter().filter(|line| line.contains("Warn: evicts client:test:0")).count();
    assert!(evicting >= 2 && waited < Duration::from_secs(28), "{evicting} targets, {waited:?}: {:#?}", c.log);
}

/// The mark of the file that moves is lost with the metadata target, the client that moved it dies, what it wrote is durable.
#[test]
fn objects_of_a_move_that_nobody_remembers_go_with_their_file() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (before, first) = c.create(a, 1, "before").unwrap();
    let (_, second) = c.create(a, 1, "half moved").unwrap();
    c.write(a, first, 0, &vec![7; 100_000]).unwrap();
    c.call(a, Call::Fsync { fh: first }).unwrap();
    c.write(a, second, 0, b"small").unwrap();
    c.call(a, Call::Fsync { fh: second }).unwrap();
    assert_eq!(c.objects("fs-OST0000").len(), 1);

    let mdt = c.server("fs-MDT0000");
    // The last step is lost on its way.
    c.lose_frames(false, [Opcode::MdsReint]);
    c.slow_server = Some(mdt);
    c.send(a, write_call(second, 0, vec![8; 100_000]));
    c.pass(Duration::from_secs(3));
    assert_eq!(c.objects("fs-OST0000").len(), 2, "it is copied");
    c.die(a);
    c.tamper = None;
    c.slow_server = None;
    c.restart("fs-MDT0000");
    c.pass(Duration::from_secs(400));
    let half = c.lookup(b, 1, "half moved").unwrap();
    assert_eq!((half.size, c.lookup(b, 1, "before").unwrap().ino), (5, before.ino));
    c.unlink(b, 1, "half moved").unwrap();
    c.pass(Duration::from_secs(10));
    assert_eq!(c.objects("fs-OST0000").len(), 1);
}

fn write_call(fh: client::api::FileHandle, offset: u64, data: Vec<u8>) -> Call {
    Call::Write { fh, ino: 0, offset, data: data.into(), write_back: false, kill_priv: false }
}

/// The same in any order of events: the lock may be called back in the moment in which it is granted.
#[test]
fn a_move_whose_lock_is_called_back_with_its_grant_makes_way() {
    for seed in cluster::seeds(0, 60) {
        let mut c = Cluster::new(1);
        let mut rng = Rng::new(seed);
        let (a, b) = (c.mount(), c.mount());
        let (small, fh) = c.create(a, 1, "small").unwrap();
        c.write(a, fh, 0, &[1; 1000]).unwrap();
        c.call(a, Call::Fsync { fh }).unwrap();
        let fh_of_b = c.open(b, small.ino, 0).unwrap();
        assert_eq!(c.read(b, fh_of_b, 0, 1000).unwrap()[..], [1; 1000]);
        let ost = c.server("fs-OST0000");
        c.kill(ost);
        let write =
            Call::Write { fh, ino: 0, offset: 0, data: vec![2; 200_000].into(), write_back: false, kill_priv: false };
        let grows = c.send_quietly(a, cred(0), write);
        (0..rng.below(40)).for_each(|_| c.one_step(&mut rng));
        let read = c.send_quietly(b, cred(0), Call::Read { fh: fh_of_b, offset: 0, length: 100 });
        (0..300).for_each(|_| c.one_step(&mut rng));
        c.pass(Duration::from_secs(12));
        assert!(c.answered(b, read), "seed {seed}: the read waits for the object target");
        assert!(!c.answered(a, grows), "seed {seed}");
        c.start(ost);
        assert_eq!(c.answer(a, grows), Ok(Answer::Written(200_000)), "seed {seed}");
    }
}

/// A small file leaves its metadata target, which goes away while the answer to the copy is on its way; the bytes have to be read from it
/// again, and the object target gives the client up meanwhile. What was copied stays: it was synced.
#[test]
fn a_file_that_leaves_keeps_what_was_copied_before_an_eviction() {
    let mut c = Cluster::new(1);
    let a = c.begin_mount(Options { max_cached: 1, max_read_ahead: 0, ..Cluster::options(0) });
    c.until(|c| c.nodes[a].mounted);
    let (_, other) = c.create(a, 1, "other").unwrap();
    c.write(a, other, 0, &[1; 200_000]).unwrap();
    let (_, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, &[7; 40_000]).unwrap();
    for fh in [other, fh] {
        c.call(a, Call::Fsync { fh }).unwrap();
    }
    // The answer to the copy comes when it is let through, with the next frame.
    let held = Rc::new(RefCell::new((true, Vec::new())));
    let holds = held.clone();
    c.tamper = Some(Box::new(move |to_client, _, frame| {
        let (late, frames) = &mut *holds.borrow_mut();
        if *late && to_client && frame.header.opcode == Opcode::ObjWrite as u16 {
            frames.push(frame);
            return Vec::new();
        }
        let go = if !*late && to_client { core::mem::take(frames) } else { Vec::new() };
        go.into_iter().chain([frame]).collect()
    }));
    let grows = c.send(a, write_call(fh, 65_536, vec![8; 100]));
    assert_eq!(held.borrow().1.len(), 1, "it is copied");
    let mdt = c.server("fs-MDT0000");
    c.kill(mdt);
    // Other bytes take the memory of those that were copied.
    c.read(a, other, 0, 4096).unwrap();
    held.borrow_mut().0 = false;
    c.read(a, other, 65_536, 4096).unwrap();
    let evictions = stdx::marks::count("evicted");
    let uuid = Cluster::options(0).uuid.to_string();
    c.set_server_param("fs-OST0000", "obdfilter.fs-OST0000.evict_client", &uuid);
    c.until(|_| stdx::marks::count("evicted") > evictions);
    assert!(!c.answered(a, grows));
    c.start(mdt);
    assert_eq!(c.answer(a, grows), Ok(Answer::Written(100)));
    let b = c.mount();
    let f = c.lookup(b, 1, "f").unwrap();
    let fh_of_b = c.open(b, f.ino, 0).unwrap();
    let read = c.read(b, fh_of_b, 0, 40_000).unwrap();
    assert!(read.len() == 40_000 && read.iter().all(|byte| *byte == 7), "{:#?}", c.log);
}

/// A client is evicted, what it asked for last was done and not answered, and the answer that would tell it of the eviction is lost in a
/// crash. The target that has restarted knows the session that was begun then, and not the one before: the client learns that, and nothing
/// is done twice.
#[test]
fn an_eviction_of_which_the_answer_is_lost_is_told_after_a_restart() {
    for server in ["fs-MDT0000", "fs-OST0000"] {
        let mut c = Cluster::new(1);
        let a = c.mount();
        let (f, fh) = c.create(a, 1, "f").unwrap();
        c.write(a, fh, 0, &[1; 200_000]).unwrap();
        c.call(a, Call::Fsync { fh }).unwrap();
        let at = c.server(server);
        c.lose_frames(true, [Opcode::MdsReint, Opcode::ObjWrite, Opcode::Connect]);
        let set = SetStat { mode: Some(0o600), ..SetStat::default() };
        let call = match server {
            "fs-MDT0000" => c.send(a, Call::Setattr { ino: f.ino, set }),
            _ => {
                c.write(a, fh, 0, &[2; 100]).unwrap();
                c.send(a, Call::Fsync { fh })
            }
        };
        c.pass(Duration::from_secs(1));
        let uuid = Cluster::options(0).uuid.to_string();
        let kind = if server == "fs-MDT0000" { "mdt" } else { "obdfilter" };
        c.set_server_param(server, &format!("{kind}.{server}.evict_client"), &uuid);
        c.pass(Duration::from_secs(2));
        c.kill(at);
        c.tamper = None;
        c.start(at);
        assert_eq!(c.answer(a, call), Err(Errno::EIO), "{server}: {:#?}", c.log);
        assert!(c.log.iter().any(|line| line.contains("its answer that said so was lost")), "{server}: {:#?}", c.log);
        let b = c.mount();
        let f = c.lookup(b, 1, "f").unwrap();
        let fh_of_b = c.open(b, f.ino, 0).unwrap();
        assert_eq!(c.read(b, fh_of_b, 199_990, 100).unwrap()[..], [1; 10]);
    }
}

/// A cut waits for bytes that another program has asked for, and the target does not answer. Another client wants the lock, which goes back
/// once the bytes are there: until then the cut keeps nothing, and does not wake itself again and again to take what it has given.
#[test]
fn a_cut_that_waits_for_a_read_does_not_wake_itself() {
    let mut c = Cluster::new(1);
    let a = c.begin_mount(Options { max_cached: 1, max_read_ahead: 0, ..Cluster::options(0) });
    c.until(|c| c.nodes[a].mounted);
    let b = c.mount();
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, &[1; 200_000]).unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    let fh_of_b = c.open(b, f.ino, 2).unwrap();
    c.lose_frames(true, [Opcode::ObjRead]);
    let read = c.send(a, Call::Read { fh, offset: 0, length: 4096 });
    let set = SetStat { size: Some(0), fh: Some(fh), ..SetStat::default() };
    let cut = c.send(a, Call::Setattr { ino: f.ino, set });
    c.pass(Duration::from_secs(4));
    c.nodes[a].slow_kernel = true;
    let write = c.send(b, write_call(fh_of_b, 100_000, vec![2; 100]));
    c.pass(Duration::from_secs(1));
    c.nodes[a].slow_kernel = false;
    assert!(![(a, read), (a, cut), (b, write)].into_iter().any(|(node, call)| c.answered(node, call)));
    c.tamper = None;
    c.cut(a);
    assert_eq!(c.answer(a, read), Ok(Answer::Data(vec![1; 4096].into())));
    assert!(c.answer(a, cut).is_ok());
    assert_eq!(c.answer(b, write), Ok(Answer::Written(100)));
    assert!(!c.log.iter().any(|line| line.contains("wake each other")), "{:#?}", c.log);
}

/// A cut has given its locks away while the metadata target was away, and a program of the same client has written behind it since. When the
/// cut goes on, that write is on its way to a target that does not answer, and others want the lock: nobody wakes anybody in a circle, and
/// all end when the target answers.
#[test]
fn a_cut_that_goes_on_waits_for_writes_without_its_locks() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.call(a, Call::SetLayout { ino: f.ino, wish: wish(64 << 10, 1, 0) }).unwrap();
    c.write(a, fh, 0, &[1; 128 << 10]).unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    let fh_of_b = c.open(b, f.ino, 0o2).unwrap();
    // Answers to cuts and to writes come when they are let through.
    let held = Rc::new(RefCell::new((vec![Opcode::MdsReint, Opcode::ObjWrite], Vec::new())));
    let holds = held.clone();
    c.tamper = Some(Box::new(move |to_client, at, frame| {
        let mut held = holds.borrow_mut();
        let (opcodes, frames) = &mut *held;
        let is_held = |frame: &Frame| opcodes.iter().any(|opcode| frame.header.opcode == *opcode as u16);
        if to_client && at == a && is_held(&frame) {
            frames.push(frame);
            return Vec::new();
        }
        if !to_client || at != a {
            return vec![frame];
        }
        // With the next frame of the same target.
        let to = frame.header.export;
        let (stay, go) =
            core::mem::take(frames).into_iter().partition(|frame| is_held(frame) || frame.header.export != to);
        *frames = stay;
        core::iter::once(frame).chain(go).collect()
    }));
    let size = SetStat { size: Some(4096), ..SetStat::default() };
    let cut = c.send(a, Call::Setattr { ino: f.ino, set: size });
    c.pass(Duration::from_secs(1));
    let of_b = c.send(b, write_call(fh_of_b, 64 << 10, vec![2; 4096]));
    c.pass(Duration::from_secs(5));
    assert!(c.answered(b, of_b), "the cut makes way");
    c.write(a, fh, 96 << 10, &[3; 4096]).unwrap();
    let sync = c.send(a, Call::Fsync { fh });
    c.pass(Duration::from_secs(1));
    held.borrow_mut().0.remove(0);
    c.pass(Duration::from_secs(1));
    // While the kernel drops its pages, its calls may use the lock.
    c.nodes[a].slow_kernel = true;
    let of_b = c.send(b, write_call(fh_of_b, 64 << 10, vec![4; 4096]));
    c.pass(Duration::from_secs(4));
    assert!(!c.answered(a, cut) && !c.answered(a, sync) && !c.answered(b, of_b), "all wait for the first write");
    held.borrow_mut().0.clear();
    c.nodes[a].slow_kernel = false;
    c.pass(Duration::from_secs(60));
    assert!(c.answered(a, cut) && c.answered(a, sync) && c.answered(b, of_b));
    assert!(!c.log.iter().any(|line| line.contains("without end") || line.contains("evicts")), "{:?}", c.log);
}

/// The same where the target that the write is for goes away: what the cut still has at another goes to whoever wants it.
#[test]
fn a_cut_that_goes_on_keeps_no_lock_while_writes_wait_for_another_target() {
    let mut c = Cluster::new(2);
    let (a, b) = (c.mount(), c.mount());
    let (f, fh) = c.two_stripes(a, 128 << 10);
    let fh_of_b = c.open(b, f.ino, 0o2).unwrap();
    // The answer to the cut comes when it is let through.
    let held = Rc::new(RefCell::new((true, Vec::new())));
    let holds = held.clone();
    c.tamper = Some(Box::new(move |to_client, at, frame| {
        let (late, frames) = &mut *holds.borrow_mut();
        if !to_client || at != a {
            return vec![frame];
        }
        if *late && frame.header.opcode == Opcode::MdsReint as u16 {
            frames.push(frame);
            return Vec::new();
        }
        // With the next frame of the same target.
        let goes = |held: &Frame| !*late && held.header.export == frame.header.export;
        let (go, stay): (Vec<Frame>, Vec<Frame>) = core::mem::take(frames).into_iter().partition(goes);
        *frames = stay;
        go.into_iter().chain([frame]).collect()
    }));
    let size = SetStat { size: Some(4096), ..SetStat::default() };
    let cut = c.send(a, Call::Setattr { ino: f.ino, set: size });
    c.pass(Duration::from_secs(1));
    let of_b = c.send(b, write_call(fh_of_b, 64 << 10, vec![2; 4096]));
    c.pass(Duration::from_secs(5));
    assert!(c.answered(b, of_b), "the cut makes way");
    c.write(a, fh, 96 << 10, &[3; 4096]).unwrap();
    let ost = c.server("fs-OST0001");
    c.kill(ost);
    let sync = c.send(a, Call::Fsync { fh });
    held.borrow_mut().0 = false;
    c.call(a, Call::Statfs { ino: 1 }).unwrap();
    c.pass(Duration::from_secs(1));
    let of_b = c.send(b, write_call(fh_of_b, 8192, vec![4; 4096]));
    c.pass(Duration::from_secs(5));
    assert!(c.answered(b, of_b), "it waits for a write that waits for another target");
    assert!(!c.answered(a, cut) && !c.answered(a, sync));
    c.start(ost);
    c.pass(Duration::from_secs(60));
    assert!(c.answered(a, cut) && c.answered(a, sync));
    assert!(!c.log.iter().any(|line| line.contains("evicts client")), "{:?}", c.log);
}

/// The same before the metadata target is asked for the cut, and with zeros that are written to the whole.
#[test]
fn what_waits_for_writes_to_a_target_that_is_away_keeps_no_lock_of_another() {
    const ZERO_KEEP_SIZE: u32 = 0x11;
    for cuts in [true, false] {
        let mut c = Cluster::new(2);
        let (a, b) = (c.mount(), c.mount());
        let (f, fh) = c.two_stripes(a, 128 << 10);
        let fh_of_b = c.open(b, f.ino, 0o2).unwrap();
        c.write(a, fh, 96 << 10, &[3; 4096]).unwrap();
        let ost = c.server("fs-OST0001");
        c.kill(ost);
        let set = SetStat { size: Some(4096), ..SetStat::default() };
        let change = match cuts {
            true => Call::Setattr { ino: f.ino, set },
            false => Call::Fallocate { fh, mode: ZERO_KEEP_SIZE, offset: 4096, length: 124 << 10 },
        };
        let change = c.send(a, change);
        c.pass(Duration::from_secs(1));
        for _ in 0..3 {
            let of_b = c.send(b, write_call(fh_of_b, 8192, vec![4; 4096]));
            c.pass(Duration::from_secs(5));
            assert!(c.answered(b, of_b), "cuts {cuts}: it waits for a write that waits for another target");
            c.pass(Duration::from_secs(60));
        }
        assert!(!c.answered(a, change));
        c.start(ost);
        c.answer(a, change).unwrap();
        let read = c.read(b, fh_of_b, 0, 128 << 10).unwrap();
        assert_eq!(read.len(), if cuts { 4096 } else { 128 << 10 });
        assert!(
            read[..4096].iter().all(|byte| *byte == 1) && read[4096..].iter().all(|byte| *byte == 0),
            "cuts {cuts}"
        );
        assert!(!c.log.iter().any(|line| line.contains("evicts client")), "{:?}", c.log);
    }
}

/// The new end lies in a hole of the first object. The power of its target fails, and the client dies: the file is as before or as
/// after the truncation, and not shorter than both.
#[test]
fn a_cut_in_a_hole_is_not_left_half_done() {
    let mut c = Cluster::new(2);
    let a = c.mount();
    let (f, fh) = c.two_stripes(a, 100);
    c.write(a, fh, 100 << 10, &[2; 10]).unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    let set = SetStat { size: Some(36 << 10), ..SetStat::default() };
    c.call(a, Call::Setattr { ino: f.ino, set }).unwrap();
    c.die(a);
    let ost = c.server("fs-OST0000");
    c.kill_and_lose(ost);
    c.start(ost);
    c.pass(Duration::from_secs(120));
    let b = c.mount();
    let size = c.lookup(b, 1, "f").unwrap().size;
    assert!([36 << 10, (100 << 10) + 10].contains(&size), "{size}");
    assert!(stdx::marks::count("cut_in_a_hole") > 0);
}

/// A write of the first page is lost on its way. It reports the size that the file had then, so a cut does not overtake it.
#[test]
fn a_cut_does_not_overtake_a_write_of_another_part() {
    let mut c = Cluster::new(2);
    let (a, b) = (c.mount(), c.mount());
    let (f, fh) = c.two_stripes(a, 200 << 10);
    c.call(a, Call::Fsync { fh }).unwrap();
    c.write(a, fh, 0, &[3; 4096]).unwrap();
    c.lose_frames(false, [Opcode::ObjWrite]);
    let synced = c.send(a, Call::Fsync { fh });
    c.pass(Duration::from_secs(1));
    let set = SetStat { size: Some(70 << 10), ..SetStat::default() };
    let cut = c.send(a, Call::Setattr { ino: f.ino, set });
    c.pass(Duration::from_secs(2));
    assert_eq!(c.all_requests.get("ost_punch"), None);
    c.tamper = None;
    c.answer(a, cut).unwrap();
    c.answer(a, synced).unwrap();
    assert_eq!(c.lookup(b, 1, "f").unwrap().size, 70 << 10);
}

/// Nor does a write that is sent while the answer to the cut is on its way report the size from before it.
#[test]
fn a_write_beside_a_cut_reports_the_size_after_it() {
    let mut c = Cluster::new(2);
    let a = c.mount();
    let (f, fh) = c.two_stripes(a, 200 << 10);
    c.call(a, Call::Fsync { fh }).unwrap();
    c.write(a, fh, 0, &[3; 4096]).unwrap();
    let reported = Rc::new(Cell::new(None));
    let seen = reported.clone();
    c.tamper = Some(Box::new(move |to_client, _, frame| {
        if !to_client && frame.header.opcode == Opcode::ObjWrite as u16 {
            seen.set(frame.decode::<WriteReq>().unwrap().lvb.map(|lvb| lvb.size));
        }
        let lost = to_client && frame.header.opcode == Opcode::ObjPunch as u16;
        if lost { Vec::new() } else { vec![frame] }
    }));
    let set = SetStat { size: Some(70 << 10), ..SetStat::default() };
    let cut = c.send(a, Call::Setattr { ino: f.ino, set });
    c.pass(Duration::from_secs(1));
    let synced = c.send(a, Call::Fsync { fh });
    c.pass(Duration::from_secs(1));
    assert!(!c.answered(a, cut));
    assert_eq!(reported.get(), Some(64 << 10));
    c.tamper = None;
    c.answer(a, cut).unwrap();
    c.answer(a, synced).unwrap();
}

/// The metadata target has agreed to a cut through an open file, and takes that open with an eviction while an object target is away. The
/// program is told what it is told of every lost open, but the cut is done: the object would be waited for for ever.
#[test]
fn a_cut_that_has_begun_is_done_though_its_open_is_lost() {
    let mut c = Cluster::new(2);
    let (a, b) = (c.mount(), c.mount());
    let (f, fh) = c.two_stripes(a, 128 << 10);
    c.kill(c.server("fs-OST0001"));
    let set = SetStat { size: Some(4096), fh: Some(fh), ..SetStat::default() };
    let cut = c.send(a, Call::Setattr { ino: f.ino, set });
    c.pass(Duration::from_secs(1));
    let evictions = stdx::marks::count("evicted");
    let uuid = Cluster::options(0).uuid.to_string();
    c.set_server_param("fs-MDT0000", "mdt.fs-MDT0000.evict_client", &uuid);
    c.until(|_| stdx::marks::count("evicted") > evictions);
    assert_eq!(c.call(a, Call::Fsync { fh }), Err(Errno::EIO), "the open is lost");
    assert!(!c.answered(a, cut));
    c.start(c.server("fs-OST0001"));
    c.answer(a, cut).unwrap();
    let fh_of_b = c.open(b, f.ino, 0o2).unwrap();
    let of_b = c.send(b, write_call(fh_of_b, 64 << 10, vec![2; 4096]));
    c.pass(Duration::from_secs(5));
    assert!(c.answered(b, of_b), "the lock goes to who wants it");
    assert_eq!(c.read(b, fh_of_b, 4096, 4096).unwrap()[..], [0; 4096]);
}

/// A program writes to two stripes, of which one is on a target that is away, and has the lock on the other. Whoever wants that gets
/// it, and nobody is evicted; the write ends when the target is back.
#[test]
fn what_waits_for_a_target_that_is_away_keeps_no_lock_of_another() {
    let mut c = Cluster::new(2);
    let (a, b) = (c.mount(), c.mount());
    let (f, fh) = c.two_stripes(a, 128 << 10);
    let fh_of_b = c.open(b, f.ino, 0o2).unwrap();
    // Another has locks on all of it, so that each has to be asked for.
    c.write(b, fh_of_b, 0, &[2; 128 << 10]).unwrap();
    c.call(b, Call::Fsync { fh: fh_of_b }).unwrap();
    let ost = c.server("fs-OST0001");
    c.kill(ost);
    let writes = c.send(a, write_call(fh, 0, vec![3; 128 << 10]));
    c.pass(Duration::from_secs(1));
    let read = c.send(b, Call::Read { fh: fh_of_b, offset: 0, length: 4096 });
    c.pass(Duration::from_secs(2));
    assert!(c.answered(b, read), "the read waits for a target that has nothing of it");
    assert!(matches!(c.answer(b, read), Ok(Answer::Data(data)) if data[..] == [2; 4096]));
    c.pass(Duration::from_secs(60));
    assert!(!c.log.iter().any(|line| line.contains("evicts")), "{:?}", c.log);
    assert!(!c.answered(a, writes));
    c.start(ost);
    assert_eq!(c.answer(a, writes), Ok(Answer::Written(128 << 10)));
    assert_eq!(c.read(b, fh_of_b, 0, 128 << 10).unwrap()[..], [3; 128 << 10]);
    assert!(stdx::marks::count("striped_locks_make_way") > 0);
}

/// The same where both locks are there, and the size of an object that became doubtful is asked for.
#[test]
fn what_waits_for_a_size_keeps_no_lock_of_another() {
    for stops in [false, true] {
        let mut c = Cluster::new(2);
        let (a, b, other) = (c.mount(), c.mount(), c.mount());
        let (f, fh) = c.two_stripes(a, 128 << 10);
        let fh_of_b = c.open(b, f.ino, 0o2).unwrap();
        let fh_of_other = c.open(other, f.ino, 0o2).unwrap();
        // A third client has the ends of both objects, and is asked for their sizes.
        c.lookup(b, 1, "f").unwrap();
        c.write(b, fh_of_b, 0, &[2; 128 << 10]).unwrap();
        for stripe in [0, 64 << 10] {
            c.nodes[b].slow_kernel = true;
            let writes = [(a, fh, stripe), (other, fh_of_other, (1 << 20) + stripe)];
            let calls = writes.map(|(node, fh, at)| (node, c.send(node, write_call(fh, at, vec![2; 64 << 10]))));
            c.nodes[b].slow_kernel = false;
            calls.into_iter().for_each(|(node, call)| assert_eq!(c.answer(node, call), Ok(Answer::Written(64 << 10))));
        }
        c.pass(Duration::from_secs(10));
        let direct = c.open(a, f.ino, 0o40_002).unwrap();
        c.fail_next("fs-OST0001", Errno::EIO);
        assert_eq!(c.write(a, direct, 64 << 10, &[5; 4096]), Err(Errno::EIO));
        let ost = c.server("fs-OST0001");
        if stops {
            c.die(other)
        } else {
            c.kill(ost)
        }
        c.requests.clear();
        let writes = c.send(a, write_call(fh, 0, vec![3; 128 << 10]));
        c.pass(Duration::from_secs(1));
        assert!(!c.answered(a, writes), "stops: {stops}");
        let sent = ["ldlm_enqueue", "ost_getattr"].map(|opcode| c.requests.get(opcode).copied().unwrap_or(0));
        assert_eq!(sent, [0, u64::from(stops)], "it waits for the size alone");
        let read = c.send(b, Call::Read { fh: fh_of_b, offset: 0, length: 4096 });
        c.pass(Duration::from_secs(6));
        assert!(c.answered(b, read), "the read waits for a target that has nothing of it, stops: {stops}");
        assert!(matches!(c.answer(b, read), Ok(Answer::Data(data)) if data[..] == [2; 4096]));
        c.pass(Duration::from_secs(60));
        let whom: Vec<&String> = c.log.iter().filter(|line| line.contains("evicts")).collect();
        assert!(whom.iter().all(|line| line.contains("client:test:2")), "{whom:?}");
        if !stops {
            assert!(whom.is_empty() && !c.answered(a, writes));
            c.start(ost);
        }
        assert_eq!(c.answer(a, writes), Ok(Answer::Written(128 << 10)));
        assert_eq!(c.read(b, fh_of_b, 0, 128 << 10).unwrap()[..], [3; 128 << 10]);
    }
}

/// The same with a read that waits for the metadata target, which says whether the objects are still the file's.
#[test]
fn what_waits_for_a_layout_keeps_no_lock_on_an_object() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, &[1; 128 << 10]).unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    let fh_of_b = c.open(b, f.ino, 0o2).unwrap();
    c.write(b, fh_of_b, 0, &[2; 128 << 10]).unwrap();
    // Nothing is known of the layout under a lock.
    let set = SetStat { mode: Some(0o600), ..SetStat::default() };
    c.call(b, Call::Setattr { ino: f.ino, set }).unwrap();
    c.nodes[a].machine.set_param(c.now, "ldlm.namespaces.*.lru_size", "clear").unwrap();
    let mdt = c.server("fs-MDT0000");
    c.kill(mdt);
    let read = c.send(a, Call::Read { fh, offset: 0, length: 4096 });
    c.pass(Duration::from_secs(1));
    assert!(!c.answered(a, read), "it asks for the layout");
    let write = c.send(b, write_call(fh_of_b, 0, vec![3; 4096]));
    c.pass(Duration::from_secs(2));
    assert!(c.answered(b, write), "the write waits for a read that waits for the metadata target");
    c.pass(Duration::from_secs(60));
    assert!(!c.log.iter().any(|line| line.contains("evicts")), "{:?}", c.log);
    c.start(mdt);
    assert!(matches!(c.answer(a, read), Ok(Answer::Data(data)) if data[..] == [3; 4096]));
}

/// The same with a cut that waits for the metadata target, which waits for a client that is gone: others write meanwhile, whoever cuts
/// is not evicted, and in the end the file is cut.
#[test]
fn a_cut_that_waits_for_the_metadata_target_keeps_no_lock_on_an_object() {
    for opens in [false, true] {
        let mut c = Cluster::new(2);
        let (a, b, gone) = (c.mount(), c.mount(), c.mount());
        let (f, _) = c.two_stripes(a, 256 << 10);
        let fh_of_b = c.open(b, f.ino, 0o2).unwrap();
        c.write(b, fh_of_b, 0, &[2; 4096]).unwrap();
        // It has the attributes under a lock.
        c.lookup(gone, 1, "f").unwrap();
        c.die(gone);
        let cut = match opens {
            true => c.send(a, Call::Open { ino: f.ino, flags: 0o1001 }),
            false => c.send(a, Call::Setattr { ino: f.ino, set: SetStat { size: Some(0), ..SetStat::default() } }),
        };
        c.pass(Duration::from_secs(1));
        let write = c.send(b, write_call(fh_of_b, 0, vec![3; 4096]));
        c.pass(Duration::from_secs(4));
        assert!(!c.answered(a, cut));
        assert!(c.answered(b, write), "the write waits for a cut that waits for the metadata target");
        c.pass(Duration::from_secs(100));
        let evicts = |line: &&String| line.contains("evicts");
        let whom: Vec<&String> = c.log.iter().filter(evicts).collect();
        assert!(whom.len() == 1 && whom[0].contains("MDT"), "{whom:?}");
        assert!(c.answer(a, cut).is_ok());
        assert_eq!(c.lookup(b, 1, "f").map(|stat| stat.size), Ok(0));
        assert_eq!(c.read(b, fh_of_b, 0, 4096).unwrap()[..], []);
    }
    assert!(stdx::marks::count("cut_makes_way") > 0);
}

/// Three clients cut a file of two stripes, and the metadata target answers each of them late, so that each has made way. When the answers
/// have come they take the locks in order, and whoever has the first keeps it until it has the second: each cuts in its turn.
#[test]
fn cuts_that_have_made_way_end_when_their_answers_have_come() {
    for sizes in [[4096, 100 << 10, 0], [0, 0, 0], [100 << 10, 0, 200 << 10], [200 << 10, 100 << 10, 4096]] {
        let mut c = Cluster::new(2);
        let nodes = [c.mount(), c.mount(), c.mount()];
        let (f, _) = c.two_stripes(nodes[0], 256 << 10);
        for node in nodes {
            c.open(node, f.ino, 0o2).unwrap();
        }
        let held = Rc::new(RefCell::new((true, Vec::<(usize, Frame)>::new())));
        let holds = held.clone();
        let mut enqueues = 0;
        c.tamper = Some(Box::new(move |to_client, at, frame| {
            let (late, frames) = &mut *holds.borrow_mut();
            if *late && to_client && frame.header.opcode == Opcode::MdsReint as u16 {
                frames.push((at, frame));
                return Vec::new();
            }
            enqueues += u32::from(frame.header.opcode == Opcode::LdlmEnqueue as u16);
            assert!(enqueues < 500, "they take the locks from each other without end");
            // With the next frame of the same target to the same client.
            let goes = |(to, late_one): &(usize, Frame)| {
                !*late && to_client && *to == at && late_one.header.export == frame.header.export
            };
            let (go, stay): (Vec<_>, Vec<_>) = core::mem::take(frames).into_iter().partition(goes);
            *frames = stay;
            go.into_iter().map(|(_, frame)| frame).chain([frame]).collect()
        }));
        let mut cuts = Vec::new();
        for (node, size) in nodes.into_iter().zip(sizes) {
            let set = SetStat { size: Some(size), ..SetStat::default() };
            cuts.push((node, c.send(node, Call::Setattr { ino: f.ino, set })));
            c.pass(Duration::from_secs(5));
        }
        let waits = |node: &usize| held.borrow().1.iter().any(|(at, _)| at == node);
        assert!(nodes.iter().all(waits), "each waits for the metadata target");
        held.borrow_mut().0 = false;
        for node in nodes {
            c.send_quietly(node, cred(0), Call::Statfs { ino: 1 });
        }
        c.pass(Duration::from_secs(2));
        assert!(cuts.iter().all(|(node, cut)| c.answered(*node, *cut)), "{sizes:?}");
        assert!(!c.log.iter().any(|line| line.contains("evicts")), "{:?}", c.log);
    }
    assert!(stdx::marks::count("cut_makes_way") > 0);
}

/// A write over two stripes has waited long for the metadata target, and made way for others. Once it has its locks again, it keeps them
/// for as long as the next answer takes, although one of them is wanted already: else it would ask, make way and ask again without end.
#[test]
fn what_has_made_way_is_patient_again_when_it_has_its_locks() {
    let mut c = Cluster::new(2);
    let (a, b, other) = (c.mount(), c.mount(), c.mount());
    let (f, fh) = c.two_stripes(a, 128 << 10);
    // Two others have a stripe each, and alone know the layout under a lock.
    let halves = [(b, 0), (other, 64 << 10)].map(|(node, at)| (node, c.open(node, f.ino, 0o2).unwrap(), at));
    for (node, fh, at) in halves {
        c.write(node, fh, at, &[2; 64 << 10]).unwrap();
    }
    let set = SetStat { mode: Some(0o600), ..SetStat::default() };
    c.call(other, Call::Setattr { ino: f.ino, set }).unwrap();
    for node in [b, other] {
        c.lookup(node, 1, "f").unwrap();
    }
    c.nodes[b].slow_kernel = true;
    let writes = c.send(a, write_call(fh, 0, vec![3; 128 << 10]));
    c.run();
    c.nodes[a].machine.set_param(c.now, "ldlm.namespaces.*.lru_size", "clear").unwrap();
    c.run();
    let mdt = c.server("fs-MDT0000");
    c.kill(mdt);
    c.nodes[b].slow_kernel = false;
    c.pass(Duration::from_secs(5));
    let write = |c: &mut Cluster, (node, fh, at)| (node, c.send(node, write_call(fh, at, vec![4; 64 << 10])));
    for half in halves {
        let (node, call) = write(&mut c, half);
        c.pass(Duration::from_secs(1));
        assert!(c.answered(node, call), "it waits for one that waits for the metadata target");
    }

    // The first lock is wanted again before the second has come, and the kernel takes its time to drop what that covers.
    c.nodes[other].slow_kernel = true;
    c.nodes[a].slow_kernel = true;
    c.requests.clear();
    c.start(mdt);
    c.until(|c| c.requests.contains_key("ldlm_enqueue"));
    let (_, wants) = write(&mut c, halves[0]);
    c.pass(Duration::from_secs(1));
    assert!(!c.answered(a, writes) && !c.answered(b, wants));
    c.nodes[other].slow_kernel = false;
    c.requests.clear();
    let mut rng = Rng::new(1);
    (0..10_000).for_each(|_| c.one_step(&mut rng));
    assert_eq!(c.requests.get("mds_getattr"), Some(&1));
    assert_eq!(c.answer(a, writes), Ok(Answer::Written(128 << 10)));
    c.nodes[a].slow_kernel = false;
    assert!(c.answer(b, wants).is_ok());
}

/// The same where the other target is there, and another client keeps its lock: it has stopped. Nobody who works is evicted for that.
#[test]
fn what_waits_for_a_client_that_has_stopped_keeps_no_lock_of_another() {
    for call in
        [|fh| write_call(fh, 0, vec![3; 128 << 10]), |fh| Call::Fallocate { fh, mode: 0, offset: 0, length: 128 << 10 }]
    {
        let mut c = Cluster::new(2);
        let (a, b, stopped) = (c.mount(), c.mount(), c.mount());
        let (f, fh) = c.two_stripes(a, 128 << 10);
        let fh_of_b = c.open(b, f.ino, 0o2).unwrap();
        c.write(b, fh_of_b, 0, &[2; 64 << 10]).unwrap();
        c.call(b, Call::Fsync { fh: fh_of_b }).unwrap();
        let fh_of_stopped = c.open(stopped, f.ino, 0o2).unwrap();
        c.write(stopped, fh_of_stopped, 64 << 10, &[4; 64 << 10]).unwrap();
        c.call(stopped, Call::Fsync { fh: fh_of_stopped }).unwrap();
        c.die(stopped);
        let writes = c.send(a, call(fh));
        c.pass(Duration::from_secs(1));
        let read = c.send(b, Call::Read { fh: fh_of_b, offset: 0, length: 4096 });
        c.pass(Duration::from_secs(6));
        assert!(c.answered(b, read), "the read waits for a client that has nothing to do with it");
        assert!(c.answer(a, writes).is_ok());
        let whom: Vec<&String> = c.log.iter().filter(|line| line.contains("evicts")).collect();
        assert!(whom.len() == 1 && whom[0].contains("client:test:2"), "{whom:?}");
    }
}

/// A change is seen by another client, and then the server crashes before whoever made it has the answer. When the server is back it is
/// there for everybody, whoever comes first.
#[test]
fn what_was_seen_before_a_crash_is_there_after_it() {
    let mut lost = 0;
    for seed in cluster::seeds(0, 600) {
        let mut c = Cluster::new(0);
        let mut rng = Rng::new(seed);
        let (a, b) = (c.mount(), c.mount());
        let (_, fh) = c.create(a, 1, "f").unwrap();
        c.call(a, Call::Fsync { fh }).unwrap();
        let rename =
            |to: &str| Call::Rename { parent: 1, name: name("f"), new_parent: 1, new_name: name(to), flags: 0 };
        let renamed = c.send_quietly(a, cred(0), rename("g"));
        let look = |c: &mut Cluster| {
            let now = c.now;
            c.nodes[b].machine.set_param(now, "ldlm.namespaces.*.lru_size", "clear").unwrap();
            c.send_quietly(b, cred(0), Call::Lookup { parent: 1, name: name("g") })
        };
        (0..rng.below(20)).for_each(|_| c.one_step(&mut rng));
        let first = look(&mut c);
        for _ in 0..200 {
            c.lose_answers_to(a);
            if !c.answered(b, first) {
                c.one_step(&mut rng);
            }
        }
        let Some(Ok(_)) = c.nodes[b].answers.get(&first) else { continue };
        lost += u32::from(!c.answered(a, renamed));
        c.restart("fs-MDT0000");
        let second = look(&mut c);
        assert!(c.answer(b, second).is_ok(), "seed {seed}: it was there");
        assert_eq!(c.answer(a, renamed), Ok(Answer::Done), "seed {seed}");
    }
    assert!(lost > 3, "{lost}");
    assert!(stdx::marks::count("import.resent_in_recovery") > 0 && stdx::marks::count("target.unanswered_first") > 0);
}

/// An open that is answered while its server recovers is replayed as what it is at the next recovery, although there was no service in
/// between: it made the file, and must not find that in its way.
#[test]
fn what_was_opened_in_one_recovery_is_open_after_the_next() {
    for seed in cluster::seeds(0, 300) {
        let mut c = Cluster::new(0);
        let mut rng = Rng::new(seed);
        let (a, b) = (c.mount(), c.mount());
        // Both use the directory: its changes are sent at once.
        c.create(b, 1, "other").unwrap();
        c.call(a, Call::Lookup { parent: 1, name: name("other") }).unwrap();
        let create = Call::Create { parent: 1, name: name("f"), mode: 0o644, flags: 0o302 };
        let created = c.send_quietly(a, cred(0), create);
        for _ in 0..rng.below(30) {
            c.lose_answers_to(a);
            c.one_step(&mut rng);
        }
        c.restart_quietly("fs-MDT0000");
        for _ in 0..2_000 {
            if c.answered(a, created) {
                break;
            }
            c.one_step(&mut rng);
        }
        // The next recovery does not come to its end, but makes durable what is replayed.
        c.restart_quietly("fs-MDT0000");
        let ends = |frame: &proto::Frame| frame.header.has(proto::frame::flags::LOCK_REPLAY_DONE);
        c.tamper = Some(Box::new(move |_, _, frame| if ends(&frame) { Vec::new() } else { vec![frame] }));
        (0..10).for_each(|_| c.step());
        c.tamper = None;
        c.restart_quietly("fs-MDT0000");
        let Ok(Answer::Created { fh, .. }) = c.answer(a, created) else { panic!("seed {seed}") };
        c.write(a, fh, 0, b"there").unwrap();
        assert_eq!(c.call(a, Call::Fsync { fh }), Ok(Answer::Done), "seed {seed}: {:#?}", c.log);
        c.close(a, fh).unwrap();
    }
    assert!(stdx::marks::count("import.resent_in_recovery") > 0);
}

/// A client removes a file that another has open, and both crash that and the server do before the removal is durable. The file is there
/// again, with all that the other wrote to it.
#[test]
fn what_was_written_to_a_file_whose_removal_is_lost_is_there() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (file, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, b"old").unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    c.close(a, fh).unwrap();
    let fh = c.open(b, file.ino, 2).unwrap();
    c.pass(Duration::from_secs(10));
    c.slow_media = true;
    let removed = c.send(a, Call::Unlink { parent: 1, name: name("f") });
    c.run();
    assert!(c.answered(a, removed));
    c.write(b, fh, 3, b" and new").unwrap();
    c.close(b, fh).unwrap();
    c.run();
    for _ in 0..200 {
        c.step();
        if c.requests.contains_key("mds_close") {
            break;
        }
    }
    let mdt = c.server("fs-MDT0000");
    c.kill(mdt);
    c.die(a);
    c.slow_media = false;
    c.start(mdt);
    c.pass(Duration::from_secs(400));
    let there = c.walk(b, "f").unwrap();
    let fh = c.open(b, there, 0).unwrap();
    assert_eq!(c.read(b, fh, 0, 100).unwrap()[..], b"old and new"[..]);
}

/// A write past the cache is half done at a target that is away: the mount's end waits for it, and so does who loses the metadata target.
#[test]
fn what_a_call_has_begun_ends_although_its_file_is_closed() {
    for evicted in [false, true] {
        let mut c = Cluster::new(2);
        let (a, b) = (c.mount(), c.mount());
        c.call(a, Call::SetLayout { ino: 1, wish: wish(64 << 10, 2, 0) }).unwrap();
        let (file, fh) = c.create(a, 1, "f").unwrap();
        c.write(a, fh, 0, &vec![1; 200_000]).unwrap();
        c.call(a, Call::Fsync { fh }).unwrap();
        let direct = c.open(a, file.ino, 0o40_002).unwrap();
        c.call(a, write_call(direct, 0, vec![1; 131_072])).unwrap();
        let there = c.walk(b, "f").unwrap();
        let fh_of_b = c.open(b, there, 2).unwrap();
        let away = c.server("fs-OST0001");
        c.kill(away);
        let write = c.send(a, write_call(direct, 0, vec![2; 131_072]));
        c.run();
        assert!(!c.answered(a, write));
        if evicted {
            let uuid = c.nodes[a].machine.get_params("llite.*.uuid").remove(0).1;
            c.set_server_param("fs-MDT0000", "mdt.fs-MDT0000.evict_client", &uuid);
            c.pass(Duration::from_secs(2));
        } else {
            c.nodes[a].machine.handle(c.now, client::api::Event::Unmount);
            c.pass(Duration::from_secs(2));
        }
        // Its lock is wanted meanwhile.
        let wanted = c.send(b, write_call(fh_of_b, 0, vec![3; 1]));
        c.run();
        c.start(away);
        c.pass(Duration::from_secs(10));
        assert!(c.answered(a, write) && c.answered(b, wanted), "{evicted}");
        assert!(matches!(c.answer(a, write), Ok(Answer::Written(131_072))), "{evicted}");
        assert!(evicted || c.nodes[a].unmounted);
        let read = c.read(b, fh_of_b, 0, 131_072).unwrap();
        assert_eq!((read[0], &read[1..]), (3, &[2; 131_071][..]), "{evicted}");
    }
}

/// The same of a file that was cut: nothing was written that could be counted, and yet it is not as a program was told.
#[test]
fn a_cut_that_an_eviction_takes_is_told_to_who_opens_the_file() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, &[7; 300_000]).unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    c.close(a, fh).unwrap();
    let ost = c.server("fs-OST0000");
    c.slow_server = Some(ost);
    let set = SetStat { size: Some(1), ..SetStat::default() };
    c.call(a, Call::Setattr { ino: f.ino, set }).unwrap();
    c.kill(ost);
    c.slow_server = None;
    c.tamper = Some(Box::new(|to_client, _, frame| {
        let comes = !to_client && frame.header.opcode == Opcode::Connect as u16;
        if comes { Vec::new() } else { vec![frame] }
    }));
    c.start(ost);
    c.pass(Duration::from_secs(1));
    c.set_server_param("fs-OST0000", "obdfilter.fs-OST0000.abort_recovery", "1");
    c.tamper = None;
    c.cut(a);
    c.pass(Duration::from_secs(60));
    assert!(c.log.iter().any(|line| line.contains("lost with the eviction of /f: 1 answered changes")), "{:#?}", c.log);
    assert_eq!(c.call(a, Call::Open { ino: f.ino, flags: 0 }), Err(Errno::EIO));
    c.open(a, f.ino, 0).unwrap();
    assert_eq!(c.getattr(a, f.ino).unwrap().size, 300_000);
}

/// A writer is asked for the size; its answer is lost with the connection, and it writes more. It does not send the old answer again: it is
/// asked once more over the next connection, and answers with the size at that time.
#[test]
fn an_answer_about_a_size_is_for_its_connection() {
    for striped in [false, true] {
        let mut c = Cluster::new(1);
        let (a, b) = (c.mount(), c.mount());
        let (f, fh) = c.create(a, 1, "f").unwrap();
        if striped {
            c.call(a, Call::SetLayout { ino: f.ino, wish: wish(64 << 10, 1, 0) }).unwrap();
        }
        c.write(a, fh, 0, &[1; 100]).unwrap();
        let lost = Rc::new(Cell::new(0));
        let count = lost.clone();
        c.tamper = Some(Box::new(move |to_client, node, frame| {
            let answers = !to_client && node == a && frame.header.opcode == Opcode::LdlmGlReply as u16;
            assert!(!answers || !frame.header.has(flags::RESENT));
            let loses = answers && count.get() == 0;
            count.set(count.get() + u32::from(loses));
            if loses { Vec::new() } else { vec![frame] }
        }));
        let stat = c.send(b, Call::Getattr { ino: f.ino, fh: None });
        c.pass(Duration::from_millis(100));
        assert_eq!((lost.get(), c.answered(b, stat)), (1, false));
        c.write(a, fh, 0, &[2; 5000]).unwrap();
        c.cut(a);
        let Ok(Answer::Attr(stat)) = c.answer(b, stat) else { panic!() };
        assert_eq!(stat.size, 5000, "striped: {striped}");
    }
}

/// The question about a size is lost, and comes to its target over the next connection. A file that was cut meanwhile is as short as the
/// target says then, whatever its asker's lock had covered.
#[test]
fn a_size_that_is_asked_for_again_is_not_from_before_a_cut() {
    let mut c = Cluster::new(1);
    let (a, b, third) = (c.mount(), c.mount(), c.mount());
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.call(a, Call::SetLayout { ino: f.ino, wish: wish(64 << 10, 1, 0) }).unwrap();
    c.write(a, fh, 0, &[1; 200_000]).unwrap();
    // One has a lock on the beginning, the other on the rest.
    let (of_b, of_third) = (c.open(b, f.ino, 2).unwrap(), c.open(third, f.ino, 2).unwrap());
    // Neither takes what the other waits for.
    c.write(third, of_third, 0, &[2; 4096]).unwrap();
    let writes = [(b, of_b, 0), (a, fh, 150_000)];
    let calls = writes.map(|(node, fh, at)| c.send_quietly(node, cluster::cred(0), write_call(fh, at, vec![2; 4096])));
    for ((node, ..), call) in writes.into_iter().zip(calls) {
        c.answer(node, call).unwrap();
    }
    let asked = Rc::new(Cell::new(0));
    let count = asked.clone();
    c.tamper = Some(Box::new(move |to_client, node, frame| {
        let asks = !to_client && node == b && frame.header.opcode == Opcode::LdlmEnqueue as u16;
        let glimpses = asks && frame.decode::<EnqueueReq>().is_ok_and(|request| request.glimpse);
        let loses = glimpses && count.get() == 0;
        count.set(count.get() + u32::from(glimpses));
        if loses { Vec::new() } else { vec![frame] }
    }));
    let stat = c.send(b, Call::Getattr { ino: f.ino, fh: None });
    c.pass(Duration::from_millis(100));
    assert_eq!((asked.get(), c.answered(b, stat)), (1, false));
    let set = SetStat { size: Some(0), ..SetStat::default() };
    c.call(a, Call::Setattr { ino: f.ino, set }).unwrap();
    c.write(a, fh, 0, &[3; 1000]).unwrap();
    c.cut(b);
    let Ok(Answer::Attr(stat)) = c.answer(b, stat) else { panic!() };
    assert_eq!((stat.size, asked.get()), (1000, 3));
    assert!(stdx::marks::count("glimpse_asked_again") > 0);
}

/// The size is asked for while a write here waits for its lock, which comes after the file has become longer elsewhere. Where that lock ends
/// is no size, though the answer to the question says less.
#[test]
fn a_size_is_not_where_a_lock_ends_that_came_after_the_answer() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.call(a, Call::SetLayout { ino: f.ino, wish: wish(64 << 10, 1, 0) }).unwrap();
    c.write(a, fh, 0, &[1; 200_000]).unwrap();
    // Its kernel has seen the file longer than the write will be, and has it wait.
    c.lookup(b, 1, "f").unwrap();
    let of_b = c.open(b, f.ino, 2).unwrap();
    let cut =
        |size| Call::Setattr { ino: f.ino, set: SetStat { size: Some(size), fh: Some(fh), ..SetStat::default() } };
    c.call(a, cut(4096)).unwrap();
    // Its request to the metadata target is slow: it comes with the next one.
    let (mut slow, mut came) = (None, false);
    c.tamper = Some(Box::new(move |to_client, node, frame| {
        let asks = |opcode| !to_client && node == a && frame.header.opcode == opcode as u16;
        if asks(Opcode::MdsReint) && !came {
            came = true;
            slow = Some(frame);
            return Vec::new();
        }
        let first = if asks(Opcode::MdsLookup) { slow.take() } else { None };
        first.into_iter().chain([frame]).collect()
    }));
    let longer = c.send_quietly(a, cluster::cred(0), cut(189_792));
    c.pass(Duration::from_millis(50));
    let data = vec![2; 864].into();
    let write = Call::Write { fh: of_b, ino: f.ino, offset: 124_552, data, write_back: false, kill_priv: false };
    let write = c.send_quietly(b, cluster::cred(0), write);
    let stat = c.send_quietly(b, cluster::cred(0), Call::Getattr { ino: f.ino, fh: None });
    c.pass(Duration::from_millis(50));
    assert!(!c.answered(a, longer) && !c.answered(b, stat));
    let shorter = c.send_quietly(a, cluster::cred(0), cut(188_416));
    c.send_quietly(a, cluster::cred(0), Call::Lookup { parent: 1, name: name("other") });
    let Ok(Answer::Attr(stat)) = c.answer(b, stat) else { panic!() };
    assert!([189_792, 188_416].contains(&stat.size), "{}", stat.size);
    c.answer(b, write).unwrap();
    for call in [longer, shorter] {
        c.answer(a, call).unwrap();
    }
    assert!(stdx::marks::count("lock_end_is_no_size") > 0);
}

/// The sizes of two objects became doubtful, the first one's only when the second one's was asked for. The answer about the second is kept
/// until that about the first is there, and a write to the second is done meanwhile.
#[test]
fn a_size_that_is_late_does_not_undo_a_write() {
    let mut c = Cluster::new(2);
    let a = c.begin_mount(Options { write_back_after: Duration::from_secs(3600), ..Cluster::options(0) });
    c.until(|c| c.nodes[a].mounted);
    let (f, fh) = c.two_stripes(a, 128 << 10);
    let direct = c.open(a, f.ino, 0o40_002).unwrap();
    c.write(a, fh, 192 << 10, &[2; 64 << 10]).unwrap();
    let fails = |c: &mut Cluster, server, at| {
        c.fail_next(server, Errno::EIO);
        assert_eq!(c.write(a, direct, at, &[3; 4096]), Err(Errno::EIO));
    };
    fails(&mut c, "fs-OST0001", 64 << 10);
    // A question about a size is lost, and comes to its target over the next connection.
    let asked = Rc::new(Cell::new(0));
    let count = asked.clone();
    c.tamper = Some(Box::new(move |_, _, frame| {
        let asks = frame.header.opcode == Opcode::ObjGetattr as u16 && !frame.header.has(flags::RESENT | flags::REPLY);
        count.set(count.get() + u32::from(asks));
        if asks { Vec::new() } else { vec![frame] }
    }));
    let read = c.send(a, Call::Read { fh, offset: 0, length: 256 << 10 });
    assert_eq!(asked.get(), 1, "the second object's");
    fails(&mut c, "fs-OST0000", 0);
    c.cut(a);
    c.pass(Duration::from_secs(1));
    assert_eq!(asked.get(), 2, "the first object's");
    c.call(a, Call::Fsync { fh }).unwrap();
    assert_eq!((asked.get(), c.answered(a, read)), (2, false));
    c.cut(a);
    let Ok(Answer::Data(data)) = c.answer(a, read) else { panic!() };
    assert_eq!((data.len(), c.getattr(a, f.ino).unwrap().size), (256 << 10, 256 << 10));
    assert_eq!(asked.get(), 3, "the second object's once more");
    assert!(stdx::marks::count("size_from_before_a_change") > 0);
}

/// A server that starts again does not find a file that a program has open. The program is told, and does not go on with what is
/// cached.
#[test]
fn an_open_that_the_restarted_server_refuses_is_lost() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (file, fh) = c.create(b, 1, "f").unwrap();
    c.write(b, fh, 0, b"data").unwrap();
    c.close(b, fh).unwrap();
    c.walk(a, "f").unwrap();
    let fh = c.open(a, file.ino, 2).unwrap();
    assert_eq!(&c.read(a, fh, 0, 10).unwrap()[..], b"data");
    c.pass(Duration::from_secs(10));
    c.tamper = Some(Box::new(|to_client, _, mut frame| {
        if !to_client
            && frame.header.opcode == Opcode::MdsReint as u16
            && let Ok(mut request) = frame.decode::<ReintReq>()
            && let Some(Reint::Open(OpenOp { opened_fid: Some(fid), .. })) = &mut request.op
        {
            fid.oid += 1_000_000;
            frame.body = request.encode_to_vec().into();
        }
        vec![frame]
    }));
    c.restart("fs-MDT0000");
    c.pass(Duration::from_secs(10));
    c.tamper = None;
    assert_eq!(c.read(a, fh, 0, 10), Err(Errno::EIO), "{:#?}", c.log);
    assert_eq!(c.write(a, fh, 0, b"more"), Err(Errno::EIO));
    c.close(a, fh).unwrap();
    let fh = c.open(a, file.ino, 2).unwrap();
    assert_eq!(&c.read(a, fh, 0, 10).unwrap()[..], b"data");
}

/// A file system is formatted anew under a client: versions begin anew. Names that are made from then on are not taken for older than
/// those that were.
#[test]
fn names_of_a_file_system_that_begins_anew_are_learned() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    for _ in 0..3 {
        c.restart("fs-MDT0000");
        c.pass(Duration::from_secs(5));
    }
    c.mkdir(a, 1, "d").unwrap();
    c.pass(Duration::from_secs(5));
    c.begin_anew();
    c.pass(Duration::from_secs(30));
    let made = c.mkdir(a, 1, "d").unwrap();
    assert_eq!(c.lookup(a, 1, "d").map(|stat| stat.ino), Ok(made.ino));
    assert_eq!(c.sent(), 0, "{:?}", c.requests);
}
