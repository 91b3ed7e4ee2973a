//! The sockets of a mount: connections, and the waits for them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Buf;
use client::api::{ConnId, Event};
use parking_lot::MutexGuard;
use proto::{Decoder, SendQueue};
use rustix::event::{PollFd, PollFlags, Timespec, epoll};

use super::{Shared, State};
use crate::stream::Stream;

/// How long to poll for an answer before sleeping: a little longer than a round trip over a near network.
const LOOK: Duration = Duration::from_micros(40);
/// The most rounds of reading before a deadline, so that servers that never stop sending cannot delay it.
const READS_BEFORE_DEADLINE: u32 = 16;

/// A connection to a server.
pub(super) struct Conn {
    stream: Stream,
    decoder: Decoder,
    pub(super) out: SendQueue,
    /// Interest in writability is registered.
    wants_write: bool,
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}

impl Shared {
    /// Polls the sockets for a moment, which finds an answer sooner than the kernel can wake a thread. If none arrives,
    /// polling pauses for a number of calls that doubles each time, because the server is slow or has no core to itself.
    /// Stops at once when `called` returns true.
    pub(super) fn look_sockets(&self, called: &mut dyn FnMut() -> bool) -> Vec<(u64, epoll::EventFlags)> {
        let pause = self.pause.load(Ordering::Relaxed);
        if pause & 0xffff != 0 {
            self.pause.store(pause - 1, Ordering::Relaxed);
            return Vec::new();
        }
        let start = std::time::Instant::now();
        while start.elapsed() < LOOK {
            let ready = self.wait_sockets(Some(Duration::ZERO));
            if !ready.is_empty() {
                self.pause.store(0, Ordering::Relaxed);
                return ready;
            }
            if called() {
                return ready;
            }
        }
        // Upper half: the length of the next pause. Lower half: what remains of this one.
        let next = ((pause >> 16) * 2).clamp(4, 512);
        self.pause.store(next << 16 | next, Ordering::Relaxed);
        Vec::new()
    }

    /// Waits until sockets can be read or written.
    pub(super) fn wait_sockets(&self, timeout: Option<Duration>) -> Vec<(u64, epoll::EventFlags)> {
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 32];
        match epoll::wait(&self.poller, &mut events, timeout.map(timespec).as_ref()) {
            Ok(count) => events[..count].iter().map(|event| (event.data.u64(), event.flags)).collect(),
            Err(_) => Vec::new(),
        }
    }

    /// The same for the caretaker, which a nudge wakes. A caller that reads does not consume the nudge.
    pub(super) fn wait_nudged(&self, timeout: Duration) -> Vec<(u64, epoll::EventFlags)> {
        let mut both = [&self.poller, &self.nudge].map(|fd| PollFd::new(fd, PollFlags::IN));
        let _ = rustix::event::poll(&mut both, Some(&timespec(timeout)));
        if !both[1].revents().is_empty() {
            let _ = rustix::io::read(&self.nudge, &mut [0; 8]);
        }
        self.wait_sockets(Some(Duration::ZERO))
    }

    /// Reads what has arrived before a deadline is acted on: after a pause of the process, the answer that the machine
    /// waits for may be in a socket already.
    pub(super) fn read_arrived(self: &Arc<Self>, state: &mut MutexGuard<'_, State>) {
        for _ in 0..READS_BEFORE_DEADLINE {
            let ready = self.wait_sockets(Some(Duration::ZERO));
            if !ready.iter().any(|(_, flags)| flags.contains(epoll::EventFlags::IN)) {
                return;
            }
            self.read_ready(state, &ready);
        }
    }

    /// Reads the sockets that are ready, hands their frames to the machine and carries out the effects.
    pub(super) fn read_ready(self: &Arc<Self>, state: &mut MutexGuard<'_, State>, ready: &[(u64, epoll::EventFlags)]) {
        for (id, flags) in ready {
            let conn = ConnId(*id);
            if flags.contains(epoll::EventFlags::OUT) {
                state.dirty.push(conn);
            }
            if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                self.read_conn(state, conn);
            }
        }
        self.carry_out(state);
    }

    fn read_conn(&self, state: &mut State, id: ConnId) {
        let State { conns, machine, .. } = state;
        let Some(conn) = conns.get_mut(&id) else { return };
        let mut closed = false;
        match conn.stream.read(conn.decoder.buffer()) {
            Ok(0) => closed = true,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => closed = true,
        }
        let now = self.clock.now();
        while !closed {
            match conn.decoder.next_frame() {
                Ok(Some(frame)) => drop(machine.run(|machine| machine.handle(now, Event::Frame { conn: id, frame }))),
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!("connection closed: {error}");
                    closed = true;
                }
            }
        }
        if closed {
            self.drop_conn(state, id);
            state.handle(self.clock.now(), Event::Closed { conn: id });
        }
    }

    pub(super) fn drop_conn(&self, state: &mut State, id: ConnId) {
        if let Some(conn) = state.conns.remove(&id) {
            let _ = epoll::delete(&self.poller, &conn.stream);
        }
    }

    pub(super) fn adopt(&self, state: &mut State, now: stdx::Instant, id: ConnId, stream: Stream) {
        let flags = epoll::EventFlags::IN;
        if let Err(error) = epoll::add(&self.poller, &stream, epoll::EventData::new_u64(id.0), flags) {
            state.handle(now, Event::DialFailed { conn: id, reason: error.to_string() });
            return;
        }
        state.conns.insert(id, Conn { stream, decoder: Decoder::new(), out: SendQueue::new(), wants_write: false });
        state.handle(now, Event::Dialled { conn: id });
    }

    /// Writes the queued bytes. Returns true if a connection broke, because the machine may then have new effects.
    pub(super) fn flush(&self, state: &mut State) -> bool {
        let mut broken = Vec::new();
        for id in std::mem::take(&mut state.dirty) {
            let Some(conn) = state.conns.get_mut(&id) else { continue };
            if conn.stream.write(&mut conn.out).is_err() {
                broken.push(id);
                continue;
            }
            let wants_write = conn.out.has_remaining();
            if wants_write != conn.wants_write {
                conn.wants_write = wants_write;
                let mut flags = epoll::EventFlags::IN;
                flags.set(epoll::EventFlags::OUT, wants_write);
                let _ = epoll::modify(&self.poller, &conn.stream, epoll::EventData::new_u64(id.0), flags);
            }
        }
        for id in &broken {
            // Read what the server sent before it closed the connection, such as the reason.
            self.read_conn(state, *id);
            if state.conns.contains_key(id) {
                self.drop_conn(state, *id);
                state.handle(self.clock.now(), Event::Closed { conn: *id });
            }
        }
        !broken.is_empty()
    }
}
