//! The operations of the object target, one file each, and the steps that changes of data have in common.
//!
//! The steps of a change of data: check the request; [`admit`] it under locks; find the data file and begin a [`Flight`];
//! execute the data operation, whose result is kept over attempts; then, when nothing can fail any more, write the record
//! and end the flight with [`Files::land`](crate::files::Files::land). If an attempt ends with an error, the caller aborts the
//! flight.

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

/// The lock resource of an object.
pub fn resource(key: &ObjectKey) -> Resource {
    Resource::object(key.fid, key.stripe.0)
}

/// Identifies a request while it runs.
pub fn op_id(cx: &Cx<'_>, request: &Request) -> OpId {
    (cx.export(), request.xid())
}

/// `offset` and `length` as a range; `EFBIG` if it ends beyond the largest size.
pub fn extent(offset: u64, length: u64) -> Result<Extent, Stop> {
    let end = offset.checked_add(length).filter(|&end| end <= SIZE_MAX).ok_or(Errno::EFBIG)?;
    Ok(Extent { start: offset, end: end.saturating_sub(1).max(offset) })
}

/// Whether the sender holds a lock that allows this: the one that it names, or any that covers the range, because handles
/// change with a restart of the target.
pub fn holds(cx: &Cx<'_>, key: &ObjectKey, mode: LockMode, lock: u64, extent: &Extent) -> bool {
    cx.locks().holds(cx.export(), &resource(key), mode, lock, extent)
}

/// Checks whether a change of `extent` may proceed. `ESTALE`: the object is destroyed, or the sender has lost the lock that it
/// names, so other clients may rely on these bytes. For a sender without a lock, the locks of others on the range are called
/// back.
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
    // After the flight has begun, the bytes may already be on their way to the medium.
    let begun = ost.files.flight(op_id(cx, request)).is_some();
    if !begun && !holds(cx, key, LockMode::Pw, lock, &extent) {
        return Err(Errno::ESTALE.into());
    }
    Ok(())
}

/// Begins a change of an object's data, and truncates bytes past its end if this flight settles the object. The caller then
/// requests the operation on the data file.
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
        // Every attempt requests the same operation, which is executed once, before those of later flights.
        data(cx, DataOp::Truncate { file: flight.file, size: flight.end })?;
    }
    Ok(Flight { turn: ost.files.take_turn(op_id(cx, request)), ..flight })
}

/// Executes a data operation. If it fails, the request fails.
pub fn data(cx: &mut Cx<'_>, op: DataOp) -> Result<DataResult, Stop> {
    match cx.data(op)? {
        DataResult::Failed(errno) => Err(errno.into()),
        result => Ok(result),
    }
}

/// The number of 512-byte blocks of a data file after an operation.
pub fn blocks(result: &DataResult) -> u64 {
    match result {
        DataResult::Size(Some((_, blocks))) => *blocks,
        _ => 0,
    }
}

/// The times that a client sent with its change. A client of an old version sends none; then the target's clock counts.
pub fn times(cx: &Cx<'_>, lvb: Option<Lvb>) -> Lvb {
    lvb.unwrap_or_else(|| {
        let now = cx.wall_ns();
        Lvb { mtime_ns: now, ctime_ns: now, ..Lvb::default() }
    })
}

/// The record of an object; `None` if it was never written. `EIO` if it was, or may have been, written and the record is lost:
/// its size and bytes are unknown, and treating it as empty would turn its data into zeros.
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

/// The records that a change of data starts from.
pub struct Before {
    /// The object's record, if it has one.
    pub object: Option<Object>,
    /// The target's state record, with the number of objects.
    pub state: OstState,
}

/// Reads the records that a change of data starts from.
pub fn before(ost: &Ost, cx: &mut Cx<'_>, key: &ObjectKey) -> Result<Before, Stop> {
    let object = object(ost, cx, key);
    let state = cx.get::<OstState>(&())?.unwrap_or_default();
    Ok(Before { object: object?, state })
}

/// Accounts for the space that a change of data took. Comes before any new grant.
pub fn account(ost: &mut Ost, cx: &Cx<'_>, request: &Request, before: &Before, blocks: u64) {
    let had = before.object.as_ref().map_or(0, |o| o.blocks);
    ost.grants.spend(cx.export(), blocks.saturating_sub(had) * 512, 0);
    ost.grants.end(cx.export(), request.xid());
}

/// Writes the record after a change of data and ends the flight. The last step of an attempt. `change` gets the record with the
/// current file and blocks, and for a new object with `owner`.
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
        // Another client without a lock has truncated the object to zero in the meantime: that counts as the later change.
        ost.files.abort(op);
        return state_reply(ost, cx, attrs::lvb(old.as_ref()));
    }
    let new = old.is_none();
    // The first change in each instance writes the mark again, because versions without marks may have written the object.
    let unmarked = unborn || old.as_ref().is_some_and(|o| o.instance != cx.instance());
    let mut object = old.unwrap_or_else(|| Object { uid: owner.0, gid: owner.1, ..Object::default() });
    object.file = flight.file;
    // Of two concurrent changes, the later one may have been accepted first.
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

/// The reply with an object's attributes and the client's grant.
pub fn state_reply(ost: &Ost, cx: &Cx<'_>, lvb: Lvb) -> Reply {
    Reply::new(&ObjectStateRep { lvb: Some(lvb), grant: ost.grants.of(cx.export()) })
}

/// The target's state record.
pub fn state(cx: &mut Cx<'_>) -> Result<OstState, Stop> {
    Ok(cx.get::<OstState>(&())?.unwrap_or_default())
}

/// The attributes in an object's record.
pub fn shown(object: &Object) -> Lvb {
    attrs::lvb(Some(object))
}
