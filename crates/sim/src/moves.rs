//! Names that programs remove or rename: a concurrent path walk may find a removed name.

use std::collections::VecDeque;

use client::api::Call;
use proto::Bytes;
use stdx::Instant;

/// The most changes of names that are remembered.
const MOVES_MAX: usize = 256;

/// One removal or rename.
#[derive(Debug)]
struct Move {
    id: u64,
    client: usize,
    names: Vec<Bytes>,
    ended: Option<Instant>,
}

/// The most recent removals and renames, including those in flight.
#[derive(Debug, Default)]
pub(crate) struct Moves(VecDeque<Move>);

impl Moves {
    /// Records that a program makes a call.
    pub(crate) fn begin(&mut self, id: u64, client: usize, call: &Call) {
        let names = match call {
            Call::Unlink { name, .. } | Call::Rmdir { name, .. } => vec![name.clone()],
            Call::Rename { name, new_name, .. } => vec![name.clone(), new_name.clone()],
            _ => return,
        };
        if self.0.len() == MOVES_MAX {
            let oldest = self.0.iter().position(|one| one.ended.is_some()).unwrap_or(0);
            self.0.remove(oldest);
        }
        self.0.push_back(Move { id, client, names, ended: None });
    }

    /// Records that the call was answered.
    pub(crate) fn end(&mut self, id: u64, now: Instant) {
        if let Some(one) = self.0.iter_mut().rev().find(|one| one.id == id) {
            one.ended = Some(now);
        }
    }

    /// Whether another client has removed or renamed a name that `counts` accepts, at any moment since `since`.
    pub(crate) fn by_others(&self, client: usize, since: Instant, counts: impl Fn(&Bytes) -> bool) -> bool {
        let meets = |one: &Move| one.client != client && one.ended.is_none_or(|ended| ended >= since);
        self.0.iter().any(|one| meets(one) && one.names.iter().any(&counts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_concurrent_removal_by_another_client_counts() {
        let name = Bytes::from_static(b"a");
        let mut moves = Moves::default();
        moves.begin(1, 0, &Call::Unlink { parent: 1, name: name.clone() });
        assert!(moves.by_others(1, Instant(9), |other| *other == name));
        assert!(!moves.by_others(0, Instant(0), |other| *other == name), "its own");
        moves.end(1, Instant(5));
        assert!(moves.by_others(1, Instant(5), |other| *other == name));
        assert!(!moves.by_others(1, Instant(6), |other| *other == name), "before");
        assert!(!moves.by_others(1, Instant(5), |_| false), "another name");
    }
}
