//! Opcodes, and the properties of a request that depend on its opcode alone.

use crate::frame::BODY_MAX;

/// The class of slot that a request takes at a metadata target. Each class has its own limit per client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotClass {
    /// No slot: the request changes nothing, or can be executed twice without harm.
    None,
    /// An ordinary change.
    Change,
    /// A write to a small file's data. The client has it buffered, and no program waits for it.
    Data,
    /// Metadata changes that the client has acknowledged to its programs before sending them.
    WriteBack,
    /// A close.
    Close,
}

/// When a target in recovery executes a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InRecovery {
    /// At once: it releases something, or is a ping.
    AtOnce,
    /// In the lock replay stage if it is flagged as a replay, otherwise after recovery.
    WithLocks,
    /// In the request replay stage if it is flagged as a replay, otherwise after recovery.
    InTurn,
}

/// Properties of all requests with one opcode; the table below has a row for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traits {
    /// It changes what is stored: it needs space on the target and cannot be withdrawn once it was sent.
    pub modifies: bool,
    /// Refused with `EROFS` in a read-only session. False for changes that reading needs (closes, new sequences).
    pub for_writers: bool,
    /// The slot that it takes at a metadata target.
    pub slot: SlotClass,
    /// When a target in recovery executes it.
    pub in_recovery: InRecovery,
    /// A client may send it before it cancels a lock, so the server extends the lock callback's deadline when it
    /// arrives.
    pub writes_back: bool,
    /// At a metadata target it must not overtake changes that the client has acknowledged but not sent.
    pub ordered: bool,
    /// A notice: sent by the server, without a reply.
    pub notice: bool,
    /// Longest reply body that the client decodes, in bytes. A small body can take a hundred times its size in memory.
    pub reply_max: usize,
}

/// Longest reply body that describes objects or a lock, in bytes. It fits the names, layouts and locks of an honest
/// reply many times over.
const OBJECT_BODY_MAX: usize = 256 << 10;
/// Longest reply body with directory entries, in bytes: twice what a client requests at most.
const LISTING_BODY_MAX: usize = 512 << 10;

/// A request that changes nothing.
const READ: Traits = Traits {
    modifies: false,
    for_writers: false,
    slot: SlotClass::None,
    in_recovery: InRecovery::InTurn,
    writes_back: false,
    ordered: false,
    notice: false,
    reply_max: BODY_MAX,
};

/// A change. It takes no slot unless its row gives it one.
const CHANGE: Traits = Traits { modifies: true, for_writers: true, ..READ };

const NOTICE: Traits = Traits { notice: true, ..READ };

impl Traits {
    const fn slot(self, slot: SlotClass) -> Traits {
        Traits { slot, ..self }
    }

    const fn allowed_read_only(self) -> Traits {
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
        /// Operation of a frame: what a request asks for. Numbers are Lustre's where Lustre has the operation. Each
        /// variant names the body of the request and, after the arrow, the body of the reply. The reply to a failed
        /// request has no body unless the reply's type says otherwise.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u16)]
        pub enum Opcode { $($(#[$doc])* $name = $num,)* }

        impl Opcode {
            /// Every opcode, grouped by objects, metadata, locks, the management server and sessions.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name,)*];
            /// The opcode with number `n`, or `None` if this version has none.
            pub fn from_raw(n: u16) -> Option<Opcode> {
                match n { $($num => Some(Opcode::$name),)* _ => None }
            }
            /// Its name in statistics (`mds_reint`).
            pub fn name(self) -> &'static str {
                match self { $(Opcode::$name => $text,)* }
            }
            /// Properties of its requests.
            pub const fn traits(self) -> Traits {
                match self { $(Opcode::$name => const { $traits },)* }
            }
        }
    };
}

opcodes! {
    /// Read bytes of an object: [`ReadReq`](crate::msg::ReadReq) → [`ReadRep`](crate::msg::ReadRep) with bulk data.
    ObjRead = 3, "ost_read", READ;
    /// Write bytes of an object: [`WriteReq`](crate::msg::WriteReq) with bulk data →
    /// [`ObjectStateRep`](crate::msg::ObjectStateRep). Takes a tag at an MDT.
    ObjWrite = 4, "ost_write", CHANGE.slot(SlotClass::Data).writes_back();
    /// Get the attributes of an object: [`ObjGetattrReq`](crate::msg::ObjGetattrReq) →
    /// [`ObjectStateRep`](crate::msg::ObjectStateRep).
    ObjGetattr = 1, "ost_getattr", READ;
    /// Set owner or times of an object: [`ObjSetattrReq`](crate::msg::ObjSetattrReq) →
    /// [`ObjectStateRep`](crate::msg::ObjectStateRep).
    ObjSetattr = 2, "ost_setattr", CHANGE;
    /// Remove objects: [`DestroyReq`](crate::msg::DestroyReq) → [`DestroyRep`](crate::msg::DestroyRep).
    ObjDestroy = 6, "ost_destroy", CHANGE;
    /// Truncate, punch a hole, zero or allocate: [`PunchReq`](crate::msg::PunchReq) →
    /// [`ObjectStateRep`](crate::msg::ObjectStateRep).
    ObjPunch = 10, "ost_punch", CHANGE.slot(SlotClass::Change).writes_back();
    /// Find data or a hole: [`SeekReq`](crate::msg::SeekReq) → [`SeekRep`](crate::msg::SeekRep).
    ObjSeek = 21, "ost_seek", READ;
    /// Make objects, or a whole target, durable: [`ObjSyncReq`](crate::msg::ObjSyncReq) → [`Empty`](crate::msg::Empty).
    ObjSync = 16, "ost_sync", READ.writes_back();
    /// Space of an object target; also renews the client's grant: [`StatfsReq`](crate::msg::StatfsReq) →
    /// [`StatfsRep`](crate::msg::StatfsRep).
    ObjStatfs = 13, "ost_statfs", READ;
    /// Get attributes by FID, with locks: [`GetattrReq`](crate::msg::GetattrReq) →
    /// [`ObjectRep`](crate::msg::ObjectRep).
    MdsGetattr = 33, "mds_getattr", READ.ordered().reply_max(OBJECT_BODY_MAX);
    /// Get attributes by parent and name, with locks: [`LookupReq`](crate::msg::LookupReq) →
    /// [`ObjectRep`](crate::msg::ObjectRep).
    MdsLookup = 34, "mds_getattr_name", READ.ordered().reply_max(OBJECT_BODY_MAX);
    /// Close up to 64 open handles: [`CloseReq`](crate::msg::CloseReq) → [`CloseRep`](crate::msg::CloseRep). Modifies,
    /// with a reserved slot.
    MdsClose = 35, "mds_close", CHANGE.slot(SlotClass::Close).allowed_read_only().reply_max(OBJECT_BODY_MAX);
    /// A metadata change ([`Reint`](crate::msg::Reint) says which): [`ReintReq`](crate::msg::ReintReq) →
    /// [`ObjectRep`](crate::msg::ObjectRep). Modifies.
    MdsReint = 36, "mds_reint", CHANGE.slot(SlotClass::Change).ordered().writes_back().reply_max(OBJECT_BODY_MAX);
    /// A batch of write-back changes: [`BatchReq`](crate::msg::BatchReq) → [`BatchRep`](crate::msg::BatchRep).
    /// Modifies.
    MdsBatch = 63, "mds_batch", CHANGE.slot(SlotClass::WriteBack).writes_back();
    /// List directory entries: [`ReaddirReq`](crate::msg::ReaddirReq) → [`ReaddirRep`](crate::msg::ReaddirRep).
    MdsReaddir = 37, "mds_readpage", READ.ordered().reply_max(LISTING_BODY_MAX);
    /// Space and inodes of a metadata target: [`StatfsReq`](crate::msg::StatfsReq) →
    /// [`StatfsRep`](crate::msg::StatfsRep).
    MdsStatfs = 41, "mds_statfs", READ.ordered();
    /// Make all changes acknowledged to this client durable: [`SyncReq`](crate::msg::SyncReq) → [`Empty`](crate::msg::Empty).
    MdsSync = 44, "mds_sync", READ.ordered();
    /// Get an extended attribute, or the list of names: [`GetxattrReq`](crate::msg::GetxattrReq) →
    /// [`GetxattrRep`](crate::msg::GetxattrRep).
    MdsGetxattr = 49, "mds_getxattr", READ.ordered();
    /// Get all paths of a FID: [`Fid2pathReq`](crate::msg::Fid2pathReq) → [`Fid2pathRep`](crate::msg::Fid2pathRep).
    MdsFid2path = 60, "mds_fid2path", READ.ordered();
    /// Acquire or replay a lock: [`EnqueueReq`](crate::msg::EnqueueReq) → [`EnqueueRep`](crate::msg::EnqueueRep).
    LdlmEnqueue = 101, "ldlm_enqueue", READ.with_locks().reply_max(OBJECT_BODY_MAX);
    /// Cancel locks: [`CancelReq`](crate::msg::CancelReq) → [`Empty`](crate::msg::Empty).
    LdlmCancel = 103, "ldlm_cancel", READ.at_once();
    /// Blocking callback, server to client: another request conflicts with a lock
    /// ([`BlCallback`](crate::msg::BlCallback)).
    LdlmBlCallback = 104, "ldlm_bl_callback", NOTICE;
    /// Glimpse callback, server to client: asks for the object's current attributes
    /// ([`GlCallback`](crate::msg::GlCallback)).
    LdlmGlCallback = 106, "ldlm_gl_callback", NOTICE;
    /// The client's answer to a glimpse callback: [`GlReply`](crate::msg::GlReply) → [`Empty`](crate::msg::Empty).
    LdlmGlReply = 107, "ldlm_gl_reply", READ.at_once();
    /// Replay many locks, with the flag REPLAY: [`ReplayLocksReq`](crate::msg::ReplayLocksReq) →
    /// [`ReplayLocksRep`](crate::msg::ReplayLocksRep).
    LdlmReplay = 108, "ldlm_replay", READ.with_locks();
    /// Server to client: the most unused locks to keep ([`LruLimit`](crate::msg::LruLimit)).
    LdlmLruLimit = 109, "ldlm_lru_limit", NOTICE;
    /// Register a target: [`RegisterReq`](crate::msg::RegisterReq) → [`RegisterRep`](crate::msg::RegisterRep).
    MgsRegister = 251, "mgs_target_reg", CHANGE;
    /// Get the configuration and subscribe to changes of it: [`ConfigGetReq`](crate::msg::ConfigGetReq) →
    /// [`Config`](crate::msg::Config).
    MgsConfigGet = 250, "mgs_config_read", READ;
    /// Set or remove a persistent parameter: [`SetParamReq`](crate::msg::SetParamReq) → [`Empty`](crate::msg::Empty).
    MgsSetParam = 252, "mgs_set_info", CHANGE;
    /// MGS to all subscribers: the configuration has a new version ([`Config`](crate::msg::Config), version only).
    MgsConfigChanged = 255, "mgs_config_changed", NOTICE;
    /// Create, change or remove a pool of object targets: [`SetPoolReq`](crate::msg::SetPoolReq) →
    /// [`SetPoolRep`](crate::msg::SetPoolRep).
    MgsSetPool = 781, "mgs_set_pool", CHANGE;
    /// Allocate a range of FID sequences to a metadata target: [`SeqRangeReq`](crate::msg::SeqRangeReq) →
    /// [`SeqRangeRep`](crate::msg::SeqRangeRep).
    MgsSeqRange = 256, "mgs_seq_range", CHANGE;
    /// An administrator declares a metadata target lost for good: [`TargetLostReq`](crate::msg::TargetLostReq) →
    /// [`TargetLostRep`](crate::msg::TargetLostRep).
    MgsTargetLost = 257, "mgs_target_lost", CHANGE;
    /// First request in a session of two metadata targets: [`CrossSessionReq`](crate::msg::CrossSessionReq) →
    /// [`CrossSessionRep`](crate::msg::CrossSessionRep).
    CrossSession = 1001, "cross_session", READ;
    /// Prepare a part of a cross change: [`CrossPrepareReq`](crate::msg::CrossPrepareReq) →
    /// [`CrossPrepareRep`](crate::msg::CrossPrepareRep).
    CrossPrepare = 1002, "cross_prepare", CHANGE;
    /// Outcomes of cross changes: [`CrossTellReq`](crate::msg::CrossTellReq) → [`Empty`](crate::msg::Empty).
    CrossTell = 1003, "cross_tell", CHANGE;
    /// Participant to coordinator: an attempt that was busy may be tried again ([`CrossFree`](crate::msg::CrossFree)).
    CrossFree = 1004, "cross_free", NOTICE;
    /// What is on another metadata target before a cross change is staged: [`CrossLookReq`](crate::msg::CrossLookReq) →
    /// [`CrossLookRep`](crate::msg::CrossLookRep).
    CrossLook = 1005, "cross_look", READ;
    /// What another participant has of attempts whose coordinator is lost: [`CrossOrphansReq`](crate::msg::CrossOrphansReq) →
    /// [`CrossOrphansRep`](crate::msg::CrossOrphansRep).
    CrossOrphans = 1006, "cross_orphans", READ;
    /// First message on every connection: [`ConnectReq`](crate::msg::ConnectReq) →
    /// [`ConnectRep`](crate::msg::ConnectRep).
    Connect = 38, "connect", READ;
    /// End the session cleanly: [`Empty`](crate::msg::Empty) → [`Empty`](crate::msg::Empty).
    Disconnect = 39, "disconnect", READ.at_once();
    /// Ping: keeps the session alive, fetches `last_committed`, and marks the client's progress in recovery:
    /// [`PingReq`](crate::msg::PingReq) → [`Empty`](crate::msg::Empty).
    Ping = 400, "obd_ping", READ.at_once();
    /// An administrator's question to the process rather than to one of its targets; needs no session:
    /// [`AdminReq`](crate::msg::AdminReq) → [`AdminRep`](crate::msg::AdminRep).
    Admin = 500, "admin", READ;
    /// Allocate a FID sequence to a client: [`SeqAllocReq`](crate::msg::SeqAllocReq) →
    /// [`SeqAllocRep`](crate::msg::SeqAllocRep).
    SeqAlloc = 700, "seq_query", CHANGE.allowed_read_only();
}
