//! Changes with parts on several metadata targets: what this target reads and changes for each act of a part.
//!
//! A part holds results: the whole inode of a new object, the name that an entry gets. So it can be applied long after it was
//! checked, whatever has become meanwhile of what was only read. What it holds keys for cannot have changed.
//!
//! The coordinator checks the rules. What they read of objects on other targets it asks for before ([`Looks`]), and the parts
//! check that it is still so. Where the rules need nothing of the other target but what it has itself, as in the removal of
//! a name, the other target checks them, and nothing has to be asked before.

mod apply;
mod check;
mod look;
pub mod relayout;
pub mod stripes;

pub use apply::apply;
pub use check::prepare;
pub use look::{End, Looks, look, show};

use crate::Mdt;
use crate::ops::{Change, create};
use crate::tree::{self, Dir, Node};
use prost::Message;
use proto::connect::features;
use proto::msg::{
    Act, CreateOp, CrossAct, CrossAnswer, CrossOperation, CrossPart, DirName, Elsewhere, LinkOp, LinksAct, MakeAct,
    NameAct, NamedObject, Removal, UnlinkOp,
};
use proto::{Errno, Fid};
use rules::access::{Capability, EXECUTE, WRITE};
use rules::mode::{S_IFDIR, S_IFMT, S_ISVTX};
use rules::{Caller, names, placement};
use schema::{Entry, Inode, Record};
use target::{Cx, HeldKey, Hold, Reply, ShareKey, Stop};

/// The most bytes that the parts of a change may take, all together. Each also has to fit into a frame.
const BYTES_MAX: usize = 1 << 20;

/// The key of an object: that it exists, and what it is.
pub fn object_key(fid: Fid) -> HeldKey {
    HeldKey { fid, sub: 1 }
}

/// The key of the parent of a directory. A directory that gets another parent holds it alone; the way up from its new parent
/// is held by sharers, so that no two renames make a loop.
pub fn parent_key(dir: Fid) -> HeldKey {
    HeldKey { fid: dir, sub: 0 }
}

/// The key of a name in a directory, whether or not it has an entry.
pub fn name_key(dir: Fid, name: &[u8]) -> HeldKey {
    HeldKey { fid: dir, sub: ShareKey::name(dir, name).0 | 2 }
}

/// What a part reads and changes. The times and counts of a directory commute, so a name only reads its directory.
pub fn keys(part: &CrossPart) -> Vec<(HeldKey, Hold)> {
    let of = |act: &CrossAct| match &act.act {
        Some(Act::Name(act)) => {
            let DirName { parent, name } = &act.name;
            vec![(object_key(*parent), Hold::Shared), (name_key(*parent, name), Hold::Exclusive)]
        }
        Some(Act::Make(act)) => vec![(object_key(act.fid), Hold::Exclusive)],
        Some(Act::Links(act)) => {
            let moves = gets_another_parent(act).then_some((parent_key(act.fid), Hold::Exclusive));
            moves.into_iter().chain([(object_key(act.fid), Hold::Exclusive)]).collect()
        }
        Some(Act::Parent(act)) => vec![(parent_key(act.fid), Hold::Shared)],
        Some(Act::Attrs(act)) => vec![(object_key(act.fid), Hold::Exclusive)],
        Some(Act::Relayout(act)) => {
            act.on(part.mdt).into_iter().map(|fid| (object_key(fid), Hold::Exclusive)).collect()
        }
        None => Vec::new(),
    };
    let mut keys: Vec<(HeldKey, Hold)> = part.acts.iter().flat_map(of).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// The parts of a change, this target's first.
#[derive(Debug)]
pub struct Parts {
    now_ns: i64,
    parts: Vec<CrossPart>,
}

impl Parts {
    /// Without any acts.
    pub fn new(cx: &Cx<'_>, change: &Change<'_>, answer: CrossAnswer) -> Parts {
        let own = CrossPart { mdt: cx.name().index.0, acts: Vec::new(), answer: Some(answer) };
        Parts { now_ns: change.now_ns, parts: vec![own] }
    }

    /// The same for a change of this target's own.
    pub fn of_target(cx: &Cx<'_>, operation: CrossOperation) -> Parts {
        let own = CrossPart { mdt: cx.name().index.0, acts: Vec::new(), answer: Some(answer(operation)) };
        Parts { now_ns: 0, parts: vec![own] }
    }

    /// Adds an act on a target.
    pub fn add(&mut self, mdt: u32, act: impl Into<Act>) {
        let act = CrossAct { now_ns: self.now_ns, act: Some(act.into()) };
        match self.parts.iter_mut().find(|part| part.mdt == mdt) {
            Some(part) => part.acts.push(act),
            None => self.parts.push(CrossPart { mdt, acts: vec![act], answer: None }),
        }
    }

    /// Asks for the change. See [`Cx::cross`]. Errors: `E2BIG` if the record of its parts would be too long.
    pub fn make<T>(self, cx: &mut Cx<'_>) -> Result<T, Stop> {
        let bytes: usize = self.parts.iter().map(Message::encoded_len).sum();
        match bytes {
            0..=BYTES_MAX => Err(cx.cross(self.parts)),
            _ => Err(Errno::E2BIG.into()),
        }
    }
}

/// Makes a directory of which not everything is on this target: it lies on another one, or has further stripes. The checks of
/// this target, and the parts.
pub fn mkdir(mdt: &Mdt, cx: &mut Cx<'_>, change: &Change<'_>, op: &CreateOp) -> Result<Reply, Stop> {
    if op.mode & S_IFMT != S_IFDIR {
        return Err(Errno::EPROTO.into());
    }
    let own = cx.name().index.0;
    let on = op.mdt.unwrap_or(own);
    let lmv = stripes::new_layout(cx, op, on)?;
    let mut dir = Dir::find(cx, op.parent)?;
    mdt.free_place(cx, &change.caller, &dir.node, &op.name)?;
    rules::create::check(&change.caller, &dir.node.inode, op.mode, op.rdev)?;
    if !is_by_default(mdt, op, on, &dir.node.inode) {
        may_be_remote(mdt, &change.caller)?;
    }
    if lmv.is_some() {
        stripes::may_be_striped(mdt, op, on)?;
    }
    let client = cx.client().ok_or(Errno::ENOTCONN)?;
    let inode = Inode { lmv, ..create::new_inode(mdt, change, &dir.node.inode, &create::New::of(op, false)) };
    let objects = stripes::new_objects(op, on, inode);
    for (_, inode) in objects.iter().filter(|(mdt, _)| *mdt == own) {
        create::may_use_fid(cx, inode.fid, client)?;
    }
    dir.claim(cx)?;
    let mode = objects[0].1.mode;
    let answer = CrossAnswer {
        object: Some(op.fid),
        parent: Some(op.parent),
        record: mode.into(),
        ..answer(CrossOperation::Mkdir)
    };
    let mut parts = Parts::new(cx, change, answer);
    let name = DirName { parent: op.parent, name: op.name.clone() };
    let after = Some(NamedObject { fid: op.fid, mode, mdt: on });
    for (mdt, inode) in &objects {
        parts.add(*mdt, MakeAct { fid: inode.fid, client: client.to_bytes(), inode: inode.encode_record() });
    }
    // After the object of its entry, which has its place then.
    parts.add(own, NameAct { name, after, ..NameAct::default() });
    parts.make(cx)
}

/// Whether a directory gets another parent.
pub fn gets_another_parent(act: &LinksAct) -> bool {
    let parent = |name: &Option<DirName>| name.as_ref().map(|name| name.parent);
    act.kind == S_IFDIR && act.lost.is_some() && act.gained.is_some() && parent(&act.lost) != parent(&act.gained)
}

/// An answer without attributes.
pub fn answer(operation: CrossOperation) -> CrossAnswer {
    CrossAnswer { operation: operation as i32, ..CrossAnswer::default() }
}

/// Whether a directory is placed as the default of the directory above says: whoever set that was allowed to.
fn is_by_default(mdt: &Mdt, op: &CreateOp, on: u32, parent: &Inode) -> bool {
    let Some(default) = parent.dir_default.as_deref() else { return false };
    let mdts: Vec<u32> = core::iter::once(on).chain(op.stripes.iter().map(|stripe| stripe.mdt)).collect();
    mdt.settings.enable_remote_dir && placement::agrees(default, &mdts, op.hash)
}

/// Whether the caller may place directories on other targets than their parents.
pub fn may_be_remote(mdt: &Mdt, caller: &Caller<'_>) -> Result<(), Errno> {
    let group = u32::try_from(mdt.settings.enable_remote_dir_gid);
    let allowed = mdt.settings.enable_remote_dir
        && (caller.capable(Capability::SysAdmin)
            || group.is_ok_and(|gid| gid != 0 && caller.in_group(gid))
            || group.is_err());
    if allowed { Ok(()) } else { Err(Errno::EPERM) }
}

/// Removes the name of an object on another target, or of a striped directory on this one (`here`): the checks of this target,
/// and the parts.
pub fn unlink<T>(
    cx: &mut Cx<'_>,
    change: &Change<'_>,
    op: &UnlinkOp,
    dir: &mut Dir,
    (entry, here): (&Entry, Option<&Node>),
) -> Result<T, Stop> {
    let own = cx.name().index.0;
    let parent = &dir.node.inode;
    let before = named(cx, entry);
    let stripes = match here {
        Some(child) => {
            names::may_unlink(&change.caller, parent, &child.inode, op.rmdir)?;
            child.inode.stripes().to_vec()
        }
        None => {
            may_unlink_there(change, op, parent, before.mode)?;
            stripes::of_removed(cx, op, &before)?
        }
    };
    if let Some(child) = here.filter(|child| child.inode.dir.entries > 0) {
        return Err(tree::not_empty(cx, child));
    }
    let stripes_are_free = stripes::may_go(cx, &stripes)?;
    let child_is_free = here.map_or(Ok(()), |child| tree::revoke_named(cx, child, op.reported));
    let cred = Some(change.caller.cred().clone());
    let (parent_mode, parent_uid, rmdir) = (parent.mode, parent.uid, op.rmdir);
    let removal = here.is_none().then_some(Removal { parent_mode, parent_uid, rmdir, cred });
    let lost = Some(DirName { parent: parent.master(), name: op.name.clone() });
    dir.claim(cx)?;
    child_is_free.and(stripes_are_free)?;
    let operation = if op.rmdir { CrossOperation::Rmdir } else { CrossOperation::Unlink };
    let answer = CrossAnswer { object: Some(before.fid), parent: Some(op.parent), ..answer(operation) };
    let mut parts = Parts::new(cx, change, answer);
    let name = DirName { parent: op.parent, name: op.name.clone() };
    parts.add(own, NameAct { name, before: Some(before), ..NameAct::default() });
    parts.add(before.mdt, LinksAct { lost, removal, stripes: stripes.clone(), ..links(before.fid) });
    stripes::remove(&mut parts, &stripes);
    parts.make(cx)
}

/// What this target knows of whether a name of an object on another one may be removed.
fn may_unlink_there(change: &Change<'_>, op: &UnlinkOp, parent: &Inode, kind: u32) -> Result<(), Errno> {
    change.caller.need(parent, WRITE | EXECUTE)?;
    // Whether a sticky bit protects an object depends on its owner, which its own target knows; that error comes first.
    let kept = parent.mode & S_ISVTX != 0 && change.caller.uid() != parent.uid;
    let sure = !kept || change.caller.capable(Capability::Fowner);
    match (op.rmdir, kind == S_IFDIR) {
        (true, false) if sure => Err(Errno::ENOTDIR),
        (false, true) if sure => Err(Errno::EISDIR),
        _ => Ok(()),
    }
}

/// Gives a further name to an object on another target: the checks of this target, and the parts.
pub fn link(mdt: &Mdt, cx: &mut Cx<'_>, change: &Change<'_>, op: &LinkOp, on: u32) -> Result<Reply, Stop> {
    if !cx.client_has(features::DIR_STRIPE) {
        return Err(Errno::EXDEV.into());
    }
    if op.kind & !S_IFMT != 0 || op.kind == 0 {
        return Err(Errno::EPROTO.into());
    }
    let mut dir = Dir::find(cx, op.parent)?;
    mdt.free_place(cx, &change.caller, &dir.node, &op.name)?;
    change.caller.need(&dir.node.inode, WRITE | EXECUTE)?;
    if op.kind == S_IFDIR {
        return Err(Errno::EPERM.into());
    }
    dir.claim(cx)?;
    let answer = CrossAnswer {
        object: Some(op.fid),
        parent: Some(op.parent),
        record: op.kind.into(),
        ..answer(CrossOperation::Link)
    };
    let mut parts = Parts::new(cx, change, answer);
    let name = DirName { parent: op.parent, name: op.name.clone() };
    let after = Some(NamedObject { fid: op.fid, mode: op.kind, mdt: on });
    let gained = Some(DirName { parent: dir.node.inode.master(), name: op.name.clone() });
    let links = LinksAct { gained, kind: op.kind, ..links(op.fid) };
    parts.add(cx.name().index.0, NameAct { name, after, ..NameAct::default() });
    parts.add(on, links);
    parts.make(cx)
}

/// An act that changes no names of an object.
pub fn links(fid: Fid) -> LinksAct {
    LinksAct { fid, ..LinksAct::default() }
}

/// What an entry leads to.
pub fn named(cx: &Cx<'_>, entry: &Entry) -> NamedObject {
    NamedObject { fid: entry.object(), mode: entry.kind << 12, mdt: entry.mdt.unwrap_or(cx.name().index.0) }
}

/// The target of a FID, if it is another one than this, as far as this target knows. Sequences in no range are of MDT0000.
pub fn known_elsewhere(mdt: &Mdt, cx: &Cx<'_>, fid: Fid) -> Option<u32> {
    let range = mdt.fldb.iter().find(|range| (range.start..range.end).contains(&fid.seq));
    let index = range.map_or(0, |range| range.mdt);
    (index != cx.name().index.0).then_some(index)
}

/// The target of a FID that is not here, if it is another one than this. Ranges are granted in ascending order: a sequence after
/// all known ones may have been granted a moment ago, so that this target has not heard of it.
pub fn elsewhere(mdt: &Mdt, cx: &mut Cx<'_>, fid: Fid) -> Result<Option<u32>, Stop> {
    if mdt.fldb.iter().map(|range| range.end).max().is_some_and(|end| fid.seq >= end) && !cx.is_replay() {
        cx.latest_config()?;
    }
    Ok(known_elsewhere(mdt, cx, fid))
}

/// Tells a client on which target an object is. Errors: `EOPNOTSUPP` for a client that cannot look for it there.
pub fn sent_on(cx: &Cx<'_>, object: NamedObject) -> Result<Elsewhere, Stop> {
    let NamedObject { fid, mode, mdt } = object;
    match cx.client_has(features::DIR_STRIPE) {
        true => Ok(Elsewhere { fid, mdt, kind: mode & S_IFMT }),
        false => Err(Errno::EOPNOTSUPP.into()),
    }
}
