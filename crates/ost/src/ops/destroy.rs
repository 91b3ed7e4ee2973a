//! Destroy: objects of a file whose last name is durably gone and that nobody has open. From metadata targets only.
//!
//! Locks on the objects are called back first, so no client writes any more; late writes are refused, because the object
//! is remembered as destroyed. The record goes and its file is doomed in one group, and the answer comes when that is durable:
//! after a crash either both are there or neither comes back. Objects that are not there are done already.
//!
//! Strays are objects of files that a crash of the metadata target undid together with the death of their client: of a
//! sequence that nobody has any more, the objects of all files that are not there.

use std::collections::BTreeSet;

use proto::msg::{DestroyRep, DestroyReq, Extent, LockMode, Policy, StrayObjects};
use proto::{Errno, Fid, StripeIndex};
use schema::{DoomedFile, Object, ObjectKey, Record, Written};
use store::KeyRange;
use target::{Cx, Reply, Request, Stop};

use super::{key_of, resource, state};
use crate::Ost;

/// Objects in one request.
const OBJECTS_MAX: usize = 4096;
/// Strays that one request removes.
const STRAYS_MAX: usize = 1024;
/// Records in one look for them.
const LOOK: usize = 1024;

/// One attempt.
pub fn attempt(ost: &mut Ost, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    if !cx.export_info(cx.export()).is_some_and(|e| e.lightweight) {
        return Err(Errno::EPERM.into());
    }
    let req: DestroyReq = request.decode()?;
    if req.objects.len() > OBJECTS_MAX {
        return Err(Errno::E2BIG.into());
    }
    let mut keys = req.objects.iter().map(key_of).collect::<Result<BTreeSet<ObjectKey>, Stop>>()?;
    let more = match &req.strays {
        Some(strays) => find_strays(cx, strays, &mut keys)?,
        None => false,
    };
    let mut found = Vec::new();
    let mut missing = None;
    for key in keys {
        let free = cx.revoke(resource(&key), LockMode::Ex, Policy::Extent(Extent::ALL));
        match free.and_then(|()| find(ost, cx, &key)) {
            Ok(file) => found.push((key, file)),
            Err(stop) => missing = Some(stop),
        }
    }
    if let Some(stop) = missing {
        return Err(stop);
    }
    let state = state(cx)?;

    cx.hold_until_durable();
    let mut gone = 0;
    for (key, file) in found {
        ost.files.destroyed(key);
        let Some(file) = file else { continue };
        gone += 1;
        cx.delete::<Object>(&key);
        if file != 0 {
            cx.delete::<Written>(&key);
            cx.put(&file, &DoomedFile {});
            let transno = cx.transno();
            ost.files.doom(transno, file);
        }
    }
    if gone != 0 {
        ost.objects = state.objects.saturating_sub(gone);
        cx.put(&(), &ost.files.state(ost.objects));
    }
    ost.stats.destroys += gone;
    Ok(Reply::new(&DestroyRep { more }))
}

/// The data file of an object, 0 if it has none; `None` if there is no object. One that lost its record has its file still.
fn find(ost: &Ost, cx: &mut Cx<'_>, key: &ObjectKey) -> Result<Option<u64>, Stop> {
    if let Some(object) = cx.get::<Object>(key)? {
        return Ok(Some(object.file));
    }
    let mark = cx.get::<Written>(key)?.filter(|mark| ost.files.is_current(mark));
    Ok(mark.map(|mark| mark.file))
}

/// Adds strays to `keys`; whether there are more.
fn find_strays(cx: &mut Cx<'_>, strays: &StrayObjects, keys: &mut BTreeSet<ObjectKey>) -> Result<bool, Stop> {
    let (first, last) = (Fid::new(strays.seq, strays.first), Fid::new(strays.seq, strays.last));
    if strays.seq < Fid::SEQ_FIRST || strays.first > strays.last || strays.keep.len() > OBJECTS_MAX {
        return Err(Errno::EINVAL.into());
    }
    let keep: BTreeSet<u32> = strays.keep.iter().copied().collect();
    let key = |fid| Object::key(&ObjectKey { fid, stripe: StripeIndex(0) });
    let mut range = KeyRange::new(key(first), Object::of_file(last).end);
    let mut count = 0;
    loop {
        let found = cx.scan::<Object>(&range, LOOK)?;
        for (object, _) in found.iter().filter(|(object, _)| !keep.contains(&object.fid.oid)) {
            if count == STRAYS_MAX {
                return Ok(true);
            }
            keys.insert(*object);
            count += 1;
        }
        match found.last() {
            Some((last, _)) if found.len() == LOOK => range.start = Object::key(last).successor(),
            _ => return Ok(false),
        }
    }
}
