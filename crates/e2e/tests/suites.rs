//! Programs of others that know what a file system must do, for the soak: stress-ng's tests of file systems, and databases of SQLite in
//! all its journal modes, on one mount and from two.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use e2e::{Cluster, Shape, Story, command, needs_root};

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
