//! Register: a target that starts reports its identity and its addresses.
//!
//! A target is identified by its name and by the identity of its store. The first registration (after mkfs or
//! `--writeconf`) adds it to the table. Later ones update its addresses and its instance, so that clients reconnect at once.
//! The first target of a file system, of any kind, also adds the file system. The reply waits until the table is durable. A
//! refusal has a message for the administrator who started the target.
//!
//! A metadata target that was declared lost for good ([`super::lost`]) is admitted again when it registers with the number
//! of its losses: it then has dropped what it had of changes over several targets.
//!
//! The keys for the hashes of names are those of MDT0000, which registers with them. A new metadata target gets them with the
//! reply, so it waits for MDT0000. They are not part of the configuration, which clients get.

use proto::msg::{Layout, NameKeys, RegisterRep, RegisterReq};
use proto::{Errno, Nid, TargetKind, TargetName};
use schema::{FsRec, TargetRec};
use target::{Cx, LogLevel, Reply, Request, Stop};

use crate::Mgt;
use crate::table::{FILE_SYSTEMS_MAX, FileSystem, NID_LEN_MAX, NIDS_MAX, TARGETS_MAX, Table, is_lost};

/// Length of a store's identity, in bytes.
const UUID_LEN: usize = 16;
/// The most starts of a target between two registrations. A false claim of a higher count would make all later starts look like
/// those of an older copy.
const STARTS_BETWEEN: u64 = 1 << 20;
/// The most losses between two registrations. A false claim of a higher count would leave none for the real ones.
const LOSSES_BETWEEN: u32 = 1024;
/// Greatest index of a target.
const INDEX_MAX: u32 = 0xffff;

/// Runs one attempt.
pub fn attempt(mgt: &mut Mgt, cx: &mut Cx<'_>, request: &Request) -> Result<Reply, Stop> {
    let req: RegisterReq = request.decode()?;
    let is_connected = cx.is_connected(&req.target);
    let TargetName { fsname, kind, index } = match check(&mgt.table, &req, is_connected) {
        Ok(name) => name,
        Err((errno, reason)) => {
            let level = if errno == Errno::ESTALE { LogLevel::Error } else { LogLevel::Warn };
            // A start that has ended in the meantime may be refused because a later one has registered: nothing to log.
            // One that waits asks again every second, and logs that itself.
            if errno != Errno::EAGAIN
                && cx.link().is_some_and(|link| mgt.registered.get(&req.target).is_none_or(|latest| link >= *latest))
            {
                cx.log(level, format!("registration of '{}' refused: {reason}", printable(&req.target)));
            }
            let known = known(&mgt.table, &req.target);
            let known_instance = known.filter(|_| errno == Errno::ESTALE).map_or(0, |known| known.instance);
            let losses = known.filter(|_| errno == Errno::EPERM).map_or(0, |known| known.losses);
            let body = RegisterRep { reason, known_instance, losses, ..RegisterRep::default() };
            return Ok(Reply { status: -errno.raw(), ..Reply::new(&body) });
        }
    };
    cx.hold_until_durable();
    mgt.registered.extend(cx.link().map(|link| (req.target.clone(), link)));
    let fs = mgt.table.get(&fsname);
    let version = fs.map_or(0, |fs| fs.record.config_version);
    let known = fs.and_then(|fs| fs.targets.get(&req.target));
    // After `--writeconf` on the MGT, the count continues from the one that the targets know.
    let count = fs.map_or(0, |fs| fs.record.replaced).max(req.replaced);
    let again = known.is_some_and(|known| known.uuid == req.target_uuid);
    let (replaced, count) = match known {
        Some(known) if again => (known.replaced.max(req.replaced), count),
        _ if req.replace && req.replaced == 0 => (count + 1, count + 1),
        _ => (req.replaced, count),
    };
    let is_mdt = kind == TargetKind::Mdt;
    let held = fs.and_then(|fs| fs.record.name_keys.as_ref());
    let keys = req.name_keys.filter(|_| is_mdt && index.0 == 0).or_else(|| held.cloned());
    let name_keys = keys.clone().filter(|_| is_mdt && req.wants_keys);
    let admitted = if is_mdt { req.losses } else { 0 };
    let record = TargetRec {
        uuid: req.target_uuid,
        nids: req.nids,
        instance: req.instance,
        start: req.start,
        replaced,
        losses: known.map_or(0, |known| known.losses).max(admitted),
        admitted,
    };
    if known == Some(&record) && keys.as_ref() == held {
        return Ok(Reply::new(&RegisterRep { config_version: version, replaced, name_keys, ..RegisterRep::default() }));
    }
    if let Some(lost) = known.filter(|_| !again) {
        let line = format!("'{}' takes the place of the target that was at {}", req.target, lost.nids.join(","));
        cx.log(LogLevel::Warn, line);
    }
    if known.is_some_and(is_lost) {
        cx.log(LogLevel::Warn, format!("'{}', which was declared lost, is admitted again", req.target));
    }

    cx.put(&req.target, &record);
    let fs = mgt.table.entry(fsname.clone()).or_default();
    fs.record.replaced = count;
    fs.record.name_keys = keys;
    fs.targets.insert(req.target, record);
    let config_version = changed(mgt, cx, &fsname);
    Ok(Reply::new(&RegisterRep { config_version, replaced, name_keys, ..RegisterRep::default() }))
}

/// What the table has of a target.
pub fn known<'a>(table: &'a Table, target: &str) -> Option<&'a TargetRec> {
    let name: TargetName = target.parse().ok()?;
    table.get(&name.fsname)?.targets.get(target)
}

/// Raises the version of a configuration that was just changed, and has it announced when the change is durable. The last step
/// of an operation.
pub(super) fn changed(mgt: &mut Mgt, cx: &mut Cx<'_>, fsname: &str) -> u64 {
    let fs = mgt.table.entry(fsname.to_owned()).or_default();
    fs.record.config_version += 1;
    let record: FsRec = fs.record.clone();
    cx.put(&fsname.to_owned(), &record);
    let transno = cx.transno();
    mgt.unannounced.push_back((transno, fsname.to_owned()));
    record.config_version
}

/// Checks a registration:
///
/// | found | answer |
/// |---|---|
/// | invalid name, identity or address | `EINVAL` |
/// | the table is full | `ENOSPC` |
/// | name known, another store, which it does not replace or whose target is connected | `EADDRINUSE` |
/// | name known, an object target that replaces a lost one | accepted |
/// | name known, same store, but a lower count of starts, or the same count for another start | `ESTALE`: an older copy |
/// | name known, same store, but an impossibly high count of starts | `EINVAL` |
/// | name known, same store, a metadata target that was declared lost more often than it was admitted | `EPERM` |
/// | a metadata target with an impossibly high count of losses | `EINVAL` |
/// | MDT0000, with keys of a wrong length | `EINVAL` |
/// | name known, same store | accepted |
/// | name unknown, first registration | accepted |
/// | name unknown, but the target has registered before | `ENOENT`: the wrong MGS, or one that was made again |
/// | accepted so far, but a metadata target that wants keys, and there are none | `EAGAIN` |
fn check(table: &Table, req: &RegisterReq, is_connected: bool) -> Result<TargetName, (Errno, String)> {
    let invalid = |reason: String| Err((Errno::EINVAL, reason));
    let name: TargetName = match req.target.parse() {
        Ok(name) => name,
        Err(_) => {
            return invalid(format!(
                "'{}' is not a target name; expected FSNAME-MDTxxxx or FSNAME-OSTxxxx",
                printable(&req.target)
            ));
        }
    };
    if name.kind == TargetKind::Mgt || name.index.0 > INDEX_MAX || name.to_string() != req.target {
        return invalid(format!("a target named '{}' cannot be registered", printable(&req.target)));
    }
    if req.replace && name.kind != TargetKind::Ost {
        return invalid(format!("'{name}' cannot be replaced, only object targets can: put a copy of its store back"));
    }
    if req.target_uuid.len() != UUID_LEN {
        return invalid(format!("the store of '{name}' has no identity; make the target again with 'adamant mkfs'"));
    }
    if req.nids.is_empty() || req.nids.len() > NIDS_MAX {
        return invalid(format!("'{name}' listens on {} addresses; 1 to {NIDS_MAX} are allowed", req.nids.len()));
    }
    if let Some(nid) = req.nids.iter().find(|nid| nid.len() > NID_LEN_MAX || nid.parse::<Nid>().is_err()) {
        return invalid(format!("'{}' is not an address; expected HOST:PORT or unix:PATH", printable(nid)));
    }
    let is_mdt = name.kind == TargetKind::Mdt;
    if let Some(keys) = req.name_keys.as_ref().filter(|keys| is_mdt && name.index.0 == 0 && !keys.are_valid()) {
        return invalid(format!(
            "the keys of names of '{name}' have {} and {} bytes; 0 or {len} and {len} are allowed",
            keys.first.len(),
            keys.second.len(),
            len = NameKeys::LEN
        ));
    }
    let none = FileSystem::default();
    let fs = table.get(&name.fsname).unwrap_or(&none);
    let name = match fs.targets.get(&req.target) {
        Some(known) if known.uuid == req.target_uuid && is_older(known, req) => Err((
            Errno::ESTALE,
            format!(
                "the store of '{name}' is an older copy: it counts {} starts, and start {} was registered before; put the newest copy back, or start the target once with '-o accept_old_store' to give up what came after the copy",
                req.instance, known.instance
            ),
        )),
        Some(known) if known.uuid == req.target_uuid && req.instance - known.instance > STARTS_BETWEEN => {
            invalid(format!(
                "'{name}' counts {} starts, and {} when it registered last: more than {STARTS_BETWEEN} between the two cannot be; if its \
             store is right, make the configuration anew with 'adamant tune --writeconf' on all targets, the MGT too",
                req.instance, known.instance
            ))
        }
        Some(known) if known.uuid == req.target_uuid && is_mdt && req.losses < known.losses => Err((
            Errno::EPERM,
            format!(
                "'{name}' was declared lost with 'lctl abort_recovery_mdt', and the other metadata targets settled without it the \
                 changes over several targets that were under way; to admit it again, start it once with '-o abort_recov_mdt', \
                 and check the file system with lfsck"
            ),
        )),
        known if is_mdt && req.losses.saturating_sub(known.map_or(0, |known| known.losses)) > LOSSES_BETWEEN => {
            let known = known.map_or(0, |known| known.losses);
            invalid(format!(
                "'{name}' counts {} losses, and this MGS {known}: more than {LOSSES_BETWEEN} that it does not know cannot be",
                req.losses
            ))
        }
        Some(known) if known.uuid == req.target_uuid => Ok(name),
        Some(known) if !req.replace || is_connected => {
            let (index, fsname, nids) = (name.index.0, &name.fsname, known.nids.join(","));
            let what_to_do = match (name.kind, req.replace) {
                (_, true) => "which is running: stop that one first",
                (TargetKind::Ost, false) => {
                    "; give this one a free index with 'adamant mkfs --index N', or, if the other is lost, make it with --replace"
                }
                _ => "; give this one a free index with 'adamant mkfs --index N'",
            };
            let separator = if req.replace { ", " } else { "" };
            Err((
                Errno::EADDRINUSE,
                format!(
                    "index {index} of file system '{fsname}' is in use by another target at {nids}{separator}{what_to_do}"
                ),
            ))
        }
        _ if req.replace && fs.record.replaced.max(req.replaced) >= Layout::REPLACED_MAX => Err((
            Errno::ENOSPC,
            format!(
                "{} object targets of file system '{}' were replaced; no more can be",
                fs.record.replaced, name.fsname
            ),
        )),
        Some(_) => Ok(name),
        None if !req.first => {
            let serves = table.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let serves = if serves.is_empty() { "no file system yet".to_owned() } else { serves };
            Err((
                Errno::ENOENT,
                format!(
                    "target '{name}' has registered before, but not with this MGS, which serves {serves}; correct --mgsnode, or run 'adamant tune --writeconf' on the target to register it here"
                ),
            ))
        }
        None if fs.targets.len() >= TARGETS_MAX => {
            Err((Errno::ENOSPC, format!("file system '{}' has {TARGETS_MAX} targets already", name.fsname)))
        }
        None if !table.contains_key(&name.fsname) && table.len() >= FILE_SYSTEMS_MAX => Err((
            Errno::ENOSPC,
            format!("this MGS serves {FILE_SYSTEMS_MAX} file systems already; use another MGS for '{}'", name.fsname),
        )),
        None => Ok(name),
    }?;
    if is_mdt && req.wants_keys && fs.record.name_keys.is_none() {
        let reason = format!(
            "'{name}' has to wait until MDT0000 has registered, whose keys for the hashes of names it takes over; if MDT0000 is served \
             already, start it again with version 0.3.0 or later"
        );
        return Err((Errno::EAGAIN, reason));
    }
    Ok(name)
}

/// Whether the store that registers is an older copy: it lacks a start that was registered. A start is durable before it
/// registers, so the count of a store only rises, unless the store was replaced by a copy. The same count can come twice only
/// from the same start, if a request is resent. Targets of version 0.1.0 do not identify the start.
fn is_older(known: &TargetRec, req: &RegisterReq) -> bool {
    let other_start = known.start != req.start && known.start != 0 && req.start != 0;
    req.instance < known.instance || req.instance == known.instance && other_start
}

/// Text from a peer, made safe for a message: short and without control characters.
pub(super) fn printable(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_default).collect()
}
