//! Locks: those that are granted with a reply, those that a client holds, and glimpses: sizes of resident files from the clients that write
//! them.

use crate::cross::{self, stripes};
use crate::tree::{self, Node};
use proto::Fid;
use proto::msg::{Attr, LockGrant, LockMode, Lvb, Policy, Resource, WantLocks, bits};
use schema::Inode;
use target::{Cx, ShareKey, Stop};

/// Grants those of the wanted locks that conflict with no other client. Among the last steps of an attempt.
pub fn grant(cx: &mut Cx<'_>, want: &WantLocks, object: Option<&Inode>, parent: Option<Fid>) -> Vec<LockGrant> {
    let mut grants = Vec::new();
    if let Some(parent) = parent {
        grants.extend(entries(cx, Resource::inode(parent), want.parent_cookie, want.exclusive));
    }
    if let Some(inode) = object {
        let resource = Resource::inode(inode.fid);
        grants.extend(cx.try_grant(resource, LockMode::Pr, cached(inode), bits::LOOKUP, want.object_cookie));
        if inode.is_dir() {
            grants.extend(entries(cx, resource, want.entries_cookie, want.exclusive));
        }
        if inode.is_resident() {
            let mode = if want.data_write { LockMode::Pw } else { LockMode::Pr };
            grants.extend(cx.try_grant(resource, mode, bits::DOM, bits::DOM, want.data_cookie));
        }
    }
    grants
}

/// The lock on the entries of a directory: a lease if `exclusive` and no other client is in the way, otherwise a shared lock.
fn entries(cx: &mut Cx<'_>, resource: Resource, cookie: u64, exclusive: bool) -> Option<LockGrant> {
    let mut grant = |mode| cx.try_grant(resource, mode, bits::UPDATE, bits::UPDATE, cookie);
    exclusive.then(|| grant(LockMode::Ex)).flatten().or_else(|| grant(LockMode::Pr))
}

/// The bits of the one lock that a client needs to cache an object.
pub fn cached(inode: &Inode) -> u64 {
    if inode.is_dir() { bits::CACHE_DIRECTORY } else { bits::CACHE }
}

/// Whether the sender holds an exclusive lock with these bits.
pub fn holds(cx: &Cx<'_>, fid: Fid, wanted: u64) -> bool {
    cx.locks().held_on(cx.export(), &Resource::inode(fid)).any(|held| {
        let covers = matches!(held.policy, Policy::Bits(has) if has & wanted == wanted);
        held.mode == LockMode::Ex && covers
    })
}

/// Up-to-date attributes. For a resident file, the client that holds a lock for writing its data is asked for size and times.
/// For a directory, a lease is called back, and changes with parts on other targets are waited for. `EOPNOTSUPP` for a client
/// that does not know striped directories if this is one.
pub fn fresh_attr(cx: &mut Cx<'_>, node: &Node) -> Result<Attr, Stop> {
    stripes::may_see(cx, &node.inode)?;
    let mut attr = attr_of(cx, &node.inode);
    if node.inode.is_dir() {
        tree::unleased(cx, node.fid())?;
        cross::show(cx, node.fid(), &mut attr)?;
    }
    written(cx, &node.inode)?.merge(&mut attr);
    Ok(attr)
}

/// Size and times of a resident file as known to the clients that hold a lock for writing its data.
pub struct Written(Vec<Lvb>);

/// Sends a glimpse to the writer of a resident file. An attempt waits for this last. Replies to changes of mode or owner need it,
/// too, because they carry the size and the kernel takes it over.
pub fn written(cx: &mut Cx<'_>, inode: &Inode) -> Result<Written, Stop> {
    let known = if inode.is_resident() { cx.glimpse(Resource::inode(inode.fid))? } else { Vec::new() };
    Ok(Written(known))
}

impl Written {
    /// Merges it into the target's own values. Bytes that the writer still buffers can only make the file longer. Other changes
    /// of the size, by a direct write or a truncation, reach the target first.
    pub fn merge(&self, attr: &mut Attr) {
        for lvb in &self.0 {
            attr.size = attr.size.max(lvb.size);
            attr.blocks = attr.blocks.max(lvb.blocks);
            attr.take_data_times(lvb);
        }
    }
}

/// The attributes as the target has them. If another client has just moved the data of the file, the reply waits until the new
/// layout is durable.
pub fn attr_of(cx: &mut Cx<'_>, inode: &Inode) -> Attr {
    if inode.is_file() && !inode.is_resident() {
        cx.depends_on(ShareKey::layout(inode.fid));
    }
    attr_for(cx, inode)
}

/// The attributes as the target has them, without what the client does not know.
pub fn attr_for(cx: &Cx<'_>, inode: &Inode) -> Attr {
    let mut attr = inode.attr();
    if attr.dir_default.is_some() && stripes::are_known(cx).is_err() {
        attr.dir_default = None;
    }
    attr
}

/// Size and times of a resident file as the target has them.
pub fn lvb(inode: &Inode) -> Lvb {
    inode.lvb()
}

/// Size and times of a resident file, merged with those of its writer.
pub fn fresh_lvb(cx: &mut Cx<'_>, inode: &Inode) -> Result<Lvb, Stop> {
    let mut lvb = lvb(inode);
    for held in written(cx, inode)?.0 {
        lvb.size = lvb.size.max(held.size);
        lvb.blocks = lvb.blocks.max(held.blocks);
        if held.ctime_ns > lvb.ctime_ns {
            (lvb.mtime_ns, lvb.ctime_ns) = (held.mtime_ns, held.ctime_ns);
        }
    }
    Ok(lvb)
}
