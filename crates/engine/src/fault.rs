//! What damage of a store's pages does to the process.
//!
//! LMDB believes the pages that it maps: a tree page that the disk garbled can send it outside of the map (`SIGSEGV`), fail one of its
//! assertions or the allocator's (`SIGABRT`), and a page that cannot be read, or that the file has lost, is a `SIGBUS`. None of these
//! can be survived, for LMDB's locks and memory are in an unknown state. But they can be told from bugs: whoever enters LMDB notes the store that it
//! works on, per thread, and a signal that comes meanwhile ends the process with a line that names the store, the page if the
//! address says it, and the way out, and with a status of its own.
//!
//! Nothing was written: a commit becomes valid with its last page, after all others are durable.
//!
//! # In a signal handler
//! It calls `write` and `_exit` only, and reads what was prepared: a thread-local cell without a destructor, and the bytes it
//! points to.

use std::cell::Cell;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Once, OnceLock};

use libc::{c_int, c_void, sigaction, siginfo_t};

/// Exit status of a process that found a store's pages damaged: to start it again helps nobody. (`EX_DATAERR` of sysexits.)
pub const EXIT_DAMAGED: i32 = 65;

/// Signals that damaged pages give. The last is for assertions, the allocator's and LMDB's.
const SIGNALS: [c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGABRT];
/// LMDB's pages in the files that it makes here.
const PAGE_SIZE: usize = 4096;
/// What they did before.
static BEFORE: [OnceLock<sigaction>; SIGNALS.len()] = [const { OnceLock::new() }; SIGNALS.len()];

/// What is said of one store, prepared.
#[derive(Debug)]
pub(crate) struct LastWords {
    what: Vec<u8>,
    way_out: Vec<u8>,
    /// Where the data file is mapped; empty if that is not known.
    map_start: AtomicUsize,
    map_end: AtomicUsize,
}

impl LastWords {
    pub(crate) fn new(dir: &Path) -> LastWords {
        let what = format!("ERROR the store in {} is damaged", dir.display());
        let way_out = format!(
            ": what LMDB found there ended the process (status {EXIT_DAMAGED}). Put back a copy of that directory, or make the target \
             anew; its server's other targets can be served without it\n"
        );
        LastWords {
            what: what.into_bytes(),
            way_out: way_out.into_bytes(),
            map_start: AtomicUsize::new(0),
            map_end: AtomicUsize::new(0),
        }
    }

    /// Looks where the file is mapped now.
    pub(crate) fn find_map(&self, file: &Path) {
        let Some(path) = file.canonicalize().ok().and_then(|path| path.to_str().map(str::to_owned)) else { return };
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mut ranges = maps.lines().filter(|line| line.ends_with(&path)).filter_map(|line| {
            let (start, end) = line.split_once(' ')?.0.split_once('-')?;
            Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
        });
        if let Some((start, end)) = ranges.next() {
            self.map_start.store(start, Relaxed);
            self.map_end.store(end, Relaxed);
        }
    }

    /// Until the guard is dropped this thread works on this store inside LMDB.
    pub(crate) fn inside(&self) -> Inside<'_> {
        Inside { outer: INSIDE.replace(self), _words: self }
    }
}

thread_local! {
    static INSIDE: Cell<*const LastWords> = const { Cell::new(ptr::null()) };
}

/// See [`LastWords::inside`].
pub(crate) struct Inside<'a> {
    outer: *const LastWords,
    _words: &'a LastWords,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        INSIDE.set(self.outer);
    }
}

/// From now on the damage of any store of this process is told by its last line. Signals that come outside of LMDB do what they
/// did before.
#[allow(unsafe_code)] // sigaction: what the handler does is allowed there
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (signal, before) in SIGNALS.into_iter().zip(&BEFORE) {
            // SAFETY: the structures are plain data, all zeros are a valid value, and the handler has the type that SA_SIGINFO wants.
            unsafe {
                let mut old: sigaction = core::mem::zeroed();
                if libc::sigaction(signal, ptr::null(), &raw mut old) != 0 {
                    continue;
                }
                let _ = before.set(old);
                let mut action: sigaction = core::mem::zeroed();
                action.sa_sigaction = on_signal as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
                // Threads have an alternative stack, for the message at the overflow of the usual one.
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigaction(signal, &raw const action, ptr::null_mut());
            }
        }
    });
}

/// Writes to standard error, whatever comes of it.
#[allow(unsafe_code)] // write, which a signal handler may call
fn say(bytes: &[u8]) {
    // SAFETY: the bytes are there.
    unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
}

fn say_number(mut number: usize) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    while at > 0 {
        at -= 1;
        if let Some(digit) = digits.get_mut(at) {
            *digit = b'0' + (number % 10) as u8;
        }
        number /= 10;
        if number == 0 {
            break;
        }
    }
    say(digits.get(at..).unwrap_or_default());
}

#[allow(unsafe_code)] // a signal handler: no memory is taken, no lock; it reads what was prepared
extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    let words = INSIDE.get();
    if words.is_null() {
        give_back(signal);
        return;
    }
    // SAFETY: whoever set it is still inside LMDB on this thread and holds the words. The kernel gave `info`, and these two signals
    // have an address there.
    let (words, address) = unsafe {
        let has_address = signal == libc::SIGSEGV || signal == libc::SIGBUS;
        (&*words, if has_address { (*info).si_addr() as usize } else { 0 })
    };
    say(&words.what);
    let (start, end) = (words.map_start.load(Relaxed), words.map_end.load(Relaxed));
    if (start..end).contains(&address) {
        say(b" at page ");
        say_number((address - start) / PAGE_SIZE);
        say(b" of its file");
    }
    say(&words.way_out);
    // SAFETY: it ends the process, and runs nothing of it.
    unsafe { libc::_exit(EXIT_DAMAGED) }
}

/// Not ours: what was set before is set again. The instruction that failed is run again when the handler returns, and `abort` sends
/// its signal again.
#[allow(unsafe_code)] // sigaction, which a signal handler may call
fn give_back(signal: c_int) {
    let before = SIGNALS.iter().zip(&BEFORE).find(|(known, _)| **known == signal).and_then(|(_, before)| before.get());
    // SAFETY: it was the process's action before.
    match before {
        Some(before) => unsafe { libc::sigaction(signal, before, ptr::null_mut()) },
        None => unsafe { libc::signal(signal, libc::SIG_DFL) as c_int },
    };
}
