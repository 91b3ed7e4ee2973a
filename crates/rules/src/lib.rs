//! What Linux's VFS says of a change before it is made, and what the change then does: permissions, attributes, access lists, names,
//! link counts.
//!
//! The metadata target decides by these rules. A client that changes its caches before it sends a change (metadata write-back) must
//! come to the same result, so it uses them, too. They are pure: an object as [`Object`] shows it, a caller, a verdict; errors come
//! in the order in which Linux finds them.
//!
//! - [`access`]: permission bits, capabilities, sticky directories, set-id bits.
//! - [`acl`]: POSIX access control lists.
//! - [`attrs`]: `chmod`, `chown`, `utimes`, and times that clients report.
//! - [`create`]: whether an object may be made, and what it then is.
//! - [`names`]: what can be a name, removals, `rename`, and the links that these leave.
//! - [`mode`]: the bits of `st_mode`.

pub mod access;
pub mod acl;
pub mod attrs;
pub mod create;
pub mod mode;
pub mod names;
mod object;

pub use access::{Caller, Capability};
pub use object::Object;
