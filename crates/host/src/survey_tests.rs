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
    /// Names that are found, and the objects that getattr and setxattr were for.
    found: BTreeMap<Vec<u8>, Fid>,
    objects: Vec<Fid>,
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
                Reint::Setxattr(op) => {
                    self.objects.push(op.fid);
                    "setxattr"
                }
                other => panic!("{other:?}"),
            },
            Some(Opcode::MdsLookup) => {
                let name = frame.decode::<LookupReq>().unwrap().name;
                let attr = self.found.get(&name[..]).map(|fid| proto::msg::Attr { fid: *fid, ..Default::default() });
                body = ObjectRep { attr, ..ObjectRep::default() }.encode_to_vec().into();
                "lookup"
            }
            Some(Opcode::MdsGetattr) => {
                self.objects.push(frame.decode::<GetattrReq>().unwrap().fid);
                "getattr"
            }
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

fn plan(threads: u32, outstanding: u32, folders: u32, files: u64) -> Plan {
    let folder = |number| Folder::new(Fid::new(Fid::SEQ_FIRST, number + 1), 0, 1, 0);
    let folders = (0..folders).map(folder).collect();
    Plan { threads, outstanding, folders, files, start: 2, content: Content::Own }
}

fn open(plan: Plan) -> Survey {
    Survey::new("fs-MDT0000".to_owned(), plan, 100).unwrap()
}

fn survey(threads: u32, outstanding: u32, folders: u32, files: u64) -> Survey {
    open(plan(threads, outstanding, folders, files))
}

/// The names in each directory.
fn by_folder(target: &Imitation) -> BTreeMap<Vec<u8>, Vec<String>> {
    let mut names: BTreeMap<Vec<u8>, Vec<String>> = BTreeMap::new();
    let width = Fid::ROOT.to_key().len();
    for key in &target.names {
        let (folder, name) = key.split_at(width);
        names.entry(folder.to_vec()).or_default().push(String::from_utf8(name.to_vec()).unwrap());
    }
    names
}

#[test]
fn every_test_does_every_file_once_and_nothing_is_left() {
    let mut target = Imitation::default();
    let mut survey = survey(4, 2, 3, 800);
    target.drive(&mut survey, ALL);
    assert_eq!((target.count("connect"), survey.status().running), (8, false));
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
        if test == Test::Create {
            let all: Vec<usize> = by_folder(&target).values().map(Vec::len).collect();
            assert_eq!(all, [400, 200, 200], "thread 3 works where thread 0 does");
        }
    }
    survey.order(&Order::Close).unwrap();
    target.drive(&mut survey, ALL);
    assert!(survey.is_over() && target.names.is_empty());
    assert_eq!((target.count("disconnect"), survey.take_conns().len()), (8, 8));
    assert!(survey.take_conns().is_empty());
}

#[test]
fn a_stream_has_all_its_sequences_before_the_first_test() {
    for (files, sequences) in [(u64::from(Fid::OID_MAX), 1), (u64::from(Fid::OID_MAX) + 1, 2)] {
        let mut target = Imitation::default();
        let mut survey = survey(1, 1, 1, files);
        target.drive(&mut survey, ALL);
        assert_eq!(target.count("sequence"), sequences);
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
        let plan = plan(threads, outstanding, folders, files);
        assert!(Survey::new("fs-MDT0000".to_owned(), plan.clone(), 0).is_err(), "{plan:?}");
    }
}

#[test]
fn the_names_of_a_stripe_belong_to_it() {
    let mut all = std::collections::BTreeSet::new();
    for stripe in 0..3 {
        let mut target = Imitation::default();
        let mut plan = plan(2, 1, 1, 200);
        plan.folders = vec![Folder::new(Fid::new(Fid::SEQ_FIRST, 1), DirHash::Crush as i32, 3, stripe)];
        let mut survey = open(plan);
        target.drive(&mut survey, ALL);
        survey.order(&Order::Run(Test::Create)).unwrap();
        target.drive(&mut survey, ALL);
        let names = by_folder(&target).into_values().next().unwrap();
        assert_eq!(names.len(), 200);
        for name in names {
            assert_eq!(stripes::of_hash(DirHash::Crush, name.as_bytes(), 3), stripe, "{name}");
            assert!(all.insert(name), "surveys of several targets may work in one directory");
        }
        survey.order(&Order::Close).unwrap();
        target.drive(&mut survey, ALL);
        assert!(survey.is_over() && target.names.is_empty());
    }
}

#[test]
fn what_is_made_for_others_stays() {
    for (test, word) in [(Test::Create, "create"), (Test::Mkdir, "mkdir")] {
        let mut target = Imitation::default();
        let mut survey = open(Plan { content: Content::Made, ..plan(2, 1, 2, 10) });
        target.drive(&mut survey, ALL);
        survey.order(&Order::Run(test)).unwrap();
        target.drive(&mut survey, ALL);
        survey.order(&Order::Close).unwrap();
        target.drive(&mut survey, ALL);
        assert!(survey.is_over());
        assert_eq!((target.count(word), target.count("unlink"), target.count("disconnect")), (10, 0, 2), "{word}");
        let names: Vec<Vec<String>> = by_folder(&target).into_values().collect();
        assert_eq!(names, [["f2", "f3", "f4", "f5", "f6"], ["f10", "f11", "f7", "f8", "f9"]], "{word}");
    }
}

#[test]
fn files_of_others_are_found_by_their_names() {
    let mut target = Imitation::default();
    let file = |number: u32| (format!("f{number}").into_bytes(), Fid::new(Fid::SEQ_FIRST + 9, number));
    target.found = (2..12).map(file).collect();
    let mut survey = open(Plan { content: Content::Found, ..plan(2, 1, 1, 10) });
    target.drive(&mut survey, ALL);
    assert_eq!(target.count("sequence"), 0);
    for (test, lookups) in [(Test::Lookup, 10), (Test::MdGetattr, 20), (Test::Setxattr, 30)] {
        survey.order(&Order::Run(test)).unwrap();
        target.drive(&mut survey, ALL);
        assert_eq!((survey.status().done, survey.status().failure), (10, None), "{test:?}");
        assert_eq!(target.count("lookup"), lookups, "{test:?}");
        let mut objects = std::mem::take(&mut target.objects);
        objects.sort_unstable();
        let all: Vec<Fid> = if test == Test::Lookup { Vec::new() } else { target.found.values().copied().collect() };
        assert_eq!(objects.len(), all.len(), "{test:?}");
        assert!(all.iter().all(|fid| objects.contains(fid)), "{test:?}");
    }
    target.found.remove(&b"f5"[..]);
    survey.order(&Order::Run(Test::MdGetattr)).unwrap();
    target.drive(&mut survey, ALL);
    let failure = survey.status().failure.unwrap();
    assert!(failure.contains("of 'f5' failed: ") && failure.contains("there must be one"), "{failure}");
}

#[test]
fn directories_of_others_are_removed() {
    let mut target = Imitation::default();
    let folder = Fid::new(Fid::SEQ_FIRST, 1);
    let key = |number: u32| [&folder.to_key()[..], format!("f{number}").as_bytes()].concat();
    target.names = (2..6).map(key).collect();
    let mut survey = open(Plan { content: Content::Found, ..plan(2, 1, 1, 4) });
    target.drive(&mut survey, ALL);
    survey.order(&Order::Run(Test::Rmdir)).unwrap();
    target.drive(&mut survey, ALL);
    assert_eq!((target.count("rmdir"), target.names.len()), (4, 0));
}

#[test]
fn each_second_of_a_test_has_its_rate() {
    let mut target = Imitation::default();
    let mut survey = survey(1, 1, 1, 100);
    target.drive(&mut survey, ALL);
    survey.order(&Order::Run(Test::Create)).unwrap();
    let start = survey.sampled.0;
    target.drive(&mut survey, 10);
    survey.sample(start + SAMPLE / 2);
    assert!(survey.status().samples.is_empty());
    survey.sample(start + SAMPLE);
    target.drive(&mut survey, 30);
    // The target stood still for a second.
    survey.sample(start + 3 * SAMPLE);
    survey.sample(start + 4 * SAMPLE);
    assert_eq!(survey.status().samples, [10.0, 15.0, 0.0]);
}

#[test]
fn a_survey_that_nobody_asks_for_ends() {
    let mut target = Imitation::default();
    let mut survey = survey(2, 1, 1, 100);
    target.drive(&mut survey, ALL);
    survey.order(&Order::Run(Test::Create)).unwrap();
    target.drive(&mut survey, 10);
    survey.second();
    assert!(survey.status().running);
    survey.last_order = Instant::now().checked_sub(2 * PATIENCE).unwrap();
    survey.second();
    target.drive(&mut survey, ALL);
    assert_eq!((survey.status().running, survey.status().done), (false, 10));
    survey.second();
    target.drive(&mut survey, ALL);
    assert!(survey.is_over() && target.names.is_empty());
}
