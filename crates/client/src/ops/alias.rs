//! Aliases: node numbers of their own for directories that a program reaches by their FIDs (`.lustre/fid`).
//!
//! The kernel has one place for each directory. If a lookup finds a directory that the kernel knows elsewhere, it moves
//! its entry, and programs that work there are suddenly in `.lustre/fid`: `..` and `getcwd` say so. So the kernel gets
//! another number for such a directory, and for all directories below it:
//!
//! ```text
//! /a/b                        node of [F], names and attributes are cached under locks
//! /.lustre/fid/[F]            alias of [F]: nothing is cached, each use is a call
//! /.lustre/fid/[F]/directory  alias, too
//! /.lustre/fid/[F]/file       its only node: the kernel lets a file have many names
//! ```
//!
//! The machine translates at its border: the number of an alias becomes that of the directory before a call begins
//! ([`resolve`]), and answers of such a call hand out aliases ([`referenced`]). The client keeps no state for an alias and
//! counts no references to it. The kernel does not relate what happens in an alias to the directory's own node, so it is
//! told which names have changed ([`ended`]), and such changes are not made in the caches.

use bytes::Bytes;
use smallvec::{SmallVec, smallvec};

use super::disown;
use crate::api::{ALIAS, Answer, Call, Effect, Invalidation, Stat};
use crate::coherence::world::World;
use rules::mode::{S_IFDIR, S_IFMT};

/// Replaces aliases by their directories. Returns whether there were any.
pub(crate) fn resolve(call: &mut Call) -> bool {
    let mut found = false;
    for node in nodes(call) {
        found |= *node & ALIAS != 0;
        *node &= !ALIAS;
    }
    found
}

/// The nodes that a call names.
fn nodes(call: &mut Call) -> SmallVec<[&mut u64; 2]> {
    match call {
        Call::Lookup { parent, .. }
        | Call::Mknod { parent, .. }
        | Call::Mkdir { parent, .. }
        | Call::MkdirOn { parent, .. }
        | Call::RemoveEntry { parent, .. }
        | Call::Symlink { parent, .. }
        | Call::Unlink { parent, .. }
        | Call::Rmdir { parent, .. }
        | Call::Create { parent, .. } => smallvec![parent],
        Call::Rename { parent, new_parent, .. } => smallvec![parent, new_parent],
        Call::Link { ino, new_parent, .. } => smallvec![ino, new_parent],
        Call::Forget { ino, .. }
        | Call::Getattr { ino, .. }
        | Call::RootAttr { ino }
        | Call::Setattr { ino, .. }
        | Call::Readlink { ino }
        | Call::Access { ino, .. }
        | Call::Open { ino, .. }
        | Call::Write { ino, .. }
        | Call::Opendir { ino }
        | Call::Statfs { ino }
        | Call::Setxattr { ino, .. }
        | Call::Getxattr { ino, .. }
        | Call::Listxattr { ino }
        | Call::Removexattr { ino, .. }
        | Call::PathToFid { ino }
        | Call::MdtIndex { ino }
        | Call::GetDirLayout { ino }
        | Call::GetDirDefault { ino }
        | Call::SetDirDefault { ino, .. }
        | Call::SetDirLayout { ino, .. }
        | Call::GetLayout { ino }
        | Call::SetLayout { ino, .. }
        | Call::Migrate { ino, .. } => smallvec![ino],
        Call::Flush { .. }
        | Call::Release { .. }
        | Call::Read { .. }
        | Call::Fsync { .. }
        | Call::Syncfs
        | Call::Fallocate { .. }
        | Call::Lseek { .. }
        | Call::Readdir { .. }
        | Call::Releasedir { .. }
        | Call::Fsyncdir { .. }
        | Call::Getlk { .. }
        | Call::Setlk { .. }
        | Call::FidToPath { .. }
        | Call::TargetSpace
        | Call::Pools
        | Call::PoolMembers { .. } => SmallVec::new(),
    }
}

/// Counts a reference of the kernel to the answer's node, under this name in an alias or in `.lustre/fid`: to that of a file.
/// The kernel has an entry for the name, though it never uses that without asking, and must drop it before it can forget
/// the file.
pub(super) fn referenced(w: &mut World, stat: Stat, parent: u64, name: &Bytes) -> Stat {
    if stat.mode & S_IFMT != S_IFDIR {
        w.nodes.referenced(stat.ino);
        if let Some(node) = w.nodes.get_mut(stat.ino) {
            node.kernel.looked_up();
            if let Some((parent, name)) = node.kernel.name(parent, name) {
                w.effect(Effect::Invalidate(Invalidation::Entry { token: 0, parent, name }));
            }
        }
    }
    shown(stat)
}

/// What the kernel gets to see of an object that was reached in this way: it keeps neither name nor attributes.
fn shown(stat: Stat) -> Stat {
    let alias = if stat.mode & S_IFMT == S_IFDIR { ALIAS } else { 0 };
    Stat { ino: stat.ino | alias, cacheable: false, entry_cacheable: false, ..stat }
}

/// A call through an alias has ended with this answer.
pub(crate) fn ended(w: &mut World, call: &Call, answer: &mut Answer) {
    if let Answer::Attr(stat) = answer {
        stat.cacheable = false;
    }
    for (parent, name) in disown::names(call) {
        w.effect(Effect::Invalidate(Invalidation::Entry { token: 0, parent, name }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Fid;

    #[test]
    fn a_call_through_an_alias_is_one_of_the_directory() {
        let (dir, file) = (Fid::new(Fid::SEQ_FIRST, 1).ino(), Fid::new(Fid::SEQ_LAST, Fid::OID_MAX).ino());
        let name = Bytes::from_static(b"name");
        let mut rename =
            Call::Rename { parent: dir, name: name.clone(), new_parent: dir | ALIAS, new_name: name.clone(), flags: 0 };
        assert!(resolve(&mut rename) && !resolve(&mut rename));
        assert!(matches!(rename, Call::Rename { parent, new_parent, .. } if (parent, new_parent) == (dir, dir)));
        let mut link = Call::Link { ino: file, new_parent: dir, new_name: name };
        assert!(!resolve(&mut link) && !resolve(&mut Call::Syncfs));
    }

    #[test]
    fn only_directories_have_aliases() {
        let stat = |mode| Stat { ino: 7, mode, cacheable: true, entry_cacheable: true, ..Stat::default() };
        let (dir, file) = (shown(stat(0o040_755)), shown(stat(0o100_644)));
        assert_eq!((dir.ino, file.ino), (7 | ALIAS, 7));
        assert_eq!(crate::api::object_number(dir.ino), 7);
        assert!(!dir.cacheable && !dir.entry_cacheable && !file.cacheable && !file.entry_cacheable);
    }
}
