//! Unmount: what is dirty goes out, what is open is closed, what is not durable is made so; then good-bye to everyone.

use rpc::client::State;
use std::time::Duration;

use super::step;
use crate::api::Effect;
use crate::behind;
use crate::closes;
use crate::cx::{Cx, Run, Stop};
use crate::data;
use crate::file::Closing;
use crate::imports::Dest;
use crate::op::WaitKey;

/// Phases, in `step::MAIN`'s memo.
const CLOSING: u64 = 1;
const LEAVING: u64 = 2;

/// One attempt.
pub(crate) fn unmount(cx: &mut Cx<'_>) -> Run<()> {
    let phase = cx.memo(step::MAIN).unwrap_or(0);
    if phase < CLOSING {
        if cx.w.mounted {
            match data::sync_all(cx) {
                Err(Stop::Errno(errno)) => {
                    cx.w.lost.get_or_insert(errno);
                }
                other => other?,
            }
            data::end(cx)?;
        }
        behind::all_drained(cx)?;
        cx.set_memo(step::MAIN, CLOSING);
        for file in cx.w.files.take_all() {
            if file.open_xid.0 != 0 {
                let closing = Closing { ino: file.ino, fid: file.fid, dest: file.dest, open_xid: file.open_xid };
                closes::add(cx.w, closing);
            }
        }
    }
    if phase < LEAVING {
        // Closes, lock callbacks, writes.
        if cx.w.mounted
            && (cx.w.ops_running > 1 || !cx.w.spawned.is_empty() || !closes::idle(cx.w) || !behind::idle(cx.w))
        {
            return Err(cx.wait(WaitKey::Drained));
        }
        if cx.w.mounted && !cx.w.options.read_only {
            match super::io::sync_metadata(cx) {
                Err(Stop::Errno(errno)) => {
                    cx.w.lost.get_or_insert(errno);
                }
                other => other?,
            }
        }
        cx.set_memo(step::MAIN, LEAVING);
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
