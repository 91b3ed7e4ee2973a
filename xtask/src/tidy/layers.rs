//! The layers of a crate whose modules may import in one direction only.

use super::sources::without_comments;
use super::{Findings, Tree, line_at};

/// A crate's top modules, lowest first. A module may import from its own layer and from the layers below.
struct Layers {
    sources: &'static str,
    layers: &'static [&'static [&'static str]],
}

const ALL: &[Layers] = &[Layers {
    sources: "crates/client/src/",
    layers: &[&["api", "stats"], &["base"], &["session"], &["cache"], &["coherence"], &["ops"], &["machine", "lib"]],
}];

/// No file imports from a layer above its own, including tests.
pub(super) fn layers(tree: &Tree) -> Findings {
    ALL.iter().flat_map(|layers| layers.findings(tree)).collect()
}

impl Layers {
    fn of(&self, module: &str) -> Option<usize> {
        self.layers.iter().position(|layer| layer.contains(&module))
    }

    fn findings(&self, tree: &Tree) -> Findings {
        let mut findings = Findings::new();
        for (path, text) in tree.ending_in(".rs").filter(|(path, _)| path.starts_with(self.sources)) {
            let file = &path[self.sources.len()..];
            let module = file.split('/').next().unwrap_or_default().trim_end_matches(".rs");
            let Some(layer) = self.of(module) else {
                findings.push(format!(
                    "{path}: '{module}' is in no layer; put it into the table of xtask/src/tidy/layers.rs"
                ));
                continue;
            };
            let code = without_comments(text);
            for (offset, _) in code.match_indices("crate::") {
                for named in heads(&code[offset + "crate::".len()..]) {
                    // Other names at the top of a crate are re-exports of its root.
                    if self.of(named).is_some_and(|other| other > layer) {
                        let line = line_at(&code, offset);
                        findings.push(format!(
                            "{path}:{line}: '{module}' must not know '{named}', which is a layer above it; \
                             move what it needs down, or let the layer above call"
                        ));
                    }
                }
            }
            if let Some(offset) = code.find("super::super::") {
                let line = line_at(&code, offset);
                findings.push(format!("{path}:{line}: 'super::super::' hides which layer is meant; write 'crate::'"));
            }
        }
        findings
    }
}

/// The first segments of a path after `crate::`: one, or those of a group in braces.
fn heads(rest: &str) -> Vec<&str> {
    let name = |text: &'_ str| text.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(text.len());
    let Some(group) = rest.strip_prefix('{') else { return vec![&rest[..name(rest)]] };
    let (mut depth, mut at, mut found) = (0, 0, Vec::new());
    for (offset, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                let item = group[at..offset].trim_start();
                found.push(&item[..name(item)]);
                at = offset + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        layers(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn a_name_from_above_is_caught_however_it_is_written() {
        let cache = "crates/client/src/cache/node.rs";
        assert_eq!(findings(cache, "use crate::session::Target;\nuse crate::{api::{Call, Stat}, base};\n"), 0);
        assert_eq!(findings(cache, "use crate::coherence::world::World;\n"), 1);
        assert_eq!(findings(cache, "use crate::{base, ops};\n"), 1);
        assert_eq!(findings(cache, "fn f() {\n    crate::machine::run();\n}\n"), 1);
        assert_eq!(findings(cache, "// See crate::ops.\n"), 0);
        assert_eq!(findings(cache, "use super::super::ops::dir;\n"), 1);
        assert_eq!(findings("crates/client/src/ops/dir.rs", "use crate::coherence::world::World;\n"), 0);
        assert_eq!(findings("crates/mdt/src/ops/dir.rs", "use crate::machine::run;\n"), 0);
    }

    #[test]
    fn a_module_without_a_layer_is_caught() {
        assert_eq!(findings("crates/client/src/extra.rs", "fn f() {}\n"), 1);
    }
}
