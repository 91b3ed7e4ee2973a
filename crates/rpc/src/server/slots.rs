//! Reply records of one export: the result of the last request of each slot.
//!
//! A client has a slot for each change that it may have in flight, and reuses a slot only after it has the answer to
//! the slot's last request. So a record is obsolete once its slot is used again, or once the client announces
//! (`last_xid`) that it has all answers up to it. An obsolete record remains until the slot's next record replaces it,
//! so that the one with the client's highest transno always exists.
//!
//! A request that failed and changed nothing leaves no record, only its answer in memory, for as long as the client may
//! lack it. Otherwise a second copy of it might succeed.

use proto::connect::TAG_MAX;
use proto::{Frame, Tag, Transno, Xid};

use super::XidState;

/// Reply record: the result of a modifying request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SlotRecord {
    /// Xid of the request; 0 is none.
    pub xid: Xid,
    /// Its transno.
    pub transno: Transno,
    /// Its status.
    pub status: i32,
    /// Data from which the operation reconstructs the reply.
    pub data: u64,
    /// Versions before the change.
    pub pre_versions: [u64; 4],
}

/// State of a slot.
#[derive(Clone, Debug, Default)]
pub struct SlotState {
    /// Written to the store with the change.
    pub record: SlotRecord,
    /// The reply to `record.xid`, until the client has it. Lost in a restart.
    reply: Option<Frame>,
    /// The answer to a request that changed nothing, until the client has it. Lost in a restart.
    unchanged: Option<Frame>,
    /// The client may still need the record.
    held: bool,
    /// The record differs from the store.
    dirty: bool,
}

/// Counters, as the parameter `reply_data` shows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReplyCounters {
    /// Records that the client may still need.
    pub held: u64,
    /// Maximum of `held`.
    pub held_max: u64,
    /// Released because the client announced that it has the answer.
    pub released_by_xid: u64,
    /// Released because their slot was used again.
    pub released_by_tag: u64,
}

/// All slots of an export.
#[derive(Debug, Default)]
pub struct ReplySlots {
    slots: Vec<SlotState>,
    counters: ReplyCounters,
    /// All xids up to this one are released.
    released: Xid,
}

fn index(tag: Tag) -> Option<usize> {
    usize::from(tag.0).checked_sub(1)
}

impl ReplySlots {
    /// The highest tag that a client may use.
    pub fn tag_max(multi: bool) -> u16 {
        if multi { TAG_MAX } else { 2 }
    }

    /// A slot with a record.
    pub fn get(&self, tag: Tag) -> Option<&SlotState> {
        self.slots.get(index(tag)?).filter(|slot| slot.record.xid.0 != 0)
    }

    pub(crate) fn get_mut(&mut self, tag: Tag) -> Option<&mut SlotState> {
        self.slots.get_mut(index(tag)?).filter(|slot| slot.record.xid.0 != 0)
    }

    /// All records, by tag.
    pub fn iter(&self) -> impl Iterator<Item = (Tag, &SlotRecord)> {
        (1..)
            .map(Tag)
            .zip(&self.slots)
            .filter(|(_, slot)| slot.record.xid.0 != 0)
            .map(|(tag, slot)| (tag, &slot.record))
    }

    /// Counters.
    pub fn counters(&self) -> ReplyCounters {
        self.counters
    }

    /// What is known about a request.
    pub fn found(&self, tag: Tag, xid: Xid) -> XidState {
        let Some(slot) = index(tag).and_then(|at| self.slots.get(at)) else { return XidState::Nothing };
        let unchanged = slot.unchanged.as_ref().map_or(Xid(0), |reply| reply.header.xid);
        match () {
            () if slot.record.xid.max(unchanged) > xid => XidState::Newer,
            () if self.reply(tag, xid).is_some() => XidState::Reply,
            () if slot.record.xid < xid => XidState::Nothing,
            () => XidState::Record,
        }
    }

    /// Whether a request was answered and no later one in its slot.
    pub(crate) fn knows(&self, xid: Xid) -> bool {
        let is = |reply: &Option<Frame>| reply.as_ref().is_some_and(|reply| reply.header.xid == xid);
        self.slots.iter().any(|slot| slot.record.xid == xid || is(&slot.reply) || is(&slot.unchanged))
    }

    /// The answer to a request, if it is kept.
    pub(crate) fn reply(&self, tag: Tag, xid: Xid) -> Option<&Frame> {
        let slot = self.slots.get(index(tag)?)?;
        [&slot.reply, &slot.unchanged].into_iter().flatten().find(|reply| reply.header.xid == xid)
    }

    /// Keeps the answer to a request until the client has it, with the record if there is one.
    pub(crate) fn keep(&mut self, tag: Tag, reply: &Frame) {
        let Some(at) = index(tag).filter(|at| *at < usize::from(TAG_MAX)) else { return };
        let xid = reply.header.xid;
        let slot = self.slot(at);
        match () {
            () if slot.record.xid == xid => slot.reply = Some(reply.clone()),
            () if slot.record.xid < xid => slot.unchanged = Some(reply.clone()),
            () => {}
        }
    }

    fn slot(&mut self, at: usize) -> &mut SlotState {
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, SlotState::default);
        }
        &mut self.slots[at]
    }

    /// Restores a record from the store, at start.
    pub(crate) fn restore(&mut self, tag: Tag, record: SlotRecord) {
        if self.put(tag, record) {
            self.clean(tag);
        }
    }

    /// Replaces the slot's record by that of an executed request, unless it belongs to a later request. Returns whether
    /// the slot became dirty.
    pub(crate) fn put(&mut self, tag: Tag, record: SlotRecord) -> bool {
        let Some(at) = index(tag).filter(|at| *at < usize::from(TAG_MAX)) else { return false };
        let slot = self.slot(at);
        if slot.record.xid >= record.xid {
            // An older request of the slot, given up by the client, finished after a newer one.
            return false;
        }
        let was_dirty = slot.dirty;
        let later = slot.unchanged.take_if(|reply| reply.header.xid > record.xid);
        if slot.held {
            self.counters.released_by_tag += 1;
        } else {
            self.counters.held += 1;
            self.counters.held_max = self.counters.held_max.max(self.counters.held);
        }
        self.slots[at] = SlotState { record, reply: None, unchanged: later, held: true, dirty: true };
        !was_dirty
    }

    /// The client announced that it has all answers up to `xid`.
    pub(crate) fn release(&mut self, xid: Xid) {
        if xid <= self.released {
            return;
        }
        self.released = xid;
        for slot in &mut self.slots {
            slot.unchanged.take_if(|reply| reply.header.xid <= xid);
            if slot.held && slot.record.xid <= xid {
                slot.held = false;
                slot.reply = None;
                self.counters.held -= 1;
                self.counters.released_by_xid += 1;
            }
        }
    }

    /// Marks all records dirty.
    pub(crate) fn all_dirty(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.record.xid.0 != 0) {
            slot.dirty = true;
        }
    }

    /// Marks a slot clean, because its record is being stored. Returns the record if it was dirty.
    pub fn clean(&mut self, tag: Tag) -> Option<SlotRecord> {
        let slot = self.get_mut(tag)?;
        core::mem::replace(&mut slot.dirty, false).then_some(slot.record)
    }

    /// The highest transno of all records.
    pub fn last_transno(&self) -> Transno {
        self.slots.iter().map(|slot| slot.record.transno).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(xid: u64, transno: u64) -> SlotRecord {
        SlotRecord { xid: Xid(xid), transno: Transno(transno), ..SlotRecord::default() }
    }

    fn keep(slots: &mut ReplySlots, tag: u16, xid: u64) {
        slots.keep(Tag(tag), &reply(xid));
        assert_eq!(slots.found(Tag(tag), Xid(xid)), XidState::Reply);
    }

    fn reply(xid: u64) -> Frame {
        Frame { header: proto::Header { xid: Xid(xid), ..Default::default() }, ..Frame::default() }
    }

    /// All orders in which the answer to a failed request, and a record before or after it, can arrive.
    #[test]
    fn the_answer_to_what_changed_nothing_is_found_until_the_client_has_it() {
        for failed in 1..4 {
            for done in (0..4).filter(|done| *done != failed) {
                for first in [failed, done] {
                    let mut slots = ReplySlots::default();
                    let steps = if first == failed { [failed, done] } else { [done, failed] };
                    for xid in steps.into_iter().filter(|xid| *xid != 0) {
                        if xid == done {
                            slots.put(Tag(3), record(done, done));
                        }
                        slots.keep(Tag(3), &reply(xid));
                    }
                    for ask in 1..4 {
                        let want = match ask {
                            _ if ask < failed.max(done) => XidState::Newer,
                            _ if ask == failed.max(done) => XidState::Reply,
                            _ => XidState::Nothing,
                        };
                        assert_eq!(slots.found(Tag(3), Xid(ask)), want, "failed {failed}, done {done}, asked {ask}");
                    }
                    assert_eq!(slots.last_transno(), Transno(done));
                    slots.release(Xid(3));
                    assert_eq!(slots.reply(Tag(3), Xid(failed)), None, "it has it");
                }
            }
        }
    }

    #[test]
    fn a_record_goes_by_its_tag_or_by_the_xid() {
        let mut slots = ReplySlots::default();
        for tag in 1..=4 {
            assert!(slots.put(Tag(tag), record(u64::from(tag) + 10, u64::from(tag))));
            keep(&mut slots, tag, u64::from(tag) + 10);
        }
        assert!(!slots.put(Tag(1), record(20, 5)), "dirty already");
        assert_eq!(slots.clean(Tag(1)), Some(record(20, 5)));
        assert_eq!(slots.clean(Tag(1)), None);
        slots.release(Xid(12));
        let counters = slots.counters();
        assert_eq!((counters.held, counters.held_max), (3, 4));
        assert_eq!((counters.released_by_tag, counters.released_by_xid), (1, 1));
        assert_eq!(slots.found(Tag(2), Xid(12)), XidState::Record, "the record stays, the reply is gone");
        assert_eq!(slots.found(Tag(3), Xid(13)), XidState::Reply);
        slots.release(Xid(100));
        assert_eq!((slots.counters().held, slots.last_transno()), (0, Transno(5)));
        slots.release(Xid(50));
        assert!(slots.put(Tag(1), record(101, 6)));
        assert_eq!(slots.counters().held, 1);
    }

    /// All orders in which records of one slot can arrive and be looked up.
    #[test]
    fn what_is_found_is_a_matter_of_the_xid_alone() {
        for have in 0..4 {
            for put in 1..4 {
                for ask in 1..4 {
                    let mut slots = ReplySlots::default();
                    if have > 0 {
                        slots.put(Tag(7), record(have, have));
                    }
                    slots.put(Tag(7), record(put, put));
                    let newest = have.max(put);
                    let want = match ask {
                        _ if ask == newest => XidState::Record,
                        _ if ask < newest => XidState::Newer,
                        _ => XidState::Nothing,
                    };
                    assert_eq!(slots.found(Tag(7), Xid(ask)), want, "{have} {put} {ask}");
                    assert_eq!(slots.found(Tag(6), Xid(ask)), XidState::Nothing);
                    assert_eq!(slots.found(Tag(0), Xid(ask)), XidState::Nothing);
                    assert_eq!(slots.last_transno(), Transno(newest));
                }
            }
        }
    }

    #[test]
    fn tags_beyond_all_limits_hold_nothing() {
        let mut slots = ReplySlots::default();
        assert!(!slots.put(Tag(TAG_MAX + 1), record(1, 1)) && !slots.put(Tag(0), record(1, 1)));
        assert!(slots.put(Tag(TAG_MAX), record(1, 1)));
        assert_eq!(slots.iter().map(|(tag, _)| tag).collect::<Vec<_>>(), [Tag(TAG_MAX)]);
    }
}
