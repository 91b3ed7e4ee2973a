//! The operations, one file per group of calls.

use proto::Errno;

use crate::api::{Answer, Call};
use crate::cx::{Cx, Run};

/// One attempt of a call.
pub(crate) fn call(cx: &mut Cx<'_>, call: &Call) -> Run<Answer> {
    let _ = (cx, call);
    Err(Errno::ENOSYS.into())
}
