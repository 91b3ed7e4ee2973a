//! Bad input: each mistake gets a clear answer, and what runs goes on.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use e2e::cluster::free_nid;
use e2e::{Cluster, Outcome, Shape, Story, Which, adamant, needs_root};
use proto::frame::{Header, flags};
use proto::msg::{ConnectRep, ConnectReq};
use proto::{Decoder, Frame, Opcode};
use rustix::mount::MountFlags;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// A mount that is to fail.
fn mount_fails(source: &str, directory: &Path, options: &str) -> Outcome {
    let outcome = adamant(["mount", "-o", options, source]).arg(directory).within(Duration::from_secs(20)).run();
    assert!(!e2e::story::is_mounted(directory) || options == "busy", "{outcome}");
    outcome
}

/// A small disk of its own.
struct Disk(PathBuf);

impl Disk {
    fn new(story: &Story, name: &str, megabytes: u32) -> Disk {
        let place = story.folder().join(name);
        fs::create_dir(&place).unwrap();
        let size = std::ffi::CString::new(format!("size={megabytes}m,mode=0755")).unwrap();
        rustix::mount::mount("tmpfs", &place, "tmpfs", MountFlags::empty(), Some(size.as_c_str())).unwrap();
        Disk(place)
    }

    fn make_read_only(&self) {
        e2e::command("mount").args(["-o", "remount,ro"]).arg(&self.0).ok();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        e2e::story::take_away(&self.0);
    }
}

#[test]
fn mounts_that_cannot_be() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("mounts that cannot be", Duration::from_secs(120));
    let cluster = Cluster::start(&story, Shape::mounts(1));
    let place = story.folder().join("place");
    fs::create_dir(&place).unwrap();
    let source = cluster.source();

    let nowhere = free_nid();
    let start = std::time::Instant::now();
    mount_fails(&format!("{nowhere}:/{}", cluster.fsname), &place, "soft=1").refused_with(&["MGS", &nowhere]);
    assert!(start.elapsed() < Duration::from_secs(4), "gave up after {:?}", start.elapsed());
    mount_fails("unix:/nowhere/at/all:/x", &place, "soft=1").refused_with(&["/nowhere/at/all"]);
    let nid = cluster.nid(Which::Mgt);
    mount_fails(&format!("{nid}:/wrong"), &place, "soft=1").refused_with(&["'wrong'", nid]);
    // The address of another target than the MGS.
    let mdt = cluster.nid(Which::Mdt(0));
    mount_fails(&format!("{mdt}:/{}", cluster.fsname), &place, "soft=1").refused_with(&[mdt]);
    mount_fails("not-a-source", &place, "soft=1").refused_with(&["'not-a-source'", "NID"]);
    mount_fails(&format!("{source}/sub/tree"), &place, "soft=1").refused_with(&["'/sub/tree'", "No such file"]);
    mount_fails(&format!("{source}/../x"), &place, "soft=1").refused_with(&["'..'"]);
    mount_fails(&source, &place, "nonsense").refused_with(&["'nonsense'"]);
    mount_fails(&source, &place, "max_dirty_mb=many").refused_with(&["max_dirty_mb=many"]);
    mount_fails(&source, &story.folder().join("missing"), "soft=1").refused_with(&[
        "missing",
        "does not exist",
        "mkdir",
    ]);
    let file = story.folder().join("file");
    fs::write(&file, "").unwrap();
    mount_fails(&source, &file, "soft=1").refused_with(&["file", "not a directory"]);
    let busy = adamant(["mount", &source]).arg(cluster.mount(0)).within(Duration::from_secs(20)).run();
    busy.refused_with(&["busy"]);

    // All the while the file system was not disturbed.
    fs::write(cluster.mount(0).join("f"), "x").unwrap();
}

#[test]
fn targets_that_cannot_be_made() {
    let story = Story::begin("targets that cannot be made", Duration::from_secs(60));
    let place = story.folder().join("ost");
    let shown = place.display().to_string();
    let mkfs = |words: &[&str]| adamant(["mkfs"]).args(words).arg(&place).run();
    mkfs(&["--ost"]).refused_with(&["--mgsnode"]);
    mkfs(&["--fsname", "much_too_long", "--ost", "--mgsnode", "127.0.0.1:1"]).refused_with(&["much_too_long"]);
    mkfs(&["--fsname", "x", "--mgsnode", "127.0.0.1:1"]).refused_with(&["--mgs, --mdt or --ost"]);
    mkfs(&["--fsname", "x", "--ost", "--index", "70000", "--mgsnode", "127.0.0.1:1"]).refused_with(&["70000"]);
    let outcome = mkfs(&["--fsname", "x", "--ost", "--mgsnode", "nonsense"]);
    assert_eq!(outcome.code, Some(2), "{outcome}");
    assert!(!place.exists(), "a refused mkfs makes nothing");
    mkfs(&["--fsname", "x", "--ost", "--mgsnode", "127.0.0.1:1"]).ok();
    mkfs(&["--fsname", "y", "--ost", "--mgsnode", "127.0.0.1:1"]).refused_with(&[&shown, "x-OST0000", "--reformat"]);
    mkfs(&["--fsname", "y", "--ost", "--mgsnode", "127.0.0.1:1", "--reformat"]).ok();
    // A folder with somebody's files is not taken for an empty disk.
    let other = adamant(["mkfs", "--mgs", "/proc/version"]).run();
    other.refused_with(&["/proc/version"]);
}

#[test]
fn servers_that_cannot_start() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("servers that cannot start", Duration::from_secs(120));
    let mut cluster = Cluster::start(&story, Shape::mounts(1));
    let place = |which: Which| cluster.place(which).display().to_string();
    let serve = |words: &[&str]| adamant(["serve"]).args(words).within(Duration::from_secs(20)).run();
    let free = free_nid();

    // The port of another; the directory of another process.
    let spare = story.folder().join("spare").display().to_string();
    adamant(["mkfs", "--mgs", &spare]).ok();
    serve(&["--listen", cluster.nid(Which::Mgt), &spare]).refused_with(&[
        cluster.nid(Which::Mgt),
        "in use",
        "--listen",
    ]);
    serve(&["--listen", &free, &place(Which::Mdt(0))]).refused_with(&[&place(Which::Mdt(0)), "use"]);
    // No target at all.
    serve(&["--listen", &free, &story.folder().join("nothing").display().to_string()]).refused_with(&["nothing"]);
    serve(&["--listen", &free, story.folder().to_str().unwrap()]).refused_with(&[story.folder().to_str().unwrap()]);
    serve(&["--listen", &free, "s3://bucket/x"]).refused_with(&["s3", "version"]);
    serve(&["--listen", &free, "-o", "nonsense", &spare]).refused_with(&["'nonsense'"]);
    serve(&["--listen", &free, "-o", "recovery_time_soft=x", &spare]).refused_with(&["recovery_time_soft=x"]);
    let outcome = serve(&["--listen", "nonsense", &spare]);
    assert_eq!(outcome.code, Some(2), "{outcome}");
    // Open to the world only if asked for, and then with a warning.
    serve(&["--listen", "0.0.0.0:0", &spare]).refused_with(&["0.0.0.0", "--insecure", "certificates"]);
    let mut open = e2e::process::Background::start(
        "an open server",
        &["serve".into(), "--insecure".into(), "--listen".into(), "0.0.0.0:0".into(), spare.clone()],
        story.folder().join("open.log"),
    );
    let start = std::time::Instant::now();
    while !open.log_text().contains(" serves at ") {
        assert!(open.ended().is_none() && start.elapsed() < Duration::from_secs(10), "{}", open.log_text());
        std::thread::sleep(Duration::from_millis(5));
    }
    let said = open.log_text();
    assert!(said.contains("warning: ") && said.contains("everyone"), "{said}");
    open.terminate();
    assert!(open.wait(Duration::from_secs(10)).is_some_and(|status| status.success()), "{}", open.log_text());

    // An index that is taken; a store that the MGS does not know (it was made anew).
    for (name, arguments, words) in [
        ("taken", vec!["--ost", "--index", "0"], ["index 0", "in use"]),
        ("second-mdt", vec!["--mdt", "--index", "0"], ["index 0", "in use"]),
    ] {
        let target = story.folder().join(name).display().to_string();
        let mgs = cluster.nid(Which::Mgt).to_owned();
        adamant(["mkfs", "--fsname", &cluster.fsname, "--mgsnode", &mgs]).args(&arguments).arg(&target).ok();
        serve(&["--listen", &free, &target]).refused_with(&words);
    }
    cluster.stop(Which::Ost(1));
    let other = free_nid();
    let fresh = story.folder().join("fresh").display().to_string();
    adamant(["mkfs", "--mgs", &fresh]).ok();
    let mut wrong = e2e::process::Background::start(
        "another MGS",
        &["serve".into(), "--listen".into(), other.clone(), fresh],
        story.folder().join("other.log"),
    );
    cluster.restart_fails(Which::Ost(1), &["--mgsnode", &other]).refused_with(&["MGS"]);
    wrong.terminate();
    wrong.wait(Duration::from_secs(10));
    cluster.restart(Which::Ost(1));

    fs::write(cluster.mount(0).join("f"), vec![1; 300_000]).unwrap();
    assert_eq!(fs::read(cluster.mount(0).join("f")).unwrap().len(), 300_000);
}

/// Connections that do nothing take no descriptors from the data files of an object target.
#[test]
fn idle_connections_leave_descriptors_for_data() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("idle connections", Duration::from_secs(90));
    let cluster = Cluster::start(&story, Shape { osts: 1, ..Shape::mounts(1) });
    let ost = Which::Ost(0);
    let few = Rlimit { current: Some(128), maximum: Some(128) };
    let pid = i32::try_from(cluster.server_pid(ost)).ok().and_then(Pid::from_raw).unwrap();
    prlimit(Some(pid), Resource::Nofile, few).unwrap();
    let idle: Vec<TcpStream> = (0..200).filter_map(|_| TcpStream::connect(cluster.nid(ost)).ok()).collect();
    assert!(idle.len() > 64, "more than half of the descriptors");
    let name = |n: usize| cluster.mount(0).join(format!("f{n}"));
    for n in 0..120 {
        fs::write(name(n), vec![n as u8; 100_000]).unwrap();
    }
    for n in 0..120 {
        fs::File::open(name(n)).unwrap().sync_all().unwrap();
        assert_eq!(fs::read(name(n)).unwrap(), vec![n as u8; 100_000]);
    }
    let log = cluster.server_log(ost);
    assert!(log.contains("as many connections as its limit of descriptors allows"), "{log}");
    assert_eq!(log.matches("as many connections").count(), 1, "one line for all that were refused: {log}");
}

/// Sends bytes to a server and gives what comes back until it hangs up, or nothing comes for a while.
fn converse(nid: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(nid).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
    // It may hang up before everything is written.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

fn frame_bytes(frame: &Frame) -> Vec<u8> {
    let mut out = BytesMut::new();
    frame.encode(&mut out);
    out.to_vec()
}

fn one_frame(bytes: &[u8]) -> Frame {
    let mut decoder = Decoder::new();
    decoder.buffer().extend_from_slice(bytes);
    decoder.next_frame().unwrap().expect("a whole frame came back")
}

fn connect_frame(change: impl FnOnce(&mut ConnectReq)) -> Frame {
    let mut request = ConnectReq {
        client_uuid: Bytes::from_static(b"0123456789abcdef"),
        version: proto::connect::PROTOCOL_VERSION,
        ..ConnectReq::default()
    };
    change(&mut request);
    let header = Header {
        opcode: Opcode::Connect as u16,
        flags: flags::CONNECT_INITIAL,
        conn_cnt: 1,
        xid: proto::Xid(1),
        timeout_ms: 5000,
        ..Header::default()
    };
    Frame::new(header, &request, Bytes::new())
}

#[test]
fn bytes_from_anybody() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("garbage to servers", Duration::from_secs(120));
    let mut cluster = Cluster::start(&story, Shape::mounts(1));
    let file = cluster.mount(0).join("f");
    fs::write(&file, "kept").unwrap();
    let good = frame_bytes(&connect_frame(|_| ()));
    let mut cases: Vec<(String, Vec<u8>)> = vec![
        ("a web request".into(), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        ("zeros".into(), vec![0; 4096]),
        ("ones".into(), vec![0xff; 4096]),
        ("a length beyond all limits".into(), [&0xffff_fff0u32.to_le_bytes()[..], &good[4..]].concat()),
        ("half a frame".into(), good[..good.len() / 2].to_vec()),
        ("a wrong checksum".into(), {
            let mut bytes = good.clone();
            bytes[8] ^= 1;
            bytes
        }),
        ("a newer frame layout".into(), {
            let mut bytes = good.clone();
            bytes[6] = 9;
            bytes
        }),
    ];
    for seed in 0..40 {
        cases.push((format!("noise {seed}"), e2e::trees::bytes(seed, 50 + seed as usize * 100)));
        let mut changed = good.clone();
        let at = 12 + (seed as usize * 7) % (changed.len() - 12);
        changed[at] ^= 1 << (seed % 8);
        let crc = crc32c::crc32c(&changed[12..]);
        changed[8..12].copy_from_slice(&crc.to_le_bytes());
        cases.push((format!("a connect with byte {at} changed"), changed));
    }
    // Every opcode, from somebody who never connected, with and without a body that is none.
    for opcode in 0..120u16 {
        for body in [&b""[..], b"\xff\xff\xff\xff\xff"] {
            let header = Header { opcode, xid: proto::Xid(1), export: proto::Handle(77), ..Header::default() };
            let frame = Frame { header, body: Bytes::copy_from_slice(body), bulk: Bytes::new() };
            cases.push((format!("opcode {opcode}"), frame_bytes(&frame)));
        }
    }
    for which in cluster.targets() {
        let nid = cluster.nid(which).to_owned();
        std::thread::scope(|scope| {
            for part in cases.chunks(cases.len().div_ceil(16)) {
                let nid = &nid;
                scope.spawn(move || {
                    for (_, bytes) in part {
                        converse(nid, bytes);
                    }
                });
            }
        });
        assert!(cluster.is_alive(which), "{which} died:\n{}", cluster.server_log(which));
        assert!(!cluster.server_log(which).contains("panicked"), "{which}:\n{}", cluster.server_log(which));
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
    fs::write(&file, vec![1; 200_000]).unwrap();
    fs::File::open(&file).unwrap().sync_all().unwrap();
}

/// Peers of a later version: unknown features are not granted, another major version is refused with a reason.
#[test]
fn newer_peers() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("newer peers", Duration::from_secs(60));
    let cluster = Cluster::start(&story, Shape::mounts(1));
    for which in [Which::Mgt, Which::Mdt(0), Which::Ost(0)] {
        let name = cluster.target_name(which);
        let connect = |change: &dyn Fn(&mut ConnectReq)| {
            let frame = connect_frame(|request| {
                request.target = name.clone();
                change(request);
            });
            one_frame(&converse(cluster.nid(which), &frame_bytes(&frame)))
        };
        let reply = connect(&|request| request.features = u64::MAX);
        assert_eq!(reply.header.status, 0, "{which}: unknown features must be survived");
        let granted = reply.decode::<ConnectRep>().unwrap().features;
        assert_eq!(granted & !proto::connect::features::SUPPORTED, 0, "{which}: {granted:x}");

        let newer = connect(&|request| request.version = 0x0009_0000);
        assert!(newer.header.status < 0, "{which} must refuse another major version");
        let minor = connect(&|request| request.version = proto::connect::PROTOCOL_VERSION + 7);
        assert_eq!(minor.header.status, 0, "{which} must take a newer minor version");
        let wrong = connect(&|request| request.target = "other-MDT0000".to_owned());
        assert!(wrong.header.status < 0, "{which} must refuse a connection for another target");
    }
}

/// A store with flipped bytes: the server says which, and does not serve wrong answers.
#[test]
fn a_damaged_store() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("a damaged store", Duration::from_secs(120));
    let mut cluster = Cluster::start(&story, Shape { mount_options: vec!["soft=2"], ..Shape::mounts(1) });
    for number in 0..200 {
        fs::write(cluster.mount(0).join(format!("f{number}")), format!("content {number}")).unwrap();
    }
    cluster.unmount(0);
    cluster.stop(Which::Mdt(0));
    let data = cluster.place(Which::Mdt(0)).join("data.mdb");
    let whole = fs::read(&data).unwrap();

    // Cut short; emptied; with another head.
    for (name, bytes) in [
        ("cut", whole[..whole.len() / 3].to_vec()),
        ("empty", Vec::new()),
        ("other head", [&[0x55; 8192][..], &whole[8192..]].concat()),
    ] {
        fs::write(&data, &bytes).unwrap();
        let outcome = cluster.restart_fails(Which::Mdt(0), &[]);
        assert_eq!(outcome.code, Some(65), "{name}: {outcome}");
        assert!(!outcome.stderr.contains("panicked"), "{name}: {outcome}");
        assert!(outcome.stderr.contains("mdt0") || outcome.stderr.contains("MDT0000"), "{name}: {outcome}");
    }
    // One byte in every page of the middle: whatever is asked for, it is the right answer or an error.
    let mut damaged = whole.clone();
    for page in (16..damaged.len() / 4096).step_by(3) {
        damaged[page * 4096 + 2000] ^= 0x10;
    }
    // And one in every copy of what some files hold.
    for number in (0..200).step_by(9) {
        let text = format!("content {number}");
        let copies: Vec<usize> =
            (0..whole.len() - text.len()).filter(|at| whole[*at..].starts_with(text.as_bytes())).collect();
        copies.into_iter().for_each(|at| damaged[at] ^= 0x20);
    }
    fs::write(&data, &damaged).unwrap();
    let place = cluster.place(Which::Mdt(0)).display().to_string();
    let mut server = e2e::process::Background::start(
        "mdt0",
        &["serve".into(), "--listen".into(), cluster.nid(Which::Mdt(0)).into(), place],
        story.folder().join("damaged.log"),
    );
    std::thread::sleep(Duration::from_millis(500));
    let mount = story.folder().join("m");
    fs::create_dir(&mount).unwrap();
    let outcome =
        adamant(["mount", "-o", "soft=1", &cluster.source()]).arg(&mount).within(Duration::from_secs(30)).run();
    if outcome.code == Some(0) {
        let mut errors = 0;
        for number in 0..200 {
            match fs::read_to_string(mount.join(format!("f{number}"))) {
                Ok(text) => assert_eq!(text, format!("content {number}"), "a wrong answer"),
                Err(_) => errors += 1,
            }
        }
        story.note(&format!("{errors} of 200 files cannot be read"));
        assert!(errors > 0, "damaged files were read");
        e2e::story::take_away(&mount);
    } else {
        story.note(&format!("not mounted: {}", outcome.stderr.trim()));
    }
    assert!(!server.log_text().contains("panicked"), "{}", server.log_text());
    server.terminate();
    if server.wait(Duration::from_secs(10)).is_none() {
        server.kill9();
    }
    assert!(
        server.log_text().contains("record '\\x") && server.log_text().contains("damaged"),
        "the damage must be named:\n{}",
        server.log_text()
    );

    // With its own bytes it serves again, when it is told that the start in between does not count.
    fs::write(&data, &whole).unwrap();
    cluster.restart_with(Which::Mdt(0), &["-o", "accept_old_store"]);
    cluster.mount_again(0);
    assert_eq!(fs::read_to_string(cluster.mount(0).join("f7")).unwrap(), "content 7");
}

#[test]
fn a_read_only_disk() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("a read-only disk", Duration::from_secs(60));
    let disk = Disk::new(&story, "disk", 64);
    let place = disk.0.join("ost0");
    let shape = Shape { osts: 1, places: vec![(Which::Ost(0), place.clone())], ..Shape::mounts(1) };
    let mut cluster = Cluster::start(&story, shape);
    cluster.unmount(0);
    cluster.stop(Which::Ost(0));
    disk.make_read_only();
    cluster.restart_fails(Which::Ost(0), &[]).refused_with(&[place.to_str().unwrap(), "Read-only"]);
    adamant(["mkfs", "--mgs"]).arg(disk.0.join("mgt")).run().refused_with(&[disk.0.to_str().unwrap()]);
    // It can still be looked at.
    let text = adamant(["tune", "--print"]).arg(&place).ok();
    assert!(text.contains("OST0000"), "{text}");
    drop(cluster);
}

/// A full object target: the program that writes is told, at write(), nothing acknowledged is lost, and removing helps.
#[test]
fn a_full_object_disk() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("a full object disk", Duration::from_secs(150));
    let disk = Disk::new(&story, "disk", 96);
    let shape = Shape { osts: 1, places: vec![(Which::Ost(0), disk.0.join("ost0"))], ..Shape::mounts(1) };
    let mut cluster = Cluster::start(&story, shape);
    let mount = cluster.mount(0).to_path_buf();
    let piece = e2e::trees::bytes(9, 1 << 20);
    let mut written = 0;
    let mut file = fs::File::create(mount.join("large")).unwrap();
    let error = loop {
        match file.write(&piece) {
            Ok(count) => written += count,
            Err(error) => break error,
        }
        assert!(written < 200 << 20, "more was taken than the disk has");
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    story.note(&format!("full after {} MiB of 96", written >> 20));
    assert!(written > 30 << 20, "only {written} bytes fit");
    file.sync_all().expect("what write() took must be written");
    drop(file);
    let content = fs::read(mount.join("large")).unwrap();
    assert_eq!(content.len(), written);
    assert!(content.chunks(1 << 20).all(|chunk| chunk == &piece[..chunk.len()]));
    // Small files live elsewhere and still work.
    fs::write(mount.join("small"), "x").unwrap();
    assert!(cluster.is_alive(Which::Ost(0)), "{}", cluster.server_log(Which::Ost(0)));

    fs::remove_file(mount.join("large")).unwrap();
    let start = std::time::Instant::now();
    loop {
        match fs::write(mount.join("again"), &piece).and_then(|()| fs::File::open(mount.join("again"))?.sync_all()) {
            Ok(()) => break,
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}"),
        }
        assert!(start.elapsed() < Duration::from_secs(30), "the space of the removed file does not come back");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(fs::read(mount.join("again")).unwrap() == piece);
}

/// A full metadata target, and object targets that are full too: creates fail with ENOSPC, everything acknowledged stays, also over a restart; removing helps.
#[test]
fn a_full_metadata_disk() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("a full metadata disk", Duration::from_secs(200));
    let disk = Disk::new(&story, "disk", 24);
    let objects = Disk::new(&story, "objects", 24);
    let places = vec![(Which::Mdt(0), disk.0.join("mdt0")), (Which::Ost(0), objects.0.join("ost0"))];
    let mut cluster = Cluster::start(&story, Shape { osts: 1, places, ..Shape::mounts(1) });
    let mount = cluster.mount(0).to_path_buf();
    let content = e2e::trees::bytes(4, 30_000);
    let mut made = 0;
    let error = loop {
        let folder = mount.join(format!("d{}", made / 100));
        if made % 100 == 0
            && let Err(error) = fs::create_dir(&folder)
        {
            break error;
        }
        let path = folder.join(format!("f{made}"));
        match fs::write(&path, &content).and_then(|()| fs::File::open(&path)?.sync_all()) {
            Ok(()) => made += 1,
            Err(error) => break error,
        }
        assert!(made < 2000, "more was taken than the disk has");
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    story.note(&format!("full after {made} files of 30 kB on twice 24 MiB"));
    assert!(made > 100, "only {made} files fit");
    assert!(cluster.is_alive(Which::Mdt(0)), "{}", cluster.server_log(Which::Mdt(0)));
    let check = || {
        for number in 0..made {
            let path = mount.join(format!("d{}/f{number}", number / 100));
            assert!(fs::read(&path).unwrap() == content, "{}", path.display());
        }
    };
    check();
    cluster.kill9(Which::Mdt(0));
    cluster.restart(Which::Mdt(0));
    check();
    // A full disk must let go of files.
    for number in 0..60 {
        fs::remove_file(mount.join(format!("d{}/f{number}", number / 100))).unwrap();
    }
    let start = std::time::Instant::now();
    while let Err(error) = fs::create_dir(mount.join("again")) {
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
        assert!(start.elapsed() < Duration::from_secs(30), "the space of removed files does not come back");
        std::thread::sleep(Duration::from_millis(200));
    }
    for number in 60..made {
        let path = mount.join(format!("d{}/f{number}", number / 100));
        assert!(fs::read(&path).unwrap() == content, "{}", path.display());
    }
}
