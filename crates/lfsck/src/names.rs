//! Checks of names: entries and their objects, linkEAs, counts, and the tree of directories, over all metadata targets.

use crate::inconsistency::text;
use crate::{Inconsistency, Mdt, decode, object, single, stripes};
use proto::Fid;
use proto::msg::Lmv;
use rules::names::is_dot_lustre;
use schema::entry::CHAIN_MAX;
use schema::{Entry, Header, Inode, Link, LinkEa, first_cookie, second_cookie};
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
pub(crate) fn check(mdts: &[Mdt<'_>], found: &mut Found) {
    let (mut listings, mut names) = (BTreeMap::new(), BTreeMap::new());
    for mdt in mdts {
        read_entries(mdt, mdts, &mut listings, &mut names, found);
    }
    for inode in mdts.iter().flat_map(|mdt| mdt.inodes.values()) {
        check_links(inode, mdts, &listings, found);
        check_counts(inode, &listings, &names, found);
    }
    check_tree(mdts, found);
}

/// Adds the entries of a target to the listings of all directories and to the number of names of each object.
fn read_entries(
    mdt: &Mdt<'_>,
    mdts: &[Mdt<'_>],
    all: &mut BTreeMap<Fid, Listing>,
    names: &mut BTreeMap<Fid, u64>,
    found: &mut Found,
) {
    let header = single::<Header>(mdt.records).unwrap_or_default();
    let mut listings: BTreeMap<u64, Listing> = BTreeMap::new();
    for (key, entry) in decode::<Entry>(mdt.records, found) {
        let name = text(&entry.name);
        let Some(dir) = mdt.inodes.get(&key.dir).filter(|inode| inode.is_dir()) else {
            found.push(Inconsistency::EntryNowhere { dir: key.dir, name });
            continue;
        };
        let (lmv, parent, dir) = (dir.lmv.as_deref(), dir.master(), dir.fid);
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
        let of_name = |lmv: &Lmv| (lmv.index, rules::stripes::of_name(lmv, &entry.name));
        // It may not have moved yet.
        let may_be_here = |lmv: &&Lmv| rules::stripes::former_of_name(lmv, &entry.name) == lmv.index;
        let astray = lmv.filter(|lmv| !may_be_here(lmv)).map(of_name).filter(|(index, wanted)| index != wanted);
        if let Some((index, wanted)) = astray {
            found.push(Inconsistency::NameAstray { dir, name: name.clone(), index, wanted });
        }
        let fid = entry.object();
        *names.entry(fid).or_default() += 1;
        if listing.names.insert(entry.name.to_vec(), fid).is_some() {
            found.push(Inconsistency::NameTwice { dir, name: name.clone() });
        }
        let Some((target, inode)) = lookup(mdt, mdts, fid) else {
            found.push(Inconsistency::Dangling { dir, name, fid });
            continue;
        };
        let object = (target != mdt.target).then_some(target).flatten();
        if entry.mdt != object {
            found.push(Inconsistency::EntryTarget { dir, name: name.clone(), entry: entry.mdt, object: target });
        }
        listing.subdirs += u64::from(inode.is_dir());
        if inode.entry_kind() != entry.kind {
            let (entry, object) = (entry.kind, inode.entry_kind());
            found.push(Inconsistency::EntryType { dir, name: name.clone(), entry, object });
        }
        if !inode.links.contains(parent, &entry.name) && !inode.links.overflow {
            found.push(Inconsistency::LinkMissing { dir, name, fid });
        }
    }
    for (ino, listing) in listings {
        let Some(dir) = mdt.inodes.get(&ino).map(|inode| inode.fid) else { continue };
        for (last, cookie, name) in &listing.second {
            if !listing.cookies.contains(last) {
                found.push(Inconsistency::EntryMisplaced { dir, name: name.clone(), cookie: *cookie });
            }
        }
        all.insert(dir, listing);
    }
}

/// The object of a FID on this target, or else on any other, with the target's index.
fn lookup<'m>(mdt: &'m Mdt<'_>, mdts: &'m [Mdt<'_>], fid: Fid) -> Option<(Option<u32>, &'m Inode)> {
    let on = |mdt: &'m Mdt<'_>| mdt.object(fid).map(|(_, inode)| (mdt.target, inode));
    on(mdt).or_else(|| mdts.iter().find_map(on))
}

/// Whether this is the name of `.lustre`, which has no entry in the root.
fn is_hidden(fid: Fid, link: &Link) -> bool {
    fid == Fid::DOT_LUSTRE && is_dot_lustre(link.parent, &link.name)
}

/// Checks that each name in a linkEA has its entry. It names the master of a striped directory; the entry is in any stripe.
fn check_links(inode: &Inode, mdts: &[Mdt<'_>], listings: &BTreeMap<Fid, Listing>, found: &mut Found) {
    if stripes::is_other(inode) {
        return;
    }
    let fid = inode.fid;
    let LinkEa { links, .. } = &inode.links;
    for link in links {
        // An orphan directory keeps its last linkEA, so that its `..` is valid.
        let was_removed = inode.nlink == 0 && inode.is_dir();
        let parent = object(mdts, link.parent);
        let stripes = parent.map_or(&[][..], Inode::stripes).iter().map(|stripe| stripe.fid);
        let mut dirs = core::iter::once(link.parent).chain(stripes.skip(1));
        let in_dir = |dir: Fid| listings.get(&dir).and_then(|listing| listing.names.get(&link.name[..]));
        let there = dirs.find_map(in_dir).filter(|_| !parent.is_some_and(stripes::is_other));
        if !was_removed && there != Some(&fid) && !is_hidden(fid, link) {
            found.push(Inconsistency::LinkStale { fid, dir: link.parent, name: text(&link.name) });
        }
    }
}

fn check_counts(inode: &Inode, listings: &BTreeMap<Fid, Listing>, names: &BTreeMap<Fid, u64>, found: &mut Found) {
    let fid = inode.fid;
    let names = names.get(&fid).copied().unwrap_or(0);
    if inode.is_dir() {
        check_dir(inode, listings.get(&fid).unwrap_or(&Listing::default()), names, found);
    } else if u64::from(inode.nlink) != names {
        found.push(Inconsistency::WrongLinks { fid, stored: inode.nlink, counted: names });
    }
}

fn check_dir(inode: &Inode, listing: &Listing, names: u64, found: &mut Found) {
    let fid = inode.fid;
    let removed = inode.nlink == 0;
    let counted = if removed { 0 } else { 2 + listing.subdirs };
    if u64::from(inode.nlink) != counted {
        found.push(Inconsistency::WrongLinks { fid, stored: inode.nlink, counted });
    }
    let named = u64::from(fid != Fid::ROOT && !removed);
    let entries = if fid == Fid::DOT_LUSTRE { 0 } else { named };
    let links = inode.links.links.len();
    // A stripe has an entry in its linkEA, and no name.
    let wanted = if stripes::is_other(inode) { 0 } else { entries };
    if names != wanted || (links as u64 != named && !removed) {
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
fn check_tree(mdts: &[Mdt<'_>], found: &mut Found) {
    let objects: BTreeMap<Fid, &Inode> = mdts
        .iter()
        .flat_map(|mdt| mdt.index.keys().filter_map(|fid| Some((*fid, mdt.object(*fid)?.1))))
        .filter(|(_, inode)| inode.is_dir() && inode.nlink > 0)
        .collect();
    let mut good: BTreeSet<Fid> = BTreeSet::from([Fid::ROOT]);
    let inodes = mdts.iter().flat_map(|mdt| mdt.inodes.values());
    for inode in inodes.filter(|inode| inode.is_dir() && inode.nlink > 0) {
        let mut way = BTreeSet::new();
        let mut fid = inode.fid;
        while !good.contains(&fid) && way.insert(fid) {
            match objects.get(&fid) {
                Some(dir) if !dir.links.links.is_empty() => fid = dir.parent(),
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
