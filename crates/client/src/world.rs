//! All state that operations share, and the small services over it: waiting and waking, effects, tokens, numbers.

use bytes::Bytes;
use proto::msg::{LockGrant, WantLocks};
use proto::{Fid, Opcode};
use smallvec::SmallVec;
use std::collections::VecDeque;
use stdx::{Instant, Map, Rng};

use crate::api::{Effect, Invalidation, Options};
use crate::cx::Step;
use crate::data::DataState;
use crate::file::Files;
use crate::imports::{Dest, Imports};
use crate::node::Nodes;
use crate::op::{OpId, Task, WaitKey};

/// Sequences of FIDs that the metadata target granted.
#[derive(Debug, Default)]
pub struct Sequences {
    /// The one in use: sequence, next object, last object.
    pub current: Option<(u64, u32, u32)>,
    /// The one to go on with: sequence, last object.
    pub next: Option<(u64, u32)>,
    /// A request for one is on its way.
    pub asked: bool,
}

/// See the module.
pub struct World {
    /// Settings.
    pub options: Options,
    /// The time.
    pub now: Instant,
    /// The wall clock.
    pub wall_ns: i64,
    /// Jitter.
    pub rng: Rng,
    /// Objects.
    pub nodes: Nodes,
    /// Open files.
    pub files: Files,
    /// The data cache.
    pub data: DataState,
    /// Connections to targets and the locks held there.
    pub imports: Imports,
    /// FIDs.
    pub sequences: Sequences,
    /// Calls can be made.
    pub mounted: bool,
    /// The mount failed for good; nothing more is tried.
    pub failed: bool,
    /// No new calls.
    pub unmounting: bool,
    /// Cookies of locks that the request now being made wants.
    pub(crate) wants: SmallVec<[u64; 3]>,
    pub(crate) effects: VecDeque<Effect>,
    pub(crate) ready: VecDeque<OpId>,
    pub(crate) spawned: VecDeque<Task>,
    waiters: Map<WaitKey, SmallVec<[OpId; 2]>>,
    tokens: Map<u64, (OpId, Step)>,
    next_token: u64,
}

impl World {
    /// At the begin.
    pub fn new(options: Options) -> World {
        World {
            now: Instant::ZERO,
            wall_ns: 0,
            rng: Rng::new(options.seed),
            nodes: Nodes::default(),
            files: Files::default(),
            data: DataState::default(),
            imports: Imports::new(&options),
            sequences: Sequences::default(),
            mounted: false,
            failed: false,
            unmounting: false,
            wants: SmallVec::new(),
            effects: VecDeque::new(),
            ready: VecDeque::new(),
            spawned: VecDeque::new(),
            waiters: Map::default(),
            tokens: Map::default(),
            next_token: 1,
            options,
        }
    }

    /// Where an object's metadata is.
    pub fn mdt_of(&self, _fid: Fid) -> Dest {
        Dest::Mdt(0)
    }

    /// Something for the driver.
    pub fn effect(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    /// A line for the log.
    pub fn log(&mut self, line: String) {
        self.effect(Effect::Log(line));
    }

    /// Background work.
    pub fn spawn(&mut self, task: Task) {
        self.spawned.push_back(task);
    }

    /// Runs everybody who waits for `key`.
    pub fn wake(&mut self, key: WaitKey) {
        if self.waiters.is_empty() {
            return;
        }
        if let Some(ops) = self.waiters.remove(&key) {
            self.ready.extend(ops);
        }
    }

    pub(crate) fn wait(&mut self, op: OpId, key: WaitKey) {
        let ops = self.waiters.entry(key).or_default();
        if !ops.contains(&op) {
            ops.push(op);
        }
    }

    pub(crate) fn token(&mut self, op: OpId, step: Step) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        self.tokens.insert(token, (op, step));
        token
    }

    pub(crate) fn take_token(&mut self, token: u64) -> Option<(OpId, Step)> {
        self.tokens.remove(&token)
    }

    /// Sends a request for an operation. Locks that it wants were noted by [`World::want`].
    pub(crate) fn send(&mut self, op: OpId, step: Step, dest: Dest, opcode: Opcode, body: Bytes, bulk: Bytes) {
        let wants = core::mem::take(&mut self.wants);
        crate::imports::submit(self, op, step, dest, opcode, body, bulk, wants);
    }

    /// A cookie for a lock that the request now being made wants from `dest`.
    pub fn want(&mut self, dest: Dest) -> u64 {
        let Some(import) = self.imports.get_mut(dest) else { return 0 };
        let cookie = import.locks.new_cookie();
        import.locks.expect(cookie);
        self.wants.push(cookie);
        cookie
    }

    /// Wishes for locks: on the object, on its parent, on its data.
    pub fn want_locks(&mut self, dest: Dest, object: bool, parent: bool, data: Option<bool>) -> WantLocks {
        WantLocks {
            object_cookie: if object { self.want(dest) } else { 0 },
            parent_cookie: if parent { self.want(dest) } else { 0 },
            data_cookie: if data.is_some() { self.want(dest) } else { 0 },
            data_write: data.unwrap_or(false),
        }
    }

    /// The kernel must forget a name; nobody waits for it.
    pub fn invalidate_entry(&mut self, parent: u64, name: Bytes) {
        self.effect(Effect::Invalidate(Invalidation::Entry { parent, name }));
    }

    /// Locks came in with a reply.
    pub(crate) fn granted(&mut self, dest: Dest, grants: &[LockGrant], lvb: Option<&proto::msg::Lvb>) {
        for grant in grants {
            crate::locks::granted(self, dest, grant, lvb);
        }
    }
}
