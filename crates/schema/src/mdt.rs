//! Records of a metadata target other than inodes and entries.

use crate::record::{Record, prost_body, rest, single_key};
use bytes::Bytes;
use prost::Message;
use proto::msg::Stripe;
use proto::{ClientUuid, Fid};
use store::Key;

fn fid_key(table: u8, fid: &Fid) -> Key {
    Key::table(table).u64(fid.seq).u32(fid.oid)
}

fn parse_fid_key(table: u8, key: &[u8]) -> Option<Fid> {
    let rest: [u8; 12] = rest(key, table)?;
    let (seq, oid) = rest.split_at(8);
    Some(Fid::new(u64::from_be_bytes(seq.try_into().ok()?), u32::from_be_bytes(oid.try_into().ok()?)))
}

/// The key methods of [`Record`] for a kind that has a record per object.
macro_rules! object_key {
    () => {
        fn key(fid: &Fid) -> Key {
            fid_key(Self::TABLE, fid)
        }
        fn parse_key(key: &[u8]) -> Option<Fid> {
            parse_fid_key(Self::TABLE, key)
        }
    };
}

/// Object index: from the FID of an object to its inode.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Oi {
    /// Local inode number.
    #[prost(uint64, tag = "1")]
    pub ino: u64,
}

impl Record for Oi {
    const TABLE: u8 = 0x14;
    const KIND: &'static str = "object index";
    type Id = Fid;
    object_key!();
    prost_body!();
}

/// An object without a name that is open, or was open when the target stopped.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Orphan {
    /// Local inode number.
    #[prost(uint64, tag = "1")]
    pub ino: u64,
}

impl Record for Orphan {
    const TABLE: u8 = 0x15;
    const KIND: &'static str = "orphan";
    type Id = Fid;
    object_key!();
    prost_body!();
}

/// The names of a stripe of a directory move: its layout changes. The record is there from the group that gives the stripe the
/// new layout until the change is over. Its key is the stripe. Since version 0.3.0.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Relayout {
    /// All stripes of the directory, of the layout before and the one after, the master first.
    #[prost(message, repeated, tag = "1")]
    pub stripes: Vec<Stripe>,
    /// No name has to leave this stripe any more.
    #[prost(bool, tag = "2")]
    pub settled: bool,
}

impl Record for Relayout {
    const TABLE: u8 = 0x1d;
    const KIND: &'static str = "change of a layout";
    type Id = Fid;
    object_key!();
    prost_body!();
}

/// Identifies the objects of a file that were chosen together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectsKey {
    /// The file.
    pub fid: Fid,
    /// Number of the first of these objects ([`proto::msg::Layout::first_object`]).
    pub first: u32,
}

impl ObjectsKey {
    /// The least and the greatest key of a file.
    pub fn of_file(fid: Fid) -> (ObjectsKey, ObjectsKey) {
        (ObjectsKey { fid, first: 0 }, ObjectsKey { fid, first: u32::MAX })
    }
}

/// Objects to be destroyed on object targets: those of a removed file, the old ones of a file whose data moved, or a copy that
/// is still being made.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DestroyLog {
    /// Object target of each stripe, from stripe 0.
    #[prost(uint32, repeated, tag = "1")]
    pub osts: Vec<u32>,
    /// The client that is copying the file's data to them, 16 bytes big-endian. They are not destroyed while it is connected.
    /// Empty: none.
    #[prost(bytes = "bytes", tag = "90")]
    pub client: Bytes,
}

impl DestroyLog {
    /// The client that is copying data to these objects.
    pub fn copier(&self) -> Option<ClientUuid> {
        ClientUuid::from_bytes(&self.client)
    }
}

impl Record for DestroyLog {
    const TABLE: u8 = 0x16;
    const KIND: &'static str = "destroy log";
    type Id = ObjectsKey;

    /// Objects numbered from 0 have the key of the file, as in version 0.1.0, which had no numbers.
    fn key(id: &ObjectsKey) -> Key {
        let key = fid_key(Self::TABLE, &id.fid);
        if id.first == 0 { key } else { key.u32(id.first) }
    }

    fn parse_key(key: &[u8]) -> Option<ObjectsKey> {
        if let Some(fid) = parse_fid_key(Self::TABLE, key) {
            return Some(ObjectsKey { fid, first: 0 });
        }
        let (fid, first) = key.split_last_chunk::<4>()?;
        let first = u32::from_be_bytes(*first);
        parse_fid_key(Self::TABLE, fid).filter(|_| first != 0).map(|fid| ObjectsKey { fid, first })
    }

    prost_body!();
}

/// A sequence that was granted to a client, and which of its FIDs were used.
///
/// Every number that is [`SeqGrant::WINDOW`] or more below the greatest used one counts as used, because a client uses
/// numbers in order and has far fewer requests in flight.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SeqGrant {
    /// The client, 16 bytes big-endian. Empty: no client has the sequence any more.
    #[prost(bytes = "bytes", tag = "1")]
    pub client: Bytes,
    /// Greatest object number that was used; 0 if none.
    #[prost(uint32, tag = "2")]
    pub high: u32,
    /// Bit `i`: `high - i` was used.
    #[prost(fixed64, tag = "3")]
    pub recent: u64,
}

impl SeqGrant {
    /// How many numbers up to the greatest used one are recorded individually.
    pub const WINDOW: u32 = Fid::IN_DOUBT_MAX;

    /// A sequence of which no FID was used.
    pub fn new(client: ClientUuid) -> SeqGrant {
        SeqGrant { client: client.to_bytes(), high: 0, recent: 0 }
    }

    /// The client that has the sequence.
    pub fn owner(&self) -> Option<ClientUuid> {
        ClientUuid::from_bytes(&self.client)
    }

    /// Whether it belongs to this client.
    pub fn is_of(&self, client: ClientUuid) -> bool {
        self.client[..] == client.0.to_be_bytes()
    }

    /// Whether an object number was used.
    pub fn is_used(&self, oid: u32) -> bool {
        match self.high.checked_sub(oid) {
            None => false,
            Some(below) => below >= Self::WINDOW || self.recent >> below & 1 == 1,
        }
    }

    /// Marks an object number as used.
    pub fn mark_used(&mut self, oid: u32) {
        if oid > self.high {
            self.recent = self.recent.checked_shl(oid - self.high).unwrap_or(0) | 1;
            self.high = oid;
        } else if self.high - oid < Self::WINDOW {
            self.recent |= 1 << (self.high - oid);
        }
    }
}

impl Record for SeqGrant {
    const TABLE: u8 = 0x17;
    const KIND: &'static str = "sequence grant";
    type Id = u64;
    fn key(seq: &u64) -> Key {
        Key::table(Self::TABLE).u64(*seq)
    }
    fn parse_key(key: &[u8]) -> Option<u64> {
        rest(key, Self::TABLE).map(u64::from_be_bytes)
    }
    prost_body!();
}

/// Marks a range of 1024 FIDs of which some files may be moving to object targets. Every resident file of the range may
/// have objects, whether its inode says so or not. The record is durable before the first file moves, and is removed
/// when none has moved for a minute: by then the inodes of those that moved say so. After a crash that left it, all
/// resident files of the range are marked. Versions that do not know the record leave it alone.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Moving {}

impl Moving {
    /// Files in a range. Ranges start at multiples of it.
    pub const FILES: u32 = 1 << 10;

    /// The range of a file: its first FID.
    pub fn range_of(fid: Fid) -> Fid {
        Fid::new(fid.seq, fid.oid - fid.oid % Self::FILES)
    }

    /// The last FID of a range.
    pub fn last_of(range: Fid) -> Fid {
        Fid::new(range.seq, range.oid.saturating_add(Self::FILES - 1))
    }
}

impl Record for Moving {
    const TABLE: u8 = 0x19;
    const KIND: &'static str = "moving files";
    type Id = Fid;
    object_key!();
    prost_body!();
}

/// A range of sequences.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct SeqRange {
    /// The first sequence.
    #[prost(uint64, tag = "1")]
    pub start: u64,
    /// The end, exclusive.
    #[prost(uint64, tag = "2")]
    pub end: u64,
}

impl SeqRange {
    /// The number of sequences in the range.
    pub fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether the range is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The state of a metadata target.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct MdtState {
    /// First region of local inode numbers that no directory owns. Region 0 has only the root.
    #[prost(uint64, tag = "1")]
    pub next_region: u64,
    /// Sequences from the MGS that no client has yet, in the order in which they are used.
    #[prost(message, repeated, tag = "2")]
    pub sequences: Vec<SeqRange>,
    /// All ranges that the MGS has allocated to this target, ascending; adjacent ones are one. Since version 0.3.0.
    #[prost(message, repeated, tag = "150")]
    pub allocated: Vec<SeqRange>,
}

impl Record for MdtState {
    const TABLE: u8 = 0x18;
    const KIND: &'static str = "metadata target state";
    single_key!();
    prost_body!();
}
