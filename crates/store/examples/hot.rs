//! What the hot path of a view costs: prints nanoseconds for reads, writes and whole attempts shaped like a create.
//!
//! `cargo run --release -p store --example hot`

#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // a timing program has a clock

use std::hint::black_box;
use std::time::Instant as Clock;
use stdx::{Instant, Rng};
use store::{AttemptId, Engine, Formats, Key, KeyRange, MemEngine, StoreEffect, Value, View, ViewConfig};

fn entry(n: u64) -> Key {
    Key::table(3).u64(n % 1000).u64(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).bytes(b"file.mdtest.00")
}

fn inode(n: u64) -> Key {
    Key::table(2).u64(n)
}

fn time(what: &str, count: u64, mut each: impl FnMut(u64)) {
    let start = Clock::now();
    (0..count).for_each(&mut each);
    println!("{what:<58} {:>8.1} ns", start.elapsed().as_nanos() as f64 / count as f64);
}

/// One create: the parent and the absence of the name are read, six records are written, two of them every time.
fn create(view: &mut View, n: u64, bodies: &[Value; 2]) {
    view.begin(AttemptId(n));
    let parent = inode(u64::MAX - n % 1000);
    black_box(view.get(&parent)).ok();
    view.put(entry(n), bodies[0].clone());
    view.put(inode(n), Value::copy_from_slice(&bodies[1]));
    view.put(Key::table(1).u64(n).u64(n), bodies[0].clone());
    view.put(parent, Value::copy_from_slice(&bodies[1]));
    view.put(Key::table(9).u64(1), Value::copy_from_slice(&bodies[0]));
    view.accept(Instant::ZERO);
    view.finish(AttemptId(n));
}

fn commit(view: &mut View, engine: &MemEngine) {
    let start = Clock::now();
    let Some(group) = view.seal_group() else { return };
    let seal = start.elapsed();
    let Some(StoreEffect::Commit(commit)) = view.poll() else { return };
    let records = commit.len();
    let start = Clock::now();
    let sealed = commit.seal();
    let sealing = start.elapsed();
    drop(commit);
    engine.commit(group, &sealed).expect("a commit");
    let start = Clock::now();
    view.committed(group);
    println!(
        "group of {records} records: the target thread pauses {seal:?} + {:?}; sorting and sealing elsewhere {sealing:?}",
        start.elapsed()
    );
}

fn main() {
    const COUNT: u64 = 100_000;
    let engine = MemEngine::new();
    let mut view = View::new(ViewConfig::default(), Formats::new(|_| 1), engine.last_group().expect("a number"));
    let bodies = [Value::from(vec![1; 32]), Value::from(vec![2; 160])];
    let mut rng = Rng::new(1);

    time("put, new key", COUNT, |n| {
        view.begin(AttemptId(n));
        view.put(entry(n), bodies[0].clone());
        view.accept(Instant::ZERO);
    });
    time("put, same keys again", COUNT, |n| {
        view.begin(AttemptId(n));
        view.put(entry(n), bodies[0].clone());
        view.accept(Instant::ZERO);
    });
    time("get, random, in the collecting group", COUNT, |_| {
        black_box(view.get(&entry(rng.below(COUNT)))).ok();
    });
    commit(&mut view, &engine);
    time("get, random, in the retiring group", COUNT, |_| {
        black_box(view.get(&entry(rng.below(COUNT)))).ok();
    });
    time("begin, while a group retires", COUNT, |n| view.begin(AttemptId(n)));
    time("get, random, in the cache", COUNT, |_| {
        black_box(view.get(&entry(rng.below(COUNT)))).ok();
    });
    time("get, one key, in the cache", COUNT, |_| {
        black_box(view.get(&entry(7))).ok();
    });
    for round in 1..4 {
        time("a create (1 read, 5 records written)", COUNT, |n| create(&mut view, round * COUNT + n, &bodies));
        commit(&mut view, &engine);
    }
    view.begin(AttemptId(0));
    view.scan(&KeyRange::prefix(Key::table(3).u64(5)), 100).err();
    view.abandon();
    let Some(StoreEffect::Load(load)) = view.poll() else { return };
    view.loaded(load.run(&engine));
    time("scan of 100 records, loaded", 10_000, |_| {
        view.begin(AttemptId(0));
        black_box(view.scan(&KeyRange::prefix(Key::table(3).u64(5)), 100)).ok();
    });
    time("a create, while scans need the order", COUNT, |n| create(&mut view, 5 * COUNT + n, &bodies));
}
