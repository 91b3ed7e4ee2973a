//! The metadata target: names, inodes, attributes, small files.
//!
//! [`Mdt`] is a [`target::Service`]: the machine of every target (crate `target`) gives it requests one after another, and
//! it answers each with an attempt. One file per operation in [`ops`]; what they share:
//!
//! - [`attrs`], [`xattrs`]: who may do what, beside the crate [`rules`]. Pure.
//! - [`layouts`], [`resident`]: where data lies, and the bytes of small files. Pure.
//! - [`tree`]: objects, names and the writes that all operations share, as records.
//! - [`grants`]: locks that come with replies.
//! - [`osts`]: which object targets new files may use.
//! - [`opens`], [`known`], [`listings`]: what is only in memory: open files; directories of which every name is known; what listings
//!   have shown so far.
//! - [`moves`]: which resident files may have objects on object targets, whatever crashes.
//! - `promises`: room for changes that clients make behind their programs' backs; [`target::grants`]: space for the data of
//!   small files that clients write back later.
//! - [`tasks`]: orphans, the removal of objects on object targets, sequences.
//!
//! # Invariants
//! - Every entry leads by its FID through the object index to an inode that carries that FID and names the entry in its
//!   linkEA, and back (`lfsck` checks them all).
//! - Link counts, entry counts and these are changed in one group with the entries.
//! - An object without a name is open or an orphan; objects on object targets outlive their file only in the destroy log.
//! - Memory is changed by attempts that are certain to be accepted, and can be lost: clients open again, tasks start again.

pub mod attrs;
mod format;
pub mod grants;
pub mod known;
pub mod layouts;
pub mod listings;
pub mod moves;
pub mod opens;
pub mod ops;
pub mod osts;
mod params;
mod promises;
pub mod resident;
mod swaps;
pub mod tasks;
pub mod tree;
pub mod xattrs;

#[cfg(test)]
mod tests;

pub use format::format;
pub use params::Settings;

use known::KnownDirs;
use listings::Listings;
use moves::Moves;
use opens::Opens;
use ops::Change;
use osts::Osts;
use promises::Promises;
use proto::connect::features;
use proto::msg::{BATCH_MAX, BatchReq, ConnectRep, ConnectReq, Reint, ReintReq, WriteReq};
use proto::{ClientUuid, Errno, Opcode, TargetKind, TargetName};
use std::collections::BTreeSet;
use swaps::Swaps;
use target::grants::Grants;
use target::{CHANGE_RECORDS, Cx, Executed, ExportId, Reply, Request, Service, Stop, Task};
use tasks::Destroys;

/// How much of the free room may be promised for data: so many parts of so many.
const DATA_PARTS: (u64, u64) = (3, 4);
/// How many names [`KnownDirs`] keeps: about 64 MiB.
const KNOWN_NAMES_MAX: usize = 4 << 20;

/// A metadata target's service.
pub struct Mdt {
    settings: Settings,
    opens: Opens,
    known: KnownDirs,
    listings: Listings,
    moves: Moves,
    swaps: Swaps,
    osts: Osts,
    destroys: Destroys,
    promises: Promises,
    /// Space for the data of small files that clients have buffered or may buffer.
    space_grants: Grants,
    /// What the engine said last about its room, as `space_grants` knows it.
    space: Option<store::Space>,
    /// Object targets are asked for their space.
    watching: bool,
    /// A range of sequences is being fetched.
    fetching: bool,
    /// Grants of clients that are gone will be looked for.
    forgetting: bool,
    /// And objects of files that were lost with them: a recovery is just over.
    strays: Option<Strays>,
}

/// Objects of files that a crash undid are to be looked for: those of sequences whose client did not survive the recovery. It may have come
/// again since, and does not know the sequences that it had.
#[derive(Debug)]
struct Strays {
    survivors: BTreeSet<ClientUuid>,
    /// Sequences that were granted since.
    granted: BTreeSet<u64>,
}

impl Mdt {
    /// A service with these settings.
    pub fn new(settings: Settings) -> Mdt {
        Mdt {
            settings,
            opens: Opens::default(),
            known: KnownDirs::new(KNOWN_NAMES_MAX),
            listings: Listings::default(),
            moves: Moves::default(),
            swaps: Swaps::default(),
            osts: Osts::default(),
            destroys: Destroys::default(),
            promises: Promises::default(),
            space_grants: Grants::default(),
            space: None,
            watching: false,
            fetching: false,
            forgetting: false,
            strays: None,
        }
    }

    /// Takes note of what the engine said last about its room. A part of it is left for the records that new files need besides
    /// their data.
    fn note_space(&mut self, cx: &Cx<'_>) {
        let space = cx.space();
        if space != self.space {
            self.space = space;
            if let Some(space) = space {
                let free = space.free.saturating_sub(cx.dirty_room());
                self.space_grants.set_free(free / DATA_PARTS.1 * DATA_PARTS.0);
            }
        }
    }

    /// Open files, for those who look at a target from outside.
    pub fn open_count(&self) -> usize {
        self.opens.total()
    }

    fn reint(&mut self, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
        let reint: ReintReq = cx.body(request)?;
        let change = Change::new(&reint);
        match reint.op.as_ref().ok_or(Errno::EPROTO)? {
            Reint::Setattr(op) => ops::setattr::setattr(self, cx, &change, op),
            Reint::Create(op) => ops::create::create(self, cx, &change, op, layouts::answered(cx, request)?),
            Reint::Link(op) => ops::link::link(self, cx, &change, op),
            Reint::Unlink(op) => ops::unlink::unlink(self, cx, &change, op),
            Reint::Rename(op) => ops::rename::rename(self, cx, &change, op),
            Reint::Open(op) => ops::open::open(self, cx, &change, op),
            Reint::Setxattr(op) => ops::setxattr::setxattr(cx, &change, op),
            Reint::Setlayout(op) => {
                ops::setlayout::setlayout(self, cx, &change, op, layouts::first_answer(cx, request)?)
            }
        }
    }
}

impl Service for Mdt {
    fn kind(&self) -> TargetKind {
        TargetKind::Mdt
    }

    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), Stop> {
        self.learn_osts(cx);
        if cx.accepts_old_store() {
            ops::seq_alloc::drop_ranges(cx)?;
        }
        moves::start(self, cx)?;
        tasks::check_root(cx)
    }

    fn attempt(&mut self, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
        let reply = match request.opcode {
            Opcode::MdsReint => {
                let reply = self.reint(cx, request)?;
                Ok(self.with_room(cx, reply))
            }
            Opcode::MdsBatch => ops::batch::batch(self, cx, request),
            Opcode::MdsClose => ops::close::close(self, cx, &request.decode()?),
            Opcode::MdsLookup => {
                let body = cx.body(request)?;
                ops::lookup::lookup(self, cx, &body)
            }
            Opcode::MdsGetattr => {
                let body = cx.body(request)?;
                ops::getattr::getattr(self, cx, &body)
            }
            Opcode::MdsReaddir => {
                let body = cx.body(request)?;
                ops::readdir::readdir(self, cx, &body)
            }
            Opcode::MdsGetxattr => {
                let body = cx.body(request)?;
                ops::xattr::getxattr(cx, &body)
            }
            Opcode::MdsStatfs => ops::statfs::statfs(self, cx),
            Opcode::MdsSync => ops::sync::sync(cx),
            Opcode::MdsFid2path => {
                let body = cx.body(request)?;
                ops::fid2path::fid2path(cx, &body)
            }
            Opcode::SeqAlloc => ops::seq_alloc::seq_alloc(self, cx),
            Opcode::LdlmEnqueue => ops::lock::enqueue(self, cx, &request.decode()?),
            Opcode::LdlmReplay => ops::lock::replay(self, cx, &request.decode()?),
            Opcode::ObjRead => {
                let body = cx.body(request)?;
                ops::data::read(cx, &body)
            }
            Opcode::ObjWrite => {
                let body = cx.body(request)?;
                ops::data::write(self, cx, &body, request.bulk())
            }
            Opcode::ObjPunch => {
                let body = cx.body(request)?;
                ops::data::punch(self, cx, &body)
            }
            Opcode::ObjSetattr => ops::data::setattr(self, cx, &request.decode()?),
            Opcode::ObjGetattr => ops::data::getattr(cx, &request.decode()?),
            Opcode::ObjSeek => {
                let body = cx.body(request)?;
                ops::data::seek(cx, &body)
            }
            Opcode::ObjSync => {
                let body = cx.body(request)?;
                ops::data::sync(cx, &body)
            }
            _ => Err(Errno::EOPNOTSUPP.into()),
        }?;
        cx.count_plain(request, &reply);
        Ok(reply)
    }

    fn reconstruct(&mut self, cx: &mut Cx<'_>, request: &Request, executed: &Executed) -> Result<Reply, Stop> {
        ops::reconstruct::reconstruct(self, cx, request, executed)
    }

    fn prefetch(&mut self, cx: &mut Cx<'_>, request: &Request) -> Result<(), Stop> {
        ops::prefetch::prefetch(self, cx, request)
    }

    fn replays_committed(&self, request: &Request) -> bool {
        request.opcode == Opcode::MdsReint
            && request.decode::<ReintReq>().is_ok_and(|reint| matches!(reint.op, Some(Reint::Open(_))))
    }

    fn changes(&self, request: &Request) -> bool {
        match request.opcode {
            // An open that only reads needs a handle, and a reply record with it.
            Opcode::MdsReint => !request
                .decode::<ReintReq>()
                .is_ok_and(|reint| matches!(&reint.op, Some(Reint::Open(open)) if ops::open::only_reads(open.flags))),
            opcode => opcode.traits().for_writers,
        }
    }

    fn records_max(&self, request: &Request) -> usize {
        match request.opcode {
            // A close on the wire has this many bytes at least, and may remove an object.
            Opcode::MdsBatch => CHANGE_RECORDS + BATCH_MAX * 8,
            Opcode::MdsClose => CHANGE_RECORDS + request.frame.body.len() / 16 * 8,
            _ => CHANGE_RECORDS,
        }
    }

    fn promised(&self) -> u64 {
        self.space_grants.total()
    }

    fn may_use_reserve(&self, request: &Request) -> bool {
        match request.opcode {
            Opcode::MdsClose => true,
            // The data was buffered because there was space promised for it.
            Opcode::ObjWrite => request.decode::<WriteReq>().is_ok_and(|write| {
                write.grant_used >= request.bulk().len() as u64
                    && write.grant_used <= self.space_grants.of(request.export)
            }),
            // It was answered already, as far as there was room promised for it.
            Opcode::MdsBatch => request
                .decode::<BatchReq>()
                .is_ok_and(|batch| self.promises.cover(request.export, batch.iter().take(BATCH_MAX + 1).count())),
            Opcode::MdsReint => request.decode::<ReintReq>().is_ok_and(|reint| match reint.op {
                Some(Reint::Unlink(_) | Reint::Setlayout(_)) => true,
                // Opening what is there takes no more room than the client's record has.
                Some(Reint::Open(open)) => open.flags & ops::open::flags::CREAT == 0,
                _ => false,
            }),
            _ => false,
        }
    }

    fn task(&mut self, cx: &mut Cx<'_>, task: &Task) -> Result<(), Stop> {
        tasks::run(self, cx, task)
    }

    fn connected(&mut self, cx: &mut Cx<'_>, export: ExportId, request: &ConnectReq, reply: &mut ConnectRep) {
        reply.dom_size = self.settings.dom_size;
        if reply.features & features::WRITE_BACK != 0 {
            self.promise_again(cx, export, request.batch_room);
            reply.batch_room = self.promise(cx, export, 0);
            self.room_shrinks(export, reply.features & features::GRANT_SHRINK != 0);
        }
        if reply.features & features::GRANT != 0 && !request.lightweight {
            self.note_space(cx);
            reply.grant = self.space_grants.connect(export, request.grant);
        }
    }

    fn export_gone(&mut self, cx: &mut Cx<'_>, export: ExportId) {
        self.space_grants.gone(export);
        self.swaps.gone(export);
        self.promise_ends(export);
        tasks::export_gone(self, cx, export);
    }

    fn recovered(&mut self, cx: &mut Cx<'_>) {
        tasks::recovered(self, cx);
    }

    fn configured(&mut self, cx: &mut Cx<'_>) {
        self.learn_osts(cx);
        tasks::watch_osts(self, cx);
        self.prefetch_sequences(cx);
    }

    fn upstream_away(&mut self, cx: &mut Cx<'_>, target: &TargetName) {
        if target.kind == TargetKind::Ost && target.fsname == cx.name().fsname {
            self.osts.away(target.index.0);
        }
    }

    fn durable(&mut self, cx: &mut Cx<'_>, group: u64) {
        self.moves.durable(group);
        self.start_destroys(cx);
    }

    fn params(&self, name: &str) -> Vec<(String, String)> {
        params::get(self, name)
    }

    fn set_param(&mut self, cx: &mut Cx<'_>, path: &str, value: &str) -> Option<Result<(), Errno>> {
        params::set(self, cx.name(), path, value)
    }
}
