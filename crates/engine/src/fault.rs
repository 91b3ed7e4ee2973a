//! Signals from damaged pages: reports the damaged store and ends the process.
//!
//! LMDB trusts the pages that it maps. A corrupted tree page can lead it outside of the map (`SIGSEGV`) or fail one of its
//! assertions or the allocator's (`SIGABRT`), and a page that cannot be read, or that is past the end of the file, gives
//! `SIGBUS`. The process cannot survive these, because LMDB's locks and memory are in an unknown state. But they can be told
//! from bugs: each thread records the store on which it is inside LMDB. A signal on such a thread ends the process with a
//! message that names the store, the page if the address tells it, and what to do, and with an exit status of its own.
//!
//! The store itself is not changed: a commit becomes valid with its last page, after all others are durable.
//!
//! # Signal safety
//! The handler calls only `write` and `_exit`, and reads only prepared data: a thread-local cell without a destructor, and the
//! bytes that it points to.

use std::cell::Cell;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Once, OnceLock};

use libc::{c_int, c_void, sigaction, siginfo_t};

/// Exit status of a process that found damaged pages in a store: restarting it does not help. (`EX_DATAERR` of sysexits.)
pub const EXIT_DAMAGED: i32 = 65;

/// Signals that damaged pages can cause. The last one is from assertions of the allocator and of LMDB.
const SIGNALS: [c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGABRT];
/// The page size of LMDB in the files that it makes here.
const PAGE_SIZE: usize = 4096;
/// The actions that were set for these signals before.
static BEFORE: [OnceLock<sigaction>; SIGNALS.len()] = [const { OnceLock::new() }; SIGNALS.len()];

/// The prepared message about one store.
#[derive(Debug)]
pub(crate) struct DamageReport {
    what: Vec<u8>,
    advice: Vec<u8>,
    /// The address range of the mapped data file; empty if it is not known.
    map_start: AtomicUsize,
    map_end: AtomicUsize,
}

impl DamageReport {
    pub(crate) fn new(dir: &Path) -> DamageReport {
        let what = format!("ERROR the store in {} is damaged", dir.display());
        let advice = format!(
            ": what LMDB found there ended the process (status {EXIT_DAMAGED}). Put back a copy of that directory, or make the target \
             anew; its server's other targets can be served without it\n"
        );
        DamageReport {
            what: what.into_bytes(),
            advice: advice.into_bytes(),
            map_start: AtomicUsize::new(0),
            map_end: AtomicUsize::new(0),
        }
    }

    /// Finds the address range at which the file is mapped now.
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

    /// Records, until the guard is dropped, that this thread is inside LMDB on this store.
    pub(crate) fn inside(&self) -> Inside<'_> {
        Inside { outer: INSIDE.replace(self), _report: self }
    }
}

thread_local! {
    static INSIDE: Cell<*const DamageReport> = const { Cell::new(ptr::null()) };
}

/// See [`DamageReport::inside`].
pub(crate) struct Inside<'a> {
    outer: *const DamageReport,
    _report: &'a DamageReport,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        INSIDE.set(self.outer);
    }
}

/// Installs the signal handler, once per process. Signals on threads outside of LMDB do what they did before.
#[allow(unsafe_code)] // sigaction: the handler does only what a signal handler may do
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
                // Threads have an alternative stack, so that a stack overflow can be reported.
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigaction(signal, &raw const action, ptr::null_mut());
            }
        }
    });
}

/// Writes to standard error and ignores errors.
#[allow(unsafe_code)] // write, which a signal handler may call
fn print(bytes: &[u8]) {
    // SAFETY: the slice is valid for reads.
    unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
}

fn print_number(mut number: usize) {
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
    print(digits.get(at..).unwrap_or_default());
}

#[allow(unsafe_code)] // a signal handler: it allocates nothing, takes no lock, and reads only prepared data
extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    let report = INSIDE.get();
    if report.is_null() {
        restore_previous(signal);
        return;
    }
    // SAFETY: the code that set it is still inside LMDB on this thread and keeps the report alive. `info` is from the kernel, and
    // these two signals have an address there.
    let (report, address) = unsafe {
        let has_address = signal == libc::SIGSEGV || signal == libc::SIGBUS;
        (&*report, if has_address { (*info).si_addr() as usize } else { 0 })
    };
    print(&report.what);
    let (start, end) = (report.map_start.load(Relaxed), report.map_end.load(Relaxed));
    if (start..end).contains(&address) {
        print(b" at page ");
        print_number((address - start) / PAGE_SIZE);
        print(b" of its file");
    }
    print(&report.advice);
    // SAFETY: it ends the process without running any of its code.
    unsafe { libc::_exit(EXIT_DAMAGED) }
}

/// Restores the action that was set before, for a signal that LMDB did not cause. When the handler returns, the failed
/// instruction runs again, or `abort` sends its signal again.
#[allow(unsafe_code)] // sigaction, which a signal handler may call
fn restore_previous(signal: c_int) {
    let before = SIGNALS.iter().zip(&BEFORE).find(|(known, _)| **known == signal).and_then(|(_, before)| before.get());
    // SAFETY: it was the process's action before.
    match before {
        Some(before) => unsafe { libc::sigaction(signal, before, ptr::null_mut()) },
        None => unsafe { libc::signal(signal, libc::SIG_DFL) as c_int },
    };
}
