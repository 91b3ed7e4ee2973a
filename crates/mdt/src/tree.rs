//! The namespace as records: objects by FID, names in directories, and the writes that all operations share.
//!
//! Reading is free of effects. Writing goes in two parts: the records, through `Cx`, which are taken back if the attempt
//! ends otherwise than well, and what [`Mdt`] keeps in memory, which is changed last (see `Mdt::entry_taken` and the
//! like), when nothing can fail any more.

use crate::Mdt;
use crate::known::Pending;
use bytes::Bytes;
use proto::msg::{LockMode, Policy, Resource, bits};
use proto::{Errno, Fid};
use schema::entry::CHAIN_MAX;
use schema::inode::REGION_BITS;
use schema::{
    DestroyLog, Entry, EntryKey, Inode, LargeXattr, MdtState, ObjectsKey, Oi, Orphan, SmallData, first_cookie,
    second_cookie,
};
use target::{Cx, IDENTITY, Stop, format_features};

/// So many records are read at most to find out whether a directory has a name.
const TOMBSTONES_READ_MAX: usize = 1024;
/// Links of a directory without directories below it: its name and its own `.`.
const DIRECTORY_LINKS: u32 = 2;
/// Version of what is not there.
pub const NO_ENTRY: u64 = 1;

/// An object and where its inode lies.
#[derive(Clone, Debug)]
pub struct Node {
    /// Local inode number.
    pub ino: u64,
    /// The inode.
    pub inode: Inode,
}

impl Node {
    /// Identity.
    pub fn fid(&self) -> Fid {
        self.inode.fid
    }

    /// Writes the inode, as changed by the present transno.
    pub fn put(&mut self, cx: &mut Cx<'_>) {
        self.inode.version = cx.transno().0;
        cx.put::<Inode>(&self.ino, &self.inode);
    }
}

/// The version of an object by which a replay knows whether it meets what its first execution met. Of a directory only its
/// identity counts: what is in it are objects of their own, and creates in it do not hang on each other. Clients keep it over
/// restarts: it follows from the FID alone.
pub fn version_of(inode: &Inode) -> u64 {
    if inode.is_dir() { IDENTITY | inode.fid.ino() } else { inode.version }
}

/// The object of a FID, if there is one.
pub fn find(cx: &mut Cx<'_>, fid: Fid) -> Result<Option<Node>, Stop> {
    let Some(Oi { ino }) = cx.get::<Oi>(&fid)? else { return Ok(None) };
    match cx.get::<Inode>(&ino)? {
        Some(inode) if inode.fid == fid => Ok(Some(Node { ino, inode })),
        _ => {
            cx.log(target::LogLevel::Error, format!("object {fid} is not where the index says: run lfsck"));
            Err(Stop::Errno(Errno::EIO))
        }
    }
}

/// The object of a FID; `ESTALE` if it is gone.
pub fn node(cx: &mut Cx<'_>, fid: Fid) -> Result<Node, Stop> {
    find(cx, fid)?.ok_or(Stop::Errno(Errno::ESTALE))
}

/// Whoever has leased a directory may have changed it behind our back: the lease is called back before its names or attributes
/// are looked at.
pub fn unleased(cx: &mut Cx<'_>, dir: Fid) -> Result<(), Stop> {
    cx.revoke(Resource::inode(dir), LockMode::Pr, Policy::Bits(bits::UPDATE))
}

/// The directory of a FID: `ENOTDIR` if it is none.
pub fn dir(cx: &mut Cx<'_>, fid: Fid) -> Result<Node, Stop> {
    let node = node(cx, fid)?;
    unleased(cx, fid)?;
    match () {
        () if !node.inode.is_dir() => Err(Stop::Errno(Errno::ENOTDIR)),
        // Removed, and still open somewhere: nothing can be found or made in it.
        () if node.inode.nlink == 0 => Err(Stop::Errno(Errno::ENOENT)),
        () => Ok(node),
    }
}

/// A directory in which an attempt makes or removes names, one or several.
#[derive(Debug)]
pub struct Dir {
    /// As it is by now; [`Dir::write`] has still to be called.
    pub node: Node,
    /// Nobody else's lock on its entries is in the way.
    claimed: bool,
    /// Differs from its record.
    changed: bool,
    /// What the changes before in this attempt have done.
    pub pending: Pending,
}

impl Dir {
    /// See [`dir`].
    pub fn find(cx: &mut Cx<'_>, fid: Fid) -> Result<Dir, Stop> {
        Ok(Dir { node: dir(cx, fid)?, claimed: false, changed: false, pending: Pending::default() })
    }

    /// Calls back what others have locked of its entries. After that, checks are over.
    pub fn claim(&mut self, cx: &mut Cx<'_>) -> Result<(), Stop> {
        if !self.claimed {
            revoke(cx, &[(self.node.fid(), bits::UPDATE)])?;
            self.claimed = true;
        }
        Ok(())
    }

    /// A name was made or removed in it.
    pub fn entries_changed(&mut self, now_ns: i64) {
        self.node.inode.content_changed(now_ns);
        self.changed = true;
    }

    /// Writes it, if it has changed.
    pub fn write(&mut self, cx: &mut Cx<'_>) {
        if core::mem::take(&mut self.changed) {
            self.node.put(cx);
        }
    }
}

/// The object of an entry.
pub fn of_entry(cx: &mut Cx<'_>, entry: &Entry) -> Result<Node, Stop> {
    let fid = entry.object();
    if let Some(inode) = cx.get::<Inode>(&entry.ino)?
        && inode.fid == fid
    {
        return Ok(Node { ino: entry.ino, inode });
    }
    find(cx, fid)?.ok_or_else(|| {
        cx.log(target::LogLevel::Error, format!("an entry names object {fid}, which is not there: run lfsck"));
        Stop::Errno(Errno::EIO)
    })
}

/// The object of an entry that is about to lose it: whether it may depends on the names in it and on its attributes, so whoever has leased
/// it is asked first.
pub fn leaving(cx: &mut Cx<'_>, entry: &Entry) -> Result<Node, Stop> {
    let node = of_entry(cx, entry)?;
    if node.inode.is_dir() {
        unleased(cx, node.fid())?;
    }
    Ok(node)
}

/// Where a name is in its directory, or where it would go.
#[derive(Clone, Debug)]
pub struct Place {
    /// Key of the entry.
    pub key: EntryKey,
    /// The entry, if there is one.
    pub entry: Option<Entry>,
    /// A tombstone lies there.
    pub tombstone: bool,
    /// It is in the name's second chain.
    pub second: bool,
}

/// What a look into one chain has found.
enum Looked {
    /// The name, or where it would go.
    There(Place),
    /// Not the name, and no end of the chain: the first tombstone seen so far.
    Full(Option<Place>),
}

impl Mdt {
    /// Looks for a name.
    pub(crate) fn place(&self, cx: &mut Cx<'_>, dir: u64, name: &[u8]) -> Result<Place, Stop> {
        self.place_after(cx, &Pending::default(), dir, name)
    }

    /// The same after what the attempt has done so far.
    pub(crate) fn place_after(&self, cx: &mut Cx<'_>, pending: &Pending, dir: u64, name: &[u8]) -> Result<Place, Stop> {
        let first = EntryKey { dir, cookie: first_cookie(cx.header(), name) };
        let free = match self.look_in_chain(cx, pending, first, name, false, None)? {
            Looked::There(place) => return Ok(place),
            // Names lie in second chains only where there is the feature.
            Looked::Full(Some(free)) if !cx.has_feature(format_features::FULL_CHAINS) => return Ok(free),
            Looked::Full(free) => free,
        };
        stdx::mark!("mdt.full_chain");
        let Some(cookie) = second_cookie(cx.header(), name) else { return Err(Errno::ENOSPC.into()) };
        match self.look_in_chain(cx, pending, EntryKey { dir, cookie }, name, true, free)? {
            Looked::There(place) | Looked::Full(Some(place)) => Ok(place),
            Looked::Full(None) => Err(Errno::ENOSPC.into()),
        }
    }

    /// Looks for a name in one chain. `free`: where it would go by what was seen before.
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
                None => return Ok(Looked::There(free.unwrap_or(place))),
                Some(entry) if entry.is_tombstone() => drop(free.get_or_insert(Place { tombstone: true, ..place })),
                Some(entry) if entry.name == name => return Ok(Looked::There(Place { entry: Some(entry), ..place })),
                Some(_) => {}
            }
        }
        Ok(Looked::Full(free))
    }

    /// Whether removing the entry of a place must leave a tombstone, because its chain goes on, or names lie elsewhere because it
    /// was full.
    pub(crate) fn chain_goes_on(&self, cx: &mut Cx<'_>, pending: &Pending, place: &Place) -> Result<bool, Stop> {
        let EntryKey { dir, cookie } = place.key;
        if cookie % CHAIN_MAX == CHAIN_MAX - 1 {
            return Ok(cx.has_feature(format_features::FULL_CHAINS));
        }
        if pending.is_free(&self.known, dir, cookie + 1) {
            return Ok(false);
        }
        cx.exists::<Entry>(&EntryKey { dir, cookie: cookie + 1 })
    }

    /// Memory: entries of a directory came and went. The last step of an attempt.
    pub(crate) fn entry_taken(&mut self, key: EntryKey) {
        self.known.take(key.dir, key.cookie);
    }

    /// See [`Mdt::entry_taken`].
    pub(crate) fn entry_freed(&mut self, key: EntryKey, tombstone: bool) {
        if !tombstone {
            self.known.free(key.dir, key.cookie);
        }
    }
}

/// Writes an entry for an object and counts it in the directory, whose inode is left to be written.
pub fn put_entry(cx: &mut Cx<'_>, dir: &mut Node, place: &Place, name: &Bytes, to: &Node) {
    let entry = Entry { name: name.clone(), fid: Some(to.fid()), kind: to.inode.entry_kind(), ino: to.ino };
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

/// Removes an entry and counts that.
pub fn remove_entry(cx: &mut Cx<'_>, dir: &mut Node, place: &Place, tombstone: bool) {
    if tombstone {
        cx.put::<Entry>(&place.key, &Entry::tombstone());
        dir.inode.dir.tombstones += 1;
    } else {
        cx.delete::<Entry>(&place.key);
    }
    match dir.inode.dir.entries.checked_sub(1) {
        Some(left) => dir.inode.dir.entries = left,
        // The name goes all the same: that it was there is certain.
        None => {
            let line =
                format!("directory {} counts fewer names than it has: its record is wrong; run lfsck", dir.fid());
            cx.log(target::LogLevel::Error, line);
        }
    }
}

/// There are so many more directories in a directory, or fewer. A count that says that there was none is wrong, and stays as it is: the
/// names count.
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

/// The line for a directory whose records are fewer than its names.
pub fn lost_names(dir: &Node, lacking: u64) -> String {
    let counted = dir.inode.dir.entries;
    format!("directory {} lacks {lacking} of {counted} names: their records are lost; run lfsck", dir.fid())
}

/// Why a directory that counts names cannot be removed: they are there, or their records are lost.
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

/// A local inode number for a child of a directory, whose inode is left to be written.
pub fn allocate_ino(cx: &mut Cx<'_>, dir: &mut Node) -> Result<u64, Stop> {
    let state = &mut dir.inode.dir;
    if state.next_ino.trailing_zeros() >= REGION_BITS {
        // No region yet, or the last number of one was given out.
        let mut target = cx.get::<MdtState>(&())?.unwrap_or_default();
        target.next_region = target.next_region.max(1) + 1;
        cx.put::<MdtState>(&(), &target);
        state.next_ino = (target.next_region - 1) << REGION_BITS;
    }
    let ino = state.next_ino;
    state.next_ino += 1;
    Ok(ino)
}

/// Removes an object with everything that belongs to it. The answer is whether objects on other targets must go, which the
/// destroy log now knows.
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
    cx.delete::<Inode>(ino);
    cx.delete::<Oi>(&node.fid());
    Ok(doom_objects(mdt, cx, inode))
}

/// Notes that the objects of a file's layout must go, if there may be any.
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

/// The object has no name any more, but is open: it waits as an orphan.
pub fn make_orphan(cx: &mut Cx<'_>, node: &mut Node) {
    node.put(cx);
    cx.put::<Orphan>(&node.fid(), &Orphan { ino: node.ino });
}

/// Calls back locks of others, all at once.
pub fn revoke(cx: &mut Cx<'_>, wanted: &[(Fid, u64)]) -> Result<(), Stop> {
    let mut result = Ok(());
    for &(fid, bits) in wanted {
        let freed = cx.revoke(Resource::inode(fid), LockMode::Ex, Policy::Bits(bits));
        result = result.and(freed);
    }
    result
}

/// Frees an object that is about to lose a name. A client opens files for reading under its lock on what their names lead to, and
/// tells of that before the lock goes. So does the requester before it asks for a name to go, if it knows what has that name (`told`),
/// and its programs see no more of the old attributes than others do; otherwise its lock goes as well.
pub fn revoke_named(cx: &mut Cx<'_>, node: &Node, told: Option<Fid>) -> Result<(), Stop> {
    let covering = bits::LOOKUP | bits::UPDATE;
    let others = revoke(cx, &[(node.fid(), covering)]);
    if told != Some(node.fid()) {
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
