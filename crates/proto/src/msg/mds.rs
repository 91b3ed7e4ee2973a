//! Metadata messages: attributes, lookups, changes, batches, closes, extended attributes.

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

use super::cross::DirName;
use super::layout::{DirDefault, DirHash, Layout, Lmv, SetlayoutOp, Stripe};
use super::lock::LockGrant;
use crate::ids::Fid;

/// Credentials of the caller. The server checks permissions against them; which credentials a peer may claim is the
/// server's policy.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Cred {
    /// Effective user ID.
    #[prost(uint32, tag = "1")]
    pub uid: u32,
    /// Effective group ID.
    #[prost(uint32, tag = "2")]
    pub gid: u32,
    /// Supplementary groups.
    #[prost(uint32, repeated, tag = "3")]
    pub groups: Vec<u32>,
    /// For creates: bits to clear from the mode where no default ACL applies.
    #[prost(uint32, tag = "4")]
    pub umask: u32,
    /// Effective capabilities by Linux's bit numbers; uid 0 has all of them in this version.
    #[prost(uint64, tag = "5")]
    pub capabilities: u64,
    /// Job that the calling process belongs to, for statistics; at most [`super::JOB_MAX`] bytes are used. Empty: none.
    /// Since version 0.2.0.
    #[prost(string, tag = "115")]
    pub job: String,
}

/// Attributes of an object.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Attr {
    /// Identity.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// Type and permission bits, as in `st_mode`.
    #[prost(uint32, tag = "2")]
    pub mode: u32,
    /// Owner.
    #[prost(uint32, tag = "3")]
    pub uid: u32,
    /// Group.
    #[prost(uint32, tag = "4")]
    pub gid: u32,
    /// Link count.
    #[prost(uint32, tag = "5")]
    pub nlink: u32,
    /// Device number of a device node, as in `st_rdev`.
    #[prost(uint64, tag = "6")]
    pub rdev: u64,
    /// Size in bytes; 0 for a file whose data lies on object targets, which know its size.
    #[prost(uint64, tag = "7")]
    pub size: u64,
    /// Units of 512 bytes; 0 where `size` is.
    #[prost(uint64, tag = "8")]
    pub blocks: u64,
    /// Nanoseconds.
    #[prost(sint64, tag = "9")]
    pub atime_ns: i64,
    /// Nanoseconds. For a file on object targets the time that a target or a lock holder reports counts instead, unless
    /// this one was set later than the data changed ([`Attr::take_data_times`]).
    #[prost(sint64, tag = "10")]
    pub mtime_ns: i64,
    /// Nanoseconds.
    #[prost(sint64, tag = "11")]
    pub ctime_ns: i64,
    /// Nanoseconds.
    #[prost(sint64, tag = "12")]
    pub btime_ns: i64,
    /// Transno of the last change; of two copies of the attributes the one with the higher version is newer.
    #[prost(uint64, tag = "13")]
    pub version: u64,
    /// Regular files: location of the data. Directories: the default for new files in it, if set.
    #[prost(message, optional, tag = "14")]
    pub layout: Option<Layout>,
    /// Whether there are extended attributes (ACLs included); if false, every getxattr fails with `ENODATA`.
    #[prost(bool, tag = "15")]
    pub has_xattrs: bool,
    /// Time at which the mtime was set explicitly to another time (`utimensat`). 0: the mtime is the time of the last
    /// change of data.
    #[prost(sint64, tag = "16")]
    pub mtime_set_ns: i64,
    /// Striped directories and their stripes: the layout. Link count and times are those of the stripe alone. Since version
    /// 0.3.0.
    #[prost(message, optional, boxed, tag = "17")]
    pub lmv: Option<Box<Lmv>>,
    /// Directories: the default for directories that are made in it, if set. Only to clients with the feature `dir_stripe`.
    /// Since version 0.3.0.
    #[prost(message, optional, boxed, tag = "18")]
    pub dir_default: Option<Box<DirDefault>>,
}

impl Attr {
    /// Time at which the mtime got its value. Objects whose data changed later have a newer mtime. The ctime cannot
    /// serve for this comparison, because a rename changes it too.
    pub fn data_changed_ns(&self) -> i64 {
        if self.mtime_set_ns != 0 { self.mtime_set_ns } else { self.mtime_ns }
    }

    /// Merges the times of another stripe of a directory: the newest count. Of a change of names and an mtime that was set at the same
    /// time, the change came later: the mtime was set everywhere.
    pub fn take_stripe_times(&mut self, other: &Attr) {
        let (at, newest) = (other.data_changed_ns(), self.data_changed_ns());
        if at > newest || at == newest && other.mtime_set_ns == 0 {
            (self.mtime_ns, self.mtime_set_ns) = (other.mtime_ns, other.mtime_set_ns);
        }
        self.ctime_ns = self.ctime_ns.max(other.ctime_ns);
        self.atime_ns = self.atime_ns.max(other.atime_ns);
    }

    /// Merges the times that an object target or lock holder reports for the data. The mtime is replaced unless it got
    /// its value later than the data changed.
    pub fn take_data_times(&mut self, lvb: &super::Lvb) {
        if lvb.ctime_ns > self.data_changed_ns() {
            self.mtime_ns = lvb.mtime_ns;
            self.mtime_set_ns = if lvb.mtime_ns == lvb.ctime_ns { 0 } else { lvb.ctime_ns };
        }
        self.ctime_ns = self.ctime_ns.max(lvb.ctime_ns);
    }
}

/// Locks requested with a reply. Each is granted only as far as it does not conflict. A cookie of 0 requests none.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct WantLocks {
    /// PR lock on the object itself with the bits of [`super::bits::CACHE`], or of [`super::bits::CACHE_DIRECTORY`] for
    /// a directory.
    #[prost(uint64, tag = "1")]
    pub object_cookie: u64,
    /// PR lock with UPDATE on the parent directory, to cache its entries.
    #[prost(uint64, tag = "2")]
    pub parent_cookie: u64,
    /// DOM lock on a resident file, PR or, with `data_write`, PW.
    #[prost(uint64, tag = "3")]
    pub data_cookie: u64,
    /// See `data_cookie`.
    #[prost(bool, tag = "4")]
    pub data_write: bool,
    /// PR lock with UPDATE on the object if it is a directory. Separate from `object_cookie`, so that a change of an
    /// entry revokes this lock only and the directory's own name stays cached.
    #[prost(uint64, tag = "5")]
    pub entries_cookie: u64,
    /// Requests the locks on entries (`parent_cookie`, `entries_cookie`) in mode EX if no other client holds one: a
    /// lease, under which the client may apply changes locally.
    #[prost(bool, tag = "6")]
    pub exclusive: bool,
}

/// Body of `MdsGetattr`.
#[derive(Clone, PartialEq, Message)]
pub struct GetattrReq {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// Locks requested.
    #[prost(message, optional, tag = "2")]
    pub want: Option<WantLocks>,
    /// Credentials of the caller.
    #[prost(message, optional, tag = "3")]
    pub cred: Option<Cred>,
    /// The sender has locks on objects of the file, and uses them if the layout in the answer is the one that it knows. Another
    /// client that is about to replace the layout does not do so any more; see [`SetlayoutKind::Swap`].
    ///
    /// [`SetlayoutKind::Swap`]: crate::msg::SetlayoutKind::Swap
    #[prost(bool, tag = "4")]
    pub confirms_layout: bool,
    /// A name on another metadata target that led to the object a moment ago: does it still?
    #[prost(message, optional, tag = "5")]
    pub name: Option<DirName>,
}

/// Whether an object has a name, as its own record of its names says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Enumeration)]
#[repr(i32)]
pub enum NameState {
    /// It has too many names to record all of them.
    Unknown = 0,
    /// It has the name.
    Held = 1,
    /// It does not have the name.
    Lost = 2,
}

/// Body of `MdsLookup`.
#[derive(Clone, PartialEq, Message)]
pub struct LookupReq {
    /// The directory.
    #[prost(message, required, tag = "1")]
    pub parent: Fid,
    /// The name; `..` looks up the parent of `parent`.
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
    /// Locks requested.
    #[prost(message, optional, tag = "3")]
    pub want: Option<WantLocks>,
    /// Credentials of the caller.
    #[prost(message, optional, tag = "4")]
    pub cred: Option<Cred>,
}

/// Body of replies to `MdsGetattr`, `MdsLookup` and `MdsReint`: the affected objects after the operation.
#[derive(Clone, PartialEq, Message)]
pub struct ObjectRep {
    /// The object that was found, created, changed or opened; of an unlink, the removed object with its remaining
    /// `nlink`; of a rename, the moved object. For `MdsLookup`, none means that the name does not exist (status 0).
    #[prost(message, optional, tag = "1")]
    pub attr: Option<Attr>,
    /// The parent directory after the change; of a rename, the target directory.
    #[prost(message, optional, tag = "2")]
    pub parent_attr: Option<Attr>,
    /// Locks granted.
    #[prost(message, repeated, tag = "3")]
    pub locks: Vec<LockGrant>,
    /// Open: the handle.
    #[prost(uint64, tag = "4")]
    pub handle: u64,
    /// Open: what the open did, see [`disposition`].
    #[prost(uint32, tag = "5")]
    pub disposition: u32,
    /// Rename: the source directory, unless it is also the target directory.
    #[prost(message, optional, tag = "6")]
    pub source_parent_attr: Option<Attr>,
    /// Rename: the replaced object with its remaining `nlink`; with `RENAME_EXCHANGE` the other object.
    #[prost(message, optional, tag = "7")]
    pub replaced_attr: Option<Attr>,
    /// Symbolic links: the target path, to save a request.
    #[prost(bytes = "bytes", tag = "8")]
    pub symlink: Bytes,
    /// Unlink, and rename over an object: the object that lost a name was destroyed, because it has no name left and
    /// nobody has it open. Its unwritten data can be discarded, and the client's locks on it are gone.
    #[prost(bool, tag = "9")]
    pub destroyed: bool,
    /// `RENAME_WHITEOUT`: attributes of the whiteout that has the old name. Since version 0.2.0.
    #[prost(message, optional, tag = "10")]
    pub whiteout_attr: Option<Attr>,
    /// [`super::SetlayoutKind::Copy`]: the layout of the copy.
    #[prost(message, optional, tag = "90")]
    pub copy: Option<Layout>,
    /// `MdsReint`: as [`super::ConnectRep::write_back_credits`], to a client that has no credits. Since version 0.2.0.
    #[prost(uint32, tag = "91")]
    pub write_back_credits: u32,
    /// Instead of `attr`: the object lies on another metadata target, which has its attributes and locks. Only to clients
    /// with the feature `dir_stripe`; others are answered `EOPNOTSUPP`. Since version 0.3.0.
    #[prost(message, optional, tag = "92")]
    pub elsewhere: Option<Elsewhere>,
    /// Whether the object has the name of the request, see [`GetattrReq::name`].
    #[prost(enumeration = "NameState", tag = "93")]
    pub name_state: i32,
}

/// An object on another metadata target than the one that was asked.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Elsewhere {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// Index of its metadata target.
    #[prost(uint32, tag = "2")]
    pub mdt: u32,
    /// Its type, as the mode has it.
    #[prost(uint32, tag = "3")]
    pub kind: u32,
}

/// What an open did, with Lustre's numbers.
pub mod disposition {
    /// The name existed.
    pub const LOOKUP_POS: u32 = 0x8;
    /// This request created the file.
    pub const OPEN_CREATE: u32 = 0x10;
    /// The file was opened.
    pub const OPEN_OPEN: u32 = 0x20;
}

/// Body of `MdsReint`: one change, with the fields that are common to all changes.
#[derive(Clone, PartialEq, Message)]
pub struct ReintReq {
    /// Credentials of the caller.
    #[prost(message, optional, tag = "1")]
    pub cred: Option<Cred>,
    /// Time by the client's clock, in nanoseconds: the value of all times that this change sets, unless it carries its
    /// own.
    #[prost(sint64, tag = "2")]
    pub now_ns: i64,
    /// Locks requested with the reply.
    #[prost(message, optional, tag = "3")]
    pub want: Option<WantLocks>,
    /// The change.
    #[prost(oneof = "Reint", tags = "16, 17, 18, 19, 20, 21, 22, 23, 24")]
    pub op: Option<Reint>,
}

/// The metadata changes.
#[derive(Clone, PartialEq, Oneof)]
pub enum Reint {
    /// Sets mode, owner, times, or the size of a resident file.
    #[prost(message, tag = "16")]
    Setattr(SetattrOp),
    /// Creates a directory, device, pipe, socket, symbolic link, or a regular file without opening it.
    #[prost(message, tag = "17")]
    Create(CreateOp),
    /// Adds a name (`link`).
    #[prost(message, tag = "18")]
    Link(LinkOp),
    /// Removes a name (`unlink`, `rmdir`).
    #[prost(message, tag = "19")]
    Unlink(UnlinkOp),
    /// Renames (`renameat2`).
    #[prost(message, tag = "20")]
    Rename(RenameOp),
    /// Opens a file, with or without creating it.
    #[prost(message, tag = "21")]
    Open(OpenOp),
    /// Sets or removes an extended attribute.
    #[prost(message, tag = "22")]
    Setxattr(SetxattrOp),
    /// Sets a directory's default layout, or a file's layout (before it has data, or to move it from resident to
    /// objects).
    #[prost(message, tag = "23")]
    Setlayout(SetlayoutOp),
    /// Gives a directory another number of stripes, or another function that assigns names to them. Since version 0.3.0.
    #[prost(message, tag = "24")]
    Relayout(RelayoutOp),
}

/// See [`Reint::Relayout`]. When it is answered the layout has begun to change; the names move afterwards.
///
/// Errors: `EPERM` without the right, or if `enable_dir_restripe` is off; `EBUSY` while an earlier change is under way; `EREMCHG` if
/// the directory has another version of its layout; those of a new striped directory.
#[derive(Clone, PartialEq, Message)]
pub struct RelayoutOp {
    /// The directory.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// The version of its layout that the change was made for; 0: it is not striped.
    #[prost(uint32, tag = "2")]
    pub version: u32,
    /// Number of stripes after the change, the directory itself included.
    #[prost(uint32, tag = "3")]
    pub count: u32,
    /// The stripes that it has more than before.
    #[prost(message, repeated, tag = "4")]
    pub added: Vec<Stripe>,
    /// The function that assigns names to stripes ([`super::DirHash`]); 0: as before.
    #[prost(int32, tag = "5")]
    pub hash: i32,
}

/// Bits of [`SetattrOp::valid`]: the fields to set, and how.
pub mod valid {
    /// `mode`.
    pub const MODE: u32 = 0x1;
    /// `uid`.
    pub const UID: u32 = 0x2;
    /// `gid`.
    pub const GID: u32 = 0x4;
    /// `size`.
    pub const SIZE: u32 = 0x8;
    /// `atime_ns`.
    pub const ATIME: u32 = 0x10;
    /// `mtime_ns`.
    pub const MTIME: u32 = 0x20;
    /// `ctime_ns`; only with times merged from object targets.
    pub const CTIME: u32 = 0x40;
    /// The atime is set to "now" (`UTIME_NOW`), for which write permission is enough.
    pub const ATIME_NOW: u32 = 0x80;
    /// The mtime is set to "now".
    pub const MTIME_NOW: u32 = 0x100;
    /// A write happened: setuid and setgid are cleared where the rules say so.
    pub const KILL_PRIV: u32 = 0x200;
    /// Client housekeeping (relatime, merged times of a file's objects): needs no permission, and times only increase.
    pub const HOUSEKEEPING: u32 = 0x400;
}

/// See [`Reint::Setattr`].
#[derive(Clone, PartialEq, Message)]
pub struct SetattrOp {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// Bits of [`valid`].
    #[prost(uint32, tag = "2")]
    pub valid: u32,
    /// Permission bits, 12 of them.
    #[prost(uint32, tag = "3")]
    pub mode: u32,
    /// Owner.
    #[prost(uint32, tag = "4")]
    pub uid: u32,
    /// Group.
    #[prost(uint32, tag = "5")]
    pub gid: u32,
    /// In bytes. For a file that is not resident the MDT checks permission, clears set-id bits and sets times; the
    /// client truncates the data with a punch to each object.
    #[prost(uint64, tag = "6")]
    pub size: u64,
    /// Nanoseconds.
    #[prost(sint64, tag = "7")]
    pub atime_ns: i64,
    /// Nanoseconds.
    #[prost(sint64, tag = "8")]
    pub mtime_ns: i64,
    /// Nanoseconds.
    #[prost(sint64, tag = "9")]
    pub ctime_ns: i64,
    /// Handle of an open for writing, with which `ftruncate` needs no permission on the inode.
    #[prost(uint64, tag = "10")]
    pub handle: u64,
}

/// See [`Reint::Create`].
#[derive(Clone, PartialEq, Message)]
pub struct CreateOp {
    /// The directory.
    #[prost(message, required, tag = "1")]
    pub parent: Fid,
    /// The name.
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
    /// The new object's FID, from a sequence granted to this client.
    #[prost(message, required, tag = "3")]
    pub fid: Fid,
    /// Type and permission bits, before umask and default ACL.
    #[prost(uint32, tag = "4")]
    pub mode: u32,
    /// Device nodes: device number.
    #[prost(uint64, tag = "5")]
    pub rdev: u64,
    /// Symbolic links: target path.
    #[prost(bytes = "bytes", tag = "6")]
    pub symlink: Bytes,
    /// Directories: the metadata target on which the new one shall lie, if that is not the parent's. `fid` is of a sequence
    /// that this target has granted. Since version 0.3.0.
    #[prost(uint32, optional, tag = "7")]
    pub mdt: Option<u32>,
    /// Striped directories: the stripes after the first, which is the new directory itself. Since version 0.3.0.
    #[prost(message, repeated, tag = "8")]
    pub stripes: Vec<Stripe>,
    /// Striped directories: the function that gives the stripe of a name.
    #[prost(enumeration = "DirHash", tag = "9")]
    pub hash: i32,
}

/// See [`Reint::Link`].
#[derive(Clone, PartialEq, Message)]
pub struct LinkOp {
    /// The object to link.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// The directory of the new name.
    #[prost(message, required, tag = "2")]
    pub parent: Fid,
    /// The new name.
    #[prost(bytes = "bytes", tag = "3")]
    pub name: Bytes,
    /// Type of the object, as the mode has it; needed if it is on another target than the directory.
    #[prost(uint32, tag = "4")]
    pub kind: u32,
}

/// See [`Reint::Unlink`].
#[derive(Clone, PartialEq, Message)]
pub struct UnlinkOp {
    /// The directory.
    #[prost(message, required, tag = "1")]
    pub parent: Fid,
    /// The name.
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
    /// True for `rmdir`: the object must be a directory; otherwise it must not be one.
    #[prost(bool, tag = "3")]
    pub rmdir: bool,
    /// The object that the name leads to as far as the client knows, if it does. For this object the client has
    /// reported its local opens, makes no new ones while the request is in flight, and serves no attributes from its
    /// cache meanwhile. If the name leads to another object, the server first revokes this client's own lock on that.
    #[prost(message, optional, tag = "4")]
    pub reported: Option<Fid>,
    /// Only the name is removed (`lfs rm_entry`): its object is on another metadata target, which takes no part. For those
    /// who may administer the system. `EINVAL`: the object is on this target. Since version 0.3.0; earlier ones would remove
    /// the object, too.
    #[prost(bool, tag = "5")]
    pub entry_only: bool,
}

/// See [`Reint::Rename`].
#[derive(Clone, PartialEq, Message)]
pub struct RenameOp {
    /// Source directory.
    #[prost(message, required, tag = "1")]
    pub source_parent: Fid,
    /// Name in the source directory.
    #[prost(bytes = "bytes", tag = "2")]
    pub source_name: Bytes,
    /// Target directory.
    #[prost(message, required, tag = "3")]
    pub target_parent: Fid,
    /// Name in the target directory.
    #[prost(bytes = "bytes", tag = "4")]
    pub target_name: Bytes,
    /// `RENAME_NOREPLACE` 1, `RENAME_EXCHANGE` 2, `RENAME_WHITEOUT` 4 (since version 0.2.0; older servers answer `EINVAL`).
    #[prost(uint32, tag = "5")]
    pub flags: u32,
    /// As [`UnlinkOp::reported`], for the object to be replaced.
    #[prost(message, optional, tag = "6")]
    pub reported: Option<Fid>,
    /// With `RENAME_WHITEOUT`: FID of the whiteout that gets the old name.
    #[prost(message, optional, tag = "7")]
    pub whiteout: Option<Fid>,
}

/// See [`Reint::Open`].
#[derive(Clone, PartialEq, Message)]
pub struct OpenOp {
    /// The directory; none to open `fid`.
    #[prost(message, optional, tag = "1")]
    pub parent: Option<Fid>,
    /// Name in the directory.
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
    /// Open by FID: the object. With a name and O_CREAT: FID for the file if it is created.
    #[prost(message, required, tag = "3")]
    pub fid: Fid,
    /// Linux's `O_*` for x86-64.
    #[prost(uint32, tag = "4")]
    pub flags: u32,
    /// Permission bits of a new file.
    #[prost(uint32, tag = "5")]
    pub mode: u32,
    /// Replay: the handle from the original reply. A close with either handle closes this open.
    #[prost(uint64, tag = "6")]
    pub old_handle: u64,
    /// Replay: the object that the original reply reported as opened; the replay opens it by this FID.
    #[prost(message, optional, tag = "7")]
    pub opened_fid: Option<Fid>,
    /// Replay: the layout that the file got from the original request.
    #[prost(message, optional, tag = "8")]
    pub layout: Option<Layout>,
}

/// See [`Reint::Setxattr`].
#[derive(Clone, PartialEq, Message)]
pub struct SetxattrOp {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// Full name, such as `user.comment`.
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
    /// The value.
    #[prost(bytes = "bytes", tag = "3")]
    pub value: Bytes,
    /// `XATTR_CREATE` 1, `XATTR_REPLACE` 2.
    #[prost(uint32, tag = "4")]
    pub flags: u32,
    /// Removes the attribute.
    #[prost(bool, tag = "5")]
    pub remove: bool,
}

/// Most closes in one request; each has one bit in the reply record.
pub const CLOSES_MAX: usize = 64;

/// Most changes in a [`BatchReq`].
pub const BATCH_MAX: usize = 64;

/// Body of `MdsBatch`: write-back changes, in order; 1 to [`BATCH_MAX`], or none with `returns_credits`. The batch has one
/// transno and one reply record, but each change succeeds or fails on its own.
#[derive(Clone, PartialEq, Message)]
pub struct BatchReq {
    /// [`ReintReq`] messages, each preceded by its length (varint): `Setattr`, `Create` or `Unlink`. One without `cred`
    /// uses the credentials of the one before it. Locks requested on a new object are always granted, the one on its
    /// data as PW, the one on its entries as EX.
    #[prost(bytes = "bytes", tag = "1")]
    pub changes: Bytes,
    /// There are no changes, and the client returns its credits ([`super::ConnectRep::write_back_credits`]). Since version
    /// 0.2.0.
    #[prost(bool, tag = "2")]
    pub returns_credits: bool,
}

impl BatchReq {
    /// Appends a change to the encoded `changes`.
    pub fn push(changes: &mut Vec<u8>, change: &ReintReq) {
        let written = change.encode_length_delimited(changes);
        debug_assert!(written.is_ok(), "a vector grows");
    }

    /// Decodes the changes, in order. A decoding error is the last item.
    pub fn iter(&self) -> impl Iterator<Item = Result<ReintReq, prost::DecodeError>> {
        super::one_by_one(&self.changes)
    }
}

/// Body of the reply to `MdsBatch`.
#[derive(Clone, PartialEq, Message)]
pub struct BatchRep {
    /// Result of each change, in order.
    #[prost(message, repeated, tag = "1")]
    pub results: Vec<BatchResult>,
    /// As [`super::ConnectRep::write_back_credits`], valid from now on.
    #[prost(uint32, tag = "2")]
    pub credits: u32,
}

/// Result of one change of a [`BatchReq`].
#[derive(Clone, PartialEq, Message)]
pub struct BatchResult {
    /// 0, or a negative errno. `EIO` also for a change that failed and whose error the server lost in a restart.
    #[prost(sint32, tag = "1")]
    pub status: i32,
    /// Handle of the lock on the new object; 0 if there is none.
    #[prost(uint64, tag = "2")]
    pub object_handle: u64,
    /// Handle of the lock on the new object's entries; 0 if there is none.
    #[prost(uint64, tag = "3")]
    pub entries_handle: u64,
    /// Handle of the lock on the new object's data; 0 if there is none.
    #[prost(uint64, tag = "4")]
    pub data_handle: u64,
    /// Layout of a new regular file.
    #[prost(message, optional, tag = "5")]
    pub layout: Option<Layout>,
}

/// Body of `MdsClose`: closes of 1 to [`CLOSES_MAX`] open files. One change: all of them take effect.
#[derive(Clone, PartialEq, Message)]
pub struct CloseReq {
    /// The closes.
    #[prost(message, repeated, tag = "4")]
    pub closes: Vec<Close>,
}

/// One close of a [`CloseReq`].
#[derive(Clone, PartialEq, Message)]
pub struct Close {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// Handle of the open. 0: the open was never reported to the server, and only the atime is to be stored.
    #[prost(uint64, tag = "2")]
    pub handle: u64,
    /// New atime in nanoseconds, if it changed (relatime); otherwise 0.
    #[prost(sint64, tag = "3")]
    pub atime_ns: i64,
}

/// Body of the reply to `MdsClose`. Closes without a result succeeded without anything to report.
#[derive(Clone, PartialEq, Message)]
pub struct CloseRep {
    /// Results of some closes.
    #[prost(message, repeated, tag = "1")]
    pub results: Vec<CloseResult>,
}

/// Result of one close.
#[derive(Clone, PartialEq, Message)]
pub struct CloseResult {
    /// Index in the request, from 0.
    #[prost(uint32, tag = "1")]
    pub index: u32,
    /// 0, or a negative errno. `ESTALE`: the server does not know the handle, so it is closed.
    #[prost(sint32, tag = "2")]
    pub status: i32,
    /// The object was destroyed, because it had no name and nobody has it open any more. The client's locks on it are
    /// gone.
    #[prost(bool, tag = "3")]
    pub destroyed: bool,
}

/// Body of `MdsGetxattr`: reads the value of `name`, or the list of names if it is empty.
#[derive(Clone, PartialEq, Message)]
pub struct GetxattrReq {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// Full name; empty requests the list of names.
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
    /// Credentials of the caller.
    #[prost(message, optional, tag = "3")]
    pub cred: Option<Cred>,
    /// Requests all names and values, which the client caches under its XATTR lock.
    #[prost(bool, tag = "4")]
    pub all: bool,
    /// Locks requested (`object_cookie` only).
    #[prost(message, optional, tag = "5")]
    pub want: Option<WantLocks>,
}

/// An extended attribute.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Xattr {
    /// Full name.
    #[prost(bytes = "bytes", tag = "1")]
    pub name: Bytes,
    /// Value.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// Body of the reply to `MdsGetxattr`.
#[derive(Clone, PartialEq, Message)]
pub struct GetxattrRep {
    /// The requested attribute, all names (with empty values), or all names and values.
    #[prost(message, repeated, tag = "1")]
    pub xattrs: Vec<Xattr>,
    /// Locks granted.
    #[prost(message, repeated, tag = "2")]
    pub locks: Vec<LockGrant>,
}

/// Body of `MdsSync`. The reply is sent when all changes acknowledged to this client are durable.
#[derive(Clone, PartialEq, Message)]
pub struct SyncReq {
    /// The object that was `fsync`ed, for statistics; none for the whole file system.
    #[prost(message, optional, tag = "1")]
    pub fid: Option<Fid>,
}

/// Body of replies to `MdsStatfs` and `ObjStatfs`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct StatfsRep {
    /// Bytes.
    #[prost(uint64, tag = "1")]
    pub total: u64,
    /// Free bytes.
    #[prost(uint64, tag = "2")]
    pub free: u64,
    /// Bytes that users can still write: `free` less the reserve and grants.
    #[prost(uint64, tag = "3")]
    pub available: u64,
    /// Number of objects that the target could hold.
    #[prost(uint64, tag = "4")]
    pub files: u64,
    /// Number of objects that can still be created.
    #[prost(uint64, tag = "5")]
    pub files_free: u64,
    /// Object targets: total space granted to the requesting client, in bytes.
    #[prost(uint64, tag = "6")]
    pub grant: u64,
    /// Object targets: [`OST_DEGRADED`] or 0.
    #[prost(uint32, tag = "55")]
    pub state: u32,
    /// Identifier of the disk that holds the data. Targets with the same number share its space; 0: not known, a disk of its
    /// own. From metadata targets since version 0.3.0.
    #[prost(uint64, tag = "100")]
    pub disk: u64,
}

/// Bit of [`StatfsRep::state`]: the target is degraded, and new files avoid it.
pub const OST_DEGRADED: u32 = 1;

/// Body of `MdsFid2path`.
#[derive(Clone, PartialEq, Message)]
pub struct Fid2pathReq {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// Credentials of the caller.
    #[prost(message, optional, tag = "2")]
    pub cred: Option<Cred>,
}

/// Body of the reply to `MdsFid2path`.
#[derive(Clone, PartialEq, Message)]
pub struct Fid2pathRep {
    /// One path per link, relative to the root and without a leading slash. The path of the root is empty.
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub paths: Vec<Bytes>,
    /// For each path the directory that it starts from, which lies on another metadata target. Empty if all paths start
    /// from the root. Since version 0.3.0.
    #[prost(message, repeated, tag = "2")]
    pub from: Vec<Fid>,
}
