//! The directories in which the load inside metadata targets works. They may lie on several targets, so they are made,
//! found and removed by a client.

use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use client::api::{Answer, Call, NewDir};
use host::survey::Folder;
use proto::msg::Stripe;
use proto::{Errno, Fid, Nid, TargetKind, TargetName};

use crate::mdtest::native::{Client, Manner, Native};
use crate::mdtest::options::Place;

/// A directory to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Its path from the root of the file system.
    pub path: String,
    /// The metadata targets of its stripes, by index; the first has the directory itself.
    pub mdts: Vec<u32>,
    /// An empty directory of that name is replaced.
    pub replaces: bool,
}

/// Where a directory lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Site {
    /// The function that assigns names to stripes, a [`proto::msg::DirHash`].
    pub hash: i32,
    /// Its stripes, in order; one: it is not striped.
    pub stripes: Vec<Stripe>,
}

impl Site {
    /// The first stripe on a metadata target, if there is one.
    pub fn on(&self, mdt: u32) -> Option<Folder> {
        let at = self.stripes.iter().position(|stripe| stripe.mdt == mdt)?;
        Some(Folder::new(self.stripes[at].fid, self.hash, self.stripes.len() as u32, at as u32))
    }
}

/// Makes, finds and removes directories of file systems.
pub trait Folders {
    /// Makes directories, in order.
    ///
    /// # Errors
    /// The first that could not be made, and why.
    fn make(&self, fsname: &str, wanted: &[Wanted]) -> anyhow::Result<Vec<Site>>;

    /// Finds directories by their paths.
    ///
    /// # Errors
    /// The first that was not found, and why.
    fn find(&self, fsname: &str, paths: &[String]) -> anyhow::Result<Vec<Site>>;

    /// Removes all of these directories that it can. One that does not exist is no error if `all` is false.
    ///
    /// # Errors
    /// The first that could not be removed, and why.
    fn remove(&self, fsname: &str, paths: &[String], all: bool) -> anyhow::Result<()>;

    /// The indexes of the metadata targets of a file system, ascending.
    ///
    /// # Errors
    /// The file system cannot be reached.
    fn mdts(&self, fsname: &str) -> anyhow::Result<Vec<u32>>;
}

/// [`Folders`] by a client, which exists only during a call.
pub struct ByClient<'a> {
    /// The addresses of the MGS of a file system.
    pub mgs: &'a dyn Fn(&str) -> anyhow::Result<Vec<Nid>>,
}

impl Folders for ByClient<'_> {
    fn make(&self, fsname: &str, wanted: &[Wanted]) -> anyhow::Result<Vec<Site>> {
        let mut session = self.session(fsname)?;
        wanted.iter().map(|wanted| session.make(wanted)).collect()
    }

    fn find(&self, fsname: &str, paths: &[String]) -> anyhow::Result<Vec<Site>> {
        let mut session = self.session(fsname)?;
        paths.iter().map(|path| session.site(path)).collect()
    }

    fn remove(&self, fsname: &str, paths: &[String], all: bool) -> anyhow::Result<()> {
        let mut session = self.session(fsname)?;
        let mut result = Ok(());
        for path in paths {
            match session.remove(path) {
                Ok(()) => {}
                Err(Errno::ENOENT) if !all => {}
                Err(errno) => result = result.and(Err(anyhow!("cannot remove the directory '{path}': {errno}"))),
            }
        }
        result
    }

    fn mdts(&self, fsname: &str) -> anyhow::Result<Vec<u32>> {
        let session = self.session(fsname)?;
        let Answer::Targets(targets) = session.call(Call::TargetSpace).map_err(|errno| anyhow!("{errno}"))? else {
            bail!("the metadata targets of '{fsname}' are not known");
        };
        let names = targets.iter().filter_map(|(name, _)| name.parse::<TargetName>().ok());
        let mut mdts: Vec<u32> = names.filter(|name| name.kind == TargetKind::Mdt).map(|name| name.index.0).collect();
        mdts.sort_unstable();
        Ok(mdts)
    }
}

impl ByClient<'_> {
    /// Removes the default layout of the root.
    ///
    /// # Errors
    /// The file system cannot be reached, or refuses.
    pub fn remove_root_default(&self, fsname: &str) -> anyhow::Result<()> {
        let call = Call::SetDirDefault { ino: Fid::ROOT.ino(), default: None };
        let removed = self.session(fsname)?.call(call);
        removed.map(drop).map_err(|errno| anyhow!("cannot remove the default layout of the root: {errno}"))
    }

    fn session(&self, fsname: &str) -> anyhow::Result<Session> {
        let place = Place::Native { mgs: (self.mgs)(fsname)?, fsname: fsname.to_owned(), folder: String::new() };
        // A directory that only its client knows would not be found by the load.
        let manner = Manner { sync_metadata: true, ..Manner::default() };
        let client = Client::start(&place, manner).with_context(|| format!("cannot use the file system '{fsname}'"))?;
        Ok(Session { native: Native::new(client.clone()), client })
    }
}

struct Session {
    // Dropped before the client.
    native: Native,
    client: Arc<Client>,
}

impl Session {
    fn call(&self, call: Call) -> Result<Answer, Errno> {
        self.client.mount().call(self.native.cred(), call)
    }

    /// The directory above, and the last name of a path.
    fn above(&mut self, path: &str) -> Result<(u64, Bytes), Errno> {
        let (above, name) = split(path).ok_or(Errno::EINVAL)?;
        let above = self.native.directory(above.as_bytes());
        let parent = above.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO.raw())))?;
        Ok((parent, Bytes::copy_from_slice(name.as_bytes())))
    }

    fn make(&mut self, wanted: &Wanted) -> anyhow::Result<Site> {
        let mut made = self.try_make(wanted);
        if wanted.replaces && made == Err(Errno::EEXIST) {
            made = self.remove(&wanted.path).and_then(|()| self.try_make(wanted));
        }
        made.map_err(|errno| {
            let mdts: Vec<String> = wanted.mdts.iter().map(|mdt| format!("MDT{mdt:04x}")).collect();
            let hint = match errno {
                Errno::ENODEV => "; see: lfs mdts",
                Errno::ENOTEMPTY => {
                    "; a survey that was killed may have left files, which its servers begin to remove after a minute"
                }
                Errno::EPERM => "; mdt.*.enable_remote_dir or enable_striped_dir may be 0, or the user not be root",
                _ => "",
            };
            anyhow!("cannot make the directory '{}' on {}: {errno}{hint}", wanted.path, mdts.join(", "))
        })?;
        self.site(&wanted.path)
    }

    fn try_make(&mut self, wanted: &Wanted) -> Result<(), Errno> {
        let (parent, name) = self.above(&wanted.path)?;
        let wish = NewDir { mdts: wanted.mdts.clone(), hash: 0 };
        self.call(Call::MkdirOn { parent, name, mode: 0o755, wish }).map(drop)
    }

    fn remove(&mut self, path: &str) -> Result<(), Errno> {
        let (parent, name) = self.above(path)?;
        self.call(Call::Rmdir { parent, name }).map(drop)
    }

    fn site(&mut self, path: &str) -> anyhow::Result<Site> {
        let found = self.try_site(path);
        found.map_err(|errno| match errno {
            Errno::ENOENT => anyhow!("there is no directory '{path}'; make it first, as with: lctl test_mkdir"),
            errno => anyhow!("cannot use the directory '{path}': {errno}"),
        })
    }

    fn try_site(&mut self, path: &str) -> Result<Site, Errno> {
        let ino = match self.above(path) {
            Ok((parent, name)) => match self.call(Call::Lookup { parent, name })? {
                Answer::Entry(stat) => stat.ino,
                _ => return Err(Errno::EPROTO),
            },
            // The root has no name.
            Err(Errno::EINVAL) => Fid::ROOT.ino(),
            Err(errno) => return Err(errno),
        };
        if let Answer::DirLayout(Some(lmv)) = self.call(Call::GetDirLayout { ino })? {
            return Ok(Site { hash: lmv.hash, stripes: lmv.stripes });
        }
        match (self.call(Call::PathToFid { ino })?, self.call(Call::MdtIndex { ino })?) {
            (Answer::Fid(fid), Answer::Index(mdt)) => Ok(Site { hash: 0, stripes: vec![Stripe { fid, mdt }] }),
            _ => Err(Errno::EPROTO),
        }
    }
}

/// The path of the directory above, without slashes at its ends, and the last name; `None` for the root.
fn split(path: &str) -> Option<(&str, &str)> {
    let path = path.trim_matches('/');
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    (!name.is_empty()).then(|| (above.trim_end_matches('/'), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_a_last_name_unless_it_is_the_root() {
        for (path, parts) in [
            ("/d0", Some(("", "d0"))),
            ("d0/", Some(("", "d0"))),
            ("/a/b/c", Some(("a/b", "c"))),
            ("a//c", Some(("a", "c"))),
            ("/", None),
            ("", None),
        ] {
            assert_eq!(split(path), parts, "{path}");
        }
    }

    #[test]
    fn a_target_has_one_stripe_of_a_directory_or_none() {
        let stripe = |number, mdt| Stripe { fid: Fid::new(Fid::SEQ_FIRST, number), mdt };
        let site = Site { hash: 2, stripes: vec![stripe(1, 0), stripe(2, 3), stripe(3, 0)] };
        assert_eq!(site.on(3), Some(Folder::new(Fid::new(Fid::SEQ_FIRST, 2), 2, 3, 1)));
        assert_eq!(site.on(0).map(|folder| folder.stripe), Some(0), "the first of two");
        assert_eq!(site.on(1), None);
    }
}
