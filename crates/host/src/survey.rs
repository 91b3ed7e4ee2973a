//! The load generator of `mds-survey` and of `lctl test_create` and its like: requests that go directly to a running metadata
//! target, made on the target's own thread.
//!
//! There is no network and no client. Each stream is a session whose connection exists only in this process, and its
//! requests are handed to the machine as frames, like those of any client. So each operation is the real one, with its
//! checks, locks, reply record and place in a group; only encoding, sockets and the work of the client are missing. A
//! stream has one request outstanding; a thread of the survey is one or more streams.
//!
//! The directories exist beforehand: whoever gives the orders has them made by a client, because they may lie on several
//! targets. A survey works in the stripes that are on its own target, and gives its files names that belong there.
//!
//! A stream takes all the FID sequences that it will need before the first test, because a grant waits for the disk. What a
//! survey owns ([`Content::Own`]) is removed by [`Order::Close`], or after a minute without an order; the directories stay.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message;
use proto::connect::{PROTOCOL_VERSION, features};
use proto::frame::flags;
use proto::msg::{
    ConnectRep, ConnectReq, CreateOp, Cred, DirHash, Empty, GetattrReq, LookupReq, ObjectRep, Reint, ReintReq,
    SeqAllocRep, SeqAllocReq, SetxattrOp, UnlinkOp,
};
use proto::{Errno, Fid, Frame, Handle, Header, Opcode, Tag, Xid};
use rules::stripes;
use serde::{Deserialize, Serialize};
use target::ConnId;

use crate::clock;

/// An order for the survey of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Make the sessions.
    Open(Plan),
    /// Start a test.
    Run(Test),
    /// Report the progress.
    Status,
    /// Stop the running test.
    Stop,
    /// Remove what is left, and end the sessions.
    Close,
}

/// The size of a survey.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The number of threads.
    pub threads: u32,
    /// The streams of each thread.
    pub outstanding: u32,
    /// The directories; thread t works in number t modulo their count.
    pub folders: Vec<Folder>,
    /// The number of files of all threads together. Each has the same number of them, and of names.
    pub files: u64,
    /// The number in the name of the first file of the first thread.
    pub start: u64,
    /// Whose the files are.
    pub content: Content,
}

/// A directory, or that stripe of one which is on the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Folder {
    /// The sequence of its FID.
    pub seq: u64,
    /// The number in the sequence.
    pub oid: u32,
    /// The function that assigns names to stripes, a [`proto::msg::DirHash`].
    pub hash: i32,
    /// The number of stripes; 1: it is not striped.
    pub stripes: u32,
    /// Which of them this is.
    pub stripe: u32,
}

/// Whose the files of a survey are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// Its own: create is its first test, and what is left at the end is removed.
    Own,
    /// It makes them, and they stay.
    Made,
    /// They exist; a test finds them by their names.
    Found,
}

/// The operation that every stream does with each of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// Creates a regular file, without opening it.
    Create,
    /// Looks up a name.
    Lookup,
    /// Reads the attributes of an object.
    MdGetattr,
    /// Sets an extended attribute of an object.
    Setxattr,
    /// Removes the name and the file.
    Destroy,
    /// Creates a directory.
    Mkdir,
    /// Removes the name and the directory.
    Rmdir,
}

/// The progress of a survey.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Whether a test or another stage is running.
    pub running: bool,
    /// The operations of the running test, or of the last one.
    pub done: u64,
    /// How long it has run, in seconds.
    pub seconds: f64,
    /// The operations per second in each second of it.
    pub samples: Vec<f64>,
    /// Why it ended early, as a sentence.
    pub failure: Option<String>,
}

/// Why a plan is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlanError {
    /// Too few or too many streams, or more folders than threads.
    #[error(
        "a survey has 1 to {STREAMS_MAX} streams (threads times outstanding) and at most as many directories as threads"
    )]
    Streams,
    /// Fewer files than streams.
    #[error("each thread needs at least one file; raise file_count")]
    Files,
}

/// Why an order is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OrderError {
    /// The plan is refused.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A target has only one survey at a time.
    #[error("a survey of this target is under way; let it end")]
    SurveyUnderWay,
    /// A survey has only one test at a time.
    #[error("a test of this survey is under way; let it end")]
    TestUnderWay,
    /// A survey is closed between its tests.
    #[error("a test of this survey is under way; stop it first")]
    NotStopped,
    /// No survey is open that could take the order.
    #[error("target '{target}' has no survey under way; begin one first")]
    NoSurvey {
        /// The target's name.
        target: String,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Connect,
    TakeSequences,
    Idle,
    Run(Test),
    RemoveFiles,
    Disconnect,
    Over,
}

struct Stream {
    handle: Handle,
    xid: u64,
    uuid: Bytes,
    sequences: Vec<u64>,
    waits: bool,
    /// The next item of the stage, and the first after its own.
    at: u64,
    end: u64,
    /// The first of its files that exist, and the first after them.
    first_file: u64,
    files: u64,
    /// The object of the next file, whose name was looked up.
    found: Option<Fid>,
}

/// The survey of one target.
pub struct Survey {
    target: String,
    plan: Plan,
    first_conn: u64,
    streams: Vec<Stream>,
    stage: Stage,
    /// Streams that may send.
    ready: VecDeque<usize>,
    /// Streams that have not finished the stage.
    unfinished: usize,
    stop: bool,
    started: Instant,
    sampled: (Instant, u64),
    status: Status,
    last_order: Instant,
    ended: bool,
}

/// The most streams of a survey.
const STREAMS_MAX: u32 = 4096;
/// A survey stops and closes itself after this long without an order: whoever gave orders asks for the progress all the time.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time over which a rate is taken.
const SAMPLE: Duration = Duration::from_secs(1);
/// The most names that are tried for a file until one belongs to the stripe.
const NAMES_TRIED_MAX: u32 = 100_000;
const ALL_CAPABILITIES: u64 = (1 << 41) - 1;
const MODE_FILE: u32 = 0o100_644;
const MODE_FOLDER: u32 = 0o040_755;

impl Survey {
    /// Plans a survey of `target` over connections whose numbers start at `first_conn`.
    ///
    /// # Errors
    /// The plan is refused.
    pub fn new(target: String, plan: Plan, first_conn: u64) -> Result<Survey, PlanError> {
        let streams = plan.threads.saturating_mul(plan.outstanding);
        let folders = plan.folders.len();
        if streams == 0 || streams > STREAMS_MAX || folders == 0 || folders > plan.threads as usize {
            return Err(PlanError::Streams);
        }
        let each = plan.files / u64::from(streams);
        if each == 0 {
            return Err(PlanError::Files);
        }
        let stream = |_| Stream {
            handle: Handle(0),
            xid: (clock::seed() >> 16) | 1,
            uuid: Bytes::copy_from_slice(&clock::uuid().0.to_be_bytes()),
            sequences: Vec::new(),
            waits: false,
            at: 0,
            end: 1,
            first_file: 0,
            files: 0,
            found: None,
        };
        let now = Instant::now();
        let mut survey = Survey {
            target,
            plan,
            first_conn,
            streams: (0..streams).map(stream).collect(),
            stage: Stage::Connect,
            ready: VecDeque::new(),
            unfinished: 0,
            stop: false,
            started: now,
            sampled: (now, 0),
            status: Status::default(),
            last_order: now,
            ended: false,
        };
        survey.begin(Stage::Connect);
        Ok(survey)
    }

    /// Its connections.
    pub fn conns(&self) -> impl Iterator<Item = ConnId> + use<> {
        (self.first_conn..self.first_conn + self.streams.len() as u64).map(ConnId)
    }

    /// The connections, which are to be closed. Given once, when the survey is over.
    pub fn take_conns(&mut self) -> Vec<ConnId> {
        if !self.is_over() || self.ended {
            return Vec::new();
        }
        self.ended = true;
        self.conns().collect()
    }

    /// Whether a connection belongs to the survey.
    pub fn owns(&self, conn: ConnId) -> bool {
        (self.first_conn..self.first_conn + self.streams.len() as u64).contains(&conn.0)
    }

    /// Whether nothing is left to do, so that the connections can be closed.
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Whether a stream can send.
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes an order.
    ///
    /// # Errors
    /// The order does not fit the current stage.
    pub fn order(&mut self, order: &Order) -> Result<(), OrderError> {
        self.last_order = Instant::now();
        match order {
            Order::Open(_) => Err(OrderError::SurveyUnderWay),
            Order::Run(test) if self.stage == Stage::Idle => {
                self.status = Status::default();
                self.begin(Stage::Run(*test));
                Ok(())
            }
            Order::Run(_) => Err(OrderError::TestUnderWay),
            Order::Status => Ok(()),
            Order::Stop => {
                self.stop = true;
                self.skip_rest();
                Ok(())
            }
            Order::Close => {
                if self.stage == Stage::Idle {
                    self.close();
                    Ok(())
                } else {
                    Err(OrderError::NotStopped)
                }
            }
        }
    }

    /// The progress.
    pub fn status(&self) -> Status {
        let mut status = self.status.clone();
        status.running = !matches!(self.stage, Stage::Idle | Stage::Over);
        if matches!(self.stage, Stage::Run(_)) {
            status.seconds = self.started.elapsed().as_secs_f64();
        }
        status
    }

    /// Called once a second.
    pub fn second(&mut self) {
        self.sample(Instant::now());
        if self.last_order.elapsed() > PATIENCE {
            match self.stage {
                Stage::Run(_) => self.skip_rest(),
                Stage::Idle => self.close(),
                _ => {}
            }
        }
    }

    /// Notes the rate if a second of a test has passed.
    fn sample(&mut self, now: Instant) {
        let (before, done) = self.sampled;
        let passed = now.saturating_duration_since(before);
        if matches!(self.stage, Stage::Run(_)) && passed >= SAMPLE {
            self.status.samples.push((self.status.done - done) as f64 / passed.as_secs_f64());
            self.sampled = (now, self.status.done);
        }
    }

    fn close(&mut self) {
        let own = self.plan.content == Content::Own;
        self.begin(if own { Stage::RemoveFiles } else { Stage::Disconnect });
    }

    /// The number of files of each stream.
    fn each(&self) -> u64 {
        self.plan.files / self.streams.len() as u64
    }

    fn begin(&mut self, stage: Stage) {
        let (each, content) = (self.each(), self.plan.content);
        self.stage = stage;
        self.stop = false;
        self.started = Instant::now();
        self.sampled = (self.started, 0);
        for stream in &mut self.streams {
            let known = stream.handle != Handle(0);
            (stream.at, stream.end) = match stage {
                Stage::Connect => (0, 1),
                Stage::TakeSequences if known && content != Content::Found => (0, each.div_ceil(Fid::OID_MAX.into())),
                Stage::TakeSequences => (0, 0),
                Stage::Disconnect => (0, u64::from(known)),
                Stage::Run(_) if content != Content::Own => (0, each),
                Stage::Run(Test::Create | Test::Mkdir) => (stream.files, each.max(stream.files)),
                Stage::Run(_) | Stage::RemoveFiles => (stream.first_file, stream.files),
                Stage::Idle | Stage::Over => (0, 0),
            };
        }
        self.ready = (0..self.streams.len()).filter(|at| self.streams[*at].at < self.streams[*at].end).collect();
        self.unfinished = self.ready.len();
        if self.unfinished == 0 {
            self.finished();
        }
    }

    /// All streams have finished the stage.
    fn finished(&mut self) {
        let failed = self.status.failure.is_some();
        match self.stage {
            Stage::Connect | Stage::TakeSequences if failed => self.begin(Stage::Disconnect),
            Stage::Connect => self.begin(Stage::TakeSequences),
            Stage::TakeSequences => self.stage = Stage::Idle,
            Stage::Run(_) => {
                self.status.seconds = self.started.elapsed().as_secs_f64();
                self.stage = Stage::Idle;
            }
            Stage::RemoveFiles => self.begin(Stage::Disconnect),
            Stage::Disconnect => self.stage = Stage::Over,
            Stage::Idle | Stage::Over => {}
        }
    }

    /// Ends the stage early: at once for streams without an outstanding request, and with their replies for the others.
    fn skip_rest(&mut self) {
        if !matches!(self.stage, Stage::Run(_)) {
            return;
        }
        self.ready.clear();
        for stream in &mut self.streams {
            stream.end = stream.end.min(stream.at + u64::from(stream.waits));
        }
        self.unfinished = self.streams.iter().filter(|stream| stream.waits).count();
        if self.unfinished == 0 {
            self.finished();
        }
    }

    /// Appends the next requests, at most `limit`.
    pub fn send(&mut self, limit: usize, frames: &mut Vec<(ConnId, Frame)>) {
        self.sample(Instant::now());
        for _ in 0..limit {
            let Some(index) = self.ready.pop_front() else { return };
            let frame = self.request(index);
            self.streams[index].waits = true;
            frames.push((ConnId(self.first_conn + index as u64), frame));
        }
    }

    /// Handles a reply.
    pub fn receive(&mut self, conn: ConnId, frame: &Frame) {
        let header = &frame.header;
        let index = (conn.0 - self.first_conn) as usize;
        let (stage, content) = (self.stage, self.plan.content);
        let stream = &mut self.streams[index];
        if !header.has(flags::REPLY) || header.has(flags::EARLY) || header.xid.0 != stream.xid || !stream.waits {
            return;
        }
        stream.waits = false;
        let mut result = Errno::from_status(header.status).map(drop);
        if stage == Stage::TakeSequences && result.is_ok() {
            match frame.decode::<SeqAllocRep>() {
                Ok(reply) => stream.sequences.push(reply.seq),
                Err(_) => result = Err(Errno::EPROTO),
            }
        }
        if result.is_ok() && content == Content::Found && Self::looks_up(stage, stream) {
            match found(frame) {
                Ok(_) if stage == Stage::Run(Test::Lookup) => {}
                Ok(fid) => {
                    stream.found = Some(fid);
                    self.ready.push_back(index);
                    return;
                }
                Err(errno) => result = Err(errno),
            }
        }
        stream.found = None;
        match (result, stage) {
            // A failed removal must not prevent the others.
            (Err(_), Stage::RemoveFiles | Stage::Disconnect) => {}
            (Err(errno), _) => {
                let reason = frame.decode::<ConnectRep>().map(|reply| reply.reason).unwrap_or_default();
                let what = self.describe(stage, index);
                let hint = match errno {
                    Errno::ENOSPC => "; the target is full, use fewer files",
                    Errno::EEXIST if content == Content::Own => {
                        "; an earlier survey left it, remove it through a mount"
                    }
                    Errno::EEXIST => "; there is one of that name already, start with another number",
                    Errno::ENOENT if content == Content::Found => "; there must be one of that name",
                    _ => "",
                };
                let reason =
                    if stage == Stage::Connect && !reason.is_empty() { format!(": {reason}") } else { String::new() };
                self.status.failure.get_or_insert(format!("{what} failed: {errno}{reason}{hint}"));
                self.streams[index].end = self.streams[index].at;
                self.stream_finished();
                self.skip_rest();
                return;
            }
            (Ok(()), Stage::Connect) => stream.handle = header.export,
            (Ok(()), Stage::Run(Test::Create | Test::Mkdir)) => stream.files = stream.at + 1,
            (Ok(()), Stage::Run(Test::Destroy) | Stage::RemoveFiles) => stream.first_file = stream.at + 1,
            (Ok(()), _) => {}
        }
        if matches!(stage, Stage::Run(_)) {
            self.status.done += 1;
        }
        let stream = &mut self.streams[index];
        stream.at += 1;
        if stream.at < stream.end {
            self.ready.push_back(index);
        } else {
            self.stream_finished();
        }
    }

    /// A stream has finished the stage.
    fn stream_finished(&mut self) {
        self.unfinished = self.unfinished.saturating_sub(1);
        if self.unfinished == 0 {
            self.finished();
        }
    }

    /// The target closed a stream's connection, or stops.
    pub fn hung_up(&mut self, conn: ConnId) {
        let index = (conn.0 - self.first_conn) as usize;
        self.status.failure.get_or_insert("the target ended the survey's session".to_owned());
        self.ready.retain(|ready| *ready != index);
        let stream = &mut self.streams[index];
        let was_busy = stream.waits || stream.at < stream.end;
        (stream.waits, stream.end, stream.handle) = (false, stream.at, Handle(0));
        if was_busy {
            self.stream_finished();
            self.skip_rest();
        }
    }

    fn describe(&self, stage: Stage, index: usize) -> String {
        match stage {
            Stage::Run(test) => {
                format!("{test:?} of '{}'", String::from_utf8_lossy(&self.file_name(index))).to_lowercase()
            }
            Stage::Connect => format!("connecting to '{}'", self.target),
            Stage::TakeSequences => "taking a sequence of FIDs".to_owned(),
            _ => "the survey".to_owned(),
        }
    }

    fn fid(&self, index: usize, number: u64) -> Option<Fid> {
        let width = u64::from(Fid::OID_MAX);
        let sequence = *self.streams[index].sequences.get((number / width) as usize)?;
        Some(Fid::new(sequence, (number % width) as u32 + 1))
    }

    fn folder(&self, index: usize) -> &Folder {
        let thread = index / self.plan.outstanding.max(1) as usize;
        &self.plan.folders[thread % self.plan.folders.len()]
    }

    fn file_name(&self, index: usize) -> Bytes {
        self.folder(index).name(self.plan.start + index as u64 * self.each() + self.streams[index].at)
    }

    /// Whether the next request of a stream, or the last one, looks a name up.
    fn looks_up(stage: Stage, stream: &Stream) -> bool {
        match stage {
            Stage::Run(Test::Lookup) => true,
            Stage::Run(Test::MdGetattr | Test::Setxattr) => stream.found.is_none(),
            _ => false,
        }
    }

    fn request(&mut self, index: usize) -> Frame {
        let (stream, content) = (&self.streams[index], self.plan.content);
        let cred = Some(Cred { capabilities: ALL_CAPABILITIES, ..Cred::default() });
        let fid = stream.found.or_else(|| self.fid(index, stream.at)).unwrap_or(Fid::ROOT);
        let (parent, name) = (self.folder(index).fid(), self.file_name(index));
        if content == Content::Found && Self::looks_up(self.stage, stream) {
            let request = LookupReq { parent, name, want: None, cred };
            return self.frame(index, Opcode::MdsLookup, 0, &request);
        }
        let op = match self.stage {
            Stage::Connect => return self.connect(index),
            Stage::TakeSequences => return self.frame(index, Opcode::SeqAlloc, 0, &SeqAllocReq {}),
            Stage::Disconnect | Stage::Idle | Stage::Over => {
                return self.frame(index, Opcode::Disconnect, 0, &Empty {});
            }
            Stage::Run(Test::Lookup) => {
                let request = LookupReq { parent, name, want: None, cred };
                return self.frame(index, Opcode::MdsLookup, 0, &request);
            }
            Stage::Run(Test::MdGetattr) => {
                let request = GetattrReq { fid, cred, ..GetattrReq::default() };
                return self.frame(index, Opcode::MdsGetattr, 0, &request);
            }
            Stage::Run(test @ (Test::Create | Test::Mkdir)) => {
                let mode = if test == Test::Create { MODE_FILE } else { MODE_FOLDER };
                Reint::Create(CreateOp { parent, name, fid, mode, ..CreateOp::default() })
            }
            Stage::Run(Test::Setxattr) => Reint::Setxattr(SetxattrOp {
                fid,
                name: Bytes::from_static(b"user.mds-survey"),
                value: Bytes::from_static(b"0123456789abcdef"),
                ..SetxattrOp::default()
            }),
            Stage::Run(Test::Destroy | Test::Rmdir) | Stage::RemoveFiles => {
                let rmdir = self.stage == Stage::Run(Test::Rmdir);
                Reint::Unlink(UnlinkOp { parent, name, rmdir, reported: None, entry_only: false })
            }
        };
        let request = ReintReq { cred, now_ns: clock::wall_ns(), want: None, op: Some(op) };
        self.frame(index, Opcode::MdsReint, 1, &request)
    }

    fn connect(&mut self, index: usize) -> Frame {
        let request = ConnectReq {
            client_uuid: self.streams[index].uuid.clone(),
            target: self.target.clone(),
            features: features::SUPPORTED,
            version: PROTOCOL_VERSION,
            brw_size: 1 << 20,
            description: "mds-survey".to_owned(),
            ..ConnectReq::default()
        };
        let mut frame = self.frame(index, Opcode::Connect, 0, &request);
        frame.header.flags = flags::CONNECT_INITIAL;
        frame
    }

    fn frame(&mut self, index: usize, opcode: Opcode, tag: u16, body: &impl Message) -> Frame {
        let stream = &mut self.streams[index];
        stream.xid += 1;
        let header = Header {
            opcode: opcode as u16,
            tag: Tag(tag),
            conn_cnt: 1,
            export: stream.handle,
            xid: Xid(stream.xid),
            last_xid: Xid(if opcode == Opcode::Connect { 0 } else { stream.xid - 1 }),
            ..Header::default()
        };
        Frame { header, body: body.encode_to_vec().into(), bulk: Bytes::new() }
    }
}

impl Folder {
    /// The stripe `stripe` of a directory with as many stripes.
    pub fn new(fid: Fid, hash: i32, stripes: u32, stripe: u32) -> Folder {
        Folder { seq: fid.seq, oid: fid.oid, hash, stripes, stripe }
    }

    fn fid(&self) -> Fid {
        Fid::new(self.seq, self.oid)
    }

    /// The name of a file: `f` and its number. In a stripe, a further number follows if the name would belong to another one:
    /// `f7.1`.
    fn name(&self, number: u64) -> Bytes {
        let hash = DirHash::try_from(self.hash).unwrap_or(DirHash::Unknown);
        let is_here = |name: &String| stripes::of_hash(hash, name.as_bytes(), self.stripes) == self.stripe;
        let plain = format!("f{number}");
        if self.stripes <= 1 || is_here(&plain) {
            return plain.into();
        }
        let other = (1..NAMES_TRIED_MAX).map(|further| format!("{plain}.{further}")).find(is_here);
        other.unwrap_or(plain).into()
    }
}

/// The object that a lookup found.
fn found(frame: &Frame) -> Result<Fid, Errno> {
    let reply: ObjectRep = frame.decode().map_err(|_| Errno::EPROTO)?;
    let here = reply.attr.map(|attr| attr.fid);
    match (here, reply.elsewhere) {
        (Some(fid), _) => Ok(fid),
        // Another target has it, and the load is to be on this one.
        (None, Some(_)) => Err(Errno::EXDEV),
        (None, None) => Err(Errno::ENOENT),
    }
}

#[cfg(test)]
#[path = "survey_tests.rs"]
mod tests;
