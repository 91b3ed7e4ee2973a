//! Directories whose layout changes while clients work in them: more stripes, fewer, another hash function.

use std::collections::BTreeMap;
use std::time::Duration;

use client::api::{Answer, Call, DirStripes};
use proto::Errno;
use proto::msg::DirHash;
use stdx::{Rng, marks};
use testkit::cluster::{Cluster, cred, name, seeds};

/// Three metadata targets, two clients, and a directory.
struct World {
    c: Cluster,
    /// The second and the third.
    mdts: [usize; 2],
    nodes: [usize; 2],
    dir: u64,
}

fn allow(c: &mut Cluster) {
    for mdt in ["fs-MDT0000", "fs-MDT0001", "fs-MDT0002"] {
        c.set_server_param(mdt, &format!("mdt.{mdt}.enable_dir_restripe"), "1");
    }
}

impl World {
    fn new() -> World {
        let mut c = Cluster::new(1);
        let mdts = ["fs-MDT0001", "fs-MDT0002"].map(|name| {
            let server = c.add_server(name);
            c.start(server);
            server
        });
        c.pass(Duration::from_secs(2));
        allow(&mut c);
        let nodes = [c.mount(), c.mount()];
        c.mkdir(nodes[0], 1, "d").unwrap();
        let dir = c.lookup(nodes[1], 1, "d").unwrap().ino;
        World { c, mdts, nodes, dir }
    }

    /// Names move slowly, each a good moment after the one before.
    fn slow() -> World {
        let mut w = World::new();
        w.c.names_moving = (4, Duration::from_millis(2));
        for server in [w.c.server("fs-MDT0000"), w.mdts[0], w.mdts[1]] {
            w.c.kill(server);
            w.c.start(server);
        }
        w.c.pass(Duration::from_secs(5));
        allow(&mut w.c);
        w
    }

    fn set(&self, count: u32, added: &[u32], hash: DirHash) -> Call {
        let wish = DirStripes { count, added: added.to_vec(), hash: hash as i32 };
        Call::SetDirLayout { ino: self.dir, wish }
    }

    /// Stripes of the directory, and whether names move.
    fn layout(&mut self, node: usize) -> (usize, bool) {
        match self.c.call(self.nodes[node], Call::GetDirLayout { ino: self.dir }) {
            Ok(Answer::DirLayout(Some(lmv))) => (lmv.stripes.len(), lmv.is_moving()),
            Ok(Answer::DirLayout(None)) => (1, false),
            other => panic!("{other:?}"),
        }
    }

    /// Waits until no names move.
    fn rest(&mut self) -> usize {
        for _ in 0..100 {
            if let (stripes, false) = self.layout(0) {
                return stripes;
            }
            self.c.pass(Duration::from_millis(250));
        }
        panic!("names move for ever");
    }

    fn names(&mut self, node: usize, plus: bool) -> Vec<String> {
        let mut names = self.c.list(self.nodes[node], self.dir, plus).unwrap();
        names.retain(|name| name != "." && name != "..");
        names.sort();
        names
    }
}

#[test]
fn a_directory_gets_more_stripes_then_other_ones_then_fewer() {
    let mut w = World::new();
    let (a, b, dir) = (w.nodes[0], w.nodes[1], w.dir);
    let mut all = BTreeMap::new();
    for n in 0..300 {
        let name = format!("f{n:03}");
        let (stat, fh) = w.c.create([a, b][n % 2], dir, &name).unwrap();
        w.c.close([a, b][n % 2], fh).unwrap();
        all.insert(name, stat.ino);
    }
    let sub = w.c.mkdir(a, dir, "sub").unwrap().ino;
    all.insert("sub".into(), sub);
    let before = w.c.getattr(a, dir).unwrap();
    let steps = [
        (3, &[1, 2][..], DirHash::Crush),
        (3, &[], DirHash::AllChar),
        (5, &[0, 1], DirHash::Crush),
        (2, &[], DirHash::Unknown),
        (1, &[], DirHash::Unknown),
        (2, &[2], DirHash::Fnv1a64),
    ];
    for (count, added, hash) in steps {
        let set = w.set(count, added, hash);
        assert_eq!(w.c.call(a, set), Ok(Answer::Done));
        let again = w.set(count + 1, &[0], hash);
        assert_eq!(w.c.call(b, again), Err(Errno::EBUSY));
        for (name, ino) in all.iter().step_by(7) {
            assert_eq!(w.c.lookup(b, dir, name).map(|stat| stat.ino), Ok(*ino), "{name}");
        }
        let want: Vec<String> = all.keys().cloned().collect();
        for node in 0..2 {
            assert!(w.names(node, node == 0) == want);
        }
        assert_eq!(w.c.lookup(a, dir, "none"), Err(Errno::ENOENT));
        assert_eq!(w.rest(), count as usize);
        for node in 0..2 {
            assert!(w.names(node, node == 0) == want);
        }
        for (name, ino) in &all {
            assert_eq!(w.c.lookup(a, dir, name).map(|stat| stat.ino), Ok(*ino), "{name}");
        }
        let after = w.c.getattr(b, dir).unwrap();
        assert_eq!((after.nlink, after.mtime_ns), (before.nlink, before.mtime_ns));
        assert_eq!(w.c.call(b, Call::Rmdir { parent: 1, name: name("d") }), Err(Errno::ENOTEMPTY));
    }
    assert!(marks::count("listed_while_names_move") > 0 && marks::count("layout_outdated") > 0);
    w.c.call(a, Call::Rmdir { parent: dir, name: name("sub") }).unwrap();
    all.remove("sub");
    for name in all.keys() {
        w.c.unlink(b, dir, name).unwrap();
    }
    w.c.call(a, Call::Rmdir { parent: 1, name: name("d") }).unwrap();
    assert_eq!(w.c.lookup(b, 1, "d"), Err(Errno::ENOENT));
}

/// What changed last in a stripe that goes was the directory's last change.
#[test]
fn the_times_of_a_stripe_that_goes_stay() {
    let mut w = World::new();
    let (a, dir) = (w.nodes[0], w.dir);
    for round in 0..8 {
        for (count, added) in [(3, &[1, 2][..]), (1, &[])] {
            let set = w.set(count, added, DirHash::Crush);
            let (_, fh) = w.c.create(a, dir, &format!("{count}{round}")).unwrap();
            w.c.close(a, fh).unwrap();
            w.c.pass(Duration::from_secs(3));
            let before = w.c.getattr(a, dir).unwrap();
            assert_eq!(w.c.call(a, set), Ok(Answer::Done));
            w.rest();
            let after = w.c.getattr(w.nodes[1], dir).unwrap();
            assert_eq!((after.mtime_ns, after.ctime_ns >= before.ctime_ns), (before.mtime_ns, true), "{round} {count}");
        }
    }
}

/// Names that have no room where they belong stay where they are until there is room.
#[test]
fn names_wait_for_room() {
    let mut w = World::new();
    let (a, b, dir) = (w.nodes[0], w.nodes[1], w.dir);
    let all: Vec<String> = (0..50).map(|n| format!("f{n:03}")).collect();
    for name in &all {
        let (_, fh) = w.c.create(a, dir, name).unwrap();
        w.c.close(a, fh).unwrap();
    }
    let set = w.set(2, &[1], DirHash::Crush);
    w.c.slow_media = true;
    let id = w.c.send_quietly(a, cred(0), set);
    w.c.until(|c| c.answered(a, id));
    assert_eq!(w.c.answer(a, id), Ok(Answer::Done));
    w.c.fill_store("fs-MDT0001", 64 << 20);
    w.c.slow_media = false;
    w.c.pass(Duration::from_secs(60));
    assert!(w.layout(0).1 && w.names(1, true) == all);
    let begin = w.c.now;
    assert!(all.iter().all(|name| w.c.lookup(b, dir, name).is_ok()));
    assert!(w.c.now.since(begin) < Duration::from_secs(1), "who only reads does not wait for it");
    w.c.free_store("fs-MDT0001");
    assert_eq!(w.rest(), 2);
    assert!(w.names(0, true) == all && w.names(1, false) == all);
    assert!(all.iter().all(|name| w.c.lookup(b, dir, name).is_ok()));
}

/// What a client knew of a name in a stripe is outdated when the name comes back to it.
#[test]
fn a_name_that_was_removed_in_another_stripe_is_not_found_again() {
    let mut w = World::new();
    let (a, b, dir) = (w.nodes[0], w.nodes[1], w.dir);
    let layouts = [(2, &[0][..], DirHash::AllChar), (2, &[], DirHash::Fnv1a64), (2, &[], DirHash::AllChar)];
    let mut next = layouts.into_iter().map(|(count, added, hash)| w.set(count, added, hash)).collect::<Vec<_>>();
    let (back, away, first) = (next.pop().unwrap(), next.pop().unwrap(), next.pop().unwrap());
    assert_eq!(w.c.call(a, first), Ok(Answer::Done));
    w.rest();
    // By each of these functions all of them are in one stripe: nothing is learned about the other one.
    let names: Vec<String> = (0..8).step_by(2).map(|n| format!("f{n}")).collect();
    for name in &names {
        let (_, fh) = w.c.create(b, dir, name).unwrap();
        w.c.close(b, fh).unwrap();
    }
    // Open, so that the client keeps what it has of them; and its own change calls none of its locks back, as all is on one target.
    let mut open = Vec::new();
    for name in &names {
        let file = w.c.lookup(a, dir, name).unwrap().ino;
        open.push(w.c.open(a, file, 0o2).unwrap());
    }
    assert_eq!(w.c.call(a, away), Ok(Answer::Done));
    w.rest();
    for name in &names {
        w.c.lookup(a, dir, name).unwrap();
        w.c.unlink(a, dir, name).unwrap();
    }
    assert_eq!(w.c.call(a, back), Ok(Answer::Done));
    w.rest();
    for name in &names {
        assert_eq!(w.c.lookup(a, dir, name), Err(Errno::ENOENT), "{name}");
    }
    assert!(marks::count("names_of_another_layout") > 0);
    for fh in open {
        w.c.close(a, fh).unwrap();
    }
}

/// A client hears of the new layouts of both directories of a rename.
#[test]
fn a_rename_between_two_directories_with_outdated_layouts_ends() {
    let mut w = World::new();
    let (a, b, d) = (w.nodes[1], w.nodes[0], w.dir);
    let e = w.c.mkdir(a, 1, "e").unwrap().ino;
    let names: Vec<String> = (0..8).map(|n| format!("f{n}")).collect();
    for name in &names {
        let (_, fh) = w.c.create(a, d, name).unwrap();
        w.c.close(a, fh).unwrap();
    }
    for dir in [e, d] {
        w.dir = dir;
        let set = w.set(3, &[1, 2], DirHash::Crush);
        assert_eq!(w.c.call(b, set), Ok(Answer::Done));
        w.rest();
    }
    for text in &names {
        let rename = Call::Rename { parent: d, name: name(text), new_parent: e, new_name: name(text), flags: 0 };
        assert_eq!(w.c.call(a, rename), Ok(Answer::Done), "{text}");
    }
    w.dir = e;
    assert!(w.names(0, true) == names && w.names(1, false) == names);
}

#[test]
fn it_is_refused_without_right_or_with_wrong_figures() {
    let mut w = World::new();
    let (a, dir) = (w.nodes[0], w.dir);
    let set = |count, added: &[u32], hash| {
        let wish = DirStripes { count, added: added.to_vec(), hash };
        Call::SetDirLayout { ino: dir, wish }
    };
    assert_eq!(w.c.call_as(a, 1000, set(2, &[1], 0)), Err(Errno::EPERM));
    assert_eq!(w.c.call(a, set(0, &[], 0)), Err(Errno::EINVAL));
    assert_eq!(w.c.call(a, set(3, &[1], 0)), Err(Errno::EINVAL));
    assert_eq!(w.c.call(a, set(2, &[], 0)), Err(Errno::EINVAL));
    assert_eq!(w.c.call(a, set(2, &[1], 99)), Err(Errno::EINVAL));
    assert_eq!(w.c.call(a, set(2, &[9], 0)), Err(Errno::ENODEV));
    assert_eq!(w.c.call(a, set(7, &[0, 0, 0, 0, 0, 0], 0)), Err(Errno::EINVAL));
    assert_eq!(w.c.call(a, set(1, &[], 0)), Ok(Answer::Done));
    assert_eq!(w.layout(0), (1, false));
    w.c.set_server_param("fs-MDT0000", "mdt.fs-MDT0000.enable_dir_restripe", "0");
    assert_eq!(w.c.call(a, set(2, &[1], 0)), Err(Errno::EPERM));
}

/// A target that is away while names move to it or from it delays them, nothing else.
#[test]
fn it_goes_on_when_a_target_comes_back() {
    let mut w = World::new();
    let (a, b, dir) = (w.nodes[0], w.nodes[1], w.dir);
    let all: Vec<String> = (0..200).map(|n| format!("f{n:03}")).collect();
    for name in &all {
        let (_, fh) = w.c.create(a, dir, name).unwrap();
        w.c.close(a, fh).unwrap();
    }
    for (count, added) in [(3, &[1, 2][..]), (1, &[])] {
        for server in w.mdts {
            w.c.pass(Duration::from_secs(2));
            let set = w.set(count, added, DirHash::Crush);
            w.c.slow_media = true;
            let id = w.c.send_quietly(a, cred(0), set);
            w.c.until(|c| c.answered(a, id));
            assert_eq!(w.c.answer(a, id), Ok(Answer::Done), "{count}");
            w.c.kill(server);
            w.c.slow_media = false;
            w.c.pass(Duration::from_secs(20));
            // What lies on the others, and is not in doubt, is at hand.
            assert!(w.c.lookup(b, 1, "d").is_ok());
            w.c.start(server);
            w.c.pass(Duration::from_secs(20));
            assert_eq!(w.rest(), count as usize);
            for node in 0..2 {
                assert!(w.names(node, node == 0) == all, "{count} {server}");
            }
            let back = if count == 1 { w.set(3, &[1, 2], DirHash::Crush) } else { w.set(1, &[], DirHash::Crush) };
            assert_eq!(w.c.call(a, back), Ok(Answer::Done));
            w.rest();
        }
        if count == 3 {
            let set = w.set(3, &[1, 2], DirHash::Crush);
            assert_eq!(w.c.call(a, set), Ok(Answer::Done));
            w.rest();
        }
    }
    assert!(marks::count("mdt.layout_ends_later") > 0);
}

/// As the cluster's calls, but other things happen in any order meanwhile, and what is under way at the end stays so.
struct Steps {
    rng: Rng,
}

impl Steps {
    fn call(&mut self, c: &mut Cluster, node: usize, call: Call) -> Result<Answer, Errno> {
        let id = c.send_quietly(node, cred(0), call);
        let begun = marks::count("mdt.names_move");
        for step in 1..20_000 {
            if c.answered(node, id) {
                break;
            }
            if step % 100 == 0 {
                c.moment();
            }
            if step == 1000 {
                // It may wait for a store.
                c.slow_media = false;
            }
            c.one_step(&mut self.rng);
            // Names stay where they are for a while, more often than not.
            c.slow_media |= marks::count("mdt.names_move") > begun && self.rng.below(3) > 0;
        }
        c.answer(node, id)
    }

    fn ino(&mut self, c: &mut Cluster, node: usize, parent: u64, text: &str) -> Result<u64, Errno> {
        match self.call(c, node, Call::Lookup { parent, name: name(text) })? {
            Answer::Entry(stat) => Ok(stat.ino),
            other => panic!("{other:?}"),
        }
    }

    fn list(&mut self, c: &mut Cluster, node: usize, ino: u64) -> Vec<String> {
        let (plus, max_bytes) = (self.rng.below(2) == 0, 300 + self.rng.below(1500) as u32);
        listed(c, ino, (plus, max_bytes), |c, call| self.call(c, node, call))
    }
}

/// The names of a directory as one listing shows them, sorted.
fn listed(
    c: &mut Cluster,
    ino: u64,
    (plus, max_bytes): (bool, u32),
    mut call: impl FnMut(&mut Cluster, Call) -> Result<Answer, Errno>,
) -> Vec<String> {
    let Ok(Answer::Opened { fh, .. }) = call(c, Call::Opendir { ino }) else { panic!("opendir") };
    let (mut names, mut offset) = (Vec::new(), 0);
    loop {
        let entries = match call(c, Call::Readdir { fh, offset, max_bytes, plus }) {
            Ok(Answer::Entries(entries)) => entries,
            other => panic!("{other:?}"),
        };
        let Some(last) = entries.last() else { break };
        offset = last.offset;
        names.extend(entries.iter().map(|entry| String::from_utf8(entry.name.to_vec()).unwrap()));
    }
    call(c, Call::Releasedir { fh }).unwrap();
    names.retain(|name| name != "." && name != "..");
    names.sort();
    names
}

/// Time passes faster or slower while a call is under way.
struct Paced {
    rng: Rng,
    node: usize,
    pace: u64,
}

impl Paced {
    fn call(&mut self, c: &mut Cluster, call: Call) -> Result<Answer, Errno> {
        let id = c.send_quietly(self.node, cred(0), call);
        for step in 1.. {
            if c.answered(self.node, id) {
                break;
            }
            if self.rng.below(8) == 0 {
                (0..self.rng.below(1 + self.pace)).for_each(|_| c.moment());
            }
            if step % 100 == 0 {
                c.moment();
            }
            c.one_step(&mut self.rng);
        }
        c.answer(self.node, id)
    }
}

/// Changes the layout of the directory again and again; meanwhile somebody looks at it all the time.
fn look_while_names_move(
    w: &mut World,
    (rounds, paces): (usize, &[u64]),
    mut look: impl FnMut(&mut Paced, &mut Cluster),
) {
    let (dir, [setter, node]) = (w.dir, w.nodes);
    let mut paced = Paced { rng: Rng::new(3), node, pace: 0 };
    for round in 0..rounds {
        let set = if round % 2 == 0 { w.set(3, &[1, 2], DirHash::Crush) } else { w.set(1, &[], DirHash::Crush) };
        let c = &mut w.c;
        let setting = c.send_quietly(setter, cred(0), set);
        paced.pace = paces[round % paces.len()];
        loop {
            look(&mut paced, c);
            let is_set = c.answered(setter, setting);
            match paced.call(c, Call::GetDirLayout { ino: dir }) {
                Ok(Answer::DirLayout(Some(lmv))) if lmv.is_moving() => c.moment(),
                Ok(Answer::DirLayout(_)) if is_set => break,
                Ok(Answer::DirLayout(_)) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(c.answer(setter, setting), Ok(Answer::Done));
    }
}

/// The link count of a directory is that of all its directories, wherever their names are when its stripes are asked one by one.
#[test]
fn no_directory_is_counted_twice_or_missed_while_names_move() {
    let mut w = World::new();
    for n in 0..20 {
        w.c.mkdir(w.nodes[0], w.dir, &format!("s{n}")).unwrap();
    }
    let ino = w.dir;
    look_while_names_move(&mut w, (100, &[0, 2, 60]), |paced, c| {
        match paced.call(c, Call::Getattr { ino, fh: None }) {
            Ok(Answer::Attr(stat)) => assert_eq!(stat.nlink, 22),
            other => panic!("{other:?}"),
        }
    });
    assert!(marks::count("stripes_of_two_layouts") > 0);
}

/// A listing that takes many requests misses no name, and shows none twice.
#[test]
fn every_listing_is_complete_while_names_move() {
    let mut w = World::slow();
    let names: Vec<String> = (0..900).map(|n| format!("name{n:04}")).collect();
    for text in &names {
        let (_, fh) = w.c.create(w.nodes[0], w.dir, text).unwrap();
        w.c.close(w.nodes[0], fh).unwrap();
    }
    let ino = w.dir;
    look_while_names_move(&mut w, (8, &[40, 20, 10]), |paced, c| {
        let how = (paced.rng.below(4) > 0, 2000 + paced.rng.below(20_000) as u32);
        let found = listed(c, ino, how, |c, call| paced.call(c, call));
        assert!(found == names, "{} of {}", found.len(), names.len());
    });
}

/// Two clients make, move, remove and list names while layouts change all the time.
#[test]
fn nothing_is_lost_found_twice_or_wrong_while_names_move() {
    for seed in seeds(0, 8) {
        let mut w = World::new();
        let (nodes, dir) = (w.nodes, w.dir);
        let mut steps = Steps { rng: Rng::new(seed) };
        let mut all: BTreeMap<String, u64> = BTreeMap::new();
        let (mut stripes, mut changes) = (1, 0);
        for n in 0..300 {
            let text = format!("n{n}");
            let (stat, fh) = w.c.create(nodes[0], dir, &text).unwrap();
            w.c.close(nodes[0], fh).unwrap();
            all.insert(text, stat.ino);
        }
        for n in 0..5 {
            let text = format!("s{n}");
            let sub = w.c.mkdir(nodes[1], dir, &text).unwrap().ino;
            all.insert(text, sub);
        }
        for step in 0..900 {
            let node = nodes[steps.rng.below(2) as usize];
            let text = format!("n{}", steps.rng.below(400));
            let known = all.get(&text).copied();
            let c = &mut w.c;
            match steps.rng.below(24) {
                0..=10 => {
                    let create = Call::Create { parent: dir, name: name(&text), mode: 0o644, flags: 0o2 };
                    let Ok(Answer::Created { stat, fh, .. }) = steps.call(c, node, create) else {
                        panic!("{seed} {step} {text}")
                    };
                    let release = Call::Release { fh, flock_owner: None };
                    steps.call(c, node, release).unwrap();
                    assert!(known.is_none_or(|ino| ino == stat.ino), "{seed} {step} {text}");
                    all.insert(text, stat.ino);
                }
                11 => {
                    let expected = if all.remove(&text).is_some() { Ok(Answer::Done) } else { Err(Errno::ENOENT) };
                    let unlink = Call::Unlink { parent: dir, name: name(&text) };
                    assert_eq!(steps.call(c, node, unlink), expected, "{seed} {step} {text}");
                }
                12 | 13 => {
                    let to = format!("n{}", steps.rng.below(400));
                    let (old, new) = (name(&text), name(&to));
                    let rename = Call::Rename { parent: dir, name: old, new_parent: dir, new_name: new, flags: 0 };
                    let renamed = steps.call(c, node, rename);
                    assert_eq!(renamed.is_ok(), known.is_some(), "{seed} {step} {text} {to}: {renamed:?}");
                    if let Some(ino) = all.remove(&text) {
                        all.insert(to, ino);
                    }
                }
                14 | 15 => match steps.call(c, node, Call::Getattr { ino: dir, fh: None }) {
                    Ok(Answer::Attr(stat)) => assert_eq!(stat.nlink, 7, "{seed} {step}"),
                    other => panic!("{seed} {step} {other:?}"),
                },
                16..=18 => {
                    let found = steps.ino(c, node, dir, &text);
                    assert_eq!(found, known.ok_or(Errno::ENOENT), "{seed} {step} {text}");
                }
                19 | 20 => {
                    let listed = steps.list(c, node, dir);
                    assert!(listed.iter().eq(all.keys()), "{seed} {step}: {listed:?} {all:?}");
                }
                21 | 22 => {
                    let count = 1 + steps.rng.below(3) as u32;
                    let added: Vec<u32> = (stripes..count).map(|_| steps.rng.below(3) as u32).collect();
                    let hash = [DirHash::AllChar, DirHash::Fnv1a64, DirHash::Crush][steps.rng.below(3) as usize];
                    let wish = DirStripes { count, added, hash: hash as i32 };
                    match steps.call(c, node, Call::SetDirLayout { ino: dir, wish }) {
                        Ok(_) => (stripes, changes) = (count, changes + 1),
                        Err(errno) => assert_eq!(errno, Errno::EBUSY, "{seed} {step}"),
                    }
                }
                _ => c.pass(Duration::from_millis(steps.rng.below(400))),
            }
        }
        w.c.slow_media = false;
        assert!(changes > 5, "{seed}: {changes}");
        assert_eq!(w.rest(), stripes as usize);
        assert!(w.names(0, true).iter().eq(all.keys()));
        assert!(w.names(1, false).iter().eq(all.keys()));
    }
    assert!(marks::count("mdt.name_moves_first") > 0 && marks::count("mdt.read_before_it_moved") > 0);
}
