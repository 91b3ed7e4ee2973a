//! A client that passes over many more files than it may remember.

use std::time::Duration;

use client::api::{Call, Event, Invalidation};
use proto::Errno;
use testkit::cluster::{Cluster, name};

const MAX: usize = 2048;

fn mount(c: &mut Cluster, max_nodes: usize) -> usize {
    let a = c.begin_mount(client::Options { max_nodes, ..Cluster::options(1) });
    c.until(|c| c.nodes[a].mounted);
    a
}

fn nodes(c: &Cluster, at: usize) -> usize {
    c.nodes[at].machine.get_params("llite.*.nodes")[0].1.parse().unwrap()
}

/// As programs make a file: the name is looked up first.
fn make(c: &mut Cluster, at: usize, dir: u64, text: &str) -> u64 {
    assert_eq!(c.lookup(at, dir, text), Err(Errno::ENOENT));
    let call = Call::Mknod { parent: dir, name: name(text), mode: 0o100_644, rdev: 0 };
    c.call(at, call).unwrap();
    c.lookup(at, dir, text).unwrap().ino
}

/// The kernel lets go what it was asked to, unless it is in use; how many nodes it was asked for.
fn let_go(c: &mut Cluster, at: usize, in_use: &[u64]) -> usize {
    let mut asked = 0;
    for node in core::mem::take(&mut c.nodes[at].let_go).into_iter().flatten() {
        asked += 1;
        if !in_use.contains(&node.ino) {
            c.call(at, Call::Forget { ino: node.ino, count: 2 }).unwrap();
        }
    }
    if asked > 0 {
        let now = c.now;
        c.nodes[at].machine.handle(now, Event::Asked);
        c.run();
    }
    asked
}

#[test]
fn a_stream_of_new_files_tells_the_kernel_no_name_and_asks_the_server_nothing_more() {
    const FILES: usize = 8 * MAX;
    let mut c = Cluster::new(1);
    let a = mount(&mut c, MAX);
    let dir = c.mkdir(a, 1, "d").unwrap().ino;
    let kept = make(&mut c, a, dir, "kept");
    let (mut asked, mut times) = (0, 0);
    for i in 0..FILES {
        make(&mut c, a, dir, &format!("f{i}"));
        assert!(c.nodes[a].let_go.len() <= 1, "one question at a time");
        let now = let_go(&mut c, a, &[dir, kept]);
        asked += now;
        times += usize::from(now > 0);
        assert!(nodes(&c, a) <= MAX, "{} nodes after {i} files", nodes(&c, a));
    }
    assert!(asked > FILES - MAX, "what went was let go before: {asked}");
    // Those in use were asked for again, once in a round.
    assert!(asked < FILES + 64, "{asked}");
    assert!(times < FILES / (MAX / 32) + 32, "{times} questions");
    let names = c.nodes[a].invalidations.iter().filter(|what| matches!(what, Invalidation::Entry { .. })).count();
    assert_eq!(names, 0);
    // All names are known all the time, though not by heart.
    let lookups = c.all_requests.get("mds_getattr_name").copied().unwrap_or(0);
    assert!(lookups < 8, "{:?}", c.all_requests);
    assert_eq!(c.all_requests.get("mds_readpage"), None);
    assert_eq!(c.lookup(a, dir, "f7").map(|stat| stat.size), Ok(0));
    assert_eq!(c.lookup(a, dir, "kept").unwrap().ino, kept);
    assert!(stdx::marks::count("kernel_asked_to_let_go") > 0);
    assert!(stdx::marks::count("names_thinned") > 0);
}

#[test]
fn a_kernel_that_uses_all_is_not_asked_again_and_again() {
    let mut c = Cluster::new(1);
    let a = mount(&mut c, 256);
    let dir = c.mkdir(a, 1, "d").unwrap().ino;
    let mut inos = vec![dir];
    let mut times = 0;
    for i in 0..512 {
        inos.push(make(&mut c, a, dir, &format!("f{i}")));
        times += usize::from(let_go(&mut c, a, &inos) > 0);
    }
    let before = c.now;
    c.pass(Duration::from_secs(1));
    make(&mut c, a, dir, "more");
    times += usize::from(let_go(&mut c, a, &inos) > 0);
    let most = c.now.since(before).as_millis() as usize / 50 + 4;
    assert!(times <= most, "{times} times, most {most}");
    assert!(nodes(&c, a) > 512);
}

#[test]
fn a_kernel_that_uses_the_few_that_are_left_is_not_asked_without_end() {
    let mut c = Cluster::new(1);
    let a = mount(&mut c, 10_000);
    let now = c.now;
    c.nodes[a].machine.set_param(now, "ldlm.namespaces.*MDT*.lru_size", "100").unwrap();
    let dir = c.mkdir(a, 1, "d").unwrap().ino;
    let inos: Vec<u64> = (0..88).map(|i| make(&mut c, a, dir, &format!("f{i}"))).collect();
    let in_use: Vec<u64> = inos[..16].iter().copied().chain([dir]).collect();
    let times = (0..50).take_while(|_| let_go(&mut c, a, &in_use) > 0).count();
    assert!((1..4).contains(&times), "asked {times} times in one instant");
}
