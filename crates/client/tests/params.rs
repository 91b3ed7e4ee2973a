//! What the machines of a cluster answer about their parameters, word for word, and what they say to values.

use core::time::Duration;
use std::fmt::Write;

use client::api::Call;
use proto::msg::{SetPoolKind, SetPoolReq};
use proto::params::{self, Access, Declared, Metric, OfFaults, OfLog, OfMedium, OfMountCommand, OfProcess, Values};
use proto::{Errno, Opcode};
use stdx::wildcard;
use testkit::cluster::Cluster;
use testkit::golden;

const SERVERS: [&str; 3] = ["MGS", "fs-OST0000", "fs-MDT0000"];

/// Makes a pool with an object target, as `lctl pool_new` and `pool_add` do.
fn make_pool(c: &mut Cluster) {
    let mut mgs = c.raw_export("MGS");
    for (kind, osts) in [(SetPoolKind::New, vec![]), (SetPoolKind::Add, vec![1])] {
        let request = SetPoolReq { fsname: "fs".into(), kind: kind as i32, pool: "some".into(), osts };
        c.raw_call(&mut mgs, Opcode::MgsSetPool, &request);
    }
    c.raw_close(mgs.raw);
}

/// A cluster with a second metadata target, a pool and a mount, through which something was done.
fn begin() -> (Cluster, usize) {
    let mut c = Cluster::new(2);
    let mdt1 = c.add_server("fs-MDT0001");
    c.start(mdt1);
    c.pass(Duration::from_secs(2));
    make_pool(&mut c);
    let a = c.mount();
    let dir = c.mkdir(a, 1, "d").unwrap().ino;
    let (_, fh) = c.create(a, dir, "f").unwrap();
    c.write(a, fh, 0, &[7; 300_000]).unwrap();
    c.call(a, Call::Syncfs).unwrap();
    c.unlink(a, dir, "f").unwrap();
    c.pass(Duration::from_secs(30));
    (c, a)
}

/// All parameters of all machines, with the machine's name.
fn all(c: &Cluster, mount: usize) -> Vec<(&'static str, String, String)> {
    let mut found = Vec::new();
    for server in SERVERS {
        found.extend(c.server_params(server, "**").into_iter().map(|(name, value)| (server, name, value)));
    }
    let of_mount = c.nodes[mount].machine.get_params("**");
    found.extend(of_mount.into_iter().map(|(name, value)| ("mount", name, value)));
    found
}

fn set(c: &mut Cluster, mount: usize, machine: &str, name: &str, value: &str) -> Result<(), Errno> {
    let now = c.now;
    match machine {
        "mount" => c.nodes[mount].machine.set_param(now, name, value),
        server => c.try_server_param(server, name, value),
    }
}

/// Compares a text with a file beside this test.
#[track_caller]
fn is_golden(text: &str, golden: &str, file: &str) {
    golden::is_same(text, golden, &format!("{}/tests/params/{file}", env!("CARGO_MANIFEST_DIR")));
}

#[test]
fn every_machine_shows_its_parameters() {
    let (c, a) = begin();
    let mut text = String::new();
    for (machine, name, value) in all(&c, a) {
        let _ = writeln!(text, "{machine} {name}={}", value.replace('\n', "\n  |"));
    }
    is_golden(&text, include_str!("params/values.txt"), "values.txt");
}

#[test]
fn values_are_taken_or_refused_by_number() {
    let (mut c, a) = begin();
    let values = ["x", "", "0", "1", "2", " 3 ", "7%", "101", "128k", "1048576", "70000000000", "99999999999999999999"];
    let mut text = String::new();
    for (machine, name, _) in all(&c, a) {
        // These end the mount's session, or what the list is about.
        if name.ends_with("evict_client") || name.ends_with("abort_recovery") {
            continue;
        }
        let answers = values.map(|value| match set(&mut c, a, machine, &name, value) {
            Ok(()) => "ok".to_owned(),
            Err(errno) => format!("{errno:?}"),
        });
        let _ = writeln!(text, "{machine} {name}: {}", answers.join(" "));
    }
    is_golden(&text, include_str!("params/answers.txt"), "answers.txt");
}

/// What is declared and only processes have: `e2e` looks for it.
fn is_of_a_process(declared: &Declared) -> bool {
    let others = [OfLog::LogLevel.declared(), OfMountCommand::MountOptions.declared(), OfMedium::Readonly.declared()];
    let of_process = OfProcess::ALL.iter().map(|one| one.declared());
    of_process.chain(OfFaults::ALL.iter().map(|one| one.declared())).chain(others).any(|one| one == declared)
}

#[test]
fn machines_have_what_is_declared_and_nothing_else() {
    let (mut c, a) = begin();
    let all = all(&c, a);
    let is_form = |form: &str, name: &str| wildcard::matches(form, name);
    for declared in params::all().filter(|declared| !is_of_a_process(declared)) {
        for form in declared.forms().filter(|form| !form.starts_with("osd-")) {
            assert!(all.iter().any(|(_, name, _)| is_form(&form, name)), "nobody has {form}");
        }
    }
    for (machine, name, value) in all {
        let declared = params::all().find(|declared| declared.forms().any(|form| is_form(&form, &name)));
        let declared = declared.unwrap_or_else(|| panic!("{name} is not declared"));
        let is_number = match declared.metric {
            Metric::Gauge | Metric::Counter => true,
            Metric::Setting => declared.values != Values::Text,
            Metric::Histogram | Metric::Text => false,
        };
        assert!(!is_number || value.trim_end_matches('%').parse::<u64>().is_ok(), "{name} is no number: {value}");
        if declared.access != Access::Set {
            let refused = matches!(set(&mut c, a, machine, &name, "?"), Err(Errno::EACCES));
            assert_eq!(refused, !declared.access.can_set(), "{name}");
        }
    }
}
