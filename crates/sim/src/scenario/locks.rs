//! Stories about locks: which request is granted and when, which holder gets a callback, how current sizes from glimpses are, and
//! which locks are replayed after a crash. Hand-operated peers hold their locks as long as a story wants, which no client does.

use core::time::Duration;

use proto::frame::flags;
use proto::msg::{
    BlCallback, CancelReq, DestroyReq, Empty, EnqueueRep, EnqueueReq, Extent, Flock, GlCallback, GlReply, LockGrant,
    LockMode, Lvb, ObjectId, Policy, Reint, ReintReq, ReplayLocksRep, ReplayLocksReq, Resource, UnlinkOp, WriteReq,
    bits,
};
use proto::{Bytes, Errno, Fid, Frame, Header, Opcode, Tag, Xid};

use stdx::faults::{ONCE, sites};

use super::Act::{Begin, Do, Wait};
use super::raw::{Outcome, Peer, RawContext};
use super::stories::{mknod, path, stat};
use super::{Act, MDT, OST, Story};
use crate::kernel::S_IFREG;
use crate::model::Op;
use crate::program::{name, root};
use crate::world::net::Node;
use crate::world::session::superuser;

/// All stories of this module.
pub(super) const STORIES: &[Story] = &[
    story("in-line", "a stream of readers does not starve a writer", || vec![Act::Raw(|cx| Box::pin(in_line(cx)))]),
    story("side-by-side", "writers at different places of an object hold their locks concurrently", || {
        vec![Act::Raw(|cx| Box::pin(side_by_side(cx)))]
    }),
    story("asked-back", "a waiting request is granted as soon as no lock conflicts, whatever the conflict was", || {
        vec![Act::Raw(|cx| Box::pin(asked_back(cx)))]
    }),
    story(
        "removed",
        "a request that waits for a lock on a file continues when another client removes the file",
        || vec![Act::Raw(|cx| Box::pin(removed(cx)))],
    ),
    story("sent-again", "a resent or cancelled lock request is answered although its first copy waits", || {
        vec![mknod(0, "f"), Act::Raw(|cx| Box::pin(sent_again(cx)))]
    }),
    story("sizes-asked", "a size in a reply is as new as the request", || {
        vec![Act::Raw(|cx| Box::pin(sizes_asked(cx)))]
    }),
    story("slow-writer", "a client that writes back after a callback may take its time", || {
        vec![
            Act::Set(Node::Server(OST), "ldlm_timeout", "5"),
            Act::Raw(|cx| Box::pin(slow_writer(cx))),
            Act::Expect(Node::Server(OST), "*.*.eviction_count", "0".to_owned()),
        ]
    }),
    story(
        "claimed-anew",
        "of two clients that replay one lock after a crash one gets it, in the mode that it states last",
        || vec![Act::Raw(|cx| Box::pin(claimed_anew(cx)))],
    ),
    story("grant-lost", "a lock whose grant was lost with the reply blocks no other client", grant_lost),
    story(
        "cleared-in-recovery",
        "locks that a client cancels while it replays them are gone afterwards, at the client and at the target",
        cleared_in_recovery,
    ),
    story(
        "record-locks",
        "a deadlock is detected whichever request closes the cycle; an unlocked range or a refused request stays so",
        || vec![mknod(0, "f"), mknod(0, "g"), Act::Raw(|cx| Box::pin(record_locks(cx)))],
    ),
];

const fn story(name: &'static str, what: &'static str, acts: fn() -> Vec<Act>) -> Story {
    Story { name, what, acts, strikes: &[] }
}

const PAGE: u64 = 4096;
/// No request waits for a timer.
const SOON: Duration = Duration::from_secs(1);
/// Long enough to see that something does not arrive.
const A_WHILE: Duration = Duration::from_millis(100);
/// A sequence that no client of the story is granted.
const SEQUENCE: u64 = Fid::SEQ_FIRST + 0x3f_ffe0;

fn object(number: u32) -> ObjectId {
    ObjectId { fid: Fid::new(SEQUENCE, number), stripe: 0 }
}

async fn clients<const N: usize>(cx: &RawContext, server: usize) -> Result<[Peer; N], String> {
    let peers = core::array::from_fn(|_| cx.peer(server));
    for peer in &peers {
        peer.connected(|_, _| ()).await?;
    }
    Ok(peers)
}

fn request(resource: Resource, mode: LockMode, policy: Policy, cookie: u64) -> EnqueueReq {
    EnqueueReq { resource, mode: mode as i32, cookie, policy: Some(policy), ..EnqueueReq::default() }
}

/// A lock on this many pages of an object.
fn pages(number: u32, mode: LockMode, first: u64, count: u64, cookie: u64) -> EnqueueReq {
    let extent = Extent { start: first * PAGE, end: (first + count) * PAGE - 1 };
    request(Resource::object(object(number).fid, 0), mode, Policy::Extent(extent), cookie)
}

/// A lock on a whole object.
fn whole(number: u32, mode: LockMode, cookie: u64) -> EnqueueReq {
    request(Resource::object(object(number).fid, 0), mode, Policy::Extent(Extent::ALL), cookie)
}

fn extent(grant: &LockGrant) -> Extent {
    match grant.policy {
        Some(Policy::Extent(extent)) => extent,
        _ => Extent { start: 0, end: 0 },
    }
}

/// Requests a lock without waiting for it.
fn asks(peer: &Peer, wanted: &EnqueueReq) -> Xid {
    peer.send(peer.request(Opcode::LdlmEnqueue, wanted))
}

/// Checks that a request is answered soon.
async fn answered(peer: &Peer, xid: Xid) -> Result<EnqueueRep, String> {
    let reply = peer.answer_within(xid, SOON).await?;
    peer.is(Opcode::LdlmEnqueue, &reply, Ok(()))?;
    reply.decode().map_err(|error| error.to_string())
}

/// The same, and the reply has a lock.
async fn gets(peer: &Peer, xid: Xid) -> Result<LockGrant, String> {
    answered(peer, xid).await?.grant.ok_or_else(|| peer.wrong("has a reply without a lock".to_owned()))
}

/// A lock that is granted at once.
async fn locks(peer: &Peer, wanted: &EnqueueReq) -> Result<LockGrant, String> {
    gets(peer, asks(peer, wanted)).await
}

/// Checks that a callback for a lock arrives soon.
async fn is_asked_for(peer: &Peer, grant: &LockGrant) -> Outcome {
    let callback: BlCallback = peer.noticed(Opcode::LdlmBlCallback, SOON).await?;
    if callback.handle == grant.handle {
        return Ok(());
    }
    Err(peer.wrong(format!("gets a callback for {callback:?}, expected {grant:?}")))
}

async fn gives_back(peer: &Peer, grants: &[&LockGrant]) -> Outcome {
    let handles = grants.iter().map(|grant| grant.handle).collect();
    peer.done::<Empty>(Opcode::LdlmCancel, &CancelReq { handles, waiting_cookies: Vec::new() }).await.map(drop)
}

/// A later reader waits behind the writer, even while another reader holds a lock.
async fn in_line(cx: RawContext) -> Outcome {
    let [first, writer, second] = clients(&cx, OST).await?;
    let reads = locks(&first, &whole(1, LockMode::Pr, 1)).await?;
    let writes = asks(&writer, &whole(1, LockMode::Pw, 1));
    is_asked_for(&first, &reads).await?;
    let later = asks(&second, &whole(1, LockMode::Pr, 1));
    second.unanswered(later, A_WHILE).await?;
    gives_back(&first, &[&reads]).await?;
    let writes = gets(&writer, writes).await?;
    is_asked_for(&writer, &writes).await?;
    gives_back(&writer, &[&writes]).await?;
    gets(&second, later).await.map(drop)
}

/// An extent beyond the requested one ends where another client's extent starts, whether that is granted or requested.
async fn side_by_side(cx: RawContext) -> Outcome {
    let [before, low, high] = clients(&cx, OST).await?;
    let all = locks(&before, &pages(1, LockMode::Pw, 0, 1, 1)).await?;
    if extent(&all) != Extent::ALL {
        return Err(before.wrong(format!("has no competitor, and only gets {all:?}")));
    }
    let lower = asks(&low, &pages(1, LockMode::Pw, 100, 1, 1));
    is_asked_for(&before, &all).await?;
    let higher = asks(&high, &pages(1, LockMode::Pw, 200, 1, 1));
    high.unanswered(higher, A_WHILE).await?;
    gives_back(&before, &[&all]).await?;
    let (lower, higher) = (gets(&low, lower).await?, gets(&high, higher).await?);
    let (below, above) = (extent(&lower), extent(&higher));
    if below.overlaps(&above) || below.end + 1 != 200 * PAGE || above.end != u64::MAX {
        return Err(low.wrong(format!("has {below:?} beside {above:?}")));
    }
    // A request between those two.
    let between = asks(&before, &pages(1, LockMode::Pw, 150, 10, 2));
    is_asked_for(&low, &lower).await?;
    gives_back(&low, &[&lower]).await?;
    let between = extent(&gets(&before, between).await?);
    if between.overlaps(&above) {
        return Err(before.wrong(format!("has {between:?} beside {above:?}")));
    }
    high.unnoticed(Opcode::LdlmBlCallback, A_WHILE).await
}

/// The conflicting lock is released, joined by another one, downgraded, or lost with its client.
async fn asked_back(cx: RawContext) -> Outcome {
    let [holder, waiter, reader] = clients(&cx, OST).await?;
    // The holder needs another lock before it can release the first one; both get callbacks.
    let first = locks(&holder, &whole(1, LockMode::Pr, 1)).await?;
    let writes = asks(&waiter, &whole(1, LockMode::Pw, 1));
    is_asked_for(&holder, &first).await?;
    let second = locks(&holder, &pages(1, LockMode::Pr, 7, 1, 2)).await?;
    is_asked_for(&holder, &second).await?;
    waiter.unanswered(writes, A_WHILE).await?;
    gives_back(&holder, &[&first, &second]).await?;
    let writes = gets(&waiter, writes).await?;
    gives_back(&waiter, &[&writes]).await?;
    // In its glimpse reply the holder says that it only reads by now.
    let wide = locks(&holder, &whole(1, LockMode::Pw, 3)).await?;
    let reads = asks(&reader, &pages(1, LockMode::Pr, 0, 1, 1));
    is_asked_for(&holder, &wide).await?;
    let size = asks(&waiter, &EnqueueReq { glimpse: true, ..whole(1, LockMode::Pr, 2) });
    let asked: GlCallback = holder.noticed(Opcode::LdlmGlCallback, SOON).await?;
    reader.unanswered(reads, A_WHILE).await?;
    tells(&holder, &asked, None, LockMode::Pr).await?;
    answered(&waiter, size).await?;
    gets(&reader, reads).await?;
    // A client disconnects with its lock.
    let holds = locks(&holder, &whole(2, LockMode::Pw, 4)).await?;
    let writes = asks(&waiter, &whole(2, LockMode::Pw, 3));
    is_asked_for(&holder, &holds).await?;
    holder.done::<Empty>(Opcode::Disconnect, &Empty {}).await?;
    holder.hang_up();
    gets(&waiter, writes).await.map(drop)
}

/// The file is outside the story's own tree, which must match its model.
async fn removed(cx: RawContext) -> Outcome {
    let [remover, waiter] = clients(&cx, MDT).await?;
    let kernel = &cx.kernels[0];
    let dir = [name("aside")];
    let path = [name("aside"), name("f")];
    let made = async {
        kernel.mkdir(&root(), &dir, 0o755, false).await?;
        kernel.mknod(&root(), &path, S_IFREG | 0o644, 0, false).await?;
        Ok((kernel.stat(&root(), &dir).await?.ino, kernel.stat(&root(), &path).await?.ino))
    };
    let (dir, file) = made.await.map_err(|fail: crate::sched::Fail| format!("a file outside the tree: {fail:?}"))?;
    let (Some(parent), Some(fid)) = (Fid::from_ino(dir), Fid::from_ino(file)) else {
        return Err("a file outside the tree has no FID".to_owned());
    };
    let inode = |mode, cookie| request(Resource::inode(fid), mode, Policy::Bits(bits::LOOKUP | bits::UPDATE), cookie);
    let holds = locks(&remover, &inode(LockMode::Ex, 1)).await?;
    let waits = asks(&waiter, &inode(LockMode::Pr, 1));
    is_asked_for(&remover, &holds).await?;
    let unlink = UnlinkOp { parent, name: name("f"), rmdir: false, reported: Some(fid), entry_only: false };
    let change = ReintReq { cred: Some(superuser()), now_ns: 1, want: None, op: Some(Reint::Unlink(unlink)) };
    let plain = remover.request(Opcode::MdsReint, &change);
    let reply = remover.call(Frame { header: Header { tag: Tag(1), ..plain.header }, ..plain }).await?;
    remover.is(Opcode::MdsReint, &reply, Ok(()))?;
    // The locks on the file were removed with it: nothing is released.
    gets(&waiter, waits).await.map(drop)
}

/// With another xid: after a reconnect the target may have forgotten the request, but the lock manager has not.
async fn sent_again(cx: RawContext) -> Outcome {
    let fid = cx.fid(0, "f").await?;
    let [holder, waiter] = clients(&cx, OST).await?;
    let holds = locks(&holder, &whole(1, LockMode::Pw, 1)).await?;
    let wanted = whole(1, LockMode::Pw, 1);
    asks(&waiter, &wanted);
    is_asked_for(&holder, &holds).await?;
    let again = asks(&waiter, &wanted);
    waiter.unanswered(again, A_WHILE).await?;
    gives_back(&holder, &[&holds]).await?;
    let has = gets(&waiter, again).await?;
    gives_back(&waiter, &[&has]).await?;
    // The same for record locks, which a signal can also cancel.
    let [holder, waiter] = clients(&cx, MDT).await?;
    locks(&holder, &range(fid, LockMode::Pw, 1, 0, 1)).await?;
    let wanted = range(fid, LockMode::Pw, 1, 0, 1);
    asks(&waiter, &wanted);
    let again = asks(&waiter, &wanted);
    waiter.unanswered(again, A_WHILE).await?;
    answered(&holder, asks(&holder, &range(fid, LockMode::Nl, 1, 0, 2))).await?;
    gets(&waiter, again).await?;
    let other = asks(&holder, &range(fid, LockMode::Pw, 1, 0, 3));
    holder.unanswered(other, A_WHILE).await?;
    let taken_back = CancelReq { handles: Vec::new(), waiting_cookies: vec![3] };
    holder.done::<Empty>(Opcode::LdlmCancel, &taken_back).await?;
    let reply = holder.answer_within(other, SOON).await?;
    holder.is(Opcode::LdlmEnqueue, &reply, Err(Errno::EINTR))
}

/// A holder's reply to a glimpse.
async fn tells(peer: &Peer, asked: &GlCallback, size: Option<u64>, mode: LockMode) -> Outcome {
    let lvb = size.map(|size| Lvb { size, ..Lvb::default() });
    let reply = GlReply { handle: asked.handle, lvb, serial: asked.serial, mode: mode as i32 };
    peer.done::<Empty>(Opcode::LdlmGlReply, &reply).await.map(drop)
}

async fn is_asked_size(peer: &Peer) -> Result<GlCallback, String> {
    peer.noticed(Opcode::LdlmGlCallback, SOON).await
}

async fn sees(peer: &Peer, question: Xid, size: u64) -> Outcome {
    match answered(peer, question).await?.lvb {
        Some(lvb) if lvb.size == size => Ok(()),
        other => Err(peer.wrong(format!("gets the size {other:?}, and the object has {size} bytes"))),
    }
}

async fn sizes_asked(cx: RawContext) -> Outcome {
    let [low, high, early, late] = clients(&cx, OST).await?;
    let question = |number| EnqueueReq { glimpse: true, ..whole(number, LockMode::Pr, 0) };
    let same = LockMode::Unset;
    // One client asks after the reply to another's glimpse has left the holder, which has written since.
    let holds = locks(&low, &whole(1, LockMode::Pw, 1)).await?;
    let first = asks(&early, &question(1));
    let before = is_asked_size(&low).await?;
    let second = asks(&late, &question(1));
    late.unanswered(second, A_WHILE).await?;
    tells(&low, &before, Some(10), same).await?;
    sees(&early, first, 10).await?;
    tells(&low, &is_asked_size(&low).await?, Some(20), same).await?;
    sees(&late, second, 20).await?;
    gives_back(&low, &[&holds]).await?;
    // Two clients hold parts, and one releases its part without data before the other has replied.
    let grant = locks(&high, &pages(2, LockMode::Pw, 100, 1, 1)).await?;
    let lower = asks(&low, &pages(2, LockMode::Pw, 0, 1, 2));
    is_asked_for(&high, &grant).await?;
    gives_back(&high, &[&grant]).await?;
    let lower = gets(&low, lower).await?;
    let higher = asks(&high, &pages(2, LockMode::Pw, 100, 1, 2));
    is_asked_for(&low, &lower).await?;
    let lowest = asks(&low, &pages(2, LockMode::Pw, 0, 1, 3));
    gives_back(&low, &[&lower]).await?;
    let higher = gets(&high, higher).await?;
    let lowest = gets(&low, lowest).await?;
    let asked = asks(&early, &question(2));
    tells(&high, &is_asked_size(&high).await?, Some(101 * PAGE), same).await?;
    gives_back(&high, &[&higher]).await?;
    tells(&low, &is_asked_size(&low).await?, Some(10), same).await?;
    tells(&low, &is_asked_size(&low).await?, Some(10), same).await?;
    sees(&early, asked, 10).await?;
    gives_back(&low, &[&lowest]).await
}

/// Writes a page every few seconds, for much longer than the lock timeout, without being evicted.
async fn slow_writer(cx: RawContext) -> Outcome {
    let [writer, waiter] = clients(&cx, OST).await?;
    let holds = locks(&writer, &whole(4, LockMode::Pw, 1)).await?;
    let waits = asks(&waiter, &pages(4, LockMode::Pr, 0, 1, 1));
    is_asked_for(&writer, &holds).await?;
    let bytes = Bytes::from(vec![b'x'; PAGE as usize]);
    for page in 0..10 {
        cx.wait(Duration::from_secs(3)).await;
        let write = WriteReq { object: object(4), offset: page * PAGE, lock: holds.handle, ..WriteReq::default() };
        let frame = Frame { bulk: bytes.clone(), ..writer.request(Opcode::ObjWrite, &write) };
        let reply = writer.call(frame).await?;
        writer.is(Opcode::ObjWrite, &reply, Ok(()))?;
    }
    gives_back(&writer, &[&holds]).await?;
    gets(&waiter, waits).await?;
    let remover = cx.peer(OST);
    remover.connected(|_, request| request.lightweight = true).await?;
    let destroy = asks_destroy(&remover, 4);
    let reads: BlCallback = waiter.noticed(Opcode::LdlmBlCallback, SOON).await?;
    let back = CancelReq { handles: vec![reads.handle], waiting_cookies: Vec::new() };
    waiter.done::<Empty>(Opcode::LdlmCancel, &back).await?;
    let reply = remover.answer_within(destroy, SOON).await?;
    remover.is(Opcode::ObjDestroy, &reply, Ok(()))
}

fn asks_destroy(peer: &Peer, number: u32) -> Xid {
    let destroy = DestroyReq { objects: vec![object(number)], strays: None };
    peer.send(peer.request(Opcode::ObjDestroy, &destroy))
}

/// Replays locks in a recovery, and returns which ones were refused.
async fn claims(peer: &Peer, wanted: &[EnqueueReq]) -> Result<ReplayLocksRep, String> {
    let mut all = Vec::new();
    wanted.iter().for_each(|lock| ReplayLocksReq::push(&mut all, lock));
    let plain = peer.request(Opcode::LdlmReplay, &ReplayLocksReq { locks: all.into() });
    let header = Header { flags: plain.header.flags | flags::REPLAY, ..plain.header };
    let xid = peer.send(Frame { header, ..plain });
    let reply = peer.answer_within(xid, SOON).await?;
    peer.is(Opcode::LdlmReplay, &reply, Ok(()))?;
    reply.decode().map_err(|error| error.to_string())
}

/// Reports the end of a step of the recovery.
fn is_through(peer: &Peer, step: u32) -> Xid {
    let plain = peer.request(Opcode::Ping, &Empty {});
    peer.send(Frame { header: Header { flags: plain.header.flags | step, ..plain.header }, ..plain })
}

async fn claimed_anew(cx: RawContext) -> Outcome {
    let [first, second] = clients(&cx, OST).await?;
    let held = locks(&first, &whole(1, LockMode::Pw, 1)).await?;
    let other = locks(&first, &whole(2, LockMode::Pw, 2)).await?;
    cx.crash(OST).await;
    cx.wait(A_WHILE).await;
    for peer in [&first, &second] {
        peer.connected(|header, _| header.flags = flags::CONNECT_RECONNECT).await?;
    }
    let replayed = [&first, &second].map(|peer| (peer, is_through(peer, flags::REQ_REPLAY_DONE)));
    for (peer, step) in replayed {
        peer.answer(step).await?;
    }
    let as_before = EnqueueReq { granted_handle: held.handle, ..whole(1, LockMode::Pw, 1) };
    let wide = EnqueueReq { granted_handle: other.handle, ..whole(2, LockMode::Pw, 2) };
    let narrow = EnqueueReq { granted_handle: other.handle, ..whole(2, LockMode::Pr, 2) };
    let has = claims(&first, &[as_before, wide, narrow]).await?;
    // It never held the first lock; the second one is a read lock by now.
    let false_claim = EnqueueReq { granted_handle: held.handle + 100, ..whole(1, LockMode::Pr, 1) };
    let beside = EnqueueReq { granted_handle: other.handle + 100, ..whole(2, LockMode::Pr, 2) };
    let claimed = claims(&second, &[false_claim, beside]).await?;
    let refused: Vec<(u32, i32)> = claimed.failed.iter().map(|failed| (failed.index, failed.errno)).collect();
    if !has.failed.is_empty() || refused != [(0, Errno::ESTALE.raw())] {
        return Err(
            second.wrong(format!("replays a lock that another holds, and gets {claimed:?}; the other: {has:?}"))
        );
    }
    for peer in [&first, &second] {
        is_through(peer, flags::LOCK_REPLAY_DONE);
    }
    // The replayed lock is in force.
    let wants = asks(&second, &whole(1, LockMode::Pr, 3));
    let callback: BlCallback = first.noticed(Opcode::LdlmBlCallback, Duration::from_secs(60)).await?;
    if Some(&callback.handle) != has.handles.first() {
        return Err(first.wrong(format!("gets a callback for {callback:?}, and has {has:?}")));
    }
    let handles = vec![callback.handle];
    first.done::<Empty>(Opcode::LdlmCancel, &CancelReq { handles, waiting_cookies: Vec::new() }).await?;
    gets(&second, wants).await.map(drop)
}

/// The lookup of client 0 is answered, the reply is lost, and then its resends are lost. Its lock is released at once even so.
fn grant_lost() -> Vec<Act> {
    let chmod = |mode| Do(1, Op::Chmod { path: path("f"), mode });
    vec![
        mknod(0, "f"),
        stat(0, "f"),
        chmod(0o600),
        Wait(50_000),
        Act::FailLoc(MDT, u32::from(sites::LDLM_REPLY.0) | ONCE),
        Begin(0, Op::Stat { path: path("f") }),
        Act::Hit(MDT),
        Act::FailLoc(MDT, sites::LDLM_ENQUEUE_NET.0.into()),
        // It has reconnected and resent the request.
        Wait(12_000_000),
        Act::Waiting(1),
        Act::Mark,
        chmod(0o640),
        Act::Within(1_000_000),
        Act::Waiting(1),
        Act::FailLoc(MDT, 0),
        Act::Join,
    ]
}

fn cleared_in_recovery() -> Vec<Act> {
    const LRU: &str = "ldlm.namespaces.*.lru_size";
    let mut acts: Vec<Act> = (0..10).map(|number| mknod(1, &format!("f{number}"))).collect();
    for round in 0..20 {
        acts.extend((0..10).map(|number| stat(0, &format!("f{number}"))));
        acts.extend([
            Wait(50_000),
            Act::Crash(MDT),
            // The target starts and learns which clients were connected.
            Wait(1_000 + round * 40),
            Act::Set(Node::Client(0), LRU, "clear"),
            Wait(1_000_000),
            stat(1, "f0"),
            Act::Set(Node::Client(0), LRU, "clear"),
            Wait(50_000),
            Act::Expect(Node::Client(0), "ldlm.namespaces.*MDT0000*.lock_count", "0".to_owned()),
        ]);
    }
    acts
}

/// A lock on ten bytes of a file, for one owner.
fn range(fid: Fid, mode: LockMode, owner: u64, part: u64, cookie: u64) -> EnqueueReq {
    let flock = Flock { start: part * 10, end: part * 10 + 9, owner, ..Flock::default() };
    request(Resource::flock(fid), mode, Policy::Flock(flock), cookie)
}

/// A `flock` lock on a whole file.
fn flock(fid: Fid, mode: LockMode, cookie: u64) -> EnqueueReq {
    let flock = Flock { start: 0, end: u64::MAX, owner: 1, is_flock: true, ..Flock::default() };
    request(Resource::flock(fid), mode, Policy::Flock(flock), cookie)
}

/// Checks that a lock that another holds is refused without waiting.
async fn is_refused(peer: &Peer, wanted: &EnqueueReq) -> Outcome {
    let reply = peer.answer_within(asks(peer, wanted), SOON).await?;
    peer.is(Opcode::LdlmEnqueue, &reply, Err(Errno::EAGAIN))
}

async fn record_locks(cx: RawContext) -> Outcome {
    let (file, other) = (cx.fid(0, "f").await?, cx.fid(0, "g").await?);
    let [first, second, third] = clients(&cx, MDT).await?;
    // One thread of the first process waits for the second process, which waits for the third, as does another thread of the
    // first: that thread gets the lock that both wait for, and this closes the cycle.
    locks(&second, &range(file, LockMode::Pw, 1, 0, 1)).await?;
    locks(&third, &range(other, LockMode::Pw, 1, 0, 1)).await?;
    let one = asks(&first, &range(file, LockMode::Pw, 1, 0, 1));
    first.unanswered(one, A_WHILE).await?;
    let two = asks(&first, &range(other, LockMode::Pw, 1, 0, 2));
    first.unanswered(two, A_WHILE).await?;
    let circle = asks(&second, &range(other, LockMode::Pw, 1, 0, 2));
    second.unanswered(circle, A_WHILE).await?;
    answered(&third, asks(&third, &range(other, LockMode::Nl, 1, 0, 2))).await?;
    gets(&first, two).await?;
    let reply = second.answer_within(circle, SOON).await?;
    second.is(Opcode::LdlmEnqueue, &reply, Err(Errno::EDEADLK))?;
    answered(&second, asks(&second, &range(file, LockMode::Nl, 1, 0, 3))).await?;
    gets(&first, one).await?;
    // A late copy of that request locks nothing after the unlock.
    for (file, cookie) in [(file, 3), (other, 4)] {
        answered(&first, asks(&first, &range(file, LockMode::Nl, 1, 0, cookie))).await?;
    }
    gets(&first, asks(&first, &range(file, LockMode::Pw, 1, 0, 1))).await?;
    locks(&third, &range(file, LockMode::Pw, 1, 0, 3)).await?;
    // Nor does a late copy of a refused request, after the conflict has ended.
    let at_once = EnqueueReq { no_wait: true, ..range(file, LockMode::Pw, 1, 0, 8) };
    is_refused(&first, &at_once).await?;
    answered(&third, asks(&third, &range(file, LockMode::Nl, 1, 0, 4))).await?;
    is_refused(&first, &at_once).await?;
    locks(&second, &range(file, LockMode::Pw, 1, 0, 4)).await?;
    // Two `flock` readers that both want to write release their locks first.
    for peer in [&first, &second] {
        locks(peer, &flock(file, LockMode::Pr, 5)).await?;
    }
    let one = asks(&first, &flock(file, LockMode::Pw, 6));
    first.unanswered(one, A_WHILE).await?;
    let two = asks(&second, &flock(file, LockMode::Pw, 6));
    gets(&first, one).await?;
    answered(&first, asks(&first, &flock(file, LockMode::Nl, 7))).await?;
    gets(&second, two).await.map(drop)
}
