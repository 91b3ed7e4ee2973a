//! Data operations, on stripe objects of object targets and on resident files of metadata targets alike.

use prost::{Enumeration, Message};

use super::lock::Lvb;
use crate::ids::Fid;

/// A stripe object, or a resident file (`stripe` 0) when sent to a metadata target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Message)]
pub struct ObjectId {
    /// The file.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// Index of the stripe.
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
    /// Number of bytes, at most [`crate::connect::BRW_SIZE_MAX`].
    #[prost(uint32, tag = "3")]
    pub length: u32,
    /// Handle of the lock that covers the read; 0 if none, in which case the server takes one for the duration of the
    /// request.
    #[prost(uint64, tag = "4")]
    pub lock: u64,
    /// As [`super::Cred::job`]. Since version 0.2.0.
    #[prost(string, tag = "115")]
    pub job: String,
}

/// Body of the reply to `ObjRead`. The bulk holds the data, which ends early at the end of the object. An object that
/// was never written is empty.
#[derive(Clone, PartialEq, Message)]
pub struct ReadRep {
    /// State of the object after the request.
    #[prost(message, optional, tag = "1")]
    pub lvb: Option<Lvb>,
}

/// Body of `ObjWrite`. The bulk holds the data. Size and times are updated as if the write had happened when the client
/// accepted it. At a metadata target it is a modifying request with a tag and is kept for replay.
///
/// Errors: `EFBIG` if a resident file would outgrow its limit; `ENOSPC`.
#[derive(Clone, PartialEq, Message)]
pub struct WriteReq {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub object: ObjectId,
    /// First byte.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    /// Handle of the lock that covers the write; 0 if none.
    #[prost(uint64, tag = "3")]
    pub lock: u64,
    /// Times of the write by the client's clock, and the least size of the object including the client's buffered data:
    /// the client may have answered a pending glimpse with a smaller size.
    #[prost(message, optional, tag = "4")]
    pub lvb: Option<Lvb>,
    /// Owner of the data, for space accounting and checks.
    #[prost(uint32, tag = "5")]
    pub uid: u32,
    /// Group of the data.
    #[prost(uint32, tag = "6")]
    pub gid: u32,
    /// Bytes of the client's grant that this write uses.
    #[prost(uint64, tag = "7")]
    pub grant_used: u64,
    /// Delays the reply until the data is durable (`O_SYNC`, `O_DIRECT` with `O_DSYNC`).
    #[prost(bool, tag = "8")]
    pub sync: bool,
    /// Grant that the client wants to hold for data that it has buffered or expects, in bytes; 0 requests none.
    #[prost(uint64, tag = "9")]
    pub want_grant: u64,
    /// As [`super::Cred::job`]. Since version 0.2.0.
    #[prost(string, tag = "115")]
    pub job: String,
}

/// Body of the reply to `ObjWrite`, `ObjPunch`, `ObjSetattr`, `ObjGetattr`.
#[derive(Clone, PartialEq, Message)]
pub struct ObjectStateRep {
    /// State of the object after the request.
    #[prost(message, optional, tag = "1")]
    pub lvb: Option<Lvb>,
    /// Total space granted to the client, in bytes.
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

/// Body of `ObjSetattr`: sets times and owner. 0xffff_ffff leaves an owner or group unchanged.
#[derive(Clone, PartialEq, Message)]
pub struct ObjSetattrReq {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub object: ObjectId,
    /// Times; ignored if the object's ctime is newer.
    #[prost(message, optional, tag = "2")]
    pub lvb: Option<Lvb>,
    /// Owner.
    #[prost(uint32, tag = "3")]
    pub uid: u32,
    /// Group.
    #[prost(uint32, tag = "4")]
    pub gid: u32,
}

/// Operations of `ObjPunch`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Enumeration)]
#[repr(i32)]
pub enum PunchKind {
    /// Sets the object's size to `start`.
    Truncate = 0,
    /// Turns the range into a hole; the size is unchanged.
    Hole = 1,
    /// Zeroes the range and allocates space for it; the size grows unless `keep_size`.
    Zero = 2,
    /// Allocates space for the range; the size grows unless `keep_size`.
    Allocate = 3,
}

/// Body of `ObjPunch`.
#[derive(Clone, PartialEq, Message)]
pub struct PunchReq {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub object: ObjectId,
    /// Operation, a [`PunchKind`].
    #[prost(enumeration = "PunchKind", tag = "2")]
    pub kind: i32,
    /// First byte.
    #[prost(uint64, tag = "3")]
    pub start: u64,
    /// Number of bytes; unused by `Truncate`.
    #[prost(uint64, tag = "4")]
    pub length: u64,
    /// See [`PunchKind`].
    #[prost(bool, tag = "5")]
    pub keep_size: bool,
    /// Times of the change.
    #[prost(message, optional, tag = "6")]
    pub lvb: Option<Lvb>,
    /// Handle of the lock that covers the range; 0 if none.
    #[prost(uint64, tag = "7")]
    pub lock: u64,
    /// Owner, if this request creates the object.
    #[prost(uint32, tag = "8")]
    pub uid: u32,
    /// Group, if this request creates the object.
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
    /// Offset to search from.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    /// True for `SEEK_HOLE`, false for `SEEK_DATA`.
    #[prost(bool, tag = "3")]
    pub hole: bool,
    /// As [`super::Cred::job`]. Since version 0.2.0.
    #[prost(string, tag = "115")]
    pub job: String,
}

/// Body of the reply to `ObjSeek`. Errors: `ENXIO` if there is no data or hole at or after the offset.
#[derive(Clone, PartialEq, Message)]
pub struct SeekRep {
    /// Offset of the data or hole.
    #[prost(uint64, tag = "1")]
    pub offset: u64,
}

/// Body of `ObjSync`. The reply is sent when the objects, or all objects of the target if none are named, are durable
/// with their attributes.
#[derive(Clone, PartialEq, Message)]
pub struct ObjSyncReq {
    /// The objects.
    #[prost(message, repeated, tag = "1")]
    pub objects: Vec<ObjectId>,
    /// As [`super::Cred::job`]. Since version 0.2.0.
    #[prost(string, tag = "115")]
    pub job: String,
}

/// Body of `ObjDestroy`, sent by a metadata target. The reply is sent when the removal is durable. Missing objects are
/// no error.
#[derive(Clone, PartialEq, Message)]
pub struct DestroyReq {
    /// The objects.
    #[prost(message, repeated, tag = "1")]
    pub objects: Vec<ObjectId>,
    /// Objects of files that do not exist, to be removed too.
    #[prost(message, optional, tag = "2")]
    pub strays: Option<StrayObjects>,
}

/// Objects of files whose creation was lost in a crash of the metadata target together with their client; all files are
/// of one sequence.
#[derive(Clone, PartialEq, Message)]
pub struct StrayObjects {
    /// The sequence. Its client was evicted, so no new files of it appear.
    #[prost(uint64, tag = "1")]
    pub seq: u64,
    /// First object number of the range in which files were lost.
    #[prost(uint32, tag = "2")]
    pub first: u32,
    /// Last object number of the range.
    #[prost(uint32, tag = "3")]
    pub last: u32,
    /// Object numbers of the range whose files exist: their objects stay.
    #[prost(uint32, repeated, tag = "4")]
    pub keep: Vec<u32>,
}

/// Body of the reply to `ObjDestroy`.
#[derive(Clone, PartialEq, Message)]
pub struct DestroyRep {
    /// One request does not remove all strays: repeat it.
    #[prost(bool, tag = "1")]
    pub more: bool,
}

/// Body of `ObjStatfs` and `MdsStatfs`.
#[derive(Clone, PartialEq, Message)]
pub struct StatfsReq {
    /// Object targets: grant that the client wants to hold, in bytes.
    #[prost(uint64, tag = "1")]
    pub want_grant: u64,
}
