//! A Byzantine client: it speaks the protocol by hand, makes false claims and follows no rule.
//!
//! It forges handles, transnos, sequences of FIDs and glimpse replies, replays requests that it never made, takes locks on other
//! clients' files and releases none, asks for too much of everything, claims to be a server, and disappears silently. It does not
//! do what every client may do as root: remove or write others' files, or keep a record lock on them.
//!
//! The usual guarantees must hold all the same: programs of other clients see what they would see without it, no target stops, no
//! client but the liar is evicted ([`World::judge_eviction`]), and what targets hold for it stays within its limits
//! ([`World::judge_liar`]).

use core::time::Duration;

use proto::frame::flags;
use proto::msg::{
    CancelReq, Close, CloseReq, ConnectReq, CreateOp, DestroyReq, EnqueueReq, Extent, Flock, GlReply, LockMode, Lvb,
    ObjectId, OpenOp, Policy, ReaddirReq, Reint, ReintReq, ReplayLocksReq, Resource, ResourceKind, SeqAllocRep,
    StrayObjects, WriteReq,
};
use proto::{Bytes, Fid, Frame, Handle, Header, Opcode, Tag, TargetKind, Transno, Xid};
use stdx::Rng;

use super::net::Node;
use super::session::{Session, superuser};
use super::{World, WorldEvent};
use crate::plan::Plan;

/// Its description in connect requests.
pub(crate) const NAME: &str = "liar";
/// The liar as a node.
pub(crate) const NODE: Node = Node::Liar;
/// The most locks of a target beyond its limit: those of clients with few locks, and those granted before the limit was set.
const LOCKS_BEYOND: u64 = 6_000;
/// A sequence that no client is granted, for files before the liar has a sequence of its own.
const NOBODYS: u64 = Fid::SEQ_FIRST + 0x3f_ffe0;
/// The most names that it makes.
const NAMES_MAX: u64 = 40;

/// The state of the liar.
#[derive(Debug)]
pub struct Liar {
    rng: Rng,
    sessions: Vec<Session>,
    numbers: u64,
    /// It is active.
    pub(super) works: bool,
    /// The sequence that it was granted, and the last number used in it.
    sequence: Option<u64>,
    used: u32,
    names: u64,
    cookies: u64,
    /// The highest transno that it has seen.
    transno: u64,
    /// Handles of all kinds that it has seen.
    handles: Vec<u64>,
    /// The number of frames sent.
    pub(super) sent: u64,
}

impl Liar {
    pub(super) fn of(plan: &Plan, servers: &[super::server::Server]) -> Option<Liar> {
        let mut rng = Rng::new(plan.seed ^ 0x11a2_11a2);
        let targets = servers.iter().enumerate().filter(|(_, server)| server.name.kind != TargetKind::Mgt);
        // Two sessions at each target, for more locks and more claims.
        let sessions = targets
            .flat_map(|(server, _)| [server; 2])
            .map(|server| Session::new(server, u128::from(rng.u64()) << 64 | u128::from(rng.u64())));
        let sessions = sessions.collect();
        plan.liar.then(|| Liar {
            rng,
            sessions,
            numbers: 0,
            works: false,
            sequence: None,
            used: 0,
            names: 0,
            cookies: 0,
            transno: 0,
            handles: Vec::new(),
            sent: 0,
        })
    }

    /// A number that is meaningless, meaningful, or too large.
    fn number(&mut self) -> u64 {
        match self.rng.below(6) {
            0 => 0,
            1 => u64::MAX - self.rng.below(3),
            2 => 1 << self.rng.below(64),
            3 => self.rng.u64(),
            4 => self.transno.saturating_add(self.rng.below(1000)),
            _ => self.rng.below(100),
        }
    }

    /// A granted handle, a neighbour of one, or a random one.
    fn handle(&mut self) -> u64 {
        let known = self.rng.pick(&self.handles).copied().unwrap_or(0);
        match self.rng.below(3) {
            0 => known,
            1 => known.wrapping_add(self.rng.below(9)).wrapping_sub(4),
            _ => self.number(),
        }
    }

    /// A FID that is likely to belong to another client's file.
    fn other_fid(&mut self) -> Fid {
        match self.rng.below(8) {
            0 => Fid::ROOT,
            1 => Fid::new(self.number(), self.number() as u32),
            _ => Fid::new(Fid::SEQ_FIRST + self.rng.below(8), 1 + self.rng.below(40) as u32),
        }
    }

    fn own_fid(&mut self) -> Fid {
        self.used += u32::from(self.rng.chance(4, 5));
        Fid::new(self.sequence.unwrap_or(NOBODYS), self.used)
    }

    fn cookie(&mut self) -> u64 {
        self.cookies += u64::from(self.rng.chance(9, 10));
        self.cookies + 1
    }

    fn lock(&mut self, at_mdt: bool) -> EnqueueReq {
        let modes = [LockMode::Ex, LockMode::Pw, LockMode::Pr, LockMode::Cr, LockMode::Nl, LockMode::Unset];
        let mode = self.rng.pick(&modes).copied().unwrap_or(LockMode::Ex);
        let (start, end) = (self.number(), self.number());
        let (resource, policy) = match self.rng.below(10) {
            // Only on its own files: record locks are never called back.
            0 => {
                let fid = self.own_fid();
                let flock = Flock { owner: self.number(), start, end, is_flock: start % 2 == 0, ..Flock::default() };
                (Resource { kind: ResourceKind::Flock as i32, ..Resource::inode(fid) }, Policy::Flock(flock))
            }
            _ if at_mdt => (Resource::inode(self.other_fid()), Policy::Bits(self.number())),
            _ => {
                let all = if self.rng.chance(1, 2) { Extent::ALL } else { Extent { start, end } };
                (Resource::object(self.other_fid(), self.rng.below(3) as u32), Policy::Extent(all))
            }
        };
        EnqueueReq {
            resource,
            mode: mode as i32,
            cookie: self.cookie(),
            policy: Some(policy),
            no_wait: self.rng.chance(1, 2),
            glimpse: self.rng.chance(1, 10),
            ..EnqueueReq::default()
        }
    }

    /// A replayed open that it never made or was never allowed to make; it does not truncate.
    fn open(&mut self) -> Reint {
        let fid = self.other_fid();
        let old_handle = self.handle();
        Reint::Open(OpenOp {
            fid,
            flags: self.rng.below(3) as u32,
            opened_fid: Some(fid),
            old_handle,
            ..OpenOp::default()
        })
    }

    fn create(&mut self) -> Reint {
        let fid = if self.rng.chance(3, 4) { self.own_fid() } else { self.other_fid() };
        self.names = (self.names + 1) % NAMES_MAX;
        let name = Bytes::from(format!("{NAME}-{}", self.names));
        let mode = 0o100_644;
        Reint::Create(CreateOp { parent: Fid::ROOT, name, fid, mode, ..CreateOp::default() })
    }

    /// The next forged request to a target.
    fn lie(&mut self, at_mdt: bool) -> (Opcode, Vec<u8>) {
        use prost::Message;
        let reint = |op| ReintReq { cred: Some(superuser()), now_ns: 1, want: None, op: Some(op) }.encode_to_vec();
        match self.rng.below(14) {
            0..3 => (Opcode::LdlmEnqueue, self.lock(at_mdt).encode_to_vec()),
            3 if at_mdt => (Opcode::SeqAlloc, Vec::new()),
            3 => {
                let object = ObjectId { fid: self.other_fid(), stripe: self.number() as u32 };
                // Beyond the largest size of a file: otherwise it would write to other clients' files.
                let (offset, lock) = (u64::MAX - self.rng.below(1 << 20), self.handle());
                (Opcode::ObjWrite, WriteReq { object, offset, lock, ..WriteReq::default() }.encode_to_vec())
            }
            4 | 5 if at_mdt => (Opcode::MdsReint, reint(self.open())),
            6 | 7 if at_mdt => (Opcode::MdsReint, reint(self.create())),
            4..8 => {
                let objects = vec![ObjectId { fid: self.other_fid(), stripe: 0 }; self.rng.below(9) as usize];
                let seq = self.other_fid().seq;
                let strays = Some(StrayObjects { seq, first: 0, last: u32::MAX, keep: Vec::new() });
                (Opcode::ObjDestroy, DestroyReq { objects, strays }.encode_to_vec())
            }
            8 => {
                let count = self.rng.below(300);
                let close = |liar: &mut Liar| Close { fid: liar.other_fid(), handle: liar.handle(), atime_ns: 0 };
                let closes = (0..count).map(|_| close(self)).collect();
                (Opcode::MdsClose, CloseReq { closes }.encode_to_vec())
            }
            9 => {
                let handles = (0..self.rng.below(100)).map(|_| self.handle()).collect();
                let waiting_cookies = (0..self.rng.below(10)).map(|_| self.cookie()).collect();
                (Opcode::LdlmCancel, CancelReq { handles, waiting_cookies }.encode_to_vec())
            }
            10 => {
                let (size, serial) = (self.number(), self.number());
                let lvb = Some(Lvb { size, mtime_ns: i64::MAX, ctime_ns: i64::MAX, ..Lvb::default() });
                (Opcode::LdlmGlReply, GlReply { handle: self.handle(), lvb, serial, mode: 1 }.encode_to_vec())
            }
            11 => {
                // Locks on its own sequence: if two clients replay one lock, the target cannot know which one is right.
                let mut locks = Vec::new();
                for _ in 0..self.rng.below(200) {
                    let fid = self.own_fid();
                    let mut lock = self.lock(at_mdt);
                    (lock.resource.fid, lock.granted_handle) = (fid, 1 + self.handle() / 2);
                    ReplayLocksReq::push(&mut locks, &lock);
                }
                (Opcode::LdlmReplay, ReplayLocksReq { locks: locks.into() }.encode_to_vec())
            }
            12 => {
                let (after, max_bytes) = (self.number(), self.number() as u32);
                let request = ReaddirReq {
                    fid: self.other_fid(),
                    after,
                    max_bytes,
                    plus: self.rng.chance(1, 2),
                    cred: self.rng.chance(1, 2).then(superuser),
                    ..ReaddirReq::default()
                };
                (Opcode::MdsReaddir, request.encode_to_vec())
            }
            _ => {
                let opcodes =
                    [Opcode::Ping, Opcode::MdsGetattr, Opcode::ObjGetattr, Opcode::MdsFid2path, Opcode::MgsSeqRange];
                let opcode = self.rng.pick(&opcodes).copied().unwrap_or(Opcode::Ping);
                let mut body = vec![0; self.rng.below(64) as usize];
                self.rng.fill(&mut body);
                (opcode, body)
            }
        }
    }

    /// A header, forged more often than not.
    fn header(&mut self, at: usize, opcode: Opcode) -> Header {
        let tag = match opcode {
            Opcode::MdsReint => Tag(1 + self.rng.below(4) as u16),
            Opcode::MdsClose => Tag(2),
            _ => Tag(0),
        };
        let mut header = Header { tag, ..self.sessions[at].next(opcode) };
        match self.rng.below(10) {
            0..3 => {
                header.flags |= flags::REPLAY;
                header.transno = Transno(self.number());
                header.last_committed = Transno(if self.rng.chance(1, 2) { 0 } else { self.number() });
            }
            3 => header.flags = 1 << self.rng.below(12),
            4 => header.tag = Tag(self.number() as u16),
            5 if self.rng.chance(1, 4) => header.export = Handle(self.handle()),
            6 if self.rng.chance(1, 10) => header.last_xid = Xid(self.number()),
            7 if self.rng.chance(1, 4) => header.xid = Xid(self.number()),
            8 if self.rng.chance(1, 2) => header.flags |= flags::REQ_REPLAY_DONE,
            9 if self.rng.chance(1, 2) => header.flags |= flags::LOCK_REPLAY_DONE,
            _ => {}
        }
        header
    }
}

impl World {
    /// Lets the liar act, and schedules its next action.
    pub(super) fn lie(&mut self) {
        let Some(mut liar) = self.liar.take_if(|liar| liar.works) else { return };
        let at = liar.rng.below(liar.sessions.len() as u64) as usize;
        if !liar.sessions[at].up {
            self.liar_dials(&mut liar, at);
        } else {
            let burst = if liar.rng.chance(1, 20) { 200 } else { 1 + liar.rng.below(8) };
            for _ in 0..burst {
                let at_mdt = self.servers[liar.sessions[at].server].name.kind == TargetKind::Mdt;
                let (opcode, body) = liar.lie(at_mdt);
                let header = liar.header(at, opcode);
                liar.sent += 1;
                self.send(NODE, liar.sessions[at].number, Frame { header, body: body.into(), bulk: Bytes::new() });
            }
            if liar.rng.chance(1, 40) {
                self.liar_connects(&mut liar, at);
            }
        }
        let pause = Duration::from_micros(liar.rng.range(100, 60_000));
        self.liar = Some(liar);
        self.after(pause, WorldEvent::Lie);
    }

    fn liar_dials(&mut self, liar: &mut Liar, at: usize) {
        liar.numbers += 1;
        liar.sessions[at].number = liar.numbers;
        let nid = self.servers[liar.sessions[at].server].nid.clone();
        self.dial(NODE, liar.numbers, &[nid]);
    }

    fn liar_connects(&mut self, liar: &mut Liar, at: usize) {
        let target = self.servers[liar.sessions[at].server].name.clone();
        let (header, request) = liar.sessions[at].connect(&target, NAME);
        let request = ConnectReq {
            features: if liar.rng.chance(1, 2) { request.features } else { 0 },
            lightweight: liar.rng.chance(1, 10),
            grant: if liar.rng.chance(1, 4) { u64::MAX } else { 0 },
            ..request
        };
        let session = &liar.sessions[at];
        self.send(NODE, session.number, Frame::new(header, &request, Bytes::new()));
    }

    /// A connection of the liar is established.
    pub(super) fn liar_dialled(&mut self, number: u64) {
        let Some(mut liar) = self.liar.take() else { return };
        if let Some(at) = liar.sessions.iter().position(|session| session.number == number) {
            liar.sessions[at].up = true;
            self.liar_connects(&mut liar, at);
        }
        self.liar = Some(liar);
    }

    /// A connection of the liar is closed.
    pub(super) fn liar_closed(&mut self, number: u64) {
        let sessions = self.liar.iter_mut().flat_map(|liar| &mut liar.sessions);
        sessions.filter(|session| session.number == number).for_each(|session| session.up = false);
    }

    /// The liar receives a frame. It answers no callback, but remembers what it can use for forgeries.
    pub(super) fn liar_receives(&mut self, number: u64, frame: &Frame) {
        let Some(liar) = &mut self.liar else { return };
        let Some(session) = liar.sessions.iter_mut().find(|session| session.number == number) else { return };
        let header = frame.header;
        if !header.has(flags::REPLY) {
            if let Ok(callback) = frame.decode::<proto::msg::BlCallback>() {
                liar.handles.push(callback.handle);
            }
        } else if header.opcode == Opcode::Connect as u16 {
            session.connected(frame);
        } else {
            liar.transno = liar.transno.max(header.transno.0).max(header.last_committed.0);
            match Opcode::from_raw(header.opcode) {
                Some(Opcode::SeqAlloc) if header.status == 0 => {
                    if let Ok(granted) = frame.decode::<SeqAllocRep>() {
                        (liar.sequence, liar.used) = (Some(granted.seq), 0);
                    }
                }
                Some(Opcode::MdsReint) => {
                    liar.handles.extend(frame.decode::<proto::msg::ObjectRep>().map(|reply| reply.handle));
                }
                Some(Opcode::LdlmEnqueue) => {
                    let reply = frame.decode::<proto::msg::EnqueueRep>();
                    liar.handles.extend(reply.ok().and_then(|reply| reply.grant).map(|grant| grant.handle));
                }
                _ => {}
            }
        }
        let surplus = liar.handles.len().saturating_sub(200);
        liar.handles.drain(..surplus);
    }

    /// The liar starts.
    pub(super) fn liar_begins(&mut self) {
        if let Some(liar) = &mut self.liar {
            liar.works = true;
            self.after(Duration::ZERO, WorldEvent::Lie);
        }
    }

    /// The liar disappears silently.
    pub(super) fn liar_ends(&mut self) {
        if let Some(liar) = &mut self.liar {
            liar.works = false;
            liar.sessions.iter_mut().for_each(|session| session.up = false);
            self.disconnect(NODE);
        }
    }

    /// The limit of a target's locks while the liar is active, in MiB. Listing thousands of names takes more of them.
    fn lock_limit_mb(&self) -> u64 {
        if self.plan.crowd { 8 } else { 1 }
    }

    /// Lowers a server's limits for locks so that the liar can reach them.
    pub(super) fn limit_liar(&mut self, server: usize) {
        let now = self.time_of(Node::Server(server));
        let limit = self.lock_limit_mb().to_string();
        if self.liar.is_some()
            && let Some(machine) = &mut self.servers[server].machine
        {
            for leaf in ["lock_limit_mb", "lock_reclaim_threshold_mb"] {
                let _ = machine.set_param(now, &format!("ldlm.namespaces.*.{leaf}"), &limit);
            }
        }
    }

    /// Only the liar and clients that have died or leave may be evicted. (So may clients that depend on changes lost with a dead
    /// client.)
    pub(super) fn judge_eviction(&mut self, server: usize, line: &str) {
        let whom = line.strip_prefix("evicts client ").and_then(|rest| rest.split(' ').next()?.parse::<usize>().ok());
        let is_there = whom.and_then(|client| self.mounts.get(client)).is_some_and(|mount| !mount.leaving);
        if let Some(client) =
            whom.filter(|client| self.mounts.get(*client).is_some_and(|mount| mount.machine.is_some()))
        {
            self.sched.note_given_up(client);
        }
        let held_up = line.contains("did not give back its lock") && self.another_recovers(server);
        let others_died = self.faults.counts.deaths > 0 || self.faults.counts.power > 0;
        if self.liar.is_some() && is_there && !held_up && !others_died {
            self.fail(format!("with a liar in the run, target {} {line}", self.servers[server].name));
        }
    }

    /// Whether another target recovers: an operation that has sent a part of its work there waits and keeps its locks, and the
    /// liar delays the recovery.
    fn another_recovers(&self, server: usize) -> bool {
        let others = self.servers.iter().enumerate().filter(|(other, _)| *other != server);
        let machines = others.filter_map(|(_, other)| other.machine.as_ref());
        let statuses = machines.flat_map(|machine| machine.get_params("*.*.recovery_status"));
        statuses.into_iter().any(|(_, status)| status.contains("status: RECOVERING"))
    }

    /// Checks that what targets hold for all clients is within their limits.
    pub fn judge_liar(&mut self) {
        if self.liar.is_none() {
            return;
        }
        let mut wrong = None;
        // Twice the number of locks that clients are asked to keep is allowed; at twice that number again, clients with more than
        // a few locks get no more.
        let most = 4 * (self.lock_limit_mb() << 20) / dlm::server::LOCK_BYTES as u64 + LOCKS_BEYOND;
        for server in &self.servers {
            let counts = server.machine.iter().flat_map(|machine| machine.get_params("ldlm.namespaces.*.lock_count"));
            for (name, count) in counts {
                if count.parse::<u64>().is_ok_and(|count| count > most) {
                    wrong = Some(format!("with a liar in the run, {name} is {count}"));
                }
            }
        }
        if let Some(what) = wrong {
            self.fail(what);
        }
    }
}
