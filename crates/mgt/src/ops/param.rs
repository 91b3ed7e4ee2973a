//! Set param: sets or removes a persistent parameter of a file system. The change is durable before it is answered.

use proto::Errno;
use proto::msg::SetParamReq;
use proto::params::{self, Named};
use schema::ParamRec;
use stdx::wildcard;
use target::{Cx, Reply, Request, Stop};

use super::register::changed;
use crate::Mgt;
use crate::table::{PARAMS_MAX, VALUE_LEN_MAX};

/// Runs one attempt.
pub fn attempt(mgt: &mut Mgt, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    let req: SetParamReq = request.decode()?;
    let param = req.param.ok_or(Errno::EINVAL)?;
    if !path_is_valid(&param.path) {
        return Err(Errno::EINVAL.into());
    }
    let fs = mgt.table.get(&req.fsname).ok_or(Errno::ENOENT)?;
    // Older versions accepted longer paths. They match no parameter and can only be removed.
    if !req.delete && param.path.len() > wildcard::PATTERN_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    if param.value.len() > VALUE_LEN_MAX || param.value.contains(['\0', '\n']) {
        return Err(Errno::ERANGE.into());
    }
    // No target or client would apply it.
    if !req.delete && params::named(&param.path) != Named::Settable {
        return Err(Errno::EINVAL.into());
    }
    let old = fs.params.get(&param.path);
    if req.delete && old.is_none() {
        return Err(Errno::ENOENT.into());
    }
    if !req.delete && old.is_none() && fs.params.len() >= PARAMS_MAX {
        return Err(Errno::ENOSPC.into());
    }
    cx.hold_until_durable();
    if !req.delete && old == Some(&param.value) {
        return Ok(Reply::empty());
    }

    let id = (req.fsname.clone(), param.path.clone());
    let fs = mgt.table.entry(req.fsname.clone()).or_default();
    if req.delete {
        cx.delete::<ParamRec>(&id);
        fs.params.remove(&param.path);
    } else {
        cx.put(&id, &ParamRec { value: param.value.clone() });
        fs.params.insert(param.path, param.value);
    }
    changed(mgt, cx, &req.fsname);
    Ok(Reply::empty())
}

/// Whether a path consists of letters, digits and `_ - * [ ] ? :`, in components joined by dots.
fn path_is_valid(path: &str) -> bool {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"_-*[]?.:".contains(&b);
    !path.is_empty() && path.len() <= ParamRec::PATH_MAX && path.bytes().all(good)
}
