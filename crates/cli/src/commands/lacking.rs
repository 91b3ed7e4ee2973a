//! Verbs of Lustre's tools that this version lacks: they are recognized, and answered with one line.

use std::ffi::OsString;
use std::process::ExitCode;

use stdx::wildcard;

/// The answer to a verb that a tool does not have. An entry of `lacking` that ends in `*` stands for all verbs with that
/// prefix.
pub(crate) fn verb(tool: &str, words: &[OsString], lacking: &[&str]) -> ExitCode {
    let verb = words.first().map(|verb| verb.to_string_lossy().into_owned()).unwrap_or_default();
    if is_lacking(&verb, lacking) {
        eprintln!("error: {tool} {verb}: not in this version; see limits");
    } else {
        eprintln!("error: {tool} has no verb '{verb}'; see: {tool} --help");
    }
    ExitCode::from(2)
}

fn is_lacking(verb: &str, lacking: &[&str]) -> bool {
    lacking.iter().any(|known| wildcard::matches(known, verb))
}

#[cfg(test)]
mod tests {
    use super::is_lacking;

    #[test]
    fn families_of_verbs_are_known_by_their_beginning() {
        let lacking = ["dk", "nodemap_*"];
        assert!(is_lacking("dk", &lacking) && is_lacking("nodemap_add", &lacking));
        assert!(!is_lacking("dkk", &lacking) && !is_lacking("nodemap", &lacking));
    }
}
