//! The disk format: the records of all targets and their keys.
//!
//! A record kind is a type that implements [`Record`]: it has a table (the first byte of its keys), a format version, a
//! key, and an encoding, nearly always a prost message, so that a newer version may add fields. This crate alone defines how
//! records are stored; what they mean to an operation is defined by the targets.
//!
//! | table | record | key | on |
//! |---|---|---|---|
//! | `01` | [`Header`] | none | all |
//! | `02` | client and reply records ([`session`]) | see there | all |
//! | `10` | [`Inode`] | local inode number | MDT |
//! | `11` | [`LargeXattr`] | local inode number, name | MDT |
//! | `12` | [`SmallData`] | local inode number | MDT |
//! | `13` | [`Entry`] | directory's local inode number, cookie | MDT |
//! | `14` | [`Oi`] | FID | MDT |
//! | `15` | [`Orphan`] | FID | MDT |
//! | `16` | [`DestroyLog`] | FID, number of the first object (u32) unless it is 0 | MDT |
//! | `17` | [`SeqGrant`] | sequence | MDT |
//! | `18` | [`MdtState`] | none | MDT |
//! | `19` | [`Moving`] | first FID of a range | MDT |
//! | `1a` | [`CrossRec`] | role, attempt | MDT |
//! | `1b` | [`LossRec`] | index of a metadata target | MDT |
//! | `1c` | [`LeftRec`] | role, attempt | MDT |
//! | `1d` | [`Relayout`] | FID | MDT |
//! | `20` | [`Object`] | FID, stripe | OST |
//! | `21` | [`OstState`] | none | OST |
//! | `22` | [`DoomedFile`] | number of the data file | OST |
//! | `28` | [`Written`] | FID, stripe | OST |
//! | `30` | [`TargetRec`] | target's name | MGT |
//! | `31` | [`ParamRec`] | file system's name, path | MGT |
//! | `32` | [`FsRec`] | file system's name | MGT |
//! | `33` | [`MgtState`] | none | MGT |
//! | `34` | [`PoolRec`] | file system's name, pool's name | MGT |
//!
//! # Invariants
//! - Keys are big-endian, so they sort as their numbers do, and every key can be parsed ([`Record::parse_key`]).
//! - Table bytes and field numbers are never reused. A golden test fixes the bytes of each record.

pub mod config;
pub mod cross;
pub mod entry;
pub mod header;
pub mod inode;
pub mod links;
pub mod mdt;
pub mod object;
mod record;
pub mod session;
#[cfg(test)]
mod tests;

pub use config::{FsRec, MgtState, ParamRec, PoolRec, TargetRec};
pub use cross::{CrossKey, CrossRec, LeftRec, LossRec};
pub use entry::{Entry, EntryKey, first_cookie, second_cookie};
pub use header::Header;
pub use inode::{DirState, Inode, InodeXattr, LargeXattr, SmallData};
pub use links::{Link, LinkEa};
pub use mdt::{DestroyLog, MdtState, Moving, ObjectsKey, Oi, Orphan, Relayout, SeqGrant};
pub use object::{DoomedFile, Object, ObjectKey, OstState, Written};
pub use record::{BadRecord, Record, format_version, formats};
