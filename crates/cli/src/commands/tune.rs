//! `adamant tune`: shows what a stopped target is.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use host::server::{self, Place};

/// Show the identity and features of a target that is not running
///
/// Example: adamant tune --print /srv/mdt0
#[derive(Args)]
pub struct Arguments {
    /// Print and change nothing (what this version does anyway)
    #[arg(long)]
    pub print: bool,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// The directory
    #[arg(value_name = "TARGET")]
    pub target: PathBuf,
}

/// Runs the command.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let header = server::identify(&Place::Directory(arguments.target.clone())).map_err(anyhow::Error::msg)?;
    let uuid: String = header.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let rows = [
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
    ];
    if arguments.json {
        let map: serde_json::Map<String, serde_json::Value> =
            rows.iter().map(|(key, value)| ((*key).to_owned(), value.clone().into())).collect();
        println!("{}", serde_json::to_string_pretty(&map)?);
    } else {
        for (key, value) in rows {
            println!("{key}: {value}");
        }
    }
    Ok(ExitCode::SUCCESS)
}
