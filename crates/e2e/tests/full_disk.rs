//! A metadata target on a small disk, which its files fill, and then another program: nothing that a program was told is written
//! is lost, what is there can be read and removed, and the target starts again.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use e2e::command::shell;
use e2e::story::take_away;
use e2e::{Cluster, Shape, Story, Which, needs_root};

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
    let shape = Shape { places: vec![(Which::Mdt, disk.0.join("mdt"))], ..Shape::mounts(2) };
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
    cluster.kill9(Which::Mdt);
    cluster.restart(Which::Mdt);
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
