//! The server's end.

mod event;

pub use event::{Counters, Enqueued, Glimpsed, LockEvent, LockInfo, Revoked, Settings};
use proto::msg::{CancelReq, EnqueueReq, GlReply, LockGrant, LockMode, Lvb, Policy, Resource};
use stdx::Instant;

use crate::{ExportId, WaiterId};

/// All locks of one target.
pub struct Locks {
    settings: Settings,
}

#[allow(missing_docs, unused_variables)]
impl Locks {
    /// `base`: handles are greater than it; `instance << 40` makes them unique over restarts.
    pub fn new(base: u64, settings: Settings) -> Locks {
        Locks { settings }
    }
    pub fn settings(&self) -> Settings {
        self.settings
    }
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
    }
    pub fn poll(&mut self) -> Option<LockEvent> {
        None
    }
    pub fn deadline(&self) -> Option<Instant> {
        None
    }
    pub fn tick(&mut self, now: Instant) {}
    pub fn enqueue(&mut self, now: Instant, export: ExportId, req: &EnqueueReq, waiter: WaiterId) -> Enqueued {
        Enqueued::NotFound
    }
    pub fn try_grant(
        &mut self,
        now: Instant,
        export: ExportId,
        resource: Resource,
        mode: LockMode,
        want_bits: u64,
        must_bits: u64,
        cookie: u64,
    ) -> Option<LockGrant> {
        None
    }
    pub fn conflicts(&self, export: ExportId, resource: &Resource, mode: LockMode, policy: &Policy) -> bool {
        false
    }
    pub fn revoke(
        &mut self,
        now: Instant,
        waiter: WaiterId,
        export: ExportId,
        resource: Resource,
        mode: LockMode,
        policy: Policy,
    ) -> Revoked {
        Revoked::Free
    }
    /// Ends everything that `waiter` waited for or held free: places in queues, glimpses.
    pub fn release(&mut self, now: Instant, waiter: WaiterId) {}
    pub fn glimpse(&mut self, now: Instant, waiter: WaiterId, resource: Resource, exclude: ExportId) -> Glimpsed {
        Glimpsed::Nothing
    }
    pub fn glimpse_reply(&mut self, now: Instant, export: ExportId, reply: &GlReply) {}
    pub fn take_glimpse(&mut self, waiter: WaiterId) -> Option<Vec<Lvb>> {
        None
    }
    pub fn cancel(&mut self, now: Instant, export: ExportId, req: &CancelReq) {}
    pub fn export_gone(&mut self, now: Instant, export: ExportId) {}
    pub fn resend_callbacks(&mut self, now: Instant, export: ExportId) {}
    pub fn progress(&mut self, now: Instant, export: ExportId) {}
    /// Locks that `export` holds, by resource and handle.
    pub fn held(&self, export: ExportId) -> Vec<LockInfo> {
        Vec::new()
    }
    /// Locks granted on `resource`.
    pub fn granted_on(&self, resource: &Resource) -> Vec<LockInfo> {
        Vec::new()
    }
    pub fn counters(&self) -> Counters {
        Counters::default()
    }
}
