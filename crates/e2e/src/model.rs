//! The expected content of a folder: names and the files behind them, according to the program that changed it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct File {
    /// Its bytes.
    pub content: Vec<u8>,
    /// Permissions.
    pub mode: u32,
    /// Number of names.
    pub links: u64,
}

/// The object behind a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A file, by its number in [`Model::files`].
    File(usize),
    /// An empty folder.
    Folder,
    /// A symbolic link.
    Link(String),
}

/// A folder.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Model {
    /// Names.
    pub names: BTreeMap<String, Entry>,
    /// Files, including those without a name.
    pub files: Vec<File>,
}

impl Model {
    /// Removes a name.
    pub fn remove(&mut self, name: &str) {
        if let Some(Entry::File(number)) = self.names.remove(name) {
            self.files[number].links -= 1;
        }
    }

    /// Everything in which `folder` differs.
    pub fn differences(&self, folder: &Path) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut listed = BTreeMap::new();
        match fs::read_dir(folder) {
            Ok(entries) => {
                for entry in entries {
                    match entry {
                        Ok(entry) => {
                            let name = entry.file_name().to_string_lossy().into_owned();
                            if listed.insert(name.clone(), ()).is_some() {
                                wrong.push(format!("{name} is listed twice"));
                            }
                        }
                        Err(error) => wrong.push(format!("listing: {error}")),
                    }
                }
            }
            Err(error) => wrong.push(format!("listing: {error}")),
        }
        wrong.extend(
            listed.keys().filter(|name| !self.names.contains_key(*name)).map(|name| format!("{name} must not exist")),
        );
        wrong.extend(
            self.names.keys().filter(|name| !listed.contains_key(*name)).map(|name| format!("{name} is not listed")),
        );
        let mut numbers: BTreeMap<usize, (u64, String)> = BTreeMap::new();
        for (name, entry) in &self.names {
            let path = folder.join(name);
            let metadata = match fs::symlink_metadata(&path) {
                Ok(metadata) => metadata,
                Err(error) => {
                    wrong.push(format!("{name}: {error}"));
                    continue;
                }
            };
            match entry {
                Entry::Folder if metadata.is_dir() => {}
                Entry::Link(target) if metadata.is_symlink() => {
                    if fs::read_link(&path).ok().as_deref() != Some(Path::new(target)) {
                        wrong.push(format!("{name} leads to another place"));
                    }
                }
                Entry::File(number) if metadata.is_file() => {
                    let file = &self.files[*number];
                    if metadata.nlink() != file.links {
                        wrong.push(format!("{name} has {} links, not {}", metadata.nlink(), file.links));
                    }
                    if metadata.mode() & 0o7777 != file.mode {
                        wrong.push(format!("{name} has mode {:o}, not {:o}", metadata.mode() & 0o7777, file.mode));
                    }
                    if metadata.len() != file.content.len() as u64 {
                        wrong.push(format!("{name} has {} bytes, not {}", metadata.len(), file.content.len()));
                    } else {
                        match fs::read(&path) {
                            Ok(content) if content == file.content => {}
                            Ok(content) => wrong.push(first_difference(name, &content, &file.content)),
                            Err(error) => wrong.push(format!("reading {name}: {error}")),
                        }
                    }
                    let other = numbers.entry(*number).or_insert((metadata.ino(), name.clone()));
                    if other.0 != metadata.ino() {
                        wrong.push(format!("{name} and {} must be the same file", other.1));
                    }
                }
                _ => wrong.push(format!("{name} is of another type: mode {:o}", metadata.mode())),
            }
        }
        wrong
    }
}

/// A sentence that says where two contents differ.
pub fn first_difference(name: &str, found: &[u8], expected: &[u8]) -> String {
    let at = found.iter().zip(expected).position(|(a, b)| a != b);
    match at {
        Some(at) => {
            let same = found[at..].iter().zip(&expected[at..]).position(|(a, b)| a == b);
            let length = same.unwrap_or(found.len().min(expected.len()) - at);
            let zeros = found[at..at + length].iter().all(|byte| *byte == 0);
            let what = if zeros { " (zeros)" } else { "" };
            format!("{name} differs from byte {at} for at least {length} bytes{what}, of {}", found.len())
        }
        None => format!("{name} has {} bytes, not {}", found.len(), expected.len()),
    }
}
