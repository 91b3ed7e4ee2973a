//! Checks of names: entries and their objects, linkEAs, counts, and the tree of directories.

use crate::inconsistency::text;
use crate::{Inconsistency, Mdt, decode, single};
use proto::Fid;
use schema::entry::CHAIN_MAX;
use schema::{Entry, Header, Inode, LinkEa, first_cookie, second_cookie};
use std::collections::{BTreeMap, BTreeSet};

type Found = Vec<Inconsistency>;

/// The entries of a directory, summed up.
#[derive(Default)]
struct Listing {
    entries: u64,
    tombstones: u64,
    subdirs: u64,
    names: BTreeMap<Vec<u8>, Fid>,
    cookies: BTreeSet<u64>,
    /// Names in second chains: the last cookie of the first chain, which must be in use, their own cookie, and the name.
    second: Vec<(u64, u64, String)>,
}

/// Runs these checks.
pub(crate) fn check(mdt: &Mdt<'_>, found: &mut Found) {
    let (listings, names) = read_entries(mdt, found);
    check_links(mdt, &listings, found);
    check_counts(mdt, &listings, &names, found);
    check_tree(mdt, found);
}

/// The listings of all directories by local inode number, and the number of names of each object.
fn read_entries(mdt: &Mdt<'_>, found: &mut Found) -> (BTreeMap<u64, Listing>, BTreeMap<Fid, u64>) {
    let header = single::<Header>(mdt.records).unwrap_or_default();
    let mut listings: BTreeMap<u64, Listing> = BTreeMap::new();
    let mut names: BTreeMap<Fid, u64> = BTreeMap::new();
    for (key, entry) in decode::<Entry>(mdt.records, found) {
        let name = text(&entry.name);
        let Some(dir) = mdt.inodes.get(&key.dir).filter(|inode| inode.is_dir()) else {
            found.push(Inconsistency::EntryNowhere { dir: key.dir, name });
            continue;
        };
        let dir = dir.fid;
        let listing = listings.entry(key.dir).or_default();
        let at = key.cookie % CHAIN_MAX;
        let reached = at == 0 || listing.cookies.contains(&(key.cookie - 1));
        listing.cookies.insert(key.cookie);
        let begin = key.cookie - at;
        let in_first = entry.is_tombstone() || first_cookie(&header, &entry.name) == begin;
        let in_second = !in_first && second_cookie(&header, &entry.name) == Some(begin);
        if in_second {
            // Lookups search the second chain only if the first one is full.
            let last = first_cookie(&header, &entry.name) + CHAIN_MAX - 1;
            listing.second.push((last, key.cookie, name.clone()));
        }
        if !reached || !(in_first || in_second) {
            found.push(Inconsistency::EntryMisplaced { dir, name: name.clone(), cookie: key.cookie });
        }
        if entry.is_tombstone() {
            listing.tombstones += 1;
            continue;
        }
        listing.entries += 1;
        let fid = entry.object();
        *names.entry(fid).or_default() += 1;
        if listing.names.insert(entry.name.to_vec(), fid).is_some() {
            found.push(Inconsistency::NameTwice { dir, name: name.clone() });
        }
        let Some((_, inode)) = mdt.object(fid) else {
            found.push(Inconsistency::Dangling { dir, name, fid });
            continue;
        };
        listing.subdirs += u64::from(inode.is_dir());
        if inode.entry_kind() != entry.kind {
            let (entry, object) = (entry.kind, inode.entry_kind());
            found.push(Inconsistency::EntryType { dir, name: name.clone(), entry, object });
        }
        if !inode.links.contains(dir, &entry.name) && !inode.links.overflow {
            found.push(Inconsistency::LinkMissing { dir, name, fid });
        }
    }
    for (ino, listing) in &listings {
        let Some(dir) = mdt.inodes.get(ino).map(|inode| inode.fid) else { continue };
        for (last, cookie, name) in &listing.second {
            if !listing.cookies.contains(last) {
                found.push(Inconsistency::EntryMisplaced { dir, name: name.clone(), cookie: *cookie });
            }
        }
    }
    (listings, names)
}

/// Checks that each name in a linkEA has its entry.
fn check_links(mdt: &Mdt<'_>, listings: &BTreeMap<u64, Listing>, found: &mut Found) {
    for inode in mdt.inodes.values() {
        let fid = inode.fid;
        let LinkEa { links, .. } = &inode.links;
        for link in links {
            let listing = mdt.object(link.parent).and_then(|(ino, _)| listings.get(&ino));
            // An orphan directory keeps its last linkEA, so that its `..` is valid.
            let was_removed = inode.nlink == 0 && inode.is_dir();
            if !was_removed && listing.and_then(|listing| listing.names.get(&link.name[..])) != Some(&fid) {
                found.push(Inconsistency::LinkStale { fid, dir: link.parent, name: text(&link.name) });
            }
        }
    }
}

fn check_counts(mdt: &Mdt<'_>, listings: &BTreeMap<u64, Listing>, names: &BTreeMap<Fid, u64>, found: &mut Found) {
    let empty = Listing::default();
    for (ino, inode) in &mdt.inodes {
        let fid = inode.fid;
        let names = names.get(&fid).copied().unwrap_or(0);
        if !inode.is_dir() {
            if u64::from(inode.nlink) != names {
                found.push(Inconsistency::WrongLinks { fid, stored: inode.nlink, counted: names });
            }
            continue;
        }
        let listing = listings.get(ino).unwrap_or(&empty);
        check_dir(inode, listing, names, found);
    }
}

fn check_dir(inode: &Inode, listing: &Listing, names: u64, found: &mut Found) {
    let fid = inode.fid;
    let removed = inode.nlink == 0;
    let counted = if removed { 0 } else { 2 + listing.subdirs };
    if u64::from(inode.nlink) != counted {
        found.push(Inconsistency::WrongLinks { fid, stored: inode.nlink, counted });
    }
    let wanted = u64::from(fid != Fid::ROOT && !removed);
    let links = inode.links.links.len();
    if names != wanted || (links as u64 != wanted && !removed) {
        found.push(Inconsistency::DirectoryNames { fid, names, links });
    }
    let counts =
        [("entries", inode.dir.entries, listing.entries), ("tombstones", inode.dir.tombstones, listing.tombstones)];
    for (what, stored, counted) in counts {
        if stored != counted {
            found.push(Inconsistency::WrongCount { fid, what, stored, counted });
        }
    }
}

/// Checks that following `..` from any directory ends at the root.
fn check_tree(mdt: &Mdt<'_>, found: &mut Found) {
    let mut good: BTreeSet<Fid> = BTreeSet::from([Fid::ROOT]);
    for inode in mdt.inodes.values().filter(|inode| inode.is_dir() && inode.nlink > 0) {
        let mut way = BTreeSet::new();
        let mut fid = inode.fid;
        while !good.contains(&fid) && way.insert(fid) {
            match mdt.object(fid) {
                Some((_, dir)) if dir.is_dir() && dir.nlink > 0 && !dir.links.links.is_empty() => fid = dir.parent(),
                _ => break,
            }
        }
        if good.contains(&fid) {
            good.extend(way);
        } else {
            found.push(Inconsistency::Adrift { fid: inode.fid });
        }
    }
}
