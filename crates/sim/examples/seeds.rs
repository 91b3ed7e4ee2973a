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
            let (mut failed, mut undecided) = (0, 0);
            for seed in first..first + count {
                let report = sim::run_plan(sim::Plan::draw(seed), sim::Keep::Nothing, sim::Canary::None);
                undecided += report.undecided;
                if report.undecided > 0 {
                    println!("{seed} {}: {} undecided", report.plan.profile.name(), report.undecided);
                }
                if std::env::var("LONGEST").is_ok()
                    && let Some((took, call)) = &report.longest
                {
                    println!("LONG {} {seed} {} {call}", took.as_millis(), report.plan.profile.name());
                }
                if let Some(what) = report.failure {
                    failed += 1;
                    println!("{seed} {}: {what}", report.plan.profile.name());
                }
            }
            println!("{failed} of {count} failed, {undecided} undecided, in {:?}", start.elapsed());
        }
        _ => println!("seeds FIRST COUNT | seeds SEED"),
    }
}
