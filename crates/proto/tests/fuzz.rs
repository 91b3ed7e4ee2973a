//! Bytes from anywhere: the frame decoder, every message and every parser of text give an answer, and hold no more memory
//! than they may. Deterministic: a failure names the seed and the round.

use bytes::BytesMut;
use proto::frame::{BODY_MAX, BULK_MAX, FRAME_MAX, HEADER_LEN};
use proto::{Bytes, Decoder, Fid, Frame, FrameError, Handle, Header, Nid, Tag, TargetName, Transno, Xid};
use stdx::Rng;
use testkit::mutate::{self, mutate, random};
use testkit::samples::messages::{self as samples, Body, Visitor};

const SEED: u64 = 0xada_3a97;

/// Encoded samples, by name.
#[derive(Default)]
struct Bodies(Vec<Vec<u8>>);

impl Visitor for Bodies {
    fn visit<M: Body>(&mut self, _: &'static str, sample: M) {
        self.0.push(sample.encode_to_vec());
    }
}

fn bodies() -> Vec<Vec<u8>> {
    let mut bodies = Bodies::default();
    samples::for_each(&mut bodies);
    bodies.0
}

/// A frame of any header, with the body of a message and some bulk.
fn frame(rng: &mut Rng, bodies: &[Vec<u8>]) -> Frame {
    let header = Header {
        opcode: mutate::number(rng) as u16,
        tag: Tag(mutate::number(rng) as u16),
        flags: mutate::number(rng) as u32,
        conn_cnt: mutate::number(rng) as u32,
        export: Handle(mutate::number(rng)),
        xid: Xid(mutate::number(rng)),
        transno: Transno(mutate::number(rng)),
        last_xid: Xid(mutate::number(rng)),
        last_committed: Transno(mutate::number(rng)),
        timeout_ms: mutate::number(rng) as u32,
        status: mutate::number(rng) as i32,
        pre_versions: [0; 4].map(|_: u64| mutate::number(rng)),
    };
    let body = rng.pick(bodies).cloned().unwrap_or_default();
    Frame { header, body: body.into(), bulk: random(rng, 300).into() }
}

/// Makes the checksum right, so that the damage is seen by what stands behind it.
fn reseal(wire: &mut [u8]) {
    if wire.len() >= 12 {
        let crc = crc32c::crc32c(&wire[12..]);
        wire[8..12].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Feeds `wire` in reads of up to `read_max` bytes; gives the frames and how it ended. The buffer never holds more than
/// one largest frame and one read.
fn decode(wire: &[u8], read_max: usize) -> (Vec<Frame>, Result<(), FrameError>) {
    let (mut decoder, mut frames) = (Decoder::new(), Vec::new());
    for part in wire.chunks(read_max.max(1)) {
        decoder.buffer().extend_from_slice(part);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Err(error)),
            }
        }
        assert!(decoder.buffer().len() < FRAME_MAX + part.len(), "the decoder holds {} bytes", decoder.buffer().len());
    }
    (frames, Ok(()))
}

#[test]
fn streams_of_any_bytes_give_frames_or_one_error() {
    let mut rng = Rng::new(SEED);
    let bodies = bodies();
    let (mut whole, mut refused) = (0, [0; 5]);
    for round in 0..40_000 {
        let mut wire = BytesMut::new();
        let mut sent = Vec::new();
        for _ in 0..rng.range(1, 3) {
            let frame = frame(&mut rng, &bodies);
            frame.encode(&mut wire);
            sent.push(frame);
        }
        let mut wire = wire.to_vec();
        match rng.below(8) {
            0 => wire = random(&mut rng, 400),
            // Cut somewhere: what came whole is delivered.
            1 => wire.truncate(rng.below(wire.len() as u64) as usize),
            // A wrong number in one place of a header, under a right checksum.
            2 | 3 => {
                let field = [0, 4, 6, 12, 16, 104, 104, 104][rng.below(8) as usize];
                let number = match rng.below(3) {
                    0 => (wire.len() as u64).saturating_sub(rng.below(220)),
                    1 => [BODY_MAX, BULK_MAX, FRAME_MAX, HEADER_LEN][rng.below(4) as usize] as u64 + rng.below(9) - 4,
                    _ => mutate::number(&mut rng),
                };
                wire[field..field + 4].copy_from_slice(&(number as u32).to_le_bytes());
                let end = wire.len().min(4 + u32::from_le_bytes([wire[0], wire[1], wire[2], wire[3]]) as usize);
                reseal(&mut wire[..end]);
            }
            4 | 5 => {
                mutate(&mut rng, &mut wire, &bodies[round % bodies.len()]);
                reseal(&mut wire);
            }
            6 => mutate(&mut rng, &mut wire, &[]),
            _ => {
                let (frames, end) = decode(&wire, rng.range(1, 700) as usize);
                assert_eq!((frames, end), (sent, Ok(())), "seed {SEED} round {round}");
                whole += 1;
                continue;
            }
        }
        let (frames, end) = decode(&wire, rng.range(1, 700) as usize);
        assert!(frames.iter().map(Frame::wire_len).sum::<usize>() <= wire.len(), "seed {SEED} round {round}");
        if let Err(error) = end {
            assert!(!error.to_string().is_empty());
            refused[match error {
                FrameError::Magic(_) => 0,
                FrameError::Version(_) => 1,
                FrameError::Length(_) => 2,
                FrameError::Checksum => 3,
                FrameError::Body(_) => 4,
            }] += 1;
        }
    }
    assert!(whole > 1000 && refused.iter().all(|&n| n > 100), "the fuzzer no longer reaches: {whole} {refused:?}");
}

#[test]
fn a_largest_frame_comes_through_and_one_byte_more_is_refused() {
    let frame = Frame { body: vec![7; BODY_MAX].into(), bulk: vec![9; BULK_MAX].into(), ..Frame::default() };
    let mut wire = BytesMut::new();
    frame.encode(&mut wire);
    assert_eq!(wire.len(), FRAME_MAX);
    let (frames, end) = decode(&wire, 1 << 16);
    assert_eq!((frames.len(), end), (1, Ok(())));
    assert!(frames == [frame]);
    let length = (FRAME_MAX - 4 + 1) as u32;
    wire[..4].copy_from_slice(&length.to_le_bytes());
    // Refused by its first four bytes: nobody waits for the rest.
    assert_eq!(decode(&wire[..4], 4).1, Err(FrameError::Length(length)));
    // Within the frame's limit, but not within those of its parts.
    for body_len in [BODY_MAX as u32 + 1, (BODY_MAX - 1) as u32, 0, u32::MAX] {
        let mut wire = BytesMut::new();
        Frame { body: vec![7; BODY_MAX].into(), bulk: vec![9; BULK_MAX].into(), ..Frame::default() }.encode(&mut wire);
        wire[104..108].copy_from_slice(&body_len.to_le_bytes());
        reseal(&mut wire);
        assert_eq!(decode(&wire, 1 << 20).1, Err(FrameError::Body(body_len)));
    }
}

/// Decodes damaged bodies of every message as that message and as the next one.
struct Messages {
    rng: Rng,
    bodies: Vec<Vec<u8>>,
    at: usize,
    decoded: u64,
    refused: u64,
}

impl Messages {
    const ROUNDS: u32 = 2_500;

    fn try_decode<M: Body>(&mut self, name: &str, body: Vec<u8>) {
        let frame = Frame { body: body.into(), ..Frame::default() };
        match frame.decode::<M>() {
            Ok(message) => {
                // What was understood can be written and means the same again.
                let again = Bytes::from(message.encode_to_vec());
                let same = M::decode(again.clone()).map(|m| m.encode_to_vec());
                assert_eq!(same.as_deref(), Ok(&again[..]), "{name}");
                let _ = format!("{message:?}");
                self.decoded += 1;
            }
            Err(_) => self.refused += 1,
        }
    }
}

impl Visitor for Messages {
    fn visit<M: Body>(&mut self, name: &'static str, _: M) {
        for _ in 0..Self::ROUNDS {
            let rng = &mut self.rng;
            let body = match rng.below(8) {
                0 => random(rng, 64),
                1 => rng.pick(&self.bodies).cloned().unwrap_or_default(),
                _ => {
                    let mut body = self.bodies[self.at].clone();
                    let other = rng.pick(&self.bodies).cloned().unwrap_or_default();
                    mutate(rng, &mut body, &other);
                    body
                }
            };
            self.try_decode::<M>(name, body);
        }
        self.at += 1;
    }
}

#[test]
fn bodies_of_any_bytes_are_a_message_or_an_error() {
    let mut messages = Messages { rng: Rng::new(SEED), bodies: bodies(), at: 0, decoded: 0, refused: 0 };
    samples::for_each(&mut messages);
    let Messages { decoded, refused, .. } = messages;
    assert!(decoded > 20_000 && refused > 20_000, "the fuzzer no longer reaches: {decoded} {refused}");
}

#[test]
fn text_of_any_kind_is_a_name_or_a_sentence_that_says_what_is_expected() {
    const VALID: &[&str] = &[
        "[0x200000007:0x1:0x0]",
        "0xffffffffffffffff:0xffffffff:0xffffffff",
        "127.0.0.1:7988",
        "[fe80::1%eth0]:65535",
        "unix:/run/adamant/mdt0",
        "adamant-MDT0000",
        "fs_1-OSTffffffff",
        "MGS",
    ];
    let mut rng = Rng::new(SEED);
    let mut understood = [0; 3];
    for round in 0..150_000 {
        let mut bytes = rng.pick(VALID).map_or_else(Vec::new, |text| text.as_bytes().to_vec());
        match rng.below(8) {
            0 => bytes = random(&mut rng, 200),
            1 => {
                // Characters of more than one byte, where code that counts bytes cuts them.
                let at = rng.below(bytes.len() as u64 + 1) as usize;
                bytes.splice(at..at, ["ä", "日", "🦀", "\u{0}"][rng.below(4) as usize].bytes());
            }
            2 => {}
            _ => mutate(&mut rng, &mut bytes, VALID[round % VALID.len()].as_bytes()),
        }
        let text = String::from_utf8_lossy(&bytes);
        if let Some(fid) = read_and_write::<Fid>(&text, round) {
            understood[0] += 1;
            assert_eq!(Fid::from_key(&fid.to_key()), Some(fid));
            if let Some(back) = Fid::from_ino(fid.ino()).filter(|_| fid.is_normal()) {
                assert_eq!(back, fid);
            }
        }
        understood[1] += u32::from(read_and_write::<Nid>(&text, round).is_some_and(|nid| nid.is_local()));
        understood[2] += u32::from(read_and_write::<TargetName>(&text, round).is_some());
        let _ = (Fid::from_key(&bytes), Fid::from_ino(mutate::number(&mut rng)));
        let _ = TargetName::fsname_is_valid(&text);
    }
    assert!(understood.iter().all(|&n| n > 1000), "the fuzzer no longer reaches: {understood:?}");
}

/// What `text` means, which is the same after it was written and read again; an error quotes the text.
fn read_and_write<T>(text: &str, round: usize) -> Option<T>
where
    T: std::str::FromStr<Err: ToString + PartialEq + std::fmt::Debug> + ToString + PartialEq + std::fmt::Debug,
{
    match text.parse::<T>() {
        Ok(value) => {
            assert_eq!(value.to_string().parse().as_ref(), Ok(&value), "seed {SEED} round {round}: {text:?}");
            Some(value)
        }
        Err(error) => {
            let sentence = error.to_string();
            assert!(sentence.contains("expected"), "seed {SEED} round {round}: {text:?} gives {sentence:?}");
            None
        }
    }
}
