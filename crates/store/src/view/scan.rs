//! Ordered scans over all layers.
//!
//! The base of a scan is loaded in chunks, which belong to the attempt that scans. The records of the group in flight and of
//! the collecting group are merged over a chunk. Their keys come from ordered indexes, which are built for a table when it is
//! first scanned. If deletions leave too few records, the next chunk is loaded, each twice as large as the one before.

use super::{Flight, Miss, View, Wanted};
use crate::layer::{Index, Layer, Tables};
use crate::{AttemptId, Key, KeyRange, LoadId, LoadWhat, Value};
use core::iter::Peekable;

/// The fewest and the most records that are requested for a chunk.
const CHUNK_MIN: usize = 16;
const CHUNK_MAX: usize = 8192;

impl View {
    /// The first `limit` records of `range`, in key order.
    ///
    /// The durable part is loaded from the engine for each request, so its first attempt always misses. Keep information that
    /// requests often need (is this directory empty?) in a record instead. Scan a few thousand records at a time and
    /// continue after the last key, because an attempt holds, and merges again, everything that it has loaded.
    pub fn scan(&mut self, range: &KeyRange, limit: usize) -> Result<Vec<(Key, Value)>, Miss> {
        let mut found = Vec::new();
        let mut from = range.start.clone();
        while from < range.end && found.len() < limit {
            let Some((attempt, chunk)) = self.chunk_at(&from) else {
                self.miss_scan(KeyRange { start: from, end: range.end.clone() }, limit - found.len());
                return Err(Miss);
            };
            self.need_indexes(range);
            let chunk = &self.attempts[&attempt].chunks[chunk];
            let to = chunk.end().min(&range.end).clone();
            let base = chunk.records(&from, &to).map(|(key, value)| (key, Some(value)));
            let flight = self.flight.as_ref().map(|Flight { layer, index, .. }| (&**layer, index));
            let below = over(base, keys(flight, &from, &to));
            let merged = over(below, keys(Some((&self.collecting, &self.collecting_index)), &from, &to));
            let live = merged.filter_map(|(key, value)| Some((key.clone(), value?.clone())));
            found.extend(live.take(limit - found.len()));
            from = to;
        }
        Ok(found)
    }

    /// The chunk of the current attempt that covers `key`.
    fn chunk_at(&self, key: &Key) -> Option<(AttemptId, usize)> {
        let attempt = self.current?;
        let chunks = &self.attempts.get(&attempt)?.chunks;
        chunks.iter().position(|chunk| chunk.covers(key)).map(|at| (attempt, at))
    }

    fn need_indexes(&mut self, range: &KeyRange) {
        let tables = Tables::of(range);
        if let Some(flight) = &mut self.flight {
            flight.index.extend(tables, &flight.layer);
        }
        self.collecting_scanned = self.collecting_scanned.union(tables);
        self.collecting_index.extend(tables, &self.collecting);
    }

    /// Records that the current attempt needs the durable records of `range`, and loads them.
    #[cold]
    fn miss_scan(&mut self, range: KeyRange, limit: usize) {
        let Some(attempt) = self.current else { return };
        let state = self.attempts.entry(attempt).or_default();
        if state.failure.is_some() {
            return;
        }
        let growth = 1usize << state.chunks.len().min(16);
        let limit = limit.clamp(CHUNK_MIN, CHUNK_MAX).saturating_mul(growth).min(CHUNK_MAX);
        let id = match self.same_scan(&range, limit) {
            Some(id) => id,
            None => {
                let wanted = Wanted::Scan { range: range.clone(), limit, patches: Default::default() };
                self.issue(LoadWhat::Scan(range, limit), wanted)
            }
        };
        self.wait_for(attempt, id);
    }

    /// An outstanding load that will return as much.
    fn same_scan(&self, wanted: &KeyRange, wanted_limit: usize) -> Option<LoadId> {
        let same = |what: &Wanted| match what {
            Wanted::Scan { range, limit, .. } => range == wanted && *limit >= wanted_limit,
            Wanted::Record { .. } => false,
        };
        self.loads.iter().find(|(_, pending)| same(&pending.wanted)).map(|(&id, _)| id)
    }
}

/// The records of an indexed layer between two keys; `None` is a deletion.
fn keys<'a>(
    layer: Option<(&'a Layer, &'a Index)>,
    from: &'a Key,
    to: &'a Key,
) -> impl Iterator<Item = (&'a Key, Option<&'a Value>)> {
    layer
        .into_iter()
        .flat_map(move |(layer, index)| index.range(from, to).map(move |(key, slot)| (key, layer.value(slot))))
}

/// Merges two ordered sequences. If both have a key, `upper` wins.
fn over<'a, V>(
    lower: impl Iterator<Item = (&'a Key, V)>,
    upper: impl Iterator<Item = (&'a Key, V)>,
) -> impl Iterator<Item = (&'a Key, V)> {
    let mut lower: Peekable<_> = lower.peekable();
    let mut upper: Peekable<_> = upper.peekable();
    core::iter::from_fn(move || match (lower.peek(), upper.peek()) {
        (Some((low, _)), Some((up, _))) => {
            if low < up {
                return lower.next();
            }
            if low == up {
                lower.next();
            }
            upper.next()
        }
        (Some(_), None) => lower.next(),
        (None, _) => upper.next(),
    })
}
