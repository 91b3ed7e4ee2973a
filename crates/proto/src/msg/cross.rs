//! Messages between metadata targets: changes with parts on several of them, by two-phase commit.
//!
//! The target that the client asks is the coordinator, the others are participants. All messages travel over the
//! coordinator's session with the participant. See `docs/src/protocol.md`.

use crate::Fid;
use crate::msg::{Attr, Cred};
use bytes::Bytes;
use prost::{Message, Oneof};

/// Number of one try at a cross change. It is never used again.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CrossAttempt {
    /// Index of the coordinator.
    #[prost(uint32, tag = "1")]
    pub mdt: u32,
    /// A random number of the coordinator's start.
    #[prost(fixed64, tag = "2")]
    pub instance: u64,
    /// Number within this start.
    #[prost(uint64, tag = "3")]
    pub serial: u64,
}

/// What a cross change checks and changes on one target. It holds results, so that it can be applied long after it was
/// checked.
#[derive(Clone, PartialEq, Message)]
pub struct CrossPart {
    /// Index of the target.
    #[prost(uint32, tag = "1")]
    pub mdt: u32,
    /// Steps, in the order in which they are executed.
    #[prost(message, repeated, tag = "2")]
    pub acts: Vec<CrossAct>,
}

/// A step of a part.
#[derive(Clone, PartialEq, Message)]
pub struct CrossAct {
    /// Time of the change by the client's clock.
    #[prost(sint64, tag = "1")]
    pub now_ns: i64,
    /// What is done.
    #[prost(oneof = "Act", tags = "2, 3, 4, 5")]
    pub act: Option<Act>,
}

/// What a [`CrossAct`] does.
#[derive(Clone, PartialEq, Oneof)]
pub enum Act {
    /// Adds a name for an object on another target to a directory.
    #[prost(message, tag = "2")]
    AddName(NameAct),
    /// Removes a name of an object on another target from a directory.
    #[prost(message, tag = "3")]
    RemoveName(NameAct),
    /// Makes an object whose name is on another target.
    #[prost(message, tag = "4")]
    Make(MakeAct),
    /// Takes from an object a name that is on another target.
    #[prost(message, tag = "5")]
    Unlink(UnlinkAct),
}

/// A name in a directory.
#[derive(Clone, PartialEq, Message)]
pub struct NameAct {
    /// The directory.
    #[prost(message, required, tag = "1")]
    pub parent: Fid,
    /// The name.
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
    /// The object.
    #[prost(message, required, tag = "3")]
    pub fid: Fid,
    /// Its type and permission bits.
    #[prost(uint32, tag = "4")]
    pub mode: u32,
    /// Index of the object's target.
    #[prost(uint32, tag = "5")]
    pub mdt: u32,
}

/// A new object.
#[derive(Clone, PartialEq, Message)]
pub struct MakeAct {
    /// Its FID.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// The client that chose the FID, 16 bytes big-endian. The FID's sequence was granted to it.
    #[prost(bytes = "bytes", tag = "2")]
    pub client: Bytes,
    /// The record of its inode, without a version.
    #[prost(bytes = "bytes", tag = "3")]
    pub inode: Bytes,
}

/// An object that loses a name.
#[derive(Clone, PartialEq, Message)]
pub struct UnlinkAct {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// The directory that has the name.
    #[prost(message, required, tag = "2")]
    pub parent: Fid,
    /// The name.
    #[prost(bytes = "bytes", tag = "3")]
    pub name: Bytes,
    /// The directory's permission bits and owner, on which the right to remove the object depends.
    #[prost(uint32, tag = "4")]
    pub parent_mode: u32,
    /// See `parent_mode`.
    #[prost(uint32, tag = "5")]
    pub parent_uid: u32,
    /// `rmdir` rather than `unlink`.
    #[prost(bool, tag = "6")]
    pub rmdir: bool,
    /// Credentials of the caller.
    #[prost(message, optional, tag = "7")]
    pub cred: Option<Cred>,
}

/// Body of `CrossSession`, the first request in a session of two metadata targets.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CrossSessionReq {
    /// Index of the coordinator.
    #[prost(uint32, tag = "1")]
    pub mdt: u32,
    /// Number of the session; greater than those of the coordinator's earlier sessions since its start.
    #[prost(uint64, tag = "2")]
    pub session: u64,
    /// The random number of the coordinator's start.
    #[prost(fixed64, tag = "3")]
    pub instance: u64,
}

/// Body of the reply to `CrossSession`: what the participant has durably of the coordinator's attempts.
#[derive(Clone, PartialEq, Message)]
pub struct CrossSessionRep {
    /// Attempts that it has prepared.
    #[prost(message, repeated, tag = "1")]
    pub prepared: Vec<CrossAttempt>,
    /// Attempts that it has applied.
    #[prost(message, repeated, tag = "2")]
    pub done: Vec<CrossAttempt>,
}

/// Body of `CrossPrepare`: check a part and reserve all that it needs.
#[derive(Clone, PartialEq, Message)]
pub struct CrossPrepareReq {
    /// The session, see [`CrossSessionReq::session`]. A request of an earlier session is refused (`ESTALE`).
    #[prost(uint64, tag = "1")]
    pub session: u64,
    /// The attempt.
    #[prost(message, required, tag = "2")]
    pub attempt: CrossAttempt,
    /// Age of the change: that of its first attempt. The lower one is the older one.
    #[prost(uint64, tag = "3")]
    pub age: u64,
    /// Index of the target that gave the age; decides between equal ages.
    #[prost(uint32, tag = "4")]
    pub age_mdt: u32,
    /// The part.
    #[prost(message, optional, tag = "5")]
    pub part: Option<CrossPart>,
    /// Indices of all participants.
    #[prost(uint32, repeated, tag = "6")]
    pub members: Vec<u32>,
}

/// Body of the reply to `CrossPrepare`: the participant's vote. The part is prepared, durably, unless `busy` or `errno` is set:
/// then this attempt is not prepared and never will be.
#[derive(Clone, PartialEq, Message)]
pub struct CrossPrepareRep {
    /// An older change holds or awaits what the part needs, or a client has not given back a lock that conflicts with it.
    /// [`CrossFree`] follows when the attempt may be repeated.
    #[prost(bool, tag = "1")]
    pub busy: bool,
    /// The check has failed with this errno.
    #[prost(int32, tag = "2")]
    pub errno: i32,
    /// The object of the part after the change.
    #[prost(message, optional, tag = "3")]
    pub attr: Option<Attr>,
}

/// Body of `CrossTell`: outcomes of attempts. The empty reply is sent when the participant has acted on all of them, durably.
#[derive(Clone, PartialEq, Message)]
pub struct CrossTellReq {
    /// Committed: to be applied.
    #[prost(message, repeated, tag = "1")]
    pub commit: Vec<CrossAttempt>,
    /// Ended without effect.
    #[prost(message, repeated, tag = "2")]
    pub abort: Vec<CrossAttempt>,
    /// Durably done on all targets: to be forgotten.
    #[prost(message, repeated, tag = "3")]
    pub forget: Vec<CrossAttempt>,
}

/// Body of the notice `CrossFree`: a change whose attempt was busy may be tried again.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CrossFree {
    /// The attempt.
    #[prost(message, required, tag = "1")]
    pub attempt: CrossAttempt,
}
