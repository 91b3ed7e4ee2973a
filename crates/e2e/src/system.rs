//! Safe forms of calls that the standard library and rustix lack: record locks on ranges, shared mappings, memory for `O_DIRECT`; and links in
//! `/sbin`.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// A lock of `fcntl(2)` on a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordLock {
    /// Shared.
    Shared,
    /// Exclusive.
    Exclusive,
    /// Unlock.
    Unlock,
}

fn describe(kind: RecordLock, start: i64, length: i64) -> libc::flock {
    let kind = match kind {
        RecordLock::Shared => libc::F_RDLCK,
        RecordLock::Exclusive => libc::F_WRLCK,
        RecordLock::Unlock => libc::F_UNLCK,
    };
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: length,
        l_pid: 0,
    }
}

#[allow(unsafe_code)]
fn control(file: &File, command: libc::c_int, lock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the structure outlives the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), command, std::ptr::from_mut(lock)) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Takes or releases a lock without waiting.
///
/// # Errors
/// `EAGAIN` if another holds it.
pub fn try_lock(file: &File, kind: RecordLock, start: i64, length: i64) -> io::Result<()> {
    control(file, libc::F_SETLK, &mut describe(kind, start, length))
}

/// Waits for a lock.
///
/// # Errors
/// `EDEADLK`.
pub fn wait_lock(file: &File, kind: RecordLock, start: i64, length: i64) -> io::Result<()> {
    control(file, libc::F_SETLKW, &mut describe(kind, start, length))
}

/// The range of a lock that conflicts with an exclusive one, if any.
///
/// # Errors
/// Those of the file system.
pub fn lock_in_the_way(file: &File, start: i64, length: i64) -> io::Result<Option<(i64, i64)>> {
    let mut lock = describe(RecordLock::Exclusive, start, length);
    control(file, libc::F_GETLK, &mut lock)?;
    Ok((lock.l_type != libc::F_UNLCK as libc::c_short).then_some((lock.l_start, lock.l_len)))
}

/// A shared mapping of a file.
#[derive(Debug)]
pub struct Mapping {
    address: *mut libc::c_void,
    length: usize,
}

impl Mapping {
    /// Maps the first `length` bytes for reading and writing.
    ///
    /// # Errors
    /// As `mmap(2)`.
    #[allow(unsafe_code)]
    pub fn new(file: &File, length: usize) -> io::Result<Mapping> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the address, so no existing mapping is affected.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), length, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { address, length })
    }

    /// Copies bytes out. The file must be that long, or the program ends with SIGBUS.
    #[allow(unsafe_code)]
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        assert!(offset + out.len() <= self.length);
        // SAFETY: within the mapping; the bytes may change under us, but each is read once, and any value is valid.
        unsafe { std::ptr::copy_nonoverlapping(self.address.cast::<u8>().add(offset), out.as_mut_ptr(), out.len()) }
    }

    /// Copies bytes in. The file must be that long.
    #[allow(unsafe_code)]
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length);
        // SAFETY: within the mapping, which nothing in this process refers to.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address.cast::<u8>().add(offset), bytes.len()) }
    }

    /// `msync(2)` with `MS_SYNC`.
    ///
    /// # Errors
    /// Errors of write-back.
    #[allow(unsafe_code)]
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the mapping is ours.
        if unsafe { libc::msync(self.address, self.length, libc::MS_SYNC) } == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl Drop for Mapping {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no longer used.
        unsafe { libc::munmap(self.address, self.length) };
    }
}

/// Bytes in page-aligned memory, as `O_DIRECT` needs.
#[derive(Debug)]
pub struct Aligned {
    space: Vec<u8>,
    skew: usize,
    length: usize,
}

impl Aligned {
    /// An alignment that every device accepts.
    const PAGE: usize = 4096;

    /// `length` zeros.
    pub fn zeros(length: usize) -> Aligned {
        let space = vec![0; length + Aligned::PAGE];
        let skew = space.as_ptr().align_offset(Aligned::PAGE);
        Aligned { space, skew, length }
    }

    /// The same bytes.
    pub fn of(bytes: &[u8]) -> Aligned {
        let mut aligned = Aligned::zeros(bytes.len());
        aligned.copy_from_slice(bytes);
        aligned
    }
}

impl std::ops::Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.space[self.skew..self.skew + self.length]
    }
}

impl std::ops::DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.space[self.skew..self.skew + self.length]
    }
}

/// A link in `/sbin` through which mount(8) finds the binary under test; removed again, unless it existed before.
#[derive(Debug)]
pub struct SbinLink(Option<PathBuf>);

impl SbinLink {
    /// Makes it. Needs root.
    pub fn make(name: &str) -> SbinLink {
        let path = Path::new("/sbin").join(name);
        if path.exists() {
            return SbinLink(None);
        }
        std::os::unix::fs::symlink(crate::binary(), &path).expect("root may write to /sbin");
        SbinLink(Some(path))
    }
}

impl Drop for SbinLink {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}
