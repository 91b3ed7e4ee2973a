//! `rename`, with or without an existing target, `RENAME_NOREPLACE`, `RENAME_EXCHANGE` and `RENAME_WHITEOUT`.

use crate::cross::{End, Looks, Parts, stripes};
use crate::known::Pending;
use crate::ops::Change;
use crate::ops::create::{self, New};
use crate::ops::subjects::{self, Subject};
use crate::ops::unlink::{Gone, drop_link};
use crate::tree::{self, Node, Place};
use crate::{Mdt, cross, grants};
use bytes::Bytes;
use proto::msg::{
    CrossAnswer, CrossOperation, DirName, LinksAct, MakeAct, NameAct, NamedObject, ObjectRep, ParentAct, RenameOp,
    SeenObject, Stripe, bits,
};
use proto::{Errno, Fid, Operation};
use rules::access::EXECUTE;
use rules::mode::S_IFMT;
use rules::names::{self, Links};
use schema::entry::CHAIN_MAX;
use schema::{Entry, Inode, LinkEa, Record};
use std::collections::BTreeSet;
use target::{Cx, Reply, ShareKey, Stop};

const NOREPLACE: u32 = 1;
const EXCHANGE: u32 = 2;
const WHITEOUT: u32 = 4;

/// The one or two directories of a rename, all here.
struct Dirs {
    source: Node,
    /// `None`: the same directory.
    target: Option<Node>,
}

impl Dirs {
    fn target(&self) -> &Node {
        self.target.as_ref().unwrap_or(&self.source)
    }
    fn target_mut(&mut self) -> &mut Node {
        self.target.as_mut().unwrap_or(&mut self.source)
    }
    fn differ(&self) -> bool {
        self.target.is_some()
    }
}

/// What a rename concerns, after all names are resolved.
struct Found {
    source: Node,
    source_place: Place,
    /// The other directory; `None`: the same one.
    target: Option<End>,
    /// The place of the new name, if its directory is here.
    target_place: Option<Place>,
    moved: (NamedObject, End),
    /// The object that has the new name.
    other: Option<(NamedObject, End)>,
    /// Its stripes besides itself, if it is a striped directory that is replaced.
    stripes: Vec<End>,
    /// See [`keeps_the_tree`].
    above: Vec<Above>,
}

impl Found {
    /// Both names belong to one object: POSIX wants no change.
    fn is_same(&self) -> bool {
        self.other.as_ref().is_some_and(|(_, other)| other.fid() == self.moved.1.fid())
    }

    /// The same if everything is here.
    fn here(self) -> Result<Resolved, Box<Found>> {
        match self {
            Found {
                source,
                source_place,
                target: target @ (None | Some(End::Here(_))),
                target_place: Some(target_place),
                moved: (_, End::Here(moved)),
                other: other @ (None | Some((_, End::Here(_)))),
                stripes,
                above,
            } if stripes.is_empty() && above.is_empty() => {
                let node = |end| match end {
                    End::Here(node) => Some(node),
                    End::There { .. } => None,
                };
                Ok(Resolved {
                    dirs: Dirs { source, target: target.and_then(node) },
                    source: source_place,
                    target: target_place,
                    moved,
                    other: other.and_then(|(_, end)| node(end)),
                    whiteout: None,
                })
            }
            found => Err(Box::new(found)),
        }
    }
}

/// The directories, places and objects of a rename that are all here.
struct Resolved {
    dirs: Dirs,
    source: Place,
    target: Place,
    moved: Node,
    /// The object that has the target name.
    other: Option<Node>,
    /// The object that gets the source name.
    whiteout: Option<Node>,
}

impl Resolved {
    /// Whether directories get another parent.
    fn gets_another_parent(&self) -> bool {
        let moves_dirs = self.moved.inode.is_dir() || self.other.as_ref().is_some_and(|other| other.inode.is_dir());
        moves_dirs && self.dirs.source.inode.master() != self.dirs.target().inode.master()
    }
}

/// Executes a rename.
pub fn rename(mdt: &mut Mdt, cx: &mut Cx<'_>, change: &Change<'_>, op: &RenameOp) -> Result<Reply, Stop> {
    let mut looks = Looks::default();
    let (found, links) = loop {
        let checked = resolve(mdt, cx, change, op, &mut looks).and_then(|found| match found.is_same() {
            true => Ok((found, Links::default())),
            false => checked(change, op, &found).map(|links| (found, links)).map_err(Stop::Errno),
        });
        match checked {
            Err(Stop::Wait) => return Err(Stop::Wait),
            // What is there is checked again where it is.
            Ok(checked) if !checked.0.is_same() => break checked,
            Ok(checked) if looks.may_answer(0) => break checked,
            Err(Stop::Errno(errno)) if looks.may_answer(errno.raw()) => return Err(errno.into()),
            _ => {}
        }
    };
    let is_same = found.is_same();
    match found.here() {
        Ok(found) if is_same => {
            cx.changes_nothing();
            Ok(reply(cx, change, &found, Gone::No))
        }
        Ok(found) => move_here(mdt, cx, change, op, found, links),
        Err(found) if is_same => {
            cx.changes_nothing();
            let attr = |end: &End| end.here().map(|node| node.inode.attr());
            let attr = attr(&found.moved.1);
            Ok(Reply::new(&ObjectRep { replaced_attr: attr.clone(), attr, ..ObjectRep::default() }))
        }
        Err(found) => move_across(mdt, cx, change, op, &found),
    }
}

/// Executes a rename of which everything is here.
fn move_here(
    mdt: &mut Mdt,
    cx: &mut Cx<'_>,
    change: &Change<'_>,
    op: &RenameOp,
    mut found: Resolved,
    links: Links,
) -> Result<Reply, Stop> {
    // The new entry may be in the same chain, after the old one. Or it may be the first in a second chain, because the old
    // one's chain is full.
    let (from, to) = (found.source.key, found.target.key);
    let follows = from.dir == to.dir && from.cookie / CHAIN_MAX == to.cookie / CHAIN_MAX && to.cookie > from.cookie;
    let tombstone = mdt.chain_continues(cx, &Pending::default(), &found.source)? || follows || found.target.second;
    let grant = match op.whiteout {
        Some(fid) => {
            let grant = create::use_fid(cx, fid)?;
            let dir = &mut found.dirs.source;
            let inode = new_whiteout(mdt, change, op, fid, &dir.inode);
            found.whiteout = Some(Node { ino: tree::allocate_ino(cx, dir)?, inode });
            Some(grant)
        }
        None => None,
    };
    check_versions(cx, &found)?;
    let dirs = [Some(&found.dirs.source), found.dirs.target.as_ref()];
    revoke(cx, op, dirs, Some(&found.moved), found.other.as_ref())?;

    subjects::note(cx, &subjects::renamed(op))?;
    subjects::note(cx, &[Subject::Object(found.moved.fid())])?;
    let exchange = op.flags & EXCHANGE != 0;
    if found.gets_another_parent() {
        for node in [Some(&found.moved), found.other.as_ref().filter(|_| exchange)].into_iter().flatten() {
            cx.writes(cross::parent_key(node.fid()))?;
        }
    }
    if let Some(other) = &found.other {
        subjects::note_victim(cx, other)?;
    }
    if let (Some(grant), Some(whiteout)) = (&grant, &mut found.whiteout) {
        subjects::note(cx, &[Subject::New(whiteout.fid())])?;
        create::put_new(cx, Some(grant), whiteout);
    }
    let gone = if exchange {
        write_exchange(cx, change, op, &mut found, links);
        Gone::No
    } else {
        write_move(mdt, cx, change, op, &mut found, (links, tombstone))?
    };
    let reply = reply(cx, change, &found, gone);
    if !exchange {
        mdt.entry_taken(found.target.key);
    }
    if !exchange && found.whiteout.is_none() {
        mdt.entry_freed(found.source.key, tombstone);
    }
    if let Some(other) = &found.other {
        mdt.link_dropped(cx, other, gone);
    }
    mdt.moved_directories += u64::from(found.gets_another_parent());
    cx.count(Operation::Rename);
    Ok(reply)
}

/// Makes a rename with parts on several targets: calls back the locks here, and asks for the parts.
fn move_across(mdt: &Mdt, cx: &mut Cx<'_>, change: &Change<'_>, op: &RenameOp, found: &Found) -> Result<Reply, Stop> {
    let exchange = op.flags & EXCHANGE != 0;
    let Found { source, target, moved, other, stripes, above, .. } = found;
    let client = cx.client().ok_or(Errno::ENOTCONN)?;
    let whiteout = match op.whiteout {
        Some(fid) => {
            create::may_use_fid(cx, fid, client)?;
            Some(new_whiteout(mdt, change, op, fid, &source.inode))
        }
        None => None,
    };
    let dirs = [Some(source), target.as_ref().and_then(End::here)];
    let mut free = revoke(cx, op, dirs, moved.1.here(), other.as_ref().and_then(|(_, end)| end.here()));
    for stripe in stripes.iter().filter_map(End::here) {
        free = free.and(tree::revoke_named(cx, stripe, None));
    }
    free?;

    let own = cx.name().index.0;
    let target_mdt = target.as_ref().map_or(own, |dir| dir.mdt(cx));
    let mut parts = Parts::new(
        cx,
        change,
        CrossAnswer {
            object: Some(moved.0.fid),
            parent: Some(op.target_parent),
            source_parent: target.as_ref().map(|_| op.source_parent),
            replaced: other.as_ref().map(|(object, _)| object.fid),
            whiteout: op.whiteout,
            ..cross::answer(CrossOperation::Rename)
        },
    );
    let from = DirName { parent: op.source_parent, name: op.source_name.clone() };
    let to = DirName { parent: op.target_parent, name: op.target_name.clone() };
    let other_object = other.as_ref().map(|(object, _)| *object);
    let left = match &whiteout {
        Some(inode) => {
            let make = MakeAct { fid: inode.fid, client: client.to_bytes(), inode: inode.encode_record() };
            parts.add(own, make);
            Some(NamedObject { fid: inode.fid, mode: inode.mode, mdt: own })
        }
        None => other_object.filter(|_| exchange),
    };
    // The new name first: whether the old one leaves a tombstone depends on what comes after it.
    let seen = target.as_ref().and_then(End::seen);
    let new = NameAct { name: to.clone(), before: other_object, after: Some(moved.0), seen, ..NameAct::default() };
    parts.add(target_mdt, new);
    parts.add(own, NameAct { name: from.clone(), before: Some(moved.0), after: left, ..NameAct::default() });
    // Objects are called by the names that they have in the directories that programs see.
    let from = DirName { parent: source.inode.master(), ..from };
    let to = DirName { parent: target.as_ref().map_or(from.parent, End::master), ..to };
    let links = LinksAct {
        lost: Some(from.clone()),
        gained: Some(to.clone()),
        seen: moved.1.seen(),
        kind: moved.0.mode & S_IFMT,
        ..cross::links(moved.0.fid)
    };
    parts.add(moved.1.mdt(cx), links);
    if let Some((object, end)) = other {
        let gained = exchange.then_some(from);
        let gone = if exchange { Vec::new() } else { end.stripes().to_vec() };
        let links = LinksAct {
            kind: if exchange { object.mode & S_IFMT } else { 0 },
            lost: Some(to),
            gained,
            seen: end.seen(),
            stripes: gone.clone(),
            ..cross::links(object.fid)
        };
        parts.add(end.mdt(cx), links);
        for ((act, on), stripe) in stripes::lost_stripes(&gone).into_iter().zip(stripes) {
            parts.add(on, LinksAct { seen: stripe.seen(), ..act });
        }
    }
    for Above { mdt, act } in above {
        parts.add(*mdt, *act);
    }
    parts.make(cx)
}

/// Resolves both names, with errors in Linux's order.
fn resolve(mdt: &Mdt, cx: &mut Cx<'_>, change: &Change<'_>, op: &RenameOp, looks: &mut Looks) -> Result<Found, Stop> {
    if op.flags & !(NOREPLACE | EXCHANGE | WHITEOUT) != 0 || op.flags & EXCHANGE != 0 && op.flags != EXCHANGE {
        return Err(Errno::EINVAL.into());
    }
    if op.whiteout.is_some() != (op.flags & WHITEOUT != 0) {
        return Err(Errno::EPROTO.into());
    }
    let source = tree::dir(cx, op.source_parent)?;
    let mut looked = None;
    let target = match op.target_parent == op.source_parent {
        true => None,
        false if tree::find(cx, op.target_parent)?.is_some() => Some(End::Here(tree::dir(cx, op.target_parent)?)),
        false => {
            let on = cross::elsewhere(mdt, cx, op.target_parent)?.ok_or(Errno::ESTALE)?;
            let name = DirName { parent: op.target_parent, name: op.target_name.clone() };
            let rep = looks.look(cx, on, Some(name), None)?;
            let seen = looked.insert(rep).dir.clone().ok_or(Errno::EPROTO)?;
            Some(End::There { mdt: on, fid: op.target_parent, seen })
        }
    };
    change.caller.need(&source.inode, EXECUTE)?;
    if let Some(target) = &target {
        change.caller.need(target.object(), EXECUTE)?;
    }
    names::check(&op.source_name)?;
    names::check(&op.target_name)?;
    if names::is_dot(&op.source_name) || names::is_dot(&op.target_name) {
        return Err(Errno::EBUSY.into());
    }
    let source_place = mdt.place(cx, &source, &op.source_name)?;
    let target_place = match target.as_ref().map_or(Some(&source), End::here) {
        Some(dir) => Some(mdt.place(cx, dir, &op.target_name)?),
        None => None,
    };
    let entry = source_place.entry.as_ref().ok_or(Errno::ENOENT)?;
    let moved = end_of(cx, looks, cross::named(cx, entry), Some(entry), None)?;
    let entry = target_place.as_ref().and_then(|place| place.entry.as_ref());
    let other = entry.map(|entry| cross::named(cx, entry)).or(looked.as_ref().and_then(|rep| rep.named));
    let other = match other {
        Some(_) if op.flags & NOREPLACE != 0 => return Err(Errno::EEXIST.into()),
        None if op.flags & EXCHANGE != 0 => return Err(Errno::ENOENT.into()),
        Some(object) => Some(end_of(cx, looks, object, entry, looked.and_then(|rep| rep.object))?),
        None => None,
    };
    for node in [Some(&moved), other.as_ref()].into_iter().flatten().filter_map(|(_, end)| end.here()) {
        stripes::may_see(cx, &node.inode)?;
    }
    let stripes = match &other {
        Some((_, end)) if op.flags & EXCHANGE == 0 && moved.1.object().is_dir() => stripes_of(cx, looks, end)?,
        _ => Vec::new(),
    };
    if !mdt.settings.enable_remote_rename
        && target.as_ref().is_some_and(|dir| dir.here().is_none() && dir.master() != source.inode.master())
    {
        return Err(Errno::EXDEV.into());
    }
    let found = Found { source, source_place, target, target_place, moved, other, stripes, above: Vec::new() };
    let above = keeps_the_tree(mdt, cx, looks, op, &found)?;
    Ok(Found { above, ..found })
}

/// The stripes of a directory besides itself.
fn stripes_of(cx: &mut Cx<'_>, looks: &mut Looks, end: &End) -> Result<Vec<End>, Stop> {
    let own = cx.name().index.0;
    let mut one = |stripe: &Stripe| match stripe.mdt == own {
        false => looks.object(cx, stripe.mdt, stripe.fid),
        true => tree::node(cx, stripe.fid).and_then(|node| tree::without_lease(cx, node)).map(End::Here),
    };
    // All other targets are asked at once.
    let found: Vec<Result<End, Stop>> = end.stripes().iter().skip(1).map(&mut one).collect();
    match found.iter().any(|end| matches!(end, Err(Stop::Wait))) {
        true => Err(Stop::Wait),
        false => found.into_iter().collect(),
    }
}

/// An object that a name leads to. `entry`: the name's, if it is here. `seen`: what the target of the name has said of it.
fn end_of(
    cx: &mut Cx<'_>,
    looks: &mut Looks,
    object: NamedObject,
    entry: Option<&Entry>,
    seen: Option<SeenObject>,
) -> Result<(NamedObject, End), Stop> {
    let NamedObject { fid, mdt, .. } = object;
    let end = match (entry, seen) {
        (Some(entry), _) if entry.mdt.is_none() => End::Here(tree::losing_name(cx, entry)?),
        (None, Some(seen)) => End::There { mdt, fid, seen },
        _ if mdt == cx.name().index.0 => {
            let node = tree::node(cx, fid)?;
            End::Here(tree::without_lease(cx, node)?)
        }
        _ => looks.object(cx, mdt, fid)?,
    };
    Ok((object, end))
}

/// A directory on the way up from the new parent of one that moves. It keeps its own parent until the change has happened.
struct Above {
    mdt: u32,
    act: ParentAct,
}

/// Checks that no directory moves below itself, and none is replaced by what is below it. Returns the directories that have to
/// keep their parents for it; none if everything is here and happens in one instant.
fn keeps_the_tree(
    mdt: &Mdt,
    cx: &mut Cx<'_>,
    looks: &mut Looks,
    op: &RenameOp,
    found: &Found,
) -> Result<Vec<Above>, Stop> {
    let Found { source, target: Some(target), moved: (_, moved), other, stripes, .. } = found else {
        return Ok(Vec::new());
    };
    let (from, to) = (source.inode.master(), target.master());
    if from == to {
        return Ok(Vec::new());
    }
    let exchange = op.flags & EXCHANGE != 0;
    let other = other.as_ref().map(|(_, end)| end);
    // The stripes of a directory go in a change with several parts.
    let all_here = moved.here().is_some()
        && target.here().is_some()
        && stripes.is_empty()
        && other.is_none_or(|other| other.here().is_some());
    let moves = moved.object().is_dir().then(|| (moved.fid(), [target.fid(), source.fid()], Errno::EINVAL));
    let errno = if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY };
    let other = other.filter(|other| other.object().is_dir());
    let gives_way = other.map(|other| (other.fid(), [source.fid(), target.fid()], errno));
    let checks = [moves, gives_way].into_iter().flatten();

    if all_here {
        let mut leaves = false;
        for (ancestor, dirs, errno) in checks.clone() {
            match lies_in(cx, dirs, ancestor)? {
                Some(true) => return Err(errno.into()),
                Some(false) => {}
                None => leaves = true,
            }
        }
        if !leaves {
            return Ok(Vec::new());
        }
        stdx::mark!("mdt.way_up_leaves");
    }
    let mut above: Vec<Above> = Vec::new();
    for (ancestor, [dir, _], errno) in checks {
        let dir = if dir == source.fid() { from } else { to };
        let way = way_to_the_root(mdt, cx, looks, dir)?;
        if way.iter().any(|above| above.act.fid == ancestor) {
            return Err(errno.into());
        }
        // What is replaced has to be empty: nothing can be below it then.
        if errno == Errno::EINVAL {
            above.extend(way);
        }
    }
    above.sort_unstable_by_key(|above| (above.mdt, above.act.fid));
    above.dedup_by_key(|above| above.act);
    Ok(above)
}

/// A directory and those above it, up to the root, without holding anything. The parts of the change check it.
fn way_to_the_root(mdt: &Mdt, cx: &mut Cx<'_>, looks: &mut Looks, dir: Fid) -> Result<Vec<Above>, Stop> {
    let (mut way, mut seen, mut at) = (Vec::new(), BTreeSet::new(), dir);
    // Pieces that were read one after the other can make a ring. No part finds it so.
    while at != Fid::ROOT && !seen.contains(&at) {
        let mut parents = tree::way_up(cx, at)?;
        let mut on = cx.name().index.0;
        if parents.is_empty() {
            on = cross::elsewhere(mdt, cx, at)?.ok_or(Errno::ESTALE)?;
            parents = looks.way(cx, on, at)?;
        }
        for parent in parents {
            if at == Fid::ROOT || !seen.insert(at) {
                break;
            }
            way.push(Above { mdt: on, act: ParentAct { fid: at, parent } });
            at = parent;
        }
    }
    Ok(way)
}

/// The inode of a whiteout in a directory.
fn new_whiteout(mdt: &Mdt, change: &Change<'_>, op: &RenameOp, fid: Fid, dir: &Inode) -> Inode {
    let new = New {
        name: &op.source_name,
        fid,
        mode: rules::create::WHITEOUT,
        rdev: 0,
        symlink: &Bytes::new(),
        layout: None,
        resident: false,
    };
    create::new_inode(mdt, change, dir, &new)
}

/// Whether a directory is `ancestor` or below it. `parent` is the directory of `ancestor`; both are here, and whatever is above
/// both of them cannot be below `ancestor`. `None`: the way up leads to another target first.
fn lies_in(cx: &mut Cx<'_>, [dir, parent]: [Fid; 2], ancestor: Fid) -> Result<Option<bool>, Stop> {
    let way = [vec![dir], tree::way_up(cx, dir)?].concat();
    let above = [vec![parent], tree::way_up(cx, parent)?].concat();
    for fid in way {
        // The change is of use only while nobody has undone what it has found.
        cx.depends_on(ShareKey::object(fid));
        match () {
            () if fid == ancestor => return Ok(Some(true)),
            () if fid == Fid::ROOT || above.contains(&fid) => return Ok(Some(false)),
            () => {}
        }
    }
    Ok(None)
}

/// Checks the rename, and returns how the link counts of the directories change.
fn checked(change: &Change<'_>, op: &RenameOp, found: &Found) -> Result<Links, Errno> {
    let Found { source, target, moved: (_, moved), other, stripes, .. } = found;
    let other = other.as_ref().map(|(_, end)| end);
    let rename = names::Rename {
        source: (&source.inode).into(),
        target: target.as_ref().map(End::object),
        moved: moved.object(),
        other: other.map(End::object),
        other_is_full: other.is_some_and(|other| other.object().is_dir() && other.is_full())
            || stripes.iter().any(End::is_full),
        exchange: op.flags & EXCHANGE != 0,
        same_parent: target.as_ref().is_some_and(|target| target.master() == source.inode.master()),
    };
    rename.check(&change.caller)?;
    Ok(rename.links())
}

fn check_versions(cx: &mut Cx<'_>, found: &Resolved) -> Result<(), Stop> {
    cx.note_version(0, found.dirs.source.inode.version);
    cx.note_version(1, found.dirs.target().inode.version);
    cx.pre_version(2, tree::version_of(&found.moved.inode))?;
    cx.pre_version(3, found.other.as_ref().map_or(tree::NO_ENTRY, |other| tree::version_of(&other.inode)))
}

/// Calls back the locks on what is here of a rename.
fn revoke(
    cx: &mut Cx<'_>,
    op: &RenameOp,
    dirs: [Option<&Node>; 2],
    moved: Option<&Node>,
    other: Option<&Node>,
) -> Result<(), Stop> {
    let covering = |node: &Node| (node.fid(), bits::LOOKUP | bits::UPDATE);
    let mut wanted: Vec<_> = dirs.into_iter().flatten().map(|dir| (dir.fid(), bits::UPDATE)).collect();
    wanted.extend(moved.map(covering));
    let mut free = Ok(());
    match other {
        Some(other) if op.flags & EXCHANGE == 0 => free = tree::revoke_named(cx, other, op.reported),
        other => wanted.extend(other.map(covering)),
    }
    tree::revoke(cx, &wanted).and(free)
}

fn write_move(
    mdt: &Mdt,
    cx: &mut Cx<'_>,
    change: &Change<'_>,
    op: &RenameOp,
    found: &mut Resolved,
    (links, tombstone): (Links, bool),
) -> Result<Gone, Stop> {
    let Resolved { dirs, source, target, moved, other, whiteout } = found;
    let mut gone = Gone::No;
    if let Some(other) = other {
        other.inode.links.remove(dirs.target().inode.master(), &op.target_name);
        gone = drop_link(mdt, cx, other, change.now_ns)?;
    }
    match whiteout {
        Some(whiteout) => tree::put_entry(cx, &mut dirs.source, source, &op.source_name, whiteout),
        None => tree::remove_entry(cx, &mut dirs.source, source, tombstone),
    }
    tree::put_entry(cx, dirs.target_mut(), target, &op.target_name, moved);
    let (from, to) = (dirs.source.inode.master(), dirs.target().inode.master());
    rename_link(moved, (from, &op.source_name), (to, &op.target_name));
    moved.inode.changed(change.now_ns);
    moved.put(cx);
    put_dirs(cx, dirs, links, change.now_ns);
    Ok(gone)
}

fn write_exchange(cx: &mut Cx<'_>, change: &Change<'_>, op: &RenameOp, found: &mut Resolved, links: Links) {
    let Resolved { dirs, source, target, moved, other, .. } = found;
    let Some(other) = other else { return };
    let (from, to) = (dirs.source.inode.master(), dirs.target().inode.master());
    let (from, to) = ((from, &op.source_name), (to, &op.target_name));
    tree::put_entry(cx, dirs.target_mut(), target, &op.target_name, moved);
    tree::put_entry(cx, &mut dirs.source, source, &op.source_name, other);
    rename_link(moved, from, to);
    rename_link(other, to, from);
    for node in [moved, other] {
        node.inode.changed(change.now_ns);
        node.put(cx);
    }
    put_dirs(cx, dirs, links, change.now_ns);
}

fn rename_link(node: &mut Node, from: (Fid, &Bytes), to: (Fid, &Bytes)) {
    let name = Bytes::copy_from_slice(to.1);
    if node.inode.is_dir() {
        node.inode.links = LinkEa::one(to.0, name);
        return;
    }
    node.inode.links.remove(from.0, from.1);
    node.inode.links.add(to.0, name);
}

fn put_dirs(cx: &mut Cx<'_>, dirs: &mut Dirs, links: Links, now_ns: i64) {
    tree::count_directories(cx, dirs.target_mut(), links.target);
    tree::count_directories(cx, &mut dirs.source, links.source);
    for dir in [Some(&mut dirs.source), dirs.target.as_mut()].into_iter().flatten() {
        dir.inode.content_changed(now_ns);
        dir.put(cx);
    }
}

fn reply(cx: &mut Cx<'_>, change: &Change<'_>, found: &Resolved, gone: Gone) -> Reply {
    let Resolved { dirs, moved, other, whiteout, .. } = found;
    Reply::new(&ObjectRep {
        attr: Some(grants::attr_for(cx, &moved.inode)),
        parent_attr: Some(grants::attr_for(cx, &dirs.target().inode)),
        locks: grants::grant(cx, &change.want, Some(&moved.inode), Some(dirs.target().fid())),
        source_parent_attr: dirs.differ().then(|| grants::attr_for(cx, &dirs.source.inode)),
        replaced_attr: other.as_ref().map(|other| grants::attr_for(cx, &other.inode)),
        destroyed: gone != Gone::No,
        whiteout_attr: whiteout.as_ref().map(|whiteout| whiteout.inode.attr()),
        ..ObjectRep::default()
    })
}
