//! `mds-survey`: generates load inside the metadata targets that run on this machine.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use bench::survey::folders::ByClient;
use bench::survey::{self, Survey};
use clap::Args;
use host::admin::{self, Request, Response};
use host::survey::{Order, Status};
use proto::{Nid, TargetName};

use crate::commands::status;
use crate::daemon;
use crate::output::say;

/// Measure metadata targets from inside their servers, without network and clients
///
/// Every option can be given as Lustre's tool takes it, as a variable of the environment: thrlo, thrhi, dir_count, file_count,
/// tests_str, start_number, targets, rslt, rslt_loc, stripe_count, layer.
///
/// Example: thrhi=16 file_count=200000 mds-survey
#[derive(Args)]
pub(crate) struct Arguments {
    /// Least number of threads (thrlo; 4)
    #[arg(long, value_name = "N")]
    thrlo: Option<u32>,
    /// Greatest number of threads; the least is doubled until it exceeds this (thrhi; 32)
    #[arg(long, value_name = "N")]
    thrhi: Option<u32>,
    /// Number of directories of each target; numbers of threads below it are left out (dir_count; thrlo)
    #[arg(long, value_name = "N")]
    dir_count: Option<u32>,
    /// Files of all threads together, on each target (file_count; 100000)
    #[arg(long, value_name = "N")]
    file_count: Option<u64>,
    /// Tests in order, create first and destroy last (tests_str; "create lookup md_getattr setxattr destroy")
    #[arg(long, value_name = "TESTS")]
    tests: Option<String>,
    /// The number in the name of the first file (start_number; 2)
    #[arg(long, value_name = "N")]
    start_number: Option<u64>,
    /// Metadata targets by name, separated by spaces (targets; all of this machine)
    #[arg(long, value_name = "NAMES")]
    targets: Option<String>,
    /// Write the lines to PREFIX.summary and each target's figures and seconds to PREFIX.detail (rslt; with only the variable
    /// rslt_loc, a directory: a name in it from mds_survey_, the time and the name of the node; with neither no files)
    #[arg(long, value_name = "PREFIX")]
    rslt: Option<PathBuf>,
    /// Over how many of the targets each directory is striped, which then share it (stripe_count; 0, not striped). Files have
    /// no objects before they are written, whatever this is
    #[arg(long, value_name = "N")]
    stripe_count: Option<u32>,
    /// The tested layer (layer; mdd). There is only one
    #[arg(long, value_name = "LAYER")]
    layer: Option<String>,
    /// Outstanding requests of each thread
    #[arg(long, value_name = "N", default_value_t = 1)]
    outstanding: u32,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

/// The value of an option, or of its variable, or the default.
fn setting<T: std::str::FromStr>(given: Option<T>, variable: &str, default: T) -> anyhow::Result<T> {
    match (given, std::env::var(variable)) {
        (Some(given), _) => Ok(given),
        (None, Ok(text)) if !text.trim().is_empty() => text
            .trim()
            .parse()
            .map_err(|_| anyhow!("the variable {variable} is '{text}', which is not what it should be")),
        _ => Ok(default),
    }
}

impl Arguments {
    fn survey(&self, targets: Vec<String>) -> anyhow::Result<Survey> {
        let threads_low = setting(self.thrlo, "thrlo", 4)?;
        let list = setting(self.tests.clone(), "tests_str", "create lookup md_getattr setxattr destroy".to_owned())?;
        let survey = Survey {
            targets,
            threads_low,
            threads_high: setting(self.thrhi, "thrhi", 32)?,
            folders: setting(self.dir_count, "dir_count", threads_low)?,
            files: setting(self.file_count, "file_count", 100_000)?,
            stripes: setting(self.stripe_count, "stripe_count", 0)?,
            outstanding: self.outstanding,
            tests: survey::tests(&list)?,
            start: setting(self.start_number, "start_number", 2)?,
        };
        let layer = setting(self.layer.clone(), "layer", "mdd".to_owned())?;
        if layer != "mdd" {
            bail!("layer '{layer}' cannot be tested by itself: a target has one, mdd");
        }
        survey.check()?;
        Ok(survey)
    }
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let misused = |error: anyhow::Error| -> ! { crate::misused::<Arguments>("mds-survey", &format!("{error:#}")) };
    let wanted = setting(arguments.targets.clone(), "targets", String::new()).unwrap_or_else(|error| misused(error));
    let mut survey = arguments.survey(Vec::new()).unwrap_or_else(|error| misused(error));
    let here = Here::find();
    survey.targets = if wanted.is_empty() {
        here.names().map(str::to_owned).collect()
    } else {
        wanted.split_ascii_whitespace().map(str::to_owned).collect()
    };
    if survey.targets.is_empty() {
        bail!("no metadata target runs on this machine; start one with 'adamant up' or 'adamant serve'");
    }
    survey.targets.iter().try_for_each(|target| here.has(target))?;
    let most = survey.targets.len();
    if survey.stripes as usize > most {
        eprintln!(
            "note: stripe_count={}: there are stripes on {most} metadata targets, as many as are measured",
            survey.stripes
        );
    }
    daemon::end_tools_on_signal(true)?;
    let ask = |target: &str, order: Order| here.ask(target, order);
    let mgs = |fsname: &str| here.mgs(fsname);
    let folders = ByClient { mgs: &mgs };
    let prefix = setting(arguments.rslt.clone(), "rslt", PathBuf::new()).unwrap_or_else(|error| misused(error));
    let folder = setting(None, "rslt_loc", PathBuf::new()).unwrap_or_else(|error| misused(error));
    let prefix = match (prefix.as_os_str().is_empty(), folder.as_os_str().is_empty()) {
        (true, false) => folder.join(survey::result_name()),
        _ => prefix,
    };
    let (mut out, mut rows) = (Tee { copy: Vec::new(), quiet: arguments.json }, Vec::new());
    let result = survey.run(&ask, &folders, &mut out, &mut rows);
    if !prefix.as_os_str().is_empty() {
        write(&prefix, "summary", &out.copy)?;
        write(&prefix, "detail", &serde_json::to_vec_pretty(&rows)?)?;
    }
    if arguments.json {
        say!("{}", serde_json::to_string_pretty(&rows)?);
    }
    result?;
    Ok(ExitCode::SUCCESS)
}

/// The metadata targets of this machine.
pub(crate) struct Here {
    targets: Vec<Served>,
}

/// A metadata target of this machine.
struct Served {
    name: String,
    /// Whether it has not stopped.
    up: bool,
    /// The admin socket of its process.
    socket: PathBuf,
    /// The addresses of its MGS.
    mgs: Vec<String>,
}

impl Here {
    /// Asks all processes of this machine.
    pub(crate) fn find() -> Here {
        let of_process = |process: status::Process| {
            let status::Process { socket, description, .. } = process;
            let mdts = description.devices.into_iter().filter(|device| device.kind == "mdt");
            let served = |device: admin::Device| {
                let (socket, mgs) = (socket.clone(), description.mgs.clone());
                Served { up: device.state == "UP", name: device.name, socket, mgs }
            };
            mdts.map(served).collect::<Vec<_>>()
        };
        Here { targets: status::processes().into_iter().flat_map(of_process).collect() }
    }

    /// The names of those that run.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.targets.iter().filter(|target| target.up).map(|target| target.name.as_str())
    }

    fn served(&self, target: &str) -> anyhow::Result<&Served> {
        let found = self.targets.iter().filter(|known| known.name == target).max_by_key(|known| known.up);
        match found {
            Some(found) if found.up => Ok(found),
            Some(_) => bail!("target '{target}' has stopped; start its server again"),
            None => bail!("no metadata target '{target}' runs on this machine; see: lctl dl"),
        }
    }

    /// Fails unless a target runs here.
    pub(crate) fn has(&self, target: &str) -> anyhow::Result<()> {
        self.served(target).map(drop)
    }

    /// Sends an order to a target.
    pub(crate) fn ask(&self, target: &str, order: Order) -> anyhow::Result<Status> {
        let socket = &self.served(target)?.socket;
        match admin::ask(socket, &Request::Survey { target: target.to_owned(), order }) {
            Ok(Response::Survey(status)) => Ok(status),
            Ok(Response::Failed(_, message)) => Err(anyhow!(message)),
            Ok(_) => Err(anyhow!("the server of '{target}' is of another version")),
            Err(error) => Err(anyhow!("the server of '{target}' does not answer: {error}")),
        }
    }

    /// The MGS of a file system that has a target here.
    pub(crate) fn mgs(&self, fsname: &str) -> anyhow::Result<Vec<Nid>> {
        let is_of = |target: &&Served| target.name.parse::<TargetName>().is_ok_and(|name| name.fsname == fsname);
        let mut known = self.targets.iter().filter(is_of).map(|target| &target.mgs);
        match known.find(|mgs| !mgs.is_empty()) {
            Some(mgs) => Ok(mgs.iter().filter_map(|nid| nid.parse().ok()).collect()),
            None => bail!("no server here says where the MGS of '{fsname}' is; restart them with this version"),
        }
    }
}

fn write(prefix: &std::path::Path, ending: &str, bytes: &[u8]) -> anyhow::Result<()> {
    let mut path = prefix.as_os_str().to_owned();
    path.push(format!(".{ending}"));
    let path = PathBuf::from(path);
    std::fs::write(&path, bytes).with_context(|| format!("cannot write '{}'", path.display()))
}

/// Writes to standard output, and keeps a copy.
struct Tee {
    copy: Vec<u8>,
    quiet: bool,
}

impl Write for Tee {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.copy.extend_from_slice(bytes);
        if !self.quiet {
            std::io::stdout().write_all(bytes)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stdout().flush()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn survey(line: &str) -> anyhow::Result<Survey> {
        let words = std::iter::once("mds-survey").chain(line.split_ascii_whitespace());
        Line::try_parse_from(words)?.arguments.survey(Vec::new())
    }

    #[test]
    fn options_have_lustres_defaults() {
        let survey = survey("").unwrap();
        assert_eq!(
            (survey.threads_low, survey.threads_high, survey.folders, survey.files, survey.start),
            (4, 32, 4, 100_000, 2)
        );
        assert_eq!((survey.tests.len(), survey.stripes), (5, 0));
    }

    #[test]
    fn a_target_is_asked_where_it_runs() {
        let served = |name: &str, up, mgs: &[&str]| Served {
            name: name.to_owned(),
            up,
            socket: PathBuf::from("/nowhere"),
            mgs: mgs.iter().map(|nid| (*nid).to_owned()).collect(),
        };
        let here = Here {
            targets: vec![
                served("fs-MDT0000", true, &["10.0.0.1:7988", "unix:/run/mgs"]),
                served("fs-MDT0001", false, &[]),
                served("old-MDT0000", true, &[]),
            ],
        };
        assert_eq!(here.names().collect::<Vec<_>>(), ["fs-MDT0000", "old-MDT0000"]);
        assert_eq!(here.mgs("fs").unwrap().len(), 2);
        for (reason, why) in [
            (here.mgs("old").unwrap_err(), "no server here says"),
            (here.mgs("other").unwrap_err(), "no server here says"),
            (here.has("fs-MDT0001").unwrap_err(), "has stopped"),
            (here.has("fs-MDT0002").unwrap_err(), "see: lctl dl"),
        ] {
            assert!(reason.to_string().contains(why), "{reason}");
        }
        assert!(here.has("fs-MDT0000").is_ok());
    }

    #[test]
    fn options_are_read_and_wrong_ones_refused() {
        let survey_of =
            survey("--thrlo 2 --thrhi 8 --dir-count 1 --file-count 1000 --start-number 5 --outstanding 4").unwrap();
        assert_eq!(
            (survey_of.sweep(), survey_of.files, survey_of.start, survey_of.outstanding),
            (vec![2, 4, 8], 1000, 5, 4)
        );
        assert_eq!(survey("--stripe-count 2").unwrap().stripes, 2);
        for bad in ["--thrlo 0", "--thrhi x", "--tests lookup", "--file-count 3", "--layer lod"] {
            assert!(survey(bad).is_err(), "{bad}");
        }
    }
}
