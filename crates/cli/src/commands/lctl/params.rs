//! `get_param`, `list_param` and `set_param` of running processes.
//!
//! Parameters form a tree: kinds, devices, and the parameters of a device. Processes answer only for the leaves; the levels
//! above are derived from their names.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use host::admin::{Request, Response};
use proto::params::{self, Named};

use super::lustre;
use crate::audience::Audience;
use crate::misuse::misuse;
use crate::output::say;

/// The exit status for a parameter that does not exist, as in Lustre's tool.
pub(super) const NOT_FOUND: u8 = 2;

/// Which of the matching names to print, and how.
#[derive(Args)]
pub(super) struct Selection {
    /// Print a slash after directories, and an equals sign after what can be set
    #[arg(short = 'F')]
    classify: bool,
    /// Print only directories: kinds, devices, and names with parameters below them
    #[arg(short = 'D')]
    pub directories: bool,
    /// Include everything below
    #[arg(short = 'R')]
    recursive: bool,
}

/// The parameters that match a pattern, for each process.
fn collect_each(audience: &mut Audience, pattern: &str) -> Vec<(String, Vec<(String, String)>)> {
    let request = Request::GetParam { pattern: pattern.to_owned() };
    let answers = audience.ask_each(&request).into_iter();
    answers
        .filter_map(|(process, response)| match response {
            Response::Params(params) => Some((process, params)),
            _ => None,
        })
        .collect()
}

/// The parameters of all processes, sorted. Those that several processes have in common appear once.
fn together(each: Vec<(String, Vec<(String, String)>)>) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = each.into_iter().flat_map(|(_, params)| params).collect();
    found.sort();
    found.dedup();
    found
}

/// The parameters that match a pattern, sorted, with their values.
pub(super) fn collect(audience: &mut Audience, pattern: &str) -> Vec<(String, String)> {
    together(collect_each(audience, pattern))
}

/// Notes on parameters without a device in which processes differ: which process has which value.
fn differences(each: &[(String, Vec<(String, String)>)]) -> Vec<String> {
    let mut owners: BTreeMap<&str, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for (process, params) in each {
        for (name, value) in params.iter().filter(|(name, _)| !name.contains('.')) {
            owners.entry(name).or_default().entry(value).or_default().push(process);
        }
    }
    let differing = owners.into_iter().filter(|(_, values)| values.len() > 1);
    differing
        .map(|(name, values)| {
            let whose = |(value, who): (&str, Vec<&str>)| {
                format!("'{}' in {}", value.trim_end().replace('\n', " "), who.join(", "))
            };
            let whose: Vec<String> = values.into_iter().map(whose).collect();
            format!("{name} is {}; --device asks one of them", whose.join(", "))
        })
        .collect()
}

/// Reports why nothing matches, and returns the exit status for it.
pub(super) fn not_found(verb: &str, pattern: &str) -> u8 {
    let what = if lustre::has_param(pattern) { "not in this version; see limits" } else { "No such file or directory" };
    eprintln!("error: {verb}: param_path '{pattern}': {what}");
    NOT_FOUND
}

/// The pattern for everything below the matches of a pattern.
fn below(pattern: &str) -> String {
    format!("{pattern}.**")
}

/// The depth in the tree at which a pattern matches; `None` if any.
fn depth(pattern: &str) -> Option<usize> {
    (!pattern.contains("**")).then(|| pattern.split(['.', '/']).count())
}

/// The names that a pattern lists from the leaves at and below it, and whether each is a directory.
fn listed(leaves: &[String], pattern: &str, recursive: bool) -> BTreeMap<String, bool> {
    let mut all = BTreeMap::new();
    for leaf in leaves {
        let parts: Vec<&str> = leaf.split('.').collect();
        let from = depth(pattern).unwrap_or(parts.len()).min(parts.len());
        let to = if recursive { parts.len() } else { from };
        for length in from..=to {
            let is_directory = all.entry(parts[..length].join(".")).or_insert(false);
            *is_directory |= length < parts.len();
        }
    }
    all
}

/// `get_param`: prints parameters, without their names if only `values` are wanted.
pub(super) fn get(audience: &mut Audience, patterns: &[String], values: bool, selection: &Selection) -> ExitCode {
    let mut code = 0;
    for pattern in patterns {
        let mut each = collect_each(audience, pattern);
        if selection.recursive {
            each.extend(collect_each(audience, &below(pattern)));
        }
        differences(&each).iter().for_each(|note| eprintln!("note: {note}"));
        let found = together(each);
        if found.is_empty() {
            code = if !selection.recursive && !collect(audience, &below(pattern)).is_empty() {
                eprintln!("error: get_param: param_path '{pattern}': Is a directory; -R shows all below, -N the names");
                NOT_FOUND
            } else {
                not_found("get_param", pattern)
            };
        }
        for (name, value) in found {
            let value = value.trim_end_matches('\n');
            let class = if selection.classify { class_of(&name, false) } else { "" };
            match values {
                true => say!("{value}"),
                false if value.contains('\n') => say!("{name}{class}=\n{value}"),
                false => say!("{name}{class}={value}"),
            }
        }
    }
    ExitCode::from(code)
}

/// The suffix of a name in Lustre's tools: a slash for a directory, an equals sign for a parameter that can be set.
fn class_of(name: &str, is_directory: bool) -> &'static str {
    match is_directory {
        true => "/",
        false if params::named(name) == Named::Settable => "=",
        false => "",
    }
}

/// `list_param`, and `get_param -N`: prints names.
pub(super) fn list(audience: &mut Audience, patterns: &[String], selection: &Selection, verb: &str) -> ExitCode {
    let mut code = 0;
    for pattern in patterns {
        let mut each = collect_each(audience, pattern);
        each.extend(collect_each(audience, &below(pattern)));
        let leaves: Vec<String> = together(each).into_iter().map(|(name, _)| name).collect();
        if leaves.is_empty() {
            code = not_found(verb, pattern);
        }
        for (name, is_directory) in listed(&leaves, pattern, selection.recursive) {
            if selection.directories && !is_directory {
                continue;
            }
            let class = if selection.classify { class_of(&name, is_directory) } else { "" };
            say!("{name}{class}");
        }
    }
    ExitCode::from(code)
}

/// `set_param`, for as long as the processes run.
pub(super) fn set(audience: &mut Audience, settings: &[String], quiet: bool) -> anyhow::Result<u8> {
    let mut code = 0;
    for setting in settings {
        let Some((pattern, value)) = setting.split_once('=') else {
            misuse!("'{setting}' is not a setting; expected PATTERN=VALUE");
        };
        let request = Request::SetParam { pattern: pattern.to_owned(), value: value.to_owned() };
        let mut found = false;
        let mut refused = None;
        for response in audience.ask(&request) {
            match response {
                Response::Params(params) => {
                    found = true;
                    for (name, value) in params.iter().filter(|_| !quiet) {
                        say!("{name}={value}");
                    }
                }
                Response::Failed(2, _) => {}
                // Each process has its own faults and clients: those without them do not matter if another process has
                // them.
                Response::Failed(number, message)
                    if host::faults::is_one(pattern) || number == proto::Errno::ENXIO.raw() =>
                {
                    refused = Some(message);
                }
                Response::Failed(_, message) => {
                    found = true;
                    eprintln!("error: set_param: setting {pattern}={value}: {message}");
                    code = 1;
                }
                _ => {}
            }
        }
        match refused {
            Some(message) if !found => {
                eprintln!("error: set_param: setting {pattern}={value}: {message}");
                code = 1;
            }
            None if !found => code = not_found("set_param", pattern),
            _ => {}
        }
    }
    // The answer of the process that was left out is not known.
    if code == 0 && audience.is_incomplete() {
        code = 1;
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    use super::*;

    #[test]
    fn devices_are_listed_as_directories() {
        let leaves = ["mdt.a-MDT0000.exports.x.nid", "mdt.a-MDT0000.uuid", "mdt.b-MDT0000.uuid"].map(str::to_owned);
        let names = |pattern: &str, recursive| -> Vec<String> {
            let all = listed(&leaves, pattern, recursive).into_iter();
            all.map(|(name, is_directory)| name + if is_directory { "/" } else { "" }).collect()
        };
        assert_eq!(names("*", false), ["mdt/"]);
        assert_eq!(names("mdt.*", false), ["mdt.a-MDT0000/", "mdt.b-MDT0000/"]);
        assert_eq!(names("mdt/*/*", false), ["mdt.a-MDT0000.exports/", "mdt.a-MDT0000.uuid", "mdt.b-MDT0000.uuid"]);
        assert_eq!(names("mdt", true).len(), 8, "{:?}", names("mdt", true));
        assert_eq!(names("**", false), leaves);
    }

    #[test]
    fn processes_that_differ_are_named() {
        let params = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let of = |process: &str, pairs| (process.to_owned(), params(pairs));
        let server = of("process 1 (server)", &[("at_max", "600"), ("timeout", "100"), ("mdt.a-MDT0000.uuid", "1")]);
        let mount = of("process 2 (mount)", &[("at_max", "600"), ("timeout", "50"), ("mdt.a-MDT0000.uuid", "2")]);
        let note = "timeout is '100' in process 1 (server), '50' in process 2 (mount); --device asks one of them";
        assert_eq!(differences(&[server.clone(), mount.clone()]), [note]);
        assert_eq!(differences(std::slice::from_ref(&server)), Vec::<String>::new());
        assert_eq!(together(vec![server, mount]).len(), 5);
    }

    /// A process that answers everything with success, and another that hangs.
    #[test]
    fn a_process_that_hangs_is_named_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let [good, silent] = ["server-1.sock", "mount-2.sock"].map(|name| folder.path().join(name));
        let listener = UnixListener::bind(&good).unwrap();
        let _hangs = UnixListener::bind(&silent).unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = BufReader::new(&stream).read_line(&mut String::new());
                let answer = Response::Params(vec![("x".to_owned(), "1".to_owned())]);
                let _ = writeln!(stream, "{}", serde_json::to_string(&answer).unwrap());
            }
        });
        let settings = ["x=1".to_owned(), "y=1".to_owned()];
        let patience = Duration::from_secs(1);
        assert_eq!(set(&mut Audience::of(vec![good.clone()], patience), &settings, true).unwrap(), 0);
        let mut both = Audience::of(vec![silent, good], patience);
        assert_eq!(set(&mut both, &settings[..1], true).unwrap(), 1);
        assert_eq!(collect(&mut both, "x"), [("x".to_owned(), "1".to_owned())]);
        assert_eq!(both.len(), 1, "it is not asked again");
    }
}
