//! Names that share one hash in a file system whose hash has no key: in a directory, sixteen of them fill a chain, and more need
//! a second one.

use proto::Bytes;

/// Parts of names: after any part of a row FNV-1a has the same state, so each choice of one part per row is a name with the same
/// hash.
const ROWS: [[&str; 3]; 3] = [
    ["#TUGRM-&;eikOK", "$fGeQFpslybr-[", "7]~79I7;3$\\~WZ"],
    ["JL~XC=<;aDkf*t", "O^38?6C6aPb)Wb", "R~&.'&<w&g30]b"],
    ["Bv??ruo;D#-!'0", "eMd61RU@,+_#h4", "qFbC32Ff,wn-k)"],
];

/// The number of such names.
pub(crate) const NAMES: u64 = 27;

/// One of these names.
pub(crate) fn name(number: u64) -> Bytes {
    let mut left = number as usize;
    let mut text = String::new();
    for row in ROWS {
        text.push_str(row[left % row.len()]);
        left /= row.len();
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn they_share_a_hash() {
        let header = schema::Header::default();
        let names: BTreeSet<Bytes> = (0..NAMES).map(name).collect();
        let hashes: BTreeSet<u64> = names.iter().map(|name| schema::first_cookie(&header, name)).collect();
        assert_eq!((names.len() as u64, hashes.len()), (NAMES, 1));
    }
}
