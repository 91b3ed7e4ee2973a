//! Session messages: connect, ping, disconnect, FID sequences, and administration.

use prost::Message;

/// Body of `Connect`. The header carries `CONNECT_RECONNECT` or `CONNECT_INITIAL`, the new `conn_cnt` and, on a
/// reconnect, the previous export handle.
///
/// Errors, each with a reason in the reply: `EPROTO` (another major version), `ENODEV` (another target listens at this
/// address), `EALREADY` (a newer connection, or another peer's session), `EBUSY` (the target recovers without this
/// client), `EOVERFLOW` (too many clients).
#[derive(Clone, PartialEq, Message)]
pub struct ConnectReq {
    /// Identity of the client, 16 bytes big-endian.
    #[prost(bytes = "bytes", tag = "1")]
    pub client_uuid: bytes::Bytes,
    /// Full name of the requested target, such as `adamant-MDT0000`; another target at this address refuses.
    #[prost(string, tag = "2")]
    pub target: String,
    /// Requested features, see [`crate::connect::features`].
    #[prost(uint64, tag = "3")]
    pub features: u64,
    /// The client's [`crate::connect::PROTOCOL_VERSION`].
    #[prost(uint32, tag = "4")]
    pub version: u32,
    /// Largest read or write that the client sends, in bytes.
    #[prost(uint32, tag = "5")]
    pub brw_size: u32,
    /// Whether the peer is a server (MDT to OST, target to MGS), whose session has no client record and no recovery. An
    /// MDT or OST refuses it with `EACCES` if the peer is neither root (or the server's user) on the same machine nor at
    /// an address that an MDT has registered.
    #[prost(bool, tag = "6")]
    pub lightweight: bool,
    /// Name for status output, `client:hostname:mountpoint`.
    #[prost(string, tag = "7")]
    pub description: String,
    /// Lowest transno that the client would replay; 0 if none.
    #[prost(uint64, tag = "8")]
    pub first_replay_transno: u64,
    /// Whether the session is read-only.
    #[prost(bool, tag = "9")]
    pub read_only: bool,
    /// Space that the client was granted before and has buffered data for, in bytes. A restarted target has lost its
    /// grants, and restores this one if it has the space.
    #[prost(uint64, tag = "10")]
    pub grant: u64,
    /// The highest `last_committed` that the client received from this target. A store with a lower one is an older
    /// copy. Since version 0.2.0.
    #[prost(uint64, tag = "85")]
    pub seen_committed: u64,
    /// The store that reported `seen_committed`, see [`ConnectRep::store`]. Empty: unknown.
    #[prost(bytes = "bytes", tag = "86")]
    pub seen_store: bytes::Bytes,
    /// Write-back credits that the client holds ([`ConnectRep::write_back_credits`]), or its number of unacknowledged changes
    /// if that is higher. A restarted metadata target has lost its grants of credits, and restores this one so that
    /// acknowledged changes have space.
    #[prost(uint32, tag = "117")]
    pub write_back_credits: u32,
}

/// Body of the reply to `Connect`. The header carries the export handle, `CONNECT_RECONNECT` if the export still
/// exists, and `CONNECT_RECOVERING` while the target recovers.
#[derive(Clone, PartialEq, Message)]
pub struct ConnectRep {
    /// Granted features, a subset of those requested.
    #[prost(uint64, tag = "1")]
    pub features: u64,
    /// Protocol version of the server.
    #[prost(uint32, tag = "2")]
    pub version: u32,
    /// Largest read or write, in bytes.
    #[prost(uint32, tag = "3")]
    pub brw_size: u32,
    /// Number of times that the target was started; a new number means that it restarted.
    #[prost(uint64, tag = "4")]
    pub instance: u64,
    /// Most modifying requests in flight that the server allows; 0 means one.
    #[prost(uint32, tag = "5")]
    pub max_mod_rpcs: u32,
    /// Seconds until recovery evicts the missing clients; 0 if the target is not recovering.
    #[prost(uint32, tag = "6")]
    pub recovery_time_left_s: u32,
    /// Version string of the server's program, for log messages.
    #[prost(string, tag = "7")]
    pub server_version: String,
    /// Object targets, and metadata targets that granted the feature `grant`: space that the client may buffer data
    /// for, in bytes.
    #[prost(uint64, tag = "8")]
    pub grant: u64,
    /// Metadata targets: largest file whose data is stored on the target, in bytes.
    #[prost(uint32, tag = "9")]
    pub dom_size: u32,
    /// If the connection was refused: why and what to do, for a person. If it was accepted and the client had been
    /// evicted: why (since version 0.2.0). Otherwise empty.
    #[prost(string, tag = "10")]
    pub reason: String,
    /// Metadata targets: write-back credits, the most unacknowledged changes that the client may have. The target
    /// reserves space for them. 0: none.
    #[prost(uint32, tag = "11")]
    pub write_back_credits: u32,
    /// Highest transno that was durable when the target was started. An evicted client has lost the changes with higher
    /// transnos that were acknowledged before that start. 0: not given (before version 0.2.0).
    #[prost(uint64, tag = "12")]
    pub started_from: u64,
    /// Identity of the target's store, 16 bytes. An older copy of the store has the same identity, a newly formatted
    /// one another. Since version 0.2.0.
    #[prost(bytes = "bytes", tag = "85")]
    pub store: bytes::Bytes,
    /// Random identity of this session. If it differs from the one that the client knows, the target evicted the client
    /// and started a new session, but the reply that said so was lost. 0: not given (before version 0.2.0).
    #[prost(uint64, tag = "118")]
    pub session: u64,
}

/// Body of `Ping`; empty before version 0.2.0.
#[derive(Clone, PartialEq, Message)]
pub struct PingReq {
    /// With `LOCK_REPLAY_DONE`: xids of the unanswered changes from before the restart that the client has just resent.
    /// The target executes them before it serves any client.
    #[prost(uint64, repeated, tag = "1")]
    pub unanswered: Vec<u64>,
}

/// Body of `Disconnect`, and of replies that carry only a status.
#[derive(Clone, PartialEq, Message)]
pub struct Empty {}

/// Body of `Admin`. The commands are defined by the program, as on its local administration socket.
#[derive(Clone, PartialEq, Message)]
pub struct AdminReq {
    /// The command, in JSON.
    #[prost(string, tag = "1")]
    pub request: String,
}

/// Body of the reply to `Admin`.
#[derive(Clone, PartialEq, Message)]
pub struct AdminRep {
    /// The answer, in JSON.
    #[prost(string, tag = "1")]
    pub response: String,
}

/// Body of `SeqAlloc`.
#[derive(Clone, PartialEq, Message)]
pub struct SeqAllocReq {}

/// Body of the reply to `SeqAlloc`: a sequence that is never allocated again. The allocation is durable before the
/// reply.
#[derive(Clone, PartialEq, Message)]
pub struct SeqAllocRep {
    /// The sequence.
    #[prost(uint64, tag = "1")]
    pub seq: u64,
    /// Number of objects in the sequence; they are numbered from 1.
    #[prost(uint32, tag = "2")]
    pub width: u32,
}
