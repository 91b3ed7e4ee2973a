//! The echo, which measures the network: requests and their replies in the protocol's framing, one after another or several
//! at a time.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::Context;

use crate::guardian;
use bytes::BytesMut;
use proto::{Decoder, Frame, Header, Xid};

/// Answers the frames on a connection until it is closed.
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

/// Serves one client on a loopback port, which is printed. For a process of its own.
///
/// # Errors
/// An error of the network.
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
    /// An error of the network.
    pub fn connect(port: u16) -> io::Result<Echo> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        Ok(Echo { stream, decoder: Decoder::new(), out: BytesMut::new(), buffer: vec![0; 64 << 10] })
    }

    /// The mean time of `count` echoes with bodies of 100 bytes, `outstanding` at a time, in microseconds for each. As in
    /// the client and the servers, one write sends everything that is ready and one read takes everything that has arrived.
    ///
    /// # Errors
    /// An error of the network.
    pub fn measure(&mut self, count: u32, outstanding: u32) -> io::Result<f64> {
        let body = bytes::Bytes::from(vec![0; 100]);
        let (mut sent, mut answered) = (0, 0);
        let start = Instant::now();
        while answered < count {
            self.out.clear();
            while sent < count && sent - answered < outstanding {
                let header = Header { opcode: 400, xid: Xid(u64::from(sent) + 1), ..Header::default() };
                Frame { header, body: body.clone(), bulk: bytes::Bytes::new() }.encode(&mut self.out);
                sent += 1;
            }
            self.stream.write_all(&self.out)?;
            let before = answered;
            loop {
                while self.decoder.next_frame().map_err(io::Error::other)?.is_some() {
                    answered += 1;
                }
                if answered > before {
                    break;
                }
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

/// The echo server, in a process of its own that ends when this is dropped.
#[derive(Debug)]
pub struct EchoServer {
    child: Child,
    /// Its port.
    pub port: u16,
}

impl EchoServer {
    /// Starts the process.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start() -> anyhow::Result<EchoServer> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg0("adamant").args(["bench", "echo-server"]).process_group(0).stdout(Stdio::piped());
        let mut child = guardian::spawn(&mut command).context("cannot start the echo server")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
        let port = line.trim().parse().context("the echo server does not say its port")?;
        Ok(EchoServer { child, port })
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
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
        let mut echo = Echo::connect(port).unwrap();
        for outstanding in [1, 7, 100] {
            assert!(echo.measure(50, outstanding).unwrap() > 0.0);
        }
        drop(echo);
        server.join().unwrap().unwrap();
    }
}
