//! Older copies of a store: how one is found out, and what follows.
//!
//! A copy of a target's directory that was made earlier and put back has lost what came after it, and nothing in it says so.
//! Two others know more:
//!
//! - **The MGS** keeps how often a target was started. A start is counted durably before it registers, so a store that counts
//!   fewer starts than were registered, or as many with another last one, is an older copy. It is not served: sessions are
//!   ended, connects are refused with `ESTALE`, no task runs. That is written into the header, because each further start
//!   would bring the count nearer to the MGS's. The MGS is never waited for; a target that it knows serves meanwhile.
//! - **A client** keeps which transno it was told to be durable, and of which store. A copy that was made since the target's last start
//!   is known to clients alone. But nothing proves what a client says, and one that lies must not stop a target
//!   for all. So what it says holds for itself: it is refused, which keeps its own memory of the later state from meeting this one.
//!   The target shows the doubt and removes nothing from other targets that it merely does not know of.
//!
//! An administrator ends it by putting the right store back, or with the option `accept_old_store`: clients are forgotten, so
//! that they come as new ones, and counts and transnos go to where the lost ones did not come.

use core::hash::Hasher;

use proto::Transno;
use proto::msg::ConnectReq;
use schema::Header;
use siphasher::sip::SipHasher13;

use crate::ConnId;
use crate::api::{Effect, LogLevel};
use crate::boot::Stage;
use crate::commit::Then;
use crate::machine::{Machine, Target};
use crate::service::Service;

/// Recovery epochs that are skipped when an older copy is accepted: more than a target has starts after a copy.
const EPOCHS_SKIPPED: u32 = 1 << 16;

const WAY_OUT: &str = "stop the target and put the newest copy of its store back, or start it once with '-o accept_old_store' \
                       to give up what came after the copy";

impl<S: Service> Target<S> {
    /// The MGS knows of more starts.
    pub(crate) fn found_old(&mut self, newer_count: u64) {
        stdx::mark!("target.old_store");
        if self.m.options.accept_old_store {
            // This start becomes the one after the last that the MGS knows.
            self.m.header.mount_count = newer_count.saturating_add(1);
        } else {
            self.m.header.newer_count = newer_count;
        }
        self.m.header_dirty();
        if !self.m.options.accept_old_store {
            self.refuse_store();
            return;
        }
        let group = self.m.newest_group();
        if let Some(then) = self.m.when_durable(group, Then::Register) {
            self.then(then);
        }
    }

    /// Serves nobody from here on.
    pub(crate) fn refuse_store(&mut self) {
        if self.m.stage >= Stage::Stopping {
            return;
        }
        self.m.stage = Stage::Refusing;
        let line = self.m.why_refusing();
        self.m.log(LogLevel::Error, line);
        let mut links: Vec<ConnId> = self.m.exports.iter().filter_map(|e| e.link).map(|link| ConnId(link.0)).collect();
        links.sort_unstable();
        self.m.effects.extend(links.into_iter().map(|conn| Effect::Hangup { conn }));
    }
}

impl Machine {
    pub(crate) fn why_refusing(&self) -> String {
        format!(
            "the store of target '{}' is an older copy: it counts {} starts, the MGS {}; {WAY_OUT}",
            self.name, self.header.mount_count, self.header.newer_count
        )
    }

    /// Which start this is, for the MGS. It tells nothing of the seed.
    pub(crate) fn start_id(&self) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.options.seed, !self.header.mount_count);
        hasher.write(b"start");
        hasher.finish().max(1)
    }

    /// Why a client is refused that has seen more of this store than there is.
    pub(crate) fn doubts(&mut self, request: &ConnectReq) -> Option<String> {
        let has = self.last_committed.max(Transno::start_of(self.header.epoch));
        let of_this = !request.seen_store.is_empty() && request.seen_store == self.header.uuid;
        if !of_this || request.seen_committed <= has.0 || self.options.accept_old_store {
            return None;
        }
        stdx::mark!("target.client_saw_more");
        let seen = Transno(request.seen_committed);
        if self.doubt.is_none() {
            let doubt = format!(
                "a client was told that transno {seen} is durable, this store of target '{}' has {has}: it is an older copy, or that \
                 client is broken; {WAY_OUT}; until then objects that it does not know of stay",
                self.name
            );
            self.log(LogLevel::Error, doubt.clone());
            self.doubt = Some(doubt);
        }
        Some(format!(
            "target '{}' told this client that transno {seen} is durable, and its store has {has}: unless the client is broken, an \
             older copy of the store was put back; see the target's recovery_status, or unmount and mount again to see the \
             older state",
            self.name
        ))
    }

    pub(crate) fn store_is_settled(&self) -> bool {
        self.doubt.is_none() && self.upstreams.is_vouched_for()
    }

    /// The administrator knows that it is an older copy, if it is one.
    pub(crate) fn accept_store(&mut self, header: &mut Header, last_transno: u64) -> Result<(), String> {
        let epoch = header.epoch.max(Transno(last_transno).epoch());
        header.epoch = epoch.checked_add(EPOCHS_SKIPPED).ok_or_else(|| {
            format!("target '{}' has no transnos left to accept an older copy with: make it anew", header.name)
        })?;
        header.mount_count = header.mount_count.max(header.newer_count);
        header.newer_count = 0;
        let line = "takes its store as it is, as accept_old_store asks: its clients are forgotten, and what came after an older \
                    copy is given up; start it without that option from now on";
        self.log(LogLevel::Warn, line.to_owned());
        Ok(())
    }
}
