//! A worker that is a client of its own: it creates empty files through the client library, without a mount, many at a
//! time.
//!
//! One thread keeps calls in flight and reads the sockets, as the threads of a mount do. The client outlives a task: it
//! keeps its cache, as a mount would, until the worker ends.

use std::io;
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

/// The file system that a worker is a client of, and how it creates files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Share {
    /// The address of its MGS.
    pub mgs: String,
    /// Its name.
    pub fsname: String,
    /// The number of creates in flight.
    pub in_flight: u16,
    /// Whether each create waits for the reply of the target.
    pub sync_metadata: bool,
    /// After this many creates, and at the end, everything is brought to disk; that time does not count for the creates. 0:
    /// never.
    pub burst: u64,
}

/// The result of a worker's creates.
#[derive(Debug, Default)]
pub struct Filled {
    /// The number of files that were created.
    pub made: u64,
    /// The time of the creates.
    pub time: Duration,
    /// The error that stopped it.
    pub error: Option<io::Error>,
}

/// The client of a worker.
#[derive(Default)]
pub struct Filler {
    client: Option<(Arc<Client>, bool)>,
}

/// How long an idle thread waits for an answer before it looks again.
const GLANCE: Duration = Duration::from_millis(1);
/// O_CREAT | O_EXCL | O_WRONLY on Linux.
const CREATE_NEW: u32 = 0o301;
const MODE: u32 = 0o644;

impl Filler {
    fn client(&mut self, share: &Share) -> anyhow::Result<Arc<Client>> {
        if let Some((client, sync_metadata)) = &self.client
            && *sync_metadata == share.sync_metadata
        {
            return Ok(client.clone());
        }
        self.client = None;
        let mgs = vec![share.mgs.parse().ok().with_context(|| format!("'{}' is no NID", share.mgs))?];
        let place = Place::Native { mgs, fsname: share.fsname.clone(), folder: String::new() };
        let manner = Manner { changes_in_flight: share.in_flight, sync_metadata: share.sync_metadata };
        match Client::start(&place, manner) {
            Ok(client) => Ok(self.client.insert((client, share.sync_metadata)).0.clone()),
            Err(reason) => bail!("{reason}"),
        }
    }

    /// Creates `count` empty files `PREFIXn` in a directory, given by its path from the root.
    ///
    /// # Errors
    /// There is no client, or no such directory.
    pub fn fill(&mut self, share: &Share, folder: &str, prefix: &str, count: u64) -> anyhow::Result<Filled> {
        let client = self.client(share)?;
        let mut native = Native::new(client.clone());
        let parent = native.directory(folder.as_bytes()).with_context(|| format!("'{folder}'"))?;
        let (answers, answered) = mpsc::channel();
        let mut work = Work {
            mount: client.mount(),
            cred: native.cred(),
            parent,
            prefix,
            next: 0,
            under_way: 0,
            answers,
            answered,
        };
        let mut filled = Filled::default();
        let burst = if share.burst == 0 { count } else { share.burst };
        while filled.made < count && filled.error.is_none() {
            let start = Instant::now();
            let end = count.min(work.next + burst);
            let (made, error) = work.make_until(end, u64::from(share.in_flight.max(1)));
            filled.time += start.elapsed();
            filled.made += made;
            filled.error = error.map(|errno| io::Error::from_raw_os_error(errno.raw()));
            if share.burst != 0 {
                native.bring_to_disk()?;
            }
        }
        Ok(filled)
    }
}

type Created = Result<Answer, Errno>;

/// Creates in flight.
struct Work<'a> {
    mount: &'a Mount,
    cred: Cred,
    parent: u64,
    prefix: &'a str,
    next: u64,
    under_way: u64,
    answers: Sender<Created>,
    answered: Receiver<Created>,
}

impl Work<'_> {
    /// Creates files up to number `end`, `in_flight` at a time. Returns how many were created, and the error that stopped
    /// it.
    fn make_until(&mut self, end: u64, in_flight: u64) -> (u64, Option<Errno>) {
        let (mut made, mut error) = (0, None);
        let mut calls = Vec::new();
        let mut attention = Attention::Unneeded;
        loop {
            while error.is_none() && self.next < end && self.under_way < in_flight {
                calls.push(self.create());
            }
            self.mount.submit_all(calls.drain(..));
            // While this thread attends, no other thread reads the sockets, so it must continue until that is no longer
            // needed.
            if self.under_way == 0 && attention == Attention::Unneeded {
                return (made, error);
            }
            attention = self.mount.attend(attention != Attention::Unneeded, &mut || false);
            let first = match attention {
                Attention::Again => self.answered.try_recv().ok(),
                Attention::Wait | Attention::Unneeded => self.wait(attention),
            };
            for answer in first.into_iter().chain(self.answered.try_iter()) {
                self.under_way -= 1;
                match answer {
                    Ok(answer) => {
                        made += 1;
                        calls.extend(leave(&self.cred, &answer));
                    }
                    Err(errno) => error = Some(errno),
                }
            }
        }
    }

    fn wait(&self, attention: Attention) -> Option<Created> {
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

    fn create(&mut self) -> (Cred, Call, Completion) {
        let name = Bytes::from(format!("{}{}", self.prefix, self.next));
        self.next += 1;
        self.under_way += 1;
        let answers = self.answers.clone();
        let call = Call::Create { parent: self.parent, name, mode: MODE, flags: CREATE_NEW };
        // If sending fails, the worker has ended.
        (self.cred.clone(), call, Box::new(move |result| drop(answers.send(result))))
    }
}

/// The calls that close a created file and release the reference to it.
fn leave(cred: &Cred, answer: &Answer) -> impl Iterator<Item = (Cred, Call, Completion)> {
    let calls = match answer {
        Answer::Created { stat, fh, .. } => {
            vec![Call::Release { fh: *fh, flock_owner: None }, Call::Forget { ino: stat.ino, count: 1 }]
        }
        _ => Vec::new(),
    };
    let cred = cred.clone();
    calls.into_iter().map(move |call| (cred.clone(), call, Box::new(|_| ()) as Completion))
}
