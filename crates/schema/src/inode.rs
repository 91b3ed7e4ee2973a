//! Inodes, and records for values that are too large for an inode.
//!
//! An inode's key is its local inode number, `region << 20 | n`. A directory owns a region, and another when it is full, from
//! which its children get their numbers. So the inodes of a directory lie together, whichever client made them. The number is
//! only a place. The identity is the FID, which the inode carries (Lustre's LMA) and from which `st_ino` is computed.

use crate::links::LinkEa;
use crate::record::{BadRecord, Record, rest};
use bytes::Bytes;
use prost::{Message, encoding};
use proto::Fid;
use proto::msg::{Attr, DirDefault, Layout, Lmv, Lvb, Stripe};
use rules::mode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use rules::{Object, acl};
use store::{Key, KeyRange, Value};

/// A region has two to the power of this many numbers.
pub const REGION_BITS: u32 = 20;

/// Local inode number of the root directory.
pub const ROOT_INO: u64 = 1;
/// The local inode numbers of `.lustre`, `.lustre/fid` and `.lustre/lost+found`. No directory has the region of these numbers.
pub const DOT_LUSTRE_INO: u64 = 2;
/// See [`DOT_LUSTRE_INO`].
pub const DOT_LUSTRE_FID_INO: u64 = 3;
/// See [`DOT_LUSTRE_INO`].
pub const LOST_FOUND_INO: u64 = 4;

/// An object of the namespace, as it is in memory. The encoding on the medium is more compact.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Inode {
    /// The identity of the object.
    pub fid: Fid,
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Link count.
    pub nlink: u32,
    /// Device number of a device node.
    pub rdev: u64,
    /// Size in bytes; 0 for files whose data is on object targets.
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    /// Last access, in nanoseconds since 1970.
    pub atime_ns: i64,
    /// Last change of the data, or the time that was set explicitly, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// When the mtime was set to a time other than the current one; 0: the mtime is the last change of the data.
    pub mtime_set_ns: i64,
    /// Last change of data or attributes, in nanoseconds since 1970.
    pub ctime_ns: i64,
    /// Creation, in nanoseconds since 1970.
    pub btime_ns: i64,
    /// Transno of the last change.
    pub version: u64,
    /// Regular files: the location of the data. Directories: the default for new files.
    pub layout: Option<Layout>,
    /// The object's names.
    pub links: LinkEa,
    /// Extended attributes, in the order in which they were added.
    pub xattrs: Vec<InodeXattr>,
    /// Symbolic links: the target.
    pub symlink: Bytes,
    /// Directories: the state of the entries.
    pub dir: DirState,
    /// Resident files: a client was about to copy the data to object targets, so there may be objects.
    pub leaving: bool,
    /// The first object number that the file has never used; 0: the one after its layout.
    pub next_object: u32,
    /// Striped directories and their stripes: the layout.
    pub lmv: Option<Box<Lmv>>,
    /// Directories: the default for new directories.
    pub dir_default: Option<Box<DirDefault>>,
}

/// The state of a directory's entries.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct DirState {
    /// The number of names.
    #[prost(uint64, tag = "1")]
    pub entries: u64,
    /// Local inode number of the next child; 0 if it owns no region yet.
    #[prost(uint64, tag = "2")]
    pub next_ino: u64,
    /// The number of tombstones.
    #[prost(uint64, tag = "3")]
    pub tombstones: u64,
}

/// An extended attribute of an inode.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct InodeXattr {
    /// Full name.
    #[prost(bytes = "bytes", tag = "1")]
    pub name: Bytes,
    /// Value, unless it is large.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
    /// The value is a [`LargeXattr`] record.
    #[prost(bool, tag = "3")]
    pub large: bool,
}

/// An object of the namespace. Times are relative to the ctime, and a link count of 1 is left out, so that an ordinary
/// file takes few bytes.
#[derive(Clone, PartialEq, Message)]
struct Body {
    /// FID: sequence.
    #[prost(uint64, tag = "1")]
    seq: u64,
    /// FID: object number; the version is 0.
    #[prost(uint32, tag = "2")]
    oid: u32,
    /// Type and permission bits, as in `st_mode`.
    #[prost(uint32, tag = "3")]
    mode: u32,
    /// Owner.
    #[prost(uint32, tag = "4")]
    uid: u32,
    /// Group.
    #[prost(uint32, tag = "5")]
    gid: u32,
    /// `nlink` - 1.
    #[prost(sint64, tag = "6")]
    more_links: i64,
    /// Device number of a device node.
    #[prost(uint64, tag = "7")]
    rdev: u64,
    /// Bytes; 0 for files whose data is on object targets.
    #[prost(uint64, tag = "8")]
    size: u64,
    /// Units of 512 bytes.
    #[prost(uint64, tag = "9")]
    blocks: u64,
    /// Nanoseconds since 1970.
    #[prost(sfixed64, tag = "10")]
    ctime_ns: i64,
    /// atime minus ctime (wrapping).
    #[prost(sint64, tag = "11")]
    atime_after_ctime_ns: i64,
    /// mtime minus ctime (wrapping).
    #[prost(sint64, tag = "12")]
    mtime_after_ctime_ns: i64,
    /// Birth time minus ctime (wrapping).
    #[prost(sint64, tag = "13")]
    btime_after_ctime_ns: i64,
    /// Transno of the last change.
    #[prost(uint64, tag = "14")]
    version: u64,
    /// Regular files: where the data is. Directories: the default for new files.
    #[prost(message, optional, tag = "15")]
    layout: Option<Layout>,
    /// Its names.
    #[prost(message, optional, tag = "16")]
    links: Option<LinkEa>,
    /// Extended attributes, in the order in which they were added.
    #[prost(message, repeated, tag = "17")]
    xattrs: Vec<InodeXattr>,
    /// Symbolic links: the target path.
    #[prost(bytes = "bytes", tag = "18")]
    symlink: Bytes,
    /// Directories only.
    #[prost(message, optional, tag = "19")]
    dir: Option<DirState>,
    /// Resident files: a client was about to copy the data to object targets, so there may be objects.
    #[prost(bool, tag = "20")]
    leaving: bool,
    /// Time at which the mtime was set explicitly, minus ctime; absent if it never was.
    #[prost(sint64, optional, tag = "21")]
    mtime_set_after_ctime_ns: Option<i64>,
    /// Striped directories and their stripes: the layout.
    #[prost(message, optional, boxed, tag = "22")]
    lmv: Option<Box<Lmv>>,
    /// Directories: the default for new directories. Since version 0.3.0; earlier ones drop it when they change the directory.
    #[prost(message, optional, boxed, tag = "23")]
    dir_default: Option<Box<DirDefault>>,
    /// First object number of the file that was never used, nor any above it. 0: the one after its layout.
    #[prost(uint32, tag = "90")]
    next_object: u32,
}

impl Inode {
    /// Type bits of the mode.
    pub fn kind(&self) -> u32 {
        self.mode & S_IFMT
    }

    /// Type as in `DT_*`, for entries.
    pub fn entry_kind(&self) -> u32 {
        self.kind() >> 12
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == S_IFDIR
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == S_IFREG
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind() == S_IFLNK
    }

    /// Whether it is a regular file whose data is on the metadata target.
    pub fn is_resident(&self) -> bool {
        self.is_file() && self.layout.as_ref().is_none_or(|layout| layout.resident)
    }

    /// The parent of a directory (`..`).
    pub fn parent(&self) -> Fid {
        match self.links.links.first() {
            Some(link) if self.is_dir() => link.parent,
            _ => Fid::ROOT,
        }
    }

    /// The directory that programs see: of a stripe its master, otherwise the object itself.
    pub fn master(&self) -> Fid {
        self.lmv.as_ref().and_then(|lmv| lmv.master).unwrap_or(self.fid)
    }

    /// The stripes of a striped directory, itself first. Empty for anything else, also for its other stripes.
    pub fn stripes(&self) -> &[Stripe] {
        self.lmv.as_ref().map_or(&[], |lmv| &lmv.stripes)
    }

    /// The version of the layout of a striped directory, or of a stripe; 0: it has never been striped.
    pub fn layout_version(&self) -> u32 {
        self.lmv.as_ref().map_or(0, |lmv| lmv.version)
    }

    /// The layout of a directory or stripe, if names move from the stripes of the former one to those of this one.
    pub fn moving(&self) -> Option<&Lmv> {
        self.lmv.as_deref().filter(|lmv| lmv.is_moving())
    }

    /// The attributes that clients get.
    pub fn attr(&self) -> Attr {
        Attr {
            fid: self.fid,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            nlink: self.nlink,
            rdev: self.rdev,
            size: self.size,
            blocks: self.blocks,
            atime_ns: self.atime_ns,
            mtime_ns: self.mtime_ns,
            ctime_ns: self.ctime_ns,
            btime_ns: self.btime_ns,
            version: self.version,
            layout: self.layout.clone(),
            has_xattrs: !self.xattrs.is_empty(),
            mtime_set_ns: self.mtime_set_ns,
            lmv: self.lmv.clone(),
            dir_default: self.dir_default.clone(),
        }
    }

    /// Size and times of the data, as in lock value blocks. The ctime in it is the time at which the mtime got its value.
    pub fn lvb(&self) -> Lvb {
        let attr = Attr { mtime_ns: self.mtime_ns, mtime_set_ns: self.mtime_set_ns, ..Attr::default() };
        Lvb {
            size: self.size,
            blocks: self.blocks,
            atime_ns: self.atime_ns,
            mtime_ns: self.mtime_ns,
            ctime_ns: attr.data_changed_ns(),
        }
    }

    /// The object that the rules work on, without its access list.
    fn without_list(&self) -> Object<'static> {
        Object {
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            nlink: self.nlink,
            atime_ns: self.atime_ns,
            mtime_ns: self.mtime_ns,
            mtime_set_ns: self.mtime_set_ns,
            ctime_ns: self.ctime_ns,
            access_list: None,
        }
    }

    /// See [`Object::changed`].
    pub fn changed(&mut self, now_ns: i64) -> i64 {
        let mut object = self.without_list();
        let at = object.changed(now_ns);
        self.take(&object);
        at
    }

    /// See [`Object::content_changed`].
    pub fn content_changed(&mut self, now_ns: i64) {
        let mut object = self.without_list();
        object.content_changed(now_ns);
        self.take(&object);
    }

    /// Takes over the values that the rules changed, all but the access list.
    pub fn take(&mut self, object: &Object<'_>) {
        (self.mode, self.uid, self.gid, self.nlink) = (object.mode, object.uid, object.gid, object.nlink);
        (self.atime_ns, self.ctime_ns) = (object.atime_ns, object.ctime_ns);
        (self.mtime_ns, self.mtime_set_ns) = (object.mtime_ns, object.mtime_set_ns);
    }

    /// The value of an extended attribute that is stored in the inode.
    pub fn xattr(&self, name: &[u8]) -> Option<&Bytes> {
        self.xattrs.iter().find(|xattr| xattr.name == name).map(|xattr| &xattr.value)
    }

    /// Takes over the times of a change of data, unless the mtime got its value later.
    pub fn take_data_times(&mut self, lvb: &Lvb) {
        let mut attr = Attr {
            mtime_ns: self.mtime_ns,
            mtime_set_ns: self.mtime_set_ns,
            ctime_ns: self.ctime_ns,
            ..Attr::default()
        };
        attr.take_data_times(lvb);
        (self.mtime_ns, self.mtime_set_ns, self.ctime_ns) = (attr.mtime_ns, attr.mtime_set_ns, attr.ctime_ns);
    }
}

impl<'a> From<&'a Inode> for Object<'a> {
    fn from(inode: &'a Inode) -> Object<'a> {
        Object { access_list: inode.xattr(acl::ACCESS).map(|value| &value[..]), ..inode.without_list() }
    }
}

/// Most inodes take at most this many bytes.
const ENCODED_USUALLY: usize = 512;

impl Inode {
    /// Encodes as [`Body`] does, but without copying into one first: inodes are encoded more often than anything else.
    fn encode_body(&self, to: &mut Vec<u8>) {
        let after_ctime = |time: i64| zigzag(time.wrapping_sub(self.ctime_ns));
        number(1, self.fid.seq, to);
        number(2, self.fid.oid.into(), to);
        number(3, self.mode.into(), to);
        number(4, self.uid.into(), to);
        number(5, self.gid.into(), to);
        number(6, zigzag(i64::from(self.nlink) - 1), to);
        number(7, self.rdev, to);
        number(8, self.size, to);
        number(9, self.blocks, to);
        if self.ctime_ns != 0 {
            encoding::sfixed64::encode(10, &self.ctime_ns, to);
        }
        number(11, after_ctime(self.atime_ns), to);
        number(12, after_ctime(self.mtime_ns), to);
        number(13, after_ctime(self.btime_ns), to);
        number(14, self.version, to);
        if let Some(layout) = &self.layout {
            encoding::message::encode(15, layout, to);
        }
        if !self.links.links.is_empty() || self.links.overflow {
            encoding::message::encode(16, &self.links, to);
        }
        encoding::message::encode_repeated(17, &self.xattrs, to);
        if !self.symlink.is_empty() {
            encoding::bytes::encode(18, &self.symlink, to);
        }
        if self.dir != DirState::default() {
            encoding::message::encode(19, &self.dir, to);
        }
        if self.leaving {
            encoding::bool::encode(20, &true, to);
        }
        if self.mtime_set_ns != 0 {
            // Also if it equals the ctime: an optional field is written even if its value is 0.
            encoding::uint64::encode(21, &after_ctime(self.mtime_set_ns), to);
        }
        if let Some(lmv) = &self.lmv {
            encoding::message::encode(22, &**lmv, to);
        }
        if let Some(default) = &self.dir_default {
            encoding::message::encode(23, &**default, to);
        }
        number(90, self.next_object.into(), to);
    }
}

/// Encodes a number; 0 is left out.
fn number(tag: u32, value: u64, to: &mut Vec<u8>) {
    if value != 0 {
        encoding::uint64::encode(tag, &value, to);
    }
}

/// The encoding of `sint64`.
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The key of a record that is identified by a local inode number.
fn ino_key(table: u8, ino: u64) -> Key {
    Key::table(table).u64(ino)
}

impl Record for Inode {
    const TABLE: u8 = 0x10;
    const KIND: &'static str = "inode";
    type Id = u64;

    fn key(ino: &u64) -> Key {
        ino_key(Self::TABLE, *ino)
    }

    fn parse_key(key: &[u8]) -> Option<u64> {
        rest(key, Self::TABLE).map(u64::from_be_bytes)
    }

    fn encode_record(&self) -> Value {
        let mut body = Vec::with_capacity(ENCODED_USUALLY);
        self.encode_body(&mut body);
        Value::copy_from_slice(&body)
    }

    fn decode_record(body: &Value) -> Result<Inode, BadRecord> {
        let bad = |what: String| BadRecord { kind: Self::KIND, what };
        // Parts of the body that the inode keeps share the memory of `body`.
        let body = Body::decode(body.clone()).map_err(|e| bad(e.to_string()))?;
        let at = |after_ctime: i64| body.ctime_ns.wrapping_add(after_ctime);
        let nlink = body.more_links.checked_add(1).and_then(|n| u32::try_from(n).ok());
        let links = body.links.unwrap_or_default();
        links.check()?;
        Ok(Inode {
            fid: Fid::new(body.seq, body.oid),
            mode: body.mode,
            uid: body.uid,
            gid: body.gid,
            nlink: nlink.ok_or_else(|| bad(format!("link count {} + 1", body.more_links)))?,
            rdev: body.rdev,
            size: body.size,
            blocks: body.blocks,
            atime_ns: at(body.atime_after_ctime_ns),
            mtime_ns: at(body.mtime_after_ctime_ns),
            mtime_set_ns: body.mtime_set_after_ctime_ns.map_or(0, at),
            ctime_ns: body.ctime_ns,
            btime_ns: at(body.btime_after_ctime_ns),
            version: body.version,
            layout: body.layout,
            links,
            xattrs: body.xattrs,
            symlink: body.symlink,
            dir: body.dir.unwrap_or_default(),
            leaving: body.leaving,
            next_object: body.next_object,
            lmv: body.lmv,
            dir_default: body.dir_default,
        })
    }
}

/// The encoding methods of [`Record`] for a record that is plain bytes.
macro_rules! raw_body {
    () => {
        fn encode_record(&self) -> Value {
            self.0.clone()
        }
        fn decode_record(body: &Value) -> Result<Self, BadRecord> {
            Ok(Self(body.clone()))
        }
    };
}

/// The value of an extended attribute that is too large for the inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LargeXattr(pub Bytes);

impl LargeXattr {
    /// All large values of an inode.
    pub fn of_inode(ino: u64) -> KeyRange {
        KeyRange::prefix(ino_key(Self::TABLE, ino))
    }
}

impl Record for LargeXattr {
    const TABLE: u8 = 0x11;
    const KIND: &'static str = "large extended attribute";
    /// Local inode number and full name.
    type Id = (u64, Bytes);

    fn key((ino, name): &(u64, Bytes)) -> Key {
        ino_key(Self::TABLE, *ino).bytes(name)
    }

    fn parse_key(key: &[u8]) -> Option<(u64, Bytes)> {
        let (number, name) = key.strip_prefix(&[Self::TABLE])?.split_at_checked(8)?;
        Some((u64::from_be_bytes(number.try_into().ok()?), Bytes::copy_from_slice(name)))
    }

    raw_body!();
}

/// The data of a resident file. If it is shorter than the file, the rest is a hole.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SmallData(pub Bytes);

impl Record for SmallData {
    const TABLE: u8 = 0x12;
    const KIND: &'static str = "small file data";
    type Id = u64;

    fn key(ino: &u64) -> Key {
        ino_key(Self::TABLE, *ino)
    }

    fn parse_key(key: &[u8]) -> Option<u64> {
        rest(key, Self::TABLE).map(u64::from_be_bytes)
    }

    raw_body!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::Link;

    #[test]
    fn an_inode_is_encoded_as_its_body_says() {
        let full = Inode {
            fid: Fid::new(0x2_0000_0400, 7),
            mode: S_IFREG | 0o644,
            uid: 1,
            gid: 2,
            nlink: 0,
            rdev: 3,
            size: 4,
            blocks: 5,
            atime_ns: -6,
            mtime_ns: 1_700_000_000_000_000_000,
            mtime_set_ns: 1_700_000_000_000_000_009,
            ctime_ns: 1_700_000_000_000_000_009,
            btime_ns: i64::MIN,
            version: u64::MAX,
            layout: Some(Layout { stripe_size: 1 << 20, osts: vec![3, 300], ..Layout::default() }),
            links: LinkEa {
                links: vec![Link { parent: Fid::ROOT, name: "x".into() }, Link { parent: Fid::ROOT, name: "y".into() }],
                overflow: true,
            },
            xattrs: vec![InodeXattr { name: "user.a".into(), value: "b".into(), large: false }, InodeXattr::default()],
            symlink: "there".into(),
            dir: DirState { entries: 1, next_ino: 2, tombstones: 3 },
            leaving: true,
            next_object: 300,
            lmv: Some(Box::new(Lmv {
                count: 2,
                stripes: vec![Stripe { fid: Fid::ROOT, mdt: 5 }, Stripe::default()],
                index: 300,
                ..Lmv::default()
            })),
            dir_default: Some(Box::new(DirDefault { count: -1, mdts: vec![0, 300], ..DirDefault::default() })),
        };
        let body = Body::decode(full.encode_record()).unwrap();
        assert_eq!(body.encode_to_vec(), full.encode_record());
        assert_eq!((body.mtime_set_after_ctime_ns, body.more_links), (Some(0), -1));
        assert_eq!(Inode::decode_record(&full.encode_record()), Ok(full));
        let empty = Inode { nlink: 1, ..Inode::default() };
        assert_eq!(empty.encode_record(), Body::default().encode_to_vec());
    }
}
