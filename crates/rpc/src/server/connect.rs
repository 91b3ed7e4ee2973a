//! Connect requests: admission, and what happens to an earlier session of the same client.

use proto::connect::{BRW_SIZE_MAX, PROTOCOL_VERSION, features};
use proto::frame::flags;
use proto::msg::{ConnectRep, ConnectReq};
use proto::{ClientUuid, Errno, Frame, Handle, Transno};
use stdx::Instant;

use super::Phase;
use super::exports::{Export, Exports, printable};
use crate::Link;

/// What the target offers to clients, and its state.
#[derive(Clone, Debug)]
pub struct ConnectOffer {
    /// Its full name.
    pub target: String,
    /// Number of times that it was started.
    pub instance: u64,
    /// Highest transno that was durable when it was started.
    pub started_from: Transno,
    /// Version of its program.
    pub server_version: String,
    /// Features offered.
    pub features: u64,
    /// Most changes that a client may have in flight; 0: the target supports single slots only.
    pub max_mod_rpcs: u16,
    /// The target keeps no client records: every session is lightweight.
    pub all_lightweight: bool,
    /// While the target recovers: number of clients still awaited, and seconds left.
    pub recovering: Option<(usize, u32)>,
}

impl ConnectOffer {
    /// An offer of all features of this version.
    pub fn new(target: String, instance: u64, server_version: String) -> ConnectOffer {
        ConnectOffer {
            target,
            instance,
            started_from: Transno(0),
            server_version,
            features: features::SUPPORTED & !features::PINGLESS,
            max_mod_rpcs: 8,
            all_lightweight: false,
            recovering: None,
        }
    }
}

/// A refused connect request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Error of the reply.
    pub errno: Errno,
    /// Reason and advice, for a person.
    pub reason: String,
    /// Most seconds until recovery ends.
    pub time_left_s: u32,
    /// Whether to log it at the server.
    pub tell: bool,
}

/// An accepted connect request.
#[derive(Clone, PartialEq, Debug)]
pub struct Accepted {
    /// Handle of the session.
    pub handle: Handle,
    /// A new client, or one that has several slots from now on. Unless the session is lightweight, its record must be
    /// durable before the reply.
    pub new: bool,
    /// The client has several slots from now on.
    pub multi: bool,
    /// An earlier session of this client, which was removed from the table and whose state is lost.
    pub replaced: Option<Gone>,
    /// An older connection of this session, to be closed.
    pub old_link: Option<Link>,
    /// Flags of the reply's header.
    pub flags: u32,
    /// The reply; the target may fill in more fields.
    pub reply: ConnectRep,
}

/// A session that was removed from the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gone {
    /// Its handle.
    pub handle: Handle,
    /// Its generation; 0 for single slots.
    pub generation: u32,
    /// The tags of its reply records.
    pub tags: Vec<proto::Tag>,
}

impl Gone {
    /// What remains to be cleaned up of a session.
    pub fn of(export: &Export) -> Gone {
        let tags = export.slots.iter().map(|(tag, _)| tag).collect();
        Gone { handle: export.handle, generation: export.generation, tags }
    }
}

/// Outcome of a connect request.
#[derive(Clone, PartialEq, Debug)]
pub enum Connected {
    /// Refused.
    No(Refusal),
    /// Accepted.
    Yes(Accepted),
}

fn no(errno: Errno, reason: impl Into<String>) -> Connected {
    Connected::No(Refusal { errno, reason: reason.into(), time_left_s: 0, tell: true })
}

impl Exports {
    /// Decides about a connect request that arrived over `link`.
    pub fn connect(
        &mut self,
        now: Instant,
        link: Link,
        address: &str,
        frame: &Frame,
        request: &ConnectReq,
        offer: &ConnectOffer,
    ) -> Connected {
        let Some(uuid) = ClientUuid::from_bytes(&request.client_uuid) else {
            return no(Errno::EPROTO, "the connect request has no client uuid of 16 bytes; report this as a bug");
        };
        if request.version >> 16 != PROTOCOL_VERSION >> 16 {
            let (theirs, ours) = (request.version >> 16, PROTOCOL_VERSION >> 16);
            return no(
                Errno::EPROTO,
                format!(
                    "target '{}' (version {}) speaks protocol version {ours}, the client {theirs}; upgrade the older side",
                    offer.target, offer.server_version
                ),
            );
        }
        if request.target != offer.target {
            return Connected::No(Refusal {
                errno: Errno::ENODEV,
                reason: format!(
                    "target '{}' is not at this address, '{}' is; check the NIDs that were registered",
                    request.target, offer.target
                ),
                time_left_s: 0,
                tell: false,
            });
        }
        let conn_cnt = frame.header.conn_cnt;
        let lightweight = request.lightweight || offer.all_lightweight;
        let presented = frame.header.export;
        let known = self.by_uuid.get(&uuid).copied();
        if let Some(export) = known.and_then(|handle| self.table.get(&handle))
            && export.phase != Phase::Absent
            && export.link.is_some()
            && conn_cnt <= export.conn_cnt
        {
            // A late connect request, overtaken by a newer one.
            return Connected::No(Refusal {
                errno: Errno::EALREADY,
                reason: format!("client {uuid} has a newer connection"),
                time_left_s: 0,
                tell: false,
            });
        }
        // A client that used a session knows its handle. One that does not is another peer, whatever uuid it presents.
        // Exempt are servers, which may have restarted, and sessions from before this start, of which only the client's
        // name is known.
        if let Some(export) = known.and_then(|handle| self.table.get(&handle))
            && export.used
            && !export.lightweight
            && export.handle != presented
        {
            stdx::mark!("exports.taken");
            return Connected::No(Refusal {
                errno: Errno::EALREADY,
                reason: format!("client {uuid} has a session, and this connection does not know it"),
                time_left_s: 0,
                tell: true,
            });
        }
        let accepted = match known.and_then(|handle| self.table.get(&handle)).map(|e| (e.handle, e.phase)) {
            // Known from before the restart: its recovery starts. It gets a new handle, which tells it that the server
            // restarted.
            Some((handle, Phase::Absent)) => {
                let export = self.table.get_mut(&handle.0);
                if let Some(export) = export {
                    export.phase = if offer.recovering.is_some() { Phase::Requests } else { Phase::Normal };
                }
                (handle, false, None, flags::CONNECT_RECOVERING)
            }
            // Only the connection was lost.
            Some((handle, phase)) if handle == presented => {
                let recovering = if phase == Phase::Normal { 0 } else { flags::CONNECT_RECOVERING };
                (handle, false, None, flags::CONNECT_RECONNECT | recovering)
            }
            // The reply to its connect in this recovery was lost. Nothing was replayed yet over the session, which it
            // does not know.
            Some((handle, phase)) if phase != Phase::Normal => {
                self.start_over(handle);
                (handle, false, None, flags::CONNECT_RECOVERING)
            }
            // The client does not know this session, or gave it up: it gets a new one.
            Some((handle, _)) => {
                let gone = self.remove(handle).map(|export| Gone::of(&export));
                (self.add(now, uuid), true, gone, 0)
            }
            None => {
                if let (Some((awaited, left)), false) = (offer.recovering, lightweight) {
                    return Connected::No(Refusal {
                        errno: Errno::EBUSY,
                        reason: format!(
                            "target '{}' recovers: it waits for {awaited} clients that it knows, for at most {left} s",
                            offer.target
                        ),
                        time_left_s: left,
                        tell: true,
                    });
                }
                if self.by_link.get(&link).is_some_and(|other| self.table.contains_key(other)) {
                    return no(
                        Errno::EBUSY,
                        "another client has a session over this connection; use one connection for each",
                    );
                }
                if self.len() >= self.limits.exports {
                    return no(
                        Errno::EOVERFLOW,
                        format!("target '{}' has {} clients, which is its limit", offer.target, self.len()),
                    );
                }
                (self.add(now, uuid), true, None, 0)
            }
        };
        let (handle, new, replaced, mut flag) = accepted;
        if offer.recovering.is_none() {
            flag &= !flags::CONNECT_RECOVERING;
        }
        let mut old_link = None;
        let mut granted = request.features & offer.features;
        if offer.all_lightweight || offer.max_mod_rpcs == 0 {
            granted &= !features::MULTI_MOD_RPCS;
        }
        let wants_slots = granted & features::MULTI_MOD_RPCS != 0;
        let mut multi = false;
        if let Some(export) = self.table.get_mut(&handle.0) {
            if wants_slots && !lightweight && export.generation == 0 {
                // Also for a client from an older version of this target: its records get names of their own.
                multi = true;
                self.last_generation += 1;
                export.generation = self.last_generation;
                export.slots.all_dirty();
                export.dirty = true;
            }
            old_link = export.link.replace(link).filter(|old| *old != link);
            export.conn_cnt = conn_cnt;
            export.last_xid = proto::Xid(0);
            export.changed.clear();
            export.heard = now;
            export.address = address.to_owned();
            let description = printable(&request.description);
            export.dirty |= (new || export.description != description) && !lightweight;
            export.description = description;
            export.lightweight = lightweight;
            export.read_only = request.read_only;
            export.features = granted;
        }
        if let Some(old) = old_link {
            self.by_link.remove(&old);
        }
        // A connection serves one session.
        if let Some(other) = self.by_link.insert(link, handle.0)
            && other != handle.0
            && let Some(export) = self.table.get_mut(&other)
        {
            export.link = None;
        }
        let reply = ConnectRep {
            features: granted,
            version: PROTOCOL_VERSION,
            brw_size: request.brw_size.clamp(4096, BRW_SIZE_MAX),
            instance: offer.instance,
            started_from: offer.started_from.0,
            session: self.table.get(&handle.0).map_or(0, |export| export.session),
            max_mod_rpcs: if wants_slots { u32::from(offer.max_mod_rpcs) } else { 0 },
            recovery_time_left_s: offer.recovering.map_or(0, |(_, left)| left),
            server_version: offer.server_version.clone(),
            ..ConnectRep::default()
        };
        Connected::Yes(Accepted { handle, new: new || multi, multi, replaced, old_link, flags: flag, reply })
    }

    fn add(&mut self, now: Instant, uuid: ClientUuid) -> Handle {
        let handle = self.take_handle();
        let export = Export::new(handle, uuid, now);
        self.by_uuid.insert(uuid, handle.0);
        self.table.insert(handle.0, export);
        handle
    }

    /// The client starts its replay over.
    fn start_over(&mut self, handle: Handle) {
        if let Some(export) = self.table.get_mut(&handle.0) {
            export.phase = Phase::Requests;
        }
    }
}
