//! Programs of others that know what a file system must do, for the soak: stress-ng's tests of file systems; databases of SQLite in
//! all its journal modes, on one mount and from two; and PostgreSQL, which is killed, and under which servers are killed.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use e2e::command::Run;
use e2e::story::STRICT;
use e2e::{Cluster, Shape, Story, Which, command, needs_root, skip};
use rustix::process::{Pid, Signal, kill_process};

/// Each of stress-ng's tests of file systems for two seconds on two processes, with its own checks. `bind-mount` mounts, and is left out.
#[test]
#[ignore = "soak: two minutes"]
fn stress_ng_finds_nothing_wrong() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("stress-ng, class filesystem", Duration::from_secs(900));
    let cluster = Cluster::start(&story, Shape::mounts(1));
    let folder = cluster.mount(0).join("stress");
    fs::create_dir(&folder).unwrap();
    let outcome = command("stress-ng")
        .args(["--class", "filesystem", "--sequential", "2", "--timeout", "2s", "--verify", "--exclude", "bind-mount"])
        .arg("--temp-path")
        .arg(&folder)
        .within(Duration::from_secs(840))
        .run();
    let told = format!("{}{}", outcome.stdout, outcome.stderr);
    let wrong: Vec<&str> = told.lines().filter(|line| line.contains("fail:")).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(told.lines().any(|line| line.contains("successful run completed")), "{told}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "they tidy up");
}

/// Four processes move money between accounts; what there is in all stays, and every transaction counts once. In WAL mode a database
/// may be used through one mount only.
#[test]
#[ignore = "soak: a minute"]
fn databases_keep_every_transaction() {
    if !needs_root() {
        return;
    }
    const PROCESSES: usize = 4;
    const TRANSACTIONS: usize = 50;
    let story = Story::begin("SQLite", Duration::from_secs(600));
    let cluster = Cluster::start(&story, Shape::mounts(2));
    for (mode, mounts) in [("delete", 2), ("truncate", 2), ("persist", 2), ("wal", 1), ("delete", 1)] {
        let name = format!("{mode}{mounts}.db");
        let at = |mount: usize| cluster.mount(mount % mounts).join(&name);
        let sql = |database: PathBuf, script: String| {
            command("sqlite3").arg("-bail").arg(database).arg(script).within(Duration::from_secs(120)).run()
        };
        let accounts = "CREATE TABLE a (id INTEGER PRIMARY KEY, n INTEGER); CREATE TABLE done (p INTEGER, t INTEGER, UNIQUE(p, t));
             INSERT INTO a VALUES (1, 1000), (2, 1000), (3, 1000), (4, 1000);";
        sql(at(0), format!("PRAGMA journal_mode={mode}; {accounts}")).ok();
        std::thread::scope(|scope| {
            for process in 0..PROCESSES {
                scope.spawn(move || {
                    let mut script = "PRAGMA busy_timeout=100000;\n".to_owned();
                    for t in 0..TRANSACTIONS {
                        let (from, to) = (1 + (process + t) % 4, 1 + (process + t + 1) % 4);
                        script += &format!(
                            "BEGIN IMMEDIATE; UPDATE a SET n = n - 1 WHERE id = {from}; UPDATE a SET n = n + 1 WHERE id = {to}; \
                             INSERT INTO done VALUES ({process}, {t}); COMMIT;\n"
                        );
                    }
                    sql(at(process), script).ok();
                });
            }
        });
        for mount in 0..mounts {
            let said =
                sql(at(mount), "PRAGMA integrity_check; SELECT sum(n) FROM a; SELECT count(*) FROM done;".to_owned())
                    .ok();
            let expected = format!("ok\n4000\n{}\n", PROCESSES * TRANSACTIONS);
            assert_eq!(said, expected, "{mode}, {mounts} mounts, seen through {mount}");
        }
    }
}

/// PostgreSQL's programs, and the user that runs them: it refuses to be root.
struct Postgres {
    programs: PathBuf,
    sockets: PathBuf,
    log: PathBuf,
    uid: u32,
    gid: u32,
}

/// How many clients `pgbench` has, and how long one run of it takes.
const CLIENTS: u64 = 4;
const RUN: Duration = Duration::from_secs(30);

impl Postgres {
    /// The newest that is installed as Debian does it; says so if there is none.
    fn find(story: &Story) -> Option<Postgres> {
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let programs = versions.map(|entry| entry.path().join("bin")).filter(|bin| bin.join("initdb").exists()).max();
        let user = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let user = user
            .lines()
            .find_map(|line| line.strip_prefix("postgres:x:")?.split(':').map(|id| id.parse().ok()).take(2).collect());
        let (Some(programs), Some::<Vec<u32>>(ids)) = (programs, user) else {
            let lack = "PostgreSQL is not here, or its user 'postgres'; install it: apt-get install postgresql";
            assert!(std::env::var_os(STRICT).is_none(), "{lack}");
            skip(lack);
            return None;
        };
        let (sockets, log) = (story.folder().join("sockets"), story.folder().join("postgres.log"));
        let postgres = Postgres { programs, sockets, log, uid: ids[0], gid: ids[1] };
        fs::create_dir(&postgres.sockets).unwrap();
        postgres.give(&postgres.sockets);
        Some(postgres)
    }

    /// Makes its user the owner.
    fn give(&self, path: &Path) {
        std::os::unix::fs::chown(path, Some(self.uid), Some(self.gid)).unwrap();
    }

    fn run(&self, program: &str) -> Run {
        let run = command(self.programs.join(program)).in_dir(&self.sockets).by_user(self.uid, self.gid);
        run.env("PGHOST", &self.sockets).env("PGUSER", "postgres").env("PGDATABASE", "postgres")
    }

    /// What a query gives, a line for each row.
    fn query(&self, sql: &str) -> String {
        self.run("psql").args(["--no-psqlrc", "--tuples-only", "--no-align", "--command", sql]).ok().trim().to_owned()
    }

    /// Serves a folder, when it can be asked.
    fn serve(&self, folder: &Path) -> Postmaster {
        let start = Instant::now();
        loop {
            let mut postmaster = self.launch(folder);
            while postmaster.0.try_wait().unwrap().is_none() {
                if self.run("pg_isready").run().code == Some(0) {
                    return postmaster;
                }
                assert!(start.elapsed() < Duration::from_secs(120), "it does not serve: {}", self.log_text());
                std::thread::sleep(Duration::from_millis(50));
            }
            // Processes of one that was killed notice that, and end, within moments. Until then it refuses to start.
            let in_use = "is still in use";
            assert!(
                start.elapsed() < Duration::from_secs(30) && self.log_text().contains(in_use),
                "{}",
                self.log_text()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn launch(&self, folder: &Path) -> Postmaster {
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        let mut command = Command::new(self.programs.join("postgres"));
        command.arg("-D").arg(folder).arg("-k").arg(&self.sockets).args(["-c", "listen_addresses="]);
        // Checkpoints come often, so that the files of tables are written and synced while transactions go on.
        command.args(["-c", "checkpoint_timeout=30s", "-c", "max_wal_size=64MB", "-c", "min_wal_size=32MB"]);
        command.uid(self.uid).gid(self.gid).current_dir(&self.sockets).stdin(Stdio::null());
        Postmaster(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap())
    }

    fn log_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Begins a run of `pgbench`; its end gives how many transactions it was told are done.
    fn bench(&self) -> std::thread::JoinHandle<u64> {
        let clients = CLIENTS.to_string();
        let run = self.run("pgbench").args(["--no-vacuum", "--client", &clients, "--jobs", "2"]);
        let run = run.args(["--time", &RUN.as_secs().to_string()]).within(RUN + Duration::from_secs(60));
        std::thread::spawn(move || {
            let outcome = run.run();
            let line = "number of transactions actually processed: ";
            let told = outcome.stdout.lines().find_map(|text| text.strip_prefix(line));
            told.unwrap_or_else(|| panic!("{outcome}")).trim().parse().unwrap()
        })
    }

    /// Looks whether what `pgbench` adds to three tables is the same, and gives how many transactions there are.
    fn transactions(&self) -> u64 {
        let sums = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = sum(delta), (SELECT sum(tbalance) FROM pgbench_tellers) = \
             sum(delta), (SELECT sum(bbalance) FROM pgbench_branches) = sum(delta), count(*) FROM pgbench_history";
        let found = self.query(sums);
        let count = found.strip_prefix("t|t|t|").unwrap_or_else(|| panic!("sums differ: {found}"));
        count.parse().unwrap()
    }

    /// Its own checks of tables and indexes.
    fn check(&self) {
        let all = ["--all", "--install-missing", "--heapallindexed", "--parent-check", "--rootdescend"];
        self.run("pg_amcheck").args(all).ok();
    }
}

/// The first process of a PostgreSQL server; ended with its test.
struct Postmaster(Child);

impl Postmaster {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn kill9(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// A shutdown that waits for no client.
    fn stop(mut self) {
        self.signal(Signal::INT);
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Postmaster {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.signal(Signal::QUIT);
            std::thread::sleep(Duration::from_millis(500));
            let _ = self.0.kill();
        }
    }
}

/// The bank of PostgreSQL's own benchmark. Its server is killed in the midst, then servers of the file system are, and then it is served from
/// another mount. What clients were told is done is there, nothing is done by half, and its own checks of pages, tables and indexes pass.
#[test]
#[ignore = "soak: a minute"]
fn a_database_server_that_is_killed_keeps_every_transaction() {
    if !needs_root() {
        return;
    }
    let story = Story::begin("PostgreSQL", Duration::from_secs(600));
    let Some(postgres) = Postgres::find(&story) else { return };
    let mut cluster = Cluster::start(&story, Shape::mounts(2));
    let folders = [0, 1].map(|mount| cluster.mount(mount).join("database"));
    fs::create_dir(&folders[0]).unwrap();
    postgres.give(&folders[0]);
    let made = ["--data-checksums", "--auth=trust", "--username=postgres", "--pgdata"];
    postgres.run("initdb").args(made).arg(&folders[0]).ok();
    let served = postgres.serve(&folders[0]);
    postgres.run("pgbench").args(["--initialize", "--quiet", "--scale", "5"]).ok();

    let bench = postgres.bench();
    std::thread::sleep(RUN / 2);
    served.kill9();
    let told = bench.join().unwrap();
    let start = Instant::now();
    let served = postgres.serve(&folders[0]);
    let found = postgres.transactions();
    story.note(&format!("killed: {told} transactions told, {found} there, recovered after {:.1?}", start.elapsed()));
    // Each client had one under way.
    assert!(told > 0 && (told..=told + CLIENTS).contains(&found), "{told} told, {found} there");
    postgres.check();

    let bench = postgres.bench();
    let victims = [Which::Mdt(0), Which::Ost(0), Which::Ost(1)];
    for victim in victims.into_iter().cycle().take_while(|_| !bench.is_finished()) {
        std::thread::sleep(Duration::from_secs(3));
        cluster.kill9(victim);
        cluster.restart(victim);
    }
    let more = bench.join().unwrap();
    assert_eq!(postgres.transactions(), found + more, "servers of the file system were killed, not the database");
    story.note(&format!("{more} transactions while servers died"));
    served.stop();

    // No server runs: all pages are checked, from both mounts. Then the other mount has the database.
    for folder in &folders {
        postgres.run("pg_checksums").args(["--check", "--pgdata"]).arg(folder).ok();
    }
    let served = postgres.serve(&folders[1]);
    assert_eq!(postgres.transactions(), found + more);
    postgres.check();
    served.stop();
}
