//! A stand-in for the Linux kernel in front of a client: it caches what replies allow it to cache, and invalidates on request.
//!
//! It tests the client's caches against what makes them hard: the kernel answers from cached attributes, names and pages, sends a
//! request only when it must, holds a directory's lock while it waits for a reply, holds a page's lock while it reads or writes
//! the page, and drops things at its own pace. The rules are those of the FUSE kernel module (attribute versions, validity of
//! names, write-through, pages of `mmap`), as far as they matter here.
//!
//! [`names`]: paths and operations on names. [`files`]: open files and their pages. Errors that Linux detects before it asks the
//! file system (a path that does not exist, missing search permission) are detected here; all others come from the client.

mod files;
mod names;

use core::cell::{Ref, RefCell, RefMut};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use client::api::{Answer, Call, FileHandle, Invalidation, KernelNode, Stat};
use proto::msg::Cred;
use proto::{Bytes, Errno};
use stdx::{Instant, Rng};

use crate::model::{Op, Returned, WriteWay};
use crate::plan::Plan;
use crate::sched::{Fail, PartialWrite, Sched};

pub(crate) use files::{Fd, WriteKind};
pub(crate) use names::OpenHow;

/// The result of a system call.
pub(crate) type SysResult<T> = Result<T, Fail>;

/// An inode that the kernel knows.
#[derive(Default)]
struct Inode {
    /// References that the client counts (`nlookup`).
    lookups: u64,
    /// Open files.
    opens: u32,
    /// The type bits of the mode.
    kind: u32,
    /// A directory that a program on this kernel has removed (`S_DEAD`): it has no names, and none can be made in it.
    removed: bool,
    /// The length as the kernel knows it.
    size: u64,
    /// Attributes, while they are valid.
    attr: Option<Stat>,
    /// The version of the last local change: replies to older requests are not cached.
    changed: u64,
    /// The version at which attributes were last cached. As in Linux, which counts that as a change: if replies arrive out of
    /// order, the newer one stays.
    learned: u64,
    /// The version of the last change that may have concerned this inode: older replies are used but not cached.
    doubted: u64,
    /// A buffered write that extends the file is in progress: attributes in replies are ignored meanwhile
    /// (`FUSE_I_SIZE_UNSTABLE`).
    unstable: bool,
    /// Cached pages.
    pages: BTreeMap<u64, Vec<u8>>,
    /// Pages that a program has modified through `mmap`.
    dirty: BTreeSet<u64>,
    /// Such pages whose write-back is in flight; they may be modified again meanwhile.
    in_write_back: BTreeSet<u64>,
    /// Pages that are being read or written.
    locked: BTreeSet<u64>,
    /// How often each page was read from the client.
    fills: BTreeMap<u64, u64>,
    /// Pages that are being read and may arrive stale: they are not cached.
    stale_fills: BTreeSet<u64>,
    /// Open files with write access.
    writers: Vec<FileHandle>,
    /// The number of failed write-backs of pages modified through `mmap`, and the error of the last one.
    failures: u64,
    failure: Option<Errno>,
    /// By open file: how many of these failures were reported to it; and how many to any file.
    reported: BTreeMap<FileHandle, u64>,
    reported_to_any: u64,
}

/// A name in the kernel's cache.
#[derive(Clone, Copy)]
struct CachedName {
    ino: u64,
    valid: bool,
}

#[derive(Default)]
struct Gate {
    readers: u32,
    writer: bool,
}

#[derive(Default)]
struct Caches {
    version: u64,
    inodes: BTreeMap<u64, Inode>,
    names: BTreeMap<(u64, Bytes), CachedName>,
    gates: BTreeMap<u64, Gate>,
    /// Tasks that wait for a gate or a page lock.
    waiters: Vec<usize>,
    /// Names whose invalidation is in flight, and how many invalidations of each.
    invalidating: BTreeMap<(u64, Bytes), u32>,
    /// Path walks in progress: they pin what they have found.
    walks: u32,
    /// By task: how often it has waited for disk space.
    pauses: BTreeMap<usize, u64>,
    /// Tokens of finished invalidations, and whether the object was known.
    forgotten: Vec<(u64, bool)>,
    dead: bool,
}

struct Inner {
    sched: Sched,
    client: usize,
    forgetful: u64,
    /// Disks fill up and are freed: programs retry.
    retries_when_full: bool,
    /// Disks fail and are repaired: programs retry.
    retries_on_error: bool,
    /// Of 1000 calls, how many are interrupted by a signal.
    signals: u64,
    /// No target is ever away.
    quiet: bool,
    /// Programs use access lists.
    lists: bool,
    caches: RefCell<Caches>,
    rng: RefCell<Rng>,
}

/// The kernel of one client's machine; a handle, cheap to clone.
///
/// The second field: whether programs that use this handle receive signals.
#[derive(Clone)]
pub struct Kernel(Rc<Inner>, bool);

/// The type bits of a mode.
pub(crate) const S_IFMT: u32 = 0o170_000;
/// A directory.
pub(crate) const S_IFDIR: u32 = 0o040_000;
/// A regular file.
pub(crate) const S_IFREG: u32 = 0o100_000;
/// A symbolic link.
pub(crate) const S_IFLNK: u32 = 0o120_000;

/// An answer of the wrong type for the call.
fn unexpected(answer: &Answer) -> Fail {
    // A client that answers with another call's answer has a defect that no program could see.
    debug_assert!(false, "unexpected answer {answer:?}");
    Fail::Errno(Errno::EPROTO)
}

/// The gate of renames between directories: no inode has this number.
const BETWEEN_DIRECTORIES: u64 = 0;

/// A killed program must be gone after this time.
const KILLED_MAX: Duration = Duration::from_secs(1);

/// How long a program waits for disk space before it retries,
const FULL_PAUSE: Duration = Duration::from_millis(20);
/// and how often it retries.
const FULL_TRIES: u32 = 10_000;

impl Kernel {
    /// A kernel with empty caches.
    pub fn new(sched: Sched, client: usize, plan: &Plan, rng: Rng) -> Kernel {
        let mut caches = Caches::default();
        caches.inodes.insert(1, Inode { lookups: 1, kind: S_IFDIR, ..Inode::default() });
        let (forgetful, retries_when_full) = (plan.forgetful, plan.disk_faults.fill_every.is_some());
        let retries_on_error = plan.disturbances.io.is_some();
        let (caches, rng) = (RefCell::new(caches), RefCell::new(rng));
        let (signals, lists) = (plan.signals, plan.shared.lists);
        Kernel(
            Rc::new(Inner {
                sched,
                client,
                forgetful,
                retries_when_full,
                quiet: plan.is_quiet(),
                retries_on_error,
                signals,
                lists,
                caches,
                rng,
            }),
            false,
        )
    }

    /// A handle for a program that receives signals.
    pub fn with_signals(&self) -> Kernel {
        Kernel(self.0.clone(), self.0.signals > 0)
    }

    /// A handle for a program that receives no signals.
    pub fn unsignalled(&self) -> Kernel {
        Kernel(self.0.clone(), false)
    }

    /// Whether a call was ended by a signal and has changed nothing, not even access times, because none of its requests has read
    /// anything.
    pub fn was_interrupted<T>(&self, result: &Result<T, Errno>) -> bool {
        self.1 && matches!(result, Err(Errno::EINTR))
    }

    /// Decides whether a read or write continues after a failed request; `has_part`: earlier requests have transferred something.
    /// After a signal the program keeps that part and asks for the rest: Linux returns the bytes so far, and each part of a
    /// listing is a call of its own.
    fn continues_after(&self, has_part: bool, fail: Fail) -> SysResult<()> {
        match fail {
            Fail::Errno(Errno::EINTR) if self.1 && has_part => Ok(()),
            fail => Err(fail),
        }
    }

    /// The client to which it belongs.
    pub fn client(&self) -> usize {
        self.0.client
    }

    /// Counts a program's call by operation and result.
    pub fn count(&self, operation: &'static str, result: &'static str) {
        self.0.sched.count(operation, result);
    }

    /// Whether its machine has died.
    pub fn is_dead(&self) -> bool {
        self.caches().dead
    }

    /// Its machine dies.
    pub fn die(&self) {
        self.caches_mut().dead = true;
    }

    fn caches(&self) -> Ref<'_, Caches> {
        self.0.caches.borrow()
    }

    fn caches_mut(&self) -> RefMut<'_, Caches> {
        self.0.caches.borrow_mut()
    }

    fn inode<T>(&self, ino: u64, look: impl FnOnce(&mut Inode) -> T) -> T {
        look(self.caches_mut().inodes.entry(ino).or_default())
    }

    /// Adjusts a call to its result: a disk may fill up in the middle of a write, which then was a shorter one.
    pub fn adjust_to_result(&self, op: &mut Op, result: &Result<Returned, Errno>) {
        if let (true, Op::Write { way: WriteWay::Plain, data, .. }, Ok(Returned::Written(count))) =
            (self.0.retries_when_full || self.0.retries_on_error, op, result)
            && *count > 0
        {
            data.truncate(*count as usize);
        }
    }

    /// Sends a request to the client.
    ///
    /// A request that fails because of a full disk has had no effect, not even a partial one: programs retry until there is
    /// space, as if they had never tried before. So the model knows no full disks, and any effect of a failed attempt shows.
    async fn ask(&self, cred: &Cred, call: Call) -> SysResult<Answer> {
        if self.1 && self.0.rng.borrow_mut().chance(self.0.signals, 1000) {
            return self.ask_and_signal(cred, call).await;
        }
        self.ask_quietly(cred, call).await
    }

    /// The same, and the program receives a signal while it waits.
    async fn ask_and_signal(&self, cred: &Cred, call: Call) -> SysResult<Answer> {
        let (sched, client) = (self.0.sched.clone(), self.0.client);
        let (pause, fatal) = {
            let mut rng = self.0.rng.borrow_mut();
            let most = [20, 2_000, 200_000, 3_000_000][rng.below(4) as usize];
            let is_lock = matches!(call, Call::Setlk { .. } | Call::Getlk { .. });
            (Duration::from_micros(rng.below(most)), rng.chance(1, 4) && !is_lock)
        };
        let what = crate::sched::brief(&call);
        let id = sched.start_call(client, cred, call)?;
        let killed = Rc::new(core::cell::Cell::new(false));
        let (flag, outer) = (killed.clone(), sched.clone());
        sched.spawn("a signal", async move {
            outer.sleep(pause).await;
            let meets = outer.interrupt(client, id, fatal);
            flag.set(meets && fatal);
            if meets && fatal {
                outer.sleep(KILLED_MAX).await;
                if outer.waits(id) {
                    outer.fail(format!("a program on client {client} was killed, and still waits: {what}"));
                }
            }
        });
        let answer = sched.finish_call(id).await;
        match answer {
            Err(Fail::Dead) => Err(Fail::Dead),
            _ if killed.get() => Err(Fail::Killed(PartialWrite::default())),
            answer => answer,
        }
    }

    /// The same, for requests that no program waits for.
    async fn ask_quietly(&self, cred: &Cred, call: Call) -> SysResult<Answer> {
        let mut tries = 0;
        loop {
            let answer = self.0.sched.call(self.0.client, cred, call.clone()).await;
            if let (true, Ok(Answer::Attr(stat) | Answer::Entry(stat))) = (self.0.quiet, &answer)
                && stat.is_partial
            {
                self.0.sched.fail(format!("a stripe of {:x} is not known, and no target was away", stat.ino));
            }
            match answer {
                Err(Fail::Errno(Errno::ENOSPC)) if self.0.retries_when_full && tries < FULL_TRIES => tries += 1,
                Err(Fail::Errno(Errno::EIO)) if self.0.retries_on_error && tries < FULL_TRIES => tries += 1,
                answer => return answer,
            }
            let task = self.0.sched.current();
            *self.caches_mut().pauses.entry(task).or_default() += 1;
            self.0.sched.sleep(FULL_PAUSE).await;
        }
    }

    /// How often the running task has waited for disk space: each time its program has repeated the call and walks its path anew.
    fn pauses(&self) -> u64 {
        self.caches().pauses.get(&self.0.sched.current()).copied().unwrap_or(0)
    }

    /// Whether another client has changed a name on one of these paths since `since`. Linux walks a path twice and then gives up;
    /// the stand-in walks it again after each such change, so that histories show other defects.
    fn others_moved(&self, paths: &[&names::Path], since: Instant) -> bool {
        self.0.sched.others_moved(self.0.client, since, |name| paths.iter().any(|path| path.contains(name)))
    }

    fn version(&self) -> u64 {
        self.caches().version
    }

    /// Records a local change of an inode: older replies are not cached, and its attributes are requested again.
    fn touched(&self, ino: u64) {
        let mut caches = self.caches_mut();
        caches.version += 1;
        let version = caches.version;
        let inode = caches.inodes.entry(ino).or_default();
        inode.changed = version;
        inode.attr = None;
    }

    /// Records a change whose objects were not looked up first: no attributes are certain.
    fn touched_blindly(&self) {
        let mut caches = self.caches_mut();
        caches.version += 1;
        let version = caches.version;
        for inode in caches.inodes.values_mut() {
            inode.doubted = version;
            inode.attr = None;
        }
    }

    /// Takes in attributes from the reply to a request that was sent at `started`.
    fn learn(&self, stat: &Stat, started: u64) {
        let mut caches = self.caches_mut();
        let version = caches.version + 1;
        let inode = caches.inodes.entry(stat.ino).or_default();
        inode.kind = stat.mode & S_IFMT;
        if inode.changed.max(inode.learned) > started || inode.unstable {
            return;
        }
        inode.learned = version;
        if stat.size != inode.size {
            inode.set_size(stat.size);
        }
        inode.attr = (stat.cacheable && inode.doubted <= started).then(|| stat.clone());
        caches.version = version;
    }

    /// Takes in a name that was looked up or made.
    fn enter(&self, parent: u64, name: &Bytes, stat: &Stat, started: u64, entry_valid: bool) {
        self.learn(stat, started);
        let mut caches = self.caches_mut();
        caches.inodes.entry(stat.ino).or_default().lookups += 1;
        caches.names.insert((parent, name.clone()), CachedName { ino: stat.ino, valid: entry_valid });
    }

    fn drop_name(&self, parent: u64, name: &Bytes) {
        let dropped = self.caches_mut().names.remove(&(parent, name.clone()));
        if let Some(name) = dropped {
            self.maybe_evict(name.ino);
        }
    }

    /// The attributes of an inode, from the cache or the client. Of two replies to concurrent requests Linux caches the one that
    /// arrives first, or the one that was requested after the last local change, but shows each program its own: the times of an
    /// ongoing write may be in the other reply only, and a later stat sees older ones. No client can know that, so the stand-in
    /// shows both programs the cached attributes, and asks again if a local change keeps a reply from the cache.
    async fn attr(&self, cred: &Cred, ino: u64, fh: Option<FileHandle>) -> SysResult<Stat> {
        loop {
            if let Some(stat) = self.inode(ino, |inode| inode.attr.clone()) {
                return Ok(stat);
            }
            let started = self.version();
            let stat = match self.ask(cred, Call::Getattr { ino, fh }).await? {
                Answer::Attr(stat) => stat,
                other => return Err(unexpected(&other)),
            };
            self.learn(&stat, started);
            if self.inode(ino, |inode| inode.changed <= started) {
                let kept = self.inode(ino, |inode| inode.attr.clone().filter(|_| inode.learned > started));
                return Ok(kept.unwrap_or(stat));
            }
        }
    }

    // --- the kernel's own locks ---

    async fn gate(&self, ino: u64, exclusive: bool) -> GateHeld {
        loop {
            {
                let mut caches = self.caches_mut();
                let gate = caches.gates.entry(ino).or_default();
                if !gate.writer && (gate.readers == 0 || !exclusive) {
                    if exclusive {
                        gate.writer = true;
                    } else {
                        gate.readers += 1;
                    }
                    return GateHeld { kernel: self.clone(), ino, exclusive };
                }
            }
            self.wait().await;
        }
    }

    /// The gate of a directory in which a name is to be changed. The directory may have been removed while the task waited.
    async fn gate_to_change(&self, dir: u64) -> SysResult<GateHeld> {
        let gate = self.gate(dir, true).await;
        if self.inode(dir, |inode| inode.removed) { Err(Errno::ENOENT.into()) } else { Ok(gate) }
    }

    /// The gates of two directories, an ancestor's first, as Linux locks them. One rename at a time is between directories
    /// (`s_vfs_rename_mutex`): three of them could otherwise wait for each other in a circle.
    async fn gates_to_rename(&self, dir: u64, new_dir: u64) -> SysResult<Vec<GateHeld>> {
        if dir == new_dir {
            return Ok(vec![self.gate_to_change(dir).await?]);
        }
        let alone = self.gate(BETWEEN_DIRECTORIES, true).await;
        let below = self.is_below(dir, new_dir) || !self.is_below(new_dir, dir) && new_dir < dir;
        let (first, second) = if below { (new_dir, dir) } else { (dir, new_dir) };
        Ok(vec![alone, self.gate_to_change(first).await?, self.gate_to_change(second).await?])
    }

    /// Whether a directory lies below another, according to the cached names.
    fn is_below(&self, mut ino: u64, above: u64) -> bool {
        let caches = self.caches();
        for _ in 0..64 {
            let parent = caches.names.iter().find(|(_, name)| name.ino == ino).map(|((dir, _), _)| *dir);
            match parent {
                Some(parent) if parent == above => return true,
                Some(parent) => ino = parent,
                None => return false,
            }
        }
        false
    }

    /// Waits until some lock is released.
    async fn wait(&self) {
        let task = self.0.sched.current();
        self.caches_mut().waiters.push(task);
        self.0.sched.park().await;
    }

    fn wake_all(&self) {
        let waiters = core::mem::take(&mut self.caches_mut().waiters);
        for task in waiters {
            self.0.sched.wake(task);
        }
    }

    // --- invalidation ---

    /// The client has sent an invalidation of this name, while programs race for names.
    ///
    /// Linux uses the name until the invalidation has arrived. A callback that waited for it in any case could wait for ever (a
    /// call that holds the directory's lock may wait for the same server), so sometimes nothing waits, and for a moment a program
    /// may see a name that another client has removed. Where many programs race for few names this would hide real defects, so
    /// the stand-in asks the client about such a name.
    pub fn will_forget(&self, parent: u64, name: &Bytes) {
        *self.caches_mut().invalidating.entry((parent, name.clone())).or_default() += 1;
    }

    fn is_invalidating(&self, parent: u64, name: &Bytes) -> bool {
        self.caches().invalidating.contains_key(&(parent, name.clone()))
    }

    /// Carries out an invalidation.
    pub fn forget(&self, what: Invalidation) {
        let kernel = self.clone();
        match what {
            Invalidation::Inode { token, ino, length: 0, .. } => {
                let known = self.caches().inodes.contains_key(&ino);
                if known {
                    self.touched(ino);
                }
                self.forgot(token, known);
            }
            // Each has a task of its own: a page may be locked by a call that waits for another page to be dropped.
            Invalidation::Inode { token, ino, offset, length } => {
                let task = format!("kernel {} forgets pages", self.0.client);
                self.0.sched.spawn(task, async move { kernel.forget_pages(token, ino, offset, length).await });
            }
            Invalidation::Entry { token, parent, name } => {
                let task = format!("kernel {} forgets a name", self.0.client);
                self.0.sched.spawn(task, async move { kernel.forget_name(token, parent, name).await });
            }
        }
    }

    fn forgot(&self, token: u64, known: bool) {
        if token != 0 {
            self.caches_mut().forgotten.push((token, known));
        }
    }

    async fn forget_pages(&self, token: u64, ino: u64, offset: u64, length: u64) {
        let known = self.caches().inodes.contains_key(&ino);
        if known {
            self.touched(ino);
            self.drop_pages(ino, offset, length).await;
        }
        self.forgot(token, known);
    }

    async fn forget_name(&self, token: u64, parent: u64, name: Bytes) {
        let _gate = self.gate(parent, true).await;
        self.touched(parent);
        self.drop_name(parent, &name);
        let key = (parent, name);
        let mut caches = self.caches_mut();
        if let Some(left) =
            caches.invalidating.remove(&key).and_then(|count| count.checked_sub(1)).filter(|left| *left > 0)
        {
            caches.invalidating.insert(key, left);
        }
        drop(caches);
        self.forgot(token, true);
    }

    /// The tokens of the invalidations that were finished since the last call, and whether the object was known.
    pub fn take_forgotten(&self) -> Vec<(u64, bool)> {
        core::mem::take(&mut self.caches_mut().forgotten)
    }

    /// Drops an inode that nothing needs, by chance.
    fn maybe_evict(&self, ino: u64) {
        self.evict(ino, || self.0.rng.borrow_mut().chance(1, 2));
    }

    fn evict(&self, ino: u64, decide: impl FnOnce() -> bool) {
        let count = {
            let mut caches = self.caches_mut();
            let used = caches.names.values().any(|name| name.ino == ino) || caches.names.keys().any(|(p, _)| *p == ino);
            let Some(inode) = caches.inodes.get(&ino) else { return };
            if ino == 1 || caches.walks > 0 || used || inode.opens > 0 || !inode.locked.is_empty() || inode.is_changed()
            {
                return;
            }
            if !decide() {
                return;
            }
            let count = inode.lookups;
            caches.inodes.remove(&ino);
            count
        };
        if count > 0 {
            self.0.sched.post(self.0.client, Call::Forget { ino, count });
        }
    }

    /// Drops every name and inode that nothing needs.
    pub fn forget_all(&self) {
        let names: Vec<(u64, Bytes)> = self.caches().names.keys().cloned().collect();
        for (parent, name) in names {
            self.drop_name(parent, &name);
        }
        let inodes: Vec<u64> = self.caches().inodes.keys().copied().collect();
        for ino in inodes {
            self.evict(ino, || true);
        }
    }

    /// Simulates memory pressure from time to time: drops a name without cached names below it, and some pages.
    fn shrink(&self) {
        let mut rng = self.0.rng.borrow_mut();
        if self.0.forgetful == 0 || self.caches().walks > 1 || !rng.chance(self.0.forgetful, 1000) {
            return;
        }
        let victim = {
            let mut caches = self.caches_mut();
            let names: Vec<((u64, Bytes), u64)> = caches
                .names
                .iter()
                .filter(|(_, name)| !caches.names.keys().any(|(parent, _)| *parent == name.ino))
                .map(|(key, name)| (key.clone(), name.ino))
                .collect();
            for inode in caches.inodes.values_mut() {
                let Inode { pages, dirty, in_write_back, locked, .. } = inode;
                let busy = |page: &u64| [&*dirty, in_write_back, locked].iter().any(|pages| pages.contains(page));
                pages.retain(|page, _| busy(page) || !rng.chance(1, 4));
            }
            rng.pick(&names).cloned()
        };
        drop(rng);
        if let Some(((parent, name), _)) = victim {
            self.drop_name(parent, &name);
        }
    }
}

impl Kernel {
    /// Drops unused nodes at the client's request, without taking directory locks.
    pub fn let_go(&self, nodes: &[KernelNode]) {
        // A walk pins what it has found.
        if self.caches().walks > 0 {
            return;
        }
        for node in nodes {
            let names: Vec<(u64, Bytes)> = {
                let caches = self.caches();
                let used = caches.names.keys().any(|(parent, _)| *parent == node.ino)
                    || caches.inodes.get(&node.ino).is_none_or(|inode| inode.opens > 0);
                let all = caches.names.iter().filter(|(_, name)| name.ino == node.ino);
                if used { Vec::new() } else { all.map(|(key, _)| key.clone()).collect() }
            };
            for (parent, name) in names {
                self.drop_name(parent, &name);
            }
        }
    }
}

/// A path walk in progress, until dropped.
struct Walk(Kernel);

impl Kernel {
    fn begin_walk(&self) -> Walk {
        self.caches_mut().walks += 1;
        Walk(self.clone())
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        self.0.caches_mut().walks -= 1;
    }
}

/// A directory's or file's lock, held until dropped.
struct GateHeld {
    kernel: Kernel,
    ino: u64,
    exclusive: bool,
}

impl Drop for GateHeld {
    fn drop(&mut self) {
        if let Some(gate) = self.kernel.caches_mut().gates.get_mut(&self.ino) {
            if self.exclusive {
                gate.writer = false;
            } else {
                gate.readers -= 1;
            }
        }
        self.kernel.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two requests are in flight at once, and the reply to the second arrives first.
    #[test]
    fn an_overtaken_reply_is_not_cached() {
        let sched = Sched::new();
        let kernel = Kernel::new(sched.clone(), 0, &Plan::draw(1), Rng::new(1));
        let shown = Rc::new(RefCell::new(Vec::new()));
        let asks = || {
            let (kernel, shown) = (kernel.clone(), shown.clone());
            sched.spawn("a program", async move {
                let stat = kernel.attr(&Cred::default(), 1, None).await;
                shown.borrow_mut().push(stat.ok().map(|stat| stat.ctime_ns));
            });
            sched.run();
        };
        asks();
        asks();
        let mut asked = sched.take_requests();
        let (first, second) = (asked.pop_front().unwrap(), asked.pop_front().unwrap());
        for (request, ctime_ns) in [(second, 2), (first, 1)] {
            let stat = Stat { ino: 1, mode: S_IFDIR, ctime_ns, cacheable: true, ..Stat::default() };
            sched.answer(request.id, Ok(Answer::Attr(stat)));
            sched.run();
        }
        asks();
        assert_eq!(*shown.borrow(), [Some(2); 3]);
    }

    /// One directory lies in another, and a third has a number between theirs: no order of two of them suits all renames.
    #[test]
    fn renames_between_three_directories_end() {
        let (inner, apart, outer) = (2, 3, 4);
        let sched = Sched::new();
        let kernel = Kernel::new(sched.clone(), 0, &Plan::draw(1), Rng::new(1));
        let name = CachedName { ino: inner, valid: true };
        kernel.caches_mut().names.insert((outer, Bytes::from_static(b"inner")), name);
        let held = Rc::new(RefCell::new(Vec::new()));
        let (holder, kept) = (kernel.clone(), held.clone());
        sched.spawn("who was there before", async move {
            for dir in [inner, apart, outer] {
                let gate = holder.gate(dir, true).await;
                kept.borrow_mut().push(gate);
            }
        });
        let ended = Rc::new(RefCell::new(0));
        for (dir, new_dir) in [(inner, apart), (outer, inner), (apart, outer)] {
            let (kernel, ended) = (kernel.clone(), ended.clone());
            sched.spawn("a rename", async move {
                let gates = kernel.gates_to_rename(dir, new_dir).await;
                assert!(gates.is_ok());
                *ended.borrow_mut() += 1;
            });
        }
        sched.run();
        assert_eq!(*ended.borrow(), 0);
        held.borrow_mut().clear();
        sched.run();
        assert_eq!(*ended.borrow(), 3);
    }
}
