//! Records of an object target.

use crate::record::{Record, prost_body, rest, single_key};
use prost::Message;
use proto::{Fid, StripeIndex};
use store::{Key, KeyRange};

/// Identifies a stripe object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectKey {
    /// The file, which is also the object's parent.
    pub fid: Fid,
    /// The stripe.
    pub stripe: StripeIndex,
}

/// The attributes of a stripe object. Its bytes are in a data file beside the store.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Object {
    /// Number of the data file; 0 if there is none: the object is empty.
    #[prost(uint64, tag = "1")]
    pub file: u64,
    /// Size in bytes. After a crash the data file may be longer; this value counts.
    #[prost(uint64, tag = "2")]
    pub size: u64,
    /// Units of 512 bytes that the data file uses.
    #[prost(uint64, tag = "3")]
    pub blocks: u64,
    /// Last access, in nanoseconds since 1970.
    #[prost(sint64, tag = "4")]
    pub atime_ns: i64,
    /// Last change of the data, in nanoseconds since 1970.
    #[prost(sint64, tag = "5")]
    pub mtime_ns: i64,
    /// Last change of data or attributes, in nanoseconds since 1970.
    #[prost(sint64, tag = "6")]
    pub ctime_ns: i64,
    /// Owner of the file.
    #[prost(uint32, tag = "7")]
    pub uid: u32,
    /// Group of the file.
    #[prost(uint32, tag = "8")]
    pub gid: u32,
    /// Transno of the last change.
    #[prost(uint64, tag = "9")]
    pub version: u64,
    /// Instance (mount count) of the target that last changed the data. If it is an older one, a crash may have left bytes
    /// past the size, which are cut off before the object changes again.
    #[prost(uint64, tag = "10")]
    pub instance: u64,
}

fn object_key(table: u8, id: &ObjectKey) -> Key {
    Key::table(table).bytes(&id.fid.to_key()).u32(id.stripe.0)
}

fn parse_object_key(key: &[u8], table: u8) -> Option<ObjectKey> {
    let rest: [u8; 20] = rest(key, table)?;
    let (fid, stripe) = rest.split_at(16);
    Some(ObjectKey { fid: Fid::from_key(fid)?, stripe: StripeIndex(u32::from_be_bytes(stripe.try_into().ok()?)) })
}

impl Record for Object {
    const TABLE: u8 = 0x20;
    const KIND: &'static str = "object";
    type Id = ObjectKey;

    fn key(id: &ObjectKey) -> Key {
        object_key(Self::TABLE, id)
    }

    fn parse_key(key: &[u8]) -> Option<ObjectKey> {
        parse_object_key(key, Self::TABLE)
    }

    prost_body!();
}

impl Object {
    /// All objects of a file on this target.
    pub fn of_file(fid: Fid) -> KeyRange {
        KeyRange::prefix(Key::table(Self::TABLE).bytes(&fid.to_key()))
    }
}

/// The state of an object target.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct OstState {
    /// All data files in use have lower numbers. A file with this number or a higher one is left over from a crash.
    #[prost(uint64, tag = "1")]
    pub next_file: u64,
    /// Numbers below `next_file` that were allocated for objects whose first record was not written yet. After a crash these
    /// files are left over, too.
    #[prost(uint64, repeated, tag = "2")]
    pub unborn: Vec<u64>,
    /// The number of objects.
    #[prost(uint64, tag = "3")]
    pub objects: u64,
    /// The first instance of the target that wrote a [`Written`] record for every object that got a data file. Versions without
    /// such records drop the field when they change the number of objects; earlier records then prove nothing.
    #[prost(uint64, tag = "40")]
    pub marked_from: u64,
}

impl Record for OstState {
    const TABLE: u8 = 0x21;
    const KIND: &'static str = "object target state";
    single_key!();
    prost_body!();
}

/// Marks that an object has a data file. It is written and removed in the groups that give the object its file and take it
/// away, but its key is far from the object's own record. If this record exists and the object's does not, the latter is lost.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Written {
    /// Number of the data file.
    #[prost(uint64, tag = "1")]
    pub file: u64,
    /// Instance (mount count) of the target that wrote this.
    #[prost(uint64, tag = "2")]
    pub instance: u64,
}

impl Record for Written {
    const TABLE: u8 = 0x28;
    const KIND: &'static str = "written object";
    type Id = ObjectKey;

    fn key(id: &ObjectKey) -> Key {
        object_key(Self::TABLE, id)
    }

    fn parse_key(key: &[u8]) -> Option<ObjectKey> {
        parse_object_key(key, Self::TABLE)
    }

    prost_body!();
}

/// A data file that no object uses any more. The record is written in the group that takes the file from its object. The file
/// is removed once that group is durable, and the record once the removal is durable.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DoomedFile {}

impl Record for DoomedFile {
    const TABLE: u8 = 0x22;
    const KIND: &'static str = "doomed data file";
    type Id = u64;

    fn key(file: &u64) -> Key {
        Key::table(Self::TABLE).u64(*file)
    }

    fn parse_key(key: &[u8]) -> Option<u64> {
        rest(key, Self::TABLE).map(u64::from_be_bytes)
    }

    prost_body!();
}
