//! The trace of a run: a digest of all events, and lines of text for people.
//!
//! The digest covers every event with its virtual time, so two runs of a seed are the same run if and only if their digests are
//! equal. Lines are formatted only if they are kept: a failing seed is run again with its lines kept.

use core::hash::Hasher;
use std::collections::VecDeque;

use proto::frame::flags;
use proto::{Frame, Opcode};
use stdx::Instant;

/// How much of a run is kept as text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Keep {
    /// No lines.
    #[default]
    Nothing,
    /// The last lines, at most this many.
    Last(usize),
    /// Every line, printed as it is made.
    Print,
}

/// The trace of a run.
#[derive(Debug, Default)]
pub struct Trace {
    digest: u64,
    events: u64,
    keep: Keep,
    lines: VecDeque<String>,
}

impl Trace {
    /// An empty trace.
    pub fn new(keep: Keep) -> Trace {
        Trace { keep, ..Trace::default() }
    }

    /// Records an event: `words` go into the digest; `line` is called only if lines are kept.
    pub fn note(&mut self, now: Instant, words: &[u64], line: impl FnOnce() -> String) {
        self.events += 1;
        self.mix(now.0);
        for &word in words {
            self.mix(word);
        }
        self.say(now, line);
    }

    /// Adds a line that is not an event.
    pub fn say(&mut self, now: Instant, line: impl FnOnce() -> String) {
        match self.keep {
            Keep::Nothing => {}
            Keep::Last(limit) => {
                if self.lines.len() >= limit {
                    self.lines.pop_front();
                }
                self.lines.push_back(format!("{now:?} {}", line()));
            }
            Keep::Print => println!("{now:?} {}", line()),
        }
    }

    fn mix(&mut self, word: u64) {
        self.digest = (self.digest.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    /// The digest so far.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// The number of events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The kept lines, oldest first.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}

/// A hash of a frame in one word, for the digest.
pub(crate) fn frame_word(frame: &Frame) -> u64 {
    // The hasher's key is zero, because runs are compared between processes with different hash keys.
    let mut hasher = std::hash::DefaultHasher::new();
    let h = &frame.header;
    for word in [
        u64::from(h.opcode) << 48 | u64::from(h.tag.0) << 32 | u64::from(h.flags),
        u64::from(h.conn_cnt) << 32 | u64::from(h.status as u32),
        h.export.0,
        h.xid.0,
        h.transno.0,
        h.last_xid.0,
        h.last_committed.0,
        u64::from(h.timeout_ms),
    ]
    .into_iter()
    .chain(h.pre_versions)
    {
        hasher.write_u64(word);
    }
    hasher.write(&frame.body);
    hasher.write(&frame.bulk);
    hasher.finish()
}

/// A frame in one line.
pub(crate) fn frame_line(frame: &Frame) -> String {
    let h = &frame.header;
    let name = Opcode::from_raw(h.opcode).map_or("unknown", Opcode::name);
    let kind = match () {
        () if h.has(flags::EARLY) => "early reply",
        () if h.has(flags::REPLY) => "reply",
        () => "request",
    };
    let mut line = format!("{name} {kind} xid {:x}", h.xid.0);
    for (flag, word) in [(flags::RESENT, " resent"), (flags::REPLAY, " replay")] {
        if h.has(flag) {
            line.push_str(word);
        }
    }
    if h.tag.0 != 0 {
        line.push_str(&format!(" tag {}", h.tag));
    }
    if h.has(flags::REPLY) {
        line.push_str(&format!(" status {} transno {:x} committed {:x}", h.status, h.transno.0, h.last_committed.0));
    } else {
        line.push_str(&detail(frame));
    }
    line
}

/// The body of a request.
fn detail(frame: &Frame) -> String {
    use proto::msg;
    let short = |text: String| {
        let mut text = text;
        if text.len() > 400 {
            let cut = (0..=400).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            text.truncate(cut);
            text.push('…');
        }
        format!(" {text}")
    };
    match Opcode::from_raw(frame.header.opcode) {
        Some(Opcode::MdsReint) => {
            frame.decode::<msg::ReintReq>().map_or(String::new(), |r| short(format!("{:?}", r.op)))
        }
        Some(Opcode::MdsBatch) => frame.decode::<msg::BatchReq>().map_or(String::new(), |request| {
            let changes = request.iter().filter_map(|change| change.ok().and_then(|change| change.op));
            short(changes.map(|op| format!("{op:?}")).collect::<Vec<_>>().join("; "))
        }),
        Some(Opcode::MdsClose) => frame.decode::<msg::CloseReq>().map_or(String::new(), |r| short(format!("{r:?}"))),
        Some(Opcode::MdsLookup) => frame.decode::<msg::LookupReq>().map_or(String::new(), |r| short(format!("{r:?}"))),
        Some(Opcode::MdsGetattr) => {
            frame.decode::<msg::GetattrReq>().map_or(String::new(), |r| short(format!("{r:?}")))
        }
        Some(Opcode::MdsReaddir) => {
            frame.decode::<msg::ReaddirReq>().map_or(String::new(), |r| short(format!("{r:?}")))
        }
        Some(Opcode::LdlmEnqueue) => {
            frame.decode::<msg::EnqueueReq>().map_or(String::new(), |r| short(format!("{r:?}")))
        }
        Some(Opcode::LdlmCancel) => frame.decode::<msg::CancelReq>().map_or(String::new(), |r| short(format!("{r:?}"))),
        Some(Opcode::LdlmBlCallback) => {
            frame.decode::<msg::BlCallback>().map_or(String::new(), |r| short(format!("{r:?}")))
        }
        Some(Opcode::LdlmGlCallback) => {
            frame.decode::<msg::GlCallback>().map_or(String::new(), |r| short(format!("{r:?}")))
        }
        Some(Opcode::ObjWrite) => frame.decode::<msg::WriteReq>().map_or(String::new(), |r| short(format!("{r:?}"))),
        Some(Opcode::ObjRead) => frame.decode::<msg::ReadReq>().map_or(String::new(), |r| short(format!("{r:?}"))),
        Some(Opcode::ObjPunch) => frame.decode::<msg::PunchReq>().map_or(String::new(), |r| short(format!("{r:?}"))),
        Some(Opcode::ObjDestroy) => {
            frame.decode::<msg::DestroyReq>().map_or(String::new(), |r| short(format!("{r:?}")))
        }
        _ => String::new(),
    }
}
