//! Disks that fail: an operation on a data file returns an error, a group cannot be written, a record is unreadable for a while.
//!
//! - An error of a data file is reported to the caller, and the operation has had no effect. Programs retry ([`crate::kernel`]),
//!   and clients retry their write-back.
//! - A group that cannot be written stops its target, which logs the reason; the disk is repaired and the target is restarted.
//! - A damaged record gives an error, never a wrong value, until it is repaired.

use core::time::Duration;

use proto::{Errno, Fid, TargetKind};
use schema::inode::ROOT_INO;
use schema::{Inode, Oi, Record};
use stdx::{Instant, Rng};
use store::{Engine as _, EngineError};
use target::StopReason;

use super::faults::{Fault, around};
use super::net::Node;
use super::{World, WorldEvent};

/// The source of disk failures.
#[derive(Debug)]
pub(super) struct Disks {
    left: u64,
    rng: Rng,
    /// When the root's damaged records were repaired last.
    root_repaired: Option<Instant>,
}

impl Disks {
    /// Failures according to the plan.
    pub(super) fn new(plan: &crate::plan::Plan) -> Disks {
        let left = plan.disturbances.io.map_or(0, |io| io.count);
        Disks { left, rng: Rng::new(plan.seed ^ 0x10e0_10e1), root_repaired: None }
    }
}

/// Whether it is a record of the root directory. Without it nobody can mount.
fn is_of_root(key: &store::Key) -> bool {
    [Oi::key(&Fid::ROOT), Inode::key(&ROOT_INO)].contains(key)
}

impl World {
    /// Reports a disk's free space to its target after a commit, before the target fills the next group.
    pub(super) fn report_space(&mut self, server: usize, life: u32) {
        if !self.lives(Node::Server(server), life) {
            return;
        }
        let (now, measured) = (self.time_of(Node::Server(server)), self.servers[server].engine.space());
        if let (Ok(space), Some(machine)) = (measured, &mut self.servers[server].machine) {
            machine.handle(now, target::Event::Space(space));
        }
    }

    /// Schedules the next failure.
    pub(super) fn plan_io(&mut self) {
        let Some(io) = self.plan.disturbances.io.filter(|_| self.disks.left > 0) else { return };
        let delay = around(&mut self.disks.rng, io.every);
        self.after(delay, WorldEvent::Fault(Fault::Fail));
    }

    /// Makes some disk fail.
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

    /// Damages a record until it is repaired.
    fn damage_some_record(&mut self, server: usize) {
        let Some(io) = self.plan.disturbances.io else { return };
        let own = &mut self.servers[server];
        if !own.damaged.is_empty() || own.name.kind == TargetKind::Mgt {
            return;
        }
        let records = own.engine.records();
        let Some((key, good)) = self.disks.rng.pick(&records).cloned() else { return };
        if !self.damage(server, key, good) {
            return;
        }
        self.faults.counts.damaged += 1;
        let stays = Duration::from_micros(self.disks.rng.range(1, io.stays_max.as_micros() as u64));
        self.after(stays, WorldEvent::Fault(Fault::Repair { server }));
    }

    /// Damages a record. Returns whether the store had it.
    fn damage(&mut self, server: usize, key: store::Key, good: store::Value) -> bool {
        let own = &mut self.servers[server];
        if !own.engine.damage(&key, &mut self.disks.rng) {
            return false;
        }
        let bad = own.engine.records().into_iter().find(|(known, _)| *known == key).map(|(_, value)| value);
        let Some(bad) = bad else { return false };
        self.trace.note(self.now, &[57, server as u64], || {
            format!("a record of {} is damaged: {key:?}", self.servers[server].name)
        });
        self.servers[server].damaged.push((key, good, bad));
        true
    }

    /// Damages all records of a table, or repairs all damaged records.
    pub(super) fn damage_for_story(&mut self, server: usize, table: Option<u8>) {
        let Some(table) = table else { return self.repair(server) };
        for (key, good) in self.servers[server].engine.records() {
            if key.first() == Some(&table) {
                self.damage(server, key, good);
            }
        }
    }

    /// Whether a record without which nobody can mount has been damaged since then.
    pub(super) fn root_was_damaged(&self, since: Instant) -> bool {
        let is_damaged = self.servers.iter().any(|server| server.damaged.iter().any(|(key, ..)| is_of_root(key)));
        is_damaged || self.disks.root_repaired.is_some_and(|repaired| repaired >= since)
    }

    /// Repairs all damaged records.
    pub(super) fn repair(&mut self, server: usize) {
        for (key, good, bad) in core::mem::take(&mut self.servers[server].damaged) {
            self.servers[server].engine.repair(&key, &bad, good);
            if is_of_root(&key) {
                self.disks.root_repaired = Some(self.now);
            }
            self.trace.note(self.now, &[58, server as u64], || {
                format!("the record of {} is repaired: {key:?}", self.servers[server].name)
            });
        }
    }

    /// A target has stopped. Only a disk error may cause that.
    pub(super) fn stopped(&mut self, server: usize, reason: Option<&StopReason>) {
        let disk_failed = core::mem::take(&mut self.servers[server].disk_failed);
        let is_of_disk = |reason: &StopReason| {
            matches!(reason, StopReason::Commit(EngineError::Io { .. })) || reason.errno() == Some(Errno::EIO)
        };
        let by_plan = self.plan.disturbances.io.is_some() && reason.is_some_and(is_of_disk);
        if !disk_failed && !by_plan {
            let why = reason.map_or_else(|| "without a reason".to_owned(), ToString::to_string);
            return self.fail(format!("target {} stopped: {why}", self.servers[server].name));
        }
        self.faults.counts.stops += 1;
        self.crash(server, false);
        let pause = Duration::from_micros(self.disks.rng.range(10, 2_000_000));
        self.start_server(server, pause);
    }
}
