//! The driver of a target over a loopback socket and media in memory.

use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU64;

use proto::msg::{ConnectReq, Param, SetParamReq};
use proto::{TargetKind, Xid};
use schema::{ParamRec, Record};
use store::{Change, CommitPolicy, Engine as _, EngineError, Key, KeyRange, MemEngine, Scanned, Space};
use target::{Cx, Reply, Request, Stop};

use super::*;
use crate::door::{Admission, Listener};
use crate::place::{NewTarget, write_first_records};

/// Reading from it is a bug.
struct Failing(MemEngine);

impl store::Engine for Failing {
    fn get(&self, key: &Key) -> Result<Option<store::Value>, EngineError> {
        panic!("{key:?} is read, meant for this test")
    }
    fn scan(&self, range: &KeyRange, _limit: usize) -> Result<Scanned, EngineError> {
        panic!("{range:?} is read, meant for this test")
    }
    fn commit(&self, group: u64, records: &[Change]) -> Result<(), EngineError> {
        self.0.commit(group, records)
    }
    fn last_group(&self) -> Result<u64, EngineError> {
        self.0.last_group()
    }
    fn space(&self) -> Result<Space, EngineError> {
        self.0.space()
    }
}

#[test]
fn a_target_stops_when_one_of_its_threads_panics() {
    let folder = tempfile::tempdir().unwrap();
    let nid = Nid::Unix(folder.path().join("mgs").display().to_string());
    let (listener, nid) = Listener::bind(&nid).unwrap();
    let door = Door { listener, admission: Admission::default(), admin: admin::Answers::default() };
    let settings = target::Options { name: "MGS".parse().ok(), nids: vec![nid.clone()], ..target::Options::default() };
    let make = move |now| Target::new(mgt::Mgt::new(), settings, 0, now);
    let thread = spawn("MGS".to_owned(), nid, door, Arc::new(Failing(MemEngine::new())), None, make).unwrap();
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(thread.join()));
    let reason = ended.recv_timeout(Duration::from_secs(60)).expect("it stops").unwrap_err();
    assert!(matches!(&reason, Stopped::ThreadPanicked { thread, .. } if thread == "MGS-load"), "{reason}");
    assert!(reason.to_string().contains("start it again"), "{reason}");
}

/// A service that keeps parameters, and fails an assertion at the one called [`TRAP`].
#[derive(Clone, Default)]
struct Ledger {
    attempts: Arc<AtomicU64>,
}

const TRAP: &str = "trap";

impl Service for Ledger {
    fn kind(&self) -> TargetKind {
        TargetKind::Mgt
    }

    fn attempt(&mut self, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
        let SetParamReq { fsname, param, .. } = request.decode()?;
        let Param { path, value } = param.unwrap_or_default();
        self.attempts.fetch_add(1, Ordering::Relaxed);
        assert_ne!(path, TRAP, "meant for this test");
        cx.put(&(fsname, path), &ParamRec { value });
        Ok(Reply::empty())
    }
}

/// A medium whose writes wait while it is held.
#[derive(Clone, Default)]
struct Held {
    medium: MemEngine,
    held: Arc<AtomicBool>,
    waiting: Arc<AtomicU64>,
}

impl store::Engine for Held {
    fn get(&self, key: &Key) -> Result<Option<store::Value>, EngineError> {
        self.medium.get(key)
    }
    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Scanned, EngineError> {
        self.medium.scan(range, limit)
    }
    fn commit(&self, group: u64, records: &[Change]) -> Result<(), EngineError> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        eventually("it is let go", || !self.held.load(Ordering::Relaxed));
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.medium.commit(group, records)
    }
    fn last_group(&self) -> Result<u64, EngineError> {
        self.medium.last_group()
    }
    fn space(&self) -> Result<Space, EngineError> {
        self.medium.space()
    }
}

/// A target with such a service, and what it stands on.
struct Stand {
    folder: tempfile::TempDir,
    ledger: Ledger,
    engine: Held,
    thread: TargetThread,
}

impl Stand {
    /// Groups are written when `interval` has passed, or when somebody waits for them.
    fn new(interval: Duration) -> Stand {
        let folder = tempfile::tempdir().unwrap();
        let (ledger, engine) = (Ledger::default(), Held::default());
        let new = NewTarget {
            name: "MGS".parse().unwrap(),
            mgs: Vec::new(),
            reformat: false,
            params: Vec::new(),
            plain_names: false,
            replaces: false,
        };
        write_first_records(&engine, &new).unwrap();
        let nid = Nid::Unix(folder.path().join("mgs").display().to_string());
        let (listener, nid) = Listener::bind(&nid).unwrap();
        let door = Door { listener, admission: Admission::default(), admin: admin::Answers::default() };
        let commit = CommitPolicy { interval, ..CommitPolicy::default() };
        let settings =
            target::Options { name: "MGS".parse().ok(), nids: vec![nid.clone()], commit, ..target::Options::default() };
        let last_group = engine.last_group().unwrap();
        let service = ledger.clone();
        let make = move |now| Target::new(service, settings, last_group, now);
        let thread = spawn("MGS".to_owned(), nid, door, Arc::new(engine.clone()), None, make).unwrap();
        let stand = Stand { folder, ledger, engine, thread };
        eventually("it serves", || stand.thread.is_serving());
        stand
    }

    /// Waits for the end of its thread.
    fn end(self) -> (Held, Result<(), Stopped>) {
        let (sender, ended) = std::sync::mpsc::channel();
        let Stand { thread, engine, folder: _folder, .. } = self;
        std::thread::spawn(move || sender.send(thread.join()));
        (engine, ended.recv_timeout(Duration::from_secs(60)).expect("it ends"))
    }
}

/// Whether a change is on the medium.
fn is_durable(engine: &Held, path: &str) -> bool {
    engine.get(&ParamRec::key(&("fs".to_owned(), path.to_owned()))).unwrap().is_some()
}

fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A client of the target that does one thing after another.
struct Session {
    stream: UnixStream,
    decoder: Decoder,
    header: Header,
}

impl Session {
    fn connect(nid: &Nid) -> Session {
        let Nid::Unix(path) = nid else { panic!("{nid}") };
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut session = Session { stream, decoder: Decoder::new(), header: Header::default() };
        let request = ConnectReq {
            client_uuid: bytes::Bytes::copy_from_slice(&clock::uuid().0.to_be_bytes()),
            target: "MGS".to_owned(),
            version: proto::connect::PROTOCOL_VERSION,
            lightweight: true,
            ..ConnectReq::default()
        };
        let first = Header { flags: flags::CONNECT_INITIAL, conn_cnt: 1, timeout_ms: 60_000, ..Header::default() };
        let reply = session.exchange(first, Opcode::Connect, &request).unwrap();
        assert_eq!(reply.header.status, 0);
        session.header = Header { export: reply.header.export, xid: Xid(1), flags: 0, ..first };
        session
    }

    /// Sends a request and reads its reply; an error if the target hangs up instead.
    fn exchange(&mut self, header: Header, opcode: Opcode, body: &impl prost::Message) -> io::Result<Frame> {
        let xid = self.send(header, opcode, body)?;
        self.reply(xid)
    }

    fn send(&mut self, header: Header, opcode: Opcode, body: &impl prost::Message) -> io::Result<Xid> {
        let header = Header { opcode: opcode as u16, xid: Xid(header.xid.0 + 1), ..header };
        let mut queue = SendQueue::new();
        queue.push(&Frame::new(header, body, bytes::Bytes::new()));
        io::Write::write_all(&mut self.stream, &queue.copy_to_bytes(queue.remaining()))?;
        Ok(header.xid)
    }

    fn reply(&mut self, xid: Xid) -> io::Result<Frame> {
        loop {
            while let Some(frame) = self.decoder.next_frame().map_err(io::Error::other)? {
                if frame.header.has(flags::REPLY) && frame.header.xid == xid {
                    return Ok(frame);
                }
            }
            let mut bytes = [0; 4096];
            match io::Read::read(&mut self.stream, &mut bytes)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.decoder.buffer().extend_from_slice(&bytes[..count]),
            }
        }
    }

    /// Asks for a change.
    fn ask(&mut self, path: &str) -> io::Result<()> {
        let param = Param { path: path.to_owned(), value: "1".to_owned() };
        let request = SetParamReq { fsname: "fs".to_owned(), param: Some(param), delete: false };
        self.header.xid = self.send(self.header, Opcode::MgsSetParam, &request)?;
        Ok(())
    }

    /// Waits for the answer to that.
    fn answer(&mut self) -> io::Result<()> {
        let reply = self.reply(self.header.xid)?;
        assert_eq!(reply.header.status, 0);
        Ok(())
    }

    /// Makes a change.
    fn set(&mut self, path: &str) -> io::Result<()> {
        self.ask(path)?;
        self.answer()
    }
}

/// Clients that make changes until the target is gone. Each gives what was answered.
fn load(nid: &Nid) -> Vec<std::thread::JoinHandle<Vec<String>>> {
    let client = |number: usize| {
        let mut session = Session::connect(nid);
        std::thread::spawn(move || {
            let paths = (0..).map(|at| format!("client.{number}.{at}"));
            paths.take_while(|path| session.set(path).is_ok()).collect()
        })
    };
    (0..4).map(client).collect()
}

/// One change is with the disk, another is collected, and a third fails an assertion.
#[test]
fn a_target_that_fails_an_assertion_stops_without_writing_and_answers_nothing_more() {
    let stand = Stand::new(Duration::from_secs(3600));
    let [mut one, mut two, mut three, mut idle] = [(); 4].map(|()| Session::connect(&stand.thread.nid));
    idle.set("before").unwrap();
    let (attempts, engine) = (stand.ledger.attempts.clone(), stand.engine.clone());
    engine.held.store(true, Ordering::Relaxed);
    one.ask("with the disk").unwrap();
    eventually("its group is with the disk", || engine.waiting.load(Ordering::Relaxed) == 1);
    let before = attempts.load(Ordering::Relaxed);
    two.ask("collected").unwrap();
    eventually("it was attempted", || attempts.load(Ordering::Relaxed) > before);
    three.ask(TRAP).unwrap();
    for session in [&mut three, &mut two, &mut one] {
        assert!(session.answer().is_err(), "it hangs up instead of answering");
    }
    assert!(idle.set("after").is_err());
    engine.held.store(false, Ordering::Relaxed);
    let nid = stand.thread.nid.clone();
    let (_, result) = stand.end();
    assert!(matches!(&result, Err(Stopped::Assertion { target }) if target == "MGS"), "{result:?}");
    eventually("what the disk had been given is whole", || is_durable(&engine, "with the disk"));
    assert!(is_durable(&engine, "before") && !is_durable(&engine, "collected"));
    let Nid::Unix(path) = nid else { panic!("{nid}") };
    assert!(UnixStream::connect(path).is_err(), "nobody listens any more");
}

#[test]
fn a_shutdown_while_requests_are_under_way_makes_durable_what_was_answered() {
    let stand = Stand::new(Duration::from_secs(3600));
    let clients = load(&stand.thread.nid);
    std::thread::sleep(Duration::from_millis(50));
    stand.thread.control().send(Control::Shutdown).unwrap();
    let (engine, result) = stand.end();
    result.unwrap();
    let answered: Vec<String> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
    assert!(!answered.is_empty());
    for path in answered {
        assert!(is_durable(&engine, &path), "{path} was answered");
    }
}

#[test]
fn parameters_are_listed_while_requests_are_under_way() {
    let stand = Stand::new(Duration::from_millis(5));
    let clients = load(&stand.thread.nid);
    let control = stand.thread.control();
    for _ in 0..50 {
        let (reply, answer) = oneshot::channel();
        control.send(Control::GetParams("*.MGS.num_exports".to_owned(), reply)).unwrap();
        let found = answer.blocking_recv().unwrap();
        assert!(matches!(&found[..], [(_, exports)] if exports == "4"), "{found:?}");
    }
    control.send(Control::Shutdown).unwrap();
    stand.end().1.unwrap();
    assert!(clients.into_iter().map(|client| client.join().unwrap().len()).sum::<usize>() > 0);
}
