//! A session with a target that is spoken by hand: the liar's ([`super::liar`]), and those of stories ([`super::raw`]).

use proto::connect::{PROTOCOL_VERSION, features};
use proto::frame::flags;
use proto::msg::{ConnectReq, Cred};
use proto::{Bytes, Frame, Handle, Header, Opcode, TargetName, Xid};

/// The superuser with all its rights.
pub(crate) fn superuser() -> Cred {
    Cred { capabilities: u64::MAX, ..Cred::default() }
}

/// What one end of it knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    /// With which server.
    pub server: usize,
    /// Who it says that it is.
    pub uuid: u128,
    /// Its number of the connection that it has, or waits for.
    pub number: u64,
    /// The connection is there.
    pub up: bool,
    /// How often it has connected.
    pub conn_cnt: u32,
    /// What the target gave it.
    pub export: Handle,
    /// The last xid that it has used.
    pub xid: u64,
}

impl Session {
    /// One that has not begun.
    pub fn new(server: usize, uuid: u128) -> Session {
        Session { server, uuid, number: 0, up: false, conn_cnt: 0, export: Handle(0), xid: 1 }
    }

    /// The head of its next request.
    pub fn next(&mut self, opcode: Opcode) -> Header {
        self.xid += 1;
        let (conn_cnt, export, xid) = (self.conn_cnt, self.export, Xid(self.xid));
        Header { opcode: opcode as u16, conn_cnt, export, xid, timeout_ms: 10_000, ..Header::default() }
    }

    /// A request to connect, for a client with all features that has nothing of this target.
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

    /// It hears an answer to a request to connect.
    pub fn connected(&mut self, reply: &Frame) {
        if reply.header.status == 0 {
            self.export = reply.header.export;
        }
    }
}
