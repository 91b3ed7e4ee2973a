//! Verification of a store, to find damage that no read has met: walks the tree of records page by page, and checks page
//! headers, the links between pages, and the seal of every record.
//!
//! Pages are read with `read` and not through the map, so a page that the disk cannot read is an error and not a signal. A
//! read transaction keeps LMDB from reusing the pages of the walk, so a walk takes small steps and finds its place again by
//! key.
//!
//! It does not check the tree of unused pages, nor pages that no record needs. It cannot detect a page that is intact but
//! outdated (a write that the disk acknowledged and lost), unless its keys do not fit into the parent page.
//!
//! A page of LMDB's format version 1, little endian (as in `mdb.c` of 0.9, on a machine of this byte order):
//! ```text
//! 0 page number u64 | 8 u16 | 10 flags u16 | 12 lower u16, 14 upper u16 (or 12 count of overflow pages u32) | 16 pointers u16 ...
//! node: 0 size or child, low and high u16 | 4 flags (child: highest bits) u16 | 6 length of key u16 | 8 key, value
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use store::{KEY_LEN_MAX, Key, Value};

const HEADER: usize = 16;
const NODE: usize = 8;
const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const OVERFLOW: u16 = 0x04;
/// The mask of the flags for the kind of a page.
const KINDS: u16 = 0x6f;
/// Flag of a node: its value is on overflow pages.
const BIG: u16 = 0x01;
/// Higher than any tree.
const DEPTH_MAX: usize = 32;
/// Larger than any record, in bytes.
const VALUE_MAX: usize = 64 << 20;
/// The most findings of one step. A damaged page may have many records.
const FINDS_MAX: usize = 16;

/// The tree of records in the state of one transaction.
pub(crate) struct Tree<'a> {
    file: &'a File,
    page_size: usize,
    root: u64,
    last_page: u64,
}

/// The result of a step.
#[derive(Debug, Default)]
pub(crate) struct Step {
    /// Where the next step starts; `None`: the walk is over.
    pub(crate) next: Option<Key>,
    pub(crate) finds: Vec<String>,
}

/// What is wrong with a page.
#[derive(Debug, thiserror::Error)]
enum Wrong {
    #[error("it is deeper than any tree")]
    TooDeep,
    #[error("the file has pages 2 to {last}")]
    NoSuchPage { last: u64 },
    #[error("it cannot be read: {0}")]
    Unreadable(io::Error),
    #[error("it says that it is page {0}")]
    Number(u64),
    #[error("its header makes no sense")]
    Header,
    #[error("its entry {0} makes no sense")]
    Entry(usize),
    #[error("its keys are out of order")]
    Order,
    #[error("its keys belong elsewhere")]
    Place,
}

/// What is wrong with a value on pages of its own.
#[derive(Debug, thiserror::Error)]
enum WrongValue {
    #[error("page {first}: {what}")]
    Page { first: u64, what: Wrong },
    #[error("page {0} does not hold its value")]
    Other(u64),
    #[error("page {first} and those after it cannot be read: {error}")]
    Unreadable { first: u64, error: io::Error },
}

/// A node of a page, with checked bounds.
struct Node<'p> {
    key: &'p [u8],
    content: Content<'p>,
}

enum Content<'p> {
    Child(u64),
    Value(&'p [u8]),
    /// First overflow page and length of the value.
    Big(u64, usize),
}

/// The children of a branch page: lowest key and page number. The lowest key of the first is that of the branch.
type Children = Vec<(Vec<u8>, u64)>;

/// A page and the bounds that its parents give: its keys are from `low` on and below `end`.
struct Place<'k> {
    number: u64,
    low: &'k [u8],
    end: Option<&'k [u8]>,
}

/// A branch page on the way down.
struct Above {
    children: Children,
    at: usize,
    /// All keys of the page are below this.
    end: Option<Vec<u8>>,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Number of the transaction, root of the records and last page, from a meta page.
fn meta(page: &[u8]) -> Option<(u64, u64, u64)> {
    const META: usize = HEADER + 24;
    const DB: usize = 48;
    Some((u64_at(page, META + 2 * DB + 8)?, u64_at(page, META + DB + 40)?, u64_at(page, META + 2 * DB)?))
}

impl<'a> Tree<'a> {
    /// The tree as the transaction sees it; `None`: its meta page was overwritten, or there are no records.
    pub(crate) fn of(file: &'a File, page_size: usize, transaction: u64) -> Option<Tree<'a>> {
        let mut page = vec![0; page_size];
        (0..2).find_map(|number| {
            file.read_exact_at(&mut page, number * page_size as u64).ok()?;
            let (found, root, last_page) = meta(&page)?;
            (found == transaction && root != u64::MAX).then_some(Tree { file, page_size, root, last_page })
        })
    }

    /// Checks about `bytes` of pages and records, from a key on.
    pub(crate) fn verify(&self, from: &Key, bytes: usize) -> Step {
        let mut step = Step::default();
        let mut left = bytes;
        let root = Above { children: vec![(Vec::new(), self.root)], at: 0, end: None };
        let mut path = vec![root];
        // The first descent leads to `from`, later ones to the first child.
        let mut seeks = true;
        while let Some(above) = path.last_mut() {
            let Some((low, number)) = above.children.get(above.at).cloned() else {
                path.pop();
                if let Some(above) = path.last_mut() {
                    above.at += 1;
                }
                continue;
            };
            let end = above.children.get(above.at + 1).map(|(key, _)| key.clone()).or_else(|| above.end.clone());
            if left == 0 || step.finds.len() >= FINDS_MAX {
                step.next = Some(Key::new(&low));
                return step;
            }
            left = left.saturating_sub(self.page_size);
            let checked = if path.len() > DEPTH_MAX {
                Err(Wrong::TooDeep)
            } else {
                let place = Place { number, low: &low, end: end.as_deref() };
                self.page(number).and_then(|page| self.check_page(&page, &place, from, &mut step, &mut left))
            };
            match checked {
                Ok(Some(children)) => {
                    let at = match seeks {
                        true => {
                            children.partition_point(|(key, _)| key.as_slice() <= from.as_slice()).saturating_sub(1)
                        }
                        false => 0,
                    };
                    path.push(Above { children, at, end });
                    continue;
                }
                Ok(None) => {}
                Err(what) => {
                    let until = end.map_or("the last".to_owned(), |end| Key::new(&end).to_string());
                    step.finds.push(format!(
                        "page {number} is damaged ({what}): records from {} to {until} are lost",
                        Key::new(&low)
                    ));
                }
            }
            seeks = false;
            if let Some(above) = path.last_mut() {
                above.at += 1;
            }
        }
        step
    }

    /// Reads a page and checks its number.
    fn page(&self, number: u64) -> Result<Vec<u8>, Wrong> {
        if !(2..=self.last_page).contains(&number) {
            return Err(Wrong::NoSuchPage { last: self.last_page });
        }
        let mut page = vec![0; self.page_size];
        let read = self.file.read_exact_at(&mut page, number * self.page_size as u64);
        read.map_err(Wrong::Unreadable)?;
        match u64_at(&page, 0) {
            Some(own) if own == number => Ok(page),
            own => Err(Wrong::Number(own.unwrap_or_default())),
        }
    }

    /// Checks a page of the tree, and its records from `from` on. Returns its children, if it has any.
    fn check_page(
        &self,
        page: &[u8],
        place: &Place<'_>,
        from: &Key,
        step: &mut Step,
        left: &mut usize,
    ) -> Result<Option<Children>, Wrong> {
        let Place { number, low, end } = *place;
        let nodes = nodes(page)?;
        let fits = |key: &[u8]| key >= low && end.is_none_or(|end| key < end);
        let mut children = Vec::new();
        for (position, node) in nodes.iter().enumerate() {
            // LMDB ignores the first key of a branch page; the lowest key of the branch counts.
            let key = if position == 0 && matches!(node.content, Content::Child(_)) { low } else { node.key };
            if !fits(key) {
                return Err(Wrong::Place);
            }
            let value = match node.content {
                Content::Child(child) => {
                    children.push((key.to_vec(), child));
                    continue;
                }
                _ if key < from.as_slice() => continue,
                Content::Value(value) => Ok(Value::copy_from_slice(value)),
                Content::Big(first, length) => {
                    *left = left.saturating_sub(length);
                    self.big(first, length)
                }
            };
            let key = Key::new(key);
            let damage = match value {
                Ok(value) => store::open(&key, &value).err().map(|damaged| damaged.to_string()),
                Err(what) => Some(format!("record {key} is damaged ({what}): check the disk, then run lfsck")),
            };
            step.finds.extend(damage.map(|damage| format!("{damage} (page {number})")));
        }
        Ok((!children.is_empty()).then_some(children))
    }

    /// Reads a value from its overflow pages.
    fn big(&self, first: u64, length: usize) -> Result<Value, WrongValue> {
        let page = self.page(first).map_err(|what| WrongValue::Page { first, what })?;
        let pages = u32_at(&page, 12).unwrap_or_default() as usize;
        let is_one = u16_at(&page, 10).is_some_and(|flags| flags & KINDS == OVERFLOW);
        if !is_one || length > VALUE_MAX || pages != (HEADER + length).div_ceil(self.page_size) {
            return Err(WrongValue::Other(first));
        }
        let mut value = vec![0; length];
        let read = self.file.read_exact_at(&mut value, first * self.page_size as u64 + HEADER as u64);
        read.map_err(|error| WrongValue::Unreadable { first, error })?;
        Ok(value.into())
    }
}

/// The nodes of a page of the tree, with bounds and order of keys checked.
fn nodes(page: &[u8]) -> Result<Vec<Node<'_>>, Wrong> {
    let flags = u16_at(page, 10).ok_or(Wrong::Header)? & KINDS;
    let lower = usize::from(u16_at(page, 12).ok_or(Wrong::Header)?);
    let upper = usize::from(u16_at(page, 14).ok_or(Wrong::Header)?);
    let is_branch = flags == BRANCH;
    if !is_branch && flags != LEAF || lower <= HEADER || lower % 2 != 0 || lower > upper || upper > page.len() {
        return Err(Wrong::Header);
    }
    let mut nodes: Vec<Node<'_>> = Vec::with_capacity((lower - HEADER) / 2);
    for at in (HEADER..lower).step_by(2) {
        let place = usize::from(u16_at(page, at).ok_or(Wrong::Header)?);
        let node = node(page, place, is_branch).filter(|_| place >= upper);
        let node = node.ok_or(Wrong::Entry((at - HEADER) / 2))?;
        let follows = match nodes.len() {
            0 => true,
            1 if is_branch => true,
            _ => nodes.last().is_some_and(|last| last.key < node.key),
        };
        if !follows {
            return Err(Wrong::Order);
        }
        nodes.push(node);
    }
    Ok(nodes)
}

fn node(page: &[u8], place: usize, is_branch: bool) -> Option<Node<'_>> {
    let header = page.get(place..place + NODE)?;
    let (low, flags) = (u32_at(header, 0)?, u16_at(header, 4)?);
    let key_length = usize::from(u16_at(header, 6)?);
    let key = page.get(place + NODE..place + NODE + key_length)?;
    if key_length > KEY_LEN_MAX {
        return None;
    }
    if is_branch {
        return Some(Node { key, content: Content::Child(u64::from(low) | u64::from(flags) << 32) });
    }
    let rest = page.get(place + NODE + key_length..)?;
    let content = match flags {
        0 => Content::Value(rest.get(..low as usize)?),
        BIG => Content::Big(u64_at(rest, 0)?, low as usize),
        _ => return None,
    };
    (!key.is_empty()).then_some(Node { key, content })
}
