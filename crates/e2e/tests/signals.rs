//! Programs and mounts that wait for servers that are away: a person can end each of them. And what programs leave behind that die.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use e2e::{Cluster, Shape, Story, Which, needs_root};
use rustix::process::{Pid, Signal};

/// What a program that was told to end may still take on a busy machine.
const BOUND: Duration = Duration::from_secs(10);

/// Starts a shell's line, in a process of its own.
fn start(line: &str) -> Child {
    // Whoever started the tests may ignore some signals, and so would this program.
    let mut command = Command::new("env");
    command
        .args(["--default-signal=INT,QUIT", "bash", "-c", &format!("exec {line}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().unwrap()
}

fn send(child: &Child, signal: Signal) {
    rustix::process::kill_process(Pid::from_child(child), signal).unwrap();
}

#[track_caller]
fn ends(child: &mut Child, what: &str) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(start.elapsed() < BOUND, "{what} does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Programs that wait in the mount for different things.
fn lines(mount: &Path) -> Vec<String> {
    let at = mount.display();
    [
        format!("ls {at}/one"),
        format!("stat {at}/two/none"),
        format!("mkdir {at}/three/new"),
        format!("rm {at}/four/f"),
        format!("mv {at}/five/f {at}/five/g"),
        format!("tee {at}/six/new"),
        format!("truncate -s 1 {at}/seven/f"),
        format!("perl -e 'use Fcntl; open F, \"+<\", \"{at}/eight/f\" and flock F, 2'"),
    ]
    .to_vec()
}

#[test]
fn programs_that_wait_for_a_dead_server_die_of_signals() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("signals", Duration::from_secs(180));
    let shape = Shape { over_device: vec![1], ..Shape::synchronous(2) };
    let mut cluster = Cluster::start(&story, shape);
    for folder in ["one", "two", "three", "four", "five", "six", "seven", "eight"] {
        let place = cluster.mount(0).join(folder);
        std::fs::create_dir(&place).unwrap();
        std::fs::write(place.join("f"), "data").unwrap();
    }
    let held = std::fs::File::create(cluster.mount(0).join("held")).unwrap();
    for mount in cluster.mounts() {
        rustix::fs::statfs(&mount).unwrap();
    }
    cluster.kill9(Which::Mdt(0));
    for index in [0, 1] {
        let mount = cluster.mount(index).to_path_buf();
        for signal in [Signal::INT, Signal::TERM, Signal::QUIT, Signal::KILL] {
            let mut all: Vec<(String, Child)> = lines(&mount).into_iter().map(|l| (l.clone(), start(&l))).collect();
            std::thread::sleep(Duration::from_millis(500));
            // What the mount knows by itself it answers.
            all.retain_mut(|(_, child)| child.try_wait().unwrap().is_none());
            assert!(all.len() >= 5, "{all:?}");
            all.iter().for_each(|(_, child)| send(child, signal));
            for (line, child) in &mut all {
                let status = ends(child, line);
                assert_eq!(status.signal(), Some(signal.as_raw()), "{line}: {status}");
            }
        }
        // A signal that the program handles ends nothing; one that kills it later does.
        let mut patient = start(&format!(
            "perl -e '$SIG{{ALRM}} = sub {{}}; alarm 1; mkdir \"{}/one/x\"; sleep 100'",
            mount.display()
        ));
        std::thread::sleep(Duration::from_millis(1500));
        assert!(patient.try_wait().unwrap().is_none());
        send(&patient, Signal::KILL);
        ends(&mut patient, "a program with a handler");
        let start = Instant::now();
        rustix::fs::statfs(&mount).unwrap();
        assert!(start.elapsed() < BOUND, "statfs");
    }
    cluster.restart(Which::Mdt(0));
    let mut left: Vec<_> =
        std::fs::read_dir(cluster.mount(1)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left.len(), 9, "{left:?}");
    drop(held);
    e2e::trees::assert_equal(cluster.mount(0), cluster.mount(1));
}

/// A child that tells its parent and then does `call`; the parent sends it a signal some microseconds later, and a second one after 3 s.
/// The first may come before the call. The kernel says nothing of one that comes while it hands the request to the mount.
fn signalled_at_once(call: &str, signal: &str, after: u32) -> Child {
    let script = format!(
        "use Fcntl; use Time::HiRes; pipe R, W; my $child = fork; \
         if (!$child) {{ $SIG{{USR1}} = sub {{}}; $SIG{{{signal}}} ||= q(DEFAULT); {call}; exit 0 }} \
         sysread R, my $byte, 1; my $start = Time::HiRes::time; 1 while Time::HiRes::time < $start + {after}e-6; \
         kill {signal} => $child; $SIG{{ALRM}} = sub {{ kill {signal} => $child }}; alarm 3; \
         1 while waitpid($child, 0) != $child"
    );
    let mut command = Command::new("perl");
    command.args(["-e", &script]).stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn a_signal_that_comes_with_the_call_ends_it() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("signal-with-call", Duration::from_secs(120));
    let mut cluster = Cluster::start(&story, Shape::synchronous(2));
    let (here, there) = (cluster.mount(0).to_path_buf(), cluster.mount(1).to_path_buf());
    std::fs::write(here.join("f"), "data").unwrap();
    for index in 0..8 {
        std::fs::create_dir(here.join(format!("d{index}"))).unwrap();
    }
    // A lock that somebody has: any signal that the program handles ends the wait.
    let held = std::fs::File::open(here.join("f")).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let lock = format!("open F, q(+<), q({}); syswrite W, 1; flock F, 2", there.join("f").display());
    let mut waiting: Vec<Child> = (0..8).map(|at| signalled_at_once(&lock, "USR1", at * 15)).collect();
    waiting.iter_mut().for_each(|child| assert!(ends(child, "a program that waits for a lock").success()));
    drop(held);
    // A server that is away, and signals that kill.
    cluster.kill9(Which::Mdt(0));
    let look = |index: u32| format!("syswrite W, 1; stat q({}/d{index}/none)", there.display());
    let mut waiting: Vec<Child> = (0..8).map(|at| signalled_at_once(&look(at), "TERM", at * 15)).collect();
    waiting.iter_mut().for_each(|child| assert!(ends(child, "a program that looks for a file").success()));
    cluster.restart(Which::Mdt(0));
    assert_eq!(std::fs::read_dir(&there).unwrap().count(), 9);
}

/// umount(8), again for as long as somebody else of this machine looks at the mount (`df`, a backup, another test): while servers are
/// away such a look takes seconds, and the kernel calls the mount busy. Neither the test nor what it started may be the one.
fn umount(story: &Story, mount: &Path, force: bool) -> ExitStatus {
    let start = Instant::now();
    loop {
        let outcome = Command::new("umount").args(force.then_some("-f")).arg(mount).output().unwrap();
        let said = String::from_utf8_lossy(&outcome.stderr).into_owned();
        if outcome.status.success() || !said.contains("busy") || start.elapsed() > BOUND {
            return outcome.status;
        }
        let users = e2e::process::users_of(mount);
        let own = |pid: u32| pid == std::process::id() || e2e::process::running().contains(&pid);
        assert!(!users.iter().any(|(pid, _)| own(*pid)), "{said}: {users:?}");
        story.note(&format!("{}; it is used by {users:?}", said.trim()));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn unmounting_ends_in_time_whatever_is_down() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("unmounting", Duration::from_secs(240));
    let mut cluster = Cluster::start(&story, Shape::mounts(3));
    for index in [0, 1] {
        std::fs::write(cluster.mount(index).join(format!("f{index}")), "data").unwrap();
    }
    // In use, with the servers there: the others wait for nobody.
    let open = std::fs::File::create(cluster.mount(0).join("open")).unwrap();
    let place = cluster.mount(0).to_path_buf();
    let start = Instant::now();
    e2e::story::take_away(&place);
    let (status, log) = cluster.mount_ended(0, Duration::from_secs(15)).expect("its process ends");
    story.note(&format!("umount -f: {status} after {:?}", start.elapsed()));
    let listed = Instant::now();
    assert!(std::fs::read_dir(cluster.mount(1)).unwrap().count() >= 2);
    std::fs::write(cluster.mount(1).join("open"), "now mine").unwrap();
    story.note(&format!("the other mount went on after {:?}", listed.elapsed()));
    assert!(listed.elapsed() < BOUND, "{log}");
    drop(open);
    // With no server there. The command ends at once; its process goes on with what it has to say to them.
    cluster.kill9_servers();
    for (index, force) in [(1, true), (2, false)] {
        let start = Instant::now();
        let status = umount(&story, cluster.mount(index), force);
        story.note(&format!("umount of mount {index} with dead servers: {status} after {:?}", start.elapsed()));
        assert!(status.success() && start.elapsed() < BOUND);
    }
    let start = Instant::now();
    cluster.start_all();
    for index in [1, 2] {
        let (status, log) = cluster.mount_ended(index, BOUND).expect("its process ends");
        assert!(status.success(), "{status}: {log}");
    }
    // No client is waited for that will not come.
    cluster.mount_again(2);
    assert!(std::fs::read_to_string(cluster.mount(2).join("f1")).unwrap() == "data");
    story.note(&format!("the next mount works {:?} after the start of the servers", start.elapsed()));
    assert!(start.elapsed() < BOUND);
}

/// Tries for a lock of an open file description on the file, keeps it if that is wanted, and tells the result by its exit status.
fn lock_of_description(path: &Path, keep: bool) -> String {
    let then = if keep { "system(\"touch $ARGV[1]\"); sleep 100" } else { "" };
    let script = format!(
        "use Fcntl; open F, q(+<), $ARGV[0] or exit 2; my $lock = pack(q(s s x4 q q i x4), F_WRLCK, 0, 0, 0, 0); fcntl(F, 37, $lock) or exit 1; {then}"
    );
    format!("perl -e '{script}' {} {}.locked", path.display(), path.display())
}

#[test]
fn a_lock_of_an_open_file_description_goes_with_its_program() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("descriptions", Duration::from_secs(60));
    let cluster = Cluster::start(&story, Shape::mounts(2));
    let (here, there) = (cluster.mount(0).join("f"), cluster.mount(1).join("f"));
    std::fs::write(&here, "data").unwrap();
    let mut holder = start(&lock_of_description(&here, true));
    let begin = Instant::now();
    while !cluster.mount(0).join("f.locked").exists() {
        assert!(begin.elapsed() < BOUND, "the lock is taken");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut rival = start(&lock_of_description(&there, false));
    assert_eq!(ends(&mut rival, "a try").code(), Some(1), "it is taken");
    send(&holder, Signal::KILL);
    ends(&mut holder, "the holder");
    let begin = Instant::now();
    while ends(&mut start(&lock_of_description(&there, false)), "a try").code() != Some(0) {
        assert!(begin.elapsed() < BOUND, "the lock of the dead stays");
    }
}

#[test]
fn a_mount_is_durable_after_adamant_sync() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("sync", Duration::from_secs(60));
    // No client would have to be waited for.
    let shape = Shape { serve_arguments: vec!["-o", "abort_recov"], ..Shape::default() };
    let mut cluster = Cluster::start(&story, shape);
    let place = cluster.mount(0).join("d");
    std::fs::create_dir(&place).unwrap();
    for n in 0..20 {
        std::fs::write(place.join(format!("f{n}")), vec![n; 100_000]).unwrap();
    }
    e2e::adamant(["sync".as_ref(), place.as_os_str()]).ok();
    // No client is left that could replay anything.
    cluster.kill9_all();
    cluster.start_all();
    for n in 0..20 {
        assert_eq!(std::fs::read(place.join(format!("f{n}"))).unwrap(), vec![n; 100_000]);
    }
    e2e::adamant(["sync", "/proc"]).run().refused_with(&["not on an Adamant mount"]);
}

/// The kernel keeps the mode of a program, and runs it as somebody else.
#[test]
fn a_changed_program_has_no_set_id_bits_and_no_capabilities_any_more() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("privileges", Duration::from_secs(60));
    let cluster = Cluster::start(&story, Shape::default());
    let path = cluster.mount(0).join("program");
    let at = path.display();
    let mode = || e2e::command::shell(&format!("stat -c %A {at}")).ok();
    let capability = c"security.capability";
    let value = b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    for change in [
        format!("echo >> {at}"),
        format!("fallocate -l 100000 {at}"),
        format!("truncate -s 10 {at}"),
        format!("dd if=/dev/zero of={at} conv=notrunc count=1 status=none"),
        format!("echo > {at}"),
    ] {
        for (bits, before) in [(4777, "-rwsrwxrwx"), (777, "-rwxrwxrwx")] {
            e2e::command::shell(&format!("cp /bin/true {at}; chmod {bits} {at}")).ok();
            rustix::fs::setxattr(&path, capability, value, rustix::fs::XattrFlags::empty()).unwrap();
            assert_eq!(mode().trim(), before);
            e2e::command("bash").args(["-c", &change]).by_user(1500, 1500).ok();
            assert_eq!(mode().trim(), "-rwxrwxrwx", "{change}");
            assert!(rustix::fs::getxattr(&path, capability, &mut [0u8; 64]).is_err(), "{change} of {bits}");
        }
        // Root keeps set-id bits, but a program that it changes is another one, too.
        rustix::fs::setxattr(&path, capability, value, rustix::fs::XattrFlags::empty()).unwrap();
        e2e::command::shell(&change).ok();
        assert!(rustix::fs::getxattr(&path, capability, &mut [0u8; 64]).is_err(), "{change} by root");
    }
}
