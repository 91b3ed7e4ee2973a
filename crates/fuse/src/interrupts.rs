//! Signals to programs that wait for a call.
//!
//! The kernel sends one INTERRUPT per request, for the first signal, whatever that does to the program: a SIGKILL
//! after a signal with a handler sends no second INTERRUPT. The kernel waits for an answer in any case. So a call is *watched* from its
//! INTERRUPT until it is answered: as soon as the waiting thread is about to die, the call is abandoned.
//!
//! ```text
//! program                 kernel              mount
//! read, waits             READ ─────────────► waits for a server
//! SIGALRM (a handler)     INTERRUPT ────────► watched: the program lives, so the call continues
//! SIGKILL                 (nothing)
//!                                             seen in /proc/TID/status: abandoned, EINTR
//! (gone)                  ◄──────────────────
//! ```
//! A lock request, which may wait without limit, is also ended by any signal that the program handles.
//!
//! Some signals cause no INTERRUPT: over io_uring, those that arrive while the kernel hands the request over, which takes some tens of
//! microseconds or, on a busy machine, milliseconds. A program that a signal ends closes its files, also without an INTERRUPT. So a
//! waiting FLUSH is watched from the start, and every other call once it has waited for [`LONG`].

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use client::api::CallId;
use host::client::Mount;

use crate::process::{self, Signal};

/// How often watched calls are checked, if they are few.
const LOOK: Duration = Duration::from_millis(50);
/// With many watched calls, the interval between checks is this much for each.
const LOOK_EACH: Duration = Duration::from_millis(1);
/// A call that has waited for this long is watched. An INTERRUPT is also kept for this long if its request has not arrived yet, because
/// the two take different paths.
const LONG: Duration = Duration::from_secs(1);

/// Sends to the watching thread: a call, and whether the kernel reported a signal for it.
pub(crate) struct Interrupts(Sender<(CallId, bool)>);

impl Interrupts {
    /// Watches the calls of a mount until it is dropped.
    pub(crate) fn watch(client: Mount) -> io::Result<Interrupts> {
        let (sender, signalled) = mpsc::channel();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || watch(&client, &signalled))?;
        Ok(Interrupts(sender))
    }

    /// The program that waits for a call got a signal. The call may not have arrived yet, or may be answered already.
    pub(crate) fn signalled(&self, id: CallId) {
        let _ = self.0.send((id, true));
    }

    /// A program, which may be exiting, waits for the close of a file.
    pub(crate) fn closes(&self, id: CallId) {
        let _ = self.0.send((id, false));
    }
}

/// A watched call.
struct Watched {
    since: Instant,
    /// The kernel reported a signal.
    signalled: bool,
    /// It was seen waiting at least once.
    seen: bool,
    /// A signal has ended its wait; the answer is in progress.
    interrupted: bool,
}

fn watch(client: &Mount, signalled: &Receiver<(CallId, bool)>) {
    let mut all: HashMap<CallId, Watched> = HashMap::new();
    let mut waiting: HashSet<CallId> = HashSet::new();
    let (mut looked, mut swept) = (Instant::now(), Instant::now());
    loop {
        let pause = LOOK.max(LOOK_EACH * all.len() as u32);
        let until_sweep = LONG.saturating_sub(swept.elapsed());
        let until_look = if all.is_empty() { until_sweep } else { pause.saturating_sub(looked.elapsed()) };
        match signalled.recv_timeout(until_look.min(until_sweep)) {
            Ok((id, signalled)) => {
                let watched = all.entry(id).or_insert_with(Watched::new);
                watched.signalled |= signalled;
                if !stays(client, id, watched) {
                    all.remove(&id);
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if looked.elapsed() >= pause {
            all.retain(|id, watched| stays(client, *id, watched));
            looked = Instant::now();
        }
        if swept.elapsed() >= LONG {
            let now: HashSet<CallId> = client.all_waiting().into_iter().collect();
            for id in now.intersection(&waiting) {
                all.entry(*id).or_insert_with(Watched::new);
            }
            (waiting, swept) = (now, Instant::now());
        }
    }
}

/// Checks a watched call. Returns whether it stays watched.
fn stays(client: &Mount, id: CallId, watched: &mut Watched) -> bool {
    let Some(caller) = client.waiting(id) else {
        return watched.signalled && !watched.seen && watched.since.elapsed() < LONG;
    };
    watched.seen = true;
    let signal = process::signal(caller.thread);
    if signal == Signal::Ends {
        client.abandon(id);
    } else if caller.interruptible && !watched.interrupted && (watched.signalled || signal == Signal::Handled) {
        watched.interrupted = true;
        client.interrupt(id);
    }
    true
}

impl Watched {
    fn new() -> Watched {
        Watched { since: Instant::now(), signalled: false, seen: false, interrupted: false }
    }
}
