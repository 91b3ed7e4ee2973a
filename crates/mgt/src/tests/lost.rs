//! Metadata targets that are lost for good, and come back.

use proto::msg::RegisterReq;
use proto::{Errno, Opcode};
use schema::{Record, TargetRec};

use super::target;
use super::world::World;

const MDT: &str = "fs-MDT0001";

/// Two metadata targets; the second one is gone. Returns the node of the first one.
fn one_is_gone() -> (World, usize) {
    let mut world = World::new();
    let server = world.node();
    world.register(server, &target("fs-MDT0000", 1, 1)).unwrap();
    world.register(server, &target(MDT, 2, 1)).unwrap();
    (world, server)
}

/// A later start of the target, which has been admitted after so many losses.
fn start(instance: u64, losses: u32) -> RegisterReq {
    RegisterReq { losses, ..target(MDT, 2, instance) }
}

#[test]
fn a_lost_target_is_refused_until_it_is_admitted_again() {
    let (mut world, server) = one_is_gone();
    assert_eq!(world.losses(server, MDT), (0, false));
    world.told(server);
    world.declare_lost(server, MDT).unwrap();
    assert_eq!(world.told(server), [("fs".to_owned(), 3)], "the other targets are told");
    assert_eq!(world.losses(server, MDT), (1, true));
    assert_eq!(world.losses(server, "fs-MDT0000"), (0, false));
    assert!(world.log.iter().any(|line| line.contains("'fs-MDT0001' is declared lost")), "{:?}", world.log);

    assert_eq!(world.is_refused(server, &start(2, 0)), 1);
    assert!(world.log.iter().any(|line| line.contains("registration of 'fs-MDT0001' refused")), "{:?}", world.log);
    assert_eq!(world.config(server, "fs").unwrap().version, 3, "nothing was changed");
    world.register(server, &start(3, 1)).expect("served with -o abort_recov_mdt");
    assert_eq!(world.losses(server, MDT), (1, false));
    assert!(world.log.iter().any(|line| line.contains("'fs-MDT0001', which was declared lost, is admitted again")));
    assert_eq!(world.register(server, &start(3, 1)), Ok(4), "resent");
    world.register(server, &start(4, 1)).expect("later starts are ordinary ones");
    assert_eq!(world.losses(server, MDT), (1, false));

    world.declare_lost(server, MDT).unwrap();
    assert_eq!(world.losses(server, MDT), (2, true));
    assert_eq!(world.is_refused(server, &start(5, 1)), 2);
    world.register(server, &start(6, 2)).unwrap();
    assert_eq!(world.losses(server, MDT), (2, false));
}

#[test]
fn a_second_declaration_of_the_same_loss_changes_nothing() {
    let (mut world, server) = one_is_gone();
    world.declare_lost(server, MDT).unwrap();
    let before = world.config(server, "fs").unwrap();
    world.told(server);
    world.declare_lost(server, MDT).unwrap();
    assert_eq!(world.config(server, "fs").unwrap(), before);
    assert_eq!(world.told(server), []);
}

#[test]
fn only_metadata_targets_that_are_gone_can_be_declared_lost() {
    let (mut world, server) = one_is_gone();
    world.register(server, &target("fs-OST0000", 3, 1)).unwrap();
    let before = world.config(server, "fs").unwrap();
    let mut refused = |target: &str, expected, why: &str| {
        let (errno, reason) = world.declare_lost(server, target).unwrap_err();
        assert!(errno == expected && reason.contains(why), "{target}: {errno} {reason}");
    };
    refused("fs-MDT0002", Errno::ENOENT, "no fs-MDT0002 in file system 'fs'");
    refused("other-MDT0001", Errno::ENOENT, "");
    refused("fs-OST0000", Errno::EINVAL, "mkfs --replace");
    refused("MGS", Errno::EINVAL, "'MGS' is not the name of a metadata target");
    refused("a\nb", Errno::EINVAL, "'a\\nb' is not the name of a metadata target");

    let node = world.node_named(MDT);
    for name in [MDT, "fs-MDT1"] {
        let (errno, reason) = world.declare_lost(server, name).unwrap_err();
        assert!(errno == Errno::EBUSY && reason.contains("'fs-MDT0001' is running"), "{name}: {errno} {reason}");
    }
    assert_eq!(world.config(server, "fs").unwrap(), before, "nothing was changed");
    world.cut(node);
    world.declare_lost(server, "fs-MDT1").unwrap();
    assert_eq!(world.losses(server, MDT), (1, true));
}

#[test]
fn a_loss_is_durable_before_it_is_answered_and_told() {
    let (mut world, server) = one_is_gone();
    let client = world.node();
    world.config(client, "fs").unwrap();
    world.slow_medium = true;
    let declared = world.send(server, Opcode::MgsTargetLost, &proto::msg::TargetLostReq { target: MDT.into() });
    for _ in 0..3 {
        world.step();
    }
    assert!(!world.is_answered(server, declared));
    assert_eq!(world.told(client), []);
    world.slow_medium = false;
    world.answer(server, declared);
    assert_eq!(world.told(client), [("fs".to_owned(), 3)]);

    world.crash();
    assert_eq!(world.losses(server, MDT), (1, true));
    assert_eq!(world.is_refused(server, &start(2, 0)), 1);
    world.register(server, &start(3, 1)).unwrap();
    world.crash();
    assert_eq!(world.losses(server, MDT), (1, false));
    world.register(server, &start(4, 1)).unwrap();
}

/// The store of a lost target that is put back from a copy is an older copy first.
#[test]
fn a_lost_target_with_an_older_copy_of_its_store_is_refused_for_that() {
    let (mut world, server) = one_is_gone();
    world.register(server, &start(5, 0)).unwrap();
    world.declare_lost(server, MDT).unwrap();
    assert_eq!(world.register(server, &start(4, 0)).unwrap_err().0, Errno::ESTALE);
    assert_eq!(world.is_refused(server, &start(6, 0)), 1);
    let other = RegisterReq { target_uuid: vec![9; 16].into(), ..start(7, 1) };
    assert_eq!(world.register(server, &other).unwrap_err().0, Errno::EADDRINUSE, "another store");
}

#[test]
fn the_count_of_losses_is_the_greatest_that_the_mgs_or_the_target_knows() {
    let mut world = World::new();
    let server = world.node();
    world.register(server, &RegisterReq { losses: 3, first: true, ..start(7, 3) }).unwrap();
    assert_eq!(world.losses(server, MDT), (3, false), "the configuration was made anew");
    assert_eq!(world.is_refused(server, &start(8, 2)), 3);
    world.register(server, &start(9, 5)).expect("this MGS was put back from a copy");
    assert_eq!(world.losses(server, MDT), (5, false));
    world.declare_lost(server, MDT).unwrap();
    assert_eq!(world.is_refused(server, &start(10, 5)), 6);

    let far = "more than 1024";
    let (errno, reason) = world.register(server, &start(11, 6 + 1025)).unwrap_err();
    assert!(errno == Errno::EINVAL && reason.contains(far), "{reason}");
    let unknown = RegisterReq { losses: u32::MAX, ..target("fs-MDT0002", 4, 1) };
    let (errno, reason) = world.register(server, &unknown).unwrap_err();
    assert!(errno == Errno::EINVAL && reason.contains(far), "{reason}");
    world.register(server, &start(11, 6 + 1024)).unwrap();
    assert_eq!(world.losses(server, MDT), (1030, false));

    // What an object target says of losses counts for nothing.
    world.register(server, &RegisterReq { losses: u32::MAX, ..target("fs-OST0000", 5, 1) }).unwrap();
    assert_eq!(world.losses(server, "fs-OST0000"), (0, false));
}

#[test]
fn a_target_is_declared_lost_on_a_full_disk() {
    let (mut world, server) = one_is_gone();
    world.disk_is_full();
    world.declare_lost(server, MDT).unwrap();
    assert_eq!(world.losses(server, MDT), (1, true));
    assert_eq!(world.is_refused(server, &start(2, 0)), 1);
    world.register(server, &start(3, 1)).unwrap();
}

/// The record of a version without losses.
#[test]
fn a_target_of_an_older_version_has_no_losses() {
    let (mut world, server) = one_is_gone();
    let record = TargetRec { uuid: vec![2; 16].into(), nids: vec!["h:1".into()], instance: 1, ..TargetRec::default() };
    world.damage(|batch| batch.put(TargetRec::key(&MDT.to_owned()), record.encode_record()));
    world.crash();
    assert_eq!(world.losses(server, MDT), (0, false));
    world.register(server, &start(2, 0)).unwrap();
}
