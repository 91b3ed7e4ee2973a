//! The inconsistencies that the checks can find.

use core::fmt;
use proto::Fid;
use schema::{BadRecord, CrossKey};
use store::Key;

/// An inconsistency: what was found, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Inconsistency {
    /// A record that cannot be decoded.
    BadRecord { key: Key, bad: BadRecord },
    /// A record that every target must have is missing.
    Missing { what: &'static str },
    /// The object index leads to no inode, or to one with another FID.
    WrongIndex { fid: Fid, ino: u64, found: Option<Fid> },
    /// An inode that the object index does not lead to.
    NotIndexed { fid: Fid, ino: u64 },
    /// An inode whose mode has no valid type.
    WrongType { fid: Fid, mode: u32 },
    /// A FID whose sequence was not granted, or that does not count as used.
    UnusedFid { fid: Fid },
    /// An object on a target that does not have its sequence, or on a second one.
    WrongTarget { fid: Fid, mdt: Option<u32> },
    /// A record of a change of several metadata targets: it is not completed on all of them.
    CrossLeft { mdt: Option<u32>, key: CrossKey, done: bool },
    /// A metadata target whose keys for the hashes of names are not those of another.
    OtherKeys { mdt: Option<u32>, than: Option<u32> },
    /// A sequence that was granted and can be granted again.
    SequenceTwice { seq: u64 },
    /// A number in use that can be allocated again.
    NumberAgain { what: &'static str, next: u64, used: u64 },
    /// An entry whose directory does not exist or is no directory.
    EntryNowhere { dir: u64, name: String },
    /// An entry whose cookie does not match its name, or whose chain has a hole before it.
    EntryMisplaced { dir: Fid, name: String, cookie: u64 },
    /// Two entries with the same name.
    NameTwice { dir: Fid, name: String },
    /// An entry that leads to no object.
    Dangling { dir: Fid, name: String, fid: Fid },
    /// An entry that leads to an object on another target than it says.
    EntryTarget { dir: Fid, name: String, entry: Option<u32>, object: Option<u32> },
    /// An entry with another type than its object.
    EntryType { dir: Fid, name: String, entry: u32, object: u32 },
    /// A name that the object's linkEA does not have.
    LinkMissing { dir: Fid, name: String, fid: Fid },
    /// A name in an object's linkEA that does not lead to it.
    LinkStale { fid: Fid, dir: Fid, name: String },
    /// A link count that is not the number of names, or for a directory of subdirectories plus two.
    WrongLinks { fid: Fid, stored: u32, counted: u64 },
    /// A directory with two names, or whose linkEA is not exactly its one name.
    DirectoryNames { fid: Fid, names: u64, links: usize },
    /// An object without a name that is no orphan.
    Nameless { fid: Fid },
    /// An orphan record whose object has names or does not exist.
    FalseOrphan { fid: Fid },
    /// A directory with a wrong count of entries or tombstones.
    WrongCount { fid: Fid, what: &'static str, stored: u64, counted: u64 },
    /// A directory that is not reachable from the root.
    Adrift { fid: Fid },
    /// A stripe of a directory that does not fit to its master, or a master that lists one that is not there.
    WrongStripe { fid: Fid, master: Fid, what: &'static str },
    /// A name in another stripe of its directory than the one that its hash gives.
    NameAstray { dir: Fid, name: String, index: u32, wanted: u32 },
    /// Data of a resident file that does not match its inode.
    WrongData { fid: Fid, bytes: Option<u64>, size: u64, blocks: u64 },
    /// Data without a resident file.
    DataNowhere { ino: u64 },
    /// A large attribute that its inode does not list, or that an inode lists and that has no record.
    WrongXattr { ino: u64, name: String },
    /// The destroy log has objects that the layout of an existing file names.
    DestroyOfLiving { fid: Fid },
    /// An object that no file's layout has and that is not about to be destroyed.
    OrphanObject { ost: u32, fid: Fid, stripe: u32 },
    /// A data file that two objects have, that is doomed, or that was never allocated.
    WrongFile { ost: u32, file: u64, fid: Fid },
    /// An object that is marked as written with this data file, and whose record is missing or has another one.
    LostObject { ost: u32, fid: Fid, stripe: u32, file: u64 },
    /// An object that has a data file and is not marked as written.
    UnmarkedObject { ost: u32, fid: Fid, stripe: u32 },
}

impl fmt::Display for Inconsistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Inconsistency::*;
        match self {
            BadRecord { key, bad } => write!(f, "record {key}: {bad}"),
            Missing { what } => write!(f, "there is no {what}"),
            WrongIndex { fid, ino, found: Some(found) } => {
                write!(f, "index: {fid} leads to inode {ino}, which is {found}")
            }
            WrongIndex { fid, ino, found: None } => write!(f, "index: {fid} leads to inode {ino}, which is not there"),
            NotIndexed { fid, ino } => write!(f, "inode {ino} is {fid}, which the index does not lead to"),
            WrongType { fid, mode } => write!(f, "{fid} has mode {mode:o}, which is no type"),
            UnusedFid { fid } => write!(f, "{fid} exists, but does not count as used"),
            WrongTarget { fid, mdt } => write!(f, "{fid} is on {}, where it does not belong", target(*mdt)),
            CrossLeft { mdt, key, done } => {
                let CrossKey { participant, mdt: coordinator, instance, serial } = key;
                let role = if *participant { "participant" } else { "coordinator" };
                let state = if *done { "done" } else { "not done" };
                let coordinator = target(Some(*coordinator));
                write!(f, "{} has a record as {role} of cross change {coordinator} ", target(*mdt))?;
                write!(f, "{instance:016x} {serial}, {state}")
            }
            OtherKeys { mdt, than } => {
                write!(f, "the keys of names of {} are not those of {}", target(*mdt), target(*than))
            }
            SequenceTwice { seq } => write!(f, "sequence 0x{seq:x} was granted and can be granted again"),
            NumberAgain { what, next, used } => write!(f, "{what}: {next} is next, but {used} is in use"),
            EntryNowhere { dir, name } => write!(f, "entry '{name}' is in inode {dir}, which is no directory"),
            EntryMisplaced { dir, name, cookie } => {
                write!(f, "{dir}/{name} lies at 0x{cookie:x}, where no lookup finds it")
            }
            NameTwice { dir, name } => write!(f, "{dir}/{name} is there twice"),
            Dangling { dir, name, fid } => write!(f, "{dir}/{name} leads to {fid}, which is not there"),
            EntryTarget { dir, name, entry: None, object } => {
                write!(f, "{dir}/{name} does not say that its object is on {}", target(*object))
            }
            EntryTarget { dir, name, entry, object } => {
                write!(f, "{dir}/{name} says that its object is on {}, it is on {}", target(*entry), target(*object))
            }
            EntryType { dir, name, entry, object } => write!(f, "{dir}/{name} has type {entry}, its object {object}"),
            LinkMissing { dir, name, fid } => write!(f, "{dir}/{name} leads to {fid}, whose linkEA does not know it"),
            LinkStale { fid, dir, name } => write!(f, "linkEA of {fid} has {dir}/{name}, which does not lead to it"),
            WrongLinks { fid, stored, counted } => write!(f, "{fid} has link count {stored}, {counted} were counted"),
            DirectoryNames { fid, names, links } => {
                write!(f, "directory {fid} has {names} names and {links} in its linkEA")
            }
            Nameless { fid } => write!(f, "{fid} has no name and is no orphan"),
            FalseOrphan { fid } => write!(f, "{fid} is said to be an orphan"),
            WrongCount { fid, what, stored, counted } => write!(f, "{fid} counts {stored} {what}, there are {counted}"),
            Adrift { fid } => write!(f, "directory {fid} does not hang on the root"),
            WrongStripe { fid, master, what } => write!(f, "stripe {fid} of directory {master}: {what}"),
            NameAstray { dir, name, index, wanted } => {
                write!(f, "{dir}/{name} is in stripe {index} of its directory, it belongs to stripe {wanted}")
            }
            WrongData { fid, bytes: Some(bytes), size, blocks } => {
                write!(f, "{fid} has {bytes} bytes of data, but size {size} and {blocks} blocks")
            }
            WrongData { fid, bytes: None, size, blocks } => {
                write!(f, "{fid} has no data record, but size {size} and {blocks} blocks")
            }
            DataNowhere { ino } => write!(f, "data of inode {ino}, which is no resident file"),
            WrongXattr { ino, name } => write!(f, "attribute '{name}' of inode {ino}: list and value do not fit"),
            DestroyOfLiving { fid } => write!(f, "the destroy log has {fid}, which exists"),
            OrphanObject { ost, fid, stripe } => {
                write!(f, "OST{ost:04x} has object {fid} stripe {stripe}, which belongs to no file")
            }
            LostObject { ost, fid, stripe, file } => {
                write!(f, "OST{ost:04x} lost the record of {fid} stripe {stripe}, whose data file is {file}")
            }
            UnmarkedObject { ost, fid, stripe } => {
                write!(f, "OST{ost:04x}: {fid} stripe {stripe} is not marked as written")
            }
            WrongFile { ost, file, fid } => write!(f, "OST{ost:04x}: data file {file} of {fid} is not its own"),
        }
    }
}

/// A metadata target for messages.
fn target(mdt: Option<u32>) -> String {
    mdt.map_or("a target without a name".to_owned(), |mdt| format!("MDT{mdt:04x}"))
}

/// A name for messages.
pub(crate) fn text(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}
