//! The acceptor of a target: a listener and a thread that accepts connections, identifies the peers and admits or refuses
//! them.
//!
//! It is not the target's own thread, so refused peers cost the target nothing, however many there are. Admitted peers
//! reach the target through a short queue; while it is full, further connections wait in the kernel's backlog.

use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use proto::msg::ConnectRep;
use proto::{Errno, Frame, Header, Nid, Opcode, SendQueue, Xid};
use rustix::net::SendFlags;
use target::Peer;
use tokio::sync::mpsc;

use crate::admin;
use crate::private;
use crate::process::Seat;
use crate::sock_diag::SockDiag;

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(std::net::TcpListener),
    /// A Unix socket; its path is removed when the target stops.
    Unix(std::os::unix::net::UnixListener, PathBuf),
}

/// Why listening at an address failed.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process listens at the address.
    #[error("{0} is in use by another process; stop it or choose another address with --listen")]
    InUse(Nid),
    /// The socket's folder does not exist. It is not created, because clients would not look in a folder that was named by
    /// mistake.
    #[error("cannot listen at {nid}: its folder does not exist; create it with: mkdir -m 700 {}", .folder.display())]
    NoFolder {
        /// The address.
        nid: Nid,
        /// The folder.
        folder: PathBuf,
    },
    /// The address does not belong to this machine, or this user may not use it.
    #[error("cannot listen at {nid}: {error}")]
    Io {
        /// The address.
        nid: Nid,
        /// The error of the system.
        error: io::Error,
    },
}

impl Listener {
    /// Listens at `nid`; port 0 takes a free port. Returns the address with the actual port.
    ///
    /// # Errors
    /// The address is in use or does not belong to this machine.
    pub fn bind(nid: &Nid) -> Result<(Listener, Nid), ListenError> {
        let fail = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => ListenError::InUse(nid.clone()),
            _ => ListenError::Io { nid: nid.clone(), error },
        };
        match nid {
            Nid::Tcp { host, port } => {
                let listener = std::net::TcpListener::bind((host.as_str(), *port)).map_err(fail)?;
                let port = listener.local_addr().map_err(fail)?.port();
                Ok((Listener::Tcp(listener), Nid::Tcp { host: host.clone(), port }))
            }
            Nid::Unix(path) => {
                let path = PathBuf::from(path);
                if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                    if folder == admin::directory() {
                        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(fail)?;
                    } else if !folder.exists() {
                        return Err(ListenError::NoFolder { nid: nid.clone(), folder: folder.to_path_buf() });
                    }
                    private::check_unchanged_by_others(folder).map_err(fail)?;
                }
                if UnixStream::connect(&path).is_ok() {
                    return Err(ListenError::InUse(nid.clone()));
                }
                match std::fs::remove_file(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
                    _ => {}
                }
                let listener = std::os::unix::net::UnixListener::bind(&path).map_err(fail)?;
                Ok((Listener::Unix(listener, path), nid.clone()))
            }
        }
    }

    fn accept(&self) -> io::Result<Arrived> {
        match self {
            Listener::Tcp(listener) => listener.accept().map(|(stream, address)| Arrived::Tcp(stream, address)),
            Listener::Unix(listener, _) => listener.accept().map(|(stream, _)| Arrived::Unix(stream)),
        }
    }

    /// Stops accepting and wakes the thread that is blocked in `accept`.
    fn shut(&self) {
        let shut = match self {
            Listener::Tcp(listener) => rustix::net::shutdown(listener, rustix::net::Shutdown::Both),
            Listener::Unix(listener, _) => rustix::net::shutdown(listener, rustix::net::Shutdown::Both),
        };
        if let Err(error) = shut {
            tracing::debug!("listener: {error}");
        }
    }
}

/// A target's listener, with the rules of admission and the handler of admin requests.
pub struct Door {
    /// The socket.
    pub listener: Listener,
    /// Which peers are admitted.
    pub admission: Admission,
    /// The handler of admin requests that arrive over a connection.
    pub admin: admin::Answers,
}

/// Which peers may connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Admission {
    /// Peers that cannot be identified (other machines, since there are no certificates yet) may connect.
    pub insecure: bool,
}

impl Admission {
    /// Local peers must be root or the user that the server runs as.
    fn admits(self, peer: &Peer) -> bool {
        match peer.uid {
            Some(uid) => is_ours(uid),
            None => self.insecure,
        }
    }
}

/// Whether a user is root or the user that this process runs as.
fn is_ours(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// An accepted connection whose peer is not identified yet.
#[derive(Debug)]
pub(crate) enum Arrived {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

impl Arrived {
    /// Whether admission depends on the peer's user: it does over loopback and over Unix sockets.
    fn has_user(&self) -> bool {
        match self {
            Arrived::Tcp(_, address) => address.ip().to_canonical().is_loopback(),
            Arrived::Unix(_) => true,
        }
    }
}

/// A connection of an admitted peer.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) arrived: Arrived,
    pub(crate) peer: Peer,
    pub(crate) seat: Seat,
}

/// Admitted peers that may wait for the target.
const ARRIVALS: usize = 64;
/// Beyond this many refusals within a second, a pause follows each.
const REFUSALS_A_SECOND: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(1);
/// How long to wait when the system has no descriptor for a connection.
const NO_DESCRIPTORS: Duration = Duration::from_millis(100);
/// The least time between two log lines about refusals.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// A listener with the thread that accepts. Dropping it stops accepting.
pub(crate) struct Entrance {
    listener: Arc<Listener>,
    closing: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
    arrivals: mpsc::Receiver<Admitted>,
}

impl Entrance {
    /// Starts accepting for a target.
    ///
    /// # Errors
    /// The operating system refused a thread.
    pub(crate) fn open(target: &str, listener: Listener, admission: Admission) -> io::Result<Entrance> {
        let listener = Arc::new(listener);
        let closing = Arc::new(AtomicBool::new(false));
        let (admitted, arrivals) = mpsc::channel(ARRIVALS);
        let acceptor = Acceptor {
            target: target.to_owned(),
            listener: listener.clone(),
            closing: closing.clone(),
            admission,
            admitted,
            diag: None,
            refusals: Refusals::default(),
        };
        let name = format!("{target}-accept");
        let thread = std::thread::Builder::new().name(name).spawn(move || acceptor.run())?;
        Ok(Entrance { listener, closing, thread: Some(thread), arrivals })
    }

    /// The next peer that was admitted.
    pub(crate) async fn next(&mut self) -> Option<Admitted> {
        self.arrivals.recv().await
    }
}

impl Drop for Entrance {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Release);
        self.arrivals.close();
        // Close the peers that were admitted and not yet taken; the thread then no longer waits for room in the queue.
        while self.arrivals.try_recv().is_ok() {}
        self.listener.shut();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Listener::Unix(_, path) = &*self.listener {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The accepting side, which runs on a thread of its own.
struct Acceptor {
    target: String,
    listener: Arc<Listener>,
    closing: Arc<AtomicBool>,
    admission: Admission,
    admitted: mpsc::Sender<Admitted>,
    diag: Option<SockDiag>,
    refusals: Refusals,
}

impl Acceptor {
    fn run(mut self) {
        loop {
            let arrived = self.listener.accept();
            if self.closing.load(Ordering::Acquire) {
                return;
            }
            let arrived = match arrived {
                Ok(arrived) => arrived,
                Err(error) => {
                    if let Some(more) = self.refusals.line(Instant::now()) {
                        tracing::warn!("target '{}' cannot take a connection in: {error}{more}", self.target);
                    }
                    std::thread::sleep(NO_DESCRIPTORS);
                    continue;
                }
            };
            let peer = self.identify(&arrived);
            if !self.admission.admits(&peer) {
                let why = "only root and the server's own user may connect from this machine, and others only with --insecure";
                // A peer that could not be identified this time may be identified the next time.
                let errno = if arrived.has_user() && peer.uid.is_none() { Errno::EAGAIN } else { Errno::EACCES };
                self.refuse(&arrived, &peer, errno, why);
                continue;
            }
            let Some(seat) = Seat::take() else {
                let why = "the server has as many connections as its limit of descriptors allows (ulimit -n)";
                self.refuse(&arrived, &peer, Errno::EAGAIN, why);
                continue;
            };
            if self.admitted.blocking_send(Admitted { arrived, peer, seat }).is_err() {
                return;
            }
        }
    }

    fn identify(&mut self, arrived: &Arrived) -> Peer {
        match arrived {
            Arrived::Tcp(stream, address) => {
                let ip = address.ip().to_canonical();
                // Only this machine connects from one of its own addresses. Admission of such a peer does not depend on its
                // user, unless the address is loopback.
                let local = arrived.has_user() || stream.local_addr().is_ok_and(|own| own.ip().to_canonical() == ip);
                let uid = if local { self.tcp_owner(stream) } else { None };
                let ours = uid.is_some_and(is_ours);
                Peer { address: address.to_string(), uid: uid.filter(|_| arrived.has_user()), local, ours }
            }
            Arrived::Unix(stream) => match rustix::net::sockopt::socket_peercred(stream) {
                Ok(cred) => Peer {
                    address: format!("unix:pid {}", cred.pid.as_raw_nonzero()),
                    uid: Some(cred.uid.as_raw()),
                    local: true,
                    ours: is_ours(cred.uid.as_raw()),
                },
                Err(_) => Peer { address: "unix".to_owned(), uid: None, local: true, ours: false },
            },
        }
    }

    fn tcp_owner(&mut self, stream: &TcpStream) -> Option<u32> {
        // After an error, open a new socket: a late answer must not be taken for the answer to the next question.
        let diag = self.diag.take().map_or_else(SockDiag::open, Ok).ok()?;
        let uid = diag.peer_uid(stream).ok()?;
        self.diag = Some(diag);
        uid
    }

    /// Refuses a peer with a reply to its connect request. Reads nothing and waits for nothing.
    fn refuse(&mut self, arrived: &Arrived, peer: &Peer, errno: Errno, why: &str) {
        let mut reply = SendQueue::new();
        reply.push(&refusal(&self.target, errno, why));
        let sent = match arrived {
            Arrived::Tcp(stream, _) => send_at_once(stream, &mut reply),
            Arrived::Unix(stream) => send_at_once(stream, &mut reply),
        };
        if let Err(error) = sent {
            tracing::debug!("target '{}' could not send a refusal to {}: {error}", self.target, peer.address);
        }
        let now = Instant::now();
        if let Some(more) = self.refusals.line(now) {
            tracing::warn!("target '{}' refused {}: {why}{more}", self.target, peer.address);
        }
        if self.refusals.too_many(now) {
            std::thread::sleep(PAUSE);
        }
    }
}

/// The reply to a connect request that was not read.
fn refusal(target: &str, errno: Errno, why: &str) -> Frame {
    let header = Header {
        opcode: Opcode::Connect as u16,
        flags: proto::frame::flags::REPLY,
        xid: Xid(0),
        status: -errno.raw(),
        ..Header::default()
    };
    let body = ConnectRep { reason: format!("target '{target}': {why}"), ..ConnectRep::default() };
    Frame::new(header, &body, Bytes::new())
}

/// Sends as much as the socket takes without blocking.
fn send_at_once(socket: impl AsFd, frames: &mut SendQueue) -> io::Result<()> {
    let mut slices = [IoSlice::new(&[]); 4];
    let count = frames.chunks_vectored(&mut slices);
    let mut nothing = rustix::net::SendAncillaryBuffer::default();
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &slices[..count], &mut nothing, flags)?;
    Ok(())
}

/// Counts refusals, to limit their log lines and the processor time that they take.
#[derive(Debug, Default)]
struct Refusals {
    /// When the last line was logged, and how many refusals were not logged since.
    logged: Option<Instant>,
    unlogged: u64,
    /// The start of the current second, and the refusals in it.
    second: Option<Instant>,
    count: u32,
}

impl Refusals {
    /// The suffix for a log line about a refusal; `None` if it is too early for another line.
    fn line(&mut self, now: Instant) -> Option<String> {
        if self.logged.is_some_and(|at| now.duration_since(at) < LOG_INTERVAL) {
            self.unlogged += 1;
            return None;
        }
        self.logged = Some(now);
        match std::mem::take(&mut self.unlogged) {
            0 => Some(String::new()),
            more => Some(format!(" (and {more} more since the last such line)")),
        }
    }

    /// Whether there were too many refusals within this second.
    fn too_many(&mut self, now: Instant) -> bool {
        if self.second.is_none_or(|at| now.duration_since(at) >= Duration::from_secs(1)) {
            self.second = Some(now);
            self.count = 0;
        }
        self.count += 1;
        self.count > REFUSALS_A_SECOND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entrance() -> (SocketAddr, impl FnOnce() -> Entrance) {
        let (listener, nid) = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let Nid::Tcp { port, .. } = nid else { panic!("{nid}") };
        let open = move || Entrance::open("test", listener, Admission::default()).unwrap();
        (SocketAddr::from(([127, 0, 0, 1], port)), open)
    }

    fn within<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), future).await }).unwrap()
    }

    #[test]
    fn refused_peers_never_reach_the_target() {
        let (address, open) = entrance();
        for _ in 0..100 {
            drop(TcpStream::connect(address).unwrap());
        }
        let mut entrance = open();
        let honest = TcpStream::connect(address).unwrap();
        let Admitted { peer, .. } = within(entrance.next()).unwrap();
        assert_eq!(peer.address, honest.local_addr().unwrap().to_string(), "the others had hung up");
        assert_eq!(peer.uid, Some(rustix::process::geteuid().as_raw()));
        assert!(entrance.arrivals.try_recv().is_err());
    }

    #[test]
    fn a_refused_peer_reads_why() {
        use std::io::Read;
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut queue = SendQueue::new();
        queue.push(&refusal("fs-MDT0000", Errno::EACCES, "not from there"));
        send_at_once(&theirs, &mut queue).unwrap();
        drop(theirs);
        let mut decoder = proto::Decoder::new();
        let mut bytes = Vec::new();
        ours.read_to_end(&mut bytes).unwrap();
        decoder.buffer().extend_from_slice(&bytes);
        let frame = decoder.next_frame().unwrap().unwrap();
        assert_eq!((frame.header.xid, frame.header.status), (Xid(0), -Errno::EACCES.raw()));
        assert_eq!(frame.decode::<ConnectRep>().unwrap().reason, "target 'fs-MDT0000': not from there");
    }

    #[test]
    fn an_entrance_closes_while_peers_wait_for_a_place() {
        let (address, open) = entrance();
        let waiting: Vec<TcpStream> = (0..ARRIVALS + 20).map(|_| TcpStream::connect(address).unwrap()).collect();
        let entrance = open();
        while entrance.arrivals.len() < ARRIVALS {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(entrance);
        assert!(TcpStream::connect(address).is_err());
        drop(waiting);
    }

    #[test]
    fn refusals_are_logged_now_and_then_and_slowed_down() {
        let mut refusals = Refusals::default();
        let start = Instant::now();
        let lines: Vec<String> = (0..3000).filter_map(|_| refusals.line(start)).collect();
        assert_eq!(lines, [""]);
        assert!(refusals.line(start + LOG_INTERVAL).unwrap().contains("2999 more"));
        let slowed = (0..3000).filter(|_| refusals.too_many(start)).count();
        assert_eq!(slowed, 2000);
        assert!(!refusals.too_many(start + Duration::from_secs(1)));
    }
}
