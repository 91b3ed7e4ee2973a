//! The load generator of `mds-survey`: requests that go directly to a running metadata target, made on the target's own
//! thread.
//!
//! There is no network and no client. Each stream is a session whose connection exists only in this process, and its
//! requests are handed to the machine as frames, like those of any client. So each operation is the real one, with its
//! checks, locks, reply record and place in a group; only encoding, sockets and the work of the client are missing. A
//! stream has one request outstanding; a thread of the survey is one or more streams.
//!
//! A stream takes all the FID sequences that it will need before the first test, because a grant waits for the disk. Number
//! 0 is a folder, number i + 1 its file i. Folders are `.mds-survey.N` in the root. Everything is removed by
//! [`Order::Close`], or after a minute without an order.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message;
use proto::connect::{PROTOCOL_VERSION, features};
use proto::frame::flags;
use proto::msg::{
    ConnectRep, ConnectReq, CreateOp, Cred, Empty, GetattrReq, LookupReq, Reint, ReintReq, SeqAllocRep, SeqAllocReq,
    SetxattrOp, UnlinkOp,
};
use proto::{Errno, Fid, Frame, Handle, Header, Opcode, Tag, Xid};
use serde::{Deserialize, Serialize};
use target::ConnId;

use crate::clock;

/// An order for the survey of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Make the sessions and folders.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The number of threads.
    pub threads: u32,
    /// The streams of each thread.
    pub outstanding: u32,
    /// The number of folders; thread t works in folder t modulo this.
    pub folders: u32,
    /// The number of files of all threads together.
    pub files: u64,
    /// The number in the name of the first file.
    pub start: u64,
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
    MakeFolders,
    Idle,
    Run(Test),
    RemoveFiles,
    RemoveFolders,
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
/// A survey closes itself after this long without an order.
const PATIENCE: Duration = Duration::from_secs(60);
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
        if streams == 0 || streams > STREAMS_MAX || plan.folders == 0 || plan.folders > plan.threads {
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
                    self.begin(Stage::RemoveFiles);
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
        let now = Instant::now();
        let (before, done) = self.sampled;
        let passed = (now - before).as_secs_f64();
        if matches!(self.stage, Stage::Run(_)) && passed >= 0.5 {
            self.status.samples.push((self.status.done - done) as f64 / passed);
            self.sampled = (now, self.status.done);
        }
        if self.stage == Stage::Idle && self.last_order.elapsed() > PATIENCE {
            self.begin(Stage::RemoveFiles);
        }
    }

    fn begin(&mut self, stage: Stage) {
        let folders = self.plan.folders as usize;
        let each = self.plan.files / self.streams.len() as u64;
        self.stage = stage;
        self.stop = false;
        self.started = Instant::now();
        self.sampled = (self.started, 0);
        for (index, stream) in self.streams.iter_mut().enumerate() {
            let known = stream.handle != Handle(0);
            (stream.at, stream.end) = match stage {
                Stage::Connect => (0, 1),
                Stage::TakeSequences if known => (0, each / u64::from(Fid::OID_MAX) + 1),
                Stage::TakeSequences => (0, 0),
                Stage::MakeFolders => (0, u64::from(known && index < folders)),
                Stage::RemoveFolders => (0, u64::from(index < folders && !stream.sequences.is_empty())),
                Stage::Disconnect => (0, u64::from(known)),
                Stage::Run(Test::Create) => (stream.files, each.max(stream.files)),
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
            Stage::TakeSequences => self.begin(Stage::MakeFolders),
            Stage::MakeFolders => self.stage = Stage::Idle,
            Stage::Run(_) => {
                self.status.seconds = self.started.elapsed().as_secs_f64();
                self.stage = Stage::Idle;
            }
            Stage::RemoveFiles => self.begin(Stage::RemoveFolders),
            Stage::RemoveFolders => self.begin(Stage::Disconnect),
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
        let stage = self.stage;
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
        match (result, stage) {
            // A failed removal must not prevent the others.
            (Err(_), Stage::RemoveFiles | Stage::RemoveFolders | Stage::Disconnect) => {}
            (Err(errno), _) => {
                let reason = frame.decode::<ConnectRep>().map(|reply| reply.reason).unwrap_or_default();
                let what = self.describe(stage, index);
                let hint = match errno {
                    Errno::ENOSPC => "; the target is full, use fewer files",
                    Errno::EEXIST => "; an earlier survey left it, remove it through a mount",
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
            (Ok(()), Stage::Run(Test::Create)) => stream.files = stream.at + 1,
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
            _ => format!("making '{}'", String::from_utf8_lossy(&folder_name(index))),
        }
    }

    fn fid(&self, index: usize, number: u64) -> Option<Fid> {
        let width = u64::from(Fid::OID_MAX);
        let sequence = *self.streams[index].sequences.get((number / width) as usize)?;
        Some(Fid::new(sequence, (number % width) as u32 + 1))
    }

    fn folder(&self, index: usize) -> Fid {
        let thread = index / self.plan.outstanding.max(1) as usize;
        self.fid(thread % self.plan.folders as usize, 0).unwrap_or(Fid::ROOT)
    }

    fn file_name(&self, index: usize) -> Bytes {
        let each = self.plan.files / self.streams.len() as u64;
        format!("f{}", self.plan.start + index as u64 * each + self.streams[index].at).into()
    }

    fn request(&mut self, index: usize) -> Frame {
        let number = self.streams[index].at + 1;
        let cred = Some(Cred { capabilities: ALL_CAPABILITIES, ..Cred::default() });
        let fid = self.fid(index, number).unwrap_or(Fid::ROOT);
        let (parent, name) = (self.folder(index), self.file_name(index));
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
            Stage::MakeFolders => Reint::Create(CreateOp {
                parent: Fid::ROOT,
                name: folder_name(index),
                fid: self.fid(index, 0).unwrap_or(Fid::ROOT),
                mode: MODE_FOLDER,
                ..CreateOp::default()
            }),
            Stage::Run(Test::Create) => {
                Reint::Create(CreateOp { parent, name, fid, mode: MODE_FILE, ..CreateOp::default() })
            }
            Stage::Run(Test::Setxattr) => Reint::Setxattr(SetxattrOp {
                fid,
                name: Bytes::from_static(b"user.mds-survey"),
                value: Bytes::from_static(b"0123456789abcdef"),
                ..SetxattrOp::default()
            }),
            Stage::Run(Test::Destroy) | Stage::RemoveFiles => {
                Reint::Unlink(UnlinkOp { parent, name, rmdir: false, reported: None, entry_only: false })
            }
            Stage::RemoveFolders => Reint::Unlink(UnlinkOp {
                parent: Fid::ROOT,
                name: folder_name(index),
                rmdir: true,
                reported: None,
                entry_only: false,
            }),
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

fn folder_name(index: usize) -> Bytes {
    format!(".mds-survey.{index}").into()
}

#[cfg(test)]
#[path = "survey_tests.rs"]
mod tests;
