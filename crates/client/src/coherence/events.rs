//! Session events and their effect on the caches: connections, callbacks, replies, replay of locks, eviction.

use core::num::NonZero;
use dlm::client::BlockingAction;
use prost::Message;
use proto::msg::{BlCallback, CancelReq, GlCallback, GlReply, LockMode, LruLimit, bits};
use proto::{Errno, Frame, Opcode};
use rpc::client::Outgoing;
use stdx::Instant;

use crate::api::{ConnId, FileHandle};
use crate::base::{Dest, WaitKey};
use crate::cache::file::Open;
use crate::cache::node::Hold;
use crate::coherence::op::Task;
use crate::coherence::request::Pending;
use crate::coherence::world::World;
use crate::coherence::{data, locks, lost, metadata_write_back};
use crate::session::Event;

/// Locks that a session gets at a time to replay: more than a request carries, and little memory.
const REPLAYS_AT_ONCE: usize = 8192;

/// An event that concerns an operation, or the mount as a whole.
#[derive(Debug)]
pub(crate) enum Arrived {
    /// A request was answered.
    Reply(Pending, Frame),
    /// A request will never be answered.
    Failed(Pending, Errno),
    /// A target refuses this client.
    Refused(Errno, String),
}

/// A connection was established.
pub(crate) fn dialled(w: &mut World, conn: ConnId) {
    let World { imports, metadata_write_back, now, .. } = w;
    if let Some(target) = imports.of_connection(conn) {
        target.import.write_back_credits = metadata_write_back.claim(target.dest);
    }
    imports.dialled(*now, conn);
}

/// Runs the timers of sessions and locks.
pub(crate) fn tick(w: &mut World) {
    w.imports.tick(w.now);
    for dest in w.locks.due(w.now) {
        if let Some(locks) = w.locks.get_mut(dest) {
            locks.tick(w.now);
        }
        locks::pump(w, dest);
    }
}

/// When [`tick`] is due next.
pub(crate) fn deadline(w: &World) -> Option<Instant> {
    [w.imports.deadline(), w.locks.deadline()].into_iter().flatten().min()
}

/// Handles the events of sessions, up to the next one that concerns an operation or the mount.
pub(crate) fn next(w: &mut World) -> Option<(Dest, Arrived)> {
    while let Some((dest, event)) = w.imports.next(&mut w.effects) {
        match event {
            Event::Reply(pending, frame) => {
                pending.touched.answered(&mut w.nodes);
                return Some((dest, Arrived::Reply(pending, frame)));
            }
            Event::Failed(pending, errno) => {
                pending.touched.answered(&mut w.nodes);
                return Some((dest, Arrived::Failed(pending, errno)));
            }
            Event::Refused { errno, reason } => return Some((dest, Arrived::Refused(errno, reason))),
            Event::Notice(frame) => notice(w, dest, &frame),
            Event::Connected { write_back_credits } => {
                let newest = w.imports.get(dest).map(|target| target.import.newest_xid()).unwrap_or_default();
                w.metadata_write_back.set_credits(dest, write_back_credits, newest, w.now);
            }
            Event::Full => full(w, dest),
            Event::Away => away(w, dest),
            Event::ReplayLocks { first } => replay_locks(w, dest, first),
            Event::LocksReplayed(locks) => locks_replayed(w, dest, &locks),
            Event::OpenLost(fh, xid) => {
                let is_it = |fh: &FileHandle| {
                    w.files.get(*fh).is_some_and(|f| f.dest == dest && f.open() == Open::Reported(xid))
                };
                if let Some(fh) = fh.filter(is_it) {
                    w.files.lost(fh);
                }
            }
            Event::Evicted(lost) => evicted(w, dest, &lost),
            Event::Disconnected => w.wake(WaitKey::Drained),
        }
    }
    None
}

fn full(w: &mut World, dest: Dest) {
    if w.locks.end_replay(dest) {
        locks::forget_versions(w, dest);
    }
    if dest == Dest::Mgs {
        w.spawn(Task::Config);
    }
    locks::abandon_again(w, dest);
    w.wake(WaitKey::Target(dest));
}

fn away(w: &mut World, dest: Dest) {
    let sure = w.imports.get(dest).map(|target| target.import.last_committed()).unwrap_or_default();
    w.locks.interrupted(dest, sure);
    locks::pump(w, dest);
}

fn replay_locks(w: &mut World, dest: Dest, first: bool) {
    let Some(locks) = w.locks.get_mut(dest) else { return };
    if first {
        locks.begin_replay();
    }
    let mut requests = locks.next_replays(REPLAYS_AT_ONCE);
    if first {
        w.locks.begin_replay(dest);
        locks::doubt_directories(w, dest);
    }
    for request in &mut requests {
        request.version = locks::doubtful_version(w, dest, &request.resource, request.mode());
    }
    w.imports.locks_to_replay(w.now, dest, requests);
}

/// A server sent a notice: a callback or something similar.
fn notice(w: &mut World, dest: Dest, frame: &Frame) {
    let result = match Opcode::from_raw(frame.header.opcode) {
        Some(Opcode::LdlmBlCallback) => frame.decode::<BlCallback>().map(|callback| {
            if !is_being_cancelled(w, dest, callback.handle)
                && let Some(locks) = w.locks.get_mut(dest)
                && locks.blocking(&callback) == BlockingAction::AlreadyCancelling
            {
                // Drops that could take their time are urgent now.
                w.wake(WaitKey::Gates);
            }
            locks::pump(w, dest);
        }),
        Some(Opcode::LdlmGlCallback) => frame.decode::<GlCallback>().map(|callback| glimpse(w, dest, &callback)),
        Some(Opcode::LdlmLruLimit) => frame.decode::<LruLimit>().map(|limit| {
            if let Some(locks) = w.locks.get_mut(dest) {
                locks.set_limit(limit.locks);
            }
            locks::pump(w, dest);
        }),
        Some(Opcode::MgsConfigChanged) => {
            w.spawn(Task::Config);
            Ok(())
        }
        _ => Ok(()),
    };
    if result.is_err() {
        let line = format!("{}: cannot decode a notice (opcode {})", w.target_name(dest), frame.header.opcode);
        w.log(line);
    }
}

/// Whether the cancel of a lock is in flight. The server repeats its callback at each connection until it has received
/// the cancel.
fn is_being_cancelled(w: &World, dest: Dest, handle: u64) -> bool {
    let (Some(target), Some(locks)) = (w.imports.get(dest), w.locks.get(dest)) else { return false };
    let mut cancels = target.import.unanswered(Opcode::LdlmCancel);
    locks.by_handle(handle).is_none()
        && cancels.any(|body| CancelReq::decode(&body[..]).is_ok_and(|request| request.handles.contains(&handle)))
}

/// A glimpse callback: the server asks for the state of an object's data under a lock of this client. If no program of
/// this mount has the file open, and there is nothing to report or to write, the lock is converted to read mode: the
/// client that asked can then get one too and need not ask again, and the cache stays. If the server does not support
/// that, the lock goes back instead, which serves as the answer. It also goes back, after an answer, if there is still
/// something to write. It is never converted or given back while an operation holds it, because that operation may wait
/// for the one that asked.
fn glimpse(w: &mut World, dest: Dest, callback: &GlCallback) {
    let ino = callback.resource.fid.ino();
    let node = w.nodes.get(ino);
    // The metadata target knows the access time, except for a newer one that was not reported yet.
    let unreported = node.and_then(|node| node.atime_ns).map(NonZero::get);
    let closed = node.is_none_or(|node| !node.is_held(Hold::Handle));
    let locks = w.locks.get(dest);
    let lock = locks.and_then(|locks| locks.by_handle(callback.handle)).map(|lock| lock.cookie);
    let idle = lock.is_some_and(|cookie| locks.is_some_and(|locks| !locks.is_held(cookie)));
    let nothing_to_report = closed && idle && unreported.is_none() && data::is_clean(w, ino);
    let reply = GlReply { handle: callback.handle, serial: callback.serial, ..GlReply::default() };
    if let (true, Some(cookie)) = (nothing_to_report, lock)
        && locks::share(w, dest, cookie)
    {
        return answer_glimpse(w, dest, &GlReply { mode: LockMode::Pr as i32, ..reply });
    }
    if !nothing_to_report {
        let atime_ns = unreported.unwrap_or(i64::MIN);
        let lvb = data::glimpse(w, &callback.resource).map(|lvb| proto::msg::Lvb { atime_ns, ..lvb });
        answer_glimpse(w, dest, &GlReply { lvb, ..reply });
    }
    if let (true, Some(cookie), Some(locks)) = (closed, lock, w.locks.get_mut(dest)) {
        stdx::mark!("glimpsed_lock_given_back");
        locks.give_back(cookie);
        locks::pump(w, dest);
    }
}

/// Answers over the connection on which the server asked. Over the next connection the server asks again for what it
/// still needs.
fn answer_glimpse(w: &mut World, dest: Dest, reply: &GlReply) {
    w.imports.send_one_way(w.now, dest, Outgoing { no_resend: true, ..Outgoing::new(Opcode::LdlmGlReply, reply) });
}

fn locks_replayed(w: &mut World, dest: Dest, replayed: &[(u64, Result<u64, Errno>)]) {
    for &(cookie, result) in replayed {
        let Some(locks) = w.locks.get_mut(dest) else { return };
        match result {
            Ok(handle) => locks.replayed(cookie, handle),
            Err(errno) => {
                if let Some(lock) = locks.lost(cookie) {
                    locks::lost(w, dest, &lock, errno);
                }
            }
        }
    }
    locks::pump(w, dest);
}

/// All state at a target is lost: locks, what they covered, open files.
fn evicted(w: &mut World, dest: Dest, changes: &[Frame]) {
    stdx::mark!("evicted");
    let Some(locks) = w.locks.get_mut(dest) else { return };
    let held = locks.drop_all();
    lost::opens_and_data(w, dest, &held);
    lost::changes(w, dest, changes);
    for lock in held {
        locks::lost(w, dest, &lock, Errno::EIO);
    }
    metadata_write_back::evicted(w, dest);
    w.imports.forget_opens(dest);
    let open: Vec<FileHandle> = w.files.iter().filter(|(_, file)| file.is_open_at(dest)).map(|(fh, _)| fh).collect();
    open.into_iter().for_each(|fh| w.files.lost(fh));
    if let Dest::Mdt(_) = dest {
        // Versions start again if the target's history does.
        let World { nodes, fld, .. } = w;
        for node in nodes.iter_mut().filter(|node| Dest::Mdt(fld.mdt(node.fid)) == dest) {
            node.validity.doubt(bits::UPDATE | bits::LAYOUT);
            if let Some(attr) = &mut node.attr {
                attr.version = 0;
            }
            if let Some(dir) = &mut node.dir {
                dir.forget_all();
            }
        }
        w.sequences.remove(&dest);
    }
}
