//! What `adamant sim` runs: one seed, many seeds, or a named scenario.
//!
//! A run that fails says first and last how to see it again.

use crate::plan::Plan;
use crate::run::{Report, run as run_plan};
use crate::trace::Keep;
use crate::world::Canary;

/// What to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This seed only.
    pub seed: Option<u64>,
    /// How many seeds.
    pub runs: u64,
    /// A named scenario; `list` lists them.
    pub scenario: Option<String>,
    /// The first of many seeds.
    pub first_seed: u64,
}

/// A world with a name.
struct Scenario {
    name: &'static str,
    what: &'static str,
    seed: u64,
    canary: Canary,
}

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "canary",
        what: "a world that swallows changes and answers success: it must fail, to prove that the alarm rings",
        seed: 1,
        canary: Canary::Swallow,
    },
    Scenario { name: "first", what: "the first seed, as an example", seed: 1, canary: Canary::None },
    Scenario {
        name: "cut-lost",
        what: "a client unmounts while an object target that answered its truncate restarts",
        seed: 1125,
        canary: Canary::None,
    },
    Scenario {
        name: "removed-open",
        what: "a client removes a file that it has written and another has open",
        seed: 1958,
        canary: Canary::None,
    },
    Scenario {
        name: "removed-times",
        what: "the same, and the time of the last write is looked at",
        seed: 1017,
        canary: Canary::None,
    },
    Scenario {
        name: "set-group-id",
        what: "somebody outside the group writes to a file with set-group-id and without execution by the group",
        seed: 535,
        canary: Canary::None,
    },
    Scenario {
        name: "mapped-atime",
        what: "a program writes through a mapping after the access time was set",
        seed: 2088,
        canary: Canary::None,
    },
];

/// Runs; `stop` is asked between seeds. True: nothing is wrong.
pub fn run(settings: &Settings, say: &mut dyn FnMut(String), stop: &mut dyn FnMut() -> bool) -> bool {
    if let Some(name) = &settings.scenario {
        return scenario(name, say);
    }
    if let Some(seed) = settings.seed {
        return one(seed, Canary::None, &format!("--seed {seed}"), say);
    }
    let (mut done, mut events, mut faults) = (0, 0, 0);
    for seed in settings.first_seed..settings.first_seed.saturating_add(settings.runs) {
        if done > 0 && stop() {
            break;
        }
        let report = run_plan(Plan::draw(seed), Keep::Nothing, Canary::None);
        if report.failure.is_some() {
            // Again, with its lines.
            one(seed, Canary::None, &format!("--seed {seed}"), say);
            say(format!("{done} passed, 1 failed"));
            return false;
        }
        done += 1;
        events += report.events;
        faults += u64::from(report.repeated.0 + report.repeated.1 > 0);
    }
    say(format!(
        "seeds {} to {}: {events} events; requests were sent again in {faults} of {done} runs",
        settings.first_seed,
        settings.first_seed + done.max(1) - 1
    ));
    say(format!("{done} passed, 0 failed"));
    true
}

fn scenario(name: &str, say: &mut dyn FnMut(String)) -> bool {
    if name == "list" {
        for scenario in SCENARIOS {
            say(format!("{:<12} {}", scenario.name, scenario.what));
        }
        return true;
    }
    match SCENARIOS.iter().find(|scenario| scenario.name == name) {
        Some(scenario) => one(scenario.seed, scenario.canary, &format!("--scenario {name}"), say),
        None => {
            say(format!("there is no scenario '{name}'; see: adamant sim --scenario list"));
            false
        }
    }
}

/// One run, told in full if it fails.
fn one(seed: u64, canary: Canary, again: &str, say: &mut dyn FnMut(String)) -> bool {
    let repeat = format!("adamant sim {again}    # version {}", env!("CARGO_PKG_VERSION"));
    let report = run_plan(Plan::draw(seed), Keep::Last(200), canary);
    match &report.failure {
        None => {
            say(summary(&report));
            true
        }
        Some(failure) => {
            say(format!("FAILED. See it again with: {repeat}"));
            for line in &report.lines {
                say(format!("  {line}"));
            }
            say(summary(&report));
            say(failure.clone());
            say(format!("FAILED. See it again with: {repeat}"));
            false
        }
    }
}

fn summary(report: &Report) -> String {
    format!(
        "seed {} ({}): {} clients, {} object targets, {} events in {:?} of virtual time, {} resends, {} replays, digest {:016x}",
        report.plan.seed,
        report.plan.profile.name(),
        report.plan.clients,
        report.plan.osts,
        report.events,
        report.time,
        report.repeated.0,
        report.repeated.1,
        report.digest
    )
}
