//! Random record locks of several clients on several files, against bytes in arrays.

use std::collections::BTreeMap;

use proto::msg::{CancelReq, EnqueueReq, Flock, LockMode, Policy, Resource};
use proto::{Errno, Fid};
use stdx::{Instant, Rng};

use super::{Counters, Enqueued, LockEvent, Locks, Settings};
use crate::{ExportId, WaiterId};

const FILES: u32 = 3;
const BYTES: u64 = 12;
/// Clients, with two owners each.
const CLIENTS: u64 = 3;

type Owner = (u64, u64);

struct Model {
    /// What each owner has on each byte: 1 read, 2 write.
    bytes: BTreeMap<(u32, Owner), [u8; BYTES as usize]>,
    /// Requests that wait, by waiter.
    waiting: BTreeMap<u64, (u32, Owner, u64, LockMode, u64, u64)>,
}

impl Model {
    fn in_the_way(&self, file: u32, owner: Owner, mode: LockMode, start: u64, end: u64) -> Vec<Owner> {
        let clash = |cells: &[u8]| {
            (start..=end).any(|i| match cells[i as usize] {
                2 => true,
                1 => mode == LockMode::Pw,
                _ => false,
            })
        };
        self.bytes
            .iter()
            .filter(|((f, o), c)| *f == file && *o != owner && clash(&c[..]))
            .map(|((_, o), _)| *o)
            .collect()
    }

    fn set(&mut self, file: u32, owner: Owner, mode: LockMode, start: u64, end: u64) {
        let cells = self.bytes.entry((file, owner)).or_default();
        let value = match mode {
            LockMode::Pw => 2,
            LockMode::Pr => 1,
            _ => 0,
        };
        cells[start as usize..=end as usize].fill(value);
    }

    /// Owners that wait for themselves.
    fn ring(&self) -> bool {
        let edges: Vec<(Owner, Vec<Owner>)> =
            self.waiting.values().map(|&(f, o, _, m, s, e)| (o, self.in_the_way(f, o, m, s, e))).collect();
        self.waiting.values().any(|&(_, start, ..)| {
            let mut seen = vec![];
            let mut todo: Vec<Owner> =
                edges.iter().filter(|(o, _)| *o == start).flat_map(|(_, to)| to.clone()).collect();
            while let Some(next) = todo.pop() {
                if next == start {
                    return true;
                }
                if !seen.contains(&next) {
                    seen.push(next);
                    todo.extend(edges.iter().filter(|(o, _)| *o == next).flat_map(|(_, to)| to.clone()));
                }
            }
            false
        })
    }
}

fn file(f: u32) -> Resource {
    Resource::flock(Fid::new(Fid::SEQ_FIRST, f + 1))
}

fn drain(locks: &mut Locks, model: &mut Model) -> u64 {
    let mut deadlocks = 0;
    while let Some(event) = locks.poll() {
        match event {
            LockEvent::Granted { waiter, grant, .. } => {
                let (f, o, cookie, mode, start, end) = model.waiting.remove(&waiter.0).expect("it waited");
                assert_eq!((grant.cookie, grant.mode), (cookie, mode as i32));
                assert!(model.in_the_way(f, o, mode, start, end).is_empty(), "granted against another");
                model.set(f, o, mode, start, end);
            }
            LockEvent::Refused { waiter, errno } => {
                assert!(model.waiting.remove(&waiter.0).is_some());
                deadlocks += u64::from(errno == Errno::EDEADLK);
            }
            other => panic!("{other:?}"),
        }
    }
    deadlocks
}

#[test]
fn a_server_of_record_locks_is_arrays_of_bytes() {
    let (mut at_once, mut by_grant, mut waited) = (0, 0, 0);
    for seed in 0..120 {
        let mut rng = Rng::new(seed);
        let mut locks = Locks::new(0, Settings::default());
        let mut model = Model { bytes: BTreeMap::new(), waiting: BTreeMap::new() };
        let now = Instant::ZERO;
        for step in 1..600u64 {
            let f = rng.below(u64::from(FILES)) as u32;
            let owner: Owner = (1 + rng.below(CLIENTS), rng.below(2));
            let export = ExportId(owner.0);
            let (a, b) = (rng.below(BYTES), rng.below(BYTES));
            let (start, end) = (a.min(b), a.max(b));
            let mode = [LockMode::Pr, LockMode::Pw, LockMode::Nl, LockMode::Nl][rng.below(4) as usize];
            let mut req = EnqueueReq {
                resource: file(f),
                mode: mode as i32,
                cookie: step,
                policy: Some(Policy::Flock(Flock { start, end, owner: owner.1, pid: 1, is_flock: false })),
                no_wait: rng.chance(1, 4),
                glimpse: false,
                granted_handle: 0,
                test: false,
                keep: false,
                version: 0,
            };
            if rng.chance(1, 60) {
                locks.export_gone(now, export);
                model.bytes.retain(|(_, o), _| o.0 != owner.0);
                model.waiting.retain(|_, w| w.1.0 != owner.0);
            } else if rng.chance(1, 12) {
                let waiting_cookies = model.waiting.values().filter(|w| w.1 == owner).map(|w| w.2).collect();
                locks.cancel(now, export, &CancelReq { handles: vec![], waiting_cookies });
            } else if mode != LockMode::Nl && rng.chance(1, 8) {
                req.test = true;
                let free = model.in_the_way(f, owner, mode, start, end).is_empty();
                let found = locks.enqueue(now, export, &req, WaiterId(step));
                assert_eq!(found == Enqueued::NotFound, free, "seed {seed} step {step}: {found:?}");
            } else {
                let blocked = mode != LockMode::Nl && !model.in_the_way(f, owner, mode, start, end).is_empty();
                match locks.enqueue(now, export, &req, WaiterId(step)) {
                    Enqueued::Granted(_) | Enqueued::Unlocked => {
                        assert!(!blocked, "seed {seed} step {step}");
                        model.set(f, owner, mode, start, end);
                    }
                    Enqueued::Waiting => {
                        assert!(blocked && !req.no_wait);
                        model.waiting.insert(step, (f, owner, step, mode, start, end));
                        waited += 1;
                    }
                    Enqueued::Refused(Errno::EAGAIN) => assert!(blocked && req.no_wait),
                    Enqueued::Refused(Errno::EDEADLK) => {
                        model.waiting.insert(step, (f, owner, step, mode, start, end));
                        assert!(model.ring(), "seed {seed} step {step}: no ring");
                        model.waiting.remove(&step);
                        at_once += 1;
                    }
                    other => panic!("seed {seed} step {step}: {other:?}"),
                }
            }
            by_grant += drain(&mut locks, &mut model);
            assert!(!model.ring(), "seed {seed} step {step}: a ring of waiters");
            for &(f, o, _, mode, start, end) in model.waiting.values() {
                assert!(!model.in_the_way(f, o, mode, start, end).is_empty(), "seed {seed} step {step}: forgotten");
            }
            let mut seen = BTreeMap::new();
            for info in (0..FILES).flat_map(|f| locks.granted_on(&file(f)).into_iter().map(move |i| (f, i))) {
                let (f, info) = info;
                let Policy::Flock(l) = info.policy else { panic!("{info:?}") };
                let cells: &mut [u8; BYTES as usize] = seen.entry((f, (info.export.0, l.owner))).or_default();
                cells[l.start as usize..=l.end as usize].fill(1 + u8::from(info.mode == LockMode::Pw));
            }
            model.bytes.retain(|_, cells| cells.iter().any(|&c| c != 0));
            assert_eq!(seen, model.bytes, "seed {seed} step {step}");
            assert_eq!(locks.counters().waiting, model.waiting.len() as u64);
        }
        for client in 1..=CLIENTS {
            locks.export_gone(now, ExportId(client));
        }
        assert!(locks.is_idle());
        assert_eq!(locks.counters(), Counters::default());
    }
    assert!(waited > 1000 && at_once > 100 && by_grant > 0, "{waited} {at_once} {by_grant}");
}

/// Thousands of owners and thousands of ranges on one file: a lock, a refusal, a question and an unlock cost a few steps each.
#[test]
fn a_lock_on_a_file_with_thousands_costs_a_few_steps() {
    const MANY: u64 = 4000;
    let mut locks = Locks::new(0, Settings::default());
    let mut cookie = 0;
    let mut ask = |locks: &mut Locks, owner: u64, at: u64, mode: LockMode, test: bool| {
        cookie += 1;
        let req = EnqueueReq {
            resource: Resource::flock(Fid::new(Fid::SEQ_FIRST, 1)),
            mode: mode as i32,
            cookie,
            policy: Some(Policy::Flock(Flock { start: at, end: at, owner, pid: 1, is_flock: false })),
            no_wait: true,
            test,
            ..EnqueueReq::default()
        };
        let now = Instant::ZERO;
        let (steps, done) = stdx::steps::of(|| locks.enqueue(now, ExportId(1 + owner % 7), &req, WaiterId(cookie)));
        assert!(steps < 400, "{steps} steps");
        done
    };
    // Each process locks a byte of its own, and one process every second byte behind them.
    for n in 0..MANY {
        assert!(matches!(ask(&mut locks, 7 + n, n, LockMode::Pw, false), Enqueued::Granted(_)));
        assert!(matches!(ask(&mut locks, 1, MANY + 2 * n, LockMode::Pw, false), Enqueued::Granted(_)));
    }
    for n in 0..MANY {
        assert_eq!(ask(&mut locks, 2, n, LockMode::Pr, false), Enqueued::Refused(Errno::EAGAIN));
        assert!(matches!(ask(&mut locks, 1, n, LockMode::Pr, true), Enqueued::Conflict(f, _) if f.owner == 7 + n));
        assert_eq!(ask(&mut locks, 2, MANY + 2 * n + 1, LockMode::Pr, true), Enqueued::NotFound);
    }
    assert_eq!(locks.counters().records, 2 * MANY);
    for n in 0..MANY {
        assert_eq!(ask(&mut locks, 7 + n, n, LockMode::Nl, false), Enqueued::Unlocked);
        assert_eq!(ask(&mut locks, 1, MANY + 2 * n, LockMode::Nl, false), Enqueued::Unlocked);
    }
    assert_eq!(locks.counters().records, 0);
}
