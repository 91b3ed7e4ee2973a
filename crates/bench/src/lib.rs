//! Benchmarks that print ratios to yardsticks measured in the same run.
//!
//! - [`nothing`]: a FUSE file system that does nothing with metadata and keeps data in a local file: what the kernel allows.
//! - [`echo`]: a request and its reply over the protocol's framing: what the network allows.
//! - [`load`]: what programs do, timed.
//! - [`cluster`]: servers and a mount in processes of their own.
//! - [`single`]: one process at work, against both yardsticks.
//!
//! A figure without its yardstick says nothing on a busy machine, so each round measures all of them in turn, and what is
//! printed is the median over the rounds.

pub mod cluster;
pub mod echo;
pub mod load;
pub mod nothing;
pub mod single;

/// The median of some figures; 0 of none.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    match figures.len() {
        0 => 0.0,
        n if n % 2 == 1 => figures[n / 2],
        n => f64::midpoint(figures[n / 2 - 1], figures[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn medians() {
        assert_eq!(super::median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(super::median(vec![4.0, 1.0]), 2.5);
        assert_eq!(super::median(vec![]), 0.0);
    }
}
