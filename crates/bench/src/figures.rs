//! What is told of figures that were measured several times: median, spread, and the four columns of mdtest's summary.

/// The median of some figures; 0 of none.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    match figures.len() {
        0 => 0.0,
        n if n % 2 == 1 => figures[n / 2],
        n => f64::midpoint(figures[n / 2 - 1], figures[n / 2]),
    }
}

/// How far apart some figures lie, as a part of their median: (greatest - smallest) / median; 0 of none.
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
    /// The standard deviation of the figures themselves (not an estimate for more of them).
    pub deviation: f64,
}

impl Summary {
    /// Of some figures; zeros of none.
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
}
