//! The bytes of every message, flag, number and name on the wire, for ever.
//!
//! A test here that fails means that an older or a newer version would misunderstand this one. A new message gets a new
//! line in `golden/messages.txt`, a new field makes its message's line longer; nothing else in these files ever changes.
//!
//! The tables of the guide's chapter on the protocol are written from the sources:
//!
//! ```text
//! BLESS=1 cargo test -p proto --test golden
//! ```

use bytes::BytesMut;
use prost::Message;
use proto::msg::*;
use proto::{Bytes, ClientUuid, Decoder, Errno, Fid, Frame, Header, Opcode, Xid};
use std::collections::{BTreeMap, BTreeSet};
use testkit::declared::{self, Declared};
use testkit::golden;
use testkit::mutate::varint;
use testkit::samples::hex;
use testkit::samples::messages::{self as samples, Body, Visitor};

const GOLDEN: &str = include_str!("golden/messages.txt");

/// The sources of the messages: what is declared there is what must be covered.
const SOURCES: &[&str] = &[
    include_str!("../src/msg/cross.rs"),
    include_str!("../src/msg/layout.rs"),
    include_str!("../src/msg/listing.rs"),
    include_str!("../src/msg/lock.rs"),
    include_str!("../src/msg/mds.rs"),
    include_str!("../src/msg/mgs.rs"),
    include_str!("../src/msg/obj.rs"),
    include_str!("../src/msg/session.rs"),
    include_str!("../src/ids.rs"),
];

/// Everything that the sources declare, by name.
fn declared() -> BTreeMap<String, Declared> {
    let mut all = BTreeMap::new();
    for source in SOURCES {
        for (name, one) in declared::of(source) {
            assert!(all.insert(name.clone(), one).is_none(), "two of the name {name}");
        }
    }
    all
}

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

#[derive(Default)]
struct Encoded(Vec<(&'static str, Vec<u8>)>);

impl Visitor for Encoded {
    fn visit<M: Body>(&mut self, name: &'static str, sample: M) {
        let body = sample.encode_to_vec();
        assert_eq!(M::decode(&body[..]).as_ref(), Ok(&sample), "{name}");
        self.0.push((name, body));
    }
}

fn encoded() -> Vec<(&'static str, Vec<u8>)> {
    let mut encoded = Encoded::default();
    samples::for_each(&mut encoded);
    encoded.0
}

#[test]
fn every_message_has_its_golden_bytes() {
    let golden: BTreeMap<&str, &str> = GOLDEN
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split_once(' ').unwrap_or((line, "")))
        .collect();
    let mut wrong = Vec::new();
    let samples = encoded();
    for (name, body) in &samples {
        let now = hex(body);
        if golden.get(name) != Some(&&now[..]) {
            wrong.push(format!("{name} {now}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "these messages are not written as golden/messages.txt says; only a new message or a field at the end may change a \
         line there:\n{}",
        wrong.join("\n")
    );
    assert_eq!(golden.len(), samples.len(), "golden/messages.txt has a line that no sample gives");
}

#[test]
fn every_message_and_every_field_of_it_is_in_the_golden_file() {
    let mut covered: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for (name, body) in encoded() {
        covered.entry(name.split('/').next().unwrap()).or_default().extend(top_level_tags(&body));
    }
    let declared = declared();
    let messages = declared.iter().filter(|(_, one)| one.is_message);
    let messages: BTreeMap<&str, BTreeSet<u32>> =
        messages.map(|(name, one)| (&name[..], one.numbers.clone())).collect();
    assert!(messages.len() > 60, "the sources are no longer read rightly: {} messages", messages.len());
    assert_eq!(covered, messages, "left: what the samples set; right: what the sources declare");
}

#[test]
fn a_field_that_a_newer_peer_added_changes_nothing() {
    /// Puts unknown fields of every wire type behind, before, and twice around a body.
    struct Newer(usize);
    impl Visitor for Newer {
        fn visit<M: Body>(&mut self, name: &'static str, sample: M) {
            let number = 1000_u64;
            let mut unknown = Vec::new();
            for (wire_type, payload) in [
                (0, &b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"[..]),
                (1, b"8 bytes."),
                (2, b"\x05bytes"),
                (5, b"four"),
                // A group, which nobody sends today: key 1001 inside.
                (3, b"\xc8\x3e\x01\xc4\x3e"),
            ] {
                varint(number << 3 | wire_type, &mut unknown);
                unknown.extend_from_slice(payload);
            }
            let body = sample.encode_to_vec();
            for wire in [
                [&body[..], &unknown].concat(),
                [&unknown[..], &body].concat(),
                [&unknown[..], &body, &unknown].concat(),
            ] {
                let frame = Frame { body: wire.into(), ..Frame::default() };
                assert_eq!(frame.decode::<M>().as_ref(), Ok(&sample), "{name}");
            }
            self.0 += 1;
        }
    }
    let mut newer = Newer(0);
    samples::for_each(&mut newer);
    assert!(newer.0 > 60);
}

#[test]
fn a_change_that_a_newer_peer_invented_decodes_to_no_change() {
    // Field 99, where the changes of today have 16 to 23.
    let known = ReintReq { now_ns: 5, ..ReintReq::default() };
    let mut body = known.encode_to_vec();
    varint(99 << 3 | 2, &mut body);
    body.extend_from_slice(b"\x03new");
    let frame = Frame { body: body.into(), ..Frame::default() };
    assert_eq!(frame.decode::<ReintReq>(), Ok(known));
}

#[test]
fn an_enum_value_of_a_newer_peer_is_kept_as_a_number() {
    let punch = PunchReq { kind: 77, ..PunchReq::default() };
    assert_eq!(PunchReq::decode(&punch.encode_to_vec()[..]).map(|p| p.kind), Ok(77));
    assert!(PunchKind::try_from(77).is_err());
}

/// Writes the frame and reads it back.
fn through_the_wire(frame: &Frame) -> Frame {
    let mut wire = BytesMut::new();
    frame.encode(&mut wire);
    let mut decoder = Decoder::new();
    decoder.buffer().extend_from_slice(&wire);
    let read = decoder.next_frame().unwrap().unwrap();
    assert!(decoder.buffer().is_empty());
    read
}

#[test]
fn flags_and_opcodes_of_a_newer_peer_come_through_unchanged() {
    for bit in 0..32 {
        let frame = Frame { header: Header { flags: 1 << bit, ..Header::default() }, ..Frame::default() };
        assert_eq!(through_the_wire(&frame), frame, "flag bit {bit}");
    }
    let mut unknown = 0;
    for opcode in 0..=u16::MAX {
        let header = Header { opcode, flags: 0xffff_ffff, xid: Xid(9), ..Header::default() };
        let frame = Frame { header, body: Bytes::from_static(b"\xffnot a message"), bulk: Bytes::from_static(b"bulk") };
        assert_eq!(through_the_wire(&frame), frame, "opcode {opcode}");
        unknown += u32::from(Opcode::from_raw(opcode).is_none());
    }
    assert_eq!(unknown as usize, 65536 - Opcode::ALL.len());
}

#[test]
fn reserved_bytes_of_a_header_are_ignored() {
    let frame = Frame { header: Header { opcode: 400, ..Header::default() }, ..Frame::default() };
    let mut wire = BytesMut::new();
    frame.encode(&mut wire);
    assert_eq!(wire[108..112], [0; 4]);
    wire[108..112].copy_from_slice(b"new!");
    let crc = crc32c::crc32c(&wire[12..]);
    wire[8..12].copy_from_slice(&crc.to_le_bytes());
    let mut decoder = Decoder::new();
    decoder.buffer().extend_from_slice(&wire);
    assert_eq!(decoder.next_frame(), Ok(Some(frame)));
}

#[test]
fn opcodes_have_these_numbers_and_names_for_ever() {
    let mut opcodes: Vec<_> = Opcode::ALL.iter().map(|&o| (o as u16, o.name(), o.traits().notice)).collect();
    opcodes.sort_unstable();
    let listed: String = opcodes
        .iter()
        .map(|(number, name, notice)| format!("{number} {name}{}\n", if *notice { " notice" } else { "" }))
        .collect();
    assert_eq!(listed, include_str!("golden/opcodes.txt"));
    assert!(Opcode::ALL.iter().all(|&o| Opcode::from_raw(o as u16) == Some(o)));
}

/// Lines `name = number` of the constants and enum values that a source declares, as it declares them. What is a sum of
/// others, or only a default, is left out.
fn numbers(source: &str) -> String {
    let mut listed = String::new();
    let mut scope = String::new();
    for line in source.lines().take_while(|line| *line != "mod tests {") {
        let words = line.trim_start();
        if let Some(name) = line.strip_prefix("pub mod ").or(line.strip_prefix("pub enum ")) {
            scope = name.trim_end_matches(" {").to_owned();
        } else if line == "}" {
            scope.clear();
        } else if let Some((name, value)) = words.strip_suffix(';').unwrap_or(words).split_once(" = ") {
            if !value.starts_with(|c: char| c.is_ascii_digit()) || name.contains("_DEFAULT") {
                continue;
            }
            let constant = words.strip_prefix("pub const ").and_then(|rest| rest.split(':').next());
            let variant = name.chars().all(char::is_alphanumeric).then_some(name).filter(|_| !scope.is_empty());
            if let Some(name) = constant.or(variant) {
                let separator = if scope.is_empty() { "" } else { "::" };
                listed += &format!("{scope}{separator}{name} = {}\n", value.trim_end_matches(','));
            }
        }
    }
    listed
}

#[test]
fn numbers_that_peers_compare_are_these_for_ever() {
    let mut listed = String::new();
    for (name, source) in [
        ("frame", include_str!("../src/frame.rs")),
        ("connect", include_str!("../src/connect.rs")),
        ("lock", include_str!("../src/msg/lock.rs")),
        ("mds", include_str!("../src/msg/mds.rs")),
        ("layout", include_str!("../src/msg/layout.rs")),
        ("obj", include_str!("../src/msg/obj.rs")),
    ] {
        listed += &format!("# {name}\n{}", numbers(source));
    }
    listed += "# errno of a reply\n";
    for n in 0..200 {
        let errno = Errno::from_raw(n);
        if errno.raw() == n {
            listed += &format!("{} = {n}\n", errno.name());
        }
    }
    assert_eq!(
        listed,
        include_str!("golden/numbers.txt"),
        "left: now; right: golden/numbers.txt, where lines may only be added"
    );
}

#[test]
fn names_are_written_and_read_in_one_way() {
    for (text, fid) in [
        ("[0x200000007:0x1:0x0]", Fid::ROOT),
        ("[0x200000400:0x1ffff:0x0]", Fid::new(Fid::SEQ_FIRST, Fid::OID_MAX)),
        ("[0x0:0x0:0x0]", Fid::NONE),
        ("[0xffffffffffffffff:0xffffffff:0xffffffff]", Fid { seq: u64::MAX, oid: u32::MAX, ver: u32::MAX }),
    ] {
        assert_eq!(fid.to_string(), text);
        assert_eq!(text.parse(), Ok(fid));
    }
    assert_eq!(hex(&Fid { seq: 1, oid: 2, ver: 3 }.to_key()), "00000000000000010000000200000003");
    assert_eq!(Fid::ROOT.ino(), 1);
    assert_eq!(Fid::new(Fid::SEQ_FIRST, 5).ino(), 0x2_0000_0400 << 17 | 5);
    assert_eq!(
        ClientUuid(0x0123_4567_89ab_cdef_0011_2233_4455_6677).to_string(),
        "01234567-89ab-cdef-0011-223344556677"
    );
}

#[test]
fn the_chapter_on_the_protocol_is_written_from_the_sources() {
    let chapter = include_str!("../../../docs/src/protocol.md");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/protocol.md");
    golden::is_same(&declared::written(chapter, &declared()), chapter, path);
    for opcode in Opcode::ALL {
        let row = format!("| {} | `{}` |", *opcode as u16, opcode.name());
        assert!(chapter.contains(&row), "docs/src/protocol.md lacks the row {row}");
    }
}
