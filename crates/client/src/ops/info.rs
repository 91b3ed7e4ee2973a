//! Queries about the file system: space, identities, layouts.

use bytes::Bytes;
use proto::msg::{Fid2pathRep, Fid2pathReq, Layout, Reint, SetlayoutKind, SetlayoutOp, StatfsRep, StatfsReq};
use proto::{Errno, Fid, Opcode};
use rules::mode::{S_IFMT, S_IFREG};
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::Instant;

use super::{attributes, config, stripes, walk, writable};
use crate::api::Answer;
use crate::base::Dest;
use crate::base::Step;
use crate::base::WaitKey;
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::fids::fid_of;
use crate::coherence::kernel;
use crate::coherence::request::Request;

/// Block size of `statfs`.
const BLOCK: u64 = 4096;

/// `Statfs` is answered after this time at the latest, with what targets reported last: `df` and umount(8) call it and
/// must not hang.
const PATIENCE: Duration = Duration::from_secs(2);

/// Requests the space of targets at once. Unreachable targets are not waited for, except those that `wait_for` selects, until
/// `until`.
pub(super) fn space(
    cx: &mut Cx<'_>,
    dests: Vec<Dest>,
    wait_for: impl Fn(Dest) -> bool,
    until: Option<Instant>,
) -> Run<Vec<(Dest, Result<StatfsRep, Errno>)>> {
    let late = until.is_some_and(|until| cx.now() >= until);
    let mut missing = false;
    let mut answers = Vec::new();
    for dest in dests {
        let opcode = match dest {
            Dest::Mgs => continue,
            Dest::Mdt(_) => Opcode::MdsStatfs,
            Dest::Ost(_) => Opcode::ObjStatfs,
        };
        let step = Step::Space(dest);
        let away = !cx.w.imports.get(dest).is_some_and(|target| target.is_full());
        if away && cx.answer(step).is_none() {
            if wait_for(dest) && !late {
                // Nothing is sent, so that no request is left over if the wait ends.
                let _ = cx.wait(WaitKey::Target(dest));
                missing = true;
            } else {
                answers.push((dest, Err(Errno::ENOTCONN)));
            }
            continue;
        }
        match cx.start_rpc(step, dest, opcode, |_, _| Request::new(&StatfsReq { want_grant: 0 })) {
            None if late => answers.push((dest, Err(Errno::ETIMEDOUT))),
            None => missing = true,
            Some(Err(errno)) => answers.push((dest, Err(errno))),
            Some(Ok(reply)) => {
                let rep = reply.frame().decode::<StatfsRep>().map_err(|_| Errno::EPROTO);
                let now = cx.now();
                if let (Ok(rep), Some(target)) = (&rep, cx.w.imports.get_mut(dest)) {
                    (target.space, target.space_at) = (Some(*rep), now);
                }
                answers.push((dest, rep));
            }
        }
    }
    match (missing, until) {
        (false, _) => Ok(answers),
        (true, None) => Err(Stop::Wait),
        (true, Some(until)) => {
            cx.w.set_timer(until);
            Err(cx.wait(WaitKey::Timer))
        }
    }
}

/// The total space of several targets. Targets on the same disk share its bytes, and the files that would still fit.
#[derive(Default)]
struct Sum {
    /// What targets with a disk of their own have, and the objects of all targets.
    own: StatfsRep,
    /// For each disk, with what its targets have granted to clients (`free` less `available`) in `grant`.
    disks: BTreeMap<u64, StatfsRep>,
}

impl Sum {
    fn add(&mut self, rep: &StatfsRep) {
        self.own.files = self.own.files.saturating_add(rep.files.saturating_sub(rep.files_free));
        if rep.disk == 0 {
            self.add_free_files(rep.files_free);
            self.add_bytes(rep.total, rep.free, rep.available);
            return;
        }
        let none = StatfsRep { free: u64::MAX, files_free: u64::MAX, ..StatfsRep::default() };
        let disk = self.disks.entry(rep.disk).or_insert(none);
        disk.files_free = disk.files_free.min(rep.files_free);
        disk.total = disk.total.max(rep.total);
        disk.free = disk.free.min(rep.free);
        disk.grant = disk.grant.saturating_add(rep.free.saturating_sub(rep.available));
    }

    fn add_bytes(&mut self, total: u64, free: u64, available: u64) {
        self.own.total = self.own.total.saturating_add(total);
        self.own.free = self.own.free.saturating_add(free);
        self.own.available = self.own.available.saturating_add(available);
    }

    fn add_free_files(&mut self, free: u64) {
        self.own.files = self.own.files.saturating_add(free);
        self.own.files_free = self.own.files_free.saturating_add(free);
    }

    fn all(mut self) -> StatfsRep {
        for disk in core::mem::take(&mut self.disks).into_values() {
            self.add_free_files(disk.files_free);
            self.add_bytes(disk.total, disk.free, disk.free.saturating_sub(disk.grant));
        }
        self.own
    }
}

/// `Statfs`: bytes of the object targets, files of the metadata targets. Without object targets, bytes of the metadata
/// targets.
pub(crate) fn statfs(cx: &mut Cx<'_>) -> Run<Answer> {
    let until = Instant(cx.memo(Step::Until).unwrap_or((cx.now() + PATIENCE).0));
    cx.set_memo(Step::Until, until.0);
    let all = cx.w.imports.dests();
    let answers = space(cx, all, |dest| dest == Dest::Mdt(0), Some(until))?;
    let (mut data, mut metadata) = (Sum::default(), Sum::default());
    for (dest, rep) in answers {
        let sum = if let Dest::Ost(_) = dest { &mut data } else { &mut metadata };
        let known = || cx.w.imports.get(dest).and_then(|target| target.space);
        match rep.or_else(|errno| known().ok_or(errno)) {
            Ok(rep) => sum.add(&rep),
            Err(Errno::ENOTCONN) if dest == Dest::Mdt(0) => return Err(Errno::ETIMEDOUT.into()),
            Err(errno) if dest == Dest::Mdt(0) => return Err(errno.into()),
            Err(_) => {}
        }
    }
    let (data, metadata) = (data.all(), metadata.all());
    let bytes = if data.total > 0 { &data } else { &metadata };
    Ok(Answer::Space {
        block_size: BLOCK as u32,
        blocks: bytes.total / BLOCK,
        free: bytes.free / BLOCK,
        available: bytes.available / BLOCK,
        files: metadata.files,
        files_free: metadata.files_free,
    })
}

/// `TargetSpace`.
pub(crate) fn target_space(cx: &mut Cx<'_>) -> Run<Answer> {
    let all = cx.w.imports.dests();
    let answers = space(cx, all, |_| false, None)?;
    let mut named: Vec<_> = answers.into_iter().map(|(dest, rep)| (dest, cx.w.target_name(dest), rep)).collect();
    named.sort_by_key(|(dest, ..)| *dest);
    Ok(Answer::Targets(named.into_iter().map(|(_, name, rep)| (name, rep)).collect()))
}

/// `PathToFid`.
pub(crate) fn path_to_fid(ino: u64) -> Run<Answer> {
    Ok(Answer::Fid(fid_of(ino)?))
}

/// `MdtIndex`.
pub(crate) fn mdt_index(cx: &mut Cx<'_>, ino: u64) -> Run<Answer> {
    match config::locate(cx, fid_of(ino)?)? {
        Dest::Mdt(index) => Ok(Answer::Index(index)),
        _ => Err(Errno::EPROTO.into()),
    }
}

/// Longest path, in bytes.
const PATH_MAX: usize = 4096;

/// `FidToPath`. A metadata target knows a path only as far up as the directories are its own: the next one is asked for
/// the rest.
pub(crate) fn fid_to_path(cx: &mut Cx<'_>, fid: Fid) -> Run<Answer> {
    let known = paths_of(cx, Step::Main, fid)?;
    let mut paths = Vec::with_capacity(known.len());
    for (path, mut from) in known {
        let mut path = path;
        while let Some(directory) = from {
            let above = paths_of(cx, Step::PathOf(directory.ino()), directory)?;
            let (start, next) = above.into_iter().next().ok_or(Errno::ENOENT)?;
            // Each piece has a name, so a ring ends here too.
            if start.is_empty() && next.is_some() || start.len() + 1 + path.len() > PATH_MAX {
                return Err(Errno::ENAMETOOLONG.into());
            }
            if !start.is_empty() {
                path = [&start[..], &path[..]].join(&b'/').into();
            }
            from = next;
        }
        paths.push(path);
    }
    Ok(Answer::Paths(paths))
}

/// The paths of an object as far as its own metadata target knows them, each with the directory that it starts from if
/// that is not the root.
fn paths_of(cx: &mut Cx<'_>, step: Step, fid: Fid) -> Run<Vec<(Bytes, Option<Fid>)>> {
    let dest = config::locate(cx, fid)?;
    let frame = cx.rpc(step, dest, Opcode::MdsFid2path, |_, op| {
        Request::new(&Fid2pathReq { fid, cred: Some((*op.cred).clone()) })
    })?;
    let rep: Fid2pathRep = frame.decode().map_err(|_| Errno::EPROTO)?;
    if !rep.from.is_empty() && rep.from.len() != rep.paths.len() {
        return Err(Errno::EPROTO.into());
    }
    let mut from = rep.from.into_iter();
    Ok(rep.paths.into_iter().map(|path| (path, from.next())).collect())
}

/// `PoolMembers`.
pub(crate) fn pool_members(cx: &Cx<'_>, pool: &str) -> Run<Answer> {
    let members = cx.w.pools.get(pool).ok_or(Errno::ENOENT)?;
    Ok(Answer::Members(members.clone()))
}

/// `GetLayout`.
pub(crate) fn get_layout(cx: &mut Cx<'_>, ino: u64) -> Run<Answer> {
    walk(cx, ino)?;
    crate::coherence::metadata_write_back::settled(cx, ino)?;
    Ok(Answer::Layout(attributes(cx, ino, false)?.layout))
}

/// `SetLayout`. `EOPNOTSUPP`: the server's version does not support lists of targets or pools, and has set the rest.
pub(crate) fn set_layout(cx: &mut Cx<'_>, ino: u64, wish: &Layout) -> Run<Answer> {
    let fid = walk(cx, ino)?;
    writable(cx)?;
    if !wish.stripe_size.is_multiple_of(64 << 10) || wish.want_count < -1 || wish.want_first < -1 {
        return Err(Errno::EINVAL.into());
    }
    let dest = cx.w.mdt_of(fid);
    cx.changing(Step::Changing(0), ino);
    stripes::before_change(cx, ino)?;
    kernel::hide(cx, &[ino])?;
    let result = cx.rpc_object(Step::Main, dest, Opcode::MdsReint, |w, op| {
        let kind = SetlayoutKind::Set as i32;
        let set = SetlayoutOp { fid, kind, layout: Some(wish.clone()), lvb: None, dir_default: None };
        let request = Request::new(&op.change(None, Reint::Setlayout(set))).choosing(true);
        stripes::touched(w, request, ino).then(move |w, _| stripes::changed(w, ino))
    });
    let rep = super::stale_if_gone(result)?;
    let set = rep.attr.as_ref().and_then(|attr| attr.layout.as_ref());
    let lacks = |set: &Layout| (!wish.osts.is_empty() && set.osts != wish.osts) || set.pool != wish.pool;
    if (!wish.osts.is_empty() || !wish.pool.is_empty()) && set.is_none_or(lacks) {
        return Err(Errno::EOPNOTSUPP.into());
    }
    Ok(Answer::Done)
}

/// `Migrate`. `EOPNOTSUPP`: a server or another client has a version that does not support it.
pub(crate) fn migrate(cx: &mut Cx<'_>, ino: u64, wish: &Layout) -> Run<Answer> {
    walk(cx, ino)?;
    writable(cx)?;
    if !cx.began(Step::MayMigrate) {
        crate::coherence::metadata_write_back::settled(cx, ino)?;
        if attributes(cx, ino, false)?.mode & S_IFMT != S_IFREG {
            return Err(Errno::EINVAL.into());
        }
        cx.set_memo(Step::MayMigrate, 1);
    }
    super::stale_if_gone(crate::ops::data::migrate(cx, ino, wish))?;
    Ok(Answer::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_on_one_disk_share_its_bytes_and_free_files() {
        let one = |disk, files, free| StatfsRep {
            disk,
            files,
            files_free: free,
            total: 100,
            free,
            available: free - 1,
            ..StatfsRep::default()
        };
        let mut sum = Sum::default();
        [one(7, 25, 20), one(7, 40, 19), one(8, 12, 10), one(0, 3, 2), one(0, 6, 2)]
            .iter()
            .for_each(|rep| sum.add(rep));
        let all = sum.all();
        assert_eq!((all.total, all.free, all.available), (400, 19 + 10 + 4, 19 - 2 + 9 + 2));
        let used = 5 + 21 + 2 + 1 + 4;
        assert_eq!((all.files, all.files_free), (used + 19 + 10 + 4, 19 + 10 + 4));
    }
}
