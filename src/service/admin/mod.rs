//! The admin server: HTTP on a thread of its own, for people and programs that look at a running process or steer it.
//!
//! Must never hold up the engine, or be held up by it: reconcilers that block every thread of the runtime leave
//! `/livez` answering here. It decides nothing; what it does is ask the engine. docs/http-api.md is its manual. Tested
//! in `tests/it/admin*.rs` against a listening server.

mod backend;
mod connections;
mod follow;
mod guard;
mod input;
mod look;
mod page;
mod problem;
mod stall;
mod steer;
mod token;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use axum::routing::{MethodRouter, get, post};
use axum::{Router, middleware};
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::connections::Limits;
use self::guard::Guard;
use self::problem::{BUSY, METHOD, NOT_FOUND, NOT_READY, Problem, STOPPING};
use self::token::TokenFile;
use crate::engine::HandleError;
use crate::service::telemetry::metrics::Page;

pub use self::backend::{Asked, Backend, JournalReader};
pub use self::input::BODY_BYTES_MAX;
pub use self::problem::{KINDS, Kind, TYPE_PREFIX};
pub use self::steer::IDS_MAX;
pub use self::token::TokenFileError;

/// How long the engine may take for an answer that waits for no run.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The most requests that wait for a run or a record at once.
const WAITERS_MAX: usize = 128;
/// The most readers that follow the journal at once.
const FOLLOWERS_MAX: usize = 32;
/// How long a request's head may take, its body, and the time between two requests: a megabyte over a slow line.
const READ_MAX: Duration = Duration::from_secs(10);
/// How long a peer may take nothing of what it is sent.
const WRITE_STALL_MAX: Duration = Duration::from_secs(30);

/// Where the server listens, and whom it answers.
#[derive(Debug, Clone)]
pub struct AdminOptions {
    listen: SocketAddr,
    token_file: Option<PathBuf>,
    limits: Limits,
}

impl AdminOptions {
    /// Listens there; asks for a token if there is a file with tokens.
    #[must_use]
    pub fn new(listen: SocketAddr, token_file: Option<PathBuf>) -> Self {
        Self { listen, token_file, limits: Limits { read: READ_MAX, write: WRITE_STALL_MAX } }
    }

    /// Shortens how long a request's head and its body may take (10 s each), and how long a peer may take nothing (30
    /// s).
    #[must_use]
    pub fn with_patience(mut self, read: Duration, write: Duration) -> Self {
        self.limits = Limits { read: read.min(READ_MAX), write: write.min(WRITE_STALL_MAX) };
        self
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }
}

/// The server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// Anybody could steer the process.
    #[error(
        "admin.listen: {0} can be reached from other machines, so it needs a token: set admin.token_file, or listen on \
         127.0.0.1"
    )]
    Unguarded(SocketAddr),
    /// The address is taken.
    #[error(
        "admin.listen: {0} is in use, perhaps by another `evenkeel run`: stop that process, or set admin.listen to \
         another port (0 takes a free one)"
    )]
    InUse(SocketAddr),
    /// The address cannot be used.
    #[error("admin.listen: cannot listen on {address}: {reason}; set admin.listen to an address of this machine")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        reason: io::Error,
    },
    /// The token file cannot be used.
    #[error("admin.token_file: {0}")]
    Token(#[from] TokenFileError),
    /// The system gives no thread.
    #[error("cannot start the admin server's thread: {0}")]
    Thread(#[source] io::Error),
}

/// A server that listens, but does not answer yet: so a taken address is known before the engine starts.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    options: AdminOptions,
    guard: Guard,
}

impl Server {
    /// Takes the address and reads the token file.
    ///
    /// # Errors
    /// See [`AdminError`].
    pub fn bind(options: AdminOptions) -> Result<Self, AdminError> {
        let loopback = options.listen.ip().to_canonical().is_loopback();
        if !loopback && options.token_file.is_none() {
            return Err(AdminError::Unguarded(options.listen));
        }
        let tokens = options.token_file.as_deref().map(TokenFile::open).transpose()?;
        let listen = |reason: io::Error| match reason.kind() {
            io::ErrorKind::AddrInUse => AdminError::InUse(options.listen),
            _ => AdminError::Listen { address: options.listen, reason },
        };
        let listener = TcpListener::bind(options.listen).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        Ok(Self { listener, address, options, guard: Guard { loopback, tokens } })
    }

    /// Where it listens, with the port that port 0 became.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Answers probes alone while the process starts: it lives, and is not ready (B80). On a thread of its own, at the
    /// same address; stop it before [`start`](Self::start).
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn starting(&self) -> Result<Running, AdminError> {
        let listener = self.listener.try_clone().map_err(AdminError::Thread)?;
        let router = Router::new()
            .route("/livez", get(async || "ok\n"))
            .fallback(async || Problem::new(NOT_READY, "it is starting; the log says what it waits for"));
        serve(self.address, listener, router, self.options.clone(), CancellationToken::new())
    }

    /// Answers from now on, on a thread of its own.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(self, backend: Arc<dyn Backend>, page: Page) -> Result<Running, AdminError> {
        let stop = CancellationToken::new();
        let app = App {
            backend,
            page,
            stop: stop.clone(),
            body_patience: self.options.limits.read,
            waiters: Semaphore::new(WAITERS_MAX),
            followers: Arc::new(Semaphore::new(FOLLOWERS_MAX)),
            pages: page::Pages::new(),
        };
        let router = router(Arc::new(app), Arc::new(self.guard));
        serve(self.address, self.listener, router, self.options, stop)
    }
}

/// Serves on a thread of its own until the token is cancelled.
fn serve(
    address: SocketAddr,
    listener: TcpListener,
    router: Router,
    options: AdminOptions,
    stop: CancellationToken,
) -> Result<Running, AdminError> {
    let (ended, end) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AdminError::Thread)?;
    let stopped = stop.clone();
    let thread = move || {
        runtime.block_on(async {
            match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => connections::serve(listener, router, &options, stopped).await,
                Err(error) => tracing::error!(%error, "the admin server cannot listen"),
            }
        });
        runtime.shutdown_background();
        // Nobody may wait for it any more.
        let _ = ended.send(());
    };
    std::thread::Builder::new().name("evenkeel-admin".into()).spawn(thread).map_err(AdminError::Thread)?;
    Ok(Running { address, stop: stop.drop_guard(), end })
}

/// A server that answers. Dropping it stops the server without waiting.
#[derive(Debug)]
pub struct Running {
    address: SocketAddr,
    stop: DropGuard,
    end: oneshot::Receiver<()>,
}

impl Running {
    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections, lets open requests end, and returns after a few seconds at most.
    ///
    /// # Cancel safety
    /// Dropped, the server stops all the same.
    pub async fn stop(self) {
        drop(self.stop);
        // An error means that the thread has ended already.
        let _ = self.end.await;
    }
}

/// What the handlers share.
struct App {
    backend: Arc<dyn Backend>,
    page: Page,
    stop: CancellationToken,
    body_patience: Duration,
    waiters: Semaphore,
    followers: Arc<Semaphore>,
    pages: page::Pages,
}

impl App {
    /// An answer of the engine, in time.
    async fn ask<T>(&self, answer: impl Future<Output = Result<T, HandleError>>) -> Result<T, Problem> {
        Ok(self.within(ANSWER_MAX, answer).await??)
    }

    /// An answer of the engine within this time.
    async fn within<T>(&self, most: Duration, answer: impl Future<Output = T>) -> Result<T, Problem> {
        tokio::select! {
            answer = tokio::time::timeout(most, answer) => answer.map_err(|_| {
                Problem::new(BUSY, format!("no answer of the engine within {} s; the log may say why", most.as_secs()))
            }),
            () = self.stop.cancelled() => Err(Problem::new(STOPPING, "ask the process that runs next")),
        }
    }
}

/// One route of the API.
struct Route {
    method: Method,
    path: &'static str,
    handler: MethodRouter<Arc<App>>,
}

fn routes() -> Vec<Route> {
    let show = |path, handler| Route { method: Method::GET, path, handler };
    let change = |path, handler| Route { method: Method::POST, path, handler };
    vec![
        show("/", get(page::page)),
        show("/livez", get(look::livez)),
        show("/readyz", get(look::readyz)),
        show("/metrics", get(look::metrics)),
        show("/v1/openapi.json", get(look::openapi)),
        show("/v1/status", get(look::status)),
        show("/v1/shards", get(look::shards)),
        show("/v1/queues", get(look::queues)),
        show("/v1/journal", get(look::journal)),
        show("/v1/explain", get(look::explain)),
        change("/v1/trigger", post(steer::trigger)),
        change("/v1/cancel", post(steer::cancel)),
        change("/v1/redrive", post(steer::redrive)),
        change("/v1/drain", post(steer::drain)),
    ]
}

/// Every route: its method and its path.
#[must_use]
pub fn route_list() -> Vec<(Method, &'static str)> {
    routes().into_iter().map(|route| (route.method, route.path)).collect()
}

fn router(app: Arc<App>, guard: Arc<Guard>) -> Router {
    routes()
        .into_iter()
        .fold(Router::new(), |router, route| router.route(route.path, route.handler))
        .method_not_allowed_fallback(async || Problem::new(METHOD, "the header Allow says which"))
        .fallback(async || Problem::new(NOT_FOUND, "`GET /v1/openapi.json` lists what there is"))
        .layer(middleware::from_fn_with_state(guard, guard::guard))
        .with_state(app)
}
