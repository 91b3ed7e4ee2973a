//! How many requests each operation costs, through a mount: with a client that knows the directory alone, and with one that
//! has worked in it. The guide's table in the chapter on the protocol says the same numbers.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use e2e::faults::wait_for;
use e2e::{Cluster, Shape, Story, needs_root};
use rustix::fs::{FileType, Mode, XattrFlags};

/// How often the client has sent each kind of request to the metadata target.
type Counts = BTreeMap<String, u64>;

/// An operation on `d/x`, or on names made from it.
struct Operation {
    name: &'static str,
    /// Makes what it needs.
    prepare: fn(&Path),
    /// Makes a client know what the operation is about.
    know: fn(&Path),
    act: fn(&Path),
}

fn nothing(_: &Path) {}

fn make(path: &Path) {
    fs::write(path, b"").unwrap();
    rustix::fs::setxattr(path, "user.x", b"1", XattrFlags::empty()).unwrap();
}

fn make_dir(path: &Path) {
    fs::create_dir(path).unwrap();
}

fn make_symlink(path: &Path) {
    symlink("to", path).unwrap();
}

fn look(path: &Path) {
    fs::symlink_metadata(path).unwrap();
}

/// Knows the name, and that the one that is to come is not there.
fn look_at_both(path: &Path) {
    look(path);
    miss(&path.with_extension("new"));
}

/// Knows that the name is not there.
fn miss(path: &Path) {
    fs::symlink_metadata(path).unwrap_err();
}

fn mknod(path: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, path, FileType::RegularFile, Mode::from_raw_mode(0o644), 0).unwrap();
}

fn rename(path: &Path) {
    fs::rename(path, path.with_extension("new")).unwrap();
}

fn link(path: &Path) {
    fs::hard_link(path, path.with_extension("new")).unwrap();
}

fn chmod(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn open(path: &Path) {
    drop(File::open(path).unwrap());
}

fn list(path: &Path) {
    assert_eq!(fs::read_dir(path).unwrap().count(), 0);
}

fn setxattr(path: &Path) {
    rustix::fs::setxattr(path, "user.x", b"2", XattrFlags::empty()).unwrap();
}

fn getxattr(path: &Path) {
    let mut value = [0; 8];
    rustix::fs::getxattr(path, "user.x", &mut value).unwrap();
}

const OPERATIONS: &[Operation] = &[
    Operation { name: "mkdir", prepare: nothing, know: miss, act: make_dir },
    Operation { name: "mknod", prepare: nothing, know: miss, act: mknod },
    Operation { name: "create and close", prepare: nothing, know: miss, act: |path| drop(File::create(path).unwrap()) },
    Operation { name: "symlink", prepare: nothing, know: miss, act: make_symlink },
    Operation { name: "link", prepare: make, know: look_at_both, act: link },
    Operation { name: "rename", prepare: make, know: look_at_both, act: rename },
    Operation { name: "unlink", prepare: make, know: look, act: |path| fs::remove_file(path).unwrap() },
    Operation { name: "rmdir", prepare: make_dir, know: look, act: |path| fs::remove_dir(path).unwrap() },
    Operation { name: "chmod", prepare: make, know: look, act: chmod },
    Operation { name: "setxattr", prepare: make, know: look, act: setxattr },
    Operation { name: "stat", prepare: make, know: look, act: look },
    Operation { name: "open and close", prepare: make, know: open, act: open },
    Operation {
        name: "readlink",
        prepare: make_symlink,
        know: |path| {
            fs::read_link(path).unwrap();
        },
        act: |path| {
            fs::read_link(path).unwrap();
        },
    },
    Operation { name: "readdir", prepare: make_dir, know: list, act: list },
    Operation { name: "getxattr", prepare: make, know: getxattr, act: getxattr },
];

fn counts(cluster: &Cluster) -> Counts {
    let text = cluster.mdc_parameter("stats");
    let rows = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
    });
    // Signs of life and the like belong to no operation.
    rows.filter(|(name, _)| !["obd_ping", "mds_connect", "seq_query"].contains(&name.as_str())).collect()
}

/// So many looks in a row must find the client at rest.
const LOOKS: u32 = 3;

/// The same when everything that the client does by itself afterwards (closes, access times) is done.
fn settled(cluster: &Cluster) -> Counts {
    let (mut last, mut quiet) = (Counts::new(), 0);
    wait_for("the client is at rest", || {
        let now = counts(cluster);
        let rests = cluster.open_files() == 0 && cluster.mdc_parameter("import").contains("inflight: 0");
        quiet = if now == last && rests { quiet + 1 } else { 0 };
        last = now;
        if quiet < LOOKS {
            std::thread::sleep(Duration::from_millis(100));
        }
        quiet == LOOKS
    });
    last
}

/// The requests that something sends.
fn sends(cluster: &Cluster, act: impl FnOnce()) -> String {
    let before = settled(cluster);
    act();
    let after = settled(cluster);
    let more = after.iter().filter_map(|(name, count)| {
        let more = count - before.get(name).copied().unwrap_or(0);
        (more > 0).then(|| format!("{more} {name}"))
    });
    let list: Vec<String> = more.collect();
    if list.is_empty() { "none".to_owned() } else { list.join(", ") }
}

#[test]
fn operations_send_what_the_guide_says() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("requests of operations", Duration::from_secs(300));
    let mut cluster = Cluster::start(&story, Shape { osts: 1, ..Shape::synchronous(1) });
    cluster.await_mount();
    let mut measured = Vec::new();
    for operation in OPERATIONS {
        let folder = cluster.mount(0).join(operation.name.replace(' ', "_"));
        fs::create_dir(&folder).unwrap();
        let [cold, warm] = ["cold", "warm"].map(|name| folder.join(name));
        (operation.prepare)(&cold);
        (operation.prepare)(&warm);
        cluster.unmount(0);
        cluster.mount_again(0);
        cluster.await_mount();
        look(&folder);
        let first = sends(&cluster, || (operation.act)(&cold));
        (operation.know)(&warm);
        let again = sends(&cluster, || (operation.act)(&warm));
        measured.push(format!("| {} | {first} | {again} |", operation.name));
    }
    let table = measured.join("\n");
    story.note(&format!("requests\n{table}"));
    let guide = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/protocol.md")).unwrap();
    for row in &measured {
        assert!(guide.contains(row), "the guide has another row than\n{row}\nof\n{table}");
    }
}

/// What a file that was open for a while leaves to be told is told at once, also if the client has been at rest meanwhile.
#[test]
fn a_close_after_a_rest_leaves_soon() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("closes after a rest", Duration::from_secs(60));
    let cluster = Cluster::start(&story, Shape::synchronous(1));
    let closes = || counts(&cluster).get("mds_close").copied().unwrap_or(0);
    let mut waits = Vec::new();
    for round in 0..13 {
        let file = File::create(cluster.mount(0).join(format!("f{round}"))).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let (before, start) = (closes(), Instant::now());
        drop(file);
        wait_for("the close leaves", || closes() > before);
        waits.push(start.elapsed());
    }
    waits.sort();
    assert!(waits[6] < Duration::from_millis(400), "closes left after {waits:?}");
}
