//! Targets under attack: peers with valid sessions send requests of every kind with any values. No target panics or stops,
//! none holds more memory than its records, locks and answers explain, and a well-behaved client gets right answers
//! afterwards. Deterministic: a failure names the seed.

mod attack;

use attack::Attacker;
use bytes::Bytes;
use client::api::{Call, SetStat};
use proto::frame::flags;
use proto::msg::{EnqueueReq, Flock, LockMode, Policy, Resource};
use proto::{Errno, Fid, Frame, Header, Opcode, Transno, Xid};
use std::time::Duration;
use stdx::Rng;
use testkit::cluster::{Cluster, name};
use testkit::memory;

#[global_allocator]
static ALLOCATOR: testkit::memory::Counting = testkit::memory::Counting;

/// What one request may make a target allocate for a moment, in bytes: replies of some MiB and what they are made of.
const STEP_MAX: usize = 12 << 20;

/// What ten thousand requests may leave in memory, in bytes: records, locks, open files, answers that are kept. What lies in data
/// files is apart.
const HELD_MAX: usize = 6 << 20;

/// As the kernel: what is answered `ESTALE` is done again after the path was walked again.
fn again<T>(c: &mut Cluster, node: usize, path: &str, mut what: impl FnMut(&mut Cluster) -> Result<T, Errno>) -> T {
    for _ in 0..3 {
        match what(c) {
            Err(Errno::ESTALE) => drop(c.walk(node, path).unwrap()),
            other => return other.unwrap_or_else(|errno| panic!("{path}: {errno}; log: {:#?}", c.log)),
        }
    }
    panic!("{path} stays stale");
}

/// A well-behaved client works in a directory of its own, and everything is as it should be.
fn a_good_client_is_served(c: &mut Cluster, round: u64, data_bytes: usize) {
    let node = c.mount();
    let dir = c.mkdir(node, 1, &format!("good-{round}")).unwrap().ino;
    let (stat, fh) = c.create(node, dir, "file").unwrap();
    let data: Vec<u8> = (0..data_bytes).map(|i| (i as u64 * 31 + round) as u8).collect();
    for (at, part) in data.chunks(1 << 20).enumerate() {
        assert_eq!(c.write(node, fh, (at << 20) as u64, part), Ok(part.len() as u32));
    }
    c.call(node, Call::Fsync { fh }).unwrap();
    c.close(node, fh).unwrap();
    let other = c.mount();
    let ino = c.walk(other, &format!("good-{round}/file")).unwrap();
    assert_eq!(ino, stat.ino);
    assert_eq!(c.getattr(other, ino).unwrap().size, data.len() as u64);
    let fh = c.open(other, ino, 0).unwrap();
    let mut read = Vec::new();
    while read.len() < data.len() {
        let part = c.read(other, fh, read.len() as u64, 1 << 20).unwrap();
        assert!(!part.is_empty());
        read.extend_from_slice(&part);
    }
    assert!(read == data, "other bytes than were written");
    c.close(other, fh).unwrap();
    let set = SetStat { mode: Some(0o600), ..SetStat::default() };
    again(c, other, &format!("good-{round}/file"), |c| c.call(other, Call::Setattr { ino, set: set.clone() }));
    assert_eq!(c.getattr(node, ino).unwrap().mode, 0o100_600);
    let rename = Call::Rename { parent: dir, name: name("file"), new_parent: dir, new_name: name("renamed"), flags: 0 };
    again(c, node, &format!("good-{round}"), |c| c.call(node, rename.clone()));
    let mut names = again(c, other, &format!("good-{round}"), |c| c.list(other, dir, true));
    names.retain(|name| name != "." && name != "..");
    assert_eq!(names, ["renamed"]);
    again(c, other, &format!("good-{round}"), |c| c.unlink(other, dir, "renamed"));
    assert_eq!(again(c, node, &format!("good-{round}"), |c| Ok(c.lookup(node, dir, "renamed"))), Err(Errno::ENOENT));
    for at in [node, other] {
        c.nodes[at].machine.handle(c.now, client::api::Event::Unmount);
        c.until(|c| c.nodes[at].unmounted);
        c.die(at);
    }
}

struct Attack<'a> {
    c: Cluster,
    rng: Rng,
    target: &'a str,
    attackers: Vec<Attacker>,
    sent_bytes: usize,
    worst_step: usize,
}

impl Attack<'_> {
    /// Connects as a good client does.
    fn connect(&mut self, at: usize) {
        let server = self.c.server(self.target);
        let attacker = &mut self.attackers[at];
        attacker.raw = self.c.raw(server);
        let lightweight = at % 3 == 2;
        let frame = attacker.connect(lightweight);
        self.c.raw_send(attacker.raw, frame);
        self.run(at);
        if self.attackers[at].is_lost {
            // A new client's record must be durable first; that needs time.
            self.c.pass(Duration::from_secs(2));
            self.run(at);
        }
    }

    fn run(&mut self, at: usize) {
        let raw = self.attackers[at].raw;
        let c = &mut self.c;
        let ((), peak) = memory::peak_of(|| c.run());
        self.worst_step = self.worst_step.max(peak);
        let frames = std::mem::take(&mut c.raws[raw].inbox);
        for answer in self.attackers[at].receive(frames, &mut self.rng) {
            self.c.raw_send(raw, answer);
        }
    }

    /// Sends `requests` of these kinds; the good client works every now and then.
    fn go(&mut self, requests: u64, opcodes: &[Opcode], data_bytes: usize) {
        for at in 0..self.attackers.len() {
            self.connect(at);
        }
        let before = memory::held();
        for round in 0..requests {
            let at = self.rng.below(self.attackers.len() as u64) as usize;
            let attacker = &self.attackers[at];
            if self.c.raws[attacker.raw].closed || (attacker.is_lost && self.rng.chance(1, 4)) {
                self.connect(at);
            }
            let request = self.attackers[at].request(&mut self.rng, opcodes);
            self.sent_bytes += request.wire_len();
            self.c.raw_send(self.attackers[at].raw, request);
            if self.rng.chance(2, 3) {
                self.run(at);
            }
            match self.rng.below(400) {
                0 => self.connect(at),
                1 => self.c.raw_close(self.attackers[at].raw),
                2 if self.rng.chance(1, 4) => self.c.restart(self.target),
                2 | 3 => {
                    let seconds = self.rng.below(40);
                    self.c.pass(Duration::from_secs(seconds));
                }
                _ => {}
            }
            if round % 2500 == 2499 {
                a_good_client_is_served(&mut self.c, round, data_bytes);
                self.c.log.clear();
            }
        }
        let held = memory::held().saturating_sub(before);
        assert!(held < HELD_MAX, "{held} bytes are held for {} that came", self.sent_bytes);
        assert!(self.worst_step < STEP_MAX, "one request took {} bytes", self.worst_step);
        let (answers, successes) =
            self.attackers.iter().fold((0, 0), |(a, s), attacker| (a + attacker.answers, s + attacker.successes));
        let mut kinds = std::collections::BTreeSet::new();
        self.attackers.iter().for_each(|attacker| kinds.extend(attacker.statuses.keys().copied()));
        println!("{answers} answers, {successes} successes, {} kinds of answers", kinds.len());
        println!("{held} bytes held for {} that came; the worst request took {}", self.sent_bytes, self.worst_step);
        assert!(answers > requests / 2 && successes > requests / 10 && kinds.len() > 40, "the attack gets nowhere");
        // The target comes up again with what is on their media now.
        self.c.pass(Duration::from_secs(200));
        self.c.restart(self.target);
        a_good_client_is_served(&mut self.c, requests, data_bytes);
    }
}

fn attack(target: &str, seed: u64) -> Attack<'_> {
    println!("seed {seed}");
    memory::none_apart();
    let mut c = Cluster::new(2);
    c.at_media = memory::apart;
    // Something to attack.
    let node = c.mount();
    let dir = c.mkdir(node, 1, "dir").unwrap().ino;
    for at in 0..10 {
        let (_, fh) = c.create(node, dir, &format!("n{at}")).unwrap();
        c.write(node, fh, 0, &vec![at; 1 + usize::from(at) * 30_000]).unwrap();
        c.close(node, fh).unwrap();
    }
    let attackers = (0..4).map(|at| Attacker::new(77_000 + at, target)).collect();
    Attack { c, rng: Rng::new(seed), target, attackers, sent_bytes: 0, worst_step: 0 }
}

/// Mostly these, and now and then one of all.
fn mostly(opcodes: &[Opcode]) -> Vec<Opcode> {
    let often = opcodes.iter().copied().cycle().take(8 * Opcode::ALL.len());
    often.chain(Opcode::ALL.iter().copied()).collect()
}

fn metadata(seed: u64) {
    use Opcode::*;
    let mut opcodes = mostly(&[MdsReint, MdsReint, MdsReint, MdsGetattr, MdsLookup, LdlmEnqueue, SeqAlloc]);
    opcodes.extend(mostly(&[
        MdsReint,
        MdsClose,
        MdsReaddir,
        MdsGetxattr,
        MdsFid2path,
        LdlmCancel,
        ObjRead,
        ObjWrite,
        ObjPunch,
        ObjSeek,
    ]));
    attack("fs-MDT0000", seed).go(10_000, &opcodes, 40_000);
}

fn objects(seed: u64) {
    use Opcode::*;
    let opcodes =
        mostly(&[ObjRead, ObjWrite, ObjPunch, ObjSetattr, ObjSync, ObjSeek, ObjDestroy, LdlmEnqueue, LdlmCancel]);
    let mut attack = attack("fs-OST0000", seed);
    attack.c.set_capacity("fs-OST0000", 32 << 20);
    attack.go(10_000, &opcodes, 300_000);
}

fn configuration(seed: u64) {
    use Opcode::*;
    let opcodes = mostly(&[MgsRegister, MgsConfigGet, MgsSetParam, MgsSeqRange, Ping]);
    attack("MGS", seed).go(10_000, &opcodes, 40_000);
}

#[test]
fn a_metadata_target_survives_any_request() {
    let _alone = memory::alone();
    (1..4).for_each(metadata);
}

#[test]
fn an_object_target_survives_any_request() {
    let _alone = memory::alone();
    (1..4).for_each(objects);
}

#[test]
fn a_configuration_target_survives_any_request() {
    let _alone = memory::alone();
    (1..3).for_each(configuration);
}

/// One session sends `flood` requests that wait or are kept; the memory that they take has a bound.
fn flood(name: &str, bound: usize, flood: u64, mut request: impl FnMut(&Attacker, u64) -> Frame, recovering: bool) {
    let mut attack = attack("fs-MDT0000", 9);
    attack.c.set_capacity("fs-OST0000", 32 << 20);
    attack.connect(0);
    attack.connect(1);
    let mut all = vec![Opcode::SeqAlloc];
    all.resize(3, Opcode::MdsReint);
    for at in [0, 1] {
        for _ in 0..30 {
            let request = attack.attackers[at].request(&mut attack.rng, &all);
            attack.c.raw_send(attack.attackers[at].raw, request);
            attack.run(at);
        }
    }
    if recovering {
        // The other one does not come back, so the target goes on waiting.
        attack.c.pass(Duration::from_secs(3));
        attack.c.restart("fs-MDT0000");
    }
    attack.connect(0);
    let mut held = Vec::new();
    for n in 0..flood {
        if n % (flood / 4) == 0 {
            held.push(memory::held());
        }
        let frame = request(&attack.attackers[0], n);
        attack.c.raw_send(attack.attackers[0].raw, frame);
        attack.run(0);
    }
    held.push(memory::held());
    let statuses = &attack.attackers[0].statuses;
    println!("{name}: {held:?} {statuses:?}");
    assert!(held[4] - held[0] < bound, "{name}: {held:?} bytes after each quarter of {flood} requests; {statuses:?}");
    attack.c.pass(Duration::from_secs(300));
    a_good_client_is_served(&mut attack.c, 1, 1000);
}

fn header(attacker: &Attacker, opcode: Opcode, n: u64) -> Header {
    Header {
        opcode: opcode as u16,
        conn_cnt: attacker.conn_cnt,
        export: attacker.export,
        xid: Xid(1_000_000 + n),
        timeout_ms: 30_000,
        ..Header::default()
    }
}

#[test]
fn floods_of_requests_that_wait_are_bounded() {
    let _alone = memory::alone();
    const MIB: usize = 1 << 20;
    flood(
        "pings that wait for the end of recovery",
        2 * MIB,
        40_000,
        |a, n| {
            let flags = flags::REQ_REPLAY_DONE;
            Frame { header: Header { flags, ..header(a, Opcode::Ping, n) }, ..Frame::default() }
        },
        true,
    );
    flood(
        "replays that wait for others",
        8 * MIB,
        40_000,
        |a, n| {
            let transno = Transno((1 << 32) + 1_000_000 + 2 * n);
            let header = Header { flags: flags::REPLAY, transno, ..header(a, Opcode::MdsReint, n) };
            Frame { header, body: vec![0; 500].into(), ..Frame::default() }
        },
        true,
    );
    flood(
        "requests that wait for the end of recovery",
        80 * MIB,
        2_000,
        |a, n| Frame { header: header(a, Opcode::MdsGetattr, n), bulk: vec![1; MIB].into(), ..Frame::default() },
        true,
    );
    let enqueue = |fid: Fid, owner: u64, cookie: u64, mode: LockMode| EnqueueReq {
        resource: Resource::flock(fid),
        mode: mode as i32,
        cookie,
        policy: Some(Policy::Flock(Flock { start: 0, end: 9, owner, pid: 1, is_flock: false })),
        ..EnqueueReq::default()
    };
    flood(
        "record locks that wait for each other",
        4 * MIB,
        20_000,
        |a, n| Frame::new(header(a, Opcode::LdlmEnqueue, n), &enqueue(Fid::ROOT, n, n + 1, LockMode::Pw), Bytes::new()),
        false,
    );
}

#[test]
#[ignore = "takes minutes: part of the soak"]
fn targets_survive_any_request_with_many_seeds() {
    let _alone = memory::alone();
    for seed in 100..140 {
        metadata(seed);
        objects(seed);
        configuration(seed);
    }
}
