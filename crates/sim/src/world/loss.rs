//! Losses that clients report after a disk was full or failed.
//!
//! Only one case is allowed: a lock is called back while its dirty pages cannot be written. The log line must name the file and
//! the ranges, and the oracles excuse exactly these.

use core::ops::Range;

use proto::Fid;

use super::World;
use crate::sched::Loss;

/// Parses a log line: the file, the number of bytes, the ranges.
fn parse(line: &str) -> Option<(Fid, u64, Vec<Range<u64>>)> {
    let (what, rest) = line.split_once("] are lost (its lock was called back: ")?;
    let (reason, rest) = rest.split_once("): ")?;
    if !["No space left on device", "Input/output error"].contains(&reason) {
        return None;
    }
    let bytes = what.split(' ').next()?.parse().ok()?;
    let fid = format!("[{}]", what.rsplit_once('[')?.1).parse().ok()?;
    let part = |text: &str| {
        let (start, end) = text.rsplit(' ').next()?.split_once("..")?;
        Some(start.parse().ok()?..end.parse().ok()?)
    };
    Some((fid, bytes, rest.split(", ").map(part).collect::<Option<_>>()?))
}

impl World {
    pub(super) fn find_loss(&mut self, line: &str) {
        let none = self.plan.disk_faults.fill_every.is_none() && self.plan.disturbances.io.is_none();
        if none || !line.contains("] are lost (its lock was called back") {
            return;
        }
        match parse(line) {
            Some((fid, bytes, parts)) if parts.iter().map(|part| part.end - part.start).sum::<u64>() == bytes => {
                self.faults.counts.given_up += 1;
                self.sched.note_loss(Loss { at: self.now, ino: fid.ino(), parts });
            }
            _ => self.fail(format!("this line does not say what was lost: {line}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_line_names_the_file_and_the_ranges() {
        let line = "4100 bytes of '/d/f [0x1:0x2:0x0]' [0x200000400:0x5:0x0] are lost (its lock was called back: \
                    No space left on device): 0..4096, 8192..8196";
        assert_eq!(parse(line), Some((Fid::new(0x2_0000_0400, 5), 4100, vec![0..4096, 8192..8196])));
        assert_eq!(parse(&line.replace("called back", "lost")), None);
    }
}
