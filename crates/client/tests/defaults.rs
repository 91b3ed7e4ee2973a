//! Default layouts of directories: where new directories lie that programs make without a wish of their own, what these inherit,
//! who may set a default, and what happens while targets are away.

mod raw;

use std::collections::BTreeMap;
use std::time::Duration;

use client::api::{Answer, Call, NewDir, Options, placement};
use prost::Message;
use proto::connect::features;
use proto::msg::{
    ConnectRep, CreateOp, DirDefault, DirHash, GetattrReq, ObjectRep, Reint, SeqAllocRep, SeqAllocReq, SetlayoutKind,
    SetlayoutOp, Stripe, inherit,
};
use proto::{ClientUuid, Errno, Fid, Opcode};
use raw::{DIR, Raw, change, three};
use stdx::marks;
use testkit::cluster::{Cluster, name};

const TARGETS: [&str; 3] = ["fs-MDT0000", "fs-MDT0001", "fs-MDT0002"];

/// Three metadata targets, a client that answers changes before it sends them, and one that does not.
struct World {
    c: Cluster,
    mdts: [usize; 2],
    a: usize,
    b: usize,
}

fn world() -> World {
    let (mut c, mdts) = three();
    let options = Options { sync_metadata: false, ..Cluster::options(c.nodes.len() as u64) };
    let a = c.begin_mount(options);
    c.until(|c| c.nodes[a].mounted);
    let b = c.mount();
    c.pass(Duration::from_secs(2));
    World { c, mdts, a, b }
}

/// One stripe on a target that is chosen, on all levels.
fn anywhere() -> DirDefault {
    DirDefault { max_inherit: inherit::UNLIMITED, ..DirDefault::default() }
}

fn taking_turns() -> DirDefault {
    DirDefault { max_inherit_rr: inherit::TURNS_UNLIMITED, ..anywhere() }
}

fn on(mdts: &[u32]) -> DirDefault {
    let count = if mdts.len() > 1 { -1 } else { 0 };
    DirDefault { count, mdts: mdts.to_vec(), hash: DirHash::AllChar as i32, ..anywhere() }
}

impl World {
    fn set(&mut self, node: usize, ino: u64, default: Option<DirDefault>) -> Result<(), Errno> {
        self.set_as(node, 0, ino, default)
    }

    fn set_as(&mut self, node: usize, uid: u32, ino: u64, default: Option<DirDefault>) -> Result<(), Errno> {
        let call = Call::SetDirDefault { ino, default: default.map(Box::new) };
        self.c.call_as(node, uid, call).map(|answer| assert_eq!(answer, Answer::Done))
    }

    fn get(&mut self, node: usize, ino: u64) -> Option<DirDefault> {
        match self.c.call(node, Call::GetDirDefault { ino }) {
            Ok(Answer::DirDefault(default)) => default.map(|default| *default),
            other => panic!("{other:?}"),
        }
    }

    /// The targets of a directory's stripes.
    fn stripes(&mut self, node: usize, ino: u64) -> Vec<u32> {
        let Ok(Answer::Index(index)) = self.c.call(node, Call::MdtIndex { ino }) else { panic!("no index") };
        let Ok(Answer::DirLayout(lmv)) = self.c.call(node, Call::GetDirLayout { ino }) else { panic!("no layout") };
        let stripes = lmv.map(|lmv| lmv.stripes.iter().map(|stripe| stripe.mdt).collect());
        stripes.unwrap_or_else(|| vec![index])
    }

    /// Makes a directory as mkdir(2) does. Both clients find the same.
    #[track_caller]
    fn mkdir(&mut self, node: usize, parent: u64, text: &str) -> (u64, Vec<u32>) {
        let stat =
            self.c.mkdir(node, parent, text).unwrap_or_else(|errno| panic!("{text}: {errno}: {:#?}", self.c.log));
        assert_eq!((stat.mode, stat.nlink), (0o040_755, 2), "{text}");
        for at in [self.a, self.b] {
            let found = self.c.lookup(at, parent, text).unwrap();
            assert_eq!((found.ino, found.mode, found.nlink), (stat.ino, 0o040_755, 2), "{text}");
        }
        (stat.ino, self.stripes(node, stat.ino))
    }

    /// A directory in the root with this default, which client `node` has made.
    fn dir(&mut self, node: usize, text: &str, default: DirDefault) -> u64 {
        let ino = self.c.mkdir(node, 1, text).unwrap().ino;
        self.c.lookup(self.b, 1, text).unwrap();
        self.set(node, ino, Some(default)).unwrap();
        ino
    }

    /// Everything is at rest: no change is under way, and the targets fit together.
    fn ends_cleanly(mut self) {
        let c = &mut self.c;
        c.pass(Duration::from_secs(60));
        for name in TARGETS {
            assert_eq!(c.server_params(name, "mdt.*.changes_in_doubt")[0].1, "", "{name}");
        }
        // What one target says to another last travels with the next message.
        for name in TARGETS {
            c.restart_quietly(name);
        }
        c.pass(Duration::from_secs(200));
        let snapshots = TARGETS.map(|name| lfsck::Snapshot::new(c.records(name)));
        assert_eq!(lfsck::check(&snapshots.each_ref(), &[]), [], "{:#?}", c.log);
    }
}

fn rmdir(parent: u64, text: &str) -> Call {
    Call::Rmdir { parent, name: name(text) }
}

#[test]
fn a_default_places_directories_and_goes_as_deep_as_it_says() {
    let mut w = world();
    for (node, text) in [(w.a, "a"), (w.b, "b")] {
        let dir = w.dir(node, text, DirDefault { max_inherit: 2, max_inherit_rr: 1, ..on(&[2, 1]) });
        let (one, stripes) = w.mkdir(node, dir, "one");
        assert_eq!(stripes, [2, 1], "{text}");
        let below = w.get(node, one).unwrap();
        assert_eq!((below.max_inherit, below.max_inherit_rr, below.mdts), (1, 0, vec![2, 1]));
        // In each stripe of it.
        for name in ["f", "g", "h", "i"] {
            let (two, stripes) = w.mkdir(node, one, name);
            assert_eq!((stripes, w.get(node, two)), (vec![2, 1], None), "{text} {name}");
            let (_, stripes) = w.mkdir(node, two, "three");
            assert_eq!(stripes.len(), 1, "nothing is inherited any more");
        }
        // Files are in the stripe of their name, and no default concerns them.
        let (file, fh) = w.c.create(node, one, "file").unwrap();
        w.c.close(node, fh).unwrap();
        assert_eq!(w.c.call(node, Call::GetDirDefault { ino: file.ino }), Err(Errno::ENOTDIR));
        assert_eq!(w.set(node, file.ino, Some(anywhere())), Err(Errno::ENOTDIR));
    }
    w.ends_cleanly();
}

#[test]
fn a_default_ends_where_it_says_and_where_it_is_removed() {
    let mut w = world();
    for (node, text, depth) in [(w.a, "a", inherit::ENDS), (w.b, "b", inherit::NONE)] {
        let dir = w.dir(node, text, DirDefault { max_inherit: depth, ..on(&[1]) });
        let (one, stripes) = w.mkdir(node, dir, "one");
        assert_eq!((stripes, w.get(node, one)), (vec![1], None), "{depth}");
        w.set(node, dir, None).unwrap();
        assert_eq!(w.get(node, dir), None);
        let (two, stripes) = w.mkdir(node, dir, "two");
        assert_eq!((stripes, w.get(node, two)), (vec![0], None), "{depth}");
        // What another client sets counts at once.
        let other = w.a + w.b - node;
        w.set(other, dir, Some(on(&[2]))).unwrap();
        assert_eq!(w.mkdir(node, dir, "three").1, [2], "{depth}");
    }
    let unlimited = w.dir(w.a, "unlimited", on(&[2]));
    let mut at = unlimited;
    for depth in 0..5 {
        let (below, stripes) = w.mkdir(w.b, at, "below");
        assert_eq!((stripes, w.get(w.b, below)), (vec![2], Some(on(&[2]))), "{depth}");
        at = below;
    }
    w.ends_cleanly();
}

/// What has no default, and what is placed on the target of its name, is an ordinary directory.
#[test]
fn ordinary_directories_cost_what_they_did() {
    let mut w = world();
    let (a, b) = (w.a, w.b);
    let dir = w.dir(b, "dir", DirDefault { max_inherit: 2, ..on(&[0]) });
    for (parent, name) in [(1, "x"), (dir, "y")] {
        let Ok(stat) = w.c.mkdir(b, parent, name) else { panic!("{name}") };
        assert_eq!(w.c.sent(), 1, "{name}: {:?}", w.c.requests);
        assert!(stat.cacheable && stat.entry_cacheable, "{name}");
    }
    // Where two clients make directories in turn, each loses its lock on the entries above, but not that on the default.
    let shared = w.c.mkdir(b, 1, "shared").unwrap().ino;
    let third = w.c.mount();
    w.c.lookup(third, 1, "shared").unwrap();
    for number in 0..6 {
        w.c.mkdir([b, third][number % 2], shared, &format!("n{number}")).unwrap();
        assert_eq!(w.c.requests, BTreeMap::from([("ldlm_cancel", 1), ("mds_reint", 1)]), "{number}");
    }
    // A lease comes after some changes; from then on they are made in the caches.
    let dir = w.dir(a, "dir2", DirDefault { max_inherit: 2, ..on(&[0]) });
    let before = marks::count("made_in_cache");
    for number in 0..10 {
        w.c.mkdir(a, dir, &format!("n{number}")).unwrap();
    }
    assert!(marks::count("made_in_cache") > before);
    let last = w.c.lookup(a, dir, "n9").unwrap().ino;
    assert_eq!(w.get(a, last).map(|default| default.max_inherit), Some(1), "the caches know it");
    w.c.call(a, Call::Syncfs).unwrap();
    let found = w.c.lookup(b, dir, "n9").unwrap().ino;
    assert_eq!(w.get(b, found).map(|default| default.max_inherit), Some(1));
    // One that lies elsewhere is not made in the caches, and what was is made before.
    let far = w.dir(a, "far", on(&[1]));
    let before = marks::count("made_in_cache");
    for number in 10..20 {
        w.c.mkdir(a, dir, &format!("n{number}")).unwrap();
    }
    let made = marks::count("made_in_cache");
    assert!(made > before);
    w.c.mkdir(a, far, "below").unwrap();
    assert_eq!((marks::count("made_in_cache"), w.c.requests.get("mds_reint").copied()), (made, Some(1)));
    w.c.die(a);
    w.c.pass(Duration::from_secs(300));
    w.c.lookup(b, dir, "n19").unwrap();
    let far = w.c.lookup(b, 1, "far").unwrap().ino;
    let below = w.c.lookup(b, far, "below").unwrap().ino;
    assert_eq!(w.stripes(b, below), [1]);
    w.ends_cleanly();
}

#[test]
fn targets_take_turns() {
    let mut w = world();
    let dir = w.dir(w.b, "dir", DirDefault { max_inherit_rr: 1, ..anywhere() });
    w.c.set_store_room("fs-MDT0002", 100 << 20);
    w.c.pass(Duration::from_secs(20));
    let count = |w: &mut World, dir: u64, prefix: &str| {
        let mut found: BTreeMap<u32, usize> = BTreeMap::new();
        for number in 0..12 {
            let (_, stripes) = w.mkdir(w.b, dir, &format!("{prefix}{number}"));
            *found.entry(stripes[0]).or_default() += 1;
        }
        found
    };
    assert_eq!(count(&mut w, dir, "rr"), BTreeMap::from([(0, 4), (1, 4), (2, 4)]));
    // Their directories get theirs by free inodes: one target has almost none in comparison.
    let below = w.c.lookup(w.b, dir, "rr0").unwrap().ino;
    assert!(count(&mut w, below, "free").get(&2) <= Some(&1));
    // Unless that does not matter, or nothing else does: the threshold says so, or the weight.
    let set = |w: &mut World, name: &str, value: &str| {
        let now = w.c.now;
        w.c.nodes[w.b].machine.set_param(now, &format!("lmv.*.{name}"), value)
    };
    set(&mut w, "qos_threshold_rr", "100").unwrap();
    assert_eq!(count(&mut w, below, "turns").get(&2), Some(&4));
    set(&mut w, "qos_threshold_rr", "5%").unwrap();
    set(&mut w, "qos_prio_free", "0").unwrap();
    assert_eq!(count(&mut w, below, "spread").get(&2), Some(&4));
    set(&mut w, "qos_prio_free", "100").unwrap();
    assert_eq!(count(&mut w, below, "weighed").get(&2), None);
    assert_eq!(set(&mut w, "qos_maxage", "0"), Err(Errno::ERANGE));
    set(&mut w, "qos_maxage", "3600").unwrap();
    w.c.pass(Duration::from_secs(60));
    w.c.all_requests.clear();
    count(&mut w, below, "old");
    assert_eq!(w.c.all_requests.get("mds_statfs"), None, "{:?}", w.c.all_requests);
    set(&mut w, "qos_maxage", "1").unwrap();
    w.c.all_requests.clear();
    count(&mut w, below, "new");
    assert!(w.c.all_requests.contains_key("mds_statfs"), "{:?}", w.c.all_requests);
    // One that is full gets none at all.
    w.c.fill_store("fs-MDT0002", 8 << 20);
    w.c.pass(Duration::from_secs(20));
    assert_eq!(count(&mut w, dir, "full"), BTreeMap::from([(0, 6), (1, 6)]));
    // Stripes follow the target whose turn it is.
    w.set(w.b, dir, Some(DirDefault { count: 2, ..taking_turns() })).unwrap();
    let (_, first) = w.mkdir(w.b, dir, "striped0");
    let (_, second) = w.mkdir(w.b, dir, "striped1");
    assert_eq!((first.len(), second), (2, vec![first[1], first[0]]));
    w.ends_cleanly();
}

/// The default of a new file system.
#[test]
fn the_first_three_levels_are_on_the_targets_in_turn() {
    let mut w = world();
    let b = w.b;
    w.set(b, 1, Some(placement::of_root())).unwrap();
    let mut above = 1;
    for level in 1..=5 {
        let mut found: BTreeMap<Vec<u32>, usize> = BTreeMap::new();
        let of_above = w.stripes(b, above);
        for number in 0..6 {
            let (made, stripes) = w.mkdir(b, above, &format!("d{number}"));
            *found.entry(stripes).or_default() += 1;
            assert_eq!(
                w.get(b, made).map(|default| default.max_inherit),
                3_u32.checked_sub(level).filter(|left| *left > 0)
            );
        }
        let wanted = match level {
            1..=3 => (0..3).map(|mdt| (vec![mdt], 2)).collect(),
            _ => BTreeMap::from([(of_above, 6)]),
        };
        assert_eq!(found, wanted, "level {level}");
        above = w.c.lookup(b, above, "d0").unwrap().ino;
    }
    w.ends_cleanly();

    // On the only target there is nothing to choose, and nothing to ask for.
    let mut c = Cluster::new(1);
    let node = c.mount();
    let default = Some(Box::new(placement::of_root()));
    c.call(node, Call::SetDirDefault { ino: 1, default }).unwrap();
    for text in ["a", "b"] {
        assert!(c.mkdir(node, 1, text).unwrap().cacheable);
        assert_eq!(c.requests, BTreeMap::from([("mds_reint", 1)]), "{text}");
    }
}

/// All stripes of a directory have its default.
#[test]
fn a_striped_directory_has_one_default() {
    let mut w = world();
    let (a, b) = (w.a, w.b);
    let wish = NewDir { mdts: vec![0, 1, 2], hash: DirHash::AllChar as i32 };
    w.c.call(a, Call::MkdirOn { parent: 1, name: name("wide"), mode: 0o755, wish }).unwrap();
    let wide = w.c.lookup(a, 1, "wide").unwrap().ino;
    w.c.lookup(b, 1, "wide").unwrap();
    for (mdt, node) in [(2, a), (1, b)] {
        w.set(node, wide, Some(DirDefault { overstripe: true, count: 2, ..on(&[mdt]) })).unwrap();
        for (number, node) in (0..6).zip([a, b].into_iter().cycle()) {
            let (made, stripes) = w.mkdir(node, wide, &format!("d{mdt}{number}"));
            assert_eq!(stripes, [mdt, (mdt + 1) % 3]);
            assert_eq!(w.get(node, made).map(|default| default.mdts), Some(vec![mdt]));
        }
    }
    w.set(b, wide, None).unwrap();
    for number in 0..3 {
        assert_eq!(w.mkdir(a, wide, &format!("plain{number}")).1.len(), 1);
    }
    w.ends_cleanly();
}

#[test]
fn a_target_that_is_away_gets_no_directory_unless_it_is_named() {
    let mut w = world();
    let dir = w.dir(w.b, "dir", taking_turns());
    let named = w.dir(w.b, "named", on(&[2]));
    let wide = w.dir(w.b, "wide", DirDefault { count: -1, ..anywhere() });
    w.mkdir(w.b, dir, "before");
    w.c.kill(w.mdts[1]);
    w.c.pass(Duration::from_secs(1));
    let before = w.c.now;
    let waiting = w.c.send(w.b, Call::Mkdir { parent: named, name: name("n"), mode: 0o755 });
    for number in 0..6 {
        let (_, stripes) = w.mkdir(w.b, dir, &format!("n{number}"));
        assert_ne!(stripes, [2]);
    }
    let (_, mut stripes) = w.mkdir(w.b, wide, "n");
    stripes.sort_unstable();
    assert_eq!(stripes, [0, 1], "one less");
    assert!(w.c.now.since(before) < Duration::from_secs(2), "after {:?}", w.c.now.since(before));
    w.c.pass(Duration::from_secs(30));
    assert!(!w.c.answered(w.b, waiting), "whoever named it wants it there");
    w.c.start(w.mdts[1]);
    let Ok(Answer::Entry(stat)) = w.c.answer(w.b, waiting) else { panic!("not made") };
    assert_eq!(w.stripes(w.b, stat.ino), [2]);
    w.ends_cleanly();
}

/// The target that was chosen goes away before it has taken part: nothing was done, and another one is chosen.
#[test]
fn a_target_that_goes_away_is_replaced_by_another() {
    let mut w = world();
    let dir = w.dir(w.b, "dir", DirDefault { count: 2, ..taking_turns() });
    w.mkdir(w.b, dir, "before");
    let mut sent = Vec::new();
    for number in 0..6 {
        sent.push(w.c.send_quietly(
            w.b,
            testkit::cluster::cred(0),
            Call::Mkdir { parent: dir, name: name(&format!("n{number}")), mode: 0o755 },
        ));
    }
    w.c.kill(w.mdts[1]);
    let before = w.c.now;
    for (number, id) in sent.into_iter().enumerate() {
        let Ok(Answer::Entry(stat)) = w.c.answer(w.b, id) else { panic!("{number}: {:#?}", w.c.log) };
        let mut stripes = w.stripes(w.b, stat.ino);
        stripes.sort_unstable();
        assert_eq!(stripes, [0, 1], "{number}");
    }
    assert!(w.c.now.since(before) < Duration::from_secs(30), "after {:?}", w.c.now.since(before));
    assert!(marks::count("placed_anew") > 0);
    w.c.start(w.mdts[1]);
    w.ends_cleanly();
}

/// The coordinator, a participant, or both crash at any moment: the directory is made once, and wholly.
#[test]
fn a_crash_leaves_one_directory() {
    let mut w = world();
    let (mdt0, mdt1) = (w.c.server("fs-MDT0000"), w.mdts[0]);
    let dir = w.dir(w.b, "dir", DirDefault { max_inherit: 2, ..on(&[1, 2]) });
    let mut number = 0;
    for dies in [vec![mdt0], vec![mdt1], vec![mdt0, mdt1]] {
        for after in [0, 1, 2, 3, 5, 8] {
            number += 1;
            let text = format!("n{number}");
            let mkdir = Call::Mkdir { parent: dir, name: name(&text), mode: 0o755 };
            let id = w.c.send_quietly(w.b, testkit::cluster::cred(0), mkdir);
            w.c.slow_server = Some(dies[0]);
            for _ in 0..after {
                w.c.step();
            }
            dies.iter().for_each(|at| w.c.kill(*at));
            w.c.slow_server = None;
            dies.iter().for_each(|at| w.c.start(*at));
            let answer = w.c.answer(w.b, id);
            let Ok(Answer::Entry(stat)) = answer else { panic!("{text}: {answer:?} {:#?}", w.c.log) };
            assert_eq!(w.c.lookup(w.b, dir, &text).map(|found| found.ino), Ok(stat.ino), "{text}");
            assert_eq!(w.stripes(w.b, stat.ino), [1, 2], "{text}");
            assert_eq!(w.get(w.b, stat.ino).map(|default| default.max_inherit), Some(1), "{text}");
            w.c.call(w.b, rmdir(dir, &text)).unwrap();
        }
    }
    w.ends_cleanly();
}

#[test]
fn who_may_set_a_default_and_who_is_placed_by_it() {
    let mut w = world();
    let b = w.b;
    let dir = w.dir(b, "dir", on(&[1]));
    let of_user = client::api::SetStat { uid: Some(5), mode: Some(0o777), ..Default::default() };
    w.c.call(b, Call::Setattr { ino: dir, set: of_user }).unwrap();
    let allow = |w: &mut World, setting: &str, value: &str| {
        for target in TARGETS {
            w.c.set_server_param(target, &format!("mdt.{target}.{setting}"), value);
        }
    };
    // Only root may place directories. Who set the default was allowed to.
    assert_eq!(w.set_as(b, 5, dir, Some(on(&[2]))), Err(Errno::EPERM));
    let mkdir = |w: &mut World, uid: u32, text: &str| {
        let Answer::Entry(stat) =
            w.c.call_as(b, uid, Call::Mkdir { parent: dir, name: name(text), mode: 0o755 }).unwrap()
        else {
            panic!("no entry")
        };
        assert_eq!(stat.uid, uid);
        w.stripes(b, stat.ino)
    };
    assert_eq!(mkdir(&mut w, 6, "six"), [1]);
    let wish = NewDir { mdts: vec![2], hash: 0 };
    let elsewhere = Call::MkdirOn { parent: dir, name: name("else"), mode: 0o755, wish };
    assert_eq!(w.c.call_as(b, 6, elsewhere), Err(Errno::EPERM), "it has no wishes of its own");
    // Everybody may: of the others, the owner alone.
    allow(&mut w, "enable_remote_dir_gid", "-1");
    assert_eq!(w.set_as(b, 6, dir, Some(on(&[2]))), Err(Errno::EPERM));
    assert_eq!(w.set_as(b, 5, dir, Some(on(&[2]))), Ok(()));
    assert_eq!(mkdir(&mut w, 6, "seven"), [2]);
    // Nobody may place directories: they are made all the same, and the owner may take the default away.
    allow(&mut w, "enable_remote_dir", "0");
    assert_eq!(w.set(b, dir, Some(on(&[1]))), Err(Errno::EPERM));
    assert_eq!(mkdir(&mut w, 6, "eight"), [0]);
    assert!(marks::count("placement_refused") > 0);
    assert_eq!(w.set_as(b, 6, dir, None), Err(Errno::EPERM));
    assert_eq!(w.set_as(b, 5, dir, None), Ok(()));
    allow(&mut w, "enable_remote_dir", "1");
    allow(&mut w, "enable_striped_dir", "0");
    assert_eq!(w.set(b, dir, Some(on(&[1, 2]))), Err(Errno::EPERM));
    // What nobody can mean.
    for (bad, errno) in [
        (DirDefault { count: -2, ..anywhere() }, Errno::EINVAL),
        (DirDefault { max_inherit: 251, ..anywhere() }, Errno::EINVAL),
        (DirDefault { hash: 9, ..anywhere() }, Errno::EINVAL),
        (on(&[0, 7]), Errno::ENODEV),
    ] {
        assert_eq!(w.set(b, dir, Some(bad.clone())), Err(errno), "{bad:?}");
    }
    assert_eq!(w.get(b, dir), None);
    w.ends_cleanly();
}

/// A client may say what it likes: it gets what the default allows.
#[test]
fn a_client_that_lies_about_the_default_gains_nothing() {
    let mut w = world();
    let dir = Fid::from_ino(w.dir(w.b, "dir", DirDefault { count: 2, ..on(&[1]) })).unwrap();
    let open = client::api::SetStat { mode: Some(0o777), ..Default::default() };
    w.c.call(w.b, Call::Setattr { ino: dir.ino(), set: open }).unwrap();
    let mut raw = Raw::at(&mut w.c, 77, &TARGETS);
    let mut make = |w: &mut World, text: &str, on: &[usize], hash: i32| {
        let fids: Vec<Fid> = on.iter().map(|mdt| raw.fid(*mdt)).collect();
        let stripes = fids.iter().zip(on).skip(1).map(|(fid, mdt)| Stripe { fid: *fid, mdt: *mdt as u32 });
        let op = CreateOp {
            parent: dir,
            name: name(text),
            fid: fids[0],
            mode: DIR,
            mdt: Some(on[0] as u32),
            stripes: stripes.collect(),
            hash,
            ..CreateOp::default()
        };
        let answer = w.c.raw_try(&mut raw.mdts[0], Opcode::MdsReint, &change(9, Reint::Create(op)));
        Errno::from_status(answer.header.status)
    };
    let hash = DirHash::AllChar as i32;
    assert_eq!(make(&mut w, "elsewhere", &[2], 0), Err(Errno::EPERM));
    assert_eq!(make(&mut w, "turned", &[2, 1], hash), Err(Errno::EPERM));
    assert_eq!(make(&mut w, "more", &[1, 2, 0], hash), Err(Errno::EPERM));
    assert_eq!(make(&mut w, "hashed", &[1, 2], DirHash::Crush as i32), Err(Errno::EPERM));
    assert_eq!(make(&mut w, "twice", &[1, 1], hash), Err(Errno::EPERM));
    assert_eq!(make(&mut w, "right", &[1, 2], hash), Ok(()));
    assert_eq!(make(&mut w, "less", &[1], 0), Ok(()));
    w.ends_cleanly();
}

/// An older client does not see defaults. What it makes lies where it always did, and passes the default on.
#[test]
fn an_older_client_makes_ordinary_directories() {
    let mut w = world();
    let dir = w.dir(w.b, "dir", on(&[1]));
    let fid = Fid::from_ino(dir).unwrap();
    let mut old = w.c.raw_export_with("fs-MDT0000", ClientUuid(77), features::SUPPORTED & !features::DIR_STRIPE);
    let mut new = w.c.raw_export_with("fs-MDT0000", ClientUuid(78), features::SUPPORTED);
    for (export, default) in [(&mut old, None), (&mut new, Some(Box::new(on(&[1]))))] {
        let body = GetattrReq { fid, ..GetattrReq::default() };
        let rep: ObjectRep = w.c.raw_call(export, Opcode::MdsGetattr, &body).decode().unwrap();
        assert_eq!(rep.attr.unwrap().dir_default, default);
    }
    let seq = w.c.raw_call(&mut old, Opcode::SeqAlloc, &SeqAllocReq {}).decode::<SeqAllocRep>().unwrap().seq;
    let op = CreateOp { parent: fid, name: name("old"), fid: Fid::new(seq, 1), mode: DIR, ..CreateOp::default() };
    let rep: ObjectRep = w.c.raw_call(&mut old, Opcode::MdsReint, &change(0, Reint::Create(op))).decode().unwrap();
    assert_eq!((rep.attr.unwrap().dir_default, rep.parent_attr.unwrap().dir_default), (None, None));
    let made = w.c.lookup(w.b, dir, "old").unwrap().ino;
    assert_eq!((w.stripes(w.b, made), w.get(w.b, made)), (vec![0], Some(on(&[1]))));
    let kind = SetlayoutKind::DirDefault as i32;
    let op = SetlayoutOp { fid, kind, dir_default: None, ..SetlayoutOp::default() };
    let answer = w.c.raw_try(&mut old, Opcode::MdsReint, &change(0, Reint::Setlayout(op)));
    assert_eq!(answer.header.status, -Errno::EOPNOTSUPP.raw());
    w.ends_cleanly();
}

#[test]
fn an_older_server_has_no_defaults() {
    let mut w = world();
    w.c.tamper = Some(Box::new(|to_client, _, mut frame| {
        if to_client && frame.header.opcode == Opcode::Connect as u16 && frame.header.status == 0 {
            let mut rep: ConnectRep = frame.decode().unwrap();
            rep.features &= !features::DIR_STRIPE;
            frame.body = rep.encode_to_vec().into();
        }
        vec![frame]
    }));
    let old = w.c.mount();
    w.c.pass(Duration::from_secs(1));
    let dir = w.c.mkdir(old, 1, "dir").unwrap().ino;
    assert_eq!(w.set(old, dir, Some(anywhere())), Err(Errno::EOPNOTSUPP));
    assert_eq!(w.get(old, dir), None);
    assert_eq!(w.c.mkdir(old, dir, "below").map(drop), Ok(()));
}

/// A program that waits for a directory that was placed elsewhere can be killed, also after it was placed anew.
#[test]
fn a_program_that_waits_can_be_killed() {
    let mut w = world();
    let dir = w.dir(w.b, "dir", on(&[2]));
    w.c.kill(w.mdts[1]);
    w.c.pass(Duration::from_secs(1));
    let id = w.c.send(w.b, Call::Mkdir { parent: dir, name: name("n"), mode: 0o755 });
    w.c.pass(Duration::from_secs(5));
    let now = w.c.now;
    w.c.nodes[w.b].machine.handle(now, client::api::Event::Abandon { id });
    assert_eq!(w.c.answer(w.b, id), Err(Errno::EINTR));
    w.c.start(w.mdts[1]);
    w.c.pass(Duration::from_secs(30));
    assert_eq!(w.c.lookup(w.b, dir, "n"), Err(Errno::ENOENT));
    assert_eq!(w.c.nodes[w.b].machine.in_progress(), Vec::<String>::new());
    w.ends_cleanly();
}
