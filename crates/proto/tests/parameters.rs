//! The tables of the guide's chapter on parameters, `docs/src/parameters.md`, are written from what is declared:
//!
//! ```text
//! BLESS=1 cargo test -p proto --test parameters
//! ```
//!
//! In the chapter a table stands between `<!-- params: TOPIC -->` and `<!-- end -->`; what is around it is written by hand.

use std::collections::BTreeSet;

use proto::params::{self, Access, Declared, Values};
use testkit::golden;

const CHAPTER: &str = include_str!("../../../docs/src/parameters.md");
const BEGIN: &str = "<!-- params: ";
const END: &str = "\n<!-- end -->\n";

/// What it counts, and within which bounds.
fn unit(declared: &Declared) -> String {
    // What is as good as unbounded.
    let vast = u64::from(u32::MAX);
    let bounds = match declared.values {
        Values::Switch | Values::Number { min: 0, max: 1 } => "0, 1".to_owned(),
        Values::Number { min: 0, max } if max >= vast => String::new(),
        Values::Number { min, max } if max >= vast => format!("at least {min}"),
        Values::Number { min, max } => format!("{min} to {max}"),
        Values::Percent => "0 to 100".to_owned(),
        // Their units say it.
        Values::Text | Values::Size { .. } => String::new(),
    };
    match [declared.unit, &bounds] {
        ["", ""] => "—".to_owned(),
        [one, ""] | ["", one] => one.to_owned(),
        both => both.join(", "),
    }
}

fn row(declared: &Declared) -> String {
    let names: Vec<String> = declared.forms().map(|form| format!("`{form}`")).collect();
    let access = match declared.access {
        Access::Get => "get",
        Access::Set => "set",
        Access::GetSet => "get, set",
    };
    let cells = [&names.join(", "), access, &unit(declared), declared.default.unwrap_or("—"), declared.doc];
    format!("| {} |\n", cells.join(" | "))
}

fn table(topic: &str) -> String {
    let rows = params::all().filter(|declared| declared.topic == topic).map(row);
    let head = "| parameter | access | unit | default | what it does |\n|---|---|---|---|---|\n".to_owned();
    core::iter::once(head).chain(rows).collect()
}

/// The chapter with its tables as they should be.
fn written() -> String {
    let mut parts = CHAPTER.split(BEGIN);
    let mut text = parts.next().unwrap().to_owned();
    for part in parts {
        let (topic, rest) = part.split_once(" -->\n").expect("a topic");
        let (_, after) = rest.split_once(END).expect("an end");
        text.extend([BEGIN, topic, " -->\n\n", &table(topic), END, after]);
    }
    text
}

#[test]
fn every_parameter_has_its_row_in_the_chapter() {
    let topics: BTreeSet<&str> =
        CHAPTER.split(BEGIN).skip(1).filter_map(|part| Some(part.split_once(" -->")?.0)).collect();
    assert_eq!(params::all().map(|declared| declared.topic).collect::<BTreeSet<_>>(), topics);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/parameters.md");
    golden::is_same(&written(), CHAPTER, path);
}
