//! A byte stream, cut as its first byte says: frames or one error, in bounded memory. What came out goes in again.
//! An odd first byte makes the head and the checksum of the first frame right, so that what is behind them is reached.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::Decoder;
use proto::frame::{FRAME_MAX, HEADER_LEN, MAGIC, VERSION};

fn seal(stream: &mut [u8]) {
    if stream.len() < HEADER_LEN {
        return;
    }
    let length = (stream.len() - 4) as u32;
    stream[..4].copy_from_slice(&length.to_le_bytes());
    stream[4..6].copy_from_slice(&MAGIC.to_le_bytes());
    stream[6..8].copy_from_slice(&VERSION.to_le_bytes());
    let crc = crc32c::crc32c(&stream[12..]);
    stream[8..12].copy_from_slice(&crc.to_le_bytes());
}

fuzz_target!(|input: &[u8]| {
    let Some((&cut, stream)) = input.split_first() else { return };
    let mut stream = stream.to_vec();
    if cut & 1 == 1 {
        seal(&mut stream);
    }
    let mut decoder = Decoder::new();
    for part in stream.chunks(usize::from(cut) + 1) {
        decoder.buffer().extend_from_slice(part);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => {
                    let mut again = Decoder::new();
                    frame.encode(again.buffer());
                    assert_eq!(again.next_frame(), Ok(Some(frame)));
                }
                Ok(None) => break,
                Err(error) => return drop(error.to_string()),
            }
        }
        assert!(decoder.buffer().len() < FRAME_MAX + part.len());
    }
});
