//! `adamant sim`: the simulated cluster.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use crate::output::{self, say};

/// Run the simulated cluster; prints the command that repeats a failure
///
/// Example: adamant sim --runs 1000
#[derive(Args)]
pub(crate) struct Arguments {
    /// Run this seed only; with a scenario that is a world, that world with this seed
    #[arg(long)]
    pub seed: Option<u64>,
    /// Number of seeds
    #[arg(long, default_value_t = 100)]
    pub runs: u64,
    /// The first seed; random if not given
    #[arg(long)]
    pub first: Option<u64>,
    /// Stop after this many minutes
    #[arg(long)]
    pub minutes: Option<u64>,
    /// Fail if the time is over before all seeds have run
    #[arg(long, requires = "minutes")]
    pub complete: bool,
    /// Number of seeds that run at once; by default the number of processors
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,
    /// Print at the end which operations and coverage marks the seeds reached; fail if they missed one
    #[arg(long)]
    pub coverage: bool,
    /// Named scenario; 'list' lists them, 'canary' must fail
    #[arg(long)]
    pub scenario: Option<String>,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let settings = sim::Settings {
        seed: arguments.seed,
        runs: arguments.runs,
        scenario: arguments.scenario,
        first_seed: arguments.first.unwrap_or_else(|| host::clock::seed() >> 16),
        jobs: arguments.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)),
        coverage: arguments.coverage,
    };
    let start = Instant::now();
    let too_long = || arguments.minutes.is_some_and(|minutes| start.elapsed() > Duration::from_secs(minutes * 60));
    let mut stop = || too_long() || output::is_unread();
    let outcome = sim::run(&settings, &mut |line| say!("{line}"), &mut stop);
    let many = settings.seed.is_none() && settings.scenario.is_none();
    if many {
        let seconds = start.elapsed().as_secs_f64();
        let rate = outcome.done as f64 / seconds;
        say!("{} seeds in {seconds:.0} s: {rate:.1} a second, {} at once", outcome.done, settings.jobs);
    }
    let is_short = many && arguments.complete && outcome.done < arguments.runs;
    if outcome.fine && is_short {
        say!("FAILED. The time was over when {} of {} seeds had run", outcome.done, arguments.runs);
    }
    Ok(if outcome.fine && !is_short { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
