//! Policies for names: when to request a directory's lock, lease or complete listing, and under which locks an answer
//! about a name is valid.

use bytes::Bytes;
use core::time::Duration;
use proto::Fid;
use proto::msg::{Attr, LockGrant, ObjectRep, Policy, Stripe, bits};

use crate::base::Dest;
use crate::cache::names::{Directory, Epochs};
use crate::coherence::data;
use crate::coherence::locks;
use crate::coherence::op::Task;
use crate::coherence::world::World;

/// Absent or new names in a row before the whole directory is fetched.
const MISSES_BEFORE_LISTING: u32 = 3;
/// Fetching this many names of a listing costs as much as one lookup.
const NAMES_PER_MISS: usize = 64;
/// Names that are changed in a directory before a lease on it is requested.
const CHANGES_BEFORE_LEASE: u32 = 2;
/// After a directory's lock was lost, no lease is requested for this long.
const LEASE_PAUSE: Duration = Duration::from_secs(1);
/// A directory lock that was lost this often in a short time is no longer requested.
const CONTENDED: u16 = 4;

impl World {
    /// Whether a request about names in this directory should request its UPDATE lock: it is not held and not
    /// contended.
    pub(crate) fn wants_directory_lock(&self, ino: u64) -> bool {
        let fought_for = |dir: &Directory| dir.losses >= CONTENDED && self.now.since(dir.lost_at).as_millis() <= 500;
        let node = self.nodes.get(ino);
        node.is_none_or(|node| !node.has(bits::UPDATE) && !node.dir.as_deref().is_some_and(fought_for))
    }

    /// A name was absent, or was created. A program that meets several such names is probably about to create more:
    /// with the complete listing, no further one needs a request. Where other clients work too, they may invalidate the
    /// listing at once, so there it must be cheap compared with the lookups so far.
    pub(crate) fn missed_name(&mut self, ino: u64) {
        let quiet = self.is_quiet(ino);
        let Some(node) = self.nodes.get_mut(ino).filter(|node| node.has(bits::UPDATE)) else { return };
        let epoch = node.validity.update_epoch();
        let dir = node.dir_mut();
        // Some of the complete listing's names had to be forgotten, and this name only matched the filter of those.
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

    /// Whether no other client has taken a directory's lock away recently.
    fn is_quiet(&self, ino: u64) -> bool {
        let long_ago = |dir: &Directory| dir.losses == 0 || self.now.since(dir.lost_at) > LEASE_PAUSE;
        self.nodes.get(ino).and_then(|node| node.dir.as_deref()).is_none_or(long_ago)
    }

    /// Whether a create in this directory should request a lease on it: names are created here repeatedly, all names
    /// are cached, and no other client has taken the lock away recently.
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

    /// Whether one of these locks, which came with a reply, covers `wanted` of an object and has been usable ever
    /// since. A lock that was called back covers nothing, even if another one has been granted meanwhile.
    fn brought<'a>(&self, grants: impl IntoIterator<Item = &'a LockGrant>, ino: u64, wanted: u64) -> bool {
        grants.into_iter().any(|grant| {
            let fid = grant.resource.fid;
            let locks = || self.locks.get(self.mdt_of(fid));
            fid.ino() == ino
                && matches!(grant.policy, Some(Policy::Bits(b)) if b & wanted != 0)
                && locks().is_some_and(|locks| locks.is_usable(grant.cookie))
        })
    }

    /// The epoch to which a reply about names in `parent` belongs: the current one if the reply itself brought the
    /// lock, otherwise the one in which the request was sent.
    pub(crate) fn reply_epoch(&self, grants: &[LockGrant], parent: u64, sent: u32) -> u32 {
        if self.brought(grants, parent, bits::UPDATE) { self.nodes.directory_epoch(parent) } else { sent }
    }

    /// The same for the object to which a name led when the request with this number was answered: 0 if its lock
    /// neither came with the reply nor was held when the request was sent. The reply may have been delayed: a lock
    /// granted meanwhile does not cover it.
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

/// A name that a request is about, and the epoch of its directory's names and the version of the directory's layout when the
/// request was sent.
#[derive(Clone, Debug)]
pub(crate) struct NameRequest {
    pub(crate) parent: u64,
    pub(crate) name: Bytes,
    epoch: u32,
    layout: u32,
}

impl NameRequest {
    /// For a request that is sent now.
    pub(crate) fn now(w: &World, parent: u64, name: &Bytes) -> NameRequest {
        let (epoch, layout) = (w.nodes.directory_epoch(parent), w.nodes.layout_version(parent));
        NameRequest { parent, name: name.clone(), epoch, layout }
    }

    /// The epochs to which the reply with this number belongs; `attr` is the object to which the name leads, if any.
    pub(crate) fn epochs(&self, w: &World, rep: &ObjectRep, number: u64, attr: Option<&Attr>) -> Epochs {
        let dir = w.reply_epoch(&rep.locks, self.parent, self.epoch);
        let child = attr.map_or(0, |attr| w.child_epoch(&rep.locks, attr.fid, number));
        Epochs { dir, child, layout: self.layout }
    }

    /// A reply says that the name leads to this object; the request did not change that.
    pub(crate) fn found(&self, w: &mut World, rep: &ObjectRep, number: u64, attr: &Attr) {
        let epochs = self.epochs(w, rep, number, Some(attr));
        let version = rep.parent_attr.as_ref().map_or(0, |attr| attr.version);
        w.nodes.learn_child(self.parent, &self.name, attr, epochs, version);
    }
}

/// A name of an object was removed; `attr` are its attributes afterwards. `destroyed`: the object is gone, because
/// nobody has it open either.
pub(crate) fn name_removed(w: &mut World, parent: u64, name: &Bytes, attr: &Attr, destroyed: bool) {
    let ino = attr.fid.ino();
    let shown = w.nodes.master(parent);
    let Some(node) = w.nodes.get_mut(ino) else { return };
    node.kernel.remove_name(shown, name);
    if attr.nlink > 0 && !node.is_dir() {
        return;
    }
    stripes_removed(w, ino);
    let Some(node) = w.nodes.get_mut(ino) else { return };
    node.unlinked = true;
    node.dir = None;
    // For a pipe that a program has open no other answer brings these attributes.
    if let Some(known) = &mut node.attr {
        (known.nlink, known.ctime_ns) = (attr.nlink, known.ctime_ns.max(attr.ctime_ns));
    }
    // Otherwise another client may have the file open and read what was written here.
    if destroyed {
        data::discard(w, ino);
    }
    w.drop_if_gone(ino);
}

/// A striped directory was removed, and its stripes with it.
fn stripes_removed(w: &mut World, dir: u64) {
    // The reply may already have told that it has no links.
    let attr = w.nodes.get(dir).and_then(|node| node.attr.as_ref());
    let Some(lmv) = attr.and_then(|attr| attr.lmv.as_deref()) else { return };
    for Stripe { fid, mdt } in lmv.stripes.clone().into_iter().skip(1) {
        let dest = Dest::Mdt(mdt);
        locks::destroyed(w, dest, fid);
        if let Some(node) = w.nodes.get_mut(fid.ino()) {
            node.unlinked = true;
            node.dir = None;
        }
        w.drop_if_gone(fid.ino());
    }
}
