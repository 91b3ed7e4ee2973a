//! A server process: one or more targets, in directories or in memory, each on a thread of its own, and the admin socket
//! for them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine::{LmdbEngine, OpenOptions};
use proto::{Errno, Nid, TargetKind, TargetName};
use schema::Header;
use stdx::Faults;
use store::{Engine, MemEngine};
use target::Target;
use tokio::sync::{mpsc, oneshot};

use crate::admin::{self, AdminSocket, Description, Device, Request, Response};
use crate::clock;
use crate::door::{Admission, Door, Listener};
use crate::faults;
use crate::log;
use crate::names;
use crate::place::{NewTarget, OBJECTS, Place, ReadError, header_of, write_first_records};
use crate::private;
use crate::survey::Order;
use crate::target::{Control, Stopped, TargetThread, spawn};

mod error;

pub use error::StartError;

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The address at which the first target listens.
    pub listen: Nid,
    /// The addresses to announce for the first target, if they differ from the one at which it listens.
    pub tell: Vec<Nid>,
    /// The addresses of the MGS; if empty, the targets use the ones in their headers.
    pub mgs: Vec<Nid>,
    /// Evict all known clients at start instead of waiting for them in recovery.
    pub abort_recovery: bool,
    /// Admit metadata targets again that were declared lost: they drop what they have of changes over several targets.
    pub abort_recovery_mdt: bool,
    /// Serve a target even if its store is an older copy.
    pub accept_old_store: bool,
    /// Do not rely on the MGS to tell clients of the restart (imperative recovery).
    pub noir: bool,
    /// How long recovery waits for missing clients, in seconds.
    pub recovery_soft_s: u64,
    /// How long recovery takes at most, in seconds.
    pub recovery_hard_s: u64,
    /// Memory for cached records of each target, in bytes.
    pub cache_bytes: u64,
    /// Admit any peer that can reach the address.
    pub insecure: bool,
    /// The fault sites of the process.
    pub faults: Faults,
}

impl Default for ServeOptions {
    fn default() -> Self {
        ServeOptions {
            listen: Nid::Tcp { host: "127.0.0.1".to_owned(), port: proto::nid::PORT },
            tell: Vec::new(),
            mgs: Vec::new(),
            abort_recovery: false,
            abort_recovery_mdt: false,
            accept_old_store: false,
            noir: false,
            recovery_soft_s: 30,
            recovery_hard_s: 180,
            cache_bytes: 192 << 20,
            insecure: false,
            faults: Faults::none(),
        }
    }
}

/// The targets that run in this process.
pub struct Server {
    threads: Vec<TargetThread>,
    scratch: Vec<PathBuf>,
    shutdown: Arc<std::sync::atomic::AtomicBool>,
    _admin: Option<AdminSocket>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.threads.iter().map(|thread| &thread.name)).finish()
    }
}

struct Opened {
    name: TargetName,
    engine: Arc<dyn Engine>,
    data: Option<PathBuf>,
    uuid: String,
    place: String,
    /// The addresses of the MGS from its header.
    mgs: Vec<Nid>,
}

impl Server {
    /// Opens targets and serves them.
    ///
    /// # Errors
    /// A target cannot be opened or served. Then none runs.
    pub fn start(places: &[Place], options: &ServeOptions) -> Result<Server, StartError> {
        let mut scratch = Vec::new();
        let mut opened = Vec::new();
        for place in places {
            opened.extend(open(place, options, &mut scratch)?);
        }
        // The MGT comes first, so that others find it at the first address.
        opened.sort_by_key(|target| target.name.kind != TargetKind::Mgt);
        let nids = addresses(&options.listen, &opened);
        let announced_at: Vec<Vec<Nid>> = options.tell.iter().map(|first| addresses(first, &opened)).collect();
        let mut listeners = Vec::new();
        for nid in &nids {
            listeners.push(Listener::bind(nid)?);
        }
        let own_mgs = opened
            .iter()
            .zip(&listeners)
            .find(|(t, _)| t.name.kind == TargetKind::Mgt)
            .map(|(_, (_, nid))| nid.clone());
        let mgs = match (&own_mgs, &options.mgs[..]) {
            (Some(own), _) => vec![own.clone()],
            (None, []) => {
                opened.iter().map(|target| &target.mgs).find(|mgs| !mgs.is_empty()).cloned().unwrap_or_default()
            }
            (None, given) => given.to_vec(),
        };
        let mut devices = Vec::new();
        let mut threads = Vec::new();
        let answers = admin::Answers::default();
        for (position, (target, (listener, nid))) in opened.into_iter().zip(listeners).enumerate() {
            let given = announced_at.iter().filter_map(|nids| nids.get(position).cloned()).collect();
            let announced =
                announced(&target, &nid, given, if options.mgs.is_empty() { &target.mgs } else { &options.mgs })?;
            let kind = match target.name.kind {
                TargetKind::Mgt => "mgs",
                TargetKind::Mdt => "mdt",
                TargetKind::Ost => "obdfilter",
            };
            let announced = if target.name.kind == TargetKind::Mdt {
                names::with_addresses(&target.name, announced)
            } else {
                announced
            };
            devices.push(Device {
                state: "UP".to_owned(),
                kind: kind.to_owned(),
                name: target.name.to_string(),
                uuid: target.uuid.clone(),
                place: nid.to_string(),
                refs: None,
            });
            threads.push(start_target(target, listener, nid, announced, own_mgs.clone(), answers.clone(), options)?);
        }
        let places = places
            .iter()
            .map(|place| match place {
                Place::Directory(directory) => directory.display().to_string(),
                Place::Memory(name) => format!("mem:{name}"),
            })
            .collect();
        let shutdown = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let mgs = mgs.iter().map(Nid::to_string).collect();
        let answer =
            answers.get_or_init(|| answer(&threads, devices, places, mgs, &shutdown, options.faults.clone())).clone();
        let admin = admin::serve("server", move |request| answer(request));
        let admin =
            admin.map_err(|error| tracing::warn!("no admin socket, so lctl cannot see this server: {error}")).ok();
        Ok(Server { threads, scratch, shutdown, _admin: admin })
    }

    /// The names and addresses of the targets.
    pub fn targets(&self) -> impl Iterator<Item = (&str, &Nid)> {
        self.threads.iter().map(|thread| (thread.name.as_str(), &thread.nid))
    }

    /// Waits until the targets serve, if the MGS is one of them. Without it the targets depend on other machines, and this
    /// returns at once. Gives up silently after `patience`, or when a target has stopped.
    pub fn wait_serving(&self, patience: Duration) {
        let start = std::time::Instant::now();
        let has_mgs = self.threads.first().is_some_and(|thread| thread.name == "MGS");
        while has_mgs
            && !self.shutdown.load(std::sync::atomic::Ordering::Relaxed)
            && !self.threads.iter().any(TargetThread::is_finished)
            && !self.threads.iter().all(TargetThread::is_serving)
            && start.elapsed() < patience
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether a shutdown was requested or no target is left. A target that stops by itself logs its reason, and the others
    /// continue: they may be on other disks, and clients wait for the ones that they need.
    pub fn is_finished(&self) -> bool {
        self.shutdown.load(std::sync::atomic::Ordering::Relaxed) || self.threads.iter().all(TargetThread::is_finished)
    }

    /// Commits all changes and stops the targets. Client records are kept.
    ///
    /// # Errors
    /// The reason of a target that had stopped by itself; the first one if there are several.
    pub fn stop(self) -> Result<(), Stopped> {
        // The MGS stops last, because the others disconnect from it.
        let (mgs, others): (Vec<_>, Vec<_>) = self.threads.into_iter().partition(|thread| thread.name == "MGS");
        let mut result = Ok(());
        for part in [others, mgs] {
            for thread in &part {
                let _ = thread.control().send(Control::Shutdown);
            }
            for thread in part {
                if let Err(reason) = thread.join() {
                    result = result.and(Err(reason));
                }
            }
        }
        for folder in self.scratch {
            let _ = std::fs::remove_dir_all(folder);
        }
        result
    }
}

/// Opens the target at a place, and the MGT too if the directory holds both.
fn open(place: &Place, options: &ServeOptions, scratch: &mut Vec<PathBuf>) -> Result<Vec<Opened>, StartError> {
    match place {
        Place::Memory(name) => {
            let engine = MemEngine::new();
            let new = NewTarget {
                name: name.clone(),
                mgs: options.mgs.clone(),
                reformat: false,
                params: Vec::new(),
                plain_names: false,
                replaces: false,
            };
            write_first_records(&engine, &new)?;
            let failed = |error| StartError::Scratch { target: name.clone(), folder: std::env::temp_dir(), error };
            let data = match name.kind {
                TargetKind::Ost => Some(private::scratch(&format!("mem-{name}")).map_err(failed)?),
                TargetKind::Mgt | TargetKind::Mdt => None,
            };
            scratch.extend(data.clone());
            let header = header_of(&engine, "mem:")?;
            Ok(vec![opened(header, Arc::new(engine), data, &format!("mem:{name}"))?])
        }
        Place::Directory(directory) => {
            let mut found = Vec::new();
            let nested = directory.join("mgt");
            for directory in [&nested, directory] {
                if directory == &nested && !LmdbEngine::exists(&nested) {
                    continue;
                }
                let path = directory.display().to_string();
                let engine = LmdbEngine::open(directory, OpenOptions::default())?;
                let header = header_of(&engine, &path)?;
                let objects = directory.join(OBJECTS);
                close_to_others(&objects);
                found.push(opened(header, Arc::new(engine), Some(objects), &path)?);
            }
            Ok(found)
        }
    }
}

/// Closes the folder of data files to other users; older versions left it open to all users of the machine.
fn close_to_others(objects: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let is_open = std::fs::metadata(objects).is_ok_and(|folder| folder.permissions().mode() & 0o077 != 0);
    if is_open && let Err(error) = std::fs::set_permissions(objects, PermissionsExt::from_mode(0o700)) {
        tracing::warn!("'{}' is open to all users of this machine and cannot be closed: {error}", objects.display());
    }
}

fn opened(header: Header, engine: Arc<dyn Engine>, data: Option<PathBuf>, place: &str) -> Result<Opened, ReadError> {
    let senseless = |error| ReadError::Name { place: place.to_owned(), error };
    let name: TargetName = header.name.parse().map_err(senseless)?;
    let uuid = header.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let data = data.filter(|_| name.kind == TargetKind::Ost);
    let mgs = header.mgs_nids.iter().filter_map(|nid| nid.parse().ok()).collect();
    Ok(Opened { name, engine, data, uuid, place: place.to_owned(), mgs })
}

/// The address at which each target listens: the given one for the first target, the next ports or paths with their names
/// for the others.
fn addresses(listen: &Nid, targets: &[Opened]) -> Vec<Nid> {
    targets
        .iter()
        .enumerate()
        .map(|(position, target)| match listen {
            _ if position == 0 => listen.clone(),
            Nid::Tcp { host, port: 0 } => Nid::Tcp { host: host.clone(), port: 0 },
            Nid::Tcp { host, port } => Nid::Tcp { host: host.clone(), port: port.saturating_add(position as u16) },
            Nid::Unix(path) => Nid::Unix(format!("{path}.{}", target.name)),
        })
        .collect()
}

/// The addresses at which peers reach a target. If it listens at all addresses of the machine and none is given, it
/// announces the address from which it reaches its MGS.
fn announced(target: &Opened, nid: &Nid, given: Vec<Nid>, mgs: &[Nid]) -> Result<Vec<Nid>, StartError> {
    let Nid::Tcp { port, .. } = nid else {
        return Ok(if given.is_empty() { vec![nid.clone()] } else { given });
    };
    if !given.is_empty() {
        // Port 0 stands for the port that the target listens at.
        let with_port = |nid| match nid {
            Nid::Tcp { host, port: 0 } => Nid::Tcp { host, port: *port },
            other => other,
        };
        return Ok(given.into_iter().map(with_port).collect());
    }
    if !nid.is_wildcard() || target.name.kind == TargetKind::Mgt {
        return Ok(vec![nid.clone()]);
    }
    let own = mgs.iter().find_map(|mgs| match mgs {
        Nid::Tcp { host, port } if !mgs.is_wildcard() => crate::stream::own_address_towards(host, *port),
        _ => None,
    });
    match own {
        Some(address) => Ok(vec![Nid::Tcp { host: address.to_string(), port: *port }]),
        None => Err(StartError::NoAddress { target: target.name.clone(), nid: nid.clone() }),
    }
}

fn start_target(
    opened: Opened,
    listener: Listener,
    nid: Nid,
    announced: Vec<Nid>,
    own_mgs: Option<Nid>,
    admin: admin::Answers,
    options: &ServeOptions,
) -> Result<TargetThread, StartError> {
    let mgs = if options.mgs.is_empty() { own_mgs.into_iter().collect() } else { options.mgs.clone() };
    let settings = target::Options {
        name: Some(opened.name.clone()),
        nids: announced,
        mgs,
        seed: clock::seed(),
        cache_limit: options.cache_bytes as usize,
        recovery_soft: Duration::from_secs(options.recovery_soft_s),
        recovery_hard: Duration::from_secs(options.recovery_hard_s),
        abort_recovery: options.abort_recovery,
        abort_recovery_mdt: options.abort_recovery_mdt,
        accept_old_store: options.accept_old_store,
        noir: options.noir,
        faults: options.faults.clone(),
        ..target::Options::default()
    };
    let door = Door { listener, admission: Admission { insecure: options.insecure }, admin };
    let Opened { name, engine, data, place, .. } = opened;
    let label = name.to_string();
    let last_group = engine.last_group()?;
    let started = match name.kind {
        TargetKind::Mgt => {
            spawn(label, nid, door, engine, data, move |now| Target::new(mgt::Mgt::new(), settings, last_group, now))
        }
        TargetKind::Mdt => spawn(label, nid, door, engine, data, move |now| {
            Target::new(mdt::Mdt::new(mdt::Settings::default()), settings, last_group, now)
        }),
        TargetKind::Ost => {
            spawn(label, nid, door, engine, data, move |now| Target::new(ost::Ost::new(), settings, last_group, now))
        }
    };
    started.map_err(|error| StartError::Thread { place, error })
}

/// The handler of admin requests to this process.
fn answer(
    threads: &[TargetThread],
    devices: Vec<Device>,
    places: Vec<String>,
    mgs: Vec<String>,
    shutdown: &Arc<std::sync::atomic::AtomicBool>,
    faults: Faults,
) -> Arc<admin::Answer> {
    let shutdown = shutdown.clone();
    let controls: Vec<mpsc::UnboundedSender<Control>> = threads.iter().map(TargetThread::control).collect();
    let fsname = devices.iter().find_map(|device| device.name.rsplit_once('-').map(|(fsname, _)| fsname.to_owned()));
    let description = Description {
        pid: std::process::id(),
        role: "server".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        fsname: fsname.unwrap_or_default(),
        places,
        devices,
        waits: Vec::new(),
        mgs,
    };
    let surveyed: Vec<(String, mpsc::UnboundedSender<Control>)> = threads
        .iter()
        .filter(|thread| thread.name.parse::<TargetName>().is_ok_and(|name| name.kind == TargetKind::Mdt))
        .map(|thread| (thread.name.clone(), thread.control()))
        .collect();
    Arc::new(move |request| match request {
        Request::Survey { target, order } => survey(&surveyed, &target, order),
        Request::Describe => {
            let mut description = description.clone();
            for (device, control) in description.devices.iter_mut().zip(&controls) {
                if control.is_closed() {
                    device.state = "ST".to_owned();
                }
            }
            Response::Description(description)
        }
        Request::Shutdown => {
            shutdown.store(true, std::sync::atomic::Ordering::Relaxed);
            Response::Done
        }
        Request::GetParam { pattern } => {
            let mut found = faults::get(&faults, &pattern);
            let stopped = description.devices.iter().zip(&controls).filter(|(_, control)| control.is_closed());
            found.extend(admin::of_process(&pattern, stopped.map(|(device, _)| device.name.as_str())));
            found.extend(log::get(&pattern));
            found.extend(collect(&controls, &pattern));
            Response::Params(found)
        }
        Request::SetParam { pattern, value } => {
            let of_process = log::set(&pattern, &value).or_else(|| faults::set(&faults, &pattern, &value));
            of_process.unwrap_or_else(|| set(&controls, &pattern, &value))
        }
    })
}

fn survey(targets: &[(String, mpsc::UnboundedSender<Control>)], name: &str, order: Order) -> Response {
    let Some((_, control)) = targets.iter().find(|(target, _)| target == name) else {
        return Response::Failed(Errno::ENODEV.raw(), format!("no metadata target '{name}' runs in this process"));
    };
    let (reply, answer) = oneshot::channel();
    if control.send(Control::Survey(order, reply)).is_err() {
        return Response::Failed(Errno::ENODEV.raw(), format!("target '{name}' has stopped"));
    }
    match answer.blocking_recv() {
        Ok(Ok(status)) => Response::Survey(status),
        Ok(Err(error)) => Response::Failed(Errno::EBUSY.raw(), error.to_string()),
        Err(_) => Response::Failed(Errno::ENODEV.raw(), format!("target '{name}' has stopped")),
    }
}

fn collect(controls: &[mpsc::UnboundedSender<Control>], pattern: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for control in controls {
        let (reply, answer) = oneshot::channel();
        if control.send(Control::GetParams(pattern.to_owned(), reply)).is_ok()
            && let Ok(params) = answer.blocking_recv()
        {
            found.extend(params);
        }
    }
    // Every target reports the parameters of the process; keep one of each.
    found.sort();
    found.dedup();
    found
}

fn set(controls: &[mpsc::UnboundedSender<Control>], pattern: &str, value: &str) -> Response {
    if pattern == "mark" {
        tracing::info!("mark: {value}");
        return Response::Params(Vec::new());
    }
    let mut done = Vec::new();
    let mut lacks_client = false;
    for control in controls {
        let names: Vec<String> =
            collect(std::slice::from_ref(control), pattern).into_iter().map(|(name, _)| name).collect();
        for name in names {
            let (reply, answer) = oneshot::channel();
            if control.send(Control::SetParam(name.clone(), value.to_owned(), reply)).is_err() {
                continue;
            }
            match answer.blocking_recv() {
                Ok(Ok(())) => done.push((name, value.to_owned())),
                // Another target may have the client.
                Ok(Err(Errno::ENXIO)) => lacks_client = true,
                Ok(Err(error)) => return Response::failed(error),
                Err(_) => {}
            }
        }
    }
    done.sort();
    done.dedup();
    match (done.is_empty(), lacks_client) {
        (true, true) => Response::Failed(
            Errno::ENXIO.raw(),
            "no such client is connected; those that are: lctl get_param '*.*.exports.*.nid'".to_owned(),
        ),
        (true, false) => Response::failed(Errno::ENOENT),
        (false, _) => Response::Params(done),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Buf;
    use proto::frame::flags;
    use proto::msg::ConnectRep;
    use proto::{Decoder, Frame, Header, SendQueue};
    use target::StopReason;

    #[test]
    fn addresses_follow_from_the_first() {
        let target = |name: &str| Opened {
            name: name.parse().unwrap(),
            engine: Arc::new(MemEngine::new()),
            data: None,
            uuid: String::new(),
            place: String::new(),
            mgs: Vec::new(),
        };
        let targets = [target("MGS"), target("fs-MDT0000"), target("fs-OST0000")];
        let show = |listen: &str| -> Vec<String> {
            addresses(&listen.parse().unwrap(), &targets).iter().map(ToString::to_string).collect()
        };
        assert_eq!(show("127.0.0.1:7988"), ["127.0.0.1:7988", "127.0.0.1:7989", "127.0.0.1:7990"]);
        assert_eq!(show("unix:/run/x"), ["unix:/run/x", "unix:/run/x.fs-MDT0000", "unix:/run/x.fs-OST0000"]);
    }

    #[test]
    fn a_target_that_listens_everywhere_is_found_at_an_address() {
        let target = |name: &str| Opened {
            name: name.parse().unwrap(),
            engine: Arc::new(MemEngine::new()),
            data: None,
            uuid: String::new(),
            place: String::new(),
            mgs: Vec::new(),
        };
        let nid = |text: &str| text.parse::<Nid>().unwrap();
        let ost = target("fs-OST0000");
        let found = |listens: &str, given: &[&str], mgs: &[&str]| {
            let given = given.iter().map(|text| nid(text)).collect();
            let mgs: Vec<Nid> = mgs.iter().map(|text| nid(text)).collect();
            let found = announced(&ost, &nid(listens), given, &mgs);
            found.map(|nids| nids.iter().map(Nid::to_string).collect::<Vec<_>>().join(","))
        };
        assert_eq!(found("10.0.0.7:7989", &[], &[]).unwrap(), "10.0.0.7:7989");
        assert_eq!(found("0.0.0.0:7989", &["node7:7989"], &[]).unwrap(), "node7:7989");
        assert_eq!(found("[::]:4711", &["node7:0", "node8:1"], &[]).unwrap(), "node7:4711,node8:1");
        assert_eq!(found("0.0.0.0:7989", &[], &["unix:/x", "127.0.0.1:7988"]).unwrap(), "127.0.0.1:7989");
        assert_eq!(found("unix:/run/x", &[], &[]).unwrap(), "unix:/run/x");
        let nowhere = found("0.0.0.0:7989", &[], &["unix:/x"]).unwrap_err();
        assert!(matches!(nowhere, StartError::NoAddress { .. }) && !nowhere.is_damage());
        assert!(nowhere.to_string().ends_with("--tell HOST:7988"), "{nowhere}");
        let mgt = announced(&target("MGS"), &nid("0.0.0.0:7988"), Vec::new(), &[]);
        assert_eq!(mgt.unwrap(), [nid("0.0.0.0:7988")], "an MGS registers nowhere");
    }

    /// An MGS that refuses every connection, like one that has not started yet.
    fn refuse(listener: &std::os::unix::net::UnixListener, connections: usize) {
        for _ in 0..connections {
            let (mut stream, _) = listener.accept().unwrap();
            let mut decoder = Decoder::new();
            let request = loop {
                if let Some(frame) = decoder.next_frame().unwrap() {
                    break frame;
                }
                let mut bytes = [0; 4096];
                let count = std::io::Read::read(&mut stream, &mut bytes).unwrap();
                decoder.buffer().extend_from_slice(&bytes[..count]);
            };
            let header = Header { flags: flags::REPLY, status: -Errno::ENODEV.raw(), ..request.header };
            let mut queue = SendQueue::new();
            queue.push(&Frame::new(header, &ConnectRep::default(), bytes::Bytes::new()));
            std::io::Write::write_all(&mut stream, &queue.copy_to_bytes(queue.remaining())).unwrap();
        }
    }

    /// When the disk of one target fails, that target stops and the other one keeps serving.
    #[test]
    fn a_target_that_stops_leaves_the_others_alone() {
        let folder = tempfile::tempdir().unwrap();
        let engines = [MemEngine::new(), MemEngine::new()];
        let options = ServeOptions::default();
        let mut threads = Vec::new();
        for (position, engine) in engines.iter().enumerate() {
            let name: TargetName = format!("fs{position}-MDT0000").parse().unwrap();
            let new = NewTarget {
                name,
                mgs: Vec::new(),
                reformat: false,
                plain_names: false,
                replaces: false,
                params: Vec::new(),
            };
            write_first_records(engine, &new).unwrap();
            let header = header_of(engine, "mem:").unwrap();
            let target = opened(header, Arc::new(engine.clone()), None, "mem:").unwrap();
            if position == 0 {
                engine.fail_next_commit(store::EngineError::Io { place: "disk".into(), what: "broken".into() });
            }
            let nid = Nid::Unix(folder.path().join(position.to_string()).display().to_string());
            let (listener, nid) = Listener::bind(&nid).unwrap();
            let mgs = Some(Nid::Unix(folder.path().join("mgs").display().to_string()));
            let announced = vec![nid.clone()];
            threads.push(
                start_target(target, listener, nid, announced, mgs, admin::Answers::default(), &options).unwrap(),
            );
        }
        let server = Server { threads, scratch: Vec::new(), shutdown: Arc::default(), _admin: None };
        let start = std::time::Instant::now();
        while !server.threads[0].is_finished() && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(server.threads[0].is_finished() && !server.threads[1].is_finished());
        assert!(!server.is_finished(), "the process continues for the other target");
        let stopped = server.stop().expect_err("it says at its end what happened");
        let Stopped::ByItself { target, reason: StopReason::Commit(store::EngineError::Io { what, .. }) } = &stopped
        else {
            panic!("{stopped}")
        };
        assert_eq!((target.as_str(), what.as_str()), ("fs0-MDT0000", "broken"));
        assert!(!stopped.is_damage(), "another start may find the disk mended");
    }

    /// The delays between its attempts double from 10 ms on, and nothing else would wake its thread.
    #[test]
    fn a_target_whose_mgs_is_not_ready_tries_again_soon() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| Nid::Unix(folder.path().join(name).display().to_string());
        let mgs = std::os::unix::net::UnixListener::bind(folder.path().join("mgs")).unwrap();
        let options = ServeOptions { listen: at("target"), mgs: vec![at("mgs")], ..ServeOptions::default() };
        let places = ["mem:fs-MDT0000".parse().unwrap()];
        let start = std::time::Instant::now();
        let server = Server::start(&places, &options).unwrap();
        refuse(&mgs, 7);
        let took = start.elapsed();
        server.stop().unwrap();
        assert!(took < Duration::from_secs(3), "{took:?}");
    }
}
