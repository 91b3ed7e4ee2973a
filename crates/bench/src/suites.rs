//! The experiments. Each measures its yardsticks in the same run, in turn with Adamant.

pub mod ceiling;
mod chores;
pub mod mdts;
pub mod meta;
pub mod millions;
pub mod native;
pub mod recovery;
pub mod slots;
pub mod smallfile;

use std::time::Instant;

use crate::machine::Machine;
use crate::results::Results;

/// Runs a suite: `work` fills in the results, and an error ends the run with the results so far.
fn finish(suite: &str, about: &str, command: &str, work: impl FnOnce(&mut Results) -> anyhow::Result<()>) -> Results {
    let mut results = Results {
        suite: suite.to_owned(),
        about: about.to_owned(),
        command: command.to_owned(),
        machine: Machine::current(),
        ..Results::default()
    };
    let start = Instant::now();
    if let Err(error) = work(&mut results) {
        results.ended_early = Some(format!("{error:#}"));
    }
    results.seconds = start.elapsed().as_secs_f64();
    results
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_was_found_before_an_error_stays() {
        let figure = crate::figures::Figure::default();
        let results = super::finish("x", "", "", |results| {
            results.rows.push(crate::results::Row::new("first", "us", figure));
            anyhow::bail!("the disk is full")
        });
        assert_eq!(results.rows.len(), 1);
        assert_eq!(results.ended_early.as_deref(), Some("the disk is full"));
    }
}
