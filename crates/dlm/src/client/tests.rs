//! Stories of one client.

use proto::Fid;
use proto::msg::{Extent, bits};

use super::*;

fn dir() -> Resource {
    Resource::inode(Fid::ROOT)
}

fn file() -> Resource {
    Resource::object(Fid::new(Fid::SEQ_FIRST, 1), 0)
}

fn text() -> Resource {
    Resource::flock(Fid::new(Fid::SEQ_FIRST, 2))
}

fn part(start: u64, end: u64) -> Policy {
    Policy::Extent(Extent { start, end })
}

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn grant(cookie: Cookie, handle: u64, resource: Resource, mode: LockMode, policy: Policy) -> LockGrant {
    LockGrant { handle, cookie, resource, policy: Some(policy), mode: mode as i32 }
}

fn callback(lock: &LockGrant) -> BlCallback {
    BlCallback {
        handle: lock.handle,
        cookie: lock.cookie,
        resource: lock.resource,
        wanted: lock.policy,
        wanted_mode: LockMode::Ex as i32,
    }
}

/// A lock that was asked for and came.
fn have(c: &mut LockCache, handle: u64, resource: Resource, mode: LockMode, policy: Policy) -> LockGrant {
    let cookie = c.new_cookie();
    c.expect(cookie);
    let lock = grant(cookie, handle, resource, mode, policy);
    assert_eq!(c.granted(&lock, Instant::ZERO), GrantAction::Usable);
    lock
}

fn all_for_replay(c: &mut LockCache) -> Vec<EnqueueReq> {
    c.begin_replay();
    c.next_replays(usize::MAX)
}

/// What it wants done: cookies to clean up, handles to cancel.
fn wants(c: &mut LockCache) -> (Vec<Cookie>, Vec<u64>) {
    let mut all = (vec![], vec![]);
    while let Some(event) = c.poll() {
        match event {
            LockCacheEvent::Cleanup { lock, .. } => all.0.push(lock.cookie),
            LockCacheEvent::Cancel(handles) => all.1.extend(handles),
        }
    }
    all
}

#[test]
fn a_lock_that_covers_is_found() {
    let mut c = LockCache::new(Settings::default());
    let read = have(&mut c, 10, dir(), LockMode::Pr, Policy::Bits(bits::LOOKUP | bits::UPDATE));
    let write = have(&mut c, 11, file(), LockMode::Pw, part(0, 4095));
    assert_eq!(c.find(&dir(), LockMode::Pr, &Policy::Bits(bits::UPDATE)), Some(read.cookie));
    assert_eq!(c.find(&dir(), LockMode::Pr, &Policy::Bits(bits::UPDATE | bits::PERM)), None);
    assert_eq!(c.find(&dir(), LockMode::Pw, &Policy::Bits(bits::UPDATE)), None);
    assert_eq!(c.find(&file(), LockMode::Pr, &part(10, 20)), Some(write.cookie), "a writer may read");
    assert_eq!(c.find(&file(), LockMode::Pr, &part(4000, 5000)), None);
    have(&mut c, 12, dir(), LockMode::Pw, Policy::Bits(bits::DOM));
    have(&mut c, 13, dir(), LockMode::Cr, Policy::Bits(bits::OPEN));
    assert_eq!(c.bits_held(&dir()), bits::LOOKUP | bits::UPDATE | bits::DOM);
    assert_eq!(c.bits_held(&file()), 0);
    assert_eq!(c.by_handle(11).map(|lock| lock.cookie), Some(write.cookie));
}

#[test]
fn a_lock_can_be_held_to_read_from_now_on_and_never_more_again() {
    let mut c = LockCache::new(Settings::default());
    let dom = Policy::Bits(bits::DOM);
    let lock = have(&mut c, 10, dir(), LockMode::Pw, dom);
    assert!(c.hold(lock.cookie));
    assert!(!c.downgrade(lock.cookie, LockMode::Pr), "an operation counts on it");
    c.release(lock.cookie);
    assert!(c.downgrade(lock.cookie, LockMode::Pr) && c.downgrade(lock.cookie, LockMode::Pr));
    assert!(!c.downgrade(lock.cookie, LockMode::Pw) && !c.downgrade(lock.cookie, LockMode::Ex));
    assert_eq!(c.find(&dir(), LockMode::Pr, &dom), Some(lock.cookie));
    assert_eq!((c.find(&dir(), LockMode::Pw, &dom), c.bits_held(&dir())), (None, bits::DOM));
    let below = have(&mut c, 11, dir(), LockMode::Pr, Policy::Bits(bits::UPDATE));
    assert!(c.downgrade(below.cookie, LockMode::Cr));
    assert_eq!(c.bits_held(&dir()), bits::DOM, "what is not covered to read is not covered");
    assert_eq!(
        all_for_replay(&mut c).iter().map(|replay| replay.mode()).collect::<Vec<_>>(),
        [LockMode::Pr, LockMode::Cr]
    );
    c.replayed(lock.cookie, 20);
    c.blocking(&BlCallback { handle: 20, ..callback(&lock) });
    assert!(!c.downgrade(lock.cookie, LockMode::Pr), "it goes back");
    assert!(!c.downgrade(99, LockMode::Pr));
}

#[test]
fn a_called_back_lock_goes_when_nobody_needs_it() {
    let mut c = LockCache::new(Settings::default());
    let lock = have(&mut c, 10, dir(), LockMode::Pr, Policy::Bits(bits::UPDATE));
    assert!(c.hold(lock.cookie));
    assert_eq!(c.blocking(&callback(&lock)), BlockingAction::StartCleanup(lock.cookie));
    assert_eq!(c.blocking(&callback(&lock)), BlockingAction::AlreadyCancelling);
    assert_eq!(wants(&mut c), (vec![lock.cookie], vec![]));
    let update = Policy::Bits(bits::UPDATE);
    assert_eq!((c.bits_held(&dir()), c.find(&dir(), LockMode::Pr, &update)), (0, None));
    assert_eq!(c.find_for_inflight(&dir(), LockMode::Pr, &update), Some(lock.cookie));
    c.cleanup_done(lock.cookie);
    assert_eq!(wants(&mut c), (vec![], vec![]), "an operation is not done with it");
    c.release(lock.cookie);
    assert_eq!(wants(&mut c), (vec![lock.cookie], vec![]), "and may have cached something");
    c.cleanup_done(lock.cookie);
    c.cleanup_done(lock.cookie);
    assert_eq!(wants(&mut c), (vec![], vec![10]));
    assert_eq!(c.get(lock.cookie), None);
    assert_eq!(c.find_for_inflight(&dir(), LockMode::Pr, &update), None);
    assert_eq!(c.blocking(&callback(&lock)), BlockingAction::CancelUnknown(10), "asked again after a reconnect");
    assert_eq!(wants(&mut c), (vec![], vec![10]));
    c.release(lock.cookie);
    assert!(!c.hold(lock.cookie));
}

/// The answer that granted a lock is lost with its connection, and somebody wants the lock: perhaps the request that is sent again
/// waits for just that somebody.
#[test]
fn a_lock_whose_grant_is_lost_goes_back_at_once() {
    let mut c = LockCache::new(Settings::default());
    let [early, late, enqueued] = [(); 3].map(|()| c.new_cookie());
    let of = |cookie, handle| grant(cookie, handle, dir(), LockMode::Pr, Policy::Bits(bits::UPDATE));
    c.expect_intent(early);
    c.expect_intent(late);
    c.expect(enqueued);
    assert_eq!(c.blocking(&callback(&of(early, 10))), BlockingAction::Deferred(early), "the grant may be on its way");
    c.interrupted();
    assert_eq!(wants(&mut c).1, [10]);
    assert_eq!(c.blocking(&callback(&of(late, 11))), BlockingAction::CancelUnknown(11));
    assert_eq!(
        c.blocking(&callback(&of(enqueued, 12))),
        BlockingAction::Deferred(enqueued),
        "it waits for the lock itself"
    );
    assert_eq!(wants(&mut c).1, [11]);
    assert!(stdx::marks::count("dlm.callback.grant-lost") > 0);
    // The server answered before it had the lock back, and after.
    assert_eq!(c.granted(&of(early, 10), at(1)), GrantAction::Unexpected);
    assert_eq!((c.bits_held(&dir()), wants(&mut c).1), (0, vec![10]));
    assert_eq!(c.granted(&of(late, 13), at(1)), GrantAction::Usable);
    assert_eq!(c.bits_held(&dir()), bits::UPDATE);
    assert_eq!(c.granted(&of(enqueued, 12), at(1)), GrantAction::CalledBack);
}

#[test]
fn a_callback_may_overtake_its_grant() {
    let mut c = LockCache::new(Settings::default());
    let cookie = c.new_cookie();
    c.expect(cookie);
    let lock = grant(cookie, 10, dir(), LockMode::Pr, Policy::Bits(bits::UPDATE));
    assert_eq!(c.blocking(&callback(&lock)), BlockingAction::Deferred(cookie));
    assert_eq!(wants(&mut c), (vec![], vec![]));
    assert_eq!(c.granted(&lock, at(1)), GrantAction::CalledBack);
    assert!(c.hold(cookie), "the operation that asked for it uses it");
    assert_eq!(c.bits_held(&dir()), 0);
    assert_eq!(wants(&mut c).0, [cookie]);
    c.release(cookie);
    c.cleanup_done(cookie);
    assert_eq!(wants(&mut c).1, [10]);
    // An intent that brought no lock, as far as its reply says; the callback knows of one.
    let cookie = c.new_cookie();
    c.expect(cookie);
    c.blocking(&callback(&LockGrant { cookie, handle: 11, ..lock }));
    c.unexpect(cookie);
    assert_eq!(wants(&mut c).1, [11]);
}

#[test]
fn a_grant_that_nobody_wants_goes_back() {
    let mut c = LockCache::new(Settings::default());
    let lock = grant(77, 10, dir(), LockMode::Pr, Policy::Bits(bits::UPDATE));
    assert_eq!(c.granted(&lock, at(1)), GrantAction::Unexpected);
    assert_eq!(wants(&mut c).1, [10]);
    let lock = have(&mut c, 11, dir(), LockMode::Pr, Policy::Bits(bits::UPDATE));
    assert_eq!(c.granted(&lock, at(1)), GrantAction::Usable, "a reply that came twice");
    assert_eq!((wants(&mut c), c.counts()), ((vec![], vec![]), (1, 1)));
    let cookie = c.new_cookie();
    c.expect(cookie);
    let odd = LockGrant { policy: None, cookie, ..lock };
    assert_eq!(c.granted(&odd, at(1)), GrantAction::Unexpected);
}

#[test]
fn unused_locks_are_limited_in_number_and_age() {
    let mut c = LockCache::new(Settings { lru_size: 3, lru_max_age: Duration::from_secs(100) });
    let locks: Vec<LockGrant> = (1..=5)
        .map(|i| {
            let resource = Resource::inode(Fid::new(Fid::SEQ_FIRST, i));
            let lock = have(&mut c, u64::from(i), resource, LockMode::Pr, Policy::Bits(bits::UPDATE));
            if i == 2 {
                c.hold(lock.cookie);
            }
            lock
        })
        .collect();
    assert_eq!(c.counts(), (5, 4));
    assert_eq!(c.bits_held(&locks[0].resource), bits::UPDATE);
    assert_eq!(wants(&mut c).0, [locks[2].cookie], "the first was just used, the second is held");
    c.cleanup_done(locks[2].cookie);
    assert_eq!((wants(&mut c).1, c.counts()), (vec![], (4, 3)), "nobody waits for it: it waits for others");
    assert_eq!(c.deadline(), Some(Instant::ZERO + GATHER_TIME));
    c.tick(at(1));
    assert_eq!(wants(&mut c).1, [3]);
    assert_eq!(c.deadline(), Some(at(100)));
    c.tick(at(60));
    c.find(&locks[3].resource, LockMode::Pr, &Policy::Bits(bits::UPDATE));
    c.release(locks[1].cookie);
    c.tick(at(101));
    let mut old = wants(&mut c).0;
    old.sort();
    assert_eq!(old, [locks[0].cookie, locks[4].cookie]);
    assert_eq!(c.deadline(), Some(at(160)));
    c.cancel_unused();
    assert_eq!(wants(&mut c).0.len(), 2);
    assert_eq!((c.counts(), c.deadline()), ((4, 0), None));
}

#[test]
fn the_owner_may_give_back_what_is_of_no_use() {
    let mut c = LockCache::new(Settings::default());
    let one = have(&mut c, 1, dir(), LockMode::Pr, Policy::Bits(bits::UPDATE));
    let two = have(&mut c, 2, dir(), LockMode::Pr, Policy::Bits(bits::LOOKUP));
    c.cancel_resource(&dir());
    c.give_back(one.cookie);
    assert_eq!(wants(&mut c).0, [one.cookie, two.cookie]);
    assert!(!c.is_usable(one.cookie) && c.on_resource(&dir()).len() == 2);
}

#[test]
fn cancels_that_nobody_waits_for_travel_together() {
    let mut c = LockCache::new(Settings::default());
    let lock = |c: &mut LockCache, i: u32| {
        let resource = Resource::inode(Fid::new(Fid::SEQ_FIRST, i));
        have(c, u64::from(i), resource, LockMode::Pr, Policy::Bits(bits::UPDATE))
    };
    let give_back = |c: &mut LockCache, lock: &LockGrant| {
        c.cancel_resource(&lock.resource);
        wants(c);
        c.cleanup_done(lock.cookie);
    };
    let locks: Vec<LockGrant> = (1..=3).map(|i| lock(&mut c, i)).collect();
    give_back(&mut c, &locks[0]);
    assert_eq!(wants(&mut c).1, []);
    // Somebody waits for the second: the first goes with it.
    c.blocking(&callback(&locks[1]));
    wants(&mut c);
    c.cleanup_done(locks[1].cookie);
    assert_eq!(wants(&mut c).1, [1, 2]);
    // Somebody begins to wait for one that is on its way, then for one that is gone here.
    c.cancel_resource(&locks[2].resource);
    wants(&mut c);
    assert_eq!(c.blocking(&callback(&locks[2])), BlockingAction::AlreadyCancelling);
    c.cleanup_done(locks[2].cookie);
    assert_eq!(wants(&mut c).1, [3]);
    let four = lock(&mut c, 4);
    give_back(&mut c, &four);
    assert_eq!(c.blocking(&callback(&four)), BlockingAction::CancelUnknown(4));
    assert_eq!(wants(&mut c).1, [4, 4]);
    // Many do not wait.
    let many: Vec<LockGrant> = (100..100 + GATHER_MAX as u32).map(|i| lock(&mut c, i)).collect();
    let (last, first) = many.split_last().unwrap();
    first.iter().for_each(|lock| give_back(&mut c, lock));
    assert_eq!(wants(&mut c).1, []);
    give_back(&mut c, last);
    assert_eq!(wants(&mut c).1.len(), GATHER_MAX);
    assert_eq!(c.counts(), (0, 0));
}

#[test]
fn locks_on_what_is_gone_are_forgotten_without_a_cancel() {
    let mut c = LockCache::new(Settings::default());
    let held = have(&mut c, 1, file(), LockMode::Pw, part(0, 99));
    let called_back = have(&mut c, 2, file(), LockMode::Pr, part(100, 199));
    let other = have(&mut c, 3, dir(), LockMode::Pr, Policy::Bits(bits::UPDATE));
    c.hold(held.cookie);
    c.blocking(&callback(&called_back));
    c.forget_resource(&file());
    assert_eq!(wants(&mut c), (vec![], vec![]));
    c.release(held.cookie);
    c.cleanup_done(called_back.cookie);
    assert_eq!((wants(&mut c), c.counts()), ((vec![], vec![]), (1, 1)));
    assert_eq!(c.bits_held(&other.resource), bits::UPDATE);
    assert!(stdx::marks::count("dlm.forget.gone") > 0);
}

#[test]
fn replay_brings_new_handles() {
    let mut c = LockCache::new(Settings::default());
    let one = have(&mut c, 11, dir(), LockMode::Pr, Policy::Bits(bits::UPDATE));
    let two = have(&mut c, 12, file(), LockMode::Pw, part(0, 99));
    let three = have(&mut c, 13, file(), LockMode::Pr, part(100, 199));
    let gone = have(&mut c, 14, file(), LockMode::Pr, part(200, 299));
    c.give_back(gone.cookie);
    c.poll();
    c.cleanup_done(gone.cookie);
    // The server restarts before the cancel leaves: it knows nothing of that lock.
    c.blocking(&callback(&one));
    wants(&mut c);
    let replays = all_for_replay(&mut c);
    let sent: Vec<_> = replays.iter().map(|r| (r.cookie, r.granted_handle)).collect();
    assert_eq!(sent, [(one.cookie, 11), (two.cookie, 12), (three.cookie, 13)]);
    // The cleanup ends: the old handle would mean nothing to the new server.
    c.cleanup_done(one.cookie);
    assert_eq!(wants(&mut c), (vec![], vec![]));
    c.replayed(one.cookie, 101);
    assert_eq!(wants(&mut c).1, [101]);
    // A callback of the new server overtakes the answer to the replay.
    let two = LockGrant { handle: 102, ..two };
    assert_eq!(c.blocking(&callback(&two)), BlockingAction::StartCleanup(two.cookie));
    assert_eq!(wants(&mut c).0, [two.cookie]);
    c.cleanup_done(two.cookie);
    c.replayed(two.cookie, two.handle);
    assert_eq!(wants(&mut c).1, [102]);
    c.hold(three.cookie);
    assert_eq!(c.lost(three.cookie).map(|lock| lock.resource), Some(file()));
    c.release(three.cookie);
    assert_eq!(c.counts(), (0, 0));
}

#[test]
fn replays_come_out_in_parts_and_what_is_gone_meanwhile_does_not() {
    let mut c = LockCache::new(Settings::default());
    let locks: Vec<LockGrant> = (1..=5)
        .map(|i| {
            let resource = Resource::inode(Fid::new(Fid::SEQ_FIRST, i));
            have(&mut c, u64::from(i), resource, LockMode::Pr, Policy::Bits(bits::UPDATE))
        })
        .collect();
    c.begin_replay();
    let cookies = |list: Vec<EnqueueReq>| list.iter().map(|req| req.cookie).collect::<Vec<_>>();
    assert_eq!(cookies(c.next_replays(2)), [locks[0].cookie, locks[1].cookie]);
    c.forget_resource(&locks[3].resource);
    // The server dies again in the middle: everything once more.
    c.begin_replay();
    let rest = [0, 1, 2, 4].map(|i| locks[i].cookie);
    assert_eq!(cookies(c.next_replays(3)), rest[..3]);
    assert_eq!(cookies(c.next_replays(3)), rest[3..]);
    assert!(c.next_replays(3).is_empty());
    c.drop_all();
    assert!(c.next_replays(3).is_empty());
}

#[test]
fn eviction_takes_everything() {
    let mut c = LockCache::new(Settings::default());
    let one = have(&mut c, 11, dir(), LockMode::Pr, Policy::Bits(bits::UPDATE));
    c.hold(one.cookie);
    c.blocking(&callback(&one));
    let late = c.new_cookie();
    c.expect(late);
    assert_eq!(c.drop_all().len(), 1);
    c.release(one.cookie);
    c.cleanup_done(one.cookie);
    assert_eq!(wants(&mut c), (vec![], vec![]));
    assert_eq!(c.granted(&LockGrant { cookie: late, ..one }, at(9)), GrantAction::Unexpected);
    assert!(c.new_cookie() > late, "cookies are never used twice");
}

#[test]
fn what_may_have_been_given_back_is_not_replayed() {
    let mut c = LockCache::new(Settings::default());
    let ask = |c: &mut LockCache, mode: LockMode, start, end, is_flock| {
        let flock = proto::msg::Flock { start, end, owner: 1, pid: 7, is_flock };
        let cookie = c.new_cookie();
        let policy = Some(Policy::Flock(flock));
        let resource = text();
        c.record_sent(&EnqueueReq { resource, mode: mode as i32, cookie, policy, ..EnqueueReq::default() });
        cookie
    };
    for is_flock in [false, true] {
        let held = ask(&mut c, LockMode::Pw, 0, 99, is_flock);
        assert_eq!(c.record_granted(held), None);
    }
    let unlock = ask(&mut c, LockMode::Nl, 10, 19, false);
    let weaker = ask(&mut c, LockMode::Pr, 90, 200, false);
    let other = ask(&mut c, LockMode::Pr, 0, 99, true);
    let replays = |c: &mut LockCache| -> Vec<(u64, u64, i32, bool)> {
        let ranges = all_for_replay(c).into_iter().map(|r| match r.policy {
            Some(Policy::Flock(f)) => (f.start, f.end, r.mode, f.is_flock),
            other => panic!("{other:?}"),
        });
        ranges.collect()
    };
    let (pr, pw) = (LockMode::Pr as i32, LockMode::Pw as i32);
    assert_eq!(replays(&mut c), [(0, 9, pw, false), (20, 89, pw, false), (90, 99, pr, false)]);
    c.record_granted(unlock);
    c.record_granted(weaker);
    c.record_granted(other);
    let all = (0, u64::MAX, pr, true);
    assert_eq!(replays(&mut c), [(0, 9, pw, false), (20, 89, pw, false), (90, 200, pr, false), all]);
}

#[test]
fn record_locks_are_remembered_for_replay_and_close() {
    let mut c = LockCache::new(Settings::default());
    let ask = |c: &mut LockCache, mode, owner, start, end, is_flock| {
        let flock = Flock { start, end, owner, pid: 7, is_flock };
        let cookie = c.new_cookie();
        let req = EnqueueReq {
            resource: text(),
            mode: mode as i32,
            cookie,
            policy: Some(Policy::Flock(flock)),
            no_wait: false,
            glimpse: false,
            granted_handle: 0,
            test: false,
            keep: false,
            version: 0,
        };
        c.record_sent(&req);
        cookie
    };
    use proto::msg::Flock;
    for (mode, owner, start, end, is_flock) in [
        (LockMode::Pw, 1, 0, 99, false),
        (LockMode::Nl, 1, 40, 49, false),
        (LockMode::Pr, 2, 200, 299, false),
        (LockMode::Pr, 1, 0, 0, true),
    ] {
        let cookie = ask(&mut c, mode, owner, start, end, is_flock);
        assert_eq!(c.record_granted(cookie), None);
    }
    let refused = ask(&mut c, LockMode::Pw, 3, 0, 9, false);
    c.record_refused(refused);
    let replays = all_for_replay(&mut c);
    let ranges: Vec<_> = replays
        .iter()
        .map(|r| match r.policy {
            Some(Policy::Flock(f)) if r.granted_handle != 0 => (f.owner, f.start, f.end, r.mode, f.is_flock),
            other => panic!("{other:?}"),
        })
        .collect();
    let (pr, pw) = (LockMode::Pr as i32, LockMode::Pw as i32);
    let all = (1, 0, u64::MAX, pr, true);
    assert_eq!(ranges, [(1, 0, 39, pw, false), (1, 50, 99, pw, false), (2, 200, 299, pr, false), all]);
    assert_eq!(c.lost(replays[2].cookie), None);
    assert!(!c.has_records(&text(), 2, false));
    c.replayed(replays[0].cookie, 0);

    // A close gives everything back, and what still waits when its grant comes.
    let waiting = ask(&mut c, LockMode::Pw, 1, 500, 500, false);
    assert_eq!(c.records_waiting(&text(), 1, false), [waiting]);
    let unlock = c.drop_owner(&text(), 1, false);
    assert_eq!((unlock.len(), unlock[0].mode), (1, LockMode::Nl as i32));
    assert_eq!(c.record_granted(unlock[0].cookie), None);
    let again = c.record_granted(waiting).expect("it must be given back too");
    assert_eq!(c.record_granted(again.cookie), None);
    assert!(c.drop_owner(&text(), 1, false).is_empty());
    assert!(c.has_records(&text(), 1, true));
    // flock(2): a refused upgrade has lost the shared lock.
    let upgrade = ask(&mut c, LockMode::Pw, 1, 0, 0, true);
    c.record_refused(upgrade);
    assert!(!c.any_records());
}

#[test]
fn a_limit_of_the_server_counts_like_ones_own_and_many_go_in_parts() {
    let mut c = LockCache::new(Settings::default());
    let many = 2_000_u32;
    for i in 1..=many {
        let resource = Resource::inode(Fid::new(Fid::SEQ_FIRST, i));
        have(&mut c, u64::from(i), resource, LockMode::Pr, Policy::Bits(bits::UPDATE));
    }
    assert_eq!(wants(&mut c), (vec![], vec![]));
    c.set_limit(100);
    let mut gone = 0;
    let mut now = Instant::ZERO;
    for part in 0..100 {
        let cookies = wants(&mut c).0;
        assert!(cookies.len() <= 1024, "{}", cookies.len());
        gone += cookies.len();
        assert_eq!(cookies.first().copied(), Some((gone - cookies.len()) as u64 + 1), "the longest unused first");
        cookies.into_iter().for_each(|cookie| c.cleanup_done(cookie));
        if gone == many as usize - 100 {
            assert!(part > 0, "not all at once");
            break;
        }
        now = c.deadline().expect("it goes on by itself");
        c.tick(now);
    }
    assert!(now < at(1));
    assert_eq!((gone, c.counts().1), (many as usize - 100, 100));
    c.set_limit(0);
    have(&mut c, 9999, dir(), LockMode::Pr, Policy::Bits(bits::UPDATE));
    assert_eq!((wants(&mut c).0, c.counts().1), (vec![], 101));
    assert!(stdx::marks::count("dlm.shrink.goes-on") > 0);
}

#[test]
fn a_lock_of_a_client_is_small() {
    // The lock, its resource, and three places in indices that are half full.
    let alone = size_of::<Option<Held>>() + size_of::<Option<ResLocks>>() + 3 * 10;
    assert!(alone <= 300, "{alone} bytes");
}

#[test]
fn an_assumed_lock_is_used_at_once_and_given_back_when_the_server_has_named_it() {
    let mut c = LockCache::new(Settings::default());
    let policy = Policy::Bits(bits::UPDATE);
    let [kept, left, dropped] = [(); 3].map(|()| c.assume(dir(), LockMode::Ex, policy, at(0)).unwrap());
    assert_eq!(c.bits_held(&dir()), bits::UPDATE);
    assert_eq!(c.find(&dir(), LockMode::Ex, &policy), Some(kept));
    // Not given back before there is a handle, and not replayed.
    c.give_back(left);
    assert_eq!(wants(&mut c), (vec![left], vec![]));
    c.cleanup_done(left);
    assert_eq!(wants(&mut c), (vec![], vec![]));
    assert_eq!(all_for_replay(&mut c), []);
    assert!(c.confirm(kept, 7));
    assert!(!c.confirm(left, 8), "it goes back at once");
    assert_eq!(wants(&mut c), (vec![], vec![8]));
    assert_eq!(c.by_handle(7).map(|lock| lock.cookie), Some(kept));
    assert!(stdx::marks::count("dlm.assumed.given-back") > 0);
    // The object is gone before the server has told: what it granted is given back.
    assert!(c.lost(dropped).is_some());
    assert!(!c.confirm(dropped, 9));
    assert_eq!(wants(&mut c), (vec![], vec![9]));
    assert_eq!(all_for_replay(&mut c).len(), 1);
}

#[test]
fn a_callback_may_overtake_the_grant_of_an_assumed_lock() {
    let mut c = LockCache::new(Settings::default());
    let policy = Policy::Bits(bits::UPDATE);
    let cookie = c.assume(dir(), LockMode::Ex, policy, at(0)).unwrap();
    let lock = grant(cookie, 5, dir(), LockMode::Ex, policy);
    assert_eq!(c.blocking(&callback(&lock)), BlockingAction::StartCleanup(cookie));
    assert_eq!(wants(&mut c), (vec![cookie], vec![]));
    c.cleanup_done(cookie);
    assert_eq!(wants(&mut c), (vec![], vec![]));
    assert!(!c.confirm(cookie, 5));
    assert_eq!(wants(&mut c), (vec![], vec![5]));
}
