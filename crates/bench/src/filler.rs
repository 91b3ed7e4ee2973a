//! A worker that is a client of its own: it makes calls through the client library, without a mount, many at a time.
//!
//! One thread keeps calls in flight and reads the sockets, as the threads of a mount do. The client outlives a task: it
//! keeps its cache, as a mount would, until the worker ends or its next task wants a client of another kind.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use client::api::{Answer, Call};
use host::client::{Attention, Completion, Mount};
use proto::Errno;
use proto::msg::Cred;
use serde::{Deserialize, Serialize};

use crate::mdtest::native::{Client, Manner, Native};
use crate::mdtest::options::Place;
use crate::ops::{Directories, InFlight, Next, Op};

/// The file system that a worker is a client of, and how it changes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Share {
    /// The address of its MGS.
    pub mgs: String,
    /// Its name.
    pub fsname: String,
    /// The number of operations in flight.
    pub in_flight: u16,
    /// Whether each change waits for the reply of the target.
    pub sync_metadata: bool,
    /// After this many operations, and at the end, everything is brought to disk; that time does not count. 0: never.
    pub burst: u64,
}

/// What a client does in a task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The client.
    pub share: Share,
    /// The operation.
    pub op: Op,
    /// At most so many operations a second.
    pub per_second: Option<u32>,
}

/// The result of a worker's operations.
#[derive(Debug, Default)]
pub struct Filled {
    /// The number of operations.
    pub made: u64,
    /// The time of the operations.
    pub time: Duration,
    /// The time of each operation, in microseconds, if they were made one at a time.
    pub each_us: Vec<f64>,
    /// The error that stopped it.
    pub error: Option<io::Error>,
}

/// The clients of a worker: one for each file system, by the address of its MGS.
#[derive(Default)]
pub struct Filler {
    clients: BTreeMap<String, Known>,
}

/// A running client, and how it was started.
struct Known {
    client: Arc<Client>,
    in_flight: u16,
    sync_metadata: bool,
}

/// How long an idle thread waits for an answer before it looks again.
const GLANCE: Duration = Duration::from_millis(1);

/// The part of a task that says where, and how often.
#[derive(Clone, Debug)]
pub struct Names {
    /// The directory, by its path from the root.
    pub folder: String,
    /// The prefix of the names.
    pub prefix: String,
    /// The number of names.
    pub count: u64,
    /// The operations are repeated with the same names until this file exists.
    pub stop_file: Option<PathBuf>,
}

/// A task that can begin at once: the client runs and knows the directories.
pub struct Prepared {
    client: Arc<Client>,
    native: Native,
    at: Directories,
    order: Order,
    names: Names,
}

impl Filler {
    fn client(&mut self, share: &Share) -> anyhow::Result<Arc<Client>> {
        if let Some(known) = self.clients.get(&share.mgs)
            && known.sync_metadata == share.sync_metadata
            && known.in_flight >= share.in_flight
        {
            return Ok(known.client.clone());
        }
        // The old client gives its locks back before the new one asks for them.
        self.clients.remove(&share.mgs);
        let mgs = vec![share.mgs.parse().ok().with_context(|| format!("'{}' is no NID", share.mgs))?];
        let place = Place::Native { mgs, fsname: share.fsname.clone(), folder: String::new() };
        let manner = Manner { changes_in_flight: share.in_flight, sync_metadata: share.sync_metadata };
        let client = match Client::start(&place, manner) {
            Ok(client) => client,
            Err(reason) => bail!("{reason}"),
        };
        let known = Known { client: client.clone(), in_flight: share.in_flight, sync_metadata: share.sync_metadata };
        self.clients.insert(share.mgs.clone(), known);
        Ok(client)
    }

    /// Starts the client if it does not run yet, and finds the directories.
    ///
    /// # Errors
    /// There is no client, or no such directory.
    pub fn prepare(&mut self, order: &Order, names: Names) -> anyhow::Result<Prepared> {
        let client = self.client(&order.share)?;
        let mut native = Native::new(client.clone());
        let mut directory = |path: &str| native.directory(path.as_bytes()).with_context(|| format!("'{path}'"));
        let parent = directory(&names.folder)?;
        let to = order.op.to().map_or(Ok(parent), directory)?;
        Ok(Prepared { client, native, at: Directories { parent, to }, order: order.clone(), names })
    }
}

impl Prepared {
    /// Does the operations.
    ///
    /// # Errors
    /// What could not be brought to disk.
    pub fn run(&self) -> io::Result<Filled> {
        let (count, share) = (self.names.count, &self.order.share);
        let size = if let Op::Create { size } = self.order.op { size } else { 0 };
        let (answers, answered) = mpsc::channel();
        let mut work = Work {
            mount: self.client.mount(),
            cred: self.native.cred(),
            at: self.at,
            order: &self.order,
            names: &self.names,
            data: Bytes::from(vec![0x5a; size as usize]),
            start: Instant::now(),
            next: 0,
            under_way: 0,
            each_us: Vec::new(),
            answers,
            answered,
        };
        let mut filled = Filled::default();
        let burst = if share.burst == 0 { count } else { share.burst };
        while filled.made < count && filled.error.is_none() {
            let start = Instant::now();
            let end = count.min(work.next + burst);
            let (made, error) = work.until(end);
            filled.time += start.elapsed();
            filled.made += made;
            filled.error = error.map(|errno| io::Error::from_raw_os_error(errno.raw()));
            if share.burst != 0 {
                self.native.bring_to_disk()?;
            }
            if self.names.stop_file.is_some() {
                break;
            }
        }
        filled.made *= self.order.op.weight();
        filled.each_us = work.each_us;
        Ok(filled)
    }
}

/// An answer to an operation in flight.
type Answered = (InFlight, Result<Answer, Errno>);

/// Operations in flight.
struct Work<'a> {
    mount: &'a Mount,
    cred: Cred,
    at: Directories,
    order: &'a Order,
    names: &'a Names,
    data: Bytes,
    start: Instant,
    next: u64,
    under_way: u64,
    each_us: Vec<f64>,
    answers: Sender<Answered>,
    answered: Receiver<Answered>,
}

impl Work<'_> {
    /// Begins operations up to number `end`, so many at a time as the client may have in flight. Returns how many are done,
    /// and the error that stopped it.
    fn until(&mut self, end: u64) -> (u64, Option<Errno>) {
        let (mut made, mut error) = (0, None);
        let mut calls = Vec::new();
        let mut attention = Attention::Unneeded;
        loop {
            let is_over = error.is_some() || self.is_over(end);
            while !is_over && self.may_begin(end) {
                calls.push(self.begin());
            }
            self.mount.submit_all(calls.drain(..));
            // While this thread attends, no other thread reads the sockets, so it must continue until that is no longer
            // needed.
            if self.under_way == 0 && attention == Attention::Unneeded {
                if is_over {
                    return (made, error);
                }
                // The next operation is not due yet.
                std::thread::sleep(GLANCE);
            }
            attention = self.mount.attend(attention != Attention::Unneeded, &mut || false);
            let first = match attention {
                Attention::Again => self.answered.try_recv().ok(),
                Attention::Wait | Attention::Unneeded => self.wait(attention),
            };
            let ready: Vec<Answered> = first.into_iter().chain(self.answered.try_iter()).collect();
            for (item, answer) in ready {
                match answer.and_then(|answer| self.order.op.go_on(self.at, item, answer, &self.data)) {
                    Ok(Next::Call(call, item)) => calls.push(self.call(call, item)),
                    Ok(Next::Done(after, item)) => {
                        made += 1;
                        self.under_way -= 1;
                        if self.order.share.in_flight == 1 {
                            self.each_us.push(item.begun.elapsed().as_secs_f64() * 1e6);
                        }
                        calls.extend(after.into_iter().map(|call| self.unanswered(call)));
                    }
                    Err(errno) => {
                        self.under_way -= 1;
                        error = Some(errno);
                    }
                }
            }
        }
    }

    /// Whether no further operation begins.
    fn is_over(&self, end: u64) -> bool {
        self.names.stop_file.as_deref().map_or(self.next >= end, Path::exists)
    }

    /// Whether there is room for another operation now, and it is due.
    fn may_begin(&self, end: u64) -> bool {
        let is_due = self
            .order
            .per_second
            .is_none_or(|rate| self.next as f64 <= self.start.elapsed().as_secs_f64() * f64::from(rate));
        let is_wanted = self.names.stop_file.is_some() || self.next < end;
        is_wanted && is_due && self.under_way < u64::from(self.order.share.in_flight.max(1))
    }

    fn wait(&self, attention: Attention) -> Option<Answered> {
        if attention == Attention::Unneeded {
            // All calls are answered, or another thread reads.
            return self.answered.recv_timeout(GLANCE).ok();
        }
        let sockets = self.mount.sockets();
        let glance = rustix::event::Timespec { tv_sec: 0, tv_nsec: i64::from(GLANCE.subsec_nanos()) };
        let _ = rustix::event::poll(
            &mut [rustix::event::PollFd::from_borrowed_fd(sockets, rustix::event::PollFlags::IN)],
            Some(&glance),
        );
        self.answered.try_recv().ok()
    }

    fn begin(&mut self) -> (Cred, Call, Completion) {
        let number = if self.names.stop_file.is_some() { self.next % self.names.count.max(1) } else { self.next };
        let name = Bytes::from(format!("{}{number}", self.names.prefix));
        self.next += 1;
        self.under_way += 1;
        let (call, item) = self.order.op.begin(self.at, name);
        self.call(call, item)
    }

    fn call(&self, call: Call, item: InFlight) -> (Cred, Call, Completion) {
        let answers = self.answers.clone();
        // If sending fails, the worker has ended.
        (self.cred.clone(), call, Box::new(move |result| drop(answers.send((item, result)))))
    }

    fn unanswered(&self, call: Call) -> (Cred, Call, Completion) {
        (self.cred.clone(), call, Box::new(|_| ()))
    }
}
