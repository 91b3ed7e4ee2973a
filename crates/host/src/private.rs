//! Files and folders that only this user may access: a server's stores, sockets and scratch folders.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};

/// From now on, files and folders that this process makes are accessible to its user only: files 0600, folders 0700.
pub(crate) fn restrict_new_files() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// Makes a folder that only this user may access, or accepts an existing one. Its parent must exist.
///
/// # Errors
/// It cannot be made, or the existing one belongs to another user or is open to others.
pub fn ensure(folder: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check(folder),
        other => other,
    }
}

/// Checks that only this user may access a folder.
///
/// # Errors
/// Others may access it, or it does not exist.
pub fn check(folder: &Path) -> io::Result<()> {
    let stat = stat(folder)?;
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(refused(folder, "belongs to another user; remove it or choose another place"));
    }
    if stat.st_mode & 0o077 != 0 {
        return Err(refused(folder, "is open to other users; close it with chmod 700"));
    }
    Ok(())
}

/// Checks that other users cannot change the contents of a folder, so that the names in it stay what its owner made.
///
/// # Errors
/// They can, or the folder does not exist.
pub(crate) fn check_unchanged_by_others(folder: &Path) -> io::Result<()> {
    let stat = stat(folder)?;
    if stat.st_uid != 0 && stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(refused(folder, "belongs to another user; choose a folder of your own"));
    }
    if stat.st_mode & 0o022 != 0 {
        return Err(refused(folder, "can be written by other users; choose a folder of your own"));
    }
    Ok(())
}

/// Makes a new folder that only this user may access, for files that last as long as the process.
///
/// # Errors
/// It cannot be made.
pub(crate) fn scratch(name: &str) -> io::Result<PathBuf> {
    loop {
        let folder = std::env::temp_dir().join(format!("adamant-{name}-{:016x}", crate::clock::seed()));
        match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other.map(|()| folder),
        }
    }
}

/// The attributes of the folder itself; a symbolic link is not followed.
fn stat(folder: &Path) -> io::Result<rustix::fs::Stat> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::fstat(rustix::fs::openat(CWD, folder, flags, Mode::empty())?)?)
}

fn refused(folder: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("'{}' {why}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_folder_that_others_may_enter_is_not_taken() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("adamant-1001");
        ensure(&folder).unwrap();
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        ensure(&folder).unwrap();
        for mode in [0o777, 0o710, 0o701] {
            std::fs::set_permissions(&folder, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(ensure(&folder).unwrap_err().kind(), io::ErrorKind::PermissionDenied, "{mode:o}");
        }
        let link = root.path().join("link");
        symlink(root.path(), &link).unwrap();
        assert!(ensure(&link).is_err(), "the owner of a link decides where it leads");
        if rustix::process::geteuid().is_root() {
            std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o700)).unwrap();
            std::os::unix::fs::chown(&folder, Some(1500), None).unwrap();
            assert!(ensure(&folder).unwrap_err().to_string().contains("another user"));
            assert!(check_unchanged_by_others(&folder).is_err());
        }
        assert!(check_unchanged_by_others(Path::new("/tmp")).is_err());
        assert!(check_unchanged_by_others(Path::new("/")).is_ok());
    }

    #[test]
    fn scratch_folders_are_new() {
        let (a, b) = (scratch("test").unwrap(), scratch("test").unwrap());
        assert_ne!(a, b);
        for folder in [a, b] {
            check(&folder).unwrap();
            std::fs::remove_dir(folder).unwrap();
        }
    }
}
