//! The driver of a target's machine: one thread for each target, with its connections.
//!
//! The thread runs a tokio current-thread loop. Connections that have something to read hand every whole frame to the machine;
//! the main loop carries out the machine's effects when all of them have done so. Replies to one peer that are ready together
//! leave in one write. Disk I/O is left to the [`crate::workers`].

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Buf;
use proto::frame::flags;
use proto::msg::{AdminRep, AdminReq};
use proto::params::{Component, OfMedium, OfSpace, Served};
use proto::{Decoder, Errno, Frame, Header, Nid, Opcode, SendQueue};
use stdx::wildcard;
use target::{ConnId, DataSpace, Effect, Event, LogLevel, Peer, Service, Target};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::admin;
use crate::asserted::Asserted;
use crate::clock::{self, Clock};
use crate::door::{Admitted, Arrived, Door, Entrance};
use crate::process::Seat;
use crate::stream::Stream;
use crate::survey::{Order, OrderError, Plan, PlanError, Status, Survey};
use crate::unread::Unread;
use crate::workers::{Events, Workers};

mod stopped;

pub use stopped::Stopped;
pub use target::{StopReason, UnfitStore};

/// Requests of the process to a target's thread.
#[derive(Debug)]
pub enum Control {
    /// The parameters that match a pattern.
    GetParams(String, oneshot::Sender<Vec<(String, String)>>),
    /// Sets a parameter.
    SetParam(String, String, oneshot::Sender<Result<(), Errno>>),
    /// An order for the survey of this target ([`crate::survey`]).
    Survey(Order, oneshot::Sender<Result<Status, OrderError>>),
    /// Commits all changes and stops. Client records are kept.
    Shutdown,
}

/// A running target.
#[derive(Debug)]
pub struct TargetThread {
    /// Its name.
    pub name: String,
    /// The address at which it listens.
    pub nid: Nid,
    control: mpsc::UnboundedSender<Control>,
    serving: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Result<(), Stopped>>,
}

impl TargetThread {
    /// The channel for requests to the thread. A request that arrives while the thread stops may never be answered.
    pub fn control(&self) -> mpsc::UnboundedSender<Control> {
        self.control.clone()
    }

    /// Whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Whether the target is registered with the MGS and serves requests.
    pub fn is_serving(&self) -> bool {
        self.serving.load(Ordering::Acquire)
    }

    /// Waits for the thread to end.
    ///
    /// # Errors
    /// Why the target stopped, if that was not requested.
    pub fn join(self) -> Result<(), Stopped> {
        let TargetThread { name, thread, .. } = self;
        thread.join().unwrap_or(Err(Stopped::Panicked { target: name }))
    }
}

/// Starts a target's thread. `make` builds the machine on it.
///
/// # Errors
/// The operating system refused a thread.
pub fn spawn<S: Service + 'static>(
    name: String,
    nid: Nid,
    door: Door,
    engine: Arc<dyn store::Engine>,
    data: Option<PathBuf>,
    make: impl FnOnce(stdx::Instant) -> Target<S> + Send + 'static,
) -> io::Result<TargetThread> {
    let (control, controls) = mpsc::unbounded_channel();
    let thread_name = name.clone();
    let serving = Arc::new(AtomicBool::new(false));
    let for_thread = serving.clone();
    let thread = std::thread::Builder::new().name(name.clone()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(lacks(&thread_name, "event loop"))?;
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async move {
            let (events, results) = mpsc::unbounded_channel();
            let (panics, panicked) = mpsc::unbounded_channel();
            let workers = Workers::start(&thread_name, engine, data.clone(), events.clone(), &panics)
                .map_err(lacks(&thread_name, "threads"))?;
            let clock = Clock::default();
            let machine = RefCell::new(Asserted::new(make(clock.now())));
            let world = Rc::new(World {
                clock,
                machine,
                workers,
                loads: RefCell::default(),
                events,
                conns: RefCell::new(HashMap::new()),
                next_conn: Cell::new(1),
                reads: Cell::new(0),
                acted: Notify::new(),
                stopped: RefCell::new(None),
                stop: Notify::new(),
                name: thread_name,
                data,
                serving: for_thread,
                withheld: RefCell::new(None),
                survey: RefCell::new(None),
                survey_ready: Notify::new(),
                admin: door.admin,
                questions: Cell::new(0),
            });
            let entrance =
                Entrance::open(&world.name, door.listener, door.admission).map_err(lacks(&world.name, "threads"))?;
            let result = serve(&world, entrance, results, panicked, controls).await;
            world.conns.borrow_mut().clear();
            if let Err(reason) = &result {
                tracing::error!("{reason}");
            }
            result
        })
    })?;
    Ok(TargetThread { name, nid, control, serving, thread })
}

/// The error for something that the system refuses a starting target.
fn lacks(target: &str, what: &'static str) -> impl FnOnce(io::Error) -> Stopped {
    let target = target.to_owned();
    move |error| Stopped::NoThreads { target, what, error }
}

struct World<S: Service> {
    clock: Clock,
    machine: RefCell<Asserted<Target<S>>>,
    workers: Workers,
    /// Loads that are handed over together once the machine has no further effects.
    loads: RefCell<Vec<store::Load>>,
    events: Events,
    conns: RefCell<HashMap<ConnId, Conn>>,
    next_conn: Cell<u64>,
    /// How often a connection had something to read.
    reads: Cell<u64>,
    /// The machine was handed something outside of the main loop, which carries out what follows from it.
    acted: Notify,
    /// Why the target stops without having been asked to.
    stopped: RefCell<Option<Stopped>>,
    stop: Notify,
    name: String,
    /// The folder of data files.
    data: Option<PathBuf>,
    serving: Arc<AtomicBool>,
    survey: RefCell<Option<Survey>>,
    /// Groups that are kept from the medium while it is read-only. A test of recovery makes it so: a server that is then
    /// killed loses everything that it acknowledged since.
    withheld: RefCell<Option<Vec<store::Group>>>,
    /// The survey has requests to send.
    survey_ready: Notify,
    admin: admin::Answers,
    /// Admin requests that are not answered yet.
    questions: Cell<usize>,
}

/// Whether a frame is a request to the process, and not to its target.
fn asks_process(frame: &Frame) -> bool {
    frame.header.opcode == Opcode::Admin as u16 && !frame.header.has(flags::REPLY)
}

/// The sending side of a connection. Dropping it ends the connection's task.
struct Conn {
    out: SendQueue,
    /// The bytes in `out`, and those that the task took from there and has not written yet.
    unread: Rc<Unread>,
    pending: Rc<Notify>,
    hangup: Option<oneshot::Sender<()>>,
}

/// The most rounds of reading before a deadline, so that peers that never stop sending cannot delay it.
const READS_BEFORE_DEADLINE: u32 = 16;
/// The most admin requests that are answered at a time for the peers of one target; each takes a thread.
const QUESTIONS_MAX: usize = 16;
/// The most requests of a survey before other connections have their turn.
const SURVEY_TURN: usize = 256;

async fn serve<S: Service + 'static>(
    world: &Rc<World<S>>,
    entrance: Entrance,
    mut results: mpsc::UnboundedReceiver<Vec<Event>>,
    mut panicked: mpsc::UnboundedReceiver<String>,
    mut controls: mpsc::UnboundedReceiver<Control>,
) -> Result<(), Stopped> {
    world.event(Event::WallClock(clock::wall_ns()));
    world.report_space();
    world.carry_out();
    let accepting = tokio::task::spawn_local(accept(world.clone(), entrance));
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let deadline = world.deadline();
        let timer = async {
            match deadline {
                Some(at) => tokio::time::sleep_until(tokio::time::Instant::from_std(world.clock.at(at))).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = world.stop.notified() => break,
            Some(thread) = panicked.recv() => {
                world.machine.borrow_mut().fail();
                world.stop_for(Stopped::ThreadPanicked { target: world.name.clone(), thread });
            }
            Some(events) = results.recv() => {
                events.into_iter().for_each(|event| world.event(event));
                while let Ok(events) = results.try_recv() {
                    events.into_iter().for_each(|event| world.event(event));
                }
            }
            control = controls.recv() => match control {
                Some(control) => world.control(control),
                None => world.control(Control::Shutdown),
            },
            () = timer => {
                world.read_arrived().await;
                world.event(Event::Tick);
            }
            () = world.acted.notified() => {}
            // Before the survey, which is always ready.
            _ = second.tick() => {
                world.event(Event::WallClock(clock::wall_ns()));
                world.report_space();
                if let Some(survey) = &mut *world.survey.borrow_mut() {
                    survey.second();
                    world.survey_ready.notify_one();
                }
            }
            () = world.survey_ready.notified() => {
                // Connections have their turn between two turns of the survey.
                tokio::task::yield_now().await;
                world.survey_turn();
            }
        }
        world.carry_out();
        if let Some(line) = world.clock.gap_message() {
            tracing::warn!("target '{}' {line}", world.name);
        }
    }
    // The address must be free once the target has ended.
    accepting.abort();
    let _ = accepting.await;
    // Write the replies to changes that are durable now before the connections are closed.
    tokio::task::yield_now().await;
    world.stopped.borrow_mut().take().map_or(Ok(()), Err)
}

async fn accept<S: Service + 'static>(world: Rc<World<S>>, mut entrance: Entrance) {
    while let Some(Admitted { arrived, peer, seat }) = entrance.next().await {
        let taken = match arrived {
            Arrived::Tcp(stream, _) => world.accept_tcp(stream, peer, seat),
            Arrived::Unix(stream) => world.accept_unix(stream, peer, seat),
        };
        if let Err(error) = taken {
            tracing::warn!("target '{}' cannot take a connection in: {error}", world.name);
        }
    }
}

/// The space on the medium of the data files. If the store is on the same medium, the store's reserve is subtracted.
fn data_space(folder: &std::path::Path, store: &store::Space) -> io::Result<DataSpace> {
    let medium = rustix::fs::statvfs(folder)?;
    let beside = match folder.parent() {
        Some(parent) => rustix::fs::stat(parent)?.st_dev == rustix::fs::stat(folder)?.st_dev,
        None => true,
    };
    let free = medium.f_bavail * medium.f_frsize;
    Ok(DataSpace {
        total: medium.f_blocks * medium.f_frsize,
        free: if beside { free.saturating_sub(store.reserve) } else { free },
        disk: engine::disk_number(folder)?,
    })
}

impl<S: Service + 'static> World<S> {
    fn event(&self, event: Event) {
        let now = self.clock.now();
        self.run(|machine| machine.handle(now, event));
    }

    /// Runs `body` on the machine; `None` once an assertion has failed. The failure stops the target.
    fn run<R>(&self, body: impl FnOnce(&mut Target<S>) -> R) -> Option<R> {
        let mut machine = self.machine.borrow_mut();
        let failed_before = machine.has_failed();
        let result = machine.run(body);
        if result.is_none() && !failed_before {
            self.stop_for(Stopped::Assertion { target: self.name.clone() });
        }
        result
    }

    /// Stops the target without another commit.
    fn stop_for(&self, why: Stopped) {
        *self.stopped.borrow_mut() = Some(why);
        self.stop.notify_one();
    }

    fn deadline(&self) -> Option<stdx::Instant> {
        self.run(|machine| machine.deadline()).flatten()
    }

    fn report_space(&self) {
        let store = match self.workers.engine().space() {
            Ok(space) => space,
            Err(error) => {
                tracing::warn!("target '{}': cannot learn its space: {error}", self.name);
                return;
            }
        };
        self.event(Event::Space(store));
        if let Some(folder) = &self.data {
            match data_space(folder, &store) {
                Ok(space) => self.event(Event::DataSpace(space)),
                Err(error) => tracing::warn!("target '{}': cannot learn the room for data: {error}", self.name),
            }
        }
    }

    fn control(&self, control: Control) {
        match control {
            Control::GetParams(pattern, reply) => {
                let mut found = self.run(|machine| machine.get_params(&pattern)).unwrap_or_default();
                found.extend(self.medium_params(&pattern));
                let _ = reply.send(found);
            }
            Control::SetParam(name, value, reply) => {
                let _ = reply.send(self.set_param(&name, &value));
            }
            Control::Survey(order, reply) => {
                let _ = reply.send(self.survey_order(&order));
                self.survey_ready.notify_one();
            }
            Control::Shutdown => {
                let now = self.clock.now();
                self.run(|machine| machine.shutdown(now));
            }
        }
    }

    /// The parameter that makes the medium read only.
    fn readonly_param(&self) -> String {
        OfMedium::Readonly.declared().name(Component::Osd, &[&self.name])
    }

    /// The parameters of the medium's device, which include the target's space.
    fn medium_params(&self, pattern: &str) -> Vec<(String, String)> {
        let mut served = Served::new();
        served.add(Component::Osd, &[&self.name], |OfMedium::Readonly| None);
        served.add(Component::Osd, &[&self.name], |space: OfSpace| Some(space));
        let found = served.matching(|name| wildcard::matches(pattern, name));
        let of_target = match found.iter().any(|(_, space)| space.is_some()) {
            true => self.run(|machine| machine.get_params(&format!("*.{}.*", self.name))).unwrap_or_default(),
            false => Vec::new(),
        };
        // A management target has none of them.
        let of_space = |which: OfSpace| {
            let is_it = |name: &str| name.rsplit_once('.').is_some_and(|(_, leaf)| leaf == which.declared().leaf);
            of_target.iter().find(|(name, _)| is_it(name)).map(|(_, value)| value.clone())
        };
        let value = |space| match space {
            None => Some(u8::from(self.withheld.borrow().is_some()).to_string()),
            Some(which) => of_space(which),
        };
        found.into_iter().filter_map(|(name, space)| Some((name, value(space)?))).collect()
    }

    fn set_param(&self, name: &str, value: &str) -> Result<(), Errno> {
        if name != self.readonly_param() {
            let now = self.clock.now();
            return self.run(|machine| machine.set_param(now, name, value)).unwrap_or(Err(Errno::EIO));
        }
        if self.run(|machine| machine.faults().is_allowed()) != Some(true) {
            return Err(Errno::EPERM);
        }
        if OfMedium::Readonly.declared().values.read(value)? == 1 {
            self.withheld.borrow_mut().get_or_insert_default();
        } else {
            let late = self.withheld.borrow_mut().take();
            late.into_iter().flatten().for_each(|group| self.workers.commit(group));
        }
        Ok(())
    }

    fn survey_order(&self, order: &Order) -> Result<Status, OrderError> {
        let mut survey = self.survey.borrow_mut();
        match (order, &mut *survey) {
            (Order::Open(plan), known) if known.as_ref().is_none_or(Survey::is_over) => {
                let new = self.open_survey(plan.clone())?;
                let status = new.status();
                *survey = Some(new);
                Ok(status)
            }
            (order, Some(survey)) => survey.order(order).map(|()| survey.status()),
            (_, None) => Err(OrderError::NoSurvey { target: self.name.clone() }),
        }
    }

    fn open_survey(&self, plan: Plan) -> Result<Survey, PlanError> {
        let first = self.next_conn.get();
        let survey = Survey::new(self.name.clone(), plan, first)?;
        for conn in survey.conns() {
            self.next_conn.set(conn.0 + 1);
            let peer = Peer { address: "mds-survey".to_owned(), uid: Some(0), local: true, ours: true };
            self.event(Event::Accepted { conn, peer });
        }
        Ok(survey)
    }

    /// Reads what has arrived before a deadline is acted on: after a pause, or a long turn, the answer that the machine
    /// waits for may be in a socket already.
    async fn read_arrived(&self) {
        for _ in 0..READS_BEFORE_DEADLINE {
            let before = self.reads.get();
            // The first yield lets the runtime poll the sockets, the second lets the connections' tasks read.
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            if self.reads.get() == before {
                return;
            }
        }
    }

    /// Hands requests of the survey to the machine, as many as fit in one turn.
    fn survey_turn(self: &Rc<Self>) {
        let mut frames = Vec::new();
        let mut sent = 0;
        while sent < SURVEY_TURN {
            if let Some(survey) = &mut *self.survey.borrow_mut() {
                survey.send(SURVEY_TURN - sent, &mut frames);
            }
            if frames.is_empty() {
                break;
            }
            sent += frames.len();
            for (conn, frame) in frames.drain(..) {
                self.event(Event::Frame { conn, frame });
            }
            self.carry_out();
        }
        let gone: Vec<ConnId> = match &mut *self.survey.borrow_mut() {
            Some(survey) => {
                if survey.is_ready() {
                    self.survey_ready.notify_one();
                }
                survey.take_conns()
            }
            None => Vec::new(),
        };
        for conn in gone {
            self.event(Event::Closed { conn });
        }
    }

    fn accept_tcp(self: &Rc<Self>, stream: std::net::TcpStream, peer: Peer, seat: Seat) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        self.accepted(tokio::net::TcpStream::from_std(stream)?, peer, seat);
        Ok(())
    }

    fn accept_unix(self: &Rc<Self>, stream: std::os::unix::net::UnixStream, peer: Peer, seat: Seat) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        self.accepted(tokio::net::UnixStream::from_std(stream)?, peer, seat);
        Ok(())
    }

    fn accepted<T>(self: &Rc<Self>, stream: T, peer: Peer, seat: Seat)
    where
        T: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let id = ConnId(self.next_conn.get());
        self.next_conn.set(id.0 + 1);
        self.adopt(id, stream, Some(seat));
        self.event(Event::Accepted { conn: id, peer });
        self.acted.notify_one();
    }

    fn adopt<T>(self: &Rc<Self>, id: ConnId, stream: T, seat: Option<Seat>)
    where
        T: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let pending = Rc::new(Notify::new());
        let (hangup, hung_up) = oneshot::channel();
        let unread = Rc::new(Unread::default());
        let conn =
            Conn { out: SendQueue::new(), unread: unread.clone(), pending: pending.clone(), hangup: Some(hangup) };
        self.conns.borrow_mut().insert(id, conn);
        let life = self.clone().converse(id, stream, pending, unread, hung_up);
        tokio::task::spawn_local(async move {
            life.await;
            drop(seat);
        });
    }

    /// The task of a connection.
    async fn converse<T>(
        self: Rc<Self>,
        id: ConnId,
        stream: T,
        pending: Rc<Notify>,
        unread: Rc<Unread>,
        mut hung_up: oneshot::Receiver<()>,
    ) where
        T: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut decoder = Decoder::new();
        let mut out = SendQueue::new();
        loop {
            if !out.has_remaining()
                && let Some(conn) = self.conns.borrow_mut().get_mut(&id)
            {
                std::mem::swap(&mut out, &mut conn.out);
            }
            tokio::select! {
                biased;
                written = writer.write_buf(&mut out), if out.has_remaining() => {
                    match written {
                        Ok(count) if count > 0 => unread.written(count),
                        _ => break,
                    }
                }
                _ = &mut hung_up => break,
                read = reader.read_buf(decoder.buffer()), if !unread.is_much() => {
                    if !matches!(read, Ok(count) if count > 0) {
                        break;
                    }
                    self.reads.set(self.reads.get() + 1);
                    if !self.take_frames(id, &mut decoder) {
                        break;
                    }
                }
                () = pending.notified(), if !out.has_remaining() => {}
            }
        }
        if self.conns.borrow_mut().remove(&id).is_some() {
            self.event(Event::Closed { conn: id });
            self.acted.notify_one();
        }
    }

    /// Hands the received frames to the machine. `false`: the bytes are no frame, and the connection is to be closed.
    fn take_frames(self: &Rc<Self>, id: ConnId, decoder: &mut Decoder) -> bool {
        let sound = loop {
            match decoder.next_frame() {
                Ok(Some(frame)) if asks_process(&frame) => {
                    tokio::task::spawn_local(self.clone().answer_for_process(id, frame));
                }
                Ok(Some(frame)) => self.event(Event::Frame { conn: id, frame }),
                Ok(None) => break true,
                Err(error) => {
                    tracing::warn!("target '{}' closed a connection: {error}", self.name);
                    break false;
                }
            }
        };
        self.acted.notify_one();
        sound
    }

    /// Queues a frame for a connection.
    fn send(&self, id: ConnId, frame: &Frame) {
        let mut conns = self.conns.borrow_mut();
        let Some(conn) = conns.get_mut(&id) else { return };
        let before = conn.out.remaining();
        conn.out.push(frame);
        conn.pending.notify_one();
        if !conn.unread.add(conn.out.remaining() - before) && conn.hangup.take().is_some() {
            tracing::warn!("target '{}' cut off a peer that does not read", self.name);
        }
    }

    /// Answers an admin request to the process. That may take a while, because it asks the targets, this one too.
    async fn answer_for_process(self: Rc<Self>, id: ConnId, frame: Frame) {
        let mut header = Header { flags: flags::REPLY, ..frame.header };
        let reply = match frame.decode::<AdminReq>() {
            Ok(_) if self.questions.get() >= QUESTIONS_MAX => admin::busy(),
            Ok(request) => {
                let admin = self.admin.clone();
                self.questions.set(self.questions.get() + 1);
                let answer = tokio::task::spawn_blocking(move || admin::answer_remote(&admin, &request)).await;
                self.questions.set(self.questions.get() - 1);
                answer.unwrap_or_default()
            }
            Err(_) => {
                header.status = -Errno::EPROTO.raw();
                AdminRep::default()
            }
        };
        self.send(id, &Frame::new(header, &reply, bytes::Bytes::new()));
    }

    /// Carries out the machine's effects.
    fn carry_out(self: &Rc<Self>) {
        while let Some(effect) = self.run(Target::poll).flatten() {
            self.apply(effect);
        }
        self.workers.load(self.loads.take());
    }

    fn apply(self: &Rc<Self>, effect: Effect) {
        match effect {
            Effect::Send { conn, frame } if self.surveys(conn) => {
                if let Some(survey) = &mut *self.survey.borrow_mut() {
                    survey.receive(conn, &frame);
                }
                self.survey_ready.notify_one();
            }
            Effect::Hangup { conn } if self.surveys(conn) => {
                if let Some(survey) = &mut *self.survey.borrow_mut() {
                    survey.hung_up(conn);
                }
            }
            Effect::Send { conn, frame } => self.send(conn, &frame),
            Effect::Hangup { conn } => {
                if let Some(entry) = self.conns.borrow_mut().get_mut(&conn) {
                    entry.hangup.take();
                }
            }
            Effect::Dial { conn, nids } => {
                let world = self.clone();
                tokio::task::spawn_local(async move {
                    let dialled = tokio::task::spawn_blocking(move || Stream::dial(&nids)).await;
                    let adopted = match dialled {
                        Ok(Ok(stream)) => world.adopt_dialled(conn, stream),
                        Ok(Err(error)) => Err(error),
                        Err(error) => Err(io::Error::other(error.to_string())),
                    };
                    match adopted {
                        Ok(()) => world.event(Event::Dialled { conn }),
                        Err(error) => world.event(Event::DialFailed { conn, reason: error.to_string() }),
                    }
                    world.acted.notify_one();
                });
            }
            Effect::Load(load) => self.loads.borrow_mut().push(load),
            Effect::Commit(group) => match &mut *self.withheld.borrow_mut() {
                Some(late) => late.push(group),
                None => self.workers.commit(group),
            },
            Effect::Data { id, op } => self.workers.data(id, op),
            Effect::Serving { name } => {
                self.serving.store(true, Ordering::Release);
                tracing::info!("{name} serves");
            }
            Effect::Log(LogLevel::Error, line) => tracing::error!("{}: {line}", self.name),
            Effect::Log(LogLevel::Warn, line) => tracing::warn!("{}: {line}", self.name),
            Effect::Log(LogLevel::Info, line) => tracing::info!("{}: {line}", self.name),
            Effect::Stop { reason } => {
                *self.stopped.borrow_mut() =
                    reason.map(|reason| Stopped::ByItself { target: self.name.clone(), reason });
                self.stop.notify_one();
            }
        }
    }

    /// Whether a connection belongs to the survey.
    fn surveys(&self, conn: ConnId) -> bool {
        self.survey.borrow().as_ref().is_some_and(|survey| survey.owns(conn))
    }

    fn adopt_dialled(self: &Rc<Self>, conn: ConnId, stream: Stream) -> io::Result<()> {
        let fd: std::os::fd::OwnedFd = stream.into();
        match rustix::net::getsockname(&fd)?.address_family() {
            rustix::net::AddressFamily::UNIX => {
                self.adopt(conn, tokio::net::UnixStream::from_std(fd.into())?, None);
            }
            _ => self.adopt(conn, tokio::net::TcpStream::from_std(fd.into())?, None),
        }
        Ok(())
    }
}

impl<S: Service> std::fmt::Debug for World<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("World")
    }
}

// The sender is kept so that the channel of results stays open as long as the target lives.
impl<S: Service> Drop for World<S> {
    fn drop(&mut self) {
        let _ = &self.events;
    }
}

#[cfg(test)]
mod tests;
