//! The header of a target: who it is.

use crate::record::{Record, prost_body, single_key};
use prost::Message;

/// The first record of every target, written when it is made.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Header {
    /// Full name, `adamant-MDT0000`, `MGS`.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Identity of the store, 16 bytes, drawn when it was made.
    #[prost(bytes = "bytes", tag = "2")]
    pub uuid: bytes::Bytes,
    /// Features that any version may ignore.
    #[prost(uint64, tag = "3")]
    pub compat: u64,
    /// Features that a version which does not know them may only read.
    #[prost(uint64, tag = "4")]
    pub rocompat: u64,
    /// Features that a version must know.
    #[prost(uint64, tag = "5")]
    pub incompat: u64,
    /// Recovery epoch: the high half of transnos.
    #[prost(uint32, tag = "6")]
    pub epoch: u32,
    /// How often it was started: the instance number that clients see.
    #[prost(uint64, tag = "7")]
    pub mount_count: u64,
    /// Addresses of the MGS.
    #[prost(string, repeated, tag = "8")]
    pub mgs_nids: Vec<String>,
    /// It has registered with the MGS once.
    #[prost(bool, tag = "9")]
    pub registered: bool,
    /// Version that made it.
    #[prost(string, tag = "10")]
    pub made_by: String,
    /// Nanoseconds since 1970 when it was made.
    #[prost(sint64, tag = "11")]
    pub made_ns: i64,
    /// Parameters that it sets at each start, `PATH=VALUE`.
    #[prost(string, repeated, tag = "12")]
    pub params: Vec<String>,
    /// First recovery epoch whose replies say versions of objects as this version means them; 0 if there was none: what was
    /// answered before is replayed without a look at versions.
    #[prost(uint32, tag = "13")]
    pub versions_epoch: u32,
    /// Key of the hash of names, 16 bytes, one for the file system ([`crate::first_cookie`]); empty: names have the hash
    /// without a key. No client learns it.
    #[prost(bytes = "bytes", tag = "60")]
    pub name_key: bytes::Bytes,
    /// Metadata targets: key of the handles of open files, 16 bytes, by which a client that opens again after a restart proves that it
    /// was answered. A version that does not know it drops it.
    #[prost(bytes = "bytes", tag = "130")]
    pub open_key: bytes::Bytes,
    /// First recovery epoch whose handles are made with it.
    #[prost(uint32, tag = "131")]
    pub open_key_epoch: u32,
    /// Metadata targets: key of the second hash of names, 16 bytes, for names whose chain is full ([`crate::second_cookie`]). It
    /// stays once there is such a name (`full_chains`). No client learns it.
    #[prost(bytes = "bytes", tag = "132")]
    pub second_key: bytes::Bytes,
    /// This is an older copy of the target's store: the count of starts that the MGS knows. It is not served before an
    /// administrator accepts it. 0: nothing is known against it.
    #[prost(uint64, tag = "85")]
    pub newer_count: u64,
    /// Object targets: made to take the place of one whose store is lost.
    #[prost(bool, tag = "140")]
    pub replaces: bool,
    /// The answer to that: how many object targets of the file system had been replaced then, this one included. Objects with lower
    /// numbers ([`proto::msg::Layout::first_number`]) were on the lost one.
    #[prost(uint32, tag = "141")]
    pub replaced: u32,
}

impl Record for Header {
    const TABLE: u8 = 0x01;
    const KIND: &'static str = "target header";
    single_key!();
    prost_body!();
}
