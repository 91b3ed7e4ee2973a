//! What a lock costs: memory is bounded by a count of locks, so the count must not lie.

use dlm::server::{Enqueued, LOCK_BYTES, Locks, RECORDS_AS_LOCKS, Settings};
use dlm::{ExportId, WaiterId};
use proto::Fid;
use proto::msg::{EnqueueReq, Extent, Flock, LockMode, Policy, Resource, ResourceKind};
use stdx::Instant;
use testkit::memory;

#[global_allocator]
static ALLOCATOR: testkit::memory::Counting = testkit::memory::Counting;

/// Locks in each measurement: just beyond a size at which tables double, where they are at their largest.
const COUNT: u64 = 70_000;

fn cost_of(what: &str, locks_each: usize, request: impl Fn(u64) -> (Resource, LockMode, Policy)) {
    let mut locks = Locks::new(0, Settings::default());
    let before = memory::held();
    for n in 1..=COUNT {
        let (resource, mode, policy) = request(n);
        let request =
            EnqueueReq { resource, mode: mode as i32, cookie: n, policy: Some(policy), ..EnqueueReq::default() };
        let answer = locks.enqueue(Instant::ZERO, ExportId(n % 100 + 1), &request, WaiterId(n));
        assert!(matches!(answer, Enqueued::Granted(_)), "{what}: {answer:?}");
        while locks.poll().is_some() {}
    }
    let each = (memory::held() - before) as u64 / COUNT;
    println!("{what}: {each} bytes each");
    let counted = (LOCK_BYTES * locks_each) as u64;
    assert!(each <= counted, "{what}: {each} bytes each, {counted} are counted");
}

#[test]
fn a_lock_takes_no_more_memory_than_it_is_counted_for() {
    let _alone = memory::alone();
    let object = |n: u64| Resource::object(Fid::new(Fid::SEQ_FIRST + n, 1), 0);
    let inode = |n: u64| Resource::inode(Fid::new(Fid::SEQ_FIRST + n, 1));
    let file = |n: u64| Resource { kind: ResourceKind::Flock as i32, ..inode(n) };
    let range = |n: u64| Flock { owner: n, start: 2 * n, end: 2 * n, ..Flock::default() };
    cost_of("a lock on an object of its own", 1, |n| (object(n), LockMode::Pw, Policy::Extent(Extent::ALL)));
    cost_of("a lock on an inode of its own", 1, |n| (inode(n), LockMode::Pr, Policy::Bits(2)));
    cost_of("a lock in a crowd on one inode", 1, |_| (inode(1), LockMode::Pr, Policy::Bits(2)));
    let extent = |n: u64| Policy::Extent(Extent { start: n << 12, end: (n << 12) + 4095 });
    cost_of("a lock in a crowd on one object", 1, |n| (object(1), LockMode::Pr, extent(n)));
    cost_of("a record lock of a file of its own", 1 + RECORDS_AS_LOCKS, |n| {
        (file(n), LockMode::Pw, Policy::Flock(range(1)))
    });
    cost_of("a record lock of many of one file", 1, |n| (file(1), LockMode::Pr, Policy::Flock(range(n))));
}
