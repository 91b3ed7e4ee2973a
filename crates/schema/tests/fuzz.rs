//! Records of any bytes: the seal notices damage, a body under a right seal is a record or an error, a key names something
//! or nothing. Deterministic: a failure names the round.

use core::fmt::Debug;
use schema::{Header, Record, first_cookie, formats};
use stdx::Rng;
use store::{Key, Value};
use testkit::mutate::{mutate, random};
use testkit::samples::records::{self, Visitor};

const SEED: u64 = 0xada_5ea1;

struct Fuzz {
    rng: Rng,
    /// Keys and bodies of earlier records, to splice in.
    seen: Vec<(Vec<u8>, Vec<u8>)>,
    decoded: u64,
    refused: u64,
}

impl Visitor for Fuzz {
    fn record<R: Record + PartialEq + Debug>(&mut self, name: &'static str, id: R::Id, record: R)
    where
        R::Id: PartialEq + Debug,
    {
        let (key, body) = (R::key(&id), record.encode_record());
        self.seen.push((key.to_vec(), body.to_vec()));
        let sealed = formats().seal(&key, &body);
        for round in 0..6_000 {
            let (other_key, other_body) = self.seen[self.rng.below(self.seen.len() as u64) as usize].clone();
            let rng = &mut self.rng;

            // The seal.
            let mut damaged = sealed.to_vec();
            mutate(rng, &mut damaged, &other_body);
            if damaged[..] != sealed[..] {
                let opened = formats().open(&key, &damaged.into());
                assert!(
                    opened.is_err_and(|e| e.to_string().contains("record")),
                    "{name} round {round}: damage unnoticed"
                );
            }

            // The body.
            let mut bytes = if rng.chance(1, 8) { random(rng, 80) } else { body.to_vec() };
            mutate(rng, &mut bytes, &other_body);
            match R::decode_record(&Value::from(bytes)) {
                Ok(record) => {
                    let again = record.encode_record();
                    let same = R::decode_record(&again).map(|record| record.encode_record());
                    assert_eq!(same, Ok(again), "{name} round {round}");
                    self.decoded += 1;
                }
                Err(bad) => {
                    assert!(bad.to_string().contains(R::KIND) || bad.to_string().contains("linkEA"), "{bad}");
                    self.refused += 1;
                }
            }

            // The key.
            let mut bytes = if rng.chance(1, 8) { random(rng, 40) } else { key.to_vec() };
            mutate(rng, &mut bytes, &other_key);
            bytes.truncate(store::KEY_LEN_MAX);
            if let Some(id) = R::parse_key(&bytes) {
                assert_eq!(R::key(&id)[..], bytes[..], "{name} round {round}");
            }
            let key = Key::new(&bytes);
            assert!((formats().current)(&key) > 0);
        }
    }

    fn part<M: prost::Message + Default + PartialEq + Debug>(&mut self, _: &'static str, _: M) {}
}

#[test]
fn records_of_any_bytes_are_a_record_or_a_named_error() {
    let mut fuzz = Fuzz { rng: Rng::new(SEED), seen: Vec::new(), decoded: 0, refused: 0 };
    records::for_each(&mut fuzz);
    assert!(fuzz.decoded > 10_000 && fuzz.refused > 10_000, "no longer reaches: {} {}", fuzz.decoded, fuzz.refused);
}

#[test]
fn cookies_of_any_names_stay_within_their_bounds() {
    let mut rng = Rng::new(SEED);
    for _ in 0..50_000 {
        let name = random(&mut rng, 255);
        let keyed = Header { name_key: random(&mut rng, 16).into(), ..Header::default() };
        for header in [Header::default(), keyed] {
            let hash = first_cookie(&header, &name);
            assert!((0x10..0x7fff_ffff_ffff_fff0).contains(&hash) && hash & 15 == 0, "{name:?} {hash:x}");
        }
    }
}
