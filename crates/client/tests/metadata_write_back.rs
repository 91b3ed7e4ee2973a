//! Metadata write-back: no request while nobody else looks, and nothing lost or done twice when somebody does, or
//! something dies.

use std::collections::BTreeMap;
use std::time::Duration;

use client::api::{Answer, Call, Event, Options, SetStat, SetTime, Stat};
use prost::Message;
use proto::msg::{BatchRep, BatchReq, Reint};
use proto::{Bytes, Errno, Fid, Frame, Opcode};
use stdx::Rng;
use testkit::cluster::{Cluster, cred, name};

fn options(number: u64) -> Options {
    Options { sync_metadata: false, ..Cluster::options(number) }
}

/// A client that writes metadata back.
fn mount(c: &mut Cluster) -> usize {
    let node = c.begin_mount(options(c.nodes.len() as u64));
    c.until(|c| c.nodes[node].mounted);
    node
}

/// Such a client, and a directory that it has just made.
fn leased() -> (Cluster, usize, u64) {
    let mut c = Cluster::new(1);
    let a = mount(&mut c);
    let dir = c.mkdir(a, 1, "d").unwrap().ino;
    (c, a, dir)
}

fn made(c: &Cluster, node: usize) -> u64 {
    let text = c.nodes[node].machine.get_params("mdc.*.metadata_write_back").remove(0).1;
    let changes = text.lines().find_map(|line| line.strip_prefix("changes:")).unwrap();
    changes.trim().parse().unwrap()
}

/// One change of each kind, and with its name what it leaves.
fn one_of_each(c: &mut Cluster, a: usize, dir: u64) {
    c.mkdir(a, dir, "sub").unwrap();
    let sub = c.lookup(a, dir, "sub").unwrap().ino;
    c.call(a, Call::Symlink { parent: sub, name: name("link"), target: name("to") }).unwrap();
    c.call(a, Call::Mknod { parent: sub, name: name("pipe"), mode: 0o010_640, rdev: 0 }).unwrap();
    let (file, fh) = c.create(a, dir, "file").unwrap();
    c.write(a, fh, 0, b"small").unwrap();
    c.close(a, fh).unwrap();
    let set = SetStat { mode: Some(0o4711), uid: Some(7), mtime: Some(SetTime::At(5)), ..SetStat::default() };
    c.call(a, Call::Setattr { ino: file.ino, set }).unwrap();
    for at in 0..10 {
        let (_, fh) = c.create(a, dir, &format!("gone{at}")).unwrap();
        c.close(a, fh).unwrap();
    }
    c.mkdir(a, dir, "gone").unwrap();
    for at in 0..10 {
        c.unlink(a, dir, &format!("gone{at}")).unwrap();
    }
    c.call(a, Call::Rmdir { parent: dir, name: name("gone") }).unwrap();
}

const PATHS: [&str; 6] = ["d", "d/sub", "d/sub/link", "d/sub/pipe", "d/file", "/"];

/// What the paths look like, but for what only one client can say.
fn look(c: &mut Cluster, node: usize) -> Vec<Stat> {
    let mut all = Vec::new();
    for path in PATHS {
        let ino = c.walk(node, path).unwrap();
        let stat = c.getattr(node, ino).unwrap();
        all.push(Stat { cacheable: true, entry_cacheable: true, blocks: 0, ..stat });
    }
    all
}

#[test]
fn in_a_directory_of_its_own_a_client_asks_nobody() {
    let (mut c, a, dir) = leased();
    c.all_requests.clear();
    one_of_each(&mut c, a, dir);
    assert_eq!(c.all_requests.get("mds_reint"), None, "{:?}", c.all_requests);
    assert_eq!(made(&c, a), 5 + 22, "every one of them");
    assert!(stdx::marks::count("made_in_cache") > 0);
}

/// A client that makes file after file without looking first leases the directory, too: its listing is fetched.
#[test]
fn a_directory_is_leased_by_who_makes_names_in_it_unseen() {
    let (mut c, _, dir) = leased();
    let b = mount(&mut c);
    assert_eq!(c.lookup(b, 1, "d").unwrap().ino, dir);
    for at in 0..20 {
        let (_, fh) = c.create(b, dir, &format!("f{at}")).unwrap();
        c.close(b, fh).unwrap();
    }
    assert!(made(&c, b) >= 12, "{} of 20: {:?}", made(&c, b), c.all_requests);
    assert!(c.all_requests.contains_key("mds_readpage"), "{:?}", c.all_requests);
}

/// A client that shares a directory with others does not fetch its listing again and again.
#[test]
fn a_directory_that_others_change_is_not_listed_for_a_few_names() {
    let (mut c, a, dir) = leased();
    let b = mount(&mut c);
    for at in 0..2000 {
        let (_, fh) = c.create(a, dir, &format!("old{at}")).unwrap();
        c.close(a, fh).unwrap();
    }
    c.all_requests.clear();
    for round in 0..40 {
        for client in [a, b] {
            c.pass(Duration::from_millis(600));
            for at in 0..2 {
                let text = format!("{client}.{round}.{at}");
                assert_eq!(c.lookup(client, dir, &text), Err(Errno::ENOENT));
                let (_, fh) = c.create(client, dir, &text).unwrap();
                c.close(client, fh).unwrap();
            }
        }
    }
    let pieces = c.all_requests.get("mds_readpage").copied().unwrap_or(0);
    assert!(pieces < 10, "{:?}", c.all_requests);
    assert_eq!(c.list(a, dir, false).unwrap().len(), 2 + 2000 + 160);
}

/// What the caches say of what was made here is what the server makes of it.
#[test]
fn another_client_sees_what_was_made_as_its_maker_does() {
    for first in [false, true] {
        let (mut c, a, dir) = leased();
        one_of_each(&mut c, a, dir);
        let here = look(&mut c, a);
        if first {
            // Everything is sent before anybody looks.
            c.pass(Duration::from_secs(8));
        }
        let b = c.mount();
        let there = look(&mut c, b);
        assert_eq!(here, there);
        assert_eq!(c.list(b, dir, true).unwrap(), c.list(a, dir, true).unwrap());
        assert_eq!(c.lookup(b, dir, "gone3"), Err(Errno::ENOENT));
        let ino = c.walk(b, "d/file").unwrap();
        let fh = c.open(b, ino, 0).unwrap();
        assert_eq!(&c.read(b, fh, 0, 10).unwrap()[..], b"small");
        assert_eq!(look(&mut c, a)[1..4], here[1..4], "nothing changed by looking");
    }
}

#[test]
fn rules_of_the_directory_are_those_of_the_server() {
    let (mut c, a, dir) = leased();
    let set = SetStat { mode: Some(0o2775), gid: Some(50), ..SetStat::default() };
    c.call(a, Call::Setattr { ino: dir, set }).unwrap();
    c.call(a, Call::Setattr { ino: dir, set: SetStat { mode: Some(0o2777), ..SetStat::default() } }).unwrap();
    let calls = [
        Call::Mkdir { parent: dir, name: name("sub"), mode: 0o777 },
        Call::Mknod { parent: dir, name: name("f"), mode: 0o102_755, rdev: 0 },
        Call::Mknod { parent: dir, name: name("g"), mode: 0o106_777, rdev: 0 },
    ];
    let mut here = Vec::new();
    for uid in [0, 9] {
        for call in &calls {
            let mut call = call.clone();
            if let Call::Mkdir { name, .. } | Call::Mknod { name, .. } = &mut call {
                *name = format!("{}{uid}", String::from_utf8_lossy(name)).into();
            }
            let Ok(Answer::Entry(stat)) = c.call_as(a, uid, call) else { panic!() };
            here.push((stat.ino, stat.mode, stat.uid, stat.gid));
        }
    }
    assert_eq!(made(&c, a), 6);
    let b = c.mount();
    let dir = c.lookup(b, 1, "d").unwrap().ino;
    for (ino, mode, uid, gid) in here {
        let listed = c.list(b, dir, true).unwrap();
        assert_eq!(listed.len(), 8);
        let there = c.getattr(b, ino).unwrap();
        assert_eq!((there.mode, there.uid, there.gid), (mode, uid, gid));
    }
}

/// Whoever may not, is told so by the server; and a name that is taken stays.
#[test]
fn what_cannot_be_done_is_not_done_behind_the_back() {
    let (mut c, a, dir) = leased();
    c.create(a, dir, "f").unwrap();
    assert_eq!(c.mkdir(a, dir, "f"), Err(Errno::EEXIST));
    assert_eq!(c.unlink(a, dir, "nothing"), Err(Errno::ENOENT));
    assert_eq!(c.call(a, Call::Rmdir { parent: dir, name: name("f") }).map(drop), Err(Errno::ENOTDIR));
    let call = Call::Mkdir { parent: dir, name: name("x"), mode: 0o755 };
    assert_eq!(c.call_as(a, 9, call).map(drop), Err(Errno::EACCES));
    c.mkdir(a, dir, "sub").unwrap();
    let sub = c.lookup(a, dir, "sub").unwrap().ino;
    c.create(a, sub, "f").unwrap();
    assert_eq!(c.call(a, Call::Rmdir { parent: dir, name: name("sub") }).map(drop), Err(Errno::ENOTEMPTY));
}

#[test]
fn fsync_of_a_directory_makes_what_was_made_in_it_last() {
    let (mut c, a, dir) = leased();
    one_of_each(&mut c, a, dir);
    let Answer::Opened { fh, .. } = c.call(a, Call::Opendir { ino: dir }).unwrap() else { panic!() };
    c.call(a, Call::Fsyncdir { fh }).unwrap();
    // Everything but the disk is gone.
    c.die(a);
    c.restart("fs-MDT0000");
    let b = c.mount();
    let dir = c.walk(b, "d").unwrap();
    assert_eq!(c.list(b, dir, false).unwrap().len(), 2 + 2);
}

#[test]
fn what_waits_or_is_on_its_way_is_done_once_when_the_server_dies() {
    for died_with in ["what waits", "a batch without an answer", "a batch with an answer"] {
        let (mut c, a, dir) = leased();
        c.slow_media = true;
        for at in 0..100 {
            c.create(a, dir, &format!("f{at}")).unwrap();
        }
        match died_with {
            "what waits" => {}
            "a batch with an answer" => c.pass(Duration::from_millis(50)),
            _ => {
                // The answer is lost with the connection.
                let at = c.server("fs-MDT0000");
                c.kill(at);
                c.start(at);
            }
        }
        c.restart("fs-MDT0000");
        c.slow_media = false;
        for at in 100..110 {
            c.create(a, dir, &format!("f{at}")).unwrap();
        }
        c.unlink(a, dir, "f7").unwrap_or_else(|errno| panic!("{died_with}: {errno} {:#?}", c.log));
        let b = c.mount();
        let dir = c.walk(b, "d").unwrap();
        assert_eq!(c.list(b, dir, false).unwrap().len(), 2 + 109, "{died_with}: {:#?}", c.log);
    }
}

/// What a server is to do again is what it did: a change that failed at first would fail again, and that costs a client all
/// that it has there.
#[test]
fn changes_that_failed_are_not_done_again_with_those_that_did_not() {
    for good in [3, 0] {
        let (mut c, a, dir) = leased();
        c.pass(Duration::from_secs(8));
        c.slow_media = true;
        // On its way each of them comes to be about a directory that is not there.
        c.tamper = Some(Box::new(|to_client, _, frame| vec![if to_client { frame } else { misdirected(frame) }]));
        for at in 0..good {
            c.create(a, dir, &format!("good{at}")).unwrap();
            c.create(a, dir, &format!("bad{at}")).unwrap();
        }
        c.create(a, dir, "bad").unwrap();
        c.pass(Duration::from_millis(50));
        let lost = |c: &Cluster| c.log.iter().filter(|line| line.contains("is lost")).count();
        assert_eq!(lost(&c), good + 1, "{:#?}", c.log);
        assert_eq!(c.list(a, dir, false), Err(Errno::EIO), "the next call is told");
        assert_eq!(c.list(a, dir, false).unwrap().len(), 2 + good, "what failed is not there");
        // Nor is it in the way of what has its name next.
        c.tamper = None;
        let next = c.mkdir(a, dir, "bad").unwrap();
        assert_eq!(c.lookup(a, dir, "bad").map(|stat| stat.ino), Ok(next.ino));
        assert_eq!(c.sent(), 0, "{:?}", c.requests);
        c.restart("fs-MDT0000");
        c.slow_media = false;
        c.create(a, dir, "later").unwrap();
        let b = c.mount();
        let there = c.walk(b, "d").unwrap();
        assert_eq!(c.list(b, there, false).unwrap().len(), 2 + good + 2, "{:#?}", c.log);
        assert_eq!(lost(&c), good + 1, "{:#?}", c.log);
        assert!(!c.log.iter().any(|line| line.contains("evicted this client")), "{:#?}", c.log);
    }
    assert!(stdx::marks::count("batch_kept_in_part") > 0);
}

/// A batch in which files whose name begins with "bad" are to be made in a directory that nobody knows.
fn misdirected(mut frame: Frame) -> Frame {
    if frame.header.opcode == Opcode::MdsBatch as u16 {
        let mut changes = Vec::new();
        for change in frame.decode::<BatchReq>().unwrap().iter() {
            let mut change = change.unwrap();
            if let Some(Reint::Create(op)) = &mut change.op
                && op.name.starts_with(b"bad")
            {
                op.parent = Fid { oid: op.parent.oid + 1_000_000, ..op.parent };
            }
            BatchReq::push(&mut changes, &change);
        }
        frame.body = BatchReq { changes: changes.into(), returns_credits: false }.encode_to_vec().into();
    }
    frame
}

/// A program may still know a file that another has removed: whoever changes it hears so, and no memory is left of it when the kernel
/// forgets it.
#[test]
fn nothing_is_left_of_a_file_that_was_removed_unseen() {
    let (mut c, a, dir) = leased();
    let nodes = |c: &Cluster| c.nodes[a].machine.get_params("llite.*.nodes").remove(0).1;
    let before = nodes(&c);
    let (file, fh) = c.create(a, dir, "f").unwrap();
    c.close(a, fh).unwrap();
    c.pass(Duration::from_secs(1));
    let changes = made(&c, a);
    c.unlink(a, dir, "f").unwrap();
    assert_eq!(made(&c, a), changes + 1, "nobody was asked");
    let set = SetStat { mode: Some(0o600), ..SetStat::default() };
    assert_eq!(c.call(a, Call::Setattr { ino: file.ino, set }), Err(Errno::ESTALE));
    c.pass(Duration::from_secs(10));
    assert_ne!(nodes(&c), before);
    c.call(a, Call::Forget { ino: file.ino, count: 1 }).unwrap();
    assert_eq!(nodes(&c), before);
    assert!(!c.log.iter().any(|line| line.contains("is lost")), "{:#?}", c.log);
}

/// The server does not know of a file that is open where it was made, until somebody else can reach it.
#[test]
fn a_file_that_is_open_where_it_was_made_outlives_its_name() {
    let (mut c, a, dir) = leased();
    let (file, fh) = c.create(a, dir, "f").unwrap();
    c.write(a, fh, 0, b"data").unwrap();
    let b = c.mount();
    let there = c.walk(b, "d").unwrap();
    c.unlink(b, there, "f").unwrap();
    c.pass(Duration::from_secs(10));
    assert_eq!(&c.read(a, fh, 0, 10).unwrap()[..], b"data", "{:#?}", c.log);
    c.write(a, fh, 4, b" and more").unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    assert_eq!(c.getattr(a, file.ino).map(|stat| stat.nlink), Ok(0));
    c.close(a, fh).unwrap();
    // The same when its own client removes the name.
    let dir = c.mkdir(a, 1, "e").unwrap().ino;
    let (_, fh) = c.create(a, dir, "f").unwrap();
    c.unlink(a, dir, "f").unwrap();
    c.write(a, fh, 0, b"still").unwrap();
    c.pass(Duration::from_secs(10));
    assert_eq!(&c.read(a, fh, 0, 10).unwrap()[..], b"still");
    c.close(a, fh).unwrap();
}

#[test]
fn a_file_that_grows_finds_its_objects() {
    let (mut c, a, dir) = leased();
    let (_, fh) = c.create(a, dir, "f").unwrap();
    let data = vec![7; 300_000];
    c.write(a, fh, 0, &data).unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    c.close(a, fh).unwrap();
    let b = c.mount();
    let ino = c.walk(b, "d/f").unwrap();
    let fh = c.open(b, ino, 0).unwrap();
    assert_eq!(c.read(b, fh, 0, 300_000).unwrap(), data);
}

#[test]
fn what_is_lost_with_an_eviction_is_told_to_who_asks() {
    let (mut c, a, dir) = leased();
    let Answer::Opened { fh: dir_fh, .. } = c.call(a, Call::Opendir { ino: dir }).unwrap() else { panic!() };
    c.call(a, Call::Fsyncdir { fh: dir_fh }).unwrap();
    c.cut(a);
    let (_, fh) = c.create(a, dir, "f").unwrap();
    let uuid = options(a as u64).uuid.to_string();
    c.set_server_param("fs-MDT0000", "mdt.fs-MDT0000.evict_client", &uuid);
    c.until(|c| c.log.iter().any(|line| line.contains("is lost")));
    assert_eq!(c.call(a, Call::Fsync { fh }).map(drop), Err(Errno::EIO));
    assert_eq!(c.call(a, Call::Fsyncdir { fh: dir_fh }).map(drop), Err(Errno::EIO));
    assert_eq!(c.call(a, Call::Fsyncdir { fh: dir_fh }).map(drop), Ok(()), "it is told once");
    assert_eq!(c.lookup(a, dir, "f"), Err(Errno::ENOENT));
    c.create(a, dir, "f").unwrap();
    assert!(stdx::marks::count("write_back_failed") > 0);
}

/// A batch waits for the server, and further changes for that batch: the eviction takes both, and nothing is done without what was
/// before it.
#[test]
fn what_waits_for_a_batch_is_lost_with_it() {
    let (mut c, a, dir) = leased();
    let [old, other] = ["old", "other"].map(|name| {
        let (file, fh) = c.create(a, dir, name).unwrap();
        c.close(a, fh).unwrap();
        file
    });
    let Answer::Opened { fh: dir_fh, .. } = c.call(a, Call::Opendir { ino: dir }).unwrap() else { panic!() };
    c.call(a, Call::Fsyncdir { fh: dir_fh }).unwrap();
    let before = made(&c, a);
    c.cut(a);
    c.send_quietly(a, cred(0), Call::Unlink { parent: dir, name: name("old") });
    let first = c.send_quietly(a, cred(0), Call::Fsyncdir { fh: dir_fh });
    let set = SetStat { mode: Some(0o4711), ..SetStat::default() };
    c.send_quietly(a, cred(0), Call::Setattr { ino: other.ino, set });
    let second = c.send_quietly(a, cred(0), Call::Fsyncdir { fh: dir_fh });
    assert_eq!(made(&c, a), before + 2, "both are made in the caches");
    let uuid = options(a as u64).uuid.to_string();
    c.set_server_param("fs-MDT0000", "mdt.fs-MDT0000.evict_client", &uuid);
    assert_eq!(c.answer(a, first).map(drop), Err(Errno::EIO));
    assert_eq!(c.answer(a, second).map(drop), Ok(()), "it is told once");
    assert_eq!(c.open(a, other.ino, 0), Err(Errno::EIO), "of this, too");
    let b = c.mount();
    assert_eq!(c.walk(b, "d/old"), Ok(old.ino));
    let found = c.walk(b, "d/other").unwrap();
    assert_eq!(c.getattr(b, found).unwrap().mode, other.mode, "{:#?}", c.log);
    assert!(stdx::marks::count("lane_is_evicted") > 0);
}

/// No sync is needed: the next call that comes to the directory gets the error, once.
#[test]
fn what_is_lost_with_an_eviction_is_told_to_the_next_call() {
    let (mut c, a, dir) = leased();
    c.cut(a);
    let (_, fh) = c.create(a, dir, "f").unwrap();
    let uuid = options(a as u64).uuid.to_string();
    c.set_server_param("fs-MDT0000", "mdt.fs-MDT0000.evict_client", &uuid);
    c.until(|c| c.log.iter().any(|line| line.contains("Error") && line.contains("'f' made in /d")));
    assert_eq!(c.call(a, Call::Flush { fh, lock_owner: 1 }).map(drop), Err(Errno::EIO), "told at close");
    c.walk(a, "d").unwrap();
    assert_eq!(c.mkdir(a, dir, "other").map(drop), Err(Errno::EIO));
    c.mkdir(a, dir, "other").unwrap();
    assert!(stdx::marks::count("lost_change_reported") > 0);
}

/// A file is removed and its bytes need no writing; an eviction takes the removal, so that the file is there again without them.
#[test]
fn bytes_of_a_file_whose_removal_is_lost_are_told_to_who_opens_it() {
    let (mut c, a, dir) = leased();
    let (f, fh) = c.create(a, dir, "f").unwrap();
    c.write(a, fh, 0, b"old").unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    c.write(a, fh, 0, b"new").unwrap();
    c.close(a, fh).unwrap();
    c.cut(a);
    c.call(a, Call::Forget { ino: f.ino, count: 1 }).unwrap();
    c.unlink(a, dir, "f").unwrap();
    let uuid = options(a as u64).uuid.to_string();
    c.set_server_param("fs-MDT0000", "mdt.fs-MDT0000.evict_client", &uuid);
    c.until(|c| c.log.iter().any(|line| line.contains("'f' removed from /d")));
    assert_eq!(c.walk(a, "d/f"), Ok(f.ino));
    assert_eq!(c.call(a, Call::Open { ino: f.ino, flags: 0 }).map(drop), Err(Errno::EIO));
    let fh = c.open(a, f.ino, 0).unwrap();
    assert_eq!(c.read(a, fh, 0, 9).unwrap()[..], *b"old");
}

/// The eviction comes while a sync waits: what it was to make durable is lost.
#[test]
fn what_an_eviction_takes_is_told_to_a_sync_that_waits() {
    let (mut c, a, dir) = leased();
    c.cut(a);
    c.create(a, dir, "f").unwrap();
    let sync = c.send_quietly(a, cred(0), Call::Syncfs);
    let uuid = options(a as u64).uuid.to_string();
    c.set_server_param("fs-MDT0000", "mdt.fs-MDT0000.evict_client", &uuid);
    assert_eq!(c.answer(a, sync), Err(Errno::EIO));
    c.call(a, Call::Syncfs).unwrap();
    assert!(stdx::marks::count("lost_beside_sync") > 0);
}

#[test]
fn an_unmount_sends_what_waits() {
    let (mut c, a, dir) = leased();
    one_of_each(&mut c, a, dir);
    let now = c.now;
    c.nodes[a].machine.handle(now, Event::Unmount);
    c.until(|c| c.nodes[a].unmounted);
    c.restart("fs-MDT0000");
    let b = c.mount();
    let dir = c.walk(b, "d").unwrap();
    assert_eq!(c.list(b, dir, false).unwrap().len(), 2 + 2);
}

/// What goes beyond the credits waits for answers, and the disk; then it goes on.
#[test]
fn no_more_is_outstanding_than_there_are_credits_for() {
    let (mut c, a, dir) = leased();
    let at = c.server("fs-MDT0000");
    c.kill(at);
    let mut sent = Vec::new();
    for at in 0..3000 {
        sent.push(c.send(a, Call::Mkdir { parent: dir, name: name(&format!("d{at}")), mode: 0o755 }));
    }
    let answered = sent.iter().filter(|id| c.answered(a, **id)).count();
    assert!((10..3000).contains(&answered), "{answered} without a server");
    c.start(at);
    for id in sent {
        assert!(matches!(c.answer(a, id), Ok(Answer::Entry(_))));
    }
    let b = c.mount();
    let dir = c.walk(b, "d").unwrap();
    assert_eq!(c.list(b, dir, false).unwrap().len(), 2 + 3000);
}

/// Two clients change each other's directories, each with one slot, which its change has: that waits until the other's lease comes back, and
/// with that what the other made meanwhile by metadata write-back.
#[test]
fn what_a_lease_waits_for_does_not_wait_for_a_slot() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut c = Cluster::new(1);
        let one = |number: usize| Options { max_mod_rpcs_in_flight: 1, ..options(number as u64) };
        let nodes = [0, 1].map(|number| c.begin_mount(one(number)));
        c.until(|c| nodes.iter().all(|node| c.nodes[*node].mounted));
        let own = nodes.map(|node| c.mkdir(node, 1, &format!("d{node}")).unwrap().ino);
        let others = [c.walk(0, "d1").unwrap(), c.walk(1, "d0").unwrap()];
        let mut sent = Vec::new();
        for round in 0..6 {
            for node in nodes {
                // Each has its lease again.
                for number in 0..3 {
                    c.mkdir(node, own[node], &format!("own{round}-{number}")).unwrap();
                }
            }
            for node in nodes {
                let make = |parent, text: String| Call::Mkdir { parent, name: name(&text), mode: 0o755 };
                sent.push((node, c.send_quietly(node, cred(0), make(others[node], format!("other{round}")))));
                for _ in 0..rng.below(8) {
                    c.one_step(&mut rng);
                }
                for number in 3..6 {
                    let text = format!("own{round}-{number}");
                    sent.push((node, c.send_quietly(node, cred(0), make(own[node], text))));
                }
            }
            let limit = c.now + Duration::from_secs(3);
            c.run();
            while !sent.iter().all(|(node, id)| c.answered(*node, *id)) {
                assert!(c.now < limit, "seed {seed} round {round}: {:?}", c.nodes[0].machine.in_progress());
                c.step();
            }
            for (node, id) in sent.drain(..) {
                assert!(matches!(c.answer(node, id), Ok(Answer::Entry(_))), "seed {seed} round {round}");
            }
        }
        assert!(!c.log.iter().any(|line| line.contains("evict") && !line.contains(" 0 were evicted")), "seed {seed}");
    }
}

/// A lease goes back with a few steps for each open file that was made under it, however many others are open.
#[test]
fn a_lease_goes_back_with_a_few_steps_for_each_open_file() {
    const FILES: u64 = 2000;
    let (mut c, a, dir) = leased();
    let other = c.mkdir(a, 1, "other").unwrap().ino;
    for at in 0..FILES {
        c.create(a, dir, &format!("f{at}")).unwrap();
        c.create(a, other, &format!("f{at}")).unwrap();
    }
    c.pass(Duration::from_secs(10));
    let b = mount(&mut c);
    c.requests.clear();
    let (steps, found) = stdx::steps::of(|| c.walk(b, "d/f7"));
    found.unwrap();
    let opens = c.all_requests["mds_reint"];
    assert!((FILES..FILES + 100).contains(&opens), "{opens} opens were told");
    assert!(steps < 1000 * FILES, "{steps} steps for {FILES} open files");
}

/// A name that had to be forgotten may be that of a file that only this client knows, and has open.
#[test]
fn a_name_that_was_forgotten_ends_the_lease_when_it_is_changed() {
    let mut c = Cluster::new(1);
    let a = c.begin_mount(Options { max_nodes: 1000, ..options(0) });
    c.until(|c| c.nodes[a].mounted);
    let dir = c.mkdir(a, 1, "d").unwrap().ino;
    let (_, fh) = c.create(a, dir, "open").unwrap();
    for at in 0..3000 {
        c.call(a, Call::Mknod { parent: dir, name: name(&format!("f{at}")), mode: 0o100_644, rdev: 0 }).unwrap();
    }
    c.unlink(a, dir, "open").unwrap();
    assert!(stdx::marks::count("lease_left") > 0);
    c.write(a, fh, 0, b"data").unwrap();
    c.pass(Duration::from_secs(10));
    assert_eq!(&c.read(a, fh, 0, 10).unwrap()[..], b"data");
    let b = c.mount();
    let dir = c.walk(b, "d").unwrap();
    assert_eq!(c.list(b, dir, false).unwrap().len(), 2 + 3000);
}

#[test]
fn what_was_answered_has_credits_also_when_the_server_restarts_on_a_full_disk() {
    let (mut c, a, dir) = leased();
    for at in 0..100 {
        c.mkdir(a, dir, &format!("d{at}")).unwrap();
    }
    let mdt = c.server("fs-MDT0000");
    c.kill(mdt);
    c.fill_store("fs-MDT0000", 8 << 20);
    c.start(mdt);
    c.pass(Duration::from_secs(60));
    let b = mount(&mut c);
    let dir = c.lookup(b, 1, "d").unwrap().ino;
    assert_eq!(c.list(b, dir, false).unwrap().len(), 102, "{:?}", c.log);
    assert!(!c.log.iter().any(|line| line.contains("lost")), "{:?}", c.log);
    assert_eq!(c.mkdir(a, dir, "one more").map(drop), Err(Errno::ENOSPC));
    c.call(a, Call::Rmdir { parent: dir, name: name("d7") }).unwrap();
}

#[test]
fn what_was_answered_is_kept_also_when_others_take_the_disk_at_that_moment() {
    let (mut c, a, dir) = leased();
    c.mkdir(a, dir, "before").unwrap();
    c.pass(Duration::from_secs(1));
    let before = made(&c, a);
    c.fill_store("fs-MDT0000", 1 << 20);
    let answered = (0..3000).take_while(|at| c.mkdir(a, dir, &format!("d{at}")).is_ok()).count();
    assert!(made(&c, a) > before, "some are answered by the mount");
    c.pass(Duration::from_secs(60));
    assert!(!c.log.iter().any(|line| line.contains("lost")), "{:?}", c.log);
    c.call(a, Call::Rmdir { parent: dir, name: name("before") }).unwrap();
    let b = mount(&mut c);
    let dir = c.lookup(b, 1, "d").unwrap().ino;
    assert_eq!(c.list(b, dir, false).unwrap().len(), 2 + answered, "{:?}", c.log);
}

/// What the server says of the credits that are left while it recovers is newer than what it said when the client came back.
#[test]
fn the_credits_that_are_left_after_a_batch_in_a_recovery_are_kept_to() {
    let (mut c, a, dir) = leased();
    c.lose_frames(false, [Opcode::MdsBatch]);
    c.mkdir(a, dir, "one").unwrap();
    c.pass(Duration::from_millis(50));
    c.tamper = Some(Box::new(|to_client, _, mut frame: Frame| {
        if to_client && frame.header.opcode == Opcode::MdsBatch as u16 {
            let answer: BatchRep = frame.decode().unwrap();
            frame.body = BatchRep { credits: 0, ..answer }.encode_to_vec().into();
        }
        vec![frame]
    }));
    let before = made(&c, a);
    c.restart("fs-MDT0000");
    c.pass(Duration::from_secs(5));
    c.mkdir(a, dir, "two").unwrap();
    assert_eq!(made(&c, a), before, "it is made by its server, which has granted no credits");
    assert_eq!(c.list(a, dir, false).unwrap().len(), 4);
}

fn credits(c: &Cluster, node: usize) -> u32 {
    let text = c.nodes[node].machine.get_params("mdc.*.metadata_write_back").remove(0).1;
    text.lines().find_map(|line| line.strip_prefix("credits:")).unwrap().trim().parse().unwrap()
}

#[test]
fn credits_that_are_not_used_go_back_and_come_with_the_next_change() {
    let (mut c, a, dir) = leased();
    c.mkdir(a, dir, "one").unwrap();
    let before = made(&c, a);
    assert!(credits(&c, a) > 0);
    c.all_requests.clear();
    c.pass(Duration::from_secs(15));
    assert_eq!(credits(&c, a), 0);
    c.pass(Duration::from_secs(60));
    assert_eq!(c.all_requests.get("mds_batch"), Some(&2), "the change, and the credits: {:?}", c.all_requests);
    c.mkdir(a, dir, "two").unwrap();
    assert_eq!(made(&c, a), before, "it is made by its server");
    assert!(credits(&c, a) > 0);
    c.mkdir(a, dir, "three").unwrap();
    assert_eq!(made(&c, a), before + 1);
    assert!(stdx::marks::count("credits_returned") > 0 && stdx::marks::count("credits_offered") > 0);
}

/// The target may take back what it granted a moment ago: what it says before it has answered does not count.
#[test]
fn no_credits_count_while_credits_are_returned() {
    let (mut c, a, dir) = leased();
    c.mkdir(a, dir, "one").unwrap();
    c.pass(Duration::from_secs(5));
    c.lose_frames(true, [Opcode::MdsBatch]);
    c.pass(Duration::from_secs(6));
    assert_eq!(credits(&c, a), 0);
    c.mkdir(a, dir, "two").unwrap();
    assert_eq!(credits(&c, a), 0, "the answer to what was given back is lost");
    c.restart("fs-MDT0000");
    c.pass(Duration::from_secs(5));
    assert_eq!(credits(&c, a), 0, "and so it is after a restart");
    c.tamper = None;
    c.pass(Duration::from_secs(60));
    c.mkdir(a, dir, "three").unwrap();
    assert!(credits(&c, a) > 0);
    c.mkdir(a, dir, "four").unwrap();
    assert_eq!(c.list(a, dir, false).unwrap().len(), 2 + 4);
}

/// While a directory is listed from its server, what a client goes on to change in it is newer than what the listing says.
#[test]
fn a_listing_on_its_way_takes_nothing_back() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let (mut c, a, dir) = leased();
        let mut modes = BTreeMap::new();
        for round in 0..40 {
            let name = format!("n{round}");
            modes.insert(name.clone(), (c.mkdir(a, dir, &name).unwrap().ino, 0o755));
        }
        for _ in 0..60 {
            let (name, ino) =
                modes.iter().nth(rng.below(modes.len() as u64) as usize).map(|(n, (i, _))| (n.clone(), *i)).unwrap();
            let call = match rng.below(4) {
                0..2 => {
                    let mode = rng.below(0o1000) as u32;
                    modes.insert(name, (ino, mode));
                    Call::Setattr { ino, set: SetStat { mode: Some(mode), ..SetStat::default() } }
                }
                2 if modes.len() > 5 => {
                    modes.remove(&name);
                    Call::Rmdir { parent: dir, name: name.into() }
                }
                _ => {
                    let Ok(Answer::Opened { fh, .. }) = c.call(a, Call::Opendir { ino: dir }) else { panic!() };
                    c.send_quietly(a, cred(0), Call::Readdir { fh, offset: 0, max_bytes: 64 << 10, plus: true });
                    continue;
                }
            };
            let change = c.send_quietly(a, cred(0), call);
            while !c.answered(a, change) {
                c.one_step(&mut rng);
            }
            for _ in 0..rng.below(6) {
                c.one_step(&mut rng);
            }
        }
        c.run();
        for (name, (ino, mode)) in &modes {
            assert_eq!(c.getattr(a, *ino).unwrap().mode & 0o7777, *mode, "seed {seed}: {name}");
            assert_eq!(c.lookup(a, dir, name).map(|stat| stat.ino), Ok(*ino), "seed {seed}: {name}");
        }
        let mut listed = c.list(a, dir, false).unwrap();
        listed.retain(|name| name != "." && name != "..");
        listed.sort();
        assert_eq!(listed, modes.into_keys().collect::<Vec<_>>(), "seed {seed}");
    }
}

/// A small file that grows leaves its metadata target, which can be told of it only after the changes of metadata write-back: its
/// bytes are copied once all the same.
#[test]
fn a_file_that_waits_to_leave_keeps_what_was_copied() {
    let (mut c, a, dir) = leased();
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, &[1; 60_000]).unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    let data = Bytes::from(vec![2; 4096]);
    let write = Call::Write { fh, ino: f.ino, offset: 69_632, data, write_back: false, kill_priv: false };
    let mut sent = None;
    for lost in [&[Opcode::ObjWrite][..], &[Opcode::MdsBatch], &[]] {
        c.tamper = Some(Box::new(|to_client, _, frame: Frame| {
            let lose = !to_client && lost.iter().any(|opcode| frame.header.opcode == *opcode as u16);
            if lose { Vec::new() } else { vec![frame] }
        }));
        match sent {
            None => sent = Some(c.send(a, write.clone())),
            Some(_) => c.cut(a),
        }
        c.pass(Duration::from_secs(1));
        assert!(lost.is_empty() || !sent.is_some_and(|write| c.answered(a, write)));
        if lost == [Opcode::ObjWrite] {
            c.mkdir(a, dir, "one").unwrap();
        }
    }
    c.until(|c| sent.is_some_and(|write| c.answered(a, write)));
    let content = c.read(a, fh, 0, 69_632).unwrap();
    assert!(content[..60_000].iter().all(|byte| *byte == 1) && content[60_000..].iter().all(|byte| *byte == 0));
}
