//! Cases of Lustre's replay-single by their numbers, with faults at the same sites as with real processes
//! (`crates/e2e/tests/replay_single.rs`, which says what each case is about).

use stdx::Site;
use stdx::faults::{ONCE, sites};

use super::Act::{Barrier, Begin, Crash, Do, Expect, Fail, Hit, Join, Wait, Waiting};
use super::stories::{close_fd, mkdir, mknod, open, path, stat};
use super::{Act, MDT, Story};
use crate::model::{Op, S_IFREG};
use crate::program::name;
use crate::world::net::Node;

/// All of them.
pub const STORIES: &[Story] = &[
    story("replay-single-53a", "a close is lost; a create does not wait for it", || {
        fifty_three(None, Some((sites::MDS_CLOSE_NET, ONCE)), true)
    }),
    story("replay-single-53b", "a create is lost; a close does not wait for it", || {
        fifty_three(Some((sites::MDS_REINT_NET, ONCE)), None, true)
    }),
    story("replay-single-53c", "a create and a close are lost", || {
        fifty_three(Some((sites::MDS_REINT_NET, ONCE)), Some((sites::MDS_CLOSE_NET, ONCE)), true)
    }),
    story("replay-single-53d", "the answer to a close is lost", || {
        fifty_three(None, Some((sites::MDS_CLOSE_NET_REP, ONCE)), false)
    }),
    story("replay-single-53e", "the answer to a create is lost", || {
        fifty_three(Some((sites::MDS_REINT_NET_REP, 0)), None, true)
    }),
    story("replay-single-53f", "the answers to a create and a close are lost", || {
        fifty_three(Some((sites::MDS_REINT_NET_REP, 0)), Some((sites::MDS_CLOSE_NET_REP, ONCE)), true)
    }),
    story("replay-single-53g", "the answer to a create and a close are lost", || {
        fifty_three(Some((sites::MDS_REINT_NET_REP, 0)), Some((sites::MDS_CLOSE_NET, ONCE)), true)
    }),
    story("replay-single-53h", "a create and the answer to a close are lost", || {
        fifty_three(Some((sites::MDS_REINT_NET, ONCE)), Some((sites::MDS_CLOSE_NET_REP, ONCE)), true)
    }),
    story("replay-single-102a", "all slots are taken by changes whose requests are lost", || {
        let modes = Changes::modes();
        [modes.lost(sites::MDS_REINT_MULTI_NET), vec![Fail(MDT, 0)], modes.ended(), vec![done(7), rebuilt(0)]].concat()
    }),
    story("replay-single-102b", "all slots are taken by changes whose answers are lost", in_memory),
    story("replay-single-102c", "the same, and the server is killed before they are on disk", || {
        let (modes, crash) = (Changes::modes(), vec![Fail(MDT, 0), Crash(MDT)]);
        let lost = modes.lost_behind(&[SETTLE, Barrier(MDT)], sites::MDS_REINT_MULTI_NET_REP);
        [lost, crash, modes.ended(), vec![done(7), rebuilt(0)]].concat()
    }),
    story("replay-single-102d", "the same, and they are on disk", || on_disk(Changes::modes())),
    story("replay-single-102d-once", "the same with changes that fail when they are made a second time", || {
        on_disk(Changes::only_once())
    }),
];

const fn story(name: &'static str, what: &'static str, acts: fn() -> Vec<Act>) -> Story {
    Story { name, what, acts, strikes: &[] }
}

/// A site with flags.
type Loc = (Site, u32);

fn arm((site, flags): Loc) -> Act {
    Fail(MDT, u32::from(site.0) | flags)
}

/// Everything that was done is on disk after this, and closes have left.
const SETTLE: Act = Wait(50_000);

fn open_files(count: usize) -> Act {
    Expect(Node::Server(MDT), "mdt.*.open_files", count.to_string())
}

/// So many changes, closes among them, have no answer.
fn in_flight(count: usize) -> Act {
    Expect(Node::Client(0), "mdc.*.rpc_stats", format!("modify_RPCs_in_flight: {count} "))
}

/// So many changes were done, or their answers rebuilt.
fn done(count: usize) -> Act {
    Expect(Node::Server(MDT), "mdt.*.stats", format!("mds_reint {count} samples"))
}

/// So many answers were rebuilt from their records.
fn rebuilt(count: usize) -> Act {
    Expect(Node::Server(MDT), "mdt.*.stats", format!("reconstructed {count} samples"))
}

/// A has `d1/f` open and closes it, B makes `d2/f`; what is lost of the create, and of the close.
fn fifty_three(create: Option<Loc>, close: Option<Loc>, barrier: bool) -> Vec<Act> {
    let b = || Op::Mknod { path: path("d2/f"), mode: S_IFREG | 0o644, rdev: 0 };
    let mut acts = vec![mkdir(0, "d1"), mkdir(0, "d2"), open(0, "d1/f", 0o102, 1), SETTLE, open_files(1), in_flight(0)];
    if let Some(loc) = create {
        acts.extend([arm(loc), Begin(0, b()), Hit(MDT), in_flight(1)]);
    }
    acts.extend([close.map_or(Fail(MDT, 0), arm), close_fd(0, 1)]);
    if close.is_some() {
        acts.extend([Hit(MDT), Fail(MDT, 0)]);
    }
    let unanswered = usize::from(create.is_some()) + usize::from(close.is_some());
    let still_open = close.is_some_and(|(site, _)| site == sites::MDS_CLOSE_NET);
    acts.extend([SETTLE, open_files(still_open.into()), in_flight(unanswered)]);
    if create.is_none() {
        acts.push(Do(0, b()));
    }
    acts.push(Waiting(create.is_some().into()));
    if barrier {
        acts.extend([SETTLE, Barrier(MDT)]);
    }
    acts.extend([in_flight(unanswered), Crash(MDT)]);
    if create.is_some() {
        acts.push(Join);
    }
    acts.extend([stat(1, "d1/f"), stat(1, "d2/f"), SETTLE, open_files(0), in_flight(0)]);
    acts
}

/// As many changes as a client has slots.
struct Changes {
    prepare: Vec<Act>,
    changes: Vec<Op>,
}

impl Changes {
    fn modes() -> Changes {
        let files: Vec<String> = (0..7).map(|number| format!("f{number}")).collect();
        Changes {
            prepare: files.iter().map(|file| mknod(0, file)).collect(),
            changes: files.iter().map(|file| Op::Chmod { path: path(file), mode: 0o600 }).collect(),
        }
    }

    /// Each in a directory of its own, with `f` and `d` in it.
    fn only_once() -> Changes {
        let changes = vec![
            Op::Mknod { path: path("0/n"), mode: S_IFREG | 0o644, rdev: 0 },
            Op::Mkdir { path: path("1/n"), mode: 0o755 },
            Op::Rmdir { path: path("2/d") },
            Op::Unlink { path: path("3/f") },
            Op::Rename { from: path("4/f"), to: path("4/n"), flags: 0 },
            Op::Link { from: path("5/f"), to: path("5/n") },
            Op::Symlink { path: path("6/n"), target: name("f") },
        ];
        let folder = |number: usize| {
            let at = |what: &str| format!("{number}/{what}");
            [mkdir(0, &number.to_string()), mkdir(0, &at("d")), mknod(0, &at("f"))]
        };
        Changes { prepare: (0..changes.len()).flat_map(folder).collect(), changes }
    }

    /// They are under way, and lost at this site.
    fn lost(&self, site: Site) -> Vec<Act> {
        self.lost_behind(&[SETTLE], site)
    }

    fn lost_behind(&self, behind: &[Act], site: Site) -> Vec<Act> {
        let count = self.changes.len();
        let mut acts = self.prepare.clone();
        acts.extend(behind.iter().cloned());
        // The server is told to count anew.
        acts.extend([Act::Set(MDT, "mdt.*.stats", "clear"), arm((site, 0))]);
        acts.extend(self.changes.iter().map(|op| Begin(0, op.clone())));
        acts.extend([SETTLE, Waiting(count), in_flight(count)]);
        acts
    }

    fn ended(&self) -> Vec<Act> {
        vec![Join; self.changes.len()]
    }
}

fn in_memory() -> Vec<Act> {
    let once = Changes::only_once();
    let lost = once.lost(sites::MDS_REINT_MULTI_NET_REP);
    [lost, vec![done(7), Fail(MDT, 0)], once.ended(), vec![done(7), rebuilt(0)]].concat()
}

fn on_disk(changes: Changes) -> Vec<Act> {
    let lost = changes.lost(sites::MDS_REINT_MULTI_NET_REP);
    [lost, vec![done(7), Fail(MDT, 0), Crash(MDT)], changes.ended(), vec![rebuilt(7), done(7)]].concat()
}
