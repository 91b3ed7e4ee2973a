//! Object targets that the metadata target does not know yet, because its request for the configuration was lost. It refuses them
//! with `EINVAL` although clients may know them; for a program that is the same as a target that takes no new objects (`ENXIO`).

use std::collections::BTreeMap;

use client::api::{Answer, Call};
use proto::{Errno, TargetKind};

use super::World;

/// Calls that ask for an object target by index.
#[derive(Debug, Default)]
pub(super) struct Newcomers(BTreeMap<u64, MigrateCall>);

#[derive(Debug)]
struct MigrateCall {
    index: u32,
    /// The metadata target knew the object target when the call started.
    known: bool,
}

impl World {
    /// Records the start of a call.
    pub(super) fn note_migrate(&mut self, id: u64, call: &Call) {
        if let Call::Migrate { wish, .. } = call
            && let Ok(index) = u32::try_from(wish.want_first)
        {
            let known = self.is_known_ost(index);
            self.newcomers.0.insert(id, MigrateCall { index, known });
        }
    }

    /// The result that the program gets when a call ends.
    pub(super) fn judge_migrate(&mut self, id: u64, result: Result<Answer, Errno>) -> Result<Answer, Errno> {
        match (self.newcomers.0.remove(&id), &result) {
            (Some(wish), Err(Errno::EINVAL)) if !wish.known || !self.is_known_ost(wish.index) => Err(Errno::ENXIO),
            _ => result,
        }
    }

    fn is_known_ost(&self, index: u32) -> bool {
        let mut mdts = self.servers.iter().filter(|server| server.name.kind == TargetKind::Mdt);
        let pattern = format!("osp.*-OST{index:04x}-*.active");
        mdts.all(|mdt| mdt.machine.as_ref().is_none_or(|machine| !machine.get_params(&pattern).is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use proto::msg::Layout;

    use super::*;
    use crate::plan::Plan;
    use crate::trace::Keep;

    #[test]
    fn only_unknown_targets_may_be_refused() {
        let mut world = World::new(Plan::still(0), Keep::Nothing);
        (0..world.servers.len()).for_each(|server| world.start_server(server, Duration::ZERO));
        world.run(world.now + Duration::from_secs(60), World::all_serve).unwrap();
        world.run(world.now + Duration::from_secs(60), |world| world.is_known_ost(0)).unwrap();
        for (first, errno, expected) in [
            (0, Errno::EINVAL, Errno::EINVAL),
            (77, Errno::EINVAL, Errno::ENXIO),
            (77, Errno::EIO, Errno::EIO),
            (-1, Errno::EINVAL, Errno::EINVAL),
        ] {
            let wish = Layout { want_first: first, ..Layout::default() };
            world.note_migrate(1, &Call::Migrate { ino: 1, wish });
            assert_eq!(world.judge_migrate(1, Err(errno)).unwrap_err(), expected, "{first}");
        }
        world.sched.clear();
    }
}
