//! One request per operation: a client that knows a directory and nothing in it changes it without a lookup first.

use client::api::{Answer, Call, Event, FileHandle, SetStat};
use proto::frame::flags;
use proto::{Errno, Opcode};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use testkit::cluster::{Cluster, name};

/// A client that knows the directory `d` alone, in which another has made the file `f`, the directory `e` and the link `s`;
/// gives the clients, `d` and `f`.
fn fresh() -> (Cluster, usize, u64, u64) {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let dir = c.mkdir(a, 1, "d").unwrap().ino;
    let (file, fh) = c.create(a, dir, "f").unwrap();
    c.close(a, fh).unwrap();
    c.mkdir(a, dir, "e").unwrap();
    c.call(a, Call::Symlink { parent: dir, name: name("s"), target: name("to") }).unwrap();
    let now = c.now;
    c.nodes[a].machine.handle(now, Event::Unmount);
    c.until(|c| c.nodes[a].unmounted);
    let b = c.mount();
    c.lookup(b, 1, "d").unwrap();
    c.requests.clear();
    (c, b, dir, file.ino)
}

#[test]
fn a_change_is_one_request_also_where_nothing_is_known() {
    type Make = fn(u64) -> Call;
    let calls: [(&str, Make); 10] = [
        ("mkdir", |parent| Call::Mkdir { parent, name: name("x"), mode: 0o755 }),
        ("mknod", |parent| Call::Mknod { parent, name: name("x"), mode: 0o100_644, rdev: 0 }),
        ("create", |parent| Call::Create { parent, name: name("x"), mode: 0o644, flags: 0o1 }),
        ("create of what is there", |parent| Call::Create { parent, name: name("f"), mode: 0o644, flags: 0 }),
        ("symlink", |parent| Call::Symlink { parent, name: name("x"), target: name("to") }),
        ("unlink", |parent| Call::Unlink { parent, name: name("f") }),
        ("rmdir", |parent| Call::Rmdir { parent, name: name("e") }),
        ("rename", |parent| Call::Rename {
            parent,
            name: name("f"),
            new_parent: parent,
            new_name: name("x"),
            flags: 0,
        }),
        ("rename over another", |parent| Call::Rename {
            parent,
            name: name("f"),
            new_parent: parent,
            new_name: name("s"),
            flags: 0,
        }),
        ("rename into another directory", |parent| Call::Rename {
            parent,
            name: name("f"),
            new_parent: 1,
            new_name: name("x"),
            flags: 0,
        }),
    ];
    for (what, call) in calls {
        let (mut c, b, dir, _) = fresh();
        c.call(b, call(dir)).unwrap();
        assert_eq!((c.requests.get("mds_reint"), c.sent()), (Some(&1), 1), "{what}: {:?}", c.requests);
    }
    // What names its object itself needs that, and no lookup of the name that comes.
    let (mut c, b, dir, file) = fresh();
    c.lookup(b, dir, "f").unwrap();
    for call in [
        Call::Link { ino: file, new_parent: dir, new_name: name("x") },
        Call::Setattr { ino: file, set: SetStat { mode: Some(0o600), ..SetStat::default() } },
    ] {
        c.requests.clear();
        c.call(b, call.clone()).unwrap();
        assert_eq!((c.requests.get("mds_reint"), c.sent()), (Some(&1), 1), "{call:?}: {:?}", c.requests);
    }
}

const MANY: usize = 4000;

/// A directory of many files that one client has made and closed, and another has listed; gives the other, the directory and the
/// files as they are listed, with their inode numbers.
fn listed() -> (Cluster, usize, u64, Vec<(String, u64)>) {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let dir = c.mkdir(a, 1, "d").unwrap().ino;
    for at in 0..MANY {
        let (_, fh) = c.create(a, dir, &format!("f{at}")).unwrap();
        c.close(a, fh).unwrap();
    }
    c.lookup(b, 1, "d").unwrap();
    let Answer::Opened { fh, .. } = c.call(b, Call::Opendir { ino: dir }).unwrap() else { panic!() };
    let mut files = Vec::new();
    let mut offset = 0;
    loop {
        let call = Call::Readdir { fh, offset, max_bytes: 32 << 10, plus: false };
        let Answer::Entries(entries) = c.call(b, call).unwrap() else { panic!() };
        let Some(last) = entries.last() else { break };
        offset = last.offset;
        let names = entries.iter().filter(|entry| !entry.name.starts_with(b"."));
        files.extend(names.map(|entry| (String::from_utf8(entry.name.to_vec()).unwrap(), entry.ino)));
    }
    assert_eq!(files.len(), MANY);
    c.requests.clear();
    (c, b, dir, files)
}

/// After a listing, looking at one file after another, in any order that is one, does not need a request for each.
#[test]
fn attributes_are_fetched_ahead_of_a_sweep() {
    type Order = fn(&mut Vec<(String, u64)>);
    let orders: [(&str, u64, Order); 3] = [
        ("as they are listed", 20, |_| ()),
        ("by name", MANY as u64 / 32, |files| files.sort()),
        ("by number", MANY as u64 / 32, |files| files.sort_by_key(|(_, ino)| *ino)),
    ];
    for (what, most, order) in orders {
        let (mut c, b, dir, mut files) = listed();
        order(&mut files);
        let mut sent = 0;
        for (name, ino) in &files {
            assert_eq!(c.lookup(b, dir, name).unwrap().ino, *ino);
            sent += c.requests.get("mds_getattr_name").unwrap_or(&0);
        }
        assert!((16..most).contains(&sent), "{what}: {sent} lookups");
    }
    assert!(stdx::marks::count("attributes_fetched_ahead") > 0);
}

/// Looking at a few files, or at many in no order, requests those and no others.
#[test]
fn nothing_is_fetched_ahead_without_an_order() {
    // A fixed jump through the list that has no order by place, name or number.
    let jumps: Vec<usize> = (0..MANY).map(|at| at * 617 % MANY).collect();
    let few: Vec<usize> = (0..10).collect();
    for wanted in [jumps, few] {
        let (mut c, b, dir, mut files) = listed();
        files.sort();
        for at in wanted {
            c.lookup(b, dir, &files[at].0).unwrap();
            assert_eq!(c.requests.get("mds_getattr_name"), Some(&1), "{:?}", c.requests);
            assert_eq!(c.requests.get("mds_readpage"), None, "{:?}", c.requests);
        }
    }
}

/// A listing with attributes asks those who made the files for all their locks at once.
#[test]
fn a_listing_with_attributes_of_files_that_another_made_is_a_few_requests() {
    let (mut c, b, dir, _) = listed();
    let Answer::Opened { fh, .. } = c.call(b, Call::Opendir { ino: dir }).unwrap() else { panic!() };
    let (mut offset, mut with, mut all, mut sent) = (0, 0, 0, 0);
    loop {
        let call = Call::Readdir { fh, offset, max_bytes: 32 << 10, plus: true };
        let Answer::Entries(entries) = c.call(b, call).unwrap() else { panic!() };
        let Some(last) = entries.last() else { break };
        offset = last.offset;
        sent += c.requests.get("mds_readpage").unwrap_or(&0) + c.requests.get("mds_getattr_name").unwrap_or(&0);
        all += entries.len();
        with += entries.iter().filter(|entry| entry.stat.as_ref().is_some_and(|stat| stat.cacheable)).count();
    }
    assert_eq!((with, all), (MANY, MANY + 2), "all but the dots come with attributes that last");
    assert!(sent < 12, "{sent} requests");
}

/// What a target refuses while the mount ends nobody is told but by the end.
#[test]
fn an_unmount_says_that_not_everything_was_written_back() {
    for refused in [false, true] {
        let mut c = Cluster::new(1);
        let a = c.mount();
        let (_, fh) = c.create(a, 1, "f").unwrap();
        assert_eq!(c.write(a, fh, 0, &[7; 100_000]), Ok(100_000));
        c.close(a, fh).unwrap();
        c.tamper = Some(Box::new(move |to_client, _, mut frame| {
            if to_client && refused && Opcode::from_raw(frame.header.opcode) == Some(Opcode::ObjWrite) {
                frame.header.status = -Errno::EIO.raw();
            }
            vec![frame]
        }));
        let now = c.now;
        c.nodes[a].machine.handle(now, Event::Unmount);
        c.until(|c| c.nodes[a].unmounted);
        assert_eq!(c.nodes[a].lost, refused.then_some(Errno::EIO));
    }
}

/// Entries after `offset`, with attributes.
fn read_on(c: &mut Cluster, node: usize, fh: FileHandle, offset: &mut u64) -> usize {
    let call = Call::Readdir { fh, offset: *offset, max_bytes: 32 << 10, plus: true };
    let Answer::Entries(entries) = c.call(node, call).unwrap() else { panic!() };
    *offset = entries.last().map_or(*offset, |last| last.offset);
    entries.len()
}

/// While a program goes through one piece of a listing the next one is on its way; if that comes to nothing the program asks by
/// itself.
#[test]
fn the_next_piece_of_a_listing_is_fetched_while_one_is_read() {
    let (mut c, _, dir, _) = listed();
    for fails in [false, true] {
        let node = c.mount();
        c.lookup(node, 1, "d").unwrap();
        let Answer::Opened { fh, .. } = c.call(node, Call::Opendir { ino: dir }).unwrap() else { panic!() };
        let pieces = Rc::new(Cell::new(0));
        let counted = pieces.clone();
        c.tamper = Some(Box::new(move |to_client, at, mut frame| {
            let is_piece = to_client && at == node && frame.header.opcode == Opcode::MdsReaddir as u16;
            counted.set(counted.get() + u32::from(is_piece));
            if is_piece && fails && counted.get().is_multiple_of(2) {
                frame.header.status = -Errno::EIO.raw();
            }
            vec![frame]
        }));
        let mut offset = 0;
        let mut all = read_on(&mut c, node, fh, &mut offset);
        assert_eq!(pieces.get(), 1, "who only looks at the first names needs no more");
        all += read_on(&mut c, node, fh, &mut offset);
        assert_eq!(pieces.get(), 2, "{all} entries were read");
        if !fails {
            // The server is away: what was fetched is here.
            let tamper = c.tamper.replace(Box::new(|_, _, _| Vec::new()));
            for _ in 0..4 {
                all += read_on(&mut c, node, fh, &mut offset);
            }
            assert!(all > 655, "{all} entries were read");
            c.tamper = tamper;
        }
        loop {
            match read_on(&mut c, node, fh, &mut offset) {
                0 => break,
                more => all += more,
            }
        }
        assert_eq!(all, MANY + 2);
    }
    assert!(stdx::marks::count("listing_read_ahead") > 3);
}

/// A server asks anew at each connection for what it was not told, and a client that does not get through tells it once at each: what it
/// has to send does not grow with the connections that broke.
#[test]
fn a_callback_that_comes_again_is_answered_once_at_each_connection() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let (written, fh) = c.create(a, 1, "written").unwrap();
    c.write(a, fh, 0, b"12345").unwrap();
    let dir = c.mkdir(a, 1, "dir").unwrap();
    c.list(a, dir.ino, false).unwrap();
    c.pass(Duration::from_secs(10));
    let (mute, told) = (Rc::new(Cell::new(true)), Rc::new(Cell::new([0_u32; 2])));
    let (is_mute, count) = (mute.clone(), told.clone());
    c.tamper = Some(Box::new(move |to_client, at, frame| {
        let answers = [Opcode::LdlmGlReply, Opcode::LdlmCancel];
        let which = answers.iter().position(|opcode| *opcode as u16 == frame.header.opcode);
        let Some(which) = which.filter(|_| !to_client && at == a) else { return vec![frame] };
        assert!(which != 0 || !frame.header.has(flags::RESENT), "what is true now is the answer, not what was");
        let mut counts = count.get();
        counts[which] += 1;
        count.set(counts);
        if is_mute.get() { Vec::new() } else { vec![frame] }
    }));
    let size = c.send(b, Call::Getattr { ino: written.ino, fh: None });
    let made = c.send(b, Call::Mkdir { parent: dir.ino, name: name("made"), mode: 0o755 });
    c.run();
    let first = told.get();
    assert!(first[0] > 0 && first[1] > 0, "{first:?}");
    for round in 2..6 {
        c.cut(a);
        c.pass(Duration::from_secs(1));
        assert_eq!(told.get(), first.map(|count| count * round), "each comes once more, and no other");
    }
    mute.set(false);
    c.cut(a);
    c.until(|c| c.answered(b, size) && c.answered(b, made));
    assert_eq!(c.answer(b, made).map(drop), Ok(()));
    let Answer::Attr(stat) = c.answer(b, size).unwrap() else { panic!() };
    assert_eq!(stat.size, 5);
}
