//! Trees of files, made from a seed and compared.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use stdx::Rng;

/// Bytes derived from a seed.
pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut out = vec![0; length];
    Rng::new(seed).fill(&mut out);
    out
}

/// Makes a tree like a source tree: many small files, some large ones, hard and symbolic links, empty folders.
///
/// # Errors
/// Those of the file system, with the path.
pub fn make(root: &Path, seed: u64, files: usize) -> io::Result<()> {
    let at = |path: &Path, error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let mut rng = Rng::new(seed);
    fs::create_dir_all(root).map_err(|error| at(root, error))?;
    let mut folders = vec![root.to_path_buf()];
    let mut made: Vec<PathBuf> = Vec::new();
    for number in 0..files {
        if rng.chance(1, 12) || folders.len() < 3 {
            let parent = &folders[rng.below(folders.len() as u64) as usize];
            let folder = parent.join(format!("folder-{number}"));
            fs::create_dir(&folder).map_err(|error| at(&folder, error))?;
            folders.push(folder);
        }
        let folder = &folders[rng.below(folders.len() as u64) as usize];
        let path = folder.join(format!("file number {number}.txt"));
        match rng.below(20) {
            0 if !made.is_empty() => {
                let other = &made[rng.below(made.len() as u64) as usize];
                fs::hard_link(other, &path).map_err(|error| at(&path, error))?;
            }
            1 => symlink(format!("../nowhere/{number}"), &path).map_err(|error| at(&path, error))?,
            kind => {
                let length = match kind {
                    2 => 0,
                    3 => rng.range(60_000, 70_000),
                    4 => rng.range(100_000, 400_000),
                    _ => rng.range(1, 12_000),
                };
                let content = bytes(rng.u64(), length as usize);
                let mut file = fs::File::create_new(&path).map_err(|error| at(&path, error))?;
                file.write_all(&content).map_err(|error| at(&path, error))?;
                let mode = if rng.chance(1, 8) { 0o755 } else { 0o644 };
                file.set_permissions(PermissionsExt::from_mode(mode)).map_err(|error| at(&path, error))?;
                made.push(path);
            }
        }
    }
    Ok(())
}

/// The object behind a name in a tree, in a form that can be compared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Thing {
    /// Type and permissions.
    pub mode: u32,
    /// Links; not for folders.
    pub links: u64,
    /// Bytes, of a file.
    pub size: u64,
    /// Digest of the content; the target of a symbolic link.
    pub content: u64,
}

/// Everything below `root`, by its path from there.
///
/// # Errors
/// Those of the file system, with the path.
pub fn read(root: &Path) -> io::Result<BTreeMap<PathBuf, Thing>> {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(folder) = open.pop() {
        let at = |path: &Path, error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        for entry in fs::read_dir(&folder).map_err(|error| at(&folder, error))? {
            let path = entry.map_err(|error| at(&folder, error))?.path();
            let metadata = fs::symlink_metadata(&path).map_err(|error| at(&path, error))?;
            let content = if metadata.is_dir() {
                open.push(path.clone());
                0
            } else if metadata.is_symlink() {
                let target = fs::read_link(&path).map_err(|error| at(&path, error))?;
                digest(target.as_os_str().as_encoded_bytes())
            } else if metadata.is_file() {
                digest(&fs::read(&path).map_err(|error| at(&path, error))?)
            } else {
                metadata.rdev()
            };
            let thing = Thing {
                mode: metadata.mode(),
                links: if metadata.is_dir() { 0 } else { metadata.nlink() },
                size: if metadata.is_file() { metadata.len() } else { 0 },
                content,
            };
            let relative = path.strip_prefix(root).unwrap_or(&path).to_path_buf();
            assert!(found.insert(relative, thing).is_none(), "{} is listed twice", path.display());
        }
    }
    Ok(found)
}

/// A digest of bytes.
pub fn digest(bytes: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Fails if two trees differ, with the first differences.
#[track_caller]
pub fn assert_equal(left: &Path, right: &Path) {
    let (a, b) = (read(left).expect("the first tree"), read(right).expect("the second tree"));
    let mut differences = Vec::new();
    for (path, thing) in &a {
        match b.get(path) {
            None => differences.push(format!("{} is missing in {}", path.display(), right.display())),
            Some(other) if other != thing => differences.push(format!("{}: {thing:?} and {other:?}", path.display())),
            Some(_) => {}
        }
    }
    differences.extend(
        b.keys()
            .filter(|path| !a.contains_key(*path))
            .map(|path| format!("{} only in {}", path.display(), right.display())),
    );
    assert!(
        differences.is_empty(),
        "{} differences of {} names:\n{}",
        differences.len(),
        a.len(),
        differences.iter().take(20).cloned().collect::<Vec<_>>().join("\n")
    );
}
