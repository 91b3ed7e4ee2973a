//! Disks that fail: an operation on a data file gives an error, a group cannot be written, a record is damaged for a while.
//!
//! - An error of a data file is told to whoever asked for it; nothing has happened. Programs try again ([`crate::kernel`]), and what a
//!   client writes back it tries again itself.
//! - A group that cannot be written stops its target with a line that says why; somebody repairs the disk and starts it again.
//! - A damaged record is an error, never a wrong answer, until it is repaired.

use core::time::Duration;

use proto::{Errno, TargetKind};
use schema::Record as _;
use stdx::Rng;
use store::EngineError;

use super::faults::{Fault, around};
use super::{Happening, World};

/// The source of such failures.
#[derive(Debug)]
pub struct Disks {
    left: u64,
    rng: Rng,
}

impl Disks {
    /// As planned.
    pub fn new(plan: &crate::plan::Plan) -> Disks {
        Disks { left: plan.disturbances.io.map_or(0, |io| io.count), rng: Rng::new(plan.seed ^ 0x10e0_10e1) }
    }
}

impl World {
    /// Plans the next failure.
    pub(super) fn plan_io(&mut self) {
        let Some(io) = self.plan.disturbances.io.filter(|_| self.disks.left > 0) else { return };
        let delay = around(&mut self.disks.rng, io.every);
        self.after(delay, Happening::Fault(Fault::Fail));
    }

    /// A disk fails.
    pub(super) fn fail_some_disk(&mut self) {
        let Some(io) = self.plan.disturbances.io else { return };
        self.disks.left -= 1;
        let server = self.disks.rng.below(self.servers.len() as u64) as usize;
        let kind = self.servers[server].name.kind;
        match self.disks.rng.below(3) {
            0 if io.commits => {
                let what = "Input/output error (os error 5)".to_owned();
                self.servers[server].engine.fail_next_commit(EngineError::Io { place: "mem:".into(), what });
                self.faults.counts.io_errors += 1;
                self.trace.note(self.now, &[55, server as u64], || {
                    format!("the next commit of {} fails", self.servers[server].name)
                });
            }
            1 if io.damage => self.damage_some_record(server),
            _ if kind == TargetKind::Ost => {
                self.servers[server].data.fail_next(Errno::EIO);
                self.faults.counts.io_errors += 1;
                self.trace.note(self.now, &[56, server as u64], || {
                    format!("the next operation on a data file of {} fails", self.servers[server].name)
                });
            }
            _ => {}
        }
    }

    /// A record is damaged until it is repaired.
    fn damage_some_record(&mut self, server: usize) {
        let Some(io) = self.plan.disturbances.io else { return };
        let own = &mut self.servers[server];
        if own.damaged.is_some() || own.name.kind == TargetKind::Mgt {
            return;
        }
        let records = own.engine.records();
        let Some((key, good)) = self.disks.rng.pick(&records).cloned() else { return };
        if !own.engine.damage(&key, &mut self.disks.rng) {
            return;
        }
        let bad = own.engine.records().into_iter().find(|(known, _)| *known == key).map(|(_, value)| value);
        let Some(bad) = bad else { return };
        self.trace.note(self.now, &[57, server as u64], || {
            format!("a record of {} is damaged: {key:?}", self.servers[server].name)
        });
        self.servers[server].damaged = Some((key, good, bad));
        self.faults.counts.damaged += 1;
        let stays = Duration::from_micros(self.disks.rng.range(1, io.stays_max.as_micros() as u64));
        self.after(stays, Happening::Fault(Fault::Repair { server }));
    }

    /// The record of a directory with this mode is damaged.
    pub(super) fn damage_directory(&mut self, mode: u32) {
        let formats = schema::formats();
        let decode = |key: &store::Key, value: &store::Value| {
            schema::Inode::parse_key(key)?;
            schema::Inode::decode_record(&formats.open(key, value).ok()?).ok()
        };
        let is_it = |(key, value): &(store::Key, store::Value)| {
            decode(key, value).is_some_and(|inode| inode.mode == crate::kernel::S_IFDIR | mode)
        };
        for server in 0..self.servers.len() {
            let own = &mut self.servers[server];
            let Some((key, good)) = own.engine.records().into_iter().find(is_it) else { continue };
            own.engine.damage(&key, &mut self.disks.rng);
            let bad = own.engine.records().into_iter().find(|(known, _)| *known == key).map(|(_, value)| value);
            own.damaged = bad.map(|bad| (key, good, bad));
            return;
        }
        self.fail(format!("there is no directory with the mode {mode:o}"));
    }

    /// What is damaged is repaired.
    pub(super) fn repair(&mut self, server: usize) {
        if let Some((key, good, bad)) = self.servers[server].damaged.take() {
            self.servers[server].engine.repair(&key, &bad, good);
            self.trace.note(self.now, &[58, server as u64], || {
                format!("the record of {} is repaired: {key:?}", self.servers[server].name)
            });
        }
    }

    /// A target stops by itself. Only a disk may make it.
    pub(super) fn stopped(&mut self, server: usize, reason: &str) {
        if self.plan.disturbances.io.is_none() || !reason.contains("Input/output error") {
            return self.fail(format!("target {} stopped: {reason}", self.servers[server].name));
        }
        self.faults.counts.stops += 1;
        self.crash(server, false);
        let pause = Duration::from_micros(self.disks.rng.range(10, 2_000_000));
        self.start_server(server, pause);
    }
}
