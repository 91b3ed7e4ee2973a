//! The metadata target: names, inodes, attributes and the data of small files.
//!
//! [`Mdt`] is a [`target::Service`]: the machine in crate `target` passes it one request at a time, and each runs as an
//! attempt. [`ops`] has one file per operation. The operations share these modules:
//!
//! - [`attrs`], [`xattrs`]: rules for attributes that the crate [`rules`] does not have. Pure.
//! - [`layouts`], [`resident`]: the location of a file's data, and the bytes of resident files. Pure.
//! - [`tree`]: objects and names as records, and the writes that several operations need.
//! - [`cross`]: changes with parts on several metadata targets.
//! - [`grants`]: locks that are granted with replies.
//! - [`osts`]: which object targets new files may use.
//! - [`opens`], [`known`], [`listings`]: state in memory only: open files, directories whose names are all known, and how
//!   many names each listing has returned.
//! - [`relayout`]: names on their way to other stripes, after the layout of their directory has changed.
//! - [`moves`]: which resident files may have objects on object targets, also after a crash.
//! - `credits`: how many changes clients may write back, with space reserved for them; [`target::grants`]: reserved space for the data of
//!   small files that clients write back.
//! - [`tasks`]: background work: orphans, objects to destroy, sequences.
//!
//! # Invariants
//! - The FID of every entry leads through the object index to an inode that carries this FID and names the entry in its
//!   linkEA, and the other way round (`lfsck` checks both directions).
//! - Link counts, entry counts and linkEAs change in the same group as the entries.
//! - An object without a name is open or an orphan. Objects on object targets that outlive their file are in the destroy
//!   log.
//! - Only an attempt that is certain to be accepted changes memory, and memory can be lost: clients open their files
//!   again, tasks start again.

pub mod attrs;
mod credits;
pub mod cross;
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
pub mod relayout;
pub mod resident;
mod swaps;
pub mod tasks;
pub mod tree;
pub mod xattrs;

#[cfg(test)]
mod tests;

pub use format::{Root, format};
pub use params::Settings;

use credits::Credits;
use known::KnownDirs;
use listings::Listings;
use moves::Moves;
use opens::Opens;
use ops::Change;
use osts::Osts;
use proto::connect::features;
use proto::msg::{
    Act, BATCH_MAX, BatchReq, ConnectRep, ConnectReq, CrossAct, CrossObject, CrossPart, CrossPrepareReq, Reint,
    ReintReq, SequenceRange, WriteReq,
};
use proto::{ClientUuid, Errno, Opcode, TargetKind, TargetName};
use relayout::Relayouts;
use schema::mdt::SeqRange;
use std::collections::BTreeSet;
use swaps::Swaps;
use target::grants::Grants;
use target::{CHANGE_RECORDS, Claim, Cx, Executed, ExportId, HeldKey, Hold, Reply, Request, Service, Stop, Task, Vote};
use tasks::Destroys;

/// The part of the free space that may be granted for data: numerator and denominator.
const DATA_PARTS: (u64, u64) = (3, 4);
/// The most names that [`KnownDirs`] keeps: about 64 MiB.
const KNOWN_NAMES_MAX: usize = 4 << 20;

/// The service of a metadata target.
pub struct Mdt {
    settings: Settings,
    opens: Opens,
    known: KnownDirs,
    listings: Listings,
    moves: Moves,
    swaps: Swaps,
    relayouts: Relayouts,
    osts: Osts,
    destroys: Destroys,
    credits: Credits,
    /// Space granted to clients for data of small files that they buffer.
    space_grants: Grants,
    /// The engine's space that `space_grants` was last computed from.
    space: Option<store::Space>,
    /// How many directories have got another parent since the start.
    moved_directories: u64,
    /// The metadata targets of FID sequences.
    fldb: Vec<SequenceRange>,
    /// The sequences that no client has yet.
    sequences: Vec<SeqRange>,
    /// The object targets are polled for their space.
    watching: bool,
    /// A range of sequences is being fetched.
    fetching: bool,
    /// A walk over the sequences of clients that are gone is scheduled.
    forgetting: bool,
    /// After a recovery, until that walk is over: it also looks for strays.
    strays: Option<Strays>,
}

/// Which sequences may have strays: objects of files whose creation a crash undid. These are the sequences of clients that
/// did not survive the recovery. Such a client may have connected again since, but does not know its old sequences.
#[derive(Debug)]
struct Strays {
    survivors: BTreeSet<ClientUuid>,
    /// Sequences granted since the recovery.
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
            relayouts: Relayouts::default(),
            osts: Osts::default(),
            destroys: Destroys::default(),
            credits: Credits::default(),
            space_grants: Grants::default(),
            space: None,
            moved_directories: 0,
            fldb: Vec::new(),
            sequences: Vec::new(),
            watching: false,
            fetching: false,
            forgetting: false,
            strays: None,
        }
    }

    /// Takes over the engine's last report of its space. A part is left for the records that new files need besides their
    /// data.
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

    /// The number of open files, for observers outside the target.
    pub fn open_count(&self) -> usize {
        self.opens.total()
    }

    fn reint(&mut self, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
        let reint: ReintReq = cx.body(request)?;
        let op = reint.op.as_ref().ok_or(Errno::EPROTO)?;
        ops::dot_lustre::check(cx, op)?;
        self.change(cx, request, &Change::new(&reint), op).map_err(|stop| match stop {
            Stop::Errno(errno) => Stop::Errno(ops::dot_lustre::error(op, errno)),
            Stop::Wait => Stop::Wait,
        })
    }

    fn change(&mut self, cx: &mut Cx<'_>, request: &Request, change: &Change<'_>, op: &Reint) -> Result<Reply, Stop> {
        match op {
            Reint::Setattr(op) => ops::setattr::setattr(self, cx, change, op),
            Reint::Create(op) if !op.stripes.is_empty() || op.mdt.is_some_and(|mdt| mdt != cx.name().index.0) => {
                cross::mkdir(self, cx, change, op)
            }
            Reint::Create(op) => ops::create::create(self, cx, change, op, layouts::answered(cx, request)?),
            Reint::Link(op) => ops::link::link(self, cx, change, op),
            Reint::Unlink(op) => ops::unlink::unlink(self, cx, change, op),
            Reint::Rename(op) => ops::rename::rename(self, cx, change, op),
            Reint::Open(op) => ops::open::open(self, cx, change, op),
            Reint::Setxattr(op) => ops::setxattr::setxattr(cx, change, op),
            Reint::Relayout(op) => cross::relayout::begin(self, cx, change, op),
            Reint::Setlayout(op) => {
                ops::setlayout::setlayout(self, cx, change, op, layouts::first_answer(cx, request)?)
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
        relayout::start(self, cx)?;
        tasks::check_root(cx)?;
        ops::dot_lustre::make(self, cx)
    }

    fn attempt(&mut self, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
        let reply = match request.opcode {
            Opcode::MdsReint => {
                let reply = self.reint(cx, request)?;
                Ok(self.with_credits(cx, reply))
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
                ops::fid2path::fid2path(self, cx, &body)
            }
            Opcode::CrossLook => cross::look(self, cx, &request.decode()?),
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

    fn keys(&self, part: &CrossPart) -> Vec<(HeldKey, Hold)> {
        cross::keys(part)
    }

    fn prepare(&mut self, cx: &mut Cx<'_>, part: &CrossPart) -> Result<Vote, Stop> {
        cross::prepare(self, cx, part)
    }

    fn apply(&mut self, cx: &mut Cx<'_>, parts: &[CrossPart], objects: Vec<CrossObject>) -> Result<Reply, Stop> {
        cross::apply(self, cx, parts, objects)
    }

    fn replays_committed(&self, request: &Request) -> bool {
        request.opcode == Opcode::MdsReint
            && request.decode::<ReintReq>().is_ok_and(|reint| matches!(reint.op, Some(Reint::Open(_))))
    }

    fn changes(&self, request: &Request) -> bool {
        match request.opcode {
            // An open for reading needs a handle, and therefore a reply record, but changes nothing.
            Opcode::MdsReint => !request
                .decode::<ReintReq>()
                .is_ok_and(|reint| matches!(&reint.op, Some(Reint::Open(open)) if ops::open::only_reads(open.flags))),
            opcode => opcode.traits().for_writers,
        }
    }

    fn records_max(&self, request: &Request) -> usize {
        match request.opcode {
            // A close takes at least 16 bytes on the wire, and may remove an object.
            Opcode::MdsBatch => CHANGE_RECORDS + BATCH_MAX * 8,
            Opcode::MdsClose => CHANGE_RECORDS + request.frame.body.len() / 16 * 8,
            _ => CHANGE_RECORDS,
        }
    }

    fn promised(&self) -> u64 {
        self.space_grants.total()
    }

    fn claim(&self, request: &Request) -> Claim {
        let may_use_reserve = match request.opcode {
            Opcode::MdsClose => true,
            // The client has buffered the data within the space that it was granted.
            Opcode::ObjWrite => request.decode::<WriteReq>().is_ok_and(|write| {
                write.grant_used >= request.bulk().len() as u64
                    && write.grant_used <= self.space_grants.of(request.export)
            }),
            Opcode::MdsBatch => {
                let changes = request.decode::<BatchReq>().map(|batch| batch.iter().take(BATCH_MAX + 1).count());
                match changes {
                    Ok(changes) if self.credits.cover(request.export, changes) => return Claim::Answered,
                    _ => false,
                }
            }
            Opcode::MdsReint => request.decode::<ReintReq>().is_ok_and(|reint| match reint.op {
                Some(Reint::Unlink(_) | Reint::Setlayout(_)) => true,
                // Opening an existing object takes no space beyond the client's reply record.
                Some(Reint::Open(open)) => open.flags & ops::open::flags::CREAT == 0,
                _ => false,
            }),
            Opcode::CrossPrepare => request.decode::<CrossPrepareReq>().is_ok_and(|asked| {
                let is_urgent = |step: &CrossAct| matches!(&step.act, Some(Act::Name(act)) if act.urgent);
                asked.part.is_some_and(|part| part.acts.iter().any(is_urgent))
            }),
            _ => false,
        };
        if may_use_reserve { Claim::Reserve } else { Claim::Nothing }
    }

    fn task(&mut self, cx: &mut Cx<'_>, task: &Task) -> Result<(), Stop> {
        tasks::run(self, cx, task)
    }

    fn task_failed(&mut self, cx: &mut Cx<'_>, task: &Task, errno: Errno) -> bool {
        relayout::failed(self, cx, task, errno)
    }

    fn connected(&mut self, cx: &mut Cx<'_>, export: ExportId, request: &ConnectReq, reply: &mut ConnectRep) {
        reply.dom_size = self.settings.dom_size;
        if reply.features & features::WRITE_BACK != 0 {
            self.claim_credits(cx, export, request.write_back_credits);
            reply.write_back_credits = self.grant_credits(cx, export, 0);
            self.credits_shrink(export, reply.features & features::GRANT_SHRINK != 0);
        }
        if reply.features & features::GRANT != 0 && !request.lightweight {
            self.note_space(cx);
            reply.grant = self.space_grants.connect(export, request.grant);
        }
    }

    fn export_gone(&mut self, cx: &mut Cx<'_>, export: ExportId) {
        self.space_grants.gone(export);
        self.swaps.gone(export);
        self.credits_end(export);
        tasks::export_gone(self, cx, export);
    }

    fn recovered(&mut self, cx: &mut Cx<'_>) {
        tasks::recovered(self, cx);
    }

    fn configured(&mut self, cx: &mut Cx<'_>) {
        self.fldb.clone_from(&cx.config().sequences);
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
        name.parse().map_or_else(|_| Vec::new(), |name| params::get(self, &name))
    }

    fn set_param(&mut self, cx: &mut Cx<'_>, path: &str, value: &str) -> Option<Result<(), Errno>> {
        params::set(self, cx.name(), path, value)
    }
}
