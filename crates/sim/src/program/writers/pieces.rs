//! Checks piece by piece whether the calls of a group saw, and left at the end, a possible state of the file.

use core::ops::Range;
use std::collections::BTreeSet;

use stdx::Instant;

use super::{CallRecord, Effect, FinalFile, PAGE, SIZE_MAX, STRIPE, WORD, stamp};
use crate::register::{RegisterAct, RegisterCall, disorder};

/// The file in pieces that no call's range divides.
pub(super) struct Pieces {
    bounds: Vec<u64>,
    writes: Vec<(u64, Range<u64>)>,
    /// Parts of the file whose ends are checked separately.
    parts: Vec<Range<u64>>,
}

impl Pieces {
    pub(super) fn of(processes: &[Vec<CallRecord>], striped: bool) -> Pieces {
        let mut bounds: BTreeSet<u64> = (0..=SIZE_MAX / PAGE).map(|page| page * PAGE).collect();
        let mut writes = Vec::new();
        for entry in processes.iter().flatten() {
            match &entry.effect {
                Effect::Write { serial, range, certain } => {
                    bounds.extend([range.start, range.start + certain, range.end]);
                    writes.push((*serial, range.clone()));
                }
                Effect::Zero { range } | Effect::Reach { range } | Effect::Settle { range } => {
                    bounds.extend([range.start, range.end]);
                }
                Effect::Cut { size } => bounds.extend([*size]),
                Effect::Read { offset, length, data } => {
                    bounds.extend([*offset, offset + data.len() as u64, offset + length]);
                }
                Effect::Size { .. } | Effect::Sync | Effect::Nothing => {}
            }
        }
        // Each object has its own end. A size that is read beside changes combines the ends of different moments.
        let (count, length) = if striped { (3, STRIPE) } else { (1, SIZE_MAX) };
        let parts = (0..count).map(|part| part * length..(part + 1) * length).collect();
        Pieces { bounds: bounds.into_iter().collect(), writes, parts }
    }

    fn count(&self) -> usize {
        self.bounds.len() - 1
    }

    fn piece(&self, at: usize) -> Range<u64> {
        self.bounds[at]..self.bounds[at + 1]
    }

    /// The indexes of the pieces in a range.
    fn within(&self, range: &Range<u64>) -> Range<usize> {
        let at = |point: u64| self.bounds.partition_point(|bound| *bound < point).min(self.count());
        at(range.start)..at(range.end)
    }

    /// The serial of the write that left these bytes: 0 is a hole.
    fn stamp_of(&self, at: usize, data: &[u8]) -> Option<u64> {
        if data.iter().all(|byte| *byte == 0) {
            return Some(0);
        }
        let range = self.piece(at);
        let is = |(serial, whole): &&(u64, Range<u64>)| {
            whole.start <= range.start && range.end <= whole.end && {
                // Stamps consist of whole words, and a piece may start within one.
                let from = range.start / WORD * WORD;
                stamp(*serial, &(from..range.end))[(range.start - from) as usize..] == *data
            }
        };
        self.writes.iter().find(is).map(|(serial, _)| *serial)
    }

    /// Describes the origin of each word in a piece that no single write has left: `3112..3200 of 7, 3200..3560 of 0`.
    fn runs(&self, range: &Range<u64>, data: &[u8]) -> String {
        let word_of = |at: u64| {
            let to = (at / WORD + 1) * WORD;
            let part = &data[(at - range.start) as usize..(to.min(range.end) - range.start) as usize];
            let is = |(serial, whole): &&(u64, Range<u64>)| {
                whole.contains(&at) && stamp(*serial, &(at / WORD * WORD..to))[(at % WORD) as usize..].starts_with(part)
            };
            match part.iter().all(|byte| *byte == 0) {
                true => "0".to_owned(),
                false => self.writes.iter().find(is).map_or("no call".to_owned(), |(serial, _)| serial.to_string()),
            }
        };
        let mut runs: Vec<(u64, String)> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let whose = word_of(at);
            if runs.last().is_none_or(|(_, last)| *last != whose) {
                runs.push((at, whose));
            }
            at = (at / WORD + 1) * WORD;
        }
        let ends = runs.iter().skip(1).map(|(at, _)| *at).chain([range.end]);
        let shown = runs.iter().zip(ends).map(|((from, whose), to)| format!("{from}..{to} of {whose}"));
        shown.collect::<Vec<_>>().join(", ")
    }

    /// Whether a call saw a write in progress on the same client: Linux stores the bytes into the shared pages before it sends
    /// the request, so calls through other pages or clients may still see the old bytes for a moment.
    fn is_early(&self, serial: u64, seen: &CallRecord, processes: &[Vec<CallRecord>]) -> bool {
        let is = |entry: &&CallRecord| matches!(entry.effect, Effect::Write { serial: of, .. } if of == serial);
        let write = processes.iter().flatten().find(is);
        write.is_some_and(|write| write.client == seen.client && write.to.is_none_or(|to| Some(to) > seen.to))
    }

    /// What was seen that fits into no order of all calls.
    pub(super) fn disorder(&self, processes: &[Vec<CallRecord>]) -> Option<String> {
        let mut places: Vec<Vec<Vec<RegisterCall>>> = vec![vec![Vec::new(); processes.len()]; self.count()];
        let mut sizes: Vec<Vec<Vec<RegisterCall>>> = vec![vec![Vec::new(); processes.len()]; self.parts.len()];
        let all =
            |process: usize| processes[process].iter().enumerate().map(move |(call, entry)| (process, call, entry));
        for (process, call, entry) in (0..processes.len()).flat_map(all) {
            let step = |act| RegisterCall { from: entry.from, to: entry.to, act, optional: false, call };
            let mut put = |range: &Range<u64>, step: RegisterCall| {
                for at in self.within(range) {
                    places[at][process].push(step);
                }
            };
            let mut perhaps_ends = |optional: bool, of: &dyn Fn(&Range<u64>) -> Option<RegisterAct>| {
                for (part, sizes) in self.parts.iter().zip(&mut sizes) {
                    sizes[process].extend(of(part).map(|act| RegisterCall { optional, ..step(act) }));
                }
            };
            let mut ends = |of: &dyn Fn(&Range<u64>) -> Option<RegisterAct>| perhaps_ends(false, of);
            let reaches = |range: Range<u64>| {
                move |part: &Range<u64>| {
                    (range.start.max(part.start) < range.end.min(part.end))
                        .then(|| RegisterAct::Raise(range.end.min(part.end)))
                }
            };
            match &entry.effect {
                Effect::Write { serial, range, certain } => {
                    let sure = range.start + certain;
                    put(&(range.start..sure), step(RegisterAct::Set(*serial)));
                    put(&(sure..range.end), RegisterCall { optional: true, ..step(RegisterAct::Set(*serial)) });
                    let end = if entry.to.is_none() { range.end } else { sure };
                    // Linux writes a page that is not cached and in which the write starts as a separate first request.
                    let first = range.start.next_multiple_of(PAGE);
                    if first < end {
                        perhaps_ends(true, &reaches(range.start..first));
                    }
                    perhaps_ends(false, &reaches(range.start..end));
                }
                Effect::Zero { range } => put(range, step(RegisterAct::Set(0))),
                Effect::Reach { range } => ends(&reaches(range.clone())),
                Effect::Cut { size } => {
                    put(&(*size..u64::MAX), step(RegisterAct::Set(0)));
                    let end = *size;
                    ends(&|part| {
                        Some(RegisterAct::Set(if end > part.start { end } else { 0 })).filter(|_| end <= part.end)
                    });
                    // With two stripes the first object holds the first and the third part: if it reached into the third, a
                    // truncation in the second makes it end with the first.
                    if self.parts.len() > 1 && (STRIPE + 1..=2 * STRIPE).contains(&end) {
                        sizes[0][process].push(RegisterCall { optional: true, ..step(RegisterAct::Raise(STRIPE)) });
                    }
                }
                Effect::Read { offset, length, data } if entry.to.is_some() => {
                    let end = offset + data.len() as u64;
                    for at in self.within(&(*offset..end)) {
                        let range = self.piece(at);
                        let part = &data[(range.start - offset) as usize..(range.end - offset) as usize];
                        match self.stamp_of(at, part) {
                            Some(serial) if self.is_early(serial, entry, processes) => {}
                            Some(serial) => places[at][process].push(step(RegisterAct::See(serial))),
                            None => {
                                let runs = self.runs(&range, part);
                                return Some(format!(
                                    "{} saw bytes at {range:?} that no call wrote: {runs}",
                                    show(entry)
                                ));
                            }
                        }
                    }
                    if end < offset + length && !is_beside_cut(entry, processes) {
                        // Beyond the end there is nothing.
                        for at in self.within(&(end..offset + length)) {
                            places[at][process].push(step(RegisterAct::See(0)));
                        }
                        ends(&|part| seen(part, end, true));
                    }
                }
                // Linux extends the size page by page during a write: a concurrent stat may see a size that no call has set.
                Effect::Size { size } if entry.to.is_some() && size % PAGE == 0 => {
                    ends(&|part| seen(part, *size, true));
                    ends(&|part| seen(part, *size, false).map(at_least));
                }
                Effect::Size { size } if entry.to.is_some() => ends(&|part| seen(part, *size, false)),
                _ => {}
            }
        }
        let shown = |what: String, best: Vec<usize>, steps: &[Vec<RegisterCall>]| {
            let mut lines =
                vec![format!("there is no order of the calls about {what}; the best ends before those with >")];
            let mut listed: Vec<(Instant, String)> = Vec::new();
            for (process, steps) in steps.iter().enumerate() {
                for (at, step) in steps.iter().enumerate() {
                    let sign = if best[process] == at { ">" } else { " " };
                    let call = show(&processes[process][step.call]);
                    listed.push((step.from, format!("\n {sign} process {process}, {call}: {:?}", step.act)));
                }
            }
            listed.sort();
            lines.extend(listed.into_iter().map(|(_, line)| line));
            lines.concat()
        };
        for (part, steps) in self.parts.iter().zip(&sizes) {
            if let Some(best) = disorder(0, steps) {
                return Some(shown(format!("the end of the file in {part:?}"), best, steps));
            }
        }
        for (at, steps) in places.iter().enumerate() {
            if let Some(best) = disorder(0, steps) {
                return Some(shown(format!("bytes {:?}", self.piece(at)), best, steps));
            }
        }
        None
    }

    /// Finds synced bytes that are missing at the end, or bytes that were never written.
    pub(super) fn lost(&self, processes: &[Vec<CallRecord>], final_file: &FinalFile) -> Option<String> {
        let entries = || processes.iter().flatten();
        let is_durable = |entry: &&CallRecord| {
            let before = |sync: &CallRecord| {
                let covers = matches!(sync.effect, Effect::Sync) && sync.to.is_some() && sync.client == entry.client;
                covers && entry.to.is_some_and(|to| to <= sync.from)
            };
            entries().any(before)
        };
        let durable: Vec<&CallRecord> = entries().filter(is_durable).collect();
        // Whether a call certainly ended before another started.
        let older = |one: &CallRecord, than: &CallRecord| one.to.is_some_and(|to| to < than.from);
        let value = |entry: &CallRecord, range: &Range<u64>| match &entry.effect {
            Effect::Write { serial, range: whole, .. } if whole.start <= range.start && range.end <= whole.end => {
                Some(*serial)
            }
            Effect::Zero { range: whole } if whole.start <= range.start && range.end <= whole.end => Some(0),
            Effect::Cut { size } if *size <= range.start => Some(0),
            _ => None,
        };
        for at in self.within(&(0..SIZE_MAX)) {
            let range = self.piece(at);
            let part = |at: u64| (at as usize).min(final_file.data.len());
            let data = &final_file.data[part(range.start)..part(range.end)];
            let mut padded = data.to_vec();
            padded.resize((range.end - range.start) as usize, 0);
            let Some(found) = self.stamp_of(at, &padded) else {
                let runs = self.runs(&range, &padded);
                return Some(format!("at the end there are bytes at {range:?} that no call wrote: {runs}"));
            };
            let sure = |entry: &&&CallRecord| match &entry.effect {
                Effect::Write { range: whole, certain, .. } => range.end <= whole.start + certain,
                _ => true,
            };
            let synced: Vec<&&CallRecord> =
                durable.iter().filter(sure).filter(|entry| value(entry, &range).is_some()).collect();
            let can_be = |entry: &&CallRecord| {
                value(entry, &range) == Some(found) && !synced.iter().any(|later| older(entry, later))
            };
            let new = found == 0 && synced.is_empty();
            if !new && !entries().any(|entry| can_be(&entry)) {
                let lines: String = synced.iter().map(|entry| format!("\n  {}", show(entry))).collect();
                return Some(format!("bytes {range:?} are those of call {found} at the end, but synced was:{lines}"));
            }
        }
        let end = |entry: &CallRecord| match &entry.effect {
            Effect::Write { range, certain, .. } => {
                Some(if entry.to.is_none() { range.end } else { range.start + certain })
            }
            Effect::Reach { range } => Some(range.end),
            Effect::Cut { size } => Some(*size),
            _ => None,
        };
        // The end that a call gave the object of a part. Of a truncation that is not durable some targets may have executed their
        // share, and others not.
        let end_in = |entry: &CallRecord, part: &Range<u64>| {
            let end = end(entry)?;
            match &entry.effect {
                Effect::Write { range, .. } | Effect::Reach { range }
                    if end <= part.start || part.end <= range.start =>
                {
                    None
                }
                Effect::Cut { .. } if end <= part.start => Some(0),
                Effect::Cut { .. } if end > part.end => None,
                _ => Some(end.min(part.end)),
            }
        };
        let is_cut = |entry: &CallRecord| matches!(entry.effect, Effect::Cut { .. });
        for synced in &durable {
            let Some(reached) = end(synced).filter(|_| !matches!(synced.effect, Effect::Write { certain: 0, .. }))
            else {
                continue;
            };
            let not_older = || entries().filter(|entry| !older(entry, synced));
            let least = |part: &Range<u64>| {
                let cuts = || not_older().filter(|entry| is_cut(entry)).filter_map(|entry| end_in(entry, part));
                end_in(synced, part).map(|reached| cuts().fold(reached, u64::min))
            };
            if final_file.size < self.parts.iter().filter_map(least).max().unwrap_or(0) {
                return Some(format!("the size is {} at the end, but synced was {}", final_file.size, show(synced)));
            }
            let most = not_older().filter_map(end).chain([reached]).max();
            if is_cut(synced) && final_file.size > most.unwrap_or(0) {
                return Some(format!("the size is {} at the end, but synced was {}", final_file.size, show(synced)));
            }
        }
        None
    }
}

/// While a file is truncated on the same client, Linux treats the new end as final, whatever others write there concurrently.
fn is_beside_cut(seen: &CallRecord, processes: &[Vec<CallRecord>]) -> bool {
    let meets = |cut: &CallRecord| cut.from <= seen.to.unwrap_or(seen.from) && cut.to.is_none_or(|to| to >= seen.from);
    let cuts = |of: &CallRecord| matches!(of.effect, Effect::Cut { .. }) && of.client == seen.client && meets(of);
    processes.iter().flatten().any(cuts)
}

/// What a call that saw this size, or at most this size, knows about the end in a part.
fn seen(part: &Range<u64>, size: u64, at_most: bool) -> Option<RegisterAct> {
    match () {
        () if size > part.end => None,
        () if size <= part.start && part.start > 0 => Some(RegisterAct::SeeAtMost(0)),
        () if at_most => Some(RegisterAct::SeeAtMost(size)),
        () => Some(RegisterAct::See(size)),
    }
}

/// The same for a call that saw at least this size.
fn at_least(act: RegisterAct) -> RegisterAct {
    if let RegisterAct::See(size) = act { RegisterAct::SeeAtLeast(size) } else { act }
}

/// A call in one line.
fn show(entry: &CallRecord) -> String {
    let serial = if let Effect::Write { serial, .. } = entry.effect { format!(" as {serial}") } else { String::new() };
    let to = entry.to.map_or("-".to_owned(), |to| format!("{to:?}"));
    format!("{:?} to {to}, client {}: {}{serial}", entry.from, entry.client, entry.what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(client: usize, from: u64, to: u64, effect: Effect) -> CallRecord {
        CallRecord {
            client,
            what: String::new(),
            from: Instant(from),
            to: (to > 0).then_some(Instant(to)),
            effect,
            wall_ns: 0,
            times: None,
        }
    }

    fn write(serial: u64, range: Range<u64>) -> Effect {
        let certain = range.end - range.start;
        Effect::Write { serial, range, certain }
    }

    /// The file with these bytes of these writes; the rest are zeros.
    fn final_file(size: u64, runs: &[(u64, Range<u64>)]) -> FinalFile {
        let mut data = vec![0; size as usize];
        for (serial, range) in runs {
            data[range.start as usize..range.end as usize].copy_from_slice(&stamp(*serial, range));
        }
        FinalFile { size, data }
    }

    fn lost(calls: &[CallRecord], striped: bool, final_file: &FinalFile) -> Option<String> {
        let processes = [calls.to_vec()];
        Pieces::of(&processes, striped).lost(&processes, final_file)
    }

    #[test]
    fn an_unsynced_write_may_be_torn_where_another_call_started() {
        for (mode, torn) in [(Effect::Nothing, true), (Effect::Settle { range: 3488..5776 }, false)] {
            let calls = [
                entry(0, 1, 2, write(1, 0..4096)),
                entry(0, 3, 4, Effect::Sync),
                entry(0, 5, 6, write(2, 0..4096)),
                entry(0, 7, 8, mode),
            ];
            let parts = final_file(4096, &[(1, 0..3488), (2, 3488..4096)]);
            assert_eq!(lost(&calls, false, &parts).is_some(), torn);
        }
    }

    #[test]
    fn synced_truncations_are_final() {
        let calls = [
            entry(0, 1, 2, write(1, 0..4096)),
            entry(0, 3, 4, Effect::Sync),
            entry(1, 5, 6, Effect::Cut { size: 0 }),
            entry(1, 7, 8, Effect::Sync),
        ];
        assert!(lost(&calls, false, &final_file(4096, &[(1, 0..4096)])).is_some());
        assert_eq!(lost(&calls, false, &final_file(0, &[])), None);
        assert_eq!(lost(&calls[..3], false, &final_file(4096, &[(1, 0..4096)])), None, "the truncation was not synced");
    }

    /// The write reaches the third object only; the first two thirds were never written.
    #[test]
    fn an_unsynced_truncation_may_be_done_on_some_targets() {
        let (end, keeps) = (3 * STRIPE, 2 * STRIPE - 8);
        let cut = entry(0, 5, 0, Effect::Cut { size: keeps });
        let calls = [entry(0, 1, 2, write(1, end - 8..end)), entry(0, 3, 4, Effect::Sync), cut];
        // The last object was truncated, and the one before it was not extended to the new end.
        assert_eq!(lost(&calls, true, &final_file(0, &[])), None);
        assert_eq!(lost(&calls, true, &final_file(keeps, &[])), None);
        assert!(lost(&calls, false, &final_file(0, &[])).is_some(), "one object is truncated or not");
        assert!(lost(&calls[..2], true, &final_file(0, &[])).is_some());
        let synced = [calls[0].clone(), entry(0, 5, 6, Effect::Cut { size: keeps }), entry(0, 7, 8, Effect::Sync)];
        assert!(lost(&synced, true, &final_file(0, &[])).is_some());
        assert_eq!(lost(&synced, true, &final_file(keeps, &[])), None);
    }

    /// The first page of a write is sent alone if the write starts within it: two calls may see that state, but not after the
    /// write has ended.
    #[test]
    fn the_first_part_of_a_write_may_be_seen_before_the_rest() {
        let verdict = |start: u64, ended: u64, size: u64| {
            let look = |from| entry(1, from, from + 1, Effect::Size { size });
            let processes = [
                vec![entry(0, 1, 2, write(1, 0..8)), entry(0, 3, 9, write(2, start..3 * PAGE))],
                vec![look(ended), look(ended + 2)],
            ];
            Pieces::of(&processes, false).disorder(&processes)
        };
        assert_eq!(verdict(8, 4, PAGE), None);
        assert!(verdict(8, 4, 2 * PAGE).is_some(), "no later page is sent alone");
        assert!(verdict(8, 10, PAGE).is_some(), "the write has ended");
        assert!(verdict(0, 4, PAGE).is_some(), "the write starts at a page");
        assert_eq!(verdict(8, 10, 3 * PAGE), None);
    }

    /// The file has two stripes, and the first object holds its end. Between the requests to the two targets the file is
    /// truncated to zero.
    #[test]
    fn a_stat_beside_a_truncation_may_see_the_end_of_one_stripe() {
        let until = |cut: u64| {
            let cuts = [entry(0, 3, 4, Effect::Cut { size: cut }), entry(0, 5, 8, Effect::Cut { size: 0 })];
            let saw = |from, to| entry(1, from, to, Effect::Size { size: STRIPE });
            let verdict = |saw: CallRecord| {
                let first = entry(0, 1, 2, write(1, 3 * STRIPE - 8..3 * STRIPE));
                let processes = [[&[first][..], &cuts].concat(), vec![saw]];
                Pieces::of(&processes, true).disorder(&processes).is_none()
            };
            (verdict(saw(6, 7)), verdict(saw(9, 10)))
        };
        assert_eq!(until(2 * STRIPE), (true, false));
        assert_eq!(until(2 * STRIPE + 8), (false, false), "the first object still ends later");
        assert_eq!(until(STRIPE - 8), (false, false), "the first object ends earlier");
    }

    #[test]
    fn an_intermediate_size_is_a_multiple_of_the_page_size() {
        for (seen, from, right) in [(2 * PAGE, 3, true), (2 * PAGE + 8, 3, false), (2 * PAGE, 5, false)] {
            let processes = [
                vec![entry(0, 1, 2, write(1, 0..PAGE)), entry(0, 3, 4, write(2, PAGE..3 * PAGE))],
                vec![entry(1, from, from + 2, Effect::Size { size: seen })],
            ];
            assert_eq!(Pieces::of(&processes, false).disorder(&processes).is_none(), right, "{seen}");
        }
    }

    #[test]
    fn the_writers_of_bytes_are_named() {
        let processes = [vec![entry(0, 1, 2, write(1, 0..4096)), entry(0, 3, 4, write(2, 0..4096))]];
        let pieces = Pieces::of(&processes, false);
        let FinalFile { data, .. } = final_file(4096, &[(1, 0..8), (2, 8..24)]);
        assert_eq!(pieces.runs(&(0..4096), &data), "0..8 of 1, 8..24 of 2, 24..4096 of 0");
    }
}
