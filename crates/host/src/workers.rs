//! The threads that do a target's disk I/O, so that the target's own thread never does any.
//!
//! One thread commits groups, in order. Two load records. A few operate on data files: all operations on a file go to the
//! same thread, which keeps their order; a sync of files of several threads is split, and answered when the last part is
//! done. Beside each of these, a second thread makes files durable, so that writes continue meanwhile
//! ([`crate::data_files`]). One thread reads through the whole store, a little each second, to find damage early. Results
//! come back as events of the target. A panic of a thread is reported on a channel of its own, and stops the target.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use proto::Errno;
use store::{Engine, EngineError, Key};
use target::{DataId, DataOp, DataResult, Event};

use crate::asserted::start_thread;
use crate::data_files::{DataFiles, SyncJob};

/// The channel for results. Those that belong together are sent together, so that they wake the target once.
pub type Events = tokio::sync::mpsc::UnboundedSender<Vec<Event>>;
/// The channel for the names of threads that have panicked.
pub type Panics = tokio::sync::mpsc::UnboundedSender<String>;

type Job = Box<dyn FnOnce() + Send>;

/// The worker threads of one target. After this is dropped, they exit once their queues are empty.
pub struct Workers {
    engine: Arc<dyn Engine>,
    events: Events,
    commits: mpsc::Sender<Job>,
    loads: mpsc::Sender<Job>,
    data: Vec<mpsc::Sender<DataJob>>,
    /// Dropping it stops the thread that looks for damage.
    _walk: mpsc::Sender<()>,
}

/// The number of threads that load records.
const LOADERS: usize = 2;
/// Up to this many records, one loader reads them all.
const LOADS_TOGETHER: usize = 64;
/// The number of threads for data files.
const DATA_THREADS: usize = 2;

/// How many bytes of the store are verified at a time.
const WALK_BYTES: usize = 1 << 20;
const WALK_EVERY: Duration = Duration::from_secs(1);
/// The pause between two passes over the store.
const WALK_REST: Duration = Duration::from_secs(6 * 3600);

/// Verifies the whole store again and again, until the sender of `ended` is dropped.
fn look_for_damage(engine: &dyn Engine, events: &Events, ended: &mpsc::Receiver<()>) {
    let mut from = Key::empty();
    let mut rest = WALK_EVERY;
    while ended.recv_timeout(rest) == Err(mpsc::RecvTimeoutError::Timeout) {
        let (next, damage) = match engine.verify(&from, WALK_BYTES) {
            Ok(verified) => (verified.next, verified.damage),
            Err(error) => (None, vec![error.to_string()]),
        };
        if !damage.is_empty() {
            let _ = events.send(damage.into_iter().map(Event::DamageFound).collect());
        }
        rest = if next.is_some() { WALK_EVERY } else { WALK_REST };
        from = next.unwrap_or_else(Key::empty);
    }
}

struct DataJob {
    op: DataOp,
    done: Done,
}

/// Takes the result of a data operation.
type Done = Box<dyn FnOnce(DataResult) + Send>;

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Workers")
    }
}

impl Workers {
    /// Starts the threads. `data` is the folder of data files of an object target.
    ///
    /// # Errors
    /// The operating system refused a thread.
    pub fn start(
        name: &str,
        engine: Arc<dyn Engine>,
        data: Option<PathBuf>,
        events: Events,
        panics: &Panics,
    ) -> io::Result<Workers> {
        let spawn = |role: &str, body: Box<dyn FnOnce() + Send>| {
            let panics = panics.clone();
            start_thread(format!("{name}-{role}"), move |thread| drop(panics.send(thread.to_owned())), body)
        };
        let (commits, queue) = mpsc::channel::<Job>();
        spawn("commit", Box::new(move || queue.into_iter().for_each(|job| job())))?;
        let (loads, queue) = mpsc::channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..LOADERS {
            let queue = queue.clone();
            spawn(
                "load",
                Box::new(move || {
                    loop {
                        let Ok(job) = queue.lock().recv() else { return };
                        job();
                    }
                }),
            )?;
        }
        let (walk, ended) = mpsc::channel();
        let walked = (engine.clone(), events.clone());
        spawn("verify", Box::new(move || look_for_damage(&*walked.0, &walked.1, &ended)))?;
        let mut threads = Vec::new();
        if let Some(root) = data {
            for _ in 0..DATA_THREADS {
                let (sender, queue) = mpsc::channel::<DataJob>();
                let (syncs, sync_queue) = mpsc::channel::<(SyncJob, Option<Done>)>();
                spawn("sync", Box::new(move || make_durable(sync_queue)))?;
                let files = DataFiles::new(root.clone());
                spawn("data", Box::new(move || do_data(files, queue, &syncs)))?;
                threads.push(sender);
            }
        }
        Ok(Workers { engine, events, commits, loads, data: threads, _walk: walk })
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// Runs loads that are wanted at the same time on the loader threads; each gives an event. Records are loaded in large
    /// parts, because handing a job over takes longer than reading a record.
    pub fn load(&self, loads: Vec<store::Load>) {
        let (records, scans): (Vec<_>, Vec<_>) =
            loads.into_iter().partition(|load| matches!(load.what, store::LoadWhat::Record(_)));
        let part = records.len().div_ceil(LOADERS).max(LOADS_TOGETHER);
        for part in records.chunks(part).chain(scans.chunks(1)) {
            let (engine, events, part) = (self.engine.clone(), self.events.clone(), part.to_vec());
            let _ = self.loads.send(Box::new(move || {
                let _ = events.send(store::run_loads(&*engine, &part).into_iter().map(Event::Loaded).collect());
            }));
        }
    }

    /// Commits a group after all earlier ones; gives an event, and before that the new space, so that the next group is not
    /// filled according to the old figure.
    pub fn commit(&self, group: store::Group) {
        let (engine, events) = (self.engine.clone(), self.events.clone());
        let _ = self.commits.send(Box::new(move || {
            let number = group.number();
            let mut results = Vec::new();
            match group.run(&*engine) {
                Ok(()) => {
                    results.extend(engine.space().ok().map(Event::Space));
                    results.push(Event::Committed { group: number });
                }
                Err(error @ EngineError::Full { .. }) => {
                    results.push(Event::CommitDelayed { group: number, reason: error });
                }
                Err(error) => results.push(Event::CommitFailed { group: number, reason: error }),
            }
            let _ = events.send(results);
        }));
    }

    /// Runs a data operation; gives an event.
    pub fn data(&self, id: DataId, op: DataOp) {
        let events = self.events.clone();
        let done = move |result| {
            let _ = events.send(vec![Event::DataDone { id, result }]);
        };
        if self.data.is_empty() {
            done(DataResult::Failed(Errno::EIO));
            return;
        }
        match op {
            DataOp::Sync { files } => self.sync(files, Box::new(done)),
            op => {
                let thread = self.thread_of(op.files().first().copied().unwrap_or(0));
                let _ = self.data[thread].send(DataJob { op, done: Box::new(done) });
            }
        }
    }

    fn thread_of(&self, file: u64) -> usize {
        (file % self.data.len().max(1) as u64) as usize
    }

    fn sync(&self, files: Vec<u64>, done: Box<dyn FnOnce(DataResult) + Send>) {
        let mut parts: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for file in files {
            parts.entry(self.thread_of(file)).or_default().push(file);
        }
        if parts.is_empty() {
            done(DataResult::Done);
            return;
        }
        let left = Arc::new(AtomicUsize::new(parts.len()));
        let failed = Arc::new(AtomicBool::new(false));
        let done = Arc::new(Mutex::new(Some(done)));
        for (thread, files) in parts {
            let (left, failed, done) = (left.clone(), failed.clone(), done.clone());
            let part_done = move |result| {
                if matches!(result, DataResult::Failed(_)) {
                    failed.store(true, Ordering::SeqCst);
                }
                if left.fetch_sub(1, Ordering::SeqCst) == 1 {
                    let result =
                        if failed.load(Ordering::SeqCst) { DataResult::Failed(Errno::EIO) } else { DataResult::Done };
                    if let Some(done) = done.lock().take() {
                        done(result);
                    }
                }
            };
            let _ = self.data[thread].send(DataJob { op: DataOp::Sync { files }, done: Box::new(part_done) });
        }
    }
}

/// The body of a thread for data files. It passes syncs on, together with the files that were written before them.
fn do_data(mut files: DataFiles, queue: mpsc::Receiver<DataJob>, syncs: &mpsc::Sender<(SyncJob, Option<Done>)>) {
    for job in queue {
        match job.op {
            DataOp::Sync { files: numbers } => drop(syncs.send((files.sync(&numbers), Some(job.done)))),
            op => {
                let result = files.run(op);
                if let Some(sync) = files.write_out() {
                    let _ = syncs.send((sync, None));
                }
                (job.done)(result);
            }
        }
    }
}

/// The body of the sync thread beside it. A failure that no request waits for is reported to every later sync.
fn make_durable(queue: mpsc::Receiver<(SyncJob, Option<Done>)>) {
    let mut failed = false;
    for (sync, done) in queue {
        if let Err(error) = sync.run() {
            tracing::warn!("data file: {error}");
            failed = true;
        }
        if let Some(done) = done {
            done(if failed { DataResult::Failed(Errno::EIO) } else { DataResult::Done });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_that_are_wanted_together_all_come_back() {
        let engine: Arc<dyn Engine> = Arc::new(store::MemEngine::new());
        let (events, mut received) = tokio::sync::mpsc::unbounded_channel();
        let (panics, _) = tokio::sync::mpsc::unbounded_channel();
        let workers = Workers::start("test", engine, None, events, &panics).unwrap();
        let mut view = store::View::new(store::ViewConfig::default(), store::Formats::new(|_| 1), 0);
        let key = |n: u64| store::Key::table(9).u64(n);
        for n in 0..(LOADERS * LOADS_TOGETHER) as u64 + 3 {
            view.begin(store::AttemptId(n));
            let _ = view.get(&key(n));
            if n % 50 == 0 {
                let _ = view.scan(&store::KeyRange { start: key(n), end: key(n + 1) }, 1);
            }
            view.abandon();
        }
        let mut loads = Vec::new();
        while let Some(store::StoreEffect::Load(load)) = view.poll() {
            loads.push(load);
        }
        let mut asked: Vec<_> = loads.iter().map(|load| load.id).collect();
        workers.load(loads);
        drop(workers);
        let mut answered = Vec::new();
        while let Some(events) = received.blocking_recv() {
            for event in events {
                if let Event::Loaded(done) = event {
                    answered.push(done.id);
                }
            }
        }
        asked.sort_unstable();
        answered.sort_unstable();
        assert_eq!(answered, asked);
    }

    #[test]
    fn what_failed_while_nobody_waited_is_reported_to_every_later_sync() {
        let (sender, queue) = mpsc::channel();
        let (results, completed) = mpsc::channel();
        let done = || -> Option<Done> {
            let results = results.clone();
            Some(Box::new(move |result| drop(results.send(result))))
        };
        sender.send((SyncJob::default(), done())).unwrap();
        sender.send((SyncJob::failing(), None)).unwrap();
        sender.send((SyncJob::default(), done())).unwrap();
        sender.send((SyncJob::default(), done())).unwrap();
        drop(sender);
        make_durable(queue);
        let completed: Vec<DataResult> = completed.try_iter().collect();
        let failed = DataResult::Failed(Errno::EIO);
        assert_eq!(completed, [DataResult::Done, failed.clone(), failed]);
    }

    #[test]
    fn a_write_does_not_wait_for_a_sync_that_is_under_way() {
        let root = tempfile::tempdir().unwrap();
        let pipe = root.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let mut files = DataFiles::new(root.path().join("objects"));
        files.sync_too(pipe.clone());
        let (sender, queue) = mpsc::channel();
        let (syncs, sync_queue) = mpsc::channel();
        let (results, completed) = mpsc::channel();
        std::thread::spawn(move || make_durable(sync_queue));
        std::thread::spawn(move || do_data(files, queue, &syncs));
        let write = || DataOp::Write { file: 1, offset: 0, data: vec![7; 10].into() };
        for (name, op) in [("first", write()), ("sync", DataOp::Sync { files: vec![1] }), ("second", write())] {
            let results = results.clone();
            let done = Box::new(move |_| {
                let _ = results.send(name);
            });
            sender.send(DataJob { op, done }).unwrap();
        }
        let next = || completed.recv_timeout(std::time::Duration::from_secs(60));
        assert_eq!((next(), next()), (Ok("first"), Ok("second")), "the sync waits for the pipe");
        drop(std::fs::OpenOptions::new().write(true).open(&pipe).unwrap());
        assert_eq!(next(), Ok("sync"));
    }
}
