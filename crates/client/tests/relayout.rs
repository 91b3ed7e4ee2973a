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
    nodes: [usize; 2],
    dir: u64,
}

impl World {
    fn new() -> World {
        let mut c = Cluster::new(1);
        for name in ["fs-MDT0001", "fs-MDT0002"] {
            let server = c.add_server(name);
            c.start(server);
        }
        c.pass(Duration::from_secs(2));
        for mdt in ["fs-MDT0000", "fs-MDT0001", "fs-MDT0002"] {
            c.set_server_param(mdt, &format!("mdt.{mdt}.enable_dir_restripe"), "1");
        }
        let nodes = [c.mount(), c.mount()];
        c.mkdir(nodes[0], 1, "d").unwrap();
        let dir = c.lookup(nodes[1], 1, "d").unwrap().ino;
        World { c, nodes, dir }
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
    for mark in ["listed_while_names_move", "layout_outdated"] {
        assert!(marks::count(mark) > 0, "{mark}");
    }
    w.c.call(a, Call::Rmdir { parent: dir, name: name("sub") }).unwrap();
    all.remove("sub");
    for name in all.keys() {
        w.c.unlink(b, dir, name).unwrap();
    }
    w.c.call(a, Call::Rmdir { parent: 1, name: name("d") }).unwrap();
    assert_eq!(w.c.lookup(b, 1, "d"), Err(Errno::ENOENT));
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
        let plus = self.rng.below(2) == 0;
        let Ok(Answer::Opened { fh, .. }) = self.call(c, node, Call::Opendir { ino }) else { panic!("opendir") };
        let (mut names, mut offset) = (Vec::new(), 0);
        loop {
            let max_bytes = 300 + self.rng.below(1500) as u32;
            let entries = match self.call(c, node, Call::Readdir { fh, offset, max_bytes, plus }) {
                Ok(Answer::Entries(entries)) => entries,
                other => panic!("{other:?}"),
            };
            let Some(last) = entries.last() else { break };
            offset = last.offset;
            names.extend(entries.iter().map(|entry| String::from_utf8(entry.name.to_vec()).unwrap()));
        }
        self.call(c, node, Call::Releasedir { fh }).unwrap();
        names.retain(|name| name != "." && name != "..");
        names.sort();
        names
    }
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
                14..=18 => {
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
    for mark in ["mdt.name_moves_first", "mdt.read_before_it_moved"] {
        assert!(marks::count(mark) > 0, "{mark}");
    }
}
