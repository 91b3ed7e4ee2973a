//! lfsck
