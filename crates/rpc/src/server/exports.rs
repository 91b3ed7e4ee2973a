//! The table of exports.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use core::hash::Hasher;
use proto::connect::features;
use proto::frame::flags;
use proto::opcode::InRecovery;
use proto::{ClientUuid, Frame, Handle, Opcode, Tag, Transno, Xid};
use siphasher::sip::SipHasher13;
use stdx::{Instant, Map};

use super::Phase;
use super::arrival::{Arrival, ArrivalFacts, Class, XidState, arrive};
use super::slots::{ReplySlots, SlotRecord};
use crate::{Link, REPLAY_WINDOW};

/// Limits of what peers can make a target keep in memory.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most exports.
    pub exports: usize,
    /// Most requests of one export that are queued or executing; further ones are answered `EINPROGRESS` (retry later).
    pub requests: usize,
    /// Most bytes of those requests.
    pub bytes: usize,
    /// Most bytes of the requests of all exports together.
    pub bytes_in_all: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { exports: 100_000, requests: 1024, bytes: 64 << 20, bytes_in_all: 512 << 20 }
    }
}

/// The session record that became dirty with a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dirty {
    /// None that was not dirty before.
    No,
    /// The client's record, which includes its slots.
    Client,
    /// The reply record of the request's slot.
    Reply,
}

/// An export: the server's end of a session.
#[derive(Debug)]
pub struct Export {
    /// Handle that the client puts in its requests.
    pub handle: Handle,
    /// Identity of the client.
    pub uuid: ClientUuid,
    /// Random identity of the session, kept across restarts. 0: made by an older version of the target.
    pub session: u64,
    /// Description of the client, for status output.
    pub description: String,
    /// Session of another server, without recovery and client record.
    pub lightweight: bool,
    /// Read-only session.
    pub read_only: bool,
    /// Granted features.
    pub features: u64,
    /// Sequence number of clients with several slots, by which their reply records are named. 0: a client with single
    /// slots, whose reply record is part of its client record.
    pub generation: u32,
    /// Why a replay of this client failed in this recovery. Nothing more of it is replayed, and it is evicted at the
    /// end.
    pub replay_failed: Option<String>,
    /// The current connection.
    pub link: Option<Link>,
    /// Address of the peer, for messages.
    pub address: String,
    /// Phase in recovery.
    pub phase: Phase,
    /// When the last frame from it arrived.
    pub heard: Instant,
    /// The client record differs from the store.
    pub dirty: bool,
    /// A request arrived in this session, so its client knows the handle.
    pub(crate) used: bool,
    pub(crate) conn_cnt: u32,
    pub(crate) last_xid: Xid,
    pub(crate) slots: ReplySlots,
    executing: Map<Xid, Executing>,
    /// Changes without a tag that were answered over this connection, which have no other record.
    pub(crate) changed: BTreeSet<Xid>,
    bytes: usize,
    pub(crate) replay_answers: VecDeque<Frame>,
    /// The highest transno that was replayed in this recovery.
    pub replayed: Transno,
    /// The last replay up to which none is missing.
    pub(crate) replay_chain: Transno,
}

/// A request that is queued or executing.
#[derive(Debug)]
struct Executing {
    bytes: usize,
    /// The connection of its latest copy.
    conn_cnt: u32,
    /// It made a change and has no tag.
    changed: bool,
}

impl Export {
    pub(crate) fn new(handle: Handle, uuid: ClientUuid, now: Instant) -> Export {
        Export {
            handle,
            uuid,
            session: handle.0,
            description: String::new(),
            lightweight: false,
            read_only: false,
            features: 0,
            generation: 0,
            replay_failed: None,
            link: None,
            address: String::new(),
            phase: Phase::Normal,
            heard: now,
            dirty: false,
            used: false,
            conn_cnt: 0,
            last_xid: Xid(0),
            slots: ReplySlots::default(),
            executing: Map::default(),
            changed: BTreeSet::new(),
            bytes: 0,
            replay_answers: VecDeque::new(),
            replayed: Transno(0),
            replay_chain: Transno(0),
        }
    }

    /// Number of the current connection.
    pub fn conn_cnt(&self) -> u32 {
        self.conn_cnt
    }

    /// Number of requests queued or executing.
    pub fn executing(&self) -> usize {
        self.executing.len()
    }

    /// Reply records.
    pub fn slots(&self) -> &ReplySlots {
        &self.slots
    }

    /// The reply records, for writing them to the store.
    pub fn slots_mut(&mut self) -> &mut ReplySlots {
        &mut self.slots
    }

    /// Whether the client has several slots.
    pub fn is_multi(&self) -> bool {
        self.generation != 0
    }

    /// Whether the client may still have lacked the answer to this executed request when it sent `asked`.
    pub fn may_be_unanswered(&self, tag: Tag, xid: Xid, asked: &proto::Header) -> bool {
        if xid <= self.last_xid || self.slots.get(tag).is_none_or(|slot| slot.record.xid != xid) {
            return false;
        }
        // It was sent later than `asked`, or was in flight then.
        !self.is_multi() || xid > asked.xid || asked.slot_is_busy(tag)
    }

    fn found(&self, header: &proto::Header) -> XidState {
        if header.has(flags::REPLAY) {
            let answered = self.replay_answers.iter().any(|frame| frame.header.xid == header.xid);
            return if answered { XidState::Reply } else { XidState::Nothing };
        }
        self.slots.found(header.tag, header.xid)
    }
}

/// The table of all exports of a target.
#[derive(Debug)]
pub struct Exports {
    pub(crate) limits: Limits,
    /// Bytes of the requests that are queued or executing.
    pub(crate) bytes: usize,
    pub(crate) table: Map<u64, Export>,
    pub(crate) by_uuid: BTreeMap<ClientUuid, u64>,
    pub(crate) by_link: Map<Link, u64>,
    /// Key of the hash from a counter to handles, so that no peer can guess those of others.
    handle_key: [u64; 2],
    handles: u64,
    pub(crate) last_generation: u32,
}

impl Exports {
    /// An empty table. Handles are derived from `key`: a random key keeps them secret, and a new key per start makes
    /// them unique across restarts.
    pub fn new(key: [u64; 2], limits: Limits) -> Exports {
        Exports {
            limits,
            bytes: 0,
            table: Map::default(),
            by_uuid: BTreeMap::new(),
            by_link: Map::default(),
            handle_key: key,
            handles: 0,
            last_generation: 0,
        }
    }

    /// Restores a session from its client record at start. The client is awaited.
    pub fn restore(
        &mut self,
        now: Instant,
        uuid: ClientUuid,
        description: String,
        (session, generation): (u64, u32),
        slots: impl IntoIterator<Item = (Tag, SlotRecord)>,
    ) -> Handle {
        let handle = self.take_handle();
        let mut export = Export::new(handle, uuid, now);
        export.description = printable(&description);
        (export.session, export.generation) = (session, generation);
        export.phase = Phase::Absent;
        for (tag, record) in slots {
            export.slots.restore(tag, record);
        }
        self.last_generation = self.last_generation.max(generation);
        self.by_uuid.insert(uuid, handle.0);
        self.table.insert(handle.0, export);
        handle
    }

    pub(crate) fn take_handle(&mut self) -> Handle {
        loop {
            self.handles += 1;
            let mut hasher = SipHasher13::new_with_keys(self.handle_key[0], self.handle_key[1]);
            hasher.write_u64(self.handles);
            let handle = hasher.finish();
            if handle != 0 && !self.table.contains_key(&handle) {
                return Handle(handle);
            }
        }
    }

    /// The export with this handle.
    pub fn get(&self, handle: Handle) -> Option<&Export> {
        self.table.get(&handle.0)
    }

    /// The export with this handle, mutable.
    pub fn get_mut(&mut self, handle: Handle) -> Option<&mut Export> {
        self.table.get_mut(&handle.0)
    }

    /// The export of a client.
    pub fn of_client(&self, uuid: ClientUuid) -> Option<&Export> {
        self.table.get(self.by_uuid.get(&uuid)?)
    }

    /// The export that a connection belongs to.
    pub fn of_link(&self, link: Link) -> Option<Handle> {
        self.by_link.get(&link).map(|&handle| Handle(handle))
    }

    /// All exports, ordered by client.
    pub fn iter(&self) -> impl Iterator<Item = &Export> {
        self.by_uuid.values().filter_map(|handle| self.table.get(handle))
    }

    /// Skips all generations up to this one.
    pub fn skip_generations(&mut self, up_to: u32) {
        self.last_generation = self.last_generation.max(up_to);
    }

    /// The highest generation that was assigned.
    pub fn last_generation(&self) -> u32 {
        self.last_generation
    }

    /// Number of exports.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are no exports.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Removes an export.
    pub fn remove(&mut self, handle: Handle) -> Option<Export> {
        let export = self.table.remove(&handle.0)?;
        self.bytes -= export.bytes;
        if self.by_uuid.get(&export.uuid) == Some(&handle.0) {
            self.by_uuid.remove(&export.uuid);
        }
        if let Some(link) = export.link {
            self.by_link.remove(&link);
        }
        Some(export)
    }

    /// A connection was closed. Its export remains.
    pub fn link_closed(&mut self, link: Link) -> Option<Handle> {
        let handle = self.by_link.remove(&link)?;
        if let Some(export) = self.table.get_mut(&handle)
            && export.link == Some(link)
        {
            export.link = None;
        }
        Some(Handle(handle))
    }

    /// A request (not a connect) arrived: decides what to do with it. Notes its `last_xid` and that the client is
    /// alive.
    pub fn arrive(&mut self, now: Instant, link: Link, frame: &Frame, recovering: bool) -> Arrival {
        let header = &frame.header;
        let Some(export) = self.table.get_mut(&header.export.0) else {
            return Arrival::Refuse(proto::Errno::ENOTCONN);
        };
        let current = export.link == Some(link) && header.conn_cnt == export.conn_cnt;
        let facts = ArrivalFacts {
            known: true,
            current,
            xid_valid: header.xid.0 != 0 && header.xid > export.last_xid,
            replay: header.has(flags::REPLAY),
            resent: header.has(flags::RESENT),
            executing: export.executing.contains_key(&header.xid),
            found: export.found(header),
            class: class(header),
            phase: export.phase,
            recovering,
        };
        let what = match arrive(&facts) {
            // A frame that the network duplicated. It must not undo later changes of its client.
            Arrival::Execute if !facts.replay && export.changed.contains(&header.xid) => Arrival::Drop,
            other => other,
        };
        if current {
            if let Some(first) = export.executing.get_mut(&header.xid) {
                first.conn_cnt = header.conn_cnt;
            }
            export.heard = now;
            export.used = true;
            if !facts.replay && header.last_xid > export.last_xid {
                export.last_xid = header.last_xid;
                export.slots.release(header.last_xid);
                export.changed = export.changed.split_off(&Xid(header.last_xid.0.saturating_add(1)));
            }
        }
        // A client limits its replays by a window and has few requests that are executed at any time. Only a
        // misbehaving client exceeds twice the limit.
        let allowance = match what {
            Arrival::Execute | Arrival::Defer if facts.class == Class::Normal => 1,
            Arrival::Execute | Arrival::Defer | Arrival::Replay | Arrival::ReplayLock => 2,
            _ => usize::MAX,
        };
        if export.executing.len() >= self.limits.requests.saturating_mul(allowance)
            || export.bytes >= self.limits.bytes.saturating_mul(allowance)
            || self.bytes >= self.limits.bytes_in_all.saturating_mul(allowance)
        {
            stdx::mark!("exports.too_much");
            return Arrival::Refuse(proto::Errno::EINPROGRESS);
        }
        if header.tag.0 > ReplySlots::tag_max(export.is_multi()) {
            return Arrival::Refuse(proto::Errno::EPROTO);
        }
        what
    }

    /// Registers a request as queued or executing.
    pub fn begin(&mut self, handle: Handle, frame: &Frame) {
        if let Some(export) = self.table.get_mut(&handle.0) {
            let bytes = frame.wire_len();
            export.bytes += bytes;
            self.bytes += bytes;
            let request = Executing { bytes, conn_cnt: frame.header.conn_cnt, changed: false };
            if let Some(old) = export.executing.insert(frame.header.xid, request) {
                export.bytes -= old.bytes;
                self.bytes -= old.bytes;
            }
        }
    }

    /// Whether a request of a client has arrived: it is queued, executing, or answered.
    pub fn has_arrived(&self, handle: Handle, xid: Xid) -> bool {
        self.get(handle).is_some_and(|export| export.executing.contains_key(&xid) || export.slots.knows(xid))
    }

    /// Whether a request is queued or executing.
    pub fn is_executing(&self, handle: Handle, xid: Xid) -> bool {
        self.get(handle).is_some_and(|export| export.executing.contains_key(&xid))
    }

    /// Unregisters a request that was answered or dropped. Returns whether to send the answer: not if the request came
    /// over an earlier connection, since the client resends it over the new one, or has done so. If that copy arrived
    /// after the answer was sent, it would be executed again once the client has moved on.
    #[must_use]
    pub fn end(&mut self, handle: Handle, xid: Xid) -> bool {
        let Some(export) = self.table.get_mut(&handle.0) else { return false };
        let Some(request) = export.executing.remove(&xid) else { return true };
        export.bytes -= request.bytes;
        self.bytes -= request.bytes;
        if request.conn_cnt != export.conn_cnt {
            stdx::mark!("exports.answer_for_older_connection");
            return false;
        }
        if request.changed && xid > export.last_xid {
            export.changed.insert(xid);
            if export.changed.len() > CHANGED_MAX {
                export.changed.pop_first();
            }
        }
        true
    }

    /// Stores the reply record of a request with a tag that made a change. Returns the record that became dirty.
    pub fn executed(&mut self, handle: Handle, tag: Tag, record: SlotRecord) -> Dirty {
        let Some(export) = self.table.get_mut(&handle.0) else { return Dirty::No };
        let fresh = export.slots.put(tag, record);
        match export.is_multi() {
            _ if !fresh || export.lightweight => Dirty::No,
            true => Dirty::Reply,
            false if core::mem::replace(&mut export.dirty, true) => Dirty::No,
            false => Dirty::Client,
        }
    }

    /// A request without a tag made a change. Its copies are recognized by xid until the client has its answer.
    pub fn changed(&mut self, handle: Handle, xid: Xid) {
        let export = self.table.get_mut(&handle.0);
        if let Some(request) = export.and_then(|export| export.executing.get_mut(&xid)) {
            request.changed = true;
        }
    }

    /// Keeps the reply to a request with a tag until the client has it, also if the request changed nothing.
    pub fn keep_reply(&mut self, handle: Handle, tag: Tag, reply: &Frame) {
        if let Some(export) = self.table.get_mut(&handle.0)
            && reply.header.xid > export.last_xid
        {
            export.slots.keep(tag, reply);
        }
    }

    /// Whether all replays that the client sent before this one have arrived. If not, the caller drops it: the global
    /// order rests on the order of each client, and the client will resend both.
    pub fn in_sequence(&mut self, handle: Handle, header: &proto::Header) -> bool {
        let Some(export) = self.table.get_mut(&handle.0) else { return false };
        if header.last_committed > export.replay_chain {
            stdx::mark!("exports.replay_missing");
            return false;
        }
        export.replay_chain = export.replay_chain.max(header.transno);
        true
    }

    /// Keeps the reply to a replay until the client must have it.
    pub fn keep_replay_answer(&mut self, handle: Handle, reply: &Frame) {
        let Some(export) = self.table.get_mut(&handle.0) else { return };
        export.replay_answers.push_back(reply.clone());
        // A client has at most a window of unanswered replays; twice that is a safe bound.
        while export.replay_answers.len() > 2 * REPLAY_WINDOW {
            export.replay_answers.pop_front();
        }
    }

    /// The kept reply to a request.
    pub fn first_answer(&self, handle: Handle, frame: &Frame) -> Option<Frame> {
        let export = self.table.get(&handle.0)?;
        let header = &frame.header;
        if header.has(flags::REPLAY) {
            return export.replay_answers.iter().find(|reply| reply.header.xid == header.xid).cloned();
        }
        export.slots.reply(header.tag, header.xid).cloned()
    }

    /// The reply record of a slot.
    pub fn record(&self, handle: Handle, tag: Tag) -> Option<&SlotRecord> {
        Some(&self.table.get(&handle.0)?.slots.get(tag)?.record)
    }

    /// Exports that were silent since `since`, except those that recovery waits for and those that need not ping.
    pub fn silent(&self, since: Instant) -> Vec<Handle> {
        let talks = |export: &&Export| export.features & features::PINGLESS == 0;
        self.iter().filter(|e| e.phase == Phase::Normal && e.heard < since).filter(talks).map(|e| e.handle).collect()
    }

    /// Ends recovery: drops all replies to replays.
    pub fn recovery_over(&mut self) {
        for export in self.table.values_mut() {
            export.replay_answers = VecDeque::new();
            export.replay_failed = None;
            export.phase = Phase::Normal;
        }
    }
}

/// Most changes without a tag that are remembered for a client that announces no `last_xid`.
const CHANGED_MAX: usize = 4096;

/// Longest description of a client, in bytes.
const DESCRIPTION_MAX: usize = 256;

/// Makes a description safe for logs and tables: limits its length and replaces control characters.
pub(crate) fn printable(description: &str) -> String {
    let fits = description.char_indices().take_while(|(at, c)| at + c.len_utf8() <= DESCRIPTION_MAX);
    fits.map(|(_, c)| if c.is_control() { ' ' } else { c }).collect()
}

fn class(header: &proto::Header) -> Class {
    match Opcode::from_raw(header.opcode).map(|opcode| opcode.traits().in_recovery) {
        Some(InRecovery::AtOnce) => Class::AnyTime,
        Some(InRecovery::WithLocks) if header.has(flags::REPLAY) => Class::LockReplay,
        _ => Class::Normal,
    }
}
