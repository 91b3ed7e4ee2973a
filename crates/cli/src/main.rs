//! The only binary: `adamant`, and under other names `lfs`, `lctl`, `lr_reader`, `mkfs.adamant`, `mount.adamant` and the
//! benchmark tools.
//!
//! A command translates its arguments into calls of `host`, `fuse` and `sim` and prints the results. Exit status: 0 done, 1
//! failed, 2 misused. An error is one line on standard error that says what to do.

/// Prints a line to standard error. If its reader is gone (`adamant up 2>&1 | head -1`, a closed terminal), the command
/// continues.
macro_rules! eprintln {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

mod audience;
mod commands;
mod daemon;
mod exit_status;
mod misuse;
mod output;

use std::process::ExitCode;

use std::ffi::OsString;
use std::io::Write;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand};
use commands::{
    bench, down, install, lctl, lfs, lr_reader, many, mdtest, mkfs, mount, serve, sim, status, survey, sync, tune, up,
};

/// A parallel file system in user space
#[derive(Parser)]
#[command(name = "adamant", version, propagate_version = true, arg_required_else_help = true)]
struct Adamant {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Up(up::Arguments),
    Down(down::Arguments),
    Status(status::Arguments),
    Mkfs(mkfs::Arguments),
    Tune(tune::Arguments),
    Serve(serve::Arguments),
    Mount(mount::Arguments),
    Sync(sync::Arguments),
    /// Query and set the layout of files, and query targets, with Lustre's verbs
    #[command(subcommand)]
    Lfs(lfs::Command),
    /// Get and set parameters and control running servers and mounts, with Lustre's verbs
    Lctl(lctl::Arguments),
    #[command(name = "lr_reader")]
    LrReader(lr_reader::Arguments),
    Bench(bench::Arguments),
    #[command(name = "mds-survey")]
    MdsSurvey(survey::Arguments),
    Mdtest(Box<mdtest::Arguments>),
    Createmany(many::Create),
    Unlinkmany(many::Remove),
    Statmany(many::Stat),
    Sim(sim::Arguments),
    InstallLinks(install::Links),
    Completions(install::Completions),
    Man(install::Man),
}

/// Query and set the layout of files, and query targets, with Lustre's verbs
#[derive(Parser)]
#[command(name = "lfs", version, arg_required_else_help = true)]
struct Lfs {
    #[command(subcommand)]
    command: lfs::Command,
}

/// Get and set parameters and control running servers and mounts, with Lustre's verbs
#[derive(Parser)]
#[command(name = "lctl", version, arg_required_else_help = true)]
struct Lctl {
    #[command(flatten)]
    arguments: lctl::Arguments,
}

/// The command of each name, `adamant` first.
fn all_names() -> Vec<clap::Command> {
    let own = |name: &'static str, augment: fn(clap::Command) -> clap::Command| {
        augment(clap::Command::new(name).version(env!("CARGO_PKG_VERSION")))
    };
    vec![
        Adamant::command(),
        Lfs::command(),
        Lctl::command(),
        own("lr_reader", lr_reader::Arguments::augment_args),
        own("mkfs.adamant", mkfs::Arguments::augment_args),
        own("mount.adamant", mount::Arguments::augment_args),
        own("mds-survey", survey::Arguments::augment_args),
        own("mdtest", mdtest::Arguments::augment_args),
        own("createmany", many::Create::augment_args),
        own("unlinkmany", many::Remove::augment_args),
        own("statmany", many::Stat::augment_args),
    ]
}

/// Parses the arguments of a command that is called by a name of its own.
fn called<A: Args>(name: &'static str, words: Vec<OsString>) -> A {
    let command =
        clap::Command::new(name).version(env!("CARGO_PKG_VERSION")).arg_required_else_help(name != "mds-survey");
    let mut command = A::augment_args(command);
    let matches = command
        .clone()
        .try_get_matches_from(words)
        .unwrap_or_else(|error| misuse::end(&error, &command.render_usage()));
    A::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
}

/// Ends a command whose options conflict: prints the usage, with exit status 2.
fn misused<A: Args>(name: &'static str, message: &str) -> ! {
    let mut command = A::augment_args(clap::Command::new(name));
    let error = command.error(ErrorKind::ValueValidation, message);
    misuse::end(&error, &command.render_usage())
}

fn main() -> ExitCode {
    let called_as = std::env::args_os()
        .next()
        .and_then(|path| std::path::Path::new(&path).file_name().map(|name| name.to_string_lossy().into_owned()))
        .unwrap_or_default();
    let words: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = list_commands(&called_as, &words) {
        return code;
    }
    let result = match called_as.as_str() {
        "lfs" => lfs::run(parse::<Lfs>(lfs::find::plain(words, 1)).command),
        "lctl" => lctl::run(parse::<Lctl>(lctl::plain(words, 1)).arguments),
        "lr_reader" => lr_reader::run(&called("lr_reader", words)),
        "mkfs.adamant" => mkfs::run(called("mkfs.adamant", words)),
        // mount(8) uses the type of the existing mount when it changes one.
        "mount.adamant" | "mount.fuse.adamant" => mount::run(called("mount.adamant", words)),
        "mds-survey" => survey::run(called("mds-survey", words)),
        "mdtest" => mdtest::run(called("mdtest", mdtest::attached(words.clone(), 0)), &words[1..]),
        "createmany" => many::create(called("createmany", many::attached(words, 0))),
        "unlinkmany" => many::remove(called("unlinkmany", words)),
        "statmany" => many::stat(called("statmany", words)),
        _ if words.get(1).is_some_and(|word| word == "lfs") => {
            run(parse::<Adamant>(lfs::find::plain(words, 2)).command)
        }
        _ if words.get(1).is_some_and(|word| word == "lctl") => run(parse::<Adamant>(lctl::plain(words, 2)).command),
        _ => run(parse::<Adamant>(mdtest::attached(many::attached(words, 1), 1)).command),
    };
    match result {
        Ok(_) if output::is_lost() => ExitCode::from(1),
        Ok(code) => code,
        Err(error) => {
            let name = if called_as.is_empty() { "adamant" } else { &called_as };
            // A server outlives the terminal from which it was started.
            let _ = writeln!(std::io::stderr(), "{name}: {error:#}");
            ExitCode::from(exit_status::of(&error, called_as.starts_with("mount.")))
        }
    }
}

/// `lfs --list-commands`, `lctl --list-commands`: prints the verbs, one per line.
fn list_commands(called_as: &str, words: &[OsString]) -> Option<ExitCode> {
    let own = matches!(called_as, "lfs" | "lctl");
    let name = if own { called_as } else { words.get(1)?.to_str()? };
    if words.get(if own { 1 } else { 2 })? != "--list-commands" {
        return None;
    }
    let command = match name {
        "lfs" => Lfs::command(),
        "lctl" => Lctl::command(),
        _ => return None,
    };
    command.get_subcommands().filter(|verb| !verb.is_hide_set()).for_each(|verb| output::say!("{}", verb.get_name()));
    Some(ExitCode::from(u8::from(output::is_lost())))
}

/// Parses a command line.
fn parse<P: Parser>(mut words: Vec<OsString>) -> P {
    // `help --help` means `help`.
    if let [.., before, last] = &words[..]
        && before == "help"
        && (last == "--help" || last == "-h")
    {
        words.pop();
    }
    P::try_parse_from(&words).unwrap_or_else(|error| {
        let mut at = P::command();
        at.build();
        for word in words.iter().skip(1) {
            match at.find_subcommand(word) {
                Some(inner) => at = inner.clone(),
                None => break,
            }
        }
        if let (ErrorKind::UnknownArgument, Some(ContextValue::String(option))) =
            (error.kind(), error.get(ContextKind::InvalidArg))
            && lfs::lacks_option(at.get_name(), option)
        {
            eprintln!("{} {option}: not in this version; see limits", at.get_bin_name().unwrap_or(at.get_name()));
            std::process::exit(2);
        }
        misuse::end(&error, &at.render_usage())
    })
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Up(arguments) => up::run(arguments),
        Command::Down(arguments) => down::run(arguments),
        Command::Sync(arguments) => sync::run(arguments),
        Command::Status(arguments) => status::run(arguments),
        Command::Mkfs(arguments) => mkfs::run(arguments),
        Command::Tune(arguments) => tune::run(arguments),
        Command::Serve(arguments) => serve::run(arguments),
        Command::Mount(arguments) => mount::run(arguments),
        Command::Lfs(command) => lfs::run(command),
        Command::Lctl(arguments) => lctl::run(arguments),
        Command::LrReader(arguments) => lr_reader::run(&arguments),
        Command::Bench(arguments) => bench::run(arguments),
        Command::MdsSurvey(arguments) => survey::run(arguments),
        Command::Mdtest(arguments) => mdtest::run(*arguments, &std::env::args_os().skip(2).collect::<Vec<_>>()),
        Command::Createmany(arguments) => many::create(arguments),
        Command::Unlinkmany(arguments) => many::remove(arguments),
        Command::Statmany(arguments) => many::stat(arguments),
        Command::Sim(arguments) => sim::run(arguments),
        Command::InstallLinks(arguments) => install::links(arguments),
        Command::Completions(arguments) => install::completions(arguments, all_names()),
        Command::Man(arguments) => install::man(arguments, all_names()),
    }
}
