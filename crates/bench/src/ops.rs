//! The operations of a worker that is a client of its own, each as the calls that it consists of.
//!
//! ```text
//! Read    Lookup ──► Entry    Open ──► Opened    Read ──► Data    done; Release and Forget follow, and nobody waits for them
//! ```

use std::time::Instant;

use bytes::Bytes;
use client::api::{Answer, Call, FileHandle, NewDir};
use proto::Errno;
use serde::{Deserialize, Serialize};

/// An operation on a name in a directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// `open(O_CREAT | O_EXCL)`, write, close.
    Create {
        /// Bytes of the file.
        size: u32,
    },
    /// Looks the name up, which gives the attributes.
    Stat,
    /// Looks the name up, opens the file, reads it whole, closes it.
    Read {
        /// Bytes of the file.
        size: u32,
    },
    /// `unlink`.
    Remove,
    /// `mkdir`.
    MakeDirectory {
        /// The index of the metadata target; `None`: that of the directory above, unless its default says otherwise.
        mdt: Option<u32>,
    },
    /// `rmdir`.
    RemoveDirectory,
    /// `mkdir` on a metadata target and `rmdir`: two changes.
    MakeAndRemoveDirectory {
        /// The index of the metadata target.
        mdt: u32,
    },
    /// `link` to the same name in another directory.
    Link {
        /// The directory, by its path from the root.
        to: String,
    },
    /// `rename` to the same name in another directory.
    Rename {
        /// The directory, by its path from the root.
        to: String,
    },
}

impl Op {
    /// The second directory of the operation, by its path from the root.
    pub fn to(&self) -> Option<&str> {
        match self {
            Op::Link { to } | Op::Rename { to } => Some(to),
            _ => None,
        }
    }
}

/// O_CREAT | O_EXCL | O_WRONLY on Linux.
const CREATE_NEW: u32 = 0o301;
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

/// The directories of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Directories {
    /// The directory of the name.
    pub(crate) parent: u64,
    /// The second directory, if there is one.
    pub(crate) to: u64,
}

/// An operation in flight.
#[derive(Debug)]
pub(crate) struct InFlight {
    /// When it began.
    pub(crate) begun: Instant,
    name: Bytes,
    /// The file, once it is known.
    ino: u64,
    open: Option<FileHandle>,
}

/// What follows an answer.
#[derive(Debug)]
pub(crate) enum Next {
    /// The next call of the operation.
    Call(Call, InFlight),
    /// The operation is done; these calls follow it, and nobody waits for their answers.
    Done(Vec<Call>, InFlight),
}

impl Op {
    /// Begins the operation on a name.
    pub(crate) fn begin(&self, at: Directories, name: Bytes) -> (Call, InFlight) {
        let parent = at.parent;
        let item = InFlight { begun: Instant::now(), name: name.clone(), ino: 0, open: None };
        let on = |mdt: u32| Call::MkdirOn {
            parent,
            name: name.clone(),
            mode: DIRECTORY_MODE,
            wish: NewDir { mdts: vec![mdt], hash: 0 },
        };
        let call = match self {
            Op::Create { .. } => Call::Create { parent, name, mode: FILE_MODE, flags: CREATE_NEW },
            Op::Stat | Op::Read { .. } | Op::Link { .. } => Call::Lookup { parent, name },
            Op::Remove => Call::Unlink { parent, name },
            Op::MakeDirectory { mdt: None } => Call::Mkdir { parent, name, mode: DIRECTORY_MODE },
            Op::MakeDirectory { mdt: Some(mdt) } | Op::MakeAndRemoveDirectory { mdt } => on(*mdt),
            Op::RemoveDirectory => Call::Rmdir { parent, name },
            Op::Rename { .. } => Call::Rename { parent, new_parent: at.to, new_name: name.clone(), name, flags: 0 },
        };
        (call, item)
    }

    /// Goes on after an answer. `data` is written to files.
    ///
    /// # Errors
    /// `EIO`: the answer does not fit the call, or a file is shorter than it should be.
    pub(crate) fn go_on(
        &self,
        at: Directories,
        mut item: InFlight,
        answer: Answer,
        data: &Bytes,
    ) -> Result<Next, Errno> {
        let next = match (self, answer) {
            (Op::Create { .. }, Answer::Created { stat, fh, .. }) => {
                (item.ino, item.open) = (stat.ino, Some(fh));
                if data.is_empty() {
                    return Ok(item.done(1));
                }
                Call::Write { fh, ino: stat.ino, offset: 0, data: data.clone(), write_back: false, kill_priv: false }
            }
            (Op::Create { .. }, Answer::Written(_)) => return Ok(item.done(1)),
            (Op::Stat | Op::MakeDirectory { .. }, Answer::Entry(stat)) => {
                item.ino = stat.ino;
                return Ok(item.done(1));
            }
            (Op::Read { .. }, Answer::Entry(stat)) => {
                item.ino = stat.ino;
                Call::Open { ino: stat.ino, flags: 0 }
            }
            (Op::Read { size }, Answer::Opened { fh, .. }) => {
                item.open = Some(fh);
                Call::Read { fh, offset: 0, length: *size }
            }
            (Op::Read { size }, Answer::Data(data)) if data.len() == *size as usize => return Ok(item.done(1)),
            (Op::Link { .. }, Answer::Entry(_)) if item.ino != 0 => return Ok(item.done(2)),
            (Op::Link { .. }, Answer::Entry(stat)) => {
                item.ino = stat.ino;
                Call::Link { ino: stat.ino, new_parent: at.to, new_name: item.name.clone() }
            }
            (Op::MakeAndRemoveDirectory { .. }, Answer::Fid(_)) => {
                Call::Rmdir { parent: at.parent, name: item.name.clone() }
            }
            (Op::MakeDirectory { .. }, Answer::Fid(_))
            | (
                Op::Remove | Op::RemoveDirectory | Op::Rename { .. } | Op::MakeAndRemoveDirectory { .. },
                Answer::Done,
            ) => return Ok(item.done(0)),
            _ => return Err(Errno::EIO),
        };
        Ok(Next::Call(next, item))
    }

    /// How many changes or reads of the file system the operation stands for.
    pub(crate) fn weight(&self) -> u64 {
        if matches!(self, Op::MakeAndRemoveDirectory { .. }) { 2 } else { 1 }
    }
}

impl InFlight {
    /// Closes the file if it is open, and drops the references to the node.
    fn done(self, references: u64) -> Next {
        let close = self.open.map(|fh| Call::Release { fh, flock_owner: None });
        let forget = (references > 0).then_some(Call::Forget { ino: self.ino, count: references });
        Next::Done(close.into_iter().chain(forget).collect(), self)
    }
}

#[cfg(test)]
mod tests {
    use client::api::Stat;

    use super::*;

    const AT: Directories = Directories { parent: 1, to: 2 };

    /// The names of the calls of an operation that gets these answers.
    fn calls(op: &Op, data: &[u8], answers: Vec<Answer>) -> Result<Vec<String>, Errno> {
        let word = |call: &Call| format!("{call:?}").split([' ', '{', '(']).next().unwrap_or_default().to_owned();
        let data = Bytes::copy_from_slice(data);
        let (call, mut item) = op.begin(AT, Bytes::from_static(b"f"));
        let mut found = vec![word(&call)];
        for answer in answers {
            match op.go_on(AT, item, answer, &data)? {
                Next::Call(call, then) => {
                    found.push(word(&call));
                    item = then;
                }
                Next::Done(after, _) => {
                    found.push("done".to_owned());
                    found.extend(after.iter().map(word));
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }

    #[test]
    fn each_operation_is_a_chain_of_calls() {
        let stat = || Stat { ino: 7, ..Stat::default() };
        let fh = FileHandle(3);
        let created = || Answer::Created { stat: stat(), fh, direct_io: false, no_flush: true };
        let opened = Answer::Opened { fh, keep_cache: false, direct_io: false, no_flush: true };
        let entry = || Answer::Entry(stat());
        let fid = || Answer::Fid(proto::Fid::ROOT);
        let words = |text: &str| -> Result<Vec<String>, Errno> { Ok(text.split(' ').map(str::to_owned).collect()) };
        let to = || "d".to_owned();
        for (op, data, answers, chain) in [
            (Op::Create { size: 0 }, &b""[..], vec![created()], "Create done Release Forget"),
            (Op::Create { size: 2 }, b"xx", vec![created(), Answer::Written(2)], "Create Write done Release Forget"),
            (Op::Stat, b"", vec![entry()], "Lookup done Forget"),
            (
                Op::Read { size: 2 },
                b"",
                vec![entry(), opened, Answer::Data(Bytes::from_static(b"xx"))],
                "Lookup Open Read done Release Forget",
            ),
            (Op::Remove, b"", vec![Answer::Done], "Unlink done"),
            (Op::MakeDirectory { mdt: None }, b"", vec![entry()], "Mkdir done Forget"),
            (Op::MakeDirectory { mdt: Some(1) }, b"", vec![fid()], "MkdirOn done"),
            (Op::MakeAndRemoveDirectory { mdt: 1 }, b"", vec![fid(), Answer::Done], "MkdirOn Rmdir done"),
            (Op::Link { to: to() }, b"", vec![entry(), entry()], "Lookup Link done Forget"),
            (Op::Rename { to: to() }, b"", vec![Answer::Done], "Rename done"),
        ] {
            assert_eq!(calls(&op, data, answers), words(chain), "{op:?}");
        }
    }

    #[test]
    fn a_short_read_is_an_error() {
        let short = vec![Answer::Data(Bytes::from_static(b"x"))];
        assert_eq!(calls(&Op::Read { size: 2 }, b"", short), Err(Errno::EIO));
        assert_eq!(calls(&Op::Remove, b"", vec![Answer::Index(1)]), Err(Errno::EIO));
    }
}
