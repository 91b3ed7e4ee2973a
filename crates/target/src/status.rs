//! The text of the parameter `recovery_status`.

use core::fmt::Write;

use rpc::server::{Export, Phase, Status, WindowState};
use stdx::Instant;

use crate::boot::Stage;
use crate::machine::Machine;

/// The most missing clients that are listed by name.
const NAMED_MAX: usize = 16;

fn seconds(from: Option<Instant>, to: Option<Instant>) -> u64 {
    from.zip(to).map_or(0, |(from, to)| to.since(from).as_secs())
}

impl Machine {
    /// The text of `recovery_status`, with Lustre's field names.
    pub(crate) fn recovery_status(&self) -> String {
        let status = self.window.status();
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = match status.state {
            _ if self.stage == Stage::Refusing => writeln!(text, "status: REFUSED\nreason: {}", self.why_refusing()),
            WindowState::Inactive => writeln!(text, "status: INACTIVE"),
            WindowState::WaitingForClients => self.waiting(&mut text, &status),
            WindowState::Complete => self.complete(&mut text, &status),
            _ => self.recovering(&mut text, &status),
        };
        if let Some(doubt) = &self.doubt {
            let _ = writeln!(text, "older_copy_suspected: {doubt}");
        }
        text
    }

    /// No time limit runs before the first client connects.
    fn waiting(&self, text: &mut String, status: &Status) -> core::fmt::Result {
        writeln!(text, "status: WAITING_FOR_CLIENTS")?;
        writeln!(text, "connected_clients: {}/{}", status.connected, status.known)?;
        self.missing(text)
    }

    fn recovering(&self, text: &mut String, status: &Status) -> core::fmt::Result {
        writeln!(text, "status: RECOVERING")?;
        writeln!(text, "recovery_start: {}", self.recovery_start_ns / 1_000_000_000)?;
        writeln!(text, "time_remaining: {}", seconds(Some(self.now), status.deadline))?;
        writeln!(text, "connected_clients: {}/{}", status.connected, status.known)?;
        writeln!(text, "req_replay_clients: {}", status.req_replay_clients)?;
        writeln!(text, "lock_repay_clients: {}", status.lock_replay_clients)?;
        writeln!(text, "completed_clients: {}", status.completed)?;
        writeln!(text, "evicted_clients: {}", status.evicted)?;
        writeln!(text, "replayed_requests: {}", status.replayed_requests)?;
        writeln!(text, "queued_requests: {}", status.queued)?;
        writeln!(text, "next_transno: {}", status.next_transno)?;
        self.missing(text)
    }

    fn complete(&self, text: &mut String, status: &Status) -> core::fmt::Result {
        let word = |on: bool| if on { "ENABLED" } else { "DISABLED" };
        writeln!(text, "status: COMPLETE")?;
        writeln!(text, "recovery_start: {}", self.recovery_start_ns / 1_000_000_000)?;
        writeln!(text, "recovery_duration: {}", seconds(status.started, status.ended))?;
        writeln!(text, "completed_clients: {}/{}", status.completed, status.known)?;
        writeln!(text, "evicted_clients: {}", status.evicted)?;
        writeln!(text, "replayed_requests: {}", status.replayed_requests)?;
        writeln!(text, "last_transno: {}", self.last_transno)?;
        writeln!(text, "VBR: {}", word(status.evicted > 0))?;
        writeln!(text, "IR: {}", word(self.is_imperative()))
    }

    /// Lists the clients that recovery waits for.
    fn missing(&self, text: &mut String) -> core::fmt::Result {
        let absent: Vec<&Export> = self.exports.iter().filter(|export| export.phase == Phase::Absent).collect();
        if absent.is_empty() {
            return Ok(());
        }
        writeln!(text, "missing_clients:")?;
        for export in absent.iter().take(NAMED_MAX) {
            writeln!(text, " - {}", self.client_name(export.handle))?;
        }
        match absent.len().saturating_sub(NAMED_MAX) {
            0 => Ok(()),
            more => writeln!(text, " - and {more} more"),
        }
    }
}
