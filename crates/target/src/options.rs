//! Settings of a target, and the format of a new store.

use core::time::Duration;

use bytes::Bytes;
use proto::{Nid, TargetKind, TargetName};
use rpc::at::Timeouts;
use schema::{Header, Record};
use stdx::Faults;
use store::{Batch, CommitPolicy};

use crate::stopped::UnfitStore;

/// Format features, in three words of the header. A version that does not know an `incompat` bit refuses the target.
/// One that does not know a `rocompat` bit refuses to change it, which in this version also means refusing the target.
pub mod format_features {
    /// Clients with several modifying requests in flight have reply records. Set durably before the first such client
    /// is served; cleared at a start or at the end of a recovery without such clients.
    pub const MULTI_RPCS: u64 = 0x400;
    /// The hash of names has a key. Set permanently when MDT0000 is made, and on another metadata target when it registers for the
    /// first time.
    pub const KEYED_NAMES: u64 = 0x1_0000;
    /// Files have moved to other objects, which have numbers. Set durably and permanently before the first copy of a
    /// file's data is started.
    pub const LAYOUT_SWAP: u64 = 0x2_0000;
    /// Names whose chain is full are in a second chain. Set permanently with the first such name, in the same group.
    pub const FULL_CHAINS: u64 = 0x10_0000;
    /// A name or a directory of this target belongs to a directory or a name on another metadata target, or a change of that
    /// kind was begun. Set permanently with the first one, in the same group. On the MGT: FID sequences were allocated to other
    /// metadata targets than MDT0000.
    pub const REMOTE_DIR: u64 = 0x20_0000;
    /// Names of the bits, for messages.
    pub const NAMES: &[(u64, &str)] = &[
        (MULTI_RPCS, "multi_rpcs"),
        (KEYED_NAMES, "keyed_names"),
        (LAYOUT_SWAP, "layout_swap"),
        (FULL_CHAINS, "full_chains"),
        (REMOTE_DIR, "remote_dir"),
    ];
    /// Instructions for an administrator who wants to serve a target with an older version.
    pub const WAYS_BACK: &[(u64, &str)] = &[
        (
            MULTI_RPCS,
            "for a version without multi_rpcs (0.1.0): unmount the clients, stop the target, serve it once with \
             `-o abort_recov`, stop it; then this feature is gone",
        ),
        (
            KEYED_NAMES,
            "for a version without keyed_names (0.1.0): copy the files to a file system that was made with \
             `mkfs --plain-names`, or by that version; this one keeps the feature",
        ),
        (
            LAYOUT_SWAP,
            "for a version without layout_swap (0.1.0): copy the files to a file system in which no file was ever migrated; \
             this one keeps the feature",
        ),
        (
            FULL_CHAINS,
            "for a version without full_chains (0.1.0): a directory has more than 16 names with one hash; copy the files, but for those \
             names, to another file system; this one keeps the feature",
        ),
        (
            REMOTE_DIR,
            "for a version without remote_dir (0.1.0, 0.2.0): the file system has several metadata targets; copy the files to a \
             file system with one; this one keeps the feature",
        ),
    ];
    /// `incompat` bits that this version knows.
    pub const INCOMPAT_KNOWN: u64 = MULTI_RPCS | KEYED_NAMES | LAYOUT_SWAP | FULL_CHAINS | REMOTE_DIR;
    /// `rocompat` bits that this version knows.
    pub const ROCOMPAT_KNOWN: u64 = 0;
}

/// Settings of a target, given at start.
#[derive(Clone, Debug)]
pub struct Options {
    /// The target that the store must hold; `None` accepts any.
    pub name: Option<TargetName>,
    /// Addresses that the target listens on, to be registered with the MGS.
    pub nids: Vec<Nid>,
    /// Addresses of the MGS; empty: those in the header. Unused on the MGT.
    pub mgs: Vec<Nid>,
    /// Random seed, for export handles, retry jitter and keys.
    pub seed: u64,
    /// Memory limit of the cache of clean records, in bytes.
    pub cache_limit: usize,
    /// Policy for closing groups.
    pub commit: CommitPolicy,
    /// Most changes that a client may have in flight at a metadata target.
    pub max_mod_rpcs: u16,
    /// How long recovery waits for missing clients, from the first connect.
    pub recovery_soft: Duration,
    /// Longest duration of recovery.
    pub recovery_hard: Duration,
    /// Tenths of [`Options::recovery_soft`] that recovery waits if the MGS notifies the clients.
    pub ir_factor: u32,
    /// Do not rely on the MGS to notify clients.
    pub noir: bool,
    /// Evict all known clients instead of recovering.
    pub abort_recovery: bool,
    /// Admit this metadata target again if it was declared lost: drop what it has of changes over several targets.
    pub abort_recovery_mdt: bool,
    /// Serve the store even if it is an older copy; its client records are dropped.
    pub accept_old_store: bool,
    /// Time within which a client must answer a lock callback.
    pub lock_timeout: Duration,
    /// Deadlines of requests, and how long an export may be silent.
    pub timeouts: Timeouts,
    /// Version of the program, for messages and status.
    pub version: String,
    /// Fault injection of the process.
    pub faults: Faults,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            name: None,
            nids: Vec::new(),
            mgs: Vec::new(),
            seed: 0,
            cache_limit: 128 << 20,
            commit: CommitPolicy::default(),
            max_mod_rpcs: 8,
            recovery_soft: Duration::from_secs(30),
            recovery_hard: Duration::from_secs(180),
            ir_factor: 5,
            noir: false,
            abort_recovery: false,
            abort_recovery_mdt: false,
            accept_old_store: false,
            lock_timeout: Duration::from_secs(20),
            timeouts: Timeouts::default(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            faults: Faults::none(),
        }
    }
}

/// Properties of a new target.
#[derive(Clone, Debug)]
pub struct Format {
    /// Its name.
    pub name: TargetName,
    /// Identity of the store, drawn at random.
    pub uuid: u128,
    /// Addresses of the MGS.
    pub mgs: Vec<Nid>,
    /// Version of the program.
    pub version: String,
    /// The wall clock, in nanoseconds since 1970.
    pub wall_ns: i64,
    /// Parameters to set at each start, `PATH=VALUE`.
    pub params: Vec<String>,
    /// MDT0000: key of the file system's hash of names, drawn at random; `None` for a file system that older versions can
    /// serve. Other metadata targets take over that of MDT0000, whatever this is.
    pub name_key: Option<[u8; 16]>,
    /// Object target that replaces one whose store is lost.
    pub replaces: bool,
}

/// The first records of every new store; each kind of target adds its own. Commit them, sealed with
/// [`schema::formats`], as group 1 of an empty engine.
pub fn format(format: &Format) -> Batch {
    let header = Header {
        name: format.name.to_string(),
        uuid: Bytes::copy_from_slice(&format.uuid.to_be_bytes()),
        compat: 0,
        rocompat: 0,
        incompat: if format.name_key.is_some() { format_features::KEYED_NAMES } else { 0 },
        epoch: 0,
        mount_count: 0,
        mgs_nids: match format.name.kind {
            TargetKind::Mgt => Vec::new(),
            _ => format.mgs.iter().map(Nid::to_string).collect(),
        },
        registered: false,
        made_by: format.version.clone(),
        made_ns: format.wall_ns,
        params: format.params.clone(),
        versions_epoch: 0,
        name_key: format.name_key.map_or_else(Bytes::new, |key| Bytes::copy_from_slice(&key)),
        open_key: Bytes::new(),
        open_key_epoch: 0,
        second_key: Bytes::new(),
        newer_count: 0,
        replaces: format.replaces,
        replaced: 0,
        losses: 0,
        takes_keys: format.name.kind == TargetKind::Mdt && format.name.index.0 != 0,
    };
    let mut batch = Batch::new();
    batch.put(Header::key(&()), header.encode_record());
    batch
}

/// Checks that this version can serve a store with these features. The error is a message.
pub(crate) fn check_features(header: &Header) -> Result<(), UnfitStore> {
    use format_features::{INCOMPAT_KNOWN, NAMES, ROCOMPAT_KNOWN};
    for (have, known) in [(header.incompat, INCOMPAT_KNOWN), (header.rocompat, ROCOMPAT_KNOWN)] {
        let unknown = have & !known;
        if unknown != 0 {
            let bit = unknown & unknown.wrapping_neg();
            let feature = NAMES
                .iter()
                .find(|(named, _)| *named == bit)
                .map_or_else(|| format!("0x{bit:x}"), |(_, name)| (*name).to_owned());
            return Err(UnfitStore::Feature { target: header.name.clone(), feature });
        }
    }
    let wrong = |key, found: &Bytes, wanted| {
        Err(UnfitStore::Key { target: header.name.clone(), key, found: found.len(), wanted })
    };
    let key_wanted = if header.incompat & format_features::KEYED_NAMES != 0 { 16 } else { 0 };
    if header.name_key.len() != key_wanted {
        return wrong("key of names", &header.name_key, key_wanted);
    }
    if header.incompat & format_features::FULL_CHAINS != 0 && header.second_key.len() != 16 {
        return wrong("second key of names", &header.second_key, 16);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_features_refuse_the_target_by_name() {
        let mut header = Header { name: "fs-MDT0000".into(), ..Header::default() };
        assert_eq!(check_features(&header), Ok(()));
        header.incompat = format_features::MULTI_RPCS;
        assert_eq!(check_features(&header), Ok(()));
        header.incompat = 0x400 | 0x2000;
        assert!(
            check_features(&header)
                .unwrap_err()
                .to_string()
                .starts_with("target 'fs-MDT0000' needs feature '0x2000' that")
        );
        header.incompat = format_features::KEYED_NAMES;
        assert!(check_features(&header).unwrap_err().to_string().contains("0 bytes instead of 16"));
        header.name_key = Bytes::from_static(&[1; 16]);
        assert_eq!(check_features(&header), Ok(()));
        header.name_key = Bytes::new();
        header = Header { rocompat: 0x8000, ..header };
        header.incompat = 0;
        assert!(check_features(&header).unwrap_err().to_string().contains("'0x8000'"));
        header = Header { rocompat: 0, incompat: format_features::FULL_CHAINS, ..header };
        assert!(
            check_features(&header).unwrap_err().to_string().contains("second key of names has 0 bytes instead of 16")
        );
        header.second_key = Bytes::from_static(&[1; 16]);
        assert_eq!(check_features(&header), Ok(()));
        for bits in [0, format_features::FULL_CHAINS] {
            let known_to_older = format_features::INCOMPAT_KNOWN & !format_features::FULL_CHAINS;
            assert_eq!(header.incompat & bits & !known_to_older != 0, bits != 0, "an older version refuses it");
        }
    }
}
