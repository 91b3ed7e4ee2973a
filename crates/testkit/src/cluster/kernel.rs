//! A model of what the kernel does above a client: it keeps entries and attributes as long as it may, walks paths with
//! them, drops attributes at once when told, names a while later, and looks everything up again after `ESTALE`.

use std::collections::{BTreeMap, VecDeque};

use client::api::{Answer, Call, FileHandle, Invalidation, SetStat, Stat};
use proto::Errno;

use super::{Cluster, name};

#[derive(Default)]
pub struct Kernel {
    entries: BTreeMap<(u64, String), u64>,
    attrs: BTreeMap<u64, Stat>,
    /// Names to be dropped, not yet done.
    late: VecDeque<(u64, String)>,
    /// Answered from here.
    pub hits: u64,
}

impl Kernel {
    /// Takes in what the client told; names are dropped late if `slow`, and `names` of the late ones are dropped now.
    pub fn listen(&mut self, told: Vec<Invalidation>, slow: bool, names: usize) {
        for what in told {
            match what {
                Invalidation::Inode { ino, .. } => {
                    self.attrs.remove(&ino);
                }
                Invalidation::Entry { token, parent, name } => {
                    let key = (parent, String::from_utf8(name.to_vec()).unwrap());
                    if slow || token == 0 {
                        self.late.push_back(key);
                    } else {
                        self.entries.remove(&key);
                    }
                }
            }
        }
        for _ in 0..names {
            if let Some(key) = self.late.pop_front() {
                self.entries.remove(&key);
            }
        }
    }

    fn keep(&mut self, stat: &Stat) {
        if stat.cacheable {
            self.attrs.insert(stat.ino, stat.clone());
        } else {
            self.attrs.remove(&stat.ino);
        }
    }

    fn keep_entry(&mut self, parent: u64, text: &str, stat: &Stat) {
        self.keep(stat);
        // A directory has one entry: another one is moved. (A file can have several; that those of names that are gone go
        // before a new one is used is a race that the kernel's thread for names all but always wins.)
        let late = &self.late;
        self.entries.retain(|key, ino| *ino != stat.ino || (stat.mode & 0o170_000 != 0o040_000 && !late.contains(key)));
        if stat.entry_cacheable {
            self.entries.insert((parent, text.to_owned()), stat.ino);
        } else {
            self.entries.remove(&(parent, text.to_owned()));
        }
    }
}

/// Splits the last name off a path.
pub fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// A client with its kernel.
pub struct Vfs<'a> {
    pub c: &'a mut Cluster,
    pub node: usize,
    pub kernel: &'a mut Kernel,
}

impl Vfs<'_> {
    fn listen(&mut self) {
        let node = &mut self.c.nodes[self.node];
        let slow = node.slow_names;
        self.kernel.listen(core::mem::take(&mut node.invalidations), slow, 0);
    }

    fn call(&mut self, call: Call) -> Result<Answer, Errno> {
        self.listen();
        let result = self.c.call(self.node, call);
        self.listen();
        result
    }

    /// A path operation, and once more from the start with nothing believed if a handle was stale.
    fn retry<T>(&mut self, mut what: impl FnMut(&mut Self, bool) -> Result<T, Errno>) -> Result<T, Errno> {
        match what(self, false) {
            Err(Errno::ESTALE) => what(self, true),
            other => other,
        }
    }

    fn attr(&mut self, ino: u64) -> Result<Stat, Errno> {
        self.listen();
        if let Some(stat) = self.kernel.attrs.get(&ino) {
            self.kernel.hits += 1;
            return Ok(stat.clone());
        }
        match self.call(Call::Getattr { ino, fh: None })? {
            Answer::Attr(stat) => {
                self.kernel.keep(&stat);
                Ok(stat)
            }
            other => panic!("{other:?}"),
        }
    }

    fn step(&mut self, parent: u64, text: &str, believe: bool) -> Result<u64, Errno> {
        // Search permission needs attributes.
        let dir = self.attr(parent)?;
        if dir.mode & 0o170_000 != 0o040_000 {
            return Err(Errno::ENOTDIR);
        }
        if believe && let Some(ino) = self.kernel.entries.get(&(parent, text.to_owned())) {
            self.kernel.hits += 1;
            return Ok(*ino);
        }
        match self.call(Call::Lookup { parent, name: name(text) }) {
            Ok(Answer::Entry(stat)) => {
                self.kernel.keep_entry(parent, text, &stat);
                Ok(stat.ino)
            }
            Ok(other) => panic!("{other:?}"),
            Err(errno) => {
                self.kernel.entries.remove(&(parent, text.to_owned()));
                Err(errno)
            }
        }
    }

    fn walk(&mut self, path: &str, reval: bool) -> Result<u64, Errno> {
        let mut ino = 1;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            ino = self.step(ino, part, !reval)?;
        }
        Ok(ino)
    }

    /// A path that must lead to a directory.
    fn walk_dir(&mut self, path: &str, reval: bool) -> Result<u64, Errno> {
        let ino = self.walk(path, reval)?;
        if self.attr(ino)?.mode & 0o170_000 == 0o040_000 { Ok(ino) } else { Err(Errno::ENOTDIR) }
    }

    pub fn stat(&mut self, path: &str) -> Result<Stat, Errno> {
        self.retry(|v, reval| {
            let ino = v.walk(path, reval)?;
            v.attr(ino)
        })
    }

    /// The parent, and that the name is not taken.
    fn vacant(&mut self, path: &str, reval: bool) -> Result<u64, Errno> {
        let (dir, last) = split(path);
        let parent = self.walk_dir(dir, reval)?;
        match self.step(parent, last, false) {
            Ok(_) => Err(Errno::EEXIST),
            Err(Errno::ENOENT) => Ok(parent),
            Err(errno) => Err(errno),
        }
    }

    pub fn mkdir(&mut self, path: &str) -> Result<(), Errno> {
        self.retry(|v, reval| {
            let parent = v.vacant(path, reval)?;
            let last = split(path).1;
            match v.call(Call::Mkdir { parent, name: name(last), mode: 0o755 })? {
                Answer::Entry(stat) => v.kernel.keep_entry(parent, last, &stat),
                other => panic!("{other:?}"),
            }
            v.kernel.attrs.remove(&parent);
            Ok(())
        })
    }

    /// Opens, creating if need be.
    fn open(&mut self, path: &str, flags: u32) -> Result<(u64, FileHandle), Errno> {
        self.retry(|v, reval| {
            let (dir, last) = split(path);
            let parent = v.walk_dir(dir, reval)?;
            match v.step(parent, last, !reval && flags & 0o200 == 0) {
                Ok(ino) => {
                    if flags & 0o200 != 0 {
                        return Err(Errno::EEXIST);
                    }
                    if v.attr(ino)?.mode & 0o170_000 == 0o040_000 {
                        return Err(Errno::EISDIR);
                    }
                    match v.call(Call::Open { ino, flags: flags & 0o3 })? {
                        Answer::Opened { fh, .. } => Ok((ino, fh)),
                        other => panic!("{other:?}"),
                    }
                }
                Err(Errno::ENOENT) if flags & 0o100 != 0 => {
                    match v.call(Call::Create { parent, name: name(last), mode: 0o644, flags })? {
                        Answer::Created { stat, fh, .. } => {
                            v.kernel.keep_entry(parent, last, &stat);
                            v.kernel.attrs.remove(&parent);
                            Ok((stat.ino, fh))
                        }
                        other => panic!("{other:?}"),
                    }
                }
                Err(errno) => Err(errno),
            }
        })
    }

    fn close(&mut self, fh: FileHandle) {
        self.call(Call::Flush { fh, lock_owner: 1 }).unwrap();
        self.call(Call::Release { fh, flock_owner: None }).unwrap();
    }

    pub fn create(&mut self, path: &str, exclusive: bool) -> Result<(), Errno> {
        let (_, fh) = self.open(path, 0o102 | if exclusive { 0o200 } else { 0 })?;
        self.close(fh);
        Ok(())
    }

    pub fn write(&mut self, path: &str, offset: u64, data: &[u8], append: bool, sync: bool) -> Result<(), Errno> {
        let (ino, fh) = self.open(path, if append { 0o2001 } else { 0o1 })?;
        // O_APPEND is in the flags of the open that the client sees.
        let fh = if append {
            self.close(fh);
            match self.call(Call::Open { ino, flags: 0o2001 })? {
                Answer::Opened { fh, .. } => fh,
                other => panic!("{other:?}"),
            }
        } else {
            fh
        };
        let data = bytes::Bytes::copy_from_slice(data);
        let result =
            self.call(Call::Write { fh, ino, offset, data: data.clone(), write_back: false, kill_priv: false });
        self.kernel.attrs.remove(&ino);
        assert_eq!(result, Ok(Answer::Written(data.len() as u32)));
        if sync {
            self.call(Call::Fsync { fh }).unwrap();
        }
        self.close(fh);
        Ok(())
    }

    pub fn read(&mut self, path: &str) -> Result<Vec<u8>, Errno> {
        let (_, fh) = self.open(path, 0)?;
        let mut all = Vec::new();
        loop {
            match self.call(Call::Read { fh, offset: all.len() as u64, length: 100_000 }) {
                Ok(Answer::Data(data)) if data.is_empty() => break,
                Ok(Answer::Data(data)) => all.extend_from_slice(&data),
                other => panic!("{other:?}"),
            }
        }
        self.close(fh);
        Ok(all)
    }

    pub fn truncate(&mut self, path: &str, size: u64) -> Result<(), Errno> {
        self.retry(|v, reval| {
            let ino = v.walk(path, reval)?;
            if v.attr(ino)?.mode & 0o170_000 == 0o040_000 {
                return Err(Errno::EISDIR);
            }
            match v.call(Call::Setattr { ino, set: SetStat { size: Some(size), ..SetStat::default() } })? {
                Answer::Attr(stat) => {
                    assert_eq!(stat.size, size);
                    v.kernel.keep(&stat);
                    Ok(())
                }
                other => panic!("{other:?}"),
            }
        })
    }

    pub fn chmod(&mut self, path: &str, mode: u32) -> Result<(), Errno> {
        self.retry(|v, reval| {
            let ino = v.walk(path, reval)?;
            match v.call(Call::Setattr { ino, set: SetStat { mode: Some(mode), ..SetStat::default() } })? {
                Answer::Attr(stat) => {
                    v.kernel.keep(&stat);
                    Ok(())
                }
                other => panic!("{other:?}"),
            }
        })
    }

    pub fn remove(&mut self, path: &str, dir: bool) -> Result<(), Errno> {
        self.retry(|v, reval| {
            let (above, last) = split(path);
            let parent = v.walk_dir(above, reval)?;
            let ino = v.step(parent, last, !reval)?;
            let call =
                if dir { Call::Rmdir { parent, name: name(last) } } else { Call::Unlink { parent, name: name(last) } };
            v.call(call)?;
            v.kernel.entries.remove(&(parent, last.to_owned()));
            v.kernel.attrs.remove(&parent);
            v.kernel.attrs.remove(&ino);
            Ok(())
        })
    }

    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), Errno> {
        self.retry(|v, reval| {
            let (from_dir, from_name) = split(from);
            let (to_dir, to_name) = split(to);
            let parent = v.walk_dir(from_dir, reval)?;
            let new_parent = v.walk_dir(to_dir, reval)?;
            let ino = v.step(parent, from_name, !reval)?;
            let target = match v.step(new_parent, to_name, false) {
                Ok(target) => Some(target),
                Err(Errno::ENOENT) => None,
                Err(errno) => return Err(errno),
            };
            let call = Call::Rename { parent, name: name(from_name), new_parent, new_name: name(to_name), flags: 0 };
            v.call(call)?;
            let kept = v.kernel.entries.remove(&(parent, from_name.to_owned()));
            v.kernel.entries.remove(&(new_parent, to_name.to_owned()));
            if kept.is_some() && target != Some(ino) {
                v.kernel.entries.insert((new_parent, to_name.to_owned()), ino);
            }
            for gone in [Some(parent), Some(new_parent), Some(ino), target].into_iter().flatten() {
                v.kernel.attrs.remove(&gone);
            }
            Ok(())
        })
    }

    pub fn link(&mut self, from: &str, to: &str) -> Result<(), Errno> {
        self.retry(|v, reval| {
            let ino = v.walk(from, reval)?;
            // Before the rest: an entry that is about to be dropped shows here.
            let dir = v.attr(ino)?.mode & 0o170_000 == 0o040_000;
            let new_parent = v.vacant(to, reval)?;
            let last = split(to).1;
            if dir {
                return Err(Errno::EPERM);
            }
            match v.call(Call::Link { ino, new_parent, new_name: name(last) })? {
                Answer::Entry(stat) => v.kernel.keep_entry(new_parent, last, &stat),
                other => panic!("{other:?}"),
            }
            v.kernel.attrs.remove(&new_parent);
            Ok(())
        })
    }

    pub fn list(&mut self, path: &str, plus: bool) -> Result<Vec<String>, Errno> {
        self.listen();
        self.retry(|v, reval| {
            let ino = v.walk(path, reval)?;
            if v.attr(ino)?.mode & 0o170_000 != 0o040_000 {
                return Err(Errno::ENOTDIR);
            }
            let mut names = v.c.list(v.node, ino, plus)?;
            for entry in core::mem::take(&mut v.c.listed) {
                if let Some(stat) = &entry.stat {
                    v.kernel.keep_entry(ino, core::str::from_utf8(&entry.name).unwrap(), stat);
                }
            }
            names.retain(|name| name != "." && name != "..");
            names.sort();
            Ok(names)
        })
    }
}
