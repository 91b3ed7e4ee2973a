//! One request per operation: a client that knows a directory and nothing in it changes it without a lookup first.

mod cluster;

use client::api::{Call, Event, SetStat};
use cluster::{Cluster, name};

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
