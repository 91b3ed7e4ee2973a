//! How answers and locks change the size of an object.

use super::*;

fn lock(handle: u64, mode: LockMode, start: u64, end: u64) -> HeldLock {
    let resource = Resource::object(Fid::ROOT, 0);
    HeldLock { cookie: handle, handle, resource, policy: Policy::Extent(Extent { start, end }), mode }
}

#[test]
fn neighbouring_locks_cover_a_request_together() {
    let mut object = Object::new(Dest::Ost(0), Resource::object(Fid::ROOT, 0));
    object.locks.push(lock(1, LockMode::Pw, 0, 4095));
    assert!(object.covering(LockMode::Pw, &(0..8192)).is_none());
    object.locks.push(lock(2, LockMode::Pr, 4096, 8191));
    assert!(object.covering(LockMode::Pw, &(0..8192)).is_none(), "a read lock does not allow writing");
    assert!(object.covering(LockMode::Pr, &(0..8192)).is_some());
    object.locks.push(lock(3, LockMode::Pw, 4096, u64::MAX));
    assert_eq!(object.covering(LockMode::Pw, &(0..8192)).map(|l| l.handle), Some(1));
    assert_eq!(object.covering(LockMode::Pw, &(5000..u64::MAX)).map(|l| l.handle), Some(3));
}

#[test]
fn a_late_answer_does_not_bring_an_old_size_back() {
    let lvb = |size, ctime_ns| Lvb { size, ctime_ns, ..Lvb::default() };
    let mut object = Object::new(Dest::Ost(0), Resource::object(Fid::ROOT, 0));
    object.locked(&lock(1, LockMode::Pw, 0, u64::MAX), Some(&lvb(93, 5)), 1);
    object.set_size(&lvb(10, 9));
    object.locked(&lock(2, LockMode::Pr, 0, u64::MAX), Some(&lvb(93, 5)), 1);
    assert_eq!((object.size, object.knows_end()), (10, true));
    object.locked(&lock(3, LockMode::Pr, 0, u64::MAX), Some(&lvb(20, 10)), 1);
    assert_eq!(object.size, 10, "others can have written elsewhere since");
    object.locks.clear();
    object.locked(&lock(4, LockMode::Pr, 0, u64::MAX), Some(&lvb(0, 5)), 1);
    assert!(!object.knows_end(), "nor does the first lock after a while");
    object.locks.clear();
    object.answered(Transno(7), 20);
    object.locked(&lock(5, LockMode::Pr, 0, u64::MAX), Some(&lvb(20, 10)), 19);
    assert!(!object.knows_end(), "nor one that was asked for before a change of ours was answered");
    object.locked(&lock(6, LockMode::Pw, 0, u64::MAX), Some(&lvb(4, 10)), 18);
    assert!(!object.knows_end(), "nor a second one of that kind");
    object.locks.clear();
    object.locked(&lock(7, LockMode::Pr, 0, u64::MAX), Some(&lvb(20, 10)), 21);
    assert_eq!((object.size, object.knows_end()), (20, true));
}

#[test]
fn a_size_counts_only_as_far_as_locks_reach() {
    let mut object = Object::new(Dest::Ost(0), Resource::object(Fid::ROOT, 0));
    object.locks.push(lock(1, LockMode::Pr, 0, 4095));
    object.set_size(&Lvb { size: 10_000, ..Lvb::default() });
    assert_eq!((object.size_floor(), object.knows_end()), (4096, false));
    object.locks.push(lock(2, LockMode::Pr, 9000, u64::MAX));
    assert_eq!((object.size_floor(), object.knows_end()), (10_000, true));
}

#[test]
fn a_size_reported_during_a_change_in_flight_does_not_include_the_change() {
    let lvb = |size| Lvb { size, ..Lvb::default() };
    let mut object = Object::new(Dest::Ost(0), Resource::object(Fid::ROOT, 0));
    object.locks.push(lock(1, LockMode::Pw, 0, u64::MAX));
    object.pages.write(4096, Bytes::from(vec![1; 4096]));
    assert!(object.pages.take(&(0..u64::MAX), 4096, false, 1).is_some());
    // Zeros beyond the end that do not move it, as `fallocate` may.
    object.pages.begin(2, 16384..20480, 0);
    object.set_size(&lvb(5000));
    assert_eq!(object.size, 8192, "as far as what is written");
    object.set_size(&lvb(10_000));
    assert_eq!(object.size, 10_000, "as the target says");
}

#[test]
fn a_reported_size_counts_up_to_the_reach_of_changes_in_flight() {
    let lvb = |size| Lvb { size, ..Lvb::default() };
    let mut object = Object::new(Dest::Ost(0), Resource::object(Fid::ROOT, 0));
    object.locked(&lock(1, LockMode::Pw, 0, u64::MAX), Some(&lvb(4096)), 1);
    object.pages.begin(1, 0..4096, 4096);
    // Zeros beyond the end that do not move it.
    object.pages.begin(2, 16384..20480, 0);
    assert!(object.shows_end(), "neither moves the end");
    object.glimpsed(20480);
    assert_eq!(object.size, 4096, "a size from before a cut does not come back");
    object.pages.begin(3, 8192..12288, 12288);
    assert!(!object.shows_end(), "others may have seen it");
    object.glimpsed(4096);
    assert_eq!((object.size, object.shows_end()), (4096, false), "not done yet");
    object.glimpsed(20480);
    assert_eq!((object.size, object.shows_end()), (12288, true));
    object.pages.end(3);
    assert_eq!((object.size, object.shows_end()), (12288, true));
}

#[test]
fn only_a_truncation_in_flight_is_a_cut() {
    let mut object = Object::new(Dest::Ost(0), Resource::object(Fid::ROOT, 0));
    assert_eq!(object.pages.cut_in_flight(), None);
    object.pages.begin(1, 16384..20480, 20480);
    assert_eq!(object.pages.cut_in_flight(), None, "a hole, zeros, or a write past the cache");
    object.pages.begin(2, 32768..u64::MAX, 32768);
    assert_eq!(object.pages.cut_in_flight(), Some(32768));
    object.pages.end(2);
    assert_eq!(object.pages.cut_in_flight(), None);
}

#[test]
fn bytes_truncated_by_others_do_not_come_back_with_another_lock() {
    let lvb = |size| Lvb { size, ..Lvb::default() };
    let mut object = Object::new(Dest::Ost(0), Resource::object(Fid::ROOT, 0));
    object.locked(&lock(1, LockMode::Pr, 0, 4095), Some(&lvb(10_000)), 1);
    object.locked(&lock(2, LockMode::Pr, 4096, 8191), Some(&lvb(5000)), 1);
    assert_eq!((object.size_floor(), object.knows_end()), (5000, false));
    object.locked(&lock(3, LockMode::Pr, 9000, u64::MAX), Some(&lvb(5000)), 1);
    assert_eq!((object.size_floor(), object.knows_end()), (5000, false), "the end is not below it");
    object.locked(&lock(4, LockMode::Pr, 8192, u64::MAX), Some(&lvb(8500)), 1);
    assert_eq!((object.size_floor(), object.knows_end()), (8500, true));
}

#[test]
fn an_answer_from_before_a_cut_does_not_undo_it_whatever_the_time() {
    let lvb = |size, ctime_ns| Lvb { size, ctime_ns, ..Lvb::default() };
    let mut object = Object::new(Dest::Ost(0), Resource::object(Fid::ROOT, 0));
    object.locked(&lock(1, LockMode::Pw, 0, u64::MAX), Some(&lvb(10_000, 5)), 1);
    object.size = 0;
    object.locked(&lock(2, LockMode::Pr, 0, 4095), Some(&lvb(10_000, 5)), 1);
    assert_eq!((object.size, object.knows_end()), (0, true));
    object.locked(&lock(3, LockMode::Pr, 0, 4095), Some(&lvb(10_000, 6)), 1);
    assert_eq!(object.size, 0);
}

#[test]
fn subtracting_a_range_leaves_the_rest() {
    let left = |a: Range<u64>, b: Range<u64>| subtract(&a, &b).into_vec();
    assert_eq!(left(0..10, 3..5), [0..3, 5..10]);
    assert_eq!(left(0..10, 0..10), [] as [Range<u64>; 0]);
    assert_eq!(left(0..10, 10..20), vec![0..10]);
    assert_eq!(left(5..10, 0..7), vec![7..10]);
}
