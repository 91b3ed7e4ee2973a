//! What a rank works on, and its usual form: paths of a mounted file system.

use std::ffi::CStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};

/// The calls that mdtest makes. A path ends with the NUL of a C string.
pub trait Files: Send {
    /// mkdir(2).
    fn mkdir(&mut self, path: &CStr) -> io::Result<()>;
    /// rmdir(2).
    fn rmdir(&mut self, path: &CStr) -> io::Result<()>;
    /// mknod(2) of a regular file.
    fn mknod(&mut self, path: &CStr) -> io::Result<()>;
    /// open(2) with O_CREAT, one write of `data` if there is any, fsync(2) if asked for, close(2).
    fn create(&mut self, path: &CStr, data: &[u8], sync: bool) -> io::Result<()>;
    /// stat(2).
    fn stat(&mut self, path: &CStr) -> io::Result<()>;
    /// open(2), one read into `buffer` if it has any room, close(2). Gives the bytes read.
    fn read(&mut self, path: &CStr, buffer: &mut [u8]) -> io::Result<usize>;
    /// unlink(2).
    fn unlink(&mut self, path: &CStr) -> io::Result<()>;
    /// Everything of this file system goes to disk.
    fn sync(&mut self) -> io::Result<()>;
    /// A directory has no layout of its own any more: new files in it have that of the file system.
    fn forget_layout(&mut self, path: &CStr) -> io::Result<()>;
    /// A directory with all that is in it goes.
    fn remove_all(&mut self, path: &CStr) -> io::Result<()>;
}

/// Paths of the kernel.
#[derive(Clone, Debug)]
pub struct Mounted {
    base: String,
}

impl Mounted {
    /// Under `base`, which need not be there yet.
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
            // Another file system, which the kernel tells.
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
