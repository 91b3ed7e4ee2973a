//! Several metadata targets: they are added while clients work, and one that is away or evicts a client costs only what it holds.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use client::api::{Answer, Call, Event, Invalidation, NewDir, Options, Stat};
use prost::Message;
use proto::connect::features;
use proto::msg::{ConnectRep, Elsewhere, Fid2pathRep, Fid2pathReq, LookupReq, ObjectRep, WantLocks};
use proto::{Errno, Fid, Frame, Opcode};
use schema::{Entry, FsRec, Record};
use testkit::cluster::{Cluster, name};

/// The targets that answer a question for their space, by name.
fn answering(c: &mut Cluster, node: usize) -> Vec<String> {
    let Ok(Answer::Targets(targets)) = c.call(node, Call::TargetSpace) else { panic!("no targets") };
    targets.into_iter().filter(|(_, space)| space.is_ok()).map(|(name, _)| name).collect()
}

/// Starts MDT0001 beside a file system with a mount.
fn added() -> (Cluster, usize, usize) {
    let mut c = Cluster::new(1);
    let a = c.mount();
    c.mkdir(a, 1, "before").unwrap();
    let mdt1 = c.add_server("fs-MDT0001");
    c.start(mdt1);
    c.pass(Duration::from_secs(2));
    (c, a, mdt1)
}

#[test]
fn a_metadata_target_is_added_without_a_remount() {
    let (mut c, a, _) = added();
    assert_eq!(answering(&mut c, a), ["fs-MDT0000", "fs-MDT0001", "fs-OST0000"]);
    let dir = c.walk(a, "before").unwrap();
    c.create(a, dir, "f").unwrap();
    let b = c.mount();
    assert_eq!(answering(&mut c, b), ["fs-MDT0000", "fs-MDT0001", "fs-OST0000"]);
    c.lookup(b, dir, "f").unwrap();
}

#[test]
fn a_metadata_target_that_is_away_stops_nothing_that_lives_on_another() {
    let (mut c, a, mdt1) = added();
    c.kill(mdt1);
    let before = c.now;
    let (stat, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, b"data").unwrap();
    c.call(a, Call::Fsync { fh }).unwrap();
    c.call(a, Call::Syncfs).unwrap();
    let b = c.mount();
    assert_eq!(c.lookup(b, 1, "f").unwrap().ino, stat.ino);
    c.call(b, Call::Statfs { ino: 1 }).unwrap();
    assert!(c.now.since(before) < Duration::from_secs(1), "after {:?}", c.now.since(before));
}

#[test]
fn an_eviction_by_one_metadata_target_takes_nothing_of_another() {
    let (mut c, a, _) = added();
    let (_, fh) = c.create(a, 1, "f").unwrap();
    c.write(a, fh, 0, b"data").unwrap();
    let b = c.mount();
    let dir = c.walk(b, "before").unwrap();
    let other = c.mkdir(b, dir, "other").unwrap();
    c.walk(a, "before/other").unwrap();
    assert_eq!(c.list(a, dir, true).unwrap().len(), 3);
    c.getattr(a, other.ino).unwrap();
    let uuid = Cluster::options(a as u64).uuid.to_string();
    c.set_server_param("fs-MDT0001", "mdt.fs-MDT0001.evict_client", &uuid);
    c.pass(Duration::from_secs(30));
    assert!(c.log.iter().any(|line| line.contains("fs-MDT0001 evicted this client")), "{:#?}", c.log);
    c.all_requests.clear();
    c.write(a, fh, 4, b"more").unwrap();
    assert_eq!(c.list(a, dir, true).unwrap().len(), 3);
    c.getattr(a, other.ino).unwrap();
    assert!(c.all_requests.is_empty(), "{:?}", c.all_requests);
    c.mkdir(a, 1, "d").unwrap();
    assert_eq!(c.call(a, Call::Fsync { fh }).map(drop), Ok(()));
    assert_eq!(c.lookup(a, 1, "f").unwrap().size, 8);
}

fn fldb(c: &Cluster, server: &str) -> String {
    let found = c.server_params(server, "fld.*.fldb");
    found.into_iter().next().expect("the parameter").1
}

#[test]
fn the_mgs_hears_of_ranges_that_an_older_copy_of_its_store_lacks() {
    let (mut c, a, _) = added();
    let whole = fldb(&c, "fs-MDT0000");
    assert_eq!(whole.lines().count(), 2, "{whole}");
    c.change_record("MGS", &"fs".to_owned(), |record: &mut FsRec| {
        record.sequences.retain(|range| range.mdt == 0);
        record.config_version += 100;
    });
    c.pass(Duration::from_secs(30));
    for server in ["fs-MDT0000", "fs-MDT0001"] {
        assert_eq!(fldb(&c, server), whole, "{server}");
    }
    c.mkdir(a, 1, "after").unwrap();
}

fn header(c: &Cluster, server: &str) -> schema::Header {
    let records = c.records(server);
    let key = schema::Header::key(&());
    let (_, body) = records.iter().find(|(found, _)| *found == key).expect("a header");
    schema::Header::decode_record(body).unwrap()
}

/// Where entries with this name lie in their directories on a target.
fn cookies(c: &Cluster, server: &str, text: &str) -> Vec<u64> {
    let records = c.records(server);
    let entries = records.iter().filter_map(|(key, body)| Some((Entry::parse_key(key)?, body)));
    let named = entries.filter(|(_, body)| Entry::decode_record(body).unwrap().name == text.as_bytes());
    named.map(|(id, _)| id.cookie).collect()
}

/// Listings of stripes are merged by cookie.
#[test]
fn a_name_has_the_same_cookie_on_all_metadata_targets() {
    let (mut c, a, _) = added();
    for (dir, mdt) in [("d0", 0), ("d1", 1)] {
        c.call(a, mkdir_on(1, dir, mdt)).unwrap();
        let dir = c.walk(a, dir).unwrap();
        c.mkdir(a, dir, "same").unwrap();
    }
    c.pass(Duration::from_secs(30));
    let near = cookies(&c, "fs-MDT0000", "same");
    assert_eq!(near.len(), 1);
    assert_eq!(cookies(&c, "fs-MDT0001", "same"), near);
}

#[test]
fn a_metadata_target_takes_over_the_keys_of_mdt0000_before_it_serves() {
    for has_key in [true, false] {
        let mut c = Cluster::new(0);
        let (mgs, mdt0, mdt1) = (c.server("MGS"), c.server("fs-MDT0000"), c.add_server("fs-MDT0001"));
        c.format_anew();
        c.start(mgs);
        c.start(mdt1);
        c.pass(Duration::from_secs(20));
        assert!(!c.is_serving(mdt1));
        let waits: Vec<_> =
            c.log.iter().filter(|line| line.contains("'fs-MDT0001' has to wait until MDT0000")).collect();
        assert_eq!(waits.len(), 1, "it says so once: {waits:#?}");
        match has_key {
            true => c.start(mdt0),
            false => c.change_record("fs-MDT0000", &(), |header: &mut schema::Header| {
                header.name_key = Default::default();
                header.incompat &= !target::format_features::KEYED_NAMES;
            }),
        }
        c.pass(Duration::from_secs(2));
        assert!(c.is_serving(mdt1));
        c.pass(Duration::from_secs(2));
        let (first, other) = (header(&c, "fs-MDT0000"), header(&c, "fs-MDT0001"));
        assert_eq!((first.name_key.is_empty(), first.second_key.len()), (!has_key, 16));
        let keys = |header: &schema::Header| (header.name_key.clone(), header.second_key.clone(), header.incompat);
        assert!(keys(&other) == keys(&first) && !other.takes_keys);
        c.restart("fs-MDT0001");
        c.pass(Duration::from_secs(2));
        assert!(c.is_serving(mdt1) && keys(&header(&c, "fs-MDT0001")) == keys(&first), "they are its own now");
    }
}

/// A target that has restarted waits for the clients that it knows: who unmounts meanwhile says so.
#[test]
fn an_unmount_takes_its_leave_of_metadata_targets_that_were_away() {
    let (mut c, a, mdt1) = added();
    c.pass(Duration::from_secs(30));
    let mdt0 = c.server("fs-MDT0000");
    c.kill(mdt0);
    c.kill(mdt1);
    let now = c.now;
    c.nodes[a].machine.handle(now, Event::Unmount);
    c.pass(Duration::from_secs(5));
    assert!(!c.nodes[a].unmounted);
    c.start(mdt0);
    c.start(mdt1);
    c.until(|c| c.nodes[a].unmounted);
    let before = c.now;
    c.mount();
    assert!(c.now.since(before) < Duration::from_secs(2), "after {:?}", c.now.since(before));
}

/// Runs frames between this client and servers through `change`.
fn change_frames(c: &mut Cluster, client: usize, mut change: impl FnMut(bool, &mut Frame) + 'static) {
    c.tamper = Some(Box::new(move |to_client, at, mut frame| {
        if at == client {
            change(to_client, &mut frame);
        }
        vec![frame]
    }));
}

/// Of a lookup the client learns where a directory lies, and no more: as if that were another target than its name's.
fn tell_place_only(to_client: bool, frame: &mut Frame) {
    if frame.header.opcode != Opcode::MdsLookup as u16 || frame.header.status != 0 {
        return;
    }
    if to_client {
        let mut rep: ObjectRep = frame.decode().unwrap();
        if let Some(attr) = rep.attr.take() {
            rep.elsewhere = Some(Elsewhere { fid: attr.fid, mdt: 0, kind: attr.mode & 0o170_000 });
        }
        frame.body = rep.encode_to_vec().into();
    } else {
        let mut request: LookupReq = frame.decode().unwrap();
        let parent_cookie = request.want.map_or(0, |want| want.parent_cookie);
        request.want = Some(WantLocks { parent_cookie, ..WantLocks::default() });
        frame.body = request.encode_to_vec().into();
    }
}

/// How often the last call asked so.
fn asked(c: &Cluster, opcode: Opcode) -> u64 {
    c.requests.get(opcode.name()).copied().unwrap_or(0)
}

#[test]
fn a_name_whose_object_lies_elsewhere_is_cached_with_the_lock_from_there() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let dir = c.mkdir(b, 1, "dir").unwrap().ino;
    let sub = c.mkdir(b, dir, "sub").unwrap().ino;
    change_frames(&mut c, a, tell_place_only);
    let found = c.lookup(a, 1, "dir").unwrap();
    assert!(found.ino == dir && found.entry_cacheable && found.cacheable && found.mode == 0o040_755, "{found:?}");
    assert_eq!((asked(&c, Opcode::MdsLookup), asked(&c, Opcode::MdsGetattr), c.sent()), (1, 1, 2));
    assert!(stdx::marks::count("found_elsewhere") > 0);
    assert!(c.lookup(a, dir, "sub").unwrap().entry_cacheable);
    // The lock of the directory above goes: that of the object is enough.
    c.mkdir(b, dir, "another").unwrap();
    c.getattr(a, dir).unwrap();
    assert_eq!(c.lookup(a, dir, "sub").unwrap().ino, sub);
    assert_eq!(c.sent(), 0, "{:?}", c.requests);
    let above = c.lookup(a, sub, "..").unwrap();
    assert_eq!((above.ino, above.nlink), (dir, 4));
    // A change at the object calls the lock back, and the name with it.
    c.nodes[a].invalidations.clear();
    c.call(b, Call::Rmdir { parent: dir, name: name("sub") }).unwrap();
    let gone = |told: &Invalidation| matches!(told, Invalidation::Entry { parent, name, .. } if *parent == dir && &name[..] == b"sub");
    assert!(c.nodes[a].invalidations.iter().any(gone), "{:?}", c.nodes[a].invalidations);
    assert_eq!(c.lookup(a, dir, "sub"), Err(Errno::ENOENT));
    assert_eq!(c.lookup(a, dir, "none"), Err(Errno::ENOENT));
}

/// The program of `a` has learned where a directory lies, and the question for its attributes does not arrive until
/// `meanwhile` has happened.
fn removed_on_the_way(meanwhile: impl FnOnce(&mut Cluster, usize, u64)) -> (Cluster, u64, Result<Stat, Errno>) {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let dir = c.mkdir(b, 1, "dir").unwrap().ino;
    let sub = c.mkdir(b, dir, "sub").unwrap().ino;
    c.lookup(a, 1, "dir").unwrap();
    c.getattr(a, dir).unwrap();
    let lose = Rc::new(Cell::new(true));
    let lost = lose.clone();
    c.tamper = Some(Box::new(move |to_client, at, mut frame| {
        if at == a {
            tell_place_only(to_client, &mut frame);
            if lost.get() && !to_client && frame.header.opcode == Opcode::MdsGetattr as u16 {
                return Vec::new();
            }
        }
        vec![frame]
    }));
    let id = c.send(a, Call::Lookup { parent: dir, name: name("sub") });
    assert!(!c.answered(a, id));
    meanwhile(&mut c, b, dir);
    lose.set(false);
    c.cut(a);
    let found = c.answer(a, id).map(|answer| match answer {
        Answer::Entry(stat) => stat,
        other => panic!("{other:?}"),
    });
    (c, sub, found)
}

#[test]
fn a_directory_that_goes_between_the_two_questions_of_a_lookup_is_looked_up_again() {
    let rmdir = |c: &mut Cluster, b: usize, dir: u64| {
        c.call(b, Call::Rmdir { parent: dir, name: name("sub") }).unwrap();
    };
    let (.., found) = removed_on_the_way(rmdir);
    assert_eq!(found, Err(Errno::ENOENT));
    let (mut c, sub, found) = removed_on_the_way(|c, b, dir| {
        rmdir(c, b, dir);
        c.mkdir(b, dir, "sub").unwrap();
    });
    let (new, parent) = (found.unwrap().ino, c.walk(0, "dir").unwrap());
    assert!(new != sub && c.lookup(0, parent, "sub").unwrap().ino == new);
    assert!(stdx::marks::count("looked_up_again") > 0);
    // It exists, but under another name.
    let rename = |c: &mut Cluster, b: usize, dir: u64| {
        let (name, new_name) = (name("sub"), name("other"));
        c.call(b, Call::Rename { parent: dir, name, new_parent: dir, new_name, flags: 0 }).unwrap();
    };
    assert_eq!(removed_on_the_way(rename).2, Err(Errno::ENOENT));
    let (.., found) = removed_on_the_way(|c, b, dir| {
        rename(c, b, dir);
        c.mkdir(b, dir, "sub").unwrap();
    });
    assert_ne!(found.unwrap().ino, sub);
}

#[test]
fn a_name_that_leads_to_nothing_is_no_missing_name() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    c.mkdir(a, 1, "dir").unwrap();
    let now = c.now;
    let _ = c.nodes[a].machine.set_param(now, "ldlm.namespaces.*.lru_size", "clear");
    c.pass(Duration::from_secs(1));
    change_frames(&mut c, a, |to_client, frame| {
        tell_place_only(to_client, frame);
        if to_client && frame.header.opcode == Opcode::MdsLookup as u16 {
            let mut rep: ObjectRep = frame.decode().unwrap();
            rep.elsewhere = Some(Elsewhere { fid: Fid::new(Fid::SEQ_FIRST, 99), mdt: 0, kind: 0o040_000 });
            frame.body = rep.encode_to_vec().into();
        }
    });
    assert_eq!(c.call(a, Call::Lookup { parent: 1, name: name("dir") }), Err(Errno::ESTALE));
}

/// Each server knows the last name of a path only, and says from which directory it starts.
#[test]
fn a_path_is_put_together_from_what_several_targets_know() {
    let mut c = Cluster::new(1);
    let (a, b) = (c.mount(), c.mount());
    let mut inos = vec![1];
    for part in ["a", "b", "c"] {
        inos.push(c.mkdir(b, inos[inos.len() - 1], part).unwrap().ino);
    }
    let (f, _) = c.create(b, inos[3], "f").unwrap();
    c.call(b, Call::Link { ino: f.ino, new_parent: inos[2], new_name: name("g") }).unwrap();
    inos.push(f.ino);
    let above: BTreeMap<Fid, Fid> =
        inos.windows(2).map(|pair| (Fid::from_ino(pair[1]).unwrap(), Fid::from_ino(pair[0]).unwrap())).collect();
    let of = Rc::new(RefCell::new(BTreeMap::new()));
    change_frames(&mut c, a, move |to_client, frame| {
        if frame.header.opcode != Opcode::MdsFid2path as u16 {
            return;
        }
        if !to_client {
            of.borrow_mut().insert(frame.header.xid, frame.decode::<Fid2pathReq>().unwrap().fid);
            return;
        }
        let mut rep: Fid2pathRep = frame.decode().unwrap();
        let from = above.get(&of.borrow()[&frame.header.xid]).copied();
        for path in rep.paths.iter_mut().filter(|path| !path.is_empty()) {
            let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
            // The second name is one directory further up.
            let further = usize::from(parts.last() == Some(&&b"g"[..]));
            rep.from.extend(from.map(|from| (0..further).fold(from, |from, _| above[&from])));
            *path = bytes::Bytes::copy_from_slice(parts[parts.len() - 1]);
        }
        frame.body = rep.encode_to_vec().into();
    });
    let paths = c.call(a, Call::FidToPath { fid: Fid::from_ino(f.ino).unwrap() });
    assert_eq!(paths, Ok(Answer::Paths(vec![name("a/b/c/f"), name("a/b/g")])));
    assert_eq!(asked(&c, Opcode::MdsFid2path), 5, "the file, three directories and the root");
}

#[test]
fn for_an_unknown_sequence_the_configuration_is_fetched_once_more() {
    let (mut c, a, _) = added();
    let fid = Fid::new(Fid::SEQ_FIRST + (1 << 30), 1);
    for times in [1, 0] {
        assert_eq!(c.call(a, Call::FidToPath { fid }), Err(Errno::ENOENT));
        assert_eq!(asked(&c, Opcode::MgsConfigGet), times);
    }
    assert!(stdx::marks::count("unknown_sequence") > 0);
    assert_eq!(c.call(a, Call::MdtIndex { ino: 1 }), Ok(Answer::Index(0)));
    assert_eq!(c.sent(), 0);
    // Without an MGS nobody waits for it.
    let mgs = c.server("MGS");
    c.kill(mgs);
    c.pass(Duration::from_secs(1));
    let other = Fid::new(Fid::SEQ_FIRST + (1 << 31), 1);
    assert_eq!(c.call(a, Call::FidToPath { fid: other }), Err(Errno::ENOENT));
}

fn mkdir_on(parent: u64, text: &str, mdt: u32) -> Call {
    Call::MkdirOn { parent, name: name(text), mode: 0o750, wish: NewDir { mdts: vec![mdt], hash: 0 } }
}

/// A client that answers changes before it sends them.
fn mount_with_write_back(c: &mut Cluster) -> usize {
    let options = Options { sync_metadata: false, ..Cluster::options(c.nodes.len() as u64) };
    let node = c.begin_mount(options);
    c.until(|c| c.nodes[node].mounted);
    node
}

#[test]
fn a_directory_on_the_target_of_its_parent_is_an_ordinary_one() {
    let mut c = Cluster::new(1);
    let (a, b) = (mount_with_write_back(&mut c), c.mount());
    c.nodes[a].invalidations.clear();
    for text in ["one", "two", "three", "four", "five", "six"] {
        let Ok(Answer::Fid(fid)) = c.call(a, mkdir_on(1, text, 0)) else { panic!("no FID") };
        let told = &c.nodes[a].invalidations;
        let of_name = |told: &Invalidation| matches!(told, Invalidation::Entry { parent: 1, name, .. } if &name[..] == text.as_bytes());
        assert!(told.iter().any(of_name), "{told:?}");
        let stat = c.lookup(a, 1, text).unwrap();
        assert_eq!((stat.ino, stat.mode), (fid.ino(), 0o040_750));
        assert_eq!(c.call(a, mkdir_on(1, text, 0)), Err(Errno::EEXIST));
    }
    let stat = c.lookup(b, 1, "six").unwrap();
    assert_eq!(c.call(a, Call::MdtIndex { ino: stat.ino }), Ok(Answer::Index(0)));
    assert_eq!(c.call(a, mkdir_on(1, "seven", 7)), Err(Errno::ENODEV));
    assert_eq!(c.call_as(a, 1000, mkdir_on(stat.ino, "below", 0)), Err(Errno::EACCES));
    let options = Options { read_only: true, ..Cluster::options(9) };
    let reader = c.begin_mount(options);
    c.until(|c| c.nodes[reader].mounted);
    assert_eq!(c.call(reader, mkdir_on(1, "seven", 0)), Err(Errno::EROFS));
}

/// An older server would not notice that the directory should be elsewhere.
#[test]
fn beside_an_older_server_directories_stay_on_the_target_of_their_parent() {
    let (mut c, ..) = added();
    c.tamper = Some(Box::new(|to_client, _, mut frame| {
        if to_client && frame.header.opcode == Opcode::Connect as u16 && frame.header.status == 0 {
            let mut rep: ConnectRep = frame.decode().unwrap();
            rep.features &= !features::DIR_STRIPE;
            frame.body = rep.encode_to_vec().into();
        }
        vec![frame]
    }));
    let a = c.mount();
    c.pass(Duration::from_secs(1));
    assert_eq!(c.call(a, mkdir_on(1, "dir", 1)), Err(Errno::EOPNOTSUPP));
    assert_eq!(asked(&c, Opcode::MdsReint), 0);
    c.call(a, mkdir_on(1, "dir", 0)).unwrap();
}

/// A server that needs another one refuses a change as long as that is away: nothing else is delayed, and the program can
/// be killed.
#[test]
fn a_change_that_waits_for_another_target_holds_up_nobody() {
    let mut c = Cluster::new(1);
    let a = c.mount();
    let refused = Rc::new(RefCell::new(Vec::new()));
    let away = Rc::new(Cell::new(true));
    let is_away = away.clone();
    change_frames(&mut c, a, move |to_client, frame| {
        if frame.header.opcode != Opcode::MdsReint as u16 || !is_away.get() {
            return;
        }
        let names_it = frame.body.windows(4).any(|bytes| bytes == b"away");
        match to_client {
            // The server does nothing.
            false if names_it => {
                refused.borrow_mut().push(frame.header.xid);
                frame.body = bytes::Bytes::from_static(b"\xff");
            }
            true if refused.borrow().contains(&frame.header.xid) => {
                frame.header.status = -Errno::EINPROGRESS.raw();
                frame.body = bytes::Bytes::new();
            }
            _ => {}
        }
    });
    let mkdir = |text: &str| Call::Mkdir { parent: 1, name: name(text), mode: 0o755 };
    let waiting: Vec<_> = (0..20).map(|number| c.send(a, mkdir(&format!("away{number}")))).collect();
    c.pass(Duration::from_secs(5));
    let before = c.now;
    for number in 0..50 {
        c.mkdir(a, 1, &format!("near{number}")).unwrap();
        c.lookup(a, 1, &format!("near{number}")).unwrap();
    }
    assert!(c.now.since(before) < Duration::from_secs(1), "after {:?}", c.now.since(before));
    assert!(waiting.iter().all(|id| !c.answered(a, *id)));
    // Some are killed: they have no effect. The others go on.
    let (killed, others) = waiting.split_at(10);
    for id in killed {
        let now = c.now;
        c.nodes[a].machine.handle(now, Event::Abandon { id: *id });
        assert_eq!(c.answer(a, *id), Err(Errno::EINTR));
    }
    away.set(false);
    for id in others {
        c.answer(a, *id).unwrap();
    }
    c.pass(Duration::from_secs(5));
    let names = c.list(a, 1, false).unwrap();
    assert_eq!(names.iter().filter(|name| name.starts_with("away")).count(), others.len(), "{names:?}");
    assert_eq!(c.nodes[a].machine.in_progress(), Vec::<String>::new());
}

/// A file system with two metadata targets and a client of each kind: one that answers changes before it sends them, and
/// one that does not.
fn two_targets() -> (Cluster, usize, usize) {
    let (mut c, b, _) = added();
    let a = mount_with_write_back(&mut c);
    c.pass(Duration::from_secs(2));
    (c, a, b)
}

/// Makes a directory on MDT0001 with a name on MDT0000.
fn make_remote(c: &mut Cluster, node: usize, parent: u64, text: &str) -> u64 {
    match c.call(node, mkdir_on(parent, text, 1)).unwrap() {
        Answer::Fid(fid) => fid.ino(),
        other => panic!("{other:?}"),
    }
}

fn rmdir(parent: u64, text: &str) -> Call {
    Call::Rmdir { parent, name: name(text) }
}

#[test]
fn a_directory_on_another_target_is_found_listed_used_and_removed() {
    let (mut c, a, b) = two_targets();
    let ino = make_remote(&mut c, a, 1, "far");
    for node in [a, b] {
        let stat = c.lookup(node, 1, "far").unwrap();
        assert_eq!((stat.ino, stat.mode, stat.nlink, stat.entry_cacheable), (ino, 0o040_750, 2, true));
        assert_eq!(c.call(node, Call::MdtIndex { ino }), Ok(Answer::Index(1)));
        assert_eq!(c.getattr(node, 1).unwrap().nlink, 4, "before, far, and the root's own two");
        assert_eq!(c.lookup(node, 1, "far").unwrap().ino, ino);
        assert_eq!(c.sent(), 0, "its name is cached");
        assert_eq!(c.lookup(node, ino, "..").unwrap().ino, 1);
        for plus in [false, true] {
            let mut names = c.list(node, 1, plus).unwrap();
            names.sort();
            assert_eq!(names, [".", "..", "before", "far"]);
        }
    }
    // What is made in it lies beside it.
    let below = c.mkdir(a, ino, "below").unwrap().ino;
    assert_eq!(c.call(a, Call::MdtIndex { ino: below }), Ok(Answer::Index(1)));
    let (file, fh) = c.create(a, below, "file").unwrap();
    c.write(a, fh, 0, b"data").unwrap();
    c.close(a, fh).unwrap();
    let found = c.walk(b, "far/below/file").unwrap();
    let path = c.call(b, Call::FidToPath { fid: Fid::from_ino(file.ino).unwrap() });
    assert_eq!(path, Ok(Answer::Paths(vec![name("far/below/file")])));
    assert_eq!((found, c.getattr(b, found).unwrap().size), (file.ino, 4));
    for node in [a, b] {
        assert_eq!(c.call(node, rmdir(1, "far")), Err(Errno::ENOTEMPTY));
        assert_eq!(c.unlink(node, 1, "far"), Err(Errno::EISDIR));
        assert_eq!(c.call(node, mkdir_on(1, "far", 1)), Err(Errno::EEXIST));
        assert_eq!(c.call(node, mkdir_on(1, "far", 0)), Err(Errno::EEXIST));
    }
    c.unlink(b, below, "file").unwrap();
    c.call(a, rmdir(ino, "below")).unwrap();
    c.call(b, rmdir(1, "far")).unwrap();
    for node in [a, b] {
        assert_eq!(c.lookup(node, 1, "far"), Err(Errno::ENOENT));
        assert_eq!(c.getattr(node, 1).unwrap().nlink, 3);
    }
    assert_eq!(c.getattr(a, ino), Err(Errno::ESTALE));
    // The name is free.
    assert!(make_remote(&mut c, b, 1, "far") != ino);
    c.call(a, rmdir(1, "far")).unwrap();
    c.mkdir(a, 1, "far").unwrap();
}

fn rename(from: u64, old: &str, to: u64, new: &str) -> Call {
    Call::Rename { parent: from, name: name(old), new_parent: to, new_name: name(new), flags: 0 }
}

fn links(c: &mut Cluster, node: usize, ino: u64) -> u32 {
    c.getattr(node, ino).map_or(0, |stat| stat.nlink)
}

#[test]
fn files_get_other_names_on_another_target() {
    let (mut c, a, b) = two_targets();
    let far = make_remote(&mut c, a, 1, "far");
    for (one, other) in [(a, b), (b, a)] {
        let (file, fh) = c.create(one, 1, "file").unwrap();
        c.write(one, fh, 0, b"data").unwrap();
        c.close(one, fh).unwrap();
        assert_eq!(c.walk(other, "file"), Ok(file.ino));
        c.call(one, rename(1, "file", far, "moved")).unwrap();
        for node in [other, one] {
            assert_eq!(c.lookup(node, 1, "file"), Err(Errno::ENOENT));
            let found = c.lookup(node, far, "moved").unwrap();
            assert_eq!((found.ino, found.size, found.nlink), (file.ino, 4, 1));
            assert_eq!(c.list(node, far, true).unwrap(), [".", "..", "moved"]);
        }
        c.call(other, Call::Link { ino: file.ino, new_parent: 1, new_name: name("link") }).unwrap();
        assert_eq!((c.walk(one, "link"), c.getattr(one, file.ino).unwrap().nlink), (Ok(file.ino), 2));
        // Over another one, which is gone.
        let (victim, fh) = c.create(other, far, "victim").unwrap();
        c.close(other, fh).unwrap();
        assert_eq!(c.walk(one, "far/victim"), Ok(victim.ino));
        c.call(one, rename(1, "link", far, "victim")).unwrap();
        assert_eq!((c.walk(other, "far/victim"), links(&mut c, other, victim.ino)), (Ok(file.ino), 0));
        c.unlink(other, far, "moved").unwrap();
        assert_eq!(c.getattr(one, file.ino).unwrap().nlink, 1);
        c.unlink(one, far, "victim").unwrap();
        assert_eq!(
            (c.lookup(other, far, "victim"), c.lookup(one, far, "moved")),
            (Err(Errno::ENOENT), Err(Errno::ENOENT))
        );
    }
}

/// A rename of which the kernel looks the path up again once, if it has to.
#[track_caller]
fn moved(c: &mut Cluster, node: usize, dir: u64, from: &str, new_dir: u64, to: &str) {
    let mut call = || c.call(node, rename(dir, from, new_dir, to)).map(drop);
    let done = call().or_else(|errno| if errno == Errno::ESTALE { call() } else { Err(errno) });
    assert_eq!(done, Ok(()));
}

#[test]
fn a_directory_on_another_target_gets_other_parents() {
    let (mut c, a, b) = two_targets();
    let far = make_remote(&mut c, a, 1, "far");
    let near = c.mkdir(a, 1, "near").unwrap().ino;
    let empty = c.mkdir(a, 1, "empty").unwrap().ino;
    for (one, other) in [(a, b), (b, a)] {
        assert_eq!(c.walk(other, "far"), Ok(far));
        c.call(one, rename(1, "far", near, "in")).unwrap();
        for node in [other, one] {
            assert_eq!((c.walk(node, "near/in"), c.lookup(node, 1, "far")), (Ok(far), Err(Errno::ENOENT)));
            assert_eq!((links(&mut c, node, near), links(&mut c, node, 1)), (3, 5), "before, near, empty");
            assert_eq!(c.list(node, near, true).unwrap(), [".", "..", "in"]);
        }
        c.mkdir(one, far, "below").unwrap();
        assert_eq!(c.call(other, rename(1, "near", far, "near")), Err(Errno::EINVAL));
        moved(&mut c, other, near, "in", 1, "far");
        moved(&mut c, other, 1, "near", far, "below");
        for node in [one, other] {
            assert_eq!((c.walk(node, "far/below"), c.lookup(node, 1, "near")), (Ok(near), Err(Errno::ENOENT)));
        }
        moved(&mut c, one, far, "below", 1, "near");
        assert_eq!((c.walk(other, "near"), links(&mut c, other, far)), (Ok(near), 2));
    }
    c.call(b, rename(1, "far", 1, "further")).unwrap();
    c.call(a, rename(1, "further", 1, "empty")).unwrap();
    for node in [a, b] {
        assert_eq!((c.walk(node, "empty"), c.lookup(node, 1, "far")), (Ok(far), Err(Errno::ENOENT)));
        assert_eq!((links(&mut c, node, empty), links(&mut c, node, 1)), (0, 5), "before, near, and the moved one");
    }
}

/// The kernel holds up all other renames between directories meanwhile, so a rename does not wait for ever.
#[test]
fn a_rename_that_waits_for_a_target_that_is_away_fails_with_nothing_done() {
    let (mut c, a, b) = two_targets();
    let far = make_remote(&mut c, a, 1, "far");
    c.mkdir(a, far, "below").unwrap();
    for node in [a, b] {
        let (file, fh) = c.create(node, 1, "file").unwrap();
        c.close(node, fh).unwrap();
        c.pass(Duration::from_secs(10));
        let mdt1 = c.server("fs-MDT0001");
        c.kill(mdt1);
        let id = c.send(node, rename(1, "file", far, "file"));
        c.pass(Duration::from_secs(28));
        assert!(!c.answered(node, id));
        c.pass(Duration::from_secs(4));
        assert_eq!(c.answer(node, id), Err(Errno::EBUSY));
        assert!(stdx::marks::count("rename_given_up") > 0);
        assert_eq!(c.walk(node, "file"), Ok(file.ino));
        c.start(mdt1);
        c.pass(Duration::from_secs(100));
        c.call(node, rename(1, "file", far, "file")).unwrap();
        c.unlink(node, far, "file").unwrap();
    }
}

/// The rename is durable when it is answered: if its client dies then, the new name must lead to the bytes.
#[test]
fn a_file_that_is_renamed_to_another_target_has_its_data_there_first() {
    let (mut c, a, b) = two_targets();
    let far = make_remote(&mut c, a, 1, "far");
    let (file, fh) = c.create(a, 1, "file").unwrap();
    let data = bytes::Bytes::from(vec![7; 300_000]);
    let write = Call::Write { fh, ino: file.ino, offset: 0, data, write_back: true, kill_priv: false };
    c.call(a, write).unwrap();
    // Its close is enough for most programs.
    c.close(a, fh).unwrap();
    c.call(a, rename(1, "file", far, "file")).unwrap();
    c.die(a);
    c.pass(Duration::from_secs(200));
    let found = c.walk(b, "far/file").unwrap();
    let fh = c.open(b, found, 0).unwrap();
    assert_eq!((found, c.read(b, fh, 0, 400_000).unwrap().len()), (file.ino, 300_000));
}

/// A change over several targets is durable when it is answered, and so is all that the client did before it.
#[test]
fn changes_on_their_way_arrive_before_one_over_several_targets() {
    let (mut c, a, b) = two_targets();
    let far = make_remote(&mut c, a, 1, "far");
    let near = c.mkdir(a, 1, "near").unwrap().ino;
    // The directories are leased by now.
    let unsent = |c: &mut Cluster| {
        for dir in [near, far] {
            for number in 0..8 {
                let at = c.nodes[a].machine.write_back_progress().0;
                c.mkdir(a, dir, &format!("d{at}-{number}")).unwrap();
            }
        }
        let (made, answered) = c.nodes[a].machine.write_back_progress();
        assert!(made > answered, "{made} changes, all of them sent");
    };
    unsent(&mut c);
    make_remote(&mut c, a, near, "remote");
    let (made, answered) = c.nodes[a].machine.write_back_progress();
    assert_eq!(made, answered);
    // A leased directory with a remote one in it.
    unsent(&mut c);
    let remote = c.lookup(a, near, "remote").unwrap().ino;
    assert!(c.list(a, near, true).unwrap().contains(&"remote".to_owned()));
    c.mkdir(a, remote, "below").unwrap();
    assert_eq!(c.call(a, rmdir(near, "remote")), Err(Errno::ENOTEMPTY));
    c.call(a, rmdir(remote, "below")).unwrap();
    unsent(&mut c);
    c.call(a, rmdir(near, "remote")).unwrap();
    let (made, answered) = c.nodes[a].machine.write_back_progress();
    assert_eq!(made, answered);
    assert_eq!(c.lookup(a, near, "remote"), Err(Errno::ENOENT));
    unsent(&mut c);
    assert_eq!(c.list(b, near, true).unwrap().len(), c.list(a, near, true).unwrap().len());
    assert_eq!(c.list(b, far, true).unwrap().len(), c.list(a, far, true).unwrap().len());
}

#[test]
fn a_target_that_is_away_costs_only_what_needs_it() {
    let (mut c, a, b) = two_targets();
    let far = make_remote(&mut c, b, 1, "far");
    make_remote(&mut c, b, 1, "other");
    c.lookup(a, 1, "far").unwrap();
    let mdt1 = c.server("fs-MDT0001");
    c.kill(mdt1);
    let waits: Vec<_> = [rmdir(1, "far"), rmdir(1, "other"), mkdir_on(1, "new", 1), mkdir_on(1, "newer", 1)]
        .into_iter()
        .map(|call| c.send(b, call))
        .collect();
    c.pass(Duration::from_secs(5));
    let before = c.now;
    for number in 0..30 {
        c.mkdir(b, 1, &format!("near{number}")).unwrap();
    }
    c.lookup(a, 1, "near7").unwrap();
    assert!(c.now.since(before) < Duration::from_secs(1), "after {:?}", c.now.since(before));
    assert!(waits.iter().all(|id| !c.answered(b, *id)));
    for id in [waits[1], waits[3]] {
        let now = c.now;
        c.nodes[b].machine.handle(now, Event::Abandon { id });
        assert_eq!(c.answer(b, id), Err(Errno::EINTR));
    }
    c.start(mdt1);
    c.answer(b, waits[0]).unwrap();
    c.answer(b, waits[2]).unwrap();
    c.pass(Duration::from_secs(30));
    assert_eq!(c.lookup(a, 1, "far"), Err(Errno::ENOENT));
    assert_eq!(c.getattr(a, far), Err(Errno::ESTALE));
    c.lookup(a, 1, "new").unwrap();
    assert_eq!(c.nodes[b].machine.in_progress(), Vec::<String>::new());
}

#[test]
fn restarts_of_both_targets_lose_no_answered_directory() {
    let (mut c, a, b) = two_targets();
    for number in 0..6 {
        make_remote(&mut c, a, 1, &format!("d{number}"));
        let killed: &[&str] = [&["fs-MDT0000"][..], &["fs-MDT0001"], &["fs-MDT0000", "fs-MDT0001"]][number % 3];
        let killed: Vec<usize> = killed.iter().map(|server| c.server(server)).collect();
        killed.iter().for_each(|at| c.kill_and_lose(*at));
        killed.iter().for_each(|at| c.start(*at));
        let found = c.lookup(b, 1, &format!("d{number}")).unwrap();
        assert_eq!(c.call(b, Call::MdtIndex { ino: found.ino }), Ok(Answer::Index(1)));
        c.mkdir(a, found.ino, "below").unwrap();
        c.walk(b, &format!("d{number}/below")).unwrap();
    }
    assert!(stdx::marks::count("cross.replayed") > 0);
}

/// A request that the coordinator had when it died, and that nothing durable tells of: it goes on once the target serves, which
/// is at once.
#[test]
fn recovery_does_not_wait_for_a_change_that_has_parts_elsewhere() {
    let (mut c, a, b) = two_targets();
    make_remote(&mut c, a, 1, "warm");
    let mdt0 = c.server("fs-MDT0000");
    c.lose_frames(false, [Opcode::MdsReint]);
    let asked = c.send(a, mkdir_on(1, "far", 1));
    c.pass(Duration::from_millis(20));
    c.kill_and_lose(mdt0);
    c.tamper = None;
    c.start(mdt0);
    let soon = c.now + Duration::from_millis(500);
    c.answer(a, asked).unwrap();
    assert!(c.now < soon, "recovery has waited for it");
    assert!(stdx::marks::count("target.unanswered_first") > 0);
    c.lookup(b, 1, "far").unwrap();
}

/// The coordinator dies before it has answered, and what it staged is done when it is back: the client's request, sent again,
/// is answered and not made twice.
#[test]
fn a_request_whose_change_is_in_doubt_gets_the_outcome() {
    let (mut c, a, _) = two_targets();
    make_remote(&mut c, a, 1, "warm");
    let (mdt0, mdt1) = (c.server("fs-MDT0000"), c.server("fs-MDT0001"));
    c.slow_server = Some(mdt1);
    let asked = c.send(a, mkdir_on(1, "far", 1));
    c.pass(Duration::from_millis(50));
    assert!(!c.answered(a, asked));
    c.kill_and_lose(mdt0);
    c.slow_server = None;
    c.pass(Duration::from_secs(1));
    c.start(mdt0);
    c.answer(a, asked).unwrap();
    assert!(stdx::marks::count("cross.resent_in_doubt") > 0 && stdx::marks::count("cross.reply_recorded") > 0);
    c.lookup(a, 1, "far").unwrap();
}
