//! The local admin socket, through which `lctl`, `adamant status` and `adamant down` send requests to running processes.
//!
//! Every process of Adamant (servers, mounts) has a Unix socket in [`directory`]. Requests and responses are JSON, one per
//! line. Only root and the process's own user may connect. Processes of root have a second socket in [`PUBLIC`], where
//! every user of the machine may send requests that change nothing and identify nobody ([`answer_anybody`]).

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use proto::Errno;
use proto::frame::BODY_MAX;
use proto::msg::{AdminRep, AdminReq};
use proto::params::{Component, OfProcess, Served};
use serde::{Deserialize, Serialize};
use stdx::wildcard::{self, PATTERN_MAX};

use crate::private;

/// A request to a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// Read the parameters whose path matches a shell pattern.
    GetParam {
        /// The pattern, `mdt.*.recovery_status`.
        pattern: String,
    },
    /// Set the parameters that match a pattern.
    SetParam {
        /// The pattern.
        pattern: String,
        /// The value.
        value: String,
    },
    /// An order for the survey of one of the process's metadata targets.
    Survey {
        /// The target's name.
        target: String,
        /// The order.
        order: crate::survey::Order,
    },
    /// Describe what the process runs.
    Describe,
    /// Shut down cleanly.
    Shutdown,
}

/// A device as `lctl dl` lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// `UP`; `AT`: a mount that waits for its servers before it becomes visible; `ST`: stopped or stopping, such as a mount
    /// that still writes back what programs have written.
    pub state: String,
    /// `mgs`, `mdt`, `obdfilter`; for a mount `client`, `llite`, `lmv`, `lov`, `mgc`, `mdc`, `osc`.
    pub kind: String,
    /// `adamant-MDT0000`.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// The address at which it listens, or the directory where it is mounted.
    pub place: String,
    /// The number of references to it, if known.
    #[serde(default)]
    pub refs: Option<u64>,
}

/// The description that a process gives of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The process id.
    pub pid: u32,
    /// `server` or `mount`.
    pub role: String,
    /// The version of the program.
    pub version: String,
    /// The file system, if the process has only one.
    pub fsname: String,
    /// The directories of a server's targets, or the directory of a mount.
    pub places: Vec<String>,
    /// Its devices.
    pub devices: Vec<Device>,
    /// The servers that an incomplete mount waits for, and why.
    #[serde(default)]
    pub waits: Vec<String>,
    /// The addresses of the MGS of a server's targets.
    #[serde(default)]
    pub mgs: Vec<String>,
}

/// The response to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// Parameters with their values; after a set, the new values.
    Params(Vec<(String, String)>),
    /// See [`Description`].
    Description(Description),
    /// The progress of a survey.
    Survey(crate::survey::Status),
    /// Done.
    Done,
    /// The request failed: the errno and a sentence.
    Failed(i32, String),
}

impl Response {
    /// The response for an errno.
    pub fn failed(error: Errno) -> Response {
        Response::Failed(error.raw(), error.to_string())
    }
}

/// The handler of requests.
pub type Answer = dyn Fn(Request) -> Response + Send + Sync;
/// The handler, once the process has set it.
pub type Answers = Arc<OnceLock<Arc<Answer>>>;

/// Answers a request that came over the network. A peer that may connect to a server may read and set its parameters, but
/// may not shut it down.
pub fn answer_remote(answers: &Answers, body: &AdminReq) -> AdminRep {
    use Request::{Describe, GetParam, SetParam};
    let failed = |errno: Errno, text: &str| Response::Failed(errno.raw(), text.to_owned());
    let response = match (parse(&body.request), answers.get()) {
        (Err(refused), _) => refused,
        (Ok(_), None) => failed(Errno::EAGAIN, "the server starts"),
        (Ok(request @ (GetParam { .. } | SetParam { .. } | Describe)), Some(answer)) => answer(request),
        (Ok(_), Some(_)) => failed(Errno::EPERM, "that can be asked on the server's own machine only"),
    };
    let text = |response: &Response| serde_json::to_string(response).unwrap_or_default();
    let mut response = text(&response);
    if response.len() > BODY_MAX / 2 {
        response = text(&failed(Errno::E2BIG, "the answer is too long for one message; ask for less"));
    }
    AdminRep { response }
}

/// The response while the process has as many requests in progress as it may.
pub(crate) fn busy() -> AdminRep {
    let response =
        Response::Failed(Errno::EAGAIN.raw(), "this server answers too many questions now; ask again".to_owned());
    AdminRep { response: serde_json::to_string(&response).unwrap_or_default() }
}

/// Parses a request. The error is the response to a text that is no request, or to a request that costs too much.
fn parse(text: &str) -> Result<Request, Response> {
    let failed = |errno: Errno, text: String| Err(Response::Failed(errno.raw(), text));
    if text.len() > REQUEST_MAX {
        return failed(Errno::E2BIG, format!("a request has at most {REQUEST_MAX} bytes"));
    }
    match serde_json::from_str(text) {
        Ok(Request::GetParam { pattern } | Request::SetParam { pattern, .. }) if pattern.len() > PATTERN_MAX => {
            failed(Errno::ENAMETOOLONG, format!("a pattern of parameters has at most {PATTERN_MAX} bytes"))
        }
        Ok(request) => Ok(request),
        Err(error) => failed(Errno::EINVAL, format!("not a request: {error}")),
    }
}

/// The parameters that describe the process and its health. `stopped`: its targets that have stopped.
pub(crate) fn of_process<'a>(pattern: &str, stopped: impl Iterator<Item = &'a str>) -> Vec<(String, String)> {
    let mut health: String = stopped.map(|name| format!("device {name} reported unhealthy\n")).collect();
    health.push_str(if health.is_empty() { "healthy" } else { "NOT HEALTHY" });
    let mut served = Served::new();
    served.add(Component::Process, &[], |which: OfProcess| which);
    served.values(
        |name| wildcard::matches(pattern, name),
        |which| match which {
            OfProcess::HealthCheck => health.clone(),
            OfProcess::Version => env!("CARGO_PKG_VERSION").to_owned(),
        },
    )
}

/// The directory of the admin sockets.
pub fn directory() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/run/adamant");
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(runtime) => PathBuf::from(runtime).join("adamant"),
        None => std::env::temp_dir().join(format!("adamant-{}", rustix::process::geteuid().as_raw())),
    }
}

/// The directory of the sockets of root's processes that every user of the machine may use.
pub const PUBLIC: &str = "/run/adamant-public";

/// The admin sockets of a process; dropping this removes them.
#[derive(Debug)]
pub struct AdminSocket {
    paths: Vec<PathBuf>,
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        for path in &self.paths {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Listens on the admin sockets, with a thread for each connection.
///
/// # Errors
/// The socket cannot be made, or others may access its folder.
pub fn serve(role: &str, answer: impl Fn(Request) -> Response + Send + Sync + 'static) -> io::Result<AdminSocket> {
    let answer: Arc<Answer> = Arc::new(answer);
    let name = format!("{role}-{}.sock", std::process::id());
    let folder = directory();
    private::ensure(&folder)?;
    let mut sockets = AdminSocket { paths: Vec::new() };
    let own = rustix::process::geteuid();
    let admits = move |uid: rustix::process::Uid| uid.is_root() || uid == own;
    sockets.paths.push(listen(&folder.join(&name), 0o600, CONVERSATIONS, admits, answer.clone())?);
    if own.is_root() {
        match serve_anybody(Path::new(PUBLIC), &name, answer) {
            Ok(path) => sockets.paths.push(path),
            Err(error) => tracing::warn!("only root can ask this process: {error}"),
        }
    }
    Ok(sockets)
}

/// Listens on the socket that every user may use.
fn serve_anybody(folder: &Path, name: &str, answer: Arc<Answer>) -> io::Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    match std::fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => private::check_unchanged_by_others(folder)?,
    }
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755))?;
    // Remove sockets of processes that were killed; the users who look for processes there are not allowed to.
    sockets_in(folder);
    // One request at a time, with a pause after each, so that users cannot keep the targets busy with requests.
    let turn = Mutex::new(());
    let answer = move |request| {
        let _turn = turn.lock();
        let response = answer_anybody(&*answer, request);
        std::thread::sleep(PUBLIC_PAUSE);
        response
    };
    listen(&folder.join(name), 0o666, PUBLIC_CONVERSATIONS, |_| true, Arc::new(answer))
}

/// Answers a user without rights: a description of the process and its parameters, but nothing about single clients, and no
/// identities. Changes nothing.
fn answer_anybody(answer: &Answer, request: Request) -> Response {
    let is_secret = |path: &str| path.split('.').any(|part| part == "exports") || path.ends_with(".uuid");
    match request {
        Request::Describe => match answer(Request::Describe) {
            Response::Description(mut description) => {
                description.devices.iter_mut().for_each(|device| device.uuid = "-".to_owned());
                Response::Description(description)
            }
            other => other,
        },
        Request::GetParam { pattern } => match answer(Request::GetParam { pattern }) {
            Response::Params(params) => {
                let public = params.into_iter().filter(|(path, _)| !is_secret(path));
                Response::Params(public.map(|(path, value)| (path, without_identities(&value))).collect())
            }
            other => other,
        },
        Request::SetParam { .. } | Request::Survey { .. } | Request::Shutdown => Response::Failed(
            Errno::EPERM.raw(),
            "only root and the user that the process runs as may do that".to_owned(),
        ),
    }
}

/// Replaces each identity in a text with a dash. An identity is 32 or more hexadecimal digits in a row, perhaps with
/// hyphens among them.
fn without_identities(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    for word in text.split_inclusive(|c: char| !c.is_ascii_hexdigit() && c != '-') {
        let digits = word.bytes().filter(u8::is_ascii_hexdigit).count();
        let end = word.trim_start_matches(|c: char| c.is_ascii_hexdigit() || c == '-');
        match digits {
            32.. => masked.extend(["-", end]),
            _ => masked.push_str(word),
        }
    }
    masked
}

/// The most connections at a time; each takes a thread.
const CONVERSATIONS: usize = 64;
const PUBLIC_CONVERSATIONS: usize = 16;
/// The pause after each request of a user without rights.
const PUBLIC_PAUSE: Duration = Duration::from_millis(10);

/// Listens at a path, and answers admitted users.
fn listen(
    path: &Path,
    mode: u32,
    conversations: usize,
    admits: impl Fn(rustix::process::Uid) -> bool + Send + Sync + 'static,
    answer: Arc<Answer>,
) -> io::Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    // The socket gets its final name only once it listens, because a process that lists sockets removes those that refuse
    // connections.
    let early = path.with_extension("new");
    let _ = std::fs::remove_file(&early);
    let listener = UnixListener::bind(&early)?;
    std::fs::set_permissions(&early, PermissionsExt::from_mode(mode))?;
    std::fs::rename(&early, path)?;
    let open = Arc::new(());
    let talk = Arc::new(move |stream: &UnixStream| -> io::Result<()> {
        let uid = rustix::net::sockopt::socket_peercred(stream)?.uid;
        if admits(uid) { converse(stream, &*answer) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    });
    std::thread::Builder::new().name("admin".to_owned()).spawn(move || {
        for stream in listener.incoming() {
            // Out of descriptors, perhaps.
            let Ok(stream) = stream else {
                std::thread::sleep(AGAIN);
                continue;
            };
            while Arc::strong_count(&open) > conversations {
                std::thread::sleep(AGAIN);
            }
            let (talk, open) = (talk.clone(), open.clone());
            let conversation = move || {
                if let Err(error) = talk(&stream) {
                    tracing::debug!("admin socket: {error}");
                }
                drop(open);
            };
            if let Err(error) = std::thread::Builder::new().name("admin-conn".to_owned()).spawn(conversation) {
                tracing::warn!("admin socket: {error}");
            }
        }
    })?;
    Ok(path.to_owned())
}

/// The longest request, in bytes.
const REQUEST_MAX: usize = 64 << 10;
/// How long a peer may send nothing, or leave a response unread.
const SILENCE: Duration = Duration::from_secs(60);

fn converse(stream: &UnixStream, answer: &Answer) -> io::Result<()> {
    use std::io::Read;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if (&mut reader).take(REQUEST_MAX as u64 + 1).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let response = parse(&line).map_or_else(|refused| refused, answer);
        let mut out = serde_json::to_vec(&response)?;
        out.push(b'\n');
        (&mut &*stream).write_all(&out)?;
    }
}

/// The sockets of running processes: those of this user, and the public ones of root's processes.
pub fn sockets() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let own = directory();
    match private::check(&own) {
        Ok(()) => folders.push(own),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!("processes of ours are not looked for: {error}"),
    }
    if !rustix::process::geteuid().is_root() && private::check_unchanged_by_others(Path::new(PUBLIC)).is_ok() {
        folders.push(PathBuf::from(PUBLIC));
    }
    let mut found: Vec<PathBuf> = folders.iter().flat_map(|folder| sockets_in(folder)).collect();
    found.sort();
    found
}

fn sockets_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let sockets = entries.filter(|path| path.extension().is_some_and(|extension| extension == "sock"));
    let answers = |path: &PathBuf| match dial(path) {
        Ok(_) => true,
        // Its backlog is full, but it listens.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
        Err(error) => {
            // Left over from a process that was killed.
            if error.kind() == io::ErrorKind::ConnectionRefused {
                let _ = std::fs::remove_file(path);
            }
            false
        }
    };
    sockets.filter(answers).collect()
}

/// Sends a request to a process.
///
/// # Errors
/// The process does not answer.
pub fn ask(socket: &Path, request: &Request) -> io::Result<Response> {
    ask_within(socket, request, Duration::from_secs(120))
}

/// Sends a request to several processes at once, so that one that hangs delays no other. Returns the responses as they
/// arrive; `TimedOut` for processes that have not answered within `patience`.
pub fn ask_all(
    sockets: &[PathBuf],
    request: &Request,
    patience: Duration,
) -> impl Iterator<Item = (PathBuf, io::Result<Response>)> + use<> {
    let (sender, answers) = std::sync::mpsc::channel();
    for socket in sockets {
        let (socket, request, sender) = (socket.clone(), request.clone(), sender.clone());
        std::thread::spawn(move || {
            let answer = ask_within(&socket, &request, patience);
            let _ = sender.send((socket, answer));
        });
    }
    answers.into_iter()
}

/// Connects without waiting: `WouldBlock` if the backlog of the socket is full.
fn dial(socket: &Path) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let kind = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let ours = socket_with(AddressFamily::UNIX, SocketType::STREAM, kind, None)?;
    connect(&ours, &SocketAddrUnix::new(socket)?)?;
    Ok(UnixStream::from(ours))
}

/// The interval between attempts while a connection is not possible.
const AGAIN: Duration = Duration::from_millis(20);

/// Sends a request to a process that may hang.
///
/// # Errors
/// `TimedOut` if the process has not answered within `patience`; others if it cannot be reached.
pub fn ask_within(socket: &Path, request: &Request, patience: Duration) -> io::Result<Response> {
    let deadline = Instant::now() + patience;
    let stream = loop {
        match dial(socket) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                std::thread::sleep(AGAIN);
            }
            other => break other.map_err(as_timeout)?,
        }
    };
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(patience))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    (&stream).write_all(&line)?;
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer).map_err(as_timeout)?;
    serde_json::from_str(&answer).map_err(io::Error::from)
}

/// Converts `WouldBlock`, with which the kernel reports a read timeout.
fn as_timeout(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_costs_too_much_is_refused() {
        let refusal = |request: &Request| match parse(&serde_json::to_string(request).unwrap()) {
            Err(Response::Failed(errno, _)) => errno,
            other => panic!("{other:?}"),
        };
        let long = "*".repeat(100_000);
        let pattern = "*".repeat(PATTERN_MAX + 1);
        assert_eq!(refusal(&Request::GetParam { pattern: pattern.clone() }), Errno::ENAMETOOLONG.raw());
        assert_eq!(refusal(&Request::SetParam { pattern, value: "1".to_owned() }), Errno::ENAMETOOLONG.raw());
        assert_eq!(refusal(&Request::GetParam { pattern: long }), Errno::E2BIG.raw());
        let short = Request::GetParam { pattern: "*".repeat(PATTERN_MAX) };
        assert_eq!(parse(&serde_json::to_string(&short).unwrap()), Ok(short));
    }

    #[test]
    fn who_looks_for_processes_takes_no_socket_from_one_that_starts() {
        let folder = std::env::temp_dir().join(format!("adamant-admin-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let looking = {
            let (folder, over) = (folder.clone(), over.clone());
            std::thread::spawn(move || {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    sockets_in(&folder);
                }
            })
        };
        let silent: Arc<Answer> = Arc::new(|_| Response::Failed(Errno::EIO.raw(), String::new()));
        for number in 0..500 {
            let path = folder.join(format!("one-{number}.sock"));
            listen(&path, 0o600, 1, |_| false, silent.clone()).unwrap();
            assert!(path.exists(), "socket {number}");
            std::fs::remove_file(path).unwrap();
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        looking.join().unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_process_with_a_stopped_target_is_not_healthy() {
        let of = |pattern: &str, stopped: &[&str]| of_process(pattern, stopped.iter().copied());
        let value = |text: &str| vec![("health_check".to_owned(), text.to_owned())];
        assert_eq!(of("health_check", &[]), value("healthy"));
        let ill = value("device fs-OST0001 reported unhealthy\nNOT HEALTHY");
        assert_eq!(of("health*", &["fs-OST0001"]), ill);
        assert_eq!(of("*", &[]).len(), 2);
    }

    #[test]
    fn anybody_may_look_and_nobody_is_given_away() {
        let uuid = "0123456789abcdef0123456789abcdef";
        let answer = move |request| match request {
            Request::Describe => Response::Description(Description {
                pid: 1,
                role: "server".to_owned(),
                version: String::new(),
                fsname: String::new(),
                places: Vec::new(),
                devices: vec![Device {
                    state: "UP".to_owned(),
                    kind: "mdt".to_owned(),
                    name: "fs-MDT0000".to_owned(),
                    uuid: uuid.to_owned(),
                    place: String::new(),
                    refs: None,
                }],
                waits: Vec::new(),
                mgs: Vec::new(),
            }),
            Request::GetParam { .. } => Response::Params(
                [
                    ("mdt.fs-MDT0000.uuid", uuid),
                    ("mdt.fs-MDT0000.exports.x.nid", "1"),
                    ("mdt.fs-MDT0000.num_exports", "2"),
                    ("mdt.fs-MDT0000.recovery_status", "client 01234567-89ab-cdef-0123-456789abcdef: 7\n"),
                ]
                .map(|(path, value)| (path.to_owned(), value.to_owned()))
                .to_vec(),
            ),
            _ => Response::Done,
        };
        let folder = tempfile::tempdir().unwrap();
        let public = folder.path().join("public");
        let socket = serve_anybody(&public, "server-1.sock", Arc::new(answer)).unwrap();
        let asked = |request: &Request| ask(&socket, request).unwrap();
        let param = |path: &str, value: &str| (format!("mdt.fs-MDT0000.{path}"), value.to_owned());
        let expected = vec![param("num_exports", "2"), param("recovery_status", "client -: 7\n")];
        assert_eq!(asked(&Request::GetParam { pattern: "**".to_owned() }), Response::Params(expected));
        let Response::Description(description) = asked(&Request::Describe) else { panic!() };
        assert_eq!((description.devices[0].uuid.as_str(), description.devices[0].name.as_str()), ("-", "fs-MDT0000"));
        let set = Request::SetParam { pattern: "mdt.*.stats".to_owned(), value: "clear".to_owned() };
        for request in [set, Request::Shutdown] {
            assert!(matches!(asked(&request), Response::Failed(1, _)), "{request:?}");
        }
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&public), mode(&socket)), (0o755, 0o666));
        std::fs::set_permissions(&public, PermissionsExt::from_mode(0o777)).unwrap();
        assert!(
            serve_anybody(&public, "server-2.sock", Arc::new(|_| Response::Done)).is_err(),
            "others may write there"
        );
    }

    #[test]
    fn who_hangs_holds_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        let [answers, hangs, full] = ["answers", "hangs", "full"].map(|name| folder.path().join(name));
        let listener = UnixListener::bind(&answers).unwrap();
        let _silent = UnixListener::bind(&hangs).unwrap();
        let _crowded = UnixListener::bind(&full).unwrap();
        // This one accepts no connection, and its backlog is full.
        let _queue: Vec<UnixStream> = std::iter::from_fn(|| dial(&full).ok()).collect();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = converse(&stream, &|_| Response::Done);
            }
        });
        let patience = Duration::from_millis(300);
        let sockets = [hangs.clone(), full.clone(), answers.clone(), folder.path().join("absent")];
        let all: Vec<_> = ask_all(&sockets, &Request::Describe, patience).collect();
        let of = |socket: &Path| all.iter().find(|(path, _)| path == socket).map(|(_, answer)| answer);
        assert!(matches!(of(&answers), Some(Ok(Response::Done))), "{all:?}");
        for silent in [&hangs, &full] {
            assert!(matches!(of(silent), Some(Err(error)) if error.kind() == io::ErrorKind::TimedOut), "{all:?}");
        }
        assert!(matches!(of(&sockets[3]), Some(Err(error)) if error.kind() == io::ErrorKind::NotFound), "{all:?}");
    }
}
