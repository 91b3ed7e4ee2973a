//! The source and the options of a mount.

use std::time::Duration;

use anyhow::{Context, bail};
use client::api::{AccessTimes, Options};
use fuse::MountSettings;
use proto::Nid;
use proto::connect::TAG_MAX;

use crate::commands::serve;

/// A source and options.
pub(crate) struct MountRequest {
    pub(super) options: Options,
    pub(super) settings: MountSettings,
    /// Whether to change an existing mount.
    pub(super) remount: bool,
    /// The options that are fixed at mount time, as they were written.
    pub(super) settled: Vec<String>,
}

impl MountRequest {
    /// Parses a source and mount options.
    pub(crate) fn parse(source: &str, words: &[String], sloppy: bool) -> anyhow::Result<MountRequest> {
        let Source { mgs, fsname, subtree } = parse_source(source)?;
        let root = rustix::process::geteuid().is_root();
        let mut settings = MountSettings {
            source: source.to_owned(),
            subtree,
            allow_other: root,
            read_only: false,
            kernel_options: Vec::new(),
            threads: 0,
            uring: true,
        };
        let mut options = Options {
            uuid: host::clock::uuid(),
            seed: host::clock::seed(),
            instance: host::clock::instance(),
            fsname,
            mgs,
            description: String::new(),
            read_only: false,
            max_dirty: 256 << 20,
            max_cached: 256 << 20,
            max_read_ahead: 8 << 20,
            rename_wait: Duration::from_secs(30),
            max_nodes: client::api::MAX_NODES_DEFAULT,
            soft: None,
            timeouts: client::api::Timeouts::default(),
            always_ping: false,
            access_times: AccessTimes::default(),
            directory_access_times: AccessTimes::default(),
            write_back_after: Duration::from_secs(2),
            max_rpcs_in_flight: 8,
            max_mod_rpcs_in_flight: 7,
            sync_metadata: false,
            faults: stdx::Faults::none(),
        };
        let mut remount = false;
        let mut settled = Vec::new();
        for word in words.iter().filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let number = || {
                value
                    .parse::<u64>()
                    .ok()
                    .filter(|n| *n > 0)
                    .with_context(|| format!("mount option '{word}' needs a number"))
            };
            let between = |number: u64, low: u16, high: u16| {
                u16::try_from(number)
                    .ok()
                    .filter(|n| (low..=high).contains(n))
                    .with_context(|| format!("mount option '{word}' needs a number from {low} to {high}"))
            };
            if is_settled(key) {
                settled.push(word.clone());
            }
            match key {
                "ro" => (settings.read_only, options.read_only) = (true, true),
                "rw" => (settings.read_only, options.read_only) = (false, false),
                "remount" => remount = true,
                // The kernel's own options, which mount(8) repeats when it changes a mount.
                "user_id" | "group_id" | "default_permissions" | "blksize" | "max_read" => {}
                "defaults" | "auto" | "noauto" | "nofail" | "_netdev" | "user" | "users" | "nouser" | "owner"
                | "group" => {}
                "async" | "silent" | "loud" | "nolazytime" => {}
                // Options of Lustre's that always apply: file locks count on all clients, users have extended attributes
                // and access lists, `statfs` does not wait for unreachable targets, and a mount tries until its servers
                // answer.
                "flock" | "localflock" | "noflock" | "user_xattr" | "acl" | "lazystatfs" | "user_fid2path"
                | "retry" => {}
                "nouser_xattr" | "noacl" | "nolazystatfs" | "nouser_fid2path" | "32bitapi" => {
                    bail!("mount option '{key}' cannot be honoured: {}; leave it away", why_not(key))
                }
                "soft" => options.soft = Some(Duration::from_secs(if value.is_empty() { 30 } else { number()? })),
                "allow_other" => settings.allow_other = true,
                "no_allow_other" => settings.allow_other = false,
                "max_dirty_mb" => options.max_dirty = number()? << 20,
                "max_cached_mb" => options.max_cached = number()? << 20,
                "max_read_ahead_mb" => options.max_read_ahead = number()? << 20,
                "max_nodes_mb" => {
                    let bytes = usize::try_from(number()?.max(1) << 20)?;
                    options.max_nodes = bytes / client::api::NODE_BYTES;
                }
                "max_rpcs_in_flight" => options.max_rpcs_in_flight = between(number()?, 2, TAG_MAX)?,
                "max_mod_rpcs_in_flight" => {
                    options.max_mod_rpcs_in_flight = between(number()?, 1, TAG_MAX - 1)?;
                    options.max_rpcs_in_flight = options.max_rpcs_in_flight.max(options.max_mod_rpcs_in_flight + 1);
                }
                "sync_metadata" => options.sync_metadata = true,
                "metadata_write_back" => options.sync_metadata = false,
                "always_ping" => options.always_ping = true,
                "allow_faults" => options.faults = serve::allowed_faults(true),
                "uring" => settings.uring = true,
                "nouring" => settings.uring = false,
                "threads" => settings.threads = number()? as usize,
                "noatime" | "strictatime" | "atime" | "relatime" | "norelatime" | "nostrictatime" => {
                    let times = match key {
                        "noatime" => AccessTimes::Never,
                        "strictatime" => AccessTimes::Strict,
                        _ => AccessTimes::Relative,
                    };
                    (options.access_times, options.directory_access_times) = (times, times);
                    settings.kernel_options.push(key.to_owned());
                }
                "nodiratime" | "diratime" => {
                    let never = key == "nodiratime";
                    options.directory_access_times = if never { AccessTimes::Never } else { options.access_times };
                    settings.kernel_options.push(key.to_owned());
                }
                "nosuid" | "suid" | "nodev" | "dev" | "noexec" | "exec" => {
                    settings.kernel_options.push(key.to_owned());
                }
                "sync" | "dirsync" => {
                    options.sync_metadata = true;
                    settings.kernel_options.push(key.to_owned());
                }
                _ if key.starts_with("x-") || key.starts_with("comment") || sloppy => {}
                _ => bail!("mount option '{key}' is unknown; see 'adamant mount --help'"),
            }
        }
        Ok(MountRequest { options, settings, remount, settled })
    }

    /// Replaces the table of faults, with that of the process if it also serves.
    pub(crate) fn with_faults(mut self, faults: stdx::Faults) -> MountRequest {
        self.options.faults = faults;
        self
    }
}

/// Whether an option is fixed at mount time, because the client or its session with the kernel depends on it.
fn is_settled(key: &str) -> bool {
    let all = [
        "soft",
        "max_dirty_mb",
        "max_cached_mb",
        "max_read_ahead_mb",
        "max_nodes_mb",
        "max_rpcs_in_flight",
        "max_mod_rpcs_in_flight",
        "sync_metadata",
        "metadata_write_back",
        "always_ping",
        "allow_faults",
        "no_allow_other",
        "uring",
        "nouring",
        "threads",
        "sync",
        "dirsync",
    ];
    all.contains(&key)
}

/// Why an option of Lustre's is not supported.
fn why_not(key: &str) -> &'static str {
    match key {
        "nouser_xattr" => "users always have extended attributes",
        "noacl" => "access lists always count",
        "nolazystatfs" => "'statfs' never waits for targets that are away",
        "nouser_fid2path" => "users may ask for the paths of what they may look up",
        _ => "inode numbers have 64 bits",
    }
}

/// The source of a mount.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Source {
    /// The addresses of the MGS.
    pub mgs: Vec<Nid>,
    /// The file system.
    pub fsname: String,
    /// The directory in it, as a list of names; empty for the root.
    pub subtree: Vec<String>,
}

/// Splits `NID[:NID...]:/FSNAME[/DIRECTORY]` into its parts.
pub(crate) fn parse_source(source: &str) -> anyhow::Result<Source> {
    let bad = || {
        anyhow::anyhow!(
            "'{source}' is not a file system; expected NID[:NID...]:/FSNAME[/DIRECTORY], for example 127.0.0.1:7988:/adamant"
        )
    };
    let (nids, path) = source.rsplit_once(":/").ok_or_else(bad)?;
    let (fsname, directory) = path.split_once('/').unwrap_or((path, ""));
    let subtree: Vec<String> = directory.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    if subtree.iter().any(|name| name == "." || name == "..") {
        bail!("'{source}' has '.' or '..' in its directory; name it from the file system's root on");
    }
    if !proto::TargetName::fsname_is_valid(fsname) {
        return Err(bad());
    }
    let mut list = Vec::new();
    let mut rest = nids;
    while !rest.is_empty() {
        // A NID is host:port or unix:path, so it ends at its second colon, not counting those within brackets.
        let from = if rest.starts_with('[') { rest.find(']').ok_or_else(bad)? } else { 0 };
        let first = from + rest[from..].find(':').ok_or_else(bad)?;
        let end = rest[first + 1..].find(':').map_or(rest.len(), |at| first + 1 + at);
        list.push(rest[..end].parse::<Nid>()?);
        rest = rest.get(end + 1..).unwrap_or("");
    }
    if list.is_empty() {
        return Err(bad());
    }
    Ok(Source { mgs: list, fsname: fsname.to_owned(), subtree })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_read() {
        for (source, nids, name, subtree) in [
            ("127.0.0.1:7988:/adamant", vec!["127.0.0.1:7988"], "adamant", vec![]),
            ("a:1:b:2:/fs/", vec!["a:1", "b:2"], "fs", vec![]),
            ("unix:/run/x/mgt:/fs", vec!["unix:/run/x/mgt"], "fs", vec![]),
            ("unix:/run/x/mgt:/fs/home/one", vec!["unix:/run/x/mgt"], "fs", vec!["home", "one"]),
            ("[::1]:7988:c:3:/fs//a/", vec!["[::1]:7988", "c:3"], "fs", vec!["a"]),
        ] {
            let parsed = parse_source(source).unwrap();
            assert_eq!(parsed.mgs.iter().map(ToString::to_string).collect::<Vec<_>>(), nids);
            assert_eq!(parsed.fsname, name);
            assert_eq!(parsed.subtree, subtree);
        }
        for bad in ["", "adamant", "host:/fs", ":/fs", "1.2.3.4:7988:/", "1.2.3.4:7988:/fs/../x", "a:1:/bad-name!"] {
            assert!(parse_source(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn unknown_mount_options_are_named() {
        let error = MountRequest::parse("a:1:/fs", &["bogus".to_owned()], false).err().unwrap();
        assert!(error.to_string().contains("'bogus'"));
        assert!(MountRequest::parse("a:1:/fs", &["bogus".to_owned()], true).is_ok());
        assert!(MountRequest::parse("a:1:/fs", &["ro".to_owned(), "soft=5".to_owned()], false).is_ok());
    }

    #[test]
    fn options_of_lustre_are_known() {
        let line = "_netdev,flock,user_xattr,lazystatfs,user_fid2path,localflock,acl,retry=5,x-systemd.automount";
        assert!(parse(line).settled.is_empty());
        for refused in ["nouser_xattr", "noacl", "nolazystatfs", "32bitapi"] {
            let error = MountRequest::parse("a:1:/fs", &[refused.to_owned()], false).err().unwrap().to_string();
            assert!(error.contains(refused) && error.contains("cannot be honoured"), "{error}");
        }
        assert_eq!(parse("rw,soft=3,noatime,sync_metadata").settled, ["soft=3", "sync_metadata"]);
    }

    #[test]
    fn metadata_is_written_back_unless_something_synchronous_is_wanted() {
        for (line, sync) in [("rw", false), ("sync_metadata", true), ("sync_metadata,metadata_write_back", false)] {
            assert_eq!(parse(line).options.sync_metadata, sync, "{line}");
        }
        assert!(parse("sync").options.sync_metadata && parse("dirsync").options.sync_metadata);
    }

    #[test]
    fn access_times_are_as_the_options_say() {
        use AccessTimes::{Never, Relative, Strict};
        for (line, files, directories) in [
            ("rw", Relative, Relative),
            ("noatime", Never, Never),
            ("strictatime", Strict, Strict),
            ("strictatime,nodiratime", Strict, Never),
            ("noatime,relatime", Relative, Relative),
        ] {
            let options = parse(line).options;
            assert_eq!((options.access_times, options.directory_access_times), (files, directories), "{line}");
        }
    }

    fn parse(line: &str) -> MountRequest {
        let words: Vec<String> = line.split(',').map(str::to_owned).collect();
        MountRequest::parse("a:1:/fs", &words, false).unwrap()
    }

    #[test]
    fn the_last_of_ro_and_rw_counts() {
        let changed = parse("rw,relatime,user_id=0,group_id=0,default_permissions,allow_other,remount,ro");
        assert!(changed.remount && changed.settings.read_only && changed.options.read_only);
        let back = parse("ro,remount,rw");
        assert!(back.remount && !back.settings.read_only && !back.options.read_only);
        assert!(!parse("ro").remount);
    }
}
