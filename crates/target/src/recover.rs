//! Runs recovery: carries out the decisions of [`rpc::server::Window`].

use core::time::Duration;
use std::collections::VecDeque;

use proto::frame::flags;
use proto::{Errno, Frame, Handle, Header, Opcode, Transno, Xid};
use rpc::RECONNECT_DELAY_MAX;
use rpc::server::{Export, Phase, Step, WindowState};

use crate::api::LogLevel;
use crate::boot::{Stage, begin_epoch};
use crate::commit::Then;
use crate::execute::reply_header;
use crate::machine::{Machine, Target};
use crate::op::{Op, Replay};
use crate::options::format_features;
use crate::service::{Request, Service};
use crate::stopped::StopReason;

impl<S: Service> Target<S> {
    /// Takes all steps of recovery that are possible now. Returns whether there were any.
    pub(crate) fn recovery_steps(&mut self) -> bool {
        if !self.m.window.is_open() || self.m.stage != Stage::Serving {
            return false;
        }
        if self.m.recovery_start_ns == 0 && self.m.window.status().started.is_some() {
            self.m.recovery_start_ns = self.m.wall_ns;
        }
        let mut any = false;
        while let Some(step) = self.m.window.step(self.m.now) {
            any = true;
            match step {
                Step::OpenLocks => {
                    self.m.move_phases(Phase::RequestsDone, Phase::Locks);
                    self.m.answer_pings(flags::REQ_REPLAY_DONE);
                }
                Step::Finish => self.finish_recovery(),
                Step::Serve => self.recovery_over(),
            }
        }
        if self.m.window.state() == WindowState::Unanswered {
            any |= self.unanswered_steps();
        }
        // All opens must be restored before a change checks for them, including those whose records are still being
        // loaded.
        while self.m.reopening == 0
            && let Some((handle, frame)) = self.m.next_replay()
        {
            any = true;
            let transno = frame.header.transno;
            if self.m.exports.get(handle).is_some_and(|export| export.replay_failed.is_some()) {
                self.m.skip_replay(handle, &frame.header);
            } else {
                self.execute(handle, frame, Replay::Fresh(transno));
            }
        }
        any
    }

    /// Evicts clients that recovery has waited for long enough.
    pub(crate) fn evict_late(&mut self) {
        if self.m.stage != Stage::Serving {
            return;
        }
        while let Some(handle) = self.m.window.late(self.m.now) {
            let reason = self.m.why_given_up(handle);
            self.evict(handle, &reason);
            self.recovery_steps();
        }
    }

    fn finish_recovery(&mut self) {
        let why = |export: &Export| Some((export.handle, export.replay_failed.clone()?));
        let failed: Vec<(Handle, String)> = self.m.exports.iter().filter_map(why).collect();
        for (handle, why) in failed {
            self.evict(handle, &why);
        }
        let m = &mut self.m;
        if m.exports.iter().all(|export| !export.is_multi()) {
            m.header.incompat &= !format_features::MULTI_RPCS;
        }
        if let Err(unfit) = begin_epoch(&mut m.header, m.last_transno, m.options.seed) {
            m.stop(StopReason::Unfit(unfit));
            return;
        }
        m.header_dirty();
        let group = m.newest_group();
        if let Some(then) = m.when_durable(group, Then::Epoch) {
            self.then(then);
        }
    }

    /// The new epoch is durable: executes changes that clients had sent before the restart and that were never
    /// answered.
    pub(crate) fn epoch_begun(&mut self) {
        if !self.m.window.is_open() {
            return;
        }
        self.m.last_transno = self.m.last_transno.max(Transno::start_of(self.m.header.epoch));
        self.m.window.epoch_begun(self.m.now);
        let unanswered = |frame: &Frame| frame.header.has(flags::RESENT) && frame.header.tag.0 != 0;
        let (first, rest): (VecDeque<_>, VecDeque<_>) =
            core::mem::take(&mut self.m.deferred).into_iter().partition(|(_, frame)| unanswered(frame));
        self.m.deferred = rest;
        self.m.postpones = true;
        self.m.unanswered = first.iter().map(|(handle, frame)| (*handle, frame.header.xid)).collect();
        for (handle, frame) in first {
            stdx::mark!("target.unanswered_first");
            self.begin_deferred(handle, frame);
        }
    }

    /// Checks which unanswered changes are left. Failed ones are retried once when the others are done, because they
    /// may have been executed after one of the others before the restart; the original order is not known.
    fn unanswered_steps(&mut self) -> bool {
        let (exports, postponed) = (&self.m.exports, &self.m.postponed);
        let waits = |handle: Handle, xid| postponed.iter().any(|(whose, f)| *whose == handle && f.header.xid == xid);
        let in_doubt: Vec<_> =
            self.m.unanswered.iter().copied().filter(|(handle, xid)| self.m.is_doubted(*handle, *xid)).collect();
        self.m.unanswered.retain(|&(handle, xid)| {
            exports.is_executing(handle, xid) && !waits(handle, xid) && !in_doubt.contains(&(handle, xid))
        });
        if !self.m.unanswered.is_empty() {
            return false;
        }
        if self.m.postponed.is_empty() {
            self.recovery_over();
            return true;
        }
        let last = core::mem::take(&mut self.m.postponed);
        self.m.postpones = false;
        self.m.unanswered = last.iter().map(|(handle, frame)| (*handle, frame.header.xid)).collect();
        for (handle, frame) in last {
            stdx::mark!("target.unanswered_last");
            self.begin_deferred(handle, frame);
        }
        true
    }

    /// Recovery is over: the target enters service.
    fn recovery_over(&mut self) {
        stdx::mark!("target.recovered");
        self.m.unanswered.clear();
        for late in core::mem::take(&mut self.m.postponed).into_iter().rev() {
            self.m.deferred.push_front(late);
        }
        self.m.window.finished(self.m.now);
        self.m.exports.recovery_over();
        let status = self.m.window.status();
        let line = format!(
            "recovery is over: {} clients came back, {} were evicted, {} requests were done again",
            status.completed, status.evicted, status.replayed_requests
        );
        self.m.log(LogLevel::Info, line);
        self.m.answer_pings(flags::LOCK_REPLAY_DONE | flags::REQ_REPLAY_DONE);
        self.outside_attempt(|service, cx| service.recovered(cx));
        for (handle, frame) in core::mem::take(&mut self.m.deferred) {
            self.begin_deferred(handle, frame);
        }
    }

    /// Evicts all clients that recovery still waits for.
    pub(crate) fn abort_recovery(&mut self) {
        for handle in self.m.window.abort() {
            self.evict(handle, "recovery was aborted");
        }
    }
}

impl Machine {
    /// Whether recovery is imperative: the MGS knows of this start and notifies the clients.
    pub(crate) fn is_imperative(&self) -> bool {
        !self.options.noir && self.upstreams.is_registered()
    }

    /// How long recovery waits for missing clients. It is shorter for clients that were notified.
    pub(crate) fn soft_time(&self) -> Duration {
        let soft = self.options.recovery_soft;
        if !self.is_imperative() {
            return soft;
        }
        (soft * self.options.ir_factor / 10).max(soft.min(2 * RECONNECT_DELAY_MAX))
    }

    /// Updates the time limits of recovery after a change of parameters or the registration.
    pub(crate) fn set_window_times(&mut self) {
        let (soft, hard) = (self.soft_time(), self.options.recovery_hard);
        self.window.set_times(soft, hard);
    }

    /// Reason for evicting a client that ran out of time.
    fn why_given_up(&self, handle: Handle) -> String {
        let missed = match self.window.state() {
            WindowState::Connecting => "it did not come back after the restart",
            WindowState::Requests => "it did not replay its requests in time",
            _ => "it did not replay its locks in time",
        };
        let (silent, waited) = self.window.waited_for(self.now, handle).unwrap_or_default();
        format!(
            "{missed}: nothing was heard of it for {} s, and recovery has waited {} s for it",
            silent.as_secs(),
            waited.as_secs()
        )
    }

    /// Handles a failed request. If it is a replay, its client's further replays are skipped, because they may depend
    /// on it and the client must keep a prefix of its history. The client is evicted when the others have replayed. (A
    /// close of a closed file has nothing to do.)
    pub(crate) fn replay_failed(&mut self, op: &Op, opcode: Opcode, errno: Errno) {
        let Replay::Fresh(transno) = op.replay else { return };
        if opcode == Opcode::MdsClose {
            return;
        }
        stdx::mark!("target.replay_failed");
        let handle = Handle(op.export.0);
        let line = format!(
            "{} of {} (transno {transno}) cannot be done again ({}): a change before it is lost",
            opcode.name(),
            self.client_name(handle),
            errno.name()
        );
        self.log(LogLevel::Warn, line);
        let name = opcode.name();
        self.stop_replays(
            handle,
            format!("{name} with transno {transno} depends on a change that was lost with its client"),
        );
    }

    /// Refuses a replay with an invalid transno. Its client is evicted when the others have replayed.
    pub(crate) fn refuse_replay(&mut self, handle: Handle, asked: &Header, why: String) {
        if self.exports.get(handle).is_some_and(|export| export.replay_failed.is_none()) {
            let line = format!("refuses a replay of {}: {why}", self.client_name(handle));
            self.log(LogLevel::Error, line);
        }
        self.stop_replays(handle, why);
        self.refuse(handle, asked, Errno::EOVERFLOW);
    }

    /// Stops a client's replays. The first reason is kept, since later failures follow from it.
    fn stop_replays(&mut self, handle: Handle, why: String) {
        if let Some(export) = self.exports.get_mut(handle) {
            export.replay_failed.get_or_insert(why);
        }
    }

    /// Answers a replay of a client that is to be evicted without executing it.
    fn skip_replay(&mut self, handle: Handle, asked: &Header) {
        let mut header = reply_header(asked);
        header.status = -Errno::EOVERFLOW.raw();
        let frame = Frame { header, ..Frame::default() };
        self.exports.keep_replay_answer(handle, &frame);
        self.window.executed(self.now);
        self.send_reply(handle, frame);
    }

    /// Whether a request is an unanswered change from before the restart, executed before any client is served.
    pub(crate) fn is_unanswered(&self, request: &Request) -> bool {
        let own = |(handle, xid): &(Handle, Xid)| handle.0 == request.export.0 && *xid == request.frame.header.xid;
        self.window.state() == WindowState::Unanswered && self.unanswered.iter().any(own)
    }

    /// An operation waits for other targets, or for a change that has parts there, which goes on when this target serves. If it
    /// is an unanswered change, recovery does not wait for it: others see such a change once all its records are durable, and
    /// then it is in doubt after a restart.
    pub(crate) fn waits_elsewhere(&mut self, op: &Op) {
        let own = (Handle(op.export.0), op.asked.xid);
        self.unanswered.retain(|change| *change != own);
    }

    /// Whether a failed request is an unanswered change that is to be retried after the others.
    pub(crate) fn is_postponed(&self, request: &Request) -> bool {
        self.postpones && self.is_unanswered(request)
    }

    fn move_phases(&mut self, from: Phase, to: Phase) {
        let all: Vec<Handle> = self.exports.iter().filter(|e| e.phase == from).map(|e| e.handle).collect();
        for handle in all {
            self.set_phase(handle, to);
        }
    }

    /// Answers the pings that waited for a gate with these flags.
    fn answer_pings(&mut self, flags: u32) {
        let (now, later) = core::mem::take(&mut self.held_pings).into_iter().partition(|(_, header)| header.has(flags));
        self.held_pings = later;
        let now: Vec<_> = now;
        for (handle, header) in now {
            self.done(handle, &header);
        }
    }
}
