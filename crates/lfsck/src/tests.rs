//! A small file system that is in order, and everything that can be wrong with it, one at a time.

use crate::*;
use bytes::Bytes;
use proto::msg::{DirHash, Layout, Lmv, Stripe};
use proto::{ClientUuid, StripeIndex};
use rules::mode::{S_IFDIR, S_IFREG};
use schema::inode::{DOT_LUSTRE_FID_INO, DOT_LUSTRE_INO, LOST_FOUND_INO, ROOT_INO};
use schema::mdt::SeqRange;
use schema::*;
use store::Value;

const SEQ: u64 = 0x2_0000_0400;
const DIR: Fid = Fid::new(SEQ, 1);
const SMALL: Fid = Fid::new(SEQ, 2);
const BIG: Fid = Fid::new(SEQ, 3);
const ORPHAN: Fid = Fid::new(SEQ, 4);
const GONE: Fid = Fid::new(SEQ, 5);
const DIR_INO: u64 = 1 << 20;
const SMALL_INO: u64 = DIR_INO + 1;
const BIG_INO: u64 = 2 << 20;
const ORPHAN_INO: u64 = BIG_INO + 1;

struct World {
    mdt: Snapshot,
    ost: Snapshot,
}

impl World {
    fn check(&self) -> Vec<Inconsistency> {
        crate::check(&[&self.mdt], &[(0, &self.ost)])
    }

    fn put<R: Record>(&mut self, id: R::Id, record: R) {
        put(&mut self.mdt, id, record);
    }

    fn delete<R: Record>(&mut self, id: R::Id) {
        delete::<R>(&mut self.mdt, id);
    }

    fn change<R: Record>(&mut self, id: R::Id, change: impl FnOnce(&mut R)) {
        self::change(&mut self.mdt, id, change);
    }
}

fn put<R: Record>(on: &mut Snapshot, id: R::Id, record: R) {
    on.set(R::key(&id), Some(record.encode_record()));
}

fn change<R: Record>(on: &mut Snapshot, id: R::Id, change: impl FnOnce(&mut R)) {
    let key = R::key(&id);
    let mut record = R::decode_record(on.get(&key).expect("it is there")).expect("it is whole");
    change(&mut record);
    on.set(key, Some(record.encode_record()));
}

fn delete<R: Record>(on: &mut Snapshot, id: R::Id) {
    on.set(R::key(&id), None);
}

fn entry_key(dir: u64, name: &[u8]) -> EntryKey {
    EntryKey { dir, cookie: first_cookie(&Header::default(), name) }
}

fn entry(name: &'static str, fid: Fid, kind: u32, ino: u64) -> Entry {
    Entry { name: Bytes::from_static(name.as_bytes()), fid: Some(fid), kind, ino, mdt: None }
}

/// `/`, `/dir`, `/dir/big` (on OST0, two names: `/big2`), `/small`; an orphan; a file that is about to be destroyed.
fn world() -> World {
    let mut world = World { mdt: Snapshot::default(), ost: Snapshot::default() };
    let mut grant = SeqGrant::new(ClientUuid(1));
    (1..=5).for_each(|oid| grant.mark_used(oid));
    world.put::<Header>((), Header { name: "fs-MDT0000".into(), ..Header::default() });
    let sequences = vec![SeqRange { start: SEQ + 1, end: SEQ + 9 }];
    world.put::<MdtState>((), MdtState { next_region: 3, sequences, ..MdtState::default() });
    world.put::<SeqGrant>(SEQ, grant);
    let dir = |fid, nlink, entries, next_ino, links| Inode {
        fid,
        mode: S_IFDIR | 0o755,
        nlink,
        dir: DirState { entries, next_ino, tombstones: 0 },
        links,
        ..Inode::default()
    };
    let file = |fid, nlink, resident, size, links| Inode {
        fid,
        mode: S_IFREG | 0o644,
        nlink,
        size,
        blocks: u64::div_ceil(size, 512),
        layout: Some(Layout { stripe_size: 1 << 20, osts: vec![0], resident, ..Layout::default() }),
        links,
        ..Inode::default()
    };
    let name = |text: &'static str| Bytes::from_static(text.as_bytes());
    let mut big_links = LinkEa::one(DIR, name("big"));
    big_links.add(Fid::ROOT, name("big2"));
    let inodes = [
        (ROOT_INO, dir(Fid::ROOT, 3, 3, DIR_INO + 2, LinkEa::default())),
        (DIR_INO, dir(DIR, 2, 1, BIG_INO + 2, LinkEa::one(Fid::ROOT, name("dir")))),
        (SMALL_INO, file(SMALL, 1, true, 5, LinkEa::one(Fid::ROOT, name("small")))),
        (BIG_INO, file(BIG, 2, false, 0, big_links)),
        (ORPHAN_INO, file(ORPHAN, 0, true, 0, LinkEa::default())),
    ];
    for (ino, inode) in inodes {
        world.put::<Oi>(inode.fid, Oi { ino });
        world.put::<Inode>(ino, inode);
    }
    world.change::<Inode>(SMALL_INO, |inode| {
        inode.xattrs = vec![InodeXattr { name: name("user.big"), value: Bytes::new(), large: true }];
    });
    world.put::<LargeXattr>((SMALL_INO, name("user.big")), LargeXattr(Bytes::from_static(&[1; 300])));
    world.put::<SmallData>(SMALL_INO, SmallData(name("hello")));
    world.put::<Orphan>(ORPHAN, Orphan { ino: ORPHAN_INO });
    world.put::<DestroyLog>(ObjectsKey { fid: GONE, first: 0 }, DestroyLog { osts: vec![0], ..DestroyLog::default() });
    let entries = [
        (ROOT_INO, entry("dir", DIR, 4, DIR_INO)),
        (ROOT_INO, entry("small", SMALL, 8, SMALL_INO)),
        (ROOT_INO, entry("big2", BIG, 8, BIG_INO)),
        (DIR_INO, entry("big", BIG, 8, BIG_INO)),
    ];
    for (dir, entry) in entries {
        world.put::<Entry>(entry_key(dir, &entry.name.clone()), entry);
    }
    for (fid, file) in [(BIG, 1), (GONE, 2)] {
        let key = Object::key(&ObjectKey { fid, stripe: StripeIndex(0) });
        world.ost.set(key, Some(Object { file, ..Object::default() }.encode_record()));
    }
    let state = OstState { next_file: 3, ..OstState::default() };
    world.ost.set(OstState::key(&()), Some(state.encode_record()));
    world
}

#[test]
fn a_file_system_in_order_has_no_inconsistencies() {
    assert_eq!(world().check(), []);
}

/// Something is wrong, and the check says what: its first line is this.
fn breaks(what: &str, damage: impl FnOnce(&mut World)) {
    let mut world = world();
    damage(&mut world);
    let found: Vec<String> = world.check().iter().map(ToString::to_string).collect();
    assert!(found.iter().any(|line| line.contains(what)), "expected '{what}', found {found:#?}");
}

/// Adds `.lustre`, as MDT0000 makes it: the root has no entry for it.
fn add_dot_lustre(world: &mut World) {
    let name = |text: &'static str| Bytes::from_static(text.as_bytes());
    let dir = |fid, nlink, entries, links| Inode {
        fid,
        mode: S_IFDIR | 0o555,
        nlink,
        dir: DirState { entries, ..DirState::default() },
        links,
        ..Inode::default()
    };
    let inodes = [
        (DOT_LUSTRE_INO, dir(Fid::DOT_LUSTRE, 4, 2, LinkEa::one(Fid::ROOT, name(".lustre")))),
        (DOT_LUSTRE_FID_INO, dir(Fid::DOT_LUSTRE_FID, 2, 0, LinkEa::one(Fid::DOT_LUSTRE, name("fid")))),
        (LOST_FOUND_INO, dir(Fid::LOST_FOUND, 2, 0, LinkEa::one(Fid::DOT_LUSTRE, name("lost+found")))),
    ];
    for (ino, inode) in inodes {
        world.put::<Oi>(inode.fid, Oi { ino });
        world.put::<Inode>(ino, inode);
    }
    let entries = [("fid", Fid::DOT_LUSTRE_FID, DOT_LUSTRE_FID_INO), ("lost+found", Fid::LOST_FOUND, LOST_FOUND_INO)];
    for (name, fid, ino) in entries {
        world.put::<Entry>(entry_key(DOT_LUSTRE_INO, name.as_bytes()), entry(name, fid, 4, ino));
    }
}

/// Before version 0.3.0 no store had `.lustre`.
#[test]
fn dot_lustre_is_there_as_a_whole_or_not_at_all() {
    let mut world = world();
    add_dot_lustre(&mut world);
    assert_eq!(world.check(), []);
    let breaks = |what, damage: fn(&mut World)| {
        breaks(what, |world| {
            add_dot_lustre(world);
            damage(world);
        });
    };
    breaks("there is no directory of .lustre", |w| {
        w.delete::<Oi>(Fid::LOST_FOUND);
        w.delete::<Inode>(LOST_FOUND_INO);
    });
    breaks("directory [0x200000002:0x2:0x0] has 0 names and 1 in its linkEA", |w| {
        w.delete::<Entry>(entry_key(DOT_LUSTRE_INO, b"fid"));
    });
    breaks("[0x200000002:0x1:0x0] counts 1 entries, there are 2", |w| {
        w.change::<Inode>(DOT_LUSTRE_INO, |inode| inode.dir.entries = 1);
    });
    breaks("directory [0x200000002:0x1:0x0] has 1 names and 1 in its linkEA", |w| {
        w.put::<Entry>(entry_key(ROOT_INO, b".lustre"), entry(".lustre", Fid::DOT_LUSTRE, 4, DOT_LUSTRE_INO));
    });
    breaks("directory [0x200000002:0x1:0x0] does not hang on the root", |w| {
        w.change::<Inode>(DOT_LUSTRE_INO, |inode| inode.links = LinkEa::default());
    });
}

#[test]
fn what_is_wrong_with_inodes_and_their_index_is_found() {
    breaks("there is no target header", |w| w.delete::<Header>(()));
    breaks("there is no root directory", |w| w.delete::<Oi>(Fid::ROOT));
    breaks("index: [0x200000400:0x2:0x0] leads to inode 1048577, which is not there", |w| w.delete::<Inode>(SMALL_INO));
    breaks("leads to inode 1, which is [0x200000007:0x1:0x0]", |w| w.put::<Oi>(SMALL, Oi { ino: ROOT_INO }));
    breaks("inode 1048577 is [0x200000400:0x2:0x0], which the index does not lead to", |w| w.delete::<Oi>(SMALL));
    breaks("which is no type", |w| w.change::<Inode>(SMALL_INO, |inode| inode.mode = 0o644));
    breaks("cannot be understood", |w| w.mdt.set(Inode::key(&SMALL_INO), Some(Value::from_static(b"\xff\xff"))));
    breaks("its key names nothing", |w| w.mdt.set(Key::new(&[0x10, 1]), Some(Value::new())));
}

#[test]
fn objects_of_a_client_that_is_gone_need_no_grant() {
    let mut world = world();
    world.delete::<SeqGrant>(SEQ);
    assert_eq!(world.check(), []);
}

#[test]
fn numbers_that_can_be_given_out_twice_are_found() {
    breaks("regions: 2 is next, but 2 is in use", |w| w.change::<MdtState>((), |state| state.next_region = 2));
    breaks("regions of directories", |w| w.change::<Inode>(DIR_INO, |dir| dir.dir.next_ino = DIR_INO + 2));
    breaks("local inode numbers: 2097153 is next, but 2097153", |w| {
        w.change::<Inode>(DIR_INO, |dir| dir.dir.next_ino = BIG_INO + 1);
    });
    breaks("[0x200000400:0x4:0x0] exists, but does not count as used", |w| {
        w.change::<SeqGrant>(SEQ, |grant| (grant.high, grant.recent) = (3, 7));
    });
    breaks("exists, but does not count as used", |w| {
        w.delete::<SeqGrant>(SEQ);
        w.change::<MdtState>((), |state| state.sequences[0].start = SEQ);
    });
    breaks("sequence 0x200000400 was granted and can be granted again", |w| {
        w.change::<MdtState>((), |state| state.sequences[0].start = SEQ);
    });
}

#[test]
fn what_is_wrong_with_the_parts_of_an_inode_is_found() {
    breaks("has 6 bytes of data, but size 5", |w| {
        w.put::<SmallData>(SMALL_INO, SmallData(Bytes::from_static(b"hello!")))
    });
    breaks("has no data record, but size 5", |w| w.delete::<SmallData>(SMALL_INO));
    breaks("data of inode 2097152, which is no resident file", |w| {
        w.put::<SmallData>(BIG_INO, SmallData(Bytes::from_static(b"x")));
    });
    breaks("attribute 'user.big' of inode 1048577", |w| {
        w.delete::<LargeXattr>((SMALL_INO, Bytes::from_static(b"user.big")));
    });
    breaks("attribute 'user.x' of inode 1", |w| {
        w.put::<LargeXattr>((ROOT_INO, Bytes::from_static(b"user.x")), LargeXattr(Bytes::new()));
    });
    breaks("[0x200000400:0x4:0x0] has no name and is no orphan", |w| w.delete::<Orphan>(ORPHAN));
    breaks("[0x200000400:0x2:0x0] is said to be an orphan", |w| w.put::<Orphan>(SMALL, Orphan { ino: SMALL_INO }));
}

#[test]
fn what_is_wrong_with_names_is_found() {
    breaks("entry 'x' is in inode 1048577, which is no directory", |w| {
        w.put::<Entry>(entry_key(SMALL_INO, b"x"), entry("x", SMALL, 8, SMALL_INO));
    });
    breaks("lies at 0x", |w| w.put::<Entry>(entry_key(ROOT_INO, b"y"), entry("x", SMALL, 8, SMALL_INO)));
    breaks("where no lookup finds it", |w| {
        let mut key = entry_key(ROOT_INO, b"x");
        key.cookie += 1;
        w.put::<Entry>(key, entry("x", SMALL, 8, SMALL_INO));
    });
    breaks("small is there twice", |w| {
        let mut key = entry_key(ROOT_INO, b"small");
        key.cookie += 1;
        w.put::<Entry>(key, entry("small", SMALL, 8, SMALL_INO));
    });
    breaks("leads to [0x200000400:0x9:0x0], which is not there", |w| {
        w.change::<Entry>(entry_key(ROOT_INO, b"small"), |entry| entry.fid = Some(Fid::new(SEQ, 9)));
    });
    breaks("small has type 4, its object 8", |w| {
        w.change::<Entry>(entry_key(ROOT_INO, b"small"), |entry| entry.kind = 4);
    });
    breaks("whose linkEA does not know it", |w| {
        w.change::<Inode>(BIG_INO, |inode| inode.links.remove(DIR, b"big"));
    });
    breaks("big2, which does not lead to it", |w| w.delete::<Entry>(entry_key(ROOT_INO, b"big2")));
    breaks("has link count 3, 2 were counted", |w| w.change::<Inode>(BIG_INO, |inode| inode.nlink = 3));
    breaks("[0x200000007:0x1:0x0] has link count 2, 3 were counted", |w| {
        w.change::<Inode>(ROOT_INO, |inode| inode.nlink = 2);
    });
    breaks("counts 4 entries, there are 3", |w| w.change::<Inode>(ROOT_INO, |inode| inode.dir.entries = 4));
    breaks("counts 0 tombstones, there are 1", |w| {
        w.put::<Entry>(entry_key(ROOT_INO, b"x"), Entry::tombstone());
    });
    breaks("directory [0x200000400:0x1:0x0] has 0 names and 1 in its linkEA", |w| {
        w.delete::<Entry>(entry_key(ROOT_INO, b"dir"));
    });
    breaks("directory [0x200000400:0x1:0x0] does not hang on the root", |w| {
        w.change::<Inode>(DIR_INO, |inode| inode.links = LinkEa::one(DIR, Bytes::from_static(b"dir")));
    });
}

#[test]
fn what_is_wrong_between_targets_is_found() {
    breaks("the destroy log has [0x200000400:0x3:0x0], which exists", |w| {
        w.put::<DestroyLog>(ObjectsKey { fid: BIG, first: 0 }, DestroyLog { osts: vec![0], ..DestroyLog::default() });
    });
    breaks("OST0000 has object [0x200000400:0x5:0x0] stripe 0, which belongs to no file", |w| {
        w.delete::<DestroyLog>(ObjectsKey { fid: GONE, first: 0 })
    });
    let object = |w: &mut World, fid, stripe, file| {
        let key = Object::key(&ObjectKey { fid, stripe: StripeIndex(stripe) });
        w.ost.set(key, Some(Object { file, ..Object::default() }.encode_record()));
    };
    breaks("object [0x200000400:0x2:0x0] stripe 0, which belongs to no file", |w| object(w, SMALL, 0, 0));
    breaks("object [0x200000400:0x3:0x0] stripe 1, which belongs to no file", |w| object(w, BIG, 1, 0));
    breaks("data file 2 of [0x200000400:0x5:0x0] is not its own", |w| object(w, BIG, 0, 2));
    breaks("data file 7 of [0x200000400:0x3:0x0] is not its own", |w| object(w, BIG, 0, 7));
    let mark = |w: &mut World, fid, file| {
        let key = Written::key(&ObjectKey { fid, stripe: StripeIndex(0) });
        w.ost.set(key, Some(Written { file, instance: 5 }.encode_record()));
        let state = OstState { next_file: 10, marked_from: 5, ..OstState::default() };
        w.ost.set(OstState::key(&()), Some(state.encode_record()));
    };
    breaks("OST0000 lost the record of [0x200000400:0x3:0x0] stripe 0, whose data file is 9", |w| mark(w, BIG, 9));
    breaks("OST0000: [0x200000400:0x3:0x0] stripe 1 is not marked as written", |w| {
        mark(w, BIG, 1);
        let key = Object::key(&ObjectKey { fid: BIG, stripe: StripeIndex(1) });
        w.ost.set(key, Some(Object { file: 8, instance: 5, ..Object::default() }.encode_record()));
        w.change::<Inode>(BIG_INO, |inode| inode.layout.as_mut().unwrap().osts = vec![0, 0]);
    });
    breaks("data file 1 of", |w| w.ost.set(DoomedFile::key(&1), Some(DoomedFile {}.encode_record())));
}

#[test]
fn a_file_that_was_about_to_move_may_have_objects() {
    let mut world = world();
    world.change::<Inode>(SMALL_INO, |inode| inode.leaving = true);
    let key = Object::key(&ObjectKey { fid: SMALL, stripe: StripeIndex(0) });
    world.ost.set(key, Some(Object::default().encode_record()));
    assert_eq!(world.check(), []);
}

#[test]
fn a_snapshot_of_an_engine_is_what_is_in_it() {
    use store::Engine;
    let engine = store::MemEngine::new();
    let mut batch = store::Batch::new();
    for n in 0..10_000 {
        batch.put(Orphan::key(&Fid::new(SEQ, n)), Orphan { ino: 1 }.encode_record());
    }
    engine.commit(1, &batch.seal(&schema::formats())).expect("it is in memory");
    let snapshot = Snapshot::of_engine(&engine).expect("it is whole");
    assert_eq!(snapshot.len(), 10_000);
}

/// A name in the chain of its second hash is where it belongs if its first chain is full, and nowhere otherwise.
#[test]
fn a_name_in_its_second_chain_needs_a_full_first_one() {
    let mut world = world();
    world.change::<Header>((), |header| header.second_key = Bytes::from_static(&[9; 16]));
    let header = Header { second_key: Bytes::from_static(&[9; 16]), ..Header::default() };
    let second = EntryKey { dir: ROOT_INO, cookie: schema::second_cookie(&header, b"small").unwrap() };
    let first = entry_key(ROOT_INO, b"small");
    let take = |world: &mut World, key: EntryKey, entry: Option<Entry>| {
        world.mdt.set(Entry::key(&key), entry.map(|entry| entry.encode_record()));
    };
    take(&mut world, first, None);
    take(&mut world, second, Some(entry("small", SMALL, 8, SMALL_INO)));
    let cookie = second.cookie;
    let misplaced = Inconsistency::EntryMisplaced { dir: Fid::ROOT, name: "small".into(), cookie };
    assert_eq!(check(&[&world.mdt], &[]), [misplaced]);
    for at in 0..16 {
        take(&mut world, EntryKey { cookie: first.cookie + at, ..first }, Some(Entry::tombstone()));
    }
    world.change::<Inode>(ROOT_INO, |inode| inode.dir.tombstones = 16);
    assert_eq!(check(&[&world.mdt], &[]), []);
}

const SEQ_1: u64 = SEQ + 0x1000;
const FAR: Fid = Fid::new(SEQ_1, 1);
const LEAF: Fid = Fid::new(SEQ_1, 2);
const BACK: Fid = Fid::new(SEQ, 6);
const FAR_INO: u64 = 1 << 20;
const BACK_INO: u64 = 3 << 20;

/// The same file system with a second metadata target: `/far` and `/far/leaf` are on MDT0001, `/far/back` is on MDT0000.
fn two_mdts() -> [Snapshot; 2] {
    let World { mdt: mut near, .. } = world();
    let mut far = Snapshot::default();
    let name = |text: &'static str| Bytes::from_static(text.as_bytes());
    let dir = |fid, nlink, entries, next_ino, parent, at| Inode {
        fid,
        mode: S_IFDIR | 0o755,
        nlink,
        dir: DirState { entries, next_ino, tombstones: 0 },
        links: LinkEa::one(parent, name(at)),
        ..Inode::default()
    };
    let leaf = Inode {
        fid: LEAF,
        mode: S_IFREG | 0o644,
        nlink: 1,
        layout: Some(Layout { stripe_size: 1 << 20, resident: true, ..Layout::default() }),
        links: LinkEa::one(FAR, name("leaf")),
        ..Inode::default()
    };
    let range = |start| SeqRange { start, end: start + 0x1000 };
    let mut grant = SeqGrant::new(ClientUuid(1));
    (1..=2).for_each(|oid| grant.mark_used(oid));
    put::<Header>(&mut far, (), Header { name: "fs-MDT0001".into(), ..Header::default() });
    put::<MdtState>(&mut far, (), MdtState { next_region: 3, allocated: vec![range(SEQ_1)], ..MdtState::default() });
    put::<SeqGrant>(&mut far, SEQ_1, grant);
    for (ino, inode) in [(FAR_INO, dir(FAR, 3, 2, (2 << 20) + 1, Fid::ROOT, "far")), (2 << 20, leaf)] {
        put::<Oi>(&mut far, inode.fid, Oi { ino });
        put::<Inode>(&mut far, ino, inode);
    }
    put::<Entry>(&mut far, entry_key(FAR_INO, b"leaf"), entry("leaf", LEAF, 8, 2 << 20));
    put::<Entry>(&mut far, entry_key(FAR_INO, b"back"), Entry { mdt: Some(0), ..entry("back", BACK, 4, 0) });
    put::<Entry>(&mut near, entry_key(ROOT_INO, b"far"), Entry { mdt: Some(1), ..entry("far", FAR, 4, 0) });
    put::<Oi>(&mut near, BACK, Oi { ino: BACK_INO });
    put::<Inode>(&mut near, BACK_INO, dir(BACK, 2, 0, 0, FAR, "back"));
    change::<MdtState>(&mut near, (), |state| {
        state.next_region = 4;
        state.allocated = vec![range(SEQ)];
    });
    change::<SeqGrant>(&mut near, SEQ, |grant| grant.mark_used(6));
    change::<Inode>(&mut near, ROOT_INO, |root| (root.nlink, root.dir.entries) = (4, 4));
    change::<Inode>(&mut near, 2 << 20, |big| big.layout.as_mut().expect("it has one").osts.clear());
    [near, far]
}

/// Something is wrong between two metadata targets, and the check says what.
fn breaks_two(what: &str, damage: impl FnOnce(&mut Snapshot, &mut Snapshot)) {
    let [mut near, mut far] = two_mdts();
    damage(&mut near, &mut far);
    let found: Vec<String> = check(&[&near, &far], &[]).iter().map(ToString::to_string).collect();
    assert!(found.iter().any(|line| line.contains(what)), "expected '{what}', found {found:#?}");
}

#[test]
fn directories_on_other_targets_than_their_names_are_in_order() {
    let [near, far] = two_mdts();
    assert_eq!(check(&[&near, &far], &[]), []);
    assert_eq!(check(&[&far, &near], &[]), []);
}

#[test]
fn targets_with_different_keys_of_names_are_found() {
    let what = "the keys of names of MDT0001 are not those of MDT0000";
    let key = || Bytes::from_static(&[9; 16]);
    breaks_two(what, |_, far| change::<Header>(far, (), |header| header.name_key = key()));
    breaks_two(what, |near, _| change::<Header>(near, (), |header| header.second_key = key()));
    let [near, mut far] = two_mdts();
    change::<Header>(&mut far, (), |header| (header.name_key, header.takes_keys) = (key(), true));
    let found = check(&[&near, &far], &[]);
    assert!(!found.iter().any(|wrong| wrong.to_string().contains(what)), "it has no names yet: {found:?}");
}

#[test]
fn what_is_wrong_with_names_of_objects_on_other_targets_is_found() {
    let far_name = || entry_key(ROOT_INO, b"far");
    breaks_two("far leads to [0x200001400:0x1:0x0], which is not there", |_, far| delete::<Oi>(far, FAR));
    breaks_two("far does not say that its object is on MDT0001", |near, _| {
        change::<Entry>(near, far_name(), |entry| entry.mdt = None);
    });
    breaks_two("far says that its object is on MDT0002, it is on MDT0001", |near, _| {
        change::<Entry>(near, far_name(), |entry| entry.mdt = Some(2));
    });
    breaks_two("leaf says that its object is on MDT0001, it is on MDT0001", |_, far| {
        change::<Entry>(far, entry_key(FAR_INO, b"leaf"), |entry| entry.mdt = Some(1));
    });
    breaks_two("far has type 8, its object 4", |near, _| change::<Entry>(near, far_name(), |entry| entry.kind = 8));
    breaks_two("far leads to [0x200001400:0x1:0x0], whose linkEA does not know it", |_, far| {
        change::<Inode>(far, FAR_INO, |dir| dir.links = LinkEa::one(Fid::ROOT, Bytes::from_static(b"other")));
    });
    breaks_two("linkEA of [0x200001400:0x1:0x0] has [0x200000007:0x1:0x0]/far, which does not lead", |near, _| {
        delete::<Entry>(near, far_name());
    });
    breaks_two("[0x200001400:0x1:0x0] has 0 names and 1 in its linkEA", |near, _| delete::<Entry>(near, far_name()));
    breaks_two("[0x200001400:0x1:0x0] has 2 names and 1 in its linkEA", |near, _| {
        put::<Entry>(near, entry_key(ROOT_INO, b"x"), Entry { mdt: Some(1), ..entry("x", FAR, 4, 0) });
    });
    breaks_two("[0x200000007:0x1:0x0] has link count 3, 4 were counted", |near, _| {
        change::<Inode>(near, ROOT_INO, |root| root.nlink = 3);
    });
    breaks_two("[0x200001400:0x1:0x0] has link count 2, 3 were counted", |_, far| {
        change::<Inode>(far, FAR_INO, |dir| dir.nlink = 2);
    });
}

/// A ring over both targets, and a way up that ends on the other one.
#[test]
fn directories_that_hang_on_no_root_are_found() {
    breaks_two("directory [0x200000400:0x6:0x0] does not hang on the root", |_, far| {
        change::<Inode>(far, FAR_INO, |dir| dir.links = LinkEa::one(BACK, Bytes::from_static(b"far")));
    });
    breaks_two("directory [0x200000400:0x6:0x0] does not hang on the root", |_, far| delete::<Oi>(far, FAR));
}

#[test]
fn what_is_wrong_with_the_sequences_of_targets_is_found() {
    breaks_two("[0x200000400:0x6:0x0] is on MDT0001, where it does not belong", |_, far| {
        put::<Oi>(far, BACK, Oi { ino: FAR_INO });
    });
    breaks_two("[0x200001400:0x2:0x0] is on MDT0001, where it does not belong", |near, far| {
        let allocated = vec![SeqRange { start: SEQ, end: SEQ_1 + 0x1000 }];
        change::<MdtState>(near, (), |state| state.allocated = allocated);
        change::<MdtState>(far, (), |state| state.allocated.clear());
    });
    breaks_two("sequence 0x200001400 was granted and can be granted again", |near, _| {
        change::<MdtState>(near, (), |state| state.allocated[0].end = SEQ_1 + 1);
    });
    breaks_two("sequence 0x200001400 was granted and can be granted again", |near, _| {
        put::<SeqGrant>(near, SEQ_1, SeqGrant::new(ClientUuid(2)));
    });
}

#[test]
fn records_of_cross_changes_are_found() {
    let key = CrossKey { participant: true, mdt: 0, instance: 5, serial: 7 };
    breaks_two("MDT0001 has a record as participant of cross change MDT0000 0000000000000005 7, not done", |_, far| {
        put::<CrossRec>(far, key, CrossRec::default());
    });
    breaks_two("MDT0000 has a record as coordinator of cross change MDT0000 0000000000000005 7, done", |near, _| {
        put::<CrossRec>(near, CrossKey { participant: false, ..key }, CrossRec { done: true, ..CrossRec::default() });
    });
}

const STRIPE: Fid = Fid::new(SEQ, 7);
const STRIPE_INO: u64 = 4 << 20;

/// The same with `/far` striped over both targets: `leaf` is in the master, `back` in the other stripe.
fn striped() -> [Snapshot; 2] {
    let [mut near, mut far] = two_mdts();
    let lmv = Lmv { hash: DirHash::AllChar as i32, count: 2, version: 1, ..Lmv::default() };
    delete::<Entry>(&mut far, entry_key(FAR_INO, b"back"));
    change::<Inode>(&mut far, FAR_INO, |dir| {
        (dir.nlink, dir.dir.entries) = (2, 1);
        dir.lmv = Some(Box::new(Lmv {
            stripes: vec![Stripe { fid: FAR, mdt: 1 }, Stripe { fid: STRIPE, mdt: 0 }],
            ..lmv.clone()
        }));
    });
    let stripe = Inode {
        fid: STRIPE,
        mode: S_IFDIR | 0o755,
        nlink: 3,
        dir: DirState { entries: 1, ..DirState::default() },
        links: LinkEa::one(FAR, Bytes::from(format!("{STRIPE}:1"))),
        lmv: Some(Box::new(Lmv { master: Some(FAR), index: 1, ..lmv })),
        ..Inode::default()
    };
    put::<Oi>(&mut near, STRIPE, Oi { ino: STRIPE_INO });
    put::<Inode>(&mut near, STRIPE_INO, stripe);
    put::<Entry>(&mut near, entry_key(STRIPE_INO, b"back"), entry("back", BACK, 4, BACK_INO));
    change::<MdtState>(&mut near, (), |state| state.next_region = 5);
    change::<SeqGrant>(&mut near, SEQ, |grant| grant.mark_used(7));
    [near, far]
}

/// Something is wrong with a striped directory, and the check says what.
fn breaks_stripes(what: &str, damage: impl FnOnce(&mut Snapshot, &mut Snapshot)) {
    let [mut near, mut far] = striped();
    damage(&mut near, &mut far);
    let found: Vec<String> = check(&[&near, &far], &[]).iter().map(ToString::to_string).collect();
    assert!(found.iter().any(|line| line.contains(what)), "expected '{what}', found {found:#?}");
}

fn lmv(inode: &mut Inode) -> &mut Lmv {
    inode.lmv.as_mut().expect("it has one")
}

#[test]
fn striped_directories_are_in_order() {
    let [near, far] = striped();
    assert_eq!(check(&[&near, &far], &[]), []);
}

#[test]
fn what_is_wrong_with_stripes_is_found() {
    let stripe = |near: &mut Snapshot, what: fn(&mut Inode)| change::<Inode>(near, STRIPE_INO, what);
    let master = |far: &mut Snapshot, what: fn(&mut Inode)| change::<Inode>(far, FAR_INO, what);
    breaks_stripes("back is in stripe 0 of its directory, it belongs to stripe 1", |_, far| {
        put::<Entry>(far, entry_key(FAR_INO, b"back"), Entry { mdt: Some(0), ..entry("back", BACK, 4, 0) });
    });
    breaks_stripes("back leads to [0x200000400:0x6:0x0], whose linkEA does not know it", |near, _| {
        change::<Inode>(near, BACK_INO, |dir| dir.links = LinkEa::one(STRIPE, Bytes::from_static(b"back")));
    });
    breaks_stripes("linkEA of [0x200000400:0x6:0x0] has [0x200000400:0x7:0x0]/back", |near, _| {
        change::<Inode>(near, BACK_INO, |dir| dir.links = LinkEa::one(STRIPE, Bytes::from_static(b"back")));
    });
    breaks_stripes("the master lists it, and it is not there", |near, _| delete::<Oi>(near, STRIPE));
    breaks_stripes("its master is not there", |_, far| delete::<Oi>(far, FAR));
    breaks_stripes("its master is not there", |_, far| master(far, |dir| dir.nlink = 0));
    breaks_stripes("its master has no stripes", |_, far| master(far, |dir| dir.lmv = None));
    breaks_stripes("its master does not list it there", |near, _| stripe(near, |dir| lmv(dir).index = 0));
    breaks_stripes("its master does not list it there", |_, far| master(far, |dir| lmv(dir).stripes[1].fid = BACK));
    breaks_stripes("the master lists it, and it is not there", |_, far| master(far, |dir| lmv(dir).stripes[1].mdt = 1));
    breaks_stripes("the master is not the first of as many stripes as it counts", |_, far| {
        master(far, |dir| lmv(dir).count = 3);
    });
    breaks_stripes("its layout is not that of its master", |near, _| stripe(near, |dir| lmv(dir).version = 2));
    breaks_stripes("its linkEA does not name its master", |near, _| stripe(near, |dir| dir.links = LinkEa::default()));
    breaks_stripes("its mode or owner is not that of its master", |near, _| stripe(near, |dir| dir.uid = 5));
    breaks_stripes("its access lists are not those of its master", |_, far| {
        master(far, |dir| {
            let name = Bytes::from_static(rules::acl::DEFAULT);
            dir.xattrs = vec![InodeXattr { name, value: Bytes::new(), large: false }];
        });
    });
    breaks_stripes("its default layout is not that of its master", |near, _| {
        stripe(near, |dir| dir.layout = Some(Layout::default()));
    });
    breaks_stripes("its default for directories is not that of its master", |near, _| {
        stripe(near, |dir| dir.dir_default = Some(Box::default()));
    });
    breaks_stripes("it is no directory", |near, _| stripe(near, |dir| dir.mode = S_IFREG | 0o644));
}
