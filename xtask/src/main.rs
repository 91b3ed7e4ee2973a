//! The entry point to checks, tests and tools: `cargo xtask ci|test|tidy|sim|soak|mutants|bench|compat|results|docs|deps`.
//!
//! The README's commands, `.ci/run` and people use the same subcommands. [`steps`] has the steps of CI, [`tidy`] the rules for the
//! sources, [`deps`] the requirements on the machine, [`compat`] the older versions that tests run as peers, [`seeds`] the choice of the
//! simulator's seeds, and [`mutants`] the planted faults.

mod compat;
mod deps;
mod mutants;
mod numbered;
mod seeds;
mod steps;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xshell::{Shell, cmd};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Builds, checks and measures Adamant", arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Everything that CI runs, in order, up to the first failure
    Ci(steps::Selection),
    /// Unit tests, the simulator's smoke run and canary, the tests with real processes
    Test,
    /// Rules that the compiler does not check: dependency edges, module documentation, words, links
    Tidy,
    /// Builds `adamant` for release and runs `adamant sim` with the arguments that follow
    #[command(disable_help_flag = true)]
    Sim {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// The tests that take longer than two minutes: long simulation, the ignored tests with real processes
    Soak {
        /// The time limit for seeds of the simulator; the next soak continues from there
        #[arg(long, default_value_t = 60)]
        minutes: u32,
    },
    /// Plants realistic faults, one at a time, finds the test that catches each, and writes the guide's page of them
    Mutants(mutants::Arguments),
    /// Builds `adamant` for release and runs `adamant bench` with the arguments that follow (without any: all experiments, and a page of them)
    #[command(disable_help_flag = true)]
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Builds the older versions that the tests with real processes run as peers, and prints where they are
    Compat,
    /// Runs the tests by Lustre's numbers, and writes the guide's page of their results
    Results,
    /// Builds the API documentation without warnings and, if mdbook is installed, the user's guide
    Docs,
    /// Installs missing packages and tools on this machine (Debian 12 and later), and prints what it does
    Deps {
        /// Only checks the requirements of a mount, not those of the tests; installs nothing
        #[arg(long)]
        run_only: bool,
    },
}

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    match run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    let sh = Shell::new()?;
    sh.change_dir(root());
    match command {
        Command::Ci(selection) => steps::ci(&sh, &selection),
        Command::Test => steps::run(&sh, &["unit", "build", "sim", "canary", "compat", "e2e"]),
        Command::Tidy => tidy::run(&sh),
        Command::Sim { arguments } => {
            Ok(cmd!(sh, "cargo run --release --package adamant -- sim {arguments...}").run()?)
        }
        Command::Soak { minutes } => steps::soak(&sh, minutes),
        Command::Mutants(arguments) => mutants::run(&sh, &arguments),
        Command::Bench { arguments } => {
            if !arguments.is_empty() {
                return Ok(cmd!(sh, "cargo run --release --package adamant -- bench {arguments...}").run()?);
            }
            let out = target_directory().join("bench");
            // `slots` looks for version 0.1.0 next to the program.
            compat::build(&sh, compat::Which::All)?;
            for suite in ["ceiling", "native", "smallfile", "meta", "mdts", "slots", "recovery"] {
                cmd!(sh, "cargo run --release --package adamant -- bench {suite} --out {out}").run()?;
            }
            Ok(cmd!(sh, "cargo run --release --package adamant -- bench report --out {out}").run()?)
        }
        Command::Compat => {
            println!("{}", compat::build(&sh, compat::Which::All)?.display());
            Ok(())
        }
        Command::Results => steps::results(&sh),
        Command::Docs => steps::run(&sh, &["rustdoc", "book"]),
        Command::Deps { run_only: true } => deps::check_run_time(&sh),
        Command::Deps { run_only: false } => deps::install(&sh),
    }
}

/// The root of the checkout: the parent of this crate's folder.
fn root() -> PathBuf {
    let mut path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.pop();
    path
}

/// Cargo's target directory, as an absolute path.
fn target_directory() -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    root().join(named)
}
