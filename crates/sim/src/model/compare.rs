//! Comparison of a call's result with the model.

use core::ops::Range;
use std::collections::BTreeSet;

use client::api::{DirectoryEntry, Stat};
use proto::{Bytes, Errno};

use super::files::O_APPEND;
use super::{Body, Expected, Id, Inode, Model, Op, S_IFMT, WriteWay};

/// The result of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Returned {
    /// Success.
    Done,
    /// Attributes.
    Stat(Stat),
    /// The inode number of an opened file.
    Opened(u64),
    /// Bytes.
    Data(Bytes),
    /// A count of bytes.
    Written(u32),
    /// Directory entries.
    Entries(Vec<DirectoryEntry>),
    /// Attribute names, each terminated by NUL.
    Names(Bytes),
    /// An offset.
    Offset(u64),
}

/// Describes how a result differs from the expected one; `None` if it does not. Records inode numbers that are seen for the first
/// time.
pub(crate) fn differs(
    model: &mut Model,
    expect: &Result<Expected, Errno>,
    got: &Result<Returned, Errno>,
) -> Option<String> {
    let (expect, got) = match (expect, got) {
        (Err(e), Err(g)) if e == g => return None,
        (Ok(Expected::SeekOrNothing { .. }), Err(Errno::ENXIO)) => return None,
        (Ok(e), Ok(g)) => (e, g),
        (Ok(_), Err(g)) => return Some(format!("it failed with {}, expected success", g.name())),
        (Err(e), Ok(_)) => return Some(format!("it succeeded, expected {}", e.name())),
        (Err(e), Err(g)) => return Some(format!("it failed with {}, expected {}", g.name(), e.name())),
    };
    match (expect, got) {
        (Expected::Done, _) => None,
        (Expected::Inode(id), Returned::Stat(stat)) => model.stat_differs(*id, stat),
        (Expected::Inode(id), Returned::Opened(ino)) => model.ino_differs(*id, *ino),
        (Expected::Data(want), Returned::Data(data)) => bytes_differ(want, data),
        (Expected::Written(want), Returned::Written(count)) if want == count => None,
        (Expected::Written(want), Returned::Written(count)) => Some(format!("{count} bytes written, expected {want}")),
        (Expected::Entries(want), Returned::Entries(entries)) => model.listing_differs(want, entries),
        (Expected::Names(want), Returned::Names(bytes)) => {
            let names: BTreeSet<&[u8]> = bytes.split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
            let want: BTreeSet<&[u8]> = want.iter().map(|name| &name[..]).collect();
            (names != want).then(|| format!("attribute names {}, expected {}", show(&names), show(&want)))
        }
        (Expected::Seek { id, offset, hole }, Returned::Offset(found)) => {
            seek_differs(model.inode(*id).data(), *offset, *hole, *found)
        }
        (Expected::SeekOrNothing { id, offset }, Returned::Offset(found)) => {
            seek_differs(model.inode(*id).data(), *offset, false, *found)
        }
        (expect, got) => Some(format!("got {got:?}, expected {expect:?}")),
    }
}

fn show(names: &BTreeSet<&[u8]>) -> String {
    names.iter().map(|name| name.escape_ascii().to_string()).collect::<Vec<_>>().join(" ")
}

fn bytes_differ(want: &[u8], got: &[u8]) -> Option<String> {
    if want == got {
        return None;
    }
    if want.len() != got.len() {
        return Some(format!("{} bytes, expected {}", got.len(), want.len()));
    }
    let at = want.iter().zip(got).position(|(a, b)| a != b).unwrap_or(0);
    let until = want.iter().zip(got).rposition(|(a, b)| a != b).unwrap_or(0);
    Some(format!(
        "bytes {at} to {until} of {} differ: 0x{:02x} at the first, expected 0x{:02x}",
        want.len(),
        got[at],
        want[at]
    ))
}

fn seek_differs(data: &[u8], offset: u64, hole: bool, found: u64) -> Option<String> {
    let size = data.len() as u64;
    if found < offset || found > size {
        return Some(format!("offset {found} from {offset} in a file of {size} bytes"));
    }
    let zeros = |from: u64, to: u64| data[from as usize..to as usize].iter().all(|byte| *byte == 0);
    if hole {
        (found < size && data[found as usize] != 0).then(|| format!("a hole at {found}, where data is"))
    } else if found == size {
        Some("data at the end of the file".to_owned())
    } else {
        (!zeros(offset, found)).then(|| format!("data found at {found}, but some lies between {offset} and that"))
    }
}

impl Model {
    /// Records the number of an inode, or compares it with the recorded one.
    pub(crate) fn ino_differs(&mut self, id: Id, ino: u64) -> Option<String> {
        match self.inos.get(&id) {
            Some(&known) if known == ino => None,
            Some(&known) => Some(format!("inode number {ino:x}, it was {known:x}")),
            None => {
                if let Some((other, _)) = self.inos.iter().find(|(_, known)| **known == ino) {
                    return Some(format!("inode number {ino:x} belongs to another object ({other:?})"));
                }
                self.inos.insert(id, ino);
                None
            }
        }
    }

    /// Takes over the inode numbers that another state knows.
    pub(crate) fn knows_numbers_of(&mut self, other: &Model) {
        self.inos.clone_from(&other.inos);
    }

    /// The same for inodes that exist in this state. An inode that exists only in the other state may never be made, or be made
    /// again with another number.
    pub(crate) fn learns_numbers_of(&mut self, other: &Model) {
        let here = other.inos.iter().filter(|(id, _)| self.inodes.contains_key(id));
        self.inos.extend(here.map(|(id, ino)| (*id, *ino)));
    }

    fn stat_differs(&mut self, id: Id, stat: &Stat) -> Option<String> {
        self.ino_differs(id, stat.ino).or_else(|| self.attributes_differ(id, stat, true))
    }

    /// How a stat differs from an inode's attributes; times are compared only with `times`.
    pub(crate) fn attributes_differ(&self, id: Id, stat: &Stat, times: bool) -> Option<String> {
        let inode = self.inode(id);
        let checks = [
            ("mode", u64::from(stat.mode), u64::from(inode.mode)),
            ("nlink", u64::from(stat.nlink), u64::from(inode.nlink)),
            ("uid", u64::from(stat.uid), u64::from(inode.uid)),
            ("gid", u64::from(stat.gid), u64::from(inode.gid)),
        ];
        // A metadata target with a stripe is away.
        // Any directory may have got stripes.
        let is_partial = stat.is_partial;
        for (what, got, want) in checks {
            if got != want && !(is_partial && what == "nlink") {
                return Some(if what == "mode" {
                    format!("mode {got:o}, expected {want:o}")
                } else {
                    format!("{what} {got}, expected {want}")
                });
            }
        }
        if let Some(size) = size_of(inode) {
            let least = if inode.is_file() { least_size(inode.data(), self.lost(id)) } else { size };
            if !(least..=size).contains(&stat.size) {
                return Some(match least == size {
                    true => format!("size {}, expected {size}", stat.size),
                    false => format!("size {}, expected {least} to {size}", stat.size),
                });
            }
        }
        if let Body::Special { rdev } = inode.body
            && stat.rdev != rdev
        {
            return Some(format!("device {:x}, expected {rdev:x}", stat.rdev));
        }
        if is_partial {
            return None;
        }
        if self.shared {
            let differs = times && !inode.mtime.holds(stat.mtime_ns);
            return differs.then(|| format!("mtime {}, it was set to {}", stat.mtime_ns, inode.mtime.from));
        }
        if !times {
            return None;
        }
        // A lost write also loses its times.
        let lost = self.lost.contains_key(&id);
        for (what, got, when) in [("mtime", stat.mtime_ns, inode.mtime), ("ctime", stat.ctime_ns, inode.ctime)] {
            let excused = lost && (got < when.from || what == "mtime" && inode.set_mtime == Some(got));
            if !excused && !when.holds(got) {
                return Some(format!("{what} {got}, expected {} to {}", when.from, when.to));
            }
        }
        match inode.atime {
            Some(atime) if atime != stat.atime_ns => Some(format!("atime {}, expected {atime}", stat.atime_ns)),
            _ => None,
        }
    }

    /// Records that ranges of a file were given up.
    pub(crate) fn lose(&mut self, id: Id, parts: &[Range<u64>]) {
        self.lost.entry(id).or_default().extend(parts.iter().cloned());
    }

    /// The ranges of a file that were given up.
    pub(crate) fn lost(&self, id: Id) -> &[Range<u64>] {
        self.lost.get(&id).map_or(&[], Vec::as_slice)
    }

    /// The least size that a file can have if these ranges were given up.
    pub(crate) fn least_size(&self, id: Id, lost: &[Range<u64>]) -> u64 {
        least_size(self.inode(id).data(), lost)
    }

    /// The file that a write would append to.
    pub(crate) fn appends_to(&self, op: &Op) -> Option<Id> {
        let Op::Write { fd, way: WriteWay::Plain, .. } = op else { return None };
        self.open.get(fd).filter(|file| file.flags & O_APPEND != 0).map(|file| file.id)
    }

    /// The number of an inode, if it was seen.
    pub(crate) fn ino_of(&self, id: Id) -> Option<u64> {
        self.inos.get(&id).copied()
    }

    /// The inode with this number, if it was seen.
    pub(crate) fn id_of(&self, ino: u64) -> Option<Id> {
        self.inos.iter().find(|(_, known)| **known == ino).map(|(id, _)| *id)
    }

    pub(crate) fn listing_differs(&mut self, want: &[(Bytes, Id)], entries: &[DirectoryEntry]) -> Option<String> {
        let mut names = BTreeSet::new();
        for entry in entries {
            if !names.insert(&entry.name[..]) {
                return Some(format!("'{}' is listed twice", entry.name.escape_ascii()));
            }
        }
        let wanted: BTreeSet<&[u8]> = want.iter().map(|(name, _)| &name[..]).collect();
        if names != wanted {
            return Some(format!("lists {}, expected {}", show(&names), show(&wanted)));
        }
        for entry in entries {
            let Some(&(_, id)) = want.iter().find(|(name, _)| *name == entry.name) else { continue };
            let kind = (self.inode(id).mode & S_IFMT) >> 12;
            if entry.kind != kind {
                return Some(format!("'{}' has type {}, expected {kind}", entry.name.escape_ascii(), entry.kind));
            }
            // Attributes that no lock covers are a hint, and the kernel does not cache them.
            let stat = entry.stat.as_ref().filter(|stat| stat.cacheable);
            let differs = self.ino_differs(id, entry.ino).or_else(|| stat.and_then(|stat| self.stat_differs(id, stat)));
            if let Some(differs) = differs {
                return Some(format!("'{}' in the listing: {differs}", entry.name.escape_ascii()));
            }
        }
        None
    }
}

impl Model {
    /// How the attributes in a listing differ, except those of the inodes `but`. Attributes that no lock covers are a hint, and
    /// the kernel does not cache them.
    pub(crate) fn attributes_beside_differ(&self, entries: &[DirectoryEntry], but: &BTreeSet<Id>) -> Option<String> {
        entries.iter().find_map(|entry| {
            let stat = entry.stat.as_ref().filter(|stat| stat.cacheable)?;
            let id = self.inos.iter().find(|(_, ino)| **ino == entry.ino).map(|(id, _)| *id)?;
            let differs = match self.get(id) {
                None => Some("it was removed".to_owned()),
                Some(_) if but.contains(&id) => None,
                Some(_) => self.attributes_differ(id, stat, true),
            };
            differs.map(|differs| format!("'{}' in the listing: {differs}", entry.name.escape_ascii()))
        })
    }
}

/// The least size that a file can have whose bytes should be `want`: a given-up range at the end may be missing, and so may a
/// hole before it.
fn least_size(want: &[u8], lost: &[Range<u64>]) -> u64 {
    let Some(end) = lost.iter().map(|part| part.end).max() else { return want.len() as u64 };
    if end < want.len() as u64 {
        return want.len() as u64;
    }
    let may_lack = |at: usize| want[at] == 0 || lost.iter().any(|part| part.contains(&(at as u64)));
    (0..want.len()).rev().find(|&at| !may_lack(at)).map_or(0, |last| last as u64 + 1)
}

/// What may stand in place of bytes that were given up, besides zeros.
#[derive(Default)]
pub(crate) struct Substitutes<'a> {
    /// The bytes of an older state.
    pub older: Vec<&'a [u8]>,
    /// Bytes that a concurrent call appended: they are at the end.
    pub appended: Bytes,
}

/// How the bytes of a file differ from the expected ones.
pub(crate) fn content_differs(
    want: &[u8],
    got: &[u8],
    lost: &[Range<u64>],
    substitutes: &Substitutes<'_>,
) -> Option<String> {
    if lost.is_empty() {
        return bytes_differ(want, got);
    }
    let (size, least) = (want.len() as u64, least_size(want, lost));
    if !(least..=size).contains(&(got.len() as u64)) {
        return Some(format!("{} bytes, expected {least} to {size}", got.len()));
    }
    let tail = if got.ends_with(&substitutes.appended) { got.len() - substitutes.appended.len() } else { got.len() };
    let was =
        |at: usize| at >= tail || got[at] == 0 || substitutes.older.iter().any(|data| data.get(at) == Some(&got[at]));
    // Appended bytes start where the file ended: if the given-up range reached the end, a hole before it is missing, too.
    let appended = |at: usize| at >= tail && least <= tail as u64;
    let excused = |at: usize| appended(at) || lost.iter().any(|part| part.contains(&(at as u64))) && was(at);
    let at = (0..got.len()).find(|&at| got[at] != want[at] && !excused(at))?;
    Some(format!("byte {at} of {} is 0x{:02x}, expected 0x{:02x}", got.len(), got[at], want[at]))
}

/// The size in a stat, where POSIX defines it.
fn size_of(inode: &Inode) -> Option<u64> {
    match &inode.body {
        Body::File(data) => Some(data.len() as u64),
        Body::Symlink(target) => Some(target.len() as u64),
        _ => None,
    }
}
