//! Set pool: makes, changes or removes a pool of object targets. The change is durable before it is answered. A refusal has a
//! message for the administrator.

use proto::msg::{Pool, SetPoolKind, SetPoolRep, SetPoolReq};
use proto::{Errno, TargetIndex, TargetKind, TargetName};
use schema::PoolRec;
use target::{Cx, Reply, Request, Stop};

use super::register::changed;
use crate::Mgt;
use crate::table::{FileSystem, POOL_MEMBERS_MAX, POOLS_MAX, TARGETS_MAX};

/// Runs one attempt.
pub fn attempt(mgt: &mut Mgt, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    let req: SetPoolReq = request.decode()?;
    let kind = SetPoolKind::try_from(req.kind).map_err(|_| Errno::EINVAL)?;
    let fs = mgt.table.get(&req.fsname).ok_or(Errno::ENOENT)?;
    let members = match check(fs, kind, &req) {
        Ok(members) => members,
        Err((errno, reason)) => {
            return Ok(Reply { status: -errno.raw(), ..Reply::new(&SetPoolRep { reason }) });
        }
    };
    cx.hold_until_durable();

    let id = (req.fsname.clone(), req.pool.clone());
    let fs = mgt.table.entry(req.fsname.clone()).or_default();
    match members {
        Some(osts) => {
            cx.put(&id, &PoolRec { osts: osts.clone() });
            fs.pools.insert(req.pool, osts);
        }
        None => {
            cx.delete::<PoolRec>(&id);
            fs.pools.remove(&req.pool);
        }
    }
    changed(mgt, cx, &req.fsname);
    Ok(Reply::new(&SetPoolRep::default()))
}

/// Checks the request. Returns the new members of the pool; `None`: the pool is to be removed.
fn check(fs: &FileSystem, kind: SetPoolKind, req: &SetPoolReq) -> Result<Option<Vec<u32>>, (Errno, String)> {
    let SetPoolReq { fsname, pool, osts, .. } = req;
    let refuse = |errno, reason: String| Err((errno, reason));
    if !Pool::name_is_valid(pool) {
        let max = Pool::NAME_MAX;
        let reason = format!(
            "the name of a pool is 1 to {max} letters, digits, '_' and '-', and none of: none, inherit, ignore"
        );
        return refuse(Errno::EINVAL, reason);
    }
    let name = |index: u32| TargetName { fsname: fsname.clone(), kind: TargetKind::Ost, index: TargetIndex(index) };
    let known = fs.pools.get(pool);
    let Some(members) = known else {
        return match kind {
            SetPoolKind::New if fs.pools.len() >= POOLS_MAX => refuse(
                Errno::ENOSPC,
                format!("file system '{fsname}' has {POOLS_MAX} pools, the most that it may have"),
            ),
            SetPoolKind::New => Ok(Some(Vec::new())),
            _ => refuse(Errno::ENOENT, format!("there is no pool '{fsname}.{pool}'")),
        };
    };
    if matches!(kind, SetPoolKind::Add | SetPoolKind::Remove) && !(1..=TARGETS_MAX).contains(&osts.len()) {
        return refuse(Errno::EINVAL, format!("name 1 to {TARGETS_MAX} object targets"));
    }
    let mut members = members.clone();
    match kind {
        SetPoolKind::New => return refuse(Errno::EEXIST, format!("pool '{fsname}.{pool}' exists already")),
        SetPoolKind::Destroy if !members.is_empty() => {
            let reason = format!("pool '{fsname}.{pool}' has {} object targets; remove them first", members.len());
            return refuse(Errno::ENOTEMPTY, reason);
        }
        SetPoolKind::Destroy => return Ok(None),
        SetPoolKind::Add => {
            let others: usize = fs.pools.values().map(Vec::len).sum();
            if others + osts.len() > POOL_MEMBERS_MAX {
                let reason = format!("the pools of '{fsname}' may have {POOL_MEMBERS_MAX} object targets together");
                return refuse(Errno::ENOSPC, reason);
            }
            for &ost in osts {
                if !fs.targets.contains_key(&name(ost).to_string()) {
                    return refuse(Errno::ENOENT, format!("there is no {} in file system '{fsname}'", name(ost)));
                }
                match members.binary_search(&ost) {
                    Ok(_) => {
                        return refuse(Errno::EEXIST, format!("{} is in pool '{fsname}.{pool}' already", name(ost)));
                    }
                    Err(at) => members.insert(at, ost),
                }
            }
        }
        SetPoolKind::Remove => {
            for &ost in osts {
                match members.binary_search(&ost) {
                    Ok(at) => drop(members.remove(at)),
                    Err(_) => return refuse(Errno::ENOENT, format!("{} is not in pool '{fsname}.{pool}'", name(ost))),
                }
            }
        }
    }
    Ok(Some(members))
}
