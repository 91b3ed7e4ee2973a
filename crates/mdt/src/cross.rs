//! Changes with parts on several metadata targets: what this target reads and changes for each act of a part.
//!
//! A part holds results: the whole inode of a new object, the name that an entry gets. So it can be applied long after it was
//! checked, whatever has become meanwhile of what was only read. What it holds keys for cannot have changed.

use crate::Mdt;
use crate::ops::subjects::{self, Fate, Subject};
use crate::ops::unlink::{Gone, drop_link};
use crate::ops::{Change, create};
use crate::tree::{self, Dir, Node};
use proto::connect::features;
use proto::msg::{
    Act, Attr, CreateOp, CrossAct, CrossPart, Elsewhere, LockMode, MakeAct, NameAct, ObjectRep, Policy, Resource,
    UnlinkAct, UnlinkOp, bits,
};
use proto::{ClientUuid, Errno, Fid, Operation};
use rules::access::{Capability, EXECUTE, WRITE};
use rules::mode::{S_IFDIR, S_IFMT, S_ISVTX};
use rules::{Caller, Object, names};
use schema::inode::DirState;
use schema::{Entry, Inode, Record, SeqGrant};
use target::{Cx, HeldKey, Hold, Reply, ShareKey, Stop};

/// The key of an object: that it exists, and what it is.
pub fn object_key(fid: Fid) -> HeldKey {
    HeldKey { fid, sub: 1 }
}

/// The key of a name in a directory, whether or not it has an entry.
pub fn name_key(dir: Fid, name: &[u8]) -> HeldKey {
    HeldKey { fid: dir, sub: ShareKey::name(dir, name).0 | 2 }
}

/// What a part reads and changes. The times and counts of a directory commute, so a name only reads its directory.
pub fn keys(part: &CrossPart) -> Vec<(HeldKey, Hold)> {
    let of_name = |act: &NameAct| {
        vec![(object_key(act.parent), Hold::Shared), (name_key(act.parent, &act.name), Hold::Exclusive)]
    };
    let of = |act: &CrossAct| match &act.act {
        Some(Act::AddName(act) | Act::RemoveName(act)) => of_name(act),
        Some(Act::Make(act)) => vec![(object_key(act.fid), Hold::Exclusive)],
        Some(Act::Unlink(act)) => vec![(object_key(act.fid), Hold::Exclusive)],
        None => Vec::new(),
    };
    part.acts.iter().flat_map(of).collect()
}

fn part(mdt: u32, now_ns: i64, act: Act) -> CrossPart {
    CrossPart { mdt, acts: vec![CrossAct { now_ns, act: Some(act) }] }
}

/// Makes a directory on another target than its name: the checks of this target, and the parts.
pub fn mkdir(mdt: &Mdt, cx: &mut Cx<'_>, change: &Change<'_>, op: &CreateOp, on: u32) -> Result<Reply, Stop> {
    if op.mode & S_IFMT != S_IFDIR {
        return Err(Errno::EPROTO.into());
    }
    let mut dir = Dir::find(cx, op.parent)?;
    mdt.free_place(cx, &change.caller, &dir.node, &op.name)?;
    rules::create::check(&change.caller, &dir.node.inode, op.mode, op.rdev)?;
    may_be_remote(mdt, &change.caller)?;
    let client = cx.client().ok_or(Errno::ENOTCONN)?;
    dir.claim(cx)?;
    let parent = &dir.node.inode;
    let inode = create::new_inode(mdt, change, parent, &create::New::of(op, false));
    let name = NameAct { parent: op.parent, name: op.name.clone(), fid: op.fid, mode: inode.mode, mdt: on };
    let make = MakeAct { fid: op.fid, client: client.to_bytes(), inode: inode.encode_record() };
    let own = cx.name().index.0;
    Err(cx.cross(vec![part(own, change.now_ns, Act::AddName(name)), part(on, change.now_ns, Act::Make(make))]))
}

/// Whether the caller may place directories on other targets than their parents.
fn may_be_remote(mdt: &Mdt, caller: &Caller<'_>) -> Result<(), Errno> {
    let group = u32::try_from(mdt.settings.enable_remote_dir_gid);
    let allowed = mdt.settings.enable_remote_dir
        && (caller.capable(Capability::SysAdmin)
            || group.is_ok_and(|gid| gid != 0 && caller.in_group(gid))
            || group.is_err());
    if allowed { Ok(()) } else { Err(Errno::EPERM) }
}

/// Removes the name of an object on another target: the checks of this target, and the parts.
pub fn unlink(
    cx: &mut Cx<'_>,
    change: &Change<'_>,
    op: &UnlinkOp,
    dir: &mut Dir,
    entry: &Entry,
    on: u32,
) -> Result<Stop, Stop> {
    let parent = &dir.node.inode;
    change.caller.need(parent, WRITE | EXECUTE)?;
    // Whether a sticky bit protects a directory depends on its owner, which its own target knows; that error comes first.
    let kept = parent.mode & S_ISVTX != 0 && change.caller.uid() != parent.uid;
    if !op.rmdir && (!kept || change.caller.capable(Capability::Fowner)) {
        return Err(Errno::EISDIR.into());
    }
    let (parent_mode, parent_uid) = (parent.mode, parent.uid);
    dir.claim(cx)?;
    let (parent, name, fid) = (op.parent, op.name.clone(), entry.object());
    let cred = Some(change.caller.cred().clone());
    let own = cx.name().index.0;
    let removed = NameAct { parent, name: name.clone(), fid, mode: S_IFDIR, mdt: on };
    let lost = UnlinkAct { fid, parent, name, parent_mode, parent_uid, rmdir: op.rmdir, cred };
    Ok(cx.cross(vec![part(own, change.now_ns, Act::RemoveName(removed)), part(on, change.now_ns, Act::Unlink(lost))]))
}

/// Checks a part of another target's change, and calls back conflicting locks. Returns the object as it will be, unless the
/// coordinator has it in the parts.
pub fn prepare(cx: &mut Cx<'_>, part: &CrossPart) -> Result<Option<Attr>, Stop> {
    let mut attr = None;
    for step in &part.acts {
        match step.act.as_ref().ok_or(Errno::EPROTO)? {
            Act::Make(act) => check_make(cx, act)?,
            Act::Unlink(act) => attr = Some(check_unlink(cx, act, step.now_ns)?),
            Act::AddName(_) | Act::RemoveName(_) => return Err(Errno::EOPNOTSUPP.into()),
        }
    }
    Ok(attr)
}

/// The inode in a part.
fn inode_of(act: &MakeAct) -> Result<Inode, Errno> {
    let inode = Inode::decode_record(&act.inode).map_err(|_| Errno::EPROTO)?;
    if inode.fid == act.fid && inode.is_dir() { Ok(inode) } else { Err(Errno::EPROTO) }
}

fn check_make(cx: &mut Cx<'_>, act: &MakeAct) -> Result<(), Stop> {
    inode_of(act)?;
    let client = ClientUuid::from_bytes(&act.client).ok_or(Errno::EPROTO)?;
    create::may_use_fid(cx, act.fid, client).map(drop)
}

fn check_unlink(cx: &mut Cx<'_>, act: &UnlinkAct, now_ns: i64) -> Result<Attr, Stop> {
    let node = tree::find(cx, act.fid)?.ok_or(Errno::ENOENT)?;
    if node.inode.is_dir() {
        tree::unleased(cx, act.fid)?;
    }
    // The directory's own target has checked its permission bits.
    let dir = Object { mode: act.parent_mode | 0o777, uid: act.parent_uid, ..Object::from(&node.inode) };
    let dir = Object { access_list: None, ..dir };
    names::may_unlink(&Caller::new(act.cred.as_ref()), dir, &node.inode, act.rmdir)?;
    if node.inode.is_dir() && node.inode.dir.entries > 0 {
        return Err(tree::not_empty(cx, &node));
    }
    if !node.inode.links.contains(act.parent, &act.name) && !node.inode.links.overflow {
        let line = format!("object {} lacks its name in directory {}: run lfsck", act.fid, act.parent);
        cx.log(target::LogLevel::Error, line);
        return Err(Errno::EIO.into());
    }
    cx.revoke_all(Resource::inode(act.fid), LockMode::Ex, Policy::Bits(bits::LOOKUP | bits::UPDATE))?;
    let mut after = node;
    after.inode.nlink = names::links_after_removal(&after.inode).unwrap_or(0);
    after.inode.changed(now_ns);
    Ok(after.inode.attr())
}

/// Executes this target's part. `attr`: the object, as its own target has described it.
pub fn apply(mdt: &mut Mdt, cx: &mut Cx<'_>, parts: &[CrossPart], attr: Option<Attr>) -> Result<Reply, Stop> {
    let own = parts.first().ok_or(Errno::EPROTO)?;
    let mut reply = Reply::empty();
    for step in &own.acts {
        match step.act.as_ref().ok_or(Errno::EPROTO)? {
            Act::Make(act) => make(mdt, cx, act)?,
            Act::Unlink(act) => lose_name(mdt, cx, act, step.now_ns)?,
            Act::AddName(act) => reply = add_name(mdt, cx, act, step.now_ns, parts)?,
            Act::RemoveName(act) => reply = remove_name(mdt, cx, act, step.now_ns, attr.clone())?,
        }
    }
    Ok(reply)
}

fn make(mdt: &mut Mdt, cx: &mut Cx<'_>, act: &MakeAct) -> Result<(), Stop> {
    let inode = Inode { dir: DirState::default(), ..inode_of(act)? };
    let mut grant = cx.get::<SeqGrant>(&act.fid.seq)?.unwrap_or_default();
    grant.mark_used(act.fid.oid);
    let mut node = Node { ino: 0, inode };
    // The directory's own region: its parent's is on another target.
    node.ino = tree::allocate_ino(cx, &mut node)?;
    subjects::note(cx, &[Subject::New(act.fid)])?;
    create::put_new(cx, &grant, &mut node);
    mdt.known.learn(node.ino, []);
    Ok(())
}

fn lose_name(mdt: &mut Mdt, cx: &mut Cx<'_>, act: &UnlinkAct, now_ns: i64) -> Result<(), Stop> {
    let mut node = tree::node(cx, act.fid)?;
    subjects::note_victim(cx, &node)?;
    node.inode.links.remove(act.parent, &act.name);
    let gone: Gone = drop_link(mdt, cx, &mut node, now_ns)?;
    mdt.link_dropped(cx, &node, gone);
    Ok(())
}

fn add_name(mdt: &mut Mdt, cx: &mut Cx<'_>, act: &NameAct, now_ns: i64, parts: &[CrossPart]) -> Result<Reply, Stop> {
    let mut dir = tree::node(cx, act.parent)?;
    let place = mdt.place(cx, &dir, &act.name)?;
    subjects::note(cx, &[Subject::Name { parent: act.parent, name: &act.name, fate: Fate::Taken }])?;
    let kind = (act.mode & S_IFMT) >> 12;
    let entry = Entry { name: act.name.clone(), fid: Some(act.fid), kind, ino: 0, mdt: Some(act.mdt) };
    tree::put_entry_of(cx, &mut dir, &place, entry);
    tree::count_directories(cx, &mut dir, i32::from(act.mode & S_IFMT == S_IFDIR));
    dir.inode.content_changed(now_ns);
    dir.put(cx);
    mdt.entry_taken(place.key);
    cx.count(Operation::Mkdir);
    let made = |part: &CrossPart| {
        part.acts.iter().find_map(|step| match &step.act {
            Some(Act::Make(act)) => inode_of(act).ok().map(|inode| inode.attr()),
            _ => None,
        })
    };
    Ok(reply_to(parts.iter().find_map(made), &dir).with_record(u64::from(act.mode)))
}

fn remove_name(mdt: &mut Mdt, cx: &mut Cx<'_>, act: &NameAct, now_ns: i64, attr: Option<Attr>) -> Result<Reply, Stop> {
    let mut dir = tree::node(cx, act.parent)?;
    let place = mdt.place(cx, &dir, &act.name)?;
    if place.entry.as_ref().is_none_or(|entry| entry.object() != act.fid) {
        return Err(Errno::EIO.into());
    }
    let tombstone = mdt.chain_continues(cx, &crate::known::Pending::default(), &place)?;
    subjects::note(cx, &[Subject::Name { parent: act.parent, name: &act.name, fate: Fate::Freed }])?;
    tree::remove_entry(cx, &mut dir, &place, tombstone);
    tree::count_directories(cx, &mut dir, -i32::from(act.mode & S_IFMT == S_IFDIR));
    dir.inode.content_changed(now_ns);
    dir.put(cx);
    mdt.entry_freed(place.key, tombstone);
    cx.count(Operation::Rmdir);
    Ok(reply_to(attr, &dir))
}

/// The reply to the client. It has no locks: none is granted on what is under change.
fn reply_to(attr: Option<Attr>, dir: &Node) -> Reply {
    Reply::new(&ObjectRep { attr, parent_attr: Some(dir.inode.attr()), ..ObjectRep::default() })
}

/// The target of a FID, if it is another one than this. Sequences in no range are of MDT0000.
pub fn elsewhere(mdt: &Mdt, cx: &Cx<'_>, fid: Fid) -> Option<u32> {
    let range = mdt.fldb.iter().find(|range| (range.start..range.end).contains(&fid.seq));
    let index = range.map_or(0, |range| range.mdt);
    (index != cx.name().index.0).then_some(index)
}

/// Tells a client on which target an object is. Errors: `EOPNOTSUPP` for a client that cannot look for it there.
pub fn sent_on(cx: &Cx<'_>, fid: Fid, mdt: u32) -> Result<Elsewhere, Stop> {
    match cx.client_has(features::DIR_STRIPE) {
        true => Ok(Elsewhere { fid, mdt }),
        false => Err(Errno::EOPNOTSUPP.into()),
    }
}
