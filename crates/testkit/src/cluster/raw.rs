//! Connections that a test makes itself and uses message by message, without a client.

use core::time::Duration;

use bytes::Bytes;
use proto::connect::{PROTOCOL_VERSION, features};
use proto::frame::flags;
use proto::msg::ConnectReq;
use proto::opcode::SlotClass;
use proto::{ClientUuid, Frame, Handle, Header, Opcode, Tag, Transno, Xid};

use super::{Cluster, Who};

/// A connection: what is sent over it is up to the test.
#[derive(Default)]
pub struct Raw {
    pub inbox: Vec<Frame>,
    pub closed: bool,
}

/// An export at a target whose requests a test writes itself. It answers no callback.
pub struct RawExport {
    /// The connection's place in [`Cluster::raws`].
    pub raw: usize,
    handle: Handle,
    xid: Xid,
}

impl Cluster {
    /// A connection to a server.
    pub fn raw(&mut self, server: usize) -> usize {
        let raw = self.raws.len();
        self.raws.push(Raw::default());
        let nid = self.servers[server].nid.clone();
        self.dial((Who::Raw(raw), 0), &[nid]).unwrap();
        raw
    }

    /// Sends over it, without waiting for anything.
    pub fn raw_send(&mut self, raw: usize, frame: Frame) {
        if let Some(&other) = self.links.get(&(Who::Raw(raw), 0)) {
            self.wire.push_back((other, frame));
        }
    }

    /// Hangs up.
    pub fn raw_close(&mut self, raw: usize) {
        self.break_link((Who::Raw(raw), 0));
    }

    /// A connection to a target, with an export there.
    pub fn raw_export(&mut self, target: &str) -> RawExport {
        self.raw_export_of(target, ClientUuid(1 << 64 | self.raws.len() as u128))
    }

    /// The same for a client that has exports at several targets.
    pub fn raw_export_of(&mut self, target: &str, client: ClientUuid) -> RawExport {
        self.raw_session(target, client, target == "MGS")
    }

    /// A session as servers have them.
    pub fn raw_peer(&mut self, target: &str) -> RawExport {
        self.raw_session(target, ClientUuid(2 << 64 | self.raws.len() as u128), true)
    }

    /// A session of a client that knows only this much of the protocol.
    pub fn raw_export_with(&mut self, target: &str, client: ClientUuid, features: u64) -> RawExport {
        self.raw_session_with(target, client, false, features)
    }

    fn raw_session(&mut self, target: &str, client: ClientUuid, lightweight: bool) -> RawExport {
        self.raw_session_with(target, client, lightweight, features::SUPPORTED)
    }

    fn raw_session_with(&mut self, target: &str, client: ClientUuid, lightweight: bool, features: u64) -> RawExport {
        let raw = self.raw(self.server(target));
        let connect = ConnectReq {
            client_uuid: client.to_bytes(),
            target: target.into(),
            features,
            version: PROTOCOL_VERSION,
            lightweight,
            ..ConnectReq::default()
        };
        let mut export = RawExport { raw, handle: Handle(0), xid: Xid(0) };
        // A target that recovers lets no new client in; a knock starts its clock.
        for _ in 0..20 {
            let answer = self.raw_try(&mut export, Opcode::Connect, &connect);
            if answer.header.status == 0 {
                export.handle = answer.header.export;
                return export;
            }
            self.pass(Duration::from_secs(10));
        }
        panic!("{target} does not let a client in: {:#?}", self.log);
    }

    /// A request and its answer, which is no error.
    pub fn raw_call(&mut self, export: &mut RawExport, opcode: Opcode, body: &impl prost::Message) -> Frame {
        let answer = self.raw_try(export, opcode, body);
        assert_eq!(answer.header.status, 0, "{opcode:?}");
        answer
    }

    /// A request and its answer.
    pub fn raw_try(&mut self, export: &mut RawExport, opcode: Opcode, body: &impl prost::Message) -> Frame {
        self.raw_ask(export, opcode, body);
        self.pass(Duration::from_secs(1));
        self.raw_answer(export).expect("an answer")
    }

    /// The answer to the last request, if it has come.
    pub fn raw_answer(&mut self, export: &RawExport) -> Option<Frame> {
        let inbox = &mut self.raws[export.raw].inbox;
        let is_reply = |header: &Header| header.has(flags::REPLY) && !header.has(flags::EARLY);
        let is_answer = |frame: &Frame| is_reply(&frame.header) && frame.header.xid == export.xid;
        inbox.iter().position(is_answer).map(|at| inbox.remove(at))
    }

    /// A request whose answer is not awaited.
    pub fn raw_ask(&mut self, export: &mut RawExport, opcode: Opcode, body: &impl prost::Message) {
        self.raw_ask_with(export, opcode, body, Header::default());
    }

    /// A replay: the client says that this was answered with this transno, and with these versions.
    pub fn raw_replay(
        &mut self,
        export: &mut RawExport,
        (opcode, body): (Opcode, &impl prost::Message),
        transno: Transno,
        pre_versions: [u64; 4],
    ) {
        self.raw_ask_with(
            export,
            opcode,
            body,
            Header { flags: flags::REPLAY, transno, pre_versions, ..Header::default() },
        );
    }

    fn raw_ask_with(&mut self, export: &mut RawExport, opcode: Opcode, body: &impl prost::Message, more: Header) {
        export.xid = Xid(export.xid.0 + 1);
        let header = Header {
            opcode: opcode as u16,
            conn_cnt: 1,
            timeout_ms: 10_000,
            xid: export.xid,
            export: export.handle,
            tag: Tag(u16::from(opcode.traits().slot != SlotClass::None)),
            ..more
        };
        self.raw_send(export.raw, Frame::new(header, body, Bytes::new()));
    }
}
