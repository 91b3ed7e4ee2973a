//! Runs seeds and prints the results: `seeds FIRST COUNT`, or `seeds SEED` with every line of its trace. `seeds FIRST COUNT KIND`
//! runs only those seeds whose plan has this kind of disturbance, a field of its debug form. `seeds stories PREFIX` tells the stories
//! with this prefix.

use std::collections::BTreeMap;
use std::time::Instant;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<u64> = words.iter().filter_map(|word| word.parse().ok()).collect();
    let kind = words.get(numbers.len()).cloned().unwrap_or_default();
    if let [word, prefix] = &words[..]
        && word == "stories"
    {
        for story in sim::stories().filter(|story| story.name.starts_with(prefix)) {
            match story.tell(1) {
                Ok(counts) => println!("{}: {counts:?}", story.name),
                Err(failure) => println!("{}: {:?} {}", story.name, failure.trap, failure.what),
            }
        }
        return;
    }
    match numbers[..] {
        [seed] => {
            let report = sim::run_plan(sim::Plan::draw(seed), sim::Keep::Print, sim::Canary::None);
            println!("{:#?}", report.plan);
            println!("{:?} {:?} digest {:x}", report.failure, report.faults, report.digest);
        }
        [first, count] => {
            stdx::marks::count_here();
            let start = Instant::now();
            let mut marks: BTreeMap<&str, u64> = BTreeMap::new();
            let (mut failed, mut runs, mut undecided, mut fell) = (0, 0, 0, sim::Counts::default());
            for seed in first..first + count {
                let plan = sim::Plan::draw(seed);
                if !kind.is_empty()
                    && !format!("{:?}", plan.disturbances).contains(&format!("{kind}: Some"))
                    && !format!("{:?}", plan.disturbances).contains(&format!("{kind}: true"))
                {
                    continue;
                }
                let report = sim::run_plan(plan, sim::Keep::Nothing, sim::Canary::None);
                runs += 1;
                for (mark, times) in &report.marks {
                    *marks.entry(*mark).or_default() += times;
                }
                if report.faults.longest_wait_ms > 45_000 {
                    println!("{seed}: a call waited {} ms; {}", report.faults.longest_wait_ms, report.faults);
                }
                fell.add(&report.faults);
                undecided += report.undecided;
                if let Some(what) = report.failure {
                    failed += 1;
                    println!("{seed} {}: {what}", report.plan.profile.name());
                }
            }
            println!("{failed} of {runs} failed, {undecided} undecided, in {:?}; what fell: {fell}", start.elapsed());
            for (mark, times) in marks.iter().filter(|(mark, _)| mark.starts_with("cross.")) {
                println!("  {mark} {times}");
            }
            let missed = sim::all_marks().filter(|(mark, why)| why.is_empty() && !marks.contains_key(mark));
            println!("  never: {}", missed.map(|(mark, _)| mark).collect::<Vec<_>>().join(" "));
        }
        _ => println!("seeds FIRST COUNT [KIND] | seeds SEED"),
    }
}
