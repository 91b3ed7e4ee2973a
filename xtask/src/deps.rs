//! Programs that the machine needs besides the Rust toolchain, and their installation.
//!
//! A mount needs one program (`fusermount3`); the tests use a few more. Each step runs only if something is missing
//! and prints what it does. Tools written in Rust are installed in `target/tools`, never in the user's home.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, bail};
use xshell::{Shell, cmd};

use crate::target_directory;

/// A program and its Debian package.
struct Program {
    program: &'static str,
    package: &'static str,
    why: &'static str,
}

const PROGRAMS: &[Program] = &[
    Program { program: "fusermount3", package: "fuse3", why: "mounts without root" },
    Program { program: "cc", package: "build-essential", why: "compiles the embedded engine's C code" },
    Program { program: "git", package: "git", why: "tidy asks it for the tracked files; the tests clone with it" },
    Program { program: "tar", package: "tar", why: "the tests unpack trees with it" },
    Program { program: "fio", package: "fio", why: "the tests verify data with it" },
    Program { program: "setfattr", package: "attr", why: "the tests set extended attributes with it" },
    Program { program: "setfacl", package: "acl", why: "the tests set access lists with it" },
];

/// Programs that only the soak needs.
const SOAK_PROGRAMS: &[Program] = &[
    Program { program: "stress-ng", package: "stress-ng", why: "the soak runs its tests of file systems" },
    Program { program: "sqlite3", package: "sqlite3", why: "the soak keeps databases on mounts with it" },
    Program {
        program: "pg_ctlcluster",
        package: "postgresql",
        why: "the soak kills a server of it that works on a mount",
    },
];

/// A tool from its own crate, pinned.
struct Tool {
    program: &'static str,
    specification: &'static str,
    /// Its purpose.
    why: &'static str,
}

const TOOLS: &[Tool] = &[
    Tool { program: "pjdfstest", specification: "pjdfstest@0.2.2", why: "the POSIX suite" },
    Tool { program: "fsx", specification: "fsx@0.3.2", why: "random file operations, checked" },
    Tool { program: "cargo-deny", specification: "cargo-deny@0.20.2", why: "licences of the dependencies" },
    Tool { program: "cargo-machete", specification: "cargo-machete@0.9.2", why: "dependencies that nobody uses" },
];

/// Options for a fast build: tools are built once and run briefly.
const FAST_BUILD: &[(&str, &str)] = &[
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
];

/// Fails with what to do if a mount cannot work on this machine.
pub(crate) fn check_run_time(sh: &Shell) -> anyhow::Result<()> {
    // Root mounts without fusermount3.
    if !is_root(sh)? && !is_installed("fusermount3") {
        bail!("'fusermount3' is missing, which mounts the file system; install it: apt-get install fuse3");
    }
    if !PathBuf::from("/dev/fuse").exists() {
        bail!("/dev/fuse is missing; load the kernel module (modprobe fuse), or give the container that device");
    }
    Ok(())
}

/// Installs missing programs for building, mounting and testing.
pub(crate) fn install(sh: &Shell) -> anyhow::Result<()> {
    install_packages(sh, PROGRAMS)?;
    install_tools(sh)?;
    check_run_time(sh)
}

/// The same, plus programs that only the soak needs.
pub(crate) fn install_for_soak(sh: &Shell) -> anyhow::Result<()> {
    install(sh)?;
    install_packages(sh, SOAK_PROGRAMS)
}

fn install_packages(sh: &Shell, programs: &[Program]) -> anyhow::Result<()> {
    let missing: Vec<&Program> = programs.iter().filter(|entry| !is_installed(entry.program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for entry in &missing {
        eprintln!("missing: {} ({}), from the package {}", entry.program, entry.why, entry.package);
    }
    let packages: Vec<&str> = missing.iter().map(|entry| entry.package).collect();
    let by_hand = format!("apt-get install --no-install-recommends {}", packages.join(" "));
    if !is_installed("apt-get") {
        bail!("this machine has no apt-get: install with its own tool what Debian calls {}", packages.join(", "));
    }
    if !is_root(sh)? {
        bail!("only root can install packages; run as root: {by_hand}");
    }
    let _quiet = sh.push_env("DEBIAN_FRONTEND", "noninteractive");
    cmd!(sh, "apt-get update --quiet --quiet").run().context("the package lists could not be fetched")?;
    cmd!(sh, "apt-get install --yes --quiet --no-install-recommends {packages...}")
        .run()
        .with_context(|| format!("packages could not be installed; try by hand: {by_hand}"))
}

fn install_tools(sh: &Shell) -> anyhow::Result<()> {
    let bin = tools_directory().join("bin");
    for tool in TOOLS {
        if is_installed(tool.program) {
            continue;
        }
        eprintln!("missing: {} ({}); building it into {}", tool.program, tool.why, bin.display());
        let _fast: Vec<_> = FAST_BUILD.iter().map(|(name, value)| sh.push_env(name, value)).collect();
        let directory = tools_directory();
        let specification = tool.specification;
        cmd!(sh, "cargo install --quiet --locked --root {directory} {specification}")
            .run()
            .with_context(|| format!("'{}' could not be built; is the network there?", tool.program))?;
    }
    Ok(())
}

fn is_root(sh: &Shell) -> anyhow::Result<bool> {
    Ok(cmd!(sh, "id -u").quiet().read()? == "0")
}

/// Whether `program` is in the machine's search path or among our tools.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let tools = tools_directory().join("bin");
    std::env::split_paths(&path).chain([tools]).any(|directory| directory.join(program).is_file())
}

fn tools_directory() -> PathBuf {
    target_directory().join("tools")
}

/// The search path with our tools before the machine's.
pub(crate) fn path_with_tools() -> anyhow::Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let tools = tools_directory().join("bin");
    std::env::join_paths(std::iter::once(tools).chain(std::env::split_paths(&path)))
        .context("a folder in PATH has a ':' in its name")
}
