//! `adamant sim`: the simulated cluster.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use crate::output::{self, say};

/// Run the simulated cluster; prints the command that repeats a failure
///
/// Example: adamant sim --runs 1000
#[derive(Args)]
pub struct Arguments {
    /// Run this seed only
    #[arg(long)]
    pub seed: Option<u64>,
    /// How many seeds
    #[arg(long, default_value_t = 100)]
    pub runs: u64,
    /// The first of them; at random if it is not given
    #[arg(long)]
    pub first: Option<u64>,
    /// Stop after this many minutes
    #[arg(long)]
    pub minutes: Option<u64>,
    /// Say at the end which operations and which marked places the seeds reached, and which they did not
    #[arg(long)]
    pub coverage: bool,
    /// A named scenario; 'list' lists them, 'canary' must fail
    #[arg(long)]
    pub scenario: Option<String>,
}

/// Runs the command.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let settings = sim::Settings {
        seed: arguments.seed,
        runs: arguments.runs,
        scenario: arguments.scenario,
        first_seed: arguments.first.unwrap_or_else(|| host::clock::seed() >> 16),
        coverage: arguments.coverage,
    };
    let start = Instant::now();
    let too_long = || arguments.minutes.is_some_and(|minutes| start.elapsed() > Duration::from_secs(minutes * 60));
    let mut stop = || too_long() || output::is_unread();
    let fine = sim::run(&settings, &mut |line| say!("{line}"), &mut stop);
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
