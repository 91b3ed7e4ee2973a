//! Names in a directory: which are known, which are known not to be, and listings.
//!
//! An entry is valid while the directory's UPDATE lock is held without a break since it was learned
//! (`dir_epoch`), or while the child's LOOKUP lock is (`child_epoch`). That a name is *not* there is known only under the
//! directory's lock. If every name was seen under one unbroken lock the listing is `complete`, and a name that is not in
//! it does not exist.
//!
//! Own changes are put in from their replies, in the order of their transnos: an entry remembers the `version` that
//! made it, and an older reply does not overwrite it.

use bytes::Bytes;
use proto::Fid;
use std::sync::Arc;
use stdx::Map;

/// What a name leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The object; `None`: there is no such name.
    pub fid: Option<Fid>,
    /// `DT_*`, 0 if unknown.
    pub kind: u32,
    /// The directory's `update_epoch` when it was learned.
    pub dir_epoch: u32,
    /// The child's `lookup_epoch` when it was learned.
    pub child_epoch: u32,
    /// Transno of the change that made it so, or of the directory's state that showed it.
    pub version: u64,
}

/// One entry of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Name.
    pub name: Bytes,
    /// Object.
    pub fid: Fid,
    /// `DT_*`.
    pub kind: u32,
    /// The server's cookie.
    pub cookie: u64,
}

/// The entries of a directory in the order of their cookies, whole.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listing {
    /// Entries.
    pub entries: Vec<Listed>,
    /// Bytes that it takes, about.
    pub bytes: usize,
}

/// The directory part of a node.
#[derive(Debug, Default)]
pub struct Directory {
    /// Known names.
    pub names: Map<Bytes, Entry>,
    /// All names that exist are in `names`, if `update_epoch` is this one.
    pub complete_epoch: Option<u32>,
    /// The listing and the epoch under which it is exact.
    pub listing: Option<(u32, Arc<Listing>)>,
    /// Lookups in a row that found nothing here.
    pub misses: u32,
    /// A listing is being fetched.
    pub fetching: bool,
    /// The directory was too large to be listed, in this epoch.
    pub too_large: Option<u32>,
}
