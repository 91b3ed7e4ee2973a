//! Small files by size, with one metadata target and with several. Data of up to `dom_size` is on the metadata target.

use super::bed::Bed;
use super::{FEW, Size};
use crate::gather::{Gathered, Measure};
use crate::ops::Op;
use crate::results::Results;

const SIZES_KIB: [u32; 6] = [4, 8, 16, 32, 64, 128];
const CREATE: &str = "small files, create";
const READ: &str = "small files, read";

/// Measures both file systems.
pub(super) fn measure(bed: &mut Bed<'_>, size: &Size, gathered: &mut Gathered) -> anyhow::Result<()> {
    let (Some(one), Some(wide)) = (bed.site(1), bed.wide()) else { return Ok(()) };
    for kib in SIZES_KIB {
        for site in [one, wide] {
            let mdts = bed.mdts(site);
            bed.step(&format!("files of {kib} KiB, {mdts} MDTs"))?;
            let places: Vec<Vec<u32>> = (0..FEW as u32).map(|client| vec![client % mdts]).collect();
            let homes = bed.directories(site, &places)?;
            let files = size.files.min((size.mib << 10) / u64::from(kib));
            let bytes = kib << 10;
            for (what, op, stride) in [
                (Some(CREATE), Op::Create { size: bytes }, 0),
                (Some(READ), Op::Read { size: bytes }, 1),
                (None, Op::Remove, 1),
            ] {
                let mut tasks = bed.tasks(site, &homes, &op, files, stride);
                if what == Some(CREATE) {
                    // The data is on disk before the phase is over.
                    tasks.iter_mut().filter_map(|task| task.order.as_mut()).for_each(|order| order.share.burst = files);
                }
                let (sample, _) = bed.phase(site, &tasks)?;
                if let Some(what) = what {
                    gathered.add(what, &kib.to_string(), &place(mdts), sample);
                }
            }
        }
    }
    Ok(())
}

fn place(mdts: u32) -> String {
    format!("Adamant, {mdts} MDT{}", if mdts == 1 { "" } else { "s" })
}

pub(super) fn show(size: &Size, gathered: &Gathered, results: &mut Results) {
    let axis: Vec<String> = SIZES_KIB.iter().map(ToString::to_string).collect();
    for (what, word) in [(CREATE, "create"), (READ, "read")] {
        for mdts in &size.mdts {
            for at in &axis {
                let place = place(*mdts);
                let label = format!("{what}, {at} KiB, {}", place.trim_start_matches("Adamant, "));
                let row = gathered.row(what, at, &place, &[], Measure::Rate, label, "files/s");
                let one = if *mdts == 1 { None } else { gathered.figure(what, at, &self::place(1), Measure::Rate) };
                results.rows.extend(row.map(|row| row.beside("1 MDT", one)));
            }
        }
        let (name, title) =
            (format!("mdts-small-{word}"), format!("Small files, {word}: {FEW} clients, a directory each"));
        results.charts.extend(gathered.lines(what, &axis, &name, &title, "size of the files (KiB)", "files/s"));
    }
}
