//! Stories about an object target, and a random history against a model.

mod random;
mod stories;
mod world;
