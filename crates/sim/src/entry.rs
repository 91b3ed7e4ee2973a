//! The entry points of `adamant sim`: one seed, many seeds, or a named scenario.
//!
//! The output of a failing run starts and ends with the command that repeats it.

use core::time::Duration;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;

use crate::coverage::Coverage;
use crate::disturb::{Disturbances, Partitions};
use crate::plan::{DiskFaults, NodeFaults, Plan, Profile, SharedCalls};
use crate::run::{Report, run as run_plan};
use crate::scenario::{self, Story};
use crate::trace::Keep;
use crate::world::Canary;
use crate::world::faults::Counts;

/// What to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Run this seed only.
    pub seed: Option<u64>,
    /// The number of seeds.
    pub runs: u64,
    /// A named scenario; `list` lists them, `all` runs every story.
    pub scenario: Option<String>,
    /// The first seed.
    pub first_seed: u64,
    /// How many seeds run at once, each in its own thread.
    pub jobs: usize,
    /// Print the coverage.
    pub coverage: bool,
}

/// The outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Whether nothing is wrong.
    pub fine: bool,
    /// The number of seeds that passed.
    pub done: u64,
}

/// A named world.
struct World {
    name: &'static str,
    what: &'static str,
    plan: fn() -> Plan,
    canary: Canary,
}

/// The names of the worlds that led to a defect once, and must pass.
pub fn fixed_defects() -> impl Iterator<Item = &'static str> {
    WORLDS.iter().filter(|world| matches!(world.canary, Canary::None)).map(|world| world.name)
}

/// Worlds besides the stories.
const WORLDS: &[World] = &[
    World {
        name: "canary",
        what: "a world that drops changes and reports success: it must fail, to prove that the oracles work",
        // No other faults, so that noticing the fault does not depend on chance.
        plan: || Plan { processes: 4, calls: 160, ..Plan::still(1) },
        canary: Canary::Swallow,
    },
    World {
        name: "canary-names",
        what: "invalidations of names are not delivered to kernels: processes that share directories must notice",
        plan: || Plan::shared(1),
        canary: Canary::KeepNames,
    },
    World {
        name: "canary-append",
        what: "some appended records are lost: processes that share files must notice",
        // Many groups, because whether one of them notices a lost record is a matter of chance.
        plan: || Plan { groups: 16, ..Plan::shared(3) },
        canary: Canary::LoseAppends,
    },
    World {
        name: "canary-writers",
        what: "some writes are lost: processes that write at different places of one file must notice",
        plan: || Plan { groups: 0, writers: 6, ..Plan::shared(3) },
        canary: Canary::LoseAppends,
    },
    World {
        name: "canary-locks",
        what: "some locks are reported as granted and not taken: processes that lock must notice",
        // How many processes lock, and how often, is drawn: in some seeds too few do.
        plan: || Plan { groups: 8, ..Plan::shared(1) },
        canary: Canary::GrantLocks,
    },
    World {
        name: "canary-objects",
        what: "objects of removed files are not destroyed: the check of the stores at rest must notice",
        plan: || Plan { processes: 4, calls: 160, file_max: 400 << 10, ..Plan::still(1) },
        canary: Canary::KeepObjects,
    },
    World {
        name: "canary-full",
        what: "writes that a full disk refuses are acknowledged: processes that read must notice",
        // With fewer processes most seeds read nothing back that a full disk has refused.
        plan: || Plan {
            processes: 16,
            calls: 320,
            file_max: 400 << 10,
            disk_faults: DiskFaults {
                fill_every: Some(Duration::from_millis(20)),
                stays_max: Duration::from_secs(2),
                leaves_max: 0,
            },
            ..Plan::still(1)
        },
        canary: Canary::DropWhenFull,
    },
    World {
        name: "canary-syncs",
        what: "object targets sync nothing, and the power fails: the check of the trees must notice missing synced bytes",
        plan: || Plan { file_max: 400 << 10, ..powerless(1) },
        canary: Canary::ForgetSyncs,
    },
    World {
        name: "canary-prefix",
        what: "a power failure loses changes and keeps later ones: the check of the trees must notice",
        plan: || powerless(1),
        canary: Canary::ForgetChanges,
    },
    World {
        name: "canary-twice",
        what: "some replies arrive again with another transno: the exactly-once oracle must notice",
        plan: || Plan { processes: 4, calls: 160, ..Plan::still(1) },
        canary: Canary::TwoOutcomes,
    },
    World {
        name: "canary-patient",
        what: "targets wait for a dead client much longer than they should: the limits on waiting must notice",
        plan: || {
            let plan = Plan { processes: 12, calls: 160, clients: 4, ..Plan::still(1) };
            let often = Some(Duration::from_millis(10));
            Plan {
                node_faults: NodeFaults {
                    crash_every: often,
                    pause_max: Duration::from_millis(1),
                    death_every: often,
                    ..NodeFaults::default()
                },
                ..plan
            }
        },
        canary: Canary::Patient,
    },
    World {
        name: "canary-stale",
        what: "programs get ESTALE without a reason: the models must notice",
        plan: || Plan::shared(1),
        canary: Canary::Stale,
    },
    World {
        name: "canary-pages",
        what: "invalidations of pages are not delivered to kernels: processes that read must notice",
        plan: || Plan { processes: 30, calls: 200, file_max: 6_000, ..Plan::still(1) },
        canary: Canary::KeepPages,
    },
    World {
        name: "canary-listing",
        what: "some listings lack a name: processes that list must notice",
        plan: || Plan { processes: 4, calls: 160, ..Plan::still(1) },
        canary: Canary::HideNames,
    },
    World {
        name: "canary-crowd",
        what: "some listings lack a name: programs that list a directory with many names must notice",
        plan: || Plan { crowd: true, ..Plan::still(1) },
        canary: Canary::HideNames,
    },
    World {
        name: "canary-living",
        what: "after the death of a client some changes of others are lost: processes that share directories must notice",
        plan: || mortal(2),
        canary: Canary::SwallowAfterDeath,
    },
    World {
        name: "canary-dead",
        what: "a client dies, and a name that it had removed is back although no server crashed: the final check must notice",
        plan: || mortal(1),
        canary: Canary::UnlinkAndDie,
    },
    World {
        name: "canary-told",
        what: "losses of an eviction are not reported: the check of the trees must notice",
        plan: || Plan {
            processes: 16,
            calls: 160,
            sync_metadata: [false; crate::plan::CLIENTS_MAX],
            write_back_after: Duration::from_secs(5),
            disturbances: Disturbances {
                partitions: Some(Partitions {
                    every: Duration::from_millis(5),
                    least: Duration::from_secs(200),
                    most: Duration::from_secs(300),
                    count: 4,
                }),
                ..Disturbances::default()
            },
            ..Plan::still(4)
        },
        canary: Canary::TellNobody,
    },
    World {
        name: "canary-attributes",
        what: "some changes of extended attributes are acknowledged and not made: processes that share files must notice",
        plan: || Plan { groups: 48, ..Plan::calls(1, SharedCalls { xattrs: true, ..SharedCalls::default() }) },
        canary: Canary::ForgetAttributes,
    },
    World {
        name: "canary-lists",
        what: "some changes of access lists are acknowledged and not made: processes that share files must notice",
        plan: || Plan::calls(1, SharedCalls { user_percent: 60, lists: true, ..SharedCalls::default() }),
        canary: Canary::ForgetAttributes,
    },
    World {
        name: "canary-owners",
        what: "some changes of owners are not made: processes that share files must notice",
        // Few of the drawn changes are changes of an owner that make a difference.
        plan: || Plan {
            groups: 96,
            ..Plan::calls(2, SharedCalls { user_percent: 60, owners: true, ..SharedCalls::default() })
        },
        canary: Canary::ForgetOwners,
    },
    World {
        name: "canary-times",
        what: "some changes of times are not made: processes that share files must notice",
        plan: || Plan { groups: 48, ..Plan::calls(3, SharedCalls { owners: true, ..SharedCalls::default() }) },
        canary: Canary::ForgetTimes,
    },
    World {
        name: "canary-rights",
        what: "some calls of users are made as root: processes that share files must notice",
        plan: || Plan::calls(1, SharedCalls { user_percent: 60, owners: true, ..SharedCalls::default() }),
        canary: Canary::AllMay,
    },
    World {
        name: "canary-specials",
        what: "some pipes, sockets and devices are made as regular files: processes that share directories must notice",
        plan: || Plan::calls(1, SharedCalls { specials: true, ..SharedCalls::default() }),
        canary: Canary::PlainFiles,
    },
    World {
        name: "canary-ranges",
        what: "some holes are acknowledged and not punched: processes that share files must notice",
        plan: || Plan::calls(1, SharedCalls { ranges: true, ..SharedCalls::default() }),
        canary: Canary::ForgetRanges,
    },
    World {
        name: "all-calls",
        what: "processes that share directories make every kind of call, without faults",
        plan: || Plan::calls(1, SharedCalls::ALL),
        canary: Canary::None,
    },
    World { name: "first", what: "the first seed, as an example", plan: || Plan::draw(1), canary: Canary::None },
    World {
        name: "killed-writing",
        what: "programs are killed in the middle of writes that are several requests",
        plan: || Plan { processes: 200, calls: 60, file_max: 400 << 10, signals: 100, ..Plan::still(2) },
        canary: Canary::None,
    },
    World {
        name: "removed-meanwhile",
        what: "one process renames out of a directory that another is about to remove, both through the same kernel",
        plan: || Plan::draw(1_795_780_686_285),
        canary: Canary::None,
    },
    World {
        name: "cut-lost",
        what: "a client unmounts while an object target that answered its truncate restarts",
        plan: || Plan { groups: 0, ..Plan::narrow(1125) },
        canary: Canary::None,
    },
    World {
        name: "removed-open",
        what: "a client removes a file that it has written and another has open",
        plan: || Plan { groups: 0, ..Plan::narrow(1958) },
        canary: Canary::None,
    },
    World {
        name: "removed-times",
        what: "the same, and the time of the last write is checked",
        plan: || Plan { groups: 0, ..Plan::narrow(1017) },
        canary: Canary::None,
    },
    World {
        name: "set-group-id",
        what: "a user outside the group writes to a file with set-group-id and without group execute permission",
        plan: || Plan { groups: 0, ..Plan::narrow(535) },
        canary: Canary::None,
    },
    World {
        name: "lost-file",
        what: "a file is lost with its client in a crash of the metadata target, and its object is removed",
        plan: || Plan::narrow(21_437),
        canary: Canary::None,
    },
    World {
        name: "looked-up",
        what: "a client that may keep few nodes looks up a file whose object target restarts",
        plan: || Plan { groups: 0, ..Plan::narrow(20_015) },
        canary: Canary::None,
    },
    World {
        name: "opened-cut",
        what: "a client that may keep few nodes opens a file with O_CREAT and truncates it, while its object target is slow",
        plan: || Plan::before_full_disks(8323),
        canary: Canary::None,
    },
    World {
        name: "refused-once",
        what: "a duplicated request is refused, and would succeed by the time its copy arrives",
        plan: || Plan::before_full_disks(167_357),
        canary: Canary::None,
    },
    World {
        name: "grant-wanted",
        what: "a reply that grants a lock is lost, and the resent request waits for a client that wants the lock",
        plan: || Plan::before_full_disks(13_000),
        canary: Canary::None,
    },
    World {
        name: "undone-made",
        what: "a client saw a new name that a crash of the server undid, and drops it from its cache",
        plan: || Plan::before_full_disks(153_040),
        canary: Canary::None,
    },
    World {
        name: "undone-renamed",
        what: "the same with a new name of an existing file",
        plan: || Plan::before_full_disks(190_821),
        canary: Canary::None,
    },
    World {
        name: "made-and-changed",
        what: "the mode of a new directory changes before its maker gets the reply",
        plan: || Plan::before_full_disks(193_063),
        canary: Canary::None,
    },
    World {
        name: "late-targets",
        what: "a file that was made before the metadata target knew any object target grows",
        plan: || Plan::before_full_disks(58_721),
        canary: Canary::None,
    },
    World {
        name: "dead-and-waiting",
        what: "a client dies while its request waits for another dead client",
        plan: || Plan::before_full_disks(4721),
        canary: Canary::None,
    },
    World {
        name: "made-and-gone",
        what: "a new symbolic link is removed before its maker gets the reply",
        plan: || Plan::before_full_disks(15_467),
        canary: Canary::None,
    },
    World {
        name: "emptied-and-filled",
        what: "a batch empties a directory, makes a name in it, and is then restarted",
        plan: || Plan::before_full_disks(21_372),
        canary: Canary::None,
    },
    World {
        name: "unsent",
        what: "the power fails before a client has sent a directory that it made, and another's later change is durable",
        plan: || Plan::before_full_disks(17_016),
        canary: Canary::None,
    },
    World {
        name: "cut-and-changed",
        what: "the mode of a file changes while another program opens and truncates it, and the kernel gets that reply first",
        plan: || Plan::before_full_disks(302_403),
        canary: Canary::None,
    },
    World {
        name: "linked-in-doubt",
        what: "a client loses the reply to a link to an object that another has renamed, and the rename is lost, too",
        plan: || Plan::before_full_disks(8469),
        canary: Canary::None,
    },
    World {
        name: "written-back-meanwhile",
        what: "a client asks for a file's size, and finishes its write-back before the last target replies",
        plan: || Plan::with_many_writers(720),
        canary: Canary::None,
    },
    World {
        name: "mapped-atime",
        what: "a program writes through a mapping after the access time was set",
        plan: || Plan { groups: 0, ..Plan::narrow(2088) },
        canary: Canary::None,
    },
];

/// The power fails at the end; no other faults.
fn powerless(seed: u64) -> Plan {
    Plan { profile: Profile::Power, processes: 12, calls: 160, ..Plan::still(seed) }
}

/// Clients die while many processes share directories; no other faults.
fn mortal(seed: u64) -> Plan {
    let node_faults = NodeFaults { death_every: Some(Duration::from_millis(2)), ..NodeFaults::default() };
    Plan { groups: 16, clients: 3, node_faults, ..Plan::shared(seed) }
}

/// Runs what `settings` ask for; calls `stop` between seeds.
pub fn run(settings: &Settings, say: &mut dyn FnMut(String), stop: &mut dyn FnMut() -> bool) -> Outcome {
    let alone = |fine| Outcome { fine, done: 1 };
    if let Some(name) = &settings.scenario {
        return alone(scenario(name, settings.seed, say));
    }
    if let Some(seed) = settings.seed {
        return alone(one(Plan::draw(seed), Canary::None, &format!("--seed {seed}"), say));
    }
    if settings.coverage {
        stdx::marks::count_here();
    }
    many(settings, say, stop)
}

/// The sum over many seeds.
#[derive(Default)]
struct Sum {
    done: u64,
    events: u64,
    undecided: u64,
    repeated: u64,
    last: u64,
    fell: Counts,
    coverage: Coverage,
    failed: Option<u64>,
}

impl Sum {
    fn add(&mut self, report: &Report) {
        let seed = report.plan.seed;
        if report.failure.is_some() {
            self.failed = Some(self.failed.map_or(seed, |before| before.min(seed)));
            return;
        }
        self.done += 1;
        self.events += report.events;
        self.undecided += report.undecided;
        self.fell.add(&report.faults);
        self.coverage.add(report);
        self.repeated += u64::from(report.repeated.0 + report.repeated.1 > 0);
        self.last = self.last.max(seed);
    }
}

/// Runs seeds in order, several at once, until one fails.
fn many(settings: &Settings, say: &mut dyn FnMut(String), stop: &mut dyn FnMut() -> bool) -> Outcome {
    let end = settings.first_seed.saturating_add(settings.runs);
    let (next, ends) = (AtomicU64::new(settings.first_seed), AtomicBool::new(false));
    let mut sum = Sum::default();
    std::thread::scope(|scope| {
        let (sender, reports) = mpsc::channel();
        for _ in 0..settings.jobs.max(1) {
            let (sender, next, ends) = (sender.clone(), &next, &ends);
            scope.spawn(move || {
                while !ends.load(Relaxed) {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= end || sender.send(run_plan(Plan::draw(seed), Keep::Nothing, Canary::None)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for report in reports {
            sum.add(&report);
            if report.failure.is_some() || stop() {
                ends.store(true, Relaxed);
            }
        }
    });
    let Sum { done, events, undecided, repeated, last, fell, coverage, failed } = sum;
    if let Some(seed) = failed {
        // Run it again with its lines kept.
        one(Plan::draw(seed), Canary::None, &format!("--seed {seed}"), say);
        say(format!("{done} passed, 1 failed"));
        return Outcome { fine: false, done };
    }
    say(format!(
        "seeds {} to {last}: {events} events; requests were sent again in {repeated} of {done} runs",
        settings.first_seed
    ));
    say(format!("faults: {fell}"));
    say(format!("{undecided} histories undecided"));
    if settings.coverage {
        say(coverage.to_string());
        let missed = coverage.missed();
        if !missed.is_empty() {
            say(format!("FAILED. No seed has reached {}", missed.join(", ")));
            return Outcome { fine: false, done };
        }
    }
    say(format!("{done} passed, 0 failed"));
    Outcome { fine: true, done }
}

fn scenario(name: &str, seed: Option<u64>, say: &mut dyn FnMut(String)) -> bool {
    let stories = || scenario::stories().filter(|story| name == "all" || story.name == name);
    if name == "list" {
        for (name, what) in WORLDS.iter().map(|w| (w.name, w.what)).chain(scenario::stories().map(|s| (s.name, s.what)))
        {
            say(format!("{name:<16} {what}"));
        }
        say(format!("{:<16} every story after 'first'", "all"));
        return true;
    }
    let again = format!("--scenario {name}");
    if let Some(world) = WORLDS.iter().find(|world| world.name == name) {
        let plan = (world.plan)();
        let (seed, again) = match seed {
            Some(seed) => (seed, format!("{again} --seed {seed}")),
            None => (plan.seed, again),
        };
        return one(Plan { seed, ..plan }, world.canary, &again, say);
    }
    if stories().next().is_none() {
        say(format!("there is no scenario '{name}'; see: adamant sim --scenario list"));
        return false;
    }
    stories().all(|story| tell(story, &format!("--scenario {}", story.name), say))
}

/// Runs a story once for every step at which a fault can strike.
fn tell(story: &Story, again: &str, say: &mut dyn FnMut(String)) -> bool {
    match story.tell(1) {
        Ok(runs) => {
            say(format!("{}: run {} times, {} events", story.name, runs.times, runs.events));
            true
        }
        Err(wrong) => {
            let trap = wrong.trap.map_or("no fault".to_owned(), |(strike, step)| format!("{strike:?} at step {step}"));
            fails(again, &wrong.lines, &[format!("story '{}', {trap}", story.name), wrong.what], say);
            false
        }
    }
}

/// Prints a failure; the first and the last line have the command that repeats it.
fn fails(again: &str, lines: &[String], what: &[String], say: &mut dyn FnMut(String)) {
    let repeat = format!("adamant sim {again}    # version {}", env!("CARGO_PKG_VERSION"));
    say(format!("FAILED. See it again with: {repeat}"));
    for line in lines {
        say(format!("  {line}"));
    }
    for line in what {
        say(line.clone());
    }
    say(format!("FAILED. See it again with: {repeat}"));
}

/// Runs one plan, and prints the trace if it fails.
fn one(plan: Plan, canary: Canary, again: &str, say: &mut dyn FnMut(String)) -> bool {
    let report = run_plan(plan, Keep::Last(200), canary);
    match &report.failure {
        None => {
            say(summary(&report));
            true
        }
        Some(failure) => {
            fails(again, &report.lines, &[summary(&report), failure.clone()], say);
            false
        }
    }
}

fn summary(report: &Report) -> String {
    format!(
        "seed {} ({}): {} clients, {} metadata and {} object targets, {} events in {:?} of virtual time, {} resends, {} replays, digest {:016x}; faults: {}",
        report.plan.seed,
        report.plan.profile.name(),
        report.plan.clients,
        report.plan.mdts,
        report.plan.osts,
        report.events,
        report.time,
        report.repeated.0,
        report.repeated.1,
        report.digest,
        report.faults
    )
}
