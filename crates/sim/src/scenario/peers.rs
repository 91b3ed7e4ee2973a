//! Stories of peers that break the rules of sessions: they use another client's session, replay too late, change through a
//! read-only session, or reuse a slot before it has a reply.

use core::time::Duration;

use client::api::SetStat;
use proto::frame::flags;
use proto::msg::{
    BlCallback, CancelReq, Empty, EnqueueRep, EnqueueReq, LockMode, Policy, Reint, ReintReq, Resource, SetattrOp,
    UnlinkOp, bits, valid,
};
use proto::{Bytes, Errno, Fid, Frame, Header, Opcode, Tag, Xid};
use stdx::faults::sites;

use super::Act::{Barrier, Begin, Crash, Do, Join, Logged, Pause, Raw, Wait};
use super::places::{chmod, unlink};
use super::raw::{Outcome, Peer, RawContext};
use super::stories::{mkdir, mknod, path, stat};
use super::{Act, MDT, Story};
use crate::model::Op;
use crate::sched::Command;
use crate::world::net::Node;
use crate::world::session::superuser;

/// All stories of this module.
pub(super) const STORIES: &[Story] = &[
    story(
        "session-of-another",
        "no peer takes over a client's session with the UUID alone, or uses it over its own connection",
        || {
            let mut acts = settled();
            acts.extend([Raw(|cx| Box::pin(another(cx))), stat(1, "d/f")]);
            acts
        },
    ),
    story("read-only-session", "a read-only mount changes nothing", || {
        let mut acts = settled();
        acts.extend([Raw(|cx| Box::pin(only_reads(cx))), stat(1, "d/f"), stat(1, "f")]);
        acts
    }),
    story("late-replay", "a replay that arrives after a later one is refused", || {
        let mut acts = settled();
        acts.extend([
            Raw(|cx| Box::pin(comes(cx))),
            Barrier(MDT),
            Raw(|cx| Box::pin(too_late(cx))),
            Wait(60_000_000),
            Do(1, chmod("d", 0o700)),
            Do(0, chmod("f", 0o600)),
            Do(0, chmod("g", 0o600)),
        ]);
        acts
    }),
    story(
        "slot-again",
        "a request that ends after a later one in its slot does not affect that one's reply record",
        || {
            let mut acts = settled();
            acts.extend([
                Raw(|cx| Box::pin(slot_again(cx))),
                Do(0, chmod("f", 0o600)),
                Do(0, chmod("g", 0o600)),
                Pause(Node::Client(0), 3_000_000),
                Raw(|cx| Box::pin(slot_fails(cx))),
                mknod(0, "d/none"),
                Raw(|cx| Box::pin(failed_again(cx))),
                Do(0, chmod("f", 0o600)),
            ]);
            acts
        },
    ),
    story(
        "server-among-clients",
        "a peer that keeps nothing for replay gets replies only when its changes are durable",
        || {
            let mut acts = settled();
            acts.extend([
                Barrier(MDT),
                Raw(|cx| Box::pin(keeps_nothing(cx))),
                Crash(MDT),
                Wait(20_000_000),
                Do(0, chmod("f", 0o600)),
            ]);
            acts
        },
    ),
    story(
        "works-under-lock",
        "a client that keeps working under a lock with a callback keeps the lock until the work is done",
        || {
            let mut acts = settled();
            acts.extend([
                Raw(|cx| Box::pin(takes_lock(cx))),
                Begin(0, Op::Mkdir { path: path("d/e"), mode: 0o755 }),
                Raw(|cx| Box::pin(works_under_lock(cx))),
                Join,
                Logged(Node::Server(MDT), "evicts", 0),
            ]);
            acts
        },
    ),
    story(
        "own-slots",
        "a change waits for an unacknowledged change of the same client in another slot that it depends on",
        || {
            let mut acts = vec![mkdir(1, "d"), mkdir(1, "d/e"), mknod(1, "d/e/y"), mknod(1, "h")];
            acts.push(Do(1, Op::Link { from: path("h"), to: path("d/e/x") }));
            acts.extend([
                Raw(|cx| Box::pin(comes(cx))),
                Do(1, Op::Syncfs),
                Wait(50_000),
                Barrier(MDT),
                Do(1, chmod("h", 0o600)),
                Raw(|cx| Box::pin(own_slots(cx))),
                Crash(MDT),
                Wait(60_000_000),
                stat(1, "d/e/x"),
                Do(0, unlink("d/e/y")),
            ]);
            acts
        },
    ),
];

const fn story(name: &'static str, what: &'static str, acts: fn() -> Vec<Act>) -> Story {
    Story { name, what, acts, strikes: &[] }
}

/// Files that both clients have read, all of it on disk.
fn settled() -> Vec<Act> {
    let mut acts = vec![mkdir(0, "d"), mknod(0, "d/f"), mknod(0, "f"), mknod(0, "g")];
    acts.extend([Do(0, Op::Syncfs), Do(1, Op::Syncfs), Wait(50_000), stat(0, "f"), stat(0, "g")]);
    acts
}

fn remove(parent: Fid, name: &'static str, rmdir: bool) -> ReintReq {
    let op = UnlinkOp { parent, name: Bytes::from_static(name.as_bytes()), rmdir, reported: None, entry_only: false };
    ReintReq { cred: Some(superuser()), now_ns: 1, want: None, op: Some(Reint::Unlink(op)) }
}

fn change_mode(fid: Fid) -> ReintReq {
    let op = SetattrOp { fid, valid: valid::MODE, mode: 0o600, ..SetattrOp::default() };
    ReintReq { cred: Some(superuser()), now_ns: 1, want: None, op: Some(Reint::Setattr(op)) }
}

/// The next request of a session in this slot, which declares that the slots in `busy`, and this one, are in use.
fn in_slot(peer: &Peer, tag: u16, body: &ReintReq, busy: u64) -> Frame {
    let mut frame = peer.request(Opcode::MdsReint, body);
    frame.header.tag = Tag(tag);
    frame.header.pre_versions = [busy | 1 << (tag - 1), 0, 0, 0];
    frame
}

async fn client(cx: &RawContext) -> Result<Peer, String> {
    let peer = cx.peer(MDT);
    peer.connected(|_, _| {}).await?;
    peer.done::<Empty>(Opcode::Ping, &Empty {}).await?;
    Ok(peer)
}

/// Longer than the duration of a request that waits for no other client.
const A_WHILE: Duration = Duration::from_millis(500);

async fn another(cx: RawContext) -> Outcome {
    let dir = cx.fid(1, "d").await?;
    let owner = client(&cx).await?;
    let (uuid, conn_cnt, export) = owner.session(|session| (session.uuid, session.conn_cnt, session.export));
    // The peer knows the UUID only.
    let thief = cx.peer(MDT);
    thief.session(|session| (session.uuid, session.conn_cnt) = (uuid, conn_cnt + 7));
    thief.refused_connect(|_, _| {}, Errno::EALREADY).await?;
    owner.done::<Empty>(Opcode::Ping, &Empty {}).await?;
    // A late copy of its own connect request.
    let late = |header: &mut Header, _: &mut _| (header.export, header.conn_cnt) = (export, conn_cnt);
    thief.refused_connect(late, Errno::EALREADY).await?;
    owner.done::<Empty>(Opcode::Ping, &Empty {}).await?;
    // The peer knows the handle, and has another connection.
    for conn_cnt in [conn_cnt, conn_cnt + 1] {
        let mut frame = in_slot(&thief, 1, &remove(dir, "f", false), 0);
        (frame.header.export, frame.header.conn_cnt) = (export, conn_cnt);
        let xid = thief.send(frame);
        thief.unanswered(xid, A_WHILE).await?;
    }
    // A request of the owner from an older connection.
    let mut frame = in_slot(&owner, 1, &remove(dir, "f", false), 0);
    frame.header.conn_cnt = conn_cnt - 1;
    let xid = owner.send(frame);
    owner.unanswered(xid, A_WHILE).await?;
    owner.done::<Empty>(Opcode::Ping, &Empty {}).await.map(|_| ())
}

async fn only_reads(cx: RawContext) -> Outcome {
    let (dir, file) = (cx.fid(0, "d").await?, cx.fid(0, "f").await?);
    let peer = cx.peer(MDT);
    peer.connected(|_, request| request.read_only = true).await?;
    for body in [remove(dir, "f", false), change_mode(file)] {
        let reply = peer.call(in_slot(&peer, 1, &body, 0)).await?;
        peer.is(Opcode::MdsReint, &reply, Err(Errno::EROFS))?;
    }
    Ok(())
}

async fn keeps_nothing(cx: RawContext) -> Outcome {
    let file = cx.fid(0, "f").await?;
    let peer = cx.peer(MDT);
    peer.connected(|_, request| request.lightweight = true).await?;
    let xid = peer.send(in_slot(&peer, 1, &change_mode(file), 0));
    peer.unanswered(xid, A_WHILE).await?;
    peer.hang_up();
    Ok(())
}

/// Takes a lock on a directory in which no other client changes anything meanwhile.
async fn takes_lock(cx: RawContext) -> Outcome {
    let dir = cx.fid(1, "d").await?;
    let peer = client(&cx).await?;
    let lock = EnqueueReq {
        resource: Resource::inode(dir),
        mode: LockMode::Ex as i32,
        cookie: 1,
        policy: Some(Policy::Bits(bits::UPDATE)),
        ..EnqueueReq::default()
    };
    let granted: EnqueueRep = peer.done(Opcode::LdlmEnqueue, &lock).await?;
    granted.grant.map(|_| ()).ok_or_else(|| peer.wrong("gets no lock".to_owned()))
}

/// Makes changes at long intervals, for longer than the lock timeout. Then releases the lock.
async fn works_under_lock(cx: RawContext) -> Outcome {
    let peer = cx.known(0);
    let called: BlCallback = peer.noticed(Opcode::LdlmBlCallback, A_WHILE).await?;
    for _ in 0..6 {
        cx.wait(Duration::from_secs(9)).await;
        let reply = peer.call(in_slot(&peer, 1, &remove(Fid::ROOT, "none", false), 0)).await?;
        peer.is(Opcode::MdsReint, &reply, Err(Errno::ENOENT))?;
    }
    let back = CancelReq { handles: vec![called.handle], ..CancelReq::default() };
    peer.done::<Empty>(Opcode::LdlmCancel, &back).await.map(|_| ())
}

/// A client whose record is on disk.
async fn comes(cx: RawContext) -> Outcome {
    client(&cx).await.map(|_| ())
}

/// A change that is kept for replay.
async fn kept(cx: &RawContext, peer: &Peer, file: &str) -> Result<Frame, String> {
    let mut frame = in_slot(peer, 1, &change_mode(cx.fid(0, file).await?), 0);
    let reply = peer.call(frame.clone()).await?;
    peer.is(Opcode::MdsReint, &reply, Ok(()))?;
    frame.header.flags = flags::REPLAY;
    (frame.header.transno, frame.header.pre_versions) = (reply.header.transno, reply.header.pre_versions);
    Ok(frame)
}

/// The peer changes something before and after client 1, and replays its first change after that of client 1 was replayed. Client
/// 1 delays the recovery meanwhile.
async fn too_late(cx: RawContext) -> Outcome {
    let peer = cx.known(0);
    let first = kept(&cx, &peer, "f").await?;
    let cred = crate::program::root();
    let dir: Vec<Bytes> = cx.base.iter().cloned().chain(path("d")).collect();
    let set = SetStat { mode: Some(0o700), ..SetStat::default() };
    cx.kernels[1].setattr(&cred, &dir, &set).await.map_err(|fail| format!("d: {fail:?}"))?;
    let last = kept(&cx, &peer, "g").await?;
    cx.command(Command::Site(Node::Client(1), u32::from(sites::PTLRPC_REPLAY_PAUSE.0), 5)).await;
    peer.hang_up();
    cx.crash(MDT).await;
    peer.connected(|header, _| header.flags = flags::CONNECT_RECONNECT).await?;
    let of_now = |mut frame: Frame| {
        (frame.header.export, frame.header.conn_cnt) = peer.session(|session| (session.export, session.conn_cnt));
        frame
    };
    peer.send(of_now(last));
    cx.wait(Duration::from_secs(7)).await;
    let reply = peer.call(of_now(first)).await?;
    peer.is(Opcode::MdsReint, &reply, Err(Errno::EOVERFLOW))?;
    peer.hang_up();
    cx.command(Command::Site(Node::Client(1), 0, 0)).await;
    Ok(())
}

/// A change of "f", which client 0 has cached, waits while client 0 is paused. A later request in the same slot does not wait;
/// returns that request and its reply when both are answered.
async fn overtaken(cx: &RawContext, peer: &Peer, later: &ReintReq) -> Result<(Frame, Frame), String> {
    let file = cx.fid(1, "f").await?;
    let first = peer.send(in_slot(peer, 1, &change_mode(file), 0));
    cx.wait(A_WHILE).await;
    let later = in_slot(peer, 1, later, 0);
    let answer = peer.call(later.clone()).await?;
    let reply = peer.answer(first).await?;
    peer.is(Opcode::MdsReint, &reply, Ok(()))?;
    Ok((later, answer))
}

/// Resends a request: its reply must be the first one.
async fn again(peer: &Peer, mut frame: Frame, first: (u64, i32)) -> Outcome {
    frame.header.flags = flags::RESENT;
    let reply = peer.call(frame).await?;
    let second = (reply.header.transno.0, reply.header.status);
    if second == first {
        Ok(())
    } else {
        Err(peer.wrong(format!("has the reply {second:?}, and had {first:?} before")))
    }
}

async fn slot_again(cx: RawContext) -> Outcome {
    let peer = client(&cx).await?;
    let file = cx.fid(1, "g").await?;
    // No other client holds a conflicting lock.
    cx.wait(Duration::from_secs(4)).await;
    let reply = peer.call(in_slot(&peer, 1, &change_mode(file), 0)).await?;
    peer.is(Opcode::MdsReint, &reply, Ok(()))?;
    cx.command(Command::Pause(Node::Client(0), Duration::from_secs(3))).await;
    let (later, answer) = overtaken(&cx, &peer, &change_mode(file)).await?;
    peer.is(Opcode::MdsReint, &answer, Ok(()))?;
    again(&peer, later, (answer.header.transno.0, 0)).await
}

async fn slot_fails(cx: RawContext) -> Outcome {
    let peer = cx.known(0);
    let dir = cx.fid(1, "d").await?;
    let (_, answer) = overtaken(&cx, &peer, &remove(dir, "none", false)).await?;
    peer.is(Opcode::MdsReint, &answer, Err(Errno::ENOENT))
}

/// A failed request keeps its error, although it would succeed by now.
async fn failed_again(cx: RawContext) -> Outcome {
    let peer = cx.known(0);
    let dir = cx.fid(1, "d").await?;
    let xid = Xid(peer.session(|session| session.xid));
    let mut frame = in_slot(&peer, 1, &remove(dir, "none", false), 0);
    frame.header.xid = xid;
    again(&peer, frame, (0, -Errno::ENOENT.raw())).await
}

/// The first removal depends on a change of client 1, and waits. The second does not; the third depends on both.
async fn own_slots(cx: RawContext) -> Outcome {
    let (dir, above) = (cx.fid(1, "d/e").await?, cx.fid(1, "d").await?);
    let peer = cx.known(0);
    let first = peer.send(in_slot(&peer, 2, &remove(dir, "x", false), 1));
    peer.unanswered(first, A_WHILE).await?;
    let reply = peer.call(in_slot(&peer, 1, &remove(dir, "y", false), 2)).await?;
    peer.is(Opcode::MdsReint, &reply, Ok(()))?;
    let third = peer.send(in_slot(&peer, 1, &remove(above, "e", true), 2));
    peer.unanswered(third, A_WHILE).await?;
    peer.unanswered(first, A_WHILE).await?;
    peer.hang_up();
    Ok(())
}
