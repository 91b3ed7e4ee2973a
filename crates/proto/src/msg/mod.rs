//! The bodies of frames, as prost messages.
//!
//! Field numbers are never reused. A reader ignores fields that it does not know; a field that it misses has its
//! default. Names of directory entries, symbolic links and extended attributes are bytes, not text. Sizes and offsets
//! are bytes; times are nanoseconds since 1970 as the client's clock had them (`*_ns`).

mod job;
mod layout;
mod lock;
mod mds;
mod mgs;
mod obj;
mod session;

pub use job::*;
pub use layout::*;
pub use lock::*;
pub use mds::*;
pub use mgs::*;
pub use obj::*;
pub use session::*;

/// Messages that lie one after the other, each behind its length: a reader takes them out one by one, so that many small ones
/// take no more memory than they have bytes. An error is the last.
fn one_by_one<M: prost::Message + Default>(
    bytes: &bytes::Bytes,
) -> impl Iterator<Item = Result<M, prost::DecodeError>> {
    let mut rest = bytes.clone();
    core::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let message = M::decode_length_delimited(&mut rest);
        if message.is_err() {
            rest.clear();
        }
        Some(message)
    })
}
