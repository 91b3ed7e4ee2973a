//! Destroy: removes objects that a metadata target no longer needs: of a file that is durably removed, or of an old layout or a
//! copy. Only other servers (lightweight exports) may send it.
//!
//! Locks on the objects are called back first, so no client writes to them any more. Late writes are refused, because the
//! object is remembered as destroyed. One group deletes the record and dooms the data file, and the reply waits until it is
//! durable: after a crash either both exist or neither. An object that does not exist counts as destroyed.
//!
//! Strays are objects of files whose creation was undone by a crash of the metadata target, and whose client did not return
//! to replay it. The request names a sequence that no client has any more, and the files of it that exist.

use std::collections::BTreeSet;

use proto::msg::{DestroyRep, DestroyReq, Extent, LockMode, Policy, StrayObjects};
use proto::{Errno, Fid, StripeIndex};
use schema::{DoomedFile, Object, ObjectKey, Record, Written};
use store::KeyRange;
use target::{Cx, Reply, Request, Stop};

use super::{key_of, resource, state};
use crate::Ost;

/// The most objects in one request.
const OBJECTS_MAX: usize = 4096;
/// The most strays that one request removes.
const STRAYS_MAX: usize = 1024;
/// Records in one scan for strays.
const LOOK: usize = 1024;

/// Runs one attempt.
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

/// The data file of an object, 0 if it has none; `None` if there is no object. If the record is lost, the mark has the file.
fn find(ost: &Ost, cx: &mut Cx<'_>, key: &ObjectKey) -> Result<Option<u64>, Stop> {
    if let Some(object) = cx.get::<Object>(key)? {
        return Ok(Some(object.file));
    }
    let mark = cx.get::<Written>(key)?.filter(|mark| ost.files.is_current(mark));
    Ok(mark.map(|mark| mark.file))
}

/// Adds strays to `keys`. Returns whether there are more.
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
