//! Connections and sessions: arriving frames, replies, connects, evictions, early replies.

use core::time::Duration;

use dlm::ExportId;
use prost::Message;
use proto::connect::features;
use proto::frame::flags;
use proto::msg::{CancelReq, ConnectRep, ConnectReq, EnqueueReq, GlReply, LruLimit, PingReq};
use proto::{ClientUuid, Errno, Frame, Handle, Header, Nid, Opcode, TargetKind, TargetName, Transno, Xid};
use rpc::Link;
use rpc::server::{Arrival, ConnectOffer, Connected, Gone, Phase, Refusal, Replayed, XidState};
use stdx::Instant;

use crate::api::{ConnId, Effect, LogLevel};
use crate::boot::Stage;
use crate::commit::Then;
use crate::execute::reply_header;
use crate::machine::{Early, Machine, Target};
use crate::op::{Op, Replay, Work};
use crate::options::format_features;
use crate::service::{Request, Service};

/// Whether a request may be work that a client does before it cancels a lock. Pings are not.
fn writes_back(header: &Header) -> bool {
    Opcode::from_raw(header.opcode).is_some_and(|opcode| opcode.traits().writes_back)
}

/// Whether an enqueue flagged as a replay is for a granted lock. A new lock or a glimpse would call back the locks of
/// clients that cannot answer before recovery is over.
fn replays_a_grant(frame: &Frame) -> bool {
    frame.decode::<EnqueueReq>().is_ok_and(|lock| lock.granted_handle != 0 && !lock.glimpse && !lock.test)
}

/// Most clients for which refusals or reasons of evictions are remembered.
const REFUSED_MAX: usize = 1024;

/// Shortest time until an early reply.
const PATIENCE_MIN: Duration = Duration::from_millis(500);

impl<S: Service> Target<S> {
    /// Handles a frame.
    pub(crate) fn frame(&mut self, conn: ConnId, frame: Frame) {
        if conn.0 & ConnId::DIALLED != 0 {
            self.m.upstream_frame(conn, frame);
            return;
        }
        if frame.header.has(flags::REPLY) || self.m.stage >= Stage::Stopping {
            return;
        }
        if frame.header.opcode == Opcode::Connect as u16 {
            if !self.m.holds_connect(conn, &frame) {
                self.connect(conn, &frame);
            }
            return;
        }
        let recovering = self.m.is_recovering();
        let handle = frame.header.export;
        match self.m.exports.arrive(self.m.now, Link(conn.0), &frame, recovering) {
            Arrival::Drop => stdx::mark!("target.dropped"),
            Arrival::Attach => {
                stdx::mark!("target.attached");
                self.m.note_second_copy(handle, &frame.header);
                // Its sender has a new deadline; earlier extensions no longer apply.
                self.m.no_patience(handle, frame.header.xid.0);
                self.m.patience_for(handle, &frame.header);
            }
            Arrival::Refuse(errno) => {
                let mut header = reply_header(&frame.header);
                header.status = -errno.raw();
                header.last_committed = self.m.last_committed;
                self.m.effects.push_back(Effect::Send { conn, frame: Frame { header, ..Frame::default() } });
            }
            what @ Arrival::AnswerAgain if self.m.strikes_request(what, handle, &frame) => {}
            Arrival::AnswerAgain => {
                stdx::mark!("target.answer_again");
                if let Some(reply) = self.m.exports.first_answer(handle, &frame) {
                    self.m.stats.answered_again += 1;
                    self.m.send_reply(handle, reply);
                }
            }
            Arrival::Defer => {
                // The sender need not be a client: a metadata target's request must not wait for ever either.
                self.m.window.knocked(self.m.now);
                self.m.exports.begin(handle, &frame);
                self.m.patience_for(handle, &frame.header);
                self.m.deferred.push_back((handle, frame));
            }
            what => {
                self.m.exports.begin(handle, &frame);
                if writes_back(&frame.header) {
                    self.m.locks.progress(self.m.now, ExportId(handle.0));
                }
                self.begin(what, handle, frame);
            }
        }
    }

    /// Starts the execution of a request.
    fn begin(&mut self, what: Arrival, handle: Handle, frame: Frame) {
        if !self.m.strikes_request(what, handle, &frame) {
            self.begin_now(what, handle, frame);
        }
    }

    /// Starts the execution of a request, bypassing the fault injection sites.
    pub(crate) fn begin_now(&mut self, what: Arrival, handle: Handle, frame: Frame) {
        match what {
            Arrival::Reconstruct => {
                let record = self.m.exports.record(handle, frame.header.tag).copied().unwrap_or_default();
                self.reconstruct(handle, frame, &record);
            }
            Arrival::Replay => self.replay(handle, frame),
            Arrival::ReplayLock => {
                if frame.header.opcode == Opcode::LdlmEnqueue as u16 {
                    if !replays_a_grant(&frame) {
                        stdx::mark!("target.no_lock_replay");
                        self.m.refuse(handle, &frame.header, Errno::EPROTO);
                        return;
                    }
                    self.m.window.locks_executed(self.m.now, handle, 1);
                }
                self.execute(handle, frame, Replay::No);
            }
            _ => match Opcode::from_raw(frame.header.opcode) {
                Some(Opcode::Ping) => self.ping(handle, &frame),
                Some(Opcode::Disconnect) => self.disconnect(handle, &frame.header),
                Some(Opcode::LdlmCancel) => {
                    if let Ok(request) = frame.decode::<CancelReq>() {
                        self.m.locks.cancel(self.m.now, ExportId(handle.0), &request);
                        self.m.refuse_enqueues(handle, &request.waiting_cookies);
                    }
                    self.m.done(handle, &frame.header);
                }
                Some(Opcode::LdlmGlReply) => {
                    // A resent reply carries outdated values, and the holder was asked again over this connection. No
                    // client since 0.2.0 resends one.
                    if let (false, Ok(request)) = (frame.header.has(flags::RESENT), frame.decode::<GlReply>()) {
                        self.m.locks.glimpse_reply(self.m.now, ExportId(handle.0), &request);
                    }
                    self.m.done(handle, &frame.header);
                }
                Some(
                    opcode @ (Opcode::CrossSession
                    | Opcode::CrossPrepare
                    | Opcode::CrossTell
                    | Opcode::CrossLook
                    | Opcode::CrossOrphans),
                ) => {
                    self.cross_request(handle, opcode, frame);
                }
                _ if self.m.waits_for_doubt(handle, &frame) => {}
                _ => self.execute(handle, frame, Replay::No),
            },
        }
    }

    /// Starts a request that waited for the end of recovery.
    pub(crate) fn begin_deferred(&mut self, handle: Handle, frame: Frame) {
        let Some(export) = self.m.exports.get(handle) else { return };
        let what = match export.slots().found(frame.header.tag, frame.header.xid) {
            XidState::Nothing => Arrival::Execute,
            XidState::Reply | XidState::Record => Arrival::Reconstruct,
            XidState::Newer => {
                self.m.refuse(handle, &frame.header, Errno::EPROTO);
                return;
            }
        };
        self.begin(what, handle, frame);
    }

    fn replay(&mut self, handle: Handle, frame: Frame) {
        let header = frame.header;
        if self.m.loses_replay() || !self.m.exports.in_sequence(handle, &header) {
            let _ = self.m.exports.end(handle, header.xid);
            return;
        }
        let replayed = self.m.exports.get(handle).map_or(Transno(0), |export| export.replayed);
        self.m.patience_for(handle, &header);
        match self.m.window.replay(self.m.now, handle, frame.clone(), replayed) {
            Replayed::Queued => self.prefetch(handle, frame),
            Replayed::Committed => {
                let Some(opcode) = Opcode::from_raw(header.opcode) else {
                    self.m.refuse(handle, &header, Errno::EOPNOTSUPP);
                    return;
                };
                let request = Request { export: ExportId(handle.0), opcode, frame };
                if self.service.replays_committed(&request) {
                    let replay = Replay::Committed(header.transno);
                    let op = self.m.new_op(request.export, replay, Work::Request(request));
                    self.attempt(op);
                } else {
                    let mut reply = reply_header(&header);
                    reply.transno = header.transno;
                    self.m.send_reply(handle, Frame { header: reply, ..Frame::default() });
                }
            }
            Replayed::Answered => {
                let mut reply = reply_header(&header);
                reply.transno = header.transno;
                self.m.send_reply(handle, Frame { header: reply, ..Frame::default() });
            }
            Replayed::Late => {
                let why = format!("its replay of transno {} came after a later one", header.transno);
                self.m.refuse_replay(handle, &header, why);
            }
            Replayed::NeverGiven => {
                let why = format!(
                    "it replays transno {}, which this target has never given; unless the client is broken, the store is an older copy",
                    header.transno
                );
                self.m.refuse_replay(handle, &header, why);
            }
        }
    }

    fn ping(&mut self, handle: Handle, frame: &Frame) {
        let (now, header) = (self.m.now, &frame.header);
        let recovering = self.m.exports.get(handle).is_some_and(|export| export.phase != Phase::Normal);
        let answer = if !recovering {
            true
        } else if header.has(flags::REQ_REPLAY_DONE) {
            let open = self.m.window.requests_done(now, handle);
            self.m.set_phase(handle, if open { Phase::Locks } else { Phase::RequestsDone });
            open
        } else if header.has(flags::LOCK_REPLAY_DONE) {
            let unanswered = frame.decode::<PingReq>().unwrap_or_default().unanswered;
            if !unanswered.iter().all(|xid| self.m.exports.has_arrived(handle, Xid(*xid))) {
                // One of them was lost in transit. The client's deadline for this ping will pass, and it will resend
                // all of them.
                stdx::mark!("target.unanswered_missing");
                let _ = self.m.exports.end(handle, header.xid);
                return;
            }
            self.m.set_phase(handle, Phase::LocksDone);
            self.m.window.locks_done(now, handle)
        } else {
            true
        };
        if answer {
            self.m.done(handle, header);
        } else {
            self.m.patience_for(handle, header);
            self.m.held_pings.push((handle, *header));
        }
    }

    fn disconnect(&mut self, handle: Handle, header: &Header) {
        let link = self.m.exports.get(handle).and_then(|export| export.link);
        let keeps = self.m.keeps_client();
        self.m.log_client(handle, "has gone");
        self.drop_export(handle, keeps);
        let Some(link) = link else { return };
        let mut reply = reply_header(header);
        reply.last_committed = self.m.last_committed;
        // A client that has disconnected replays nothing: its changes must be durable before the reply.
        let group = self.m.newest_group();
        let frame = Frame { header: reply, ..Frame::default() };
        if let Some(then) = self.m.when_durable(group, Then::SendOn(ConnId(link.0), frame)) {
            self.then(then);
        }
    }

    pub(crate) fn connect(&mut self, conn: ConnId, frame: &Frame) {
        let asked = frame.header;
        let refuse = |m: &mut Machine, refusal: Refusal| {
            let mut header = reply_header(&asked);
            header.status = -refusal.errno.raw();
            let body = ConnectRep {
                recovery_time_left_s: refusal.time_left_s,
                reason: refusal.reason,
                instance: m.header.mount_count,
                ..ConnectRep::default()
            };
            let frame = Frame { header, body: body.encode_to_vec().into(), ..Frame::default() };
            m.effects.push_back(Effect::Send { conn, frame });
        };
        let quiet = |errno, reason: String| Refusal { errno, reason, time_left_s: 0, tell: false };
        if self.m.stage == Stage::Refusing {
            let reason = self.m.why_refusing();
            refuse(&mut self.m, quiet(Errno::ESTALE, reason));
            return;
        }
        if self.m.stage != Stage::Serving {
            let reason = format!("target '{}' starts", self.m.name);
            refuse(&mut self.m, quiet(Errno::EAGAIN, reason));
            return;
        }
        let Ok(request) = frame.decode::<ConnectReq>() else {
            refuse(&mut self.m, quiet(Errno::EPROTO, "the connect request cannot be read".to_owned()));
            return;
        };
        if let Some(errno) = self.m.refuses_client(&request) {
            refuse(&mut self.m, quiet(errno, "there is no space for another client (fault injection)".to_owned()));
            return;
        }
        let is_mgs = self.service.kind() == TargetKind::Mgt;
        if request.lightweight && !is_mgs && !self.m.may_be_target(conn) {
            stdx::mark!("target.no_server");
            let address = self.m.peers.get(&conn).map_or_else(String::new, |peer| peer.address.clone());
            let reason = format!(
                "target '{}' accepts other targets only from root and its own user on this machine, and from addresses that metadata targets registered, not from {address}",
                self.m.name
            );
            self.m.log_refusal(&request, &address, &reason);
            refuse(&mut self.m, quiet(Errno::EACCES, reason));
            return;
        }
        if let Some(reason) = self.m.doubts(&request) {
            let address = self.m.peers.get(&conn).map_or_else(String::new, |peer| peer.address.clone());
            self.m.log_refusal(&request, &address, &reason);
            refuse(&mut self.m, quiet(Errno::ESTALE, reason));
            return;
        }
        if let Some(reason) = self.m.too_old(&request) {
            let address = self.m.peers.get(&conn).map_or_else(String::new, |peer| peer.address.clone());
            self.m.log_refusal(&request, &address, &reason);
            refuse(&mut self.m, quiet(Errno::EPROTO, reason));
            return;
        }
        let now = self.m.now;
        let mut offer =
            ConnectOffer::new(self.m.name.to_string(), self.m.header.mount_count, self.m.options.version.clone());
        offer.started_from = self.m.started_from;
        offer.max_mod_rpcs = if self.service.kind() == TargetKind::Mdt { self.m.options.max_mod_rpcs } else { 0 };
        offer.all_lightweight = self.service.kind() == TargetKind::Mgt;
        offer.recovering = self.m.window.time_left(now);
        offer.features = self.m.offered_features();
        let address = self.m.peers.get(&conn).map_or_else(String::new, |peer| peer.address.clone());
        match self.m.exports.connect(now, Link(conn.0), &address, frame, &request, &offer) {
            Connected::No(refusal) => {
                if refusal.errno == Errno::EBUSY {
                    self.m.window.knocked(now);
                }
                if refusal.tell {
                    self.m.log_refusal(&request, &address, &refusal.reason);
                }
                refuse(&mut self.m, refusal);
            }
            Connected::Yes(mut accepted) => {
                self.m.log_admission(&request);
                let handle = accepted.handle;
                if let Some(old) = accepted.replaced {
                    self.m.forget_replies(&old);
                    self.export_is_gone(old.handle);
                }
                if accepted.multi {
                    self.m.replies_dirty(handle);
                    if self.m.header.incompat & format_features::MULTI_RPCS == 0 {
                        self.m.header.incompat |= format_features::MULTI_RPCS;
                        self.m.header_dirty();
                    }
                }
                if let Some(old) = accepted.old_link {
                    self.m.effects.push_back(Effect::Hangup { conn: ConnId(old.0) });
                }
                self.m.log_client(handle, if accepted.new { "has come" } else { "is connected again" });
                let id = ExportId(handle.0);
                if accepted.new
                    && let Some(uuid) = self.m.exports.get(handle).map(|export| export.uuid)
                    && let Some(reason) = self.m.evicted.remove(&uuid)
                {
                    accepted.reply.reason = reason;
                }
                accepted.reply.store = self.m.header.uuid.clone();
                self.outside_attempt(|service, cx| service.connected(cx, id, &request, &mut accepted.reply));
                let (phase, lightweight, dirty) = match self.m.exports.get(handle) {
                    Some(export) => (export.phase, export.lightweight, export.dirty),
                    None => return,
                };
                if phase != Phase::Normal {
                    self.m.window.connected(now, handle);
                }
                let mut header = reply_header(&asked);
                header.flags |= accepted.flags;
                header.export = handle;
                header.last_committed = self.m.last_committed;
                let body = accepted.reply.encode_to_vec().into();
                let reply = Frame { header, body, ..Frame::default() };
                if dirty && !lightweight {
                    self.m.export_dirty(handle);
                }
                let reply = if accepted.new && !lightweight {
                    let group = self.m.newest_group();
                    self.m.when_durable(group, Then::SendOn(conn, reply))
                } else {
                    Some(Then::SendOn(conn, reply))
                };
                if let Some(then) = reply {
                    self.then(then);
                }
                self.m.locks.resend_callbacks(now, id);
            }
        }
    }

    /// Handles a closed connection.
    pub(crate) fn closed(&mut self, conn: ConnId) {
        if conn.0 & ConnId::DIALLED != 0 {
            self.m.upstream_closed(conn);
            return;
        }
        self.m.peers.remove(&conn);
        if let Some(handle) = self.m.exports.link_closed(Link(conn.0)) {
            self.m.coordinator_lost(handle);
            self.m.locks.disconnected(self.m.now, ExportId(handle.0));
        }
    }

    /// Evicts a client.
    pub(crate) fn evict(&mut self, handle: Handle, reason: &str) {
        let Some(export) = self.m.exports.get(handle) else { return };
        stdx::mark!("target.evict");
        let link = export.link;
        let loses = format!(
            "last heard of {} s ago at {}; it loses {} locks and {} requests under way",
            self.m.now.since(export.heard).as_secs(),
            if link.is_some() { export.address.as_str() } else { "a connection that is gone" },
            self.m.locks.count(ExportId(handle.0)),
            export.executing()
        );
        let uuid = export.uuid;
        let line = format!("evicts {}: {reason} ({loses})", self.m.client_name(handle));
        self.m.log(LogLevel::Warn, line);
        self.m.eviction_count += 1;
        self.m.note_eviction(uuid, reason);
        self.drop_export(handle, false);
        // The client reconnects at once and learns of the eviction.
        if let Some(link) = link {
            self.m.effects.push_back(Effect::Hangup { conn: ConnId(link.0) });
        }
    }

    /// Ends a session and deletes its client record, unless that is to be kept.
    fn drop_export(&mut self, handle: Handle, keeps: bool) {
        if let Some(export) = self.m.exports.remove(handle)
            && !export.lightweight
            && !keeps
        {
            self.m.forget_client(export.uuid);
            self.m.forget_replies(&Gone::of(&export));
        }
        self.export_is_gone(handle);
    }

    /// Cleans up after a session that was removed from the table.
    fn export_is_gone(&mut self, handle: Handle) {
        self.m.cancel_ops(handle);
        self.m.window.gone(handle);
        self.m.stats.forget(handle);
        self.m.sites.forget(handle);
        self.m.locks.export_gone(self.m.now, ExportId(handle.0));
        self.m.cross_export_gone(handle);
        let from = (handle.0, 0);
        let mut waiting: Vec<(u64, u64)> = self.m.early_of.keys().filter(|(h, _)| *h == from.0).copied().collect();
        waiting.sort_unstable();
        for (_, xid) in waiting {
            self.m.no_patience(handle, xid);
        }
        self.outside_attempt(|service, cx| service.export_gone(cx, ExportId(handle.0)));
    }
}

impl Machine {
    /// Whether a peer that claims to be a target can be one: it is on another machine at an address of a metadata
    /// target, or on this machine and runs as root or as this server's user. Targets have more rights than clients:
    /// recovery does not wait for them, and they may remove the objects of any file.
    fn may_be_target(&self, conn: ConnId) -> bool {
        let Some(peer) = self.peers.get(&conn) else { return false };
        let address = peer.address.parse::<core::net::SocketAddr>().map(|address| address.ip().to_canonical());
        peer.ours || !peer.local && address.is_ok_and(|address| self.listens_at(address))
    }

    /// Whether a metadata target of the file system has registered this address. One with a host name registers its
    /// addresses too.
    fn listens_at(&self, address: core::net::IpAddr) -> bool {
        let is_mdt = |name: &str| name.parse::<TargetName>().is_ok_and(|name| name.kind == TargetKind::Mdt);
        let nids = self.config.targets.iter().filter(|entry| is_mdt(&entry.target)).flat_map(|entry| &entry.nids);
        nids.filter_map(|nid| nid.parse().ok()).any(|nid| match nid {
            Nid::Tcp { host, .. } => host.parse::<core::net::IpAddr>().is_ok_and(|ip| ip.to_canonical() == address),
            Nid::Unix(_) => false,
        })
    }

    /// Logs that a client (not another target) connected or disconnected.
    fn log_client(&mut self, handle: Handle, what: &str) {
        if let Some(export) = self.exports.get(handle).filter(|export| !export.lightweight) {
            let line = format!("client {} at {} {what}", self.client_name(handle), export.address);
            self.log(LogLevel::Info, line);
        }
    }

    /// Keeps the reason of an eviction until the client reconnects.
    fn note_eviction(&mut self, uuid: ClientUuid, reason: &str) {
        if self.evicted.len() >= REFUSED_MAX {
            self.evicted.clear();
        }
        self.evicted.insert(uuid, reason.to_owned());
    }

    /// Why a client cannot be served: it would misread what this target has. `None` if it can.
    fn too_old(&self, request: &ConnectReq) -> Option<String> {
        let swapped = self.header.incompat & format_features::LAYOUT_SWAP != 0;
        if !swapped || request.lightweight || request.features & features::LAYOUT_SWAP != 0 {
            return None;
        }
        Some(format!(
            "target '{}' has files whose data was migrated, which this client cannot find; mount with version {} or later",
            self.name, self.options.version
        ))
    }

    /// A client was refused: logs the first refusal, and then the tenth, hundredth, thousandth and so on.
    fn log_refusal(&mut self, request: &ConnectReq, address: &str, reason: &str) {
        let client = <[u8; 16]>::try_from(&request.client_uuid[..]).ok();
        if self.refused.len() >= REFUSED_MAX && !self.refused.contains_key(&client) {
            self.refused.clear();
        }
        let count = self.refused.entry(client).or_default();
        *count += 1;
        let times = match *count {
            1 => String::new(),
            count if count == 10_u64.pow(count.ilog10()) => format!(" ({count} times)"),
            _ => return,
        };
        let line = format!("refused {} from {address}{times}: {reason}", request.description);
        self.log(LogLevel::Warn, line);
    }

    /// A client was accepted: logs it if it had been refused before.
    fn log_admission(&mut self, request: &ConnectReq) {
        let client = <[u8; 16]>::try_from(&request.client_uuid[..]).ok();
        if let Some(count) = self.refused.remove(&client) {
            let line = format!("{} is in, after it was refused {count} times", request.description);
            self.log(LogLevel::Info, line);
        }
    }

    /// Features that clients may have now.
    fn offered_features(&self) -> u64 {
        let off = |bit: u64, off: bool| if off { bit } else { 0 };
        let timeouts = &self.options.timeouts;
        features::SUPPORTED
            & !off(features::PINGLESS, !timeouts.suppress_pings)
            & !off(features::AT, timeouts.at_max.is_zero())
            & !off(features::DIR_STRIPE, self.name.kind != TargetKind::Mdt)
            & !off(features::IMP_RECOV, self.options.noir)
    }

    pub(crate) fn set_phase(&mut self, handle: Handle, phase: Phase) {
        if let Some(export) = self.exports.get_mut(handle) {
            export.phase = phase;
        }
    }

    /// Sends a reply over the export's current connection. Without one, the client will resend the request.
    pub(crate) fn send_reply(&mut self, handle: Handle, mut frame: Frame) {
        if !self.done_with(handle, &frame.header) || self.loses_reply(handle, &frame.header) {
            return;
        }
        let Some(export) = self.exports.get(handle) else { return };
        let Some(link) = export.link else {
            stdx::mark!("target.reply_nowhere");
            return;
        };
        frame.header.conn_cnt = export.conn_cnt();
        frame.header.last_committed = self.last_committed;
        frame.header.timeout_ms = self.estimate_ms();
        self.effects.push_back(Effect::Send { conn: ConnId(link.0), frame });
    }

    /// Unregisters a request that was answered or dropped. Returns whether to send the answer.
    pub(crate) fn done_with(&mut self, handle: Handle, header: &Header) -> bool {
        self.no_patience(handle, header.xid.0);
        self.exports.end(handle, header.xid)
    }

    /// Answers with success and no body.
    pub(crate) fn done(&mut self, handle: Handle, asked: &Header) {
        let header = reply_header(asked);
        self.send_reply(handle, Frame { header, ..Frame::default() });
    }

    pub(crate) fn refuse(&mut self, handle: Handle, asked: &Header, errno: Errno) {
        let mut header = reply_header(asked);
        header.status = -errno.raw();
        self.send_reply(handle, Frame { header, ..Frame::default() });
    }

    /// Sends a client a notice, if it is connected.
    pub(crate) fn notice(&mut self, export: ExportId, opcode: Opcode, body: &impl Message) {
        self.notice_bytes(export, opcode, body.encode_to_vec().into());
    }

    /// Sends a client its limit of unused locks, if it supports that. For other clients see [`dlm::server`].
    pub(crate) fn send_lru_limit(&mut self, export: ExportId, locks: u32) {
        let knows = |export: &rpc::server::Export| export.features & features::LRU_RESIZE != 0;
        if self.exports.get(Handle(export.0)).is_some_and(knows) {
            self.notice(export, Opcode::LdlmLruLimit, &LruLimit { locks });
        }
    }

    pub(crate) fn notice_bytes(&mut self, export: ExportId, opcode: Opcode, body: bytes::Bytes) {
        let Some(export) = self.exports.get(Handle(export.0)) else { return };
        let Some(link) = export.link else { return };
        let header = Header {
            opcode: opcode as u16,
            conn_cnt: export.conn_cnt(),
            export: export.handle,
            last_committed: self.last_committed,
            ..Header::default()
        };
        self.effects
            .push_back(Effect::Send { conn: ConnId(link.0), frame: Frame { header, body, ..Frame::default() } });
    }

    // --- patience ---

    /// The estimate of the service time for clients, in milliseconds; 0 if adaptive timeouts are off.
    fn estimate_ms(&self) -> u32 {
        let timeouts = &self.options.timeouts;
        if timeouts.at_max.is_zero() {
            return 0;
        }
        u32::try_from(timeouts.bounded(self.service_time.worst()).as_millis()).unwrap_or(u32::MAX)
    }

    /// Measures the service time of a request. Requests that wait for locks on purpose or belong to recovery do not
    /// count.
    pub(crate) fn learn_time(&mut self, op: &Op, asked: &Header) {
        let ordinary = op.replay == Replay::No && !asked.has(flags::RESENT);
        if ordinary && asked.opcode != Opcode::LdlmEnqueue as u16 {
            let history = self.options.timeouts.at_history;
            self.service_time.measured(self.now, self.now.since(op.started), history);
        }
    }

    /// The operation waits: if it is a request, its client will get early replies.
    pub(crate) fn patience(&mut self, op: &Op) {
        if let Work::Request(request) | Work::Reconstruct(request, _) = &op.work {
            self.patience_for(Handle(op.export.0), &request.frame.header);
        }
    }

    /// Schedules early replies for an unanswered request, each before the client's deadline.
    pub(crate) fn patience_for(&mut self, handle: Handle, asked: &Header) {
        self.patience_again(handle, asked, self.now, Duration::from_millis(u64::from(asked.timeout_ms)));
    }

    /// Schedules the next early reply for a request that arrived at `since`; its client's deadline is `waits` from now.
    fn patience_again(&mut self, handle: Handle, asked: &Header, since: Instant, waits: Duration) {
        let key = (handle.0, asked.xid.0);
        if self.early_of.contains_key(&key) || waits.is_zero() {
            return;
        }
        let at = self.now + self.options.timeouts.early(waits).max(PATIENCE_MIN);
        self.early.insert((at, key.0, key.1));
        self.early_of.insert(key, Early { at, asked: *asked, since });
    }

    fn no_patience(&mut self, handle: Handle, xid: u64) {
        if self.early_of.is_empty() {
            return;
        }
        if let Some(early) = self.early_of.remove(&(handle.0, xid)) {
            self.early.remove(&(early.at, handle.0, xid));
        }
    }

    /// Tells a peer that this target has its request, which no longer takes up a slot there, unless that was answered.
    pub(crate) fn taken_in(&mut self, handle: Handle, asked: &Header) {
        let extra = Duration::from_millis(u64::from(asked.timeout_ms));
        if self.exports.is_executing(handle, asked.xid) && self.early_reply(handle, asked, extra) {
            stdx::mark!("cross.taken_in");
        }
    }

    /// Tells the sender of a request that the answer may take so much longer, if it is connected. Returns whether it is.
    fn early_reply(&mut self, handle: Handle, asked: &Header, extra: Duration) -> bool {
        let Some(export) = self.exports.get(handle) else { return false };
        let Some(link) = export.link else { return false };
        let mut header = reply_header(asked);
        header.flags |= flags::EARLY;
        header.timeout_ms = u32::try_from(extra.as_millis()).unwrap_or(u32::MAX);
        header.conn_cnt = export.conn_cnt();
        header.last_committed = self.last_committed;
        self.effects.push_back(Effect::Send { conn: ConnId(link.0), frame: Frame { header, ..Frame::default() } });
        true
    }

    pub(crate) fn early_replies(&mut self) {
        while let Some(&(at, handle, xid)) = self.early.first() {
            if at > self.now {
                break;
            }
            self.early.remove(&(at, handle, xid));
            let Some(Early { asked, since, .. }) = self.early_of.remove(&(handle, xid)) else { continue };
            let waits = Duration::from_millis(u64::from(asked.timeout_ms));
            let extra = self.options.timeouts.extra(self.now.since(since), waits);
            if self.exports.get(Handle(handle)).is_none() {
                continue;
            }
            if self.early_reply(Handle(handle), &asked, extra) {
                stdx::mark!("target.early_reply");
            }
            self.patience_again(Handle(handle), &asked, since, extra);
        }
    }
}
