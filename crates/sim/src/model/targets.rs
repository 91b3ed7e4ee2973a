//! On which metadata targets objects lie, and what that means for calls.
//!
//! A new object lies on the target of its name: that of its directory, or of a striped directory that of the stripe that has the
//! name. Only `mkdir` can place it on another one, or distribute it over several. It stays there when it gets another name. A
//! change that concerns several targets is atomic, and durable when it is answered. So is a rename that gives a directory another
//! parent if the way up from there leads over other targets than the one that has everything else.

use std::rc::Rc;

use client::api::NewDir;
use proto::msg::{Cred, DirHash, inherit};
use rules::stripes;

use super::{Body, Id, Model, Op, Path, PathRole, ROOT};

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

/// Where an object lies.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Home {
    /// Its target; of a striped directory those of its stripes.
    mdts: Rc<[u32]>,
    /// The function that assigns names to stripes.
    hash: i32,
}

impl Home {
    /// On one target.
    pub(crate) fn one(mdt: u32) -> Home {
        Home { mdts: Rc::new([mdt]), hash: 0 }
    }

    /// The target of the object, of a striped directory that of its first stripe.
    pub(crate) fn first(&self) -> u32 {
        self.mdts[0]
    }

    /// The targets of all stripes.
    pub(crate) fn all(&self) -> Mdts {
        self.mdts.iter().map(|mdt| Mdts::one(*mdt)).fold(Mdts::NONE, Mdts::and)
    }

    /// The target of a name in the directory.
    pub(crate) fn of_name(&self, name: &[u8]) -> u32 {
        self.mdts[self.stripe_of(name) as usize]
    }

    /// The index of the stripe that has a name.
    pub(crate) fn stripe_of(&self, name: &[u8]) -> u32 {
        let hash = DirHash::try_from(self.hash).unwrap_or(DirHash::Unknown);
        stripes::of_hash(hash, name, self.stripes())
    }

    /// The number of stripes; 1: it is not striped.
    pub(crate) fn stripes(&self) -> u32 {
        self.mdts.len() as u32
    }

    /// Whether it is a striped directory.
    pub(crate) fn is_striped(&self) -> bool {
        self.mdts.len() > 1
    }
}

/// The default of a directory for those that are made in it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct HomeDefault {
    /// Where they lie.
    pub home: Home,
    /// How far it is inherited, as [`proto::msg::inherit`] has it.
    pub depth: u32,
}

impl HomeDefault {
    /// What they inherit.
    pub(crate) fn below(self) -> Option<HomeDefault> {
        match self.depth {
            inherit::UNLIMITED => Some(self),
            depth @ 2..=inherit::LEVELS_MAX => Some(HomeDefault { depth: depth - 1, ..self }),
            _ => None,
        }
    }
}

impl From<&NewDir> for Home {
    fn from(wish: &NewDir) -> Home {
        Home { mdts: wish.mdts.as_slice().into(), hash: wish.hash }
    }
}

impl Model {
    /// The same with the root elsewhere.
    pub(crate) fn placed_on(mut self, home: Home) -> Model {
        self.change(ROOT).home = home;
        self
    }

    /// By inode number: on which target each known object is.
    pub(crate) fn places(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.ids().filter_map(|id| Some((self.ino_of(id)?, self.inode(id).home.first())))
    }

    /// The target of a name in a directory.
    fn target_of(&self, dir: Id, path: &Path) -> u32 {
        self.inode(dir).home.of_name(path.last().map_or(&[][..], |name| name))
    }

    /// The targets that a call concerns: those of the objects that it changes or reads, apart from the way to them. All, if it
    /// concerns no object.
    pub(crate) fn mdts_of(&self, op: &Op) -> Mdts {
        let (root, mut op) = (Cred::default(), op.clone());
        let on = |id: Id| self.inode(id).home.all();
        let first = |id: Id| Mdts::one(self.inode(id).home.first());
        let mut found = op.fd().and_then(|fd| self.open.get(&fd)).map_or(Mdts::NONE, |file| on(file.id));
        match &op {
            Op::MkdirOn { wish, .. } => found = found.and(Home::from(wish).all()),
            Op::Mkdir { path, .. } => {
                let dir = self.parent(&root, path).ok().map(|(dir, _)| self.inode(dir));
                if let Some(default) = dir.and_then(|dir| dir.default.as_ref()) {
                    found = found.and(default.home.all());
                }
            }
            _ => {}
        }
        // Attributes that stripes have in common are changed on all of them, the names of the directory itself on the first.
        let changes_first = match &op {
            Op::Setxattr { name, .. } | Op::Removexattr { name, .. } => !name.starts_with(b"system."),
            _ => false,
        };
        let (moves, exchanges) = match &op {
            Op::Rename { flags, .. } => (true, flags & 2 != 0),
            _ => (false, false),
        };
        for ((role, path), number) in op.paths_mut().into_iter().zip(0..) {
            let stays = changes_first || moves && (number == 0 || exchanges);
            found = found.and(self.walk(&root, path).map_or(Mdts::NONE, |id| if stays { first(id) } else { on(id) }));
            if role == PathRole::ToName {
                let name = |(dir, _)| Mdts::one(self.target_of(dir, path));
                found = found.and(self.parent(&root, path).map_or(Mdts::NONE, name));
            }
        }
        if let Op::Rename { from, to, .. } = &op {
            found = found.and(self.ways_up(from, to, exchanges));
        }
        if found == Mdts::NONE { Mdts::ALL } else { found }
    }

    /// The targets of the directories that have to keep their parents while directories get other ones: those from the new parent
    /// up. None if the rename certainly or perhaps concerns a single target, which sees what it needs.
    fn ways_up(&self, from: &Path, to: &Path, exchange: bool) -> Mdts {
        let root = Cred::default();
        let (Ok((dir, _)), Ok((new_dir, _))) = (self.parent(&root, from), self.parent(&root, to)) else {
            return Mdts::NONE;
        };
        let (moved, there) = (self.walk(&root, from).ok(), self.walk(&root, to).ok());
        let is_dir = |id: Option<Id>| id.is_some_and(|id| self.inode(id).is_dir());
        let ways: Vec<(Id, Id)> = [(is_dir(moved), (new_dir, dir)), (exchange && is_dir(there), (dir, new_dir))]
            .into_iter()
            .filter_map(|(moves, way)| moves.then_some(way))
            .collect();
        if dir == new_dir {
            return Mdts::NONE;
        }
        let (mdt, new_mdt) = (self.target_of(dir, from), self.target_of(new_dir, to));
        let is_far = |id: Id| self.inode(id).home.first() != mdt;
        let replaced = there.is_some_and(|id| !exchange && self.inode(id).home.is_striped());
        let crosses = new_mdt != mdt || replaced || [moved, there].into_iter().flatten().any(is_far);
        if !crosses && !ways.iter().any(|(new, old)| self.leaves(*new, *old, mdt)) {
            return Mdts::NONE;
        }
        ways.into_iter().map(|(new, _)| self.way_up(new)).fold(Mdts::NONE, Mdts::and)
    }

    /// The targets of a directory and of those above it.
    fn way_up(&self, from: Id) -> Mdts {
        let (mut way, mut at) = (Mdts::NONE, from);
        loop {
            way = way.and(Mdts::one(self.inode(at).home.first()));
            match self.inode(at).body {
                Body::Directory { parent, .. } if at != ROOT => at = parent,
                _ => return way,
            }
        }
    }

    /// Whether the way up from `new` certainly leaves this target before it meets a directory that is also above `old`.
    fn leaves(&self, new: Id, old: Id, mdt: u32) -> bool {
        let (way, end) = self.local_way(new, mdt);
        let (known, _) = self.local_way(old, mdt);
        let End::Leaves(beyond) = end else { return false };
        if way.iter().any(|id| known.contains(id)) {
            return false;
        }
        // The FID of the directory beyond is known there, but nothing else of it; and so of the way up from `old`.
        let is_above = |id: Id| self.is_above(id, old);
        !way.into_iter().any(is_above) && !beyond.is_none_or(is_above)
    }

    /// The directories from this one up, as far as they lie on a target, and where they end. The target has a name in the first.
    fn local_way(&self, from: Id, mdt: u32) -> (Vec<Id>, End) {
        let (mut way, mut at) = (Vec::new(), from);
        loop {
            if self.inode(at).home.first() != mdt {
                return (way, End::Leaves(Some(at)));
            }
            way.push(at);
            match self.inode(at).body {
                // Above the process's directory is the root, on the first target.
                _ if at == ROOT => return (way, if mdt == 0 { End::AtRoot } else { End::Leaves(None) }),
                Body::Directory { parent, .. } => at = parent,
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
                if self.inode(next).home.all() != Mdts::one(self.inode(at).home.of_name(name)) {
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
