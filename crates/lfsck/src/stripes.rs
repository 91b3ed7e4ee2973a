//! Checks of striped directories: the stripes against their master, over all metadata targets.

use crate::{Inconsistency, Mdt, object};
use proto::Bytes;
use rules::acl;
use schema::{Inode, LinkEa};

/// Whether it is a stripe of a directory other than the master.
pub(crate) fn is_other(inode: &Inode) -> bool {
    inode.lmv.as_ref().is_some_and(|lmv| lmv.master.is_some())
}

/// Runs these checks. The master of a removed directory may be open; it has no stripes any more.
pub(crate) fn check(mdts: &[Mdt<'_>], found: &mut Vec<Inconsistency>) {
    for inode in mdts.iter().flat_map(|mdt| mdt.inodes.values()).filter(|inode| inode.nlink > 0) {
        let (fid, master) = (inode.fid, inode.master());
        let Some(lmv) = &inode.lmv else { continue };
        let mut wrong = |fid, what| found.push(Inconsistency::WrongStripe { fid, master, what });
        if !inode.is_dir() {
            wrong(fid, "it is no directory");
        }
        if is_other(inode) {
            check_stripe(inode, object(mdts, master), |what| wrong(fid, what));
            continue;
        }
        let is_first = lmv.stripes.first().is_some_and(|first| first.fid == fid) && lmv.index == 0;
        if !is_first || lmv.stripes.len() as u64 != u64::from(lmv.count) {
            wrong(fid, "the master is not the first of as many stripes as it counts");
        }
        for stripe in lmv.stripes.iter().skip(1) {
            let mut there = mdts.iter().filter(|mdt| mdt.target.is_none_or(|target| target == stripe.mdt));
            let object = there.find_map(|mdt| mdt.object(stripe.fid));
            if object.is_none_or(|(_, stripe)| stripe.master() != fid) {
                wrong(stripe.fid, "the master lists it, and it is not there");
            }
        }
    }
}

/// Checks a stripe against its master.
fn check_stripe(stripe: &Inode, master: Option<&Inode>, mut wrong: impl FnMut(&'static str)) {
    let master = master.filter(|master| master.nlink > 0);
    let (Some(master), Some(own)) = (master, stripe.lmv.as_ref()) else { return wrong("its master is not there") };
    let Some(lmv) = master.lmv.as_ref().filter(|_| !is_other(master)) else {
        return wrong("its master has no stripes");
    };
    if own.index == 0 || lmv.stripes.get(own.index as usize).is_none_or(|listed| listed.fid != stripe.fid) {
        wrong("its master does not list it there");
    }
    if (own.hash, own.count, own.version) != (lmv.hash, lmv.count, lmv.version) || !own.stripes.is_empty() {
        wrong("its layout is not that of its master");
    }
    let name = Bytes::from(format!("{}:{}", stripe.fid, own.index));
    if stripe.links != LinkEa::one(master.fid, name) {
        wrong("its linkEA does not name its master");
    }
    let lists = |inode: &Inode| [acl::ACCESS, acl::DEFAULT].map(|name| inode.xattr(name).cloned());
    if (stripe.mode, stripe.uid, stripe.gid) != (master.mode, master.uid, master.gid) {
        wrong("its mode or owner is not that of its master");
    }
    if lists(stripe) != lists(master) {
        wrong("its access lists are not those of its master");
    }
    if stripe.layout != master.layout {
        wrong("its default layout is not that of its master");
    }
    if stripe.dir_default != master.dir_default {
        wrong("its default for directories is not that of its master");
    }
}
