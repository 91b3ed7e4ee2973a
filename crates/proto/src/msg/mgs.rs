//! Management messages: registration of targets, configuration, parameters, pools, sequence ranges.

use prost::{Enumeration, Message};

/// Body of `MgsRegister`, sent by a target when it starts.
///
/// Errors, each with a reason in the reply: `EADDRINUSE` if another store is registered under the name, `ESTALE` if the
/// store is an older copy, `EPERM` if the target was declared lost and has not been admitted since, `EAGAIN` if it wants keys
/// and MDT0000 has not registered its own yet.
#[derive(Clone, PartialEq, Message)]
pub struct RegisterReq {
    /// Full name of the target, such as `adamant-OST0001`.
    #[prost(string, tag = "1")]
    pub target: String,
    /// Identity of its store, 16 bytes.
    #[prost(bytes = "bytes", tag = "2")]
    pub target_uuid: bytes::Bytes,
    /// Addresses that it listens on.
    #[prost(string, repeated, tag = "3")]
    pub nids: Vec<String>,
    /// Number of times that it was started.
    #[prost(uint64, tag = "4")]
    pub instance: u64,
    /// Whether this is the first registration after mkfs or `--writeconf`.
    #[prost(bool, tag = "5")]
    pub first: bool,
    /// Identity of this start: unique among the target's starts, and the same in every registration of this start. 0:
    /// not given. Since version 0.2.0.
    #[prost(uint64, tag = "85")]
    pub start: u64,
    /// Whether it is an object target that replaces one whose store is lost (`mkfs --replace`). Since version 0.2.0.
    #[prost(bool, tag = "140")]
    pub replace: bool,
    /// [`RegisterRep::replaced`] of an earlier reply. Since version 0.2.0.
    #[prost(uint32, tag = "141")]
    pub replaced: u32,
    /// A metadata target: how often it was declared lost for good and then admitted again. Since version 0.3.0.
    #[prost(uint32, tag = "160")]
    pub losses: u32,
    /// MDT0000: its keys, which are those of the file system. Since version 0.3.0.
    #[prost(message, optional, tag = "163")]
    pub name_keys: Option<NameKeys>,
    /// A new metadata target other than MDT0000: it takes over the file system's keys. Since version 0.3.0.
    #[prost(bool, tag = "164")]
    pub wants_keys: bool,
}

/// The keys of the hashes of names, the same on all metadata targets of a file system. Clients never get them. Since version
/// 0.3.0.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NameKeys {
    /// Key of the hash, 16 bytes. Empty: the hash has no key.
    #[prost(bytes = "bytes", tag = "1")]
    pub first: bytes::Bytes,
    /// Key of the second hash, for names whose chain is full, 16 bytes.
    #[prost(bytes = "bytes", tag = "2")]
    pub second: bytes::Bytes,
}

impl NameKeys {
    /// Length of a key, in bytes.
    pub const LEN: usize = 16;

    /// Whether both keys have a valid length.
    pub fn are_valid(&self) -> bool {
        matches!(self.first.len(), 0 | NameKeys::LEN) && self.second.len() == NameKeys::LEN
    }
}

/// Body of the reply to `MgsRegister`, also of an error reply.
#[derive(Clone, PartialEq, Message)]
pub struct RegisterRep {
    /// Version of the configuration that includes this target.
    #[prost(uint64, tag = "1")]
    pub config_version: u64,
    /// Why it was refused and what to do, for a person.
    #[prost(string, tag = "2")]
    pub reason: String,
    /// With `ESTALE`: the number of starts that the MGS has recorded. Otherwise 0.
    #[prost(uint64, tag = "85")]
    pub known_instance: u64,
    /// For a target that replaced a lost one: the number of object targets of the file system that had been replaced by
    /// then, including this one. Otherwise 0. Since version 0.2.0.
    #[prost(uint32, tag = "140")]
    pub replaced: u32,
    /// With `EPERM`: how often the target was declared lost. Otherwise 0. Since version 0.3.0.
    #[prost(uint32, tag = "160")]
    pub losses: u32,
    /// For a metadata target that wants them: the keys of the file system. Since version 0.3.0.
    #[prost(message, optional, tag = "163")]
    pub name_keys: Option<NameKeys>,
}

/// Body of `MgsTargetLost`: an administrator declares that a metadata target is lost for good. Since version 0.3.0.
#[derive(Clone, PartialEq, Message)]
pub struct TargetLostReq {
    /// Full name of the target, such as `adamant-MDT0001`.
    #[prost(string, tag = "1")]
    pub target: String,
}

/// Body of the reply to `MgsTargetLost`, also of an error reply. Errors: `ENOENT` if there is no such target, `EINVAL` if it
/// is not a metadata target, `EBUSY` if it is connected.
#[derive(Clone, PartialEq, Message)]
pub struct TargetLostRep {
    /// Why it was refused and what to do, for a person.
    #[prost(string, tag = "1")]
    pub reason: String,
}

/// Body of `MgsConfigGet`. The MGS then notifies the requester of changes with `MgsConfigChanged` while the connection
/// lasts.
#[derive(Clone, PartialEq, Message)]
pub struct ConfigGetReq {
    /// The file system.
    #[prost(string, tag = "1")]
    pub fsname: String,
}

/// A target with its addresses.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TargetEntry {
    /// Its full name.
    #[prost(string, tag = "1")]
    pub target: String,
    /// Addresses that it listens on.
    #[prost(string, repeated, tag = "2")]
    pub nids: Vec<String>,
    /// Number of times that it was started. A client that sees a new number reconnects at once.
    #[prost(uint64, tag = "3")]
    pub instance: u64,
    /// How often it was declared lost for good. Since version 0.3.0.
    #[prost(uint32, tag = "160")]
    pub losses: u32,
    /// It was declared lost and has not been admitted since. Since version 0.3.0.
    #[prost(bool, tag = "161")]
    pub is_lost: bool,
}

/// A persistent parameter.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Param {
    /// Path of the parameter; may contain `*`.
    #[prost(string, tag = "1")]
    pub path: String,
    /// Value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// Body of the reply to `MgsConfigGet`, and of `MgsConfigChanged` (with the version only). Errors: `ENOENT` if there is
/// no such file system.
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
    /// Number of object targets replaced since the file system was made, see [`super::Layout::first_object`]. Since
    /// version 0.2.0.
    #[prost(uint32, tag = "140")]
    pub replaced: u32,
    /// The metadata targets of FID sequences, ascending. Sequences in no range belong to MDT0000. Since version 0.3.0.
    #[prost(message, repeated, tag = "150")]
    pub sequences: Vec<SequenceRange>,
}

/// A range of FID sequences, and the metadata target that they were allocated to. Since version 0.3.0.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct SequenceRange {
    /// First sequence.
    #[prost(uint64, tag = "1")]
    pub start: u64,
    /// First sequence after the range.
    #[prost(uint64, tag = "2")]
    pub end: u64,
    /// Index of the metadata target.
    #[prost(uint32, tag = "3")]
    pub mdt: u32,
}

impl SequenceRange {
    /// Ranges as Lustre prints them: `[FIRST-END):INDEX:mdt`, one per line.
    pub fn text(ranges: &[SequenceRange]) -> String {
        let line = |range: &SequenceRange| format!("[{:#018x}-{:#018x}):{:x}:mdt\n", range.start, range.end, range.mdt);
        ranges.iter().map(line).collect()
    }
}

/// A pool: a named set of object targets that layouts can be restricted to.
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
    /// Requested instead of a pool's name: all targets, whatever pool the file was in.
    pub const NONE: &str = "none";
    /// Names with a meaning of their own for `lfs setstripe -p`.
    pub const RESERVED: [&str; 3] = [Pool::NONE, "inherit", "ignore"];

    /// Whether `name` is a valid name of a pool.
    pub fn name_is_valid(name: &str) -> bool {
        (1..=Pool::NAME_MAX).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
            && !Pool::RESERVED.contains(&name)
    }
}

/// Operations of [`SetPoolReq`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Enumeration)]
#[repr(i32)]
pub enum SetPoolKind {
    /// Creates an empty pool. `EEXIST`: the pool exists.
    New = 0,
    /// Adds targets. `ENOENT`: no such pool or target; `EEXIST`: a target is in the pool already.
    Add = 1,
    /// Removes targets. `ENOENT`: no such pool, or a target is not in it.
    Remove = 2,
    /// Destroys an empty pool. `ENOENT`: no such pool; `ENOTEMPTY`: it has targets.
    Destroy = 3,
}

/// Body of `MgsSetPool`. Applied as a whole or not at all, and durable before the reply. Since version 0.2.0.
#[derive(Clone, PartialEq, Message)]
pub struct SetPoolReq {
    /// The file system.
    #[prost(string, tag = "1")]
    pub fsname: String,
    /// Operation.
    #[prost(enumeration = "SetPoolKind", tag = "2")]
    pub kind: i32,
    /// The pool's name.
    #[prost(string, tag = "3")]
    pub pool: String,
    /// Indexes of the targets to add or remove.
    #[prost(uint32, repeated, tag = "4")]
    pub osts: Vec<u32>,
}

/// Body of the reply to `MgsSetPool`.
#[derive(Clone, PartialEq, Message)]
pub struct SetPoolRep {
    /// Why it was refused, for a person.
    #[prost(string, tag = "1")]
    pub reason: String,
}

/// Body of `MgsSetParam`. Errors: `EINVAL` if no server or client has a settable parameter of that name, unless it is
/// to be removed.
#[derive(Clone, PartialEq, Message)]
pub struct SetParamReq {
    /// The file system.
    #[prost(string, tag = "1")]
    pub fsname: String,
    /// The parameter.
    #[prost(message, optional, tag = "2")]
    pub param: Option<Param>,
    /// Removes the parameter instead of setting it.
    #[prost(bool, tag = "3")]
    pub delete: bool,
}

/// Body of `MgsSeqRange`, sent by a metadata target.
#[derive(Clone, PartialEq, Message)]
pub struct SeqRangeReq {
    /// Full name of the target.
    #[prost(string, tag = "1")]
    pub target: String,
    /// Ranges that the target got before. The MGS takes over what an older copy of its store lacks. Since version 0.3.0.
    #[prost(message, repeated, tag = "150")]
    pub allocated: Vec<SequenceRange>,
    /// Nothing is wanted: the reply has an empty range. Older versions allocate one all the same. Since version 0.3.0.
    #[prost(bool, tag = "151")]
    pub report_only: bool,
}

/// Body of the reply to `MgsSeqRange`. The allocation is durable before the reply, and no sequence is allocated twice.
///
/// Errors: `EINVAL` if the target is none for metadata, or a range that it reports is another's or was never allocated;
/// `ENOENT` if it is not registered; `ENOSPC` if all sequences are allocated.
#[derive(Clone, PartialEq, Message)]
pub struct SeqRangeRep {
    /// First sequence.
    #[prost(uint64, tag = "1")]
    pub start: u64,
    /// First sequence after the range.
    #[prost(uint64, tag = "2")]
    pub end: u64,
    /// The configuration says which target the range belongs to. A metadata target other than MDT0000 needs that. Since
    /// version 0.3.0.
    #[prost(bool, tag = "150")]
    pub published: bool,
}
