//! Which mutant is on: the module `stdx::mutants` of the copied sources that `cargo xtask mutants` builds.
//!
//! Every mutant is compiled in and asks here whether it is on. One number says which one is: none, one of them, or all
//! watched and none on, to learn which run reaches which place. The number comes from the environment, or from the
//! program that runs many seeds. Nothing here depends on time or on addresses, so a run stays a function of its seed.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::io::Write;

/// No mutant is on.
pub const NONE: u32 = 0;
/// No mutant is on, and every place that is reached is remembered.
pub const WATCH: u32 = u32::MAX - 1;
/// The environment has not been asked yet.
const UNREAD: u32 = u32::MAX;

static ACTIVE: AtomicU32 = AtomicU32::new(UNREAD);
/// One bit for each number of a mutant: whether its place was reached.
static REACHED: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// Turns a mutant on, or none, or watches all.
pub fn set(active: u32) {
    ACTIVE.store(active, Relaxed);
}

/// The numbers of the mutants whose places were reached since this was last asked, in order.
pub fn take_reached() -> Vec<u32> {
    let mut numbers = Vec::new();
    for (index, word) in REACHED.iter().enumerate() {
        let bits = word.swap(0, Relaxed);
        numbers.extend((0..64).filter(|bit| bits >> bit & 1 == 1).map(|bit| index as u32 * 64 + bit));
    }
    numbers
}

/// The place of this mutant is reached: whether it is on.
#[inline]
pub fn is_on(number: u32) -> bool {
    ACTIVE.load(Relaxed) != NONE && reach(number)
}

/// Whether what the mutant would do instead is worth working out: it is on or watched.
#[inline]
pub fn is_near(number: u32) -> bool {
    let active = ACTIVE.load(Relaxed);
    active != NONE && matches!(known(active), active if active == number || active == WATCH)
}

#[cold]
#[inline(never)]
fn reach(number: u32) -> bool {
    let active = known(ACTIVE.load(Relaxed));
    if active != number && active != WATCH {
        return false;
    }
    let (word, bit) = (&REACHED[number as usize / 64], 1 << (number % 64));
    if word.load(Relaxed) & bit == 0 && word.fetch_or(bit, Relaxed) & bit == 0 && active == WATCH {
        tell(number);
    }
    active == number
}

/// The number, after the environment was asked once.
fn known(active: u32) -> u32 {
    if active != UNREAD {
        return active;
    }
    let active = match std::env::var("ADAMANT_MUTANT").as_deref() {
        Ok("watch") => WATCH,
        Ok(number) => number.parse().expect("ADAMANT_MUTANT is a number, or 'watch'"),
        Err(_) => NONE,
    };
    ACTIVE.store(active, Relaxed);
    active
}

/// A program that does not ask which places were reached writes them to a file.
fn tell(number: u32) {
    if let Ok(path) = std::env::var("ADAMANT_MUTANTS_REACHED") {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).expect("the file of places");
        // At once: other threads write, too.
        file.write_all(format!("{number}\n").as_bytes()).expect("the file of places takes a line");
    }
}
