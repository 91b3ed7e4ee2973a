//! The operations of a rank, and their usual implementation: paths of a mounted file system.

use std::ffi::CStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};

/// The calls that mdtest makes. A path includes the terminating NUL.
pub trait Files: Send {
    /// mkdir(2).
    fn mkdir(&mut self, path: &CStr) -> io::Result<()>;
    /// rmdir(2).
    fn rmdir(&mut self, path: &CStr) -> io::Result<()>;
    /// mknod(2) of a regular file.
    fn mknod(&mut self, path: &CStr) -> io::Result<()>;
    /// open(2) with O_CREAT, one write of `data` if it is not empty, fsync(2) if `sync`, close(2).
    fn create(&mut self, path: &CStr, data: &[u8], sync: bool) -> io::Result<()>;
    /// stat(2).
    fn stat(&mut self, path: &CStr) -> io::Result<()>;
    /// open(2), one read into `buffer` if it is not empty, close(2). Returns the number of bytes read.
    fn read(&mut self, path: &CStr, buffer: &mut [u8]) -> io::Result<usize>;
    /// unlink(2).
    fn unlink(&mut self, path: &CStr) -> io::Result<()>;
    /// Writes the whole file system to disk.
    fn sync(&mut self) -> io::Result<()>;
    /// Removes a directory's own layout, so that new files in it get that of the file system.
    fn forget_layout(&mut self, path: &CStr) -> io::Result<()>;
    /// Removes a directory and everything in it.
    fn remove_all(&mut self, path: &CStr) -> io::Result<()>;
}

/// Calls through the kernel.
#[derive(Clone, Debug)]
pub struct Mounted {
    base: String,
}

impl Mounted {
    /// Works under `base`, which need not exist yet.
    pub fn new(base: &str) -> Mounted {
        Mounted { base: base.to_owned() }
    }
}

impl Files for Mounted {
    fn mkdir(&mut self, path: &CStr) -> io::Result<()> {
        Ok(fs::mkdir(path, Mode::from_raw_mode(0o755))?)
    }

    fn rmdir(&mut self, path: &CStr) -> io::Result<()> {
        Ok(fs::unlinkat(fs::CWD, path, AtFlags::REMOVEDIR)?)
    }

    fn mknod(&mut self, path: &CStr) -> io::Result<()> {
        Ok(fs::mknodat(fs::CWD, path, FileType::RegularFile, Mode::from_raw_mode(0o644), 0)?)
    }

    fn create(&mut self, path: &CStr, data: &[u8], sync: bool) -> io::Result<()> {
        let fd = fs::open(path, OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(0o664))?;
        let mut left = data;
        while !left.is_empty() {
            let written = rustix::io::write(&fd, left)?;
            left = &left[written..];
        }
        if sync && !data.is_empty() {
            fs::fsync(&fd)?;
        }
        Ok(())
    }

    fn stat(&mut self, path: &CStr) -> io::Result<()> {
        Ok(fs::stat(path).map(drop)?)
    }

    fn read(&mut self, path: &CStr, buffer: &mut [u8]) -> io::Result<usize> {
        let fd = fs::open(path, OFlags::RDONLY, Mode::empty())?;
        let mut done = 0;
        while done < buffer.len() {
            match rustix::io::read(&fd, &mut buffer[done..])? {
                0 => break,
                count => done += count,
            }
        }
        Ok(done)
    }

    fn unlink(&mut self, path: &CStr) -> io::Result<()> {
        Ok(fs::unlink(path)?)
    }

    fn sync(&mut self) -> io::Result<()> {
        match fuse::ioctl::sync(Path::new(&self.base)) {
            // Not Adamant; ask the kernel instead.
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                let folder = fs::open(self.base.as_str(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
                Ok(fs::syncfs(folder)?)
            }
            result => result,
        }
    }

    fn forget_layout(&mut self, path: &CStr) -> io::Result<()> {
        use fuse::ioctl::{Verb, ask, wish};
        let path = Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()));
        ask(path, Verb::SetLayout, &wish(&proto::msg::Layout { want_first: -1, ..Default::default() })).map(drop)
    }

    fn remove_all(&mut self, path: &CStr) -> io::Result<()> {
        std::fs::remove_dir_all(Path::new(std::ffi::OsStr::from_bytes(path.to_bytes())))
    }
}
