//! The management target: registration, the table of targets, lost metadata targets, parameters, pools, sequence
//! ranges.
//!
//! One MGS serves several file systems, identified by name. Its whole state is also in memory ([`table`]), and every change
//! is durable before it is answered.
//!
//! It leaves to others connections, execution and commits (`target`), and the meaning of parameters (their recipients).
//!
//! # Invariants
//! - The version of a file system's configuration rises with every change of a target, an address, an instance, a
//!   parameter or a pool. Two replies with the same version have the same content.
//! - A name belongs to one store, unless an administrator replaces that store.
//! - The number of losses of a metadata target never falls. One that was declared lost registers only with that number.
//! - A FID sequence is given to one metadata target at most.
//!
//! # A target restarts
//! ```text
//! OST ── register (instance 7) ──► MGS: record written, version 12 ── durable ── answer to the OST
//!                                                                            └── notice "version 12" to all watchers
//! client ── config? ──► MGS ── targets with addresses and instances ──► client: reconnects to the OST at once
//! ```

pub mod ops;
pub mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proto::msg::{RegisterReq, TargetLostReq};
use proto::params::{Component, OfFileSystem, OfMgs, Served};
use proto::{Errno, Opcode, TargetKind, Transno};
use rpc::Link;
use target::{Claim, Cx, ExportId, Reply, Request, Service, Stop, Task};

use table::{FileSystem, Table};

/// The service of the management target.
#[derive(Debug, Default)]
pub struct Mgt {
    table: Table,
    /// The file systems that each export watches.
    watchers: BTreeMap<ExportId, BTreeSet<String>>,
    /// Changes that were not announced to watchers yet, because they may not be durable, in their order.
    unannounced: VecDeque<(Transno, String)>,
    /// The connection over which each target registered last.
    registered: BTreeMap<String, Link>,
}

impl Mgt {
    /// The service of a target that has not started yet.
    pub fn new() -> Mgt {
        Mgt::default()
    }
}

/// What a parameter is of.
enum Key<'a> {
    Own(OfMgs),
    FileSystem(OfFileSystem, &'a str, &'a FileSystem),
}

impl Service for Mgt {
    fn kind(&self) -> TargetKind {
        TargetKind::Mgt
    }

    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), Stop> {
        self.table = table::load(cx)?;
        if cx.accepts_old_store() {
            ops::sequence::skip(&mut self.table, cx);
        }
        Ok(())
    }

    fn attempt(&mut self, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
        match request.opcode {
            Opcode::MgsRegister => ops::register::attempt(self, cx, request),
            Opcode::MgsConfigGet => ops::config::attempt(self, cx, request),
            Opcode::MgsSetParam => ops::param::attempt(self, cx, request),
            Opcode::MgsSetPool => ops::pool::attempt(self, cx, request),
            Opcode::MgsTargetLost => ops::lost::attempt(self, cx, request),
            Opcode::MgsSeqRange => ops::sequence::attempt(self, cx, request),
            _ => Err(Errno::EOPNOTSUPP.into()),
        }
    }

    fn claim(&self, request: &Request) -> Claim {
        // A known target can register or be declared lost even if the disk is full: its record takes no more space than
        // before.
        let target = match request.opcode {
            Opcode::MgsRegister => request.decode::<RegisterReq>().map(|req| req.target),
            Opcode::MgsTargetLost => request.decode::<TargetLostReq>().map(|req| req.target),
            _ => return Claim::Nothing,
        };
        let is_known = target.is_ok_and(|target| ops::register::known(&self.table, &target).is_some());
        if is_known { Claim::Reserve } else { Claim::Nothing }
    }

    fn task(&mut self, cx: &mut Cx<'_>, task: &Task) -> Result<(), Stop> {
        ops::config::announce(self, cx, task);
        Ok(())
    }

    fn export_gone(&mut self, _cx: &mut Cx<'_>, export: ExportId) {
        self.watchers.remove(&export);
    }

    fn durable(&mut self, cx: &mut Cx<'_>, _group: u64) {
        ops::config::durable(self, cx);
    }

    fn params(&self, name: &str) -> Vec<(String, String)> {
        let mut served = Served::new();
        served.add(Component::Mgs, &[name], Key::Own);
        for (fsname, fs) in self.table.iter() {
            served.add(Component::Mgs, &[name, fsname], |which| Key::FileSystem(which, fsname, fs));
        }
        served.values(
            |_| true,
            |key| match *key {
                Key::Own(OfMgs::NumWatchers) => self.watchers.len().to_string(),
                Key::FileSystem(OfFileSystem::Live, fsname, fs) => fs.live(fsname),
            },
        )
    }
}
