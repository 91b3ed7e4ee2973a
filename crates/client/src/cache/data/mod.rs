//! What is cached of the data of files, as values: nothing here sends, waits or knows a lock's fate.
//!
//! - `striping`: offsets of the file to objects and back. `pages`: cached bytes of one object. `read_ahead`: how far.
//! - `state`: what is kept per object and per file. `lanes`: and over all; the memory bounds.

pub(crate) mod lanes;
pub(crate) mod pages;
pub(crate) mod read_ahead;
pub(crate) mod state;
pub(crate) mod striping;
