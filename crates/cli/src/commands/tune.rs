//! `adamant tune`: shows the settings of a target, and changes those of an offline one.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use host::place::{self, Changes, Place};
use proto::{Nid, TargetKind, TargetName};

use crate::misuse::Misuse;
use crate::output::say;

/// Show the identity, features and parameters of a target, even while it is served, or change one that is not served
///
/// Example: adamant tune --print /srv/mdt0; adamant tune --param mdt.dom_stripesize=0 /srv/mdt0
#[derive(Args)]
pub(crate) struct Arguments {
    /// Print only, and ignore options that would change something
    #[arg(long)]
    pub print: bool,
    /// PATH=VALUE: a parameter that the target sets at each start; an empty value drops the parameter
    #[arg(long = "param", value_name = "PATH=VALUE")]
    pub params: Vec<String>,
    /// Drop the parameters that were given earlier
    #[arg(long)]
    pub erase_params: bool,
    /// Register anew at the next start. On the MGT: forget all targets and persistent parameters; then every target of the
    /// file system needs this option, too
    #[arg(long)]
    pub writeconf: bool,
    /// Address of the MGS from the next start on; can be given several times for an MGS with several addresses
    #[arg(long = "mgsnode", value_name = "NID")]
    pub mgsnode: Vec<Nid>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
    /// Directory of the target
    #[arg(value_name = "TARGET")]
    pub target: PathBuf,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    for param in &arguments.params {
        place::checked_param(param).map_err(Misuse::because)?;
    }
    let changes = Changes {
        erase_params: arguments.erase_params,
        params: arguments.params.clone(),
        writeconf: arguments.writeconf,
        mgs: arguments.mgsnode.clone(),
    };
    let changes_something =
        changes.erase_params || changes.writeconf || !changes.params.is_empty() || !changes.mgs.is_empty();
    let header = if changes_something && !arguments.print {
        place::change(&arguments.target, &changes)?
    } else {
        place::identify(&Place::Directory(arguments.target.clone()))?
    };
    let uuid: String = header.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut rows = vec![
        ("name", header.name.clone()),
        ("uuid", uuid),
        ("mgsnode", header.mgs_nids.join(",")),
        ("registered", header.registered.to_string()),
        ("mount_count", header.mount_count.to_string()),
        ("feature_compat", format!("{:#x}", header.compat)),
        ("feature_rocompat", format!("{:#x}", header.rocompat)),
        ("feature_incompat", format!("{:#x}", header.incompat)),
        ("epoch", header.epoch.to_string()),
        ("made_by", header.made_by.clone()),
        ("params", header.params.join(" ")),
    ];
    if header.name.parse::<TargetName>().is_ok_and(|name| name.kind == TargetKind::Mgt) {
        match place::persistent_params(&arguments.target) {
            Ok(kept) => rows.push(("persistent", kept.join("; "))),
            // The other settings are then all the more useful.
            Err(error) => eprintln!(
                "warning: cannot read the persistent parameters: {error}; while it is served, ask: lctl get_param -P '**'"
            ),
        }
    }
    rows.extend(place::ways_back(&header).into_iter().map(|way| ("way_back", way.to_owned())));
    if arguments.json {
        let map: serde_json::Map<String, serde_json::Value> =
            rows.iter().map(|(key, value)| ((*key).to_owned(), value.clone().into())).collect();
        say!("{}", serde_json::to_string_pretty(&map)?);
    } else {
        for (key, value) in rows {
            say!("{key}: {value}");
        }
    }
    Ok(ExitCode::SUCCESS)
}
