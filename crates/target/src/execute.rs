//! Running operations: attempts, the effects of accepted ones, and waking those that wait.

use core::time::Duration;

use dlm::ExportId;
use dlm::server::LockEvent;
use proto::frame::flags;
use proto::msg::EnqueueReq;
use proto::{Errno, Frame, Handle, Header, Opcode, Transno};
use rpc::server::{Dirty, SlotRecord};
use store::{Room, RoomFor};

use crate::api::{DataId, DataOp, DataResult, Effect, LogLevel};
use crate::boot::Stage;
use crate::commit::FULL_RETRY;
use crate::commit::Then;
use crate::cross::run::Wanted;
use crate::cross::steps;
use crate::cx::Cx;
use crate::machine::{Machine, Target, Timer};
use crate::op::{Op, Own, Replay, Work};
use crate::service::{Claim, Executed, Reply, Request, Service, Stop};
use crate::stopped::StopReason;

/// Upper bound of what one change writes besides the request's own bytes, for reserving space.
const CHANGE_BYTES: usize = 128 << 10;

/// Whether a request changes something. One with a tag writes at least a reply record.
fn modifies(header: &Header) -> bool {
    header.tag.0 != 0 || Opcode::from_raw(header.opcode).is_some_and(|opcode| opcode.traits().modifies)
}

/// Whether there is capacity for a change.
enum Gate {
    Open,
    Later,
    Full,
}

impl<S: Service> Target<S> {
    /// Executes a request that arrived.
    pub(crate) fn execute(&mut self, handle: Handle, frame: Frame, replay: Replay) {
        let Some(opcode) = Opcode::from_raw(frame.header.opcode) else {
            let header = frame.header;
            self.m.refuse(handle, &header, Errno::EOPNOTSUPP);
            return;
        };
        let export = ExportId(handle.0);
        let request = Request { export, opcode, frame };
        let only_reads = self.m.exports.get(handle).is_some_and(|export| export.read_only);
        let refused = only_reads && self.service.changes(&request);
        let op = self.m.new_op(export, replay, Work::Request(request));
        if refused {
            self.failed(op, Errno::EROFS);
            return;
        }
        self.attempt(op);
    }

    /// Reconstructs the reply to a request that was executed before the target restarted.
    pub(crate) fn reconstruct(&mut self, handle: Handle, frame: Frame, record: &SlotRecord) {
        let Some(opcode) = Opcode::from_raw(frame.header.opcode) else { return };
        stdx::mark!("target.reconstruct");
        let export = ExportId(handle.0);
        let executed = Executed { transno: record.transno, status: record.status, record: record.data };
        self.m.stats.reconstructed += 1;
        let work = Work::Reconstruct(Request { export, opcode, frame }, executed);
        let mut op = self.m.new_op(export, Replay::No, work);
        op.pre_versions = record.pre_versions;
        self.attempt(op);
    }

    /// Loads what a queued replay will need while it waits for its turn, together with what other replays need.
    pub(crate) fn prefetch(&mut self, handle: Handle, frame: Frame) {
        let Some(opcode) = Opcode::from_raw(frame.header.opcode) else { return };
        let export = ExportId(handle.0);
        let op = self.m.new_op(export, Replay::No, Work::Prefetch(Request { export, opcode, frame }));
        self.attempt(op);
    }

    /// Runs an operation that waited.
    pub(crate) fn run_again(&mut self, id: u64) {
        if let Some(op) = self.m.unpark(id) {
            self.attempt(op);
        }
    }

    fn gate(&self, op: &Op) -> Gate {
        let Work::Request(request) = &op.work else { return Gate::Open };
        let header = &request.frame.header;
        // What a part needs is reserved.
        if !modifies(header) || matches!(op.replay, Replay::Committed(_)) || op.executes_part() {
            return Gate::Open;
        }
        if self.m.view.over_limit() && !self.m.view.is_delayed() {
            return Gate::Later;
        }
        let bytes = request.frame.body.len() + request.frame.bulk.len().min(256 << 10) + CHANGE_BYTES;
        let records = self.service.records_max(request);
        let promised = self.service.promised() + (self.m.cross.reserved() * CHANGE_BYTES) as u64;
        match self.m.view.room(records, bytes, RoomFor::Change { promised }) {
            Room::Yes => Gate::Open,
            Room::AfterCommit => Gate::Later,
            // A change that was answered before the restart must not be refused now, however full the disk is: at worst
            // the group waits for space.
            Room::No if op.replay != Replay::No => Gate::Open,
            // Other clients may have seen it.
            Room::No if self.m.is_unanswered(request) => Gate::Open,
            Room::No => match self.service.claim(request) {
                Claim::Nothing => Gate::Full,
                claim => match self.m.view.room(records, bytes, RoomFor::Removal) {
                    Room::Yes if self.m.view.over_limit() => Gate::Later,
                    Room::Yes => Gate::Open,
                    Room::AfterCommit => Gate::Later,
                    Room::No if claim == Claim::Answered => Gate::Open,
                    Room::No => Gate::Full,
                },
            },
        }
    }

    /// Whether there is room for the record of a change with parts on several targets, which its request has asked for. What
    /// [`Target::gate`] has found room for covers all but those of striped directories.
    pub(crate) fn has_room_for_parts(&self, op: &Op, bytes: usize) -> bool {
        let Work::Request(request) = &op.work else { return true };
        if bytes <= CHANGE_BYTES {
            return true;
        }
        let promised = self.service.promised() + (self.m.cross.reserved() * CHANGE_BYTES) as u64;
        let has = |what| !matches!(self.m.view.room(1, bytes + CHANGE_BYTES, what), Room::No);
        has(RoomFor::Change { promised }) || self.service.claim(request) != Claim::Nothing && has(RoomFor::Removal)
    }

    /// Runs one attempt.
    pub(crate) fn attempt(&mut self, mut op: Op) {
        if !self.cross_begins(&mut op) {
            self.m.park(op);
            return;
        }
        match self.gate(&op) {
            Gate::Open => {}
            Gate::Later => {
                stdx::mark!("target.throttled");
                self.m.want_commit();
                self.m.patience(&op);
                self.m.throttled.push_back(op);
                return;
            }
            Gate::Full => {
                if let Work::Request(request) = &op.work {
                    self.service.refused(request);
                }
                self.failed(op, Errno::ENOSPC);
                return;
            }
        }
        op.begin();
        self.m.out.clear();
        self.m.view.begin(op.attempt());
        let work = core::mem::replace(&mut op.work, Work::Own(Own::OutsideAttempt));
        let mut cx = Cx { m: &mut self.m, op: &mut op };
        let result = match &work {
            Work::Request(_) | Work::Task(_) if let Some(attempt) = cx.op.commits() => {
                steps::commit_part(&mut self.service, &mut cx, attempt)
            }
            Work::Request(Request { opcode: Opcode::CrossPrepare | Opcode::CrossLook, .. }) if !cx.is_of_peer() => {
                Err(Errno::EOPNOTSUPP.into())
            }
            Work::Request(request) if request.opcode == Opcode::CrossPrepare => {
                steps::prepare_part(&mut self.service, &mut cx, request)
            }
            Work::Own(Own::Commit(attempt)) => steps::commit_part(&mut self.service, &mut cx, *attempt),
            Work::Own(Own::Apply(attempt)) => steps::apply_part(&mut self.service, &mut cx, *attempt),
            Work::Request(request) => self.service.attempt(&mut cx, request),
            Work::Reconstruct(request, executed) => self.service.reconstruct(&mut cx, request, executed),
            Work::Prefetch(request) => self.service.prefetch(&mut cx, request).map(|()| Reply::default()),
            Work::Task(task) => self.service.task(&mut cx, task).map(|()| Reply::default()),
            Work::Own(Own::Boot) => cx.boot().map(|()| Reply::default()),
            Work::Own(Own::Start) => self.service.start(&mut cx).map(|()| Reply::default()),
            Work::Own(Own::OutsideAttempt) => Ok(Reply::default()),
        };
        op.work = work;
        match result {
            Ok(reply) => self.accept(op, reply),
            Err(Stop::Errno(errno)) => self.failed(op, errno),
            Err(Stop::Wait) => {
                self.m.view.abandon();
                let wanted = op.take_wanted();
                if wanted.is_some() || op.waits_for_key {
                    self.m.waits_elsewhere(&op);
                }
                match wanted {
                    Some(Wanted::Change(parts)) => return self.stage(op, parts),
                    Some(Wanted::Session(mdt)) => {
                        if let Some(op) = self.in_session(op, &[mdt]) {
                            self.m.ready.push_back(op.id);
                            self.m.park(op);
                        }
                        return;
                    }
                    Some(Wanted::Config) => return self.fetch_config(op),
                    None => {}
                }
                self.m.loses_patience_with_locks(&mut op);
                if !op.waits && self.m.view.misses(op.attempt()).is_empty() {
                    let line = format!("{} waits for nothing: report this as a bug", op.describe());
                    self.m.log(LogLevel::Error, line);
                    self.failed(op, Errno::EIO);
                    return;
                }
                self.m.patience(&op);
                self.m.park(op);
            }
        }
    }

    /// Ends an operation that failed.
    pub(crate) fn failed(&mut self, mut op: Op, errno: Errno) {
        self.m.view.abandon();
        if let Some(defect) = steps::defect(&op, errno, &self.m.name) {
            self.m.stop(defect);
            return;
        }
        self.m.end_op(&op);
        if let Some(attempt) = op.prepares {
            self.m.unclaim(attempt);
        }
        match core::mem::replace(&mut op.work, Work::Own(Own::OutsideAttempt)) {
            Work::Request(request) if self.m.is_postponed(&request) => {
                self.m.postponed.push_back((Handle(op.export.0), request.frame));
            }
            Work::Request(request) => {
                let mut header = reply_header(&request.frame.header);
                header.status = -errno.raw();
                self.m.replay_failed(&op, request.opcode, errno);
                let frame = Frame { header, ..Frame::default() };
                self.m.answered(&op, &request.frame.header, &frame);
                self.m.send_reply(Handle(op.export.0), frame);
            }
            Work::Reconstruct(request, _) => {
                // The change stands, but its reply cannot be reconstructed.
                let line = format!(
                    "the reply to {} of {} cannot be reconstructed ({errno}): the client is evicted",
                    request.opcode.name(),
                    self.m.client_name(Handle(op.export.0))
                );
                self.m.log(LogLevel::Error, line);
                self.m.evict_later.push((Handle(op.export.0), "a lost reply cannot be reconstructed".into()));
            }
            // It fails when its turn comes.
            Work::Prefetch(_) => {}
            Work::Task(task) => self.outside_attempt(|service, cx| {
                if !service.task_failed(cx, &task, errno) {
                    cx.log(LogLevel::Warn, format!("background work '{}' failed: {errno}", task.name()));
                }
            }),
            Work::Own(Own::Boot) => {
                self.m.stop(StopReason::FirstRecords { target: self.m.name.clone(), errno });
            }
            Work::Own(Own::Start) => {
                self.m.stop(StopReason::Start { target: self.m.name.clone(), errno });
            }
            Work::Own(Own::OutsideAttempt | Own::Apply(_) | Own::Commit(_)) => {}
        }
    }

    /// Accepts an attempt: its changes are final.
    fn accept(&mut self, mut op: Op, mut reply: Reply) {
        if self.m.last_transno == Transno(u64::MAX) {
            // The next change would start over from 0.
            self.m.view.abandon();
            self.m.stop(StopReason::TransnosUsedUp);
            return;
        }
        let now = self.m.now;
        let handle = Handle(op.export.0);
        let work = core::mem::replace(&mut op.work, Work::Own(Own::OutsideAttempt));
        let only_memory = matches!(op.replay, Replay::Committed(_)) || matches!(work, Work::Reconstruct(..));
        let group = if only_memory {
            self.m.view.abandon();
            None
        } else {
            self.m.view.accept(now)
        };
        if group.is_some() && self.m.out.features & !self.m.header.incompat != 0 {
            self.m.header.incompat |= self.m.out.features;
            self.m.header_dirty();
        }
        self.m.end_op(&op);
        for file in op.dirty_files() {
            self.m.commits.dirty_file(file);
        }
        let pre_versions = self.m.out.pre_versions;
        let (mut hold, mut hold_for) = (self.m.out.hold, self.m.out.hold_for);
        if matches!(work, Work::Request(_)) && op.replay == Replay::No {
            let took = now.since(op.started);
            let out = &self.m.out;
            self.m.stats.count_operations(handle, (&out.counted, &out.jobs), took, (now, self.m.wall_ns));
        }
        let frame = match &work {
            Work::Request(request) => {
                let asked = &request.frame.header;
                let lightweight = self.m.exports.get(handle).is_none_or(|export| export.lightweight);
                let mut header = reply_header(asked);
                header.pre_versions = pre_versions;
                // A request that an earlier version answered as a change is replayed as one.
                let nothing = self.m.out.changes_nothing && op.replay == Replay::No;
                let change =
                    !only_memory && !nothing && (asked.tag.0 != 0 || self.m.out.wants_transno || group.is_some());
                if change {
                    let transno = self.m.take_transno(op.replay);
                    let record =
                        SlotRecord { xid: asked.xid, transno, status: reply.status, data: reply.record, pre_versions };
                    self.m.progress_dirty();
                    if asked.tag.0 != 0 {
                        match self.m.exports.executed(handle, asked.tag, record) {
                            Dirty::No => {}
                            Dirty::Client => self.m.export_dirty(handle),
                            Dirty::Reply => self.m.reply_dirty(handle, asked.tag),
                        }
                    }
                    if lightweight {
                        // A lightweight client keeps nothing for replay: the change must be durable before the reply.
                        hold = true;
                    } else {
                        header.transno = transno;
                    }
                    let group = group.unwrap_or_else(|| self.m.view.collecting_group());
                    self.m.sharing.changed(&self.m.out.changed, op.export, (asked.tag, asked.xid), group);
                } else if let Replay::Committed(transno) = op.replay {
                    header.transno = transno;
                }
                Some((asked, header))
            }
            Work::Reconstruct(request, executed) => {
                let mut header = reply_header(&request.frame.header);
                header.transno = executed.transno;
                header.pre_versions = op.pre_versions;
                Some((&request.frame.header, header))
            }
            Work::Prefetch(_) | Work::Task(_) | Work::Own(_) => {
                if group.is_some()
                    && self.m.out.wants_transno
                    && !self.m.window.replays()
                    && self.m.stage == Stage::Serving
                {
                    self.m.take_transno(Replay::No);
                }
                None
            }
        };
        if op.executes_part() {
            let (asked, group) = (&op.asked, group.unwrap_or_else(|| self.m.view.collecting_group()));
            self.m.cross.sharing.changed(&self.m.out.changed, op.export, (asked.tag, asked.xid), group);
        }
        self.m.apply_collected();
        if let Work::Request(request) = &work {
            self.m.out.clear();
            self.service.accepted(&mut Cx { m: &mut self.m, op: &mut op }, request, &mut reply);
            hold |= self.m.out.hold;
            self.m.apply_collected();
        }
        self.cross_accepted(&mut op, &work, &reply);
        match &work {
            Work::Own(Own::Boot) => self.booted(),
            Work::Own(Own::Start) => self.started(),
            _ => {}
        }
        let Some((asked, mut header)) = frame else { return };
        header.status = reply.status;
        let frame = Frame { header, body: reply.body, bulk: reply.bulk };
        self.m.answered(&op, asked, &frame);
        if hold {
            hold_for = hold_for.max(self.m.newest_group());
        }
        if hold_for > self.m.view.durable_group() {
            stdx::mark!("target.held");
            self.m.patience_for(handle, asked);
            if let Some(then) = self.m.when_durable(hold_for, Then::Reply(handle, frame)) {
                self.then(then);
            }
        } else {
            self.m.send_reply(handle, frame);
        }
    }

    /// Carries out the events of the lock manager.
    pub(crate) fn lock_events(&mut self) {
        while let Some(event) = self.m.locks.poll() {
            let m = &mut self.m;
            match event {
                LockEvent::Blocking { export, callback } => m.notice(export, Opcode::LdlmBlCallback, &callback),
                LockEvent::Glimpse { export, callback } => m.notice(export, Opcode::LdlmGlCallback, &callback),
                LockEvent::Granted { waiter, grant, .. } => {
                    if let Some(op) = m.ops.get_mut(&waiter.0) {
                        op.memo().enqueued = Some(Ok(grant));
                        m.ready.push_back(waiter.0);
                    }
                }
                LockEvent::Refused { waiter, errno } => {
                    if let Some(op) = m.ops.get_mut(&waiter.0) {
                        op.memo().enqueued = Some(Err(errno));
                        m.ready.push_back(waiter.0);
                    }
                }
                LockEvent::Ready { waiter } | LockEvent::GlimpseDone { waiter } => m.ready.push_back(waiter.0),
                LockEvent::Limit { export, locks } => m.send_lru_limit(export, locks),
                LockEvent::Overdue { export, resource, glimpse, asked } => {
                    let what = if glimpse { "answer for its lock on" } else { "give back its lock on" };
                    let reason = format!(
                        "it did not {what} {} within {} s (ldlm_timeout), asked {} s ago",
                        resource.fid,
                        m.options.lock_timeout.as_secs(),
                        m.now.since(asked).as_secs()
                    );
                    self.evict(Handle(export.0), &reason);
                }
            }
        }
    }
}

/// The header of a reply, without status, transno and versions.
pub(crate) fn reply_header(asked: &Header) -> Header {
    Header {
        opcode: asked.opcode,
        tag: asked.tag,
        flags: flags::REPLY | (asked.flags & flags::REPLAY),
        conn_cnt: asked.conn_cnt,
        export: asked.export,
        xid: asked.xid,
        ..Header::default()
    }
}

impl Machine {
    fn take_transno(&mut self, replay: Replay) -> Transno {
        let transno = match replay {
            Replay::Fresh(transno) | Replay::Committed(transno) => transno,
            Replay::No => Transno(self.last_transno.0 + 1),
        };
        self.last_transno = self.last_transno.max(transno);
        transno
    }

    /// A request was answered: keeps the reply where necessary, and counts it.
    fn answered(&mut self, op: &Op, asked: &Header, reply: &Frame) {
        let handle = Handle(op.export.0);
        if op.replay != Replay::No {
            self.exports.keep_replay_answer(handle, reply);
            if let Replay::Fresh(transno) = op.replay {
                if let Some(export) = self.exports.get_mut(handle) {
                    export.replayed = export.replayed.max(transno);
                }
                self.window.executed(self.now);
            }
        }
        if asked.tag.0 != 0 && op.replay == Replay::No {
            self.exports.keep_reply(handle, asked.tag, reply);
        }
        if asked.tag.0 == 0 && op.replay == Replay::No && reply.header.transno.0 != 0 && reply.header.status == 0 {
            self.exports.changed(handle, asked.xid);
        }
        self.learn_time(op, asked);
        self.stats.count(asked.opcode, self.now.since(op.started));
    }

    /// Releases the resources of an operation that has ended.
    pub(crate) fn end_op(&mut self, op: &Op) {
        self.abandon_looks(op);
        self.view.finish(op.attempt());
        if op.used_locks {
            self.locks.release(self.now, op.waiter());
        }
    }

    /// Applies what an accepted attempt, or a call outside of one, has collected.
    pub(crate) fn apply_collected(&mut self) {
        for (at, task) in core::mem::take(&mut self.out.spawned) {
            match at {
                Some(at) => self.add_timer(at, Timer::Spawn(task)),
                None => self.tasks.push_back(task),
            }
        }
        for (export, opcode, body) in core::mem::take(&mut self.out.notices) {
            self.notice_bytes(export, opcode, body);
        }
        for (export, reason) in core::mem::take(&mut self.out.evicted) {
            self.evict_later.push((Handle(export.0), reason));
        }
    }

    /// Whether tasks may run: in service, not recovering, and below the limit of dirty records.
    pub(crate) fn tasks_may_run(&self) -> bool {
        self.stage == Stage::Serving && !self.is_recovering() && !self.view.over_limit()
    }

    // --- needs ---

    /// The result of a data operation, if there is one. Starts the operation if necessary.
    pub(crate) fn data_op(&mut self, op: &mut Op, data: DataOp) -> Option<DataResult> {
        let id = op.id;
        let memo = op.memo();
        if let Some((_, result)) = memo.data.find(|(known, _)| same(known, &data)) {
            return result.clone();
        }
        let index = memo.data.push((data.clone(), None));
        self.start_data(id, index, data);
        None
    }

    pub(crate) fn data_done(&mut self, id: DataId, result: DataResult) {
        if self.synced(id, &result) {
            return;
        }
        let Some((op, index)) = self.data.remove(&id) else { return };
        if let Some(waiting) = self.ops.get_mut(&op) {
            let patience_ends = waiting.started + self.options.recovery_hard;
            let refused = matches!(result, DataResult::Failed(Errno::ENOSPC | Errno::EIO | Errno::EROFS));
            if refused && matches!(waiting.replay, Replay::Fresh(_)) && self.now < patience_ends {
                // It was answered before the restart, so it waits for space or for the disk to recover.
                stdx::mark!("target.replay_waits_for_space");
                self.add_timer(self.now + FULL_RETRY, Timer::Data { op, index });
                return;
            }
            if let Some((_, slot)) = waiting.memo().data.get_mut(index) {
                *slot = Some(result);
            }
            self.ready.push_back(op);
        }
    }

    /// Retries a data operation of a replay that found a full or failing disk.
    pub(crate) fn data_again(&mut self, op: u64, index: usize) {
        let asked = self.ops.get_mut(&op).and_then(|waiting| waiting.memo().data.get_mut(index));
        if let Some(data) = asked.map(|(data, _)| data.clone()) {
            self.start_data(op, index, data);
        }
    }

    /// Whether the operation has slept for `time`.
    pub(crate) fn slept(&mut self, op: &mut Op, time: Duration) -> bool {
        let (id, now) = (op.id, self.now);
        match op.memo().sleep {
            Some(at) => at <= now,
            None => {
                op.memo().sleep = Some(now + time);
                self.add_timer(now + time, Timer::Wake(id));
                false
            }
        }
    }

    /// Withdraws lock requests that have not reached the lock manager because something that they need is being loaded.
    /// They will not wait for a lock. They are still executed otherwise: a `flock` that changes its mode releases the
    /// old lock, which its client considers lost.
    pub(crate) fn refuse_enqueues(&mut self, handle: Handle, cookies: &[u64]) {
        if cookies.is_empty() {
            return;
        }
        let enqueues =
            |op: &&mut Op| op.export.0 == handle.0 && op.asked.opcode == Opcode::LdlmEnqueue as u16 && !op.used_locks;
        for op in self.ops.values_mut().chain(&mut self.throttled).filter(enqueues) {
            let Work::Request(request) = &op.work else { continue };
            if request.frame.decode::<EnqueueReq>().is_ok_and(|request| cookies.contains(&request.cookie)) {
                stdx::mark!("target.enqueue_refused_early");
                op.memo().withdrawn = true;
            }
        }
    }

    /// Ends the operations of an export that has ended.
    pub(crate) fn cancel_ops(&mut self, handle: Handle) {
        let mut gone: Vec<u64> = self.ops.iter().filter(|(_, op)| op.export.0 == handle.0).map(|(id, _)| *id).collect();
        gone.sort_unstable();
        let mut ops: Vec<Op> = gone.into_iter().filter_map(|id| self.unpark(id)).collect();
        for op in core::mem::take(&mut self.throttled) {
            if op.export.0 == handle.0 {
                ops.push(op);
            } else {
                self.throttled.push_back(op);
            }
        }
        for mut op in ops {
            self.change_abandoned(&mut op);
            self.end_op(&op);
            if matches!(op.replay, Replay::Fresh(_)) {
                self.window.executed(self.now);
            }
        }
        self.deferred.retain(|(whose, _)| *whose != handle);
        self.postponed.retain(|(whose, _)| *whose != handle);
        self.held_pings.retain(|(whose, _)| *whose != handle);
    }

    pub(crate) fn push(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }
}

/// Whether two data operations are the same. Written bytes are first compared by address, since a request's bytes do
/// not move.
fn same(a: &DataOp, b: &DataOp) -> bool {
    match (a, b) {
        (
            DataOp::Write { file, offset, data },
            DataOp::Write { file: other_file, offset: other_offset, data: other },
        ) => {
            (file, offset, data.len()) == (other_file, other_offset, other.len())
                && (data.as_ptr() == other.as_ptr() || data == other)
        }
        _ => a == b,
    }
}
