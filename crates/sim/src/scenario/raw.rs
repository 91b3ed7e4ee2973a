//! Hand-operated sessions: a part of a story is the program of a peer that is not one of our clients.
//!
//! Our clients send no request without the lock that it needs, claim nothing that they were not granted, and do not register as
//! targets; so no call through a client shows how a server treats a peer that does. [`Act::Raw`](super::Act::Raw) runs a function
//! that opens its own sessions with any server, sends requests, and states the expected outcome of each: a reply, an errno, a
//! notice, the end of the connection, or nothing.
//!
//! ```ignore
//! async fn spendthrift(cx: RawContext) -> Outcome {
//!     let mut peer = cx.peer(OST);
//!     peer.connect(|_, request| request.grant = 1 << 40).await?;
//!     peer.refused(Opcode::ObjWrite, &write, Errno::ENOSPC).await?;
//!     cx.crash(OST).await;
//!     peer.connect(|header, _| header.flags = flags::CONNECT_RECONNECT).await?;
//!     ...
//! }
//! ```
//!
//! A session persists for later parts of the story ([`RawContext::known`]). At the end the remaining sessions disconnect.

use core::future::Future;
use core::pin::Pin;
use core::time::Duration;

use prost::Message;
use proto::frame::flags;
use proto::msg::{ConnectRep, ConnectReq, Empty};
use proto::{Bytes, Errno, Fid, Frame, Header, Opcode, TargetName, Xid};

use crate::kernel::Kernel;
use crate::program::root;
use crate::sched::{Command, Sched};
use crate::world::World;
use crate::world::raw::RawSessions;
use crate::world::session::Session;

/// The outcome of a part of a story: what is wrong, if anything.
pub(crate) type Outcome = Result<(), String>;
/// A running part of a story.
pub(crate) type RunningPart = Pin<Box<dyn Future<Output = Outcome>>>;

/// The longest time to wait for a reply: longer than a lock timeout.
const ANSWER_MAX: Duration = Duration::from_secs(150);
/// Interval between connect attempts to a starting target.
const AGAIN: Duration = Duration::from_millis(5);

/// The tools of a part of a story.
#[derive(Clone)]
pub struct RawContext {
    pub(super) sessions: RawSessions,
    pub(crate) sched: Sched,
    /// The names of the servers.
    pub(super) names: Vec<TargetName>,
    pub(super) kernels: Vec<Kernel>,
    /// The story's directory.
    pub(super) base: Vec<Bytes>,
}

impl RawContext {
    /// Tools for programs without a directory and clients.
    pub fn of(world: &World) -> RawContext {
        RawContext {
            sessions: world.raw.clone(),
            sched: world.sched.clone(),
            names: world.servers.iter().map(|server| server.name.clone()).collect(),
            kernels: Vec::new(),
            base: Vec::new(),
        }
    }

    /// A new session with a server, not connected yet.
    pub fn peer(&self, server: usize) -> Peer {
        Peer { place: self.sessions.add(server), cx: self.clone() }
    }

    /// The session with this index in the order of creation.
    pub fn known(&self, place: usize) -> Peer {
        Peer { place, cx: self.clone() }
    }

    /// The name of a server.
    pub fn name(&self, server: usize) -> String {
        self.names[server].to_string()
    }

    /// Waits for a duration of virtual time.
    pub async fn wait(&self, time: Duration) {
        self.sched.sleep(time).await;
    }

    /// Sends a command to the world, and lets it be executed.
    pub async fn command(&self, command: Command) {
        self.sched.command(command);
        self.sched.sleep(Duration::from_micros(1)).await;
    }

    /// Kills a server, which then restarts.
    pub async fn crash(&self, server: usize) {
        self.command(Command::Crash(server)).await;
    }

    /// From now on, until it is killed, nothing that a server writes reaches its disk.
    pub async fn withhold(&self, server: usize) {
        self.command(Command::Barrier(server)).await;
    }

    /// Sets the capacity of an object target's disk for data, and waits until the target has noticed.
    pub async fn set_capacity(&self, server: usize, bytes: Option<u64>) {
        self.command(Command::DataCapacity(server, bytes)).await;
        self.wait(Duration::from_millis(1_100)).await;
    }

    /// The FID of a file that the story has made, looked up through a client.
    pub async fn fid(&self, client: usize, path: &str) -> Result<Fid, String> {
        let full: Vec<Bytes> = self.base.iter().cloned().chain(super::stories::path(path)).collect();
        let stat = self.kernels[client].stat(&root(), &full).await.map_err(|fail| format!("{path}: {fail:?}"))?;
        Fid::from_ino(stat.ino).ok_or_else(|| format!("{path} has no FID"))
    }

    /// Waits until a condition holds, at most for this long. Returns whether it does.
    async fn until(&self, most: Duration, mut is_so: impl FnMut() -> bool) -> bool {
        let until = self.sched.now() + most;
        let mut pause = Duration::from_micros(50);
        while !is_so() {
            if self.sched.now() >= until {
                return false;
            }
            self.sched.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(2));
        }
        true
    }

    /// Disconnects the remaining sessions.
    pub(crate) async fn leave(&self) {
        for place in 0..self.sessions.count() {
            let peer = self.known(place);
            if peer.is_up() {
                let goodbye = peer.request(Opcode::Disconnect, &Empty {});
                let xid = peer.send(goodbye);
                let _ = peer.answer_within(xid, Duration::from_secs(10)).await;
            }
        }
    }
}

/// A hand-operated session.
#[derive(Clone)]
pub struct Peer {
    place: usize,
    cx: RawContext,
}

impl Peer {
    /// Its index, for [`RawContext::known`].
    pub fn place(&self) -> usize {
        self.place
    }

    /// Reads or changes the session: its UUID, its count of connects, its export.
    pub fn session<R>(&self, look: impl FnOnce(&mut Session) -> R) -> R {
        self.cx.sessions.session(self.place, look)
    }

    /// Whether it is connected.
    pub fn is_up(&self) -> bool {
        self.session(|session| session.up)
    }

    /// From the next connection on servers treat it as a foreign program, which may not be a target.
    pub fn stranger(&self) {
        self.cx.sessions.distrust(self.place);
    }

    /// Closes its connection without disconnecting the session.
    pub fn hang_up(&self) {
        self.cx.sessions.hang_up(self.place);
    }

    /// Establishes a connection if there is none, retrying until the server runs.
    ///
    /// # Errors
    /// No connection could be established in time.
    pub async fn dial(&self) -> Outcome {
        let (sessions, place) = (&self.cx.sessions, self.place);
        let there = || {
            if !sessions.session(place, |session| session.up) && !sessions.dials(place) {
                sessions.dial(place);
            }
            sessions.session(place, |session| session.up)
        };
        let came = self.cx.until(ANSWER_MAX, there).await;
        if came { Ok(()) } else { Err(self.wrong("cannot connect".to_owned())) }
    }

    /// Connects with a header and request that `claim` may change, by default as a client with all features that has nothing from
    /// this target, and returns the reply. Retries if the target is starting or goes down meanwhile.
    ///
    /// # Errors
    /// There is no reply.
    pub async fn connect(&self, claim: impl Fn(&mut Header, &mut ConnectReq)) -> Result<Frame, String> {
        loop {
            self.dial().await?;
            let (mut header, mut request) = self
                .session(|session| session.connect(&self.cx.names[session.server], &format!("by hand {}", self.place)));
            claim(&mut header, &mut request);
            let xid = self.send(Frame::new(header, &request, Bytes::new()));
            match self.reply_while_up(xid).await? {
                Some(reply) if reply.header.status != -Errno::EAGAIN.raw() => return Ok(reply),
                _ => self.cx.wait(AGAIN).await,
            }
        }
    }

    /// Connects, and must be accepted.
    ///
    /// # Errors
    /// The target refuses.
    pub async fn connected(&self, claim: impl Fn(&mut Header, &mut ConnectReq)) -> Result<ConnectRep, String> {
        let reply = self.connect(claim).await?;
        self.is(Opcode::Connect, &reply, Ok(()))?;
        decoded(&reply)
    }

    /// Connects, and must be refused with this error.
    ///
    /// # Errors
    /// The target accepts, or refuses with another error.
    pub async fn refused_connect(&self, claim: impl Fn(&mut Header, &mut ConnectReq), errno: Errno) -> Outcome {
        let reply = self.connect(claim).await?;
        self.is(Opcode::Connect, &reply, Err(errno))
    }

    /// Reconnects to a target after its restart or after the loss of the connection, with nothing to replay.
    ///
    /// # Errors
    /// The target refuses.
    pub async fn back(&self) -> Result<ConnectRep, String> {
        let reply = self.connected(|header, _| header.flags = flags::CONNECT_RECONNECT).await?;
        for done in [flags::REQ_REPLAY_DONE, flags::LOCK_REPLAY_DONE] {
            let mut ping = self.request(Opcode::Ping, &Empty {});
            ping.header.flags |= done;
            self.call(ping).await?;
        }
        Ok(reply)
    }

    /// Disconnects the session.
    ///
    /// # Errors
    /// The target does not confirm it.
    pub async fn leave(&self) -> Outcome {
        let reply = self.call(self.request(Opcode::Disconnect, &Empty {})).await?;
        self.is(Opcode::Disconnect, &reply, Ok(()))?;
        self.hang_up();
        Ok(())
    }

    /// The next request of this session, which may be changed before it is sent.
    pub fn request(&self, opcode: Opcode, body: &impl Message) -> Frame {
        Frame::new(self.session(|session| session.next(opcode)), body, Bytes::new())
    }

    /// Sends a frame unchanged.
    pub fn send(&self, frame: Frame) -> Xid {
        let xid = frame.header.xid;
        self.cx.sessions.send(self.place, frame);
        xid
    }

    /// The reply to a request; early replies are skipped.
    ///
    /// # Errors
    /// There is no reply.
    pub async fn answer(&self, xid: Xid) -> Result<Frame, String> {
        self.answer_within(xid, ANSWER_MAX).await
    }

    /// The same with a time limit.
    ///
    /// # Errors
    /// There is no reply.
    pub async fn answer_within(&self, xid: Xid, most: Duration) -> Result<Frame, String> {
        let reply = self.reply(xid, most, || false).await;
        reply.ok_or_else(|| self.wrong(format!("has no reply to xid {} within {most:?}", xid.0)))
    }

    /// The reply to a request, or `None` if the connection ends before it.
    ///
    /// # Errors
    /// There is no reply, and the connection is still up.
    pub async fn reply_while_up(&self, xid: Xid) -> Result<Option<Frame>, String> {
        let reply = self.reply(xid, ANSWER_MAX, || !self.is_up()).await;
        match reply {
            None if self.is_up() => Err(self.wrong(format!("has no reply to xid {}", xid.0))),
            reply => Ok(reply),
        }
    }

    /// A reply, if it arrives in time and before `gives_up` holds.
    async fn reply(&self, xid: Xid, most: Duration, gives_up: impl Fn() -> bool) -> Option<Frame> {
        let is_it = |frame: &Frame| {
            frame.header.has(flags::REPLY) && !frame.header.has(flags::EARLY) && frame.header.xid == xid
        };
        let mut found = None;
        let take = || {
            found = self.cx.sessions.take(self.place, is_it);
            found.is_some() || gives_up()
        };
        self.cx.until(most, take).await;
        found
    }

    /// Sends a request and returns its reply, whatever it is.
    ///
    /// # Errors
    /// There is no reply.
    pub async fn call(&self, frame: Frame) -> Result<Frame, String> {
        let xid = self.send(frame);
        self.answer(xid).await
    }

    /// Makes a request that must succeed.
    ///
    /// # Errors
    /// It fails.
    pub async fn done<R: Message + Default>(&self, opcode: Opcode, body: &impl Message) -> Result<R, String> {
        let reply = self.call(self.request(opcode, body)).await?;
        self.is(opcode, &reply, Ok(()))?;
        decoded(&reply)
    }

    /// Makes a request that must fail with this error.
    ///
    /// # Errors
    /// It succeeds, or fails with another error.
    pub async fn refused(&self, opcode: Opcode, body: &impl Message, errno: Errno) -> Outcome {
        let reply = self.call(self.request(opcode, body)).await?;
        self.is(opcode, &reply, Err(errno))
    }

    /// Checks the status of a reply.
    ///
    /// # Errors
    /// The status is another one.
    pub fn is(&self, opcode: Opcode, reply: &Frame, wanted: Result<(), Errno>) -> Outcome {
        let status = wanted.map_or_else(|errno| -errno.raw(), |()| 0);
        if reply.header.status == status {
            return Ok(());
        }
        Err(self.wrong(format!(
            "has status {} in the reply to {}, expected {wanted:?}",
            reply.header.status,
            opcode.name()
        )))
    }

    /// Checks that a request has no reply within this time.
    ///
    /// # Errors
    /// There is a reply.
    pub async fn unanswered(&self, xid: Xid, most: Duration) -> Outcome {
        match self.answer_within(xid, most).await {
            Ok(reply) => Err(self.wrong(format!("has a reply too early: {:?}", reply.header))),
            Err(_) => Ok(()),
        }
    }

    /// A notice of this kind that has arrived, or arrives in time.
    pub async fn notice(&self, opcode: Opcode, most: Duration) -> Option<Frame> {
        let is_it = |frame: &Frame| !frame.header.has(flags::REPLY) && frame.header.opcode == opcode as u16;
        let mut found = None;
        let take = || {
            found = self.cx.sessions.take(self.place, is_it);
            found.is_some()
        };
        self.cx.until(most, take).await;
        found
    }

    /// The same, decoded.
    ///
    /// # Errors
    /// No notice arrives.
    pub async fn noticed<R: Message + Default>(&self, opcode: Opcode, most: Duration) -> Result<R, String> {
        match self.notice(opcode, most).await {
            Some(frame) => decoded(&frame),
            None => Err(self.wrong(format!("receives no {} within {most:?}", opcode.name()))),
        }
    }

    /// Checks that no notice of this kind arrives within this time.
    ///
    /// # Errors
    /// A notice arrives.
    pub async fn unnoticed(&self, opcode: Opcode, most: Duration) -> Outcome {
        match self.notice(opcode, most).await {
            Some(_) => Err(self.wrong(format!("receives an unexpected {}", opcode.name()))),
            None => Ok(()),
        }
    }

    /// A message about this session.
    pub fn wrong(&self, what: String) -> String {
        let server = self.session(|session| session.server);
        format!("session {} by hand with {}: {what}", self.place, self.cx.names[server])
    }
}

/// Decodes the body of a reply.
fn decoded<R: Message + Default>(frame: &Frame) -> Result<R, String> {
    frame.decode().map_err(|error| format!("a reply cannot be decoded: {error}"))
}
