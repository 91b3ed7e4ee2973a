//! Names of operations in statistics, Lustre's where Lustre has the operation.

use stdx::tally::Sampled;

macro_rules! operations {
    ($($name:ident = $text:literal, $unit:literal;)*) => {
        /// An operation counted in the statistics of targets and mounts, with its unit.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[allow(missing_docs)]
        #[repr(u8)]
        pub enum Operation { $($name,)* }

        impl Sampled for Operation {
            fn name(self) -> &'static str {
                match self { $(Operation::$name => $text,)* }
            }

            fn unit(self) -> &'static str {
                match self { $(Operation::$name => $unit,)* }
            }
        }
    };
}

operations! {
    ReadBytes = "read_bytes", "bytes";
    WriteBytes = "write_bytes", "bytes";
    Read = "read", "usecs";
    Write = "write", "usecs";
    Open = "open", "usecs";
    Close = "close", "usecs";
    Seek = "seek", "usecs";
    Readdir = "readdir", "usecs";
    Getattr = "getattr", "usecs";
    Setattr = "setattr", "usecs";
    Truncate = "truncate", "usecs";
    Fallocate = "fallocate", "usecs";
    Punch = "punch", "usecs";
    Flock = "flock", "usecs";
    Fsync = "fsync", "usecs";
    Sync = "sync", "usecs";
    Mknod = "mknod", "usecs";
    Link = "link", "usecs";
    Unlink = "unlink", "usecs";
    Symlink = "symlink", "usecs";
    Mkdir = "mkdir", "usecs";
    Rmdir = "rmdir", "usecs";
    Rename = "rename", "usecs";
    Permission = "inode_permission", "usecs";
    Setxattr = "setxattr", "usecs";
    Getxattr = "getxattr", "usecs";
    Listxattr = "listxattr", "usecs";
    Removexattr = "removexattr", "usecs";
    Statfs = "statfs", "usecs";
    Destroy = "destroy", "usecs";
    Batch = "batch", "usecs";
    Enqueue = "ldlm_enqueue", "usecs";
    LockReplay = "ldlm_replay", "usecs";
}
