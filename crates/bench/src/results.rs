//! The results of a suite: rows for people, charts, and JSON for scripts.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::figures::{Figure, ratio, short};
use crate::machine::Machine;

/// The same operation measured in the same run on something that limits Adamant, or that users know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Yardstick {
    /// The name.
    pub name: String,
    /// The figure, in the unit of the row.
    pub figure: Figure,
    /// The median of the row divided by this one's.
    pub ratio: Option<f64>,
}

/// The bound that a figure should keep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bound {
    /// How the bound is derived.
    pub is: String,
    /// The value in the unit of the row, from the yardsticks of this run.
    pub value: f64,
    /// Whether the median keeps the bound.
    pub kept: bool,
}

/// A row of the table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The operation, and its parameters.
    pub what: String,
    /// The unit of the figures.
    pub unit: String,
    /// The measured figure.
    pub figure: Figure,
    /// The yardsticks that it is compared with.
    pub yardsticks: Vec<Yardstick>,
    /// The requests that servers ran, for each operation.
    pub requests: Option<f64>,
    /// The CPU time of the mounts for each operation, in microseconds.
    pub client_cpu_us: Option<f64>,
    /// The CPU time of the servers for each operation, in microseconds.
    pub server_cpu_us: Option<f64>,
    /// The bound that it should keep.
    pub bound: Option<Bound>,
}

impl Row {
    /// A row without a comparison.
    pub fn new(what: impl Into<String>, unit: &str, figure: Figure) -> Row {
        Row { what: what.into(), unit: unit.to_owned(), figure, ..Row::default() }
    }

    /// Adds a yardstick, if it was measured.
    #[must_use]
    pub fn beside(mut self, name: &str, figure: Option<Figure>) -> Row {
        if let Some(figure) = figure {
            let ratio = ratio(self.figure.median, figure.median);
            self.yardsticks.push(Yardstick { name: name.to_owned(), figure, ratio });
        }
        self
    }
}

/// How a chart shows its points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// The medians joined by lines, with whiskers from the smallest to the largest figure.
    Lines,
    /// Bars side by side.
    Bars,
}

/// One of the compared things in a chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// A point for each place on the horizontal axis.
    pub points: Vec<Option<Figure>>,
}

/// A chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// The name of its file, without `.svg`.
    pub name: String,
    /// The title above it.
    pub title: String,
    /// The label of the horizontal axis.
    pub across: String,
    /// The label of the vertical axis, with the unit.
    pub up: String,
    /// How it is drawn.
    pub shape: Shape,
    /// The places on the horizontal axis.
    pub places: Vec<String>,
    /// The compared series.
    pub series: Vec<Series>,
}

/// A cell in a column that not every table has.
type Cell = fn(&Row) -> Option<String>;

/// Everything that a run of a suite measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The name of the suite.
    pub suite: String,
    /// What it measures, in a sentence or two.
    pub about: String,
    /// The command that repeats it.
    pub command: String,
    /// The machine.
    pub machine: Machine,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Why the run ended early; the figures are those up to then.
    pub ended_early: Option<String>,
    /// The figures.
    pub rows: Vec<Row>,
    /// What could not be measured on this machine, and why.
    pub not_available: Vec<(String, String)>,
    /// The charts.
    pub charts: Vec<Chart>,
}

impl Results {
    /// The head and the cells of the table. Each yardstick has a column with `figure (ratio)`; empty columns are left out.
    pub fn cells(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let mut names: Vec<&str> = Vec::new();
        for yardstick in self.rows.iter().flat_map(|row| &row.yardsticks) {
            if !names.contains(&&*yardstick.name) {
                names.push(&yardstick.name);
            }
        }
        let mut head: Vec<String> =
            ["WHAT", "UNIT", "MEDIAN", "MIN", "MAX", "SPREAD"].iter().map(ToString::to_string).collect();
        head.extend(names.iter().map(|name| format!("{} (RATIO)", name.to_uppercase())));
        let optional: [(&str, Cell); 5] = [
            ("REQ/OP", |row| row.requests.map(|value| format!("{value:.2}"))),
            ("CLIENT CPU us/OP", |row| row.client_cpu_us.map(short)),
            ("SERVER CPU us/OP", |row| row.server_cpu_us.map(short)),
            ("BOUND", |row| row.bound.as_ref().map(|bound| short(bound.value))),
            ("KEPT", |row| row.bound.as_ref().map(|bound| if bound.kept { "yes" } else { "no" }.to_owned())),
        ];
        let optional: Vec<_> =
            optional.into_iter().filter(|(_, cell)| self.rows.iter().any(|row| cell(row).is_some())).collect();
        head.extend(optional.iter().map(|(name, _)| (*name).to_owned()));
        let rows = self.rows.iter().map(|row| {
            let figure = &row.figure;
            let mut cells = vec![row.what.clone(), row.unit.clone()];
            cells.extend([figure.median, figure.min, figure.max].map(short));
            cells.push(format!("{:.0}%", figure.spread() * 100.0));
            for name in &names {
                let found = row.yardsticks.iter().find(|yardstick| yardstick.name == *name);
                cells.push(found.map_or_else(String::new, |yardstick| {
                    let ratio = yardstick.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
                    format!("{} ({ratio})", short(yardstick.figure.median))
                }));
            }
            cells.extend(optional.iter().map(|(_, cell)| cell(row).unwrap_or_default()));
            cells
        });
        (head, rows.collect())
    }

    /// Writes `SUITE.json` and a file for each chart. Returns the paths of the files.
    ///
    /// # Errors
    /// The file that could not be written, or the chart that could not be drawn.
    pub fn write(&self, out: &Path) -> anyhow::Result<Vec<PathBuf>> {
        std::fs::create_dir_all(out).with_context(|| format!("cannot create '{}'", out.display()))?;
        let mut written = Vec::new();
        let mut put = |name: String, bytes: &[u8]| -> anyhow::Result<()> {
            let path = out.join(name);
            std::fs::write(&path, bytes).with_context(|| format!("cannot write '{}'", path.display()))?;
            written.push(path);
            Ok(())
        };
        put(format!("{}.json", self.suite), &serde_json::to_vec_pretty(self)?)?;
        for chart in &self.charts {
            put(format!("{}.svg", chart.name), crate::chart::draw(chart)?.as_bytes())?;
        }
        Ok(written)
    }

    /// Reads what [`Results::write`] wrote.
    ///
    /// # Errors
    /// The file cannot be read, or does not hold results.
    pub fn read(path: &Path) -> anyhow::Result<Results> {
        let text = std::fs::read(path).with_context(|| format!("cannot read '{}'", path.display()))?;
        serde_json::from_slice(&text).with_context(|| {
            format!("'{}' does not hold figures of this version; measure again, or move it away", path.display())
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Two rows and two charts.
    pub(crate) fn sample() -> Results {
        let figure = |median: f64| Figure { median, min: median * 0.9, max: median * 1.2, samples: 3 };
        let mut row =
            Row::new("create", "us", figure(50.0)).beside("do-nothing", Some(figure(25.0))).beside("xfs", None);
        row.requests = Some(2.0);
        row.bound = Some(Bound { is: "do-nothing + 10 us".into(), value: 35.0, kept: false });
        let lines = Chart {
            name: "meta-create".into(),
            title: "Creates <by> processes".into(),
            across: "processes".into(),
            up: "files/s".into(),
            shape: Shape::Lines,
            places: vec!["1".into(), "2".into()],
            series: vec![
                Series { name: "Adamant".into(), points: vec![Some(figure(10_000.0)), Some(figure(15_000.0))] },
                Series { name: "tmpfs".into(), points: vec![Some(figure(70_000.0)), None] },
            ],
        };
        let bars = Chart { name: "meta-bars".into(), shape: Shape::Bars, ..lines.clone() };
        Results {
            suite: "meta".into(),
            about: "A sample.".into(),
            command: "adamant bench meta".into(),
            machine: Machine { processor: "P & Q".into(), processors: 2, ..Machine::default() },
            rows: vec![row, Row::new("echo", "requests/s", figure(1e6))],
            not_available: vec![("xfs".into(), "mkfs.xfs is missing".into())],
            charts: vec![lines, bars],
            ..Results::default()
        }
    }

    #[test]
    fn json_comes_back_as_it_went() {
        let folder = tempfile::tempdir().unwrap();
        let written = sample().write(folder.path()).unwrap();
        let names: Vec<_> =
            written.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect();
        assert_eq!(names, ["meta.json", "meta-create.svg", "meta-bars.svg"]);
        assert_eq!(Results::read(&written[0]).unwrap(), sample());
        let error = Results::read(&written[1]).unwrap_err().to_string();
        assert!(error.contains("meta-create.svg") && error.contains("measure again"), "{error}");
    }

    #[test]
    fn the_table_has_a_column_for_what_was_measured() {
        let (head, rows) = sample().cells();
        assert_eq!(
            head,
            ["WHAT", "UNIT", "MEDIAN", "MIN", "MAX", "SPREAD", "DO-NOTHING (RATIO)", "REQ/OP", "BOUND", "KEPT"]
        );
        assert_eq!(rows[0], ["create", "us", "50.0", "45.0", "60.0", "30%", "25.0 (2.00)", "2.00", "35.0", "no"]);
        assert_eq!(rows[1][6..], ["", "", "", ""]);
        assert!(rows.iter().all(|row| row.len() == head.len()));
    }
}
