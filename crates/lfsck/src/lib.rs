//! Consistency checks over the records of targets (`lfsck`).
//!
//! [`check`] is a pure function from [`Snapshot`]s of metadata targets and object targets to a list of
//! [`Inconsistency`]s. The simulator uses it as an oracle, and an offline check of a stopped file system runs it. It repairs
//! nothing and knows nothing of clients. The checks between targets are valid only at rest: no destroy in flight, no file half
//! moved, no change of several metadata targets that is not completed on all of them.
//!
//! The rules:
//!
//! | between | rule | in |
//! |---|---|---|
//! | object index, inodes | each FID leads to the inode that carries it, and back | [`objects`] |
//! | numbers | counters are ahead of what was allocated; FIDs come from granted sequences and count as used | [`objects`] |
//! | inodes, their parts | data only for resident files, large attributes as the inode lists them, orphans without names | [`objects`] |
//! | metadata targets | each FID is on one target, the one that has its sequence; no record of a cross change is left | [`objects`] |
//! | metadata targets | all have the same keys for the hashes of names | [`objects`] |
//! | entries, inodes | each entry leads to an object of its type on the target that it says, chains have no holes, names are unique | [`names`] |
//! | entries, linkEA | each name is in its object's linkEA, and back, also between targets | [`names`] |
//! | directories | link and entry counts; every directory is reachable from the root, through all targets | [`names`] |
//! | stripes of directories | each stripe is where its master lists it, and equals it; each name is in the stripe of its hash | [`stripes`], [`names`] |
//! | layouts, destroy log, objects | each object is in the layout of a file, or is about to be destroyed | [`layout`] |

mod inconsistency;
pub mod layout;
pub mod names;
pub mod objects;
mod snapshot;
pub mod stripes;
#[cfg(test)]
mod tests;

pub use inconsistency::Inconsistency;
pub use snapshot::Snapshot;

use proto::{Fid, TargetName};
use schema::{BadRecord, Header, Inode, Oi, Record};
use std::collections::BTreeMap;
use store::Key;

/// A metadata target, with the records decoded that all checks use.
pub(crate) struct Mdt<'a> {
    pub(crate) records: &'a Snapshot,
    /// Its index, from the header.
    pub(crate) target: Option<u32>,
    /// Inodes by local inode number.
    pub(crate) inodes: BTreeMap<u64, Inode>,
    /// The object index: from FIDs to local inode numbers.
    pub(crate) index: BTreeMap<Fid, u64>,
}

impl Mdt<'_> {
    /// The object of a FID, if the index leads to it.
    pub(crate) fn object(&self, fid: Fid) -> Option<(u64, &Inode)> {
        let ino = *self.index.get(&fid)?;
        self.inodes.get(&ino).filter(|inode| inode.fid == fid).map(|inode| (ino, inode))
    }
}

/// The object of a FID on any metadata target.
pub(crate) fn object<'m>(mdts: &'m [Mdt<'_>], fid: Fid) -> Option<&'m Inode> {
    mdts.iter().find_map(|mdt| mdt.object(fid)).map(|(_, inode)| inode)
}

/// Checks the metadata targets and the object targets (by index) of a file system. Returns all inconsistencies.
pub fn check(mdts: &[&Snapshot], osts: &[(u32, &Snapshot)]) -> Vec<Inconsistency> {
    let mut found = Vec::new();
    let mut decoded = Vec::new();
    for records in mdts {
        let inodes = decode::<Inode>(records, &mut found).into_iter().collect();
        let index = decode::<Oi>(records, &mut found).into_iter().map(|(fid, oi)| (fid, oi.ino)).collect();
        let name = single::<Header>(records).and_then(|header| header.name.parse::<TargetName>().ok());
        decoded.push(Mdt { records, target: name.map(|name| name.index.0), inodes, index });
    }
    for mdt in &decoded {
        objects::check(mdt, &mut found);
    }
    objects::check_all(&decoded, &mut found);
    names::check(&decoded, &mut found);
    stripes::check(&decoded, &mut found);
    layout::check(&decoded, osts, &mut found);
    found
}

/// All records of a kind. Those that cannot be decoded are reported as inconsistencies.
pub(crate) fn decode<R: Record>(records: &Snapshot, found: &mut Vec<Inconsistency>) -> Vec<(R::Id, R)> {
    let mut out = Vec::new();
    for (key, body) in records.range(&R::all()) {
        match (R::parse_key(key), R::decode_record(body)) {
            (Some(id), Ok(record)) => out.push((id, record)),
            (None, _) => {
                let bad = BadRecord { kind: R::KIND, what: "its key names nothing".into() };
                found.push(Inconsistency::BadRecord { key: Key::new(key), bad });
            }
            (_, Err(bad)) => found.push(Inconsistency::BadRecord { key: Key::new(key), bad }),
        }
    }
    out
}

/// The record of a kind that has only one.
pub(crate) fn single<R: Record<Id = ()>>(records: &Snapshot) -> Option<R> {
    records.get(&R::key(&())).and_then(|body| R::decode_record(body).ok())
}
