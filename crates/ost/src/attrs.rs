//! Attributes of an object: conversion from its record, and merging of times and sizes from several sources.
//!
//! Size and owner are in the record; the number of blocks is that of the data file at the last change. Times come from
//! clients with each change. Of two values the one with the newer ctime wins, so a repeated or late request does not bring
//! back old times. Reads change nothing here: the metadata target has the atime of a file.

use proto::msg::Lvb;
use schema::Object;

/// The attributes in a record, as a lock value block. An object that was never written is empty.
pub fn lvb(object: Option<&Object>) -> Lvb {
    object.map_or_else(Lvb::default, |o| Lvb {
        size: o.size,
        blocks: o.blocks,
        atime_ns: o.atime_ns,
        mtime_ns: o.mtime_ns,
        ctime_ns: o.ctime_ns,
    })
}

/// Takes over the times of a change, unless those of the record are newer.
pub fn take_times(object: &mut Object, times: &Lvb) {
    if times.ctime_ns < object.ctime_ns {
        return;
    }
    object.mtime_ns =
        if times.ctime_ns == object.ctime_ns { object.mtime_ns.max(times.mtime_ns) } else { times.mtime_ns };
    object.ctime_ns = times.ctime_ns;
    if times.atime_ns != 0 {
        object.atime_ns = times.atime_ns;
    }
}

/// Merges the attributes of the record and of the lock holders: the greatest size and blocks, the times with the newest ctime.
pub fn merge(own: Lvb, holders: &[Lvb]) -> Lvb {
    holders.iter().fold(own, |a, b| {
        let newer = if (b.ctime_ns, b.mtime_ns) > (a.ctime_ns, a.mtime_ns) { b } else { &a };
        Lvb {
            size: a.size.max(b.size),
            blocks: a.blocks.max(b.blocks),
            atime_ns: a.atime_ns.max(b.atime_ns),
            mtime_ns: newer.mtime_ns,
            ctime_ns: newer.ctime_ns,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(ctime_ns: i64, mtime_ns: i64, atime_ns: i64) -> Lvb {
        Lvb { ctime_ns, mtime_ns, atime_ns, ..Lvb::default() }
    }

    #[test]
    fn newer_times_win_and_late_ones_change_nothing() {
        let mut object = Object::default();
        take_times(&mut object, &times(10, 9, 8));
        take_times(&mut object, &times(20, 5, 0));
        assert_eq!(
            (object.ctime_ns, object.mtime_ns, object.atime_ns),
            (20, 5, 8),
            "mtime may go back, with a newer ctime"
        );
        take_times(&mut object, &times(19, 99, 99));
        assert_eq!((object.ctime_ns, object.mtime_ns, object.atime_ns), (20, 5, 8));
        take_times(&mut object, &times(20, 7, 0));
        assert_eq!(object.mtime_ns, 7);
    }

    #[test]
    fn holders_know_better_where_they_are_ahead() {
        let own = Lvb { size: 100, blocks: 8, ..times(10, 10, 1) };
        let holder = Lvb { size: 50, blocks: 16, ..times(20, 15, 0) };
        assert_eq!(merge(own, &[holder]), Lvb { size: 100, blocks: 16, ..times(20, 15, 1) });
        assert_eq!(merge(own, &[]), own);
    }
}
