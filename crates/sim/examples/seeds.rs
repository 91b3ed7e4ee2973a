//! Runs seeds and prints what came of them: `seeds FIRST COUNT`, or `seeds SEED` with every line of its trace.

use std::time::Instant;

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    match numbers[..] {
        [seed] => {
            let report = sim::run_plan(sim::Plan::draw(seed), sim::Keep::Print, sim::Canary::None);
            println!("{:#?}", report.plan);
            println!("{:?} {:?} digest {:x}", report.failure, report.faults, report.digest);
        }
        [first, count] => {
            let start = Instant::now();
            let mut failed = 0;
            let mut coverage = sim::Coverage::default();
            for seed in first..first + count {
                let report = sim::run_plan(sim::Plan::draw(seed), sim::Keep::Nothing, sim::Canary::None);
                coverage.add(&report);
                if let Some(what) = report.failure {
                    failed += 1;
                    println!("{seed} {}: {what}", report.plan.profile.name());
                }
            }
            println!("{coverage}");
            println!("{failed} of {count} failed in {:?}", start.elapsed());
        }
        _ => println!("seeds FIRST COUNT | seeds SEED"),
    }
}
