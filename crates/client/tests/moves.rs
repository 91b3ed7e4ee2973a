//! Renames that give directories other parents, over several metadata targets: no directory comes to lie below itself, whoever
//! renames what at the same time.

mod raw;

use std::time::Duration;

use proto::msg::{CancelReq, Reint, RenameOp};
use proto::{Errno, Fid, Opcode};
use raw::{DIR, FILE, Raw, cluster, doubts, renaming, three};
use stdx::marks;
use testkit::cluster::Cluster;

const ROOT: Fid = Fid::ROOT;
const EINVAL: i32 = -22;

fn make(a: &mut Raw, c: &mut Cluster, (at, on): (usize, usize), parent: Fid, name: &str) -> Fid {
    let (dir, status) = a.create(c, (at, on), parent, name, DIR);
    assert_eq!(status, 0, "{name}");
    dir
}

fn ask(a: &mut Raw, c: &mut Cluster, at: usize, op: RenameOp) {
    a.ask_for(c, at, 0, Reint::Rename(op));
}

/// The names from a directory up to the root, found by `..`, which lies on target `at` first.
fn depth(a: &mut Raw, c: &mut Cluster, at: usize, dir: Fid) -> usize {
    let (mut at, mut dir, mut depth) = (at, dir, 0);
    while dir != ROOT {
        let (parent, on) = a.leads_to(c, at, dir, "..").expect("a parent");
        (dir, at, depth) = (parent, on as usize, depth + 1);
        assert!(depth < 20, "a ring");
    }
    depth
}

#[test]
fn directories_get_parents_on_other_targets_but_none_below_themselves() {
    let (mut c, _) = cluster();
    let mut a = Raw::new(&mut c, 77);
    // /a/far/moved and /b/far: what is called far lies on the second target, with what is below it.
    let near = ["a", "b"].map(|name| make(&mut a, &mut c, (0, 0), ROOT, name));
    let [from, to] = near.map(|near| make(&mut a, &mut c, (0, 1), near, "far"));
    let moved = make(&mut a, &mut c, (1, 1), from, "moved");
    assert_eq!(a.create(&mut c, (1, 1), from, "f", FILE).1, 0);
    // Everything is on the second target but the way up.
    assert_eq!(a.rename(&mut c, 1, renaming((from, "moved"), (to, "here"), 0)), 0);
    assert!(marks::count("mdt.way_up_leaves") > 0);
    assert_eq!(a.leads_to(&mut c, 1, moved, ".."), Some((to, 1)));
    assert_eq!(a.rename(&mut c, 0, renaming((ROOT, "a"), (moved, "a"), 0)), 0);
    assert_eq!((depth(&mut a, &mut c, 1, from), a.leads_to(&mut c, 0, ROOT, "a")), (5, None));
    // Now everything is in b.
    assert_eq!(a.rename(&mut c, 0, renaming((ROOT, "b"), (from, "b"), 0)), EINVAL);
    assert_eq!(a.rename(&mut c, 1, renaming((to, "here"), (from, "x"), 0)), EINVAL);
    assert_eq!(a.rename(&mut c, 0, renaming((ROOT, "b"), (from, "f"), 2)), EINVAL);
    assert_eq!(a.rename(&mut c, 1, renaming((from, "f"), (ROOT, "b"), 2)), EINVAL);
    assert_eq!(a.create(&mut c, (1, 1), from, "d", DIR).1, 0);
    assert_eq!(a.rename(&mut c, 1, renaming((from, "d"), (ROOT, "b"), 0)), -Errno::ENOTEMPTY.raw());
    // Up again, and each in the place of the other.
    assert_eq!(a.rename(&mut c, 1, renaming((moved, "a"), (ROOT, "a"), 0)), 0);
    assert_eq!(a.rename(&mut c, 1, renaming((to, "here"), (near[0], "far"), 2)), 0);
    assert_eq!(a.leads_to(&mut c, 1, to, "here"), Some((from, 1)));
    assert_eq!(a.leads_to(&mut c, 0, near[0], "far"), Some((moved, 1)));
    assert_eq!((depth(&mut a, &mut c, 1, from), depth(&mut a, &mut c, 1, moved)), (3, 2));
    let links = |a: &mut Raw, c: &mut Cluster| {
        [(0, ROOT), (0, near[0]), (0, near[1]), (1, from), (1, to), (1, moved)]
            .map(|(at, dir)| a.getattr(c, at, dir).unwrap().attr.unwrap().nlink)
    };
    let before = links(&mut a, &mut c);
    assert_eq!(before[1..], [3, 3, 3, 3, 2]);
    assert_eq!(a.rename(&mut c, 0, renaming((ROOT, "b"), (moved, "b"), 0)), 0);
    assert_eq!(links(&mut a, &mut c), [before[0] - 1, 3, 3, 3, 3, 3]);
}

#[test]
fn renames_to_other_targets_can_be_turned_off() {
    let (mut c, _) = cluster();
    let mut a = Raw::new(&mut c, 77);
    let dir = make(&mut a, &mut c, (0, 1), ROOT, "d");
    make(&mut a, &mut c, (0, 0), ROOT, "e");
    assert_eq!(a.create(&mut c, (0, 0), ROOT, "f", FILE).1, 0);
    c.set_server_param("fs-MDT0000", "mdt.fs-MDT0000.enable_remote_rename", "0");
    for name in ["e", "f"] {
        assert_eq!(a.rename(&mut c, 0, renaming((ROOT, name), (dir, name), 0)), -Errno::EXDEV.raw());
    }
    assert_eq!(a.rename(&mut c, 0, renaming((ROOT, "d"), (ROOT, "x"), 0)), 0);
    c.set_server_param("fs-MDT0000", "mdt.fs-MDT0000.enable_remote_rename", "1");
    for name in ["e", "f"] {
        assert_eq!(a.rename(&mut c, 0, renaming((ROOT, name), (dir, name), 0)), 0);
    }
}

/// Each would be right alone.
#[test]
fn of_two_renames_that_would_make_a_ring_one_is_refused() {
    let (mut c, mdt1) = cluster();
    let (mut a, mut b) = (Raw::new(&mut c, 77), Raw::new(&mut c, 78));
    let p = make(&mut a, &mut c, (0, 0), ROOT, "p");
    let q = make(&mut a, &mut c, (0, 1), ROOT, "q");
    let x = make(&mut a, &mut c, (0, 0), p, "x");
    let y = make(&mut a, &mut c, (1, 1), q, "y");
    let (in_x, in_y) = (make(&mut a, &mut c, (0, 0), x, "in"), make(&mut a, &mut c, (1, 1), y, "in"));
    c.slow_server = Some(mdt1);
    ask(&mut a, &mut c, 0, renaming((p, "x"), (in_y, "x"), 0));
    ask(&mut b, &mut c, 1, renaming((q, "y"), (in_x, "y"), 0));
    assert_eq!((a.answer(&mut c, 0), b.answer(&mut c, 1)), (None, None));
    c.slow_server = None;
    c.pass(Duration::from_secs(5));
    assert_eq!((a.answer(&mut c, 0), b.answer(&mut c, 1)), (Some(0), Some(EINVAL)));
    assert_eq!((depth(&mut a, &mut c, 0, in_x), depth(&mut a, &mut c, 1, in_y)), (5, 3));
}

/// Both have read that they may, and are made at the same moment: they wait for each other no longer than a lock is awaited.
#[test]
fn two_renames_that_would_make_a_ring_do_not_hold_each_other_up() {
    let (mut c, _) = cluster();
    let [mut a, mut b, mut holder] = [77, 78, 79].map(|client| Raw::new(&mut c, client));
    let p = make(&mut a, &mut c, (0, 0), ROOT, "p");
    let q = make(&mut a, &mut c, (0, 1), ROOT, "q");
    let x = make(&mut a, &mut c, (0, 0), p, "x");
    let y = make(&mut a, &mut c, (1, 1), q, "y");
    let (in_x, in_y) = (make(&mut a, &mut c, (0, 0), x, "in"), make(&mut a, &mut c, (1, 1), y, "in"));
    let held = [holder.lock(&mut c, 0, x), holder.lock(&mut c, 1, y)];
    ask(&mut a, &mut c, 0, renaming((p, "x"), (in_y, "x"), 0));
    ask(&mut b, &mut c, 1, renaming((q, "y"), (in_x, "y"), 0));
    assert_eq!((a.answer(&mut c, 0), b.answer(&mut c, 1)), (None, None));
    for (handle, mdt) in held.into_iter().zip(&mut holder.mdts) {
        let cancel = CancelReq { handles: vec![handle], waiting_cookies: Vec::new() };
        c.raw_ask(mdt, Opcode::LdlmCancel, &cancel);
    }
    c.pass(Duration::from_millis(400));
    let mut answers = [a.answer(&mut c, 0), b.answer(&mut c, 1)];
    answers.sort_unstable();
    assert_eq!(answers, [Some(EINVAL), Some(0)]);
    assert_eq!(depth(&mut a, &mut c, 0, in_x) + depth(&mut a, &mut c, 1, in_y), 8);
}

/// A rename within one target waits for one over several that goes through there.
#[test]
fn a_way_up_is_held() {
    let (mut c, mdts) = three();
    let servers = ["fs-MDT0000", "fs-MDT0001", "fs-MDT0002"];
    let [mut a, mut b, mut d] = [77, 78, 79].map(|client| Raw::at(&mut c, client, &servers));
    // /m on the third target; /q with d and e on the second.
    let m = make(&mut a, &mut c, (0, 2), ROOT, "m");
    let q = make(&mut a, &mut c, (0, 1), ROOT, "q");
    let [above, e] = ["d", "e"].map(|name| make(&mut a, &mut c, (1, 1), q, name));
    let deep = make(&mut a, &mut c, (1, 0), above, "deep");
    let other = make(&mut a, &mut c, (0, 0), ROOT, "other");
    c.pass(Duration::from_secs(1));
    c.slow_server = Some(mdts[1]);
    ask(&mut a, &mut c, 0, renaming((ROOT, "m"), (deep, "m"), 0));
    // The name of a directory above may change, its parent may not.
    assert_eq!(b.rename(&mut c, 1, renaming((q, "d"), (q, "c"), 0)), 0);
    ask(&mut b, &mut c, 1, renaming((q, "c"), (e, "c"), 0));
    assert_eq!((a.answer(&mut c, 0), b.answer(&mut c, 1)), (None, None));
    // Who goes through there, too, does not wait.
    ask(&mut d, &mut c, 0, renaming((ROOT, "other"), (deep, "other"), 0));
    c.pass(Duration::from_millis(50));
    assert_eq!(d.answer(&mut c, 0), Some(0));
    c.slow_server = None;
    c.pass(Duration::from_secs(5));
    assert_eq!((a.answer(&mut c, 0), b.answer(&mut c, 1)), (Some(0), Some(0)));
    assert_eq!(depth(&mut a, &mut c, 2, m), 5);
    assert_eq!(depth(&mut a, &mut c, 0, other), 5);
    for server in servers {
        assert_eq!(doubts(&c, server), 0);
    }
}

/// A way up that was read has changed when the rename is made.
#[test]
fn a_way_up_is_checked_again() {
    let (mut c, _) = cluster();
    let (mut a, mut b) = (Raw::new(&mut c, 77), Raw::new(&mut c, 78));
    let m = make(&mut a, &mut c, (0, 0), ROOT, "m");
    let q = make(&mut a, &mut c, (0, 1), ROOT, "q");
    let d = make(&mut a, &mut c, (1, 1), q, "d");
    let n = make(&mut a, &mut c, (0, 0), ROOT, "n");
    for (to, result) in [(n, 0), (m, EINVAL)] {
        let held = b.lock(&mut c, 0, m);
        ask(&mut a, &mut c, 0, renaming((ROOT, "m"), (d, "m"), 0));
        assert_eq!(a.answer(&mut c, 0), None, "it waits for the lock");
        assert_eq!(b.rename(&mut c, 0, renaming((ROOT, "q"), (to, "q"), 0)), 0);
        b.give_back(&mut c, 0, held);
        c.pass(Duration::from_secs(3));
        assert_eq!(a.answer(&mut c, 0), Some(result));
        assert!(marks::count("cross.changed") > 0);
        for dir in [m, n] {
            depth(&mut a, &mut c, 0, dir);
        }
        if result == 0 {
            assert_eq!(a.rename(&mut c, 1, renaming((d, "m"), (ROOT, "m"), 0)), 0);
            assert_eq!(a.rename(&mut c, 0, renaming((n, "q"), (ROOT, "q"), 0)), 0);
        }
    }
}

/// Both targets die after the change has happened, and again before they have told each other.
#[test]
fn a_directory_that_has_moved_stays_there() {
    let (mut c, mdt1) = cluster();
    let mdt0 = c.server("fs-MDT0000");
    let mut a = Raw::new(&mut c, 77);
    let m = make(&mut a, &mut c, (0, 1), ROOT, "m");
    let q = make(&mut a, &mut c, (0, 1), ROOT, "q");
    assert_eq!(a.rename(&mut c, 0, renaming((ROOT, "m"), (q, "m"), 0)), 0);
    for _ in 0..2 {
        c.kill_and_lose(mdt0);
        c.kill_and_lose(mdt1);
        c.start(mdt0);
        c.start(mdt1);
    }
    let mut b = Raw::new(&mut c, 78);
    assert_eq!(b.leads_to(&mut c, 1, m, ".."), Some((q, 1)));
    assert_eq!((b.leads_to(&mut c, 0, ROOT, "m"), b.leads_to(&mut c, 1, q, "m")), (None, Some((m, 1))));
    assert_eq!((doubts(&c, "fs-MDT0000"), doubts(&c, "fs-MDT0001")), (0, 0));
}
