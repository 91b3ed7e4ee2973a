//! Faults on purpose: one small table of a process, asked at named sites.
//!
//! A site is a place in the code with a number ([`sites`]). Whoever runs a machine hands it a [`Faults`]; the machine asks
//! it at each of its sites whether the fault strikes now. A process that was not started with fault injection allowed has
//! [`Faults::none`]: no table, nothing that could be set, one branch for each question. Otherwise the table is shared by
//! all machines of the process, and an administrator sets it: `fail_loc` (flags and site), `fail_val`, `fail_err`.
//!
//! ```text
//!   fail_loc = 0x80000119     ONCE, site 0x119
//!   the site asks: strikes    fail_loc = 0xc0000119   (FAILED: a script sees that the site was reached)
//!   the site asks: no         ONCE and FAILED disarm it until fail_loc is written again
//! ```
//!
//! What this leaves to the machines: what a fault is. The table knows no operation.
//!
//! # Invariants
//! - The order of questions decides, never time: two runs that ask the same get the same. What strikes at random follows
//!   from the seed.
//! - Of several machines that ask at once, one is struck if the fault strikes once.

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
        /// A metadata target drops an answer, whatever to.
        MDS_ALL_REPLY_NET = 0x122, "OBD_FAIL_MDS_ALL_REPLY_NET";
        /// A metadata target drops a request, whatever for.
        MDS_ALL_REQUEST_NET = 0x123, "OBD_FAIL_MDS_ALL_REQUEST_NET";
        /// A metadata target lets opens wait.
        MDS_PAUSE_OPEN = 0x129, "OBD_FAIL_MDS_PAUSE_OPEN";
        /// A metadata target has no room for a new client (`ENOSPC`).
        MDS_CLIENT_ADD = 0x12f, "OBD_FAIL_MDS_CLIENT_ADD";
        /// A metadata target drops the answer to what comes for the first time.
        MDS_RESEND = 0x136, "OBD_FAIL_MDS_RESEND";
        /// A metadata target drops the answer to closes.
        MDS_CLOSE_NET_REP = 0x13b, "OBD_FAIL_MDS_CLOSE_NET_REP";
        /// A metadata target lets changes that are not opens wait.
        MDS_REINT_DELAY = 0x142, "OBD_FAIL_MDS_REINT_DELAY";
        /// A metadata target drops the answer to an open, a lookup or an enqueue.
        MDS_LDLM_REPLY_NET = 0x157, "OBD_FAIL_MDS_LDLM_REPLY_NET";
        /// A metadata target drops every change that is not an open, for as long as it is set.
        MDS_REINT_MULTI_NET = 0x159, "OBD_FAIL_MDS_REINT_MULTI_NET";
        /// A metadata target drops the answer to every change that is not an open, for as long as it is set.
        MDS_REINT_MULTI_NET_REP = 0x15a, "OBD_FAIL_MDS_REINT_MULTI_NET_REP";
        /// A target that recovers takes the next replay that is there, whoever may still send an earlier one.
        MDS_RECOVERY_ACCEPTS_GAPS = 0x185, "OBD_FAIL_MDS_RECOVERY_ACCEPTS_GAPS";
        /// A target drops an enqueue (or an open or lookup).
        LDLM_ENQUEUE_NET = 0x302, "OBD_FAIL_LDLM_ENQUEUE_NET";
        /// A target drops the answer to an enqueue (or an open or lookup).
        LDLM_REPLY = 0x30c, "OBD_FAIL_LDLM_REPLY";
        /// The sender drops a request, but for connects.
        PTLRPC_DROP_RPC = 0x505, "OBD_FAIL_PTLRPC_DROP_RPC";
        /// A target drops requests with the opcode in `fail_val`.
        PTLRPC_DROP_REQ_OPC = 0x513, "OBD_FAIL_PTLRPC_DROP_REQ_OPC";
        /// A target holds a request until it comes a second time.
        PTLRPC_RESEND_RACE = 0x525, "OBD_FAIL_PTLRPC_RESEND_RACE";
        /// A client waits before its next replay.
        PTLRPC_REPLAY_PAUSE = 0x536, "OBD_FAIL_PTLRPC_REPLAY_PAUSE";
        /// A target drops a sign of life.
        OBD_PING_NET = 0x600, "OBD_FAIL_OBD_PING_NET";
        /// A target drops an answer, whatever to.
        TGT_REPLY_NET = 0x700, "OBD_FAIL_TGT_REPLY_NET";
        /// A target lets the connect of a client that was here before wait.
        TGT_DELAY_RECONNECT = 0x704, "OBD_FAIL_TGT_DELAY_RECONNECT";
        /// A target that recovers drops replays.
        TGT_REPLAY_DROP = 0x707, "OBD_FAIL_TGT_REPLAY_DROP";
        /// A target has no room for a new client (`ENOSPC`).
        TGT_CLIENT_ADD = 0x711, "OBD_FAIL_TGT_CLIENT_ADD";
        /// A target keeps the record of a client that says good-bye.
        TGT_CLIENT_DEL = 0x718, "OBD_FAIL_TGT_CLIENT_DEL";
        /// A target that starts cannot read its clients' records (`EIO`).
        TGT_RCVD_EIO = 0x720, "OBD_FAIL_TGT_RCVD_EIO";
        /// An assertion fails in a target or a client. Lustre has the parameter `force_lbug` for it.
        ASSERTION = 0xf000, "ADAMANT_FAIL_ASSERTION";
    }
}

/// At most one hit ever; together with [`FAILED`]: the site is disarmed.
pub const ONCE: u32 = 0x8000_0000;
/// The site was hit.
pub const FAILED: u32 = 0x4000_0000;
/// Not the first `fail_val` times.
pub const SKIP: u32 = 0x2000_0000;
/// `fail_val` times, and then no more.
pub const SOME: u32 = 0x1000_0000;
/// Once in `fail_val` times, at random; never if that is less than 2.
pub const RAND: u32 = 0x0800_0000;
/// Every site that gives an error ([`Faults::hit_error`]), whichever is named.
pub const FAULT: u32 = 0x0200_0000;

const SITE: u32 = 0xffff;

#[derive(Debug)]
struct State {
    loc: u32,
    val: u32,
    err: u32,
    /// How often the site asked, as far as SKIP and SOME count it.
    count: u32,
    rng: Rng,
}

#[derive(Debug)]
struct Table {
    /// `State::loc`, to be looked at without the lock: a process that allows faults and sets none pays for this alone.
    loc: AtomicU32,
    state: Mutex<State>,
}

/// A process's table of faults; a handle, cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Faults(Option<Arc<Table>>);

impl Faults {
    /// No faults, for ever: what a process has that was not told to allow them.
    pub fn none() -> Faults {
        Faults(None)
    }

    /// A table in which nothing is set. What strikes at random follows from `seed`.
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

    /// The number that flags and sites take.
    pub fn val(&self) -> u32 {
        self.read(|state| state.val).unwrap_or(0)
    }

    /// The error that a site gives instead of its own; 0: its own.
    pub fn err(&self) -> u32 {
        self.read(|state| state.err).unwrap_or(0)
    }

    /// Arms a site, or with 0 none. Counting begins again.
    pub fn set_loc(&self, loc: u32) {
        if let Some(table) = &self.0 {
            let mut state = table.lock();
            (state.loc, state.count) = (loc, 0);
            table.loc.store(loc, Ordering::Release);
        }
    }

    /// Counting begins again.
    pub fn set_val(&self, val: u32) {
        if let Some(table) = &self.0 {
            let mut state = table.lock();
            (state.val, state.count) = (val, 0);
        }
    }

    /// See [`Faults::err`].
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

    /// The same for a site at which something fails with an error: with [`FAULT`] it is meant whichever site is named.
    pub fn hit_error(&self, site: Site) -> bool {
        self.hit(site)
            || self.loc() & FAULT != 0 && self.armed().is_some_and(|armed| armed != site && self.strike(armed, 0))
    }

    /// The same for a site that strikes once whether that was asked for or not.
    pub fn hit_once(&self, site: Site) -> bool {
        self.armed() == Some(site) && self.strike(site, ONCE)
    }

    /// The same for a site that is about one value: `fail_val`, or any if that is all ones.
    pub fn hit_value(&self, site: Site, value: u32) -> bool {
        self.armed() == Some(site) && matches!(self.val(), u32::MAX) | (self.val() == value) && self.strike(site, 0)
    }

    /// How long something takes longer, if the fault strikes: `fail_val` seconds, or `usual` if that is 0 or means times.
    /// Whoever waits looks again now and then whether the site is still [`Faults::armed`] or was [hit once](FAILED).
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

    /// The decision, under the lock: another machine may have been struck meanwhile.
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

    /// Which of the first questions strike.
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
