//! The exit status of a failed command, derived from its error.

use host::place::{ChangeError, FormatError, ReadError};
use host::server::StartError;
use host::target::Stopped;
use schema::BadRecord;
use store::EngineError;

use crate::misuse::Misuse;

/// The command failed.
const FAILED: u8 = 1;
/// The command was misused.
const MISUSED: u8 = 2;
/// A store is damaged, so running the command again does not help.
const DAMAGED: u8 = engine::EXIT_DAMAGED as u8;

/// The status for an error. For mount(8) (`mounts`) 1 is an incorrect invocation, and 2 an error of the system; it never
/// opens a store, and treats 1 like any other failure.
pub(crate) fn of(error: &anyhow::Error, mounts: bool) -> u8 {
    if mounts {
        FAILED
    } else if error.is::<Misuse>() {
        MISUSED
    } else if is_damage(error) {
        DAMAGED
    } else {
        FAILED
    }
}

/// Whether a store is damaged.
fn is_damage(error: &anyhow::Error) -> bool {
    let of_kind = [
        error.downcast_ref().map(StartError::is_damage),
        error.downcast_ref().map(Stopped::is_damage),
        error.downcast_ref().map(ReadError::is_damage),
        error.downcast_ref().map(EngineError::is_damage),
        error.downcast_ref().map(|_: &BadRecord| true),
        error.downcast_ref().map(|error| matches!(error, ChangeError::Store(error) if error.is_damage())),
        error.downcast_ref().map(|error| matches!(error, FormatError::Store(error) if error.is_damage())),
    ];
    of_kind.contains(&Some(true))
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};
    use host::target::{StopReason, UnfitStore};

    use super::*;

    fn corrupt() -> EngineError {
        EngineError::Corrupt { place: "/srv/mdt0".to_owned(), what: "MDB_CORRUPTED".to_owned() }
    }

    fn broken() -> EngineError {
        EngineError::Io { place: "/srv/mdt0".to_owned(), what: "Input/output error".to_owned() }
    }

    #[test]
    fn a_damaged_store_is_told_from_every_other_failure() {
        let stopped = |reason| Stopped::ByItself { target: "fs-MDT0000".to_owned(), reason };
        let starts = UnfitStore::Starts { target: "fs-MDT0000".parse().unwrap() };
        let errors: Vec<(anyhow::Error, u8)> = vec![
            (anyhow!("something else"), 1),
            (Misuse::because("no such option"), 2),
            (corrupt().into(), 65),
            (broken().into(), 1),
            (StartError::Store(ReadError::Store(corrupt())).into(), 65),
            (StartError::Store(ReadError::HeaderLost("/srv/mdt0".to_owned())).into(), 65),
            (StartError::Store(ReadError::Unfinished("/srv/mdt0".to_owned())).into(), 1),
            (StartError::Store(ReadError::Store(broken())).into(), 1),
            (ReadError::InMemory.into(), 1),
            (ChangeError::Store(ReadError::Store(corrupt())).into(), 65),
            (FormatError::Store(corrupt()).into(), 65),
            (FormatError::NotADirectory("/srv/file".into()).into(), 1),
            (stopped(StopReason::Commit(corrupt())).into(), 65),
            (stopped(StopReason::Commit(broken())).into(), 1),
            (stopped(StopReason::Unfit(starts)).into(), 65),
            (stopped(StopReason::Unfit(UnfitStore::NoTarget)).into(), 1),
            (Stopped::Assertion { target: "fs-MDT0000".to_owned() }.into(), 1),
        ];
        for (error, status) in errors {
            assert_eq!(of(&error, false), status, "{error:#}");
            assert_eq!(of(&error, true), 1, "to mount(8): {error:#}");
        }
    }

    #[test]
    fn what_was_attempted_may_be_told_beside() {
        let error = Err::<(), _>(corrupt()).context("cannot look at the copy").unwrap_err();
        assert_eq!(of(&error, false), 65);
        assert_eq!(
            format!("{error:#}"),
            "cannot look at the copy: the store in '/srv/mdt0' is damaged (MDB_CORRUPTED): check the disk, then restore the directory \
             from a copy"
        );
    }
}
