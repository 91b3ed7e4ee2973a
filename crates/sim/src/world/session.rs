//! A hand-operated session with a target, for the liar ([`super::liar`]) and for stories ([`super::raw`]).

use proto::connect::{PROTOCOL_VERSION, features};
use proto::frame::flags;
use proto::msg::{ConnectReq, Cred};
use proto::{Bytes, Frame, Handle, Header, Opcode, TargetName, Xid};

/// Root with all capabilities.
pub(crate) fn superuser() -> Cred {
    Cred { capabilities: u64::MAX, ..Cred::default() }
}

/// The client side of the session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    /// The server.
    pub server: usize,
    /// The UUID of the client.
    pub uuid: u128,
    /// The number of its connection, established or dialled.
    pub number: u64,
    /// The connection is established.
    pub up: bool,
    /// How often it has connected.
    pub conn_cnt: u32,
    /// The export's handle, granted by the target.
    pub export: Handle,
    /// The last xid used.
    pub xid: u64,
}

impl Session {
    /// A session without a connection.
    pub fn new(server: usize, uuid: u128) -> Session {
        Session { server, uuid, number: 0, up: false, conn_cnt: 0, export: Handle(0), xid: 1 }
    }

    /// The header of the next request.
    pub fn next(&mut self, opcode: Opcode) -> Header {
        self.xid += 1;
        let (conn_cnt, export, xid) = (self.conn_cnt, self.export, Xid(self.xid));
        Header { opcode: opcode as u16, conn_cnt, export, xid, timeout_ms: 10_000, ..Header::default() }
    }

    /// A connect request of a client with all features that has nothing from this target.
    pub fn connect(&mut self, target: &TargetName, description: &str) -> (Header, ConnectReq) {
        self.conn_cnt = self.conn_cnt.wrapping_add(1);
        let header = Header { flags: flags::CONNECT_INITIAL, ..self.next(Opcode::Connect) };
        let request = ConnectReq {
            client_uuid: Bytes::copy_from_slice(&self.uuid.to_be_bytes()),
            target: target.to_string(),
            version: PROTOCOL_VERSION,
            brw_size: 1 << 20,
            features: features::SUPPORTED & !features::PINGLESS,
            description: description.to_owned(),
            ..ConnectReq::default()
        };
        (header, request)
    }

    /// Handles the reply to a connect request.
    pub fn connected(&mut self, reply: &Frame) {
        if reply.header.status == 0 {
            self.export = reply.header.export;
        }
    }
}
