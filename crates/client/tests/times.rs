//! Times and sizes after races: several clients write, cut, look at and set the times of the same few files at once, with events in
//! any order. When all is quiet, every client and its kernel, which keeps what it may, say the same.

use std::collections::BTreeMap;
use std::time::Duration;

use client::api::{Answer, Call, CallId, FileHandle, Invalidation, SetStat, SetTime, Stat};
use proto::{Bytes, Frame, Opcode};
use stdx::Rng;
use testkit::cluster::{self, Cluster, cred, seeds};

const CLIENTS: usize = 3;

/// A call under way: of which file, how many invalidations its kernel had seen when it was made, and what the kernel does with the
/// answer.
#[derive(Clone, Copy)]
struct Running {
    ino: u64,
    told: usize,
    keeps: Keeps,
}

/// What the kernel does with attributes when a call returns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeps {
    /// It keeps those of the answer, unless it was told to forget some since the call was made.
    Unless,
    /// It keeps those of the answer, whatever it was told.
    Always,
    /// It forgets what it has.
    Forgets,
    /// Nothing.
    Nothing,
}

/// What a client's kernel keeps.
#[derive(Default)]
struct Kernel {
    attrs: BTreeMap<u64, Stat>,
    running: BTreeMap<CallId, Running>,
    /// Answers and invalidations that were taken in.
    answered: usize,
    told: usize,
}

impl Kernel {
    /// Takes in what the client has said, in its order.
    fn listen(&mut self, c: &mut Cluster, node: usize) {
        let order: Vec<(usize, CallId)> = c.nodes[node].order[self.answered..].to_vec();
        self.answered += order.len();
        for (told, id) in order {
            self.forget(&c.nodes[node].invalidations[self.told..told]);
            self.told = told;
            let Some(call) = self.running.remove(&id) else { continue };
            let Ok(answer) = c.nodes[node].answers.remove(&id).unwrap() else { continue };
            let overtaken = c.nodes[node].invalidations[call.told..told].iter().any(|what| of(what) == Some(call.ino));
            match (answer, call.keeps) {
                (Answer::Attr(_), Keeps::Unless) if overtaken => {}
                (Answer::Attr(stat), Keeps::Unless | Keeps::Always) => {
                    self.attrs.remove(&call.ino);
                    if stat.cacheable {
                        self.attrs.insert(call.ino, stat);
                    }
                }
                (_, Keeps::Forgets) => drop(self.attrs.remove(&call.ino)),
                _ => {}
            }
        }
        self.forget(&c.nodes[node].invalidations[self.told..]);
        self.told = c.nodes[node].invalidations.len();
    }

    fn forget(&mut self, told: &[Invalidation]) {
        for ino in told.iter().filter_map(of) {
            self.attrs.remove(&ino);
        }
    }
}

fn of(what: &Invalidation) -> Option<u64> {
    match what {
        Invalidation::Inode { ino, .. } => Some(*ino),
        Invalidation::Entry { .. } => None,
    }
}

/// What all must agree about.
fn shown(stat: &Stat) -> String {
    format!("{:o} {} bytes, mtime {}, ctime {}", stat.mode, stat.size, stat.mtime_ns, stat.ctime_ns)
}

fn races(seed: u64, faults: bool) {
    let mut rng = Rng::new(seed);
    let mut c = Cluster::new(2);
    let mut kernels: Vec<Kernel> = (0..CLIENTS).map(|_| Kernel::default()).collect();
    for _ in 0..CLIENTS {
        c.mount();
    }
    let inos: Vec<u64> = ["a", "b"].map(|text| c.create(0, 1, text).unwrap().0.ino).to_vec();
    // The kernels know them.
    for (node, text) in (0..CLIENTS).flat_map(|node| ["a", "b"].map(|text| (node, text))) {
        c.lookup(node, 1, text).unwrap();
    }
    let handles: Vec<Vec<FileHandle>> = (0..CLIENTS)
        .map(|node| {
            let flags = if rng.chance(1, 4) { 2 | 0o2000 } else { 2 };
            inos.iter().map(|ino| c.open(node, *ino, flags).unwrap()).collect()
        })
        .collect();
    // Some stay on the metadata target, some leave it in the midst.
    let reach = *rng.pick(&[4_000, 60_000, 200_000]).unwrap();
    for _ in 0..rng.range(20, 120) {
        let (node, at) = (rng.below(CLIENTS as u64) as usize, rng.below(inos.len() as u64) as usize);
        let (ino, fh) = (inos[at], handles[node][at]);
        let set = |set| Call::Setattr { ino, set };
        let time = if rng.chance(1, 2) { SetTime::Now } else { SetTime::At(rng.below(1 << 40) as i64) };
        let (call, keeps) = match rng.below(12) {
            0..=3 => {
                let data = vec![7; rng.range(1, reach / 2) as usize].into();
                let write =
                    Call::Write { fh, ino: 0, offset: rng.below(reach), data, write_back: false, kill_priv: false };
                (write, Keeps::Forgets)
            }
            4 => (set(SetStat { size: Some(rng.below(reach)), ..SetStat::default() }), Keeps::Always),
            5 => (set(SetStat { mtime: Some(time), ..SetStat::default() }), Keeps::Always),
            6 => (set(SetStat { mode: Some(0o600 | rng.below(64) as u32), ..SetStat::default() }), Keeps::Always),
            7..=9 => (Call::Getattr { ino, fh: rng.chance(1, 2).then_some(fh) }, Keeps::Unless),
            10 => (Call::Read { fh, offset: 0, length: 10_000 }, Keeps::Nothing),
            _ => (Call::Fsync { fh }, Keeps::Nothing),
        };
        let told = c.nodes[node].invalidations.len();
        let id = c.send_quietly(node, cred(0), call);
        kernels[node].running.insert(id, Running { ino, told, keeps });
        for _ in 0..rng.below(12) {
            c.one_step(&mut rng);
        }
        if rng.chance(1, 10) {
            // Some time goes by: some things are written back, some locks are called back.
            c.pass(Duration::from_millis(rng.range(1, 300)));
        }
        if faults && rng.chance(1, 60) {
            match rng.below(3) {
                0 => c.restart("fs-MDT0000"),
                1 => c.restart("fs-OST0001"),
                _ => c.cut(node),
            }
        }
        (0..CLIENTS).for_each(|node| kernels[node].listen(&mut c, node));
    }
    c.run();
    c.pass(Duration::from_secs(if faults { 60 } else { 15 }));
    (0..CLIENTS).for_each(|node| kernels[node].listen(&mut c, node));
    for (node, kernel) in kernels.iter().enumerate() {
        assert!(kernel.running.is_empty(), "seed {seed}: client {node} has calls without an answer\n{:#?}", c.log);
    }
    let fresh = c.mount();
    for ino in inos {
        let right = shown(&c.getattr(fresh, ino).unwrap());
        for (node, kernel) in kernels.iter_mut().enumerate() {
            kernel.listen(&mut c, node);
            if let Some(stat) = kernel.attrs.get(&ino) {
                stdx::mark!("times.kept-by-a-kernel");
                assert_eq!(shown(stat), right, "seed {seed}: file {ino}, the kernel of client {node}");
            }
            let stat = c.getattr(node, ino).unwrap();
            assert_eq!(shown(&stat), right, "seed {seed}: file {ino}, client {node}");
        }
    }
}

#[test]
fn all_clients_see_the_same_after_races() {
    for seed in seeds(0, 150) {
        races(seed, false);
    }
    assert!(stdx::marks::count("times.kept-by-a-kernel") > 0);
    assert!(stdx::marks::count("attributes_from_before_the_lock") > 0);
}

#[test]
fn all_clients_see_the_same_after_races_and_restarts() {
    for seed in seeds(1_000_000, 60) {
        races(seed, true);
    }
}

/// A change that goes past the cache is done at its target, and the answer does not come. What another client has seen of it then, a
/// program here sees, too, whatever this client and its kernel knew before: its time and size, and where a read ends.
#[test]
fn what_others_saw_of_a_change_is_seen_where_it_was_made() {
    const DIRECT: u32 = 0o40002;
    /// More than a metadata target keeps.
    const SIZE: u64 = 4 << 20;
    for (allocates, reads_first) in [(false, false), (false, true), (true, false), (true, true)] {
        let what = format!("allocates {allocates}, reads first {reads_first}");
        let mut c = Cluster::new(1);
        let (a, b) = (c.mount(), c.mount());
        let (Stat { ino, .. }, fh) = c.create(a, 1, "f").unwrap();
        c.call(a, Call::SetLayout { ino, wish: cluster::wish(64 << 10, -1, 0) }).unwrap();
        c.write(a, fh, 0, &vec![1; SIZE as usize]).unwrap();
        c.call(a, Call::Fsync { fh }).unwrap();
        let direct = c.open(a, ino, DIRECT).unwrap();
        c.pass(Duration::from_secs(3));
        let before = c.getattr(a, ino).unwrap();
        assert_eq!(before.size, SIZE);
        let told = c.nodes[a].invalidations.len();

        c.tamper = Some(Box::new(move |to_client, at, frame: Frame| {
            let changes = [Opcode::ObjWrite, Opcode::ObjPunch].map(|opcode| opcode as u16);
            let lost = to_client && at == a && changes.contains(&frame.header.opcode);
            if lost { Vec::new() } else { vec![frame] }
        }));
        let change = match allocates {
            true => Call::Fallocate { fh, mode: 0, offset: SIZE, length: 4096 },
            false => {
                let data = Bytes::from_static(&[2; 4096]);
                Call::Write { fh: direct, ino: 0, offset: SIZE, data, write_back: false, kill_priv: false }
            }
        };
        let id = c.send(a, change);
        assert!(!c.answered(a, id), "{what}");
        let forgets = c.nodes[a].invalidations[told..].iter().any(|what| of(what) == Some(ino));
        assert!(forgets || !before.cacheable, "{what}: its kernel goes on with what it has");
        let there = c.getattr(b, ino).unwrap();
        assert_eq!(there.size, SIZE + 4096, "{what}");
        assert!(there.ctime_ns > before.ctime_ns, "{what}");
        let read = |c: &mut Cluster| {
            let read = c.send(a, Call::Read { fh, offset: SIZE - 10, length: 100 });
            // While bytes of the whole range are being changed, a read of them waits.
            assert_ne!(c.answered(a, read), allocates, "{what}");
            read
        };
        let early = reads_first.then(|| read(&mut c));
        let here = c.getattr(a, ino).unwrap();
        assert!(!c.answered(a, id) && !here.cacheable, "{what}");
        assert_eq!((here.size, here.mtime_ns, here.ctime_ns), (SIZE + 4096, there.mtime_ns, there.ctime_ns), "{what}");

        let read = early.unwrap_or_else(|| read(&mut c));
        c.tamper = None;
        c.cut(a);
        assert!(c.answer(a, id).is_ok(), "{what}");
        let bytes = [vec![1; 10], vec![if allocates { 0 } else { 2 }; 90]].concat();
        assert_eq!(c.answer(a, read), Ok(Answer::Data(bytes.into())), "{what}");
        assert_eq!(c.getattr(a, ino).map(|stat| stat.size), Ok(SIZE + 4096), "{what}");
    }
}

/// A small file is written past the cache, or cut, the metadata target has done it, and the answer does not come. Everybody sees the whole
/// change then, whatever else is buffered: other clients, and the one that makes it.
#[test]
fn a_change_of_a_small_file_is_seen_whole_before_its_answer() {
    const DIRECT: u32 = 0o40002;
    const SIZE: u64 = 4096;
    /// What is changed while bytes up to here are buffered, if any are.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Change {
        Write { buffered: u64 },
        Cut,
    }
    for change in
        [Change::Write { buffered: 0 }, Change::Write { buffered: 10 }, Change::Write { buffered: 20_000 }, Change::Cut]
    {
        let mut c = Cluster::new(1);
        let (a, b) = (c.mount(), c.mount());
        let (Stat { ino, .. }, fh) = c.create(a, 1, "f").unwrap();
        c.write(a, fh, 0, &[1; SIZE as usize]).unwrap();
        c.call(a, Call::Fsync { fh }).unwrap();
        let direct = c.open(a, ino, DIRECT).unwrap();
        let before = c.getattr(b, ino).unwrap();
        assert_eq!(before.size, SIZE, "{change:?}");

        c.tamper = Some(Box::new(move |to_client, at, frame: Frame| {
            let changes = [Opcode::ObjWrite, Opcode::MdsReint].map(|opcode| opcode as u16);
            let lost = to_client && at == a && changes.contains(&frame.header.opcode);
            if lost { Vec::new() } else { vec![frame] }
        }));
        let (call, end) = match change {
            Change::Write { .. } => {
                let data = Bytes::from_static(&[2; 4096]);
                (Call::Write { fh: direct, ino: 0, offset: SIZE, data, write_back: false, kill_priv: false }, 2 * SIZE)
            }
            Change::Cut => (Call::Setattr { ino, set: SetStat { size: Some(100), ..SetStat::default() } }, 100),
        };
        let id = c.send(a, call);
        assert!(!c.answered(a, id), "{change:?}");
        let mut end = end;
        if let Change::Write { buffered: buffered @ 1.. } = change {
            c.write(a, fh, buffered - 10, &[3; 10]).unwrap();
            end = end.max(buffered);
        }
        let there = c.getattr(b, ino).unwrap();
        assert_eq!(there.size, end, "{change:?}");
        assert!(there.ctime_ns > before.ctime_ns, "{change:?}");
        let here = c.getattr(a, ino).unwrap();
        assert!(!c.answered(a, id) && !here.cacheable, "{change:?}");
        assert_eq!(shown(&here), shown(&there), "{change:?}");
        // A read ends there, too: it asks, or waits until the file is cut.
        let read = c.send(a, Call::Read { fh, offset: 50, length: 100_000 });
        assert_eq!(c.answered(a, read), change != Change::Cut, "{change:?}");

        c.tamper = None;
        c.cut(a);
        assert!(c.answer(a, id).is_ok(), "{change:?}");
        let Ok(Answer::Data(data)) = c.answer(a, read) else { panic!("{change:?}") };
        assert_eq!(data.len() as u64, end - 50, "{change:?}");
        assert!(change == Change::Cut || data[SIZE as usize - 50..][..4096] == [2; 4096], "{change:?}");
        // The time is the one that was seen before.
        let there = c.getattr(b, ino).unwrap();
        assert_eq!(shown(&c.getattr(a, ino).unwrap()), shown(&there), "{change:?}");
        assert_eq!(there.size, end, "{change:?}");
    }
}
