//! Metadata targets that are lost for good.
//!
//! An administrator declares a loss; the MGS counts it and publishes it in the configuration. It can also be heard of from
//! another target. A target that hears of a loss takes nothing of the lost target from then on. When its record of that
//! ([`LossRec`]) is durable, it acts: the lost target counts as one that had prepared whatever is in doubt. Of its own
//! attempts the other participants ask each other what they have ([`Participant`](super::participant::Participant)).
//! What was under way is recorded for a check ([`LeftRec`]).
//!
//! A lost target that comes back is refused by the MGS and by the others, until it is started with `abort_recovery_mdt`:
//! it forgets all attempts, takes over the count of its losses, and is admitted. Losses are numbered, so that a target that
//! was away all the time settles what was lost before it listens to the one that came back: each session of a pair begins
//! with these counts.

use std::collections::BTreeMap;

use prost::Message;
use proto::msg::{
    CrossAttempt, CrossOrphansRep, CrossOrphansReq, CrossPart, CrossSessionRep, CrossSessionReq, TargetEntry,
    TargetLosses,
};
use proto::{Errno, Frame, Handle, Header, Opcode, TargetIndex, TargetKind, TargetName};
use schema::{CrossKey, CrossRec, LeftRec, LossRec, Record};

use super::run::{Question, from_wire, key_of, to_wire, with_losses};
use super::{Attempt, Has, Member};
use crate::api::LogLevel;
use crate::boot::Stage;
use crate::commit::Then;
use crate::execute::reply_header;
use crate::machine::{Machine, Target, Timer};
use crate::service::Service;
use crate::stopped::StopReason;

/// Other participants are asked again after this time, and a refused session is tried again.
pub(super) const ASK_AGAIN: core::time::Duration = core::time::Duration::from_secs(1);
/// Most losses of one target between two that are heard of. A false claim of more would leave none for the real ones.
const LOSSES_BETWEEN: u32 = 1024;
/// Attempts that one question names at most.
const QUESTION_MAX: usize = 1000;

/// What is known of a metadata target that was declared lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    losses: u32,
    /// The record of it is durable: the loss is acted on.
    durable: bool,
}

/// All losses that a target has heard of.
#[derive(Debug, Default)]
pub(super) struct Losses {
    by_mdt: BTreeMap<Member, Loss>,
    /// Attempts that were under way with a lost target, for status.
    left: BTreeMap<CrossKey, LeftRec>,
    /// The next round of questions is set.
    asks: bool,
    /// It was logged that this target itself was declared lost.
    is_told: bool,
}

impl Losses {
    /// How often a target was declared lost; `None`: the last loss that was heard of is not settled yet.
    fn settled(&self, mdt: Member) -> Option<u32> {
        match self.by_mdt.get(&mdt) {
            Some(loss) => loss.durable.then_some(loss.losses),
            None => Some(0),
        }
    }

    /// How often a target was declared lost, settled or not.
    pub(super) fn heard(&self, mdt: Member) -> u32 {
        self.by_mdt.get(&mdt).map_or(0, |loss| loss.losses)
    }

    /// Whether the target was lost after `losses` times, and that is settled.
    fn is_lost_since(&self, mdt: Member, losses: u32) -> bool {
        self.by_mdt.get(&mdt).is_some_and(|loss| loss.durable && losses < loss.losses)
    }

    fn all_settled(&self) -> Vec<TargetLosses> {
        let settled = self.by_mdt.iter().filter(|(_, loss)| loss.durable);
        settled.map(|(mdt, loss)| TargetLosses { mdt: *mdt, losses: loss.losses }).collect()
    }
}

impl Machine {
    /// At start: the losses that were recorded, before the records of attempts are taken over.
    pub(crate) fn load_losses(&mut self, losses: Vec<(u32, LossRec)>, left: Vec<(CrossKey, LeftRec)>) {
        let losses = losses.into_iter().map(|(mdt, record)| (mdt, Loss { losses: record.losses, durable: true }));
        self.cross.losses.by_mdt = losses.collect();
        self.cross.losses.left = left.into_iter().collect();
    }

    /// At start: what follows for an attempt from the losses after it.
    pub(super) fn load_lost(&mut self, attempt: Attempt, participant: bool, record: &CrossRec) {
        let own = self.name.index.0;
        let members = with_losses(&record.members, &record.losses);
        let losses = &self.cross.losses;
        let (lost, others): (Vec<_>, Vec<_>) =
            members.into_iter().partition(|(mdt, count)| losses.is_lost_since(*mdt, *count));
        let cause = match participant {
            true => Some(attempt.mdt).filter(|mdt| losses.is_lost_since(*mdt, record.coordinator_losses)),
            false => lost.first().map(|(mdt, _)| *mdt),
        };
        let Some(cause) = cause else { return };
        let part = record.parts.first().cloned();
        self.leave_for_check(CrossKey::new(participant, &to_wire(attempt)), cause, part);
        if participant {
            let others = others.into_iter().map(|(mdt, _)| mdt).filter(|mdt| *mdt != own);
            self.cross.participant.orphaned(attempt, others);
        } else {
            lost.into_iter().for_each(|(mdt, _)| self.cross.coordinator.lost(attempt, mdt));
        }
    }

    /// Looks for losses in the configuration.
    pub(crate) fn look_for_losses(&mut self) {
        if self.name.kind != TargetKind::Mdt || self.stage != Stage::Serving {
            return;
        }
        for entry in self.config.targets.clone() {
            let Ok(name) = entry.target.parse::<TargetName>() else { continue };
            if name == self.name && entry.losses > self.header.losses {
                self.stop(StopReason::Lost { target: name });
                return;
            }
            if name.kind == TargetKind::Mdt && name != self.name {
                self.hears_of_loss(name.index.0, entry.losses);
            }
        }
    }

    /// Whether a target was declared lost and is not admitted again.
    pub(super) fn is_lost(&self, mdt: Member) -> bool {
        self.entry_of(mdt).is_some_and(|entry| entry.is_lost)
    }

    fn is_known(&self, mdt: Member) -> bool {
        self.entry_of(mdt).is_some()
    }

    fn entry_of(&self, mdt: Member) -> Option<&TargetEntry> {
        let name = TargetName { index: TargetIndex(mdt), ..self.name.clone() }.to_string();
        self.config.targets.iter().find(|entry| entry.target == name)
    }

    /// Somebody says how often a target was declared lost.
    pub(super) fn hears_of_loss(&mut self, mdt: Member, losses: u32) {
        let heard = self.cross.losses.heard(mdt);
        if losses <= heard || mdt == self.name.index.0 {
            return;
        }
        if losses - heard > LOSSES_BETWEEN || !self.is_known(mdt) {
            // It is said by a target, and the configuration will tell whether it is so.
            stdx::mark!("cross.false_loss");
            self.ask_config();
            return;
        }
        stdx::mark!("cross.loss");
        let line = format!("MDT{mdt:04x} was declared lost for good: what was under way with it is settled without it");
        self.log(LogLevel::Warn, line);
        self.peer_away(mdt);
        self.cross.sessions.remove(&mdt);
        self.drop_prepares(|attempt| attempt.mdt == mdt);
        self.cross.aborted.retain(|attempt| attempt.mdt != mdt);
        self.cross.lost.insert(mdt, self.now);
        self.cross.losses.by_mdt.insert(mdt, Loss { losses, durable: false });
        let group = self.write_record(LossRec::key(&mdt), Some(LossRec { losses }.encode_record()));
        self.when_group(group, true, Then::Lost(mdt, losses));
    }

    /// The record of a loss is durable: acts on it.
    pub(super) fn settle_loss(&mut self, mdt: Member, losses: u32) {
        let Some(loss) = self.cross.losses.by_mdt.get_mut(&mdt).filter(|loss| loss.losses == losses) else { return };
        loss.durable = true;
        for attempt in self.cross.coordinator.attempts_with(mdt) {
            let part = self.cross.staged.get(&attempt).and_then(|staged| staged.parts.first().cloned());
            self.leave_for_check(CrossKey::new(false, &to_wire(attempt)), mdt, part);
            self.cross.coordinator.lost(attempt, mdt);
        }
        let cross = &mut self.cross;
        for (attempt, members) in &cross.members {
            if members.iter().any(|(member, count)| *member == mdt && *count < losses) {
                cross.participant.other_lost(mdt, *attempt);
            }
        }
        let own = self.name.index.0;
        for attempt in self.cross.participant.attempts_of(mdt) {
            let prepared = self.cross.prepared.get(&attempt);
            let part = prepared.and_then(|prepared| prepared.record.parts.first().cloned());
            self.leave_for_check(CrossKey::new(true, &to_wire(attempt)), mdt, part);
            let cross = &mut self.cross;
            let Some(members) = cross.members.get(&attempt) else { continue };
            let others = members.iter().filter(|(of, count)| *of != own && !cross.losses.is_lost_since(*of, *count));
            cross.participant.orphaned(attempt, others.map(|(of, _)| *of));
        }
        self.ask_others();
        // If it was admitted again, it may be connected.
        self.session_again(mdt);
    }

    fn leave_for_check(&mut self, key: CrossKey, lost: Member, part: Option<CrossPart>) {
        if self.cross.losses.left.contains_key(&key) {
            return;
        }
        let record = LeftRec { lost, losses: self.cross.losses.heard(lost), done: part.is_none(), part };
        self.write_record(LeftRec::key(&key), Some(record.encode_record()));
        self.cross.losses.left.insert(key, record);
    }

    /// Asks other participants what they have of the attempts of lost coordinators.
    pub(super) fn ask_others(&mut self) {
        for (member, mut attempts) in self.cross.participant.questions() {
            let Some(peer) = self.cross.peers.get_mut(&member) else { continue };
            if !self.cross.coordinator.stands(member) || peer.questioned == Some(peer.session) {
                continue;
            }
            peer.questioned = Some(peer.session);
            attempts.truncate(QUESTION_MAX);
            let wire = attempts.iter().copied().map(to_wire).collect();
            let body = CrossOrphansReq { losses: self.cross.losses.all_settled(), attempts: wire };
            self.ask_peer(member, Opcode::CrossOrphans, &body, Question::Orphans(attempts));
        }
        if self.cross.participant.has_orphans() && !core::mem::replace(&mut self.cross.losses.asks, true) {
            let at = self.now + ASK_AGAIN;
            self.add_timer(at, Timer::AskOthers);
        }
    }

    pub(crate) fn ask_others_again(&mut self) {
        self.cross.losses.asks = false;
        self.ask_others();
    }

    /// Another participant asks what there is of the attempts of a lost coordinator.
    pub(super) fn orphans_asked(&mut self, handle: Handle, frame: &Frame) {
        let Ok(asked) = frame.decode::<CrossOrphansReq>() else {
            self.refuse(handle, &frame.header, Errno::EPROTO);
            return;
        };
        for TargetLosses { mdt, losses } in asked.losses {
            self.hears_of_loss(mdt, losses);
            if mdt != self.name.index.0 && self.cross.losses.heard(mdt) < losses {
                self.refuse(handle, &frame.header, Errno::EAGAIN);
                return;
            }
        }
        self.patience_for(handle, &frame.header);
        self.when_group(self.newest_group(), true, Then::OrphansAsked(handle, frame.header, asked.attempts));
    }

    pub(super) fn answer_orphans(&mut self, handle: Handle, asked: &Header, attempts: &[CrossAttempt]) {
        let mut body = CrossOrphansRep::default();
        for attempt in attempts {
            match self.cross.participant.remains(from_wire(attempt)) {
                Has::Prepared => body.prepared.push(*attempt),
                Has::Done => body.done.push(*attempt),
                Has::Nothing => {}
            }
        }
        let frame = Frame { header: reply_header(asked), body: body.encode_to_vec().into(), ..Frame::default() };
        self.send_reply(handle, frame);
    }

    pub(super) fn orphans_answered(&mut self, member: Member, asked: &[Attempt], rep: &CrossOrphansRep) {
        for attempt in asked {
            let wire = to_wire(*attempt);
            let has = match (rep.prepared.contains(&wire), rep.done.contains(&wire)) {
                (true, _) => Has::Prepared,
                (_, true) => Has::Done,
                _ => Has::Nothing,
            };
            self.cross.participant.other_has(member, *attempt, has);
        }
    }

    /// What a session of this target with a participant begins with; `None` while a loss of it is not settled.
    pub(super) fn session_request(&self, mdt: Member, session: u64) -> Option<CrossSessionReq> {
        let known_losses = self.cross.losses.settled(mdt)?;
        let (own, instance, losses) = (self.name.index.0, self.cross.instance, self.header.losses);
        Some(CrossSessionReq { mdt: own, session, instance, losses, known_losses })
    }

    /// Whether a coordinator's session may begin.
    pub(super) fn may_begin(&mut self, asked: &CrossSessionReq) -> Result<(), Errno> {
        if asked.known_losses > self.header.losses {
            self.was_declared_lost(asked.mdt);
            return Err(Errno::EAGAIN);
        }
        if asked.losses < self.cross.losses.heard(asked.mdt) {
            stdx::mark!("cross.lost_refused");
            return Err(Errno::EPERM);
        }
        self.hears_of_loss(asked.mdt, asked.losses);
        let is_settled = self.cross.losses.settled(asked.mdt) == Some(asked.losses);
        if asked.known_losses < self.header.losses || !is_settled {
            stdx::mark!("cross.loss_first");
            return Err(Errno::EAGAIN);
        }
        Ok(())
    }

    /// Another target says that this one was declared lost. The MGS will say so, too, and then it stops.
    fn was_declared_lost(&mut self, mdt: Member) {
        stdx::mark!("cross.lost_itself");
        if !core::mem::replace(&mut self.cross.losses.is_told, true) {
            let line = format!(
                "MDT{mdt:04x} says that this target was declared lost: stop it, start it once with '-o abort_recov_mdt', and check \
                 the file system with lfsck"
            );
            self.log(LogLevel::Error, line);
        }
    }

    pub(super) fn refuse_session(&mut self, handle: Handle, asked: &Header, errno: Errno) {
        let body = CrossSessionRep { losses: self.header.losses, ..CrossSessionRep::default() };
        let header = Header { status: -errno.raw(), ..reply_header(asked) };
        self.send_reply(handle, Frame { header, body: body.encode_to_vec().into(), ..Frame::default() });
    }

    /// A participant has refused to begin a session.
    pub(super) fn session_refused(&mut self, mdt: Member, errno: Errno, losses: u32) {
        match errno {
            Errno::EAGAIN => self.hears_of_loss(mdt, losses),
            Errno::EPERM => self.was_declared_lost(mdt),
            _ => {
                let line = format!("MDT{mdt:04x} takes part in no changes over several metadata targets: {errno}");
                self.log(LogLevel::Warn, line);
                return;
            }
        }
        self.session_later(mdt);
    }

    /// Tries to begin a session with another target in a while.
    pub(super) fn session_later(&mut self, mdt: Member) {
        let Some(peer) = self.cross.peers.get_mut(&mdt) else { return };
        if !core::mem::replace(&mut peer.again, true) {
            let at = self.now + ASK_AGAIN;
            self.add_timer(at, Timer::Session(mdt));
        }
    }

    /// The time to try a session again has come.
    pub(crate) fn session_timer(&mut self, mdt: Member) {
        if let Some(peer) = self.cross.peers.get_mut(&mdt) {
            peer.again = false;
        }
        self.session_again(mdt);
    }

    /// Tries to begin a session, unless one stands.
    fn session_again(&mut self, mdt: Member) {
        let stands = self.cross.coordinator.stands(mdt);
        if !stands && self.cross.peers.get(&mdt).is_some_and(|peer| self.is_upstream_full(peer.upstream)) {
            self.peer_connected(mdt);
        }
    }

    /// The changes that were under way with a lost target, one a line.
    pub(crate) fn changes_of_lost(&self) -> String {
        let line = |(key, record): (&CrossKey, &LeftRec)| {
            let attempt = Attempt { mdt: key.mdt, instance: key.instance, serial: key.serial };
            let role = if key.participant { "participant" } else { "coordinator" };
            let state = if record.done { "applied" } else { "under way" };
            let objects: Vec<String> =
                record.part.iter().flat_map(proto::msg::CrossPart::objects).map(|fid| fid.to_string()).collect();
            let objects = objects.join(" ");
            format!("{attempt}: {role}, {state} when MDT{:04x} was lost; {objects}", record.lost)
                .trim_end_matches("; ")
                .to_owned()
        };
        self.cross.losses.left.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

impl<S: Service> Target<S> {
    /// The MGS refuses this target, which was declared lost: it forgets what it has of changes over several targets, and
    /// registers again when that is durable. It serves nobody yet. Returns whether it may.
    pub(crate) fn is_admitted(&mut self, losses: u32) -> bool {
        let m = &mut self.m;
        if !m.options.abort_recovery_mdt || m.stage != Stage::Registering || losses <= m.header.losses {
            return false;
        }
        stdx::mark!("cross.admitted");
        let line = "this target was declared lost and is admitted again: it gives up what it has of changes over several metadata \
                    targets; check the file system with lfsck";
        m.log(LogLevel::Warn, line.to_owned());
        m.header.losses = losses;
        m.header_dirty();
        let coordinator = core::mem::take(&mut m.cross.coordinator);
        let participant = core::mem::take(&mut m.cross.participant);
        m.cross.staged.clear();
        m.cross.prepared.clear();
        m.cross.members.clear();
        m.cross.by_request.clear();
        let own = coordinator.attempts().map(|attempt| (false, attempt));
        for (participant, attempt) in own.chain(participant.attempts().map(|attempt| (true, attempt))) {
            m.cross.keys.release(attempt);
            m.write_record(key_of(participant, attempt), None);
        }
        let group = m.newest_group();
        if let Some(then) = m.when_durable(group, Then::Register) {
            self.then(then);
        }
        true
    }
}
