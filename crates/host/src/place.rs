//! Offline targets: formatting them, reading their headers, and changing their settings.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use engine::{LmdbEngine, OpenOptions};
use proto::{Nid, TargetKind, TargetName};
use schema::session::KnownConfig;
use schema::{Header, ParamRec, PoolRec, Record, TargetRec};
use store::Engine;
use target::Format;

use crate::{clock, private};

mod error;

pub use error::{ChangeError, FormatError, ParseParamError, ParsePlaceError, ReadError};

/// Where a target is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// A directory on a local disk.
    Directory(PathBuf),
    /// In memory, lost with the process; the name tells the kind of target.
    Memory(TargetName),
}

impl FromStr for Place {
    type Err = ParsePlaceError;

    fn from_str(text: &str) -> Result<Place, ParsePlaceError> {
        if let Some(name) = text.strip_prefix("mem:") {
            return Ok(Place::Memory(name.parse()?));
        }
        if let Some((scheme, _)) = text.split_once("://") {
            return Err(ParsePlaceError::ObjectStore { text: text.to_owned(), scheme: scheme.to_owned() });
        }
        let failed = |error| ParsePlaceError::Path { text: text.to_owned(), error };
        std::path::absolute(text).map(Place::Directory).map_err(failed)
    }
}

/// A target to be formatted.
#[derive(Clone, Debug)]
pub struct NewTarget {
    /// Its name.
    pub name: TargetName,
    /// The addresses of its MGS.
    pub mgs: Vec<Nid>,
    /// Destroy an existing target in the directory. Other files stay.
    pub reformat: bool,
    /// Parameters, `PATH=VALUE`, that the target sets at each start.
    pub params: Vec<String>,
    /// MDT0000 hashes names without a key, as versions before 0.2.0 do. Other metadata targets follow it.
    pub plain_names: bool,
    /// An object target that replaces one whose store is lost.
    pub replaces: bool,
}

/// The folder of data files in the directory of an object target.
pub(crate) const OBJECTS: &str = "objects";

/// Formats a target.
///
/// # Errors
/// The place is not fit for a target, or its disk fails.
pub fn format(place: &Place, new: &NewTarget) -> Result<(), FormatError> {
    let directory = match place {
        Place::Directory(directory) => directory,
        Place::Memory(name) => return Err(FormatError::InMemory(name.clone())),
    };
    check_place(directory, new.reformat)?;
    if LmdbEngine::exists(directory) {
        if !new.reformat {
            let holds = identify(place).map(|header| header.name).map_err(Box::new);
            return Err(FormatError::IsATarget { directory: directory.clone(), holds });
        }
        // Opening takes the lock of the store, so no process can be using it.
        drop(LmdbEngine::open(directory, OpenOptions::default())?);
        remove_target(directory).map_err(failed("clear", directory))?;
    }
    let engine = LmdbEngine::open(directory, OpenOptions { create: true, ..OpenOptions::default() })?;
    if new.name.kind == TargetKind::Ost {
        let objects = directory.join(OBJECTS);
        private::ensure(&objects).map_err(failed("make", &objects))?;
    }
    Ok(write_first_records(&engine, new)?)
}

/// The error for a file system call that failed.
fn failed(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> FormatError {
    let path = path.to_path_buf();
    move |error| FormatError::Io { doing, path, error }
}

/// Entries of a directory that still counts as empty: that of a fresh file system, and the MGT of a directory that holds
/// both.
const NOTHING: [&str; 2] = ["lost+found", "mgt"];

/// Checks that a target may be made in a directory: not among other files, unless `reformat` allows it.
fn check_place(directory: &Path, reformat: bool) -> Result<(), FormatError> {
    use std::os::unix::fs::FileTypeExt;
    let own = || directory.to_path_buf();
    let metadata = match std::fs::metadata(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(failed("look at", directory))?,
    };
    if metadata.file_type().is_block_device() {
        return Err(FormatError::BlockDevice(own()));
    }
    if !metadata.is_dir() {
        return Err(FormatError::NotADirectory(own()));
    }
    if reformat || LmdbEngine::exists(directory) {
        return Ok(());
    }
    let entries = std::fs::read_dir(directory).map_err(failed("look into", directory))?;
    let foreign = |entry: &std::fs::DirEntry| !NOTHING.iter().any(|name| entry.file_name() == *name);
    match entries.flatten().find(foreign) {
        Some(entry) => Err(FormatError::NotEmpty { directory: own(), entry: entry.file_name().display().to_string() }),
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

pub(crate) fn write_first_records(engine: &dyn Engine, new: &NewTarget) -> Result<(), store::EngineError> {
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
        // The user who makes the file system owns its root directory, and so may write to it.
        TargetKind::Mdt => {
            let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            mdt::format(&format, &mdt::Root { uid, gid, dir_default: Some(rules::placement::of_root()) })
        }
    };
    let records = batch.seal(&schema::formats());
    engine.commit(1, &records)
}

/// Reads the header of a target, even while another process serves it.
///
/// # Errors
/// There is no target, or its store cannot be read.
pub fn identify(place: &Place) -> Result<Header, ReadError> {
    let Place::Directory(directory) = place else {
        return Err(ReadError::InMemory);
    };
    let options = OpenOptions { read_only: true, beside_writer: true, ..OpenOptions::default() };
    let engine = LmdbEngine::open(directory, options)?;
    header_of(&engine, &directory.display().to_string())
}

/// The persistent parameters that a management target keeps for its file systems, as lines `FSNAME: PATH=VALUE`. Other
/// targets have none.
///
/// # Errors
/// As for [`identify`].
pub fn persistent_params(directory: &Path) -> Result<Vec<String>, ReadError> {
    let engine = LmdbEngine::open(directory, OpenOptions { read_only: true, ..OpenOptions::default() })?;
    let senseless = |error| ReadError::Senseless { place: directory.display().to_string(), error };
    let mut lines = Vec::new();
    let mut range = ParamRec::all();
    loop {
        let found = engine.scan(&range, 1024)?;
        for (key, sealed) in &found.records {
            let body = schema::formats().open(key, sealed)?;
            let record = ParamRec::decode_record(&body).map_err(senseless)?;
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

/// What an administrator must do before an older version can serve this target.
pub fn ways_back(header: &Header) -> Vec<&'static str> {
    let of = |(bit, way): &(u64, &'static str)| (header.incompat & bit != 0).then_some(*way);
    target::format_features::WAYS_BACK.iter().filter_map(of).collect()
}

/// Changes to the settings of an offline target.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Drop the parameters that the target sets at each start.
    pub erase_params: bool,
    /// Parameters, `PATH=VALUE`, to set at each start; an empty value drops one.
    pub params: Vec<String>,
    /// Register anew at the next start. On the MGT: forget all targets, pools and persistent parameters, so that targets
    /// can register anew.
    pub writeconf: bool,
    /// The new addresses of its MGS; empty: they stay as they are.
    pub mgs: Vec<Nid>,
}

/// Changes the settings of an offline target. Returns the changed header.
///
/// # Errors
/// A parameter is malformed, or the store cannot be read or written. Nothing is changed then.
pub fn change(directory: &Path, changes: &Changes) -> Result<Header, ChangeError> {
    let engine = LmdbEngine::open(directory, OpenOptions::default())?;
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
                forget_all(&engine, range, &mut batch)?;
            }
        }
    }
    batch.put(Header::key(&()), header.encode_record());
    let group = engine.last_group()? + 1;
    engine.commit(group, &batch.seal(&schema::formats()))?;
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

/// Returns the path of a `PATH=VALUE`.
///
/// # Errors
/// The text has another form.
pub fn checked_param(param: &str) -> Result<&str, ParseParamError> {
    let good = |path: &str| path.contains('.') && !path.starts_with('.') && !path.contains(char::is_whitespace);
    match param.split_once('=') {
        Some((path, _)) if good(path) && param.len() <= 1024 => Ok(path),
        _ => Err(ParseParamError(param.to_owned())),
    }
}

pub(crate) fn header_of(engine: &dyn Engine, place: &str) -> Result<Header, ReadError> {
    let key = Header::key(&());
    let sealed = engine.get(&key)?.ok_or_else(|| {
        // The store counts records, but its pages do not lead to the header.
        match engine.space().is_ok_and(|space| space.records > 0) {
            true => ReadError::HeaderLost(place.to_owned()),
            false => ReadError::Unfinished(place.to_owned()),
        }
    })?;
    let body = schema::formats().open(&key, &sealed)?;
    Header::decode_record(&body).map_err(|error| ReadError::Senseless { place: place.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read() {
        assert!(matches!("mem:fs-MDT0000".parse(), Ok(Place::Memory(_))));
        assert!(matches!("/srv/x".parse(), Ok(Place::Directory(_))));
        assert!("mem:what".parse::<Place>().is_err());
        let far = "s3://bucket/x".parse::<Place>();
        assert!(matches!(far, Err(ParsePlaceError::ObjectStore { scheme, .. }) if scheme == "s3"));
    }

    #[test]
    fn a_target_is_not_made_between_the_files_of_others() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("lost+found")).unwrap();
        check_place(folder.path(), false).expect("a fresh file system");
        check_place(&at("new"), false).unwrap();
        std::fs::write(at("passwd"), "").unwrap();
        let refused = check_place(folder.path(), false).unwrap_err();
        assert!(matches!(&refused, FormatError::NotEmpty { entry, .. } if entry == "passwd"), "{refused}");
        assert!(refused.to_string().contains("'passwd'") && refused.to_string().contains("--reformat"), "{refused}");
        check_place(folder.path(), true).unwrap();
        assert!(matches!(check_place(&at("passwd"), true), Err(FormatError::NotADirectory(_))));
    }

    #[test]
    fn a_store_that_is_damaged_is_told_from_one_that_is_absent_busy_or_unfinished() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let new = NewTarget {
            name: "MGS".parse().unwrap(),
            mgs: Vec::new(),
            reformat: false,
            params: Vec::new(),
            plain_names: false,
            replaces: false,
        };
        let whole = Place::Directory(at("whole"));
        format(&whole, &new).unwrap();
        assert_eq!(identify(&whole).unwrap().name, "MGS");
        assert!(matches!(format(&whole, &new), Err(FormatError::IsATarget { holds: Ok(name), .. }) if name == "MGS"));

        let absent = identify(&Place::Directory(at("absent"))).unwrap_err();
        assert!(matches!(absent, ReadError::Store(store::EngineError::Missing { .. })) && !absent.is_damage());

        let served = LmdbEngine::open(&at("whole"), OpenOptions::default()).unwrap();
        let busy = change(&at("whole"), &Changes::default()).unwrap_err();
        let is_busy = matches!(&busy, ChangeError::Store(ReadError::Store(store::EngineError::Busy { .. })));
        assert!(is_busy, "{busy}");
        drop(served);
        let wrong = Changes { params: vec!["nothing".to_owned()], ..Changes::default() };
        assert!(matches!(change(&at("whole"), &wrong), Err(ChangeError::Param(_))));

        drop(LmdbEngine::open(&at("empty"), OpenOptions { create: true, ..OpenOptions::default() }).unwrap());
        let unfinished = identify(&Place::Directory(at("empty"))).unwrap_err();
        assert!(matches!(unfinished, ReadError::Unfinished(_)) && !unfinished.is_damage(), "{unfinished}");

        let file = at("whole").join("data.mdb");
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[..8192].fill(0x5a);
        std::fs::write(&file, bytes).unwrap();
        let damaged = identify(&whole).unwrap_err();
        assert!(damaged.is_damage(), "{damaged}");
        let kept = format(&whole, &new).unwrap_err();
        assert!(matches!(kept, FormatError::IsATarget { holds: Err(error), .. } if error.is_damage()));
    }
}
