//! Stories about striped directories. By the sum of its bytes `f` is a name of the first of two stripes, `g` one of the second.

use client::api::{DirStripes, NewDir, SetTime};
use proto::Bytes;
use proto::msg::DirHash;

use core::time::Duration;

use super::Act::{Arm, Begin, Do, JoinAny, JoinDead, Planned, Restripe};
use super::places::chmod;
use super::remote::{ALL, DEADLY, link, list, rename, rmdir, root, two, unlink};
use super::stories::{mkdir, mknod, path, stat};
use super::{Act, Story};
use crate::model::{DEFAULT, List, Op};

/// All stories of this module.
pub(super) const STORIES: &[Story] = &[
    Story {
        name: "striped-mkdir",
        what: "a directory with stripes on two metadata targets is made, and names in both of them by two clients",
        acts: striped_mkdir,
        strikes: ALL,
    },
    Story {
        name: "striped-rmdir",
        what: "a striped directory is not removed while one stripe has a name, then with all stripes, and is made again",
        acts: striped_rmdir,
        strikes: ALL,
    },
    Story {
        name: "striped-attributes",
        what: "mode, times and default list of a striped directory change in all stripes while names are made in them",
        acts: striped_attributes,
        strikes: ALL,
    },
    Story {
        name: "striped-rename",
        what: "files and directories get names in other stripes of their directory, and leave it and come back",
        acts: striped_rename,
        strikes: ALL,
    },
    Story {
        name: "striped-replaced",
        what: "a directory is renamed over a striped one, once all its stripes are empty",
        acts: striped_replaced,
        strikes: ALL,
    },
    Story {
        name: "striped-race",
        what: "a striped directory is removed while another client makes names in each stripe: it stays, or they are not made",
        acts: striped_race,
        strikes: ALL,
    },
    Story {
        name: "striped-default",
        what: "plain mkdir follows the default of its directory, which one client sets and another one meets, as deep as it goes",
        acts: striped_default,
        strikes: ALL,
    },
    Story {
        name: "striped-on-one",
        what: "a directory with several stripes on the only metadata target",
        acts: striped_on_one,
        strikes: &[],
    },
    Story {
        name: "striped-anew",
        what: "a directory gets a second stripe, then other ones, then none, while its names are made, moved, removed and listed",
        acts: striped_anew,
        strikes: ALL,
    },
    Story {
        name: "striped-of-dead",
        what: "a client dies while it makes and removes striped directories: wholly or not at all",
        acts: striped_of_dead,
        strikes: DEADLY,
    },
];

fn make(at: &str, mdts: &[u32]) -> Op {
    let wish = NewDir { mdts: mdts.to_vec(), hash: DirHash::AllChar as i32 };
    Op::MkdirOn { path: path(at), mode: 0o755, wish }
}

fn striped_mkdir() -> Vec<Act> {
    vec![
        two(),
        Arm,
        Do(0, make("d", &[1, 0])),
        stat(1, "d"),
        mknod(0, "d/f"),
        mknod(1, "d/g"),
        mkdir(1, "d/h"),
        list(0, "d"),
        mkdir(0, "d/i"),
        stat(1, "d"),
        Do(1, make("d", &[0, 1])),
        list(1, "d"),
        root(0),
    ]
}

fn restripe(client: usize, added: &[u32], count: u32, hash: DirHash) -> Act {
    Restripe(client, path("d"), DirStripes { count, added: added.to_vec(), hash: hash as i32 })
}

fn striped_anew() -> Vec<Act> {
    vec![
        two(),
        // Every name is met where it was before, and where it belongs.
        Planned(|plan| plan.names_moving = (1, Duration::from_millis(30))),
        mkdir(0, "d"),
        mknod(0, "d/f"),
        mknod(1, "d/g"),
        mkdir(0, "d/h"),
        mknod(0, "d/i"),
        list(1, "d"),
        Arm,
        restripe(0, &[1], 2, DirHash::AllChar),
        stat(1, "d/g"),
        rename(1, "d/i", "d/j"),
        unlink(0, "d/g"),
        mknod(1, "d/g"),
        list(0, "d"),
        list(1, "d"),
        restripe(1, &[], 2, DirHash::Fnv1a64),
        link(0, "d/f", "d/k"),
        mknod(0, "d/h/f"),
        stat(0, "d"),
        list(1, "d"),
        restripe(0, &[], 1, DirHash::Unknown),
        unlink(1, "d/f"),
        rename(0, "d/k", "k"),
        list(0, "d"),
        stat(1, "d"),
        restripe(0, &[0, 1], 3, DirHash::Crush),
        list(1, "d"),
        root(0),
    ]
}

fn default(at: &str, mdts: &[u32], depth: u32) -> Act {
    let hash = if mdts.len() > 1 { DirHash::AllChar as i32 } else { 0 };
    Do(0, Op::SetDefault { path: path(at), wish: Some(NewDir { mdts: mdts.to_vec(), hash }), depth })
}

fn striped_default() -> Vec<Act> {
    vec![
        two(),
        mkdir(0, "d"),
        stat(1, "d"),
        Arm,
        default("d", &[1, 0], 2),
        mkdir(1, "d/f"),
        stat(0, "d/f"),
        // In each stripe of it: the default goes no deeper.
        mkdir(0, "d/f/f"),
        mkdir(1, "d/f/g"),
        mkdir(1, "d/f/g/f"),
        stat(0, "d/f/g/f"),
        default("d", &[1], 1),
        mkdir(1, "d/g"),
        mkdir(0, "d/g/f"),
        Do(0, Op::SetDefault { path: path("d"), wish: None, depth: 0 }),
        mkdir(1, "d/h"),
        list(0, "d"),
        Do(0, rmdir("d/g/f")),
        Do(1, rmdir("d/g")),
        root(1),
    ]
}

fn striped_rmdir() -> Vec<Act> {
    vec![
        two(),
        Do(0, make("d", &[1, 0])),
        mknod(0, "d/g"),
        Arm,
        Do(1, rmdir("d")),
        unlink(1, "d"),
        unlink(1, "d/g"),
        Do(1, rmdir("d")),
        stat(0, "d"),
        Do(0, make("d", &[0, 1])),
        list(1, "d"),
        mknod(1, "d/f"),
        Do(0, rmdir("d")),
        unlink(0, "d/f"),
        Do(0, rmdir("d")),
        root(1),
    ]
}

fn striped_attributes() -> Vec<Act> {
    let list = List::naming([7, 5, 5, 5, 7, 0], 1000, 1000);
    let default = Op::Setxattr { path: path("d"), name: Bytes::from_static(DEFAULT), value: list.value(), flags: 0 };
    vec![
        two(),
        Do(0, make("d", &[0, 1])),
        mknod(1, "d/f"),
        Arm,
        Do(0, chmod("d", 0o2775)),
        mkdir(1, "d/g"),
        stat(0, "d/g"),
        Do(1, Op::Utimens { path: path("d"), atime: Some(SetTime::At(5)), mtime: Some(SetTime::At(7)) }),
        stat(0, "d"),
        mknod(0, "d/i"),
        stat(1, "d"),
        Do(1, default),
        mknod(0, "d/e"),
        mknod(0, "d/k"),
        stat(1, "d/e"),
        stat(1, "d/k"),
        stat(1, "d"),
    ]
}

fn striped_rename() -> Vec<Act> {
    vec![
        two(),
        Do(0, make("d", &[1, 0])),
        mknod(0, "d/f"),
        mkdir(0, "d/h"),
        stat(1, "d/f"),
        Arm,
        rename(0, "d/f", "d/g"),
        stat(1, "d/g"),
        rename(1, "d/h", "d/i"),
        stat(0, "d/i"),
        link(0, "d/g", "d/f"),
        rename(1, "d/g", "g"),
        rename(1, "g", "d/k"),
        list(0, "d"),
        stat(0, "d"),
        root(1),
    ]
}

fn striped_replaced() -> Vec<Act> {
    vec![
        two(),
        Do(0, make("d", &[0, 1])),
        mkdir(0, "c"),
        mknod(1, "d/g"),
        Arm,
        rename(0, "c", "d"),
        unlink(0, "d/g"),
        rename(1, "c", "d"),
        stat(0, "d"),
        Do(0, make("e", &[1, 0])),
        rename(1, "d", "e"),
        root(0),
    ]
}

fn striped_race() -> Vec<Act> {
    vec![
        two(),
        Do(0, make("d", &[1, 0])),
        stat(1, "d"),
        Arm,
        Begin(0, rmdir("d")),
        Begin(1, Op::Mkdir { path: path("d/f"), mode: 0o755 }),
        Begin(1, Op::Mkdir { path: path("d/g"), mode: 0o755 }),
        JoinAny,
        JoinAny,
        JoinAny,
        list(0, "d"),
        root(1),
    ]
}

fn striped_on_one() -> Vec<Act> {
    vec![
        Do(0, make("d", &[0, 0, 0])),
        mknod(0, "d/f"),
        mknod(1, "d/g"),
        mkdir(1, "d/h"),
        list(0, "d"),
        stat(1, "d"),
        Do(0, chmod("d", 0o700)),
        rename(0, "d/f", "d/g"),
        Do(0, rmdir("d")),
        unlink(1, "d/g"),
        Do(0, rmdir("d/h")),
        Do(1, rmdir("d")),
        root(1),
    ]
}

fn striped_of_dead() -> Vec<Act> {
    vec![
        two(),
        Do(0, make("e", &[1, 0])),
        Arm,
        Begin(0, make("d", &[0, 1, 1])),
        Begin(0, rmdir("e")),
        JoinDead(1),
        JoinDead(1),
        mknod(1, "f"),
        root(1),
    ]
}
