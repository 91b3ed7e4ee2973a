//! Messages between metadata targets: changes with parts on several of them, by two-phase commit.
//!
//! The target that the client asks is the coordinator, the others are participants. All messages travel over the
//! coordinator's session with the participant. See `docs/src/protocol.md`.

use crate::Fid;
use crate::msg::{Attr, Cred, Lmv, Stripe};
use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

/// Number of one try at a cross change. It is never used again.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CrossAttempt {
    /// Index of the coordinator.
    #[prost(uint32, tag = "1")]
    pub mdt: u32,
    /// A random number of the coordinator's start.
    #[prost(fixed64, tag = "2")]
    pub instance: u64,
    /// Number within this start.
    #[prost(uint64, tag = "3")]
    pub serial: u64,
}

/// What a cross change checks and changes on one target. It holds results, so that it can be applied long after it was
/// checked.
#[derive(Clone, PartialEq, Message)]
pub struct CrossPart {
    /// Index of the target.
    #[prost(uint32, tag = "1")]
    pub mdt: u32,
    /// Steps, in the order in which they are executed.
    #[prost(message, repeated, tag = "2")]
    pub acts: Vec<CrossAct>,
    /// In the coordinator's part: what the client is answered.
    #[prost(message, optional, tag = "3")]
    pub answer: Option<CrossAnswer>,
}

impl CrossPart {
    /// The objects that it changes, and the directories of names that it changes.
    pub fn objects(&self) -> Vec<Fid> {
        let object = |act: &CrossAct| match act.act.as_ref()? {
            Act::Name(act) => Some(act.name.parent),
            Act::Make(act) => Some(act.fid),
            Act::Links(act) => Some(act.fid),
            Act::Attrs(act) => Some(act.fid),
            Act::Parent(_) | Act::Relayout(_) => None,
        };
        let stripes = self.acts.iter().filter_map(|act| match act.act.as_ref()? {
            Act::Relayout(act) => Some(act.on(self.mdt)),
            _ => None,
        });
        self.acts.iter().filter_map(object).chain(stripes.flatten()).collect()
    }
}

/// A step of a part.
#[derive(Clone, PartialEq, Message)]
pub struct CrossAct {
    /// Time of the change by the client's clock.
    #[prost(sint64, tag = "1")]
    pub now_ns: i64,
    /// What is done.
    #[prost(oneof = "Act", tags = "2, 3, 4, 5, 6, 7")]
    pub act: Option<Act>,
}

/// What a [`CrossAct`] does.
#[derive(Clone, PartialEq, Oneof)]
pub enum Act {
    /// Adds, removes or replaces a name in a directory.
    #[prost(message, boxed, tag = "2")]
    Name(Box<NameAct>),
    /// Makes an object.
    #[prost(message, boxed, tag = "3")]
    Make(Box<MakeAct>),
    /// Gives a name to an object, takes one from it, or both.
    #[prost(message, boxed, tag = "4")]
    Links(Box<LinksAct>),
    /// Changes attributes of a stripe of a directory.
    #[prost(message, boxed, tag = "5")]
    Attrs(Box<AttrsAct>),
    /// Keeps a directory in the directory that has it.
    #[prost(message, tag = "6")]
    Parent(ParentAct),
    /// Gives the stripes of a directory another layout.
    #[prost(message, boxed, tag = "7")]
    Relayout(Box<RelayoutAct>),
}

impl From<RelayoutAct> for Act {
    fn from(act: RelayoutAct) -> Act {
        Act::Relayout(Box::new(act))
    }
}

impl From<NameAct> for Act {
    fn from(act: NameAct) -> Act {
        Act::Name(Box::new(act))
    }
}

impl From<MakeAct> for Act {
    fn from(act: MakeAct) -> Act {
        Act::Make(Box::new(act))
    }
}

impl From<ParentAct> for Act {
    fn from(act: ParentAct) -> Act {
        Act::Parent(act)
    }
}

impl From<AttrsAct> for Act {
    fn from(act: AttrsAct) -> Act {
        Act::Attrs(Box::new(act))
    }
}

impl From<LinksAct> for Act {
    fn from(act: LinksAct) -> Act {
        Act::Links(Box::new(act))
    }
}

/// A name in a directory, before and after the change.
#[derive(Clone, PartialEq, Message)]
pub struct NameAct {
    /// The name.
    #[prost(message, required, tag = "1")]
    pub name: DirName,
    /// The object that it leads to before the change; none: there is no such name.
    #[prost(message, optional, tag = "2")]
    pub before: Option<NamedObject>,
    /// The object that it leads to after the change; none: there is no such name then.
    #[prost(message, optional, tag = "3")]
    pub after: Option<NamedObject>,
    /// What the change takes the directory to be. Absent if the target of the directory has checked it.
    #[prost(message, optional, tag = "4")]
    pub seen: Option<SeenObject>,
    /// The name moves from one stripe of its directory to another: no time of the directory changes.
    #[prost(bool, tag = "5")]
    pub moves: bool,
    /// A client waits for that: it may use the space that is kept for removals.
    #[prost(bool, tag = "6")]
    pub urgent: bool,
}

/// A name and the directory that has it.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DirName {
    /// The directory.
    #[prost(message, required, tag = "1")]
    pub parent: Fid,
    /// The name in it.
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
}

/// The object that a name leads to.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct NamedObject {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// Its type; of an object that is made by this change also its permission bits.
    #[prost(uint32, tag = "2")]
    pub mode: u32,
    /// Index of its target.
    #[prost(uint32, tag = "3")]
    pub mdt: u32,
}

/// What the rules for a change read of an object on another target than the one that checks them.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SeenObject {
    /// Type and permission bits.
    #[prost(uint32, tag = "1")]
    pub mode: u32,
    /// Owner.
    #[prost(uint32, tag = "2")]
    pub uid: u32,
    /// Group.
    #[prost(uint32, tag = "3")]
    pub gid: u32,
    /// Value of the access list.
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub access_list: Option<Bytes>,
    /// A directory with entries.
    #[prost(bool, tag = "5")]
    pub is_full: bool,
    /// The master of a striped directory: its stripes.
    #[prost(message, repeated, tag = "6")]
    pub stripes: Vec<Stripe>,
    /// Another stripe of a striped directory: the master.
    #[prost(message, optional, tag = "7")]
    pub master: Option<Fid>,
    /// Stripes: version of their layout.
    #[prost(uint32, tag = "8")]
    pub version: u32,
    /// A stripe from which no name has to move any more.
    #[prost(bool, tag = "9")]
    pub settled: bool,
    /// A stripe that its directory loses: its times.
    #[prost(message, optional, tag = "10")]
    pub times: Option<StripeTimes>,
}

/// Times of a stripe, as attributes have them.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct StripeTimes {
    /// `mtime_ns`.
    #[prost(sint64, tag = "1")]
    pub mtime_ns: i64,
    /// `mtime_set_ns`.
    #[prost(sint64, tag = "2")]
    pub mtime_set_ns: i64,
    /// `ctime_ns`.
    #[prost(sint64, tag = "3")]
    pub ctime_ns: i64,
    /// `atime_ns`.
    #[prost(sint64, tag = "4")]
    pub atime_ns: i64,
}

/// A new object.
#[derive(Clone, PartialEq, Message)]
pub struct MakeAct {
    /// Its FID.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// The client that chose the FID, 16 bytes big-endian. The FID's sequence was granted to it.
    #[prost(bytes = "bytes", tag = "2")]
    pub client: Bytes,
    /// The record of its inode, without a version.
    #[prost(bytes = "bytes", tag = "3")]
    pub inode: Bytes,
}

/// Names that an object gets and loses. One that loses its last name is an orphan if it is open, and destroyed otherwise.
#[derive(Clone, PartialEq, Message)]
pub struct LinksAct {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// The name that it loses.
    #[prost(message, optional, tag = "2")]
    pub lost: Option<DirName>,
    /// The name that it gets.
    #[prost(message, optional, tag = "3")]
    pub gained: Option<DirName>,
    /// What the change takes the object to be. Absent if the object's own target checks the rules, or has.
    #[prost(message, optional, tag = "4")]
    pub seen: Option<SeenObject>,
    /// For the rules that the object's own target checks when a name is removed.
    #[prost(message, optional, tag = "5")]
    pub removal: Option<Removal>,
    /// The object's type (`S_IFMT`), as the entry of its name records it. Absent if it only loses a name.
    #[prost(uint32, tag = "6")]
    pub kind: u32,
    /// A striped directory that is removed: its stripes, which the same change removes.
    #[prost(message, repeated, tag = "7")]
    pub stripes: Vec<Stripe>,
}

/// A directory on the way up from where another directory moves to. Nothing is changed; its parent stays what it is until the
/// change has happened, so that the way still leads to the root and not through the directory that moves.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ParentAct {
    /// The directory.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// The directory that has it.
    #[prost(message, required, tag = "2")]
    pub parent: Fid,
}

/// What all stripes of a directory have in common, after a change of it.
#[derive(Clone, PartialEq, Message)]
pub struct AttrsAct {
    /// The stripe.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// The inode record of the master after the change. Its mode, owner, access lists and default layouts count.
    #[prost(bytes = "bytes", tag = "2")]
    pub inode: Bytes,
    /// The time of the last access in `inode` counts, too: a program has set it.
    #[prost(bool, tag = "3")]
    pub atime: bool,
    /// The same for the time of the last change of names.
    #[prost(bool, tag = "4")]
    pub mtime: bool,
}

/// The layout of a directory: it begins to change, so that names move, or its change is over. Concerns all stripes on the target;
/// those that are new are made by the same part before.
#[derive(Clone, PartialEq, Message)]
pub struct RelayoutAct {
    /// The layout after this, as the master has it.
    #[prost(message, required, tag = "1")]
    pub lmv: Lmv,
    /// Version of the layout before; 0: the directory was not striped.
    #[prost(uint32, tag = "2")]
    pub before: u32,
    /// The times of stripes that the directory loses, which the master takes over.
    #[prost(message, repeated, tag = "3")]
    pub times: Vec<StripeTimes>,
}

impl RelayoutAct {
    /// The stripes on a target.
    pub fn on(&self, mdt: u32) -> Vec<Fid> {
        self.lmv.stripes.iter().filter(|stripe| stripe.mdt == mdt).map(|stripe| stripe.fid).collect()
    }
}

/// The removal of a name of an object on another target than the name's.
#[derive(Clone, PartialEq, Message)]
pub struct Removal {
    /// The directory's permission bits and owner, on which the right to remove the object depends.
    #[prost(uint32, tag = "1")]
    pub parent_mode: u32,
    /// See `parent_mode`.
    #[prost(uint32, tag = "2")]
    pub parent_uid: u32,
    /// `rmdir` rather than `unlink`.
    #[prost(bool, tag = "3")]
    pub rmdir: bool,
    /// Credentials of the caller.
    #[prost(message, optional, tag = "4")]
    pub cred: Option<Cred>,
}

/// The operation of a client that a cross change carries out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Enumeration)]
#[repr(i32)]
pub enum CrossOperation {
    /// `mkdir`.
    Mkdir = 0,
    /// `rmdir`.
    Rmdir = 1,
    /// `unlink`.
    Unlink = 2,
    /// `link`.
    Link = 3,
    /// `rename`.
    Rename = 4,
    /// A change of attributes.
    Setattr = 5,
    /// A change of an extended attribute.
    Setxattr = 6,
    /// Another layout of a directory, or a step towards it.
    Relayout = 7,
}

/// What a cross change is for its client, in the coordinator's own part.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CrossAnswer {
    /// The operation.
    #[prost(enumeration = "CrossOperation", tag = "1")]
    pub operation: i32,
    /// Fields of the reply ([`ObjectRep`](crate::msg::ObjectRep)), as FIDs of the objects whose attributes they have: `attr`.
    #[prost(message, optional, tag = "2")]
    pub object: Option<Fid>,
    /// `parent_attr`.
    #[prost(message, optional, tag = "3")]
    pub parent: Option<Fid>,
    /// `source_parent_attr`.
    #[prost(message, optional, tag = "4")]
    pub source_parent: Option<Fid>,
    /// `replaced_attr`.
    #[prost(message, optional, tag = "5")]
    pub replaced: Option<Fid>,
    /// `whiteout_attr`.
    #[prost(message, optional, tag = "6")]
    pub whiteout: Option<Fid>,
    /// What the reply record keeps.
    #[prost(uint64, tag = "7")]
    pub record: u64,
}

/// Body of `CrossLook`: what is there, before a change is staged. The reply says what was so at one time; the part checks
/// whether it still is.
#[derive(Clone, PartialEq, Message)]
pub struct CrossLookReq {
    /// A name in a directory on this target.
    #[prost(message, optional, tag = "1")]
    pub name: Option<DirName>,
    /// An object on this target.
    #[prost(message, optional, tag = "2")]
    pub object: Option<Fid>,
    /// How often the change has looked before. An error is answered when two readings are the same.
    #[prost(uint32, tag = "3")]
    pub earlier: u32,
    /// The errno that the change would have by the reading before; 0 if it was none.
    #[prost(int32, tag = "4")]
    pub errno: i32,
    /// A directory on this target from which the way up is wanted.
    #[prost(message, optional, tag = "5")]
    pub way: Option<Fid>,
    /// A name that a stripe on this target may still have, although it belongs to another one by now: see [`Lmv::former_count`].
    #[prost(message, optional, tag = "6")]
    pub former: Option<DirName>,
    /// It is to be moved there at once.
    #[prost(bool, tag = "7")]
    pub leaves: bool,
}

/// Body of the reply to `CrossLook`.
#[derive(Clone, PartialEq, Message)]
pub struct CrossLookRep {
    /// The directory of the name.
    #[prost(message, optional, tag = "1")]
    pub dir: Option<SeenObject>,
    /// The object that the name leads to.
    #[prost(message, optional, tag = "2")]
    pub named: Option<NamedObject>,
    /// The object; that of the name if it is on this target, too.
    #[prost(message, optional, tag = "3")]
    pub object: Option<SeenObject>,
    /// The parents of the directory and of those above it, up to the first that is not on this target or is the root.
    #[prost(message, repeated, tag = "4")]
    pub way: Vec<Fid>,
    /// With `way`: how many directories of this target have got another parent, since a start that `start` tells apart.
    #[prost(uint64, tag = "5")]
    pub moves: u64,
    /// The number of the target's start.
    #[prost(uint64, tag = "6")]
    pub start: u64,
}

/// Body of `CrossSession`, the first request in a session of two metadata targets.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CrossSessionReq {
    /// Index of the coordinator.
    #[prost(uint32, tag = "1")]
    pub mdt: u32,
    /// Number of the session; greater than those of the coordinator's earlier sessions since its start.
    #[prost(uint64, tag = "2")]
    pub session: u64,
    /// The random number of the coordinator's start.
    #[prost(fixed64, tag = "3")]
    pub instance: u64,
    /// How often the coordinator was declared lost and then admitted again.
    #[prost(uint32, tag = "4")]
    pub losses: u32,
    /// How often the participant was declared lost, as far as the coordinator has settled it.
    #[prost(uint32, tag = "5")]
    pub known_losses: u32,
}

/// Body of the reply to `CrossSession`, also of an error reply. Errors: `EPERM` if the coordinator was declared lost and not
/// admitted since, `EAGAIN` if the participant was, or if one of them has to settle a loss of the other first. What the participant has durably of the coordinator's attempts.
#[derive(Clone, PartialEq, Message)]
pub struct CrossSessionRep {
    /// Attempts that it has prepared.
    #[prost(message, repeated, tag = "1")]
    pub prepared: Vec<CrossAttempt>,
    /// Attempts that it has applied.
    #[prost(message, repeated, tag = "2")]
    pub done: Vec<CrossAttempt>,
    /// How often it was declared lost and then admitted again.
    #[prost(uint32, tag = "3")]
    pub losses: u32,
}

/// Body of `CrossOrphans`, from one participant to another: what has it of these attempts? Their coordinator was declared lost.
/// Errors: `EAGAIN` if the other one does not know a lost target yet.
#[derive(Clone, PartialEq, Message)]
pub struct CrossOrphansReq {
    /// All losses that the participant has settled. The other one settles them, too, before it answers.
    #[prost(message, repeated, tag = "1")]
    pub losses: Vec<TargetLosses>,
    /// The attempts.
    #[prost(message, repeated, tag = "2")]
    pub attempts: Vec<CrossAttempt>,
}

/// A metadata target that was declared lost.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct TargetLosses {
    /// Its index.
    #[prost(uint32, tag = "1")]
    pub mdt: u32,
    /// How often.
    #[prost(uint32, tag = "2")]
    pub losses: u32,
}

/// Body of the reply to `CrossOrphans`: what there is durably. Of attempts in neither list it has nothing, and never will.
#[derive(Clone, PartialEq, Message)]
pub struct CrossOrphansRep {
    /// Attempts that it has prepared.
    #[prost(message, repeated, tag = "1")]
    pub prepared: Vec<CrossAttempt>,
    /// Attempts that it has applied.
    #[prost(message, repeated, tag = "2")]
    pub done: Vec<CrossAttempt>,
}

/// Body of `CrossPrepare`: check a part and reserve all that it needs.
#[derive(Clone, PartialEq, Message)]
pub struct CrossPrepareReq {
    /// The session, see [`CrossSessionReq::session`]. A request of an earlier session is refused (`ESTALE`).
    #[prost(uint64, tag = "1")]
    pub session: u64,
    /// The attempt.
    #[prost(message, required, tag = "2")]
    pub attempt: CrossAttempt,
    /// Age of the change: that of its first attempt. The lower one is the older one.
    #[prost(uint64, tag = "3")]
    pub age: u64,
    /// Index of the target that gave the age; decides between equal ages.
    #[prost(uint32, tag = "4")]
    pub age_mdt: u32,
    /// The part.
    #[prost(message, optional, tag = "5")]
    pub part: Option<CrossPart>,
    /// Indices of all participants.
    #[prost(uint32, repeated, tag = "6")]
    pub members: Vec<u32>,
    /// How often each of them was declared lost, as the coordinator knows.
    #[prost(uint32, repeated, tag = "7")]
    pub losses: Vec<u32>,
    /// How often the coordinator was declared lost and then admitted again.
    #[prost(uint32, tag = "8")]
    pub coordinator_losses: u32,
}

/// Body of the reply to `CrossPrepare`: the participant's vote. The part is prepared, durably, unless `busy`, `errno`
/// or `changed` is set: then this attempt is not prepared and never will be.
#[derive(Clone, PartialEq, Message)]
pub struct CrossPrepareRep {
    /// An older change holds or awaits what the part needs, or a client has not given back a lock that conflicts with it.
    /// [`CrossFree`] follows when the attempt may be repeated.
    #[prost(bool, tag = "1")]
    pub busy: bool,
    /// The check has failed with this errno.
    #[prost(int32, tag = "2")]
    pub errno: i32,
    /// The objects of the part after the change.
    #[prost(message, repeated, tag = "3")]
    pub objects: Vec<CrossObject>,
    /// Something is not as the change takes it to be: look again.
    #[prost(bool, tag = "4")]
    pub changed: bool,
}

/// An object after a cross change.
#[derive(Clone, PartialEq, Message)]
pub struct CrossObject {
    /// Its attributes.
    #[prost(message, optional, boxed, tag = "1")]
    pub attr: Option<Box<Attr>>,
    /// It will be destroyed: it has no name left, and nobody has it open.
    #[prost(bool, tag = "2")]
    pub destroyed: bool,
}

/// Body of `CrossTell`: outcomes of attempts. The empty reply is sent when the participant has acted on all of them, durably.
#[derive(Clone, PartialEq, Message)]
pub struct CrossTellReq {
    /// Committed: to be applied.
    #[prost(message, repeated, tag = "1")]
    pub commit: Vec<CrossAttempt>,
    /// Ended without effect.
    #[prost(message, repeated, tag = "2")]
    pub abort: Vec<CrossAttempt>,
    /// Durably done on all targets: to be forgotten.
    #[prost(message, repeated, tag = "3")]
    pub forget: Vec<CrossAttempt>,
}

/// Body of the notice `CrossFree`: a change whose attempt was busy may be tried again.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CrossFree {
    /// The attempt.
    #[prost(message, required, tag = "1")]
    pub attempt: CrossAttempt,
}
