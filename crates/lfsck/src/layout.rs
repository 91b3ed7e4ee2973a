//! Checks of objects on object targets against layouts and the destroy log.

use crate::{Inconsistency, Mdt, Snapshot, decode, single};
use proto::Fid;
use schema::{DestroyLog, DoomedFile, Moving, Object, ObjectKey, ObjectsKey, OstState, Written};
use std::collections::{BTreeMap, BTreeSet};

type Found = Vec<Inconsistency>;

/// Runs these checks.
pub(crate) fn check(mdts: &[Mdt<'_>], osts: &[(u32, &Snapshot)], found: &mut Found) {
    let object = |fid| mdts.iter().find_map(|mdt| mdt.object(fid));
    let mut doomed: BTreeMap<Fid, Vec<(u32, Vec<u32>)>> = BTreeMap::new();
    let mut moving: BTreeSet<Fid> = BTreeSet::new();
    let mut logs = Vec::new();
    for mdt in mdts {
        logs.extend(decode::<DestroyLog>(mdt.records, found));
        moving.extend(decode::<Moving>(mdt.records, found).into_iter().map(|(range, _)| range));
    }
    for (ObjectsKey { fid, first }, log) in logs {
        let needed = object(fid).and_then(|(_, inode)| inode.layout.as_ref()).filter(|layout| {
            let end = |first: u32, osts: &[u32]| u64::from(first) + osts.len() as u64;
            u64::from(first) < end(layout.first_object, &layout.osts)
                && u64::from(layout.first_object) < end(first, &log.osts)
        });
        if needed.is_some() {
            found.push(Inconsistency::DestroyOfLiving { fid });
        }
        doomed.entry(fid).or_default().push((first, log.osts));
    }
    for &(ost, records) in osts {
        let is_at = |first: u32, osts: &[u32], number: u32| {
            number.checked_sub(first).and_then(|stripe| osts.get(stripe as usize)) == Some(&ost)
        };
        let objects = decode::<Object>(records, found);
        for (key, _) in &objects {
            let (fid, stripe) = (key.fid, key.stripe.0);
            let layout = object(fid).and_then(|(_, inode)| {
                let may_move = inode.leaving || moving.contains(&Moving::range_of(fid));
                let may_have_objects = inode.is_file() && (!inode.is_resident() || may_move);
                inode.layout.as_ref().filter(|_| may_have_objects)
            });
            let has_file = layout.is_some_and(|layout| is_at(layout.first_object, &layout.osts, stripe));
            let goes =
                doomed.get(&fid).is_some_and(|logs| logs.iter().any(|(first, osts)| is_at(*first, osts, stripe)));
            if !has_file && !goes {
                found.push(Inconsistency::OrphanObject { ost, fid, stripe });
            }
        }
        check_files(ost, records, &objects, found);
        check_marks(ost, records, &objects, found);
    }
}

/// Checks that each mark has an object with its data file, and each object with a data file a mark, except for those that were
/// written by versions without marks.
fn check_marks(ost: u32, records: &Snapshot, objects: &[(ObjectKey, Object)], found: &mut Found) {
    let from = single::<OstState>(records).unwrap_or_default().marked_from;
    let is_current = |instance: u64| from != 0 && instance >= from;
    let marks: BTreeMap<ObjectKey, Written> = decode::<Written>(records, found).into_iter().collect();
    let files: BTreeMap<ObjectKey, u64> = objects.iter().map(|(key, object)| (*key, object.file)).collect();
    for (key, mark) in marks.iter().filter(|(_, mark)| is_current(mark.instance)) {
        if files.get(key) != Some(&mark.file) {
            found.push(Inconsistency::LostObject { ost, fid: key.fid, stripe: key.stripe.0, file: mark.file });
        }
    }
    for (key, _) in objects.iter().filter(|(_, object)| object.file != 0 && is_current(object.instance)) {
        if !marks.contains_key(key) {
            found.push(Inconsistency::UnmarkedObject { ost, fid: key.fid, stripe: key.stripe.0 });
        }
    }
}

/// Checks that every data file belongs to one object and will not be allocated to another.
fn check_files(ost: u32, records: &Snapshot, objects: &[(ObjectKey, Object)], found: &mut Found) {
    let state = single::<OstState>(records).unwrap_or_default();
    let doomed: BTreeSet<u64> = decode::<DoomedFile>(records, found).into_iter().map(|(file, _)| file).collect();
    let mut used = BTreeSet::new();
    for (key, object) in objects.iter().filter(|(_, object)| object.file != 0) {
        let file = object.file;
        let new = used.insert(file);
        if !new || file >= state.next_file || doomed.contains(&file) {
            found.push(Inconsistency::WrongFile { ost, file, fid: key.fid });
        }
    }
}
