//! What targets have.

use super::declare::{Component, Values, counter, declare, gauge, histogram, order, range, setting, text};
use crate::connect::{DOM_SIZE_MAX, TAG_MAX};

const TAGS: Values = range(1, TAG_MAX as u64);
const SECONDS_OF_A_DAY: Values = range(1, 86_400);
const MIB: Values = range(1, 1 << 20);
const DOM_SIZES: Values = Values::Size { step: 64 << 10, max: DOM_SIZE_MAX as u64 };

declare! {
    /// What targets of every kind have.
    OfTarget on [Mgs, Mdt, Obdfilter] {
        "recovery" {
            /// State of the recovery: who is missing, how far it is, and how much time is left. See
            /// [Recovery](recovery.md#a-server-dies)
            RecoveryStatus = text("recovery_status");
            /// Evicts a client that holds up the recovery and has been silent for this long
            RecoveryTimeSoft = setting("recovery_time_soft", "seconds", SECONDS_OF_A_DAY, "30");
            /// Once the window is this old, a client is evicted after it has held up a step for `recovery_time_soft` in all,
            /// silent or not
            RecoveryTimeHard = setting("recovery_time_hard", "seconds", SECONDS_OF_A_DAY, "180");
            /// Shortens `recovery_time_soft` to this many tenths when the MGS has told the clients to come back (imperative
            /// recovery)
            IrFactor = setting("ir_factor", "tenths", range(1, 10), "5");
            /// Ends the recovery at once and evicts clients that are not through
            AbortRecovery = order("abort_recovery", "any value");
            /// Evicts one client, or every client at an address (with or without the port)
            EvictClient = order("evict_client", "`UUID`, `uuid:UUID`, `nid:ADDRESS`");
            /// Counts evictions since the start
            EvictionCount = counter("eviction_count", "evictions");
            /// Counts how often the target was started
            Instance = counter("instance", "starts");
            /// Counts sessions of clients and of other targets
            NumExports = gauge("num_exports", "sessions");
            /// Lists changes over several metadata targets whose outcome is not known here, each with the targets that it waits for.
            /// Only what needs the same names or objects waits for them
            ChangesInDoubt = text("changes_in_doubt").usually("empty").only(&[Component::Mdt]);
            /// Lists changes that were under way with a metadata target when it was declared lost (`lctl abort_recovery_mdt`), each
            /// with what is known of its objects. They may not fit together: check the file system
            ChangesOfLost = text("changes_of_lost").usually("empty").only(&[Component::Mdt]);
            /// Identity of the target
            Uuid = text("uuid");
        }
        "requests" {
            /// Limits the changes that one client may have in flight; clients learn the limit when they connect. A client can
            /// use 511, and one more for a close. The second name is the old one
            MaxModRpcsInFlight = setting("max_mod_rpcs_in_flight", "requests", TAGS, "8")
                .also("max_mod_rpcs_per_client")
                .only(&[Component::Mdt]);
        }
        "store" {
            /// Memory that clean records take now; `adamant serve -o cache_mb=N` sets the limit
            CacheBytes = gauge("cache_bytes", "bytes");
            /// Memory that changes take which are not on disk yet
            DirtyBytes = gauge("dirty_bytes", "bytes");
            /// Longest time between a change and its commit
            CommitIntervalMs = setting("commit_interval_ms", "ms", range(1, 60_000), "1000");
            /// Holds an answer back until other clients' changes that it depends on are on disk; also if it shows where
            /// another client has just moved a small file's data
            CommitOnSharing = setting("commit_on_sharing", "", Values::Switch, "1");
            /// Last change that is on disk
            LastCommitted = counter("last_committed", "transno");
            /// How long commits took, from the moment when a group of changes was closed until it was on disk, and how many records
            /// were in it; writing any value resets it
            CommitStats = histogram("commit_stats", "").with_reset();
            /// What the background check of the store has found since the start
            StoreDamage = text("store_damage").unit("lines, at most 100").usually("empty");
        }
        "statistics" {
            /// Requests by kind; an object target lists before them what it did: `read_bytes`, `write_bytes`, `read`,
            /// `write`, `punch`, …
            Stats = histogram("stats", "").with_reset();
            /// How long requests take: the worst of `at_history`, the worst ever, and the worst of each quarter of
            /// `at_history`
            Timeouts = text("timeouts").unit("seconds");
            /// Metadata operations by kind (`open`, `close`, `mknod`, `unlink`, `getattr`, `setattr`, …), and `read_bytes`,
            /// `write_bytes` of small files
            MdStats = histogram("md_stats", "").with_reset().only(&[Component::Mdt]);
            /// [Statistics of jobs](#statistics-of-jobs); `clear` or the name of a job forgets all jobs or that one
            JobStats = histogram("job_stats", "").with_reset().only(&[Component::Mdt, Component::Obdfilter]);
            /// Forgets a job that has been idle for this long; 0: never. At most the 4096 jobs that were used last are kept
            JobCleanupInterval = setting("job_cleanup_interval", "seconds", range(0, 86_400), "600")
                .only(&[Component::Mdt, Component::Obdfilter]);
        }
    }

    /// What a target has of each of its clients.
    OfExport on [Mgs, Mdt, Obdfilter] {
        "recovery" {
            /// Identity of one client
            Uuid = text("exports.*.uuid");
            /// Address of one client
            Nid = text("exports.*.nid");
            /// Name of one client: its host and mount point
            Description = text("exports.*.description");
            /// Reply records of one client: how many are kept (`reply_cnt`), the most so far (`reply_max`), and how many were
            /// released because the client confirmed the answers (`by_xid`) or used the slot again (`by_tag`)
            ReplyData = text("exports.*.reply_data").unit("records").only(&[Component::Mdt]);
        }
        "statistics" {
            /// Operations of one client since it connected
            Stats = histogram("exports.*.stats", "").with_reset();
        }
    }

    /// The locks of a target.
    OfLocks on [Namespace] {
        "locks" {
            /// Locks granted
            LockCount = gauge("lock_count", "locks");
            /// Objects that have locks or waiting requests
            ResourceCount = gauge("resource_count", "objects");
            /// Memory for granted locks, 300 bytes each, beyond which clients are asked to keep fewer unused ones
            LockReclaimThresholdMb = setting("lock_reclaim_threshold_mb", "MiB", MIB, "64");
            /// Memory for the locks of all clients beyond which a client that has an equal share is refused more (`ENOLCK`);
            /// at least twice `lock_reclaim_threshold_mb` is in force
            LockLimitMb = setting("lock_limit_mb", "MiB", MIB, "256");
            /// Evicts a client that has not given a lock back for this long after it was called back
            LockTimeout = setting("lock_timeout", "seconds", range(1, 3600), "20");
        }
    }

    /// A metadata target.
    OfMdt on [Mdt] {
        "requests" {
            /// Limits the files that one client may have open at the server; one more is `EMFILE`
            MaxOpenFiles = setting("max_open_files", "files", range(1, 1 << 22), "262144");
            /// Counts the open files of all clients, without those that are
            /// [open at a client alone](protocol.md#requests-per-operation)
            OpenFiles = gauge("open_files", "files");
        }
        "metadata" {
            /// Keeps files up to this size on the metadata target; a multiple of 64 KiB, at most 1 MiB, 0 for none
            DomStripesize = setting("dom_stripesize", "bytes, `k` or `m`", DOM_SIZES, "64k");
            /// Allows directories on other metadata targets than their parents
            EnableRemoteDir = setting("enable_remote_dir", "", Values::Switch, "1");
            /// Allows directories whose names are distributed over several metadata targets
            EnableStripedDir = setting("enable_striped_dir", "", Values::Switch, "1");
            /// Group that may make either of them besides root and callers with `CAP_SYS_ADMIN`; 0 for none, -1 for everybody
            EnableRemoteDirGid = setting("enable_remote_dir_gid", "group", Values::Text, "0");
            /// Allows `lfs setdirstripe` to give a directory [other stripes](admin.md#other-stripes)
            EnableDirRestripe = setting("enable_dir_restripe", "", Values::Switch, "0");
            /// Renames objects to directories on other metadata targets; 0: `EXDEV`, so that mv(1) copies
            EnableRemoteRename = setting("enable_remote_rename", "", Values::Switch, "1");
            /// Nothing: [no lock of the whole file system](limits.md#renames) orders renames of directories
            EnableParallelRenameDir = setting("enable_parallel_rename_dir", "", Values::Switch, "1");
            /// The same for renames of files
            EnableParallelRenameFile = setting("enable_parallel_rename_file", "", Values::Switch, "1");
            /// The same for renames to other directories
            EnableParallelRenameCrossdir = setting("enable_parallel_rename_crossdir", "", Values::Switch, "1");
            /// Removals of objects that are under way
            DestroysInFlight = gauge("destroys_in_flight", "requests");
        }
    }

    /// Space of a target. The medium's device repeats it.
    OfSpace on [Mdt, Obdfilter, Osd] {
        "space" {
            /// Size of the target's disk; of an object target, of the disk with its data files
            Kbytestotal = gauge("kbytestotal", "KiB");
            /// Free space; of a metadata target, with the reserve
            Kbytesfree = gauge("kbytesfree", "KiB");
            /// Free space that is neither reserved nor granted to clients
            Kbytesavail = gauge("kbytesavail", "KiB");
            /// Files or objects that there are, and about as many more as would fit
            Filestotal = gauge("filestotal", "files");
            /// Files or objects that would still fit: a metadata target reckons 700 bytes for one, an object target 16 KiB
            Filesfree = gauge("filesfree", "files");
        }
    }

    /// All object targets, as a metadata target chooses from them.
    OfLod on [Lod] {
        "choice" {
            /// Uses object targets in turn (round-robin) while their free space differs by at most this much, and by free
            /// space otherwise; 100: always in turn
            QosThresholdRr = setting("qos_threshold_rr", "percent", Values::Percent, "17");
            /// Weight of free space against an even spread when files are placed by free space
            QosPrioFree = setting("qos_prio_free", "percent", Values::Percent, "91");
            /// Nothing: [mounts choose](admin.md#defaults-for-new-directories) the metadata targets of new directories, see
            /// `lmv.*.qos_threshold_rr`
            MdtQosThresholdRr = setting("mdt_qos_threshold_rr", "percent", Values::Percent, "5");
            /// The same for `lmv.*.qos_prio_free`
            MdtQosPrioFree = setting("mdt_qos_prio_free", "percent", Values::Percent, "90");
            /// The same for `lmv.*.qos_maxage`
            MdtQosMaxage = setting("mdt_qos_maxage", "seconds", range(1, 3600), "10");
            /// Object targets
            Numobd = gauge("numobd", "targets");
            /// Object targets that new files use now
            Activeobd = gauge("activeobd", "targets");
            /// Their names, one per line
            UsableObd = text("usable_obd").unit("names");
        }
    }

    /// The FID location database, as metadata targets and mounts know it.
    OfFld on [Fld] {
        "metadata" {
            /// Which metadata target each FID sequence belongs to: ranges, with the end excluded, and the index of the target
            Fldb = text("fldb").unit("lines");
        }
    }

    /// FID sequences of a metadata target, or those that a mount uses there.
    OfSeq on [Seq] {
        "metadata" {
            /// Sequences that a metadata target has and no client yet, as ranges with the end excluded; of a mount, the one
            /// that its new objects are named in
            Space = text("space").unit("lines");
        }
    }

    /// The FIDs that a mount gives new objects on a metadata target.
    OfMountsSeq on [Seq] {
        "metadata" {
            /// The last FID that the mount has used for a new object
            Fid = text("fid").unit("FID");
            /// FIDs in a sequence
            Width = gauge("width", "FIDs");
            /// The metadata target that grants the mount its sequences
            Server = text("server").unit("name");
        }
    }

    /// A pool, as metadata targets and mounts know it.
    OfPool on [Lod, Lov] {
        "choice" {
            /// Object targets of a pool (`lctl pool_new`), one per line
            Members = text("pools.*").unit("names");
        }
    }

    /// An object target, as a metadata target uses it.
    OfOsp on [Osp] {
        "choice" {
            /// 0: new files avoid the object target; what is there stays readable and writable (`lctl deactivate`,
            /// `lctl activate`)
            Active = setting("active", "", Values::Switch, "1");
            /// 0: no new objects on the object target. Other values have no effect, because objects are not created in
            /// advance
            MaxCreateCount = setting("max_create_count", "objects", range(0, u32::MAX as u64), "20000");
        }
    }

    /// Space of an object target, as a metadata target knows it.
    OfOspSpace on [Osp] {
        "choice" {
            /// Size of the object target's disk, as it reported last; it is asked every 5 s
            Kbytestotal = gauge("kbytestotal", "KiB");
            /// Free space there
            Kbytesfree = gauge("kbytesfree", "KiB");
            /// Free space there that is neither reserved nor granted
            Kbytesavail = gauge("kbytesavail", "KiB");
        }
    }

    /// A target that a target asks.
    OfConnection on [Osp] {
        "requests" {
            /// Connection of the metadata target to another target: state, features, addresses, requests
            Import = text("import");
        }
    }

    /// Another metadata target, as a metadata target uses it.
    OfPeer on [Osp] {
        "requests" {
            /// Limits the parts of [changes over several metadata targets](recovery.md#changes-over-several-metadata-targets) on
            /// their way to another metadata target, which says at once that it has them; `ERANGE` if it allows fewer. 512 counts
            /// as 511
            MaxModRpcsInFlight = setting("max_mod_rpcs_in_flight", "requests", TAGS, "7");
            /// How many parts were on their way to another metadata target when another one was sent; writing any value resets it
            RpcStats = histogram("rpc_stats", "requests").with_reset();
        }
    }

    /// An object target.
    OfOst on [Obdfilter] {
        "space" {
            /// Space granted to clients for data that they buffer
            TotGranted = gauge("tot_granted", "bytes");
        }
        "choice" {
            /// 1: new files avoid the target, for example while its disks are rebuilt
            Degraded = setting("degraded", "", Values::Switch, "0");
        }
        "statistics" {
            /// Reads and writes by size, up to the next power of two (1 MiB is 256 pages), truncations and removals.
            /// Lustre's other tables are missing: requests are not assembled from pages
            BrwStats = histogram("brw_stats", "pages of 4 KiB").with_reset();
        }
    }

    /// A file system of the management target.
    OfFileSystem on [Mgs] {
        "management" {
            /// Configuration of a file system
            Live = text("live.*");
        }
    }

    /// The management target.
    OfMgs on [Mgs] {
        "management" {
            /// Clients and targets that are notified when the configuration changes
            NumWatchers = gauge("num_watchers", "sessions");
        }
    }

    /// The medium of a target.
    OfMedium on [Osd] {
        "store" {
            /// 1: nothing more reaches the disk; needs [faults allowed](faults.md)
            Readonly = setting("readonly", "", Values::Switch, "0");
        }
    }
}
