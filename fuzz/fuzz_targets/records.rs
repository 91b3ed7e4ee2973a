//! A key and a body, as every record, and as a sealed record: a record or an error that names it.
#![no_main]

use core::fmt::Debug;
use libfuzzer_sys::fuzz_target;
use schema::{Record, formats};
use store::{KEY_LEN_MAX, Key, Value};
use testkit::samples::records::{self as samples, Visitor};

struct Decode<'a> {
    key: &'a [u8],
    body: Value,
}

impl Visitor for Decode<'_> {
    fn record<R: Record + PartialEq + Debug>(&mut self, name: &'static str, _: R::Id, _: R)
    where
        R::Id: PartialEq + Debug,
    {
        if let Some(id) = R::parse_key(self.key) {
            assert_eq!(R::key(&id)[..], *self.key, "{name}");
        }
        if let Ok(record) = R::decode_record(&self.body) {
            let again = record.encode_record();
            assert_eq!(R::decode_record(&again).map(|record| record.encode_record()), Ok(again), "{name}");
        }
    }

    fn part<M: prost::Message + Default + PartialEq + Debug>(&mut self, _: &'static str, _: M) {}
}

fuzz_target!(|input: &[u8]| {
    let Some((&length, rest)) = input.split_first() else { return };
    let (key, body) = rest.split_at(usize::from(length).min(rest.len()).min(KEY_LEN_MAX));
    let body = Value::copy_from_slice(body);
    let _ = formats().open(&Key::new(key), &body);
    samples::for_each(&mut Decode { key, body });
});
