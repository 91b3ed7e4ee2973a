//! Connections: who is there, what both ends can, signs of life.

use prost::Message;

/// Body of `Connect`. The header carries `CONNECT_RECONNECT` or `CONNECT_INITIAL`, the new `conn_cnt`, and the old
/// export handle on a reconnect.
#[derive(Clone, PartialEq, Message)]
pub struct ConnectReq {
    /// The client's identity, 16 bytes big-endian.
    #[prost(bytes = "bytes", tag = "1")]
    pub client_uuid: bytes::Bytes,
    /// The target that the client wants, `adamant-MDT0000`: another target at this address refuses.
    #[prost(string, tag = "2")]
    pub target: String,
    /// Feature flags wanted.
    #[prost(uint64, tag = "3")]
    pub features: u64,
    /// [`crate::connect::PROTOCOL_VERSION`] of the client.
    #[prost(uint32, tag = "4")]
    pub version: u32,
    /// Largest read or write that the client will send, in bytes.
    #[prost(uint32, tag = "5")]
    pub brw_size: u32,
    /// Whether the peer is a server (MDT to OST, target to MGS): no recovery, no client record.
    #[prost(bool, tag = "6")]
    pub lightweight: bool,
    /// Name for status output, `client:hostname:mountpoint`.
    #[prost(string, tag = "7")]
    pub description: String,
    /// Lowest transno that the client will replay; 0 if none.
    #[prost(uint64, tag = "8")]
    pub first_replay_transno: u64,
    /// The client only reads.
    #[prost(bool, tag = "9")]
    pub read_only: bool,
    /// The space that the client was granted before and has buffered data for, in bytes. A restarted
    /// target knows no grants; it gives this again if it can.
    #[prost(uint64, tag = "10")]
    pub grant: u64,
    /// What this target told the client last to be durable: a store that has less is an older copy. Since version 0.2.0.
    #[prost(uint64, tag = "85")]
    pub seen_committed: u64,
    /// Of which store that was told: [`ConnectRep::store`]. Empty: of none that said it.
    #[prost(bytes = "bytes", tag = "86")]
    pub seen_store: bytes::Bytes,
    /// How many changes the client was told that it may have made ([`ConnectRep::batch_room`]), or has made, if these are more. A
    /// restarted metadata target knows no promises; it makes this again, so that what was answered has room.
    #[prost(uint32, tag = "117")]
    pub batch_room: u32,
}

/// Body of the reply to `Connect`. The header carries `CONNECT_RECONNECT` if the export is still there from before,
/// `CONNECT_RECOVERING` while the target recovers, and the export handle.
#[derive(Clone, PartialEq, Message)]
pub struct ConnectRep {
    /// Feature flags granted: a subset of those wanted.
    #[prost(uint64, tag = "1")]
    pub features: u64,
    /// Protocol version of the server.
    #[prost(uint32, tag = "2")]
    pub version: u32,
    /// Largest read or write, in bytes.
    #[prost(uint32, tag = "3")]
    pub brw_size: u32,
    /// How often the target was started; a new number means that it restarted.
    #[prost(uint64, tag = "4")]
    pub instance: u64,
    /// Modifying requests in flight that the server allows; 0 means one.
    #[prost(uint32, tag = "5")]
    pub max_mod_rpcs: u32,
    /// Seconds until recovery gives up on those who are missing; 0 if not recovering.
    #[prost(uint32, tag = "6")]
    pub recovery_time_left_s: u32,
    /// Version string of the server's program, for messages.
    #[prost(string, tag = "7")]
    pub server_version: String,
    /// Object targets, and metadata targets that granted the feature `grant`: space granted to the client before it buffers, in
    /// bytes.
    #[prost(uint64, tag = "8")]
    pub grant: u64,
    /// Metadata targets: files up to this size live there, in bytes.
    #[prost(uint32, tag = "9")]
    pub dom_size: u32,
    /// If the connection was refused: why, and what to do; a sentence. If it was not: why the client was evicted that comes
    /// back, since version 0.2.0; otherwise empty.
    #[prost(string, tag = "10")]
    pub reason: String,
    /// Metadata targets: how many changes the client may have made that are not answered. There is room for so many, whatever
    /// others do. 0: none.
    #[prost(uint32, tag = "11")]
    pub batch_room: u32,
    /// The last transno that was durable when the target was started. What an evicted client had been answered with a greater
    /// one before that is lost. 0: not said (before version 0.2.0).
    #[prost(uint64, tag = "12")]
    pub started_from: u64,
    /// Identity of the target's store, 16 bytes: an older copy of it has the same, one that was made anew has another. Since
    /// version 0.2.0.
    #[prost(bytes = "bytes", tag = "85")]
    pub store: bytes::Bytes,
    /// Which of the client's sessions this is, a number at random. If it was told another before, the target has given it up meanwhile
    /// and has begun anew, and the answer that said so was lost. 0: not said (before version 0.2.0).
    #[prost(uint64, tag = "118")]
    pub session: u64,
}

/// Body of `Ping`. Before version 0.2.0 it is empty.
#[derive(Clone, PartialEq, Message)]
pub struct PingReq {
    /// With `LOCK_REPLAY_DONE`: xids of the changes that the client has sent before the target restarted, was never answered, and
    /// has sent again just before. They are done before anybody is served.
    #[prost(uint64, repeated, tag = "1")]
    pub unanswered: Vec<u64>,
}

/// Body of `Disconnect` and of replies that say nothing beyond their status.
#[derive(Clone, PartialEq, Message)]
pub struct Empty {}

/// Body of `Admin`. What can be asked is the program's affair: text as on the socket of its machine.
#[derive(Clone, PartialEq, Message)]
pub struct AdminReq {
    /// The question, JSON.
    #[prost(string, tag = "1")]
    pub request: String,
}

/// Body of the reply to `Admin`.
#[derive(Clone, PartialEq, Message)]
pub struct AdminRep {
    /// The answer, JSON.
    #[prost(string, tag = "1")]
    pub response: String,
}

/// Body of `SeqAlloc`.
#[derive(Clone, PartialEq, Message)]
pub struct SeqAllocReq {}

/// Body of the reply to `SeqAlloc`: a sequence that was never granted before and never will be again.
/// It is durable before this reply is sent.
#[derive(Clone, PartialEq, Message)]
pub struct SeqAllocRep {
    /// The sequence.
    #[prost(uint64, tag = "1")]
    pub seq: u64,
    /// Objects in it, numbered from 1.
    #[prost(uint32, tag = "2")]
    pub width: u32,
}
