//! The bodies of frames, as prost messages.
//!
//! Field numbers are never reused. A reader ignores fields that it does not know; a field that it misses has its
//! default. Names of directory entries, symbolic links and extended attributes are bytes, not text. Sizes and offsets
//! are bytes; times are nanoseconds since 1970 as the client's clock had them (`*_ns`).

mod lock;
mod mds;
mod mgs;
mod obj;
mod session;

pub use lock::*;
pub use mds::*;
pub use mgs::*;
pub use obj::*;
pub use session::*;
