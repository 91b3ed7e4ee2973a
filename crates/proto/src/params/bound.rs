//! How whoever has the state of a parameter reads and sets it.

use super::{Access, Declared, Values};
use crate::Errno;

/// How a parameter is read from a state `G` and set in a state `S`. The value that a setter gets is within what is
/// [declared](Declared::values); it refuses what only the state can refuse.
#[derive(Debug)]
pub enum Bound<G, S = G> {
    /// It can only be read.
    Get(fn(&G) -> String),
    /// It is a number, or what is read as one.
    Number(fn(&G) -> String, fn(&mut S, u64) -> Result<(), Errno>),
    /// It is a text, without blanks around it.
    Text(fn(&G) -> String, fn(&mut S, &str) -> Result<(), Errno>),
    /// It can only be set, with a text: it makes something happen.
    Order(fn(&mut S, &str) -> Result<(), Errno>),
}

impl<G, S> Bound<G, S> {
    /// Whether it does what is declared, no less and no more.
    pub const fn fits(&self, declared: &Declared) -> bool {
        match (self, declared.access, declared.values) {
            (Bound::Get(_), Access::Get, _)
            | (Bound::Order(_), Access::Set, Values::Text)
            | (Bound::Text(..), Access::GetSet, Values::Text) => true,
            (Bound::Number(..), Access::GetSet, values) => !matches!(values, Values::Text),
            _ => false,
        }
    }

    /// The value as it is shown.
    pub fn value(&self, state: &G) -> String {
        match self {
            Bound::Get(get) | Bound::Number(get, _) | Bound::Text(get, _) => get(state),
            Bound::Order(_) => String::new(),
        }
    }

    /// Sets it. `None`: it cannot be set.
    pub fn set(&self, state: &mut S, declared: &Declared, text: &str) -> Option<Result<(), Errno>> {
        Some(match self {
            Bound::Get(_) => return None,
            Bound::Text(_, set) | Bound::Order(set) => set(state, text.trim()),
            Bound::Number(_, set) => declared.values.read(text).and_then(|number| set(state, number)),
        })
    }
}

/// Compares what a group declares with what a `const fn` of its parameters binds, when they are compiled:
/// `const _: () = bound_as_declared!(OfTimeouts, bound);`
#[macro_export]
macro_rules! bound_as_declared {
    ($group:ident, $bound:path) => {{
        let mut at = 0;
        while at < $group::ALL.len() {
            let one = $group::ALL[at];
            assert!($bound(one).fits(one.declared()), "a parameter is not bound as it is declared");
            at += 1;
        }
    }};
}
