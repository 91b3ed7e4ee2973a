//! Stories about sessions, recoveries and disks: what is replayed and how long that may take, what remains of evicted clients,
//! what a server withholds until it is durable, and disks that are slow, full, broken or replaced.

use proto::Errno;
use stdx::Site;
use stdx::faults::{ONCE, sites};

use super::Act::{
    Arm, As, Barrier, Begin, Crash, Die, Do, Evict, Expect, ExpectNot, FailSync, Fails, Fill, Free, Hit, Join, JoinAny,
    Logged, Mark, Power, Replace, Set, Slow, Wait, Within,
};
use super::places::{chmod, unlink};
use super::stories::{CREATE, close_fd, fsync, mkdir, mknod, open, path, read, stat, write};
use super::{Act, MDT, OST, Story};
use crate::model::{Op, S_IFREG, WriteWay};
use crate::program::draw::pattern;
use crate::program::name;
use crate::world::net::Node;
use crate::world::server::RESERVE;
use crate::world::trap::Strike;

/// All stories of this module.
pub(super) const STORIES: &[Story] = &[
    Story {
        name: "replays",
        what: "a fault during the replay of many changes loses none of them and repeats none",
        acts: replays,
        strikes: &[Strike::Lose, Strike::Double, Strike::Crash(MDT), Strike::LoseAndCrash(MDT)],
    },
    Story {
        name: "late-crash",
        what: "a frame is lost, and its server restarts before any node has missed it",
        acts: late_crash,
        strikes: &[Strike::LoseAndCrashLate(MDT)],
    },
    story("patient", "a client that waits in a recovery for a dead client stays connected", patient),
    story("replays-slowly", "a client that replays slowly and steadily is not evicted", replays_slowly),
    story("drips", "a client that replays too slowly delays others no longer than a recovery may last", drips),
    story(
        "builds-on-lost",
        "a client whose change depends on one that is lost with its client replays nothing after it, and gets one error",
        builds_on_lost,
    ),
    Story {
        name: "lost-and-crash",
        what: "the same, and the server is killed again while it detects the gap",
        acts: lost_and_crash,
        strikes: &[Strike::Crash(MDT)],
    },
    story(
        "undone",
        "a client that has seen a change which is lost with another client and the server sees that it is undone",
        undone,
    ),
    story("in-turn", "write-back waits for the earlier changes that programs wait for, and for no others", in_turn),
    story("given-up-replays", "an evicted client replays nothing from before the eviction", given_up_replays),
    story(
        "reconnect-overtaken",
        "a connect that was overtaken by a later one closes no connection",
        reconnect_overtaken,
    ),
    story(
        "destroys-lost",
        "destroyed objects stay destroyed, even if their target had not written that to its disk",
        destroyed,
    ),
    story("sync-fails", "synced data is there although an earlier sync of the disk failed", sync_fails),
    story("slow-commits", "changes that wait for a slow disk continue after its commit", slow_commits),
    story(
        "slow-disk-writer",
        "a client that writes back to a slow disk after a callback keeps its lock until it has finished",
        slow_writer,
    ),
    story("long-away", "a client that has been away for long is not waited for like a connected one", long_away),
    story("full", "a full disk refuses changes and accepts removals", full),
    story("replaced", "a replaced target uses its own history", replaced),
    Story {
        name: "reopened",
        what: "a file that is open when its name is removed outlives a restart with a cold cache",
        acts: reopened,
        strikes: &[Strike::Double],
    },
];

const fn story(name: &'static str, what: &'static str, acts: fn() -> Vec<Act>) -> Story {
    Story { name, what, acts, strikes: &[] }
}

/// Everything that was done is on all disks, and closes have been sent.
fn settled() -> Vec<Act> {
    vec![Do(0, Op::Syncfs), Do(1, Op::Syncfs), Wait(50_000)]
}

fn site(node: Node, site: Site, val: u32) -> Act {
    Act::Site(node, u32::from(site.0), val)
}

fn open_files(count: usize) -> Act {
    Expect(Node::Server(MDT), "mdt.*.open_files", count.to_string())
}

fn replays() -> Vec<Act> {
    let mut acts = vec![mkdir(0, "d"), mkdir(1, "e"), mknod(0, "d/f"), mknod(1, "e/f"), open(0, "d/open", CREATE, 1)];
    acts.extend(settled());
    acts.push(Barrier(MDT));
    acts.extend((0..5).flat_map(|number| [mknod(0, &format!("d/{number}")), mknod(1, &format!("e/{number}"))]));
    acts.extend([
        Do(0, chmod("d/f", 0o600)),
        Do(0, Op::Rename { from: path("d/1"), to: path("d/f"), flags: 0 }),
        Do(1, unlink("e/f")),
        Do(1, Op::Rename { from: path("e/2"), to: path("e/f"), flags: 0 }),
        Arm,
        Crash(MDT),
        mknod(0, "d/last"),
        mknod(1, "e/last"),
        stat(1, "d/last"),
        stat(0, "e/last"),
        close_fd(0, 1),
    ]);
    acts
}

/// Loses each frame of client 0 and of its server once. Acknowledged changes are durable when the server is killed, and a resent
/// request gets its first reply.
fn late_crash() -> Vec<Act> {
    let pause = || Wait(20_000);
    vec![
        mkdir(0, "d"),
        mknod(1, "f"),
        open(0, "d/f", CREATE, 1),
        pause(),
        Arm,
        Begin(0, Op::Close { fd: 1 }),
        pause(),
        mknod(0, "d/g"),
        pause(),
        Do(0, Op::Rename { from: path("d/g"), to: path("d/h"), flags: 0 }),
        pause(),
        Do(0, unlink("d/f")),
        pause(),
        open(0, "d/i", CREATE, 2),
        pause(),
        close_fd(0, 2),
        Join,
        Wait(15_000_000),
        stat(1, "d/h"),
    ]
}

/// Client 1 is dead, and client 0 has replays that wait until it is given up.
fn patient() -> Vec<Act> {
    let mut acts = vec![mknod(0, "f"), mknod(1, "g")];
    acts.extend(settled());
    acts.extend([
        Barrier(MDT),
        mknod(0, "h"),
        Do(0, chmod("f", 0o600)),
        Die(1),
        Wait(1_000_000),
        Crash(MDT),
        Wait(1_000_000),
        Begin(0, Op::Stat { path: path("h") }),
        Wait(60_000_000),
        Join,
        Expect(Node::Client(0), "mdc.*.import", "timeouts: 0".to_owned()),
        // The first connect, and those until the server runs again.
        Expect(Node::Client(0), "mdc.*.import", "connection_attempts: 3".to_owned()),
    ]);
    acts
}

/// Durable opens: this many windows of requests that a client replays at once.
fn many_open(windows: usize) -> Vec<Act> {
    let mut acts = vec![mkdir(0, "d"), mknod(1, "f")];
    let count = rpc::REPLAY_WINDOW * windows;
    acts.extend((0..count).map(|number| open(0, &format!("d/{number}"), CREATE, number as u32 + 1)));
    acts.extend(settled());
    acts
}

/// Longer in all than a client may be silent in a recovery, but never silent for that long.
fn replays_slowly() -> Vec<Act> {
    let mut acts = many_open(3);
    acts.extend([
        site(Node::Client(0), sites::PTLRPC_REPLAY_PAUSE, 14),
        Crash(MDT),
        Wait(1_000_000),
        mknod(1, "g"),
        site(Node::Client(0), Site(0), 0),
        Logged(Node::Server(MDT), "evicts client", 0),
        Do(0, Op::Fstat { fd: 100 }),
        Do(1, unlink("d/99")),
        write(0, 100, 0, 1_000),
        read(0, 100),
    ]);
    acts
}

/// The longest recovery of [`drips`].
const RECOVERY_MAX: u64 = 80_000_000;

fn drips() -> Vec<Act> {
    let mut acts = many_open(9);
    acts.extend([
        site(Node::Client(0), sites::PTLRPC_REPLAY_PAUSE, 12),
        Crash(MDT),
        Mark,
        Wait(1_000_000),
        Set(Node::Server(MDT), "mdt.simfs-MDT0000.recovery_time_hard", "50"),
        mknod(1, "g"),
        Within(RECOVERY_MAX),
        Logged(Node::Server(MDT), "evicts client 0", 1),
        site(Node::Client(0), Site(0), 0),
        Wait(60_000_000),
        open_files(0),
    ]);
    acts
}

/// Without commit on sharing, client 1 makes a change that depends on an unwritten change of client 0, and continues. Client 0
/// dies, and the server crashes.
fn on_lost() -> Vec<Act> {
    let mut acts = vec![mknod(0, "f"), mkdir(1, "d")];
    acts.extend(settled());
    acts.extend([
        Set(Node::Server(MDT), "mdt.simfs-MDT0000.commit_on_sharing", "0"),
        Barrier(MDT),
        Begin(0, chmod("f", 0o600)),
        Wait(10_000),
        Begin(1, chmod("f", 0o640)),
        Wait(10_000),
        Begin(1, Op::Mkdir { path: path("d/after"), mode: 0o755 }),
        Wait(10_000),
        Die(0),
        Crash(MDT),
    ]);
    acts
}

fn builds_on_lost() -> Vec<Act> {
    let mut acts = on_lost();
    acts.extend([
        Wait(200_000_000),
        Logged(Node::Client(1), "could not do a change again", 2),
        Logged(Node::Client(1), "2 answered changes are lost", 1),
        // Once for each object.
        Fails(1, chmod("f", 0o660), Errno::EIO),
        Do(1, chmod("f", 0o660)),
        Fails(1, Op::Mkdir { path: path("d/next"), mode: 0o755 }, Errno::EIO),
        Do(1, Op::Mkdir { path: path("d/next"), mode: 0o755 }),
        Fails(1, Op::Stat { path: path("d/after") }, Errno::ENOENT),
        Expect(Node::Server(MDT), "mdt.*.recovery_status", "evicted_clients: 2".to_owned()),
    ]);
    acts
}

/// The server is killed again while it detects the gap. The loss is reported to client 1 all the same.
fn lost_and_crash() -> Vec<Act> {
    let mut acts = on_lost();
    acts.extend([
        Wait(14_900_000),
        Arm,
        Wait(60_000_000),
        Logged(Node::Client(1), "evicted this client", 1),
        Fails(1, chmod("f", 0o660), Errno::EIO),
        Do(1, chmod("f", 0o660)),
        Fails(1, Op::Stat { path: path("d/after") }, Errno::ENOENT),
    ]);
    acts
}

/// Client 1 has seen an unwritten change of client 0, and has a lock on the object.
fn undone() -> Vec<Act> {
    let mut acts = vec![mkdir(1, "d"), mknod(0, "f"), mknod(1, "d/g"), stat(1, "f"), stat(0, "d/g")];
    acts.extend(settled());
    acts.extend([
        Barrier(MDT),
        Begin(0, chmod("f", 0o600)),
        Wait(10_000),
        Begin(1, Op::Stat { path: path("f") }),
        Begin(1, Op::Access { path: path("f"), mask: 4 }),
        Wait(10_000),
        Die(0),
        Crash(MDT),
        Wait(60_000_000),
        stat(1, "f"),
        Do(1, chmod("d/g", 0o600)),
        stat(1, "f"),
    ]);
    acts
}

/// One change at a time, each of which takes a second.
fn in_turn() -> Vec<Act> {
    let mut acts =
        vec![mkdir(1, "d"), open(1, "f", CREATE, 1), Set(Node::Client(1), "mdc.*.max_mod_rpcs_in_flight", "1")];
    acts.extend((0..20).map(|number| mknod(1, &format!("d/{number}"))));
    acts.extend(settled());
    let change = |number: u32| Begin(1, chmod(&format!("d/{number}"), 0o600));
    let (mdt, stats, once) = (Node::Server(MDT), "mdt.*.stats", "ost_write 1 samples".to_owned());
    let (early, late) = (ExpectNot(mdt, stats, once.clone()), Expect(mdt, stats, once));
    acts.push(site(Node::Server(MDT), sites::MDS_REINT_DELAY, 1));
    acts.extend((0..4).map(change));
    acts.extend([write(1, 1, 0, 3_000), Wait(2_500_000), early]);
    acts.extend((4..20).map(change));
    acts.extend([Wait(8_000_000), late, site(Node::Server(MDT), Site(0), 0)]);
    acts.extend((0..20).map(|_| Join));
    acts.push(close_fd(1, 1));
    acts
}

fn given_up_replays() -> Vec<Act> {
    let mut acts = vec![mkdir(0, "d"), open(1, "f", CREATE, 1), open(1, "d/g", CREATE, 2)];
    acts.extend(settled());
    acts.extend([
        open_files(2),
        Evict(MDT, 1),
        Wait(60_000_000),
        stat(1, "d/g"),
        open_files(0),
        Crash(MDT),
        Wait(60_000_000),
        stat(1, "f"),
        stat(0, "d/g"),
        open_files(0),
    ]);
    acts
}

/// A request of client 0 is lost, and the server delays the connect that follows: client 0 retries meanwhile.
fn reconnect_overtaken() -> Vec<Act> {
    let mut acts = vec![mknod(0, "f"), mknod(1, "g")];
    acts.extend(settled());
    let attempts = |count: u32| Expect(Node::Client(0), "mdc.*.import", format!("connection_attempts: {count}"));
    let once = |site: Site, val| Act::Site(Node::Server(MDT), ONCE | u32::from(site.0), val);
    acts.extend([
        once(sites::MDS_REINT_NET, 0),
        Begin(0, Op::Mkdir { path: path("d"), mode: 0o755 }),
        Hit(MDT),
        once(sites::TGT_DELAY_RECONNECT, 40),
        Join,
        Wait(5_000_000),
        mknod(0, "d/h"),
        attempts(3),
        Wait(60_000_000),
        mknod(0, "d/i"),
        attempts(3),
    ]);
    acts
}

fn destroyed() -> Vec<Act> {
    let mut acts = vec![open(0, "f", CREATE, 1), write(0, 1, 0, 300_000), fsync(0, 1), close_fd(0, 1)];
    acts.extend(settled());
    acts.extend([
        Barrier(OST),
        Barrier(OST + 1),
        Do(0, unlink("f")),
        Do(0, Op::Syncfs),
        Wait(5_000_000),
        Crash(OST),
        Crash(OST + 1),
        Wait(5_000_000),
    ]);
    acts
}

fn sync_fails() -> Vec<Act> {
    let mut acts = vec![
        mkdir(0, "d"),
        Do(0, Op::SetStripe { path: path("d"), size: 64 << 10, count: -1, first: -1 }),
        open(0, "d/f", CREATE, 1),
        write(0, 1, 0, 300_000),
        fsync(0, 1),
    ];
    acts.extend(settled());
    acts.extend([
        FailSync(OST),
        FailSync(OST + 1),
        write(0, 1, 70_000, 200_000),
        fsync(0, 1),
        Die(0),
        Power(OST),
        Power(OST + 1),
        Wait(50_000),
        open(1, "d/f", 0, 2),
        read(1, 2),
        close_fd(1, 2),
    ]);
    acts
}

/// The files of [`slow_commits`].
const FILES: u64 = 40;

/// More bytes than a target collects during a commit.
fn slow_commits() -> Vec<Act> {
    let set = |number: u64| {
        let (at, value) = (format!("f{}", number % FILES), pattern(number, 60_000));
        let name = name(&format!("user.{}", number / FILES));
        Do(0, Op::Setxattr { path: path(&at), name, value, flags: 0 })
    };
    let mut acts: Vec<Act> = (0..FILES).map(|number| mknod(0, &format!("f{number}"))).collect();
    acts.extend(settled());
    acts.extend([Slow(MDT, 1_000_000), Mark]);
    acts.extend((0..FILES * 10).map(set));
    acts.extend([Within(60_000_000), Slow(MDT, 0)]);
    acts
}

/// Bytes whose writing takes a slow disk longer than the lock timeout.
const MUCH: usize = 16 << 20;

fn slow_writer() -> Vec<Act> {
    let mut acts = vec![open(1, "f", CREATE, 1), write(1, 1, 0, 200_000), fsync(1, 1), open(0, "f", 2, 2), read(0, 2)];
    acts.extend(settled());
    acts.extend([
        Slow(OST, 2_000_000),
        Slow(OST + 1, 2_000_000),
        Begin(1, Op::Write { fd: 1, way: WriteWay::Plain, offset: 0, data: pattern(1, MUCH) }),
        Wait(100_000),
        Begin(0, Op::Read { fd: 2, offset: 0, length: 4_096 }),
        JoinAny,
        JoinAny,
        Slow(OST, 0),
        Slow(OST + 1, 0),
        Logged(Node::Server(OST), "evicts client", 0),
        Logged(Node::Server(OST + 1), "evicts client", 0),
        read(0, 2),
        close_fd(0, 2),
        close_fd(1, 1),
    ]);
    acts
}

/// Less than the lock timeout.
const AT_ONCE: u64 = 10_000_000;

fn long_away() -> Vec<Act> {
    let mut acts = vec![mkdir(1, "d"), mknod(1, "d/f"), open(1, "g", CREATE, 1), write(1, 1, 0, 100_000), fsync(1, 1)];
    acts.extend(settled());
    acts.extend([
        stat(1, "d/f"),
        Die(1),
        Wait(60_000_000),
        Mark,
        Do(0, chmod("d/f", 0o600)),
        Do(0, Op::Truncate { path: path("g"), size: 10 }),
        Within(AT_ONCE),
    ]);
    acts
}

fn full() -> Vec<Act> {
    let mut acts = vec![mkdir(0, "d"), mknod(0, "d/f"), mknod(0, "d/g"), mkdir(1, "e")];
    acts.extend(settled());
    let make = |at: &str| Op::Mkdir { path: path(at), mode: 0o755 };
    acts.extend([
        Fill(MDT, 0, RESERVE),
        Wait(3_000_000),
        Fails(0, make("d/h"), Errno::ENOSPC),
        Fails(1, make("e/h"), Errno::ENOSPC),
        Do(0, unlink("d/f")),
        Do(0, Op::Syncfs),
        Fails(1, make("e/h"), Errno::ENOSPC),
        Do(0, unlink("d/g")),
        Do(0, Op::Syncfs),
        Free(MDT),
        Wait(3_000_000),
        Do(0, make("d/h")),
        Do(1, make("e/h")),
    ]);
    acts
}

/// The object targets were empty when they were replaced.
fn replaced() -> Vec<Act> {
    let file = |client, fd, at: &str| {
        vec![open(client, at, CREATE, fd), write(client, fd, 0, 300_000), fsync(client, fd), close_fd(client, fd)]
    };
    let mut acts = Vec::new();
    for fd in 1..6 {
        acts.extend(file(0, fd, "f"));
        acts.extend([Do(0, unlink("f")), Wait(100_000)]);
    }
    acts.extend(settled());
    acts.extend([Wait(5_000_000), Replace(OST), Replace(OST + 1), Wait(60_000_000)]);
    acts.extend(file(1, 6, "g"));
    acts.extend([Crash(OST), Crash(OST + 1), Wait(10_000_000), Mark]);
    acts.extend(file(0, 7, "h"));
    acts.extend([open(0, "g", 0, 8), read(0, 8), close_fd(0, 8), Within(10_000_000)]);
    acts
}

/// Reopening the file takes the server longer than removing its name, because the user may no longer open it.
fn reopened() -> Vec<Act> {
    let mut acts = vec![
        mkdir(0, "d"),
        mkdir(1, "e"),
        Do(1, Op::Mknod { path: path("e/f"), mode: S_IFREG | 0o666, rdev: 0 }),
        Do(1, chmod("e/f", 0o666)),
        As(0, Op::Open { path: path("e/f"), flags: 2, mode: 0, fd: 1 }),
        write(0, 1, 0, 3_000),
        fsync(0, 1),
        Do(0, chmod("e/f", 0o600)),
    ];
    acts.extend(settled());
    acts.extend([
        stat(1, "e/f"),
        Barrier(MDT),
        Do(1, unlink("e/f")),
        mknod(0, "d/g"),
        Slow(MDT, 50_000),
        Arm,
        Crash(MDT),
        Wait(2_000_000),
        Slow(MDT, 0),
        read(0, 1),
        Do(0, Op::Fstat { fd: 1 }),
        stat(1, "d/g"),
        close_fd(0, 1),
    ]);
    acts
}
