//! The processes of this machine that a command asks: side by side, and those that hang for a few seconds only.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use host::admin::{self, Description, Request, Response};
use host::ask;
use proto::Nid;

/// A process that has not answered after this long is left out: it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// The same for one that was asked for by name.
const PATIENCE_FOR_ONE: Duration = Duration::from_secs(120);

/// Some processes.
#[derive(Debug)]
pub(crate) struct Audience {
    sockets: Vec<PathBuf>,
    /// Or a server elsewhere.
    afar: Option<Nid>,
    patience: Duration,
    incomplete: bool,
}

impl Audience {
    /// All that run.
    pub(crate) fn all() -> Audience {
        Audience::of(admin::sockets(), PATIENCE)
    }

    /// The one that was asked for.
    pub(crate) fn one(socket: PathBuf) -> Audience {
        Audience::of(vec![socket], PATIENCE_FOR_ONE)
    }

    /// The server at an address, perhaps on another machine.
    pub(crate) fn afar(nid: Nid) -> Audience {
        Audience { afar: Some(nid), ..Audience::of(Vec::new(), PATIENCE) }
    }

    /// Those at these sockets.
    pub(crate) fn of(sockets: Vec<PathBuf>, patience: Duration) -> Audience {
        Audience { sockets, afar: None, patience, incomplete: false }
    }

    /// Asks each of them. One that hangs is told of, and left out from then on.
    pub(crate) fn ask(&mut self, request: &Request) -> Vec<Response> {
        self.ask_each(request).into_iter().map(|(_, response)| response).collect()
    }

    /// The same, with the names of those that answer: `process 123 (server)`.
    pub(crate) fn ask_each(&mut self, request: &Request) -> Vec<(String, Response)> {
        if let Some(nid) = &self.afar {
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
                // It has ended meanwhile.
                Err(_) => {}
            }
        }
        answers.sort_by(|(a, _), (b, _)| a.cmp(b));
        answers.into_iter().map(|(socket, response)| (process_at(&socket), response)).collect()
    }

    /// What they say of themselves.
    pub(crate) fn describe(&mut self) -> Vec<Description> {
        let answers = self.ask(&Request::Describe).into_iter();
        answers
            .filter_map(|response| match response {
                Response::Description(description) => Some(description),
                _ => None,
            })
            .collect()
    }

    /// Whether one was left out.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.incomplete
    }

    /// How many are asked.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.sockets.len()
    }
}

/// Whether a process that was asked hangs.
pub(crate) fn hangs(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut
}

/// Says that a process is left out.
pub(crate) fn warn(socket: &Path, patience: Duration) {
    let process = process_at(socket);
    eprintln!("warning: {process} has not answered within {} s and is left out", patience.as_secs());
}

/// The process at a socket, for people: `process 123 (server)`.
fn process_at(socket: &Path) -> String {
    let name = socket.file_stem().unwrap_or_default().to_string_lossy();
    let (role, pid) = name.split_once('-').unwrap_or((&name, "?"));
    format!("process {pid} ({role})")
}
