//! mdt
