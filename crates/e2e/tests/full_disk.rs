//! Targets on small disks. A metadata target, whose files fill the disk, and then another program: nothing that a program was told is
//! written is lost, what is there can be read and removed, and the target starts again. An object target that restarts when the disk is
//! full but for what it has promised to clients: it keeps that for them.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use e2e::command::shell;
use e2e::faults::wait_for;
use e2e::story::take_away;
use e2e::system::Aligned;
use e2e::{Cluster, Shape, Story, Which, needs_root, trees};
use rustix::process::{Pid, Signal};

const FILES: usize = 1200;
const BYTES: usize = 60_000;

/// A small disk of its own; it is taken away again.
struct Disk(PathBuf);

impl Disk {
    fn make(place: PathBuf, mib: u32) -> Disk {
        std::fs::create_dir_all(&place).unwrap();
        shell(&format!("mount -t tmpfs -o size={mib}m,mode=700 tmpfs {}", place.display())).ok();
        Disk(place)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        take_away(&self.0);
    }
}

fn content(number: usize) -> Vec<u8> {
    (0..BYTES).map(|at| (at * 31 + number * 7) as u8).collect()
}

/// Tries until it works: a target looks at its disk each second.
#[track_caller]
fn soon<T>(what: &str, mut act: impl FnMut() -> std::io::Result<T>) -> T {
    let start = Instant::now();
    loop {
        match act() {
            Ok(done) => return done,
            Err(error) if start.elapsed() > Duration::from_secs(40) => panic!("{what}: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

#[track_caller]
fn is_whole(folder: &Path, number: usize) {
    let found = std::fs::read(folder.join(format!("f{number}"))).unwrap();
    assert!(found == content(number), "f{number} has {} bytes", found.len());
}

#[test]
fn a_full_metadata_disk_loses_nothing_and_goes_on() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("full_disk", Duration::from_secs(240));
    let disk = Disk::make(story.folder().join("small"), 48);
    let shape = Shape { places: vec![(Which::Mdt(0), disk.0.join("mdt"))], ..Shape::mounts(2) };
    let mut cluster = Cluster::start(&story, shape);
    let source = story.folder().join("source");
    std::fs::create_dir_all(&source).unwrap();
    for number in 0..FILES {
        std::fs::write(source.join(format!("f{number}")), content(number)).unwrap();
    }

    // 72 MB of small files on a disk of 48 MB: those that it has no room for go to the object targets.
    let copy = cluster.mount(0).join("copy");
    shell(&format!("cp -r {} {}", source.display(), copy.display())).within(Duration::from_secs(120)).ok();
    let other = cluster.mount(1).join("copy");
    for number in 0..FILES {
        is_whole(&other, number);
    }

    // Another program takes all that is left.
    let filler = disk.0.join("filler");
    shell(&format!("dd if=/dev/zero of={} bs=64k 2>/dev/null || true", filler.display())).ok();
    story.note("the disk is full");
    is_whole(&other, 7);
    let mut refused = false;
    for number in 0..4000 {
        let made = std::fs::create_dir(other.join(format!("d{number}")));
        refused = made.is_err_and(|error| error.raw_os_error() == Some(libc::ENOSPC));
        if refused {
            break;
        }
    }
    assert!(refused, "a full disk refuses new names");
    std::fs::remove_file(other.join("f0")).unwrap();

    // It starts on the full disk, and goes on where it was.
    cluster.kill9(Which::Mdt(0));
    cluster.restart(Which::Mdt(0));
    soon("read after the restart", || std::fs::read(other.join("f8")));
    is_whole(&other, 8);
    for number in 1..=100 {
        soon("remove after the restart", || std::fs::remove_file(other.join(format!("f{number}"))));
    }
    std::fs::remove_file(&filler).unwrap();
    soon("write when there is space again", || std::fs::write(other.join("new"), content(1)));
    assert_eq!(std::fs::read(copy.join("new")).unwrap(), content(1));
    for number in (101..FILES).step_by(50) {
        is_whole(&copy, number);
    }
    drop(cluster);
}

const MIB: usize = 1 << 20;
/// Files with buffered data, and how much in each: less than a request that leaves at once because it is full.
const BUFFERED: u64 = 7;
const BUFFERED_BYTES: usize = 900 << 10;

/// Appends past the cache until nothing more is taken, in ever smaller pieces. Gives how many bytes were.
fn append_until_full(file: &File) -> u64 {
    let begin = file.metadata().unwrap().len();
    let mut at = begin;
    for piece in [MIB, 64 << 10, 4 << 10] {
        let bytes = Aligned::zeros(piece);
        loop {
            match file.write_at(&bytes, at) {
                Ok(count) => at += count as u64,
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
                    break;
                }
            }
        }
    }
    at - begin
}

/// What the object target has promised to clients, in bytes.
fn promised(cluster: &Cluster) -> u64 {
    cluster.get_on(Which::Ost(0), "obdfilter.*.tot_granted").parse().unwrap()
}

#[test]
fn a_nearly_full_object_target_that_restarts_takes_what_it_had_promised() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("promised space over a restart", Duration::from_secs(120));
    let disk = Disk::make(story.folder().join("small"), 160);
    let shape = Shape { osts: 1, places: vec![(Which::Ost(0), disk.0.join("ost0"))], ..Shape::mounts(2) };
    let mut cluster = Cluster::start(&story, shape);
    // The first mount has files open on whose ends it has locks, so that it needs nobody to buffer more in them.
    let path = |cluster: &Cluster, mount: usize, number: u64| cluster.mount(mount).join(format!("f{number}"));
    let files: Vec<File> = (0..BUFFERED)
        .map(|number| {
            let file = File::create(path(&cluster, 0, number)).unwrap();
            file.write_all_at(&trees::bytes(number, MIB), 0).unwrap();
            file.sync_all().unwrap();
            file
        })
        .collect();
    // The second takes all the space that nobody was promised.
    let mut direct = OpenOptions::new();
    direct.create_new(true).write(true).custom_flags(libc::O_DIRECT);
    let greedy = direct.open(cluster.mount(1).join("greedy")).unwrap();
    let start = Instant::now();
    let taken = append_until_full(&greedy);
    greedy.sync_all().unwrap();
    let granted = promised(&cluster);
    story.note(&format!("{taken} bytes taken in {:.1?}, {granted} are promised", start.elapsed()));
    assert!(granted >= BUFFERED * BUFFERED_BYTES as u64, "the first mount was promised what it buffers below");

    // The first mount buffers what it was promised, while the target is away.
    cluster.kill9(Which::Ost(0));
    let start = Instant::now();
    for (file, number) in files.iter().zip(0..) {
        file.write_all_at(&trees::bytes(100 + number, BUFFERED_BYTES), MIB as u64).unwrap();
    }
    let buffered = start.elapsed();
    cluster.restart(Which::Ost(0));
    wait_for("the clients are back", || cluster.server_log(Which::Ost(0)).contains("recovery is over"));
    // And stands still before it writes anything back, so that the other is first. No process is started meanwhile: it would have
    // copies of the open files, and close them, which the mount that stands still does not answer.
    let process = Pid::from_raw(cluster.mount_pid(0) as i32).unwrap();
    rustix::process::kill_process(process, Signal::STOP).unwrap();
    story.note(&format!("buffered in {buffered:.1?}, stopped after {:.1?}", start.elapsed()));
    let taken = append_until_full(&greedy);
    story.note(&format!("{taken} bytes more were taken by {:.1?}", start.elapsed()));
    rustix::process::kill_process(process, Signal::CONT).unwrap();

    for (file, number) in files.iter().zip(0..) {
        file.sync_all().unwrap_or_else(|error| panic!("what was promised for f{number} is gone: {error}"));
        let found = std::fs::read(path(&cluster, 1, number)).unwrap();
        let mut expected = trees::bytes(number, MIB);
        expected.extend(trees::bytes(100 + number, BUFFERED_BYTES));
        assert!(found == expected, "{}", e2e::model::first_difference(&format!("f{number}"), &found, &expected));
    }
    drop((files, greedy, cluster));
}
