//! Connections: how many, how long, and what happens when the process runs out of file descriptors.
//!
//! Must never let slow, idle or silent peers keep others out for longer than the bounds below, nor die of an accept
//! that failed. A few descriptors are kept in reserve, so that probes are answered when everything else is used up
//! (B74). Tested in `tests/it/admin_limits.rs`.

use std::fmt;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::service::Service as _;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::AdminOptions;
use super::stall::Stall;

/// The most connections at once. Requests that wait long hold less than two thirds of them.
const CONNECTIONS_MAX: usize = 256;
/// The most connections beyond those: short ones, so that a probe is answered even when idle peers hold all places. The
/// next ones wait in the system's queue.
const SHORT_CONNECTIONS_MAX: usize = 32;
/// The longest request head. hyper answers 431 beyond it.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// The most header fields.
const HEADERS_MAX: usize = 100;
/// How long open connections may go on after the stop.
const STOP_MAX: Duration = Duration::from_secs(3);
/// Descriptors kept in reserve: a few probes at once.
const RESERVE: usize = 4;
/// How long a short connection may take, or one that lives on the reserve: a probe, not a download.
const SHORT_MAX: Duration = Duration::from_secs(2);
/// How long to wait after an accept that failed even so.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub SocketAddr);

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Accepts and serves until the token is cancelled; then lets open requests end.
pub(super) async fn serve(listener: TcpListener, router: Router, options: &AdminOptions, stop: CancellationToken) {
    let places = Places::default();
    let reserve = Reserve::default();
    reserve.refill();
    let tasks = TaskTracker::new();
    let service = TowerToHyperService::new(router);
    loop {
        let next = async {
            let place = places.take().await;
            (place, accept(&listener, &reserve).await)
        };
        let (place, accepted) = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            next = next => next,
        };
        let connection = Connection { accepted, place, reserve: reserve.clone() };
        tasks.spawn(connection.run(service.clone(), *options.limits(), stop.clone()));
    }
    drop(listener);
    tasks.close();
    if tokio::time::timeout(STOP_MAX, tasks.wait()).await.is_err() {
        tracing::debug!(connections = tasks.len(), "cut open admin connections");
    }
}

/// How many connections there may be.
struct Places {
    usual: Arc<Semaphore>,
    short: Arc<Semaphore>,
}

/// One place among them.
struct Place {
    is_short: bool,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Default for Places {
    fn default() -> Self {
        let places = |most| Arc::new(Semaphore::new(most));
        Self { usual: places(CONNECTIONS_MAX), short: places(SHORT_CONNECTIONS_MAX) }
    }
}

impl Places {
    async fn take(&self) -> Place {
        match Arc::clone(&self.usual).try_acquire_owned() {
            Ok(permit) => Place { is_short: false, _permit: Some(permit) },
            // The semaphore is never closed.
            Err(_) => Place { is_short: true, _permit: Arc::clone(&self.short).acquire_owned().await.ok() },
        }
    }
}

/// A connection that was accepted.
struct Accepted {
    stream: TcpStream,
    peer: SocketAddr,
    /// It lives on the reserve.
    reserved: bool,
}

/// The next connection.
async fn accept(listener: &TcpListener, reserve: &Reserve) -> Accepted {
    let mut reserved = false;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if !reserved {
                    reserve.refill();
                }
                return Accepted { stream, peer, reserved };
            }
            // Another thread may take what was given up here; then the next one of the reserve is tried.
            Err(error) if is_out_of_descriptors(&error) && reserve.give_up_one() => reserved = true,
            Err(error) if is_the_peers_fault(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections on the admin address");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// EMFILE and ENFILE have no kind of their own.
fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(23 | 24))
}

fn is_the_peers_fault(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// Open files that can be closed to make room for a connection.
#[derive(Clone, Default)]
struct Reserve(Arc<Mutex<Vec<File>>>);

impl Reserve {
    fn refill(&self) {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while files.len() < RESERVE {
            let Ok(file) = File::open("/dev/null") else { return };
            files.push(file);
        }
    }

    fn give_up_one(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().is_some()
    }
}

/// How long a peer may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// For a request's head, for its body, and between requests.
    pub read: Duration,
    /// Between two reads of what it is sent.
    pub write: Duration,
}

/// A connection to serve.
struct Connection {
    accepted: Accepted,
    place: Place,
    reserve: Reserve,
}

impl Connection {
    async fn run(self, service: TowerToHyperService<Router>, limits: Limits, stop: CancellationToken) {
        let Accepted { stream, peer, reserved } = self.accepted;
        let is_short = self.place.is_short || reserved;
        // An optimisation that may fail.
        let _ = stream.set_nodelay(true);
        let served = serve_one(stream, peer, service, limits, !is_short, stop);
        let served = match is_short {
            false => served.await,
            true => tokio::time::timeout(SHORT_MAX, served).await.unwrap_or(Ok(())),
        };
        if let Err(error) = served {
            tracing::debug!(%peer, %error, "an admin connection broke off");
        }
        if reserved {
            self.reserve.refill();
        }
    }
}

/// Serves one connection until it ends, or until its open request has ended after the stop.
async fn serve_one(
    stream: TcpStream,
    peer: SocketAddr,
    service: TowerToHyperService<Router>,
    limits: Limits,
    keep_alive: bool,
    stop: CancellationToken,
) -> hyper::Result<()> {
    let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        service.call(request)
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.read)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .keep_alive(keep_alive)
        .serve_connection(TokioIo::new(Stall::new(stream, limits.write)), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        served = connection.as_mut() => return served,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}
