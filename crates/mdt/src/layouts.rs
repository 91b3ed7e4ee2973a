//! Layouts: where a new file's data goes, and what a user may ask for.

use proto::Errno;
use proto::msg::Config;
use proto::msg::Layout;
use proto::{Fid, TargetKind, TargetName};

/// Stripe size where nobody said otherwise.
pub const STRIPE_SIZE_DEFAULT: u32 = 1 << 20;
/// Stripe sizes are multiples of this.
pub const STRIPE_SIZE_UNIT: u32 = 64 << 10;
/// Most stripes of a file.
pub const STRIPE_COUNT_MAX: usize = 2000;

/// Indexes of the object targets of a configuration, in order.
pub fn osts_of(config: &Config) -> Vec<u32> {
    let names = config.targets.iter().filter_map(|entry| entry.target.parse::<TargetName>().ok());
    let mut osts: Vec<u32> = names.filter(|name| name.kind == TargetKind::Ost).map(|name| name.index.0).collect();
    osts.sort_unstable();
    osts.dedup();
    osts
}

/// What a directory's default, or nothing, makes of a new file. The first stripe goes round over the targets with the
/// numbers that the client gives its files.
pub fn of_new_file(default: Option<&Layout>, osts: &[u32], fid: Fid, resident: bool) -> Layout {
    let default = default.cloned().unwrap_or_default();
    let stripe_size = if default.stripe_size == 0 { STRIPE_SIZE_DEFAULT } else { default.stripe_size };
    let count = match default.want_count {
        all if all < 0 => osts.len(),
        0 => 1,
        n => n as usize,
    };
    let count = count.min(osts.len()).min(STRIPE_COUNT_MAX);
    let wanted = u32::try_from(default.want_first).ok().and_then(|first| osts.iter().position(|&ost| ost == first));
    let start = match wanted {
        // In a default that was never set, 0 means any.
        Some(at) if default.generation > 0 => at,
        _ if osts.is_empty() => 0,
        _ => (fid.seq.wrapping_add(u64::from(fid.oid)) % osts.len() as u64) as usize,
    };
    let chosen = osts.iter().cycle().skip(start).take(count).copied().collect();
    // Without object targets the data can only stay here.
    Layout { stripe_size, osts: chosen, resident: resident || osts.is_empty(), ..Layout::default() }
}

/// A default that a user asks for. `generation` 1 marks that it was set.
pub fn checked_default(wanted: &Layout, osts: &[u32]) -> Result<Layout, Errno> {
    let known = |first: i32| u32::try_from(first).is_ok_and(|first| osts.contains(&first));
    if !wanted.stripe_size.is_multiple_of(STRIPE_SIZE_UNIT)
        || wanted.want_count < -1
        || wanted.want_count > STRIPE_COUNT_MAX as i32
        || wanted.want_first < -1
        || (wanted.want_first >= 0 && !known(wanted.want_first))
    {
        return Err(Errno::EINVAL);
    }
    Ok(Layout {
        stripe_size: wanted.stripe_size,
        want_count: wanted.want_count,
        want_first: wanted.want_first,
        generation: 1,
        ..Layout::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::msg::TargetEntry;

    fn fid(oid: u32) -> Fid {
        Fid::new(0x2_0000_0400, oid)
    }

    #[test]
    fn new_files_go_round_over_the_targets_or_where_the_directory_says() {
        let targets = ["fs-OST0002", "fs-MDT0000", "fs-OST0000", "fs-OST0001"]
            .map(|name| TargetEntry { target: name.into(), ..TargetEntry::default() });
        let osts = osts_of(&Config { targets: targets.to_vec(), ..Config::default() });
        assert_eq!(osts, [0, 1, 2]);
        let first: Vec<u32> = (1..=6).map(|oid| of_new_file(None, &osts, fid(oid), true).osts[0]).collect();
        assert_eq!(first, [1, 2, 0, 1, 2, 0]);
        let default = |want_count, want_first| {
            let wanted = Layout { stripe_size: 1 << 16, want_count, want_first, ..Layout::default() };
            checked_default(&wanted, &osts).unwrap()
        };
        assert_eq!(of_new_file(Some(&default(2, 2)), &osts, fid(1), true).osts, [2, 0]);
        assert_eq!(of_new_file(Some(&default(-1, 0)), &osts, fid(1), true).osts, [0, 1, 2]);
        assert_eq!(of_new_file(Some(&default(9, -1)), &osts, fid(1), false).osts, [1, 2, 0]);
        assert_eq!(of_new_file(Some(&default(0, -1)), &osts, fid(1), false).stripe_size, 1 << 16);
    }

    #[test]
    fn without_object_targets_files_stay_here() {
        let layout = of_new_file(None, &[], fid(1), false);
        assert!(layout.resident && layout.osts.is_empty());
    }

    #[test]
    fn wishes_that_make_no_sense_are_refused() {
        let ask = |stripe_size, want_count, want_first| {
            checked_default(&Layout { stripe_size, want_count, want_first, ..Layout::default() }, &[0, 1])
        };
        assert!(ask(0, 0, -1).is_ok() && ask(1 << 20, -1, 1).is_ok());
        for (size, count, first) in [(1000, 1, 0), (1 << 20, -2, 0), (1 << 20, 1, 2), (1 << 20, 5000, 0), (0, 0, -2)] {
            assert_eq!(ask(size, count, first), Err(Errno::EINVAL));
        }
    }
}
