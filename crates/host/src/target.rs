//! One thread per target: its machine and its connections.
//!
//! The thread runs a tokio current-thread loop. A connection reads as much as there is, hands every whole frame to the
//! machine, and only then are the machine's wishes carried out; replies to one peer that are ready together leave in one
//! write. What touches the disk goes to the [`crate::workers`].

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
use crate::workers::Workers;

mod stopped;

pub use stopped::Stopped;
pub use target::{StopReason, UnfitStore};

/// What a process asks of a target's thread.
#[derive(Debug)]
pub enum Control {
    /// Parameters that match a pattern.
    GetParams(String, oneshot::Sender<Vec<(String, String)>>),
    /// Set a parameter.
    SetParam(String, String, oneshot::Sender<Result<(), Errno>>),
    /// Something about the survey of this target ([`crate::survey`]).
    Survey(Order, oneshot::Sender<Result<Status, OrderError>>),
    /// Commit everything and stop; clients' records stay.
    Shutdown,
}

/// A target that runs.
#[derive(Debug)]
pub struct TargetThread {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub nid: Nid,
    control: mpsc::UnboundedSender<Control>,
    serving: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Result<(), Stopped>>,
}

impl TargetThread {
    /// Asks the thread. Answers may never come if it stops.
    pub fn control(&self) -> mpsc::UnboundedSender<Control> {
        self.control.clone()
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Whether it is known to the MGS and takes requests.
    pub fn is_serving(&self) -> bool {
        self.serving.load(Ordering::Acquire)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// Why the target stopped, if it was not asked to.
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
                timer: Cell::new(None),
                timer_moved: Notify::new(),
                stopped: RefCell::new(None),
                stop: Notify::new(),
                name: thread_name,
                data,
                serving: for_thread,
                withheld: RefCell::new(None),
                survey: RefCell::new(None),
                survey_goes_on: Notify::new(),
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

/// What the system refuses a target that starts.
fn lacks(target: &str, what: &'static str) -> impl FnOnce(io::Error) -> Stopped {
    let target = target.to_owned();
    move |error| Stopped::NoThreads { target, what, error }
}

struct World<S: Service> {
    clock: Clock,
    machine: RefCell<Asserted<Target<S>>>,
    workers: Workers,
    /// Loads that are handed over together when the machine wants nothing else.
    loads: RefCell<Vec<store::Load>>,
    events: mpsc::UnboundedSender<Event>,
    conns: RefCell<HashMap<ConnId, Conn>>,
    next_conn: Cell<u64>,
    /// How often a connection had something to read.
    reads: Cell<u64>,
    /// What the timer waits for.
    timer: Cell<Option<stdx::Instant>>,
    /// The machine wants to be told the time before that.
    timer_moved: Notify,
    /// Why it ends by itself.
    stopped: RefCell<Option<Stopped>>,
    stop: Notify,
    name: String,
    /// The folder of data files.
    data: Option<PathBuf>,
    serving: Arc<AtomicBool>,
    survey: RefCell<Option<Survey>>,
    /// Groups that do not reach the medium while it is read only, which a test of recovery makes it: a server that is killed
    /// then loses what it has answered since.
    withheld: RefCell<Option<Vec<store::Group>>>,
    /// The survey can send.
    survey_goes_on: Notify,
    admin: admin::Answers,
    /// Questions to the process that are not answered yet.
    questions: Cell<usize>,
}

/// Whether a frame is for the process, not for its target.
fn asks_process(frame: &Frame) -> bool {
    frame.header.opcode == Opcode::Admin as u16 && !frame.header.has(flags::REPLY)
}

/// What is to be written to a connection. Dropping it ends the connection's tasks.
struct Conn {
    out: SendQueue,
    /// What is in `out`, and what its task took from there and has not written yet.
    unread: Rc<Unread>,
    pending: Rc<Notify>,
    hangup: Option<oneshot::Sender<()>>,
}

/// So many rounds of reading precede a deadline at most: those who send without end do not hold it up.
const READS_BEFORE_DEADLINE: u32 = 16;
/// So many questions to the process are answered at a time for those who come to one target; each takes a thread.
const QUESTIONS_MAX: usize = 16;
/// So many requests of a survey are made before others have their turn.
const SURVEY_TURN: usize = 256;

async fn serve<S: Service + 'static>(
    world: &Rc<World<S>>,
    entrance: Entrance,
    mut results: mpsc::UnboundedReceiver<Event>,
    mut panicked: mpsc::UnboundedReceiver<String>,
    mut controls: mpsc::UnboundedReceiver<Control>,
) -> Result<(), Stopped> {
    world.event(Event::WallClock(clock::wall_ns()));
    world.tell_space();
    world.carry_out();
    let accepting = tokio::task::spawn_local(accept(world.clone(), entrance));
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let deadline = world.deadline();
        world.timer.set(deadline);
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
            Some(event) = results.recv() => {
                world.event(event);
                while let Ok(event) = results.try_recv() {
                    world.event(event);
                }
            }
            control = controls.recv() => match control {
                Some(control) => world.control(control),
                None => world.control(Control::Shutdown),
            },
            () = timer => {
                world.take_in().await;
                world.event(Event::Tick);
            }
            () = world.timer_moved.notified() => {}
            () = world.survey_goes_on.notified() => {
                // The connections have their turn between two of the survey.
                tokio::task::yield_now().await;
                world.survey_turn();
            }
            _ = second.tick() => {
                world.event(Event::WallClock(clock::wall_ns()));
                world.tell_space();
                if let Some(survey) = &mut *world.survey.borrow_mut() {
                    survey.second();
                    world.survey_goes_on.notify_one();
                }
            }
        }
        world.carry_out();
        if let Some(line) = world.clock.told_gap() {
            tracing::warn!("target '{}' {line}", world.name);
        }
    }
    // Nobody may find the address in use once the target has ended.
    accepting.abort();
    let _ = accepting.await;
    // Replies that say "durable" are written before the connections go.
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

/// The room on the medium of data files. If the store lies there too, they leave it its reserve.
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
        disk: match std::fs::read("/proc/sys/kernel/random/boot_id") {
            Ok(boot) => disk_number(&boot, rustix::fs::stat(folder)?.st_dev),
            Err(_) => 0,
        },
    })
}

/// The number of a disk, the same in all processes of this kernel and on no other machine: FNV-1a over the kernel's identity, drawn
/// anew at each boot, and its number of the device.
fn disk_number(boot: &[u8], device: u64) -> u64 {
    let device = device.to_le_bytes();
    let sum = boot
        .iter()
        .chain(&device)
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    // 0 stands for one that is not known.
    sum.max(1)
}

impl<S: Service + 'static> World<S> {
    fn event(&self, event: Event) {
        let now = self.clock.now();
        self.run(|machine| machine.handle(now, event));
    }

    /// Runs `body` on the machine; `None` once an assertion in it has failed. The target stops then.
    fn run<R>(&self, body: impl FnOnce(&mut Target<S>) -> R) -> Option<R> {
        let mut machine = self.machine.borrow_mut();
        let failed_before = machine.has_failed();
        let result = machine.run(body);
        if result.is_none() && !failed_before {
            self.stop_for(Stopped::Assertion { target: self.name.clone() });
        }
        result
    }

    /// The target stops as it is.
    fn stop_for(&self, why: Stopped) {
        *self.stopped.borrow_mut() = Some(why);
        self.stop.notify_one();
    }

    fn deadline(&self) -> Option<stdx::Instant> {
        self.run(|machine| machine.deadline()).flatten()
    }

    fn tell_space(&self) {
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
                self.survey_goes_on.notify_one();
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

    /// Those of the medium's device, and among them the space of the target.
    fn medium_params(&self, pattern: &str) -> Vec<(String, String)> {
        let mut served = Served::new();
        served.add(Component::Osd, &[&self.name], |OfMedium::Readonly| None);
        served.add(Component::Osd, &[&self.name], |space: OfSpace| Some(space));
        let found = served.matching(|name| wildcard::matches(pattern, name));
        let of_target = match found.iter().any(|(_, space)| space.is_some()) {
            true => self.run(|machine| machine.get_params(&format!("*.{}.*", self.name))).unwrap_or_default(),
            false => Vec::new(),
        };
        // A management target has none.
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
                let new = self.open_survey(*plan)?;
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

    /// Reads what has arrived, before a deadline acts on what has not: after a pause, or a long turn, the answer that it
    /// waits for may be in a socket already.
    async fn take_in(&self) {
        for _ in 0..READS_BEFORE_DEADLINE {
            let before = self.reads.get();
            // The first lets the runtime look at the sockets, the second lets their tasks read.
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            if self.reads.get() == before {
                return;
            }
        }
    }

    /// Hands requests of the survey to the machine, as many as may go before others have their turn.
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
            self.pump();
        }
        let gone: Vec<ConnId> = match &mut *self.survey.borrow_mut() {
            Some(survey) => {
                if survey.is_ready() {
                    self.survey_goes_on.notify_one();
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
        self.pump();
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

    /// The life of a connection.
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
            self.pump();
        }
    }

    /// Hands over what has arrived. `false`: it is no frame, and the connection is to be closed.
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
        self.pump();
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

    /// A question to the process. Its answer may take a while: it asks the targets, this one too.
    async fn answer_for_process(self: Rc<Self>, id: ConnId, frame: Frame) {
        let mut header = Header { flags: flags::REPLY, ..frame.header };
        let reply = match frame.decode::<AdminReq>() {
            Ok(_) if self.questions.get() >= QUESTIONS_MAX => admin::busy(),
            Ok(request) => {
                let admin = self.admin.clone();
                self.questions.set(self.questions.get() + 1);
                let answer = tokio::task::spawn_blocking(move || admin::answer_from_afar(&admin, &request)).await;
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

    /// Carries out what the machine wants after an event that came past the loop that looks after the timer.
    fn pump(self: &Rc<Self>) {
        self.carry_out();
        // The event may have moved the deadline as well as its effects.
        let deadline = self.deadline();
        if deadline.is_some_and(|at| self.timer.get().is_none_or(|timer| at < timer)) {
            self.timer.set(deadline);
            self.timer_moved.notify_one();
        }
    }

    /// Carries out what the machine wants.
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
                self.survey_goes_on.notify_one();
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
                    world.pump();
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

    /// Whether a connection is one of the survey's.
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

// The sender is kept so that the channel of results stays open while the target lives.
impl<S: Service> Drop for World<S> {
    fn drop(&mut self) {
        let _ = &self.events;
    }
}

#[cfg(test)]
mod tests;
