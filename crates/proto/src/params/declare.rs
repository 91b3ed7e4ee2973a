//! What is said of a parameter.

use crate::Errno;

/// One parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Declared {
    /// The kinds of devices that have it.
    pub on: &'static [Component],
    /// Its name on the device: `max_cached_mb`, `exports.*.uuid`.
    pub leaf: &'static str,
    /// An older name for the same.
    pub also: Option<&'static str>,
    /// What may be done with it.
    pub access: Access,
    /// What it can be set to.
    pub values: Values,
    /// What its numbers count, or its texts are.
    pub unit: &'static str,
    /// What it is if nobody sets it, as the guide writes it.
    pub default: Option<&'static str>,
    /// What a collector of metrics may take it for.
    pub metric: Metric,
    /// Its table in the guide.
    pub topic: &'static str,
    /// What it does.
    pub doc: &'static str,
}

/// Parameters of one state.
pub trait Group: Copy + 'static {
    /// All of them.
    const ALL: &'static [Self];

    /// What is said of one.
    fn declared(self) -> &'static Declared;
}

/// A kind of device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Component {
    /// None: it is the process's own.
    Process,
    /// A management target.
    Mgs,
    /// A metadata target.
    Mdt,
    /// An object target.
    Obdfilter,
    /// The medium of a target.
    Osd,
    /// An object target as a metadata target uses it, or another target that a target asks.
    Osp,
    /// All object targets as a metadata target chooses from them.
    Lod,
    /// The metadata targets of FID sequences, as a metadata target or a mount knows them.
    Fld,
    /// FID sequences of a metadata target, or of a mount there.
    Seq,
    /// The locks of a target, or those that a mount holds of one.
    Namespace,
    /// A mount.
    Llite,
    /// All metadata targets of a mount.
    Lmv,
    /// All object targets of a mount.
    Lov,
    /// The connection of a mount to its MGS.
    Mgc,
    /// To a metadata target.
    Mdc,
    /// To an object target.
    Osc,
}

impl Component {
    /// What names of parameters begin with; the star is the device.
    const fn beginning(self) -> &'static str {
        match self {
            Component::Process => "",
            Component::Mgs => "mgs.*.",
            Component::Mdt => "mdt.*.",
            Component::Obdfilter => "obdfilter.*.",
            Component::Osd => "osd-lmdb.*.",
            Component::Osp => "osp.*.",
            Component::Lod => "lod.*.",
            Component::Fld => "fld.*.",
            Component::Seq => "seq.*.",
            Component::Namespace => "ldlm.namespaces.*.",
            Component::Llite => "llite.*.",
            Component::Lmv => "lmv.*.",
            Component::Lov => "lov.*.",
            Component::Mgc => "mgc.*.",
            Component::Mdc => "mdc.*.",
            Component::Osc => "osc.*.",
        }
    }
}

/// What may be done with a parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// It can be read.
    Get,
    /// It can be set; its value is always empty.
    Set,
    /// Both.
    GetSet,
}

impl Access {
    /// Whether it can be set.
    pub const fn can_set(self) -> bool {
        matches!(self, Access::Set | Access::GetSet)
    }
}

/// What a parameter is for a collector of metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Metric {
    /// A number that rises and falls.
    Gauge,
    /// A number that only rises while the process runs.
    Counter,
    /// What somebody has set.
    Setting,
    /// Counts by kind or size, a text of several lines.
    Histogram,
    /// A text for people.
    Text,
}

/// What a parameter can be set to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Values {
    /// A text, which its setter reads.
    Text,
    /// `0` or `1`; anything else is `EINVAL`.
    Switch,
    /// A number; others are `ERANGE`.
    Number {
        /// Least.
        min: u64,
        /// Greatest.
        max: u64,
    },
    /// From 0 to 100, with or without a percent sign.
    Percent,
    /// Bytes, KiB (`k`) or MiB (`m`), a multiple of a number of bytes.
    Size {
        /// That number.
        step: u64,
        /// Greatest.
        max: u64,
    },
}

/// A number as people write it, with blanks around it or not.
pub fn number(text: &str) -> Result<u64, Errno> {
    text.trim().parse().map_err(|_| Errno::EINVAL)
}

impl Values {
    /// Reads a value: `EINVAL` if it is none, `ERANGE` if it is out of range. A text has no number.
    pub fn read(self, text: &str) -> Result<u64, Errno> {
        let text = text.trim();
        let within = |number: u64, min: u64, max: u64| match (min..=max).contains(&number) {
            true => Ok(number),
            false => Err(Errno::ERANGE),
        };
        match self {
            Values::Text => Err(Errno::EINVAL),
            Values::Switch if matches!(text, "0" | "1") => Ok(u64::from(text == "1")),
            Values::Switch => Err(Errno::EINVAL),
            Values::Number { min, max } => within(number(text)?, min, max),
            Values::Percent => within(number(text.trim_end_matches('%'))?, 0, 100),
            Values::Size { step, max } => {
                let (digits, unit) = match text.as_bytes().last() {
                    Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
                    Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
                    _ => (text, 1),
                };
                let bytes = number(digits)?.checked_mul(unit).ok_or(Errno::ERANGE)?;
                if bytes.is_multiple_of(step) { within(bytes, 0, max) } else { Err(Errno::EINVAL) }
            }
        }
    }
}

impl Declared {
    const fn new(leaf: &'static str, access: Access, values: Values, unit: &'static str, metric: Metric) -> Declared {
        Declared { on: &[], leaf, also: None, access, values, unit, default: None, metric, topic: "", doc: "" }
    }

    /// It is on fewer kinds of devices than the others of its group.
    pub(super) const fn only(self, on: &'static [Component]) -> Declared {
        Declared { on, ..self }
    }

    /// It has an older name.
    pub(super) const fn also(self, leaf: &'static str) -> Declared {
        Declared { also: Some(leaf), ..self }
    }

    /// What its texts are.
    pub(super) const fn unit(self, unit: &'static str) -> Declared {
        Declared { unit, ..self }
    }

    /// What it is before anything happens, as the guide writes it.
    pub(super) const fn usually(self, default: &'static str) -> Declared {
        Declared { default: Some(default), ..self }
    }

    /// Setting it, to whatever, makes it begin anew.
    pub(super) const fn with_reset(self) -> Declared {
        Declared { access: Access::GetSet, ..self }
    }

    /// What is the same for the whole group, and what stands around it.
    pub(super) const fn of(self, on: &'static [Component], topic: &'static str, doc: &'static str) -> Declared {
        let on = if self.on.is_empty() { on } else { self.on };
        Declared { on, topic, doc, ..self }
    }

    /// Whether devices of this kind have it.
    pub fn is_on(&self, component: Component) -> bool {
        self.on.contains(&component)
    }

    fn leaves(&self) -> impl Iterator<Item = &'static str> {
        core::iter::once(self.leaf).chain(self.also)
    }

    /// Its names on devices of all kinds, with stars for what differs: `mdt.*.exports.*.uuid`.
    pub fn forms(&self) -> impl Iterator<Item = String> {
        self.on.iter().flat_map(|one| self.leaves().map(|leaf| format!("{}{leaf}", one.beginning())))
    }

    /// Its names on one device, with what stands for the stars: the device, then perhaps the client, pool or file system.
    pub fn names(&self, component: Component, stars: &[&str]) -> impl Iterator<Item = String> {
        self.leaves().map(move |leaf| filled(component.beginning(), leaf, stars))
    }

    /// The first of them.
    pub fn name(&self, component: Component, stars: &[&str]) -> String {
        filled(component.beginning(), self.leaf, stars)
    }
}

fn filled(beginning: &str, leaf: &str, stars: &[&str]) -> String {
    let (mut name, mut stars) = (String::new(), stars.iter());
    for part in beginning.split_inclusive('*').chain(leaf.split_inclusive('*')) {
        name.push_str(part.trim_end_matches('*'));
        if part.ends_with('*') {
            name.push_str(stars.next().copied().unwrap_or_default());
        }
    }
    name
}

/// A number that rises and falls.
pub(super) const fn gauge(leaf: &'static str, unit: &'static str) -> Declared {
    Declared::new(leaf, Access::Get, Values::Text, unit, Metric::Gauge)
}

/// A number that only rises.
pub(super) const fn counter(leaf: &'static str, unit: &'static str) -> Declared {
    Declared::new(leaf, Access::Get, Values::Text, unit, Metric::Counter)
}

/// Counts by kind or size.
pub(super) const fn histogram(leaf: &'static str, unit: &'static str) -> Declared {
    Declared::new(leaf, Access::Get, Values::Text, unit, Metric::Histogram)
}

/// A text for people.
pub(super) const fn text(leaf: &'static str) -> Declared {
    Declared::new(leaf, Access::Get, Values::Text, "", Metric::Text)
}

/// What can only be set.
pub(super) const fn order(leaf: &'static str, unit: &'static str) -> Declared {
    Declared::new(leaf, Access::Set, Values::Text, unit, Metric::Text)
}

/// What can be read and set.
pub(super) const fn setting(leaf: &'static str, unit: &'static str, values: Values, default: &'static str) -> Declared {
    let declared = Declared::new(leaf, Access::GetSet, values, unit, Metric::Setting);
    Declared { default: Some(default), ..declared }
}

/// A range of numbers.
pub(super) const fn range(min: u64, max: u64) -> Values {
    Values::Number { min, max }
}

/// Declares groups: an enum each, and a table in the same order. The comment of a parameter is its sentence in the guide.
macro_rules! declare {
    ($(
        $(#[doc = $what:literal])+
        $group:ident on [$($component:ident),+] {
            $( $topic:literal { $( $(#[doc = $doc:literal])+ $name:ident = $made:expr; )+ } )+
        }
    )+) => {
        $(
            $(#[doc = $what])+
            #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
            pub enum $group { $( $( $(#[doc = $doc])+ $name, )+ )+ }

            impl $group {
                /// All of the group.
                pub const ALL: &[$group] = &[$( $( $group::$name, )+ )+];
                const ON: &[$crate::params::Component] = &[$($crate::params::Component::$component),+];
                const TABLE: &[$crate::params::Declared] =
                    &[$( $( $made.of($group::ON, $topic, concat!($($doc),+).trim_ascii()), )+ )+];

                /// What is said of it.
                pub const fn declared(self) -> &'static $crate::params::Declared {
                    &Self::TABLE[self as usize]
                }
            }

            impl $crate::params::Group for $group {
                const ALL: &'static [$group] = $group::ALL;

                fn declared(self) -> &'static $crate::params::Declared {
                    $group::declared(self)
                }
            }
        )+

        /// The tables of all groups here.
        pub(super) const GROUPS: &[&[$crate::params::Declared]] = &[$($group::TABLE),+];
    };
}

pub(super) use declare;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_in_one_way() {
        let most = u64::from(u32::MAX);
        for (values, text, number) in [
            (range(1, 9), "9", Ok(9)),
            (range(1, 9), " 9\n", Ok(9)),
            (range(1, 9), "0", Err(Errno::ERANGE)),
            (range(0, most), "4294967296", Err(Errno::ERANGE)),
            (range(0, most), "99999999999999999999", Err(Errno::EINVAL)),
            (range(0, most), "-1", Err(Errno::EINVAL)),
            (range(0, most), "", Err(Errno::EINVAL)),
            (Values::Switch, "1", Ok(1)),
            (Values::Switch, "0 ", Ok(0)),
            (Values::Switch, "2", Err(Errno::EINVAL)),
            (Values::Switch, "01", Err(Errno::EINVAL)),
            (Values::Percent, "30%", Ok(30)),
            (Values::Percent, "100", Ok(100)),
            (Values::Percent, "101%", Err(Errno::ERANGE)),
            (Values::Percent, "%", Err(Errno::EINVAL)),
            (Values::Size { step: 1024, max: 4096 }, "3k", Ok(3072)),
            (Values::Size { step: 1024, max: 4096 }, "1000", Err(Errno::EINVAL)),
            (Values::Size { step: 1024, max: 4096 }, "1m", Err(Errno::ERANGE)),
            (Values::Size { step: 1024, max: 4096 }, "k", Err(Errno::EINVAL)),
            (Values::Text, "1", Err(Errno::EINVAL)),
        ] {
            assert_eq!(values.read(text), number, "{values:?} {text:?}");
        }
    }

    #[test]
    fn names_are_forms_with_their_stars_filled_in() {
        let declared = text("exports.*.uuid").of(&[Component::Mgs, Component::Mdt], "", "");
        assert_eq!(declared.forms().collect::<Vec<_>>(), ["mgs.*.exports.*.uuid", "mdt.*.exports.*.uuid"]);
        let names: Vec<String> = declared.names(Component::Mdt, &["fs-MDT0000", "ab-cd"]).collect();
        assert_eq!(names, ["mdt.fs-MDT0000.exports.ab-cd.uuid"]);
        let declared = gauge("new", "").also("old").of(&[Component::Process], "", "");
        assert_eq!(declared.names(Component::Process, &[]).collect::<Vec<_>>(), ["new", "old"]);
    }
}
