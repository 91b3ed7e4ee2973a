//! Names in a directory: those that are known to exist, those that are known to be absent, and listings.
//!
//! An entry is valid while the directory's UPDATE lock has been held without a break since it was learned
//! (`dir_epoch`), or while the child's LOOKUP lock has (`child_epoch`). The absence of a name is known only under the
//! directory's lock. If every name was seen under one unbroken lock the listing is `complete`, and a name that is not
//! in it does not exist.
//!
//! A directory can have more names than there is memory for. Then the names that changed longest ago are dropped. If
//! the listing was complete, fingerprints of them remain ([`crate::cache::name_marks`]), so that a program that creates
//! file after file need not ask whether the next name is taken.
//!
//! Own changes are entered from their replies, in the order of their transnos: an entry remembers the `version` that
//! made it, and an older reply does not overwrite it.
//!
//! What is known about the names of a stripe holds for one layout of its directory: with another one a name may be in another
//! stripe, and be removed there.

use bytes::Bytes;
use proto::Fid;
use proto::msg::{Attr, LockGrant, bits};
use rules::mode::{S_IFDIR, S_IFMT};
use std::sync::Arc;
use stdx::{Instant, Map};

use crate::cache::name_marks::NameMarks;
use crate::cache::node::Nodes;
use crate::cache::sweep::Sweep;

/// What a name leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// The object; `None`: there is no such name.
    pub fid: Option<Fid>,
    /// `DT_*`, 0 if unknown.
    pub kind: u32,
    /// The directory's `update_epoch` when it was learned.
    pub dir_epoch: u32,
    /// The child's `lookup_epoch` when it was learned; 0: no lock of the child covers it.
    pub child_epoch: u32,
    /// Transno of the change that made the entry, or of the directory's state that showed it.
    pub version: u64,
}

/// The epochs to which a reply about a name belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Epochs {
    /// The epoch of the names in the directory.
    pub(crate) dir: u32,
    /// The epoch of the names of the object that it leads to; 0: no lock of the object covers the reply.
    pub(crate) child: u32,
    /// The version of the directory's layout when the request was sent.
    pub(crate) layout: u32,
}

/// One entry of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Listed {
    pub name: Bytes,
    pub fid: Fid,
    /// `DT_*`.
    pub kind: u32,
    /// The server's cookie.
    pub cookie: u64,
    /// `lookup_epoch` of the object when the entry arrived; 0: no lock of the object covers it.
    pub child_epoch: u32,
}

/// Consecutive entries as the server sent them.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Piece {
    /// Sorted by cookie.
    pub entries: Vec<Listed>,
    /// The last piece of the directory.
    pub end: bool,
    /// Version of the directory at that time.
    pub version: u64,
    /// Locks that came with it, except those of its entries.
    pub locks: Vec<LockGrant>,
}

/// The complete entries of a directory, sorted by cookie.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Listing {
    pub entries: Vec<Listed>,
    /// Approximate memory use.
    pub bytes: usize,
}

/// A listing that is being assembled from its pieces, all under one unbroken lock.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Building {
    /// `update_epoch` of the directory.
    pub epoch: u32,
    /// Version of the directory when the first piece was read: later own changes are in `names`.
    pub version: u64,
    /// Entries so far.
    pub listing: Listing,
    /// The cookie after which the next piece starts.
    pub after: u64,
}

/// The directory part of a node.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    /// Cached names, including absent ones.
    pub names: Map<Bytes, Entry>,
    /// The version of the directory's layout for which they hold.
    layout: u32,
    /// How many names this client has changed.
    pub changes: u32,
    /// All names that exist are in `names` or in `older`, while `update_epoch` has this value.
    pub complete_epoch: Option<u32>,
    /// Fingerprints of names that were dropped from `names`, while the listing is complete.
    pub(crate) older: NameMarks,
    /// The listing, and the epoch under which it is exact.
    pub listing: Option<(u32, Arc<Listing>)>,
    /// A listing that is being assembled.
    pub building: Option<Box<Building>>,
    /// A program looks at one object after another.
    pub(crate) sweep: Option<Box<Sweep>>,
    /// Absent names in a row, under the unbroken lock of `missed_epoch`.
    pub misses: u32,
    /// The epoch of `misses`.
    pub(crate) missed_epoch: u32,
    /// A listing is being fetched.
    pub fetching: bool,
    /// The listing cannot be complete in this epoch: it has too many names, or the server failed to list them.
    pub unlistable: Option<u32>,
    /// Whether it is in the list of directories with many names.
    pub crowded: bool,
    /// Until then a lookup also opens what it found, because a call in this directory was answered `ESTALE`.
    pub hold_until: Option<Instant>,
    /// The name by which the kernel knew the directory before it was invalidated.
    pub named: Option<(u64, Bytes)>,
    /// When a request of this client for a change was last about to be sent.
    pub(crate) changing_at: Option<Instant>,
    /// How often its lock was lost recently, and when last.
    pub(crate) losses: u16,
    /// The time of the last loss.
    pub(crate) lost_at: Instant,
}

/// What the cache says about a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KnownName {
    /// It leads to this object.
    Child(Fid),
    /// It does not exist.
    Nothing,
    /// Not cached: ask the server.
    Unknown,
}

/// Most names that a directory keeps without a complete listing.
const LOOSE_NAMES_MAX: usize = 8192;

impl Directory {
    /// Drops everything about the names in it.
    pub(crate) fn forget_all(&mut self) {
        let (losses, lost_at) = (self.losses, self.lost_at);
        *self = Directory { named: self.named.take(), losses, lost_at, ..Directory::default() };
    }

    /// Adds an entry, unless a newer one is cached.
    fn put(&mut self, name: &Bytes, entry: Entry, current: u32) {
        if let Some(known) = self.names.get_mut(name) {
            if known.version > entry.version && (entry.version != 0 || known.dir_epoch == current) {
                return;
            }
            *known = entry;
            return;
        }
        if self.complete_epoch.is_none() && !self.fetching && self.names.len() >= LOOSE_NAMES_MAX {
            self.names.clear();
        }
        self.names.insert(name.clone(), entry);
    }

    /// The names that follow hold for this version of the layout; those of another one are dropped.
    fn hold_for(&mut self, layout: u32) {
        if self.layout != layout {
            if !self.names.is_empty() {
                stdx::mark!("names_of_another_layout");
            }
            self.forget();
            self.layout = layout;
        }
    }

    /// Drops the names, and frees their memory.
    fn forget(&mut self) {
        self.names = Map::default();
        self.incomplete();
        self.building = None;
        self.listing = None;
    }

    /// From now on there may be names that are not cached.
    fn incomplete(&mut self) {
        self.complete_epoch = None;
        self.older = NameMarks::default();
    }

    /// Drops the older half of the names. Fingerprints of them remain, unless there are too many already.
    fn thin(&mut self) {
        if self.complete_epoch.is_none() || self.older.len() / MARKS_PER_NAME > self.names.len() {
            stdx::mark!("names_forgotten");
            return self.forget();
        }
        stdx::mark!("names_thinned");
        let mut versions: Vec<u64> = self.names.values().map(|entry| entry.version).collect();
        let half = versions.len() / 2;
        let middle = if versions.is_empty() { 0 } else { *versions.select_nth_unstable(half).1 };
        let older = &mut self.older;
        self.names.retain(|name, entry| {
            let stays = entry.version > middle;
            if !stays && entry.fid.is_some() {
                older.insert(name);
            }
            stays
        });
        self.names.shrink_to_fit();
        self.listing = None;
    }

    /// Whether it is in the list of directories with many names, and its weight.
    fn mark(&self) -> (bool, usize) {
        (self.crowded, self.weight())
    }

    /// The memory of its names, in units of one name.
    fn weight(&self) -> usize {
        self.names.len() + self.older.len() / MARKS_PER_NAME
    }

    /// Another client has taken its lock: counts how often that happens.
    pub(crate) fn lock_taken(&mut self, now: Instant) {
        self.losses = if now.since(self.lost_at).as_secs() > 2 { 1 } else { self.losses.saturating_add(1) };
        self.lost_at = now;
        self.lock_lost();
    }

    /// Its lock is lost: if there are many names, most are worthless now.
    pub(crate) fn lock_lost(&mut self) {
        self.listing = None;
        self.building = None;
        self.incomplete();
        if self.names.capacity() > 2 * LOOSE_NAMES_MAX {
            self.names = Map::default();
        }
    }
}

/// Fingerprints that take the memory of one name.
const MARKS_PER_NAME: usize = 16;
/// This many names are many; the limit is checked again after as many more.
const LOOK: usize = 1024;

impl Nodes {
    /// A directory has many names: limits the names of all such directories together. The directory that had many first
    /// loses names first.
    fn bound_names(&mut self, ino: u64) {
        let mut crowded = core::mem::take(&mut self.crowded);
        let dir = |nodes: &Nodes, ino: u64| nodes.get(ino).and_then(|node| node.dir.as_deref()).map(Directory::mark);
        crowded.retain(|ino| dir(self, *ino).is_some_and(|(crowded, _)| crowded));
        if let Some(dir) = self.get_mut(ino).and_then(|node| node.dir.as_mut())
            && !core::mem::replace(&mut dir.crowded, true)
        {
            crowded.push_back(ino);
        }
        let mut total: usize = crowded.iter().map(|ino| dir(self, *ino).map_or(0, |(_, weight)| weight)).sum();
        while total > self.names_max
            && let Some(first) = crowded.pop_front()
        {
            let Some(node) = self.get_mut(first) else { continue };
            let epoch = node.validity.update_epoch();
            let Some(dir) = node.dir.as_mut() else { continue };
            total -= dir.weight();
            dir.thin();
            total += dir.weight();
            if dir.complete_epoch.is_none() {
                // It would be useless to fetch them again.
                dir.unlistable = Some(epoch);
            }
            dir.crowded = dir.weight() >= LOOK;
            if dir.crowded {
                crowded.push_front(first);
            }
        }
        self.crowded = crowded;
    }

    /// What is valid about `name` in `parent`.
    pub(crate) fn known_name(&self, parent: u64, name: &[u8]) -> KnownName {
        let Some(node) = self.get(parent) else { return KnownName::Unknown };
        let Some(dir) = &node.dir else { return KnownName::Unknown };
        if node.doubts(name) || dir.layout != self.layout_version(parent) {
            return KnownName::Unknown;
        }
        let covered = node.has(bits::UPDATE);
        match dir.names.get(name) {
            Some(entry) => {
                let by_parent = covered && entry.dir_epoch == node.validity.update_epoch();
                match entry.fid {
                    None if by_parent => KnownName::Nothing,
                    Some(fid) if by_parent => KnownName::Child(fid),
                    Some(fid) => match self.get(fid.ino()) {
                        Some(child)
                            if child.has(bits::LOOKUP) && child.validity.lookup_epoch() == entry.child_epoch =>
                        {
                            KnownName::Child(fid)
                        }
                        _ => KnownName::Unknown,
                    },
                    None => KnownName::Unknown,
                }
            }
            None if covered
                && dir.complete_epoch == Some(node.validity.update_epoch())
                && !dir.older.may_have(name) =>
            {
                KnownName::Nothing
            }
            None => KnownName::Unknown,
        }
    }

    /// The object that a name led to when that was last known.
    pub(crate) fn last_known(&self, parent: u64, name: &[u8]) -> Option<Fid> {
        self.get(parent)?.dir.as_ref()?.names.get(name)?.fid
    }

    /// The epoch of a directory's names, to be compared when a reply arrives.
    pub(crate) fn directory_epoch(&self, ino: u64) -> u32 {
        self.get(ino).map_or(0, |node| node.validity.update_epoch())
    }

    /// A reply says that `name` leads to `attr.fid`, under these epochs. Change `version` made it, or that state of the
    /// directory showed it.
    pub(crate) fn learn_child(&mut self, parent: u64, name: &Bytes, attr: &Attr, epochs: Epochs, version: u64) {
        if attr.mode & S_IFMT == S_IFDIR
            && let Some(child) = self.get_mut(attr.fid.ino())
        {
            child.parent = parent;
        }
        let kind = (attr.mode & S_IFMT) >> 12;
        let entry = Entry { fid: Some(attr.fid), kind, dir_epoch: epochs.dir, child_epoch: epochs.child, version };
        self.learn(parent, name, entry, epochs.layout);
    }

    /// The object to which a name led when it was looked up had that name afterwards, under this epoch of its own lock. It
    /// lies on another metadata target than the directory.
    pub(crate) fn still_leads(&mut self, parent: u64, name: &Bytes, fid: Fid, child_epoch: u32) {
        let dir = self.get_mut(parent).and_then(|node| node.dir.as_mut());
        let entry = dir.and_then(|dir| dir.names.get_mut(name)).filter(|entry| entry.fid == Some(fid));
        if let (Some(entry), true) = (entry, child_epoch != 0) {
            entry.child_epoch = child_epoch;
        }
    }

    /// A reply says that there is no such name.
    pub(crate) fn learn_absent(&mut self, parent: u64, name: &Bytes, epochs: Epochs, version: u64) {
        let entry = Entry { fid: None, kind: 0, dir_epoch: epochs.dir, child_epoch: 0, version };
        self.learn(parent, name, entry, epochs.layout);
    }

    fn learn(&mut self, parent: u64, name: &Bytes, entry: Entry, layout: u32) {
        let Some(fid_parent) = Fid::from_ino(parent) else { return };
        if layout != self.layout_version(parent) {
            return;
        }
        let node = self.obtain(fid_parent);
        let current = node.validity.update_epoch();
        let dir = node.dir_mut();
        dir.hold_for(layout);
        dir.put(name, entry, current);
        if dir.names.len() >= LOOK && dir.names.len().is_multiple_of(LOOK) {
            self.bound_names(parent);
        }
    }

    /// An own change made (`attr`) or removed (`None`) a name. If the directory's lock was lost meanwhile, the listing
    /// is no longer complete.
    pub(crate) fn changed_name(
        &mut self,
        parent: u64,
        name: &Bytes,
        attr: Option<&Attr>,
        epochs: Epochs,
        version: u64,
    ) {
        let Some(node) = self.get_mut(parent) else { return };
        let same = node.validity.update_epoch() == epochs.dir;
        let dir = node.dir_mut();
        dir.changes = dir.changes.wrapping_add(1);
        // A reconstructed reply after a restart says less, and nothing about its time.
        if version == 0 {
            dir.names.remove(name);
        }
        if !same || version == 0 {
            stdx::mark!("directory_lock_lost_in_flight");
            dir.incomplete();
            dir.building = None;
            dir.listing = None;
        } else if attr.is_some() {
            // Only the server knows the place of the new entry in the order.
            dir.listing = None;
        }
        match attr {
            _ if version == 0 => {}
            Some(attr) => self.learn_child(parent, name, attr, epochs, version),
            None => self.learn_absent(parent, name, epochs, version),
        }
    }

    /// The server failed to list a directory: its pieces are incomplete, and it would be useless to fetch them again.
    pub(crate) fn listing_failed(&mut self, ino: u64) {
        let Some(node) = self.get_mut(ino) else { return };
        let epoch = node.validity.update_epoch();
        if let Some(dir) = node.dir.as_mut() {
            dir.building = None;
            dir.unlistable = Some(epoch);
        }
    }

    /// The last piece of a listing has arrived.
    pub(crate) fn listing_complete(&mut self, ino: u64) {
        let layout = self.layout_version(ino);
        let Some(node) = self.get_mut(ino) else { return };
        let Some(dir) = node.dir.as_mut() else { return };
        let Some(building) = dir.building.take() else { return };
        dir.hold_for(layout);
        let epoch = building.epoch;
        // What this client changed while the pieces were read is newer than they are.
        dir.names.retain(|_, entry| entry.dir_epoch == epoch);
        let disturbed = dir.names.values().any(|entry| entry.version > building.version);
        let mut names = core::mem::take(&mut dir.names);
        names.reserve(building.listing.entries.len());
        for listed in &building.listing.entries {
            if names.get(&listed.name).is_some_and(|known| known.version > building.version) {
                continue;
            }
            let child_epoch = self.get(listed.fid.ino()).map_or(0, |child| child.validity.lookup_epoch());
            let entry = Entry {
                fid: Some(listed.fid),
                kind: listed.kind,
                dir_epoch: epoch,
                child_epoch,
                version: building.version,
            };
            names.insert(listed.name.clone(), entry);
        }
        let Some(dir) = self.get_mut(ino).and_then(|node| node.dir.as_mut()) else { return };
        dir.names = names;
        dir.older = NameMarks::default();
        dir.complete_epoch = Some(epoch);
        if !disturbed {
            dir.listing = Some((epoch, Arc::new(building.listing)));
        }
        if dir.names.len() >= LOOK {
            self.bound_names(ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_answer_about_a_name_is_not_taken() {
        const EPOCH: u32 = 7;
        let name = Bytes::from_static(b"f");
        let entry = |version, dir_epoch, oid| Entry {
            fid: Some(Fid::new(Fid::SEQ_FIRST, oid)),
            kind: 0,
            dir_epoch,
            child_epoch: 0,
            version,
        };
        // The cached entry, the one that arrives, and whether it is taken.
        let cases = [
            (entry(9, EPOCH, 1), entry(8, EPOCH, 2), false),
            (entry(9, EPOCH, 1), entry(9, EPOCH, 2), true),
            (entry(9, EPOCH, 1), entry(10, EPOCH, 2), true),
            // Of unknown age: newer only than what another lock covered.
            (entry(9, EPOCH, 1), entry(0, EPOCH, 2), false),
            (entry(9, EPOCH - 1, 1), entry(0, EPOCH, 2), true),
            (entry(9, EPOCH - 1, 1), entry(8, EPOCH, 2), false),
        ];
        for (known, comes, taken) in cases {
            let mut dir = Directory::default();
            dir.put(&name, known.clone(), EPOCH);
            dir.put(&name, comes.clone(), EPOCH);
            let there = if taken { &comes } else { &known };
            assert_eq!(dir.names.get(&name), Some(there), "{known:?}, then {comes:?}");
        }
    }
}
