//! The bytes of every record with every field set: key, sealed record, and each part of one, for ever.
//!
//! A test here that fails means that an older or a newer version would misread what lies on a medium. A new record gets a
//! new line in `golden/records.txt`, a new field makes its line longer; nothing else there ever changes, unless the
//! record's format version rises and the old one is upgraded when it is read.
//!
//! The tables of the guide's chapter on formats are written from the sources:
//!
//! ```text
//! BLESS=1 cargo test -p schema --test golden
//! ```

use core::fmt::Debug;
use schema::{Record, format_version, formats};
use std::collections::{BTreeMap, BTreeSet};
use store::Value;
use testkit::declared::{self, Declared};
use testkit::golden;
use testkit::samples::hex;
use testkit::samples::records::{self, Visitor};

const GOLDEN: &str = include_str!("golden/records.txt");

const SOURCES: &[&str] = &[
    include_str!("../src/config.rs"),
    include_str!("../src/cross.rs"),
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

/// Every message that the sources declare, by name.
fn declared() -> BTreeMap<String, Declared> {
    let mut all: BTreeMap<String, Declared> = SOURCES.iter().flat_map(|source| declared::of(source)).collect();
    // How an inode lies on the medium.
    let inode = all.remove("Body").expect("the encoding of an inode");
    all.insert("Inode".to_owned(), inode.renamed("Inode"));
    all
}

/// The kinds of records.
fn records() -> BTreeSet<&'static str> {
    let lines = SOURCES.iter().flat_map(|source| source.lines());
    let records: BTreeSet<_> = lines
        .filter_map(|line| line.strip_prefix("impl Record for "))
        .map(|name| name.trim_end_matches(" {"))
        .collect();
    assert!(records.len() >= 20, "the sources are no longer read rightly: {records:?}");
    records
}

#[test]
fn every_record_and_every_field_of_it_is_in_the_golden_file() {
    let (declared, seen) = (declared(), seen());
    assert_eq!(seen.records, records(), "left: what the samples have; right: what the sources declare");
    let numbers: BTreeMap<&str, BTreeSet<u32>> =
        declared.iter().map(|(name, one)| (&name[..], one.numbers.clone())).collect();
    assert_eq!(seen.tags, numbers, "left: what the samples set; right: what the sources declare");
}

#[test]
fn the_chapter_on_formats_is_written_from_the_sources() {
    let chapter = include_str!("../../../docs/src/formats.md");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/formats.md");
    golden::is_same(&declared::written(chapter, &declared()), chapter, path);
    for (prefix, name) in seen().tables {
        let row = format!("| `{:02x}` |", prefix[0]);
        assert!(chapter.contains(&row), "docs/src/formats.md lacks the table of {name}: {row}");
    }
}
