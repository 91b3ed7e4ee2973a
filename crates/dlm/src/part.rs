//! The part of a resource that an inode or extent lock covers, and validation of lock requests.

use proto::Errno;
use proto::msg::{Extent, Flock, LockMode, Policy, Resource, ResourceKind};

/// Bits of an inode or bytes of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    Bits(u64),
    Extent(Extent),
}

impl Part {
    /// Whether two locks on the same resource overlap.
    #[inline]
    pub(crate) fn overlaps(&self, other: &Part) -> bool {
        match (self, other) {
            (Part::Bits(a), Part::Bits(b)) => a & b != 0,
            (Part::Extent(a), Part::Extent(b)) => a.overlaps(b),
            _ => false,
        }
    }

    /// Whether a lock on `self` satisfies a request for `other`.
    #[inline]
    pub(crate) fn covers(&self, other: &Part) -> bool {
        match (self, other) {
            (Part::Bits(a), Part::Bits(b)) => b & !a == 0,
            (Part::Extent(a), Part::Extent(b)) => a.covers(b),
            _ => false,
        }
    }

    pub(crate) fn policy(self) -> Policy {
        match self {
            Part::Bits(b) => Policy::Bits(b),
            Part::Extent(e) => Policy::Extent(e),
        }
    }

    /// The part that a policy describes; `None` if it is empty or a record lock.
    pub(crate) fn from_policy(policy: Policy) -> Option<Part> {
        match policy {
            Policy::Bits(0) | Policy::Flock(_) => None,
            Policy::Bits(b) => Some(Part::Bits(b)),
            Policy::Extent(e) => (e.start <= e.end).then_some(Part::Extent(e)),
        }
    }
}

/// A valid request: its resource, mode and policy fit each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    Part(LockMode, Part),
    /// In mode PR, PW, or NL for unlock.
    Record(LockMode, Flock),
}

/// Checks that resource, mode and policy fit each other; `EINVAL` if not.
pub(crate) fn check(resource: &Resource, mode: i32, policy: Option<Policy>) -> Result<Wanted, Errno> {
    let kind = ResourceKind::try_from(resource.kind).map_err(|_| Errno::EINVAL)?;
    let mode = LockMode::try_from(mode).map_err(|_| Errno::EINVAL)?;
    match (kind, policy) {
        (ResourceKind::Flock, Some(Policy::Flock(f))) => {
            if f.start > f.end || !matches!(mode, LockMode::Pr | LockMode::Pw | LockMode::Nl) {
                return Err(Errno::EINVAL);
            }
            // flock(2) locks have no range.
            let f = if f.is_flock { Flock { start: 0, end: u64::MAX, ..f } } else { f };
            Ok(Wanted::Record(mode, f))
        }
        (ResourceKind::Inode, Some(p @ Policy::Bits(_))) | (ResourceKind::Object, Some(p @ Policy::Extent(_))) => {
            let part = Part::from_policy(p).ok_or(Errno::EINVAL)?;
            if matches!(mode, LockMode::Unset | LockMode::Nl) {
                return Err(Errno::EINVAL);
            }
            Ok(Wanted::Part(mode, part))
        }
        _ => Err(Errno::EINVAL),
    }
}
