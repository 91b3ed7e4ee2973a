//! Faults at the named sites of [`stdx::faults`]: requests and replies that are dropped or delayed inside the machines.
//!
//! Sites that break a rule on purpose are not drawn: a gap that recovery accepts, a client's record that stays after it left, a
//! refused client or close, a target that cannot read its own state at start.

use core::time::Duration;

use proto::{Opcode, TargetKind};
use stdx::faults::{ONCE, RAND, SKIP, SOME, sites};
use stdx::{Rng, Site};

use super::faults::{Fault, around};
use super::{World, WorldEvent};

/// Sites of targets.
const TARGETS: &[Site] = &[
    sites::LDLM_ENQUEUE_NET,
    sites::LDLM_REPLY,
    sites::OBD_PING_NET,
    sites::PTLRPC_DROP_REQ_OPC,
    sites::PTLRPC_RESEND_RACE,
    sites::TGT_REPLY_NET,
    sites::TGT_REPLAY_DROP,
    sites::TGT_DELAY_RECONNECT,
];

/// Further sites of metadata targets.
const METADATA_TARGETS: &[Site] = &[
    sites::MDS_GETATTR_NET,
    sites::MDS_REINT_NET,
    sites::MDS_OPEN_NET,
    sites::MDS_CLOSE_NET,
    sites::MDS_REINT_NET_REP,
    sites::MDS_ALL_REPLY_NET,
    sites::MDS_ALL_REQUEST_NET,
    sites::MDS_PAUSE_OPEN,
    sites::MDS_RESEND,
    sites::MDS_CLOSE_NET_REP,
    sites::MDS_REINT_DELAY,
    sites::MDS_LDLM_REPLY_NET,
    sites::MDS_REINT_MULTI_NET,
    sites::MDS_REINT_MULTI_NET_REP,
];

/// Sites of clients.
const CLIENTS: &[Site] = &[sites::PTLRPC_DROP_RPC, sites::PTLRPC_REPLAY_PAUSE];

/// Requests that [`sites::PTLRPC_DROP_REQ_OPC`] drops.
const OPCODES: &[Opcode] =
    &[Opcode::MdsReint, Opcode::MdsBatch, Opcode::ObjWrite, Opcode::ObjRead, Opcode::LdlmCancel, Opcode::MdsSync];

/// The source of armed sites.
#[derive(Debug)]
pub(super) struct Arming {
    left: u64,
    rng: Rng,
}

impl Arming {
    /// Sites according to the plan.
    pub(super) fn new(plan: &crate::plan::Plan) -> Arming {
        let left = plan.disturbances.sites.map_or(0, |of| of.count);
        Arming { left, rng: Rng::new(plan.seed ^ 0x517e_517f) }
    }
}

impl World {
    /// Schedules the next site.
    pub(super) fn plan_site(&mut self) {
        let Some(planned) = self.plan.disturbances.sites.filter(|_| self.arming.left > 0) else { return };
        let delay = around(&mut self.arming.rng, planned.every);
        self.after(delay, WorldEvent::Fault(Fault::Arm));
    }

    /// Arms a site for a while.
    pub(super) fn arm_some_site(&mut self) {
        let Some(planned) = self.plan.disturbances.sites else { return };
        self.arming.left -= 1;
        let rng = &mut self.arming.rng;
        let at = rng.below((self.servers.len() + self.mounts.len()) as u64) as usize;
        let is_mdt = self.servers.get(at).is_some_and(|server| server.name.kind == TargetKind::Mdt);
        let list = match () {
            () if at >= self.servers.len() => CLIENTS,
            () if is_mdt && rng.chance(3, 4) => METADATA_TARGETS,
            () => TARGETS,
        };
        let Some(&site) = rng.pick(list) else { return };
        let (flags, val) = match rng.below(5) {
            _ if site == sites::PTLRPC_DROP_REQ_OPC => (ONCE, rng.pick(OPCODES).map_or(0, |opcode| *opcode as u32)),
            0 => (SKIP | ONCE, rng.range(1, 10) as u32),
            1 => (SOME, rng.range(1, 5) as u32),
            2 => (RAND, rng.range(2, 8) as u32),
            3 => (0, 1),
            _ => (ONCE, 1),
        };
        let stays = Duration::from_micros(rng.range(1, planned.stays_max.as_micros() as u64));
        let faults = self.site_faults(at);
        faults.set_val(val);
        faults.set_loc(flags | u32::from(site.0));
        self.faults.counts.sites += 1;
        self.trace.note(self.now, &[61, at as u64, site.0.into()], || {
            format!("site {:x} with {flags:x} and {val} is armed at {at} for {stays:?}", site.0)
        });
        self.after(stays, WorldEvent::Fault(Fault::Disarm { at }));
    }

    /// Disarms the sites of a node.
    pub(super) fn disarm(&mut self, at: usize) {
        self.site_faults(at).set_loc(0);
    }

    /// Disarms all sites.
    pub(super) fn disarm_all(&mut self) {
        for at in 0..self.servers.len() + self.mounts.len() {
            self.disarm(at);
        }
    }

    fn site_faults(&self, at: usize) -> stdx::Faults {
        match at.checked_sub(self.servers.len()) {
            None => self.servers[at].faults.clone(),
            Some(client) => self.mounts.get(client).map_or_else(stdx::Faults::none, |mount| mount.faults.clone()),
        }
    }
}
