//! Metadata operations.

use bytes::Bytes;
use prost::{Message, Oneof};

use super::layout::{Layout, SetlayoutOp};
use super::lock::LockGrant;
use crate::ids::Fid;

/// On whose behalf. Checked on the server; what the connection's peer may claim is the server's policy.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Cred {
    /// File system user.
    #[prost(uint32, tag = "1")]
    pub uid: u32,
    /// File system group.
    #[prost(uint32, tag = "2")]
    pub gid: u32,
    /// Supplementary groups.
    #[prost(uint32, repeated, tag = "3")]
    pub groups: Vec<u32>,
    /// For creates: bits that the mode loses where no default ACL applies.
    #[prost(uint32, tag = "4")]
    pub umask: u32,
    /// Effective capabilities in Linux's numbers; uid 0 has them all in this version.
    #[prost(uint64, tag = "5")]
    pub capabilities: u64,
    /// The job that the process belongs to, for statistics; at most [`super::JOB_MAX`] bytes count. Empty: none. Since version 0.2.0.
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
    /// Links.
    #[prost(uint32, tag = "5")]
    pub nlink: u32,
    /// Device number of a device node, as in `st_rdev`.
    #[prost(uint64, tag = "6")]
    pub rdev: u64,
    /// Bytes. Of a file whose data lies on object targets, 0: ask those.
    #[prost(uint64, tag = "7")]
    pub size: u64,
    /// Units of 512 bytes. Likewise.
    #[prost(uint64, tag = "8")]
    pub blocks: u64,
    /// Nanoseconds.
    #[prost(sint64, tag = "9")]
    pub atime_ns: i64,
    /// Nanoseconds. Of a file on object targets, see [`Attr::take_data_times`].
    #[prost(sint64, tag = "10")]
    pub mtime_ns: i64,
    /// Nanoseconds.
    #[prost(sint64, tag = "11")]
    pub ctime_ns: i64,
    /// Nanoseconds.
    #[prost(sint64, tag = "12")]
    pub btime_ns: i64,
    /// Transno of the last change: of two copies the greater one is the newer.
    #[prost(uint64, tag = "13")]
    pub version: u64,
    /// Regular files: where the data lies. Directories: the default for new files in it, if set.
    #[prost(message, optional, tag = "14")]
    pub layout: Option<Layout>,
    /// There are extended attributes (ACLs included); if false, every getxattr is `ENODATA`.
    #[prost(bool, tag = "15")]
    pub has_xattrs: bool,
    /// When the mtime was set to another moment than that one (`utimensat`); 0: the mtime is when data changed last.
    #[prost(sint64, tag = "16")]
    pub mtime_set_ns: i64,
}

impl Attr {
    /// When the mtime came to be what it is. Data that its objects say was changed later has a newer mtime; the ctime does
    /// not tell, for it moves with a rename too.
    pub fn data_changed_ns(&self) -> i64 {
        if self.mtime_set_ns != 0 { self.mtime_set_ns } else { self.mtime_ns }
    }

    /// Takes the times of data from whoever has it, unless the mtime came to be later.
    pub fn take_data_times(&mut self, lvb: &super::Lvb) {
        if lvb.ctime_ns > self.data_changed_ns() {
            self.mtime_ns = lvb.mtime_ns;
            self.mtime_set_ns = if lvb.mtime_ns == lvb.ctime_ns { 0 } else { lvb.ctime_ns };
        }
        self.ctime_ns = self.ctime_ns.max(lvb.ctime_ns);
    }
}

/// Locks that a reply should bring, granted only as far as they do not conflict. A cookie of 0 asks for none.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct WantLocks {
    /// PR lock on the object itself, with the bits of [`super::bits::CACHE`], of a directory
    /// [`super::bits::CACHE_DIRECTORY`].
    #[prost(uint64, tag = "1")]
    pub object_cookie: u64,
    /// PR lock with UPDATE on the parent directory, so that its entries can be cached.
    #[prost(uint64, tag = "2")]
    pub parent_cookie: u64,
    /// DOM lock on a resident file: PR, or PW if `data_write`.
    #[prost(uint64, tag = "3")]
    pub data_cookie: u64,
    /// See `data_cookie`.
    #[prost(bool, tag = "4")]
    pub data_write: bool,
    /// PR lock with UPDATE on the object if it is a directory. Apart from `object_cookie`: whoever makes a name in it calls
    /// back this one, and the name of the directory itself stays known.
    #[prost(uint64, tag = "5")]
    pub entries_cookie: u64,
    /// The locks on entries (`parent_cookie`, `entries_cookie`) as EX if nobody else has any: a lease, under which the client
    /// makes changes itself.
    #[prost(bool, tag = "6")]
    pub exclusive: bool,
}

/// Body of `MdsGetattr`.
#[derive(Clone, PartialEq, Message)]
pub struct GetattrReq {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// Locks wanted.
    #[prost(message, optional, tag = "2")]
    pub want: Option<WantLocks>,
    /// On whose behalf.
    #[prost(message, optional, tag = "3")]
    pub cred: Option<Cred>,
    /// The sender has locks on objects of the file, and uses them if the layout in the answer is the one that it knows. Another
    /// client that is about to replace the layout does not do so any more; see [`SetlayoutKind::Swap`].
    ///
    /// [`SetlayoutKind::Swap`]: crate::msg::SetlayoutKind::Swap
    #[prost(bool, tag = "4")]
    pub confirms_layout: bool,
}

/// Body of `MdsLookup`.
#[derive(Clone, PartialEq, Message)]
pub struct LookupReq {
    /// The directory.
    #[prost(message, required, tag = "1")]
    pub parent: Fid,
    /// The name; `..` gives the parent of `parent`.
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
    /// Locks wanted.
    #[prost(message, optional, tag = "3")]
    pub want: Option<WantLocks>,
    /// On whose behalf.
    #[prost(message, optional, tag = "4")]
    pub cred: Option<Cred>,
}

/// Body of replies to `MdsGetattr`, `MdsLookup` and `MdsReint`: what the objects look like after it.
#[derive(Clone, PartialEq, Message)]
pub struct ObjectRep {
    /// The object: found, created, changed, opened; of an unlink, what was removed (with its remaining `nlink`); of a
    /// rename, what was moved. For `MdsLookup` none means that the name does not exist (status 0).
    #[prost(message, optional, tag = "1")]
    pub attr: Option<Attr>,
    /// The directory, after the change. Of a rename, the target directory.
    #[prost(message, optional, tag = "2")]
    pub parent_attr: Option<Attr>,
    /// Locks granted.
    #[prost(message, repeated, tag = "3")]
    pub locks: Vec<LockGrant>,
    /// Open: the handle.
    #[prost(uint64, tag = "4")]
    pub handle: u64,
    /// Open: what was done, see [`disposition`].
    #[prost(uint32, tag = "5")]
    pub disposition: u32,
    /// Rename: the source directory, if another one.
    #[prost(message, optional, tag = "6")]
    pub source_parent_attr: Option<Attr>,
    /// Rename over an object: what was there, with its remaining `nlink`; exchange: the other object.
    #[prost(message, optional, tag = "7")]
    pub replaced_attr: Option<Attr>,
    /// Symbolic links: the target, to spare a request.
    #[prost(bytes = "bytes", tag = "8")]
    pub symlink: Bytes,
    /// Unlink, rename over an object: the object that lost a name is gone. No name is left, and nobody has it open: what is
    /// not written of its data needs no writing, and the client's locks on it went with it.
    #[prost(bool, tag = "9")]
    pub destroyed: bool,
    /// `RENAME_WHITEOUT`: attributes of what has the old name now. Since version 0.2.0.
    #[prost(message, optional, tag = "10")]
    pub whiteout_attr: Option<Attr>,
    /// [`super::SetlayoutKind::Copy`]: the layout of the copy.
    #[prost(message, optional, tag = "90")]
    pub copy: Option<Layout>,
    /// `MdsReint`: as [`super::ConnectRep::batch_room`], for a client that has none. Since version 0.2.0.
    #[prost(uint32, tag = "91")]
    pub batch_room: u32,
}

/// What an open did, with Lustre's numbers.
pub mod disposition {
    /// The name existed.
    pub const LOOKUP_POS: u32 = 0x8;
    /// This request created the file.
    pub const OPEN_CREATE: u32 = 0x10;
    /// It was opened.
    pub const OPEN_OPEN: u32 = 0x20;
}

/// Body of `MdsReint`: one change, with what is common to all.
#[derive(Clone, PartialEq, Message)]
pub struct ReintReq {
    /// On whose behalf.
    #[prost(message, optional, tag = "1")]
    pub cred: Option<Cred>,
    /// The client's clock: all times that this change sets, unless it says otherwise.
    #[prost(sint64, tag = "2")]
    pub now_ns: i64,
    /// Locks wanted with the reply.
    #[prost(message, optional, tag = "3")]
    pub want: Option<WantLocks>,
    /// Which change.
    #[prost(oneof = "Reint", tags = "16, 17, 18, 19, 20, 21, 22, 23")]
    pub op: Option<Reint>,
}

/// The changes.
#[derive(Clone, PartialEq, Oneof)]
pub enum Reint {
    /// Mode, owner, times, size of a resident file.
    #[prost(message, tag = "16")]
    Setattr(SetattrOp),
    /// A directory, device, pipe, socket, symbolic link, or a regular file that is not opened.
    #[prost(message, tag = "17")]
    Create(CreateOp),
    /// A further name.
    #[prost(message, tag = "18")]
    Link(LinkOp),
    /// A name less; also of an empty directory.
    #[prost(message, tag = "19")]
    Unlink(UnlinkOp),
    /// Another name.
    #[prost(message, tag = "20")]
    Rename(RenameOp),
    /// Open, with or without create.
    #[prost(message, tag = "21")]
    Open(OpenOp),
    /// Set or remove an extended attribute.
    #[prost(message, tag = "22")]
    Setxattr(SetxattrOp),
    /// Set a directory's default layout, or a file's (before it has data, or from resident to objects).
    #[prost(message, tag = "23")]
    Setlayout(SetlayoutOp),
}

/// Which fields of a [`SetattrOp`] count.
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
    /// `ctime_ns`: only together with times merged from object targets.
    pub const CTIME: u32 = 0x40;
    /// The atime is "now" (UTIME_NOW): write permission is enough.
    pub const ATIME_NOW: u32 = 0x80;
    /// The mtime is "now".
    pub const MTIME_NOW: u32 = 0x100;
    /// A write happened: clear setuid and setgid where the rules say so.
    pub const KILL_PRIV: u32 = 0x200;
    /// Client housekeeping (relatime, merged times of a file's objects): no permission is needed, times only rise.
    pub const HOUSEKEEPING: u32 = 0x400;
}

/// See [`Reint::Setattr`].
#[derive(Clone, PartialEq, Message)]
pub struct SetattrOp {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// See [`valid`].
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
    /// Bytes. On a file that is not resident the MDT checks permission, clears set-id bits and sets times; the data
    /// is cut by a punch to each object.
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
    /// An open handle for writing: `ftruncate` needs no permission on the inode.
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
    /// Device nodes.
    #[prost(uint64, tag = "5")]
    pub rdev: u64,
    /// Symbolic links.
    #[prost(bytes = "bytes", tag = "6")]
    pub symlink: Bytes,
}

/// See [`Reint::Link`].
#[derive(Clone, PartialEq, Message)]
pub struct LinkOp {
    /// What gets a further name.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// The directory of the new name.
    #[prost(message, required, tag = "2")]
    pub parent: Fid,
    /// The new name.
    #[prost(bytes = "bytes", tag = "3")]
    pub name: Bytes,
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
    /// `rmdir`: the object must be a directory; otherwise it must not be one.
    #[prost(bool, tag = "3")]
    pub rmdir: bool,
    /// What the client knows the name to lead to, if it does: it has told of its opens of that, keeps none to itself while the request
    /// is on its way, and its programs ask for attributes of it. Of another object, the client's own lock is called back first.
    #[prost(message, optional, tag = "4")]
    pub told: Option<Fid>,
}

/// See [`Reint::Rename`].
#[derive(Clone, PartialEq, Message)]
pub struct RenameOp {
    /// From here.
    #[prost(message, required, tag = "1")]
    pub source_parent: Fid,
    /// This name.
    #[prost(bytes = "bytes", tag = "2")]
    pub source_name: Bytes,
    /// To there.
    #[prost(message, required, tag = "3")]
    pub target_parent: Fid,
    /// Under this name.
    #[prost(bytes = "bytes", tag = "4")]
    pub target_name: Bytes,
    /// `RENAME_NOREPLACE` 1, `RENAME_EXCHANGE` 2, `RENAME_WHITEOUT` 4 (since version 0.2.0; older servers answer `EINVAL`).
    #[prost(uint32, tag = "5")]
    pub flags: u32,
    /// The same as [`UnlinkOp::told`], of the object that is replaced.
    #[prost(message, optional, tag = "6")]
    pub told: Option<Fid>,
    /// With `RENAME_WHITEOUT`: the FID of the whiteout, which gets the old name.
    #[prost(message, optional, tag = "7")]
    pub whiteout: Option<Fid>,
}

/// See [`Reint::Open`].
#[derive(Clone, PartialEq, Message)]
pub struct OpenOp {
    /// The directory; none if `fid` is opened.
    #[prost(message, optional, tag = "1")]
    pub parent: Option<Fid>,
    /// The name in it.
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
    /// Open by FID: the object. With a name and O_CREAT: the FID for the new file, if it comes to that.
    #[prost(message, required, tag = "3")]
    pub fid: Fid,
    /// Linux's `O_*` for x86-64.
    #[prost(uint32, tag = "4")]
    pub flags: u32,
    /// Permission bits of a new file.
    #[prost(uint32, tag = "5")]
    pub mode: u32,
    /// Replay: the handle that the first open got; close of either handle closes this open.
    #[prost(uint64, tag = "6")]
    pub old_handle: u64,
    /// Replay: what the first reply said was opened; it is opened by this FID first.
    #[prost(message, optional, tag = "7")]
    pub opened_fid: Option<Fid>,
    /// Replay: the layout that the file got.
    #[prost(message, optional, tag = "8")]
    pub layout: Option<Layout>,
}

/// See [`Reint::Setxattr`].
#[derive(Clone, PartialEq, Message)]
pub struct SetxattrOp {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// Full name, `user.comment`.
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
    /// The value.
    #[prost(bytes = "bytes", tag = "3")]
    pub value: Bytes,
    /// `XATTR_CREATE` 1, `XATTR_REPLACE` 2.
    #[prost(uint32, tag = "4")]
    pub flags: u32,
    /// Remove it.
    #[prost(bool, tag = "5")]
    pub remove: bool,
}

/// Most closes in one request: one bit each in its reply record.
pub const CLOSES_MAX: usize = 64;

/// Most changes in a [`BatchReq`].
pub const BATCH_MAX: usize = 64;

/// Body of `MdsBatch`: changes of metadata write-back, in their order, 1 to [`BATCH_MAX`] of them, or none with
/// `gives_back`. They are one change of the target, with one transno and one reply record; each of them takes effect or fails by itself.
#[derive(Clone, PartialEq, Message)]
pub struct BatchReq {
    /// One [`ReintReq`] after the other, each behind its length (varint): a `Setattr`, `Create` or `Unlink`. One without
    /// `cred` is on behalf of whom the one before it is. Locks that are wanted on a new object are granted in any case, the
    /// one on its data as PW, the one on its entries as EX.
    #[prost(bytes = "bytes", tag = "1")]
    pub changes: Bytes,
    /// There are no changes, and the client needs the room that it was promised no more. Since version 0.2.0.
    #[prost(bool, tag = "2")]
    pub gives_back: bool,
}

impl BatchReq {
    /// Puts a change behind those that there are.
    pub fn push(changes: &mut Vec<u8>, change: &ReintReq) {
        let written = change.encode_length_delimited(changes);
        debug_assert!(written.is_ok(), "a vector grows");
    }

    /// The changes, in order; an error is the last.
    pub fn iter(&self) -> impl Iterator<Item = Result<ReintReq, prost::DecodeError>> {
        super::one_by_one(&self.changes)
    }
}

/// Body of the reply to `MdsBatch`.
#[derive(Clone, PartialEq, Message)]
pub struct BatchRep {
    /// One for each change, in their order.
    #[prost(message, repeated, tag = "1")]
    pub results: Vec<BatchResult>,
    /// As [`super::ConnectRep::batch_room`], from now on.
    #[prost(uint32, tag = "2")]
    pub room: u32,
}

/// What became of one change of a [`BatchReq`].
#[derive(Clone, PartialEq, Message)]
pub struct BatchResult {
    /// 0, or a negative errno. Of a change that failed and whose answer was lost with the server's memory: `EIO`.
    #[prost(sint32, tag = "1")]
    pub status: i32,
    /// Handle of the lock on the new object; 0: there is none.
    #[prost(uint64, tag = "2")]
    pub object_handle: u64,
    /// Of the lock on its entries.
    #[prost(uint64, tag = "3")]
    pub entries_handle: u64,
    /// Of the lock on its data.
    #[prost(uint64, tag = "4")]
    pub data_handle: u64,
    /// Of a new regular file.
    #[prost(message, optional, tag = "5")]
    pub layout: Option<Layout>,
}

/// Body of `MdsClose`: open files that programs have closed, 1 to [`CLOSES_MAX`] of them. One change: all take effect.
#[derive(Clone, PartialEq, Message)]
pub struct CloseReq {
    /// Which.
    #[prost(message, repeated, tag = "4")]
    pub closes: Vec<Close>,
}

/// One of the open files of a [`CloseReq`].
#[derive(Clone, PartialEq, Message)]
pub struct Close {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// The handle. 0: the server was not told of the open, and only the atime is to be kept.
    #[prost(uint64, tag = "2")]
    pub handle: u64,
    /// A new atime, if it moved (relatime); 0 if not.
    #[prost(sint64, tag = "3")]
    pub atime_ns: i64,
}

/// Body of the reply to `MdsClose`: the closes of which there is something to tell. All others were done.
#[derive(Clone, PartialEq, Message)]
pub struct CloseRep {
    /// What.
    #[prost(message, repeated, tag = "1")]
    pub results: Vec<CloseResult>,
}

/// What became of one close.
#[derive(Clone, PartialEq, Message)]
pub struct CloseResult {
    /// Which, counted from 0 in the request.
    #[prost(uint32, tag = "1")]
    pub index: u32,
    /// 0, or a negative errno. `ESTALE`: the server does not know the handle, which means that it is closed.
    #[prost(sint32, tag = "2")]
    pub status: i32,
    /// The object is gone: it had no name any more, and nobody has it open now. The client's locks on it went with it.
    #[prost(bool, tag = "3")]
    pub destroyed: bool,
}

/// Body of `MdsReaddir`.
#[derive(Clone, PartialEq, Message)]
pub struct ReaddirReq {
    /// The directory.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// Entries after this cookie; 0 from the start. `.` and `..` are the client's.
    #[prost(uint64, tag = "2")]
    pub after: u64,
    /// About how many bytes the reply may have.
    #[prost(uint32, tag = "3")]
    pub max_bytes: u32,
    /// With attributes of each entry.
    #[prost(bool, tag = "4")]
    pub plus: bool,
    /// PR UPDATE lock on the directory; with `plus` no locks on the entries are given in this version's readdir.
    #[prost(message, optional, tag = "5")]
    pub want: Option<WantLocks>,
    /// On whose behalf.
    #[prost(message, optional, tag = "6")]
    pub cred: Option<Cred>,
    /// First cookie of a run of client lock cookies for the entries of a `plus` listing (entry i gets this + i); 0: none.
    #[prost(uint64, tag = "7")]
    pub entry_cookies: u64,
}

/// One directory entry.
#[derive(Clone, PartialEq, Message)]
pub struct DirEntry {
    /// The name.
    #[prost(bytes = "bytes", tag = "1")]
    pub name: Bytes,
    /// The object.
    #[prost(message, required, tag = "2")]
    pub fid: Fid,
    /// Type: the `S_IFMT` bits of the mode, shifted right by 12 (`DT_*`).
    #[prost(uint32, tag = "3")]
    pub kind: u32,
    /// Stable while the entry exists; rises along the listing.
    #[prost(uint64, tag = "4")]
    pub cookie: u64,
    /// With `plus`.
    #[prost(message, optional, tag = "5")]
    pub attr: Option<Attr>,
    /// With `plus` and `entry_cookies`: the lock that covers `attr`, if it could be granted.
    #[prost(message, optional, tag = "6")]
    pub lock: Option<LockGrant>,
}

/// Body of the reply to `MdsReaddir`.
#[derive(Clone, PartialEq, Message)]
pub struct ReaddirRep {
    /// Entries in the order of their cookies.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<DirEntry>,
    /// No entry follows.
    #[prost(bool, tag = "2")]
    pub end: bool,
    /// Locks granted.
    #[prost(message, repeated, tag = "3")]
    pub locks: Vec<LockGrant>,
    /// The directory.
    #[prost(message, optional, tag = "4")]
    pub attr: Option<Attr>,
}

/// Body of `MdsGetxattr`: the value of `name`, or the list of names if it is empty.
#[derive(Clone, PartialEq, Message)]
pub struct GetxattrReq {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// Full name; empty asks for the list.
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
    /// On whose behalf.
    #[prost(message, optional, tag = "3")]
    pub cred: Option<Cred>,
    /// Give all names and values: the client caches them under its XATTR lock.
    #[prost(bool, tag = "4")]
    pub all: bool,
    /// Locks wanted (object_cookie).
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
    /// The one asked for, all names (values empty), or all with values.
    #[prost(message, repeated, tag = "1")]
    pub xattrs: Vec<Xattr>,
    /// Locks granted.
    #[prost(message, repeated, tag = "2")]
    pub locks: Vec<LockGrant>,
}

/// Body of `MdsSync`: answered when everything that this client was told is durable.
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
    /// Bytes that nothing uses.
    #[prost(uint64, tag = "2")]
    pub free: u64,
    /// Bytes that users may still write: `free` less reserve and grants.
    #[prost(uint64, tag = "3")]
    pub available: u64,
    /// Objects that could exist.
    #[prost(uint64, tag = "4")]
    pub files: u64,
    /// Objects that could still be made.
    #[prost(uint64, tag = "5")]
    pub files_free: u64,
    /// Object targets: the space now granted to the asking client, in bytes.
    #[prost(uint64, tag = "6")]
    pub grant: u64,
    /// Object targets: [`OST_DEGRADED`] or 0.
    #[prost(uint32, tag = "55")]
    pub state: u32,
    /// Object targets: the disk that the bytes are of. Targets with the same number share them; 0: not known, a disk of its own.
    #[prost(uint64, tag = "100")]
    pub disk: u64,
}

/// [`StatfsRep::state`]: the target is slower than it should be, new files avoid it.
pub const OST_DEGRADED: u32 = 1;

/// Body of `MdsFid2path`.
#[derive(Clone, PartialEq, Message)]
pub struct Fid2pathReq {
    /// The object.
    #[prost(message, required, tag = "1")]
    pub fid: Fid,
    /// On whose behalf.
    #[prost(message, optional, tag = "2")]
    pub cred: Option<Cred>,
}

/// Body of the reply to `MdsFid2path`.
#[derive(Clone, PartialEq, Message)]
pub struct Fid2pathRep {
    /// One path for each link, from the root, without a leading slash; the root itself is empty.
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub paths: Vec<Bytes>,
}
