//! Compares a tree with a model, as a program sees it.

use core::ops::Range;
use std::collections::BTreeMap;

use proto::{Bytes, Errno};

use super::perform::OpExecutor;
use super::root;
use super::synced::SyncedFile;
use crate::kernel::{Kernel, SysResult};
use crate::model::{Body, Expected, Id, Model, Op, Returned, Substitutes, content_differs, differs};
use crate::sched::Fail;

/// The parts of the tree to compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Depth {
    /// Times.
    pub times: bool,
    /// Sizes and bytes of files.
    pub data: bool,
}

/// All parts.
pub(crate) const FULL: Depth = Depth { times: true, data: true };

/// The possible substitutes for given-up bytes of each file.
pub(crate) type SubstitutesOf<'a> = &'a dyn Fn(Id) -> Substitutes<'a>;

/// How the tree below `base` differs from the model; `None` if it does not.
pub(crate) async fn tree(
    kernel: &Kernel,
    base: &[Bytes],
    model: &Model,
    depth: Depth,
    substitutes: SubstitutesOf<'_>,
) -> SysResult<Option<String>> {
    let mut model = model.clone();
    for (path, id) in model.paths() {
        let shown = Op::Stat { path: path.clone() }.show();
        let stat = match kernel.stat(&root(), &full(base, &path)).await {
            Ok(stat) => stat,
            Err(Fail::Errno(errno)) => return Ok(Some(format!("{shown}: {}", errno.name()))),
            Err(fail) => return Err(fail),
        };
        let mut attributes = stat.clone();
        if !depth.data {
            attributes.size = model.inode(id).data().len() as u64;
            if let Body::Symlink(target) = &model.inode(id).body {
                attributes.size = target.len() as u64;
            }
        }
        if let Some(what) = model.attributes_differ(id, &attributes, depth.times) {
            return Ok(Some(format!("{shown}: {what}")));
        }
    }
    // Read after all attributes were compared, because reading moves access times.
    for (path, id) in model.paths() {
        let shown = Op::Stat { path: path.clone() }.show();
        let mut checks: Vec<Op> = Vec::new();
        match &model.inode(id).body {
            Body::Directory { .. } => checks.push(Op::List { path: path.clone(), plus: false, bytes: 4096 }),
            Body::Symlink(_) => checks.push(Op::Readlink { path: path.clone() }),
            _ => {}
        }
        if matches!(model.inode(id).body, Body::Directory { .. } | Body::File(_)) {
            checks.push(Op::Listxattr { path: path.clone() });
            let names: Vec<Bytes> = model.inode(id).xattrs.keys().cloned().collect();
            checks.extend(names.into_iter().map(|name| Op::Getxattr { path: path.clone(), name }));
        }
        for op in checks {
            let mut files = BTreeMap::new();
            let mut executor = OpExecutor { kernel, base, files: &mut files, blind: false };
            let got = errno(executor.perform(&op, &root()).await)?;
            let when = crate::model::TimeRange::at(0);
            let expect = model.clone().apply(&op, &root(), when);
            let what = match (&expect, &got) {
                // The model does not know numbers of inodes that the process never saw.
                (Ok(Expected::Entries(want)), Ok(Returned::Entries(entries))) => {
                    let mut have: Vec<&Bytes> = entries.iter().map(|entry| &entry.name).collect();
                    have.sort();
                    let want: Vec<&Bytes> = want.iter().map(|(name, _)| name).collect();
                    (have != want).then(|| format!("lists {have:?}, expected {want:?}"))
                }
                _ => differs(&mut model, &expect, &got),
            };
            if let Some(what) = what {
                return Ok(Some(format!("{}: {what}", op.show())));
            }
        }
        if depth.data
            && let Body::File(data) = &model.inode(id).body
            && let Some(what) = bytes(kernel, base, &path, data, model.lost(id), &substitutes(id)).await?
        {
            return Ok(Some(format!("{shown}: {what}")));
        }
    }
    Ok(None)
}

/// How a file's bytes differ from `want`. For ranges in `lost`, `substitutes` has what may stand there.
pub(crate) async fn bytes(
    kernel: &Kernel,
    base: &[Bytes],
    path: &[Bytes],
    want: &[u8],
    lost: &[Range<u64>],
    substitutes: &Substitutes<'_>,
) -> SysResult<Option<String>> {
    Ok(match read(kernel, base, path).await? {
        Ok(have) => content_differs(want, &have, lost, substitutes),
        Err(what) => Some(what),
    })
}

/// All bytes of a file, or why it cannot be read.
pub(crate) async fn read(kernel: &Kernel, base: &[Bytes], path: &[Bytes]) -> SysResult<Result<Vec<u8>, String>> {
    let how = crate::kernel::OpenHow { flags: 0, mode: 0, blind: false };
    let file = match kernel.open(&root(), &full(base, path), how).await {
        Ok(file) => file,
        Err(Fail::Errno(errno)) => return Ok(Err(format!("open: {}", errno.name()))),
        Err(fail) => return Err(fail),
    };
    let mut have = Vec::new();
    let result = loop {
        match errno(kernel.read(&root(), &file, have.len() as u64, 128 << 10).await)? {
            Ok(data) if data.is_empty() => break Ok(()),
            Ok(data) => have.extend_from_slice(&data),
            Err(errno) => break Err(format!("read at {}: {}", have.len(), errno.name())),
        }
    };
    kernel.close(&root(), &file, 1).await?;
    Ok(result.map(|()| have))
}

fn full(base: &[Bytes], path: &[Bytes]) -> Vec<Bytes> {
    base.iter().chain(path).cloned().collect()
}

/// Turns errors that a program sees into results; a dead client ends the check.
pub(crate) fn errno<T>(result: SysResult<T>) -> SysResult<Result<T, Errno>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(Fail::Errno(errno)) => Ok(Err(errno)),
        Err(fail) => Err(fail),
    }
}

/// What is wrong with the directory of a process that stopped before that was durable: it may exist, and must be empty.
pub(crate) async fn begun(kernel: &Kernel, base: &[Bytes]) -> SysResult<Option<String>> {
    let stat = match kernel.stat(&root(), base).await {
        Ok(stat) => stat,
        Err(Fail::Errno(Errno::ENOENT)) => return Ok(None),
        Err(fail) => return Err(fail),
    };
    if kernel.kind_of(&stat) != crate::model::S_IFDIR {
        return Ok(Some(format!("mode {:o}, expected a directory", stat.mode)));
    }
    let entries = kernel.list(&root(), base, false, 4096).await?;
    Ok((!entries.is_empty()).then(|| format!("{} names are in a directory in which nothing was made", entries.len())))
}

/// A tree as it was read.
pub(crate) type ObservedTree = BTreeMap<Vec<Bytes>, ObservedObject>;

/// An object of the tree.
#[derive(Clone, Debug)]
pub(crate) struct ObservedObject {
    /// Attributes.
    pub stat: client::api::Stat,
    /// The target of a symbolic link.
    pub target: Bytes,
    /// Extended attributes.
    pub xattrs: BTreeMap<Bytes, Bytes>,
}

/// Reads a tree without the bytes of files.
pub(crate) async fn observe(kernel: &Kernel, base: &[Bytes]) -> SysResult<ObservedTree> {
    let mut found = ObservedTree::new();
    let mut todo = vec![Vec::new()];
    while let Some(path) = todo.pop() {
        let whole = full(base, &path);
        let stat = kernel.stat(&root(), &whole).await?;
        let kind = kernel.kind_of(&stat);
        let mut seen = ObservedObject { stat, target: Bytes::new(), xattrs: BTreeMap::new() };
        if kind == crate::model::S_IFLNK {
            seen.target = kernel.readlink(&root(), &whole).await?;
        }
        if kind == crate::model::S_IFDIR {
            for entry in kernel.list(&root(), &whole, false, 4096).await? {
                todo.push(path.iter().cloned().chain([entry.name]).collect());
            }
        }
        if matches!(kind, crate::model::S_IFDIR | crate::model::S_IFREG) {
            let mut files = BTreeMap::new();
            let mut executor = OpExecutor { kernel, base, files: &mut files, blind: false };
            if let Returned::Names(names) = executor.perform(&Op::Listxattr { path: path.clone() }, &root()).await? {
                for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
                    let name = Bytes::copy_from_slice(name);
                    let op = Op::Getxattr { path: path.clone(), name: name.clone() };
                    if let Returned::Data(value) = executor.perform(&op, &root()).await? {
                        seen.xattrs.insert(name, value);
                    }
                }
            }
        }
        found.insert(path, seen);
    }
    Ok(found)
}

/// How a tree that was read differs from a model. Sizes and bytes of files are left to [`super::synced`]; `synced` returns what
/// is certain of a file's times. Set-id bits count only if no client has changed the file since a sync. Times are ignored if the
/// clocks of clients differ, because the newest change determines them.
pub(crate) fn observed_differs<'a>(
    observed: &ObservedTree,
    model: &Model,
    synced: &dyn Fn(Id) -> Option<&'a SyncedFile>,
    times: bool,
) -> Option<String> {
    let paths = model.paths();
    if let Some(path) = observed.keys().find(|path| !paths.iter().any(|(known, _)| known == *path)) {
        return Some(format!("{} exists", Op::Stat { path: path.clone() }.show()));
    }
    for (path, id) in paths {
        let shown = Op::Stat { path: path.clone() }.show();
        let Some(seen) = observed.get(&path) else { return Some(format!("{shown} does not exist")) };
        let mut stat = seen.stat.clone();
        let inode = model.inode(id);
        match &inode.body {
            Body::File(data) => stat.size = data.len() as u64,
            Body::Symlink(target) if *target != seen.target => return Some(format!("{shown}: another target")),
            _ => {}
        }
        // A lost write or truncation leaves the set-id bits that it would have cleared.
        if inode.is_file() && !synced(id).is_some_and(SyncedFile::is_clean) {
            stat.mode = stat.mode & !0o6000 | inode.mode & 0o6000;
        }
        if times && inode.is_file() && synced(id).is_some_and(|file| !file.may_be_of(stat.mtime_ns, inode.mtime)) {
            return Some(format!("{shown}: mtime {}, expected {:?}", stat.mtime_ns, inode.mtime));
        }
        if let Some(what) = model.attributes_differ(id, &stat, false) {
            return Some(format!("{shown}: {what}"));
        }
        if inode.xattrs != seen.xattrs {
            return Some(format!("{shown}: attributes {:?}, expected {:?}", seen.xattrs.keys(), inode.xattrs.keys()));
        }
    }
    None
}
