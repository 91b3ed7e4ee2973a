//! What a step of the search makes of a world: the tables are fed with what happens, and their todos carried out.

use super::*;

/// A step that is being made.
pub(super) struct Making<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) world: World,
    wrong: Option<&'static str>,
}

/// The world after a step, and what was wrong with the step.
pub(super) fn after(scenario: &Scenario, world: &World, step: Step) -> (World, Option<&'static str>) {
    let mut making = Making { scenario, world: world.clone(), wrong: None };
    making.make(step);
    (making.world, making.wrong)
}

impl Making<'_> {
    fn make(&mut self, step: Step) {
        match step {
            Step::Start(change) => self.start(change),
            Step::Answer(change) => {
                let at = self.world.at(self.scenario.changes[change].coordinator());
                self.world.clients[change] = Client::Succeeded(at.memory.done[&change]);
            }
            Step::Replay(change) => self.replay(change),
            Step::Leave(change) => self.world.clients[change] = Client::Left,
            Step::GiveUp(change) => {
                let Client::Runs(attempt, _) = self.world.clients[change] else { return };
                self.world.give_ups += 1;
                self.at(attempt.mdt).coordinator.give_up(attempt);
                self.run(attempt.mdt);
            }
            Step::Flush(member) => self.flush(member),
            Step::Serve(member) => self.serve(member),
            Step::Open(link) => {
                let link = self.link(link);
                link.session = Session::Begins;
                link.forth.push_back(Message::Begin);
            }
            Step::Notice(link) => self.end_session(link, false),
            Step::Forth(link) => self.arrive_forth(link),
            Step::Back(link) => self.arrive_back(link),
            Step::Crash(member, lost) => self.crash(member, lost),
            Step::Break(link, lost) => {
                self.world.breaks += 1;
                self.end_session(link, lost);
            }
            Step::Lose(member) => self.lose(member),
            Step::Hear(member) => self.hear(member),
            Step::Ask(from, to) => self.ask(from, to),
            Step::Refuse(change) => self.world.clients[change] = Client::Refused,
        }
    }

    pub(super) fn at(&mut self, member: Member) -> &mut Target {
        self.world.targets[member as usize].change()
    }

    pub(super) fn link(&mut self, link: usize) -> &mut Link {
        self.world.links[link].change()
    }

    pub(super) fn is_flawed(&self, flaw: Flaw) -> bool {
        self.scenario.flaw == flaw
    }

    fn wrong(&mut self, what: &'static str) {
        self.wrong.get_or_insert(what);
    }

    // --- clients and the coordinator ---

    fn start(&mut self, change: usize) {
        let wanted = &self.scenario.changes[change];
        let mdt = wanted.coordinator();
        let instance = self.world.at(mdt).starts;
        let attempt = (0..)
            .map(|n| Attempt { mdt, instance, serial: n * CHANGES_MAX + change as u64 })
            .find(|attempt| !self.world.mentions(*attempt))
            .expect("a free number");
        let target = self.at(mdt);
        assert_eq!(target.keys.take(attempt, wanted.age, &wanted.parts[0].keys), Taken::Yes);
        target.memory.records.insert(attempt, Record::Staged);
        target.pending.insert((Awaited::Staged, attempt));
        target.coordinator.stage(attempt, &wanted.participants());
        self.world.clients[change] = Client::Runs(attempt, false);
        if self.is_flawed(Flaw::CommitsEarly) {
            self.at(mdt).coordinator.staged_durable(attempt);
        }
        self.run(mdt);
    }

    fn replay(&mut self, change: usize) {
        let Client::Succeeded(attempt) = self.world.clients[change] else { return };
        if !self.at(attempt.mdt).coordinator.replayed(attempt) {
            return self.wrong("a change that was answered is not in doubt when it is replayed");
        }
        self.commit(attempt);
    }

    fn coordinate(&mut self, member: Member, todo: coordinator::Todo) {
        use coordinator::Todo;
        match todo {
            Todo::Prepare(to, attempt) => self.send_forth(member, to, Message::Prepare(attempt)),
            Todo::Tell(to, attempt, outcome) => self.send_forth(member, to, Message::Tell(attempt, outcome)),
            // If not, a replay was first.
            Todo::Commit(attempt) if self.at(member).memory.records.get(&attempt) == Some(&Record::Staged) => {
                self.commit(attempt);
            }
            Todo::Commit(_) => {}
            Todo::DropStaged(attempt) => {
                let early = self.is_flawed(Flaw::EndsEarly);
                let target = self.at(member);
                if target.remove(attempt, (Awaited::Staged, attempt), (Awaited::StagedGone, attempt)) || early {
                    target.coordinator.staged_gone(attempt);
                }
            }
            Todo::Ended(attempt, why) => self.ended(attempt, why),
            Todo::DropDone(attempt) => {
                self.at(member).memory.records.remove(&attempt);
            }
        }
    }

    fn commit(&mut self, attempt: Attempt) {
        let change = change_of(attempt);
        match self.world.clients[change] {
            Client::Runs(of, _) | Client::Succeeded(of) if of == attempt => {}
            Client::Asks => {}
            _ => self.wrong("committed, but the client was told that nothing was done"),
        }
        let early = self.is_flawed(Flaw::ForgetsEarly);
        let target = self.at(attempt.mdt);
        target.keys.release(attempt);
        let record = target.memory.records.insert(attempt, Record::Committed);
        let earlier = target.memory.done.insert(change, attempt);
        target.pending.remove(&(Awaited::Staged, attempt));
        target.pending.insert((Awaited::Committed, attempt));
        target.coordinator.committed(attempt);
        if early {
            target.coordinator.done_durable(attempt);
        }
        if record != Some(Record::Staged) || earlier.is_some() {
            self.wrong("committed twice");
        }
    }

    fn ended(&mut self, attempt: Attempt, why: Why) {
        let change = change_of(attempt);
        self.at(attempt.mdt).keys.release(attempt);
        match (self.world.clients[change], why) {
            (Client::Succeeded(of), _) if of == attempt => self.wrong("a change that was answered is given up"),
            (Client::Runs(of, _), Why::Refused(_)) if of == attempt => self.world.clients[change] = Client::Refused,
            (Client::Runs(of, false), Why::Busy(at)) if of == attempt => {
                self.world.clients[change] = Client::Waits(attempt, at);
            }
            (Client::Runs(of, _), _) if of == attempt => self.world.clients[change] = Client::MayAsk,
            _ => {}
        }
    }

    /// A busy attempt of this coordinator need not wait any longer.
    fn freed(&mut self, of: impl Fn(Attempt) -> bool) {
        for client in &mut self.world.clients {
            match client {
                Client::Runs(attempt, freed) if of(*attempt) => *freed = true,
                Client::Waits(attempt, _) if of(*attempt) => *client = Client::MayAsk,
                _ => {}
            }
        }
    }

    // --- the participant ---

    /// `Prepare` is taken in, or tried again.
    fn prepare(&mut self, member: Member, attempt: Attempt) {
        let change = &self.scenario.changes[change_of(attempt)];
        let part = change.part(member);
        let (early, never_dies) = (self.is_flawed(Flaw::VotesEarly), self.is_flawed(Flaw::NeverDies));
        let target = self.at(member);
        if target.recovers {
            target.parked.insert(attempt);
            return;
        }
        target.parked.remove(&attempt);
        match target.keys.take(attempt, change.age, &part.keys) {
            Taken::Yes if part.refuses => {
                target.keys.release(attempt);
                self.send_back(member, attempt.mdt, Message::Refused(attempt));
            }
            Taken::Yes => {
                target.memory.records.insert(attempt, Record::Prepared);
                target.pending.insert((Awaited::Prepared, attempt));
                target.participant.prepared(attempt);
                if early {
                    target.participant.prepared_durable(attempt);
                }
            }
            Taken::Wait => {
                target.parked.insert(attempt);
            }
            Taken::Busy => {
                target.keys.interested(attempt, change.age, &part.keys);
                if never_dies {
                    target.parked.insert(attempt);
                } else {
                    target.interests.insert(attempt);
                    self.send_back(member, attempt.mdt, Message::Busy(attempt));
                }
            }
        }
    }

    fn participate(&mut self, member: Member, todo: participant::Todo) {
        use participant::Todo;
        match todo {
            Todo::Vote(attempt) => self.send_back(member, attempt.mdt, Message::Vote(attempt)),
            Todo::Applied(attempt) => self.send_back(member, attempt.mdt, Message::Applied(attempt)),
            Todo::Gone(attempt) => self.send_back(member, attempt.mdt, Message::Gone(attempt)),
            Todo::Release(attempt) => self.at(member).keys.release(attempt),
            Todo::Apply(attempt) => self.apply(member, attempt),
            Todo::DropPrepared(attempt) => {
                let early = self.is_flawed(Flaw::ReleasesEarly);
                let target = self.at(member);
                if target.remove(attempt, (Awaited::Prepared, attempt), (Awaited::PreparedGone, attempt)) || early {
                    target.participant.prepared_gone(attempt);
                }
            }
            Todo::DropDone(attempt) => {
                let early = self.is_flawed(Flaw::GoneEarly);
                let target = self.at(member);
                if target.remove(attempt, (Awaited::Applied, attempt), (Awaited::AppliedGone, attempt)) || early {
                    target.participant.done_gone(attempt);
                }
            }
        }
    }

    fn apply(&mut self, member: Member, attempt: Attempt) {
        let change = change_of(attempt);
        let refused = matches!(self.world.clients[change], Client::Refused | Client::MayAsk | Client::Left);
        if refused && !self.world.is_lost(attempt.mdt) {
            self.wrong("applied, but the client was told that nothing was done");
        }
        let target = self.at(member);
        target.keys.release(attempt);
        let record = target.memory.records.insert(attempt, Record::Applied);
        let earlier = target.memory.done.insert(change, attempt);
        target.pending.remove(&(Awaited::Prepared, attempt));
        target.pending.insert((Awaited::Applied, attempt));
        target.participant.applied(attempt);
        if record != Some(Record::Prepared) || earlier.is_some() {
            self.wrong("applied twice, or without a prepared record");
        }
    }

    /// Reports to coordinators whose session begins, as soon as all that the report is about is durable.
    fn report(&mut self, member: Member) {
        let early = self.is_flawed(Flaw::ReportsEarly);
        for coordinator in self.world.at(member).owes.clone() {
            let target = self.at(member);
            if target.pending.iter().any(|(_, attempt)| attempt.mdt == coordinator) && !early {
                continue;
            }
            target.owes.remove(&coordinator);
            let (prepared, done) = target.participant.report(coordinator);
            self.send_back(member, coordinator, Message::Report(prepared, done));
        }
    }

    // --- a target ---

    /// Does what the tables ask for. In recovery nothing is done but replays.
    pub(super) fn run(&mut self, member: Member) {
        loop {
            let target = self.at(member);
            if target.recovers {
                return;
            } else if let Some(woken) = target.keys.poll() {
                self.wake(member, woken);
            } else if let Some(todo) = target.coordinator.poll() {
                self.coordinate(member, todo);
            } else if let Some(todo) = target.participant.poll() {
                self.participate(member, todo);
            } else {
                return;
            }
        }
    }

    fn wake(&mut self, member: Member, woken: Woken) {
        match woken {
            Woken::Request(_) => unreachable!("no request waits"),
            Woken::Free(attempt) if self.at(member).interests.remove(&attempt) => {
                self.send_back(member, attempt.mdt, Message::Free(attempt));
            }
            Woken::Attempt(attempt) | Woken::Free(attempt) => self.prepare(member, attempt),
        }
    }

    pub(super) fn flush(&mut self, member: Member) {
        let alone = self.is_flawed(Flaw::ForgetsAlone);
        let scenario = self.scenario;
        let target = self.at(member);
        target.disk = target.memory.clone();
        for (awaited, attempt) in std::mem::take(&mut target.pending) {
            match awaited {
                Awaited::Staged => target.coordinator.staged_durable(attempt),
                Awaited::StagedGone => target.coordinator.staged_gone(attempt),
                Awaited::Committed => {
                    target.coordinator.done_durable(attempt);
                    if alone {
                        let participants = scenario.changes[change_of(attempt)].participants();
                        participants.into_iter().for_each(|other| target.coordinator.applied(other, attempt));
                    }
                }
                Awaited::Prepared => target.participant.prepared_durable(attempt),
                Awaited::PreparedGone => target.participant.prepared_gone(attempt),
                Awaited::Applied => target.participant.done_durable(attempt),
                Awaited::AppliedGone => target.participant.done_gone(attempt),
            }
        }
        self.run(member);
        self.report(member);
    }

    fn serve(&mut self, member: Member) {
        let target = self.at(member);
        target.recovers = false;
        let parked = target.parked.clone();
        self.run(member);
        parked.into_iter().for_each(|attempt| self.prepare(member, attempt));
        self.run(member);
    }

    fn crash(&mut self, member: Member, lost: Lost) {
        self.world.crashes += 1;
        let scenario = self.scenario;
        for at in 0..self.world.links.len() {
            if self.world.links[at].from == member {
                self.break_link(at, lost);
            } else if self.world.links[at].to == member {
                let link = self.link(at);
                (link.known, link.shared) = (false, false);
                link.forth.clear();
            }
        }
        for (change, client) in self.world.clients.iter_mut().enumerate() {
            let is_its = scenario.changes[change].coordinator() == member;
            if is_its && matches!(client, Client::Runs(..) | Client::Waits(..)) {
                *client = Client::Asks;
            }
        }
        let old = self.at(member);
        let disk = old.disk.clone();
        let mut new = Target {
            starts: old.starts + 1,
            recovers: true,
            memory: disk.clone(),
            disk,
            heard: old.heard,
            ..Target::default()
        };
        for (attempt, record) in &new.disk.records {
            let change = &scenario.changes[change_of(*attempt)];
            if matches!(record, Record::Staged | Record::Prepared) {
                new.keys.hold(*attempt, change.age, &change.part(member).keys);
            }
            match record {
                Record::Staged => new.coordinator.load(*attempt, &change.participants(), false),
                Record::Committed => new.coordinator.load(*attempt, &change.participants(), true),
                Record::Prepared => new.participant.load(*attempt, false),
                Record::Applied => new.participant.load(*attempt, true),
            }
        }
        *old = new;
        if self.world.at(member).heard {
            self.settle(member);
        }
        self.run(member);
    }

    // --- messages ---

    fn send_forth(&mut self, from: Member, to: Member, message: Message) {
        if self.world.is_lost(to) {
            return;
        }
        let link = self.world.link(from, to);
        if self.world.links[link].session == Session::Stands {
            self.link(link).forth.push_back(message);
        }
    }

    /// What belongs to an earlier session is dropped by the coordinator.
    fn send_back(&mut self, from: Member, to: Member, message: Message) {
        if self.world.is_lost(to) {
            return;
        }
        let link = self.world.link(to, from);
        if self.world.links[link].shared {
            self.link(link).back.push_back(message);
        }
    }

    fn break_link(&mut self, at: usize, lost: Lost) {
        let link = self.link(at);
        (link.session, link.shared) = (Session::Ended, false);
        link.back.clear();
        // Some messages still arrive. `Begin` goes with what follows it: its only effect would be to begin a session.
        let begins = link.forth.iter().position(|message| *message == Message::Begin);
        link.forth.truncate(if lost { 0 } else { begins.unwrap_or(usize::MAX) });
    }

    pub(super) fn end_session(&mut self, at: usize, lost: Lost) {
        self.break_link(at, lost);
        let (from, to) = (self.world.links[at].from, self.world.links[at].to);
        let scenario = self.scenario;
        self.at(from).coordinator.session_ended(to);
        self.freed(|attempt| attempt.mdt == from && scenario.changes[change_of(attempt)].participants().contains(&to));
        self.run(from);
    }

    fn arrive_forth(&mut self, at: usize) {
        let Some(message) = self.link(at).forth.pop_front() else { return };
        let (from, to) = (self.world.links[at].from, self.world.links[at].to);
        if message == Message::Begin {
            (self.link(at).known, self.link(at).shared) = (true, true);
            return self.begin(from, to);
        }
        if !self.world.links[at].known {
            return;
        }
        match message {
            Message::Prepare(attempt) => self.prepare(to, attempt),
            Message::Tell(attempt, outcome) => {
                let target = self.at(to);
                match outcome {
                    Outcome::Commit => target.participant.commit(attempt),
                    Outcome::Forget => target.participant.forget(attempt),
                    Outcome::Abort => {
                        target.drop_prepare(attempt);
                        target.participant.abort(attempt);
                    }
                }
            }
            _ => unreachable!("sent to a participant: {message:?}"),
        }
        self.run(to);
        self.report(to);
    }

    /// A session begins: what was sent in the earlier one is dropped, then a report is due.
    fn begin(&mut self, from: Member, to: Member) {
        let keeps = self.is_flawed(Flaw::KeepsPrepares);
        let target = self.at(to);
        let waiting: Vec<_> = target.parked.iter().chain(&target.interests).copied().collect();
        for attempt in waiting.into_iter().filter(|attempt| attempt.mdt == from && !keeps) {
            target.drop_prepare(attempt);
        }
        target.owes.insert(from);
        self.run(to);
        self.report(to);
    }

    fn arrive_back(&mut self, at: usize) {
        let Some(message) = self.link(at).back.pop_front() else { return };
        let (from, to) = (self.world.links[at].from, self.world.links[at].to);
        let coordinator = &mut self.at(from).coordinator;
        match message {
            Message::Report(prepared, done) => {
                coordinator.report(to, &prepared, &done);
                self.link(at).session = Session::Stands;
            }
            Message::Vote(attempt) => coordinator.voted(to, attempt),
            Message::Refused(attempt) => coordinator.refused(to, attempt, Why::Refused(1)),
            Message::Busy(attempt) => coordinator.refused(to, attempt, Why::Busy(to)),
            Message::Applied(attempt) => coordinator.applied(to, attempt),
            Message::Gone(attempt) => coordinator.forgotten(to, attempt),
            Message::Free(attempt) => self.freed(|of| of == attempt),
            Message::Begin | Message::Prepare(_) | Message::Tell(..) => unreachable!("sent back: {message:?}"),
        }
        self.run(from);
    }
}

impl Target {
    /// Removes a record, whose removal is awaited from then on. Returns whether it never left the open group, so that it
    /// is gone at once.
    fn remove(&mut self, attempt: Attempt, written: (Awaited, Attempt), gone: (Awaited, Attempt)) -> bool {
        self.memory.records.remove(&attempt);
        self.pending.remove(&written);
        let is_durable = self.disk.records.contains_key(&attempt);
        if is_durable {
            self.pending.insert(gone);
        }
        !is_durable
    }

    /// `Prepare` does not wait any longer, and what it met is not of interest.
    pub(super) fn drop_prepare(&mut self, attempt: Attempt) {
        if self.parked.remove(&attempt) {
            self.keys.release(attempt);
        }
        self.interests.remove(&attempt);
        self.keys.disinterested(attempt);
    }
}

// --- the search ---
