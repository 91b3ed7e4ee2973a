//! The bytes of every record with every field set: key, sealed record, and each part of one, for ever.
//!
//! A test here that fails means that an older or a newer version would misread what lies on a medium. A new record gets a
//! new line in `golden/records.txt`, a new field makes its line longer; nothing else there ever changes, unless the
//! record's format version rises and the old one is upgraded when it is read.

use core::fmt::Debug;
use schema::{Record, format_version, formats};
use std::collections::{BTreeMap, BTreeSet};
use store::Value;
use testkit::samples::hex;
use testkit::samples::records::{self, Visitor};

const GOLDEN: &str = include_str!("golden/records.txt");

const SOURCES: &[&str] = &[
    include_str!("../src/config.rs"),
    include_str!("../src/entry.rs"),
    include_str!("../src/header.rs"),
    include_str!("../src/inode.rs"),
    include_str!("../src/links.rs"),
    include_str!("../src/mdt.rs"),
    include_str!("../src/object.rs"),
    include_str!("../src/session.rs"),
];

/// Field numbers at the top of an encoded message.
fn top_level_tags(mut body: &[u8]) -> BTreeSet<u32> {
    let mut tags = BTreeSet::new();
    while !body.is_empty() {
        let (tag, wire_type) = prost::encoding::decode_key(&mut body).unwrap();
        prost::encoding::skip_field(wire_type, tag, &mut body, prost::encoding::DecodeContext::default()).unwrap();
        tags.insert(tag);
    }
    tags
}

/// What the samples give: lines of the golden file, and the field numbers that they set.
#[derive(Default)]
struct Seen {
    lines: Vec<String>,
    tags: BTreeMap<&'static str, BTreeSet<u32>>,
    records: BTreeSet<&'static str>,
    tables: BTreeMap<Vec<u8>, &'static str>,
}

impl Visitor for Seen {
    fn record<R: Record + PartialEq + Debug>(&mut self, name: &'static str, id: R::Id, record: R)
    where
        R::Id: PartialEq + Debug,
    {
        let (key, body) = (R::key(&id), record.encode_record());
        let sealed = formats().seal(&key, &body);
        self.lines.push(format!("{name} {} {}", hex(&key), hex(&sealed)));
        assert_eq!(R::parse_key(&key), Some(id), "{name}");
        assert_eq!(formats().open(&key, &sealed), Ok(body.clone()), "{name}");
        assert_eq!(R::decode_record(&body).as_ref(), Ok(&record), "{name}");
        assert!(R::all().contains(&key), "{name}");
        assert_eq!(format_version(&key), R::FORMAT_VERSION, "{name}");
        assert_eq!(key[0], R::TABLE, "{name}");
        self.records.insert(name);
        // Bytes that are nothing but bytes have no fields.
        if !matches!(name, "LargeXattr" | "SmallData") {
            self.tags.insert(name, top_level_tags(&body));
            // What a newer version added is skipped.
            let newer = Value::from([&body[..], b"\xc2\x3e\x03new\xc8\x3e\x01"].concat());
            assert_eq!(R::decode_record(&newer).as_ref(), Ok(&record), "{name}");
        }
        let prefix = if R::TABLE == 0x02 { key[..2].to_vec() } else { key[..1].to_vec() };
        assert_eq!(self.tables.insert(prefix, name), None, "{name} shares its table");
    }

    fn part<M: prost::Message + Default + PartialEq + Debug>(&mut self, name: &'static str, part: M) {
        let body = part.encode_to_vec();
        self.lines.push(format!("{name} - {}", hex(&body)));
        assert_eq!(M::decode(&body[..]).as_ref(), Ok(&part), "{name}");
        self.tags.insert(name, top_level_tags(&body));
    }
}

fn seen() -> Seen {
    let mut seen = Seen::default();
    records::for_each(&mut seen);
    seen
}

#[test]
fn every_record_has_its_golden_bytes() {
    let golden: BTreeSet<&str> = GOLDEN.lines().filter(|line| !line.starts_with('#')).map(str::trim_end).collect();
    let seen = seen();
    let now: BTreeSet<&str> = seen.lines.iter().map(|line| line.trim_end()).collect();
    let wrong: Vec<&str> = now.difference(&golden).copied().collect();
    assert!(wrong.is_empty(), "these records are not written as golden/records.txt says:\n{}", wrong.join("\n"));
    assert_eq!(now.len(), golden.len(), "golden/records.txt has a line that no sample gives");
}

/// The kinds of records, and the field numbers of every message, as the sources declare them.
fn declared() -> (BTreeSet<&'static str>, BTreeMap<&'static str, BTreeSet<u32>>) {
    let (mut records, mut tags) = (BTreeSet::new(), BTreeMap::new());
    for source in SOURCES {
        let mut is_message = false;
        let mut lines = source.lines();
        while let Some(line) = lines.next() {
            if line == "mod tests {" {
                break;
            }
            if let Some(name) = line.strip_prefix("impl Record for ") {
                records.insert(name.trim_end_matches(" {"));
            }
            if line.starts_with("#[derive(") {
                is_message = line.contains("Message");
            }
            let declared = line.strip_prefix("pub struct ").or(line.strip_prefix("struct "));
            let Some(name) = declared.filter(|_| is_message) else { continue };
            // How an inode lies on the medium.
            let name = if name == "Body {" { "Inode" } else { name.trim_end_matches([' ', '{', '}']) };
            let mut numbers = BTreeSet::new();
            if !line.ends_with("{}") {
                for line in lines.by_ref().take_while(|line| *line != "}") {
                    if let Some((_, tag)) = line.split_once("tag = \"").filter(|_| line.contains("#[prost(")) {
                        numbers.insert(tag.split('"').next().unwrap().parse::<u32>().unwrap());
                    }
                }
            }
            tags.insert(name, numbers);
        }
    }
    assert!(records.len() >= 20, "the sources are no longer read rightly: {records:?}");
    (records, tags)
}

#[test]
fn every_record_and_every_field_of_it_is_in_the_golden_file() {
    let (records, tags) = declared();
    let seen = seen();
    assert_eq!(seen.records, records, "left: what the samples have; right: what the sources declare");
    assert_eq!(seen.tags, tags, "left: what the samples set; right: what the sources declare");
}

#[test]
fn the_chapter_on_formats_has_every_field_and_every_table() {
    let chapter = include_str!("../../../docs/src/formats.md");
    let mut described: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    let mut record = None;
    for line in chapter.lines() {
        if let Some((name, _)) = line.strip_prefix("**`").and_then(|rest| rest.split_once("`**")) {
            described.insert(name, BTreeSet::new());
            record = Some(name);
        } else if line.starts_with('#') {
            record = None;
        }
        let number = line.strip_prefix("| ").and_then(|rest| rest.split(' ').next()).and_then(|n| n.parse().ok());
        if let (Some(name), Some(number)) = (record, number) {
            described.entry(name).or_default().insert(number);
        }
    }
    assert_eq!(described, declared().1, "left: docs/src/formats.md; right: the sources");
    for (prefix, name) in seen().tables {
        let row = format!("| `{:02x}` |", prefix[0]);
        assert!(chapter.contains(&row), "docs/src/formats.md lacks the table of {name}: {row}");
    }
}
