//! The metadata server dies again and again under programs that create, rename, link and unlink on several clients: nobody
//! sees an error, each operation that was acknowledged was done once, and the pause is short.

use std::fs::File;
use std::time::{Duration, Instant};

use e2e::load::{self, Load};
use e2e::{Cluster, Shape, Story, Which, adamant, needs_root};
use stdx::Rng;

/// How long clients may need until they are at work again.
const BACK: Duration = Duration::from_secs(60);
const CLIENTS: usize = 4;
const PROGRAMS: usize = 8;

/// What to do.
struct Plan {
    kills: u32,
    /// Files that there are beside those of the programs.
    files: u64,
    /// Operations that are acknowledged and not on disk when the server dies; 0: whatever there is.
    uncommitted: u64,
}

/// What the median of the longest pauses is wanted to be on a quiet machine.
const WANTED: Duration = Duration::from_secs(1);
/// What it may be on a busy one.
const BOUND: Duration = Duration::from_secs(8);

/// One death of the server.
struct Death {
    restarted: Instant,
    over: Instant,
    replayed: String,
}

fn run(story: &Story, plan: &Plan) {
    let mut cluster = Cluster::start(story, Shape { sync_metadata: vec![0, 1], ..Shape::mounts(CLIENTS) });
    fill(story, &cluster, plan.files);
    let load = Load::of_names(&cluster.mounts(), PROGRAMS, 31);
    load.await_progress(500, BACK);
    let mut rng = Rng::new(u64::from(std::process::id()));
    let mut deaths = Vec::new();
    for kill in 0..plan.kills {
        let victim = Which::Mdt(kill % cluster.mdt_count());
        pile_up(&cluster, &load, victim, plan.uncommitted, &mut rng);
        cluster.kill9(victim);
        let restarted = Instant::now();
        cluster.restart(victim);
        let status = format!("mdt.{}.recovery_status", cluster.target_name(victim));
        let text = await_complete(&cluster, &status);
        let line = text.lines().find_map(|line| line.strip_prefix("replayed_requests:")).unwrap_or("0");
        deaths.push(Death { restarted, over: Instant::now(), replayed: line.trim().to_owned() });
        load.await_progress(500, BACK);
    }
    let worked = load.stop();
    let pauses = pauses(&deaths, &worked);
    let replayed: Vec<&str> = deaths.iter().map(|death| death.replayed.as_str()).collect();
    let operations = load::operations(&worked);
    story.note(&format!("{operations} operations, {} kills; replayed: {}", plan.kills, replayed.join(" ")));
    let median = Duration::from_millis(pauses[pauses.len() / 2]);
    let kept = if median < WANTED { "kept" } else { "not kept" };
    story.note(&format!("longest pauses after the restart, in ms: {pauses:?}: a median under {WANTED:?} is {kept}"));
    for index in [0, CLIENTS - 1] {
        load::verify(&worked, cluster.mount(index));
    }
    cluster.unmount(0);
    cluster.mount_again(0);
    load::verify(&worked, cluster.mount(0));
    assert!(median < BOUND, "the median of the longest pauses is {median:?}: {pauses:?}");
}

/// Makes files in directories of their own, through all mounts, and has them on disk.
fn fill(story: &Story, cluster: &Cluster, files: u64) {
    if files == 0 {
        return;
    }
    let start = Instant::now();
    let each = files / (2 * CLIENTS as u64);
    std::thread::scope(|scope| {
        for (index, mount) in cluster.mounts().into_iter().enumerate() {
            for half in 0..2 {
                let folder = mount.join(format!("filled-{index}-{half}"));
                scope.spawn(move || {
                    std::fs::create_dir(&folder).expect("a folder");
                    let names = format!("{}/f%d", folder.display());
                    adamant(["createmany", "-m", &names, &each.to_string()]).within(Duration::from_secs(1800)).ok();
                });
            }
        }
    });
    sync(cluster);
    story.note(&format!("{files} files made in {:.0?}", start.elapsed()));
}

/// What was acknowledged is on disk.
fn sync(cluster: &Cluster) {
    for mount in cluster.mounts() {
        File::open(mount).and_then(|root| root.sync_all()).expect("fsync");
    }
}

/// Lets the programs work until the server is to die: for a while, or until so many operations are not on disk.
fn pile_up(cluster: &Cluster, load: &Load, victim: Which, uncommitted: u64, rng: &mut Rng) {
    if uncommitted == 0 {
        std::thread::sleep(Duration::from_millis(rng.below(1500)));
        return;
    }
    sync(cluster);
    let interval = format!("mdt.{}.commit_interval_ms=60000", cluster.target_name(victim));
    adamant(["lctl", "set_param", &interval]).ok();
    load.await_progress(uncommitted + rng.below(uncommitted / 10 + 1), Duration::from_secs(120));
}

fn await_complete(cluster: &Cluster, parameter: &str) -> String {
    let start = Instant::now();
    loop {
        let text = cluster.parameter(parameter);
        if text.contains("status: COMPLETE") {
            return text;
        }
        assert!(start.elapsed() < BACK, "it does not end its recovery:\n{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Of each death, how long the program waited that waited longest, from the restart on, in milliseconds; rising.
fn pauses(deaths: &[Death], worked: &[load::Worked]) -> Vec<u64> {
    let slow: Vec<(Instant, Instant)> = worked.iter().flat_map(|work| work.slow.iter().copied()).collect();
    let of = |death: &Death| {
        let met = slow.iter().filter(|(begin, end)| *end > death.restarted && *begin < death.over);
        met.map(|(begin, end)| *end - death.restarted.max(*begin)).max().unwrap_or_default()
    };
    let mut all: Vec<u64> = deaths.iter().map(|death| of(death).as_millis() as u64).collect();
    all.sort_unstable();
    all
}

#[test]
fn the_metadata_server_dies_five_times() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("five deaths of the MDT", Duration::from_secs(240));
    run(&story, &Plan { kills: 5, files: 2_000, uncommitted: 0 });
}

#[test]
#[ignore = "soak: a million files, twenty deaths with 20 000 operations to replay"]
fn the_metadata_server_dies_twenty_times_with_a_million_files() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("twenty deaths of the MDT, a million files", Duration::from_secs(3600));
    run(&story, &Plan { kills: 20, files: 1_000_000, uncommitted: 20_000 });
}
