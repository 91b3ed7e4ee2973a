//! Names that somebody chose so that they all have one hash, in a file system whose hash has no key.

/// Pieces of names: FNV-1a comes to the same after any one of a row, so each way through the rows is a name with the same hash.
/// (Short vectors of a lattice of powers of FNV's prime give such rows in seconds.)
const ROWS: [[&str; 3]; 7] = [
    ["#TUGRM-&;eikOK", "$fGeQFpslybr-[", "7]~79I7;3$\\~WZ"],
    ["JL~XC=<;aDkf*t", "O^38?6C6aPb)Wb", "R~&.'&<w&g30]b"],
    ["Bv??ruo;D#-!'0", "eMd61RU@,+_#h4", "qFbC32Ff,wn-k)"],
    ["Fj]NeA>38P(Y(t", "KmsLsMC)]`SD(t", "NRQ3&y?N]gV(EN"],
    ["\"0Wqf\"oT.\"\\9o`", "3ch9Va;O4,~^7p", "6,J7hu0E',W]7p"],
    ["L'-}h*K~V\"{)OX", "r\"k?J$BpH:uWBG", "w-I18(IHM:\\TBG"],
    ["AXzKTJ}b=M%M_I", "Co6MB@dl3=3[zN", "u_2>OO~Y~r|KAt"],
];

/// How many there are.
pub const NAMES: usize = 2187;

/// One of them.
pub fn chosen(n: usize) -> String {
    ROWS.iter().scan(n, |left, row| Some(row[core::mem::replace(left, *left / row.len()) % row.len()])).collect()
}
