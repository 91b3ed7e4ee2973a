//! `unlinkmany`: removes files or directories by number.

use std::io::Write;
use std::time::Instant;

use rustix::fs::{self, AtFlags};

use super::pattern::Pattern;
use super::{Done, Ended, Progress, failed};
use crate::stop;

/// A run of `unlinkmany`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remove {
    /// Remove directories instead of files.
    pub directories: bool,
    /// The names.
    pub pattern: Pattern,
    /// The number of the first.
    pub start: i64,
    /// How many.
    pub count: u64,
}

impl Remove {
    /// Runs, and prints progress and the total as Lustre's tool does.
    pub fn run(&self, out: &mut dyn Write) -> (Done, Result<(), Ended>) {
        let flags = if self.directories { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let mut progress = Progress::start();
        let mut buffer = Vec::new();
        let mut count = 0;
        let mut result = Ok(());
        while count < self.count && result.is_ok() {
            if stop::requested() {
                result = Err(Ended::Stopped);
                break;
            }
            let name = self.pattern.name(self.start.wrapping_add(count as i64), &mut buffer);
            match fs::unlinkat(fs::CWD, name, flags) {
                Ok(()) => count += 1,
                Err(errno) => result = Err(failed("unlink", name.to_bytes(), errno)),
            }
            if let Some((time, total, last)) = progress.due(count, Instant::now()) {
                let line = writeln!(out, " - unlinked {count} (time {time:.2} ; total {total:.2} ; last {last:.2})");
                result = result.and(line.and_then(|()| out.flush()).map_err(Ended::from));
            }
        }
        let done = Done::since(count, progress.start);
        let total =
            writeln!(out, "total: {count} unlinks in {:.2} seconds: {:.2} unlinks/second", done.seconds, done.rate());
        (done, result.and(total.map_err(Ended::from)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remove(folder: &std::path::Path, start: i64, count: u64) -> Remove {
        let pattern = format!("{}/f", folder.display()).parse().unwrap();
        Remove { directories: false, pattern, start, count }
    }

    #[test]
    fn files_go_and_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..5 {
            std::fs::write(folder.path().join(format!("f{number}")), "").unwrap();
        }
        let mut out = Vec::new();
        let (done, result) = remove(folder.path(), 1, 3).run(&mut out);
        result.unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(done.count, 3);
        assert!(text.starts_with("total: 3 unlinks in ") && text.ends_with(" unlinks/second\n"), "{text}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn directories_go_only_with_the_option() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("f0")).unwrap();
        let mut run = remove(folder.path(), 0, 1);
        assert!(matches!(run.run(&mut Vec::new()).1, Err(Ended::Failed(_))));
        run.directories = true;
        run.run(&mut Vec::new()).1.unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
