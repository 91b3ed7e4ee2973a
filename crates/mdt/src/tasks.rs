//! Background tasks of the metadata target.
//!
//! - **Space.** The object targets are polled for their free space, which decides where new files go.
//! - **Orphans.** The last close removes an object without a name. Tasks remove the orphans of clients that are gone, and
//!   those that no client opened again in recovery.
//! - **Destroys.** A file's objects on object targets are destroyed when the removal of the file is durable. The destroy log
//!   has a record from the group of the unlink on, and keeps it until all targets have answered, which they do when the
//!   destruction is durable there. Destroying twice does no harm.
//! - **Copies.** Objects to which a client copies a file's data are in the destroy log from before their first byte until they
//!   become the file's objects. They are destroyed if the client is gone before that.
//! - **Moves.** A file whose data is about to be copied to object targets is marked, so that the objects of an unfinished
//!   move are destroyed with the file: see [`moves`].
//! - **Owners.** Objects on object targets have the owner of their file. A task sends them a changed owner.
//! - **Sequences.** A range is fetched from the MGS before the last one is used up. The grants of a client that is gone are
//!   dropped. No other client gets these sequences, and a client that returns gets new ones.
//! - **Strays.** A client that did not return after a restart may have written to objects of files whose creation was lost
//!   with it. So a sequence whose client did not survive a recovery stays recorded until the object targets have removed the
//!   objects of all its files that do not exist. This holds even if the client has connected again, because it does not know
//!   its old sequences. In an older copy of the store, files that were made after the copy look as if they were lost. So
//!   strays and orphans are not removed before the MGS has compared the counts of starts, nor while a client has seen a later
//!   state of the store.

use crate::ops::seq_alloc;
use crate::ops::unlink::Gone;
use crate::osts::ASK_EVERY;
use crate::{Mdt, Strays, layouts, moves, params, relayout, tree};
use bytes::Bytes;
use core::time::Duration;
use proto::connect::features;
use proto::msg::{DestroyRep, DestroyReq, Layout, ObjSetattrReq, ObjectId, StatfsRep, StatfsReq, StrayObjects};
use proto::{ClientUuid, Errno, Fid, Opcode, TargetIndex, TargetKind, TargetName, Transno};
use schema::{DestroyLog, Inode, MdtState, ObjectsKey, Oi, Orphan, Record, SeqGrant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use store::KeyRange;
use target::{Cx, ExportId, LogLevel, Stop, Task, format_features};

/// Records that a walk over a table takes at a time.
const STEP: usize = 256;
/// Files in one destroy task.
const DESTROYS_STEP: usize = 256;
/// How long grants of clients that are gone are kept at least. That is longer than a client waits between two attempts to
/// connect. So clients that are alive have connected by then, and have reported which state of the store they have seen.
const FORGET_AFTER: Duration = Duration::from_secs(8);
/// Files of a sequence that one step of the removal of strays takes.
const STRAYS_STEP: usize = 1024;
/// Destroy tasks at a time: some may wait for a target that does not answer.
const DESTROYS_IN_FLIGHT_MAX: usize = 64;

/// Destroys that wait until they are durable in the log, and the number of those in flight.
#[derive(Default, Debug)]
pub struct Destroys {
    waiting: VecDeque<(Transno, ObjectsKey)>,
    in_flight: usize,
    /// Objects that were logged since the start of the target. Empty when the walk over the log has ended.
    logged: BTreeSet<ObjectsKey>,
    walked: bool,
}

impl Destroys {
    /// Adds objects that the change with this transno gave up.
    pub fn add(&mut self, transno: Transno, objects: ObjectsKey) {
        self.waiting.push_back((transno, objects));
        if !self.walked {
            self.logged.insert(objects);
        }
    }

    /// Tasks in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The walk has found everything that was logged before the start.
    fn end_walk(&mut self) {
        self.walked = true;
        self.logged = BTreeSet::new();
    }

    /// The objects of the next task: those that were given up durably. `None` if there are none, or too many tasks are in flight.
    fn next(&mut self, committed: Transno) -> Option<Vec<ObjectsKey>> {
        if self.in_flight >= DESTROYS_IN_FLIGHT_MAX {
            return None;
        }
        let ready = self.waiting.iter().take(DESTROYS_STEP).take_while(|(transno, _)| *transno <= committed).count();
        if ready == 0 {
            return None;
        }
        self.in_flight += 1;
        Some(self.waiting.drain(..ready).map(|(_, objects)| objects).collect())
    }
}

/// Walks the orphans after this one.
struct OrphanWalk(Option<Fid>);
/// Removes those of these orphans that are not open.
struct RemoveOrphans(Vec<Fid>);
/// Walks the destroy log after this record.
struct DestroyWalk(Option<ObjectsKey>);
/// Destroys these objects.
struct Destroy(Vec<ObjectsKey>);
/// Gives up all copies of the data of a file.
struct DropCopies(Fid);
/// Walks the destroy log after this record, and gives up the copies of clients that are gone.
struct CopiesWalk(Option<ObjectsKey>);
/// Sends the owner of this file to its object targets.
struct UpdateOwner(Fid);
/// Fetches a range of sequences.
struct Fetch;
/// Drops sequences of clients that are gone, after this one.
struct ForgetGrants(Option<u64>);
/// Removes strays of a sequence that no client has, from this object number on.
struct RemoveStrays(u64, u32);

/// Polls the object targets for their space.
struct AskSpaces;
/// Asks one object target for its space.
struct AskSpace(u32);

impl Mdt {
    /// Takes the object targets and their pools from the configuration, with the persistent parameters of new targets.
    pub(crate) fn learn_osts(&mut self, cx: &mut Cx<'_>) {
        for index in self.osts.configure(&layouts::osts_of(cx.config())) {
            params::of_new_ost(self, cx, index);
        }
        self.osts.set_pools(&cx.config().pools);
        self.number_objects(cx);
    }

    /// After an object target was replaced, new objects get higher numbers, which tell them from the lost ones. Waits until all
    /// clients know object numbers.
    fn number_objects(&mut self, cx: &mut Cx<'_>) {
        let first = Layout::first_number(cx.config().replaced);
        let known = cx.header().incompat & format_features::LAYOUT_SWAP != 0;
        if first > self.osts.first_object && (known || cx.all_clients_have(features::LAYOUT_SWAP)) {
            cx.set_incompat(format_features::LAYOUT_SWAP);
            self.osts.first_object = first;
        }
    }
}

/// Starts to poll the object targets for their space, once there are any.
pub fn watch_osts(mdt: &mut Mdt, cx: &mut Cx<'_>) {
    if !mdt.watching && !mdt.osts.is_empty() {
        mdt.watching = true;
        cx.spawn(Task::new("spaces", AskSpaces));
    }
}

fn ask_spaces(mdt: &mut Mdt, cx: &mut Cx<'_>) {
    mdt.number_objects(cx);
    for index in mdt.osts.ask() {
        cx.spawn(Task::new("space", AskSpace(index)));
    }
    cx.spawn_after(ASK_EVERY, Task::new("spaces", AskSpaces));
}

fn ask_space(mdt: &mut Mdt, cx: &mut Cx<'_>, index: u32) -> Result<(), Stop> {
    let name = TargetName { fsname: cx.name().fsname.clone(), kind: TargetKind::Ost, index: TargetIndex(index) };
    let space = match cx.upstream(&name, Opcode::ObjStatfs, &StatfsReq { want_grant: 0 }, Bytes::new()) {
        Ok(frame) if frame.header.status == 0 => frame.decode::<StatfsRep>().ok(),
        Ok(_) | Err(Stop::Errno(_)) => None,
        Err(Stop::Wait) => return Err(Stop::Wait),
    };
    mdt.osts.answered(index, space);
    Ok(())
}

/// Checks that the store of MDT0000 has a root directory.
pub fn check_root(cx: &mut Cx<'_>) -> Result<(), Stop> {
    if cx.name().index.0 != 0 {
        return Ok(());
    }
    match tree::find(cx, Fid::ROOT)? {
        Some(root) if root.inode.is_dir() => Ok(()),
        _ => {
            let name = cx.name().to_string();
            cx.log(LogLevel::Error, format!("target '{name}' has no root directory: run lfsck, or format it again"));
            Err(Errno::EIO.into())
        }
    }
}

/// Recovery is over: orphans that no client opened again are removed, and unfinished destroys continue.
pub fn recovered(mdt: &mut Mdt, cx: &mut Cx<'_>) {
    cx.spawn(Task::new("orphans", OrphanWalk(None)));
    cx.spawn(Task::new("destroys", DestroyWalk(None)));
    moves::recovered(mdt, cx);
    cx.spawn(Task::new("layouts of directories", relayout::Resume));
    mdt.strays = Some(Strays { survivors: cx.clients().collect(), granted: BTreeSet::new() });
    mdt.prefetch_sequences(cx);
    mdt.forget_grants_later(cx);
}

/// A file was closed without a check whether it still has a name.
pub fn nobody_has_open(cx: &mut Cx<'_>, fid: Fid) {
    cx.spawn(Task::new("orphans", RemoveOrphans(vec![fid])));
}

/// An export is gone: its open files are closed.
pub fn export_gone(mdt: &mut Mdt, cx: &mut Cx<'_>, export: ExportId) {
    let closed = mdt.opens.export_gone(export);
    for some in closed.chunks(STEP) {
        cx.spawn(Task::new("orphans", RemoveOrphans(some.to_vec())));
    }
    mdt.forget_grants_later(cx);
    if cx.header().incompat & format_features::LAYOUT_SWAP != 0 {
        cx.spawn(Task::new("copies", CopiesWalk(None)));
    }
}

impl Mdt {
    /// Starts to fetch a range of sequences, unless one is being fetched.
    pub(crate) fn prefetch_sequences(&mut self, cx: &mut Cx<'_>) {
        if !self.fetching {
            self.fetching = true;
            cx.spawn(Task::new("sequences", Fetch));
        }
    }

    /// Schedules a walk over the grants of clients that are gone. It runs later, because often several clients go at once.
    fn forget_grants_later(&mut self, cx: &mut Cx<'_>) {
        if !self.forgetting {
            self.forgetting = true;
            cx.spawn_after(FORGET_AFTER, Task::new("grants", ForgetGrants(None)));
        }
    }

    /// Starts destroys that are durable in the log.
    pub(crate) fn start_destroys(&mut self, cx: &mut Cx<'_>) {
        while let Some(objects) = self.destroys.next(cx.last_committed()) {
            cx.spawn(Task::new("destroy", Destroy(objects)));
        }
    }
}

/// Runs one attempt of a task.
pub fn run(mdt: &mut Mdt, cx: &mut Cx<'_>, task: &Task) -> Result<(), Stop> {
    if task.get::<AskSpaces>().is_some() {
        ask_spaces(mdt, cx);
        return Ok(());
    }
    if let Some(AskSpace(index)) = task.get() {
        return ask_space(mdt, cx, *index);
    }
    if let Some(OrphanWalk(after)) = task.get() {
        return walk_orphans(mdt, cx, *after);
    }
    if let Some(RemoveOrphans(fids)) = task.get() {
        return remove_orphans(mdt, cx, fids);
    }
    if let Some(DestroyWalk(after)) = task.get() {
        return walk_destroys(mdt, cx, *after);
    }
    if let Some(Destroy(objects)) = task.get::<Destroy>() {
        return destroy(mdt, cx, objects);
    }
    if let Some(DropCopies(fid)) = task.get() {
        return give_up_copies(mdt, cx, *fid, None);
    }
    if let Some(CopiesWalk(after)) = task.get() {
        return walk_copies(mdt, cx, *after);
    }
    if let Some(result) = moves::run(mdt, cx, task).or_else(|| relayout::run(mdt, cx, task)) {
        return result;
    }
    if let Some(UpdateOwner(fid)) = task.get() {
        return send_owner(cx, *fid);
    }
    if task.get::<Fetch>().is_some() {
        return fetch(mdt, cx);
    }
    if let Some(ForgetGrants(after)) = task.get() {
        return forget_grants(mdt, cx, *after);
    }
    if let Some(RemoveStrays(seq, first)) = task.get() {
        return strays(mdt, cx, *seq, *first);
    }
    Ok(())
}

/// The keys of a table after this record.
pub(crate) fn after<R: Record>(id: Option<R::Id>) -> KeyRange {
    let all = R::all();
    match id {
        Some(id) => KeyRange::new(R::key(&id).successor(), all.end),
        None => all,
    }
}

fn walk_orphans(mdt: &mut Mdt, cx: &mut Cx<'_>, from: Option<Fid>) -> Result<(), Stop> {
    if !cx.store_is_settled() {
        cx.spawn_after(FORGET_AFTER, Task::new("orphans", OrphanWalk(from)));
        return Ok(());
    }
    let found = cx.scan::<Orphan>(&after::<Orphan>(from), STEP)?;
    let last = found.last().map(|(fid, _)| *fid);
    let fids: Vec<Fid> = found.iter().map(|(fid, _)| *fid).collect();
    remove_orphans(mdt, cx, &fids)?;
    if fids.len() == STEP {
        cx.spawn(Task::new("orphans", OrphanWalk(last)));
    }
    Ok(())
}

fn remove_orphans(mdt: &mut Mdt, cx: &mut Cx<'_>, fids: &[Fid]) -> Result<(), Stop> {
    let mut removed = Vec::new();
    for &fid in fids {
        if mdt.opens.count(fid) > 0 {
            continue;
        }
        let Some(Orphan { ino }) = cx.get::<Orphan>(&fid)? else { continue };
        cx.delete::<Orphan>(&fid);
        if let Some(inode) = cx.get::<Inode>(&ino)?
            && inode.fid == fid
            && inode.nlink == 0
        {
            let node = tree::Node { ino, inode };
            let gone = if tree::destroy(mdt, cx, &node)? { Gone::WithObjects } else { Gone::Destroyed };
            removed.push((node, gone));
        }
    }
    for (node, gone) in removed {
        mdt.link_dropped(cx, &node, gone);
    }
    Ok(())
}

fn walk_destroys(mdt: &mut Mdt, cx: &mut Cx<'_>, from: Option<ObjectsKey>) -> Result<(), Stop> {
    let found = cx.scan::<DestroyLog>(&after::<DestroyLog>(from), STEP).inspect_err(|stop| {
        if *stop != Stop::Wait {
            mdt.destroys.end_walk();
        }
    })?;
    // Objects that were logged since the start are in `waiting` already. The others are durable in the log.
    for (objects, log) in found.iter().filter(|(objects, _)| !mdt.destroys.logged.contains(objects)) {
        if !is_copied_to(cx, log) {
            mdt.destroys.waiting.push_front((Transno(0), *objects));
        }
    }
    match found.last() {
        Some((last, _)) if found.len() == STEP => cx.spawn(Task::new("destroys", DestroyWalk(Some(*last)))),
        _ => mdt.destroys.end_walk(),
    }
    mdt.start_destroys(cx);
    Ok(())
}

/// Whether a known client may be copying data to these objects.
fn is_copied_to(cx: &Cx<'_>, log: &DestroyLog) -> bool {
    log.copier().is_some_and(|client| cx.knows_client(client))
}

fn walk_copies(mdt: &mut Mdt, cx: &mut Cx<'_>, from: Option<ObjectsKey>) -> Result<(), Stop> {
    let found = cx.scan::<DestroyLog>(&after::<DestroyLog>(from), STEP)?;
    for (objects, log) in &found {
        if log.copier().is_some() && !is_copied_to(cx, log) {
            give_up_copy(mdt, cx, objects, log);
        }
    }
    match found.last() {
        Some((last, _)) if found.len() == STEP => cx.spawn(Task::new("copies", CopiesWalk(Some(*last)))),
        _ => {}
    }
    Ok(())
}

/// Gives up a copy: removes the client from the log record and destroys the objects.
fn give_up_copy(mdt: &mut Mdt, cx: &mut Cx<'_>, objects: &ObjectsKey, log: &DestroyLog) {
    cx.put::<DestroyLog>(objects, &DestroyLog { osts: log.osts.clone(), ..DestroyLog::default() });
    mdt.destroys.add(cx.transno(), *objects);
}

/// Schedules giving up all copies of the data of a file that is gone.
pub fn drop_copies(cx: &mut Cx<'_>, fid: Fid) {
    cx.spawn(Task::new("copies", DropCopies(fid)));
}

/// Gives up the copies of a file's data that one client made, or all of them.
pub fn give_up_copies(mdt: &mut Mdt, cx: &mut Cx<'_>, fid: Fid, of: Option<ClientUuid>) -> Result<(), Stop> {
    let (first, last) = ObjectsKey::of_file(fid);
    let range = KeyRange::new(DestroyLog::key(&first), DestroyLog::key(&last).successor());
    for (objects, log) in cx.scan::<DestroyLog>(&range, STEP)? {
        if log.copier().is_some_and(|client| of.is_none_or(|of| of == client)) {
            give_up_copy(mdt, cx, &objects, &log);
        }
    }
    Ok(())
}

/// Has the object targets destroy these objects, and removes them from the log when all have answered.
fn destroy(mdt: &mut Mdt, cx: &mut Cx<'_>, doomed: &[ObjectsKey]) -> Result<(), Stop> {
    let failed = match ask_targets(cx, doomed) {
        Ok(failed) => failed,
        Err(Stop::Wait) => return Err(Stop::Wait),
        Err(Stop::Errno(errno)) => Some((cx.name().clone(), errno)),
    };
    match failed {
        None => {
            doomed.iter().for_each(|objects| cx.delete::<DestroyLog>(objects));
            mdt.destroys.in_flight -= 1;
        }
        Some((name, errno)) => {
            cx.log(
                LogLevel::Warn,
                format!("target '{name}' did not remove objects ({errno}): tried again in a minute"),
            );
            cx.spawn_after(Duration::from_secs(60), Task::new("destroy", Destroy(doomed.to_vec())));
        }
    }
    mdt.start_destroys(cx);
    Ok(())
}

/// Sends the requests of a destroy. Returns a target that failed, if any.
fn ask_targets(cx: &mut Cx<'_>, doomed: &[ObjectsKey]) -> Result<Option<(TargetName, Errno)>, Stop> {
    let mut of_target: BTreeMap<u32, Vec<ObjectId>> = BTreeMap::new();
    for objects in doomed {
        let Some(log) = cx.get::<DestroyLog>(objects)? else { continue };
        for (ost, stripe) in log.osts.into_iter().zip(0..) {
            let stripe = objects.first.wrapping_add(stripe);
            of_target.entry(ost).or_default().push(ObjectId { fid: objects.fid, stripe });
        }
    }
    let fsname = cx.name().fsname.clone();
    let mut waits = false;
    let mut failed = None;
    for (ost, objects) in of_target {
        let name = TargetName { fsname: fsname.clone(), kind: TargetKind::Ost, index: TargetIndex(ost) };
        match cx.upstream(&name, Opcode::ObjDestroy, &DestroyReq { objects, strays: None }, Bytes::new()) {
            Ok(frame) => failed = failed.or(Errno::from_status(frame.header.status).err().map(|errno| (name, errno))),
            Err(Stop::Wait) => waits = true,
            Err(Stop::Errno(errno)) => failed = Some((name, errno)),
        }
    }
    if waits { Err(Stop::Wait) } else { Ok(failed) }
}

/// Schedules sending the owner of a file to its objects.
pub fn update_owner(cx: &mut Cx<'_>, fid: Fid) {
    cx.spawn(Task::new("owner", UpdateOwner(fid)));
}

/// Sends the current owner, so that the last of several changes wins. Objects that were never written get their owner with
/// the first write. No permission depends on the owner of an object, so it does no harm if a crash leaves this undone.
fn send_owner(cx: &mut Cx<'_>, fid: Fid) -> Result<(), Stop> {
    let Some(node) = tree::find(cx, fid)? else { return Ok(()) };
    let first = tree::objects_of(&node.inode).first;
    let osts = node.inode.layout.as_ref().map(|layout| layout.osts.clone()).unwrap_or_default();
    let fsname = cx.name().fsname.clone();
    let mut waits = false;
    for (ost, stripe) in osts.into_iter().zip(0..) {
        let name = TargetName { fsname: fsname.clone(), kind: TargetKind::Ost, index: TargetIndex(ost) };
        let object = ObjectId { fid, stripe: first.wrapping_add(stripe) };
        let request = ObjSetattrReq { object, lvb: None, uid: node.inode.uid, gid: node.inode.gid };
        let answer = cx.upstream(&name, Opcode::ObjSetattr, &request, Bytes::new());
        let failed = match answer {
            Ok(frame) => Errno::from_status(frame.header.status).err(),
            Err(Stop::Errno(errno)) => Some(errno),
            Err(Stop::Wait) => {
                waits = true;
                None
            }
        };
        if let Some(errno) = failed {
            cx.log(LogLevel::Warn, format!("target '{name}' did not get the new owner of {fid}: {errno}"));
        }
    }
    if waits { Err(Stop::Wait) } else { Ok(()) }
}

fn forget_grants(mdt: &mut Mdt, cx: &mut Cx<'_>, after: Option<u64>) -> Result<(), Stop> {
    // A prepared part may need the grant of a client that is gone.
    if mdt.strays.is_some() && !cx.store_is_settled() || cx.has_prepared_parts() {
        cx.spawn_after(FORGET_AFTER, Task::new("grants", ForgetGrants(after)));
        return Ok(());
    }
    let all = SeqGrant::all();
    let range = match after {
        Some(seq) => KeyRange::new(SeqGrant::key(&seq).successor(), all.end),
        None => all,
    };
    let found = cx.scan::<SeqGrant>(&range, STEP)?;
    for (seq, grant) in &found {
        let owner = grant.owner();
        let may_have_strays =
            |look: &Strays| !look.granted.contains(seq) && !owner.is_some_and(|uuid| look.survivors.contains(&uuid));
        match owner {
            // The sequence has no owner from here on, even if the client returns.
            _ if mdt.strays.as_ref().is_some_and(may_have_strays) => {
                cx.put(seq, &SeqGrant { client: Bytes::new(), ..grant.clone() });
                cx.spawn(Task::new("strays", RemoveStrays(*seq, 0)));
            }
            Some(uuid) if cx.knows_client(uuid) => {}
            Some(_) => cx.delete::<SeqGrant>(seq),
            // Its strays are being removed.
            None => {}
        }
    }
    // For an export that goes after this, another walk is scheduled.
    mdt.forgetting = false;
    match found.last() {
        Some((last, _)) if found.len() == STEP => cx.spawn(Task::new("grants", ForgetGrants(Some(*last)))),
        _ => mdt.strays = None,
    }
    Ok(())
}

/// One step of the removal of strays. Objects in the destroy log are not strays.
fn strays(mdt: &mut Mdt, cx: &mut Cx<'_>, seq: u64, first: u32) -> Result<(), Stop> {
    if !cx.store_is_settled() {
        cx.spawn_after(FORGET_AFTER, Task::new("strays", RemoveStrays(seq, first)));
        return Ok(());
    }
    let (from, to) = (Fid::new(seq, first), Fid::new(seq, Fid::OID_MAX));
    let files = cx.scan::<Oi>(&KeyRange::new(Oi::key(&from), Oi::key(&to).successor()), STRAYS_STEP)?;
    let last = match files.last() {
        Some((fid, _)) if files.len() == STRAYS_STEP => fid.oid,
        _ => Fid::OID_MAX,
    };
    let to = Fid::new(seq, last);
    let (low, high) = (ObjectsKey { fid: from, first: 0 }, ObjectsKey { fid: to, first: u32::MAX });
    let range = KeyRange::new(DestroyLog::key(&low), DestroyLog::key(&high).successor());
    let doomed = cx.scan::<DestroyLog>(&range, STRAYS_STEP)?;
    if doomed.len() == STRAYS_STEP {
        cx.spawn_after(FORGET_AFTER, Task::new("strays", RemoveStrays(seq, first)));
        return Ok(());
    }
    let keep = files.iter().map(|(fid, _)| fid.oid).chain(doomed.iter().map(|(objects, _)| objects.fid.oid)).collect();
    let request = DestroyReq { objects: Vec::new(), strays: Some(StrayObjects { seq, first, last, keep }) };
    match ask_all(mdt, cx, &request) {
        Ok(true) => cx.spawn(Task::new("strays", RemoveStrays(seq, first))),
        Ok(false) if last == Fid::OID_MAX => cx.delete::<SeqGrant>(&seq),
        Ok(false) => cx.spawn(Task::new("strays", RemoveStrays(seq, last + 1))),
        Err(Stop::Wait) => return Err(Stop::Wait),
        // The grant stays, so the next start tries again.
        Err(Stop::Errno(errno)) => {
            cx.log(LogLevel::Warn, format!("leaked objects of sequence {seq:#x} were not removed: {errno}"));
        }
    }
    Ok(())
}

/// Sends a request to all object targets. Returns whether any has more to remove.
fn ask_all(mdt: &Mdt, cx: &mut Cx<'_>, request: &DestroyReq) -> Result<bool, Stop> {
    let fsname = cx.name().fsname.clone();
    let (mut more, mut stop) = (false, None);
    for ost in mdt.osts.iter().map(|ost| ost.index) {
        let name = TargetName { fsname: fsname.clone(), kind: TargetKind::Ost, index: TargetIndex(ost) };
        match cx.upstream(&name, Opcode::ObjDestroy, request, Bytes::new()) {
            Ok(frame) => {
                Errno::from_status(frame.header.status)?;
                more |= frame.decode::<DestroyRep>().is_ok_and(|rep| rep.more);
            }
            Err(Stop::Errno(errno)) => return Err(errno.into()),
            Err(Stop::Wait) => stop = Some(Stop::Wait),
        }
    }
    match stop {
        Some(stop) => Err(stop),
        None => Ok(more),
    }
}

fn fetch(mdt: &mut Mdt, cx: &mut Cx<'_>) -> Result<(), Stop> {
    let mut state = cx.get::<MdtState>(&())?.unwrap_or_default();
    let enough = seq_alloc::left(&state) >= seq_alloc::LOW;
    if !enough || seq_alloc::is_unpublished(cx, &state) {
        match seq_alloc::fetch(cx, &mut state, enough) {
            Ok(()) => cx.put::<MdtState>(&(), &state),
            Err(Stop::Wait) => return Err(Stop::Wait),
            Err(Stop::Errno(errno)) => {
                cx.log(LogLevel::Warn, format!("the MGS gave no sequences ({errno}): tried again in ten seconds"));
                cx.spawn_after(Duration::from_secs(10), Task::new("sequences", Fetch));
                return Ok(());
            }
        }
    }
    mdt.fetching = false;
    mdt.sequences = state.sequences;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_go_in_order_when_it_is_durable_that_nobody_needs_them() {
        let objects = |oid| ObjectsKey { fid: Fid::new(Fid::SEQ_FIRST, oid), first: 0 };
        let mut destroys = Destroys::default();
        for (transno, oid) in [(5, 1), (6, 2), (8, 3)] {
            destroys.add(Transno(transno), objects(oid));
        }
        assert_eq!(destroys.next(Transno(4)), None, "a crash may bring the file back");
        assert_eq!(destroys.next(Transno(7)), Some(vec![objects(1), objects(2)]));
        assert_eq!(destroys.next(Transno(7)), None);
        assert_eq!(destroys.next(Transno(8)), Some(vec![objects(3)]));
        assert_eq!(destroys.in_flight(), 2);
    }
}
