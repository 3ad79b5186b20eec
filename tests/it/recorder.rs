//! A webhook outside of the process under test, which writes down every request: what a target would have seen.
//!
//! It runs on threads of its own, so that it goes on whatever the test does. Used by `tests/it` and `tests/live`.
#![allow(dead_code, reason = "each binary uses a part of it")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

/// One request, from its arrival to its answer.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) id: String,
    pub(crate) key: String,
    pub(crate) token: String,
    pub(crate) attempt: u64,
    pub(crate) causes: Vec<Value>,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) begun: Instant,
    /// `None` while it lasts, and for ever if the caller went away before.
    pub(crate) ended: Option<Instant>,
    /// When it was over, with an answer or because the caller went away.
    pub(crate) left: Option<Instant>,
}

/// What the webhook does with the request of this id; the number counts the requests for it, from 1.
type Behave = dyn Fn(&str, usize) -> Reply + Send + Sync;

/// How it answers.
pub(crate) enum Reply {
    Done,
    After(Duration, Box<Reply>),
    Json(Value),
    Status(u16),
    /// When the gate opens.
    Hold,
    /// Never.
    Hang,
}

struct State {
    seen: Mutex<Vec<Seen>>,
    counts: Mutex<BTreeMap<String, usize>>,
    behave: Box<Behave>,
    gate: Semaphore,
    in_flight: Mutex<(usize, usize)>,
}

/// A listening webhook.
pub(crate) struct Recorder {
    state: Arc<State>,
    address: SocketAddr,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Recorder {
    pub(crate) fn start(behave: impl Fn(&str, usize) -> Reply + Send + Sync + 'static) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let state = Arc::new(State {
            seen: Mutex::default(),
            counts: Mutex::default(),
            behave: Box::new(behave),
            gate: Semaphore::new(0),
            in_flight: Mutex::default(),
        });
        let shared = Arc::clone(&state);
        let take = move |headers: HeaderMap, Json(request): Json<Value>| answer(Arc::clone(&shared), headers, request);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let app = axum::Router::new().route("/reconcile", axum::routing::post(take));
        runtime.spawn(async move { axum::serve(tokio::net::TcpListener::from_std(listener).unwrap(), app).await });
        Self { state, address, runtime: Some(runtime) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/reconcile", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        lock(&self.state.seen).clone()
    }

    pub(crate) fn of(&self, id: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.id == id).collect()
    }

    pub(crate) fn count(&self, id: &str) -> usize {
        lock(&self.state.counts).get(id).copied().unwrap_or(0)
    }

    pub(crate) fn total(&self) -> usize {
        lock(&self.state.seen).len()
    }

    /// How many requests are under way, and how many were at most.
    pub(crate) fn in_flight(&self) -> (usize, usize) {
        *lock(&self.state.in_flight)
    }

    /// Lets so many requests that hold be answered, now or when they come.
    pub(crate) fn release(&self, count: usize) {
        self.state.gate.add_permits(count);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // A runtime must not be waited for inside of another one.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Marks the end of a request, also of one whose caller went away.
struct Ending(Arc<State>, usize);

impl Drop for Ending {
    fn drop(&mut self) {
        lock(&self.0.in_flight).0 -= 1;
        lock(&self.0.seen)[self.1].left = Some(Instant::now());
    }
}

async fn answer(state: Arc<State>, headers: HeaderMap, request: Value) -> Response {
    let text = |key: &str| request[key].as_str().unwrap_or_default().to_owned();
    let headers = headers
        .iter()
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    let id = text("id");
    let place = {
        let mut seen = lock(&state.seen);
        seen.push(Seen {
            id: id.clone(),
            key: text("key"),
            token: text("fencing_token"),
            attempt: request["attempt"].as_u64().unwrap_or(0),
            causes: request["causes"].as_array().cloned().unwrap_or_default(),
            headers,
            begun: Instant::now(),
            ended: None,
            left: None,
        });
        seen.len() - 1
    };
    let number = {
        let mut counts = lock(&state.counts);
        let count = counts.entry(id.clone()).or_default();
        *count += 1;
        *count
    };
    {
        let mut in_flight = lock(&state.in_flight);
        in_flight.0 += 1;
        in_flight.1 = in_flight.1.max(in_flight.0);
    }
    let ending = Ending(Arc::clone(&state), place);
    let reply = (state.behave)(&id, number);
    let answer = give(&state, reply).await;
    lock(&state.seen)[place].ended = Some(Instant::now());
    drop(ending);
    answer
}

async fn give(state: &State, mut reply: Reply) -> Response {
    loop {
        reply = match reply {
            Reply::Done => return StatusCode::NO_CONTENT.into_response(),
            Reply::Json(answer) => return Json(answer).into_response(),
            Reply::Status(status) => {
                return (StatusCode::from_u16(status).unwrap(), Json(json!({}))).into_response();
            }
            Reply::Hang => std::future::pending().await,
            Reply::Hold => {
                state.gate.acquire().await.unwrap().forget();
                Reply::Done
            }
            Reply::After(delay, then) => {
                tokio::time::sleep(delay).await;
                *then
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
