//! Older versions of the program, built from this repository's history, as peers of the tests with real processes.
//!
//! `tests/compat/versions.toml` lists them. Each is checked out of git at its commit, built in a folder of its own
//! (sharing nothing with this version's build) with little optimisation, and kept as
//! `target/compat/COMMIT/adamant-VERSION` until `cargo clean`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use serde::Deserialize;
use xshell::{Shell, cmd};

use crate::{root, target_directory};

/// An older version that tests run as a peer.
#[derive(Debug, Deserialize)]
struct Version {
    name: String,
    /// The full hash, under which the built program is kept.
    commit: String,
}

#[derive(Debug, Deserialize)]
struct Versions {
    version: Vec<Version>,
}

/// Options for a fast build: these programs are built once and run briefly.
const FAST_BUILD: &[(&str, &str)] = &[
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
    ("CARGO_PROFILE_RELEASE_INCREMENTAL", "false"),
];

/// Which older versions are built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Which {
    /// The newest one, for the tests of every change.
    Newest,
    /// All, for the long tests.
    All,
}

/// The file beside the programs that names those which have to be there, one per line.
const BUILT: &str = "built";

/// Builds the missing versions. Returns the folder with the programs, `adamant-0.1.0` and so on. A version that need not be built
/// is in the folder if it was built before.
pub(crate) fn build(sh: &Shell, which: Which) -> anyhow::Result<PathBuf> {
    let folder = target_directory().join("compat");
    let bin = folder.join("bin");
    std::fs::create_dir_all(&bin)?;
    let versions = listed()?;
    let needed = &versions[if which == Which::All { 0 } else { versions.len().saturating_sub(1) }..];
    let names: String = needed.iter().map(|version| format!("{}\n", version.name)).collect();
    std::fs::write(bin.join(BUILT), names)?;
    for version in &versions {
        let kept = folder.join(format!("{}-{}", version.name, version.commit)).join("adamant");
        if !kept.is_file() && needed.iter().any(|needed| needed.name == version.name) {
            build_one(sh, version, &folder, &kept)
                .with_context(|| format!("version {} could not be built as a peer of the tests", version.name))?;
        }
        let link = bin.join(format!("adamant-{}", version.name));
        // It may have been built from another commit before.
        let _ = std::fs::remove_file(&link);
        if kept.is_file() {
            std::os::unix::fs::symlink(&kept, &link)?;
        }
    }
    Ok(bin)
}

fn listed() -> anyhow::Result<Vec<Version>> {
    let path = root().join("tests/compat/versions.toml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read '{}'", path.display()))?;
    let versions: Versions = toml::from_str(&text).with_context(|| format!("'{}' is wrong", path.display()))?;
    Ok(versions.version)
}

/// Builds in scratch folders, which are removed; the program is moved to its place when it is complete.
fn build_one(sh: &Shell, version: &Version, folder: &Path, kept: &Path) -> anyhow::Result<()> {
    check_history(sh, version)?;
    let Version { name, commit } = version;
    eprintln!("building version {name} ({}), once: this takes some minutes", &commit[..commit.len().min(12)]);
    let start = Instant::now();
    let scratch = folder.join(format!("build-{name}"));
    let (source, made) = (scratch.join("source"), scratch.join("target"));
    let _ = std::fs::remove_dir_all(&source);
    std::fs::create_dir_all(&source)?;
    let archive = scratch.join("source.tar");
    cmd!(sh, "git archive --output {archive} {commit}").run()?;
    cmd!(sh, "tar --extract --file {archive} --directory {source}").run()?;
    {
        let _fast: Vec<_> = FAST_BUILD.iter().map(|(name, value)| sh.push_env(name, value)).collect();
        let _target = sh.push_env("CARGO_TARGET_DIR", &made);
        let _there = sh.push_dir(&source);
        cmd!(sh, "cargo build --release --package adamant --locked --quiet").run()?;
    }
    let parent = kept.parent().context("a folder")?;
    std::fs::create_dir_all(parent)?;
    std::fs::rename(made.join("release/adamant"), kept)?;
    std::fs::remove_dir_all(&scratch)?;
    eprintln!("built version {name} in {:.0?}: {}", start.elapsed(), kept.display());
    Ok(())
}

/// Fails with what to do if the commit is not in this checkout.
fn check_history(sh: &Shell, version: &Version) -> anyhow::Result<()> {
    let object = format!("{}^{{commit}}", version.commit);
    if cmd!(sh, "git cat-file -e {object}").quiet().ignore_stderr().run().is_ok() {
        return Ok(());
    }
    let commit = &version.commit;
    match cmd!(sh, "git rev-parse --is-shallow-repository").quiet().ignore_stderr().read() {
        Ok(answer) if answer.trim() == "true" => bail!(
            "its commit {commit} is not in this shallow clone: fetch the history with `git fetch --unshallow` \
             (and clone with full history in CI)"
        ),
        Ok(_) => bail!(
            "its commit {commit} is not in this repository: fetch the main branch (`git fetch origin main`), or \
             correct tests/compat/versions.toml"
        ),
        Err(_) => bail!("this folder is no git checkout, and older versions are built from its history: clone it"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn versions_are_named_by_whole_commits_and_once() {
        let versions = super::listed().unwrap();
        assert!(!versions.is_empty());
        for (at, version) in versions.iter().enumerate() {
            let whole = version.commit.len() == 40 && version.commit.bytes().all(|byte| byte.is_ascii_hexdigit());
            assert!(whole, "{version:?}");
            assert!(versions[..at].iter().all(|other| other.name != version.name), "{version:?}");
        }
    }
}
