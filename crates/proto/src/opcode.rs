//! What a request asks for.

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $num:literal, $text:literal;)*) => {
        /// Operation of a frame. Numbers are Lustre's where Lustre has the operation.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u16)]
        pub enum Opcode { $($(#[$doc])* $name = $num,)* }

        impl Opcode {
            /// Every opcode, in the order of the numbers.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name,)*];
            /// The opcode of a number, or `None` if this version has none.
            pub fn from_raw(n: u16) -> Option<Opcode> {
                match n { $($num => Some(Opcode::$name),)* _ => None }
            }
            /// Its name in statistics (`mds_reint`).
            pub fn name(self) -> &'static str {
                match self { $(Opcode::$name => $text,)* }
            }
        }
    };
}

opcodes! {
    /// Read bytes of an object ([`crate::msg::ReadReq`]).
    ObjRead = 3, "ost_read";
    /// Write bytes of an object ([`crate::msg::WriteReq`]). On an MDT it takes a tag.
    ObjWrite = 4, "ost_write";
    /// Attributes of an object.
    ObjGetattr = 1, "ost_getattr";
    /// Set owner or times of an object.
    ObjSetattr = 2, "ost_setattr";
    /// Remove objects.
    ObjDestroy = 6, "ost_destroy";
    /// Truncate, punch a hole, zero or allocate.
    ObjPunch = 10, "ost_punch";
    /// Find data or a hole.
    ObjSeek = 21, "ost_seek";
    /// Make an object or a whole target durable.
    ObjSync = 16, "ost_sync";
    /// Space of an object target; also renews the client's grant.
    ObjStatfs = 13, "ost_statfs";
    /// Attributes by FID, with locks.
    MdsGetattr = 33, "mds_getattr";
    /// Attributes by parent and name, with locks.
    MdsLookup = 34, "mds_getattr_name";
    /// Closes of open handles, up to 64 in one request. Modifies, with a slot of its own.
    MdsClose = 35, "mds_close";
    /// A change; [`crate::msg::Reint`] says which. Modifies.
    MdsReint = 36, "mds_reint";
    /// Changes that a client made behind its programs' backs ([`crate::msg::BatchReq`]). Modifies.
    MdsBatch = 63, "mds_batch";
    /// A run of directory entries.
    MdsReaddir = 37, "mds_readpage";
    /// Space and inodes of a metadata target.
    MdsStatfs = 41, "mds_statfs";
    /// Make everything that this client did durable.
    MdsSync = 44, "mds_sync";
    /// Value of an extended attribute, or the list of names.
    MdsGetxattr = 49, "mds_getxattr";
    /// Paths of a FID.
    MdsFid2path = 60, "mds_fid2path";
    /// Take or replay a lock.
    LdlmEnqueue = 101, "ldlm_enqueue";
    /// Give locks back.
    LdlmCancel = 103, "ldlm_cancel";
    /// Server to client: somebody wants this lock.
    LdlmBlCallback = 104, "ldlm_bl_callback";
    /// Server to client: what does your lock's object look like now?
    LdlmGlCallback = 106, "ldlm_gl_callback";
    /// Client's answer to a glimpse callback.
    LdlmGlReply = 107, "ldlm_gl_reply";
    /// Replay many locks ([`crate::msg::ReplayLocksReq`]), with the flag REPLAY.
    LdlmReplay = 108, "ldlm_replay";
    /// Server to client: keep so many unused locks at most.
    LdlmLruLimit = 109, "ldlm_lru_limit";
    /// Register a target.
    MgsRegister = 251, "mgs_target_reg";
    /// The configuration; also asks to be told of changes.
    MgsConfigGet = 250, "mgs_config_read";
    /// Set a persistent parameter.
    MgsSetParam = 252, "mgs_set_info";
    /// MGS to everyone connected: the configuration has a new version.
    MgsConfigChanged = 255, "mgs_config_changed";
    /// Make, change or remove a pool of object targets.
    MgsSetPool = 781, "mgs_set_pool";
    /// A range of sequences for a metadata target.
    MgsSeqRange = 256, "mgs_seq_range";
    /// First message on a connection, and after every reconnect.
    Connect = 38, "connect";
    /// A clean good-bye.
    Disconnect = 39, "disconnect";
    /// Sign of life; brings last_committed; ends recovery.
    Ping = 400, "obd_ping";
    /// A question to the process, not to a target of it; needs no session.
    Admin = 500, "admin";
    /// A fresh sequence of FIDs for a client.
    SeqAlloc = 700, "seq_query";
}

impl Opcode {
    /// Whether requests of this kind travel from server to client, without a reply.
    pub fn is_notice(self) -> bool {
        matches!(
            self,
            Opcode::LdlmBlCallback | Opcode::LdlmGlCallback | Opcode::LdlmLruLimit | Opcode::MgsConfigChanged
        )
    }
}
