//! Older versions and this one as each other's clients and servers, and the way up and down between them. Of version 0.1.0: the
//! interoperability and the upgrade tests of Lustre's plan for several changes in flight.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use e2e::load::{self, Load};
use e2e::{Cluster, Outcome, Shape, Story, Which, adamant, binary, command, needs_root, older, trees};

const BACK: Duration = Duration::from_secs(30);
const ALL: [Which; 4] = [Which::Mgt, Which::Mdt(0), Which::Ost(0), Which::Ost(1)];
/// `feature_incompat` of a metadata target that this version made.
const KEYED_NAMES: &str = "0x10000";

/// A file system that both versions can serve, with one mount.
fn plain() -> Shape {
    Shape { plain_names: true, ..Shape::mounts(1) }
}

/// `feature_incompat` of a metadata target that knows a client with several changes in flight.
const MULTI_RPCS: &str = "0x400";

/// The program of version 0.1.0, where this test can run.
fn first_version() -> Option<PathBuf> {
    if needs_root() { older("0.1.0") } else { None }
}

/// The parameters of the metadata client of a mount, by its process: mounts of one file system have names of their own.
fn import(cluster: &Cluster) -> String {
    cluster.parameter(&format!("mdc.{}-MDT0000-mdc*.import", cluster.fsname))
}

/// The incompatible features of the metadata target, as the reader of sessions shows them.
fn features(cluster: &Cluster) -> String {
    let text = adamant(["lr_reader"]).arg(cluster.place(Which::Mdt(0))).ok();
    let line = text.lines().find_map(|line| line.trim().strip_prefix("feature_incompat: ")).expect("a line");
    line.to_owned()
}

/// Trees in the file system, each beside one in a local folder that had the same done to it.
struct Trees {
    there: PathBuf,
    here: PathBuf,
    count: u64,
}

impl Trees {
    fn new(story: &Story, mount: &Path) -> Trees {
        let here = story.folder().join("reference");
        fs::create_dir_all(&here).unwrap();
        Trees { there: mount.to_path_buf(), here, count: 0 }
    }

    /// Operations of a step: parallel creates and unlinks, small and large files, changes to what earlier steps left
    /// (another version may have written it), `lfs df`.
    #[track_caller]
    fn operate(&mut self) {
        self.check();
        let step = self.count;
        self.count += 1;
        parallel_changes(&self.there.join(format!("parallel{step}")));
        for root in [&self.there, &self.here] {
            trees::make(&root.join(format!("tree{step}")), step, 60).unwrap();
            for earlier in 0..step {
                change(&root.join(format!("tree{earlier}")), step);
            }
        }
        self.check();
        let space = adamant(["lfs", "df"]).arg(&self.there).ok();
        assert!(space.contains("MDT0000") && space.contains("OST0001"), "{space}");
    }

    /// Has everything on disk: what a client holds back is lost when its servers forget it.
    fn sync(&self) {
        for path in trees::read(&self.there).unwrap().into_keys() {
            let path = self.there.join(path);
            if fs::symlink_metadata(&path).unwrap().is_file() {
                fs::File::open(&path).unwrap().sync_all().unwrap();
            }
        }
    }

    #[track_caller]
    fn check(&self) {
        for step in 0..self.count {
            let name = format!("tree{step}");
            trees::assert_equal(&self.here.join(&name), &self.there.join(&name));
        }
    }
}

/// Processes of one client make files in directories of their own, and remove most of them.
#[track_caller]
fn parallel_changes(folder: &Path) {
    let names: Vec<String> = (0..4)
        .map(|at| {
            let place = folder.join(format!("d{at}"));
            fs::create_dir_all(&place).unwrap();
            format!("{}/f%d", place.display())
        })
        .collect();
    for (arguments, count) in [(&["createmany", "-o"][..], "150"), (&["unlinkmany"], "140")] {
        std::thread::scope(|scope| {
            for name in &names {
                scope.spawn(move || {
                    adamant(arguments).args([name.as_str(), count]).ok();
                });
            }
        });
    }
    for at in 0..4 {
        assert_eq!(fs::read_dir(folder.join(format!("d{at}"))).unwrap().count(), 10);
    }
}

/// Appends to some files of a tree, renames, links and removes others: the same ones in equal trees.
fn change(root: &Path, seed: u64) {
    let all = trees::read(root).unwrap();
    let files: Vec<PathBuf> = all
        .iter()
        .filter(|(_, thing)| thing.mode & libc::S_IFMT == libc::S_IFREG && thing.links == 1)
        .map(|(path, _)| root.join(path))
        .collect();
    let (append, rest) = files.split_at(files.len() / 4);
    for path in append {
        fs::File::options().append(true).open(path).unwrap().write_all(&trees::bytes(seed, 3000)).unwrap();
    }
    let with = |path: &Path, ending: &str| PathBuf::from(format!("{}.{seed}{ending}", path.display()));
    fs::rename(&rest[0], with(&rest[0], "renamed")).unwrap();
    fs::hard_link(&rest[1], with(&rest[1], "linked")).unwrap();
    fs::remove_file(&rest[2]).unwrap();
    fs::File::options().write(true).open(&rest[3]).unwrap().set_len(100_000).unwrap();
}

/// Kills servers under load; every acknowledged operation is there afterwards.
#[track_caller]
fn kills(story: &Story, cluster: &mut Cluster, seed: u64) {
    let load = Load::start(&cluster.mounts(), 2, seed);
    load.await_progress(100, BACK);
    for victims in [&[Which::Mdt(0)][..], &[Which::Ost(0)], &[Which::Mdt(0)], &ALL] {
        for victim in victims {
            cluster.kill9(*victim);
        }
        for victim in victims {
            cluster.restart(*victim);
        }
        load.await_progress(100, BACK);
    }
    let worked = load.stop();
    story.note(&format!("{} operations, longest {:.2?}", load::operations(&worked), load::longest(&worked)));
    for mount in cluster.mounts() {
        load::verify(&worked, &mount);
    }
    cluster.unmount(0);
    cluster.mount_again(0);
    load::verify(&worked, cluster.mount(0));
}

#[test]
fn a_client_of_version_0_1_0_and_servers_of_this_one() {
    let Some(old) = first_version() else { return };
    let story = Story::begin("old client, new servers", Duration::from_secs(180));
    let shape = Shape { mount_program: Some(old.clone()), ..Shape::mounts(1) };
    let mut cluster = Cluster::start(&story, shape);
    let mut trees = Trees::new(&story, cluster.mount(0));
    trees.operate();
    kills(&story, &mut cluster, 1);
    trees.operate();
    assert!(!import(&cluster).contains("multi_mod_rpcs"), "{}", import(&cluster));
    assert_eq!(features(&cluster), KEYED_NAMES, "this client gives the target nothing that its version could not read");
    // Which is more than servers of that version can say. A client of that version does not end while its server is away.
    cluster.unmount(0);
    cluster.stop(Which::Mdt(0));
    cluster.change_servers(&old);
    cluster.restart_fails(Which::Mdt(0), &[]).refused_with(&["needs feature '0x10000' that this version lacks"]);
    let told = adamant(["tune", "--print"]).arg(cluster.place(Which::Mdt(0))).ok();
    assert!(told.contains("way_back: ") && told.contains("--plain-names"), "its error points here: {told}");
}

#[test]
fn a_client_of_this_version_and_servers_of_0_1_0() {
    let Some(old) = first_version() else { return };
    let story = Story::begin("new client, old servers", Duration::from_secs(180));
    let shape = Shape { server_program: Some(old.clone()), ..Shape::mounts(1) };
    let mut cluster = Cluster::start(&story, shape);
    let mut trees = Trees::new(&story, cluster.mount(0));
    trees.operate();
    kills(&story, &mut cluster, 2);
    trees.operate();
    let text = import(&cluster);
    assert!(!text.contains("multi_mod_rpcs") && !text.contains("max_mod_rpcs"), "not granted: {text}");
    let setting = format!("mdc.{}-MDT0000-mdc*.max_mod_rpcs_in_flight", cluster.fsname);
    assert_eq!(cluster.parameter(&setting), "1");
    let more = adamant(["lctl", "set_param", &format!("{setting}=2")]).run();
    assert_ne!(more.code, Some(0), "the server takes one: {more}");
    cluster.stop(Which::Mdt(0));
    let header = command(&old).args(["tune", "--print"]).arg(cluster.place(Which::Mdt(0))).ok();
    assert!(header.lines().any(|line| line.contains("feature_incompat") && line.ends_with("0x0")), "{header}");
    cluster.restart(Which::Mdt(0));
    trees.check();
}

/// Sessions of both kinds beside each other on one target, on the same files.
#[test]
fn clients_of_both_versions_beside_each_other() {
    let Some(old) = first_version() else { return };
    let story = Story::begin("clients of both versions", Duration::from_secs(180));
    let mut cluster = Cluster::start(&story, plain());
    cluster.add_mount(&old);
    let mut trees = Trees::new(&story, cluster.mount(0));
    trees.operate();
    trees.there = cluster.mount(1).to_path_buf();
    trees.operate();
    kills(&story, &mut cluster, 3);
    trees.operate();
    trees.there = cluster.mount(0).to_path_buf();
    trees.operate();
    assert_eq!(features(&cluster), MULTI_RPCS);
    let granted = import(&cluster).matches("multi_mod_rpcs").count();
    assert_eq!(granted, 1, "to one of the two: {}", import(&cluster));
}

fn stop_servers(cluster: &mut Cluster) {
    for which in cluster.targets().into_iter().rev() {
        cluster.stop(which);
    }
}

fn change_client(cluster: &mut Cluster, index: usize, program: &Path) {
    cluster.unmount(index);
    cluster.change_mount(index, program);
    cluster.mount_again(index);
}

/// The whole walk of the plan: which side goes first is told, and comes back last.
fn up_and_down(story: &Story, old: &Path, servers_first: bool) {
    let new = binary();
    let programs = (Some(old.to_path_buf()), Some(old.to_path_buf()));
    let mut cluster = Cluster::start(story, Shape { server_program: programs.0, mount_program: programs.1, ..plain() });
    let mut trees = Trees::new(story, cluster.mount(0));
    trees.operate();
    // The client stays mounted while its servers become others.
    let upgrade_servers = |cluster: &mut Cluster| {
        stop_servers(cluster);
        cluster.change_servers(&new);
        cluster.start_all();
    };
    if servers_first {
        upgrade_servers(&mut cluster);
        trees.operate();
        change_client(&mut cluster, 0, &new);
    } else {
        change_client(&mut cluster, 0, &new);
        trees.operate();
        upgrade_servers(&mut cluster);
    }
    trees.operate();
    assert_eq!(features(&cluster), MULTI_RPCS, "the upgraded client has several changes in flight");
    assert!(import(&cluster).contains("max_mod_rpcs: 8"), "{}", import(&cluster));
    story.note("up");
    if servers_first {
        change_client(&mut cluster, 0, old);
        trees.operate();
        trees.sync();
        downgrade_servers(&mut cluster, old);
        await_connection(&cluster);
        trees.operate();
    } else {
        trees.sync();
        downgrade_servers(&mut cluster, old);
        await_connection(&cluster);
        trees.operate();
        change_client(&mut cluster, 0, old);
        trees.operate();
    }
    // And what the older version made of it is nothing that the newer one minds.
    stop_servers(&mut cluster);
    cluster.change_servers(&new);
    cluster.start_all();
    await_connection(&cluster);
    trees.operate();
    story.note("down, and up again");
}

/// Stops the servers and starts the older version on their targets: refused at first, then with the step between.
fn downgrade_servers(cluster: &mut Cluster, old: &Path) {
    stop_servers(cluster);
    assert_eq!(features(cluster), MULTI_RPCS);
    let new = binary();
    cluster.change_servers(old);
    cluster.restart(Which::Mgt);
    refused_by_the_older_version(&cluster.restart_fails(Which::Mdt(0), &[]));
    refused_by_the_older_version(&cluster.restart_fails(Which::Mdt(0), &["-o", "abort_recov"]));
    let told = adamant(["tune", "--print"]).arg(cluster.place(Which::Mdt(0))).ok();
    assert!(told.contains("way_back: ") && told.contains("abort_recov"), "its error points here: {told}");
    cluster.change_servers(&new);
    cluster.serve_once(Which::Mdt(0), &["-o", "abort_recov"]);
    assert_eq!(features(cluster), "0x0", "it knows no such client any more");
    cluster.change_servers(old);
    cluster.start_all();
}

#[track_caller]
fn refused_by_the_older_version(outcome: &Outcome) {
    assert_eq!(outcome.code, Some(1), "{outcome}");
    for word in ["needs feature 'multi_rpcs' that this version lacks", "with the newer version"] {
        assert!(outcome.stderr.contains(word), "'{word}' is missing: {outcome}");
    }
}

/// A client that was forgotten notices at its next request, which may fail; then it is there again. A change alone may be made by
/// metadata write-back, and needs no request.
#[track_caller]
fn await_connection(cluster: &Cluster) {
    let start = Instant::now();
    let probe = |path: PathBuf| {
        let mut file = fs::File::create(path)?;
        file.write_all(b"x")?;
        file.sync_all()
    };
    for mount in cluster.mounts() {
        while let Err(error) = probe(mount.join("probe")) {
            assert!(start.elapsed() < BACK, "the client does not come back: {error}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn servers_first_up_then_down() {
    let Some(old) = first_version() else { return };
    let story = Story::begin("upgrade, servers first", Duration::from_secs(240));
    up_and_down(&story, &old, true);
}

#[test]
fn the_client_first_up_then_down() {
    let Some(old) = first_version() else { return };
    let story = Story::begin("upgrade, client first", Duration::from_secs(240));
    up_and_down(&story, &old, false);
}

/// What was acknowledged, after clients that all lived and no longer waited than for a restart.
#[track_caller]
fn all_is_there(cluster: &Cluster, load: Load) {
    let worked = load.stop();
    for mount in cluster.mounts() {
        load::verify(&worked, &mount);
    }
    let longest = load::longest(&worked);
    assert!(longest < Duration::from_secs(10), "a client was waited for: {longest:?}");
}

/// The servers die under load and come back as the other version: what they had answered and not written is replayed to it.
#[test]
fn a_crash_between_the_versions() {
    let Some(old) = first_version() else { return };
    let story = Story::begin("a crash between the versions", Duration::from_secs(180));
    let programs = (Some(old.clone()), Some(old.clone()));
    let shape = Shape { server_program: programs.0, mount_program: programs.1, ..plain() };
    let mut cluster = Cluster::start(&story, shape);
    cluster.add_mount(&binary());
    let load = Load::start(&cluster.mounts(), 2, 7);
    load.await_progress(300, BACK);
    cluster.kill9_servers();
    cluster.change_servers(&binary());
    cluster.start_all();
    load.await_progress(300, BACK);
    all_is_there(&cluster, load);
    assert_eq!(features(&cluster), MULTI_RPCS, "one of the clients has more slots now than the older version gave it");
    // And back, with clients that the older version can serve.
    change_client(&mut cluster, 1, &old);
    stop_servers(&mut cluster);
    cluster.serve_once(Which::Mdt(0), &["-o", "abort_recov"]);
    cluster.start_all();
    await_connection(&cluster);
    let load = Load::start(&cluster.mounts(), 2, 8);
    load.await_progress(300, BACK);
    cluster.kill9_servers();
    cluster.change_servers(&old);
    cluster.start_all();
    load.await_progress(300, BACK);
    all_is_there(&cluster, load);
}

/// The feature goes with the last client that needs it, at a start or at the end of a recovery, and not before.
#[test]
fn when_the_feature_is_taken_back() {
    let Some(old) = first_version() else { return };
    let story = Story::begin("when the feature is taken back", Duration::from_secs(120));
    let mut cluster = Cluster::start(&story, plain());
    assert_eq!(features(&cluster), MULTI_RPCS, "set before the client's first change");
    // Killed and started again with the client there: kept through the recovery.
    cluster.kill9(Which::Mdt(0));
    assert_eq!(features(&cluster), MULTI_RPCS, "durable before the client was answered");
    cluster.restart(Which::Mdt(0));
    fs::write(cluster.mount(0).join("f"), "x").unwrap();
    assert_eq!(features(&cluster), MULTI_RPCS);
    // The client says good-bye: one more start takes it back, the stop before it does not.
    cluster.unmount(0);
    cluster.stop(Which::Mdt(0));
    assert_eq!(features(&cluster), MULTI_RPCS);
    cluster.serve_once(Which::Mdt(0), &[]);
    assert_eq!(features(&cluster), "0x0");
    // A client of the older version does not bring it back.
    cluster.restart(Which::Mdt(0));
    cluster.change_mount(0, &old);
    cluster.mount_again(0);
    assert_eq!(fs::read(cluster.mount(0).join("f")).unwrap(), b"x");
    fs::write(cluster.mount(0).join("g"), "y").unwrap();
    assert_eq!(features(&cluster), "0x0");
    // No client comes back that had it: the end of the recovery takes it back as well.
    change_client(&mut cluster, 0, &binary());
    fs::write(cluster.mount(0).join("h"), "z").unwrap();
    assert_eq!(features(&cluster), MULTI_RPCS);
    cluster.kill9_mount(0);
    cluster.kill9(Which::Mdt(0));
    cluster.serve_once(Which::Mdt(0), &["-o", "abort_recov"]);
    assert_eq!(features(&cluster), "0x0", "the client that was killed is forgotten");
    cluster.change_servers(&old);
    cluster.restart(Which::Mdt(0));
    cluster.mount_again(0);
    for (name, content) in [("f", "x"), ("g", "y")] {
        assert_eq!(fs::read_to_string(cluster.mount(0).join(name)).unwrap(), content);
    }
}

/// Both have several changes in flight and write metadata back, and neither needs a feature that the other lacks: each takes the other's
/// place at once, as a client and as a server, after a clean stop and after a crash.
#[test]
fn version_0_2_0_and_this_one_take_each_others_place() {
    let Some(old) = (if needs_root() { older("0.2.0") } else { None }) else { return };
    let story = Story::begin("version 0.2.0 beside this one", Duration::from_secs(300));
    let new = binary();
    let mut cluster = Cluster::start(&story, Shape::mounts(1));
    cluster.add_mount(&old);
    let mut trees = Trees::new(&story, cluster.mount(0));
    let both = |cluster: &Cluster, trees: &mut Trees| {
        for mount in cluster.mounts() {
            trees.there = mount;
            trees.operate();
        }
    };
    both(&cluster, &mut trees);
    kills(&story, &mut cluster, 4);
    both(&cluster, &mut trees);
    let before = features(&cluster);
    assert_eq!(import(&cluster).matches("multi_mod_rpcs").count(), 2, "{}", import(&cluster));
    for servers in [&old, &new] {
        stop_servers(&mut cluster);
        cluster.change_servers(servers);
        cluster.start_all();
        both(&cluster, &mut trees);
        assert_eq!(features(&cluster), before);
    }
    story.note("after clean stops");
    for (seed, servers) in (9..).zip([&old, &new]) {
        let load = Load::start(&cluster.mounts(), 2, seed);
        load.await_progress(300, BACK);
        cluster.kill9_servers();
        cluster.change_servers(servers);
        cluster.start_all();
        load.await_progress(300, BACK);
        all_is_there(&cluster, load);
        both(&cluster, &mut trees);
    }
    story.note("after crashes");
    change_client(&mut cluster, 0, &old);
    change_client(&mut cluster, 1, &new);
    both(&cluster, &mut trees);
}
