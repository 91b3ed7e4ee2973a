//! Cases of Lustre's test suites by number, with faults at the same sites as with real processes
//! (`crates/e2e/tests/replay_single.rs`, `conf_sanity.rs` and `slots.rs`, which describe each case).

use proto::Errno;
use stdx::Site;
use stdx::faults::{ONCE, sites};

use super::Act::{Barrier, Begin, Crash, Do, Expect, ExpectNot, FailLoc, Hit, Join, Refuse, Set, Wait, Waiting};
use super::stories::{close_fd, mkdir, mknod, open, path, stat};
use super::{Act, MDT, Story};
use crate::model::{Op, S_IFREG};
use crate::program::name;
use crate::world::net::Node;

/// All stories of this module.
pub(super) const STORIES: &[Story] = &[
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
        let modes = Changes::modes("d", 7);
        [modes.lost(sites::MDS_REINT_MULTI_NET), vec![FailLoc(MDT, 0)], modes.ended(), vec![done(7), rebuilt(0)]]
            .concat()
    }),
    story("replay-single-102b", "all slots are taken by changes whose answers are lost", in_memory),
    story("replay-single-102c", "the same, and the server is killed before they are on disk", || {
        let (modes, crash) = (Changes::modes("d", 7), vec![FailLoc(MDT, 0), Crash(MDT)]);
        let lost = modes.lost_after(&[SETTLE, Barrier(MDT)], sites::MDS_REINT_MULTI_NET_REP);
        [lost, crash, modes.ended(), vec![done(7), rebuilt(0)]].concat()
    }),
    story("replay-single-102d", "the same, and they are on disk", || on_disk(Changes::modes("d", 7))),
    story("replay-single-102d-once", "the same with changes that fail when they are made a second time", || {
        on_disk(Changes::only_once())
    }),
    story("sanity-182", "processes of one client change side by side, in as many slots as there are", side_by_side),
    story("sanity-245", "the import shows that several changes may be in flight, and how many", || {
        vec![
            Expect(CLIENT, "mdc.*.import", "max_mod_rpcs: 8".to_owned()),
            Expect(CLIENT, "mdc.*.import", "multi_mod_rpcs,".to_owned()),
        ]
    }),
    story("sanity-252", "a target reads its clients' records from disk", || {
        let record = || Expect(Node::Server(MDT), "mdt.*.exports.*.reply_data", "reply_max: 1".to_owned());
        let sync = Do(0, Op::Fsync { fd: 1, data_only: false });
        vec![open(0, "f", 0o102, 1), SETTLE, record(), sync, Crash(MDT), stat(1, "f"), record(), close_fd(0, 1)]
    }),
    story("conf-sanity-86a", "changes in flight are limited", || enforced(7)),
    story("conf-sanity-86b", "changes in flight are limited after an update", || {
        let limit = |value| vec![Set(CLIENT, LIMIT, value)];
        [limit("1"), enforced(1), limit("5"), enforced(5)].concat()
    }),
    story("conf-sanity-86c", "limits of changes in flight", || {
        let refuse = |value, errno| Refuse(CLIENT, LIMIT, value, errno);
        let is = |value: &str| Expect(CLIENT, LIMIT, value.to_owned());
        vec![
            Set(CLIENT, "mdc.*.max_rpcs_in_flight", "8"),
            is("7"),
            refuse("8", Errno::ERANGE),
            refuse("0", Errno::ERANGE),
            refuse("513", Errno::ERANGE),
            refuse("x", Errno::EINVAL),
            is("7"),
            Set(CLIENT, "mdc.*.max_rpcs_in_flight", "10"),
            // The target offers 8.
            refuse("9", Errno::ERANGE),
            Set(CLIENT, LIMIT, "8"),
            is("8"),
        ]
    }),
    story("conf-sanity-86d", "one close is allowed above the limit", || {
        let modes = Changes::modes("d", 7);
        let lost = modes.lost(sites::MDS_REINT_MULTI_NET);
        let close = vec![FailLoc(MDT, 0), close_fd(0, 1), SETTLE, open_files(0), in_flight(7), Waiting(7)];
        [vec![open(0, "f", 0o102, 1)], lost, close, modes.ended()].concat()
    }),
];

const fn story(name: &'static str, what: &'static str, acts: fn() -> Vec<Act>) -> Story {
    Story { name, what, acts, strikes: &[] }
}

/// A site with flags.
type Loc = (Site, u32);

fn arm((site, flags): Loc) -> Act {
    FailLoc(MDT, u32::from(site.0) | flags)
}

/// After this everything is on disk, and closes have been sent.
const SETTLE: Act = Wait(50_000);

fn open_files(count: usize) -> Act {
    Expect(Node::Server(MDT), "mdt.*.open_files", count.to_string())
}

/// Checks the number of changes, closes included, without a reply.
fn in_flight(count: usize) -> Act {
    Expect(Node::Client(0), "mdc.*.rpc_stats", format!("modify_RPCs_in_flight: {count} "))
}

/// Checks the number of changes that were executed or whose replies were rebuilt.
fn done(count: usize) -> Act {
    Expect(Node::Server(MDT), "mdt.*.stats", format!("mds_reint {count} samples"))
}

/// Checks the number of replies that were rebuilt from their records.
fn rebuilt(count: usize) -> Act {
    Expect(Node::Server(MDT), "mdt.*.stats", format!("reconstructed {count} samples"))
}

const CLIENT: Node = Node::Client(0);
/// The limit for the client's changes in flight.
const LIMIT: &str = "mdc.*.max_mod_rpcs_in_flight";

/// Ten processes make directories and remove them: many changes are in flight, and never more than the limit plus one close.
fn side_by_side() -> Vec<Act> {
    let folders: Vec<String> = (0..10).map(|number| format!("d{number}")).collect();
    let mut acts: Vec<Act> = folders.iter().map(|folder| mkdir(0, folder)).collect();
    acts.extend([SETTLE, Set(CLIENT, "mdc.*.rpc_stats", "0")]);
    let made = |folder: &String| path(&format!("{folder}/n"));
    let make = folders.iter().map(|folder| Op::Mkdir { path: made(folder), mode: 0o755 });
    let remove = folders.iter().map(|folder| Op::Rmdir { path: made(folder) });
    for ops in [make.collect::<Vec<Op>>(), remove.collect()] {
        acts.extend(ops.iter().map(|op| Begin(0, op.clone())));
        acts.extend(ops.iter().map(|_| Join));
    }
    acts.extend([
        Expect(CLIENT, "mdc.*.rpc_stats", "7:".to_owned()),
        ExpectNot(CLIENT, "mdc.*.rpc_stats", "9:".to_owned()),
    ]);
    acts
}

/// At most `count` changes are in flight.
fn enforced(count: usize) -> Vec<Act> {
    let (folder, beyond) = (format!("d{count}"), format!("beyond{count}"));
    let modes = Changes::modes(&folder, count);
    let one_more = Op::Chmod { path: path(&beyond), mode: 0o600 };
    // The other changes are lost, and one slot is left.
    let fewer = Changes { prepare: Vec::new(), changes: modes.changes[..count - 1].to_vec() };
    let mut acts = vec![mknod(0, &beyond)];
    acts.extend(modes.prepare.clone());
    acts.extend(fewer.lost(sites::MDS_REINT_MULTI_NET));
    acts.extend([FailLoc(MDT, 0), Do(0, Op::Chmod { path: path(&beyond), mode: 0o640 }), in_flight(count - 1)]);
    acts.extend(fewer.ended());
    // All slots are taken: a further change waits until the lost ones are resent.
    let all = Changes { prepare: Vec::new(), changes: modes.changes };
    acts.extend(all.lost(sites::MDS_REINT_MULTI_NET));
    acts.extend([FailLoc(MDT, 0), Begin(0, one_more), SETTLE, in_flight(count), Waiting(count + 1)]);
    acts.extend(all.ended());
    acts.push(Join);
    acts
}

/// Process A has `d1/f` open and closes it, process B makes `d2/f`; `create` and `close` say what is lost of each.
fn fifty_three(create: Option<Loc>, close: Option<Loc>, barrier: bool) -> Vec<Act> {
    let b = || Op::Mknod { path: path("d2/f"), mode: S_IFREG | 0o644, rdev: 0 };
    let mut acts = vec![mkdir(0, "d1"), mkdir(0, "d2"), open(0, "d1/f", 0o102, 1), SETTLE, open_files(1), in_flight(0)];
    if let Some(loc) = create {
        acts.extend([arm(loc), Begin(0, b()), Hit(MDT), in_flight(1)]);
    }
    acts.extend([close.map_or(FailLoc(MDT, 0), arm), close_fd(0, 1)]);
    if close.is_some() {
        acts.extend([Hit(MDT), FailLoc(MDT, 0)]);
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
    /// Mode changes of this many files in a new directory.
    fn modes(folder: &str, count: usize) -> Changes {
        let files: Vec<String> = (0..count).map(|number| format!("{folder}/f{number}")).collect();
        Changes {
            prepare: [mkdir(0, folder)].into_iter().chain(files.iter().map(|file| mknod(0, file))).collect(),
            changes: files.iter().map(|file| Op::Chmod { path: path(file), mode: 0o600 }).collect(),
        }
    }

    /// Each change in its own directory, which has `f` and `d` in it.
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

    /// Sends the changes, which are lost at this site.
    fn lost(&self, site: Site) -> Vec<Act> {
        self.lost_after(&[SETTLE], site)
    }

    fn lost_after(&self, before: &[Act], site: Site) -> Vec<Act> {
        let count = self.changes.len();
        let mut acts = self.prepare.clone();
        acts.extend(before.iter().cloned());
        // Resets the server's counters.
        acts.extend([Act::Set(Node::Server(MDT), "mdt.*.stats", "clear"), arm((site, 0))]);
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
    [lost, vec![done(7), FailLoc(MDT, 0)], once.ended(), vec![done(7), rebuilt(0)]].concat()
}

fn on_disk(changes: Changes) -> Vec<Act> {
    let lost = changes.lost(sites::MDS_REINT_MULTI_NET_REP);
    [lost, vec![done(7), FailLoc(MDT, 0), Crash(MDT)], changes.ended(), vec![rebuilt(7), done(7)]].concat()
}
