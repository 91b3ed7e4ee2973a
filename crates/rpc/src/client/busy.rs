//! Requests that the server has refused as busy (`EINPROGRESS`): nothing was done, and they are sent again later.

use core::time::Duration;

use proto::{Opcode, Xid};
use stdx::Instant;

use super::import::{Import, Purpose, Queued, Sent};
use super::{Outgoing, State};
use crate::Slot;

/// What else a request was submitted with, for when it has to be sent anew.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submitted {
    pub(crate) slot: Slot,
    pub(crate) turn: u64,
    pub(crate) during_recovery: bool,
}

impl Sent {
    /// The request as it was submitted.
    pub(crate) fn into_outgoing(self, opcode: Opcode) -> Outgoing {
        Outgoing {
            opcode,
            body: self.frame.body,
            bulk: self.frame.bulk,
            slot: self.submitted.slot,
            turn: self.submitted.turn,
            no_resend: self.no_resend,
            during_recovery: self.submitted.during_recovery,
            keep_open: self.keep_open,
            keep_answer: self.keep_answer,
            timeout: Some(self.timeout),
        }
    }
}

impl Import {
    /// The server did not execute the request: it is sent a little later with a new xid.
    pub(crate) fn too_busy(&mut self, xid: Xid) {
        let Some(mut sent) = self.sent.remove(&xid) else { return };
        if sent.purpose == Purpose::Ping {
            return;
        }
        let wait = Duration::from_millis(10 << sent.refused.min(7)).min(sent.timeout);
        sent.refused += 1;
        if let (Purpose::Owner(id), Slot::Modify | Slot::None, Some(opcode)) =
            (sent.purpose, sent.submitted.slot, Opcode::from_raw(sent.frame.header.opcode))
        {
            // Others go on meanwhile. What is buffered keeps its slot, because later changes must not overtake it.
            self.release(&sent);
            let refused = sent.refused;
            let out = sent.into_outgoing(opcode);
            self.refused.push((self.now + wait, Queued { id, out, refused }));
            self.pump();
            return;
        }
        self.busy.push((self.now + wait, sent));
    }

    /// Sends the requests that the server refused as busy, as far as they are due.
    pub(crate) fn retry_busy(&mut self) {
        if self.state != State::Full {
            return;
        }
        let now = self.now;
        let (due, rest): (Vec<_>, Vec<_>) = core::mem::take(&mut self.busy).into_iter().partition(|(at, _)| *at <= now);
        self.busy = rest;
        for (_, mut sent) in due {
            sent.frame.header.xid = self.take_xid();
            sent.frame.header.flags = 0;
            sent.frame.header.pre_versions = self.slots.busy();
            sent.deadline = now + sent.timeout;
            sent.at = now;
            self.transmit(sent);
        }
        let mut due: Vec<(Instant, Queued)> = self.refused.extract_if(.., |(at, _)| *at <= now).collect();
        due.sort_by_key(|(at, _)| *at);
        for (_, queued) in due {
            match queued.out.slot {
                Slot::None => self.queue.push_back(queued),
                slot => self.waiting.push(slot, queued.out.turn, queued),
            }
        }
        self.pump();
    }
}
