//! What goes over the wires of a cluster while a command runs, in few words: requests by name, the locks that come with
//! answers, callbacks.
//!
//! `reint create, +PR[LOOKUP+PERM], b: callback[UPDATE], b: cancel`: the caller's request to create, a lock that came with
//! its answer, and before that another client's lock, called back and given up.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use prost::Message;
use proto::frame::flags;
use proto::msg::{
    BatchReq, BlCallback, EnqueueRep, EnqueueReq, LockGrant, LockMode, ObjectRep, Policy, ReaddirRep, Reint, ReintReq,
    bits,
};
use proto::{Frame, Opcode};

/// What is on the wires, and what is lost there.
#[derive(Default)]
pub(crate) struct Wires {
    /// Lines of the command that runs: which client, and what.
    seen: Vec<(usize, String)>,
    /// Requests since they were last shown.
    counts: BTreeMap<String, u64>,
    /// So many answers to changes are lost from now on.
    pub lost_answers: u32,
    /// So many changes are lost from now on.
    pub lost_changes: u32,
    names: Vec<String>,
}

pub(crate) type Shared = Rc<RefCell<Wires>>;

impl Wires {
    /// A client of this name comes next.
    pub(crate) fn add(&mut self, name: &str) {
        self.names.push(name.to_owned());
    }

    /// A frame passes, or is lost.
    pub(crate) fn pass(&mut self, to_client: bool, at: usize, frame: Frame) -> Vec<Frame> {
        let change = frame.header.tag.0 != 0;
        let what = if to_client { answer(&frame) } else { request(&frame) };
        let left = if to_client { &mut self.lost_answers } else { &mut self.lost_changes };
        let lost = change && *left > 0;
        *left -= u32::from(lost);
        if !to_client && let Some(what) = &what {
            *self.counts.entry(what.clone()).or_default() += 1;
        }
        if let Some(what) = what {
            self.seen.push((at, if lost && !to_client { format!("{what} (lost)") } else { what }));
        }
        if lost && to_client {
            self.seen.push((at, "answer lost".to_owned()));
        }
        if lost { Vec::new() } else { vec![frame] }
    }

    /// Forgets what was seen.
    pub(crate) fn clear(&mut self) {
        self.seen.clear();
    }

    /// What was seen, as this client says it.
    pub(crate) fn take(&mut self, caller: usize) -> String {
        let mut parts: Vec<(String, u32)> = Vec::new();
        for (at, what) in self.seen.drain(..) {
            let text = match self.names.get(at) {
                Some(name) if at != caller => format!("{name}: {what}"),
                _ => what,
            };
            match parts.last_mut() {
                Some((last, times)) if *last == text => *times += 1,
                _ => parts.push((text, 1)),
            }
        }
        let shown = parts.iter().map(|(text, times)| match times {
            1 => text.clone(),
            _ => format!("{times} x {text}"),
        });
        shown.collect::<Vec<_>>().join(", ")
    }

    /// Requests since this was last asked, by name.
    pub(crate) fn take_counts(&mut self) -> String {
        let counts = core::mem::take(&mut self.counts);
        if counts.is_empty() {
            return "none".to_owned();
        }
        counts.iter().map(|(name, count)| format!("{name}: {count}")).collect::<Vec<_>>().join("\n")
    }
}

/// The name of a change.
pub(crate) fn kind(op: Option<&Reint>) -> &'static str {
    match op {
        Some(Reint::Setattr(_)) => "setattr",
        Some(Reint::Create(_)) => "create",
        Some(Reint::Link(_)) => "link",
        Some(Reint::Unlink(op)) if op.rmdir => "rmdir",
        Some(Reint::Unlink(_)) => "unlink",
        Some(Reint::Rename(_)) => "rename",
        Some(Reint::Open(_)) => "open",
        Some(Reint::Setxattr(_)) => "setxattr",
        Some(Reint::Setlayout(_)) => "setlayout",
        Some(Reint::Relayout(_)) => "relayout",
        None => "nothing",
    }
}

fn mode(mode: i32) -> &'static str {
    match LockMode::try_from(mode) {
        Ok(LockMode::Ex) => "EX",
        Ok(LockMode::Pw) => "PW",
        Ok(LockMode::Pr) => "PR",
        Ok(LockMode::Cw) => "CW",
        Ok(LockMode::Cr) => "CR",
        _ => "NL",
    }
}

fn policy(policy: Option<&Policy>) -> String {
    const NAMES: [(u64, &str); 7] = [
        (bits::LOOKUP, "LOOKUP"),
        (bits::UPDATE, "UPDATE"),
        (bits::OPEN, "OPEN"),
        (bits::LAYOUT, "LAYOUT"),
        (bits::PERM, "PERM"),
        (bits::XATTR, "XATTR"),
        (bits::DOM, "DOM"),
    ];
    match policy {
        Some(Policy::Bits(set)) => {
            NAMES.iter().filter(|(bit, _)| set & bit != 0).map(|(_, name)| *name).collect::<Vec<_>>().join("+")
        }
        Some(Policy::Extent(extent)) if extent.end == u64::MAX => format!("{}..", extent.start),
        Some(Policy::Extent(extent)) => format!("{}..{}", extent.start, extent.end),
        Some(Policy::Flock(flock)) => format!("record {}..{}", flock.start, flock.end),
        None => String::new(),
    }
}

/// A request, if it is not about the connection.
fn request(frame: &Frame) -> Option<String> {
    let opcode = Opcode::from_raw(frame.header.opcode)?;
    let what = match opcode {
        Opcode::Ping | Opcode::Connect | Opcode::Disconnect | Opcode::LdlmGlReply => return None,
        Opcode::MgsConfigGet | Opcode::MdsStatfs if frame.header.has(flags::RESENT) => return None,
        Opcode::MdsReint => {
            let request = frame.decode::<ReintReq>().ok()?;
            format!("reint {}", kind(request.op.as_ref()))
        }
        Opcode::MdsBatch => {
            let request = frame.decode::<BatchReq>().ok()?;
            let changes = request.iter().map(|change| change.map_or("?", |change| kind(change.op.as_ref())));
            format!("batch[{}]", changes.collect::<Vec<_>>().join(" "))
        }
        Opcode::LdlmEnqueue => {
            let request = frame.decode::<EnqueueReq>().ok()?;
            let glimpse = if request.glimpse { "glimpse " } else { "" };
            format!("enqueue {glimpse}{}[{}]", mode(request.mode), policy(request.policy.as_ref()))
        }
        other => other.name().trim_start_matches("mds_").trim_start_matches("ldlm_").to_owned(),
    };
    let again = match (frame.header.has(flags::RESENT), frame.header.has(flags::REPLAY)) {
        (false, false) => "",
        (true, false) => " (resent)",
        (false, true) => " (replay)",
        (true, true) => " (replay, resent)",
    };
    Some(format!("{what}{again}"))
}

/// What a frame brings to a client besides the answer.
fn answer(frame: &Frame) -> Option<String> {
    let opcode = Opcode::from_raw(frame.header.opcode)?;
    if !frame.header.has(flags::REPLY) {
        return match opcode {
            Opcode::LdlmBlCallback => {
                let callback = frame.decode::<BlCallback>().ok()?;
                Some(format!("called back for {}[{}]", mode(callback.wanted_mode), policy(callback.wanted.as_ref())))
            }
            Opcode::LdlmGlCallback => Some("glimpsed".to_owned()),
            _ => None,
        };
    }
    if frame.header.has(flags::EARLY) || frame.header.status != 0 {
        return None;
    }
    let locks = match opcode {
        Opcode::MdsReint | Opcode::MdsGetattr | Opcode::MdsLookup => body::<ObjectRep>(frame)?.locks,
        Opcode::MdsReaddir => body::<ReaddirRep>(frame)?.locks,
        Opcode::LdlmEnqueue => body::<EnqueueRep>(frame)?.grant.into_iter().collect(),
        _ => Vec::new(),
    };
    let shown = |lock: &LockGrant| format!("+{}[{}]", mode(lock.mode), policy(lock.policy.as_ref()));
    (!locks.is_empty()).then(|| locks.iter().map(shown).collect::<Vec<_>>().join(" "))
}

fn body<M: Message + Default>(frame: &Frame) -> Option<M> {
    frame.decode().ok()
}
