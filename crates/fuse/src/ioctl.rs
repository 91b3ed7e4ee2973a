//! The ioctls behind `lfs` verbs on a path, with input and output as bytes.
//!
//! They work on any file or directory of the mount, in containers and without root. The layout of each is fixed:
//! numbers little-endian, text without a terminator.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use bytes::{Buf, BufMut};
use proto::msg::{Layout, Pool};
use rustix::fs::{Mode, OFlags};
use rustix::ioctl;

mod directories;

pub(crate) use directories::parse_stripes;
pub use directories::{
    DirLayout, MERGING, MOVING, NewDirectory, SPLITTING, default_bytes, dir_default, dir_layout, dir_layout_head_at,
    parse_default, stripes_bytes,
};

/// The letter of our ioctl numbers.
const LETTER: u8 = 0xAD;

/// How a path is opened for an ioctl: without side effects and without blocking.
const OPEN: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Bytes that an ioctl passes in each direction.
pub const BUFFER: usize = 4096;
/// Of these, the most that a verb takes.
const INPUT_MAX: usize = BUFFER - 5;
/// The most that it gives.
pub(crate) const ANSWER_MAX: usize = BUFFER - 8;

type Block = [u8; BUFFER];

/// The verbs. The first byte of the block is the verb; the answer replaces the block: a status (i32, 0 or a
/// negative errno), a length (u32), and that many bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Verb {
    /// The path's FID as text.
    PathToFid = 1,
    /// In: FID as text. Out: paths, NUL after each.
    FidToPath = 2,
    /// Out: the layout, a prost body of [`proto::msg::Layout`]; nothing if there is none.
    GetLayout = 3,
    /// In: stripe size u32, count i32, first index i32, and the index of each listed target, u32.
    SetLayout = 4,
    /// In: nothing, or the number of the first target to report, u32. Out: lines `NAME TOTAL FREE AVAILABLE FILES FILES_FREE DISK`
    /// or `NAME error ERRNO`: all, or as many as fit.
    TargetSpace = 5,
    /// Out: the file system's name and the client's identity, as two lines.
    Identity = 6,
    /// Makes everything of the mount durable.
    Sync = 7,
    /// Moves the data to other objects. In: as [`Verb::SetLayoutInPool`].
    Migrate = 8,
    /// In: a pool's name, padded with NUL to 16 bytes; then as for `SetLayout`.
    SetLayoutInPool = 110,
    /// The layout of a file of the same mount that cannot be opened, for the superuser. In: its inode number, u64. Out: as for
    /// `GetLayout`.
    LayoutOf = 112,
    /// Makes a directory in this one, on metadata targets. In: the mode u32, the umask u32, the hash function i32, the number of runs
    /// u16; for each run of stripes on targets with consecutive indexes the first index and the length, u16 each; and the name. Out:
    /// its FID as text.
    MkdirOn = 113,
    /// In: nothing, or the inode number of another file of the same mount, u64. Out: the index of its metadata target, as text.
    MdtIndex = 114,
    /// Removes a name in this directory that leads to another metadata target, and leaves its object alone. In: the name.
    RemoveEntry = 115,
    /// In: the number of a stripe, u32. Out: nothing if the directory is not striped; otherwise its hash function u32, the version of the
    /// layout u32, the number of stripes u32, and for each stripe from that one on, as many as fit: the index of its metadata target u32,
    /// the sequence of its FID u64, and its number there u32.
    GetDirLayout = 116,
    /// Sets the default of this directory for new directories. In: 0; or 1 and the default, a prost body of
    /// [`proto::msg::DirDefault`].
    SetDirDefault = 117,
    /// In: nothing. Out: as the input of `SetDirDefault`.
    GetDirDefault = 118,
    /// Gives this directory other stripes. In: the hash function i32, 0 as before; their number u32; and the indexes of the metadata
    /// targets of those that it has more than before, u16 each.
    SetDirLayout = 119,
    /// In: nothing, or the name of a pool. Out: the names of all pools, or the ranges of indexes of that pool's object targets (`0-3`),
    /// one per line; `ENOENT` if there is no such pool.
    Pools = 111,
}

impl Verb {
    /// The verb of a number.
    pub fn from_raw(raw: u8) -> Option<Verb> {
        use Verb::{
            FidToPath, GetDirDefault, GetDirLayout, GetLayout, Identity, LayoutOf, MdtIndex, Migrate, MkdirOn,
            PathToFid, Pools, RemoveEntry, SetDirDefault, SetDirLayout, SetLayout, SetLayoutInPool, Sync, TargetSpace,
        };
        let all = [
            PathToFid,
            FidToPath,
            GetLayout,
            SetLayout,
            TargetSpace,
            Identity,
            Sync,
            Migrate,
            SetLayoutInPool,
            LayoutOf,
            Pools,
            MkdirOn,
            MdtIndex,
            RemoveEntry,
            GetDirLayout,
            SetDirDefault,
            GetDirDefault,
            SetDirLayout,
        ];
        all.into_iter().find(|verb| *verb as u8 == raw)
    }
}

/// The ioctl's number.
pub const COMMAND: u32 = ioctl::opcode::read_write::<Block>(LETTER, 1);

/// A request block.
pub fn request(verb: Verb, input: &[u8]) -> io::Result<Block> {
    let mut block = [0; BUFFER];
    let room = block.get_mut(5..5 + input.len()).ok_or(io::ErrorKind::InvalidInput)?;
    room.copy_from_slice(input);
    block[0] = verb as u8;
    block[1..5].copy_from_slice(&(input.len() as u32).to_le_bytes());
    Ok(block)
}

/// The verb and its input from a request block.
pub fn parse_request(mut block: &[u8]) -> Option<(Verb, &[u8])> {
    if block.len() < 5 {
        return None;
    }
    let verb = Verb::from_raw(block.get_u8())?;
    let length = block.get_u32_le() as usize;
    Some((verb, block.get(..length)?))
}

/// The input of [`Verb::SetLayout`].
pub fn wish(layout: &Layout) -> Vec<u8> {
    let mut input = Vec::with_capacity(12 + 4 * layout.osts.len());
    input.put_u32_le(layout.stripe_size);
    input.put_i32_le(layout.want_count);
    input.put_i32_le(layout.want_first);
    layout.osts.iter().for_each(|&ost| input.put_u32_le(ost));
    input
}

/// Parses the input made by [`wish`].
pub fn parse_wish(mut input: &[u8]) -> Option<Layout> {
    if input.len() < 12 || !input.len().is_multiple_of(4) {
        return None;
    }
    let (stripe_size, want_count, want_first) = (input.get_u32_le(), input.get_i32_le(), input.get_i32_le());
    let mut osts = Vec::with_capacity(input.len() / 4);
    while input.has_remaining() {
        osts.push(input.get_u32_le());
    }
    Some(Layout { stripe_size, want_count, want_first, osts, ..Layout::default() })
}

/// Bytes of a pool's name in the input.
const POOL_BYTES: usize = Pool::NAME_MAX + 1;

/// The input of [`Verb::SetLayoutInPool`] and [`Verb::Migrate`].
pub fn wish_in_pool(layout: &Layout) -> Vec<u8> {
    let mut input: Vec<u8> = layout.pool.bytes().take(POOL_BYTES).collect();
    input.resize(POOL_BYTES, 0);
    input.extend(wish(layout));
    input
}

/// Parses the input made by [`wish_in_pool`].
pub fn parse_wish_in_pool(input: &[u8]) -> Option<Layout> {
    let (pool, rest) = input.split_at_checked(POOL_BYTES)?;
    let name = pool.iter().position(|&byte| byte == 0).map_or(pool, |end| &pool[..end]);
    let pool = std::str::from_utf8(name).ok()?.to_owned();
    Some(Layout { pool, ..parse_wish(rest)? })
}

/// An answer block; `EOVERFLOW` if the result does not fit.
pub fn answer(result: Result<&[u8], proto::Errno>) -> Vec<u8> {
    let (status, bytes) = match result {
        Ok(bytes) if bytes.len() <= ANSWER_MAX => (0, bytes),
        Ok(_) => (-proto::Errno::EOVERFLOW.raw(), &[][..]),
        Err(error) => (-error.raw(), &[][..]),
    };
    let mut block = Vec::with_capacity(BUFFER);
    block.put_i32_le(status);
    block.put_u32_le(bytes.len() as u32);
    block.put_slice(bytes);
    block.resize(BUFFER, 0);
    block
}

/// Makes everything durable that was done through the mount of `path`. syncfs(2) makes the kernel start to write back its pages, but
/// it neither waits for that nor sends a request to make them durable.
///
/// # Errors
/// Those of [`ask`], and errors of write-back.
pub fn sync(path: &Path) -> io::Result<()> {
    let file = rustix::fs::open(path, OPEN, Mode::empty())?;
    ask(path, Verb::Sync, &[])?;
    rustix::fs::syncfs(file)?;
    ask(path, Verb::Sync, &[]).map(drop)
}

/// Sends a verb to the mount of `path`.
///
/// # Errors
/// Those of opening the path and of the verb; `ENOTTY` if it is not on an Adamant mount.
pub fn ask(path: &Path, verb: Verb, input: &[u8]) -> io::Result<Vec<u8>> {
    ask_fd(rustix::fs::open(path, OPEN, Mode::empty())?.as_fd(), verb, input)
}

/// Like [`ask`], for a name in an open directory. A symbolic link is not followed.
///
/// # Errors
/// As [`ask`].
pub fn ask_at(directory: BorrowedFd<'_>, name: &OsStr, verb: Verb, input: &[u8]) -> io::Result<Vec<u8>> {
    let file = rustix::fs::openat(directory, name, OPEN | OFlags::NOFOLLOW, Mode::empty())?;
    ask_fd(file.as_fd(), verb, input)
}

/// Like [`ask`], for an open file.
///
/// # Errors
/// As [`ask`].
pub fn ask_fd(file: BorrowedFd<'_>, verb: Verb, input: &[u8]) -> io::Result<Vec<u8>> {
    let mut block = request(verb, input)?;
    #[allow(unsafe_code)]
    // SAFETY: the opcode carries the direction and the size of the block that the updater points to.
    unsafe {
        ioctl::ioctl(file, ioctl::Updater::<COMMAND, Block>::new(&mut block))?;
    }
    let mut reply = &block[..];
    let status = reply.get_i32_le();
    let length = reply.get_u32_le() as usize;
    if status < 0 {
        return Err(io::Error::from_raw_os_error(-status));
    }
    reply.get(..length).map(<[u8]>::to_vec).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_with_a_pool_round_trips() {
        let layout = Layout { want_first: -1, pool: "fast".into(), osts: vec![1, 2], ..Layout::default() };
        assert_eq!(parse_wish_in_pool(&wish_in_pool(&layout)), Some(layout.clone()));
        let bare = Layout { pool: String::new(), ..layout };
        assert_eq!(parse_wish_in_pool(&wish_in_pool(&bare)), Some(bare));
        assert_eq!(parse_wish_in_pool(&[0; 15]), None);
        assert_eq!(parse_wish_in_pool(&[0xff; 40]), None);
    }

    #[test]
    fn blocks_round_trip_and_bad_ones_are_refused() {
        let block = request(Verb::FidToPath, b"[0x200000007:0x1:0x0]").unwrap();
        assert_eq!(parse_request(&block), Some((Verb::FidToPath, &b"[0x200000007:0x1:0x0]"[..])));
        assert_eq!(parse_request(&[9; 16]), None);
        assert_eq!(parse_request(&[1, 255, 255, 255, 255, 0]), None);
        assert!(request(Verb::FidToPath, &[0; BUFFER]).is_err());
        assert_eq!(answer(Ok(b"abc"))[..11], [0, 0, 0, 0, 3, 0, 0, 0, b'a', b'b', b'c']);
        assert_eq!(answer(Ok(&[0; BUFFER]))[..4], (-75i32).to_le_bytes());
    }
}
