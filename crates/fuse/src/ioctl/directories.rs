//! What the verbs about metadata targets of directories take and give.

use std::cmp::Ordering;
use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use bytes::{Buf, BufMut};
use client::api::{DirStripes, STRIPES_MAX};
use prost::Message;
use proto::msg::{DirDefault, Lmv, Stripe};
use proto::{Errno, Fid};

use super::{ANSWER_MAX, INPUT_MAX, Verb, ask, ask_at};

/// A directory to be made on metadata targets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewDirectory {
    /// Indexes of the targets of its stripes, the first of which has the directory itself. One: it is not striped.
    pub mdts: Vec<u32>,
    /// The function that assigns names to stripes, a [`proto::msg::DirHash`].
    pub hash: i32,
    /// Permission bits.
    pub mode: u32,
    /// Bits to clear from them where the directory above has no default ACL.
    pub umask: u32,
    /// Its name.
    pub name: Vec<u8>,
}

impl NewDirectory {
    /// Bytes before the runs.
    const HEAD: usize = 14;
    /// Bytes of a run.
    const RUN: usize = 4;

    /// The input of [`Verb::MkdirOn`]; `None` if its list of targets is too long, even as runs of consecutive indexes.
    pub fn input(&self) -> Option<Vec<u8>> {
        let runs = self.mdts.chunk_by(|one, next| one + 1 == *next);
        let runs: Option<Vec<[u16; 2]>> =
            runs.map(|run| Some([u16::try_from(*run.first()?).ok()?, u16::try_from(run.len()).ok()?])).collect();
        let runs = runs?;
        let mut input = Vec::with_capacity(Self::HEAD + Self::RUN * runs.len() + self.name.len());
        input.put_u32_le(self.mode);
        input.put_u32_le(self.umask);
        input.put_i32_le(self.hash);
        input.put_u16_le(u16::try_from(runs.len()).ok()?);
        runs.into_iter().flatten().for_each(|number| input.put_u16_le(number));
        input.put_slice(&self.name);
        (input.len() <= INPUT_MAX).then_some(input)
    }

    /// Parses such input.
    ///
    /// # Errors
    /// `EOVERFLOW`: too many stripes. `EINVAL`: anything else is wrong.
    pub fn parse(mut input: &[u8]) -> Result<NewDirectory, Errno> {
        if input.len() < Self::HEAD {
            return Err(Errno::EINVAL);
        }
        let (mode, umask, hash) = (input.get_u32_le(), input.get_u32_le(), input.get_i32_le());
        let runs = usize::from(input.get_u16_le());
        let (mut runs, name) = input.split_at_checked(Self::RUN * runs).ok_or(Errno::EINVAL)?;
        let mut mdts = Vec::new();
        while runs.has_remaining() {
            let (first, length) = (runs.get_u16_le(), runs.get_u16_le());
            let last = length.checked_sub(1).and_then(|more| first.checked_add(more)).ok_or(Errno::EINVAL)?;
            if mdts.len() + usize::from(length) > STRIPES_MAX {
                return Err(Errno::EOVERFLOW);
            }
            mdts.extend((first..=last).map(u32::from));
        }
        if mdts.is_empty() {
            return Err(Errno::EINVAL);
        }
        Ok(NewDirectory { mdts, hash, mode, umask, name: name.to_vec() })
    }
}

/// [`DirLayout::hash`]: names move because the function has changed.
pub const MOVING: u32 = 0x8000_0000;
/// [`DirLayout::hash`]: names move to stripes that the directory has got.
pub const SPLITTING: u32 = 0x0800_0000;
/// [`DirLayout::hash`]: names move away from stripes that the directory loses.
pub const MERGING: u32 = 0x0400_0000;

/// The layout of a striped directory, with all of its stripes or some.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirLayout {
    /// The function that assigns names to stripes, a [`proto::msg::DirHash`]; in the high bits what happens to the layout,
    /// [`MOVING`], [`SPLITTING`] or [`MERGING`].
    pub hash: u32,
    /// Incremented by every change of the layout.
    pub version: u32,
    /// Number of stripes.
    pub count: u32,
    /// For each stripe the index of its metadata target, and its FID.
    pub stripes: Vec<(u32, Fid)>,
}

impl DirLayout {
    /// Bytes before the stripes.
    const HEAD: usize = 12;
    /// Bytes of a stripe.
    const STRIPE: usize = 16;

    /// The output of [`Verb::GetDirLayout`]: as many stripes as fit, from number `first` on.
    pub(crate) fn output(lmv: &Lmv, first: u32) -> Vec<u8> {
        let mut output = Vec::new();
        let moving = match lmv.count.cmp(&lmv.former_count) {
            _ if !lmv.is_moving() => 0,
            Ordering::Equal => MOVING,
            Ordering::Greater => SPLITTING,
            Ordering::Less => MERGING,
        };
        output.put_u32_le(lmv.hash as u32 | moving);
        output.put_u32_le(lmv.version);
        output.put_u32_le(lmv.count);
        let stripes = lmv.stripes.iter().skip(first as usize);
        for Stripe { fid, mdt } in stripes.take((ANSWER_MAX - Self::HEAD) / Self::STRIPE) {
            output.put_u32_le(*mdt);
            output.put_u64_le(fid.seq);
            output.put_u32_le(fid.oid);
        }
        output
    }

    /// Parses such output; the directory is not striped if there is none.
    ///
    /// # Errors
    /// `InvalidData`.
    fn parse(mut output: &[u8]) -> io::Result<Option<DirLayout>> {
        if output.is_empty() {
            return Ok(None);
        }
        if output.len() < Self::HEAD {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let (hash, version, count) = (output.get_u32_le(), output.get_u32_le(), output.get_u32_le());
        let (stripes, []) = output.as_chunks::<{ Self::STRIPE }>() else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let stripe = |stripe: &[u8; Self::STRIPE]| {
            let mut stripe = &stripe[..];
            (stripe.get_u32_le(), Fid { seq: stripe.get_u64_le(), oid: stripe.get_u32_le(), ver: 0 })
        };
        Ok(Some(DirLayout { hash, version, count, stripes: stripes.iter().map(stripe).collect() }))
    }
}

/// The layout of a directory with all of its stripes; `None` if it is not striped.
///
/// # Errors
/// Those of [`ask`]; `ENOTDIR` for anything else than a directory.
pub fn dir_layout(path: &Path) -> io::Result<Option<DirLayout>> {
    whole(|first| ask(path, Verb::GetDirLayout, &first.to_le_bytes()))
}

/// The same for a name in an open directory, without the stripes. A symbolic link is not followed.
///
/// # Errors
/// As [`dir_layout`].
pub fn dir_layout_head_at(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<DirLayout>> {
    let no_stripes = u32::MAX.to_le_bytes();
    DirLayout::parse(&ask_at(directory, name, Verb::GetDirLayout, &no_stripes)?)
}

/// The input of [`Verb::SetDirDefault`], and the output of [`Verb::GetDirDefault`].
pub fn default_bytes(default: Option<&DirDefault>) -> Vec<u8> {
    match default {
        Some(default) => [vec![1], default.encode_to_vec()].concat(),
        None => vec![0],
    }
}

/// Parses such bytes.
///
/// # Errors
/// `EINVAL`.
pub fn parse_default(bytes: &[u8]) -> Result<Option<Box<DirDefault>>, Errno> {
    match bytes {
        [0] => Ok(None),
        [1, default @ ..] => {
            DirDefault::decode(default).map(|default| Some(Box::new(default))).map_err(|_| Errno::EINVAL)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// The input of [`Verb::SetDirLayout`]; `None` if it is too long, or an index too great.
pub fn stripes_bytes(wish: &DirStripes) -> Option<Vec<u8>> {
    let mut input = Vec::new();
    input.put_i32_le(wish.hash);
    input.put_u32_le(wish.count);
    for mdt in &wish.added {
        input.put_u16_le(u16::try_from(*mdt).ok()?);
    }
    (input.len() <= INPUT_MAX).then_some(input)
}

/// Parses such input.
pub(crate) fn parse_stripes(mut input: &[u8]) -> Option<DirStripes> {
    let (hash, count) = (input.try_get_i32_le().ok()?, input.try_get_u32_le().ok()?);
    let (added, []) = input.as_chunks::<2>() else { return None };
    let added = added.iter().map(|mdt| u16::from_le_bytes(*mdt).into()).collect();
    Some(DirStripes { count, added, hash })
}

/// The default of a directory for new directories.
///
/// # Errors
/// Those of [`ask`]; `ENOTDIR` for anything else than a directory.
pub fn dir_default(path: &Path) -> io::Result<Option<Box<DirDefault>>> {
    parse_default(&ask(path, Verb::GetDirDefault, &[])?).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// A layout whose stripes take several answers. If it changes meanwhile, all is asked for again.
fn whole(ask: impl Fn(u32) -> io::Result<Vec<u8>>) -> io::Result<Option<DirLayout>> {
    let Some(mut all) = DirLayout::parse(&ask(0)?)? else { return Ok(None) };
    while (all.stripes.len() as u32) < all.count {
        let Some(more) = DirLayout::parse(&ask(all.stripes.len() as u32)?)? else { return Ok(None) };
        if (more.hash, more.version, more.count) != (all.hash, all.version, all.count) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if more.stripes.is_empty() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        all.stripes.extend(more.stripes);
    }
    Ok(Some(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(mdts: Vec<u32>) -> NewDirectory {
        NewDirectory { mdts, hash: 2, mode: 0o1777, umask: 0o22, name: vec![b'n'; 255] }
    }

    #[test]
    fn a_new_directory_round_trips() {
        let all_targets_five_times: Vec<u32> = (0..2000).map(|stripe| (stripe + 123) % 400).collect();
        for mdts in [vec![7], vec![3, 0, 1, 2, 0], vec![65535], all_targets_five_times] {
            let new = on(mdts);
            assert_eq!(NewDirectory::parse(&new.input().unwrap()), Ok(new));
        }
    }

    #[test]
    fn other_stripes_round_trip() {
        for added in [vec![], vec![3], vec![0, 65535, 7]] {
            let wish = DirStripes { count: 1 + added.len() as u32, added, hash: 3 };
            assert_eq!(parse_stripes(&stripes_bytes(&wish).unwrap()), Some(wish));
        }
        let many = |count| stripes_bytes(&DirStripes { count: 2, added: vec![1; count], hash: 0 });
        assert!(many(2000).is_some() && many(2100).is_none());
        assert_eq!(stripes_bytes(&DirStripes { count: 2, added: vec![65536], hash: 0 }), None);
        for bad in [&[][..], &[0; 7], &[0; 9]] {
            assert_eq!(parse_stripes(bad), None);
        }
    }

    #[test]
    fn lists_of_targets_that_cannot_be_sent_are_found_by_the_sender() {
        let scattered = |count: u32| on((0..count).map(|stripe| 2 * stripe).collect()).input();
        assert!(scattered(900).is_some() && scattered(1000).is_none());
        assert_eq!(on(vec![65536]).input(), None);
    }

    #[test]
    fn bad_lists_of_targets_are_refused() {
        let input = |runs: &[[u16; 2]], announced: u16| {
            let mut input = [0u8; 12].to_vec();
            input.put_u16_le(announced);
            runs.iter().flatten().for_each(|number| input.put_u16_le(*number));
            input
        };
        let fine = NewDirectory::parse(&input(&[[1, 2], [0, 1]], 2)).unwrap();
        assert_eq!((fine.mdts, fine.name), (vec![1, 2, 0], Vec::new()));
        for (runs, announced, error) in [
            (&[][..], 0, Errno::EINVAL),
            (&[[1, 2]], 2, Errno::EINVAL),
            (&[[1, 2]], u16::MAX, Errno::EINVAL),
            (&[[1, 0]], 1, Errno::EINVAL),
            (&[[u16::MAX, 2]], 1, Errno::EINVAL),
            (&[[0, 2000], [0, 1]], 2, Errno::EOVERFLOW),
            (&[[0, u16::MAX]], 1, Errno::EOVERFLOW),
        ] {
            assert_eq!(NewDirectory::parse(&input(runs, announced)), Err(error), "{runs:?}");
        }
        assert_eq!(NewDirectory::parse(&[0; 13]), Err(Errno::EINVAL));
    }

    #[test]
    fn a_default_round_trips() {
        let full = DirDefault {
            count: -5,
            overstripe: true,
            mdts: (65_000..).take(proto::msg::DIR_DEFAULT_TARGETS_MAX).collect(),
            hash: 4,
            max_inherit: 250,
            max_inherit_rr: 255,
        };
        for default in [None, Some(DirDefault::default()), Some(full)] {
            let bytes = default_bytes(default.as_ref());
            assert!(bytes.len() <= INPUT_MAX);
            assert_eq!(parse_default(&bytes), Ok(default.map(Box::new)));
        }
        for bad in [&[][..], &[0, 0], &[2], &[1, 0xff]] {
            assert_eq!(parse_default(bad), Err(Errno::EINVAL), "{bad:?}");
        }
    }

    #[test]
    fn a_layout_comes_in_as_many_answers_as_it_takes() {
        for count in [1, 254, 255, 508, 2000] {
            let stripe = |oid| Stripe { fid: Fid { seq: 0x200000400, oid, ver: 0 }, mdt: oid % 400 };
            let stripes: Vec<Stripe> = (1..=count).map(stripe).collect();
            let lmv = Lmv { hash: 4, count, version: 3, stripes: stripes.clone(), ..Lmv::default() };
            let answer = |first| {
                let output = DirLayout::output(&lmv, first);
                assert!(output.len() <= ANSWER_MAX);
                Ok(output)
            };
            let stripes = stripes.iter().map(|stripe| (stripe.mdt, stripe.fid)).collect();
            let layout = DirLayout { hash: 4, version: 3, count, stripes };
            assert_eq!(whole(answer).unwrap(), Some(layout));
            let head = DirLayout::parse(&answer(u32::MAX).unwrap()).unwrap().unwrap();
            assert!(head.count == count && head.stripes.is_empty());
        }
        assert_eq!(whole(|_| Ok(Vec::new())).unwrap(), None);
    }

    #[test]
    fn a_layout_that_changes_or_ends_too_early_is_an_error() {
        let lmv = |version| Lmv { count: 3, version, stripes: vec![Stripe::default(); 2], ..Lmv::default() };
        let error = |answer: &dyn Fn(u32) -> io::Result<Vec<u8>>| whole(answer).unwrap_err().kind();
        let changing = |first| Ok(DirLayout::output(&lmv(first), first));
        assert_eq!(error(&changing), io::ErrorKind::Interrupted);
        let short = |first| Ok(DirLayout::output(&lmv(1), first));
        assert_eq!(error(&short), io::ErrorKind::InvalidData);
        for bad in [4, 11, 13, 29] {
            assert_eq!(error(&|_| Ok(vec![0; bad])), io::ErrorKind::InvalidData, "{bad} bytes");
        }
    }
}
