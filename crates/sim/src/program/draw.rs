//! Generates the next call of a process: mostly sensible, often an edge case, sometimes invalid.

use client::api::SetTime;
use proto::Bytes;
use stdx::Rng;

use crate::model::{Body, Id, Model, Op, Path, S_IFREG, WriteWay};

/// The mix of a process's calls: weights and limits.
#[derive(Clone, Debug)]
pub(crate) struct CallMix {
    /// The weight of each kind of call, by its number in `of_kind`.
    weights: Vec<u64>,
    /// Largest file, in bytes.
    file_max: u64,
    /// The most inodes.
    inodes_max: usize,
    /// Use names that share a hash.
    one_hash: bool,
    /// Files have several stripes from the start.
    pub striped: bool,
    /// Percentage of writes that are followed by an `fsync`.
    syncs_percent: u64,
}

const KINDS: usize = 28;
const MKDIR: usize = 0;
const RMDIR: usize = 5;

impl CallMix {
    /// Draws weights: some calls are frequent in a run, some never occur.
    pub(crate) fn draw(rng: &mut Rng, file_max: u64) -> CallMix {
        let weights = (0..KINDS)
            .map(|_| match rng.below(6) {
                0 => 0,
                1 => 12,
                _ => 4,
            })
            .collect();
        let inodes_max = rng.range(8, 60) as usize;
        let syncs_percent = [0, 33, 60][rng.below(3) as usize];
        CallMix { weights, file_max, inodes_max, one_hash: false, striped: rng.chance(1, 3), syncs_percent }
    }

    /// The same with names that share a hash, or without.
    pub(crate) fn with_names(self, one_hash: bool) -> CallMix {
        CallMix { one_hash, ..self }
    }

    /// The same with directories made and removed in every run with several metadata targets.
    pub(crate) fn with_mdts(mut self, mdts: usize) -> CallMix {
        if mdts > 1 {
            for kind in [MKDIR, RMDIR] {
                self.weights[kind] = self.weights[kind].max(16);
            }
        }
        self
    }
}

const NAMES: [&[u8]; 9] = [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b" sp\xff\n", b"..."];

/// Generates calls for the present state of a model.
pub(crate) struct CallGenerator<'a> {
    /// The state before the call.
    pub model: &'a Model,
    /// The source of randomness.
    pub rng: &'a mut Rng,
    /// The mix of calls.
    pub mix: &'a CallMix,
    /// The number of the call.
    pub serial: u64,
    /// The next number for an open file.
    pub next_fd: u32,
    /// The file that the previous call has written.
    pub written: Option<u32>,
}

impl CallGenerator<'_> {
    /// Draws the next call.
    pub(crate) fn op(&mut self) -> Op {
        if let Some(fd) = self.written
            && self.rng.chance(self.mix.syncs_percent, 100)
        {
            return Op::Fsync { fd, data_only: self.rng.chance(1, 4) };
        }
        let paths = self.model.paths();
        let full = paths.len() >= self.mix.inodes_max;
        for _ in 0..20 {
            let kind = self.kind(full);
            if let Some(op) = self.of_kind(kind, &paths) {
                return op;
            }
        }
        Op::Stat { path: Path::new() }
    }

    fn kind(&mut self, full: bool) -> usize {
        if full && self.rng.chance(1, 2) {
            return [4, 5][self.rng.below(2) as usize];
        }
        let total: u64 = self.mix.weights.iter().sum::<u64>() + 1;
        let mut left = self.rng.below(total);
        for (kind, weight) in self.mix.weights.iter().enumerate() {
            if left < *weight {
                return kind;
            }
            left -= weight;
        }
        20
    }

    fn of_kind(&mut self, kind: usize, paths: &[(Path, Id)]) -> Option<Op> {
        Some(match kind {
            MKDIR => Op::Mkdir { path: self.new_path(paths), mode: self.mode() },
            1 => self.mknod(paths),
            2 => Op::Symlink { path: self.new_path(paths), target: self.target() },
            3 => Op::Link { from: self.any_path(paths), to: self.new_path(paths) },
            4 => Op::Unlink { path: self.doomed(paths) },
            RMDIR => Op::Rmdir { path: self.mostly(paths, |body| matches!(body, Body::Directory { .. })) },
            6 | 7 => Op::Rename {
                from: self.any_path(paths),
                to: if self.rng.chance(1, 2) { self.any_path(paths) } else { self.new_path(paths) },
                flags: match [0, 0, 0, 1, 2][self.rng.below(5) as usize] {
                    // Without another draw from the generator, so that later draws stay the same.
                    1 => [1, 4, 5][(self.serial % 3) as usize],
                    flags => flags,
                },
            },
            8 => Op::Stat { path: self.any_path(paths) },
            9 => Op::Readlink { path: self.mostly(paths, |body| matches!(body, Body::Symlink(_))) },
            10 => {
                let path = self.mostly(paths, |body| matches!(body, Body::Directory { .. }));
                let plus = self.rng.chance(1, 2);
                // The names of one cookie, one per stripe, have to fit.
                let least = if plus { 1024 } else { 512 };
                let bytes = [512, 1024, 32 << 10][self.rng.below(3) as usize].max(least);
                Op::List { path, plus, bytes }
            }
            11 => Op::Chmod { path: self.some_path(paths, |_| true)?, mode: self.new_mode() },
            12 => Op::Chown {
                path: self.some_path(paths, |_| true)?,
                uid: [None, Some(0), Some(1000)][self.rng.below(3) as usize],
                gid: [Some(0), Some(1000), Some(2000)][self.rng.below(3) as usize],
            },
            13 => Op::Utimens {
                path: self.some_path(paths, |_| true)?,
                atime: self.time(),
                mtime: Some(self.time().unwrap_or(SetTime::Now)),
            },
            14 => Op::Access { path: self.any_path(paths), mask: self.rng.range(1, 7) as u32 },
            15 => self.xattr(paths)?,
            16 => {
                let path = self.some_path(paths, |body| matches!(body, Body::File(_)));
                let path = path.filter(|_| !self.rng.chance(1, 20)).or_else(|| self.some_path(paths, |_| true))?;
                Op::Truncate { path, size: self.offset() }
            }
            17 | 18 => self.open(paths)?,
            19 => Op::Close { fd: self.fd()? },
            20 | 21 => Op::Read { fd: self.fd()?, offset: self.offset(), length: self.length() },
            22 | 23 => self.write()?,
            24 => match self.rng.below(3) {
                0 => Op::Ftruncate { fd: self.fd()?, size: self.offset() },
                1 => Op::Seek { fd: self.fd()?, offset: self.offset(), hole: self.rng.chance(1, 2) },
                _ => Op::Fallocate {
                    fd: self.fd()?,
                    mode: [0, 1, 3, 0x10, 0x11][self.rng.below(5) as usize],
                    offset: self.offset(),
                    length: u64::from(self.length()).max(1),
                },
            },
            25 => Op::Fstat { fd: self.fd()? },
            26 => match self.rng.below(4) {
                0 => Op::Syncfs,
                1 => Op::Fsyncdir { path: self.some_path(paths, |body| matches!(body, Body::Directory { .. }))? },
                _ => Op::Fsync { fd: self.fd()?, data_only: self.rng.chance(1, 4) },
            },
            _ => match self.rng.below(5) {
                0 => Op::Statfs,
                1 => Op::PathToFid { path: self.any_path(paths) },
                2 | 3 => Op::Migrate {
                    path: self.some_path(paths, |body| matches!(body, Body::File(_)))?,
                    count: [0, 1, 2, -1][self.rng.below(4) as usize],
                    first: [-1, 0][self.rng.below(2) as usize],
                },
                _ => Op::SetStripe {
                    path: self.some_path(paths, |body| matches!(body, Body::Directory { .. }))?,
                    size: 64 << 10,
                    count: [-1, 1, 2, 0][self.rng.below(4) as usize],
                    first: -1,
                },
            },
        })
    }

    // --- names ---

    fn name(&mut self) -> Bytes {
        match self.rng.below(60) {
            0 => vec![b'n'; 255].into(),
            1 => vec![b'n'; 256].into(),
            _ if self.mix.one_hash => super::collide::name(self.rng.below(super::collide::NAMES)),
            _ => Bytes::from_static(NAMES[self.rng.below(NAMES.len() as u64) as usize]),
        }
    }

    fn some_path(&mut self, paths: &[(Path, Id)], fits: impl Fn(&Body) -> bool) -> Option<Path> {
        let fitting: Vec<&Path> =
            paths.iter().filter(|(_, id)| fits(&self.model.inode(*id).body)).map(|(path, _)| path).collect();
        self.rng.pick(&fitting).map(|path| (*path).clone())
    }

    /// A path for a new name in a directory; the name may exist already.
    fn new_path(&mut self, paths: &[(Path, Id)]) -> Path {
        let in_file = self.rng.chance(1, 40);
        let fits = |body: &Body| matches!(body, Body::Directory { .. }) != in_file && !matches!(body, Body::Symlink(_));
        let mut path = self.some_path(paths, fits).unwrap_or_default();
        if path.len() >= 5 {
            path.truncate(2);
        }
        if self.rng.chance(1, 40) {
            path.push(Bytes::from_static(b"missing"));
        }
        path.push(self.name());
        path
    }

    /// A path that usually exists and is not the process's directory itself.
    fn any_path(&mut self, paths: &[(Path, Id)]) -> Path {
        if paths.len() > 1 && !self.rng.chance(1, 6) {
            let at = self.rng.range(1, paths.len() as u64 - 1) as usize;
            return paths[at].0.clone();
        }
        self.new_path(paths)
    }

    /// Usually a path whose object fits, if there is one.
    fn mostly(&mut self, paths: &[(Path, Id)], fits: impl Fn(&Body) -> bool) -> Path {
        let fitting = if self.rng.chance(2, 3) { self.some_path(paths, fits) } else { None };
        // Not the process's directory itself.
        fitting.filter(|path| !path.is_empty()).unwrap_or_else(|| self.any_path(paths))
    }

    /// A path to remove: often that of an open file.
    fn doomed(&mut self, paths: &[(Path, Id)]) -> Path {
        let is_open = |id: &Id| self.model.open_files().values().any(|file| file.id == *id);
        let open: Vec<&Path> = paths.iter().filter(|(_, id)| is_open(id)).map(|(path, _)| path).collect();
        if self.rng.chance(1, 3)
            && let Some(path) = self.rng.pick(&open)
        {
            return (*path).clone();
        }
        self.mostly(paths, |body| !matches!(body, Body::Directory { .. }))
    }

    /// A file with set-user-id or set-group-id, if there is one.
    fn set_id(&mut self, paths: &[(Path, Id)]) -> Option<Path> {
        let has = |id: &Id| self.model.inode(*id).is_file() && self.model.inode(*id).mode & 0o6000 != 0;
        let found: Vec<&Path> = paths.iter().filter(|(_, id)| has(id)).map(|(path, _)| path).collect();
        self.rng.pick(&found).map(|path| (*path).clone())
    }

    // --- values ---

    fn mode(&mut self) -> u32 {
        [0o777, 0o755, 0o700, 0o644, 0o600, 0o666][self.rng.below(6) as usize]
    }

    fn new_mode(&mut self) -> u32 {
        let special = if self.rng.chance(1, 3) { self.rng.below(8) as u32 * 0o1000 } else { 0 };
        [0o777, 0o755, 0o711, 0o700, 0o644, 0o444, 0o000][self.rng.below(7) as usize] | special
    }

    fn time(&mut self) -> Option<SetTime> {
        match self.rng.below(4) {
            0 => None,
            1 => Some(SetTime::Now),
            2 => Some(SetTime::At(self.rng.below(2_000_000_000) as i64 * 1_000_000_007)),
            _ => Some(SetTime::At(-(self.rng.below(1_000_000_000) as i64))),
        }
    }

    fn target(&mut self) -> Bytes {
        let length = match self.rng.below(10) {
            0 => 4000,
            1 => 300,
            _ => self.rng.range(1, 60),
        };
        vec![b't'; length as usize].into()
    }

    fn mknod(&mut self, paths: &[(Path, Id)]) -> Op {
        let (mode, rdev) = match self.rng.below(6) {
            0 => (0o010_644, 0),
            1 => (0o140_755, 0),
            2 => (0o020_600, 0x103),
            _ => (S_IFREG | 0o644, 0),
        };
        Op::Mknod { path: self.new_path(paths), mode, rdev }
    }

    fn xattr(&mut self, paths: &[(Path, Id)]) -> Option<Op> {
        let mut path = self.some_path(paths, Body::is_file_or_dir)?;
        let mut name = Bytes::from_static(
            [&b"user.one"[..], b"user.two", b"user.a longer name of an attribute"][self.rng.below(3) as usize],
        );
        let kind = self.rng.below(6);
        let all: Vec<(&Path, &Bytes)> = paths
            .iter()
            .flat_map(|(path, id)| self.model.inode(*id).xattrs.keys().map(move |name| (path, name)))
            .collect();
        if kind < 3
            && self.rng.chance(2, 3)
            && let Some((at, known)) = self.rng.pick(&all)
        {
            (path, name) = ((*at).clone(), (*known).clone());
        }
        Some(match kind {
            0 => Op::Getxattr { path, name },
            1 => Op::Listxattr { path },
            2 => Op::Removexattr { path, name },
            _ => {
                let length = [0, 5, 100, 3000][self.rng.below(4) as usize];
                let value = vec![(self.serial % 251) as u8; length].into();
                Op::Setxattr { path, name, value, flags: [0, 0, 1, 2][self.rng.below(4) as usize] }
            }
        })
    }

    // --- files ---

    fn fd(&mut self) -> Option<u32> {
        let open: Vec<u32> = self.model.open_files().keys().copied().collect();
        self.rng.pick(&open).copied()
    }

    fn open(&mut self, paths: &[(Path, Id)]) -> Option<Op> {
        if self.model.open_files().len() >= 6 {
            return Some(Op::Close { fd: self.fd()? });
        }
        let mut flags = [0, 1, 2, 2][self.rng.below(4) as usize];
        let mut path = self.any_path(paths);
        if self.rng.chance(1, 2) {
            flags |= 0o100;
            if self.rng.chance(1, 2) {
                path = self.new_path(paths);
            }
            if self.rng.chance(1, 3) {
                flags |= 0o200;
            }
        }
        for (bit, of) in [(0o1000, 6), (0o2000, 6), (0o40000, 10), (0o4_010_000, 16)] {
            if self.rng.chance(1, of) {
                flags |= bit;
            }
        }
        if flags & 0o1000 != 0
            && flags & 0o200 == 0
            && self.rng.chance(1, 2)
            && let Some(found) = self.set_id(paths)
        {
            flags = flags & !3 | 2;
            path = found;
        }
        // Opening a pipe or device does not concern the file system.
        let id = self.model.walk(&super::root(), &path).ok();
        if let Some(id) = id
            && matches!(self.model.inode(id).body, Body::Special { .. } | Body::Directory { .. })
            && (flags & 3 == 0 || matches!(self.model.inode(id).body, Body::Special { .. }))
        {
            return None;
        }
        Some(Op::Open { path, flags, mode: self.mode(), fd: self.next_fd })
    }

    /// Offsets that matter: the start, the end, the edges of pages, of the size limit for data on the metadata target, and of
    /// stripes.
    fn offset(&mut self) -> u64 {
        let max = self.mix.file_max;
        let near = |rng: &mut Rng, point: u64| (point + rng.below(9)).saturating_sub(4);
        let offset = match self.rng.below(8) {
            0 => 0,
            1 => self.rng.below(300),
            2 => {
                let page = self.rng.below(32) * 4096;
                near(self.rng, page)
            }
            3 => near(self.rng, 64 << 10),
            4 => {
                let stripe = self.rng.below(8) * (64 << 10);
                near(self.rng, stripe)
            }
            5 => near(self.rng, 1 << 20),
            _ => self.rng.below(max),
        };
        offset % max.max(1)
    }

    fn length(&mut self) -> u32 {
        let length = match self.rng.below(8) {
            0 => 1,
            1 => self.rng.range(1, 300),
            2 => 4096,
            3 => self.rng.range(1, 20_000),
            4 => 64 << 10,
            5 => self.rng.range(1, self.mix.file_max),
            _ => self.rng.range(1, 5_000),
        };
        length.min(1 << 20) as u32
    }

    fn write(&mut self) -> Option<Op> {
        let fd = self.fd()?;
        let way = if self.rng.chance(1, 6) { WriteWay::Mapped } else { WriteWay::Plain };
        let length = u64::from(self.length()).min(self.mix.file_max);
        let offset = self.offset().min(self.mix.file_max - length);
        Some(Op::Write { fd, way, offset, data: pattern(self.serial, length as usize) })
    }
}

impl Body {
    /// Whether it is a regular file or a directory.
    fn is_file_or_dir(&self) -> bool {
        matches!(self, Body::Directory { .. } | Body::File(_))
    }
}

/// Bytes that identify the call that wrote them and their position; never zero, so that holes are visible.
pub(crate) fn pattern(serial: u64, length: usize) -> Bytes {
    let salt = serial.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..length)
        .map(|at| {
            let word = salt ^ (at as u64 / 8).wrapping_mul(0x2545_f491_4f6c_dd1d);
            (word >> (at % 8 * 7)) as u8 | 1
        })
        .collect::<Vec<u8>>()
        .into()
}
