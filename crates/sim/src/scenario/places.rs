//! Stories that reach code which seeds miss or reach too rarely.

use proto::Bytes;

use super::Act::{As, Barrier, Begin, Crash, Die, Do, Evict, JoinAny, Mark, Power, ReadSince, Wait, Within};
use super::stories::{CREATE, close_fd, fsync, mkdir, mknod, open, path, read, stat, write};
use super::{Act, MDT, OST, Story};
use crate::model::{Op, S_IFREG};

/// All stories of this module.
pub(super) const STORIES: &[Story] = &[
    story("name-moved", "a name is renamed while it is looked up", name_moved),
    story(
        "lost-together",
        "a change that depends on one lost with its client is lost, too, and nothing else is",
        lost_together,
    ),
    story("set-ids", "changes of data and of owners clear privileges", set_ids),
    story(
        "small-synced",
        "a synced small file is there although its client has died and its target has lost power",
        small_synced,
    ),
    story(
        "all-synced",
        "a sync of the whole mount persists although the client has died and all targets have lost power",
        all_synced,
    ),
    story("silent-holder", "a dead client delays others no longer than the lock timeout", silent_holder),
    story("silent-writer", "a dead writer delays a stat of its file no longer than that", silent_writer),
    story("given-up", "an evicted client sees later changes of others, and continues", given_up),
    story("given-up-open", "files that a client had open at its eviction are no longer open", given_up_open),
    story("read-times", "the access time of a file is up to date after its close", read_times),
    story("write-back-lost", "metadata changes that are lost with an eviction are not there", write_back_lost),
    story(
        "large-directory",
        "a directory with many names is listed completely, each name once, while names are added and removed",
        large_directory,
    ),
    story("holes", "holes are found where they are, in small and large files", holes),
    story("blocks", "a file that is truncated to zero and written again has the new data", blocks),
    story("owner-of-objects", "a file's new owner can use it through a client that had it open", owner_of_objects),
    story("handed-over", "released, downgraded or refused locks let waiting requests continue at once", handed_over),
];

const fn story(name: &'static str, what: &'static str, acts: fn() -> Vec<Act>) -> Story {
    Story { name, what, acts, strikes: &[] }
}

pub(super) fn chmod(at: &str, mode: u32) -> Op {
    Op::Chmod { path: path(at), mode }
}

pub(super) fn unlink(at: &str) -> Op {
    Op::Unlink { path: path(at) }
}

/// Client 0 looks up a large file while client 1, which gets a glimpse for its size meanwhile, renames it away and back.
fn name_moved() -> Vec<Act> {
    let mut acts = vec![mkdir(0, "d"), open(1, "d/f", CREATE, 1)];
    for round in 0..60 {
        let moved = |from: &str, to: &str| Begin(1, Op::Rename { from: path(from), to: path(to), flags: 0 });
        acts.extend([
            write(1, 1, round * 1_000, 100_000),
            Begin(0, Op::Access { path: path("d/f"), mask: 4 }),
            Wait(100 + round * 8),
            moved("d/f", "g"),
            JoinAny,
            JoinAny,
            moved("g", "d/f"),
            JoinAny,
            stat(1, "g"),
            stat(0, "d/f"),
        ]);
    }
    acts.push(close_fd(1, 1));
    acts
}

/// Without commit on sharing, client 1 makes a change that depends on an unwritten change of client 0. Client 0 dies, and the
/// server crashes: the change of client 0 is lost, that of client 1 no longer fits, and neither is there afterwards.
fn lost_together() -> Vec<Act> {
    vec![
        mknod(0, "f"),
        mknod(1, "g"),
        Do(0, Op::Syncfs),
        Do(1, Op::Syncfs),
        Act::Set(super::Node::Server(MDT), "mdt.simfs-MDT0000.commit_on_sharing", "0"),
        Wait(50_000),
        Barrier(MDT),
        Begin(0, chmod("f", 0o600)),
        Wait(10_000),
        Begin(1, chmod("f", 0o640)),
        Wait(10_000),
        Die(0),
        Crash(MDT),
        Wait(200_000_000),
    ]
}

fn set_ids() -> Vec<Act> {
    vec![
        Do(0, Op::Mknod { path: path("f"), mode: S_IFREG | 0o777, rdev: 0 }),
        Do(0, chmod("f", 0o6777)),
        stat(1, "f"),
        As(1, Op::Open { path: path("f"), flags: 0o1001, mode: 0, fd: 1 }),
        close_fd(1, 1),
        stat(0, "f"),
        stat(1, "f"),
        Do(0, chmod("f", 0o6777)),
        As(1, Op::Open { path: path("f"), flags: 1, mode: 0, fd: 2 }),
        As(1, Op::Write { fd: 2, way: crate::model::WriteWay::Plain, offset: 0, data: Bytes::from_static(b"x") }),
        close_fd(1, 2),
        stat(0, "f"),
        Do(0, chmod("f", 0o6777)),
        Do(0, Op::Chown { path: path("f"), uid: Some(1000), gid: Some(1000) }),
        stat(1, "f"),
        stat(0, "f"),
    ]
}

fn small_synced() -> Vec<Act> {
    vec![
        open(0, "f", CREATE, 1),
        Do(0, Op::Syncfs),
        write(0, 1, 0, 3_000),
        fsync(0, 1),
        Die(0),
        Power(MDT),
        Wait(50_000),
        open(1, "f", 0, 2),
        read(1, 2),
        close_fd(1, 2),
    ]
}

fn all_synced() -> Vec<Act> {
    vec![
        open(0, "f", CREATE, 1),
        open(0, "g", CREATE, 2),
        write(0, 1, 0, 200_000),
        write(0, 2, 0, 3_000),
        Do(0, Op::Syncfs),
        Die(0),
        Power(OST),
        Power(OST + 1),
        Power(MDT),
        Wait(50_000),
        open(1, "f", 0, 3),
        read(1, 3),
        close_fd(1, 3),
        open(1, "g", 0, 4),
        read(1, 4),
        close_fd(1, 4),
    ]
}

/// A lock timeout, and the time to detect it.
const HELD_MAX: u64 = 90_000_000;

fn silent_holder() -> Vec<Act> {
    vec![
        mkdir(0, "d"),
        mknod(0, "d/f"),
        stat(1, "d/f"),
        open(1, "g", CREATE, 1),
        write(1, 1, 0, 100_000),
        fsync(1, 1),
        Die(1),
        Mark,
        Do(0, chmod("d/f", 0o600)),
        Do(0, Op::Truncate { path: path("g"), size: 10 }),
        Within(HELD_MAX),
        stat(0, "d/f"),
    ]
}

fn silent_writer() -> Vec<Act> {
    vec![
        open(1, "g", CREATE, 1),
        write(1, 1, 0, 100_000),
        fsync(1, 1),
        write(1, 1, 0, 10),
        fsync(1, 1),
        Die(1),
        Mark,
        stat(0, "g"),
        Within(HELD_MAX),
    ]
}

fn given_up() -> Vec<Act> {
    vec![
        mkdir(1, "d"),
        mknod(1, "d/f"),
        mknod(1, "d/g"),
        stat(1, "d/f"),
        stat(1, "d/g"),
        Do(1, Op::List { path: path("d"), plus: true, bytes: 4096 }),
        Do(1, Op::Syncfs),
        Wait(50_000),
        Evict(MDT, 1),
        Do(0, Op::Rename { from: path("d/f"), to: path("d/h"), flags: 0 }),
        Do(0, unlink("d/g")),
        Do(0, Op::Mknod { path: path("d/g"), mode: S_IFREG | 0o600, rdev: 0 }),
        // The client learns of it with its next ping.
        Wait(60_000_000),
        stat(1, "d/f"),
        stat(1, "d/g"),
        stat(1, "d/h"),
        Do(1, Op::List { path: path("d"), plus: true, bytes: 4096 }),
        mknod(1, "d/new"),
        stat(0, "d/new"),
    ]
}

fn given_up_open() -> Vec<Act> {
    vec![
        open(1, "f", CREATE, 1),
        Do(1, Op::Syncfs),
        Wait(50_000),
        Evict(MDT, 1),
        Wait(60_000_000),
        Do(0, unlink("f")),
        Begin(1, Op::Close { fd: 1 }),
        JoinAny,
        stat(1, "f"),
        mknod(1, "f"),
        stat(0, "f"),
    ]
}

fn holes() -> Vec<Act> {
    let seek = |client, fd, offset, hole| Do(client, Op::Seek { fd, offset, hole });
    let mut acts = Vec::new();
    for (fd, at, size) in [(1, "small", 5_000), (2, "large", 300_000)] {
        acts.extend([
            open(0, at, CREATE, fd),
            write(0, fd, 0, 1_000),
            Do(0, Op::Ftruncate { fd, size }),
            fsync(0, fd),
            open(1, at, 0, fd + 10),
        ]);
        for offset in [0, 999, 1_000, size - 1] {
            acts.extend([true, false].map(|hole| seek(1, fd + 10, offset, hole)));
        }
        acts.extend([close_fd(0, fd), close_fd(1, fd + 10)]);
    }
    acts
}

fn blocks() -> Vec<Act> {
    vec![
        open(0, "f", CREATE, 1),
        write(0, 1, 0, 300_000),
        fsync(0, 1),
        Do(1, Op::Truncate { path: path("f"), size: 0 }),
        stat(0, "f"),
        write(0, 1, 100_000, 1_000),
        fsync(0, 1),
        open(1, "f", 0, 2),
        read(1, 2),
        Do(1, Op::Fstat { fd: 2 }),
        close_fd(1, 2),
        close_fd(0, 1),
    ]
}

fn owner_of_objects() -> Vec<Act> {
    vec![
        open(0, "f", CREATE, 1),
        write(0, 1, 0, 200_000),
        fsync(0, 1),
        Do(0, Op::Chown { path: path("f"), uid: Some(1000), gid: Some(1000) }),
        As(1, Op::Open { path: path("f"), flags: 2, mode: 0, fd: 2 }),
        read(1, 2),
        close_fd(1, 2),
        close_fd(0, 1),
        Wait(50_000),
    ]
}

/// No call waits for a timer.
const SOON: u64 = 1_000_000;

fn handed_over() -> Vec<Act> {
    let mut acts = vec![mkdir(0, "d"), open(0, "d/f", CREATE, 1), open(1, "d/f", 2, 2), Mark];
    for round in 0..20 {
        let at = format!("d/n{round}");
        acts.extend([
            write(0, 1, round * 1_000, 100_000),
            Begin(1, Op::Stat { path: path("d/f") }),
            Begin(1, Op::Truncate { path: path("d/f"), size: 90_000 }),
            Begin(0, Op::Access { path: path("d/f"), mask: 4 }),
            JoinAny,
            JoinAny,
            JoinAny,
            mknod(0, &at),
            stat(1, &at),
            Begin(0, unlink(&at)),
            Begin(1, chmod(&at, 0o600)),
            Begin(1, Op::Access { path: path(&at), mask: 4 }),
            JoinAny,
            JoinAny,
            JoinAny,
        ]);
    }
    acts.extend([Within(20 * SOON), close_fd(0, 1), close_fd(1, 2)]);
    acts
}

/// Nothing that client 1 makes reaches the server before the eviction.
fn write_back_lost() -> Vec<Act> {
    vec![
        mkdir(1, "d"),
        Act::Set(super::Node::Client(1), "llite.*.sync_metadata", "0"),
        Do(1, Op::Mknod { path: path("d/before"), mode: S_IFREG | 0o644, rdev: 0 }),
        Do(1, Op::Syncfs),
        Wait(50_000),
        Begin(1, Op::Mknod { path: path("d/f"), mode: S_IFREG | 0o644, rdev: 0 }),
        Wait(20),
        Evict(MDT, 1),
        Wait(60_000_000),
        Begin(1, Op::Stat { path: path("d/f") }),
        stat(0, "d/before"),
        mknod(0, "g"),
        stat(1, "g"),
        Begin(1, Op::List { path: path("d"), plus: false, bytes: 4096 }),
        mknod(1, "h"),
        stat(0, "h"),
        Do(0, Op::Rename { from: path("d"), to: path("e"), flags: 0 }),
        stat(1, "e/before"),
    ]
}

fn large_directory() -> Vec<Act> {
    let at = |number: u64| format!("d/{number:0>200}");
    let mut acts = vec![mkdir(0, "d")];
    acts.extend((0..700).map(|number| mknod(0, &at(number))));
    let list = |client, plus| Do(client, Op::List { path: path("d"), plus, bytes: 4096 });
    acts.extend([
        list(1, false),
        Do(1, unlink(&at(5))),
        list(0, true),
        mknod(1, "d/new"),
        list(1, true),
        stat(1, &at(5)),
    ]);
    acts.extend((0..50).map(|number| Do(0, unlink(&at(number * 7 + 1)))));
    acts.extend([list(1, true), list(0, false)]);
    acts
}

fn read_times() -> Vec<Act> {
    let mut acts = Vec::new();
    for (fd, at, size) in [(1, "small", 3_000), (2, "large", 200_000)] {
        acts.extend([
            open(0, at, CREATE, fd),
            write(0, fd, 0, size),
            close_fd(0, fd),
            stat(1, at),
            Wait(10_000),
            Mark,
            open(1, at, 0, fd + 10),
            read(1, fd + 10),
            Do(0, chmod(at, 0o600)),
            close_fd(1, fd + 10),
            Wait(2_000_000),
            ReadSince(1, path(at)),
            // Another client may show cached times until it has to ask.
            Do(1, chmod(at, 0o640)),
            ReadSince(1, path(at)),
            ReadSince(0, path(at)),
        ]);
    }
    acts
}
