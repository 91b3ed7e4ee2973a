//! One process at work on a mount over loopback TCP, beside what the kernel and the network allow.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;
use serde::Serialize;

use crate::cluster::Cluster;
use crate::echo::Echo;
use crate::figures::median;
use crate::load;
use crate::nothing::{self, Data};

/// How much to do.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Rounds, of which the median counts.
    pub rounds: u32,
    /// Files of each round.
    pub files: u32,
    /// MiB of the sequential file.
    pub mib: u64,
}

/// A line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What was done.
    pub what: String,
    /// On Adamant.
    pub adamant: f64,
    /// The yardstick.
    pub yardstick: f64,
    /// What the yardstick is.
    pub yardstick_is: String,
    /// Unit of both.
    pub unit: String,
    /// Adamant over yardstick.
    pub ratio: f64,
    /// The ratio that is wanted: at most (times) or at least (rates).
    pub wanted: String,
    /// Whether it is reached.
    pub reached: bool,
}

#[derive(Default)]
struct Samples {
    echo: Vec<f64>,
    nothing: Vec<load::Metadata>,
    adamant: Vec<load::Metadata>,
    nothing_small: Vec<f64>,
    adamant_small: Vec<f64>,
    nothing_write: Vec<f64>,
    nothing_read: Vec<f64>,
    socket: Vec<f64>,
    adamant_write: Vec<f64>,
    adamant_read: Vec<f64>,
}

/// Runs the measurement in a scratch directory.
///
/// # Errors
/// What could not be started or done.
pub fn run(scratch: &Path, size: Size, say: &mut dyn FnMut(&str)) -> anyhow::Result<Vec<Row>> {
    let cluster = Cluster::start(&scratch.join("cluster"), 1)?;
    let nothing_mount = scratch.join("nothing");
    let nothing_data = scratch.join("nothing-data");
    let local = scratch.join("local");
    for folder in [&nothing_mount, &nothing_data, &local] {
        std::fs::create_dir_all(folder)?;
    }
    let mut server = Command::new(std::env::current_exe()?)
        .args(["bench", "echo-server"])
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the echo server")?;
    let mut port = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(server.stdout.take().context("no output")?), &mut port)?;
    let mut echo = Echo::connect(port.trim().parse()?)?;
    let mut samples = Samples::default();
    for round in 0..size.rounds {
        say(&format!("round {} of {}", round + 1, size.rounds));
        samples.echo.push(echo.measure(size.files)?);
        {
            let _session = nothing::mount(&nothing_mount, Data::Nowhere, 8)?;
            samples.nothing.push(load::metadata(&nothing_mount, size.files)?);
            samples.nothing_small.push(load::small_files(&nothing_mount, size.files, 4096)?);
        }
        samples.adamant.push(load::metadata(&cluster.mount, size.files)?);
        samples.adamant_small.push(load::small_files(&cluster.mount, size.files, 4096)?);
        {
            let _session = nothing::mount(&nothing_mount, Data::Local(nothing_data.clone()), 8)?;
            let (write, read) = load::sequential(&nothing_mount, size.mib)?;
            samples.nothing_write.push(write);
            samples.nothing_read.push(read);
        }
        samples.socket.push(load::socket_to_file(&local, size.mib)?);
        let (write, read) = load::sequential(&cluster.mount, size.mib)?;
        samples.adamant_write.push(write);
        samples.adamant_read.push(read);
    }
    drop(echo);
    let _ = server.wait();
    Ok(rows(samples))
}

fn rows(samples: Samples) -> Vec<Row> {
    let pick = |list: &[load::Metadata], which: fn(&load::Metadata) -> f64| median(list.iter().map(which).collect());
    let echo = median(samples.echo);
    let mut rows = Vec::new();
    let mut time = |what: &str, adamant: f64, yardstick: f64, is: &str, wanted: f64| {
        rows.push(Row {
            what: what.to_owned(),
            adamant,
            yardstick,
            yardstick_is: is.to_owned(),
            unit: "us".to_owned(),
            ratio: adamant / yardstick,
            wanted: format!("<= {wanted:.2}"),
            reached: adamant / yardstick <= wanted,
        });
    };
    let create = |m: &load::Metadata| m.create;
    let unlink = |m: &load::Metadata| m.unlink;
    let stat = |m: &load::Metadata| m.stat;
    let allowance = 1.3 * echo + 15.0;
    let nothing_create = pick(&samples.nothing, create);
    let nothing_unlink = pick(&samples.nothing, unlink);
    let nothing_small = median(samples.nothing_small);
    time("create", pick(&samples.adamant, create), nothing_create + allowance, "do-nothing + 1.3 echo + 15 us", 1.0);
    time("unlink", pick(&samples.adamant, unlink), nothing_unlink + allowance, "do-nothing + 1.3 echo + 15 us", 1.0);
    time("stat, warm", pick(&samples.adamant, stat), pick(&samples.nothing, stat), "do-nothing", 1.3);
    time(
        "4 KiB file",
        median(samples.adamant_small),
        nothing_small + 2.0 * echo + 40.0,
        "do-nothing + 2 echo + 40 us",
        1.0,
    );
    time("echo", echo, echo, "itself", 1.0);
    time("do-nothing create", nothing_create, nothing_create, "itself", 1.0);
    let mut rate = |what: &str, adamant: f64, yardstick: f64, is: &str| {
        rows.push(Row {
            what: what.to_owned(),
            adamant,
            yardstick,
            yardstick_is: is.to_owned(),
            unit: "MiB/s".to_owned(),
            ratio: adamant / yardstick,
            wanted: ">= 0.50".to_owned(),
            reached: adamant / yardstick >= 0.5,
        });
    };
    let best = median(samples.nothing_write).max(median(samples.socket));
    rate(
        "write with fsync",
        median(samples.adamant_write),
        best,
        "best of do-nothing to a local file, socket to a local file",
    );
    rate("read", median(samples.adamant_read), median(samples.nothing_read), "do-nothing from a local file");
    rows
}
