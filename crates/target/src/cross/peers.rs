//! What the metadata targets say to each other about cross changes: sessions, votes, and outcomes.

use std::collections::BTreeSet;

use prost::Message;
use proto::msg::{CrossAttempt, CrossFree, CrossPrepareRep, CrossSessionRep, CrossSessionReq, CrossTellReq};
use proto::{Errno, Frame, Handle, Opcode, TargetKind, TargetName};
use rpc::Slot;
use rpc::client::Outgoing;

use super::coordinator::{Outcome, Why};
use super::run::{Asked, CHANGES_MAX, FORGET_MAX, Peer, Question, Session, Told, from_wire, to_wire};
use super::{Attempt, Member};
use crate::commit::Then;
use crate::machine::{Machine, Timer};
use crate::op::Op;

impl Machine {
    /// Connects to all other metadata targets of the configuration.
    pub(crate) fn connect_peers(&mut self) {
        if self.name.kind != TargetKind::Mdt {
            return;
        }
        for entry in self.config.targets.clone() {
            let Ok(name) = entry.target.parse::<TargetName>() else { continue };
            if name.kind != TargetKind::Mdt || name == self.name || self.cross.peers.contains_key(&name.index.0) {
                continue;
            }
            let index = name.index.0;
            let upstream = self.connect_upstream(&name, &entry.nids);
            self.cross.peers.insert(index, Peer { upstream, away: Some(self.now), ..Peer::default() });
            self.set_new_peer_params(&name);
        }
        self.look_for_losses();
    }

    /// A session has begun, or a configuration has arrived: what waits for a session, perhaps with a target that was not
    /// known, looks again.
    pub(crate) fn look_for_sessions(&mut self) {
        let waiting = core::mem::take(&mut self.cross.for_session);
        self.ready.extend(waiting);
    }

    /// A session with another metadata target can begin: it is connected.
    pub(crate) fn peer_connected(&mut self, mdt: Member) {
        let Some(peer) = self.cross.peers.get_mut(&mdt) else { return };
        peer.session += 1;
        peer.tell = CrossTellReq::default();
        let session = peer.session;
        let Some(body) = self.session_request(mdt, session) else { return };
        self.ask_peer(mdt, Opcode::CrossSession, &body, Question::Session);
    }

    /// The connection to another metadata target is lost.
    pub(crate) fn peer_away(&mut self, mdt: Member) {
        let Some(peer) = self.cross.peers.get_mut(&mdt) else { return };
        // Answers to what was asked in this session count no longer.
        peer.session += 1;
        peer.tell = CrossTellReq::default();
        peer.away.get_or_insert(self.now);
        // It may have had to say that they are free.
        self.ready.extend(core::mem::take(&mut self.cross.busy).into_values());
        self.cross.coordinator.session_ended(mdt);
    }

    /// Sends a request in the present session with another metadata target.
    pub(super) fn ask_peer(&mut self, mdt: Member, opcode: Opcode, body: &impl Message, what: Question) {
        let mut out = Outgoing::new(opcode, body);
        if let Question::Prepare(_) = what {
            // It counts in this session only.
            out = Outgoing { no_resend: true, ..out.in_slot(Slot::Modify) };
        }
        self.send_to_peer(mdt, out, what);
    }

    fn send_to_peer(&mut self, mdt: Member, out: Outgoing, what: Question) {
        let Some(peer) = self.cross.peers.get(&mdt) else { return };
        let asked = Asked { mdt, session: peer.session, what };
        self.submit_to_peer(peer.upstream, out, asked);
    }

    /// A request to another metadata target was answered.
    pub(crate) fn peer_answered(&mut self, asked: Asked, result: Result<Frame, Errno>) {
        let Asked { mdt, session, what } = asked;
        if self.cross.peers.get(&mdt).is_none_or(|peer| peer.session != session) {
            return;
        }
        let body = result.as_ref().ok().and_then(|frame| frame.decode::<CrossSessionRep>().ok());
        let losses = body.filter(|_| matches!(what, Question::Session)).unwrap_or_default().losses;
        let result = result.and_then(|frame| Errno::from_status(frame.header.status).map(|()| frame));
        match (what, result) {
            (Question::Session, Ok(frame)) => {
                let Ok(report) = frame.decode::<CrossSessionRep>() else { return };
                let list = |attempts: &[CrossAttempt]| attempts.iter().map(from_wire).collect::<Vec<Attempt>>();
                self.cross.coordinator.report(mdt, &list(&report.prepared), &list(&report.done));
                if let Some(peer) = self.cross.peers.get_mut(&mdt) {
                    peer.away = None;
                }
                self.look_for_sessions();
                self.ask_others();
            }
            (Question::Session, Err(errno)) => self.session_refused(mdt, errno, losses),
            (Question::Orphans(asked), result) => {
                if let Some(peer) = self.cross.peers.get_mut(&mdt) {
                    peer.questioned = None;
                }
                if let Some(rep) = result.ok().and_then(|frame| frame.decode().ok()) {
                    self.orphans_answered(mdt, &asked, &rep);
                }
            }
            (Question::Prepare(attempt), Ok(frame)) => {
                let Ok(rep) = frame.decode::<CrossPrepareRep>() else {
                    self.cross.coordinator.refused(mdt, attempt, Why::Refused(Errno::EPROTO.raw()));
                    return;
                };
                if rep.busy {
                    stdx::mark!("cross.busy");
                    self.cross.coordinator.refused(mdt, attempt, Why::Busy(mdt));
                } else if rep.changed {
                    stdx::mark!("cross.changed");
                    if let Some(staged) = self.cross.staged.get_mut(&attempt) {
                        staged.changed = true;
                    }
                    self.cross.coordinator.refused(mdt, attempt, Why::GivenUp);
                } else if rep.errno != 0 {
                    stdx::mark!("cross.refused");
                    self.cross.coordinator.refused(mdt, attempt, Why::Refused(rep.errno));
                } else {
                    if let Some(staged) = self.cross.staged.get_mut(&attempt) {
                        staged.objects.extend(rep.objects);
                    }
                    self.cross.coordinator.voted(mdt, attempt);
                }
            }
            (Question::Prepare(_) | Question::Tell(_), Err(Errno::ESTALE)) => {
                // It knows the session no more, because it believes this target lost.
                self.peer_away(mdt);
                self.session_later(mdt);
            }
            (Question::Prepare(attempt), Err(errno)) => {
                self.cross.coordinator.refused(mdt, attempt, Why::Refused(errno.raw()));
            }
            (Question::Tell(told), Ok(_)) => {
                for attempt in &told.commit {
                    self.cross.coordinator.applied(mdt, from_wire(attempt));
                }
                for attempt in told.abort.iter().chain(&told.forget) {
                    self.cross.coordinator.forgotten(mdt, from_wire(attempt));
                }
            }
            // The next session settles it.
            (Question::Tell(_), Err(_)) => {}
        }
    }

    /// A participant says that a busy attempt may be tried again.
    pub(crate) fn peer_is_free(&mut self, frame: &Frame) {
        let Ok(free) = frame.decode::<CrossFree>() else { return };
        let attempt = from_wire(&free.attempt);
        match self.cross.busy.remove(&attempt) {
            Some(op) => self.ready.push_back(op),
            None if self.cross.staged.contains_key(&attempt) => drop(self.cross.free_early.insert(attempt)),
            None => {}
        }
    }

    /// The participant settles one outcome that it was told.
    pub(super) fn settled(&mut self, attempt: Attempt) {
        if !self.cross.participant.has(attempt) {
            self.cross.members.remove(&attempt);
        }
        for id in self.cross.told_of.remove(&attempt).unwrap_or_default() {
            let Some(told) = self.cross.told.get_mut(&id) else { continue };
            told.open.remove(&attempt);
            if told.open.is_empty()
                && let Some(told) = self.cross.told.remove(&id)
            {
                self.done(told.export, &told.asked);
            }
        }
    }

    pub(super) fn told(&mut self, handle: Handle, frame: &Frame) {
        if !self.cross.sessions.values().any(|session| session.export == handle) {
            // Of a lost target.
            self.refuse(handle, &frame.header, Errno::ESTALE);
            return;
        }
        let Ok(tell) = frame.decode::<CrossTellReq>() else {
            self.refuse(handle, &frame.header, Errno::EPROTO);
            return;
        };
        let id = self.cross.next_told;
        self.cross.next_told += 1;
        let all: BTreeSet<Attempt> = tell.commit.iter().chain(&tell.abort).chain(&tell.forget).map(from_wire).collect();
        if all.is_empty() {
            self.done(handle, &frame.header);
            return;
        }
        for attempt in &all {
            self.cross.told_of.entry(*attempt).or_default().push(id);
        }
        self.cross.told.insert(id, Told { export: handle, asked: frame.header, open: all });
        self.patience_for(handle, &frame.header);
        for attempt in &tell.commit {
            self.cross.participant.commit(from_wire(attempt));
        }
        for attempt in &tell.abort {
            let attempt = from_wire(attempt);
            self.cross.keys.disinterested(attempt);
            if !self.cross.participant.has(attempt) {
                self.drop_prepares(|of| of == attempt);
                // One that waits for capacity may still come.
                self.cross.aborted.insert(attempt);
                if self.cross.aborted.len() > CHANGES_MAX {
                    self.cross.aborted.pop_first();
                }
            }
            self.cross.participant.abort(attempt);
        }
        for attempt in &tell.forget {
            self.cross.participant.forget(from_wire(attempt));
        }
    }

    /// Ends the operations of `CrossPrepare`s that wait for something, without an answer. Those that wait for room end when
    /// they run: their session has ended then.
    pub(super) fn drop_prepares(&mut self, of: impl Fn(Attempt) -> bool) {
        let waits = |op: &Op| op.prepares.is_some_and(&of);
        let mut old: Vec<u64> = self.ops.iter().filter(|(_, op)| waits(op)).map(|(id, _)| *id).collect();
        old.sort_unstable();
        for id in old {
            if let Some(attempt) = self.ops.get(&id).and_then(|op| op.prepares) {
                self.unclaim(attempt);
            }
            self.drop_op(id);
        }
    }

    /// Ends an operation without an answer.
    fn drop_op(&mut self, id: u64) {
        if let Some(op) = self.unpark(id) {
            self.end_op(&op);
            let _ = self.done_with(Handle(op.export.0), &op.asked);
        }
    }

    pub(super) fn session_begins(&mut self, handle: Handle, frame: &Frame) {
        let Ok(asked) = frame.decode::<CrossSessionReq>() else {
            self.refuse(handle, &frame.header, Errno::EPROTO);
            return;
        };
        let old = self.cross.sessions.get(&asked.mdt);
        if old.is_some_and(|old| old.instance == asked.instance && old.number >= asked.session) {
            self.refuse(handle, &frame.header, Errno::ESTALE);
            return;
        }
        if let Err(errno) = self.may_begin(&asked) {
            self.refuse_session(handle, &frame.header, errno);
            return;
        }
        let session = Session { number: asked.session, instance: asked.instance, export: handle };
        self.cross.sessions.insert(asked.mdt, session);
        // No Prepare of an earlier session may be taken after the report.
        self.drop_prepares(|attempt| attempt.mdt == asked.mdt);
        self.cross.aborted.retain(|attempt| attempt.mdt != asked.mdt);
        self.patience_for(handle, &frame.header);
        self.when_group(self.newest_group(), true, Then::CrossReport(handle, frame.header, asked.mdt));
    }

    /// A participant has to hear of an outcome. Nobody waits for it to forget, so that leaves with the next message about other
    /// attempts.
    pub(super) fn note_outcome(&mut self, mdt: Member, attempt: Attempt, outcome: Outcome) {
        let Some(peer) = self.cross.peers.get_mut(&mdt) else { return };
        let list = match outcome {
            Outcome::Commit => &mut peer.tell.commit,
            Outcome::Abort => &mut peer.tell.abort,
            Outcome::Forget => &mut peer.tell.forget,
        };
        list.push(to_wire(attempt));
        if outcome == Outcome::Forget && !core::mem::replace(&mut peer.forgets, true) {
            self.add_timer(self.now + FORGET_MAX, Timer::Forget(mdt));
        }
    }

    /// Sends what is to be told to other targets, and waits for no more.
    pub(crate) fn flush_tells(&mut self) {
        let urgent = |peer: &Peer| !peer.tell.commit.is_empty() || !peer.tell.abort.is_empty();
        let members: Vec<Member> =
            self.cross.peers.iter().filter(|(_, peer)| urgent(peer)).map(|(mdt, _)| *mdt).collect();
        members.into_iter().for_each(|mdt| self.tell(mdt));
    }

    /// What a participant has to forget has waited long enough.
    pub(crate) fn forget_timer(&mut self, mdt: Member) {
        if let Some(peer) = self.cross.peers.get_mut(&mdt) {
            peer.forgets = false;
            self.tell(mdt);
        }
    }

    fn tell(&mut self, mdt: Member) {
        let told = self.cross.peers.get_mut(&mdt).map(|peer| core::mem::take(&mut peer.tell)).unwrap_or_default();
        if told != CrossTellReq::default() {
            stdx::mark!("cross.told");
            self.send_to_peer(mdt, Outgoing::new(Opcode::CrossTell, &told), Question::Tell(told));
        }
    }
}
