//! The keys for the hashes of names: MDT0000 brings them, and new metadata targets get them.

use prost::Message;
use proto::msg::{NameKeys, RegisterReq};

use super::world::World;
use super::*;

fn keys(first: &[u8], second: &[u8]) -> NameKeys {
    NameKeys { first: first.to_vec().into(), second: second.to_vec().into() }
}

/// MDT0000 with keys.
fn mdt0(instance: u64, keys: NameKeys) -> RegisterReq {
    RegisterReq { name_keys: Some(keys), ..target("fs-MDT0000", 1, instance) }
}

/// A new metadata target.
fn mdt1(instance: u64) -> RegisterReq {
    RegisterReq { wants_keys: true, first: true, ..target("fs-MDT0001", 2, instance) }
}

fn waits(world: &mut World, node: usize, req: &RegisterReq) {
    let (errno, reason) = world.register(node, req).unwrap_err();
    assert_eq!(errno, Errno::EAGAIN);
    assert!(reason.contains("'fs-MDT0001' has to wait until MDT0000 has registered"), "{reason}");
}

#[test]
fn a_new_metadata_target_gets_the_keys_of_mdt0000_and_waits_for_them() {
    let mut world = World::new();
    let (server, own) = (world.node(), keys(&[1; 16], &[2; 16]));
    waits(&mut world, server, &mdt1(1));
    assert_eq!(world.config(server, "fs"), Err(Errno::ENOENT), "nothing was added");
    world.register(server, &target("fs-OST0000", 3, 1)).unwrap();
    world.register(server, &target("fs-MDT0000", 1, 1)).expect("an older version, which sends none");
    waits(&mut world, server, &mdt1(1));
    assert_eq!(world.config(server, "fs").unwrap().targets.len(), 2, "nothing was added");
    assert!(!world.log.iter().any(|line| line.contains("fs-MDT0001")), "it logs itself that it waits: {:?}", world.log);

    assert_eq!(world.name_keys(server, &mdt0(2, own.clone())), None, "who does not ask gets none");
    world.crash();
    assert_eq!(world.name_keys(server, &mdt1(1)), Some(own.clone()));
    assert_eq!(world.name_keys(server, &mdt1(1)), Some(own.clone()), "the answer was lost");
    assert_eq!(world.name_keys(server, &mdt1(2)), Some(own), "it has crashed before it had them");
    let has_them = RegisterReq { wants_keys: false, ..mdt1(3) };
    assert_eq!(world.name_keys(server, &has_them), None);
    let object_target = RegisterReq { wants_keys: true, ..target("fs-OST0000", 3, 2) };
    assert_eq!(world.name_keys(server, &object_target), None);
    let other = RegisterReq { wants_keys: true, ..target("other-MDT0001", 4, 1) };
    assert_eq!(world.register(server, &other).unwrap_err().0, Errno::EAGAIN, "those of another file system");
}

#[test]
fn the_keys_are_those_that_mdt0000_registered_with_last() {
    let mut world = World::new();
    let (server, none) = (world.node(), keys(&[], &[2; 16]));
    world.register(server, &mdt0(1, keys(&[1; 16], &[2; 16]))).unwrap();
    let others = RegisterReq { name_keys: Some(keys(&[5; 16], &[6; 16])), ..mdt1(1) };
    assert_eq!(world.name_keys(server, &others), Some(keys(&[1; 16], &[2; 16])), "only MDT0000 brings some");
    world.register(server, &mdt0(2, none.clone())).unwrap();
    assert_eq!(world.name_keys(server, &mdt1(2)), Some(none.clone()), "a file system without a key");
    // The same start again, with other keys.
    world.register(server, &mdt0(2, keys(&[3; 16], &[4; 16]))).unwrap();
    assert_eq!(world.name_keys(server, &mdt1(3)), Some(keys(&[3; 16], &[4; 16])));
    world.register(server, &target("fs-MDT0000", 1, 3)).expect("an older version");
    assert_eq!(world.name_keys(server, &mdt1(4)), Some(keys(&[3; 16], &[4; 16])));
    for (first, second) in [(15, 16), (17, 16), (1, 16), (16, 0), (0, 0), (16, 17)] {
        let (errno, reason) = world.register(server, &mdt0(4, keys(&vec![7; first], &vec![7; second]))).unwrap_err();
        assert_eq!(errno, Errno::EINVAL);
        assert!(reason.contains(&format!("have {first} and {second} bytes; 0 or 16 and 16 are allowed")), "{reason}");
    }
    assert_eq!(world.name_keys(server, &mdt1(5)), Some(keys(&[3; 16], &[4; 16])), "what was refused changed nothing");
}

/// A refusal of another kind comes first: nothing makes it go away.
#[test]
fn who_is_refused_for_good_does_not_wait_for_keys() {
    let mut world = World::new();
    let server = world.node();
    world.register(server, &target("fs-MDT0001", 9, 1)).unwrap();
    assert_eq!(world.register(server, &mdt1(1)).unwrap_err().0, Errno::EADDRINUSE);
}

#[test]
fn the_configuration_has_no_keys() {
    let mut world = World::new();
    let server = world.node();
    world.register(server, &mdt0(1, keys(b"the first secret", b"the other secret"))).unwrap();
    world.register(server, &mdt1(1)).unwrap();
    let config = world.config(server, "fs").unwrap().encode_to_vec();
    assert!(!config.windows(6).any(|bytes| bytes == b"secret"));
    for (path, value) in world.target().get_params("**") {
        assert!(!value.contains("secret"), "{path}={value}");
    }
}
