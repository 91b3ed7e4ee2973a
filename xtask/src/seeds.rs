//! The choice of the simulator's seeds: new ones with every change of the core, and the same ones when a run is repeated.
//!
//! The first seed is derived from the sources of the core crates. CI runs [`SMOKE`] seeds from there; the soak continues after
//! them, part by part, until [`SOAK`] have passed. `tests/soak.toml` keeps the parts; those of another core do not count.
//! Worked example: the sources hash to `9ae0c2d4`, so CI runs the seeds from `0x9ae0c2d4 << 20` on, and the first part of the
//! soak starts 3000 seeds later.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use xshell::{Shell, cmd};

use crate::root;
use crate::tidy::edges::CORE;

/// Seeds of `make test`.
pub(crate) const SMOKE: u64 = 3_000;
/// Seeds of the soak.
pub(crate) const SOAK: u64 = 100_000;
/// Seeds of one of its parts.
const PART: u64 = 5_000;
/// The number of seeds for one state of the core is 2 to this power.
const SPAN_BITS: u32 = 20;

const HEADER: &str = "\
# Parts of the long run of the simulator (`make soak`): so many seeds from `base` on passed at `commit`, in so many seconds.
# Only parts whose `core` is the hash of the core's sources now count.
";

/// One part that passed.
#[derive(Debug, Deserialize, Serialize)]
struct Part {
    core: String,
    commit: String,
    base: u64,
    count: u64,
    seconds: u64,
}

#[derive(Debug, Default, Deserialize, Serialize)]
struct Parts {
    #[serde(default)]
    part: Vec<Part>,
}

/// The hash of the core crates' sources: names and contents, in order.
fn core_hash() -> anyhow::Result<u32> {
    let mut files = Vec::new();
    for name in CORE {
        sources(&root().join("crates").join(name).join("src"), &mut files)?;
    }
    files.sort();
    files.iter().try_fold(0, |hash, path| {
        let name = path.strip_prefix(root())?.to_string_lossy();
        let content = std::fs::read(path).with_context(|| format!("cannot read '{}'", path.display()))?;
        Ok(crc32c::crc32c_append(crc32c::crc32c_append(hash, name.as_bytes()), &content))
    })
}

fn sources(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read '{}'", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

fn base(core: u32) -> u64 {
    u64::from(core) << SPAN_BITS
}

/// The first seed of CI.
pub(crate) fn smoke_base() -> anyhow::Result<u64> {
    Ok(base(core_hash()?))
}

fn place() -> PathBuf {
    root().join("tests/soak.toml")
}

fn read() -> anyhow::Result<Parts> {
    let text = std::fs::read_to_string(place()).with_context(|| format!("cannot read '{}'", place().display()))?;
    toml::from_str(&text).with_context(|| format!("'{}' is wrong", place().display()))
}

/// Runs parts until enough seeds have passed or the time is over, and records each. Prints the coverage of each part, per 1000 seeds.
///
/// # Errors
/// A seed failed, no seed of this run reached some mark, or the sources changed in the meantime.
pub(crate) fn soak(sh: &Shell, adamant: &Path, limit: Duration) -> anyhow::Result<()> {
    let (start, core) = (Instant::now(), core_hash()?);
    let name = format!("{core:08x}");
    let mut parts = read()?;
    // Marks that no part of this run has reached.
    let mut never: Option<BTreeSet<String>> = None;
    loop {
        let done: u64 = parts.part.iter().filter(|part| part.core == name).map(|part| part.count).sum();
        eprintln!("{done} of {SOAK} seeds have passed with the core as it is ({name})");
        let over = start.elapsed() >= limit;
        if done >= SOAK || over {
            if over && done < SOAK {
                eprintln!("the time is over: the next soak goes on from there");
            }
            // Code that is never reached is not tested, however many seeds pass.
            let never: Vec<String> = never.unwrap_or_default().into_iter().collect();
            ensure!(never.is_empty(), "no seed has reached {}", never.join(", "));
            return Ok(());
        }
        let (first, count) = ((base(core) + SMOKE + done).to_string(), PART.min(SOAK - done).to_string());
        let began = Instant::now();
        let output = cmd!(sh, "{adamant} sim --first {first} --runs {count} --coverage").ignore_status().output()?;
        let told = String::from_utf8_lossy(&output.stdout);
        println!("{told}");
        let of_part = missed(&told);
        ensure!(output.status.success() || !of_part.is_empty(), "a seed failed");
        never = Some(match never {
            None => of_part,
            Some(before) => before.intersection(&of_part).cloned().collect(),
        });
        ensure!(core_hash()? == core, "the core's sources were changed while its seeds ran: run it again");
        let commit = cmd!(sh, "git rev-parse --short=12 HEAD").read()?;
        let [base, count] = [&first, &count].map(|number| number.parse());
        parts.part.push(Part {
            core: name.clone(),
            commit,
            base: base?,
            count: count?,
            seconds: began.elapsed().as_secs(),
        });
        let text = toml::to_string(&parts).context("the parts cannot be written down")?;
        if let Err(error) = std::fs::write(place(), format!("{HEADER}\n{text}")) {
            bail!("cannot write '{}': {error}", place().display());
        }
    }
}

/// The marks that no seed has reached, from the simulator's output.
fn missed(told: &str) -> BTreeSet<String> {
    let list = told.lines().find_map(|line| line.strip_prefix("FAILED. No seed has reached "));
    list.iter().flat_map(|list| list.split(", ")).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_marks_are_told_from_failed_seeds() {
        assert_eq!(missed("x\nFAILED. No seed has reached a.b, c\n"), ["a.b", "c"].map(String::from).into());
        assert!(missed("FAILED. See it again with: adamant sim --seed 7\n0 passed, 1 failed\n").is_empty());
    }

    #[test]
    fn another_core_has_other_seeds() {
        assert!(base(7) + SMOKE + SOAK < base(8));
        assert!(base(u32::MAX) < u64::MAX - SMOKE - SOAK);
    }

    #[test]
    fn the_parts_that_are_kept_can_be_read() {
        let parts = read().unwrap();
        assert!(parts.part.iter().all(|part| part.count > 0 && part.core.len() == 8));
    }
}
