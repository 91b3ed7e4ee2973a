//! The data of a resident file as bytes: the effect of writes, truncations and holes.
//!
//! A file may be longer than its bytes; the rest is a hole. A file without bytes has no record.

use bytes::Bytes;

/// The bytes that a read returns: up to the end of the file, with zeros for the hole.
pub fn read(data: &Bytes, size: u64, offset: u64, length: u32) -> Bytes {
    let end = offset.saturating_add(u64::from(length)).min(size);
    if offset >= end {
        return Bytes::new();
    }
    let have = data.len() as u64;
    if end <= have {
        return data.slice(offset as usize..end as usize);
    }
    let mut out = Vec::with_capacity((end - offset) as usize);
    if offset < have {
        out.extend_from_slice(&data[offset as usize..]);
    }
    out.resize((end - offset) as usize, 0);
    out.into()
}

/// The bytes after a write; `None` if there is not enough memory. The caller limits the size of a file, but a damaged record
/// may claim any size.
pub fn write(data: &Bytes, offset: u64, new: &[u8]) -> Option<Bytes> {
    let offset = usize::try_from(offset).ok()?;
    let end = offset.checked_add(new.len())?;
    let mut out = Vec::new();
    out.try_reserve_exact(data.len().max(end)).ok()?;
    out.extend_from_slice(&data[..data.len().min(offset)]);
    out.resize(offset, 0);
    out.extend_from_slice(new);
    if data.len() > end {
        out.extend_from_slice(&data[end..]);
    }
    Some(out.into())
}

/// The bytes of a file that now ends at `size`.
pub fn truncate(data: &Bytes, size: u64) -> Bytes {
    let keep = usize::try_from(size).unwrap_or(usize::MAX).min(data.len());
    Bytes::copy_from_slice(&data[..keep])
}

/// The bytes with zeros in a range. Zeros at the end become part of the hole.
pub fn zero(data: &Bytes, start: u64, length: u64) -> Bytes {
    let have = data.len() as u64;
    let (start, end) = (start.min(have), start.saturating_add(length).min(have));
    if end == have {
        return truncate(data, start);
    }
    let mut out = data.to_vec();
    out[start as usize..end as usize].fill(0);
    out.into()
}

/// The number of blocks of 512 bytes that the bytes take.
pub fn blocks(data: &Bytes) -> u64 {
    (data.len() as u64).div_ceil(512)
}

/// The result of `SEEK_DATA` or `SEEK_HOLE`; `None` past the end of the file, or if no data follows.
pub fn seek(data: &Bytes, size: u64, offset: u64, hole: bool) -> Option<u64> {
    let have = (data.len() as u64).min(size);
    match () {
        () if offset >= size => None,
        () if hole => Some(offset.max(have)),
        () if offset < have => Some(offset),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_no_memory_holds_is_refused() {
        for offset in [u64::MAX, 1 << 62] {
            assert_eq!(write(&Bytes::from_static(b"old"), offset, b"new"), None);
        }
    }

    /// Random operations on a file, against a plain vector.
    #[test]
    fn a_file_with_a_short_record_reads_like_a_vector() {
        let mut rng = stdx::Rng::new(7);
        let (mut data, mut model) = (Bytes::new(), Vec::new());
        for step in 0..5000 {
            let (offset, length) = (rng.below(300), rng.below(100));
            match rng.below(4) {
                0 => {
                    let new = vec![step as u8 | 1; length as usize];
                    if !new.is_empty() {
                        data = write(&data, offset, &new).unwrap();
                        let end = offset as usize + new.len();
                        model.resize(model.len().max(end), 0);
                        model[offset as usize..end].copy_from_slice(&new);
                    }
                }
                1 => {
                    data = truncate(&data, offset);
                    model.resize(offset as usize, 0);
                }
                _ => {
                    data = zero(&data, offset, length);
                    let (start, end) =
                        ((offset as usize).min(model.len()), ((offset + length) as usize).min(model.len()));
                    model[start..end].fill(0);
                }
            }
            let size = model.len() as u64;
            assert!(data.len() as u64 <= size);
            let (from, count) = (rng.below(300), rng.below(200));
            let end = (from + count).min(size).max(from) as usize;
            let expected = model.get(from as usize..end).unwrap_or(&[]);
            assert_eq!(read(&data, size, from, count as u32)[..], *expected);
            match seek(&data, size, from, false) {
                Some(at) => assert!(at == from && at < size),
                None => assert!(from >= size || model[from as usize..].iter().all(|&byte| byte == 0)),
            }
            assert_eq!(seek(&data, size, from, true).is_none(), from >= size);
        }
    }

    #[test]
    fn a_hole_begins_where_the_bytes_end() {
        let data = Bytes::from_static(b"data");
        for (offset, hole) in [(0, 4), (4, 4), (7, 7)] {
            assert_eq!(seek(&data, 9, offset, true), Some(hole));
        }
    }
}
