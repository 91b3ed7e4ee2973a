//! Listings of directories.

use bytes::Bytes;
use prost::Message;

use super::lock::LockGrant;
use super::mds::{Attr, Cred, WantLocks};
use crate::ids::Fid;

/// Body of `MdsReaddir`.
#[derive(Clone, PartialEq, Message)]
pub struct ReaddirReq {
    /// The directory.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// Cookie to continue after; 0 starts from the beginning. The client supplies `.` and `..` itself.
    #[prost(uint64, tag = "2")]
    pub after: u64,
    /// Approximate size limit of the reply, in bytes.
    #[prost(uint32, tag = "3")]
    pub max_bytes: u32,
    /// Requests the attributes of each entry.
    #[prost(bool, tag = "4")]
    pub plus: bool,
    /// Lock requested: PR with UPDATE on the directory.
    #[prost(message, optional, tag = "5")]
    pub want: Option<WantLocks>,
    /// Credentials of the caller.
    #[prost(message, optional, tag = "6")]
    pub cred: Option<Cred>,
    /// First of a run of client lock cookies for the entries of a `plus` listing: entry i gets this + i. 0: no locks on
    /// entries.
    #[prost(uint64, tag = "7")]
    pub entry_cookies: u64,
    /// The version of the directory's layout that the client knows ([`super::Lmv::version`]); 0: it is not striped. With another
    /// version there may be other stripes: `EREMCHG`. Since version 0.3.0.
    #[prost(uint32, tag = "8")]
    pub layout: u32,
}

/// Entries whose cookies differ only below a multiple of this belong to one chain. A name is in the same chain in every stripe of its
/// directory, but perhaps at another place there. (A name whose chain is full is in another one.)
pub const CHAIN_COOKIES: u64 = 16;

/// One directory entry.
#[derive(Clone, PartialEq, Message)]
pub struct DirEntry {
    /// The name.
    #[prost(bytes = "bytes", tag = "1")]
    pub name: Bytes,
    /// The object.
    #[prost(message, required, tag = "2")]
    pub fid: Fid,
    /// Type (`DT_*`): the `S_IFMT` bits of the mode, shifted right by 12.
    #[prost(uint32, tag = "3")]
    pub kind: u32,
    /// Position in the listing: ascending, and stable while the entry exists.
    #[prost(uint64, tag = "4")]
    pub cookie: u64,
    /// With `plus`: attributes of the object.
    #[prost(message, optional, tag = "5")]
    pub attr: Option<Attr>,
    /// With `plus` and `entry_cookies`: the lock that protects `attr`, if it could be granted.
    #[prost(message, optional, tag = "6")]
    pub lock: Option<LockGrant>,
}

/// Body of the reply to `MdsReaddir`.
#[derive(Clone, PartialEq, Message)]
pub struct ReaddirRep {
    /// Entries in the order of their cookies.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<DirEntry>,
    /// The listing is complete: no entry follows.
    #[prost(bool, tag = "2")]
    pub end: bool,
    /// Locks granted.
    #[prost(message, repeated, tag = "3")]
    pub locks: Vec<LockGrant>,
    /// The directory.
    #[prost(message, optional, tag = "4")]
    pub attr: Option<Attr>,
}
