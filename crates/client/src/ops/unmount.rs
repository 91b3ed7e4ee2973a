//! Unmount: what is dirty goes out, what is open is closed, what is not durable is made so; then good-bye to everyone.

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

/// Phases, in `Step::Phase`'s memo.
const CLOSING: u64 = 1;
const LEAVING: u64 = 2;

/// How often targets that are away are looked for.
const LOOK: Duration = Duration::from_millis(100);

/// One attempt. While targets that are away are waited for, the others get their locks back and the good-bye: their clients
/// must not wait for this one.
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

/// Says good-bye to the targets that have all that they are to get, if any other is away.
fn leave_some(cx: &mut Cx<'_>) {
    let dests = cx.w.imports.dests();
    let full = |w: &World, dest: Dest| w.imports.get(dest).is_some_and(Target::is_full);
    if dests.iter().all(|dest| full(cx.w, *dest)) {
        return;
    }
    for dest in dests {
        let step = Step::GoodBye(dest);
        // The MGS says where those are that come back.
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
            cx.w.imports.touch_dest(dest);
        }
    }
}

/// Whether a target has all that it is to get, and nothing goes on under its locks: a file that moves is nobody else's. `asked`: it was asked
/// to make that durable.
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
                // Calls that have begun to change something end, and what they write goes out, too.
                data::sync_anew(cx);
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
        // Closes, lock callbacks, writes.
        if cx.w.mounted
            && (cx.w.ops_running > 1
                || !cx.w.spawned.is_empty()
                || !cx.w.closes.is_idle()
                || !cx.w.metadata_write_back.is_idle())
        {
            return Err(cx.wait(WaitKey::Drained));
        }
        if cx.w.mounted && !cx.w.options.read_only {
            match super::io::sync_metadata(cx) {
                // A soft mount whose servers are away may have nothing there that they could lose.
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
    // Every time: a mount that was not complete may have learnt of further targets.
    let now = cx.now();
    for dest in cx.w.imports.dests() {
        if let Some(target) = cx.w.imports.get_mut(dest) {
            target.import.disconnect(now);
            cx.w.imports.touch_dest(dest);
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
