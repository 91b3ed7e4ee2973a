//! Operations in execution: requests, tasks, and work of the machine itself.

use dlm::{ExportId, WaiterId};
use proto::msg::LockGrant;
use proto::{Errno, Fid, Frame, Header, Opcode, TargetName, Transno};
use std::collections::BTreeMap;
use stdx::Instant;
use store::AttemptId;

use crate::api::{DataOp, DataResult};
use crate::cross::run::{Change, Wanted};
use crate::cross::{Age, Attempt};
use crate::service::{Executed, HeldKey, Request, ShareKey, Task};
use crate::stats::Counted;

/// Whether a request is a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Replay {
    /// No replay.
    No,
    /// A replay of a lost change.
    Fresh(Transno),
    /// A replay whose change is durable.
    Committed(Transno),
}

/// What an operation does.
#[derive(Debug)]
pub(crate) enum Work {
    /// Execute a request.
    Request(Request),
    /// Reconstruct the reply to a request that was executed before the target restarted.
    Reconstruct(Request, Executed),
    /// Load what a queued replay will need.
    Prefetch(Request),
    /// A task of the service.
    Task(Task),
    /// Work of the machine itself.
    Own(Own),
}

/// Work of the machine itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Own {
    /// Load header, clients and configuration; count the start.
    Boot,
    /// The service's start.
    Start,
    /// Execute a prepared part of another target's cross change.
    Apply(Attempt),
    /// Execute this target's part of a committed cross change whose request is gone.
    Commit(Attempt),
    /// No attempt: a call into the service that may only spawn tasks and inspect state.
    OutsideAttempt,
}

/// Kind of an operation, which also its attempts can see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A request is executed.
    Request,
    /// Something is rebuilt or loaded, and nothing changed.
    Memory,
    /// Work of the service or of the machine.
    Own,
}

/// Results that later attempts reuse.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    pub(crate) data: Asked<(DataOp, Option<DataResult>)>,
    pub(crate) calls: Asked<Call>,
    pub(crate) enqueue_waits: bool,
    pub(crate) enqueued: Option<Result<LockGrant, Errno>>,
    /// The client has withdrawn its lock request.
    pub(crate) withdrawn: bool,
    pub(crate) sleep: Option<Instant>,
    /// State of the cross change that it makes.
    pub(crate) change: Option<Change>,
    /// Age of its waits for keys, and of its cross change.
    pub(crate) age: Option<Age>,
    /// Names that were under change when it first read their directory, which it waits for.
    pub(crate) listed: BTreeMap<Fid, Vec<HeldKey>>,
    /// How often a participant has found something else than its cross change took it to be.
    pub(crate) changed: u32,
}

/// Requests that an operation has made. Each attempt makes the same ones in the same order, so the lookup starts at the
/// next one.
#[derive(Debug)]
pub(crate) struct Asked<T> {
    list: Vec<T>,
    next: usize,
}

impl<T> Default for Asked<T> {
    fn default() -> Self {
        Asked { list: Vec::new(), next: 0 }
    }
}

impl<T> Asked<T> {
    /// The request that `is_it` accepts, if it was made.
    pub(crate) fn find(&mut self, is_it: impl Fn(&T) -> bool) -> Option<&T> {
        stdx::steps::add(1);
        let at = match self.list.get(self.next).filter(|known| is_it(known)) {
            Some(_) => self.next,
            None => {
                stdx::steps::add(self.list.len());
                self.list.iter().position(is_it)?
            }
        };
        self.next = at + 1;
        self.list.get(at)
    }

    /// Adds a request and returns its index.
    pub(crate) fn push(&mut self, asked: T) -> usize {
        self.list.push(asked);
        self.next = self.list.len();
        self.next - 1
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.list.get_mut(at)
    }

    fn iter(&self) -> impl Iterator<Item = &T> {
        self.list.iter()
    }
}

/// A request to another target.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) target: TargetName,
    pub(crate) opcode: Opcode,
    pub(crate) body: bytes::Bytes,
    pub(crate) answer: Option<Result<Frame, Errno>>,
}

/// An operation in execution. It is on the stack during its first attempt; only waiting operations are stored.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) id: u64,
    pub(crate) export: ExportId,
    pub(crate) replay: Replay,
    pub(crate) work: Work,
    /// Header of the request; empty for other work.
    pub(crate) asked: Header,
    pub(crate) started: Instant,
    /// The current attempt has registered something that it waits for.
    pub(crate) waits: bool,
    /// It has state in the lock manager.
    pub(crate) used_locks: bool,
    /// For a reconstructed request: versions before the change.
    pub(crate) pre_versions: [u64; 4],
    pub(crate) kind: Kind,
    /// It does not wait for keys: it executes a part that holds its own.
    pub(crate) exempt: bool,
    /// It is registered as waiting for keys.
    pub(crate) waits_for_key: bool,
    /// The configuration was fetched for it, because it names a target that is not known.
    pub(crate) asked_config: bool,
    /// When a timer will look whether its wait has to end.
    pub(crate) patience: Option<Instant>,
    /// The attempt whose part it prepares.
    pub(crate) prepares: Option<Attempt>,
    memo: Option<Box<Memo>>,
}

impl Op {
    pub(crate) fn new(id: u64, export: ExportId, replay: Replay, work: Work, started: Instant) -> Op {
        let asked = match &work {
            Work::Request(request) | Work::Reconstruct(request, _) => request.frame.header,
            _ => Header::default(),
        };
        let kind = match &work {
            Work::Request(_) => Kind::Request,
            Work::Reconstruct(..) | Work::Prefetch(_) => Kind::Memory,
            Work::Task(_) | Work::Own(_) => Kind::Own,
        };
        Op {
            kind,
            exempt: false,
            waits_for_key: false,
            asked_config: false,
            patience: None,
            prepares: None,
            id,
            export,
            replay,
            work,
            asked,
            started,
            waits: false,
            used_locks: false,
            pre_versions: [0; 4],
            memo: None,
        }
    }

    /// Whether it replays an open whose change is durable.
    pub(crate) fn reopens(&self) -> bool {
        matches!(self.replay, Replay::Committed(_))
    }

    pub(crate) fn waiter(&self) -> WaiterId {
        WaiterId(self.id)
    }

    pub(crate) fn attempt(&self) -> AttemptId {
        AttemptId(self.id)
    }

    pub(crate) fn memo(&mut self) -> &mut Memo {
        self.memo.get_or_insert_default()
    }

    /// State of the cross change that it makes.
    pub(crate) fn change(&self) -> Option<&Change> {
        self.memo.as_ref().and_then(|memo| memo.change.as_ref())
    }

    pub(crate) fn take_change(&mut self) -> Option<Change> {
        self.memo.as_mut().and_then(|memo| memo.change.take())
    }

    /// Whether it waits for the outcome of a cross change.
    pub(crate) fn is_staged(&self) -> bool {
        matches!(self.change(), Some(Change::Staged(_)))
    }

    /// How often a participant has found something else than its cross change took it to be.
    pub(crate) fn changed(&self) -> u32 {
        self.memo.as_ref().map_or(0, |memo| memo.changed)
    }

    /// What it has just asked for, if it is for a cross change.
    pub(crate) fn take_wanted(&mut self) -> Option<Wanted> {
        let memo = self.memo.as_mut()?;
        match memo.change.take_if(|change| matches!(change, Change::Wanted(_)))? {
            Change::Wanted(wanted) => Some(wanted),
            Change::Staged(_) | Change::Commits(_) => None,
        }
    }

    /// The targets that it has asked what is there, and that have not answered.
    pub(crate) fn looks(&self) -> impl Iterator<Item = &TargetName> {
        let calls = self.memo.iter().flat_map(|memo| memo.calls.iter());
        let open = calls.filter(|call| call.opcode == Opcode::CrossLook && call.answer.is_none());
        open.map(|call| &call.target)
    }

    /// Drops what other targets have said of their objects.
    pub(crate) fn looks_again(&mut self) {
        self.memo().calls = Asked::default();
    }

    /// The committed attempt of its own whose part it executes.
    pub(crate) fn commits(&self) -> Option<Attempt> {
        match self.change() {
            Some(Change::Commits(attempt)) => Some(*attempt),
            _ => None,
        }
    }

    /// Whether it executes a part that is committed or prepared: nothing may refuse that.
    pub(crate) fn executes_part(&self) -> bool {
        self.exempt && self.prepares.is_none()
    }

    /// Prepares for another attempt.
    pub(crate) fn begin(&mut self) {
        self.waits = false;
        if let Some(memo) = &mut self.memo {
            (memo.data.next, memo.calls.next) = (0, 0);
        }
    }

    /// The data files that it changed.
    pub(crate) fn dirty_files(&self) -> impl Iterator<Item = u64> {
        self.memo.iter().flat_map(|memo| memo.data.iter()).filter_map(|(op, result)| match (op, result) {
            (_, None | Some(DataResult::Failed(_))) => None,
            (DataOp::Write { file, .. } | DataOp::Truncate { file, .. } | DataOp::Fallocate { file, .. }, _) => {
                Some(*file)
            }
            _ => None,
        })
    }

    /// Description for messages.
    pub(crate) fn describe(&self) -> String {
        match &self.work {
            Work::Request(request) => format!("request {}", request.opcode.name()),
            Work::Reconstruct(request, _) => format!("the reconstruction of {}", request.opcode.name()),
            Work::Prefetch(request) => format!("the prefetch for {}", request.opcode.name()),
            Work::Task(task) => format!("background work '{}'", task.name()),
            Work::Own(own) => format!("{own:?}"),
        }
    }
}

/// Effects that the current attempt has collected; they are applied if it is accepted.
#[derive(Default)]
pub(crate) struct Out {
    pub(crate) writes: u32,
    pub(crate) wants_transno: bool,
    pub(crate) changes_nothing: bool,
    /// Format features that its writes need.
    pub(crate) features: u64,
    pub(crate) pre_versions: [u64; 4],
    pub(crate) hold: bool,
    pub(crate) hold_for: u64,
    pub(crate) changed: Vec<ShareKey>,
    pub(crate) spawned: Vec<(Option<Instant>, Task)>,
    pub(crate) notices: Vec<(ExportId, Opcode, bytes::Bytes)>,
    pub(crate) evicted: Vec<(ExportId, String)>,
    pub(crate) counted: Counted,
    /// Jobs that were named, and the one that the next operation counts for.
    pub(crate) jobs: Vec<String>,
    pub(crate) job: Option<usize>,
}

impl Out {
    /// A savepoint for [`Out::rollback`].
    pub(crate) fn savepoint(&self) -> [usize; 5] {
        [self.changed.len(), self.spawned.len(), self.notices.len(), self.evicted.len(), self.counted.len()]
    }

    /// Drops what was collected after the savepoint.
    pub(crate) fn rollback(&mut self, [changed, spawned, notices, evicted, counted]: [usize; 5]) {
        self.changed.truncate(changed);
        self.spawned.truncate(spawned);
        self.notices.truncate(notices);
        self.evicted.truncate(evicted);
        self.counted.truncate(counted);
    }

    pub(crate) fn clear(&mut self) {
        self.writes = 0;
        self.wants_transno = false;
        self.changes_nothing = false;
        self.features = 0;
        self.pre_versions = [0; 4];
        self.hold = false;
        self.hold_for = 0;
        self.changed.clear();
        self.spawned.clear();
        self.notices.clear();
        self.evicted.clear();
        self.counted.clear();
        self.jobs.clear();
        self.job = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An operation that asks a thousand targets runs again at each answer; each attempt visits each answer once.
    #[test]
    fn an_attempt_finds_what_it_has_asked_for_in_the_order_in_which_it_asks() {
        const MANY: u64 = 1000;
        let mut asked: Asked<u64> = Asked::default();
        for n in 0..MANY {
            assert_eq!(asked.find(|known| *known == n), None);
            assert_eq!(asked.push(n), n as usize);
        }
        let (steps, ()) = stdx::steps::of(|| {
            for _ in 0..MANY {
                asked.next = 0;
                (0..MANY).for_each(|n| assert_eq!(asked.find(|known| *known == n), Some(&n)));
            }
        });
        assert_eq!(steps, MANY * MANY);
        // Another order works too.
        asked.next = 0;
        assert_eq!(
            (asked.find(|known| *known == 7).copied(), asked.find(|known| *known == 3).copied()),
            (Some(7), Some(3))
        );
        assert_eq!(asked.find(|known| *known == MANY), None);
    }
}
