//! Configuration.

use prost::{Enumeration, Message};

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
    /// An object target that takes the place of one whose store is lost (`mkfs --replace`). Since version 0.2.0.
    #[prost(bool, tag = "140")]
    pub replace: bool,
    /// What an earlier answer said in [`RegisterRep::replaced`]. Since version 0.2.0.
    #[prost(uint32, tag = "141")]
    pub replaced: u32,
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
    /// Of a target that took the place of a lost one: how many object targets of the file system had been replaced then, itself
    /// included; otherwise 0. Since version 0.2.0.
    #[prost(uint32, tag = "140")]
    pub replaced: u32,
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
    /// Pools, by name. Since version 0.2.0.
    #[prost(message, repeated, tag = "110")]
    pub pools: Vec<Pool>,
    /// How many object targets were replaced since the file system was made; see [`super::Layout::first_number`]. Since version 0.2.0.
    #[prost(uint32, tag = "140")]
    pub replaced: u32,
}

/// A pool: object targets under a name, for layouts to draw from.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Pool {
    /// Its name: 1 to 15 letters, digits, `_` and `-`.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Indexes of its targets, ascending.
    #[prost(uint32, repeated, tag = "2")]
    pub osts: Vec<u32>,
}

impl Pool {
    /// Longest name, in bytes.
    pub const NAME_MAX: usize = 15;
    /// In a wish where the data of a file shall go: all targets, whatever pool the file was in.
    pub const NONE: &str = "none";
    /// Names that `lfs setstripe -p` understands otherwise.
    pub const RESERVED: [&str; 3] = [Pool::NONE, "inherit", "ignore"];

    /// Whether a pool can have this name.
    pub fn name_is_valid(name: &str) -> bool {
        (1..=Pool::NAME_MAX).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
            && !Pool::RESERVED.contains(&name)
    }
}

/// What [`SetPoolReq`] does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Enumeration)]
#[repr(i32)]
pub enum SetPoolKind {
    /// Makes an empty pool. `EEXIST`: there is one of this name.
    New = 0,
    /// Adds targets. `ENOENT`: no such pool or target; `EEXIST`: one is in the pool already.
    Add = 1,
    /// Takes targets out. `ENOENT`: no such pool, or one is not in it.
    Remove = 2,
    /// Removes an empty pool. `ENOENT`: no such pool; `ENOTEMPTY`: it has targets.
    Destroy = 3,
}

/// Body of `MgsSetPool`. All of it is done, or nothing; durable before it is answered. Since version 0.2.0.
#[derive(Clone, PartialEq, Message)]
pub struct SetPoolReq {
    /// The file system.
    #[prost(string, tag = "1")]
    pub fsname: String,
    /// What to do.
    #[prost(enumeration = "SetPoolKind", tag = "2")]
    pub kind: i32,
    /// The pool's name.
    #[prost(string, tag = "3")]
    pub pool: String,
    /// Indexes of the targets to add or to take out.
    #[prost(uint32, repeated, tag = "4")]
    pub osts: Vec<u32>,
}

/// Body of the reply to `MgsSetPool`.
#[derive(Clone, PartialEq, Message)]
pub struct SetPoolRep {
    /// Why it was refused.
    #[prost(string, tag = "1")]
    pub reason: String,
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
