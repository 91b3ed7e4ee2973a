//! History of an import for its administrator: its last states, and the mean time to an answer.

use core::time::Duration;
use std::collections::VecDeque;

use stdx::Instant;

use super::State;

/// Number of states that are kept.
pub(super) const STATES_MAX: usize = 16;

/// History of an import.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    states: VecDeque<(Instant, State)>,
    waited: Duration,
    answers: u32,
}

impl History {
    /// The import changed its state.
    pub(crate) fn entered(&mut self, now: Instant, state: State) {
        if self.states.len() == STATES_MAX {
            self.states.pop_front();
        }
        self.states.push_back((now, state));
    }

    /// A request of the owner was answered after this time.
    pub(crate) fn answered(&mut self, after: Duration) {
        // A decaying mean: older requests count ever less.
        if self.answers == 1024 {
            self.waited /= 2;
            self.answers /= 2;
        }
        self.waited += after;
        self.answers += 1;
    }

    /// The last states and when each was entered, oldest first.
    pub(crate) fn states(&self) -> Vec<(Instant, State)> {
        self.states.iter().copied().collect()
    }

    /// Mean time to an answer.
    pub(crate) fn mean_wait(&self) -> Duration {
        self.waited.checked_div(self.answers).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_states_are_known_and_old_waits_fade() {
        let mut history = History::default();
        assert_eq!(history.mean_wait(), Duration::ZERO);
        for at in 0..20 {
            history.entered(Instant(at), if at % 2 == 0 { State::Connecting } else { State::Full });
        }
        let states = history.states();
        assert_eq!((states.len(), states[0], states[15].0), (16, (Instant(4), State::Connecting), Instant(19)));
        for _ in 0..1024 {
            history.answered(Duration::from_millis(10));
        }
        assert_eq!(history.mean_wait(), Duration::from_millis(10));
        for _ in 0..20_000 {
            history.answered(Duration::from_millis(2));
        }
        assert_eq!(history.mean_wait().as_millis(), 2);
    }
}
