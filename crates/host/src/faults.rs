//! The fault sites of the process, as the parameters `fail_loc`, `fail_val` and `fail_err`.
//!
//! They belong to the process, not to one of its targets or mounts. They can always be read (as 0), but set only if the
//! process was started with permission.

use proto::Errno;
use proto::params::{Component, OfFaults, Served};
use stdx::{Faults, wildcard};

use crate::admin::Response;

type Read = fn(&Faults) -> u32;
type Set = fn(&Faults, u32);

const fn bound(which: OfFaults) -> (Read, Set) {
    match which {
        OfFaults::Loc => (Faults::loc, Faults::set_loc),
        OfFaults::Val => (Faults::val, Faults::set_val),
        OfFaults::Err => (Faults::err, Faults::set_err),
    }
}

fn named(name: &str) -> Option<OfFaults> {
    OfFaults::ALL.iter().copied().find(|which| which.declared().leaf == name)
}

/// Why a fault is not set.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SetError {
    /// The process does not allow faults.
    #[error("fault injection is not allowed here; start servers with --allow-faults, and mount with -o allow_faults")]
    NotAllowed,
    /// The value is not a 32-bit number.
    #[error("'{0}' is not a 32-bit number")]
    NotANumber(String),
}

/// A start option that sets a fault, and is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("option '{name}={value}': {why}")]
pub struct OptionError {
    /// The fault's name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Why it is refused.
    pub why: SetError,
}

/// Whether a parameter is one of these.
pub fn is_one(name: &str) -> bool {
    named(name).is_some()
}

/// The parameters that match a pattern, with their values.
pub fn get(faults: &Faults, pattern: &str) -> Vec<(String, String)> {
    let show = |which: &OfFaults| {
        let value = bound(*which).0(faults);
        if *which == OfFaults::Loc { format!("{value:#x}") } else { value.to_string() }
    };
    let mut served = Served::new();
    served.add(Component::Process, &[], |which: OfFaults| which);
    served.values(|name| wildcard::matches(pattern, name), show)
}

/// Sets a parameter and returns the response to the request; `None` if it is another parameter.
pub fn set(faults: &Faults, name: &str, value: &str) -> Option<Response> {
    Some(match try_set(faults, name, value)? {
        Ok(()) => Response::Params(vec![(name.to_owned(), value.to_owned())]),
        Err(error) => {
            let errno = match error {
                SetError::NotAllowed => Errno::EPERM,
                SetError::NotANumber(_) => Errno::EINVAL,
            };
            Response::Failed(errno.raw(), error.to_string())
        }
    })
}

/// Sets a parameter; `None` if it is another one.
fn try_set(faults: &Faults, name: &str, value: &str) -> Option<Result<(), SetError>> {
    let which = named(name)?;
    if !faults.is_allowed() {
        return Some(Err(SetError::NotAllowed));
    }
    let Some(number) = number(value) else {
        return Some(Err(SetError::NotANumber(value.to_owned())));
    };
    bound(which).1(faults, number);
    tracing::warn!("fault injection: {name}={number:#x}");
    Some(Ok(()))
}

/// Sets a parameter before anything runs.
///
/// # Errors
/// Faults are not allowed, or the value is not a number.
pub fn set_at_start(faults: &Faults, name: &str, value: &str) -> Result<(), OptionError> {
    let failed = |why| OptionError { name: name.to_owned(), value: value.to_owned(), why };
    try_set(faults, name, value).unwrap_or(Ok(())).map_err(failed)
}

/// Parses decimal, or hexadecimal with `0x`; -1 is all ones.
fn number(value: &str) -> Option<u32> {
    let value = value.trim();
    match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None if value == "-1" => Some(u32::MAX),
        None => value.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_set_only_where_that_is_allowed() {
        let refused = set(&Faults::none(), "fail_loc", "0x119");
        assert!(matches!(refused, Some(Response::Failed(1, message)) if message.contains("--allow-faults")));
        let faults = Faults::allowed(1);
        assert!(set(&faults, "fail_lock", "1").is_none());
        for (name, value, shown) in
            [("fail_loc", "0x80000119", "0x80000119"), ("fail_val", "-1", "4294967295"), ("fail_err", "28", "28")]
        {
            assert!(matches!(set(&faults, name, value), Some(Response::Params(_))));
            assert_eq!(get(&faults, name), [(name.to_owned(), shown.to_owned())]);
        }
        assert!(matches!(set(&faults, "fail_loc", "0x100000000"), Some(Response::Failed(22, _))));
        let refused = set_at_start(&Faults::none(), "fail_loc", "0x720").unwrap_err();
        assert_eq!(refused.why, SetError::NotAllowed);
        assert!(
            refused.to_string().contains("option 'fail_loc=0x720'") && refused.to_string().contains("--allow-faults")
        );
        assert_eq!(set_at_start(&faults, "fail_loc", "0x720"), Ok(()));
        assert_eq!(faults.loc(), 0x720);
        assert_eq!(get(&faults, "fail_*").len(), 3);
    }
}
