//! Sessions by hand: a part of a story is the program of a peer that is no client of ours.
//!
//! A client asks for nothing that it has no lock for, claims nothing that it was not given, and registers nothing; so no call through one
//! shows what a server does with somebody who does. [`Act::Raw`](super::Act::Raw) runs a function that opens sessions of its own with
//! any server, sends requests, and says what must come of each: an answer, an errno, a notice, the end of the connection, or nothing.
//!
//! ```ignore
//! async fn spendthrift(hand: Hand) -> Outcome {
//!     let mut peer = hand.peer(OST);
//!     peer.connect(|_, request| request.grant = 1 << 40).await?;
//!     peer.refused(Opcode::ObjWrite, &write, Errno::ENOSPC).await?;
//!     hand.crash(OST).await;
//!     peer.connect(|header, _| header.flags = flags::CONNECT_RECONNECT).await?;
//!     ...
//! }
//! ```
//!
//! A session stays for later parts of the story ([`Hand::known`]). At the end those that are left say good-bye.

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
use crate::world::raw::Wires;
use crate::world::session::Session;

/// How a part of a story ended; if not well, what is wrong.
pub(crate) type Outcome = Result<(), String>;
/// A part of a story that is on its way.
pub(crate) type Doing = Pin<Box<dyn Future<Output = Outcome>>>;

/// An answer comes within this, or it does not come: longer than a lock is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(150);
/// So often a target that starts is asked again.
const AGAIN: Duration = Duration::from_millis(5);

/// What a part of a story has.
#[derive(Clone)]
pub struct Hand {
    pub(super) wires: Wires,
    pub(crate) sched: Sched,
    /// Of the servers.
    pub(super) names: Vec<TargetName>,
    pub(super) kernels: Vec<Kernel>,
    /// The story's directory.
    pub(super) base: Vec<Bytes>,
}

impl Hand {
    /// One for programs that have no directory and no clients.
    pub fn of(world: &World) -> Hand {
        Hand {
            wires: world.raw.clone(),
            sched: world.sched.clone(),
            names: world.servers.iter().map(|server| server.name.clone()).collect(),
            kernels: Vec::new(),
            base: Vec::new(),
        }
    }

    /// A new session with a server, which knows nothing of it yet.
    pub fn peer(&self, server: usize) -> Peer {
        Peer { place: self.wires.add(server), hand: self.clone() }
    }

    /// The session that was made first, second, and so on in this story.
    pub fn known(&self, place: usize) -> Peer {
        Peer { place, hand: self.clone() }
    }

    /// The name of a server.
    pub fn name(&self, server: usize) -> String {
        self.names[server].to_string()
    }

    /// Lets time pass.
    pub async fn wait(&self, time: Duration) {
        self.sched.sleep(time).await;
    }

    /// Asks the world for something, and lets it happen.
    pub async fn command(&self, command: Command) {
        self.sched.command(command);
        self.sched.sleep(Duration::from_micros(1)).await;
    }

    /// A server is killed, and comes back.
    pub async fn crash(&self, server: usize) {
        self.command(Command::Crash(server)).await;
    }

    /// From now on nothing that a server does reaches its disk, until it is killed.
    pub async fn withhold(&self, server: usize) {
        self.command(Command::Barrier(server)).await;
    }

    /// The disk of an object target has room for so many bytes in all, and the target has learned it.
    pub async fn room(&self, server: usize, bytes: Option<u64>) {
        self.command(Command::Room(server, bytes)).await;
        self.wait(Duration::from_millis(1_100)).await;
    }

    /// The FID of a file that the story has made, asked through a client.
    pub async fn fid(&self, client: usize, path: &str) -> Result<Fid, String> {
        let full: Vec<Bytes> = self.base.iter().cloned().chain(super::stories::path(path)).collect();
        let stat = self.kernels[client].stat(&root(), &full).await.map_err(|fail| format!("{path}: {fail:?}"))?;
        Fid::from_ino(stat.ino).ok_or_else(|| format!("{path} has no FID"))
    }

    /// Waits until something is so, at most for so long.
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

    /// The sessions that are left say good-bye.
    pub(crate) async fn leave(&self) {
        for place in 0..self.wires.count() {
            let peer = self.known(place);
            if peer.is_up() {
                let goodbye = peer.request(Opcode::Disconnect, &Empty {});
                let xid = peer.send(goodbye);
                let _ = peer.answer_within(xid, Duration::from_secs(10)).await;
            }
        }
    }
}

/// A session by hand.
#[derive(Clone)]
pub struct Peer {
    place: usize,
    hand: Hand,
}

impl Peer {
    /// Its place, for [`Hand::known`].
    pub fn place(&self) -> usize {
        self.place
    }

    /// Looks at what it knows, or changes that: who it is, how often it has connected, its export.
    pub fn session<R>(&self, look: impl FnOnce(&mut Session) -> R) -> R {
        self.hand.wires.session(self.place, look)
    }

    /// Whether its connection is there.
    pub fn is_up(&self) -> bool {
        self.session(|session| session.up)
    }

    /// Servers take it for somebody else's program, from its next connection on: it may not be a target.
    pub fn stranger(&self) {
        self.hand.wires.distrust(self.place);
    }

    /// Closes its connection without a word.
    pub fn hang_up(&self) {
        self.hand.wires.hang_up(self.place);
    }

    /// Gets a connection if it has none, and tries again until the server runs.
    ///
    /// # Errors
    /// It does not.
    pub async fn dial(&self) -> Outcome {
        let (wires, place) = (&self.hand.wires, self.place);
        let there = || {
            if !wires.session(place, |session| session.up) && !wires.dials(place) {
                wires.dial(place);
            }
            wires.session(place, |session| session.up)
        };
        let came = self.hand.until(ANSWER_MAX, there).await;
        if came { Ok(()) } else { Err(self.wrong("gets no connection".to_owned())) }
    }

    /// Connects with what is said in header and request, by default as a client with all features that has nothing of this target, and
    /// gives the answer. A target that starts is asked again, and one that went meanwhile, too.
    ///
    /// # Errors
    /// No answer.
    pub async fn connect(&self, claim: impl Fn(&mut Header, &mut ConnectReq)) -> Result<Frame, String> {
        loop {
            self.dial().await?;
            let (mut header, mut request) = self.session(|session| {
                session.connect(&self.hand.names[session.server], &format!("by hand {}", self.place))
            });
            claim(&mut header, &mut request);
            let xid = self.send(Frame::new(header, &request, Bytes::new()));
            match self.reply_while_up(xid).await? {
                Some(reply) if reply.header.status != -Errno::EAGAIN.raw() => return Ok(reply),
                _ => self.hand.wait(AGAIN).await,
            }
        }
    }

    /// The same, and it is let in.
    ///
    /// # Errors
    /// It is not.
    pub async fn connected(&self, claim: impl Fn(&mut Header, &mut ConnectReq)) -> Result<ConnectRep, String> {
        let reply = self.connect(claim).await?;
        self.is(Opcode::Connect, &reply, Ok(()))?;
        decoded(&reply)
    }

    /// The same, and it is refused.
    ///
    /// # Errors
    /// It is let in, or refused otherwise.
    pub async fn kept_out(&self, claim: impl Fn(&mut Header, &mut ConnectReq), errno: Errno) -> Outcome {
        let reply = self.connect(claim).await?;
        self.is(Opcode::Connect, &reply, Err(errno))
    }

    /// Comes back to a target that has restarted, or to which the connection was lost, with nothing to replay.
    ///
    /// # Errors
    /// It is not let in.
    pub async fn back(&self) -> Result<ConnectRep, String> {
        let reply = self.connected(|header, _| header.flags = flags::CONNECT_RECONNECT).await?;
        for done in [flags::REQ_REPLAY_DONE, flags::LOCK_REPLAY_DONE] {
            let mut ping = self.request(Opcode::Ping, &Empty {});
            ping.header.flags |= done;
            self.call(ping).await?;
        }
        Ok(reply)
    }

    /// Says good-bye.
    ///
    /// # Errors
    /// Nobody hears it.
    pub async fn leave(&self) -> Outcome {
        let reply = self.call(self.request(Opcode::Disconnect, &Empty {})).await?;
        self.is(Opcode::Disconnect, &reply, Ok(()))?;
        self.hang_up();
        Ok(())
    }

    /// The next request of this session, to be sent as it is or changed.
    pub fn request(&self, opcode: Opcode, body: &impl Message) -> Frame {
        Frame::new(self.session(|session| session.next(opcode)), body, Bytes::new())
    }

    /// Sends a frame, as it is.
    pub fn send(&self, frame: Frame) -> Xid {
        let xid = frame.header.xid;
        self.hand.wires.send(self.place, frame);
        xid
    }

    /// The answer to a request; early replies are left out.
    ///
    /// # Errors
    /// There is none.
    pub async fn answer(&self, xid: Xid) -> Result<Frame, String> {
        self.answer_within(xid, ANSWER_MAX).await
    }

    /// The same for those who know how long it may take.
    ///
    /// # Errors
    /// There is none.
    pub async fn answer_within(&self, xid: Xid, most: Duration) -> Result<Frame, String> {
        let reply = self.reply(xid, most, || false).await;
        reply.ok_or_else(|| self.wrong(format!("has no answer to xid {} within {most:?}", xid.0)))
    }

    /// The answer to a request, if it comes before the connection ends.
    ///
    /// # Errors
    /// Neither.
    pub async fn reply_while_up(&self, xid: Xid) -> Result<Option<Frame>, String> {
        let reply = self.reply(xid, ANSWER_MAX, || !self.is_up()).await;
        match reply {
            None if self.is_up() => Err(self.wrong(format!("has no answer to xid {}", xid.0))),
            reply => Ok(reply),
        }
    }

    /// An answer, if one comes within so long and before nobody waits any more.
    async fn reply(&self, xid: Xid, most: Duration, gives_up: impl Fn() -> bool) -> Option<Frame> {
        let is_it = |frame: &Frame| {
            frame.header.has(flags::REPLY) && !frame.header.has(flags::EARLY) && frame.header.xid == xid
        };
        let mut found = None;
        let take = || {
            found = self.hand.wires.take(self.place, is_it);
            found.is_some() || gives_up()
        };
        self.hand.until(most, take).await;
        found
    }

    /// Sends a request and gives its answer, whatever it is.
    ///
    /// # Errors
    /// There is none.
    pub async fn call(&self, frame: Frame) -> Result<Frame, String> {
        let xid = self.send(frame);
        self.answer(xid).await
    }

    /// A request that succeeds.
    ///
    /// # Errors
    /// It does not.
    pub async fn done<R: Message + Default>(&self, opcode: Opcode, body: &impl Message) -> Result<R, String> {
        let reply = self.call(self.request(opcode, body)).await?;
        self.is(opcode, &reply, Ok(()))?;
        decoded(&reply)
    }

    /// A request that is refused.
    ///
    /// # Errors
    /// It is not, or otherwise.
    pub async fn refused(&self, opcode: Opcode, body: &impl Message, errno: Errno) -> Outcome {
        let reply = self.call(self.request(opcode, body)).await?;
        self.is(opcode, &reply, Err(errno))
    }

    /// Whether an answer is what it must be.
    ///
    /// # Errors
    /// It is not.
    pub fn is(&self, opcode: Opcode, reply: &Frame, wanted: Result<(), Errno>) -> Outcome {
        let status = wanted.map_or_else(|errno| -errno.raw(), |()| 0);
        if reply.header.status == status {
            return Ok(());
        }
        Err(self.wrong(format!("is answered {} to {}, expected {wanted:?}", reply.header.status, opcode.name())))
    }

    /// A request has no answer within so long.
    ///
    /// # Errors
    /// It has one.
    pub async fn unanswered(&self, xid: Xid, most: Duration) -> Outcome {
        match self.answer_within(xid, most).await {
            Ok(reply) => Err(self.wrong(format!("is answered too early: {:?}", reply.header))),
            Err(_) => Ok(()),
        }
    }

    /// A notice of this kind, that has come or comes within so long.
    pub async fn notice(&self, opcode: Opcode, most: Duration) -> Option<Frame> {
        let is_it = |frame: &Frame| !frame.header.has(flags::REPLY) && frame.header.opcode == opcode as u16;
        let mut found = None;
        let take = || {
            found = self.hand.wires.take(self.place, is_it);
            found.is_some()
        };
        self.hand.until(most, take).await;
        found
    }

    /// The same, and what it says.
    ///
    /// # Errors
    /// None comes.
    pub async fn noticed<R: Message + Default>(&self, opcode: Opcode, most: Duration) -> Result<R, String> {
        match self.notice(opcode, most).await {
            Some(frame) => decoded(&frame),
            None => Err(self.wrong(format!("hears no {} within {most:?}", opcode.name()))),
        }
    }

    /// None comes within so long.
    ///
    /// # Errors
    /// One does.
    pub async fn unnoticed(&self, opcode: Opcode, most: Duration) -> Outcome {
        match self.notice(opcode, most).await {
            Some(_) => Err(self.wrong(format!("hears {}, and should not", opcode.name()))),
            None => Ok(()),
        }
    }

    /// A sentence about it.
    pub fn wrong(&self, what: String) -> String {
        let server = self.session(|session| session.server);
        format!("session {} by hand with {}: {what}", self.place, self.hand.names[server])
    }
}

/// What an answer says.
fn decoded<R: Message + Default>(frame: &Frame) -> Result<R, String> {
    frame.decode().map_err(|error| format!("an answer cannot be read: {error}"))
}
