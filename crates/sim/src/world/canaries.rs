//! Deliberate defects between programs, clients and servers ([`Canary`]): some requests and calls are dropped or changed.

use core::time::Duration;

use client::api as capi;
use proto::Frame;
use schema::Record as _;
use store::Engine as _;

use super::net::Node;
use super::{Canary, World, WorldEvent};

impl World {
    /// Canary: sometimes keeps the old mode of an inode on disk.
    pub(super) fn forget_mode(&mut self, server: usize, key: &store::Key, value: &mut Option<store::Value>) {
        let formats = schema::formats();
        let decode = |sealed: &store::Value| schema::Inode::decode_record(&formats.open(key, sealed).ok()?).ok();
        if schema::Inode::parse_key(key).is_some()
            && let Some(sealed) = value
            && let Ok(Some(old)) = self.servers[server].engine.get(key)
            && let (Some(mut inode), Some(old)) = (decode(sealed), decode(&old))
            && self.rng.chance(1, 2)
        {
            inode.mode = old.mode;
            *sealed = formats.seal(key, &inode.encode_record());
        }
    }

    /// Canary: answers some changes in place of the server. Returns whether it did.
    pub(super) fn swallow(&mut self, conn: usize, side: usize, frame: &Frame) -> bool {
        use proto::frame::flags;
        use proto::{Opcode, Transno};
        let opcode = Opcode::from_raw(frame.header.opcode).filter(|_| !frame.header.has(flags::REPLY));
        let node = self.net.get(conn).ends[1 - side].node;
        let unlinks = || {
            let request = frame.decode::<proto::msg::ReintReq>();
            request.is_ok_and(|request| matches!(request.op, Some(proto::msg::Reint::Unlink(_))))
        };
        let mut dies = None;
        let swallows = match (self.canary, opcode) {
            (Canary::SwallowAfterDeath, Some(Opcode::MdsReint)) => {
                self.faults.counts.deaths > 0 && self.rng.chance(1, 4)
            }
            (Canary::UnlinkAndDie, Some(Opcode::MdsReint)) => {
                if let Node::Client(client) = node {
                    dies = Some(client).filter(|_| self.faults.counts.deaths == 0 && self.faults.on && unlinks());
                }
                dies.is_some()
            }
            (Canary::KeepObjects, Some(Opcode::ObjDestroy)) => true,
            (Canary::Swallow, Some(Opcode::MdsReint)) => {
                frame.decode::<proto::msg::ReintReq>().is_ok_and(|request| {
                    matches!(request.op, Some(proto::msg::Reint::Unlink(_) | proto::msg::Reint::Setxattr(_)))
                }) && self.rng.chance(1, 2)
            }
            _ => false,
        };
        if !swallows {
            return false;
        }
        let mut header = frame.header;
        header.flags = flags::REPLY;
        header.transno = Transno(0);
        let reply = Frame::new(header, &proto::msg::ObjectRep::default(), proto::Bytes::new());
        let end = self.net.end(conn, 1 - side);
        let at = self.now.max(end.last) + Duration::from_micros(50);
        end.last = at;
        self.push(at, WorldEvent::Frame { conn, side: 1 - side, frame: reply });
        if let Some(client) = dies {
            self.push(at + Duration::from_micros(200), WorldEvent::Die { client });
        }
        true
    }

    /// Canary: changes some calls. Returns whether the call is dropped.
    pub(super) fn alter_call(&mut self, cred: &mut proto::msg::Cred, call: &mut capi::Call) -> bool {
        use capi::Call;
        let of_it = match (self.canary, &*call) {
            (Canary::ForgetAttributes, Call::Setxattr { .. } | Call::Removexattr { .. })
            | (Canary::ForgetRanges, Call::Fallocate { .. })
            | (Canary::PlainFiles, Call::Mknod { .. }) => true,
            (Canary::ForgetOwners, Call::Setattr { set, .. }) => set.uid.is_some(),
            (Canary::ForgetTimes, Call::Setattr { set, .. }) => set.mtime.is_some(),
            (Canary::AllMay, Call::Open { .. } | Call::Setattr { .. } | Call::Unlink { .. } | Call::Rename { .. }) => {
                cred.uid != 0
            }
            _ => false,
        };
        if !of_it || !self.rng.chance(1, 4) {
            return false;
        }
        match call {
            Call::Setxattr { .. } | Call::Removexattr { .. } | Call::Fallocate { .. } => return true,
            Call::Mknod { mode, rdev, .. } => (*mode, *rdev) = (crate::model::S_IFREG | *mode & 0o7777, 0),
            Call::Setattr { set, .. } if self.canary == Canary::ForgetOwners => set.uid = None,
            Call::Setattr { set, .. } if self.canary == Canary::ForgetTimes => set.mtime = None,
            _ => *cred = proto::msg::Cred::default(),
        }
        false
    }
}
