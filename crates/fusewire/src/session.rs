//! A session with the kernel: its handshake, its threads, its end.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use rustix::thread::CpuSet;
use zerocopy::{FromBytes, IntoBytes};

use crate::abi;
use crate::device::{self, Device, Taken};
use crate::queue::Queues;
use crate::request::Incoming;
use crate::ring;

const PAGE: u32 = 4096;
/// The kernel requires at least this much space for a request (`FUSE_MIN_READ_BUFFER`).
const SMALLEST_WRITE: u32 = 8192;
/// The kernel's parameter that permits io_uring.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// A file system.
pub trait Handler: Send + Sync + 'static {
    /// Handles a request. The answer may be given now or later, from any thread. This call must not block for long, because the
    /// thread serves other requests too.
    fn handle(&self, incoming: Incoming<'_>);

    /// A descriptor that a thread of the session may poll besides new requests: see [`Handler::attend`].
    fn companion(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Called by a thread of the session after it has handed requests over, and repeatedly while it attends to the companion
    /// (`attending`). It must not sleep. It may poll for a moment, until `called` returns true because the session has work for the
    /// thread. The handler limits how many threads attend at a time.
    fn attend(&self, attending: bool, called: &mut dyn FnMut() -> bool) -> Attend {
        let _ = (attending, called);
        Attend::No
    }
}

/// What a thread of the session does besides its requests: see [`Handler::attend`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attend {
    /// Nothing.
    No,
    /// It calls again when the companion is readable, or after a while; without a companion, it does nothing.
    Wait,
    /// It calls again as soon as it has taken all pending requests.
    Again,
}

/// Options of a session.
#[derive(Clone, Debug)]
pub struct Options {
    /// Features of the file system: bits of [`abi::flags`]. Those that an older kernel lacks are not used.
    pub flags: u64,
    /// Largest read or write, in bytes.
    pub max_write: u32,
    /// The most requests in flight that no program waits for: read-ahead, write-back of the page cache.
    pub max_background: u16,
    /// Threads that read `/dev/fuse`, at least one.
    pub threads: usize,
    /// Use io_uring if the kernel has it and allows it (the module parameter, see [`Session::allow_uring`]).
    pub uring: bool,
    /// Entries of each processor's queue, over io_uring.
    pub queue_depth: u16,
}

impl Default for Options {
    fn default() -> Options {
        Options { flags: 0, max_write: 1 << 20, max_background: 128, threads: 4, uring: true, queue_depth: 256 }
    }
}

/// The transport of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// `/dev/fuse`, with this number of threads.
    Device(usize),
    /// io_uring, with this number of queues.
    Uring(usize),
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Transport::Device(threads) => write!(f, "/dev/fuse with {threads} threads"),
            Transport::Uring(queues) => write!(f, "io_uring with {queues} queues"),
        }
    }
}

/// The most nodes in one notification.
const PRUNE_MAX: usize = 512;

/// Invalidates the kernel's caches.
#[derive(Clone, Debug)]
pub struct Notifier(Arc<Device>);

impl Notifier {
    /// Invalidates the attributes of a node and, unless `offset` is negative, its data from there on (`length` 0: to the end). False if the
    /// kernel does not know the node. Blocks while requests on that data are in flight: never call it from a thread of the session.
    pub fn inval_inode(&self, ino: u64, offset: i64, length: i64) -> bool {
        let record = abi::NotifyInvalInode { ino, off: offset, len: length };
        self.0.notify(abi::NOTIFY_INVAL_INODE, &[record.as_bytes()])
    }

    /// Invalidates a name. False if the kernel does not know it. Blocks while requests in that directory are in flight: never call it
    /// from a thread of the session.
    pub fn inval_entry(&self, parent: u64, name: &[u8]) -> bool {
        let record = abi::NotifyInvalEntry { parent, namelen: name.len() as u32, flags: 0 };
        let mut bytes = name.to_vec();
        bytes.push(0);
        self.0.notify(abi::NOTIFY_INVAL_ENTRY, &[record.as_bytes(), &bytes])
    }

    /// Drops unused nodes, with all their names: many at once, without waiting for any directory. False if the
    /// kernel does not support it (before Linux 6.18).
    pub fn prune(&self, inos: &[u64]) -> bool {
        inos.chunks(PRUNE_MAX).all(|inos| {
            let record = abi::NotifyPrune { count: inos.len() as u32, padding: 0, spare: 0 };
            let result = self.0.try_notify(abi::NOTIFY_PRUNE, &[record.as_bytes(), inos.as_bytes()]);
            !matches!(result, Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS))
        })
    }
}

/// A mounted file system and the threads that serve it.
pub struct Session {
    device: Arc<Device>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    transport: Transport,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({})", self.transport)
    }
}

impl Session {
    /// Enables io_uring for all FUSE file systems of this machine that are mounted from now on, if this process may. Returns whether
    /// it is enabled.
    pub fn allow_uring() -> bool {
        let allowed = |text: String| matches!(text.trim(), "Y" | "1");
        std::fs::read_to_string(PARAMETER).is_ok_and(allowed) || std::fs::write(PARAMETER, "Y").is_ok()
    }

    /// Performs the handshake with the kernel on the descriptor of a new mount and starts to serve it.
    ///
    /// # Errors
    /// The kernel is too old, or the handshake failed; a thread or a descriptor could not be made.
    pub fn start(device: OwnedFd, options: &Options, handler: Arc<dyn Handler>) -> io::Result<Session> {
        let options = Options {
            max_write: options.max_write.max(SMALLEST_WRITE).next_multiple_of(PAGE),
            threads: options.threads.max(1),
            queue_depth: options.queue_depth.clamp(1, 4096),
            ..options.clone()
        };
        let device = Arc::new(Device::new(device));
        let mut session = Session { device: device.clone(), threads: Vec::new(), transport: Transport::Device(0) };
        let Some(asked) = take_init(&device, options.max_write)? else { return Ok(session) };
        let offers_uring = options.uring && asked.offered() & abi::flags::OVER_IO_URING != 0;
        let rings = if offers_uring { RingThreads::start(&device, &options, &handler) } else { None };
        let uring = if rings.is_some() { abi::flags::OVER_IO_URING } else { 0 };
        answer_init(&device, &asked, &options, uring);
        let mut readers = options.threads;
        let queues = rings.as_ref().map(|rings| rings.queues.clone());
        if let Some(rings) = rings {
            // For forgets, interrupts, and requests from before the rings were ready.
            readers = 1;
            session.transport = Transport::Uring(rings.threads.len());
            session.threads.extend(rings.register()?);
        } else {
            session.transport = Transport::Device(readers);
        }
        for index in 0..readers {
            let device = if index == 0 { device.clone() } else { Arc::new(device.another()?) };
            let (handler, queues, max_write) = (handler.clone(), queues.clone(), options.max_write);
            let serve = move || {
                let served = device::serve(&device, &*handler, max_write, queues.is_none());
                queues.inspect(|queues| queues.end());
                served
            };
            session.threads.push(std::thread::Builder::new().name(format!("fuse-{index}")).spawn(serve)?);
        }
        Ok(session)
    }

    /// The transport of requests.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// A handle for notifications.
    pub fn notifier(&self) -> Notifier {
        Notifier(self.device.clone())
    }

    /// Waits until the file system is unmounted and no further request can arrive.
    ///
    /// # Errors
    /// A thread failed; the others continued.
    pub fn join(self) -> io::Result<()> {
        let mut result = Ok(());
        for thread in self.threads {
            let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread of the session panicked")));
            result = result.and(ended);
        }
        result
    }
}

/// The kernel's INIT request.
struct Asked {
    unique: u64,
    init: abi::InitIn,
}

impl Asked {
    /// Features of the kernel.
    fn offered(&self) -> u64 {
        u64::from(self.init.flags) | (u64::from(self.init.flags2) << 32)
    }
}

/// Takes the kernel's INIT. `None` if the file system was unmounted at once.
fn take_init(device: &Device, max_write: u32) -> io::Result<Option<Asked>> {
    let mut buffer = device::buffer(max_write);
    let size = loop {
        match device.take(&mut buffer)? {
            Taken::Request(size) => break size,
            Taken::Nothing => {}
            Taken::Ended => return Ok(None),
        }
    };
    let broken = || io::Error::other("the kernel's first request is no handshake");
    let (header, body) = abi::InHeader::read_from_prefix(&buffer[..size]).map_err(|_| broken())?;
    // Older kernels send a shorter record.
    let mut bytes = [0; size_of::<abi::InitIn>()];
    let known = body.len().min(bytes.len());
    bytes[..known].copy_from_slice(&body[..known]);
    let init = abi::InitIn::read_from_bytes(&bytes).map_err(|_| broken())?;
    if header.opcode != abi::INIT {
        return Err(broken());
    }
    if init.major != abi::MAJOR || init.minor < abi::OLDEST_MINOR {
        device.answer(header.unique, libc::EPROTO, &[]);
        return Err(io::Error::other(format!(
            "the kernel speaks FUSE {}.{}; this needs 7.{} (Linux 5.17) or newer",
            init.major,
            init.minor,
            abi::OLDEST_MINOR
        )));
    }
    Ok(Some(Asked { unique: header.unique, init }))
}

fn answer_init(device: &Device, asked: &Asked, options: &Options, uring: u64) {
    let always = abi::flags::ASYNC_READ | abi::flags::BIG_WRITES | abi::flags::MAX_PAGES | abi::flags::INIT_EXT;
    let flags = (always | options.flags | uring) & asked.offered();
    let answer = abi::InitOut {
        major: abi::MAJOR,
        minor: abi::MINOR.min(asked.init.minor),
        max_readahead: options.max_write.min(asked.init.max_readahead),
        flags: flags as u32,
        max_background: options.max_background,
        congestion_threshold: options.max_background / 4 * 3,
        max_write: options.max_write,
        time_gran: 1,
        max_pages: u16::try_from(options.max_write / PAGE).unwrap_or(u16::MAX),
        flags2: (flags >> 32) as u32,
        ..abi::InitOut::default()
    };
    device.answer(asked.unique, 0, &[answer.as_bytes()]);
}

/// Threads that have made their rings and wait for the end of the handshake before they register them with the kernel: once
/// io_uring is negotiated, the kernel holds all requests back until the rings are registered.
struct RingThreads {
    threads: Vec<JoinHandle<io::Result<()>>>,
    go: Vec<mpsc::Sender<()>>,
    queues: Arc<Queues>,
    registered: mpsc::Receiver<io::Result<()>>,
}

impl RingThreads {
    /// `None` if this machine does not support it; the log has the reason.
    fn start(device: &Arc<Device>, options: &Options, handler: &Arc<dyn Handler>) -> Option<RingThreads> {
        match Self::try_start(device, options, handler) {
            Ok(threads) => Some(threads),
            Err(error) => {
                tracing::info!("no FUSE over io_uring, /dev/fuse instead: {error}");
                None
            }
        }
    }

    fn try_start(device: &Arc<Device>, options: &Options, handler: &Arc<dyn Handler>) -> io::Result<RingThreads> {
        let (made_sender, made) = mpsc::channel();
        let (registered_sender, registered) = mpsc::channel();
        let queues = Arc::new(Queues::new(possible_cpus()?, options.queue_depth, options.max_write as usize)?);
        let mut rings = RingThreads { threads: Vec::new(), go: Vec::new(), registered, queues: queues.clone() };
        for cpu in 0..queues.count() {
            let (go, start) = mpsc::channel();
            let (made, registered) = (made_sender.clone(), registered_sender.clone());
            let (device, handler, queues) = (device.clone(), handler.clone(), queues.clone());
            let serve = move || {
                stay_on(cpu);
                let ring = match ring::make_ring(queues.depth()) {
                    Ok(ring) => ring,
                    Err(error) => {
                        let _ = made.send(Err(error));
                        return Ok(());
                    }
                };
                let _ = made.send(Ok(()));
                // If another thread's ring failed, this one is not needed.
                if start.recv().is_err() {
                    return Ok(());
                }
                let mut server = ring::Server::new(ring, queues, cpu, device, &*handler);
                let offered = server.register();
                let refused = offered.is_err();
                let _ = registered.send(offered);
                if refused { Ok(()) } else { server.serve() }
            };
            rings.threads.push(std::thread::Builder::new().name(format!("fuse-ring-{cpu}")).spawn(serve)?);
            rings.go.push(go);
        }
        for _ in &rings.threads {
            made.recv().map_err(io::Error::other)??;
        }
        Ok(rings)
    }

    /// Registers all rings with the kernel.
    fn register(self) -> io::Result<Vec<JoinHandle<io::Result<()>>>> {
        for go in &self.go {
            let _ = go.send(());
        }
        for _ in &self.threads {
            match self.registered.recv().map_err(io::Error::other)? {
                // Unmounted in the meantime: the other threads see it too.
                Err(error) if ring::is_end(&error) => {}
                result => result?,
            }
        }
        Ok(self.threads)
    }
}

/// The number of possible processors: the kernel has a queue for each.
fn possible_cpus() -> io::Result<u16> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit(['-', ',']).next().and_then(|number| number.parse::<u16>().ok());
    last.and_then(|last| last.checked_add(1)).ok_or_else(|| io::Error::other("cannot tell the number of processors"))
}

/// Pins this thread to a processor, if that exists.
fn stay_on(cpu: u16) {
    let mut set = CpuSet::new();
    set.set(cpu.into());
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

impl Session {
    /// Mounts on a directory and starts the session, which ends when the file system is unmounted.
    ///
    /// # Errors
    /// As [`Mountpoint::mount`](crate::Mountpoint::mount) and [`Session::start`].
    pub fn mount(place: &crate::Mountpoint<'_>, options: &Options, handler: Arc<dyn Handler>) -> io::Result<Session> {
        if options.uring {
            Self::allow_uring();
        }
        let device = place.mount()?;
        Self::start(device, options, handler).inspect_err(|_| drop(crate::unmount(place.directory)))
    }
}
