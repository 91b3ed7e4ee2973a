//! The steps of CI, in order.
//!
//! A step prints its name before it starts and its time when it ends; the first failure stops the run with one line
//! that says how to continue from there. Test output is not captured, so that the runner's own `test result:` lines are visible.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use xshell::{Shell, cmd};

use crate::{compat, deps, root, seeds, target_directory, tidy};

/// The steps to run.
#[derive(Args)]
pub(crate) struct Selection {
    /// Starts with this step (after a failure, to skip the steps that passed)
    #[arg(long, value_name = "STEP", conflicts_with = "only")]
    from: Option<String>,
    /// Runs only this step
    #[arg(long, value_name = "STEP")]
    only: Option<String>,
    /// Prints the steps and runs none
    #[arg(long)]
    list: bool,
}

struct Step {
    name: &'static str,
    about: &'static str,
    run: fn(&Shell) -> anyhow::Result<()>,
}

const STEPS: &[Step] = &[
    Step { name: "deps", about: "what the tests need is installed", run: deps::install },
    Step { name: "fmt", about: "sources are formatted", run: fmt },
    Step { name: "tidy", about: "edges, module documentation, words, links", run: tidy::run },
    Step { name: "clippy", about: "no warnings", run: clippy },
    Step { name: "licences", about: "licences and sources of the dependencies, and that each is used", run: licences },
    Step { name: "rustdoc", about: "API documentation without warnings", run: rustdoc },
    Step { name: "build", about: "the release binary", run: build },
    Step { name: "unit", about: "tests of every crate but e2e", run: unit },
    Step {
        name: "sim",
        about: "the simulated cluster: seeds that are new with every change of the core",
        run: simulator_smoke,
    },
    Step { name: "canary", about: "the simulator finds a planted fault", run: simulator_canary },
    Step {
        name: "compat",
        about: "the newest older version, built once, as a peer of the tests with real processes",
        run: older,
    },
    Step { name: "e2e", about: "real processes, real mounts", run: e2e },
    Step { name: "book", about: "the user's guide", run: book },
];

/// Runs all steps, or those that are selected.
pub(crate) fn ci(sh: &Shell, selection: &Selection) -> anyhow::Result<()> {
    if selection.list {
        for step in STEPS {
            println!("{:<10} {}", step.name, step.about);
        }
        return Ok(());
    }
    let position = |name: &String| {
        STEPS.iter().position(|step| step.name == name).with_context(|| {
            let names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
            format!("there is no step '{name}'; the steps are {}", names.join(", "))
        })
    };
    let chosen = match (&selection.from, &selection.only) {
        (Some(name), _) => &STEPS[position(name)?..],
        (None, Some(name)) => {
            let index = position(name)?;
            &STEPS[index..=index]
        }
        (None, None) => STEPS,
    };
    run_all(sh, chosen.iter())
}

/// Runs the named steps, in the given order.
pub(crate) fn run(sh: &Shell, names: &[&str]) -> anyhow::Result<()> {
    run_all(sh, names.iter().filter_map(|name| STEPS.iter().find(|step| step.name == *name)))
}

fn run_all<'a>(sh: &Shell, steps: impl Iterator<Item = &'a Step>) -> anyhow::Result<()> {
    let mut times: Vec<(&str, Duration)> = Vec::new();
    for step in steps {
        eprintln!("\n=== {}: {}", step.name, step.about);
        let start = Instant::now();
        let outcome = (step.run)(sh);
        let took = start.elapsed();
        if let Err(error) = outcome {
            bail!(
                "step '{name}' FAILED after {took:.1?}: {error:#}\n       \
                 repeat it with: cargo xtask ci --only {name}    go on with: cargo xtask ci --from {name}",
                name = step.name
            );
        }
        eprintln!("=== {}: passed in {took:.1?}", step.name);
        times.push((step.name, took));
    }
    let total: Duration = times.iter().map(|(_, took)| *took).sum();
    eprintln!("\nstep           seconds");
    for (name, took) in &times {
        eprintln!("{name:<12} {:>9.1}", took.as_secs_f64());
    }
    eprintln!("{:<12} {:>9.1}", "all passed", total.as_secs_f64());
    Ok(())
}

fn fmt(sh: &Shell) -> anyhow::Result<()> {
    cmd!(sh, "cargo fmt --all --check").run().context("run `cargo fmt --all`")
}

fn clippy(sh: &Shell) -> anyhow::Result<()> {
    Ok(cmd!(sh, "cargo clippy --workspace --all-targets --locked -- -D warnings").run()?)
}

fn licences(sh: &Shell) -> anyhow::Result<()> {
    cmd!(sh, "cargo fetch --locked --quiet").run()?;
    let _path = sh.push_env("PATH", deps::path_with_tools()?);
    cmd!(sh, "cargo deny --locked --offline check --hide-inclusion-graph licenses bans sources").run()?;
    Ok(cmd!(sh, "cargo-machete crates xtask fuzz").run()?)
}

fn rustdoc(sh: &Shell) -> anyhow::Result<()> {
    let _flags = sh.push_env("RUSTDOCFLAGS", "-D warnings");
    Ok(cmd!(sh, "cargo doc --workspace --no-deps --document-private-items --locked").run()?)
}

fn build(sh: &Shell) -> anyhow::Result<()> {
    Ok(cmd!(sh, "cargo build --release --package adamant --locked").run()?)
}

fn unit(sh: &Shell) -> anyhow::Result<()> {
    Ok(cmd!(sh, "cargo test --workspace --exclude e2e --locked --no-fail-fast").run()?)
}

/// The binary under test, brought up to date first because a step may run alone.
fn adamant(sh: &Shell) -> anyhow::Result<OsString> {
    cmd!(sh, "cargo build --release --package adamant --locked --quiet").run()?;
    Ok(target_directory().join("release/adamant").into_os_string())
}

fn simulator_smoke(sh: &Shell) -> anyhow::Result<()> {
    let adamant = adamant(sh)?;
    let (first, runs) = (seeds::smoke_base()?.to_string(), seeds::SMOKE.to_string());
    Ok(cmd!(sh, "{adamant} sim --first {first} --runs {runs} --minutes 15 --complete").run()?)
}

/// A run with a planted fault must fail; otherwise the oracles are broken.
fn simulator_canary(sh: &Shell) -> anyhow::Result<()> {
    let adamant = adamant(sh)?;
    let status = cmd!(sh, "{adamant} sim --scenario canary").ignore_status().output()?.status;
    match status.code() {
        Some(1) => Ok(()),
        Some(0) => bail!("the canary passed: the simulator did not notice the planted fault"),
        _ => bail!("the canary ended with {status}, not with the exit status 1 of a failed check"),
    }
}

fn older(sh: &Shell) -> anyhow::Result<()> {
    compat::build(sh, compat::Which::Newest).map(|_| ())
}

fn e2e(sh: &Shell) -> anyhow::Result<()> {
    real_processes(sh, compat::Which::Newest, &["--test-threads=1"])
}

/// Fails without root or FUSE, where nearly all of these tests would be skipped and count as passed.
fn may_mount(sh: &Shell) -> anyhow::Result<()> {
    let uid = cmd!(sh, "id -u").quiet().read()?;
    ensure!(
        uid == "0",
        "these tests mount and act as several users, which needs root; run it as root, or leave this step out"
    );
    ensure!(sh.path_exists("/dev/fuse"), "these tests mount, which needs /dev/fuse: load the kernel's module fuse");
    Ok(())
}

/// Suites that run once more with four metadata targets, and each directory striped over two of them.
const STRIPED_SUITES: [&str; 4] = ["posix", "coherence", "write_back", "kills"];

fn real_processes(sh: &Shell, older: compat::Which, runner_arguments: &[&str]) -> anyhow::Result<()> {
    may_mount(sh)?;
    let _strict = sh.push_env(crate::numbered::STRICT, "1");
    let _binary = sh.push_env("ADAMANT", adamant(sh)?);
    let _older = sh.push_env("ADAMANT_COMPAT", compat::build(sh, older)?);
    let _path = sh.push_env("PATH", deps::path_with_tools()?);
    cmd!(sh, "cargo test --package e2e --release --locked --no-fail-fast -- {runner_arguments...}").run()?;
    let _striped = sh.push_env("ADAMANT_E2E_STRIPED", "1");
    let suites = STRIPED_SUITES.iter().flat_map(|suite| ["--test", suite]);
    cmd!(
        sh,
        "cargo test --package e2e --release --locked --no-fail-fast {suites...} -- {runner_arguments...} --skip fio_"
    )
    .run()?;
    Ok(())
}

/// Builds the guide if mdbook is installed; building and testing do not need it.
fn book(sh: &Shell) -> anyhow::Result<()> {
    if !deps::is_installed("mdbook") {
        eprintln!("mdbook is not installed: the guide is checked by tidy (chapters, titles, links) but not rendered");
        return Ok(());
    }
    let book = root().join("docs");
    let _path = sh.push_env("PATH", deps::path_with_tools()?);
    Ok(cmd!(sh, "mdbook build {book}").run()?)
}

/// Runs the tests by number and writes their page.
pub(crate) fn results(sh: &Shell) -> anyhow::Result<()> {
    may_mount(sh)?;
    let binary = adamant(sh)?;
    crate::numbered::results(sh, &binary)
}

/// Runs the tests that take longer than two minutes.
pub(crate) fn soak(sh: &Shell, minutes: u32) -> anyhow::Result<()> {
    deps::install_for_soak(sh)?;
    let binary = adamant(sh)?;
    seeds::soak(sh, binary.as_ref(), Duration::from_secs(u64::from(minutes) * 60))?;
    // Every story, with the fault at every step.
    cmd!(sh, "{binary} sim --scenario all").run()?;
    // The long searches over the tables of changes over several metadata targets: minutes, and 2 GiB.
    cmd!(sh, "cargo test --package target --release --locked --lib cross -- --ignored --test-threads=2").run()?;
    real_processes(sh, compat::Which::All, &["--test-threads=1", "--include-ignored"])
}
