//! `adamant bench`: figures beside their yardsticks.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use bench::single::{self, Size};
use clap::{Args, Subcommand};

use crate::output;

/// Measure, each figure beside its yardstick of the same run
///
/// Example: adamant bench ceiling --quick
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// One process on a mount over loopback TCP, beside a do-nothing FUSE file system and a lone echo
    Ceiling {
        /// Under a minute
        #[arg(long)]
        quick: bool,
        /// Where scratch files and figures go; a temporary directory if not given
        #[arg(long)]
        out: Option<PathBuf>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// The other end of the echo
    #[command(hide = true)]
    EchoServer,
}

/// Runs the command.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let (quick, out, json) = match arguments.command {
        Command::EchoServer => {
            bench::echo::serve()?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Ceiling { quick, out, json } => (quick, out, json),
    };
    let scratch =
        out.clone().unwrap_or_else(|| std::env::temp_dir().join(format!("adamant-bench-{}", std::process::id())));
    std::fs::create_dir_all(&scratch).with_context(|| format!("cannot create '{}'", scratch.display()))?;
    let scratch = std::fs::canonicalize(scratch)?;
    let size =
        if quick { Size { rounds: 3, files: 5_000, mib: 256 } } else { Size { rounds: 5, files: 20_000, mib: 1024 } };
    let rows = single::run(&scratch, size, &mut |line| eprintln!("{line}"));
    let rows = rows?;
    if out.is_none() {
        let _ = std::fs::remove_dir_all(&scratch);
    } else {
        std::fs::write(scratch.join("ceiling.json"), serde_json::to_vec_pretty(&rows)?)?;
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        let cells: Vec<Vec<String>> = rows
            .iter()
            .map(|row| {
                vec![
                    row.what.clone(),
                    format!("{:.1}", row.adamant),
                    format!("{:.1}", row.yardstick),
                    row.unit.clone(),
                    format!("{:.2}", row.ratio),
                    row.wanted.clone(),
                    if row.reached { "yes" } else { "no" }.to_owned(),
                    row.yardstick_is.clone(),
                ]
            })
            .collect();
        let head = ["WHAT", "ADAMANT", "YARDSTICK", "UNIT", "RATIO", "WANTED", "REACHED", "YARDSTICK IS"];
        print!("{}", output::table(&head, &cells));
    }
    Ok(ExitCode::SUCCESS)
}
