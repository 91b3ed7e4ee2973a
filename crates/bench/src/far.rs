//! A remote network: a network namespace of its own, and a relay into it that delays every byte.
//!
//! A process that is started through [`Far::call`] finds nothing on its loopback but the relays that [`Far::relay`] made,
//! at the same addresses as the servers in this network. So a client of any version is slowed down without knowing. The
//! same holds for an echo, by which the delay is set: a lone echo takes longer by exactly the requested time, which
//! includes the time of the relay itself.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};

use anyhow::{anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use rustix::time::{ClockId, clock_gettime};

use crate::echo::{Echo, EchoServer};

type Job = Box<dyn FnOnce() + Send>;

/// A network in which every message arrives later. Its relays live as long as the process.
#[derive(Debug)]
pub struct Far {
    jobs: Sender<Job>,
    one_way_ns: Arc<AtomicU64>,
}

/// The number of echoes by which the delay is set and measured.
const ECHOES: u32 = 2_000;
/// The most bytes that wait in a relay, in each direction of a connection.
const HELD_MAX: usize = 8 << 20;

impl Far {
    /// Makes the namespace.
    ///
    /// # Errors
    /// Why it cannot be made on this machine.
    pub fn new() -> anyhow::Result<Far> {
        let (jobs, wanted) = mpsc::channel::<Job>();
        let (ready, outcome) = mpsc::channel();
        std::thread::spawn(move || {
            let made = enter();
            let works = made.is_ok();
            if ready.send(made).is_ok() && works {
                wanted.into_iter().for_each(|job| job());
            }
        });
        outcome.recv()??;
        Ok(Far { jobs, one_way_ns: Arc::default() })
    }

    /// Runs a function in the network: sockets that it makes and processes that it starts belong to the network.
    ///
    /// # Panics
    /// If `work` does.
    pub fn call<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (give, take) = mpsc::channel();
        let job: Job = Box::new(move || drop(give.send(work())));
        assert!(self.jobs.send(job).is_ok(), "an earlier call broke off");
        take.recv().expect("the call broke off")
    }

    /// Relays connections to an address in the network to the same address in this one.
    ///
    /// # Errors
    /// An error of the network.
    pub fn relay(&self, address: SocketAddr) -> io::Result<()> {
        let listener = self.call(move || TcpListener::bind(address))?;
        let one_way_ns = self.one_way_ns.clone();
        std::thread::spawn(move || {
            for accepted in listener.incoming() {
                let pair = accepted.and_then(|far| Ok((far, TcpStream::connect(address)?)));
                if let Ok((far, near)) = pair {
                    let _ = join(&far, &near, &one_way_ns);
                }
            }
        });
        Ok(())
    }

    /// An echo from a client in the network to `server`, which no other echo may use.
    ///
    /// # Errors
    /// An error of the network.
    pub fn echo(&self, server: &EchoServer) -> anyhow::Result<Echo> {
        let port = server.port;
        self.relay(([127, 0, 0, 1], port).into())?;
        Ok(self.call(move || Echo::connect(port))?)
    }

    /// Sets the delay so that a lone echo takes longer by `more_us` in the network than in this one. Returns both times, in
    /// microseconds.
    ///
    /// # Errors
    /// An error of the network.
    pub fn set_round_trip(&self, more_us: f64, near: &mut Echo, far: &mut Echo) -> anyhow::Result<(f64, f64)> {
        self.one_way_ns.store(0, Ordering::Relaxed);
        let near_us = near.measure(ECHOES, 1)?;
        let relay = (far.measure(ECHOES, 1)? - near_us).max(0.0);
        let one_way_us = ((more_us - relay) / 2.0).max(0.0);
        self.one_way_ns.store((one_way_us * 1e3) as u64, Ordering::Relaxed);
        Ok((near_us, far.measure(ECHOES, 1)?))
    }
}

/// Moves this thread to a new network with nothing but a loopback interface.
#[allow(unsafe_code)]
fn enter() -> anyhow::Result<()> {
    // SAFETY: a new network namespace leaves this thread's memory and descriptors as they are.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
        .map_err(|error| anyhow!("a network namespace cannot be made here: {error}; only root can"))?;
    let output = Command::new("ip").args(["link", "set", "lo", "up"]).output();
    let output = output.map_err(|error| anyhow!("ip: {error}; install iproute2"))?;
    if !output.status.success() {
        bail!("ip: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Joins two connections until both are closed.
fn join(far: &TcpStream, near: &TcpStream, one_way_ns: &Arc<AtomicU64>) -> io::Result<()> {
    for stream in [far, near] {
        stream.set_nodelay(true)?;
    }
    for (from, to) in [(far, near), (near, far)] {
        let (mut from, mut to, delay) = (from.try_clone()?, to.try_clone()?, one_way_ns.clone());
        std::thread::spawn(move || {
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            let _ = carry(&mut from, &mut to, &delay);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
    Ok(())
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Carries bytes in one direction, each delayed by the delay at the time when it arrives.
fn carry(from: &mut TcpStream, to: &mut TcpStream, one_way_ns: &AtomicU64) -> io::Result<()> {
    let mut held: VecDeque<(u64, Vec<u8>)> = VecDeque::new();
    let (mut bytes_held, mut ended, mut buffer) = (0, false, vec![0; 256 << 10]);
    loop {
        while held.front().is_some_and(|(due, _)| *due <= now_ns()) {
            if let Some((_, bytes)) = held.pop_front() {
                bytes_held -= bytes.len();
                to.write_all(&bytes)?;
            }
        }
        if ended && held.is_empty() {
            return Ok(());
        }
        let wait = held.front().map(|(due, _)| {
            let ns = due.saturating_sub(now_ns());
            Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
        });
        let more = !ended && bytes_held < HELD_MAX;
        let mut wanted = [PollFd::new(&*from, if more { PollFlags::IN } else { PollFlags::empty() })];
        // With no event to wait for, only the timeout applies.
        let ready = match poll(&mut wanted[..usize::from(more)], wait.as_ref()) {
            Ok(ready) => ready > 0,
            Err(rustix::io::Errno::INTR) => false,
            Err(error) => return Err(error.into()),
        };
        if ready {
            let count = from.read(&mut buffer)?;
            ended = count == 0;
            bytes_held += count;
            held.push_back((now_ns() + one_way_ns.load(Ordering::Relaxed), buffer[..count].to_vec()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_later_all_of_them_and_in_order() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (left, right) = (TcpListener::bind("127.0.0.1:0").unwrap(), listener.local_addr().unwrap());
        let echo = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            stream.write_all(&all).unwrap();
        });
        let mut program = TcpStream::connect(left.local_addr().unwrap()).unwrap();
        let delay = Arc::new(AtomicU64::new(20_000_000));
        join(&left.accept().unwrap().0, &TcpStream::connect(right).unwrap(), &delay).unwrap();
        let start = std::time::Instant::now();
        let sent: Vec<u8> = (0..3_000_000u32).map(|at| ((at * 7) >> 3) as u8).collect();
        program.write_all(&sent).unwrap();
        program.shutdown(Shutdown::Write).unwrap();
        let mut found = Vec::new();
        program.read_to_end(&mut found).unwrap();
        assert!(start.elapsed().as_millis() >= 40, "{:?}", start.elapsed());
        assert!(found == sent, "{} bytes of {}", found.len(), sent.len());
        echo.join().unwrap();
    }
}
