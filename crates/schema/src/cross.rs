//! Records of changes with parts on several metadata targets (tables `1a` to `1c`).
//!
//! ```text
//! 1a role mdt instance serial    an attempt; role 0: on the coordinator, 1: on a participant
//! 1b mdt                         a metadata target that was declared lost for good
//! 1c role mdt instance serial    an attempt in which a lost target took part
//! ```
//!
//! A record is written when an attempt is staged or prepared, replaced in the group that applies the part, and deleted when
//! the records of all targets say that it is done, or when the attempt is given up.

use crate::record::{Record, prost_body, rest};
use bytes::Bytes;
use prost::Message;
use proto::msg::{CrossAttempt, CrossPart};
use store::{Key, KeyRange};

/// An attempt at a cross change (a change with parts on several metadata targets), on one of its targets. Since version 0.3.0.
#[derive(Clone, PartialEq, Message)]
pub struct CrossRec {
    /// The part of this target is applied. Otherwise the attempt is staged or prepared.
    #[prost(bool, tag = "1")]
    pub done: bool,
    /// Age of the change.
    #[prost(uint64, tag = "2")]
    pub age: u64,
    /// Index of the target that gave the age.
    #[prost(uint32, tag = "3")]
    pub age_mdt: u32,
    /// Indices of the participants.
    #[prost(uint32, repeated, tag = "4")]
    pub members: Vec<u32>,
    /// The parts: on the coordinator all of them, its own first; on a participant its own. Empty if done.
    #[prost(message, repeated, tag = "5")]
    pub parts: Vec<CrossPart>,
    /// Coordinator, not done: the client that asked for the change, 16 bytes big-endian.
    #[prost(bytes = "bytes", tag = "6")]
    pub client: Bytes,
    /// The slot (tag) of its request.
    #[prost(uint32, tag = "7")]
    pub tag: u32,
    /// The xid of its request.
    #[prost(uint64, tag = "8")]
    pub xid: u64,
    /// How often each participant had been declared lost when the attempt was staged, in the order of `members`. If one was
    /// declared lost more often since, it was lost with the attempt. Missing ones are 0.
    #[prost(uint32, repeated, tag = "9")]
    pub losses: Vec<u32>,
    /// On a participant: the same of the coordinator.
    #[prost(uint32, tag = "10")]
    pub coordinator_losses: u32,
}

/// Identifies a record of a cross change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CrossKey {
    /// On a participant rather than on the coordinator.
    pub participant: bool,
    /// Index of the coordinator.
    pub mdt: u32,
    /// Random number of the coordinator's start.
    pub instance: u64,
    /// Number of the attempt within this start.
    pub serial: u64,
}

impl CrossKey {
    /// The record of an attempt on its coordinator or on a participant.
    pub fn new(participant: bool, attempt: &CrossAttempt) -> CrossKey {
        CrossKey { participant, mdt: attempt.mdt, instance: attempt.instance, serial: attempt.serial }
    }

    fn key(&self, table: u8) -> Key {
        Key::table(table).u8(u8::from(self.participant)).u32(self.mdt).u64(self.instance).u64(self.serial)
    }

    fn parse(rest: [u8; 21]) -> Option<CrossKey> {
        let participant = match rest[0] {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(CrossKey {
            participant,
            mdt: u32::from_be_bytes(rest[1..5].try_into().ok()?),
            instance: u64::from_be_bytes(rest[5..13].try_into().ok()?),
            serial: u64::from_be_bytes(rest[13..].try_into().ok()?),
        })
    }
}

impl Record for CrossRec {
    const TABLE: u8 = 0x1a;
    const KIND: &'static str = "cross change";
    type Id = CrossKey;

    fn key(id: &CrossKey) -> Key {
        id.key(Self::TABLE)
    }

    fn parse_key(key: &[u8]) -> Option<CrossKey> {
        CrossKey::parse(rest(key, Self::TABLE)?)
    }

    fn all() -> KeyRange {
        KeyRange::prefix(Key::table(Self::TABLE))
    }

    prost_body!();
}

/// A metadata target that was declared lost for good; its key is its index. It is written before anything follows from the
/// loss, and stays. Since version 0.3.0.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LossRec {
    /// How often it was declared lost.
    #[prost(uint32, tag = "1")]
    pub losses: u32,
}

impl Record for LossRec {
    const TABLE: u8 = 0x1b;
    const KIND: &'static str = "lost target";
    type Id = u32;

    fn key(mdt: &u32) -> Key {
        Key::table(Self::TABLE).u32(*mdt)
    }

    fn parse_key(key: &[u8]) -> Option<u32> {
        Some(u32::from_be_bytes(rest(key, Self::TABLE)?))
    }

    fn all() -> KeyRange {
        KeyRange::prefix(Key::table(Self::TABLE))
    }

    prost_body!();
}

/// A cross change that was not over on all its targets when one of them was declared lost. Its objects may not fit together: it
/// stays until a check has looked at them. Since version 0.3.0.
#[derive(Clone, PartialEq, Message)]
pub struct LeftRec {
    /// Index of the lost target.
    #[prost(uint32, tag = "1")]
    pub lost: u32,
    /// How often it had been declared lost by then.
    #[prost(uint32, tag = "2")]
    pub losses: u32,
    /// The part of this target was applied by then. If not, it may have been applied or given up since.
    #[prost(bool, tag = "3")]
    pub done: bool,
    /// The part of this target, if it was not applied.
    #[prost(message, optional, tag = "4")]
    pub part: Option<CrossPart>,
}

impl Record for LeftRec {
    const TABLE: u8 = 0x1c;
    const KIND: &'static str = "change of a lost target";
    type Id = CrossKey;

    fn key(id: &CrossKey) -> Key {
        id.key(Self::TABLE)
    }

    fn parse_key(key: &[u8]) -> Option<CrossKey> {
        CrossKey::parse(rest(key, Self::TABLE)?)
    }

    fn all() -> KeyRange {
        KeyRange::prefix(Key::table(Self::TABLE))
    }

    prost_body!();
}
