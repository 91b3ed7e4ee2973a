//! The namespace as records: objects by FID, names in directories, and the writes that several operations share.
//!
//! Reads have no side effects. Writes have two parts. Records are written through `Cx` and rolled back if the attempt does
//! not succeed. State that [`Mdt`] keeps in memory (`Mdt::entry_taken` and the like) changes last, when nothing can fail
//! any more.

use crate::cross::stripes;
use crate::known::Pending;
use crate::{Mdt, cross};
use bytes::Bytes;
use proto::msg::{LockMode, Policy, Resource, bits};
use proto::{Errno, Fid};
use rules::access::EXECUTE;
use rules::{Caller, names};
use schema::entry::CHAIN_MAX;
use schema::inode::REGION_BITS;
use schema::{
    DestroyLog, Entry, EntryKey, Inode, LargeXattr, MdtState, ObjectsKey, Oi, Orphan, Relayout, SmallData,
    first_cookie, second_cookie,
};
use target::{Cx, IDENTITY, Stop, format_features};

/// The most records that are read to find out whether a directory has a name.
const TOMBSTONES_READ_MAX: usize = 1024;
/// Links of a directory without directories below it: its name and its own `.`.
const DIRECTORY_LINKS: u32 = 2;
/// The version that stands for an absent entry.
pub const NO_ENTRY: u64 = 1;

/// An object: its inode and the inode's number.
#[derive(Clone, Debug)]
pub struct Node {
    /// Local inode number.
    pub ino: u64,
    /// The inode.
    pub inode: Inode,
}

impl Node {
    /// The FID of the object.
    pub fn fid(&self) -> Fid {
        self.inode.fid
    }

    /// Writes the inode with the current transno as its version.
    pub fn put(&mut self, cx: &mut Cx<'_>) {
        self.inode.version = cx.transno().0;
        cx.put::<Inode>(&self.ino, &self.inode);
    }
}

/// The version by which a replay checks that it finds the object as its first execution did. For a directory it is only the
/// identity, because creates in one directory do not depend on each other. Clients keep it over restarts of the server, so
/// it is computed from the FID alone.
pub fn version_of(inode: &Inode) -> u64 {
    if inode.is_dir() { IDENTITY | inode.fid.ino() } else { inode.version }
}

/// The object of a FID, if there is one.
pub fn find(cx: &mut Cx<'_>, fid: Fid) -> Result<Option<Node>, Stop> {
    cx.reads(cross::object_key(fid))?;
    let Some(Oi { ino }) = cx.get::<Oi>(&fid)? else { return Ok(None) };
    match cx.get::<Inode>(&ino)? {
        Some(inode) if inode.fid == fid => Ok(Some(Node { ino, inode })),
        _ => {
            cx.log(target::LogLevel::Error, format!("object {fid} is not where the index says: run lfsck"));
            Err(Stop::Errno(Errno::EIO))
        }
    }
}

/// The object of a FID; `ESTALE` if there is none.
pub fn node(cx: &mut Cx<'_>, fid: Fid) -> Result<Node, Stop> {
    find(cx, fid)?.ok_or(Stop::Errno(Errno::ESTALE))
}

/// Most directories above each other of which a way up is followed.
const WAY_MAX: usize = 1 << 16;

/// The parents of a directory and of those above it, up to the root or to the first directory that is not on this target. Waits
/// for changes of these parents that are under way. Empty: the directory itself is not here.
///
/// Errors: `EIO` if there is no end, so that directories lie in each other.
pub fn way_up(cx: &mut Cx<'_>, dir: Fid) -> Result<Vec<Fid>, Stop> {
    let (mut way, mut at) = (Vec::new(), dir);
    while at != Fid::ROOT {
        cx.reads(cross::parent_key(at))?;
        let Some(node) = find(cx, at)?.filter(|node| node.inode.is_dir()) else { break };
        at = node.inode.parent();
        way.push(at);
        if way.len() > WAY_MAX {
            cx.log(target::LogLevel::Error, format!("directory {dir} has no way up to the root: run lfsck"));
            return Err(Errno::EIO.into());
        }
    }
    Ok(way)
}

/// Calls back the lease of another client on a directory. The holder may have changed the directory in its own memory, so
/// this comes before the target uses the directory's names or attributes.
pub fn unleased(cx: &mut Cx<'_>, dir: Fid) -> Result<(), Stop> {
    cx.revoke(Resource::inode(dir), LockMode::Pr, Policy::Bits(bits::UPDATE))
}

/// The directory of a FID; `ENOTDIR` if the object is no directory.
pub fn dir(cx: &mut Cx<'_>, fid: Fid) -> Result<Node, Stop> {
    let node = node(cx, fid)?;
    unleased(cx, fid)?;
    match () {
        () if !node.inode.is_dir() => Err(Stop::Errno(Errno::ENOTDIR)),
        // Removed but still open: names can neither be found nor made in it.
        () if node.inode.nlink == 0 => Err(Stop::Errno(Errno::ENOENT)),
        () => Ok(node),
    }
}

/// A directory in which an attempt makes or removes names.
#[derive(Debug)]
pub struct Dir {
    /// The directory with the changes so far, which [`Dir::write`] writes.
    pub node: Node,
    /// Conflicting locks on its entries have been called back.
    claimed: bool,
    /// `node` differs from its record.
    changed: bool,
    /// What earlier changes of this attempt did to entries.
    pub pending: Pending,
}

impl Dir {
    /// See [`dir`].
    pub fn find(cx: &mut Cx<'_>, fid: Fid) -> Result<Dir, Stop> {
        Ok(Dir { node: dir(cx, fid)?, claimed: false, changed: false, pending: Pending::default() })
    }

    /// Calls back the locks of other clients on its entries. Comes after all checks.
    pub fn claim(&mut self, cx: &mut Cx<'_>) -> Result<(), Stop> {
        if !self.claimed {
            revoke(cx, &[(self.node.fid(), bits::UPDATE)])?;
            self.claimed = true;
        }
        Ok(())
    }

    /// A name was made or removed in the directory.
    pub fn entries_changed(&mut self, now_ns: i64) {
        self.node.inode.content_changed(now_ns);
        self.changed = true;
    }

    /// Writes the inode if it has changed.
    pub fn write(&mut self, cx: &mut Cx<'_>) {
        if core::mem::take(&mut self.changed) {
            self.node.put(cx);
        }
    }
}

/// The object of an entry; `EXDEV` if it is on another target.
pub fn of_entry(cx: &mut Cx<'_>, entry: &Entry) -> Result<Node, Stop> {
    let fid = entry.object();
    if entry.mdt.is_some() {
        return Err(Errno::EXDEV.into());
    }
    cx.reads(cross::object_key(fid))?;
    if let Some(inode) = cx.get::<Inode>(&entry.ino)?
        && inode.fid == fid
    {
        return Ok(Node { ino: entry.ino, inode });
    }
    find(cx, fid)?.ok_or_else(|| {
        cx.log(target::LogLevel::Error, format!("an entry leads to object {fid}, which does not exist: run lfsck"));
        Stop::Errno(Errno::EIO)
    })
}

/// The object of an entry that is about to be removed. Whether a directory may lose its name depends on its entries and
/// attributes, so a lease on it is called back first.
pub fn losing_name(cx: &mut Cx<'_>, entry: &Entry) -> Result<Node, Stop> {
    let node = of_entry(cx, entry)?;
    without_lease(cx, node)
}

/// An object whose entries and attributes are about to be judged: a lease on a directory is called back first.
pub fn without_lease(cx: &mut Cx<'_>, node: Node) -> Result<Node, Stop> {
    if node.inode.is_dir() {
        unleased(cx, node.fid())?;
    }
    Ok(node)
}

/// Whether this is the stripe of its directory that has the name, or would have it.
///
/// Errors: `EREMCHG` if it is another one, `EOPNOTSUPP` for a client that does not know striped directories.
pub fn may_have(cx: &Cx<'_>, dir: &Inode, name: &[u8]) -> Result<(), Errno> {
    let Some(lmv) = &dir.lmv else { return Ok(()) };
    stripes::are_known(cx)?;
    if rules::stripes::of_name(lmv, name) == lmv.index { Ok(()) } else { Err(Errno::EREMCHG) }
}

/// Where a name is in its directory, or where it would be put.
#[derive(Clone, Debug)]
pub struct Place {
    /// Key of the entry.
    pub key: EntryKey,
    /// The entry, if the name exists.
    pub entry: Option<Entry>,
    /// The key has a tombstone.
    pub tombstone: bool,
    /// The key is in the name's second chain.
    pub second: bool,
}

/// The result of a search in one chain.
enum Looked {
    /// The name, or where it would be put.
    Found(Place),
    /// The chain is full and does not have the name: the first tombstone seen so far.
    Full(Option<Place>),
}

impl Mdt {
    /// Looks for a name. While names move between the stripes of its directory, one that has not moved yet is moved first:
    /// `EINPROGRESS`.
    pub(crate) fn place(&self, cx: &mut Cx<'_>, dir: &Node, name: &[u8]) -> Result<Place, Stop> {
        self.place_after(cx, &Pending::default(), dir, name)
    }

    /// The place for a new name; `EEXIST` if there is that name. The caller needs search permission on the directory.
    pub(crate) fn free_place(
        &self,
        cx: &mut Cx<'_>,
        caller: &Caller<'_>,
        dir: &Node,
        name: &[u8],
    ) -> Result<Place, Stop> {
        caller.need(&dir.inode, EXECUTE)?;
        names::check(name)?;
        if names::is_dot(name) {
            return Err(Errno::EEXIST.into());
        }
        let place = self.place(cx, dir, name)?;
        if place.entry.is_some() { Err(Errno::EEXIST.into()) } else { Ok(place) }
    }

    /// The same as [`Mdt::place`], with the changes that the attempt has made so far.
    pub(crate) fn place_after(
        &self,
        cx: &mut Cx<'_>,
        pending: &Pending,
        dir: &Node,
        name: &[u8],
    ) -> Result<Place, Stop> {
        may_have(cx, &dir.inode, name)?;
        // Before the look at this stripe: what has left the other one is here.
        if self.former(cx, dir, name, true)?.is_some() {
            stdx::mark!("mdt.name_moves_first");
            return Err(Errno::EINPROGRESS.into());
        }
        self.place_here(cx, pending, dir, name)
    }

    /// The entry of a name, which may still be in the stripe that had it before the layout of its directory changed.
    pub(crate) fn entry(&self, cx: &mut Cx<'_>, dir: &Node, name: &[u8]) -> Result<Option<Entry>, Stop> {
        may_have(cx, &dir.inode, name)?;
        match self.former(cx, dir, name, false)? {
            Some(entry) => {
                stdx::mark!("mdt.read_before_it_moved");
                Ok(Some(entry))
            }
            None => Ok(self.place_here(cx, &Pending::default(), dir, name)?.entry),
        }
    }

    /// The same as [`Mdt::place_after`] in this stripe, whichever has the name.
    pub(crate) fn place_here(
        &self,
        cx: &mut Cx<'_>,
        pending: &Pending,
        dir: &Node,
        name: &[u8],
    ) -> Result<Place, Stop> {
        if cx.keys_are_held() {
            cx.reads(cross::name_key(dir.fid(), name))?;
        }
        self.place_in(cx, pending, dir.ino, name)
    }

    /// The same for the inode number of a directory, whatever is under change.
    pub(crate) fn place_in(&self, cx: &mut Cx<'_>, pending: &Pending, dir: u64, name: &[u8]) -> Result<Place, Stop> {
        let first = EntryKey { dir, cookie: first_cookie(cx.header(), name) };
        let free = match self.look_in_chain(cx, pending, first, name, false, None)? {
            Looked::Found(place) => return Ok(place),
            // Without the feature there are no second chains.
            Looked::Full(Some(free)) if !cx.has_feature(format_features::FULL_CHAINS) => return Ok(free),
            Looked::Full(free) => free,
        };
        stdx::mark!("mdt.full_chain");
        let Some(cookie) = second_cookie(cx.header(), name) else { return Err(Errno::ENOSPC.into()) };
        match self.look_in_chain(cx, pending, EntryKey { dir, cookie }, name, true, free)? {
            Looked::Found(place) | Looked::Full(Some(place)) => Ok(place),
            Looked::Full(None) => Err(Errno::ENOSPC.into()),
        }
    }

    /// Looks for a name in one chain. `free`: the place for it that an earlier chain offers.
    fn look_in_chain(
        &self,
        cx: &mut Cx<'_>,
        pending: &Pending,
        first: EntryKey,
        name: &[u8],
        second: bool,
        mut free: Option<Place>,
    ) -> Result<Looked, Stop> {
        let EntryKey { dir, cookie: first } = first;
        for cookie in first..first + CHAIN_MAX {
            let place = Place { key: EntryKey { dir, cookie }, entry: None, tombstone: false, second };
            let free_by_memory = pending.is_free(&self.known, dir, cookie);
            let found = if free_by_memory { None } else { cx.get::<Entry>(&place.key)? };
            match found {
                None => return Ok(Looked::Found(free.unwrap_or(place))),
                Some(entry) if entry.is_tombstone() => drop(free.get_or_insert(Place { tombstone: true, ..place })),
                Some(entry) if entry.name == name => return Ok(Looked::Found(Place { entry: Some(entry), ..place })),
                Some(_) => {}
            }
        }
        Ok(Looked::Full(free))
    }

    /// Whether removing an entry must leave a tombstone, because its chain continues, or continues in second chains because
    /// it was full.
    pub(crate) fn chain_continues(&self, cx: &mut Cx<'_>, pending: &Pending, place: &Place) -> Result<bool, Stop> {
        let EntryKey { dir, cookie } = place.key;
        if cookie % CHAIN_MAX == CHAIN_MAX - 1 {
            return Ok(cx.has_feature(format_features::FULL_CHAINS));
        }
        if pending.is_free(&self.known, dir, cookie + 1) {
            return Ok(false);
        }
        cx.exists::<Entry>(&EntryKey { dir, cookie: cookie + 1 })
    }

    /// Memory: a directory has an entry more. The last step of an attempt.
    pub(crate) fn entry_taken(&mut self, key: EntryKey) {
        self.known.take(key.dir, key.cookie);
    }

    /// Memory: a directory has an entry less. See [`Mdt::entry_taken`].
    pub(crate) fn entry_freed(&mut self, key: EntryKey, tombstone: bool) {
        if !tombstone {
            self.known.free(key.dir, key.cookie);
        }
    }
}

/// Writes an entry for an object and counts it in the directory. The caller writes the directory's inode.
pub fn put_entry(cx: &mut Cx<'_>, dir: &mut Node, place: &Place, name: &Bytes, to: &Node) {
    let entry = Entry { name: name.clone(), fid: Some(to.fid()), kind: to.inode.entry_kind(), ino: to.ino, mdt: None };
    put_entry_of(cx, dir, place, entry);
}

/// The same for any entry.
pub fn put_entry_of(cx: &mut Cx<'_>, dir: &mut Node, place: &Place, entry: Entry) {
    cx.put::<Entry>(&place.key, &entry);
    if place.second {
        cx.needs_feature(format_features::FULL_CHAINS);
    }
    if place.entry.is_none() {
        dir.inode.dir.entries += 1;
        if place.tombstone {
            match dir.inode.dir.tombstones.checked_sub(1) {
                Some(left) => dir.inode.dir.tombstones = left,
                None => cx.log(
                    target::LogLevel::Error,
                    format!(
                        "directory {} counts fewer removed names than it has: its record is wrong; run lfsck",
                        dir.fid()
                    ),
                ),
            }
        }
    }
}

/// Removes an entry and counts that in the directory. The caller writes the directory's inode.
pub fn remove_entry(cx: &mut Cx<'_>, dir: &mut Node, place: &Place, tombstone: bool) {
    if tombstone {
        cx.put::<Entry>(&place.key, &Entry::tombstone());
        dir.inode.dir.tombstones += 1;
    } else {
        cx.delete::<Entry>(&place.key);
    }
    match dir.inode.dir.entries.checked_sub(1) {
        Some(left) => dir.inode.dir.entries = left,
        // The name is removed all the same: it certainly existed.
        None => {
            let line =
                format!("directory {} counts fewer names than it has: its record is wrong; run lfsck", dir.fid());
            cx.log(target::LogLevel::Error, line);
        }
    }
}

/// Adds `more`, which may be negative, to the number of directories in a directory. A link count that leaves no room for
/// the directory removed is wrong and stays as it is; the names decide.
pub fn count_directories(cx: &mut Cx<'_>, dir: &mut Node, more: i32) {
    match dir.inode.nlink.checked_add_signed(more) {
        Some(links) if more >= 0 || links >= DIRECTORY_LINKS => dir.inode.nlink = links,
        _ => {
            let (fid, links) = (dir.fid(), dir.inode.nlink);
            let line = format!(
                "directory {fid} has {links} links and loses a directory below it: its record is wrong; run lfsck"
            );
            cx.log(target::LogLevel::Error, line);
        }
    }
}

/// The log line for a directory with fewer entries than it counts.
pub fn lost_names(dir: &Node, lacking: u64) -> String {
    let counted = dir.inode.dir.entries;
    format!("directory {} lacks {lacking} of {counted} names: their records are lost; run lfsck", dir.fid())
}

/// Why a directory that counts names cannot be removed: `ENOTEMPTY` if it has names, `EIO` if their records are lost.
pub fn not_empty(cx: &mut Cx<'_>, dir: &Node) -> Stop {
    let limit = (dir.inode.dir.tombstones as usize + 1).min(TOMBSTONES_READ_MAX);
    match cx.scan::<Entry>(&Entry::of_dir(dir.ino), limit) {
        Ok(found) if found.len() < limit && found.iter().all(|(_, entry)| entry.is_tombstone()) => {
            cx.log(target::LogLevel::Error, lost_names(dir, dir.inode.dir.entries));
            Errno::EIO.into()
        }
        Ok(_) => Errno::ENOTEMPTY.into(),
        Err(stop) => stop,
    }
}

/// A local inode number for a child of a directory. The caller writes the directory's inode.
pub fn allocate_ino(cx: &mut Cx<'_>, dir: &mut Node) -> Result<u64, Stop> {
    let state = &mut dir.inode.dir;
    if state.next_ino.trailing_zeros() >= REGION_BITS {
        // The directory has no region yet, or has used up the last one.
        let mut target = cx.get::<MdtState>(&())?.unwrap_or_default();
        target.next_region = target.next_region.max(1) + 1;
        cx.put::<MdtState>(&(), &target);
        state.next_ino = (target.next_region - 1) << REGION_BITS;
    }
    let ino = state.next_ino;
    state.next_ino += 1;
    Ok(ino)
}

/// Removes an object with all its records. Returns whether it may have objects on object targets, which are then in the
/// destroy log.
pub fn destroy(mdt: &Mdt, cx: &mut Cx<'_>, node: &Node) -> Result<bool, Stop> {
    let Node { ino, inode } = node;
    if inode.is_dir() && inode.dir.tombstones > 0 {
        let limit = inode.dir.tombstones as usize + 1;
        for (key, _) in cx.scan::<Entry>(&Entry::of_dir(*ino), limit)? {
            cx.delete::<Entry>(&key);
        }
    }
    for xattr in inode.xattrs.iter().filter(|xattr| xattr.large) {
        cx.delete::<LargeXattr>(&(*ino, xattr.name.clone()));
    }
    if inode.is_resident() && inode.blocks > 0 {
        cx.delete::<SmallData>(ino);
    }
    if inode.moving().is_some() {
        cx.delete::<Relayout>(&node.fid());
    }
    cx.delete::<Inode>(ino);
    cx.delete::<Oi>(&node.fid());
    Ok(doom_objects(mdt, cx, inode))
}

/// Puts the objects of a file's layout into the destroy log, if there may be any. Returns whether it did.
pub fn doom_objects(mdt: &Mdt, cx: &mut Cx<'_>, inode: &Inode) -> bool {
    match &inode.layout {
        Some(layout) if mdt.moves.may_have_objects(inode) && !layout.osts.is_empty() => {
            let log = DestroyLog { osts: layout.osts.clone(), ..DestroyLog::default() };
            cx.put::<DestroyLog>(&objects_of(inode), &log);
            true
        }
        _ => false,
    }
}

/// The key of the objects of a file's layout.
pub fn objects_of(inode: &Inode) -> ObjectsKey {
    ObjectsKey { fid: inode.fid, first: inode.layout.as_ref().map_or(0, |layout| layout.first_object) }
}

/// Records an object as an orphan: it has no name any more but is open.
pub fn make_orphan(cx: &mut Cx<'_>, node: &mut Node) {
    node.put(cx);
    cx.put::<Orphan>(&node.fid(), &Orphan { ino: node.ino });
}

/// Calls back the locks of other clients, all at once.
pub fn revoke(cx: &mut Cx<'_>, wanted: &[(Fid, u64)]) -> Result<(), Stop> {
    let mut result = Ok(());
    for &(fid, bits) in wanted {
        let freed = cx.revoke(Resource::inode(fid), LockMode::Ex, Policy::Bits(bits));
        result = result.and(freed);
    }
    result
}

/// Calls back the locks on an object that is about to lose a name. A client opens files locally under its LOOKUP lock on
/// them, and reports these opens before it gives the lock back. The requester has reported its own before the request if
/// `reported` is this object, and drops the old attributes itself; otherwise its lock is called back, too.
pub fn revoke_named(cx: &mut Cx<'_>, node: &Node, reported: Option<Fid>) -> Result<(), Stop> {
    let covering = bits::LOOKUP | bits::UPDATE;
    let others = revoke(cx, &[(node.fid(), covering)]);
    if reported != Some(node.fid()) {
        cx.revoke_all(Resource::inode(node.fid()), LockMode::Ex, Policy::Bits(covering))?;
    }
    others
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_keep_of_a_directory_is_the_same_after_every_restart() {
        let dir = Inode { mode: rules::mode::S_IFDIR, fid: Fid::new(0x2_0000_0400, 7), version: 5, ..Inode::default() };
        assert_eq!(version_of(&dir), IDENTITY | 0x0004_0000_0800_0007);
        assert_eq!(version_of(&Inode { mode: rules::mode::S_IFREG, ..dir }), 5);
    }
}
