//! Rules over the Cargo files: one workspace table with reasons, descriptions, the core's clippy.toml.

use super::edges::CORE;
use super::{Findings, Tree};

fn parsed<'a>(tree: &'a Tree, suffix: &'a str) -> impl Iterator<Item = (&'a str, toml::Table)> {
    tree.ending_in(suffix).filter_map(|(path, text)| Some((path, text.parse().ok()?)))
}

/// Every crate has a `description` of one sentence.
pub(super) fn crate_descriptions(tree: &Tree) -> Findings {
    parsed(tree, "/Cargo.toml")
        .filter(|(_, manifest)| {
            let description = manifest.get("package").and_then(|package| package.get("description")?.as_str());
            manifest.contains_key("package") && description.is_none_or(|text| text.trim().is_empty())
        })
        .map(|(path, _)| format!("{path}: has no description"))
        .collect()
}

/// Members take every dependency from the workspace's table, so that each version is chosen once.
pub(super) fn workspace_dependencies(tree: &Tree) -> Findings {
    let mut findings = Findings::new();
    // A separate workspace (the fuzzers, which need another compiler) is not a member.
    for (path, manifest) in parsed(tree, "/Cargo.toml").filter(|(_, manifest)| !manifest.contains_key("workspace")) {
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(toml::Value::Table(table)) = manifest.get(section) else { continue };
            for (name, value) in table {
                if value.get("workspace").and_then(toml::Value::as_bool) != Some(true) {
                    findings.push(format!(
                        "{path}: '{name}' must say `workspace = true`; its version stands in Cargo.toml"
                    ));
                }
            }
        }
        if manifest.contains_key("target") {
            findings.push(format!("{path}: dependencies per target are not used here"));
        }
    }
    findings
}

/// Every line of the workspace's table gives the reason for the dependency. Our own crates have their description.
pub(super) fn dependency_reasons(tree: &Tree) -> Findings {
    let mut findings = Findings::new();
    let mut inside = false;
    for (index, line) in tree.get("Cargo.toml").unwrap_or_default().lines().enumerate() {
        if line.starts_with('[') {
            inside = line.trim() == "[workspace.dependencies]";
            continue;
        }
        let entry = inside && line.contains('=') && !line.starts_with('#');
        // Versions and features contain no '#', so the first one starts the comment.
        let reason = line.split_once('#').map_or("", |(_, reason)| reason.trim());
        if entry && !line.contains("path = ") && reason.is_empty() {
            let name = line.split('=').next().unwrap_or_default().trim();
            findings
                .push(format!("Cargo.toml:{}: '{name}' has no reason; say in a comment why it is there", index + 1));
        }
    }
    findings
}

/// The code map in ARCHITECTURE.md has each crate's description, in the same words.
pub(super) fn code_map(tree: &Tree) -> Findings {
    let map = tree.get("ARCHITECTURE.md").unwrap_or_default();
    parsed(tree, "/Cargo.toml")
        .filter_map(|(path, manifest)| {
            let folder = path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
            let description = manifest.get("package")?.get("description")?.as_str()?;
            let row = format!("| `{folder}` | {description} |");
            (!map.contains(&row)).then(|| format!("ARCHITECTURE.md: the code map must have the row: {row}"))
        })
        .collect()
}

/// Each core crate has the clippy.toml that bans the escape hatches.
pub(super) fn core_clippy(tree: &Tree) -> Findings {
    let Some(expected) = tree.get("clippy-core.toml") else {
        return vec!["clippy-core.toml: is missing; the core crates' clippy.toml are links to it".to_owned()];
    };
    CORE.iter()
        .filter(|name| tree.has(&format!("crates/{name}/Cargo.toml")))
        .map(|name| format!("crates/{name}/clippy.toml"))
        .filter(|path| tree.get(path) != Some(expected))
        .map(|path| format!("{path}: must be a link to ../../clippy-core.toml"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_and_an_empty_description_are_caught() {
        let tree = Tree::of(&[
            ("crates/a/Cargo.toml", "[package]\nname = \"a\"\n"),
            ("crates/b/Cargo.toml", "[package]\nname = \"b\"\ndescription = \" \"\n"),
            ("crates/c/Cargo.toml", "[package]\nname = \"c\"\ndescription = \"A role\"\n"),
        ]);
        assert_eq!(
            crate_descriptions(&tree),
            ["crates/a/Cargo.toml: has no description", "crates/b/Cargo.toml: has no description"]
        );
    }

    #[test]
    fn a_crate_that_the_code_map_describes_otherwise_or_not_is_caught() {
        let tree = Tree::of(&[
            ("ARCHITECTURE.md", "# Architecture\n| `a` | A role |\n| `b` | Another |\n"),
            ("crates/a/Cargo.toml", "[package]\nname = \"a\"\ndescription = \"A role\"\n"),
            ("crates/b/Cargo.toml", "[package]\nname = \"b\"\ndescription = \"B role\"\n"),
            ("crates/c/Cargo.toml", "[package]\nname = \"c\"\ndescription = \"C role\"\n"),
        ]);
        assert_eq!(
            code_map(&tree),
            [
                "ARCHITECTURE.md: the code map must have the row: | `b` | B role |",
                "ARCHITECTURE.md: the code map must have the row: | `c` | C role |"
            ]
        );
    }

    #[test]
    fn a_version_or_a_path_in_a_member_is_caught() {
        let manifest = "[package]\nname = \"a\"\n[dependencies]\nbytes = \"1\"\nstdx = { path = \"../stdx\" }\n\
                        prost = { workspace = true, features = [\"std\"] }\nserde.workspace = true\n";
        let findings = workspace_dependencies(&Tree::of(&[("crates/a/Cargo.toml", manifest)]));
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].contains("'bytes'") && findings[1].contains("'stdx'"), "{findings:?}");
    }

    #[test]
    fn a_dependency_without_a_reason_is_caught() {
        let manifest = "[workspace.dependencies]\n# --- ours ---\nstdx = { path = \"crates/stdx\" }\n\
                        bytes = \"1\" # slices\nserde = \"1\"\nlibc = \"0.2\" #\n[profile.release]\ndebug = 1\n";
        let findings = dependency_reasons(&Tree::of(&[("Cargo.toml", manifest)]));
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].starts_with("Cargo.toml:5: 'serde'"), "{findings:?}");
        assert!(findings[1].starts_with("Cargo.toml:6: 'libc'"), "{findings:?}");
    }

    #[test]
    fn a_core_crate_with_its_own_or_no_clippy_file_is_caught() {
        let tree = Tree::of(&[
            ("clippy-core.toml", "strict"),
            ("crates/rpc/Cargo.toml", ""),
            ("crates/rpc/clippy.toml", "lax"),
            ("crates/mdt/Cargo.toml", ""),
            ("crates/stdx/Cargo.toml", ""),
            ("crates/stdx/clippy.toml", "strict"),
        ]);
        assert_eq!(
            core_clippy(&tree),
            [
                "crates/rpc/clippy.toml: must be a link to ../../clippy-core.toml",
                "crates/mdt/clippy.toml: must be a link to ../../clippy-core.toml"
            ]
        );
        assert_eq!(core_clippy(&Tree::default()).len(), 1);
    }
}
