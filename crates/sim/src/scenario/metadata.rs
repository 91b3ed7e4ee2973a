//! Stories about a metadata target: names, attributes, and space that runs short.

use proto::{Bytes, Errno};
use schema::{Object, Record};
use stdx::faults::sites;

use super::Act::{
    As, Barrier, Begin, Crash, Damage, Die, Do, Evict, Expect, ExpectNot, FailLoc, Fill, Free, Join, JoinAny, Mark,
    Mount, Refused, Repair, Set, Wait, Within,
};
use super::stories::{CREATE, close_fd, fsync, mkdir, mknod, open, path, read, stat, write};
use super::{Act, MDT, OST, Story};
use crate::model::{ACCESS, DEFAULT, List, Op};
use crate::program::{collide, name};
use crate::world::net::Node;
use crate::world::server::RESERVE;

/// All stories of this module.
pub(super) const STORIES: &[Story] = &[
    story("removal-lost", "a removal that is lost with its client and its server has removed no bytes", removal_lost),
    story("lists", "access lists permit named users, follow the mode, and are inherited", lists),
    story("capability", "an executable that gets another owner loses its capabilities", capability),
    story("many-links", "a file gets more names than its inode records, and loses them again", many_links),
    story("leased", "other clients see changes of metadata write-back at once, whatever they had cached", leased),
    story("destroy-again", "the destroy of objects is retried if an object target cannot execute it", destroy_again),
    story(
        "copy-of-dead",
        "a client dies while it copies a file to other targets: nothing of the copy remains",
        copy_of_dead,
    ),
    story(
        "move-of-dead",
        "a client dies while its file's data moves to objects: the objects are removed with the file",
        move_of_dead,
    ),
    story("cut-stretched", "a small file that is truncated and extended has none of its old bytes", cut_small),
    story(
        "promised",
        "clients get credits for changes, together no more than there is space for, and all of them when others have left",
        promised,
    ),
    story("full-disk", "names can be removed on a full disk", full_disk),
    story(
        "group-waits",
        "changes that found no space on disk become durable when there is some, and new ones are refused meanwhile",
        group_waits,
    ),
    story(
        "room-for-all",
        "changes are accepted only while there is room for all that are not on disk yet",
        room_for_all,
    ),
    story("room-for-data", "promised room for data stays available, whatever others write", room_for_data),
    story(
        "one-hash",
        "a directory has more names of one hash than a chain holds, and they are added and removed",
        one_hash,
    ),
];

const fn story(name: &'static str, what: &'static str, acts: fn() -> Vec<Act>) -> Story {
    Story { name, what, acts, strikes: &[] }
}

/// After this everything is on disk.
const SETTLE: Act = Wait(50_000);
/// Longer than any recovery waits for dead clients.
const RECOVERED: Act = Wait(400_000_000);

fn chmod(at: &str, mode: u32) -> Op {
    Op::Chmod { path: path(at), mode }
}

fn unlink(at: &str) -> Op {
    Op::Unlink { path: path(at) }
}

fn list(client: usize, at: &str, plus: bool) -> Act {
    Do(client, Op::List { path: path(at), plus, bytes: 4096 })
}

fn set(at: &str, of: &[u8], value: Bytes) -> Op {
    Op::Setxattr { path: path(at), name: Bytes::copy_from_slice(of), value, flags: 0 }
}

fn get(at: &str, of: &[u8]) -> Op {
    Op::Getxattr { path: path(at), name: Bytes::copy_from_slice(of) }
}

/// The name is removed while an earlier change is being committed; that becomes durable, and the removal does not.
fn removal_lost() -> Vec<Act> {
    vec![
        mkdir(0, "d"),
        open(0, "d/f", CREATE, 1),
        write(0, 1, 0, 300_000),
        fsync(0, 1),
        close_fd(0, 1),
        Do(0, Op::Syncfs),
        SETTLE,
        Set(Node::Server(MDT), INTERVAL, "60000"),
        mknod(1, "g"),
        Begin(1, Op::Syncfs),
        // Its group is closed, also by a target that is busy for a moment.
        Wait(200),
        Begin(0, unlink("d/f")),
        SETTLE,
        Barrier(MDT),
        Die(0),
        Crash(MDT),
        RECOVERED,
        open(1, "d/f", 0, 2),
        read(1, 2),
        close_fd(1, 2),
    ]
}

fn lists() -> Vec<Act> {
    let open_as = |fd, flags| As(1, Op::Open { path: path("f"), flags, mode: 0, fd });
    let as_named = |bits| List::naming(bits, 1000, 3000).value();
    let shown = || [Do(1, get("f", ACCESS)), stat(1, "f")];
    let mut acts = vec![
        mknod(0, "f"),
        Do(0, chmod("f", 0o600)),
        open_as(1, 0),
        // Users whom the mode excludes get access by the list, within its mask.
        Do(0, set("f", ACCESS, as_named([6, 6, 0, 0, 4, 0]))),
        open_as(2, 0),
        open_as(3, 2),
    ];
    acts.extend(shown());
    acts.extend([Do(0, chmod("f", 0o660)), open_as(4, 2)]);
    acts.extend(shown());
    acts.extend([Do(0, chmod("f", 0o604)), open_as(5, 0)]);
    acts.extend(shown());
    acts.extend([
        Do(0, Op::Removexattr { path: path("f"), name: Bytes::from_static(ACCESS) }),
        open_as(6, 0),
        Do(1, get("f", ACCESS)),
        mkdir(0, "d"),
        Do(0, set("d", DEFAULT, as_named([7, 5, 4, 0, 7, 0]))),
        mknod(1, "d/f"),
        mkdir(1, "d/d"),
        Do(1, Op::Symlink { path: path("d/l"), target: name("f") }),
        open(1, "d/g", CREATE, 7),
        close_fd(1, 7),
    ]);
    for at in ["d/f", "d/d", "d/g"] {
        acts.extend([
            stat(0, at),
            Do(0, get(at, ACCESS)),
            Do(0, get(at, DEFAULT)),
            Do(0, Op::Listxattr { path: path(at) }),
        ]);
    }
    for fd in [2, 4, 6] {
        acts.push(As(1, Op::Close { fd }));
    }
    acts
}

fn capability() -> Vec<Act> {
    const CAPABILITY: &[u8] = b"security.capability";
    let both = [Do(1, get("f", CAPABILITY)), Do(1, get("f", b"user.x"))];
    let given = [
        Do(0, set("f", CAPABILITY, Bytes::from_static(b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0"))),
        Do(0, set("f", b"user.x", Bytes::from_static(b"x"))),
    ];
    let mut acts = vec![mknod(0, "f"), Do(0, chmod("f", 0o755))];
    for change in [
        chmod("f", 0o711),
        Op::Chown { path: path("f"), uid: Some(1000), gid: None },
        Op::Truncate { path: path("f"), size: 100 },
        Op::Chown { path: path("f"), uid: None, gid: Some(2000) },
    ] {
        acts.extend(given.clone());
        acts.extend(both.clone());
        acts.push(Do(0, change));
        acts.extend(both.clone());
    }
    acts
}

/// Sixteen names of this length are more than an inode records.
fn long(number: usize) -> String {
    format!("d/{number:0>240}")
}

fn many_links() -> Vec<Act> {
    const COUNT: usize = 24;
    let mut acts = vec![mkdir(0, "d"), mknod(0, "f")];
    acts.extend((0..COUNT).map(|number| Do(number % 2, Op::Link { from: path("f"), to: path(&long(number)) })));
    acts.extend([SETTLE, Crash(MDT), stat(1, "f"), stat(1, &long(COUNT - 1)), list(1, "d", true)]);
    acts.push(Do(0, Op::Rename { from: path(&long(COUNT - 1)), to: path("last"), flags: 0 }));
    acts.extend((0..COUNT - 4).map(|number| Do(number % 2, unlink(&long(number)))));
    acts.extend([SETTLE, Crash(MDT), stat(0, "f"), stat(1, "last"), Do(1, unlink("f")), stat(0, "last")]);
    acts
}

fn one_hash() -> Vec<Act> {
    let at = |number: u64| vec![name("d"), collide::name(number)];
    let made = |number: u64| Op::Mknod { path: at(number), mode: crate::model::S_IFREG | 0o644, rdev: 0 };
    let all = 0..collide::NAMES;
    let mut acts = vec![mkdir(0, "d")];
    acts.extend(all.clone().map(|number| Do((number % 2) as usize, made(number))));
    let looks = |client: usize| {
        let mut looks: Vec<Act> = (0..collide::NAMES).map(|number| Do(client, Op::Stat { path: at(number) })).collect();
        looks.push(list(client, "d", false));
        looks
    };
    acts.extend(looks(1));
    acts.push(Do(0, Op::Rename { from: at(3), to: path("d/other"), flags: 0 }));
    acts.extend(all.clone().step_by(3).map(|number| Do(1, Op::Unlink { path: at(number) })));
    acts.extend(looks(0));
    acts.extend([SETTLE, Crash(MDT)]);
    acts.extend(looks(1));
    acts.extend(all.step_by(6).map(|number| Do(0, made(number))));
    acts.push(Do(0, Op::Rename { from: path("d/other"), to: at(1), flags: 0 }));
    acts.extend(looks(1));
    acts
}

/// Client 2 writes metadata back in a directory whose earlier state client 1 knows.
fn leased() -> Vec<Act> {
    let mut acts = vec![Mount, mkdir(2, "d"), mknod(2, "d/first"), list(1, "d", true), stat(1, "d")];
    for round in 0..4 {
        let at = |what: &str| format!("d/{what}{round}");
        // After a time without conflicts, making some names gets the lease.
        acts.push(Wait(20_000_000));
        acts.extend((0..20).map(|number| mknod(2, &at(&format!("{number}-")))));
        acts.extend([list(2, "d", false), mknod(2, &at("a")), mknod(2, &at("b"))]);
        acts.push(match round {
            0 => stat(1, &at("b")),
            1 => list(1, "d", false),
            2 => stat(1, "d"),
            _ => mknod(1, &at("c")),
        });
        acts.extend([stat(1, &at("a")), list(1, "d", true)]);
    }
    acts.push(ExpectNot(Node::Client(2), "mdc.*.metadata_write_back", "changes: 1 ".to_owned()));
    acts
}

fn destroy_again() -> Vec<Act> {
    vec![
        open(0, "f", CREATE, 1),
        write(0, 1, 0, 300_000),
        fsync(0, 1),
        close_fd(0, 1),
        Do(0, Op::Syncfs),
        SETTLE,
        Crash(OST),
        Crash(OST + 1),
        Wait(20_000_000),
        Damage(OST, Object::TABLE),
        Damage(OST + 1, Object::TABLE),
        Do(0, unlink("f")),
        Wait(10_000_000),
        Repair(OST),
        Repair(OST + 1),
        Wait(60_000_000),
    ]
}

fn copy_of_dead() -> Vec<Act> {
    let mut acts = vec![open(1, "f", CREATE, 1), write(1, 1, 0, 1_000_000), fsync(1, 1), close_fd(1, 1)];
    acts.extend([
        Do(1, Op::Syncfs),
        SETTLE,
        Begin(1, Op::Migrate { path: path("f"), count: 2, first: 0 }),
        Wait(1_500),
        Die(1),
        RECOVERED,
        open(0, "f", 0, 2),
        read(0, 2),
        close_fd(0, 2),
    ]);
    acts
}

/// The move of its data is in progress, and the target does not learn of its end.
fn move_of_dead() -> Vec<Act> {
    vec![
        mknod(0, "f"),
        open(1, "f", 2, 1),
        write(1, 1, 0, 5_000),
        fsync(1, 1),
        Do(1, Op::Syncfs),
        SETTLE,
        FailLoc(MDT, sites::MDS_REINT_MULTI_NET.0.into()),
        Begin(
            1,
            Op::Write {
                fd: 1,
                way: crate::model::WriteWay::Plain,
                offset: 5_000,
                data: Bytes::from(vec![b'x'; 300_000]),
            },
        ),
        Wait(3_000_000),
        Die(1),
        FailLoc(MDT, 0),
        RECOVERED,
        stat(0, "f"),
        Do(0, unlink("f")),
        SETTLE,
    ]
}

fn cut_small() -> Vec<Act> {
    vec![
        open(0, "f", CREATE, 1),
        write(0, 1, 0, 5_000),
        fsync(0, 1),
        open(1, "f", 2, 2),
        Do(1, Op::Truncate { path: path("f"), size: 100 }),
        Do(1, Op::Truncate { path: path("f"), size: 4_000 }),
        read(0, 1),
        Do(0, Op::Ftruncate { fd: 1, size: 50 }),
        Do(0, Op::Ftruncate { fd: 1, size: 300 }),
        Do(0, Op::Syncfs),
        read(1, 2),
        close_fd(0, 1),
        close_fd(1, 2),
    ]
}

/// After this an evicted client has reconnected.
const BACK: Act = Wait(60_000_000);

/// Half of a reserve of 8 MiB is for credits, 24 KiB each; each client gets a quarter of the rest.
fn promised() -> Vec<Act> {
    let credits =
        |client, count: &str| Expect(Node::Client(client), "mdc.*.metadata_write_back", format!("credits: {count} "));
    vec![
        Mount,
        Mount,
        mkdir(2, "d"),
        mknod(2, "d/a"),
        mknod(2, "d/b"),
        Do(2, Op::Syncfs),
        credits(2, "1024"),
        credits(3, "1024"),
        Fill(MDT, 32 << 20, RESERVE),
        Wait(2_000_000),
        // A client learns of its eviction with its next request.
        Evict(MDT, 3),
        Begin(3, Op::Statfs),
        JoinAny,
        credits(3, "0"),
        Evict(MDT, 2),
        Begin(2, Op::Statfs),
        JoinAny,
        credits(2, "42"),
        // Unused credits are returned, and granted again with the next change that the server makes.
        BACK,
        credits(2, "0"),
        mkdir(2, "e"),
        credits(2, "42"),
        mkdir(3, "f"),
        credits(3, "32"),
        Free(MDT),
    ]
}

fn full_disk() -> Vec<Act> {
    let made = |at: &str| Op::Mknod { path: path(at), mode: crate::model::S_IFREG | 0o644, rdev: 0 };
    let mut acts = vec![mkdir(0, "d"), open(0, "f", CREATE, 1), write(0, 1, 0, 3_000), fsync(0, 1), close_fd(0, 1)];
    acts.extend((0..5).map(|number| mknod(0, &format!("d/{number}"))));
    acts.extend([
        Do(0, Op::Syncfs),
        SETTLE,
        Fill(MDT, 0, RESERVE),
        Wait(2_000_000),
        Refused(0, made("new"), Errno::ENOSPC),
    ]);
    acts.extend((0..5).map(|number| Do(number % 2, unlink(&format!("d/{number}")))));
    acts.extend([
        Do(1, Op::Rmdir { path: path("d") }),
        Do(1, unlink("f")),
        Refused(1, made("new"), Errno::ENOSPC),
        Free(MDT),
        Wait(2_000_000),
        Do(1, made("new")),
        stat(0, "new"),
    ]);
    acts
}

/// Creates this many files of about 1 KiB each on disk.
fn many(client: usize, count: usize) -> impl Iterator<Item = (usize, Op)> {
    let op =
        |number| Op::Mknod { path: path(&format!("d/{number:0>200}")), mode: crate::model::S_IFREG | 0o644, rdev: 0 };
    (0..count).map(move |number| (client, op(number)))
}

/// Both clients are promised no more room for data than is left of `free` bytes, and the target commits only when a request waits
/// for it: other changes share a group.
fn promised_little(free: u64) -> Vec<Act> {
    vec![
        mkdir(0, "d"),
        Do(0, Op::Syncfs),
        Fill(MDT, free, LITTLE),
        Wait(2_000_000),
        Evict(MDT, 0),
        Evict(MDT, 1),
        BACK,
        Free(MDT),
        Wait(2_000_000),
        Set(Node::Server(MDT), INTERVAL, "60000"),
    ]
}

/// A negligible reserve.
const LITTLE: u64 = 64 << 10;
/// The interval of commits if no request waits for one.
const INTERVAL: &str = "mdt.simfs-MDT0000.commit_interval_ms";

fn group_waits() -> Vec<Act> {
    let mut acts = promised_little(400_000);
    acts.extend([mknod(1, "f"), Do(1, Op::Syncfs)]);
    acts.extend(many(0, 1_300).map(|(client, op)| Do(client, op)));
    acts.extend([
        Fill(MDT, 1_000_000, LITTLE),
        Begin(0, Op::Syncfs),
        Wait(2_000_000),
        Refused(1, chmod("f", 0o600), Errno::ENOSPC),
        Free(MDT),
        Join,
        Wait(2_000_000),
        Do(1, chmod("f", 0o600)),
        stat(0, "f"),
    ]);
    acts
}

fn room_for_all() -> Vec<Act> {
    let mut acts = promised_little(400_000);
    acts.extend([Do(0, Op::Syncfs), Fill(MDT, 1_000_000, LITTLE), Wait(2_000_000)]);
    acts.extend(many(0, 1_300).flat_map(|(client, op)| [Begin(client, op), JoinAny]));
    acts.extend([Mark, Do(0, Op::Syncfs), Within(1_000_000), Free(MDT)]);
    acts
}

/// Each client is promised room for 8 MiB of data. However many names client 0 makes, client 1 can write as much as it was
/// promised, and no other target could take the data.
fn room_for_data() -> Vec<Act> {
    const FILES: u32 = 10;
    const PROMISED: u64 = 16 << 20;
    let files = || (1..=FILES).map(|fd| (fd, format!("s{fd}")));
    let mut acts = vec![mkdir(0, "d")];
    acts.extend(files().map(|(fd, at)| open(1, &at, CREATE, fd)));
    acts.extend([Do(0, Op::Syncfs), Do(1, Op::Syncfs), Fill(MDT, PROMISED + 800_000, LITTLE)]);
    acts.extend([Fill(OST, 0, 0), Fill(OST + 1, 0, 0), Wait(2_000_000)]);
    let target = Bytes::from(vec![b't'; 4_000]);
    let links = (0..4_500).map(|number| Op::Symlink { path: path(&format!("d/{number}")), target: target.clone() });
    acts.extend(links.flat_map(|op| [Begin(0, op), JoinAny]));
    for (fd, _) in files() {
        acts.extend([write(1, fd, 0, 60_000), fsync(1, fd)]);
    }
    acts.extend([Free(MDT), Free(OST), Free(OST + 1)]);
    acts.extend(files().map(|(fd, _)| close_fd(1, fd)));
    acts
}
