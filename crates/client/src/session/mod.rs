//! Sessions with targets, and the FIDs that they grant: the lowest layer that keeps anything. It knows requests and what is open on servers,
//! and nothing of what is cached. What happens to a session it tells those above ([`Event`]).

mod imports;
mod sequences;

pub(crate) use imports::{Event, Imports, Opened, Target};
pub(crate) use sequences::Sequences;
