//! Addresses of servers, written `HOST:PORT` or `unix:PATH`.

use core::fmt;
use core::str::FromStr;

/// Where a server listens.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Nid {
    /// A host name or address (IPv6 in brackets) and a port.
    Tcp {
        /// Host name or address, without brackets.
        host: String,
        /// TCP port.
        port: u16,
    },
    /// A Unix socket.
    Unix(String),
}

/// Default TCP port, used by the first server of a node.
pub const PORT: u16 = 7988;

impl Nid {
    /// Whether only this machine can reach the address.
    pub fn is_local(&self) -> bool {
        match self {
            Nid::Unix(_) => true,
            Nid::Tcp { host, .. } => {
                host == "localhost" || host.parse::<core::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
        }
    }

    /// Whether it is the unspecified address: a server can listen on it, but a client cannot connect to it.
    pub fn is_wildcard(&self) -> bool {
        matches!(self, Nid::Tcp { host, .. } if host.parse::<core::net::IpAddr>().is_ok_and(|ip| ip.is_unspecified()))
    }
}

impl fmt::Display for Nid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Nid::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Nid::Tcp { host, port } => write!(f, "{host}:{port}"),
            Nid::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}

/// The text that is no NID.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{0}' is not a NID; expected HOST:PORT or unix:PATH")]
pub struct ParseNidError(pub String);

impl FromStr for Nid {
    type Err = ParseNidError;

    fn from_str(s: &str) -> Result<Self, ParseNidError> {
        let bad = || ParseNidError(s.to_owned());
        if let Some(path) = s.strip_prefix("unix:") {
            return if path.is_empty() || path.len() > 107 { Err(bad()) } else { Ok(Nid::Unix(path.to_owned())) };
        }
        let (host, port) = s.rsplit_once(':').ok_or_else(bad)?;
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() || host.contains(['/', ' ', '[', ']']) {
            return Err(bad());
        }
        Ok(Nid::Tcp { host: host.to_owned(), port: port.parse().map_err(|_| bad())? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nids_round_trip_and_bad_ones_are_named() {
        for nid in ["127.0.0.1:7988", "[::1]:7988", "node7:7988", "unix:/run/adamant/mdt0"] {
            assert_eq!(nid.parse::<Nid>().map(|n| n.to_string()), Ok(nid.to_owned()));
        }
        for bad in ["", "host", "host:", "host:99999", "unix:", ":1", "a b:1"] {
            let refused = bad.parse::<Nid>().unwrap_err();
            assert_eq!(refused.to_string(), format!("'{bad}' is not a NID; expected HOST:PORT or unix:PATH"));
        }
    }
}
