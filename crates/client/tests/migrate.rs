//! The data of a file moves to other objects, while it is used, and while machines fail.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use client::api::{Answer, Call, Event, FileHandle, SetStat};
use proto::msg::{EnqueueReq, Layout, LockMode, Policy, Resource, bits};
use proto::{Bytes, Errno, Fid, Opcode};
use stdx::{Rng, marks};
use testkit::cluster::{self, Cluster, wish};

const LENGTH: usize = 300_000;

fn content(seed: u8) -> Vec<u8> {
    (0..LENGTH).map(|i| (i / 7) as u8 ^ seed).collect()
}

/// A file of two stripes on the first two targets, durable.
fn striped(c: &mut Cluster, at: usize) -> (u64, FileHandle) {
    let (f, fh) = c.create(at, 1, "f").unwrap();
    let list = Layout { osts: vec![0, 1], ..wish(64 << 10, 0, -1) };
    c.call(at, Call::SetLayout { ino: f.ino, wish: list }).unwrap();
    assert_eq!(c.write(at, fh, 0, &content(1)), Ok(LENGTH as u32));
    c.call(at, Call::Fsync { fh }).unwrap();
    (f.ino, fh)
}

fn onto(osts: &[u32]) -> Layout {
    Layout { osts: osts.to_vec(), ..wish(0, 0, -1) }
}

fn migrate(ino: u64, osts: &[u32]) -> Call {
    Call::Migrate { ino, wish: onto(osts) }
}

fn layout(c: &mut Cluster, at: usize, ino: u64) -> Layout {
    let Ok(Answer::Layout(Some(layout))) = c.call(at, Call::GetLayout { ino }) else { panic!("no layout") };
    layout
}

/// How many objects each target has.
fn objects(c: &mut Cluster) -> [usize; 3] {
    c.pass(Duration::from_secs(10));
    ["fs-OST0000", "fs-OST0001", "fs-OST0002"].map(|name| c.objects(name).len())
}

fn read(c: &mut Cluster, at: usize, fh: FileHandle) -> Bytes {
    c.read(at, fh, 0, LENGTH as u32 + 10).unwrap()
}

/// Sends a call and stops where the first request of this kind has just been sent.
fn until_sent(c: &mut Cluster, at: usize, call: Call, opcode: Opcode, count: u64) -> client::api::CallId {
    c.requests.clear();
    let id = c.send_quietly(at, cluster::cred(0), call);
    let mut rng = stdx::Rng::new(7);
    while c.requests.get(opcode.name()).copied().unwrap_or(0) < count {
        c.one_step(&mut rng);
    }
    id
}

#[test]
fn a_file_moves_and_everybody_goes_on_with_it() {
    let mut c = Cluster::new(3);
    let (a, b) = (c.mount(), c.mount());
    let (ino, fh) = striped(&mut c, a);
    c.lookup(b, 1, "f").unwrap();
    let other = c.open(b, ino, 2).unwrap();
    assert_eq!(read(&mut c, b, other), content(1));
    assert_eq!(c.call(a, migrate(ino, &[2, 1])), Ok(Answer::Done));
    let now = layout(&mut c, a, ino);
    assert_eq!((now.osts, now.stripe_size, now.first_object), (vec![2, 1], 64 << 10, 2));
    assert_eq!(objects(&mut c), [0, 1, 1], "a stripe stays on its target, as another object");
    for (at, fh) in [(a, fh), (b, other)] {
        assert_eq!(read(&mut c, at, fh), content(1));
        assert_eq!(c.getattr(at, ino).unwrap().size, LENGTH as u64);
    }
    // Both write on, and see each other's.
    c.write(b, other, 10, b"from b").unwrap();
    assert_eq!(&c.read(a, fh, 10, 6).unwrap()[..], b"from b");
    c.write(a, fh, LENGTH as u64, b"longer").unwrap();
    assert_eq!(c.getattr(b, ino).unwrap().size, LENGTH as u64 + 6);
    // And once more, to one target, by the one who did not do it before.
    assert_eq!(c.call(b, migrate(ino, &[0])), Ok(Answer::Done));
    assert_eq!(objects(&mut c), [1, 0, 0]);
    assert_eq!(&c.read(a, fh, LENGTH as u64, 100).unwrap()[..], b"longer");
    c.unlink(a, 1, "f").unwrap();
    c.close(a, fh).unwrap();
    c.close(b, other).unwrap();
    assert_eq!(objects(&mut c), [0, 0, 0]);
    assert!(marks::count("layout_asked_for") > 0 && marks::count("locked_after_a_swap") > 0);
}

#[test]
fn who_has_no_lock_asks_where_the_data_is_now() {
    let mut c = Cluster::new(3);
    let (a, b) = (c.mount(), c.mount());
    let (ino, _) = striped(&mut c, a);
    c.lookup(b, 1, "f").unwrap();
    let other = c.open(b, ino, 2).unwrap();
    c.read(b, other, 0, 10).unwrap();
    c.call(a, migrate(ino, &[2])).unwrap();
    c.pass(Duration::from_secs(10));
    c.requests.clear();
    assert_eq!(c.getattr(b, ino).unwrap().size, LENGTH as u64);
    assert_eq!(read(&mut c, b, other), content(1));
    c.requests.clear();
    c.write(b, other, 0, b"x").unwrap();
    c.write(b, other, 9, b"x").unwrap();
    assert_eq!(c.read(b, other, 0, 1).unwrap(), b"x"[..]);
    let asked: u64 = ["mds_getattr", "ldlm_enqueue"].iter().filter_map(|name| c.requests.get(name)).sum();
    assert!(asked <= 1, "a lock on an object is enough from then on: {:?}", c.requests);
}

#[test]
fn dirty_data_of_others_comes_along() {
    let mut c = Cluster::new(3);
    let (a, b) = (c.mount(), c.mount());
    let (ino, fh) = striped(&mut c, a);
    c.lookup(b, 1, "f").unwrap();
    let other = c.open(b, ino, 2).unwrap();
    c.write(b, other, 100, b"dirty").unwrap();
    c.write(a, fh, 200, b"dirty").unwrap();
    c.call(a, migrate(ino, &[2])).unwrap();
    let mut expected = content(1);
    expected[100..105].copy_from_slice(b"dirty");
    expected[200..205].copy_from_slice(b"dirty");
    assert_eq!(read(&mut c, a, fh), expected);
    assert_eq!(read(&mut c, b, other), expected);
    assert_eq!(objects(&mut c), [0, 0, 1]);
}

#[test]
fn what_is_written_meanwhile_is_not_lost() {
    for elsewhere in [false, true] {
        let mut c = Cluster::new(3);
        let (a, b) = (c.mount(), c.mount());
        let (ino, fh) = striped(&mut c, a);
        c.lookup(b, 1, "f").unwrap();
        let other = c.open(b, ino, 2).unwrap();
        let id = until_sent(&mut c, a, migrate(ino, &[2]), Opcode::ObjWrite, 1);
        let (at, by) = if elsewhere { (b, other) } else { (a, fh) };
        c.write(at, by, 123, b"meanwhile").unwrap();
        assert_eq!(c.answer(a, id), Ok(Answer::Done));
        assert_eq!(layout(&mut c, a, ino).osts, [2]);
        let mut expected = content(1);
        expected[123..132].copy_from_slice(b"meanwhile");
        assert_eq!(read(&mut c, a, fh), expected, "elsewhere: {elsewhere}");
        assert_eq!(read(&mut c, b, other), expected, "elsewhere: {elsewhere}");
        assert_eq!(objects(&mut c), [0, 0, 1], "the first copy is gone");
    }
    assert_eq!((marks::count("written_while_migrated"), marks::count("migrated_again")), (2, 2));
}

#[test]
fn a_copy_that_nobody_completes_is_removed() {
    // The client dies; the program is interrupted; the file is removed.
    for how in 0..3 {
        let mut c = Cluster::new(3);
        let (a, b) = (c.mount(), c.mount());
        let (ino, fh) = striped(&mut c, b);
        c.close(b, fh).unwrap();
        c.lookup(a, 1, "f").unwrap();
        let id = until_sent(&mut c, a, migrate(ino, &[2]), Opcode::ObjWrite, 1);
        let now = c.now;
        match how {
            0 => c.die(a),
            1 => {
                c.nodes[a].machine.handle(now, Event::Interrupt { id });
                assert_eq!(c.answer(a, id), Err(Errno::EINTR));
            }
            _ => {
                c.unlink(b, 1, "f").unwrap();
                c.answer(a, id).unwrap_err();
            }
        }
        c.pass(Duration::from_secs(400));
        let left = objects(&mut c);
        if how == 2 {
            assert_eq!(left, [0, 0, 0]);
        } else {
            assert_eq!(left, [1, 1, 0], "how {how}");
            assert_eq!(layout(&mut c, b, ino).osts, [0, 1]);
        }
    }
}

#[test]
fn servers_that_restart_do_not_disturb_it() {
    for (server, opcode, count) in [
        ("fs-MDT0000", Opcode::MdsReint, 1),
        ("fs-MDT0000", Opcode::ObjWrite, 1),
        ("fs-MDT0000", Opcode::MdsReint, 2),
        ("fs-OST0000", Opcode::ObjRead, 1),
        ("fs-OST0002", Opcode::ObjWrite, 1),
        ("fs-OST0002", Opcode::MdsReint, 2),
    ] {
        let mut c = Cluster::new(3);
        let (a, b) = (c.mount(), c.mount());
        let (ino, fh) = striped(&mut c, a);
        c.lookup(b, 1, "f").unwrap();
        let other = c.open(b, ino, 2).unwrap();
        read(&mut c, b, other);
        let id = until_sent(&mut c, a, migrate(ino, &[2]), opcode, count);
        c.restart(server);
        assert_eq!(c.answer(a, id), Ok(Answer::Done), "{server} at {opcode:?} {count}");
        assert_eq!(layout(&mut c, b, ino).osts, [2]);
        assert_eq!(read(&mut c, b, other), content(1));
        assert_eq!(read(&mut c, a, fh), content(1));
        assert_eq!(objects(&mut c), [0, 0, 1], "{server} at {opcode:?} {count}");
    }
}

#[test]
fn a_small_file_grows_elsewhere() {
    let mut c = Cluster::new(3);
    let a = c.mount();
    let (f, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, b"small").unwrap();
    c.call(a, migrate(f.ino, &[2])).unwrap();
    let now = layout(&mut c, a, f.ino);
    assert_eq!((now.osts, now.resident), (vec![2], true));
    c.write(a, fh, 0, &content(3)).unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    assert_eq!(objects(&mut c), [0, 0, 1]);
    assert_eq!(read(&mut c, a, fh), content(3));
}

#[test]
fn holes_and_sizes_stay() {
    let mut c = Cluster::new(3);
    let a = c.mount();
    let (ino, fh) = striped(&mut c, a);
    let set = SetStat { size: Some(9 << 20), ..SetStat::default() };
    c.call(a, Call::Setattr { ino, set }).unwrap();
    c.call(a, migrate(ino, &[2, 0])).unwrap();
    assert_eq!(c.getattr(a, ino).unwrap().size, 9 << 20);
    let mut expected = content(1);
    expected.resize(LENGTH + 10, 0);
    assert_eq!(read(&mut c, a, fh), expected);
    assert_eq!(c.read(a, fh, (9 << 20) - 5, 100).unwrap(), [0; 5][..]);
    let b = c.mount();
    assert_eq!(c.lookup(b, 1, "f").unwrap().size, 9 << 20);
    c.pass(Duration::from_secs(10));
    let bytes: u64 = ["fs-OST0000", "fs-OST0002"].iter().flat_map(|name| c.objects(name)).map(|o| o.blocks * 512).sum();
    assert!(bytes < 3 << 20, "{bytes}");
    // An empty file of objects moves, too.
    let set = SetStat { size: Some(0), ..SetStat::default() };
    c.call(a, Call::Setattr { ino, set }).unwrap();
    c.call(a, migrate(ino, &[1])).unwrap();
    assert_eq!(c.getattr(a, ino).unwrap().size, 0);
    c.write(a, fh, 3, b"x").unwrap();
    assert_eq!(&read(&mut c, a, fh)[..], b"\0\0\0x");
}

#[test]
fn bad_wishes_are_refused() {
    let mut c = Cluster::new(3);
    let a = c.mount();
    let (ino, fh) = striped(&mut c, a);
    assert_eq!(c.call(a, migrate(ino, &[7])), Err(Errno::EINVAL));
    assert_eq!(c.call(a, migrate(1, &[0])), Err(Errno::EINVAL));
    assert_eq!(c.call_as(a, 77, migrate(ino, &[2])), Err(Errno::EPERM));
    c.set_capacity("fs-OST0002", 1 << 16);
    assert_eq!(c.call(a, migrate(ino, &[2])), Err(Errno::ENOSPC));
    assert_eq!(objects(&mut c), [1, 1, 0]);
    assert_eq!(read(&mut c, a, fh), content(1));
}

/// Whoever asks at any moment of a move gets the size of the whole file.
#[test]
fn a_stat_beside_a_move_sees_one_layout() {
    for seed in cluster::seeds(0, 300) {
        let mut rng = Rng::new(seed);
        let mut c = Cluster::new(3);
        let (a, b) = (c.mount(), c.mount());
        let (ino, _) = striped(&mut c, a);
        c.lookup(b, 1, "f").unwrap();
        let moved = c.send_quietly(a, cluster::cred(0), migrate(ino, &[2, 0]));
        while !c.answered(a, moved) {
            let asked = c.send_quietly(b, cluster::cred(0), Call::Getattr { ino, fh: None });
            while !c.answered(b, asked) {
                c.one_step(&mut rng);
            }
            let Ok(Answer::Attr(stat)) = c.answer(b, asked) else { panic!("seed {seed}") };
            assert_eq!(stat.size, LENGTH as u64, "seed {seed}");
        }
        assert_eq!(c.answer(a, moved), Ok(Answer::Done), "seed {seed}");
    }
}

/// The swap is on its way for long, so an object target takes the locks of the client that moves the file away, and another writes.
#[test]
fn a_client_that_has_lost_the_objects_does_not_swap() {
    let mut c = Cluster::new(3);
    let (a, b) = (c.mount(), c.mount());
    let (ino, fh) = striped(&mut c, a);
    c.lookup(b, 1, "f").unwrap();
    let other = c.open(b, ino, 2).unwrap();
    assert_eq!(read(&mut c, b, other), content(1));
    let lost = Rc::new(Cell::new(true));
    let (loses, mut changes) = (lost.clone(), 0);
    c.tamper = Some(Box::new(move |to_client, client, frame| {
        if !to_client && client == a && frame.header.opcode == Opcode::MdsReint as u16 {
            changes += 1;
            if changes > 1 && loses.get() {
                return vec![];
            }
        }
        vec![frame]
    }));
    let moved = c.send_quietly(a, cluster::cred(0), migrate(ino, &[2]));
    c.pass(Duration::from_secs(1));
    assert_eq!(c.write(b, other, 10, b"from b"), Ok(6));
    c.call(b, Call::Fsync { fh: other }).unwrap();
    assert!(c.log.iter().any(|line| line.contains("evicts")), "{:?}", c.log);
    lost.set(false);
    c.pass(Duration::from_secs(300));
    assert!(matches!(c.answer(a, moved), Ok(Answer::Done) | Err(Errno::EIO)));
    for (at, fh) in [(a, fh), (b, other)] {
        assert_eq!(&c.read(at, fh, 10, 6).unwrap()[..], b"from b");
    }
    let left = objects(&mut c).iter().sum::<usize>();
    assert_eq!(left, layout(&mut c, b, ino).osts.len(), "the copy that did not become the file is gone");
    assert!(marks::count("swap_after_others_confirmed") > 0);
}

/// A client that takes a lock on the attributes of a file, and never gives it back.
fn keeps_the_attributes(c: &mut Cluster, fid: Fid) {
    let enqueue = EnqueueReq {
        resource: Resource::inode(fid),
        mode: LockMode::Pr as i32,
        cookie: 5,
        policy: Some(Policy::Bits(bits::UPDATE)),
        ..EnqueueReq::default()
    };
    let mut export = c.raw_export("fs-MDT0000");
    c.raw_call(&mut export, Opcode::LdlmEnqueue, &enqueue);
}

/// The move waits for a client that has a lock on the file's attributes and keeps it; others use the objects meanwhile.
#[test]
fn a_move_that_waits_for_a_client_that_keeps_its_lock_keeps_no_object() {
    let mut c = Cluster::new(3);
    let (a, b) = (c.mount(), c.mount());
    let (ino, fh) = striped(&mut c, a);
    c.lookup(b, 1, "f").unwrap();
    let other = c.open(b, ino, 0).unwrap();
    keeps_the_attributes(&mut c, Fid::from_ino(ino).unwrap());
    let moved = c.send_quietly(a, cluster::cred(0), migrate(ino, &[2]));
    c.pass(Duration::from_secs(1));
    let reads = c.send_quietly(b, cluster::cred(0), Call::Read { fh: other, offset: 0, length: 100 });
    c.pass(Duration::from_secs(6));
    assert!(!c.answered(a, moved), "nothing to wait for");
    assert!(c.answered(b, reads), "the read waits for a client that has nothing to do with it");
    c.pass(Duration::from_secs(60));
    assert_eq!(c.answer(a, moved), Ok(Answer::Done));
    assert_eq!(c.log.iter().filter(|line| line.contains("evicts")).count(), 1, "{:?}", c.log);
    for (at, fh) in [(a, fh), (b, other)] {
        assert_eq!(read(&mut c, at, fh), content(1));
    }
    assert_eq!(objects(&mut c), [0, 0, 1]);
}

/// Two clients move one file, and an object target goes away: nobody is evicted for that.
#[test]
fn moves_that_cannot_go_on_make_way() {
    for seed in cluster::seeds(0, 200) {
        let mut rng = Rng::new(seed);
        let mut c = Cluster::new(3);
        let (a, b) = (c.mount(), c.mount());
        let (ino, fh) = striped(&mut c, a);
        c.lookup(b, 1, "f").unwrap();
        let moves: Vec<_> = [(a, 2), (b, 1)]
            .into_iter()
            .map(|(at, ost)| (at, c.send_quietly(at, cluster::cred(0), migrate(ino, &[ost]))))
            .collect();
        for _ in 0..rng.below(250) {
            c.one_step(&mut rng);
        }
        let ost = c.server("fs-OST0000");
        c.kill(ost);
        c.pass(Duration::from_secs(300));
        c.start(ost);
        for (at, moved) in moves {
            let done = c.answer(at, moved);
            assert!(matches!(done, Ok(Answer::Done) | Err(Errno::EBUSY)), "seed {seed}: {done:?}");
        }
        assert!(!c.log.iter().any(|line| line.contains("evicts client")), "seed {seed}: {:?}", c.log);
        assert_eq!(read(&mut c, a, fh), content(1), "seed {seed}");
        assert_eq!(objects(&mut c).iter().sum::<usize>(), layout(&mut c, a, ino).osts.len(), "seed {seed}");
    }
    assert!(marks::count("migration_makes_way") > 0);
}

/// A file of three stripes; two clients that have locks on the second and the third, and nothing of the metadata target, have stopped.
/// Gives the file, and its handles at the two that work.
fn beside_stopped_clients(c: &mut Cluster, [a, b]: [usize; 2]) -> (u64, [FileHandle; 2]) {
    let (f, fh) = c.create(a, 1, "f").unwrap();
    let list = Layout { osts: vec![0, 1, 2], ..wish(64 << 10, 0, -1) };
    c.call(a, Call::SetLayout { ino: f.ino, wish: list }).unwrap();
    assert_eq!(c.write(a, fh, 0, &content(1)), Ok(LENGTH as u32));
    c.call(a, Call::Fsync { fh }).unwrap();
    c.lookup(b, 1, "f").unwrap();
    let fh_of_b = c.open(b, f.ino, 2).unwrap();
    let stopped = [64 << 10, 128 << 10].map(|offset| {
        let at = c.mount();
        c.lookup(at, 1, "f").unwrap();
        let fh = c.open(at, f.ino, 0).unwrap();
        c.read(at, fh, offset, 10).unwrap();
        at
    });
    let set = SetStat { mode: Some(0o600), ..SetStat::default() };
    c.call(a, Call::Setattr { ino: f.ino, set }).unwrap();
    c.nodes[a].machine.set_param(c.now, "ldlm.namespaces.*.lru_size", "clear").unwrap();
    c.run();
    stopped.into_iter().for_each(|at| c.die(at));
    (f.ino, [fh, fh_of_b])
}

/// The evictions of clients that had not stopped.
fn evictions(c: &Cluster) -> Vec<&String> {
    let stopped = |line: &str| line.contains("client:test:2") || line.contains("client:test:3");
    c.log.iter().filter(|line| line.contains("evicts") && !stopped(line)).collect()
}

/// A move has the first object of a file for itself, and waits for clients that have stopped. Whoever reads there does not wait with it.
#[test]
fn a_move_that_waits_for_clients_that_have_stopped_keeps_no_object() {
    let mut c = Cluster::new(3);
    let (a, b) = (c.mount(), c.mount());
    let (ino, [fh, fh_of_b]) = beside_stopped_clients(&mut c, [a, b]);
    c.read(b, fh_of_b, 64 << 10, 10).unwrap();
    let moved = c.send(a, migrate(ino, &[2]));
    c.pass(Duration::from_secs(1));
    let reads = c.send(b, Call::Read { fh: fh_of_b, offset: 0, length: 10 });
    c.pass(Duration::from_secs(6));
    assert!(!c.answered(a, moved));
    assert!(c.answered(b, reads), "the read waits for clients that have nothing to do with it");
    assert_eq!(c.answer(a, moved), Ok(Answer::Done));
    assert!(evictions(&c).is_empty(), "{:?}", c.log);
    assert_eq!(read(&mut c, a, fh), content(1));
    assert_eq!(objects(&mut c), [0, 0, 1]);
    assert!(marks::count("striped_locks_make_way") > 0);
}

/// The same with two moves, of which one begins anew because the file was written. Nobody who works is evicted, and both come to their
/// end; if they kept what they have, they would have each other evicted in turns, for ever.
#[test]
fn two_moves_beside_clients_that_have_stopped_make_way() {
    for seed in cluster::seeds(0, 100) {
        let mut rng = Rng::new(seed);
        let mut c = Cluster::new(3);
        let (a, b) = (c.mount(), c.mount());
        let (ino, [fh, fh_of_b]) = beside_stopped_clients(&mut c, [a, b]);
        let mut steps = |c: &mut Cluster, below| (0..rng.below(below)).for_each(|_| c.one_step(&mut rng));
        let quietly = |c: &mut Cluster, at, call| (at, c.send_quietly(at, cluster::cred(0), call));
        let first = quietly(&mut c, b, migrate(ino, &[1]));
        steps(&mut c, 150);
        let data = vec![2; 100].into();
        let write = Call::Write { fh, ino: 0, offset: 0, data, write_back: false, kill_priv: false };
        let write = quietly(&mut c, a, write);
        steps(&mut c, 20);
        let second = quietly(&mut c, a, migrate(ino, &[2]));
        steps(&mut c, 150);
        c.pass(Duration::from_secs(150));
        for (at, call) in [first, write, second] {
            assert!(c.answered(at, call), "seed {seed}: {:?}", evictions(&c));
            let done = c.answer(at, call);
            assert!(matches!(done, Ok(_) | Err(Errno::EBUSY)), "seed {seed}: {done:?}");
        }
        assert!(evictions(&c).is_empty(), "seed {seed}: {:?}", evictions(&c));
        let mut expected = content(1);
        expected[..100].fill(2);
        assert_eq!(read(&mut c, b, fh_of_b), expected, "seed {seed}");
        assert_eq!(objects(&mut c).iter().sum::<usize>(), layout(&mut c, a, ino).osts.len(), "seed {seed}");
    }
    assert!(marks::count("migration_lends_the_layout") > 0);
}
