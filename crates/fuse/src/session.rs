//! The session with the kernel: each request becomes one call, each answer one reply.

use std::os::fd::BorrowedFd;

use bytes::Bytes;
use client::api::{Answer, CallId, FileHandle as Fh, NewDir, RecordLock, RecordLockKind, SetStat, Stat, Whence};
use fusewire::abi::open;
use fusewire::{Attend, Entry, FileLock, Handler, Incoming, Listing, Operation, Reply, Request, SetAttr, Space};
use host::client::{Attention, Caller, Mount};
use proto::msg::{Cred, StatfsRep};
use proto::{Errno, Fid};

use crate::Call;
use crate::convert::{attributes, entry, set_time, user_device, validity};
use crate::interrupts::Interrupts;
use crate::ioctl::{self, DirLayout, NewDirectory, Verb};
use crate::job::Jobs;
use crate::process;

/// Approximate size of the kernel's buffer for directory entries.
const READDIR_BYTES: u32 = 32 << 10;

pub(crate) struct Adapter {
    pub(crate) client: Mount,
    /// The answer to `Verb::Identity`.
    pub(crate) identity: String,
    /// The node that the kernel uses as the root.
    pub(crate) root: u64,
    pub(crate) interrupts: Interrupts,
    pub(crate) jobs: Jobs,
}

type Outcome = Result<Answer, Errno>;

/// Answers with an error. An answer of the wrong kind is a bug; the program then gets an error instead of hanging.
fn refuse(reply: Reply, outcome: Outcome) {
    reply.error(outcome.err().unwrap_or(Errno::EIO).raw());
}

fn reply_entry(reply: Reply, outcome: Outcome) {
    match outcome {
        Ok(Answer::Entry(stat)) => {
            reply.entry(&entry(&stat, validity(stat.entry_cacheable), validity(stat.cacheable)));
        }
        other => refuse(reply, other),
    }
}

fn reply_empty(reply: Reply, outcome: Outcome) {
    match outcome {
        Ok(_) => reply.ok(),
        Err(error) => reply.error(error.raw()),
    }
}

fn reply_attr(reply: Reply, outcome: Outcome) {
    match outcome {
        Ok(Answer::Attr(stat)) => reply.attr(&attributes(&stat), validity(stat.cacheable)),
        other => refuse(reply, other),
    }
}

fn reply_data(reply: Reply, outcome: Outcome) {
    match outcome {
        Ok(Answer::Data(data)) => reply.data(&data),
        other => refuse(reply, other),
    }
}

fn open_flags(keep_cache: bool, direct_io: bool, no_flush: bool) -> u32 {
    let choices = [
        (keep_cache, open::KEEP_CACHE),
        (direct_io, open::DIRECT_IO | open::PARALLEL_DIRECT_WRITES),
        (no_flush, open::NOFLUSH),
    ];
    choices.into_iter().filter(|(chosen, _)| *chosen).fold(0, |flags, (_, flag)| flags | flag)
}

fn reply_open(reply: Reply, outcome: Outcome) {
    match outcome {
        Ok(Answer::Opened { fh, keep_cache, direct_io, no_flush }) => {
            reply.opened(fh.0, open_flags(keep_cache, direct_io, no_flush));
        }
        other => refuse(reply, other),
    }
}

fn reply_created(reply: Reply, outcome: Outcome) {
    match outcome {
        Ok(Answer::Created { stat, fh, direct_io, no_flush }) => {
            let valid = validity(stat.cacheable && stat.entry_cacheable);
            reply.created(&entry(&stat, valid, valid), fh.0, open_flags(false, direct_io, no_flush));
        }
        other => refuse(reply, other),
    }
}

fn reply_xattr(reply: Reply, size: u32, outcome: Outcome) {
    match outcome {
        Ok(Answer::Data(value)) if size == 0 => reply.xattr_size(value.len() as u32),
        Ok(Answer::Data(value)) if value.len() > size as usize => reply.error(libc::ERANGE),
        other => reply_data(reply, other),
    }
}

fn reply_lock(reply: Reply, outcome: Outcome) {
    match outcome {
        Ok(Answer::Lock(lock)) => {
            let kind = match lock.kind {
                RecordLockKind::Shared => libc::F_RDLCK,
                RecordLockKind::Exclusive => libc::F_WRLCK,
                RecordLockKind::Unlock => libc::F_UNLCK,
            };
            reply.lock(&FileLock { start: lock.start, end: lock.end.min(i64::MAX as u64), kind, pid: lock.pid });
        }
        other => refuse(reply, other),
    }
}

fn reply_space(reply: Reply, outcome: Outcome) {
    match outcome {
        Ok(Answer::Space { block_size, blocks, free, available, files, files_free }) => {
            reply.space(&Space { blocks, free, available, files, files_free, block_size, name_length: 255 });
        }
        other => refuse(reply, other),
    }
}

fn reply_listing(reply: Reply, size: u32, outcome: Outcome) {
    match outcome {
        Ok(Answer::Entries(entries)) => {
            let mut listing = Listing::new(size);
            for entry in entries {
                if !listing.add(entry.ino, entry.offset, entry.kind, &entry.name) {
                    break;
                }
            }
            reply.listing(&listing);
        }
        other => refuse(reply, other),
    }
}

fn record_lock(lock: &FileLock) -> RecordLock {
    let kind = match lock.kind {
        libc::F_RDLCK => RecordLockKind::Shared,
        libc::F_WRLCK => RecordLockKind::Exclusive,
        _ => RecordLockKind::Unlock,
    };
    let end = if lock.end >= i64::MAX as u64 { u64::MAX } else { lock.end };
    RecordLock { start: lock.start, end, kind, pid: lock.pid }
}

fn set_stat(set: &SetAttr) -> SetStat {
    SetStat {
        mode: set.mode.map(|mode| mode & 0o7777),
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set.atime.map(set_time),
        mtime: set.mtime.map(set_time),
        fh: set.fh.map(Fh),
    }
}

/// The caller of a request. The kernel gives all waiting requests different numbers.
fn caller(request: &Request<'_>) -> Caller {
    Caller { id: CallId(request.unique), thread: request.pid, interruptible: false }
}

fn bytes(name: &[u8]) -> Bytes {
    Bytes::copy_from_slice(name)
}

/// How an operation is handled.
enum Plan {
    /// A call of the client, and the function that answers with its outcome. The umask applies to calls that make a file.
    Call { umask: u32, call: Call, answer: fn(Reply, Outcome) },
    /// The same, with the size of the program's buffer.
    Sized { call: Call, size: u32, answer: fn(Reply, u32, Outcome) },
    /// Anything else.
    Special,
}

/// What an ioctl asks for.
struct Asked {
    /// Applies to calls that make a directory.
    umask: u32,
    call: Call,
    /// Of an answer that takes several blocks, the number of the first element that is wanted.
    from: Option<u32>,
}

/// A target and its space.
type TargetStatfs = (String, Result<StatfsRep, Errno>);

fn plain(call: Call, answer: fn(Reply, Outcome)) -> Plan {
    Plan::Call { umask: 0, call, answer }
}

impl Adapter {
    /// The client's number of a node.
    fn node(&self, ino: u64) -> u64 {
        if ino == fusewire::abi::ROOT { self.root } else { ino }
    }

    /// Operations on names.
    fn plan(&self, request: &Request<'_>) -> Plan {
        let ino = self.node(request.node);
        match &request.operation {
            Operation::Lookup { name } => plain(Call::Lookup { parent: ino, name: bytes(name) }, reply_entry),
            Operation::Mknod { name, mode, rdev, umask } => {
                let call = Call::Mknod { parent: ino, name: bytes(name), mode: *mode, rdev: user_device(*rdev) };
                Plan::Call { umask: *umask, call, answer: reply_entry }
            }
            Operation::Mkdir { name, mode, umask } => {
                let call = Call::Mkdir { parent: ino, name: bytes(name), mode: *mode };
                Plan::Call { umask: *umask, call, answer: reply_entry }
            }
            Operation::Create { name, mode, umask, flags } => {
                let call = Call::Create { parent: ino, name: bytes(name), mode: *mode, flags: *flags };
                Plan::Call { umask: *umask, call, answer: reply_created }
            }
            Operation::Symlink { name, target } => {
                plain(Call::Symlink { parent: ino, name: bytes(name), target: bytes(target) }, reply_entry)
            }
            Operation::Unlink { name } => plain(Call::Unlink { parent: ino, name: bytes(name) }, reply_empty),
            Operation::Rmdir { name } => plain(Call::Rmdir { parent: ino, name: bytes(name) }, reply_empty),
            Operation::Rename { name, new_parent, new_name, flags } => {
                let call = Call::Rename {
                    parent: ino,
                    name: bytes(name),
                    new_parent: self.node(*new_parent),
                    new_name: bytes(new_name),
                    flags: *flags,
                };
                plain(call, reply_empty)
            }
            Operation::Link { node, new_name } => {
                let call = Call::Link { ino: self.node(*node), new_parent: ino, new_name: bytes(new_name) };
                plain(call, reply_entry)
            }
            Operation::Readlink => plain(Call::Readlink { ino }, reply_data),
            Operation::Syncfs => plain(Call::Syncfs, reply_empty),
            Operation::Statfs => plain(Call::Statfs { ino }, reply_space),
            Operation::Opendir { .. } => plain(Call::Opendir { ino }, reply_open),
            Operation::Open { flags } => plain(Call::Open { ino, flags: *flags }, reply_open),
            _ => self.plan_attributes(ino, &request.operation),
        }
    }

    /// Operations on attributes and extended attributes.
    fn plan_attributes(&self, ino: u64, operation: &Operation<'_>) -> Plan {
        match operation {
            Operation::Getattr { fh: None } if ino == self.root => plain(Call::RootAttr { ino }, reply_attr),
            Operation::Getattr { fh } => plain(Call::Getattr { ino, fh: fh.map(Fh) }, reply_attr),
            Operation::Setattr { set } => plain(Call::Setattr { ino, set: set_stat(set) }, reply_attr),
            Operation::Setxattr { name, value, flags } => {
                let call = Call::Setxattr { ino, name: bytes(name), value: bytes(value), flags: *flags };
                plain(call, reply_empty)
            }
            Operation::Getxattr { name, size } => {
                Plan::Sized { call: Call::Getxattr { ino, name: bytes(name) }, size: *size, answer: reply_xattr }
            }
            Operation::Listxattr { size } => {
                Plan::Sized { call: Call::Listxattr { ino }, size: *size, answer: reply_xattr }
            }
            Operation::Removexattr { name } => plain(Call::Removexattr { ino, name: bytes(name) }, reply_empty),
            _ => self.plan_open_file(ino, operation),
        }
    }

    /// Operations on open files.
    fn plan_open_file(&self, ino: u64, operation: &Operation<'_>) -> Plan {
        match operation {
            Operation::Read { fh, offset, size } => {
                plain(Call::Read { fh: Fh(*fh), offset: *offset, length: *size }, reply_data)
            }
            Operation::Write { fh, offset, data, cached, kill_priv } => {
                let call = Call::Write {
                    fh: Fh(*fh),
                    ino,
                    offset: *offset,
                    data: bytes(data),
                    write_back: *cached,
                    kill_priv: *kill_priv,
                };
                plain(call, |reply, outcome| match outcome {
                    Ok(Answer::Written(count)) => reply.written(count),
                    other => refuse(reply, other),
                })
            }
            Operation::Flush { fh, lock_owner } => {
                plain(Call::Flush { fh: Fh(*fh), lock_owner: *lock_owner }, reply_empty)
            }
            Operation::Release { fh, flock_owner } => {
                plain(Call::Release { fh: Fh(*fh), flock_owner: *flock_owner }, reply_empty)
            }
            Operation::Fsync { fh, .. } => plain(Call::Fsync { fh: Fh(*fh) }, reply_empty),
            Operation::Releasedir { fh } => plain(Call::Releasedir { fh: Fh(*fh) }, reply_empty),
            Operation::Fsyncdir { fh, .. } => plain(Call::Fsyncdir { fh: Fh(*fh) }, reply_empty),
            Operation::Readdir { fh, offset, size, plus: false } => {
                let call = Call::Readdir { fh: Fh(*fh), offset: *offset, max_bytes: READDIR_BYTES, plus: false };
                Plan::Sized { call, size: *size, answer: reply_listing }
            }
            Operation::Getlk { fh, owner, lock } => {
                plain(Call::Getlk { fh: Fh(*fh), owner: *owner, lock: record_lock(lock) }, reply_lock)
            }
            Operation::Fallocate { fh, offset, length, mode } => {
                let call = Call::Fallocate { fh: Fh(*fh), mode: *mode, offset: *offset, length: *length };
                plain(call, reply_empty)
            }
            _ => Plan::Special,
        }
    }

    fn special(&self, incoming: Incoming<'_>) {
        let request = incoming.request();
        match &request.operation {
            Operation::Forget { lookups } => self.forget(request, &[(request.node, *lookups)]),
            Operation::BatchForget { nodes } => self.forget(request, nodes),
            Operation::Interrupt { unique } => self.interrupts.signalled(CallId(*unique)),
            Operation::Readdir { fh, offset, .. } => {
                let call = Call::Readdir { fh: Fh(*fh), offset: *offset, max_bytes: READDIR_BYTES, plus: true };
                self.list_with_attributes(incoming, call);
            }
            Operation::Setlk { fh, owner, lock, flock, wait } => {
                let (lock, wait) = (record_lock(lock), *wait && lock.kind != libc::F_UNLCK);
                let call = Call::Setlk { fh: Fh(*fh), owner: *owner, lock, wait, flock: *flock };
                let (caller, cred) = (caller(request), self.cred(request, 0));
                let (caller, reply) = (Caller { interruptible: wait, ..caller }, incoming.into_reply());
                self.client.submit_for(caller, cred, call, Box::new(move |outcome| reply_empty(reply, outcome)));
            }
            Operation::Lseek { fh, offset, whence } => match seek(Fh(*fh), *offset, *whence) {
                Ok(call) => self.submit(incoming, call, |reply, outcome| match outcome {
                    Ok(Answer::Offset(found)) => reply.offset(found),
                    other => refuse(reply, other),
                }),
                Err(errno) => incoming.into_reply().error(errno),
            },
            Operation::Ioctl { command, input, .. } if *command == ioctl::COMMAND => {
                match self.plan_ioctl(self.node(request.node), request.uid == 0, input) {
                    Ok(Asked { umask, call, from }) => {
                        self.submit_with(umask, incoming, call, move |reply, outcome| {
                            let bytes = outcome.map(|answer| ioctl_bytes(&answer, from));
                            reply.ioctl(0, &ioctl::answer(bytes.as_deref().map_err(|error| *error)));
                        })
                    }
                    Err(block) => incoming.into_reply().ioctl(0, &block),
                }
            }
            Operation::Ioctl { .. } => incoming.into_reply().error(libc::ENOTTY),
            Operation::Destroy => incoming.into_reply().ok(),
            _ => incoming.into_reply().error(libc::ENOSYS),
        }
    }

    /// The caller's credentials.
    fn cred(&self, request: &Request<'_>, umask: u32) -> Cred {
        let cred = process::cred(request, umask);
        match self.client.jobs() {
            None => cred,
            Some(by) => Cred { job: self.jobs.of(&by, request), ..cred },
        }
    }

    fn submit(&self, incoming: Incoming<'_>, call: Call, answer: impl FnOnce(Reply, Outcome) + Send + 'static) {
        self.submit_with(0, incoming, call, answer);
    }

    /// The same for a call that may make a file.
    fn submit_with(
        &self,
        umask: u32,
        incoming: Incoming<'_>,
        call: Call,
        answer: impl FnOnce(Reply, Outcome) + Send + 'static,
    ) {
        let request = incoming.request();
        let (caller, cred) = (caller(request), self.cred(request, umask));
        let reply = incoming.into_reply();
        self.client.submit_for(caller, cred, call, Box::new(move |outcome| answer(reply, outcome)));
    }

    fn forget(&self, request: &Request<'_>, nodes: &[(u64, u64)]) {
        for (ino, count) in nodes {
            let call = Call::Forget { ino: *ino, count: *count };
            self.client.submit(self.cred(request, 0), call, Box::new(|_| ()));
        }
    }

    fn list_with_attributes(&self, incoming: Incoming<'_>, call: Call) {
        let client = self.client.clone();
        let cred = self.cred(incoming.request(), 0);
        let size = match &incoming.request().operation {
            Operation::Readdir { size, .. } => *size,
            _ => 0,
        };
        self.submit(incoming, call, move |reply, outcome| {
            let entries = match outcome {
                Ok(Answer::Entries(entries)) => entries,
                other => return refuse(reply, other),
            };
            let mut listing = Listing::new(size);
            let mut unsent = Vec::new();
            for listed in entries {
                let dot = &*listed.name == b"." || &*listed.name == b"..";
                let unknown = || Stat { ino: listed.ino, mode: listed.kind << 12, ..Stat::default() };
                // Without attributes no reference is counted, so the kernel gets no node.
                let counted = !dot && listed.stat.is_some();
                let stat = listed.stat.unwrap_or_else(unknown);
                let valid = validity(!dot && stat.cacheable && stat.entry_cacheable);
                let shown: Entry = entry(&Stat { ino: listed.ino, ..stat }, valid, valid);
                let shown = Entry { node: if counted { shown.node } else { 0 }, ..shown };
                let full = !unsent.is_empty() || !listing.add_plus(&shown, listed.offset, &listed.name);
                if full && counted {
                    unsent.push(listed.ino);
                }
            }
            reply.listing(&listing);
            if !unsent.is_empty() {
                // Entries that did not fit were counted as looked up: release these references, from a thread that may make calls.
                std::thread::spawn(move || {
                    for ino in unsent {
                        client.submit(cred.clone(), Call::Forget { ino, count: 1 }, Box::new(|_| ()));
                    }
                });
            }
        });
    }

    /// The call for an ioctl, or an answer that needs none.
    fn plan_ioctl(&self, ino: u64, by_root: bool, block: &[u8]) -> Result<Asked, Vec<u8>> {
        let refused = || ioctl::answer(Err(Errno::EINVAL));
        let (verb, input) = ioctl::parse_request(block).ok_or_else(refused)?;
        let number = || input.try_into().map(u64::from_le_bytes).map_err(|_| refused());
        let first = || input.try_into().map(u32::from_le_bytes).map_err(|_| refused());
        let call = match verb {
            Verb::MkdirOn => {
                let new = NewDirectory::parse(input).map_err(|error| ioctl::answer(Err(error)))?;
                let NewDirectory { mdts, hash, mode, umask, name } = new;
                let call = Call::MkdirOn { parent: ino, name: name.into(), mode, wish: NewDir { mdts, hash } };
                return Ok(Asked { umask, call, from: None });
            }
            Verb::GetDirLayout => {
                return Ok(Asked { umask: 0, call: Call::GetDirLayout { ino }, from: Some(first()?) });
            }
            Verb::TargetSpace if !input.is_empty() => {
                return Ok(Asked { umask: 0, call: Call::TargetSpace, from: Some(first()?) });
            }
            Verb::SetDirDefault => {
                let default = ioctl::parse_default(input).map_err(|error| ioctl::answer(Err(error)))?;
                Ok(Call::SetDirDefault { ino, default })
            }
            Verb::GetDirDefault => Ok(Call::GetDirDefault { ino }),
            Verb::SetDirLayout => {
                let wish = ioctl::parse_stripes(input).ok_or_else(refused)?;
                Ok(Call::SetDirLayout { ino, wish })
            }
            Verb::RemoveEntry => Ok(Call::RemoveEntry { parent: ino, name: input.to_vec().into() }),
            Verb::MdtIndex if input.is_empty() => Ok(Call::MdtIndex { ino }),
            Verb::MdtIndex => Ok(Call::MdtIndex { ino: number()? }),
            Verb::Identity => Err(ioctl::answer(Ok(self.identity.as_bytes()))),
            Verb::PathToFid => Ok(Call::PathToFid { ino }),
            Verb::FidToPath => {
                let fid = std::str::from_utf8(input).ok().and_then(|text| text.parse::<Fid>().ok());
                fid.map(|fid| Call::FidToPath { fid }).ok_or_else(refused)
            }
            Verb::GetLayout => Ok(Call::GetLayout { ino }),
            Verb::LayoutOf if !by_root => Err(ioctl::answer(Err(Errno::EPERM))),
            Verb::LayoutOf => Ok(Call::GetLayout { ino: number()? }),
            Verb::SetLayout => ioctl::parse_wish(input).map(|wish| Call::SetLayout { ino, wish }).ok_or_else(refused),
            Verb::Migrate => {
                ioctl::parse_wish_in_pool(input).map(|wish| Call::Migrate { ino, wish }).ok_or_else(refused)
            }
            Verb::SetLayoutInPool => {
                ioctl::parse_wish_in_pool(input).map(|wish| Call::SetLayout { ino, wish }).ok_or_else(refused)
            }
            Verb::TargetSpace => Ok(Call::TargetSpace),
            Verb::Pools if input.is_empty() => Ok(Call::Pools),
            Verb::Pools => {
                let pool = std::str::from_utf8(input).map_err(|_| refused())?.to_owned();
                Ok(Call::PoolMembers { pool })
            }
            Verb::Sync => Ok(Call::Syncfs),
        };
        call.map(|call| Asked { umask: 0, call, from: None })
    }
}

fn seek(fh: Fh, offset: u64, whence: u32) -> Result<Call, i32> {
    let whence = match whence as i32 {
        libc::SEEK_DATA => Whence::Data,
        libc::SEEK_HOLE => Whence::Hole,
        _ => return Err(libc::EINVAL),
    };
    i64::try_from(offset).map_err(|_| libc::ENXIO)?;
    Ok(Call::Lseek { fh, offset, whence })
}

fn ioctl_bytes(answer: &Answer, from: Option<u32>) -> Vec<u8> {
    match answer {
        Answer::Fid(fid) => fid.to_string().into_bytes(),
        Answer::Index(index) => index.to_string().into_bytes(),
        Answer::Paths(paths) => paths.iter().flat_map(|path| path.iter().copied().chain([0])).collect(),
        Answer::Layout(Some(layout)) => prost::Message::encode_to_vec(layout),
        Answer::DirDefault(default) => ioctl::default_bytes(default.as_deref()),
        Answer::DirLayout(Some(lmv)) => DirLayout::output(lmv, from.unwrap_or(0)),
        Answer::Targets(targets) => match from {
            None => targets.iter().map(space_line).collect::<String>().into_bytes(),
            Some(first) => space_lines(targets.get(first as usize..).unwrap_or_default()),
        },
        Answer::Pools(names) => names.iter().flat_map(|name| name.bytes().chain([b'\n'])).collect(),
        Answer::Members(osts) => {
            let runs = osts.chunk_by(|one, next| one + 1 == *next);
            runs.map(|run| format!("{}-{}\n", run[0], run[run.len() - 1])).collect::<String>().into_bytes()
        }
        _ => Vec::new(),
    }
}

/// As many lines as fit.
fn space_lines(targets: &[TargetStatfs]) -> Vec<u8> {
    let mut text = String::new();
    for line in targets.iter().map(space_line) {
        if text.len() + line.len() > ioctl::ANSWER_MAX {
            break;
        }
        text.push_str(&line);
    }
    text.into_bytes()
}

fn space_line((name, space): &TargetStatfs) -> String {
    match space {
        Ok(s) => format!("{name} {} {} {} {} {} {}\n", s.total, s.free, s.available, s.files, s.files_free, s.disk),
        Err(error) => format!("{name} error {}\n", error.raw()),
    }
}

impl Handler for Adapter {
    fn handle(&self, incoming: Incoming<'_>) {
        let request = incoming.request();
        match self.plan(request) {
            Plan::Call { umask, call, answer } => {
                let (caller, closes) = (caller(request), matches!(call, Call::Flush { .. }));
                let (cred, reply) = (self.cred(request, umask), incoming.into_reply());
                let done = Box::new(move |outcome| answer(reply, outcome));
                let waits = self.client.submit_for(caller, cred, call, done);
                if waits && closes {
                    self.interrupts.closes(caller.id);
                }
            }
            Plan::Sized { call, size, answer } => {
                self.submit(incoming, call, move |reply, outcome| answer(reply, size, outcome));
            }
            Plan::Special => self.special(incoming),
        }
    }

    fn companion(&self) -> Option<BorrowedFd<'_>> {
        Some(self.client.sockets())
    }

    fn attend(&self, attending: bool, called: &mut dyn FnMut() -> bool) -> Attend {
        match self.client.attend(attending, called) {
            Attention::Unneeded => Attend::No,
            Attention::Wait => Attend::Wait,
            Attention::Again => Attend::Again,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_space_of_many_targets_takes_several_answers() {
        let targets: Vec<TargetStatfs> =
            (0..400).map(|index| (format!("demo-MDT{index:04x}"), Err(Errno::EIO))).collect();
        let answer = Answer::Targets(targets.clone());
        let mut lines = String::new();
        loop {
            let from = lines.lines().count() as u32;
            let bytes = ioctl_bytes(&answer, Some(from));
            assert!(bytes.len() <= ioctl::ANSWER_MAX);
            if bytes.is_empty() {
                break;
            }
            lines.push_str(&String::from_utf8(bytes).unwrap());
        }
        assert_eq!(lines.as_bytes(), ioctl_bytes(&answer, None));
        assert!(ioctl_bytes(&answer, Some(u32::MAX)).is_empty());
    }
}
