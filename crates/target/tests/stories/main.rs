//! A small world around a target: clients, connections that break, a server that crashes, and an oracle.

mod faults;
mod keys;
mod ledger;
mod old_store;
mod recovery;
mod slots;
mod story;
mod world;

use stdx::marks;
use world::{Faults, World};

/// Runs one world to its end and checks it.
fn run(seed: u64, faults: Faults) -> World {
    let mut world = World::new(seed, faults);
    world.run();
    world.check();
    world
}

fn seeds(from: u64, count: u64, faults: Faults) {
    // For a longer search: ADAMANT_SEEDS=20 runs twenty times as many.
    let times = option_env!("ADAMANT_SEEDS").and_then(|times| times.parse().ok()).unwrap_or(1);
    for seed in from..from + count * times {
        let result = std::panic::catch_unwind(|| drop(run(seed, faults)));
        if let Err(panic) = result {
            eprintln!("replay with: ADAMANT_SEED={seed} cargo test -p target one_seed, faults {faults:?}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn without_faults_everything_happens_once() {
    seeds(0, 50, Faults::NONE);
}

#[test]
fn lost_doubled_and_late_messages_change_nothing() {
    seeds(1000, 700, Faults::NETWORK);
}

#[test]
fn crashes_between_any_two_commits_lose_nothing() {
    seeds(2000, 700, Faults::CRASHES);
}

#[test]
fn all_faults_at_once_are_survived() {
    seeds(4000, 1500, Faults::ALL);
    // The rare branches were all reached: a world in which nothing goes wrong proves nothing.
    let reached = [
        marks::count("target.answer_again"),
        marks::count("target.attached"),
        marks::count("target.dropped"),
        marks::count("target.held"),
        marks::count("target.reconstruct"),
        marks::count("target.recovered"),
        marks::count("target.reply_nowhere"),
        marks::count("exports.replay_missing"),
        marks::count("import.old_link"),
        marks::count("import.replay"),
        marks::count("import.resume_replay"),
        marks::count("import.timeout"),
    ];
    assert!(reached.iter().all(|hits| *hits > 0), "{reached:?}");
}

#[test]
fn one_seed() {
    if let Some(seed) = option_env!("ADAMANT_SEED").and_then(|seed| seed.parse().ok()) {
        run(seed, Faults::ALL);
    }
}
