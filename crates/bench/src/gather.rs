//! Collects samples, and makes rows and charts from them, also for a run that ended early.

use std::collections::BTreeMap;

use crate::figures::{Figure, median, ratio};
use crate::places::{ADAMANT, Sample};
use crate::results::{Chart, Row, Series, Shape};

/// Samples by operation, position along the axis, and place.
#[derive(Debug, Default)]
pub struct Gathered {
    samples: BTreeMap<(String, String, String), Vec<Sample>>,
    /// Places in the order in which they first appeared, which is that of legends and columns.
    places: Vec<String>,
}

/// Operation, position along the axis, and place.
pub type Cell<'a> = (&'a str, &'a str, &'a str);

/// Selects one of the figures of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Operations per second.
    Rate,
    /// Microseconds per operation.
    Microseconds,
    /// Microseconds of CPU time of the servers per operation.
    ServerCpu,
}

impl Gathered {
    /// Adds a sample.
    pub fn add(&mut self, what: &str, at: &str, place: &str, sample: Sample) {
        if !self.places.iter().any(|known| known == place) {
            self.places.push(place.to_owned());
        }
        self.samples.entry((what.to_owned(), at.to_owned(), place.to_owned())).or_default().push(sample);
    }

    fn find(&self, what: &str, at: &str, place: &str) -> &[Sample] {
        self.samples.get(&(what.to_owned(), at.to_owned(), place.to_owned())).map_or(&[], Vec::as_slice)
    }

    /// The figure of a place; `None` without samples.
    pub fn figure(&self, what: &str, at: &str, place: &str, measure: Measure) -> Option<Figure> {
        let pick = |sample: &Sample| match measure {
            Measure::Rate => Some(sample.rate),
            Measure::Microseconds => Some(sample.us),
            Measure::ServerCpu => sample.each.map(|each| each.server_cpu_us),
        };
        Figure::of(&self.find(what, at, place).iter().filter_map(pick).collect::<Vec<_>>())
    }

    /// The ratios of the samples of two cells that were taken in the same rounds.
    pub fn ratio(&self, of: Cell<'_>, to: Cell<'_>, pick: fn(&Sample) -> Option<f64>) -> Option<Figure> {
        let [of, to] = [of, to].map(|(what, at, place)| self.find(what, at, place));
        let pairs = of.iter().zip(to).filter_map(|(of, to)| ratio(pick(of)?, pick(to)?));
        Figure::of(&pairs.collect::<Vec<_>>())
    }

    /// The row of `place`, beside the yardsticks that were measured.
    pub fn row(
        &self,
        what: &str,
        at: &str,
        place: &str,
        yardsticks: &[&str],
        measure: Measure,
        label: String,
        unit: &str,
    ) -> Option<Row> {
        let mut row = Row::new(label, unit, self.figure(what, at, place, measure)?);
        for name in yardsticks {
            row = row.beside(name, self.figure(what, at, name, measure));
        }
        let each: Vec<_> = self.find(what, at, place).iter().filter_map(|sample| sample.each).collect();
        if !each.is_empty() {
            row.requests = Some(median(each.iter().map(|each| each.requests).collect()));
            row.client_cpu_us = Some(median(each.iter().map(|each| each.client_cpu_us).collect()));
            row.server_cpu_us = Some(median(each.iter().map(|each| each.server_cpu_us).collect()));
        }
        Some(row)
    }

    /// A chart of rates over `axis`, with a line for each place that has samples. `name` and `title` are free text.
    pub fn lines(&self, what: &str, axis: &[String], name: &str, title: &str, across: &str, up: &str) -> Option<Chart> {
        let series: Vec<Series> = self
            .places
            .iter()
            .map(|place| Series {
                name: place.clone(),
                points: axis.iter().map(|at| self.figure(what, at, place, Measure::Rate)).collect(),
            })
            .filter(|series| series.points.iter().any(Option::is_some))
            .collect();
        (series.iter().any(|series| series.name.starts_with(ADAMANT))).then(|| Chart {
            name: name.to_owned(),
            title: title.to_owned(),
            across: across.to_owned(),
            up: up.to_owned(),
            shape: Shape::Lines,
            places: axis.to_vec(),
            series,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::Each;

    #[test]
    fn rows_and_charts_of_what_there_is() {
        let sample = |rate: f64, requests: Option<f64>| Sample {
            rate,
            us: 1e6 / rate,
            each: requests.map(|requests| Each { requests, client_cpu_us: 1.0, server_cpu_us: 2.0 }),
        };
        let mut gathered = Gathered::default();
        for (rate, requests) in [(100.0, 1.0), (300.0, 3.0), (200.0, 2.0)] {
            gathered.add("create", "1", ADAMANT, sample(rate, Some(requests)));
        }
        gathered.add("create", "1", "tmpfs", sample(400.0, None));
        gathered.add("stat", "1", "tmpfs", sample(400.0, None));
        let row = |what| gathered.row(what, "1", ADAMANT, &["tmpfs", "xfs"], Measure::Rate, "create".into(), "files/s");
        let found = row("create").unwrap();
        assert_eq!((found.figure.median, found.requests, found.server_cpu_us), (200.0, Some(2.0), Some(2.0)));
        assert_eq!((found.yardsticks.len(), found.yardsticks[0].ratio), (1, Some(0.5)));
        assert_eq!(row("stat"), None);
        let rate = |sample: &Sample| Some(sample.rate);
        let of = |place| gathered.ratio(("create", "1", place), ("create", "1", ADAMANT), rate);
        assert_eq!(of("tmpfs").map(|figure| (figure.median, figure.samples)), Some((4.0, 1)), "of the same round");
        assert_eq!(of("xfs"), None);

        let axis = ["1".to_owned(), "2".to_owned()];
        let chart = gathered.lines("create", &axis, "n", "t", "processes", "files/s").unwrap();
        assert_eq!(chart.series.iter().map(|series| &*series.name).collect::<Vec<_>>(), [ADAMANT, "tmpfs"]);
        assert_eq!(chart.series[1].points.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false]);
        assert_eq!(gathered.lines("stat", &axis, "n", "t", "processes", "files/s"), None);
    }
}
