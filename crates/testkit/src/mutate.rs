//! Bytes that were right once: what a fuzzer makes of a valid input.
//!
//! Everything follows from the generator, so a failure is repeated by its seed.

use stdx::Rng;

/// Numbers at which arithmetic goes wrong.
pub const BOUNDARIES: &[u64] = &[
    0,
    1,
    2,
    127,
    128,
    255,
    256,
    4095,
    4096,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    (1 << 40) - 1,
    1 << 63,
    i64::MAX as u64,
    u64::MAX - 1,
    u64::MAX,
];

/// Up to `len_max` bytes of anything.
pub fn random(rng: &mut Rng, len_max: usize) -> Vec<u8> {
    let mut bytes = vec![0; rng.below(len_max as u64 + 1) as usize];
    rng.fill(&mut bytes);
    bytes
}

/// A boundary, one beside a boundary, or any number.
pub fn number(rng: &mut Rng) -> u64 {
    let boundary = rng.pick(BOUNDARIES).copied().unwrap_or(0);
    match rng.below(4) {
        0 => rng.u64() >> rng.below(64),
        1 => boundary.wrapping_add(rng.below(5)).wrapping_sub(2),
        _ => boundary,
    }
}

/// A number as the wire has it in bodies.
pub fn varint(mut n: u64, out: &mut Vec<u8>) {
    while n > 127 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Changes `bytes` in one to six places. `other` is something that may be spliced in.
pub fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..rng.range(1, 6) {
        let at = rng.below(bytes.len() as u64 + 1) as usize;
        let rest = bytes.len() - at;
        let len = rng.below((rest as u64).min(16) + 1) as usize;
        match rng.below(9) {
            0 | 1 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << rng.below(8);
                }
            }
            2 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize];
                }
            }
            3 => {
                bytes.drain(at..at + len);
            }
            4 => {
                let again = bytes[at..at + len].to_vec();
                bytes.splice(at..at, again);
            }
            5 => {
                let noise = random(rng, 12);
                bytes.splice(at..at, noise);
            }
            6 => bytes.truncate(at),
            7 => {
                let mut coded = Vec::new();
                varint(number(rng), &mut coded);
                bytes.splice(at..at + len, coded);
            }
            _ => {
                let from = rng.below(other.len() as u64 + 1) as usize;
                let part = &other[from..from + rng.below((other.len() - from) as u64 + 1) as usize];
                bytes.splice(at..at + len, part.iter().copied());
            }
        }
    }
}
