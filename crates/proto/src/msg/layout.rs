//! Layouts: which objects hold the data of a file.

use prost::{Enumeration, Message};

use super::lock::Lvb;
use crate::ids::Fid;

/// Where the data of a regular file lies; on a directory, the default for new files.
///
/// Objects are named (file FID, `first_object` + stripe index) on the target of that stripe. Byte `o` of the file lies in stripe
/// `(o / stripe_size) % stripe_count`, at `(o / stripe_size / stripe_count) * stripe_size + o % stripe_size` of its object.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Layout {
    /// Bytes; a multiple of 64 KiB.
    #[prost(uint32, tag = "1")]
    pub stripe_size: u32,
    /// Object target of each stripe. Its length is the stripe count. Empty in a directory's default.
    #[prost(uint32, repeated, tag = "2")]
    pub osts: Vec<u32>,
    /// The data still lies on the metadata target; `osts` says where it goes when it grows.
    #[prost(bool, tag = "3")]
    pub resident: bool,
    /// Rises with every change of the layout.
    #[prost(uint32, tag = "4")]
    pub generation: u32,
    /// Directory default: wanted stripe count; -1 means all.
    #[prost(sint32, tag = "5")]
    pub want_count: i32,
    /// Directory default: first target; -1 means any.
    #[prost(sint32, tag = "6")]
    pub want_first: i32,
    /// Number of the object of the first stripe; the others follow. [`Layout::first_number`] until the file was copied to other
    /// objects: no number of a file is used twice, so that a stripe may stay on its target.
    #[prost(uint32, tag = "90")]
    pub first_object: u32,
    /// The pool from which the targets are drawn, or were when the file was made; empty: any may be used. Since version 0.2.0.
    #[prost(string, tag = "110")]
    pub pool: String,
}

impl Layout {
    /// Bits of an object's number that count the objects of a file; those above say when they were chosen.
    const NUMBER_BITS: u32 = 24;
    /// How many object targets of a file system can be replaced.
    pub const REPLACED_MAX: u32 = (1 << (32 - Layout::NUMBER_BITS)) - 1;

    /// The least number of objects that are chosen when so many object targets of the file system have been replaced.
    pub const fn first_number(replaced: u32) -> u32 {
        if replaced > Layout::REPLACED_MAX { u32::MAX } else { replaced << Layout::NUMBER_BITS }
    }
}

/// See [`super::Reint::Setlayout`].
#[derive(Clone, PartialEq, Message)]
pub struct SetlayoutOp {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// What kind of change.
    #[prost(enumeration = "SetlayoutKind", tag = "2")]
    pub kind: i32,
    /// Set: `stripe_size`, `want_count`, `want_first`; zero or -1 means the default. Leave: the layout that the data was
    /// copied to, with the generation that the client saw. Copy: wishes as of Set, where the default is what the file has, with
    /// the generation that the client saw. Swap: what the answer to Copy said.
    #[prost(message, optional, tag = "3")]
    pub layout: Option<Layout>,
    /// Leave, Swap: times and size of the file, which its objects hold from now on.
    #[prost(message, optional, tag = "4")]
    pub lvb: Option<Lvb>,
}

/// The changes of a layout.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Enumeration)]
#[repr(i32)]
pub enum SetlayoutKind {
    /// `lfs setstripe`.
    Set = 0,
    /// The file's data leaves the metadata target: its objects are durable, the MDT's copy goes in this change.
    /// Needs an EX lock with DOM and LAYOUT, held by this client.
    Leave = 1,
    /// `lfs migrate` begins: objects are chosen for a copy of the file's data, and removed again if the client goes without a
    /// Swap. A file whose data is on the metadata target just gets other objects to grow to.
    Copy = 2,
    /// The copy is complete and durable: it is the file from now on, and the objects that it had go. Needs an EX lock with LAYOUT,
    /// held by this client since before it saw that no other client had the data locked. `ESTALE` if another client has confirmed the
    /// layout since this one has with that lock ([`GetattrReq::confirms_layout`](crate::msg::GetattrReq::confirms_layout)): an object
    /// target may have given its locks to that client.
    Swap = 3,
    /// The client gives up its copies of this file: their objects go.
    Drop = 4,
}
