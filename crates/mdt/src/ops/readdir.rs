//! A page of directory entries, with or without attributes.

use std::collections::BTreeSet;

use crate::cross::stripes;
use crate::tree::Node;
use crate::{Mdt, grants, tree};
use prost::Message;
use proto::connect::BRW_SIZE_MAX;
use proto::msg::{DirEntry, LockMode, Policy, ReaddirRep, ReaddirReq, Resource, WantLocks, bits};
use proto::{Errno, Operation};
use rules::Caller;
use rules::access::READ;
use schema::{Entry, Inode, Record};
use target::{Cx, LogLevel, Reply, Stop};

/// About what an entry takes in a reply without its name, in bytes.
const ENTRY_BYTES: usize = 32;
/// About what its attributes take, in bytes.
const ATTR_BYTES: usize = 160;
/// Most entries in one reply.
const ENTRIES_MAX: usize = 8192;
/// The most that one stripe of a layout takes in a reply, in bytes.
const STRIPE_BYTES: usize = 5;
/// The same for a stripe of a directory.
const DIR_STRIPE_BYTES: usize = 24;
/// Most entries in one reply with attributes: each is a read.
const PLUS_MAX: usize = 1024;

/// Reads a page. Cookies give the entries' order and position, so an entry stays in place while others are made and removed.
pub fn readdir(mdt: &mut Mdt, cx: &mut Cx<'_>, request: &ReaddirReq) -> Result<Reply, Stop> {
    let caller = Caller::new(request.cred.as_ref());
    let dir = tree::dir(cx, request.fid)?;
    stripes::may_see(cx, &dir.inode)?;
    if request.layout != dir.inode.layout_version() {
        // The client does not know which stripes have names.
        stdx::mark!("mdt.listed_by_other_layout");
        return Err(Errno::EREMCHG.into());
    }
    caller.need(&dir.inode, READ)?;
    cx.lists(dir.fid())?;
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
    Ok(Reply::new(&ReaddirRep { entries, end, locks, attr: Some(grants::attr_for(cx, &dir.inode)) }))
}

/// Whether the listing that this page completes has fewer names than the directory counts. The reply then says that there
/// is more, so that the client gets all names before the next page, which has none, is refused with `EIO`.
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
        // The next page needs this count.
        Some(last) if !end || lacking > 0 => mdt.listings.page_ended(dir.ino, last.cookie, version, names),
        None if lacking > 0 => {
            cx.log(LogLevel::Error, tree::lost_names(dir, lacking));
            return Err(Errno::EIO.into());
        }
        _ => {}
    }
    Ok(lacking > 0)
}

/// Adds attributes, and the locks to cache them. All inodes that are not in memory are loaded at once. `stripe_budget`: the
/// most bytes that all lists of stripes together may take.
fn add_attrs(
    cx: &mut Cx<'_>,
    request: &ReaddirReq,
    entries: &mut [DirEntry],
    hints: &[u64],
    mut stripe_budget: usize,
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
        // The entry gets no attributes if its hint is wrong, another client may know a newer size, the client does not know
        // striped directories, or the budget is used up.
        // The client then requests them separately.
        let resource = Resource::inode(inode.fid);
        let unsure =
            is_written_elsewhere(cx, &inode) || cx.is_under_change(inode.fid) || stripes::may_see(cx, &inode).is_err();
        let stripes = inode.layout.as_ref().map_or(0, |layout| layout.osts.len() * STRIPE_BYTES)
            + inode.stripes().len() * DIR_STRIPE_BYTES
            + inode.dir_default.as_ref().map_or(0, |default| default.encoded_len());
        if inode.fid != entry.fid || unsure || stripes > stripe_budget {
            continue;
        }
        stripe_budget -= stripes;
        if request.entry_cookies != 0 {
            // Includes the lock on a resident file's data: without it the client could not cache the size.
            let size = if inode.is_resident() { bits::DOM } else { 0 };
            let wanted = grants::cached(&inode) | size;
            entry.lock = cx.try_grant(resource, LockMode::Pr, wanted, bits::LOOKUP, cookies[at]);
        }
        entry.attr = Some(grants::attr_of(cx, &inode));
    }
    Ok(())
}

/// The cookie for the lock on each entry, from the range that starts at `first`; 0: no lock. If the reply to an earlier run
/// of the same request was lost, the client does not know the locks that were granted with it. An entry that got one keeps
/// its cookie, although it may now be at another position in the page.
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

/// Whether another client may know a newer size of a resident file, or newer entries of a directory.
fn is_written_elsewhere(cx: &Cx<'_>, inode: &Inode) -> bool {
    let by = match () {
        () if inode.is_resident() => bits::DOM,
        () if inode.is_dir() => bits::UPDATE,
        () => return false,
    };
    cx.locks().conflicts(cx.export(), &Resource::inode(inode.fid), LockMode::Pr, &Policy::Bits(by))
}

/// Sends glimpses for all resident files that other clients may be writing, all at once. A holder that no longer uses a file
/// gives its lock back with the answer, so its size is certain when the attempt runs again.
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
