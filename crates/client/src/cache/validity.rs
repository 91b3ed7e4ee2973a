//! Validity of a node: which inode locks cover its cached attributes.
//!
//! Attributes are *sure* under a lock if they arrived with the lock or were requested under it, and the lock has been
//! held since. For each of UPDATE (attributes), XATTR (whether there are extended ones) and LAYOUT:
//!
//! ```text
//!   state             becomes          when
//!   not held          held             the lock is granted
//!   held              sure             attributes arrive that were requested under the lock, or came with it
//!   held              sure             this client set them, and nobody else knows the object
//!   held              as before        attributes arrive that were requested before
//!   sure              sure             any attributes arrive: only changes of this client can be newer
//!   sure              held             a change of this client may have made them outdated ([`Validity::doubt`])
//!   held, sure        not held         the lock is called back, given back or lost
//! ```
//! For names, epochs tell under which unbroken lock they were learned: a new one starts when a lock is granted and when
//! it is lost.

use proto::msg::bits;

/// The bits that make attributes sure.
const SURE: u64 = bits::UPDATE | bits::XATTR | bits::LAYOUT;

/// Those inode lock bits that have a meaning, in half the room.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Bits(u32);

impl Bits {
    fn of(held: u64) -> Bits {
        Bits((held & bits::ALL) as u32)
    }

    fn all(self) -> u64 {
        self.0.into()
    }
}

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Validity {
    /// Inode lock bits that are held (PR or stronger) and not called back.
    held: Bits,
    /// Those of them under which the attributes are sure.
    sure: Bits,
    /// Changes whenever UPDATE is lost or granted; never the same twice in one mount.
    update_epoch: u32,
    /// Changes whenever LOOKUP is lost or granted; never the same twice in one mount.
    lookup_epoch: u32,
    /// The moment ([`crate::coherence::world::World::moment`]) at which bits that cover attributes were granted last.
    gained: u64,
    /// The moment at which LOOKUP was granted last.
    lookup_gained: u64,
}

impl Validity {
    /// The bits that are held.
    pub(crate) fn held(&self) -> u64 {
        self.held.all()
    }

    /// Whether these bits are held.
    pub(crate) fn has(&self, wanted: u64) -> bool {
        self.held.all() & wanted == wanted
    }

    /// Whether the attributes that these bits cover are sure.
    pub(crate) fn covers(&self, wanted: u64) -> bool {
        self.held.all() & self.sure.all() & wanted == wanted
    }

    /// The epoch of the names in a directory.
    pub(crate) fn update_epoch(&self) -> u32 {
        self.update_epoch
    }

    /// The epoch of the names that lead to the node.
    pub(crate) fn lookup_epoch(&self) -> u32 {
        self.lookup_epoch
    }

    /// Whether a request with this number was sent under the current locks on attributes.
    pub(crate) fn is_under(&self, number: u64) -> bool {
        number > self.gained
    }

    /// Whether a request with this number was sent under the current LOOKUP lock.
    pub(crate) fn is_under_lookup(&self, number: u64) -> bool {
        number > self.lookup_gained
    }

    /// The moment at which locks on attributes were granted last.
    pub(crate) fn gained(&self) -> u64 {
        self.gained
    }

    /// Sets the bits that are held. Returns those that are lost.
    pub(crate) fn mirror(&mut self, held: u64, moment: u64, mut next_epoch: impl FnMut() -> u32) -> u64 {
        let (lost, gained) = (self.held.all() & !held, held & !self.held.all());
        (self.held, self.sure) = (Bits::of(held), Bits::of(self.sure.all() & held));
        if gained & SURE != 0 {
            self.gained = moment;
        }
        if gained & bits::LOOKUP != 0 {
            self.lookup_gained = moment;
        }
        if (lost | gained) & bits::UPDATE != 0 {
            self.update_epoch = next_epoch();
        }
        if (lost | gained) & bits::LOOKUP != 0 {
            self.lookup_epoch = next_epoch();
        }
        lost
    }

    /// Attributes arrived; `under`: with the current locks, or requested under them.
    pub(crate) fn arrived(&mut self, under: bool) {
        if under {
            self.sure = Bits::of(self.held.all() & SURE);
        }
    }

    /// This client has set the attributes that these bits cover.
    pub(crate) fn assume(&mut self, which: u64) {
        self.sure = Bits::of(self.sure.all() | self.held.all() & which);
    }

    /// The attributes that these bits cover may be outdated.
    pub(crate) fn doubt(&mut self, which: u64) {
        self.sure = Bits::of(self.sure.all() & !which);
    }

    /// The names in a directory may be outdated.
    pub(crate) fn doubt_names(&mut self, epoch: u32) {
        self.update_epoch = epoch;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum State {
        NotHeld,
        Held,
        Sure,
    }

    /// Each state of each bit with everything that can happen to it.
    #[test]
    fn attributes_are_sure_only_under_an_unbroken_lock() {
        use State::{Held, NotHeld, Sure};
        type Input = fn(&mut Validity, u64);
        let inputs: [(&str, Input, [State; 3]); 6] = [
            ("granted", |v, bit| _ = v.mirror(v.held() | bit, 1, || 1), [Held, Held, Sure]),
            ("lost", |v, bit| _ = v.mirror(v.held() & !bit, 1, || 1), [NotHeld, NotHeld, NotHeld]),
            ("arrives under the lock", |v, _| v.arrived(true), [NotHeld, Sure, Sure]),
            ("set by this client", |v, bit| v.assume(bit), [NotHeld, Sure, Sure]),
            ("arrives from before", |v, _| v.arrived(false), [NotHeld, Held, Sure]),
            ("in doubt", |v, bit| v.doubt(bit), [NotHeld, Held, Held]),
        ];
        for bit in [bits::UPDATE, bits::XATTR, bits::LAYOUT] {
            for (what, input, then) in inputs {
                for (before, then) in [NotHeld, Held, Sure].into_iter().zip(then) {
                    let mut validity = Validity::default();
                    if before != NotHeld {
                        validity.mirror(bit, 1, || 1);
                    }
                    validity.arrived(before == Sure);
                    input(&mut validity, bit);
                    let state = match (validity.has(bit), validity.covers(bit)) {
                        (false, _) => NotHeld,
                        (true, false) => Held,
                        (true, true) => Sure,
                    };
                    assert_eq!(state, then, "{bit:#x}: {before:?}, then {what}");
                }
            }
        }
    }

    #[test]
    fn every_granted_or_lost_lock_starts_a_new_epoch() {
        let mut validity = Validity::default();
        let mut last = 0;
        let mut next = || {
            last += 1;
            last
        };
        for (held, epochs, lost) in [
            (bits::UPDATE, (1, 0), 0),
            (bits::UPDATE, (1, 0), 0),
            (bits::UPDATE | bits::LOOKUP, (1, 2), 0),
            (bits::LOOKUP, (3, 2), bits::UPDATE),
            (bits::UPDATE, (4, 5), bits::LOOKUP),
            (0, (6, 5), bits::UPDATE),
        ] {
            assert_eq!(validity.mirror(held, 7, &mut next), lost);
            assert_eq!((validity.update_epoch(), validity.lookup_epoch()), epochs);
        }
        assert!(validity.is_under(8) && !validity.is_under(7) && validity.is_under_lookup(8));
    }
}
