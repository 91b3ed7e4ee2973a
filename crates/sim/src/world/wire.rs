//! Connections as streams of bytes, and how they close.
//!
//! The world carries frames, not bytes. In some runs each frame also passes the codec: it must decode to the same frame however
//! the bytes are split into reads, and changed bytes must not decode to a frame.

use core::time::Duration;

use proto::Frame;
use proto::frame::{Decoder, HEADER_LEN, SendQueue};
use stdx::{Instant, Rng};

use super::partition::Passage;
use super::{World, WorldEvent};

/// The frames of one of this many seeds pass the codec.
pub(super) const SEEDS: u64 = 4;
/// After a host has closed a connection, it delivers what it had read within this time,
const DEAF_MAX_NS: u64 = 40_000;
/// or, one time in this many, within the longer time,
const BUSY: u64 = 8;
/// which is this.
const BUSY_MAX_NS: u64 = 5_000_000;
/// One of this many frames is also checked with a bit flipped.
const CHANGED: u64 = 8;

/// Encodes a frame twice in a row, decodes the bytes in pieces, and checks that the frames are equal.
///
/// # Errors
/// What is wrong.
pub(super) fn through(frame: &Frame) -> Result<(), String> {
    let bytes = encoded(&[frame, frame]);
    let mut rng = Rng::new(frame.header.xid.0 ^ bytes.len() as u64);
    let frames = decoded(&bytes, &mut rng).map_err(|what| format!("a frame cannot be decoded: {what}"))?;
    if frames.len() != 2 || frames.iter().any(|got| got != frame) {
        return Err(format!(
            "a frame changes in the codec: {:?} becomes {:?}",
            frame.header,
            frames.first().map(|f| f.header)
        ));
    }
    if rng.chance(1, CHANGED) {
        let mut bytes = encoded(&[frame]);
        // Not in the length, which determines where the frame ends.
        let at = rng.range(4, bytes.len() as u64 - 1) as usize;
        bytes[at] ^= 1 << rng.below(8);
        if decoded(&bytes, &mut rng).is_ok_and(|frames| !frames.is_empty()) {
            return Err(format!("a changed byte {at} of a frame is not noticed: {:?}", frame.header));
        }
    }
    Ok(())
}

fn encoded(frames: &[&Frame]) -> Vec<u8> {
    use bytes::Buf as _;
    let mut queue = SendQueue::new();
    frames.iter().for_each(|frame| queue.push(frame));
    let mut bytes = vec![0; queue.remaining()];
    queue.copy_to_slice(&mut bytes);
    bytes
}

fn decoded(bytes: &[u8], rng: &mut Rng) -> Result<Vec<Frame>, String> {
    let (mut decoder, mut frames, mut rest) = (Decoder::new(), Vec::new(), bytes);
    while !rest.is_empty() {
        let most = [HEADER_LEN as u64, 1 << 20][rng.below(2) as usize];
        let (piece, tail) = rest.split_at((rng.range(1, most) as usize).min(rest.len()));
        decoder.buffer().extend_from_slice(piece);
        rest = tail;
        while let Some(frame) = decoder.next_frame().map_err(|error| error.to_string())? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

impl World {
    /// One side closes: the other side receives what is in flight, and then the end of the connection. Returns until when the
    /// host of the closing side may still deliver what it had read: a short time, or a longer one if the host is busy.
    pub(super) fn hang_up(&mut self, conn: usize, side: usize) -> Instant {
        let busy = self.rng.chance(1, BUSY);
        let deaf = self.now + Duration::from_nanos(self.rng.below(if busy { BUSY_MAX_NS } else { DEAF_MAX_NS }));
        let end = self.net.end(conn, side);
        (end.dead_from, end.hung_up) = (Some(deaf), true);
        let ends = &self.net.get(conn).ends;
        let (from, to) = (ends[side].node, ends[1 - side].node);
        let passage = self.passage(conn, from, to);
        let other = self.net.end(conn, 1 - side);
        let mut at = other.last.max(self.now) + Duration::from_micros(20);
        if let Passage::Held(until) = passage {
            at = at.max(until);
        }
        other.last = at;
        // Frames lost in a partition surface when the connection is cut.
        if other.dead_from.is_none() && passage != Passage::Lost {
            self.push(at, WorldEvent::Closed { conn, side: 1 - side });
        }
        deaf
    }

    /// Whether nothing is in flight between any two nodes.
    pub fn all_has_arrived(&self) -> bool {
        !self.net.is_under_way(self.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::OpenHow;
    use crate::plan::Plan;
    use crate::program::root;
    use crate::rest::{agree_on_locks, forget};
    use crate::trace::Keep;
    use crate::world::net::Node;
    use crate::world::{Ended, Entry};
    use core::cmp::Reverse;
    use proto::frame::flags;
    use proto::msg::CancelReq;
    use proto::{Bytes, Header, Opcode, TargetKind, Xid};

    #[test]
    fn frames_survive_the_codec() {
        for (xid, size) in [(1, 0), (2, 100), (3, 70_000), (4, 1 << 20)] {
            let header = Header { xid: Xid(xid), status: -5, ..Header::default() };
            let frame = Frame { header, body: Bytes::from_static(b"body"), bulk: vec![7; size].into() };
            assert_eq!(through(&frame), Ok(()));
        }
    }

    /// A mounted client.
    fn mounted(plan: Plan) -> (World, usize) {
        let mut world = World::new(plan, Keep::Nothing);
        (0..world.servers.len()).for_each(|server| world.start_server(server, Duration::ZERO));
        let client = world.add_client();
        let limit = world.now + Duration::from_secs(60);
        world.run(limit, |world| world.mounts[client].mounted).unwrap();
        (world, client)
    }

    /// A client whose program has made a file, removed it while open, and closed it: the close is not sent yet.
    fn closing() -> (World, usize) {
        let (mut world, client) = mounted(Plan::still(1));
        let limit = world.now + Duration::from_secs(60);
        let kernel = world.mounts[client].kernel.clone();
        world.sched.spawn("a program", async move {
            let (cred, path) = (root(), [Bytes::from_static(b"f")]);
            let how = OpenHow { flags: 0o102, mode: 0o600, blind: false };
            let Ok(fd) = kernel.open(&cred, &path, how).await else { panic!("a file is made") };
            assert!(kernel.remove(&cred, &path, false, false).await.is_ok());
            assert!(kernel.close(&cred, &fd, 1).await.is_ok());
        });
        world.run(limit, |world| world.sched.is_idle()).unwrap();
        assert_eq!(agree_on_locks(&world), Ok(()), "the close has not left");
        (world, client)
    }

    #[test]
    fn locks_are_compared_after_late_frames_have_arrived() {
        let (mut world, client) = closing();
        let late = world.now + Duration::from_secs(7);
        for (conn, side) in world.net.of(Node::Client(client)) {
            world.net.end(conn, side).last = late;
        }
        world.run(world.now + Duration::from_secs(1), |_| false).unwrap();
        assert!(
            agree_on_locks(&world).is_err(),
            "a lock went with its file, and the answer that says so is on its way"
        );
        assert_eq!(forget(&mut world), Ok(()));
        world.sched.clear();
    }

    /// The request that writes a file back is lost, and resent after its timeout. The lock of the file stays until then.
    #[test]
    fn locks_are_compared_after_lost_requests_were_resent() {
        let (mut world, client) = mounted(Plan { adaptive: true, ..Plan::still(1) });
        let kernel = world.mounts[client].kernel.clone();
        world.sched.spawn("a program", async move {
            let (cred, path) = (root(), [Bytes::from_static(b"f")]);
            let how = OpenHow { flags: 0o102, mode: 0o600, blind: false };
            let Ok(fd) = kernel.open(&cred, &path, how).await else { panic!("a file is made") };
            assert_eq!(kernel.write(&cred, &fd, 0, &Bytes::from_static(b"bytes")).await.ok(), Some(5));
            assert!(kernel.close(&cred, &fd, 1).await.is_ok());
        });
        let is_write = |Reverse(entry): &Reverse<Entry>| match &entry.what {
            WorldEvent::Frame { frame, .. } => {
                frame.header.opcode == Opcode::ObjWrite as u16 && !frame.header.has(flags::REPLY)
            }
            _ => false,
        };
        let limit = world.now + Duration::from_secs(60);
        let found = world.run(limit, |world| world.sched.is_idle() && world.queue.iter().any(is_write));
        assert_eq!(found, Ok(Ended::Done));
        world.queue.retain(|entry| !is_write(entry));
        assert_eq!(forget(&mut world), Ok(()));
        world.sched.clear();
    }

    /// The metadata target starts long after the others.
    #[test]
    fn locks_are_compared_after_all_clients_have_mounted() {
        let mut world = World::new(Plan::still(1), Keep::Nothing);
        for server in 0..world.servers.len() {
            let is_mdt = world.servers[server].name.kind == TargetKind::Mdt;
            world.start_server(server, if is_mdt { Duration::from_secs(7) } else { Duration::ZERO });
        }
        let client = world.add_client();
        assert_eq!(forget(&mut world), Ok(()));
        assert!(world.mounts[client].mounted);
        world.sched.clear();
    }

    /// Replaces a client's ping by a cancel of all locks that it holds, of which the client knows nothing.
    #[test]
    fn a_lock_that_only_the_client_holds_is_found() {
        let (mut world, client) = closing();
        let is_ping = |world: &World, entry: &Entry| match &entry.what {
            WorldEvent::Frame { conn, side, frame } => {
                frame.header.opcode == Opcode::Ping as u16
                    && !frame.header.has(flags::REPLY)
                    && world.net.get(*conn).ends[*side].node == Node::Server(1)
                    && world.net.get(*conn).ends[1 - *side].node == Node::Client(client)
            }
            _ => false,
        };
        let limit = world.now + Duration::from_secs(60);
        let found = world.run(limit, |world| world.queue.iter().any(|Reverse(entry)| is_ping(world, entry)));
        assert_eq!(found, Ok(Ended::Done));
        assert_eq!(agree_on_locks(&world), Ok(()));
        let mut queue = core::mem::take(&mut world.queue).into_vec();
        let ping = queue.iter_mut().find(|Reverse(entry)| is_ping(&world, entry)).unwrap();
        let WorldEvent::Frame { frame, .. } = &mut ping.0.what else { unreachable!("is_ping") };
        let handles = (1 << 40..(1 << 40) + 100).collect();
        let cancel = CancelReq { handles, waiting_cookies: Vec::new() };
        let header = Header { opcode: Opcode::LdlmCancel as u16, ..frame.header };
        *frame = Frame::new(header, &cancel, Bytes::new());
        world.queue = queue.into();
        let wrong = forget(&mut world).unwrap_err();
        assert!(wrong.contains("its clients hold"), "{wrong}");
        world.sched.clear();
    }
}
