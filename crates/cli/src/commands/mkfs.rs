//! `adamant mkfs`: formats a target.

use std::process::ExitCode;

use clap::Args;
use host::place::{self, NewTarget, Place};
use proto::{Nid, TargetIndex, TargetKind, TargetName};

use crate::misuse::{Misuse, misuse};
use crate::output::say;

/// Format a target in a directory
///
/// Example: adamant mkfs --fsname scratch --ost --index 1 --mgsnode 127.0.0.1:7988 /srv/ost1
#[derive(Args)]
pub(crate) struct Arguments {
    /// Name of the file system, at most 8 letters, digits or underscores
    #[arg(long, default_value = "adamant")]
    pub fsname: String,
    /// Configuration target; with --mdt both, in one directory
    #[arg(long)]
    pub mgs: bool,
    /// Metadata target
    #[arg(long, conflicts_with = "ost")]
    pub mdt: bool,
    /// Object target
    #[arg(long)]
    pub ost: bool,
    /// Its index in the file system
    #[arg(long, default_value_t = 0)]
    pub index: u32,
    /// Address of the MGS: HOST:PORT or unix:PATH
    #[arg(long = "mgsnode", value_name = "NID")]
    pub mgsnode: Vec<Nid>,
    /// PATH=VALUE: a parameter that the target sets at each start, as in mdt.dom_stripesize=0
    #[arg(long = "param", value_name = "PATH=VALUE")]
    pub params: Vec<String>,
    /// With --mdt: hash names without a key, so that version 0.1.0 can serve the target, too; users who may write to a
    /// directory can then keep others from making a file of a certain name in it. Other metadata targets do as MDT0000 does
    #[arg(long)]
    pub plain_names: bool,
    /// Destroy the target that the directory holds. Other files stay, and do not prevent the format
    #[arg(long)]
    pub reformat: bool,
    /// With --ost: replace a lost target of that index. Its data is gone: files that were on it give errors
    #[arg(long)]
    pub replace: bool,
    /// Directory, which is made if it does not exist; otherwise it must be empty
    #[arg(value_name = "TARGET")]
    pub target: String,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    if !TargetName::fsname_is_valid(&arguments.fsname) {
        misuse!("'{}' cannot name a file system; use 1 to 8 letters, digits or underscores", arguments.fsname);
    }
    let kinds = [(arguments.mgs, TargetKind::Mgt), (arguments.mdt, TargetKind::Mdt), (arguments.ost, TargetKind::Ost)];
    let kinds: Vec<TargetKind> = kinds.into_iter().filter_map(|(wanted, kind)| wanted.then_some(kind)).collect();
    if kinds.is_empty() {
        misuse!("say what to make: --mgs, --mdt or --ost");
    }
    if !arguments.mgs && arguments.mgsnode.is_empty() {
        misuse!("a metadata or object target must know its MGS; give --mgsnode HOST:PORT");
    }
    if arguments.replace && (arguments.mgs || !arguments.ost) {
        misuse!("only an object target can be replaced (--ost); put a copy of the store of another one back");
    }
    if arguments.index > 0xffff {
        misuse!("index {} is too large; at most 65535", arguments.index);
    }
    for param in &arguments.params {
        place::checked_param(param).map_err(Misuse::because)?;
    }
    let target = match arguments.target.parse::<Place>().map_err(Misuse::because)? {
        Place::Directory(directory) => directory,
        Place::Memory(name) => misuse!("a target in memory is made when it is served: adamant serve mem:{name}"),
    };
    for kind in &kinds {
        let fsname = if *kind == TargetKind::Mgt { String::new() } else { arguments.fsname.clone() };
        let index = if *kind == TargetKind::Mgt { 0 } else { arguments.index };
        let name = TargetName { fsname, kind: *kind, index: TargetIndex(index) };
        // A directory for both holds the MGT in a subdirectory.
        let directory = if kinds.len() > 1 && *kind == TargetKind::Mgt { target.join("mgt") } else { target.clone() };
        let new = NewTarget {
            name: name.clone(),
            mgs: arguments.mgsnode.clone(),
            reformat: arguments.reformat,
            params: arguments.params.clone(),
            plain_names: arguments.plain_names,
            replaces: arguments.replace,
        };
        place::format(&Place::Directory(directory.clone()), &new)?;
        say!("{name} made in {}", directory.display());
    }
    Ok(ExitCode::SUCCESS)
}
