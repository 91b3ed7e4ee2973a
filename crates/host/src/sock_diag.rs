//! Finds the user behind the peer of a loopback connection, from the kernel's socket diagnostics (`NETLINK_SOCK_DIAG`).
//!
//! Each request names exactly one socket, which costs the kernel one hash lookup, however many sockets there are. Only an
//! established socket that a program still holds has an owner: the kernel reports user 0 for a socket that was closed and
//! lingers in TIME_WAIT, so a closed socket counts as having none.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

/// `SOCK_DIAG_BY_FAMILY`, in a request and in its answer.
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `TCP_ESTABLISHED`.
const ESTABLISHED: u8 = 1;
/// The length of a netlink header.
const HEADER: usize = 16;
/// The length of `struct inet_diag_sockid`.
const SOCKET_ID: usize = 48;
/// The length of its addresses and ports; an interface and a cookie follow.
const FOUR_TUPLE: usize = 36;
/// The length of `struct inet_diag_req_v2`.
const QUESTION: usize = 8 + SOCKET_ID;
/// The length of `struct inet_diag_msg`.
const ANSWER: usize = 4 + SOCKET_ID + 20;
/// The kernel answers at once; this limit is for a kernel that does not.
const PATIENCE: Duration = Duration::from_secs(1);

/// A netlink socket for socket diagnostics.
#[derive(Debug)]
pub(crate) struct SockDiag(OwnedFd);

impl SockDiag {
    /// Opens the netlink socket.
    ///
    /// # Errors
    /// The kernel has no socket diagnostics, or no descriptor is left.
    pub(crate) fn open() -> io::Result<SockDiag> {
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::DGRAM;
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, kind, flags, Some(netlink::SOCK_DIAG))?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE))?;
        Ok(SockDiag(socket))
    }

    /// The user that owns the peer's socket of an accepted connection, if that is on this machine and open.
    ///
    /// # Errors
    /// The kernel did not answer; open a new netlink socket.
    pub(crate) fn peer_uid(&self, stream: &std::net::TcpStream) -> io::Result<Option<u32>> {
        let (Ok(own), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) else { return Ok(None) };
        let found = self.owner(canonical(peer), canonical(own))?;
        // While this side is connected, no other socket can have the peer's address, so the answer was about the peer.
        Ok(found.filter(|_| stream.peer_addr().is_ok_and(|now| now == peer)))
    }

    /// The owner of the established socket with these addresses.
    fn owner(&self, own: SocketAddr, other: SocketAddr) -> io::Result<Option<u32>> {
        let question = question(own, other);
        let kernel = SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&self.0, &question, SendFlags::empty(), &kernel)?;
        let mut buffer = [0_u8; 1024];
        let (_, length) = rustix::net::recv(self.0.as_fd(), &mut buffer[..], RecvFlags::empty())?;
        Ok(parse(&buffer[..length.min(buffer.len())], &question[HEADER + 8..][..FOUR_TUPLE]))
    }
}

/// Converts an IPv4-mapped IPv6 address to the IPv4 address.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn question(own: SocketAddr, other: SocketAddr) -> [u8; HEADER + QUESTION] {
    let mut bytes = [0; HEADER + QUESTION];
    let mut at = 0;
    let mut put = |piece: &[u8]| {
        bytes[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    };
    put(&((HEADER + QUESTION) as u32).to_ne_bytes());
    put(&BY_FAMILY.to_ne_bytes());
    put(&REQUEST.to_ne_bytes());
    put(&[0; 8]);
    let family = if own.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    put(&[family.as_raw() as u8, rustix::net::ipproto::TCP.as_raw().get() as u8, 0, 0]);
    put(&(1_u32 << ESTABLISHED).to_ne_bytes());
    put(&own.port().to_be_bytes());
    put(&other.port().to_be_bytes());
    for address in [own.ip(), other.ip()] {
        match address {
            IpAddr::V4(v4) => {
                put(&v4.octets());
                put(&[0; 12]);
            }
            IpAddr::V6(v6) => put(&v6.octets()),
        }
    }
    // Any interface, and no cookie.
    put(&[0; 4]);
    put(&[0xff; 8]);
    bytes
}

/// The user in an answer, if the answer is about exactly the requested four-tuple.
fn parse(message: &[u8], four_tuple: &[u8]) -> Option<u32> {
    let kind = message.get(4..6)?;
    let answer = message.get(HEADER..HEADER + ANSWER)?;
    let word = |at: usize| answer.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes);
    let (uid, inode) = (word(ANSWER - 8)?, word(ANSWER - 4)?);
    let sound = kind == BY_FAMILY.to_ne_bytes()
        && answer[1] == ESTABLISHED
        && answer[4..4 + FOUR_TUPLE] == *four_tuple
        && inode != 0;
    sound.then_some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    fn pair(address: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(address).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn the_owner_of_an_open_connection_is_found() {
        let diag = SockDiag::open().unwrap();
        let own = rustix::process::geteuid().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (_client, server) = pair(address);
            assert_eq!(diag.peer_uid(&server).unwrap(), Some(own), "{address}");
        }
    }

    /// The kernel reports root as the owner of a socket that lingers after its close.
    #[test]
    fn a_connection_that_was_closed_is_nobodys() {
        let diag = SockDiag::open().unwrap();
        for _ in 0..100 {
            let (mut client, server) = pair("127.0.0.1:0");
            client.write_all(b"a request").unwrap();
            drop(client);
            assert_eq!(diag.peer_uid(&server).unwrap(), None);
        }
    }

    #[test]
    fn an_end_that_only_stopped_sending_is_nobodys() {
        let diag = SockDiag::open().unwrap();
        let (client, server) = pair("127.0.0.1:0");
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(diag.peer_uid(&server).unwrap(), None);
    }

    #[test]
    fn an_answer_that_is_short_or_about_another_socket_names_nobody() {
        let (own, other) = ("127.0.0.1:5".parse().unwrap(), "127.0.0.1:6".parse().unwrap());
        let tuple = &question(own, other)[HEADER + 8..][..FOUR_TUPLE];
        let mut message = vec![0; HEADER + ANSWER];
        message[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        message[HEADER + 1] = ESTABLISHED;
        message[HEADER + 4..][..FOUR_TUPLE].copy_from_slice(tuple);
        message[HEADER + ANSWER - 4] = 7;
        assert_eq!(parse(&message, tuple), Some(0));
        assert_eq!(parse(&message, &question(other, own)[HEADER + 8..][..FOUR_TUPLE]), None);
        for length in 0..message.len() {
            assert_eq!(parse(&message[..length], tuple), None, "{length}");
        }
        for (at, value) in [(HEADER + 1, 6), (HEADER + ANSWER - 4, 0), (4, 2)] {
            let mut other = message.clone();
            other[at] = value;
            assert_eq!(parse(&other, tuple), None, "{at}");
        }
    }
}
