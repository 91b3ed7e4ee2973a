//! The bare engine as a yardstick: the records of creates, in merged groups, with nothing above the engine.

use std::path::Path;
use std::time::{Duration, Instant};

use engine::{LmdbEngine, OpenOptions};
use store::{Batch, Engine, Formats, Key, Value};

/// What the engine achieves.
#[derive(Clone, Copy, Debug)]
pub struct Bare {
    /// Creates per second, including commits and their fsyncs.
    pub creates_per_second: f64,
    /// CPU time of a create, in microseconds.
    pub cpu_us: f64,
}

fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// The entry, inode and index of a file, and the two records that all creates of a group share: directory and client.
fn create(batch: &mut Batch, n: u64) {
    let name = format!("file.mdtest.0.{n}");
    batch.put(
        Key::table(3).u64(1 + n / 100_000).u64(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).bytes(name.as_bytes()),
        Value::from(vec![1; 32]),
    );
    batch.put(Key::table(2).u64(n + 1), Value::from(vec![2; 150]));
    batch.put(Key::table(1).u64(0x2_0000_0400).u64(n), Value::from(vec![3; 8]));
    batch.put(Key::table(2).u64(0), Value::from(n.to_le_bytes().to_vec()));
    batch.put(Key::table(9).u64(1), Value::from(n.to_le_bytes().to_vec()));
}

/// Commits `groups` groups of `creates` creates into a new store in `folder`.
///
/// # Errors
/// An error of the engine.
pub fn measure(folder: &Path, groups: u64, creates: u64) -> anyhow::Result<Bare> {
    let engine = LmdbEngine::open(folder, OpenOptions { create: true, ..OpenOptions::default() })?;
    let formats = Formats::new(|_| 1);
    let (mut took, mut used) = (Duration::ZERO, Duration::ZERO);
    for group in 0..groups {
        let mut batch = Batch::new();
        (0..creates).for_each(|n| create(&mut batch, group * creates + n));
        let records = batch.seal(&formats);
        let (start, before) = (Instant::now(), own_cpu());
        engine.commit(group + 1, &records)?;
        used += own_cpu().saturating_sub(before);
        took += start.elapsed();
    }
    drop(engine);
    std::fs::remove_dir_all(folder)?;
    let all = (groups * creates) as f64;
    Ok(Bare { creates_per_second: all / took.as_secs_f64(), cpu_us: used.as_secs_f64() * 1e6 / all })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_small_store_is_measured_and_gone() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("store");
        let bare = super::measure(&place, 2, 10).unwrap();
        assert!(bare.creates_per_second > 0.0 && bare.cpu_us > 0.0, "{bare:?}");
        assert!(!place.exists());
    }
}
