//! Names as locks and requests let them be known: when a directory's lock or its whole listing is worth asking for, and under which
//! locks an answer about a name is true.

use bytes::Bytes;
use core::time::Duration;
use proto::Fid;
use proto::msg::{Attr, LockGrant, ObjectRep, Policy, bits};

use crate::cache::names::{Directory, Epochs};
use crate::coherence::data;
use crate::coherence::op::Task;
use crate::coherence::world::World;

/// Names in a row that are not there before the whole directory is fetched.
const MISSES_BEFORE_LISTING: u32 = 3;
/// Fetching so many names costs as much as asking for one.
const NAMES_PER_MISS: usize = 64;
/// Names that are changed in a directory before it is leased.
const CHANGES_BEFORE_LEASE: u32 = 2;
/// After its lock was lost, a directory is leased again when nobody else came for so long.
const LEASE_PAUSE: Duration = Duration::from_secs(1);
/// Directory locks that are lost this often in a short time are no longer asked for.
const CONTENDED: u16 = 4;

impl World {
    /// Whether a request about names in this directory should bring its UPDATE lock: it is not here, and not
    /// being fought for.
    pub(crate) fn wants_directory_lock(&self, ino: u64) -> bool {
        let fought_for = |dir: &Directory| dir.losses >= CONTENDED && self.now.since(dir.lost_at).as_millis() <= 500;
        let node = self.nodes.get(ino);
        node.is_none_or(|node| !node.has(bits::UPDATE) && !node.dir.as_deref().is_some_and(fought_for))
    }

    /// A name was not there, or was made. Who meets several such names is about to make more: with the whole listing here, no further
    /// one costs a request. Where others work, too, they may void it at once: there it must be cheap beside what was asked.
    pub(crate) fn missed_name(&mut self, ino: u64) {
        let quiet = self.is_quiet(ino);
        let Some(node) = self.nodes.get_mut(ino).filter(|node| node.has(bits::UPDATE)) else { return };
        let epoch = node.validity.update_epoch();
        let dir = node.dir_mut();
        // Of all names known some had to be forgotten: this one only looked like one of them.
        if dir.complete_epoch == Some(epoch) || dir.fetching || dir.unlistable == Some(epoch) {
            return;
        }
        if dir.missed_epoch != epoch {
            (dir.missed_epoch, dir.misses) = (epoch, 0);
        }
        dir.misses += 1;
        let others = if quiet { 0 } else { (dir.names.len() / NAMES_PER_MISS) as u32 };
        if dir.misses >= MISSES_BEFORE_LISTING.max(others) {
            dir.fetching = true;
            self.spawn(Task::Listing { ino });
        }
    }

    /// Whether nobody else has taken a directory's lock away lately.
    fn is_quiet(&self, ino: u64) -> bool {
        let long_ago = |dir: &Directory| dir.losses == 0 || self.now.since(dir.lost_at) > LEASE_PAUSE;
        self.nodes.get(ino).and_then(|node| node.dir.as_deref()).is_none_or(long_ago)
    }

    /// Whether a create in this directory should bring a lease on it: names are made here one after the other, all are known, and
    /// nobody else has taken the lock away lately.
    pub(crate) fn wants_lease(&mut self, ino: u64) -> bool {
        let Some(node) = self.nodes.get(ino) else { return false };
        let (fid, dest) = (node.fid, self.mdt_of(node.fid));
        let whole = |dir: &Directory| {
            dir.complete_epoch == Some(node.validity.update_epoch()) && dir.changes >= CHANGES_BEFORE_LEASE
        };
        let wanted = node.has(bits::UPDATE) && self.is_quiet(ino) && node.dir.as_deref().is_some_and(whole);
        wanted
            && crate::coherence::metadata_write_back::allowed(self, dest)
            && crate::coherence::metadata_write_back::lease(self, dest, fid).is_none()
    }

    /// Whether these locks, which came with a reply, cover this of an object, and have been here ever since. One that was called back
    /// covers nothing, though another may have come meanwhile.
    fn brought<'a>(&self, grants: impl IntoIterator<Item = &'a LockGrant>, ino: u64, wanted: u64) -> bool {
        grants.into_iter().any(|grant| {
            let fid = grant.resource.fid;
            let locks = || self.locks.get(self.mdt_of(fid));
            fid.ino() == ino
                && matches!(grant.policy, Some(Policy::Bits(b)) if b & wanted != 0)
                && locks().is_some_and(|locks| locks.is_usable(grant.cookie))
        })
    }

    /// The epoch that a reply about names in `parent` belongs to: the present one if the reply itself brought the lock,
    /// that of the moment when the request left otherwise.
    pub(crate) fn reply_epoch(&self, grants: &[LockGrant], parent: u64, sent: u32) -> u32 {
        if self.brought(grants, parent, bits::UPDATE) { self.nodes.directory_epoch(parent) } else { sent }
    }

    /// The same of an object that a name led to when the request with this number was answered: 0 if its lock neither came with the reply
    /// nor was there when the request was made. The reply may have come late: a lock that has come meanwhile does not cover what it says.
    pub(crate) fn child_epoch<'a>(
        &self,
        grants: impl IntoIterator<Item = &'a LockGrant>,
        fid: Fid,
        number: u64,
    ) -> u32 {
        let Some(node) = self.nodes.get(fid.ino()).filter(|node| node.has(bits::LOOKUP)) else { return 0 };
        let covered = node.validity.is_under_lookup(number) || self.brought(grants, node.ino(), bits::LOOKUP);
        if !covered {
            stdx::mark!("name_from_before_the_lock");
        }
        if covered { node.validity.lookup_epoch() } else { 0 }
    }
}

/// A name that a request is about, and the epoch of its directory's names when it left.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) parent: u64,
    pub(crate) name: Bytes,
    epoch: u32,
}

impl Asked {
    /// The request leaves now.
    pub(crate) fn now(w: &World, parent: u64, name: &Bytes) -> Asked {
        Asked { parent, name: name.clone(), epoch: w.nodes.directory_epoch(parent) }
    }

    /// The epochs to which the reply with this number belongs, which says that the name leads to this object, if to any.
    pub(crate) fn epochs(&self, w: &World, rep: &ObjectRep, number: u64, attr: Option<&Attr>) -> Epochs {
        let dir = w.reply_epoch(&rep.locks, self.parent, self.epoch);
        let child = attr.map_or(0, |attr| w.child_epoch(&rep.locks, attr.fid, number));
        Epochs { dir, child }
    }

    /// A reply says that the name leads to this object, and has done so before.
    pub(crate) fn found(&self, w: &mut World, rep: &ObjectRep, number: u64, attr: &Attr) {
        let epochs = self.epochs(w, rep, number, Some(attr));
        let version = rep.parent_attr.as_ref().map_or(0, |attr| attr.version);
        w.nodes.learn_child(self.parent, &self.name, attr, epochs, version);
    }
}

/// A name of an object is gone; `attr` says what is left. `destroyed`: nobody has it open either.
pub(crate) fn unnamed(w: &mut World, parent: u64, name: &Bytes, attr: &Attr, destroyed: bool) {
    let ino = attr.fid.ino();
    let Some(node) = w.nodes.get_mut(ino) else { return };
    node.kernel.unname(parent, name);
    if attr.nlink > 0 && !node.is_dir() {
        return;
    }
    node.unlinked = true;
    node.dir = None;
    // Of a pipe that a program has open nobody else tells it so.
    if let Some(known) = &mut node.attr {
        (known.nlink, known.ctime_ns) = (attr.nlink, known.ctime_ns.max(attr.ctime_ns));
    }
    // Another client may have it open, and reads what was written here.
    if destroyed {
        data::discard(w, ino);
    }
    w.drop_if_gone(ino);
}
