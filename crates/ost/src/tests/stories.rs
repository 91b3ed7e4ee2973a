//! Stories: one behaviour each.

use proto::Errno;
use proto::Opcode;
use proto::msg::{Extent, LockMode, Lvb, ObjSetattrReq, ObjectStateRep, PunchKind};
use stdx::Instant;

use schema::{Object, ObjectKey, OstState, Record};
use target::grants::GRANT_FIRST;

use super::world::{NAME, World, fid, object};

const MIB: u64 = 1 << 20;

#[test]
fn an_object_comes_into_being_with_its_first_write() {
    let mut world = World::new(1);
    let (a, b) = (world.client(), world.client());
    assert_eq!(&world.read(a, 1, 0, 100).unwrap()[..], b"");
    assert_eq!(world.getattr(a, 1), Lvb::default());
    let state = world.write(a, 1, 2, b"hello").unwrap();
    let lvb = state.lvb.unwrap();
    assert_eq!((lvb.size, lvb.blocks), (7, 8));
    assert_eq!(lvb.mtime_ns, world.times().mtime_ns);
    assert_eq!(&world.read(b, 1, 0, 100).unwrap()[..], b"\0\0hello");
    assert_eq!(&world.read(b, 1, 4, 2).unwrap()[..], b"ll");
    assert_eq!(&world.read(b, 1, 7, 2).unwrap()[..], b"");
    assert_eq!(world.getattr(b, 1).size, 7);
    assert_eq!(world.host.data.files().len(), 1);
}

#[test]
fn an_object_shrinks_grows_and_has_holes() {
    let mut world = World::new(1);
    let a = world.client();
    world.write(a, 1, 0, &[7; 12000]).unwrap();
    assert_eq!(world.truncate(a, 1, 5000).unwrap().size, 5000);
    assert_eq!(world.truncate(a, 1, 9000).unwrap().size, 9000);
    let bytes = world.read(a, 1, 0, 20000).unwrap();
    assert_eq!(bytes.len(), 9000);
    assert!(bytes[..5000].iter().all(|&b| b == 7) && bytes[5000..].iter().all(|&b| b == 0));
    let lvb = world.punch(a, 1, PunchKind::Hole, 0, 4096, false).unwrap();
    assert_eq!((lvb.size, lvb.blocks), (9000, 8));
    assert_eq!(world.seek(a, 1, 0, false), Ok(4096));
    assert_eq!(world.seek(a, 1, 0, true), Ok(0));
    assert_eq!(world.seek(a, 1, 4096, true), Ok(8192));
    assert_eq!(world.seek(a, 1, 8192, false), Err(Errno::ENXIO));
    assert_eq!(world.seek(a, 1, 9000, true), Err(Errno::ENXIO));
    assert_eq!(world.punch(a, 1, PunchKind::Allocate, 8192, 8192, true).unwrap().size, 9000);
    assert_eq!(world.punch(a, 1, PunchKind::Allocate, 8192, 8192, false).unwrap().size, 16384);
    assert_eq!(world.punch(a, 1, PunchKind::Zero, 0, 20000, true).unwrap().size, 16384);
    assert!(world.read(a, 1, 0, 20000).unwrap().iter().all(|&b| b == 0));
    assert_eq!(world.punch(a, 2, PunchKind::Allocate, 0, 100, false).unwrap().size, 100);
    assert_eq!(world.punch(a, 3, PunchKind::Hole, 0, 100, false).unwrap().size, 0);
    assert_eq!(world.truncate(a, 3, 0).unwrap().size, 0);
    assert_eq!(world.punch(a, 1, PunchKind::Zero, 0, 0, false), Err(Errno::EINVAL));
    assert_eq!(world.truncate(a, 1, u64::MAX), Err(Errno::EFBIG));
    assert_eq!(world.write(a, 1, i64::MAX as u64, b"x").map(drop), Err(Errno::EFBIG));
    assert_eq!(world.host.data.files().len(), 2, "objects 1 and 2");
}

/// A hole beyond the end, and a cut of what is empty, change no byte, and the times of the file.
#[test]
fn a_punch_that_changes_nothing_is_seen_by_its_time() {
    for kind in [PunchKind::Hole, PunchKind::Truncate] {
        let mut world = World::new(1);
        let (a, b) = (world.client(), world.client());
        let told = world.punch(a, 1, kind, 0, u64::from(kind == PunchKind::Hole) * 4096, true).unwrap();
        assert!(told.ctime_ns > 0 && told.mtime_ns == told.ctime_ns, "{kind:?}");
        assert_eq!(world.getattr(b, 1), told, "{kind:?}");
        world.write(b, 1, 0, b"x").unwrap();
        assert!(world.getattr(a, 1).ctime_ns >= told.ctime_ns);
        assert_eq!(world.host.data.files().len(), 1, "it has a data file since it was written");
    }
}

#[test]
fn truncated_to_nothing_and_written_anew_it_has_a_new_file_and_the_old_one_goes() {
    let mut world = World::new(1);
    let a = world.client();
    world.write(a, 1, 0, b"old content").unwrap();
    world.sync(a);
    world.slow_medium = true;
    world.truncate(a, 1, 0).unwrap();
    world.write(a, 1, 0, b"new").unwrap();
    assert_eq!(world.host.data.files(), [1, 2], "the old one stays until the truncation is durable");
    assert_eq!(&world.read(a, 1, 0, 100).unwrap()[..], b"new");
    world.slow_medium = false;
    world.settle();
    assert_eq!(world.host.data.files(), [2]);
    world.crash();
    world.settle();
    assert_eq!(&world.read(a, 1, 0, 100).unwrap()[..], b"new");
    assert_eq!(world.host.data.files(), [2]);
}

#[test]
fn if_the_client_dies_with_the_target_the_old_content_is_there_whole() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        let a = world.client();
        world.write(a, 1, 0, b"old content").unwrap();
        world.sync(a);
        world.slow_medium = true;
        world.truncate(a, 1, 0).unwrap();
        world.write(a, 1, 0, b"new").unwrap();
        world.die(a);
        world.kill();
        world.slow_medium = false;
        world.start();
        let b = world.client();
        let bytes = world.read(b, 1, 0, 100).unwrap();
        assert!([&b"old content"[..], b"", b"new"].contains(&&bytes[..]), "seed {seed}: {bytes:?}");
        world.settle();
        world.settle();
        assert!(world.host.data.files().len() <= 1, "seed {seed}: {:?}", world.host.data.files());
    }
}

#[test]
fn a_write_that_the_medium_refuses_leaves_nothing() {
    let mut world = World::new(1);
    let a = world.client();
    world.host.data.fail_next(Errno::ENOSPC);
    assert_eq!(world.write(a, 1, 0, b"x").map(drop), Err(Errno::ENOSPC));
    assert_eq!(world.getattr(a, 1).size, 0);
    world.host.data.fail_next(Errno::EIO);
    assert_eq!(world.truncate(a, 1, 10).map(drop), Err(Errno::EIO));
    world.write(a, 2, 0, b"x").unwrap();
    world.settle();
    assert_eq!(world.host.data.files().len(), 1);
    assert_eq!(&world.read(a, 2, 0, 9).unwrap()[..], b"x");
}

/// The disk refuses to remove a file: that is tried again, and does not wait for the next start.
#[test]
fn a_data_file_that_cannot_be_removed_is_tried_again() {
    let mut world = World::new(1);
    let a = world.client();
    world.write(a, 1, 0, b"x").unwrap();
    world.settle();
    world.host.data.fail_next(Errno::EIO);
    world.truncate(a, 1, 0).unwrap();
    world.settle();
    assert_eq!(world.host.data.files().len(), 1);
    for _ in 0..40 {
        world.settle();
    }
    assert!(world.host.data.files().is_empty(), "{:?}", world.host.data.files());
}

#[test]
fn locks_carry_attributes_and_are_called_back_before_others_see_or_change_the_bytes() {
    let mut world = World::new(1);
    let (a, b) = (world.client(), world.client());
    world.write(a, 1, 0, b"abc").unwrap();
    assert_eq!(world.lock(a, 1, LockMode::Pw).size, 3);
    assert_eq!(&world.read(a, 1, 0, 9).unwrap()[..], b"abc", "one's own lock is in nobody's way");

    world.clients[a].obliging = false;
    let req = world.write_req(b, 1, 3);
    let write = world.send_write(b, &req, b"def");
    world.step();
    assert!(world.clients[b].replies.is_empty(), "b has no lock, so a's must go first");
    let callback = world.clients[a].called_back[0].clone();
    world.write(a, 1, 0, b"ABC").unwrap();
    world.cancel(a, callback.cookie, callback.handle);
    world.answer(b, write).unwrap();
    assert_eq!(&world.read(b, 1, 0, 9).unwrap()[..], b"ABCdef");

    world.clients[a].obliging = true;
    world.lock(a, 1, LockMode::Pw);
    assert_eq!(&world.read(b, 1, 0, 9).unwrap()[..], b"ABCdef");
    assert_eq!(world.clients[a].called_back.len(), 2, "a reader without a lock calls a writer's back too");
}

#[test]
fn a_write_under_a_lock_that_is_gone_is_refused() {
    let mut world = World::new(1);
    let a = world.client();
    world.lock(a, 1, LockMode::Pw);
    let req = world.write_req(a, 1, 0);
    assert_ne!(req.lock, 0);
    let (cookie, handle) =
        world.clients[a].locks.iter().map(|(cookie, (_, handle))| (*cookie, *handle)).next().unwrap();
    world.cancel(a, cookie, handle);
    world.run();
    let late = world.send_write(a, &req, b"late");
    assert_eq!(world.answer(a, late), Err(Errno::ESTALE));
    world.lock(a, 1, LockMode::Pr);
    let read_only = world.send_write(a, &req, b"late");
    assert_eq!(world.answer(a, read_only), Err(Errno::ESTALE), "a reader's lock is not enough");
}

#[test]
fn holders_are_asked_for_what_they_know_better() {
    let mut world = World::new(1);
    let (a, b) = (world.client(), world.client());
    world.write(a, 1, 0, b"abc").unwrap();
    world.lock(a, 1, LockMode::Pw);
    let late = Lvb { size: 5000, blocks: 0, mtime_ns: i64::MAX - 1, ctime_ns: i64::MAX, atime_ns: 0 };
    world.clients[a].lvb = Some(late);
    let seen = world.getattr(b, 1);
    assert_eq!((seen.size, seen.blocks, seen.mtime_ns), (5000, 8, i64::MAX - 1));
    assert_eq!(world.getattr(a, 1).size, 3, "who asks is not asked");
    world.clients[a].lvb = None;
    assert_eq!(world.getattr(b, 1).size, 3);
    assert!(world.clients[a].called_back.is_empty());
}

#[test]
fn a_lock_waits_for_its_turn() {
    let mut world = World::new(1);
    let (a, b) = (world.client(), world.client());
    world.lock(a, 1, LockMode::Pw);
    world.clients[a].obliging = false;
    let wanted = world.send_enqueue(b, 1, LockMode::Pr, Extent { start: 0, end: 4095 });
    world.step();
    world.write(a, 1, 0, b"dirty").unwrap();
    let callback = world.clients[a].called_back[0].clone();
    world.cancel(a, callback.cookie, callback.handle);
    assert_eq!(world.granted(b, wanted).unwrap().size, 5);
}

#[test]
fn owners_and_times_change_and_late_times_do_not_go_back() {
    let mut world = World::new(1);
    let a = world.client();
    let set = |world: &mut World, oid, ctime_ns, mtime_ns, uid| {
        let lvb = Some(Lvb { ctime_ns, mtime_ns, ..Lvb::default() });
        let req = ObjSetattrReq { object: object(oid), lvb, uid, gid: u32::MAX };
        world.call(a, Opcode::ObjSetattr, &req).unwrap().decode::<ObjectStateRep>().unwrap().lvb.unwrap()
    };
    assert_eq!(set(&mut world, 1, 5, 5, 1).size, 0);
    assert_eq!(world.getattr(a, 1), Lvb::default(), "no object comes into being by this");
    world.write(a, 1, 0, b"x").unwrap();
    let wrote = world.getattr(a, 1);
    assert_eq!(set(&mut world, 1, wrote.ctime_ns - 1, 3, 1).mtime_ns, wrote.mtime_ns);
    assert_eq!(set(&mut world, 1, wrote.ctime_ns + 1, 3, 1).mtime_ns, 3);
}

#[test]
fn a_destroyed_object_is_gone_and_stays_gone() {
    let mut world = World::new(1);
    let (a, mdt) = (world.client(), world.mdt());
    world.write(a, 1, 0, b"x").unwrap();
    world.write(a, 2, 0, b"y").unwrap();
    world.lock(a, 1, LockMode::Pw);
    let late = world.write_req(a, 1, 0);
    assert_eq!(world.destroy(a, &[1]), Err(Errno::EPERM), "clients do not destroy");
    assert_eq!(world.destroy(mdt, &[1, 3, 1]), Ok(()));
    assert_eq!(world.clients[a].called_back.len(), 1);
    assert_eq!(world.getattr(a, 1).size, 0);
    let late = world.send_write(a, &late, b"late");
    assert_eq!(world.answer(a, late), Err(Errno::ESTALE));
    assert_eq!(world.write(a, 1, 0, b"without a lock").map(drop), Err(Errno::ESTALE));
    assert_eq!(world.destroy(mdt, &[1]), Ok(()), "again");
    world.settle();
    assert_eq!(world.host.data.files().len(), 1);
    world.crash();
    assert_eq!(&world.read(a, 2, 0, 9).unwrap()[..], b"y");
    assert_eq!(world.getattr(a, 1).size, 0);
    assert_eq!(world.host.data.files().len(), 1);
}

#[test]
fn a_destroy_is_answered_when_it_is_durable() {
    let mut world = World::new(1);
    let (a, mdt) = (world.client(), world.mdt());
    world.write(a, 1, 0, b"x").unwrap();
    world.sync(a);
    world.slow_medium = true;
    let req = proto::msg::DestroyReq { objects: vec![object(1)], strays: None };
    let destroy = world.send(mdt, rpc::client::Outgoing::new(Opcode::ObjDestroy, &req));
    for _ in 0..3 {
        world.step();
    }
    assert!(world.clients[mdt].replies.is_empty());
    assert_eq!(world.host.data.files().len(), 1);
    world.slow_medium = false;
    world.answer(mdt, destroy).unwrap();
    world.settle();
    assert!(world.host.data.files().is_empty());
}

#[test]
fn strays_go_and_what_is_kept_stays() {
    let mut world = World::new(1);
    let (a, mdt) = (world.client(), world.mdt());
    for oid in 1..=6 {
        world.write(a, oid, 0, b"x").unwrap();
    }
    world.sync(a);
    let seq = object(1).fid.seq;
    let strays = |first, last, keep: &[u32]| proto::msg::DestroyReq {
        objects: Vec::new(),
        strays: Some(proto::msg::StrayObjects { seq, first, last, keep: keep.to_vec() }),
    };
    assert_eq!(world.call(a, Opcode::ObjDestroy, &strays(0, 6, &[])).err(), Some(Errno::EPERM), "a client may not");
    assert_eq!(world.call(mdt, Opcode::ObjDestroy, &strays(6, 0, &[])).err(), Some(Errno::EINVAL));
    let other = proto::msg::StrayObjects { seq: seq + 1, first: 0, last: 9, keep: Vec::new() };
    let other = proto::msg::DestroyReq { objects: Vec::new(), strays: Some(other) };
    world.call(mdt, Opcode::ObjDestroy, &other).unwrap();
    assert_eq!(world.host.data.files().len(), 6, "another sequence");
    let reply = world.call(mdt, Opcode::ObjDestroy, &strays(2, 5, &[3])).unwrap();
    assert!(!reply.decode::<proto::msg::DestroyRep>().unwrap().more);
    world.settle();
    assert_eq!(world.host.data.files().len(), 3);
    for oid in [1, 3, 6] {
        assert_eq!(&world.read(a, oid, 0, 9).unwrap()[..], b"x", "{oid}");
    }
}

#[test]
fn what_was_answered_and_lost_is_replayed_and_what_was_synced_needs_no_client() {
    let mut world = World::new(1);
    let (a, b) = (world.client(), world.client());
    world.write(a, 1, 0, b"durable").unwrap();
    world.sync(a);
    world.slow_medium = true;
    world.write(b, 2, 0, b"volatile").unwrap();
    world.lock(b, 2, LockMode::Pw);
    world.write(b, 2, 8, b"+locked").unwrap();
    world.slow_medium = false;
    world.crash();
    assert_eq!(&world.read(a, 2, 0, 99).unwrap()[..], b"volatile+locked");
    assert_eq!(&world.read(a, 1, 0, 99).unwrap()[..], b"durable");
    assert_eq!(world.clients[b].evictions, 0);
    world.settle();
    assert_eq!(world.host.data.files().len(), 2);
}

#[test]
fn after_a_restart_a_resent_write_goes_under_the_replayed_lock() {
    let mut world = World::new(1);
    let a = world.client();
    world.lock(a, 1, LockMode::Pw);
    let req = world.write_req(a, 1, 0);
    world.kill();
    let write = world.send_write(a, &req, b"sent before, with the old handle");
    world.start();
    world.answer(a, write).unwrap();
}

#[test]
fn bytes_of_a_lost_write_do_not_show_when_the_object_grows_over_them() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        let a = world.client();
        world.write(a, 1, 0, b"short").unwrap();
        world.sync(a);
        world.slow_medium = true;
        world.write(a, 1, 0, &[9; 10000]).unwrap();
        world.die(a);
        world.kill();
        world.slow_medium = false;
        world.start();
        let b = world.client();
        let size = world.getattr(b, 1).size as usize;
        assert!(size == 5 || size == 10000);
        world.write(b, 1, 20000, b"far").unwrap();
        let bytes = world.read(b, 1, 0, 30000).unwrap();
        assert!(bytes[size..20000].iter().all(|&byte| byte == 0), "seed {seed}");
    }
}

#[test]
fn a_file_whose_first_write_was_under_way_is_removed_after_the_crash() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        let (a, b) = (world.client(), world.client());
        world.host.stalled = Some(1);
        let req = world.write_req(a, 1, 0);
        world.send_write(a, &req, b"its object will not have a record");
        world.write(b, 2, 0, b"durable").unwrap();
        world.sync(b);
        assert_eq!(world.host.data.files(), [1, 2]);
        world.die(a);
        world.crash();
        assert_eq!(&world.read(b, 2, 0, 99).unwrap()[..], b"durable");
        world.settle();
        assert_eq!(world.host.data.files(), [2], "seed {seed}");
        world.write(b, 3, 0, b"next").unwrap();
        world.sync(b);
        assert_eq!(world.host.data.files(), [2, 3]);
    }
}

#[test]
fn a_file_whose_first_write_was_under_way_goes_with_its_client() {
    let mut world = World::new(1);
    let (a, b) = (world.client(), world.client());
    world.host.stalled = Some(1);
    let req = world.write_req(a, 1, 0);
    world.send_write(a, &req, b"nobody will want it");
    assert_eq!(world.host.data.files(), [1]);
    world.die(a);
    world.write(b, 2, 0, b"durable").unwrap();
    world.until(|world| world.host.data.files() == [2]);
}

#[test]
fn a_missing_data_file_is_an_error_that_names_it() {
    let mut world = World::new(1);
    let a = world.client();
    world.write(a, 1, 0, b"x").unwrap();
    let file = world.host.data.files()[0];
    world.host.data.run(&target::DataOp::Remove { file });
    assert_eq!(world.read(a, 1, 0, 1), Err(Errno::EIO));
    assert!(world.log.iter().any(|line| line.contains("is missing")), "{:?}", world.log);
}

#[test]
fn space_is_granted_used_and_respected() {
    let mut world = World::new(1);
    world.set_space(1000 * MIB);
    let a = world.client();
    assert_eq!(world.clients[a].connected.as_ref().unwrap().grant, GRANT_FIRST);
    let mdt = world.mdt();
    assert_eq!(world.clients[mdt].connected.as_ref().unwrap().grant, 0);
    assert_eq!(world.statfs(a, 32 * MIB).grant, 32 * MIB);
    assert_eq!(world.statfs(a, GRANT_FIRST).grant, 32 * MIB, "it may be full of data");
    let figures = world.statfs(a, 0);
    assert_eq!((figures.total, figures.free), (2000 * MIB, 1000 * MIB));
    assert_eq!(figures.available, 1000 * MIB - 32 * MIB);

    world.set_space(MIB);
    let b = world.client();
    assert_eq!(world.write(b, 1, 0, &[1; 4096]).map(drop), Err(Errno::ENOSPC), "all that is left is a's");
    let mut paid = world.write_req(a, 2, 0);
    paid.grant_used = MIB / 2;
    let write = world.send_write(a, &paid, &vec![1; MIB as usize / 2]);
    let state: ObjectStateRep = world.answer(a, write).unwrap().decode().unwrap();
    assert_eq!(state.grant, 32 * MIB - MIB / 2, "used, and not renewed");
    world.die(a);
    world.until(|world| world.host.machine.as_ref().unwrap().service().grants.total() == 0);
    world.set_space(MIB);
    world.write(b, 1, 0, &[1; 4096]).unwrap();
}

#[test]
fn synced_writes_are_answered_when_durable() {
    let mut world = World::new(1);
    let a = world.client();
    world.slow_medium = true;
    let mut req = world.write_req(a, 1, 0);
    req.sync = true;
    let write = world.send_write(a, &req, b"x");
    world.step();
    assert!(world.clients[a].replies.is_empty());
    world.slow_medium = false;
    world.answer(a, write).unwrap();
    world.die(a);
    world.crash();
    let b = world.client();
    assert_eq!(&world.read(b, 1, 0, 9).unwrap()[..], b"x");
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let mut world = World::new(1);
    let a = world.client();
    let big = vec![0; 2 * MIB as usize];
    assert_eq!(world.write(a, 1, 0, &big).map(drop), Err(Errno::EINVAL));
    assert_eq!(world.read(a, 1, 0, u32::MAX).map(drop), Err(Errno::EINVAL));
    assert_eq!(world.write(a, 1, 0, b"").unwrap().lvb.unwrap().size, 0);
    assert!(world.call(a, Opcode::MdsReint, &object(1)).is_err());
    let garbage = rpc::client::Outgoing {
        body: bytes::Bytes::from_static(b"\xff\xff\xff"),
        ..rpc::client::Outgoing::new(Opcode::ObjWrite, &object(1))
    };
    let id = world.send(a, garbage);
    assert_eq!(world.answer(a, id), Err(Errno::EPROTO));
    assert!(world.host.data.files().is_empty());
}

#[test]
fn parameters_have_lustres_names() {
    let mut world = World::new(1);
    world.set_space(1000 * MIB);
    let a = world.client();
    world.write(a, 1, 0, b"x").unwrap();
    let params = world.target().get_params("obdfilter.*.*");
    let value = |name: &str| {
        let path = format!("obdfilter.{NAME}.{name}");
        params.iter().find(|(p, _)| *p == path).map(|(_, value)| value.clone()).unwrap_or_else(|| panic!("{path}"))
    };
    assert_eq!(value("kbytestotal"), (2000 * 1024).to_string());
    assert_eq!(value("tot_granted"), GRANT_FIRST.to_string());
    assert!(value("brw_stats").contains("|    1 100 100"), "{}", value("brw_stats"));
    world.write(a, 1, 1, b"yz").unwrap();
    world.read(a, 1, 0, 9).unwrap();
    let stats = world.target().get_params("obdfilter.*.stats").remove(0).1;
    let of_client = world.target().get_params("obdfilter.*.exports.*.stats").remove(0).1;
    for text in [stats, of_client] {
        assert!(text.starts_with("snapshot_time             "), "{text}");
        for line in [
            "write_bytes               2 samples [bytes] 1 2 3 5\n",
            "read_bytes                1 samples [bytes] 3 3 3 9\n",
        ] {
            assert!(text.contains(line), "{line} is missing:\n{text}");
        }
        assert!(text.contains("\nwrite                     2 samples [usecs] "), "{text}");
    }
    for name in ["stats", "kbytesfree", "kbytesavail", "filestotal", "filesfree", "num_exports"] {
        value(name);
    }
    assert!(world.now > Instant::ZERO);
}

#[test]
fn the_medium_of_the_data_files_counts_not_that_of_the_store() {
    let mut world = World::new(1);
    let a = world.client();
    world.set_space(1000 * MIB);
    world.set_data_space(10 * MIB, MIB / 2);
    let figures = world.statfs(a, 1);
    assert_eq!((figures.total, figures.free), (10 * MIB, MIB / 2));
    assert_eq!(world.write(a, 1, 0, &vec![1; 1 << 20]).map(drop), Err(Errno::ENOSPC));
    world.set_data_space(5000 * MIB, 4000 * MIB);
    assert_eq!(world.statfs(a, GRANT_FIRST).grant, GRANT_FIRST);
}

/// The key of an object of the tests.
fn key(oid: u32) -> ObjectKey {
    ObjectKey { fid: fid(oid), stripe: proto::StripeIndex(0) }
}

#[test]
fn an_object_that_lost_its_record_is_an_error_until_it_is_destroyed() {
    let mut world = World::new(1);
    let (a, mdt) = (world.client(), world.mdt());
    world.write(a, 1, 0, b"gone").unwrap();
    world.write(a, 2, 0, b"here").unwrap();
    world.write(a, 3, 0, b"cut").unwrap();
    world.truncate(a, 3, 0).unwrap();
    world.damage(|batch| [1, 3].iter().for_each(|oid| batch.delete(Object::key(&key(*oid)))));
    for _ in 0..2 {
        assert_eq!(world.read(a, 1, 0, 4), Err(Errno::EIO));
        assert_eq!(world.write(a, 1, 1, b"x").map(drop), Err(Errno::EIO));
        assert_eq!(world.truncate(a, 1, 2).map(drop), Err(Errno::EIO));
        assert_eq!(world.seek(a, 1, 0, false), Err(Errno::EIO));
        let request = world.send_enqueue(a, 1, LockMode::Pr, Extent::ALL);
        assert_eq!(world.granted(a, request).map(drop), Err(Errno::EIO), "no lock on what is not known");
        // Others are as they were; what was empty may lose its record.
        assert_eq!(&world.read(a, 2, 0, 4).unwrap()[..], b"here");
        assert_eq!(&world.read(a, 3, 0, 4).unwrap()[..], b"");
        assert_eq!(&world.read(a, 4, 0, 4).unwrap()[..], b"");
        assert!(world.log.iter().any(|line| line.contains("stripe 0: its record is lost")), "{:?}", world.log);
        world.crash();
    }
    assert_eq!(world.host.data.files().len(), 2);
    world.destroy(mdt, &[1, 2, 3, 4]).unwrap();
    world.settle();
    assert_eq!(world.host.data.files(), [], "the data file of the lost object goes with it");
    assert_eq!(&world.read(a, 1, 0, 4).unwrap()[..], b"");
}

#[test]
fn marks_from_before_a_version_without_marks_say_nothing() {
    let mut world = World::new(1);
    let a = world.client();
    world.write(a, 1, 0, b"destroyed by the older version").unwrap();
    world.write(a, 2, 0, b"changed later").unwrap();
    // It destroys an object, counts anew, and does not know the mark.
    world.damage(|batch| {
        batch.delete(Object::key(&key(1)));
        batch.put(OstState::key(&()), OstState { next_file: 3, objects: 1, ..OstState::default() }.encode_record());
    });
    assert_eq!(&world.read(a, 1, 0, 4).unwrap()[..], b"");
    // A change marks an object anew.
    world.write(a, 2, 0, b"C").unwrap();
    world.damage(|batch| batch.delete(Object::key(&key(2))));
    assert_eq!(world.read(a, 2, 0, 4), Err(Errno::EIO));
    assert_eq!(&world.read(a, 1, 0, 4).unwrap()[..], b"");
}
