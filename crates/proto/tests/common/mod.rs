//! What the tests of the wire share. Each test program uses a part of it.
#![allow(dead_code)]

pub(crate) mod mutate;
pub(crate) mod samples;

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
