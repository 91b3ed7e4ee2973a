//! Names to nodes, and the kernel's references to nodes.

use bytes::Bytes;
use proto::msg::{LookupReq, bits};
use proto::{Errno, Opcode};
use rules::names;

use super::{permitted, stat, stat_cached, stat_of_name, step, walk};
use crate::api::{Answer, Effect, Invalidation, Stat};
use crate::cx::{Cx, Run, Stop};
use crate::names::{Epochs, KnownName};
use crate::world::{ObjectLocks, World};

/// Names of one object that the kernel may keep at a time.
const KERNEL_NAMES_MAX: usize = 16;

/// `Lookup`.
pub(crate) fn lookup(cx: &mut Cx<'_>, parent: u64, name: &Bytes) -> Run<Answer> {
    let stat = find(cx, parent, name)?;
    Ok(Answer::Entry(found(cx.w, stat, parent, name)))
}

/// The kernel is told what this name leads to. The operation may have waited since it learned that: the kernel keeps the name
/// only if that is still known, whatever locks were lost and taken again meanwhile.
pub(crate) fn found(w: &mut World, stat: Stat, parent: u64, name: &Bytes) -> Stat {
    let known = || matches!(w.known_name(parent, name), KnownName::Child(fid) if fid.ino() == stat.ino);
    let entry_cacheable = stat.entry_cacheable && known();
    if entry_cacheable != stat.entry_cacheable {
        stdx::mark!("name_lost_on_the_way");
    }
    referenced(w, Stat { entry_cacheable, ..stat }, parent, name)
}

/// Counts a reference of the kernel to the node that is being answered, under this name.
pub(crate) fn referenced(w: &mut World, stat: Stat, parent: u64, name: &Bytes) -> Stat {
    w.nodes.referenced(stat.ino);
    if let Some(node) = w.nodes.get_mut(stat.ino) {
        node.stale = false;
        if name.as_ref() != b"." && name.as_ref() != b".." {
            node.parent = parent;
        }
        if stat.entry_cacheable && !node.kernel_names.iter().any(|(p, n)| *p == parent && n == name) {
            node.kernel_names.push((parent, name.clone()));
            if node.kernel_names.len() > KERNEL_NAMES_MAX {
                // What is not remembered here would never be called back.
                let (parent, name) = node.kernel_names.remove(0);
                w.effect(Effect::Invalidate(Invalidation::Entry { token: 0, parent, name }));
            }
        }
    }
    stat
}

/// Attributes of what a name leads to; the errors of `lookup`.
fn find(cx: &mut Cx<'_>, parent: u64, name: &Bytes) -> Run<Stat> {
    let fid = walk(cx, parent)?;
    if name.len() > proto::connect::NAME_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    if name.as_ref() == b"." {
        super::attributes(cx, parent, true)?;
        return stat(cx, parent);
    }
    let up = name.as_ref() == b"..";
    if !up {
        names::check(name)?;
    }
    if !up && super::kernel::holds(cx, parent) {
        return super::kernel::find_and_hold(cx, parent, fid, name);
    }
    if !cx.began(step::MAIN) && permitted(cx.w, parent, 1, &cx.op.cred) == Some(true) {
        match cx.w.known_name(parent, name) {
            KnownName::Nothing => {
                stdx::mark!("lookup_answered_negative");
                return Err(Errno::ENOENT.into());
            }
            KnownName::Child(child) => {
                if let Some(stat) = stat_cached(cx.w, child.ino()) {
                    if cx.op.is_fresh() {
                        super::ahead::found(cx, parent, name, child.ino());
                    }
                    return Ok(stat);
                }
                if cx.began(step::ATTR) || cx.w.nodes.get(child.ino()).is_some_and(|node| node.certain_attr().is_some())
                {
                    // The name is sure and so are the attributes; only the data's size is missing.
                    super::attributes(cx, child.ino(), true)?;
                    return stat_of_name(cx, child.ino());
                }
                super::ahead::looked_up(cx, parent, name, child.ino());
            }
            KnownName::Unknown => {}
        }
    }
    let dest = cx.w.mdt_of(fid);
    let cred = cx.op.cred.clone();
    if !cx.began(step::MAIN) {
        let epoch = cx.w.directory_epoch(parent);
        let named = cx.w.nodes.get(parent).is_some_and(|node| node.has(bits::LOOKUP));
        cx.set_memo(step::EPOCH, u64::from(epoch) | u64::from(named) << 32);
    }
    let first = !cx.replied(step::MAIN);
    let rep = cx.rpc_object(step::MAIN, dest, Opcode::MdsLookup, |w, _| {
        let names = w.wants_directory_lock(parent);
        let want = w.want_locks(dest, ObjectLocks::ANY, names && !up, Some(false));
        LookupReq { parent: fid, name: name.clone(), want: Some(want), cred: Some((*cred).clone()) }
    });
    let sent = cx.memo(step::EPOCH).unwrap_or(0);
    let rep = match rep {
        // The directory had its name when the call came, and is gone: then it was empty. `ESTALE` is for what the kernel should look up again,
        // which it does once only for all names of a call.
        Err(Stop::Errno(Errno::ESTALE)) if sent >> 32 != 0 => {
            stdx::mark!("looked_up_in_what_went");
            return Err(Errno::ENOENT.into());
        }
        other => other?,
    };
    let sent = sent as u32;
    let epoch = cx.w.reply_epoch(&rep.locks, parent, sent);
    let version = rep.parent_attr.as_ref().map_or(0, |attr| attr.version);
    let Some(attr) = &rep.attr else {
        if first {
            cx.w.learn_absent(parent, name, epoch, version);
        }
        cx.w.missed_name(parent);
        return Err(Errno::ENOENT.into());
    };
    if first && !up {
        let child = cx.w.child_epoch(&rep.locks, attr.fid, cx.reply_number(step::MAIN));
        cx.w.learn_child(parent, name, attr, Epochs { dir: epoch, child }, version);
        if let Some(dir) = cx.w.nodes.get_mut(parent).and_then(|node| node.dir.as_mut()) {
            dir.misses = 0;
        }
    }
    stat_of_name(cx, attr.fid.ino())
}

/// `Forget`.
pub(crate) fn forget(w: &mut World, ino: u64, count: u64) {
    if w.nodes.forgotten(ino, count)
        && let Some(node) = w.nodes.get_mut(ino)
    {
        node.kernel_names.clear();
        node.stale = false;
        let gone = node.unlinked && node.opens == 0;
        w.let_go();
        if gone && crate::data::is_clean(w, ino) {
            w.drop_node(ino);
        }
    }
}
