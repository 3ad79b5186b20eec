//! A small HTTP server that says exactly the bytes that it is told to, however wrong.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;

/// What it does with a request.
#[derive(Clone)]
pub(super) enum Reply {
    /// Says these bytes and goes on listening on the connection.
    Say(Vec<u8>),
    /// Says these bytes and closes the connection.
    SayAndClose(Vec<u8>),
    /// Says these bytes, then this one again and again after each pause, for ever.
    Drip(Vec<u8>, u8, Duration),
    /// Never says anything.
    Hang,
}

/// A reply with a status, headers and a body.
pub(super) fn reply(status: &str, headers: &[(&str, &str)], body: &str) -> Reply {
    let mut text = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    Reply::Say(format!("{text}\r\n{body}").into_bytes())
}

/// A 200 with JSON.
pub(super) fn json(body: &str) -> Reply {
    reply("200 OK", &[("Content-Type", "application/json; charset=utf-8")], body)
}

/// A request as it came.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub line: String,
    pub headers: HashMap<String, String>,
    pub body: String,
}

#[derive(Clone)]
pub(super) struct Server {
    pub address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    requests: Mutex<Vec<Seen>>,
    connections: AtomicUsize,
    closed: AtomicUsize,
    bytes_said: AtomicUsize,
}

impl Server {
    /// Starts a server; the handler is told what came.
    pub(super) async fn start(handler: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self { address: listener.local_addr().unwrap(), state: Arc::default() };
        let (state, handler) = (Arc::clone(&server.state), Arc::new(handler));
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (state, handler) = (Arc::clone(&state), Arc::clone(&handler));
                tokio::spawn(async move { state.serve(socket, &*handler).await });
            }
        });
        server
    }

    /// Starts a server that says the same to everybody.
    pub(super) async fn saying(reply: Reply) -> Self {
        Self::start(move |_| reply.clone()).await
    }

    /// Serves one connection that was made in another way.
    pub(super) async fn serve_on(self, socket: impl AsyncRead + AsyncWrite + Unpin, reply: Reply) {
        self.state.serve(socket, &move |_: &Seen| reply.clone()).await;
    }

    /// A server without a socket of its own, for [`serve_on`](Self::serve_on).
    pub(super) fn at(address: SocketAddr) -> Self {
        Self { address, state: Arc::default() }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/reconcile", self.address)
    }

    pub(super) fn requests(&self) -> Vec<Seen> {
        self.state.requests.lock().unwrap().clone()
    }

    pub(super) fn last(&self) -> Seen {
        self.requests().pop().expect("a request came")
    }

    pub(super) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// How many connections have ended, by whoever's will.
    pub(super) fn closed(&self) -> usize {
        self.state.closed.load(Ordering::SeqCst)
    }

    pub(super) fn bytes_said(&self) -> usize {
        self.state.bytes_said.load(Ordering::SeqCst)
    }
}

impl State {
    async fn serve(&self, mut socket: impl AsyncRead + AsyncWrite + Unpin, handler: &(impl Fn(&Seen) -> Reply + Sync)) {
        self.connections.fetch_add(1, Ordering::SeqCst);
        while let Some(seen) = read_request(&mut socket).await {
            let reply = handler(&seen);
            self.requests.lock().unwrap().push(seen);
            if !self.say(&mut socket, reply).await {
                break;
            }
        }
        self.closed.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether the connection goes on.
    async fn say(&self, socket: &mut (impl AsyncRead + AsyncWrite + Unpin), reply: Reply) -> bool {
        let (bytes, goes_on) = match reply {
            Reply::Say(bytes) => (bytes, true),
            Reply::SayAndClose(bytes) => (bytes, false),
            Reply::Hang => {
                // A request that is dropped closes the connection: nothing is left to read.
                let mut rest = [0; 1];
                let _ = socket.read(&mut rest).await;
                return false;
            }
            Reply::Drip(head, byte, pause) => {
                let chunk = if pause.is_zero() { vec![byte; 64 * 1024] } else { vec![byte] };
                let mut more = socket.write_all(&head).await.is_ok();
                while more {
                    more = socket.write_all(&chunk).await.is_ok();
                    self.bytes_said.fetch_add(chunk.len(), Ordering::SeqCst);
                    tokio::time::sleep(pause).await;
                }
                return false;
            }
        };
        let said = socket.write_all(&bytes).await.is_ok();
        self.bytes_said.fetch_add(bytes.len(), Ordering::SeqCst);
        if !goes_on {
            let _ = socket.shutdown().await;
        }
        said && goes_on
    }
}

async fn read_request(socket: &mut (impl AsyncRead + Unpin)) -> Option<Seen> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if socket.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).ok()?;
    let mut lines = head.lines();
    let line = lines.next()?.to_owned();
    let headers: HashMap<_, _> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    while bytes.len() < head_end + length {
        if socket.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    Some(Seen { line, headers, body: String::from_utf8(bytes[head_end..].to_vec()).ok()? })
}
