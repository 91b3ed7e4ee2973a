//! Records of changes with parts on several metadata targets (table `1a`).
//!
//! ```text
//! 1a role mdt instance serial    role 0: on the coordinator, 1: on a participant
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
}

impl Record for CrossRec {
    const TABLE: u8 = 0x1a;
    const KIND: &'static str = "cross change";
    type Id = CrossKey;

    fn key(id: &CrossKey) -> Key {
        Key::table(Self::TABLE).u8(u8::from(id.participant)).u32(id.mdt).u64(id.instance).u64(id.serial)
    }

    fn parse_key(key: &[u8]) -> Option<CrossKey> {
        let rest: [u8; 21] = rest(key, Self::TABLE)?;
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

    fn all() -> KeyRange {
        KeyRange::prefix(Key::table(Self::TABLE))
    }

    prost_body!();
}
