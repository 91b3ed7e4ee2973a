//! Targets at rest: made, looked at, and changed while nobody serves them.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use engine::{LmdbEngine, OpenOptions};
use proto::{Nid, TargetKind, TargetName};
use schema::session::KnownConfig;
use schema::{Header, ParamRec, PoolRec, Record, TargetRec};
use store::Engine;
use target::Format;

use crate::{clock, private};

/// Where a target lives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// A directory on a local disk.
    Directory(PathBuf),
    /// In memory, gone with the process; the name says what it is.
    Memory(TargetName),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        if let Some(name) = text.strip_prefix("mem:") {
            return Ok(Place::Memory(name.parse()?));
        }
        if let Some((scheme, _)) = text.split_once("://") {
            return Err(format!(
                "'{text}': targets in object stores ({scheme}) are not part of this version; use a directory"
            ));
        }
        std::path::absolute(text).map(Place::Directory).map_err(|error| format!("'{text}': {error}"))
    }
}

/// A target to be made.
#[derive(Clone, Debug)]
pub struct NewTarget {
    /// Its name.
    pub name: TargetName,
    /// Where its MGS is.
    pub mgs: Vec<Nid>,
    /// Destroy what is there.
    pub reformat: bool,
    /// Parameters that it sets at each start, `PATH=VALUE`.
    pub params: Vec<String>,
    /// A metadata target whose names are hashed without a key, as versions before 0.2.0 do it.
    pub plain_names: bool,
    /// An object target that takes the place of one whose store is lost.
    pub replaces: bool,
}

/// The folder of data files in an object target's directory.
pub(crate) const OBJECTS: &str = "objects";

/// Makes a target.
///
/// # Errors
/// A sentence that says what to do.
pub fn format(place: &Place, new: &NewTarget) -> Result<(), String> {
    let Place::Directory(directory) = place else {
        return Err("a target in memory is made when it is served: adamant serve mem:NAME".to_owned());
    };
    check_place(directory, new.reformat)?;
    if LmdbEngine::exists(directory) {
        if !new.reformat {
            let holds = identify(place).map_or_else(|error| error, |header| format!("it holds {}", header.name));
            return Err(format!(
                "'{}' is a target already ({holds}); choose another directory, or destroy it with --reformat",
                directory.display()
            ));
        }
        // Nobody may use it meanwhile: opening takes its lock.
        drop(LmdbEngine::open(directory, OpenOptions::default()).map_err(|error| error.to_string())?);
        remove_target(directory).map_err(|error| format!("cannot clear '{}': {error}", directory.display()))?;
    }
    let engine = LmdbEngine::open(directory, OpenOptions { create: true, ..OpenOptions::default() })
        .map_err(|error| error.to_string())?;
    if new.name.kind == TargetKind::Ost {
        let objects = directory.join(OBJECTS);
        private::ensure(&objects).map_err(|error| format!("cannot make '{}': {error}", objects.display()))?;
    }
    write_first_records(&engine, new)
}

/// What may be in a directory that counts as empty: what a fresh file system has, and the MGT of a directory for both.
const NOTHING: [&str; 2] = ["lost+found", "mgt"];

/// Whether a target may be made there: not between somebody's files, unless that is asked for.
fn check_place(directory: &Path, reformat: bool) -> Result<(), String> {
    use std::os::unix::fs::FileTypeExt;
    let shown = directory.display();
    let metadata = match std::fs::metadata(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|error| format!("cannot look at '{shown}': {error}"))?,
    };
    if metadata.file_type().is_block_device() {
        return Err(format!(
            "'{shown}' is a block device, and a target is a directory: make a file system on it (mkfs.ext4, mkfs.xfs), mount it, \
             and name a directory there"
        ));
    }
    if !metadata.is_dir() {
        return Err(format!("'{shown}' is not a directory; name one that is empty or not there yet"));
    }
    if reformat || LmdbEngine::exists(directory) {
        return Ok(());
    }
    let entries = std::fs::read_dir(directory).map_err(|error| format!("cannot look into '{shown}': {error}"))?;
    let foreign = |entry: &std::fs::DirEntry| !NOTHING.iter().any(|name| entry.file_name() == *name);
    match entries.flatten().find(foreign) {
        Some(entry) => Err(format!(
            "'{shown}' is not empty: it holds '{}'; choose an empty directory, or make the target beside what is there with --reformat",
            entry.file_name().display()
        )),
        None => Ok(()),
    }
}

fn remove_target(directory: &Path) -> std::io::Result<()> {
    for file in ["data.mdb", "lock.mdb", "reserve"] {
        match std::fs::remove_file(directory.join(file)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    match std::fs::remove_dir_all(directory.join(OBJECTS)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub(crate) fn write_first_records(engine: &dyn Engine, new: &NewTarget) -> Result<(), String> {
    let format = Format {
        name: new.name.clone(),
        uuid: clock::uuid().0,
        mgs: new.mgs.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        wall_ns: clock::wall_ns(),
        params: new.params.clone(),
        name_key: (new.name.kind == TargetKind::Mdt && !new.plain_names).then(|| clock::uuid().0.to_be_bytes()),
        replaces: new.replaces,
    };
    let batch = match new.name.kind {
        TargetKind::Mgt | TargetKind::Ost => target::format(&format),
        // Whoever makes a file system may write to it: its root directory is theirs.
        TargetKind::Mdt => {
            let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            mdt::format(&format, owner)
        }
    };
    let records = batch.seal(&schema::formats());
    engine.commit(1, &records).map_err(|error| error.to_string())
}

/// The header of a target, also of one that another process serves.
///
/// # Errors
/// A sentence that says what to do.
pub fn identify(place: &Place) -> Result<Header, String> {
    let Place::Directory(directory) = place else {
        return Err("a target in memory has no header to look at".to_owned());
    };
    let options = OpenOptions { read_only: true, beside_writer: true, ..OpenOptions::default() };
    let engine = LmdbEngine::open(directory, options).map_err(|error| error.to_string())?;
    header_of(&engine, &directory.display().to_string())
}

/// What a management target keeps for its file systems, as lines `FSNAME: PATH=VALUE`. Of other targets there is nothing.
///
/// # Errors
/// A sentence; as for [`identify`].
pub fn persistent_params(directory: &Path) -> Result<Vec<String>, String> {
    let engine = LmdbEngine::open(directory, OpenOptions { read_only: true, ..OpenOptions::default() })
        .map_err(|error| error.to_string())?;
    let mut lines = Vec::new();
    let mut range = ParamRec::all();
    loop {
        let found = engine.scan(&range, 1024).map_err(|error| error.to_string())?;
        for (key, sealed) in &found.records {
            let body = schema::formats().open(key, sealed).map_err(|error| error.to_string())?;
            let record = ParamRec::decode_record(&body).map_err(|error| error.to_string())?;
            if let Some((fsname, path)) = ParamRec::parse_key(key) {
                lines.push(format!("{fsname}: {path}={}", record.value));
            }
        }
        match found.records.last() {
            Some((last, _)) if !found.complete => range = store::KeyRange::new(last.successor(), range.end),
            _ => return Ok(lines),
        }
    }
}

/// What an administrator does before an older version can serve this target.
pub fn ways_back(header: &Header) -> Vec<&'static str> {
    let of = |(bit, way): &(u64, &'static str)| (header.incompat & bit != 0).then_some(*way);
    target::format_features::WAYS_BACK.iter().filter_map(of).collect()
}

/// What to change of a target that is not running.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Forget the parameters that it sets at each start.
    pub erase_params: bool,
    /// Parameters that it is to set at each start, `PATH=VALUE`; an empty value forgets one.
    pub params: Vec<String>,
    /// Register anew at the next start; on the MGT: forget all targets, pools and persistent parameters, so that they can.
    pub writeconf: bool,
    /// Where its MGS is from now on; none: where it was.
    pub mgs: Vec<Nid>,
}

/// Changes a target that is not running. Gives its header as it is then.
///
/// # Errors
/// A sentence that says what to do. Nothing is changed then.
pub fn change(directory: &Path, changes: &Changes) -> Result<Header, String> {
    let failed = |error: store::EngineError| error.to_string();
    let engine = LmdbEngine::open(directory, OpenOptions::default()).map_err(failed)?;
    let mut header = header_of(&engine, &directory.display().to_string())?;
    if changes.erase_params {
        header.params.clear();
    }
    for param in &changes.params {
        let path = checked_param(param)?;
        header.params.retain(|known| known.split_once('=').is_none_or(|(known, _)| known != path));
        if !param.ends_with('=') {
            header.params.push(param.clone());
        }
    }
    if !changes.mgs.is_empty() {
        header.mgs_nids = changes.mgs.iter().map(Nid::to_string).collect();
    }
    let mut batch = store::Batch::new();
    if changes.writeconf {
        header.registered = false;
        batch.delete(KnownConfig::key(&()));
        if header.name.parse::<TargetName>().is_ok_and(|name| name.kind == TargetKind::Mgt) {
            for range in [TargetRec::all(), ParamRec::all(), PoolRec::all()] {
                forget_all(&engine, range, &mut batch).map_err(failed)?;
            }
        }
    }
    batch.put(Header::key(&()), header.encode_record());
    let group = engine.last_group().map_err(failed)? + 1;
    engine.commit(group, &batch.seal(&schema::formats())).map_err(failed)?;
    Ok(header)
}

fn forget_all(
    engine: &dyn Engine,
    mut range: store::KeyRange,
    batch: &mut store::Batch,
) -> Result<(), store::EngineError> {
    loop {
        let found = engine.scan(&range, 1024)?;
        let last = found.records.last().map(|(key, _)| key.clone());
        found.records.into_iter().for_each(|(key, _)| batch.delete(key));
        match last {
            Some(last) if !found.complete => range = store::KeyRange::new(last.successor(), range.end),
            _ => return Ok(()),
        }
    }
}

/// The path of a `PATH=VALUE`.
///
/// # Errors
/// What it should look like.
pub fn checked_param(param: &str) -> Result<&str, String> {
    let good = |path: &str| path.contains('.') && !path.starts_with('.') && !path.contains(char::is_whitespace);
    match param.split_once('=') {
        Some((path, _)) if good(path) && param.len() <= 1024 => Ok(path),
        _ => Err(format!("'{param}' is not a parameter; expected PATH=VALUE, for example mdt.dom_stripesize=0")),
    }
}

pub(crate) fn header_of(engine: &dyn Engine, place: &str) -> Result<Header, String> {
    let key = Header::key(&());
    let sealed = engine.get(&key).map_err(|error| error.to_string())?.ok_or_else(|| {
        // Its pages count records, but do not lead to them.
        if engine.space().is_ok_and(|space| space.records > 0) {
            return format!(
                "the store in '{place}' is damaged: it has records, and the target's own is not found; put back a copy of that directory, or make the target anew"
            );
        }
        format!("'{place}' holds a store without a target; it was never finished: make it again with 'adamant mkfs --reformat'")
    })?;
    let body = schema::formats().open(&key, &sealed).map_err(|error| error.to_string())?;
    Header::decode_record(&body).map_err(|error| format!("'{place}': {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read() {
        assert!(matches!("mem:fs-MDT0000".parse(), Ok(Place::Memory(_))));
        assert!(matches!("/srv/x".parse(), Ok(Place::Directory(_))));
        assert!("mem:what".parse::<Place>().is_err());
        assert!("s3://bucket/x".parse::<Place>().unwrap_err().contains("not part of this version"));
    }

    #[test]
    fn a_target_is_not_made_between_the_files_of_others() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("lost+found")).unwrap();
        assert_eq!(check_place(folder.path(), false), Ok(()), "a fresh file system");
        assert_eq!(check_place(&at("new"), false), Ok(()));
        std::fs::write(at("passwd"), "").unwrap();
        let refused = check_place(folder.path(), false).unwrap_err();
        assert!(refused.contains("'passwd'") && refused.contains("--reformat"), "{refused}");
        assert_eq!(check_place(folder.path(), true), Ok(()));
        assert!(check_place(&at("passwd"), true).unwrap_err().contains("not a directory"));
    }
}
