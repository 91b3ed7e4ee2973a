//! How much memory the bytes of a peer can make us take: decoding a body allocates at most a fixed multiple of its length,
//! whichever field it repeats. With `BODY_MAX` that gives the bound for one frame.

use proto::Frame;
use testkit::memory::peak_of;
use testkit::mutate::varint;
use testkit::samples::messages::{self as samples, Body, Visitor};

#[global_allocator]
static ALLOCATOR: testkit::memory::Counting = testkit::memory::Counting;

/// Length of the bodies that are tried, in bytes: long enough that the multiple shows, short enough to try all fields.
const BODY_LEN: usize = 64 << 10;

/// What a body may take, as a multiple of its length. A client sends no repeated message larger than a string or an
/// object's name; an entry of a listing, which only a server sends, is the largest.
const REQUEST_FACTOR: usize = 40;
/// See [`REQUEST_FACTOR`].
const REPLY_FACTOR: usize = 260;

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
                let (_, peak) = peak_of(|| frame.decode::<M>());
                self.0.push((peak, name, tag));
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
        // Decoded only if another metadata target has sent it.
        name if name.starts_with("Cross") => REPLY_FACTOR / 2,
        name if name.ends_with("Rep") || name == "Config" => REPLY_FACTOR / 3,
        _ => REQUEST_FACTOR,
    };
    let over: Vec<_> = worst.0.iter().filter(|&&(peak, name, _)| peak > factor(name) * BODY_LEN).collect();
    assert!(over.is_empty(), "peak in bytes, message, field: {over:?}");
    assert!(worst.0[0].0 > BODY_LEN * 8, "the allocator no longer counts: {:?}", worst.0[0]);
}
