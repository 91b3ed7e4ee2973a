//! `adamant tune`: shows what a target is, and changes a stopped one.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use host::place::{self, Changes, Place};
use proto::{Nid, TargetKind, TargetName};

use crate::misuse::Misuse;
use crate::output::say;

/// Show the identity, features and parameters of a target, also of one that is served, or change one that is not
///
/// Example: adamant tune --print /srv/mdt0; adamant tune --param mdt.dom_stripesize=0 /srv/mdt0
#[derive(Args)]
pub(crate) struct Arguments {
    /// Print, and change nothing whatever else is said
    #[arg(long)]
    pub print: bool,
    /// PATH=VALUE: a parameter that the target sets at each start; without a value: no more
    #[arg(long = "param", value_name = "PATH=VALUE")]
    pub params: Vec<String>,
    /// Forget the parameters that were given so before
    #[arg(long)]
    pub erase_params: bool,
    /// Register anew at the next start. On the MGT: forget all targets and persistent parameters; then every target
    /// of the file system needs it, too
    #[arg(long)]
    pub writeconf: bool,
    /// Where the MGS is, from the next start on; several for one that has several addresses
    #[arg(long = "mgsnode", value_name = "NID")]
    pub mgsnode: Vec<Nid>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// The directory
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
            // The rest is worth knowing all the more.
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
