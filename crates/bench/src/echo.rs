//! The lone echo: one request and its reply over the protocol's framing, one after another.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use bytes::BytesMut;
use proto::{Decoder, Frame, Header, Xid};

/// Answers frames on one connection until it ends.
fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut decoder, mut out, mut buffer) = (Decoder::new(), BytesMut::new(), vec![0; 64 << 10]);
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        decoder.buffer().extend_from_slice(&buffer[..count]);
        while let Some(mut frame) = decoder.next_frame().map_err(io::Error::other)? {
            frame.header.flags |= proto::frame::flags::REPLY;
            frame.encode(&mut out);
        }
        stream.write_all(&out)?;
        out.clear();
    }
}

/// Serves one client on a loopback port, which is printed; for a process of its own.
///
/// # Errors
/// The network.
pub fn serve() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?.port());
    io::stdout().flush()?;
    answer(listener.accept()?.0)
}

/// A connection to an echo server.
#[derive(Debug)]
pub struct Echo {
    stream: TcpStream,
    decoder: Decoder,
    out: BytesMut,
    buffer: Vec<u8>,
}

impl Echo {
    /// Connects to a server's port.
    ///
    /// # Errors
    /// The network.
    pub fn connect(port: u16) -> io::Result<Echo> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        Ok(Echo { stream, decoder: Decoder::new(), out: BytesMut::new(), buffer: vec![0; 64 << 10] })
    }

    /// Mean time of `count` echoes with bodies of 100 bytes, in microseconds.
    ///
    /// # Errors
    /// The network.
    pub fn measure(&mut self, count: u32) -> io::Result<f64> {
        let start = Instant::now();
        for n in 0..count {
            let header = Header { opcode: 400, xid: Xid(u64::from(n) + 1), ..Header::default() };
            let frame = Frame { header, body: vec![0; 100].into(), bulk: bytes::Bytes::new() };
            self.out.clear();
            frame.encode(&mut self.out);
            self.stream.write_all(&self.out)?;
            while self.decoder.next_frame().map_err(io::Error::other)?.is_none() {
                let got = self.stream.read(&mut self.buffer)?;
                if got == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                self.decoder.buffer().extend_from_slice(&self.buffer[..got]);
            }
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn echoes_come_back() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || answer(listener.accept().unwrap().0));
        assert!(Echo::connect(port).unwrap().measure(10).unwrap() > 0.0);
        server.join().unwrap().unwrap();
    }
}
