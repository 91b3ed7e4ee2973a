//! Tests of surveys against an imitation of a target.

use std::collections::BTreeMap;

use super::*;

/// Counts the requests that the target got, and answers them.
#[derive(Default)]
struct Imitation {
    asked: BTreeMap<&'static str, u64>,
    names: std::collections::BTreeSet<Vec<u8>>,
    next_sequence: u64,
    /// Creates fail once this many files exist.
    full_after: Option<u64>,
}

impl Imitation {
    fn answer(&mut self, frame: &Frame) -> Frame {
        let mut header = Header { flags: flags::REPLY, xid: frame.header.xid, ..Header::default() };
        let mut body = Bytes::new();
        let what = match Opcode::from_raw(frame.header.opcode) {
            Some(Opcode::Connect) => {
                header.export = Handle(frame.header.xid.0);
                "connect"
            }
            Some(Opcode::SeqAlloc) => {
                self.next_sequence += 1;
                let reply = SeqAllocRep { seq: Fid::SEQ_FIRST + self.next_sequence, width: Fid::OID_MAX };
                body = reply.encode_to_vec().into();
                "sequence"
            }
            Some(Opcode::MdsReint) => match frame.decode::<ReintReq>().unwrap().op.unwrap() {
                Reint::Create(op) => {
                    let made = self.asked.get("create").copied().unwrap_or(0);
                    if op.mode == MODE_FILE && self.full_after.is_some_and(|limit| made >= limit) {
                        header.status = -Errno::ENOSPC.raw();
                        "refused"
                    } else {
                        assert!(self.names.insert([&op.parent.to_key()[..], &op.name].concat()), "made twice");
                        if op.mode == MODE_FILE { "create" } else { "mkdir" }
                    }
                }
                Reint::Unlink(op) => {
                    assert!(self.names.remove(&[&op.parent.to_key()[..], &op.name].concat()), "removed twice");
                    if op.rmdir { "rmdir" } else { "unlink" }
                }
                _ => "setxattr",
            },
            Some(Opcode::MdsLookup) => "lookup",
            Some(Opcode::MdsGetattr) => "getattr",
            Some(Opcode::Disconnect) => "disconnect",
            other => panic!("{other:?}"),
        };
        *self.asked.entry(what).or_default() += 1;
        Frame { header, body, bulk: Bytes::new() }
    }

    /// Runs until no request is outstanding, or for `limit` requests.
    fn drive(&mut self, survey: &mut Survey, limit: usize) {
        for _ in 0..limit {
            let mut frames = Vec::new();
            survey.send(1, &mut frames);
            let Some((conn, frame)) = frames.pop() else { return };
            survey.receive(conn, &self.answer(&frame));
        }
    }

    fn count(&self, what: &str) -> u64 {
        self.asked.get(what).copied().unwrap_or(0)
    }
}

const ALL: usize = usize::MAX;

fn survey(threads: u32, outstanding: u32, folders: u32, files: u64) -> Survey {
    Survey::new("fs-MDT0000".to_owned(), Plan { threads, outstanding, folders, files, start: 2 }, 100).unwrap()
}

#[test]
fn every_test_does_every_file_once_and_nothing_is_left() {
    let mut target = Imitation::default();
    let mut survey = survey(4, 2, 3, 800);
    target.drive(&mut survey, ALL);
    assert_eq!((target.count("connect"), target.count("mkdir"), survey.status().running), (8, 3, false));
    for (test, word) in [
        (Test::Create, "create"),
        (Test::Lookup, "lookup"),
        (Test::MdGetattr, "getattr"),
        (Test::Setxattr, "setxattr"),
        (Test::Destroy, "unlink"),
    ] {
        survey.order(&Order::Run(test)).unwrap();
        assert!(survey.status().running);
        target.drive(&mut survey, ALL);
        assert_eq!((target.count(word), survey.status().done, survey.status().running), (800, 800, false), "{word}");
    }
    survey.order(&Order::Close).unwrap();
    target.drive(&mut survey, ALL);
    assert!(survey.is_over() && target.names.is_empty());
    assert_eq!((target.count("rmdir"), target.count("disconnect"), survey.take_conns().len()), (3, 8, 8));
    assert!(survey.take_conns().is_empty());
}

#[test]
fn a_stream_has_all_its_sequences_before_the_first_test() {
    for (files, sequences) in [(u64::from(Fid::OID_MAX) - 1, 1), (u64::from(Fid::OID_MAX), 2)] {
        let mut target = Imitation::default();
        let mut survey = survey(1, 1, 1, files);
        target.drive(&mut survey, ALL);
        assert_eq!(target.count("sequence"), sequences, "one FID is the folder's");
        survey.order(&Order::Run(Test::Create)).unwrap();
        target.drive(&mut survey, ALL);
        assert_eq!((target.count("sequence"), survey.status().done), (sequences, files));
    }
}

#[test]
fn a_full_target_ends_the_test_with_the_figures_so_far() {
    let mut target = Imitation { full_after: Some(50), ..Imitation::default() };
    let mut survey = survey(4, 1, 1, 400);
    target.drive(&mut survey, ALL);
    survey.order(&Order::Run(Test::Create)).unwrap();
    target.drive(&mut survey, ALL);
    let status = survey.status();
    assert_eq!((status.running, status.done), (false, 50));
    assert!(status.failure.unwrap().contains("No space left on device"));
    survey.order(&Order::Close).unwrap();
    target.drive(&mut survey, ALL);
    assert!(survey.is_over() && target.names.is_empty());
}

#[test]
fn a_stopped_test_waits_for_its_answers_and_what_was_made_is_removed() {
    let mut target = Imitation::default();
    let mut survey = survey(4, 1, 2, 4000);
    target.drive(&mut survey, ALL);
    survey.order(&Order::Run(Test::Create)).unwrap();
    assert!(survey.order(&Order::Close).is_err() && survey.order(&Order::Run(Test::Lookup)).is_err());
    target.drive(&mut survey, 100);
    let mut frames = Vec::new();
    survey.send(2, &mut frames);
    survey.order(&Order::Stop).unwrap();
    assert!(survey.status().running);
    for (conn, frame) in frames {
        survey.receive(conn, &target.answer(&frame));
    }
    assert!(!survey.status().running);
    survey.order(&Order::Close).unwrap();
    target.drive(&mut survey, ALL);
    assert!(survey.is_over() && target.names.is_empty());
    assert_eq!(target.count("create"), target.count("unlink"));
}

#[test]
fn a_session_that_is_ended_ends_the_test() {
    let mut target = Imitation::default();
    let mut survey = survey(2, 1, 1, 100);
    target.drive(&mut survey, ALL);
    survey.order(&Order::Run(Test::Create)).unwrap();
    target.drive(&mut survey, 10);
    survey.hung_up(ConnId(101));
    assert!(!survey.status().running && survey.status().failure.is_some());
}

#[test]
fn plans_without_sense_are_refused() {
    for (threads, outstanding, folders, files) in
        [(0, 1, 1, 10), (1, 0, 1, 10), (1, 1, 0, 10), (1, 1, 2, 10), (4, 4, 1, 10), (100_000, 1, 1, 1 << 30)]
    {
        let plan = Plan { threads, outstanding, folders, files, start: 0 };
        assert!(Survey::new("fs-MDT0000".to_owned(), plan, 0).is_err(), "{plan:?}");
    }
}
