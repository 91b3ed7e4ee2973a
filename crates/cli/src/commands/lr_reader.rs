//! `lr_reader`: the records of a metadata target's clients, and of the replies to them.
//!
//! It reads what was last committed, whether the target runs or not. The keys are those of Lustre's tool of that name;
//! where our records are stored differently, the values say so (`client_area_*` are 0, because client records have no place
//! in a file).
//!
//! The other metadata targets are shown as clients, too, as far as the target has heard of them. They have no replies to replay:
//! what a target keeps for one is its prepared part of a change that the other coordinates, until both have it for good.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::anyhow;
use clap::Args;
use engine::{LmdbEngine, OpenOptions};
use proto::{ClientUuid, Tag, TargetIndex, TargetKind, TargetName};
use schema::session::{ClientRec, KnownConfig, Progress, ReplyRec};
use schema::{CrossKey, CrossRec, Header, Record};
use store::{Engine, EngineError};

/// Show the client and reply records of a metadata target, whether it runs or not
///
/// Example: lr_reader -c -r /srv/mdt0
#[derive(Args)]
#[command(next_help_heading = "OPTIONS")]
pub(crate) struct Arguments {
    /// Print the clients, too
    #[arg(short = 'c', long = "client")]
    pub clients: bool,
    /// Print the reply records, too
    #[arg(short = 'r', long = "reply")]
    pub replies: bool,
    /// Print the clients, too, from the copy of a target in this directory
    #[arg(short = 'C', value_name = "FILE")]
    pub clients_of: Option<PathBuf>,
    /// Print the reply records, too, from the copy of a target in this directory
    #[arg(short = 'R', value_name = "FILE")]
    pub replies_of: Option<PathBuf>,
    /// Directory of the target
    #[arg(value_name = "TARGET")]
    pub target: PathBuf,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let text = text(arguments)?;
    crate::output::print(format_args!("{text}"));
    Ok(ExitCode::SUCCESS)
}

fn text(arguments: &Arguments) -> anyhow::Result<String> {
    let target = Sessions::read(&arguments.target)?;
    let mut text = String::new();
    target.write_target(&mut text);
    if arguments.clients || arguments.clients_of.is_some() {
        match &arguments.clients_of {
            Some(copy) => Sessions::read(copy)?.write_clients(&mut text),
            None => target.write_clients(&mut text),
        }
    }
    if arguments.replies || arguments.replies_of.is_some() {
        match &arguments.replies_of {
            Some(copy) => Sessions::read(copy)?.write_replies(&mut text),
            None => target.write_replies(&mut text),
        }
    }
    Ok(text)
}

/// The records of a target's sessions.
struct Sessions {
    header: Header,
    progress: Progress,
    clients: Vec<(ClientUuid, ClientRec)>,
    replies: BTreeMap<(u32, Tag), ReplyRec>,
    /// The other metadata targets.
    peers: Vec<TargetName>,
    /// The parts that are kept for them, by coordinator.
    parts: Vec<(CrossKey, CrossRec)>,
}

/// The number of records that are read at once.
const STEP: usize = 4096;

impl Sessions {
    fn read(directory: &Path) -> anyhow::Result<Sessions> {
        let options = OpenOptions { read_only: true, beside_writer: true, ..OpenOptions::default() };
        let engine = LmdbEngine::open(directory, options)?;
        let one = |wanted: &str| anyhow!("'{}' holds no {wanted}", directory.display());
        let header = all::<Header>(&engine)?.pop().ok_or_else(|| one("target"))?.1;
        let progress = all::<Progress>(&engine)?.pop().map(|(_, progress)| progress).unwrap_or_default();
        let clients = all::<ClientRec>(&engine)?;
        let replies = all::<ReplyRec>(&engine)?.into_iter().collect();
        let config = all::<KnownConfig>(&engine)?.pop().and_then(|(_, known)| known.config).unwrap_or_default();
        let own = header.name.parse::<TargetName>().ok();
        let targets = config.targets.iter().filter_map(|entry| entry.target.parse::<TargetName>().ok());
        let is_mdt = |name: &TargetName| name.kind == TargetKind::Mdt;
        let of_mdt = own.as_ref().is_some_and(is_mdt);
        let peers = targets.filter(|name| of_mdt && is_mdt(name) && own.as_ref() != Some(name)).collect();
        let parts = all::<CrossRec>(&engine)?.into_iter().filter(|(key, _)| key.participant).collect();
        Ok(Sessions { header, progress, clients, replies, peers, parts })
    }

    fn write_target(&self, text: &mut String) {
        let index = self.header.name.parse::<TargetName>().map_or(0, |name| name.index.0);
        let slots = self.clients.iter().flat_map(|(_, client)| &client.slots).map(|slot| slot.transno);
        let last = slots.chain(self.replies.values().map(|reply| reply.transno)).max().unwrap_or(0);
        let _ = writeln!(text, "last_rcvd:");
        let _ = writeln!(text, "  uuid: {}_UUID", self.header.name);
        let _ = writeln!(text, "  feature_compat: {:#x}", self.header.compat);
        let _ = writeln!(text, "  feature_incompat: {:#x}", self.header.incompat);
        let _ = writeln!(text, "  feature_rocompat: {:#x}", self.header.rocompat);
        let _ = writeln!(text, "  last_transaction: {}", self.progress.last_transno.max(last));
        let _ = writeln!(text, "  target_index: {index}");
        let _ = writeln!(text, "  mount_count: {}", self.header.mount_count);
    }

    fn write_clients(&self, text: &mut String) {
        let _ = writeln!(text, "  client_area_start: 0");
        let _ = writeln!(text, "  client_area_size: 0");
        for (uuid, client) in &self.clients {
            let of_generation = (client.generation, Tag(0))..=(client.generation, Tag(u16::MAX));
            let last = match client.generation {
                0 => client.slots.iter().find(|slot| slot.tag == 1).map(|s| (s.transno, s.xid, s.result, s.data)),
                _ => {
                    let replies = self.replies.range(of_generation).map(|(_, reply)| reply);
                    replies.max_by_key(|reply| reply.transno).map(|r| (r.transno, r.xid, r.result, r.data))
                }
            };
            let (transno, xid, result, data) = last.unwrap_or_default();
            let _ = writeln!(text, "\n  {uuid}:");
            let _ = writeln!(text, "    generation: {}", client.generation);
            let _ = writeln!(text, "    last_transaction: {transno}");
            let _ = writeln!(text, "    last_xid: {xid}");
            let _ = writeln!(text, "    last_result: {result}");
            let _ = writeln!(text, "    last_data: {data}");
            if let Some(close) = client.slots.iter().find(|slot| slot.tag == 2) {
                // Lustre's tool spells it this way.
                let _ = writeln!(text, "    last_close_transation: {}", close.transno);
                let _ = writeln!(text, "    last_close_xid: {}", close.xid);
                let _ = writeln!(text, "    last_close_result: {}", close.result);
                let _ = writeln!(text, "    last_close_data: {}", close.data);
            }
        }
        for peer in &self.peers {
            let parts = self.parts.iter().filter(|(key, _)| key.mdt == peer.index.0);
            let _ = writeln!(text, "\n  {}:", as_client(peer));
            let _ = writeln!(text, "    generation: 0");
            let _ = writeln!(text, "    parts: {}", parts.count());
        }
    }

    fn write_replies(&self, text: &mut String) {
        let _ = writeln!(text, "\nreply_data:");
        for (index, ((generation, tag), reply)) in self.replies.iter().enumerate() {
            let _ = writeln!(text, "  {index}:");
            let _ = writeln!(text, "    client_generation: {generation}");
            let _ = writeln!(text, "    tag: {}", tag.0);
            let _ = writeln!(text, "    last_transaction: {}", reply.transno);
            let _ = writeln!(text, "    last_xid: {}", reply.xid);
            let _ = writeln!(text, "    last_result: {}", reply.result);
            let _ = writeln!(text, "    last_data: {}\n", reply.data);
        }
        let own = self.header.name.parse::<TargetName>().ok();
        for (index, (key, part)) in (self.replies.len()..).zip(&self.parts) {
            let peer = own.as_ref().map(|own| TargetName { index: TargetIndex(key.mdt), ..own.clone() });
            let _ = writeln!(text, "  {index}:");
            let _ = writeln!(text, "    client: {}", peer.as_ref().map(as_client).unwrap_or_default());
            let _ = writeln!(text, "    attempt: {:016x}.{}", key.instance, key.serial);
            let _ = writeln!(text, "    part: {}\n", if part.done { "done" } else { "prepared" });
        }
    }
}

/// The name of a metadata target as a client of others.
fn as_client(peer: &TargetName) -> String {
    format!("{peer}-mdtlov_UUID")
}

/// All records of a kind.
fn all<R: Record>(engine: &dyn Engine) -> anyhow::Result<Vec<(R::Id, R)>> {
    let mut range = R::all();
    let mut found = Vec::new();
    loop {
        let scanned = engine.scan(&range, STEP)?;
        for (key, sealed) in &scanned.records {
            let body = schema::formats().open(key, sealed).map_err(EngineError::from)?;
            let record = R::decode_record(&body)?;
            let id = R::parse_key(key).ok_or_else(|| anyhow!("record {key} is not a key of kind '{}'", R::KIND))?;
            found.push((id, record));
        }
        match scanned.records.last() {
            Some((last, _)) if !scanned.complete => range.start = last.successor(),
            _ => return Ok(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schema::session::SlotRec;

    #[test]
    fn the_keys_are_those_of_lustres_tool() {
        let slot = |tag, xid, transno| SlotRec { tag, xid, transno, ..SlotRec::default() };
        let reply = |xid, transno, data| ReplyRec { xid, transno, data, ..ReplyRec::default() };
        let old = ClientRec { slots: vec![slot(1, 7, 20), slot(2, 9, 22)], ..ClientRec::default() };
        let new = ClientRec { generation: 4, ..ClientRec::default() };
        let sessions = Sessions {
            header: Header { name: "fs-MDT0001".into(), incompat: 0x400, mount_count: 3, ..Header::default() },
            progress: Progress { last_transno: 24, last_generation: 4 },
            clients: vec![(ClientUuid(1), old), (ClientUuid(2), new)],
            replies: [((4, Tag(1)), reply(30, 23, 0)), ((4, Tag(3)), reply(29, 25, 8))].into(),
            peers: vec!["fs-MDT0000".parse().unwrap(), "fs-MDT0002".parse().unwrap()],
            parts: vec![(
                CrossKey { participant: true, mdt: 2, instance: 0xabc, serial: 7 },
                CrossRec { done: true, ..CrossRec::default() },
            )],
        };
        let mut text = String::new();
        sessions.write_target(&mut text);
        sessions.write_clients(&mut text);
        sessions.write_replies(&mut text);
        let want = "\
last_rcvd:
  uuid: fs-MDT0001_UUID
  feature_compat: 0x0
  feature_incompat: 0x400
  feature_rocompat: 0x0
  last_transaction: 25
  target_index: 1
  mount_count: 3
  client_area_start: 0
  client_area_size: 0

  00000000-0000-0000-0000-000000000001:
    generation: 0
    last_transaction: 20
    last_xid: 7
    last_result: 0
    last_data: 0
    last_close_transation: 22
    last_close_xid: 9
    last_close_result: 0
    last_close_data: 0

  00000000-0000-0000-0000-000000000002:
    generation: 4
    last_transaction: 25
    last_xid: 29
    last_result: 0
    last_data: 8

  fs-MDT0000-mdtlov_UUID:
    generation: 0
    parts: 0

  fs-MDT0002-mdtlov_UUID:
    generation: 0
    parts: 1

reply_data:
  0:
    client_generation: 4
    tag: 1
    last_transaction: 23
    last_xid: 30
    last_result: 0
    last_data: 0

  1:
    client_generation: 4
    tag: 3
    last_transaction: 25
    last_xid: 29
    last_result: 0
    last_data: 8

  2:
    client: fs-MDT0002-mdtlov_UUID
    attempt: 0000000000000abc.7
    part: done

";
        assert_eq!(text, want);
    }
}
