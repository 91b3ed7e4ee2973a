//! Process setup, and the budget of file descriptors.
//!
//! Half of the descriptors that the process may have are for incoming connections; further ones are closed at once. A
//! quarter is for data files that are kept open; beyond that, each file that is opened closes another. So some descriptors
//! are always left for stores and outgoing connections. If opening a data file fails because the process or the machine has
//! no descriptor left, it is retried until there is one: that is not a disk failure.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Called first in a process that serves or mounts. Restricts the files that it makes to its user (files 0600, folders
/// 0700), raises the limit of descriptors to its maximum, and seeds the hash tables with a random key.
pub fn prepare() {
    if !stdx::set_hash_key([crate::clock::seed(), crate::clock::seed()]) {
        tracing::warn!("hash tables were made before their key was drawn; report this as a bug");
    }
    crate::private::restrict_new_files();
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!("the process keeps {} descriptors: {error}", limit.current.unwrap_or(u64::MAX));
    }
}

/// The incoming connections of all targets of this process.
static SEATS: AtomicUsize = AtomicUsize::new(0);
/// The most incoming connections, whatever the limit of descriptors.
const SEATS_MAX: usize = 100_000;

/// The reservation of a descriptor for an incoming connection, returned when it is dropped.
#[derive(Debug)]
pub(crate) struct Seat(());

impl Seat {
    /// `None`: the process has as many connections as it may have.
    pub(crate) fn take() -> Option<Seat> {
        let most = connections_max();
        let taken = |count: usize| (count < most).then_some(count + 1);
        SEATS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).ok().map(|_| Seat(()))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        SEATS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The data files that all targets of this process keep open.
static FILES: AtomicUsize = AtomicUsize::new(0);

/// An open data file, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct HeldOpen(());

impl HeldOpen {
    pub(crate) fn count() -> HeldOpen {
        FILES.fetch_add(1, Ordering::Relaxed);
        HeldOpen(())
    }

    /// Whether the budget of open data files is used up.
    pub(crate) fn are_enough() -> bool {
        FILES.load(Ordering::Relaxed) >= connections_max() / 2
    }
}

impl Drop for HeldOpen {
    fn drop(&mut self) {
        FILES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The most incoming connections.
pub(crate) fn connections_max() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(descriptors / 2).unwrap_or(usize::MAX).min(SEATS_MAX)
}

/// How long to wait before the next attempt when there is no descriptor.
const AGAIN: Duration = Duration::from_millis(20);
/// The least time between two log lines about the lack of descriptors.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Runs `run`, and again for as long as it fails for lack of a descriptor. `give_back` closes something that can be opened
/// again, and returns whether it did.
///
/// # Errors
/// Any other error of `run`.
pub(crate) fn with_descriptor<T>(
    mut give_back: impl FnMut() -> bool,
    mut run: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let mut logged: Option<Instant> = None;
    loop {
        match run() {
            Err(error) if is_out_of_descriptors(&error) => {
                if give_back() {
                    continue;
                }
                if logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
                    logged = Some(Instant::now());
                    tracing::warn!(
                        "data files wait for a descriptor: {error}; raise the limit (ulimit -n, fs.file-max)"
                    );
                }
                std::thread::sleep(AGAIN);
            }
            other => return other,
        }
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_a_descriptor_waits_for_one() {
        let mut answers = [Errno::NFILE, Errno::MFILE, Errno::MFILE].into_iter();
        let mut given_back = 0;
        let give_back = || {
            given_back += 1;
            given_back == 1
        };
        let done = with_descriptor(give_back, || answers.next().map_or(Ok(7), |errno| Err(errno.into())));
        assert_eq!((done.unwrap(), given_back), (7, 3));
        let broken = with_descriptor(|| true, || Err::<(), _>(Errno::IO.into()));
        assert_eq!(broken.unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
    }

    #[test]
    fn connections_leave_half_of_the_descriptors() {
        let descriptors = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit as usize);
        assert!(connections_max() <= descriptors / 2 && connections_max() > 0);
        let seats: Vec<Seat> = std::iter::from_fn(Seat::take).take(10).collect();
        assert_eq!(seats.len(), 10);
    }
}
