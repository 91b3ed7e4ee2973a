//! Removal of data files that no object uses.
//!
//! At start, the files that a crash left over (see [`crate::files`]) are doomed in one change, and are from then on like all
//! other doomed files. One task at a time removes some doomed files, makes the removal durable, and then deletes their
//! records.

use core::time::Duration;

use proto::Transno;
use schema::{DoomedFile, OstState, Record};
use store::KeyRange;
use target::{Cx, DataOp, DataResult, LogLevel, Stop, Task};

use crate::Ost;
use crate::ops::data;

/// Files in one task.
const CHUNK: usize = 64;
/// Numbers and records in one scan.
const LOOK: usize = 4096;

/// Pause before a failed removal is tried again.
const RETRY: Duration = Duration::from_secs(30);

/// A task: removes these files.
struct Remove {
    files: Vec<u64>,
    /// The removal has failed before.
    again: bool,
}

/// Loads the state, and dooms the files that a crash left over.
pub(crate) fn start(ost: &mut Ost, cx: &mut Cx<'_>) -> Result<(), Stop> {
    let state = cx.get::<OstState>(&())?.unwrap_or_default();
    let doomed = doomed(cx)?;
    let mut next = state.next_file.max(1);
    let mut left = state.unborn;
    loop {
        let DataResult::Files(found) = data(cx, DataOp::List { from: next, limit: LOOK as u32 })? else { break };
        let Some(last) = found.last() else { break };
        next = last + 1;
        left.extend(found);
    }

    ost.objects = state.objects;
    let unmarked = state.marked_from == 0;
    ost.files.start(next, if unmarked { cx.instance() } else { state.marked_from });
    for &file in &doomed {
        ost.files.doom(Transno(0), file);
    }
    if !left.is_empty() {
        cx.log(LogLevel::Info, format!("removing {} data files of changes that a crash undid", left.len()));
        for &file in &left {
            cx.put(&file, &DoomedFile {});
            ost.files.doom(Transno(0), file);
        }
    }
    if unmarked || !left.is_empty() {
        cx.put(&(), &ost.files.state(state.objects));
    }
    Ok(())
}

fn doomed(cx: &mut Cx<'_>) -> Result<Vec<u64>, Stop> {
    let mut all = Vec::new();
    let mut range = DoomedFile::all();
    loop {
        let found = cx.scan::<DoomedFile>(&range, LOOK)?;
        all.extend(found.iter().map(|(file, _)| *file));
        match all.last() {
            Some(last) if found.len() == LOOK => {
                range = KeyRange::new(DoomedFile::key(last).successor(), range.end);
            }
            _ => return Ok(all),
        }
    }
}

/// Starts a removal task if a doomed file may be removed and no task is running.
pub(crate) fn start_removal(ost: &mut Ost, cx: &mut Cx<'_>) {
    if ost.sweeping || cx.is_recovering() || !ost.files.has_doomed(cx.last_committed()) {
        return;
    }
    ost.sweeping = true;
    let files = ost.files.take_doomed(cx.last_committed(), CHUNK);
    cx.spawn(Task::new("remove data files", Remove { files, again: false }));
}

/// Runs one attempt of a task.
pub(crate) fn task(ost: &mut Ost, cx: &mut Cx<'_>, task: &Task) -> Result<(), Stop> {
    let Some(Remove { files, again }) = task.get::<Remove>() else { return Ok(()) };
    if *again {
        cx.sleep(RETRY)?;
    }
    match remove(cx, files) {
        Err(Stop::Wait) => Err(Stop::Wait),
        Err(Stop::Errno(errno)) => {
            // The records of the doomed files stay.
            if !again {
                let (count, pause) = (files.len(), RETRY.as_secs());
                let line =
                    format!("{count} unused data files cannot be removed ({errno}): tried again every {pause} s");
                cx.log(LogLevel::Error, line);
            }
            cx.spawn(Task::new("remove data files", Remove { files: files.clone(), again: true }));
            Ok(())
        }
        Ok(()) => {
            for &file in files {
                cx.delete::<DoomedFile>(&file);
                ost.files.removed(file);
            }
            ost.sweeping = false;
            start_removal(ost, cx);
            Ok(())
        }
    }
}

fn remove(cx: &mut Cx<'_>, files: &[u64]) -> Result<(), Stop> {
    let mut stop = Ok(());
    for &file in files {
        if let Err(why) = data(cx, DataOp::Remove { file }) {
            stop = Err(why);
        }
    }
    stop?;
    data(cx, DataOp::Sync { files: files.to_vec() }).map(drop)
}
