//! The machine: processes events, runs attempts of operations, emits effects.
//!
//! Operations live in slots that are reused (including their memo's memory); an [`OpId`] carries the slot's generation,
//! so that a late reply or wake-up of a finished operation has no effect.

use core::time::Duration;
use proto::msg::Cred;
use proto::{Errno, Frame, Opcode};
use std::sync::Arc;
use stdx::faults::sites;
use stdx::{Instant, Map};

use crate::api::{Answer, Call, CallId, Device, Effect, Event, Options};
use crate::base::{Dest, OpId, WaitKey};
use crate::coherence::cx::{Cx, Stop};
use crate::coherence::events::{self, Arrived};
use crate::coherence::op::{Memo, OpState, Task, Work};
use crate::coherence::request::{self, Pending, Sender};
use crate::coherence::world::World;
use crate::coherence::{closes, data, kernel, locks, metadata_write_back, replies};
use crate::ops::{self, config, devices, params};

/// How often an operation begins anew because of outdated layouts of directories.
const LAYOUTS_DOUBTED_MAX: u32 = 8;

/// Calls that may go on without their programs at a time. Beyond that, a program that is killed waits for its call:
/// abandoned calls take memory, and a user could abandon calls without limit while a server is unreachable.
const ABANDONED_MAX: usize = 4096;
/// Attempts in one run: far more than there can be operations that make progress.
const TURNS_MAX: u32 = 1 << 18;
/// Pause between two runs of operations that wake each other.
const PAUSE: Duration = Duration::from_millis(10);
/// The log message about that.
const LIVELOCK: &str =
    "operations of this client wake each other endlessly; this is a defect, and they continue slowly";

/// An operation in its slot.
struct Running {
    state: OpState,
    work: Work,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    running: Option<Box<Running>>,
}

/// A mounted client.
pub struct Client {
    w: World,
    slots: Vec<Slot>,
    free: Vec<u32>,
    #[allow(clippy::vec_box, reason = "the boxes are what is kept: they go back into slots")]
    spare: Vec<Box<Running>>,
    calls: Map<CallId, OpId>,
    /// Calls that go on without their programs.
    abandoned: usize,
    /// Operations that wake each other were seen.
    livelock: bool,
    nobody: Arc<Cred>,
    last_cred: Arc<Cred>,
}

/// Whether such a request may be about a name in a stripe of a directory, or about all its names.
fn asks_stripes(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::MdsLookup | Opcode::MdsReint | Opcode::MdsReaddir | Opcode::MdsGetattr)
}

impl Client {
    /// A client that starts to mount.
    pub fn new(options: Options, now: Instant) -> Client {
        let nobody = Arc::new(Cred::default());
        let mut w = World::new(options);
        w.now = now;
        let mut client = Client {
            w,
            slots: Vec::new(),
            free: Vec::new(),
            spare: Vec::new(),
            calls: Map::default(),
            abandoned: 0,
            livelock: false,
            last_cred: nobody.clone(),
            nobody,
        };
        config::start(&mut client.w);
        client.run();
        client
    }

    /// Processes an event.
    pub fn handle(&mut self, now: Instant, event: Event) {
        self.w.now = now;
        match event {
            Event::Call { id, cred, call } => self.call(id, cred, call),
            Event::Interrupt { id } => self.interrupt(id),
            Event::Abandon { id } => self.abandon(id),
            Event::Dialled { conn } => events::dialled(&mut self.w, conn),
            Event::DialFailed { conn, reason } => self.w.imports.dial_failed(now, conn, reason),
            Event::Frame { conn, frame } => self.w.imports.frame(now, conn, frame),
            Event::Closed { conn } => self.w.imports.hung_up(now, conn),
            Event::Invalidated { token, known } => self.invalidated(token, known),
            Event::Asked => self.w.kernel_asked(),
            Event::WallClock(ns) => {
                (self.w.wall_ns, self.w.wall_at) = (ns, now);
                self.w.stats.began(ns);
                return;
            }
            Event::Tick => {
                if self.deadline().is_some_and(|deadline| deadline <= now) {
                    self.tick();
                }
            }
            Event::Unmount => {
                if !self.w.unmounting {
                    self.w.unmounting = true;
                    let mut waiting: Vec<CallId> = self.calls.keys().copied().collect();
                    waiting.sort_unstable();
                    for call in waiting {
                        self.interrupt(call);
                    }
                    self.w.spawn(Task::Unmount);
                    self.w.wake(WaitKey::Timer);
                }
            }
        }
        self.run();
    }

    /// Takes the next effect.
    pub fn poll(&mut self) -> Option<Effect> {
        self.w.effects.pop_front()
    }

    /// When [`Event::Tick`] is due: other events do not run timers.
    pub fn deadline(&self) -> Option<Instant> {
        let w = &self.w;
        let mount = [w.mount_deadline, w.mount_look].into_iter().flatten().min();
        [
            events::deadline(w),
            data::deadline(w),
            w.closes.deadline(),
            metadata_write_back::deadline(w),
            w.schedule.deadline(),
            mount,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// The device name of the mount itself: `demo-ffff9a3c0e4b8800`.
    pub fn device(&self) -> String {
        devices::of_mount(&self.w)
    }

    /// The devices of the mount.
    pub fn devices(&self) -> Vec<Device> {
        devices::list(&self.w)
    }

    /// Parameters that match `pattern` (`*` stands for anything), sorted by name.
    pub fn get_params(&self, pattern: &str) -> Vec<(String, String)> {
        params::get(&self.w, pattern)
    }

    /// Sets a parameter.
    ///
    /// # Errors
    /// `ENOENT`: there is no such parameter. `EINVAL`, `ERANGE`: it cannot have this value. `EACCES`: it is read only.
    pub fn set_param(&mut self, now: Instant, name: &str, value: &str) -> Result<(), Errno> {
        self.w.now = now;
        let result = params::set(&mut self.w, name, value);
        self.run();
        result
    }

    /// Files of which the kernel may hold pages, including dirty ones.
    pub fn files_in_kernel(&self) -> Vec<u64> {
        self.w.nodes.iter().map(|node| node.ino()).filter(|ino| data::is_in_kernel(&self.w, *ino)).collect()
    }

    /// Up to `limit` files with bytes that were not written back, each with its number of bytes; and the number of
    /// further files.
    pub fn unsynced(&self, limit: usize) -> (Vec<(String, u64)>, usize) {
        let mut files = data::files_unwritten(&self.w);
        let more = files.len().saturating_sub(limit);
        files.truncate(limit);
        (files.into_iter().map(|(ino, bytes)| (self.w.nodes.path(ino), bytes)).collect(), more)
    }

    /// Changes made by metadata write-back since the mount, and how many of them have been answered.
    pub fn write_back_progress(&self) -> (u64, u64) {
        metadata_write_back::counts(&self.w)
    }

    /// Operations in progress and their memo, one line each, to find what is stuck.
    pub fn in_progress(&self) -> Vec<String> {
        let running = self.slots.iter().filter_map(|slot| slot.running.as_deref());
        let line = |running: &Running| {
            let mut work = format!("{:?}", running.work);
            work.truncate(work.char_indices().nth(160).map_or(work.len(), |(at, _)| at));
            format!("{work}: {:?}", running.state)
        };
        running.map(line).collect()
    }

    fn tick(&mut self) {
        events::tick(&mut self.w);
        data::tick(&mut self.w);
        closes::tick(&mut self.w);
        metadata_write_back::tick(&mut self.w);
        config::tick(&mut self.w);
        self.w.schedule.tick(self.w.now);
    }

    fn call(&mut self, id: CallId, cred: Cred, mut call: Call) {
        if self.w.unmounting || self.w.failed {
            self.w.effect(Effect::Answer { id, result: Err(Errno::ESHUTDOWN) });
            return;
        }
        let by_alias = ops::alias::resolve(&mut call);
        if by_alias && matches!(call, Call::Forget { .. }) {
            self.w.effect(Effect::Answer { id, result: Ok(Answer::Done) });
            return;
        }
        if *self.last_cred != cred {
            self.last_cred = Arc::new(cred);
        }
        let cred = self.last_cred.clone();
        let op = self.begin(Some(id), cred, Work::Call(call));
        if let Some(state) = self.state(op).filter(|_| by_alias) {
            state.by_alias = true;
        }
        self.attempt(op);
        let slot = &self.slots[op.slot as usize];
        if slot.generation == op.generation {
            self.calls.insert(id, op);
            if let Some(Work::Call(call)) = slot.running.as_ref().map(|running| &running.work) {
                kernel::enter_gate(&mut self.w, op, call);
            }
        }
    }

    fn begin(&mut self, call: Option<CallId>, cred: Arc<Cred>, work: Work) -> OpId {
        self.w.calls_running += usize::from(matches!(work, Work::Call(_)));
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        let entry = &mut self.slots[slot as usize];
        let id = OpId { slot, generation: entry.generation };
        let running = match self.spare.pop() {
            Some(mut running) => {
                running.state.renew(id, call, cred, self.w.wall_ns, self.w.now);
                running.work = work;
                running
            }
            None => Box::new(Running { state: OpState::new(id, call, cred, self.w.wall_ns, self.w.now), work }),
        };
        entry.running = Some(running);
        self.w.ops_running += 1;
        id
    }

    fn state(&mut self, id: OpId) -> Option<&mut OpState> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        slot.running.as_mut().map(|running| &mut running.state)
    }

    /// Runs one attempt.
    fn attempt(&mut self, id: OpId) {
        let Some(slot) = self.slots.get_mut(id.slot as usize) else { return };
        if slot.generation != id.generation {
            return;
        }
        let Some(mut running) = slot.running.take() else { return };
        self.w.by_alias = running.state.by_alias;
        let mut cx = Cx { w: &mut self.w, op: &mut running.state };
        let result = match &running.work {
            Work::Call(call) => ops::call(&mut cx, call),
            Work::Task(task) => ops::task(&mut cx, task).map(|()| Answer::Done),
        };
        match result {
            Err(Stop::Wait) => self.slots[id.slot as usize].running = Some(running),
            Ok(answer) => self.finish(running, Ok(answer)),
            Err(Stop::Errno(Errno::EREMCHG)) if running.state.layouts_doubted < LAYOUTS_DOUBTED_MAX => {
                stdx::mark!("layout_outdated");
                self.begin_anew(running);
            }
            Err(Stop::Errno(Errno::EREMCHG)) => self.finish(running, Err(Errno::ESTALE)),
            Err(Stop::Errno(errno)) => self.finish(running, Err(errno)),
        }
    }

    /// An operation begins anew: nothing was done, because it has asked stripes of a directory that has another layout.
    fn begin_anew(&mut self, mut running: Box<Running>) {
        let id = running.state.id;
        request::withdraw_all(&mut self.w, id);
        data::op_ended(&mut self.w, id);
        locks::release_all(&mut self.w, &running.state);
        if running.state.presses {
            self.w.imports.released(self.w.now);
        }
        running.state.begin_anew();
        self.slots[id.slot as usize].running = Some(running);
        self.w.schedule.make_ready(id);
    }

    fn finish(&mut self, mut running: Box<Running>, mut result: Result<Answer, Errno>) {
        let id = running.state.id;
        let slot = &mut self.slots[id.slot as usize];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.slot);
        data::op_ended(&mut self.w, id);
        locks::release_all(&mut self.w, &running.state);
        if running.state.presses {
            self.w.imports.released(self.w.now);
        }
        if let Work::Call(call) = &running.work {
            self.w.calls_running -= 1;
            kernel::ended(&mut self.w, id, call, &result);
            if let Ok(answer) = &mut result
                && running.state.by_alias
            {
                ops::alias::ended(&mut self.w, call, answer);
            }
            self.w.stats.ended(self.w.now, call, &result, running.state.started);
            if running.state.abandoned {
                self.abandoned -= 1;
                ops::disown(&mut self.w, &running.state, call, result.as_ref().ok());
            }
        }
        if let Some(call) = running.state.call.take() {
            self.calls.remove(&call);
            if let Ok(answer) = &mut result {
                kernel::prepare_answer(&mut self.w, answer);
            }
            self.w.effect(Effect::Answer { id: call, result });
        } else if let (Err(errno), Work::Task(task)) = (result, &running.work) {
            ops::task_failed(&mut self.w, task, errno);
        }
        self.w.ops_running -= 1;
        if self.w.unmounting {
            self.w.wake(WaitKey::Drained);
        }
        if self.spare.len() < 64 {
            running.state.clear();
            running.work = Work::Task(Task::Config);
            self.spare.push(running);
        }
    }

    fn interrupt(&mut self, call: CallId) {
        let Some(&id) = self.calls.get(&call) else { return };
        let Some(state) = self.state(id) else { return };
        state.interrupted = true;
        if let Some((dest, cookie)) = state.waiting_record {
            // The server ends the wait; the lock may have been granted already, so its answer decides.
            locks::abandon_record(&mut self.w, dest, cookie);
            return;
        }
        if state.changes > 0 {
            return;
        }
        // No request with an effect was sent: the call can end here.
        request::withdraw_all(&mut self.w, id);
        let slot = &mut self.slots[id.slot as usize];
        let Some(running) = slot.running.take() else { return };
        self.finish(running, Err(Errno::EINTR));
    }

    /// The program is gone. A call whose requests have no effect, or were not sent, ends here. Any other is answered,
    /// and goes on as an operation without a caller: its replies are applied, and at the end it releases what it
    /// obtained for the program ([`ops::disown`]).
    fn abandon(&mut self, call: CallId) {
        let Some(&id) = self.calls.get(&call) else { return };
        let Some(state) = self.state(id) else { return };
        state.interrupted = true;
        let (changes, record) = (state.changes, state.waiting_record);
        if changes == 0 || changes == 1 && request::withdraw_change(&mut self.w, id) {
            request::withdraw_all(&mut self.w, id);
            if let Some(running) = self.slots[id.slot as usize].running.take() {
                self.finish(running, Err(Errno::EINTR));
            }
            return;
        }
        if self.abandoned == ABANDONED_MAX {
            stdx::mark!("too_many_abandoned");
            return;
        }
        stdx::mark!("abandoned");
        self.abandoned += 1;
        if let Some((dest, cookie)) = record {
            locks::abandon_record(&mut self.w, dest, cookie);
        }
        if let Some(running) = &mut self.slots[id.slot as usize].running {
            running.state.call = None;
            running.state.abandoned = true;
        }
        kernel::leave_gate(&mut self.w, id);
        self.calls.remove(&call);
        self.w.effect(Effect::Answer { id: call, result: Err(Errno::EINTR) });
    }

    fn invalidated(&mut self, token: u64, known: bool) {
        let again = if known { Instant::ZERO } else { self.w.now + crate::coherence::cx::INVALIDATE_AGAIN };
        if let Some((id, step)) = self.w.schedule.take_token(token)
            && let Some(state) = self.state(id)
        {
            state.acknowledged(step, again);
            self.w.schedule.make_ready(id);
        }
    }

    /// Runs operations until none can make progress.
    fn run(&mut self) {
        self.run_ready();
        self.w.reclaim_nodes();
        // The locks of dropped nodes go back.
        if !self.w.spawned.is_empty() {
            self.run_ready();
        }
        self.w.locks.note_deadlines();
        assert!(!self.w.options.faults.hit_once(sites::ASSERTION), "fail_loc asks for it");
    }

    fn run_ready(&mut self) {
        for left in (0..TURNS_MAX).rev() {
            if left == 0 {
                // A defect; but sockets are served between two runs, so that what the operations wait for can arrive.
                if !core::mem::replace(&mut self.livelock, true) {
                    self.w.log_error(LIVELOCK.to_owned());
                }
                self.w.set_timer(self.w.now + PAUSE);
            }
            if let Some(id) = self.w.schedule.next() {
                self.attempt(id);
            } else if let Some(task) = self.w.spawned.pop_front() {
                let id = self.begin(None, self.nobody.clone(), Work::Task(task));
                self.attempt(id);
            } else if let Some((dest, arrived)) = events::next(&mut self.w) {
                match arrived {
                    Arrived::Reply(pending, frame) => self.arrived(dest, pending, frame),
                    Arrived::Refused(errno, reason) => config::refused(&mut self.w, dest, errno, &reason),
                    Arrived::Failed(pending, errno) => {
                        let Sender { op, step, number } = pending.sender;
                        replies::failed(&mut self.w, dest, pending, errno);
                        if let Some(state) = self.state(op) {
                            if state.waits_for(step, number) {
                                state.set_memo(step, Memo::Failed(errno));
                            }
                            self.attempt(op);
                        }
                    }
                }
            } else if self.w.schedule.is_idle() && self.w.spawned.is_empty() {
                // The last event may have started work without concerning an operation itself, as a callback does.
                break;
            }
        }
    }

    fn arrived(&mut self, dest: Dest, pending: Pending, mut frame: Frame) {
        let Sender { op, step, number } = pending.sender;
        let mut taken = None;
        if let Some(slot) = self.slots.get_mut(op.slot as usize)
            && slot.generation == op.generation
        {
            taken = slot.running.take();
        }
        // The layout of its directory may be another, without this stripe.
        let used_stripe = taken.as_ref().is_some_and(|running| running.state.used_stripe);
        if used_stripe && frame.header.status == -Errno::ESTALE.raw() && asks_stripes(pending.opcode) {
            frame.header.status = -Errno::EREMCHG.raw();
        }
        let waits = taken.as_ref().is_some_and(|running| running.state.waits_for(step, number));
        let memo = replies::reply(&mut self.w, dest, pending, frame, waits);
        if let Some(mut running) = taken {
            if waits {
                running.state.set_memo(step, memo);
            }
            self.slots[op.slot as usize].running = Some(running);
            self.attempt(op);
        }
    }
}
