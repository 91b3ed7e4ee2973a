//! What programs do on the clients of a cluster.

use bytes::Bytes;
use client::api::{Answer, Call, CallId, Event, FileHandle, Stat};
use proto::Errno;
use proto::msg::Cred;

use super::{Cluster, cred, name, wall, wish};

impl Cluster {
    /// A call, without letting anything else happen.
    pub fn send_quietly(&mut self, node: usize, cred: Cred, call: Call) -> CallId {
        let id = CallId(self.next_call);
        self.next_call += 1;
        let now = self.now;
        let machine = &mut self.nodes[node].machine;
        machine.handle(now, Event::WallClock(wall(now) + id.0 as i64));
        machine.handle(now, Event::Call { id, cred, call });
        id
    }

    pub fn send_as(&mut self, node: usize, cred: Cred, call: Call) -> CallId {
        let id = self.send_quietly(node, cred, call);
        self.run();
        id
    }

    pub fn send(&mut self, node: usize, call: Call) -> CallId {
        self.send_as(node, cred(0), call)
    }

    pub fn answered(&self, node: usize, id: CallId) -> bool {
        self.nodes[node].answers.contains_key(&id)
    }

    pub fn answer(&mut self, node: usize, id: CallId) -> Result<Answer, Errno> {
        self.until(|c| c.answered(node, id));
        self.nodes[node].answers.remove(&id).unwrap()
    }

    pub fn call_as(&mut self, node: usize, uid: u32, call: Call) -> Result<Answer, Errno> {
        let id = self.send_as(node, cred(uid), call);
        self.answer(node, id)
    }

    /// A call, to its end. Requests are counted from zero.
    pub fn call(&mut self, node: usize, call: Call) -> Result<Answer, Errno> {
        self.requests.clear();
        self.call_as(node, 0, call)
    }

    /// Requests that the last [`Cluster::call`] sent, lock callbacks' and background ones included.
    pub fn sent(&self) -> u64 {
        self.requests.values().sum()
    }

    pub fn lookup(&mut self, node: usize, parent: u64, text: &str) -> Result<Stat, Errno> {
        // As the kernel: a stale handle on the way means to look again.
        for _ in 0..2 {
            match self.call(node, Call::Lookup { parent, name: name(text) }) {
                Err(Errno::ESTALE) => {}
                Ok(Answer::Entry(stat)) => return Ok(stat),
                Ok(other) => panic!("{other:?}"),
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::ESTALE)
    }

    /// The number of a path's node.
    pub fn walk(&mut self, node: usize, path: &str) -> Result<u64, Errno> {
        let mut ino = 1;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            ino = self.lookup(node, ino, part)?.ino;
        }
        Ok(ino)
    }

    pub fn getattr(&mut self, node: usize, ino: u64) -> Result<Stat, Errno> {
        for _ in 0..2 {
            match self.call(node, Call::Getattr { ino, fh: None }) {
                Err(Errno::ESTALE) => {}
                Ok(Answer::Attr(stat)) => return Ok(stat),
                Ok(other) => panic!("{other:?}"),
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::ESTALE)
    }

    pub fn mkdir(&mut self, node: usize, parent: u64, text: &str) -> Result<Stat, Errno> {
        match self.call(node, Call::Mkdir { parent, name: name(text), mode: 0o755 })? {
            Answer::Entry(stat) => Ok(stat),
            other => panic!("{other:?}"),
        }
    }

    pub fn create(&mut self, node: usize, parent: u64, text: &str) -> Result<(Stat, FileHandle), Errno> {
        let call = Call::Create { parent, name: name(text), mode: 0o644, flags: 0o2 };
        match self.call(node, call)? {
            Answer::Created { stat, fh, .. } => Ok((stat, fh)),
            other => panic!("{other:?}"),
        }
    }

    /// A file `f` of two stripes of 64 KiB, with so many bytes of 1 on its object targets.
    pub fn two_stripes(&mut self, node: usize, length: usize) -> (Stat, FileHandle) {
        let (f, fh) = self.create(node, 1, "f").unwrap();
        self.call(node, Call::SetLayout { ino: f.ino, wish: wish(64 << 10, 2, 0) }).unwrap();
        self.write(node, fh, 0, &vec![1; length]).unwrap();
        self.call(node, Call::Fsync { fh }).unwrap();
        (f, fh)
    }

    pub fn open(&mut self, node: usize, ino: u64, flags: u32) -> Result<FileHandle, Errno> {
        for _ in 0..2 {
            match self.call(node, Call::Open { ino, flags }) {
                Err(Errno::ESTALE) => {}
                Ok(Answer::Opened { fh, .. }) => return Ok(fh),
                Ok(other) => panic!("{other:?}"),
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::ESTALE)
    }

    pub fn write(&mut self, node: usize, fh: FileHandle, offset: u64, data: &[u8]) -> Result<u32, Errno> {
        let data = Bytes::copy_from_slice(data);
        match self.call(node, Call::Write { fh, ino: 0, offset, data, write_back: false, kill_priv: false })? {
            Answer::Written(count) => Ok(count),
            other => panic!("{other:?}"),
        }
    }

    pub fn read(&mut self, node: usize, fh: FileHandle, offset: u64, length: u32) -> Result<Bytes, Errno> {
        match self.call(node, Call::Read { fh, offset, length })? {
            Answer::Data(data) => Ok(data),
            other => panic!("{other:?}"),
        }
    }

    pub fn close(&mut self, node: usize, fh: FileHandle) -> Result<(), Errno> {
        self.call(node, Call::Flush { fh, lock_owner: 1 })?;
        self.call(node, Call::Release { fh, flock_owner: None }).map(drop)
    }

    pub fn unlink(&mut self, node: usize, parent: u64, text: &str) -> Result<(), Errno> {
        self.call(node, Call::Unlink { parent, name: name(text) }).map(drop)
    }

    /// All names of a directory in their order, read in small pieces.
    pub fn list(&mut self, node: usize, ino: u64, plus: bool) -> Result<Vec<String>, Errno> {
        let fh = match self.call(node, Call::Opendir { ino })? {
            Answer::Opened { fh, .. } => fh,
            other => panic!("{other:?}"),
        };
        self.listed.clear();
        let mut names = Vec::new();
        let mut offset = 0;
        self.requests.clear();
        loop {
            let id = self.send(node, Call::Readdir { fh, offset, max_bytes: 4096, plus });
            let entries = match self.answer(node, id)? {
                Answer::Entries(entries) => entries,
                other => panic!("{other:?}"),
            };
            let Some(last) = entries.last() else { break };
            offset = last.offset;
            self.listed.extend(entries.iter().cloned());
            names.extend(entries.iter().map(|entry| String::from_utf8(entry.name.to_vec()).unwrap()));
        }
        let sent = self.requests.clone();
        self.call(node, Call::Releasedir { fh })?;
        self.requests = sent;
        Ok(names)
    }
}
