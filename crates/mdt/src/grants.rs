//! Locks that come with a reply, and sizes that somebody else knows better.

use crate::tree::{self, Node};
use proto::Fid;
use proto::msg::{Attr, LockGrant, LockMode, Lvb, Resource, WantLocks, bits};
use schema::Inode;
use target::{Cx, ShareKey, Stop};

/// The locks that the request wants and that conflict with nobody. Among the last steps of an attempt.
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

/// The lock on the entries of a directory: a lease, if that is wanted and nobody else has one.
fn entries(cx: &mut Cx<'_>, resource: Resource, cookie: u64, exclusive: bool) -> Option<LockGrant> {
    let mut grant = |mode| cx.try_grant(resource, mode, bits::UPDATE, bits::UPDATE, cookie);
    exclusive.then(|| grant(LockMode::Ex)).flatten().or_else(|| grant(LockMode::Pr))
}

/// What one lock on an object covers for a client that caches it.
pub fn cached(inode: &Inode) -> u64 {
    if inode.is_dir() { bits::CACHE_DIRECTORY } else { bits::CACHE }
}

/// Attributes with size and times as the writer knows them who has the data of a resident file under its lock; of a directory,
/// when nobody has it leased.
pub fn fresh_attr(cx: &mut Cx<'_>, node: &Node) -> Result<Attr, Stop> {
    let mut attr = attr_of(cx, &node.inode);
    if node.inode.is_dir() {
        tree::unleased(cx, node.fid())?;
    }
    written(cx, &node.inode)?.merge(&mut attr);
    Ok(attr)
}

/// What the writer of a resident file knows of it, who has its data under a lock.
pub struct Written(Vec<Lvb>);

/// Asks the writer. Last among what an attempt may wait for: the answer to a change of mode or owner tells the size, too, and the
/// kernel believes it.
pub fn written(cx: &mut Cx<'_>, inode: &Inode) -> Result<Written, Stop> {
    let known = if inode.is_resident() { cx.glimpse(Resource::inode(inode.fid))? } else { Vec::new() };
    Ok(Written(known))
}

impl Written {
    /// Puts it into what the target itself knows. Bytes that it has not written yet make the file longer, never shorter: of what else it
    /// changes, a write past its cache or a cut, the target knows first.
    pub fn merge(&self, attr: &mut Attr) {
        for lvb in &self.0 {
            attr.size = attr.size.max(lvb.size);
            attr.blocks = attr.blocks.max(lvb.blocks);
            attr.take_data_times(lvb);
        }
    }
}

/// The attributes as they are here. An answer that tells where the data of a file lies waits until that cannot be undone, if another
/// client has just moved it there.
pub fn attr_of(cx: &mut Cx<'_>, inode: &Inode) -> Attr {
    if inode.is_file() && !inode.is_resident() {
        cx.depends_on(ShareKey::layout(inode.fid));
    }
    inode.attr()
}

/// What the target itself knows of a resident file's data.
pub fn lvb(inode: &Inode) -> Lvb {
    inode.lvb()
}

/// The same with what the writer knows.
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
