//! The allowed dependencies between crates, and crates that the core must never depend on.
//!
//! Dependencies point one way. Servers never depend on each other or on the client; they share `proto`. The table
//! applies to tests too, with the exceptions of a second table: a test that needs more belongs in `sim` or `e2e`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use serde_json::Value;

use super::{Findings, Tree};

/// The core: no I/O, no clock, no randomness, no threads, no async. In order of dependence.
pub(crate) const CORE: &[&str] =
    &["stdx", "proto", "rules", "rpc", "dlm", "store", "schema", "target", "lfsck", "mgt", "mdt", "ost", "client"];

/// Package name, and the packages of this workspace that it may depend on.
const EDGES: &[(&str, &[&str])] = &[
    // The core.
    ("stdx", &[]),
    ("proto", &["stdx"]),
    ("rules", &["stdx", "proto"]),
    ("rpc", &["stdx", "proto"]),
    ("dlm", &["stdx", "proto"]),
    ("store", &["stdx"]),
    ("schema", &["stdx", "proto", "rules", "store"]),
    ("target", &["stdx", "proto", "rpc", "dlm", "store", "schema"]),
    ("lfsck", &["stdx", "proto", "rules", "store", "schema"]),
    ("mgt", SERVER),
    ("mdt", SERVER),
    ("ost", SERVER),
    ("client", &["stdx", "proto", "rules", "rpc", "dlm"]),
    // The real world.
    ("engine", &["stdx", "store"]),
    (
        "host",
        &[
            "stdx", "proto", "rules", "rpc", "dlm", "store", "schema", "target", "lfsck", "mgt", "mdt", "ost",
            "client", "engine",
        ],
    ),
    ("fusewire", &[]),
    ("fuse", &["stdx", "proto", "client", "host", "fusewire"]),
    ("bench", &["stdx", "proto", "rpc", "store", "engine", "client", "host", "fuse", "fusewire"]),
    ("adamant", &["stdx", "proto", "store", "schema", "client", "engine", "host", "fuse", "bench", "sim"]),
    ("e2e", &["stdx", "proto"]),
    // The simulated world: the core, and nothing of the real world.
    ("sim", CORE),
    // What tests share: it drives the core, too.
    ("testkit", CORE),
    ("xtask", &[]),
];

/// Additional dependencies of tests: the test kit, which only tests may use, and for the client the real targets, because its
/// stories do not run against imitations of them.
const TEST_EDGES: &[(&str, &[&str])] = &[
    ("proto", &["testkit"]),
    ("dlm", &["testkit"]),
    ("schema", &["testkit"]),
    ("target", &["testkit"]),
    ("mgt", &["testkit"]),
    ("mdt", &["testkit"]),
    ("ost", &["testkit"]),
    ("client", &["store", "schema", "target", "lfsck", "mgt", "mdt", "ost", "testkit"]),
];

const SERVER: &[&str] = &["stdx", "proto", "rules", "rpc", "dlm", "store", "schema", "target", "lfsck"];

/// External crates that a core crate may depend on: pure code.
const CORE_MAY_NAME: &[&str] = &[
    "buf-list",
    "bytes",
    "crc32c",
    "foldhash",
    "hashbrown",
    "prost",
    "proptest",
    "rand_core",
    "rand_pcg",
    "siphasher",
    "smallvec",
    "thiserror",
];

/// Crates that a core crate must not depend on, at any depth.
const NEVER_BELOW_CORE: &[&str] = &[
    "tokio",
    "rustix",
    "libc",
    "parking_lot",
    "tracing",
    "heed",
    "fusewire",
    "io-uring",
    "mio",
    "getrandom",
    "async-trait",
    "anyhow",
];

/// A member's manifest, with its dependencies from all sections.
struct Member {
    path: String,
    package: String,
    dependencies: BTreeSet<String>,
    only_in_tests: BTreeSet<String>,
}

fn members(tree: &Tree) -> (Vec<Member>, Findings) {
    let mut members = Vec::new();
    let mut findings = Findings::new();
    for (path, text) in tree.ending_in("/Cargo.toml") {
        let Ok(manifest) = text.parse::<toml::Table>() else {
            findings.push(format!("{path}: is not valid TOML"));
            continue;
        };
        let Some(package) = manifest.get("package").and_then(|package| package.get("name")?.as_str()) else {
            continue;
        };
        // A separate workspace is not a member.
        if manifest.contains_key("workspace") {
            continue;
        }
        let named_in = |section: &str| -> BTreeSet<String> {
            manifest.get(section).and_then(toml::Value::as_table).into_iter().flat_map(|t| t.keys().cloned()).collect()
        };
        let shipped = &named_in("dependencies") | &named_in("build-dependencies");
        let only_in_tests = &named_in("dev-dependencies") - &shipped;
        let dependencies = &shipped | &only_in_tests;
        members.push(Member { path: path.to_owned(), package: package.to_owned(), dependencies, only_in_tests });
    }
    (members, findings)
}

/// Every dependency between the workspace's crates is in the table.
pub(crate) fn dependency_edges(tree: &Tree) -> Findings {
    let (members, mut findings) = members(tree);
    let table: BTreeMap<&str, &[&str]> = EDGES.iter().copied().collect();
    for member in members {
        let Some(allowed) = table.get(&*member.package) else {
            findings.push(format!("{}: '{}' is not in the table of xtask's tidy::edges", member.path, member.package));
            continue;
        };
        let in_tests =
            TEST_EDGES.iter().find(|(package, _)| *package == member.package).map_or(&[][..], |(_, more)| more);
        for dependency in &member.dependencies {
            let is_allowed = allowed.contains(&&**dependency)
                || (member.only_in_tests.contains(dependency) && in_tests.contains(&&**dependency));
            if table.contains_key(&**dependency) && !is_allowed {
                findings.push(format!("{}: '{}' must not depend on '{dependency}'", member.path, member.package));
            }
        }
    }
    findings
}

/// Core crates depend only on pure libraries.
pub(crate) fn core_dependencies(tree: &Tree) -> Findings {
    let (members, _) = members(tree);
    let ours: BTreeSet<&str> = EDGES.iter().map(|(package, _)| *package).collect();
    let mut findings = Findings::new();
    for member in members.iter().filter(|member| CORE.contains(&&*member.package)) {
        for dependency in &member.dependencies {
            if !ours.contains(&**dependency) && !CORE_MAY_NAME.contains(&&**dependency) {
                findings.push(format!(
                    "{}: a core crate must not depend on '{dependency}' (no I/O, no clock, no threads)",
                    member.path
                ));
            }
        }
    }
    findings
}

/// No dependency of a core crate, at any depth, does I/O. Reads the output of `cargo metadata`; build scripts, macros and
/// tests are not part of the core at run time and do not count.
pub(crate) fn core_closure(metadata: &str) -> anyhow::Result<Findings> {
    let metadata: Value = serde_json::from_str(metadata).context("cargo metadata printed no JSON")?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();

    let mut names = BTreeMap::new();
    let mut macros = BTreeSet::new();
    for package in list(&metadata["packages"]) {
        let id = text(&package["id"]);
        let is_macro =
            list(&package["targets"]).iter().any(|target| list(&target["kind"]).contains(&Value::from("proc-macro")));
        if is_macro {
            macros.insert(id.clone());
        }
        names.insert(id, text(&package["name"]));
    }
    let mut below: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for node in list(&metadata["resolve"]["nodes"]) {
        let dependencies = list(&node["deps"])
            .iter()
            .filter(|dependency| list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null()))
            .map(|dependency| text(&dependency["pkg"]))
            .filter(|id| !macros.contains(id))
            .collect();
        below.insert(text(&node["id"]), dependencies);
    }

    let members: BTreeSet<String> = list(&metadata["workspace_members"]).iter().map(text).collect();
    let mut findings = Findings::new();
    for root in members.iter().filter(|id| names.get(*id).is_some_and(|name| CORE.contains(&&**name))) {
        let mut seen = BTreeSet::new();
        let mut open = vec![(root.clone(), names[root].clone())];
        while let Some((id, chain)) = open.pop() {
            for next in below.get(&id).into_iter().flatten() {
                let name = names.get(next).cloned().unwrap_or_default();
                if !seen.insert(next.clone()) {
                    continue;
                }
                let chain = format!("{chain} -> {name}");
                if NEVER_BELOW_CORE.contains(&&*name) {
                    findings.push(format!("the core must not pull in '{name}': {chain}"));
                }
                open.push((next.clone(), chain));
            }
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(name: &str, dependencies: &[&str]) -> String {
        let lines: Vec<String> = dependencies.iter().map(|name| format!("{name}.workspace = true\n")).collect();
        format!("[package]\nname = \"{name}\"\n[dependencies]\n{}", lines.concat())
    }

    #[test]
    fn a_server_that_names_another_is_caught() {
        let tree = Tree::of(&[
            ("crates/mdt/Cargo.toml", &manifest("mdt", &["proto", "ost"])),
            ("crates/ost/Cargo.toml", &manifest("ost", &["client"])),
        ]);
        assert_eq!(
            dependency_edges(&tree),
            [
                "crates/mdt/Cargo.toml: 'mdt' must not depend on 'ost'",
                "crates/ost/Cargo.toml: 'ost' must not depend on 'client'"
            ]
        );
    }

    #[test]
    fn an_edge_only_for_tests_and_an_unknown_crate_are_caught() {
        let tree = Tree::of(&[
            ("crates/dlm/Cargo.toml", "[package]\nname = \"dlm\"\n[dev-dependencies]\nrpc.workspace = true\n"),
            ("crates/misc/Cargo.toml", &manifest("misc", &[])),
            ("crates/client/Cargo.toml", "[package]\nname = \"client\"\n[dev-dependencies]\nmdt.workspace = true\n"),
        ]);
        assert_eq!(
            dependency_edges(&tree),
            [
                "crates/dlm/Cargo.toml: 'dlm' must not depend on 'rpc'",
                "crates/misc/Cargo.toml: 'misc' is not in the table of xtask's tidy::edges"
            ]
        );
    }

    #[test]
    fn the_table_has_no_cycle_and_no_way_out_of_the_core() {
        let position = |name: &&str| EDGES.iter().position(|(package, _)| package == name);
        for (package, allowed) in EDGES {
            for name in *allowed {
                assert!(position(name).is_some(), "{package} may name {name}, which has no row");
                let (_, back) = EDGES[position(name).unwrap()];
                assert!(!back.contains(package), "{package} and {name} may name each other");
                if CORE.contains(package) {
                    assert!(CORE.contains(name), "{package} is core and may name {name}");
                }
            }
        }
    }

    #[test]
    fn a_core_crate_that_names_a_runtime_is_caught() {
        let tree = Tree::of(&[
            ("crates/rpc/Cargo.toml", &manifest("rpc", &["bytes", "tokio"])),
            ("crates/host/Cargo.toml", &manifest("host", &["tokio"])),
        ]);
        assert_eq!(
            core_dependencies(&tree),
            ["crates/rpc/Cargo.toml: a core crate must not depend on 'tokio' (no I/O, no clock, no threads)"]
        );
    }

    #[test]
    fn a_runtime_behind_a_pure_library_is_caught() {
        let metadata = r#"{
            "workspace_members": ["1"],
            "packages": [
                {"id": "1", "name": "proto", "targets": [{"kind": ["lib"]}]},
                {"id": "2", "name": "pure", "targets": [{"kind": ["lib"]}]},
                {"id": "3", "name": "libc", "targets": [{"kind": ["lib"]}]},
                {"id": "4", "name": "derive", "targets": [{"kind": ["proc-macro"]}]},
                {"id": "5", "name": "anyhow", "targets": [{"kind": ["lib"]}]}
            ],
            "resolve": {"nodes": [
                {"id": "1", "deps": [
                    {"pkg": "2", "dep_kinds": [{"kind": null}]},
                    {"pkg": "4", "dep_kinds": [{"kind": null}]},
                    {"pkg": "5", "dep_kinds": [{"kind": "dev"}]}
                ]},
                {"id": "2", "deps": [{"pkg": "3", "dep_kinds": [{"kind": null}]}]},
                {"id": "4", "deps": [{"pkg": "5", "dep_kinds": [{"kind": null}]}]}
            ]}
        }"#;
        assert_eq!(core_closure(metadata).unwrap(), ["the core must not pull in 'libc': proto -> pure -> libc"]);
    }
}
