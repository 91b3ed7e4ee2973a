//! `createmany`: opens files, makes nodes, directories or links, and prints the rate.

use std::ffi::{CStr, CString};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use fuse::ioctl::{self, NewDirectory, Verb};
use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::pattern::Pattern;
use super::{Done, Ended, Progress, failed};
use crate::stop;

/// The kind of object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Files, with open(O_CREAT) and close.
    Open(Open),
    /// Regular files, with mknod.
    Mknod,
    /// Directories, with mkdir.
    Mkdir,
    /// Directories on a metadata target, in a mount of Adamant.
    MkdirOn(u32),
    /// Links to this file.
    Link(CString),
    /// Nothing: existing names are only removed.
    Nothing,
}

impl Kind {
    /// Whether the objects are directories.
    fn is_directory(&self) -> bool {
        matches!(self, Kind::Mkdir | Kind::MkdirOn(_))
    }
}

/// Options for each opened file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Open {
    /// Keep all files open until all are created, and measure the closes apart.
    pub keep: bool,
    /// Set an extended attribute `user.createmany` of this many bytes.
    pub xattr: Option<usize>,
    /// The size, in bytes.
    pub size: u64,
    /// Write the bytes, instead of only setting the size with ftruncate.
    pub write: bool,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
}

/// A run of `createmany`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Create {
    /// The kind of object.
    pub kind: Kind,
    /// Remove each object after creating it, under this name.
    pub unlink: Option<Pattern>,
    /// The names.
    pub pattern: Pattern,
    /// The number of the first object.
    pub start: i64,
    /// How many objects; without one, the run ends when `time` is over.
    pub count: Option<u64>,
    /// The longest duration.
    pub time: Option<Duration>,
}

/// The result of a run.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Created {
    /// The creates.
    pub made: Done,
    /// The closes, with [`Open::keep`].
    pub closed: Option<Done>,
}

impl Create {
    /// The name of the measured operation.
    pub fn operation(&self) -> String {
        let made = match &self.kind {
            Kind::Open(Open { keep: true, .. }) => "open/keep",
            Kind::Open(_) => "open/close",
            Kind::Mknod => "create",
            Kind::Mkdir | Kind::MkdirOn(_) => "mkdir",
            Kind::Link(_) => "link",
            Kind::Nothing => "",
        };
        match (&self.unlink, &self.kind) {
            (None, _) => made.to_owned(),
            (Some(_), kind) if kind.is_directory() => format!("{made}/rmdir"),
            (Some(_), _) => format!("{made}/unlink"),
        }
    }

    /// Runs, and prints progress and totals as Lustre's tool does. The figures cover what was done, even if the run ended
    /// early.
    pub fn run(&self, out: &mut dyn Write) -> (Created, Result<(), Ended>) {
        let mut kept = Vec::new();
        let (made, mut result) = self.make(&mut kept, out);
        let operation = self.operation();
        let total = writeln!(
            out,
            "total: {} {operation} in {:.2} seconds: {:.2} ops/second",
            made.count,
            made.seconds,
            made.rate()
        );
        result = result.and(total.map_err(Ended::from));
        let mut created = Created { made, closed: None };
        if matches!(self.kind, Kind::Open(Open { keep: true, .. })) {
            let closed = close(kept, out);
            created.closed = Some(closed);
            let total = writeln!(
                out,
                "total: {} close in {:.2} seconds: {:.2} close/second",
                closed.count,
                closed.seconds,
                closed.rate()
            );
            result = result.and(total.map_err(Ended::from));
        }
        (created, result)
    }

    fn make(&self, kept: &mut Vec<OwnedFd>, out: &mut dyn Write) -> (Done, Result<(), Ended>) {
        let operation = self.operation();
        let (mut name, mut other) = (Vec::new(), Vec::new());
        let (xattr, data) = match &self.kind {
            Kind::Open(open) => {
                let data = if open.write { open.size as usize } else { 0 };
                (vec![0x5a; open.xattr.unwrap_or(0)], vec![0x5a; data.min(WRITE_MAX)])
            }
            _ => (Vec::new(), Vec::new()),
        };
        let mut above = Above::default();
        let mut progress = Progress::start();
        let mut count = 0;
        let result = loop {
            if self.count.is_some_and(|wanted| count >= wanted) {
                break Ok(());
            }
            let now = Instant::now();
            if self.time.is_some_and(|time| now - progress.start >= time) {
                break Ok(());
            }
            if stop::requested() {
                break Err(Ended::Stopped);
            }
            if count > 0
                && let Err(error) = progress.line(out, &operation, count, now)
            {
                break Err(error.into());
            }
            let number = self.start.wrapping_add(count as i64);
            let name = self.pattern.name(number, &mut name);
            if let Err(error) = self.make_one(name, &xattr, &data, &mut above, kept) {
                break Err(error);
            }
            if let Some(pattern) = &self.unlink {
                let name = pattern.name(number, &mut other);
                let flags = if self.kind.is_directory() { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                if let Err(errno) = fs::unlinkat(fs::CWD, name, flags) {
                    break Err(failed("unlink", name.to_bytes(), errno));
                }
            }
            count += 1;
        };
        (Done::since(count, progress.start), result)
    }

    #[inline]
    fn make_one(
        &self,
        name: &CStr,
        xattr: &[u8],
        data: &[u8],
        above: &mut Above,
        kept: &mut Vec<OwnedFd>,
    ) -> Result<(), Ended> {
        match &self.kind {
            Kind::Open(open) => {
                let mode = Mode::from_raw_mode(0o644);
                let flags = OFlags::CREATE | OFlags::RDWR;
                let fd = fs::open(name, flags, mode).map_err(|errno| failed("open", name.to_bytes(), errno))?;
                open.fill(&fd, name, xattr, data)?;
                if open.keep {
                    kept.push(fd);
                }
                Ok(())
            }
            Kind::Mknod => fs::mknodat(fs::CWD, name, FileType::RegularFile, Mode::from_raw_mode(0o444), 0)
                .map_err(|errno| failed("mknod", name.to_bytes(), errno)),
            Kind::Mkdir => {
                fs::mkdir(name, Mode::from_raw_mode(0o755)).map_err(|errno| failed("mkdir", name.to_bytes(), errno))
            }
            Kind::MkdirOn(mdt) => {
                above.mkdir(*mdt, name.to_bytes()).map_err(|errno| failed("mkdir", name.to_bytes(), errno))
            }
            Kind::Link(target) => {
                fs::link(target.as_c_str(), name).map_err(|errno| failed("link", name.to_bytes(), errno))
            }
            Kind::Nothing => Ok(()),
        }
    }

    /// Removes the objects that a run of `count` created, if it left any.
    ///
    /// # Errors
    /// The name that could not be removed, and why.
    pub fn remove(&self, count: u64) -> Result<(), Ended> {
        if self.unlink.is_some() {
            return Ok(());
        }
        let mut buffer = Vec::new();
        let flags = if self.kind.is_directory() { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        for number in 0..count {
            let name = self.pattern.name(self.start.wrapping_add(number as i64), &mut buffer);
            match fs::unlinkat(fs::CWD, name, flags) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(failed("unlink", name.to_bytes(), errno)),
            }
        }
        Ok(())
    }
}

/// The directory above the last name, which the next one mostly shares.
#[derive(Default)]
struct Above {
    path: Vec<u8>,
    fd: Option<OwnedFd>,
    umask: Option<u32>,
}

impl Above {
    /// Makes a directory on a metadata target.
    fn mkdir(&mut self, mdt: u32, path: &[u8]) -> Result<(), Errno> {
        let cut = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let (above, name) = path.split_at(cut);
        let fd = match self.fd.take() {
            Some(fd) if self.path == above => fd,
            _ => {
                let directory = if above.is_empty() { b"." } else { above };
                fs::open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?
            }
        };
        let umask = *self.umask.get_or_insert_with(|| {
            // This is how a program reads its umask.
            let umask = rustix::process::umask(Mode::empty());
            rustix::process::umask(umask);
            umask.as_raw_mode()
        });
        let new = NewDirectory { mdts: vec![mdt], hash: 0, mode: 0o755, umask, name: name.to_vec() };
        let input = new.input().ok_or(Errno::INVAL)?;
        let made = ioctl::ask_fd(fd.as_fd(), Verb::MkdirOn, &input);
        if self.path != above {
            self.path = above.to_vec();
        }
        self.fd = Some(fd);
        made.map(drop).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

/// The most bytes in one write.
const WRITE_MAX: usize = 1 << 20;

impl Open {
    fn fill(&self, fd: &OwnedFd, name: &CStr, xattr: &[u8], data: &[u8]) -> Result<(), Ended> {
        let fd = fd.as_fd();
        if self.xattr.is_some() {
            fs::fsetxattr(fd, c"user.createmany", xattr, fs::XattrFlags::empty())
                .map_err(|errno| failed("fsetxattr", name.to_bytes(), errno))?;
        }
        let mut left = if self.write { self.size } else { 0 };
        while left > 0 {
            let part = data.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let written =
                rustix::io::write(fd, &data[..part]).map_err(|errno| failed("write", name.to_bytes(), errno))?;
            left -= written as u64;
        }
        if self.size > 0 && !self.write {
            fs::ftruncate(fd, self.size).map_err(|errno| failed("ftruncate", name.to_bytes(), errno))?;
        }
        if self.uid.is_some() || self.gid.is_some() {
            fs::fchown(fd, self.uid.map(Uid::from_raw), self.gid.map(Gid::from_raw))
                .map_err(|errno| failed("fchown", name.to_bytes(), errno))?;
        }
        Ok(())
    }
}

fn close(kept: Vec<OwnedFd>, out: &mut dyn Write) -> Done {
    let mut progress = Progress::start();
    let mut count = 0;
    for fd in kept {
        drop(fd);
        count += 1;
        // If the output is gone, there is nothing to do about it: the descriptors are closed in any case.
        let _ = progress.line(out, "closed", count, Instant::now());
    }
    Done::since(count, progress.start)
}

/// Raises the limit of open files to the maximum.
pub fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(kind: Kind, folder: &std::path::Path, count: u64) -> Create {
        let pattern = format!("{}/f%d", folder.display()).parse().unwrap();
        Create { kind, unlink: None, pattern, start: 0, count: Some(count), time: None }
    }

    fn run_captured(create: &Create) -> (Created, String) {
        let mut out = Vec::new();
        let (created, result) = create.run(&mut out);
        result.unwrap();
        (created, String::from_utf8(out).unwrap())
    }

    fn names(folder: &std::path::Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn files_are_opened_closed_and_counted() {
        let folder = tempfile::tempdir().unwrap();
        let mut create = create(Kind::Open(Open::default()), folder.path(), 3);
        create.start = 5;
        let (created, text) = run_captured(&create);
        assert_eq!(created.made.count, 3);
        assert!(text.starts_with("total: 3 open/close in 0.0") && text.ends_with(" ops/second\n"), "{text}");
        assert_eq!(names(folder.path()), ["f5", "f6", "f7"]);
        create.remove(3).unwrap();
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn kept_files_are_closed_apart() {
        let folder = tempfile::tempdir().unwrap();
        let (created, text) =
            run_captured(&create(Kind::Open(Open { keep: true, ..Open::default() }), folder.path(), 20));
        assert_eq!(created.closed.unwrap().count, 20);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("total: 20 open/keep in "), "{text}");
        assert!(lines[1].starts_with("total: 20 close in ") && lines[1].ends_with(" close/second"), "{text}");
    }

    #[test]
    fn nodes_directories_and_links_are_made() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let (_, text) = run_captured(&create(Kind::Mknod, folder.path(), 2));
        assert!(text.starts_with("total: 2 create in "), "{text}");
        assert!(folder.path().join("f1").symlink_metadata().unwrap().is_file());
        let other = folder.path().join("directories");
        std::fs::create_dir(&other).unwrap();
        assert!(run_captured(&create(Kind::Mkdir, &other, 2)).1.starts_with("total: 2 mkdir in "));
        assert!(other.join("f1").is_dir());
        let links = folder.path().join("links");
        std::fs::create_dir(&links).unwrap();
        let target = CString::new(folder.path().join("f0").to_str().unwrap()).unwrap();
        assert!(run_captured(&create(Kind::Link(target), &links, 2)).1.starts_with("total: 2 link in "));
        assert_eq!(links.join("f0").metadata().unwrap().nlink(), 3);
    }

    #[test]
    fn what_is_unlinked_at_once_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        for (kind, word) in [(Kind::Mknod, "create/unlink"), (Kind::Mkdir, "mkdir/rmdir")] {
            let mut create = create(kind, folder.path(), 4);
            create.unlink = Some(create.pattern.clone());
            let (_, text) = run_captured(&create);
            assert!(text.starts_with(&format!("total: 4 {word} in ")), "{text}");
            assert!(names(folder.path()).is_empty());
        }
        run_captured(&create(Kind::Mknod, folder.path(), 4));
        let mut create = create(Kind::Nothing, folder.path(), 4);
        create.unlink = Some(create.pattern.clone());
        let (_, text) = run_captured(&create);
        assert!(text.starts_with("total: 4 /unlink in "), "{text}");
        assert!(names(folder.path()).is_empty(), "what was there is removed");
    }

    #[test]
    fn opened_files_are_filled() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let own = rustix::process::geteuid().as_raw();
        let written = Open { size: 10_000, write: true, uid: Some(own), ..Open::default() };
        run_captured(&create(Kind::Open(written), folder.path(), 1));
        assert_eq!(std::fs::read(folder.path().join("f0")).unwrap(), vec![0x5a; 10_000]);
        let said = Open { size: 1 << 20, ..Open::default() };
        run_captured(&create(Kind::Open(said), folder.path(), 1));
        let metadata = folder.path().join("f0").metadata().unwrap();
        assert_eq!((metadata.len(), metadata.uid()), (1 << 20, own));
    }

    #[test]
    fn time_ends_a_run_without_a_count() {
        let folder = tempfile::tempdir().unwrap();
        let mut create = create(Kind::Mknod, folder.path(), 0);
        (create.count, create.time) = (None, Some(Duration::from_millis(50)));
        create.unlink = Some(create.pattern.clone());
        let (created, _) = run_captured(&create);
        assert!(created.made.count > 0 && created.made.seconds >= 0.05, "{created:?}");
    }

    #[test]
    fn a_failure_names_the_file_and_keeps_the_figures() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("f2"), "").unwrap();
        let mut out = Vec::new();
        let (created, result) = create(Kind::Mknod, folder.path(), 5).run(&mut out);
        assert_eq!(created.made.count, 2);
        let Err(Ended::Failed(text)) = result else { panic!("{result:?}") };
        assert!(text.starts_with("mknod(") && text.contains("/f2) error: File exists"), "{text}");
        assert!(String::from_utf8(out).unwrap().starts_with("total: 2 create in "));
    }

    #[test]
    fn only_adamant_has_metadata_targets() {
        let folder = tempfile::tempdir().unwrap();
        let (created, result) = create(Kind::MkdirOn(1), folder.path(), 5).run(&mut Vec::new());
        assert_eq!(created.made.count, 0);
        let Err(Ended::Failed(text)) = result else { panic!("{result:?}") };
        assert!(text.starts_with("mkdir(") && text.contains("only a mount of Adamant"), "{text}");
    }
}
