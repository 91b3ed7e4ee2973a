//! Fault injection: one small table per process, queried at named sites.
//!
//! A site is a place in the code with a number ([`sites`]). The driver of a machine passes it a [`Faults`], and the
//! machine asks it at each site whether the fault strikes now. A process without permission for fault injection has
//! [`Faults::none`]: no table, nothing to set, one branch per query. Otherwise all machines of the process share the
//! table, and an administrator sets it: `fail_loc` (flags and site), `fail_val`, `fail_err`. The parameters are
//! Lustre's.
//!
//! ```text
//!   fail_loc = 0x80000119     ONCE, site 0x119
//!   the site asks: strikes    fail_loc = 0xc0000119   (FAILED: a script sees that the site was reached)
//!   the site asks: no         ONCE and FAILED disarm it until fail_loc is written again
//! ```
//!
//! The machines define what a fault does; the table knows no operation.
//!
//! # Invariants
//! - The result depends on the order of queries, never on time: two runs with the same queries get the same results.
//!   Random faults follow from the seed.
//! - If a fault strikes once, it strikes one of several machines that query at the same time.

use core::time::Duration;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Rng;

/// A place where a fault can strike.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Site(pub u16);

/// The sites, with Lustre's numbers.
pub mod sites {
    use super::Site;

    macro_rules! sites {
        ($($(#[$doc:meta])* $name:ident = $num:literal, $text:literal;)*) => {
            $($(#[$doc])* pub const $name: Site = Site($num);)*
            /// Number and name of every site, ascending.
            pub const NAMES: &[(Site, &str)] = &[$(($name, $text),)*];
        };
    }

    sites! {
        /// A metadata target drops a request for attributes by FID.
        MDS_GETATTR_NET = 0x102, "OBD_FAIL_MDS_GETATTR_NET";
        /// A metadata target drops a change that is not an open.
        MDS_REINT_NET = 0x107, "OBD_FAIL_MDS_REINT_NET";
        /// A metadata target drops an open.
        MDS_OPEN_NET = 0x113, "OBD_FAIL_MDS_OPEN_NET";
        /// A metadata target drops a request with closes.
        MDS_CLOSE_NET = 0x115, "OBD_FAIL_MDS_CLOSE_NET";
        /// A metadata target refuses closes (`ENOMEM`).
        MDS_CLOSE_PACK = 0x116, "OBD_FAIL_MDS_CLOSE_PACK";
        /// A metadata target drops the answer to a change that is not an open.
        MDS_REINT_NET_REP = 0x119, "OBD_FAIL_MDS_REINT_NET_REP";
        /// A metadata target drops any reply.
        MDS_ALL_REPLY_NET = 0x122, "OBD_FAIL_MDS_ALL_REPLY_NET";
        /// A metadata target drops any request.
        MDS_ALL_REQUEST_NET = 0x123, "OBD_FAIL_MDS_ALL_REQUEST_NET";
        /// A metadata target delays opens.
        MDS_PAUSE_OPEN = 0x129, "OBD_FAIL_MDS_PAUSE_OPEN";
        /// A metadata target refuses a new client (`ENOSPC`).
        MDS_CLIENT_ADD = 0x12f, "OBD_FAIL_MDS_CLIENT_ADD";
        /// A metadata target drops the reply to a request that was not resent.
        MDS_RESEND = 0x136, "OBD_FAIL_MDS_RESEND";
        /// A metadata target drops the answer to closes.
        MDS_CLOSE_NET_REP = 0x13b, "OBD_FAIL_MDS_CLOSE_NET_REP";
        /// A metadata target delays changes that are not opens.
        MDS_REINT_DELAY = 0x142, "OBD_FAIL_MDS_REINT_DELAY";
        /// A metadata target drops the answer to an open, a lookup or an enqueue.
        MDS_LDLM_REPLY_NET = 0x157, "OBD_FAIL_MDS_LDLM_REPLY_NET";
        /// A metadata target drops every change that is not an open, for as long as it is set.
        MDS_REINT_MULTI_NET = 0x159, "OBD_FAIL_MDS_REINT_MULTI_NET";
        /// A metadata target drops the answer to every change that is not an open, for as long as it is set.
        MDS_REINT_MULTI_NET_REP = 0x15a, "OBD_FAIL_MDS_REINT_MULTI_NET_REP";
        /// A target in recovery executes the next queued replay, even if a client may still send an earlier one.
        MDS_RECOVERY_ACCEPTS_GAPS = 0x185, "OBD_FAIL_MDS_RECOVERY_ACCEPTS_GAPS";
        /// A target drops an enqueue (or an open or lookup).
        LDLM_ENQUEUE_NET = 0x302, "OBD_FAIL_LDLM_ENQUEUE_NET";
        /// A target drops the answer to an enqueue (or an open or lookup).
        LDLM_REPLY = 0x30c, "OBD_FAIL_LDLM_REPLY";
        /// The sender drops a request (except connects).
        PTLRPC_DROP_RPC = 0x505, "OBD_FAIL_PTLRPC_DROP_RPC";
        /// A target drops requests with the opcode in `fail_val`.
        PTLRPC_DROP_REQ_OPC = 0x513, "OBD_FAIL_PTLRPC_DROP_REQ_OPC";
        /// A target holds a request until it arrives a second time.
        PTLRPC_RESEND_RACE = 0x525, "OBD_FAIL_PTLRPC_RESEND_RACE";
        /// A client waits before its next replay.
        PTLRPC_REPLAY_PAUSE = 0x536, "OBD_FAIL_PTLRPC_REPLAY_PAUSE";
        /// A target drops a ping.
        OBD_PING_NET = 0x600, "OBD_FAIL_OBD_PING_NET";
        /// A target drops any reply.
        TGT_REPLY_NET = 0x700, "OBD_FAIL_TGT_REPLY_NET";
        /// A target delays the connect of a known client.
        TGT_DELAY_RECONNECT = 0x704, "OBD_FAIL_TGT_DELAY_RECONNECT";
        /// A target in recovery drops replays.
        TGT_REPLAY_DROP = 0x707, "OBD_FAIL_TGT_REPLAY_DROP";
        /// A target refuses a new client (`ENOSPC`).
        TGT_CLIENT_ADD = 0x711, "OBD_FAIL_TGT_CLIENT_ADD";
        /// A target keeps the record of a client that disconnects.
        TGT_CLIENT_DEL = 0x718, "OBD_FAIL_TGT_CLIENT_DEL";
        /// A starting target cannot read its clients' records (`EIO`).
        TGT_RCVD_EIO = 0x720, "OBD_FAIL_TGT_RCVD_EIO";
        /// An assertion fails in a target or a client. Lustre's counterpart is the parameter `force_lbug`.
        ASSERTION = 0xf000, "ADAMANT_FAIL_ASSERTION";
    }
}

/// Strikes at most once; together with [`FAILED`] the site is disarmed.
pub const ONCE: u32 = 0x8000_0000;
/// The site was hit.
pub const FAILED: u32 = 0x4000_0000;
/// Does not strike the first `fail_val` times.
pub const SKIP: u32 = 0x2000_0000;
/// Strikes `fail_val` times, and then no more.
pub const SOME: u32 = 0x1000_0000;
/// Strikes at random, once in `fail_val` times on average; never if that is less than 2.
pub const RAND: u32 = 0x0800_0000;
/// Strikes at every site that returns an error ([`Faults::hit_error`]), whichever site is named.
pub const FAULT: u32 = 0x0200_0000;

const SITE: u32 = 0xffff;

#[derive(Debug)]
struct State {
    loc: u32,
    val: u32,
    err: u32,
    /// Number of queries, as counted for SKIP and SOME.
    count: u32,
    rng: Rng,
}

#[derive(Debug)]
struct Table {
    /// A copy of `State::loc` that is read without the lock: the only cost for a process that allows faults and sets
    /// none.
    loc: AtomicU32,
    state: Mutex<State>,
}

/// A handle to the process's table of faults; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Faults(Option<Arc<Table>>);

impl Faults {
    /// No fault injection: for processes that do not allow it.
    pub fn none() -> Faults {
        Faults(None)
    }

    /// An empty table. Random faults follow from `seed`.
    pub fn allowed(seed: u64) -> Faults {
        let state = State { loc: 0, val: 0, err: 0, count: 0, rng: Rng::new(seed) };
        Faults(Some(Arc::new(Table { loc: AtomicU32::new(0), state: Mutex::new(state) })))
    }

    /// Whether there is a table.
    pub fn is_allowed(&self) -> bool {
        self.0.is_some()
    }

    fn read<T>(&self, look: impl FnOnce(&State) -> T) -> Option<T> {
        self.0.as_ref().map(|table| look(&table.lock()))
    }

    /// Flags and site.
    pub fn loc(&self) -> u32 {
        self.read(|state| state.loc).unwrap_or(0)
    }

    /// The parameter of flags and sites.
    pub fn val(&self) -> u32 {
        self.read(|state| state.val).unwrap_or(0)
    }

    /// The error that a site returns; 0: its default.
    pub fn err(&self) -> u32 {
        self.read(|state| state.err).unwrap_or(0)
    }

    /// Arms a site, or none with 0, and resets the count.
    pub fn set_loc(&self, loc: u32) {
        if let Some(table) = &self.0 {
            let mut state = table.lock();
            (state.loc, state.count) = (loc, 0);
            table.loc.store(loc, Ordering::Release);
        }
    }

    /// Sets the parameter of flags and sites, and resets the count.
    pub fn set_val(&self, val: u32) {
        if let Some(table) = &self.0 {
            let mut state = table.lock();
            (state.val, state.count) = (val, 0);
        }
    }

    /// Sets the error that a site returns, see [`Faults::err`].
    pub fn set_err(&self, err: u32) {
        if let Some(table) = &self.0 {
            table.lock().err = err;
        }
    }

    /// The site that is armed now; number 0 if [`FAULT`] is set and none is named.
    pub fn armed(&self) -> Option<Site> {
        let loc = self.0.as_ref()?.loc.load(Ordering::Acquire);
        let site = loc & SITE;
        ((site != 0 || loc & FAULT != 0) && loc & (ONCE | FAILED) != ONCE | FAILED).then_some(Site(site as u16))
    }

    /// Whether the fault strikes at this site, now.
    pub fn hit(&self, site: Site) -> bool {
        self.armed() == Some(site) && self.strike(site, 0)
    }

    /// As [`Faults::hit`], for a site that returns an error: with [`FAULT`] it strikes whichever site is named.
    pub fn hit_error(&self, site: Site) -> bool {
        self.hit(site)
            || self.loc() & FAULT != 0 && self.armed().is_some_and(|armed| armed != site && self.strike(armed, 0))
    }

    /// As [`Faults::hit`], for a site that strikes at most once even without [`ONCE`].
    pub fn hit_once(&self, site: Site) -> bool {
        self.armed() == Some(site) && self.strike(site, ONCE)
    }

    /// As [`Faults::hit`], for a site that strikes for the value `fail_val` only, or for any value if that is all ones.
    pub fn hit_value(&self, site: Site, value: u32) -> bool {
        self.armed() == Some(site) && matches!(self.val(), u32::MAX) | (self.val() == value) && self.strike(site, 0)
    }

    /// The delay, if the fault strikes: `fail_val` seconds, or `usual` if that is 0 or used as a count. During the
    /// delay the caller checks now and then whether the site is still named ([`Faults::names`]).
    pub fn delay(&self, site: Site, usual: Duration) -> Option<Duration> {
        if !self.hit(site) {
            return None;
        }
        let counts = self.loc() & (SKIP | SOME | RAND) != 0;
        Some(match self.val() {
            seconds if seconds > 0 && !counts => Duration::from_secs(seconds.into()),
            _ => usual,
        })
    }

    /// Whether `fail_loc` still names this site, hit or not: a delay ends early when it does not.
    pub fn names(&self, site: Site) -> bool {
        self.0.as_ref().is_some_and(|table| table.loc.load(Ordering::Acquire) & SITE == u32::from(site.0))
    }

    /// Decides under the lock, since another machine may have been struck meanwhile.
    fn strike(&self, site: Site, more: u32) -> bool {
        let Some(table) = &self.0 else { return false };
        let mut state = table.lock();
        if state.loc & SITE != u32::from(site.0) {
            return false;
        }
        let strikes = state.strike(more);
        table.loc.store(state.loc, Ordering::Release);
        strikes
    }
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn strike(&mut self, more: u32) -> bool {
        if self.loc & (ONCE | FAILED) == ONCE | FAILED {
            return false;
        }
        if self.loc & RAND != 0 && (self.val < 2 || self.rng.below(self.val.into()) != 0) {
            return false;
        }
        if self.loc & SKIP != 0 {
            self.count = self.count.saturating_add(1);
            if self.count <= self.val {
                return false;
            }
        }
        if self.loc & SOME != 0 {
            if self.count >= self.val {
                return false;
            }
            self.count += 1;
            if self.count == self.val {
                self.loc |= ONCE;
            }
        }
        self.loc |= FAILED | more;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Site = sites::MDS_REINT_NET;
    const LOC: u32 = HERE.0 as u32;

    fn set(loc: u32, val: u32) -> Faults {
        let faults = Faults::allowed(1);
        faults.set_val(val);
        faults.set_loc(loc);
        faults
    }

    /// Which of the first queries strike.
    fn asked(faults: &Faults, times: usize) -> Vec<bool> {
        (0..times).map(|_| faults.hit(HERE)).collect()
    }

    #[test]
    fn without_a_table_nothing_can_be_set() {
        let none = Faults::none();
        none.set_loc(LOC);
        none.set_val(3);
        assert!(!none.is_allowed() && !none.hit(HERE) && !none.hit_once(HERE) && none.armed().is_none());
        assert_eq!((none.loc(), none.val(), none.err()), (0, 0, 0));
    }

    #[test]
    fn a_plain_site_strikes_while_it_is_set() {
        let faults = set(LOC, 0);
        assert_eq!(asked(&faults, 3), [true; 3]);
        assert_eq!(faults.loc(), LOC | FAILED);
        assert!(!faults.hit(sites::MDS_CLOSE_NET));
        faults.set_loc(0);
        assert_eq!(asked(&faults, 1), [false]);
    }

    #[test]
    fn once_is_once_until_it_is_written_again() {
        for _ in 0..2 {
            let faults = set(LOC | ONCE, 0);
            assert_eq!(asked(&faults, 3), [true, false, false]);
            assert_eq!(faults.loc(), LOC | ONCE | FAILED);
            faults.set_loc(LOC | ONCE);
            assert_eq!(asked(&faults, 2), [true, false]);
        }
        let faults = set(LOC, 0);
        assert!(faults.hit_once(HERE) && !faults.hit_once(HERE) && !faults.hit(HERE));
        assert_eq!(faults.loc(), LOC | ONCE | FAILED, "the site says that it strikes once");
    }

    #[test]
    fn some_and_skip_count() {
        let faults = set(LOC | SOME, 2);
        assert_eq!(asked(&faults, 4), [true, true, false, false]);
        assert_eq!(faults.loc(), LOC | SOME | ONCE | FAILED);
        assert_eq!(asked(&set(LOC | SOME, 0), 2), [false, false]);
        assert_eq!(asked(&set(LOC | SKIP, 2), 4), [false, false, true, true]);
        assert_eq!(asked(&set(LOC | SKIP | ONCE, 2), 4), [false, false, true, false]);
    }

    #[test]
    fn at_random_follows_from_the_seed() {
        let struck = |val| asked(&set(LOC | RAND, val), 1000).iter().filter(|hit| **hit).count();
        assert_eq!((struck(0), struck(1)), (0, 0));
        assert!((150..350).contains(&struck(4)), "{}", struck(4));
        assert_eq!(asked(&set(LOC | RAND, 4), 50), asked(&set(LOC | RAND, 4), 50));
    }

    #[test]
    fn a_value_is_meant_or_any() {
        let faults = set(LOC, 36);
        assert!(!faults.hit_value(HERE, 35) && faults.loc() == LOC);
        assert!(faults.hit_value(HERE, 36));
        faults.set_val(u32::MAX);
        assert!(faults.hit_value(HERE, 35));
    }

    #[test]
    fn one_flag_means_every_site_that_gives_an_error() {
        let faults = set(FAULT, 0);
        assert!(!faults.hit(HERE), "this one gives none");
        assert!(faults.hit_error(sites::MDS_CLOSE_PACK) && faults.hit_error(sites::TGT_CLIENT_ADD));
        assert_eq!(faults.loc(), FAULT | FAILED);
        let faults = set(FAULT | SKIP | ONCE, 1);
        let asked: Vec<bool> = (0..3).map(|_| faults.hit_error(sites::MDS_CLOSE_PACK)).collect();
        assert_eq!(asked, [false, true, false]);
        let faults = set(FAULT | LOC, 0);
        assert!(faults.hit(HERE) && faults.hit_error(sites::MDS_CLOSE_PACK), "and the one that is named");
        let faults = set(u32::from(sites::MDS_CLOSE_PACK.0), 0);
        assert!(faults.hit_error(sites::MDS_CLOSE_PACK) && !faults.hit_error(sites::TGT_CLIENT_ADD));
    }

    #[test]
    fn a_delay_lasts_as_long_as_the_value_says() {
        let usual = Duration::from_secs(10);
        assert_eq!(set(LOC, 0).delay(HERE, usual), Some(usual));
        assert_eq!(set(LOC, 3).delay(HERE, usual), Some(Duration::from_secs(3)));
        assert_eq!(set(LOC | SOME, 3).delay(HERE, usual), Some(usual), "here the value means times");
        let faults = set(LOC | ONCE, 0);
        assert!(faults.delay(HERE, usual).is_some() && faults.names(HERE) && faults.delay(HERE, usual).is_none());
        faults.set_loc(0);
        assert!(!faults.names(HERE));
    }

    #[test]
    fn sites_are_named_once_and_in_order() {
        assert!(sites::NAMES.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
