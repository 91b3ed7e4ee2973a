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
//! A call that may wait for any time in the nature of the thing, a lock, is ended by any signal.
//!
//! A program that ends by itself closes its files, and the kernel tells us nothing of a signal then. So a FLUSH that waits is watched
//! from the start.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use client::api::CallId;
use host::client::Mount;

use crate::process;

/// How often watched calls are looked at, if they are few.
const LOOK: Duration = Duration::from_millis(50);
/// With many, one of them costs this much of that time.
const LOOK_EACH: Duration = Duration::from_millis(1);
/// The request of an INTERRUPT may come by another way and later than that, but not later than this.
const LATE: Duration = Duration::from_secs(1);

/// The way to the thread that watches.
pub(crate) struct Interrupts(Sender<CallId>);

impl Interrupts {
    /// Watches the calls of a mount, as long as this lives.
    pub(crate) fn watch(client: Mount) -> io::Result<Interrupts> {
        let (sender, signalled) = mpsc::channel();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || watch(&client, &signalled))?;
        Ok(Interrupts(sender))
    }

    /// The program that waits for a call got a signal. The call may not be here yet, or no more.
    pub(crate) fn signalled(&self, id: CallId) {
        let _ = self.0.send(id);
    }

    /// A program that perhaps ends closes a file, and waits.
    pub(crate) fn closes(&self, id: CallId) {
        let _ = self.0.send(id);
    }
}

/// A call that is watched.
struct Watched {
    since: Instant,
    /// It was seen waiting.
    known: bool,
}

fn watch(client: &Mount, signalled: &Receiver<CallId>) {
    let mut all: HashMap<CallId, Watched> = HashMap::new();
    let mut looked = Instant::now();
    loop {
        let pause = LOOK.max(LOOK_EACH * all.len() as u32);
        let next = match all.is_empty() {
            true => signalled.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => signalled.recv_timeout(pause.saturating_sub(looked.elapsed())),
        };
        match next {
            Ok(id) => {
                let mut watched = Watched { since: Instant::now(), known: false };
                if stays(client, id, &mut watched) {
                    all.insert(id, watched);
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if looked.elapsed() >= pause {
            all.retain(|id, watched| stays(client, *id, watched));
            looked = Instant::now();
        }
    }
}

/// One look at a call. Whether it is to be looked at again.
fn stays(client: &Mount, id: CallId, watched: &mut Watched) -> bool {
    let Some(caller) = client.waiting(id) else {
        return !watched.known && watched.since.elapsed() < LATE;
    };
    if !watched.known && caller.interruptible {
        client.interrupt(id);
    }
    watched.known = true;
    if process::is_dying(caller.thread) {
        client.abandon(id);
    }
    true
}
