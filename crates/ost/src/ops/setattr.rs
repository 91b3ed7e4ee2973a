//! Setattr: times and owner. An object that was never written has neither; it gets them with its first write.

use proto::msg::ObjSetattrReq;
use target::{Cx, Reply, Request, Stop};

use super::{key_of, object, shown, state_reply};
use crate::Ost;
use crate::attrs::{lvb, take_times};

/// Keeps the owner or group.
const SAME: u32 = u32::MAX;

/// Runs one attempt.
pub fn attempt(ost: &mut Ost, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    let req: ObjSetattrReq = request.decode()?;
    let key = key_of(&req.object)?;
    let Some(old) = object(ost, cx, &key)? else {
        return Ok(state_reply(ost, cx, req.lvb.unwrap_or_else(|| lvb(None))));
    };
    let mut object = old.clone();
    if let Some(times) = &req.lvb {
        take_times(&mut object, times);
    }
    if req.uid != SAME {
        object.uid = req.uid;
    }
    if req.gid != SAME {
        object.gid = req.gid;
    }
    if object != old {
        object.version = cx.transno().0;
        cx.put(&key, &object);
    }
    Ok(state_reply(ost, cx, shown(&object)))
}
