//! `adamant serve`: serves targets until it is asked to stop.

use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::Args;
use host::place::Place;
use host::server::{ServeOptions, Server};
use proto::Nid;

use crate::daemon;
use crate::misuse::Misuse;

/// Serve targets
///
/// Example: adamant serve --listen 127.0.0.1:7988 /srv/mgt /srv/mdt0 /srv/ost0
#[derive(Args)]
pub(crate) struct Arguments {
    /// Address at which the first target listens; further ones take the next ports, or the path followed by their names
    #[arg(long, value_name = "NID", default_value = "127.0.0.1:7988")]
    pub listen: Nid,
    /// Address at which others find the first target, if it differs from --listen (0.0.0.0:PORT, in a container); further
    /// ones are found at the next ports. Can be given several times for a machine with several addresses
    #[arg(long, value_name = "NID")]
    pub tell: Vec<Nid>,
    /// Address of the MGS, instead of the one that the targets remember
    #[arg(long = "mgsnode", value_name = "NID")]
    pub mgsnode: Vec<Nid>,
    /// abort_recov, abort_recov_mdt, accept_old_store, noir, recovery_time_soft=SECONDS, recovery_time_hard=SECONDS,
    /// cache_mb=N; with --allow-faults also fail_loc=N, fail_val=N, fail_err=N
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<String>,
    /// Allow --listen at an address that other machines can reach, without any check of who they are
    #[arg(long)]
    pub insecure: bool,
    /// Allow fault injection (lctl set_param fail_loc=...), for tests
    #[arg(long)]
    pub allow_faults: bool,
    /// In the background, as `adamant up` starts it
    #[arg(long, hide = true)]
    pub background: bool,
    /// Directories of targets, or mem:NAME (lost with the process)
    #[arg(value_name = "TARGET", required = true)]
    pub targets: Vec<String>,
}

/// How long targets may take to register with an MGS in the same process, before the server counts as ready anyway.
const SERVING_PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

/// Runs the command.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    if arguments.background {
        daemon::detach();
    }
    host::log::start();
    host::process::prepare();
    let mut signals = daemon::Signals::catch()?;
    let started = options(&arguments).map_err(Misuse::because).and_then(|options| {
        let places = arguments.targets.iter().map(|target| target.parse());
        let places = places.collect::<Result<Vec<Place>, _>>().map_err(Misuse::because)?;
        Ok(Server::start(&places, &options)?)
    });
    let server = match started {
        Ok(server) => server,
        Err(error) => {
            if arguments.background {
                daemon::tell_parent(&format!("{error:#}"));
            }
            return Err(error);
        }
    };
    for (name, nid) in server.targets() {
        eprintln!("{name} serves at {nid}");
    }
    // So that a mount that follows finds the file system registered.
    server.wait_serving(SERVING_PATIENCE);
    if arguments.background {
        daemon::tell_parent("ready");
    }
    daemon::tell_systemd(&[sd_notify::NotifyState::Ready]);
    signals.wait(|| server.is_finished());
    daemon::tell_systemd(&[sd_notify::NotifyState::Stopping]);
    server.stop()?;
    Ok(ExitCode::SUCCESS)
}

/// A table of faults, which can be set if that is allowed.
pub(crate) fn allowed_faults(allow: bool) -> stdx::Faults {
    if allow { stdx::Faults::allowed(host::clock::seed()) } else { stdx::Faults::none() }
}

fn options(arguments: &Arguments) -> anyhow::Result<ServeOptions> {
    let mut options = ServeOptions {
        listen: arguments.listen.clone(),
        tell: arguments.tell.clone(),
        mgs: arguments.mgsnode.clone(),
        insecure: arguments.insecure,
        faults: allowed_faults(arguments.allow_faults),
        ..ServeOptions::default()
    };
    if !arguments.listen.is_local() {
        if !arguments.insecure {
            bail!(
                "{} can be reached from other machines, and this version has no certificates to tell friend from foe; \
                 listen on 127.0.0.1 or unix:PATH, or add --insecure to let anyone who reaches it do anything",
                arguments.listen
            );
        }
        eprintln!(
            "warning: {} is open to everyone who can reach it: they can read, change and remove all files as any user",
            arguments.listen
        );
    }
    for option in &arguments.options {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let seconds = || value.parse::<u64>().map_err(|_| anyhow!("option '{option}' needs a number of seconds"));
        match key {
            "abort_recov" | "abort_recovery" => options.abort_recovery = true,
            "abort_recov_mdt" | "abort_recovery_mdt" => options.abort_recovery_mdt = true,
            "accept_old_store" => options.accept_old_store = true,
            "noir" => options.noir = true,
            "recovery_time_soft" => options.recovery_soft_s = seconds()?,
            "recovery_time_hard" => options.recovery_hard_s = seconds()?,
            "cache_mb" => {
                options.cache_bytes = value
                    .parse::<u64>()
                    .ok()
                    .filter(|mb| *mb >= 1)
                    .ok_or_else(|| anyhow!("option '{option}' needs a number of MiB"))?
                    << 20;
            }
            _ if host::faults::is_one(key) => host::faults::set_at_start(&options.faults, key, value)?,
            _ => {
                bail!(
                    "option '{key}' is unknown; known are abort_recov, abort_recov_mdt, accept_old_store, noir, recovery_time_soft=N, recovery_time_hard=N, cache_mb=N, \
                     fail_loc=N, fail_val=N, fail_err=N"
                );
            }
        }
    }
    Ok(options)
}

/// Starts a server, for `adamant up --foreground`.
pub(crate) fn start(places: &[Place], options: &ServeOptions) -> anyhow::Result<Server> {
    let server = Server::start(places, options)?;
    server.wait_serving(SERVING_PATIENCE);
    Ok(server)
}
