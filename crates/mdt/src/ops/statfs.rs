//! `statfs`: space and inodes of the target.

use crate::Mdt;
use proto::Errno;
use proto::msg::StatfsRep;
use target::{Cx, Reply, Stop};

/// About what a file takes on the medium, in bytes.
const FILE_BYTES: u64 = 700;
/// Records of a file: entry, inode, object index.
const FILE_RECORDS: u64 = 3;

/// Executes a statfs. The number of objects is estimated from the number of records in the store.
pub fn statfs(mdt: &Mdt, cx: &mut Cx<'_>) -> Result<Reply, Stop> {
    let space = cx.space().ok_or(Errno::EAGAIN)?;
    Ok(Reply::new(&StatfsRep { grant: mdt.space_grants.of(cx.export()), ..figures(mdt, &space) }))
}

/// The figures of a metadata target with this space.
pub fn figures(mdt: &Mdt, space: &store::Space) -> StatfsRep {
    let used = space.records.div_ceil(FILE_RECORDS);
    let files_free = space.free / FILE_BYTES;
    StatfsRep {
        total: space.total,
        free: space.free.saturating_add(space.reserve).min(space.total),
        available: space.free.saturating_sub(mdt.space_grants.total()),
        files: used.saturating_add(files_free),
        files_free,
        disk: space.disk,
        ..StatfsRep::default()
    }
}
