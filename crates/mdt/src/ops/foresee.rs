//! What a replay will read, asked for while it waits for its turn.
//!
//! Replays are executed one after another, and right after a restart nothing is in memory: a replay that found out by itself
//! what it misses would make all others wait, for each record anew. So each asks in advance, as soon as it arrives, and what
//! hundreds of them ask for is loaded together. This is a hint and no more: changes that are replayed before it may make or
//! remove what it looks at, and what is not foreseen is loaded in its turn.

use crate::{Mdt, tree};
use bytes::Bytes;
use proto::msg::{ObjSetattrReq, PunchReq, Reint, ReintReq, WriteReq};
use proto::{Fid, Opcode};
use schema::{Entry, EntryKey, Inode, Oi, SeqGrant, SmallData, first_cookie};
use target::{Cx, Request, Stop};

/// See the module.
pub fn foresee(mdt: &Mdt, cx: &mut Cx<'_>, request: &Request) -> Result<(), Stop> {
    let mut look = Look { mdt, cx, waits: false };
    match request.opcode {
        Opcode::MdsReint => look.reint(&request.decode()?),
        Opcode::ObjWrite => look.data(request.decode::<WriteReq>()?.object.fid),
        Opcode::ObjPunch => look.data(request.decode::<PunchReq>()?.object.fid),
        Opcode::ObjSetattr => look.object(request.decode::<ObjSetattrReq>()?.object.fid),
        // A close finds what its open has looked at.
        _ => {}
    }
    if look.waits { Err(Stop::Wait) } else { Ok(()) }
}

/// Looks at records, and notes whether one is missing, so that all that can be seen to be missing is asked for at once.
struct Look<'a, 'b> {
    mdt: &'a Mdt,
    cx: &'a mut Cx<'b>,
    waits: bool,
}

/// What becomes of a name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Taken,
    Freed,
}

impl Look<'_, '_> {
    fn reint(&mut self, request: &ReintReq) {
        match &request.op {
            Some(Reint::Setattr(op)) => self.object(op.fid),
            Some(Reint::Setxattr(op)) => self.object(op.fid),
            Some(Reint::Setlayout(op)) => self.object(op.fid),
            Some(Reint::Create(op)) => {
                self.new_object(op.fid);
                self.name(op.parent, &op.name, Fate::Taken);
            }
            Some(Reint::Link(op)) => {
                self.object(op.fid);
                self.name(op.parent, &op.name, Fate::Taken);
            }
            Some(Reint::Unlink(op)) => self.name(op.parent, &op.name, Fate::Freed),
            Some(Reint::Rename(op)) => {
                self.name(op.source_parent, &op.source_name, Fate::Freed);
                self.name(op.target_parent, &op.target_name, Fate::Taken);
            }
            Some(Reint::Open(op)) => {
                self.object(op.opened_fid.unwrap_or(op.fid));
                if let Some(parent) = op.parent {
                    self.new_object(op.fid);
                    self.name(parent, &op.name, Fate::Taken);
                }
            }
            None => {}
        }
    }

    /// What was found; nothing if it is missing, or damaged: then the replay finds that out by itself.
    fn found<T>(&mut self, found: Result<T, Stop>) -> Option<T> {
        self.waits |= matches!(found, Err(Stop::Wait));
        found.ok()
    }

    fn place_of(&mut self, fid: Fid) -> Option<u64> {
        let found = self.cx.get::<Oi>(&fid);
        Some(self.found(found)??.ino)
    }

    fn inode(&mut self, ino: u64) {
        let found = self.cx.exists::<Inode>(&ino);
        self.found(found);
    }

    fn object(&mut self, fid: Fid) {
        if let Some(ino) = self.place_of(fid) {
            self.inode(ino);
        }
    }

    /// An object that is to be made, so its FID must be free.
    fn new_object(&mut self, fid: Fid) {
        let found = self.cx.exists::<SeqGrant>(&fid.seq);
        self.found(found);
        let found = self.cx.exists::<Oi>(&fid);
        self.found(found);
    }

    /// A file whose bytes lie here.
    fn data(&mut self, fid: Fid) {
        if let Some(ino) = self.place_of(fid) {
            self.inode(ino);
            let found = self.cx.exists::<SmallData>(&ino);
            self.found(found);
        }
    }

    /// A name in a directory, and the object that has it.
    fn name(&mut self, parent: Fid, name: &Bytes, fate: Fate) {
        let Some(dir) = self.place_of(parent) else { return };
        self.inode(dir);
        let place = self.mdt.place(self.cx, dir, name);
        let place = self.found(place);
        if fate == Fate::Freed {
            // Whether its chain goes on.
            let cookie = place.as_ref().map_or_else(|| first_cookie(self.cx.header(), name), |place| place.key.cookie);
            let found = self.cx.exists::<Entry>(&EntryKey { dir, cookie: cookie + 1 });
            self.found(found);
        }
        if let Some(entry) = place.and_then(|place| place.entry) {
            let found = tree::of_entry(self.cx, &entry);
            self.found(found);
        }
    }
}
