//! Stale names: what happens to a path walk that met one.
//!
//! The kernel looks the names of a path up again once for each call ([`crate::coherence::kernel`]). What it found the
//! second time may be removed before it is used: so for a while after an `ESTALE` the lookups in that directory also
//! open what they find. An open object lasts.

use bytes::Bytes;
use core::time::Duration;
use proto::msg::{LookupReq, OpenOp, Reint, bits};
use proto::{Errno, Fid, Opcode, Xid};
use stdx::Instant;

use super::stripes::{self, Place};
use crate::api::Stat;
use crate::base::{Dest, Step, WaitKey};
use crate::cache::file::{Closing, flags as o};
use crate::cache::node::Hold;
use crate::coherence::closes;
use crate::coherence::cx::{Cx, Run, Stop};
use crate::coherence::fids::fid_of;
use crate::coherence::names::NameRequest;
use crate::coherence::op::Task;
use crate::coherence::request::{ObjectLocks, Request, Wants};
use crate::coherence::world::World;

/// The kernel uses what it looked up within this time.
const HELD: Duration = Duration::from_secs(1);
/// The longest time that the kernel's walk of a path takes after it has looked up the last name.
const WALK: Duration = Duration::from_millis(100);

/// Whether a directory that may have moved still has the name by which the kernel reached it. If so, and its name is
/// locked again, this counts as a new lookup by the kernel.
pub(super) fn still_named(cx: &mut Cx<'_>, ino: u64) -> Run<bool> {
    let Some(node) = cx.w.nodes.get_mut(ino) else { return Ok(false) };
    let Some((parent, name)) = node.dir.as_ref().and_then(|dir| dir.named.clone()) else {
        node.kernel.looked_up();
        return Ok(false);
    };
    let parent_fid = fid_of(parent)?;
    cx.set_memo(Step::NamedOf, ino);
    let place = stripes::of_name(cx, parent, &name)?;
    let dest = place.dest;
    let cred = cx.cred().clone();
    let rep = cx.rpc_object(Step::Named, dest, Opcode::MdsLookup, |w, _| {
        let mut wants = Wants::default();
        let want = Some(wants.locks(w, dest, ObjectLocks::ANY, false, Some(false)));
        Request::new(&LookupReq { parent: place.fid, name: name.clone(), want, cred: Some(cred) }).wanting(wants)
    });
    let found = rep.and_then(|rep| super::lookup::object_of(cx, &rep, parent_fid, &name));
    if found == Err(Stop::Wait) {
        return Err(Stop::Wait);
    }
    cx.forget(Step::Named);
    cx.forget(Step::NamedOf);
    cx.forget(Step::Elsewhere);
    let same = found.is_ok_and(|found| found.is_some_and(|fid| fid.ino() == ino));
    if let Some(node) = cx.w.nodes.get_mut(ino) {
        let locked = node.has(bits::LOOKUP);
        if same && !locked {
            node.kernel.names_in_doubt();
        } else {
            node.kernel.looked_up();
        }
        if same && locked && node.kernel.names().is_empty() {
            stdx::mark!("still_named");
            node.kernel.name(parent, &name);
        }
    }
    Ok(same)
}

/// Whether a lookup in this directory also opens what it finds.
pub(super) fn holds(cx: &Cx<'_>, parent: u64) -> bool {
    let wanted = || {
        let directory = cx.w.nodes.get(parent).and_then(|node| node.dir.as_ref());
        directory.and_then(|dir| dir.hold_until).is_some_and(|until| cx.now() < until)
    };
    cx.began(Step::Hold) || !cx.began(Step::Main) && wanted()
}

/// A lookup that keeps what it finds open for a while. `place`: the directory or stripe that has the name.
pub(super) fn find_and_hold(cx: &mut Cx<'_>, parent: u64, place: Place, name: &Bytes) -> Run<Stat> {
    let Place { ino: dir, fid, dest } = place;
    let rep = cx.rpc_object(Step::Hold, dest, Opcode::MdsReint, |w, op| {
        let mut wants = Wants::default();
        let want = wants.locks(w, dest, ObjectLocks::ANY, false, Some(false));
        let open = OpenOp { parent: Some(fid), name: name.clone(), flags: o::PATH, ..OpenOp::default() };
        let asked = NameRequest::now(w, dir, name);
        Request::new(&op.change(Some(want), Reint::Open(open))).wanting(wants).opening().then_learn(
            move |w, rep, reply| {
                if let Some(attr) = &rep.attr {
                    stdx::mark!("lookup_that_opens");
                    asked.found(w, rep, reply.number, attr);
                    held(w, dest, attr.fid, reply.header.xid);
                }
            },
        )
    })?;
    // One on another metadata target is not held.
    let fid = match super::lookup::object_of(cx, &rep, fid_of(parent)?, name) {
        Err(Stop::Errno(Errno::ESTALE)) => {
            cx.forget(Step::Hold);
            return super::lookup::look_again(cx, parent, name);
        }
        found => found?.ok_or(Errno::EPROTO)?,
    };
    super::stat_of_name(cx, fid.ino())
}

/// A request has opened an object so that it lasts.
fn held(w: &mut World, dest: Dest, fid: Fid, open_xid: Xid) {
    let now = w.now;
    let node = w.nodes.obtain(fid);
    node.kernel.expect_return(now + WALK);
    w.nodes.hold(fid.ino(), Hold::Open);
    let closing = Box::new(Closing { ino: fid.ino(), fid, dest, open_xid });
    w.spawn(Task::Hold { closing, until: now + HELD });
}

/// Background: closes what a lookup opened, once the time is over.
pub(super) fn hold(cx: &mut Cx<'_>, closing: &Closing, until: Instant) -> Run<()> {
    if cx.now() < until && !cx.w.unmounting {
        cx.w.set_timer(until);
        return Err(cx.wait(WaitKey::Timer));
    }
    closes::add(cx.w, closing.clone());
    Ok(())
}
