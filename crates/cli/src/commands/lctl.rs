//! `lctl`: parameters and control of running servers and mounts.

mod activate;

use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};
use host::admin::{Description, Device, Request, Response};
use host::ask;
use host::stream::Stream;
use proto::msg::{Param, SetParamReq};
use proto::{Errno, Nid, Opcode};

use crate::audience::Audience;
use crate::commands::status;
use crate::misuse::misuse;
use crate::output::say;

/// Parameters and control of running servers and mounts, by Lustre's words
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub struct Arguments {
    /// The device that a command is for, by its name or number in 'lctl dl'; get_param, set_param and list_param ask only its
    /// process, which the folder of a target or the directory of a mount names, too
    #[arg(long, value_name = "DEV")]
    device: Option<String>,
    /// Ask the server that listens at this address, perhaps on another machine, instead of the processes of this one
    #[arg(long, value_name = "NID")]
    host: Option<Nid>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print parameters; example: lctl get_param mdt.*.recovery_status
    #[command(name = "get_param")]
    GetParam {
        /// Only the values
        #[arg(short = 'n')]
        values: bool,
        /// Only the names
        #[arg(short = 'N')]
        names: bool,
        /// Patterns
        #[arg(required = true)]
        patterns: Vec<String>,
    },
    /// Set parameters; example: lctl set_param mdc.*.rpc_stats=clear
    #[command(name = "set_param")]
    SetParam {
        /// Do not print what was set
        #[arg(short = 'n')]
        quiet: bool,
        /// Persistently: kept by the MGS of this node, followed by all servers and clients, now and later
        #[arg(short = 'P')]
        persistent: bool,
        /// With -P: keep it no longer; PATTERN is enough
        #[arg(short = 'd', requires = "persistent")]
        delete: bool,
        /// PATTERN=VALUE
        #[arg(required = true)]
        settings: Vec<String>,
    },
    /// List names of parameters; example: lctl list_param -R 'mdt.*'
    #[command(name = "list_param")]
    ListParam {
        /// With all below
        #[arg(short = 'R')]
        recursive: bool,
        /// Patterns
        #[arg(required = true)]
        patterns: Vec<String>,
    },
    /// List devices
    Dl,
    /// See whether something of ours listens at an address
    Ping {
        /// HOST:PORT or unix:PATH
        nid: Nid,
    },
    /// End the recovery of the device's target now; clients that are not through are evicted.
    /// Example: lctl --device demo-MDT0000 abort_recovery
    #[command(name = "abort_recovery", visible_alias = "abort_recov")]
    AbortRecovery,
    /// New files may lie on an object target again; example: lctl activate demo-OST0001
    Activate {
        /// The target, or the device with which a metadata target talks to it
        target: Option<String>,
    },
    /// Take an object target out: no new files lie on it, until its metadata target restarts or it is activated; example:
    /// lctl deactivate demo-OST0001
    Deactivate {
        /// The target, or the device with which a metadata target talks to it
        target: Option<String>,
    },
    /// Addresses of the servers here
    #[command(name = "list_nids")]
    ListNids,
    /// A line in the logs
    Mark {
        /// The text
        text: Vec<String>,
    },
}

/// Runs the command.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let (device, host) = (arguments.device.as_deref(), arguments.host.as_ref());
    let asked = |device| asked(device, host);
    match arguments.command {
        Command::AbortRecovery => abort_recovery(device, host),
        Command::Activate { target } => set_active(target.as_deref().or(device), host, true),
        Command::Deactivate { target } => set_active(target.as_deref().or(device), host, false),
        Command::GetParam { values, names, patterns } => Ok(get_param(&mut asked(device)?, &patterns, values, names)),
        Command::SetParam { quiet, settings, persistent: false, .. } => {
            set_param(&mut asked(device)?, &settings, quiet).map(ExitCode::from)
        }
        Command::ListParam { recursive, patterns } => Ok(list_param(&mut asked(device)?, &patterns, recursive)),
        _ if device.is_some() => bail!("--device is for abort_recovery and for parameters of this node, but for -P"),
        Command::SetParam { .. } | Command::Ping { .. } if host.is_some() => {
            bail!("--host is not for this: -P is said where the MGS is, and ping names its address itself")
        }
        Command::SetParam { quiet, delete, settings, .. } => set_persistent(&settings, delete, quiet),
        Command::Dl => {
            let mut all = audience(host);
            for (index, device) in devices(&mut all).iter().enumerate() {
                say!("{index:3} {} {} {} {} -", device.state, device.kind, device.name, device.uuid);
            }
            Ok(ExitCode::from(u8::from(host.is_some() && all.is_incomplete())))
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

/// Who is asked if no device is named.
fn audience(host: Option<&Nid>) -> Audience {
    host.map_or_else(Audience::all, |nid| Audience::afar(nid.clone()))
}

/// All devices, in the order in which they are numbered.
fn devices(audience: &mut Audience) -> Vec<Device> {
    audience.describe().into_iter().flat_map(|process| process.devices).collect()
}

fn abort_recovery(wanted: Option<&str>, host: Option<&Nid>) -> anyhow::Result<ExitCode> {
    let Some(wanted) = wanted else {
        bail!("abort_recovery needs a target; name it with --device, as 'lctl dl' lists it");
    };
    let mut audience = audience(host);
    let devices = devices(&mut audience);
    let by_number = wanted.parse::<usize>().ok().and_then(|number| devices.get(number));
    let found = devices.iter().find(|device| device.name == wanted).or(by_number);
    let Some(device) = found.filter(|device| matches!(device.kind.as_str(), "mgs" | "mdt" | "obdfilter")) else {
        bail!("no target '{wanted}' is served there; 'lctl dl' lists those that are");
    };
    let name = format!("{}.{}.abort_recovery", device.kind, device.name);
    set_param(&mut audience, &[format!("{name}=1")], true).map(ExitCode::from)
}

fn set_active(target: Option<&str>, host: Option<&Nid>, active: bool) -> anyhow::Result<ExitCode> {
    let setting = activate::setting(target, active)?;
    set_param(&mut audience(host), &[setting], true).map(ExitCode::from)
}

/// No such parameter, as Lustre's tool says it.
const NOT_FOUND: u8 = 2;

/// The processes that are meant: all, or that of a device.
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

fn collect(audience: &mut Audience, pattern: &str) -> Vec<(String, String)> {
    let request = Request::GetParam { pattern: pattern.to_owned() };
    let params = audience.ask(&request).into_iter().filter_map(|response| match response {
        Response::Params(params) => Some(params),
        _ => None,
    });
    let mut found: Vec<(String, String)> = params.flatten().collect();
    found.sort();
    // What several processes have in common is told once.
    found.dedup();
    found
}

fn not_found(verb: &str, pattern: &str) -> u8 {
    eprintln!("error: {verb}: param_path '{pattern}': No such file or directory");
    NOT_FOUND
}

fn get_param(audience: &mut Audience, patterns: &[String], values: bool, names: bool) -> ExitCode {
    let mut code = 0;
    for pattern in patterns {
        let found = collect(audience, pattern);
        if found.is_empty() {
            code = not_found("get_param", pattern);
        }
        for (name, value) in found {
            let value = value.trim_end_matches('\n');
            match (names, values) {
                (true, _) => say!("{name}"),
                (false, true) => say!("{value}"),
                (false, false) if value.contains('\n') => say!("{name}=\n{value}"),
                (false, false) => say!("{name}={value}"),
            }
        }
    }
    ExitCode::from(code)
}

fn list_param(audience: &mut Audience, patterns: &[String], recursive: bool) -> ExitCode {
    let mut code = 0;
    for pattern in patterns {
        let mut found = collect(audience, pattern);
        if recursive {
            found.extend(collect(audience, &format!("{pattern}.**")));
            found.sort();
        }
        // Several processes may have one of a name, and its value may have changed between two looks.
        found.dedup_by(|(name, _), (before, _)| name == before);
        if found.is_empty() {
            code = not_found("list_param", pattern);
        }
        for (name, _) in found {
            say!("{name}");
        }
    }
    ExitCode::from(code)
}

/// The MGSes that are served on this node.
fn mgs_here() -> Vec<Nid> {
    let processes = status::processes();
    let devices = processes.iter().flat_map(|process| &process.description.devices);
    devices.filter(|device| device.kind == "mgs").filter_map(|device| device.place.parse().ok()).collect()
}

/// The file systems that a pattern is about: the one whose name its device begins with, or all that the MGSes here know.
fn file_systems(pattern: &str) -> Vec<String> {
    let device = pattern.split('.').nth(1).unwrap_or_default();
    let known = collect(&mut Audience::all(), "mgs.*.live.*")
        .into_iter()
        .filter_map(|(name, _)| Some(name.rsplit_once('.')?.1.to_owned()));
    // A parameter of a process has no device: it is set in those of all file systems.
    known
        .filter(|fsname| {
            !pattern.contains('.')
                || device == *fsname
                || device.starts_with(&format!("{fsname}-"))
                || device.contains(['*', '?'])
        })
        .collect()
}

fn set_persistent(settings: &[String], delete: bool, quiet: bool) -> anyhow::Result<ExitCode> {
    let places = mgs_here();
    if places.is_empty() {
        bail!("no MGS is served on this node; set persistent parameters where it is");
    }
    let mut code = 0;
    for setting in settings {
        let (pattern, value) = match setting.split_once('=') {
            Some((pattern, _)) if delete => (pattern, ""),
            Some(parts) => parts,
            None if delete => (setting.as_str(), ""),
            None => misuse!("'{setting}' is not a setting; expected PATTERN=VALUE"),
        };
        let mut found = false;
        let names = file_systems(pattern);
        for (fsname, nid) in names.iter().flat_map(|name| places.iter().map(move |nid| (name, nid))) {
            let param = Param { path: pattern.to_owned(), value: value.to_owned() };
            let request = SetParamReq { fsname: fsname.clone(), param: Some(param), delete };
            let answer = ask::ask(std::slice::from_ref(nid), "MGS", Opcode::MgsSetParam, &request);
            match Errno::from_status(answer.map_err(anyhow::Error::msg)?.header.status) {
                Ok(()) => {
                    found = true;
                    if !quiet && !delete {
                        say!("{pattern}={value}");
                    }
                }
                // Another MGS has this file system, or it was not set.
                Err(Errno::ENOENT) => {}
                Err(errno) => {
                    found = true;
                    eprintln!("error: set_param: setting {pattern}={value}: {errno}");
                    code = 1;
                }
            }
        }
        if !found {
            code = not_found("set_param", pattern);
        }
    }
    Ok(ExitCode::from(code))
}

fn set_param(audience: &mut Audience, settings: &[String], quiet: bool) -> anyhow::Result<u8> {
    let mut code = 0;
    for setting in settings {
        let Some((pattern, value)) = setting.split_once('=') else {
            misuse!("'{setting}' is not a setting; expected PATTERN=VALUE");
        };
        let request = Request::SetParam { pattern: pattern.to_owned(), value: value.to_owned() };
        let mut found = false;
        let mut refused = None;
        for response in audience.ask(&request) {
            match response {
                Response::Params(params) => {
                    found = true;
                    for (name, value) in params.iter().filter(|_| !quiet) {
                        say!("{name}={value}");
                    }
                }
                Response::Failed(2, _) => {}
                // Each process has faults of its own: those that allow none do not matter if another does.
                Response::Failed(_, message) if host::faults::is_one(pattern) => {
                    refused = Some(message);
                }
                Response::Failed(_, message) => {
                    found = true;
                    eprintln!("error: set_param: setting {pattern}={value}: {message}");
                    code = 1;
                }
                _ => {}
            }
        }
        match refused {
            Some(message) if !found => {
                eprintln!("error: set_param: setting {pattern}={value}: {message}");
                code = 1;
            }
            None if !found => code = not_found("set_param", pattern),
            _ => {}
        }
    }
    // Nobody knows what it would have answered.
    if code == 0 && audience.is_incomplete() {
        code = 1;
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    use super::*;

    /// A process that answers everything with success, and one that hangs.
    #[test]
    fn a_process_that_hangs_is_named_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let [good, silent] = ["server-1.sock", "mount-2.sock"].map(|name| folder.path().join(name));
        let listener = UnixListener::bind(&good).unwrap();
        let _hangs = UnixListener::bind(&silent).unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = BufReader::new(&stream).read_line(&mut String::new());
                let answer = Response::Params(vec![("x".to_owned(), "1".to_owned())]);
                let _ = writeln!(stream, "{}", serde_json::to_string(&answer).unwrap());
            }
        });
        let settings = ["x=1".to_owned(), "y=1".to_owned()];
        let patience = Duration::from_secs(1);
        assert_eq!(set_param(&mut Audience::of(vec![good.clone()], patience), &settings, true).unwrap(), 0);
        let mut both = Audience::of(vec![silent, good], patience);
        assert_eq!(set_param(&mut both, &settings[..1], true).unwrap(), 1);
        assert_eq!(collect(&mut both, "x"), [("x".to_owned(), "1".to_owned())]);
        assert_eq!(both.len(), 1, "it is not asked again");
    }
}
