//! One filled-in value of everything that has an encoding: each field set, each to a value of its own.

pub mod messages;
pub mod records;

/// A number that needs more than 32 bits.
pub const fn big(n: u64) -> u64 {
    n << 32 | n
}

/// The same, negative.
pub const fn negative(n: i64) -> i64 {
    -(n << 32 | n)
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
