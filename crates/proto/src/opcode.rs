//! What a request asks for, and all that depends on the kind of request alone.

use crate::frame::BODY_MAX;

/// The slot that a request takes at a metadata target: of each class a client has a number of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotClass {
    /// None: it changes nothing, or doing it twice changes no more.
    None,
    /// An ordinary change.
    Change,
    /// A change of a small file's data. The client has it buffered, and no program waits for it.
    Data,
    /// Changes of metadata that the client has answered before it sends them.
    WriteBack,
    /// A close.
    Close,
}

/// When a target that recovers takes a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InRecovery {
    /// At once: it gives something back, or is a sign of life.
    AtOnce,
    /// With the locks, if it is marked as a replay; otherwise when the recovery is over.
    WithLocks,
    /// With the changes, if it is marked as a replay; otherwise when the recovery is over.
    InTurn,
}

/// What is known of all requests of one kind. The table below has a row for each; whoever needs to know asks there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traits {
    /// It changes what is stored, so that it needs room, and cannot be taken back once it was sent.
    pub modifies: bool,
    /// A session that may only read is refused it with `EROFS`. What it needs to read is allowed, also where the target notes it.
    pub for_writers: bool,
    /// Its slot, at a metadata target.
    pub slot: SlotClass,
    /// When a target that recovers takes it.
    pub in_recovery: InRecovery,
    /// It may be what a client does before it gives a lock back, so that it is a reason to wait longer for the lock.
    pub writes_back: bool,
    /// At a metadata target it must not overtake changes that its client has answered and not sent.
    pub ordered: bool,
    /// From server to client, without a reply.
    pub notice: bool,
    /// The longest body of a reply that is worth decoding, in bytes: what is small on the wire may take a hundred times that in memory.
    pub reply_max: usize,
}

/// Longest body of a reply that describes objects or a lock. Names, layouts and locks of an honest one fit many times.
const OBJECT_BODY_MAX: usize = 256 << 10;
/// The same of a run of directory entries: twice what a client asks for at most.
const LISTING_BODY_MAX: usize = 512 << 10;

/// A request that changes nothing.
const LOOK: Traits = Traits {
    modifies: false,
    for_writers: false,
    slot: SlotClass::None,
    in_recovery: InRecovery::InTurn,
    writes_back: false,
    ordered: false,
    notice: false,
    reply_max: BODY_MAX,
};

/// A change. It takes no slot where doing it twice changes no more.
const CHANGE: Traits = Traits { modifies: true, for_writers: true, ..LOOK };

const NOTICE: Traits = Traits { notice: true, ..LOOK };

impl Traits {
    const fn slot(self, slot: SlotClass) -> Traits {
        Traits { slot, ..self }
    }

    const fn by_readers(self) -> Traits {
        Traits { for_writers: false, ..self }
    }

    const fn at_once(self) -> Traits {
        Traits { in_recovery: InRecovery::AtOnce, ..self }
    }

    const fn with_locks(self) -> Traits {
        Traits { in_recovery: InRecovery::WithLocks, ..self }
    }

    const fn writes_back(self) -> Traits {
        Traits { writes_back: true, ..self }
    }

    const fn ordered(self) -> Traits {
        Traits { ordered: true, ..self }
    }

    const fn reply_max(self, reply_max: usize) -> Traits {
        Traits { reply_max, ..self }
    }
}

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $num:literal, $text:literal, $traits:expr;)*) => {
        /// Operation of a frame. Numbers are Lustre's where Lustre has the operation.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u16)]
        pub enum Opcode { $($(#[$doc])* $name = $num,)* }

        impl Opcode {
            /// Every opcode: those of objects, of metadata, of locks, of the management server, of sessions.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name,)*];
            /// The opcode of a number, or `None` if this version has none.
            pub fn from_raw(n: u16) -> Option<Opcode> {
                match n { $($num => Some(Opcode::$name),)* _ => None }
            }
            /// Its name in statistics (`mds_reint`).
            pub fn name(self) -> &'static str {
                match self { $(Opcode::$name => $text,)* }
            }
            /// What is known of its requests.
            pub const fn traits(self) -> Traits {
                match self { $(Opcode::$name => const { $traits },)* }
            }
        }
    };
}

opcodes! {
    /// Read bytes of an object ([`crate::msg::ReadReq`]).
    ObjRead = 3, "ost_read", LOOK;
    /// Write bytes of an object ([`crate::msg::WriteReq`]). On an MDT it takes a tag.
    ObjWrite = 4, "ost_write", CHANGE.slot(SlotClass::Data).writes_back();
    /// Attributes of an object.
    ObjGetattr = 1, "ost_getattr", LOOK;
    /// Set owner or times of an object.
    ObjSetattr = 2, "ost_setattr", CHANGE;
    /// Remove objects.
    ObjDestroy = 6, "ost_destroy", CHANGE;
    /// Truncate, punch a hole, zero or allocate.
    ObjPunch = 10, "ost_punch", CHANGE.slot(SlotClass::Change).writes_back();
    /// Find data or a hole.
    ObjSeek = 21, "ost_seek", LOOK;
    /// Make an object or a whole target durable.
    ObjSync = 16, "ost_sync", LOOK.writes_back();
    /// Space of an object target; also renews the client's grant.
    ObjStatfs = 13, "ost_statfs", LOOK;
    /// Attributes by FID, with locks.
    MdsGetattr = 33, "mds_getattr", LOOK.ordered().reply_max(OBJECT_BODY_MAX);
    /// Attributes by parent and name, with locks.
    MdsLookup = 34, "mds_getattr_name", LOOK.ordered().reply_max(OBJECT_BODY_MAX);
    /// Closes of open handles, up to 64 in one request. Modifies, with a slot of its own.
    MdsClose = 35, "mds_close", CHANGE.slot(SlotClass::Close).by_readers().reply_max(OBJECT_BODY_MAX);
    /// A change; [`crate::msg::Reint`] says which. Modifies.
    MdsReint = 36, "mds_reint", CHANGE.slot(SlotClass::Change).ordered().writes_back().reply_max(OBJECT_BODY_MAX);
    /// Changes of metadata write-back ([`crate::msg::BatchReq`]). Modifies.
    MdsBatch = 63, "mds_batch", CHANGE.slot(SlotClass::WriteBack).writes_back();
    /// A run of directory entries.
    MdsReaddir = 37, "mds_readpage", LOOK.ordered().reply_max(LISTING_BODY_MAX);
    /// Space and inodes of a metadata target.
    MdsStatfs = 41, "mds_statfs", LOOK.ordered();
    /// Make everything that this client did durable.
    MdsSync = 44, "mds_sync", LOOK.ordered();
    /// Value of an extended attribute, or the list of names.
    MdsGetxattr = 49, "mds_getxattr", LOOK.ordered();
    /// Paths of a FID.
    MdsFid2path = 60, "mds_fid2path", LOOK.ordered();
    /// Take or replay a lock.
    LdlmEnqueue = 101, "ldlm_enqueue", LOOK.with_locks().reply_max(OBJECT_BODY_MAX);
    /// Give locks back.
    LdlmCancel = 103, "ldlm_cancel", LOOK.at_once();
    /// Server to client: somebody wants this lock.
    LdlmBlCallback = 104, "ldlm_bl_callback", NOTICE;
    /// Server to client: what does your lock's object look like now?
    LdlmGlCallback = 106, "ldlm_gl_callback", NOTICE;
    /// Client's answer to a glimpse callback.
    LdlmGlReply = 107, "ldlm_gl_reply", LOOK.at_once();
    /// Replay many locks ([`crate::msg::ReplayLocksReq`]), with the flag REPLAY.
    LdlmReplay = 108, "ldlm_replay", LOOK.with_locks();
    /// Server to client: keep so many unused locks at most.
    LdlmLruLimit = 109, "ldlm_lru_limit", NOTICE;
    /// Register a target.
    MgsRegister = 251, "mgs_target_reg", CHANGE;
    /// The configuration; also asks to be told of changes.
    MgsConfigGet = 250, "mgs_config_read", LOOK;
    /// Set a persistent parameter.
    MgsSetParam = 252, "mgs_set_info", CHANGE;
    /// MGS to everyone connected: the configuration has a new version.
    MgsConfigChanged = 255, "mgs_config_changed", NOTICE;
    /// Make, change or remove a pool of object targets.
    MgsSetPool = 781, "mgs_set_pool", CHANGE;
    /// A range of sequences for a metadata target.
    MgsSeqRange = 256, "mgs_seq_range", CHANGE;
    /// First message on a connection, and after every reconnect.
    Connect = 38, "connect", LOOK;
    /// A clean good-bye.
    Disconnect = 39, "disconnect", LOOK.at_once();
    /// Sign of life; brings last_committed; ends recovery.
    Ping = 400, "obd_ping", LOOK.at_once();
    /// A question to the process, not to a target of it; needs no session.
    Admin = 500, "admin", LOOK;
    /// A fresh sequence of FIDs for a client.
    SeqAlloc = 700, "seq_query", CHANGE.by_readers();
}
