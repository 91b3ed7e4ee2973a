//! Repeated runs of a create, each followed by the same on a bare local directory. The comparison shows what part of its
//! own back end's speed a file system achieves.

use std::io::Write;
use std::path::Path;

use super::create::{Create, Kind, Open};
use super::{Done, Ended};
use crate::figures::{median, spread};

/// Runs `create` `runs` times, and removes the files after each run, which is not measured. With `beside`, each run is
/// followed by the same one in a new folder in that directory. Prints the median and spread of each side, and their ratio.
pub fn compare(create: &Create, runs: u32, beside: Option<&Path>, out: &mut dyn Write) -> Result<(), Ended> {
    let keeps = matches!(create.kind, Kind::Open(Open { keep: true, .. }));
    let bare = beside.map(|folder| folder.join(format!("createmany-{}", std::process::id())));
    if let Some(folder) = &bare {
        std::fs::create_dir(folder)
            .map_err(|error| Ended::Failed(format!("mkdir({}) error: {error}", folder.display())))?;
    }
    let other = bare.as_deref().map(|folder| Create {
        pattern: create.pattern.moved(folder),
        unlink: create.unlink.as_ref().map(|pattern| pattern.moved(folder)),
        ..create.clone()
    });
    let (mut own, mut theirs) = (Figures::default(), Figures::default());
    let result = (0..runs).try_for_each(|_| {
        own.add(create, out)?;
        if let (Some(other), Some(folder)) = (&other, beside) {
            writeln!(out, "beside, in {}:", folder.display())?;
            theirs.add(other, out)?;
        }
        Ok(())
    });
    if let Some(folder) = &bare {
        let _ = std::fs::remove_dir_all(folder);
    }
    own.report("here", keeps, out)?;
    if let Some(folder) = beside {
        theirs.report(&folder.display().to_string(), keeps, out)?;
        let (own, theirs) = (median(own.made), median(theirs.made));
        if theirs > 0.0 {
            writeln!(out, "ratio: {:.3}", own / theirs)?;
        }
    }
    result
}

#[derive(Default)]
struct Figures {
    made: Vec<f64>,
    closed: Vec<f64>,
}

impl Figures {
    fn add(&mut self, create: &Create, out: &mut dyn Write) -> Result<(), Ended> {
        let (created, result) = create.run(out);
        let removed = create.remove(created.made.count);
        result.and(removed)?;
        self.made.push(created.made.rate());
        self.closed.extend(created.closed.as_ref().map(Done::rate));
        Ok(())
    }

    fn report(&self, place: &str, keeps: bool, out: &mut dyn Write) -> Result<(), Ended> {
        let line = |what: &str, figures: &[f64]| {
            format!(
                "{place}: {} runs: median {:.2} {what}/second, spread {:.1} %",
                figures.len(),
                median(figures.to_vec()),
                100.0 * spread(figures)
            )
        };
        writeln!(out, "{}", line("ops", &self.made))?;
        if keeps {
            writeln!(out, "{}", line("close", &self.closed))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_compared_with_a_bare_directory_and_leave_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (here, bare) = (folder.path().join("here"), folder.path().join("bare"));
        std::fs::create_dir(&here).unwrap();
        std::fs::create_dir(&bare).unwrap();
        let create = Create {
            kind: Kind::Open(Open { keep: true, ..Open::default() }),
            unlink: None,
            pattern: format!("{}/f", here.display()).parse().unwrap(),
            start: 0,
            count: Some(10),
            time: None,
        };
        let mut out = Vec::new();
        compare(&create, 3, Some(&bare), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches("total: 10 open/keep in ").count(), 6, "{text}");
        assert_eq!(text.matches(": 3 runs: median ").count(), 4, "{text}");
        let ratio = text.lines().last().and_then(|line| line.strip_prefix("ratio: ")).unwrap();
        assert!(ratio.parse::<f64>().unwrap() > 0.0);
        for place in [here, bare] {
            assert_eq!(std::fs::read_dir(place).unwrap().count(), 0);
        }
    }
}
