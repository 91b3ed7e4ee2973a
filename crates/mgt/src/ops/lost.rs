//! Target lost: an administrator declares that a metadata target is lost for good. The other metadata targets learn it
//! from the configuration, and settle without it the changes that they had under way with it. The declaration is durable
//! before it is answered. A refusal has a message for the administrator.
//!
//! If the target comes back, its registration is refused until it has dropped its part of these changes
//! ([`super::register`]).

use proto::msg::{TargetLostRep, TargetLostReq};
use proto::{Errno, TargetKind, TargetName};
use schema::TargetRec;
use target::{Cx, LogLevel, Reply, Request, Stop};

use super::register::{changed, printable};
use crate::Mgt;
use crate::table::is_lost;

/// Runs one attempt.
pub fn attempt(mgt: &mut Mgt, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    let req: TargetLostReq = request.decode()?;
    let refuse =
        |(errno, reason): (Errno, String)| Ok(Reply { status: -errno.raw(), ..Reply::new(&TargetLostRep { reason }) });
    let name = match metadata_target(&req.target) {
        Ok(name) => name,
        Err(refusal) => return refuse(refusal),
    };
    let target = name.to_string();
    let fs = mgt.table.get(&name.fsname).ok_or(Errno::ENOENT)?;
    let Some(known) = fs.targets.get(&target) else {
        return refuse((Errno::ENOENT, format!("there is no {name} in file system '{}'", name.fsname)));
    };
    if cx.is_connected(&target) {
        let reason = format!("'{name}' is running, and only a target that is gone can be declared lost: stop it first");
        return refuse((Errno::EBUSY, reason));
    }
    cx.hold_until_durable();
    if is_lost(known) {
        return Ok(Reply::new(&TargetLostRep::default()));
    }
    let losses = known.losses.checked_add(1).ok_or(Errno::EOVERFLOW)?;

    let record = TargetRec { losses, ..known.clone() };
    let line = format!("'{name}' is declared lost: the other metadata targets settle without it what was under way");
    cx.log(LogLevel::Warn, line);
    cx.put(&target, &record);
    mgt.table.entry(name.fsname.clone()).or_default().targets.insert(target, record);
    changed(mgt, cx, &name.fsname);
    Ok(Reply::new(&TargetLostRep::default()))
}

/// The name of a metadata target.
fn metadata_target(text: &str) -> Result<TargetName, (Errno, String)> {
    let reason = match text.parse::<TargetName>() {
        Ok(name) if name.kind == TargetKind::Mdt => return Ok(name),
        Ok(name) if name.kind == TargetKind::Ost => {
            format!("'{name}' is an object target: if it is lost, replace it with 'adamant mkfs --replace'")
        }
        _ => format!("'{}' is not the name of a metadata target; expected FSNAME-MDTxxxx", printable(text)),
    };
    Err((Errno::EINVAL, reason))
}
