//! The first records of a new metadata target.

use proto::Fid;
use proto::connect::DIR_SIZE;
use proto::msg::DirDefault;
use rules::mode::S_IFDIR;
use schema::inode::ROOT_INO;
use schema::{Inode, MdtState, Oi, Record};
use store::Batch;
use target::Format;

/// The root directory of a new file system.
#[derive(Clone, Default, Debug)]
pub struct Root {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its default for new directories, such as [`rules::placement::of_root`].
    pub dir_default: Option<DirDefault>,
}

/// The records of a new store. MDT0000 has the root directory, which is empty. The caller seals them with [`schema::formats`] and
/// commits them as group 1 of an empty engine.
pub fn format(format: &Format, root: &Root) -> Batch {
    let mut batch = target::format(format);
    let state = MdtState { next_region: 1, ..MdtState::default() };
    batch.put(MdtState::key(&()), state.encode_record());
    if format.name.index.0 != 0 {
        return batch;
    }
    let root = Inode {
        fid: Fid::ROOT,
        mode: S_IFDIR | 0o755,
        uid: root.uid,
        gid: root.gid,
        nlink: 2,
        size: DIR_SIZE,
        blocks: DIR_SIZE / 512,
        atime_ns: format.wall_ns,
        mtime_ns: format.wall_ns,
        ctime_ns: format.wall_ns,
        btime_ns: format.wall_ns,
        dir_default: root.dir_default.clone().map(Box::new),
        ..Inode::default()
    };
    batch.put(Inode::key(&ROOT_INO), root.encode_record());
    batch.put(Oi::key(&Fid::ROOT), Oi { ino: ROOT_INO }.encode_record());
    batch
}
