//! Steps: the names under which the memo of an operation keeps the state of each thing that it needs
//! ([`crate::coherence::op::Memo`]).
//!
//! A need that occurs several times bears a number: of a stripe, an object, a piece, a request. So two needs never
//! share a place in the memo, whichever helpers an operation uses.

use super::Dest;

/// A thing that an operation needs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Step {
    /// The main request of the operation.
    Main,
    /// Attributes of a node.
    Attr,
    /// Attributes of a directory whose layout is not known.
    Lmv(u64),
    /// The layout of a directory is known anew.
    LmvKnown(u64),
    /// Attributes of a stripe of a directory.
    Stripe(u32),
    /// Attributes of what a lookup found, from the metadata target that has it;
    Elsewhere,
    /// how often that object had lost the name.
    Gone,
    /// The configuration, which may tell where an object is.
    Configuration,
    /// The FID of a new object, which.
    NewFid(u32),
    /// Where a new directory shall lie,
    Place,
    /// and the attributes of the directory above, which has the default for that.
    PlaceDefault,
    /// A sequence of FIDs was awaited.
    Sequence(Dest),
    /// The directory or object that a request is about to change: the first or the second.
    Changing(u8),
    /// The object whose name is to be removed.
    Removal,
    /// The object of a change that was made in the caches.
    Made,
    /// Whether the directory in which a name is looked up had a name itself when the request was sent.
    HadName,
    /// The open of an object with its lookup.
    Hold,
    /// The node whose size is requested.
    Kept,
    /// The file that was to be created but exists, and that has to be truncated.
    Found,
    /// The file is open.
    Opened,
    /// The truncation of a file with set-id bits by its open.
    SetId,
    /// The kernel drops a mode.
    Mode,
    /// The attributes of a file that is written to, which may give capabilities;
    Capability,
    /// and that one alone.
    CapabilityAlone,
    /// The removal of the privileges of a file that is written to.
    Privileges,
    /// An extended attribute, or the names of all, if all together are too much for one answer.
    XattrAlone,
    /// The kernel waits for attributes.
    AttrWanted,
    /// The kernel drops the attributes of a node before they are changed: of up to four nodes, which,
    Hide(u8),
    /// and may keep none of them until the operation ends.
    Hidden(u8),
    /// The kernel drops pages of a file whose size was lost.
    SizeLost,
    /// Names that the kernel was asked to drop: how many;
    Names,
    /// each of them;
    Name(u64),
    /// the deadline of that.
    NamesUntil,
    /// Whether a directory still has the name by which the kernel reached it,
    Named,
    /// and which directory was checked.
    NamedOf,
    /// A piece of a listing;
    Piece(u64),
    /// how many names of its directory this client had changed when it was requested.
    PieceChanges(u64),
    /// A listing that is fetched: the next piece, and the cookie after which it starts.
    Listed,
    /// See [`Step::Listed`].
    ListedAfter,
    /// The cookie after which attributes are prefetched.
    SweepAfter,
    /// Flags and node of the open file that a call changes.
    FileFlags,
    /// See [`Step::FileFlags`].
    FileNode,
    /// The deadline of an empty read that waits.
    AfterEnd,
    /// The deadline of an awaited answer.
    Until,
    /// How many losses there were before a sync.
    Losses,
    /// The space of a target.
    Space(Dest),
    /// The path of a directory, by its number.
    PathOf(u64),
    /// A target makes durable what it has acknowledged.
    SyncTarget(Dest),
    /// A target is disconnected before the others.
    GoodBye(Dest),
    /// The phase of the unmount.
    Phase,
    /// A file was found to be eligible for migration.
    MayMigrate,
    /// A record lock that takes nothing away.
    Keep,
    /// How often a lock was retried.
    Tries,
    /// When it is retried next.
    TryAt,
    /// The release of record locks.
    Unlock,

    /// The count of changes that is awaited.
    ChangesUntil(Dest),
    /// The changes before one that concerns several metadata targets are answered.
    AllDrained,
    /// The changes under a lease that goes back are answered.
    LeaseDrained,
    /// Closes that must have been sent: their count.
    ClosesSent,
    /// Closes that must be answered: their count.
    ClosesDone(Dest),
    /// Reporting a local open to the server, by the file's handle: the node;
    Publish(u64),
    /// and the request.
    PublishSent(u64),

    /// Attributes that contain the layout.
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
    /// The size of an object, by the number in its identity.
    Refresh(u32),
    /// The state of an object for others,
    Glimpse(u32),
    /// and its size floor when that was requested.
    Glimpsed(u32),
    /// The generation of the layout when its confirmation was requested under pins;
    LayoutSeen,
    /// the request;
    LayoutConfirm,
    /// the generation that was confirmed.
    LayoutHeld,
    /// The confirmation of the layout after a look at objects without locks.
    LayoutLooked,
    /// The generation of the layout before such a look.
    StatLayout,
    /// Attributes of a file that is changing.
    StatConfirm,
    /// The number of fetches.
    Fetches,
    /// One of them.
    Fetch(u64),
    /// Read-ahead was started.
    ReadAhead,
    /// Where a write-through starts;
    Through,
    /// the largest request;
    ThroughSize,
    /// the number of each request,
    ThroughId(u64),
    /// the grant that each uses,
    ThroughGrant(u64),
    /// and each request.
    ThroughSent(u64),
    /// Where a write starts that bypassed the kernel's pages;
    PastPages,
    /// where it ends;
    PastPagesEnd,
    /// the kernel's drop of its pages there.
    PastPagesDrop,
    /// A request of write-back.
    Write,
    /// A target makes answered writes durable.
    Commit,
    /// The same for an operation that waits for it: for an object by its stripe, or for a target by its index;
    Sync(u32),
    /// the count of foreign changes seen when that was requested.
    SyncSeen(u32),
    /// A round of write-back: the first number that it does not wait for.
    Round(u64),
    /// The failures of an object before write-back was tried for an operation;
    Settle(u32),
    /// before it was tried for a lock that goes back;
    SettleRecall(u32),
    /// and for that lock after the kernel has dropped its pages.
    SettleRecallEnd(u32),
    /// The failures before a small file started to move.
    Moved,
    /// The deadline of write-back at the end of a mount;
    End,
    /// the time of its next try.
    EndAgain,
    /// A lock that goes back counts as a recall of its file: 1, or no longer: 2.
    Recall,
    /// The number of requests to drop pages for it;
    Drops,
    /// where each starts
    DropStart(u64),
    /// and ends;
    DropEnd(u64),
    /// how many fills each has seen;
    DropSeen(u64),
    /// and each request.
    Invalidate(u64),
    /// The kernel drops only attributes: pages may be filled meanwhile.
    InvalidateAttr,
    /// The locks for a truncation are held;
    CutReady,
    /// the metadata target has agreed to it;
    CutAgreed,
    /// the objects are being truncated (or allocated), from which offset;
    Cut,
    /// the number of the change of each object,
    CutId(u32),
    /// and its request.
    CutSent(u32),
    /// The object that must be longer before others are cut,
    CutFirst,
    /// and is durable.
    CutSynced,
    /// Where an object will be cut.
    CutNext(u32),
    /// All objects are truncated.
    CutDone,
    /// The end of zeros that are written to a resident file.
    Zeros,
    /// The search for data or a hole in an object.
    Seek(u32),
    /// A small file was asked to move to its objects.
    Leave,
    /// The lock for the move.
    LeaveLock,
    /// The file is still resident.
    LeaveChecked,
    /// An object is emptied,
    LeaveEmpty(u32),
    /// durably.
    LeaveSync(u32),
    /// A part of the data is written.
    LeaveWrite(u64),
    /// All of it is.
    LeaveCopied,
    /// The metadata target is notified.
    LeaveSet,
    /// When the move starts again,
    LeaveAgain,
    /// because it has yielded its locks.
    LeaveAway,
    /// Since when another client wants its locks.
    LeaveWanted,
    /// How often a file was copied that was written meanwhile;
    MigrateTries,
    /// the generation of its layout;
    MigrateSeen,
    /// its size;
    MigrateSize,
    /// the lock on each object,
    MigrateCookie(u32),
    /// and the last change of it by this client.
    MigrateTransno(u32),
    /// The metadata target chooses objects.
    MigrateCopy,
    /// The lock on each of the chosen objects,
    MigrateNewLock(u32),
    /// and its pin.
    MigrateNewPin(u32),
    /// How far the file is copied.
    MigrateAt,
    /// A run of the old objects is read.
    MigrateRead(u64),
    /// A run of the new objects is written.
    MigrateWrite(u64),
    /// All runs of a window were sent.
    MigrateWritten,
    /// The lock on the layout.
    MigrateLock,
    /// The lock on the other attributes, which the swap changes too.
    MigrateUpdate,
    /// The metadata target confirms the layout while all objects are locked,
    MigrateConfirm,
    /// and has done so.
    MigrateConfirmed,
    /// An object target answers, so it has not evicted this client.
    MigrateAlive(u32),
    /// The copy becomes the file.
    MigrateSwap,
    /// The error of a failed try.
    MigrateFailed,
    /// The copy is given up.
    MigrateDrop,
    /// Since when another client wants the layout.
    MigrateWanted,
}

impl Step {
    /// Whether it belongs to one try to migrate a file, and ends with it.
    pub(crate) fn is_of_migration(&self) -> bool {
        (Step::MigrateTries..Step::MigrateWanted).contains(self)
    }
}
