//! A body, as every message: a message or an error; what was understood means the same when it was written again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use testkit::samples::messages::{self as samples, Body, Visitor};

struct Decode<'a>(&'a [u8]);

impl Visitor for Decode<'_> {
    fn visit<M: Body>(&mut self, name: &'static str, _: M) {
        if let Ok(message) = M::decode(self.0) {
            let again = message.encode_to_vec();
            assert_eq!(M::decode(&again[..]).map(|m| m.encode_to_vec()), Ok(again), "{name}");
        }
    }
}

fuzz_target!(|body: &[u8]| {
    samples::for_each(&mut Decode(body));
    if let Ok(text) = core::str::from_utf8(body) {
        let _ = (text.parse::<proto::Fid>(), text.parse::<proto::Nid>(), text.parse::<proto::TargetName>());
    }
});
