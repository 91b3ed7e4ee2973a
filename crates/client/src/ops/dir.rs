//! Directories: listing them, from the cache or in pieces from the server.
//!
//! Cookies are the server's, except that `.` has 1 and `..` has 2. A complete listing that was read under one unbroken
//! UPDATE lock is kept, if it is not too large: it answers later listings and every lookup. The stripes of a striped directory
//! are listed each for itself, and merged by cookie: a name keeps its cookie, so listings that are continued miss none.
//!
//! While names move from the stripes of one layout to those of the next, each range of cookies is read from all stripes of the former
//! layout first and then from those of the new one; a stripe of both is read twice. As names only move that way, none is missed;
//! one that is met twice is shown once. Its cookie may differ a little between stripes, so all names of a chain come together.

use bytes::Bytes;
use core::cmp::Reverse;
use proto::msg::{CHAIN_COOKIES, ReaddirReq, SyncReq, WantLocks, bits};
use proto::{Errno, Opcode};
use rules::mode::{S_IFDIR, S_IFMT};
use smallvec::SmallVec;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;

use super::lookup::referenced;
use super::stripes::{self, Place};
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
/// Size of a piece with attributes, in bytes. The pieces of all stripes of a directory together have these sizes, but none is
/// smaller than [`PIECE_BYTES_MIN`].
const PIECE_BYTES_PLUS: u32 = 128 << 10;
/// Smallest size of a piece, in bytes.
const PIECE_BYTES_MIN: u32 = 4 << 10;
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
    stripes::know(cx, ino)?;
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
    (file.error_mark, file.streams, file.by_alias) = (error_mark, vec![stream], cx.w.by_alias);
    file.layout = cx.w.nodes.layout_version(ino);
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

/// `Fsyncdir`: names become durable with everything else of the metadata targets that have them.
pub(crate) fn fsyncdir(cx: &mut Cx<'_>, fh: FileHandle) -> Run<Answer> {
    let Some(file) = cx.w.files.get(fh) else { return Err(Errno::EBADF.into()) };
    let (ino, known) = (file.ino, file.error_mark);
    let mut synced = Ok(());
    let mut dests = BTreeSet::new();
    for Place { fid, dest, .. } in stripes::all(cx, ino)? {
        if dests.insert(dest) {
            let sync =
                cx.rpc(Step::SyncTarget(dest), dest, Opcode::MdsSync, |_, _| Request::new(&SyncReq { fid: Some(fid) }));
            synced = synced.and(sync.map(drop));
        }
    }
    synced?;
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
    /// For each entry: its directory or stripe, if its name certainly leads to its object, so that the kernel may keep it.
    sure: Vec<Option<u64>>,
    space: usize,
    plus: bool,
}

impl Filler {
    /// Appends an entry. False: it does not fit.
    fn push(&mut self, name: &Bytes, ino: u64, kind: u32, offset: u64, sure: Option<u64>) -> bool {
        let size = self.size(name.len());
        if size > self.space {
            return false;
        }
        self.space -= size;
        self.entries.push(DirectoryEntry { name: name.clone(), ino, kind, offset, stat: None });
        self.sure.push(sure);
        true
    }

    /// Whether entries with names of these lengths fit.
    fn fits(&self, names: impl Iterator<Item = usize>) -> bool {
        names.map(|length| self.size(length)).sum::<usize>() <= self.space
    }

    /// What an entry takes in the kernel's buffer.
    fn size(&self, name: usize) -> usize {
        let head = if self.plus { PLUS_BYTES } else { 24 };
        (head + name).next_multiple_of(8)
    }

    /// Appends an entry of a list; a listing goes on after `cookie`. False: it does not fit.
    fn show(&mut self, w: &World, of: &Source, listed: &Listed, cookie: u64) -> bool {
        let (fid, kind, sure) = match w.nodes.known_name(of.ino, &listed.name) {
            KnownName::Child(fid) if fid == listed.fid => (fid, listed.kind, true),
            // Changed while the list was being fetched: shown as in the list, because a new name may be among those
            // that it lacks.
            KnownName::Nothing | KnownName::Child(_) if of.new => (listed.fid, listed.kind, false),
            // Removed by this client since.
            KnownName::Nothing => return true,
            KnownName::Child(fid) => {
                let kind = w.nodes.get(fid.ino()).map_or(0, |node| node.kind() >> 12);
                (fid, if kind == 0 { listed.kind } else { kind }, true)
            }
            // Other clients change a name only when the lock of its object has gone back; this client keeps the
            // lock.
            KnownName::Unknown => {
                let untouched = of.changes == changes_of(w, of.ino);
                (listed.fid, listed.kind, untouched && still_locked(w, listed))
            }
        };
        self.push(&listed.name, fid.ino(), kind, cookie, sure.then_some(of.ino))
    }

    /// Appends the entries after `after` of all sources, in the order of their cookies, as far as all of them are known.
    /// Entries with one cookie come together, and if names move those of one chain. Returns the cookie of the last entry considered,
    /// and whether more would fit.
    fn fill(&mut self, w: &World, dirs: &Dirs, sources: &[Source], after: u64) -> (u64, bool) {
        let known_to = sources.iter().filter_map(|source| source.known_to).min();
        let known_to = known_to.map(|known_to| dirs.known_to(known_to, after));
        let mut at = after;
        let begin = |source: &Source| source.entries().partition_point(|listed| dirs.place(listed) <= after);
        let mut places: Vec<usize> = sources.iter().map(begin).collect();
        let next = |places: &[usize], of: usize| sources[of].entries().get(places[of]).map(|listed| dirs.place(listed));
        let mut heap: BinaryHeap<Reverse<(u64, usize)>> =
            (0..sources.len()).filter_map(|of| Some(Reverse((next(&places, of)?, of)))).collect();
        while let Some(&Reverse((cookie, _))) = heap.peek() {
            if known_to.is_some_and(|known_to| cookie > known_to) {
                break;
            }
            let mut together: SmallVec<[(&Source, &Listed); 2]> = SmallVec::new();
            while let Some(Reverse((_, of))) = heap.peek().copied().filter(|Reverse((next, _))| *next == cookie) {
                heap.pop();
                let listed = &sources[of].entries()[places[of]];
                if dirs.former > 0 {
                    // It has moved between the two readings, or is in a stripe that was read twice: the last one counts.
                    together.retain(|(_, other)| other.name != listed.name);
                }
                together.push((&sources[of], listed));
                places[of] += 1;
                heap.extend(next(&places, of).map(|cookie| Reverse((cookie, of))));
            }
            let lengths = together.iter().map(|(_, listed)| listed.name.len());
            if together.len() > 1 && !self.fits(lengths) {
                return (at, false);
            }
            for (of, listed) in together {
                if !self.show(w, of, listed, cookie) {
                    return (at, false);
                }
            }
            at = cookie;
        }
        (at.max(known_to.unwrap_or(at)), true)
    }
}

/// What a listing reads.
struct Dirs {
    /// The directory, or all its stripes. While names move: the stripes of the former layout, then those of the new one.
    inos: SmallVec<[u64; 1]>,
    /// How many of them belong to the former layout; 0: no names move.
    former: usize,
}

impl Dirs {
    fn of(w: &mut World, dir: u64) -> Dirs {
        let all = w.nodes.stripes(dir);
        let moving = w.nodes.get(dir).and_then(|node| node.lmv()).filter(|lmv| lmv.is_moving());
        let Some((former, count)) = moving.map(|lmv| (lmv.former_count as usize, lmv.count as usize)) else {
            return Dirs { inos: all, former: 0 };
        };
        stdx::mark!("listed_while_names_move");
        let inos: SmallVec<[u64; 1]> = all.iter().take(former).chain(all.iter().take(count)).copied().collect();
        Dirs { inos, former: former.min(all.len()) }
    }

    /// The cookie of an entry for the order of the listing: while names move, the last one of its chain.
    fn place(&self, listed: &Listed) -> u64 {
        if self.former > 0 { listed.cookie | (CHAIN_COOKIES - 1) } else { listed.cookie }
    }

    /// Up to which place all is known if all entries are known up to a cookie. A chain has to be known whole, unless that
    /// is as far as it gets.
    fn known_to(&self, cookie: u64, after: u64) -> u64 {
        let whole = (cookie.wrapping_add(1) & !(CHAIN_COOKIES - 1)).wrapping_sub(1);
        match () {
            () if self.former == 0 => cookie,
            () if whole > after && whole != u64::MAX => whole,
            () => cookie | (CHAIN_COOKIES - 1),
        }
    }
}

/// Entries of a directory, or of a stripe of it, for a listing.
struct Source {
    ino: u64,
    /// Its number in [`Dirs::inos`].
    stripe: usize,
    list: List,
    /// The last cookie up to which all entries are known; none: all are.
    known_to: Option<u64>,
    /// How many names of the directory this client had changed when the list was requested.
    changes: u32,
    /// It was requested by this call.
    new: bool,
}

enum List {
    Whole(Arc<Listing>),
    Stream(Box<Stream>),
}

impl Source {
    fn entries(&self) -> &[Listed] {
        match &self.list {
            List::Whole(listing) => &listing.entries,
            List::Stream(stream) => &stream.piece.entries,
        }
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
    stripes::know(cx, ino)?;
    let dirs = Dirs::of(cx.w, ino);
    cx.op.used_stripe |= dirs.inos.len() > 1;
    let layout = cx.w.nodes.layout_version(ino);
    if let Some(file) = cx.w.files.get_mut(fh).filter(|file| file.layout != layout) {
        // Pieces of another layout say nothing about this one.
        file.layout = layout;
        file.streams.clear();
        file.next = None;
    }
    if offset == 0 && cx.op.is_fresh() {
        // From the start: pieces of an earlier listing are outdated, unless opendir has just read them.
        let changes: SmallVec<[u32; 1]> = dirs.inos.iter().map(|ino| changes_of(cx.w, *ino)).collect();
        if let Some(file) = cx.w.files.get_mut(fh) {
            file.next = None;
            // A stripe that is not known any more is not read on either.
            let changes = changes.into_iter().map(Some).chain(core::iter::repeat(None));
            for (stream, changes) in file.streams.iter_mut().zip(changes) {
                *stream = stream.take().filter(|stream| !stream.used && changes == Some(stream.changes));
            }
        }
    }
    let mut filler = Filler { entries: Vec::new(), sure: Vec::new(), space: max_bytes as usize, plus };
    if offset == 0 && !filler.push(&Bytes::from_static(b"."), ino, DT_DIR, 1, None) {
        return Err(Errno::EINVAL.into());
    }
    if offset < OFFSET_DOTS {
        let parent = match cx.w.nodes.get(ino).map_or(0, |node| node.parent) {
            _ if ino == 1 => 1,
            0 => ino,
            parent => cx.w.nodes.master(parent),
        };
        filler.push(&Bytes::from_static(b".."), parent, DT_DIR, OFFSET_DOTS, None);
    }
    let dots = filler.entries.len();
    let mut after = if offset <= OFFSET_DOTS { 0 } else { offset };
    let mut round = 0;
    let mut fits = true;
    loop {
        // What is cached is returned first. So a request is only ever sent for what follows `offset`, and a repeated attempt
        // requests the same.
        let may_ask = filler.entries.len() == dots;
        let sources = sources(cx, fh, &dirs, (round, after), plus.then_some(filler.space), may_ask)?;
        round += 1;
        if sources.len() < dirs.inos.len() {
            keep(cx.w, fh, sources);
            break;
        }
        let (at, space) = filler.fill(cx.w, &dirs, &sources, after);
        let end = sources.iter().all(|source| source.known_to.is_none());
        after = at;
        keep(cx.w, fh, sources);
        if plus && dirs.inos.len() == 1 {
            prefetch_next(cx, fh, ino, after);
        }
        fits = space;
        if end || !space {
            break;
        }
    }
    if filler.entries.is_empty() && !fits {
        // An empty answer would be the end of the directory.
        return Err(Errno::EINVAL.into());
    }
    super::io::accessed(cx, ino);
    let mut entries = filler.entries;
    for (entry, sure) in entries.iter_mut().zip(filler.sure) {
        if plus
            && !by_alias
            && let Some(dir) = sure
            && let Some(stat) = stat_cached(cx.w, entry.ino)
        {
            entry.stat = Some(referenced(cx.w, stat, dir, &entry.name));
        }
    }
    Ok(Answer::Entries(entries))
}

/// What is known of the entries after a cookie, of each stripe; without `may_ask` fewer than there are, if more has to be
/// requested. `space`: of the kernel's buffer, if attributes are wanted.
fn sources(
    cx: &mut Cx<'_>,
    fh: FileHandle,
    dirs: &Dirs,
    (round, after): (u64, u64),
    space: Option<usize>,
    may_ask: bool,
) -> Run<Vec<Source>> {
    let count = dirs.inos.len();
    let (mut sources, mut stop): (Vec<Source>, _) = (Vec::with_capacity(count), None);
    for (&ino, at) in dirs.inos.iter().zip(0..) {
        let number = round * count as u64 + at as u64;
        let is_second = dirs.former > 0 && at >= dirs.former;
        if is_second && stop.is_some() {
            break;
        }
        // What was read from the new stripes before the former ones says nothing about names that have moved between.
        let is_outdated = is_second && sources.iter().take(dirs.former).any(|source| source.new);
        // A requested piece is used even if it has completed the listing.
        if !cx.began(Step::Piece(number))
            && let Some(listing) = whole(cx.w, ino)
            && space.is_none_or(|space| has_attributes(cx.w, &listing, after, space))
        {
            let changes = changes_of(cx.w, ino);
            sources.push(Source { ino, stripe: at, list: List::Whole(listing), known_to: None, changes, new: false });
            continue;
        }
        let reaches = |s: &Stream| s.after <= after && (s.piece.end || s.last().is_some_and(|last| last > after));
        let kept = cx.w.files.get_mut(fh).and_then(|file| file.streams.get_mut(at)?.take_if(|stream| reaches(stream)));
        let fetched = match kept.filter(|_| !is_outdated) {
            Some(stream) => Ok(stream),
            None if !may_ask => break,
            None => fetched(cx, (number, count), fh, ino, after, space.is_some()),
        };
        match fetched {
            Ok(mut stream) => {
                stream.used = true;
                let new = cx.began(Step::Piece(number));
                let known_to = if stream.piece.end { None } else { Some(stream.last().unwrap_or(after)) };
                let changes = stream.changes;
                sources.push(Source { ino, stripe: at, list: List::Stream(stream), known_to, changes, new });
            }
            // The pieces of all stripes are requested at once.
            Err(Stop::Wait) => stop = Some(Stop::Wait),
            Err(errno) => stop = stop.or(Some(errno)),
        }
    }
    match stop {
        None => Ok(sources),
        Some(stop) => {
            keep(cx.w, fh, sources);
            Err(stop)
        }
    }
}

/// Puts the pieces back.
fn keep(w: &mut World, fh: FileHandle, sources: Vec<Source>) {
    let Some(file) = w.files.get_mut(fh) else { return };
    for source in sources {
        if let List::Stream(stream) = source.list {
            let places = file.streams.len().max(source.stripe + 1);
            file.streams.resize_with(places, || None);
            file.streams[source.stripe] = Some(stream);
        }
    }
}

/// The piece after a cookie.
fn fetched(
    cx: &mut Cx<'_>,
    (number, count): (u64, usize),
    fh: FileHandle,
    ino: u64,
    after: u64,
    plus: bool,
) -> Run<Box<Stream>> {
    if count == 1
        && let Some(stream) = ahead(cx, number, fh, ino, after)?
    {
        return Ok(stream);
    }
    Ok(Box::new(piece(cx, number, ino, after, plus)?))
}

/// A program that reads with attributes has passed half of a piece: the next one is requested, because fetching it may
/// take as long as reading this one.
fn prefetch_next(cx: &mut Cx<'_>, fh: FileHandle, ino: u64, at: u64) {
    let number = cx.w.nodes.next_epoch();
    let Some(file) = cx.w.files.get_mut(fh) else { return };
    let (Some(Some(stream)), None) = (file.streams.first(), &file.next) else { return };
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
    let master = cx.w.nodes.get(cx.w.nodes.master(ino));
    let stripes = master.and_then(|node| node.lmv()).map_or(1, |lmv| lmv.count.max(1));
    let max_bytes = (if plus { PIECE_BYTES_PLUS } else { PIECE_BYTES } / stripes).max(PIECE_BYTES_MIN);
    let reply = cx.start_rpc(Step::Piece(number), dest, Opcode::MdsReaddir, |w, op| {
        let own = w.nodes.get(ino).is_none_or(|node| !node.has(bits::UPDATE)) && w.wants_directory_lock(ino);
        let mut wants = Wants::default();
        let parent_cookie = if own { wants.add(w, dest) } else { 0 };
        let request = ReaddirReq {
            fid,
            after,
            max_bytes,
            plus,
            want: Some(WantLocks { parent_cookie, ..WantLocks::default() }),
            cred: Some((*op.cred).clone()),
            entry_cookies: if plus { wants.add_run(w, dest, PIECE_ENTRIES_PLUS) } else { 0 },
            layout: w.nodes.layout_version(ino),
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
