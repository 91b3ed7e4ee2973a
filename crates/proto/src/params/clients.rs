//! What mounts have.

use super::declare::{Values, declare, gauge, histogram, range, setting, text};
use crate::connect::TAG_MAX;

/// As many MiB as have a number of bytes.
const MIB_MAX: u64 = u64::MAX >> 20;

declare! {
    /// A mount.
    OfMount on [Llite] {
        "memory" {
            /// Limits clean file data in memory
            MaxCachedMb = setting("max_cached_mb", "MiB", range(0, MIB_MAX), "256");
            /// Limits file data that is not written yet, over all files; a write beyond it goes to its target at once
            MaxDirtyMb = setting("max_dirty_mb", "MiB", range(1, MIB_MAX), "256");
            /// Limits read-ahead of one file; a quarter of `max_cached_mb` if that is less
            MaxReadAheadMb = setting("max_read_ahead_mb", "MiB", range(0, MIB_MAX), "8");
            /// Limits memory for remembered files and directories with their locks, at 2 KiB each; those that programs use
            /// come on top
            MaxNodesMb = setting("max_nodes_mb", "MiB", range(1, MIB_MAX), "256");
            /// The same limit as a number of files and directories
            MaxNodes = setting("max_nodes", "files", range(16, MIB_MAX), "131072");
            /// Files and directories that are remembered now
            Nodes = gauge("nodes", "files");
        }
        "changes" {
            /// 1: every change is a request of its own; 0 has no effect on a mount that was made with `-o sync_metadata`,
            /// `sync` or `dirsync`
            SyncMetadata = setting("sync_metadata", "", range(0, 1), "0");
            /// Fails a rename to another directory with `EBUSY`, with nothing done, once it has waited so long for a metadata
            /// target that its first one cannot reach: the kernel holds up all such renames of the mount meanwhile. 0: never
            RenameWaitMax = setting("rename_wait_max", "seconds", range(0, 86_400), "30");
        }
        "mount" {
            /// Kind of file system
            Fstype = text("fstype");
            /// Identity of the client
            Uuid = text("uuid");
            /// 1: mounted with `ro`
            ReadOnly = gauge("read_only", "0, 1").usually("0");
            /// What programs did (`read_bytes`, `write_bytes`, `open`, `close`, `seek`, `getattr`, …), `write_back_failures`
            /// (failed attempts to write data back, which are repeated) and `write_back_lost` (bytes given up); writing any
            /// value resets it
            Stats = histogram("stats", "").with_reset();
            /// Files with data that cannot be written back now, and why
            Unwritable = text("unwritable").unit("files, at most 64").usually("empty");
        }
    }

    /// The program that serves a mount.
    OfMountCommand on [Llite] {
        "mount" {
            /// Mount options that cannot change before it is unmounted
            MountOptions = text("mount_options");
        }
    }

    /// The locks that a mount holds of one target.
    OfMountsLocks on [Namespace] {
        "memory" {
            /// Limits unused locks that are kept of one target; `clear` gives the unused ones back. A change of `max_nodes`
            /// sets it anew
            LruSize = setting("lru_size", "locks, or `clear`", Values::Text, "twice `max_nodes`");
            /// Locks held
            LockCount = gauge("lock_count", "locks");
            /// Locks that nothing uses now
            LockUnusedCount = gauge("lock_unused_count", "locks");
        }
    }

    /// The connection of a mount to a metadata target.
    OfMdc on [Mdc] {
        "changes" {
            /// Limits changes in flight; `ERANGE` if it is more than the server allows, or not less than
            /// `max_rpcs_in_flight` (see the next row). 512 counts as 511
            MaxModRpcsInFlight = setting("max_mod_rpcs_in_flight", "requests", range(1, TAG_MAX as u64), "7");
            /// 1: setting `max_mod_rpcs_in_flight` raises `max_rpcs_in_flight` if need be, instead of being refused
            MaxModRpcsRaise = setting("max_mod_rpcs_raise", "", range(0, 1), "0");
            /// Bounds `max_mod_rpcs_in_flight`, which stays below it; lowering it lowers that, too. Other requests are not
            /// limited by it
            MaxRpcsInFlight = setting("max_rpcs_in_flight", "requests", range(2, TAG_MAX as u64), "8");
            /// Changes that were [answered before they were sent](performance.md#metadata-write-back), the batches they went
            /// in, how many are unanswered (`outstanding`), and how many may be (`credits`)
            MetadataWriteBack = text("metadata_write_back").unit("changes");
            /// How many changes were in flight when another one was sent; writing any value resets it
            RpcStats = histogram("rpc_stats", "requests").with_reset();
        }
    }

    /// The connection of a mount to a target of any kind.
    OfImport on [Mgc, Mdc, Osc] {
        "connections" {
            /// Connection: state, features, addresses, requests, transnos
            Import = text("import");
            /// State of the connection, and the last 16 states with their times in seconds since 1970
            State = text("state");
            /// Requests by kind, with those resent and replayed
            Stats = histogram("stats", "requests");
            /// How long requests take as the server tells it, and the network as pings measure it
            Timeouts = text("timeouts").unit("seconds");
        }
    }

    /// All metadata targets of a mount, all its object targets.
    OfAll on [Lmv, Lov] {
        "connections" {
            /// Metadata targets, object targets
            Numobd = gauge("numobd", "targets");
        }
    }

    /// All metadata targets of a mount, as it chooses among them for new directories.
    OfLmv on [Lmv] {
        "choice" {
            /// Uses metadata targets in turn (round-robin) for directories whose [default](admin.md#defaults-for-new-directories) names none,
            /// while their free inodes differ by at most this much, and by free inodes otherwise; 100: always in turn
            ThresholdRr = setting("qos_threshold_rr", "percent", Values::Percent, "5");
            /// Weight of free inodes against an even spread when directories are placed by free inodes
            PrioFree = setting("qos_prio_free", "percent", Values::Percent, "90");
            /// Asks a metadata target how much it has free if the last answer is older than this
            Maxage = setting("qos_maxage", "seconds", range(1, 3600), "10");
        }
    }

    /// How the mounts of a process find the job of a program.
    OfJobs on [Process] {
        "process" {
            /// Mounts: how the [job](#statistics-of-jobs) of a process is found: `disable`, `procname_uid`, `nodelocal`, or an
            /// environment variable such as `SLURM_JOB_ID`
            JobidVar = setting("jobid_var", "name", Values::Text, "`disable`");
            /// Mounts: name of jobs with `nodelocal`, and of processes that lack the variable
            JobidName = setting("jobid_name", "pattern", Values::Text, "`%e.%u`");
        }
    }
}
