//! A worker that is a client of its own: makes empty files through the client library, without a mount, by several threads.
//!
//! The client stays when a task is done: what it caches is held, as a mount would hold it, until the worker ends.

use core::ops::Range;
use std::ffi::CString;
use std::io;
use std::sync::Arc;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::mdtest::files::Files;
use crate::mdtest::native::{Client, Native};
use crate::mdtest::options::Place;

/// The file system that a worker is a client of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Share {
    /// Where its MGS is.
    pub mgs: String,
    /// Its name.
    pub fsname: String,
    /// Programs at work on this client.
    pub threads: u64,
}

/// The client of a worker.
#[derive(Default)]
pub struct Filler {
    client: Option<Arc<Client>>,
}

impl Filler {
    fn client(&mut self, share: &Share) -> anyhow::Result<Arc<Client>> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let mgs = vec![share.mgs.parse().ok().with_context(|| format!("'{}' is no NID", share.mgs))?];
        let place = Place::Native { mgs, fsname: share.fsname.clone(), folder: String::new() };
        match Client::start(&place) {
            Ok(client) => Ok(self.client.insert(client).clone()),
            Err(reason) => bail!("{reason}"),
        }
    }

    /// Makes `count` empty files `PREFIXn` in a directory, its path from the root; gives how many were made before an error.
    ///
    /// # Errors
    /// There is no client.
    pub fn fill(
        &mut self,
        share: &Share,
        folder: &str,
        prefix: &str,
        count: u64,
    ) -> anyhow::Result<(u64, Option<io::Error>)> {
        let client = self.client(share)?;
        let threads = share.threads.clamp(1, 64);
        let part = move |at: u64| (count * at / threads)..(count * (at + 1) / threads);
        let work = &|range: Range<u64>| {
            let mut native = Native::new(client.clone());
            for n in range.clone() {
                let path = CString::new(format!("{folder}/{prefix}{n}")).map_err(io::Error::from);
                if let Err(error) = path.and_then(|path| native.create(&path, &[], false)) {
                    return (n - range.start, Some(error));
                }
            }
            (range.end - range.start, None)
        };
        let results: Vec<(u64, Option<io::Error>)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|at| scope.spawn(move || work(part(at)))).collect();
            let failed = |_| (0, Some(io::Error::other("a thread of the worker failed")));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(failed)).collect()
        });
        let made = results.iter().map(|(done, _)| done).sum();
        Ok((made, results.into_iter().find_map(|(_, error)| error)))
    }
}
