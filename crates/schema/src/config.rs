//! Records of the management target: targets, parameters, pools, file systems.

use crate::record::{Record, prost_body, single_key};
use prost::Message;
use proto::msg::{NameKeys, SequenceRange};
use store::{Key, KeyRange};

/// A registered target; its key is its full name.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TargetRec {
    /// Identity of its store, 16 bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub uuid: bytes::Bytes,
    /// The addresses at which it listens.
    #[prost(string, repeated, tag = "2")]
    pub nids: Vec<String>,
    /// The number of its starts.
    #[prost(uint64, tag = "3")]
    pub instance: u64,
    /// A number from the target that identifies this start; 0: the target sent none.
    #[prost(uint64, tag = "85")]
    pub start: u64,
    /// If it replaced a lost target: the number of object targets of the file system replaced so far, this one included.
    #[prost(uint32, tag = "140")]
    pub replaced: u32,
    /// How often it was declared lost for good. Since version 0.3.0.
    #[prost(uint32, tag = "160")]
    pub losses: u32,
    /// How many of these losses it had been admitted after when it registered last.
    #[prost(uint32, tag = "161")]
    pub admitted: u32,
}

impl Record for TargetRec {
    const TABLE: u8 = 0x30;
    const KIND: &'static str = "registered target";
    type Id = String;

    fn key(name: &String) -> Key {
        Key::table(Self::TABLE).bytes(name.as_bytes())
    }

    fn parse_key(key: &[u8]) -> Option<String> {
        let (&table, name) = key.split_first()?;
        (table == Self::TABLE).then(|| String::from_utf8(name.to_vec()).ok()).flatten()
    }

    prost_body!();
}

impl TargetRec {
    /// All targets of a file system.
    pub fn of_fs(fsname: &str) -> KeyRange {
        KeyRange::prefix(Key::table(Self::TABLE).bytes(fsname.as_bytes()).u8(b'-'))
    }
}

/// A persistent parameter; its key is the file system's name and the path.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ParamRec {
    /// The value.
    #[prost(string, tag = "1")]
    pub value: String,
}

impl Record for ParamRec {
    const TABLE: u8 = 0x31;
    const KIND: &'static str = "parameter";
    type Id = (String, String);

    fn key((fsname, path): &(String, String)) -> Key {
        key_in_fs(Self::TABLE, fsname, path)
    }

    fn parse_key(key: &[u8]) -> Option<(String, String)> {
        parse_key_in_fs(Self::TABLE, key)
    }

    prost_body!();
}

impl ParamRec {
    /// Longest path, in bytes; the key must stay below the store's limit.
    pub const PATH_MAX: usize = 400;

    /// All parameters of a file system.
    pub fn of_fs(fsname: &str) -> KeyRange {
        KeyRange::prefix(Key::table(Self::TABLE).bytes(fsname.as_bytes()).u8(0))
    }
}

/// A pool of object targets; its key is the file system's name and the pool's. Since version 0.2.0; 0.1.0 ignores it.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PoolRec {
    /// Indexes of its targets, ascending.
    #[prost(uint32, repeated, tag = "1")]
    pub osts: Vec<u32>,
}

impl Record for PoolRec {
    const TABLE: u8 = 0x34;
    const KIND: &'static str = "pool";
    type Id = (String, String);

    fn key((fsname, pool): &(String, String)) -> Key {
        key_in_fs(Self::TABLE, fsname, pool)
    }

    fn parse_key(key: &[u8]) -> Option<(String, String)> {
        parse_key_in_fs(Self::TABLE, key)
    }

    prost_body!();
}

/// The key of a record with a name within a file system.
fn key_in_fs(table: u8, fsname: &str, name: &str) -> Key {
    Key::table(table).bytes(fsname.as_bytes()).u8(0).bytes(name.as_bytes())
}

/// The two names of [`key_in_fs`].
fn parse_key_in_fs(wanted: u8, key: &[u8]) -> Option<(String, String)> {
    let (&table, rest) = key.split_first()?;
    let zero = rest.iter().position(|&b| b == 0)?;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    (table == wanted).then_some((text(&rest[..zero])?, text(&rest[zero + 1..])?))
}

/// A file system; its key is its name.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct FsRec {
    /// Incremented by every change of targets or parameters.
    #[prost(uint64, tag = "1")]
    pub config_version: u64,
    /// First FID sequence that no metadata target of this file system has been given.
    #[prost(uint64, tag = "2")]
    pub next_sequence: u64,
    /// The number of object targets that were replaced.
    #[prost(uint32, tag = "140")]
    pub replaced: u32,
    /// The metadata targets of the sequences below `next_sequence`, ascending and without overlaps. Sequences in no range
    /// belong to MDT0000. Since version 0.3.0.
    #[prost(message, repeated, tag = "150")]
    pub sequences: Vec<SequenceRange>,
    /// The keys that MDT0000 registered with. New metadata targets get them, and clients never do. Since version 0.3.0.
    #[prost(message, optional, tag = "163")]
    pub name_keys: Option<NameKeys>,
}

impl Record for FsRec {
    const TABLE: u8 = 0x32;
    const KIND: &'static str = "file system";
    type Id = String;

    fn key(name: &String) -> Key {
        Key::table(Self::TABLE).bytes(name.as_bytes())
    }

    fn parse_key(key: &[u8]) -> Option<String> {
        let (&table, name) = key.split_first()?;
        (table == Self::TABLE).then(|| String::from_utf8(name.to_vec()).ok()).flatten()
    }

    prost_body!();
}

/// The state of the management target for all file systems.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct MgtState {
    /// The next FID sequence, if one counter serves all file systems.
    #[prost(uint64, tag = "1")]
    pub next_sequence: u64,
}

impl Record for MgtState {
    const TABLE: u8 = 0x33;
    const KIND: &'static str = "configuration target state";
    single_key!();
    prost_body!();
}
