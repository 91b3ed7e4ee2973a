//! Stories about the management target: what it stores, which clients it notifies, and which requests it refuses.

use core::time::Duration;

use proto::msg::{
    Config, ConfigGetReq, Empty, Param, Pool, RegisterRep, RegisterReq, SeqRangeRep, SeqRangeReq, SetParamReq,
    SetPoolKind, SetPoolReq,
};
use proto::{Errno, Opcode};

use super::Act::{Ask, Crash, Do, Expect, Wait};
use super::raw::{Outcome, Peer, RawContext};
use super::stories::{CREATE, close_fd, fsync, mkdir, mknod, open, read, stat, write};
use super::{Act, MDT, MGT, OST, Story};
use crate::model::Op;
use crate::sched::Command;
use crate::world::mount::FSNAME;
use crate::world::net::Node;

/// All stories of this module.
pub(super) const STORIES: &[Story] = &[
    story(
        "configured",
        "pools and parameters persist after a crash of the management target, and removed ones stay removed",
        || vec![Act::Raw(|cx| Box::pin(configured(cx)))],
    ),
    story(
        "registered",
        "older copies of a target, other stores under its name and replacements of a running target are refused",
        || vec![Act::Raw(|cx| Box::pin(registered(cx)))],
    ),
    story("notified-durably", "no client sees a configuration that a crash of the management target may undo", || {
        vec![Act::Raw(|cx| Box::pin(notified_durably(cx)))]
    }),
    story(
        "notified-when-registered",
        "a client that asks for a file system before its first target has registered is notified when it has",
        || vec![Act::Raw(|cx| Box::pin(notified_when_registered(cx)))],
    ),
    story(
        "ranges",
        "no range of sequences is given twice, over crashes and when an older copy of the management target is accepted",
        || vec![Act::Raw(|cx| Box::pin(ranges(cx)))],
    ),
    story(
        "older-configuration",
        "clients still follow the management target after an older copy of it was accepted",
        || {
            vec![
                Act::Raw(|cx| Box::pin(older_configuration(cx))),
                Act::Wait(1_000_000),
                Act::Expect(Node::Client(0), "llite.*.max_read_ahead_mb", "3".to_owned()),
                Act::Expect(Node::Client(1), "llite.*.max_read_ahead_mb", "3".to_owned()),
            ]
        },
    ),
    story(
        "older-copies",
        "older copies of targets do not serve until they are accepted; then their data is there",
        older_copies,
    ),
];

const fn story(name: &'static str, what: &'static str, acts: fn() -> Vec<Act>) -> Story {
    Story { name, what, acts, strikes: &[] }
}

/// A session with the management target, as an administrator's program has.
async fn administrator(cx: &RawContext) -> Result<Peer, String> {
    let peer = cx.peer(MGT);
    peer.connected(|_, request| request.lightweight = true).await?;
    Ok(peer)
}

async fn config(peer: &Peer) -> Result<Config, String> {
    peer.done(Opcode::MgsConfigGet, &ConfigGetReq { fsname: FSNAME.to_owned() }).await
}

fn pool(kind: SetPoolKind, osts: &[u32]) -> SetPoolReq {
    SetPoolReq { fsname: FSNAME.to_owned(), kind: kind as i32, pool: "flash".to_owned(), osts: osts.to_vec() }
}

fn param(path: &str, value: &str, delete: bool) -> SetParamReq {
    let param = Some(Param { path: path.to_owned(), value: value.to_owned() });
    SetParamReq { fsname: FSNAME.to_owned(), param, delete }
}

/// Exactly the acknowledged changes persist after a crash.
async fn configured(cx: RawContext) -> Outcome {
    let peer = administrator(&cx).await?;
    let (set, pools) = (Opcode::MgsSetParam, Opcode::MgsSetPool);
    let (cache, sharing) = ("llite.*.max_cached_mb", "mdt.*.commit_on_sharing");
    peer.done::<Empty>(set, &param(cache, "64", false)).await?;
    peer.done::<Empty>(set, &param(sharing, "1", false)).await?;
    peer.done::<Empty>(pools, &pool(SetPoolKind::New, &[])).await?;
    peer.done::<Empty>(pools, &pool(SetPoolKind::Add, &[1, 0])).await?;
    peer.refused(pools, &pool(SetPoolKind::Add, &[7]), Errno::ENOENT).await?;
    peer.refused(pools, &pool(SetPoolKind::Destroy, &[]), Errno::ENOTEMPTY).await?;
    let before = config(&peer).await?;
    cx.crash(MGT).await;
    let peer = administrator(&cx).await?;
    let after = config(&peer).await?;
    let flash = Pool { name: "flash".to_owned(), osts: vec![0, 1] };
    if after != before || after.params.len() != 2 || after.pools != [flash] {
        return Err(format!("the management target has lost something: {after:?}, before {before:?}"));
    }
    peer.done::<Empty>(set, &param(cache, "", true)).await?;
    peer.done::<Empty>(set, &param(sharing, "", true)).await?;
    peer.done::<Empty>(pools, &pool(SetPoolKind::Remove, &[0, 1])).await?;
    peer.done::<Empty>(pools, &pool(SetPoolKind::Destroy, &[])).await?;
    cx.crash(MGT).await;
    let after = config(&administrator(&cx).await?).await?;
    if !after.params.is_empty() || !after.pools.is_empty() {
        return Err(format!("removed settings are back: {after:?}"));
    }
    Ok(())
}

/// A target that has not registered before.
fn target(name: &str, store: u8, instance: u64, start: u64) -> RegisterReq {
    RegisterReq {
        target: name.to_owned(),
        target_uuid: vec![store; 16].into(),
        nids: vec!["elsewhere:7000".to_owned()],
        instance,
        start,
        first: instance == 1,
        ..RegisterReq::default()
    }
}

async fn registered(cx: RawContext) -> Outcome {
    let peer = administrator(&cx).await?;
    let register = Opcode::MgsRegister;
    let other = |instance, start| target("other-OST0000", 7, instance, start);
    peer.done::<RegisterRep>(register, &RegisterReq { first: true, ..other(4, 44) }).await?;
    // A copy of its store from before its last start; and two started copies of one store.
    peer.refused(register, &other(3, 33), Errno::ESTALE).await?;
    peer.refused(register, &other(4, 45), Errno::ESTALE).await?;
    peer.done::<RegisterRep>(register, &other(4, 44)).await?;
    // Another store under the same name, and a replacement of a running target.
    peer.refused(register, &target("other-OST0000", 8, 1, 1), Errno::EADDRINUSE).await?;
    let running = target(&cx.name(OST), 8, 1, 1);
    peer.refused(register, &running, Errno::EADDRINUSE).await?;
    peer.refused(register, &RegisterReq { replace: true, ..running }, Errno::EADDRINUSE).await?;
    cx.crash(MGT).await;
    let peer = administrator(&cx).await?;
    peer.refused(register, &other(3, 33), Errno::ESTALE).await?;
    peer.done::<RegisterRep>(register, &other(5, 55)).await?;
    Ok(())
}

/// Longer than any request without a broken disk.
const SOON: Duration = Duration::from_secs(1);

async fn notified_durably(cx: RawContext) -> Outcome {
    let (peer, watcher, late) = (administrator(&cx).await?, administrator(&cx).await?, administrator(&cx).await?);
    let before = config(&watcher).await?;
    // A change of another file system is being committed when the disk stops; this change never reaches it.
    let first = peer.send(peer.request(Opcode::MgsRegister, &target("other-MDT0000", 9, 1, 1)));
    cx.wait(Duration::from_micros(150)).await;
    cx.withhold(MGT).await;
    let second = peer.send(peer.request(Opcode::MgsSetParam, &param("llite.*.max_cached_mb", "65", false)));
    peer.answer(first).await?;
    peer.unanswered(second, SOON).await?;
    watcher.unnoticed(Opcode::MgsConfigChanged, SOON).await?;
    // A new request must not be shown the change either.
    let asked = late.send(late.request(Opcode::MgsConfigGet, &ConfigGetReq { fsname: FSNAME.to_owned() }));
    late.unanswered(asked, SOON).await?;
    cx.crash(MGT).await;
    let after = config(&administrator(&cx).await?).await?;
    if after != before {
        return Err(format!(
            "a change that never reached the disk is there after a crash: {after:?}, before {before:?}"
        ));
    }
    Ok(())
}

async fn notified_when_registered(cx: RawContext) -> Outcome {
    let (early, peer) = (administrator(&cx).await?, administrator(&cx).await?);
    early.refused(Opcode::MgsConfigGet, &ConfigGetReq { fsname: "later".to_owned() }, Errno::ENOENT).await?;
    peer.done::<RegisterRep>(Opcode::MgsRegister, &target("later-MDT0000", 9, 1, 1)).await?;
    let notified: Config = early.noticed(Opcode::MgsConfigChanged, SOON).await?;
    if notified.fsname != "later" {
        return Err(format!("a peer that waits for 'later' is notified of '{}'", notified.fsname));
    }
    let found: Config = early.done(Opcode::MgsConfigGet, &ConfigGetReq { fsname: "later".to_owned() }).await?;
    if found.version != notified.version || found.targets.len() != 1 {
        return Err(format!("version {} was announced, and there is {found:?}", notified.version));
    }
    Ok(())
}

async fn ranges(cx: RawContext) -> Outcome {
    let ask = SeqRangeReq { target: cx.name(MDT), ..SeqRangeReq::default() };
    let mut granted_to = 0;
    cx.command(Command::Copy(MGT)).await;
    for round in 0..4 {
        let peer = administrator(&cx).await?;
        for _ in 0..2 {
            let range: SeqRangeRep = peer.done(Opcode::MgsSeqRange, &ask).await?;
            if range.start < granted_to || range.end <= range.start {
                return Err(format!("sequences from {:x} on are granted a second time: {range:?}", range.start));
            }
            granted_to = range.end;
        }
        match round {
            2 => cx.command(Command::PutBack(MGT, true)).await,
            _ => cx.crash(MGT).await,
        }
    }
    Ok(())
}

async fn older_configuration(cx: RawContext) -> Outcome {
    let peer = administrator(&cx).await?;
    let ahead = |value| param("llite.*.max_read_ahead_mb", value, false);
    cx.command(Command::Copy(MGT)).await;
    for value in ["5", "6", "7", "8"] {
        peer.done::<Empty>(Opcode::MgsSetParam, &ahead(value)).await?;
    }
    let notified = config(&peer).await?;
    cx.command(Command::PutBack(MGT, true)).await;
    let peer = administrator(&cx).await?;
    let now = config(&peer).await?;
    if now.version <= notified.version {
        return Err(format!(
            "version {} was read before the restore, and version {} after it",
            notified.version, now.version
        ));
    }
    // The clients have reconnected by now.
    cx.wait(Duration::from_secs(60)).await;
    peer.done::<Empty>(Opcode::MgsSetParam, &ahead("3")).await.map(drop)
}

/// Copies both targets and restarts them from that moment, without other changes.
fn older_copies() -> Vec<Act> {
    let second = 1_000_000;
    let mut acts = vec![
        mkdir(0, "d"),
        open(0, "d/f", CREATE, 1),
        write(0, 1, 0, 200_000),
        fsync(0, 1),
        close_fd(0, 1),
        open(0, "d/small", CREATE, 2),
        write(0, 2, 0, 2_000),
        fsync(0, 2),
        close_fd(0, 2),
        Do(0, Op::Syncfs),
        Wait(second),
    ];
    for server in [OST, MDT] {
        let is = |word: &str| Expect(Node::Server(server), "*.*.recovery_status", format!("status: {word}"));
        acts.extend([
            Ask(Command::Copy(server)),
            Crash(server),
            Wait(second),
            stat(1, "d/f"),
            stat(1, "d/small"),
            Ask(Command::PutBack(server, false)),
            Wait(second),
            is("REFUSED"),
            // Each start brings its instance number closer to that of the lost state.
            Crash(server),
            Wait(second),
            Crash(server),
            Wait(second),
            is("REFUSED"),
            Ask(Command::PutBack(server, true)),
            Wait(120 * second),
            is("INACTIVE"),
        ]);
    }
    acts.extend([
        stat(1, "d/f"),
        stat(0, "d/small"),
        open(1, "d/f", 0, 3),
        read(1, 3),
        close_fd(1, 3),
        open(1, "d/small", 0, 4),
        read(1, 4),
        close_fd(1, 4),
        mknod(0, "d/new"),
        mknod(1, "d/newer"),
        stat(1, "d/new"),
    ]);
    acts
}
