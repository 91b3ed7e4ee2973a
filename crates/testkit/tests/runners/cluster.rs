//! Runs scripts in which programs work on the clients of a cluster, while servers and wires fail.
//!
//! A prefix names the client (`b: stat f`; without one it is `a`). Paths have no slash in front; `root` is the root. What comes
//! back is what the program was told and, behind ` | `, what the command sent: see `trace.rs`. The names on the way to a file
//! are looked up before a command, without a trace, as if the kernel knew them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;
use std::rc::Rc;
use std::time::Duration;

use client::api::{Answer, Call, CallId, FileHandle, RecordLock, RecordLockKind, SetStat, SetTime, Stat, Whence};
use goldenscript::{Argument, Command, Context, Runner};
use proto::msg::Layout;
use proto::{Bytes, Errno};
use testkit::cluster::{Cluster, cred, name, wish};

use super::trace::{Shared, Wires};

const ROOT: u64 = 1;

/// The cluster of one script.
pub(crate) struct Programs {
    cluster: Cluster,
    wires: Shared,
    nodes: BTreeMap<String, usize>,
    /// Open files, by the name that the script gave each.
    open: BTreeMap<String, (u64, FileHandle)>,
    /// Objects that the script names by what they were, `keep d/f as=_f`: as who still has their number.
    kept: BTreeMap<String, u64>,
    /// Clients that change metadata in their own memory.
    writes_back: Vec<usize>,
    /// Calls that the script has not waited for.
    begun: BTreeMap<usize, CallId>,
    logged: usize,
}

/// Arguments of a command.
struct Args<'a> {
    positions: Vec<&'a str>,
    keys: BTreeMap<&'a str, &'a str>,
}

type Told = Result<String, Box<dyn Error>>;

impl<'a> Args<'a> {
    fn new(command: &'a Command) -> Args<'a> {
        let mut args = Args { positions: Vec::new(), keys: BTreeMap::new() };
        for arg in &command.args {
            match arg {
                Argument::Positional(text) => args.positions.push(text),
                Argument::KeyValue(key, value) => drop(args.keys.insert(key, value)),
                _ => {}
            }
        }
        args
    }

    fn at(&self, index: usize) -> Result<&'a str, Box<dyn Error>> {
        self.positions.get(index).copied().ok_or_else(|| format!("argument {} is missing", index + 1).into())
    }

    fn number(&self, index: usize) -> Result<u64, Box<dyn Error>> {
        Ok(self.at(index)?.parse()?)
    }

    fn key(&self, key: &str, otherwise: u64) -> Result<u64, Box<dyn Error>> {
        self.keys.get(key).map_or(Ok(otherwise), |text| Ok(text.parse()?))
    }

    /// An octal number.
    fn mode(&self, otherwise: u32) -> Result<u32, Box<dyn Error>> {
        self.keys.get("mode").map_or(Ok(otherwise), |text| Ok(u32::from_str_radix(text, 8)?))
    }
}

impl Programs {
    pub(crate) fn new() -> Programs {
        let mut cluster = Cluster::new(2);
        let wires = Rc::new(RefCell::new(Wires::default()));
        let tap = wires.clone();
        cluster.tamper = Some(Box::new(move |to_client, at, frame| tap.borrow_mut().pass(to_client, at, frame)));
        Programs {
            cluster,
            wires,
            nodes: BTreeMap::new(),
            open: BTreeMap::new(),
            kept: BTreeMap::new(),
            writes_back: Vec::new(),
            begun: BTreeMap::new(),
            logged: 0,
        }
    }

    /// The directory of a path and the last name.
    fn place<'a>(&mut self, node: usize, path: &'a str) -> Result<(u64, &'a str), Errno> {
        let (dir, last) = path.rsplit_once('/').unwrap_or(("root", path));
        Ok((self.walk(node, dir)?, last))
    }

    fn walk(&mut self, node: usize, path: &str) -> Result<u64, Errno> {
        match path {
            "root" => Ok(ROOT),
            path if path.starts_with('_') => self.kept.get(path).copied().ok_or(Errno::ENOENT),
            path => self.cluster.walk(node, path),
        }
    }

    /// A call that a command makes, once the paths are known.
    fn call(&mut self, node: usize, command: &str, args: &Args<'_>) -> Result<Result<Call, Errno>, Box<dyn Error>> {
        macro_rules! known {
            ($what:expr) => {
                match $what {
                    Ok(what) => what,
                    Err(errno) => return Ok(Err(errno)),
                }
            };
        }
        let call = match command {
            "lookup" | "create" | "mkdir" | "mknod" | "unlink" | "rmdir" => {
                let (parent, last) = known!(self.place(node, args.at(0)?));
                let name = name(last);
                match command {
                    "lookup" => Call::Lookup { parent, name },
                    "create" => {
                        let exclusive = if args.keys.contains_key("exclusive") { 0o200 } else { 0 };
                        Call::Create { parent, name, mode: args.mode(0o644)?, flags: 0o102 | exclusive }
                    }
                    "mkdir" => Call::Mkdir { parent, name, mode: args.mode(0o755)? },
                    "mknod" => {
                        let kind = match args.keys.get("kind").copied() {
                            None => 0o100_000,
                            Some("fifo") => 0o010_000,
                            Some("socket") => 0o140_000,
                            Some("char") => 0o020_000,
                            Some("block") => 0o060_000,
                            Some(other) => return Err(format!("no kind '{other}'").into()),
                        };
                        Call::Mknod { parent, name, mode: kind | args.mode(0o644)?, rdev: args.key("rdev", 0)? }
                    }
                    "unlink" => Call::Unlink { parent, name },
                    _ => Call::Rmdir { parent, name },
                }
            }
            "symlink" => {
                let (parent, last) = known!(self.place(node, args.at(1)?));
                Call::Symlink { parent, name: name(last), target: name(args.at(0)?) }
            }
            "link" => {
                let ino = known!(self.walk(node, args.at(0)?));
                let (new_parent, last) = known!(self.place(node, args.at(1)?));
                Call::Link { ino, new_parent, new_name: name(last) }
            }
            "rename" => {
                let (parent, last) = known!(self.place(node, args.at(0)?));
                let (new_parent, new_last) = known!(self.place(node, args.at(1)?));
                let flags = match args.keys.get("flags").copied() {
                    None => 0,
                    Some("noreplace") => 1,
                    Some("exchange") => 2,
                    Some("whiteout") => 4,
                    Some(other) => return Err(format!("no flag '{other}'").into()),
                };
                Call::Rename { parent, name: name(last), new_parent, new_name: name(new_last), flags }
            }
            "open" => {
                let ino = known!(self.walk(node, args.at(0)?));
                let flags = match args.keys.get("for").copied() {
                    None | Some("reading") => 0,
                    Some("writing") => 1,
                    Some("both") => 2,
                    Some("append") => 0o2001,
                    Some("truncate") => 0o1001,
                    Some(other) => return Err(format!("no way to open '{other}'").into()),
                };
                Call::Open { ino, flags }
            }
            "sync" => Call::Syncfs,
            "close" | "write" | "read" | "fsync" | "fallocate" | "punch" | "seek" | "lock" | "unlock" => {
                return self.file_call(command, args).map(Ok);
            }
            _ => {
                let ino = known!(self.walk(node, args.at(0)?));
                return self.node_call(ino, command, args).map(Ok);
            }
        };
        Ok(Ok(call))
    }

    /// A call on an open file.
    fn file_call(&mut self, command: &str, args: &Args<'_>) -> Result<Call, Box<dyn Error>> {
        let (ino, fh) = *self.open.get(args.at(0)?).ok_or("no such open file")?;
        Ok(match command {
            "close" => {
                self.open.remove(args.at(0)?);
                Call::Release { fh, flock_owner: None }
            }
            "write" => {
                let data = match args.keys.get("times") {
                    Some(times) => args.at(2)?.repeat(times.parse()?),
                    None => args.at(2)?.to_owned(),
                };
                let offset = args.number(1)?;
                Call::Write { fh, ino, offset, data: data.into(), write_back: false, kill_priv: false }
            }
            "read" => Call::Read { fh, offset: args.number(1)?, length: args.number(2)? as u32 },
            "fsync" => Call::Fsync { fh },
            "fallocate" => Call::Fallocate { fh, mode: 0, offset: args.number(1)?, length: args.number(2)? },
            // FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
            "punch" => Call::Fallocate { fh, mode: 3, offset: args.number(1)?, length: args.number(2)? },
            "seek" => {
                let whence = if args.at(1)? == "hole" { Whence::Hole } else { Whence::Data };
                Call::Lseek { fh, offset: args.number(2)?, whence }
            }
            _ => {
                let kind = match (command, args.keys.get("kind").copied()) {
                    ("unlock", _) => RecordLockKind::Unlock,
                    (_, Some("read")) => RecordLockKind::Shared,
                    _ => RecordLockKind::Exclusive,
                };
                let lock = RecordLock { start: args.number(1)?, end: args.number(2)?, kind, pid: 1 };
                Call::Setlk {
                    fh,
                    owner: args.key("owner", 1)?,
                    lock,
                    wait: args.keys.contains_key("wait"),
                    flock: false,
                }
            }
        })
    }

    /// A call on an object.
    fn node_call(&mut self, ino: u64, command: &str, args: &Args<'_>) -> Result<Call, Box<dyn Error>> {
        let set = |set| Ok(Call::Setattr { ino, set });
        match command {
            "stat" => Ok(Call::Getattr { ino, fh: None }),
            "readlink" => Ok(Call::Readlink { ino }),
            "access" => Ok(Call::Access { ino, mask: args.number(1)? as u32 }),
            "chmod" => set(SetStat { mode: Some(u32::from_str_radix(args.at(1)?, 8)?), ..SetStat::default() }),
            "chown" => {
                let number = |key: &str| args.keys.get(key).map(|text| text.parse()).transpose();
                set(SetStat { uid: number("owner")?, gid: number("group")?, ..SetStat::default() })
            }
            "truncate" => set(SetStat { size: Some(args.number(1)?), ..SetStat::default() }),
            "utimes" => {
                let at = SetTime::At(args.number(1)? as i64 * 1_000_000_000);
                set(SetStat { atime: Some(at), mtime: Some(at), ..SetStat::default() })
            }
            "setxattr" => {
                let flags = match args.keys.get("flags").copied() {
                    None => 0,
                    Some("create") => 1,
                    Some("replace") => 2,
                    Some(other) => return Err(format!("no flag '{other}'").into()),
                };
                Ok(Call::Setxattr { ino, name: name(args.at(1)?), value: name(args.at(2)?), flags })
            }
            "setacl" => {
                let value = acl(args)?;
                let kind = if args.keys.contains_key("default") { "default" } else { "access" };
                Ok(Call::Setxattr { ino, name: name(&format!("system.posix_acl_{kind}")), value, flags: 0 })
            }
            "getxattr" => Ok(Call::Getxattr { ino, name: name(args.at(1)?) }),
            "listxattr" => Ok(Call::Listxattr { ino }),
            "removexattr" => Ok(Call::Removexattr { ino, name: name(args.at(1)?) }),
            "statfs" => Ok(Call::Statfs { ino }),
            "getlayout" => Ok(Call::GetLayout { ino }),
            "setlayout" => {
                let (size, count) = (args.key("size", 65536)? as u32, args.key("count", 1)? as i32);
                Ok(Call::SetLayout { ino, wish: wish(size, count, args.key("first", 0)? as i32) })
            }
            "migrate" => {
                let onto = args.at(1)?.parse()?;
                Ok(Call::Migrate { ino, wish: Layout { osts: vec![onto], ..wish(0, 0, -1) } })
            }
            "path2fid" => Ok(Call::PathToFid { ino }),
            "fid2path" => {
                let fid = proto::Fid::from_ino(ino).ok_or("no FID")?;
                Ok(Call::FidToPath { fid })
            }
            other => Err(format!("no command '{other}'").into()),
        }
    }

    /// What a program is told.
    fn told(&mut self, args: &Args<'_>, result: Result<Answer, Errno>) -> String {
        match result {
            Err(errno) => errno.name().to_owned(),
            Ok(answer) => match answer {
                Answer::Done => "ok".to_owned(),
                Answer::Entry(stat) | Answer::Attr(stat) => shown(&stat),
                Answer::Opened { fh, .. } => {
                    self.keep(args, fh, 0);
                    "open".to_owned()
                }
                Answer::Created { stat, fh, .. } => {
                    self.keep(args, fh, stat.ino);
                    shown(&stat)
                }
                Answer::Data(data) => format!("'{}'", text(&data)),
                Answer::Written(count) => format!("{count} bytes"),
                Answer::Offset(offset) => offset.to_string(),
                Answer::Fid(_) => "a FID".to_owned(),
                Answer::Paths(paths) => paths.iter().map(|path| text(path)).collect::<Vec<_>>().join(" "),
                Answer::Layout(layout) => layout.map_or("none".to_owned(), |layout| {
                    let Layout { stripe_size, osts, resident, want_count, .. } = layout;
                    format!("stripe_size={stripe_size} osts={osts:?} resident={resident} wanted={want_count}")
                }),
                Answer::Space { block_size, .. } => format!("blocks of {block_size} bytes"),
                other => format!("{other:?}"),
            },
        }
    }

    fn keep(&mut self, args: &Args<'_>, fh: FileHandle, ino: u64) {
        let name = args.keys.get("as").copied().unwrap_or("_");
        self.open.insert(name.to_owned(), (ino, fh));
    }

    /// What the programs of one client do.
    fn program(&mut self, node: usize, command: &Command) -> Told {
        let args = Args::new(command);
        let call = self.call(node, &command.name, &args)?;
        self.wires.borrow_mut().clear();
        let result = match call {
            Err(errno) => Err(errno),
            Ok(call) => {
                let uid = args.key("uid", 0)? as u32;
                let mut who = cred(uid);
                who.gid = args.key("gid", u64::from(uid))? as u32;
                let id = self.cluster.send_as(node, who, call);
                if args.keys.contains_key("later") {
                    self.begun.insert(node, id);
                    return Ok(self.with_trace(node, "begun".to_owned()));
                }
                self.cluster.answer(node, id)
            }
        };
        // A create of which the script keeps no file is closed at once, as `touch` does.
        let told = self.told(&args, result);
        let told = self.with_trace(node, told);
        if let Some((_, fh)) = self.open.remove("_") {
            self.cluster.send(node, Call::Release { fh, flock_owner: None });
            if !self.writes_back.contains(&node) {
                self.cluster.pass(Duration::from_millis(3));
            }
        }
        Ok(told)
    }

    fn with_trace(&mut self, node: usize, told: String) -> String {
        let trace = self.wires.borrow_mut().take(node);
        if trace.is_empty() { told } else { format!("{told} | {trace}") }
    }

    fn mount(&mut self, name: &str, args: &Args<'_>) -> Told {
        let mut options = Cluster::options(self.nodes.len() as u64);
        for word in &args.positions {
            match *word {
                "write_back" => options.sync_metadata = false,
                "read_only" => options.read_only = true,
                "soft" => options.soft = Some(Duration::from_secs(20)),
                other => return Err(format!("no option '{other}'").into()),
            }
        }
        self.wires.borrow_mut().add(name);
        let write_back = !options.sync_metadata;
        let node = self.cluster.begin_mount(options);
        if write_back {
            self.writes_back.push(node);
        }
        self.cluster.until(|c| c.nodes[node].mounted);
        self.nodes.insert(name.to_owned(), node);
        Ok("mounted".to_owned())
    }

    fn list(&mut self, node: usize, path: &str) -> Told {
        let ino = match self.walk(node, path) {
            Ok(ino) => ino,
            Err(errno) => return Ok(errno.name().to_owned()),
        };
        self.wires.borrow_mut().clear();
        let told = match self.cluster.list(node, ino, false) {
            Ok(mut names) => {
                names.retain(|name| name != "." && name != "..");
                names.sort();
                if names.is_empty() { "empty".to_owned() } else { names.join(" ") }
            }
            Err(errno) => errno.name().to_owned(),
        };
        Ok(self.with_trace(node, told))
    }

    /// What happens to servers, wires and time.
    fn world(&mut self, node: usize, command: &Command) -> Option<Told> {
        let args = Args::new(command);
        let server = |args: &Args<'_>| {
            let known = |short: &str| match short.strip_prefix("ost") {
                Some(number) => format!("fs-OST{number:0>4}"),
                None => "fs-MDT0000".to_owned(),
            };
            args.at(0).map(known)
        };
        self.wires.borrow_mut().clear();
        let done: Result<(), Box<dyn Error>> = (|| {
            match &*command.name {
                "power-loss" | "kill" => {
                    let at = self.cluster.server(&server(&args)?);
                    self.cluster.kill_and_lose(at);
                    if command.name == "power-loss" {
                        self.cluster.start(at);
                    }
                }
                "start" => {
                    let at = self.cluster.server(&server(&args)?);
                    self.cluster.start(at);
                }
                "slow-media" => self.cluster.slow_media = args.at(0)? == "on",
                "drop-replies" => self.wires.borrow_mut().lost_answers = args.number(0)? as u32,
                "drop-requests" => self.wires.borrow_mut().lost_changes = args.number(0)? as u32,
                "cut" => self.cluster.cut(node),
                "die" => self.cluster.die(node),
                "pass" => self.cluster.pass(Duration::from_millis(args.number(0)?)),
                "evict" => {
                    let uuid = Cluster::options(node as u64).uuid.to_string();
                    self.cluster.set_server_param(&server(&args)?, "mdt.fs-MDT0000.evict_client", &uuid);
                    self.cluster.run();
                }
                "set-server" => {
                    let (path, value) = (args.at(1)?, args.at(2)?);
                    self.cluster.set_server_param(&server(&args)?, path, value);
                }
                "locks" | "requests" | "log" | "state" => {}
                _ => return Err("unknown".into()),
            }
            Ok(())
        })();
        match done {
            Err(error) if error.to_string() == "unknown" => None,
            Err(error) => Some(Err(error)),
            Ok(()) => Some(Ok(match &*command.name {
                "requests" => self.wires.borrow_mut().take_counts(),
                "log" => self.log(),
                "state" => self.state(node),
                _ => self.with_trace(usize::MAX, "ok".to_owned()),
            })),
        }
    }

    /// What clients logged since this was last asked: warnings and errors.
    fn log(&mut self) -> String {
        let new = &self.cluster.log[self.logged..];
        let told = |line: &&String| line.starts_with("client") && !line.contains(" Info");
        let lines: Vec<String> = new.iter().filter(told).cloned().collect();
        self.logged = self.cluster.log.len();
        if lines.is_empty() { "nothing".to_owned() } else { lines.join("\n") }
    }

    /// The state of the session with the metadata target, and those before it.
    fn state(&mut self, node: usize) -> String {
        let params = self.cluster.nodes[node].machine.get_params("mdc.*.state");
        let text = params.first().map(|(_, text)| text.clone()).unwrap_or_default();
        let states = text.lines().filter_map(|line| Some(line.split_once(", ")?.1.trim_end_matches(" ]").to_owned()));
        states.collect::<Vec<_>>().join(" > ")
    }
}

impl Runner for Programs {
    type Command = Command;

    /// Each line begins with its command.
    fn run(&mut self, command: &Command, context: &Context) -> Told {
        Ok(super::line(command, &self.carry_out(command, context)?))
    }
}

impl Programs {
    fn carry_out(&mut self, command: &Command, context: &Context) -> Told {
        let who = context.prefix.as_deref().unwrap_or("a");
        if command.name == "mount" {
            return self.mount(who, &Args::new(command));
        }
        let node = self.nodes.get(who).copied().unwrap_or(usize::MAX);
        if let Some(told) = self.world(node, command) {
            return told;
        }
        let node = *self.nodes.get(who).ok_or_else(|| format!("'{who}' is not mounted"))?;
        match &*command.name {
            "keep" => {
                let args = Args::new(command);
                let ino = self.walk(node, args.at(0)?)?;
                let name = args.keys.get("as").ok_or("keep what as what?")?;
                self.kept.insert((*name).to_owned(), ino);
                Ok("ok".to_owned())
            }
            "ls" => self.list(node, Args::new(command).at(0)?),
            "await" => {
                self.wires.borrow_mut().clear();
                let id = self.begun.remove(&node).ok_or("nothing was begun")?;
                let result = self.cluster.answer(node, id);
                let told = self.told(&Args::new(command), result);
                Ok(self.with_trace(node, told))
            }
            _ => self.program(node, command),
        }
    }
}

/// What `ls -l` shows of it.
fn shown(stat: &Stat) -> String {
    let kind = match stat.mode & 0o170_000 {
        0o040_000 => "directory",
        0o120_000 => "symlink",
        0o010_000 => "fifo",
        0o140_000 => "socket",
        0o020_000 => "char",
        0o060_000 => "block",
        _ => "file",
    };
    let size = if kind == "directory" { String::new() } else { format!(" size={}", stat.size) };
    let Stat { mode, uid, gid, nlink, .. } = stat;
    format!("{kind} {:04o} {uid}:{gid} links={nlink}{size}", mode & 0o7777)
}

/// Data as text, long runs of one character in short.
fn text(data: &[u8]) -> String {
    let text = String::from_utf8_lossy(data).replace('\0', ".");
    match text.chars().next() {
        Some(first) if text.len() > 40 && text.chars().all(|c| c == first) => format!("{first} x {}", text.len()),
        _ if text.len() > 80 => format!("{} bytes", text.len()),
        _ => text,
    }
}

/// An access list: `owner=7 group=5 other=4`, and `user=ID:RIGHTS` with a `mask`.
fn acl(args: &Args<'_>) -> Result<Bytes, Box<dyn Error>> {
    let entry =
        |tag: u16, perm: u16, id: u32| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat();
    let mut all = 2_u32.to_le_bytes().to_vec();
    let rights = |key: &str, otherwise: u64| args.key(key, otherwise).map(|rights| rights as u16);
    all.extend(entry(1, rights("owner", 7)?, u32::MAX));
    if let Some((id, perm)) = args.keys.get("user").and_then(|text| text.split_once(':')) {
        all.extend(entry(2, perm.parse()?, id.parse()?));
    }
    all.extend(entry(4, rights("group", 5)?, u32::MAX));
    if args.keys.contains_key("user") {
        all.extend(entry(16, rights("mask", 7)?, u32::MAX));
    }
    all.extend(entry(32, rights("other", 5)?, u32::MAX));
    Ok(all.into())
}
