//! The alarm of the simulated cluster rings: a planted fault is found.

use std::time::Duration;

use e2e::{Story, adamant};

#[test]
fn the_canary_fails_and_says_how_to_repeat_it() {
    let story = Story::begin("the canary", Duration::from_secs(120));
    let outcome = adamant(["sim", "--scenario", "canary"]).run();
    assert_eq!(outcome.code, Some(1), "{outcome}");
    assert!(!outcome.stderr.contains("panicked"), "{outcome}");
    assert!(outcome.stdout.contains("adamant sim"), "the command that repeats it is missing: {outcome}");
    story.note("failed, as it must");
}

#[test]
fn a_few_seeds_pass_and_one_seed_repeats() {
    let story = Story::begin("a few seeds", Duration::from_secs(180));
    adamant(["sim", "--runs", "10"]).ok();
    let once = adamant(["sim", "--seed", "1"]).ok();
    let again = adamant(["sim", "--seed", "1"]).ok();
    assert_eq!(once, again, "the same seed must print the same");
    story.note("same seed, same run");
}
