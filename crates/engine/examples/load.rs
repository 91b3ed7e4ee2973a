//! What the embedded engine costs: create-like groups with clustered and with random keys, gets and scans.
//!
//! `cargo run --release -p engine --example load -- DIRECTORY [GROUPS [CREATES-PER-GROUP]]`

use engine::{LmdbEngine, OpenOptions};
use std::path::Path;
use std::time::{Duration, Instant};
use stdx::Rng;
use store::{Batch, Engine, Formats, Key, KeyRange, Value};

type Failure = Box<dyn std::error::Error>;

/// The records of one create: entry, inode and index, and two that the whole group shares.
fn create(batch: &mut Batch, n: u64, random: bool, rng: &mut Rng) {
    let (inode, sequence) = if random { (rng.u64(), rng.u64()) } else { (n, 0x2_0000_0400) };
    let directory = if random { rng.u64() } else { 1 + n / 100_000 };
    let name = format!("file.mdtest.0.{n}");
    batch.put(Key::table(3).u64(directory).u64(rng.u64()).bytes(name.as_bytes()), Value::from(vec![1; 32]));
    batch.put(Key::table(2).u64(inode), Value::from(vec![2; 150]));
    batch.put(Key::table(1).u64(sequence).u64(n), Value::from(vec![3; 8]));
    batch.put(Key::table(2).u64(0), Value::from(n.to_le_bytes().to_vec()));
    batch.put(Key::table(9).u64(1), Value::from(n.to_le_bytes().to_vec()));
}

fn cpu() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// What this process has had written to the device so far, in bytes.
fn written() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    io.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok()).unwrap_or(0)
}

fn status(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_suffix(" kB")?.trim().parse().ok()).unwrap_or(0)
}

fn run(dir: &Path, groups: u64, creates: u64, random: bool) -> Result<(), Failure> {
    let dir = dir.join(if random { "random" } else { "clustered" });
    let engine = LmdbEngine::open(&dir, OpenOptions { create: true, ..OpenOptions::default() })?;
    let formats = Formats::new(|_| 1);
    let mut rng = Rng::new(1);
    let (mut clock, mut used, mut longest, before) = (Duration::ZERO, Duration::ZERO, Duration::ZERO, written());
    let first = engine.last_group()? + 1;
    for group in first..first + groups {
        let mut batch = Batch::new();
        (0..creates).for_each(|n| create(&mut batch, group * creates + n, random, &mut rng));
        let records = batch.seal(&formats);
        let (start, cpu_start) = (Instant::now(), cpu());
        engine.commit(group, &records)?;
        used += cpu() - cpu_start;
        clock += start.elapsed();
        longest = longest.max(start.elapsed());
    }
    let total = (groups * creates) as f64;
    let space = engine.space()?;
    let size = std::fs::metadata(dir.join("data.mdb"))?.len();
    println!(
        "{} keys, {groups} groups of {creates} creates: {:.0} creates/s, {:.2} us CPU and {:.0} B written per create, longest commit {longest:?}",
        if random { "random" } else { "clustered" },
        total / clock.as_secs_f64(),
        used.as_micros() as f64 / total,
        (written() - before) as f64 / total,
    );
    println!(
        "  {} records, {:.0} B on disk each; anonymous memory {} MiB",
        space.records,
        size as f64 / space.records as f64,
        status("RssAnon:") / 1024
    );

    let mut start = Instant::now();
    let (mut range, mut found) = (KeyRange::all(), 0);
    loop {
        let scanned = engine.scan(&range, 8192)?;
        found += scanned.records.len();
        match scanned.records.last() {
            Some((last, _)) if !scanned.complete => range.start = last.successor(),
            _ => break,
        }
    }
    println!("  scan: {:.2} M records/s", found as f64 / start.elapsed().as_secs_f64() / 1e6);

    let mut keys: Vec<Key> = (0..200_000).map(|_| Key::table(2).u64(rng.below(groups * creates) + creates)).collect();
    if random {
        keys = engine.scan(&KeyRange::prefix(Key::table(1)), 20_000)?.records.into_iter().map(|(key, _)| key).collect();
        keys.sort_by_cached_key(|_| rng.u64());
    }
    start = Instant::now();
    let single = keys.iter().map(|key| engine.get(key)).filter(|found| matches!(found, Ok(Some(_)))).count();
    let each = start.elapsed() / keys.len() as u32;
    start = Instant::now();
    let many =
        keys.chunks(64).flat_map(|keys| engine.get_many(keys)).filter(|found| matches!(found, Ok(Some(_)))).count();
    println!("  get: {each:?} alone, {:?} among 64 ({single} and {many} found)", start.elapsed() / keys.len() as u32);

    drop(engine);
    start = Instant::now();
    LmdbEngine::open(&dir, OpenOptions::default())?;
    println!("  open again: {:?}", start.elapsed());
    Ok(())
}

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("which directory?")?;
    let groups = args.next().map_or(Ok(20), |text| text.parse())?;
    let creates = args.next().map_or(Ok(20_000), |text| text.parse())?;
    run(Path::new(&dir), groups, creates, false)?;
    run(Path::new(&dir), groups, creates, true)
}
