//! Data of resident files: the object operations, on stripe 0 of a file whose data is on this target.
//!
//! The sender has a DOM lock, or the target first calls back conflicting locks of other clients. A file that is not, or no
//! longer, resident gives `ESTALE`, and the client reads the layout again.

use crate::tree::{self, Node};
use crate::{Mdt, grants, resident};
use bytes::Bytes;
use proto::Errno;
use proto::connect::BRW_SIZE_MAX;
use proto::msg::{
    LockMode, Lvb, ObjGetattrReq, ObjSetattrReq, ObjSyncReq, ObjectId, ObjectStateRep, Policy, PunchKind, PunchReq,
    ReadRep, ReadReq, Resource, SeekRep, SeekReq, WriteReq, bits,
};
use rules::attrs::SIZE_MAX;
use schema::SmallData;
use target::{Cx, Reply, ShareKey, Stop};

/// The resident file of a request.
fn file(cx: &mut Cx<'_>, object: &ObjectId) -> Result<Node, Stop> {
    let node = tree::node(cx, object.fid)?;
    if object.stripe != 0 || !node.inode.is_resident() {
        return Err(Errno::ESTALE.into());
    }
    Ok(node)
}

/// Makes sure that no other client holds a lock on the data that conflicts with `mode`. If the request names a lock, the
/// sender must hold one that suffices.
fn under_lock(cx: &mut Cx<'_>, object: &ObjectId, lock: u64, mode: LockMode) -> Result<(), Stop> {
    if cx.is_replay() {
        return Ok(());
    }
    let resource = Resource::inode(object.fid);
    if lock == 0 {
        return cx.revoke(resource, mode, Policy::Bits(bits::DOM));
    }
    let enough = |held: LockMode| match mode {
        LockMode::Pr => matches!(held, LockMode::Pr | LockMode::Pw | LockMode::Ex),
        _ => matches!(held, LockMode::Pw | LockMode::Ex),
    };
    let mut held = cx.locks().held_on(cx.export(), &resource);
    let has_it = held.any(|held| enough(held.mode) && matches!(held.policy, Policy::Bits(has) if has & bits::DOM != 0));
    if has_it { Ok(()) } else { Err(Errno::ESTALE.into()) }
}

fn bytes_of(cx: &mut Cx<'_>, node: &Node) -> Result<Bytes, Stop> {
    if node.inode.blocks == 0 {
        return Ok(Bytes::new());
    }
    match cx.get::<SmallData>(&node.ino)? {
        Some(SmallData(data)) => Ok(data),
        None => {
            cx.log(target::LogLevel::Error, format!("the data of file {} is missing: run lfsck", node.fid()));
            Err(Errno::EIO.into())
        }
    }
}

/// Writes the bytes of a file that now has `size`. The caller writes the inode.
fn put_bytes(cx: &mut Cx<'_>, node: &mut Node, data: Bytes, size: u64) {
    if !data.is_empty() {
        node.inode.blocks = resident::blocks(&data);
        cx.put::<SmallData>(&node.ino, &SmallData(data));
    } else if node.inode.blocks > 0 {
        node.inode.blocks = 0;
        cx.delete::<SmallData>(&node.ino);
    }
    node.inode.size = size;
}

/// Sets the size of a resident file. The caller writes the inode.
pub fn resize(cx: &mut Cx<'_>, node: &mut Node, size: u64) -> Result<(), Stop> {
    if size < node.inode.size {
        cx.truncated(Resource::inode(node.fid()));
        if node.inode.blocks > 0 {
            let data = if size == 0 { Bytes::new() } else { bytes_of(cx, node)? };
            let data = resident::truncate(&data, size);
            put_bytes(cx, node, data, size);
        }
    }
    node.inode.size = size;
    Ok(())
}

fn set_times(node: &mut Node, lvb: Option<&Lvb>) {
    if let Some(lvb) = lvb {
        node.inode.take_data_times(lvb);
    }
}

fn state(mdt: &Mdt, cx: &Cx<'_>, node: &Node) -> Reply {
    let grant = mdt.space_grants.of(cx.export());
    Reply::new(&ObjectStateRep { lvb: Some(grants::lvb(&node.inode)), grant })
}

/// `ObjRead`.
pub fn read(cx: &mut Cx<'_>, request: &ReadReq) -> Result<Reply, Stop> {
    let node = file(cx, &request.object)?;
    under_lock(cx, &request.object, request.lock, LockMode::Pr)?;
    let data = bytes_of(cx, &node)?;
    let data = resident::read(&data, node.inode.size, request.offset, request.length.min(BRW_SIZE_MAX));
    Ok(Reply::new(&ReadRep { lvb: Some(grants::lvb(&node.inode)) }).with_bulk(data))
}

/// `ObjWrite`.
pub fn write(mdt: &mut Mdt, cx: &mut Cx<'_>, request: &WriteReq, new: &Bytes) -> Result<Reply, Stop> {
    let mut node = file(cx, &request.object)?;
    if new.len() > BRW_SIZE_MAX as usize {
        return Err(Errno::EINVAL.into());
    }
    let end = request.offset.checked_add(new.len() as u64).ok_or(Errno::EFBIG)?;
    mdt.check_growth(&node.inode, end)?;
    let mode = if request.lock == 0 { LockMode::Ex } else { LockMode::Pw };
    under_lock(cx, &request.object, request.lock, mode)?;
    cx.pre_version(0, node.inode.version)?;
    if !new.is_empty() {
        cx.wrote(Resource::inode(node.fid()), request.lvb.map_or(0, |lvb| lvb.size));
        let old = if request.offset == 0 && end >= node.inode.size { Bytes::new() } else { bytes_of(cx, &node)? };
        let data = resident::write(&old, request.offset, new).ok_or(Errno::ENOMEM)?;
        let size = node.inode.size.max(end);
        put_bytes(cx, &mut node, data, size);
    }
    set_times(&mut node, request.lvb.as_ref());
    mdt.note_space(cx);
    // The grant that a client claims when it reconnects does not include what its replays have spent.
    let paid = if cx.is_replay() { 0 } else { request.grant_used };
    mdt.space_grants.spend(cx.export(), new.len() as u64, paid);
    mdt.space_grants.raise(cx.export(), request.want_grant);
    finish(mdt, cx, node, request.sync)
}

/// `ObjPunch`.
pub fn punch(mdt: &mut Mdt, cx: &mut Cx<'_>, request: &PunchReq) -> Result<Reply, Stop> {
    let mut node = file(cx, &request.object)?;
    let kind = PunchKind::try_from(request.kind).map_err(|_| Errno::EINVAL)?;
    let end = request.start.checked_add(request.length).ok_or(Errno::EFBIG)?;
    let old_size = node.inode.size;
    let size = match kind {
        PunchKind::Truncate => request.start,
        PunchKind::Hole => old_size,
        PunchKind::Zero | PunchKind::Allocate if request.keep_size => old_size,
        PunchKind::Zero | PunchKind::Allocate => old_size.max(end),
    };
    if size > SIZE_MAX {
        return Err(Errno::EFBIG.into());
    }
    mdt.check_growth(&node.inode, size)?;
    let mode = if request.lock == 0 { LockMode::Ex } else { LockMode::Pw };
    under_lock(cx, &request.object, request.lock, mode)?;
    cx.pre_version(0, node.inode.version)?;
    match kind {
        PunchKind::Truncate => resize(cx, &mut node, size)?,
        PunchKind::Hole | PunchKind::Zero => {
            let data = bytes_of(cx, &node)?;
            put_bytes(cx, &mut node, resident::zero(&data, request.start, request.length), size);
        }
        // No space is reserved: the size of a resident file is limited.
        PunchKind::Allocate => node.inode.size = size,
    }
    set_times(&mut node, request.lvb.as_ref());
    finish(mdt, cx, node, false)
}

/// `ObjSetattr`: times of the data. Owner and group are attributes of the inode, not of the data.
pub fn setattr(mdt: &mut Mdt, cx: &mut Cx<'_>, request: &ObjSetattrReq) -> Result<Reply, Stop> {
    let mut node = file(cx, &request.object)?;
    cx.pre_version(0, node.inode.version)?;
    set_times(&mut node, request.lvb.as_ref());
    finish(mdt, cx, node, false)
}

fn finish(mdt: &mut Mdt, cx: &mut Cx<'_>, mut node: Node, sync: bool) -> Result<Reply, Stop> {
    cx.changed(ShareKey::object(node.fid()));
    node.put(cx);
    if sync {
        cx.hold_until_durable();
    }
    Ok(state(mdt, cx, &node))
}

/// `ObjGetattr`.
pub fn getattr(cx: &mut Cx<'_>, request: &ObjGetattrReq) -> Result<Reply, Stop> {
    let node = file(cx, &request.object)?;
    let lvb = grants::fresh_lvb(cx, &node.inode)?;
    Ok(Reply::new(&ObjectStateRep { lvb: Some(lvb), grant: 0 }))
}

/// `ObjSeek`.
pub fn seek(cx: &mut Cx<'_>, request: &SeekReq) -> Result<Reply, Stop> {
    let node = file(cx, &request.object)?;
    under_lock(cx, &request.object, 0, LockMode::Pr)?;
    let data = bytes_of(cx, &node)?;
    let offset = resident::seek(&data, node.inode.size, request.offset, request.hole).ok_or(Errno::ENXIO)?;
    Ok(Reply::new(&SeekRep { offset }))
}

/// `ObjSync`: the data is in the store, so the reply waits only for the group.
pub fn sync(cx: &mut Cx<'_>, _request: &ObjSyncReq) -> Result<Reply, Stop> {
    cx.hold_until_durable();
    Ok(Reply::empty())
}
