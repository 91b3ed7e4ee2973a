//! A service whose every change can be told from every other: lists that are appended to, and open handles.

use std::collections::BTreeMap;

use dlm::ExportId;
use proto::msg::{LockMode, Policy, Resource, bits};
use proto::{Bytes, Errno, Fid, Opcode, TargetKind, Transno};
use store::{Key, Value};

use target::{Cx, Executed, Reply, Request, Service, ShareKey, Stop};

pub(super) const APPEND: u8 = 1;
pub(super) const CREATE: u8 = 2;
pub(super) const OPEN: u8 = 3;
pub(super) const CLOSE: u8 = 4;
pub(super) const USE: u8 = 5;
pub(super) const READ: u8 = 6;
/// Appends to a list and takes that back, then appends to the next list.
pub(super) const IN_PART: u8 = 7;
/// The handle of an open that was answered with the transno `handle`, or 0.
pub(super) const HANDLE: u8 = 8;

/// Whether the store is known to be no older copy.
pub(super) const SETTLED: u8 = 9;

/// The body of all requests but locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Ask {
    pub kind: u8,
    pub key: u64,
    pub client: u64,
    pub n: u64,
    pub handle: u64,
}

impl Ask {
    pub(super) fn bytes(&self) -> Bytes {
        let mut bytes = vec![self.kind];
        for v in [self.key, self.client, self.n, self.handle] {
            bytes.extend_from_slice(&v.to_le_bytes());
        }
        bytes.into()
    }

    fn parse(bytes: &[u8]) -> Result<Ask, Stop> {
        let at = |i: usize| bytes.get(1 + i * 8..9 + i * 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
        let (Some(&kind), Some(key), Some(client), Some(n), Some(handle)) = (bytes.first(), at(0), at(1), at(2), at(3))
        else {
            return Err(Errno::EPROTO.into());
        };
        Ok(Ask { kind, key, client, n, handle })
    }

    /// Key of a list.
    pub(super) fn list(key: u64) -> Key {
        Key::table(0x50).u64(key)
    }

    pub(super) fn total() -> Key {
        Key::table(0x51)
    }

    pub(super) fn resource(key: u64) -> Resource {
        Resource::inode(Fid::new(Fid::SEQ_FIRST, key as u32 + 1))
    }
}

pub(super) fn entries(list: &[u8]) -> Vec<(u64, u64)> {
    let word = |b: &[u8]| u64::from_le_bytes(b.try_into().unwrap());
    list.chunks(16).map(|e| (word(&e[..8]), word(&e[8..]))).collect()
}

/// See the module.
#[derive(Default)]
pub(super) struct Ledger {
    /// Open handles: whose, and by which name the client first knew them.
    pub open: BTreeMap<u64, (ExportId, u64)>,
    next: u64,
    pub recovered: bool,
}

fn reply(value: u64) -> Reply {
    Reply { body: value.to_le_bytes().to_vec().into(), ..Reply::default() }
}

impl Ledger {
    fn append(&mut self, cx: &mut Cx<'_>, ask: &Ask) -> Result<u64, Stop> {
        let list = cx.get_raw(&Ask::list(ask.key));
        let total = cx.get_raw(&Ask::total());
        let mut list: Vec<u8> = list?.map_or(Vec::new(), |v| v.to_vec());
        let total = total?.map_or(0, |v| u64::from_le_bytes(v[..].try_into().unwrap()));
        cx.revoke(Ask::resource(ask.key), LockMode::Ex, Policy::Bits(bits::UPDATE))?;
        list.extend_from_slice(&ask.client.to_le_bytes());
        list.extend_from_slice(&ask.n.to_le_bytes());
        let position = list.len() as u64 / 16;
        cx.put_raw(Ask::list(ask.key), list.into());
        cx.put_raw(Ask::total(), Value::copy_from_slice(&(total + 1).to_le_bytes()));
        cx.changed(ShareKey(ask.key));
        let _ = cx.transno();
        Ok(position)
    }

    fn make_handle(&mut self, cx: &Cx<'_>, old: u64) -> u64 {
        self.next += 1;
        let handle = cx.instance() << 32 | self.next;
        self.open.insert(handle, (cx.export(), old));
        handle
    }

    fn find(&self, export: ExportId, handle: u64) -> Option<u64> {
        if self.open.get(&handle).is_some_and(|(whose, _)| *whose == export) {
            return Some(handle);
        }
        self.open.iter().find(|(_, (whose, old))| *whose == export && *old == handle).map(|(new, _)| *new)
    }
}

impl Service for Ledger {
    fn kind(&self) -> TargetKind {
        TargetKind::Mdt
    }

    fn attempt(&mut self, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
        if request.opcode == Opcode::LdlmEnqueue {
            return Ok(Reply::new(&cx.enqueue(&request.decode()?)?));
        }
        if request.opcode == Opcode::MdsSync {
            cx.hold_until_durable();
            return Ok(Reply::empty());
        }
        let ask = Ask::parse(&request.frame.body)?;
        match ask.kind {
            APPEND => Ok(reply(self.append(cx, &ask)?)),
            IN_PART => {
                let failed = cx.with_savepoint(|cx| {
                    self.append(cx, &ask)?;
                    Err::<(), Stop>(Errno::ENOSPC.into())
                });
                match failed {
                    Err(Stop::Wait) => Err(Stop::Wait),
                    _ => Ok(reply(self.append(cx, &Ask { key: ask.key + 1, ..ask })?)),
                }
            }
            CREATE => {
                if cx.get_raw(&Ask::list(ask.key))?.is_some_and(|list| !list.is_empty()) {
                    return Err(Errno::EEXIST.into());
                }
                Ok(reply(self.append(cx, &ask)?))
            }
            OPEN => Ok(reply(self.make_handle(cx, ask.handle))),
            CLOSE => {
                let handle = self.find(cx.export(), ask.handle).ok_or(Errno::ESTALE)?;
                let position = self.append(cx, &ask)?;
                self.open.remove(&handle);
                Ok(reply(position))
            }
            HANDLE => Ok(reply(cx.open_handle(Fid::ROOT, false, Some(Transno(ask.handle))).unwrap_or(0))),
            SETTLED => Ok(reply(u64::from(cx.store_is_settled()))),
            USE => match self.find(cx.export(), ask.handle) {
                Some(_) => Ok(Reply::empty()),
                None => Err(Errno::ESTALE.into()),
            },
            READ => {
                let list = cx.get_raw(&Ask::list(ask.key))?.unwrap_or_default();
                Ok(Reply { body: list, ..Reply::default() })
            }
            _ => Err(Errno::EOPNOTSUPP.into()),
        }
    }

    fn reconstruct(&mut self, cx: &mut Cx<'_>, request: &Request, executed: &Executed) -> Result<Reply, Stop> {
        let ask = Ask::parse(&request.frame.body)?;
        let _ = executed;
        match ask.kind {
            OPEN => Ok(reply(self.make_handle(cx, ask.handle))),
            CLOSE => {
                let list = cx.get_raw(&Ask::list(ask.key))?.unwrap_or_default();
                if let Some(handle) = self.find(cx.export(), ask.handle) {
                    self.open.remove(&handle);
                }
                Ok(reply(place(&list, &ask)))
            }
            _ => {
                let list = cx.get_raw(&Ask::list(ask.key))?.unwrap_or_default();
                Ok(reply(place(&list, &ask)))
            }
        }
    }

    fn prefetch(&mut self, cx: &mut Cx<'_>, request: &Request) -> Result<(), Stop> {
        let ask = Ask::parse(&request.frame.body)?;
        let list = cx.get_raw(&Ask::list(ask.key));
        let total = cx.get_raw(&Ask::total());
        list.and(total).map(drop)
    }

    fn replays_committed(&self, request: &Request) -> bool {
        Ask::parse(&request.frame.body).is_ok_and(|ask| ask.kind == OPEN)
    }

    fn export_gone(&mut self, _cx: &mut Cx<'_>, export: ExportId) {
        self.open.retain(|_, (whose, _)| *whose != export);
    }

    fn recovered(&mut self, _cx: &mut Cx<'_>) {
        self.recovered = true;
    }
}

fn place(list: &[u8], ask: &Ask) -> u64 {
    entries(list).iter().position(|e| *e == (ask.client, ask.n)).map_or(0, |at| at as u64 + 1)
}
