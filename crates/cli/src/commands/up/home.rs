//! The directory in which `adamant up` keeps a file system: its targets, and a list of them.
//!
//! The list is a file `targets`, to which each new target is added. So if the folder of a target is missing (its disk is
//! not mounted, or it was moved), that is an error, and no new target is made in its place. Directories of older versions
//! have no list: in these, a folder is missing if one that is made after it exists.

use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use host::admin;
use host::place::{self, Place};
use proto::{Nid, TargetKind};

use crate::commands::status::dead::DeadMount;
use crate::commands::status::{self, Process};

/// The directory of a file system.
pub(crate) struct Home {
    dir: PathBuf,
    list: List,
}

/// The contents of the file `targets`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct List {
    fsname: Option<String>,
    /// The name and folder of each target, in the order in which they were made.
    targets: Vec<(String, String)>,
}

/// A target that belongs to the file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    /// Its folder.
    pub folder: String,
    /// Its kind.
    pub kind: TargetKind,
    /// Its index among the targets of its kind.
    pub index: u32,
    /// Whether its folder exists and is not empty.
    pub there: bool,
}

const LIST: &str = "targets";
const HEAD: &str = "# The targets of this file system, kept by 'adamant up': one that is not in its folder is missed, not made anew.\n";

impl Home {
    /// The file system in a directory, which need not exist.
    pub(crate) fn new(dir: &Path) -> anyhow::Result<Home> {
        let dir = std::path::absolute(dir)?;
        let file = dir.join(LIST);
        let list = match std::fs::read_to_string(&file) {
            Ok(text) => List::parse(&text).with_context(|| format!("'{}'", file.display()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => List::default(),
            Err(error) => return Err(error).with_context(|| format!("cannot read '{}'", file.display())),
        };
        Ok(Home { dir, list })
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The address of its servers: a Unix socket with a short name that is derived from the directory.
    pub(crate) fn listen(&self) -> Nid {
        let mut hasher = DefaultHasher::new();
        self.dir.hash(&mut hasher);
        let name = format!("up-{:08x}", hasher.finish() as u32);
        Nid::Unix(admin::directory().join(name).display().to_string())
    }

    /// The processes that serve its targets, and those that mount it.
    pub(crate) fn processes(&self) -> (Vec<Process>, Vec<Process>) {
        let (mut mounts, mut servers): (Vec<Process>, Vec<Process>) =
            status::processes().into_iter().partition(|process| process.role == "mount");
        servers.retain(|process| process.serves(&self.dir));
        let places = servers.iter().flat_map(|process| &process.description.devices).map(|device| device.place.clone());
        let nids: Vec<String> = places.chain([self.listen().to_string()]).collect();
        mounts.retain(|process| process.is_mounted_from(&nids));
        (servers, mounts)
    }

    /// Its mounts whose process has died.
    pub(crate) fn dead_mounts(&self, running: &[Process]) -> Vec<DeadMount> {
        let nid = [self.listen().to_string()];
        DeadMount::all(running, |mount| mount.is_mounted_from(&nid))
    }

    /// The listed targets: name and folder.
    pub(crate) fn known(&self) -> Vec<(String, PathBuf)> {
        self.list.targets.iter().map(|(name, folder)| (name.clone(), self.dir.join(folder))).collect()
    }

    /// The name of the file system, if it has one. If `server` serves it, the name comes from there, because an open store
    /// cannot be read.
    pub(crate) fn fsname(&self, server: Option<&Process>) -> Option<String> {
        let served = || server.and_then(|server| server.fsnames().into_iter().next());
        let stored = || {
            let mdt = Place::Directory(self.dir.join("mdt0"));
            let name = place::identify(&mdt).ok()?.name;
            name.rsplit_once('-').map(|(fsname, _)| fsname.to_owned())
        };
        self.list.fsname.clone().or_else(served).or_else(stored)
    }

    /// The targets of a file system with `mdts` metadata targets and `osts` object targets, or with more if it has more.
    ///
    /// # Errors
    /// The targets that existed and are missing.
    pub(crate) fn wanted(&self, mdts: u32, osts: u32) -> anyhow::Result<Vec<Wanted>> {
        let is_there = |folder: &str| is_filled(&self.dir.join(folder));
        let known = self.list.targets.iter().map(|(_, folder)| folder.clone());
        let found = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let found = found.filter_map(|entry| entry.file_name().into_string().ok()).filter(|folder| is_there(folder));
        let had: Vec<String> = known.chain(found).collect();
        let count = |kind: &str, wanted: u32| {
            let index = |folder: &String| folder.strip_prefix(kind).and_then(|index| index.parse::<u32>().ok());
            had.iter().filter_map(index).map(|index| index.saturating_add(1)).max().unwrap_or(0).max(wanted)
        };
        let mut all = vec![("mgt".to_owned(), TargetKind::Mgt, 0)];
        for (name, kind, wanted) in [("mdt", TargetKind::Mdt, mdts.max(1)), ("ost", TargetKind::Ost, osts)] {
            all.extend((0..count(name, wanted)).map(|index| (format!("{name}{index}"), kind, index)));
        }
        let mut wanted = Vec::new();
        for (folder, kind, index) in all {
            wanted.push(Wanted { there: is_there(&folder), folder, kind, index });
        }
        // Targets are made in order: first the MGT, MDT0000, and the others of each kind by index.
        let precedes = |one: &Wanted, other: &Wanted| match (one.kind, one.index) {
            (TargetKind::Mgt, _) => other.kind != TargetKind::Mgt,
            (TargetKind::Mdt, 0) => other.kind == TargetKind::Ost || other.kind == TargetKind::Mdt && other.index > 0,
            (kind, index) => other.kind == kind && other.index > index,
        };
        let was_there = |target: &Wanted| {
            had.contains(&target.folder) || wanted.iter().any(|other| other.there && precedes(target, other))
        };
        let missed: Vec<String> = wanted
            .iter()
            .filter(|target| !target.there && was_there(target))
            .map(|target| self.dir.join(&target.folder).display().to_string())
            .collect();
        if !missed.is_empty() {
            bail!(
                "there is no target in '{}', where there was one: mount its disk there, or put it back; nothing was made or started",
                missed.join("', '")
            );
        }
        Ok(wanted)
    }

    /// Adds a target, which was made or found, to the list.
    pub(crate) fn remember(&mut self, fsname: &str, name: &str, folder: &str) -> anyhow::Result<()> {
        if self.list.targets.iter().any(|(_, known)| known == folder) && self.list.fsname.is_some() {
            return Ok(());
        }
        self.list.fsname = Some(fsname.to_owned());
        self.list.targets.push((name.to_owned(), folder.to_owned()));
        let (file, new) = (self.dir.join(LIST), self.dir.join(format!("{LIST}.new")));
        let write = || {
            std::fs::write(&new, self.list.text())?;
            std::fs::File::open(&new)?.sync_all()?;
            std::fs::rename(&new, &file)
        };
        write().with_context(|| format!("cannot write '{}'", file.display()))
    }
}

impl List {
    fn parse(text: &str) -> anyhow::Result<List> {
        let mut list = List::default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["fsname", name] => list.fsname = Some(name.to_owned()),
                ["target", name, folder] => list.targets.push((name.to_owned(), folder.to_owned())),
                _ => bail!("'{line}' is no line of a list of targets; expected 'fsname NAME' or 'target NAME FOLDER'"),
            }
        }
        Ok(list)
    }

    fn text(&self) -> String {
        let mut text = HEAD.to_owned();
        if let Some(fsname) = &self.fsname {
            let _ = writeln!(text, "fsname {fsname}");
        }
        for (name, folder) in &self.targets {
            let _ = writeln!(text, "target {name} {folder}");
        }
        text
    }
}

/// Whether a folder exists and is not empty: the mount point of a disk that is not mounted is empty.
fn is_filled(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(dir: &Path, folders: &[&str]) {
        for folder in folders {
            std::fs::create_dir_all(dir.join(folder)).unwrap();
            std::fs::write(dir.join(folder).join("data.mdb"), "x").unwrap();
        }
    }

    fn missed(dir: &Path, osts: u32) -> String {
        Home::new(dir).unwrap().wanted(1, osts).unwrap_err().to_string()
    }

    #[test]
    fn a_target_that_was_there_is_missed() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        let mut home = Home::new(dir).unwrap();
        let fresh = home.wanted(1, 2).unwrap();
        assert_eq!(fresh.iter().map(|target| &*target.folder).collect::<Vec<_>>(), ["mgt", "mdt0", "ost0", "ost1"]);
        assert!(fresh.iter().all(|target| !target.there));
        for (name, folder) in [("MGS", "mgt"), ("d-MDT0000", "mdt0"), ("d-OST0000", "ost0"), ("d-OST0001", "ost1")] {
            make(dir, &[folder]);
            home.remember("d", name, folder).unwrap();
        }
        let home = Home::new(dir).unwrap();
        assert_eq!((home.fsname(None).as_deref(), home.known().len()), (Some("d"), 4));
        assert!(home.wanted(1, 1).unwrap().iter().all(|target| target.there), "it keeps what it has");
        assert_eq!(home.wanted(1, 3).unwrap().iter().filter(|target| !target.there).count(), 1, "and may grow");
        // One folder is missing and one is empty, like the mount point of a disk.
        std::fs::remove_dir_all(dir.join("ost1")).unwrap();
        std::fs::remove_dir_all(dir.join("mdt0")).unwrap();
        std::fs::create_dir(dir.join("mdt0")).unwrap();
        let text = missed(dir, 1);
        assert!(text.contains("/mdt0") && text.contains("/ost1") && !text.contains("/ost0"), "{text}");
    }

    #[test]
    fn a_directory_without_a_list_misses_what_is_made_first() {
        for (there, lacks) in
            [(&["mgt", "ost0"][..], "/mdt0"), (&["mgt", "mdt0", "ost1"], "/ost0"), (&["mdt0"], "/mgt")]
        {
            let root = tempfile::tempdir().unwrap();
            make(root.path(), there);
            assert!(missed(root.path(), 2).contains(lacks), "{there:?}");
        }
        // `up` was interrupted while it made the targets.
        let root = tempfile::tempdir().unwrap();
        make(root.path(), &["mgt"]);
        assert_eq!(
            Home::new(root.path()).unwrap().wanted(1, 2).unwrap().iter().filter(|target| !target.there).count(),
            3
        );
    }

    #[test]
    fn metadata_targets_can_be_added_like_object_targets() {
        let root = tempfile::tempdir().unwrap();
        make(root.path(), &["mgt", "mdt0", "ost0", "ost1"]);
        let new = |mdts| -> Vec<String> {
            let wanted = Home::new(root.path()).unwrap().wanted(mdts, 2).unwrap();
            wanted.into_iter().filter(|target| !target.there).map(|target| target.folder).collect()
        };
        assert_eq!(new(3), ["mdt1", "mdt2"]);
        make(root.path(), &["mdt1"]);
        assert_eq!((new(1), new(3)), (vec![], vec!["mdt2".to_owned()]), "it keeps what it has");
        make(root.path(), &["mdt3"]);
        let text = Home::new(root.path()).unwrap().wanted(1, 2).unwrap_err().to_string();
        assert!(text.contains("/mdt2") && !text.contains("/mdt1"), "{text}");
    }

    #[test]
    fn a_list_that_is_none_is_refused() {
        let list = List { fsname: Some("d".into()), targets: vec![("MGS".into(), "mgt".into())] };
        assert_eq!(List::parse(&list.text()).unwrap(), list);
        assert!(List::parse("targets of mine").is_err());
    }
}
