//! `adamant bench`: benchmarks with their yardsticks.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use bench::guardian::Guardian;
use bench::results::Results;
use bench::run::{Progress, Run};
use bench::suites::{ceiling, mdts, meta, millions, native, recovery, slots, smallfile};
use clap::{Args, Subcommand};

use crate::output::say;
use crate::{daemon, output};

/// Run benchmarks; each figure stands beside its yardsticks from the same run
///
/// Example: adamant bench ceiling --quick --out results && adamant bench report --out results
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// One program on a mount over loopback TCP, beside the limits of the kernel, the network and the engine
    ///
    /// Example: adamant bench ceiling --quick
    Ceiling {
        #[command(flatten)]
        common: Common,
        /// Files in each phase
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
        files: Option<u64>,
        /// Size of the large file in MiB
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
        mib: Option<u64>,
    },
    /// Small files by size, each process in a directory of its own or all in one
    ///
    /// Example: adamant bench smallfile --sizes 0,4,64 --processes 4
    Smallfile {
        #[command(flatten)]
        common: Common,
        /// Files in each phase, over all processes
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
        files: Option<u64>,
        /// Number of processes
        #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1024))]
        processes: u64,
        /// Sizes of the files in KiB
        #[arg(long, value_name = "KIB,…", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(..=1_048_576))]
        sizes: Vec<u64>,
    },
    /// Files and directories by number of processes, through one mount and many
    ///
    /// Example: adamant bench meta --processes 1,2,4,8 --mounts 8
    Meta {
        #[command(flatten)]
        common: Common,
        /// Files in each phase, over all processes
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
        files: Option<u64>,
        /// Numbers of processes
        #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=1024))]
        processes: Vec<u64>,
        /// Number of mounts where there are several
        #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=256))]
        mounts: u64,
    },
    /// Several metadata targets: rates and processor time by their number, changes over two of them; needs root
    ///
    /// Example: adamant bench mdts --quick --out results
    Mdts {
        #[command(flatten)]
        common: Common,
        /// Files in each phase, over all clients
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(16..=10_000_000))]
        files: Option<u64>,
        /// Numbers of metadata targets
        #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 2, 4, 8],
              value_parser = clap::value_parser!(u32).range(1..=64))]
        mdts: Vec<u32>,
    },
    /// The pause that programs see when the metadata server is killed and restarted
    ///
    /// Example: adamant bench recovery --files 0,100000 --uncommitted 0,10000
    Recovery {
        #[command(flatten)]
        common: Common,
        /// Numbers of existing files, rising
        #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(..=100_000_000))]
        files: Vec<u64>,
        /// Numbers of creates that are answered but not on disk when the server is killed
        #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(..=10_000_000))]
        uncommitted: Vec<u64>,
    },
    /// Millions of files: disk, memory, listing, restart, each beside its goal
    ///
    /// Example: adamant bench millions --files 10000000 --out results
    Millions {
        #[command(flatten)]
        common: Common,
        /// Number of files; from a million on, one directory has exactly a million
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
        files: Option<u64>,
        /// Number of clients that create them, each a process without a mount
        #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
        clients: u64,
    },
    /// Creates by the client library, without a mount
    ///
    /// Example: adamant bench native --before 1000000 --files 100000
    Native {
        #[command(flatten)]
        common: Common,
        /// Files in each measurement
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
        files: Option<u64>,
        /// Number of files that exist beforehand
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=1_000_000_000))]
        before: Option<u64>,
    },
    /// One client with an increasing number of changes in flight, with and without added latency, beside version 0.1.0
    ///
    /// Example: adamant bench slots --quick --older target/compat/bin/adamant-0.1.0
    Slots {
        #[command(flatten)]
        common: Common,
        /// Files in each phase, over all processes
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
        files: Option<u64>,
        /// Number of processes
        #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=1024))]
        processes: u64,
        /// Numbers of changes in flight
        #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32],
              value_parser = clap::value_parser!(u16).range(1..=511))]
        slots: Vec<u16>,
        /// Program of version 0.1.0, as `cargo xtask compat` builds it
        #[arg(long, value_name = "FILE")]
        older: Option<PathBuf>,
    },
    /// Write one HTML page with all figures and charts of a directory
    ///
    /// Example: adamant bench report --out results
    Report {
        /// Directory of the figures, and of the page
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// The server of the echo
    #[command(hide = true)]
    EchoServer,
    /// A worker process
    #[command(hide = true)]
    Worker,
    /// The process that cleans up after a run that was killed
    #[command(hide = true)]
    Guardian,
}

#[derive(Args)]
struct Common {
    /// Take less than a minute (mdts: some minutes): fewer files and rounds
    #[arg(long)]
    quick: bool,
    /// Number of rounds; the median over them counts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: Option<u64>,
    /// Directory for figures (JSON) and charts (SVG)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Directory for the file systems under test during the run
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    scratch: PathBuf,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

impl Common {
    fn rounds(&self, quick: usize, full: usize) -> usize {
        self.rounds.map_or(if self.quick { quick } else { full }, |rounds| rounds as usize)
    }
}

fn or(given: Vec<u64>, quick: bool, short: &[u64], full: &[u64]) -> Vec<u64> {
    match given {
        given if !given.is_empty() => given,
        _ if quick => short.to_vec(),
        _ => full.to_vec(),
    }
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.command {
        Command::EchoServer => {
            bench::echo::serve()?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Worker => {
            bench::load::work(std::io::stdin().lock(), std::io::stdout().lock())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Guardian => {
            let run = std::os::unix::process::parent_id();
            bench::guardian::guard(std::io::BufReader::new(std::io::stdin()), Some(run));
            Ok(ExitCode::SUCCESS)
        }
        Command::Slots { common, files, processes, mut slots, older } => {
            slots.sort_unstable();
            let size = slots::Size {
                rounds: common.rounds(2, 5),
                files: files.unwrap_or(if common.quick { 1_600 } else { 8_000 }),
                processes: processes as usize,
                slots,
                older: older.or_else(built_from_history),
            };
            measure(&common, |run, command| slots::run(run, &size, command))
        }
        Command::Report { out } => {
            say!("{}", bench::page::write(&out)?.display());
            Ok(ExitCode::SUCCESS)
        }
        Command::Ceiling { common, files, mib } => {
            let quick = common.quick;
            let size = ceiling::Size {
                rounds: common.rounds(3, 5),
                files: files.unwrap_or(if quick { 4_000 } else { 20_000 }),
                mib: mib.unwrap_or(if quick { 128 } else { 4096 }),
                tree: files.unwrap_or(if quick { 2_000 } else { 100_000 }),
                groups: if quick { 3 } else { 10 },
            };
            measure(&common, |run, command| ceiling::run(run, size, command))
        }
        Command::Native { common, files, before } => {
            let quick = common.quick;
            let size = native::Size {
                rounds: common.rounds(3, 5),
                files: files.unwrap_or(if quick { 10_000 } else { 100_000 }),
                before: before.unwrap_or(if quick { 0 } else { 1_000_000 }),
            };
            measure(&common, |run, command| native::run(run, size, command))
        }
        Command::Smallfile { common, files, processes, sizes } => {
            let quick = common.quick;
            let size = smallfile::Size {
                rounds: common.rounds(2, 5),
                files: files.unwrap_or(if quick { 600 } else { 4_000 }),
                processes: processes as usize,
                sizes_kib: or(sizes, quick, &[0, 4, 16, 64, 128], &[0, 4, 8, 16, 32, 64, 128]),
            };
            measure(&common, |run, command| smallfile::run(run, &size, command))
        }
        Command::Meta { common, files, processes, mounts } => {
            let quick = common.quick;
            let processes = or(processes, quick, &[1, 2, 4], &[1, 2, 4, 8, 16]);
            let size = meta::Size {
                rounds: common.rounds(2, 5),
                files: files.unwrap_or(if quick { 600 } else { 4_000 }),
                processes: processes.into_iter().map(|count| count as usize).collect(),
                mounts: mounts as usize,
            };
            measure(&common, |run, command| meta::run(run, &size, command))
        }
        Command::Mdts { common, files, mut mdts } => {
            let quick = common.quick;
            mdts.sort_unstable();
            mdts.dedup();
            let files = files.unwrap_or(if quick { 8_000 } else { 80_000 });
            let size = mdts::Size {
                rounds: common.rounds(3, 5),
                mdts,
                files,
                cross: files / 4,
                alone: (files / 16).clamp(16, 2_000),
                survey: files * 5,
                turns: if quick { 4 } else { 6 },
                mib: if quick { 32 } else { 256 },
            };
            measure(&common, |run, command| mdts::run(run, &size, command))
        }
        Command::Recovery { common, files, uncommitted } => {
            let quick = common.quick;
            let mut files = or(files, quick, &[0, 20_000], &[0, 10_000, 100_000, 300_000]);
            files.sort_unstable();
            let size = recovery::Size {
                kills: common.rounds(3, 5),
                files,
                uncommitted: or(uncommitted, quick, &[0, 100, 2_000], &[0, 100, 1_000, 10_000]),
            };
            measure(&common, |run, command| recovery::run(run, &size, command))
        }
        Command::Millions { common, files, clients } => {
            let files = files.unwrap_or(if common.quick { 50_000 } else { 1_000_000 });
            let size = millions::Size { files, clients, rounds: common.rounds(2, 3) };
            measure(&common, |run, command| millions::run(run, &size, command))
        }
    }
}

/// The program of version 0.1.0, if `cargo xtask compat` has built it beside this one.
fn built_from_history() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.ancestors().nth(2)?.join("compat/bin/adamant-0.1.0");
    path.is_file().then_some(path)
}

/// Shows the progress as a bar on a terminal, and as lines otherwise.
fn progress() -> impl Fn(Progress<'_>) + 'static {
    let bar = std::io::stderr().is_terminal().then(|| {
        let style = indicatif::ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} (about {eta} left) {msg}");
        indicatif::ProgressBar::new(1).with_style(style.unwrap_or_else(|_| indicatif::ProgressStyle::default_bar()))
    });
    let last = std::cell::Cell::new(usize::MAX);
    move |progress| match &bar {
        Some(bar) => {
            bar.set_length(progress.all as u64);
            bar.set_position(progress.done as u64);
            bar.set_message(progress.what.to_owned());
        }
        None if last.replace(progress.done) != progress.done => {
            eprintln!("{} of {}: {}", progress.done, progress.all, progress.what);
        }
        None => (),
    }
}

/// Runs a suite in its own scratch space, and prints and writes its results. A run that ended early fails.
fn measure(common: &Common, suite: impl FnOnce(&Run, &str) -> Results) -> anyhow::Result<ExitCode> {
    if let Some(out) = &common.out {
        std::fs::create_dir_all(out).with_context(|| format!("cannot create '{}'", out.display()))?;
    }
    daemon::end_tools_on_signal(true)?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    let results = {
        // Dropped after the run, because it cleans up what the run leaves.
        let _guardian = Guardian::start()?;
        let run = Run::new(&common.scratch, bench::stop::requested, progress())?;
        suite(&run, &format!("adamant {}", words.join(" ")))
    };
    if common.json {
        say!("{}", serde_json::to_string_pretty(&results)?);
    } else {
        let (head, rows) = results.cells();
        say!("{}", results.machine.line());
        output::print(format_args!("{}", output::table(&head.iter().map(String::as_str).collect::<Vec<_>>(), &rows)));
        for (what, why) in &results.not_available {
            say!("{what}: not available ({why})");
        }
    }
    if let Some(out) = &common.out {
        for path in results.write(out)? {
            eprintln!("wrote {}", path.display());
        }
    }
    match results.ended_early {
        None => Ok(ExitCode::SUCCESS),
        Some(why) => anyhow::bail!("the run ended early, the figures are those until then: {why}"),
    }
}
