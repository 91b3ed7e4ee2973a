//! Verbs and parameters of Lustre's `lctl` that this version lacks.

use proto::params::{self, Named};
use stdx::wildcard;

/// Verbs; one that ends in `*` stands for all verbs with that prefix.
pub(super) const VERBS: &[&str] = &[
    "=",
    "add_*",
    "apply_yaml",
    "attach",
    "barrier_*",
    "cfg_device",
    "changelog_*",
    "cleanup",
    "clear",
    "clear_conf",
    "conn_list",
    "create",
    "create_route",
    "debug",
    "debug_*",
    "del_*",
    "destroy",
    "detach",
    "device",
    "df",
    "discover",
    "dk",
    "dump",
    "erase_lcfg",
    "fail",
    "filter",
    "fork_lcfg",
    "getattr",
    "getobjversion",
    "interface_list",
    "lcfg_*",
    "lfsck_*",
    "llog_*",
    "local_cancel_files",
    "lookup",
    "lov_getconfig",
    "modules",
    "net",
    "network",
    "nodemap_*",
    "notransno",
    "opt_*",
    "pcc_*",
    "peer_list",
    "print_interfaces",
    "probe",
    "readonly",
    "recover",
    "replace_nids",
    "route_list",
    "set_*",
    "set_route",
    "set_timeout",
    "setattr",
    "setup",
    "show",
    "show_route",
    "snapshot_*",
    "which_nid",
    "writeconf",
];

/// Kinds of devices that this version lacks altogether.
const KINDS: &[&str] = &["lqe", "lwp", "mdd", "mds", "nodemap", "nrs", "ost", "qmt", "qsd", "sec", "sptlrpc"];

/// Names of parameters, separated by blanks, by the kind of device; without a kind: parameters of a process.
const NAMES: &[(&str, &str)] = &[
    (
        "",
        "debug debug_mb debug_path devices dump_on_eviction dump_on_timeout dynamic_nids enable_health_write \
         jobid_this_session lbug_on_eviction max_dirty_mb memused memused_max nis \
         panic_on_lbug peers pinger stats subsystem_debug",
    ),
    (
        "ldlm",
        "cancel_unused_locks_before_replay contended_locks contention_seconds ctime_age_limit dump_granted_max \
         dump_namespaces early_lock_cancel grant_plan grant_rate grant_speed lock_granted_count lock_limit_mb \
         lru_cancel_batch lru_max_age max_nolock_bytes max_parallel_ast pool recalc_period state stats",
    ),
    (
        "llite",
        "blocksize checksum_pages checksums client_type default_easize enable_statahead_fname extents_stats \
         extents_stats_per_process fast_read file_heat filesfree filestotal foreign_symlink_enable \
         heat_decay_percentage inode_cache kbytesavail kbytesfree kbytestotal lazystatfs lockahead max_cached_mb \
         max_easize max_read_ahead_async_active max_read_ahead_per_file_mb max_read_ahead_whole_mb nosquash_nids \
         offset_stats opencache_max_ms opencache_threshold_count opencache_threshold_ms parallel_dio pcc pio \
         read_ahead_stats root_squash sbi_flags site statahead_agl statahead_max statahead_running_max \
         statahead_stats statfs_max_age stats_track_gid stats_track_pid stats_track_ppid tiny_write unstable_stats \
         xattr_cache",
    ),
    ("lmv", "activeobd desc_uuid qos_exclude_prefixes target_obd target_obds_status"),
    (
        "lov",
        "activeobd common_name desc_uuid filesfree filestotal kbytesavail kbytesfree kbytestotal qos_maxage \
         qos_prio_free qos_threshold_rr stripecount stripeoffset stripesize stripetype target_obd",
    ),
    (
        "lod",
        "desc_uuid dist_txn_check_space dom_stripesize dom_stripesize_max_kb lmv_failout max_stripecount \
         max_stripes_per_mdt mdt_hash mdt_stripecount qos_maxage stripecount stripeoffset stripesize stripetype target_obd",
    ),
    (
        "mdc",
        "active checksum_dump checksum_type checksums dom_min_repsize filesfree filestotal grant_shrink \
         grant_shrink_interval idle_connect idle_timeout kbytesavail kbytesfree kbytestotal max_dirty_mb \
         max_pages_per_rpc md_stats mdc_cached_mb mdc_dom_min_repsize mdc_stats mds_conn_uuid mds_server_uuid ping \
         pinger_recov short_io_bytes srpc_contexts srpc_info unstable_stats",
    ),
    (
        "mdt",
        "async_commit_count blocksize brw_stats checksum_t10pi_enforce dir_restripe_nsonly dir_split_count \
         dir_split_delta dom_lock dom_read_open enable_chprojid_gid enable_dir_auto_split enable_dir_migration \
         enable_pin_gid enable_remote_subdir_mount \
         enable_rename_trylock enable_resource_id_check evict_tgt_nids export filesfree \
         filestotal fstype hash hsm hsm_control identity_acquire_expire identity_expire identity_flush \
         identity_info identity_int_expire identity_upcall job_xattr kbytesavail \
         kbytesfree kbytestotal ldlm_stats local_recovery migrate_hsm_allowed no_create nosquash_nids readonly \
         rename_stats root_squash sec_level site_stats sync_count sync_lock_cancel tot_dirty tot_granted \
         tot_pending",
    ),
    ("mgc", "conn_uuid ir_state mgs_server_uuid ping pinger_recov rpc_stats"),
    ("mgs", "export fstype hash ldlm_stats mntdev"),
    (
        "obdfilter",
        "access_log_mask access_log_size atime_diff blocksize brw_size checksum_dump checksum_t10pi_enforce \
         checksum_type client_cache_count client_cache_seconds enable_resource_id_check export fmd_max_age \
         fmd_max_num fstype grant_check_threshold grant_compat_disable grant_precreate hash \
         last_id ldlm_stats lfsck_layout lfsck_speed_limit lfsck_verify_pfid local_recovery nid_stats \
         no_create no_precreate precreate_batch read_cache_enable readcache_max_filesize seqs_allocated \
         soft_sync_limit sync_journal sync_on_lock_cancel tot_dirty tot_pending writethrough_cache_enable",
    ),
    (
        "osc",
        "active blocksize checksum_dump checksum_type checksums contention_seconds cur_dirty_bytes \
         cur_dirty_grant_bytes cur_grant_bytes cur_lost_grant_bytes destroys_in_flight filesfree filestotal \
         grant_shrink grant_shrink_interval idle_connect idle_timeout kbytesavail kbytesfree kbytestotal \
         lockless_truncate max_dirty_mb max_pages_per_rpc max_rpcs_in_flight osc_cached_mb osc_stats \
         osc_unevict_cached_mb ost_conn_uuid ost_server_uuid ping pinger_recov resend_count rpc_stats \
         short_io_bytes srpc_contexts srpc_info unstable_stats",
    ),
    (
        "osd-*",
        "auto_scrub blocksize brw_stats enable_projid_xattr extent_bytes_allocation force_sync fstype \
         full_scrub_ratio full_scrub_threshold_rate index_backup lma_self_repair mntdev nonrotational oi_scrub pdo \
         quota_slave quota_slave_dt quota_slave_md read_cache_enable readcache_max_filesize readcache_max_io_mb \
         writethrough_cache_enable writethrough_max_io_mb",
    ),
    (
        "osp",
        "blocksize create_count destroys_in_flight filesfree filestotal lfsck_max_rpcs_in_flight max_pages_per_rpc \
         max_rpcs_in_flight max_rpcs_in_progress max_sync_changes maxage mdt_conn_uuid old_sync_processed \
         ost_conn_uuid ping pinger_recov prealloc_last_id prealloc_last_seq prealloc_next_id prealloc_next_seq \
         prealloc_reserved prealloc_status reserved_mb_high reserved_mb_low state stats sync_changes sync_in_flight \
         sync_in_progress timeouts uuid",
    ),
];

/// Whether Lustre has parameters of such a name, and this version has none.
pub(super) fn has_param(pattern: &str) -> bool {
    if params::named(pattern) != Named::Nothing {
        return false;
    }
    let parts: Vec<&str> = pattern.split(['.', '/']).collect();
    let (kind, name) = match *parts.as_slice() {
        [] => return false,
        [name] => ("", name),
        [kind, .., name] => (kind, name),
    };
    if KINDS.contains(&kind) {
        return true;
    }
    let of_kind = NAMES.iter().filter(|(known, _)| wildcard::matches(known, kind));
    of_kind.flat_map(|(_, names)| names.split_whitespace()).any(|known| known == name)
}

#[cfg(test)]
mod tests {
    use super::has_param;

    #[test]
    fn what_lustre_has_is_told_from_a_slip() {
        for known in
            ["jobid_this_session", "mdd.demo-MDT0000.changelog_size", "nodemap.active", "osc.*.max_pages_per_rpc"]
        {
            assert!(has_param(known), "{known}");
        }
        for known in ["osd-ldiskfs.demo-MDT0000.oi_scrub", "mdt.*.exports.*.ldlm_stats", "mdt/*/hsm_control"] {
            assert!(has_param(known), "{known}");
        }
        for slip in [
            "job_var",
            "mdt.demo-MDT0000.dom_stripsize",
            "mdx.demo.x",
            "",
            "osc.demo",
            "oi_scrub",
            "mdt.nothing.kbytesfree",
        ] {
            assert!(!has_param(slip), "{slip}");
        }
    }
}
