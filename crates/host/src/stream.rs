//! A byte stream to a peer: TCP and Unix sockets behind one type.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bytes::Buf;
use proto::{Nid, SendQueue};
use rustix::net::SendFlags;

/// A connected, non-blocking stream.
#[derive(Debug)]
pub struct Stream(OwnedFd);

/// How long a connection attempt to one address may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The most pieces in one write.
const SLICES: usize = 16;

impl Stream {
    /// Connects to the first of `nids` that answers. Blocks, so only a thread that may block calls it.
    pub fn dial(nids: &[Nid]) -> io::Result<Stream> {
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, "no address is known");
        for nid in nids {
            match Self::dial_one(nid) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = io::Error::new(error.kind(), format!("{nid}: {error}")),
            }
        }
        Err(last)
    }

    fn dial_one(nid: &Nid) -> io::Result<Stream> {
        match nid {
            Nid::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                Ok(Stream(stream.into()))
            }
            Nid::Tcp { host, port } => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            stream.set_nonblocking(true)?;
                            return Ok(Stream(stream.into()));
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    /// Appends available bytes, as many as fit into the spare capacity of `buffer`. `Ok(0)` is the end of the stream,
    /// `WouldBlock` means that nothing is available.
    pub fn read(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        loop {
            match rustix::io::read(&self.0, rustix::buffer::spare_capacity(buffer)) {
                Err(rustix::io::Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    /// Writes as much of the queue as the socket takes.
    pub fn write(&self, queue: &mut SendQueue) -> io::Result<()> {
        while queue.has_remaining() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = queue.chunks_vectored(&mut slices);
            let mut nothing = rustix::net::SendAncillaryBuffer::default();
            match rustix::net::sendmsg(&self.0, &slices[..count], &mut nothing, SendFlags::NOSIGNAL) {
                Ok(sent) => queue.advance(sent),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// The source address that this machine uses towards a host. Nothing is sent.
pub(crate) fn own_address_towards(host: &str, port: u16) -> Option<IpAddr> {
    (host, port).to_socket_addrs().ok()?.find_map(|peer| {
        let any = if peer.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(peer).ok()?;
        socket.local_addr().ok().map(|own| own.ip())
    })
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Stream> for OwnedFd {
    fn from(stream: Stream) -> OwnedFd {
        stream.0
    }
}
