//! Stories about the management target: what it is told to remember, whom it tells, and whom it refuses.

use proto::msg::{Config, ConfigGetReq, Empty, Param, Pool, SetParamReq, SetPoolKind, SetPoolReq};
use proto::{Errno, Opcode};

use super::raw::{Hand, Outcome, Peer};
use super::{Act, MGT, Story};
use crate::world::mount::FSNAME;

/// All of them.
pub const STORIES: &[Story] = &[story(
    "configured",
    "pools and parameters that were set are there after a crash of the management target, and those that were removed are not",
    || vec![Act::Raw(|hand| Box::pin(configured(hand)))],
)];

const fn story(name: &'static str, what: &'static str, acts: fn() -> Vec<Act>) -> Story {
    Story { name, what, acts, strikes: &[] }
}

/// A session with the management target, as an administrator's program has.
async fn administrator(hand: &Hand) -> Result<Peer, String> {
    let peer = hand.peer(MGT);
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

/// What was answered is there after a crash, and only that.
async fn configured(hand: Hand) -> Outcome {
    let peer = administrator(&hand).await?;
    let (set, pools) = (Opcode::MgsSetParam, Opcode::MgsSetPool);
    let (cache, sharing) = ("llite.*.max_cached_mb", "mdt.*.commit_on_sharing");
    peer.done::<Empty>(set, &param(cache, "64", false)).await?;
    peer.done::<Empty>(set, &param(sharing, "1", false)).await?;
    peer.done::<Empty>(pools, &pool(SetPoolKind::New, &[])).await?;
    peer.done::<Empty>(pools, &pool(SetPoolKind::Add, &[1, 0])).await?;
    peer.refused(pools, &pool(SetPoolKind::Add, &[7]), Errno::ENOENT).await?;
    peer.refused(pools, &pool(SetPoolKind::Destroy, &[]), Errno::ENOTEMPTY).await?;
    let before = config(&peer).await?;
    hand.crash(MGT).await;
    let peer = administrator(&hand).await?;
    let after = config(&peer).await?;
    let flash = Pool { name: "flash".to_owned(), osts: vec![0, 1] };
    if after != before || after.params.len() != 2 || after.pools != [flash] {
        return Err(format!("the management target has forgotten something: {after:?}, and before {before:?}"));
    }
    peer.done::<Empty>(set, &param(cache, "", true)).await?;
    peer.done::<Empty>(set, &param(sharing, "", true)).await?;
    peer.done::<Empty>(pools, &pool(SetPoolKind::Remove, &[0, 1])).await?;
    peer.done::<Empty>(pools, &pool(SetPoolKind::Destroy, &[])).await?;
    hand.crash(MGT).await;
    let after = config(&administrator(&hand).await?).await?;
    if !after.params.is_empty() || !after.pools.is_empty() {
        return Err(format!("what was removed is there again: {after:?}"));
    }
    Ok(())
}
