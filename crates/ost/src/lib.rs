//! The object target: stripe objects with their bytes in data files and their attributes in the store.
//!
//! An object is identified by the FID of its file and the index of its stripe. Objects are not precreated: the first write or
//! punch makes one, and reading an object that was never written returns nothing. Its record has its size, times, owner and
//! the number of the data file with its bytes, if it has any.
//!
//! It leaves to others exactly-once execution, recovery, groups, locks with their callbacks, and evictions (`target`, `rpc`,
//! `dlm`), and the I/O on data files (the driver executes [`target::DataOp`]s).
//!
//! # Invariants
//! - A change that was answered is either durable or still in its client's replay list. A durable change is in the data file
//!   *and* in the record: the data file is written first, and synced before the record's group is committed.
//! - An object with a data file also has a mark in another part of the store, which tells a lost record from an object that
//!   was never written.
//! - No crash leaks a data file, or brings back an object that was destroyed ([`files`]).
//! - Granted space is available ([`target::grants`]).
//! - A change without a lock that covers it is made only while no other client holds a conflicting lock ([`ops`]).
//!
//! # A destroyed object, in time
//! ```text
//! MDT: unlink durable ── destroy ──► OST: locks revoked ── record deleted, file doomed ── group durable ── answer
//!                                                                                             └── file removed
//! crash before the group is durable: object and file are as before, the MDT sends the destroy again
//! crash after it: the doomed file's record makes the next start remove the file
//! ```

pub mod attrs;
pub mod files;
pub mod mem_data;
pub mod ops;
mod params;
pub mod stats;
mod sweep;
#[cfg(test)]
mod tests;

use dlm::ExportId;
use proto::frame::flags;
use proto::msg::{ConnectRep, ConnectReq};
use proto::{Errno, Opcode, TargetKind};
use target::{Claim, Cx, DataSpace, Reply, Request, Service, Stop, Task};

use files::Files;
use stats::Stats;
use target::grants::Grants;

/// The service of an object target.
#[derive(Debug, Default)]
pub struct Ost {
    files: Files,
    grants: Grants,
    stats: Stats,
    objects: u64,
    space: Option<DataSpace>,
    sweeping: bool,
    /// The administrator's setting `obdfilter.*.degraded`: new files should avoid this target while its disks are repaired.
    degraded: bool,
}

impl Ost {
    /// The service of a target that has not started yet.
    pub fn new() -> Ost {
        Ost::default()
    }

    /// A request ends without a change.
    fn abort(&mut self, request: &Request) {
        self.files.abort((request.export, request.xid()));
        self.grants.end(request.export, request.xid());
    }

    /// Takes over the medium's last report of its space.
    fn note_space(&mut self, cx: &Cx<'_>) {
        let space = cx.data_space();
        if space != self.space {
            self.space = space;
            if let Some(space) = space {
                self.grants.set_free(space.free);
            }
        }
    }
}

impl Service for Ost {
    fn kind(&self) -> TargetKind {
        TargetKind::Ost
    }

    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), Stop> {
        sweep::start(self, cx)
    }

    fn attempt(&mut self, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
        self.note_space(cx);
        let result = match request.opcode {
            Opcode::ObjRead => ops::read::attempt(self, cx, request),
            Opcode::ObjWrite => ops::write::attempt(self, cx, request),
            Opcode::ObjPunch => ops::punch::attempt(self, cx, request),
            Opcode::ObjSeek => ops::seek::attempt(self, cx, request),
            Opcode::ObjGetattr => ops::getattr::attempt(self, cx, request),
            Opcode::ObjSetattr => ops::setattr::attempt(self, cx, request),
            Opcode::ObjSync => ops::sync::attempt(cx, request),
            Opcode::ObjDestroy => ops::destroy::attempt(self, cx, request),
            Opcode::ObjStatfs => ops::statfs::attempt(self, cx, request),
            Opcode::LdlmEnqueue => ops::lock::enqueue(self, cx, request),
            Opcode::LdlmReplay => ops::lock::replay(cx, request),
            _ => Err(Errno::EOPNOTSUPP.into()),
        };
        match &result {
            Ok(reply) => cx.count_plain(request, reply),
            Err(Stop::Errno(_)) => self.abort(request),
            Err(Stop::Wait) => {}
        }
        result
    }

    fn accepted(&mut self, cx: &mut Cx<'_>, _request: &Request, _reply: &mut Reply) {
        sweep::start_removal(self, cx);
    }

    fn refused(&mut self, request: &Request) {
        self.abort(request);
    }

    fn claim(&self, request: &Request) -> Claim {
        // A resent change may have been executed already. It has no reply record, so it is executed again, and refusing it would
        // report a failure for data that is written.
        let may_be_done = request.frame.header.has(flags::RESENT);
        match request.opcode {
            Opcode::ObjDestroy => Claim::Reserve,
            Opcode::ObjWrite | Opcode::ObjPunch if may_be_done => Claim::Reserve,
            _ => Claim::Nothing,
        }
    }

    fn task(&mut self, cx: &mut Cx<'_>, task: &Task) -> Result<(), Stop> {
        sweep::task(self, cx, task)
    }

    fn connected(&mut self, cx: &mut Cx<'_>, export: ExportId, request: &ConnectReq, reply: &mut ConnectRep) {
        self.note_space(cx);
        if !request.lightweight {
            reply.grant = self.grants.connect(export, request.grant);
        }
    }

    fn export_gone(&mut self, _cx: &mut Cx<'_>, export: ExportId) {
        self.grants.gone(export);
        self.files.abort_all(export);
    }

    fn recovered(&mut self, cx: &mut Cx<'_>) {
        sweep::start_removal(self, cx);
    }

    fn durable(&mut self, cx: &mut Cx<'_>, _group: u64) {
        sweep::start_removal(self, cx);
    }

    fn params(&self, name: &str) -> Vec<(String, String)> {
        params::get(self, name)
    }

    fn set_param(&mut self, cx: &mut Cx<'_>, path: &str, value: &str) -> Option<Result<(), Errno>> {
        params::set(self, &cx.name().to_string(), path, value)
    }
}
