//! A run of directory entries, with or without attributes.

use std::collections::BTreeSet;

use crate::tree::Node;
use crate::{Mdt, grants, tree};
use proto::connect::BRW_SIZE_MAX;
use proto::msg::{DirEntry, LockMode, Policy, ReaddirRep, ReaddirReq, Resource, WantLocks, bits};
use proto::{Errno, Operation};
use rules::Caller;
use rules::access::READ;
use schema::{Entry, Inode, Record};
use target::{Cx, LogLevel, Reply, Stop};

/// About what an entry takes in a reply beside its name, in bytes.
const ENTRY_BYTES: usize = 32;
/// And its attributes.
const ATTR_BYTES: usize = 160;
/// Most entries in one reply.
const ENTRIES_MAX: usize = 8192;
/// One stripe of a layout, at most.
const STRIPE_BYTES: usize = 5;
/// Most with attributes: each is a read.
const PLUS_MAX: usize = 1024;

/// See the module. Order and position are the entries' cookies, so they do not move when others come and go.
pub fn readdir(mdt: &mut Mdt, cx: &mut Cx<'_>, request: &ReaddirReq) -> Result<Reply, Stop> {
    let caller = Caller::new(request.cred.as_ref());
    let dir = tree::dir(cx, request.fid)?;
    caller.need(&dir.inode, READ)?;
    let want_bytes = (request.max_bytes as usize).clamp(512, BRW_SIZE_MAX as usize);
    let per_entry = ENTRY_BYTES + 8 + if request.plus { ATTR_BYTES } else { 0 };
    let limit = (want_bytes / per_entry + 1).min(if request.plus { PLUS_MAX } else { ENTRIES_MAX });
    let range = Entry::of_dir_after(dir.ino, request.after);
    let found = cx.scan::<Entry>(&range, limit)?;

    let mut end = found.len() < limit;
    let mut entries = Vec::with_capacity(found.len());
    let mut hints = Vec::with_capacity(found.len());
    let mut bytes = 0;
    for (key, entry) in found {
        if entry.is_tombstone() {
            continue;
        }
        bytes += entry.name.len() + ENTRY_BYTES + if request.plus { ATTR_BYTES } else { 0 };
        if bytes > want_bytes && !entries.is_empty() {
            end = false;
            break;
        }
        hints.push(entry.ino);
        let (fid, kind) = (entry.object(), entry.kind);
        entries.push(DirEntry { name: entry.name, fid, kind, cookie: key.cookie, ..DirEntry::default() });
    }
    end &= !lacks_names(mdt, cx, &dir, request.after, &entries, end)?;
    if request.plus {
        add_attrs(cx, request, &mut entries, &hints, want_bytes)?;
    }
    let want = WantLocks { parent_cookie: request.want.unwrap_or_default().parent_cookie, ..WantLocks::default() };
    let locks = grants::grant(cx, &want, None, Some(dir.fid()));
    cx.count(Operation::Readdir);
    Ok(Reply::new(&ReaddirRep { entries, end, locks, attr: Some(dir.inode.attr()) }))
}

/// Whether a page that reaches the end leaves fewer names than the directory counts. The page is then said not to be the last, so that
/// all names that are there are listed before the next one, which has none, is refused.
fn lacks_names(
    mdt: &mut Mdt,
    cx: &mut Cx<'_>,
    dir: &Node,
    after: u64,
    entries: &[DirEntry],
    end: bool,
) -> Result<bool, Stop> {
    let version = dir.inode.version;
    let Some(before) = mdt.listings.names_until(dir.ino, after, version) else { return Ok(false) };
    let names = before + entries.len() as u64;
    let lacking = if end { dir.inode.dir.entries.saturating_sub(names) } else { 0 };
    match entries.last() {
        // Pages that begin where this one ends have to know.
        Some(last) if !end || lacking > 0 => mdt.listings.page_ended(dir.ino, last.cookie, version, names),
        None if lacking > 0 => {
            cx.log(LogLevel::Error, tree::lost_names(dir, lacking));
            return Err(Errno::EIO.into());
        }
        _ => {}
    }
    Ok(lacking > 0)
}

/// Attributes, and the locks to cache them. All inodes that are not in memory are asked for at once. Lists of stripes
/// together take `room` bytes at most.
fn add_attrs(
    cx: &mut Cx<'_>,
    request: &ReaddirReq,
    entries: &mut [DirEntry],
    hints: &[u64],
    mut room: usize,
) -> Result<(), Stop> {
    let mut missing = None;
    let mut inodes = Vec::with_capacity(entries.len());
    for ino in hints {
        match cx.get_raw(&Inode::key(ino)) {
            Ok(body) => inodes.push(body),
            Err(Stop::Wait) => missing = Some(Stop::Wait),
            Err(Stop::Errno(errno)) => return Err(errno.into()),
        }
    }
    if let Some(stop) = missing {
        return Err(stop);
    }
    let inodes: Vec<Option<Inode>> =
        inodes.into_iter().map(|body| body.and_then(|body| Inode::decode_record(&body).ok())).collect();
    ask_writers(cx, inodes.iter().flatten())?;
    let cookies = cookies(cx, request.entry_cookies, &inodes);
    for (at, (entry, inode)) in entries.iter_mut().zip(inodes).enumerate() {
        let Some(inode) = inode else { continue };
        // Without attributes, the client asks for this one alone: the hint is wrong, or somebody else knows the size better.
        let resource = Resource::inode(inode.fid);
        let unsure = is_written_elsewhere(cx, &inode);
        let stripes = inode.layout.as_ref().map_or(0, |layout| layout.osts.len() * STRIPE_BYTES);
        if inode.fid != entry.fid || unsure || stripes > room {
            continue;
        }
        room -= stripes;
        if request.entry_cookies != 0 {
            // With the size of a resident file, so that the attributes can be kept.
            let size = if inode.is_resident() { bits::DOM } else { 0 };
            let wanted = grants::cached(&inode) | size;
            entry.lock = cx.try_grant(resource, LockMode::Pr, wanted, bits::LOOKUP, cookies[at]);
        }
        entry.attr = Some(grants::attr_of(cx, &inode));
    }
    Ok(())
}

/// Under which cookie of the run that begins with `first` each entry gets its lock; 0: none. If the answer to the same request was lost, an entry
/// keeps the lock that it got then, of which nobody would hear otherwise: names have come and gone since, and the entry has another place.
fn cookies(cx: &Cx<'_>, first: u64, inodes: &[Option<Inode>]) -> Vec<u64> {
    if first == 0 {
        return vec![0; inodes.len()];
    }
    let run = first..first.saturating_add(PLUS_MAX as u64);
    let before = |inode: &Inode| {
        let resource = Resource::inode(inode.fid);
        cx.locks().held_on(cx.export(), &resource).map(|lock| lock.cookie).find(|cookie| run.contains(cookie))
    };
    let before: Vec<Option<u64>> = inodes.iter().map(|inode| inode.as_ref().and_then(before)).collect();
    let taken: BTreeSet<u64> = before.iter().flatten().copied().collect();
    let own = |at: usize| Some(first.wrapping_add(at as u64)).filter(|cookie| !taken.contains(cookie));
    before.iter().enumerate().map(|(at, before)| before.or_else(|| own(at)).unwrap_or(0)).collect()
}

/// Whether another client may know the size of a resident file better, or what is in a directory.
fn is_written_elsewhere(cx: &Cx<'_>, inode: &Inode) -> bool {
    let by = match () {
        () if inode.is_resident() => bits::DOM,
        () if inode.is_dir() => bits::UPDATE,
        () => return false,
    };
    cx.locks().conflicts(cx.export(), &Resource::inode(inode.fid), LockMode::Pr, &Policy::Bits(by))
}

/// Asks all clients at once that may know a size better. Those who are through with a file give its lock back with that, so
/// that it is sure when the attempt runs again.
fn ask_writers<'i>(cx: &mut Cx<'_>, inodes: impl Iterator<Item = &'i Inode>) -> Result<(), Stop> {
    let mut waits = None;
    for inode in inodes {
        if inode.is_resident()
            && is_written_elsewhere(cx, inode)
            && let Err(stop) = cx.glimpse(Resource::inode(inode.fid))
        {
            waits = Some(stop);
        }
    }
    waits.map_or(Ok(()), Err)
}
