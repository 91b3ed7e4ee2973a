//! What canaries spoil on its way: calls of programs, records on their way to disk.

use client::api as capi;
use schema::Record as _;
use store::Engine as _;

use super::{Canary, World};

impl World {
    /// A canary: now and then the mode of an inode stays on the disk what it was.
    pub(super) fn forget_mode(&mut self, server: usize, key: &store::Key, value: &mut Option<store::Value>) {
        let formats = schema::formats();
        let decode = |sealed: &store::Value| schema::Inode::decode_record(&formats.open(key, sealed).ok()?).ok();
        if schema::Inode::parse_key(key).is_some()
            && let Some(sealed) = value
            && let Ok(Some(old)) = self.servers[server].engine.get(key)
            && let (Some(mut inode), Some(old)) = (decode(sealed), decode(&old))
            && self.rng.chance(1, 2)
        {
            inode.mode = old.mode;
            *sealed = formats.seal(key, &inode.encode_record());
        }
    }

    /// Makes another call of some calls, if that is what the canary does. True: it is not made at all.
    pub(super) fn spoils(&mut self, cred: &mut proto::msg::Cred, call: &mut capi::Call) -> bool {
        use capi::Call;
        let of_it = match (self.canary, &*call) {
            (Canary::ForgetAttributes, Call::Setxattr { .. } | Call::Removexattr { .. })
            | (Canary::ForgetRanges, Call::Fallocate { .. })
            | (Canary::PlainFiles, Call::Mknod { .. }) => true,
            (Canary::ForgetOwners, Call::Setattr { set, .. }) => set.uid.is_some(),
            (Canary::ForgetTimes, Call::Setattr { set, .. }) => set.mtime.is_some(),
            (Canary::AllMay, Call::Open { .. } | Call::Setattr { .. } | Call::Unlink { .. } | Call::Rename { .. }) => {
                cred.uid != 0
            }
            _ => false,
        };
        if !of_it || !self.rng.chance(1, 4) {
            return false;
        }
        match call {
            Call::Setxattr { .. } | Call::Removexattr { .. } | Call::Fallocate { .. } => return true,
            Call::Mknod { mode, rdev, .. } => (*mode, *rdev) = (crate::model::S_IFREG | *mode & 0o7777, 0),
            Call::Setattr { set, .. } if self.canary == Canary::ForgetOwners => set.uid = None,
            Call::Setattr { set, .. } if self.canary == Canary::ForgetTimes => set.mtime = None,
            _ => *cred = proto::msg::Cred::default(),
        }
        false
    }
}
