//! The needs of an operation: each has a name, under which its memo keeps what has become of it ([`crate::coherence::op::Memo`]).
//!
//! A need that an operation has several times bears a number: of a stripe, an object, a piece, a request. So two needs never
//! share a place in the memo, whichever helpers an operation is put together from.

use super::Dest;

/// A need.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Step {
    /// The request that the operation is about.
    Main,
    /// Attributes of a node.
    Attr,
    /// The FID of a new object.
    NewFid,
    /// A sequence of FIDs was waited for.
    Sequence,
    /// A directory or an object that a request is about to change: of up to two, which.
    Changing(u8),
    /// The object whose name is to be removed.
    Goes,
    /// The object of a change that was made in the caches.
    Made,
    /// The directory in which a name is looked up had a name itself when the request left.
    HadName,
    /// An object is opened with its lookup.
    Hold,
    /// The node whose size is asked for.
    Kept,
    /// A file that was to be made and is there, and that is to be cut.
    Found,
    /// It is open.
    Opened,
    /// A file that has set-id bits is cut by its open.
    SetId,
    /// The kernel forgets a mode.
    Mode,
    /// The attributes of a file that is written to, which may give capabilities;
    Capability,
    /// and that one alone.
    CapabilityAlone,
    /// The privileges of a file that is written to are dropped.
    Privileges,
    /// An extended attribute, or the names of all, where all together are too much for one answer.
    XattrAlone,
    /// The kernel waits for attributes.
    Asked,
    /// The kernel forgets the attributes of a node before they are changed: of up to four, which,
    Hide(u8),
    /// and is shown none of them until the operation ends.
    Hidden(u8),
    /// The kernel drops pages of a file whose size is lost.
    SizeLost,
    /// Names that the kernel was asked to drop: how many;
    Names,
    /// each of them;
    Name(u64),
    /// until when that is waited for.
    NamesUntil,
    /// Whether a directory still has the name by which the kernel came to it,
    Named,
    /// and which directory that is.
    NamedOf,
    /// A piece of a listing;
    Piece(u64),
    /// how many names of its directory had been changed from here when it was asked for.
    PieceChanges(u64),
    /// A listing that is fetched: the next piece, and after which cookie it begins.
    Listed,
    /// See [`Step::Listed`].
    ListedAfter,
    /// The cookie after which attributes are fetched ahead.
    SweepAfter,
    /// Flags and node of the open file that a call changes.
    FileFlags,
    /// See [`Step::FileFlags`].
    FileNode,
    /// Until when an empty read waits.
    AfterEnd,
    /// Until when an answer is waited for.
    Until,
    /// How often something was lost before a sync.
    Losses,
    /// The space of a target.
    Space(Dest),
    /// A target makes durable what it told.
    SyncTarget(Dest),
    /// A target is left before the others.
    GoodBye(Dest),
    /// How far the unmount is.
    Phase,
    /// A file that may be migrated: that was found out.
    MayMigrate,
    /// A record lock that takes nothing away.
    Keep,
    /// How often a lock was tried for again.
    Tries,
    /// When it is next.
    TryAt,
    /// Record locks given back.
    Unlock,

    /// Until which change is waited for.
    ChangesUntil(Dest),
    /// The changes under a lease that goes back are answered.
    LeaseDrained,
    /// Closes that must have left: until which.
    ClosesSent,
    /// Closes that must be done: until which.
    ClosesDone(Dest),
    /// Reporting a local open to the server, by the file's handle: the node;
    Publish(u64),
    /// and the request.
    PublishSent(u64),

    /// Attributes that make a layout known.
    Load,
    /// Attributes under the lock on the data of a resident file.
    Confirm,
    /// The lock on the data of a resident file.
    HomeLock,
    /// The lock on an object, by its stripe.
    Lock(u32),
    /// What is awaited before locks are taken again, by its number.
    LockAway,
    /// Since when something is awaited with locks pinned, by its number.
    LockSince(u64),
    /// A lock that is taken if nobody is in the way.
    TryLock(u32),
    /// The size of an object, by the number in its name.
    Refresh(u32),
    /// What an object looks like for others,
    Glimpse(u32),
    /// and the size that it had at least when that was asked.
    Glimpsed(u32),
    /// The generation of the layout when it was asked for under pins;
    LayoutSeen,
    /// the question;
    LayoutConfirm,
    /// the generation that was confirmed.
    LayoutHeld,
    /// The layout after a look at objects without locks.
    LayoutLooked,
    /// The generation before such a look.
    StatLayout,
    /// Attributes of a file that is changing.
    StatConfirm,
    /// How many fetches were made.
    Fetches,
    /// One of them.
    Fetch(u64),
    /// What follows was fetched ahead.
    ReadAhead,
    /// Where a write through the cache begins;
    Through,
    /// the largest request;
    ThroughSize,
    /// of each request the number,
    ThroughId(u64),
    /// the grant that it uses,
    ThroughGrant(u64),
    /// and itself.
    ThroughSent(u64),
    /// Where a write begins that went past the kernel's pages;
    PastPages,
    /// where it ends;
    PastPagesEnd,
    /// the kernel drops what it has of that.
    PastPagesDrop,
    /// A request of write-back.
    Write,
    /// A target makes answered writes durable.
    Commit,
    /// The same for who waits for it: of an object by its stripe, or of a target by its index;
    Sync(u32),
    /// how much was heard of others when that was asked.
    SyncHeard(u32),
    /// A round of write-back: the first number that is not waited for.
    Round(u64),
    /// Failures of an object before write-back was tried for an operation;
    Settle(u32),
    /// for a lock that goes back;
    SettleRecall(u32),
    /// and for it after the kernel has dropped its pages.
    SettleRecallEnd(u32),
    /// Failures before a small file began to move.
    Moved,
    /// Until when write-back is tried at the end of a mount;
    End,
    /// when it is tried next.
    EndAgain,
    /// A lock that goes back counts as one of its file's: 1, or no more: 2.
    Recall,
    /// How many requests to drop pages were made for it;
    Drops,
    /// where each begins
    DropStart(u64),
    /// and ends;
    DropEnd(u64),
    /// how many fills it has seen;
    DropSeen(u64),
    /// and itself.
    Invalidate(u64),
    /// Attributes alone are dropped: pages may come in meanwhile.
    InvalidateAttr,
    /// Locks for a cut are here;
    CutReady,
    /// the metadata target has agreed to it;
    CutAgreed,
    /// the objects are being cut (or allocated), from where;
    Cut,
    /// of each object the number of the change,
    CutId(u32),
    /// and its request.
    CutSent(u32),
    /// All is cut.
    CutDone,
    /// Where zeros end that are written to a resident file.
    Zeros,
    /// Data or a hole in an object.
    Seek(u32),
    /// A small file was asked to move to its objects.
    Leave,
    /// The lock for that.
    LeaveLock,
    /// It is still resident.
    LeaveChecked,
    /// An object is emptied,
    LeaveEmpty(u32),
    /// durably.
    LeaveSync(u32),
    /// A part of the data is written.
    LeaveWrite(u64),
    /// All of it is.
    LeaveCopied,
    /// The metadata target is told.
    LeaveSet,
    /// When the move begins again,
    LeaveAgain,
    /// because it made way.
    LeaveAway,
    /// Since when somebody wants its locks.
    LeaveWanted,
    /// How often a file was copied that was written meanwhile;
    MigrateTries,
    /// the generation of its layout;
    MigrateSeen,
    /// its size;
    MigrateSize,
    /// the lock on each object,
    MigrateCookie(u32),
    /// and the last change of it from here.
    MigrateTransno(u32),
    /// The metadata target chooses objects.
    MigrateCopy,
    /// The lock on each of them,
    MigrateNewLock(u32),
    /// and its pin.
    MigrateNewPin(u32),
    /// How far it is copied.
    MigrateAt,
    /// A run of the old objects is read.
    MigrateRead(u64),
    /// A run of the new ones is written.
    MigrateWrite(u64),
    /// All runs of a window were sent.
    MigrateWritten,
    /// The lock on the layout.
    MigrateLock,
    /// The metadata target confirms the layout to the client that has all objects locked,
    MigrateConfirm,
    /// and has done so.
    MigrateConfirmed,
    /// An object target answers: the locks there were held after that.
    MigrateAlive(u32),
    /// The copy becomes the file.
    MigrateSwap,
    /// Why a try failed.
    MigrateFailed,
    /// The copy is given up.
    MigrateDrop,
    /// Since when somebody wants the layout.
    MigrateWanted,
}

impl Step {
    /// Whether it is a need of one try to migrate a file, over with it.
    pub(crate) fn is_of_migration(&self) -> bool {
        (Step::MigrateTries..Step::MigrateWanted).contains(self)
    }
}
