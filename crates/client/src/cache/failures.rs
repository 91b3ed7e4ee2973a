//! Lost changes of a node: acknowledged to a program, then refused by the server or taken by an eviction.

use proto::Errno;

/// Lost changes of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failures {
    /// Their number.
    pub(crate) count: u32,
    /// The error of the last one.
    pub(crate) errno: Errno,
    /// The last one was not reported to a program yet.
    pub(crate) unreported: bool,
}
