//! Sessions with targets, and the FIDs that they grant: the lowest layer with state. It knows requests and what is open
//! on servers, and nothing of the caches. It reports session events to the layers above ([`Event`]).

mod fld;
mod imports;
mod sequences;
mod turns;

pub(crate) use fld::Fld;
pub(crate) use imports::{Event, Imports, Opened, Target};
pub(crate) use sequences::Sequences;
pub(crate) use turns::Turns;
