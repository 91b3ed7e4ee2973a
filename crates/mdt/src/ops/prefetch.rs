//! Prefetch of the records that a queued replay will read.
//!
//! Replays run one after another, and right after a restart nothing is in memory. Without prefetch, each miss of a replay
//! would make all later ones wait. So a replay requests its records as soon as it arrives, and the records for hundreds of
//! replays are loaded together. This is only a hint: earlier replays may make or remove what this one prefetches, and a
//! record that was not prefetched is loaded when its replay runs.

use crate::known::Pending;
use crate::ops::batch;
use crate::ops::subjects::{self, Fate, Subject};
use crate::{Mdt, tree};
use bytes::Bytes;
use proto::msg::{ObjSetattrReq, PunchReq, ReintReq, WriteReq};
use proto::{Fid, Opcode};
use schema::{Entry, EntryKey, Inode, Oi, SeqGrant, SmallData, first_cookie};
use target::{Cx, Request, Stop};

/// Prefetches the records of a replay.
pub fn prefetch(mdt: &Mdt, cx: &mut Cx<'_>, request: &Request) -> Result<(), Stop> {
    let mut look = Prefetch { mdt, cx, waits: false };
    match request.opcode {
        Opcode::MdsReint => look.change(&request.decode()?),
        Opcode::MdsBatch => batch::decode(&request.decode()?)?.iter().for_each(|change| look.change(change)),
        Opcode::ObjWrite => look.data(request.decode::<WriteReq>()?.object.fid),
        Opcode::ObjPunch => look.data(request.decode::<PunchReq>()?.object.fid),
        Opcode::ObjSetattr => look.object(request.decode::<ObjSetattrReq>()?.object.fid),
        // A close reads the object that its open has prefetched.
        _ => {}
    }
    if look.waits { Err(Stop::Wait) } else { Ok(()) }
}

/// Reads records and notes whether any is missing. A miss does not stop it, so that all missing records are loaded at once.
struct Prefetch<'a, 'b> {
    mdt: &'a Mdt,
    cx: &'a mut Cx<'b>,
    waits: bool,
}

impl Prefetch<'_, '_> {
    fn change(&mut self, request: &ReintReq) {
        for subject in request.op.iter().flat_map(subjects::of) {
            match subject {
                Subject::Object(fid) => self.object(fid),
                Subject::New(fid) => self.new_object(fid),
                Subject::Name { parent, name, fate } => self.name(parent, name, fate),
            }
        }
    }

    /// The record, unless it is missing or damaged. The replay itself reports damage.
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

    /// An object that the replay makes: its FID must be free.
    fn new_object(&mut self, fid: Fid) {
        let found = self.cx.exists::<SeqGrant>(&fid.seq);
        self.found(found);
        let found = self.cx.exists::<Oi>(&fid);
        self.found(found);
    }

    /// A resident file and its data.
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
        let place = self.mdt.place_in(self.cx, &Pending::default(), dir, name);
        let place = self.found(place);
        if fate == Fate::Freed {
            // The next entry, which tells whether the chain continues.
            let cookie = place.as_ref().map_or_else(|| first_cookie(self.cx.header(), name), |place| place.key.cookie);
            let found = self.cx.exists::<Entry>(&EntryKey { dir, cookie: cookie + 1 });
            self.found(found);
        }
        if let Some(entry) = place.and_then(|place| place.entry).filter(|entry| entry.mdt.is_none()) {
            let found = tree::of_entry(self.cx, &entry);
            self.found(found);
        }
    }
}
