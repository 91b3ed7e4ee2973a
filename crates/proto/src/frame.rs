//! Frames, the unit of transmission: a fixed header, a prost body, and bulk bytes.
//!
//! ```text
//! offset size field
//!      0    4 length        bytes that follow this field
//!      4    2 magic         0x4144, "DA" little-endian
//!      6    2 version       of the frame layout; 1
//!      8    4 crc32c        over everything after this field, bulk included
//!     12    2 opcode
//!     14    2 tag
//!     16    4 flags         see [`flags`]
//!     20    4 conn_cnt
//!     24    8 export handle
//!     32    8 xid
//!     40    8 transno
//!     48    8 last_xid      the client has the replies to all requests up to this xid
//!     56    8 last_committed
//!     64    4 timeout_ms    request: how long the sender waits; early reply: how much longer to wait; other reply:
//!                           the server's estimate of its worst service time, 0 if it makes none
//!     68    4 status        reply: 0 or a positive result, or a negative errno
//!     72   32 pre-versions  4 x 8. Reply and replay: of the objects before the change. New request of a client with several
//!                           slots: bit n - 1 is set if slot n (up to 256) has an unanswered request
//!    104    4 body length
//!    108    4 reserved      written as 0, ignored when read
//!    112      body (prost), then bulk to the end of the frame
//! ```
//!
//! All numbers are little-endian. A reader extracts frames from a byte stream with [`Decoder`]; a writer gathers them
//! in a [`SendQueue`]. Unknown flag bits are kept and ignored. An unknown opcode decodes; its receiver answers
//! `EOPNOTSUPP`.

use buf_list::BufList;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use core::fmt;
use prost::Message;
use std::io::IoSlice;

use crate::ids::{Handle, Tag, Transno, Xid};

/// Size of the header including the length field, in bytes.
pub const HEADER_LEN: usize = 112;
/// Largest body, in bytes.
pub const BODY_MAX: usize = 2 << 20;
/// Largest bulk, in bytes.
pub const BULK_MAX: usize = 4 << 20;
/// Largest frame, in bytes.
pub const FRAME_MAX: usize = HEADER_LEN + BODY_MAX + BULK_MAX;
/// The magic number.
pub const MAGIC: u16 = 0x4144;
/// Version of the frame layout that this code writes and reads.
pub const VERSION: u16 = 1;

/// Flag bits of a header.
pub mod flags {
    /// The frame is a reply. Without it, the frame is a request, or a notice if its opcode says so.
    pub const REPLY: u32 = 0x1;
    /// Resent: the client sent this request before and saw no reply.
    pub const RESENT: u32 = 0x2;
    /// Replay: the request was answered before, but the server lost its effect in a restart.
    pub const REPLAY: u32 = 0x4;
    /// Early reply: the request is still executing; wait `timeout_ms` longer.
    pub const EARLY: u32 = 0x8;
    /// The client has replayed all its requests.
    pub const REQ_REPLAY_DONE: u32 = 0x40;
    /// The client has replayed all its locks.
    pub const LOCK_REPLAY_DONE: u32 = 0x80;
    /// Connect request: the client was connected before.
    pub const CONNECT_RECONNECT: u32 = 0x100;
    /// Connect reply: the target is recovering.
    pub const CONNECT_RECOVERING: u32 = 0x200;
    /// Connect request: the client holds no state of this target.
    pub const CONNECT_INITIAL: u32 = 0x400;
}

/// The fixed part of every frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Number of the [`Opcode`](crate::Opcode); raw, because a newer peer may send one that this version lacks.
    pub opcode: u16,
    /// Slot of a modifying request; 0 for others.
    pub tag: Tag,
    /// See [`flags`].
    pub flags: u32,
    /// Number of the connection, counted by the client; a server drops requests of older connections.
    pub conn_cnt: u32,
    /// Handle of the export that the server assigned in the connect reply; 0 in an initial connect request.
    pub export: Handle,
    /// Identity of the request; a reply repeats it.
    pub xid: Xid,
    /// Reply: the transno of the change, 0 if nothing was changed. Replay: the transno from the original reply.
    pub transno: Transno,
    /// The client has the replies to all requests up to this xid.
    pub last_xid: Xid,
    /// Reply: all changes up to this transno are durable. Replay: the transno of the client's previous replay.
    pub last_committed: Transno,
    /// Milliseconds; its meaning depends on the kind of frame, see the [layout](self).
    pub timeout_ms: u32,
    /// Reply: 0 or a positive result on success, a negative Linux errno on failure.
    pub status: i32,
    /// Reply and replay: versions of the objects before the change. New request: bitmap of busy slots, see
    /// [`Header::slot_is_busy`].
    pub pre_versions: [u64; 4],
}

impl Header {
    /// Whether the slot of `tag` had an unanswered request when this new request was first sent. The bitmap covers
    /// slots up to 256; higher ones count as busy.
    pub fn slot_is_busy(&self, tag: Tag) -> bool {
        let at = usize::from(tag.0).wrapping_sub(1);
        self.pre_versions.get(at / 64).is_none_or(|word| word >> (at % 64) & 1 == 1)
    }

    /// Whether `flag` is set.
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

/// One frame. Cheap to clone, since body and bulk are reference-counted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Frame {
    /// The fixed part.
    pub header: Header,
    /// The prost body.
    pub body: Bytes,
    /// Bulk data, which follows the body on the wire.
    pub bulk: Bytes,
}

/// Why bytes are not a frame. The caller closes the connection that carried them, since the stream can no longer be
/// synchronized.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FrameError {
    /// Wrong magic number: the peer does not speak this protocol.
    Magic(u16),
    /// Unknown version of the frame layout.
    Version(u16),
    /// The length is smaller than a header or larger than [`FRAME_MAX`].
    Length(u32),
    /// The checksum does not match: bytes changed in transit.
    Checksum,
    /// The body is longer than the frame or [`BODY_MAX`], or the bulk is longer than [`BULK_MAX`].
    Body(u32),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Magic(m) => {
                write!(f, "the peer does not speak Adamant's protocol (magic 0x{m:04x}); check the address")
            }
            FrameError::Version(v) => {
                write!(f, "the peer sends frame layout {v}, this version knows {VERSION}; upgrade this side")
            }
            FrameError::Length(n) => write!(f, "frame of {n} bytes; between {HEADER_LEN} and {FRAME_MAX} are allowed"),
            FrameError::Checksum => {
                write!(f, "frame with a wrong checksum; the connection is closed and the request sent again")
            }
            FrameError::Body(n) => write!(f, "frame with a body of {n} bytes that does not fit it"),
        }
    }
}

impl std::error::Error for FrameError {}

impl Frame {
    /// Creates a frame with `message` as its body.
    pub fn new(header: Header, message: &impl Message, bulk: Bytes) -> Frame {
        Frame { header, body: message.encode_to_vec().into(), bulk }
    }

    /// Decodes the body. Unknown fields are skipped. Fails if the bytes are not a valid message of this type.
    pub fn decode<M: Message + Default>(&self) -> Result<M, prost::DecodeError> {
        M::decode(self.body.clone())
    }

    /// Size on the wire, in bytes.
    pub fn wire_len(&self) -> usize {
        HEADER_LEN + self.body.len() + self.bulk.len()
    }

    /// The header as bytes; its checksum covers body and bulk.
    ///
    /// # Panics
    /// If body or bulk exceed [`BODY_MAX`] or [`BULK_MAX`]; the sender must check before.
    fn head(&self) -> [u8; HEADER_LEN] {
        assert!(self.body.len() <= BODY_MAX && self.bulk.len() <= BULK_MAX, "frame over its limits");
        let h = &self.header;
        let mut head = [0; HEADER_LEN];
        let mut out = &mut head[..];
        out.put_u32_le((self.wire_len() - 4) as u32);
        out.put_u16_le(MAGIC);
        out.put_u16_le(VERSION);
        out.put_u32_le(0);
        out.put_u16_le(h.opcode);
        out.put_u16_le(h.tag.0);
        out.put_u32_le(h.flags);
        out.put_u32_le(h.conn_cnt);
        for v in [h.export.0, h.xid.0, h.transno.0, h.last_xid.0, h.last_committed.0] {
            out.put_u64_le(v);
        }
        out.put_u32_le(h.timeout_ms);
        out.put_i32_le(h.status);
        for v in h.pre_versions {
            out.put_u64_le(v);
        }
        out.put_u32_le(self.body.len() as u32);
        out.put_u32_le(0);
        let crc = [&self.body, &self.bulk]
            .iter()
            .fold(crc32c::crc32c(&head[12..]), |crc, part| crc32c::crc32c_append(crc, part));
        head[8..12].copy_from_slice(&crc.to_le_bytes());
        head
    }

    /// Appends the frame to `out`.
    ///
    /// # Panics
    /// If body or bulk exceed [`BODY_MAX`] or [`BULK_MAX`]; the sender must check before.
    pub fn encode(&self, out: &mut impl BufMut) {
        out.put_slice(&self.head());
        out.put_slice(&self.body);
        out.put_slice(&self.bulk);
    }
}

/// A queue of frames to be written to a byte stream. Large bulk is referenced, not copied; headers, bodies and small
/// bulk are gathered in one buffer.
///
/// Write the slices from [`Buf::chunks_vectored`], then [`Buf::advance`] by the number of bytes written.
#[derive(Debug, Default)]
pub struct SendQueue {
    /// Written first.
    parts: BufList,
    /// Written after `parts`; copied bytes that are still gathered.
    tail: BytesMut,
}

/// Bulk up to this size is copied rather than referenced, in bytes.
const BULK_COPIED: usize = 16 << 10;
/// An empty queue keeps at most this much memory, in bytes.
const TAIL_KEPT: usize = 1 << 20;

impl SendQueue {
    /// An empty queue.
    pub fn new() -> SendQueue {
        SendQueue::default()
    }

    /// Appends a frame.
    ///
    /// # Panics
    /// If body or bulk exceed [`BODY_MAX`] or [`BULK_MAX`]; the sender must check before.
    pub fn push(&mut self, frame: &Frame) {
        if frame.bulk.len() <= BULK_COPIED {
            frame.encode(&mut self.tail);
            return;
        }
        self.tail.put_slice(&frame.head());
        self.tail.put_slice(&frame.body);
        self.parts.push_chunk(self.tail.split().freeze());
        self.parts.push_chunk(frame.bulk.clone());
    }
}

impl Buf for SendQueue {
    fn remaining(&self) -> usize {
        self.parts.remaining() + self.tail.len()
    }

    fn chunk(&self) -> &[u8] {
        if self.parts.has_remaining() { self.parts.chunk() } else { &self.tail }
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let count = self.parts.chunks_vectored(into);
        match into.get_mut(count) {
            Some(slot) if !self.tail.is_empty() => {
                *slot = IoSlice::new(&self.tail);
                count + 1
            }
            _ => count,
        }
    }

    fn advance(&mut self, count: usize) {
        let of_parts = count.min(self.parts.remaining());
        self.parts.advance(of_parts);
        self.tail.advance(count - of_parts);
        if self.tail.is_empty() && self.tail.capacity() > TAIL_KEPT {
            self.tail = BytesMut::new();
        }
    }
}

/// Extracts frames from a byte stream.
///
/// Append what was read to [`Decoder::buffer`], up to its capacity, then call [`Decoder::next_frame`] until it returns
/// `None`. The buffer holds at most one largest frame and one read. For a large frame it is sized to that frame as soon
/// as the length is known, so that the frame takes over the buffer without a copy.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Bytes at the start of the buffer that were extracted already.
    taken: usize,
}

/// Buffer size for one read while no large frame is being received, in bytes.
const READ_SIZE: usize = 64 << 10;

impl Decoder {
    /// An empty decoder.
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// The buffer to append received bytes to, with spare capacity for a read.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        self.buffer.drain(..self.taken);
        self.taken = 0;
        let begun = self.buffer.first_chunk().map_or(0, |length| u32::from_le_bytes(*length) as usize + 4);
        if begun > READ_SIZE && begun <= FRAME_MAX {
            self.buffer.reserve_exact(begun.saturating_sub(self.buffer.len()));
        } else {
            self.buffer.reserve(READ_SIZE.saturating_sub(self.buffer.len()));
        }
        &mut self.buffer
    }

    /// Extracts the bytes of the next frame, `total` bytes long.
    fn take(&mut self, total: usize) -> Bytes {
        if self.taken == 0 && self.buffer.len() == total && total > READ_SIZE {
            return core::mem::take(&mut self.buffer).into();
        }
        let bytes = Bytes::copy_from_slice(&self.buffer[self.taken..self.taken + total]);
        self.taken += total;
        bytes
    }

    /// The next complete frame; `None` if more bytes are needed. An error means that the stream is corrupt.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let rest = &self.buffer[self.taken..];
        let Some(length) = rest.get(..4) else { return Ok(None) };
        let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]);
        let total = length as usize + 4;
        if !(HEADER_LEN..=FRAME_MAX).contains(&total) {
            return Err(FrameError::Length(length));
        }
        if let Some(head) = rest.get(4..8) {
            // Checked as soon as possible: a wrong peer may never send as many bytes as it announced.
            let magic = u16::from_le_bytes([head[0], head[1]]);
            let version = u16::from_le_bytes([head[2], head[3]]);
            if magic != MAGIC {
                return Err(FrameError::Magic(magic));
            }
            if version != VERSION {
                return Err(FrameError::Version(version));
            }
        }
        if rest.len() < total {
            return Ok(None);
        }
        let mut bytes = self.take(total);
        let crc = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        if crc32c::crc32c(&bytes[12..]) != crc {
            return Err(FrameError::Checksum);
        }
        bytes.advance(12);
        let mut header = Header {
            opcode: bytes.get_u16_le(),
            tag: Tag(bytes.get_u16_le()),
            flags: bytes.get_u32_le(),
            conn_cnt: bytes.get_u32_le(),
            export: Handle(bytes.get_u64_le()),
            xid: Xid(bytes.get_u64_le()),
            transno: Transno(bytes.get_u64_le()),
            last_xid: Xid(bytes.get_u64_le()),
            last_committed: Transno(bytes.get_u64_le()),
            timeout_ms: bytes.get_u32_le(),
            status: bytes.get_i32_le(),
            pre_versions: [0; 4],
        };
        for v in &mut header.pre_versions {
            *v = bytes.get_u64_le();
        }
        let body_len = bytes.get_u32_le();
        bytes.advance(4);
        if body_len as usize > bytes.len() || body_len as usize > BODY_MAX || bytes.len() - body_len as usize > BULK_MAX
        {
            return Err(FrameError::Body(body_len));
        }
        let body = bytes.split_to(body_len as usize);
        Ok(Some(Frame { header, body, bulk: bytes }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Frame {
        Frame {
            header: Header {
                opcode: 36,
                tag: Tag(1),
                flags: flags::RESENT,
                conn_cnt: 3,
                export: Handle(4),
                xid: Xid(5),
                transno: Transno(6),
                last_xid: Xid(7),
                last_committed: Transno(8),
                timeout_ms: 9,
                status: -17,
                pre_versions: [10, 11, 12, 13],
            },
            body: Bytes::from_static(b"body"),
            bulk: Bytes::from_static(b"bulk bytes"),
        }
    }

    #[test]
    fn many_frames_come_out_of_one_buffer_however_it_is_cut() {
        let mut wire = BytesMut::new();
        for _ in 0..3 {
            sample().encode(&mut wire);
        }
        for cut in 1..wire.len() {
            let mut decoder = Decoder::new();
            let mut seen = Vec::new();
            for part in wire.chunks(cut) {
                decoder.buffer().extend_from_slice(part);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    seen.push(frame);
                }
            }
            assert_eq!(seen, [sample(), sample(), sample()], "cut {cut}");
        }
    }

    #[test]
    fn the_header_has_its_golden_bytes() {
        let mut wire = BytesMut::new();
        sample().encode(&mut wire);
        let hex: String = wire.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            concat!(
                "7a000000",
                "4441",
                "0100",
                "CRC_____",
                "2400",
                "0100",
                "02000000",
                "03000000",
                "0400000000000000",
                "0500000000000000",
                "0600000000000000",
                "0700000000000000",
                "0800000000000000",
                "09000000",
                "efffffff",
                "0a00000000000000",
                "0b00000000000000",
                "0c00000000000000",
                "0d00000000000000",
                "04000000",
                "00000000",
                "626f6479",
                "62756c6b206279746573"
            )
            .replace("CRC_____", &hex[16..24])
        );
        assert_eq!(&hex[16..24], "ca549ed0");
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let mut wire = BytesMut::new();
        sample().encode(&mut wire);
        for bit in 0..wire.len() * 8 {
            let mut bad = wire.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let mut decoder = Decoder::new();
            decoder.buffer().extend_from_slice(&bad);
            match decoder.next_frame() {
                Err(_) | Ok(None) => {}
                Ok(Some(_)) => panic!("bit {bit} went through"),
            }
        }
    }
}
