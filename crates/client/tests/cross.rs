//! Changes with parts on several metadata targets, request by request.

mod raw;

use std::time::Duration;

use bytes::Bytes;
use proto::msg::{
    BatchRep, BatchReq, CreateOp, CrossAttempt, CrossOrphansRep, CrossOrphansReq, CrossPart, CrossPrepareRep,
    CrossPrepareReq, CrossSessionReq, CrossTellReq, GetattrReq, LookupReq, ObjectRep, Reint, ReintReq, RenameOp,
    TargetLosses, UnlinkOp, WantLocks,
};
use proto::{ClientUuid, Errno, Fid, Opcode};
use raw::{
    DIR, FILE, Raw, change, cluster, declare_lost, doubts, removing, rename_over_three, renaming, three, unanswered,
};
use schema::{CrossRec, Inode, LinkEa, Oi, Record};
use stdx::marks;
use testkit::cluster::{Cluster, cred};

#[test]
fn a_directory_is_made_and_removed_on_another_target() {
    let (mut c, _) = cluster();
    let mut a = Raw::new(&mut c, 77);
    let (dir, status) = a.create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    assert_eq!(status, 0, "{:#?}", c.log);
    let found = a.lookup(&mut c, 0, Fid::ROOT, "d");
    assert_eq!((found.attr.is_none(), found.elsewhere.map(|e| (e.fid, e.mdt))), (true, Some((dir, 1))));
    assert_eq!(found.parent_attr.unwrap().nlink, 3);
    let attr = a.getattr(&mut c, 1, dir).unwrap().attr.unwrap();
    assert_eq!((attr.mode, attr.nlink), (DIR, 2));
    let (_, status) = a.create(&mut c, (1, 1), dir, "f", FILE);
    assert_eq!(status, 0);
    let (_, status) = a.create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    assert_eq!(status, -Errno::EEXIST.raw());
    assert_eq!(a.rmdir(&mut c, 0, Fid::ROOT, "d"), -Errno::ENOTEMPTY.raw());
    assert!(marks::count("cross.staged") > 0 && marks::count("cross.refused") > 0);
    // Back to the first one.
    let (back, status) = a.create(&mut c, (1, 0), dir, "back", DIR);
    assert_eq!(status, 0);
    let up = a.lookup(&mut c, 0, back, "..");
    assert_eq!(up.elsewhere.map(|e| (e.fid, e.mdt)), Some((dir, 1)));
    assert_eq!(a.rmdir(&mut c, 1, dir, "back"), 0);
    let name = Bytes::from_static(b"f");
    let unlink = Reint::Unlink(UnlinkOp { parent: dir, name, rmdir: false, reported: None, entry_only: false });
    assert_eq!(a.reint(&mut c, 1, unlink).header.status, 0);
    assert_eq!(a.rmdir(&mut c, 0, Fid::ROOT, "d"), 0, "{:#?}", c.log);
    assert_eq!(a.getattr(&mut c, 1, dir).map(drop), Err(-Errno::ESTALE.raw()));
    assert_eq!(a.lookup(&mut c, 0, Fid::ROOT, "d").parent_attr.unwrap().nlink, 2);
}

/// A busy target handles many changes between two turns of its driver: they share groups, and what participants have to hear
/// leaves in one message. What they have to forget leaves with that, or after a while.
#[test]
fn changes_that_arrive_together_share_groups_and_messages() {
    let (mut c, _) = cluster();
    // As many as may ask the other target at a time.
    let mut clients: Vec<Raw> = (70..77).map(|client| Raw::new(&mut c, client)).collect();
    c.pass(Duration::from_secs(3));
    let groups = |c: &Cluster, server| -> u64 {
        let params = c.server_params(server, "mdt.*.commit_stats");
        let line = params[0].1.lines().find_map(|line| line.strip_prefix("commit ")).unwrap_or("0").to_owned();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    c.together = true;
    for round in 0..2 {
        let (told, before) =
            (marks::count("cross.told"), ["fs-MDT0000", "fs-MDT0001"].map(|server| groups(&c, server)));
        for (number, client) in clients.iter_mut().enumerate() {
            client.ask(&mut c, &format!("d{number}.{round}"));
        }
        c.run();
        assert!(clients.iter().all(|client| client.answer(&mut c, 0) == Some(0)), "{:#?}", c.log);
        assert_eq!(marks::count("cross.told") - told, 1, "round {round}");
        assert_eq!(groups(&c, "fs-MDT0000") - before[0], 1, "staged, round {round}");
        assert_eq!(groups(&c, "fs-MDT0001") - before[1], 1, "prepared, round {round}");
        // What the participant has to forget can wait: it is sent in a message of its own only if none leaves for a while.
        c.until(|c| groups(c, "fs-MDT0000") - before[0] == 2 && groups(c, "fs-MDT0001") - before[1] == 2);
        let done = c.now;
        c.until(|_| marks::count("cross.told") - told == 2);
        assert!(c.now.since(done) >= Duration::from_millis(10), "round {round}: {:?}", c.now.since(done));
    }
    c.pass(Duration::from_secs(3));
    let left = |server| c.records(server).iter().filter(|(key, _)| key.as_slice()[0] == CrossRec::TABLE).count();
    assert_eq!(["fs-MDT0000", "fs-MDT0001"].map(left), [0, 0]);
}

#[test]
fn what_needs_a_target_that_is_away_is_asked_again_and_nothing_else_waits() {
    let (mut c, mdt1) = cluster();
    let mut a = Raw::new(&mut c, 77);
    c.kill(mdt1);
    let (_, status) = a.create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    assert_eq!(status, -Errno::EINPROGRESS.raw());
    assert!(marks::count("cross.no_session") > 0 && marks::count("cross.in_progress") > 0);
    let (_, status) = a.create(&mut c, (0, 0), Fid::ROOT, "e", DIR);
    assert_eq!(status, 0);
    assert!(a.lookup(&mut c, 0, Fid::ROOT, "d").elsewhere.is_none());
    c.start(mdt1);
    c.pass(Duration::from_secs(120));
    let mut b = Raw::new(&mut c, 78);
    let (_, status) = b.create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    assert_eq!(status, 0);
}

/// The coordinator dies with its staged record durable, and the prepared record becomes durable afterwards.
#[test]
fn a_change_in_doubt_is_done_if_all_have_it() {
    let (mut c, mdt1) = cluster();
    let mdt0 = c.server("fs-MDT0000");
    let (mut b, dir) = unanswered(&mut c, mdt1);
    c.kill(mdt0);
    c.slow_server = None;
    c.pass(Duration::from_secs(2));
    assert_eq!(doubts(&c, "fs-MDT0001"), 1);
    assert_eq!(b.getattr(&mut c, 1, dir).map(drop), Err(-Errno::EINPROGRESS.raw()), "its key is in doubt");
    c.start(mdt0);
    c.pass(Duration::from_secs(120));
    assert_eq!((doubts(&c, "fs-MDT0000"), doubts(&c, "fs-MDT0001")), (0, 0));
    let mut b = Raw::new(&mut c, 78);
    assert_eq!(b.lookup(&mut c, 0, Fid::ROOT, "d").elsewhere.map(|e| e.fid), Some(dir), "{:#?}", c.log);
    b.getattr(&mut c, 1, dir).unwrap();
    assert!(marks::count("cross.in_doubt") > 0 && marks::count("cross.key_wait") > 0);
    assert!(marks::count("cross.committed_without_request") > 0);
}

/// Both die, and the prepared record was not durable.
#[test]
fn a_change_in_doubt_is_dropped_if_one_does_not_have_it() {
    let (mut c, mdt1) = cluster();
    let mdt0 = c.server("fs-MDT0000");
    let (_, dir) = unanswered(&mut c, mdt1);
    c.kill(mdt0);
    c.kill(mdt1);
    c.slow_server = None;
    c.start(mdt0);
    let mut b = c.raw_export_of("fs-MDT0000", ClientUuid(78));
    assert_eq!(doubts(&c, "fs-MDT0000"), 1);
    let name = Bytes::from_static(b"d");
    let body = LookupReq { parent: Fid::ROOT, name, want: None, cred: Some(cred(0)) };
    let answer = c.raw_try(&mut b, Opcode::MdsLookup, &body);
    assert_eq!(answer.header.status, -Errno::EINPROGRESS.raw(), "the name is in doubt");
    c.start(mdt1);
    c.pass(Duration::from_secs(100));
    assert_eq!((doubts(&c, "fs-MDT0000"), doubts(&c, "fs-MDT0001")), (0, 0));
    let mut b = Raw::new(&mut c, 79);
    assert!(b.lookup(&mut c, 0, Fid::ROOT, "d").elsewhere.is_none());
    assert_eq!(b.getattr(&mut c, 1, dir).map(drop), Err(-Errno::ESTALE.raw()));
    let (_, status) = b.create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    assert_eq!(status, 0);
}

/// The participant dies before it has voted: the attempt is given up, and made anew when it is back.
#[test]
fn an_attempt_without_a_vote_is_given_up() {
    let (mut c, mdt1) = cluster();
    let (mut a, _) = unanswered(&mut c, mdt1);
    c.kill(mdt1);
    c.slow_server = None;
    c.pass(Duration::from_secs(1));
    assert!(marks::count("cross.given_up") > 0);
    assert!(a.lookup(&mut c, 0, Fid::ROOT, "d").elsewhere.is_none(), "its key is free");
    assert_eq!(doubts(&c, "fs-MDT0000"), 0);
}

/// A client that does not give back its lock on a directory holds up nobody but those who want to remove it.
#[test]
fn a_participant_whose_locks_do_not_come_back_is_busy() {
    let (mut c, _) = cluster();
    let mut a = Raw::new(&mut c, 77);
    let (dir, _) = a.create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    let mut b = Raw::new(&mut c, 78);
    b.lock(&mut c, 1, dir);
    a.ask_for(&mut c, 0, 0, removing(Fid::ROOT, "d", true));
    c.pass(Duration::from_secs(5));
    assert!(marks::count("cross.busy") > 0 && marks::count("cross.busy_with_locks") > 0);
    let mut other = Raw::new(&mut c, 79);
    assert_eq!(other.create(&mut c, (0, 1), Fid::ROOT, "e", DIR).1, 0);
    assert_eq!(other.create(&mut c, (1, 1), dir, "f", FILE).1, 0, "nothing is held meanwhile");
}

#[test]
fn a_file_gets_and_loses_names_on_another_target() {
    let (mut c, _) = cluster();
    let mut a = Raw::new(&mut c, 77);
    let (dir, _) = a.create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    let (file, _) = a.create(&mut c, (0, 0), Fid::ROOT, "f", FILE);
    let kind = FILE & 0o170_000;
    assert_eq!(a.link(&mut c, 1, file, (dir, "g"), 0), -Errno::EPROTO.raw());
    assert_eq!(a.link(&mut c, 1, file, (dir, "g"), 0o120_000), -Errno::EPROTO.raw(), "it is no symbolic link");
    assert_eq!(a.link(&mut c, 1, dir, (dir, "g"), 0o040_000), -Errno::EPERM.raw());
    assert_eq!(a.link(&mut c, 1, file, (dir, "g"), kind), 0);
    assert_eq!(a.link(&mut c, 1, file, (dir, "g"), kind), -Errno::EEXIST.raw());
    assert_eq!(a.lookup(&mut c, 1, dir, "g").elsewhere.map(|of| (of.fid, of.mdt, of.kind)), Some((file, 0, kind)));
    assert_eq!(a.getattr(&mut c, 0, file).unwrap().attr.unwrap().nlink, 2);
    let rep = a.unlink(&mut c, 1, dir, "g");
    assert_eq!((rep.attr.unwrap().nlink, rep.destroyed), (1, false));
    assert_eq!(a.link(&mut c, 1, file, (dir, "g"), kind), 0);
    assert!(!a.unlink(&mut c, 0, Fid::ROOT, "f").destroyed);
    let rep = a.unlink(&mut c, 1, dir, "g");
    assert_eq!((rep.attr.unwrap().nlink, rep.destroyed), (0, true));
    assert_eq!(a.getattr(&mut c, 0, file).map(drop), Err(-Errno::ESTALE.raw()));
    assert_eq!(a.rmdir(&mut c, 0, Fid::ROOT, "d"), 0);
}

#[test]
fn a_file_is_renamed_from_target_to_target() {
    let (mut c, _) = cluster();
    let mut a = Raw::new(&mut c, 77);
    let (dir, _) = a.create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    let (file, _) = a.create(&mut c, (0, 0), Fid::ROOT, "f", FILE);
    let (other, _) = a.create(&mut c, (1, 1), dir, "g", FILE);
    let root = Fid::ROOT;
    let no_replace = renaming((root, "f"), (dir, "g"), 1);
    assert_eq!(a.rename(&mut c, 0, no_replace), -Errno::EEXIST.raw());
    assert!(marks::count("mdt.looks_again") > 0, "an error is answered of what was seen twice");
    assert_eq!(a.rename(&mut c, 0, renaming((root, "f"), (dir, "none"), 2)), -Errno::ENOENT.raw());
    assert_eq!(a.rename(&mut c, 0, renaming((root, "d"), (dir, "g"), 0)), -Errno::EINVAL.raw());
    // A directory and a file on two targets, with names on one.
    let (_, status) = a.create(&mut c, (0, 0), root, "near", DIR);
    let (below, _) = a.create(&mut c, (0, 0), root, "below", DIR);
    assert_eq!((status, a.link(&mut c, 0, other, (below, "x"), FILE & 0o170_000)), (0, 0));
    assert_eq!(a.rename(&mut c, 0, renaming((root, "near"), (below, "x"), 2)), 0);
    assert_eq!(a.rename(&mut c, 0, renaming((root, "near"), (below, "x"), 2)), 0);
    assert_eq!(a.rename(&mut c, 0, renaming((below, "x"), (root, "near"), 0)), -Errno::EISDIR.raw());
    assert_eq!(a.unlink(&mut c, 0, below, "x").attr.map(|attr| attr.nlink), Some(1));
    assert_eq!(a.rename(&mut c, 0, renaming((root, "f"), (dir, "g"), 2)), 0);
    assert_eq!(
        (a.leads_to(&mut c, 0, root, "f"), a.leads_to(&mut c, 1, dir, "g")),
        (Some((other, 1)), Some((file, 0)))
    );
    // The names and the objects are on both targets, each on the other one.
    assert_eq!(a.rename(&mut c, 1, renaming((dir, "g"), (root, "f"), 0)), 0);
    assert_eq!((a.leads_to(&mut c, 0, root, "f"), a.leads_to(&mut c, 1, dir, "g")), (Some((file, 0)), None));
    assert_eq!(a.getattr(&mut c, 1, other).map(drop), Err(-Errno::ESTALE.raw()));
    let whiteout = Some(a.fid(0));
    let op = RenameOp { whiteout, ..renaming((root, "f"), (dir, "h"), 4) };
    assert_eq!(a.rename(&mut c, 0, op), 0);
    assert_eq!(a.leads_to(&mut c, 0, root, "f"), whiteout.map(|fid| (fid, 0)));
    assert_eq!(a.lookup(&mut c, 0, root, "f").attr.unwrap().mode, 0o020_000);
    // A second name of one object: nothing happens.
    assert_eq!(a.link(&mut c, 0, file, (root, "i"), 0), 0);
    assert_eq!(a.rename(&mut c, 0, renaming((root, "i"), (dir, "h"), 0)), 0);
    assert_eq!(a.getattr(&mut c, 0, file).unwrap().attr.unwrap().nlink, 2);
    assert_eq!(a.rename(&mut c, 0, renaming((root, "d"), (root, "e"), 0)), 0, "it keeps its parent");
    assert_eq!(a.leads_to(&mut c, 0, root, "e"), Some((dir, 1)));
}

/// While a rename waits for a lock, what it has seen on the other target changes.
#[test]
fn a_change_looks_again_if_its_participant_finds_something_else() {
    let (mut c, _) = cluster();
    let mut a = Raw::new(&mut c, 77);
    let (dir, _) = a.create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    let (file, _) = a.create(&mut c, (0, 0), Fid::ROOT, "f", FILE);
    let mut b = Raw::new(&mut c, 78);
    let held = b.lock(&mut c, 0, file);
    a.ask_for(&mut c, 0, 0, Reint::Rename(renaming((Fid::ROOT, "f"), (dir, "g"), 0)));
    let (other, status) = b.create(&mut c, (1, 1), dir, "g", FILE);
    assert_eq!(status, 0);
    b.give_back(&mut c, 0, held);
    c.pass(Duration::from_secs(2));
    assert!(marks::count("cross.changed") > 0);
    assert_eq!(b.leads_to(&mut c, 1, dir, "g"), Some((file, 0)));
    assert_eq!(b.getattr(&mut c, 1, other).map(drop), Err(-Errno::ESTALE.raw()));
}

/// A name that its object on another target lacks is not what the change took it for, however often it is tried.
#[test]
fn a_change_that_finds_something_else_each_time_ends() {
    let (mut c, _) = cluster();
    let mut a = Raw::new(&mut c, 77);
    let (dir, _) = a.create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    c.pass(Duration::from_secs(2));
    let mut ino = 0;
    c.change_record("fs-MDT0001", &dir, |record: &mut Oi| ino = record.ino);
    c.change_record("fs-MDT0001", &ino, |record: &mut Inode| record.links = LinkEa::default());
    let mut a = Raw::new(&mut c, 78);
    let op = renaming((Fid::ROOT, "d"), (Fid::ROOT, "e"), 0);
    assert_eq!(a.rename(&mut c, 0, op), -Errno::EBUSY.raw());
    assert!(marks::count("cross.changes_for_ever") > 0 && marks::count("cross.changed") > 0);
    assert_eq!(a.leads_to(&mut c, 0, Fid::ROOT, "d"), Some((dir, 1)));
    assert_eq!(a.create(&mut c, (1, 1), dir, "f", FILE).1, 0, "nothing is held");
}

/// What waits for keys and is then refused keeps nobody from having them.
#[test]
fn an_attempt_that_waited_in_vain_is_in_nobodys_way() {
    let (mut c, mdt1) = cluster();
    let mut raws = [77, 78, 79].map(|client| Raw::new(&mut c, client));
    let (dir, _) = raws[0].create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    assert_eq!(raws[0].create(&mut c, (1, 1), dir, "c", FILE).1, 0);
    for name in ["f", "g"] {
        assert_eq!(raws[0].create(&mut c, (0, 0), Fid::ROOT, name, FILE).1, 0);
    }
    c.slow_server = Some(mdt1);
    let mut ask = |c: &mut Cluster, by: usize, mdt: usize, op: RenameOp| {
        raws[by].ask_for(c, mdt, 0, Reint::Rename(op));
    };
    // The first holds a name that the second waits for; the third is younger and takes the other name of the second.
    ask(&mut c, 0, 1, renaming((dir, "c"), (Fid::ROOT, "n"), 0));
    ask(&mut c, 1, 0, renaming((Fid::ROOT, "n"), (dir, "x"), 1));
    ask(&mut c, 2, 0, renaming((Fid::ROOT, "f"), (dir, "x"), 0));
    c.slow_server = None;
    c.pass(Duration::from_secs(5));
    let [mut a, ..] = raws;
    assert!(a.leads_to(&mut c, 0, Fid::ROOT, "n").is_some() && a.leads_to(&mut c, 0, Fid::ROOT, "f").is_none());
    assert!(marks::count("cross.changed") > 0);
    assert_eq!(a.rename(&mut c, 0, renaming((Fid::ROOT, "g"), (dir, "x"), 0)), 0);
    assert_eq!(a.leads_to(&mut c, 0, Fid::ROOT, "g"), None);
}

/// A client that has no lease cannot change behind a prepared part what that part was prepared for.
#[test]
fn a_batch_does_not_touch_names_of_a_change_under_way() {
    let (mut c, mdt1) = cluster();
    let (mut b, dir) = unanswered(&mut c, mdt1);
    let fid = Fid::new(b.seqs[0], 500);
    let make = |name: &'static [u8], fid: Fid| {
        let op = CreateOp { parent: Fid::ROOT, name: Bytes::from_static(name), fid, mode: DIR, ..CreateOp::default() };
        ReintReq { cred: Some(cred(0)), now_ns: 7, op: Some(Reint::Create(op)), ..ReintReq::default() }
    };
    let mut batch = |c: &mut Cluster, at: usize, change: ReintReq| {
        let mut changes = Vec::new();
        BatchReq::push(&mut changes, &change);
        let body = BatchReq { changes: changes.into(), returns_credits: false };
        c.raw_call(&mut b.mdts[at], Opcode::MdsBatch, &body).decode::<BatchRep>().unwrap().results[0].status
    };
    assert_eq!(batch(&mut c, 0, make(b"d", fid)), -Errno::EAGAIN.raw(), "its name is under change");
    assert_eq!(batch(&mut c, 0, make(b"e", fid)), 0);
    assert!(marks::count("cross.batch_refused") > 0);
    c.slow_server = None;
    c.pass(Duration::from_secs(2));
    let mut b = Raw::new(&mut c, 78);
    assert_eq!(b.leads_to(&mut c, 0, Fid::ROOT, "d"), Some((dir, 1)));
}

/// A client that does not give back its lease holds up a look, and nothing else between the two targets.
#[test]
fn looks_that_wait_for_a_lock_do_not_pile_up() {
    let (mut c, _) = cluster();
    let mut a = Raw::new(&mut c, 77);
    let (dir, _) = a.create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    assert_eq!(a.create(&mut c, (0, 0), Fid::ROOT, "f", FILE).1, 0);
    let mut b = Raw::new(&mut c, 78);
    let want = Some(WantLocks { entries_cookie: 9, exclusive: true, ..WantLocks::default() });
    let asked = GetattrReq { fid: dir, want, ..GetattrReq::default() };
    let held: ObjectRep = c.raw_call(&mut b.mdts[1], Opcode::MdsGetattr, &asked).decode().unwrap();
    assert_eq!(held.locks.len(), 1);
    a.ask_for(&mut c, 0, 0, Reint::Rename(renaming((Fid::ROOT, "f"), (dir, "g"), 0)));
    c.pass(Duration::from_secs(3));
    assert!(marks::count("cross.look_waits") > 0);
    let mut other = Raw::new(&mut c, 79);
    assert_eq!(other.create(&mut c, (0, 1), Fid::ROOT, "e", DIR).1, 0);
}

/// The change of a name is in doubt: it may have been answered, so that its directory is shown with the new times.
#[test]
fn a_directory_is_shown_as_a_change_in_doubt_will_leave_it() {
    let (mut c, mdt1) = cluster();
    let mut a = Raw::new(&mut c, 77);
    let (dir, _) = a.create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    assert_eq!(a.create(&mut c, (1, 1), dir, "f", FILE).1, 0);
    let before = a.getattr(&mut c, 0, Fid::ROOT).unwrap().attr.unwrap();
    c.slow_server = Some(mdt1);
    let op = Some(Reint::Rename(renaming((dir, "f"), (Fid::ROOT, "g"), 0)));
    let now_ns = before.mtime_ns + 1_000;
    let body = ReintReq { cred: Some(cred(0)), now_ns, op, ..ReintReq::default() };
    c.raw_ask(&mut a.mdts[1], Opcode::MdsReint, &body);
    c.pass(Duration::from_millis(50));
    c.kill(mdt1);
    c.slow_server = None;
    c.pass(Duration::from_millis(500));
    assert_eq!(doubts(&c, "fs-MDT0000"), 1);
    let shown = a.getattr(&mut c, 0, Fid::ROOT).unwrap().attr.unwrap();
    assert_eq!((shown.mtime_ns, shown.nlink), (now_ns, before.nlink));
    assert!(marks::count("mdt.shown_in_doubt") > 0);
}

#[test]
fn a_create_that_finds_a_file_on_another_target_opens_it_there() {
    let (mut c, _) = cluster();
    let mut raw = Raw::new(&mut c, 77);
    let (dir, _) = raw.create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    let (file, _) = raw.create(&mut c, (0, 0), Fid::ROOT, "f", FILE);
    let a = c.mount();
    let parent = c.walk(a, "d").unwrap();
    assert_eq!(parent, dir.ino());
    assert_eq!(raw.link(&mut c, 1, file, (dir, "g"), FILE & 0o170_000), 0);
    let (stat, fh) = c.create(a, parent, "g").unwrap();
    assert_eq!((stat.ino, stat.nlink), (file.ino(), 2));
    assert!(marks::count("created_file_is_elsewhere") > 0);
    c.write(a, fh, 0, b"data").unwrap();
    assert_eq!(c.getattr(a, file.ino()).unwrap().size, 4);
}

/// What metadata targets say to each other is heard from nobody else.
#[test]
fn a_client_passes_for_no_metadata_target() {
    let (mut c, _) = cluster();
    let mut a = Raw::new(&mut c, 77);
    let session = CrossSessionReq { mdt: 0, session: u64::MAX, instance: 7, ..CrossSessionReq::default() };
    for opcode in
        [Opcode::CrossSession, Opcode::CrossPrepare, Opcode::CrossTell, Opcode::CrossLook, Opcode::CrossOrphans]
    {
        let answer = c.raw_try(&mut a.mdts[1], opcode, &session);
        assert_eq!(answer.header.status, -Errno::EOPNOTSUPP.raw());
    }
    assert!(marks::count("cross.no_peer") > 0);
    assert_eq!(a.create(&mut c, (0, 1), Fid::ROOT, "d", DIR).1, 0);
}

#[test]
fn a_directory_on_a_target_that_nobody_knows_is_refused() {
    let (mut c, _) = cluster();
    let mut a = Raw::new(&mut c, 77);
    let (parent, name, fid) = (Fid::ROOT, Bytes::from_static(b"d"), a.fid(1));
    let op = CreateOp { parent, name, fid, mode: DIR, mdt: Some(9), ..CreateOp::default() };
    assert_eq!(a.reint(&mut c, 0, Reint::Create(op)).header.status, -Errno::ENODEV.raw());
    assert!(marks::count("cross.unknown_target") > 0);
}

/// Several requests at once that name what the target has not heard of: it asks the MGS for each of them once, and no longer.
#[test]
fn requests_that_ask_for_the_configuration_at_once_come_to_an_end() {
    let (mut c, _) = cluster();
    let new = Fid::new(u64::MAX / 2, 1);
    let mut clients = [77, 78, 79].map(|client| Raw::new(&mut c, client));
    assert_eq!(clients[0].create(&mut c, (0, 0), Fid::ROOT, "f", FILE).1, 0);
    for raw in &mut clients {
        let rename = change(0, Reint::Rename(renaming((Fid::ROOT, "f"), (new, "f"), 0)));
        c.raw_ask(&mut raw.mdts[0], Opcode::MdsReint, &rename);
    }
    c.pass(Duration::from_secs(1));
    let answers = clients.each_ref().map(|raw| raw.answer(&mut c, 0));
    assert_eq!(answers, [Some(-Errno::ESTALE.raw()); 3]);
    assert!(marks::count("cross.newer_config") >= 3);
}

/// A client may know of a new range of sequences before a target does.
#[test]
fn an_object_of_a_range_that_is_not_known_waits_for_the_configuration() {
    let (mut c, _) = cluster();
    let mut a = Raw::new(&mut c, 77);
    assert_eq!(a.create(&mut c, (0, 0), Fid::ROOT, "f", FILE).1, 0);
    let new = Fid::new(u64::MAX / 2, 1);
    let rename = || renaming((Fid::ROOT, "f"), (new, "f"), 0);
    assert_eq!(a.rename(&mut c, 0, rename()), -Errno::ESTALE.raw());
    assert_eq!(marks::count("cross.newer_config"), 1);
    let mgs = c.server("MGS");
    c.kill(mgs);
    assert_eq!(a.rename(&mut c, 0, rename()), -Errno::EINPROGRESS.raw());
    assert_eq!(a.link(&mut c, 0, new, (Fid::ROOT, "g"), FILE & 0o170_000), -Errno::EINPROGRESS.raw());
    // What lies between known ranges is old, and no reason to wait.
    let old = renaming((Fid::ROOT, "f"), (Fid::new(Fid::SEQ_FIRST, 1), "f"), 0);
    assert_eq!(a.rename(&mut c, 0, old), -Errno::ESTALE.raw());
    c.start(mgs);
    c.pass(Duration::from_secs(10));
    assert_eq!(a.rename(&mut c, 0, rename()), -Errno::ESTALE.raw());
}

// --- a target that is lost for good ---

impl Raw {
    /// Removes a name in the root, and leaves its object alone.
    fn remove_entry(&mut self, c: &mut Cluster, at: usize, name: &str, uid: u32) -> i32 {
        let name = Bytes::copy_from_slice(name.as_bytes());
        let op = UnlinkOp { parent: Fid::ROOT, name, rmdir: false, reported: None, entry_only: true };
        let op = Some(Reint::Unlink(op));
        let body = ReintReq { cred: Some(cred(uid)), now_ns: 7, op, ..ReintReq::default() };
        c.raw_try(&mut self.mdts[at], Opcode::MdsReint, &body).header.status
    }
}

fn left(c: &Cluster, server: &str) -> String {
    c.server_params(server, "mdt.*.changes_of_lost")[0].1.clone()
}

/// The participant is lost, and nobody knows whether it had prepared its part: it may have been answered.
#[test]
fn what_is_in_doubt_with_a_lost_participant_is_done() {
    let (mut c, mdt1) = cluster();
    let mdt0 = c.server("fs-MDT0000");
    let (_, dir) = unanswered(&mut c, mdt1);
    c.kill(mdt0);
    c.kill_and_lose(mdt1);
    c.slow_server = None;
    c.start(mdt0);
    let mut b = Raw::at(&mut c, 78, &["fs-MDT0000"]);
    assert_eq!((doubts(&c, "fs-MDT0000"), left(&c, "fs-MDT0000").as_str()), (1, ""));
    declare_lost(&mut c, "fs-MDT0001");
    assert_eq!(doubts(&c, "fs-MDT0000"), 0, "{:#?}", c.log);
    let line = left(&c, "fs-MDT0000");
    assert!(line.contains("coordinator, under way when MDT0001 was lost; [0x200000007:0x1:0x0]"), "{line}");
    assert_eq!(b.leads_to(&mut c, 0, Fid::ROOT, "d"), Some((dir, 1)));
    b.seqs.push(1 << 40);
    assert_eq!(b.create(&mut c, (0, 1), Fid::ROOT, "e", DIR).1, -Errno::ENXIO.raw(), "nothing is begun with it");
    assert_eq!(b.create(&mut c, (0, 0), Fid::ROOT, "e", DIR).1, 0);
    // Its name is in the way.
    assert_eq!(b.remove_entry(&mut c, 0, "d", 5), -Errno::EPERM.raw());
    assert_eq!(b.remove_entry(&mut c, 0, "e", 0), -Errno::EINVAL.raw());
    assert_eq!(b.remove_entry(&mut c, 0, "none", 0), -Errno::ENOENT.raw());
    assert_eq!(b.remove_entry(&mut c, 0, "d", 0), 0);
    assert_eq!(b.leads_to(&mut c, 0, Fid::ROOT, "d"), None);
    assert_eq!(b.getattr(&mut c, 0, Fid::ROOT).unwrap().attr.unwrap().nlink, 3);
    assert!(marks::count("cross.loss") > 0 && marks::count("cross.needs_lost") > 0);
    // What was lost stays lost over a restart.
    c.kill(mdt0);
    c.start(mdt0);
    assert_eq!((doubts(&c, "fs-MDT0000"), left(&c, "fs-MDT0000")), (0, line));
}

/// A target that was declared lost comes back.
#[test]
fn a_lost_target_is_refused_until_it_is_admitted() {
    let (mut c, mdt1) = cluster();
    let mdt0 = c.server("fs-MDT0000");
    let (_, dir) = unanswered(&mut c, mdt1);
    c.kill(mdt0);
    c.slow_server = None;
    c.pass(Duration::from_secs(1));
    assert_eq!(doubts(&c, "fs-MDT0001"), 1);
    c.kill(mdt1);
    declare_lost(&mut c, "fs-MDT0001");
    c.start(mdt0);
    Raw::at(&mut c, 78, &["fs-MDT0000"]);
    assert_eq!(doubts(&c, "fs-MDT0000"), 0);
    // Its MGS cannot tell it; the other one refuses it.
    let mgs = c.server("MGS");
    c.kill(mgs);
    c.log.clear();
    c.start(mdt1);
    c.pass(Duration::from_secs(20));
    let says = c.log.iter().any(|line| line.contains("MDT0000 says that this target was declared lost: stop it"));
    assert!(says && marks::count("cross.lost_itself") > 0 && marks::count("cross.lost_refused") > 0, "{:#?}", c.log);
    assert_eq!(doubts(&c, "fs-MDT0001"), 1);
    c.kill(mdt1);
    c.start(mgs);
    c.log.clear();
    c.may_stop = true;
    c.start(mdt1);
    c.pass(Duration::from_secs(5));
    let says = c.log.iter().any(|line| line.starts_with("fs-MDT0001 stops: 'fs-MDT0001' was declared lost"));
    assert!(!c.is_serving(mdt1) && says, "{:#?}", c.log);
    c.kill(mdt1);
    c.may_stop = false;
    c.admits_lost = true;
    c.start(mdt1);
    c.pass(Duration::from_secs(3));
    assert!(c.is_serving(mdt1) && marks::count("cross.admitted") > 0, "{:#?}", c.log);
    assert_eq!(doubts(&c, "fs-MDT0001"), 0);
    let mut a = Raw::new(&mut c, 79);
    assert_eq!(a.leads_to(&mut c, 0, Fid::ROOT, "d"), Some((dir, 1)));
    assert_eq!(a.getattr(&mut c, 1, dir).map(drop), Err(-Errno::ESTALE.raw()), "it gave up its part");
    assert_eq!(a.create(&mut c, (0, 1), Fid::ROOT, "e", DIR).1, 0, "{:#?}", c.log);
    // It is admitted once and for all.
    c.admits_lost = false;
    c.pass(Duration::from_secs(10));
    c.kill(mdt1);
    c.start(mdt1);
    assert_eq!(doubts(&c, "fs-MDT0001"), 0, "its records are gone");
    let mut a = Raw::new(&mut c, 80);
    assert_eq!(a.create(&mut c, (0, 1), Fid::ROOT, "g", DIR).1, 0, "{:#?}", c.log);
}

/// The coordinator is lost. Both participants have the change prepared: it may have been answered, and they do it.
#[test]
fn participants_do_what_all_have_prepared_when_their_coordinator_is_lost() {
    let (mut c, mdts) = three();
    let file = rename_over_three(&mut c, mdts, mdts[0]);
    c.kill_and_lose(mdts[0]);
    c.slow_server = None;
    c.pass(Duration::from_secs(1));
    assert_eq!((doubts(&c, "fs-MDT0000"), doubts(&c, "fs-MDT0002")), (1, 1));
    c.slow_server = Some(c.server("fs-MDT0000"));
    declare_lost(&mut c, "fs-MDT0001");
    assert_eq!(doubts(&c, "fs-MDT0000"), 1, "the loss is not durable there");
    c.slow_server = None;
    c.pass(Duration::from_secs(3));
    assert_eq!((doubts(&c, "fs-MDT0000"), doubts(&c, "fs-MDT0002")), (0, 0), "{:#?}", c.log);
    for server in ["fs-MDT0000", "fs-MDT0002"] {
        assert!(left(&c, server).contains("participant, under way when MDT0001 was lost"), "{}", left(&c, server));
    }
    let mut a = Raw::at(&mut c, 78, &["fs-MDT0000", "fs-MDT0002"]);
    assert_eq!(a.leads_to(&mut c, 0, Fid::ROOT, "g"), Some((file, 2)));
    assert_eq!(a.getattr(&mut c, 1, file).unwrap().attr.unwrap().nlink, 2);
}

/// One of the participants has not prepared the change, so it was not answered, and the other one gives it up.
#[test]
fn participants_give_up_what_one_has_not_prepared_when_their_coordinator_is_lost() {
    let (mut c, mdts) = three();
    let file = rename_over_three(&mut c, mdts, mdts[1]);
    c.kill_and_lose(mdts[0]);
    c.kill_and_lose(mdts[1]);
    c.slow_server = None;
    c.pass(Duration::from_secs(1));
    declare_lost(&mut c, "fs-MDT0001");
    assert_eq!(doubts(&c, "fs-MDT0000"), 1, "the other one has not said what it has");
    let waits = c.server_params("fs-MDT0000", "mdt.*.changes_in_doubt")[0].1.clone();
    assert!(waits.contains("prepared, waits for MDT0002 for "), "{waits}");
    let mdt0 = c.server("fs-MDT0000");
    c.kill(mdt0);
    c.start(mdt0);
    c.start(mdts[1]);
    let mut a = Raw::at(&mut c, 78, &["fs-MDT0000", "fs-MDT0002"]);
    c.pass(Duration::from_secs(3));
    assert_eq!((doubts(&c, "fs-MDT0000"), doubts(&c, "fs-MDT0002")), (0, 0), "{:#?}", c.log);
    assert_eq!(a.leads_to(&mut c, 0, Fid::ROOT, "g"), None);
    assert_eq!(a.getattr(&mut c, 1, file).unwrap().attr.unwrap().nlink, 2);
}

/// A target that was away when another one was lost and admitted again hears of that from the others, before it listens to
/// the one that came back and has forgotten everything.
#[test]
fn a_target_that_was_away_settles_a_loss_before_it_listens_to_the_lost_one() {
    let (mut c, mdts) = three();
    let file = rename_over_three(&mut c, mdts, mdts[0]);
    c.kill_and_lose(mdts[0]);
    c.kill(mdts[1]);
    c.slow_server = None;
    c.pass(Duration::from_secs(1));
    declare_lost(&mut c, "fs-MDT0001");
    c.admits_lost = true;
    c.start(mdts[0]);
    c.pass(Duration::from_secs(3));
    assert_eq!(doubts(&c, "fs-MDT0000"), 1, "{:#?}", c.log);
    // Nobody tells it but the other metadata targets.
    c.admits_lost = false;
    c.kill(c.server("MGS"));
    c.start(mdts[1]);
    let mut a = Raw::at(&mut c, 78, &["fs-MDT0000", "fs-MDT0002"]);
    c.pass(Duration::from_secs(3));
    assert_eq!((doubts(&c, "fs-MDT0000"), doubts(&c, "fs-MDT0002")), (0, 0), "{:#?}", c.log);
    assert!(marks::count("cross.loss_first") > 0 && marks::count("cross.loss") > 1);
    assert_eq!(a.leads_to(&mut c, 0, Fid::ROOT, "g"), Some((file, 2)));
    assert_eq!(a.getattr(&mut c, 1, file).unwrap().attr.unwrap().nlink, 2);
}

/// What other targets say of losses is checked, and what the coordinator of an attempt has not heard of keeps it from being
/// prepared.
#[test]
fn what_a_target_says_of_losses_is_not_taken_blindly() {
    let (mut c, mdts) = three();
    let mut peer = c.raw_peer("fs-MDT0000");
    let losses = [(1, 5000), (77, 1)].map(|(mdt, losses)| TargetLosses { mdt, losses }).to_vec();
    let attempts = vec![CrossAttempt { mdt: 1, instance: 2, serial: 3 }];
    for losses in losses {
        let asked = CrossOrphansReq { losses: vec![losses], attempts: attempts.clone() };
        let answer = c.raw_try(&mut peer, Opcode::CrossOrphans, &asked);
        assert_eq!(answer.header.status, -Errno::EAGAIN.raw());
    }
    assert_eq!((marks::count("cross.false_loss"), marks::count("cross.loss")), (2, 0));
    let asked = CrossOrphansReq { losses: Vec::new(), attempts };
    let answer = c.raw_call(&mut peer, Opcode::CrossOrphans, &asked);
    assert_eq!(answer.decode::<CrossOrphansRep>().unwrap(), CrossOrphansRep::default());
    let asked = CrossSessionReq { mdt: 1, session: 9, instance: 7, losses: 5000, ..CrossSessionReq::default() };
    assert_eq!(c.raw_try(&mut peer, Opcode::CrossSession, &asked).header.status, -Errno::EAGAIN.raw());
    let mut a = Raw::new(&mut c, 77);
    assert_eq!(a.create(&mut c, (0, 1), Fid::ROOT, "d", DIR).1, 0);

    c.kill(mdts[1]);
    declare_lost(&mut c, "fs-MDT0002");
    c.kill(mdts[0]);
    let session = CrossSessionReq { mdt: 1, session: 1, instance: 7, ..CrossSessionReq::default() };
    c.raw_call(&mut peer, Opcode::CrossSession, &session);
    let attempt = CrossAttempt { mdt: 1, instance: 7, serial: 1 };
    let part = Some(CrossPart::default());
    let prepare =
        CrossPrepareReq { session: 1, attempt, age: 1, part, members: vec![0, 2], ..CrossPrepareReq::default() };
    let answer = c.raw_call(&mut peer, Opcode::CrossPrepare, &prepare);
    assert!(answer.decode::<CrossPrepareRep>().unwrap().busy && marks::count("cross.prepare_before_loss") > 0);
    let knows = CrossPrepareReq { losses: vec![0, 1], attempt: CrossAttempt { serial: 2, ..attempt }, ..prepare };
    let answer = c.raw_call(&mut peer, Opcode::CrossPrepare, &knows);
    assert_eq!(answer.decode::<CrossPrepareRep>().unwrap(), CrossPrepareRep::default());

    // From when it is lost itself, nothing that it says counts.
    declare_lost(&mut c, "fs-MDT0001");
    let late = CrossPrepareReq { attempt: CrossAttempt { serial: 3, ..attempt }, ..knows };
    assert_eq!(c.raw_try(&mut peer, Opcode::CrossPrepare, &late).header.status, -Errno::ESTALE.raw());
    let tell = CrossTellReq { abort: vec![CrossAttempt { serial: 2, ..attempt }], ..CrossTellReq::default() };
    assert_eq!(c.raw_try(&mut peer, Opcode::CrossTell, &tell).header.status, -Errno::ESTALE.raw());
}
