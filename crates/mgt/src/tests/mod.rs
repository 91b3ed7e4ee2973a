//! Stories about a management target.

mod keys;
mod lost;
mod world;

use proto::msg::{Pool, RegisterReq, SeqRangeRep, SeqRangeReq, SequenceRange, SetPoolKind};
use proto::{Errno, Fid, Opcode};
use schema::{FsRec, Record};

use crate::ops::sequence::WIDTH;
use world::World;

fn target(name: &str, store: u8, instance: u64) -> RegisterReq {
    RegisterReq {
        target: name.into(),
        target_uuid: vec![store; 16].into(),
        nids: vec![format!("127.0.0.1:{}", 7000 + u16::from(store))],
        instance,
        first: instance == 1,
        ..RegisterReq::default()
    }
}

#[test]
fn targets_register_in_any_order_and_clients_follow() {
    let mut world = World::new();
    let (server, client) = (world.node(), world.node());
    assert_eq!(world.config(client, "fs"), Err(Errno::ENOENT));
    assert_eq!(world.register(server, &target("fs-OST0003", 3, 1)), Ok(1), "before the MDT, and with any index");
    assert_eq!(world.told(client), [("fs".to_owned(), 1)], "who asked too early is told");
    assert_eq!(world.register(server, &target("fs-MDT0000", 1, 1)), Ok(2));
    world.told(client);

    let config = world.config(client, "fs").unwrap();
    assert_eq!((config.version, config.fsname.as_str()), (2, "fs"));
    let names: Vec<_> = config.targets.iter().map(|t| t.target.as_str()).collect();
    assert_eq!(names, ["fs-MDT0000", "fs-OST0003"]);
    assert_eq!(config.targets[1].nids, ["127.0.0.1:7003"]);
    assert_eq!(world.told(client), []);
}

#[test]
fn a_restart_and_a_new_address_are_told_and_no_change_is_not() {
    let mut world = World::new();
    let (server, client, other) = (world.node(), world.node(), world.node());
    world.register(server, &target("fs-MDT0000", 1, 1)).unwrap();
    world.register(server, &target("other-MDT0000", 2, 1)).unwrap();
    world.config(client, "fs").unwrap();
    world.config(other, "other").unwrap();
    assert_eq!(world.register(server, &target("fs-MDT0000", 1, 2)), Ok(2));
    assert_eq!(world.register(server, &target("fs-MDT0000", 1, 2)), Ok(2));
    let moved = RegisterReq { nids: vec!["unix:/run/mdt".into()], ..target("fs-MDT0000", 1, 2) };
    assert_eq!(world.register(server, &moved), Ok(3));
    assert_eq!(world.told(client), [("fs".to_owned(), 2), ("fs".to_owned(), 3)]);
    assert_eq!(world.told(other), []);
    let entry = &world.config(client, "fs").unwrap().targets[0];
    assert_eq!((entry.instance, entry.nids[0].as_str()), (2, "unix:/run/mdt"));
}

/// A target that starts again takes no more room than it had.
#[test]
fn a_known_target_registers_on_a_full_disk_and_a_new_one_does_not() {
    let mut world = World::new();
    let server = world.node();
    world.register(server, &target("fs-MDT0000", 1, 1)).unwrap();
    world.disk_is_full();
    assert_eq!(world.register(server, &target("fs-MDT0000", 1, 2)), Ok(2));
    let refused = world.register(server, &target("fs-OST0000", 2, 1)).unwrap_err();
    assert_eq!(refused, (Errno::ENOSPC, String::new()));
}

#[test]
fn wrong_registrations_are_refused_with_a_sentence() {
    let mut world = World::new();
    let server = world.node();
    let unknown = target("fs-OST0000", 1, 5);
    let (errno, reason) = world.register(server, &unknown).unwrap_err();
    assert_eq!(errno, Errno::ENOENT);
    assert!(reason.contains("serves no file system yet") && reason.contains("--writeconf"), "{reason}");

    world.register(server, &target("fs-OST0000", 1, 1)).unwrap();
    let (errno, reason) = world.register(server, &target("fs-OST0000", 2, 1)).unwrap_err();
    assert_eq!(errno, Errno::EADDRINUSE);
    assert!(reason.contains("index 0 of file system 'fs' is in use by another target at 127.0.0.1:7001"), "{reason}");
    let (errno, reason) = world.register(server, &target("else-OST0000", 2, 4)).unwrap_err();
    assert_eq!(errno, Errno::ENOENT);
    assert!(reason.contains("serves fs;"), "{reason}");

    let good = target("fs-OST0001", 3, 1);
    for name in
        ["", "MGS", "fs", "fs-OST1", "fs-OST00001", "fs-OST+001", "toolongname-OST0000", "fs-XYZ0000", "a b-OST0000"]
    {
        let req = RegisterReq { target: name.into(), ..good.clone() };
        assert_eq!(world.register(server, &req).unwrap_err().0, Errno::EINVAL, "{name}");
    }
    for nids in [vec![], vec!["nonsense".to_owned()], vec!["h:1".to_owned(); 100]] {
        let req = RegisterReq { nids, ..good.clone() };
        assert_eq!(world.register(server, &req).unwrap_err().0, Errno::EINVAL);
    }
    let req = RegisterReq { target_uuid: vec![1].into(), ..good };
    assert_eq!(world.register(server, &req).unwrap_err().0, Errno::EINVAL);
    assert_eq!(world.config(server, "fs").unwrap().version, 1, "nothing was changed");
    assert_eq!(world.config(server, "no such name"), Err(Errno::EINVAL));
}

#[test]
fn an_object_target_takes_the_place_of_a_lost_one() {
    let mut world = World::new();
    let (server, lost, new) = (world.node(), world.node_named("fs-OST0000"), world.node_named("fs-OST0000"));
    world.register(server, &target("fs-MDT0000", 1, 1)).unwrap();
    world.register(lost, &target("fs-OST0000", 2, 1)).unwrap();
    let replaces = RegisterReq { replace: true, ..target("fs-OST0000", 3, 1) };
    let (errno, reason) = world.register(new, &target("fs-OST0000", 3, 1)).unwrap_err();
    assert!(errno == Errno::EADDRINUSE && reason.contains("--replace"), "{reason}");
    let (errno, reason) = world.register(new, &replaces).unwrap_err();
    assert!(errno == Errno::EADDRINUSE && reason.contains("stop that one first"), "{reason}");
    world.cut(lost);
    assert_eq!(world.config(server, "fs").unwrap().replaced, 0);
    assert_eq!(world.registered(new, &replaces), 1);
    assert_eq!(world.registered(new, &replaces), 1, "the answer was lost");
    let config = world.config(server, "fs").unwrap();
    assert_eq!((config.replaced, &config.targets[1].nids[0][..]), (1, "127.0.0.1:7003"));
    // The lost one was found again.
    assert_eq!(world.register(server, &target("fs-OST0000", 2, 2)).unwrap_err().0, Errno::EADDRINUSE);
    // The next one, and one that the MGS does not know any more.
    assert_eq!(world.registered(server, &RegisterReq { replace: true, ..target("fs-OST0007", 4, 1) }), 2);
    world.cut(new);
    let second = RegisterReq { replace: true, ..target("fs-OST0000", 5, 1) };
    assert_eq!(world.registered(server, &second), 3);
    assert_eq!(world.registered(server, &RegisterReq { replaced: 3, ..target("fs-OST0000", 5, 2) }), 3);

    // A configuration that is made anew goes on from what the targets know.
    let mut world = World::new();
    let server = world.node();
    world.registered(server, &RegisterReq { replaced: 3, ..target("fs-OST0000", 5, 1) });
    world.registered(server, &target("fs-OST0001", 6, 1));
    assert_eq!(world.config(server, "fs").unwrap().replaced, 3);
    let most = RegisterReq { replaced: 255, ..target("fs-OST0002", 7, 1) };
    assert_eq!(world.registered(server, &most), 255);
    let more = RegisterReq { replace: true, ..target("fs-OST0001", 8, 1) };
    assert_eq!(world.register(server, &more).unwrap_err().0, Errno::ENOSPC);
    let metadata = RegisterReq { replace: true, ..target("fs-MDT0000", 9, 1) };
    assert_eq!(world.register(server, &metadata).unwrap_err().0, Errno::EINVAL);
}

#[test]
fn nothing_is_answered_or_told_before_it_is_durable() {
    let mut world = World::new();
    let (server, client) = (world.node(), world.node());
    world.register(server, &target("fs-MDT0000", 1, 1)).unwrap();
    world.config(client, "fs").unwrap();
    world.slow_medium = true;
    let register = world.send(server, Opcode::MgsRegister, &target("fs-OST0000", 2, 1));
    let sequences =
        world.send(server, Opcode::MgsSeqRange, &SeqRangeReq { target: "fs-MDT0000".into(), ..Default::default() });
    for _ in 0..3 {
        world.step();
    }
    assert!(!world.is_answered(server, register) && !world.is_answered(server, sequences));
    assert_eq!(world.told(client), []);
    world.slow_medium = false;
    world.answer(server, register);
    world.answer(server, sequences);
    assert_eq!(world.told(client).last(), Some(&("fs".to_owned(), 3)));
}

#[test]
fn everything_survives_a_crash() {
    let mut world = World::new();
    let (server, client) = (world.node(), world.node());
    world.register(server, &target("fs-MDT0000", 1, 1)).unwrap();
    world.register(server, &target("fs-OST0000", 2, 1)).unwrap();
    world.set_param(server, "fs", "llite.*.max_cached_mb", Some("64")).unwrap();
    let range = world.sequences(server, "fs-MDT0000").unwrap();
    let before = world.config(client, "fs").unwrap();
    world.crash();
    assert_eq!(world.config(client, "fs").unwrap(), before);
    assert_eq!(world.sequences(server, "fs-MDT0000").unwrap().start, range.end);
    world.told(client);
    world.register(server, &target("fs-OST0000", 2, 2)).unwrap();
    assert_eq!(world.told(client), [("fs".to_owned(), before.version + 2)], "who asked again is told again");
    world.set_param(server, "fs", "llite.*.max_cached_mb", None).unwrap();
    world.crash();
    assert_eq!(world.config(client, "fs").unwrap().params, []);
}

#[test]
fn a_sequence_is_never_given_twice() {
    let mut world = World::new();
    let server = world.node();
    world.register(server, &target("fs-MDT0000", 1, 1)).unwrap();
    world.register(server, &target("fs-MDT0001", 2, 1)).unwrap();
    let mut next = Fid::SEQ_FIRST;
    for turn in 0..20 {
        let name = if turn % 2 == 0 { "fs-MDT0000" } else { "fs-MDT0001" };
        let range = world.sequences(server, name).unwrap();
        assert!(range.start >= next && range.end == range.start + WIDTH);
        next = range.end;
        if turn % 5 == 4 {
            world.slow_medium = true;
            world.send(server, Opcode::MgsSeqRange, &SeqRangeReq { target: name.into(), ..Default::default() });
            world.slow_medium = false;
            world.crash();
        }
    }
    assert_eq!(world.sequences(server, "fs-OST0000"), Err(Errno::EINVAL));
    assert_eq!(world.sequences(server, "fs-MDT0002"), Err(Errno::ENOENT));
    assert_eq!(world.sequences(server, "other-MDT0000"), Err(Errno::ENOENT));
}

/// Reports ranges of a target: the first sequence and the end of each.
fn report(world: &mut World, server: usize, mdt: u32, ranges: &[(u64, u64)]) -> Result<SeqRangeRep, Errno> {
    let allocated = ranges.iter().map(|&(start, end)| SequenceRange { start, end, mdt }).collect();
    let request = SeqRangeReq { target: format!("fs-MDT{mdt:04x}"), allocated, report_only: true };
    world.call(server, Opcode::MgsSeqRange, &request).map(|frame| frame.decode().unwrap())
}

#[test]
fn the_configuration_says_which_target_each_sequence_belongs_to() {
    let mut world = World::new();
    let (server, client) = (world.node(), world.node());
    world.register(server, &target("fs-MDT0000", 1, 1)).unwrap();
    world.register(server, &target("fs-MDT0001", 2, 1)).unwrap();
    world.config(client, "fs").unwrap();
    let first = Fid::SEQ_FIRST;
    let at = |n: u64| first + n * WIDTH;
    for (mdt, start) in [(0, at(0)), (1, at(1)), (1, at(2)), (0, at(3))] {
        let rep = world.sequences(server, &format!("fs-MDT{mdt:04x}")).unwrap();
        assert_eq!((rep.start, rep.end, rep.published), (start, start + WIDTH, true));
    }
    assert_eq!(world.told(client).len(), 4, "clients are notified of each range");
    let range = |start, end, mdt| SequenceRange { start: at(start), end: at(end), mdt };
    let all = [range(0, 1, 0), range(1, 3, 1), range(3, 4, 0)];
    assert_eq!(world.config(client, "fs").unwrap().sequences, all, "ranges that meet are one");
    // A report of what is known changes nothing.
    let rep = report(&mut world, server, 1, &[(at(1), at(3))]).unwrap();
    assert_eq!((rep.start, rep.end), (0, 0));
    world.crash();
    assert_eq!(world.config(client, "fs").unwrap().sequences, all);
    for (mdt, start, end) in [(1, at(0), at(2)), (0, at(2), at(4)), (1, at(3), at(5)), (0, at(4), at(5)), (1, 7, at(2))]
    {
        assert_eq!(report(&mut world, server, mdt, &[(start, end)]), Err(Errno::EINVAL), "{mdt} {start} {end}");
    }
    assert_eq!(report(&mut world, server, 1, &[(at(2), at(1))]), Err(Errno::EINVAL));
    assert_eq!(world.config(client, "fs").unwrap().sequences, all, "a false report is refused whole");
}

#[test]
fn ranges_that_an_older_copy_lacks_are_reported_by_their_targets() {
    let mut world = World::new();
    let server = world.node();
    world.register(server, &target("fs-MDT0000", 1, 1)).unwrap();
    world.register(server, &target("fs-MDT0001", 2, 1)).unwrap();
    let first = world.sequences(server, "fs-MDT0000").unwrap();
    world.options.accept_old_store = true;
    world.crash();
    // The copy was made before MDT0001 got a range.
    let lost = (first.end, first.end + WIDTH);
    report(&mut world, server, 1, &[lost]).unwrap();
    assert_eq!(report(&mut world, server, 0, &[lost]), Err(Errno::EINVAL));
    let sequences = world.config(server, "fs").unwrap().sequences;
    assert_eq!(sequences[1], SequenceRange { start: lost.0, end: lost.1, mdt: 1 });
    let next = world.sequences(server, "fs-MDT0001").unwrap();
    assert!(next.start >= first.end + 64 * WIDTH, "{next:?}");
}

#[test]
fn the_sequences_of_version_0_2_0_belong_to_its_only_metadata_target() {
    let mut world = World::new();
    let server = world.node();
    world.register(server, &target("fs-MDT0000", 1, 1)).unwrap();
    let end = world.sequences(server, "fs-MDT0000").unwrap().end;
    let record = FsRec { config_version: 2, next_sequence: end, ..FsRec::default() };
    world.damage(|batch| batch.put(FsRec::key(&"fs".to_owned()), record.encode_record()));
    world.crash();
    world.register(server, &target("fs-MDT0001", 2, 1)).unwrap();
    let next = world.sequences(server, "fs-MDT0001").unwrap();
    let range = |start, end, mdt| SequenceRange { start, end, mdt };
    let sequences = world.config(server, "fs").unwrap().sequences;
    assert_eq!(sequences, [range(Fid::SEQ_FIRST, end, 0), range(next.start, next.end, 1)]);
}

#[test]
fn parameters_are_set_told_and_removed() {
    let mut world = World::new();
    let (server, client) = (world.node(), world.node());
    assert_eq!(world.set_param(client, "fs", "timeout", Some("1")), Err(Errno::ENOENT));
    world.register(server, &target("fs-MDT0000", 1, 1)).unwrap();
    world.config(client, "fs").unwrap();
    world.set_param(client, "fs", "mdt.*.commit_on_sharing", Some("0")).unwrap();
    world.set_param(client, "fs", "mdt.*.commit_on_sharing", Some("0")).unwrap();
    assert_eq!(world.told(client), [("fs".to_owned(), 2)]);
    let params = world.config(client, "fs").unwrap().params;
    assert_eq!((params[0].path.as_str(), params[0].value.as_str()), ("mdt.*.commit_on_sharing", "0"));
    world.set_param(client, "fs", "mdt.*.commit_on_sharing", None).unwrap();
    assert_eq!(world.set_param(client, "fs", "mdt.*.commit_on_sharing", None), Err(Errno::ENOENT));
    assert!(world.config(client, "fs").unwrap().params.is_empty());
    assert_eq!(world.set_param(client, "fs", "bad path", Some("1")), Err(Errno::EINVAL));
    assert_eq!(world.set_param(client, "fs", "", Some("1")), Err(Errno::EINVAL));
    assert_eq!(world.set_param(client, "fs", &"*".repeat(257), Some("1")), Err(Errno::ENAMETOOLONG));
    assert_eq!(world.set_param(client, "fs", "timeout", Some(&"1".repeat(5000))), Err(Errno::ERANGE));
    for nobodys in ["mdt.fs-MDT0000.bogus", "nonsense.fs.x", "mdt.*.num_exports"] {
        assert_eq!(world.set_param(client, "fs", nobodys, Some("1")), Err(Errno::EINVAL), "{nobodys}");
    }
}

#[test]
fn the_live_parameter_shows_the_file_systems() {
    let mut world = World::new();
    let server = world.node();
    world.register(server, &target("fs-MDT0000", 1, 1)).unwrap();
    world.register(server, &target("fs2-MDT0000", 2, 1)).unwrap();
    let params = world.target().get_params("mgs.MGS.live.*");
    assert_eq!(params.len(), 2);
    assert_eq!(params[0].0, "mgs.MGS.live.fs");
    assert!(params[0].1.starts_with("fsname: fs\nflags: 0x20     gen: 1\nfs-MDT0000\n"), "{}", params[0].1);
    assert_eq!(world.target().get_params("mgs.MGS.num_exports").len(), 1);
}

/// The registration of a start that has ended is done when a later one has registered: nobody is told of an older copy. The
/// connection of the ended one is closed, or its node lost its power. The later one may have ended as well.
#[test]
fn a_registration_that_comes_too_late_is_no_older_copy() {
    [[true, false], [false, false], [false, true]].into_iter().for_each(late_registration);
}

fn late_registration([cut, later_cut]: [bool; 2]) {
    let mut world = World::new();
    world.crash();
    world.options.faults = stdx::Faults::allowed(1);
    world.start();
    let start = |instance, start| RegisterReq { start, ..target("fs-MDT0000", 1, instance) };
    let first = world.node_named("fs-MDT0000");
    world.register(first, &RegisterReq { first: true, ..start(4, 44) }).unwrap();
    let second = world.node_named("fs-MDT0000");
    let faults = world.options.faults.clone();
    faults.set_loc(stdx::faults::ONCE | u32::from(stdx::faults::sites::PTLRPC_RESEND_RACE.0));
    world.send(second, Opcode::MgsRegister, &start(5, 55));
    world.run();
    if cut {
        world.cut(second);
    }
    let third = world.node_named("fs-MDT0000");
    world.register(third, &start(6, 66)).unwrap();
    if later_cut {
        world.cut(third);
    }
    assert_ne!(faults.loc() & stdx::faults::FAILED, 0, "the second one waits");
    faults.set_loc(0);
    let end = world.now + core::time::Duration::from_secs(1);
    while world.now < end {
        world.step();
    }
    assert!(!world.log.iter().any(|line| line.contains("older copy")), "{:?}", world.log);
}

#[test]
fn a_store_that_lacks_a_start_is_an_older_copy() {
    let mut world = World::new();
    let server = world.node();
    let start = |instance, start| RegisterReq { start, ..target("fs-MDT0000", 1, instance) };
    world.register(server, &RegisterReq { first: true, ..start(4, 44) }).unwrap();
    let older = |result: Result<u64, (Errno, String)>| {
        let (errno, reason) = result.unwrap_err();
        assert_eq!(errno, Errno::ESTALE);
        assert!(reason.contains("start 4 was registered before") && reason.contains("accept_old_store"), "{reason}");
    };
    older(world.register(server, &start(3, 33)));
    older(world.register(server, &start(4, 45)));
    older(world.register(server, &start(3, 0)));
    world.register(server, &start(4, 44)).expect("the same start again");
    world.register(server, &start(4, 0)).expect("an older version, which does not say which start it is");
    world.register(server, &start(5, 55)).unwrap();
    let (errno, reason) =
        world.register(server, &start(u64::MAX, 1)).expect_err("an older copy would be all that comes after it");
    assert!(errno == Errno::EINVAL && reason.contains("and 5 when it registered last"), "{reason}");
    world.register(server, &start(6, 66)).unwrap();
    // Another store is another matter.
    let other = RegisterReq { target_uuid: vec![9; 16].into(), ..start(1, 1) };
    assert_eq!(world.register(server, &other).unwrap_err().0, Errno::EADDRINUSE);
}

#[test]
fn an_older_copy_that_is_accepted_gives_no_sequence_that_may_have_been_given() {
    let mut world = World::new();
    let server = world.node();
    world.register(server, &target("fs-MDT0000", 1, 1)).unwrap();
    let first = world.sequences(server, "fs-MDT0000").unwrap();
    let told = world.config(server, "fs").unwrap().version;
    world.options.accept_old_store = true;
    world.crash();
    assert!(world.config(server, "fs").unwrap().version > told + (1 << 20), "more than may have been told since");
    let next = world.sequences(server, "fs-MDT0000").unwrap();
    assert!(next.start >= first.end + 64 * WIDTH, "{next:?}");
}

#[test]
fn pools_are_made_changed_and_removed_and_survive_a_crash() {
    use SetPoolKind::{Add, Destroy, New, Remove};
    let mut world = World::new();
    let (server, client) = (world.node(), world.node());
    for index in 0..3 {
        world.register(server, &target(&format!("fs-OST000{index}"), 1 + index, 1)).unwrap();
    }
    world.config(client, "fs").unwrap();
    world.set_pool(server, New, "fast", &[]).unwrap();
    world.set_pool(server, Add, "fast", &[2, 0]).unwrap();
    assert_eq!(world.told(client), [("fs".to_owned(), 4), ("fs".to_owned(), 5)]);
    let fast = Pool { name: "fast".into(), osts: vec![0, 2] };
    assert_eq!(world.config(client, "fs").unwrap().pools, std::slice::from_ref(&fast));

    let mut refused = |kind, pool: &str, osts: &[u32], expected, why: &str| {
        let (errno, reason) = world.set_pool(server, kind, pool, osts).unwrap_err();
        assert!(errno == expected && reason.contains(why), "{errno} {reason}");
    };
    refused(New, "fast", &[], Errno::EEXIST, "exists already");
    refused(New, "sixteen_letters_", &[], Errno::EINVAL, "1 to 15 letters");
    refused(New, "a.b", &[], Errno::EINVAL, "1 to 15 letters");
    refused(New, "none", &[], Errno::EINVAL, "none of: none");
    refused(Add, "slow", &[1], Errno::ENOENT, "no pool 'fs.slow'");
    refused(Add, "fast", &[1, 7], Errno::ENOENT, "no fs-OST0007");
    refused(Add, "fast", &[1, 2], Errno::EEXIST, "fs-OST0002 is in pool 'fs.fast' already");
    refused(Add, "fast", &[], Errno::EINVAL, "name 1 to");
    refused(Remove, "fast", &[0, 1], Errno::ENOENT, "fs-OST0001 is not in pool");
    refused(Destroy, "fast", &[], Errno::ENOTEMPTY, "remove them first");

    world.crash();
    assert_eq!(world.config(client, "fs").unwrap().pools, [fast], "nothing of what was refused");
    world.set_pool(server, Remove, "fast", &[0, 2]).unwrap();
    world.set_pool(server, Destroy, "fast", &[]).unwrap();
    world.crash();
    assert!(world.config(client, "fs").unwrap().pools.is_empty());
}
