//! What programs do, timed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

/// Microseconds per file of each phase.
#[derive(Clone, Copy, Debug, Default)]
pub struct Metadata {
    /// open(O_CREAT | O_EXCL) and close.
    pub create: f64,
    /// stat, warm.
    pub stat: f64,
    /// unlink.
    pub unlink: f64,
}

fn per_file(start: Instant, count: u32) -> f64 {
    start.elapsed().as_secs_f64() * 1e6 / f64::from(count)
}

/// Creates, stats and removes `count` empty files in a new directory.
///
/// # Errors
/// The file system's.
pub fn metadata(root: &Path, count: u32) -> io::Result<Metadata> {
    let folder = root.join("load");
    fs::create_dir(&folder)?;
    let names: Vec<_> = (0..count).map(|n| folder.join(format!("f{n}"))).collect();
    let mut figures = Metadata::default();
    let start = Instant::now();
    for name in &names {
        OpenOptions::new().write(true).create_new(true).mode(0o644).open(name)?;
    }
    figures.create = per_file(start, count);
    let start = Instant::now();
    for name in &names {
        fs::symlink_metadata(name)?;
    }
    figures.stat = per_file(start, count);
    let start = Instant::now();
    for name in &names {
        fs::remove_file(name)?;
    }
    figures.unlink = per_file(start, count);
    fs::remove_dir(&folder)?;
    Ok(figures)
}

/// Creates, writes and closes `count` files of `size` bytes, in microseconds per file.
///
/// # Errors
/// The file system's.
pub fn small_files(root: &Path, count: u32, size: usize) -> io::Result<f64> {
    let folder = root.join("small");
    fs::create_dir(&folder)?;
    let names: Vec<_> = (0..count).map(|n| folder.join(format!("f{n}"))).collect();
    let data = vec![0x5a; size];
    let start = Instant::now();
    for name in &names {
        OpenOptions::new().write(true).create_new(true).mode(0o644).open(name)?.write_all(&data)?;
    }
    let figure = per_file(start, count);
    for name in &names {
        fs::remove_file(name)?;
    }
    fs::remove_dir(&folder)?;
    Ok(figure)
}

/// MiB per second of a sequential write with fsync, and of a read of it without the kernel's cache.
///
/// # Errors
/// The file system's.
pub fn sequential(root: &Path, mib: u64) -> io::Result<(f64, f64)> {
    let name = root.join("large");
    let block = vec![0x5a; 1 << 20];
    let mut file = File::create(&name)?;
    let start = Instant::now();
    for _ in 0..mib {
        file.write_all(&block)?;
    }
    file.sync_all()?;
    let write = mib as f64 / start.elapsed().as_secs_f64();
    drop(file);
    let mut file = File::open(&name)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    let mut block = vec![0; 1 << 20];
    let start = Instant::now();
    let mut total = 0u64;
    loop {
        match file.read(&mut block)? {
            0 => break,
            count => total += count as u64,
        }
    }
    let read = total as f64 / (1 << 20) as f64 / start.elapsed().as_secs_f64();
    fs::remove_file(&name)?;
    if total != mib << 20 {
        return Err(io::Error::other(format!("wrote {} bytes and read {total}", mib << 20)));
    }
    Ok((write, read))
}

/// MiB per second of a copy over a loopback socket into a local file, with fsync.
///
/// # Errors
/// The network's or the file system's.
pub fn socket_to_file(root: &Path, mib: u64) -> io::Result<f64> {
    let name = root.join("copied");
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let sender = std::thread::spawn(move || -> io::Result<()> {
        let mut stream = std::net::TcpStream::connect(address)?;
        let block = vec![0x5a; 1 << 20];
        for _ in 0..mib {
            stream.write_all(&block)?;
        }
        Ok(())
    });
    let (mut stream, _) = listener.accept()?;
    let mut file = File::create(&name)?;
    let mut block = vec![0; 1 << 20];
    let start = Instant::now();
    loop {
        match stream.read(&mut block)? {
            0 => break,
            count => file.write_all(&block[..count])?,
        }
    }
    file.sync_all()?;
    let figure = mib as f64 / start.elapsed().as_secs_f64();
    sender.join().map_err(|_| io::Error::other("the sender broke off"))??;
    fs::remove_file(&name)?;
    Ok(figure)
}
