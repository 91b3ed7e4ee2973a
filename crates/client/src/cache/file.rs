//! Open files and directories of this client.

use proto::msg::Cred;
use proto::{Fid, Xid};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::api::FileHandle;
use crate::base::Dest;
use crate::cache::names::Piece;

/// `O_*` of Linux on x86-64.
pub(crate) mod flags {
    /// Mask of the access mode.
    pub(crate) const ACCMODE: u32 = 0o3;
    /// Write only.
    pub(crate) const WRONLY: u32 = 0o1;
    /// Read and write.
    pub(crate) const RDWR: u32 = 0o2;
    /// Create.
    pub(crate) const CREAT: u32 = 0o100;
    /// It must not exist.
    pub(crate) const EXCL: u32 = 0o200;
    /// Truncate.
    pub(crate) const TRUNC: u32 = 0o1000;
    /// Append.
    pub(crate) const APPEND: u32 = 0o2000;
    /// Data durable before write returns.
    pub(crate) const DSYNC: u32 = 0o10000;
    /// Bypass the caches.
    pub(crate) const DIRECT: u32 = 0o40000;
    /// It must be a directory.
    pub(crate) const DIRECTORY: u32 = 0o200_000;
    /// Do not touch the atime.
    pub(crate) const NOATIME: u32 = 0o1_000_000;
    /// Only a reference.
    pub(crate) const PATH: u32 = 0o10_000_000;
    /// For execution; the kernel's own.
    pub(crate) const EXEC: u32 = 0o40;
    /// Data and attributes durable before write returns.
    pub(crate) const SYNC: u32 = 0o4_010_000;
}

/// Which side knows that a file is open.
///
/// ```text
///   state      becomes    when
///   Local      Reported   the open is reported, before the file can lose its name
///   Local      Lost       an eviction takes it, or the server does not know the file
///   Reported   Lost       an eviction takes it, or a restarted server does not reopen it
///   Reported   closed     it is closed, and its close is sent to the server
///   others     closed     it is closed
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Open {
    /// A directory, whose open is never reported.
    Directory,
    /// Only this client.
    Local,
    /// Also the server, by this request.
    Reported(Xid),
    /// No one any longer: every call through it fails. The request that reported it, if there was one.
    Lost(Option<Xid>),
}

/// An open file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    /// Its node.
    pub ino: u64,
    /// Its identity.
    pub fid: Fid,
    /// `O_*`.
    pub flags: u32,
    /// The credentials of the opener. Later operations through the handle use them.
    pub cred: Arc<Cred>,
    /// Its metadata target.
    pub dest: Dest,
    /// Which side knows that it is open.
    open: Open,
    /// Owners that took record locks through the handle and have not closed it. Locks of an open file description
    /// (`F_OFD_SETLK`) end with the description: no close names their owner.
    pub lock_owners: Vec<u64>,
    /// See `data::error_mark`.
    pub error_mark: u32,
    /// The lease under which the file was made ([`crate::coherence::metadata_write_back`]); 0: none.
    pub lease: u64,
    /// For a directory: the version of its layout by which it is read;
    pub layout: u32,
    /// the entries being read, of each stripe,
    pub streams: Vec<Option<Box<Stream>>>,
    /// and what follows them.
    pub next: Option<Next>,
    /// It was opened through an alias: the kernel gets no nodes with its entries.
    pub by_alias: bool,
}

impl OpenFile {
    /// A handle of this node with these flags.
    pub(crate) fn new(fid: Fid, flags: u32, cred: Arc<Cred>, dest: Dest, open: Open) -> OpenFile {
        OpenFile {
            ino: fid.ino(),
            fid,
            flags,
            cred,
            dest,
            open,
            lock_owners: Vec::new(),
            error_mark: 0,
            lease: 0,
            layout: 0,
            streams: Vec::new(),
            next: None,
            by_alias: false,
        }
    }

    /// Which side knows that it is open.
    pub(crate) fn open(&self) -> Open {
        self.open
    }

    /// Whether the open is lost: every call through it fails.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.open, Open::Lost(_))
    }

    /// Whether it is open for reading.
    pub(crate) fn readable(&self) -> bool {
        self.flags & flags::ACCMODE != flags::WRONLY
    }

    /// Whether the server does not know that it is open ([`crate::coherence::local_opens`]).
    pub(crate) fn is_local(&self) -> bool {
        self.open == Open::Local
    }

    /// Whether an eviction at this target takes the open.
    pub(crate) fn is_open_at(&self, dest: Dest) -> bool {
        self.dest == dest && matches!(self.open, Open::Local | Open::Reported(_))
    }

    /// The close that has to be sent to the server, if any.
    pub(crate) fn closing(&self) -> Option<Closing> {
        match self.open {
            Open::Reported(open_xid) | Open::Lost(Some(open_xid)) => {
                Some(Closing { ino: self.ino, fid: self.fid, dest: self.dest, open_xid })
            }
            Open::Directory | Open::Local | Open::Lost(None) => None,
        }
    }

    /// Whether it is open for writing.
    pub(crate) fn writable(&self) -> bool {
        self.flags & flags::ACCMODE != 0
    }
}

/// A piece of a directory that is read step by step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stream {
    /// The entries that were fetched.
    pub piece: Arc<Piece>,
    /// The cookie after which they start.
    pub after: u64,
    /// A listing from the start has used them.
    pub used: bool,
    /// How many names of the directory this client had changed when they were requested.
    pub changes: u32,
}

impl Stream {
    /// The cookie of its last entry.
    pub(crate) fn last(&self) -> Option<u64> {
        self.piece.entries.last().map(|listed| listed.cookie)
    }
}

/// The prefetched entries that follow the ones being read, with attributes.
#[derive(Clone, Debug)]
pub(crate) enum Next {
    /// They were requested.
    Fetching {
        /// The cookie after which they start.
        after: u64,
        /// Identifies the request: the handle may belong to another directory when it is answered.
        number: u32,
    },
    /// They have arrived.
    Fetched(Box<Stream>),
}

/// What a close needs when it is sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Closing {
    /// The node.
    pub ino: u64,
    /// Its identity.
    pub fid: Fid,
    /// The target.
    pub dest: Dest,
    /// The request that opened it.
    pub open_xid: Xid,
}

/// The key of a local open: the lease of its file, the file, the handle.
pub(crate) type LocalOpen = (u64, u64, u64);

/// All open files. Local opens can be found by their file and by its lease.
#[derive(Debug, Default)]
pub(crate) struct Files {
    slots: Vec<Option<OpenFile>>,
    free: Vec<u32>,
    local: BTreeSet<LocalOpen>,
}

fn local_open(fh: FileHandle, file: &OpenFile) -> LocalOpen {
    (file.lease, file.ino, fh.0)
}

impl Files {
    /// Adds an open file.
    pub(crate) fn insert(&mut self, file: OpenFile) -> FileHandle {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                (self.slots.len() - 1) as u32
            }
        };
        let fh = FileHandle(u64::from(slot) + 1);
        if file.is_local() {
            self.local.insert(local_open(fh, &file));
        }
        self.slots[slot as usize] = Some(file);
        fh
    }

    fn index(fh: FileHandle) -> usize {
        usize::try_from(fh.0.wrapping_sub(1)).unwrap_or(usize::MAX)
    }

    /// An open file.
    pub(crate) fn get(&self, fh: FileHandle) -> Option<&OpenFile> {
        self.slots.get(Self::index(fh))?.as_ref()
    }

    /// The same, mutable.
    pub(crate) fn get_mut(&mut self, fh: FileHandle) -> Option<&mut OpenFile> {
        self.slots.get_mut(Self::index(fh))?.as_mut()
    }

    /// Closes a file.
    pub(crate) fn remove(&mut self, fh: FileHandle) -> Option<OpenFile> {
        let index = Self::index(fh);
        let file = self.slots.get_mut(index)?.take()?;
        self.free.push(index as u32);
        if file.is_local() {
            self.local.remove(&local_open(fh, &file));
        }
        Some(file)
    }

    /// A local open was reported, by this request.
    pub(crate) fn reported(&mut self, fh: FileHandle, open_xid: Xid) {
        self.change(fh, |file| {
            if file.open == Open::Local {
                file.open = Open::Reported(open_xid);
            }
        });
    }

    /// The open is lost.
    pub(crate) fn lost(&mut self, fh: FileHandle) {
        self.change(fh, |file| match file.open {
            Open::Local => file.open = Open::Lost(None),
            Open::Reported(open_xid) => file.open = Open::Lost(Some(open_xid)),
            Open::Directory | Open::Lost(_) => {}
        });
    }

    fn change(&mut self, fh: FileHandle, change: impl FnOnce(&mut OpenFile)) {
        let Some(file) = self.slots.get_mut(Self::index(fh)).and_then(Option::as_mut) else { return };
        self.local.remove(&local_open(fh, file));
        change(file);
        if file.is_local() {
            self.local.insert(local_open(fh, file));
        }
    }

    /// The local opens of `which` ([`of_file`], [`of_lease`]).
    pub(crate) fn local_opens(&self, which: RangeInclusive<LocalOpen>) -> impl Iterator<Item = (u64, FileHandle)> {
        self.local.range(which).map(|(_, ino, fh)| {
            stdx::steps::add(1);
            (*ino, FileHandle(*fh))
        })
    }

    /// Closes all files.
    pub(crate) fn take_all(&mut self) -> Vec<OpenFile> {
        self.free.clear();
        self.local.clear();
        core::mem::take(&mut self.slots).into_iter().flatten().collect()
    }

    /// The number of open files.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// All open files, in the order of their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (FileHandle, &OpenFile)> {
        stdx::steps::add(self.slots.len());
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(slot, file)| Some((FileHandle(slot as u64 + 1), file.as_ref()?)))
    }
}

/// The keys of one file that was made under a lease (0: under none).
pub(crate) fn of_file(lease: u64, ino: u64) -> RangeInclusive<LocalOpen> {
    (lease, ino, 0)..=(lease, ino, u64::MAX)
}

/// The keys of all files that were made under a lease.
pub(crate) fn of_lease(lease: u64) -> RangeInclusive<LocalOpen> {
    (lease, 0, 0)..=(lease, u64::MAX, u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every state of an open file with everything that can happen to it: its next state, whether it must be reported
    /// before its name is removed, whether an eviction takes it, and whether its close is sent.
    #[test]
    fn every_state_of_an_open_file_handles_every_event() {
        const XID: Xid = Xid(7);
        let states = [Open::Directory, Open::Local, Open::Reported(XID), Open::Lost(None), Open::Lost(Some(XID))];
        let reported =
            [Open::Directory, Open::Reported(Xid(9)), Open::Reported(XID), Open::Lost(None), Open::Lost(Some(XID))];
        let lost = [Open::Directory, Open::Lost(None), Open::Lost(Some(XID)), Open::Lost(None), Open::Lost(Some(XID))];
        let is_local = [false, true, false, false, false];
        let is_taken = [false, true, true, false, false];
        let closes = [None, None, Some(XID), None, Some(XID)];
        for (index, open) in states.into_iter().enumerate() {
            let fid = Fid::new(Fid::SEQ_FIRST, 5);
            let dest = Dest::Mdt(0);
            let mut files = Files::default();
            let mut insert = || files.insert(OpenFile::new(fid, 0, Arc::default(), dest, open));
            let [as_it_is, to_report, to_lose] = [insert(), insert(), insert()];
            files.reported(to_report, Xid(9));
            files.lost(to_lose);
            let state = |fh: FileHandle| files.get(fh).map(OpenFile::open);
            assert_eq!([state(to_report), state(to_lose)], [Some(reported[index]), Some(lost[index])], "{open:?}");
            let file = files.get(as_it_is).expect("an open file");
            assert_eq!((file.is_local(), file.is_open_at(dest)), (is_local[index], is_taken[index]), "{open:?}");
            assert_eq!(file.closing().map(|closing| closing.open_xid), closes[index], "{open:?}");
            let here: Vec<FileHandle> = files.local_opens(of_file(0, fid.ino())).map(|(_, fh)| fh).collect();
            assert_eq!(here, if is_local[index] { vec![as_it_is] } else { vec![] }, "{open:?}");
            files.remove(as_it_is);
            assert_eq!(files.local_opens(of_file(0, fid.ino())).count(), 0);
        }
    }
}
