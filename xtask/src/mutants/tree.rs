//! The copied sources with all mutants built in, and the binaries built from them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde_json::Value;
use xshell::{Shell, cmd};

use super::table::{FOLDER, Mutant, apply, by_file};
use crate::tidy::edges::CORE;
use crate::{root, target_directory};

/// A build profile nearly as fast as the release, and much faster to build.
const PROFILE: &str =
    "\n[profile.mutants]\ninherits = \"release\"\nlto = false\ncodegen-units = 16\nincremental = true\n";

/// Additional files of the copy: from, to.
const ADDED: &[(&str, &str)] =
    &[("switch.rs", "crates/stdx/src/mutants.rs"), ("runner.rs", "crates/sim/examples/mutants.rs")];

/// A test binary.
pub(super) struct Tests {
    /// The crate, and the file of a test beside it.
    pub name: String,
    pub binary: PathBuf,
    /// Its working directory.
    pub folder: PathBuf,
}

impl Tests {
    pub(super) fn crate_name(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }
}

/// The folder of the copied sources and binaries.
pub(super) fn folder() -> PathBuf {
    target_directory().join("mutants")
}

/// Brings the copy up to date. Unchanged files are not written, so that cargo builds only what has changed.
pub(super) fn write(sh: &Shell, mutants: &[Mutant]) -> anyhow::Result<()> {
    let names = cmd!(sh, "git ls-files --cached --others --exclude-standard -z").quiet().read()?;
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for name in names.split('\0').filter(|name| !name.is_empty()) {
        if let Ok(bytes) = std::fs::read(root().join(name)) {
            files.insert(name.to_owned(), bytes);
        }
    }
    for (path, mutants) in by_file(mutants) {
        let bytes = files.get_mut(path).with_context(|| format!("there is no file {path}"))?;
        let text = apply(std::str::from_utf8(bytes)?, &mutants).with_context(|| path.to_owned())?;
        *bytes = text.into_bytes();
    }
    for (from, to) in ADDED {
        let bytes = files.get(&format!("{FOLDER}{from}")).with_context(|| format!("{FOLDER}{from} is missing"))?;
        files.insert((*to).to_owned(), bytes.clone());
    }
    for (path, more) in [("Cargo.toml", PROFILE), ("crates/stdx/src/lib.rs", "\npub mod mutants;\n")] {
        files.get_mut(path).with_context(|| format!("there is no file {path}"))?.extend_from_slice(more.as_bytes());
    }
    let tree = folder().join("tree");
    remove_others(&tree, &tree, &files)?;
    for (name, bytes) in &files {
        let path = tree.join(name);
        if std::fs::read(&path).is_ok_and(|there| there == *bytes) {
            continue;
        }
        std::fs::create_dir_all(path.parent().context("a file is in a folder")?)?;
        std::fs::write(&path, bytes)?;
    }
    Ok(())
}

/// Removes files of an earlier state.
fn remove_others(tree: &Path, folder: &Path, files: &BTreeMap<String, Vec<u8>>) -> anyhow::Result<()> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(tree, &path, files)?;
        } else if !files.contains_key(path.strip_prefix(tree)?.to_str().unwrap_or_default()) {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Builds the runner of seeds and stories, and returns its path.
pub(super) fn build_runner(sh: &Shell) -> anyhow::Result<PathBuf> {
    let built = cargo(sh, &["build", "--profile", "mutants", "--package", "sim", "--example", "mutants"])?;
    let [runner] = &built[..] else { anyhow::bail!("cargo built no runner") };
    Ok(runner.binary.clone())
}

/// Builds the unit tests of the core, and the scripts.
pub(super) fn build_tests(sh: &Shell) -> anyhow::Result<Vec<Tests>> {
    let packages = CORE.iter().chain(&["testkit"]).flat_map(|name| ["--package", name]);
    let tests = cargo(sh, &["test", "--no-run"].into_iter().chain(packages).collect::<Vec<_>>())?;
    ensure!(!tests.is_empty(), "cargo built no tests");
    Ok(tests)
}

fn cargo(sh: &Shell, arguments: &[&str]) -> anyhow::Result<Vec<Tests>> {
    let _folder = sh.push_dir(folder().join("tree"));
    let _target = sh.push_env("CARGO_TARGET_DIR", folder().join("build"));
    // Mutants leave things unused, and warnings about that do not matter here.
    let _flags = sh.push_env("RUSTFLAGS", "--cap-lints allow");
    let told = cmd!(sh, "cargo {arguments...} --locked --message-format json-render-diagnostics").read()?;
    let mut built = Vec::new();
    for line in told.lines() {
        let value: Value = serde_json::from_str(line)?;
        let Some(binary) = value["executable"].as_str() else { continue };
        let manifest = Path::new(value["manifest_path"].as_str().context("an artefact has a manifest")?);
        let folder = manifest.parent().context("a manifest is in a folder")?.to_owned();
        let package = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let target = value["target"]["name"].as_str().unwrap_or_default();
        let name = if target == package { package.to_owned() } else { format!("{package}/{target}") };
        built.push(Tests { name, binary: binary.into(), folder });
    }
    Ok(built)
}
