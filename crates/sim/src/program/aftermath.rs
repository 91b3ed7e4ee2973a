//! The losses that an evicted client reports to a process.
//!
//! An eviction loses what the client had not written back, and what a restarted target had acknowledged and lost. The promise is
//! that the loss is reported: to each open file at its next fsync or close, and also to the next call that opens the object, or
//! changes it or a name in it. So the process touches everything that it knows: it syncs and closes its files, then opens every
//! directory and file of its tree once. Every loss must have been reported then, or by the call that ran beside the eviction.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use client::api::{SetStat, SetTime};
use proto::msg::Cred;
use proto::{Bytes, Errno};

use super::history::{EndedCall, History};
use super::{root, verify};
use crate::kernel::{Fd, Kernel, OpenHow};
use crate::model::{Body, Id, Inode, Mdts, Model, Op, Path, Substitutes};
use crate::run::TreeVerdict;
use crate::sched::{Fail, Sched};

/// The losses that were reported to a process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Aftermath {
    /// The evicted clients.
    pub clients: BTreeSet<usize>,
    /// Objects for which some call returned an error.
    pub reported: BTreeSet<Id>,
    /// Every object was touched.
    pub complete: bool,
}

/// A query for the losses of one client.
pub(crate) struct LossQuery<'a> {
    /// The scheduler.
    pub sched: &'a Sched,
    /// The client's kernel.
    pub kernel: &'a Kernel,
    /// The process's directory.
    pub base: &'a [Bytes],
    /// The process's last state.
    pub model: &'a Model,
    /// Files that the process has removed, by their last names: if a removal is lost, the file is back.
    pub removed: &'a [(Path, Id)],
}

/// The longest time until an evicted client learns of it by reconnecting; it never does if the target has forgotten the eviction.
const LEARNS_MAX: Duration = Duration::from_secs(900);

impl Aftermath {
    /// Adds the report of another client.
    pub(crate) fn add(&mut self, other: Aftermath) {
        self.clients.extend(other.clients);
        self.reported.extend(other.reported);
        self.complete &= other.complete;
    }
}

impl LossQuery<'_> {
    /// Queries the losses. `files`: the open files.
    pub(crate) async fn ask(&self, files: &BTreeMap<u32, (Fd, Cred)>) -> Aftermath {
        let client = self.kernel.client();
        let limit = self.sched.now() + LEARNS_MAX;
        while self.sched.evictions_of(client).iter().any(|eviction| eviction.learned.is_none())
            && self.sched.now() < limit
        {
            self.sched.sleep(Duration::from_millis(500)).await;
        }
        // The kernel has carried out its invalidations by then.
        self.sched.sleep(2 * crate::sched::KERNEL_SETTLES).await;
        let mut reported = BTreeSet::new();
        let complete = self.ask_all(files, &mut reported).await.is_some();
        self.sched.note(|| format!("the aftermath of client {client}: reported {reported:?}, complete {complete}"));
        Aftermath { clients: BTreeSet::from([client]), reported, complete }
    }

    /// Returns `None` if a client died.
    async fn ask_all(&self, files: &BTreeMap<u32, (Fd, Cred)>, reported: &mut BTreeSet<Id>) -> Option<()> {
        for (number, (fd, cred)) in files {
            let kernel = if fd.client == self.kernel.client() { self.kernel } else { continue };
            let id = self.model.open_files().get(number).map(|file| file.id);
            let synced = done(kernel.sync(cred, fd).await)?;
            let closed = done(kernel.close(cred, fd, 1).await)?;
            if synced.is_err() || closed.is_err() {
                reported.extend(id);
            }
        }
        let paths = self.model.paths();
        for (path, id) in &paths {
            if self.open(path, &self.model.inode(*id).body).await?.is_err() {
                reported.insert(*id);
            }
        }
        for (path, id) in self.removed {
            let opened = self.open(path, &Body::File(Default::default())).await?;
            if opened == Err(Errno::EIO)
                || opened == Err(Errno::ENOENT) && self.moved_back(path, &paths, reported).await?
            {
                reported.insert(*id);
            }
        }
        Some(())
    }

    /// Whether a directory above this path is no longer where the model has it, and that was reported: a rename of it is lost,
    /// and the path leads nowhere.
    async fn moved_back(&self, path: &Path, paths: &[(Path, Id)], reported: &BTreeSet<Id>) -> Option<bool> {
        let is_above = |above: &Path| (1..path.len()).contains(&above.len()) && path.starts_with(above);
        for (above, id) in paths.iter().filter(|(above, id)| is_above(above) && reported.contains(id)) {
            if self.open(above, &self.model.inode(*id).body).await? == Err(Errno::ENOENT) {
                return Some(true);
            }
        }
        Some(false)
    }

    async fn open(&self, path: &Path, body: &Body) -> Option<Result<(), Errno>> {
        let full: Path = self.base.iter().chain(path).cloned().collect();
        match body {
            Body::Directory { .. } => {
                let ino = match done(self.kernel.stat(&root(), &full).await)? {
                    Ok(stat) => stat.ino,
                    Err(errno) => return Some(Err(errno)),
                };
                match done(self.kernel.open_directory(&root(), ino).await)? {
                    Ok(fh) => {
                        self.kernel.close_directory(&root(), ino, fh);
                        Some(Ok(()))
                    }
                    Err(errno) => Some(Err(errno)),
                }
            }
            Body::File(_) => {
                let how = OpenHow { flags: 0, mode: 0, blind: false };
                match done(self.kernel.open(&root(), &full, how).await)? {
                    Ok(fd) => done(self.kernel.close(&root(), &fd, 1).await),
                    Err(errno) => Some(Err(errno)),
                }
            }
            // These cannot be opened; a change of the object reports the loss.
            _ => {
                let same = match done(self.kernel.stat(&root(), &full).await)? {
                    Ok(stat) => SetStat { atime: Some(SetTime::At(stat.atime_ns)), ..SetStat::default() },
                    Err(errno) => return Some(Err(errno)),
                };
                done(self.kernel.setattr(&root(), &full, &same).await)
            }
        }
    }
}

/// Checks a tree after an eviction whose losses were all queried. `loses` tells which steps can be lost if a loss was reported.
pub(crate) async fn judge(
    kernel: &Kernel,
    base: &[Bytes],
    history: &History,
    aftermath: &Aftermath,
    loses: impl Fn(&EndedCall, Mdts) -> bool,
) -> Result<TreeVerdict, Fail> {
    // If nothing was reported, nothing may be lost, except by the call that ran beside the eviction.
    let may_lose = !aftermath.reported.is_empty();
    let clients: Vec<usize> = aftermath.clients.iter().copied().collect();
    let (candidates, all) = history.without(&clients, |step, on| may_lose && loses(step, on));
    let last = history.state(history.steps.len());
    let in_doubt: Vec<Id> = match &history.unanswered {
        Some(unanswered) => last.concerned(&unanswered.op),
        None => Vec::new(),
    };
    let synced = history.synced_files(&|client| !clients.contains(&client));
    let observed = verify::observe(kernel, base).await?;
    let mut wrong = String::new();
    'candidates: for (position, candidate) in candidates.iter().enumerate() {
        if let Some(differs) = verify::observed_differs(&observed, candidate, &|_| None, false) {
            if position == 0 || position + 1 == candidates.len() {
                wrong.push_str(&format!("; from state {position} of {}: {differs}", candidates.len()));
            }
            continue;
        }
        for (path, id) in candidate.paths() {
            let Body::File(data) = &candidate.inode(id).body else { continue };
            let substitutes = Substitutes::default();
            let (differs, why) = if aftermath.reported.contains(&id) || in_doubt.contains(&id) {
                // Synced data persists whatever was reported.
                let Some(file) = synced.get(&id) else { continue };
                let found = verify::read(kernel, base, &path).await?;
                (found.map_or_else(Some, |found| file.differs(&found, &[], &substitutes)), "it was synced")
            } else {
                // Nothing of this file is lost, not even what was written after a lost change of names: bytes are on other
                // targets.
                let data = last.get(id).map_or(&data[..], Inode::data);
                (verify::bytes(kernel, base, &path, data, &[], &substitutes).await?, "no loss was reported")
            };
            if let Some(what) = differs {
                let shown = Op::Stat { path }.show();
                wrong.push_str(&format!("; {shown}: {why}, but: {what}"));
                continue 'candidates;
            }
        }
        return Ok(TreeVerdict::Right);
    }
    if !all {
        return Ok(TreeVerdict::Undecided);
    }
    let reported = &aftermath.reported;
    Ok(TreeVerdict::Wrong(format!(
        "it is no state that the eviction of clients {clients:?} can leave (told: {reported:?}){wrong}"
    )))
}

/// Turns errors into results; `None` if the client is dead.
fn done<T>(result: Result<T, Fail>) -> Option<Result<T, Errno>> {
    match result {
        Ok(value) => Some(Ok(value)),
        Err(Fail::Errno(errno)) => Some(Err(errno)),
        Err(Fail::Dead | Fail::Killed(_)) => None,
    }
}
