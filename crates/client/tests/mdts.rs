//! Several metadata targets: they are added while clients work, and one that is away or evicts a client costs only what it holds.

use std::time::Duration;

use client::api::{Answer, Call, Event};
use schema::FsRec;
use testkit::cluster::Cluster;

/// The targets that answer a question for their space, by name.
fn answering(c: &mut Cluster, node: usize) -> Vec<String> {
    let Ok(Answer::Targets(targets)) = c.call(node, Call::TargetSpace) else { panic!("no targets") };
    targets.into_iter().filter(|(_, space)| space.is_ok()).map(|(name, _)| name).collect()
}

/// Starts MDT0001 beside a file system with a mount.
fn added() -> (Cluster, usize, usize) {
    let mut c = Cluster::new(1);
    let a = c.mount();
    c.mkdir(a, 1, "before").unwrap();
    let mdt1 = c.add_server("fs-MDT0001");
    c.start(mdt1);
    c.pass(Duration::from_secs(2));
    (c, a, mdt1)
}

#[test]
fn a_metadata_target_is_added_without_a_remount() {
    let (mut c, a, _) = added();
    assert_eq!(answering(&mut c, a), ["fs-MDT0000", "fs-MDT0001", "fs-OST0000"]);
    let dir = c.walk(a, "before").unwrap();
    c.create(a, dir, "f").unwrap();
    let b = c.mount();
    assert_eq!(answering(&mut c, b), ["fs-MDT0000", "fs-MDT0001", "fs-OST0000"]);
    c.lookup(b, dir, "f").unwrap();
}

#[test]
fn a_metadata_target_that_is_away_stops_nothing_that_lives_on_another() {
    let (mut c, a, mdt1) = added();
    c.kill(mdt1);
    let before = c.now;
    let (stat, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, b"data").unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    c.call(a, Call::Syncfs).unwrap();
    let b = c.mount();
    assert_eq!(c.lookup(b, 1, "f").unwrap().ino, stat.ino);
    c.call(b, Call::Statfs { ino: 1 }).unwrap();
    assert!(c.now.since(before) < Duration::from_secs(1), "after {:?}", c.now.since(before));
}

#[test]
fn an_eviction_by_one_metadata_target_takes_nothing_of_another() {
    let (mut c, a, _) = added();
    let (_, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, b"data").unwrap();
    let b = c.mount();
    let dir = c.walk(b, "before").unwrap();
    let other = c.mkdir(b, dir, "other").unwrap();
    c.walk(a, "before/other").unwrap();
    assert_eq!(c.list(a, dir, true).unwrap().len(), 3);
    c.getattr(a, other.ino).unwrap();
    let uuid = Cluster::options(a as u64).uuid.to_string();
    c.set_server_param("fs-MDT0001", "mdt.fs-MDT0001.evict_client", &uuid);
    c.pass(Duration::from_secs(30));
    assert!(c.log.iter().any(|line| line.contains("fs-MDT0001 evicted this client")), "{:#?}", c.log);
    c.all_requests.clear();
    c.write(a, fh, 4, b"more").unwrap();
    assert_eq!(c.list(a, dir, true).unwrap().len(), 3);
    c.getattr(a, other.ino).unwrap();
    assert!(c.all_requests.is_empty(), "{:?}", c.all_requests);
    c.mkdir(a, 1, "d").unwrap();
    assert_eq!(c.call(a, Call::Fsync { fh }).map(drop), Ok(()));
    assert_eq!(c.lookup(a, 1, "f").unwrap().size, 8);
}

fn fldb(c: &Cluster, server: &str) -> String {
    let found = c.server_params(server, "fld.*.fldb");
    found.into_iter().next().expect("the parameter").1
}

#[test]
fn the_mgs_hears_of_ranges_that_an_older_copy_of_its_store_lacks() {
    let (mut c, a, _) = added();
    let whole = fldb(&c, "fs-MDT0000");
    assert_eq!(whole.lines().count(), 2, "{whole}");
    c.change_record("MGS", &"fs".to_owned(), |record: &mut FsRec| {
        record.sequences.retain(|range| range.mdt == 0);
        record.config_version += 100;
    });
    c.pass(Duration::from_secs(30));
    for server in ["fs-MDT0000", "fs-MDT0001"] {
        assert_eq!(fldb(&c, server), whole, "{server}");
    }
    c.mkdir(a, 1, "after").unwrap();
}

/// A target that has restarted waits for the clients that it knows: who unmounts meanwhile says so.
#[test]
fn an_unmount_takes_its_leave_of_metadata_targets_that_were_away() {
    let (mut c, a, mdt1) = added();
    c.pass(Duration::from_secs(30));
    let mdt0 = c.server("fs-MDT0000");
    c.kill(mdt0);
    c.kill(mdt1);
    let now = c.now;
    c.nodes[a].machine.handle(now, Event::Unmount);
    c.pass(Duration::from_secs(5));
    assert!(!c.nodes[a].unmounted);
    c.start(mdt0);
    c.start(mdt1);
    c.until(|c| c.nodes[a].unmounted);
    let before = c.now;
    c.mount();
    assert!(c.now.since(before) < Duration::from_secs(2), "after {:?}", c.now.since(before));
}
