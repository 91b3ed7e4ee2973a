//! The deadlines of many parts, of which few change between two questions for the earliest.

use crate::Instant;
use std::collections::VecDeque;

/// A deadline for each part, and the earliest of all. Parts are numbered from 0.
///
/// Call [`Deadlines::touch`] when a part's deadline may have changed. Before asking for the earliest, set the deadline of
/// every part in [`Deadlines::touched`].
#[derive(Debug, Default)]
pub struct Deadlines {
    parts: Vec<Part>,
    /// Touched parts, in the order in which they were touched.
    touched: VecDeque<usize>,
    earliest: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    /// [`Instant::FAR`]: the part has none.
    at: Instant,
    touched: bool,
}

impl Deadlines {
    /// The deadline of a part may have changed.
    pub fn touch(&mut self, part: usize) {
        if part >= self.parts.len() {
            self.parts.resize(part + 1, Part { at: Instant::FAR, touched: false });
        }
        if !core::mem::replace(&mut self.parts[part].touched, true) {
            self.touched.push_back(part);
        }
    }

    /// The part that was touched first, of those whose deadline was not set since.
    pub fn touched(&self) -> Option<usize> {
        self.touched.front().copied()
    }

    /// Sets the deadline of the part in [`Deadlines::touched`]. Looks at the other parts only if the earliest deadline
    /// moves back.
    pub fn set_touched(&mut self, at: Option<Instant>) {
        let Some(part) = self.touched.pop_front().and_then(|part| self.parts.get_mut(part)) else { return };
        let before = core::mem::replace(part, Part { at: at.unwrap_or(Instant::FAR), touched: false }).at;
        if at.is_some_and(|at| self.earliest.is_none_or(|earliest| at <= earliest)) {
            self.earliest = at;
        } else if self.earliest == Some(before) {
            self.earliest = self.parts.iter().map(|part| part.at).min().filter(|at| *at != Instant::FAR);
        }
    }

    /// The earliest deadline of those that were set.
    #[inline]
    pub fn earliest(&self) -> Option<Instant> {
        self.earliest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    #[test]
    fn the_earliest_is_that_of_a_search() {
        let mut rng = Rng::new(1);
        let (mut deadlines, mut model) = (Deadlines::default(), [None; 6]);
        for _ in 0..10_000 {
            for _ in 0..rng.below(4) {
                let part = rng.below(6) as usize;
                model[part] = rng.chance(3, 4).then(|| Instant(rng.below(20)));
                deadlines.touch(part);
            }
            while let Some(part) = deadlines.touched() {
                deadlines.set_touched(model[part]);
            }
            assert_eq!(deadlines.earliest(), model.iter().flatten().min().copied());
        }
    }
}
