//! Configuration.

use prost::Message;

/// Body of `MgsRegister`, from a target when it starts.
#[derive(Clone, PartialEq, Message)]
pub struct RegisterReq {
    /// Its full name, `adamant-OST0001`.
    #[prost(string, tag = "1")]
    pub target: String,
    /// Identity of its store, 16 bytes: another store under the same name is refused with `EADDRINUSE`.
    #[prost(bytes = "bytes", tag = "2")]
    pub target_uuid: bytes::Bytes,
    /// Where it listens.
    #[prost(string, repeated, tag = "3")]
    pub nids: Vec<String>,
    /// How often it was started.
    #[prost(uint64, tag = "4")]
    pub instance: u64,
    /// First registration after mkfs or `--writeconf`.
    #[prost(bool, tag = "5")]
    pub first: bool,
    /// Which start it is: a number that no other start of the target has, the same each time that this one registers. 0: not
    /// said. Since version 0.2.0.
    #[prost(uint64, tag = "85")]
    pub start: u64,
}

/// Body of the reply to `MgsRegister`; also a sentence for a person if it was refused.
#[derive(Clone, PartialEq, Message)]
pub struct RegisterRep {
    /// Version of the configuration that has this target.
    #[prost(uint64, tag = "1")]
    pub config_version: u64,
    /// Why it was refused and what to do.
    #[prost(string, tag = "2")]
    pub reason: String,
    /// Refused because the store is an older copy (`ESTALE`): the count of starts that the MGS knows. Otherwise 0.
    #[prost(uint64, tag = "85")]
    pub known_instance: u64,
}

/// Body of `MgsConfigGet`. Whoever asked is told of changes by `MgsConfigChanged` while the connection lasts.
#[derive(Clone, PartialEq, Message)]
pub struct ConfigGetReq {
    /// The file system.
    #[prost(string, tag = "1")]
    pub fsname: String,
}

/// A target and where it is.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TargetEntry {
    /// Its full name.
    #[prost(string, tag = "1")]
    pub target: String,
    /// Where it listens.
    #[prost(string, repeated, tag = "2")]
    pub nids: Vec<String>,
    /// How often it was started: a new number means reconnect now.
    #[prost(uint64, tag = "3")]
    pub instance: u64,
}

/// A persistent parameter.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Param {
    /// Path, possibly with `*`.
    #[prost(string, tag = "1")]
    pub path: String,
    /// Value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// Body of the reply to `MgsConfigGet`, and of `MgsConfigChanged` (version only). `ENOENT` if there is no such file system.
#[derive(Clone, PartialEq, Message)]
pub struct Config {
    /// Rises with every change.
    #[prost(uint64, tag = "1")]
    pub version: u64,
    /// All targets of the file system, by name.
    #[prost(message, repeated, tag = "2")]
    pub targets: Vec<TargetEntry>,
    /// Persistent parameters, by path.
    #[prost(message, repeated, tag = "3")]
    pub params: Vec<Param>,
    /// The file system.
    #[prost(string, tag = "4")]
    pub fsname: String,
}

/// Body of `MgsSetParam`. `EINVAL` if no server and no client has a parameter of that name which can be set, unless it is removed.
#[derive(Clone, PartialEq, Message)]
pub struct SetParamReq {
    /// The file system.
    #[prost(string, tag = "1")]
    pub fsname: String,
    /// The parameter.
    #[prost(message, optional, tag = "2")]
    pub param: Option<Param>,
    /// Remove it.
    #[prost(bool, tag = "3")]
    pub delete: bool,
}

/// Body of `MgsSeqRange`, from a metadata target.
#[derive(Clone, PartialEq, Message)]
pub struct SeqRangeReq {
    /// The target.
    #[prost(string, tag = "1")]
    pub target: String,
}

/// Body of the reply to `MgsSeqRange`: durable before it is sent, never given to anyone else.
#[derive(Clone, PartialEq, Message)]
pub struct SeqRangeRep {
    /// First sequence.
    #[prost(uint64, tag = "1")]
    pub start: u64,
    /// First sequence that no longer belongs to it.
    #[prost(uint64, tag = "2")]
    pub end: u64,
}
