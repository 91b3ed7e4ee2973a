//! The cached data of files, as values: nothing here sends, waits or tracks locks.
//!
//! - `striping`: file offsets to object offsets and back. `pages`: cached bytes of one object. `read_ahead`: how far to
//!   prefetch.
//! - `state`: the state per object and per file. `lanes`: the state over all files, and the memory limits.

pub(crate) mod lanes;
pub(crate) mod pages;
pub(crate) mod read_ahead;
pub(crate) mod state;
pub(crate) mod striping;
