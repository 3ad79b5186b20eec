//! What the admin tests share: an engine whose answers are written down beforehand behind a real listening server, and
//! a client made of a plain socket, so that it can also say what no client would.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use evenkeel::engine::view::{
    Counts, EngineState, Explanation, Health, IdState, JournalEntry, JournalQuery, QueueEntry, QueuePage, QueueQuery,
    RunOutcome, ShardStatus, Status, SteerAnswer, StreamState, StreamStatus, TriggerAnswer, TriggerResult, WaitFor,
};
use evenkeel::engine::{HandleError, JournalNews, Select};
use evenkeel::id::{ShardId, WorkerId};
use evenkeel::service::admin::{AdminOptions, Asked, Backend, JournalReader, Running, Server};
use evenkeel::service::telemetry::metrics::Metrics;
use evenkeel::{BoxFuture, Cause, OwedReason, Position};

/// Longer than anything here takes on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// An engine whose answers are written down beforehand: an id's first part says what becomes of it.
pub(crate) struct Script {
    pub(crate) health: Mutex<Health>,
    pub(crate) journal: Arc<Mutex<Vec<JournalEntry>>>,
    pub(crate) stopped: AtomicBool,
    pub(crate) stuck: AtomicBool,
    pub(crate) drained: AtomicBool,
    pub(crate) calls: Mutex<Vec<String>>,
    /// Runs of ids that begin with `holds` end when they get a permit.
    pub(crate) gate: tokio::sync::Semaphore,
    /// Ids that begin with `soon` find room when they come again.
    soon: Mutex<BTreeSet<String>>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            health: Mutex::new(Health { live: true, ready: true, problems: Vec::new() }),
            journal: Arc::default(),
            stopped: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
            drained: AtomicBool::new(false),
            calls: Mutex::new(Vec::new()),
            gate: tokio::sync::Semaphore::new(0),
            soon: Mutex::default(),
        }
    }
}

impl Script {
    fn answer<'a, T: Send + 'a>(&self, call: String, answer: T) -> Asked<'a, T> {
        self.calls.lock().unwrap().push(call);
        let (stopped, stuck) = (self.stopped.load(Ordering::SeqCst), self.stuck.load(Ordering::SeqCst));
        Box::pin(async move {
            match (stopped, stuck) {
                (_, true) => std::future::pending().await,
                (true, _) => Err(HandleError::Stopped),
                _ => Ok(answer),
            }
        })
    }

    fn fate(&self, id: &str, wait: WaitFor) -> TriggerResult {
        match id.starts_with("soon") && self.soon.lock().unwrap().insert(id.to_owned()) {
            true => TriggerResult::Full,
            false => fate(id, wait),
        }
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }
}

/// What becomes of an id that is triggered.
fn fate(id: &str, wait: WaitFor) -> TriggerResult {
    if let Err(error) = evenkeel::id::check(id) {
        return TriggerResult::Refused { reason: error.to_string() };
    }
    match (id.split('-').next().unwrap(), wait) {
        ("full", _) => TriggerResult::Full,
        ("away", _) => TriggerResult::Unavailable { reason: "shard 3 is led by another process".into() },
        ("lost", WaitFor::Durable) => TriggerResult::NotDurable { reason: "the disk is full".into() },
        ("fails", WaitFor::Done) => {
            TriggerResult::Ended { outcome: RunOutcome::Failed, message: Some("no route\u{1b}[2J".into()) }
        }
        ("present", WaitFor::Admitted) => TriggerResult::AlreadyPresent,
        (_, WaitFor::Admitted) => TriggerResult::Admitted,
        (_, WaitFor::Durable) => TriggerResult::Durable,
        (_, WaitFor::Done) => TriggerResult::Ended { outcome: RunOutcome::Done, message: None },
    }
}

impl Backend for Script {
    fn trigger(&self, ids: Vec<String>, wait: WaitFor) -> BoxFuture<'_, Vec<TriggerAnswer>> {
        self.calls.lock().unwrap().push(format!("trigger {wait:?} {}", ids.len()));
        Box::pin(async move {
            if ids.iter().any(|id| id.starts_with("hangs")) {
                std::future::pending::<()>().await;
            }
            if ids.iter().any(|id| id.starts_with("holds")) {
                self.gate.acquire().await.unwrap().forget();
            }
            ids.into_iter().map(|id| TriggerAnswer { result: self.fate(&id, wait), id }).collect()
        })
    }

    fn explain<'a>(&'a self, id: &'a str) -> Asked<'a, Explanation> {
        let explanation = Explanation {
            id: id.into(),
            shard: ShardId(7),
            worker: WorkerId(3),
            led: true,
            state: IdState::Delayed,
            why: "it failed and runs again at 12:00".into(),
            reason: "retry".into(),
            entry: Some(entry(id)),
            journal: vec![run(1, id)],
        };
        self.answer(format!("explain {id}"), explanation)
    }

    fn status(&self) -> Asked<'_, Status> {
        self.answer("status".into(), status())
    }

    fn shards(&self) -> Asked<'_, Vec<ShardStatus>> {
        let shard = |n, led: bool| ShardStatus {
            shard: ShardId(n),
            led,
            leader: (!led).then(|| "host-2/17".into()),
            until: None,
            term: led.then(|| "0001-0000000000000004711".into()),
            counts: counts(),
            runs: 42,
        };
        self.answer("shards".into(), vec![shard(0, true), shard(1, false)])
    }

    fn queues(&self, query: QueueQuery) -> Asked<'_, QueuePage> {
        if query.after.as_deref() == Some("forged") {
            return Box::pin(async { Err(HandleError::Invalid("after: no page ended there".into())) });
        }
        // Two pages: the second one starts after "b".
        let page = match query.after.as_deref() {
            None => QueuePage { entries: vec![entry("a"), entry("b")], next: Some("b".into()) },
            Some(_) => QueuePage { entries: vec![entry("c")], next: None },
        };
        self.answer(format!("queues {query:?}"), page)
    }

    fn journal(&self, query: JournalQuery) -> Asked<'_, Vec<JournalEntry>> {
        let wanted = |run: &&JournalEntry| query.id.as_deref().is_none_or(|id| *run.id == *id);
        let journal = self.journal.lock().unwrap();
        let entries = journal.iter().rev().filter(wanted).take(query.limit.unwrap()).cloned().collect();
        self.answer(format!("journal {query:?}"), entries)
    }

    fn reader(&self) -> Box<dyn JournalReader> {
        Box::new(ScriptReader { journal: Arc::clone(&self.journal), seen: None })
    }

    fn redrive(&self, select: Select) -> Asked<'_, Vec<SteerAnswer>> {
        let ids = match &select {
            Select::Ids(ids) => ids.clone(),
            Select::Match(_) => vec!["a".into(), "b".into()],
        };
        self.answer(format!("redrive {select:?}"), ids.into_iter().map(steered).collect())
    }

    fn cancel(&self, ids: Vec<String>) -> Asked<'_, Vec<SteerAnswer>> {
        self.answer(format!("cancel {ids:?}"), ids.into_iter().map(steered).collect())
    }

    fn drain(&self) {
        self.drained.store(true, Ordering::SeqCst);
    }

    fn health(&self) -> Health {
        self.health.lock().unwrap().clone()
    }
}

/// Reads the script's journal as it grows.
struct ScriptReader {
    journal: Arc<Mutex<Vec<JournalEntry>>>,
    seen: Option<usize>,
}

impl JournalReader for ScriptReader {
    fn news<'a>(&'a mut self, id: Option<&'a str>, limit: usize) -> Asked<'a, JournalNews> {
        let journal = self.journal.lock().unwrap();
        let new = &journal[self.seen.unwrap_or(0)..];
        let mut entries: Vec<_> =
            new.iter().rev().filter(|run| id.is_none_or(|id| *run.id == *id)).take(limit).cloned().collect();
        entries.reverse();
        let skipped = if id.is_none() && self.seen.is_some() { (new.len() - entries.len()) as u64 } else { 0 };
        self.seen = Some(journal.len());
        Box::pin(async move { Ok(JournalNews { entries, skipped }) })
    }
}

fn steered(id: String) -> SteerAnswer {
    let done = !id.starts_with("idle");
    SteerAnswer { id, done, reason: if done { "released".into() } else { "it is not parked".into() } }
}

fn counts() -> Counts {
    Counts {
        pending: 10,
        running: 2,
        delayed: 5,
        parked: 1,
        owed_records: 6,
        admitted: 18,
        admitted_max: 1_000_000,
        timers: 0,
        timers_max: 1_000_000,
    }
}

pub(crate) fn status() -> Status {
    Status {
        controller: "dns".into(),
        version: "0.1.0".into(),
        state: EngineState::Running,
        started: "2030-02-03T11:00:00Z".parse().unwrap(),
        shards: 12,
        led: 2,
        counts: counts(),
        streams: vec![StreamStatus {
            name: "orders".into(),
            state: StreamState::Degraded,
            problem: Some("broker kafka:9092 does not answer".into()),
            events: 991,
            errors: 3,
            restarts: 1,
        }],
        oldest_undone_seconds: Some(12.5),
        problems: vec!["stream orders: broker kafka:9092 does not answer".into()],
    }
}

pub(crate) fn entry(id: &str) -> QueueEntry {
    QueueEntry {
        id: id.into(),
        kind: "dns".into(),
        shard: ShardId(7),
        worker: WorkerId(3),
        state: IdState::Parked,
        attempt: 3,
        since: "2030-02-03T11:00:00Z".parse().unwrap(),
        due: Some("2030-02-03T11:00:30Z".parse().unwrap()),
        parked: Some(OwedReason::GivenUp),
        error: Some("no route\u{1b}[2J\nto host".into()),
        causes: causes(),
        more_causes: 2,
    }
}

pub(crate) fn run(attempt: u32, id: &str) -> JournalEntry {
    JournalEntry {
        at: "2030-02-03T11:00:01.5Z".parse().unwrap(),
        id: id.into(),
        kind: "dns".into(),
        shard: ShardId(7),
        worker: WorkerId(3),
        outcome: RunOutcome::Failed,
        attempt,
        duration_seconds: 0.031,
        waited_seconds: 0.5,
        causes: causes(),
        more_causes: 2,
        message: Some("no route\u{1b}[2J".into()),
        next: Some("2030-02-03T11:00:02Z".parse().unwrap()),
    }
}

fn causes() -> Vec<Cause> {
    let position = Position { topic: "orders".into(), partition: 7, offset: 991 };
    vec![
        Cause::Event { stream: "orders".into(), position: Some(position) },
        Cause::Event { stream: "channel".into(), position: None },
        Cause::Resync { stream: "all".into() },
        Cause::Trigger {},
        Cause::Retry { attempt: 1, error: Some("no route".into()) },
        Cause::Requested {},
        Cause::Recovered {},
        Cause::Redrive {},
        Cause::Cancelled {},
    ]
}

/// A listening server and the script behind it.
pub(crate) struct World {
    pub(crate) script: Arc<Script>,
    pub(crate) metrics: Metrics,
    pub(crate) server: Option<Running>,
    pub(crate) address: SocketAddr,
}

impl World {
    /// On loopback, without a token.
    pub(crate) fn open() -> Self {
        Self::with(AdminOptions::new("127.0.0.1:0".parse().unwrap(), None))
    }

    pub(crate) fn with(options: AdminOptions) -> Self {
        let (script, metrics) = (Arc::new(Script::default()), Metrics::new("dns").unwrap());
        let server = Server::bind(options).unwrap();
        let running = server.start(Arc::clone(&script) as _, metrics.page()).unwrap();
        Self { script, metrics, address: running.local_addr(), server: Some(running) }
    }

    /// The answer to `METHOD path` with these header lines and this body.
    pub(crate) fn ask(&self, method: &str, path: &str, headers: &[&str], body: &str) -> Answer {
        request(self.address, method, path, headers, body)
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], "")
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Answer {
        self.ask("POST", path, &["Content-Type: application/json"], body)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        connect(self.address)
    }

    /// The answer to these bytes; the server must end the connection.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Answer {
        raw(self.address, bytes)
    }
}

/// The answer to `METHOD path` with these header lines and this body.
pub(crate) fn request(address: SocketAddr, method: &str, path: &str, headers: &[&str], body: &str) -> Answer {
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    for header in headers {
        text.push_str(header);
        text.push_str("\r\n");
    }
    if !body.is_empty() {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    raw(address, format!("{text}\r\n{body}").as_bytes())
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn raw(address: SocketAddr, bytes: &[u8]) -> Answer {
    let mut stream = connect(address);
    // The server may answer and close before it has read everything.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "after {:?}", String::from_utf8_lossy(&answer));
    }
    Answer::parse(&answer)
}

/// What the server said.
#[derive(Debug)]
pub(crate) struct Answer {
    /// 0 if it said nothing.
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).map_or(0, |status| status.parse().unwrap());
        Self { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// The kind of problem, after checking that it is a whole one; and its detail.
    pub(crate) fn problem(&self) -> (u16, String, String) {
        let json = self.json();
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        assert_eq!(json["status"], self.status, "{self:?}");
        let kind = json["type"].as_str().unwrap().strip_prefix("urn:evenkeel:problem:").unwrap();
        assert!(json["title"].as_str().is_some_and(|title| !title.is_empty()), "{self:?}");
        (self.status, kind.to_owned(), json["detail"].as_str().unwrap().to_owned())
    }

    /// Checks that this is a problem of this kind whose detail holds the text.
    #[track_caller]
    pub(crate) fn is_problem(&self, status: u16, kind: &str, detail: &str) {
        let got = self.problem();
        assert!((got.0, got.1.as_str()) == (status, kind) && got.2.contains(detail), "{got:?}");
    }
}

/// Waits for what must become true.
#[track_caller]
pub(crate) fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_true() {
        assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::yield_now();
    }
}
