//! What runs the scripts.

pub(crate) mod cluster;
pub(crate) mod frames;
pub(crate) mod trace;

/// The command and what it gave: on one line, if that is one.
pub(crate) fn line(command: &goldenscript::Command, told: &str) -> String {
    if told.contains('\n') { format!("{command}:\n{told}") } else { format!("{command}: {told}") }
}
