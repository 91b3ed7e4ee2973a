//! Checks of inodes: the object index, allocated numbers, records that belong to inodes, and FIDs of several targets.

use crate::inconsistency::text;
use crate::{Inconsistency, Mdt, decode, single};
use proto::Fid;
use rules::mode::{S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG, S_IFSOCK};
use schema::inode::REGION_BITS;
use schema::{CrossRec, Header, LargeXattr, MdtState, Orphan, Record, SeqGrant, SmallData};
use std::collections::{BTreeMap, BTreeSet};

type Found = Vec<Inconsistency>;

/// Runs these checks.
pub(crate) fn check(mdt: &Mdt<'_>, found: &mut Found) {
    if single::<Header>(mdt.records).is_none() {
        found.push(Inconsistency::Missing { what: "target header" });
    }
    let has_root = mdt.target.is_none_or(|target| target == 0);
    if has_root && mdt.object(Fid::ROOT).is_none_or(|(_, root)| !root.is_dir()) {
        found.push(Inconsistency::Missing { what: "root directory" });
    }
    // Version 0.3.0 makes them when it starts.
    let dot_lustre = [Fid::DOT_LUSTRE, Fid::DOT_LUSTRE_FID, Fid::LOST_FOUND];
    let made = dot_lustre.iter().filter(|fid| mdt.object(**fid).is_some_and(|(_, inode)| inode.is_dir())).count();
    if made != 0 && made != dot_lustre.len() {
        found.push(Inconsistency::Missing { what: "directory of .lustre" });
    }
    index(mdt, found);
    numbers(mdt, found);
    sequences(mdt, found);
    data(mdt, found);
    xattrs(mdt, found);
    orphans(mdt, found);
    for (key, record) in decode::<CrossRec>(mdt.records, found) {
        found.push(Inconsistency::CrossLeft { mdt: mdt.target, key, done: record.done });
    }
}

/// Checks that each sequence belongs to one target, that objects are on the target of their sequence only, and that all targets have
/// the same keys for the hashes of names.
pub(crate) fn check_all(mdts: &[Mdt<'_>], found: &mut Found) {
    // One that has not registered yet has no names.
    let headers = mdts.iter().filter_map(|mdt| Some((mdt.target, single::<Header>(mdt.records)?)));
    let headers: Vec<_> = headers.filter(|(_, header)| !header.takes_keys).collect();
    for pair in headers.windows(2) {
        let [(than, one), (mdt, other)] = pair else { continue };
        if (&one.name_key, &one.second_key) != (&other.name_key, &other.second_key) {
            found.push(Inconsistency::OtherKeys { mdt: *mdt, than: *than });
        }
    }
    let mut owners: BTreeMap<u64, (u64, Option<u32>)> = BTreeMap::new();
    for mdt in mdts {
        for range in single::<MdtState>(mdt.records).map(|state| state.allocated).unwrap_or_default() {
            let before = owners.range(..range.end).next_back().filter(|(_, (end, _))| *end > range.start);
            if before.is_some() {
                found.push(Inconsistency::SequenceTwice { seq: range.start });
            }
            owners.insert(range.start, (range.end, mdt.target));
        }
    }
    let (mut fids, mut granted) = (BTreeSet::new(), BTreeSet::new());
    for mdt in mdts {
        let is_others = |seq: u64| {
            let owner = owners.range(..=seq).next_back().filter(|(_, (end, _))| seq < *end);
            owner.is_some_and(|(_, (_, owner))| *owner != mdt.target)
        };
        for &fid in mdt.index.keys() {
            if is_others(fid.seq) || !fids.insert(fid) {
                found.push(Inconsistency::WrongTarget { fid, mdt: mdt.target });
            }
        }
        for seq in mdt.records.range(&SeqGrant::all()).filter_map(|(key, _)| SeqGrant::parse_key(key)) {
            if is_others(seq) || !granted.insert(seq) {
                found.push(Inconsistency::SequenceTwice { seq });
            }
        }
    }
}

fn index(mdt: &Mdt<'_>, found: &mut Found) {
    for (&fid, &ino) in &mdt.index {
        let there = mdt.inodes.get(&ino).map(|inode| inode.fid);
        if there != Some(fid) {
            found.push(Inconsistency::WrongIndex { fid, ino, found: there });
        }
    }
    for (&ino, inode) in &mdt.inodes {
        let fid = inode.fid;
        if mdt.index.get(&fid) != Some(&ino) {
            found.push(Inconsistency::NotIndexed { fid, ino });
        }
        let types = [S_IFREG, S_IFDIR, S_IFLNK, S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK];
        if !types.contains(&inode.kind()) {
            found.push(Inconsistency::WrongType { fid, mode: inode.mode });
        }
    }
}

/// Checks that no local inode number and no region can be allocated twice.
fn numbers(mdt: &Mdt<'_>, found: &mut Found) {
    let next_region = single::<MdtState>(mdt.records).map_or(0, |state| state.next_region);
    if let Some((&last, _)) = mdt.inodes.last_key_value()
        && last >> REGION_BITS >= next_region
    {
        found.push(Inconsistency::NumberAgain { what: "regions", next: next_region, used: last >> REGION_BITS });
    }
    let mut owners = BTreeSet::new();
    for dir in mdt.inodes.values().filter(|inode| inode.dir.next_ino != 0) {
        let next = dir.dir.next_ino;
        let region = (next - 1) >> REGION_BITS;
        if region >= next_region || !owners.insert(region) {
            found.push(Inconsistency::NumberAgain { what: "regions of directories", next: next_region, used: region });
        }
        if let Some((&used, _)) = mdt.inodes.range(next..(region + 1) << REGION_BITS).next() {
            found.push(Inconsistency::NumberAgain { what: "local inode numbers", next, used });
        }
    }
}

fn sequences(mdt: &Mdt<'_>, found: &mut Found) {
    let grants: BTreeMap<u64, SeqGrant> = decode::<SeqGrant>(mdt.records, found).into_iter().collect();
    let left = single::<MdtState>(mdt.records).map(|state| state.sequences).unwrap_or_default();
    for inode in mdt.inodes.values().filter(|inode| !inode.fid.is_built_in()) {
        let fid = inode.fid;
        let used = match grants.get(&fid.seq) {
            Some(grant) => grant.is_used(fid.oid),
            // No grant is left, so its client is gone, or the sequence was never granted.
            None => fid.is_normal() && !left.iter().any(|range| (range.start..range.end).contains(&fid.seq)),
        };
        if !used {
            found.push(Inconsistency::UnusedFid { fid });
        }
    }
    for range in left.iter().filter(|range| !range.is_empty()) {
        found.extend(grants.range(range.start..range.end).map(|(&seq, _)| Inconsistency::SequenceTwice { seq }));
    }
}

fn data(mdt: &Mdt<'_>, found: &mut Found) {
    let bytes: BTreeMap<u64, u64> =
        decode::<SmallData>(mdt.records, found).into_iter().map(|(ino, data)| (ino, data.0.len() as u64)).collect();
    for &ino in bytes.keys() {
        if !mdt.inodes.get(&ino).is_some_and(|inode| inode.is_resident()) {
            found.push(Inconsistency::DataNowhere { ino });
        }
    }
    for (ino, inode) in mdt.inodes.iter().filter(|(_, inode)| inode.is_file()) {
        let bytes = bytes.get(ino).copied().filter(|_| inode.is_resident());
        let fits = match bytes {
            Some(bytes) => bytes > 0 && bytes <= inode.size && inode.blocks == bytes.div_ceil(512),
            None => inode.blocks == 0 && (inode.is_resident() || inode.size == 0),
        };
        if !fits {
            let (fid, size, blocks) = (inode.fid, inode.size, inode.blocks);
            found.push(Inconsistency::WrongData { fid, bytes, size, blocks });
        }
    }
}

fn xattrs(mdt: &Mdt<'_>, found: &mut Found) {
    let stored: BTreeSet<(u64, Vec<u8>)> =
        decode::<LargeXattr>(mdt.records, found).into_iter().map(|((ino, name), _)| (ino, name.to_vec())).collect();
    let mut listed = BTreeSet::new();
    for (&ino, inode) in &mdt.inodes {
        for xattr in inode.xattrs.iter().filter(|xattr| xattr.large) {
            listed.insert((ino, xattr.name.to_vec()));
        }
    }
    let wrong = stored.symmetric_difference(&listed);
    found.extend(wrong.map(|(ino, name)| Inconsistency::WrongXattr { ino: *ino, name: text(name) }));
}

fn orphans(mdt: &Mdt<'_>, found: &mut Found) {
    let orphans: BTreeMap<Fid, Orphan> = decode::<Orphan>(mdt.records, found).into_iter().collect();
    for (&fid, orphan) in &orphans {
        if !mdt.object(fid).is_some_and(|(ino, inode)| ino == orphan.ino && inode.nlink == 0) {
            found.push(Inconsistency::FalseOrphan { fid });
        }
    }
    for inode in mdt.inodes.values().filter(|inode| inode.nlink == 0) {
        if !orphans.contains_key(&inode.fid) {
            found.push(Inconsistency::Nameless { fid: inode.fid });
        }
    }
}
