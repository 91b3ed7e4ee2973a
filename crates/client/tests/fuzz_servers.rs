//! Targets under attack: peers with valid sessions send requests of every kind with any values. No target panics or stops,
//! none holds more memory than its peers' bytes and its own records explain, and a well-behaved client gets right answers
//! afterwards. Deterministic: a failure names the seed.

mod attack;
mod cluster;
#[path = "../../proto/tests/common/memory.rs"]
mod memory;

use attack::Attacker;
use client::api::{Answer, Call, SetStat};
use cluster::{Cluster, cred, name};
use proto::{Errno, Opcode};
use std::time::Duration;
use stdx::Rng;

/// What one request may make a target allocate for a moment, in bytes: replies of some MiB and what they are made of.
const STEP_MAX: usize = 64 << 20;

/// A well-behaved client works in a directory of its own, and everything is as it should be.
fn a_good_client_is_served(c: &mut Cluster, round: u64, data_bytes: usize) {
    let node = c.mount();
    let dir = c.mkdir(node, 1, &format!("good-{round}")).unwrap().ino;
    let (stat, fh) = c.create(node, dir, "file").unwrap();
    let data: Vec<u8> = (0..data_bytes).map(|i| (i as u64 * 31 + round) as u8).collect();
    for (at, part) in data.chunks(1 << 20).enumerate() {
        assert_eq!(c.write(node, fh, (at << 20) as u64, part), Ok(part.len() as u32));
    }
    c.call(node, Call::Fsync { fh, data_only: false }).unwrap();
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
    c.call(other, Call::Setattr { ino, set }).unwrap();
    assert_eq!(c.getattr(node, ino).unwrap().mode, 0o100_600);
    let rename = Call::Rename { parent: dir, name: name("file"), new_parent: dir, new_name: name("renamed"), flags: 0 };
    assert_eq!(c.call(node, rename), Ok(Answer::Done));
    let mut names = c.list(other, dir, true).unwrap();
    names.retain(|name| name != "." && name != "..");
    assert_eq!(names, ["renamed"]);
    c.unlink(other, dir, "renamed").unwrap();
    assert_eq!(c.lookup(node, dir, "renamed").map(|stat| stat.ino), Err(Errno::ENOENT));
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
    fn connect(&mut self, at: usize) {
        let server = self.c.server(self.target);
        let attacker = &mut self.attackers[at];
        attacker.raw = self.c.raw(server);
        let lightweight = at % 3 == 2;
        let frame = attacker.connect(lightweight);
        self.c.raw_send(attacker.raw, frame);
        self.run(at);
        if self.attackers[at].export.0 == 0 {
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
            if self.c.raws[self.attackers[at].raw].closed {
                self.connect(at);
            }
            let request = self.attackers[at].request(&mut self.rng, opcodes);
            self.sent_bytes += request.wire_len();
            self.c.raw_send(self.attackers[at].raw, request);
            self.run(at);
            match self.rng.below(400) {
                0 => self.connect(at),
                1 => self.c.raw_close(self.attackers[at].raw),
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
        let bound = (64 << 20) + 20 * self.sent_bytes;
        assert!(held < bound, "{held} bytes are held for {} that came", self.sent_bytes);
        assert!(self.worst_step < STEP_MAX, "one request took {} bytes", self.worst_step);
        let (answers, successes) =
            self.attackers.iter().fold((0, 0), |(a, s), attacker| (a + attacker.answers, s + attacker.successes));
        println!("{} answers {successes} successes, held {held}, worst step {}", answers, self.worst_step);
        assert!(answers > requests / 2, "most requests are answered: {answers} of {requests}");
        assert!(successes > requests / 20, "the attack gets nowhere: {successes} of {requests}");
        // The targets come up again with what is on their media now.
        self.c.pass(Duration::from_secs(200));
        self.c.restart(self.target);
        a_good_client_is_served(&mut self.c, requests, data_bytes);
    }
}

fn attack(target: &str, seed: u64) -> Attack<'_> {
    println!("seed {seed}");
    let mut c = Cluster::new(2);
    // Something to attack.
    let node = c.mount();
    let dir = c.mkdir(node, 1, "dir").unwrap().ino;
    for at in 0..10 {
        let (_, fh) = c.create(node, dir, &format!("n{at}")).unwrap();
        c.write(node, fh, 0, &vec![at; 1 + usize::from(at) * 30_000]).unwrap();
        c.close(node, fh).unwrap();
    }
    let _ = cred(0);
    let attackers = (0..4).map(|at| Attacker::new(77_000 + at, target)).collect();
    Attack { c, rng: Rng::new(seed), target, attackers, sent_bytes: 0, worst_step: 0 }
}

#[test]
fn a_metadata_target_survives_any_request() {
    let mut attack = attack("fs-MDT0000", 1);
    attack.go(10_000, Opcode::ALL, 40_000);
}

#[test]
fn an_object_target_survives_any_request() {
    let mut attack = attack("fs-OST0000", 2);
    attack.go(10_000, Opcode::ALL, 40_000);
}

#[test]
fn a_configuration_target_survives_any_request() {
    let mut attack = attack("MGS", 3);
    attack.go(10_000, Opcode::ALL, 40_000);
}
