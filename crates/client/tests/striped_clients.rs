//! Clients in striped directories: what they find, list, show and tell their kernels, while others work in the same stripes and
//! while a target with a stripe is away.

use std::time::Duration;

use client::api::{Answer, Call, Invalidation, NewDir, Options, SetStat, SetTime};
use proto::Errno;
use proto::msg::DirHash;
use stdx::marks;
use testkit::cluster::{Cluster, name};

const STRIPES: usize = 3;

/// Three metadata targets, two clients, and a directory with a stripe on each target.
struct Striped {
    c: Cluster,
    a: usize,
    b: usize,
    dir: u64,
}

fn cluster() -> Cluster {
    let mut c = Cluster::new(1);
    for name in ["fs-MDT0001", "fs-MDT0002"] {
        let server = c.add_server(name);
        c.start(server);
    }
    c.pass(Duration::from_secs(2));
    c
}

/// Makes a directory with stripes on these targets, which the sum of the bytes of a name assigns to one.
fn make(c: &mut Cluster, node: usize, text: &str, mdts: &[u32]) -> u64 {
    let wish = NewDir { mdts: mdts.to_vec(), hash: DirHash::AllChar as i32 };
    let made = c.call(node, Call::MkdirOn { parent: 1, name: name(text), mode: 0o755, wish });
    assert!(matches!(made, Ok(Answer::Fid(_))), "{made:?}");
    c.lookup(node, 1, text).unwrap().ino
}

fn striped() -> Striped {
    let mut c = cluster();
    let (a, b) = (c.mount(), c.mount());
    let dir = make(&mut c, a, "d", &[0, 1, 2]);
    assert_eq!(c.lookup(b, 1, "d").unwrap().ino, dir);
    Striped { c, a, b, dir }
}

/// A name of this stripe; `number` of them are different.
fn of(stripe: usize, number: usize) -> String {
    let stripe_of = |name: &String| name.bytes().map(usize::from).sum::<usize>() % STRIPES;
    (0..).map(|n| format!("n{n}")).filter(|name| stripe_of(name) == stripe).nth(number).unwrap()
}

fn rmdir(parent: u64, text: &str) -> Call {
    Call::Rmdir { parent, name: name(text) }
}

fn rename((parent, from): (u64, &str), (new_parent, to): (u64, &str)) -> Call {
    Call::Rename { parent, name: name(from), new_parent, new_name: name(to), flags: 0 }
}

fn set(ino: u64, set: SetStat) -> Call {
    Call::Setattr { ino, set }
}

/// How many locks of a target a client holds.
fn locks(c: &Cluster, node: usize, target: &str) -> u64 {
    let counts = c.nodes[node].machine.get_params(&format!("ldlm.namespaces.{target}-*.lock_count"));
    counts.iter().map(|(_, count)| count.parse::<u64>().unwrap()).sum()
}

impl Striped {
    /// What the kernel of a client was told since this was last asked: to forget the directory's attributes, and names in it.
    /// It is told nothing of directories that it does not know.
    fn told(&mut self, node: usize) -> (bool, Vec<String>) {
        let (mut attrs, mut names) = (false, Vec::new());
        for what in core::mem::take(&mut self.c.nodes[node].invalidations) {
            match what {
                Invalidation::Inode { ino, .. } => attrs |= ino == self.dir,
                Invalidation::Entry { parent, name, .. } => {
                    assert!([1, self.dir].contains(&parent), "{parent:#x} {name:?}");
                    names.push(String::from_utf8(name.to_vec()).unwrap());
                }
            }
        }
        names.sort();
        (attrs, names)
    }
}

#[test]
fn names_are_made_found_listed_moved_and_removed() {
    let Striped { mut c, a, b, dir } = striped();
    let mut all: Vec<String> = (0..STRIPES).flat_map(|stripe| (0..7).map(move |n| of(stripe, n))).collect();
    for (name, node) in all.iter().zip([a, b].into_iter().cycle()) {
        let (_, fh) = c.create(node, dir, name).unwrap();
        c.close(node, fh).unwrap();
    }
    assert!(marks::count("name_in_stripe") > 0);
    all.sort();
    for node in [a, b] {
        for plus in [false, true] {
            let mut listed = c.list(node, dir, plus).unwrap();
            listed.sort();
            assert_eq!(listed[..2], [".", ".."]);
            assert_eq!(listed[2..], all);
        }
        for text in &all {
            let stat = c.lookup(node, dir, text).unwrap();
            assert!(stat.entry_cacheable, "{text}");
            let fid = proto::Fid::from_ino(stat.ino).unwrap();
            let paths = c.call(node, Call::FidToPath { fid });
            assert_eq!(paths, Ok(Answer::Paths(vec![name(&format!("d/{text}"))])));
        }
        assert_eq!(c.lookup(node, dir, "none"), Err(Errno::ENOENT));
        assert_eq!(c.call(node, rmdir(1, "d")), Err(Errno::ENOTEMPTY));
    }
    // From stripe to stripe, by one client; the other one sees both names.
    for stripe in 0..STRIPES {
        let (from, to) = (of(stripe, 0), of((stripe + 1) % STRIPES, 10 + stripe));
        let ino = c.lookup(b, dir, &from).unwrap().ino;
        c.call(a, rename((dir, &from), (dir, &to))).unwrap();
        assert_eq!(c.lookup(b, dir, &from), Err(Errno::ENOENT));
        assert_eq!(c.lookup(b, dir, &to).unwrap().ino, ino);
        let link = of(stripe, 20);
        c.call(b, Call::Link { ino, new_parent: dir, new_name: name(&link) }).unwrap();
        assert_eq!(c.lookup(a, dir, &link).map(|stat| (stat.ino, stat.nlink)), Ok((ino, 2)));
        c.unlink(a, dir, &to).unwrap();
        c.unlink(b, dir, &link).unwrap();
        all.retain(|name| *name != from);
    }
    for text in &all {
        c.unlink(b, dir, text).unwrap();
        assert_eq!(c.lookup(a, dir, text), Err(Errno::ENOENT));
    }
    c.call(b, rmdir(1, "d")).unwrap();
    assert_eq!(c.lookup(a, 1, "d"), Err(Errno::ENOENT));
    assert_eq!(c.getattr(a, dir), Err(Errno::ESTALE));
}

/// A directory with names so long that several stripes are listed in several pieces.
fn full(c: &mut Cluster, node: usize, dir: u64) -> Vec<String> {
    let long = |stripe: usize, number: usize| format!("{}{}", of(stripe, number), "\u{3}".repeat(240));
    let counts = [2, 300, 150];
    let names = |stripe: usize| (0..counts[stripe]).map(move |number| long(stripe, number));
    let mut all: Vec<String> = (0..STRIPES).flat_map(names).collect();
    for text in &all {
        c.call(node, Call::Mknod { parent: dir, name: name(text), mode: 0o100_644, rdev: 0 }).unwrap();
    }
    all.sort();
    all
}

/// The client gives all locks back, and what it has cached under them.
fn forget(c: &mut Cluster, node: usize) {
    let now = c.now;
    let _ = c.nodes[node].machine.set_param(now, "ldlm.namespaces.*.lru_size", "clear");
    c.pass(Duration::from_secs(1));
}

/// The pieces of the stripes end at different places, and the kernel's buffer anywhere.
#[test]
fn a_listing_has_every_name_once_though_one_stripe_has_most() {
    let Striped { mut c, a, b, dir } = striped();
    let all = full(&mut c, a, dir);
    for node in [a, b] {
        for plus in [true, false] {
            forget(&mut c, node);
            let mut listed = c.list(node, dir, plus).unwrap();
            let pieces = c.requests.get("mds_readpage").copied().unwrap_or(0);
            assert!(!plus || pieces > 2 * STRIPES as u64 - 2, "{pieces} pieces");
            let offsets: Vec<u64> = c.listed.iter().map(|entry| entry.offset).collect();
            assert!(offsets.is_sorted(), "a listing can be continued at each name");
            listed.sort();
            assert!(listed[2..] == all, "{} of {} names", listed.len() - 2, all.len());
        }
    }
}

/// While a program reads a directory, it removes what a whole piece of a stripe has told.
#[test]
fn a_listing_does_not_end_where_everything_was_removed() {
    let Striped { mut c, a, dir, .. } = striped();
    full(&mut c, a, dir);
    let order = c.list(a, dir, true).unwrap();
    forget(&mut c, a);
    let Ok(Answer::Opened { fh, .. }) = c.call(a, Call::Opendir { ino: dir }) else { panic!("not open") };
    let read = |c: &mut Cluster, offset: u64| {
        let entries = c.call(a, Call::Readdir { fh, offset, max_bytes: 4096, plus: true });
        let Ok(Answer::Entries(entries)) = entries else { panic!("{entries:?}") };
        entries
    };
    let first = read(&mut c, 0);
    for text in &order[first.len()..300] {
        c.unlink(a, dir, text).unwrap();
    }
    let (mut rest, mut offset) = (Vec::new(), first[first.len() - 1].offset);
    loop {
        let entries = read(&mut c, offset);
        let Some(last) = entries.last() else { break };
        offset = last.offset;
        rest.extend(entries.iter().map(|entry| String::from_utf8(entry.name.to_vec()).unwrap()));
    }
    assert!(rest == order[300..], "{} of {} names", rest.len(), order.len() - 300);
}

#[test]
fn a_stat_shows_all_stripes_as_one_directory() {
    let Striped { mut c, a, b, dir } = striped();
    let before = c.getattr(b, dir).unwrap();
    assert_eq!((before.nlink, before.cacheable, before.is_partial), (2, true, false));
    let (mut links, mut last) = (2, before);
    for stripe in [1, 0, 2, 1] {
        c.pass(Duration::from_secs(1));
        let sub = of(stripe, links as usize);
        c.mkdir(a, dir, &sub).unwrap();
        links += 1;
        for node in [a, b] {
            let stat = c.getattr(node, dir).unwrap();
            assert_eq!(stat.nlink, links, "stripe {stripe}");
            assert!(stat.mtime_ns > last.mtime_ns && stat.ctime_ns == stat.mtime_ns, "stripe {stripe}: {stat:?}");
            c.getattr(node, dir).unwrap();
            assert_eq!(c.sent(), 0, "it is cached");
        }
        last = c.getattr(b, dir).unwrap();
    }
    // A time that is set counts for all, also where one's own cached attributes say otherwise.
    for node in [a, b] {
        c.call(node, set(dir, SetStat { mtime: Some(SetTime::At(5)), ..SetStat::default() })).unwrap();
        for of in [a, b] {
            let stat = c.getattr(of, dir).unwrap();
            assert!(stat.mtime_ns == 5 && stat.ctime_ns > last.ctime_ns, "{stat:?}");
        }
        c.pass(Duration::from_secs(1));
        c.call(node, rmdir(dir, &of(if node == a { 1 } else { 2 }, if node == a { 5 } else { 4 }))).unwrap();
        links -= 1;
        for of in [a, b] {
            let stat = c.getattr(of, dir).unwrap();
            assert_eq!((stat.nlink, stat.mtime_ns), (links, stat.ctime_ns), "{stat:?}");
        }
    }
    c.call(b, set(dir, SetStat { mode: Some(0o700), ..SetStat::default() })).unwrap();
    assert_eq!(c.getattr(a, dir).unwrap().mode, 0o040_700);
    for stripe in 0..STRIPES {
        let made = c.call_as(a, 1000, Call::Mkdir { parent: dir, name: name(&of(stripe, 30)), mode: 0o755 });
        assert_eq!(made.map(drop), Err(Errno::EACCES), "stripe {stripe}");
    }
}

/// The kernel knows the directory, not its stripes.
#[test]
fn the_kernel_is_told_of_the_directory_whichever_stripe_changes() {
    let mut s = striped();
    let (a, b, dir) = (s.a, s.b, s.dir);
    for stripe in 0..STRIPES {
        let (one, two, three) = (of(stripe, 0), of(stripe, 1), of(stripe, 2));
        s.c.create(b, dir, &one).unwrap();
        assert!(s.c.lookup(a, dir, &one).unwrap().entry_cacheable);
        assert!(s.c.getattr(a, dir).unwrap().cacheable);
        s.told(a);
        s.c.mkdir(b, dir, &two).unwrap();
        assert_eq!(s.told(a), (true, Vec::new()), "stripe {stripe}");
        assert!(s.c.getattr(a, dir).unwrap().cacheable);
        s.c.call(b, rename((dir, &one), (dir, &three))).unwrap();
        assert_eq!(s.told(a), (true, vec![one]), "stripe {stripe}");
        // A lock that is lost.
        assert!(s.c.lookup(a, dir, &three).unwrap().entry_cacheable);
        assert!(s.c.getattr(a, dir).unwrap().cacheable);
        s.told(a);
        let uuid = Cluster::options(a as u64).uuid.to_string();
        let server = format!("fs-MDT000{stripe}");
        s.c.set_server_param(&server, &format!("mdt.{server}.evict_client"), &uuid);
        s.c.pass(Duration::from_secs(30));
        let (attrs, names) = s.told(a);
        assert!(attrs && names.contains(&three), "stripe {stripe}: {names:?}");
        s.c.lookup(a, 1, "d").unwrap();
    }
}

/// A client with room for few nodes passes over many files, and its kernel still holds the directory.
#[test]
fn stripes_stay_known_as_long_as_their_directory() {
    let mut s = striped();
    let (b, dir) = (s.b, s.dir);
    let small = s.c.begin_mount(Options { max_nodes: 64, ..Cluster::options(2) });
    s.c.until(|c| c.nodes[small].mounted);
    s.c.lookup(small, 1, "d").unwrap();
    let many = s.c.mkdir(b, 1, "many").unwrap().ino;
    for n in 0..300 {
        s.c.call(b, Call::Mknod { parent: many, name: name(&format!("f{n}")), mode: 0o100_644, rdev: 0 }).unwrap();
    }
    s.c.lookup(small, 1, "many").unwrap();
    for stripe in 0..STRIPES {
        assert!(s.c.getattr(small, dir).unwrap().cacheable);
        for n in 0..300 {
            let ino = s.c.lookup(small, many, &format!("f{n}")).unwrap().ino;
            s.c.call(small, Call::Forget { ino, count: 1 }).unwrap();
        }
        let nodes: usize = s.c.nodes[small].machine.get_params("llite.*.nodes")[0].1.parse().unwrap();
        assert!(nodes <= 64, "{nodes}");
        s.told(small);
        s.c.mkdir(b, dir, &of(stripe, 0)).unwrap();
        assert!(s.told(small).0, "stripe {stripe}");
        assert_eq!(s.c.getattr(small, dir).unwrap().nlink, 3 + stripe as u32);
    }
}

/// A removed directory leaves nothing behind at the client that removed it.
#[test]
fn what_is_known_of_stripes_goes_with_the_directory() {
    let mut c = cluster();
    let (a, b) = (c.mount(), c.mount());
    let nodes = |c: &Cluster| c.nodes[a].machine.get_params("llite.*.nodes")[0].1.clone();
    c.getattr(a, 1).unwrap();
    let nodes_before = nodes(&c);
    let dir = make(&mut c, a, "d", &[0, 1, 2]);
    let near = make(&mut c, a, "near", &[0, 0, 0]);
    let has_of = |c: &Cluster| ["fs-MDT0000", "fs-MDT0001", "fs-MDT0002"].map(|target| locks(c, a, target));
    for dir in [dir, near] {
        for node in [a, b] {
            c.getattr(node, dir).unwrap();
            c.list(node, dir, true).unwrap();
        }
    }
    let before = has_of(&c);
    assert!(before.iter().all(|count| *count > 0), "{before:?}");
    for (text, ino) in [("d", dir), ("near", near)] {
        c.call(a, rmdir(1, text)).unwrap();
        c.call(a, Call::Forget { ino, count: 1 }).unwrap();
    }
    assert_eq!(nodes(&c), nodes_before);
    let left = has_of(&c);
    assert!(left[0] <= 2 && left[1..] == [0, 0], "only the root is left: {left:?}, before {before:?}");
    // Removed by the other client, while this one has it open.
    let dir = make(&mut c, a, "e", &[2, 1, 0]);
    let Ok(Answer::Opened { fh, .. }) = c.call(a, Call::Opendir { ino: dir }) else { panic!("not open") };
    c.lookup(b, 1, "e").unwrap();
    c.call(b, rmdir(1, "e")).unwrap();
    assert_eq!(c.getattr(a, dir), Err(Errno::ESTALE));
    let listed = c.call(a, Call::Readdir { fh, offset: 0, max_bytes: 4096, plus: false });
    assert!(matches!(listed, Err(Errno::ENOENT) | Ok(Answer::Entries(_))), "{listed:?}");
    assert_eq!(c.create(a, dir, &of(1, 0)).map(drop), Err(Errno::ESTALE));
    c.call(a, Call::Releasedir { fh }).unwrap();
    c.pass(Duration::from_secs(5));
    assert_eq!(c.nodes[a].machine.in_progress(), Vec::<String>::new());
}

/// A listing that ends early without an error would hide names.
#[test]
fn a_buffer_without_room_for_an_entry_is_refused() {
    let Striped { mut c, a, dir, .. } = striped();
    for stripe in 0..STRIPES {
        c.mkdir(a, dir, &of(stripe, 0)).unwrap();
    }
    let Ok(Answer::Opened { fh, .. }) = c.call(a, Call::Opendir { ino: dir }) else { panic!("not open") };
    let mut read = |offset, max_bytes| c.call(a, Call::Readdir { fh, offset, max_bytes, plus: true });
    let Ok(Answer::Entries(dots)) = read(0, 400) else { panic!("not listed") };
    assert_eq!(dots.len(), 2);
    assert_eq!(read(2, 100), Err(Errno::EINVAL));
    assert!(matches!(read(2, 400), Ok(Answer::Entries(entries)) if !entries.is_empty()));
}

#[test]
fn a_stripe_that_is_away_keeps_nobody_from_the_others() {
    let Striped { mut c, a, b, dir } = striped();
    for stripe in 0..STRIPES {
        c.mkdir(a, dir, &of(stripe, 0)).unwrap();
        let (_, fh) = c.create(a, dir, &of(stripe, 1)).unwrap();
        c.close(a, fh).unwrap();
    }
    assert_eq!(c.getattr(b, dir).unwrap().nlink, 5);
    let mdt2 = c.server("fs-MDT0002");
    c.kill(mdt2);
    c.pass(Duration::from_secs(2));
    // What is cached of the stripe counts no more once its lock is doubtful; what was known of it still does.
    let fresh = c.mount();
    let before = c.now;
    for node in [a, b, fresh] {
        let found = c.lookup(node, 1, "d").unwrap();
        assert_eq!(found.ino, dir);
        let stat = c.getattr(node, dir).unwrap();
        assert_eq!((stat.mode, stat.is_partial && stat.cacheable), (0o040_755, false));
        assert_eq!(stat.nlink, if node == fresh { 4 } else { 5 }, "{stat:?}");
        assert!(stat.is_partial || node != fresh);
        for stripe in 0..2 {
            let ino = c.lookup(node, dir, &of(stripe, 1)).unwrap().ino;
            let fh = c.open(node, ino, 0).unwrap();
            c.close(node, fh).unwrap();
            let (_, fh) = c.create(node, dir, &of(stripe, 10 + node)).unwrap();
            c.close(node, fh).unwrap();
        }
    }
    assert!(c.now.since(before) < Duration::from_secs(5), "after {:?}", c.now.since(before));
    assert!(marks::count("stripe_is_away") > 0 && marks::count("stripes_merged") > 0);
    // A change of the whole waits, and so does a name of the stripe.
    let chmod = c.send(fresh, set(dir, SetStat { mode: Some(0o700), ..SetStat::default() }));
    let found = c.send(a, Call::Lookup { parent: dir, name: name(&of(2, 5)) });
    c.pass(Duration::from_secs(3));
    assert!(!c.answered(fresh, chmod) && !c.answered(a, found));
    c.start(mdt2);
    c.answer(fresh, chmod).unwrap();
    assert_eq!(c.answer(a, found), Err(Errno::ENOENT));
    for node in [a, b, fresh] {
        let stat = c.getattr(node, dir).unwrap();
        assert_eq!((stat.mode, stat.nlink, stat.is_partial), (0o040_700, 5, false));
        c.lookup(node, dir, &of(2, 1)).unwrap();
    }
}
