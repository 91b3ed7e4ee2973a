//! Stories of a view over an engine in memory, and a long random one against a model.

use super::*;
use crate::{Damage, Engine, MemEngine, run_loads};
use core::time::Duration;
use stdx::Rng;

const NOW: Instant = Instant::ZERO;

fn key(n: u64) -> Key {
    Key::table(1).u64(n)
}

fn value(n: u64) -> Value {
    Value::from(n.to_string())
}

fn formats() -> Formats {
    Formats::new(|_| 1)
}

/// A view and its engine, with nothing delayed unless the story says so.
struct Stage {
    view: View,
    engine: MemEngine,
}

impl Stage {
    fn new(cache_limit: usize) -> Stage {
        let config = ViewConfig { cache_limit, policy: CommitPolicy::default() };
        Stage { view: View::new(config, formats(), 0), engine: MemEngine::new() }
    }

    /// Does everything that the view wants, until it wants nothing.
    fn settle(&mut self) {
        while let Some(effect) = self.view.poll() {
            match effect {
                StoreEffect::Load(load) => drop(self.view.loaded(load.run(&self.engine))),
                StoreEffect::Commit(group) => {
                    let number = group.number();
                    group.run(&self.engine).expect("a commit");
                    self.view.committed(number);
                }
            }
        }
    }

    /// Runs an operation until it meets no miss.
    fn run<T>(&mut self, id: u64, op: impl Fn(&mut View) -> Result<T, Miss>) -> T {
        for _ in 0..1_000 {
            self.view.begin(AttemptId(id));
            if let Ok(answer) = op(&mut self.view) {
                self.view.accept(NOW);
                self.view.finish(AttemptId(id));
                return answer;
            }
            self.view.abandon();
            self.settle();
        }
        panic!("attempt {id} makes no progress");
    }

    fn put(&mut self, n: u64, v: u64) {
        self.run(0, |view| {
            view.put(key(n), value(v));
            Ok(())
        });
    }

    fn get(&mut self, n: u64) -> Option<Value> {
        self.run(0, |view| view.get(&key(n)))
    }

    fn commit(&mut self) -> u64 {
        let group = self.view.seal_group().expect("something to commit");
        self.settle();
        group
    }

    fn next_load(&mut self) -> Load {
        match self.view.poll() {
            Some(StoreEffect::Load(load)) => load,
            other => panic!("a load was expected, not {other:?}"),
        }
    }

    fn next_commit(&mut self) -> Group {
        match self.view.poll() {
            Some(StoreEffect::Commit(group)) => group,
            other => panic!("a commit was expected, not {other:?}"),
        }
    }
}

#[test]
fn a_miss_is_loaded_once_for_all_who_wait_and_remembered() {
    let mut stage = Stage::new(1 << 20);
    for id in [1, 2] {
        stage.view.begin(AttemptId(id));
        assert_eq!(stage.view.get(&key(1)), Err(Miss));
        assert_eq!(stage.view.get(&key(1)), Err(Miss));
        stage.view.abandon();
    }
    let load = stage.next_load();
    assert!(stage.view.poll().is_none(), "two loads of one record");
    assert_eq!(stage.view.misses(AttemptId(2)), [load.id]);
    assert_eq!(stage.view.loaded(load.run(&stage.engine)), [AttemptId(1), AttemptId(2)]);
    for id in [1, 2] {
        stage.view.begin(AttemptId(id));
        assert_eq!(stage.view.get(&key(1)), Ok(None));
        stage.view.abandon();
        stage.view.finish(AttemptId(id));
    }
    stage.view.begin(AttemptId(3));
    assert_eq!(stage.view.exists(&key(1)), Ok(false), "the absence was not remembered");
}

#[test]
fn an_attempt_waits_for_all_that_it_asked_for() {
    let mut stage = Stage::new(1 << 20);
    stage.view.begin(AttemptId(1));
    let (a, b) = (stage.view.get(&key(1)), stage.view.get(&key(2)));
    assert_eq!((a, b), (Err(Miss), Err(Miss)));
    stage.view.abandon();
    let (a, b) = (stage.next_load(), stage.next_load());
    let done = run_loads(&stage.engine, &[a, b]);
    let ready: Vec<_> = done.into_iter().map(|done| stage.view.loaded(done)).collect();
    assert_eq!(ready, [vec![], vec![AttemptId(1)]]);
}

#[test]
fn what_is_not_accepted_never_was() {
    let mut stage = Stage::new(1 << 20);
    stage.put(1, 10);
    let dirty = stage.view.dirty_bytes();
    stage.view.begin(AttemptId(1));
    stage.view.put(key(1), value(11));
    stage.view.put(key(1), value(1_000_000));
    stage.view.delete(key(2));
    stage.view.put(key(2), value(22));
    assert_eq!(stage.view.get(&key(2)), Ok(Some(value(22))), "an attempt reads its own writes");
    let point = stage.view.savepoint();
    stage.view.delete(key(1));
    assert_eq!(stage.view.get(&key(1)), Ok(None));
    stage.view.rollback(point);
    assert_eq!(stage.view.get(&key(1)), Ok(Some(value(1_000_000))));
    stage.view.begin(AttemptId(2));
    assert_eq!(stage.view.get(&key(1)), Ok(Some(value(10))));
    assert_eq!(stage.view.get(&key(2)), Err(Miss));
    assert_eq!(stage.view.dirty_bytes(), dirty);
    assert_eq!(stage.view.accept(NOW), None);
}

#[test]
fn a_load_that_crosses_a_commit_brings_nothing_back() {
    let mut stage = Stage::new(0);
    stage.put(1, 10);
    stage.put(2, 20);
    stage.commit();
    stage.view.begin(AttemptId(9));
    stage.view.begin(AttemptId(9)); // the retiring group has gone through the cache, which keeps nothing
    assert_eq!(stage.view.get(&key(1)), Err(Miss));
    assert_eq!(stage.view.scan(&KeyRange::all(), 9), Err(Miss));
    stage.view.abandon();
    let (record, scan) = (stage.next_load(), stage.next_load());
    let old = (record.run(&stage.engine), scan.run(&stage.engine));

    stage.view.begin(AttemptId(1));
    stage.view.put(key(1), value(11));
    stage.view.delete(key(2));
    stage.view.accept(NOW);
    stage.commit();

    assert_eq!(stage.view.loaded(old.0), []);
    assert_eq!(stage.view.loaded(old.1), [AttemptId(9)]);
    for _ in 0..3 {
        stage.view.begin(AttemptId(9));
        assert_eq!(stage.view.get(&key(1)), Ok(Some(value(11))));
        assert_eq!(stage.view.scan(&KeyRange::all(), 9), Ok(vec![(key(1), value(11))]));
        stage.view.abandon();
    }
    // What has been loaded stays right while the attempt goes on waiting, too.
    stage.put(2, 22);
    stage.commit();
    stage.view.begin(AttemptId(9));
    assert_eq!(stage.view.scan(&KeyRange::all(), 9), Ok(vec![(key(1), value(11)), (key(2), value(22))]));
}

#[test]
fn an_attempt_makes_progress_without_any_cache() {
    let mut stage = Stage::new(0);
    (0..100).for_each(|n| stage.put(n, n));
    stage.commit();
    stage.put(1_000, 0);
    stage.commit();
    let sum = stage.run(5, |view| {
        let mut sum = 0;
        for n in 0..100 {
            sum += view.get(&key(n))?.map_or(0, |value| value.len());
        }
        Ok(sum)
    });
    assert_eq!(sum, 190);
    stage.view.begin(AttemptId(6));
    stage.view.finish(AttemptId(5));
    assert!(stage.view.cache_bytes() == 0, "records stayed pinned");
}

#[test]
fn a_scan_sees_through_deletions_and_insertions_of_all_layers() {
    let mut stage = Stage::new(1 << 20);
    (0..1_000).for_each(|n| stage.put(n * 10, n));
    stage.commit();
    // In flight: the first 500 are deleted. Collecting: one of them is back, one new one, one more deleted.
    (0..500).for_each(|n| {
        stage.run(0, |view| {
            view.delete(key(n * 10));
            Ok(())
        })
    });
    assert_eq!(stage.view.seal_group(), Some(2));
    let group = stage.next_commit();
    stage.put(30, 33);
    stage.put(31, 34);
    stage.run(0, |view| {
        view.delete(key(5_000));
        Ok(())
    });
    let expected = vec![(key(30), value(33)), (key(31), value(34)), (key(5_010), value(501)), (key(5_020), value(502))];
    assert_eq!(stage.run(1, |view| view.scan(&KeyRange::prefix(Key::table(1)), 4)), expected);
    assert_eq!(stage.run(1, |view| view.scan(&KeyRange::new(key(31), key(5_020)), 100)), expected[1..3]);
    assert_eq!(stage.run(1, |view| view.scan(&KeyRange::new(key(31), key(31)), 100)), []);
    group.clone().run(&stage.engine).expect("a commit");
    assert_eq!(stage.run(1, |view| view.scan(&KeyRange::all(), 4)), expected);
    stage.view.committed(group.number());
    assert_eq!(stage.run(1, |view| view.scan(&KeyRange::all(), 4)), expected);
    assert_eq!(stage.run(1, |view| view.scan(&KeyRange::all(), 4_000)).len(), 501);
}

#[test]
fn groups_leave_by_time_by_size_and_by_wish() {
    let second = Duration::from_secs(1);
    let mut stage = Stage::new(1 << 20);
    assert_eq!(stage.view.deadline(), None);
    stage.view.begin(AttemptId(1));
    stage.view.put(key(1), value(1));
    assert_eq!(stage.view.accept(Instant(500)), Some(1));
    stage.put(2, 2);
    assert_eq!(stage.view.deadline(), Some(Instant(500) + second));
    assert_eq!(stage.view.seal_if_due(Instant(600)), None);
    assert_eq!(stage.view.newest_group(), 1);
    assert_eq!(stage.view.seal_if_due(Instant(500) + second), Some(1));
    assert_eq!(stage.view.newest_group(), 1);

    // While group 1 is written, fsyncs come together in group 2.
    stage.put(3, 3);
    assert!(!stage.view.want_durable(2));
    stage.put(4, 4);
    assert!(!stage.view.want_durable(2));
    assert_eq!(stage.view.deadline(), None);
    assert_eq!(stage.view.seal_if_due(Instant::FAR), None);
    let group = stage.next_commit();
    group.run(&stage.engine).expect("a commit");
    stage.view.committed(1);
    assert_eq!(stage.view.seal_if_due(NOW), Some(2));
    stage.settle();
    assert!(stage.view.want_durable(2));
    assert_eq!((stage.view.durable_group(), stage.engine.last_group()), (2, Ok(2)));
    assert_eq!(stage.get(4), Some(value(4)));

    stage.view.set_policy(CommitPolicy { interval: second, dirty_limit: 1_000 });
    (0..20).for_each(|n| stage.put(n, n));
    assert_eq!(stage.view.seal_if_due(NOW), Some(3));
    assert!(!stage.view.over_limit());
    (0..20).for_each(|n| stage.put(n, n));
    assert!(stage.view.over_limit(), "two full groups, and more changes are let in");
    stage.settle();
    assert!(!stage.view.over_limit());
}

#[test]
fn a_damaged_record_fails_those_who_need_it_and_says_which() {
    let mut stage = Stage::new(0);
    (1..4).for_each(|n| stage.put(n, n));
    stage.commit();
    assert!(stage.engine.damage(&key(2), &mut Rng::new(1)));
    stage.view.retire(usize::MAX);
    for ask in
        [|view: &mut View| view.get(&key(2)).map(drop), |view: &mut View| view.scan(&KeyRange::all(), 9).map(drop)]
    {
        stage.view.begin(AttemptId(1));
        assert_eq!(ask(&mut stage.view), Err(Miss));
        stage.view.abandon();
        stage.settle();
        stage.view.begin(AttemptId(1));
        assert_eq!(ask(&mut stage.view), Err(Miss));
        stage.view.abandon();
        assert!(stage.view.poll().is_none(), "an attempt that has failed goes on loading");
        match stage.view.failure(AttemptId(1)) {
            Some(EngineError::Damaged(damaged)) => {
                assert_eq!(damaged.key, key(2));
                assert!(matches!(damaged.what, Damage::Checksum { .. }));
            }
            other => panic!("{other:?}"),
        }
        stage.view.finish(AttemptId(1));
        assert_eq!(stage.get(3), Some(value(3)), "its neighbours are well");
    }
    stage.put(2, 22);
    assert_eq!(stage.get(2), Some(value(22)), "a damaged record may be written over");
    stage.commit();
    assert_eq!(stage.run(1, |view| view.scan(&KeyRange::all(), 9)).len(), 3);
}

#[test]
fn after_a_failed_commit_nothing_leaves_any_more() {
    let mut stage = Stage::new(1 << 20);
    stage.engine.set_capacity(Some(100));
    stage.put(1, 1);
    stage.view.seal_group();
    let error = stage.next_commit().run(&stage.engine).expect_err("a full store");
    assert_eq!(error.to_string(), "no space for the store in 'mem:' (0 of 100 bytes used): make room there");
    stage.view.commit_failed(1);
    stage.put(2, 2);
    assert!(stage.view.has_failed() && stage.view.over_limit());
    assert_eq!((stage.view.deadline(), stage.view.seal_group(), stage.view.durable_group()), (None, None, 0));
}

#[test]
fn room_is_reserved_for_the_worst_case_before_an_answer_leaves() {
    let mut stage = Stage::new(1 << 20);
    assert_eq!(stage.view.room(1_000, 1 << 40, RoomFor::Change { promised: 0 }), Room::Yes);
    stage.view.set_space(Space {
        total: 9 << 20,
        free: 1 << 20,
        reserve: 1 << 20,
        at_once: 1 << 20,
        records: 0,
        disk: 0,
    });
    assert_eq!(stage.view.room(6, 1_000, RoomFor::Change { promised: 0 }), Room::Yes);
    assert_eq!(stage.view.room(100, 1_000, RoomFor::Change { promised: 0 }), Room::No);
    assert_eq!(stage.view.room(100, 1_000, RoomFor::Removal), Room::Yes, "removals may use the reserve");
    assert_eq!(stage.view.room(6, 1_000, RoomFor::Change { promised: 1 << 20 }), Room::No, "it is promised");
    (0..60).for_each(|n| stage.put(n, n));
    assert_eq!(stage.view.room(6, 1_000, RoomFor::Change { promised: 0 }), Room::AfterCommit);
    stage.commit();
    assert_eq!(stage.view.room(6, 1_000, RoomFor::Change { promised: 0 }), Room::Yes);
}

#[test]
fn an_attempt_that_is_over_leaves_nothing_behind() {
    let mut stage = Stage::new(0);
    stage.view.begin(AttemptId(1));
    assert_eq!(stage.view.get(&key(1)), Err(Miss));
    assert_eq!(stage.view.scan(&KeyRange::all(), 1), Err(Miss));
    stage.view.abandon();
    stage.view.finish(AttemptId(1));
    let (a, b) = (stage.next_load(), stage.next_load());
    assert_eq!(stage.view.loaded(a.run(&stage.engine)), []);
    assert_eq!(stage.view.loaded(b.run(&stage.engine)), []);
    assert_eq!(stage.view.loaded(b.run(&stage.engine)), [], "an answer that came twice");
    assert!(stage.view.attempts.is_empty() && stage.view.loads.is_empty() && stage.view.record_loads.is_empty());
    assert_eq!(stage.view.cache_bytes(), 0);
}

// --- the long random story ---

/// One step of a random operation.
#[derive(Clone, Debug)]
enum Step {
    Get(Key),
    Scan(KeyRange, usize),
    Put(Key, Value),
    Delete(Key),
    /// Everything after the last mark is taken back.
    Mark,
    Rollback,
}

/// What a step answered.
#[derive(Debug, PartialEq)]
enum Answer {
    Record(Option<Value>),
    Records(Vec<(Key, Value)>),
}

type Model = BTreeMap<Key, Value>;

/// Runs the steps on the model: the answers, and the state if it is accepted.
fn on_model(model: &Model, steps: &[Step]) -> (Vec<Answer>, Model) {
    let (mut answers, mut state) = (Vec::new(), model.clone());
    let mut mark = state.clone();
    for step in steps {
        match step {
            Step::Get(key) => answers.push(Answer::Record(state.get(key).cloned())),
            Step::Scan(range, limit) => {
                let live = state.iter().filter(|(key, _)| range.contains(key)).take(*limit);
                answers.push(Answer::Records(live.map(|(key, value)| (key.clone(), value.clone())).collect()));
            }
            Step::Put(key, value) => drop(state.insert(key.clone(), value.clone())),
            Step::Delete(key) => drop(state.remove(key)),
            Step::Mark => mark = state.clone(),
            Step::Rollback => state = mark.clone(),
        }
    }
    (answers, state)
}

fn on_view(view: &mut View, steps: &[Step]) -> Result<Vec<Answer>, Miss> {
    let mut answers = Vec::new();
    let mut missed = false;
    let mut mark = view.savepoint();
    for step in steps {
        match step {
            Step::Get(key) => match view.get(key) {
                Ok(found) => answers.push(Answer::Record(found)),
                Err(Miss) => missed = true, // go on, to collect the misses that can be seen
            },
            Step::Scan(range, limit) => answers.push(Answer::Records(view.scan(range, *limit)?)),
            Step::Put(key, value) => view.put(key.clone(), value.clone()),
            Step::Delete(key) => view.delete(key.clone()),
            Step::Mark => mark = view.savepoint(),
            Step::Rollback => view.rollback(mark),
        }
    }
    if missed { Err(Miss) } else { Ok(answers) }
}

/// A view over an engine whose every answer may be late.
struct Chaos {
    rng: Rng,
    keys: u64,
    engine: MemEngine,
    view: View,
    model: Model,
    /// The model's state at the end of each group.
    states: BTreeMap<u64, Model>,
    waiting: BTreeMap<AttemptId, Vec<Step>>,
    ready: Vec<AttemptId>,
    to_read: Vec<Load>,
    to_deliver: Vec<LoadDone>,
    to_write: Option<Group>,
    to_make_durable: Option<u64>,
    to_tell: Option<u64>,
    next: u64,
}

impl Chaos {
    fn new(seed: u64) -> Chaos {
        let mut rng = Rng::new(seed);
        let engine = MemEngine::new();
        let keys = *rng.pick(&[4, 30, 300]).expect("a choice");
        let states = BTreeMap::from([(0, Model::new())]);
        let view = Chaos::view(&mut rng, &engine);
        Chaos {
            rng,
            keys,
            engine,
            view,
            model: Model::new(),
            states,
            waiting: BTreeMap::new(),
            ready: Vec::new(),
            to_read: Vec::new(),
            to_deliver: Vec::new(),
            to_write: None,
            to_make_durable: None,
            to_tell: None,
            next: 1,
        }
    }

    fn view(rng: &mut Rng, engine: &MemEngine) -> View {
        let cache_limit = *rng.pick(&[0, 500, 5_000, 1 << 20]).expect("a choice");
        let config = ViewConfig { cache_limit, policy: CommitPolicy::default() };
        View::new(config, formats(), engine.last_group().expect("a number"))
    }

    fn key(&mut self) -> Key {
        let n = self.rng.below(self.keys);
        let key = Key::table((n % 3) as u8).u64(n);
        if n.is_multiple_of(7) { key.bytes(&[n as u8; 40]) } else { key }
    }

    fn steps(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        for _ in 0..self.rng.range(1, 6) {
            let step = match self.rng.below(10) {
                0..4 => Step::Get(self.key()),
                4 => {
                    let (a, b) = (self.key(), self.key());
                    let limit = *self.rng.pick(&[0, 1, 3, 20, 1_000]).expect("a choice");
                    Step::Scan(KeyRange::new(a.clone().min(b.clone()), a.max(b)), limit)
                }
                5..7 => Step::Put(self.key(), value(self.rng.u64())),
                7 => Step::Delete(self.key()),
                8 => Step::Mark,
                _ => Step::Rollback,
            };
            steps.push(step);
        }
        steps
    }

    fn attempt(&mut self, id: AttemptId) {
        let steps = self.waiting[&id].clone();
        self.view.begin(id);
        match on_view(&mut self.view, &steps) {
            Ok(answers) => {
                let (expected, state) = on_model(&self.model, &steps);
                assert_eq!(answers, expected, "{steps:?}");
                if self.rng.chance(4, 5) {
                    self.view.accept(NOW);
                    self.model = state;
                }
                self.view.finish(id);
                self.waiting.remove(&id);
            }
            Err(Miss) => {
                assert!(!self.view.misses(id).is_empty(), "a miss that nothing is done about");
                self.view.abandon();
            }
        }
    }

    fn seal(&mut self) {
        let number = self.view.collecting_group();
        if self.view.seal_group().is_some() {
            self.states.insert(number, self.model.clone());
        }
    }

    /// The power fails, or the process dies, or the target is stopped; a new one starts on what is left.
    fn crash(&mut self) {
        let before = self.engine.last_group().expect("a number");
        self.engine.crash(&mut self.rng);
        let group = self.engine.last_group().expect("a number");
        assert!(group >= before && group <= before + 1);
        self.model = self.states[&group].clone();
        let found = self.engine.records().into_iter().map(|(key, sealed)| {
            let body = formats().open(&key, &sealed).expect("whole");
            (key, body)
        });
        assert_eq!(found.collect::<Model>(), self.model, "not the state at the end of group {group}");
        self.states.retain(|&number, _| number <= group);
        self.view = Chaos::view(&mut self.rng, &self.engine);
        self.waiting.clear();
        self.ready.clear();
        self.to_read.clear();
        self.to_deliver.clear();
        (self.to_write, self.to_make_durable, self.to_tell) = (None, None, None);
    }

    fn take<T>(rng: &mut Rng, from: &mut Vec<T>) -> Option<T> {
        if from.is_empty() { None } else { Some(from.swap_remove(rng.below(from.len() as u64) as usize)) }
    }

    fn step(&mut self) {
        while let Some(effect) = self.view.poll() {
            match effect {
                StoreEffect::Load(load) => self.to_read.push(load),
                StoreEffect::Commit(group) => assert!(self.to_write.replace(group).is_none(), "two in flight"),
            }
        }
        match self.rng.below(100) {
            0..25 if self.waiting.len() < 8 => {
                let id = AttemptId(self.next);
                self.next += 1;
                let steps = self.steps();
                self.waiting.insert(id, steps);
                self.attempt(id);
            }
            0..45 => {
                if let Some(id) = Chaos::take(&mut self.rng, &mut self.ready)
                    && self.waiting.contains_key(&id)
                {
                    self.attempt(id);
                }
            }
            45..60 => {
                if let Some(load) = Chaos::take(&mut self.rng, &mut self.to_read) {
                    self.to_deliver.push(load.run(&self.engine));
                }
            }
            60..75 => {
                if let Some(done) = Chaos::take(&mut self.rng, &mut self.to_deliver) {
                    self.ready.extend(self.view.loaded(done));
                }
            }
            75..80 => self.seal(),
            80..86 => {
                if let Some(group) = self.to_write.take() {
                    self.to_make_durable = Some(group.number());
                    self.engine.begin_commit(group.number(), group.seal()).expect("a commit");
                }
            }
            86..92 => {
                if let Some(group) = self.to_make_durable.take() {
                    self.engine.make_durable(group);
                    self.to_tell = Some(group);
                }
            }
            92..97 => {
                if let Some(group) = self.to_tell.take() {
                    self.view.committed(group);
                }
            }
            97 => {
                let limit = self.rng.below(3_000) as usize;
                self.view.set_cache_limit(limit);
            }
            98 => {
                // Somebody gives up waiting.
                let ids: Vec<_> = self.waiting.keys().copied().collect();
                if let Some(&id) = self.rng.pick(&ids) {
                    self.waiting.remove(&id);
                    self.view.finish(id);
                }
            }
            _ if self.rng.chance(1, 5) => self.crash(),
            _ => {}
        }
    }
}

fn run_seed(seed: u64) {
    struct Sign(u64);
    impl Drop for Sign {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("again with: SEED={} cargo test -p store random", self.0);
            }
        }
    }
    let _sign = Sign(seed);
    let mut chaos = Chaos::new(seed);
    for _ in 0..3_000 {
        chaos.step();
    }
}

#[test]
#[allow(clippy::disallowed_methods)] // a person may name the seed
fn a_random_history_with_late_answers_and_crashes_agrees_with_a_model() {
    match std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => run_seed(seed),
        None => (0..300).for_each(run_seed),
    }
}
