//! The execution of this target's part of a change.

use proto::msg::{
    Act, Attr, AttrsAct, CrossObject, CrossOperation, CrossPart, DirName, LinksAct, MakeAct, NameAct, NamedObject,
    ObjectRep, RelayoutAct,
};
use proto::{Errno, Fid, Operation};
use rules::mode::S_IFMT;
use schema::inode::DirState;
use schema::{Entry, EntryKey, Inode, LinkEa, Oi, Relayout, SeqGrant};
use target::{Cx, Reply, Stop};

use super::check::{attrs_of, inode_of};
use super::look::more_directories;
use super::{relayout, stripes};
use crate::Mdt;
use crate::known::Pending;
use crate::ops::create;
use crate::ops::subjects::{self, Fate, Subject};
use crate::ops::unlink::{Gone, drop_link};
use crate::tree::{self, Node};

/// An object that still exists.
fn described(inode: &Inode) -> CrossObject {
    CrossObject { attr: Some(Box::new(inode.attr())), destroyed: false }
}

/// What changes in memory once all records of a part are written.
enum Effect {
    Taken(EntryKey),
    Freed(EntryKey, bool),
    Made(u64),
    /// A directory has got another parent.
    Moved,
    Lost(Box<Node>, Gone),
    /// A name has left a stripe.
    Left(Fid),
    /// A stripe has got another layout. If names have to leave it, this is its record.
    Relayout(Fid, Option<Relayout>),
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
            Act::Attrs(act) => done.set_attrs(cx, act, step.now_ns)?,
            Act::Relayout(act) => done.set_layout(cx, own, act)?,
            Act::Parent(_) => {}
        }
    }
    for effect in &done.effects {
        match effect {
            Effect::Taken(key) => mdt.entry_taken(*key),
            Effect::Freed(key, tombstone) => mdt.entry_freed(*key, *tombstone),
            Effect::Made(ino) => mdt.known.learn(*ino, []),
            Effect::Moved => mdt.moved_directories += 1,
            Effect::Lost(node, gone) => mdt.link_dropped(cx, node, *gone),
            Effect::Left(dir) => mdt.name_left(cx, *dir),
            Effect::Relayout(fid, record) => mdt.layout_changed(cx, *fid, record.as_ref()),
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
        CrossOperation::Setattr => Operation::Setattr,
        CrossOperation::Setxattr => Operation::Setxattr,
        CrossOperation::Relayout => Operation::Setattr,
    });
    let is = |object: &&CrossObject, fid| object.attr.as_ref().is_some_and(|attr| attr.fid == fid);
    let find = |fid: Option<Fid>| fid.and_then(|fid| all.iter().rfind(|object| is(object, fid)));
    let knows_defaults = stripes::are_known(cx).is_ok();
    let of = |fid| {
        let attr = find(fid).and_then(|object| object.attr.as_deref()).cloned()?;
        Some(Attr { dir_default: attr.dir_default.filter(|_| knows_defaults), ..attr })
    };
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
        // The grant of a client that is gone may have been dropped: nobody uses the sequence any more.
        let mut grant = cx.get::<SeqGrant>(&act.fid.seq)?;
        grant.iter_mut().for_each(|grant| grant.mark_used(act.fid.oid));
        let mut node = Node { ino: 0, inode };
        // Its own region: that of its parent may be on another target.
        node.ino = tree::allocate_ino(cx, &mut node)?;
        let is_dir = node.inode.is_dir();
        if !is_dir {
            node.inode.dir = DirState::default();
        }
        subjects::note(cx, &[Subject::New(act.fid)])?;
        create::put_new(cx, grant.as_ref(), &mut node);
        self.effects.extend(is_dir.then_some(Effect::Made(node.ino)));
        self.objects.push(described(&node.inode));
        Ok(())
    }

    fn set_name(&mut self, mdt: &Mdt, cx: &mut Cx<'_>, act: &NameAct, now_ns: i64) -> Result<(), Stop> {
        let DirName { parent, name } = &act.name;
        let mut dir = tree::node(cx, *parent)?;
        let place = mdt.place_here(cx, &self.pending, &dir, name)?;
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
        let more = more_directories(act);
        tree::count_directories(cx, &mut dir, more);
        if let Some(lmv) = dir.inode.lmv.as_mut().filter(|_| act.moves) {
            lmv.moved = lmv.moved.saturating_add(more);
        }
        if !act.moves {
            dir.inode.content_changed(now_ns);
        } else if act.after.is_none() {
            self.effects.push(Effect::Left(*parent));
        }
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
            self.effects.extend(super::gets_another_parent(act).then_some(Effect::Moved));
        } else {
            let gone = drop_link(mdt, cx, &mut node, now_ns)?;
            destroyed = gone != Gone::No;
            self.effects.push(Effect::Lost(Box::new(node.clone()), gone));
        }
        self.objects.push(CrossObject { destroyed, ..described(&node.inode) });
        Ok(())
    }

    fn set_layout(&mut self, cx: &mut Cx<'_>, part: &CrossPart, act: &RelayoutAct) -> Result<(), Stop> {
        for (fid, lmv) in relayout::copies(part.mdt, &act.lmv) {
            let mut node = tree::node(cx, fid)?;
            subjects::note(cx, &[Subject::Object(fid)])?;
            let record = lmv
                .is_moving()
                .then(|| Relayout { stripes: act.lmv.stripes.clone(), settled: lmv.index >= lmv.former_count });
            match &record {
                Some(record) => cx.put::<Relayout>(&fid, record),
                None => cx.delete::<Relayout>(&fid),
            }
            if lmv.index == 0 {
                act.times.iter().for_each(|times| relayout::take_times(&mut node.inode, times));
            }
            node.inode.lmv = Some(Box::new(lmv));
            node.put(cx);
            self.objects.push(described(&node.inode));
            self.effects.push(Effect::Relayout(fid, record));
        }
        Ok(())
    }

    fn set_attrs(&mut self, cx: &mut Cx<'_>, act: &AttrsAct, now_ns: i64) -> Result<(), Stop> {
        let mut node = tree::node(cx, act.fid)?;
        subjects::note(cx, &[Subject::Object(act.fid)])?;
        stripes::take_attrs(&mut node.inode, act, attrs_of(act)?, now_ns);
        node.put(cx);
        self.objects.push(described(&node.inode));
        Ok(())
    }
}
