//! A random history against a model, with crashes: nothing that was synced is lost, nothing that was answered is lost while
//! its client lives, destroyed objects never come back, no data file is left over.

use std::collections::{BTreeMap, BTreeSet};

use proto::msg::PunchKind;
use schema::{Object, Record};
use stdx::Rng;

use super::world::World;

const OBJECTS: u64 = 5;
const SLOT: u64 = 1000;
const SLOTS: u64 = 16;
const SEEDS: u64 = 100;

#[derive(Clone, Default, PartialEq, Debug)]
struct Model {
    objects: BTreeMap<u32, Vec<u8>>,
}

impl Model {
    fn write(&mut self, oid: u32, offset: u64, data: &[u8]) {
        let bytes = self.objects.entry(oid).or_default();
        let end = offset as usize + data.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset as usize..end].copy_from_slice(data);
    }
}

struct Run {
    world: World,
    rng: Rng,
    model: Model,
    /// Objects that were changed since the last sync.
    dirty: BTreeSet<u32>,
    destroyed: BTreeSet<u32>,
    first_oid: u32,
    client: usize,
    mdt: usize,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut world = World::new(seed);
        let (client, mdt) = (world.client(), world.mdt());
        world.host.slow_data = seed % 2 == 1;
        Run {
            world,
            rng: Rng::new(seed ^ 0xabcd),
            model: Model::default(),
            dirty: BTreeSet::new(),
            destroyed: BTreeSet::new(),
            first_oid: 1,
            client,
            mdt,
        }
    }

    fn oid(&mut self) -> u32 {
        self.first_oid + self.rng.below(OBJECTS) as u32
    }

    /// Several writes in flight that do not overlap.
    fn writes(&mut self) {
        let mut slots = BTreeMap::new();
        for _ in 0..self.rng.below(6) + 1 {
            slots.insert((self.oid(), self.rng.below(SLOTS)), self.rng.below(255) as u8 + 1);
        }
        let mut ids = Vec::new();
        for ((oid, slot), byte) in slots {
            let offset = slot * SLOT + self.rng.below(SLOT / 2);
            let data = vec![byte; (self.rng.below(SLOT / 2) + 1) as usize];
            let req = self.world.write_req(self.client, oid, offset);
            ids.push(self.world.send_write(self.client, &req, &data));
            self.model.write(oid, offset, &data);
            self.dirty.insert(oid);
        }
        match self.rng.below(10) {
            0 => self.world.crash(),
            1 => self.world.cut(self.client),
            _ => {}
        }
        for id in ids {
            self.world.answer(self.client, id).unwrap();
        }
    }

    fn punch(&mut self) {
        let oid = self.oid();
        self.dirty.insert(oid);
        let (start, length) = (self.rng.below(SLOT * SLOTS), self.rng.below(SLOT * SLOTS) + 1);
        let end = (start + length) as usize;
        let bytes = self.model.objects.entry(oid).or_default();
        match self.rng.below(5) {
            0 => {
                self.world.truncate(self.client, oid, 0).unwrap();
                bytes.clear();
            }
            1 => {
                self.world.truncate(self.client, oid, start).unwrap();
                bytes.resize(start as usize, 0);
            }
            2 => {
                self.world.punch(self.client, oid, PunchKind::Hole, start, length, true).unwrap();
                let size = bytes.len();
                bytes[(start as usize).min(size)..end.min(size)].fill(0);
            }
            3 => {
                self.world.punch(self.client, oid, PunchKind::Zero, start, length, false).unwrap();
                bytes.resize(bytes.len().max(end), 0);
                bytes[start as usize..end].fill(0);
            }
            _ => {
                self.world.punch(self.client, oid, PunchKind::Allocate, start, length, false).unwrap();
                bytes.resize(bytes.len().max(end), 0);
            }
        }
    }

    fn destroy(&mut self) {
        let oid = self.first_oid;
        self.first_oid += 1;
        self.model.objects.remove(&oid);
        self.dirty.remove(&oid);
        self.destroyed.insert(oid);
        let crash = self.rng.chance(1, 4);
        if crash {
            self.world.slow_medium = true;
            let req = proto::msg::DestroyReq { objects: vec![super::world::object(oid)], strays: None };
            let out = rpc::client::Outgoing::new(proto::Opcode::ObjDestroy, &req);
            let id = self.world.send(self.mdt, out);
            self.world.step();
            self.world.slow_medium = false;
            self.world.crash();
            self.world.answer(self.mdt, id).unwrap();
        } else {
            self.world.destroy(self.mdt, &[oid]).unwrap();
        }
    }

    fn check(&mut self) {
        for oid in 1..self.first_oid + OBJECTS as u32 {
            let want = self.model.objects.get(&oid).cloned().unwrap_or_default();
            let got = self.world.read(self.client, oid, 0, 1 << 20).unwrap();
            assert_eq!(got.len(), want.len(), "size of {oid}, destroyed {}", self.destroyed.contains(&oid));
            assert!(got[..] == want[..], "bytes of {oid}");
        }
    }

    /// The client dies with the target: what was not synced may be there or not, what was is.
    fn catastrophe(&mut self) {
        self.world.die(self.client);
        self.world.crash();
        self.client = self.world.client();
        for oid in core::mem::take(&mut self.dirty) {
            let got = self.world.read(self.client, oid, 0, 1 << 20).unwrap();
            self.model.objects.insert(oid, got.to_vec());
        }
        self.check();
    }

    fn no_file_is_left_over(&mut self) {
        self.world.sync(self.client);
        self.dirty.clear();
        self.world.settle();
        let formats = schema::formats();
        let mut named = Vec::new();
        for (key, sealed) in self.world.host.engine.records() {
            if Object::parse_key(&key).is_some() {
                let object = Object::decode_record(&formats.open(&key, &sealed).unwrap()).unwrap();
                named.extend(Some(object.file).filter(|&file| file != 0));
            }
        }
        named.sort_unstable();
        assert_eq!(self.world.host.data.files(), named);
    }

    fn go(&mut self) {
        for _ in 0..60 {
            match self.rng.below(20) {
                0..=9 => self.writes(),
                10..=13 => self.punch(),
                14 => {
                    self.world.sync(self.client);
                    self.dirty.clear();
                }
                15 => self.destroy(),
                16 => self.world.crash(),
                17 => self.catastrophe(),
                18 => self.check(),
                _ => self.no_file_is_left_over(),
            }
        }
        self.check();
        self.no_file_is_left_over();
        self.check();
    }
}

#[test]
fn a_random_history_is_the_models() {
    for seed in 0..SEEDS {
        let outcome = std::panic::catch_unwind(|| Run::new(seed).go());
        if let Err(panic) = outcome {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
