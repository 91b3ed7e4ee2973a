//! The replay list: answered changes that are not durable yet, and open files.

use std::collections::BTreeMap;

use bytes::Bytes;
use proto::{Frame, Opcode, Transno, Xid};
use stdx::Map;

/// A request that is kept for replay.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) frame: Frame,
    /// An open, kept until its close is durable.
    open: bool,
}

/// Lustre's replay list (uncommitted changes) and committed list (opens). Every committed transno is lower than every
/// uncommitted one, so together they are in the order of transnos.
#[derive(Debug, Default)]
pub(crate) struct ReplayList {
    uncommitted: BTreeMap<Transno, Kept>,
    opens: BTreeMap<Transno, Kept>,
    by_xid: Map<Xid, Transno>,
    /// By transno of a close that is not durable: the opens that it closes.
    closing: BTreeMap<Transno, Vec<Xid>>,
    /// Lost changes whose replay failed. The server evicts the client for these.
    refused: BTreeMap<Transno, Frame>,
    committed: Transno,
    bytes: usize,
}

impl ReplayList {
    /// Keeps an answered request, whose frame carries its transno. A durable one is kept only if it is an open.
    pub(crate) fn keep(&mut self, frame: Frame, open: bool) {
        let (transno, xid) = (frame.header.transno, frame.header.xid);
        let durable = transno <= self.committed;
        if durable && !open {
            return;
        }
        self.bytes += frame.wire_len();
        self.by_xid.insert(xid, transno);
        let list = if durable { &mut self.opens } else { &mut self.uncommitted };
        if let Some(old) = list.insert(transno, Kept { frame, open }) {
            // Two requests with one transno: a broken server. Either of them may be kept.
            self.bytes -= old.frame.wire_len();
            if old.frame.header.xid != xid {
                self.by_xid.remove(&old.frame.header.xid);
            }
        }
    }

    /// Everything up to `transno` is durable.
    pub(crate) fn committed(&mut self, transno: Transno) {
        if transno <= self.committed {
            return;
        }
        self.committed = transno;
        while let Some(entry) = self.uncommitted.first_entry() {
            if *entry.key() > transno {
                break;
            }
            let (at, kept) = entry.remove_entry();
            if kept.open {
                self.opens.insert(at, kept);
            } else {
                self.bytes -= kept.frame.wire_len();
                self.by_xid.remove(&kept.frame.header.xid);
            }
        }
        while let Some(entry) = self.closing.first_entry() {
            if *entry.key() > transno {
                break;
            }
            for xid in entry.remove() {
                self.forget(xid);
            }
        }
    }

    /// The open `xid` was closed by the change `close`, which is 0 if it changed nothing.
    pub(crate) fn closed(&mut self, xid: Xid, close: Transno) {
        if close <= self.committed {
            self.forget(xid);
        } else {
            self.closing.entry(close).or_default().push(xid);
        }
    }

    /// Drops a request.
    pub(crate) fn forget(&mut self, xid: Xid) {
        let Some(transno) = self.by_xid.remove(&xid) else { return };
        if let Some(kept) = self.uncommitted.remove(&transno).or_else(|| self.opens.remove(&transno)) {
            self.bytes -= kept.frame.wire_len();
        }
    }

    /// The replay of `xid` failed. A durable open and a close do not count as lost changes.
    pub(crate) fn refuse(&mut self, xid: Xid) {
        let Some(transno) = self.by_xid.get(&xid).copied() else { return };
        if let Some(kept) = self.uncommitted.get(&transno)
            && kept.frame.header.opcode != Opcode::MdsClose as u16
        {
            self.refused.insert(transno, kept.frame.clone());
        }
        self.forget(xid);
    }

    /// The first lost change whose replay failed.
    pub(crate) fn first_refused(&self) -> Option<Transno> {
        self.refused.keys().next().copied()
    }

    /// Replaces the body of a kept request. Returns whether it is kept.
    pub(crate) fn amend(&mut self, xid: Xid, body: Bytes) -> bool {
        let Some(transno) = self.by_xid.get(&xid) else { return false };
        let kept = match self.uncommitted.get_mut(transno) {
            Some(kept) => Some(kept),
            None => self.opens.get_mut(transno),
        };
        let Some(kept) = kept else { return false };
        self.bytes = self.bytes - kept.frame.body.len() + body.len();
        kept.frame.body = body;
        true
    }

    /// The kept request with the lowest transno above `cursor`.
    pub(crate) fn after(&self, cursor: Transno) -> Option<&Frame> {
        let from = Transno(cursor.0 + 1);
        self.opens.range(from..).next().or_else(|| self.uncommitted.range(from..).next()).map(|(_, kept)| &kept.frame)
    }

    /// The lowest uncommitted transno; 0 if none.
    pub(crate) fn first(&self) -> Transno {
        self.uncommitted.keys().next().copied().unwrap_or_default()
    }

    /// The highest transno known to be durable.
    pub(crate) fn last_committed(&self) -> Transno {
        self.committed
    }

    /// The highest uncommitted transno, or the last committed one.
    pub(crate) fn last(&self) -> Transno {
        self.uncommitted.keys().next_back().copied().unwrap_or(self.committed)
    }

    /// Number of uncommitted changes, and of opens kept although durable.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.uncommitted.len(), self.opens.len())
    }

    /// Size of all kept frames, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Clears the list after an eviction, since transnos may restart. Returns the changes after `durable` and those
    /// whose replay failed.
    pub(crate) fn clear(&mut self, durable: Transno) -> Vec<Frame> {
        let ReplayList { mut uncommitted, refused, .. } = core::mem::take(self);
        let after = uncommitted.split_off(&Transno(durable.0.saturating_add(1))).into_values().map(|kept| kept.frame);
        refused.into_values().chain(after).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Header;

    fn frame(xid: u64, transno: u64) -> Frame {
        Frame { header: Header { xid: Xid(xid), transno: Transno(transno), ..Header::default() }, ..Frame::default() }
    }

    fn order(list: &ReplayList) -> Vec<u64> {
        let mut cursor = Transno(0);
        let mut order = Vec::new();
        while let Some(frame) = list.after(cursor) {
            cursor = frame.header.transno;
            order.push(cursor.0);
        }
        order
    }

    #[test]
    fn an_open_is_kept_until_its_close_is_durable() {
        let mut list = ReplayList::default();
        list.keep(frame(1, 10), true);
        list.keep(frame(2, 11), false);
        list.committed(Transno(11));
        assert_eq!(order(&list), [10], "the open stays, the change is durable");
        list.keep(frame(3, 12), false);
        list.closed(Xid(1), Transno(12));
        assert_eq!(order(&list), [10, 12], "open and close are replayed");
        list.committed(Transno(12));
        assert_eq!(order(&list), Vec::<u64>::new());
        assert_eq!((list.len(), list.bytes()), ((0, 0), 0));
    }

    #[test]
    fn what_could_not_be_done_again_is_lost_whatever_is_durable() {
        let mut list = ReplayList::default();
        list.keep(frame(1, 10), true);
        list.committed(Transno(10));
        (2..5).for_each(|xid| list.keep(frame(xid, 9 + xid), false));
        list.refuse(Xid(1));
        list.refuse(Xid(3));
        assert_eq!(order(&list), [11, 13]);
        assert_eq!(list.first_refused(), Some(Transno(12)), "the open was durable");
        let lost: Vec<u64> = list.clear(Transno(12)).iter().map(|frame| frame.header.transno.0).collect();
        assert_eq!(lost, [12, 13]);
        assert_eq!(list.first_refused(), None);
    }

    #[test]
    fn an_open_answered_when_durable_is_kept_all_the_same_and_can_be_amended() {
        let mut list = ReplayList::default();
        list.committed(Transno(20));
        list.keep(frame(1, 19), true);
        list.keep(frame(2, 20), false);
        assert_eq!(order(&list), [19]);
        assert!(list.amend(Xid(1), Bytes::from_static(b"opened")));
        assert!(!list.amend(Xid(2), Bytes::new()));
        assert_eq!(list.after(Transno(0)).map(|f| f.body.clone()), Some(Bytes::from_static(b"opened")));
        list.closed(Xid(1), Transno(0));
        assert_eq!(list.bytes(), 0);
    }
}
