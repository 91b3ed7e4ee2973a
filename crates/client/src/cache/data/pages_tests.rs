//! Stories of one object's pages, and a random history against a vector of bytes.

use super::*;
use stdx::Rng;

fn bytes(n: usize, value: u8) -> Bytes {
    Bytes::from(vec![value; n])
}

fn content(pages: &mut Pages, range: Range<u64>) -> Vec<u8> {
    let mut out = vec![0; (range.end - range.start) as usize];
    pages.read(&range, |at, data| {
        let at = (at - range.start) as usize;
        out[at..at + data.len()].copy_from_slice(&data);
    });
    out
}

#[test]
fn small_writes_that_follow_each_other_are_one_request() {
    let mut pages = Pages::default();
    for i in 0..10u8 {
        pages.write(u64::from(i) * 100, bytes(100, i));
    }
    let (at, data) = pages.take(&(0..u64::MAX), 1 << 20, false, 1).expect("dirty");
    assert_eq!((at, data.len()), (0, 1000));
    assert_eq!(data[950], 9);
    assert!(pages.take(&(0..u64::MAX), 1 << 20, false, 2).is_none());
}

#[test]
fn a_large_write_is_sent_and_read_without_a_copy() {
    let mut pages = Pages::default();
    let data = bytes(1 << 20, 7);
    pages.write(0, data.clone());
    let (_, sent) = pages.take(&(0..u64::MAX), 1 << 20, true, 1).expect("a full run");
    assert_eq!(sent.as_ptr(), data.as_ptr());
    pages.written(1, 1);
    pages.read(&(4096..8192), |_, part| assert_eq!(part.as_ptr(), data[4096..].as_ptr()));
}

#[test]
fn requests_do_not_cross_a_boundary_and_full_ones_go_first() {
    let mut pages = Pages::default();
    pages.write(6, bytes(20, 1));
    assert_eq!(pages.take(&(0..u64::MAX), 8, true, 1), None);
    assert_eq!(pages.take(&(8..u64::MAX), 8, true, 1).map(|(at, d)| (at, d.len())), Some((8, 8)));
    assert_eq!(pages.take(&(16..u64::MAX), 8, true, 2).map(|(at, d)| (at, d.len())), Some((16, 8)));
    assert_eq!(pages.take(&(24..u64::MAX), 8, true, 3), None);
    assert_eq!(pages.take(&(0..u64::MAX), 8, false, 3).map(|(at, d)| (at, d.len())), Some((6, 2)));
    assert_eq!(pages.take(&(0..u64::MAX), 8, false, 4).map(|(at, d)| (at, d.len())), Some((24, 2)));
}

/// Scattered small writes to a large file cost time linear in their number, not its square.
#[test]
fn many_scattered_pieces_cost_a_few_looks_each() {
    const PIECES: u64 = 20_000;
    let mut pages = Pages::default();
    for i in 0..PIECES {
        let at = i * 7919 % PIECES * 8192;
        pages.write(at, bytes(8, 1));
        let block = at / (1 << 20) * (1 << 20);
        assert_eq!(pages.take(&(block..at + 8), 1 << 20, true, 1), None, "nothing is full");
    }
    let (mut at, mut id) = (0, 0);
    while let Some((offset, data)) = pages.take(&(at..u64::MAX), 1 << 20, false, id) {
        at = offset + data.len() as u64;
        id += 1;
        // Other operations search meanwhile, and a program keeps writing.
        assert!(pages.unwritten_in(&(0..u64::MAX)) && pages.unwritten_end() > 0 && pages.oldest_in_flight() == Some(0));
        pages.write(offset, bytes(4, 2));
    }
    assert_eq!(id, PIECES);
    for id in 0..PIECES {
        pages.written(id, 1);
    }
    assert_eq!((pages.counts().writing, pages.counts().dirty), (0, PIECES * 4));
    let looks = pages.looked_at.get();
    assert!(looks < 40 * PIECES, "{looks} segments were looked at for {PIECES} pieces");
}

#[test]
fn a_byte_is_not_in_two_requests_at_once() {
    let mut pages = Pages::default();
    pages.write(0, bytes(8, 1));
    pages.take(&(0..u64::MAX), 8, false, 1).expect("first");
    pages.write(2, bytes(4, 2));
    assert!(pages.take(&(0..u64::MAX), 8, false, 2).is_none(), "waits for the first");
    assert_eq!(pages.written(1, 1), Some(0..8));
    assert_eq!(pages.counts(), Counts { clean: 4, dirty: 4, writing: 0 });
    assert_eq!(pages.take(&(0..u64::MAX), 8, false, 2).map(|(at, d)| (at, d.len())), Some((2, 4)));
}

#[test]
fn a_failed_request_loses_its_bytes_but_not_newer_ones() {
    let mut pages = Pages::default();
    pages.write(0, bytes(8, 1));
    pages.take(&(0..u64::MAX), 8, false, 1).expect("first");
    pages.write(0, bytes(2, 2));
    pages.cut(&(7..8));
    assert_eq!(pages.lost(1), vec![2..7], "neither what was written again nor what was cut");
    assert_eq!(content(&mut pages, 0..4), [2, 2, 0, 0]);
    assert_eq!(pages.missing(&(0..8)), vec![2..8]);
    assert!(pages.lost(1).is_empty());
}

#[test]
fn the_clock_gives_what_was_read_a_second_round() {
    let mut pages = Pages::default();
    pages.fill(0, &bytes(100, 1), 5);
    pages.write(40, bytes(10, 2));
    content(&mut pages, 0..10);
    assert_eq!(pages.evict(&(0..100), 5), Evicted::Used);
    assert_eq!(pages.evict(&(0..100), 5), Evicted::Dropped(90));
    assert_eq!(pages.evict(&(0..100), 5), Evicted::Gone);
    assert_eq!(pages.counts(), Counts { clean: 0, dirty: 10, writing: 0 });
}

/// The cache on top of a target that is a vector of bytes behaves like a vector of bytes.
#[test]
fn a_random_history_equals_a_vector() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let (mut pages, mut target, mut model) = (Pages::default(), vec![0u8; 600], vec![0u8; 600]);
        let mut in_flight: Vec<(u64, u64, Bytes)> = Vec::new();
        let mut clock: Vec<(Range<u64>, u64)> = Vec::new();
        let mut id = 0;
        for _ in 0..400 {
            let start = rng.below(500);
            let range = start..start + rng.range(1, 99);
            id += 1;
            match rng.below(7) {
                0 | 1 => {
                    let data = bytes((range.end - range.start) as usize, rng.u64() as u8);
                    model[range.start as usize..range.end as usize].copy_from_slice(&data);
                    pages.write(range.start, data);
                }
                2 => {
                    for gap in pages.missing(&range) {
                        let data = Bytes::copy_from_slice(&target[gap.start as usize..gap.end as usize]);
                        // In flight bytes that were dropped may differ: the client fetches only what is not in flight.
                        if !pages.writing_in(&gap) {
                            pages.fill(gap.start, &data, id);
                            clock.push((gap, id));
                        }
                    }
                    let whole = pages.missing(&range).is_empty();
                    if whole {
                        let got = content(&mut pages, range.clone());
                        assert_eq!(got, model[range.start as usize..range.end as usize], "seed {seed}");
                    }
                }
                3 | 4 => {
                    if let Some((at, data)) = pages.take(&range, 64, rng.chance(1, 3), id) {
                        in_flight.push((id, at, data));
                    }
                }
                5 if !in_flight.is_empty() => {
                    let (id, at, data) = in_flight.swap_remove(rng.below(in_flight.len() as u64) as usize);
                    target[at as usize..at as usize + data.len()].copy_from_slice(&data);
                    if let Some(range) = pages.written(id, id) {
                        clock.push((range, id));
                    }
                }
                _ => {
                    if let Some((range, mark)) = clock.pop() {
                        pages.evict(&range, mark);
                    }
                }
            }
        }
        for (id, at, data) in in_flight {
            target[at as usize..at as usize + data.len()].copy_from_slice(&data);
            pages.written(id, id);
        }
        while let Some((at, data)) = pages.take(&(0..u64::MAX), 64, false, 0) {
            target[at as usize..at as usize + data.len()].copy_from_slice(&data);
            pages.written(0, 0);
        }
        assert_eq!(target, model, "seed {seed}");
        let counts = pages.counts();
        assert_eq!((counts.dirty, counts.writing, pages.unwritten_end()), (0, 0, 0));
        pages.cut(&(0..u64::MAX));
        assert_eq!(pages.counts(), Counts::default());
    }
}
