//! The output of `adamant status`: a row for each target and mount, and a line for each problem.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Value, json};

use super::dead::DeadMount;
use super::{Arguments, Process, processes as all_processes};
use crate::commands::up;
use crate::output::{self, human, say};

/// The request counts of targets at the last output.
#[derive(Default)]
pub(super) struct Pace {
    last: BTreeMap<String, (Instant, u64)>,
}

impl Pace {
    /// The requests per second since the last output.
    fn of(&mut self, name: &str, count: u64) -> Option<f64> {
        let now = Instant::now();
        let (then, before) = self.last.insert(name.to_owned(), (now, count))?;
        let seconds = now.duration_since(then).as_secs_f64();
        (seconds > 0.0).then(|| count.saturating_sub(before) as f64 / seconds)
    }
}

/// A target or a mount.
#[derive(Default)]
struct Row {
    name: String,
    /// `UP`, or another state.
    state: String,
    recovery: Option<String>,
    clients: Option<u64>,
    /// Bytes: total, and available.
    space: Option<(u64, u64)>,
    /// Answered requests, and their rate per second.
    requests: Option<u64>,
    rate: Option<f64>,
    pid: Option<u32>,
    place: String,
    /// Its problems, as sentences.
    lacks: Vec<String>,
}

/// Prints the targets and mounts. Returns whether there are any.
pub(super) fn print(arguments: &Arguments, pace: &mut Pace) -> anyhow::Result<bool> {
    let rows = rows(arguments, pace)?;
    if arguments.json {
        let list: Vec<Value> = rows.iter().map(Row::json).collect();
        say!("{}", serde_json::to_string_pretty(&list)?);
    } else if rows.is_empty() {
        say!("nothing runs here; start a file system with: {} up", up::own_name());
    } else {
        let mut head = vec!["NAME", "STATE", "RECOVERY", "CLIENTS", "SIZE", "AVAIL", "PID", "PLACE"];
        if arguments.watch {
            head.insert(6, "REQ/S");
        }
        let cells: Vec<Vec<String>> = rows.iter().map(|row| row.cells(arguments.watch)).collect();
        output::print(format_args!("{}", output::table(&head, &cells)));
        for (row, lack) in rows.iter().flat_map(|row| row.lacks.iter().map(move |lack| (row, lack))) {
            say!("{} at {}: {lack}", row.name, output::one_line(&row.place));
        }
    }
    Ok(!rows.is_empty())
}

fn rows(arguments: &Arguments, pace: &mut Pace) -> anyhow::Result<Vec<Row>> {
    let processes: Vec<Process>;
    let dead: Vec<DeadMount>;
    let mut rows = Vec::new();
    if let Some(dir) = &arguments.dir {
        let home = up::Home::new(dir)?;
        let (servers, mounts) = home.processes();
        dead = home.dead_mounts(&mounts);
        processes = servers.into_iter().chain(mounts).collect();
        if !processes.is_empty() || !dead.is_empty() {
            let log = home.dir().join("server.log").display().to_string();
            let served: Vec<String> = processes.iter().flat_map(Process::names).collect();
            let absent = home.known().into_iter().filter(|(name, _)| !served.contains(name));
            rows.extend(absent.map(|(name, place)| Row {
                name,
                state: "DOWN".to_owned(),
                place: place.display().to_string(),
                lacks: vec![format!("it is not served; {log} says why")],
                ..Row::default()
            }));
        }
    } else {
        processes = all_processes();
        dead = DeadMount::all(&processes, |_| true);
    }
    for process in &processes {
        let of_process = |device| match process.role.as_str() {
            "mount" => of_mount(process, device),
            _ => of_target(process, device, pace),
        };
        // The connections of a mount are reported in its own row.
        let has_row = |device: &&host::admin::Device| process.role != "mount" || device.kind == "client";
        rows.extend(process.description.devices.iter().filter(has_row).map(of_process));
    }
    rows.extend(dead.into_iter().map(|mount| {
        let place = mount.place.display().to_string();
        let name = format!("{}-client", mount.fsname());
        let lacks =
            vec![format!("its process has died; free the directory with: umount -l {}", up::shell_word(&place))];
        Row { name, state: "DEAD".to_owned(), place, lacks, ..Row::default() }
    }));
    Ok(rows)
}

fn of_target(process: &Process, device: &host::admin::Device, pace: &mut Pace) -> Row {
    let name = &device.name;
    let one = |leaf: &str| process.params(&format!("*.{name}.{leaf}")).pop().map(|(_, value)| value);
    let recovery = one("recovery_status");
    let status = |text: &String| text.lines().find_map(|line| line.strip_prefix("status: ").map(str::to_owned));
    // For an object target the space for data counts, not that of its store.
    let kbytes = process.params(&format!("*.{name}.kbytes*"));
    let is_data = |path: &str| path.starts_with("obdfilter.");
    let of_data = kbytes.iter().any(|(path, _)| is_data(path));
    let bytes = |leaf: &str| {
        let found = kbytes.iter().find(|(path, _)| path.ends_with(leaf) && is_data(path) == of_data)?;
        Some(found.1.parse::<u64>().ok()?.saturating_mul(1024))
    };
    let requests = one("stats").map(|text| samples(&text));
    Row {
        name: name.clone(),
        state: device.state.clone(),
        recovery: recovery.as_ref().and_then(status),
        clients: one("num_exports").and_then(|value| value.trim().parse().ok()),
        space: bytes("kbytestotal").zip(bytes("kbytesavail")),
        requests,
        rate: requests.and_then(|count| pace.of(name, count)),
        pid: Some(process.description.pid),
        place: device.place.clone(),
        lacks: if device.state == "UP" {
            Vec::new()
        } else {
            vec!["it has stopped; see the log of its server".to_owned()]
        },
    }
}

/// The sum of all requests in a `stats` parameter.
fn samples(text: &str) -> u64 {
    let count = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [_, count, "samples", unit, ..] if unit != "[bytes]" => count.parse::<u64>().ok(),
        _ => None,
    };
    text.lines().filter_map(count).sum()
}

fn of_mount(process: &Process, device: &host::admin::Device) -> Row {
    let lost: Vec<(String, String)> = match device.state.as_str() {
        "UP" => process.connections().into_iter().filter(|(_, state)| state != "FULL").collect(),
        _ => Vec::new(),
    };
    let (state, lacks) = match device.state.as_str() {
        "AT" => ("WAITING", process.description.waits.clone()),
        "UP" if !lost.is_empty() => {
            let list: Vec<String> = lost.iter().map(|(target, state)| format!("{target} ({state})")).collect();
            (state_of(&lost), vec![format!("requests wait for the connection to {}", list.join(", "))])
        }
        other => (other, Vec::new()),
    };
    Row {
        name: device.name.clone(),
        state: state.to_owned(),
        pid: Some(process.description.pid),
        place: device.place.clone(),
        lacks,
        ..Row::default()
    }
}

/// The state of a mount with connections that are not `FULL`, which alternate between connecting and waiting.
fn state_of(lost: &[(String, String)]) -> &'static str {
    let recovers = |state: &str| state.starts_with("REPLAY") || state == "RECOVER";
    if lost.iter().all(|(_, state)| recovers(state)) { "RECOVER" } else { "DISCONN" }
}

impl Row {
    fn cells(&self, rates: bool) -> Vec<String> {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let mut cells = vec![
            self.name.clone(),
            self.state.clone(),
            or_dash(self.recovery.clone()),
            or_dash(self.clients.map(|clients| clients.to_string())),
            or_dash(self.space.map(|(all, _)| human(all))),
            or_dash(self.space.map(|(_, available)| human(available))),
            or_dash(self.pid.map(|pid| pid.to_string())),
            self.place.clone(),
        ];
        if rates {
            cells.insert(6, or_dash(self.rate.map(|rate| format!("{rate:.0}"))));
        }
        cells
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "state": self.state,
            "recovery": self.recovery,
            "clients": self.clients,
            "total_bytes": self.space.map(|(all, _)| all),
            "available_bytes": self.space.map(|(_, available)| available),
            "requests": self.requests,
            "requests_per_second": self.rate,
            "pid": self.pid,
            "place": self.place,
            "lacks": self.lacks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_read_has_types() {
        let row = Row {
            name: "fs-OST0000".into(),
            clients: Some(3),
            pid: Some(7),
            space: Some((2048, 1024)),
            ..Row::default()
        };
        let value = row.json();
        assert_eq!((value["clients"].as_u64(), value["pid"].as_u64()), (Some(3), Some(7)));
        assert_eq!((value["total_bytes"].as_u64(), value["available_bytes"].as_u64()), (Some(2048), Some(1024)));
        assert!(value["recovery"].is_null() && value["requests_per_second"].is_null());
        assert_eq!(row.cells(true)[4..8], ["2.0K", "1.0K", "-", "7"]);
    }

    #[test]
    fn a_lost_connection_is_the_state_of_a_mount() {
        let states = |list: &[&str]| {
            let lost: Vec<(String, String)> = list.iter().map(|state| ("t".to_owned(), (*state).to_owned())).collect();
            state_of(&lost)
        };
        assert_eq!(states(&["CONNECTING"]), "DISCONN");
        assert_eq!(states(&["REPLAY_WAIT", "DISCONN"]), "DISCONN");
        assert_eq!(states(&["REPLAY_WAIT", "RECOVER"]), "RECOVER");
    }

    #[test]
    fn samples_are_summed() {
        let text = "snapshot_time x\nobd_ping  3 samples [reqs]\nost_read  4 samples [usecs] 1 2 3\nread_bytes 4 samples [bytes] 1 2 3\n";
        assert_eq!(samples(text), 7);
    }

    #[test]
    fn rates_need_two_looks() {
        let mut pace = Pace::default();
        assert_eq!(pace.of("t", 10), None);
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!(pace.of("t", 20).is_some_and(|rate| rate > 0.0));
    }
}
