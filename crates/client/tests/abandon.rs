//! Programs that are killed while their calls wait: the call ends at once, what it began ends behind it, and nothing stays.

use std::time::Duration;

use client::api::{Answer, Call, CallId, Event, FileHandle, Invalidation, RecordLock, RecordLockKind, SetStat};
use proto::{Errno, Opcode};
use testkit::cluster::{Cluster, cred, name};

/// A program that waits is killed. Its call is answered before anything else happens.
fn kill(c: &mut Cluster, node: usize, id: CallId) {
    assert!(!c.answered(node, id), "call {id:?} waits");
    let now = c.now;
    c.nodes[node].machine.handle(now, Event::Abandon { id });
    c.run();
    assert!(c.answered(node, id), "call {id:?} ends at once");
    assert_eq!(c.answer(node, id), Err(Errno::EINTR));
}

/// Replies of this kind do not arrive at this client.
fn lose_replies(c: &mut Cluster, client: usize, opcode: Opcode) {
    c.tamper = Some(Box::new(move |to_client, at, frame| {
        let lost = to_client && at == client && frame.header.opcode == opcode as u16;
        if lost { Vec::new() } else { vec![frame] }
    }));
}

fn replies_arrive(c: &mut Cluster, client: usize) {
    c.tamper = None;
    c.cut(client);
    c.pass(Duration::from_secs(5));
}

fn every_call(dir: u64, file: u64, fh: FileHandle, dir_fh: FileHandle) -> Vec<Call> {
    let lock = RecordLock { start: 0, end: 9, kind: RecordLockKind::Exclusive, pid: 1 };
    let set = |set| Call::Setattr { ino: file, set };
    vec![
        Call::Lookup { parent: dir, name: name("x") },
        Call::Getattr { ino: file, fh: None },
        set(SetStat { mode: Some(0o600), ..SetStat::default() }),
        set(SetStat { size: Some(1), ..SetStat::default() }),
        Call::Mknod { parent: dir, name: name("n"), mode: 0o020_600, rdev: 1 },
        Call::Mkdir { parent: dir, name: name("m"), mode: 0o755 },
        Call::Symlink { parent: dir, name: name("s"), target: name("t") },
        Call::Unlink { parent: dir, name: name("gone") },
        Call::Rmdir { parent: dir, name: name("sub") },
        Call::Rename { parent: dir, name: name("from"), new_parent: dir, new_name: name("to"), flags: 0 },
        Call::Link { ino: file, new_parent: dir, new_name: name("l") },
        Call::Open { ino: file, flags: 0o1002 },
        Call::Create { parent: dir, name: name("c"), mode: 0o644, flags: 2 },
        Call::Read { fh, offset: 0, length: 4096 },
        Call::Fsync { fh },
        Call::Syncfs,
        Call::Readdir { fh: dir_fh, offset: 0, max_bytes: 4096, plus: true },
        Call::Fsyncdir { fh: dir_fh },
        Call::Setxattr { ino: file, name: name("user.a"), value: name("1"), flags: 0 },
        Call::Getxattr { ino: file, name: name("user.a") },
        Call::Getlk { fh, owner: 1, lock },
        Call::Setlk { fh, owner: 1, lock, wait: false, flock: false },
        Call::Setlk { fh, owner: 2, lock, wait: true, flock: true },
        Call::Fallocate { fh, mode: 0, offset: 0, length: 1 << 20 },
        Call::FidToPath { fid: proto::Fid::from_ino(file).unwrap() },
        Call::Flush { fh, lock_owner: 3 },
    ]
}

#[test]
fn every_call_that_waits_for_a_dead_server_ends_with_its_program() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let dir = c.mkdir(b, 1, "d").unwrap().ino;
    for file in ["f", "gone", "from"] {
        let (_, fh) = c.create(b, dir, file).unwrap();
        c.write(b, fh, 0, b"data").unwrap();
        c.close(b, fh).unwrap();
    }
    c.mkdir(b, dir, "sub").unwrap();
    c.pass(Duration::from_secs(3));
    c.walk(a, "d").unwrap();
    let file = c.walk(a, "d/f").unwrap();
    let fh = c.open(a, file, 2).unwrap();
    let dir_fh = match c.call(a, Call::Opendir { ino: dir }).unwrap() {
        Answer::Opened { fh, .. } => fh,
        other => panic!("{other:?}"),
    };
    let lock = RecordLock { start: 20, end: 29, kind: RecordLockKind::Exclusive, pid: 1 };
    c.call(a, Call::Setlk { fh, owner: 3, lock, wait: false, flock: false }).unwrap();
    // What the caches know needs no server.
    let now = c.now;
    let _ = c.nodes[a].machine.set_param(now, "ldlm.namespaces.*.lru_size", "clear");
    c.pass(Duration::from_secs(1));
    let servers = [c.server("fs-MDT0000"), c.server("fs-OST0000")];
    servers.iter().for_each(|at| c.kill(*at));
    c.pass(Duration::from_secs(1));
    let mut waited = 0;
    for call in every_call(dir, file, fh, dir_fh) {
        let id = c.send_as(a, cred(0), call);
        c.pass(Duration::from_millis(200));
        if c.answered(a, id) {
            continue;
        }
        waited += 1;
        kill(&mut c, a, id);
    }
    assert!(waited >= 20, "{waited} calls waited");
    servers.iter().for_each(|at| c.start(*at));
    c.pass(Duration::from_secs(40));
    assert_eq!(c.nodes[a].machine.in_progress(), Vec::<String>::new());
    // No lock of the dead is left.
    let theirs = c.open(b, file, 2).unwrap();
    let all = RecordLock { start: 0, end: u64::MAX, ..lock };
    c.call(a, Call::Flush { fh, lock_owner: 1 }).unwrap();
    c.close(a, fh).unwrap();
    c.call(b, Call::Setlk { fh: theirs, owner: 9, lock: all, wait: false, flock: false }).unwrap();
    let now = c.now;
    c.nodes[a].machine.handle(now, Event::Unmount);
    c.until(|c| c.nodes[a].unmounted);
}

#[test]
fn a_change_whose_program_was_killed_happens_and_the_kernel_hears_of_it() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let dir = c.mkdir(b, 1, "d").unwrap().ino;
    c.create(b, dir, "old").unwrap();
    c.walk(a, "d").unwrap();
    lose_replies(&mut c, a, Opcode::MdsReint);
    let id = c.send(a, Call::Create { parent: dir, name: name("new"), mode: 0o644, flags: 2 });
    kill(&mut c, a, id);
    // Whoever asks meanwhile may be told what was before, and the kernel keeps it.
    c.getattr(a, dir).unwrap();
    c.nodes[a].invalidations.clear();
    replies_arrive(&mut c, a);
    assert!(stdx::marks::count("abandoned") > 0);
    let new = c.lookup(b, dir, "new").unwrap().ino;
    let told = &c.nodes[a].invalidations;
    let of_name = |told: &Invalidation| matches!(told, Invalidation::Entry { parent, name, .. } if *parent == dir && &name[..] == b"new");
    let of_dir = |told: &Invalidation| matches!(told, Invalidation::Inode { ino, .. } if *ino == dir);
    assert!(told.iter().any(of_name) && told.iter().any(of_dir), "{told:?}");
    // It is not open here: with its last name it is gone.
    c.pass(Duration::from_secs(3));
    c.unlink(b, dir, "new").unwrap();
    c.pass(Duration::from_secs(3));
    let other = c.mount();
    assert_eq!(c.getattr(other, new).unwrap_err(), Errno::ESTALE);
}

#[test]
fn a_change_that_was_not_sent_does_not_happen_once_its_program_was_killed() {
    let mut c = Cluster::new(0);
    let (a, b) = (c.mount(), c.mount());
    c.mkdir(b, 1, "d").unwrap();
    let at = c.server("fs-MDT0000");
    c.kill(at);
    c.pass(Duration::from_secs(1));
    for round in 0..10_000 {
        let id = c.send_quietly(a, cred(0), Call::Mkdir { parent: 1, name: name(&format!("x{round}")), mode: 0o755 });
        let now = c.now;
        c.nodes[a].machine.handle(now, Event::Abandon { id });
    }
    c.run();
    assert_eq!(c.nodes[a].machine.in_progress().len(), 0, "nothing is left to do");
    c.start(at);
    c.pass(Duration::from_secs(5));
    assert_eq!(c.list(b, 1, false).unwrap().len(), 3);
}

#[test]
fn a_lock_that_a_killed_program_waited_for_goes_to_the_next() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (f, theirs) = c.create(b, 1, "f").unwrap();
    c.lookup(a, 1, "f").unwrap();
    let ours = c.open(a, f.ino, 2).unwrap();
    let lock = RecordLock { start: 0, end: 9, kind: RecordLockKind::Exclusive, pid: 1 };
    let set = |fh, owner, wait| Call::Setlk { fh, owner, lock, wait, flock: false };
    c.call(b, set(theirs, 1, false)).unwrap();
    let id = c.send(a, set(ours, 1, true));
    kill(&mut c, a, id);
    c.call(a, Call::Flush { fh: ours, lock_owner: 1 }).unwrap();
    c.call(a, Call::Release { fh: ours, flock_owner: None }).unwrap();
    c.call(b, Call::Flush { fh: theirs, lock_owner: 1 }).unwrap();
    c.pass(Duration::from_secs(1));
    c.call(b, set(theirs, 2, false)).unwrap();
    assert_eq!(c.nodes[a].machine.in_progress().len(), 0);
}

/// What is left behind takes memory: a user who goes on killing programs while a server is away must not take all of it.
#[test]
fn calls_left_behind_are_bounded() {
    let mut c = Cluster::new(0);
    let a = c.mount();
    let (_, fh) = c.create(a, 1, "f").unwrap();
    let at = c.server("fs-MDT0000");
    c.kill(at);
    c.pass(Duration::from_secs(1));
    let lock = RecordLock { start: 0, end: 9, kind: RecordLockKind::Exclusive, pid: 1 };
    let mut last = None;
    for owner in 0..5000 {
        let call = Call::Setlk { fh, owner, lock, wait: true, flock: false };
        let id = c.send_quietly(a, cred(0), call);
        let now = c.now;
        c.nodes[a].machine.handle(now, Event::Abandon { id });
        last = Some(id);
    }
    c.run();
    assert!(stdx::marks::count("too_many_abandoned") > 0);
    let last = last.unwrap();
    assert!(!c.answered(a, last), "it waits");
    assert_eq!(c.nodes[a].answers.len(), 4096);
    // It is ended as soon as there is room, if it is tried again.
    c.start(at);
    c.pass(Duration::from_secs(10));
    let now = c.now;
    c.nodes[a].machine.handle(now, Event::Abandon { id: last });
    c.run();
    assert!(c.answered(a, last));
}

#[test]
fn space_is_told_from_memory_when_servers_are_away() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let known = c.call(a, Call::Statfs { ino: 1 }).unwrap();
    let servers = [c.server("fs-MDT0000"), c.server("fs-OST0000")];
    servers.iter().for_each(|at| c.kill(*at));
    for _ in 0..100 {
        let id = c.send(a, Call::Statfs { ino: 1 });
        c.pass(Duration::from_millis(2100));
        assert_eq!(c.nodes[a].answers.remove(&id), Some(Ok(known.clone())));
    }
    // A client that never asked has nothing to tell.
    let id = c.send(b, Call::Statfs { ino: 1 });
    c.pass(Duration::from_millis(2100));
    assert_eq!(c.nodes[b].answers.remove(&id), Some(Err(Errno::ETIMEDOUT)));
    c.requests.clear();
    servers.iter().for_each(|at| c.start(*at));
    c.pass(Duration::from_secs(5));
    assert!(c.requests.get(Opcode::MdsStatfs.name()).is_none_or(|sent| *sent < 2), "{:?}", c.requests);
    c.call(b, Call::Statfs { ino: 1 }).unwrap();
}

#[test]
fn the_root_is_told_from_memory_when_its_server_is_away() {
    let mut c = Cluster::new(0);
    let (a, b) = (c.mount(), c.mount());
    c.mkdir(b, 1, "d").unwrap();
    let at = c.server("fs-MDT0000");
    c.kill(at);
    for _ in 0..100 {
        let id = c.send(a, Call::RootAttr { ino: 1 });
        c.pass(Duration::from_millis(2100));
        let Some(Ok(Answer::Attr(stat))) = c.nodes[a].answers.remove(&id) else { panic!() };
        assert!(!stat.cacheable && stat.mode & 0o170_000 == 0o040_000);
    }
    assert!(stdx::marks::count("root_from_memory") >= 100);
    c.requests.clear();
    c.start(at);
    c.pass(Duration::from_secs(5));
    assert!(c.requests.get(Opcode::MdsGetattr.name()).is_none_or(|sent| *sent < 2), "{:?}", c.requests);
    let Answer::Attr(stat) = c.call(a, Call::RootAttr { ino: 1 }).unwrap() else { panic!() };
    assert_eq!(stat.nlink, 3);
}

#[test]
fn an_unmount_gives_servers_that_are_there_their_locks_back_while_it_waits_for_others() {
    let mut c = Cluster::new(2);
    let (a, b) = (c.mount(), c.mount());
    for (file, first) in [("f", 0), ("g", 1)] {
        let (stat, fh) = c.create(a, 1, file).unwrap();
        c.call(
            a,
            Call::SetLayout {
                ino: stat.ino,
                wish: proto::msg::Layout {
                    stripe_size: 1 << 20,
                    want_count: 1,
                    want_first: first,
                    ..Default::default()
                },
            },
        )
        .unwrap();
        c.write(a, fh, 0, &vec![7; 1 << 20]).unwrap();
    }
    let dead = c.server("fs-OST0001");
    c.kill(dead);
    let now = c.now;
    c.nodes[a].machine.handle(now, Event::Unmount);
    c.pass(Duration::from_secs(2));
    assert!(!c.nodes[a].unmounted, "it has something to write");
    assert!(stdx::marks::count("left_before_the_others") >= 2);
    let told = c.all_requests.get(Opcode::Disconnect.name()).copied().unwrap_or(0);
    assert_eq!(told, 2, "MDT0000 and OST0000 are left");
    // No operation waits for its locks.
    let before = c.now;
    let f = c.lookup(b, 1, "f").unwrap();
    let fh = c.open(b, f.ino, 2).unwrap();
    c.write(b, fh, 0, b"mine").unwrap();
    c.call(b, Call::Mkdir { parent: 1, name: name("d"), mode: 0o755 }).unwrap();
    assert!(c.now.since(before) < Duration::from_secs(1), "after {:?}", c.now.since(before));
    c.start(dead);
    c.until(|c| c.nodes[a].unmounted);
    assert_eq!(c.nodes[a].lost, None);
    let g = c.lookup(b, 1, "g").unwrap();
    assert_eq!(g.size, 1 << 20);
}

/// A call that runs when the unmount begins ends first: what it writes may go to a target that had received everything before.
#[test]
fn an_unmount_leaves_no_server_while_a_call_runs_that_may_write_to_it() {
    let mut c = Cluster::new(2);
    let (a, b) = (c.mount(), c.mount());
    let (stat, fh) = c.create(a, 1, "f").unwrap();
    let ino = stat.ino;
    let wish = proto::msg::Layout { stripe_size: 1 << 20, want_count: 1, want_first: 0, ..Default::default() };
    c.call(a, Call::SetLayout { ino, wish }).unwrap();
    c.write(a, fh, 0, &[7; 4096]).unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    c.call(b, Call::Setattr { ino, set: SetStat { mode: Some(0o6755), ..SetStat::default() } }).unwrap();
    let dead = c.server("fs-OST0001");
    c.kill(dead);
    // The write waits for the metadata target, which clears the set-id bits first.
    lose_replies(&mut c, a, Opcode::MdsReint);
    let data = vec![8; 8192].into();
    let write = Call::Write { fh, ino, offset: 0, data, write_back: false, kill_priv: true };
    let id = c.send_as(a, cred(1000), write);
    let now = c.now;
    c.nodes[a].machine.handle(now, Event::Unmount);
    c.pass(Duration::from_secs(2));
    assert!(!c.answered(a, id));
    assert_eq!(c.all_requests.get(Opcode::Disconnect.name()), None);
    replies_arrive(&mut c, a);
    assert_eq!(c.answer(a, id), Ok(Answer::Written(8192)));
    c.start(dead);
    c.until(|c| c.nodes[a].unmounted);
    assert_eq!(c.nodes[a].lost, None);
    assert_eq!(c.lookup(b, 1, "f").unwrap().size, 8192);
}

/// A program that is killed closes its files while what it wrote is on its way. Nobody waits for that for ever, and another file that
/// gets the same handle has nothing to do with it.
#[test]
fn what_was_written_past_the_caches_ends_though_its_file_is_closed() {
    for (hole, again) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut c = Cluster::new(1);
        let a = c.mount();
        let (stat, fh) = c.create(a, 1, "f").unwrap();
        let ino = stat.ino;
        c.write(a, fh, 0, &vec![1; 200_000]).unwrap();
        c.call(a, Call::Fsync { fh }).unwrap();
        let direct = c.open(a, ino, 0o40002).unwrap();
        lose_replies(&mut c, a, if hole { Opcode::ObjPunch } else { Opcode::ObjWrite });
        let id = match hole {
            false => {
                let (offset, data) = (100_000, vec![2; 4096].into());
                c.send(a, Call::Write { fh: direct, ino, offset, data, write_back: false, kill_priv: false })
            }
            true => c.send(a, Call::Fallocate { fh: direct, mode: 3, offset: 100_000, length: 4096 }),
        };
        kill(&mut c, a, id);
        c.close(a, direct).unwrap();
        let other = again.then(|| c.create(a, 1, "g").unwrap());
        assert!(other.as_ref().is_none_or(|(_, other)| *other == direct));
        replies_arrive(&mut c, a);
        c.call(a, Call::Fsync { fh }).unwrap();
        if let Some((g, _)) = other {
            assert_eq!(c.getattr(a, g.ino).unwrap().size, 0);
        }
        let read = c.call(a, Call::Read { fh, offset: 100_000, length: 4096 }).unwrap();
        assert_eq!(read, Answer::Data(vec![if hole { 0 } else { 2 }; 4096].into()));
        assert_eq!(c.nodes[a].machine.in_progress(), Vec::<String>::new());
    }
}

/// A lock is granted while its file is there, and the answer comes when the last close has taken the file away: nobody waits for it, the
/// target has dropped the lock with the file, and nobody knows the file any more.
#[test]
fn a_lock_on_a_file_that_is_gone_does_not_stay() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let (file, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, b"data").unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    let now = c.now;
    let _ = c.nodes[a].machine.set_param(now, "ldlm.namespaces.*.lru_size", "clear");
    c.unlink(a, 1, "f").unwrap();
    c.pass(Duration::from_secs(1));
    // The answer to the enqueue waits for that to the close.
    let mut held = Vec::new();
    c.tamper = Some(Box::new(move |to_client, at, frame| {
        let is = |opcode| to_client && at == a && frame.header.opcode == opcode as u16;
        if is(Opcode::LdlmEnqueue) {
            held.push(frame);
            return Vec::new();
        }
        let close = is(Opcode::MdsClose);
        let mut all = vec![frame];
        if close {
            all.append(&mut held);
        }
        all
    }));
    let before = c.requests.get("ldlm_enqueue").copied().unwrap_or(0);
    let id = c.send(a, Call::Write { fh, ino: 0, offset: 0, data: name("more"), write_back: false, kill_priv: false });
    kill(&mut c, a, id);
    assert_eq!(c.requests.get("ldlm_enqueue").copied().unwrap_or(0), before + 1);
    c.close(a, fh).unwrap();
    c.call(a, Call::Forget { ino: file.ino, count: 1 }).unwrap();
    c.pass(Duration::from_secs(2));
    c.tamper = None;
    let told = |list: Vec<(String, String)>| -> u64 {
        list.iter().filter(|(path, _)| path.contains("MDT0000")).map(|(_, count)| count.parse::<u64>().unwrap()).sum()
    };
    let held = told(c.nodes[a].machine.get_params("ldlm.namespaces.*.lock_count"));
    let known = told(c.server_params("fs-MDT0000", "ldlm.namespaces.*.lock_count"));
    assert_eq!(held, known);
    assert!(stdx::marks::count("lock_of_gone_file") > 0);
}
