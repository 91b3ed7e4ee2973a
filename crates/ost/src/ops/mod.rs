//! The operations, one file each, and what those that change data have in common.
//!
//! A change of data goes: check; [`admit`] (is the sender allowed to, do others keep out); find the data file and begin a
//! [`Flight`]; do the data operation, remembered over attempts; then, with nothing left that can fail, write the record
//! and [`Files::land`](crate::files::Files::land). An attempt that ends in an error is taken out of the air by the caller.

pub mod destroy;
pub mod getattr;
pub mod lock;
pub mod punch;
pub mod read;
pub mod seek;
pub mod setattr;
pub mod statfs;
pub mod sync;
pub mod write;

use proto::msg::{Extent, Layout, LockMode, Lvb, ObjectId, ObjectStateRep, Policy, Resource};
use proto::{Errno, StripeIndex};
use schema::{Object, ObjectKey, OstState, Written};
use target::{Cx, DataOp, DataResult, LogLevel, Reply, Request, Stop};

use crate::Ost;
use crate::attrs;
use crate::files::{Flight, OpId};

/// Largest size of an object, in bytes: what `off_t` holds.
pub const SIZE_MAX: u64 = i64::MAX as u64;

/// The key of an object that a request names.
pub fn key_of(object: &ObjectId) -> Result<ObjectKey, Stop> {
    if object.fid.is_none() {
        return Err(Errno::EINVAL.into());
    }
    Ok(ObjectKey { fid: object.fid, stripe: StripeIndex(object.stripe) })
}

/// The locks of an object.
pub fn resource(key: &ObjectKey) -> Resource {
    Resource::object(key.fid, key.stripe.0)
}

/// The name of a request while it runs.
pub fn op_id(cx: &Cx<'_>, request: &Request) -> OpId {
    (cx.export(), request.xid())
}

/// `offset` and `length` as a range; `EFBIG` if it ends beyond what a file can be.
pub fn extent(offset: u64, length: u64) -> Result<Extent, Stop> {
    let end = offset.checked_add(length).filter(|&end| end <= SIZE_MAX).ok_or(Errno::EFBIG)?;
    Ok(Extent { start: offset, end: end.saturating_sub(1).max(offset) })
}

/// Whether the sender holds a lock that lets it do this: the one that it names, or (after a restart of the target handles
/// are new) one of this range.
pub fn holds(cx: &Cx<'_>, key: &ObjectKey, mode: LockMode, lock: u64, extent: &Extent) -> bool {
    cx.locks().holds(cx.export(), &resource(key), mode, lock, extent)
}

/// Whether a change of `extent` may go on. `ESTALE`: the object is destroyed, or the lock that the sender names is no longer
/// its own, so somebody else may rely on these bytes. A sender without a lock gets the range to itself for the time of the
/// request.
pub fn admit(
    ost: &Ost,
    cx: &mut Cx<'_>,
    request: &Request,
    key: &ObjectKey,
    lock: u64,
    extent: Extent,
) -> Result<(), Stop> {
    if ost.files.is_gone(key) {
        return Err(Errno::ESTALE.into());
    }
    if cx.is_replay() {
        return Ok(());
    }
    if lock == 0 {
        return cx.revoke(resource(key), LockMode::Pw, Policy::Extent(extent));
    }
    // Once begun, the bytes may be on their way to the medium.
    let begun = ost.files.flight(op_id(cx, request)).is_some();
    if !begun && !holds(cx, key, LockMode::Pw, lock, &extent) {
        return Err(Errno::ESTALE.into());
    }
    Ok(())
}

/// Begins to change the data of an object, and cuts off bytes behind its end if this request has to. The caller's next step is the
/// operation on the data file.
pub fn begin(
    ost: &mut Ost,
    cx: &mut Cx<'_>,
    request: &Request,
    key: ObjectKey,
    object: Option<&Object>,
) -> Result<Flight, Stop> {
    let instance = cx.instance();
    let flight = ost.files.begin(op_id(cx, request), key, object, instance);
    if flight.settles {
        // The same in each attempt: it is done once, before what others began after it.
        data(cx, DataOp::Truncate { file: flight.file, size: flight.end })?;
    }
    Ok(Flight { turn: ost.files.take_turn(op_id(cx, request)), ..flight })
}

/// Does a data operation; its failure is the request's.
pub fn data(cx: &mut Cx<'_>, op: DataOp) -> Result<DataResult, Stop> {
    match cx.data(op)? {
        DataResult::Failed(errno) => Err(errno.into()),
        result => Ok(result),
    }
}

/// The 512-byte blocks of a data file after an operation.
pub fn blocks(result: &DataResult) -> u64 {
    match result {
        DataResult::Size(Some((_, blocks))) => *blocks,
        _ => 0,
    }
}

/// The times that a client gave its change; an old one that gave none gets the target's.
pub fn times(cx: &Cx<'_>, lvb: Option<Lvb>) -> Lvb {
    lvb.unwrap_or_else(|| {
        let now = cx.wall_ns();
        Lvb { mtime_ns: now, ctime_ns: now, ..Lvb::default() }
    })
}

/// The record of an object; `None` if it was never written. `EIO` if it was, or may have been, and the record is lost: then neither
/// its size nor its bytes are known, and to take it for empty would make zeros of them.
pub fn object(ost: &Ost, cx: &mut Cx<'_>, key: &ObjectKey) -> Result<Option<Object>, Stop> {
    if let Some(object) = cx.get::<Object>(key)? {
        return Ok(Some(object));
    }
    if key.stripe.0 < Layout::first_number(cx.header().replaced) {
        stdx::mark!("object_of_lost_target");
        let line = format!(
            "object {} stripe {}: what it held was lost with the target that this one replaces: remove the file, or put a copy in \
             its place",
            key.fid, key.stripe
        );
        cx.log(LogLevel::Error, line);
        return Err(Errno::EIO.into());
    }
    let Some(Written { file, .. }) = cx.get::<Written>(key)?.filter(|mark| ost.files.is_current(mark)) else {
        return Ok(None);
    };
    let line = format!(
        "object {} stripe {}: its record is lost, its data file is {file:x}: restore the target from a copy, or remove the file",
        key.fid, key.stripe
    );
    cx.log(LogLevel::Error, line);
    Err(Errno::EIO.into())
}

/// An object that is about to change: its record, if it has one, and the target's state.
pub struct Before {
    /// The record.
    pub object: Option<Object>,
    /// The state record, for counting.
    pub state: OstState,
}

/// Reads what a change of data needs to know.
pub fn before(ost: &Ost, cx: &mut Cx<'_>, key: &ObjectKey) -> Result<Before, Stop> {
    let object = object(ost, cx, key);
    let state = cx.get::<OstState>(&())?.unwrap_or_default();
    Ok(Before { object: object?, state })
}

/// The space that a change of data took is not free any more. Before anything is promised of it.
pub fn account(ost: &mut Ost, cx: &Cx<'_>, request: &Request, before: &Before, blocks: u64) {
    let had = before.object.as_ref().map_or(0, |o| o.blocks);
    ost.grants.spend(cx.export(), blocks.saturating_sub(had) * 512, 0);
    ost.grants.end(cx.export(), request.xid());
}

/// Writes the record after a change of data, and lands the flight. The last step. `change` gets the record, with the
/// owner of a new one and the file and space as they are now.
pub fn finish(
    ost: &mut Ost,
    cx: &mut Cx<'_>,
    request: &Request,
    flight: Flight,
    before: Before,
    owner: (u32, u32),
    blocks: u64,
    change: impl FnOnce(&mut Object),
) -> Reply {
    let op = op_id(cx, request);
    let Before { object: old, state } = before;
    let named = old.as_ref().map_or(0, |o| o.file);
    let unborn = ost.files.is_unborn(&flight);
    if named != flight.file && !unborn {
        // Truncated to nothing meanwhile, by somebody with no lock either: as if that had come after this change.
        ost.files.abort(op);
        return state_reply(ost, cx, attrs::lvb(old.as_ref()));
    }
    let new = old.is_none();
    // The first change in an instance writes the mark again, for objects of versions that have none.
    let unmarked = unborn || old.as_ref().is_some_and(|o| o.instance != cx.instance());
    let mut object = old.unwrap_or_else(|| Object { uid: owner.0, gid: owner.1, ..Object::default() });
    object.file = flight.file;
    // Of two that were in flight together the later one may be here first.
    if ost.files.is_latest(&flight) {
        object.blocks = blocks;
    }
    object.instance = cx.instance();
    object.version = cx.transno().0;
    change(&mut object);
    cx.put(&flight.key, &object);
    if unmarked {
        cx.put(&flight.key, &Written { file: object.file, instance: object.instance });
    }
    ost.files.land(op);
    if unborn {
        ost.objects = state.objects + u64::from(new);
        cx.put(&(), &ost.files.state(ost.objects));
    }
    state_reply(ost, cx, shown(&object))
}

/// The reply that shows an object and the client's grant.
pub fn state_reply(ost: &Ost, cx: &Cx<'_>, lvb: Lvb) -> Reply {
    Reply::new(&ObjectStateRep { lvb: Some(lvb), grant: ost.grants.of(cx.export()) })
}

/// The target's state record.
pub fn state(cx: &mut Cx<'_>) -> Result<OstState, Stop> {
    Ok(cx.get::<OstState>(&())?.unwrap_or_default())
}

/// The record of an object, shown.
pub fn shown(object: &Object) -> Lvb {
    attrs::lvb(Some(object))
}
