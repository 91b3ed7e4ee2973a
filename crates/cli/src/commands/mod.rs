//! The commands, one file each.

pub(crate) mod bench;
pub(crate) mod down;
pub(crate) mod install;
pub(crate) mod lacking;
pub(crate) mod lctl;
pub(crate) mod lfs;
pub(crate) mod lr_reader;
pub(crate) mod many;
pub(crate) mod mdtest;
pub(crate) mod mkfs;
pub(crate) mod mount;
pub(crate) mod serve;
pub(crate) mod sim;
pub(crate) mod status;
pub(crate) mod survey;
pub(crate) mod sync;
pub(crate) mod tune;
pub(crate) mod up;
