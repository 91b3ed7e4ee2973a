//! Losses: changes and bytes that were acknowledged to a program and did not last, because the server refused a
//! written-back change or evicted this client. Each loss is an error in the log, with its path, and is reported to
//! programs: to each open file description at its next write, fsync and close, to an open directory at fsync, and also
//! to the next call that opens or changes the object or changes a name in it. Lost bytes of a file that nobody had open
//! are reported to the next open.

use core::fmt::Write as _;
use dlm::client::HeldLock;
use proto::msg::{BatchReq, PunchReq, Reint, ReintReq, Resource, WriteReq, bits};
use proto::{Errno, Fid, Frame, Opcode};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};

use crate::api::Call;
use crate::base::Dest;
use crate::cache::failures::Failures;
use crate::cache::node::Hold;
use crate::coherence::cx::Cx;
use crate::coherence::data;
use crate::coherence::world::World;

/// Most objects of which an eviction logs the losses, each with its path.
const LOST_MAX: usize = 16;
/// Most objects without a node for which an unreported loss is remembered.
const UNREPORTED_MAX: usize = 1024;

/// Losses of this mount so far.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Losses {
    /// Their number.
    pub count: u64,
    /// The error of the last one.
    pub errno: Option<Errno>,
}

impl Losses {
    fn note(&mut self, errno: Errno) {
        self.count += 1;
        self.errno = Some(errno);
    }
}

/// The error that a program sees for a loss. `ESTALE` is replaced, because the kernel would repeat a call that fails
/// with it.
pub(crate) fn program_errno(errno: Errno) -> Errno {
    if errno == Errno::ESTALE { Errno::EIO } else { errno }
}

/// A change of this object, or of a name in this directory, is lost.
pub(crate) fn failed(w: &mut World, ino: u64, errno: Errno) {
    let errno = program_errno(errno);
    w.losses.note(errno);
    data::failed(w, ino, errno);
    if let Some(node) = w.nodes.get_mut(ino) {
        node.validity.doubt(bits::UPDATE);
    }
    // Programs know no stripes.
    let ino = w.nodes.master(ino);
    note_failure(w, ino, errno);
}

/// Bytes of a file are lost. The caller reports that to programs that have the file open; if none has, the next call
/// that opens or changes it reports it.
pub(crate) fn bytes_lost(w: &mut World, ino: u64, errno: Errno) {
    w.losses.note(errno);
    if w.nodes.get(ino).is_some_and(|node| !node.is_held(Hold::Handle)) {
        note_failure(w, ino, errno);
    }
}

fn note_failure(w: &mut World, ino: u64, errno: Errno) {
    let Some(node) = w.nodes.get_mut(ino) else {
        // The file was removed and came back because its removal was lost. What had been written to it was not lost.
        return keep_unreported(w, ino, errno);
    };
    let count = node.failures().0.wrapping_add(1);
    node.failures = Some(Box::new(Failures { count, errno, unreported: true }));
}

/// A node is dropped: its unreported failure is kept for the next call about the object.
pub(crate) fn node_dropped(w: &mut World, ino: u64) {
    if let Some(failures) = w.nodes.get(ino).and_then(|node| node.failures.as_deref()).filter(|of| of.unreported) {
        keep_unreported(w, ino, failures.errno);
    }
}

/// Remembers an unreported failure of an object without a node; the oldest is dropped when there are too many.
fn keep_unreported(w: &mut World, ino: u64, errno: Errno) {
    if w.unreported.len() >= UNREPORTED_MAX {
        w.unreported.pop_front();
    }
    w.unreported.push_back((ino, errno));
}

/// The error for a call that starts: something that it opens or changes has an unreported loss.
pub(crate) fn take_unreported(cx: &mut Cx<'_>, call: &Call) -> Option<Errno> {
    if cx.w.losses.count == 0 || !cx.op.is_fresh() {
        return None;
    }
    for ino in concerned(call) {
        let failures = cx.w.nodes.get_mut(ino).and_then(|node| node.failures.as_deref_mut());
        if let Some(failures) = failures.filter(|failures| failures.unreported) {
            stdx::mark!("lost_change_reported");
            failures.unreported = false;
            let errno = failures.errno;
            data::error_reported(cx.w, ino);
            return Some(errno);
        }
        if let Some(at) = cx.w.unreported.iter().position(|(of, _)| *of == ino) {
            return cx.w.unreported.remove(at).map(|(_, errno)| errno);
        }
    }
    None
}

/// A program got the error in another way.
pub(crate) fn reported(w: &mut World, ino: u64) {
    if let Some(failures) = w.nodes.get_mut(ino).and_then(|node| node.failures.as_deref_mut()) {
        failures.unreported = false;
    }
}

/// The nodes that a call opens or changes, or in which it changes names.
fn concerned(call: &Call) -> SmallVec<[u64; 2]> {
    match *call {
        Call::Setattr { ino, .. }
        | Call::Open { ino, .. }
        | Call::Opendir { ino }
        | Call::Setxattr { ino, .. }
        | Call::Removexattr { ino, .. }
        | Call::SetDirDefault { ino, .. }
        | Call::SetDirLayout { ino, .. }
        | Call::SetLayout { ino, .. } => SmallVec::from_slice(&[ino]),
        Call::Create { parent, .. }
        | Call::Mknod { parent, .. }
        | Call::Mkdir { parent, .. }
        | Call::MkdirOn { parent, .. }
        | Call::Symlink { parent, .. }
        | Call::Unlink { parent, .. }
        | Call::RemoveEntry { parent, .. }
        | Call::Rmdir { parent, .. } => SmallVec::from_slice(&[parent]),
        Call::Link { ino, new_parent, .. } => SmallVec::from_slice(&[ino, new_parent]),
        Call::Rename { parent, new_parent, .. } => SmallVec::from_slice(&[parent, new_parent]),
        _ => SmallVec::new(),
    }
}

/// Logs a line for each file of which an eviction takes an open or bytes that were not written back.
pub(crate) fn opens_and_data(w: &mut World, dest: Dest, held: &[HeldLock]) {
    let mut lost: BTreeMap<u64, (usize, u64)> = BTreeMap::new();
    for (_, file) in w.files.iter().filter(|(_, file)| file.is_open_at(dest)) {
        lost.entry(file.ino).or_default().0 += 1;
    }
    let resources: BTreeSet<Resource> = held.iter().map(|lock| lock.resource).collect();
    for resource in resources {
        let bytes = data::unwritten(w, &resource);
        if bytes > 0 {
            lost.entry(resource.fid.ino()).or_default().1 += bytes;
        }
    }
    log_losses(w, dest, &lost, |(opens, bytes)| format!("{opens} opens, {bytes} bytes that were not written back"));
}

/// What is lost of an object.
#[derive(Default)]
struct Lost {
    /// Changes of it.
    changes: u32,
    /// Names in it that were made, removed or renamed.
    names: Vec<String>,
    bytes: u64,
}

/// Answered changes that an eviction takes: the next call about each of their objects reports the error.
pub(crate) fn changes(w: &mut World, dest: Dest, requests: &[Frame]) {
    let mut lost: BTreeMap<u64, Lost> = BTreeMap::new();
    for request in requests {
        match Opcode::from_raw(request.header.opcode) {
            Some(Opcode::MdsReint) => {
                let created = w.imports.opened_by(dest, request.header.xid).map(|opened| opened.fid);
                request.decode().into_iter().for_each(|change: ReintReq| note(&mut lost, &change, created));
            }
            Some(Opcode::MdsBatch) => {
                let batch: Option<BatchReq> = request.decode().ok();
                let changes = batch.iter().flat_map(BatchReq::iter).flatten();
                changes.for_each(|change| note(&mut lost, &change, None));
            }
            Some(Opcode::ObjWrite) => {
                if let Ok(write) = request.decode::<WriteReq>() {
                    lost.entry(write.object.fid.ino()).or_default().bytes += request.bulk.len() as u64;
                }
            }
            Some(Opcode::ObjPunch) => {
                if let Ok(punch) = request.decode::<PunchReq>() {
                    lost.entry(punch.object.fid.ino()).or_default().changes += 1;
                }
            }
            _ => {}
        }
    }
    data::given_up(w, lost.values().map(|lost| lost.bytes).sum());
    for ino in lost.keys() {
        failed(w, *ino, Errno::EIO);
    }
    log_losses(w, dest, &lost, |lost| {
        let mut line = format!("{} answered changes, {} bytes that were written", lost.changes, lost.bytes);
        if !lost.names.is_empty() {
            let _ = write!(line, "; of the names in it: {}", lost.names.join(", "));
        }
        line
    });
}

/// Adds a lost change to its objects. `opened`: the object that an open returned.
fn note(lost: &mut BTreeMap<u64, Lost>, change: &ReintReq, opened: Option<Fid>) {
    let mut name = |parent: Fid, name: &[u8]| {
        let lost = lost.entry(parent.ino()).or_default();
        if lost.names.len() < LOST_MAX {
            lost.names.push(String::from_utf8_lossy(name).replace(char::is_control, "?"));
        }
    };
    let object = match &change.op {
        Some(Reint::Setattr(op)) => op.fid,
        Some(Reint::Relayout(op)) => op.fid,
        Some(Reint::Setxattr(op)) => op.fid,
        Some(Reint::Setlayout(op)) => op.fid,
        Some(Reint::Create(op)) => {
            name(op.parent, &op.name);
            op.fid
        }
        Some(Reint::Link(op)) => {
            name(op.parent, &op.name);
            op.fid
        }
        Some(Reint::Unlink(op)) => return name(op.parent, &op.name),
        Some(Reint::Rename(op)) => {
            name(op.source_parent, &op.source_name);
            return name(op.target_parent, &op.target_name);
        }
        // The open made the file if its FID is the one that the request gave for a new file.
        Some(Reint::Open(op)) => match op.parent {
            Some(parent) if opened.is_none_or(|opened| opened == op.fid) => {
                name(parent, &op.name);
                op.fid
            }
            _ => return,
        },
        None => return,
    };
    lost.entry(object.ino()).or_default().changes += 1;
}

/// Logs a line for each object, up to a limit.
fn log_losses<T>(w: &mut World, dest: Dest, lost: &BTreeMap<u64, T>, what: impl Fn(&T) -> String) {
    let target = w.target_name(dest);
    for (ino, lost) in lost.iter().take(LOST_MAX) {
        let path = w.nodes.path(*ino);
        w.log_error(format!("{target}: lost with the eviction of {path}: {}", what(lost)));
    }
    let more = lost.len().saturating_sub(LOST_MAX);
    if more > 0 {
        w.log_error(format!("{target}: and losses of {more} more files"));
    }
}
