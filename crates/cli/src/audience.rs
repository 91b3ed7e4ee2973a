//! The processes of this machine that a command asks, all at once; a process that hangs is waited for only a few seconds.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use host::admin::{self, Description, Request, Response};
use host::ask;
use proto::Nid;

/// A process that has not answered after this long hangs, and is left out.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// The same for a process that was asked for by name.
const PATIENCE_FOR_ONE: Duration = Duration::from_secs(120);

/// The processes that a command asks.
#[derive(Debug)]
pub(crate) struct Audience {
    sockets: Vec<PathBuf>,
    /// A server at an address, instead of processes of this machine.
    remote: Option<Nid>,
    patience: Duration,
    incomplete: bool,
}

impl Audience {
    /// All running processes.
    pub(crate) fn all() -> Audience {
        Audience::of(admin::sockets(), PATIENCE)
    }

    /// The process that was asked for by name.
    pub(crate) fn one(socket: PathBuf) -> Audience {
        Audience::of(vec![socket], PATIENCE_FOR_ONE)
    }

    /// The server at an address, perhaps on another machine.
    pub(crate) fn remote(nid: Nid) -> Audience {
        Audience { remote: Some(nid), ..Audience::of(Vec::new(), PATIENCE) }
    }

    /// The processes at these sockets.
    pub(crate) fn of(sockets: Vec<PathBuf>, patience: Duration) -> Audience {
        Audience { sockets, remote: None, patience, incomplete: false }
    }

    /// Asks each process. One that hangs is reported, and left out from then on.
    pub(crate) fn ask(&mut self, request: &Request) -> Vec<Response> {
        self.ask_each(request).into_iter().map(|(_, response)| response).collect()
    }

    /// The same, with the names of the processes that answered: `process 123 (server)`.
    pub(crate) fn ask_each(&mut self, request: &Request) -> Vec<(String, Response)> {
        if let Some(nid) = &self.remote {
            return match ask::ask_process(nid, request) {
                Ok(response) => vec![(nid.to_string(), response)],
                Err(error) => {
                    eprintln!("error: cannot ask {nid}: {error}; is a server running there?");
                    self.incomplete = true;
                    Vec::new()
                }
            };
        }
        let mut answers = Vec::new();
        for (socket, answer) in admin::ask_all(&self.sockets, request, self.patience) {
            match answer {
                Ok(response) => answers.push((socket, response)),
                Err(error) if hangs(&error) => {
                    warn(&socket, self.patience);
                    self.incomplete = true;
                    self.sockets.retain(|other| *other != socket);
                }
                // The process has ended in the meantime.
                Err(_) => {}
            }
        }
        answers.sort_by(|(a, _), (b, _)| a.cmp(b));
        answers.into_iter().map(|(socket, response)| (process_at(&socket), response)).collect()
    }

    /// The descriptions of the processes.
    pub(crate) fn describe(&mut self) -> Vec<Description> {
        let answers = self.ask(&Request::Describe).into_iter();
        answers
            .filter_map(|response| match response {
                Response::Description(description) => Some(description),
                _ => None,
            })
            .collect()
    }

    /// Whether a process was left out.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.incomplete
    }

    /// The number of processes.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.sockets.len()
    }
}

/// Whether an error means that the process hangs.
pub(crate) fn hangs(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut
}

/// Warns that a process is left out.
pub(crate) fn warn(socket: &Path, patience: Duration) {
    let process = process_at(socket);
    eprintln!("warning: {process} has not answered within {} s and is left out", patience.as_secs());
}

/// The process at a socket, for messages: `process 123 (server)`.
fn process_at(socket: &Path) -> String {
    let name = socket.file_stem().unwrap_or_default().to_string_lossy();
    let (role, pid) = name.split_once('-').unwrap_or((&name, "?"));
    format!("process {pid} ({role})")
}
