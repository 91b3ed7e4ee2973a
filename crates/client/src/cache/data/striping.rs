//! Arithmetic of striping: file offsets to objects and back, sizes of the file from sizes of its objects.
//!
//! Everything is pure. A file of one stripe (and a resident file, which is one object on the metadata target) has object
//! offsets equal to file offsets. Ranges are half open, `start..end`.
//!
//! ```text
//! stripe size 4, 3 stripes      file   0...4...8...12..16..20..24
//!                               stripe 0   1   2   0   1   2
//!                               object 0   0   0   4   4   4
//! ```

use core::ops::Range;

/// Largest size of a file, in bytes: the maximum of `off_t`.
pub(crate) const FILE_SIZE_MAX: u64 = i64::MAX as u64;

/// How a file is distributed over its objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Striping {
    /// Consecutive bytes on one object.
    pub(crate) stripe_size: u64,
    /// Number of objects, at least 1.
    pub(crate) count: u32,
}

/// A run of bytes that is contiguous in the file and in one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// The object.
    pub(crate) stripe: u32,
    /// Its offset in the object.
    pub(crate) object_offset: u64,
    /// Its offset in the file.
    pub(crate) file_offset: u64,
    /// Its length in bytes.
    pub(crate) length: u64,
}

impl Striping {
    /// One object with the contents of the file.
    pub(crate) const WHOLE: Striping = Striping { stripe_size: 1 << 20, count: 1 };

    /// The striping of a layout from the wire; an invalid one is taken as a single object.
    pub(crate) fn new(stripe_size: u32, count: usize) -> Striping {
        match u32::try_from(count) {
            Ok(count) if count > 1 && stripe_size > 0 => Striping { stripe_size: u64::from(stripe_size), count },
            _ => Striping::WHOLE,
        }
    }

    /// The object of a byte, and its offset there.
    pub(crate) fn locate(&self, offset: u64) -> (u32, u64) {
        if self.count == 1 {
            return (0, offset);
        }
        let unit = offset / self.stripe_size;
        let stripe = unit % u64::from(self.count);
        ((stripe as u32), unit / u64::from(self.count) * self.stripe_size + offset % self.stripe_size)
    }

    /// The file offset of a byte of an object; saturates beyond the largest file.
    pub(crate) fn file_offset(&self, stripe: u32, object_offset: u64) -> u64 {
        if self.count == 1 {
            return object_offset;
        }
        let row = u128::from(object_offset / self.stripe_size);
        let unit = row * u128::from(self.count) + u128::from(stripe);
        let offset = unit * u128::from(self.stripe_size) + u128::from(object_offset % self.stripe_size);
        u64::try_from(offset).unwrap_or(u64::MAX)
    }

    /// How many bytes of the object lie before file offset `offset`: the object's size in a file of `offset` bytes
    /// without holes at its end, and also the first object offset at or after `offset`.
    pub(crate) fn object_cut(&self, stripe: u32, offset: u64) -> u64 {
        if self.count == 1 {
            return offset;
        }
        let unit = offset / self.stripe_size;
        let row = unit / u64::from(self.count);
        let at = (unit % u64::from(self.count)) as u32;
        let base = row * self.stripe_size;
        match stripe.cmp(&at) {
            core::cmp::Ordering::Less => base + self.stripe_size,
            core::cmp::Ordering::Equal => base + offset % self.stripe_size,
            core::cmp::Ordering::Greater => base,
        }
    }

    /// The parts of the file in which a range of an object lies, in order.
    pub(crate) fn file_parts(&self, stripe: u32, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        let this = *self;
        self.within_units(range).map(move |(at, length)| {
            let start = this.file_offset(stripe, at);
            start..start.saturating_add(length)
        })
    }

    /// The file size that follows from this object's size.
    pub(crate) fn file_size(&self, stripe: u32, object_size: u64) -> u64 {
        if object_size == 0 { 0 } else { self.file_offset(stripe, object_size - 1).saturating_add(1) }
    }

    /// The pieces of a file range, in the order of the file.
    pub(crate) fn pieces(&self, range: &Range<u64>) -> impl Iterator<Item = Piece> + use<> {
        let this = *self;
        self.within_units(range).map(move |(file_offset, length)| {
            let (stripe, object_offset) = this.locate(file_offset);
            Piece { stripe, object_offset, file_offset, length }
        })
    }

    /// A range of the file or of an object, split where stripe units begin: starts and lengths.
    fn within_units(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, u64)> + use<> {
        let this = *self;
        let mut rest = range.clone();
        core::iter::from_fn(move || {
            let (at, left) = (rest.start, rest.end.checked_sub(rest.start).filter(|left| *left > 0)?);
            let room = if this.count == 1 { left } else { this.stripe_size - at % this.stripe_size };
            let length = room.min(left);
            rest.start += length;
            Some((at, length))
        })
    }
}

/// Sorted ranges, with adjacent ones merged.
pub(crate) fn joined(parts: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for part in parts {
        match joined.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => joined.push(part),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::Rng;

    #[test]
    fn ranges_of_an_object_lie_in_the_rows_of_its_stripe() {
        let striping = Striping::new(4, 3);
        let parts: Vec<Range<u64>> = striping.file_parts(1, &(2..9)).collect();
        assert_eq!(parts, [6..8, 16..20, 28..29]);
        assert_eq!(Striping::WHOLE.file_parts(0, &(2..9)).collect::<Vec<_>>(), [Range { start: 2, end: 9 }]);
        assert_eq!(joined([1..3, 3..5, 7..8].into_iter()), [1..5, 7..8]);
    }

    #[test]
    fn every_byte_goes_there_and_back() {
        for (stripe_size, count) in [(4, 3), (4, 1), (1, 2), (65536, 7)] {
            let striping = Striping::new(stripe_size, count);
            for offset in (0..200).chain(FILE_SIZE_MAX - 5..=FILE_SIZE_MAX) {
                let (stripe, at) = striping.locate(offset);
                assert_eq!(striping.file_offset(stripe, at), offset);
                assert_eq!(striping.object_cut(stripe, offset), at);
                assert_eq!(striping.object_cut(stripe, offset + 1), at + 1);
            }
        }
    }

    #[test]
    fn sizes_of_objects_make_the_size_of_the_file() {
        let striping = Striping::new(4, 3);
        for size in 0..100 {
            let most = (0..3).map(|s| striping.file_size(s, striping.object_cut(s, size))).max();
            assert_eq!(most, Some(size));
            let sum: u64 = (0..3).map(|s| striping.object_cut(s, size)).sum();
            assert_eq!(sum, size);
        }
    }

    #[test]
    fn pieces_cover_a_range_once_and_ranges_are_their_union() {
        let mut rng = Rng::new(1);
        for _ in 0..500 {
            let striping = Striping::new(rng.range(1, 9) as u32, rng.range(1, 5) as usize);
            let start = rng.below(100);
            let range = start..start + rng.below(60);
            let mut at = range.start;
            let mut per_stripe = vec![0; striping.count as usize];
            for piece in striping.pieces(&range) {
                assert_eq!(piece.file_offset, at);
                assert_eq!(striping.locate(at), (piece.stripe, piece.object_offset));
                assert!(striping.object_cut(piece.stripe, range.start) <= piece.object_offset);
                per_stripe[piece.stripe as usize] += piece.length;
                at += piece.length;
            }
            assert_eq!(at, range.end);
            for (s, length) in per_stripe.iter().enumerate() {
                let cut = |offset| striping.object_cut(s as u32, offset);
                assert_eq!(cut(range.end) - cut(range.start), *length);
            }
        }
    }
}
