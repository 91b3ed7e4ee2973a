//! How often what was asked for, and how long it took.

use core::fmt::Write;
use core::time::Duration;
use std::collections::BTreeMap;

use proto::Opcode;

/// One opcode's figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct OpStat {
    samples: u64,
    min_us: u64,
    max_us: u64,
    sum_us: u64,
}

/// A target's figures.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    by_opcode: BTreeMap<u16, OpStat>,
    pub(crate) reconstructed: u64,
    pub(crate) answered_again: u64,
}

impl Stats {
    pub(crate) fn count(&mut self, opcode: u16, took: Duration) {
        let us = took.as_micros() as u64;
        let stat = self.by_opcode.entry(opcode).or_insert(OpStat { min_us: u64::MAX, ..OpStat::default() });
        stat.samples += 1;
        stat.min_us = stat.min_us.min(us);
        stat.max_us = stat.max_us.max(us);
        stat.sum_us += us;
    }

    /// One line for each opcode that occurred, as Lustre's `stats`.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (opcode, stat) in &self.by_opcode {
            let name = Opcode::from_raw(*opcode).map_or("unknown", Opcode::name);
            let OpStat { samples, min_us, max_us, sum_us } = stat;
            let _ = writeln!(text, "{name:<25} {samples} samples [usecs] {min_us} {max_us} {sum_us}");
        }
        let _ = writeln!(text, "{:<25} {} samples [reqs]", "reconstructed", self.reconstructed);
        let _ = writeln!(text, "{:<25} {} samples [reqs]", "answered_again", self.answered_again);
        text
    }

    pub(crate) fn clear(&mut self) {
        *self = Stats::default();
    }
}
