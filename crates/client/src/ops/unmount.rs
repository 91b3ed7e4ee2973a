//! Unmount: dirty data is written, open files are closed, everything is made durable; then all targets are
//! disconnected.

use proto::Opcode;
use proto::msg::SyncReq;
use rpc::client::State;
use std::time::Duration;

use crate::api::Effect;
use crate::base::Dest;
use crate::base::Step;
use crate::base::WaitKey;
use crate::coherence::closes;
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::metadata_write_back;
use crate::coherence::request::Request;
use crate::coherence::world::World;
use crate::ops::data;
use crate::session::Target;

/// Phases of the unmount, in the memo of `Step::Phase`.
const CLOSING: u64 = 1;
const LEAVING: u64 = 2;

/// How often unreachable targets are checked.
const LOOK: Duration = Duration::from_millis(100);

/// One attempt. While it waits for unreachable targets, the others get their locks back and are disconnected: other
/// clients must not wait for this one.
pub(crate) fn unmount(cx: &mut Cx<'_>) -> Run<()> {
    let result = leave_all(cx);
    if result == Err(Stop::Wait) && cx.w.mounted && cx.memo(Step::Phase).unwrap_or(0) < LEAVING {
        leave_some(cx);
        let at = cx.now() + LOOK;
        cx.w.set_timer(at);
        let _ = cx.wait(WaitKey::Timer);
    }
    result
}

/// Disconnects the targets that have received everything, if any other target is unreachable. A call that runs may still need
/// any of them, and write to it; so may a file that is being moved, under a lock of its metadata target.
fn leave_some(cx: &mut Cx<'_>) {
    let dests = cx.w.imports.dests();
    let full = |w: &World, dest: Dest| w.imports.get(dest).is_some_and(Target::is_full);
    let moves = |w: &World, dest: Dest| w.locks.get(dest).is_some_and(dlm::client::LockCache::any_held);
    let is_moving = dests.iter().any(|dest| matches!(dest, Dest::Mdt(_)) && moves(cx.w, *dest));
    if cx.w.calls_running > 0 || is_moving || dests.iter().all(|dest| full(cx.w, *dest)) {
        return;
    }
    for dest in dests {
        let step = Step::GoodBye(dest);
        // The MGS has the addresses of targets that come back.
        if dest == Dest::Mgs || !full(cx.w, dest) || !is_settled(cx.w, dest, cx.began(step)) {
            continue;
        }
        let durable = match dest {
            Dest::Mdt(_) if !cx.w.options.read_only => {
                cx.start_rpc(step, dest, Opcode::MdsSync, |_, _| Request::new(&SyncReq { fid: None })).is_some()
            }
            _ => true,
        };
        let now = cx.now();
        if let Some(target) = cx.w.imports.get_mut(dest).filter(|_| durable) {
            stdx::mark!("left_before_the_others");
            target.import.disconnect(now);
        }
    }
}

/// Whether a target has received everything, and no operation goes on under its locks. `asked`: the target was asked to make it durable.
fn is_settled(w: &World, dest: Dest, asked: bool) -> bool {
    let (Some(target), Some(locks)) = (w.imports.get(dest), w.locks.get(dest)) else { return true };
    let requests = target.pending().len();
    !locks.any_held()
        && data::is_idle(w, dest)
        && w.closes.is_idle_at(dest)
        && w.metadata_write_back.is_idle_at(dest)
        && (asked || requests == 0)
}

fn leave_all(cx: &mut Cx<'_>) -> Run<()> {
    let phase = cx.memo(Step::Phase).unwrap_or(0);
    if phase < CLOSING {
        if cx.w.mounted {
            match data::sync_all(cx) {
                Err(Stop::Errno(errno)) => {
                    cx.w.lost.get_or_insert(errno);
                }
                other => other?,
            }
            data::end(cx)?;
            if cx.w.ops_running > 1 || !cx.w.spawned.is_empty() {
                // Running calls that change something end first, and what they write is written back too.
                data::restart_sync(cx);
                return Err(cx.wait(WaitKey::Drained));
            }
        }
        metadata_write_back::all_drained(cx)?;
        cx.set_memo(Step::Phase, CLOSING);
        for file in cx.w.files.take_all() {
            if let Some(closing) = file.closing() {
                closes::add(cx.w, closing);
            }
        }
    }
    if phase < LEAVING {
        // Wait for closes, lock callbacks and writes.
        if cx.w.mounted
            && (cx.w.ops_running > 1
                || !cx.w.spawned.is_empty()
                || !cx.w.closes.is_idle()
                || !cx.w.metadata_write_back.is_idle())
        {
            return Err(cx.wait(WaitKey::Drained));
        }
        if cx.w.mounted && !cx.w.options.read_only {
            // One that is away waits after its restart for this client, unless the client takes its leave then.
            match super::io::sync_metadata(cx, true) {
                // A soft mount whose servers are unreachable may have nothing there that could be lost.
                Err(Stop::Errno(errno)) => {
                    if cx.w.imports.iter().any(|target| target.import.keeps_changes()) {
                        cx.w.lost.get_or_insert(errno);
                    }
                }
                other => other?,
            }
        }
        cx.set_memo(Step::Phase, LEAVING);
    }
    // In each attempt: an incomplete mount may have learned of further targets.
    let now = cx.now();
    for dest in cx.w.imports.dests() {
        if let Some(target) = cx.w.imports.get_mut(dest) {
            target.import.disconnect(now);
        }
    }
    let gone = |dest: &Dest| cx.w.imports.get(*dest).is_none_or(|target| target.import.state() == State::Closed);
    if !cx.w.imports.dests().iter().all(gone) {
        let at = cx.now() + Duration::from_millis(100);
        cx.w.set_timer(at);
        let _ = cx.wait(WaitKey::Timer);
        return Err(cx.wait(WaitKey::Drained));
    }
    let result = cx.w.lost.map_or(Ok(()), Err);
    cx.w.effect(Effect::Unmounted { result });
    Ok(())
}
