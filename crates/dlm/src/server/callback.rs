//! What the target asks of holders: to give a lock back, to say what an object looks like now. And who does not answer.
//!
//! At most one glimpse of a lock is on its way to its holder. Whoever asks meanwhile is served by the next one, sent when the
//! answer comes: an answer that left before the question may be older than something the asker already knows. An answer is for its
//! connection: over the next one the holder is asked again, and answers as things are then.
//!
//! Glimpses of many locks do not all leave at once for one holder: on a new connection [`GLIMPSES_FIRST`] may be on their way, and one
//! more for each that is answered there, so their number doubles with each turn. A listing may ask a writer about thousands of files. If
//! the connection breaks under them, those that were answered count, and the rest is asked at the next one. A question that has not left
//! is due no later than one that has. Blocking callbacks do all leave at once: before a holder gives a lock back it may have to wait for
//! somebody who waits for another of its locks. A glimpse it answers at once.
//!
//! A holder that changes nothing any more may answer that it holds its lock to read from now on: then nobody need ask again, and
//! whoever reads can have a lock of its own.

use std::collections::BTreeMap;

use proto::msg::{BlCallback, GlCallback, GlReply, LockMode, Lvb, Resource, ResourceKind, bits};
use stdx::Instant;

use super::{Glimpsed, LockEvent, Locks};
use crate::mode::{covers, writes};
use crate::part::Part;
use crate::{ExportId, WaiterId};

/// However busy a holder shows itself, so many times-out are the longest that it may keep a lock.
const PATIENCE: u32 = 30;
/// And so many if it only connects again and again.
const PATIENCE_IDLE: u32 = 3;
/// One that has had no connection for a whole time-out when it is asked gets this part of another.
pub(super) const AWAY_PART: u32 = 10;

/// So many glimpses may be on their way to a holder that has answered none on its connection.
pub(super) const GLIMPSES_FIRST: u32 = 16;

/// A blocking callback without an answer.
pub(super) struct Call {
    wanted: Part,
    mode: LockMode,
    first: Instant,
    deadline: Instant,
}

/// A glimpse without an answer.
pub(super) struct Asked {
    serial: u64,
    first: Instant,
    deadline: Instant,
    waiters: Vec<WaiterId>,
    /// Who came after the question had left.
    next: Vec<WaiterId>,
}

/// The glimpses of one holder's locks that are not answered.
#[derive(Default)]
pub(super) struct Questions {
    /// Those that are on their way.
    sent: u32,
    /// Those that are over since it connected.
    over: u32,
    /// Those that have not left yet: by serial, the lock's handle.
    unsent: BTreeMap<u64, u64>,
}

impl Questions {
    /// One is over: it was answered, or its lock is gone.
    fn end(&mut self, serial: u64) {
        if self.unsent.remove(&serial).is_none() {
            self.sent -= 1;
        }
        self.over = self.over.saturating_add(1);
    }

    /// The lock that the next is about, if it may leave now.
    fn next(&mut self) -> Option<u64> {
        let first = self.unsent.first_entry()?;
        if self.sent >= GLIMPSES_FIRST.saturating_add(self.over) {
            stdx::mark!("dlm.glimpse.later");
            return None;
        }
        self.sent += 1;
        Some(first.remove())
    }
}

/// What a waiter learned about a resource.
pub(super) struct GlimpseState {
    resource: Resource,
    pending: u32,
    /// By lock. A holder may answer that it knows nothing better.
    answers: Vec<(u64, Option<Lvb>)>,
    /// It was cut when some answers had come, which may tell what was before.
    is_cut: bool,
}

impl Locks {
    /// Asks for a lock back, once.
    pub(super) fn call_back(&mut self, i: u32, mode: LockMode, wanted: Part) {
        if self.locks[i].call.is_some() {
            return;
        }
        let deadline = self.first_deadline(self.locks[i].export);
        let lock = &mut self.locks[i];
        lock.call = Some(Box::new(Call { wanted, mode, first: self.now, deadline }));
        let (export, handle) = (lock.export, lock.handle);
        self.timers.insert((deadline, handle, false));
        self.exports.entry(export).or_default().calls.insert(handle);
        self.counters.called_back += 1;
        self.emit_call(i);
    }

    /// By when a holder must answer what it is asked now. The time since its connection broke counts: a client that died costs
    /// whoever meets its locks one time-out in all, not one for each target and each lock.
    fn first_deadline(&self, export: ExportId) -> Instant {
        let timeout = self.settings.lock_timeout;
        let full = self.now + timeout;
        match self.exports.get(&export).and_then(|state| state.away) {
            Some(away) => full.min((away + timeout).max(self.now + timeout / AWAY_PART)),
            None => full,
        }
    }

    /// The export's connection is gone. It may come back ([`resend_callbacks`](Locks::resend_callbacks)).
    pub fn disconnected(&mut self, now: Instant, export: ExportId) {
        if let Some(state) = self.exports.get_mut(&export) {
            state.away.get_or_insert(now);
        }
    }

    fn emit_call(&mut self, i: u32) {
        let lock = &self.locks[i];
        let Some(call) = &lock.call else { return };
        let callback = BlCallback {
            handle: lock.handle,
            cookie: lock.cookie,
            resource: self.resources[lock.res].key,
            wanted: Some(call.wanted.policy()),
            wanted_mode: call.mode as i32,
        };
        self.events.push_back(LockEvent::Blocking { export: lock.export, callback });
    }

    /// Sends those glimpses of an export's locks that may leave now.
    fn emit_glimpses(&mut self, export: ExportId) {
        while let Some(handle) = self.exports.get_mut(&export).and_then(|state| state.questions.next()) {
            let Some(lock) = self.by_handle(handle).map(|i| &self.locks[i]) else { continue };
            let Some(asked) = &lock.asked else { continue };
            let callback = GlCallback {
                handle: lock.handle,
                cookie: lock.cookie,
                resource: self.resources[lock.res].key,
                serial: asked.serial,
            };
            self.events.push_back(LockEvent::Glimpse { export, callback });
        }
    }

    /// A lock goes: nothing is expected of its holder any more.
    pub(super) fn settle_callbacks(&mut self, i: u32) {
        let lock = &mut self.locks[i];
        let (export, handle, r) = (lock.export, lock.handle, lock.res);
        let call = lock.call.take();
        let asked = lock.asked.take();
        if call.is_none() && asked.is_none() {
            return;
        }
        if let Some(call) = call {
            self.timers.remove(&(call.deadline, handle, false));
            self.counters.called_back -= 1;
        }
        if let Some(state) = self.exports.get_mut(&export) {
            state.calls.remove(&handle);
            if let Some(asked) = &asked {
                state.questions.end(asked.serial);
            }
        }
        if let Some(asked) = asked {
            self.timers.remove(&(asked.deadline, handle, true));
            self.emit_glimpses(export);
            // What the holder knew of this lock's part, it has written back before it gave the lock up, or it is lost. Of another part
            // it may know more: then it is asked again, for an answer counts as long as its lock is there.
            let resource = self.resources[r].key;
            let knows_more = |&other: &u32| {
                let other_lock = &self.locks[other];
                other != i && other_lock.export == export && writes(other_lock.mode)
            };
            let said = self.resources[r].granted.iter().any(knows_more).then_some((handle, None));
            for waiter in asked.waiters.into_iter().chain(asked.next) {
                self.answer(waiter, &resource, said);
            }
        }
    }

    /// Asks every other export that may be changing the object for what it looks like there: one lock of each, the one
    /// that reaches highest. Revokes nothing. Called again by the operation's next run, it gives the answers.
    ///
    /// An answer is as good as the lock under which it was given, and as the object was then: if the lock is gone, or the object was made
    /// smaller ([`cut`](Locks::cut)), what its holder knew lies in the object by now, or is lost, and who holds locks now is asked.
    pub fn glimpse(&mut self, now: Instant, waiter: WaiterId, resource: Resource, exclude: ExportId) -> Glimpsed {
        let lists = self.glimpses.get(&waiter);
        if let Some(at) = lists.and_then(|list| list.iter().position(|state| state.resource == resource))
            && let Some(known) = self.glimpsed(waiter, at)
        {
            return known;
        }
        let Some(r) = self.resource(&resource) else { return Glimpsed::Nothing };
        let holders = self.writers(r, exclude);
        if holders.is_empty() {
            return Glimpsed::Nothing;
        }
        self.now = now;
        let state = GlimpseState { resource, pending: holders.len() as u32, answers: Vec::new(), is_cut: false };
        self.glimpses.entry(waiter).or_default().push(state);
        for i in holders {
            match &mut self.locks[i].asked {
                Some(asked) => asked.next.push(waiter),
                None => self.ask(i, vec![waiter]),
            }
        }
        Glimpsed::Waiting
    }

    /// What a waiter has learned; `None`, and forgotten, if it is too old.
    fn glimpsed(&mut self, waiter: WaiterId, at: usize) -> Option<Glimpsed> {
        let state = &self.glimpses.get(&waiter)?[at];
        if state.pending > 0 {
            return Some(Glimpsed::Waiting);
        }
        let held = state.answers.iter().all(|(handle, _)| self.by_handle(*handle).is_some());
        if held && !state.is_cut {
            return Some(Glimpsed::Done(state.answers.iter().filter_map(|(_, lvb)| *lvb).collect()));
        }
        stdx::mark!("dlm.glimpse.too-old");
        self.glimpses.get_mut(&waiter)?.swap_remove(at);
        None
    }

    /// An object is made smaller: what holders of its locks have answered so far may tell a size from before. They are asked again.
    pub fn cut(&mut self, resource: &Resource) {
        for state in self.glimpses.values_mut().flatten() {
            state.is_cut |= state.resource == *resource && !state.answers.is_empty();
        }
    }

    /// A holder has written back, and says that the object is at least so large with what it has. That counts for requests that wait,
    /// whether it has answered them with less before, or was not asked, because its lock came later: what it has sent may be
    /// a part of what it has, and that is a size that nobody has made.
    ///
    /// ```text
    /// A answers 10 · A's programs write up to 30 · A writes back up to 20 of it · B answers 0: it is 30 large, not 20
    /// B is asked · C gets a lock, writes up to 30, writes back up to 20 of it · B answers 0: the same
    /// ```
    pub fn wrote(&mut self, export: ExportId, resource: &Resource, size: u64) {
        if self.glimpses.is_empty() {
            return;
        }
        let Some(r) = self.resource(resource) else { return };
        let (by_handle, locks) = (&self.by_handle, &self.locks);
        let is_of =
            |handle: &u64| by_handle.get(handle, |i| locks[i].handle).is_some_and(|i| locks[i].export == export);
        let mut held = self.resources[r].granted.iter().map(|&i| &locks[i]);
        let held = held.find(|lock| lock.export == export && writes(lock.mode)).map(|lock| lock.handle);
        for state in self.glimpses.values_mut().flatten().filter(|state| state.resource == *resource) {
            match (state.answers.iter_mut().find(|(handle, _)| is_of(handle)), held) {
                (Some((_, lvb)), _) => {
                    let lvb = lvb.get_or_insert_default();
                    if size > lvb.size {
                        stdx::mark!("dlm.glimpse.raised");
                        lvb.size = size;
                    }
                }
                (None, Some(handle)) => {
                    stdx::mark!("dlm.glimpse.told");
                    state.answers.push((handle, Some(Lvb { size, ..Lvb::default() })));
                }
                (None, None) => {}
            }
        }
    }

    /// One lock of each export that may change size or times, by export.
    fn writers(&self, r: u32, exclude: ExportId) -> Vec<u32> {
        let res = &self.resources[r];
        let dom = res.key.kind == ResourceKind::Inode as i32;
        let mut best: BTreeMap<ExportId, ((u64, u64), u32)> = BTreeMap::new();
        // Who lets others read writes nothing.
        let all = if res.modes.any_incompatible(LockMode::Pr) { &res.granted[..] } else { &[] };
        for &i in all {
            let lock = &self.locks[i];
            let reach = match lock.part {
                Part::Extent(e) => (e.end, e.start),
                Part::Bits(b) if dom && b & bits::DOM != 0 => (0, lock.handle),
                Part::Bits(_) => continue,
            };
            if lock.export == exclude || !writes(lock.mode) {
                continue;
            }
            let slot = best.entry(lock.export).or_insert((reach, i));
            if reach > slot.0 {
                *slot = (reach, i);
            }
        }
        best.into_values().map(|(_, i)| i).collect()
    }

    fn ask(&mut self, i: u32, waiters: Vec<WaiterId>) {
        let serial = self.draw();
        let deadline = self.first_deadline(self.locks[i].export);
        let lock = &mut self.locks[i];
        let (export, handle) = (lock.export, lock.handle);
        lock.asked = Some(Box::new(Asked { serial, first: self.now, deadline, waiters, next: Vec::new() }));
        self.timers.insert((deadline, handle, true));
        let state = self.exports.entry(export).or_default();
        state.calls.insert(handle);
        state.questions.unsent.insert(serial, handle);
        self.emit_glimpses(export);
    }

    /// A holder's answer. One that answers no open question is ignored. Callers leave out one that was made for an earlier connection: the
    /// question has been sent again ([`resend_callbacks`](Locks::resend_callbacks)).
    pub fn glimpse_reply(&mut self, now: Instant, export: ExportId, reply: &GlReply) {
        self.now = now;
        let Some(i) = self.by_handle(reply.handle).filter(|&i| self.answers(i, export, reply)) else { return };
        let lock = &mut self.locks[i];
        let Some(asked) = lock.asked.take() else { return };
        let resource = self.resources[lock.res].key;
        let called = lock.call.is_some();
        if let Ok(mode) = LockMode::try_from(reply.mode) {
            self.weaken(i, mode);
        }
        self.timers.remove(&(asked.deadline, reply.handle, true));
        if let Some(state) = self.exports.get_mut(&export) {
            state.questions.end(asked.serial);
            if asked.next.is_empty() && !called {
                state.calls.remove(&reply.handle);
            }
        }
        if !asked.next.is_empty() {
            self.ask(i, asked.next);
        }
        self.emit_glimpses(export);
        for waiter in asked.waiters {
            self.answer(waiter, &resource, Some((reply.handle, reply.lvb)));
        }
    }

    /// Whether this is an answer to the question that is open about a lock.
    fn answers(&self, i: u32, export: ExportId, reply: &GlReply) -> bool {
        let lock = &self.locks[i];
        lock.export == export && lock.asked.as_ref().is_some_and(|asked| asked.serial == reply.serial)
    }

    /// Its holder has a lock in this mode from now on, if that is a weaker one: who waits for no more may have it.
    fn weaken(&mut self, i: u32, mode: LockMode) {
        let lock = &self.locks[i];
        let old = lock.mode;
        if old == mode || !covers(old, mode) {
            return;
        }
        stdx::mark!("dlm.lock.weakened");
        let (r, part) = (lock.res, lock.part);
        self.reshape(i, mode, part);
        self.run_queue(r);
    }

    /// One holder's answer to one waiter; `None` if there is no holder any more.
    fn answer(&mut self, waiter: WaiterId, resource: &Resource, said: Option<(u64, Option<Lvb>)>) {
        // A waiter that was released meanwhile wants no answers.
        let Some(list) = self.glimpses.get_mut(&waiter) else { return };
        let Some(state) = list.iter_mut().find(|state| state.resource == *resource) else { return };
        if state.pending == 0 {
            return;
        }
        state.pending -= 1;
        state.answers.extend(said);
        if list.iter().all(|state| state.pending == 0) {
            self.events.push_back(LockEvent::GlimpseDone { waiter });
        }
    }

    /// All answers that a waiter's holders gave, which are then forgotten; `None` while some are missing, and if
    /// nobody was asked.
    pub fn take_glimpse(&mut self, waiter: WaiterId) -> Option<Vec<Lvb>> {
        if self.glimpses.get(&waiter)?.iter().any(|state| state.pending > 0) {
            return None;
        }
        let list = self.glimpses.remove(&waiter)?;
        Some(list.into_iter().flat_map(|state| state.answers).filter_map(|(_, lvb)| lvb).collect())
    }

    /// After a reconnect: sends what is unanswered again. Its holder gets time anew, as the first sending may never have
    /// reached it, but the time since then counts: who does nothing but connect again loses its locks.
    pub fn resend_callbacks(&mut self, now: Instant, export: ExportId) {
        self.now = now;
        let Some(state) = self.exports.get_mut(&export) else { return };
        state.overdue = false;
        state.away = None;
        self.tell_limit_again(export);
        let list = self.extend(export, PATIENCE_IDLE);
        let glimpse = |&i: &u32| Some((self.locks[i].asked.as_ref()?.serial, self.locks[i].handle));
        let unsent = list.iter().filter_map(glimpse).collect();
        if let Some(state) = self.exports.get_mut(&export) {
            state.questions = Questions { unsent, ..Questions::default() };
        }
        for i in list {
            self.emit_call(i);
        }
        self.emit_glimpses(export);
    }

    /// The export is at work under its locks (it writes back what a callback asked for): its deadlines begin anew.
    pub fn progress(&mut self, now: Instant, export: ExportId) {
        let Some(state) = self.exports.get_mut(&export) else { return };
        if state.calls.is_empty() || now.since(state.progress) < self.settings.lock_timeout / 8 {
            return;
        }
        state.progress = now;
        self.now = now;
        self.extend(export, PATIENCE);
    }

    /// Moves the deadlines of an export's callbacks, to `patience` times-out after their first sending at the latest; which
    /// locks those are.
    fn extend(&mut self, export: ExportId, patience: u32) -> Vec<u32> {
        let Some(state) = self.exports.get(&export) else { return Vec::new() };
        let list: Vec<u32> = state.calls.iter().filter_map(|handle| self.by_handle(*handle)).collect();
        let timeout = self.settings.lock_timeout;
        let now = self.now;
        let until = |first: Instant, before: Instant| before.max((now + timeout).min(first + timeout * patience));
        for &i in &list {
            let lock = &mut self.locks[i];
            if let Some(call) = &mut lock.call {
                self.timers.remove(&(call.deadline, lock.handle, false));
                call.deadline = until(call.first, call.deadline);
                self.timers.insert((call.deadline, lock.handle, false));
            }
            if let Some(asked) = &mut lock.asked {
                self.timers.remove(&(asked.deadline, lock.handle, true));
                asked.deadline = until(asked.first, asked.deadline);
                self.timers.insert((asked.deadline, lock.handle, true));
            }
        }
        list
    }

    /// When [`tick`](Locks::tick) has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.first().map(|&(at, ..)| at)
    }

    /// Says who is overdue.
    pub fn tick(&mut self, now: Instant) {
        self.now = now;
        while let Some(&(at, handle, glimpse)) = self.timers.first()
            && at <= now
        {
            self.timers.remove(&(at, handle, glimpse));
            let Some(i) = self.by_handle(handle) else { continue };
            let lock = &self.locks[i];
            let (export, resource) = (lock.export, self.resources[lock.res].key);
            let call = lock.call.as_ref().map(|call| call.first);
            let first = if glimpse { lock.asked.as_ref().map(|asked| asked.first) } else { call };
            if let Some(state) = self.exports.get_mut(&export)
                && !core::mem::replace(&mut state.overdue, true)
            {
                self.events.push_back(LockEvent::Overdue { export, resource, glimpse, asked: first.unwrap_or(at) });
            }
        }
    }
}
