//! The table of file systems: the whole store of the MGT in memory. The limits below keep it small.
//!
//! The records count. The table is loaded from them at start, and an operation changes it together with them, as its last
//! step.

use std::collections::BTreeMap;

use proto::Fid;
use proto::msg::{Config, Param, Pool, SequenceRange, TargetEntry};
use schema::{FsRec, ParamRec, PoolRec, Record, TargetRec};
use store::KeyRange;
use target::{Cx, Stop};

/// The most file systems on one MGS.
pub const FILE_SYSTEMS_MAX: usize = 64;
/// The most targets of one file system.
pub const TARGETS_MAX: usize = 4096;
/// The most addresses of one target.
pub const NIDS_MAX: usize = 16;
/// The longest address, in bytes.
pub const NID_LEN_MAX: usize = 256;
/// The most parameters of one file system.
pub const PARAMS_MAX: usize = 1024;
/// The most pools of one file system.
pub const POOLS_MAX: usize = 128;
/// The most members of all pools of one file system together.
pub const POOL_MEMBERS_MAX: usize = 16384;
/// The longest value of a parameter, in bytes.
pub const VALUE_LEN_MAX: usize = 1024;

/// Records in one scan.
const LOOK: usize = 4096;

/// One file system.
#[derive(Clone, Debug)]
pub struct FileSystem {
    /// Its record.
    pub record: FsRec,
    /// Its targets, by full name.
    pub targets: BTreeMap<String, TargetRec>,
    /// Its persistent parameters, by path.
    pub params: BTreeMap<String, String>,
    /// Its pools, by name: indexes of their targets, ascending.
    pub pools: BTreeMap<String, Vec<u32>>,
}

impl Default for FileSystem {
    fn default() -> FileSystem {
        FileSystem {
            record: FsRec { next_sequence: Fid::SEQ_FIRST, ..FsRec::default() },
            targets: BTreeMap::new(),
            params: BTreeMap::new(),
            pools: BTreeMap::new(),
        }
    }
}

impl FileSystem {
    /// The configuration as a message.
    pub fn config(&self, fsname: &str) -> Config {
        let entry = |(name, rec): (&String, &TargetRec)| TargetEntry {
            target: name.clone(),
            nids: rec.nids.clone(),
            instance: rec.instance,
            losses: rec.losses,
            is_lost: is_lost(rec),
        };
        let param = |(path, value): (&String, &String)| Param { path: path.clone(), value: value.clone() };
        let pool = |(name, osts): (&String, &Vec<u32>)| Pool { name: name.clone(), osts: osts.clone() };
        Config {
            version: self.record.config_version,
            targets: self.targets.iter().map(entry).collect(),
            params: self.params.iter().map(param).collect(),
            fsname: fsname.to_owned(),
            pools: self.pools.iter().map(pool).collect(),
            replaced: self.record.replaced,
            sequences: self.record.sequences.clone(),
        }
    }

    /// The value of `mgs.MGS.live.FSNAME`.
    pub fn live(&self, fsname: &str) -> String {
        let mut text = format!("fsname: {fsname}\nflags: 0x20     gen: {}\n", self.record.config_version);
        for name in self.targets.keys() {
            text.push_str(name);
            text.push('\n');
        }
        text.push_str(&format!(
            "\nimperative_recovery_state:\n    state: full\n    nidtbl_version: {}\n",
            self.record.config_version
        ));
        text
    }
}

/// Whether a target was declared lost and has not been admitted since.
pub fn is_lost(target: &TargetRec) -> bool {
    target.admitted < target.losses
}

/// All file systems, by name.
pub type Table = BTreeMap<String, FileSystem>;

/// Reads the whole store.
pub fn load(cx: &mut Cx<'_>) -> Result<Table, Stop> {
    let mut table = Table::new();
    for (fsname, mut record) in all::<FsRec>(cx)? {
        // Version 0.2.0 did not record the target: it was MDT0000. The next change of the record stores that.
        if record.sequences.is_empty() && record.next_sequence > Fid::SEQ_FIRST {
            record.sequences.push(SequenceRange { start: Fid::SEQ_FIRST, end: record.next_sequence, mdt: 0 });
        }
        table.entry(fsname).or_default().record = record;
    }
    for (name, record) in all::<TargetRec>(cx)? {
        let fsname = name.rsplit_once('-').map_or("", |(fsname, _)| fsname).to_owned();
        table.entry(fsname).or_default().targets.insert(name, record);
    }
    for ((fsname, path), record) in all::<ParamRec>(cx)? {
        table.entry(fsname).or_default().params.insert(path, record.value);
    }
    for ((fsname, pool), record) in all::<PoolRec>(cx)? {
        table.entry(fsname).or_default().pools.insert(pool, record.osts);
    }
    Ok(table)
}

fn all<R: Record>(cx: &mut Cx<'_>) -> Result<Vec<(R::Id, R)>, Stop> {
    let mut all = Vec::new();
    let mut range = R::all();
    loop {
        let found = cx.scan::<R>(&range, LOOK)?;
        let more = found.len() == LOOK;
        all.extend(found);
        match all.last() {
            Some((last, _)) if more => range = KeyRange::new(R::key(last).successor(), range.end),
            _ => return Ok(all),
        }
    }
}
