//! Which disk a directory is on.

use rustix::io::Errno;
use std::path::Path;

/// The number of the disk of a directory, the same in all processes of this machine and different on all others. 0 if it is not
/// known.
///
/// # Errors
/// The directory cannot be looked at.
pub fn disk_number(directory: &Path) -> Result<u64, Errno> {
    let device = rustix::fs::stat(directory)?.st_dev;
    Ok(std::fs::read("/proc/sys/kernel/random/boot_id").map_or(0, |boot| number(&boot, device)))
}

/// FNV-1a over the kernel's boot id, which is new at each boot, and the device number.
fn number(boot: &[u8], device: u64) -> u64 {
    let device = device.to_le_bytes();
    let sum = boot
        .iter()
        .chain(&device)
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    sum.max(1)
}
