//! One file per command.

pub mod bench;
pub mod down;
pub mod install;
pub mod lacking;
pub mod lctl;
pub mod lfs;
pub mod lr_reader;
pub mod many;
pub mod mdtest;
pub mod mkfs;
pub mod mount;
pub mod serve;
pub mod sim;
pub mod status;
pub mod survey;
pub mod sync;
pub mod tune;
pub mod up;
