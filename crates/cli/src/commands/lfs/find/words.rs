//! The options of `lfs find`: with one dash or two, with `!` before a test; and the tests that they stand for.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::{Arg, ArgAction, ArgMatches, value_parser};
use jiff::civil::{Date, DateTime, Time};
use jiff::{Timestamp, Zoned};
use rustix::fs::{AtFlags, CWD, FileType};

use super::candidate::stat;
use super::condition::{Condition, Moment, Pattern, Stamp, Test};
use super::format::Format;
use super::glob::Glob;
use super::mode::Permissions;
use super::number::Range;
use crate::commands::lfs::directories::hash_named;

const MINUTE: u64 = 60;
const DAY: u64 = 24 * 3600;

/// An option that takes a value: its names and its help.
struct Word {
    long: &'static str,
    aliases: &'static [&'static str],
    short: Option<char>,
    value: &'static str,
    help: &'static str,
}

const fn word(
    long: &'static str,
    aliases: &'static [&'static str],
    short: Option<char>,
    value: &'static str,
    help: &'static str,
) -> Word {
    Word { long, aliases, short, value, help }
}

/// The tests.
const TESTS: [Word; 32] = [
    word("name", &[], Some('n'), "PATTERN", "The name matches a pattern of the shell"),
    word("type", &[], Some('t'), "KIND", "The kind: b, c, d, f, l, p or s"),
    word("size", &[], Some('s'), "[+-]N[bkMGTPE]", "The size; bytes without a unit"),
    word("blocks", &[], Some('b'), "[+-]N[bkMGTPE]", "The space that is taken; kibibytes without a unit"),
    word("atime", &[], Some('A'), "[+-]N[smhdwy]", "The age of the last access; days without a unit"),
    word("mtime", &[], Some('M'), "[+-]N[smhdwy]", "The age of the last change of the data"),
    word("ctime", &[], Some('C'), "[+-]N[smhdwy]", "The age of the last change of the attributes"),
    word("btime", &["Btime", "crtime"], Some('B'), "[+-]N[smhdwy]", "The age of the file, where that is known"),
    word("amin", &[], None, "[+-]N[smhdwy]", "As --atime; minutes without a unit"),
    word("mmin", &[], None, "[+-]N[smhdwy]", "As --mtime; minutes without a unit"),
    word("cmin", &[], None, "[+-]N[smhdwy]", "As --ctime; minutes without a unit"),
    word("bmin", &[], None, "[+-]N[smhdwy]", "As --btime; minutes without a unit"),
    word(
        "newer",
        &["anewer", "cnewer"],
        None,
        "FILE",
        "Changed after FILE; --newerXY compares time X with time Y of FILE (a, b, c or m), or with the date FILE if Y is t",
    ),
    word("uid", &[], Some('u'), "UID", "The owner, as a number"),
    word("user", &[], Some('U'), "NAME", "The owner"),
    word("gid", &[], Some('g'), "GID", "The group, as a number"),
    word("group", &[], Some('G'), "NAME", "The group"),
    word("perm", &[], None, "[-/]MODE", "The permissions: exactly these, all of these (-), one of these (/)"),
    word("links", &[], None, "[+-]N", "The number of links"),
    word("mindepth", &[], None, "N", "At least N levels below the paths"),
    word(
        "mdt",
        &["mdt-index"],
        Some('m'),
        "INDEX,...",
        "On one of these metadata targets; a striped directory is on its first",
    ),
    word("mdt-count", &[], Some('T'), "[+-]N", "Stripes of a directory; 0 if it is not striped"),
    word(
        "mdt-hash",
        &[],
        Some('H'),
        "HASH,...",
        "The hash of a striped directory: all_char, fnv_1a_64, crush or crush2",
    ),
    word("ost", &["obd"], Some('O'), "OST,...", "Has data on one of these object targets: names or indices"),
    word("stripe-index", &[], Some('i'), "INDEX,...", "As --ost, with indices only"),
    word("stripe-count", &[], Some('c'), "[+-]N", "Stripes of a file, or of a directory's new files"),
    word("stripe-size", &[], Some('S'), "[+-]N[kMG]", "Bytes in a stripe of a file, or of a directory's new files"),
    word("layout", &[], Some('L'), "KIND", "The kind of the layout: mdt, raid0 or released"),
    word("pool", &[], None, "POOL", "The pool of a file, or of a directory's new files: POOL or FSNAME.POOL"),
    word("maxdepth", &[], Some('D'), "N", "At most N levels below the paths"),
    word(
        "printf",
        &[],
        None,
        "FORMAT",
        "Print this for each name: %p %s %b %k %m %n %U %G %y, %a %c %t %w and %A@ ..., %LF %Lc %LS %Li %Lo",
    ),
    word("threads", &["thread-count"], None, "N", "Number of threads; by default 4 to 16, depending on the processors"),
];

/// Options that are not tests.
const SETTINGS: [&str; 3] = ["maxdepth", "printf", "threads"];

/// Options of Lustre that this version lacks.
const LACKING: [(&str, Option<char>); 23] = [
    ("attrs", None),
    ("component-count", None),
    ("comp-count", None),
    ("component-end", Some('E')),
    ("comp-end", None),
    ("component-flags", None),
    ("comp-flags", None),
    ("component-start", None),
    ("comp-start", None),
    ("extension-size", Some('z')),
    ("ext-size", None),
    ("foreign", None),
    ("hash-flag", None),
    ("hash-type", None),
    ("mirror-count", Some('N')),
    ("mirror-state", None),
    ("nlink", None),
    ("project", None),
    ("projid", None),
    ("skip", None),
    ("statx", None),
    ("xattr", None),
    ("xattr-match", None),
];

/// The letters of `--newerXY`.
fn pairs() -> impl Iterator<Item = String> {
    "abBcm".chars().flat_map(|of| "abBcmt".chars().map(move |than| format!("newer{of}{than}")))
}

/// The options for clap, which also makes the help, the man page and the completions from them.
pub(super) fn arguments() -> Vec<Arg> {
    let valued = |name: String, help: &'static str| {
        Arg::new(name.clone())
            .long(name)
            .help(help)
            .action(ArgAction::Append)
            .allow_hyphen_values(true)
            .value_parser(value_parser!(OsString))
    };
    let flag = |name: &'static str, help: &'static str| Arg::new(name).long(name).help(help).action(ArgAction::SetTrue);
    let mut all = vec![
        Arg::new("not")
            .long("not")
            .help("Negate the next test; '!' is the same")
            .action(ArgAction::Append)
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("")
            .hide_possible_values(true),
    ];
    all.extend(TESTS.iter().map(|word| {
        let arg = valued(word.long.to_owned(), word.help).value_name(word.value).aliases(word.aliases.iter().copied());
        match word.short {
            Some(short) => arg.short(short),
            None => arg,
        }
    }));
    all.extend(pairs().map(|name| valued(name, "").hide(true)));
    all.extend(LACKING.iter().map(|(name, short)| {
        let arg = valued((*name).to_owned(), "").num_args(0..=1).default_missing_value("").hide(true);
        match short {
            Some(short) => arg.short(*short),
            None => arg,
        }
    }));
    all.push(flag("print", "Print the path of each name on a line (the default)").short('P').short_alias('p'));
    all.push(
        flag("print0", "Print the path of each name, followed by a zero byte").short('0').conflicts_with("printf"),
    );
    all.push(flag("lazy", "Use attributes that this client has cached, even if they are old").short('l'));
    all.push(
        Arg::new("paths")
            .help("Where to search")
            .value_name("PATH")
            .required(true)
            .num_args(1..)
            .value_parser(value_parser!(PathBuf)),
    );
    all
}

/// The words of `lfs find` in the form that clap takes, if `find` is the word at `at`: `!` becomes `--not`, `-name` becomes
/// `--name`. Values of options stay as they are.
pub(crate) fn plain(words: Vec<OsString>, at: usize) -> Vec<OsString> {
    if words.get(at).is_none_or(|word| word != "find") {
        return words;
    }
    let mut plain = Vec::with_capacity(words.len());
    let mut words = words.into_iter();
    plain.extend(words.by_ref().take(at + 1));
    while let Some(word) = words.next() {
        let (word, takes_next) = match word.as_bytes() {
            b"--" => {
                plain.push(word);
                break;
            }
            b"!" => (OsString::from("--not"), false),
            [b'-', b'-', name @ ..] => {
                let takes = is_valued(name);
                (word, takes)
            }
            [b'-', name @ ..] if is_long(name) => {
                (OsString::from_vec([b"-", word.as_bytes()].concat()), is_valued(name))
            }
            [b'-', short] => {
                let takes = TESTS.iter().any(|test| test.short.map(|c| c as u8) == Some(*short));
                (word, takes)
            }
            _ => (word, false),
        };
        plain.push(word);
        plain.extend(takes_next.then(|| words.next()).flatten());
    }
    plain.extend(words);
    plain
}

/// Whether a long option, which includes any `=`, takes the next word as its value.
fn is_valued(name: &[u8]) -> bool {
    TESTS.iter().any(|word| names(word).any(|long| long.as_bytes() == name))
        || pairs().any(|pair| pair.as_bytes() == name)
}

fn is_long(name: &[u8]) -> bool {
    let name = name.split(|byte| *byte == b'=').next().unwrap_or_default();
    is_valued(name)
        // A mistyped word is reported whole, rather than taken as a short option with a strange value.
        || (name.len() > 2 && name.iter().all(u8::is_ascii_lowercase))
        || [&b"not"[..], b"print", b"print0", b"lazy", b"help"].contains(&name)
        || LACKING.iter().any(|(long, _)| long.as_bytes() == name)
}

fn names(word: &Word) -> impl Iterator<Item = &'static str> {
    std::iter::once(word.long).chain(word.aliases.iter().copied())
}

/// The option that this version lacks, if one was given.
pub(super) fn lacking(matches: &ArgMatches) -> Option<&'static str> {
    LACKING.iter().map(|(name, _)| *name).find(|name| matches.contains_id(name))
}

/// The tests in the order in which they were given, each with whether it is negated.
///
/// # Errors
/// What is wrong, as a sentence.
pub(super) fn conditions(matches: &ArgMatches) -> anyhow::Result<Vec<Condition>> {
    let mut given: Vec<(usize, Option<(String, OsString)>)> = Vec::new();
    given.extend(matches.indices_of("not").into_iter().flatten().map(|at| (at, None)));
    let tests = TESTS.iter().map(|word| word.long.to_owned()).filter(|long| !SETTINGS.contains(&long.as_str()));
    for name in tests.chain(pairs()) {
        let values = matches.get_many::<OsString>(&name).into_iter().flatten();
        let places = matches.indices_of(&name).into_iter().flatten();
        given.extend(places.zip(values).map(|(at, value)| (at, Some((name.clone(), value.clone())))));
    }
    given.sort_by_key(|(at, _)| *at);
    let (mut all, mut not) = (Vec::new(), false);
    for (_, word) in given {
        match word {
            None => not = !not,
            Some((name, value)) => {
                all.push(Condition { test: test(&name, &value)?, not });
                not = false;
            }
        }
    }
    if not { Err(anyhow!("'!' turns the next test round, and none follows")) } else { Ok(all) }
}

fn test(name: &str, value: &OsStr) -> anyhow::Result<Test> {
    if name == "name" {
        return Ok(Test::Name(Glob::parse(value.as_bytes())));
    }
    if let Some(pair) = name.strip_prefix("newer") {
        return newer(pair, Path::new(value));
    }
    let text = value.to_str().ok_or_else(|| anyhow!("--{name}: '{}' is no text", value.display()))?;
    let age = |stamp, unit| Range::age(text, unit).map(|range| Test::Age(stamp, range));
    let test = match name {
        "type" => kind(text).map(Test::Kind),
        "size" => Range::size(text, 1).map(Test::Size),
        "blocks" => Range::size(text, 1024).map(Test::Blocks),
        "atime" => age(Stamp::Access, DAY),
        "mtime" => age(Stamp::Modification, DAY),
        "ctime" => age(Stamp::Change, DAY),
        "btime" => age(Stamp::Birth, DAY),
        "amin" => age(Stamp::Access, MINUTE),
        "mmin" => age(Stamp::Modification, MINUTE),
        "cmin" => age(Stamp::Change, MINUTE),
        "bmin" => age(Stamp::Birth, MINUTE),
        "uid" => text.parse().map(Test::User).map_err(|_| anyhow!("'{text}' is not the number of a user")),
        "gid" => text.parse().map(Test::Group).map_err(|_| anyhow!("'{text}' is not the number of a group")),
        "user" => user(text).map(Test::User),
        "group" => group(text).map(Test::Group),
        "perm" => Permissions::parse(text).map(Test::Permissions),
        "links" => Range::plain(text).map(Test::Links),
        "mindepth" => depth(text).map(Test::DepthAtLeast),
        "mdt" => targets(text, "MDT").map(Test::Mdt),
        "mdt-count" => Range::plain(text).map(Test::MdtCount),
        "mdt-hash" => hashes(text).map(Test::MdtHash),
        "ost" => targets(text, "OST").map(Test::Osts),
        "stripe-index" => targets(text, "OST").map(Test::Osts),
        "stripe-count" => Range::plain(text).map(Test::StripeCount),
        "stripe-size" => Range::size(text, 1).map(Test::StripeSize),
        "pool" => Ok(Test::Pool(text.split_once('.').map_or(text, |(_, pool)| pool).to_owned())),
        _ => match text {
            "mdt" => Ok(Test::Pattern(Pattern::Mdt)),
            "raid0" => Ok(Test::Pattern(Pattern::Raid0)),
            "released" => Ok(Test::Pattern(Pattern::Released)),
            _ => Err(anyhow!("'{text}' is not a kind of layout; there are mdt, raid0 and released")),
        },
    };
    test.with_context(|| format!("--{name}"))
}

fn kind(text: &str) -> anyhow::Result<FileType> {
    match text {
        "b" => Ok(FileType::BlockDevice),
        "c" => Ok(FileType::CharacterDevice),
        "d" => Ok(FileType::Directory),
        "f" => Ok(FileType::RegularFile),
        "l" => Ok(FileType::Symlink),
        "p" => Ok(FileType::Fifo),
        "s" => Ok(FileType::Socket),
        _ => Err(anyhow!("'{text}' is not a kind of file; there are b, c, d, f, l, p and s")),
    }
}

fn depth(text: &str) -> anyhow::Result<usize> {
    text.parse().map_err(|_| anyhow!("'{text}' is not a number of levels"))
}

fn hashes(text: &str) -> anyhow::Result<Vec<u32>> {
    let number = |name: &str| {
        let hash = hash_named(name).map(|hash| hash as u32);
        hash.ok_or_else(|| anyhow!("'{name}' is not a hash; there are all_char, fnv_1a_64, crush, crush2 and none"))
    };
    text.split(',').map(number).collect()
}

/// The text is looked up as a name first, because a user may be called 42.
fn user(text: &str) -> anyhow::Result<u32> {
    match nix::unistd::User::from_name(text) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        _ => text.parse().map_err(|_| anyhow!("there is no user '{text}'")),
    }
}

fn group(text: &str) -> anyhow::Result<u32> {
    match nix::unistd::Group::from_name(text) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        _ => text.parse().map_err(|_| anyhow!("there is no group '{text}'")),
    }
}

/// The indexes in a list of targets: `demo-OST0001`, `OST0001_UUID`, `1`, separated by commas.
fn targets(text: &str, kind: &str) -> anyhow::Result<Vec<u32>> {
    let target = |part: &str| {
        let name = part.strip_suffix("_UUID").unwrap_or(part);
        let index = match name.rsplit_once(kind) {
            Some((before, hex)) if before.is_empty() || before.ends_with('-') => u32::from_str_radix(hex, 16).ok(),
            Some(_) => None,
            None => match name.strip_prefix("0x") {
                Some(hex) => u32::from_str_radix(hex, 16).ok(),
                None => name.parse().ok(),
            },
        };
        index.ok_or_else(|| anyhow!("'{part}' is not a target; expected {kind}0001, demo-{kind}0001 or an index"))
    };
    text.split(',').map(target).collect()
}

/// The file systems in the names of targets: `demo` for `demo-OST0001`.
pub(super) fn file_systems(matches: &ArgMatches) -> Vec<String> {
    let values = ["ost", "mdt"].into_iter().flat_map(|name| matches.get_many::<OsString>(name).into_iter().flatten());
    let mut found: Vec<String> = values
        .filter_map(|value| value.to_str())
        .flat_map(|value| value.split(','))
        .filter_map(|part| part.rsplit_once("-OST").or_else(|| part.rsplit_once("-MDT")))
        .map(|(fsname, _)| fsname.to_owned())
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// `--newer` (without letters) and `--newerXY`.
fn newer(pair: &str, reference: &Path) -> anyhow::Result<Test> {
    let mut letters = pair.chars();
    let (of, than) = (letters.next().unwrap_or('m'), letters.next().unwrap_or('m'));
    let stamp = |letter| match letter {
        'a' => Stamp::Access,
        'b' | 'B' => Stamp::Birth,
        'c' => Stamp::Change,
        _ => Stamp::Modification,
    };
    let moment = match than {
        't' => date(reference.to_str().unwrap_or_default(), &Zoned::now()).ok_or_else(|| {
            anyhow!(
                "--newer{pair}: '{}' is not a date; expected one like '2026-01-31 12:00', '12:00' or @1767225600",
                reference.display()
            )
        })?,
        letter => {
            let found = stat(CWD, reference.as_os_str(), false, AtFlags::empty())
                .with_context(|| format!("--newer{pair}: '{}'", reference.display()))?;
            found
                .time(stamp(letter))
                .ok_or_else(|| anyhow!("--newer{pair}: nobody knows when '{}' was made", reference.display()))?
        }
    };
    Ok(Test::Newer(stamp(of), moment))
}

/// Parses a date and a time, one of them, or seconds since 1970. Missing parts of a time are 0; a missing date is today's.
fn date(text: &str, now: &Zoned) -> Option<Moment> {
    if let Ok(seconds) = text.strip_prefix('@').unwrap_or(text).parse::<i64>() {
        return Some((seconds, 0));
    }
    let whole = ["%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M"];
    let local = (whole.iter().find_map(|format| DateTime::strptime(format, text).ok()))
        .or_else(|| Date::strptime("%Y-%m-%d", text).ok().map(|date| date.at(0, 0, 0, 0)))
        .or_else(|| {
            let time = ["%H:%M:%S", "%H:%M"].iter().find_map(|format| Time::strptime(format, text).ok())?;
            Some(now.date().to_datetime(time))
        })?;
    let stamp: Timestamp = local.to_zoned(now.time_zone().clone()).ok()?.timestamp();
    Some((stamp.as_second(), 0))
}

/// The depth, the output and the number of threads.
pub(super) struct Settings {
    pub depth_max: usize,
    pub threads: usize,
    pub format: Option<Format>,
}

/// The settings that were given beside the tests.
///
/// # Errors
/// What is wrong, as a sentence.
pub(super) fn settings(matches: &ArgMatches) -> anyhow::Result<Settings> {
    let last = |name: &str| match matches.get_many::<OsString>(name).and_then(Iterator::last) {
        Some(value) => match value.to_str() {
            Some(text) => Ok(Some(text)),
            None => Err(anyhow!("--{name}: '{}' is no text", value.display())),
        },
        None => Ok(None),
    };
    let threads = match last("threads")? {
        Some(text) => text
            .parse()
            .ok()
            .filter(|count| (1..=256).contains(count))
            .ok_or_else(|| anyhow!("--threads: '{text}' is not a number from 1 to 256"))?,
        None => std::thread::available_parallelism().map_or(4, |cpus| (2 * cpus.get()).clamp(4, 16)),
    };
    let depth_max = last("maxdepth")?.map(depth).transpose().context("--maxdepth")?;
    let format = last("printf")?.map(Format::parse).transpose().context("--printf")?;
    Ok(Settings { depth_max: depth_max.unwrap_or(usize::MAX), threads, format })
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;

    fn utc(text: &str) -> Option<Moment> {
        date(text, &Timestamp::from_second(1_767_225_600).unwrap().to_zoned(TimeZone::UTC))
    }

    fn parse(words: &[&str]) -> anyhow::Result<(Vec<Condition>, Vec<PathBuf>)> {
        let words = ["lfs", "find"].iter().chain(words).map(OsString::from).collect();
        let find = clap::Command::new("find").args(arguments());
        let command = clap::Command::new("lfs").subcommand(find);
        let matches = command.try_get_matches_from(plain(words, 1))?;
        let matches = matches.subcommand_matches("find").unwrap();
        if let Some(name) = lacking(matches) {
            anyhow::bail!("lacking {name}");
        }
        settings(matches)?;
        Ok((conditions(matches)?, matches.get_many("paths").unwrap().cloned().collect()))
    }

    fn tests(words: &[&str]) -> Vec<Condition> {
        parse(&[words, &["/mnt"]].concat()).unwrap().0
    }

    #[test]
    fn words_become_tests_with_one_dash_or_two_and_in_any_order() {
        let name = |not| Condition { test: Test::Name(Glob::parse(b"*.c")), not };
        let kind = |not| Condition { test: Test::Kind(FileType::RegularFile), not };
        for (words, expected) in [
            (&["--name", "*.c", "--type", "f"][..], vec![name(false), kind(false)]),
            (&["-name", "*.c", "-type", "f", "-print"], vec![name(false), kind(false)]),
            (&["-n", "*.c", "-tf"], vec![name(false), kind(false)]),
            (&["!", "--name=*.c", "-type", "f"], vec![name(true), kind(false)]),
            (&["-name", "*.c", "!", "-type", "f", "-0"], vec![name(false), kind(true)]),
            (&["--type=f", "--not", "-n", "*.c"], vec![kind(false), name(true)]),
            (&["!", "!", "-type=f", "-not", "-name", "*.c"], vec![kind(false), name(true)]),
            (&[], vec![]),
        ] {
            assert_eq!(tests(words), expected, "{words:?}");
        }
        assert_eq!(tests(&["-name", "!"]), [Condition { test: Test::Name(Glob::parse(b"!")), not: false }]);
        assert_eq!(tests(&["-n", "-type"]), [Condition { test: Test::Name(Glob::parse(b"-type")), not: false }]);
        let (found, paths) = parse(&["a", "-size", "-1M", "b", "--", "-name", "!"]).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(paths, ["a", "b", "-name", "!"].map(PathBuf::from));
    }

    #[test]
    fn each_test_is_known_by_its_names() {
        let age = |unit, text| Range::age(text, unit).unwrap();
        for (words, expected) in [
            (["-mtime", "+30"], Test::Age(Stamp::Modification, age(DAY, "+30"))),
            (["-A", "-1"], Test::Age(Stamp::Access, age(DAY, "-1"))),
            (["-cmin", "5"], Test::Age(Stamp::Change, age(MINUTE, "5"))),
            (["--crtime", "1w"], Test::Age(Stamp::Birth, age(DAY, "1w"))),
            (["-s", "+4G"], Test::Size(Range::size("+4G", 1).unwrap())),
            (["--blocks", "4"], Test::Blocks(Range::size("4", 1024).unwrap())),
            (["-u", "0"], Test::User(0)),
            (["-U", "root"], Test::User(0)),
            (["-G", "root"], Test::Group(0)),
            (["--group", "4294967294"], Test::Group(u32::MAX - 1)),
            (["-perm", "/u+s"], Test::Permissions(Permissions::Any(0o4000))),
            (["-perm", "-644"], Test::Permissions(Permissions::All(0o644))),
            (["-links", "+1"], Test::Links(Range::plain("+1").unwrap())),
            (["-mindepth", "2"], Test::DepthAtLeast(2)),
            (["-O", "demo-OST000a,OST0001_UUID,3,0x10"], Test::Osts(vec![10, 1, 3, 16])),
            (["-i", "2"], Test::Osts(vec![2])),
            (["--mdt", "demo-MDT0000"], Test::Mdt(vec![0])),
            (["-mdt-index", "1,2"], Test::Mdt(vec![1, 2])),
            (["--mdt-count", "+1"], Test::MdtCount(Range::plain("+1").unwrap())),
            (["-T", "-3"], Test::MdtCount(Range::plain("-3").unwrap())),
            (["-mdt-hash", "fnv_1a_64,crush"], Test::MdtHash(vec![2, 3])),
            (["-H", "none"], Test::MdtHash(vec![0])),
            (["-c", "-3"], Test::StripeCount(Range::plain("-3").unwrap())),
            (["-S", "4M"], Test::StripeSize(Range::size("4M", 1).unwrap())),
            (["-L", "released"], Test::Pattern(Pattern::Released)),
            (["-newermt", "@5"], Test::Newer(Stamp::Modification, (5, 0))),
            (["--newerct", "7"], Test::Newer(Stamp::Change, (7, 0))),
        ] {
            assert_eq!(tests(&words), [Condition { test: expected, not: false }], "{words:?}");
        }
        let own = tests(&["-newer", "/proc/self/exe"]);
        assert!(matches!(own[0].test, Test::Newer(Stamp::Modification, (seconds, _)) if seconds > 0), "{own:?}");
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        for (words, said) in [
            (&["-type", "x", "/"][..], "'x'"),
            (&["-size", "big", "/"], "'big'"),
            (&["-O", "demo-MDT0001", "/"], "demo-MDT0001"),
            (&["-O", "1,", "/"], "''"),
            (&["-H", "crush,md5", "/"], "'md5'"),
            (&["-T", "x", "/"], "'x'"),
            (&["-user", "no such user", "/"], "no such user"),
            (&["-newermt", "yesterday", "/"], "yesterday"),
            (&["-newer", "/no/such/file", "/"], "/no/such/file"),
            (&["-newertm", "/", "/"], "-newertm"),
            (&["-maxdepth", "-1", "/"], "maxdepth"),
            (&["-threads", "0", "/"], "threads"),
            (&["-printf", "%q", "/"], "%q"),
            (&["/", "!"], "'!'"),
            (&["-nonsense", "/"], "unexpected"),
            (&["-type"], "type"),
            (&["-print"], "PATH"),
            (&["/", "-projid", "4"], "lacking projid"),
            (&["--skip=flash", "/"], "lacking skip"),
            (&["/", "-N", "+1"], "lacking mirror-count"),
        ] {
            let error = parse(words).unwrap_err();
            assert!(format!("{error:#}").contains(said), "{words:?}: {error:#}");
        }
    }

    #[test]
    fn dates_are_local_and_what_is_missing_is_today_or_midnight() {
        let day = 1_767_225_600; // 2026-01-01
        for (text, expected) in [
            ("2026-01-01 00:00:01", day + 1),
            ("2026-01-01T00:00:01", day + 1),
            ("2026-01-01 10:30", day + 10 * 3600 + 30 * 60),
            ("2026-01-02", day + 86400),
            ("00:01:05", day + 65),
            ("00:01", day + 60),
            ("@12", 12),
            ("12", 12),
            ("-5", -5),
        ] {
            assert_eq!(utc(text), Some((expected, 0)), "{text}");
        }
        assert!(utc("").is_none() && utc("2026-13-01").is_none() && utc("25:00").is_none());
    }
}
