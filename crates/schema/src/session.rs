//! Session records of a target (table `02`): clients, replies, progress, and the last known configuration.
//!
//! ```text
//! 02 00            Progress        the last transno of the last group
//! 02 01 uuid       ClientRec       a client that the target knows; for a client with single slots, also its last replies
//! 02 02            KnownConfig     the last configuration that the MGS sent
//! 02 03 gen tag    ReplyRec        the last reply of a slot, for a client with several slots
//! ```
//!
//! A reply is written in the same group as the change that it describes, so after a crash either both exist or neither. The
//! replies of a client with several slots are records of their own, which are small and written only when they change. Their
//! keys have the client's generation. A reply with a generation that no client has is garbage.

use crate::record::{Record, prost_body};
use prost::Message;
use proto::{ClientUuid, Tag};
use store::{Key, KeyRange};

const SESSION: u8 = 0x02;

/// The progress of a target, written in every group that has a change with a transno.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Progress {
    /// The highest transno of all changes up to this group.
    #[prost(uint64, tag = "1")]
    pub last_transno: u64,
    /// The greatest generation of any client so far.
    #[prost(uint32, tag = "2")]
    pub last_generation: u32,
}

impl Record for Progress {
    const TABLE: u8 = SESSION;
    const KIND: &'static str = "progress";
    type Id = ();

    fn key(_: &()) -> Key {
        Key::table(SESSION).u8(0)
    }

    fn parse_key(key: &[u8]) -> Option<()> {
        (key == [SESSION, 0]).then_some(())
    }

    prost_body!();

    fn all() -> KeyRange {
        KeyRange::prefix(Key::table(SESSION).u8(0))
    }
}

/// The reply to the last modifying request of a slot, for a client with single slots.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SlotRec {
    /// Tag: 1 or 2.
    #[prost(uint32, tag = "1")]
    pub tag: u32,
    /// The request.
    #[prost(uint64, tag = "2")]
    pub xid: u64,
    /// Its transno.
    #[prost(uint64, tag = "3")]
    pub transno: u64,
    /// Its status: 0 or positive, because a failed request leaves no record.
    #[prost(sint32, tag = "4")]
    pub result: i32,
    /// Data from which the operation rebuilds the reply: the disposition of an open, the mode of a changed object.
    #[prost(uint64, tag = "5")]
    pub data: u64,
    /// Versions of the objects before the change, at most four.
    #[prost(uint64, repeated, tag = "6")]
    pub pre_versions: Vec<u64>,
}

/// A client that the target knows: it takes part in recovery, and its last requests are not executed twice.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ClientRec {
    /// Part of the keys of the client's reply records. Never used for another client; 0 for a client with single slots.
    #[prost(uint32, tag = "1")]
    pub generation: u32,
    /// Name for status output.
    #[prost(string, tag = "2")]
    pub description: String,
    /// For a client with single slots: the last reply of each.
    #[prost(message, repeated, tag = "3")]
    pub slots: Vec<SlotRec>,
    /// Epoch in which the client last came through a recovery, or connected.
    #[prost(uint32, tag = "4")]
    pub last_epoch: u32,
    /// A random number that identifies the client's session and is sent to it at each connect. 0: the session was made by a
    /// version before 0.2.0.
    #[prost(uint64, tag = "5")]
    pub session: u64,
}

impl Record for ClientRec {
    const TABLE: u8 = SESSION;
    const KIND: &'static str = "client";
    type Id = ClientUuid;

    fn key(uuid: &ClientUuid) -> Key {
        Key::table(SESSION).u8(1).bytes(&uuid.0.to_be_bytes())
    }

    fn parse_key(key: &[u8]) -> Option<ClientUuid> {
        let uuid: [u8; 16] = key.strip_prefix(&[SESSION, 1])?.try_into().ok()?;
        Some(ClientUuid(u128::from_be_bytes(uuid)))
    }

    prost_body!();

    fn all() -> KeyRange {
        KeyRange::prefix(Key::table(SESSION).u8(1))
    }
}

/// The reply to the last modifying request of a slot, for a client with several slots. Only the reply to a later request
/// replaces it. A target with such records has the incompat feature `multi_rpcs`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ReplyRec {
    /// The request.
    #[prost(uint64, tag = "1")]
    pub xid: u64,
    /// Its transno.
    #[prost(uint64, tag = "2")]
    pub transno: u64,
    /// Its status: 0 or positive, because a failed request leaves no record.
    #[prost(sint32, tag = "3")]
    pub result: i32,
    /// Data from which the operation rebuilds the reply: the disposition of an open, the mode of a changed object.
    #[prost(uint64, tag = "4")]
    pub data: u64,
    /// Versions of the objects before the change, at most four.
    #[prost(uint64, repeated, tag = "5")]
    pub pre_versions: Vec<u64>,
}

impl Record for ReplyRec {
    const TABLE: u8 = SESSION;
    const KIND: &'static str = "reply";
    /// Generation of the client, and tag.
    type Id = (u32, Tag);

    fn key((generation, tag): &(u32, Tag)) -> Key {
        Key::table(SESSION).u8(3).bytes(&generation.to_be_bytes()).bytes(&tag.0.to_be_bytes())
    }

    fn parse_key(key: &[u8]) -> Option<(u32, Tag)> {
        let id: [u8; 6] = key.strip_prefix(&[SESSION, 3])?.try_into().ok()?;
        let [a, b, c, d, tag @ ..] = id;
        Some((u32::from_be_bytes([a, b, c, d]), Tag(u16::from_be_bytes(tag))))
    }

    prost_body!();

    fn all() -> KeyRange {
        KeyRange::prefix(Key::table(SESSION).u8(3))
    }
}

/// The last configuration that the MGS sent, so that a target can serve while the MGS is away.
#[derive(Clone, PartialEq, Message)]
pub struct KnownConfig {
    /// See [`proto::msg::Config`].
    #[prost(message, optional, tag = "1")]
    pub config: Option<proto::msg::Config>,
}

impl Record for KnownConfig {
    const TABLE: u8 = SESSION;
    const KIND: &'static str = "known configuration";
    type Id = ();

    fn key(_: &()) -> Key {
        Key::table(SESSION).u8(2)
    }

    fn parse_key(key: &[u8]) -> Option<()> {
        (key == [SESSION, 2]).then_some(())
    }

    prost_body!();

    fn all() -> KeyRange {
        KeyRange::prefix(Key::table(SESSION).u8(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_keys_tell_their_parts_again() {
        let uuid = ClientUuid(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
        assert_eq!(ClientRec::parse_key(&ClientRec::key(&uuid)), Some(uuid));
        assert!(ClientRec::all().contains(&ClientRec::key(&uuid)));
        assert!(!ClientRec::all().contains(&Progress::key(&())));
        assert!(!ClientRec::all().contains(&KnownConfig::key(&())));
        assert_eq!(ClientRec::parse_key(&Progress::key(&())), None);
    }

    #[test]
    fn reply_keys_sort_by_generation_and_tag() {
        let id = (0x0102_0304, Tag(0x0506));
        assert_eq!(ReplyRec::key(&id)[..], [2, 3, 1, 2, 3, 4, 5, 6]);
        assert_eq!(ReplyRec::parse_key(&ReplyRec::key(&id)), Some(id));
        assert!(ReplyRec::key(&(1, Tag(512))) < ReplyRec::key(&(2, Tag(1))));
        assert!(!ReplyRec::all().contains(&KnownConfig::key(&())));
        assert_eq!(ReplyRec::parse_key(&[2, 3, 0, 0, 0, 1, 0]), None);
    }

    #[test]
    fn a_client_record_has_these_bytes_for_ever() {
        let record = ClientRec {
            generation: 0,
            description: "c".into(),
            slots: vec![SlotRec { tag: 1, xid: 2, transno: 3, result: 0, data: 4, pre_versions: vec![5, 6] }],
            last_epoch: 7,
            session: 8,
        };
        let body = record.encode_record();
        assert_eq!(body[..], *b"\x12\x01c\x1a\x0c\x08\x01\x10\x02\x18\x03(\x042\x02\x05\x06 \x07(\x08");
        assert_eq!(ClientRec::decode_record(&body), Ok(record));
    }
}
