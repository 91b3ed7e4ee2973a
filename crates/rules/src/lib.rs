//! The rules of Linux's VFS for changes: whether a change is allowed and what it does to permissions, attributes, access
//! lists, names and link counts.
//!
//! The metadata target decides by these rules. A client with metadata write-back makes a change in its own memory before it
//! sends it, and must get the same result, so it uses the same rules. They are pure functions of an [`Object`], a caller and
//! the change. Errors have the precedence that they have in Linux.
//!
//! - [`access`]: permission bits, capabilities, sticky directories, set-id bits.
//! - [`acl`]: POSIX access control lists.
//! - [`attrs`]: `chmod`, `chown`, `utimes`, and times that clients report.
//! - [`create`]: whether an object may be made, and its first attributes.
//! - [`names`]: valid names, removals, `rename`, and the link counts after them.
//! - [`mode`]: the bits of `st_mode`.
//! - [`placement`]: the metadata targets of a new directory, and what it inherits of a default.
//! - [`stripes`]: which stripe of a striped directory has a name.

pub mod access;
pub mod acl;
pub mod attrs;
pub mod create;
pub mod mode;
pub mod names;
mod object;
pub mod placement;
pub mod stripes;

pub use access::{Caller, Capability};
pub use object::Object;
