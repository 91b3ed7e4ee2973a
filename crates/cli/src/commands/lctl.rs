//! `lctl`: parameters and control of running servers and mounts.

mod activate;
mod load;
mod lost;
mod lustre;
mod params;
mod persistent;
mod pools;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};
use host::admin::{Description, Device, Request, Response};
use host::stream::Stream;
use proto::Nid;
use proto::msg::SetPoolKind;

use crate::audience::Audience;
use crate::commands::{lacking, status};
use crate::misuse::misuse;
use crate::output::say;

/// Get and set parameters and control running servers and mounts, with Lustre's verbs
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// Device for the command, by its name or number in 'lctl dl'; get_param, set_param and list_param then ask only the
    /// process of the device, which the directory of a target or a mount names, too
    #[arg(long, value_name = "DEV")]
    device: Option<String>,
    /// Ask the server that listens at this address, perhaps on another machine, instead of the processes of this machine
    #[arg(long, value_name = "NID")]
    host: Option<Nid>,
    /// For the verbs test_*: threads, in Lustre's form 'lctl --threads N -SECONDS DEVICE VERB ...'. After each so many SECONDS the
    /// rate is printed; 'q' instead: only the total
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,
    /// The -SECONDS of --threads
    #[arg(long, hide = true, value_name = "-SECONDS", requires = "threads", allow_hyphen_values = true)]
    report: Option<load::Report>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print parameters; example: lctl get_param mdt.*.recovery_status
    #[command(name = "get_param")]
    GetParam {
        /// Print only the values
        #[arg(short = 'n')]
        values: bool,
        /// Print only the names, including those of directories
        #[arg(short = 'N')]
        names: bool,
        #[command(flatten)]
        selection: params::Selection,
        /// Print those that the MGS of this node keeps, as they were set persistently; example: lctl get_param -P '**'
        #[arg(short = 'P', conflicts_with_all = ["recursive", "directories", "classify"])]
        persistent: bool,
        /// Patterns
        #[arg(required = true)]
        patterns: Vec<String>,
    },
    /// Set parameters; example: lctl set_param mdc.*.rpc_stats=clear
    #[command(name = "set_param")]
    SetParam {
        /// Do not print the settings
        #[arg(short = 'n')]
        quiet: bool,
        /// Set persistently: the MGS of this node keeps the setting, and all servers and clients follow it, now and later
        #[arg(short = 'P')]
        persistent: bool,
        /// With -P: drop the setting; PATTERN is enough
        #[arg(short = 'd', requires = "persistent")]
        delete: bool,
        /// PATTERN=VALUE
        #[arg(required = true)]
        settings: Vec<String>,
    },
    /// Set a persistent parameter by its older path; example: lctl conf_param demo-OST0001.osc.active=0
    #[command(name = "conf_param")]
    ConfParam {
        /// Drop the setting; PATH is enough
        #[arg(short = 'd')]
        delete: bool,
        /// PATH=VALUE
        #[arg(required = true)]
        settings: Vec<String>,
    },
    /// Make an empty pool of object targets, at the MGS of this node; example: lctl pool_new demo.fast
    #[command(name = "pool_new")]
    PoolNew {
        /// FSNAME.POOL
        pool: pools::Name,
    },
    /// Add object targets to a pool; example: lctl pool_add demo.fast 'demo-OST[0-3]'
    #[command(name = "pool_add")]
    PoolAdd {
        /// FSNAME.POOL
        pool: pools::Name,
        /// Targets by name or index; [ ] holds a list of hexadecimal indexes or ranges
        #[arg(required = true)]
        targets: Vec<String>,
    },
    /// Remove object targets from a pool; example: lctl pool_remove demo.fast OST0003
    #[command(name = "pool_remove")]
    PoolRemove {
        /// FSNAME.POOL
        pool: pools::Name,
        /// Targets by name or index; [ ] holds a list of hexadecimal indexes or ranges
        #[arg(required = true)]
        targets: Vec<String>,
    },
    /// Remove an empty pool; example: lctl pool_destroy demo.fast
    #[command(name = "pool_destroy")]
    PoolDestroy {
        /// FSNAME.POOL
        pool: pools::Name,
    },
    /// List the pools of a file system, or the object targets of a pool; example: lctl pool_list demo
    #[command(name = "pool_list")]
    PoolList {
        /// FSNAME or FSNAME.POOL
        pool: String,
    },
    /// List names of parameters and devices; example: lctl list_param -R 'mdt.*'
    #[command(name = "list_param")]
    ListParam {
        #[command(flatten)]
        selection: params::Selection,
        /// Patterns
        #[arg(required = true)]
        patterns: Vec<String>,
    },
    /// List devices: index, state, kind, name, UUID, number of references; example: lctl dl -t
    #[command(alias = "device_list")]
    Dl {
        /// Also print where each listens or is mounted
        #[arg(short = 't')]
        places: bool,
        /// Print as JSON, with the places
        #[arg(long)]
        json: bool,
    },
    /// Check whether all targets and mounts of this node work: print 'healthy', or what does not work with exit status 1
    #[command(name = "health_check")]
    HealthCheck,
    /// Print the version of this program, and those of running processes that differ
    Version,
    /// Check whether a process of Adamant listens at an address
    Ping {
        /// HOST:PORT or unix:PATH
        nid: Nid,
    },
    /// End the recovery of the device's target now; clients that have not finished are evicted.
    /// Example: lctl --device demo-MDT0000 abort_recovery
    #[command(name = "abort_recovery", visible_alias = "abort_recov")]
    AbortRecovery,
    /// Declare a metadata target lost for good, at the MGS of this node: the others settle without it the changes that
    /// they had under way with it, and refuse it until it is started once with '-o abort_recov_mdt'. Not for a target
    /// that can come back. Example: lctl --device demo-MDT0001 abort_recovery_mdt
    #[command(name = "abort_recovery_mdt", visible_alias = "abort_recov_mdt")]
    AbortRecoveryMdt,
    /// Allow new files on an object target again; example: lctl activate demo-OST0001
    Activate {
        /// The target, or the device through which a metadata target talks to it
        target: Option<String>,
    },
    /// Put no new files on an object target, until its metadata target restarts or it is activated; example: lctl
    /// deactivate demo-OST0001
    Deactivate {
        /// The target, or the device through which a metadata target talks to it
        target: Option<String>,
    },
    /// List the addresses of the servers on this machine
    #[command(name = "list_nids")]
    ListNids,
    /// Write a line to the logs
    Mark {
        /// The text
        text: Vec<String>,
    },
    #[command(flatten)]
    Test(load::Verb),
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

/// Rewrites `--threads N -SECONDS DEVICE`, as the first words after the command at `at - 1`, for the parser.
pub(crate) fn plain(words: Vec<OsString>, at: usize) -> Vec<OsString> {
    if words.get(at - 1).is_none_or(|word| at > 1 && word != "lctl") {
        return words;
    }
    match words.get(at..at + 4) {
        Some([option, threads, report, device]) if option == "--threads" => {
            let option = |name: &str, value: &OsString| {
                let mut word = OsString::from(name);
                word.push(value);
                word
            };
            let rewritten = [option("--threads=", threads), option("--report=", report), option("--device=", device)];
            words[..at].iter().cloned().chain(rewritten).chain(words[at + 4..].iter().cloned()).collect()
        }
        _ => words,
    }
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let (device, host) = (arguments.device.as_deref(), arguments.host.as_ref());
    let asked = |device| asked(device, host);
    match arguments.command {
        Command::Test(verb) if host.is_none() => {
            let threads = load::Threads { count: arguments.threads, report: arguments.report };
            load::run(&verb, device, &threads, || devices(&mut audience(None)))
        }
        Command::Test(_) => misuse!("--host is not for verbs test_*: a metadata target is loaded from its own machine"),
        _ if arguments.threads.is_some() => misuse!("--threads is for test_create and the other verbs test_*"),
        Command::AbortRecovery => abort_recovery(device, host),
        Command::Activate { target } => set_active(target.as_deref().or(device), host, true),
        Command::Deactivate { target } => set_active(target.as_deref().or(device), host, false),
        Command::GetParam { names, selection, patterns, persistent: false, .. } if names || selection.directories => {
            Ok(params::list(&mut asked(device)?, &patterns, &selection, "get_param"))
        }
        Command::GetParam { values, selection, patterns, persistent: false, .. } => {
            Ok(params::get(&mut asked(device)?, &patterns, values, &selection))
        }
        Command::SetParam { quiet, settings, persistent: false, .. } => {
            params::set(&mut asked(device)?, &settings, quiet).map(ExitCode::from)
        }
        Command::ListParam { selection, patterns } => {
            Ok(params::list(&mut asked(device)?, &patterns, &selection, "list_param"))
        }
        Command::Other(words) => Ok(lacking::verb("lctl", &words, lustre::VERBS)),
        Command::SetParam { .. }
        | Command::GetParam { .. }
        | Command::ConfParam { .. }
        | Command::Ping { .. }
        | Command::PoolNew { .. }
        | Command::PoolAdd { .. }
        | Command::PoolRemove { .. }
        | Command::PoolDestroy { .. }
        | Command::AbortRecoveryMdt
            if host.is_some() =>
        {
            bail!(
                "--host is not for this: -P, pools and abort_recovery_mdt are said where the MGS is, and ping names its address itself"
            )
        }
        Command::AbortRecoveryMdt => lost::declare(device, || devices(&mut audience(None))),
        _ if device.is_some() => {
            bail!("--device is for abort_recovery, abort_recovery_mdt and for parameters of this node, but for -P")
        }
        Command::GetParam { values, names, patterns, .. } => {
            persistent::show(&patterns, values, names).map(ExitCode::from)
        }
        Command::SetParam { quiet, delete, settings, .. } => {
            persistent::set(&settings, delete, quiet).map(ExitCode::from)
        }
        Command::ConfParam { delete, settings } => persistent::conf_param(&settings, delete).map(ExitCode::from),
        Command::PoolNew { pool } => pools::change(SetPoolKind::New, &pool, &[]),
        Command::PoolAdd { pool, targets } => pools::change(SetPoolKind::Add, &pool, &targets),
        Command::PoolRemove { pool, targets } => pools::change(SetPoolKind::Remove, &pool, &targets),
        Command::PoolDestroy { pool } => pools::change(SetPoolKind::Destroy, &pool, &[]),
        Command::PoolList { pool } => pools::list(&mut audience(host), &pool),
        Command::Dl { places, json } => {
            let mut all = audience(host);
            let mut devices = devices(&mut all);
            count_references(&mut devices, &params::collect(&mut all, "*.*.num_exports"));
            if json {
                say!("{}", serde_json::to_string_pretty(&devices)?);
            }
            for (index, device) in devices.iter().enumerate().filter(|_| !json) {
                let place = if places { device.place.as_str() } else { "" };
                let refs = device.refs.map_or_else(|| "-".to_owned(), |refs| refs.to_string());
                let Device { state, kind, name, uuid, .. } = device;
                say!("{}", format!("{index:3} {state} {kind} {name} {uuid} {refs} {place}").trim_end());
            }
            Ok(ExitCode::from(u8::from(host.is_some() && all.is_incomplete())))
        }
        Command::HealthCheck => Ok(health_check(&mut audience(host))),
        Command::Version => {
            say!("adamant: {}", env!("CARGO_PKG_VERSION"));
            for process in audience(host).describe().iter().filter(|other| other.version != env!("CARGO_PKG_VERSION")) {
                say!("process {} ({}): {}", process.pid, process.role, process.version);
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Ping { nid } => match Stream::dial(std::slice::from_ref(&nid)) {
            Ok(_) => {
                say!("{nid}");
                Ok(ExitCode::SUCCESS)
            }
            Err(error) => bail!("failed to ping {nid}: {error}; is a server running there?"),
        },
        Command::ListNids => {
            let mut all = audience(host);
            for device in all.describe().iter().filter(|process| process.role == "server").flat_map(|p| &p.devices) {
                say!("{}", device.place);
            }
            Ok(ExitCode::from(u8::from(host.is_some() && all.is_incomplete())))
        }
        Command::Mark { text } => {
            let value = text.join(" ");
            audience(host).ask(&Request::SetParam { pattern: "mark".to_owned(), value });
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The processes to ask if no device is named.
fn audience(host: Option<&Nid>) -> Audience {
    host.map_or_else(Audience::all, |nid| Audience::remote(nid.clone()))
}

/// All devices, in the order of their numbers.
fn devices(audience: &mut Audience) -> Vec<Device> {
    audience.describe().into_iter().flat_map(|process| process.devices).collect()
}

/// Counts the references to each target: one by its server, and one by each client.
fn count_references(devices: &mut [Device], num_exports: &[(String, String)]) {
    for device in devices.iter_mut().filter(|device| device.refs.is_none()) {
        let name = format!("{}.{}.num_exports", device.kind, device.name);
        let found = num_exports.iter().find(|(known, _)| *known == name);
        device.refs = found.and_then(|(_, count)| count.trim().parse::<u64>().ok()).map(|count| count + 1);
    }
}

fn abort_recovery(wanted: Option<&str>, host: Option<&Nid>) -> anyhow::Result<ExitCode> {
    let Some(wanted) = wanted else {
        misuse!("abort_recovery needs a target; name it with --device, as 'lctl dl' lists it");
    };
    let mut audience = audience(host);
    let devices = devices(&mut audience);
    let by_number = wanted.parse::<usize>().ok().and_then(|number| devices.get(number));
    let found = devices.iter().find(|device| device.name == wanted).or(by_number);
    let Some(device) = found.filter(|device| matches!(device.kind.as_str(), "mgs" | "mdt" | "obdfilter")) else {
        bail!("no target '{wanted}' is served there; 'lctl dl' lists those that are");
    };
    let parameter = |leaf: &str| format!("{}.{}.{leaf}", device.kind, device.name);
    let status = params::collect(&mut audience, &parameter("recovery_status"));
    let is_over = |text: &str| ["status: COMPLETE", "status: INACTIVE"].iter().any(|over| text.starts_with(over));
    if status.iter().any(|(_, text)| is_over(text)) {
        say!("{}: no recovery is under way; there is nothing to end", device.name);
        return Ok(ExitCode::SUCCESS);
    }
    params::set(&mut audience, &[parameter("abort_recovery") + "=1"], true).map(ExitCode::from)
}

/// A node is as healthy as the least healthy of its processes. A process that does not answer is not healthy.
fn health_check(audience: &mut Audience) -> ExitCode {
    let answers = audience.ask(&Request::GetParam { pattern: "health_check".to_owned() });
    if answers.is_empty() && !audience.is_incomplete() {
        eprintln!("error: health_check: no server and no mount runs here; start a file system with: adamant up");
        return ExitCode::from(1);
    }
    let values: Vec<String> = answers
        .into_iter()
        .filter_map(|response| match response {
            Response::Params(params) => Some(params),
            _ => None,
        })
        .flatten()
        .map(|(_, value)| value)
        .collect();
    let ill: Vec<&str> = values.iter().flat_map(|value| value.lines()).filter(|line| *line != "healthy").collect();
    if ill.is_empty() && !audience.is_incomplete() {
        say!("healthy");
        return ExitCode::SUCCESS;
    }
    ill.iter().filter(|line| **line != "NOT HEALTHY").for_each(|line| say!("{line}"));
    say!("NOT HEALTHY");
    ExitCode::from(1)
}

fn set_active(target: Option<&str>, host: Option<&Nid>, active: bool) -> anyhow::Result<ExitCode> {
    let setting = activate::setting(target, active)?;
    params::set(&mut audience(host), &[setting], true).map(ExitCode::from)
}

/// The processes to ask: all, or that of a device.
fn asked(device: Option<&str>, host: Option<&Nid>) -> anyhow::Result<Audience> {
    let Some(device) = device else { return Ok(audience(host)) };
    if host.is_some() {
        bail!("--host names the process already: leave --device away");
    }
    let has = |process: &status::Process| {
        let Description { devices, places, .. } = &process.description;
        devices.iter().any(|known| known.name == device) || places.iter().any(|place| place == device)
    };
    let named = status::newest(has).map(|process| process.socket);
    let found = named.or_else(|| {
        let number = device.parse().ok()?;
        let each = |process: status::Process| vec![process.socket; process.description.devices.len()];
        status::processes().into_iter().flat_map(each).nth(number)
    });
    match found {
        Some(socket) => Ok(Audience::one(socket)),
        None => bail!("no process here has a device '{device}'; see: adamant lctl dl"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_rewritten_only_before_the_verb() {
        let words = |line: &str| -> Vec<OsString> { line.split(' ').map(OsString::from).collect() };
        let rewritten = "lctl --threads=4 --report=-1 --device=fs-MDT0000 test_create -d /dir";
        assert_eq!(plain(words("lctl --threads 4 -1 fs-MDT0000 test_create -d /dir"), 1), words(rewritten));
        let line = "adamant lctl --threads 4 -1 fs-MDT0000 test_create -d /dir";
        assert_eq!(plain(words(line), 2), words(&format!("adamant {rewritten}")));
        for line in
            ["lctl --threads 4 -1", "lctl mark --threads 4 -1 x", "lctl --threads=4 --device x test_create", "lctl"]
        {
            assert_eq!(plain(words(line), 1), words(line));
        }
        let other = words("adamant mdtest --threads 4 -1 x");
        assert_eq!(plain(other.clone(), 2), other);
    }
}
