//! Stories about object targets and peers with other habits than our clients: without locks, with late times, beyond their
//! grants, destroying objects; and the state after a crash.

use core::time::Duration;

use client::api::Call;
use proto::msg::{
    BlCallback, CancelReq, DestroyRep, DestroyReq, Empty, EnqueueRep, EnqueueReq, Extent, Layout, LockMode, Lvb,
    ObjGetattrReq, ObjSetattrReq, ObjSyncReq, ObjectId, ObjectStateRep, Policy, PunchKind, PunchReq, ReadReq, Resource,
    StatfsRep, StatfsReq, StrayObjects, WriteReq,
};
use proto::{Bytes, Errno, Fid, Frame, Opcode, Xid};

use super::raw::{Outcome, Peer, RawContext};
use super::{Act, OST, Story, stories};
use crate::kernel::OpenHow;
use crate::model::{Op, WriteWay};
use crate::program::draw::pattern;
use crate::program::root;
use crate::sched::{Command, Fail};
use crate::world::net::Node;

/// All stories of this module.
pub(super) const STORIES: &[Story] = &[
    story("late-times", "late times change nothing, newer ones do", || vec![Act::Raw(|cx| Box::pin(late_times(cx)))]),
    story(
        "without-locks",
        "a peer without a lock waits for the holders, and a peer that has lost its lock is refused",
        || vec![Act::Raw(|cx| Box::pin(without_locks(cx)))],
    ),
    story(
        "destroyed",
        "a destroyed object is gone for good, a kept one stays, and a destroy lost in a crash has no effect",
        || vec![Act::Raw(|cx| Box::pin(destroyed(cx)))],
    ),
    story(
        "bytes-beyond-the-end",
        "bytes that a crash, a leaving client or a disk error leaves beyond the end of an object never show",
        || vec![Act::Raw(|cx| Box::pin(bytes_beyond_the_end(cx)))],
    ),
    story(
        "moves-and-makes-way",
        "a client that moves a file to its objects, and waits for a lock on one of them, releases the lock on another",
        moves_and_makes_way,
    ),
    story(
        "first-writes",
        "no data file remains of first writes whose clients left before the writes were done",
        || vec![Act::Raw(|cx| Box::pin(first_writes(cx)))],
    ),
    story(
        "files-left",
        "a data file that the disk could not remove with its object does not outlive a restart",
        || vec![Act::Raw(|cx| Box::pin(files_left(cx)))],
    ),
    story(
        "promised-space",
        "space that an object target has promised to a client stays available, whatever others write",
        || vec![Act::Raw(|cx| Box::pin(promised_space(cx)))],
    ),
    story("grants", "a grant is used up, renewed, and not doubled by claiming it again", || {
        vec![Act::Raw(|cx| Box::pin(grants(cx)))]
    }),
    story("full-disks", "data written before a disk was full can be made durable", || {
        vec![Act::Raw(|cx| Box::pin(full_disks(cx, false)))]
    }),
    story("full-disks-restarted", "the same, and the targets restart meanwhile", || {
        vec![Act::Raw(|cx| Box::pin(full_disks(cx, true)))]
    }),
];

const fn story(name: &'static str, what: &'static str, acts: fn() -> Vec<Act>) -> Story {
    Story { name, what, acts, strikes: &[] }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Long enough for a disk.
const SOON: Duration = Duration::from_secs(1);
/// A sequence that no client of the story is granted.
const SEQUENCE: u64 = Fid::SEQ_FIRST + 0x3f_fff0;

fn object(number: u32) -> ObjectId {
    ObjectId { fid: Fid::new(SEQUENCE, number), stripe: 0 }
}

fn times(ctime_ns: i64, mtime_ns: i64) -> Option<Lvb> {
    Some(Lvb { ctime_ns, mtime_ns, ..Lvb::default() })
}

/// A client.
async fn client(cx: &RawContext) -> Result<Peer, String> {
    let peer = cx.peer(OST);
    peer.connected(|_, _| ()).await?;
    Ok(peer)
}

/// A peer that claims to be the metadata target.
async fn metadata_target(cx: &RawContext) -> Result<Peer, String> {
    let peer = cx.peer(OST);
    peer.connected(|_, request| request.lightweight = true).await?;
    Ok(peer)
}

/// A write of some bytes without a lock and beyond any grant.
fn plain(number: u32, offset: u64) -> WriteReq {
    WriteReq { object: object(number), offset, lvb: times(10, 10), ..WriteReq::default() }
}

fn write(peer: &Peer, request: &WriteReq, bytes: &Bytes) -> Frame {
    Frame { bulk: bytes.clone(), ..peer.request(Opcode::ObjWrite, request) }
}

/// Writes, and returns the state of the object afterwards.
async fn wrote(peer: &Peer, request: &WriteReq, bytes: &Bytes) -> Result<ObjectStateRep, String> {
    let reply = peer.call(write(peer, request, bytes)).await?;
    peer.is(Opcode::ObjWrite, &reply, Ok(()))?;
    reply.decode().map_err(|error| error.to_string())
}

async fn sync(peer: &Peer) -> Outcome {
    peer.done::<Empty>(Opcode::ObjSync, &ObjSyncReq::default()).await.map(drop)
}

/// Checks the bytes of a range.
async fn reads(peer: &Peer, number: u32, offset: u64, wanted: &[u8]) -> Outcome {
    let request = ReadReq { object: object(number), offset, length: wanted.len() as u32, ..ReadReq::default() };
    let reply = peer.call(peer.request(Opcode::ObjRead, &request)).await?;
    peer.is(Opcode::ObjRead, &reply, Ok(()))?;
    match reply.bulk.iter().zip(wanted).position(|(got, wanted)| got != wanted) {
        None if reply.bulk.len() == wanted.len() => Ok(()),
        None => Err(peer.wrong(format!("reads {} bytes of object {number}, not {}", reply.bulk.len(), wanted.len()))),
        Some(at) => Err(peer.wrong(format!("reads a wrong byte {} of object {number}", offset + at as u64))),
    }
}

async fn state(peer: &Peer, number: u32) -> Result<Lvb, String> {
    let rep: ObjectStateRep = peer.done(Opcode::ObjGetattr, &ObjGetattrReq { object: object(number) }).await?;
    Ok(rep.lvb.unwrap_or_default())
}

/// Requests a lock on a whole object.
fn asks_for_lock(peer: &Peer, object: &ObjectId, mode: LockMode) -> Xid {
    let request = EnqueueReq {
        resource: Resource::object(object.fid, object.stripe),
        mode: mode as i32,
        cookie: peer.session(|session| session.xid),
        policy: Some(Policy::Extent(Extent::ALL)),
        ..EnqueueReq::default()
    };
    peer.send(peer.request(Opcode::LdlmEnqueue, &request))
}

/// The handle of the lock in a reply.
fn granted(peer: &Peer, reply: &Frame) -> Result<u64, String> {
    peer.is(Opcode::LdlmEnqueue, reply, Ok(()))?;
    let rep: EnqueueRep = reply.decode().map_err(|error| error.to_string())?;
    rep.grant.map(|grant| grant.handle).ok_or_else(|| peer.wrong("is granted nothing".to_owned()))
}

/// Waits for a lock on the whole object. Returns its handle.
async fn locked(peer: &Peer, number: u32, mode: LockMode) -> Result<u64, String> {
    let xid = asks_for_lock(peer, &object(number), mode);
    granted(peer, &peer.answer(xid).await?)
}

async fn gives_back(peer: &Peer, lock: u64) -> Outcome {
    let request = CancelReq { handles: vec![lock], waiting_cookies: Vec::new() };
    peer.done::<Empty>(Opcode::LdlmCancel, &request).await.map(drop)
}

/// Checks that a request is answered only after the holder has released its lock; returns the reply.
async fn waits_for(holder: &Peer, lock: u64, other: &Peer, xid: Xid) -> Result<Frame, String> {
    let called: BlCallback = holder.noticed(Opcode::LdlmBlCallback, SOON).await?;
    if called.handle != lock {
        return Err(holder.wrong(format!("gets a callback for lock {:x}, and has {lock:x}", called.handle)));
    }
    other.unanswered(xid, SOON).await?;
    gives_back(holder, lock).await?;
    other.answer(xid).await
}

fn destroy(numbers: &[u32]) -> DestroyReq {
    DestroyReq { objects: numbers.iter().map(|number| object(*number)).collect(), strays: None }
}

async fn destroys(peer: &Peer, numbers: &[u32]) -> Outcome {
    peer.done::<DestroyRep>(Opcode::ObjDestroy, &destroy(numbers)).await.map(drop)
}

fn punch(number: u32, kind: PunchKind, start: u64, length: u64) -> PunchReq {
    PunchReq { object: object(number), kind: kind as i32, start, length, lvb: times(20, 20), ..PunchReq::default() }
}

async fn late_times(cx: RawContext) -> Outcome {
    let peer = client(&cx).await?;
    let some = pattern(1, 1_000);
    let set =
        |ctime, mtime| ObjSetattrReq { object: object(1), lvb: times(ctime, mtime), uid: u32::MAX, gid: u32::MAX };
    let expect = async |ctime_ns, mtime_ns| {
        let now = state(&peer, 1).await?;
        match (now.ctime_ns, now.mtime_ns) == (ctime_ns, mtime_ns) {
            true => Ok(()),
            false => Err(peer.wrong(format!("expects times {ctime_ns} and {mtime_ns}, and sees {now:?}"))),
        }
    };
    wrote(&peer, &WriteReq { lvb: times(20, 20), ..plain(1, 0) }, &some).await?;
    wrote(&peer, &WriteReq { lvb: times(10, 99), ..plain(1, 0) }, &some).await?;
    expect(20, 20).await?;
    peer.done::<ObjectStateRep>(Opcode::ObjSetattr, &set(30, 5)).await?;
    expect(30, 5).await?;
    peer.done::<ObjectStateRep>(Opcode::ObjSetattr, &set(25, 7)).await?;
    expect(30, 5).await?;
    // An object truncated to zero takes no space.
    wrote(&peer, &plain(1, 0), &pattern(2, 100_000)).await?;
    peer.done::<ObjectStateRep>(Opcode::ObjPunch, &punch(1, PunchKind::Truncate, 0, 0)).await?;
    let empty = state(&peer, 1).await?;
    if (empty.size, empty.blocks) != (0, 0) {
        return Err(peer.wrong(format!("has truncated an object to zero, and its state is {empty:?}")));
    }
    destroys(&metadata_target(&cx).await?, &[1]).await
}

async fn without_locks(cx: RawContext) -> Outcome {
    let (holder, other) = (client(&cx).await?, client(&cx).await?);
    let (first, second) = (pattern(1, 5_000), pattern(2, 5_000));
    let lock = locked(&holder, 1, LockMode::Pw).await?;
    wrote(&holder, &WriteReq { lock, ..plain(1, 0) }, &first).await?;
    let xid = other.send(write(&other, &plain(1, 5_000), &second));
    other.is(Opcode::ObjWrite, &waits_for(&holder, lock, &other, xid).await?, Ok(()))?;
    // The lock was released: nothing may be written under it any more.
    let late = holder.call(write(&holder, &WriteReq { lock, ..plain(1, 0) }, &second)).await?;
    holder.is(Opcode::ObjWrite, &late, Err(Errno::ESTALE))?;
    reads(&other, 1, 0, &[&first[..], &second[..]].concat()).await?;

    let lock = locked(&holder, 1, LockMode::Pw).await?;
    let request = ReadReq { object: object(1), length: 100, ..ReadReq::default() };
    let xid = other.send(other.request(Opcode::ObjRead, &request));
    other.is(Opcode::ObjRead, &waits_for(&holder, lock, &other, xid).await?, Ok(()))?;

    let lock = locked(&holder, 1, LockMode::Pw).await?;
    let server = metadata_target(&cx).await?;
    let xid = server.send(server.request(Opcode::ObjDestroy, &destroy(&[1])));
    server.is(Opcode::ObjDestroy, &waits_for(&holder, lock, &server, xid).await?, Ok(()))
}

async fn destroyed(cx: RawContext) -> Outcome {
    let (peer, server) = (client(&cx).await?, metadata_target(&cx).await?);
    let some = pattern(1, 5_000);
    for number in 1..=4 {
        wrote(&peer, &plain(number, 0), &some).await?;
    }
    destroys(&server, &[1]).await?;
    let late = peer.call(write(&peer, &plain(1, 0), &some)).await?;
    peer.is(Opcode::ObjWrite, &late, Err(Errno::ESTALE))?;
    let strays = StrayObjects { seq: SEQUENCE, first: 2, last: 3, keep: vec![3] };
    server.done::<DestroyRep>(Opcode::ObjDestroy, &DestroyReq { objects: Vec::new(), strays: Some(strays) }).await?;
    if state(&peer, 2).await? != Lvb::default() {
        return Err(server.wrong("has left a stray".to_owned()));
    }
    reads(&peer, 3, 0, &some).await?;
    sync(&peer).await?;

    cx.withhold(OST).await;
    let xid = server.send(server.request(Opcode::ObjDestroy, &destroy(&[4])));
    server.unanswered(xid, SOON).await?;
    cx.crash(OST).await;
    peer.back().await?;
    reads(&peer, 4, 0, &some).await?;
    destroys(&metadata_target(&cx).await?, &[3, 4]).await
}

/// A peer holds a lock on the second object of a small file that grows. Another peer wants the first object.
fn moves_and_makes_way() -> Vec<Act> {
    vec![
        stories::mkdir(0, "d"),
        Act::Raw(|cx| Box::pin(two_stripes(cx))),
        stories::open(0, "d/f", stories::CREATE, 1),
        stories::write(0, 1, 0, 1_000),
        stories::fsync(0, 1),
        Act::Raw(|cx| Box::pin(has_the_second(cx))),
        Act::Begin(0, Op::Write { fd: 1, way: WriteWay::Plain, offset: 200_000, data: pattern(7, 1_000) }),
        Act::Wait(100_000),
        Act::Raw(|cx| Box::pin(wants_the_first(cx))),
        Act::Join,
        stories::fsync(0, 1),
        stories::stat(1, "d/f"),
        Act::Logged(Node::Server(OST), "evicts", 0),
        Act::Logged(Node::Server(OST + 1), "evicts", 0),
    ]
}

async fn two_stripes(cx: RawContext) -> Outcome {
    let full: Vec<Bytes> = cx.base.iter().cloned().chain(stories::path("d")).collect();
    let wish = || Layout { stripe_size: 64 << 10, want_count: 2, want_first: 0, ..Layout::default() };
    let set = cx.kernels[0].about(&root(), &full, |ino| Call::SetLayout { ino, wish: wish() }).await;
    set.map(drop).map_err(|fail| format!("cannot set the layout: {fail:?}"))
}

async fn has_the_second(cx: RawContext) -> Outcome {
    let holder = cx.peer(OST + 1);
    holder.connected(|_, _| ()).await?;
    let second = ObjectId { fid: cx.fid(0, "d/f").await?, stripe: 1 };
    let xid = asks_for_lock(&holder, &second, LockMode::Pr);
    granted(&holder, &holder.answer(xid).await?).map(drop)
}

async fn wants_the_first(cx: RawContext) -> Outcome {
    let (holder, other) = (cx.known(0), client(&cx).await?);
    let called: BlCallback = holder.noticed(Opcode::LdlmBlCallback, SOON).await?;
    let first = ObjectId { fid: cx.fid(1, "d/f").await?, stripe: 0 };
    let xid = asks_for_lock(&other, &first, LockMode::Pr);
    // Less than the timeout of the other lock.
    let lock = granted(&other, &other.answer_within(xid, Duration::from_secs(12)).await?)?;
    gives_back(&other, lock).await?;
    gives_back(&holder, called.handle).await
}

/// The offset of a page written beyond a gap.
const FAR: u64 = 64 * KIB;

async fn bytes_beyond_the_end(cx: RawContext) -> Outcome {
    let (peer, other) = (client(&cx).await?, client(&cx).await?);
    let (some, page) = (pattern(1, 4_096), pattern(2, 4_096));
    let gap = vec![0; (FAR - 4 * KIB) as usize];
    for number in 1..=3 {
        wrote(&peer, &plain(number, 0), &some).await?;
    }
    sync(&peer).await?;
    // A crash undoes the records of these writes, and leaves their bytes.
    cx.withhold(OST).await;
    for number in [1, 2] {
        wrote(&peer, &plain(number, 8 * KIB), &page).await?;
    }
    cx.crash(OST).await;
    peer.back().await?;
    other.back().await?;
    wrote(&peer, &plain(1, FAR), &page).await?;
    reads(&peer, 1, 4 * KIB, &gap).await?;
    // The same, and the first write after it fails.
    cx.command(Command::FailWrite(OST)).await;
    let failed = peer.call(write(&peer, &plain(2, FAR), &page)).await?;
    peer.is(Opcode::ObjWrite, &failed, Err(Errno::EIO))?;
    wrote(&peer, &plain(2, FAR), &page).await?;
    reads(&peer, 2, 4 * KIB, &gap).await?;
    // A client leaves while its bytes are being written to the data file.
    for round in 0..ROUNDS {
        let number = 10 + round;
        wrote(&peer, &plain(number, 0), &some).await?;
        goes_while_writing(&cx, &plain(number, 8 * KIB), &page, round).await?;
        if state(&peer, number).await?.size > 8 * KIB {
            // The write was faster.
            continue;
        }
        wrote(&peer, &plain(number, FAR), &page).await?;
        reads(&peer, number, 4 * KIB, &gap).await?;
    }
    other.leave().await?;
    let all: Vec<u32> = (1..=3).chain(10..10 + ROUNDS).collect();
    destroys(&metadata_target(&cx).await?, &all).await
}

/// How often a client leaves while it writes, each time a little later.
const ROUNDS: u32 = 12;

/// A client writes, and disconnects before the reply.
async fn goes_while_writing(cx: &RawContext, request: &WriteReq, bytes: &Bytes, round: u32) -> Outcome {
    let gone = client(cx).await?;
    gone.send(write(&gone, request, bytes));
    cx.wait(Duration::from_micros(u64::from(round) * 8)).await;
    gone.leave().await
}

async fn first_writes(cx: RawContext) -> Outcome {
    let some = pattern(1, 4_096);
    for round in 0..ROUNDS {
        goes_while_writing(&cx, &plain(10 + round, 0), &some, round).await?;
    }
    let all: Vec<u32> = (10..10 + ROUNDS).collect();
    destroys(&metadata_target(&cx).await?, &all).await
}

async fn files_left(cx: RawContext) -> Outcome {
    let (peer, server) = (client(&cx).await?, metadata_target(&cx).await?);
    let some = pattern(1, 4_096);
    wrote(&peer, &plain(1, 0), &some).await?;
    // The first write of an object is in progress when its client leaves. The disk cannot remove the data file, and then the
    // target restarts.
    cx.command(Command::KeepFiles(OST)).await;
    for round in 0..ROUNDS {
        goes_while_writing(&cx, &plain(10 + round, 0), &some, round).await?;
    }
    wrote(&peer, &plain(2, 0), &some).await?;
    sync(&peer).await?;
    cx.crash(OST).await;
    peer.back().await?;
    // An object is destroyed durably, and its data file is not removed yet.
    server.connected(|_, request| request.lightweight = true).await?;
    cx.command(Command::KeepFiles(OST)).await;
    destroys(&server, &[1]).await?;
    cx.wait(Duration::from_millis(1)).await;
    cx.crash(OST).await;
    peer.back().await?;
    let all: Vec<u32> = [2].into_iter().chain(10..10 + ROUNDS).collect();
    destroys(&metadata_target(&cx).await?, &all).await?;
    peer.leave().await
}

/// The target's own figures.
async fn figures(peer: &Peer) -> Result<StatfsRep, String> {
    peer.done(Opcode::ObjStatfs, &StatfsReq::default()).await
}

/// The number of concurrent requests.
const MANY: u64 = 200;

async fn promised_space(cx: RawContext) -> Outcome {
    let (holder, other) = (client(&cx).await?, client(&cx).await?);
    cx.set_capacity(OST, Some(96 * MIB)).await;
    // Repeated requests get the unpromised space, and no more.
    let mut held = 0;
    for _ in 0..40 {
        let rep: StatfsRep = holder.done(Opcode::ObjStatfs, &StatfsReq { want_grant: 64 * MIB }).await?;
        held = rep.grant;
        if rep.available + rep.grant > rep.free {
            return Err(
                holder.wrong(format!("holds {held}, and of {} free bytes {} are unpromised", rep.free, rep.available))
            );
        }
    }
    let all: StatfsRep = other.done(Opcode::ObjStatfs, &StatfsReq { want_grant: 64 * MIB }).await?;
    let mut others = all.grant;
    for _ in 0..40 {
        others = other.done::<StatfsRep>(Opcode::ObjStatfs, &StatfsReq { want_grant: 64 * MIB }).await?.grant;
    }
    if held + others > all.free {
        return Err(other.wrong(format!("is promised {others}, another peer {held}, and {} bytes are free", all.free)));
    }
    // Writes beyond its grant, with many concurrent requests, until no unpromised space is left; before the target asks the disk
    // again.
    let piece = 256 * KIB;
    let bytes = pattern(1, piece as usize);
    // More in all than the unused grants of the story's clients.
    let small = 128 * KIB;
    let few = bytes.slice(..small as usize);
    let mut written = 0;
    loop {
        let ask = |at| other.send(write(&other, &plain(1, written + at * small), &few));
        let many: Vec<Xid> = (0..MANY).map(ask).collect();
        let mut refused = 0;
        for xid in many {
            let reply = other.answer(xid).await?;
            if reply.header.status != 0 {
                other.is(Opcode::ObjWrite, &reply, Err(Errno::ENOSPC))?;
                refused += 1;
            }
        }
        if refused == MANY {
            break;
        }
        written += MANY * small;
    }
    // No space can be allocated either.
    let much = punch(2, PunchKind::Allocate, 0, 4 * MIB);
    other.refused(Opcode::ObjPunch, &much, Errno::ENOSPC).await?;
    // Both peers can use their grants.
    for (number, peer, mut held) in [(3, &holder, held), (2, &other, others)] {
        let mut at = 0;
        while held >= piece {
            let paid = WriteReq { grant_used: piece, ..plain(number, at) };
            held = wrote(peer, &paid, &bytes).await?.grant;
            at += piece;
            if at > 96 * MIB {
                return Err(peer.wrong("uses a larger grant than there is space".to_owned()));
            }
        }
    }
    cx.set_capacity(OST, None).await;
    destroys(&metadata_target(&cx).await?, &[1, 2, 3]).await
}

async fn grants(cx: RawContext) -> Outcome {
    let peer = cx.peer(OST);
    let first = peer.connected(|_, _| ()).await?.grant;
    let megabyte = pattern(1, MIB as usize);
    let raised = wrote(&peer, &WriteReq { want_grant: 32 * MIB, ..plain(1, 0) }, &megabyte).await?.grant;
    if raised != 32 * MIB {
        return Err(peer.wrong(format!("was granted {first}, would like to hold 32 MiB of plenty, and holds {raised}")));
    }
    // Its connection is lost, and it claims its grant on reconnecting.
    peer.hang_up();
    let again = peer
        .connected(|header, request| {
            header.flags = proto::frame::flags::CONNECT_RECONNECT;
            request.grant = raised;
        })
        .await?;
    if again.grant != raised {
        return Err(peer.wrong(format!("had a grant of {raised}, claims it again, and has {} now", again.grant)));
    }
    // No unpromised space is left: what it uses of its grant is not renewed.
    let room = figures(&peer).await?;
    cx.set_capacity(OST, Some(room.total - room.free + raised)).await;
    let paid = wrote(&peer, &WriteReq { grant_used: MIB, ..plain(1, MIB) }, &megabyte).await?.grant;
    if paid + MIB != raised {
        return Err(peer.wrong(format!("had a grant of {raised}, has used 1 MiB of it, and holds {paid}")));
    }
    cx.set_capacity(OST, None).await;
    destroys(&metadata_target(&cx).await?, &[1]).await
}

/// Clients write until the disks are full. Every acknowledged byte had promised space.
async fn full_disks(cx: RawContext, restarts: bool) -> Outcome {
    let targets = [OST, OST + 1];
    for target in targets {
        // More than both clients have been promised so far.
        cx.set_capacity(target, Some(24 * MIB)).await;
    }
    let piece = 256 * KIB;
    let context = |what: &str| {
        let what = what.to_owned();
        move |fail: Fail| format!("{what}: {fail:?}")
    };
    let mut files = Vec::new();
    for client in 0..2 {
        // Not in the story's directory, whose times the model knows.
        let path = super::stories::path(&format!("full{client}"));
        let how = OpenHow { flags: 0o302, mode: 0o644, blind: false };
        let fd = cx.kernels[client].open(&root(), &path, how).await.map_err(context("open"))?;
        files.push((client, path, fd, 0_u64, false));
    }
    while !files.iter().all(|(.., full)| *full) {
        for (client, _, fd, written, full) in files.iter_mut().filter(|(.., full)| !full) {
            let data = pattern(*client as u64 * 1_000 + *written / piece, piece as usize);
            match cx.kernels[*client].write(&root(), fd, *written, &data).await {
                Ok(count) => *written += u64::from(count),
                Err(Fail::Errno(Errno::ENOSPC)) => *full = true,
                Err(fail) => return Err(format!("a write: {fail:?}")),
            }
            if *written > 64 * MIB {
                return Err(format!("{written} bytes were acknowledged, and there is no space for them"));
            }
            if restarts && *written == 3 * MIB {
                cx.crash(targets[*client]).await;
            }
        }
    }
    for (client, _, fd, written, _) in &files {
        let synced = cx.kernels[*client].sync(&root(), fd).await;
        synced.map_err(context(&format!("{written} bytes of client {client} were acknowledged, and a sync fails")))?;
    }
    for (client, path, fd, written, _) in &files {
        let other = &cx.kernels[1 - client];
        let how = OpenHow { flags: 0, mode: 0, blind: false };
        let seen = other.open(&root(), path, how).await.map_err(context("open"))?;
        for at in (0..*written).step_by(piece as usize) {
            let length = piece.min(written - at);
            let found = other.read(&root(), &seen, at, length as u32).await.map_err(context("read"))?;
            if found[..] != pattern(*client as u64 * 1_000 + at / piece, piece as usize)[..length as usize] {
                return Err(format!("client {client} wrote {written} bytes, and they differ at {at}"));
            }
        }
        other.close(&root(), &seen, 0).await.map_err(context("close"))?;
        cx.kernels[*client].close(&root(), fd, 0).await.map_err(context("close"))?;
        other.remove(&root(), path, false, false).await.map_err(context("unlink"))?;
    }
    for target in targets {
        cx.set_capacity(target, None).await;
    }
    Ok(())
}
