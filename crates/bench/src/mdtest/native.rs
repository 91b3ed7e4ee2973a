//! The operations of a rank through the client library, without a mount (`--native`).
//!
//! A path is walked once for each directory. References to directories are kept; those to items are released at once, as
//! the kernel does when it is short of memory. So this measures the client library and the servers, without the kernel's
//! file system layer.

use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;
use client::api::{Answer, Call};
use host::client::{Mount, NoKernel};
use proto::Errno;
use proto::msg::Cred;

use super::files::Files;
use super::options::Place;

/// A client of its own, unmounted when the last rank that uses it is gone.
pub struct Client {
    mount: Mount,
}

/// How a client changes metadata.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// The most changes in flight.
    pub changes_in_flight: u16,
    /// Answer a change only after the server replied (no metadata write-back).
    pub sync_metadata: bool,
}

impl Default for Manner {
    /// As a mount without options does.
    fn default() -> Manner {
        Manner { changes_in_flight: 7, sync_metadata: false }
    }
}

/// How long an unmount waits for servers.
const PATIENCE: Duration = Duration::from_secs(30);
const ALL_CAPABILITIES: u64 = (1 << 41) - 1;
const MODE_FILE: u32 = 0o100_644;

impl Client {
    /// Starts a client of the file system of `place`.
    ///
    /// # Errors
    /// A sentence that says what to do.
    pub fn start(place: &Place, manner: Manner) -> anyhow::Result<Arc<Client>> {
        let Place::Native { mgs, fsname, .. } = place else {
            bail!("'{place}' is not a file system of ours");
        };
        let options = client::api::Options {
            uuid: host::clock::uuid(),
            seed: host::clock::seed(),
            instance: host::clock::instance(),
            fsname: fsname.clone(),
            mgs: mgs.clone(),
            description: format!("mdtest:{}", std::process::id()),
            read_only: false,
            max_dirty: 256 << 20,
            max_cached: 256 << 20,
            rename_wait: Duration::from_secs(30),
            max_read_ahead: 8 << 20,
            max_nodes: client::api::MAX_NODES_DEFAULT,
            soft: Some(Duration::from_secs(60)),
            timeouts: client::api::Timeouts::default(),
            always_ping: false,
            access_times: client::api::AccessTimes::default(),
            directory_access_times: client::api::AccessTimes::default(),
            write_back_after: Duration::from_secs(2),
            max_rpcs_in_flight: manner.changes_in_flight + 1,
            max_mod_rpcs_in_flight: manner.changes_in_flight,
            sync_metadata: manner.sync_metadata,
            faults: stdx::Faults::none(),
        };
        Ok(Arc::new(Client { mount: Mount::start(options, Arc::new(NoKernel))? }))
    }

    /// The running client.
    pub fn mount(&self) -> &Mount {
        &self.mount
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Err(reason) = self.mount.unmount(PATIENCE) {
            eprintln!("mdtest: {reason}");
        }
    }
}

/// The calls of a rank.
pub struct Native {
    client: Arc<Client>,
    cred: Cred,
    /// Known directories by path, with the library's reference to each.
    known: HashMap<Vec<u8>, u64>,
}

const ROOT: &[u8] = b"";
/// The inode number of [`proto::Fid::ROOT`].
const ROOT_INO: u64 = 1;
/// How often a call is retried if its directory is stale.
const STALE_MAX: u32 = 1000;

impl Native {
    /// Acts with the credentials of this process.
    pub fn new(client: Arc<Client>) -> Native {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let groups = rustix::process::getgroups().unwrap_or_default();
        let cred = Cred {
            uid: uid.as_raw(),
            gid: gid.as_raw(),
            groups: groups.into_iter().map(rustix::fs::Gid::as_raw).collect(),
            umask: 0o022,
            capabilities: if uid.is_root() { ALL_CAPABILITIES } else { 0 },
            job: String::new(),
        };
        Native { client, cred, known: HashMap::from([(ROOT.to_vec(), ROOT_INO)]) }
    }

    /// The credentials of its calls.
    pub fn cred(&self) -> Cred {
        self.cred.clone()
    }

    /// A directory by its path from the root, without a leading slash. The library keeps it until the client ends.
    ///
    /// # Errors
    /// An error of a lookup.
    pub fn directory(&mut self, path: &[u8]) -> io::Result<u64> {
        self.again(|native| native.folder(path))
    }

    /// Writes all changes to disk.
    ///
    /// # Errors
    /// What could not be written.
    pub fn bring_to_disk(&self) -> io::Result<()> {
        self.call(Call::Syncfs).map(drop)
    }

    fn call(&self, call: Call) -> io::Result<Answer> {
        self.client.mount.call(self.cred.clone(), call).map_err(errno)
    }

    fn forget(&self, ino: u64) {
        self.client.mount.submit(self.cred.clone(), Call::Forget { ino, count: 1 }, Box::new(|_| ()));
    }

    fn entry(&self, call: Call) -> io::Result<u64> {
        match self.call(call)? {
            Answer::Entry(stat) => Ok(stat.ino),
            _ => Err(errno(Errno::EIO)),
        }
    }

    /// The parent directory of a path, and the last name.
    fn parent<'a>(&mut self, path: &'a CStr) -> io::Result<(u64, &'a [u8])> {
        let path = path.to_bytes();
        let (folder, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (ROOT, path),
        };
        Ok((self.folder(folder)?, name))
    }

    fn folder(&mut self, path: &[u8]) -> io::Result<u64> {
        if let Some(ino) = self.known.get(path) {
            return Ok(*ino);
        }
        let (before, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (ROOT, path),
        };
        let parent = self.folder(before)?;
        let ino = self.entry(Call::Lookup { parent, name: Bytes::copy_from_slice(name) })?;
        self.known.insert(path.to_vec(), ino);
        Ok(ino)
    }

    /// Retries a call whose directory is stale, because another client changed it, after looking its name up again, as the
    /// kernel does.
    fn again<T>(&mut self, mut call: impl FnMut(&mut Native) -> io::Result<T>) -> io::Result<T> {
        for _ in 0..STALE_MAX {
            match call(self) {
                Err(error) if error.raw_os_error() == Some(Errno::ESTALE.raw()) => {
                    let stale: Vec<u64> =
                        self.known.drain().map(|(_, ino)| ino).filter(|ino| *ino != ROOT_INO).collect();
                    stale.into_iter().for_each(|ino| self.forget(ino));
                    self.known.insert(ROOT.to_vec(), ROOT_INO);
                }
                other => return other,
            }
        }
        call(self)
    }

    /// The names in a directory, and whether each is a directory.
    fn list(&self, ino: u64) -> io::Result<Vec<(Bytes, bool)>> {
        let Answer::Opened { fh, .. } = self.call(Call::Opendir { ino })? else { return Err(errno(Errno::EIO)) };
        let mut found = Vec::new();
        let mut offset = 0;
        let result = loop {
            match self.call(Call::Readdir { fh, offset, max_bytes: 1 << 20, plus: false }) {
                Ok(Answer::Entries(entries)) if entries.is_empty() => break Ok(()),
                Ok(Answer::Entries(entries)) => {
                    offset = entries.last().map_or(offset, |entry| entry.offset);
                    let real = entries.into_iter().filter(|entry| !matches!(&entry.name[..], b"." | b".."));
                    found.extend(real.map(|entry| (entry.name, entry.kind == DT_DIR)));
                }
                Ok(_) => break Err(errno(Errno::EIO)),
                Err(error) => break Err(error),
            }
        };
        self.call(Call::Releasedir { fh })?;
        result.map(|()| found)
    }

    fn empty(&self, parent: u64, name: &Bytes) -> io::Result<()> {
        let ino = self.entry(Call::Lookup { parent, name: name.clone() })?;
        for (name, is_directory) in self.list(ino)? {
            if is_directory {
                self.empty(ino, &name)?;
            } else {
                self.call(Call::Unlink { parent: ino, name })?;
            }
        }
        self.forget(ino);
        self.call(Call::Rmdir { parent, name: name.clone() }).map(drop)
    }
}

const DT_DIR: u32 = 4;

fn errno(error: Errno) -> io::Error {
    io::Error::from_raw_os_error(error.raw())
}

/// O_CREAT | O_WRONLY on Linux.
const CREATE: u32 = 0o101;

/// Single attempts at the calls, which fail if a known directory is stale.
impl Native {
    fn try_mkdir(&mut self, path: &CStr) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let ino = self.entry(Call::Mkdir { parent, name: Bytes::copy_from_slice(name), mode: 0o755 })?;
        self.forget(ino);
        Ok(())
    }

    fn try_rmdir(&mut self, path: &CStr) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        self.call(Call::Rmdir { parent, name: Bytes::copy_from_slice(name) })?;
        if let Some(ino) = self.known.remove(path.to_bytes()) {
            self.forget(ino);
        }
        Ok(())
    }

    fn try_mknod(&mut self, path: &CStr) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let ino = self.entry(Call::Mknod { parent, name: Bytes::copy_from_slice(name), mode: MODE_FILE, rdev: 0 })?;
        self.forget(ino);
        Ok(())
    }

    fn try_create(&mut self, path: &CStr, data: &[u8], sync: bool) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let call = Call::Create { parent, name: Bytes::copy_from_slice(name), mode: 0o664, flags: CREATE };
        let Answer::Created { stat, fh, .. } = self.call(call)? else { return Err(errno(Errno::EIO)) };
        let mut result = Ok(());
        let mut done = 0;
        while done < data.len() && result.is_ok() {
            let part = data.len().min(done + (1 << 20));
            let data = Bytes::copy_from_slice(&data[done..part]);
            let (offset, ino) = (done as u64, stat.ino);
            let write = Call::Write { fh, ino, offset, data, write_back: false, kill_priv: false };
            result = self.call(write).map(drop);
            done = part;
        }
        if sync && !data.is_empty() && result.is_ok() {
            result = self.call(Call::Fsync { fh }).map(drop);
        }
        let closed = self.call(Call::Release { fh, flock_owner: None });
        self.forget(stat.ino);
        result.and(closed.map(drop))
    }

    fn try_stat(&mut self, path: &CStr) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let ino = self.entry(Call::Lookup { parent, name: Bytes::copy_from_slice(name) })?;
        self.forget(ino);
        Ok(())
    }

    fn try_read(&mut self, path: &CStr, buffer: &mut [u8]) -> io::Result<usize> {
        let (parent, name) = self.parent(path)?;
        let ino = self.entry(Call::Lookup { parent, name: Bytes::copy_from_slice(name) })?;
        let Answer::Opened { fh, .. } = self.call(Call::Open { ino, flags: 0 })? else {
            return Err(errno(Errno::EIO));
        };
        let mut done = 0;
        let mut result = Ok(());
        while done < buffer.len() {
            let length = (buffer.len() - done).min(1 << 20) as u32;
            match self.call(Call::Read { fh, offset: done as u64, length }) {
                Ok(Answer::Data(data)) if !data.is_empty() => {
                    let count = data.len().min(buffer.len() - done);
                    buffer[done..done + count].copy_from_slice(&data[..count]);
                    done += count;
                }
                Ok(_) => break,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        let closed = self.call(Call::Release { fh, flock_owner: None });
        self.forget(ino);
        result.and(closed.map(|_| done))
    }

    fn try_unlink(&mut self, path: &CStr) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        self.call(Call::Unlink { parent, name: Bytes::copy_from_slice(name) }).map(drop)
    }

    fn try_remove_all(&mut self, path: &CStr) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        self.empty(parent, &Bytes::copy_from_slice(name))?;
        let gone = path.to_bytes();
        let below = |known: &[u8]| known.strip_prefix(gone).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
        let stale: Vec<Vec<u8>> = self.known.keys().filter(|known| below(known)).cloned().collect();
        for path in stale {
            if let Some(ino) = self.known.remove(&path) {
                self.forget(ino);
            }
        }
        Ok(())
    }
}

impl Files for Native {
    fn mkdir(&mut self, path: &CStr) -> io::Result<()> {
        self.again(|native| native.try_mkdir(path))
    }

    fn rmdir(&mut self, path: &CStr) -> io::Result<()> {
        self.again(|native| native.try_rmdir(path))
    }

    fn mknod(&mut self, path: &CStr) -> io::Result<()> {
        self.again(|native| native.try_mknod(path))
    }

    fn create(&mut self, path: &CStr, data: &[u8], sync: bool) -> io::Result<()> {
        self.again(|native| native.try_create(path, data, sync))
    }

    fn stat(&mut self, path: &CStr) -> io::Result<()> {
        self.again(|native| native.try_stat(path))
    }

    fn read(&mut self, path: &CStr, buffer: &mut [u8]) -> io::Result<usize> {
        self.again(|native| native.try_read(path, buffer))
    }

    fn unlink(&mut self, path: &CStr) -> io::Result<()> {
        self.again(|native| native.try_unlink(path))
    }

    fn sync(&mut self) -> io::Result<()> {
        self.bring_to_disk()
    }

    fn forget_layout(&mut self, _path: &CStr) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn remove_all(&mut self, path: &CStr) -> io::Result<()> {
        self.again(|native| native.try_remove_all(path))
    }
}
