//! Stories about a client's caches: names, attributes, bytes, locks, open files, and changes that wait to be sent; and what must
//! hold when other clients, a crash, an eviction or a full disk interfere.

use core::iter::once;
use core::time::Duration;

use proto::Errno;
use schema::{Inode, Record as _};
use stdx::faults::{ONCE, sites};

use super::Act::{
    AssumeDone, Barrier, Begin, Crash, Damage, Die, Do, Evict, FailLoc, Fails, Fill, Free, Hit, Join, JoinAny,
    KillPrograms, Mark, Planned, Power, Repair, Set, Shrink, Try, Wait,
};
use super::stories::{CREATE, close_fd, fsync, mkdir, mknod, open, path, read, stat, write};
use super::{Act, MDT, OST, Story};
use crate::model::{Op, S_IFREG, WriteWay};
use crate::plan::Plan;
use crate::program::draw::pattern;
use crate::world::net::Node;
use crate::world::server::RESERVE;

/// All stories of this module.
pub(super) const STORIES: &[Story] = &[
    story(
        "write-back-synced",
        "changes that a sync of their directory covers persist, although they were acknowledged before they were sent",
        write_back_synced,
    ),
    story(
        "write-back-credits",
        "no more changes are acknowledged before they are sent than the client has credits for, however full the disk is",
        write_back_credits,
    ),
    story(
        "write-back-replayed",
        "credits survive a restart, whatever is replayed before the changes that need it",
        write_back_replayed,
    ),
    story(
        "write-back-refused",
        "a change that was acknowledged before it was sent and that the server cannot make is reported as lost, and is not there",
        write_back_refused,
    ),
    story(
        "write-back-in-part",
        "of a batch, the changes that the server could make survive a crash, and no others are made with them",
        write_back_in_part,
    ),
    story("local-open", "a file that is open at the client only outlives its name", local_open),
    story("local-close", "a server that removes a name knows of all earlier closes", local_close),
    story("opened-meanwhile", "a file that is opened while its name is removed persists", opened_meanwhile),
    story(
        "given-up-attributes",
        "attributes of an open file are requested again after an eviction",
        given_up_attributes,
    ),
    story("undone-seen", "a change that was seen and that a crash undid is dropped from the caches", undone_seen),
    story(
        "written-while-synced",
        "data written over bytes whose write-back is in flight is synced, too",
        written_while_synced,
    ),
    story("lost-bytes", "bytes lost with an eviction are reported to the next sync", lost_bytes),
    story("full-at-once", "a write without space fails itself, not the sync after it", full_at_once),
    story(
        "size-in-doubt",
        "a stat of a file sees what its writer has buffered, also after another of its writes has failed",
        size_in_doubt,
    ),
    story("overwritten-ahead", "read-ahead does not overwrite data that was written meanwhile", overwritten_ahead),
    story("killed-rename", "a name that a program was renaming when it was killed is looked up again", killed_rename),
    story("cut-small", "bytes truncated from a small file do not come back when it grows again", cut_small),
    story("undone-open", "a file whose creation a crash undid is no longer open", undone_open),
    story("removed-by-this-client", "nothing is cached of objects that a client has removed", removed),
    story("thinned", "names that do not fit into memory are found all the same", thinned),
    story("rebuilt", "a reply rebuilt after a crash has less content: the client requests the rest", rebuilt),
];

const fn story(name: &'static str, what: &'static str, acts: fn() -> Vec<Act>) -> Story {
    Story { name, what, acts, strikes: &[] }
}

/// After this everything is durable, however it was made.
const SETTLE: Act = Wait(50_000);
/// An evicted client learns of it by its next ping.
const LEARNS: Act = Wait(60_000_000);
/// After this dead clients are given up.
const GIVEN_UP: Act = Wait(200_000_000);

/// Client 1 writes metadata back.
fn write_back(plan: &mut Plan) {
    plan.sync_metadata[1] = false;
}

fn op_mknod(at: &str) -> Op {
    Op::Mknod { path: path(at), mode: S_IFREG | 0o644, rdev: 0 }
}

fn op_stat(at: &str) -> Op {
    Op::Stat { path: path(at) }
}

fn op_unlink(at: &str) -> Op {
    Op::Unlink { path: path(at) }
}

fn unlink(client: usize, at: &str) -> Act {
    Do(client, op_unlink(at))
}

fn chmod(at: &str, mode: u32) -> Op {
    Op::Chmod { path: path(at), mode }
}

/// Client 1 makes enough names in a directory to make further ones by metadata write-back.
fn leased(at: &str) -> Vec<Act> {
    let names = (0..4).map(|number| mknod(1, &format!("{at}/first{number}")));
    once(mkdir(1, at)).chain(names).collect()
}

fn write_back_synced() -> Vec<Act> {
    let mut acts = vec![Planned(write_back)];
    acts.extend(leased("d"));
    acts.extend([
        Do(1, Op::Syncfs),
        SETTLE,
        mknod(1, "d/f"),
        mkdir(1, "d/e"),
        Do(1, Op::Fsyncdir { path: path("d") }),
        Die(1),
        Power(MDT),
        stat(0, "d/f"),
        stat(0, "d/e"),
    ]);
    acts
}

fn write_back_credits() -> Vec<Act> {
    // The server keeps a small reserve, and promises a part of it when clients connect.
    let mut acts = vec![Planned(write_back), Fill(MDT, 16 << 20, RESERVE), Wait(2_000_000), Crash(MDT)];
    acts.extend(leased("d"));
    acts.extend([Fill(MDT, 0, RESERVE), Wait(2_000_000), Act::Pause(Node::Server(MDT), 300_000)]);
    let count = 300;
    acts.extend((0..count).map(|number| Begin(1, op_mknod(&format!("d/n{number}")))));
    acts.extend((0..count).map(|_| JoinAny));
    acts.extend([Free(MDT), Wait(3_000_000), mknod(1, "d/last"), stat(0, "d/last")]);
    acts
}

fn write_back_replayed() -> Vec<Act> {
    let names = |kind: &'static str| (0..30).map(move |number| format!("d/{kind}{number}"));
    let make = |kind| names(kind).map(|at| mknod(1, &at));
    let mut acts = vec![Planned(write_back), Planned(|plan| plan.commit_interval = Duration::from_secs(5))];
    acts.extend([Fill(MDT, 16 << 20, RESERVE), Wait(2_000_000), Crash(MDT)]);
    acts.extend(leased("d"));
    acts.extend([Do(1, Op::Syncfs), SETTLE]);
    acts.extend(make("answered"));
    acts.extend([Wait(100_000), Act::Pause(Node::Server(MDT), 300_000)]);
    acts.extend(make("waits"));
    acts.extend([Fill(MDT, 0, RESERVE), Crash(MDT), Wait(3_000_000), Do(1, Op::Syncfs), Free(MDT)]);
    acts.extend(names("answered").chain(names("waits")).map(|at| stat(0, &at)));
    acts
}

fn write_back_refused() -> Vec<Act> {
    let mut acts = vec![Planned(write_back), Planned(|plan| plan.cache_limit = 4 << 10)];
    acts.extend(leased("d"));
    acts.extend([Do(1, Op::Syncfs), SETTLE, Crash(MDT), Wait(500_000), mkdir(0, "other")]);
    // The server evicts records that were not used for long.
    acts.extend((0..200).map(|number| mknod(0, &format!("other/{number}"))));
    acts.extend([
        SETTLE,
        Damage(MDT, Inode::TABLE),
        mknod(1, "d/f"),
        SETTLE,
        Repair(MDT),
        AssumeDone(op_unlink("d/f")),
        Fails(1, op_mknod("d/g"), Errno::EIO),
        stat(1, "d/f"),
        stat(0, "d/f"),
        mknod(1, "d/g"),
        stat(0, "d/g"),
        // Nothing else is known of the file either.
        mknod(1, "d/f"),
        Shrink(1),
        stat(1, "d/f"),
        stat(0, "d/f"),
    ]);
    acts
}

/// One batch has changes of two directories, and the server can read the record of only one of them. After a crash the changes
/// that it made are made again.
fn write_back_in_part() -> Vec<Act> {
    let mut acts = vec![Planned(write_back), Planned(|plan| plan.cache_limit = 4 << 10)];
    acts.extend([Planned(|plan| plan.commit_interval = Duration::from_secs(5))]);
    acts.extend(leased("d").into_iter().chain(leased("e")));
    acts.extend([Do(1, Op::Syncfs), SETTLE, Crash(MDT), Wait(500_000), mkdir(0, "other")]);
    // The server evicts records that were not used for long.
    acts.extend((0..200).map(|number| mknod(0, &format!("other/{number}"))));
    acts.extend([Do(0, Op::Syncfs), mknod(1, "d/f"), Do(1, Op::Syncfs), Damage(MDT, Inode::TABLE)]);
    acts.extend(["d/g", "e/f", "d/h"].map(|at| mknod(1, at)));
    acts.extend([
        Wait(500_000),
        Repair(MDT),
        AssumeDone(op_unlink("e/f")),
        Fails(1, op_mknod("e/g"), Errno::EIO),
        Crash(MDT),
        Wait(3_000_000),
    ]);
    acts.extend(["d/f", "d/g", "d/h", "e/f"].map(|at| stat(0, at)));
    acts.extend([mknod(1, "e/f"), stat(0, "e/f"), stat(1, "d/h")]);
    acts
}

/// Client 0 has looked up a file that client 1 has made, so it can open it locally.
fn known_here(size: usize) -> Vec<Act> {
    vec![
        mkdir(1, "d"),
        open(1, "d/f", CREATE, 1),
        write(1, 1, 0, size),
        fsync(1, 1),
        close_fd(1, 1),
        Do(1, Op::Syncfs),
        SETTLE,
        stat(0, "d"),
        stat(0, "d/f"),
    ]
}

fn local_open() -> Vec<Act> {
    let mut acts = Vec::new();
    for size in [3_000, 200_000] {
        acts.extend(known_here(size));
        acts.extend([
            open(0, "d/f", 0, 2),
            unlink(0, "d/f"),
            Wait(100_000),
            Do(0, Op::Fstat { fd: 2 }),
            read(0, 2),
            close_fd(0, 2),
            Wait(100_000),
            Do(0, Op::Rmdir { path: path("d") }),
        ]);
    }
    acts
}

fn local_close() -> Vec<Act> {
    let open_files = |count: &str| Act::Expect(Node::Server(MDT), "mdt.*.open_files", count.to_owned());
    vec![
        open(0, "f", CREATE, 1),
        write(0, 1, 0, 200_000),
        fsync(0, 1),
        SETTLE,
        open_files("1"),
        close_fd(0, 1),
        unlink(0, "f"),
        open_files("0"),
    ]
}

fn opened_meanwhile() -> Vec<Act> {
    let mut acts = known_here(200_000);
    acts.extend([
        Mark,
        FailLoc(MDT, u32::from(sites::MDS_REINT_NET.0) | ONCE),
        Begin(0, op_unlink("d/f")),
        Hit(MDT),
        // The request is lost and resent. Linux would let another program continue meanwhile.
        KillPrograms(0),
        Wait(1_000),
        open(0, "d/f", 0, 2),
        Wait(20_000_000),
        AssumeDone(op_unlink("d/f")),
        stat(1, "d/f"),
        read(0, 2),
        close_fd(0, 2),
        SETTLE,
    ]);
    acts
}

fn given_up_attributes() -> Vec<Act> {
    let mut acts = known_here(200_000);
    acts.extend([
        open(0, "d/f", 0, 2),
        read(0, 2),
        Do(0, Op::Fstat { fd: 2 }),
        Do(0, Op::Fstat { fd: 2 }),
        Evict(MDT, 0),
        LEARNS,
        Do(1, chmod("d/f", 0o600)),
        Do(0, Op::Fstat { fd: 2 }),
        stat(0, "d/f"),
        close_fd(0, 2),
    ]);
    acts
}

/// Client 1 sees changes of client 0. Then client 0 dies, and the server crashes.
fn undone_seen() -> Vec<Act> {
    vec![
        mkdir(0, "d"),
        mknod(0, "d/f"),
        mknod(0, "d/g"),
        Do(0, Op::Syncfs),
        SETTLE,
        stat(1, "d/f"),
        stat(1, "d"),
        Barrier(MDT),
        Begin(0, chmod("d/f", 0o600)),
        Begin(0, Op::Mkdir { path: path("d/new"), mode: 0o755 }),
        Begin(0, op_unlink("d/g")),
        Wait(10_000),
        Begin(1, op_stat("d/f")),
        Begin(1, op_stat("d/new")),
        Begin(1, op_stat("d/g")),
        Begin(1, Op::List { path: path("d"), plus: true, bytes: 4096 }),
        Wait(10_000),
        Die(0),
        Crash(MDT),
        GIVEN_UP,
        stat(1, "d/f"),
        stat(1, "d/g"),
        stat(1, "d/new"),
        stat(1, "d"),
        Do(1, Op::List { path: path("d"), plus: true, bytes: 4096 }),
    ]
}

fn written_while_synced() -> Vec<Act> {
    const FILES: u32 = 30;
    let at = |number: u32| format!("f{number}");
    let mut acts: Vec<Act> =
        (1..=FILES).flat_map(|fd| [open(0, &at(fd), CREATE, fd), write(0, fd, 0, 100_000)]).collect();
    acts.push(Do(0, Op::Syncfs));
    for fd in 1..=FILES {
        acts.extend([
            write(0, fd, 10, 90_000),
            Begin(0, Op::Fsync { fd, data_only: false }),
            Wait(u64::from(fd) * 8),
            write(0, fd, 20, 50_000),
            fsync(0, fd),
            Join,
        ]);
    }
    acts.extend([Die(0), SETTLE]);
    acts.extend((1..=FILES).flat_map(|fd| [open(1, &at(fd), 0, 100 + fd), read(1, 100 + fd), close_fd(1, 100 + fd)]));
    acts
}

fn lost_bytes() -> Vec<Act> {
    vec![
        open(0, "f", CREATE, 1),
        write(0, 1, 0, 200_000),
        fsync(0, 1),
        write(0, 1, 0, 1_000),
        Evict(OST, 0),
        Evict(OST + 1, 0),
        Fails(0, Op::Fsync { fd: 1, data_only: false }, Errno::EIO),
        Do(0, Op::Ftruncate { fd: 1, size: 0 }),
        write(0, 1, 0, 100_000),
        fsync(0, 1),
        open(1, "f", 0, 2),
        read(1, 2),
        close_fd(1, 2),
        close_fd(0, 1),
    ]
}

fn full_at_once() -> Vec<Act> {
    const PIECE: u64 = 1 << 20;
    let both = [OST, OST + 1];
    let piece = |number| Op::Write {
        fd: 1,
        way: WriteWay::Plain,
        offset: number * PIECE,
        data: pattern(number, PIECE as usize),
    };
    let mut acts = vec![open(0, "f", CREATE, 1), Do(0, piece(0)), fsync(0, 1)];
    // As much space is left as was promised to this client, and no more.
    acts.extend(both.map(|server| Fill(server, 12 << 20, RESERVE)));
    acts.push(Wait(2_000_000));
    acts.extend((1..20).map(|number| Try(0, piece(number))));
    acts.push(fsync(0, 1));
    acts.extend(both.map(Free));
    acts.extend([Wait(2_000_000), Do(0, piece(1)), fsync(0, 1), close_fd(0, 1)]);
    acts
}

/// One program of a client reads a file sequentially, another one overwrites the part that the first will read next.
fn overwritten_ahead() -> Vec<Act> {
    const DIRECT: u32 = 0o40000;
    const PIECE: u64 = 16 << 10;
    const PIECES: u64 = 60;
    let mut acts = vec![open(0, "f", CREATE | DIRECT, 1)];
    acts.extend((0..PIECES).map(|number| write(0, 1, number * PIECE, PIECE as usize)));
    acts.push(open(0, "f", 0, 2));
    for number in 0..PIECES - 4 {
        let ahead = (number + 1 + number % 3) * PIECE;
        let data = pattern(number, 4096);
        acts.extend([
            Begin(0, Op::Read { fd: 2, offset: number * PIECE, length: PIECE as u32 }),
            Wait(number % 20),
            Begin(0, Op::Write { fd: 1, way: WriteWay::Plain, offset: ahead, data }),
            Join,
            Join,
        ]);
    }
    acts.extend([close_fd(0, 1), close_fd(0, 2)]);
    acts
}

fn killed_rename() -> Vec<Act> {
    let rename = || Op::Rename { from: path("d/f"), to: path("d/g"), flags: 0 };
    let mut acts = known_here(3_000);
    acts.extend([
        Do(0, Op::List { path: path("d"), plus: true, bytes: 4096 }),
        Mark,
        FailLoc(MDT, u32::from(sites::MDS_REINT_NET_REP.0) | ONCE),
        Begin(0, rename()),
        Hit(MDT),
        KillPrograms(0),
        Wait(1_000),
        AssumeDone(rename()),
        stat(1, "d/g"),
        Shrink(0),
        stat(0, "d/f"),
        stat(0, "d/g"),
        SETTLE,
    ]);
    acts
}

fn thinned() -> Vec<Act> {
    let at = |number: u32| format!("d/n{number}");
    let mut acts = vec![Set(Node::Client(0), "llite.*.max_nodes", "1000"), mkdir(0, "d")];
    acts.extend((0..1100).map(|number| mknod(0, &at(number))));
    acts.push(Shrink(0));
    acts.extend([0, 1, 300, 700, 1099].map(|number| stat(0, &at(number))));
    acts.extend([mknod(0, &at(2)), stat(0, "d/none")]);
    acts
}

fn rebuilt() -> Vec<Act> {
    let mut acts = vec![mkdir(0, "d"), mkdir(0, "e"), mknod(0, "d/f")];
    let looks = || ["d", "e", "d/f", "e/g"].map(|at| stat(0, at));
    for change in [
        Op::Mkdir { path: path("d/sub"), mode: 0o755 },
        Op::Link { from: path("d/f"), to: path("e/g") },
        Op::Rename { from: path("d/sub"), to: path("e/sub"), flags: 0 },
        op_unlink("d/f"),
        chmod("e/g", 0o600),
        Op::Rmdir { path: path("e/sub") },
    ] {
        acts.extend(looks());
        // The change is on disk, and its reply is lost with the server that could have sent it again.
        acts.extend([
            FailLoc(MDT, u32::from(sites::MDS_REINT_NET_REP.0) | ONCE),
            Begin(0, change),
            Hit(MDT),
            SETTLE,
            Crash(MDT),
            Join,
        ]);
        acts.extend(looks());
    }
    acts
}

fn cut_small() -> Vec<Act> {
    let mut acts = Vec::new();
    for (fd, grows) in [(1, true), (2, false)] {
        acts.extend([open(0, &format!("f{fd}"), CREATE, fd), write(0, fd, 0, 30_000), fsync(0, fd)]);
        acts.extend([read(0, fd), Do(0, Op::Ftruncate { fd, size: 5_000 })]);
        acts.push(if grows { Do(0, Op::Ftruncate { fd, size: 25_000 }) } else { write(0, fd, 25_000, 100) });
        acts.extend([read(0, fd), close_fd(0, fd)]);
    }
    acts
}

/// Client 1 opens a file that client 0 has made; then client 0 dies, and the server crashes.
fn undone_open() -> Vec<Act> {
    let cos = "mdt.simfs-MDT0000.commit_on_sharing";
    vec![
        mkdir(0, "d"),
        Do(0, Op::Syncfs),
        SETTLE,
        Set(Node::Server(MDT), cos, "0"),
        Barrier(MDT),
        mknod(0, "d/f"),
        open(1, "d/f", 2, 1),
        Die(0),
        Crash(MDT),
        GIVEN_UP,
        AssumeDone(op_unlink("d/f")),
        stat(1, "d/f"),
        Fails(1, Op::Write { fd: 1, way: WriteWay::Plain, offset: 0, data: pattern(1, 10) }, Errno::EIO),
        Fails(1, Op::Fsync { fd: 1, data_only: false }, Errno::EIO),
    ]
}

fn size_in_doubt() -> Vec<Act> {
    const DIRECT: u32 = 0o40000;
    const FAR: u64 = 20 << 20;
    let both = [OST, OST + 1];
    let large = || Op::Write { fd: 2, way: WriteWay::Plain, offset: 1 << 20, data: pattern(3, 18 << 20) };
    let mut acts = vec![Planned(|plan| plan.write_back_after = Duration::from_secs(5))];
    acts.extend([open(0, "f", CREATE, 1), write(0, 1, 0, 200_000), fsync(0, 1), open(0, "f", 2 | DIRECT, 2)]);
    acts.extend(both.map(|server| Fill(server, 12 << 20, RESERVE)));
    acts.extend([
        Wait(2_000_000),
        write(0, 1, FAR, 50_000),
        // There is not enough space for all of it.
        Try(0, large()),
        stat(1, "f"),
        open(1, "f", 0, 3),
        Do(1, Op::Read { fd: 3, offset: FAR, length: 100_000 }),
        close_fd(1, 3),
    ]);
    acts.extend(both.map(Free));
    acts.extend([Wait(2_000_000), fsync(0, 1), close_fd(0, 1), close_fd(0, 2), stat(1, "f")]);
    acts
}

fn removed() -> Vec<Act> {
    let mut acts = vec![Planned(write_back), mkdir(0, "c")];
    acts.extend(leased("d"));
    for (client, dir, left) in [(0, "c", "3"), (1, "d", "7")] {
        let at = |number: u32| format!("{dir}/n{number}");
        acts.extend((0..40).map(|number| mknod(client, &at(number))));
        acts.extend((0..40).map(|number| stat(client, &at(number))));
        acts.extend((0..40).map(|number| unlink(client, &at(number))));
        // Neither the client nor its kernel keeps anything.
        acts.extend([Do(client, Op::Syncfs), Shrink(client), SETTLE]);
        acts.push(Act::Expect(Node::Client(client), "llite.*.nodes", left.to_owned()));
    }
    acts
}
