//! Values of several lines.

use core::fmt::Write;

use rpc::client::{ImportStatus, OpcodeCount};
use stdx::tally::count_line;

use crate::coherence::data;
use crate::coherence::request::Pending;
use crate::coherence::world::World;
use crate::session::Target;

/// Most files that `unwritable` lists.
const UNWRITABLE_SHOWN: usize = 64;

/// How far the wall clock is ahead of the client's own time.
pub(super) fn ahead(w: &World) -> i64 {
    w.wall_ns.saturating_sub_unsigned(w.wall_at.0)
}

/// The state, and those before it with the seconds since 1970.
pub(super) fn state_text(ahead: i64, status: &ImportStatus) -> String {
    let mut text = format!("current_state: {}\nstate_history:", status.state);
    for (at, state) in &status.history {
        let _ = write!(text, "\n - [ {}, {state} ]", ahead.saturating_add_unsigned(at.0) / 1_000_000_000);
    }
    text
}

/// What is known of how long requests take.
pub(super) fn timeouts_text(status: &ImportStatus) -> String {
    format!("network : {}\nservice : {}", status.network.text(), status.service.text())
}

/// Counts of this mount.
pub(super) fn stats_text(w: &World) -> String {
    let (failures, given_up, _) = data::troubles(w, 0);
    let mut text = w.stats.text(ahead(w).saturating_add_unsigned(w.now.0));
    text.push_str(&count_line("write_back_failures", failures));
    let _ = write!(text, "{:<25} {given_up} samples [bytes]", "write_back_lost");
    text
}

/// Files with data that cannot be written back at present, and why.
pub(super) fn unwritable_text(w: &World) -> String {
    let (_, _, files) = data::troubles(w, UNWRITABLE_SHOWN);
    files.iter().map(|(path, errno)| format!("{path}: {errno}")).collect::<Vec<_>>().join("\n")
}

/// Requests by kind.
pub(super) fn requests_text(target: &Target<Pending>) -> String {
    let line = |(opcode, count): (&u16, &OpcodeCount)| {
        let name = proto::Opcode::from_raw(*opcode).map_or("unknown", proto::Opcode::name);
        format!("{name:<24} {} samples [reqs] resent {} replayed {}", count.sent, count.resent, count.replayed)
    };
    target.import.counts().iter().map(line).collect::<Vec<_>>().join("\n")
}
