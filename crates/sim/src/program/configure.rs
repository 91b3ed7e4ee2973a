//! An administrator's program: it sets and removes persistent parameters and pools at the management target, despite all faults.
//!
//! It uses hand-operated sessions ([`crate::scenario::raw`]), because clients only follow the configuration. An acknowledged
//! change must persist; a change without a reply has happened or not. The version never decreases, and a version has the same
//! content whenever and by whomever it is read. At the end clients and targets must have the parameters that are set.

use core::cell::RefCell;
use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;

use proto::msg::{Config, ConfigGetReq, Param, SetParamReq, SetPoolKind, SetPoolReq};
use proto::{Errno, Opcode};
use stdx::Rng;

use crate::plan::Plan;
use crate::scenario::raw::{Peer, RawContext};
use crate::world::mount::FSNAME;

/// Parameters, with possible values.
const PARAMS: &[(&str, &[&str])] = &[
    ("llite.*.max_read_ahead_mb", &["0", "1", "8"]),
    ("llite.*.max_dirty_mb", &["1", "32"]),
    ("mdt.*.commit_interval_ms", &["5", "100"]),
];
/// Pools.
const POOLS: &[&str] = &["flash", "disk"];
/// The number of changes that it requests.
const CHANGES: u64 = 25;

/// The expected configuration.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Configuration {
    params: BTreeMap<String, String>,
    pools: BTreeMap<String, Vec<u32>>,
}

impl Configuration {
    fn of(config: &Config) -> Configuration {
        Configuration {
            params: config.params.iter().map(|param| (param.path.clone(), param.value.clone())).collect(),
            pools: config.pools.iter().map(|pool| (pool.name.clone(), pool.osts.clone())).collect(),
        }
    }

    /// The configuration after a change, or the error of the change, in a file system with this many object targets.
    fn after(&self, change: &ConfigChange, osts: u32) -> Result<Configuration, Errno> {
        let mut after = self.clone();
        match change {
            ConfigChange::Param(SetParamReq { param, delete, .. }) => {
                let Param { path, value } = param.clone().unwrap_or_default();
                match delete {
                    true => drop(after.params.remove(&path).ok_or(Errno::ENOENT)?),
                    false => drop(after.params.insert(path, value)),
                }
            }
            ConfigChange::Pool(SetPoolReq { kind, pool, osts: named, .. }) => {
                let members = after.pools.get(pool).cloned();
                match (SetPoolKind::try_from(*kind).unwrap_or(SetPoolKind::New), members) {
                    (SetPoolKind::New, Some(_)) => return Err(Errno::EEXIST),
                    (SetPoolKind::New, None) => drop(after.pools.insert(pool.clone(), Vec::new())),
                    (_, None) => return Err(Errno::ENOENT),
                    (SetPoolKind::Destroy, Some(members)) if !members.is_empty() => return Err(Errno::ENOTEMPTY),
                    (SetPoolKind::Destroy, _) => drop(after.pools.remove(pool)),
                    (SetPoolKind::Add, Some(mut members)) => {
                        for ost in named {
                            let at = members.binary_search(ost).err();
                            let at = at.filter(|_| *ost < osts).ok_or(if *ost < osts {
                                Errno::EEXIST
                            } else {
                                Errno::ENOENT
                            })?;
                            members.insert(at, *ost);
                        }
                        after.pools.insert(pool.clone(), members);
                    }
                    (SetPoolKind::Remove, Some(mut members)) => {
                        for ost in named {
                            members.remove(members.binary_search(ost).map_err(|_| Errno::ENOENT)?);
                        }
                        after.pools.insert(pool.clone(), members);
                    }
                }
            }
        }
        Ok(after)
    }
}

/// A requested change.
#[derive(Clone, Debug)]
enum ConfigChange {
    Param(SetParamReq),
    Pool(SetPoolReq),
}

impl ConfigChange {
    fn draw(rng: &mut Rng, osts: u32) -> ConfigChange {
        let fsname = FSNAME.to_owned();
        if rng.chance(1, 2) {
            let (path, values) = rng.pick(PARAMS).copied().unwrap_or(PARAMS[0]);
            let value = rng.pick(values).copied().unwrap_or_default().to_owned();
            let param = Some(Param { path: path.to_owned(), value });
            return ConfigChange::Param(SetParamReq { fsname, param, delete: rng.chance(1, 3) });
        }
        let kinds = [SetPoolKind::New, SetPoolKind::Add, SetPoolKind::Add, SetPoolKind::Remove, SetPoolKind::Destroy];
        let kind = rng.pick(&kinds).copied().unwrap_or(SetPoolKind::New) as i32;
        let pool = rng.pick(POOLS).copied().unwrap_or_default().to_owned();
        // Possibly an object target that does not exist.
        ConfigChange::Pool(SetPoolReq { fsname, kind, pool, osts: vec![rng.below(u64::from(osts) + 1) as u32] })
    }

    fn send(&self, peer: &Peer) -> proto::Xid {
        peer.send(match self {
            ConfigChange::Param(request) => peer.request(Opcode::MgsSetParam, request),
            ConfigChange::Pool(request) => peer.request(Opcode::MgsSetPool, request),
        })
    }
}

/// The configuration at the end of the program.
#[derive(Clone, Default)]
pub(crate) struct ConfigurationRecord {
    expected: Rc<RefCell<Configuration>>,
}

impl ConfigurationRecord {
    /// The parameters at the end.
    pub(crate) fn params(&self) -> Vec<(String, String)> {
        self.expected.borrow().params.clone().into_iter().collect()
    }
}

/// Starts the program.
pub(crate) fn start(cx: RawContext, plan: &Plan, rng: Rng) -> ConfigurationRecord {
    let record = ConfigurationRecord::default();
    let program = Program {
        expected: record.expected.clone(),
        versions_read: BTreeMap::new(),
        osts: plan.osts as u32,
        is_full_at_times: plan.disk_faults.fill_every.is_some(),
        is_doubled: plan.network_faults.doubled > 0,
        pause: plan.network.high_us.max(1_000) * 4,
        cx: cx.clone(),
        rng,
    };
    let sched = cx.sched.clone();
    sched.clone().spawn("an administrator", async move {
        if let Err(what) = program.run().await {
            sched.fail(format!("the configuration: {what}"));
        }
    });
    record
}

struct Program {
    cx: RawContext,
    rng: Rng,
    expected: Rc<RefCell<Configuration>>,
    /// By version: the configuration that was read.
    versions_read: BTreeMap<u64, Config>,
    osts: u32,
    /// The disk is full at times, and changes may be refused with `ENOSPC`.
    is_full_at_times: bool,
    /// Requests may be duplicated: the change is made twice, and the first reply may be lost.
    is_doubled: bool,
    pause: u64,
}

impl Program {
    async fn run(mut self) -> Result<(), String> {
        let (peer, other) = (self.cx.peer(crate::scenario::MGT), self.cx.peer(crate::scenario::MGT));
        for _ in 0..CHANGES {
            self.cx.wait(Duration::from_micros(self.rng.below(self.pause))).await;
            let change = ConfigChange::draw(&mut self.rng, self.osts);
            let before = self.expected.borrow().clone();
            let after = before.after(&change, self.osts);
            self.connect(&peer).await?;
            let xid = change.send(&peer);
            let wanted = after.as_ref().map_or_else(|errno| -errno.raw(), |_| 0);
            let now = match peer.reply_while_up(xid).await?.map(|reply| reply.header.status) {
                Some(status) if status == wanted => after.unwrap_or(before),
                Some(status) if self.is_full_at_times && status == -Errno::ENOSPC.raw() => before,
                Some(status) if !self.is_doubled => {
                    return Err(format!("{change:?} gets status {status}, expected {after:?}"));
                }
                _ => {
                    let found = self.look(&peer).await?;
                    if found != before && Ok(&found) != after.as_ref() {
                        return Err(format!(
                            "{change:?} has no reply, and the configuration is {found:?}; before {before:?}"
                        ));
                    }
                    found
                }
            };
            *self.expected.borrow_mut() = now;
            if self.rng.chance(1, 3) {
                self.compare(&other).await?;
            }
        }
        self.compare(&other).await?;
        self.cx.leave().await;
        Ok(())
    }

    /// Compares the configuration that another session reads with the expected one.
    async fn compare(&mut self, other: &Peer) -> Result<(), String> {
        let (found, expected) = (self.look(other).await?, self.expected.borrow().clone());
        if found == expected {
            Ok(())
        } else {
            Err(format!("the configuration is {found:?}, acknowledged was {expected:?}"))
        }
    }

    async fn look(&mut self, peer: &Peer) -> Result<Configuration, String> {
        let config = loop {
            self.connect(peer).await?;
            let asked = peer.request(Opcode::MgsConfigGet, &ConfigGetReq { fsname: FSNAME.to_owned() });
            let xid = peer.send(asked);
            if let Some(reply) = peer.reply_while_up(xid).await? {
                peer.is(Opcode::MgsConfigGet, &reply, Ok(()))?;
                break reply.decode::<Config>().map_err(|error| error.to_string())?;
            }
        };
        if let Some((newest, _)) = self.versions_read.last_key_value().filter(|(newest, _)| **newest > config.version) {
            return Err(format!("version {newest} was read before, and now version {}", config.version));
        }
        let first = self.versions_read.entry(config.version).or_insert_with(|| config.clone());
        if *first != config {
            return Err(format!("version {} was {first:?}, and is {config:?}", config.version));
        }
        Ok(Configuration::of(&config))
    }

    /// Connects if there is no connection; after a crash with a new session. If the request is duplicated, the second copy is
    /// refused, and the reply to the first one may be lost.
    async fn connect(&self, peer: &Peer) -> Result<(), String> {
        while !peer.is_up() {
            let reply = peer.connect(|_, request| request.lightweight = true).await?;
            if self.is_doubled && reply.header.status == -Errno::EALREADY.raw() {
                peer.hang_up();
                continue;
            }
            peer.is(Opcode::Connect, &reply, Ok(()))?;
        }
        Ok(())
    }
}
