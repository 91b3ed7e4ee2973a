//! Statistics of requests and operations: counts and times, for the target and for each of its clients.
//!
//! A request counts by its opcode, and as the operations that the service reports for it ([`crate::Cx::count`]). Times
//! run from arrival to reply by the driver's clock of the handled events, so a request that never waited took no time.

use core::time::Duration;
use std::collections::BTreeMap;

use proto::{Handle, Opcode, Operation};
use stdx::{Instant, Map};

use crate::jobs::Jobs;
use stdx::tally::{self, Tallies, Tally, count_line};

/// An operation that a request performed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    pub(crate) operation: Operation,
    /// Bytes moved, for operations that count bytes.
    pub(crate) bytes: Option<u64>,
    /// Index of its job among the request's jobs.
    pub(crate) job: Option<usize>,
}

/// All operations of a request.
pub(crate) type Counted = Vec<Count>;

/// Statistics of a target.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    by_opcode: BTreeMap<u16, Tally>,
    operations: Tallies<Operation>,
    /// By client, for clients with any operation.
    clients: Map<Handle, Tallies<Operation>>,
    pub(crate) jobs: Jobs,
    pub(crate) reconstructed: u64,
    pub(crate) answered_again: u64,
    /// Start of counting by the wall clock; 0: not known yet.
    pub(crate) since_ns: i64,
    pub(crate) operations_since_ns: i64,
    /// How long groups took from the moment when they were closed until they were durable.
    pub(crate) commits: Tally,
    /// How many records they changed.
    pub(crate) commit_records: Tally,
    pub(crate) commits_since_ns: i64,
}

impl Stats {
    /// The wall clock became known: it is the start of counting, unless there is one.
    pub(crate) fn began(&mut self, now_ns: i64) {
        for since_ns in [&mut self.since_ns, &mut self.operations_since_ns, &mut self.commits_since_ns] {
            if *since_ns == 0 {
                *since_ns = now_ns;
            }
        }
    }

    /// A request was answered.
    pub(crate) fn count(&mut self, opcode: u16, took: Duration) {
        self.by_opcode.entry(opcode).or_default().add_time(took);
    }

    /// Counts the operations of a request, by client and by job. Several operations in one request share its time.
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

    /// Drops a client's statistics.
    pub(crate) fn forget(&mut self, client: Handle) {
        self.clients.remove(&client);
    }

    /// Text with one line for each opcode that occurred.
    pub(crate) fn opcodes(&self) -> String {
        let name = |opcode| Opcode::from_raw(opcode).map_or("unknown", Opcode::name);
        let mut text: String =
            self.by_opcode.iter().map(|(opcode, tally)| tally.line(name(*opcode), "usecs")).collect();
        text.push_str(&count_line("reconstructed", self.reconstructed));
        text.push_str(&count_line("answered_again", self.answered_again));
        text
    }

    /// Text with one line for each operation that occurred.
    pub(crate) fn operations(&self) -> String {
        self.operations.lines()
    }

    /// Text with one line for each operation of one client.
    pub(crate) fn operations_of(&self, client: Handle) -> String {
        self.clients.get(&client).map_or_else(String::new, Tallies::lines)
    }

    /// Resets the counts of opcodes.
    pub(crate) fn clear(&mut self, now_ns: i64) {
        self.by_opcode.clear();
        (self.reconstructed, self.answered_again, self.since_ns) = (0, 0, now_ns);
    }

    /// Text with a line for the time of commits and one for the records in them.
    pub(crate) fn commits_text(&self, now_ns: i64) -> String {
        let lines = self.commits.line("commit", "usecs") + &self.commit_records.line("records", "recs");
        tally::head(now_ns, self.commits_since_ns) + &lines
    }

    /// Resets the statistics of commits.
    pub(crate) fn clear_commits(&mut self, now_ns: i64) {
        (self.commits, self.commit_records, self.commits_since_ns) = (Tally::default(), Tally::default(), now_ns);
    }

    /// Resets the counts of operations.
    pub(crate) fn clear_operations(&mut self, now_ns: i64) {
        self.operations = Tallies::default();
        self.operations_since_ns = now_ns;
    }
}
