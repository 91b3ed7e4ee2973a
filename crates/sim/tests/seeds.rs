//! Fixed seeds, determinism, and the proof that the oracles work.

use sim::{Canary, Counts, Keep, Plan, Profile, Report};

fn run(seed: u64) -> Report {
    sim::run_plan(Plan::draw(seed), Keep::Nothing, Canary::None)
}

#[test]
fn fixed_seeds_of_every_profile_pass() {
    for profile in Profile::ALL {
        let seeds = (1..).filter(|&seed| Plan::draw(seed).profile == profile).take(4);
        for seed in seeds {
            let report = run(seed);
            assert_eq!(report.failure, None, "see it again with: adamant sim --seed {seed}");
        }
    }
}

/// With a Byzantine client the others see what they would see without it. In the first of these seeds it requested locks while
/// the others replayed theirs, and got them evicted. In the last, some clients list many files that another has made, over a
/// network on which a burst of frames breaks the connection.
#[test]
fn seeds_with_a_liar_pass() {
    let seeds = [1388, 1110008688, 2259896275842294];
    for seed in seeds.into_iter().chain((1..).filter(|&seed| Plan::draw(seed).liar).take(8)) {
        let plan = Plan { liar: true, ..Plan::draw(seed) };
        let report = sim::run_plan(plan, Keep::Nothing, Canary::None);
        assert_eq!(report.failure, None, "see it again with: adamant sim --seed {seed}");
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 1..12 {
        let (first, second) = (run(seed), run(seed));
        assert_eq!(
            (first.digest, first.events, first.time),
            (second.digest, second.events, second.time),
            "seed {seed}"
        );
    }
    assert_ne!(run(1).digest, run(2).digest);
}

#[test]
fn faults_strike_and_requests_are_repeated() {
    let reports: Vec<Report> = (1..60).map(run).collect();
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    assert!(sum(|report| report.faults.lost) > 0);
    assert!(sum(|report| report.faults.doubled) > 0);
    assert!(sum(|report| report.faults.cuts) > 0);
    assert!(sum(|report| report.faults.crashes) > 0);
    assert!(sum(|report| report.faults.deaths) > 0);
    assert!(sum(|report| report.faults.power) > 0);
    assert!(sum(|report| report.faults.fills) > 0);
    assert!(sum(|report| report.faults.crashes_in_start) > 0);
    assert!(sum(|report| report.faults.crashes_in_recovery) > 0);
    assert!(sum(|report| report.faults.crashes_together) > 0);
    assert!(sum(|report| report.repeated.0) > 0, "nothing was sent again");
    assert!(sum(|report| report.repeated.1) > 0, "nothing was replayed");
}

/// Partitions, evictions, acts of administrators, failing disks, clocks, named sites: each occurs, and none too often for the
/// others.
#[test]
fn the_world_is_disturbed() {
    let reports: Vec<Report> = (1..140).map(run).collect();
    let mut all = Counts::default();
    reports.iter().for_each(|report| all.add(&report.faults));
    for (what, count) in [
        ("partitions", all.partitions),
        ("evictions", all.evictions),
        ("acts", all.acts),
        ("unmounts", all.unmounts),
        ("I/O errors", all.io_errors),
        ("damaged records", all.damaged),
        ("stopped targets", all.stops),
        ("steps of clocks", all.clock_steps),
        ("sites", all.sites),
    ] {
        assert!(count > 0, "no {what} in: {all}");
    }
    assert!(reports.iter().filter(|report| report.plan.disturbances == Default::default()).count() > 5);
}

/// Every number of clients, one slot and many, and as many concurrent calls as slots.
#[test]
fn plans_are_as_wide_as_they_say() {
    let plans: Vec<Plan> = (1..2_000).map(Plan::draw).collect();
    for clients in 1..=8 {
        assert!(plans.iter().any(|plan| plan.clients == clients), "no run has {clients} clients");
    }
    for slots in [0, 1, 2, 7, 32] {
        assert!(plans.iter().any(|plan| plan.slots[0] == slots && plan.max_mod_rpcs >= slots), "no client has {slots}");
    }
    assert!(plans.iter().any(|plan| plan.processes >= 32 && plan.slots[0] == 32 && plan.max_mod_rpcs >= 32));
}

#[test]
fn fixed_defects_stay_fixed() {
    for name in sim::fixed_defects() {
        let settings =
            sim::Settings { seed: None, runs: 1, scenario: Some(name.into()), first_seed: 1, jobs: 1, coverage: false };
        assert!(sim::run(&settings, &mut |_| {}, &mut || false).fine, "see it with: adamant sim --scenario {name}");
    }
}

#[test]
fn the_canary_is_found() {
    let settings =
        sim::Settings { seed: None, runs: 1, scenario: Some("canary".into()), first_seed: 1, jobs: 1, coverage: false };
    let mut lines = Vec::new();
    assert!(!sim::run(&settings, &mut |line| lines.push(line), &mut || false).fine);
    assert!(lines.first().is_some_and(|line| line.contains("adamant sim --scenario canary")));
    assert!(lines.last().is_some_and(|line| line.contains("adamant sim --scenario canary")));
}
