//! Stories about directories on another metadata target than their name.

use client::api::NewDir;

use super::Act::{Arm, Begin, Crash, Do, Join, JoinAny, JoinDead, Mark, Planned, Power, Slow, Wait, Within};
use super::stories::{mkdir, mknod, path, stat};
use super::{Act, MDT, Story};
use crate::model::{Op, Path};
use crate::world::trap::Strike;

/// The second metadata target, which comes after the object targets.
const FAR: usize = 4;

/// Every fault that a change of two metadata targets can meet: coordinator, participant, both, and the messages.
pub(super) const ALL: &[Strike] = &[
    Strike::Crash(MDT),
    Strike::Crash(FAR),
    Strike::CrashBoth(MDT, FAR),
    Strike::Power(MDT),
    Strike::Lose,
    Strike::Double,
    Strike::LoseAndCrash(MDT),
    Strike::LoseAndCrash(FAR),
];
/// The same, and the death of the client that asks for the change.
pub(super) const DEADLY: &[Strike] = &[Strike::Die(0), Strike::Crash(MDT), Strike::Crash(FAR)];

/// All stories of this module.
pub(super) const STORIES: &[Story] = &[
    Story {
        name: "remote-mkdir",
        what: "a directory is made on another metadata target, and files in it by two clients",
        acts: remote_mkdir,
        strikes: ALL,
    },
    Story {
        name: "remote-rmdir",
        what: "a directory on another metadata target is removed by another client once it is empty, and made again",
        acts: remote_rmdir,
        strikes: ALL,
    },
    Story {
        name: "remote-back",
        what: "a directory lies on the first metadata target, below one on the second",
        acts: remote_back,
        strikes: ALL,
    },
    Story {
        name: "remote-race",
        what: "two clients make, and then remove, one directory on another metadata target: each succeeds once",
        acts: remote_race,
        strikes: ALL,
    },
    Story {
        name: "remote-of-dead",
        what: "a client dies while it makes and removes directories on another metadata target: wholly or not at all",
        acts: remote_of_dead,
        strikes: DEADLY,
    },
    Story {
        name: "remote-move",
        what: "directories get parents on other metadata targets, and none below itself",
        acts: remote_move,
        strikes: ALL,
    },
    Story {
        name: "remote-link",
        what: "a file gets names in a directory on another metadata target, and loses all of them",
        acts: remote_link,
        strikes: ALL,
    },
    Story {
        name: "remote-rename",
        what: "files are renamed between directories on two metadata targets, over others, and exchanged",
        acts: remote_rename,
        strikes: ALL,
    },
    Story {
        name: "remote-rename-dir",
        what: "a directory on another metadata target gets another name, replaces another one, and is exchanged",
        acts: remote_rename_dir,
        strikes: ALL,
    },
    Story {
        name: "remote-rename-four",
        what: "a file on one metadata target is renamed from a second to a third, over a file on a fourth",
        acts: remote_rename_four,
        strikes: ALL,
    },
    Story {
        name: "remote-rename-race",
        what: "two clients rename one file, to the same and to another metadata target: one succeeds",
        acts: remote_rename_race,
        strikes: ALL,
    },
    Story {
        name: "remote-move-race",
        what: "two clients rename two directories on two metadata targets, each into the other: one succeeds",
        acts: remote_move_race,
        strikes: ALL,
    },
    Story {
        name: "remote-move-ways",
        what: "directories are renamed while others change what lies above them, over three metadata targets",
        acts: remote_move_ways,
        strikes: ALL,
    },
    Story {
        name: "remote-in-doubt",
        what: "a change is in doubt while a participant's disk stands still: everything else goes on",
        acts: remote_in_doubt,
        strikes: &[],
    },
    Story {
        name: "remote-durable",
        what: "a directory that was made on another metadata target is there after a power failure of both",
        acts: remote_durable,
        strikes: &[],
    },
];

pub(super) fn two() -> Act {
    Planned(|plan| plan.mdts = 2)
}

fn make(at: &str, mdt: u32) -> Op {
    Op::MkdirOn { path: path(at), mode: 0o755, wish: NewDir { mdts: vec![mdt], hash: 0 } }
}

pub(super) fn rmdir(at: &str) -> Op {
    Op::Rmdir { path: path(at) }
}

pub(super) fn unlink(client: usize, at: &str) -> Act {
    Do(client, Op::Unlink { path: path(at) })
}

/// Looks at the story's directory.
pub(super) fn root(client: usize) -> Act {
    Do(client, Op::Stat { path: Path::new() })
}

pub(super) fn list(client: usize, at: &str) -> Act {
    Do(client, Op::List { path: path(at), plus: true, bytes: 4096 })
}

fn remote_mkdir() -> Vec<Act> {
    vec![
        two(),
        Arm,
        Do(0, make("d", 1)),
        stat(1, "d"),
        mknod(0, "d/f"),
        mknod(1, "d/g"),
        list(0, "d"),
        Do(1, make("d", 0)),
        root(0),
    ]
}

fn remote_rmdir() -> Vec<Act> {
    vec![
        two(),
        Do(0, make("d", 1)),
        mknod(0, "d/f"),
        Arm,
        Do(1, rmdir("d")),
        unlink(1, "d/f"),
        Do(1, rmdir("d")),
        stat(0, "d"),
        Do(0, make("d", 1)),
        list(1, "d"),
        root(1),
    ]
}

fn remote_back() -> Vec<Act> {
    vec![
        two(),
        Arm,
        Do(0, make("d", 1)),
        Do(1, make("d/e", 0)),
        mknod(0, "d/e/f"),
        list(1, "d/e"),
        unlink(1, "d/e/f"),
        Do(0, rmdir("d/e")),
        Do(1, rmdir("d")),
        root(0),
    ]
}

fn remote_race() -> Vec<Act> {
    vec![
        two(),
        root(1),
        Arm,
        Begin(0, make("d", 1)),
        Begin(1, make("d", 1)),
        JoinAny,
        JoinAny,
        stat(0, "d"),
        Begin(0, rmdir("d")),
        Begin(1, rmdir("d")),
        JoinAny,
        JoinAny,
        stat(1, "d"),
        root(0),
    ]
}

fn remote_of_dead() -> Vec<Act> {
    vec![
        two(),
        Do(0, make("e", 1)),
        Arm,
        Begin(0, make("d", 1)),
        Begin(0, rmdir("e")),
        JoinDead(1),
        JoinDead(1),
        mknod(1, "f"),
        root(1),
    ]
}

pub(super) fn rename(client: usize, from: &str, to: &str) -> Act {
    renamed(client, from, to, 0)
}

fn renamed(client: usize, from: &str, to: &str, flags: u32) -> Act {
    Do(client, Op::Rename { from: path(from), to: path(to), flags })
}

pub(super) fn link(client: usize, from: &str, to: &str) -> Act {
    Do(client, Op::Link { from: path(from), to: path(to) })
}

const NOREPLACE: u32 = 1;
const EXCHANGE: u32 = 2;
const WHITEOUT: u32 = 4;

fn remote_move() -> Vec<Act> {
    vec![
        two(),
        Do(0, make("d", 1)),
        Do(0, make("d/e", 1)),
        mkdir(0, "c"),
        mknod(0, "f"),
        mknod(0, "d/f"),
        stat(1, "d/e"),
        Arm,
        rename(0, "d", "c/d"),
        stat(1, "c/d/f"),
        rename(1, "c", "c/d/c"),
        rename(0, "c/d/e", "e"),
        rename(1, "c/d", "e/d"),
        list(0, "e/d"),
        rename(0, "e", "e/d/e"),
        renamed(0, "c", "e/d/f", EXCHANGE),
        list(1, "e/d"),
        renamed(1, "e", "e/d/f", EXCHANGE),
        rename(0, "f", "e/d"),
        link(0, "e", "g"),
        rename(0, "e/d", "d"),
        renamed(0, "f", "d/g", EXCHANGE),
        renamed(0, "f", "d/f", NOREPLACE),
        list(1, "d"),
        root(1),
    ]
}

fn remote_move_race() -> Vec<Act> {
    vec![
        two(),
        Do(0, make("d", 1)),
        mkdir(0, "c"),
        stat(1, "d"),
        stat(1, "c"),
        Arm,
        Begin(0, Op::Rename { from: path("c"), to: path("d/c"), flags: 0 }),
        Begin(1, Op::Rename { from: path("d"), to: path("c/d"), flags: 0 }),
        JoinAny,
        JoinAny,
        list(0, "c"),
        list(1, "d"),
        root(0),
        root(1),
    ]
}

/// The way up from the new parent of `m` leads over all targets, and changes meanwhile.
fn remote_move_ways() -> Vec<Act> {
    vec![
        Planned(|plan| plan.mdts = 3),
        Do(0, make("a", 1)),
        Do(0, make("a/b", 2)),
        Do(0, make("a/b/c", 0)),
        Do(0, make("m", 1)),
        Do(0, make("m/n", 0)),
        Do(0, make("z", 2)),
        stat(1, "a/b/c"),
        stat(1, "m/n"),
        Arm,
        Begin(0, Op::Rename { from: path("m"), to: path("a/b/c/m"), flags: 0 }),
        Begin(1, Op::Rename { from: path("a/b"), to: path("z/b"), flags: 0 }),
        JoinAny,
        JoinAny,
        Begin(0, Op::Rename { from: path("z"), to: path("a/z"), flags: 0 }),
        Begin(1, Op::Rename { from: path("a"), to: path("z/b/c/a"), flags: 0 }),
        JoinAny,
        JoinAny,
        root(0),
        root(1),
    ]
}

fn remote_link() -> Vec<Act> {
    vec![
        two(),
        Do(0, make("d", 1)),
        mknod(0, "f"),
        stat(1, "f"),
        Arm,
        link(0, "f", "d/f"),
        stat(1, "d/f"),
        link(1, "d/f", "g"),
        unlink(0, "f"),
        unlink(1, "g"),
        list(1, "d"),
        link(0, "d/f", "d/g"),
        unlink(0, "d/f"),
        unlink(1, "d/g"),
        list(0, "d"),
        root(1),
    ]
}

fn remote_rename() -> Vec<Act> {
    vec![
        two(),
        Do(0, make("d", 1)),
        mknod(0, "f"),
        mknod(1, "d/f"),
        stat(1, "f"),
        Arm,
        rename(0, "f", "d/g"),
        stat(1, "d/g"),
        rename(1, "d/g", "d/f"),
        list(0, "d"),
        mknod(1, "f"),
        renamed(1, "f", "d/f", EXCHANGE),
        stat(0, "f"),
        rename(0, "d/f", "f"),
        list(1, "d"),
        root(1),
    ]
}

fn remote_rename_dir() -> Vec<Act> {
    vec![
        two(),
        Do(0, make("d", 1)),
        Do(0, make("e", 1)),
        mknod(1, "d/f"),
        Arm,
        rename(0, "d", "c"),
        stat(1, "c/f"),
        rename(1, "c", "e"),
        mkdir(0, "a"),
        renamed(1, "a", "e", EXCHANGE),
        list(0, "a"),
        rename(0, "e", "a"),
        unlink(0, "a/f"),
        rename(0, "e", "a"),
        root(1),
    ]
}

/// The names, the object and the one that is replaced are on four targets.
fn remote_rename_four() -> Vec<Act> {
    vec![
        Planned(|plan| plan.mdts = 4),
        Do(0, make("a", 1)),
        Do(0, make("b", 2)),
        Do(0, make("c", 3)),
        mknod(0, "c/f"),
        mknod(0, "g"),
        link(0, "c/f", "a/f"),
        link(1, "g", "b/g"),
        Arm,
        rename(0, "a/f", "b/g"),
        stat(1, "b/g"),
        renamed(1, "b/g", "g", EXCHANGE),
        list(0, "b"),
        renamed(0, "b/g", "a/g", WHITEOUT),
        list(1, "a"),
        list(1, "b"),
        root(1),
    ]
}

fn remote_rename_race() -> Vec<Act> {
    let rename = |client, from, to| Begin(client, Op::Rename { from: path(from), to: path(to), flags: 0 });
    vec![
        two(),
        Do(0, make("d", 1)),
        mknod(0, "f"),
        mknod(1, "d/f"),
        root(1),
        Arm,
        rename(0, "f", "d/f"),
        rename(1, "f", "g"),
        JoinAny,
        JoinAny,
        list(0, "d"),
        root(1),
    ]
}

/// The participant's record reaches its disk after two seconds. Meanwhile the coordinator is killed.
fn remote_in_doubt() -> Vec<Act> {
    vec![
        two(),
        mkdir(0, "c"),
        Do(0, make("e", 1)),
        Slow(FAR, 2_000_000),
        Begin(0, make("d", 1)),
        Wait(100_000),
        Crash(MDT),
        Wait(100_000),
        Mark,
        mknod(1, "c/f"),
        Within(1_500_000),
        Slow(FAR, 0),
        Join,
        stat(1, "d"),
        stat(1, "e"),
    ]
}

fn remote_durable() -> Vec<Act> {
    vec![two(), Do(0, make("d", 1)), Power(MDT), Power(FAR), Wait(1_000), mknod(1, "d/f"), stat(0, "d")]
}
