//! The admin API before a real engine.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use evenkeel::engine::{Engine, JournalCursor, Limits, ReconcilerOptions, Sharding, Timing};
use evenkeel::service::admin::{AdminOptions, Running, Server};
use evenkeel::service::telemetry::metrics::Metrics;
use evenkeel::{Action, Failure, Reconciler, Run};
use serde_json::{Value, json};

use crate::admin_world::{Answer, PATIENCE, eventually, request};

/// Does what the id says; `stays` runs until it is cancelled.
struct Obedient;

impl Reconciler for Obedient {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        match run.id().split('-').next().unwrap_or_default() {
            "hopeless" => Err(Failure::terminal("no such zone")),
            "stays" => {
                run.cancelled().await;
                Err(Failure::transient("cancelled"))
            }
            _ => Ok(Action::done().with_message("all is well")),
        }
    }
}

/// A running engine with its admin server; both end with it.
struct World {
    server: Running,
    engine: tokio::task::JoinHandle<Result<(), evenkeel::engine::EngineError>>,
    handle: evenkeel::engine::Handle,
    runtime: tokio::runtime::Runtime,
}

impl World {
    fn start(shards: u32, limits: Limits) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _inside = runtime.enter();
        let metrics = Metrics::new("dns").unwrap();
        let options = ReconcilerOptions { cancel_grace: Duration::from_secs(5), ..ReconcilerOptions::default() };
        let engine = Engine::builder("dns")
            .reconciler(Obedient)
            .options(options)
            .sharding(Sharding { shards, ..Sharding::default() })
            .limits(limits)
            .timing(Timing { drain: Duration::from_millis(500), ..Timing::default() })
            .meter(metrics.meter())
            .build()
            .unwrap();
        let handle = engine.handle();
        let server = Server::bind(AdminOptions::new("127.0.0.1:0".parse().unwrap(), None)).unwrap();
        let server = server.start(Arc::new(handle.clone()), metrics.page()).unwrap();
        let engine = runtime.spawn(engine.run(std::future::pending()));
        let world = Self { server, engine, handle, runtime };
        eventually("every shard is led", || {
            let shards = world.get("/v1/shards").json();
            shards["shards"].as_array().unwrap().iter().all(|shard| shard["led"] == true)
        });
        world
    }

    fn get(&self, path: &str) -> Answer {
        request(self.server.local_addr(), "GET", path, &[], "")
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        let json = "Content-Type: application/json";
        request(self.server.local_addr(), "POST", path, &[json], &body.to_string())
    }

    fn state(&self, id: &str) -> String {
        self.get(&format!("/v1/explain?id={id}")).json()["state"].as_str().unwrap().to_owned()
    }
}

#[test]
fn x1_x4_x7_an_id_is_triggered_explained_parked_and_released() {
    let world = World::start(3, Limits::default());
    let done = world.post("/v1/trigger?wait=done", &json!({"ids": ["a", "hopeless-b", "\u{7}"]}));
    assert_eq!(done.status, 207, "{done:?}");
    let answers = &done.json()["answers"];
    assert_eq!(answers[0], json!({"id": "a", "result": "ended", "outcome": "done", "message": "all is well"}));
    assert_eq!((&answers[1]["outcome"], &answers[1]["message"]), (&json!("given_up"), &json!("no such zone")));
    assert_eq!(answers[2]["result"], "refused");
    assert_eq!((world.state("a"), world.state("hopeless-b")), ("idle".into(), "parked".into()));
    let parked = world.get("/v1/queues?state=parked").json();
    assert_eq!(
        (&parked["entries"][0]["id"], &parked["entries"][0]["parked"]),
        (&json!("hopeless-b"), &json!("given_up"))
    );
    assert_eq!(parked["entries"][0]["error"], "no such zone");
    let released = world.post("/v1/redrive", &json!({"match": "hope*"})).json();
    assert_eq!((&released["answers"][0]["id"], &released["answers"][0]["done"]), (&json!("hopeless-b"), &json!(true)));
    eventually("it was given up again", || {
        let runs = world.get("/v1/journal?id=hopeless-b").json();
        runs["entries"].as_array().unwrap().len() == 2
    });
    assert_eq!(world.post("/v1/redrive", &json!({"ids": ["a"]})).json()["answers"][0]["done"], false);
    let status = world.get("/v1/status").json();
    assert_eq!((&status["led"], &status["counts"]["parked"]), (&json!(3), &json!(1)));
}

#[test]
fn c1_a_run_is_cancelled_and_parked() {
    let world = World::start(1, Limits::default());
    assert_eq!(world.post("/v1/trigger", &json!({"ids": ["stays-a"]})).status, 202);
    eventually("it runs", || world.state("stays-a") == "running");
    let cancelled = world.post("/v1/cancel", &json!({"ids": ["stays-a", "b"]})).json();
    assert_eq!((&cancelled["answers"][0]["done"], &cancelled["answers"][1]["done"]), (&json!(true), &json!(false)));
    eventually("it is parked", || world.state("stays-a") == "parked");
}

#[test]
fn q5_a_full_shard_answers_429_until_there_is_room() {
    let world = World::start(1, Limits { admitted: 2, ..Limits::default() });
    assert_eq!(world.post("/v1/trigger", &json!({"ids": ["stays-a", "stays-b"]})).status, 202);
    let full = world.post("/v1/trigger", &json!({"ids": ["c", "d"]}));
    full.is_problem(429, "full", "try again");
    assert_eq!(full.header("retry-after"), Some("1"));
    let mixed = world.post("/v1/trigger", &json!({"ids": ["stays-a", "c"]}));
    assert_eq!(mixed.status, 207, "an id that is present is never refused: {mixed:?}");
    world.post("/v1/cancel", &json!({"ids": ["stays-a"]}));
    eventually("there is room", || world.post("/v1/trigger", &json!({"ids": ["c"]})).status == 202);
}

#[test]
fn a_forged_page_is_refused() {
    let world = World::start(2, Limits::default());
    for after in ["x", "9", "0-x", "1-99999999999", "0-1-2", "%F0%9F%9A%A2"] {
        world.get(&format!("/v1/queues?after={after}")).is_problem(400, "invalid-request", "");
    }
    world.get("/v1/queues?shard=2").is_problem(400, "invalid-request", "no shard 2");
}

#[test]
fn x4_the_journal_is_followed_over_all_shards() {
    let world = World::start(4, Limits::default());
    let trigger = |ids: &[&str]| assert_eq!(world.post("/v1/trigger?wait=done", &json!({ "ids": ids })).status, 200);
    trigger(&["before"]);
    let mut stream = TcpStream::connect(world.server.local_addr()).unwrap();
    write!(stream, "GET /v1/journal?follow=true&limit=1 HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let mut next = || {
        let data = lines.find_map(|line| line.strip_prefix("data: ").map(str::to_owned)).unwrap();
        serde_json::from_str::<Value>(&data).unwrap()
    };
    assert_eq!(next()["id"], "before");
    let ids: Vec<String> = (0..20).map(|n| format!("id-{n}")).collect();
    trigger(&ids.iter().map(String::as_str).collect::<Vec<_>>());
    let mut followed: Vec<String> = (0..20).map(|_| next()["id"].as_str().unwrap().to_owned()).collect();
    followed.sort();
    let mut ids = ids;
    ids.sort();
    assert_eq!(followed, ids, "each run once");
    world.runtime.block_on(async {
        let mut cursor = JournalCursor::default();
        let first = world.handle.journal_news(&mut cursor, None, 5).await.unwrap();
        assert_eq!((first.entries.len(), first.skipped), (5, 0), "a new reader begins with the last runs");
        let ids = (0..30).map(|n| format!("more-{n}")).collect();
        world.handle.trigger_batch(ids, evenkeel::engine::view::WaitFor::Done).await;
        let news = world.handle.journal_news(&mut cursor, None, 10).await.unwrap();
        assert_eq!((news.entries.len(), news.skipped), (10, 20));
        assert!(news.entries.is_sorted_by_key(|run| run.at));
        let none = world.handle.journal_news(&mut cursor, None, 10).await.unwrap();
        assert_eq!((none.entries.len(), none.skipped), (0, 0));
        assert!(world.handle.journal_news(&mut cursor, Some("\0"), 10).await.is_err());
    });
}

#[test]
fn a_drain_ends_the_engine_and_the_server_still_tells() {
    let world = World::start(1, Limits::default());
    world.post("/v1/trigger", &json!({"ids": ["stays-a"]}));
    eventually("it runs", || world.state("stays-a") == "running");
    assert_eq!(world.post("/v1/drain", &json!({})).status, 202);
    eventually("it says so", || world.get("/v1/status").json()["state"] == "draining");
    let late = || world.post("/v1/trigger", &json!({"ids": ["b"]}));
    eventually("nothing is taken any more", || late().status == 503);
    let late = late();
    late.is_problem(503, "unavailable", "");
    assert_eq!(late.header("retry-after"), Some("1"));
    world.runtime.block_on(world.engine).unwrap().unwrap();
    let address = world.server.local_addr();
    assert_eq!(request(address, "GET", "/v1/explain?id=a", &[], "").json()["led"], false);
    assert_eq!(request(address, "GET", "/livez", &[], "").status, 200);
}

/// Says that it has begun, and blocks its thread until the gate opens.
struct Blocking(mpsc::Sender<()>, Mutex<mpsc::Receiver<()>>);

impl Reconciler for Blocking {
    async fn reconcile(&self, _: &Run) -> Result<Action, Failure> {
        self.0.send(()).unwrap();
        // An error means that the gate is open.
        let _ = self.1.lock().unwrap().recv();
        Ok(Action::done())
    }
}

#[test]
fn b74_c4_health_and_metrics_answer_while_every_thread_is_blocked() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _inside = runtime.enter();
    let ((begins, begun), (gate, blocked)) = (mpsc::channel(), mpsc::channel());
    let metrics = Metrics::new("dns").unwrap();
    let engine = Engine::builder("dns").reconciler(Blocking(begins, Mutex::new(blocked))).meter(metrics.meter());
    let engine = engine.build().unwrap();
    let handle = engine.handle();
    let server = Server::bind(AdminOptions::new("127.0.0.1:0".parse().unwrap(), None)).unwrap();
    let server = server.start(Arc::new(handle.clone()), metrics.page()).unwrap();
    let running = runtime.spawn(engine.run(std::future::pending()));
    eventually("the id is admitted", || handle.trigger("a").is_ok());
    begun.recv_timeout(PATIENCE).unwrap();
    let address = server.local_addr();
    assert_eq!(request(address, "GET", "/livez", &[], "").status, 200);
    assert!(request(address, "GET", "/metrics", &[], "").body.contains("evenkeel_dequeues_total"));
    drop(gate);
    handle.drain();
    runtime.block_on(running).unwrap().unwrap();
}
