//! Older versions of the program, which `cargo xtask compat` builds from the history.

use std::path::{Path, PathBuf};

use crate::{binary, skip};

/// The program of an older version. Without one the test is skipped with a message, or fails if it has to be there: the variable
/// `ADAMANT_COMPAT` names the folder of older versions, as in CI, and the file `built` there says which of them were built.
pub fn older(version: &str) -> Option<PathBuf> {
    let name = format!("adamant-{version}");
    let named = std::env::var_os("ADAMANT_COMPAT").map(PathBuf::from);
    let usual = || binary().ancestors().nth(2).map(|target| target.join("compat/bin")).unwrap_or_default();
    let path = named.clone().unwrap_or_else(usual).join(&name);
    match std::fs::canonicalize(&path) {
        Ok(program) => Some(program),
        Err(error) if named.is_some_and(|folder| has_to_be_there(&folder, version)) => {
            panic!("{}: {error}; build it with `cargo xtask compat`", path.display())
        }
        Err(_) => {
            skip(&format!("needs version {version} of the program at {}; run `cargo xtask compat`", path.display()));
            None
        }
    }
}

fn has_to_be_there(folder: &Path, version: &str) -> bool {
    let built = std::fs::read_to_string(folder.join("built"));
    built.is_ok_and(|names| names.lines().any(|name| name == version))
}
