//! A single request to a server, for commands that need no mount: connect, send, wait for the reply, disconnect.

use std::io;
use std::time::{Duration, Instant};

use bytes::Buf;
use bytes::Bytes;
use prost::Message;
use proto::frame::flags;
use proto::msg::{AdminRep, AdminReq, ConnectRep, ConnectReq};
use proto::{Decoder, Errno, Frame, Header, Nid, Opcode, SendQueue, Xid};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::admin;
use crate::clock;
use crate::stream::Stream;

/// How long to wait for a reply.
const PATIENCE: Duration = Duration::from_secs(20);

/// Why a target could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No server answers at the address; see whether one runs.
    #[error("cannot ask {target} at {place}: {error}; is it served there?")]
    Unreachable {
        /// Its name.
        target: String,
        /// Its addresses.
        place: String,
        /// Why the attempt failed.
        error: io::Error,
    },
    /// The target refuses the connection.
    #[error("{target} at {place} refuses: {reason}")]
    Refused {
        /// Its name.
        target: String,
        /// Its addresses.
        place: String,
        /// The errno of its reply.
        errno: Errno,
        /// The reason in its reply, or the text of the errno.
        reason: String,
    },
}

/// Asks the target `target` at one of `nids`.
///
/// # Errors
/// The target cannot be asked. Errors that it replies with are in the frame.
pub fn ask(nids: &[Nid], target: &str, opcode: Opcode, body: &impl Message) -> Result<Frame, AskError> {
    let place = || nids.iter().map(Nid::to_string).collect::<Vec<_>>().join(", ");
    let failed = |error: io::Error| AskError::Unreachable { target: target.to_owned(), place: place(), error };
    let mut connection = Connection { stream: Stream::dial(nids).map_err(failed)?, decoder: Decoder::new() };
    let connect = ConnectReq {
        client_uuid: Bytes::copy_from_slice(&clock::uuid().0.to_be_bytes()),
        target: target.to_owned(),
        version: proto::connect::PROTOCOL_VERSION,
        lightweight: true,
        description: format!("command {}", std::process::id()),
        ..ConnectReq::default()
    };
    let header = |opcode: Opcode, xid: u64| Header {
        opcode: opcode as u16,
        conn_cnt: 1,
        xid: Xid(xid),
        timeout_ms: PATIENCE.as_millis() as u32,
        ..Header::default()
    };
    let hello = Header { flags: flags::CONNECT_INITIAL, ..header(Opcode::Connect, 1) };
    let connected = connection.exchange(Frame::new(hello, &connect, Bytes::new())).map_err(failed)?;
    if let Err(errno) = Errno::from_status(connected.header.status) {
        let reason = connected.decode::<ConnectRep>().map(|reply| reply.reason).unwrap_or_default();
        let reason = if reason.is_empty() { errno.to_string() } else { reason };
        return Err(AskError::Refused { target: target.to_owned(), place: place(), errno, reason });
    }
    let question = Header { export: connected.header.export, ..header(opcode, 2) };
    let answer = connection.exchange(Frame::new(question, body, Bytes::new())).map_err(failed)?;
    let bye = Header { export: connected.header.export, ..header(Opcode::Disconnect, 3) };
    let _ = connection.exchange(Frame::new(bye, &proto::msg::Empty {}, Bytes::new()));
    Ok(answer)
}

/// Sends an admin request to the server process at an address.
///
/// # Errors
/// It cannot be reached, or does not answer.
pub fn ask_process(nid: &Nid, request: &admin::Request) -> io::Result<admin::Response> {
    let mut connection = Connection { stream: Stream::dial(std::slice::from_ref(nid))?, decoder: Decoder::new() };
    let header = Header {
        opcode: Opcode::Admin as u16,
        xid: Xid(1),
        timeout_ms: PATIENCE.as_millis() as u32,
        ..Header::default()
    };
    let body = AdminReq { request: serde_json::to_string(request)? };
    let answer = connection.exchange(Frame::new(header, &body, Bytes::new()))?;
    if let Err(errno) = Errno::from_status(answer.header.status) {
        return Err(io::Error::other(format!("it answers {errno}: its version cannot be asked from afar")));
    }
    let reply = answer.decode::<AdminRep>().map_err(io::Error::other)?;
    serde_json::from_str(&reply.response).map_err(io::Error::from)
}

struct Connection {
    stream: Stream,
    decoder: Decoder,
}

impl Connection {
    /// Sends a request and waits for its reply. Ignores all other frames.
    fn exchange(&mut self, request: Frame) -> io::Result<Frame> {
        let deadline = Instant::now() + PATIENCE;
        let mut queue = SendQueue::new();
        queue.push(&request);
        loop {
            self.stream.write(&mut queue)?;
            if !queue.has_remaining() {
                break;
            }
            self.wait(PollFlags::OUT, deadline)?;
        }
        loop {
            let bad =
                |error| io::Error::new(io::ErrorKind::InvalidData, format!("it does not speak our protocol ({error})"));
            while let Some(frame) = self.decoder.next_frame().map_err(bad)? {
                let header = &frame.header;
                if header.xid == request.header.xid && header.has(flags::REPLY) && !header.has(flags::EARLY) {
                    return Ok(frame);
                }
            }
            match self.stream.read(self.decoder.buffer()) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it hung up")),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(PollFlags::IN, deadline)?,
                Err(error) => return Err(error),
            }
        }
    }

    fn wait(&self, what: PollFlags, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match rustix::event::poll(&mut [PollFd::new(&self.stream, what)], Some(&left)) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::TimedOut, "no answer")),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
