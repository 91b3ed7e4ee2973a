//! A name that the walk has found, and its attributes and layout.

use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use fuse::ioctl::{self, Verb};
use prost::Message;
use proto::msg::Layout;
use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, StatxTimestamp};
use rustix::io::Errno;

use super::condition::{Attributes, Facts, Stripes, Trouble, view_of};
use crate::commands::lfs::layout::LayoutView;

/// A name that the walk has found.
pub(super) struct Candidate<'a> {
    /// The directory that `place` is looked up in.
    pub at: BorrowedFd<'a>,
    /// Its name there.
    pub place: &'a OsStr,
    /// The name that `--name` matches.
    pub name: &'a [u8],
    /// The path to print.
    pub path: &'a [u8],
    pub depth: usize,
    /// The inode number from the directory; 0 if the name was not listed.
    pub number: u64,
    /// The kind from the directory, if it says so.
    pub kind: Option<FileType>,
    /// Whether cached attributes of the client are enough, even if they are old.
    pub lazy: bool,
    pub attributes: Option<Attributes>,
    pub view: Option<LayoutView>,
}

impl Candidate<'_> {
    /// The FID of a file or directory, as text; `None` for other kinds, which cannot be opened to ask.
    ///
    /// # Errors
    /// See [`Trouble`].
    pub(super) fn fid(&mut self) -> Result<Option<String>, Trouble> {
        match self.kind()? {
            FileType::RegularFile | FileType::Directory => {
                let text = ioctl::ask_at(self.at, self.place, Verb::PathToFid, &[]).map_err(of_layout)?;
                Ok(Some(String::from_utf8_lossy(&text).into_owned()))
            }
            _ => Ok(None),
        }
    }
}

impl Candidate<'_> {
    /// Asks the file itself or, because a file whose data is lost cannot be opened, its directory.
    fn layout_bytes(&self) -> io::Result<Vec<u8>> {
        let answer = ioctl::ask_at(self.at, self.place, Verb::GetLayout, &[]);
        let is_lost = |error: &io::Error| Errno::from_io_error(error) == Some(Errno::IO) && self.number != 0;
        match answer {
            Err(error) if is_lost(&error) => {
                ioctl::ask_fd(self.at, Verb::LayoutOf, &self.number.to_le_bytes()).map_err(|_| error)
            }
            answer => answer,
        }
    }
}

impl Facts for Candidate<'_> {
    fn name(&self) -> &[u8] {
        self.name
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn kind(&mut self) -> Result<FileType, Trouble> {
        match self.kind {
            Some(kind) => Ok(kind),
            None => self.attributes().map(|attributes| attributes.kind),
        }
    }

    fn attributes(&mut self) -> Result<&Attributes, Trouble> {
        if self.attributes.is_none() {
            let found = stat(self.at, self.place, self.lazy, AtFlags::SYMLINK_NOFOLLOW).map_err(of_name)?;
            self.kind = Some(found.kind);
            self.attributes = Some(found);
        }
        self.attributes.as_ref().ok_or(Trouble::Gone)
    }

    fn layout(&mut self) -> Result<&LayoutView, Trouble> {
        if self.view.is_none() {
            let kind = self.kind()?;
            let bytes = self.layout_bytes().map_err(of_layout)?;
            let layout = Layout::decode(&bytes[..]).map_err(|error| Trouble::Failed(io::Error::other(error)))?;
            self.view = Some(view_of(layout, kind));
        }
        self.view.as_ref().ok_or(Trouble::Gone)
    }

    fn mdt(&mut self) -> Result<u32, Trouble> {
        // Links and devices cannot be opened to ask, so the directory is.
        let answer = match self.number {
            0 => ioctl::ask_at(self.at, self.place, Verb::MdtIndex, &[]),
            number => ioctl::ask_fd(self.at, Verb::MdtIndex, &number.to_le_bytes()),
        };
        let text = answer.map_err(of_layout)?;
        let index = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
        index.ok_or_else(|| Trouble::Failed(io::ErrorKind::InvalidData.into()))
    }

    fn stripes(&mut self) -> Result<Stripes, Trouble> {
        let layout = ioctl::dir_layout_head_at(self.at, self.place).map_err(of_layout)?;
        Ok(layout.map_or(Stripes::default(), |layout| Stripes { count: layout.count, hash: layout.hash }))
    }
}

/// Asks the kernel for the attributes of a name.
///
/// # Errors
/// As for statx(2).
pub(super) fn stat(at: BorrowedFd<'_>, place: &OsStr, lazy: bool, flags: AtFlags) -> Result<Attributes, Errno> {
    let sync = if lazy { AtFlags::STATX_DONT_SYNC } else { AtFlags::empty() };
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    rustix::fs::statx(at, place.as_bytes(), flags | sync, wanted).map(|found| attributes(&found))
}

fn attributes(found: &Statx) -> Attributes {
    let moment = |time: &StatxTimestamp| (time.tv_sec, time.tv_nsec);
    Attributes {
        kind: FileType::from_raw_mode(found.stx_mode.into()),
        mode: found.stx_mode.into(),
        links: found.stx_nlink,
        uid: found.stx_uid,
        gid: found.stx_gid,
        size: found.stx_size,
        blocks: found.stx_blocks,
        access: moment(&found.stx_atime),
        change: moment(&found.stx_ctime),
        modification: moment(&found.stx_mtime),
        birth: (found.stx_mask & StatxFlags::BTIME.bits() != 0).then(|| moment(&found.stx_btime)),
    }
}

/// The meaning of an error about a name in a directory that was just listed. `ESTALE`: it was removed during the lookup.
pub(super) fn of_name(error: Errno) -> Trouble {
    match error {
        Errno::NOENT | Errno::STALE => Trouble::Gone,
        error => Trouble::Failed(error.into()),
    }
}

/// The same for requests that only an Adamant mount answers. `ELOOP`: the name became a symbolic link in the meantime.
fn of_layout(error: io::Error) -> Trouble {
    match Errno::from_io_error(&error) {
        Some(Errno::NOTTY | Errno::OPNOTSUPP) => Trouble::Foreign,
        Some(Errno::LOOP) => Trouble::Gone,
        Some(error) => of_name(error),
        None => Trouble::Failed(error),
    }
}
