//! Checks of striped directories: the stripes against their master, over all metadata targets.

use std::collections::BTreeMap;

use crate::{Inconsistency, Mdt, decode, object};
use proto::msg::Lmv;
use proto::{Bytes, Fid};
use rules::acl;
use schema::{Inode, LinkEa, Relayout};

/// Whether it is a stripe of a directory other than the master.
pub(crate) fn is_other(inode: &Inode) -> bool {
    inode.lmv.as_ref().is_some_and(|lmv| lmv.master.is_some())
}

/// Checks the records of layouts that change: there is one for each stripe whose names move, and no other.
fn check_relayouts(mdt: &Mdt<'_>, mdts: &[Mdt<'_>], found: &mut Vec<Inconsistency>) {
    let records: BTreeMap<Fid, Relayout> = decode::<Relayout>(mdt.records, found).into_iter().collect();
    let mut wrong = |fid, master, what| found.push(Inconsistency::WrongStripe { fid, master, what });
    let is_moving = |inode: &Inode| inode.nlink > 0 && inode.moving().is_some();
    for inode in mdt.inodes.values().filter(|inode| is_moving(inode)) {
        let (fid, master) = (inode.fid, inode.master());
        let stripes = object(mdts, master).map_or(&[][..], Inode::stripes);
        match records.get(&fid) {
            None => wrong(fid, master, "its names move, and there is no record of that"),
            Some(record) if record.stripes != stripes => {
                wrong(fid, master, "its record of names that move has other stripes than its master");
            }
            Some(_) => {}
        }
    }
    for fid in records.keys() {
        let inode = mdt.object(*fid).map(|(_, inode)| inode);
        if !inode.is_some_and(is_moving) {
            wrong(*fid, inode.map_or(*fid, Inode::master), "there is a record that its names move, and they do not");
        }
    }
}

/// Runs these checks. The master of a removed directory may be open; it has no stripes any more.
pub(crate) fn check(mdts: &[Mdt<'_>], found: &mut Vec<Inconsistency>) {
    for mdt in mdts {
        check_relayouts(mdt, mdts, found);
    }
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
        let is_plain = !lmv.is_moving() && lmv.count == 1 && lmv.stripes.is_empty();
        if is_plain && lmv.index == 0 {
            // It had more stripes.
            continue;
        }
        let is_first = lmv.stripes.first().is_some_and(|first| first.fid == fid) && lmv.index == 0;
        if !is_first || lmv.stripes.len() as u64 != u64::from(lmv.count.max(lmv.former_count)) {
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
    let shared = |lmv: &Lmv| (lmv.hash, lmv.count, lmv.version, lmv.former_hash, lmv.former_count);
    if shared(own) != shared(lmv) || !own.stripes.is_empty() {
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
