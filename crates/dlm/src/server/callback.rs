//! Blocking and glimpse callbacks to lock holders, and their deadlines.
//!
//! At most one glimpse of a lock is in flight. Operations that ask meanwhile are served by the next one, which is sent
//! when the reply arrives, because a reply that was sent before the question may be older than something that the asker
//! already knows. A reply is valid on its connection only: after a reconnect the holder is asked again.
//!
//! Glimpses to one holder are sent with a growing window (slow start): on a new connection [`GLIMPSES_FIRST`] may be in
//! flight, plus one for each that was answered on it, so the number doubles with each round trip. A listing may ask a
//! writer about thousands of files. If the connection breaks, answered glimpses count and the rest is sent on the next
//! connection. The deadline of an unsent glimpse is no later than that of a sent one. Blocking callbacks are all sent
//! at once: before a holder cancels a lock it may have to wait for another client, which waits for another lock of this
//! holder. A glimpse is answered immediately.
//!
//! A holder that no longer modifies the object may downgrade its lock to read in its reply. Then no more glimpses are
//! needed, and readers can get locks of their own.

use std::collections::BTreeMap;

use proto::msg::{BlCallback, GlCallback, GlReply, LockMode, Lvb, Resource, ResourceKind, bits};
use stdx::Instant;

use super::{Glimpsed, LockEvent, Locks};
use crate::mode::{covers, writes};
use crate::part::Part;
use crate::{ExportId, WaiterId};

/// Longest time for which a holder that makes progress may keep a lock, in multiples of the timeout.
const PATIENCE: u32 = 30;
/// The same for a holder that only reconnects.
const PATIENCE_IDLE: u32 = 3;
/// A holder that had no connection for a whole timeout when it is asked gets this fraction of another timeout (1/n).
pub(super) const AWAY_PART: u32 = 10;

/// Most glimpses in flight to a holder that has answered none on its connection.
pub(super) const GLIMPSES_FIRST: u32 = 16;

/// An unanswered blocking callback.
pub(super) struct Call {
    wanted: Part,
    mode: LockMode,
    first: Instant,
    deadline: Instant,
}

/// An unanswered glimpse.
pub(super) struct PendingGlimpse {
    serial: u64,
    first: Instant,
    deadline: Instant,
    waiters: Vec<WaiterId>,
    /// Waiters that came after the callback was sent.
    next: Vec<WaiterId>,
}

/// The unanswered glimpses of one holder's locks.
#[derive(Default)]
pub(super) struct GlimpseWindow {
    /// Number in flight.
    sent: u32,
    /// Number completed since it connected.
    over: u32,
    /// Those that are unsent: handle of the lock, by serial.
    unsent: BTreeMap<u64, u64>,
}

impl GlimpseWindow {
    /// A glimpse is complete: it was answered, or its lock is gone.
    fn end(&mut self, serial: u64) {
        if self.unsent.remove(&serial).is_none() {
            self.sent -= 1;
        }
        self.over = self.over.saturating_add(1);
    }

    /// The lock of the next glimpse, if it may be sent now.
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

/// Answers that a waiter has collected about a resource.
pub(super) struct GlimpseState {
    resource: Resource,
    pending: u32,
    /// By lock. None: the holder has no newer values.
    answers: Vec<(u64, Option<Lvb>)>,
    /// The object was truncated after some answers, which may be from before.
    is_cut: bool,
}

impl Locks {
    /// Sends a blocking callback for a lock, once.
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

    /// Deadline of a callback that is sent now. The time since the holder's connection broke counts, so that a dead
    /// client delays others by one timeout in total, and not by one for each target and each lock.
    fn first_deadline(&self, export: ExportId) -> Instant {
        let timeout = self.settings.lock_timeout;
        let full = self.now + timeout;
        match self.exports.get(&export).and_then(|state| state.away) {
            Some(away) => full.min((away + timeout).max(self.now + timeout / AWAY_PART)),
            None => full,
        }
    }

    /// The export lost its connection. It may reconnect ([`resend_callbacks`](Locks::resend_callbacks)).
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

    /// Sends the glimpses of an export's locks that may be sent now.
    fn emit_glimpses(&mut self, export: ExportId) {
        while let Some(handle) = self.exports.get_mut(&export).and_then(|state| state.glimpse_window.next()) {
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

    /// A lock is being removed: ends its callbacks.
    pub(super) fn end_callbacks(&mut self, i: u32) {
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
                state.glimpse_window.end(asked.serial);
            }
        }
        if let Some(asked) = asked {
            self.timers.remove(&(asked.deadline, handle, true));
            self.emit_glimpses(export);
            // Before it cancelled the lock, the holder wrote back what it knew about this part, or that is lost. If it
            // has another write lock, it may know more and is asked again, because an answer is valid only while its
            // lock exists.
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

    /// Sends a glimpse to every other export that may be modifying the object, for that of its locks that reaches
    /// farthest. Revokes nothing. When the operation runs again, the same call returns the answers.
    ///
    /// An answer is valid only while its lock exists and the object was not truncated ([`truncated`](Locks::truncated)). Otherwise
    /// what the holder knew is in the object by now, or is lost, and the present holders are asked.
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

    /// The answers that a waiter has collected; `None` if they are outdated, and then they are dropped.
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

    /// The object is truncated: answers so far may have the earlier size, so the holders are asked again.
    pub fn truncated(&mut self, resource: &Resource) {
        for state in self.glimpses.values_mut().flatten() {
            state.is_cut |= state.resource == *resource && !state.answers.is_empty();
        }
    }

    /// A holder has written back and reported the least size of the object including its buffered data. This raises its
    /// answers to waiting requests, and counts as an answer if it was not asked because its lock is newer. Otherwise
    /// the size of what it has written, which may be only a part of what it has, would be reported, and no program has
    /// ever set that size.
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
                    stdx::mark!("dlm.glimpse.answered_by_write");
                    state.answers.push((handle, Some(Lvb { size, ..Lvb::default() })));
                }
                (None, None) => {}
            }
        }
    }

    /// For each export that may change size or times, one of its locks; ordered by export.
    fn writers(&self, r: u32, exclude: ExportId) -> Vec<u32> {
        let res = &self.resources[r];
        let dom = res.key.kind == ResourceKind::Inode as i32;
        let mut best: BTreeMap<ExportId, ((u64, u64), u32)> = BTreeMap::new();
        // A lock that is compatible with readers does not allow writes.
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
        lock.asked = Some(Box::new(PendingGlimpse { serial, first: self.now, deadline, waiters, next: Vec::new() }));
        self.timers.insert((deadline, handle, true));
        let state = self.exports.entry(export).or_default();
        state.calls.insert(handle);
        state.glimpse_window.unsent.insert(serial, handle);
        self.emit_glimpses(export);
    }

    /// A holder's answer to a glimpse. It is ignored if no such glimpse is unanswered. Callers drop answers from an
    /// earlier connection, because the glimpse was resent ([`resend_callbacks`](Locks::resend_callbacks)).
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
            state.glimpse_window.end(asked.serial);
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

    /// Whether this answers the current glimpse of a lock.
    fn answers(&self, i: u32, export: ExportId, reply: &GlReply) -> bool {
        let lock = &self.locks[i];
        lock.export == export && lock.asked.as_ref().is_some_and(|asked| asked.serial == reply.serial)
    }

    /// Downgrades a lock, if the mode is weaker, and grants what that makes possible.
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

    /// Passes an answer to one waiter; `None` if the holder has no lock any more.
    fn answer(&mut self, waiter: WaiterId, resource: &Resource, said: Option<(u64, Option<Lvb>)>) {
        // The waiter may have been released meanwhile.
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

    /// Takes all answers that a waiter has collected; `None` while some are missing, and if no holder was asked.
    pub fn take_glimpse(&mut self, waiter: WaiterId) -> Option<Vec<Lvb>> {
        if self.glimpses.get(&waiter)?.iter().any(|state| state.pending > 0) {
            return None;
        }
        let list = self.glimpses.remove(&waiter)?;
        Some(list.into_iter().flat_map(|state| state.answers).filter_map(|(_, lvb)| lvb).collect())
    }

    /// After a reconnect: resends unanswered callbacks. The deadlines start again, since the first transmission may not
    /// have reached the holder, but only within a limit from the first one, so that a client that does nothing but
    /// reconnect loses its locks.
    pub fn resend_callbacks(&mut self, now: Instant, export: ExportId) {
        self.now = now;
        let Some(state) = self.exports.get_mut(&export) else { return };
        state.overdue = false;
        state.away = None;
        self.resend_limit(export);
        let list = self.extend(export, PATIENCE_IDLE);
        let glimpse = |&i: &u32| Some((self.locks[i].asked.as_ref()?.serial, self.locks[i].handle));
        let unsent = list.iter().filter_map(glimpse).collect();
        if let Some(state) = self.exports.get_mut(&export) {
            state.glimpse_window = GlimpseWindow { unsent, ..GlimpseWindow::default() };
        }
        for i in list {
            self.emit_call(i);
        }
        self.emit_glimpses(export);
    }

    /// The export makes progress (it writes back what a callback asked for): extends its deadlines.
    pub fn progress(&mut self, now: Instant, export: ExportId) {
        let Some(state) = self.exports.get_mut(&export) else { return };
        if state.calls.is_empty() || now.since(state.progress) < self.settings.lock_timeout / 8 {
            return;
        }
        state.progress = now;
        self.now = now;
        self.extend(export, PATIENCE);
    }

    /// Extends the deadlines of an export's callbacks, up to `patience` timeouts after each was first sent. Returns
    /// their locks.
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

    /// When to call [`tick`](Locks::tick).
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.first().map(|&(at, ..)| at)
    }

    /// Reports exports whose callbacks are overdue.
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
