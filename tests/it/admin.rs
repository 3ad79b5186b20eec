//! The routes of the admin API, each against a listening server.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use opentelemetry::KeyValue;
use serde_json::json;

use evenkeel::service::admin::{AdminOptions, Server};
use evenkeel::service::telemetry::metrics::Metrics;

use crate::admin_world::{Answer, Script, World, eventually, request, run};

#[test]
fn x7_triggers_are_answered_per_id() {
    let world = World::open();
    let answer = world.post("/v1/trigger", r#"{"ids": ["a", "present-1"]}"#);
    assert_eq!(answer.status, 202, "{answer:?}");
    assert_eq!(
        answer.json(),
        json!({"answers": [{"id": "a", "result": "admitted"}, {"id": "present-1", "result": "already_present"}]})
    );
    let durable = world.post("/v1/trigger?durable=true", r#"{"ids": ["a"]}"#);
    assert_eq!((durable.status, durable.json()), (202, json!({"answers": [{"id": "a", "result": "durable"}]})));
    let done = world.post("/v1/trigger?wait=done", r#"{"ids": ["a", "fails-b"]}"#);
    assert_eq!(done.status, 200);
    assert_eq!(
        done.json()["answers"],
        json!([
            {"id": "a", "result": "ended", "outcome": "done", "message": null},
            {"id": "fails-b", "result": "ended", "outcome": "failed", "message": "no route\u{1b}[2J"},
        ])
    );
    assert_eq!(world.script.calls(), ["trigger Admitted 2", "trigger Durable 1", "trigger Done 2"]);
}

#[test]
fn q5_x7_what_cannot_be_admitted_says_when_to_come_again() {
    let world = World::open();
    for (path, ids, status, kind) in [
        ("/v1/trigger", r#"["full-1", "full-2"]"#, 429, "full"),
        ("/v1/trigger", r#"["away-1"]"#, 503, "unavailable"),
        ("/v1/trigger?durable=true", r#"["lost-1", "lost-2"]"#, 503, "not-durable"),
    ] {
        let answer = world.post(path, &format!("{{\"ids\": {ids}}}"));
        answer.is_problem(status, kind, "");
        assert_eq!(answer.header("retry-after"), Some("1"), "{answer:?}");
        let ids: Vec<String> = serde_json::from_str(ids).unwrap();
        assert_eq!(answer.json()["answers"].as_array().unwrap().len(), ids.len(), "answers are per id");
    }
    let refused = world.post("/v1/trigger", r#"{"ids": ["", "a\u0000b"]}"#);
    refused.is_problem(400, "invalid-request", "id rules");
    assert!(refused.json()["answers"][1]["reason"].as_str().unwrap().contains("U+0000 at byte 1"), "{refused:?}");
}

#[test]
fn x7_ids_that_fare_differently_get_207() {
    let world = World::open();
    let answer = world.post("/v1/trigger", r#"{"ids": ["a", "full-1", "away-1", "x\u202e"]}"#);
    assert_eq!(answer.status, 207, "{answer:?}");
    let json = answer.json();
    let results: Vec<_> = json["answers"].as_array().unwrap().iter().map(|a| a["result"].as_str().unwrap()).collect();
    assert_eq!(results, ["admitted", "full", "unavailable", "refused"]);
    // Failures of different kinds have no status in common either.
    assert_eq!(world.post("/v1/trigger", r#"{"ids": ["full-1", "away-1"]}"#).status, 207);
}

#[test]
fn d11_x4_what_waits_ran_and_why_is_shown() {
    let world = World::open();
    world.script.journal.lock().unwrap().extend([run(1, "a"), run(2, "b"), run(3, "a")]);
    let status = world.get("/v1/status");
    assert_eq!((status.status, status.header("content-type")), (200, Some("application/json")));
    assert_eq!(status.json()["counts"]["pending"], 10);
    assert_eq!(world.get("/v1/shards").json()["shards"][0]["term"], "0001-0000000000000004711");
    let page = world.get("/v1/queues?state=parked&shard=7&limit=2").json();
    assert_eq!((&page["next"], &page["entries"][0]["parked"]), (&json!("b"), &json!("given_up")));
    assert_eq!(world.get("/v1/queues?after=b").json()["next"], json!(null));
    let attempts = |path: &str| -> Vec<u64> {
        let json = world.get(path).json();
        json["entries"].as_array().unwrap().iter().map(|run| run["attempt"].as_u64().unwrap()).collect()
    };
    assert_eq!(attempts("/v1/journal"), [3, 2, 1]);
    assert_eq!(attempts("/v1/journal?id=a"), [3, 1]);
    assert_eq!(attempts("/v1/journal?limit=1"), [3]);
    let explained = world.get("/v1/explain?id=prod%2FDatabase%2Forders").json();
    assert_eq!((&explained["id"], &explained["state"]), (&json!("prod/Database/orders"), &json!("delayed")));
}

#[test]
fn x1_parked_ids_are_released_by_name_or_pattern() {
    let world = World::open();
    let answer = world.post("/v1/redrive", r#"{"ids": ["a", "idle-b"]}"#);
    assert_eq!(
        (answer.status, answer.json()),
        (
            200,
            json!({"answers": [
                {"id": "a", "done": true, "reason": "released"},
                {"id": "idle-b", "done": false, "reason": "it is not parked"},
            ]})
        )
    );
    assert_eq!(world.post("/v1/redrive", r#"{"match": "prod/*"}"#).status, 200);
    assert_eq!(world.post("/v1/cancel", r#"{"ids": ["a"]}"#).status, 200);
    assert_eq!(
        world.script.calls(),
        [r#"redrive Ids(["a", "idle-b"])"#, r#"redrive Match("prod/*")"#, r#"cancel ["a"]"#]
    );
    for body in ["{}", r#"{"ids": ["a"], "match": "*"}"#, r#"{"match": ""}"#] {
        world.post("/v1/redrive", body).is_problem(400, "invalid-request", "either ids or match");
    }
    let long = json!({ "match": "x".repeat(513) }).to_string();
    world.post("/v1/redrive", &long).is_problem(400, "invalid-request", "match: a pattern may have 512 bytes");
}

#[test]
fn drain_is_asked_for_by_post_alone() {
    let world = World::open();
    assert_eq!(world.get("/v1/drain").status, 405);
    assert!(!world.script.drained.load(Ordering::SeqCst));
    let answer = world.post("/v1/drain", "{}");
    assert_eq!((answer.status, answer.json()), (202, json!({"state": "draining"})));
    assert!(world.script.drained.load(Ordering::SeqCst));
}

#[test]
fn b80_c4_health_is_what_the_process_says_of_itself() {
    let world = World::open();
    assert_eq!((world.get("/livez").status, world.get("/readyz").status), (200, 200));
    // Probes stay well while the engine answers nothing.
    world.script.stuck.store(true, Ordering::SeqCst);
    assert_eq!((world.get("/livez").status, world.get("/readyz").status), (200, 200));
    {
        let mut health = world.script.health.lock().unwrap();
        health.ready = false;
        health.problems = vec!["shard 3 is full".into(), "stream orders: no broker".into()];
    }
    assert_eq!(world.get("/livez").status, 200);
    world.get("/readyz").is_problem(503, "not-ready", "shard 3 is full; stream orders: no broker");
    {
        let mut health = world.script.health.lock().unwrap();
        health.live = false;
        health.problems = vec!["id zone-a blocks a thread".into()];
    }
    world.get("/livez").is_problem(503, "not-live", "id zone-a blocks a thread");
    world.get("/readyz").is_problem(503, "not-ready", "zone-a");
}

/// What the process waits for may be away for hours; whoever restarts it for that makes it no better.
#[test]
fn b80_probes_are_answered_while_the_process_starts() {
    let server = Server::bind(AdminOptions::new("127.0.0.1:0".parse().unwrap(), None)).unwrap();
    let (address, runtime) = (server.local_addr(), tokio::runtime::Runtime::new().unwrap());
    let get = |path| request(address, "GET", path, &[], "");
    let starting = server.starting().unwrap();
    assert_eq!(get("/livez").status, 200);
    get("/readyz").is_problem(503, "not-ready", "starting");
    get("/v1/status").is_problem(503, "not-ready", "starting");
    runtime.block_on(starting.stop());
    let metrics = Metrics::new("dns").unwrap();
    let running = server.start(Arc::new(Script::default()), metrics.page()).unwrap();
    assert_eq!((get("/livez").status, get("/readyz").status), (200, 200));
    runtime.block_on(running.stop());
}

#[test]
fn t4_metrics_are_a_prometheus_page() {
    let world = World::open();
    let labels = [KeyValue::new("evenkeel.outcome", "done")];
    world.metrics.meter().u64_counter("evenkeel.runs").build().add(3, &labels);
    let page = world.get("/metrics");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/plain; version=0.0.4")));
    assert!(page.body.contains("evenkeel_runs_total{evenkeel_outcome=\"done\"} 3\n"), "{page:?}");
}

#[test]
fn an_engine_that_has_stopped_says_so() {
    let world = World::open();
    world.script.stopped.store(true, Ordering::SeqCst);
    for path in ["/v1/status", "/v1/shards", "/v1/queues", "/v1/explain?id=a"] {
        let answer = world.get(path);
        answer.is_problem(503, "stopping", "stopped");
        assert_eq!(answer.header("retry-after"), Some("1"), "{answer:?}");
    }
    world.post("/v1/cancel", r#"{"ids": ["a"]}"#).is_problem(503, "stopping", "");
}

#[test]
fn a_stop_answers_open_requests_and_frees_the_address() {
    let mut world = World::open();
    world.script.stuck.store(true, Ordering::SeqCst);
    let (mut open, mut idle) = (world.connect(), world.connect());
    write!(open, "GET /v1/status HTTP/1.1\r\nHost: {}\r\n\r\n", world.address).unwrap();
    eventually("the engine is asked", || !world.script.calls().is_empty());
    let server = world.server.take().unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(server.stop());
    let mut answer = Vec::new();
    open.read_to_end(&mut answer).unwrap();
    Answer::parse(&answer).is_problem(503, "stopping", "runs next");
    assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0, "an idle connection is closed");
    std::net::TcpListener::bind(world.address).unwrap();
}
