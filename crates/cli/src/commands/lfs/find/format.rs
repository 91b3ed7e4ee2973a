//! `--printf FORMAT`: the output for each name.

use std::io::Write;

use anyhow::{Context, anyhow};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use rustix::fs::FileType;

use super::candidate::Candidate;
use super::condition::{Facts, Moment, Stamp, Trouble};

/// A parsed format.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Format(Vec<Piece>);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Piece {
    Text(Vec<u8>),
    Path,
    /// A figure from stat, by its letter.
    Figure(char),
    /// A time, as text or in seconds since 1970.
    Time(Stamp, bool),
    Fid,
    /// A figure of the layout, by its letter.
    Layout(char),
}

impl Format {
    /// # Errors
    /// What is wrong, as a sentence.
    pub(super) fn parse(text: &str) -> anyhow::Result<Format> {
        let mut pieces = Vec::new();
        let mut plain = Vec::new();
        let mut letters = text.chars().peekable();
        while let Some(letter) = letters.next() {
            match letter {
                '\\' => plain.push(escaped(letters.next())?),
                '%' => {
                    let what = letters.next().context("a format ends in '%'; a percent sign is '%%'")?;
                    if what == '%' {
                        plain.push(b'%');
                        continue;
                    }
                    if !plain.is_empty() {
                        pieces.push(Piece::Text(std::mem::take(&mut plain)));
                    }
                    pieces.push(directive(what, &mut letters)?);
                }
                other => plain.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        Ok(Format(pieces))
    }

    /// Appends the output for a name. If a fact is missing, nothing is printed for the name.
    ///
    /// # Errors
    /// See [`Trouble`].
    pub(super) fn print(&self, name: &mut Candidate<'_>, out: &mut Vec<u8>) -> Result<(), Trouble> {
        let before = out.len();
        for piece in &self.0 {
            if let Err(trouble) = piece.print(name, out) {
                out.truncate(before);
                return Err(trouble);
            }
        }
        Ok(())
    }
}

fn escaped(letter: Option<char>) -> anyhow::Result<u8> {
    match letter {
        Some('n') => Ok(b'\n'),
        Some('t') => Ok(b'\t'),
        Some('r') => Ok(b'\r'),
        Some('0') => Ok(0),
        Some('\\') => Ok(b'\\'),
        other => Err(anyhow!(
            "'\\{}' is not known in a format; there are \\n, \\t, \\r, \\0 and \\\\",
            String::from_iter(other)
        )),
    }
}

fn directive(what: char, letters: &mut std::iter::Peekable<std::str::Chars<'_>>) -> anyhow::Result<Piece> {
    let (small, stamp) = (
        what.is_ascii_lowercase(),
        match what.to_ascii_lowercase() {
            'a' => Some(Stamp::Access),
            'c' => Some(Stamp::Change),
            't' => Some(Stamp::Modification),
            'w' => Some(Stamp::Birth),
            _ => None,
        },
    );
    match (what, stamp) {
        (_, Some(stamp)) if small => Ok(Piece::Time(stamp, true)),
        (_, Some(stamp)) if letters.next_if_eq(&'@').is_some() => Ok(Piece::Time(stamp, false)),
        ('p', _) => Ok(Piece::Path),
        ('b' | 'G' | 'k' | 'm' | 'n' | 's' | 'U' | 'y', _) => Ok(Piece::Figure(what)),
        ('L', _) => match letters.next() {
            Some('F') => Ok(Piece::Fid),
            Some(figure @ ('c' | 'i' | 'o' | 'S')) => Ok(Piece::Layout(figure)),
            other => Err(anyhow!("'%L{}' is not in this version; see limits", String::from_iter(other))),
        },
        _ => Err(anyhow!("'%{what}' is not known in a format; see: lfs find --help")),
    }
}

impl Piece {
    fn print(&self, name: &mut Candidate<'_>, out: &mut Vec<u8>) -> Result<(), Trouble> {
        let text = match self {
            Piece::Text(text) => {
                out.extend_from_slice(text);
                return Ok(());
            }
            Piece::Path => {
                out.extend_from_slice(name.path);
                return Ok(());
            }
            Piece::Figure(letter) => figure(*letter, name)?,
            Piece::Time(stamp, readable) => match name.attributes()?.time(*stamp) {
                Some(time) if *readable => readable_time(time),
                Some(time) => time.0.to_string(),
                None => "0".to_owned(),
            },
            Piece::Fid => name.fid()?.unwrap_or_default(),
            Piece::Layout(letter) => match name.kind()? {
                FileType::RegularFile | FileType::Directory => {
                    let view = name.layout()?;
                    match letter {
                        'c' => view.count().to_string(),
                        'i' => view.first().to_string(),
                        'S' => view.size().to_string(),
                        _ if view.layout().resident => String::new(),
                        _ => view.layout().osts.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
                    }
                }
                _ => String::new(),
            },
        };
        // Writing to a vector cannot fail.
        let _ = out.write_all(text.as_bytes());
        Ok(())
    }
}

fn figure(letter: char, name: &mut Candidate<'_>) -> Result<String, Trouble> {
    let attributes = name.attributes()?;
    Ok(match letter {
        'b' => attributes.blocks.to_string(),
        'G' => attributes.gid.to_string(),
        'k' => attributes.blocks.div_ceil(2).to_string(),
        'm' => format!("{:o}", attributes.mode & 0o7777),
        'n' => attributes.links.to_string(),
        's' => attributes.size.to_string(),
        'U' => attributes.uid.to_string(),
        _ => match attributes.kind {
            FileType::RegularFile => "f",
            FileType::Directory => "d",
            FileType::Symlink => "l",
            FileType::Fifo => "p",
            FileType::Socket => "s",
            FileType::CharacterDevice => "c",
            FileType::BlockDevice => "b",
            FileType::Unknown => "U",
        }
        .to_owned(),
    })
}

/// The time as ctime(3) prints it, in local time.
fn readable_time(time: Moment) -> String {
    match Timestamp::from_second(time.0) {
        Ok(stamp) => stamp.to_zoned(TimeZone::system()).strftime("%a %b %e %H:%M:%S %Y").to_string(),
        Err(_) => time.0.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_read_and_bad_ones_named() {
        let format = Format::parse("%p\\t%s%%%LF %Lc\\n%T@%t\\0ä").unwrap();
        let text = |text: &str| Piece::Text(text.as_bytes().to_vec());
        assert_eq!(
            format.0,
            [
                Piece::Path,
                text("\t"),
                Piece::Figure('s'),
                text("%"),
                Piece::Fid,
                text(" "),
                Piece::Layout('c'),
                text("\n"),
                Piece::Time(Stamp::Modification, false),
                Piece::Time(Stamp::Modification, true),
                text("\0ä"),
            ]
        );
        for (bad, word) in
            [("%", "'%'"), ("%q", "%q"), ("%T", "%T"), ("%LP", "limits"), ("%L", "%L"), ("\\q", "\\q"), ("\\", "\\")]
        {
            assert!(Format::parse(bad).unwrap_err().to_string().contains(word), "{bad}");
        }
    }

    #[test]
    fn times_read_as_ctime_writes_them() {
        let text = readable_time((0, 0));
        assert!(text.contains(" 19") && text.len() == 24, "{text}");
        assert_eq!(readable_time((i64::MAX, 0)), i64::MAX.to_string());
    }
}
