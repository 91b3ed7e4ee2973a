//! Settings and statistics, under Lustre's names.

use proto::params::{Bound, Component, OfOst, OfSpace, Served};
use proto::{Errno, bound_as_declared};
use target::space_text;

use crate::ops::statfs;
use crate::{Ost, Stats};

/// What a parameter is of.
enum Key {
    Own(OfOst),
    Space(OfSpace),
}

const fn of_ost(which: OfOst) -> Bound<Ost> {
    match which {
        OfOst::TotGranted => Bound::Get(|ost| ost.grants.total().to_string()),
        OfOst::Degraded => Bound::Number(
            |ost| u8::from(ost.degraded).to_string(),
            |ost, on| {
                ost.degraded = on == 1;
                Ok(())
            },
        ),
        OfOst::BrwStats => Bound::Text(
            |ost| ost.stats.text(),
            |ost, _| {
                ost.stats = Stats::default();
                Ok(())
            },
        ),
    }
}

const _: () = bound_as_declared!(OfOst, of_ost);

fn served(name: &str) -> Served<Key> {
    let mut served = Served::new();
    served.add(Component::Obdfilter, &[name], Key::Own);
    served.add(Component::Obdfilter, &[name], Key::Space);
    served
}

/// All parameters of the target of this name.
pub(crate) fn get(ost: &Ost, name: &str) -> Vec<(String, String)> {
    let figures = statfs::figures(ost);
    let value = |key: &Key| match key {
        Key::Own(which) => of_ost(*which).value(ost),
        Key::Space(which) => space_text(*which, &figures),
    };
    served(name).values(|_| true, value)
}

/// Sets one. `None`: there is none of this name here that can be set.
pub(crate) fn set(ost: &mut Ost, name: &str, path: &str, value: &str) -> Option<Result<(), Errno>> {
    match served(name).find(path)? {
        Key::Own(which) => of_ost(which).set(ost, which.declared(), value),
        Key::Space(_) => None,
    }
}
