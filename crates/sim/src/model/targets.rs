//! On which metadata targets objects lie, and what that means for calls.
//!
//! A new object lies on the target of its directory; only `mkdir` can place it on another one. It stays there when it gets another
//! name. A change that concerns several targets is atomic, and durable when it is answered. A rename that gives a directory
//! another parent is refused (`EXDEV`) if it concerns several targets.

use proto::Errno;
use proto::msg::Cred;

use super::{Body, Id, Model, Op, Path, PathRole, ROOT, Returned};

/// A set of metadata targets, by index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mdts(u32);

impl Mdts {
    /// None.
    pub(crate) const NONE: Mdts = Mdts(0);
    /// All.
    pub(crate) const ALL: Mdts = Mdts(u32::MAX);

    /// One target.
    pub(crate) fn one(mdt: u32) -> Mdts {
        Mdts(1 << mdt)
    }

    /// The targets of both sets.
    pub(crate) fn and(self, other: Mdts) -> Mdts {
        Mdts(self.0 | other.0)
    }

    /// Whether the sets have a target in common.
    pub(crate) fn meets(self, other: Mdts) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether these are several targets, but not simply all.
    pub(crate) fn is_several(self) -> bool {
        self != Mdts::ALL && self.0.count_ones() > 1
    }
}

/// Whether a call is refused because it concerns several targets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Crossing {
    /// It concerns one target.
    No,
    /// It concerns one target, which may be unable to see that the call makes no loop.
    Perhaps,
    /// It concerns several targets.
    Yes,
}

impl Model {
    /// The same with the root on another target.
    pub(crate) fn placed_on(mut self, mdt: u32) -> Model {
        self.change(ROOT).mdt = mdt;
        self
    }

    /// By inode number: on which target each known object is.
    pub(crate) fn places(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.ids().filter_map(|id| Some((self.ino_of(id)?, self.inode(id).mdt)))
    }

    /// The targets that a call concerns: those of the objects that it changes or reads, apart from the way to them. All, if it
    /// concerns no object.
    pub(crate) fn mdts_of(&self, op: &Op) -> Mdts {
        let (root, mut op) = (Cred::default(), op.clone());
        let on = |id: Id| Mdts::one(self.inode(id).mdt);
        let mut found = op.fd().and_then(|fd| self.open.get(&fd)).map_or(Mdts::NONE, |file| on(file.id));
        if let Op::MkdirOn { mdt, .. } = op {
            found = found.and(Mdts::one(mdt));
        }
        for (role, path) in op.paths_mut() {
            found = found.and(self.walk(&root, path).map_or(Mdts::NONE, on));
            if role == PathRole::ToName {
                found = found.and(self.parent(&root, path).map_or(Mdts::NONE, |(dir, _)| on(dir)));
            }
        }
        if found == Mdts::NONE { Mdts::ALL } else { found }
    }

    /// Whether a rename is refused because it crosses targets.
    pub(crate) fn crossing(&self, op: &Op) -> Crossing {
        match op {
            Op::Rename { from, to, flags } => self.rename_crossing(from, to, flags & 2 != 0),
            _ => Crossing::No,
        }
    }

    /// Whether this result refuses a call because it crosses targets, as it should or may.
    pub(crate) fn is_refused_across(&self, op: &Op, result: &Result<Returned, Errno>) -> bool {
        *result == Err(Errno::EXDEV) && self.crossing(op) != Crossing::No
    }

    fn rename_crossing(&self, from: &Path, to: &Path, exchange: bool) -> Crossing {
        let root = Cred::default();
        let (Ok((dir, _)), Ok((new_dir, _))) = (self.parent(&root, from), self.parent(&root, to)) else {
            return Crossing::No;
        };
        let (moved, there) = (self.walk(&root, from).ok(), self.walk(&root, to).ok());
        if dir == new_dir {
            return Crossing::No;
        }
        let is_dir = |id: Option<Id>| id.is_some_and(|id| self.inode(id).is_dir());
        let mdt = self.inode(dir).mdt;
        let crosses = [Some(new_dir), moved, there].into_iter().flatten().any(|id| self.inode(id).mdt != mdt);
        if crosses && (is_dir(moved) || exchange && is_dir(there)) {
            return Crossing::Yes;
        }
        match (is_dir(moved), is_dir(there)) {
            // Of a directory on another target the way up is not known.
            (false, true) if self.inode(new_dir).mdt != mdt => match self.local_way(dir).1 {
                End::AtRoot => Crossing::No,
                End::Leaves(_) => Crossing::Perhaps,
            },
            (true, false) => self.way_up(new_dir, dir),
            (false, true) => self.way_up(dir, new_dir),
            (true, true) => worse(self.way_up(new_dir, dir), self.way_up(dir, new_dir)),
            (false, false) => Crossing::No,
        }
    }

    /// Whether the target of both directories sees that the way up from `new` is free of the moved directory, which was in `old`:
    /// it follows the way to the root, or to a directory that is also above `old`, as far as directories are its own.
    fn way_up(&self, new: Id, old: Id) -> Crossing {
        let (way, end) = self.local_way(new);
        let (known, _) = self.local_way(old);
        let End::Leaves(beyond) = end else { return Crossing::No };
        if way.iter().any(|id| known.contains(id)) {
            return Crossing::No;
        }
        // The FID of the directory beyond is known there, but nothing else of it; and so of the way up from `old`.
        let is_above = |id: Id| self.is_above(id, old);
        let met = way.into_iter().any(is_above) || beyond.is_none_or(is_above);
        if met { Crossing::Perhaps } else { Crossing::Yes }
    }

    /// The directories from this one up, as far as they lie on its target, and where they end.
    fn local_way(&self, from: Id) -> (Vec<Id>, End) {
        let mdt = self.inode(from).mdt;
        let mut way = vec![from];
        loop {
            let at = way[way.len() - 1];
            match self.inode(at).body {
                // Above the process's directory is the root, on the first target.
                _ if at == ROOT => return (way, if mdt == 0 { End::AtRoot } else { End::Leaves(None) }),
                Body::Directory { parent, .. } if self.inode(parent).mdt == mdt => way.push(parent),
                Body::Directory { parent, .. } => return (way, End::Leaves(Some(parent))),
                _ => return (way, End::AtRoot),
            }
        }
    }

    /// The same call in another state, for a change that lasts there whatever became of names on other targets: a path is followed
    /// from the last directory whose name is on another target than itself. Also returns whether some path is. `None` if that
    /// directory does not exist there.
    pub(crate) fn local_call_in(&self, other: &Model, op: &Op) -> Option<(Op, bool)> {
        let mut op = op.clone();
        let mut is_across = false;
        for (role, path) in op.paths_mut() {
            let dirs = if role == PathRole::ToName { path.len().saturating_sub(1) } else { path.len() };
            let (mut at, mut boundary) = (ROOT, (0, ROOT));
            for (position, name) in path[..dirs].iter().enumerate() {
                let Some(&next) = self.entries(at).get(name) else { break };
                if self.inode(next).mdt != self.inode(at).mdt {
                    boundary = (position + 1, next);
                }
                at = next;
            }
            let (local, dir) = boundary;
            if local > 0 {
                is_across = true;
                let paths = other.paths();
                let now = paths.into_iter().find(|(_, id)| *id == dir).map(|(path, _)| path)?;
                *path = now.into_iter().chain(path[local..].iter().cloned()).collect();
            }
        }
        Some((op, is_across))
    }
}

/// Where the way up from a directory ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// At the root of the file system.
    AtRoot,
    /// Before this directory, which is on another target; `None` is the root of the file system.
    Leaves(Option<Id>),
}

fn worse(one: Crossing, other: Crossing) -> Crossing {
    match (one, other) {
        (Crossing::Yes, _) | (_, Crossing::Yes) => Crossing::Yes,
        (Crossing::Perhaps, _) | (_, Crossing::Perhaps) => Crossing::Perhaps,
        _ => Crossing::No,
    }
}
