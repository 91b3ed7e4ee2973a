//! The trait of all record kinds, and their format versions.

use core::fmt;
use store::{Formats, Key, KeyRange, Value};

/// The error for a record whose checksum is right but that this version cannot decode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRecord {
    /// Kind of the record.
    pub kind: &'static str,
    /// Why it cannot be decoded.
    pub what: String,
}

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a record of kind '{}' cannot be understood ({}): run lfsck", self.kind, self.what)
    }
}

impl core::error::Error for BadRecord {}

/// A kind of record.
pub trait Record: Sized {
    /// First byte of its keys.
    const TABLE: u8;
    /// Version of the encoding that this program writes.
    const FORMAT_VERSION: u16 = 1;
    /// Name for messages.
    const KIND: &'static str;
    /// Identifies a record within the kind.
    type Id;

    /// The key of a record.
    fn key(id: &Self::Id) -> Key;

    /// The inverse of [`Record::key`]; `None` if no record of this kind has this key.
    fn parse_key(key: &[u8]) -> Option<Self::Id>;

    /// The body of the record.
    fn encode_record(&self) -> Value;

    /// The inverse of [`Record::encode_record`].
    fn decode_record(body: &Value) -> Result<Self, BadRecord>;

    /// The keys of all records of the kind.
    fn all() -> KeyRange {
        KeyRange::prefix(Key::table(Self::TABLE))
    }
}

/// The two encoding methods of [`Record`] for a prost message.
macro_rules! prost_body {
    () => {
        fn encode_record(&self) -> store::Value {
            prost::Message::encode_to_vec(self).into()
        }
        fn decode_record(body: &store::Value) -> Result<Self, $crate::BadRecord> {
            prost::Message::decode(body.clone())
                .map_err(|e| $crate::BadRecord { kind: <Self as $crate::Record>::KIND, what: e.to_string() })
        }
    };
}

/// The key methods of [`Record`] for a kind that has one record only.
macro_rules! single_key {
    () => {
        type Id = ();
        fn key(_: &()) -> store::Key {
            store::Key::table(Self::TABLE)
        }
        fn parse_key(key: &[u8]) -> Option<()> {
            (key == [Self::TABLE]).then_some(())
        }
    };
}

pub(crate) use {prost_body, single_key};

/// The part of a key after the table byte, if the key is of this table and the part has this length.
pub(crate) fn rest<const N: usize>(key: &[u8], table: u8) -> Option<[u8; N]> {
    match key.split_first() {
        Some((&first, rest)) if first == table => rest.try_into().ok(),
        _ => None,
    }
}

/// The format version that is written for a key.
pub fn format_version(key: &Key) -> u16 {
    macro_rules! versions {
        ($($kind:ty),*) => {
            match key.first() {
                $(Some(&<$kind>::TABLE) => <$kind>::FORMAT_VERSION,)*
                _ => 1,
            }
        };
    }
    use crate::*;
    versions!(
        Header, Inode, LargeXattr, SmallData, Entry, Oi, Orphan, DestroyLog, SeqGrant, MdtState, Moving, Object,
        OstState, DoomedFile, Written, TargetRec, ParamRec, FsRec, MgtState, PoolRec, CrossRec, LossRec, LeftRec,
        Relayout
    )
}

/// The formats of all records, for a view or an engine.
pub fn formats() -> Formats {
    Formats::new(format_version)
}
