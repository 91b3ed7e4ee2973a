//! The header of a target: its identity, features and counters.

use crate::record::{Record, prost_body, single_key};
use prost::Message;

/// The header record of a target, first written when the target is made.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Header {
    /// Full name, such as `adamant-MDT0000` or `MGS`.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Identity of the store, 16 random bytes drawn when it was made.
    #[prost(bytes = "bytes", tag = "2")]
    pub uuid: bytes::Bytes,
    /// Features that a version may ignore if it does not know them.
    #[prost(uint64, tag = "3")]
    pub compat: u64,
    /// Features with which a version that does not know them may read the store but not write it.
    #[prost(uint64, tag = "4")]
    pub rocompat: u64,
    /// Features that a version must know to open the store.
    #[prost(uint64, tag = "5")]
    pub incompat: u64,
    /// Recovery epoch: the high half of transnos.
    #[prost(uint32, tag = "6")]
    pub epoch: u32,
    /// The number of starts of the target: the instance number that clients see.
    #[prost(uint64, tag = "7")]
    pub mount_count: u64,
    /// Addresses of the MGS.
    #[prost(string, repeated, tag = "8")]
    pub mgs_nids: Vec<String>,
    /// The target has registered with the MGS at least once.
    #[prost(bool, tag = "9")]
    pub registered: bool,
    /// Version of the program that made the target.
    #[prost(string, tag = "10")]
    pub made_by: String,
    /// When the target was made, in nanoseconds since 1970.
    #[prost(sint64, tag = "11")]
    pub made_ns: i64,
    /// Parameters that the target sets at each start, as `PATH=VALUE`.
    #[prost(string, repeated, tag = "12")]
    pub params: Vec<String>,
    /// First recovery epoch in which replies carry versions of objects in the present sense; 0 if there was none. Requests
    /// that were answered before it are replayed without a check of versions.
    #[prost(uint32, tag = "13")]
    pub versions_epoch: u32,
    /// Metadata targets: key of the hash of names, 16 bytes, the same on all of them in a file system ([`crate::first_cookie`]).
    /// Empty: the hash has no key. Clients never get it.
    #[prost(bytes = "bytes", tag = "60")]
    pub name_key: bytes::Bytes,
    /// Metadata targets: key for the handles of open files and for the proofs of cross changes, 16 bytes. With its handle, a client
    /// that replays an open proves that the open was answered. Versions that do not know the key drop it.
    #[prost(bytes = "bytes", tag = "130")]
    pub open_key: bytes::Bytes,
    /// First recovery epoch whose handles are made with `open_key`.
    #[prost(uint32, tag = "131")]
    pub open_key_epoch: u32,
    /// Metadata targets: key of the second hash of names, 16 bytes, for names whose chain is full ([`crate::second_cookie`]), the
    /// same on all of them in a file system. It never changes once there is such a name (`full_chains`). Clients never get it.
    #[prost(bytes = "bytes", tag = "132")]
    pub second_key: bytes::Bytes,
    /// If this is an older copy of the target's store: the higher number of starts that the MGS knows. Such a store is not
    /// served until an administrator accepts it. 0: the store is not known to be an older copy.
    #[prost(uint64, tag = "85")]
    pub newer_count: u64,
    /// Object targets: the target replaces one whose store is lost.
    #[prost(bool, tag = "140")]
    pub replaces: bool,
    /// The MGS's answer to `replaces`: the number of object targets of the file system replaced so far, this one included.
    /// Objects with lower numbers ([`proto::msg::Layout::first_number`]) were on the lost target.
    #[prost(uint32, tag = "141")]
    pub replaced: u32,
    /// Metadata targets: how often the target was declared lost for good and then admitted again. Since version 0.3.0.
    #[prost(uint32, tag = "160")]
    pub losses: u32,
    /// Metadata targets other than MDT0000: the target has no names yet, and takes over the keys of MDT0000 for their hashes when it
    /// registers. Since version 0.3.0.
    #[prost(bool, tag = "162")]
    pub takes_keys: bool,
}

impl Record for Header {
    const TABLE: u8 = 0x01;
    const KIND: &'static str = "target header";
    single_key!();
    prost_body!();
}
