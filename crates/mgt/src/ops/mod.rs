//! The operations of the management target, one file each.

pub mod config;
pub mod lost;
pub mod param;
pub mod pool;
pub mod register;
pub mod sequence;
