//! Detection of a store that was replaced by an older copy of itself, and what follows.
//!
//! A copy of a target's directory that was made earlier and put back has lost later changes, and the copy itself does
//! not show it. Two other parties know more:
//!
//! - **The MGS** records the number of starts of each target. A start is counted durably before it registers, so a
//!   store is an older copy if it counts fewer starts than were registered, or as many with a different last one. Such
//!   a store is not served: sessions are ended, connects are refused with `ESTALE`, no task runs. This is recorded in
//!   the header, because each further start would bring the count nearer to the MGS's. The target never waits for the
//!   MGS; a target that the MGS knows serves meanwhile.
//! - **A client** remembers the highest transno that was reported durable, and the store. Only clients can detect a
//!   copy that was made since the target's last start. But a client's claim is not proven, and a lying client must not
//!   stop a target for all. So the claim only affects this client: it is refused, which keeps its memory of the later
//!   state apart from this one.
//!
//! An administrator resolves it by putting the right store back, or with the option `accept_old_store`: client records
//! are dropped, so that clients connect as new ones, and counts and transnos skip what the lost ones can have reached.

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
use crate::stopped::UnfitStore;

/// Recovery epochs that are skipped when an older copy is accepted: more than the number of starts since the copy.
const EPOCHS_SKIPPED: u32 = 1 << 16;

const WAY_OUT: &str = "stop the target and put the newest copy of its store back, or start it once with '-o accept_old_store' \
                       to give up what came after the copy";

impl<S: Service> Target<S> {
    /// The MGS has recorded more starts than the store.
    pub(crate) fn found_old(&mut self, newer_count: u64) {
        stdx::mark!("target.old_store");
        if self.m.options.accept_old_store {
            // This start gets the number after the last one that the MGS knows.
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

    /// Stops serving clients.
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

    /// Identity of this start, for the MGS. It does not reveal the seed.
    pub(crate) fn start_id(&self) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.options.seed, !self.header.mount_count);
        hasher.write(b"start");
        hasher.finish().max(1)
    }

    /// Reason for refusing a client that has seen a later state of this store; `None` if it has not.
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
        self.doubt.is_none() && self.upstreams.is_start_checked()
    }

    /// Accepts the store as it is, as the administrator has requested.
    pub(crate) fn accept_store(&mut self, header: &mut Header, last_transno: u64) -> Result<(), UnfitStore> {
        let epoch = header.epoch.max(Transno(last_transno).epoch());
        header.epoch = epoch
            .checked_add(EPOCHS_SKIPPED)
            .ok_or_else(|| UnfitStore::EpochsToAccept { target: header.name.clone() })?;
        header.mount_count = header.mount_count.max(header.newer_count);
        header.newer_count = 0;
        let line = "accepts its store as it is, as accept_old_store requests: its clients are forgotten, and all changes after an \
                    older copy was made are given up; start it without that option from now on";
        self.log(LogLevel::Warn, line.to_owned());
        Ok(())
    }
}
