//! Stores that are not what they were: older copies, garbled pages.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use e2e::{Cluster, Shape, Story, Which, needs_root};

/// How long until everybody has heard of it.
const HEARD: Duration = Duration::from_secs(20);

#[track_caller]
fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < HEARD, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => drop(fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

/// Makes a file that is on disk when this returns.
fn make(path: &Path) {
    let mut file = fs::File::create(path).unwrap();
    file.write_all(b"something").unwrap();
    file.sync_all().unwrap();
}

#[test]
fn an_older_copy_of_a_store_is_refused_until_it_is_accepted() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("an older copy of a store", Duration::from_secs(120));
    let mut cluster = Cluster::start(&story, Shape::mounts(1));
    let (mount, place) = (cluster.mount(0).to_owned(), cluster.place(Which::Mdt(0)).to_owned());
    make(&mount.join("before"));
    cluster.stop(Which::Mdt(0));
    let backup = place.with_extension("backup");
    copy(&place, &backup);
    cluster.restart(Which::Mdt(0));
    make(&mount.join("after"));

    cluster.kill9(Which::Mdt(0));
    let newest = place.with_extension("newest");
    fs::rename(&place, &newest).unwrap();
    copy(&backup, &place);
    cluster.restart(Which::Mdt(0));
    let status = format!("mdt.{}.recovery_status", cluster.target_name(Which::Mdt(0)));
    eventually("the older copy is refused", || cluster.parameter(&status).contains("status: REFUSED"));
    assert!(cluster.parameter(&status).contains("accept_old_store"));
    assert!(cluster.server_log(Which::Mdt(0)).contains("is an older copy"), "{}", cluster.server_log(Which::Mdt(0)));
    eventually("the mount says why it waits", || cluster.mount_log(0).contains("older copy"));

    // The right one: nothing is lost.
    cluster.stop(Which::Mdt(0));
    fs::rename(&place, place.with_extension("refused")).unwrap();
    fs::rename(&newest, &place).unwrap();
    cluster.restart(Which::Mdt(0));
    eventually("the newest copy is served", || mount.join("after").exists());

    // The older one, for good.
    cluster.stop(Which::Mdt(0));
    fs::rename(&place, &newest).unwrap();
    fs::rename(place.with_extension("refused"), &place).unwrap();
    cluster.restart_with(Which::Mdt(0), &["-o", "accept_old_store"]);
    eventually("the older copy is served", || mount.join("before").exists() && !mount.join("after").exists());
    make(&mount.join("now"));
    cluster.stop(Which::Mdt(0));
    cluster.restart(Which::Mdt(0));
    assert!(mount.join("now").exists());
}

#[test]
fn garbled_pages_end_a_server_with_a_line_and_a_status() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("garbled pages", Duration::from_secs(120));
    let mut cluster = Cluster::start(&story, Shape::mounts(1));
    let mount = cluster.mount(0).to_owned();
    (0..20).for_each(|n| make(&mount.join(format!("file{n}"))));
    (0..2000).for_each(|n| drop(fs::File::create(mount.join(format!("more{n}"))).unwrap()));
    cluster.unmount(0);
    cluster.stop(Which::Mdt(0));
    let file = cluster.place(Which::Mdt(0)).join("data.mdb");
    let whole = fs::read(&file).unwrap();
    let mut ends = Vec::new();
    for places in [&[16][..], &[24, 2048], &[8]] {
        let mut data = whole.clone();
        for page in data.chunks_mut(4096).skip(2) {
            places.iter().for_each(|&at| page[at..at + 8].iter_mut().for_each(|byte| *byte ^= 0x5a));
        }
        fs::write(&file, data).unwrap();
        let outcome = cluster.restart_fails(Which::Mdt(0), &[]);
        let said = outcome.stderr.clone();
        assert!(said.contains("damaged"), "{places:?}: {said}");
        assert!(outcome.code.is_some(), "{places:?}: it was a signal: {said}");
        ends.push(outcome.code);
    }
    story.note(&format!("ended with {ends:?}"));
    fs::write(&file, whole).unwrap();
    cluster.restart(Which::Mdt(0));
    cluster.mount_again(0);
    assert!(mount.join("more1999").exists());
}
