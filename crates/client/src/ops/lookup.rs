//! Lookups: names to nodes, and the kernel's references to nodes.

use bytes::Bytes;
use proto::msg::{Attr, DirName, LookupReq, NameState, ObjectRep, bits};
use proto::{Errno, Fid, Opcode};
use rules::names;

use super::stripes::{self, Place};
use super::{alias, stat, stat_cached, stat_of_name, walk};
use crate::api::{ALIAS, Answer, Effect, Invalidation, Stat};
use crate::base::Step;
use crate::cache::names::KnownName;
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::names::NameRequest;
use crate::coherence::request::{ObjectLocks, Request, Wants};
use crate::coherence::world::World;

/// How often a lookup begins anew because what it found had lost its name before its own target was asked.
const LOOKUPS_MAX: u64 = 32;

/// `Lookup`.
pub(crate) fn lookup(cx: &mut Cx<'_>, parent: u64, name: &Bytes) -> Run<Answer> {
    if let Some(answer) = super::dot_lustre::lookup(cx, parent, name)? {
        return Ok(answer);
    }
    let stat = find(cx, parent, name)?;
    let parent = cx.w.nodes.stripe(parent, name);
    Ok(Answer::Entry(found(cx.w, stat, parent, name)))
}

/// Prepares the answer that a name leads to this node. The operation may have waited since it learned that: the kernel
/// may keep the name only if it is still valid, whatever locks were lost and taken again meanwhile. `parent`: the directory,
/// of a striped one the stripe.
pub(crate) fn found(w: &mut World, stat: Stat, parent: u64, name: &Bytes) -> Stat {
    let known = || matches!(w.nodes.known_name(parent, name), KnownName::Child(fid) if fid.ino() == stat.ino);
    let entry_cacheable = stat.entry_cacheable && known();
    if entry_cacheable != stat.entry_cacheable {
        stdx::mark!("name_lock_lost_in_flight");
    }
    referenced(w, Stat { entry_cacheable, ..stat }, parent, name)
}

/// Counts a reference of the kernel to the node of the answer, under this name.
pub(crate) fn referenced(w: &mut World, stat: Stat, parent: u64, name: &Bytes) -> Stat {
    let shown = w.nodes.master(parent);
    if w.by_alias {
        return alias::referenced(w, stat, shown | ALIAS, name);
    }
    w.nodes.referenced(stat.ino);
    if let Some(node) = w.nodes.get_mut(stat.ino) {
        node.kernel.looked_up();
        if name.as_ref() != b"." && name.as_ref() != b".." {
            node.parent = parent;
        }
        if stat.entry_cacheable
            && let Some((parent, name)) = node.kernel.name(shown, name)
        {
            w.effect(Effect::Invalidate(Invalidation::Entry { token: 0, parent, name }));
        }
    }
    stat
}

/// Attributes of the object that a name leads to; the errors of `lookup`.
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
    let place = match up {
        true => Place { ino: parent, fid, dest: cx.w.mdt_of(fid) },
        false => match stripes::of_name(cx, parent, name) {
            Err(Stop::Errno(Errno::ESTALE)) if cx.memo(Step::HadName) == Some(1) => return Err(Errno::ENOENT.into()),
            place => place?,
        },
    };
    let dir = place.ino;
    if !up && super::stale::holds(cx, dir) {
        return super::stale::find_and_hold(cx, parent, place, name);
    }
    if !cx.began(Step::Main) && cx.w.nodes.permitted(parent, 1, &cx.op.cred) == Some(true) {
        match cx.w.nodes.known_name(dir, name) {
            KnownName::Nothing => {
                stdx::mark!("lookup_answered_negative");
                return Err(Errno::ENOENT.into());
            }
            // Of an object whose target is not known yet the server of the name says where it is.
            KnownName::Child(child) if cx.w.fld.knows(child.seq) => {
                if let Some(stat) = stat_cached(cx.w, child.ino()) {
                    if cx.op.is_fresh() {
                        super::ahead::found(cx, dir, name, child.ino());
                    }
                    return Ok(stat);
                }
                if cx.began(Step::Attr) || cx.w.nodes.get(child.ino()).is_some_and(|node| node.certain_attr().is_some())
                {
                    // The name and the attributes are valid; only the data's size is missing.
                    super::attributes(cx, child.ino(), true)?;
                    return stat_of_name(cx, child.ino());
                }
                super::ahead::looked_up(cx, dir, name, child.ino());
            }
            KnownName::Child(_) | KnownName::Unknown => {}
        }
    }
    if !cx.began(Step::Main) {
        let named = cx.w.nodes.get(parent).is_some_and(|node| node.has(bits::LOOKUP));
        cx.set_memo(Step::HadName, u64::from(named));
    }
    let rep = cx.rpc_object(Step::Main, place.dest, Opcode::MdsLookup, |w, op| {
        let names = w.wants_directory_lock(dir);
        let mut wants = Wants::default();
        let want = Some(wants.locks(w, place.dest, ObjectLocks::ANY, names && !up, Some(false)));
        let asked = NameRequest::now(w, dir, name);
        Request::new(&LookupReq { parent: place.fid, name: name.clone(), want, cred: Some((*op.cred).clone()) })
            .wanting(wants)
            .then_learn(move |w, rep, reply| answered(w, &asked, rep, reply.number))
    });
    let rep = match rep {
        // The directory had its name when the call arrived, and is removed now: so it was empty. `ESTALE` would make
        // the kernel look the path up again, which it does only once for all names of a call.
        Err(Stop::Errno(Errno::ESTALE)) if cx.memo(Step::HadName) == Some(1) => {
            stdx::mark!("looked_up_in_removed");
            return Err(Errno::ENOENT.into());
        }
        other => other?,
    };
    match object_of(cx, &rep, fid, name) {
        Err(Stop::Errno(Errno::ESTALE)) => {
            cx.forget(Step::Main);
            look_again(cx, parent, name)
        }
        found => {
            let fid = found?.ok_or(Errno::ENOENT)?;
            if !up {
                keep_name(cx, dir, name, fid);
            }
            stat_of_name(cx, fid.ino())
        }
    }
}

/// The object that a lookup of a name in `parent` (of a striped directory the master) found, `None` if there is none. Its attributes are cached: if it lies on another
/// metadata target than its name, they are fetched there. `ESTALE`: it has lost the name meanwhile.
pub(super) fn object_of(cx: &mut Cx<'_>, rep: &ObjectRep, parent: Fid, name: &Bytes) -> Run<Option<Fid>> {
    let Some(elsewhere) = &rep.elsewhere else { return Ok(rep.attr.as_ref().map(|attr| attr.fid)) };
    stdx::mark!("found_elsewhere");
    let of = (name.as_ref() != b"..").then(|| DirName { parent, name: name.clone() });
    let there = super::fetch_named(cx, Step::Elsewhere, elsewhere.fid, of.clone())?;
    match &there.attr {
        Some(_) if of.is_some() && there.name_state() == NameState::Lost => Err(Errno::ESTALE.into()),
        Some(attr) if attr.nlink > 0 => Ok(Some(attr.fid)),
        Some(_) => Err(Errno::ESTALE.into()),
        None => Err(Errno::EPROTO.into()),
    }
}

/// The lock of an object on another metadata target, which came after the lookup's answer, covers the name too.
fn keep_name(cx: &mut Cx<'_>, parent: u64, name: &Bytes, fid: Fid) {
    let Some(Ok(reply)) = cx.answer(Step::Elsewhere) else { return };
    let number = reply.number;
    let rep = reply.object().filter(|rep| rep.name_state() == NameState::Held);
    let epoch = rep.map_or(0, |rep| cx.w.child_epoch(&rep.locks, fid, number));
    cx.w.nodes.still_leads(parent, name, fid, epoch);
}

/// What a name led to had lost that name before its own metadata target was asked. By now the name may lead to something
/// else. `ESTALE`: that is so time after time, or the name leads to an object that does not exist.
pub(super) fn look_again(cx: &mut Cx<'_>, parent: u64, name: &Bytes) -> Run<Stat> {
    let times = cx.memo(Step::Gone).unwrap_or(0);
    if times == LOOKUPS_MAX {
        return Err(Errno::ESTALE.into());
    }
    stdx::mark!("looked_up_again");
    cx.set_memo(Step::Gone, times + 1);
    cx.forget(Step::Elsewhere);
    find(cx, parent, name)
}

/// The server reports what a name leads to, or that it does not exist.
fn answered(w: &mut World, asked: &NameRequest, rep: &ObjectRep, number: u64) {
    let elsewhere = rep.elsewhere.map(|of| Attr { fid: of.fid, mode: of.kind, ..Attr::default() });
    let Some(attr) = rep.attr.as_ref().or(elsewhere.as_ref()) else {
        let version = rep.parent_attr.as_ref().map_or(0, |attr| attr.version);
        let epochs = asked.epochs(w, rep, number, None);
        w.nodes.learn_absent(asked.parent, &asked.name, epochs, version);
        return w.missed_name(asked.parent);
    };
    if asked.name.as_ref() != b".." {
        asked.found(w, rep, number, attr);
        if let Some(dir) = w.nodes.get_mut(asked.parent).and_then(|node| node.dir.as_mut()) {
            dir.misses = 0;
        }
    }
}

/// `Forget`.
pub(crate) fn forget(w: &mut World, ino: u64, count: u64) {
    if w.nodes.forgotten(ino, count) {
        w.kernel_forgot();
        w.drop_if_gone(ino);
    }
}
