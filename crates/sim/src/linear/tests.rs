//! The order search on good and bad histories.

use super::*;
use crate::model::Path;
use crate::program::name;

fn path(text: &str) -> Path {
    text.split('/').map(name).collect()
}

fn event(serial: u32, from: u64, op: Op, end: Option<(u64, Outcome)>) -> Event {
    let end = end.map(|(to, outcome)| (Instant(to), outcome));
    Event { serial, from: Instant(from), end, ..Event::of(op) }
}

fn begin() -> Model {
    let mut model = Model::new(0, 0, 0o755, TimeRange::at(0));
    for dir in ["d", "e"] {
        // A new name in an empty directory: the call cannot fail.
        let _ = model.apply(&Op::Mkdir { path: path(dir), mode: 0o755 }, &Cred::default(), TimeRange::at(0));
    }
    model
}

/// Others may see a change whose client died.
#[test]
fn others_may_see_a_change_without_a_result() {
    let rename = event(100, 1, Op::Rename { from: path("d"), to: path("f"), flags: 0 }, None);
    let gone = event(101, 2, Op::Rmdir { path: path("d") }, Some((3, Err(Errno::ENOENT))));
    let there = event(102, 4, Op::Rmdir { path: path("f") }, Some((5, Ok(Returned::Done))));
    assert_eq!(search(&begin(), &[vec![rename], vec![gone, there]], &Excuses::default(), 1000), Verdict::Good);
}

/// The attributes in the reply of a call that made an object are read before the call ends, and later than the object was made.
#[test]
fn a_new_object_may_change_before_its_maker_gets_the_reply() {
    let stat = |ino: u64, mode: u32| {
        let stat = client::api::Stat { ino, mode: crate::model::S_IFREG | mode, nlink: 1, ..Default::default() };
        Ok(Returned::Stat(stat))
    };
    let make = |mode| {
        let op = Op::Mknod { path: path("f"), mode: crate::model::S_IFREG | 0o644, rdev: 0 };
        event(100, 1, op, Some((9, stat(7, mode))))
    };
    let chmod =
        |from| event(101, from, Op::Chmod { path: path("f"), mode: 0o600 }, Some((from + 2, Ok(Returned::Done))));
    let verdict = |mode, from| search(&begin(), &[vec![make(mode)], vec![chmod(from)]], &Excuses::default(), 1000);
    assert_eq!(verdict(0o644, 3), Verdict::Good);
    assert_eq!(verdict(0o600, 3), Verdict::Good);
    assert!(matches!(verdict(0o640, 3), Verdict::Bad(_)), "no call set that mode");
    assert!(matches!(verdict(0o600, 10), Verdict::Bad(_)), "the mode changed after the call had ended");
}

/// A rename was visible, a directory was found under its new name, a crash undid the rename, and then it was made again.
#[test]
fn an_object_resolved_before_a_crash_is_changed_after_it() {
    let rename = Op::Rename { from: path("d"), to: path("f"), flags: 0 };
    let chmod = Op::Chmod { path: path("f"), mode: 0o700 };
    let gone = event(102, 20, Op::Rmdir { path: path("f") }, Some((22, Err(Errno::ENOENT))));
    let verdict = |seen: bool, mode| {
        let rename = event(100, 3, rename.clone(), Some((30, Ok(Returned::Done))));
        let seen_undone = seen.then_some(100).into_iter().collect();
        let chmod = Event { seen_undone, ..event(101, 4, chmod.clone(), Some((8, Ok(Returned::Done)))) };
        let stat = client::api::Stat { ino: 7, mode: crate::model::S_IFDIR | mode, nlink: 2, ..Default::default() };
        let stat = event(103, 23, Op::Stat { path: path("d") }, Some((24, Ok(Returned::Stat(stat)))));
        search(&begin(), &[vec![rename], vec![chmod, gone.clone(), stat]], &Excuses::default(), 1000)
    };
    assert_eq!(verdict(true, 0o700), Verdict::Good);
    assert!(matches!(verdict(true, 0o755), Verdict::Bad(_)), "the object that the path led to was changed");
    assert!(matches!(verdict(false, 0o700), Verdict::Bad(_)), "no crash undid the rename");
}

/// Beside a rename that a crash undid, and that was made again after all these calls, a call sees the names before or after the
/// rename and nothing else.
#[test]
fn a_call_beside_a_crash_sees_one_of_two_states() {
    let directory = |ino| {
        let stat = client::api::Stat { ino, mode: crate::model::S_IFDIR | 0o755, nlink: 2, ..Default::default() };
        Ok(Returned::Stat(stat))
    };
    let stat = |at: &str| Op::Stat { path: path(at) };
    let verdict = |op: Op, outcome: Outcome| {
        let rename = Op::Rename { from: path("d"), to: path("f"), flags: 0 };
        let rename = event(100, 1, rename, Some((30, Ok(Returned::Done))));
        let look = Event { seen_undone: BTreeSet::from([100]), ..event(101, 3, op, Some((4, outcome))) };
        // The crash happened before this call: the name does not exist yet.
        let without = event(102, 10, stat("f"), Some((11, Err(Errno::ENOENT))));
        search(&begin(), &[vec![rename], vec![look, without]], &Excuses::default(), 1000)
    };
    assert_eq!(verdict(stat("f"), directory(7)), Verdict::Good, "seen before the crash");
    assert_eq!(verdict(stat("d"), Err(Errno::ENOENT)), Verdict::Good, "seen before the crash");
    assert_eq!(verdict(stat("f"), Err(Errno::ENOENT)), Verdict::Good, "not seen");
    assert_eq!(verdict(stat("d"), directory(7)), Verdict::Good, "not seen");
    let bad = |op, outcome, why: &str| assert!(matches!(verdict(op, outcome), Verdict::Bad(_)), "{why}");
    bad(stat("f"), Err(Errno::EIO), "no state yields that error");
    bad(stat("e"), Err(Errno::ENOENT), "the rename did not touch this name");
    bad(Op::Rmdir { path: path("f") }, Err(Errno::ENOTEMPTY), "nothing was in it");
    bad(Op::Rmdir { path: path("e") }, Err(Errno::ENOENT), "nor that one");
}

fn for_user(event: Event) -> Event {
    Event { cred: Rc::new(crate::program::user()), ..event }
}

/// A permission check that runs beside a chmod may see the permissions before or after it.
#[test]
fn permissions_may_change_during_a_call() {
    let chmod =
        |from| event(100, from, Op::Chmod { path: path("d"), mode: 0o777 }, Some((from + 1, Ok(Returned::Done))));
    let mkdir = |at: u64, outcome| for_user(event(101, at, Op::Mkdir { path: path("d/f"), mode: 0o755 }, outcome));
    let verdict = |at, outcome: Outcome| {
        search(&begin(), &[vec![chmod(5)], vec![mkdir(at, Some((at + 3, outcome)))]], &Excuses::default(), 1000)
    };
    let made = || {
        let stat = client::api::Stat { ino: 9, mode: crate::model::S_IFDIR | 0o755, nlink: 2, ..Default::default() };
        Ok(Returned::Stat(client::api::Stat { uid: 1000, gid: 1000, ..stat }))
    };
    assert_eq!(verdict(1, Err(Errno::EACCES)), Verdict::Good);
    assert_eq!(verdict(4, Err(Errno::EACCES)), Verdict::Good);
    assert_eq!(verdict(4, made()), Verdict::Good);
    assert_eq!(verdict(7, made()), Verdict::Good);
    let bad = |verdict, why: &str| assert!(matches!(verdict, Verdict::Bad(_)), "{why}");
    bad(verdict(1, made()), "no permission yet");
    bad(verdict(7, Err(Errno::EACCES)), "permission was granted before");
    bad(verdict(4, Err(Errno::EPERM)), "no state gives this error");
}

/// Linux checks search permission on a directory first; the operation in the directory comes later.
#[test]
fn search_permission_is_checked_before_the_operation() {
    let mode = |serial, from, mode| {
        event(serial, from, Op::Chmod { path: path("d/n"), mode }, Some((from + 1, Ok(Returned::Done))))
    };
    let begin = || {
        let mut model = begin();
        for at in ["d/n", "d/n/f"] {
            let made = model.apply(&Op::Mkdir { path: path(at), mode: 0o755 }, &Cred::default(), TimeRange::ANY);
            assert!(made.is_ok());
        }
        model
    };
    let stat = client::api::Stat { ino: 9, mode: crate::model::S_IFDIR | 0o755, nlink: 2, ..Default::default() };
    let look = |from| {
        for_user(event(109, from, Op::Stat { path: path("d/n/f") }, Some((30, Ok(Returned::Stat(stat.clone()))))))
    };
    let verdict = |from| search(&begin(), &[vec![mode(100, 10, 0o700)], vec![look(from)]], &Excuses::default(), 1000);
    assert_eq!(verdict(5), Verdict::Good, "search permission was checked before the chmod");
    assert!(matches!(verdict(12), Verdict::Bad(_)), "there was no search permission");
}

/// A read-only mount changes nothing for any caller; for existing objects it returns `EROFS`.
#[test]
fn a_read_only_mount_refuses() {
    let verdict = |at: &str, outcome| {
        let chmod = event(100, 1, Op::Chmod { path: path(at), mode: 0o700 }, Some((2, outcome)));
        search(&begin(), &[vec![Event { read_only: true, ..chmod }]], &Excuses::default(), 1000)
    };
    assert_eq!(verdict("d", Err(Errno::EROFS)), Verdict::Good);
    assert_eq!(verdict("f", Err(Errno::ENOENT)), Verdict::Good);
    assert!(matches!(verdict("d", Ok(Returned::Done)), Verdict::Bad(_)));
    assert!(matches!(verdict("f", Err(Errno::EROFS)), Verdict::Bad(_)));
}

/// A time that a program set remains until a change, and an extended attribute has its last value.
#[test]
fn set_values_are_shown() {
    let time = |ns| client::api::SetTime::At(ns);
    let utimens = Op::Utimens { path: path("d"), atime: None, mtime: Some(time(77)) };
    let utimens = event(100, 1, utimens, Some((2, Ok(Returned::Done))));
    let link = Op::Symlink { path: path("d/f"), target: proto::Bytes::from_static(b"x") };
    let stat_of_link = client::api::Stat { ino: 8, mode: 0o120_777, nlink: 1, size: 1, ..Default::default() };
    let fill = event(101, 5, link, Some((6, Ok(Returned::Stat(stat_of_link)))));
    let stat = |mtime_ns| {
        let stat = client::api::Stat { ino: 9, mode: crate::model::S_IFDIR | 0o755, nlink: 2, ..Default::default() };
        let got = Ok(Returned::Stat(client::api::Stat { mtime_ns, ..stat }));
        event(102, 10, Op::Stat { path: path("d") }, Some((11, got)))
    };
    let value = |text: &'static str| proto::Bytes::from_static(text.as_bytes());
    let set = |serial, from, text| {
        let op = Op::Setxattr { path: path("d"), name: value("user.a"), value: value(text), flags: 0 };
        event(serial, from, op, Some((from + 1, Ok(Returned::Done))))
    };
    let get = |outcome| event(105, 10, Op::Getxattr { path: path("d"), name: value("user.a") }, Some((11, outcome)));
    let verdict = |calls: Vec<Event>| search(&begin(), &[calls], &Excuses::default(), 1000);
    let bad = |calls: Vec<Event>| assert!(matches!(verdict(calls), Verdict::Bad(_)));
    assert_eq!(verdict(vec![utimens.clone(), stat(77)]), Verdict::Good);
    bad(vec![utimens.clone(), stat(78)]);
    assert_eq!(verdict(vec![utimens, fill, stat(78)]), Verdict::Good);
    assert_eq!(
        verdict(vec![set(103, 1, "old"), set(104, 3, "new"), get(Ok(Returned::Data(value("new"))))]),
        Verdict::Good
    );
    bad(vec![set(103, 1, "old"), set(104, 3, "new"), get(Ok(Returned::Data(value("old"))))]);
    bad(vec![set(103, 1, "old"), get(Err(Errno::ENODATA))]);
}

/// Such a change may also never have happened.
#[test]
fn a_change_without_a_result_may_never_have_happened() {
    let rename = event(100, 1, Op::Rename { from: path("d"), to: path("f"), flags: 0 }, None);
    let there = event(101, 2, Op::Rmdir { path: path("d") }, Some((3, Ok(Returned::Done))));
    assert_eq!(search(&begin(), &[vec![rename.clone()], vec![there]], &Excuses::default(), 1000), Verdict::Good);
    let gone = event(101, 2, Op::Rmdir { path: path("e") }, Some((3, Err(Errno::ENOENT))));
    assert!(matches!(search(&begin(), &[vec![rename], vec![gone]], &Excuses::default(), 1000), Verdict::Bad(_)));
}

/// The attributes in a listing are those of a moment after that of the names and before the end of the call.
#[test]
fn attributes_in_a_listing_may_be_later_than_its_names() {
    let stat = |mode: u32, serial: u64| client::api::Stat {
        ino: serial,
        mode,
        nlink: 1,
        cacheable: true,
        ..client::api::Stat::default()
    };
    let mknod = |serial: u32, from, at: &str| {
        let op = Op::Mknod { path: path(at), mode: 0o100_644, rdev: 0 };
        event(serial, from, op, Some((from + 1, Ok(Returned::Stat(stat(0o100_644, serial.into()))))))
    };
    let chmod = |from, to| {
        let op = Op::Chmod { path: path("d/a"), mode: 0o600 };
        event(103, from, op, Some((to, Ok(Returned::Done))))
    };
    let list = |mode, to| {
        let entry =
            DirectoryEntry { name: name("a"), ino: 101, kind: 8, offset: 1, stat: Some(stat(0o100_000 | mode, 101)) };
        let op = Op::List { path: path("d"), plus: true, bytes: 0 };
        event(102, 10, op, Some((to, Ok(Returned::Entries(vec![entry])))))
    };
    // The mode changes and a second name is added while the directory is listed.
    let look = |changes: [Event; 2], shown: u32| {
        let [first, second] = changes;
        let made = mknod(101, 1, "d/a");
        search(&begin(), &[vec![made, first, second], vec![list(shown, 30)]], &Excuses::default(), 10_000)
    };
    assert_eq!(look([mknod(104, 12, "d/b"), chmod(14, 16)], 0o600), Verdict::Good, "names first");
    assert_eq!(look([chmod(12, 14), mknod(104, 16, "d/b")], 0o600), Verdict::Good);
    assert_eq!(look([chmod(5, 6), mknod(104, 16, "d/b")], 0o600), Verdict::Good);
    assert!(matches!(look([chmod(5, 6), mknod(104, 16, "d/b")], 0o644), Verdict::Bad(_)), "from before the call");
    assert!(matches!(look([mknod(104, 12, "d/b"), chmod(31, 32)], 0o600), Verdict::Bad(_)), "from after the call");
    assert!(matches!(look([mknod(104, 5, "d/b"), chmod(12, 14)], 0o600), Verdict::Bad(_)), "a name is lacking");
}

/// An open with `O_CREAT` may fail with `ESTALE` where a pipe has the name, and only there.
#[test]
fn an_open_with_o_creat_on_a_pipe_may_be_stale() {
    let open = |flags| {
        let op = Op::Open { path: path("d/a"), flags, mode: 0o644, fd: 7 };
        event(102, 10, op, Some((11, Err(Errno::ESTALE))))
    };
    let after = |mode, flags| {
        let stat = client::api::Stat { ino: 101, mode, nlink: 1, ..client::api::Stat::default() };
        let made = Op::Mknod { path: path("d/a"), mode, rdev: 0 };
        let made = event(101, 1, made, Some((2, Ok(Returned::Stat(stat)))));
        search(&begin(), &[vec![made, open(flags)]], &Excuses::default(), 10_000)
    };
    assert_eq!(after(0o010_644, 0o102), Verdict::Good);
    assert!(matches!(after(0o010_644, 0o2), Verdict::Bad(_)), "it creates nothing");
    assert!(matches!(after(0o100_644, 0o102), Verdict::Bad(_)), "a file");
}

/// A file is made, a listing shows it, and a crash undoes it; the program's call is executed again and makes another object. That
/// listing says nothing about the new object's number, but a listing after the call does.
#[test]
fn an_object_lost_in_a_crash_has_no_number() {
    let open = |ino| {
        let op = Op::Open { path: path("d/a"), flags: 0o100, mode: 0o644, fd: 7 };
        event(100, 1, op, Some((20, Ok(Returned::Opened(ino)))))
    };
    let list = |from, seen: bool, ino| {
        let entry = DirectoryEntry { name: name("a"), ino, kind: 8, offset: 1, stat: None };
        let op = Op::List { path: path("d"), plus: false, bytes: 0 };
        let seen_undone = seen.then_some(100).into_iter().collect();
        Event { seen_undone, ..event(101, from, op, Some((from + 1, Ok(Returned::Entries(vec![entry]))))) }
    };
    let look = |ino, list| search(&begin(), &[vec![open(ino)], vec![list]], &Excuses::default(), 10_000);
    let bad = |verdict| assert!(matches!(verdict, Verdict::Bad(_)), "{verdict:?}");
    assert_eq!(look(12, list(5, true, 10)), Verdict::Good);
    assert_eq!(look(12, list(5, true, 12)), Verdict::Good);
    bad(look(12, list(5, false, 10)));
    bad(look(12, list(30, false, 10)));
    bad(look(12, list(30, true, 10)));
    let both = |second| {
        let looks = vec![list(5, true, 10), Event { serial: 102, ..list(30, false, second) }];
        search(&begin(), &[vec![open(12)], looks], &Excuses::default(), 10_000)
    };
    assert_eq!(both(12), Verdict::Good);
    bad(both(10));
}
