//! A target that is lost for good, and those that survive it.

use super::making::Making;
use super::*;

impl World {
    pub(super) fn is_lost(&self, member: Member) -> bool {
        self.lost == Some(member)
    }

    /// What can happen because of a loss.
    pub(super) fn loss_steps(&self, scenario: &Scenario) -> Vec<Step> {
        let members = 0..self.targets.len() as Member;
        let Some(lost) = self.lost else {
            return if scenario.loses { members.map(Step::Lose).collect() } else { Vec::new() };
        };
        let survivors: Vec<Member> = members.filter(|member| *member != lost).collect();
        let mut steps = Vec::new();
        for member in survivors {
            if !self.at(member).heard {
                steps.push(Step::Hear(member));
                continue;
            }
            let early = scenario.flaw == Flaw::AnswersEarly;
            let questions = self.at(member).participant.questions().into_keys();
            steps.extend(questions.filter(|to| self.at(*to).heard || early).map(|to| Step::Ask(member, to)));
        }
        for (change, client) in self.clients.iter().enumerate() {
            let wanted = &scenario.changes[change];
            let at = self.at(wanted.coordinator());
            let is_free = !at.coordinator.attempts().any(|attempt| change_of(attempt) == change);
            let asks = matches!(client, Client::Asks | Client::MayAsk) && !at.memory.done.contains_key(&change);
            if asks && at.heard && is_free && wanted.participants().contains(&lost) {
                steps.push(Step::Refuse(change));
            }
        }
        steps
    }

    /// Whether a client is free to ask again or not.
    pub(super) fn may_ask(&self, scenario: &Scenario) -> bool {
        let is_there = |change: usize| !self.is_lost(scenario.changes[change].coordinator());
        self.clients.iter().enumerate().any(|(change, client)| *client == Client::MayAsk && is_there(change))
    }
}

impl Making<'_> {
    pub(super) fn lose(&mut self, member: Member) {
        self.world.lost = Some(member);
        *self.at(member) = Target::default();
        for at in 0..self.world.links.len() {
            if self.world.links[at].from == member {
                // What was sent may still arrive.
                let link = self.link(at);
                (link.session, link.shared) = (Session::Ended, false);
                link.back.clear();
            } else if self.world.links[at].to == member {
                self.link(at).forth.clear();
            }
        }
    }

    pub(super) fn hear(&mut self, member: Member) {
        let Some(lost) = self.world.lost else { return };
        for at in 0..self.world.links.len() {
            let (from, to) = (self.world.links[at].from, self.world.links[at].to);
            if (from, to) == (member, lost) {
                self.end_session(at, true);
            } else if (from, to) == (lost, member) {
                let link = self.link(at);
                link.known = false;
                link.forth.clear();
            }
        }
        let target = self.at(member);
        target.owes.remove(&lost);
        let waiting: Vec<_> = target.parked.iter().chain(&target.interests).copied().collect();
        for attempt in waiting.into_iter().filter(|attempt| attempt.mdt == lost) {
            target.drop_prepare(attempt);
        }
        self.run(member);
        // That it has heard is durable, and so is what came before.
        self.flush(member);
        self.at(member).heard = true;
        self.settle(member);
        self.run(member);
    }

    /// What follows from the loss for the attempts of a target.
    pub(super) fn settle(&mut self, member: Member) {
        let (Some(lost), scenario) = (self.world.lost, self.scenario) else { return };
        let had_nothing = self.is_flawed(Flaw::LostHadNothing);
        let target = self.at(member);
        for attempt in target.coordinator.attempts_with(lost) {
            match had_nothing {
                true => target.coordinator.report(lost, &[], &[]),
                false => target.coordinator.lost(attempt, lost),
            }
        }
        for attempt in target.participant.attempts_of(lost) {
            let others = scenario.changes[change_of(attempt)].participants().into_iter().filter(|of| *of != member);
            target.participant.orphaned(attempt, others);
        }
    }

    pub(super) fn ask(&mut self, from: Member, to: Member) {
        let asked = self.world.at(from).participant.questions().remove(&to).unwrap_or_default();
        // The answer waits until everything that the other one has is durable.
        self.flush(to);
        for attempt in asked {
            let has = self.world.at(to).participant.remains(attempt);
            self.at(from).participant.other_has(to, attempt, has);
        }
        self.run(from);
    }
}
