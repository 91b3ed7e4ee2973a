//! How much memory the bytes of a peer can make us take: decoding a body allocates at most a fixed multiple of its length,
//! whichever field it repeats. With `BODY_LEN` that gives the bound for one frame.

mod common;

use common::mutate::varint;
use common::samples::{self, Body, Visitor};
use proto::Frame;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Counts what is allocated now, and the most that ever was.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator; only numbers are kept beside it.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(now, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Length of the bodies that are tried, in bytes: long enough that the multiple shows, short enough to try all fields.
const BODY_LEN: usize = 64 << 10;

/// What a body may take, as a multiple of its length. A client sends no repeated message larger than a string or an
/// object's name; an entry of a listing, which only a server sends, is the largest.
const REQUEST_FACTOR: usize = 40;
/// See [`REQUEST_FACTOR`].
const REPLY_FACTOR: usize = 240;

/// The most that `work` has allocated at once beyond what was there before.
fn peak_of<T>(work: impl FnOnce() -> T) -> usize {
    let before = NOW.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = work();
    let peak = PEAK.load(Relaxed);
    drop(result);
    peak - before
}

/// A body that says `field` again and again.
fn repeated(field: &[u8]) -> Vec<u8> {
    field.iter().copied().cycle().take(BODY_LEN / field.len() * field.len()).collect()
}

#[derive(Default)]
struct Worst(Vec<(usize, &'static str, u64)>);

impl Visitor for Worst {
    fn visit<M: Body>(&mut self, name: &'static str, _: M) {
        for tag in 1..=24_u64 {
            let mut empty = Vec::new();
            varint(tag << 3 | 2, &mut empty);
            let mut packed = empty.clone();
            varint(BODY_LEN as u64 - 8, &mut packed);
            packed.resize(BODY_LEN, 1);
            empty.push(0);
            let mut number = Vec::new();
            varint(tag << 3, &mut number);
            number.push(1);
            for body in [repeated(&empty), repeated(&number), packed] {
                let frame = Frame { body: body.into(), ..Frame::default() };
                self.0.push((peak_of(|| frame.decode::<M>()), name, tag));
            }
        }
    }
}

#[test]
fn a_body_takes_a_bounded_multiple_of_its_length_whatever_it_says() {
    let mut worst = Worst::default();
    samples::for_each(&mut worst);
    worst.0.sort_unstable_by(|a, b| b.cmp(a));
    let factor = |name: &str| match name {
        "ReaddirRep" => REPLY_FACTOR,
        name if name.ends_with("Rep") || name == "Config" => REPLY_FACTOR / 3,
        _ => REQUEST_FACTOR,
    };
    let over: Vec<_> = worst.0.iter().filter(|&&(peak, name, _)| peak > factor(name) * BODY_LEN).collect();
    assert!(over.is_empty(), "peak in bytes, message, field: {over:?}");
    assert!(worst.0[0].0 > BODY_LEN * 8, "the allocator no longer counts: {:?}", worst.0[0]);
}
