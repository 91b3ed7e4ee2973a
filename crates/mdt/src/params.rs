//! Settings and statistics, under Lustre's names.

use crate::Mdt;
use proto::Errno;
use proto::connect::DOM_SIZE_DEFAULT;
use std::collections::BTreeMap;

/// Settings of a metadata target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Files up to this size live here, in bytes; 0: new files have their data on object targets from the start.
    pub dom_size: u32,
    /// Files that one client may have open.
    pub open_files_max: usize,
}

/// Greatest `max_open_files`: about a gigabyte of memory for one client.
const OPEN_FILES_MAX: usize = 1 << 22;

/// Greatest `dom_size`: what a record may hold.
pub const DOM_SIZE_MAX: u32 = 1 << 20;

impl Default for Settings {
    fn default() -> Settings {
        Settings { dom_size: DOM_SIZE_DEFAULT, open_files_max: 1 << 18 }
    }
}

/// How often each operation succeeded.
#[derive(Default, Debug)]
pub(crate) struct Stats(BTreeMap<&'static str, u64>);

impl Stats {
    /// One more.
    pub(crate) fn count(&mut self, operation: &'static str) {
        *self.0.entry(operation).or_default() += 1;
    }

    fn lines(&self) -> String {
        self.0.iter().map(|(name, count)| format!("{name:<25} {count} samples [reqs]\n")).collect()
    }
}

/// All parameters of the target of this name.
pub(crate) fn get(mdt: &Mdt, name: &str) -> Vec<(String, String)> {
    let param = |leaf: &str, value: String| (format!("mdt.{name}.{leaf}"), value);
    vec![
        param("destroys_in_flight", mdt.destroys.in_flight().to_string()),
        param("dom_stripesize", mdt.settings.dom_size.to_string()),
        param("max_open_files", mdt.settings.open_files_max.to_string()),
        param("md_stats", mdt.stats.lines()),
        param("open_files", mdt.opens.total().to_string()),
    ]
}

/// Sets one. `None`: there is none of this name here.
pub(crate) fn set(mdt: &mut Mdt, name: &str, path: &str, value: &str) -> Option<Result<(), Errno>> {
    let leaf = path.strip_prefix("mdt.")?.strip_prefix(name)?.strip_prefix('.')?;
    Some(match leaf {
        "dom_stripesize" => size(value).map(|size| mdt.settings.dom_size = size),
        "max_open_files" => match value.trim().parse() {
            Ok(files @ 1..=OPEN_FILES_MAX) => {
                mdt.settings.open_files_max = files;
                Ok(())
            }
            Ok(_) => Err(Errno::ERANGE),
            Err(_) => Err(Errno::EINVAL),
        },
        "md_stats" if matches!(value, "clear" | "0") => {
            mdt.stats = Stats::default();
            Ok(())
        }
        "md_stats" => Err(Errno::EINVAL),
        "destroys_in_flight" | "open_files" => Err(Errno::EACCES),
        _ => return None,
    })
}

/// A size in bytes, or with `k` or `m` behind it: a multiple of 64 KiB, or 0.
fn size(value: &str) -> Result<u32, Errno> {
    let (number, unit) = match value.as_bytes().last() {
        Some(b'k' | b'K') => (&value[..value.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&value[..value.len() - 1], 1 << 20),
        _ => (value, 1),
    };
    let size = number.parse::<u32>().map_err(|_| Errno::EINVAL)?.checked_mul(unit).ok_or(Errno::ERANGE)?;
    match size {
        size if size % (64 << 10) != 0 => Err(Errno::EINVAL),
        size if size > DOM_SIZE_MAX => Err(Errno::ERANGE),
        size => Ok(size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_lustres_paths() {
        let mut mdt = Mdt::new(Settings::default());
        let mut set = |path: &str, value: &str| set(&mut mdt, "fs-MDT0000", path, value);
        assert_eq!(set("mdt.fs-MDT0000.dom_stripesize", "128k"), Some(Ok(())));
        assert_eq!(set("mdt.fs-MDT0000.dom_stripesize", "1000"), Some(Err(Errno::EINVAL)));
        assert_eq!(set("mdt.fs-MDT0000.dom_stripesize", "64m"), Some(Err(Errno::ERANGE)));
        assert_eq!(set("mdt.fs-MDT0000.dom_stripesize", "0"), Some(Ok(())));
        assert_eq!(set("mdt.fs-MDT0000.open_files", "0"), Some(Err(Errno::EACCES)));
        assert_eq!(set("mdt.fs-MDT0000.max_open_files", "0"), Some(Err(Errno::ERANGE)));
        assert_eq!(set("mdt.fs-MDT0000.max_open_files", "many"), Some(Err(Errno::EINVAL)));
        assert_eq!(set("mdt.fs-MDT0000.max_open_files", "1000"), Some(Ok(())));
        assert_eq!(set("mdt.fs-MDT0001.md_stats", "clear"), None);
        assert_eq!(set("mdt.fs-MDT0000.nothing", "1"), None);
        assert!(get(&mdt, "fs-MDT0000").contains(&("mdt.fs-MDT0000.dom_stripesize".into(), "0".into())));
    }
}
