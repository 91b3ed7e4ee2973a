//! The steps of cross changes: staging, preparing and applying parts, and what the tables ask for.

use core::time::Duration;

use dlm::ExportId;
use prost::Message;
use proto::msg::{CrossFree, CrossPart, CrossPrepareRep, CrossPrepareReq};
use proto::{ClientUuid, Errno, Frame, Handle, Opcode, TargetKind, TargetName, Transno, Xid};
use schema::{CrossKey, CrossRec, Record};

use super::coordinator::{self, Why};
use super::keys::{Taken, Woken};
use super::participant;
use super::run::{
    BUSY_MAX, CHANGED_MAX, CHANGES_MAX, Change, LOOK_PATIENCE, PATIENCE, Peer, Prepared, Question, Staged, from_wire,
    key_of, to_wire, with_losses,
};
use super::{Age, Attempt, Member};
use crate::boot::Stage;
use crate::commit::Then;
use crate::cx::Cx;
use crate::execute::reply_header;
use crate::machine::{Target, Timer};
use crate::op::{Op, Own, Replay, Work};
use crate::options::format_features;
use crate::service::{Reply, Request, Service, Stop, Vote};
use crate::stopped::StopReason;

impl<S: Service> Target<S> {
    /// The number of changes that wait for cross changes, for observers outside the target.
    pub fn key_waiters(&self) -> usize {
        self.m.cross.keys.waiters()
    }

    /// A request of another metadata target about cross changes.
    pub(crate) fn cross_request(&mut self, handle: Handle, opcode: Opcode, frame: Frame) {
        let is_peer = self.m.exports.get(handle).is_some_and(|export| export.lightweight);
        if !is_peer || self.service.kind() != TargetKind::Mdt {
            stdx::mark!("cross.no_peer");
            self.m.refuse(handle, &frame.header, Errno::EOPNOTSUPP);
            return;
        }
        match opcode {
            Opcode::CrossSession => self.m.session_begins(handle, &frame),
            Opcode::CrossTell => self.m.told(handle, &frame),
            Opcode::CrossOrphans => self.m.orphans_asked(handle, &frame),
            Opcode::CrossPrepare => {
                let asked = frame.header;
                self.execute(handle, frame, Replay::No);
                self.m.taken_in(handle, &asked);
            }
            _ => self.execute(handle, frame, Replay::No),
        }
    }

    /// Carries out what the tables of cross changes ask for. Returns whether there was anything.
    pub(crate) fn cross_steps(&mut self) -> bool {
        if self.m.stage != Stage::Serving || self.m.is_recovering() {
            return false;
        }
        self.m.cross.served.get_or_insert(self.m.now);
        let mut any = false;
        loop {
            if let Some(todo) = self.m.cross.coordinator.poll() {
                self.coordinate(todo);
            } else if let Some(todo) = self.m.cross.participant.poll() {
                self.participate(todo);
            } else if let Some(woken) = self.m.cross.keys.poll() {
                self.woken(woken);
            } else if let Some(attempt) = self.m.cross.orphaned.pop() {
                self.commit_begins(attempt);
            } else {
                break;
            }
            any = true;
        }
        any
    }

    pub(crate) fn woken(&mut self, woken: Woken) {
        match woken {
            Woken::Request(op) => self.m.ready.push_back(op),
            Woken::Attempt(attempt) => self.m.ready.extend(self.m.cross.waiting.get(&attempt)),
            Woken::Free(attempt) => {
                if let Some(session) = self.m.cross.sessions.get(&attempt.mdt) {
                    let export = ExportId(session.export.0);
                    self.m.notice(export, Opcode::CrossFree, &CrossFree { attempt: to_wire(attempt) });
                }
            }
        }
    }

    fn coordinate(&mut self, todo: coordinator::Todo) {
        use coordinator::Todo;
        let m = &mut self.m;
        match todo {
            Todo::Prepare(mdt, attempt) => {
                let (Some(staged), Some(peer)) = (m.cross.staged.get(&attempt), m.cross.peers.get(&mdt)) else {
                    return;
                };
                let body = CrossPrepareReq {
                    session: peer.session,
                    attempt: to_wire(attempt),
                    age: staged.age.clock,
                    age_mdt: staged.age.mdt,
                    part: staged.parts.iter().find(|part| part.mdt == mdt).cloned(),
                    members: staged.members.clone(),
                    losses: staged.losses.clone(),
                    coordinator_losses: m.header.losses,
                };
                m.ask_peer(mdt, Opcode::CrossPrepare, &body, Question::Prepare(attempt));
            }
            Todo::Tell(mdt, attempt, outcome) => m.note_outcome(mdt, attempt, outcome),
            Todo::Commit(attempt) => self.commit_begins(attempt),
            Todo::DropStaged(attempt) => {
                let at_once = m.cross.staged.get(&attempt).is_some_and(|s| s.group == m.view.collecting_group());
                let group = m.write_record(key_of(false, attempt), None);
                match at_once {
                    true => m.cross.coordinator.staged_gone(attempt),
                    false => m.when_group(group, true, Then::StagedGone(attempt)),
                }
            }
            Todo::Ended(attempt, why) => self.ended(attempt, why),
            Todo::DropDone(attempt) => drop(m.write_record(key_of(false, attempt), None)),
        }
    }

    /// All members have the attempt durably: its request, or the machine, executes this target's part.
    fn commit_begins(&mut self, attempt: Attempt) {
        let Some(staged) = self.m.cross.staged.get_mut(&attempt) else { return };
        if core::mem::replace(&mut staged.commits, true) {
            return;
        }
        let waiting = staged.op.filter(|id| self.m.ops.contains_key(id));
        let mut op = match waiting.and_then(|id| self.m.unpark(id)) {
            Some(op) => op,
            None => {
                stdx::mark!("cross.committed_without_request");
                self.m.new_op(ExportId::TARGET, Replay::No, Work::Own(Own::Commit(attempt)))
            }
        };
        op.exempt = true;
        op.memo().change = Some(Change::Commits(attempt));
        self.attempt(op);
    }

    fn ended(&mut self, attempt: Attempt, why: Why) {
        self.m.cross.keys.release(attempt);
        let Some(staged) = self.m.cross.staged.remove(&attempt) else { return };
        if !matches!(why, Why::Busy(_)) {
            self.m.cross.free_early.remove(&attempt);
        }
        self.resent_again(attempt, staged.client, staged.xid);
        let Some(mut op) = staged.op.and_then(|id| self.m.unpark(id)) else { return };
        drop(op.take_change());
        self.m.abandon_looks(&op);
        op.looks_again();
        match why {
            Why::Refused(errno) => self.failed(op, Errno::from_raw(errno)),
            Why::Busy(_) if self.m.cross.free_early.remove(&attempt) => {
                self.m.ready.push_back(op.id);
                self.m.park(op);
            }
            Why::Busy(_) => {
                self.m.cross.busy.insert(attempt, op.id);
                let at = self.m.now + BUSY_MAX;
                self.m.add_timer(at, Timer::Busy(attempt));
                self.m.park(op);
            }
            Why::GivenUp if staged.changed && op.changed() >= CHANGED_MAX => {
                stdx::mark!("cross.changes_for_ever");
                self.failed(op, Errno::EBUSY);
            }
            Why::GivenUp => {
                stdx::mark!("cross.given_up");
                op.memo().changed += u32::from(staged.changed);
                self.m.ready.push_back(op.id);
                self.m.park(op);
            }
        }
    }

    /// An attempt that was busy is tried again, although its participant has not said that it may.
    pub(crate) fn busy_again(&mut self, attempt: Attempt) {
        if let Some(op) = self.m.cross.busy.remove(&attempt) {
            self.m.ready.push_back(op);
        }
    }

    fn resent_again(&mut self, attempt: Attempt, client: Option<ClientUuid>, xid: Xid) {
        if let Some(client) = client {
            self.m.cross.by_request.remove(&(client, xid));
        }
        for (handle, frame) in self.m.cross.resent_of(attempt) {
            self.begin_deferred(handle, frame);
        }
    }

    fn participate(&mut self, todo: participant::Todo) {
        use participant::Todo;
        let m = &mut self.m;
        match todo {
            // The reply to the Prepare waits for the same group.
            Todo::Vote(_) => {}
            Todo::Apply(attempt) => {
                let mut op = m.new_op(ExportId::TARGET, Replay::No, Work::Own(Own::Apply(attempt)));
                op.exempt = true;
                self.attempt(op);
            }
            Todo::DropPrepared(attempt) => {
                let at_once = m.cross.prepared.get(&attempt).is_some_and(|p| p.group == m.view.collecting_group());
                let group = m.write_record(key_of(true, attempt), None);
                match at_once {
                    true => m.cross.participant.prepared_gone(attempt),
                    false => m.when_group(group, true, Then::PreparedGone(attempt)),
                }
            }
            Todo::DropDone(attempt) => {
                let group = m.write_record(key_of(true, attempt), None);
                m.when_group(group, false, Then::DoneGone(attempt));
            }
            Todo::Applied(attempt) | Todo::Gone(attempt) => m.settled(attempt),
            Todo::Release(attempt) => {
                m.cross.prepared.remove(&attempt);
                m.cross.keys.release(attempt);
            }
        }
    }

    /// A request has asked for a change with parts on several targets.
    pub(crate) fn stage(&mut self, op: Op, parts: Vec<CrossPart>) {
        let own = self.m.name.index.0;
        let members: Vec<Member> = parts.iter().skip(1).map(|part| part.mdt).collect();
        let keys = parts.first().map(|part| self.service.keys(part)).unwrap_or_default();
        if self.m.cross.coordinator.len() >= CHANGES_MAX {
            self.not_now(op);
            return;
        }
        let bytes = parts.iter().map(Message::encoded_len).sum();
        if !self.has_room_for_parts(&op, bytes) {
            stdx::mark!("cross.no_room");
            self.failed(op, Errno::ENOSPC);
            return;
        }
        let Some(mut op) = self.in_session(op, &members) else { return };
        let m = &mut self.m;
        let age = op.memo().age.unwrap_or_else(|| m.cross.age(own));
        op.memo().age = Some(age);
        if !m.cross.keys.would_take(age, &keys) {
            let mut waits = false;
            for &(key, mode) in &keys {
                if !m.cross.keys.is_free(key, mode) {
                    m.cross.keys.wait(op.id, key, mode, age);
                    waits = true;
                }
            }
            if waits {
                m.loses_patience(&mut op);
            } else {
                let at = m.now + Duration::from_millis(5);
                m.add_timer(at, Timer::Wake(op.id));
            }
            op.waits_for_key = true;
            m.park(op);
            return;
        }
        m.cross.serial += 1;
        let attempt = Attempt { mdt: own, instance: m.cross.instance, serial: m.cross.serial };
        let taken = m.cross.keys.take(attempt, age, &keys);
        debug_assert_eq!(taken, Taken::Yes, "nothing has changed since it was judged");
        let mut staged = Staged {
            op: Some(op.id),
            parts: Vec::new(),
            members: members.clone(),
            age,
            client: m.exports.get(Handle(op.export.0)).map(|export| export.uuid),
            tag: op.asked.tag,
            xid: op.asked.xid,
            group: 0,
            losses: members.iter().map(|mdt| m.cross.losses.heard(*mdt)).collect(),
            objects: Vec::new(),
            commits: false,
            changed: false,
        };
        m.needs_remote_dir();
        stdx::mark!("cross.staged");
        let record = CrossRec { done: false, parts, ..staged.done_record() };
        let group = m.write_record(key_of(false, attempt), Some(record.encode_record()));
        (staged.parts, staged.group) = (record.parts, group);
        m.cross.staged.insert(attempt, staged);
        op.memo().change = Some(Change::Staged(attempt));
        m.cross.coordinator.stage(attempt, &members);
        m.park(op);
        m.when_group(group, true, Then::Staged(attempt));
    }

    /// A request has asked for the latest configuration.
    pub(crate) fn fetch_config(&mut self, mut op: Op) {
        self.ask_config_once(&mut op);
        if self.m.asks_config() {
            stdx::mark!("cross.newer_config");
            self.m.patience(&op);
            self.wait_for_session(op);
        } else {
            // A target without an MGS.
            self.m.ready.push_back(op.id);
            self.m.park(op);
        }
    }

    /// Asks for the configuration on behalf of a request, which does so once: if it did so again because others have asked
    /// meanwhile, two requests would ask forever.
    fn ask_config_once(&mut self, op: &mut Op) {
        if !core::mem::replace(&mut op.asked_config, true) {
            self.m.ask_config();
        }
    }

    /// The request back, if sessions with all these targets stand. Otherwise it waits for them, or is answered.
    pub(crate) fn in_session(&mut self, mut op: Op, members: &[Member]) -> Option<Op> {
        let m = &mut self.m;
        m.patience(&op);
        if members.iter().any(|mdt| !m.cross.peers.contains_key(mdt)) {
            // The client may have heard of it before this target.
            if op.asked_config && !m.asks_config() {
                self.failed(op, Errno::ENODEV);
                return None;
            }
            stdx::mark!("cross.unknown_target");
            self.ask_config_once(&mut op);
            self.wait_for_session(op);
            return None;
        }
        if members.iter().all(|mdt| m.cross.coordinator.stands(*mdt)) {
            return Some(op);
        }
        if members.iter().any(|mdt| m.is_lost(*mdt)) {
            stdx::mark!("cross.needs_lost");
            self.failed(op, Errno::ENXIO);
            return None;
        }
        stdx::mark!("cross.no_session");
        let long = |peer: &Peer| peer.away.is_some_and(|since| m.now.since(since) >= PATIENCE);
        if members.iter().filter_map(|mdt| m.cross.peers.get(mdt)).any(long) {
            self.not_now(op);
            return None;
        }
        self.wait_for_session(op);
        None
    }

    fn wait_for_session(&mut self, mut op: Op) {
        self.m.cross.for_session.insert(op.id);
        self.m.loses_patience(&mut op);
        self.m.park(op);
    }

    /// Answers that nothing was done and the client may ask again later. No reply is kept.
    fn not_now(&mut self, mut op: Op) {
        stdx::mark!("cross.in_progress");
        if matches!(op.work, Work::Task(_)) {
            return self.failed(op, Errno::EINPROGRESS);
        }
        self.m.change_abandoned(&mut op);
        self.m.end_op(&op);
        if let Work::Request(request) = &op.work {
            self.service.refused(request);
            let header = request.frame.header;
            self.m.refuse(Handle(op.export.0), &header, Errno::EINPROGRESS);
        }
    }

    /// A request has waited for some time for a key or a session.
    pub(crate) fn out_of_patience(&mut self, id: u64) {
        let Some(op) = self.m.ops.get(&id) else { return };
        if op.is_staged() {
            return;
        }
        if op.asked.opcode == Opcode::CrossLook as u16 && self.m.now.since(op.started) >= LOOK_PATIENCE {
            // The coordinator answers its client `EINPROGRESS`, and the client asks again.
            stdx::mark!("cross.look_waits");
            if let Some(op) = self.m.unpark(id) {
                self.not_now(op);
            }
            return;
        }
        let waits_for_session = self.m.cross.for_session.contains(&id) || self.m.looks_in_vain(id);
        let holders = self.m.cross.keys.holders_awaited(id);
        let in_doubt = holders.iter().any(|attempt| self.m.is_in_doubt(*attempt));
        if !waits_for_session && !in_doubt {
            // A look may wait for a client's lock, too.
            let looks = |op: &Op| op.asked.opcode == Opcode::CrossLook as u16 || op.looks().next().is_some();
            if !holders.is_empty() || self.m.ops.get(&id).is_some_and(looks) {
                let at = self.m.now + PATIENCE;
                self.m.add_timer(at, Timer::Patience(id));
                if let Some(op) = self.m.ops.get_mut(&id) {
                    op.patience = Some(at);
                }
            }
            return;
        }
        if let Some(op) = self.m.unpark(id) {
            self.not_now(op);
        }
    }

    /// A `CrossPrepare` has waited for some time for locks.
    pub(crate) fn locks_awaited(&mut self, id: u64) {
        let Some(op) = self.m.ops.get(&id) else { return };
        let Some(attempt) = op.prepares.filter(|attempt| !self.m.cross.waiting.contains_key(attempt)) else { return };
        let Some(op) = self.m.unpark(id) else { return };
        stdx::mark!("cross.busy_with_locks");
        self.m.end_op(&op);
        self.m.unclaim(attempt);
        let at = self.m.now + BUSY_MAX / 4;
        self.m.add_timer(at, Timer::Free(attempt));
        let body = CrossPrepareRep { busy: true, ..CrossPrepareRep::default() };
        let header = reply_header(&op.asked);
        let frame = Frame { header, body: body.encode_to_vec().into(), ..Frame::default() };
        self.m.send_reply(Handle(op.export.0), frame);
    }

    /// Before an attempt of an operation: whether it may run.
    pub(crate) fn cross_begins(&mut self, op: &mut Op) -> bool {
        if op.is_staged() {
            return false;
        }
        if core::mem::take(&mut op.waits_for_key) {
            self.m.cross.keys.withdraw(op.id);
        }
        if let (Replay::Fresh(_), true) = (op.replay, op.change().is_none())
            && let Some(attempt) = self.m.proven(op)
        {
            stdx::mark!("cross.replayed");
            self.m.cross.coordinator.replayed(attempt);
            if let Some(staged) = self.m.cross.staged.get_mut(&attempt) {
                staged.commits = true;
                op.memo().change = Some(Change::Commits(attempt));
                op.exempt = true;
            }
        }
        true
    }

    /// A part was executed: the rest of what belongs to that, in memory and with the group.
    pub(crate) fn cross_accepted(&mut self, op: &mut Op, work: &Work, reply: &Reply) {
        let group = self.m.view.collecting_group();
        if let Work::Own(Own::Apply(attempt)) = work {
            let attempt = *attempt;
            self.m.cross.prepared.remove(&attempt);
            self.m.cross.participant.applied(attempt);
            self.m.cross.keys.release(attempt);
            self.m.when_group(group, false, Then::Applied(attempt));
            return;
        }
        let Some(Change::Commits(attempt)) = op.take_change() else { return };
        let Some(staged) = self.m.cross.staged.remove(&attempt) else { return };
        self.m.cross.coordinator.committed(attempt);
        self.m.cross.keys.release(attempt);
        self.m.when_group(group, false, Then::Committed(attempt));
        if matches!(work, Work::Own(_))
            && let Some(client) = staged.client
        {
            self.m.record_reply(client, (staged.tag, staged.xid), attempt, reply);
        }
        self.resent_again(attempt, staged.client, staged.xid);
    }
}

/// One attempt to execute this target's part of a committed change of its own.
pub(crate) fn commit_part<S: Service>(service: &mut S, cx: &mut Cx<'_>, attempt: Attempt) -> Result<Reply, Stop> {
    let Some(staged) = cx.m.cross.staged.get_mut(&attempt) else { return Err(Stop::Errno(Errno::EIO)) };
    let (parts, objects) = (core::mem::take(&mut staged.parts), staged.objects.clone());
    let record = staged.done_record();
    cx.put::<CrossRec>(&CrossKey::new(false, &to_wire(attempt)), &record);
    let _: Transno = cx.transno();
    let executed = service.apply(cx, &parts, objects);
    if let Some(staged) = cx.m.cross.staged.get_mut(&attempt) {
        staged.parts = parts;
    }
    let reply = executed?;
    cx.m.out.hold = false;
    cx.m.out.hold_for = 0;
    if let Some(client) = cx.client()
        && let Some(proof) = cx.m.proof(attempt, client, cx.op.asked.xid)
    {
        cx.m.out.pre_versions = proof;
    }
    Ok(reply)
}

/// One attempt to execute a prepared part of another target's change.
pub(crate) fn apply_part<S: Service>(service: &mut S, cx: &mut Cx<'_>, attempt: Attempt) -> Result<Reply, Stop> {
    let Some(prepared) = cx.m.cross.prepared.get_mut(&attempt) else { return Ok(Reply::empty()) };
    let parts = core::mem::take(&mut prepared.record.parts);
    let record = CrossRec { done: true, ..prepared.record.clone() };
    cx.put::<CrossRec>(&CrossKey::new(true, &to_wire(attempt)), &record);
    let _: Transno = cx.transno();
    let executed = service.apply(cx, &parts, Vec::new());
    if let Some(prepared) = cx.m.cross.prepared.get_mut(&attempt) {
        prepared.record.parts = parts;
    }
    executed
}

/// One attempt to prepare a part.
pub(crate) fn prepare_part<S: Service>(service: &mut S, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    let asked: CrossPrepareReq = request.decode()?;
    let attempt = from_wire(&asked.attempt);
    let age = Age { clock: asked.age, mdt: asked.age_mdt };
    let own = cx.m.name.index.0;
    let part = asked.part.filter(|part| part.mdt == own).ok_or(Errno::EPROTO)?;
    let session = cx.m.cross.sessions.get(&attempt.mdt);
    if session.is_none_or(|s| s.number != asked.session || s.instance != attempt.instance) {
        return Err(Errno::ESTALE.into());
    }
    if cx.m.cross.aborted.remove(&attempt) {
        return Err(Errno::EALREADY.into());
    }
    if cx.m.cross.participant.has(attempt) {
        return Err(Errno::EALREADY.into());
    }
    let members = with_losses(&asked.members, &asked.losses);
    if members.iter().any(|(mdt, losses)| *losses < cx.m.cross.losses.heard(*mdt)) {
        // The coordinator will hear of it, too.
        stdx::mark!("cross.prepare_before_loss");
        let at = cx.m.now + BUSY_MAX / 4;
        cx.m.add_timer(at, Timer::Free(attempt));
        return Ok(Reply::new(&CrossPrepareRep { busy: true, ..CrossPrepareRep::default() }));
    }
    cx.op.prepares = Some(attempt);
    cx.op.exempt = true;
    cx.m.cross.clock = cx.m.cross.clock.max(age.clock);
    cx.m.cross.waiting.remove(&attempt);
    let keys = service.keys(&part);
    if !cx.m.cross.keys.would_take(age, &keys) {
        match cx.m.cross.keys.take(attempt, age, &keys) {
            Taken::Yes => {}
            Taken::Wait => {
                cx.m.cross.waiting.insert(attempt, cx.op.id);
                return Err(cx.wait());
            }
            Taken::Busy => {
                cx.m.cross.keys.interested(attempt, age, &keys);
                return Ok(Reply::new(&CrossPrepareRep { busy: true, ..CrossPrepareRep::default() }));
            }
        }
    }
    let objects = match cx.with_savepoint(|cx| service.prepare(cx, &part)) {
        Ok(Vote::Yes(objects)) => objects,
        Ok(Vote::Changed) => {
            cx.m.unclaim(attempt);
            return Ok(Reply::new(&CrossPrepareRep { changed: true, ..CrossPrepareRep::default() }));
        }
        Err(Stop::Errno(errno)) => {
            cx.m.unclaim(attempt);
            return Ok(Reply::new(&CrossPrepareRep { errno: errno.raw(), ..CrossPrepareRep::default() }));
        }
        Err(Stop::Wait) => return Err(Stop::Wait),
    };
    cx.m.cross.members.insert(attempt, members);
    let record = CrossRec {
        age: age.clock,
        age_mdt: age.mdt,
        members: asked.members,
        parts: vec![part],
        losses: asked.losses,
        coordinator_losses: asked.coordinator_losses,
        ..CrossRec::default()
    };
    cx.put::<CrossRec>(&CrossKey::new(true, &asked.attempt), &record);
    cx.needs_feature(format_features::REMOTE_DIR);
    cx.m.out.hold = true;
    // Nothing can fail any more.
    let taken = cx.m.cross.keys.take(attempt, age, &keys);
    debug_assert_eq!(taken, Taken::Yes, "nothing has changed since it was judged");
    cx.m.cross.participant.prepared(attempt);
    let group = cx.group();
    cx.m.cross.prepared.insert(attempt, Prepared { record, group });
    cx.m.when_group(group, true, Then::Prepared(attempt));
    Ok(Reply::new(&CrossPrepareRep { objects, ..CrossPrepareRep::default() }))
}

/// A part that is prepared or committed cannot be applied.
pub(crate) fn defect(op: &Op, errno: Errno, name: &TargetName) -> Option<StopReason> {
    op.executes_part().then(|| StopReason::PartNotApplied { target: name.clone(), errno })
}
