//! Caches: nodes, names, open files and data, as values that keep their own invariants. What of them is valid, and when
//! it has to be dropped, is decided by the layers above.

pub(crate) mod data;
pub(crate) mod doubt;
pub(crate) mod failures;
pub(crate) mod file;
pub(crate) mod kernel_view;
pub(crate) mod name_marks;
pub(crate) mod names;
pub(crate) mod node;
pub(crate) mod sweep;
pub(crate) mod validity;
