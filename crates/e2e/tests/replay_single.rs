//! Cases of Lustre's replay-single by their numbers: requests and answers that are lost while others are in flight, and a
//! metadata server that is killed and started again.
//!
//! Two programs work in directories of their own: A has `d1/f` open and closes it, B makes `d2/f`. Their request or answer
//! is lost. In Lustre a program waits for its close, so the cases look whether A has ended; here nobody waits for a close,
//! so they look whether the server has done it and whether the client waits for its answer.

use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use e2e::faults::{ONCE, wait_for};
use e2e::{Cluster, Shape, Story, needs_root};

const REINT_NET: u32 = 0x107;
const CLOSE_NET: u32 = 0x115;
const REINT_NET_REP: u32 = 0x119;
const CLOSE_NET_REP: u32 = 0x13b;

/// A request that is lost is sent again after 10 seconds: what took less did not wait for that.
const AT_ONCE: Duration = Duration::from_secs(6);

/// What is lost.
#[derive(Clone, Copy)]
struct Case {
    /// Of B's create; it is lost before A closes.
    create: Option<u32>,
    /// Of A's close.
    close: Option<u32>,
    /// Whether what was done since does not reach the disk.
    barrier: bool,
}

/// A program that makes a file without opening it, as `mcreate`.
fn begin_mcreate(path: PathBuf) -> JoinHandle<()> {
    std::thread::spawn(move || mcreate(&path))
}

#[track_caller]
fn mcreate(path: &Path) {
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::RegularFile, mode, 0).unwrap();
}

fn play(name: &str, case: Case) {
    if !needs_root() {
        return;
    }
    let story = Story::begin(name, Duration::from_secs(60));
    let mut cluster = Cluster::start(&story, Shape::with_faults());
    let (d1, d2) = (cluster.mount(0).join("d1"), cluster.mount(0).join("d2"));
    std::fs::create_dir(&d1).unwrap();
    std::fs::create_dir(&d2).unwrap();
    let a = File::create(d1.join("f")).unwrap();
    wait_for("one file is open", || cluster.open_files() == 1 && cluster.in_flight() == 0);

    let start = Instant::now();
    let waiting = case.create.map(|loc| {
        cluster.fail_loc(loc);
        let b = begin_mcreate(d2.join("f"));
        cluster.await_hit();
        b
    });
    if case.create.is_some() {
        assert_eq!(cluster.in_flight(), 1, "B waits");
    }
    cluster.fail_loc(case.close.unwrap_or(0));
    drop(a);
    if case.close.is_some() {
        cluster.await_hit();
        cluster.fail_loc(0);
    }
    // A request that is lost leaves the file open, an answer that is lost does not.
    let still_open = usize::from(case.close.is_some_and(|loc| loc & 0xffff == CLOSE_NET));
    let unanswered = usize::from(case.close.is_some()) + usize::from(case.create.is_some());
    wait_for("what was lost is waited for", || (cluster.open_files(), cluster.in_flight()) == (still_open, unanswered));
    if waiting.is_none() {
        mcreate(&d2.join("f"));
    }
    assert!(waiting.as_ref().is_none_or(|b| !b.is_finished()), "B's answer cannot have come");
    if case.barrier {
        cluster.replay_barrier();
    }
    assert_eq!(cluster.in_flight(), unanswered, "what was lost is still waited for");
    assert!(start.elapsed() < AT_ONCE, "somebody waited for what was lost: {:.1?}", start.elapsed());

    cluster.fail_mdt();
    if let Some(b) = waiting {
        b.join().expect("B's create succeeds");
    }
    wait_for("A's close is done", || (cluster.open_files(), cluster.in_flight()) == (0, 0));
    for file in [d1.join("f"), d2.join("f")] {
        let kind = std::fs::metadata(&file).unwrap().file_type();
        assert!(kind.is_file() && !kind.is_fifo(), "{}", file.display());
    }
    // Each exactly once.
    for folder in [&d1, &d2] {
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 1, "{}", folder.display());
    }
}

#[test]
fn replay_single_53a_close_request_while_two_requests_in_flight() {
    play("replay-single 53a", Case { create: None, close: Some(ONCE | CLOSE_NET), barrier: true });
}

#[test]
fn replay_single_53b_create_request_while_two_requests_in_flight() {
    play("replay-single 53b", Case { create: Some(ONCE | REINT_NET), close: None, barrier: true });
}

#[test]
fn replay_single_53c_create_request_and_close_request_while_two_requests_in_flight() {
    let (create, close) = (Some(ONCE | REINT_NET), Some(ONCE | CLOSE_NET));
    play("replay-single 53c", Case { create, close, barrier: true });
}

#[test]
fn replay_single_53d_close_reply_while_two_requests_in_flight() {
    play("replay-single 53d", Case { create: None, close: Some(ONCE | CLOSE_NET_REP), barrier: false });
}

#[test]
fn replay_single_53e_create_reply_while_two_requests_in_flight() {
    play("replay-single 53e", Case { create: Some(REINT_NET_REP), close: None, barrier: true });
}

#[test]
fn replay_single_53f_create_reply_and_close_reply_while_two_requests_in_flight() {
    let (create, close) = (Some(REINT_NET_REP), Some(ONCE | CLOSE_NET_REP));
    play("replay-single 53f", Case { create, close, barrier: true });
}

#[test]
fn replay_single_53g_create_reply_and_close_request_while_both_in_flight() {
    let (create, close) = (Some(REINT_NET_REP), Some(ONCE | CLOSE_NET));
    play("replay-single 53g", Case { create, close, barrier: true });
}

#[test]
fn replay_single_53h_create_request_and_close_reply_while_two_requests_in_flight() {
    let (create, close) = (Some(ONCE | REINT_NET), Some(ONCE | CLOSE_NET_REP));
    play("replay-single 53h", Case { create, close, barrier: true });
}
