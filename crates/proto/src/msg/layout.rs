//! Layouts: which objects hold the data of a file, and which the names of a directory.

use prost::{Enumeration, Message};

use super::lock::Lvb;
use crate::ids::Fid;

/// Location of a regular file's data; on a directory, the default for new files.
///
/// Objects are named (file FID, `first_object` + stripe index) on the target of that stripe. Byte `o` of the file lies in stripe
/// `(o / stripe_size) % stripe_count`, at `(o / stripe_size / stripe_count) * stripe_size + o % stripe_size` of its object.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Layout {
    /// In bytes; a multiple of 64 KiB.
    #[prost(uint32, tag = "1")]
    pub stripe_size: u32,
    /// Index of the object target of each stripe; the length is the stripe count. Empty in a directory's default.
    #[prost(uint32, repeated, tag = "2")]
    pub osts: Vec<u32>,
    /// Whether the data lies on the metadata target; then `osts` are the targets that it moves to when it outgrows
    /// that.
    #[prost(bool, tag = "3")]
    pub resident: bool,
    /// Incremented by every change of the layout.
    #[prost(uint32, tag = "4")]
    pub generation: u32,
    /// Directory default: requested stripe count; -1 means all targets.
    #[prost(sint32, tag = "5")]
    pub want_count: i32,
    /// Directory default: index of the first target; -1 means any.
    #[prost(sint32, tag = "6")]
    pub want_first: i32,
    /// Number of the object of the first stripe; those of the other stripes follow. The high 8 bits are the number of
    /// object targets that had been replaced when the objects were chosen ([`super::Config::replaced`]), the low 24 bits
    /// count from 0. No number is used twice within a file, so that a stripe may stay on its target when the data is
    /// copied to other objects.
    #[prost(uint32, tag = "90")]
    pub first_object: u32,
    /// Pool that the targets are chosen from, or were when the file was made; empty for all targets. Since version
    /// 0.2.0.
    #[prost(string, tag = "110")]
    pub pool: String,
}

impl Layout {
    /// Low bits of an object's number, which count the objects of a file. The high bits hold the number of targets that
    /// had been replaced when the object was chosen.
    const NUMBER_BITS: u32 = 24;
    /// The most object targets of a file system that can be replaced.
    pub const REPLACED_MAX: u32 = (1 << (32 - Layout::NUMBER_BITS)) - 1;

    /// Lowest number of objects that are chosen after `replaced` object targets of the file system were replaced.
    pub const fn first_number(replaced: u32) -> u32 {
        if replaced > Layout::REPLACED_MAX { u32::MAX } else { replaced << Layout::NUMBER_BITS }
    }
}

/// Layout of a striped directory (Lustre's LMV). Its names are distributed over stripes, each a directory object of its own; the
/// first is the directory itself, the master.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Lmv {
    /// The function of a name that gives its stripe.
    #[prost(enumeration = "DirHash", tag = "1")]
    pub hash: i32,
    /// Number of stripes.
    #[prost(uint32, tag = "2")]
    pub count: u32,
    /// Incremented by every change of the layout.
    #[prost(uint32, tag = "3")]
    pub version: u32,
    /// In the master: its stripes, itself first.
    #[prost(message, repeated, tag = "4")]
    pub stripes: Vec<Stripe>,
    /// In the other stripes: the master.
    #[prost(message, optional, tag = "5")]
    pub master: Option<Fid>,
    /// Index of the stripe that has this copy of the layout.
    #[prost(uint32, tag = "6")]
    pub index: u32,
    /// While the names move to the stripes of this layout: the number of stripes that they were distributed over before. Otherwise
    /// 0. `stripes` has all stripes of both layouts then.
    #[prost(uint32, tag = "7")]
    pub former_count: u32,
    /// The function that gave the stripe of a name before.
    #[prost(enumeration = "DirHash", tag = "8")]
    pub former_hash: i32,
    /// The directories that have come to this stripe with their names since the layout changed, less those that have left it. The sum over
    /// all stripes is 0. The link count of a stripe without them does not change when names move.
    #[prost(sint32, tag = "9")]
    pub moved: i32,
}

impl Lmv {
    /// Whether names move from the stripes of an earlier layout to those of this one.
    pub fn is_moving(&self) -> bool {
        self.former_count > 0
    }
}

/// Default layout of a directory (Lustre's default LMV): on which metadata targets the directories lie that are made in it, and
/// which default they inherit. Since version 0.3.0.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DirDefault {
    /// Number of stripes, each on another target, at most as many as there are; -1: one on each. 0 and 1: not striped.
    #[prost(sint32, tag = "1")]
    pub count: i32,
    /// Several stripes may be on one target, if there are fewer targets than stripes. A negative `count`: so many on each.
    #[prost(bool, tag = "2")]
    pub overstripe: bool,
    /// Indexes of metadata targets; at most [`DIR_DEFAULT_TARGETS_MAX`]. One: that of the first stripe. Several: those of the
    /// stripes, in this order. None: the client chooses.
    #[prost(uint32, repeated, tag = "3")]
    pub mdts: Vec<u32>,
    /// Striped directories: the function that gives the stripe of a name.
    #[prost(enumeration = "DirHash", tag = "4")]
    pub hash: i32,
    /// How far it is inherited, see [`inherit`].
    #[prost(uint32, tag = "5")]
    pub max_inherit: u32,
    /// How far targets are chosen one after the other rather than by free inodes, see [`inherit`].
    #[prost(uint32, tag = "6")]
    pub max_inherit_rr: u32,
}

/// Most targets that a [`DirDefault`] may name: each stripe of a directory has a copy.
pub const DIR_DEFAULT_TARGETS_MAX: usize = 32;

/// Depths of a [`DirDefault`], with Lustre's numbers.
pub mod inherit {
    /// `max_inherit`: the default applies to all directories below.
    pub const UNLIMITED: u32 = 0;
    /// `max_inherit`: it applies to the directories that are made in this one, and ends there. With 2 it applies to those in
    /// these, too, and so on.
    pub const ENDS: u32 = 1;
    /// The greatest number of levels.
    pub const LEVELS_MAX: u32 = 250;
    /// `max_inherit`: as [`ENDS`].
    pub const NONE: u32 = 255;
    /// `max_inherit_rr`: on all levels. 0: on none; otherwise on so many.
    pub const TURNS_UNLIMITED: u32 = 255;
}

/// The functions by which a name is assigned to a stripe, with Lustre's numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Enumeration)]
#[repr(i32)]
pub enum DirHash {
    /// None was chosen.
    Unknown = 0,
    /// The sum of the bytes, modulo the number of stripes.
    AllChar = 1,
    /// 64-bit FNV-1a, modulo the number of stripes.
    Fnv1a64 = 2,
    /// CRUSH: with more stripes, names move only to new ones; temporary names are hashed as their final ones.
    Crush = 3,
    /// The same, with a better test of which names are temporary.
    Crush2 = 4,
}

/// A stripe of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Stripe {
    /// Its FID; of a new one from a sequence that its target has granted to the client.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// Index of its metadata target.
    #[prost(uint32, tag = "2")]
    pub mdt: u32,
}

/// See [`super::Reint::Setlayout`].
#[derive(Clone, PartialEq, Message)]
pub struct SetlayoutOp {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// Operation, a [`SetlayoutKind`].
    #[prost(enumeration = "SetlayoutKind", tag = "2")]
    pub kind: i32,
    /// Set: `stripe_size`, `want_count` and `want_first`; 0 or -1 means the default. Leave: the layout that the data
    /// was copied to, with the generation that the client saw. Copy: as for Set, but the default is the file's present
    /// layout, with the generation that the client saw. Swap: [`super::ObjectRep::copy`] from the reply to Copy.
    #[prost(message, optional, tag = "3")]
    pub layout: Option<Layout>,
    /// Leave, Swap: times and size of the file, which its objects hold from then on.
    #[prost(message, optional, tag = "4")]
    pub lvb: Option<Lvb>,
    /// Directories: the default for directories that are made in it; none: it has none any more.
    #[prost(message, optional, boxed, tag = "5")]
    pub dir_default: Option<Box<DirDefault>>,
}

/// Operations on a layout.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Enumeration)]
#[repr(i32)]
pub enum SetlayoutKind {
    /// Sets the layout (`lfs setstripe`).
    Set = 0,
    /// Moves the file's data off the metadata target: the objects with the copy are durable, and this change drops the
    /// MDT's copy. Needs an EX lock with DOM and LAYOUT, held by this client. Errors: `EALREADY` if the data has moved
    /// already, `ESTALE` if the layout has changed since, `ENOLCK` without the lock.
    Leave = 1,
    /// Starts `lfs migrate`: chooses objects for a copy of the file's data. They are removed again if the client's
    /// session ends without a Swap. A file whose data is on the metadata target gets new objects to grow to at once.
    /// Errors: `EPERM` if the caller is not the owner, `ESTALE` if the layout has changed since, `EOPNOTSUPP` if a
    /// client lacks the feature `layout_swap`.
    Copy = 2,
    /// Makes the copy, which is complete and durable, the file's data, and removes its previous objects. Needs an EX
    /// lock with LAYOUT that the client has held since before it checked that no other client had the data locked. With
    /// an EX lock on UPDATE, too, the change waits for no other client; a client that keeps its locks on objects meanwhile
    /// needs that, or their targets may evict it. Errors: `ENOLCK` without the lock; `ESTALE` if the layout has changed since, the copy was given up, or another client
    /// has confirmed the layout since this client has
    /// ([`GetattrReq::confirms_layout`](crate::msg::GetattrReq::confirms_layout)): an object target may have evicted this
    /// client and given its locks to the other.
    Swap = 3,
    /// Gives up the client's copies of this file; their objects are removed.
    Drop = 4,
    /// Sets the default layout of a directory for directories that are made in it, or removes it (`lfs setdirstripe -D`).
    /// Errors: `ENOTDIR`; `EPERM` if the caller is not the owner, or may not choose metadata targets; `EINVAL` for a count, a
    /// depth or a hash function that there is not; `E2BIG` for too many targets. Since version 0.3.0; earlier ones answer
    /// `EINVAL`.
    DirDefault = 5,
}
