//! The rule that the table of mutants matches the sources, and that the guide's page has a row for each.

use super::{Findings, Tree};
use crate::mutants::page::{PAGE, differences};
use crate::mutants::table::{self, FOLDER};

/// The snippet of every mutant occurs once, and the page lists exactly the mutants of the table.
pub(super) fn mutants(tree: &Tree) -> Findings {
    let mutants = match table::read(tree.ending_in(".toml").filter(|(path, _)| path.starts_with(FOLDER))) {
        Ok(mutants) => mutants,
        Err(error) => return vec![format!("{error:#}")],
    };
    if mutants.is_empty() {
        return Findings::new();
    }
    let page = differences(tree.get(PAGE).unwrap_or_default(), &mutants);
    let page = page.into_iter().map(|what| format!("{PAGE}: {what}; run `cargo xtask mutants --check`"));
    table::findings(&mutants, |file| tree.get(file)).into_iter().chain(page).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "[[mutant]]\nname = 'a'\nfault = 'F.'\nfile = 'f.rs'\nold = 'x'\nnew = 'y'\n";

    #[test]
    fn a_mutant_that_the_code_has_left_behind_is_caught() {
        let page = "| `a` | F. | `f.rs` | — | not run yet |\n";
        let find = |text, page| mutants(&Tree::of(&[("tests/mutants/t.toml", TABLE), ("f.rs", text), (PAGE, page)]));
        assert!(find("x", page).is_empty());
        assert_eq!(find("z", page).len(), 1, "gone");
        assert_eq!(find("x", "").len(), 1, "not on the page");
        assert!(mutants(&Tree::of(&[])).is_empty());
    }

    #[test]
    fn a_table_that_cannot_be_read_is_caught() {
        assert_eq!(mutants(&Tree::of(&[("tests/mutants/t.toml", "name = 1\n")])).len(), 1);
    }
}
