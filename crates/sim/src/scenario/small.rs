//! Stories of peers that send a metadata target requests which our clients send differently or never: its replies, errors and
//! callbacks.

use core::time::Duration;

use proto::frame::flags;
use proto::msg::{
    Attr, BatchRep, BatchReq, CreateOp, Cred, Empty, GetattrReq, LookupReq, Lvb, ObjGetattrReq, ObjSyncReq, ObjectId,
    ObjectRep, ObjectStateRep, OpenOp, ReaddirRep, ReaddirReq, Reint, ReintReq, SeekRep, SeekReq, SeqAllocRep,
    SeqAllocReq, SetattrOp, UnlinkOp, WantLocks, WriteReq, valid,
};
use proto::{Bytes, Errno, Fid, Frame, Opcode, Tag};

use super::raw::{Outcome, Peer, RawContext};
use super::{Act, MDT, Story};
use crate::kernel::{Kernel, OpenHow};
use crate::model::{S_IFDIR, S_IFREG};
use crate::program::{name, root};
use crate::sched::{Command, Fail};
use crate::world::session::superuser;

/// All stories of this module.
pub(super) const STORIES: &[Story] = &[
    story(
        "batch-by-hand",
        "the reply to a batch with failed changes says so, also after the target has lost it",
        || vec![Act::Raw(|cx| Box::pin(batch(cx)))],
    ),
    story(
        "times-by-hand",
        "late times set none back, and a change to the present time uses that of the request",
        || vec![Act::Raw(|cx| Box::pin(times(cx)))],
    ),
    story("gone-by-hand", "a removed directory is empty, and a FID is used once", || {
        vec![Act::Raw(|cx| Box::pin(gone(cx)))]
    }),
    story("pages-by-hand", "a continued listing starts where it ended", || vec![Act::Raw(|cx| Box::pin(pages(cx)))]),
    story(
        "data-by-hand",
        "data of small files is not changed under another client's lock, nor under a lock that was never granted",
        || vec![Act::Raw(|cx| Box::pin(data(cx)))],
    ),
    story("sync-by-hand", "a sync is answered after everything that it covers is on disk", || {
        vec![Act::Raw(|cx| Box::pin(sync(cx)))]
    }),
    story("reopen-by-hand", "a replayed open that the caller was never allowed to make is refused", || {
        vec![Act::Raw(|cx| Box::pin(reopen(cx)))]
    }),
    story(
        "name-by-hand",
        "a program that opened a file by number keeps it when its last name is removed, whichever client removes it",
        || vec![Act::Raw(|cx| Box::pin(unknown_name(cx)))],
    ),
];

const fn story(name: &'static str, what: &'static str, acts: fn() -> Vec<Act>) -> Story {
    Story { name, what, acts, strikes: &[] }
}

/// After this everything is on disk.
const SETTLED: Duration = Duration::from_millis(50);
/// Longer than the duration of a request that waits for no other client.
const A_WHILE: Duration = Duration::from_millis(500);
/// The earliest time of a peer's clock.
const THEN: i64 = 1_000_000;

/// A peer with FIDs for new objects.
struct Maker {
    peer: Peer,
    next: Fid,
}

impl Maker {
    async fn new(cx: &RawContext) -> Result<Maker, String> {
        let peer = cx.peer(MDT);
        peer.connected(|_, _| {}).await?;
        let rep: SeqAllocRep = peer.done(Opcode::SeqAlloc, &SeqAllocReq {}).await?;
        Ok(Maker { peer, next: Fid::new(rep.seq, 1) })
    }

    fn fid(&mut self) -> Fid {
        let fid = self.next;
        self.next.oid += 1;
        fid
    }

    /// A change in the peer's only slot.
    fn changing(&self, body: &impl prost::Message, opcode: Opcode) -> Frame {
        let mut frame = self.peer.request(opcode, body);
        frame.header.tag = Tag(1);
        frame
    }

    async fn try_change(&self, op: Reint, now_ns: i64) -> Result<Frame, String> {
        self.peer.call(self.changing(&reint(op, now_ns), Opcode::MdsReint)).await
    }

    async fn change(&self, op: Reint, now_ns: i64) -> Result<ObjectRep, String> {
        let reply = self.try_change(op, now_ns).await?;
        self.peer.is(Opcode::MdsReint, &reply, Ok(()))?;
        reply.decode().map_err(|error| error.to_string())
    }

    async fn refused(&self, op: Reint, errno: Errno) -> Outcome {
        let reply = self.try_change(op, THEN).await?;
        self.peer.is(Opcode::MdsReint, &reply, Err(errno))
    }

    async fn make(&mut self, name: &str, mode: u32) -> Result<Fid, String> {
        let fid = self.fid();
        self.change(create(fid, Fid::ROOT, name, mode), THEN).await?;
        Ok(fid)
    }

    async fn attr(&self, fid: Fid) -> Result<Attr, String> {
        let rep: ObjectRep = self.peer.done(Opcode::MdsGetattr, &GetattrReq { fid, ..GetattrReq::default() }).await?;
        rep.attr.ok_or_else(|| "no attributes".to_owned())
    }

    /// Writes at the start of a small file.
    async fn write(&self, fid: Fid, lock: u64, lvb: Option<Lvb>, bytes: &'static [u8]) -> Result<Frame, String> {
        let object = ObjectId { fid, stripe: 0 };
        let mut frame = self.changing(&WriteReq { object, lock, lvb, ..WriteReq::default() }, Opcode::ObjWrite);
        frame.bulk = Bytes::from_static(bytes);
        self.peer.call(frame).await
    }

    /// After a crash of its target: it has reconnected, and has nothing to replay.
    async fn recovers(&self) -> Outcome {
        for done in [flags::REQ_REPLAY_DONE, flags::LOCK_REPLAY_DONE] {
            let mut frame = self.peer.request(Opcode::Ping, &Empty {});
            frame.header.flags = done;
            let reply = self.peer.call(frame).await?;
            self.peer.is(Opcode::Ping, &reply, Ok(()))?;
        }
        Ok(())
    }
}

fn reint(op: Reint, now_ns: i64) -> ReintReq {
    ReintReq { cred: Some(superuser()), now_ns, want: None, op: Some(op) }
}

fn create(fid: Fid, parent: Fid, at: &str, mode: u32) -> Reint {
    Reint::Create(CreateOp { parent, name: name(at), fid, mode, ..CreateOp::default() })
}

fn remove(parent: Fid, at: &str, rmdir: bool) -> Reint {
    Reint::Unlink(UnlinkOp { parent, name: name(at), rmdir, reported: None, entry_only: false })
}

fn set(fid: Fid, valid: u32, op: SetattrOp) -> Reint {
    Reint::Setattr(SetattrOp { fid, valid, ..op })
}

fn expect<T: PartialEq + core::fmt::Debug>(what: &str, got: T, wanted: T) -> Outcome {
    if got == wanted { Ok(()) } else { Err(format!("{what}: {got:?}, expected {wanted:?}")) }
}

/// The result of a call through a client.
fn fine<T>(result: Result<T, Fail>, what: &str) -> Result<T, String> {
    result.map_err(|fail| format!("{what}: {fail:?}"))
}

/// Bytes at the start of a file, as a program of a client sees them.
async fn seen(kernel: &Kernel, at: &str) -> Result<Bytes, String> {
    let how = OpenHow { flags: 0, mode: 0, blind: false };
    let fd = fine(kernel.open(&root(), &[name(at)], how).await, at)?;
    let data = fine(kernel.read(&root(), &fd, 0, 100).await, at)?;
    fine(kernel.close(&root(), &fd, 1).await, at)?;
    Ok(data)
}

// --- batches ---

async fn batch(cx: RawContext) -> Outcome {
    let mut maker = Maker::new(&cx).await?;
    let want = |first| {
        Some(WantLocks {
            object_cookie: first,
            entries_cookie: first + 1,
            data_cookie: first + 2,
            ..WantLocks::default()
        })
    };
    let (dir, file) = (maker.fid(), maker.fid());
    // Objects that are removed in the same batch are not locked.
    let (brief, brief_dir) = (maker.fid(), maker.fid());
    let all = [
        (create(dir, Fid::ROOT, "dir", S_IFDIR | 0o755), None),
        (remove(Fid::ROOT, "nothing", false), None),
        (create(file, dir, "file", S_IFREG | 0o644), None),
        (create(brief, dir, "brief", S_IFREG | 0o644), want(10)),
        (create(brief_dir, dir, "also brief", S_IFDIR | 0o755), want(20)),
        (remove(dir, "brief", false), None),
        (remove(dir, "also brief", true), None),
    ];
    let mut changes = Vec::new();
    for (op, want) in all {
        BatchReq::push(&mut changes, &ReintReq { want, ..reint(op, THEN) });
    }
    let mut request = maker.changing(&BatchReq { changes: changes.into(), returns_credits: false }, Opcode::MdsBatch);
    let reply = maker.peer.call(request.clone()).await?;
    maker.peer.is(Opcode::MdsBatch, &reply, Ok(()))?;
    let statuses = |rep: &BatchRep| rep.results.iter().map(|result| result.status).collect::<Vec<i32>>();
    let rep: BatchRep = reply.decode().map_err(|error| error.to_string())?;
    expect("the batch", statuses(&rep), vec![0, -Errno::ENOENT.raw(), 0, 0, 0, 0, 0])?;
    for result in &rep.results[3..] {
        let locks = [result.object_handle, result.entries_handle, result.data_handle];
        expect("locks on removed objects", locks, [0; 3])?;
    }
    cx.wait(SETTLED).await;
    maker.peer.hang_up();
    cx.crash(MDT).await;
    maker.peer.connected(|header, _| header.flags = flags::CONNECT_RECONNECT).await?;
    maker.recovers().await?;
    let (export, conn_cnt) = maker.peer.session(|session| (session.export, session.conn_cnt));
    (request.header.export, request.header.conn_cnt, request.header.flags) = (export, conn_cnt, flags::RESENT);
    let reply = maker.peer.call(request).await?;
    maker.peer.is(Opcode::MdsBatch, &reply, Ok(()))?;
    let rep: BatchRep = reply.decode().map_err(|error| error.to_string())?;
    expect("the resent batch", statuses(&rep), vec![0, -Errno::EIO.raw(), 0, 0, 0, 0, 0])
}

// --- times ---

async fn times(cx: RawContext) -> Outcome {
    let mut maker = Maker::new(&cx).await?;
    let file = maker.make("times", S_IFREG | 0o644).await?;
    let late = || SetattrOp { mtime_ns: 5, atime_ns: 5, ..SetattrOp::default() };
    maker.change(set(file, valid::HOUSEKEEPING | valid::MTIME | valid::ATIME, late()), THEN + 1).await?;
    let attr = maker.attr(file).await?;
    expect("late times", (attr.atime_ns, attr.mtime_ns), (THEN, THEN))?;
    let both = valid::ATIME | valid::ATIME_NOW | valid::MTIME | valid::MTIME_NOW;
    maker.change(set(file, both, late()), THEN + 2).await?;
    let attr = maker.attr(file).await?;
    expect("now", (attr.atime_ns, attr.mtime_ns, attr.ctime_ns), (THEN + 2, THEN + 2, THEN + 2))?;
    // A set time no longer counts once the data changes: an earlier write that arrives late must not bring back an older time.
    maker.change(set(file, valid::MTIME, late()), THEN + 10).await?;
    maker.change(set(file, valid::SIZE, SetattrOp { size: 10, ..late() }), THEN + 30).await?;
    let lvb = Lvb { mtime_ns: THEN + 20, ctime_ns: THEN + 20, ..Lvb::default() };
    let reply = maker.write(file, 0, Some(lvb), b"x").await?;
    maker.peer.is(Opcode::ObjWrite, &reply, Ok(()))?;
    expect("the time of the cut", maker.attr(file).await?.mtime_ns, THEN + 30)?;
    let op = OpenOp { fid: file, flags: 0o1002, ..OpenOp::default() };
    maker.change(Reint::Open(op), THEN + 50).await?;
    let attr = maker.attr(file).await?;
    expect("an open with truncation", (attr.size, attr.mtime_ns, attr.ctime_ns), (0, THEN + 50, THEN + 50))
}

// --- removed objects ---

async fn gone(cx: RawContext) -> Outcome {
    let mut maker = Maker::new(&cx).await?;
    let dir = maker.make("gone", S_IFDIR | 0o755).await?;
    let file = maker.make("here", S_IFREG | 0o644).await?;
    let op = OpenOp { fid: dir, flags: 0o200_000, ..OpenOp::default() };
    maker.change(Reint::Open(op), THEN).await?;
    maker.change(remove(Fid::ROOT, "gone", true), THEN).await?;
    let cred = Some(superuser());
    let above = LookupReq { parent: dir, name: name(".."), want: None, cred: cred.clone() };
    maker.peer.refused(Opcode::MdsLookup, &above, Errno::ENOENT).await?;
    let list = ReaddirReq { fid: dir, max_bytes: 4096, cred, ..ReaddirReq::default() };
    maker.peer.refused(Opcode::MdsReaddir, &list, Errno::ENOENT).await?;
    let new = maker.fid();
    maker.refused(create(new, dir, "new", S_IFREG | 0o644), Errno::ENOENT).await?;
    maker.change(remove(Fid::ROOT, "here", false), THEN).await?;
    maker.refused(create(file, Fid::ROOT, "again", S_IFREG | 0o644), Errno::EPROTO).await
}

// --- listings ---

async fn pages(cx: RawContext) -> Outcome {
    const COUNT: usize = 100;
    let mut maker = Maker::new(&cx).await?;
    let dir = maker.make("many", S_IFDIR | 0o755).await?;
    for number in 0..COUNT {
        let fid = maker.fid();
        maker.change(create(fid, dir, &format!("{number}"), S_IFREG | 0o644), THEN).await?;
    }
    let (mut after, mut all) = (0, Vec::new());
    loop {
        let request = ReaddirReq { fid: dir, after, max_bytes: 1024, cred: Some(superuser()), ..ReaddirReq::default() };
        let rep: ReaddirRep = maker.peer.done(Opcode::MdsReaddir, &request).await?;
        after = rep.entries.last().map_or(after, |entry| entry.cookie);
        let end = rep.end;
        all.extend(rep.entries.into_iter().map(|entry| entry.name));
        if end || all.len() > 2 * COUNT {
            break;
        }
    }
    expect("names in all pages", all.len(), COUNT)?;
    all.sort();
    all.dedup();
    expect("different names in all pages", all.len(), COUNT)
}

// --- data ---

async fn data(cx: RawContext) -> Outcome {
    let mut maker = Maker::new(&cx).await?;
    let (near, far) = (&cx.kernels[0], &cx.kernels[1]);
    let file = maker.make("small", S_IFREG | 0o644).await?;
    let how = OpenHow { flags: 2, mode: 0, blind: false };
    let fd = fine(near.open(&root(), &[name("small")], how).await, "small")?;
    fine(near.write(&root(), &fd, 0, &Bytes::from_static(b"the first bytes")).await, "small")?;
    // The target asks the writer for size and times of its buffered data.
    let written = fine(near.fstat(&root(), &fd).await, "small")?;
    let object = ObjectId { fid: file, stripe: 0 };
    let rep: ObjectStateRep = maker.peer.done(Opcode::ObjGetattr, &ObjGetattrReq { object }).await?;
    let lvb = rep.lvb.unwrap_or_default();
    expect("what the writer knows", (lvb.size, lvb.mtime_ns), (15, written.mtime_ns))?;
    // A lock that was never granted.
    let reply = maker.write(file, 999, None, b"stolen").await?;
    maker.peer.is(Opcode::ObjWrite, &reply, Err(Errno::ESTALE))?;
    expect("the file", seen(near, "small").await?, Bytes::from_static(b"the first bytes"))?;
    // A write without a lock takes the lock from others first.
    let reply = maker.write(file, 0, None, b"THE").await?;
    maker.peer.is(Opcode::ObjWrite, &reply, Ok(()))?;
    for kernel in [near, far] {
        expect("the file", seen(kernel, "small").await?, Bytes::from_static(b"THE first bytes"))?;
    }
    fine(near.write(&root(), &fd, 4, &Bytes::from_static(b"FIRST")).await, "small")?;
    maker.change(set(file, valid::SIZE, SetattrOp { size: 9, ..SetattrOp::default() }), near_future(&cx)).await?;
    for kernel in [near, far] {
        expect("the truncated file", seen(kernel, "small").await?, Bytes::from_static(b"THE FIRST"))?;
    }
    maker.change(set(file, valid::SIZE, SetattrOp { size: 12, ..SetattrOp::default() }), near_future(&cx)).await?;
    for kernel in [near, far] {
        expect("the extended file", seen(kernel, "small").await?, Bytes::from_static(b"THE FIRST\0\0\0"))?;
    }
    // Beyond its bytes is a hole.
    let rep: SeekRep =
        maker.peer.done(Opcode::ObjSeek, &SeekReq { object, offset: 2, hole: true, ..SeekReq::default() }).await?;
    expect("the hole of the extended file", rep.offset, 9)?;
    let op = OpenOp { fid: file, flags: 0o1002, ..OpenOp::default() };
    maker.change(Reint::Open(op), near_future(&cx)).await?;
    for kernel in [near, far] {
        expect("the emptied file", seen(kernel, "small").await?, Bytes::new())?;
    }
    // The data moves to objects.
    fine(near.write(&root(), &fd, 0, &Bytes::from(vec![b'x'; 300_000])).await, "small")?;
    fine(near.sync(&root(), &fd).await, "small")?;
    let reply = maker.write(file, 0, None, b"late").await?;
    maker.peer.is(Opcode::ObjWrite, &reply, Err(Errno::ESTALE))?;
    fine(near.close(&root(), &fd, 1).await, "small")?;
    expect("the moved file", seen(far, "small").await?, Bytes::from(vec![b'x'; 100]))
}

/// Times of data come from clocks.
fn near_future(cx: &RawContext) -> i64 {
    cx.sched.wall_ns() + 1_000
}

async fn sync(cx: RawContext) -> Outcome {
    let mut maker = Maker::new(&cx).await?;
    maker.make("synced", S_IFREG | 0o644).await?;
    cx.wait(SETTLED).await;
    maker.peer.done::<Empty>(Opcode::ObjSync, &ObjSyncReq::default()).await?;
    cx.command(Command::Barrier(MDT)).await;
    maker.change(remove(Fid::ROOT, "synced", false), THEN).await?;
    let xid = maker.peer.send(maker.peer.request(Opcode::ObjSync, &ObjSyncReq::default()));
    maker.peer.unanswered(xid, A_WHILE).await?;
    maker.peer.hang_up();
    cx.crash(MDT).await;
    maker.peer.connected(|header, _| header.flags = flags::CONNECT_RECONNECT).await?;
    maker.recovers().await
}

// --- opens ---

async fn reopen(cx: RawContext) -> Outcome {
    let mut maker = Maker::new(&cx).await?;
    let own = maker.make("own", S_IFREG | 0o600).await?;
    let near = &cx.kernels[0];
    let secret = fine(near.mknod(&root(), &[name("secret")], S_IFREG | 0o600, 0, false).await, "secret")?;
    let secret = Fid::from_ino(secret.ino).ok_or("no FID")?;
    fine(near.sync_all(&root()).await, "secret")?;
    let open = |fid, cred: Cred| {
        let op = OpenOp { fid, flags: 2, opened_fid: Some(fid), old_handle: 77, ..OpenOp::default() };
        ReintReq { cred: Some(cred), now_ns: THEN, want: None, op: Some(Reint::Open(op)) }
    };
    let op = OpenOp { fid: own, flags: 2, ..OpenOp::default() };
    let first = maker.try_change(Reint::Open(op), THEN).await?;
    maker.peer.is(Opcode::MdsReint, &first, Ok(()))?;
    let first_xid = first.header.xid;
    cx.wait(SETTLED).await;
    maker.peer.hang_up();
    cx.crash(MDT).await;
    maker.peer.connected(|header, _| header.flags = flags::CONNECT_RECONNECT).await?;
    let mut forged = maker.changing(&open(secret, Cred { uid: 1500, gid: 1500, ..Cred::default() }), Opcode::MdsReint);
    (forged.header.flags, forged.header.xid, forged.header.transno) = (flags::REPLAY, first_xid, first.header.transno);
    let reply = maker.peer.call(forged).await?;
    maker.peer.is(Opcode::MdsReint, &reply, Err(Errno::EACCES))?;
    maker.recovers().await
}

/// Client 1 has opened a file by number only, as with `/proc/self/fd`, when it removes a name without knowing that it is the
/// file's last one.
async fn unknown_name(cx: RawContext) -> Outcome {
    let (near, far) = (&cx.kernels[0], &cx.kernels[1]);
    let (dir, old, other) = ([name("dir")], [name("dir"), name("f")], [name("dir"), name("other")]);
    fine(near.mkdir(&root(), &dir, 0o755, false).await, "dir")?;
    let how = OpenHow { flags: 0o102, mode: 0o644, blind: false };
    let fd = fine(near.open(&root(), &old, how).await, "f")?;
    fine(near.write(&root(), &fd, 0, &Bytes::from_static(b"data")).await, "f")?;
    fine(near.close(&root(), &fd, 1).await, "f")?;
    fine(near.sync_all(&root()).await, "f")?;
    cx.wait(Duration::from_secs(1)).await;
    let reading = OpenHow { flags: 0, mode: 0, blind: false };
    let first = fine(far.open(&root(), &old, reading).await, "f")?;
    fine(near.rename(&root(), &old, &other, 0, false).await, "f")?;
    cx.wait(Duration::from_secs(10)).await;
    fine(far.fstat(&root(), &first).await, "f")?;
    let second = fine(far.reopen(&root(), &first, 0).await, "f, by its number")?;
    fine(far.close(&root(), &first, 1).await, "f")?;
    cx.wait(Duration::from_secs(1)).await;
    fine(far.remove(&root(), &other, false, true).await, "other")?;
    cx.wait(Duration::from_secs(10)).await;
    let data = fine(far.read(&root(), &second, 0, 100).await, "f without a name")?;
    expect("f without a name", data, Bytes::from_static(b"data"))?;
    let stat = fine(far.fstat(&root(), &second).await, "f without a name")?;
    expect("its names", stat.nlink, 0)?;
    fine(far.close(&root(), &second, 1).await, "f without a name")
}
