//! linkEA: the names of an object, kept with the object.

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

/// The names of an object, as far as they fit. A directory has exactly one, and its parent there is its `..`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LinkEa {
    /// The names.
    #[prost(message, repeated, tag = "1")]
    pub links: Vec<Link>,
    /// There are, or were, more names than fitted.
    #[prost(bool, tag = "2")]
    pub overflow: bool,
}

impl LinkEa {
    /// Most bytes, counted as Lustre counts: 18 for each name and its bytes, 24 for the whole.
    pub const SIZE_MAX: usize = 4096;

    /// One name.
    pub fn one(parent: Fid, name: Bytes) -> LinkEa {
        LinkEa { links: vec![Link { parent, name }], overflow: false }
    }

    fn size(&self) -> usize {
        24 + self.links.iter().map(|link| 18 + link.name.len()).sum::<usize>()
    }

    /// A further name; if it does not fit, only the overflow is noted.
    pub fn add(&mut self, parent: Fid, name: Bytes) {
        if self.size() + 18 + name.len() > Self::SIZE_MAX {
            self.overflow = true;
            return;
        }
        self.links.push(Link { parent, name });
    }

    /// A name less. One that is not there must be one that did not fit.
    pub fn remove(&mut self, parent: Fid, name: &[u8]) {
        if let Some(at) = self.position(parent, name) {
            self.links.remove(at);
        }
    }

    /// Whether the name is noted.
    pub fn contains(&self, parent: Fid, name: &[u8]) -> bool {
        self.position(parent, name).is_some()
    }

    fn position(&self, parent: Fid, name: &[u8]) -> Option<usize> {
        self.links.iter().position(|link| link.parent == parent && link.name == name)
    }

    /// Bytes are bounded when they are read, too.
    pub fn check(&self) -> Result<(), BadRecord> {
        if self.size() > Self::SIZE_MAX + 300 {
            return Err(BadRecord { kind: "linkEA", what: format!("{} bytes", self.size()) });
        }
        Ok(())
    }
}
