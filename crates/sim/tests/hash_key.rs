//! The behaviour of the machines must not depend on the key of their hash tables: it differs in each process, so a restarted
//! target has another key than before.

use std::process::Command;

use sim::{Canary, Keep, Plan};

/// Set in a child process of this program: the key that it uses.
const KEY: &str = "SIM_HASH_KEY";
const SEEDS: core::ops::Range<u64> = 1..25;

/// Not a test of its own: the body of the processes that [`runs_are_the_same_under_every_hash_key`] starts.
#[test]
fn digests() {
    let Some(key) = std::env::var(KEY).ok().and_then(|key| key.parse::<u64>().ok()) else { return };
    assert!(stdx::set_hash_key([key, !key]));
    for seed in SEEDS {
        let report = sim::run_plan(Plan::draw(seed), Keep::Nothing, Canary::None);
        println!("seed {seed}: {:x} {:?}", report.digest, report.failure);
    }
}

#[test]
fn runs_are_the_same_under_every_hash_key() {
    let under = |key: u64| {
        let program = std::env::current_exe().unwrap();
        let run = Command::new(program).args(["--exact", "digests", "--nocapture"]).env(KEY, key.to_string()).output();
        let output = String::from_utf8(run.unwrap().stdout).unwrap();
        output.lines().filter(|line| line.starts_with("seed ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let (one, other) = (under(1), under(2));
    assert_eq!(one.len(), SEEDS.count(), "{one:#?}");
    assert_eq!(one, other);
}
