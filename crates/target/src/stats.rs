//! How often what was asked for, and how long it took: of the target, and of each of its clients.
//!
//! A request counts by its opcode, and as the operations that the service says it was ([`crate::Cx::count`]). Times are those
//! from its arrival to its answer, by the time that the driver gave with what the machine handled then: a request that waited
//! for nothing took none.

use core::time::Duration;
use std::collections::BTreeMap;

use proto::{Handle, Opcode, Operation};
use stdx::{Instant, Map};

use crate::jobs::Jobs;
use stdx::tally::{Tallies, Tally, count_line};

/// An operation that a request was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    pub(crate) operation: Operation,
    /// How many bytes it moved, where that is what is counted.
    pub(crate) bytes: Option<u64>,
    /// For which of the request's jobs.
    pub(crate) job: Option<usize>,
}

/// All of a request.
pub(crate) type Counted = Vec<Count>;

/// A target's figures.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    by_opcode: BTreeMap<u16, Tally>,
    operations: Tallies<Operation>,
    /// Those of each client that has done something.
    clients: Map<Handle, Tallies<Operation>>,
    pub(crate) jobs: Jobs,
    pub(crate) reconstructed: u64,
    pub(crate) answered_again: u64,
    /// When counting began, by the wall clock; 0: not known yet.
    pub(crate) since_ns: i64,
    pub(crate) operations_since_ns: i64,
}

impl Stats {
    /// The wall clock is known: counting began with it, if it did not before.
    pub(crate) fn began(&mut self, now_ns: i64) {
        for since_ns in [&mut self.since_ns, &mut self.operations_since_ns] {
            if *since_ns == 0 {
                *since_ns = now_ns;
            }
        }
    }

    /// A request was answered.
    pub(crate) fn count(&mut self, opcode: u16, took: Duration) {
        self.by_opcode.entry(opcode).or_default().add_time(took);
    }

    /// What it was, and of which jobs, by the wall clock. Several operations in one request share its time.
    pub(crate) fn count_operations(
        &mut self,
        client: Handle,
        (counted, jobs): (&Counted, &[String]),
        took: Duration,
        (now, wall_ns): (Instant, i64),
    ) {
        if counted.is_empty() {
            return;
        }
        let timed = counted.iter().filter(|count| count.bytes.is_none()).count();
        let share = took.checked_div(u32::try_from(timed).unwrap_or(u32::MAX)).unwrap_or_default();
        let of_client = self.clients.entry(client).or_default();
        for &Count { operation, bytes, job } in counted {
            let of_job = job.and_then(|job| jobs.get(job)).map(|job| self.jobs.of(job, now, wall_ns));
            for tallies in [&mut self.operations, &mut *of_client].into_iter().chain(of_job) {
                match bytes {
                    Some(bytes) => tallies.of(operation).add(bytes),
                    None => tallies.of(operation).add_time(share),
                }
            }
        }
    }

    /// A client is gone, or what it did is to count from 0 again.
    pub(crate) fn forget(&mut self, client: Handle) {
        self.clients.remove(&client);
    }

    /// One line for each opcode that occurred.
    pub(crate) fn opcodes(&self) -> String {
        let name = |opcode| Opcode::from_raw(opcode).map_or("unknown", Opcode::name);
        let mut text: String =
            self.by_opcode.iter().map(|(opcode, tally)| tally.line(name(*opcode), "usecs")).collect();
        text.push_str(&count_line("reconstructed", self.reconstructed));
        text.push_str(&count_line("answered_again", self.answered_again));
        text
    }

    /// One line for each operation that occurred.
    pub(crate) fn operations(&self) -> String {
        self.operations.lines()
    }

    /// The same of one client.
    pub(crate) fn operations_of(&self, client: Handle) -> String {
        self.clients.get(&client).map_or_else(String::new, Tallies::lines)
    }

    /// Opcodes count from 0 again.
    pub(crate) fn clear(&mut self, now_ns: i64) {
        self.by_opcode.clear();
        (self.reconstructed, self.answered_again, self.since_ns) = (0, 0, now_ns);
    }

    /// Operations do.
    pub(crate) fn clear_operations(&mut self, now_ns: i64) {
        self.operations = Tallies::default();
        self.operations_since_ns = now_ns;
    }
}
