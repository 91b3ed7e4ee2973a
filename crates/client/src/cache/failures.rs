//! Changes of a node that were answered and did not last.

use proto::Errno;

/// Lost changes of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failures {
    /// How many.
    pub(crate) count: u32,
    /// Why the last.
    pub(crate) errno: Errno,
    /// No call has been told since.
    pub(crate) untold: bool,
}
