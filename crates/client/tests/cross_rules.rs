//! What keeps a change with parts on several metadata targets whole: what happens if somebody dies, goes away, lies or is in
//! the way between its check and its end.

mod raw;

use std::time::Duration;

use bytes::Bytes;
use client::api::Call;
use proto::msg::{Reint, SetattrOp, valid};
use proto::{ClientUuid, Errno, Fid, Opcode, Transno};
use raw::{
    DIR, FILE, Raw, change, cluster, declare_lost, doubts, linking, making, removing, rename_over_three, renaming,
    three, unanswered,
};
use stdx::marks;
use target::format_features;
use testkit::cluster::{Cluster, name};
use testkit::names::chosen;

const IS_FILE: u32 = FILE & 0o170_000;

fn mkdir(text: &str) -> Call {
    Call::Mkdir { parent: 1, name: name(text), mode: 0o755 }
}

// --- crashes ---

/// A participant loses what is not durable: the change was not answered, and no name is left that leads to nothing.
#[test]
fn a_change_is_answered_when_its_participant_cannot_lose_it() {
    let (mut c, mdt1) = cluster();
    let (a, dir) = unanswered(&mut c, mdt1);
    let answered = a.answer(&mut c, 0).is_some();
    c.kill_and_lose(mdt1);
    c.slow_server = None;
    c.start(mdt1);
    let mut b = Raw::new(&mut c, 78);
    let (named, there) = (b.leads_to(&mut c, 0, Fid::ROOT, "d").is_some(), b.getattr(&mut c, 1, dir).is_ok());
    assert_eq!(named, there, "answered: {answered}");
    assert!(there || !answered);
}

/// A coordinator has answered and loses that. Its participant has a record that it was done.
#[test]
fn an_answered_change_is_done_although_its_coordinator_forgets_the_answer() {
    let (mut c, mdt1) = cluster();
    let mdt0 = c.server("fs-MDT0000");
    let (a, dir) = unanswered(&mut c, mdt1);
    c.slow_server = Some(mdt0);
    c.pass(Duration::from_secs(5));
    assert_eq!(a.answer(&mut c, 0), Some(0));
    c.kill_and_lose(mdt0);
    c.kill_and_keep(mdt1);
    c.slow_server = None;
    c.start(mdt0);
    c.start(mdt1);
    let mut b = Raw::new(&mut c, 78);
    assert!(marks::count("cross.in_doubt") > 0);
    assert_eq!(b.leads_to(&mut c, 0, Fid::ROOT, "d"), Some((dir, 1)));
    b.getattr(&mut c, 1, dir).unwrap();
    assert_eq!((doubts(&c, "fs-MDT0000"), doubts(&c, "fs-MDT0001")), (0, 0));
}

/// A coordinator gives a change up, and a crash brings its record back: nobody was answered meanwhile whose replay would
/// stand in its way.
#[test]
fn a_change_that_is_given_up_keeps_its_names_until_no_crash_brings_it_back() {
    let (mut c, mdt1) = cluster();
    let mdt0 = c.server("fs-MDT0000");
    let b = c.mount();
    let (_, dir) = unanswered(&mut c, mdt1);
    // The participant has prepared its part, and dies before it can say so.
    c.slow_media = true;
    c.kill_and_keep(mdt1);
    c.pass(Duration::from_millis(500));
    let other = c.send(b, mkdir("d"));
    c.pass(Duration::from_millis(500));
    c.kill_and_lose(mdt0);
    (c.slow_media, c.slow_server) = (false, None);
    c.start(mdt1);
    c.start(mdt0);
    let mut raw = Raw::new(&mut c, 78);
    assert!(marks::count("cross.in_doubt") > 0);
    assert_eq!(raw.leads_to(&mut c, 0, Fid::ROOT, "d"), Some((dir, 1)));
    raw.getattr(&mut c, 1, dir).unwrap();
    assert_eq!(c.answer(b, other).map(drop), Err(Errno::EEXIST));
}

/// The same for a part that a participant drops: its coordinator is lost for good then, and the other participant has heard
/// of nothing.
#[test]
fn a_part_that_is_dropped_keeps_its_names_until_no_crash_brings_it_back() {
    let (mut c, mdts) = three();
    let mdt0 = c.server("fs-MDT0000");
    let b = c.mount();
    let file = rename_over_three(&mut c, mdts, mdts[0]);
    c.kill_and_keep(mdts[1]);
    c.slow_server = Some(mdt0);
    // The coordinator has lost the attempt, and says so when it is back.
    c.kill_and_lose(mdts[0]);
    c.start(mdts[0]);
    c.pass(Duration::from_secs(150));
    assert!(c.is_serving(mdts[0]));
    let other = c.send(b, mkdir("g"));
    c.pass(Duration::from_secs(1));
    c.kill_and_lose(mdt0);
    c.kill_and_lose(mdts[0]);
    c.slow_server = None;
    declare_lost(&mut c, "fs-MDT0001");
    c.start(mdt0);
    c.start(mdts[1]);
    let mut raw = Raw::at(&mut c, 78, &["fs-MDT0000", "fs-MDT0002"]);
    assert_eq!((doubts(&c, "fs-MDT0000"), doubts(&c, "fs-MDT0002")), (0, 0), "{:#?}", c.log);
    assert_eq!(raw.leads_to(&mut c, 0, Fid::ROOT, "g"), Some((file, 2)));
    assert_eq!(c.answer(b, other).map(drop), Err(Errno::EEXIST));
}

/// A client says that it was answered a change which its participant never had.
#[test]
fn a_client_that_lies_completes_no_change_in_doubt() {
    const PROOF: u64 = 0x6372_6f73_732d_3032;
    let (mut c, mdt1) = cluster();
    let mdt0 = c.server("fs-MDT0000");
    let mut a = Raw::new(&mut c, 77);
    let fid = a.fid(0);
    let given = a.reint(&mut c, 0, making(Fid::ROOT, "e", fid, DIR, None)).header.transno;
    c.slow_server = Some(mdt1);
    let dir = a.ask(&mut c, "d");
    c.pass(Duration::from_millis(50));
    c.kill_and_lose(mdt0);
    c.kill_and_lose(mdt1);
    c.slow_server = None;
    c.start(mdt0);
    let line = c.server_params("fs-MDT0000", "mdt.*.changes_in_doubt")[0].1.clone();
    let attempt: Vec<&str> = line.split([':', '/']).collect();
    let (instance, serial) = (u64::from_str_radix(attempt[1], 16).unwrap(), attempt[2].parse().unwrap());
    let mut liar = c.raw_export_of("fs-MDT0000", ClientUuid(77));
    let asked = change(0, making(Fid::ROOT, "d", dir, DIR, Some(1)));
    c.raw_replay(&mut liar, (Opcode::MdsReint, &asked), Transno(given.0 + 1), [4711, instance, serial, PROOF]);
    c.pass(Duration::from_secs(1));
    let answer = c.raw_answer(&liar).map(|frame| frame.header.status);
    assert_eq!(answer, Some(-Errno::EOVERFLOW.raw()));
    assert_eq!(doubts(&c, "fs-MDT0000"), 1);
    c.start(mdt1);
    let mut b = Raw::new(&mut c, 78);
    assert_eq!((doubts(&c, "fs-MDT0000"), doubts(&c, "fs-MDT0001")), (0, 0));
    assert_eq!(b.leads_to(&mut c, 0, Fid::ROOT, "d"), None);
    assert_eq!(b.getattr(&mut c, 1, dir).map(drop), Err(-Errno::ESTALE.raw()));
}

// --- other changes meanwhile ---

/// A directory that is about to get a name is not empty.
#[test]
fn a_directory_with_a_name_under_change_is_not_removed() {
    let (mut c, mdt1) = cluster();
    let [mut a, mut b] = [77, 78].map(|client| Raw::new(&mut c, client));
    let (parent, _) = a.create(&mut c, (0, 0), Fid::ROOT, "p", DIR);
    let dir = a.fid(1);
    c.slow_server = Some(mdt1);
    a.ask_for(&mut c, 0, 0, making(parent, "d", dir, DIR, Some(1)));
    b.ask_for(&mut c, 0, 0, removing(Fid::ROOT, "p", true));
    c.slow_server = None;
    c.pass(Duration::from_secs(1));
    assert_eq!(a.answer(&mut c, 0), Some(0));
    assert_eq!(b.answer(&mut c, 0), Some(-Errno::ENOTEMPTY.raw()));
    assert_eq!(b.leads_to(&mut c, 0, parent, "d"), Some((dir, 1)));
}

/// A client that lists a directory while a file of it gets a name elsewhere keeps nothing that it would not be told to drop.
#[test]
fn what_is_under_change_is_not_cached() {
    let (mut c, _) = cluster();
    let mdt0 = c.server("fs-MDT0000");
    let mut a = Raw::new(&mut c, 77);
    let (dir, _) = a.create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    let (file, _) = a.create(&mut c, (0, 0), Fid::ROOT, "f", FILE);
    let b = c.mount();
    c.slow_server = Some(mdt0);
    a.ask_for(&mut c, 1, 0, linking(file, (dir, "g"), IS_FILE));
    c.list(b, 1, true).unwrap();
    assert_eq!(a.answer(&mut c, 1), None);
    c.slow_server = None;
    c.pass(Duration::from_secs(2));
    assert_eq!(a.answer(&mut c, 1), Some(0));
    assert_eq!(c.getattr(b, file.ino()).unwrap().nlink, 2);
}

/// A user renames what is on the first target, and `meanwhile`, while that waits for a lock, something happens to what it has
/// seen on the other target. Returns the status of the rename.
fn renamed_late(
    c: &mut Cluster,
    (uid, moved, op): (u32, Fid, Reint),
    meanwhile: impl FnOnce(&mut Cluster, &mut Raw),
) -> Option<i32> {
    let [mut a, mut b] = [97, 98].map(|client| Raw::new(c, client));
    let lock = b.lock(c, 0, moved);
    a.ask_for(c, 0, uid, op);
    meanwhile(c, &mut b);
    b.give_back(c, 0, lock);
    c.pass(Duration::from_secs(2));
    a.answer(c, 0)
}

#[test]
fn a_rename_into_a_directory_that_was_closed_meanwhile_is_refused() {
    let (mut c, _) = cluster();
    let mut a = Raw::new(&mut c, 77);
    let (near, _) = a.create(&mut c, (0, 0), Fid::ROOT, "near", DIR);
    let (far, _) = a.create(&mut c, (0, 1), Fid::ROOT, "far", DIR);
    let (file, _) = a.create(&mut c, (0, 0), near, "f", FILE);
    let chmod = |c: &mut Cluster, by: &mut Raw, at: usize, fid: Fid, mode: u32| {
        let op = SetattrOp { fid, valid: valid::MODE, mode, ..SetattrOp::default() };
        assert_eq!(by.reint(c, at, Reint::Setattr(op)).header.status, 0);
    };
    chmod(&mut c, &mut a, 0, near, 0o777);
    chmod(&mut c, &mut a, 1, far, 0o777);
    let rename = Reint::Rename(renaming((near, "f"), (far, "g"), 0));
    let close = |c: &mut Cluster, b: &mut Raw| chmod(c, b, 1, far, 0o755);
    assert_eq!(renamed_late(&mut c, (5, file, rename), close), Some(-Errno::EACCES.raw()));
    assert_eq!(a.leads_to(&mut c, 0, near, "f"), Some((file, 0)));
    assert_eq!(a.leads_to(&mut c, 1, far, "g"), None);
    assert!(marks::count("cross.changed") > 0);
}

#[test]
fn a_directory_that_got_an_entry_meanwhile_is_not_replaced() {
    let (mut c, _) = cluster();
    let mut a = Raw::new(&mut c, 77);
    let (near, _) = a.create(&mut c, (0, 0), Fid::ROOT, "near", DIR);
    let (far, _) = a.create(&mut c, (0, 1), Fid::ROOT, "far", DIR);
    let rename = Reint::Rename(renaming((Fid::ROOT, "near"), (Fid::ROOT, "far"), 0));
    let mut file = None;
    let fill = |c: &mut Cluster, b: &mut Raw| file = Some(b.create(c, (1, 1), far, "f", FILE));
    assert_eq!(renamed_late(&mut c, (0, near, rename), fill), Some(-Errno::ENOTEMPTY.raw()));
    let (file, status) = file.unwrap();
    assert_eq!(status, 0);
    assert_eq!(a.leads_to(&mut c, 0, Fid::ROOT, "far"), Some((far, 1)));
    assert_eq!(a.leads_to(&mut c, 1, far, "f"), Some((file, 1)));
    assert!(marks::count("cross.changed") > 0);
}

/// The names share a hash, and lie in one chain, or in two: what ends the chain too early hides what comes after it.
#[test]
fn a_rename_along_a_chain_leaves_the_name_to_be_found() {
    let (mut c, _) = cluster();
    c.change_record("fs-MDT0000", &(), |header: &mut schema::Header| {
        header.name_key = Bytes::new();
        header.incompat &= !format_features::KEYED_NAMES;
    });
    c.pass(Duration::from_secs(2));
    let mut a = Raw::new(&mut c, 77);
    let (parent, _) = a.create(&mut c, (0, 0), Fid::ROOT, "p", DIR);
    let (dir, status) = a.create(&mut c, (0, 1), parent, &chosen(0), DIR);
    assert_eq!(status, 0);
    let found = |c: &mut Cluster, by: &mut Raw, from: usize, to: usize| {
        assert_eq!(by.leads_to(c, 0, parent, &chosen(to)), Some((dir, 1)));
        assert_eq!(by.leads_to(c, 0, parent, &chosen(from)), None);
    };
    // To the next place.
    assert_eq!(a.rename(&mut c, 0, renaming((parent, &chosen(0)), (parent, &chosen(1)), 0)), 0);
    found(&mut c, &mut a, 0, 1);
    // From the last place of a full chain to the next chain.
    for n in 2..16 {
        assert_eq!(a.create(&mut c, (0, 0), parent, &chosen(n), FILE).1, 0);
    }
    assert_eq!(a.rename(&mut c, 0, renaming((parent, &chosen(1)), (parent, &chosen(16)), 0)), 0);
    found(&mut c, &mut a, 1, 16);
    assert_eq!(a.create(&mut c, (0, 0), parent, &chosen(17), FILE).1, 0);
    assert_eq!(a.rename(&mut c, 0, renaming((parent, &chosen(16)), (parent, &chosen(18)), 0)), 0);
    found(&mut c, &mut a, 16, 18);
    c.restart("fs-MDT0000");
    let mut b = Raw::new(&mut c, 78);
    found(&mut c, &mut b, 16, 18);
    assert!(marks::count("mdt.full_chain") > 0);
}

// --- waiting ---

/// A participant had promised to say when it is free again, and goes away.
#[test]
fn a_change_that_was_busy_does_not_wait_for_a_participant_that_has_gone() {
    let (mut c, mdt1) = cluster();
    let [mut a, mut b] = [77, 78].map(|client| Raw::new(&mut c, client));
    let (dir, _) = a.create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    b.lock(&mut c, 1, dir);
    a.ask_for(&mut c, 0, 0, removing(Fid::ROOT, "d", true));
    while marks::count("cross.busy") == 0 {
        c.step();
    }
    assert_eq!(a.answer(&mut c, 0), None);
    c.kill(mdt1);
    let gone = c.now;
    let answer = loop {
        match a.answer(&mut c, 0) {
            Some(answer) => break answer,
            None => c.step(),
        }
    };
    assert_eq!(answer, -Errno::EINPROGRESS.raw());
    let waited = c.now.since(gone);
    assert!(waited < Duration::from_millis(200), "it waited {waited:?}");
}

/// Three metadata targets. Of two changes that begin now, that of the first target is older than that of the third.
struct Aged {
    c: Cluster,
    mdts: [usize; 2],
    /// `/d` on the second target and `/far` on the third. A file on the second has the names `d/x` and `far/y`. Files on the
    /// first have the names `/f` and `/g`.
    dirs: [Fid; 2],
    raws: [Raw; 3],
}

fn aged() -> Aged {
    let (mut c, mdts) = three();
    let mut raws = [77, 78, 79].map(|client| Raw::at(&mut c, client, &["fs-MDT0000", "fs-MDT0001", "fs-MDT0002"]));
    let a = &mut raws[0];
    let (dir, _) = a.create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    let (far, _) = a.create(&mut c, (0, 2), Fid::ROOT, "far", DIR);
    let (file, _) = a.create(&mut c, (1, 1), dir, "x", FILE);
    assert_eq!(a.link(&mut c, 2, file, (far, "y"), IS_FILE), 0);
    // The clock of the third target goes ahead of that of the first.
    for name in ["1", "2", "3", "4"] {
        assert_eq!(a.create(&mut c, (2, 1), far, name, DIR).1, 0);
    }
    for name in ["f", "g"] {
        assert_eq!(a.create(&mut c, (0, 0), Fid::ROOT, name, FILE).1, 0);
    }
    Aged { c, mdts, dirs: [dir, far], raws }
}

/// What waits for keys and is then refused keeps nobody from having them.
#[test]
fn an_older_change_that_waited_in_vain_is_in_nobodys_way() {
    let Aged { mut c, mdts, dirs: [dir, far], raws: [mut a, mut b, mut other] } = aged();
    assert_eq!(a.create(&mut c, (2, 2), far, "new", FILE).1, 0);
    // The older change looks, and waits for a lock before it begins.
    let (f, _) = a.leads_to(&mut c, 0, Fid::ROOT, "f").unwrap();
    let lock = other.lock(&mut c, 0, f);
    a.ask_for(&mut c, 0, 0, Reint::Rename(renaming((Fid::ROOT, "f"), (dir, "z"), 1)));
    // The younger one takes the name, and is not committed.
    c.slow_server = Some(mdts[1]);
    b.ask_for(&mut c, 2, 0, Reint::Rename(renaming((far, "new"), (dir, "z"), 0)));
    other.give_back(&mut c, 0, lock);
    assert_eq!((a.answer(&mut c, 0), b.answer(&mut c, 2)), (None, None));
    c.slow_server = None;
    c.pass(Duration::from_secs(2));
    assert_eq!((a.answer(&mut c, 0), b.answer(&mut c, 2)), (Some(-Errno::EEXIST.raw()), Some(0)));
    assert!(marks::count("cross.changed") > 0);
    assert_eq!(a.rename(&mut c, 0, renaming((Fid::ROOT, "g"), (dir, "z"), 0)), 0);
}

/// A part that waits for a key in doubt is forgotten when its coordinator begins a new session: what it would have held is
/// free for others, although the doubt stays.
#[test]
fn a_part_of_an_earlier_session_is_in_nobodys_way() {
    let Aged { mut c, mdts, dirs: [dir, far], raws: [mut a, mut b, mut other] } = aged();
    let mdt0 = c.server("fs-MDT0000");
    let (f, _) = a.leads_to(&mut c, 0, Fid::ROOT, "f").unwrap();
    let lock = other.lock(&mut c, 0, f);
    a.ask_for(&mut c, 0, 0, Reint::Rename(renaming((Fid::ROOT, "f"), (dir, "x"), 0)));
    // The younger one takes a name from the file that the older one replaces, and its coordinator dies.
    c.slow_server = Some(mdts[1]);
    b.ask_for(&mut c, 2, 0, removing(far, "y", false));
    c.kill_and_keep(mdts[1]);
    c.slow_server = None;
    assert_eq!(doubts(&c, "fs-MDT0001"), 1);
    other.give_back(&mut c, 0, lock);
    assert_eq!(a.answer(&mut c, 0), None);
    c.cut_servers(mdt0, mdts[0]);
    c.pass(Duration::from_secs(5));
    assert_eq!(a.answer(&mut c, 0), Some(-Errno::EINPROGRESS.raw()));
    assert_eq!(doubts(&c, "fs-MDT0001"), 1);
    assert_eq!(other.rename(&mut c, 0, renaming((Fid::ROOT, "d"), (Fid::ROOT, "e"), 0)), 0);
}
