//! Resolves the host names in the addresses that targets announce.

use std::net::{IpAddr, ToSocketAddrs};

use proto::{Nid, TargetName};

/// Adds the addresses of host names to the announced ones. Object targets recognize a metadata target by the address that
/// it connects from. A metadata target that announced only a host name could not remove objects on object targets of other
/// machines.
pub(crate) fn with_addresses(name: &TargetName, announced: Vec<Nid>) -> Vec<Nid> {
    add(name, announced, resolve)
}

fn add(
    name: &TargetName,
    announced: Vec<Nid>,
    resolve: impl Fn(&str, u16) -> std::io::Result<Vec<IpAddr>>,
) -> Vec<Nid> {
    let mut all = announced.clone();
    for nid in announced {
        let Nid::Tcp { host, port } = &nid else { continue };
        if nid.is_local() || host.parse::<IpAddr>().is_ok() {
            continue;
        }
        let reachable = |address: &IpAddr| !address.is_loopback() && !address.is_unspecified();
        match resolve(host, *port).map(|found| found.into_iter().filter(reachable).collect::<Vec<_>>()) {
            Ok(found) if !found.is_empty() => {
                let nids = found.into_iter().map(|address| Nid::Tcp { host: address.to_string(), port: *port });
                nids.for_each(|nid| {
                    if !all.contains(&nid) {
                        all.push(nid)
                    }
                });
            }
            found => {
                let why = found.err().map_or_else(|| "is this machine's own".to_owned(), |error| error.to_string());
                tracing::warn!(
                    "target '{name}' announces the host name '{host}', whose address is not known ({why}): object targets on other \
                     machines accept no requests from it; add its address with --tell ADDRESS:{port}"
                );
            }
        }
    }
    all
}

/// The addresses of a host, as the system resolves them.
fn resolve(host: &str, port: u16) -> std::io::Result<Vec<IpAddr>> {
    Ok((host, port).to_socket_addrs()?.map(|address| address.ip().to_canonical()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metadata_target_announces_its_addresses_too() {
        let name: TargetName = "fs-MDT0000".parse().unwrap();
        let resolve = |host: &str, _| match host {
            "mds1" => Ok(vec!["127.0.1.1".parse().unwrap(), "10.0.0.7".parse().unwrap()]),
            "mds2" => Ok(vec!["127.0.1.1".parse().unwrap()]),
            _ => Err(std::io::Error::other("no such host")),
        };
        let announced = |nids: &str| {
            let nids = nids.split(',').map(|nid| nid.parse().unwrap()).collect();
            add(&name, nids, resolve).iter().map(Nid::to_string).collect::<Vec<_>>().join(",")
        };
        assert_eq!(announced("mds1:7989"), "mds1:7989,10.0.0.7:7989");
        assert_eq!(announced("mds1:7989,10.0.0.7:7989"), "mds1:7989,10.0.0.7:7989");
        // A loopback address is of no use to other machines, and is right on this one.
        assert_eq!(
            announced("mds2:1,elsewhere:1,localhost:1,[::1]:1,unix:/run/x"),
            "mds2:1,elsewhere:1,localhost:1,[::1]:1,unix:/run/x"
        );
    }
}
