//! What two ends agree on when they connect.

/// Feature flags, with Lustre's numbers where Lustre has the feature. A server answers with a subset of what the
/// client asked for; unknown bits of a newer peer are not granted.
pub mod features {
    /// Several modifying requests in flight, each with a reply record of its own. Metadata targets grant it.
    pub const MULTI_MOD_RPCS: u64 = 0x0200_0000_0000_0000;
    /// Version-based recovery.
    pub const VBR: u64 = 0x8000_0000;
    /// Many locks replayed in one request. The number is that of Lustre's `batch_rpc`, whose metadata batches it resembles.
    pub const BATCH_RPC: u64 = 0x0040_0000;
    /// The server says how many unused locks a client may keep.
    pub const LRU_RESIZE: u64 = 0x0200_0000;
    /// Adaptive timeouts: replies say how long requests take.
    pub const AT: u64 = 0x0100_0000;
    /// The client hears of the target's starts from the MGS, and comes back at once.
    pub const IMP_RECOV: u64 = 0x0100_0000_0000;
    /// The client need not give signs of life while it has nothing to ask. Granted where pings are suppressed.
    pub const PINGLESS: u64 = 0x0004_0000_0000_0000;
    /// Metadata write-back: the client may make changes itself in directories that it holds exclusively, and send them in
    /// batches. Metadata targets that grant it say how many ([`crate::msg::ConnectRep::batch_room`]).
    pub const WRITE_BACK: u64 = 0x0800_0000;
    /// A client that is asked about what it no longer changes goes on holding its lock to read. The number is that of Lustre's
    /// `lock_convert`, by which a lock is given back in part.
    pub const LOCK_CONVERT: u64 = 0x80;
    /// A metadata target promises space for the data of small files, as object targets do.
    pub const GRANT: u64 = 0x8;
    /// The client opens files for reading without a request, and by FID before their name can go. Metadata targets grant it. The
    /// number is that of Lustre's `open_by_fid`.
    pub const OPEN_BY_FID: u64 = 0x0020_0000_0000_0000;
    /// The client knows that a file's data can move to other objects, and asks for the layout anew whenever it has no lock
    /// on any. A metadata target with such a file serves no others.
    pub const LAYOUT_SWAP: u64 = 0x20;
    /// The client gives back room for changes that it has not used for a while ([`crate::msg::BatchReq::gives_back`]), and one that has
    /// none is told of new room with the answers to its changes ([`crate::msg::ObjectRep::batch_room`]). Metadata targets grant it.
    pub const GRANT_SHRINK: u64 = 0x2_0000_0000;
    /// The bits that have a name, for `import`.
    pub const NAMES: &[(u64, &str)] = &[
        (AT, "adaptive_timeouts"),
        (VBR, "version_recovery"),
        (IMP_RECOV, "imp_recov"),
        (PINGLESS, "pingless"),
        (MULTI_MOD_RPCS, "multi_mod_rpcs"),
        (BATCH_RPC, "batch_rpc"),
        (LRU_RESIZE, "lru_resize"),
        (WRITE_BACK, "metadata_write_back"),
        (LOCK_CONVERT, "lock_convert"),
        (OPEN_BY_FID, "open_by_fid"),
        (GRANT, "grant"),
        (LAYOUT_SWAP, "layout_swap"),
        (GRANT_SHRINK, "grant_shrink"),
    ];
    /// What this version asks for. It offers the same, but for what an administrator has turned off.
    pub const SUPPORTED: u64 = AT
        | VBR
        | IMP_RECOV
        | PINGLESS
        | MULTI_MOD_RPCS
        | BATCH_RPC
        | LRU_RESIZE
        | WRITE_BACK
        | LOCK_CONVERT
        | OPEN_BY_FID
        | GRANT
        | LAYOUT_SWAP
        | GRANT_SHRINK;
}

/// Version of the protocol's meaning: major in the high 16 bits. A peer of another major version is refused.
pub const PROTOCOL_VERSION: u32 = 0x0001_0000;

/// Highest tag, and with it the most modifying requests that a client can have in flight, the close beside them included.
pub const TAG_MAX: u16 = 512;
/// Largest number of bytes in one read or write request.
pub const BRW_SIZE_MAX: u32 = 1 << 20;
/// Longest name of a directory entry, in bytes.
pub const NAME_MAX: usize = 255;
/// Longest symbolic link, in bytes.
pub const SYMLINK_MAX: usize = 4095;
/// Largest value of an extended attribute, in bytes.
pub const XATTR_SIZE_MAX: usize = 65536;
/// Most supplementary groups in a credential.
pub const GROUPS_MAX: usize = 65536;
/// Most links of an object.
pub const LINK_MAX: u32 = 65000;
/// What `stat` says of the size of every directory, in bytes.
pub const DIR_SIZE: u64 = 4096;
/// Files up to this size live on the metadata target, in bytes, by default.
pub const DOM_SIZE_DEFAULT: u32 = 64 << 10;
