//! Operations within one metadata target: beside changes over two, and on file systems with one and with two targets.

use super::bed::Bed;
use super::{FEW, Size, at_least};
use crate::figures::Figure;
use crate::gather::{Gathered, Measure};
use crate::load::Task;
use crate::ops::Op;
use crate::places::{Each, Sample};
use crate::results::{Bound, Results, Row};

const CREATE: &str = "create on one of two MDTs";
const ALONE: &str = "without cross changes";
const BESIDE: &str = "beside cross changes";
const CHANGES: &str = "cross changes beside the creates";
const OPERATION: &str = "create, stat, remove within one MDT";
const ONE: &str = "file system of 1 MDT";
const TWO: &str = "file system of 2 MDTs";

/// Changes a second over both targets, by a client of its own.
const CHANGES_PER_SECOND: u32 = 1000;
/// Names that these changes use in turn.
const NAMES: u64 = 10_000;
/// The rate of creates beside these changes relative to the rate without.
const BESIDE_BOUND: f64 = 0.8;
/// The fraction by which the processor time of a local operation may differ between the file systems.
const SAME_BOUND: f64 = 0.03;

/// Measures both comparisons.
pub(super) fn measure(bed: &mut Bed<'_>, size: &Size, gathered: &mut Gathered) -> anyhow::Result<()> {
    let Some(two) = bed.site(2) else { return Ok(()) };
    bed.step("creates beside cross changes")?;
    beside(bed, size, two, gathered)?;
    let Some(one) = bed.site(1) else { return Ok(()) };
    bed.step("local operations, 1 and 2 MDTs")?;
    for turn in 0..size.turns {
        // Each comes first in turn, so that a drift of the machine's speed counts for both.
        let mut sites = [(one, ONE), (two, TWO)];
        sites.rotate_left(turn % 2);
        for (site, place) in sites {
            gathered.add(OPERATION, "", place, local(bed, size, site)?);
        }
    }
    Ok(())
}

fn homes(bed: &mut Bed<'_>, site: usize) -> anyhow::Result<Vec<String>> {
    bed.directories(site, &vec![vec![0]; FEW])
}

fn beside(bed: &mut Bed<'_>, size: &Size, site: usize, gathered: &mut Gathered) -> anyhow::Result<()> {
    let homes = homes(bed, site)?;
    let create = bed.tasks(site, &homes, &Op::Create { size: 0 }, size.files, 0);
    let remove = bed.tasks(site, &homes, &Op::Remove, size.files, 0);
    gathered.add(CREATE, "", ALONE, bed.phase(site, &create)?.0);
    bed.phase(site, &remove)?;
    let place = bed.directories(site, &[vec![0]])?.remove(0);
    let mut order = bed.order(site, FEW, Op::MakeAndRemoveDirectory { mdt: 1 });
    order.per_second = Some(CHANGES_PER_SECOND / order.op.weight() as u32);
    let changes = Task::of_order(order, &place, "x".to_owned(), NAMES);
    let (sample, took) = bed.phase_beside(site, &create, changes)?;
    // The servers' requests and processor time are those of both loads.
    gathered.add(CREATE, "", BESIDE, Sample { each: None, ..sample });
    gathered.add(CHANGES, "", BESIDE, super::bed::of_rate(took.operations as f64 / took.seconds.max(1e-9)));
    bed.phase(site, &remove)?;
    Ok(())
}

/// Creates, looks at and removes files on the first target; the means over the three.
fn local(bed: &mut Bed<'_>, size: &Size, site: usize) -> anyhow::Result<Sample> {
    let homes = homes(bed, site)?;
    let mut samples = Vec::new();
    for (op, stride) in [(Op::Create { size: 0 }, 0), (Op::Stat, 1), (Op::Remove, 1)] {
        let tasks = bed.tasks(site, &homes, &op, size.files, stride);
        samples.push(bed.phase(site, &tasks)?.0);
    }
    let count = samples.len() as f64;
    let mean = |pick: fn(&Each) -> f64| {
        samples.iter().filter_map(|sample| sample.each.as_ref().map(pick)).sum::<f64>() / count
    };
    let us = samples.iter().map(|sample| sample.us).sum::<f64>() / count;
    let each = Each {
        requests: mean(|each| each.requests),
        client_cpu_us: mean(|each| each.client_cpu_us),
        server_cpu_us: mean(|each| each.server_cpu_us),
    };
    Ok(Sample { rate: 1e6 / us.max(1e-9), us, each: Some(each) })
}

pub(super) fn show(gathered: &Gathered, results: &mut Results) {
    let rate = |sample: &Sample| Some(sample.rate);
    let cpu = |sample: &Sample| sample.each.map(|each| each.server_cpu_us);
    for place in [ALONE, BESIDE] {
        let label = format!("{CREATE}, {place}");
        results.rows.extend(gathered.row(CREATE, "", place, &[], Measure::Rate, label, "files/s"));
    }
    let figure = gathered.figure(CHANGES, "", BESIDE, Measure::Rate);
    results.rows.extend(figure.map(|figure| Row::new(CHANGES, "changes/s", figure)));
    let figure = gathered.ratio((CREATE, "", BESIDE), (CREATE, "", ALONE), rate);
    let label = format!("{CREATE}: rate, {BESIDE} over {ALONE}");
    results.rows.extend(figure.map(|figure| at_least(label, figure, BESIDE_BOUND)));
    for place in [ONE, TWO] {
        let label = format!("{OPERATION}, {place}");
        results.rows.extend(gathered.row(OPERATION, "", place, &[], Measure::Rate, label, "operations/s"));
    }
    let figure = gathered.ratio((OPERATION, "", TWO), (OPERATION, "", ONE), cpu);
    results.rows.extend(figure.map(same));
}

/// The processor time on two targets relative to one, which should be the same.
fn same(figure: Figure) -> Row {
    let kept = (figure.median - 1.0).abs() <= SAME_BOUND;
    let bound = Bound { is: format!("1 ± {SAME_BOUND}"), value: 1.0, kept };
    let label = format!("{OPERATION}: processor time of the MDTs, 2 over 1");
    Row { bound: Some(bound), ..Row::new(label, "times", figure) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_neither_more_nor_less() {
        let kept = |median| {
            let row = same(Figure { median, min: median, max: median, samples: 1 });
            row.bound.is_some_and(|bound| bound.kept)
        };
        assert_eq!([0.96, 0.98, 1.0, 1.02, 1.04].map(kept), [false, true, true, true, false]);
    }
}
