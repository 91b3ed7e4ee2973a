//! Directories: listing them, from the cache or in pieces from the server.
//!
//! Cookies are the server's, except that `.` has 1 and `..` has 2. A complete listing that was read under one unbroken
//! UPDATE lock is kept, if it is not too large: it answers later listings and every lookup.

use bytes::Bytes;
use proto::msg::{ReaddirReq, SyncReq, WantLocks, bits};
use proto::{Errno, Opcode};
use rules::mode::{S_IFDIR, S_IFMT};
use std::sync::Arc;

use super::lookup::referenced;
use super::{attributes, stat_cached, walk};
use crate::api::{Answer, DirectoryEntry, FileHandle};
use crate::base::Step;
use crate::base::WaitKey;
use crate::cache::file::{Next, Open, OpenFile, Stream, flags as o};
use crate::cache::names::{Building, KnownName, Listed, Listing, Piece};
use crate::cache::node::Hold;
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::fids::fid_of;
use crate::coherence::op::{Body, Task};
use crate::coherence::request::{Request, Wants};
use crate::coherence::world::World;

/// Offset of `..`; smaller ones are `.` and the start.
const OFFSET_DOTS: u64 = 2;
/// Approximate size of a piece without attributes, in bytes.
const PIECE_BYTES: u32 = 256 << 10;
/// Size of a piece with attributes, in bytes.
const PIECE_BYTES_PLUS: u32 = 128 << 10;
/// Limit of entries in such a piece.
const PIECE_ENTRIES_PLUS: u32 = 1024;
/// Minimum size of an entry with attributes in the kernel's buffer.
const PLUS_BYTES: usize = 152;
/// Largest listing that is kept, in entries.
const LISTING_MAX: usize = 128 << 10;
/// `DT_DIR`.
const DT_DIR: u32 = 4;

/// `Opendir`: without a request if the cached attributes grant access.
pub(crate) fn opendir(cx: &mut Cx<'_>, ino: u64) -> Run<Answer> {
    let fid = walk(cx, ino)?;
    if attributes(cx, ino, false)?.mode & S_IFMT != S_IFDIR {
        return Err(Errno::ENOTDIR.into());
    }
    let mut stream = None;
    match cx.w.nodes.permitted(ino, 4, &cx.op.cred) {
        Some(true) => {}
        Some(false) => return Err(Errno::EACCES.into()),
        // The server decides: the first piece is read now.
        None => stream = Some(Box::new(piece(cx, 0, ino, 0, false)?)),
    }
    let cred = cx.op.cred.clone();
    let dest = cx.w.mdt_of(fid);
    let node = cx.w.nodes.obtain(fid);
    let error_mark = node.failures().0;
    cx.w.nodes.hold(ino, Hold::Open);
    cx.w.nodes.hold(ino, Hold::Handle);
    let mut file = OpenFile::new(fid, o::DIRECTORY, cred, dest, Open::Directory);
    (file.error_mark, file.stream, file.by_alias) = (error_mark, stream, cx.w.by_alias);
    let fh = cx.w.files.insert(file);
    Ok(Answer::Opened { fh, keep_cache: false, direct_io: false, no_flush: true })
}

/// `Releasedir`.
pub(crate) fn releasedir(cx: &mut Cx<'_>, fh: FileHandle) -> Run<Answer> {
    let Some(file) = cx.w.files.remove(fh) else { return Err(Errno::EBADF.into()) };
    if file.next.is_some() {
        cx.w.wake(WaitKey::Listing(file.ino));
    }
    if cx.w.nodes.get(file.ino).is_some_and(|node| node.atime_ns.is_some() && !node.unlinked) {
        cx.spawn(Task::Atime { ino: file.ino });
    }
    cx.w.release(file.ino, Hold::Handle);
    cx.w.release(file.ino, Hold::Open);
    Ok(Answer::Done)
}

/// `Fsyncdir`: names become durable with everything else of the metadata target.
pub(crate) fn fsyncdir(cx: &mut Cx<'_>, fh: FileHandle) -> Run<Answer> {
    let Some(file) = cx.w.files.get(fh) else { return Err(Errno::EBADF.into()) };
    let (ino, fid, dest, known) = (file.ino, file.fid, file.dest, file.error_mark);
    cx.rpc(Step::Main, dest, Opcode::MdsSync, |_, _| Request::new(&SyncReq { fid: Some(fid) }))?;
    let (failures, errno) = cx.w.nodes.get(ino).map_or((known, Errno::EIO), |node| node.failures());
    if let Some(file) = cx.w.files.get_mut(fh) {
        file.error_mark = failures;
    }
    if failures == known {
        return Ok(Answer::Done);
    }
    crate::coherence::lost::reported(cx.w, ino);
    Err(errno.into())
}

/// Fills the kernel's buffer.
struct Filler {
    entries: Vec<DirectoryEntry>,
    /// For each entry: whether its name certainly leads to its object, so that the kernel may keep it.
    sure: Vec<bool>,
    space: usize,
    plus: bool,
}

impl Filler {
    /// Appends an entry. False: it does not fit.
    fn push(&mut self, name: &Bytes, ino: u64, kind: u32, offset: u64, sure: bool) -> bool {
        let head = if self.plus { PLUS_BYTES } else { 24 };
        let size = (head + name.len()).next_multiple_of(8);
        if size > self.space {
            return false;
        }
        self.space -= size;
        self.entries.push(DirectoryEntry { name: name.clone(), ino, kind, offset, stat: None });
        self.sure.push(sure);
        true
    }

    /// Appends the entries after `after`. Returns the cookie of the last entry considered, and whether more would fit.
    /// `changes` is how many names of the directory this client had changed when the list was requested; `new`: it was
    /// requested by this call.
    fn fill(&mut self, w: &World, parent: u64, list: &[Listed], changes: u32, new: bool, after: u64) -> (u64, bool) {
        let mut at = after;
        let untouched = changes == changes_of(w, parent);
        let begin = list.partition_point(|listed| listed.cookie <= after);
        for listed in &list[begin..] {
            let (fid, kind, sure) = match w.nodes.known_name(parent, &listed.name) {
                KnownName::Child(fid) if fid == listed.fid => (fid, listed.kind, true),
                // Changed while the list was being fetched: shown as in the list, because a new name may be among those
                // that it lacks.
                KnownName::Nothing | KnownName::Child(_) if new => (listed.fid, listed.kind, false),
                // Removed by this client since.
                KnownName::Nothing => {
                    at = listed.cookie;
                    continue;
                }
                KnownName::Child(fid) => {
                    let kind = w.nodes.get(fid.ino()).map_or(0, |node| node.kind() >> 12);
                    (fid, if kind == 0 { listed.kind } else { kind }, true)
                }
                // Other clients change a name only when the lock of its object has gone back; this client keeps the
                // lock.
                KnownName::Unknown => (listed.fid, listed.kind, untouched && still_locked(w, listed)),
            };
            if !self.push(&listed.name, fid.ino(), kind, listed.cookie, sure) {
                return (at, false);
            }
            at = listed.cookie;
        }
        (at, true)
    }
}

/// `Readdir`, with and without attributes. A directory that was removed while open gives `ENOENT`, as on local file
/// systems.
pub(crate) fn readdir(cx: &mut Cx<'_>, fh: FileHandle, offset: u64, max_bytes: u32, plus: bool) -> Run<Answer> {
    match entries(cx, fh, offset, max_bytes, plus) {
        Err(Stop::Errno(Errno::ESTALE)) => Err(Errno::ENOENT.into()),
        listed => listed,
    }
}

fn entries(cx: &mut Cx<'_>, fh: FileHandle, offset: u64, max_bytes: u32, plus: bool) -> Run<Answer> {
    let Some(file) = cx.w.files.get(fh) else { return Err(Errno::EBADF.into()) };
    let (ino, by_alias) = (file.ino, file.by_alias);
    if offset == 0 && cx.op.is_fresh() {
        // From the start: pieces of an earlier listing are outdated, unless opendir has just read them.
        let changes = changes_of(cx.w, ino);
        if let Some(file) = cx.w.files.get_mut(fh) {
            file.next = None;
            file.stream = file.stream.take().filter(|stream| !stream.used && stream.changes == changes);
        }
    }
    let mut filler = Filler { entries: Vec::new(), sure: Vec::new(), space: max_bytes as usize, plus };
    if offset == 0 && !filler.push(&Bytes::from_static(b"."), ino, DT_DIR, 1, false) {
        return Err(Errno::EINVAL.into());
    }
    if offset < OFFSET_DOTS {
        let parent = match cx.w.nodes.get(ino).map_or(0, |node| node.parent) {
            _ if ino == 1 => 1,
            0 => ino,
            parent => parent,
        };
        filler.push(&Bytes::from_static(b".."), parent, DT_DIR, OFFSET_DOTS, false);
    }
    let dots = filler.entries.len();
    let mut after = if offset <= OFFSET_DOTS { 0 } else { offset };
    let mut number = 0;
    loop {
        // A requested piece is used even if it has completed the listing.
        if !cx.began(Step::Piece(number))
            && let Some(listing) = whole(cx.w, ino)
            && (!plus || has_attributes(cx.w, &listing, after, filler.space))
        {
            let changes = changes_of(cx.w, ino);
            filler.fill(cx.w, ino, &listing.entries, changes, false, after);
            break;
        }
        let reaches = |s: &Stream| s.after <= after && (s.piece.end || s.last().is_some_and(|last| last > after));
        let usable = cx.w.files.get(fh).and_then(|file| file.stream.as_deref()).is_some_and(reaches);
        let kept = match cx.w.files.get_mut(fh) {
            Some(file) if usable => file.stream.take(),
            _ => None,
        };
        let (mut stream, new) = match kept {
            Some(stream) => (stream, false),
            // What is cached is returned first. So a request is only ever sent for what follows `offset`, and a
            // repeated attempt requests the same.
            None if filler.entries.len() > dots => break,
            None => {
                let fetched = match ahead(cx, number, fh, ino, after)? {
                    Some(stream) => (stream, false),
                    None => (Box::new(piece(cx, number, ino, after, plus)?), true),
                };
                number += 1;
                fetched
            }
        };
        stream.used = true;
        let (at, space) = filler.fill(cx.w, ino, &stream.piece.entries, stream.changes, new, after);
        let end = stream.piece.end;
        after = at;
        if let Some(file) = cx.w.files.get_mut(fh) {
            file.stream = Some(stream);
        }
        if plus {
            prefetch_next(cx, fh, ino, after);
        }
        if end || !space {
            break;
        }
    }
    super::io::accessed(cx, ino);
    let mut entries = filler.entries;
    for (entry, sure) in entries.iter_mut().zip(filler.sure) {
        if plus
            && sure
            && !by_alias
            && let Some(stat) = stat_cached(cx.w, entry.ino)
        {
            entry.stat = Some(referenced(cx.w, stat, ino, &entry.name));
        }
    }
    Ok(Answer::Entries(entries))
}

/// A program that reads with attributes has passed half of a piece: the next one is requested, because fetching it may
/// take as long as reading this one.
fn prefetch_next(cx: &mut Cx<'_>, fh: FileHandle, ino: u64, at: u64) {
    let number = cx.w.nodes.next_epoch();
    let Some(file) = cx.w.files.get_mut(fh) else { return };
    let (Some(stream), None) = (&file.stream, &file.next) else { return };
    let entries = &stream.piece.entries;
    let passed = entries.partition_point(|listed| listed.cookie <= at);
    let Some(after) = stream.last() else { return };
    if stream.piece.end || passed < entries.len() / 2 {
        return;
    }
    stdx::mark!("listing_read_ahead");
    file.next = Some(Next::Fetching { after, number });
    cx.spawn(Task::Next { fh, ino, after, number });
}

/// Background: fetches the next piece of a directory that is being read.
pub(crate) fn fetch_next(cx: &mut Cx<'_>, fh: FileHandle, ino: u64, after: u64, number: u32) -> Run<()> {
    let stream = piece(cx, 0, ino, after, true)?;
    next_arrived(cx.w, fh, ino, number, Some(Box::new(stream)));
    Ok(())
}

/// The next piece has arrived, or will not arrive.
pub(crate) fn next_arrived(w: &mut World, fh: FileHandle, ino: u64, number: u32, stream: Option<Box<Stream>>) {
    if let Some(file) = w.files.get_mut(fh)
        && matches!(file.next, Some(Next::Fetching { number: asked, .. }) if asked == number)
    {
        file.next = stream.map(Next::Fetched);
    }
    w.wake(WaitKey::Listing(ino));
}

/// The piece after a cookie, if it was prefetched; waits for it if it is being fetched.
fn ahead(cx: &mut Cx<'_>, number: u64, fh: FileHandle, ino: u64, after: u64) -> Run<Option<Box<Stream>>> {
    if cx.began(Step::Piece(number)) {
        return Ok(None);
    }
    let Some(file) = cx.w.files.get_mut(fh) else { return Ok(None) };
    match file.next.take() {
        Some(Next::Fetched(stream)) if stream.after == after => Ok(Some(stream)),
        Some(Next::Fetching { after: asked, number }) if asked == after => {
            file.next = Some(Next::Fetching { after, number });
            Err(cx.wait(WaitKey::Listing(ino)))
        }
        _ => Ok(None),
    }
}

/// How many names of a directory this client has changed.
fn changes_of(w: &World, ino: u64) -> u32 {
    w.nodes.get(ino).and_then(|node| node.dir.as_ref()).map_or(0, |dir| dir.changes)
}

/// Whether the lock that came with an entry has been held ever since.
fn still_locked(w: &World, listed: &Listed) -> bool {
    let child = w.nodes.get(listed.fid.ino());
    child.is_some_and(|child| child.has(bits::LOOKUP) && child.validity.lookup_epoch() == listed.child_epoch)
}

/// The complete listing, if it is cached and exact.
pub(super) fn whole(w: &World, ino: u64) -> Option<Arc<Listing>> {
    let node = w.nodes.get(ino)?;
    let (epoch, listing) = node.dir.as_ref()?.listing.as_ref()?;
    let certain = node.in_doubt.is_none();
    (certain && node.has(bits::UPDATE) && *epoch == node.validity.update_epoch()).then(|| listing.clone())
}

/// Whether the attributes of the next entries are cached, for a buffer of `space` bytes: most of them suffice, because
/// those of a file that another client writes are never cached.
fn has_attributes(w: &World, listing: &Listing, after: u64, space: usize) -> bool {
    let begin = listing.entries.partition_point(|listed| listed.cookie <= after);
    let next = listing.entries[begin..].iter().take(space / PLUS_BYTES + 1);
    let (known, unknown): (Vec<_>, Vec<_>) = next.partition(|listed| stat_cached(w, listed.fid.ino()).is_some());
    unknown.len() <= known.len() / 8
}

/// Fetches one piece from the server; `number` tells the pieces of an operation apart.
pub(super) fn piece(cx: &mut Cx<'_>, number: u64, ino: u64, after: u64, plus: bool) -> Run<Stream> {
    let fid = fid_of(ino)?;
    let dest = cx.w.mdt_of(fid);
    if !cx.began(Step::Piece(number)) {
        let changes = changes_of(cx.w, ino);
        cx.set_memo(Step::PieceChanges(number), changes.into());
    }
    let changes = cx.memo(Step::PieceChanges(number)).unwrap_or(0) as u32;
    let reply = cx.start_rpc(Step::Piece(number), dest, Opcode::MdsReaddir, |w, op| {
        let own = w.nodes.get(ino).is_none_or(|node| !node.has(bits::UPDATE)) && w.wants_directory_lock(ino);
        let mut wants = Wants::default();
        let parent_cookie = if own { wants.add(w, dest) } else { 0 };
        let request = ReaddirReq {
            fid,
            after,
            max_bytes: if plus { PIECE_BYTES_PLUS } else { PIECE_BYTES },
            plus,
            want: Some(WantLocks { parent_cookie, ..WantLocks::default() }),
            cred: Some((*op.cred).clone()),
            entry_cookies: if plus { wants.add_run(w, dest, PIECE_ENTRIES_PLUS) } else { 0 },
        };
        let sent = w.nodes.directory_epoch(ino);
        Request::new(&request).wanting(wants).then(move |w, answer| match answer.map(|reply| &reply.body) {
            Ok(Body::Readdir(piece)) => build(w, ino, sent, after, piece),
            Err(Errno::EIO) => w.nodes.listing_failed(ino),
            _ => {}
        })
    });
    match reply {
        None => Err(Stop::Wait),
        Some(Err(errno)) => Err(errno.into()),
        Some(Ok(reply)) => match &reply.body {
            Body::Readdir(piece) => Ok(Stream { piece: piece.clone(), after, used: false, changes }),
            _ => Err(Errno::EPROTO.into()),
        },
    }
}

/// Appends a piece to the listing that is being assembled; the last one completes it. `sent`: the epoch of the names
/// when it was requested.
fn build(w: &mut World, ino: u64, sent: u32, after: u64, piece: &Piece) {
    let epoch = w.reply_epoch(&piece.locks, ino, sent);
    let Some(node) = w.nodes.get_mut(ino) else { return };
    if !node.has(bits::UPDATE) || node.validity.update_epoch() != epoch {
        return;
    }
    let version = piece.version;
    let dir = node.dir_mut();
    if dir.listing.as_ref().is_some_and(|(known, _)| *known == epoch) {
        return;
    }
    if after == 0 && dir.building.as_ref().is_none_or(|building| building.epoch != epoch || building.after != 0) {
        dir.building = Some(Box::new(Building { epoch, version, ..Building::default() }));
    }
    let Some(building) = &mut dir.building else { return };
    if building.epoch != epoch || building.after != after {
        return;
    }
    building.listing.entries.extend_from_slice(&piece.entries);
    if let Some(last) = piece.entries.last() {
        building.after = last.cookie;
    }
    if building.listing.entries.len() > LISTING_MAX {
        dir.building = None;
        dir.unlistable = Some(epoch);
        return;
    }
    if piece.end {
        w.nodes.listing_complete(ino);
    }
}

/// Background: fetches the listing of a directory in which programs look up absent names.
pub(crate) fn fetch_listing(cx: &mut Cx<'_>, ino: u64) -> Run<()> {
    // Earlier pieces were added when they arrived.
    let mut after = cx.memo(Step::ListedAfter).unwrap_or(0);
    let mut number = cx.memo(Step::Listed).unwrap_or(0);
    loop {
        let stream = piece(cx, number, ino, after, false)?;
        cx.forget(Step::Piece(number));
        cx.forget(Step::PieceChanges(number));
        number += 1;
        let building = cx.w.nodes.get(ino).and_then(|node| node.dir.as_ref()?.building.as_ref());
        match stream.last() {
            Some(last) if !stream.piece.end && building.is_some_and(|building| building.after == last) => {
                after = last;
                cx.set_memo(Step::ListedAfter, after);
                cx.set_memo(Step::Listed, number);
            }
            _ => break,
        }
    }
    if let Some(dir) = cx.w.nodes.get_mut(ino).and_then(|node| node.dir.as_mut()) {
        dir.fetching = false;
        dir.misses = 0;
    }
    cx.w.wake(WaitKey::Listing(ino));
    Ok(())
}
