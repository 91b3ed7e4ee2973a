//! The deadlines of many parts, of which few change between two questions for the earliest.

use crate::Instant;

/// A deadline for each part, and the earliest of all. Parts are numbered from 0.
#[derive(Debug, Default)]
pub struct Deadlines {
    /// [`Instant::FAR`]: the part has none.
    of: Vec<Instant>,
    earliest: Option<Instant>,
}

impl Deadlines {
    /// Sets the deadline of a part. Looks at the other parts only if the earliest deadline moves back.
    pub fn set(&mut self, part: usize, at: Option<Instant>) {
        if part >= self.of.len() {
            self.of.resize(part + 1, Instant::FAR);
        }
        let before = core::mem::replace(&mut self.of[part], at.unwrap_or(Instant::FAR));
        if at.is_some_and(|at| self.earliest.is_none_or(|earliest| at <= earliest)) {
            self.earliest = at;
        } else if self.earliest == Some(before) {
            self.earliest = self.of.iter().copied().min().filter(|at| *at != Instant::FAR);
        }
    }

    /// The earliest deadline.
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
            let part = rng.below(6) as usize;
            model[part] = rng.chance(3, 4).then(|| Instant(rng.below(20)));
            deadlines.set(part, model[part]);
            assert_eq!(deadlines.earliest(), model.iter().flatten().min().copied());
        }
    }
}
