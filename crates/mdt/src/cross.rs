//! Changes with parts on several metadata targets: what this target reads and changes for each act of a part.
//!
//! A part holds results: the whole inode of a new object, the name that an entry gets. So it can be applied long after it was
//! checked, whatever has become meanwhile of what was only read. What it holds keys for cannot have changed.
//!
//! The coordinator checks the rules. What they read of objects on other targets it asks for before ([`Looks`]), and the parts
//! check that it is still so. Where the rules need nothing of the other target but what it has itself, as in the removal of
//! a name, the other target checks them, and nothing has to be asked before.

use crate::known::Pending;
use crate::ops::subjects::{self, Fate, Subject};
use crate::ops::unlink::{Gone, drop_link};
use crate::ops::{Change, create};
use crate::tree::{self, Dir, Node};
use crate::{Mdt, grants};
use bytes::Bytes;
use proto::connect::LINK_MAX;
use proto::connect::features;
use proto::msg::{
    Act, Attr, CreateOp, CrossAct, CrossAnswer, CrossLookRep, CrossLookReq, CrossObject, CrossOperation, CrossPart,
    DirName, Elsewhere, LinkOp, LinksAct, LockMode, MakeAct, NameAct, NamedObject, ObjectRep, Policy, Removal,
    Resource, SeenObject, UnlinkOp, bits,
};
use proto::{ClientUuid, Errno, Fid, Operation};
use rules::access::{Capability, EXECUTE, WRITE};
use rules::mode::{S_IFDIR, S_IFMT, S_ISVTX};
use rules::{Caller, Object, names};
use schema::inode::DirState;
use schema::{Entry, EntryKey, Inode, LinkEa, Oi, Record, SeqGrant};
use target::{Cx, HeldKey, Hold, Reply, ShareKey, Stop, Vote};

/// How often a change looks at other targets before it is refused because what is there changes all the time.
const LOOKS_MAX: u32 = 64;

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
    let of = |act: &CrossAct| match &act.act {
        Some(Act::Name(act)) => {
            let DirName { parent, name } = &act.name;
            vec![(object_key(*parent), Hold::Shared), (name_key(*parent, name), Hold::Exclusive)]
        }
        Some(Act::Make(act)) => vec![(object_key(act.fid), Hold::Exclusive)],
        Some(Act::Links(act)) => vec![(object_key(act.fid), Hold::Exclusive)],
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

    /// Adds an act on a target.
    pub fn add(&mut self, mdt: u32, act: impl Into<Act>) {
        let act = CrossAct { now_ns: self.now_ns, act: Some(act.into()) };
        match self.parts.iter_mut().find(|part| part.mdt == mdt) {
            Some(part) => part.acts.push(act),
            None => self.parts.push(CrossPart { mdt, acts: vec![act], answer: None }),
        }
    }

    /// Asks for the change. See [`Cx::cross`].
    pub fn make(self, cx: &mut Cx<'_>) -> Stop {
        cx.cross(self.parts)
    }
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
    let inode = create::new_inode(mdt, change, &dir.node.inode, &create::New::of(op, false));
    let answer = CrossAnswer {
        object: Some(op.fid),
        parent: Some(op.parent),
        record: inode.mode.into(),
        ..answer(CrossOperation::Mkdir)
    };
    let mut parts = Parts::new(cx, change, answer);
    let name = DirName { parent: op.parent, name: op.name.clone() };
    let after = Some(NamedObject { fid: op.fid, mode: inode.mode, mdt: on });
    parts.add(cx.name().index.0, NameAct { name, before: None, after, seen: None });
    parts.add(on, MakeAct { fid: op.fid, client: client.to_bytes(), inode: inode.encode_record() });
    Err(parts.make(cx))
}

/// An answer without attributes.
pub fn answer(operation: CrossOperation) -> CrossAnswer {
    CrossAnswer { operation: operation as i32, ..CrossAnswer::default() }
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
    // Whether a sticky bit protects an object depends on its owner, which its own target knows; that error comes first.
    let kept = parent.mode & S_ISVTX != 0 && change.caller.uid() != parent.uid;
    let sure = !kept || change.caller.capable(Capability::Fowner);
    let before = named(cx, entry);
    match (op.rmdir, before.mode == S_IFDIR) {
        (true, false) if sure => return Err(Errno::ENOTDIR.into()),
        (false, true) if sure => return Err(Errno::EISDIR.into()),
        _ => {}
    }
    let cred = Some(change.caller.cred().clone());
    let removal = Removal { parent_mode: parent.mode, parent_uid: parent.uid, rmdir: op.rmdir, cred };
    dir.claim(cx)?;
    let operation = if op.rmdir { CrossOperation::Rmdir } else { CrossOperation::Unlink };
    let answer = CrossAnswer { object: Some(before.fid), parent: Some(op.parent), ..answer(operation) };
    let mut parts = Parts::new(cx, change, answer);
    let name = DirName { parent: op.parent, name: op.name.clone() };
    let links = LinksAct { lost: Some(name.clone()), removal: Some(removal), ..links(before.fid) };
    parts.add(cx.name().index.0, NameAct { name, before: Some(before), after: None, seen: None });
    parts.add(on, links);
    Ok(parts.make(cx))
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
    let links = LinksAct { gained: Some(name.clone()), kind: op.kind, ..links(op.fid) };
    parts.add(cx.name().index.0, NameAct { name, before: None, after, seen: None });
    parts.add(on, links);
    Err(parts.make(cx))
}

/// An act that changes no names of an object.
pub fn links(fid: Fid) -> LinksAct {
    LinksAct { fid, ..LinksAct::default() }
}

/// What an entry leads to.
pub fn named(cx: &Cx<'_>, entry: &Entry) -> NamedObject {
    NamedObject { fid: entry.object(), mode: entry.kind << 12, mdt: entry.mdt.unwrap_or(cx.name().index.0) }
}

/// What the rules read of an object.
fn seen(inode: &Inode) -> SeenObject {
    let object = Object::from(inode);
    SeenObject {
        mode: object.mode,
        uid: object.uid,
        gid: object.gid,
        access_list: object.access_list.map(Bytes::copy_from_slice),
        is_full: inode.is_dir() && inode.dir.entries > 0,
    }
}

/// A directory or object that a change concerns.
#[derive(Debug)]
pub enum End {
    /// It is on this target.
    Here(Node),
    /// It is on another one, which has described it.
    There {
        /// Its target.
        mdt: u32,
        /// Its FID.
        fid: Fid,
        /// What it is.
        seen: SeenObject,
    },
}

impl End {
    /// Its FID.
    pub fn fid(&self) -> Fid {
        match self {
            End::Here(node) => node.fid(),
            End::There { fid, .. } => *fid,
        }
    }

    /// What the rules read of it. It exists, so it has links; how many is not known of an object on another target.
    pub fn object(&self) -> Object<'_> {
        match self {
            End::Here(node) => (&node.inode).into(),
            End::There { seen, .. } => Object {
                mode: seen.mode,
                uid: seen.uid,
                gid: seen.gid,
                nlink: 2,
                access_list: seen.access_list.as_deref(),
                ..Object::default()
            },
        }
    }

    /// Whether it is a directory with entries.
    pub fn is_full(&self) -> bool {
        match self {
            End::Here(node) => node.inode.dir.entries > 0,
            End::There { seen, .. } => seen.is_full,
        }
    }

    /// The object, if it is on this target.
    pub fn here(&self) -> Option<&Node> {
        match self {
            End::Here(node) => Some(node),
            End::There { .. } => None,
        }
    }

    /// The index of its target.
    pub fn mdt(&self, cx: &Cx<'_>) -> u32 {
        match self {
            End::Here(_) => cx.name().index.0,
            End::There { mdt, .. } => *mdt,
        }
    }

    /// What its target has to find.
    pub fn seen(&self) -> Option<SeenObject> {
        match self {
            End::Here(_) => None,
            End::There { seen, .. } => Some(seen.clone()),
        }
    }
}

/// What a change has read on other targets, without holding anything there.
///
/// An error is answered only if two readings after each other are the same, and the check between them, with what is on this
/// target, has found that error. Then there was a moment at which all was as the check has seen it.
#[derive(Debug, Default)]
pub struct Looks {
    earlier: u32,
    errno: i32,
    before: Vec<Result<CrossLookRep, Errno>>,
    now: Vec<Result<CrossLookRep, Errno>>,
}

impl Looks {
    /// Reads a name, and an object.
    pub fn look(
        &mut self,
        cx: &mut Cx<'_>,
        mdt: u32,
        name: Option<DirName>,
        object: Option<Fid>,
    ) -> Result<CrossLookRep, Stop> {
        let question = CrossLookReq { name, object, earlier: self.earlier, errno: self.errno };
        let answer = match cx.look(mdt, &question) {
            Ok(rep) => Ok(rep),
            Err(Stop::Errno(errno)) => Err(errno),
            Err(Stop::Wait) => return Err(Stop::Wait),
        };
        self.now.push(answer.clone());
        Ok(answer?)
    }

    /// Reads an object.
    pub fn object(&mut self, cx: &mut Cx<'_>, mdt: u32, fid: Fid) -> Result<End, Stop> {
        let seen = self.look(cx, mdt, None, Some(fid))?.object.ok_or(Errno::EPROTO)?;
        Ok(End::There { mdt, fid, seen })
    }

    /// Whether this errno, 0 for none, may be answered. Otherwise everything has to be read again.
    pub fn may_answer(&mut self, errno: i32) -> bool {
        let repeated = self.earlier > 0 && self.now == self.before && self.errno == errno;
        if self.now.is_empty() || repeated || self.earlier == LOOKS_MAX || errno == Errno::EINPROGRESS.raw() {
            return true;
        }
        stdx::mark!("mdt.looks_again");
        (self.earlier, self.errno) = (self.earlier + 1, errno);
        self.before = core::mem::take(&mut self.now);
        false
    }
}

/// Shows a directory as changes of its names that are in doubt will leave it, after all others that are under way.
pub fn show(cx: &mut Cx<'_>, dir: Fid, attr: &mut Attr) -> Result<(), Stop> {
    for step in cx.shows_directory(dir)?.into_iter().flat_map(|part| part.acts) {
        let Some(Act::Name(act)) = step.act.filter(|act| matches!(act, Act::Name(act) if act.name.parent == dir))
        else {
            continue;
        };
        stdx::mark!("mdt.shown_in_doubt");
        let mut object = Object::without_list(attr);
        object.content_changed(step.now_ns);
        object.nlink = object.nlink.saturating_add_signed(more_directories(&act));
        object.show_in(attr);
    }
    Ok(())
}

/// How many directories more the directory of a name has after an act.
fn more_directories(act: &NameAct) -> i32 {
    let is_dir = |object: Option<NamedObject>| i32::from(object.is_some_and(|of| of.mode & S_IFMT == S_IFDIR));
    is_dir(act.after) - is_dir(act.before)
}

/// Describes what is here to another target.
pub fn look(mdt: &Mdt, cx: &mut Cx<'_>, question: &CrossLookReq) -> Result<Reply, Stop> {
    let mut rep = CrossLookRep::default();
    if let Some(DirName { parent, name }) = &question.name {
        let dir = tree::dir(cx, *parent)?;
        rep.dir = Some(seen(&dir.inode));
        let entry = match names::check(name).is_ok() && !names::is_dot(name) {
            true => mdt.place(cx, &dir, name)?.entry,
            false => None,
        };
        if let Some(entry) = entry {
            rep.named = Some(named(cx, &entry));
            if entry.mdt.is_none() {
                rep.object = Some(seen(&tree::losing_name(cx, &entry)?.inode));
            }
        }
    }
    if let Some(fid) = question.object {
        let node = tree::node(cx, fid)?;
        let node = tree::without_lease(cx, node)?;
        rep.object = Some(seen(&node.inode));
    }
    Ok(Reply::new(&rep))
}

/// Checks a part of another target's change, and calls back conflicting locks.
pub fn prepare(mdt: &Mdt, cx: &mut Cx<'_>, part: &CrossPart) -> Result<Vote, Stop> {
    let (mut objects, mut wanted) = (Vec::new(), Vec::new());
    for step in &part.acts {
        let checked = match step.act.as_ref().ok_or(Errno::EPROTO)? {
            Act::Make(act) => check_make(cx, act).map(|()| true)?,
            Act::Name(act) => check_name(mdt, cx, act, &mut wanted)?,
            Act::Links(act) => match check_links(mdt, cx, act, step.now_ns, &mut wanted)? {
                Some(object) => {
                    objects.push(object);
                    true
                }
                None => false,
            },
        };
        if !checked {
            return Ok(Vote::Changed);
        }
    }
    let mut free = Ok(());
    for (fid, bits) in wanted {
        free = free.and(cx.revoke_all(Resource::inode(fid), LockMode::Ex, Policy::Bits(bits)));
    }
    free.map(|()| Vote::Yes(objects))
}

/// The inode in a part.
fn inode_of(act: &MakeAct) -> Result<Inode, Errno> {
    let inode = Inode::decode_record(&act.inode).map_err(|_| Errno::EPROTO)?;
    if inode.fid == act.fid { Ok(inode) } else { Err(Errno::EPROTO) }
}

fn check_make(cx: &mut Cx<'_>, act: &MakeAct) -> Result<(), Stop> {
    inode_of(act)?;
    let client = ClientUuid::from_bytes(&act.client).ok_or(Errno::EPROTO)?;
    create::may_use_fid(cx, act.fid, client).map(drop)
}

/// Whether the object is what the coordinator has seen.
fn is_as_seen(inode: &Inode, expected: Option<&SeenObject>, loses_last_name: bool) -> bool {
    let Some(expected) = expected else { return true };
    let seen = seen(inode);
    // Only of an empty directory that goes does it matter how many entries there are.
    let is_full = if loses_last_name { seen.is_full } else { expected.is_full };
    SeenObject { is_full, ..seen } == *expected
}

/// Checks a name. `wanted`: the locks to call back.
fn check_name(mdt: &Mdt, cx: &mut Cx<'_>, act: &NameAct, wanted: &mut Vec<(Fid, u64)>) -> Result<bool, Stop> {
    let DirName { parent, name } = &act.name;
    let dir = match tree::dir(cx, *parent) {
        Err(Stop::Errno(Errno::ESTALE | Errno::ENOTDIR | Errno::ENOENT)) => return Ok(false),
        other => other?,
    };
    let place = mdt.place(cx, &dir, name)?;
    let leads_to = place.entry.as_ref().map(Entry::object);
    wanted.push((*parent, bits::UPDATE));
    Ok(is_as_seen(&dir.inode, act.seen.as_ref(), false) && leads_to == act.before.map(|object| object.fid))
}

/// Checks an object that gets or loses names. Returns it as it will be, `None` if it is not what the coordinator has seen.
fn check_links(
    mdt: &Mdt,
    cx: &mut Cx<'_>,
    act: &LinksAct,
    now_ns: i64,
    wanted: &mut Vec<(Fid, u64)>,
) -> Result<Option<CrossObject>, Stop> {
    let Some(node) = tree::find(cx, act.fid)? else {
        return if act.seen.is_some() { Ok(None) } else { Err(Errno::ENOENT.into()) };
    };
    let node = tree::without_lease(cx, node)?;
    let inode = &node.inode;
    if !is_as_seen(inode, act.seen.as_ref(), act.gained.is_none()) {
        return Ok(None);
    }
    if let Some(removal) = &act.removal {
        check_removal(cx, &node, removal)?;
    }
    if act.lost.is_none() {
        check_link(inode, act.kind)?;
    }
    if let Some(DirName { parent, name }) = &act.lost
        && !inode.links.contains(*parent, name)
        && !inode.links.overflow
    {
        if act.seen.is_some() {
            // The name has gone since it was looked at.
            return Ok(None);
        }
        let line = format!("object {} lacks its name in directory {parent}: run lfsck", act.fid);
        cx.log(target::LogLevel::Error, line);
        return Err(Errno::EIO.into());
    }
    let written = match act.lost {
        Some(_) => None,
        None => Some(grants::written(cx, inode)?),
    };
    let mut after = node.inode;
    after.nlink = match (&act.lost, &act.gained) {
        (Some(_), None) => names::links_after_removal(&after).unwrap_or(0),
        (None, Some(_)) => after.nlink + 1,
        _ => after.nlink,
    };
    after.changed(now_ns);
    let mut attr = after.attr();
    written.iter().for_each(|written| written.merge(&mut attr));
    // Opens wait for its key, so the number of open files only falls.
    let destroyed = attr.nlink == 0 && mdt.opens.count(act.fid) == 0;
    // Clients drop their locks on what is destroyed without giving them back.
    let data = if destroyed { bits::DOM | bits::LAYOUT } else { 0 };
    wanted.push((act.fid, bits::LOOKUP | bits::UPDATE | data));
    Ok(Some(CrossObject { attr: Some(Box::new(attr)), destroyed }))
}

/// The rules for the removal of a name, after those for its directory.
fn check_removal(cx: &mut Cx<'_>, node: &Node, removal: &Removal) -> Result<(), Stop> {
    // The directory's own target has checked its permission bits.
    let dir = Object { mode: removal.parent_mode | 0o777, uid: removal.parent_uid, ..Object::default() };
    names::may_unlink(&Caller::new(removal.cred.as_ref()), dir, &node.inode, removal.rmdir)?;
    match node.inode.is_dir() && node.inode.dir.entries > 0 {
        true => Err(tree::not_empty(cx, node)),
        false => Ok(()),
    }
}

/// The rules for a further name.
fn check_link(inode: &Inode, kind: u32) -> Result<(), Errno> {
    match () {
        () if inode.is_dir() => Err(Errno::EPERM),
        () if inode.mode & S_IFMT != kind => Err(Errno::EPROTO),
        () if inode.nlink == 0 => Err(Errno::ENOENT),
        () if inode.nlink >= LINK_MAX => Err(Errno::EMLINK),
        () => Ok(()),
    }
}

/// An object that still exists.
fn described(inode: &Inode) -> CrossObject {
    CrossObject { attr: Some(Box::new(inode.attr())), destroyed: false }
}

/// What changes in memory once all records of a part are written.
enum Effect {
    Taken(EntryKey),
    Freed(EntryKey, bool),
    Made(u64),
    Lost(Box<Node>, Gone),
}

/// A part in execution.
struct Applied {
    pending: Pending,
    /// An entry is in a second chain.
    second: bool,
    effects: Vec<Effect>,
    /// Objects as they are now.
    objects: Vec<CrossObject>,
}

/// Executes this target's part. `objects`: those of other targets, as those have described them.
pub fn apply(mdt: &mut Mdt, cx: &mut Cx<'_>, parts: &[CrossPart], objects: Vec<CrossObject>) -> Result<Reply, Stop> {
    let own = parts.first().ok_or(Errno::EPROTO)?;
    let mut done = Applied { pending: Pending::default(), second: false, effects: Vec::new(), objects: Vec::new() };
    for step in &own.acts {
        match step.act.as_ref().ok_or(Errno::EPROTO)? {
            Act::Make(act) => done.make(cx, act)?,
            Act::Name(act) => done.set_name(mdt, cx, act, step.now_ns)?,
            Act::Links(act) => done.set_links(mdt, cx, act, step.now_ns)?,
        }
    }
    for effect in &done.effects {
        match effect {
            Effect::Taken(key) => mdt.entry_taken(*key),
            Effect::Freed(key, tombstone) => mdt.entry_freed(*key, *tombstone),
            Effect::Made(ino) => mdt.known.learn(*ino, []),
            Effect::Lost(node, gone) => mdt.link_dropped(cx, node, *gone),
        }
    }
    let Some(answer) = &own.answer else { return Ok(Reply::empty()) };
    let made = parts.iter().flat_map(|part| &part.acts).filter_map(|step| match &step.act {
        Some(Act::Make(act)) => inode_of(act).ok().map(|inode| described(&inode)),
        _ => None,
    });
    // The last description of an object counts.
    let all: Vec<CrossObject> = made.chain(objects).chain(done.objects).collect();
    cx.count(match answer.operation() {
        CrossOperation::Mkdir => Operation::Mkdir,
        CrossOperation::Rmdir => Operation::Rmdir,
        CrossOperation::Unlink => Operation::Unlink,
        CrossOperation::Link => Operation::Link,
        CrossOperation::Rename => Operation::Rename,
    });
    let is = |object: &&CrossObject, fid| object.attr.as_ref().is_some_and(|attr| attr.fid == fid);
    let find = |fid: Option<Fid>| fid.and_then(|fid| all.iter().rfind(|object| is(object, fid)));
    let of = |fid| find(fid).and_then(|object| object.attr.as_deref()).cloned();
    // No lock is granted on what is under change.
    let rep = ObjectRep {
        attr: of(answer.object),
        parent_attr: of(answer.parent),
        source_parent_attr: of(answer.source_parent),
        replaced_attr: of(answer.replaced),
        whiteout_attr: of(answer.whiteout),
        destroyed: find(answer.replaced.or(answer.object)).is_some_and(|object| object.destroyed),
        ..ObjectRep::default()
    };
    Ok(Reply::new(&rep).with_record(answer.record))
}

impl Applied {
    fn make(&mut self, cx: &mut Cx<'_>, act: &MakeAct) -> Result<(), Stop> {
        let inode = Inode { dir: DirState::default(), ..inode_of(act)? };
        let mut grant = cx.get::<SeqGrant>(&act.fid.seq)?.unwrap_or_default();
        grant.mark_used(act.fid.oid);
        let mut node = Node { ino: 0, inode };
        // Its own region: that of its parent may be on another target.
        node.ino = tree::allocate_ino(cx, &mut node)?;
        let is_dir = node.inode.is_dir();
        if !is_dir {
            node.inode.dir = DirState::default();
        }
        subjects::note(cx, &[Subject::New(act.fid)])?;
        create::put_new(cx, &grant, &mut node);
        self.effects.extend(is_dir.then_some(Effect::Made(node.ino)));
        self.objects.push(described(&node.inode));
        Ok(())
    }

    fn set_name(&mut self, mdt: &Mdt, cx: &mut Cx<'_>, act: &NameAct, now_ns: i64) -> Result<(), Stop> {
        let DirName { parent, name } = &act.name;
        let mut dir = tree::node(cx, *parent)?;
        let place = mdt.place_after(cx, &self.pending, &dir, name)?;
        if place.entry.as_ref().map(Entry::object) != act.before.map(|object| object.fid) {
            return Err(Errno::EIO.into());
        }
        let fate = if act.after.is_some() { Fate::Taken } else { Fate::Freed };
        subjects::note(cx, &[Subject::Name { parent: *parent, name, fate }])?;
        match act.after {
            Some(NamedObject { fid, mode, mdt }) => {
                let elsewhere = (mdt != cx.name().index.0).then_some(mdt);
                let ino = match elsewhere {
                    Some(_) => 0,
                    None => cx.get::<Oi>(&fid)?.ok_or(Errno::EIO)?.ino,
                };
                let kind = (mode & S_IFMT) >> 12;
                let entry = Entry { name: name.clone(), fid: Some(fid), kind, ino, mdt: elsewhere };
                tree::put_entry_of(cx, &mut dir, &place, entry);
                self.pending.took(place.key.dir, place.key.cookie);
                self.second |= place.second;
                self.effects.push(Effect::Taken(place.key));
            }
            None => {
                // The same change may have put an entry behind this one.
                let tombstone = mdt.chain_continues(cx, &self.pending, &place)? || self.second;
                tree::remove_entry(cx, &mut dir, &place, tombstone);
                self.effects.push(Effect::Freed(place.key, tombstone));
            }
        }
        tree::count_directories(cx, &mut dir, more_directories(act));
        dir.inode.content_changed(now_ns);
        dir.put(cx);
        self.objects.push(described(&dir.inode));
        Ok(())
    }

    fn set_links(&mut self, mdt: &Mdt, cx: &mut Cx<'_>, act: &LinksAct, now_ns: i64) -> Result<(), Stop> {
        let mut node = tree::node(cx, act.fid)?;
        match &act.gained {
            Some(_) => subjects::note(cx, &[Subject::Object(act.fid)])?,
            None => subjects::note_victim(cx, &node)?,
        }
        if let Some(DirName { parent, name }) = &act.lost {
            node.inode.links.remove(*parent, name);
        }
        let mut destroyed = false;
        if let Some(DirName { parent, name }) = &act.gained {
            match node.inode.is_dir() {
                true => node.inode.links = LinkEa::one(*parent, name.clone()),
                false => node.inode.links.add(*parent, name.clone()),
            }
            node.inode.nlink += u32::from(act.lost.is_none());
            node.inode.changed(now_ns);
            node.put(cx);
        } else {
            let gone = drop_link(mdt, cx, &mut node, now_ns)?;
            destroyed = gone != Gone::No;
            self.effects.push(Effect::Lost(Box::new(node.clone()), gone));
        }
        self.objects.push(CrossObject { destroyed, ..described(&node.inode) });
        Ok(())
    }
}

/// The target of a FID, if it is another one than this. Sequences in no range are of MDT0000.
pub fn elsewhere(mdt: &Mdt, cx: &Cx<'_>, fid: Fid) -> Option<u32> {
    let range = mdt.fldb.iter().find(|range| (range.start..range.end).contains(&fid.seq));
    let index = range.map_or(0, |range| range.mdt);
    (index != cx.name().index.0).then_some(index)
}

/// Tells a client on which target an object is. Errors: `EOPNOTSUPP` for a client that cannot look for it there.
pub fn sent_on(cx: &Cx<'_>, object: NamedObject) -> Result<Elsewhere, Stop> {
    let NamedObject { fid, mode, mdt } = object;
    match cx.client_has(features::DIR_STRIPE) {
        true => Ok(Elsewhere { fid, mdt, kind: mode & S_IFMT }),
        false => Err(Errno::EOPNOTSUPP.into()),
    }
}
