//! What a replay will read, asked for while it waits for its turn.
//!
//! Replays are executed one after another, and right after a restart nothing is in memory: a replay that found out by itself
//! what it misses would make all others wait, for each record anew. So each asks in advance, as soon as it arrives, and what
//! hundreds of them ask for is loaded together. This is a hint and no more: changes that are replayed before it may make or
//! remove what it looks at, and what is not asked for is loaded in its turn.

use crate::ops::batch;
use crate::ops::subjects::{self, Fate, Subject};
use crate::{Mdt, tree};
use bytes::Bytes;
use proto::msg::{ObjSetattrReq, PunchReq, ReintReq, WriteReq};
use proto::{Fid, Opcode};
use schema::{Entry, EntryKey, Inode, Oi, SeqGrant, SmallData, first_cookie};
use target::{Cx, Request, Stop};

/// See the module.
pub fn prefetch(mdt: &Mdt, cx: &mut Cx<'_>, request: &Request) -> Result<(), Stop> {
    let mut look = Look { mdt, cx, waits: false };
    match request.opcode {
        Opcode::MdsReint => look.change(&request.decode()?),
        Opcode::MdsBatch => batch::decode(&request.decode()?)?.iter().for_each(|change| look.change(change)),
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

impl Look<'_, '_> {
    fn change(&mut self, request: &ReintReq) {
        for subject in request.op.iter().flat_map(subjects::of) {
            match subject {
                Subject::Object(fid) => self.object(fid),
                Subject::New(fid) => self.new_object(fid),
                Subject::Name { parent, name, fate } => self.name(parent, name, fate),
            }
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
