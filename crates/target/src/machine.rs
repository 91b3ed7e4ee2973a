//! The machine.

use core::time::Duration;

use bytes::Bytes;
use dlm::ExportId;
use dlm::server::Locks;
use proto::msg::Config;
use proto::{Errno, Frame, Opcode, TargetKind, TargetName, Transno};
use schema::Header;
use stdx::Instant;
use store::{View, ViewConfig};

use crate::api::{DataOp, DataResult, Effect, Event, LogLevel};
use crate::cx::ExportInfo;
use crate::op::{Op, Out};
use crate::options::Options;
use crate::service::Service;
use crate::sharing::Sharing;

pub(crate) struct Machine {
    pub(crate) now: Instant,
    pub(crate) wall_ns: i64,
    pub(crate) header: Header,
    pub(crate) name: TargetName,
    pub(crate) config: Config,
    pub(crate) view: View,
    pub(crate) locks: Locks,
    pub(crate) last_transno: Transno,
    pub(crate) last_committed: Transno,
    pub(crate) sharing: Sharing,
    pub(crate) out: Out,
}

impl Machine {
    pub(crate) fn export_info(&self, _export: ExportId) -> Option<ExportInfo> {
        None
    }
    pub(crate) fn export_ids(&self) -> Vec<ExportId> {
        Vec::new()
    }
    pub(crate) fn is_recovering(&self) -> bool {
        false
    }
    pub(crate) fn data_op(&mut self, _op: &mut Op, _data: DataOp) -> Option<DataResult> {
        None
    }
    pub(crate) fn upstream_call(
        &mut self,
        _op: &mut Op,
        _target: &TargetName,
        _opcode: Opcode,
        _body: Bytes,
        _bulk: Bytes,
    ) -> Option<Result<Frame, Errno>> {
        None
    }
    pub(crate) fn slept(&mut self, _op: &mut Op, _time: Duration) -> bool {
        true
    }
    pub(crate) fn log(&mut self, _level: LogLevel, _line: String) {}
}

/// A target: the machine around a service.
pub struct Target<S: Service> {
    service: S,
    #[allow(dead_code)]
    m: Machine,
}

impl<S: Service> Target<S> {
    /// A target over an engine whose last durable group is `last_group` (its store was made with [`crate::format`]).
    pub fn new(service: S, options: Options, last_group: u64, now: Instant) -> Target<S> {
        let config = ViewConfig { cache_limit: options.cache_limit, policy: options.commit };
        let kind = service.kind();
        let m = Machine {
            now,
            wall_ns: 0,
            header: Header::default(),
            name: TargetName { fsname: String::new(), kind, index: proto::TargetIndex(0) },
            config: Config::default(),
            view: View::new(config, schema::formats(), last_group),
            locks: Locks::new(0, dlm::server::Settings::default()),
            last_transno: Transno(0),
            last_committed: Transno(0),
            sharing: Sharing::default(),
            out: Out::default(),
        };
        debug_assert!(kind != TargetKind::Mgt || m.name.fsname.is_empty());
        Target { service, m }
    }

    /// Tells what happened.
    pub fn handle(&mut self, now: Instant, event: Event) {
        let _ = (now, event);
    }

    /// What is to be done next.
    pub fn poll(&mut self) -> Option<Effect> {
        None
    }

    /// When [`Event::Tick`] wants to be told at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Commits everything and stops: [`Effect::Stop`] with an empty reason follows. Clients and their records are kept, so
    /// they reconnect when the target is started again.
    pub fn shutdown(&mut self, now: Instant) {
        let _ = now;
    }

    /// Parameters whose path matches `pattern` (`*` matches within a component), with their values, by path.
    pub fn get_params(&self, pattern: &str) -> Vec<(String, String)> {
        let _ = pattern;
        Vec::new()
    }

    /// Sets a parameter: `ENOENT` if there is none of that name, `EINVAL` or `ERANGE` for the value, `EACCES` if it can't be set.
    pub fn set_param(&mut self, now: Instant, name: &str, value: &str) -> Result<(), Errno> {
        let _ = (now, name, value);
        Err(Errno::ENOENT)
    }

    /// The service, to look at.
    pub fn service(&self) -> &S {
        &self.service
    }
}
