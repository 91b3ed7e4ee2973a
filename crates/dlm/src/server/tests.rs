//! Stories of clients A, B, C on one target.

use core::time::Duration;

use proto::Fid;
use proto::msg::{Extent, GlReply, Lvb, bits};

use super::callback::{AWAY_PART, GLIMPSES_FIRST};
use super::*;

const A: ExportId = ExportId(1);
const B: ExportId = ExportId(2);
const C: ExportId = ExportId(3);
const D: ExportId = ExportId(4);

fn dir() -> Resource {
    Resource::inode(Fid::ROOT)
}

fn file(oid: u32) -> Resource {
    Resource::object(Fid::new(Fid::SEQ_FIRST, oid), 0)
}

fn text(oid: u32) -> Resource {
    Resource::flock(Fid::new(Fid::SEQ_FIRST, oid))
}

fn part(start: u64, end: u64) -> Policy {
    Policy::Extent(Extent { start, end })
}

fn request(resource: Resource, mode: LockMode, policy: Policy, cookie: u64) -> EnqueueReq {
    EnqueueReq { resource, mode: mode as i32, cookie, policy: Some(policy), ..EnqueueReq::default() }
}

fn record(oid: u32, mode: LockMode, owner: u64, start: u64, end: u64, cookie: u64) -> EnqueueReq {
    request(text(oid), mode, Policy::Flock(Flock { start, end, owner, pid: 77, is_flock: false }), cookie)
}

fn flock(oid: u32, mode: LockMode, owner: u64, cookie: u64) -> EnqueueReq {
    request(text(oid), mode, Policy::Flock(Flock { start: 5, end: 6, owner, pid: 77, is_flock: true }), cookie)
}

/// A table and a clock.
struct Target {
    locks: Locks,
    now: Instant,
    waiters: u64,
}

impl Target {
    fn new() -> Target {
        Target { locks: Locks::new(1 << 40, Settings::default()), now: Instant::ZERO, waiters: 0 }
    }

    fn enqueue(&mut self, export: ExportId, req: &EnqueueReq) -> Enqueued {
        self.waiters += 1;
        self.locks.enqueue(self.now, export, req, WaiterId(self.waiters))
    }

    fn get(&mut self, export: ExportId, resource: Resource, mode: LockMode, policy: Policy, cookie: u64) -> LockGrant {
        match self.enqueue(export, &request(resource, mode, policy, cookie)) {
            Enqueued::Granted(grant) => grant,
            other => panic!("granted expected, got {other:?}"),
        }
    }

    /// Its waiter.
    fn waits(&mut self, export: ExportId, req: &EnqueueReq) -> WaiterId {
        assert_eq!(self.enqueue(export, req), Enqueued::Waiting);
        WaiterId(self.waiters)
    }

    fn bits(&mut self, export: ExportId, mode: LockMode, bits: u64, cookie: u64) -> LockGrant {
        self.get(export, dir(), mode, Policy::Bits(bits), cookie)
    }

    fn revoke(&mut self, waiter: u64, export: ExportId, resource: Resource) -> Revoked {
        let policy = if resource == dir() { Policy::Bits(bits::ALL) } else { Policy::Extent(Extent::ALL) };
        self.locks.revoke(self.now, WaiterId(waiter), export, resource, LockMode::Ex, policy)
    }

    fn cancel(&mut self, export: ExportId, handle: u64) {
        self.locks.cancel(self.now, export, &CancelReq { handles: vec![handle], waiting_cookies: vec![] });
    }

    fn interrupt(&mut self, export: ExportId, cookie: u64) {
        self.locks.cancel(self.now, export, &CancelReq { handles: vec![], waiting_cookies: vec![cookie] });
    }

    fn events(&mut self) -> Vec<LockEvent> {
        core::iter::from_fn(|| self.locks.poll()).collect()
    }

    /// Events as short words.
    fn said(&mut self) -> Vec<String> {
        self.events()
            .into_iter()
            .map(|event| match event {
                LockEvent::Blocking { export, callback } => format!("blocking {} {}", export.0, callback.cookie),
                LockEvent::Glimpse { export, callback } => format!("glimpse {} {}", export.0, callback.cookie),
                LockEvent::Granted { export, grant, .. } => format!("granted {} {}", export.0, grant.cookie),
                LockEvent::Refused { waiter, errno } => format!("refused {} {errno:?}", waiter.0),
                LockEvent::Ready { waiter } => format!("ready {}", waiter.0),
                LockEvent::GlimpseDone { waiter } => format!("glimpsed {}", waiter.0),
                LockEvent::Overdue { export, .. } => format!("overdue {}", export.0),
                LockEvent::Limit { export, locks } => format!("limit {} {locks}", export.0),
            })
            .collect()
    }
}

#[test]
fn a_writer_calls_readers_back_and_waits() {
    let mut t = Target::new();
    let a = t.bits(A, LockMode::Pr, bits::UPDATE | bits::LOOKUP, 1);
    let b = t.bits(B, LockMode::Pr, bits::UPDATE, 1);
    assert!(a.handle > 1 << 40 && b.handle > a.handle, "handles rise from the base");
    // Other bits are another matter.
    t.bits(C, LockMode::Ex, bits::LAYOUT, 1);
    let wants = request(dir(), LockMode::Pw, Policy::Bits(bits::UPDATE), 2);
    t.waits(C, &wants);
    assert_eq!(t.said(), ["blocking 1 1", "blocking 2 1"]);
    t.waits(D, &wants);
    assert_eq!(t.said(), [""; 0], "one callback each");
    t.cancel(A, a.handle);
    assert_eq!(t.said(), [""; 0]);
    t.cancel(B, b.handle);
    assert_eq!(t.said(), ["granted 3 2", "blocking 3 2"], "the first in line, and the next wants it already");
    t.cancel(A, b.handle);
    assert_eq!(t.locks.counters().granted, 2, "nobody cancels another's lock");
}

#[test]
fn locks_of_one_client_do_not_conflict() {
    let mut t = Target::new();
    t.bits(A, LockMode::Pr, bits::ALL, 1);
    t.bits(A, LockMode::Ex, bits::ALL, 2);
    t.get(A, file(1), LockMode::Pw, part(0, 9), 3);
    t.get(A, file(1), LockMode::Pw, part(0, 9), 4);
    assert_eq!(t.said(), [""; 0]);
}

#[test]
fn readers_do_not_starve_a_writer() {
    let mut t = Target::new();
    let a = t.bits(A, LockMode::Pr, bits::UPDATE, 1);
    t.waits(B, &request(dir(), LockMode::Pw, Policy::Bits(bits::UPDATE), 1));
    t.waits(C, &request(dir(), LockMode::Pr, Policy::Bits(bits::UPDATE | bits::LOOKUP), 1));
    t.bits(C, LockMode::Pr, bits::LOOKUP, 2);
    t.said();
    t.cancel(A, a.handle);
    assert_eq!(t.said(), ["granted 2 1", "blocking 2 1"]);
    let held = t.locks.held(B);
    t.cancel(B, held[0].handle);
    assert_eq!(t.said(), ["granted 3 1"]);
}

#[test]
fn a_holder_overtakes_who_waits_for_it_but_only_once() {
    let mut t = Target::new();
    let first = t.bits(A, LockMode::Pr, bits::UPDATE, 1);
    t.waits(B, &request(dir(), LockMode::Pw, Policy::Bits(bits::UPDATE), 1));
    // An operation of A that uses its lock needs another: B waits for A anyway.
    let second = t.bits(A, LockMode::Pr, bits::UPDATE | bits::PERM, 2);
    assert_eq!(t.said(), ["blocking 1 1", "blocking 1 2"]);
    t.cancel(A, first.handle);
    // With the old lock gone, the new one is no excuse.
    t.waits(A, &request(dir(), LockMode::Pr, Policy::Bits(bits::UPDATE), 3));
    t.cancel(A, second.handle);
    assert_eq!(t.said(), ["granted 2 1", "blocking 2 1"]);
}

#[test]
fn intents_take_what_is_there() {
    let mut t = Target::new();
    let now = t.now;
    let intent = |t: &mut Target, export, mode, want, must, cookie| {
        t.locks.try_grant(now, export, dir(), mode, want, must, cookie).map(|g| g.policy)
    };
    let b = t.bits(B, LockMode::Pw, bits::UPDATE, 1);
    let got = intent(&mut t, A, LockMode::Pr, bits::CACHE, bits::LOOKUP, 7);
    assert_eq!(got, Some(Some(Policy::Bits(bits::CACHE & !bits::UPDATE))));
    assert_eq!(intent(&mut t, A, LockMode::Pr, bits::CACHE, bits::UPDATE, 8), None, "must have it");
    assert_eq!(intent(&mut t, A, LockMode::Pr, bits::UPDATE, 0, 8), None, "nothing left");
    assert_eq!(intent(&mut t, A, LockMode::Pr, bits::ALL, bits::ALL, 7), got, "a resend");
    // A waiter keeps it from others, not from itself.
    t.waits(C, &request(dir(), LockMode::Pw, Policy::Bits(bits::PERM), 1));
    assert_eq!(t.said(), ["blocking 1 7"], "an intent calls nobody back, C did");
    assert_eq!(intent(&mut t, D, LockMode::Pr, bits::PERM, 0, 9), None);
    assert!(intent(&mut t, C, LockMode::Pr, bits::LOOKUP, 0, 9).is_some());
    assert_eq!(intent(&mut t, C, LockMode::Pr, bits::LOOKUP, 0, 1), None, "a cookie that waits");
    t.cancel(B, b.handle);
    assert!(intent(&mut t, D, LockMode::Pr, bits::UPDATE, bits::UPDATE, 9).is_some());
}

#[test]
fn extents_grow_into_what_nobody_wants() {
    let mut t = Target::new();
    let alone = t.get(A, file(1), LockMode::Pw, part(8192, 12287), 1);
    assert_eq!(alone.policy, Some(part(0, u64::MAX)));
    t.waits(B, &request(file(1), LockMode::Pw, part(1 << 20, (1 << 20) + 99), 1));
    t.cancel(A, alone.handle);
    let grant = t.events().into_iter().find_map(|e| match e {
        LockEvent::Granted { grant, .. } => grant.policy,
        _ => None,
    });
    assert_eq!(grant, Some(part(0, u64::MAX)), "nobody else is there yet");
    let b = t.locks.held(B)[0].handle;
    t.cancel(B, b);

    // Replays stay as they were; they make a neighbourhood here.
    for (i, (start, end)) in [(0, 4095), (1 << 20, (1 << 20) + 5000)].into_iter().enumerate() {
        let mut req = request(file(2), LockMode::Pw, part(start, end), 10 + i as u64);
        req.granted_handle = 99;
        assert!(matches!(t.enqueue(B, &req), Enqueued::Granted(g) if g.policy == Some(part(start, end))));
    }
    let between = t.get(A, file(2), LockMode::Pr, part(5000, 5001), 2);
    assert_eq!(between.policy, Some(part(4096, (1 << 20) - 1)));
    let above = t.get(C, file(2), LockMode::Pr, part(2 << 20, 2 << 20), 2);
    assert_eq!(above.policy, Some(part((1 << 20) + 8192, u64::MAX)), "whole pages");
    let close = t.get(C, file(2), LockMode::Cr, part((1 << 20) - 1, u64::MAX), 3);
    assert_eq!(close.policy, Some(part(0, u64::MAX)), "CR goes with PW");
    let tight = t.get(D, file(2), LockMode::Pr, part((1 << 20) + 5001, (1 << 20) + 5002), 2);
    assert_eq!(tight.policy, Some(part((1 << 20) + 5001, u64::MAX)), "not less than was asked for");
}

#[test]
fn extents_do_not_grow_into_what_others_wait_for() {
    let mut t = Target::new();
    let all = t.get(A, file(1), LockMode::Pw, part(0, 4095), 1);
    t.waits(B, &request(file(1), LockMode::Pw, part(0, 4095), 1));
    t.waits(C, &request(file(1), LockMode::Pw, part(1 << 20, (1 << 20) + 4095), 1));
    t.events();
    t.cancel(A, all.handle);
    let granted: Vec<_> = t
        .events()
        .into_iter()
        .map(|event| match event {
            LockEvent::Granted { export, grant, .. } => (export, grant.policy),
            other => panic!("nobody is asked for anything: {other:?}"),
        })
        .collect();
    assert_eq!(granted, [(B, Some(part(0, (1 << 20) - 1))), (C, Some(part(1 << 20, u64::MAX)))]);
}

#[test]
fn who_waits_for_a_lock_on_what_is_gone_goes_on() {
    let mut t = Target::new();
    t.get(A, file(1), LockMode::Pw, part(0, 4095), 1);
    let waiter = t.waits(B, &request(file(1), LockMode::Pw, part(0, 4095), 1));
    t.events();
    t.locks.drop_locks(t.now, A, &file(1));
    let granted =
        t.events().into_iter().any(|event| matches!(event, LockEvent::Granted { waiter: w, .. } if w == waiter));
    assert!(granted);
    t.locks.export_gone(t.now, B);
    assert!(t.locks.is_idle());
}

#[test]
fn extents_grow_less_in_a_crowd() {
    let mut t = Target::new();
    for i in 0..40u64 {
        let mut req = request(file(1), LockMode::Pw, part(i * 4096, i * 4096 + 4095), 1 + i);
        req.granted_handle = 99;
        assert!(matches!(t.enqueue(ExportId(100 + i), &req), Enqueued::Granted(_)));
    }
    let start = 1 << 30;
    let grown = t.get(A, file(1), LockMode::Pw, part(start, start + 4095), 1);
    assert_eq!(grown.policy, Some(part(40 * 4096, start + (32 << 20) - 1)));
    let top = t.get(A, file(1), LockMode::Pw, part(u64::MAX, u64::MAX), 2);
    assert_eq!(top.policy, Some(part(40 * 4096, u64::MAX)));
}

#[test]
fn an_operation_of_the_target_waits_in_line_and_holds_the_line() {
    let mut t = Target::new();
    assert_eq!(t.revoke(50, B, dir()), Revoked::Free);
    let a = t.bits(A, LockMode::Pr, bits::UPDATE, 1);
    assert_eq!(t.revoke(50, A, dir()), Revoked::Free, "its own locks are no hindrance");
    assert!(t.locks.conflicts(B, &dir(), LockMode::Ex, &Policy::Bits(bits::UPDATE)));
    assert!(!t.locks.conflicts(A, &dir(), LockMode::Ex, &Policy::Bits(bits::UPDATE)));
    assert_eq!(t.revoke(50, B, dir()), Revoked::Waiting);
    assert_eq!(t.revoke(50, B, dir()), Revoked::Waiting);
    assert_eq!((t.said(), t.locks.counters().internal), (vec!["blocking 1 1".to_owned()], 1));
    t.waits(C, &request(dir(), LockMode::Pr, Policy::Bits(bits::UPDATE), 1));
    assert!(t.locks.try_grant(t.now, C, dir(), LockMode::Pr, bits::ALL, 0, 2).is_none());
    t.bits(B, LockMode::Pr, bits::LOOKUP, 1);
    t.cancel(A, a.handle);
    assert_eq!(t.said(), ["ready 50"]);
    assert_eq!(t.revoke(50, B, dir()), Revoked::Free);
    t.locks.release(t.now, WaiterId(50));
    assert_eq!(t.said(), ["granted 3 1"]);
}

#[test]
fn operations_in_opposite_order_do_not_block_each_other() {
    let mut t = Target::new();
    let one = t.get(A, file(1), LockMode::Pr, part(0, 9), 1);
    let two = t.get(A, file(2), LockMode::Pr, part(0, 9), 2);
    assert_eq!(t.revoke(50, B, file(1)), Revoked::Waiting);
    assert_eq!(t.revoke(51, C, file(2)), Revoked::Waiting);
    assert_eq!(t.revoke(50, B, file(2)), Revoked::Waiting);
    assert_eq!(t.revoke(51, C, file(1)), Revoked::Waiting);
    assert_eq!(t.said(), ["blocking 1 1", "blocking 1 2"]);
    t.cancel(A, one.handle);
    assert_eq!(t.said(), [""; 0], "both want both");
    t.cancel(A, two.handle);
    assert_eq!(t.said(), ["ready 51", "ready 50"], "in the order of that file's line");
    for w in [50, 51] {
        assert_eq!((t.revoke(w, B, file(1)), t.revoke(w, B, file(2))), (Revoked::Free, Revoked::Free));
        t.locks.release(t.now, WaiterId(w));
    }
    assert!(t.locks.is_idle());
}

#[test]
fn an_operation_that_finds_a_new_holder_waits_again() {
    let mut t = Target::new();
    let a = t.bits(A, LockMode::Pr, bits::UPDATE, 1);
    t.waits(B, &request(dir(), LockMode::Pw, Policy::Bits(bits::UPDATE | bits::PERM), 1));
    let b = t.bits(D, LockMode::Pr, bits::LAYOUT, 1);
    assert_eq!(t.revoke(50, C, dir()), Revoked::Waiting);
    t.said();
    t.cancel(D, b.handle);
    t.cancel(A, a.handle);
    assert_eq!(t.said(), ["granted 2 1", "blocking 2 1"], "B was first in line");
    assert_eq!(t.revoke(50, C, dir()), Revoked::Waiting);
    t.cancel(B, t.locks.held(B)[0].handle);
    assert_eq!(t.said(), ["ready 50"]);
}

#[test]
fn a_resend_finds_the_same_lock() {
    let mut t = Target::new();
    let a = t.bits(A, LockMode::Pw, bits::UPDATE, 1);
    assert_eq!(t.bits(A, LockMode::Pw, bits::UPDATE, 1), a);
    let wants = request(dir(), LockMode::Pr, Policy::Bits(bits::UPDATE), 4);
    let first = t.waits(B, &wants);
    let second = t.waits(B, &wants);
    assert_ne!(first, second);
    t.said();
    t.cancel(A, a.handle);
    let waiter = t.events().into_iter().find_map(|e| match e {
        LockEvent::Granted { waiter, .. } => Some(waiter),
        _ => None,
    });
    assert_eq!(waiter, Some(second), "the new request is answered");
    assert!(t.locks.counters().waiting == 0 && t.locks.counters().granted == 1);
}

#[test]
fn replays_restore_what_was() {
    let mut t = Target::new();
    let mut replay = request(file(1), LockMode::Pw, part(100, 200), 9);
    replay.granted_handle = 5;
    let Enqueued::Granted(grant) = t.enqueue(A, &replay) else { panic!("replay refused") };
    assert_eq!((grant.policy, grant.cookie, grant.handle > 1 << 40), (Some(part(100, 200)), 9, true));
    assert_eq!(t.enqueue(A, &replay), Enqueued::Granted(grant), "its resend");
    replay.cookie = 1;
    assert_eq!(t.enqueue(B, &replay), Enqueued::Refused(Errno::ESTALE), "two cannot have had it");
    // An operation's replay granted other bits than the client had.
    t.locks.try_grant(t.now, A, dir(), LockMode::Pr, bits::LOOKUP, 0, 10);
    let mut replay = request(dir(), LockMode::Pr, Policy::Bits(bits::LOOKUP | bits::UPDATE), 10);
    replay.granted_handle = 6;
    let Enqueued::Granted(grant) = t.enqueue(A, &replay) else { panic!("replay refused") };
    assert_eq!(grant.policy, replay.policy);
}

#[test]
fn a_client_that_goes_leaves_nothing() {
    let mut t = Target::new();
    t.bits(A, LockMode::Pw, bits::UPDATE, 1);
    t.get(A, file(1), LockMode::Pw, part(0, 1), 2);
    assert!(matches!(t.enqueue(A, &record(1, LockMode::Pw, 1, 0, 9, 3)), Enqueued::Granted(_)));
    t.waits(B, &request(dir(), LockMode::Pr, Policy::Bits(bits::UPDATE), 1));
    t.waits(B, &record(1, LockMode::Pr, 1, 5, 6, 2));
    t.get(B, file(2), LockMode::Pw, part(0, 1), 3);
    t.waits(A, &request(file(2), LockMode::Pr, part(0, 1), 4));
    t.waits(C, &request(file(2), LockMode::Pr, part(0, 1), 4));
    assert_eq!(t.locks.glimpse(t.now, WaiterId(60), file(1), B), Glimpsed::Waiting);
    t.locks.export_gone(t.now, A);
    assert_eq!(t.said(), ["blocking 2 3", "glimpsed 60", "granted 2 1", "granted 2 2"]);
    assert_eq!(t.locks.take_glimpse(WaiterId(60)), Some(vec![]));
    assert!(t.locks.held(A).is_empty());
    t.locks.export_gone(t.now, B);
    assert_eq!(t.said(), ["granted 3 4"]);
    t.locks.export_gone(t.now, C);
    t.locks.export_gone(t.now, D);
    assert!(t.locks.is_idle());
    assert_eq!(t.locks.counters(), Counters::default());
}

#[test]
fn who_does_not_answer_is_overdue_once() {
    let mut t = Target::new();
    let a = t.bits(A, LockMode::Pw, bits::UPDATE, 1);
    assert_eq!(t.locks.deadline(), None);
    t.waits(B, &request(dir(), LockMode::Pr, Policy::Bits(bits::UPDATE), 1));
    assert_eq!(t.locks.deadline(), Some(Instant::ZERO + Duration::from_secs(20)));
    t.now = Instant::ZERO + Duration::from_secs(15);
    t.locks.progress(t.now, A);
    t.locks.progress(t.now, B);
    assert_eq!(t.locks.deadline(), Some(Instant::ZERO + Duration::from_secs(35)), "it is at work");
    t.now = Instant::ZERO + Duration::from_secs(30);
    t.said();
    t.locks.resend_callbacks(t.now, A);
    assert_eq!(t.said(), ["blocking 1 1"], "a reconnect brings the callback again");
    assert_eq!(t.locks.deadline(), Some(Instant::ZERO + Duration::from_secs(50)));
    t.locks.tick(Instant::ZERO + Duration::from_secs(49));
    assert_eq!(t.said(), [""; 0]);
    t.locks.tick(Instant::ZERO + Duration::from_secs(51));
    t.locks.tick(Instant::ZERO + Duration::from_secs(99));
    assert_eq!(t.said(), ["overdue 1"]);
    t.cancel(A, a.handle);
    assert_eq!((t.said(), t.locks.deadline()), (vec!["granted 2 1".to_owned()], None));
}

#[test]
fn patience_ends() {
    let mut t = Target::new();
    t.bits(A, LockMode::Pw, bits::UPDATE, 1);
    t.waits(B, &request(dir(), LockMode::Pr, Policy::Bits(bits::UPDATE), 1));
    t.said();
    let mut seconds = 0;
    while t.said().is_empty() {
        seconds += 10;
        t.now = Instant::ZERO + Duration::from_secs(seconds);
        t.locks.progress(t.now, A);
        t.locks.tick(t.now);
    }
    assert_eq!(seconds, 600);
}

#[test]
fn who_only_connects_again_and_again_gets_no_more_time() {
    let mut t = Target::new();
    t.bits(A, LockMode::Pw, bits::UPDATE, 1);
    t.waits(B, &request(dir(), LockMode::Pr, Policy::Bits(bits::UPDATE), 1));
    let seconds = |s: u64| Instant::ZERO + Duration::from_secs(s);
    for s in (5..60).step_by(5) {
        t.locks.resend_callbacks(seconds(s), A);
        assert_eq!(t.locks.deadline(), Some(seconds((s + 20).min(60))), "the first sending counts");
        t.locks.tick(seconds(s));
    }
    t.said();
    t.locks.tick(seconds(60));
    assert_eq!(t.said(), ["overdue 1"]);
}

#[test]
fn a_reconnect_takes_no_time_away_that_work_has_brought() {
    let mut t = Target::new();
    t.bits(A, LockMode::Pw, bits::UPDATE, 1);
    t.waits(B, &request(dir(), LockMode::Pr, Policy::Bits(bits::UPDATE), 1));
    let seconds = |s: u64| Instant::ZERO + Duration::from_secs(s);
    for s in (5..=100).step_by(5) {
        t.locks.progress(seconds(s), A);
    }
    t.locks.resend_callbacks(seconds(101), A);
    assert_eq!(t.locks.deadline(), Some(seconds(120)));
}

#[test]
fn a_glimpse_asks_every_writer_and_takes_nothing_away() {
    let mut t = Target::new();
    let lvb = |size| Lvb { size, ..Lvb::default() };
    for (i, (export, start)) in [(A, 0), (A, 1 << 20), (B, 2 << 20), (C, 3 << 20)].into_iter().enumerate() {
        let mut req = request(file(1), LockMode::Pw, part(start, start + 4095), 1 + i as u64);
        req.granted_handle = 7;
        assert!(matches!(t.enqueue(export, &req), Enqueued::Granted(_)));
    }
    assert_eq!(t.locks.glimpse(t.now, WaiterId(60), file(2), D), Glimpsed::Nothing);
    assert_eq!(t.locks.glimpse(t.now, WaiterId(60), file(1), C), Glimpsed::Waiting);
    assert_eq!(t.locks.glimpse(t.now, WaiterId(60), file(1), C), Glimpsed::Waiting);
    let asked: Vec<_> = t
        .events()
        .into_iter()
        .map(|e| match e {
            LockEvent::Glimpse { export, callback } => (export, callback),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(asked.iter().map(|(e, c)| (*e, c.cookie)).collect::<Vec<_>>(), [(A, 2), (B, 3)]);
    let reply = |i: usize, size| GlReply {
        handle: asked[i].1.handle,
        serial: asked[i].1.serial,
        lvb: Some(lvb(size)),
        ..GlReply::default()
    };
    t.locks.glimpse_reply(t.now, B, &reply(0, 1));
    t.locks.glimpse_reply(t.now, A, &reply(0, 10));
    assert_eq!(t.said(), [""; 0]);
    // Another asks while B's answer is on its way: it may be older than the question.
    assert_eq!(t.locks.glimpse(t.now, WaiterId(61), file(1), C), Glimpsed::Waiting);
    assert_eq!(t.said(), ["glimpse 1 2"]);
    t.locks.glimpse_reply(t.now, B, &reply(1, 20));
    assert_eq!(t.said(), ["glimpse 2 3", "glimpsed 60"]);
    t.locks.glimpse_reply(t.now, B, &reply(1, 20));
    assert_eq!(t.said(), [""; 0], "a late copy answers nothing");
    assert_eq!(t.locks.glimpse(t.now, WaiterId(60), file(1), C), Glimpsed::Done(vec![lvb(10), lvb(20)]));
    assert_eq!(t.locks.take_glimpse(WaiterId(60)), Some(vec![lvb(10), lvb(20)]));
    assert_eq!(t.locks.take_glimpse(WaiterId(61)), None);
    // B gives its lock up instead, A is silent.
    t.cancel(B, asked[1].1.handle);
    t.locks.tick(t.now + Duration::from_secs(20));
    assert_eq!(t.said(), ["overdue 1"]);
    t.locks.export_gone(t.now, A);
    assert_eq!(t.said(), ["glimpsed 61"]);
    // No client that could know more has a lock any longer.
    assert_eq!(t.locks.glimpse(t.now, WaiterId(61), file(1), C), Glimpsed::Nothing);
    assert_eq!(t.locks.held(C).len(), 1);
}

/// An operation that was answered and waits for something else meets a holder that has changed the object, or left.
#[test]
fn an_answer_is_as_good_as_the_object_and_the_lock_were_then() {
    let mut t = Target::new();
    let lvb = |size| Lvb { size, ..Lvb::default() };
    t.bits(A, LockMode::Pw, bits::DOM, 1);
    let ask = |t: &mut Target| t.locks.glimpse(t.now, WaiterId(60), dir(), C);
    let answer = |t: &mut Target, size| {
        let Some(LockEvent::Glimpse { callback, .. }) = t.events().pop() else { panic!() };
        let reply =
            GlReply { handle: callback.handle, serial: callback.serial, lvb: Some(lvb(size)), ..GlReply::default() };
        t.locks.glimpse_reply(t.now, A, &reply);
        assert_eq!(t.said(), ["glimpsed 60"]);
        callback.handle
    };
    assert_eq!(ask(&mut t), Glimpsed::Waiting);
    answer(&mut t, 0);
    // What it changed before the answer came is in the answer.
    assert_eq!(ask(&mut t), Glimpsed::Done(vec![lvb(0)]));
    assert_eq!(ask(&mut t), Glimpsed::Done(vec![lvb(0)]));
    t.locks.truncated(&dir());
    assert_eq!(ask(&mut t), Glimpsed::Waiting, "it was cut since");
    let handle = answer(&mut t, 10);
    assert_eq!(ask(&mut t), Glimpsed::Done(vec![lvb(10)]));
    t.cancel(A, handle);
    assert_eq!(ask(&mut t), Glimpsed::Nothing, "what was written back counts");
    // That a holder has nothing to tell is an answer, and no better than others.
    let tells_nothing = |t: &mut Target, export| {
        let Some(LockEvent::Glimpse { callback, .. }) = t.events().pop() else { panic!() };
        let reply = GlReply { handle: callback.handle, serial: callback.serial, ..GlReply::default() };
        t.locks.glimpse_reply(t.now, export, &reply);
        callback.handle
    };
    t.bits(A, LockMode::Pw, bits::DOM, 2);
    assert_eq!(ask(&mut t), Glimpsed::Waiting);
    let handle = tells_nothing(&mut t, A);
    assert_eq!(ask(&mut t), Glimpsed::Done(vec![]));
    t.locks.truncated(&dir());
    assert_eq!(ask(&mut t), Glimpsed::Waiting, "it was cut since");
    assert_eq!(tells_nothing(&mut t, A), handle);
    t.cancel(A, handle);
    t.bits(B, LockMode::Pw, bits::DOM, 3);
    assert_eq!(ask(&mut t), Glimpsed::Waiting, "another has the lock now");
    tells_nothing(&mut t, B);
    assert_eq!(t.locks.take_glimpse(WaiterId(60)), Some(vec![]));
    assert!(stdx::marks::count("dlm.glimpse.too-old") > 0);
}

/// A writer has two locks, and is asked by the one that reaches further. That goes before it has answered.
#[test]
fn who_gives_back_the_lock_that_it_is_asked_by_is_asked_by_another() {
    let mut t = Target::new();
    let lvb = |size| Lvb { size, ..Lvb::default() };
    for (cookie, (export, start)) in (1..).zip([(B, 100), (A, 0), (A, 200)]) {
        let mut req = request(file(1), LockMode::Pw, part(start, start + 99), cookie);
        req.granted_handle = 7;
        assert!(matches!(t.enqueue(export, &req), Enqueued::Granted(_)));
    }
    t.events();
    let ask = |t: &mut Target| t.locks.glimpse(t.now, WaiterId(60), file(1), C);
    let asked = |t: &mut Target| -> Vec<proto::msg::GlCallback> {
        let glimpse = |event| if let LockEvent::Glimpse { callback, .. } = event { Some(callback) } else { None };
        t.events().into_iter().filter_map(glimpse).collect()
    };
    let reply = |to: &proto::msg::GlCallback, size| GlReply {
        handle: to.handle,
        serial: to.serial,
        lvb: Some(lvb(size)),
        ..GlReply::default()
    };
    assert_eq!(ask(&mut t), Glimpsed::Waiting);
    let [of_a, of_b] = &asked(&mut t)[..] else { panic!() };
    t.locks.glimpse_reply(t.now, B, &reply(of_b, 150));
    t.cancel(A, of_a.handle);
    assert_eq!(ask(&mut t), Glimpsed::Waiting);
    let [of_a, of_b] = &asked(&mut t)[..] else { panic!() };
    t.locks.glimpse_reply(t.now, B, &reply(of_b, 150));
    t.locks.truncated(&file(1));
    t.locks.glimpse_reply(t.now, A, &reply(of_a, 50));
    assert_eq!(ask(&mut t), Glimpsed::Waiting, "what one said is from before a cut");
    let [of_a, of_b] = &asked(&mut t)[..] else { panic!() };
    t.locks.glimpse_reply(t.now, B, &reply(of_b, 120));
    t.locks.glimpse_reply(t.now, A, &reply(of_a, 50));
    assert_eq!(ask(&mut t), Glimpsed::Done(vec![lvb(120), lvb(50)]));
}

/// A writer has answered, goes on writing, and writes a part of that back while another holder is still asked: what it says then counts.
/// So does what others say with what they write, if they hold locks.
#[test]
fn who_writes_back_after_its_answer_is_asked_no_more_and_has_said_the_size() {
    let mut t = Target::new();
    let lvb = |size| Lvb { size, ..Lvb::default() };
    for (cookie, (export, start)) in (1..).zip([(A, 100), (B, 0)]) {
        let mut req = request(file(1), LockMode::Pw, part(start, start + 99), cookie);
        req.granted_handle = 7;
        assert!(matches!(t.enqueue(export, &req), Enqueued::Granted(_)));
    }
    t.events();
    let ask = |t: &mut Target| t.locks.glimpse(t.now, WaiterId(60), file(1), C);
    for (said, written, counts) in [(Some(110), 150, 150), (Some(160), 150, 160), (None, 130, 130)] {
        t.locks.wrote(A, &file(1), 190);
        assert_eq!(ask(&mut t), Glimpsed::Waiting);
        for event in t.events() {
            let LockEvent::Glimpse { export, callback } = event else { panic!("{event:?}") };
            let reply = |lvb| GlReply { handle: callback.handle, serial: callback.serial, lvb, ..GlReply::default() };
            if export == A {
                t.locks.glimpse_reply(t.now, A, &reply(said.map(lvb)));
                t.locks.wrote(A, &file(1), written);
                // Of another file, and by who has no lock: they do not count.
                t.locks.wrote(A, &file(2), 180);
                t.locks.wrote(C, &file(1), 180);
                // Its lock has come since the others were asked.
                let mut late = request(file(1), LockMode::Pw, part(200, 299), 3);
                late.granted_handle = 7;
                assert!(matches!(t.enqueue(D, &late), Enqueued::Granted(_)));
                t.locks.wrote(D, &file(1), 240);
            } else {
                t.locks.glimpse_reply(t.now, B, &reply(None));
            }
        }
        assert_eq!(t.locks.take_glimpse(WaiterId(60)), Some(vec![lvb(counts), lvb(240)]));
        t.locks.export_gone(t.now, D);
        assert_eq!(t.said(), ["glimpsed 60"]);
    }
    assert!(stdx::marks::count("dlm.glimpse.raised") > 0 && stdx::marks::count("dlm.glimpse.answered_by_write") > 0);
}

/// The glimpses that leave, as what answers them; nothing else is said.
fn asked(t: &mut Target, holder: ExportId) -> Vec<GlReply> {
    let glimpse = |event| match event {
        LockEvent::Glimpse { export, callback } if export == holder => GlReply {
            handle: callback.handle,
            serial: callback.serial,
            lvb: Some(Lvb::default()),
            ..GlReply::default()
        },
        other => panic!("{other:?}"),
    };
    t.events().into_iter().map(glimpse).collect()
}

/// Somebody lists many files of one writer, whose connection breaks whenever much is sent at once.
#[test]
fn a_holder_of_many_locks_is_asked_about_few_until_it_answers() {
    const MANY: u32 = 1000;
    let few = GLIMPSES_FIRST as usize;
    let mut t = Target::new();
    let lister = WaiterId(1 << 20);
    for oid in 0..MANY {
        let mut req = request(file(oid), LockMode::Pw, part(0, 99), u64::from(oid) + 1);
        req.granted_handle = 7;
        assert!(matches!(t.enqueue(A, &req), Enqueued::Granted(_)));
    }
    t.events();
    for oid in 0..MANY {
        assert_eq!(t.locks.glimpse(t.now, lister, file(oid), C), Glimpsed::Waiting);
    }
    let first = asked(&mut t, A);
    assert_eq!(first.len(), few, "what has left");
    // The connection breaks, and with it go all answers but one.
    t.locks.disconnected(t.now, A);
    t.locks.glimpse_reply(t.now, A, &first[3]);
    t.events();
    t.now = t.now + Duration::from_secs(5);
    t.locks.resend_callbacks(t.now, A);
    let again = asked(&mut t, A);
    assert_eq!(again.len(), few, "no more than on the first connection");
    assert!(!again.contains(&first[3]) && first.iter().filter(|reply| again.contains(reply)).count() == few - 1);
    // Each answer lets two go; a lock that is given back is an answer.
    t.locks.glimpse_reply(t.now, A, &again[0]);
    let next = asked(&mut t, A);
    assert_eq!(next.len(), 2);
    t.cancel(A, again[1].handle);
    let mut open = [&again[2..], &next, &asked(&mut t, A)].concat();
    assert_eq!(open.len(), few + 2);
    // What has not left is waited for no longer than what has.
    assert_eq!(t.locks.deadline(), Some(t.now + t.locks.settings().lock_timeout));
    let mut turns = 0;
    while !open.is_empty() {
        open.drain(..).for_each(|reply| t.locks.glimpse_reply(t.now, A, &reply));
        turns += 1;
        if t.locks.deadline().is_some() {
            open = asked(&mut t, A);
        }
    }
    assert_eq!(t.said(), [format!("glimpsed {}", lister.0)]);
    assert!(turns < 8, "{turns} turns: so many more are asked about as have been answered");
    assert_eq!(t.locks.take_glimpse(lister).map(|answers| answers.len()), Some(MANY as usize - 1));
    assert!(stdx::marks::count("dlm.glimpse.later") > 0);
}

/// One that is gone is asked nothing more.
#[test]
fn a_holder_of_many_locks_goes_without_being_asked_about_the_rest() {
    let mut t = Target::new();
    for oid in 0..100 {
        let mut req = request(file(oid), LockMode::Pw, part(0, 99), u64::from(oid) + 1);
        req.granted_handle = 7;
        assert!(matches!(t.enqueue(A, &req), Enqueued::Granted(_)));
        assert_eq!(t.locks.glimpse(t.now, WaiterId(1 << 20), file(oid), C), Glimpsed::Waiting);
    }
    t.events();
    t.locks.tick(t.now + Duration::from_secs(20));
    assert_eq!(t.said(), ["overdue 1"]);
    t.locks.export_gone(t.now, A);
    assert_eq!(t.said(), [format!("glimpsed {}", 1 << 20)]);
    assert!(t.locks.is_idle());
}

#[test]
fn a_holder_that_goes_on_to_read_lets_others_read_and_is_not_asked_again() {
    let mut t = Target::new();
    t.bits(A, LockMode::Pw, bits::DOM, 1);
    assert_eq!(t.locks.glimpse(t.now, WaiterId(60), dir(), C), Glimpsed::Waiting);
    let Some(LockEvent::Glimpse { callback, .. }) = t.events().pop() else { panic!() };
    t.waits(B, &request(dir(), LockMode::Pr, Policy::Bits(bits::DOM), 1));
    assert_eq!(t.said(), ["blocking 1 1"]);
    let answer = |serial, mode: LockMode| GlReply { handle: callback.handle, serial, lvb: None, mode: mode as i32 };
    t.locks.glimpse_reply(t.now, A, &answer(callback.serial + 1, LockMode::Pr));
    t.locks.glimpse_reply(t.now, B, &answer(callback.serial, LockMode::Pr));
    assert_eq!(t.said(), [""; 0], "an answer to another question, and of another client");
    t.locks.glimpse_reply(t.now, A, &answer(callback.serial, LockMode::Pr));
    assert_eq!(t.said(), ["granted 2 1", "glimpsed 60"]);
    assert_eq!(t.locks.glimpse(t.now, WaiterId(60), dir(), C), Glimpsed::Done(vec![]));
    assert_eq!(t.locks.glimpse(t.now, WaiterId(61), dir(), C), Glimpsed::Nothing);
    assert_eq!(t.locks.held(A).iter().map(|lock| lock.mode).collect::<Vec<_>>(), [LockMode::Pr]);
    // A client that wants to write calls both back; a holder's answer makes nothing stronger.
    t.waits(C, &request(dir(), LockMode::Pw, Policy::Bits(bits::DOM), 1));
    assert_eq!(t.said(), ["blocking 2 1"], "the first was called back before");
    assert_eq!(t.locks.glimpse(t.now, WaiterId(62), dir(), C), Glimpsed::Nothing);
    assert!(stdx::marks::count("dlm.lock.weakened") > 0);
}

#[test]
fn small_files_are_glimpsed_at_who_writes_them() {
    let mut t = Target::new();
    t.bits(A, LockMode::Pr, bits::DOM, 1);
    t.bits(B, LockMode::Pw, bits::UPDATE, 1);
    assert_eq!(t.locks.glimpse(t.now, WaiterId(60), dir(), C), Glimpsed::Nothing);
    let mut t = Target::new();
    t.bits(A, LockMode::Pw, bits::DOM, 1);
    assert_eq!(t.locks.glimpse(t.now, WaiterId(60), dir(), A), Glimpsed::Nothing, "it knows itself");
    assert_eq!(t.locks.glimpse(t.now, WaiterId(60), dir(), C), Glimpsed::Waiting);
    t.locks.release(t.now, WaiterId(60));
    assert_eq!(t.locks.take_glimpse(WaiterId(60)), None);
}

#[test]
fn record_locks_are_posix() {
    let mut t = Target::new();
    let granted = |e: Enqueued| assert!(matches!(e, Enqueued::Granted(_)), "{e:?}");
    granted(t.enqueue(A, &record(1, LockMode::Pw, 1, 0, 99, 1)));
    granted(t.enqueue(A, &record(1, LockMode::Pr, 1, 40, 59, 2)));
    let mut test = record(1, LockMode::Pr, 2, 50, 200, 0);
    test.test = true;
    let found = Flock { start: 60, end: 99, owner: 1, pid: 77, is_flock: false };
    assert_eq!(t.enqueue(A, &test), Enqueued::Conflict(found, LockMode::Pw), "owners of one client do conflict");
    test.policy = record(1, LockMode::Pr, 2, 45, 50, 0).policy;
    assert_eq!(t.enqueue(B, &test), Enqueued::NotFound);
    let mut now = record(1, LockMode::Pr, 2, 50, 60, 3);
    now.no_wait = true;
    assert_eq!(t.enqueue(B, &now), Enqueued::Refused(Errno::EAGAIN));
    let waiting = t.waits(B, &record(1, LockMode::Pr, 2, 50, 60, 4));
    assert_eq!(t.enqueue(A, &record(1, LockMode::Nl, 1, 0, 49, 5)), Enqueued::Unlocked);
    assert_eq!(t.said(), [""; 0]);
    granted(t.enqueue(A, &record(1, LockMode::Pr, 1, 60, 60, 6)));
    assert_eq!(t.said(), ["granted 2 4"], "a downgrade lets readers in");
    assert_eq!(waiting.0, 6);
    // A reader is not held up by a writer that waits.
    t.waits(C, &record(1, LockMode::Pw, 1, 50, 50, 1));
    granted(t.enqueue(D, &record(1, LockMode::Pr, 1, 50, 50, 1)));
    t.interrupt(C, 1);
    assert_eq!(t.said(), ["refused 9 EINTR"]);
    for export in [A, B, D] {
        let owner = if export == B { 2 } else { 1 };
        assert_eq!(t.enqueue(export, &record(1, LockMode::Nl, owner, 0, u64::MAX, 90)), Enqueued::Unlocked);
    }
    assert!(t.locks.is_idle());
}

#[test]
fn rings_of_waiters_are_refused() {
    let mut t = Target::new();
    for (export, oid) in [(A, 1), (B, 2), (C, 3)] {
        assert!(matches!(t.enqueue(export, &record(oid, LockMode::Pw, 1, 0, 9, 1)), Enqueued::Granted(_)));
    }
    t.waits(A, &record(2, LockMode::Pw, 1, 0, 9, 2));
    t.waits(B, &record(3, LockMode::Pw, 1, 0, 9, 2));
    assert_eq!(t.enqueue(C, &record(1, LockMode::Pr, 1, 5, 5, 2)), Enqueued::Refused(Errno::EDEADLK));
    t.waits(C, &record(1, LockMode::Pr, 2, 5, 5, 3));
    // Two readers that both want to write.
    for export in [A, B] {
        assert!(matches!(t.enqueue(export, &record(9, LockMode::Pr, 5, 0, 9, 5)), Enqueued::Granted(_)));
    }
    t.waits(A, &record(9, LockMode::Pw, 5, 0, 9, 6));
    assert_eq!(t.enqueue(B, &record(9, LockMode::Pw, 5, 0, 9, 6)), Enqueued::Refused(Errno::EDEADLK));
}

#[test]
fn a_grant_can_close_a_ring() {
    let mut t = Target::new();
    assert!(matches!(t.enqueue(A, &record(1, LockMode::Pw, 1, 0, 9, 1)), Enqueued::Granted(_)));
    assert!(matches!(t.enqueue(B, &record(2, LockMode::Pw, 1, 0, 9, 1)), Enqueued::Granted(_)));
    // A thread of C's owner waits for B's lock, another one waits for A's, as does B behind it.
    t.waits(C, &record(2, LockMode::Pw, 1, 0, 9, 1));
    t.waits(C, &record(1, LockMode::Pw, 1, 0, 9, 2));
    let b = t.waits(B, &record(1, LockMode::Pw, 1, 0, 9, 2));
    assert_eq!(t.enqueue(A, &record(1, LockMode::Nl, 1, 0, 9, 3)), Enqueued::Unlocked);
    // C has file 1 now and waits for B; B must not wait for C.
    assert_eq!(t.said(), ["granted 3 2".to_owned(), format!("refused {} EDEADLK", b.0)]);
    assert!(stdx::marks::count("dlm.deadlock.by-grant") > 0);
}

#[test]
fn flock_is_a_world_of_its_own() {
    let mut t = Target::new();
    let granted = |e: Enqueued| assert!(matches!(e, Enqueued::Granted(_)), "{e:?}");
    granted(t.enqueue(A, &record(1, LockMode::Pw, 1, 0, 99, 1)));
    granted(t.enqueue(B, &flock(1, LockMode::Pr, 1, 1)));
    granted(t.enqueue(C, &flock(1, LockMode::Pr, 1, 1)));
    granted(t.enqueue(B, &flock(1, LockMode::Pr, 1, 2)));
    let w = t.waits(A, &flock(1, LockMode::Pw, 1, 2));
    // A change of mode gives the old lock up first.
    t.waits(B, &flock(1, LockMode::Pw, 1, 3));
    assert_eq!(t.enqueue(C, &flock(1, LockMode::Nl, 1, 2)), Enqueued::Unlocked);
    assert_eq!(t.said(), ["granted 1 2"]);
    assert_eq!(t.enqueue(A, &flock(1, LockMode::Nl, 1, 3)), Enqueued::Unlocked);
    assert_eq!(t.said(), ["granted 2 3"]);
    assert_eq!(w.0, 5);
    assert_eq!(t.locks.granted_on(&text(1)).len(), 2);
}

#[test]
fn a_late_copy_of_a_record_lock_request_locks_nothing() {
    let mut t = Target::new();
    let lock = record(1, LockMode::Pw, 1, 0, 9, 1);
    assert!(matches!(t.enqueue(A, &lock), Enqueued::Granted(_)));
    assert!(matches!(t.enqueue(A, &lock), Enqueued::Granted(_)));
    assert_eq!(t.enqueue(A, &record(1, LockMode::Nl, 1, 0, 9, 2)), Enqueued::Unlocked);
    assert!(matches!(t.enqueue(A, &lock), Enqueued::Granted(_)));
    assert!(t.locks.is_idle());
    assert!(stdx::marks::count("dlm.resend.executed") > 0);
    // A client replays what it had.
    let mut replay = record(1, LockMode::Pw, 1, 3, 4, 8);
    replay.granted_handle = 8;
    assert!(matches!(t.enqueue(A, &replay), Enqueued::Granted(_)));
    assert_eq!(t.enqueue(B, &replay), Enqueued::Refused(Errno::ESTALE));
    assert_eq!(t.locks.held(A).len(), 1);
}

/// Its client was told that it has nothing: whatever became free since, a copy locks nothing, and waits for nothing.
#[test]
fn a_late_copy_of_a_refused_record_lock_request_is_refused() {
    let mut t = Target::new();
    let mut copies = Vec::new();
    let mut refused = |export, lock, errno| copies.push((export, lock, errno));
    for (export, oid) in [(A, 1), (B, 2)] {
        assert!(matches!(t.enqueue(export, &record(oid, LockMode::Pw, 1, 0, 9, 1)), Enqueued::Granted(_)));
    }
    let at_once = EnqueueReq { no_wait: true, ..record(1, LockMode::Pw, 1, 0, 9, 2) };
    assert_eq!(t.enqueue(B, &at_once), Enqueued::Refused(Errno::EAGAIN));
    refused(B, at_once, Errno::EAGAIN);
    let interrupted = record(1, LockMode::Pw, 1, 0, 9, 3);
    t.waits(B, &interrupted);
    t.interrupt(B, 3);
    refused(B, interrupted, Errno::EINTR);
    t.waits(A, &record(2, LockMode::Pw, 1, 0, 9, 2));
    let circle = record(1, LockMode::Pw, 1, 0, 9, 4);
    assert_eq!(t.enqueue(B, &circle), Enqueued::Refused(Errno::EDEADLK));
    refused(B, circle, Errno::EDEADLK);
    // Others get what was in the way, and a grant closes a circle.
    t.waits(C, &record(2, LockMode::Pw, 1, 0, 9, 1));
    t.waits(C, &record(1, LockMode::Pw, 1, 0, 9, 2));
    let by_grant = record(1, LockMode::Pw, 1, 0, 9, 5);
    t.interrupt(A, 2);
    t.waits(B, &by_grant);
    assert_eq!(t.enqueue(A, &record(1, LockMode::Nl, 1, 0, 9, 3)), Enqueued::Unlocked);
    assert!(t.said().last().is_some_and(|said| said.ends_with("EDEADLK")));
    refused(B, by_grant, Errno::EDEADLK);
    let replay = EnqueueReq { granted_handle: 6, ..record(1, LockMode::Pw, 1, 0, 9, 6) };
    assert_eq!(t.enqueue(B, &replay), Enqueued::Refused(Errno::ESTALE));
    refused(B, replay, Errno::ESTALE);
    let early = EnqueueReq { no_wait: true, ..record(1, LockMode::Pw, 1, 0, 9, 7) };
    assert_eq!(t.enqueue(B, &early), Enqueued::Refused(Errno::EAGAIN));
    t.locks.refused_with(B, 7, Errno::EINTR);
    refused(B, early, Errno::EINTR);
    for export in [A, B, C] {
        for oid in [1, 2] {
            let cookie = 90 + u64::from(oid);
            assert_eq!(t.enqueue(export, &record(oid, LockMode::Nl, 1, 0, 9, cookie)), Enqueued::Unlocked);
        }
    }
    assert!(t.locks.is_idle());
    for (export, lock, errno) in copies {
        assert_eq!(t.enqueue(export, &lock), Enqueued::Refused(errno), "{lock:?}");
        assert!(t.locks.is_idle(), "{lock:?}");
    }
    // What was granted or given back is not refused afterwards.
    t.locks.refused_with(A, 1, Errno::EINTR);
    assert!(matches!(t.enqueue(A, &record(1, LockMode::Pw, 1, 0, 9, 1)), Enqueued::Granted(_)));
}

#[test]
fn there_are_limits_and_bad_requests() {
    let mut t = Target::new();
    t.locks.set_settings(Settings { locks_per_export_max: 3, ..Settings::default() });
    t.bits(A, LockMode::Pr, bits::UPDATE, 1);
    assert!(matches!(t.enqueue(A, &record(1, LockMode::Pr, 1, 0, 9, 2)), Enqueued::Granted(_)));
    assert!(matches!(t.enqueue(A, &record(1, LockMode::Pr, 1, 20, 29, 3)), Enqueued::Granted(_)));
    let more = request(file(1), LockMode::Pr, part(0, 1), 4);
    assert_eq!(t.enqueue(A, &more), Enqueued::Refused(Errno::ENOLCK));
    assert_eq!(t.enqueue(A, &record(1, LockMode::Pr, 1, 40, 49, 4)), Enqueued::Refused(Errno::ENOLCK));
    assert_eq!(t.enqueue(A, &record(7, LockMode::Pr, 1, 40, 49, 4)), Enqueued::Refused(Errno::ENOLCK));
    assert!(t.locks.granted_on(&text(7)).is_empty());
    // A flock that changes its mode is given up first, whatever comes of it, and so it needs no room.
    t.locks.set_settings(Settings { locks_per_export_max: 1, ..Settings::default() });
    for (mode, cookie) in [(LockMode::Pr, 1), (LockMode::Pw, 2)] {
        assert!(matches!(t.enqueue(B, &flock(3, mode, 1, cookie)), Enqueued::Granted(_)), "{mode:?}");
    }
    assert_eq!(t.enqueue(B, &flock(3, LockMode::Nl, 1, 3)), Enqueued::Unlocked);
    assert!(matches!(t.enqueue(C, &flock(4, LockMode::Pr, 1, 1)), Enqueued::Granted(_)));
    t.locks.set_settings(Settings { locks_per_export_max: 0, ..Settings::default() });
    assert_eq!(t.enqueue(C, &flock(4, LockMode::Pw, 1, 2)), Enqueued::Refused(Errno::ENOLCK));
    assert!(t.locks.granted_on(&text(4)).is_empty());
    t.locks.set_settings(Settings { locks_per_export_max: 3, ..Settings::default() });
    assert!(t.locks.try_grant(t.now, A, dir(), LockMode::Pr, 1, 0, 5).is_none());
    assert_eq!(t.enqueue(A, &record(1, LockMode::Nl, 1, 3, 4, 6)), Enqueued::Unlocked, "giving back always works");
    let flock = Policy::Flock(Flock::default());
    let bad = [
        request(file(1), LockMode::Pr, part(2, 1), 1),
        request(file(1), LockMode::Pr, Policy::Bits(1), 1),
        request(file(1), LockMode::Pr, flock, 1),
        request(dir(), LockMode::Pr, Policy::Bits(0), 1),
        request(dir(), LockMode::Nl, Policy::Bits(1), 1),
        request(dir(), LockMode::Unset, Policy::Bits(1), 1),
        request(dir(), LockMode::Pr, Policy::Bits(1), 0),
        request(text(1), LockMode::Cr, flock, 1),
        EnqueueReq { policy: None, ..request(dir(), LockMode::Pr, Policy::Bits(1), 1) },
        EnqueueReq { mode: 3, ..request(dir(), LockMode::Pr, Policy::Bits(1), 1) },
        EnqueueReq { glimpse: true, ..request(file(1), LockMode::Pr, part(0, 1), 1) },
        EnqueueReq { test: true, ..request(file(1), LockMode::Pr, part(0, 1), 1) },
        EnqueueReq { resource: Resource { kind: 77, ..dir() }, ..request(dir(), LockMode::Pr, Policy::Bits(1), 1) },
    ];
    for req in bad {
        assert_eq!(t.enqueue(B, &req), Enqueued::Refused(Errno::EINVAL), "{req:?}");
    }
    assert!(t.locks.held(B).is_empty());
    let mut now = request(dir(), LockMode::Pw, Policy::Bits(bits::UPDATE), 7);
    now.no_wait = true;
    assert_eq!(t.enqueue(B, &now), Enqueued::Refused(Errno::EAGAIN));
    assert_eq!(t.said(), [""; 0], "who does not wait calls nobody back");
}

/// The time without a connection counts for all locks of a client: whoever meets them one after another waits once.
#[test]
fn a_client_that_went_away_is_waited_for_once() {
    let timeout = Settings::default().lock_timeout;
    for (asked_after, waits) in [
        (Duration::ZERO, timeout),
        (timeout / 4, timeout * 3 / 4),
        (timeout * 19 / 20, timeout / AWAY_PART),
        (timeout * 5, timeout / AWAY_PART),
    ] {
        let mut t = Target::new();
        t.get(A, file(1), LockMode::Pw, part(0, 9), 1);
        t.locks.disconnected(t.now, A);
        t.now = t.now + asked_after;
        t.locks.disconnected(t.now, A);
        t.waits(B, &request(file(1), LockMode::Pw, part(0, 9), 2));
        assert_eq!(t.locks.deadline(), Some(t.now + waits), "{asked_after:?}");
        // It comes back: it has all its time to answer, and is asked again.
        t.locks.resend_callbacks(t.now, A);
        assert_eq!(t.locks.deadline(), Some(t.now + timeout));
        assert_eq!(t.said(), ["blocking 1 1", "blocking 1 1"]);
        t.now = t.now + timeout;
        t.locks.tick(t.now);
        assert_eq!(t.said(), ["overdue 1"]);
    }
}
