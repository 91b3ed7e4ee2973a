//! The driver of a client.

use std::sync::mpsc;

use client::api::{AccessTimes, FileHandle, RecordLock, RecordLockKind, Timeouts};

use super::*;
use crate::server::{ServeOptions, Server};

/// Options of a client whose MGS is at `mgs`.
fn options(mgs: &str) -> Options {
    Options {
        uuid: proto::ClientUuid(1),
        seed: 1,
        instance: client::api::Instance(1),
        fsname: "fs".to_owned(),
        mgs: vec![mgs.parse().unwrap()],
        description: String::new(),
        read_only: false,
        max_dirty: 1 << 20,
        max_cached: 1 << 20,
        rename_wait: std::time::Duration::from_secs(30),
        max_read_ahead: 1 << 20,
        max_nodes: 100,
        soft: None,
        timeouts: Timeouts::default(),
        always_ping: false,
        write_back_after: Duration::from_secs(5),
        max_rpcs_in_flight: 8,
        max_mod_rpcs_in_flight: 7,
        access_times: AccessTimes::default(),
        directory_access_times: AccessTimes::default(),
        sync_metadata: false,
        faults: stdx::Faults::none(),
    }
}

#[test]
fn a_thread_that_panics_ends_the_mount_and_nobody_waits() {
    let mount = Mount::launch(options("unix:/nowhere/mgs"), Arc::new(NoKernel)).unwrap();
    let (sender, answer) = mpsc::channel();
    let completion = Box::new(move |result: Result<_, _>| {
        let _ = sender.send(result.map(drop));
    });
    mount.submit(Cred::default(), Call::Statfs { ino: 1 }, completion);
    assert_eq!(answer.recv_timeout(Duration::from_millis(50)), Err(mpsc::RecvTimeoutError::Timeout));
    assert_eq!(mount.failure(), None);
    mount.shared.thread_panicked();
    assert_eq!(answer.recv_timeout(Duration::from_secs(10)), Ok(Err(Errno::EIO)));
    let failed = AssertionFailed { files: Some(0), changes: 0 };
    assert_eq!(mount.failure(), Some(failed.clone()));
    assert!(failed.to_string().contains("all data was written back"), "{failed}");
    assert_eq!(
        mount.call(Cred::default(), Call::Statfs { ino: 1 }).map(drop),
        Err(Errno::EIO),
        "and so do later calls"
    );
    assert_eq!(mount.unmount(Duration::from_secs(10)), Err(UnmountError::Assertion(failed)));
}

/// A file system in memory that this process serves, and a client of it over loopback sockets.
struct Mounted {
    mount: Mount,
    server: Server,
    folder: tempfile::TempDir,
}

impl Mounted {
    fn new() -> Mounted {
        let folder = tempfile::tempdir().unwrap();
        let listen = format!("unix:{}", folder.path().join("server").display());
        let places = ["mem:MGS", "mem:fs-MDT0000", "mem:fs-OST0000"].map(|place| place.parse().unwrap());
        let settings = ServeOptions { listen: listen.parse().unwrap(), ..ServeOptions::default() };
        let server = Server::start(&places, &settings).unwrap();
        server.wait_serving(Duration::from_secs(60));
        let mount = Mount::start(options(&listen), Arc::new(NoKernel)).unwrap();
        Mounted { mount, server, folder }
    }

    /// Another client of the same file system.
    fn another(&self) -> Mount {
        let listen = format!("unix:{}", self.folder.path().join("server").display());
        let options = Options { uuid: clock::uuid(), instance: clock::instance(), ..options(&listen) };
        Mount::start(options, Arc::new(NoKernel)).unwrap()
    }
}

const ROOT: u64 = 1;

/// The user who made the file system, to whom its root belongs.
fn cred() -> Cred {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Cred { uid, gid, ..Cred::default() }
}

fn mkdir(name: &str) -> Call {
    Call::Mkdir { parent: ROOT, name: Bytes::copy_from_slice(name.as_bytes()), mode: 0o755 }
}

fn lookup(name: &str) -> Call {
    Call::Lookup { parent: ROOT, name: Bytes::copy_from_slice(name.as_bytes()) }
}

/// A new file, open.
fn create(mount: &Mount, name: &'static str) -> FileHandle {
    let name = Bytes::from_static(name.as_bytes());
    match mount.call(cred(), Call::Create { parent: ROOT, name, mode: 0o644, flags: 2 }) {
        Ok(Answer::Created { fh, .. }) => fh,
        other => panic!("{other:?}"),
    }
}

/// Wishes for the whole of a file, which wait for whoever is in the way.
fn lock(fh: FileHandle, owner: u64, kind: RecordLockKind) -> Call {
    let lock = RecordLock { start: 0, end: u64::MAX, kind, pid: 1 };
    Call::Setlk { fh, owner, lock, wait: true, flock: false }
}

/// A completion, and where its result comes.
fn completion() -> (Completion, mpsc::Receiver<Result<Answer, Errno>>) {
    let (sender, result) = mpsc::channel();
    (Box::new(move |result| drop(sender.send(result))), result)
}

const PATIENCE: Duration = Duration::from_secs(60);

/// Threads that make directories until that fails, once they are at work. Each gives what was made, and the failure.
fn load(mount: &Mount) -> Vec<std::thread::JoinHandle<(Vec<String>, Errno)>> {
    let thread = |number: usize| {
        let mount = mount.clone();
        std::thread::spawn(move || {
            let mut made = Vec::new();
            loop {
                let name = format!("thread.{number}.{}", made.len());
                match mount.call(cred(), mkdir(&name)) {
                    Ok(_) => made.push(name),
                    Err(errno) => return (made, errno),
                }
            }
        })
    };
    let before = mount.shared.answered.load(Ordering::Relaxed);
    let threads = (0..3).map(thread).collect();
    let start = std::time::Instant::now();
    while mount.shared.answered.load(Ordering::Relaxed) < before + 20 {
        assert!(start.elapsed() < PATIENCE, "they get on");
        std::thread::sleep(Duration::from_millis(1));
    }
    threads
}

/// How much they have made together.
fn made_by(loads: Vec<std::thread::JoinHandle<(Vec<String>, Errno)>>) -> usize {
    loads.into_iter().map(|thread| thread.join().unwrap().0.len()).sum()
}

#[test]
fn an_interrupted_call_ends_alone_while_others_go_on() {
    let mounted = Mounted::new();
    let mount = &mounted.mount;
    let fh = create(mount, "locked");
    mount.call(cred(), lock(fh, 1, RecordLockKind::Exclusive)).unwrap();
    let loads = load(mount);
    let waiters = [11, 12].map(|id| {
        let (completion, result) = completion();
        let caller = Caller { id: CallId(id), thread: 0, interruptible: true };
        assert!(mount.submit_for(caller, cred(), lock(fh, id, RecordLockKind::Exclusive), completion));
        result
    });
    assert_eq!(mount.waiting(CallId(11)).map(|caller| caller.interruptible), Some(true));
    mount.interrupt(CallId(11));
    assert_eq!(waiters[0].recv_timeout(PATIENCE), Ok(Err(Errno::EINTR)));
    assert_eq!(mount.waiting(CallId(11)), None);
    assert_eq!(mount.all_waiting(), [CallId(12)], "the other waits still");
    mount.call(cred(), lock(fh, 1, RecordLockKind::Unlock)).unwrap();
    assert_eq!(waiters[1].recv_timeout(PATIENCE), Ok(Ok(Answer::Done)));
    mount.unmount(PATIENCE).unwrap();
    assert!(made_by(loads) > 0);
    mounted.server.stop().unwrap();
}

#[test]
fn parameters_are_listed_while_calls_are_under_way() {
    let mounted = Mounted::new();
    let loads = load(&mounted.mount);
    for _ in 0..50 {
        assert!(!mounted.mount.get_params("llite.*.max_cached_mb").is_empty());
        assert!(!mounted.mount.devices().1.is_empty());
    }
    mounted.mount.unmount(PATIENCE).unwrap();
    assert!(made_by(loads) > 0);
    mounted.server.stop().unwrap();
}

#[test]
fn an_unmount_while_calls_are_under_way_keeps_what_was_answered() {
    let mounted = Mounted::new();
    let loads = load(&mounted.mount);
    assert_eq!(mounted.mount.unmount(PATIENCE), Ok(()));
    assert_eq!(mounted.mount.unmount(PATIENCE), Ok(()), "it tells the same again");
    let made: Vec<String> = loads.into_iter().flat_map(|thread| thread.join().unwrap().0).collect();
    assert!(!made.is_empty());
    let later = mounted.another();
    for name in made {
        assert!(later.call(cred(), lookup(&name)).is_ok(), "{name} was answered");
    }
    later.unmount(PATIENCE).unwrap();
    mounted.server.stop().unwrap();
}

#[test]
fn a_client_that_fails_an_assertion_answers_eio_to_every_caller_and_ends() {
    let mounted = Mounted::new();
    let mount = &mounted.mount;
    let fh = create(mount, "locked");
    mount.call(cred(), lock(fh, 1, RecordLockKind::Exclusive)).unwrap();
    let (done, waiter) = completion();
    mount.submit(cred(), lock(fh, 2, RecordLockKind::Exclusive), done);
    let blocked = {
        let mount = mount.clone();
        std::thread::spawn(move || mount.call(cred(), lock(fh, 3, RecordLockKind::Exclusive)))
    };
    let loads = load(mount);
    mount.shared.turn(|state, _| {
        let _ = state.machine.run(|_| panic!("meant for this test"));
    });
    assert_eq!(waiter.recv_timeout(PATIENCE), Ok(Err(Errno::EIO)));
    assert_eq!(blocked.join().unwrap(), Err(Errno::EIO));
    loads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap().1, Errno::EIO));
    assert_eq!(mount.call(cred(), mkdir("later")), Err(Errno::EIO), "and so do later calls");
    assert!(mount.shared.state.lock().conns.is_empty(), "servers are not spoken to any more");
    assert!(!mount.is_up() && mount.failure().is_some());
    assert!(matches!(mount.unmount(PATIENCE), Err(UnmountError::Assertion(_))));
    mounted.server.stop().unwrap();
}

#[test]
fn a_client_that_never_finds_its_servers_ends_with_every_call() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("silent");
    let _silent = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let mount = Mount::launch(options(&format!("unix:{}", path.display())), Arc::new(NoKernel)).unwrap();
    let (done, result) = completion();
    mount.submit(cred(), Call::Statfs { ino: ROOT }, done);
    let waits = {
        let mount = mount.clone();
        std::thread::spawn(move || mount.wait_mounted())
    };
    std::thread::sleep(Duration::from_millis(20));
    let told = mount.unmount(Duration::from_millis(100));
    assert!(matches!(told, Ok(()) | Err(UnmountError::NoAnswer)), "{told:?}");
    assert!(matches!(result.recv_timeout(PATIENCE), Ok(Err(_))));
    assert_eq!(waits.join().unwrap(), Err(MountError::Ended));
}

#[test]
fn an_unmount_that_no_server_answers_ends_with_every_call() {
    let Mounted { mount, server, folder: _folder } = Mounted::new();
    let fh = create(&mount, "locked");
    mount.call(cred(), lock(fh, 1, RecordLockKind::Exclusive)).unwrap();
    let (done, waiter) = completion();
    mount.submit(cred(), lock(fh, 2, RecordLockKind::Exclusive), done);
    let blocked = {
        let mount = mount.clone();
        std::thread::spawn(move || mount.call(cred(), lock(fh, 3, RecordLockKind::Exclusive)))
    };
    server.stop().unwrap();
    assert_eq!(mount.unmount(Duration::from_millis(200)), Err(UnmountError::NoAnswer));
    assert_eq!(waiter.recv_timeout(PATIENCE), Ok(Err(Errno::ESHUTDOWN)));
    assert_eq!(blocked.join().unwrap(), Err(Errno::ESHUTDOWN));
    assert_eq!(mount.unmount(PATIENCE), Err(UnmountError::NoAnswer), "it tells the same again");
}
