//! linkEA: the names of an object, stored in its inode.

use crate::record::BadRecord;
use bytes::Bytes;
use prost::Message;
use proto::Fid;

/// One name of an object.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Link {
    /// The directory.
    #[prost(message, required, tag = "1")]
    pub parent: Fid,
    /// The name in it.
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
}

/// The names of an object, as far as they fit. A directory has exactly one, whose parent is its `..`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LinkEa {
    /// The names.
    #[prost(message, repeated, tag = "1")]
    pub links: Vec<Link>,
    /// There are, or were, more names than fit.
    #[prost(bool, tag = "2")]
    pub overflow: bool,
}

impl LinkEa {
    /// The most bytes, counted as in Lustre: 24 for the whole, and 18 for each name beside its own bytes.
    pub const SIZE_MAX: usize = 4096;

    /// A linkEA with one name.
    pub fn one(parent: Fid, name: Bytes) -> LinkEa {
        LinkEa { links: vec![Link { parent, name }], overflow: false }
    }

    fn size(&self) -> usize {
        24 + self.links.iter().map(|link| 18 + link.name.len()).sum::<usize>()
    }

    /// Adds a name. If it does not fit, only the overflow is recorded.
    pub fn add(&mut self, parent: Fid, name: Bytes) {
        if self.size() + 18 + name.len() > Self::SIZE_MAX {
            self.overflow = true;
            return;
        }
        self.links.push(Link { parent, name });
    }

    /// Removes a name. A name that is not found is one that did not fit.
    pub fn remove(&mut self, parent: Fid, name: &[u8]) {
        if let Some(at) = self.position(parent, name) {
            self.links.remove(at);
        }
    }

    /// Whether the name is recorded.
    pub fn contains(&self, parent: Fid, name: &[u8]) -> bool {
        self.position(parent, name).is_some()
    }

    fn position(&self, parent: Fid, name: &[u8]) -> Option<usize> {
        self.links.iter().position(|link| link.parent == parent && link.name == name)
    }

    /// Checks the size of a linkEA that was read from the medium.
    pub fn check(&self) -> Result<(), BadRecord> {
        if self.size() > Self::SIZE_MAX + 300 {
            return Err(BadRecord { kind: "linkEA", what: format!("{} bytes", self.size()) });
        }
        Ok(())
    }
}
