//! Runs scripts in which clients of a metadata target are played frame by frame: what arrives, when and how often is up to the
//! script, and what the target makes of it is shown.
//!
//! A prefix names the client (`b: create f`; without one it is `a`). A change is `create`, `mkdir`, `unlink`, `open` or `setmode` of
//! a name in the root, and is known by that name from then on: `resend f`, `replay f`.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use goldenscript::{Argument, Command, Context, Runner};
use mdt::{Mdt, Settings};
use proto::frame::flags;
use proto::msg::{
    CreateOp, Cred, Empty, EnqueueReq, LockMode, OpenOp, Policy, ReaddirRep, ReaddirReq, Reint, ReintReq, Resource,
    SetattrOp, UnlinkOp, WantLocks, bits, valid,
};
use proto::{Bytes, Errno, Fid, Frame, Handle, Opcode, Tag, Transno};
use schema::mdt::SeqRange;
use schema::{Header as TargetHeader, MdtState, Record};
use store::{Engine, MemEngine};
use target::{Format, Options};
use testkit::peers::Peers;

/// The target of one script and its clients.
pub(crate) struct Frames {
    kit: Peers<Mdt>,
    clients: BTreeMap<String, usize>,
    /// Changes, by client and name: as sent, with the transno of the answer.
    sent: BTreeMap<(usize, String), Frame>,
    /// Requests without an answer, by xid.
    waiting: BTreeMap<(usize, u64), String>,
    fids: BTreeMap<String, Fid>,
    time_ns: i64,
}

type Told = Result<String, Box<dyn Error>>;

impl Frames {
    pub(crate) fn new() -> Frames {
        let engine = MemEngine::new();
        let format = Format {
            name: "fs-MDT0000".parse().expect("a name"),
            uuid: 7,
            mgs: Vec::new(),
            version: "test".into(),
            wall_ns: 1,
            params: Vec::new(),
            name_key: None,
            replaces: false,
        };
        let mut batch = mdt::format(&format, &mdt::Root::default());
        let header = TargetHeader {
            name: "fs-MDT0000".into(),
            uuid: Bytes::from_static(&[7; 16]),
            registered: true,
            ..TargetHeader::default()
        };
        let sequences = vec![SeqRange { start: Fid::SEQ_FIRST, end: Fid::SEQ_FIRST + 1000 }];
        batch.put(TargetHeader::key(&()), header.encode_record());
        batch.put(MdtState::key(&()), MdtState { next_region: 1, sequences, ..MdtState::default() }.encode_record());
        engine.commit(1, &batch.seal(&schema::formats())).expect("in memory");
        Frames {
            kit: Peers::new("fs-MDT0000", engine, Options::default(), || Mdt::new(Settings::default())),
            clients: BTreeMap::new(),
            sent: BTreeMap::new(),
            waiting: BTreeMap::new(),
            fids: BTreeMap::new(),
            time_ns: 1_000_000,
        }
    }

    /// A status, and the transno of a change: how far it is from the first of its epoch.
    fn shown(frame: &Frame) -> String {
        let status = Errno::from_status(frame.header.status).map_or_else(|errno| errno.name(), |()| "ok");
        let Transno(transno) = frame.header.transno;
        if transno == 0 {
            return status.to_owned();
        }
        let durable = if frame.header.last_committed >= frame.header.transno { ", durable" } else { "" };
        format!("{status}, transno {}.{}{durable}", transno >> 32, transno as u32)
    }

    /// What the target has answered so far, if anything.
    fn answers(&mut self, at: usize) -> String {
        self.kit.pump();
        let mut lines = Vec::new();
        while let Some(frame) = self.kit.clients[at].inbox.pop_front() {
            let what = self.waiting.remove(&(at, frame.header.xid.0));
            let what = what.unwrap_or_else(|| "something".to_owned());
            if let Some(sent) = self.sent.get_mut(&(at, what.clone()))
                && frame.header.status == 0
                && frame.header.transno != Transno(0)
            {
                sent.header.transno = frame.header.transno;
                sent.header.pre_versions = frame.header.pre_versions;
                sent.bulk = frame.body.clone();
            }
            lines.push(format!("{what}: {}", Frames::shown(&frame)));
        }
        if core::mem::take(&mut self.kit.clients[at].hung_up) {
            lines.push("the target hangs up".to_owned());
        }
        if lines.is_empty() { "no answer".to_owned() } else { lines.join("\n") }
    }

    fn change(&mut self, at: usize, what: &str, name: &str) -> Told {
        self.time_ns += 1000;
        let named = Bytes::copy_from_slice(name.as_bytes());
        let op = match what {
            "create" | "mkdir" => {
                let fid = self.kit.new_fid(at);
                self.fids.insert(name.to_owned(), fid);
                let mode = if what == "mkdir" { 0o040_755 } else { 0o100_644 };
                let parent = Fid::ROOT;
                Reint::Create(CreateOp { parent, name: named, fid, mode, ..CreateOp::default() })
            }
            "open" => {
                let fid = self.kit.new_fid(at);
                Reint::Open(OpenOp { parent: Some(Fid::ROOT), name: named, fid, ..OpenOp::default() })
            }
            "unlink" => Reint::Unlink(UnlinkOp {
                parent: Fid::ROOT,
                name: named,
                rmdir: false,
                reported: None,
                entry_only: false,
            }),
            _ => {
                let fid = *self.fids.get(name).ok_or("no such file")?;
                Reint::Setattr(SetattrOp { fid, valid: valid::MODE, mode: 0o600, ..SetattrOp::default() })
            }
        };
        let cred = Some(Cred { umask: 0o022, capabilities: u64::MAX, ..Cred::default() });
        let request = ReintReq { cred, now_ns: self.time_ns, want: Some(WantLocks::default()), op: Some(op) };
        let tag = Tag(if what == "setmode" { 2 } else { 1 });
        let xid = self.kit.send(at, Opcode::MdsReint, tag, &request, Bytes::new(), 0);
        let frame = self.kit.clients[at].kept.pop().expect("just sent");
        self.sent.insert((at, name.to_owned()), frame);
        self.waiting.insert((at, xid), name.to_owned());
        Ok(self.answers(at))
    }

    /// Sends a change once more.
    fn again(&mut self, at: usize, name: &str, words: &[&str], more_flags: u32) -> Told {
        let mut frame = self.sent.get(&(at, name.to_owned())).ok_or("it was not sent")?.clone();
        let client = &self.kit.clients[at];
        let (conn, export, conn_cnt) = (client.conn, client.export, client.conn_cnt);
        frame.header.flags = more_flags;
        frame.header.export = export;
        frame.header.conn_cnt = conn_cnt;
        frame.header.last_xid = proto::Xid(0);
        if more_flags & flags::REPLAY == 0 {
            frame.header.transno = Transno(0);
            frame.bulk = Bytes::new();
        }
        for word in words {
            match *word {
                "unflagged" => frame.header.flags = 0,
                "stranger" => frame.header.export = Handle(export.0 ^ 1),
                "old-connection" => frame.header.conn_cnt = conn_cnt - 1,
                other => return Err(format!("no word '{other}'").into()),
            }
        }
        self.waiting.insert((at, frame.header.xid.0), name.to_owned());
        self.kit.event(target::Event::Frame { conn, frame });
        Ok(self.answers(at))
    }

    fn ping(&mut self, at: usize, what: &str, more_flags: u32) -> String {
        let xid = self.kit.send(at, Opcode::Ping, Tag(0), &Empty {}, Bytes::new(), more_flags);
        self.waiting.insert((at, xid), what.to_owned());
        self.answers(at)
    }

    fn lock(&mut self, at: usize, name: &str, replay: bool) -> Told {
        let fid = *self.fids.get(name).ok_or("no such file")?;
        let cookie = self.kit.new_cookie(at);
        let request = EnqueueReq {
            resource: Resource::inode(fid),
            mode: LockMode::Pr as i32,
            cookie,
            policy: Some(Policy::Bits(bits::PERM)),
            granted_handle: u64::from(replay) * 77,
            ..EnqueueReq::default()
        };
        let more_flags = if replay { flags::REPLAY } else { 0 };
        let xid = self.kit.send(at, Opcode::LdlmEnqueue, Tag(0), &request, Bytes::new(), more_flags);
        self.waiting.insert((at, xid), format!("lock of {name}"));
        Ok(self.answers(at))
    }

    fn names(&mut self, at: usize) -> String {
        let cred = Some(Cred { capabilities: u64::MAX, ..Cred::default() });
        let request = ReaddirReq { fid: Fid::ROOT, max_bytes: 1 << 16, cred, ..ReaddirReq::default() };
        match self.kit.call::<ReaddirRep>(at, Opcode::MdsReaddir, &request) {
            Err(errno) => errno.name().to_owned(),
            Ok(rep) if rep.entries.is_empty() => "empty".to_owned(),
            Ok(rep) => {
                let mut names: Vec<String> =
                    rep.entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect();
                names.sort();
                names.join(" ")
            }
        }
    }

    /// What an administrator sees of the recovery.
    fn status(&mut self) -> String {
        const FIELDS: [&str; 8] = [
            "status",
            "connected_clients",
            "req_replay_clients",
            "lock_repay_clients",
            "completed_clients",
            "evicted_clients",
            "replayed_requests",
            "VBR",
        ];
        let params = self.kit.target().get_params("mdt.*.recovery_status");
        let text = params.first().map(|(_, text)| text.clone()).unwrap_or_default();
        let shown = text
            .lines()
            .map(str::trim)
            .filter(|line| line.split_once(':').is_some_and(|(field, _)| FIELDS.contains(&field)));
        shown.collect::<Vec<_>>().join("\n")
    }
}

impl Runner for Frames {
    type Command = Command;

    /// Each line begins with its command.
    fn run(&mut self, command: &Command, context: &Context) -> Told {
        Ok(super::line(command, &self.carry_out(command, context)?))
    }
}

impl Frames {
    fn carry_out(&mut self, command: &Command, context: &Context) -> Told {
        let who = context.prefix.as_deref().unwrap_or("a");
        let words: Vec<&str> = command
            .args
            .iter()
            .filter_map(|arg| if let Argument::Positional(text) = arg { Some(&**text) } else { None })
            .collect();
        let word = |index: usize| words.get(index).copied().ok_or("an argument is missing");
        let done = |told: &str| Ok(told.to_owned());
        match &*command.name {
            "connect" if !self.clients.contains_key(who) => {
                let at = self.kit.add();
                self.clients.insert(who.to_owned(), at);
            }
            "slow-media" => {
                self.kit.commits = word(0)? != "on";
                self.kit.pump();
                return done("ok");
            }
            "power-loss" => {
                self.kit.crash();
                self.waiting.clear();
                return done("ok");
            }
            "pass" => {
                let end = self.kit.now + Duration::from_secs(word(0)?.parse()?);
                while self.kit.now < end {
                    self.kit.tick(Duration::from_millis(250));
                    self.kit.pump();
                }
                return done("ok");
            }
            "abort-recovery" => {
                let now = self.kit.now;
                self.kit.target().set_param(now, "mdt.fs-MDT0000.abort_recovery", "1")?;
                self.kit.pump();
                return done("ok");
            }
            "set" => {
                let now = self.kit.now;
                self.kit.target().set_param(now, &format!("mdt.fs-MDT0000.{}", word(0)?), word(1)?)?;
                return done("ok");
            }
            "status" => return Ok(self.status()),
            "log" => {
                let lines = core::mem::take(&mut self.kit.log);
                return Ok(if lines.is_empty() { "nothing".to_owned() } else { lines.join("\n") });
            }
            _ => {}
        }
        let at = *self.clients.get(who).ok_or_else(|| format!("'{who}' is not connected"))?;
        match &*command.name {
            "connect" => {
                let before = self.kit.clients[at].export;
                let reply = self.kit.try_reconnect(at);
                if reply.header.status == 0 && self.kit.clients[at].seq == 0 {
                    self.kit.take_sequence(at);
                    return done("new session");
                }
                let mut told = Frames::shown(&reply);
                for (flag, text) in
                    [(flags::CONNECT_RECONNECT, "reconnected"), (flags::CONNECT_RECOVERING, "recovering")]
                {
                    if reply.header.has(flag) {
                        told = format!("{told}, {text}");
                    }
                }
                if reply.header.status == 0 {
                    let same = if reply.header.export == before { "same" } else { "another" };
                    told = format!("{told}, {same} handle");
                }
                Ok(told)
            }
            what @ ("create" | "mkdir" | "unlink" | "open" | "setmode") => self.change(at, what, word(0)?),
            "resend" => self.again(at, word(0)?, &words[1..], flags::RESENT),
            "replay" => self.again(at, word(0)?, &words[1..], flags::REPLAY),
            "requests-replayed" => Ok(self.ping(at, "requests-replayed", flags::REQ_REPLAY_DONE)),
            "locks-replayed" => Ok(self.ping(at, "locks-replayed", flags::LOCK_REPLAY_DONE)),
            "ping" => Ok(self.ping(at, "ping", 0)),
            "lock" => self.lock(at, word(0)?, false),
            "replay-lock" => self.lock(at, word(0)?, true),
            "keeps-locks" => {
                self.kit.clients[at].obliging = false;
                done("ok")
            }
            "misses-answers" => {
                self.kit.clients[at].missing = Some(self.kit.clients[at].xid + 1);
                done("ok")
            }
            "answers" => Ok(self.answers(at)),
            "ls" => Ok(self.names(at)),
            other => Err(format!("no command '{other}'").into()),
        }
    }
}
