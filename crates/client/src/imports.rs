//! The set of targets that the client talks to: for each an import (session) and the locks held there.

use bytes::Bytes;
use dlm::client::{LockCache, Settings};
use proto::{Errno, Frame, Nid, Opcode, Xid};
use smallvec::SmallVec;
use stdx::Map;

use crate::api::{ConnId, Options};
use crate::cx::Step;
use crate::op::OpId;
use crate::world::World;

/// A target by its role.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Dest {
    /// The configuration.
    Mgs,
    /// A metadata target by index.
    Mdt(u32),
    /// An object target by index.
    Ost(u32),
}

/// A request without a reply so far.
#[derive(Debug)]
pub struct Pending {
    /// Who sent it.
    pub op: OpId,
    /// At which step.
    pub step: Step,
    /// What it is.
    pub opcode: Opcode,
    /// Locks that it wants.
    pub wants: SmallVec<[u64; 3]>,
}

/// A target.
pub struct Target {
    /// Its role.
    pub dest: Dest,
    /// Its name, `adamant-OST0001`.
    pub name: String,
    /// Where it is.
    pub nids: Vec<Nid>,
    /// How often it was started, as the MGS knows it.
    pub instance: u64,
    /// Locks.
    pub locks: LockCache,
    /// Files up to this size live there (metadata targets), in bytes.
    pub dom_size: u32,
    /// Space granted by it (object targets), in bytes.
    pub grant: u64,
    /// Largest read or write, in bytes.
    pub brw_size: u32,
    /// Requests without a reply.
    pub pending: Map<Xid, Pending>,
    /// The connection in use.
    pub conn: Option<ConnId>,
}

/// All targets.
#[derive(Default)]
pub struct Imports {
    list: Vec<Target>,
    index: Map<Dest, usize>,
    next_conn: u64,
}

impl Imports {
    /// Only the MGS is known at first.
    pub fn new(options: &Options) -> Imports {
        let mut imports = Imports { list: Vec::new(), index: Map::default(), next_conn: 1 };
        imports.add(Dest::Mgs, "MGS".to_owned(), options.mgs.clone(), 0);
        imports
    }

    /// A further target.
    pub fn add(&mut self, dest: Dest, name: String, nids: Vec<Nid>, instance: u64) {
        let target = Target {
            dest,
            name,
            nids,
            instance,
            locks: LockCache::new(Settings::default()),
            dom_size: 0,
            grant: 0,
            brw_size: proto::connect::BRW_SIZE_MAX,
            pending: Map::default(),
            conn: None,
        };
        self.index.insert(dest, self.list.len());
        self.list.push(target);
    }

    /// A target.
    pub fn get(&self, dest: Dest) -> Option<&Target> {
        self.list.get(*self.index.get(&dest)?)
    }

    /// The same, to change.
    pub fn get_mut(&mut self, dest: Dest) -> Option<&mut Target> {
        self.list.get_mut(*self.index.get(&dest)?)
    }

    /// All, in the order in which they became known.
    pub fn iter(&self) -> impl Iterator<Item = &Target> {
        self.list.iter()
    }

    /// The object targets that are known, by index.
    pub fn osts(&self) -> Vec<u32> {
        let mut all: Vec<u32> =
            self.list.iter().filter_map(|t| if let Dest::Ost(i) = t.dest { Some(i) } else { None }).collect();
        all.sort_unstable();
        all
    }
}

/// Sends a request.
pub(crate) fn submit(
    w: &mut World,
    op: OpId,
    step: Step,
    dest: Dest,
    opcode: Opcode,
    body: Bytes,
    bulk: Bytes,
    wants: SmallVec<[u64; 3]>,
) {
    let _ = (w, op, step, dest, opcode, body, bulk, wants);
}

/// A reply or a failure for an operation.
#[derive(Debug)]
pub(crate) enum Arrived {
    /// Answered.
    Reply(Pending, Frame),
    /// Never to be answered.
    Failed(Pending, Errno),
}
