//! Many calls at once on several clients over the same few names: nothing waits for ever, nobody is evicted, and in the
//! end all clients see one file system.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use client::api::{Answer, Call, CallId, FileHandle, RecordLock, RecordLockKind, SetStat};
use proto::Errno;
use stdx::Rng;
use testkit::cluster::{Cluster, cred, name, seeds};

struct Running {
    node: usize,
    id: CallId,
    opens: bool,
    what: String,
}

fn storm(seed: u64, rounds: usize, faults: bool) {
    let mut rng = Rng::new(seed);
    let clients = rng.range(2, 3) as usize;
    let mut c = Cluster::new(2);
    for _ in 0..clients {
        c.mount();
    }
    let d = c.mkdir(0, 1, "d").unwrap().ino;
    let e = c.mkdir(0, 1, "e").unwrap().ino;
    let mut inos: Vec<u64> = vec![1, d, e];
    let mut handles: Vec<Vec<FileHandle>> = vec![Vec::new(); clients];
    let mut running: Vec<Running> = Vec::new();
    let names = ["a", "b", "c", "f", "g"];
    for round in 0..rounds {
        // Several programs per client, none of which waits for another.
        let node = rng.below(clients as u64) as usize;
        let parent = *rng.pick(&[1, d, e]).unwrap();
        let new_parent = *rng.pick(&[1, d, e]).unwrap();
        let text = name(rng.pick(&names).unwrap());
        let other = name(rng.pick(&names).unwrap());
        let ino = *rng.pick(&inos).unwrap();
        let handle = rng.pick(&handles[node]).copied();
        let call = match (rng.below(16), handle) {
            (0 | 1, _) => Call::Lookup { parent, name: text },
            (2 | 3, _) => Call::Create { parent, name: text, mode: 0o644, flags: 0o102 },
            (4, _) => Call::Mkdir { parent, name: text, mode: 0o755 },
            (5, _) => Call::Unlink { parent, name: text },
            (6, _) => Call::Rmdir { parent, name: text },
            (7, _) => Call::Rename { parent, name: text, new_parent, new_name: other, flags: 0 },
            (8, _) => Call::Getattr { ino, fh: None },
            (9, _) => Call::Setattr { ino, set: SetStat { mode: Some(0o755), ..SetStat::default() } },
            (10, _) => Call::Setattr { ino, set: SetStat { size: Some(rng.below(100_000)), ..SetStat::default() } },
            (11 | 12, Some(fh)) => {
                let data = vec![7; rng.range(1, 60_000) as usize].into();
                Call::Write { fh, ino: 0, offset: rng.below(100_000), data, write_back: false, kill_priv: false }
            }
            (13, Some(fh)) => Call::Read { fh, offset: 0, length: 10_000 },
            (14, Some(fh)) if rng.chance(1, 2) => Call::Fsync { fh },
            (14, Some(fh)) => Call::Setlk {
                fh,
                owner: rng.below(3),
                lock: RecordLock { start: 0, end: 9, kind: RecordLockKind::Unlock, pid: 1 },
                wait: true,
                flock: false,
            },
            (15, Some(fh)) => {
                handles[node].retain(|known| *known != fh);
                Call::Release { fh, flock_owner: None }
            }
            _ => Call::Open { ino, flags: 2 },
        };
        let opens = matches!(call, Call::Create { .. } | Call::Open { .. });
        let what = format!("{call:?}");
        let what = what[..what.len().min(120)].to_owned();
        // Sent without letting the world run: calls overlap.
        let id = c.send_quietly(node, cred(0), call);
        running.push(Running { node, id, opens, what });
        for _ in 0..rng.below(6) {
            c.one_step(&mut rng);
        }
        if faults && rng.chance(1, 100) {
            match rng.below(3) {
                0 => c.restart("fs-MDT0000"),
                1 => c.restart("fs-OST0001"),
                _ => c.cut(node),
            }
        }
        if round % 50 == 49 || running.len() > 20 {
            let ids: Vec<(usize, CallId)> = running.iter().map(|r| (r.node, r.id)).collect();
            let limit = c.now + Duration::from_secs(if faults { 60 } else { 5 });
            c.run();
            while !ids.iter().all(|(node, id)| c.answered(*node, *id)) {
                if c.now > limit {
                    let stuck: Vec<&str> =
                        running.iter().filter(|r| !c.answered(r.node, r.id)).map(|r| r.what.as_str()).collect();
                    for node in 0..clients {
                        for line in c.nodes[node].machine.in_progress() {
                            println!("client {node}: {}", &line[..line.len().min(1500)]);
                        }
                    }
                    panic!("seed {seed} round {round}: no answer to {stuck:#?}\n{:#?}", c.log);
                }
                c.step();
            }
        }
        let mut still = Vec::new();
        for run in core::mem::take(&mut running) {
            if !c.answered(run.node, run.id) {
                still.push(run);
                continue;
            }
            match c.answer(run.node, run.id) {
                Ok(Answer::Opened { fh, .. }) if run.opens => handles[run.node].push(fh),
                Ok(Answer::Created { fh, stat, .. }) => {
                    handles[run.node].push(fh);
                    inos.push(stat.ino);
                }
                Ok(Answer::Entry(stat)) => inos.push(stat.ino),
                Err(Errno::EIO) => panic!("seed {seed} round {round}: EIO from {}\n{:#?}", run.what, c.log),
                _ => {}
            }
        }
        running = still;
    }
    c.run();
    for run in running {
        let _ = c.answer(run.node, run.id);
    }
    assert!(
        !c.log.iter().any(|line| line.contains("evict") && !line.contains(" 0 were evicted")),
        "seed {seed}: {:#?}",
        c.log
    );
    // One file system.
    let fresh = c.mount();
    let seen: Vec<BTreeMap<String, String>> = (0..=clients).map(|node| tree(&mut c, node)).collect();
    for node in 0..clients {
        assert_eq!(seen[node], seen[fresh], "seed {seed} client {node}");
    }
}

/// Every path with what stat says of it.
fn tree(c: &mut Cluster, node: usize) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut todo = vec![String::new()];
    let mut visited = BTreeSet::new();
    while let Some(path) = todo.pop() {
        let ino = c.walk(node, &path).unwrap();
        if !visited.insert(ino) {
            continue;
        }
        let stat = c.getattr(node, ino).unwrap();
        all.insert(path.clone(), format!("{:o} {} {}", stat.mode, stat.nlink, stat.ino));
        for text in c.list(node, ino, false).unwrap() {
            if text == "." || text == ".." {
                continue;
            }
            let child = format!("{path}/{text}");
            let ino = c.walk(node, &child).unwrap();
            let stat = c.getattr(node, ino).unwrap();
            if stat.mode & 0o170_000 == 0o040_000 {
                todo.push(child);
            } else {
                all.insert(child, format!("{:o} {} {} {}", stat.mode, stat.nlink, stat.ino, stat.size));
            }
        }
    }
    all
}

#[test]
fn nothing_waits_for_ever() {
    for seed in seeds(0, 60) {
        storm(seed, 400, false);
    }
    assert!(stdx::marks::count("directory_lock_lost_in_flight") > 0);
}

#[test]
fn nothing_waits_for_ever_through_restarts_and_cuts() {
    for seed in seeds(1_000_000, 60) {
        storm(seed, 400, true);
    }
}
