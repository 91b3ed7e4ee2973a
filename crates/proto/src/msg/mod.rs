//! Bodies of frames, as prost messages.
//!
//! Field numbers are never reused. A reader ignores fields that it does not know; a field that is missing has its
//! default. Names of directory entries, symbolic links and extended attributes are bytes, not text. Sizes and offsets
//! are in bytes. Times are nanoseconds since 1970 by the client's clock (`*_ns`).
//!
//! Errors named here are Linux errnos, which a reply carries negated in its header's status. Besides the errors of its
//! own, every request can fail with `EPROTO` (the body is not a valid message of its type, or the request contradicts
//! the state of the session), `EOPNOTSUPP` (the target does not have the opcode), `ENOTCONN` (the target does not know
//! the session: reconnect), `EINPROGRESS` (too much in progress: retry later), `EROFS` (a change in a read-only
//! session) and `ENOSPC` (a change for which the target has no space). Operations on files fail with `ESTALE` if there
//! is no object with the FID, and otherwise with the errors that Linux defines for the corresponding system call.

mod cross;
mod job;
mod layout;
mod listing;
mod lock;
mod mds;
mod mgs;
mod obj;
mod session;

pub use cross::*;
pub use job::*;
pub use layout::*;
pub use listing::*;
pub use lock::*;
pub use mds::*;
pub use mgs::*;
pub use obj::*;
pub use session::*;

/// Decodes length-delimited messages one at a time, so that many small messages in memory never take more than their
/// encoded size. A decoding error is the last item.
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
