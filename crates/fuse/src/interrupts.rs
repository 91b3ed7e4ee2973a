//! Programs that get a signal while they wait for a call.
//!
//! The kernel tells us of a signal once for each request, whatever the signal does to the program, and of none that follows: a SIGKILL
//! after a signal with a handler brings no second INTERRUPT. It waits for our answer in any case. So a call is *watched* from its
//! INTERRUPT until it is answered: as soon as the thread that waits is to die, the call is abandoned.
//!
//! ```text
//! program                 kernel              here
//! read, waits             READ ─────────────► waits for a server
//! SIGALRM (a handler)     INTERRUPT ────────► watched: the program lives, so it goes on waiting
//! SIGKILL                 (nothing)
//!                                             seen in /proc/TID/status: abandoned, EINTR
//! (gone)                  ◄──────────────────
//! ```
//! A call that may wait for any time in the nature of the thing, a lock, is ended by any signal that the program handles.
//!
//! Of some signals the kernel says nothing: over io_uring, none of those that come while it hands the request to us, some tens of
//! microseconds or, on a busy machine, milliseconds. A program that ends by itself closes its files, without a word of the signal that
//! ended it. So a FLUSH that waits is watched from the start, and every other call once it has waited for long.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use client::api::CallId;
use host::client::Mount;

use crate::process::{self, Signal};

/// How often watched calls are looked at, if they are few.
const LOOK: Duration = Duration::from_millis(50);
/// With many, one of them costs this much of that time.
const LOOK_EACH: Duration = Duration::from_millis(1);
/// A call that has waited for so long is watched. It is also how long after its INTERRUPT a request may come here, by another way.
const LONG: Duration = Duration::from_secs(1);

/// The way to the thread that watches: a call, and whether a signal came for it.
pub(crate) struct Interrupts(Sender<(CallId, bool)>);

impl Interrupts {
    /// Watches the calls of a mount, as long as this lives.
    pub(crate) fn watch(client: Mount) -> io::Result<Interrupts> {
        let (sender, signalled) = mpsc::channel();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || watch(&client, &signalled))?;
        Ok(Interrupts(sender))
    }

    /// The program that waits for a call got a signal. The call may not be here yet, or no more.
    pub(crate) fn signalled(&self, id: CallId) {
        let _ = self.0.send((id, true));
    }

    /// A program that perhaps ends closes a file, and waits.
    pub(crate) fn closes(&self, id: CallId) {
        let _ = self.0.send((id, false));
    }
}

/// A call that is watched.
struct Watched {
    since: Instant,
    /// The kernel said that a signal came.
    told: bool,
    /// It was seen waiting.
    known: bool,
    /// A signal has ended its wait; the answer is on its way.
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
            Ok((id, told)) => {
                let watched = all.entry(id).or_insert_with(Watched::new);
                watched.told |= told;
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

/// One look at a call. Whether it is to be looked at again.
fn stays(client: &Mount, id: CallId, watched: &mut Watched) -> bool {
    let Some(caller) = client.waiting(id) else {
        return watched.told && !watched.known && watched.since.elapsed() < LONG;
    };
    watched.known = true;
    let signal = process::signal(caller.thread);
    if signal == Signal::Ends {
        client.abandon(id);
    } else if caller.interruptible && !watched.interrupted && (watched.told || signal == Signal::Handled) {
        watched.interrupted = true;
        client.interrupt(id);
    }
    true
}

impl Watched {
    fn new() -> Watched {
        Watched { since: Instant::now(), told: false, known: false, interrupted: false }
    }
}
