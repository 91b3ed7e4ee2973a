//! Destroy: objects of a file whose last name is durably gone and that nobody has open. From metadata targets only.
//!
//! Locks on the objects are called back first, so no client writes any more; late writes are refused, because the object
//! is remembered as destroyed. The record goes and its file is doomed in one group, and the answer comes when that is durable:
//! after a crash either both are there or neither comes back. Objects that are not there are done already.

use std::collections::BTreeSet;

use proto::Errno;
use proto::msg::{DestroyReq, Extent, LockMode, Policy};
use schema::{DoomedFile, Object, ObjectKey};
use target::{Cx, Reply, Request, Stop};

use super::{key_of, resource, state};
use crate::Ost;

/// Objects in one request.
const OBJECTS_MAX: usize = 4096;

/// One attempt.
pub fn attempt(ost: &mut Ost, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    if !cx.export_info(cx.export()).is_some_and(|e| e.lightweight) {
        return Err(Errno::EPERM.into());
    }
    let req: DestroyReq = request.decode()?;
    if req.objects.len() > OBJECTS_MAX {
        return Err(Errno::E2BIG.into());
    }
    let keys = req.objects.iter().map(key_of).collect::<Result<BTreeSet<ObjectKey>, Stop>>()?;
    let mut found = Vec::new();
    let mut missing = None;
    for key in keys {
        let free = cx.revoke(resource(&key), LockMode::Ex, Policy::Extent(Extent::ALL));
        match free.and_then(|()| cx.get::<Object>(&key)) {
            Ok(object) => found.push((key, object)),
            Err(stop) => missing = Some(stop),
        }
    }
    if let Some(stop) = missing {
        return Err(stop);
    }
    let state = state(cx)?;

    cx.hold_until_durable();
    let mut gone = 0;
    for (key, object) in found {
        ost.files.destroyed(key);
        let Some(object) = object else { continue };
        gone += 1;
        cx.delete::<Object>(&key);
        if object.file != 0 {
            cx.put(&object.file, &DoomedFile {});
            let transno = cx.transno();
            ost.files.doom(transno, object.file);
        }
    }
    if gone != 0 {
        ost.objects = state.objects.saturating_sub(gone);
        cx.put(&(), &ost.files.state(ost.objects));
    }
    ost.stats.destroys += gone;
    Ok(Reply::empty())
}
