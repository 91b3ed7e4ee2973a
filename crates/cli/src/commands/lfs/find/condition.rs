//! The tests of `lfs find` as values, in the order of their cost.

use std::io;

use proto::msg::Layout;
use rustix::fs::FileType;

use super::glob::Glob;
use super::mode::Permissions;
use super::number::Range;
use crate::commands::lfs::layout::LayoutView;

/// A point of time: seconds since 1970 and nanoseconds.
pub(super) type Moment = (i64, u32);

/// One of a file's times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stamp {
    Access,
    Birth,
    Change,
    Modification,
}

/// The attributes from stat.
#[derive(Clone, Debug)]
pub(super) struct Attributes {
    pub kind: FileType,
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    pub access: Moment,
    pub change: Moment,
    pub modification: Moment,
    /// Not every file system knows it.
    pub birth: Option<Moment>,
}

impl Attributes {
    /// Returns one of the times.
    pub(super) fn time(&self, stamp: Stamp) -> Option<Moment> {
        match stamp {
            Stamp::Access => Some(self.access),
            Stamp::Birth => self.birth,
            Stamp::Change => Some(self.change),
            Stamp::Modification => Some(self.modification),
        }
    }
}

/// Why a fact about a name is not known.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The name was removed in the meantime.
    Gone,
    /// It is on another file system, whose files have no layouts.
    Foreign,
    /// Any other error.
    Failed(io::Error),
}

/// The facts that tests need about a name. Each is looked up when a test needs it.
pub(super) trait Facts {
    /// The last part of its path.
    fn name(&self) -> &[u8];
    /// The depth below the path that was given to the command.
    fn depth(&self) -> usize;
    /// The kind.
    ///
    /// # Errors
    /// See [`Trouble`].
    fn kind(&mut self) -> Result<FileType, Trouble>;
    /// The attributes from stat.
    ///
    /// # Errors
    /// See [`Trouble`].
    fn attributes(&mut self) -> Result<&Attributes, Trouble>;
    /// The layout; only for files and directories.
    ///
    /// # Errors
    /// See [`Trouble`].
    fn layout(&mut self) -> Result<&LayoutView, Trouble>;
    /// The index of its metadata target.
    ///
    /// # Errors
    /// See [`Trouble`].
    fn mdt(&mut self) -> Result<u32, Trouble>;
    /// The stripes of a directory.
    ///
    /// # Errors
    /// See [`Trouble`].
    fn stripes(&mut self) -> Result<Stripes, Trouble>;
}

/// The stripes of a directory; none if it is not striped.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Stripes {
    pub count: u32,
    /// The number of the hash function.
    pub hash: u32,
}

/// A kind of layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pattern {
    /// The data is on the metadata target.
    Mdt,
    /// The data is on object targets.
    Raid0,
    /// The data is in an archive, which this version does not have.
    Released,
}

/// A test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Test {
    Name(Glob),
    DepthAtLeast(usize),
    Kind(FileType),
    Age(Stamp, Range),
    Newer(Stamp, Moment),
    Size(Range),
    /// The space taken, in bytes.
    Blocks(Range),
    Links(Range),
    User(u32),
    Group(u32),
    Permissions(Permissions),
    Mdt(Vec<u32>),
    /// The number of stripes of a directory.
    MdtCount(Range),
    /// The hash functions of a directory, by their numbers.
    MdtHash(Vec<u32>),
    Osts(Vec<u32>),
    StripeCount(Range),
    StripeSize(Range),
    Pattern(Pattern),
    Pool(String),
}

/// The facts that a test needs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Cost {
    /// Those in the directory entry.
    Entry,
    /// Those from stat.
    Attributes,
    /// Those that only the mount knows: the layout, the metadata target.
    Layout,
}

impl Test {
    fn cost(&self) -> Cost {
        match self {
            Test::Name(_) | Test::DepthAtLeast(_) | Test::Kind(_) => Cost::Entry,
            Test::Mdt(_)
            | Test::MdtCount(_)
            | Test::MdtHash(_)
            | Test::Osts(_)
            | Test::StripeCount(_)
            | Test::StripeSize(_)
            | Test::Pattern(_)
            | Test::Pool(_) => Cost::Layout,
            _ => Cost::Attributes,
        }
    }

    fn holds(&self, facts: &mut impl Facts, now: i64) -> Result<bool, Trouble> {
        Ok(match self {
            Test::Name(glob) => glob.matches(facts.name()),
            Test::DepthAtLeast(depth) => facts.depth() >= *depth,
            Test::Kind(kind) => facts.kind()? == *kind,
            Test::Age(stamp, range) => {
                facts.attributes()?.time(*stamp).is_some_and(|time| range.holds_age(now.saturating_sub(time.0)))
            }
            Test::Newer(stamp, than) => facts.attributes()?.time(*stamp).is_some_and(|time| time > *than),
            Test::Size(range) => range.holds_size(facts.attributes()?.size),
            Test::Blocks(range) => range.holds_size(facts.attributes()?.blocks.saturating_mul(512)),
            Test::Links(range) => range.holds_size(facts.attributes()?.links.into()),
            Test::User(uid) => facts.attributes()?.uid == *uid,
            Test::Group(gid) => facts.attributes()?.gid == *gid,
            Test::Permissions(permissions) => permissions.hold(facts.attributes()?.mode),
            Test::Mdt(targets) => targets.contains(&facts.mdt()?),
            Test::MdtCount(_) | Test::MdtHash(_) if facts.kind()? != FileType::Directory => false,
            Test::MdtCount(range) => range.holds_size(facts.stripes()?.count.into()),
            Test::MdtHash(hashes) => hashes.contains(&facts.stripes()?.hash),
            Test::Osts(_) | Test::StripeCount(_) | Test::StripeSize(_) | Test::Pattern(_) | Test::Pool(_) => {
                match facts.kind()? {
                    FileType::RegularFile => self.holds_of_file(facts.layout()?),
                    FileType::Directory => self.holds_of_directory(facts)?,
                    _ => false,
                }
            }
        })
    }

    fn holds_of_file(&self, view: &LayoutView) -> bool {
        let resident = view.layout().resident;
        match self {
            // A file whose data is on the metadata target has no objects.
            Test::Osts(osts) => !resident && view.layout().osts.iter().any(|ost| osts.contains(ost)),
            Test::Pattern(pattern) => *pattern == if resident { Pattern::Mdt } else { Pattern::Raid0 },
            Test::StripeCount(range) => range.holds_size(view.count().try_into().unwrap_or(0)),
            Test::StripeSize(range) => range.holds_size(view.size().into()),
            Test::Pool(pool) => view.layout().pool == *pool,
            _ => false,
        }
    }

    /// A directory has no objects, only the layout for its new files; a count of -1 (all targets) is not a number to
    /// compare with.
    fn holds_of_directory(&self, facts: &mut impl Facts) -> Result<bool, Trouble> {
        Ok(match self {
            Test::StripeCount(range) => {
                u64::try_from(facts.layout()?.count()).is_ok_and(|count| range.holds_size(count))
            }
            Test::StripeSize(range) => range.holds_size(facts.layout()?.size().into()),
            Test::Pool(pool) => facts.layout()?.layout().pool == *pool,
            _ => false,
        })
    }
}

/// A test, or its negation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Condition {
    pub test: Test,
    pub not: bool,
}

/// Conditions that must all hold. Cheap tests run first, so that few names need those that cost a request.
#[derive(Clone, Default, Debug)]
pub(super) struct Conditions {
    all: Vec<Condition>,
    now: i64,
}

impl Conditions {
    /// Ages are relative to `now`, in seconds since 1970.
    pub(super) fn new(mut all: Vec<Condition>, now: i64) -> Conditions {
        all.sort_by_key(|condition| condition.test.cost());
        Conditions { all, now }
    }

    /// Whether all conditions hold.
    ///
    /// # Errors
    /// A fact that could not be obtained.
    pub(super) fn hold(&self, facts: &mut impl Facts) -> Result<bool, Trouble> {
        for Condition { test, not } in &self.all {
            if test.holds(facts, self.now)? == *not {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A layout as `lfs getstripe` shows it.
pub(super) fn view_of(layout: Layout, kind: FileType) -> LayoutView {
    LayoutView::new(layout, kind == FileType::Directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name about which all facts are known, which records how far the tests asked.
    struct Known {
        name: &'static str,
        attributes: Attributes,
        layout: LayoutView,
        stripes: Stripes,
        asked: Option<Cost>,
    }

    impl Facts for Known {
        fn name(&self) -> &[u8] {
            self.name.as_bytes()
        }
        fn depth(&self) -> usize {
            2
        }
        fn kind(&mut self) -> Result<FileType, Trouble> {
            self.asked = self.asked.max(Some(Cost::Entry));
            Ok(self.attributes.kind)
        }
        fn attributes(&mut self) -> Result<&Attributes, Trouble> {
            self.asked = self.asked.max(Some(Cost::Attributes));
            Ok(&self.attributes)
        }
        fn layout(&mut self) -> Result<&LayoutView, Trouble> {
            self.asked = self.asked.max(Some(Cost::Layout));
            Ok(&self.layout)
        }
        fn mdt(&mut self) -> Result<u32, Trouble> {
            self.asked = self.asked.max(Some(Cost::Layout));
            Ok(1)
        }
        fn stripes(&mut self) -> Result<Stripes, Trouble> {
            self.asked = self.asked.max(Some(Cost::Layout));
            Ok(self.stripes)
        }
    }

    const NOW: i64 = 1_000_000;

    fn known(kind: FileType, layout: Layout) -> Known {
        let attributes = Attributes {
            kind,
            mode: 0o640,
            links: 2,
            uid: 7,
            gid: 8,
            size: 3000,
            blocks: 8,
            access: (NOW - 10, 0),
            change: (NOW - 200, 5),
            modification: (NOW - 3000, 0),
            birth: None,
        };
        let stripes = Stripes { count: 4, hash: 2 };
        Known { name: "film.mpg", attributes, layout: view_of(layout, kind), stripes, asked: None }
    }

    fn file() -> Known {
        known(
            FileType::RegularFile,
            Layout { osts: vec![1, 3], stripe_size: 1 << 20, pool: "fast".into(), ..Layout::default() },
        )
    }

    #[track_caller]
    fn check(mut facts: Known, test: Test, expected: bool) {
        for not in [false, true] {
            let conditions = Conditions::new(vec![Condition { test: test.clone(), not }], NOW);
            assert_eq!(conditions.hold(&mut facts).unwrap(), expected != not, "{test:?}");
        }
    }

    #[test]
    fn each_test_and_its_opposite() {
        let size = |text| Range::size(text, 1).unwrap();
        let age = |text| Range::age(text, 86400).unwrap();
        for (test, expected) in [
            (Test::Name(Glob::parse(b"*.mpg")), true),
            (Test::Name(Glob::parse(b"*.mp")), false),
            (Test::DepthAtLeast(2), true),
            (Test::DepthAtLeast(3), false),
            (Test::Kind(FileType::RegularFile), true),
            (Test::Kind(FileType::Fifo), false),
            (Test::Age(Stamp::Access, age("10s")), true),
            (Test::Age(Stamp::Modification, age("+1h")), false),
            (Test::Age(Stamp::Change, age("3m")), true),
            (Test::Age(Stamp::Birth, age("+0s")), false),
            (Test::Newer(Stamp::Change, (NOW - 200, 4)), true),
            (Test::Newer(Stamp::Change, (NOW - 200, 5)), false),
            (Test::Newer(Stamp::Birth, (0, 0)), false),
            (Test::Size(size("3k")), true),
            (Test::Size(size("-3000")), false),
            (Test::Blocks(Range::size("4", 1024).unwrap()), true),
            (Test::Links(Range::plain("+1").unwrap()), true),
            (Test::User(7), true),
            (Test::Group(7), false),
            (Test::Permissions(Permissions::All(0o600)), true),
            (Test::Mdt(vec![0, 1]), true),
            (Test::Mdt(vec![0]), false),
            (Test::Osts(vec![0, 3]), true),
            (Test::Osts(vec![0, 2]), false),
            (Test::StripeCount(Range::plain("2").unwrap()), true),
            (Test::StripeSize(size("1M")), true),
            (Test::StripeSize(size("+1M")), false),
            (Test::Pool("fast".into()), true),
            (Test::Pool("slow".into()), false),
            (Test::Pattern(Pattern::Raid0), true),
            (Test::Pattern(Pattern::Released), false),
        ] {
            check(file(), test, expected);
        }
    }

    #[test]
    fn what_lies_on_the_metadata_target_has_no_objects() {
        let resident = || known(FileType::RegularFile, Layout { resident: true, osts: vec![1], ..Layout::default() });
        check(resident(), Test::Osts(vec![1]), false);
        check(resident(), Test::Pattern(Pattern::Mdt), true);
    }

    #[test]
    fn directories_are_asked_for_the_layout_of_new_files_and_others_for_none() {
        let directory = || known(FileType::Directory, Layout { want_count: -1, generation: 1, ..Layout::default() });
        check(directory(), Test::StripeCount(Range::plain("-2").unwrap()), false);
        check(directory(), Test::StripeSize(Range::size("1M", 1).unwrap()), true);
        check(directory(), Test::Osts(vec![0]), false);
        let mut fifo = known(FileType::Fifo, Layout::default());
        let conditions = Conditions::new(vec![Condition { test: Test::Osts(vec![0]), not: false }], NOW);
        assert!(!conditions.hold(&mut fifo).unwrap() && fifo.asked == Some(Cost::Entry));
    }

    #[test]
    fn only_directories_have_stripes_and_a_hash() {
        let directory = || known(FileType::Directory, Layout::default());
        let count = |text| Test::MdtCount(Range::plain(text).unwrap());
        check(directory(), count("4"), true);
        check(directory(), count("+3"), true);
        check(directory(), count("-4"), false);
        check(directory(), Test::MdtHash(vec![1, 2]), true);
        check(directory(), Test::MdtHash(vec![3]), false);
        check(Known { stripes: Stripes::default(), ..directory() }, count("0"), true);
        check(Known { stripes: Stripes::default(), ..directory() }, Test::MdtHash(vec![0]), true);
        check(file(), count("-100"), false);
        check(file(), Test::MdtHash(vec![0, 1, 2, 3, 4]), false);
    }

    #[test]
    fn cheap_tests_come_first_whatever_the_order_of_words() {
        let all = [Test::Osts(vec![1]), Test::Size(Range::size("1", 1).unwrap()), Test::Name(Glob::parse(b"nothing"))];
        let conditions = |count: usize| {
            Conditions::new(all[..count].iter().map(|test| Condition { test: test.clone(), not: false }).collect(), NOW)
        };
        let mut facts = file();
        assert!(!conditions(3).hold(&mut facts).unwrap() && facts.asked.is_none());
        assert!(!conditions(2).hold(&mut facts).unwrap() && facts.asked == Some(Cost::Attributes));
        assert!(conditions(1).hold(&mut facts).unwrap() && facts.asked == Some(Cost::Layout));
    }
}
