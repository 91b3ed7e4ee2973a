//! Every message, id, feature flag and error on the wire.
//!
//! One frame is a fixed little-endian [`Header`], a prost body and, for data, bulk bytes behind it. This crate
//! says what the bytes mean and refuses bytes that mean nothing; who may send what when is `rpc`'s business.
//!
//! - [`ids`]: the newtypes for everything that has a number, and [`Fid`].
//! - [`frame`]: header, checksums, the codec over a byte buffer, limits.
//! - [`opcode`]: what a request asks for; which ones modify and so take a tag.
//! - [`connect`]: feature flags, versions and limits that two ends agree on.
//! - [`msg`]: the bodies.
//! - [`errno`]: the closed list of errors that a user's program can see.
//! - [`nid`]: addresses of servers.
//! - [`operation`]: names of operations in statistics.
//! - [`params`]: names of parameters.

pub mod connect;
pub mod errno;
pub mod frame;
pub mod ids;
pub mod msg;
pub mod nid;
pub mod opcode;
pub mod operation;
pub mod params;

pub use bytes::Bytes;
pub use errno::Errno;
pub use frame::{Decoder, Frame, FrameError, Header, SendQueue};
pub use ids::{ClientUuid, Fid, Handle, StripeIndex, Tag, TargetIndex, TargetKind, TargetName, Transno, Xid};
pub use nid::Nid;
pub use opcode::Opcode;
pub use operation::Operation;
