//! Golden bytes of every record, and what keys and encodings promise.

use crate::*;
use bytes::Bytes;
use core::fmt::{Debug, Write};
use prost::Message;
use proto::msg::Layout;
use proto::{ClientUuid, Fid, StripeIndex};
use store::Value;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// A record is written with these bytes for ever, read back as it was, and its key tells its parts.
fn golden<R: Record + PartialEq + Debug>(id: R::Id, record: R, key: &str, body: &str)
where
    R::Id: PartialEq + Debug,
{
    let (its_key, its_body) = (R::key(&id), record.encode_record());
    let wanted = [key, body].map(|text| text.replace(' ', ""));
    assert_eq!([hex(&its_key), hex(&its_body)], wanted, "{}", R::KIND);
    assert_eq!(R::parse_key(&its_key), Some(id), "{}", R::KIND);
    assert_eq!(R::decode_record(&its_body).as_ref(), Ok(&record), "{}", R::KIND);
    assert_eq!(R::parse_key(&[]), None);
    assert_eq!(R::parse_key(&[0xfe, 1, 2, 3]), None);
    assert!(R::all().contains(&its_key));
    assert_eq!(format_version(&its_key), R::FORMAT_VERSION);
}

const FID: Fid = Fid::new(0x2_0000_0401, 7);

fn file() -> Inode {
    Inode {
        fid: FID,
        mode: 0o100_644,
        uid: 1000,
        gid: 1000,
        nlink: 1,
        ctime_ns: 1_800_000_000_123_456_789,
        mtime_ns: 1_800_000_000_123_456_789,
        atime_ns: 1_800_000_000_123_456_789,
        btime_ns: 1_800_000_000_123_456_789,
        version: 0x1_0000_0002,
        layout: Some(Layout { stripe_size: 1 << 20, osts: vec![1], resident: true, ..Layout::default() }),
        links: LinkEa::one(Fid::ROOT, Bytes::from_static(b"file.00000001")),
        ..Inode::default()
    }
}

#[test]
fn the_records_have_these_bytes_for_ever() {
    golden(
        (),
        Header {
            name: "adamant-MDT0000".into(),
            uuid: Bytes::from_static(&[7; 16]),
            incompat: 4,
            epoch: 3,
            mount_count: 2,
            mgs_nids: vec!["127.0.0.1:988@tcp".into()],
            registered: true,
            made_by: "0.1.0".into(),
            ..Header::default()
        },
        "01",
        "0a0f6164616d616e742d4d4454303030301210070707070707070707070707070707072804300338024211\
         3132372e302e302e313a393838407463704801520530 2e312e30",
    );
    golden(
        1 << 20 | 5,
        file(),
        "100000000000100005",
        "088188808020100718a4830220e80728e8075115cd0f9b76e2fa187082808080107a0908808040120101180182011b0a190a080887808080201001120d66696c652e3030303030303031",
    );
    golden(
        (9, Bytes::from_static(b"user.big")),
        LargeXattr(Bytes::from_static(b"value")),
        "110000000000000009757365722e626967",
        "76616c7565",
    );
    golden(9, SmallData(Bytes::from_static(b"hello")), "120000000000000009", "68656c6c6f");
    golden(
        EntryKey { dir: 1, cookie: 0x30 },
        Entry { name: Bytes::from_static(b"name"), fid: Some(FID), kind: 8, ino: 1 << 20, mdt: None },
        "1300000000000000010000000000000030",
        "0a046e616d651208088188808020100718082080 8040",
    );
    golden(EntryKey { dir: 1, cookie: 0x30 }, Entry::tombstone(), "1300000000000000010000000000000030", "");
    golden(FID, Oi { ino: 1 << 20 }, "14000000020000040100000007", "08808040");
    golden(FID, Orphan { ino: 1 << 20 }, "15000000020000040100000007", "08808040");
    let of_file = ObjectsKey { fid: FID, first: 0 };
    let log = DestroyLog { osts: vec![0, 2], client: Bytes::new() };
    golden(of_file, log.clone(), "16000000020000040100000007", "0a020002");
    let moved = ObjectsKey { first: 2, ..of_file };
    golden(moved, log.clone(), "1600000002000004010000000700000002", "0a020002");
    let copied = DestroyLog { client: Bytes::copy_from_slice(&1u128.to_be_bytes()), ..log };
    assert_eq!(copied.copier(), Some(ClientUuid(1)));
    golden(moved, copied, "1600000002000004010000000700000002", "0a020002 d2051000000000000000000000000000000001");
    let mut grant = SeqGrant::new(ClientUuid(1));
    grant.mark_used(3);
    golden(0x2_0000_0401, grant, "170000000200000401", "0a100000000000000000000000000000000110031901000000 00000000");
    golden(
        (),
        MdtState {
            next_region: 2,
            sequences: vec![mdt::SeqRange { start: 0x2_0000_0401, end: 0x2_0000_0500 }],
            ..MdtState::default()
        },
        "18",
        "0802120c0881888080201080 8a808020",
    );
    golden(Moving::range_of(Fid::new(FID.seq, 0x7ff)), Moving {}, "19000000020000040100000400", "");
    golden(
        ObjectKey { fid: FID, stripe: StripeIndex(2) },
        Object {
            file: 4,
            size: 4096,
            blocks: 8,
            atime_ns: 1,
            mtime_ns: 2,
            ctime_ns: 3,
            uid: 4,
            gid: 5,
            version: 6,
            ..Object::default()
        },
        "20 0000000200000401 00000007 00000000 00000002",
        "0804108020180820022804300638044005 4806",
    );
    golden((), OstState { next_file: 9, ..OstState::default() }, "21", "0809");
    golden(
        "adamant-OST0001".to_owned(),
        TargetRec { uuid: Bytes::from_static(&[1; 2]), nids: vec!["a".into()], instance: 3, ..TargetRec::default() },
        "306164616d616e742d4f535430303031",
        "0a0201011201611803",
    );
    golden(
        ("fs".to_owned(), "mdt.*.dom_stripesize".to_owned()),
        ParamRec { value: "0".into() },
        "316673006d64742e2a2e646f6d5f73747269706573697a65",
        "0a0130",
    );
    golden("fs".to_owned(), FsRec { config_version: 2, next_sequence: 3, ..FsRec::default() }, "326673", "08021003");
    golden((), MgtState { next_sequence: 3 }, "33", "0803");
}

#[test]
fn an_inode_is_read_as_it_was_written_whatever_its_times_and_links() {
    let mut inode = file();
    for (time, nlink) in [(0, 0), (i64::MIN, 1), (i64::MAX, u32::MAX), (-1, 2)] {
        (inode.atime_ns, inode.btime_ns, inode.nlink) = (time, time, nlink);
        assert_eq!(Inode::decode_record(&inode.encode_record()), Ok(inode.clone()));
    }
}

#[test]
fn the_records_of_an_empty_file_are_small() {
    let name = Bytes::from_static(b"file.mdtest.0.123456");
    let mut inode = file();
    inode.links = LinkEa::one(FID, name.clone());
    let entry = Entry { name, fid: Some(FID), kind: 8, ino: 300 << 20 | 70_000, mdt: None };
    // Key, seal and LMDB's node header and pointer.
    let with_overhead = |key: usize, body: usize| key + store::SEAL_LEN + body + 10;
    let total = with_overhead(9, inode.encode_record().len())
        + with_overhead(17, entry.encode_record().len())
        + with_overhead(13, Oi { ino: 300 << 20 }.encode_record().len());
    assert!(total < 300, "{total} bytes before page fill, which is at least one half");
}

#[test]
fn garbage_in_a_record_is_an_error_and_nothing_worse() {
    let mut rng = stdx::Rng::new(1);
    for _ in 0..20_000 {
        let mut bytes = vec![0; rng.below(80) as usize];
        rng.fill(&mut bytes);
        let body = Value::from(bytes);
        let _ = Inode::decode_record(&body);
        let _ = Entry::decode_record(&body);
        let _ = SeqGrant::decode_record(&body);
        let _ = Object::decode_record(&body);
        let _ = (Inode::parse_key(&body), Entry::parse_key(&body), Object::parse_key(&body));
    }
}

#[test]
fn hashes_of_names_are_on_disk_and_stay_in_their_bounds() {
    let keyed = |byte: u8| Header { name_key: Bytes::copy_from_slice(&[byte; 16]), ..Header::default() };
    for (header, golden) in [(Header::default(), GOLDEN_HASHES), (keyed(7), GOLDEN_KEYED_HASHES)] {
        assert_eq!(first_cookie(&header, b"") & 15, 0);
        assert_eq!([&b"a"[..], b"file.00000001"].map(|name| first_cookie(&header, name)), golden);
        let mut halves = [0; 2];
        for i in 0..1000 {
            let hash = first_cookie(&header, format!("file.{i:08}").as_bytes());
            assert!((16..=0x7fff_ffff_ffff_ffe0).contains(&hash), "{hash:x}");
            halves[(hash >> 62) as usize & 1] += 1;
        }
        assert!(halves.iter().all(|&n| n > 400), "{halves:?}");
    }
    assert_ne!(first_cookie(&keyed(7), b"a"), first_cookie(&keyed(8), b"a"));
}

const GOLDEN_HASHES: [u64; 2] = [4706636184713914144, 447961444786094176];
const GOLDEN_KEYED_HASHES: [u64; 2] = [8989751466953761520, 3230538661945565632];

#[test]
fn a_sequence_knows_which_of_its_numbers_were_used() {
    let mut grant = SeqGrant::new(ClientUuid(5));
    assert!(grant.is_of(ClientUuid(5)) && !grant.is_of(ClientUuid(6)));
    assert!(!grant.is_used(1));
    for oid in [1, 2, 4] {
        grant.mark_used(oid);
    }
    let used: Vec<u32> = (1..8).filter(|&oid| grant.is_used(oid)).collect();
    assert_eq!(used, [1, 2, 4]);
    grant.mark_used(3);
    assert!(grant.is_used(3) && grant.high == 4);
    grant.mark_used(200);
    assert!(grant.is_used(4) && grant.is_used(136), "far below the greatest, everything counts as used");
    assert!(!grant.is_used(137) && !grant.is_used(201) && grant.is_used(200));
}

#[test]
fn a_link_ea_holds_what_fits_and_says_when_something_did_not() {
    let mut links = LinkEa::one(Fid::ROOT, Bytes::from_static(b"first"));
    for i in 0..300 {
        links.add(FID, Bytes::from(format!("a name that is long enough {i:04}")));
    }
    assert!(links.overflow && links.links.len() < 300);
    assert!(links.encode_to_vec().len() <= LinkEa::SIZE_MAX + 300);
    assert!(links.contains(Fid::ROOT, b"first"));
    links.remove(Fid::ROOT, b"first");
    links.remove(Fid::ROOT, b"never was");
    assert!(!links.contains(Fid::ROOT, b"first"));
}
