//! Data: stripe objects on object targets, and resident files on the metadata target, in the same words.

use prost::{Enumeration, Message};

use super::lock::Lvb;
use crate::ids::Fid;

/// Names a stripe object, or a resident file (`stripe` 0) when sent to a metadata target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Message)]
pub struct ObjectId {
    /// The file.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// The stripe.
    #[prost(uint32, tag = "2")]
    pub stripe: u32,
}

/// Body of `ObjRead`.
#[derive(Clone, PartialEq, Message)]
pub struct ReadReq {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub object: ObjectId,
    /// First byte.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    /// Bytes, at most [`crate::connect::BRW_SIZE_MAX`].
    #[prost(uint32, tag = "3")]
    pub length: u32,
    /// The lock that covers it; 0 if none: the server then takes one for the length of the request.
    #[prost(uint64, tag = "4")]
    pub lock: u64,
    /// As [`super::Cred::job`]. Since version 0.2.0.
    #[prost(string, tag = "115")]
    pub job: String,
}

/// Body of the reply to `ObjRead`. The bulk holds the data, shorter than asked for at the end of the object; an object
/// that was never written is empty.
#[derive(Clone, PartialEq, Message)]
pub struct ReadRep {
    /// The object now.
    #[prost(message, optional, tag = "1")]
    pub lvb: Option<Lvb>,
}

/// Body of `ObjWrite`. The bulk holds the data. It replaces size and times as if the write had happened on the client.
/// To a metadata target it is a modifying request with a tag and a place in the replay list; a resident file that would
/// grow past the limit is refused with `EFBIG`.
#[derive(Clone, PartialEq, Message)]
pub struct WriteReq {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub object: ObjectId,
    /// First byte.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    /// The lock that covers it; 0 if none.
    #[prost(uint64, tag = "3")]
    pub lock: u64,
    /// Times that the client gave the write, and how large the object is at least with what the client has: it may have answered a glimpse
    /// that waits with less.
    #[prost(message, optional, tag = "4")]
    pub lvb: Option<Lvb>,
    /// Owner of the data, for space accounting and for checking.
    #[prost(uint32, tag = "5")]
    pub uid: u32,
    /// Its group.
    #[prost(uint32, tag = "6")]
    pub gid: u32,
    /// How much of the client's grant this write uses, in bytes.
    #[prost(uint64, tag = "7")]
    pub grant_used: u64,
    /// Answer only when it is durable (O_SYNC, O_DIRECT with O_DSYNC).
    #[prost(bool, tag = "8")]
    pub sync: bool,
    /// How much grant the client would like to hold, in bytes, because it has so much to write; 0 asks for nothing.
    #[prost(uint64, tag = "9")]
    pub want_grant: u64,
    /// As [`super::Cred::job`]. Since version 0.2.0.
    #[prost(string, tag = "115")]
    pub job: String,
}

/// Body of the reply to `ObjWrite`, `ObjPunch`, `ObjSetattr`, `ObjGetattr`.
#[derive(Clone, PartialEq, Message)]
pub struct ObjectStateRep {
    /// The object now.
    #[prost(message, optional, tag = "1")]
    pub lvb: Option<Lvb>,
    /// Space now granted to the client in all, in bytes.
    #[prost(uint64, tag = "2")]
    pub grant: u64,
}

/// Body of `ObjGetattr`.
#[derive(Clone, PartialEq, Message)]
pub struct ObjGetattrReq {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub object: ObjectId,
}

/// Body of `ObjSetattr`: times and owner; 0xffff_ffff leaves an owner as it is.
#[derive(Clone, PartialEq, Message)]
pub struct ObjSetattrReq {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub object: ObjectId,
    /// Times; a greater ctime wins.
    #[prost(message, optional, tag = "2")]
    pub lvb: Option<Lvb>,
    /// Owner.
    #[prost(uint32, tag = "3")]
    pub uid: u32,
    /// Group.
    #[prost(uint32, tag = "4")]
    pub gid: u32,
}

/// What `ObjPunch` does to a range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Enumeration)]
#[repr(i32)]
pub enum PunchKind {
    /// The object ends at `start`.
    Truncate = 0,
    /// The range becomes a hole; the size stays.
    Hole = 1,
    /// The range reads as zeros and has space; the size grows unless `keep_size`.
    Zero = 2,
    /// The range has space; the size grows unless `keep_size`.
    Allocate = 3,
}

/// Body of `ObjPunch`.
#[derive(Clone, PartialEq, Message)]
pub struct PunchReq {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub object: ObjectId,
    /// What.
    #[prost(enumeration = "PunchKind", tag = "2")]
    pub kind: i32,
    /// First byte.
    #[prost(uint64, tag = "3")]
    pub start: u64,
    /// Bytes; not for truncate.
    #[prost(uint64, tag = "4")]
    pub length: u64,
    /// See the kinds.
    #[prost(bool, tag = "5")]
    pub keep_size: bool,
    /// Times.
    #[prost(message, optional, tag = "6")]
    pub lvb: Option<Lvb>,
    /// The lock that covers it; 0 if none.
    #[prost(uint64, tag = "7")]
    pub lock: u64,
    /// Owner, if the object comes into being.
    #[prost(uint32, tag = "8")]
    pub uid: u32,
    /// Its group.
    #[prost(uint32, tag = "9")]
    pub gid: u32,
    /// As [`super::Cred::job`]. Since version 0.2.0.
    #[prost(string, tag = "115")]
    pub job: String,
}

/// Body of `ObjSeek`.
#[derive(Clone, PartialEq, Message)]
pub struct SeekReq {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub object: ObjectId,
    /// From here.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    /// `SEEK_HOLE`; otherwise `SEEK_DATA`.
    #[prost(bool, tag = "3")]
    pub hole: bool,
    /// As [`super::Cred::job`]. Since version 0.2.0.
    #[prost(string, tag = "115")]
    pub job: String,
}

/// Body of the reply to `ObjSeek`; `ENXIO` if there is none.
#[derive(Clone, PartialEq, Message)]
pub struct SeekRep {
    /// Where it is.
    #[prost(uint64, tag = "1")]
    pub offset: u64,
}

/// Body of `ObjSync`: answered when the objects, or everything if there are none, are durable with their attributes.
#[derive(Clone, PartialEq, Message)]
pub struct ObjSyncReq {
    /// The objects.
    #[prost(message, repeated, tag = "1")]
    pub objects: Vec<ObjectId>,
    /// As [`super::Cred::job`]. Since version 0.2.0.
    #[prost(string, tag = "115")]
    pub job: String,
}

/// Body of `ObjDestroy`, from a metadata target. Answered when it is durable; an object that is not there is no error.
#[derive(Clone, PartialEq, Message)]
pub struct DestroyReq {
    /// The objects.
    #[prost(message, repeated, tag = "1")]
    pub objects: Vec<ObjectId>,
    /// And objects of files that are not there.
    #[prost(message, optional, tag = "2")]
    pub strays: Option<StrayObjects>,
}

/// Objects of files of one sequence that a crash of the metadata target and the death of their client have undone.
#[derive(Clone, PartialEq, Message)]
pub struct StrayObjects {
    /// The sequence. Its client is gone, so no file of it is made any more.
    #[prost(uint64, tag = "1")]
    pub seq: u64,
    /// Files with this number,
    #[prost(uint32, tag = "2")]
    pub first: u32,
    /// to this one,
    #[prost(uint32, tag = "3")]
    pub last: u32,
    /// except these, which are there.
    #[prost(uint32, repeated, tag = "4")]
    pub keep: Vec<u32>,
}

/// Body of the reply to `ObjDestroy`.
#[derive(Clone, PartialEq, Message)]
pub struct DestroyRep {
    /// There are more strays than one request removes: ask again.
    #[prost(bool, tag = "1")]
    pub more: bool,
}

/// Body of `ObjStatfs` and `MdsStatfs`.
#[derive(Clone, PartialEq, Message)]
pub struct StatfsReq {
    /// Object targets: how much grant the client would like to have, in bytes.
    #[prost(uint64, tag = "1")]
    pub want_grant: u64,
}
