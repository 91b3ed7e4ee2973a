//! Cases of Lustre's replay-single by their numbers: requests and answers that are lost while others are in flight, and a
//! metadata server that is killed and started again.
//!
//! Two programs work in directories of their own: A has `d1/f` open and closes it, B makes `d2/f`. Their request or answer
//! is lost. In Lustre a program waits for its close, so the cases look whether A is still there; here nobody waits for a close,
//! so A ends at once, with the exit status 0 as there, and they look whether the server has done the close and whether the client
//! waits for its answer.
//!
//! Each case is played in both modes. With metadata write-back, what is lost is a batch of them: B has ended,
//! too, and what it made is looked for through another mount. Files that another mount has made are not changed behind anybody's
//! back: those of the cases that need one slot for each change.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use e2e::faults::{Mode, Multiop, ONCE, finish_chmods, wait_for};
use e2e::{Cluster, Shape, Story, Which, needs_root};

const REINT_NET: u32 = 0x107;
const CLOSE_NET: u32 = 0x115;
const REINT_NET_REP: u32 = 0x119;
const CLOSE_NET_REP: u32 = 0x13b;

/// A request that is lost is sent again after 11 seconds: what took less did not wait for that.
const AT_ONCE: Duration = Duration::from_secs(6);
/// Where nothing is killed, what was lost is sent again after this.
const RESEND: Duration = Duration::from_secs(5);

/// What is lost.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    /// Of B's create; it is lost before A closes.
    create: Option<u32>,
    /// Of A's close.
    close: Option<u32>,
    /// Whether what was done since does not reach the disk.
    barrier: bool,
    /// Whether the site stays set until the server is gone.
    stays_set: bool,
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

/// A regular file, for all mounts.
#[track_caller]
fn is_regular(cluster: &Cluster, path: &str) {
    for mount in cluster.mounts() {
        let kind = std::fs::metadata(mount.join(path)).unwrap().file_type();
        assert!(kind.is_file() && !kind.is_fifo(), "{path}");
    }
}

fn play(case: Case, mode: Mode) {
    if !needs_root() {
        return;
    }
    let story = Story::begin(&format!("{} {mode:?}", case.name), Duration::from_secs(60));
    let mut cluster = Cluster::start(&story, Shape::with_faults_in(mode));
    cluster.await_mount();
    // Another mount has made A's file, so that A's open and close are requests.
    let other = cluster.mount(1).join("d1");
    std::fs::create_dir(&other).unwrap();
    mcreate(&other.join("f"));
    let (d1, d2) = (cluster.mount(0).join("d1"), cluster.mount(0).join("d2"));
    std::fs::create_dir(&d2).unwrap();
    let a = Multiop::open(&d1.join("f"));
    wait_for("one file is open", || cluster.open_files() == 1 && cluster.in_flight() == 0);

    let start = Instant::now();
    let waiting = case.create.map(|loc| {
        cluster.fail_loc(loc);
        let b = begin_mcreate(d2.join("f"));
        cluster.await_hit();
        b
    });
    if case.create.is_some() {
        assert_eq!(cluster.in_flight(), 1, "B's create waits for its answer");
    }
    cluster.fail_loc(case.close.unwrap_or(0));
    assert_eq!(a.close(), 0, "A's close");
    if case.close.is_some() {
        cluster.await_hit();
        if !case.stays_set {
            cluster.fail_loc(0);
        }
    }
    // A request that is lost leaves the file open, an answer that is lost does not.
    let still_open = usize::from(case.close.is_some_and(|loc| loc & 0xffff == CLOSE_NET));
    let unanswered = usize::from(case.close.is_some()) + usize::from(case.create.is_some());
    wait_for("what was lost is waited for", || (cluster.open_files(), cluster.in_flight()) == (still_open, unanswered));
    if waiting.is_none() {
        mcreate(&d2.join("f"));
        wait_for("what B made is made", || cluster.outstanding() == 0 && cluster.in_flight() == unanswered);
    }
    if let Some(b) = &waiting {
        match mode {
            Mode::Synchronous => assert!(!b.is_finished(), "B's answer cannot have come"),
            Mode::WriteBack => wait_for("B waits for nobody", || b.is_finished()),
        }
    }
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
    is_regular(&cluster, "d1/f");
    is_regular(&cluster, "d2/f");
    // Each exactly once.
    for folder in [&d1, &d2] {
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 1, "{}", folder.display());
    }
}

const CASE_53A: Case =
    Case { name: "replay-single 53a", create: None, close: Some(ONCE | CLOSE_NET), barrier: true, stays_set: false };

#[test]
fn replay_single_53a_close_request_while_two_requests_in_flight() {
    play(CASE_53A, Mode::WriteBack);
}

#[test]
fn replay_single_53a_close_request_while_two_requests_in_flight_sync_metadata() {
    play(CASE_53A, Mode::Synchronous);
}

const CASE_53B: Case =
    Case { name: "replay-single 53b", create: Some(ONCE | REINT_NET), close: None, barrier: true, stays_set: false };

#[test]
fn replay_single_53b_create_request_while_two_requests_in_flight() {
    play(CASE_53B, Mode::WriteBack);
}

#[test]
fn replay_single_53b_create_request_while_two_requests_in_flight_sync_metadata() {
    play(CASE_53B, Mode::Synchronous);
}

const CASE_53C: Case = Case {
    name: "replay-single 53c",
    create: Some(ONCE | REINT_NET),
    close: Some(ONCE | CLOSE_NET),
    barrier: true,
    stays_set: true,
};

#[test]
fn replay_single_53c_create_request_and_close_request_while_two_requests_in_flight() {
    play(CASE_53C, Mode::WriteBack);
}

#[test]
fn replay_single_53c_create_request_and_close_request_while_two_requests_in_flight_sync_metadata() {
    play(CASE_53C, Mode::Synchronous);
}

const CASE_53D: Case = Case {
    name: "replay-single 53d",
    create: None,
    close: Some(ONCE | CLOSE_NET_REP),
    barrier: false,
    stays_set: false,
};

#[test]
fn replay_single_53d_close_reply_while_two_requests_in_flight() {
    play(CASE_53D, Mode::WriteBack);
}

#[test]
fn replay_single_53d_close_reply_while_two_requests_in_flight_sync_metadata() {
    play(CASE_53D, Mode::Synchronous);
}

const CASE_53E: Case =
    Case { name: "replay-single 53e", create: Some(REINT_NET_REP), close: None, barrier: true, stays_set: false };

#[test]
fn replay_single_53e_create_reply_while_two_requests_in_flight() {
    play(CASE_53E, Mode::WriteBack);
}

#[test]
fn replay_single_53e_create_reply_while_two_requests_in_flight_sync_metadata() {
    play(CASE_53E, Mode::Synchronous);
}

const CASE_53F: Case = Case {
    name: "replay-single 53f",
    create: Some(REINT_NET_REP),
    close: Some(ONCE | CLOSE_NET_REP),
    barrier: true,
    stays_set: true,
};

#[test]
fn replay_single_53f_create_reply_and_close_reply_while_two_requests_in_flight() {
    play(CASE_53F, Mode::WriteBack);
}

#[test]
fn replay_single_53f_create_reply_and_close_reply_while_two_requests_in_flight_sync_metadata() {
    play(CASE_53F, Mode::Synchronous);
}

const CASE_53G: Case = Case {
    name: "replay-single 53g",
    create: Some(REINT_NET_REP),
    close: Some(ONCE | CLOSE_NET),
    barrier: true,
    stays_set: false,
};

#[test]
fn replay_single_53g_create_reply_and_close_request_while_both_in_flight() {
    play(CASE_53G, Mode::WriteBack);
}

#[test]
fn replay_single_53g_create_reply_and_close_request_while_both_in_flight_sync_metadata() {
    play(CASE_53G, Mode::Synchronous);
}

const CASE_53H: Case = Case {
    name: "replay-single 53h",
    create: Some(ONCE | REINT_NET),
    close: Some(ONCE | CLOSE_NET_REP),
    barrier: true,
    stays_set: true,
};

#[test]
fn replay_single_53h_create_request_and_close_reply_while_two_requests_in_flight() {
    play(CASE_53H, Mode::WriteBack);
}

#[test]
fn replay_single_53h_create_request_and_close_reply_while_two_requests_in_flight_sync_metadata() {
    play(CASE_53H, Mode::Synchronous);
}

const REINT_MULTI_NET: u32 = 0x159;
const REINT_MULTI_NET_REP: u32 = 0x15a;
const LDLM_REPLY_NET: u32 = 0x157;

/// As many files as the client has slots, with the mode 0644, for each of which a change is a request.
fn files_for_all_slots(cluster: &Cluster) -> Vec<PathBuf> {
    cluster.await_mount();
    let files = cluster.make_files("d", cluster.slots());
    cluster.set_on(Which::Mdt(0), "mdt.*.stats", "clear").ok();
    files
}

/// More files of the mount's own: changes of them go in batches, of which one at a time is on its way. And how many batches it has
/// sent before.
fn own_files(cluster: &Cluster) -> (Vec<PathBuf>, usize) {
    let files = cluster.make_own_files("own", 3 * cluster.slots());
    cluster.set_on(Which::Mdt(0), "mdt.*.stats", "clear").ok();
    (files, cluster.batches())
}

fn begin(name: &str, mode: Mode) -> (Story, Cluster) {
    let story = Story::begin(&format!("{name} {mode:?}"), Duration::from_secs(90));
    let cluster = Cluster::start(&story, Shape::with_faults_in(mode));
    (story, cluster)
}

fn lost_requests(mode: Mode) {
    if !needs_root() {
        return;
    }
    let (_story, cluster) = begin("replay-single 102a", mode);
    cluster.resend_after(RESEND);
    let files = files_for_all_slots(&cluster);
    let waiting = cluster.begin_chmods(REINT_MULTI_NET, 0o600, &files);
    assert_eq!(cluster.requests_done("mds_reint"), 0, "they were lost before they were done");
    cluster.fail_loc(0);
    finish_chmods(waiting, 0o600, &files);
    assert_eq!(cluster.requests_done("mds_reint"), files.len());
    if mode == Mode::WriteBack {
        let (files, before) = own_files(&cluster);
        cluster.chmod_behind(REINT_MULTI_NET, 0o600, &files);
        assert_eq!(cluster.requests_done("mds_batch"), 0, "the batch was lost before it was done");
        cluster.fail_loc(0);
        cluster.await_modes(0o600, &files);
        assert_eq!(cluster.requests_done("mds_batch"), cluster.batches() - before, "each was done once");
    }
}

#[test]
fn replay_single_102a_resend_of_lost_requests_with_many_changes_in_flight() {
    lost_requests(Mode::WriteBack);
}

#[test]
fn replay_single_102a_resend_of_lost_requests_with_many_changes_in_flight_sync_metadata() {
    lost_requests(Mode::Synchronous);
}

fn lost_replies(mode: Mode) {
    if !needs_root() {
        return;
    }
    let (_story, cluster) = begin("replay-single 102b", mode);
    cluster.resend_after(RESEND);
    let files = files_for_all_slots(&cluster);
    let waiting = cluster.begin_chmods(REINT_MULTI_NET_REP, 0o600, &files);
    wait_for("all are done", || cluster.requests_done("mds_reint") == files.len());
    cluster.fail_loc(0);
    finish_chmods(waiting, 0o600, &files);
    assert_eq!(cluster.requests_done("mds_reint"), files.len(), "none was done twice");
    assert_eq!(cluster.requests_done("answered_again"), files.len(), "each was answered from memory");
    if mode == Mode::WriteBack {
        let (files, before) = own_files(&cluster);
        cluster.chmod_behind(REINT_MULTI_NET_REP, 0o600, &files);
        wait_for("the batch is done", || cluster.requests_done("mds_batch") == 1);
        cluster.fail_loc(0);
        cluster.await_modes(0o600, &files);
        assert_eq!(cluster.requests_done("mds_batch"), cluster.batches() - before, "none was done twice");
        assert_eq!(cluster.requests_done("answered_again"), 1, "it was answered from memory");
    }
}

#[test]
fn replay_single_102b_resend_after_lost_replies_with_many_changes_in_flight() {
    lost_replies(Mode::WriteBack);
}

#[test]
fn replay_single_102b_resend_after_lost_replies_with_many_changes_in_flight_sync_metadata() {
    lost_replies(Mode::Synchronous);
}

fn replay_without_reconstruction(mode: Mode) {
    if !needs_root() {
        return;
    }
    let (_story, mut cluster) = begin("replay-single 102c", mode);
    let files = files_for_all_slots(&cluster);
    cluster.replay_barrier();
    let waiting = cluster.begin_chmods(REINT_MULTI_NET_REP, 0o600, &files);
    wait_for("all are done", || cluster.requests_done("mds_reint") == files.len());
    cluster.fail_loc(0);
    cluster.fail_mdt();
    finish_chmods(waiting, 0o600, &files);
    assert_eq!(cluster.requests_done("mds_reint"), files.len(), "the server had no trace of them: each is done anew");
    assert_eq!(cluster.requests_done("reconstructed"), 0);
    if mode == Mode::WriteBack {
        let (files, before) = own_files(&cluster);
        cluster.replay_barrier();
        cluster.chmod_behind(REINT_MULTI_NET_REP, 0o600, &files);
        wait_for("the batch is done", || cluster.requests_done("mds_batch") == 1);
        cluster.fail_loc(0);
        cluster.fail_mdt();
        cluster.await_modes(0o600, &files);
        assert_eq!(cluster.requests_done("mds_batch"), cluster.batches() - before, "each is done anew");
        assert_eq!(cluster.requests_done("reconstructed"), 0);
    }
}

#[test]
fn replay_single_102c_replay_without_reconstruction_with_many_changes_in_flight() {
    replay_without_reconstruction(Mode::WriteBack);
}

#[test]
fn replay_single_102c_replay_without_reconstruction_with_many_changes_in_flight_sync_metadata() {
    replay_without_reconstruction(Mode::Synchronous);
}

fn replay_with_reconstruction(mode: Mode) {
    if !needs_root() {
        return;
    }
    let (_story, mut cluster) = begin("replay-single 102d", mode);
    let files = files_for_all_slots(&cluster);
    let waiting = cluster.begin_chmods(REINT_MULTI_NET_REP, 0o600, &files);
    wait_for("all are done", || cluster.requests_done("mds_reint") == files.len());
    cluster.sync_mdt();
    cluster.fail_loc(0);
    cluster.fail_mdt();
    finish_chmods(waiting, 0o600, &files);
    assert_eq!(cluster.requests_done("reconstructed"), files.len(), "each is answered from its record on disk");
    if mode == Mode::WriteBack {
        let (files, before) = own_files(&cluster);
        cluster.chmod_behind(REINT_MULTI_NET_REP, 0o600, &files);
        wait_for("the batch is done", || cluster.requests_done("mds_batch") == 1);
        cluster.sync_mdt();
        cluster.fail_loc(0);
        cluster.fail_mdt();
        cluster.await_modes(0o600, &files);
        assert_eq!(cluster.requests_done("reconstructed"), 1, "the batch is answered from its record on disk");
        // That one counts here, too.
        assert_eq!(cluster.requests_done("mds_batch"), cluster.batches() - before, "each was done once");
    }
}

#[test]
fn replay_single_102d_replay_and_reconstruction_with_many_changes_in_flight() {
    replay_with_reconstruction(Mode::WriteBack);
}

#[test]
fn replay_single_102d_replay_and_reconstruction_with_many_changes_in_flight_sync_metadata() {
    replay_with_reconstruction(Mode::Synchronous);
}

/// A change that cannot be made twice: a second time it fails.
type Once = (&'static str, fn(&Path) -> std::io::Result<()>);

const ONLY_ONCE: &[Once] = &[
    ("mknod", |d| {
        let mode = rustix::fs::Mode::from_raw_mode(0o644);
        Ok(rustix::fs::mknodat(rustix::fs::CWD, d.join("new"), rustix::fs::FileType::RegularFile, mode, 0)?)
    }),
    ("mkdir", |d| std::fs::create_dir(d.join("new"))),
    ("rmdir", |d| std::fs::remove_dir(d.join("folder"))),
    ("unlink", |d| std::fs::remove_file(d.join("file"))),
    ("rename", |d| std::fs::rename(d.join("file"), d.join("new"))),
    ("link", |d| std::fs::hard_link(d.join("file"), d.join("new"))),
    ("symlink", |d| std::os::unix::fs::symlink("file", d.join("new"))),
];

/// Begins all of them, each in a directory of its own.
fn begin_only_once(mount: &Path) -> Vec<(&'static str, JoinHandle<std::io::Result<()>>)> {
    let begin = |(name, change): &Once| {
        let (folder, change) = (mount.join(name), *change);
        (*name, std::thread::spawn(move || change(&folder)))
    };
    ONLY_ONCE.iter().map(begin).collect()
}

/// What stands in a directory, sorted.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// What stands in their directories when each of them was made once.
#[track_caller]
fn check_only_once(mount: &Path) {
    for (name, want) in [
        ("mknod", &["file", "folder", "new"][..]),
        ("mkdir", &["file", "folder", "new"]),
        ("rmdir", &["file"]),
        ("unlink", &["folder"]),
        ("rename", &["folder", "new"]),
        ("link", &["file", "folder", "new"]),
        ("symlink", &["file", "folder", "new"]),
    ] {
        assert_eq!(names(&mount.join(name)), want, "{name}");
    }
}

/// Their directories, made by a mount, below this one.
fn prepare_only_once(mount: &Path) {
    for (name, _) in ONLY_ONCE {
        std::fs::create_dir_all(mount.join(name).join("folder")).unwrap();
        std::fs::write(mount.join(name).join("file"), b"").unwrap();
    }
}

fn finish_only_once(waiting: Vec<(&'static str, JoinHandle<std::io::Result<()>>)>) {
    for (name, change) in waiting {
        change.join().unwrap().unwrap_or_else(|error| panic!("{name} was done twice: {error}"));
    }
}

/// 102d, in memory (102b) and on disk, with changes that fail when they are made a second time.
fn changes_that_cannot_be_made_twice(mode: Mode) {
    if !needs_root() {
        return;
    }
    let (_story, mut cluster) = begin("replay-single 102d, not idempotent", mode);
    let (mount, other) = (cluster.mount(0).to_path_buf(), cluster.mount(1).to_path_buf());
    cluster.await_mount();
    assert!(ONLY_ONCE.len() <= cluster.slots());
    prepare_only_once(&other);
    ONLY_ONCE.iter().for_each(|(name, _)| assert_eq!(names(&mount.join(name)).len(), 2));
    wait_for("nothing is in flight", || cluster.in_flight() == 0);
    cluster.set_on(Which::Mdt(0), "mdt.*.stats", "clear").ok();
    cluster.fail_loc(REINT_MULTI_NET_REP);
    let waiting = begin_only_once(&mount);
    wait_for("all are done", || cluster.requests_done("mds_reint") == ONLY_ONCE.len());
    cluster.sync_mdt();
    cluster.fail_loc(0);
    cluster.fail_mdt();
    finish_only_once(waiting);
    assert_eq!(cluster.requests_done("reconstructed"), ONLY_ONCE.len());
    assert_eq!(cluster.requests_done("mds_reint"), ONLY_ONCE.len(), "the reconstructed ones count here, too");
    check_only_once(&mount);

    // The same in directories of the mount's own: some go in batches, and others wait until those before them have their answer.
    if mode == Mode::WriteBack {
        let own = mount.join("own");
        prepare_only_once(&own);
        e2e::adamant(["sync", &own.display().to_string()]).ok();
        cluster.set_on(Which::Mdt(0), "mdt.*.stats", "clear").ok();
        cluster.fail_loc(REINT_MULTI_NET_REP);
        let waiting = begin_only_once(&own);
        cluster.await_hit();
        wait_for("a batch is done", || cluster.requests_done("mds_batch") + cluster.requests_done("mds_reint") > 0);
        cluster.sync_mdt();
        cluster.fail_loc(0);
        cluster.fail_mdt();
        finish_only_once(waiting);
        check_only_once(&other.join("own"));
    }

    // An exclusive create through open, which is not among Lustre's changes.
    std::fs::create_dir(other.join("x")).unwrap();
    let exclusive = mount.join("x/exclusive");
    assert_eq!(names(&mount.join("x")).len(), 0);
    cluster.fail_loc(LDLM_REPLY_NET);
    let waiting = std::thread::spawn(move || std::fs::File::options().write(true).create_new(true).open(exclusive));
    cluster.await_hit();
    cluster.sync_mdt();
    cluster.fail_loc(0);
    cluster.fail_mdt();
    let file = waiting.join().unwrap().expect("created once");
    assert_eq!(cluster.open_files(), 1);
    drop(file);
    wait_for("it is closed", || cluster.open_files() == 0);
}

#[test]
fn replay_single_102d_variant_changes_that_cannot_be_made_twice() {
    changes_that_cannot_be_made_twice(Mode::WriteBack);
}

#[test]
fn replay_single_102d_variant_changes_that_cannot_be_made_twice_sync_metadata() {
    changes_that_cannot_be_made_twice(Mode::Synchronous);
}
