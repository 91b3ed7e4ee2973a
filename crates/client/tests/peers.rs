//! The connections of metadata targets to each other, as parameters show and limit them.

mod raw;

use std::time::Duration;

use proto::msg::{Param, SetParamReq};
use proto::{Errno, Fid, Opcode};
use raw::{DIR, Raw, change, cluster, removing};
use stdx::marks;
use testkit::cluster::Cluster;

const DEVICE: &str = "osp.fs-MDT0001-osp-MDT0000";

fn get(c: &Cluster, name: &str) -> String {
    let found = c.server_params("fs-MDT0000", &format!("{DEVICE}.{name}"));
    found.into_iter().next().unwrap_or_else(|| panic!("no {name}")).1
}

fn set(c: &mut Cluster, name: &str, value: &str) -> Result<(), Errno> {
    c.try_server_param("fs-MDT0000", &format!("{DEVICE}.{name}"), value)
}

/// How often so many parts were on their way, by the rows of `rpc_stats`.
fn histogram(c: &Cluster) -> Vec<u64> {
    let text = get(c, "rpc_stats");
    let rows = text.lines().skip_while(|line| !line.starts_with("rpcs in flight")).skip(1);
    rows.map(|row| row.split_whitespace().nth(1).unwrap().parse().unwrap()).collect()
}

#[test]
fn a_connection_shows_what_was_granted() {
    let (c, _) = cluster();
    let import = get(&c, "import");
    let flags = import.lines().find(|line| line.contains("connect_flags:")).unwrap();
    assert!(flags.contains("multi_mod_rpcs"), "{import}");
    for line in ["    name: fs-MDT0001-osp-MDT0000", "    state: FULL", "       max_mod_rpcs: 8"] {
        assert!(import.lines().any(|one| one == line), "{line} is missing: {import}");
    }
    let [(_, back)] = &c.server_params("fs-MDT0001", "osp.fs-MDT0000-osp-MDT0001.import")[..] else { panic!() };
    assert!(back.contains("target: fs-MDT0000\n") && back.contains("max_mod_rpcs: 8\n"), "{back}");
    let [(_, ost)] = &c.server_params("fs-MDT0000", "osp.fs-OST0000-osc-MDT0000.import")[..] else { panic!() };
    assert!(ost.contains("state: FULL") && !ost.contains("mod_rpcs"), "{ost}");
}

#[test]
fn parts_on_their_way_are_counted_and_limited() {
    let (mut c, _) = cluster();
    assert_eq!(get(&c, "max_mod_rpcs_in_flight"), "7");
    let mut clients = [77, 78, 79, 80, 81].map(|client| Raw::new(&mut c, client));
    for (limit, most) in [("8", 5), ("2", 2), ("1", 1)] {
        set(&mut c, "max_mod_rpcs_in_flight", limit).unwrap();
        assert_eq!(get(&c, "max_mod_rpcs_in_flight"), limit);
        set(&mut c, "rpc_stats", "clear").unwrap();
        assert_eq!(histogram(&c), []);
        for (at, client) in clients.iter_mut().enumerate() {
            client.ask(&mut c, &format!("{limit}-{at}"));
        }
        c.pass(Duration::from_secs(1));
        let answers = clients.each_ref().map(|client| client.answer(&mut c, 0));
        assert_eq!(answers, [Some(0); 5], "{:#?}", c.log);
        let rows = histogram(&c);
        assert_eq!((rows.len(), rows.iter().sum::<u64>(), rows[most] > 0), (most + 1, 5, true), "{rows:?}");
    }
    for value in ["0", "9", "513"] {
        assert_eq!(set(&mut c, "max_mod_rpcs_in_flight", value), Err(Errno::ERANGE), "{value}");
    }
    assert_eq!(set(&mut c, "max_mod_rpcs_in_flight", "some"), Err(Errno::EINVAL));
    // The other one allows fewer from its next connection on.
    set(&mut c, "max_mod_rpcs_in_flight", "8").unwrap();
    c.set_server_param("fs-MDT0001", "mdt.fs-MDT0001.max_mod_rpcs_in_flight", "3");
    assert_eq!(get(&c, "max_mod_rpcs_in_flight"), "8");
    let (one, other) = (c.server("fs-MDT0000"), c.server("fs-MDT0001"));
    c.cut_servers(one, other);
    c.pass(Duration::from_secs(5));
    assert_eq!(get(&c, "max_mod_rpcs_in_flight"), "3");
}

/// What a part waits for may need others.
#[test]
fn a_part_that_waits_at_its_target_holds_up_no_other() {
    let (mut c, _) = cluster();
    set(&mut c, "max_mod_rpcs_in_flight", "1").unwrap();
    let [mut a, mut b, mut other] = [77, 78, 79].map(|client| Raw::new(&mut c, client));
    let (dir, _) = a.create(&mut c, (0, 1), Fid::ROOT, "d", DIR);
    b.lock(&mut c, 1, dir);
    c.raw_ask(&mut a.mdts[0], Opcode::MdsReint, &change(0, removing(Fid::ROOT, "d", true)));
    other.ask(&mut c, "e");
    c.run();
    assert_eq!((a.answer(&mut c, 0), other.answer(&mut c, 0)), (None, Some(0)), "the lock is awaited");
    assert!(marks::count("cross.taken_in") > 0);
    c.pass(Duration::from_millis(50));
    assert!(marks::count("cross.busy_with_locks") > 0);
}

#[test]
fn a_new_metadata_target_has_the_persistent_limit() {
    let mut c = Cluster::new(0);
    let mut mgs = c.raw_export("MGS");
    let param = Param { path: "osp.*.max_mod_rpcs_in_flight".into(), value: "1".into() };
    let body = SetParamReq { fsname: "fs".into(), param: Some(param), delete: false };
    c.raw_call(&mut mgs, Opcode::MgsSetParam, &body);
    let mdt1 = c.add_server("fs-MDT0001");
    c.start(mdt1);
    c.pass(Duration::from_secs(2));
    assert_eq!(get(&c, "max_mod_rpcs_in_flight"), "1");
    set(&mut c, "max_mod_rpcs_in_flight", "4").unwrap();
    c.restart("fs-MDT0000");
    c.pass(Duration::from_secs(2));
    assert_eq!(get(&c, "max_mod_rpcs_in_flight"), "1");
}
