//! Golden scripts: commands, and the text that they give. `tests/scripts/operations` has every operation on metadata, `recovery` the
//! rows of the decision tables of recovery, `client` stories of the client.
//!
//! A script fails if anything that it shows has changed. If the change is meant, `UPDATE_GOLDENFILES=1 cargo test -p testkit
//! --test scripts` writes the new text into the scripts, for a person to read before it is committed.

mod runners;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use runners::cluster::Programs;
use runners::frames::Frames;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts").join(name)
}

/// One test for each script of a folder, and one that no script is left out.
macro_rules! scripts {
    ($folder:ident, $runner:expr, $($test:ident = $name:literal,)+) => {
        mod $folder {
            use super::*;

            $(#[test]
            fn $test() {
                goldenscript::run(&mut $runner, folder(stringify!($folder)).join($name)).expect("a script that runs");
            })+

            #[test]
            fn every_script_is_run() {
                let there = std::fs::read_dir(folder(stringify!($folder))).expect("a folder of scripts");
                let there: BTreeSet<String> =
                    there.map(|file| file.expect("a file").file_name().to_string_lossy().into_owned()).collect();
                assert_eq!(there, BTreeSet::from([$($name.to_owned()),+]));
            }
        }
    };
}

scripts! {
    operations,
    Programs::new(),
    acl = "acl",
    close = "close",
    create = "create",
    data = "data",
    getattr = "getattr",
    link = "link",
    locks = "locks",
    lookup = "lookup",
    mkdir = "mkdir",
    mknod = "mknod",
    open = "open",
    open_unlinked = "open-unlinked",
    paths = "paths",
    readdir = "readdir",
    rename = "rename",
    rename_flags = "rename-flags",
    rmdir = "rmdir",
    setattr = "setattr",
    setlayout = "setlayout",
    statfs = "statfs",
    sticky = "sticky",
    symlink = "symlink",
    sync = "sync",
    unlink = "unlink",
    xattr = "xattr",
}

scripts! {
    recovery,
    Frames::new(),
    abort = "abort",
    answered = "answered",
    deferred = "deferred",
    executing = "executing",
    locks_gate = "locks-gate",
    missing_change = "missing-change",
    never_answered = "never-answered",
    new = "new",
    newer = "newer",
    old_connection = "old-connection",
    record = "record",
    replay = "replay",
    replay_in_order = "replay-in-order",
    replay_too_late = "replay-too-late",
    resent = "resent",
    stranger = "stranger",
    strangers_wait = "strangers-wait",
    window_ends = "window-ends",
}

scripts! {
    client,
    Programs::new(),
    append = "append",
    cut = "cut",
    estale = "estale",
    evict = "evict",
    kill_and_start = "kill-and-start",
    local_opens = "local-opens",
    local_opens_writing = "local-opens-writing",
    lost_reply = "lost-reply",
    lost_reply_power_loss = "lost-reply-power-loss",
    migrate = "migrate",
    missing_client = "missing-client",
    read_only = "read-only",
    replay = "replay",
    replay_open = "replay-open",
    resume_replay = "resume-replay",
    truncate = "truncate",
    write_back = "write-back",
    write_back_die = "write-back-die",
    write_back_fsync = "write-back-fsync",
    write_back_power_loss = "write-back-power-loss",
    write_back_refused = "write-back-refused",
}
