//! Several clients and one target over a network that delays, reorders and doubles messages, loses connections, and
//! loses the target. Watched all the time: no two clients have conflicting locks, and an operation of the target that
//! was told "free" runs while nobody else has one. At the end: everybody got what they waited for, and both ends agree about
//! what is held. One thing is allowed there, since this network doubles messages, which a connection does not: the second copy of a
//! request that was answered can get a lock of its own, and if the answer to that copy is lost with its connection the client
//! never hears of the lock. Such a lock goes when somebody wants it.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use proto::msg::{
    BlCallback, CancelReq, EnqueueReq, Extent, GlCallback, GlReply, LockGrant, LockMode, Lvb, Policy, Resource, bits,
};
use proto::{Errno, Fid};
use stdx::{Instant, Rng, marks};

use crate::client::{Cookie, GrantAction, HeldLock, LockCache, LockCacheEvent, Settings as CacheSettings};
use crate::mode::{MODES, compatible};
use crate::part::Part;
use crate::server::{Enqueued, Glimpsed, LockEvent, Locks, Revoked, Settings};
use crate::{ExportId, WaiterId};

const CLIENTS: usize = 4;

#[derive(Clone, Debug)]
enum Message {
    Enqueue(EnqueueReq),
    Intent {
        cookie: Cookie,
        resource: Resource,
        mode: LockMode,
        want: u64,
    },
    Cancel(CancelReq),
    /// An answer, and whether it was sent before, over an earlier connection.
    GlReply(GlReply, bool),
    Granted(LockGrant),
    Nothing(Cookie),
    Blocking(BlCallback),
    Glimpse(GlCallback),
    Replayed(LockGrant),
}

/// On its way between client and target, over the client's so many-eth connection.
struct Flying {
    client: usize,
    connection: u32,
    up: bool,
    due: u64,
    message: Message,
}

/// An operation of a client, under a lock that it counts on.
struct Op {
    lock: HeldLock,
    until: u64,
}

struct Client {
    locks: LockCache,
    connection: u32,
    /// Requests without an answer.
    asked: BTreeMap<Cookie, Message>,
    running: Vec<Op>,
    cleanups: Vec<(u64, Cookie)>,
    /// Replays without an answer.
    replays: BTreeMap<Cookie, EnqueueReq>,
    /// Cancels and glimpse answers sent over this connection; sent again over the next.
    reliable: Vec<Message>,
}

impl Client {
    /// Locks that it has, and those that its operations believe it has.
    fn has(&self, resource: &Resource) -> Vec<HeldLock> {
        let mut list = self.locks.on_resource(resource);
        list.extend(self.running.iter().map(|op| op.lock).filter(|lock| lock.resource == *resource));
        list
    }
}

/// An operation of the target.
struct Internal {
    waiter: WaiterId,
    export: ExportId,
    needs: Vec<(Resource, LockMode, Policy)>,
    glimpse: bool,
    runnable: bool,
}

/// In which order the messages of one turn of the target leave.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    AsTheyCome,
    /// Callbacks before grants, the youngest lock's first.
    CallbacksFirst,
}

struct World {
    rng: Rng,
    step: u64,
    target: Locks,
    instance: u64,
    clients: Vec<Client>,
    flying: Vec<Flying>,
    waiters: BTreeMap<WaiterId, (usize, Cookie)>,
    next_waiter: u64,
    internal: Vec<Internal>,
    grants: u64,
    operations: u64,
    restarts: bool,
    order: Order,
    /// Locks that a client has heard of, by handle, and those whose grant was lost when the client no longer asked for it.
    heard: BTreeSet<(usize, u64)>,
    unheard: BTreeSet<(usize, u64)>,
    /// Of the latter those that the target had at the end.
    left_over: u64,
}

fn resources() -> [Resource; 3] {
    let fid = Fid::new(Fid::SEQ_FIRST, 7);
    [Resource::inode(Fid::ROOT), Resource::inode(fid), Resource::object(fid, 0)]
}

impl World {
    fn new(seed: u64, restarts: bool, order: Order) -> World {
        let clients = (0..CLIENTS)
            .map(|i| Client {
                locks: LockCache::new(CacheSettings { lru_size: i, lru_max_age: Duration::from_secs(3600) }),
                connection: 0,
                asked: BTreeMap::new(),
                running: vec![],
                cleanups: vec![],
                replays: BTreeMap::new(),
                reliable: vec![],
            })
            .collect();
        World {
            rng: Rng::new(seed),
            step: 0,
            target: Locks::new(1 << 40, Settings::default()),
            instance: 1,
            clients,
            flying: vec![],
            waiters: BTreeMap::new(),
            next_waiter: 0,
            internal: vec![],
            grants: 0,
            operations: 0,
            restarts,
            order,
            heard: BTreeSet::new(),
            unheard: BTreeSet::new(),
            left_over: 0,
        }
    }

    fn now(&self) -> Instant {
        Instant(self.step * 50_000)
    }

    fn send(&mut self, client: usize, up: bool, message: Message) {
        if up && matches!(message, Message::Cancel(_) | Message::GlReply(..)) {
            self.clients[client].reliable.push(message.clone());
        }
        let connection = self.clients[client].connection;
        let copies = 1 + u64::from(self.rng.chance(1, 8));
        for _ in 0..copies {
            let due = self.step + self.rng.range(1, 30);
            self.flying.push(Flying { client, connection, up, due, message: message.clone() });
        }
    }

    fn part(&mut self, resource: &Resource) -> Policy {
        if resource.kind == 0 {
            return Policy::Bits(1 + self.rng.below(bits::ALL));
        }
        let start = self.rng.below(8) * 4096;
        Policy::Extent(Extent { start, end: start + self.rng.below(3) * 4096 + 99 })
    }

    fn start_operation(&mut self, client: usize) {
        let resource = resources()[self.rng.below(3) as usize];
        let mode = MODES[self.rng.below(5) as usize];
        let policy = self.part(&resource);
        let until = self.step + self.rng.below(40);
        let inflight = self.rng.chance(1, 10);
        let c = &mut self.clients[client];
        let found = match inflight {
            true => c.locks.find_for_inflight(&resource, mode, &policy),
            false => c.locks.find(&resource, mode, &policy),
        };
        if let Some(cookie) = found {
            assert!(c.locks.hold(cookie));
            let lock = c.locks.get(cookie).expect("a lock that was found");
            c.running.push(Op { lock, until });
            return;
        }
        let cookie = c.locks.new_cookie();
        c.locks.expect(cookie);
        let message = match policy {
            Policy::Bits(want) if self.rng.chance(1, 2) => Message::Intent { cookie, resource, mode, want },
            _ => Message::Enqueue(EnqueueReq {
                resource,
                mode: mode as i32,
                cookie,
                policy: Some(policy),
                ..EnqueueReq::default()
            }),
        };
        self.clients[client].asked.insert(cookie, message.clone());
        self.send(client, true, message);
    }

    fn start_internal(&mut self) {
        self.next_waiter += 1;
        let waiter = WaiterId(self.next_waiter);
        let export = ExportId(self.rng.below(CLIENTS as u64 + 1));
        let glimpse = self.rng.chance(1, 4);
        let mut needs = vec![];
        for _ in 0..self.rng.range(1, 2) {
            let resource = resources()[self.rng.below(3) as usize];
            let mode = if self.rng.chance(1, 3) { LockMode::Pr } else { LockMode::Ex };
            let policy = self.part(&resource);
            needs.push((resource, mode, policy));
        }
        self.internal.push(Internal { waiter, export, needs, glimpse, runnable: true });
    }

    fn run_internal(&mut self) {
        let Some(at) = self.internal.iter().position(|op| op.runnable) else { return };
        let now = self.now();
        let op = &mut self.internal[at];
        op.runnable = false;
        let (waiter, export, glimpse) = (op.waiter, op.export, op.glimpse);
        let needs = op.needs.clone();
        let mut free = true;
        for (resource, mode, policy) in &needs {
            if glimpse {
                free &= self.target.glimpse(now, waiter, *resource, export) != Glimpsed::Waiting;
            } else {
                free &= self.target.revoke(now, waiter, export, *resource, *mode, *policy) == Revoked::Free;
            }
        }
        if !free {
            return;
        }
        if !glimpse {
            for (resource, mode, policy) in &needs {
                let part = Part::from_policy(*policy).unwrap();
                for (i, c) in self.clients.iter().enumerate() {
                    for lock in c.has(resource) {
                        let held = Part::from_policy(lock.policy).unwrap();
                        let clash = !compatible(lock.mode, *mode) && held.overlaps(&part);
                        assert!(ExportId(i as u64 + 1) == export || !clash, "an operation ran into {lock:?} of {i}");
                    }
                }
            }
        }
        self.operations += 1;
        self.target.release(now, waiter);
        self.internal.remove(at);
    }

    fn deliver(&mut self) {
        let mut due: Vec<Flying> = vec![];
        let mut at = 0;
        while at < self.flying.len() {
            if self.flying[at].due <= self.step {
                due.push(self.flying.swap_remove(at));
            } else {
                at += 1;
            }
        }
        for m in due {
            if m.connection != self.clients[m.client].connection {
                self.lost(m.client, &m.message);
                continue;
            }
            if m.up { self.at_target(m.client, m.message) } else { self.at_client(m.client, m.message) }
        }
    }

    /// A message was lost with its connection.
    fn lost(&mut self, client: usize, message: &Message) {
        let (Message::Granted(grant) | Message::Replayed(grant)) = message else { return };
        let c = &self.clients[client];
        let asks = c.asked.contains_key(&grant.cookie) || c.replays.contains_key(&grant.cookie);
        if !asks && !self.heard.contains(&(client, grant.handle)) {
            self.unheard.insert((client, grant.handle));
        }
    }

    fn at_target(&mut self, client: usize, message: Message) {
        let now = self.now();
        let export = ExportId(client as u64 + 1);
        match message {
            Message::Enqueue(req) => {
                self.next_waiter += 1;
                let waiter = WaiterId(self.next_waiter);
                match self.target.enqueue(now, export, &req, waiter) {
                    Enqueued::Granted(grant) if req.granted_handle != 0 => {
                        self.send(client, false, Message::Replayed(grant));
                    }
                    Enqueued::Granted(grant) => self.send(client, false, Message::Granted(grant)),
                    Enqueued::Waiting => drop(self.waiters.insert(waiter, (client, req.cookie))),
                    // A copy of a replay that comes after its answer: the lock was given back since, or is held in a weaker mode.
                    Enqueued::Refused(Errno::ESTALE) if req.granted_handle != 0 => {
                        let c = &self.clients[client];
                        let weaker = |lock: HeldLock| lock.mode as i32 != req.mode;
                        assert!(c.locks.get(req.cookie).is_none_or(weaker) && !c.replays.contains_key(&req.cookie));
                    }
                    other => panic!("{other:?}"),
                }
            }
            Message::Intent { cookie, resource, mode, want } => {
                let reply = match self.target.try_grant(now, export, resource, mode, want, 0, cookie) {
                    Some(grant) => Message::Granted(grant),
                    None => Message::Nothing(cookie),
                };
                self.send(client, false, reply);
            }
            Message::Cancel(req) => self.target.cancel(now, export, &req),
            Message::GlReply(reply, false) => self.target.glimpse_reply(now, export, &reply),
            // As clients of version 0.1.0 do. It is no answer.
            Message::GlReply(_, true) => {}
            other => panic!("not for the target: {other:?}"),
        }
    }

    fn at_client(&mut self, client: usize, message: Message) {
        let now = self.now();
        if let Message::Granted(LockGrant { handle, .. })
        | Message::Replayed(LockGrant { handle, .. })
        | Message::Blocking(BlCallback { handle, .. }) = message
        {
            self.heard.insert((client, handle));
            self.unheard.remove(&(client, handle));
        }
        match message {
            Message::Granted(grant) => {
                let until = self.step + self.rng.below(40);
                let c = &mut self.clients[client];
                let wanted = c.asked.remove(&grant.cookie).is_some();
                let action = c.locks.granted(&grant, now);
                if wanted {
                    assert_ne!(action, GrantAction::Unexpected);
                    assert!(c.locks.hold(grant.cookie));
                    let lock = c.locks.get(grant.cookie).expect("a lock that was granted");
                    c.running.push(Op { lock, until });
                    self.grants += 1;
                }
            }
            Message::Nothing(cookie) => {
                let c = &mut self.clients[client];
                if c.asked.remove(&cookie).is_some() {
                    c.locks.unexpect(cookie);
                }
            }
            Message::Blocking(callback) => drop(self.clients[client].locks.blocking(&callback)),
            Message::Glimpse(callback) => {
                let weaker = MODES[self.rng.below(5) as usize];
                let locks = &mut self.clients[client].locks;
                let known = locks.by_handle(callback.handle);
                let lvb = known.map(|_| Lvb::default());
                let weakened = known.is_some_and(|lock| locks.downgrade(lock.cookie, weaker));
                let mode = if weakened { weaker } else { LockMode::Unset } as i32;
                let reply = GlReply { handle: callback.handle, serial: callback.serial, lvb, mode };
                self.send(client, true, Message::GlReply(reply, false));
            }
            Message::Replayed(grant) => {
                let c = &mut self.clients[client];
                c.replays.remove(&grant.cookie);
                c.locks.replayed(grant.cookie, grant.handle);
            }
            other => panic!("not for a client: {other:?}"),
        }
    }

    fn target_events(&mut self) {
        let mut events: Vec<LockEvent> = core::iter::from_fn(|| self.target.poll()).collect();
        if self.order == Order::CallbacksFirst {
            events.sort_by_key(|event| match event {
                LockEvent::Blocking { callback, .. } => (false, Reverse(callback.handle)),
                _ => (true, Reverse(0)),
            });
        }
        for event in events {
            match event {
                LockEvent::Blocking { export, callback } => {
                    self.send(export.0 as usize - 1, false, Message::Blocking(callback));
                }
                LockEvent::Glimpse { export, callback } => {
                    self.send(export.0 as usize - 1, false, Message::Glimpse(callback));
                }
                LockEvent::Granted { export, waiter, grant } => {
                    let (client, cookie) = self.waiters.remove(&waiter).expect("a waiter is answered once");
                    assert_eq!((export.0 as usize - 1, grant.cookie), (client, cookie));
                    self.send(client, false, Message::Granted(grant));
                }
                LockEvent::Ready { waiter } | LockEvent::GlimpseDone { waiter } => {
                    if let Some(op) = self.internal.iter_mut().find(|op| op.waiter == waiter) {
                        op.runnable = true;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn client_steps(&mut self) {
        for client in 0..CLIENTS {
            let (step, now) = (self.step, self.now());
            let c = &mut self.clients[client];
            if c.locks.deadline().is_some_and(|at| at <= now) {
                c.locks.tick(now);
            }
            while let Some(at) = c.running.iter().position(|op| op.until <= step) {
                let op = c.running.swap_remove(at);
                c.locks.release(op.lock.cookie);
            }
            while let Some(at) = c.cleanups.iter().position(|&(due, _)| due <= step) {
                let (_, cookie) = c.cleanups.swap_remove(at);
                c.locks.cleanup_done(cookie);
            }
            while let Some(event) = self.clients[client].locks.poll() {
                match event {
                    LockCacheEvent::Cleanup { lock, .. } => {
                        let due = self.step + self.rng.below(10);
                        self.clients[client].cleanups.push((due, lock.cookie));
                    }
                    LockCacheEvent::Cancel(handles) => {
                        self.send(client, true, Message::Cancel(CancelReq { handles, waiting_cookies: vec![] }));
                    }
                }
            }
        }
    }

    /// A client's connection breaks: what flies is lost; both ends send again what has no answer.
    fn reconnect(&mut self, client: usize) {
        self.clients[client].connection += 1;
        self.send_again(client);
        let now = self.now();
        self.target.resend_callbacks(now, ExportId(client as u64 + 1));
    }

    /// The target forgets everything; clients replay what they have.
    fn restart(&mut self) {
        self.instance += 1;
        self.target = Locks::new(self.instance << 40, Settings::default());
        self.waiters.clear();
        self.internal.clear();
        let now = self.now();
        for client in 0..CLIENTS {
            let c = &mut self.clients[client];
            c.connection += 1;
            c.locks.begin_replay();
            c.replays = c.locks.next_replays(usize::MAX).into_iter().map(|req| (req.cookie, req)).collect();
            for req in self.clients[client].replays.clone().into_values() {
                match self.target.replay(now, ExportId(client as u64 + 1), &req) {
                    Ok(handle) => {
                        let cookie = req.cookie;
                        self.send(
                            client,
                            false,
                            Message::Replayed(LockGrant { handle, cookie, ..LockGrant::default() }),
                        );
                    }
                    Err(errno) => panic!("a replay was refused: {req:?} {errno:?}"),
                }
            }
        }
        for client in 0..CLIENTS {
            self.send_again(client);
        }
    }

    fn send_again(&mut self, client: usize) {
        let c = &mut self.clients[client];
        let replays = c.replays.values().cloned().map(Message::Enqueue);
        let reliable = core::mem::take(&mut c.reliable).into_iter().map(|message| match message {
            Message::GlReply(reply, _) => Message::GlReply(reply, true),
            other => other,
        });
        let again = reliable.chain(replays).chain(c.asked.values().cloned());
        for message in again.collect::<Vec<_>>() {
            self.send(client, true, message);
        }
    }

    /// The target evicts a client.
    fn evict(&mut self, client: usize) {
        let now = self.now();
        self.target.export_gone(now, ExportId(client as u64 + 1));
        let c = &mut self.clients[client];
        c.connection += 1;
        c.locks.drop_all();
        c.asked.clear();
        c.running.clear();
        c.cleanups.clear();
        c.reliable.clear();
        c.replays.clear();
        self.waiters.retain(|_, (owner, _)| *owner != client);
    }

    fn check(&self) {
        for resource in resources() {
            let held: Vec<_> = (0..CLIENTS)
                .flat_map(|i| self.clients[i].has(&resource).into_iter().map(move |lock| (i, lock)))
                .collect();
            for (i, a) in &held {
                for (j, b) in &held {
                    let (pa, pb) = (Part::from_policy(a.policy).unwrap(), Part::from_policy(b.policy).unwrap());
                    let clash = i != j && !compatible(a.mode, b.mode) && pa.overlaps(&pb);
                    assert!(!clash, "step {}: client {i} has {a:?}, client {j} has {b:?}", self.step);
                }
            }
        }
    }

    fn advance(&mut self) {
        self.step += 1;
        self.deliver();
        self.client_steps();
        self.target_events();
        self.run_internal();
        self.check();
    }

    fn run(&mut self, steps: u64) {
        while self.step < steps {
            if self.rng.chance(1, 2) {
                let client = self.rng.below(CLIENTS as u64) as usize;
                if self.clients[client].asked.len() < 3 {
                    self.start_operation(client);
                }
            }
            if self.rng.chance(1, 20) && self.internal.len() < 4 {
                self.start_internal();
            }
            if self.rng.chance(1, 150) {
                let client = self.rng.below(CLIENTS as u64) as usize;
                self.reconnect(client);
            }
            if self.rng.chance(1, 700) {
                let client = self.rng.below(CLIENTS as u64) as usize;
                self.evict(client);
            }
            if self.restarts && self.rng.chance(1, 500) {
                self.restart();
            }
            self.advance();
        }
        let end = self.step + 20_000;
        let busy = |w: &World| {
            !w.flying.is_empty()
                || !w.internal.is_empty()
                || w.clients.iter().any(|c| !c.asked.is_empty() || !c.running.is_empty() || !c.cleanups.is_empty())
        };
        while busy(self) {
            assert!(self.step < end, "somebody waits for ever: {:?}", self.target.counters());
            self.advance();
        }
        // Cancels that nobody waited for, too.
        for _ in 0..200 {
            self.advance();
        }
        let counters = self.target.counters();
        assert_eq!((counters.waiting, counters.internal, counters.called_back), (0, 0, 0));
        assert_eq!(self.target.deadline(), None);
        // Both ends agree about what is left.
        for (i, c) in self.clients.iter_mut().enumerate() {
            let mut held = self.target.held(ExportId(i as u64 + 1));
            held.retain(|lock| {
                let unheard = self.unheard.contains(&(i, lock.handle));
                self.left_over += u64::from(unheard);
                !unheard
            });
            assert_eq!(held.len(), c.locks.counts().0, "client {i}");
            assert!(held.iter().all(|lock| c.locks.by_handle(lock.handle).is_some()), "client {i}");
            c.locks.cancel_unused();
        }
        // Somebody wants everything: locks that nobody has heard of go, too.
        let everything = |resource: Resource| match resource.kind {
            0 => (resource, LockMode::Ex, Policy::Bits(bits::ALL)),
            _ => (resource, LockMode::Ex, Policy::Extent(Extent { start: 0, end: u64::MAX })),
        };
        self.next_waiter += 1;
        self.internal.push(Internal {
            waiter: WaiterId(self.next_waiter),
            export: ExportId(0),
            needs: resources().map(everything).to_vec(),
            glimpse: false,
            runnable: true,
        });
        for _ in 0..300 {
            self.advance();
        }
        assert!(self.internal.is_empty() && self.target.is_idle());
    }
}

#[test]
fn locks_are_safe_and_nobody_starves() {
    let (mut grants, mut operations) = (0, 0);
    for seed in 0..200 {
        let mut world = World::new(seed, false, Order::AsTheyCome);
        world.run(2_000);
        grants += world.grants;
        operations += world.operations;
    }
    assert!(grants > 10_000 && operations > 1_000, "the test did something: {grants} {operations}");
    assert!(marks::count("dlm.callback.overtook-grant") > 0);
    assert!(marks::count("dlm.grant.unexpected") > 0);
    assert!(marks::count("dlm.cleanup.again") > 0);
    assert!(marks::count("dlm.resend.waiting") > 0);
}

#[test]
fn locks_survive_restarts_of_the_target() {
    for seed in 1000..1200 {
        World::new(seed, true, Order::AsTheyCome).run(2_000);
    }
    let mut left_over = 0;
    for seed in (2000..2200).chain([2322, 6117, 10063]) {
        let mut world = World::new(seed, true, Order::CallbacksFirst);
        world.run(2_000);
        left_over += world.left_over;
    }
    assert!(left_over > 0, "a lock that nobody heard of was among them");
}
