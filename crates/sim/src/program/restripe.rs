//! Somebody who gives directories other stripes while others work in them. Nobody should notice: not in directories of one
//! process, and not in the one with many names, whose listings may miss none. (In a directory that several processes share, a listing
//! may show a rename between two stripes half done; there the processes have to know which names are in which stripe.)

use core::time::Duration;

use client::api::{Answer, Call, DirStripes};
use proto::msg::DirHash;
use stdx::Rng;

use super::{ProgramEnv, name, root};
use crate::kernel::{Kernel, SysResult};
use crate::plan::Plan;

/// The number of layouts that it sets.
const CHANGES: u64 = 12;

/// Starts it.
pub(crate) fn start(env: &ProgramEnv, plan: &Plan, mut rng: Rng) {
    let (outer, plan) = (env.clone(), (plan.processes as u64, plan.mdts as u64));
    env.sched.spawn("other stripes", async move {
        for _ in 0..CHANGES {
            outer.sched.sleep(Duration::from_micros(rng.below(600_000))).await;
            let Some(kernel) = rng.pick(&outer.mounts.living()).cloned() else { continue };
            // Whatever it meets, it goes on with another directory.
            let _ = change(&kernel, plan, &mut rng).await;
        }
    });
}

/// Sets the layout of some directory. It lists none, because that would change when they were read last.
async fn change(kernel: &Kernel, plan: (u64, u64), rng: &mut Rng) -> SysResult<()> {
    let (processes, mdts) = plan;
    let path = match rng.below(processes + 1) {
        0 => vec![name("crowd")],
        number => vec![name(&format!("p{}", number - 1))],
    };
    let now = match kernel.about(&root(), &path, |ino| Call::GetDirLayout { ino }).await? {
        Answer::DirLayout(Some(lmv)) => lmv.count,
        _ => 1,
    };
    let count = rng.range(1, 4) as u32;
    let hash = [DirHash::Unknown, DirHash::AllChar, DirHash::Fnv1a64, DirHash::Crush][rng.below(4) as usize];
    let added: Vec<u32> = (now..count).map(|_| rng.below(mdts) as u32).collect();
    let wish = DirStripes { count, added, hash: hash as i32 };
    kernel.about(&root(), &path, |ino| Call::SetDirLayout { ino, wish: wish.clone() }).await?;
    Ok(())
}
