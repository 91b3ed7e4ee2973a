//! The general stories.

use client::api::SetTime;
use proto::Bytes;

use super::Act::{Arm, Barrier, Begin, Crash, Die, Do, Join, Power, Unmount, Wait, Waiting};
use super::{Act, MDT, MGT, OST, Story};
use crate::model::{Op, Path, S_IFREG, WriteWay};
use crate::program::draw::pattern;
use crate::program::name;
use crate::world::net::Node;
use crate::world::trap::Strike;

/// Every fault that one request to the metadata target can meet.
const ALL: &[Strike] = &[Strike::Crash(MDT), Strike::Lose, Strike::Double, Strike::LoseAndCrash(MDT)];
/// The same faults, and crashes of an object target.
const DATA: &[Strike] = &[
    Strike::Crash(MDT),
    Strike::Crash(OST),
    Strike::Power(OST),
    Strike::Lose,
    Strike::Double,
    Strike::LoseAndCrash(MDT),
    Strike::LoseAndCrash(OST),
];

/// All stories of this module.
pub(super) const STORIES: &[Story] = &[
    Story { name: "create", what: "a file is created, and another client sees it", acts: create, strikes: ALL },
    Story { name: "names", what: "mkdir, symlink, link and rmdir", acts: names, strikes: ALL },
    Story { name: "rename", what: "a file is renamed over another in another directory", acts: rename, strikes: ALL },
    Story { name: "exchange", what: "a file and a directory exchange their names", acts: exchange, strikes: ALL },
    Story { name: "whiteout", what: "renames leave whiteouts, and files replace these", acts: whiteout, strikes: ALL },
    Story {
        name: "unlink",
        what: "a file with objects is unlinked: nothing of it remains",
        acts: unlink,
        strikes: DATA,
    },
    Story { name: "setattr", what: "mode, owner and times are changed", acts: setattr, strikes: ALL },
    Story { name: "xattr", what: "an extended attribute is set, replaced and removed", acts: xattr, strikes: ALL },
    Story {
        name: "close",
        what: "a file is written and closed, and read by another client",
        acts: close,
        strikes: DATA,
    },
    Story {
        name: "grow",
        what: "a file outgrows the metadata target, is truncated, synced and read by another client",
        acts: grow,
        strikes: DATA,
    },
    Story {
        name: "orphan",
        what: "a client dies with an unlinked file open: nothing of the file remains",
        acts: orphan,
        strikes: DATA,
    },
    Story {
        name: "unlink-elsewhere",
        what: "a file is unlinked while another client has it open and continues to read and write",
        acts: unlink_elsewhere,
        strikes: DATA,
    },
    Story {
        name: "unmount",
        what: "a client unmounts with data that no sync covers, while targets restart",
        acts: unmount,
        strikes: DATA,
    },
    Story {
        name: "mgs",
        what: "the management target restarts while clients work",
        acts: create,
        strikes: &[Strike::Crash(MGT), Strike::LoseAndCrash(MGT)],
    },
    Story {
        name: "lock-replay",
        what: "servers restart, and a fault strikes while clients replay their locks: every holder keeps its lock",
        acts: lock_replay,
        strikes: DATA,
    },
    Story {
        name: "rename-recalled",
        what: "an object loses its lock during its rename: the kernel drops the new name, too",
        acts: rename_recalled,
        strikes: &[],
    },
    Story {
        name: "link-shared",
        what: "a file gets another link while another client's change of it is not durable: the reply waits for that",
        acts: link_shared,
        strikes: &[],
    },
    Story { name: "rename-shared", what: "the same with a rename over it", acts: rename_shared, strikes: &[] },
    Story {
        name: "rmdir-shared",
        what: "a directory is removed after another client's removals in it, which are not durable: the reply waits for those",
        acts: rmdir_shared,
        strikes: &[],
    },
    Story {
        name: "open-shared",
        what: "a file is opened by the new name of another client's rename, which is not durable: the reply waits for that",
        acts: open_shared,
        strikes: &[],
    },
    Story {
        name: "synced-stripes",
        what: "a striped file is synced, then its client dies and all targets lose power: the whole file is there",
        acts: synced_stripes,
        strikes: &[],
    },
    Story {
        name: "paused",
        what: "targets and clients are paused for half a minute during lock callbacks: no client is evicted",
        acts: paused,
        strikes: &[],
    },
    Story {
        name: "mapped-synced",
        what: "others sync the file system while a program writes through a mapping: `msync` returns when everything is written",
        acts: mapped_synced,
        strikes: &[],
    },
];

pub(super) fn path(text: &str) -> Path {
    text.split('/').map(name).collect()
}

pub(super) fn mkdir(client: usize, at: &str) -> Act {
    Do(client, Op::Mkdir { path: path(at), mode: 0o755 })
}

pub(super) fn mknod(client: usize, at: &str) -> Act {
    Do(client, Op::Mknod { path: path(at), mode: S_IFREG | 0o644, rdev: 0 })
}

pub(super) fn open(client: usize, at: &str, flags: u32, fd: u32) -> Act {
    Do(client, Op::Open { path: path(at), flags, mode: 0o644, fd })
}

pub(super) fn write(client: usize, fd: u32, offset: u64, length: usize) -> Act {
    let data = pattern(u64::from(fd) * 1000 + offset, length);
    Do(client, Op::Write { fd, way: WriteWay::Plain, offset, data })
}

pub(super) fn read(client: usize, fd: u32) -> Act {
    Do(client, Op::Read { fd, offset: 0, length: 1 << 20 })
}

pub(super) fn stat(client: usize, at: &str) -> Act {
    Do(client, Op::Stat { path: path(at) })
}

fn list(client: usize, at: Path) -> Act {
    Do(client, Op::List { path: at, plus: true, bytes: 4096 })
}

pub(super) fn fsync(client: usize, fd: u32) -> Act {
    Do(client, Op::Fsync { fd, data_only: false })
}

pub(super) fn close_fd(client: usize, fd: u32) -> Act {
    Do(client, Op::Close { fd })
}

pub(super) const CREATE: u32 = 0o302;

fn create() -> Vec<Act> {
    vec![
        list(1, Path::new()),
        Arm,
        open(0, "f", CREATE, 1),
        stat(1, "f"),
        Do(1, Op::Mknod { path: path("f"), mode: S_IFREG | 0o644, rdev: 0 }),
        close_fd(0, 1),
        list(1, Path::new()),
    ]
}

fn names() -> Vec<Act> {
    vec![
        mknod(1, "f"),
        list(1, Path::new()),
        Arm,
        mkdir(0, "d"),
        Do(0, Op::Symlink { path: path("d/l"), target: name("target") }),
        Do(0, Op::Link { from: path("f"), to: path("d/g") }),
        list(1, path("d")),
        Do(1, Op::Rmdir { path: path("d") }),
        Do(1, Op::Unlink { path: path("d/g") }),
        Do(0, Op::Unlink { path: path("d/l") }),
        Do(1, Op::Rmdir { path: path("d") }),
        stat(0, "f"),
    ]
}

fn rename() -> Vec<Act> {
    vec![
        mkdir(0, "a"),
        mkdir(0, "b"),
        mknod(0, "a/f"),
        mknod(1, "b/f"),
        stat(1, "a/f"),
        Arm,
        Do(0, Op::Rename { from: path("a/f"), to: path("b/f"), flags: 0 }),
        stat(1, "a/f"),
        stat(1, "b/f"),
        Do(1, Op::Rename { from: path("b"), to: path("a/b"), flags: 0 }),
        stat(0, "a/b/f"),
    ]
}

fn exchange() -> Vec<Act> {
    vec![
        mkdir(0, "a"),
        mkdir(0, "a/d"),
        mknod(1, "f"),
        stat(0, "f"),
        Arm,
        Do(0, Op::Rename { from: path("a/d"), to: path("f"), flags: 2 }),
        stat(1, "f"),
        stat(1, "a/d"),
        Do(1, Op::Rename { from: path("f"), to: path("a/d"), flags: 1 }),
    ]
}

fn whiteout() -> Vec<Act> {
    let rename = |from: &str, to: &str, flags| Op::Rename { from: path(from), to: path(to), flags };
    vec![
        mkdir(0, "a"),
        mkdir(0, "a/d"),
        mknod(1, "f"),
        stat(0, "f"),
        Arm,
        Do(0, rename("f", "a/f", 4)),
        stat(1, "f"),
        stat(1, "a/f"),
        Do(1, rename("a/d", "d", 4)),
        Do(0, rename("a/f", "f", 4)),
        stat(1, "a/f"),
        stat(0, "a/d"),
        Do(1, rename("f", "d2", 5)),
        Do(1, Op::Unlink { path: path("f") }),
    ]
}

fn unlink() -> Vec<Act> {
    vec![
        open(0, "f", CREATE, 1),
        write(0, 1, 0, 100_000),
        fsync(0, 1),
        close_fd(0, 1),
        stat(1, "f"),
        Arm,
        Do(0, Op::Unlink { path: path("f") }),
        stat(1, "f"),
        Wait(20_000),
    ]
}

fn setattr() -> Vec<Act> {
    vec![
        mknod(0, "f"),
        stat(1, "f"),
        Arm,
        Do(0, Op::Chmod { path: path("f"), mode: 0o600 }),
        Do(1, Op::Chown { path: path("f"), uid: Some(1000), gid: Some(1000) }),
        Do(0, Op::Utimens { path: path("f"), atime: Some(SetTime::At(5)), mtime: Some(SetTime::At(7)) }),
        stat(1, "f"),
        Do(1, Op::Utimens { path: path("f"), atime: None, mtime: Some(SetTime::Now) }),
        stat(0, "f"),
    ]
}

fn xattr() -> Vec<Act> {
    let set = |client, length: usize, flags| {
        let value = Bytes::from(vec![b'v'; length]);
        Do(client, Op::Setxattr { path: path("f"), name: name("user.x"), value, flags })
    };
    let get = |client| Do(client, Op::Getxattr { path: path("f"), name: name("user.x") });
    vec![
        mknod(0, "f"),
        Arm,
        set(0, 10, 1),
        get(1),
        set(1, 3000, 2),
        get(0),
        Do(0, Op::Removexattr { path: path("f"), name: name("user.x") }),
        get(1),
    ]
}

fn close() -> Vec<Act> {
    vec![
        open(0, "f", CREATE, 1),
        Arm,
        write(0, 1, 0, 5_000),
        close_fd(0, 1),
        open(1, "f", 0, 2),
        read(1, 2),
        Do(1, Op::Fstat { fd: 2 }),
        close_fd(1, 2),
        stat(0, "f"),
    ]
}

fn grow() -> Vec<Act> {
    vec![
        open(0, "f", CREATE, 1),
        write(0, 1, 0, 5_000),
        fsync(0, 1),
        Arm,
        write(0, 1, 5_000, 150_000),
        Do(0, Op::Ftruncate { fd: 1, size: 90_000 }),
        fsync(0, 1),
        open(1, "f", 2, 2),
        read(1, 2),
        write(1, 2, 3, 500),
        read(0, 1),
        Do(1, Op::Ftruncate { fd: 2, size: 10 }),
        stat(0, "f"),
        close_fd(0, 1),
        close_fd(1, 2),
    ]
}

fn orphan() -> Vec<Act> {
    vec![
        open(0, "f", CREATE, 1),
        write(0, 1, 0, 100_000),
        Do(0, Op::Syncfs),
        Arm,
        Do(0, Op::Unlink { path: path("f") }),
        Do(0, Op::Syncfs),
        Die(0),
        stat(1, "f"),
        Wait(50_000),
    ]
}

fn unlink_elsewhere() -> Vec<Act> {
    vec![
        open(1, "f", CREATE, 1),
        write(1, 1, 0, 70_000),
        fsync(1, 1),
        Arm,
        Do(0, Op::Unlink { path: path("f") }),
        read(1, 1),
        write(1, 1, 70_000, 3_000),
        Do(1, Op::Fstat { fd: 1 }),
        read(1, 1),
        close_fd(1, 1),
        mknod(0, "f"),
        stat(1, "f"),
        Wait(20_000),
    ]
}

fn unmount() -> Vec<Act> {
    vec![
        open(1, "f", CREATE, 1),
        write(1, 1, 0, 100_000),
        mknod(1, "g"),
        open(1, "h", CREATE, 2),
        write(1, 2, 0, 100),
        close_fd(1, 1),
        close_fd(1, 2),
        Arm,
        Unmount(1),
        stat(0, "f"),
        stat(0, "g"),
    ]
}

fn lock_replay() -> Vec<Act> {
    let mut acts = vec![mkdir(0, "d"), open(0, "d/open", CREATE, 1), write(0, 1, 0, 100_000)];
    for at in ["d/a", "d/b", "d/c"] {
        acts.extend([mknod(0, at), stat(0, at), stat(1, at)]);
    }
    // Both clients hold locks on the same names; one of them also holds data locks.
    acts.extend([
        list(0, path("d")),
        Arm,
        Crash(MDT),
        Crash(OST),
        Wait(1500),
        // Each change must reach the other client's cache through the replayed lock.
        Do(1, Op::Chmod { path: path("d/a"), mode: 0o600 }),
        stat(0, "d/a"),
        Do(0, Op::Rename { from: path("d/b"), to: path("d/e"), flags: 0 }),
        stat(1, "d/b"),
        stat(1, "d/e"),
        stat(1, "d/open"),
        write(0, 1, 50_000, 60_000),
        stat(1, "d/open"),
        close_fd(0, 1),
        list(1, path("d")),
    ]);
    acts
}

/// Client 0 makes a change that does not reach the disk, and `op` of client 1, which has seen the change, depends on it.
fn shared(change: Op, seen: &str, op: Op) -> Vec<Act> {
    vec![
        mknod(0, "f"),
        mknod(1, "g"),
        mkdir(1, "d"),
        mknod(1, "d/f"),
        Do(0, Op::Syncfs),
        Do(1, Op::Syncfs),
        Wait(50_000),
        Barrier(MDT),
        Do(0, change),
        stat(1, seen),
        Begin(1, op),
        Wait(100_000),
        Waiting(1),
        Crash(MDT),
        Join,
    ]
}

fn chmod() -> Op {
    Op::Chmod { path: path("f"), mode: 0o600 }
}

fn link_shared() -> Vec<Act> {
    let mut acts = shared(chmod(), "f", Op::Link { from: path("f"), to: path("h") });
    acts.extend([stat(0, "f"), stat(0, "h")]);
    acts
}

fn rename_shared() -> Vec<Act> {
    let mut acts = shared(chmod(), "f", Op::Rename { from: path("g"), to: path("f"), flags: 0 });
    acts.extend([stat(0, "f"), stat(0, "g")]);
    acts
}

fn rmdir_shared() -> Vec<Act> {
    let mut acts = shared(Op::Unlink { path: path("d/f") }, "d", Op::Rmdir { path: path("d") });
    acts.extend([stat(0, "d"), stat(1, "d/f")]);
    acts
}

fn open_shared() -> Vec<Act> {
    let rename = Op::Rename { from: path("f"), to: path("h"), flags: 0 };
    let mut acts = shared(rename, "h", Op::Open { path: path("h"), flags: 0, mode: 0, fd: 1 });
    acts.extend([stat(0, "h"), stat(1, "f")]);
    acts
}

fn synced_stripes() -> Vec<Act> {
    vec![
        mkdir(0, "d"),
        Do(0, Op::SetStripe { path: path("d"), size: 64 << 10, count: -1, first: -1 }),
        open(0, "d/f", CREATE, 1),
        write(0, 1, 0, 300_000),
        fsync(0, 1),
        Die(0),
        Power(OST),
        Power(OST + 1),
        Power(MDT),
        Wait(50_000),
        open(1, "d/f", 0, 2),
        read(1, 2),
        close_fd(1, 2),
    ]
}

fn rename_recalled() -> Vec<Act> {
    let mut acts = Vec::new();
    // The other client's change comes a little later each time, so that in some rounds it falls between the request and its
    // reply.
    for (round, wait) in (0..40).map(|round| (round, round * 10)) {
        let [from, to, last, other] = ["f", "g", "h", "k"].map(|name| format!("{name}{round}"));
        acts.extend([
            mknod(0, &from),
            Do(0, Op::Link { from: path(&from), to: path(&other) }),
            stat(0, &from),
            stat(1, &from),
            Begin(0, Op::Rename { from: path(&from), to: path(&to), flags: 0 }),
            Wait(wait),
            Do(1, Op::Chmod { path: path(&other), mode: 0o600 }),
            Join,
            Do(1, Op::Rename { from: path(&to), to: path(&last), flags: 0 }),
            stat(0, &to),
        ]);
    }
    acts
}

/// The targets would evict clients that, as far as they can see, kept their locks for too long.
fn paused() -> Vec<Act> {
    const PAUSE: u64 = 30_000_000;
    let evicts_nobody = || [MDT, OST].map(|server| Act::Expect(Node::Server(server), "*.*.eviction_count", "0".into()));
    let mut acts = vec![
        Act::Set(Node::Server(MDT), "ldlm_timeout", "5"),
        Act::Set(Node::Server(OST), "ldlm_timeout", "5"),
        mkdir(0, "d"),
        open(0, "d/f", CREATE, 1),
        write(0, 1, 0, 200_000),
    ];
    // A callback to client 0, or its reply, is in flight when the pause starts: of one target, or of the machine that the targets
    // and client 0 share, on which the client continues last.
    let machine = vec![Node::Server(MDT), Node::Server(OST), Node::Server(OST + 1), Node::Client(0)];
    for (round, wait) in (0..5).map(|round| (round, round * 59)) {
        for (number, nodes) in [vec![Node::Server(MDT)], vec![Node::Server(OST)], machine.clone()].iter().enumerate() {
            let at = format!("d/{round}{number}");
            acts.extend([
                Do(0, Op::Mkdir { path: path(&at), mode: 0o755 }),
                write(0, 1, round * 1000, 5_000),
                Begin(1, Op::Chmod { path: path(&at), mode: 0o700 }),
                Begin(1, Op::Truncate { path: path("d/f"), size: 190_000 }),
                Wait(wait),
            ]);
            let pauses = nodes.iter().map(|node| match node {
                Node::Server(_) => Act::Pause(*node, PAUSE),
                Node::Client(_) | Node::Liar | Node::Raw => Act::Pause(*node, PAUSE + 2_000_000),
            });
            acts.extend(pauses);
            acts.extend([Wait(PAUSE + 4_000_000), Join, Join]);
            acts.extend(evicts_nobody());
        }
    }
    // A paused client keeps no lock that others want.
    acts.extend([
        Do(0, Op::Fsync { fd: 1, data_only: false }),
        Act::Pause(Node::Client(1), PAUSE),
        Wait(PAUSE + 2_000_000),
        stat(1, "d/f"),
        stat(0, "d/f"),
        close_fd(0, 1),
    ]);
    acts.extend(evicts_nobody());
    acts
}

fn mapped_synced() -> Vec<Act> {
    let mut acts = vec![open(0, "f", CREATE, 1), write(0, 1, 0, 1 << 20), fsync(0, 1)];
    for round in 0..10 {
        let data = pattern(round, 1 << 20);
        acts.extend([Begin(0, Op::Write { fd: 1, way: WriteWay::Mapped, offset: 0, data }), Wait(round * 10)]);
        acts.extend((0..8).map(|_| Begin(0, Op::Syncfs)));
        acts.extend([Join, Do(0, Op::Fstat { fd: 1 })]);
        acts.extend((0..8).map(|_| Join));
    }
    acts.push(close_fd(0, 1));
    acts
}
