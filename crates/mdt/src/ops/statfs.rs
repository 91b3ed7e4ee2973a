//! Space and inodes.

use crate::Mdt;
use proto::Errno;
use proto::msg::StatfsRep;
use target::{Cx, Reply, Stop};

/// About what a file takes, in bytes.
const FILE_BYTES: u64 = 700;
/// Records of a file: entry, inode, object index.
const FILE_RECORDS: u64 = 3;

/// See the module. Objects are counted by the records that the store has.
pub fn statfs(mdt: &Mdt, cx: &mut Cx<'_>) -> Result<Reply, Stop> {
    let space = cx.space().ok_or(Errno::EAGAIN)?;
    Ok(Reply::new(&StatfsRep { grant: mdt.space_grants.of(cx.export()), ..figures(mdt, &space) }))
}

/// The target's space.
pub fn figures(mdt: &Mdt, space: &store::Space) -> StatfsRep {
    let used = space.records.div_ceil(FILE_RECORDS);
    let files_free = space.free / FILE_BYTES;
    StatfsRep {
        total: space.total,
        free: space.free.saturating_add(space.reserve).min(space.total),
        available: space.free.saturating_sub(mdt.space_grants.total()),
        files: used.saturating_add(files_free),
        files_free,
        ..StatfsRep::default()
    }
}
