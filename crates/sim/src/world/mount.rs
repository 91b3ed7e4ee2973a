//! A client in the simulated world: its machine, and the kernel that calls it.

use client::Client;
use client::api::{Instance, Options};
use proto::{ClientUuid, TargetKind};
use stdx::Instant;

use super::server::nid_of;
use crate::kernel::Kernel;
use crate::plan::Plan;

/// A client.
pub struct Mount {
    /// The machine, while it lives.
    pub machine: Option<Client>,
    /// The kernel that programs call.
    pub kernel: Kernel,
    /// The pending tick.
    pub timer: Option<Instant>,
    /// The number of the pending tick; older ones are ignored.
    pub timer_serial: u64,
    /// It has reported that it is mounted.
    pub mounted: bool,
    /// When it started to mount.
    pub since: Instant,
    /// It was asked to unmount.
    pub leaving: bool,
    /// It has reported that it is unmounted.
    pub unmounted: bool,
    /// Fault injection in its process.
    pub faults: stdx::Faults,
}

impl Mount {
    /// A client that starts to mount.
    pub fn new(plan: &Plan, position: usize, read_only: bool, kernel: Kernel, seed: u64, now: Instant) -> Mount {
        let faults = stdx::Faults::allowed(seed);
        let options = Options {
            uuid: ClientUuid(u128::from(seed) << 64 | 0xc11e_0000 | position as u128),
            seed,
            instance: Instance(0xffff << 48 | seed >> 16),
            fsname: FSNAME.to_owned(),
            mgs: vec![nid_of(TargetKind::Mgt, 0)],
            description: format!("client {position}"),
            read_only,
            max_dirty: plan.max_dirty,
            max_cached: plan.max_cached,
            max_read_ahead: plan.max_read_ahead,
            rename_wait: core::time::Duration::ZERO,
            max_nodes: plan.max_nodes,
            soft: None,
            timeouts: plan.timeouts(),
            always_ping: false,
            access_times: Default::default(),
            directory_access_times: Default::default(),
            write_back_after: plan.write_back_after,
            max_rpcs_in_flight: 512,
            max_mod_rpcs_in_flight: plan.slots[position % plan.slots.len()],
            sync_metadata: plan.sync_metadata[position % plan.sync_metadata.len()],
            faults: faults.clone(),
        };
        Mount {
            machine: Some(Client::new(options, now)),
            kernel,
            timer: None,
            timer_serial: 0,
            mounted: false,
            since: now,
            leaving: false,
            unmounted: false,
            faults,
        }
    }
}

/// The file system's name.
pub(crate) const FSNAME: &str = "simfs";
