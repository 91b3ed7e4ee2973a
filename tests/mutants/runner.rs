//! Runs seeds and stories with one mutant on, or with all of them watched: `crates/sim/examples/mutants.rs` of the copied
//! sources that `cargo xtask mutants` builds.
//!
//! `mutants watch seeds SEED…`, `mutants watch stories STRIDE`: one line for each, `passed NAME NUMBER…` or `failed NAME`,
//! with the numbers of the mutants whose places it reached.
//! `mutants NUMBER seeds SEED…`, `mutants NUMBER stories STRIDE STORY…`: `begin NAME` and `passed NAME` for each, up to the
//! first that ends with `failed NAME: WHAT`. A machine that panics ends the process after `begin`.

use std::io::Write;

use sim::{Canary, Keep, Plan};
use stdx::mutants;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let watch = arguments[0] == "watch";
    mutants::set(if watch { mutants::WATCH } else { arguments[0].parse().expect("the number of a mutant") });
    match &*arguments[1] {
        "seeds" => {
            for seed in &arguments[2..] {
                let number = seed.parse().expect("a seed");
                if !one(watch, seed, || sim::run_plan(Plan::draw(number), Keep::Nothing, Canary::None).failure) {
                    return;
                }
            }
        }
        "stories" => {
            let stride = arguments[2].parse().expect("a stride");
            let named = |name: &str| arguments.len() == 3 || arguments[3..].iter().any(|wanted| wanted == name);
            for story in sim::stories().filter(|story| named(story.name)) {
                let tell = || {
                    story.tell(stride).err().map(|wrong| match wrong.trap {
                        Some((strike, step)) => format!("({strike:?} at step {step}) {}", wrong.what),
                        None => wrong.what,
                    })
                };
                if !one(watch, story.name, tell) {
                    return;
                }
            }
        }
        other => panic!("neither seeds nor stories: {other}"),
    }
}

/// Whether to go on.
fn one(watch: bool, name: &str, run: impl FnOnce() -> Option<String>) -> bool {
    if !watch {
        say(&format!("begin {name}"));
    }
    let failure = run();
    let reached: String = mutants::take_reached().iter().map(|number| format!(" {number}")).collect();
    match failure {
        None if watch => say(&format!("passed {name}{reached}")),
        None => say(&format!("passed {name}")),
        Some(_) if watch => say(&format!("failed {name}")),
        Some(what) => {
            say(&format!("failed {name}: {}", what.lines().next().unwrap_or_default()));
            return false;
        }
    }
    true
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("a reader");
}
