//! The wire protocol: every message, id, feature flag and error that peers exchange.
//!
//! A frame is a fixed little-endian [`Header`], a prost body and, for data, bulk bytes after it. This crate defines
//! what the bytes mean and rejects bytes that mean nothing. The order of messages, retries and recovery are left to
//! `rpc`.
//!
//! - [`ids`]: newtypes for everything that a number identifies, and [`Fid`].
//! - [`frame`]: header, checksums, the codec over a byte buffer, limits.
//! - [`opcode`]: the kinds of requests, and what follows from the kind alone: whether it modifies, which slot it takes.
//! - [`connect`]: feature flags, versions and limits that two peers negotiate.
//! - [`msg`]: the bodies.
//! - [`errno`]: the closed list of errors that a program can see.
//! - [`nid`]: addresses of servers.
//! - [`operation`]: names of operations in statistics.
//! - [`params`]: the parameters that there are, each declared once.

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
pub use ids::{
    ClientUuid, Fid, Handle, ParseFidError, ParseTargetNameError, StripeIndex, Tag, TargetIndex, TargetKind,
    TargetName, Transno, Xid,
};
pub use nid::{Nid, ParseNidError};
pub use opcode::Opcode;
pub use operation::Operation;
