//! Statistics over repeated measurements: median, extremes, spread, ratios, and the four columns of mdtest's summary.

use serde::{Deserialize, Serialize};

/// The median; 0 without figures.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    match figures.len() {
        0 => 0.0,
        n if n % 2 == 1 => figures[n / 2],
        n => f64::midpoint(figures[n / 2 - 1], figures[n / 2]),
    }
}

/// The smallest figure that at least this fraction of all do not exceed; 0 without figures.
pub fn percentile(mut figures: Vec<f64>, fraction: f64) -> f64 {
    figures.sort_by(f64::total_cmp);
    let rank = (figures.len() as f64 * fraction).ceil() as usize;
    figures.get(rank.clamp(1, figures.len().max(1)) - 1).copied().unwrap_or(0.0)
}

/// The spread as a fraction of the median: (greatest - smallest) / median; 0 without figures.
pub fn spread(figures: &[f64]) -> f64 {
    let summary = Summary::of(figures);
    let median = median(figures.to_vec());
    if median == 0.0 { 0.0 } else { (summary.max - summary.min) / median }
}

/// Greatest, smallest, mean and standard deviation, as the MPI tool `mdtest` prints them.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Summary {
    /// The greatest.
    pub max: f64,
    /// The smallest.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// The standard deviation of the figures themselves (not an estimate for a larger population).
    pub deviation: f64,
}

impl Summary {
    /// The summary of some figures; zeros without any.
    pub fn of(figures: &[f64]) -> Summary {
        if figures.is_empty() {
            return Summary::default();
        }
        let count = figures.len() as f64;
        let mean = figures.iter().sum::<f64>() / count;
        let variance = figures.iter().map(|figure| (figure - mean).powi(2)).sum::<f64>() / count;
        Summary {
            max: figures.iter().copied().fold(f64::MIN, f64::max),
            min: figures.iter().copied().fold(f64::MAX, f64::min),
            mean,
            deviation: variance.sqrt(),
        }
    }
}

/// `figure` divided by `yardstick`, if the yardstick is not zero.
pub fn ratio(figure: f64, yardstick: f64) -> Option<f64> {
    let ratio = figure / yardstick;
    ratio.is_finite().then_some(ratio)
}

/// The summary of several measurements of the same thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The median.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// The number of measurements.
    pub samples: usize,
}

impl Figure {
    /// The summary of some measurements; `None` without any.
    pub fn of(figures: &[f64]) -> Option<Figure> {
        let min = figures.iter().copied().min_by(f64::total_cmp)?;
        let max = figures.iter().copied().max_by(f64::total_cmp)?;
        Some(Figure { median: median(figures.to_vec()), min, max, samples: figures.len() })
    }

    /// The spread as a fraction of the median.
    pub fn spread(&self) -> f64 {
        ratio(self.max - self.min, self.median).unwrap_or(0.0)
    }
}

/// A figure with about three significant digits: `12345`, `123`, `12.3`, `1.23`.
pub fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 99.95 || size == 0.0 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
        assert_eq!(median(vec![]), 0.0);
    }

    #[test]
    fn percentiles_are_figures_that_were_measured() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(hundred.clone(), 0.99), 99.0);
        assert_eq!(percentile(hundred, 0.0), 1.0);
        assert_eq!(percentile(vec![3.0], 0.99), 3.0);
        assert_eq!(percentile(vec![], 0.99), 0.0);
    }

    #[test]
    fn spreads_are_parts_of_the_median() {
        assert_eq!(spread(&[90.0, 100.0, 110.0]), 0.2);
        assert_eq!(spread(&[]), 0.0);
    }

    #[test]
    fn summaries_have_the_deviation_of_the_figures_themselves() {
        let summary = Summary::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!(summary, Summary { max: 9.0, min: 2.0, mean: 5.0, deviation: 2.0 });
        assert_eq!(Summary::of(&[]), Summary::default());
    }

    #[test]
    fn extremes_and_spread() {
        let figure = Figure::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!(figure, Figure { median: 2.0, min: 1.0, max: 3.0, samples: 3 });
        assert_eq!(figure.spread(), 1.0);
        assert_eq!(Figure::of(&[]), None);
        assert_eq!(Figure::of(&[0.0]).unwrap().spread(), 0.0);
    }

    #[test]
    fn a_ratio_to_nothing_is_none() {
        assert_eq!(ratio(1.0, 2.0), Some(0.5));
        assert_eq!(ratio(1.0, 0.0), None);
        assert_eq!(ratio(0.0, 0.0), None);
    }

    #[test]
    fn three_digits_count() {
        for (value, text) in [(12345.6, "12346"), (123.4, "123"), (12.34, "12.3"), (1.234, "1.23"), (0.0, "0")] {
            assert_eq!(short(value), text);
        }
    }
}
