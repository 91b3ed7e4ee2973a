//! `lfs df`: the space of each target.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use fuse::ioctl::{self, Verb};
use serde_json::{Value, json};

use super::{explain, pools};
use crate::output::{human, say};

/// The space of a target: total, free and available bytes, objects, free objects, the number of its disk (0: a disk of its
/// own, or a mount of an older version, which does not say); or an errno.
pub(super) struct TargetSpace {
    /// Its name.
    pub name: String,
    /// The figures, or the errno.
    pub figures: Result<Vec<u64>, i32>,
}

impl TargetSpace {
    fn is_ost(&self) -> bool {
        self.name.contains("-OST")
    }

    pub(super) fn is_mdt(&self) -> bool {
        self.name.contains("-MDT")
    }

    /// Its index.
    pub(super) fn index(&self) -> u32 {
        self.name.parse::<proto::TargetName>().map_or(0, |name| name.index.0)
    }
}

/// The targets of the mount that a path is in.
pub(super) fn spaces(path: &Path) -> anyhow::Result<Vec<TargetSpace>> {
    let lines = |first: &[u8]| ioctl::ask(path, Verb::TargetSpace, first).map(|text| parse(&text));
    let all = match lines(&[]) {
        // EOVERFLOW: they do not fit one answer.
        Err(error) if error.raw_os_error() == Some(75) => in_parts(|first| lines(&first.to_le_bytes())),
        all => all,
    };
    all.map_err(|error| explain(path, &error))
}

/// The targets from several answers, each from one number on. The answer after the last is empty.
fn in_parts(ask: impl Fn(u32) -> io::Result<Vec<TargetSpace>>) -> io::Result<Vec<TargetSpace>> {
    let mut all = Vec::new();
    loop {
        let part = ask(all.len() as u32)?;
        if part.is_empty() {
            return Ok(all);
        }
        all.extend(part);
    }
}

fn parse(text: &[u8]) -> Vec<TargetSpace> {
    let text = String::from_utf8_lossy(text);
    let target = |line: &str| {
        let mut fields = line.split(' ');
        let name = fields.next()?.to_owned();
        let rest: Vec<&str> = fields.collect();
        let figures = match rest.as_slice() {
            ["error", number] => Err(number.parse().unwrap_or(5)),
            figures => Ok(figures.iter().filter_map(|f| f.parse().ok()).collect()),
        };
        Some(TargetSpace { name, figures })
    };
    text.lines().filter_map(target).collect()
}

/// The form of the output of `lfs df`.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Numbers with units.
    pub human: bool,
    /// Inodes instead of bytes.
    pub inodes: bool,
}

impl Shape {
    fn head(self) -> [&'static str; 4] {
        match (self.inodes, self.human) {
            (true, _) => ["Inodes", "IUsed", "IFree", "IUse%"],
            (false, true) => ["bytes", "Used", "Available", "Use%"],
            (false, false) => ["1K-blocks", "Used", "Available", "Use%"],
        }
    }

    fn show(self, value: u64) -> String {
        match (self.inodes, self.human) {
            (true, true) if value < 1000 => value.to_string(),
            // Inodes are counted in thousands, not in units of 1024.
            (true, true) => people_count(value),
            (true, false) => value.to_string(),
            (false, true) => human(value),
            (false, false) => (value / 1024).to_string(),
        }
    }

    fn print(self, name: &str, row: [u64; 3], place: &str) {
        let percent = if row[0] == 0 { 0 } else { (row[1] as u128 * 100).div_ceil(row[0] as u128) };
        let [all, used, left] = row.map(|value| self.show(value));
        say!("{name:<24}{all:>14}{used:>14}{left:>14} {percent:>4}% {place}");
    }
}

/// A count with a unit: `1.5M`.
fn people_count(count: u64) -> String {
    let mut value = count as f64;
    for unit in ["", "K", "M", "G", "T"] {
        if value < 1000.0 {
            return format!("{value:.1}{unit}");
        }
        value /= 1000.0;
    }
    format!("{value:.1}P")
}

/// The mount point above a path.
fn mount_point(path: &Path) -> anyhow::Result<PathBuf> {
    let full = path.canonicalize().with_context(|| format!("'{}'", path.display()))?;
    let mounts = fuse::mounts().into_iter().map(|mount| mount.place).filter(|place| full.starts_with(place));
    Ok(mounts.max_by_key(|place| place.as_os_str().len()).unwrap_or(full))
}

/// Runs `lfs df`. Returns whether all targets answered.
pub(super) fn df(path: &Path, shape: Shape, pool: Option<&str>) -> anyhow::Result<bool> {
    let mut targets = spaces(path)?;
    if let Some(pool) = pool {
        let members = pools::members_on(path, pool)?;
        targets.retain(|target| !target.is_ost() || members.contains(&target.name));
    }
    let place = mount_point(path)?.display().to_string();
    let head = shape.head();
    say!("{:<24}{:>14}{:>14}{:>14} {:>5} Mounted on", "UUID", head[0], head[1], head[2], head[3]);
    let mut sum = Sum::default();
    for target in targets {
        let Ok(figures) = &target.figures else {
            say!("{:<24}{:>14}", format!("{}_UUID", target.name), ": inactive device");
            continue;
        };
        let [total, free, available, files, files_free, ref disk @ ..] = figures[..] else { continue };
        let row = match shape.inodes {
            true => [files, files - files_free.min(files), files_free],
            false => [total, total - free.min(total), available],
        };
        if target.is_ost() != shape.inodes {
            let disk = disk.first().copied().unwrap_or(0);
            if shape.inodes { sum.add_inodes(disk, row) } else { sum.add(disk, row) }
        }
        let tag = match target.name.parse::<proto::TargetName>() {
            Ok(name) => format!("{place}[{}:{}]", if target.is_ost() { "OST" } else { "MDT" }, name.index),
            Err(_) => place.clone(),
        };
        shape.print(&format!("{}_UUID", target.name), row, &tag);
    }
    say!();
    shape.print("filesystem_summary:", sum.all(), &place);
    Ok(true)
}

/// The output of `--json` for a mount: the targets of a pool, or of one kind (`MDT`, `OST`).
pub(super) fn json(path: &Path, pool: Option<&str>, kind: Option<&str>) -> anyhow::Result<Value> {
    let mut targets = spaces(path)?;
    if let Some(pool) = pool {
        let members = pools::members_on(path, pool)?;
        targets.retain(|target| !target.is_ost() || members.contains(&target.name));
    }
    targets.retain(|target| kind.is_none_or(|kind| target.name.contains(&format!("-{kind}"))));
    let described: Vec<Value> = targets
        .iter()
        .map(|target| {
            let mut value = json!({
                "name": target.name,
                "kind": if target.is_ost() { "OST" } else { "MDT" },
                "index": target.index(),
                "active": target.figures.is_ok(),
            });
            if let Ok([total, free, available, files, files_free, ..]) = target.figures.as_deref() {
                value["bytes"] = json!({ "total": total, "used": total - free.min(total), "available": available });
                value["inodes"] = json!({ "total": files, "used": files - files_free.min(files), "free": files_free });
            }
            value
        })
        .collect();
    Ok(json!({ "mount": mount_point(path)?, "targets": described }))
}

/// The sum over several targets: all, used, left. A disk that several of them share is counted once, as in `df`.
#[derive(Default)]
struct Sum {
    own: [u64; 3],
    /// The figures of each disk; what is left excludes what its targets have granted to clients.
    disks: BTreeMap<u64, [u64; 3]>,
    /// The inodes that still fit on each disk.
    inodes_left: BTreeMap<u64, u64>,
}

impl Sum {
    fn add(&mut self, disk: u64, [all, used, left]: [u64; 3]) {
        if disk == 0 {
            self.own = [self.own[0] + all, self.own[1] + used, self.own[2] + left];
            return;
        }
        let promised = all.saturating_sub(used).saturating_sub(left);
        let [known_all, known_used, known_promised] = self.disks.entry(disk).or_default();
        *known_all = all.max(*known_all);
        *known_used = used.max(*known_used);
        *known_promised += promised;
    }

    /// The same for inodes: each target has its own, and what is left is left for all targets of a disk.
    fn add_inodes(&mut self, disk: u64, [_, used, left]: [u64; 3]) {
        self.add(0, [used, used, 0]);
        match disk {
            0 => self.add(0, [left, 0, left]),
            _ => {
                let known = self.inodes_left.entry(disk).or_insert(left);
                *known = left.min(*known);
            }
        }
    }

    fn all(mut self) -> [u64; 3] {
        for left in std::mem::take(&mut self.inodes_left).into_values() {
            self.add(0, [left, 0, left]);
        }
        for [all, used, promised] in std::mem::take(&mut self.disks).into_values() {
            self.add(0, [all, used, all.saturating_sub(used).saturating_sub(promised)]);
        }
        self.own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_targets_share_is_counted_once() {
        let mut sum = Sum::default();
        sum.add(7, [1000, 400, 550]);
        sum.add(7, [1000, 400, 580]);
        sum.add(8, [1000, 100, 900]);
        sum.add(0, [10, 5, 4]);
        sum.add(0, [10, 5, 4]);
        assert_eq!(sum.all(), [2020, 510, 530 + 900 + 8]);
        let mut sum = Sum::default();
        sum.add_inodes(7, [105, 5, 100]);
        sum.add_inodes(7, [107, 9, 98]);
        sum.add_inodes(0, [12, 2, 10]);
        assert_eq!(sum.all(), [16 + 98 + 10, 16, 98 + 10]);
    }

    #[test]
    fn many_targets_come_in_several_answers() {
        let all: Vec<String> = (0..10).map(|index| format!("fs-MDT{index:04x} error 5\n")).collect();
        let part = |first: u32| Ok(parse(all[first as usize..].iter().take(4).cloned().collect::<String>().as_bytes()));
        let found = in_parts(part).unwrap();
        assert!(found.len() == 10 && found[9].name == "fs-MDT0009" && found[9].figures == Err(5));
    }

    #[test]
    fn numbers_for_people_have_units_and_their_head() {
        let shape = |human, inodes| Shape { human, inodes };
        assert_eq!(shape(true, false).head()[0], "bytes");
        assert_eq!(shape(false, false).head()[0], "1K-blocks");
        assert_eq!(shape(true, true).show(999), "999");
        assert_eq!(shape(true, true).show(1_234_567), "1.2M");
        assert_eq!(shape(false, true).show(1_234_567), "1234567");
        assert_eq!(shape(true, false).show(3 << 30), "3.0G");
    }
}
