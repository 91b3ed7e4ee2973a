//! Names that somebody chose so that they all have one hash, in a file system whose hash has no key.

use super::*;
use std::collections::{BTreeMap, BTreeSet};
use stdx::Rng;
use target::format_features::FULL_CHAINS;
use testkit::names::{NAMES, chosen};

impl World {
    fn header(&mut self) -> TargetHeader {
        self.sync();
        self.stored::<TargetHeader>(&())
    }

    /// A listing in small pages: each name once, and each cookie greater than the one before.
    fn listed(&mut self, dir: Fid) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        let mut after = 0;
        loop {
            let request = ReaddirReq { fid: dir, after, max_bytes: 2000, cred: Some(cred(0)), ..ReaddirReq::default() };
            let page: ReaddirRep = self.call(0, Opcode::MdsReaddir, &request).unwrap();
            for entry in page.entries {
                assert!(entry.cookie > after && entry.cookie <= i64::MAX as u64, "{:x} after {after:x}", entry.cookie);
                after = entry.cookie;
                assert!(names.insert(String::from_utf8(entry.name.to_vec()).unwrap()), "a name came twice");
            }
            if page.end {
                return names;
            }
        }
    }
}

#[test]
fn chosen_names_share_a_hash() {
    let header = schema::Header::default();
    let all: BTreeSet<String> = (0..NAMES).map(chosen).collect();
    assert_eq!(all.len(), NAMES);
    let hashes: BTreeSet<u64> = all.iter().map(|name| schema::first_cookie(&header, name.as_bytes())).collect();
    assert_eq!(hashes.len(), 1);
    let keyed = schema::Header { name_key: Bytes::from_static(&[1; 16]), ..header };
    let hashes: BTreeSet<u64> = all.iter().map(|name| schema::first_cookie(&keyed, name.as_bytes())).collect();
    assert_eq!(hashes.len(), NAMES, "who does not know the key can choose none");
}

/// Whoever could write in a directory could keep others from making a file of a certain name there.
#[test]
fn thousands_of_names_with_one_hash_keep_nobody_out() {
    let mut w = World::new();
    let dir = w.mkdir(Fid::ROOT, "dir");
    for n in 0..16 {
        w.mknod(dir, &chosen(n));
    }
    assert_eq!(w.header().incompat & FULL_CHAINS, 0, "an older version can still serve it");
    let fids: Vec<Fid> = (16..NAMES).map(|n| w.mknod(dir, &chosen(n))).collect();
    assert_eq!(w.header().incompat & FULL_CHAINS, FULL_CHAINS);
    w.check();
    assert_eq!(w.listed(dir).len(), NAMES);
    assert_eq!(w.create(dir, &chosen(NAMES - 1), S_IFREG), Err(Errno::EEXIST));

    // The first chain is emptied: what lies elsewhere is found all the same, also by another start.
    for n in 0..16 {
        w.unlink(dir, &chosen(n)).unwrap();
    }
    w.check();
    w.crash();
    w.reconnect(0);
    w.recovered(0);
    for (n, fid) in (16..NAMES).zip(&fids).step_by(100) {
        assert_eq!(w.lookup(dir, &chosen(n)).unwrap().fid, *fid);
        assert_eq!(w.create(dir, &chosen(n), S_IFREG), Err(Errno::EEXIST));
    }
    assert_eq!(w.lookup(dir, &chosen(3)), None);
    w.mknod(dir, &chosen(3));
    assert_eq!(w.listed(dir).len(), NAMES - 15);
    for n in (16..NAMES).chain([3]) {
        w.unlink(dir, &chosen(n)).unwrap();
    }
    w.remove_as(0, cred(0), Fid::ROOT, "dir", true).unwrap();
    w.check();
    assert!(stdx::marks::count("mdt.full_chain") > 0);
}

/// The last name of a full chain becomes the first that lies elsewhere.
#[test]
fn a_rename_out_of_a_full_chain_leaves_it_full() {
    let mut w = World::new();
    let fids: Vec<Fid> = (0..16).map(|n| w.mknod(Fid::ROOT, &chosen(n))).collect();
    w.rename((Fid::ROOT, &chosen(15)), (Fid::ROOT, &chosen(16)), 0).unwrap();
    assert_eq!(w.lookup(Fid::ROOT, &chosen(16)).map(|attr| attr.fid), Some(fids[15]));
    assert_eq!(w.lookup(Fid::ROOT, &chosen(15)), None);
    w.check();
}

/// The place behind the old name, which was the end of the chain, is where the new one goes.
#[test]
fn a_rename_to_the_next_place_of_a_chain_leaves_the_name_to_be_found() {
    let mut w = World::new();
    let file = w.mknod(Fid::ROOT, &chosen(0));
    w.rename((Fid::ROOT, &chosen(0)), (Fid::ROOT, &chosen(1)), 0).unwrap();
    for _ in 0..2 {
        assert_eq!(w.lookup(Fid::ROOT, &chosen(1)).map(|attr| attr.fid), Some(file));
        assert_eq!(w.lookup(Fid::ROOT, &chosen(0)), None);
        w.check();
        w.crash();
        w.reconnect(0);
        w.recovered(0);
    }
}

/// The feature and the first name that needs it are in one group: what a crash leaves has both or neither.
#[test]
fn a_crash_leaves_the_feature_with_the_name() {
    let mut w = World::new();
    for n in 0..16 {
        w.mknod(Fid::ROOT, &chosen(n));
    }
    w.sync();
    w.commits = false;
    w.mknod(Fid::ROOT, &chosen(16));
    w.commits = true;
    w.crash();
    assert_eq!(w.stored::<TargetHeader>(&()).incompat & FULL_CHAINS, 0);
    w.reconnect(0);
    w.clients[0].kept.drain(..16);
    let replays = w.clients[0].kept.clone();
    for frame in replays {
        w.throw_again(0, frame, flags::REPLAY);
    }
    w.recovered(0);
    assert!(w.lookup(Fid::ROOT, &chosen(16)).is_some(), "it was replayed");
    assert_eq!(w.header().incompat & FULL_CHAINS, FULL_CHAINS);
    w.check();
}

/// Random changes of chosen names in two directories against maps, with restarts.
#[test]
fn random_changes_of_chosen_names_do_what_maps_do() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut w = World::new();
        let dirs = [w.mkdir(Fid::ROOT, "a"), w.mkdir(Fid::ROOT, "b")];
        let mut model: [BTreeMap<usize, Fid>; 2] = Default::default();
        for _ in 0..400 {
            let mut pick = || (rng.below(2) as usize, rng.below(40) as usize);
            let ((at, n), (to, other)) = (pick(), pick());
            match rng.below(20) {
                0..8 => {
                    let made = w.create(dirs[at], &chosen(n), S_IFREG | 0o644);
                    assert_eq!(made.is_ok(), !model[at].contains_key(&n), "seed {seed}: {made:?}");
                    made.ok().map(|fid| model[at].insert(n, fid));
                }
                8..13 => {
                    let removed = w.unlink(dirs[at], &chosen(n));
                    assert_eq!(removed.is_ok(), model[at].remove(&n).is_some(), "seed {seed}");
                }
                13..18 => {
                    let renamed = w.rename((dirs[at], &chosen(n)), (dirs[to], &chosen(other)), 0);
                    assert_eq!(renamed.is_ok(), model[at].contains_key(&n), "seed {seed}: {renamed:?}");
                    if (at, n) != (to, other)
                        && let Some(fid) = model[at].remove(&n)
                    {
                        model[to].insert(other, fid);
                    }
                }
                18 => {
                    w.check();
                    w.clients[0].kept.clear();
                    w.crash();
                    w.reconnect(0);
                    w.recovered(0);
                    w.log.clear();
                }
                _ => {
                    let found = w.lookup(dirs[at], &chosen(n)).map(|attr| attr.fid);
                    assert_eq!(found, model[at].get(&n).copied(), "seed {seed}");
                }
            }
        }
        for (dir, names) in dirs.into_iter().zip(&model) {
            assert_eq!(w.listed(dir), names.keys().map(|n| chosen(*n)).collect(), "seed {seed}");
        }
        w.check();
    }
}
