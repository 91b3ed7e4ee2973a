//! What two peers negotiate when they connect (feature flags, protocol version), and limits that both sides apply.

/// Feature flags, with Lustre's numbers where Lustre has the feature. The client requests a set of them; the server
/// grants a subset and ignores bits that it does not know.
pub mod features {
    /// Several modifying requests in flight per client, each with its own reply record. Granted by metadata targets.
    pub const MULTI_MOD_RPCS: u64 = 0x0200_0000_0000_0000;
    /// Version-based recovery.
    pub const VBR: u64 = 0x8000_0000;
    /// One request replays many locks. The number is that of Lustre's `batch_rpc`, whose metadata batches it resembles.
    pub const BATCH_RPC: u64 = 0x0040_0000;
    /// The server limits how many unused locks a client keeps ([`crate::msg::LruLimit`]).
    pub const LRU_RESIZE: u64 = 0x0200_0000;
    /// Adaptive timeouts: replies carry the server's estimate of the worst service time.
    pub const AT: u64 = 0x0100_0000;
    /// Imperative recovery: the MGS notifies the client when the target restarts, and the client reconnects at once.
    pub const IMP_RECOV: u64 = 0x0100_0000_0000;
    /// The client need not ping while it is idle. Granted where pings are suppressed.
    pub const PINGLESS: u64 = 0x0004_0000_0000_0000;
    /// Metadata write-back: in a directory that it holds exclusively, the client may apply changes locally and send
    /// them in batches. A metadata target that grants it also grants how many ([`crate::msg::ConnectRep::write_back_credits`]).
    pub const WRITE_BACK: u64 = 0x0800_0000;
    /// A client that answers a glimpse for an object it no longer modifies keeps its lock, downgraded to read
    /// ([`crate::msg::GlReply::mode`]). The number is that of Lustre's `lock_convert`, which gives back part of a lock.
    pub const LOCK_CONVERT: u64 = 0x80;
    /// A metadata target grants space for the data of small files, as object targets do for theirs.
    pub const GRANT: u64 = 0x8;
    /// The client opens files for reading without a request, and reports these opens by FID before the files can lose
    /// their names. Granted by metadata targets. The number is that of Lustre's `open_by_fid`.
    pub const OPEN_BY_FID: u64 = 0x0020_0000_0000_0000;
    /// The client knows that a file's data can move to other objects: it fetches the layout again whenever it holds no
    /// lock on any of them. A metadata target with such a file refuses clients without this feature.
    pub const LAYOUT_SWAP: u64 = 0x20;
    /// The client returns write-back credits that it has not used for a while ([`crate::msg::BatchReq::returns_credits`]). A
    /// client without credits gets new ones with the replies to its changes ([`crate::msg::ObjectRep::write_back_credits`]).
    /// Granted by metadata targets.
    pub const GRANT_SHRINK: u64 = 0x2_0000_0000;
    /// The client finds objects on the metadata target of their FID, and makes directories on other targets than their
    /// parents. Lustre's number. Granted by metadata targets.
    pub const DIR_STRIPE: u64 = 0x0400_0000_0000_0000;
    /// Names of the bits, as the parameter `import` shows them.
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
        (DIR_STRIPE, "dir_stripe"),
    ];
    /// What this version requests as a client. As a server it offers the same, less what an administrator has turned
    /// off.
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
        | GRANT_SHRINK
        | DIR_STRIPE;
}

/// Protocol version, with the major number in the high 16 bits. A peer with another major version is refused.
pub const PROTOCOL_VERSION: u32 = 0x0001_0000;

/// Highest tag. It bounds a client's modifying requests in flight, including the reserved slots for a close and a
/// recalled request.
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
/// Size of every directory as `stat` reports it, in bytes.
pub const DIR_SIZE: u64 = 4096;
/// Default limit for files whose data lies on the metadata target, in bytes.
pub const DOM_SIZE_DEFAULT: u32 = 64 << 10;
/// At most this size, in bytes: what a record may hold.
pub const DOM_SIZE_MAX: u32 = 1 << 20;
