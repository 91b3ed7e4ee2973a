//! Which parameters a machine has now, under their full names.

use super::{Component, Group};

/// Parameters by name, each with a key by which the machine finds what it is of.
#[derive(Debug)]
pub struct Served<K>(Vec<(String, K)>);

impl<K> Default for Served<K> {
    fn default() -> Served<K> {
        Served(Vec::new())
    }
}

impl<K> Served<K> {
    /// None.
    pub fn new() -> Served<K> {
        Served::default()
    }

    /// A device has those of a group that are declared for its kind. `stars`: its name, and perhaps that of the client, pool
    /// or file system.
    pub fn add<G: Group>(&mut self, component: Component, stars: &[&str], key: impl Fn(G) -> K) {
        for &one in G::ALL.iter().filter(|one| one.declared().is_on(component)) {
            self.0.extend(one.declared().names(component, stars).map(|name| (name, key(one))));
        }
    }

    /// The key of a parameter.
    pub fn find(self, name: &str) -> Option<K> {
        self.0.into_iter().find(|(own, _)| own == name).map(|(_, key)| key)
    }

    /// Those whose names match, sorted by them.
    pub fn matching(self, matches: impl Fn(&str) -> bool) -> Vec<(String, K)> {
        let mut found: Vec<(String, K)> = self.0.into_iter().filter(|(name, _)| matches(name)).collect();
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        found
    }

    /// The same, with their values.
    pub fn values(self, matches: impl Fn(&str) -> bool, value: impl Fn(&K) -> String) -> Vec<(String, String)> {
        self.matching(matches).into_iter().map(|(name, key)| (name, value(&key))).collect()
    }
}
